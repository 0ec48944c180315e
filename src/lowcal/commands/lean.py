"""Columns of a file as a table of the library, without a copy in memory: they are converted when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.files.columns import Narrow
from lowcal.files.fields import Kind
from lowcal.files.opening import has_arrow
from lowcal.frames import Column, Table, numeric


def table_of(columns: Sequence[Narrow], n_rows: int) -> Table:
    """Return a table that reads from narrow columns, each time anew.

    >>> codes = np.array([1, -1, 0], dtype=np.int8)
    >>> table = table_of([Narrow("city", Kind.TEXT, codes, ("Rome", "Oslo"))], 3)
    >>> table.column("city").categories, table.column("city").codes.tolist()
    (('Oslo', 'Rome'), [0, -1, 1])
    """
    sorted_ones = [_sorted(column) if column.kind in (Kind.TEXT, Kind.BOOLEAN) else column for column in columns]
    names = [column.name for column in columns]
    return Table(names, n_rows, lambda position: _read(sorted_ones[position]), is_named=True, keep=False)


def _read(column: Narrow) -> Column:
    if column.kind is Kind.NUMBER:
        return Column(column.name, None, None, column.values.astype(np.float64))
    if column.kind is Kind.WHOLE:
        return numeric(column.name, column.distinct, column.values)
    return Column(column.name, column.distinct, column.values, None)


def array_of(column: Narrow) -> Any:
    """Return a column as an array; texts as Arrow's dictionary where Arrow is at hand.

    >>> array_of(Narrow("city", Kind.WHOLE, np.array([1, -1, 0], dtype=np.int8), (5, 7))).tolist()
    [7, None, 5]
    """
    if column.kind is Kind.NUMBER:
        return column.values.astype(np.float64)
    if column.kind is Kind.TEXT and has_arrow():
        import pyarrow as pa

        codes = pa.array(column.values, mask=column.values < 0)
        return pa.DictionaryArray.from_arrays(codes, pa.array(column.distinct, pa.string()))
    return np.array([*column.distinct, None], dtype=object)[column.values]


def _sorted(column: Narrow) -> Narrow:
    """Return a column of categories as `frames` has them: sorted, and only those that occur."""
    kept = sorted(occurring(column)) if column.kind is Kind.TEXT else [False, True]
    place = {value: k for k, value in enumerate(kept)}
    table = np.array([*(place.get(value, -1) for value in column.distinct), -1], dtype=column.values.dtype)
    return Narrow(column.name, column.kind, table[column.values], tuple(kept))


def occurring(column: Narrow) -> list[Any]:
    """Return the distinct values that at least one row has."""
    times = np.zeros(len(column.distinct) + 1, dtype=np.intp)
    for start in range(0, len(column.values), 1 << 20):
        times += np.bincount(column.values[start : start + (1 << 20)] + np.intp(1), minlength=len(times))
    return [value for value, n in zip(column.distinct, times[1:], strict=True) if n]


def categories(name: str, distinct: Sequence[Any], places: NDArray[np.intp]) -> Column:
    """Return a column of any distinct values, None among them, as a predictor reads it."""
    known = [value for value in dict.fromkeys(distinct) if value is not None]
    code = {None: -1} | {value: k for k, value in enumerate(known)}
    codes = np.array([code[value] for value in distinct], dtype=np.int32)[places]
    return Column(name, tuple(known), codes, None)
