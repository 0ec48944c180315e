"""The memory of workers: glibc maps large arrays anew each time, unless it may keep what a pass frees for the next."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

#: Options of glibc: free memory at the top that is kept, and the size from which an array is mapped.
TRIM, MAPPED = -1, -3
ROOMY = (TRIM, 1 << 30), (MAPPED, 1 << 25)


@cache
def glibc(name: str) -> Callable[..., int] | None:
    """Return a function of glibc; None: the process has another allocator.

    >>> glibc("no_such_function") is None
    True
    """
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return found


def keep_freed() -> None:
    """Let this process keep the memory that it frees."""
    if (mallopt := glibc("mallopt")) is not None:
        for option, value in ROOMY:
            mallopt(option, value)


def give_back() -> None:
    """Give the memory back that this process has freed."""
    if (malloc_trim := glibc("malloc_trim")) is not None:
        malloc_trim(0)
