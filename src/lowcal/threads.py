"""Several threads for draws that do not depend on each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Every thread needs room for a few arrays of the rows' length.
MAX_THREADS = 4


def spread(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of independent work, in order, on a few threads: NumPy lets go of the lock on long arrays.

    >>> spread(lambda k: k * k, range(4))
    [0, 1, 4, 9]
    """
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, items))
