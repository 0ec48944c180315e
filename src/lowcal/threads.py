"""Threads: one for BLAS while a fit runs, several for draws that do not depend on each other.

A fit makes many small matrix products. Several BLAS threads spend more time waiting for each other than they save, and
far more so when the cores are busy with something else (try OPENBLAS_NUM_THREADS=1 and 2 on a small fit without this).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController  # scikit-learn requires it

Item = TypeVar("Item")
Result = TypeVar("Result")
P = ParamSpec("P")

#: Every thread needs room for a few arrays of the rows' length.
MAX_THREADS = 4


@cache
def _controller() -> Any:
    """Return the handle on the loaded BLAS libraries; finding them takes milliseconds, so it is done once."""
    return ThreadpoolController()


class _Limit:
    """The one limit on BLAS that all contexts share: fits that overlap must not take each other's for the user's."""

    def __init__(self) -> None:
        self.lock, self.users = Lock(), 0
        self.limit: Any = None

    def __enter__(self) -> None:
        with self.lock:
            if self.users == 0:
                self.limit = _controller().limit(limits=1, user_api="blas")
            self.users += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                self.limit.restore_original_limits()


_LIMIT = _Limit()


def one_blas_thread() -> AbstractContextManager[None]:
    """Return a context in which BLAS uses one thread; the user's setting comes back after the last of them.

    >>> with one_blas_thread():
    ...     pass
    """
    return _LIMIT


def on_one_blas_thread(function: Callable[P, Result]) -> Callable[P, Result]:
    """Let a function run with one BLAS thread: a long scalar product is enough to wake the others, which then spin."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> Result:
        with one_blas_thread():
            return function(*args, **kwargs)

    return limited


def spread(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of independent work, in order, on a few threads: NumPy lets go of the lock on long arrays.

    >>> spread(lambda k: k * k, range(4))
    [0, 1, 4, 9]
    """
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, items))
