"""Several threads for draws that do not depend on each other: NumPy lets go of Python's lock on long arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Every thread needs room for a few arrays of the rows' length.
MAX_THREADS = 4

#: On fewer rows, threads mostly wait for Python's lock: one is as fast, and leaves the other cores alone.
MANY_ROWS = 50_000


def spread(work: Callable[[Item], Result], items: Iterable[Item], rows: int) -> list[Result]:
    """Return the results of independent work, in order, on a few threads where the number of rows makes that faster.

    Threads see the context variables of the caller.

    >>> spread(lambda k: k * k, range(4), rows=100)
    [0, 1, 4, 9]
    """
    if rows < MANY_ROWS:
        return [work(item) for item in items]
    given = list(items)
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda context, item: context.run(work, item), [copy_context() for _ in given], given))
