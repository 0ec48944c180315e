"""Joint codes: the codes of several columns, each looked up in a small table, added up to one code a row.

A merged code column is sum_k stride_k level_k(x_k). Columns that come as bytes (dictionary indices, small whole
numbers) need no levels of their own: the table of a column holds stride times level for each of its few values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.engines.kernels import kernels_for

#: Any whole numbers that are not negative, and the table they are looked up in.
Column = tuple[NDArray[Any], NDArray[Any]]


#: Writes the sum of two look-ups into the codes: a, its table, b, its table, codes.
LayPair = Callable[[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]], None]


def join_codes(columns: Sequence[Column], n: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return sum_k table_k[column_k] for n rows; `kind` holds every sum, and every table is of it.

    >>> a, b = np.array([0, 1, 1], dtype=np.uint8), np.array([2, 0, 1], dtype=np.uint8)
    >>> tables = np.array([0, 3], dtype=np.uint8), np.array([0, 1, 2], dtype=np.uint8)
    >>> join_codes([(a, tables[0]), (b, tables[1])], 3, np.dtype(np.uint8)).tolist()
    [2, 3, 4]
    """
    (a, table), rest = columns[0], columns[1:]
    out = np.empty(n, dtype=kind)
    if rest:
        lay = (_compiled() or lay_pair) if kernels_for(n * len(columns)).compiled else lay_pair
        lay(a, table, *rest[0], out)
    else:
        out[:] = np.take(table, a)
    for a, table in rest[1:]:
        out += np.take(table, a)
    return out


def lay_pair(a: NDArray[Any], table_a: NDArray[Any], b: NDArray[Any], table_b: NDArray[Any], out: NDArray[Any]) -> None:
    """Fill out[i] with table_a[a_i] + table_b[b_i]."""
    np.add(np.take(table_a, a), np.take(table_b, b), out=out)


@cache
def _compiled() -> LayPair | None:
    """Import the compiled loop, or return None without numba."""
    try:
        from lowcal.engines import compiled_joint
    except ImportError:
        return None
    return compiled_joint.lay_pair
