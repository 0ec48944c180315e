"""Joint codes: the codes of several columns, each looked up in a small table, added up to one code a row.

A merged code column is sum_k stride_k level_k(x_k). Columns that come as bytes (dictionary indices, small whole
numbers) need no levels of their own: the table of a column holds stride times level for each of its few values. Where
the table rises by the same stride from value to value, as that of a sorted dictionary does, the look-up is a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.switch import kernels_for


class LookUp(NamedTuple):
    """Whole numbers that are not negative, and the table they are looked up in.

    With a `stride`, table[a] = stride * a + offset for all numbers a that occur, modulo the size of the table's type.
    """

    places: NDArray[Any]
    table: NDArray[Any]
    stride: int | None = None
    offset: int = 0


def join_codes(looks: Sequence[LookUp], n: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return sum_k table_k[places_k] for n rows; `kind` is unsigned, holds every sum, and every table is of it.

    >>> a, b = np.array([0, 1, 1], dtype=np.uint8), np.array([2, 0, 1], dtype=np.uint8)
    >>> tables = np.array([0, 3], dtype=np.uint8), np.array([1, 2, 3], dtype=np.uint8)
    >>> join_codes([LookUp(a, tables[0]), LookUp(b, tables[1], 1, 1)], 3, np.dtype(np.uint8)).tolist()
    [3, 4, 5]
    """
    products = [look for look in looks if look.stride is not None]
    tables = [look for look in looks if look.stride is None]
    out = _look_up(tables, n, kind) if tables else np.zeros(n, dtype=kind)
    for look in products:
        out += look.places.astype(kind, copy=False) * kind.type(look.stride)
    if products:
        out += kind.type(sum(look.offset for look in products) % (1 << 8 * kind.itemsize))
    return out


def _look_up(looks: Sequence[LookUp], n: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the sum of the look-ups, two columns at a time."""
    out = np.empty(n, dtype=kind)
    if len(looks) == 1:
        out[:] = np.take(looks[0].table, looks[0].places)
    else:
        kernels_for(n * len(looks)).lay_pair(looks[0].places, looks[0].table, looks[1].places, looks[1].table, out)
    for look in looks[2:]:
        out += np.take(look.table, look.places)
    return out
