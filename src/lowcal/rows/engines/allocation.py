"""The memory of workers: glibc maps large arrays anew each time, unless it may keep what a pass frees for the next."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

#: The numbers of glibc's options: free memory at the top that is kept, and the size from which an array is mapped.
_TRIM, _MAPPED = -1, -3


@cache
def _glibc(name: str) -> Callable[..., int] | None:
    """Return a function of glibc; None: the process has another allocator."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return found


def keep_freed(free: int = 1 << 30, mapped: int = 1 << 25) -> None:
    """Let this process keep this many bytes that it frees; arrays of `mapped` bytes and more are not kept."""
    if (mallopt := _glibc("mallopt")) is not None:
        mallopt(_TRIM, free)
        mallopt(_MAPPED, mapped)


def give_back() -> None:
    """Give the memory back that this process has freed."""
    if (malloc_trim := _glibc("malloc_trim")) is not None:
        malloc_trim(0)
