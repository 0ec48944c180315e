"""Columns as bins: every feature becomes small ordered integers, once, the same on every new X.

Level 1 holds missing values (and those unseen in fitting), the levels from 2 on the categories or the bins. A value
that holds more than an even share of a column's rows gets a bin of its own and leaves the other bins to other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowcal.data.checked_json import Plain
from lowcal.data.frames import Table as Frame
from lowcal.kernels.products import product
from lowcal.kernels.reference import CACHE, CHUNK, histogram, pieces
from lowcal.kernels.simplex import FloatArray, IntArray, leading
from lowcal.subpopulations.base import ENCODERS, effective_rows, is_enough
from lowcal.subpopulations.levels import (
    FIRST,
    MISSING,
    UNSEEN,
    ByLevels,
    Levels,
    learn_levels,
    read_columns,
    values_of,
    weighted_values,
)
from lowcal.subpopulations.single_row import Row, RowReader

T = TypeVar("T")

#: Quantile bins are estimated from this many rows: the error of their shares is below the noise of any tree.
BIN_ROWS = 200_000
#: Categories with fewer effective rows are not ordered by their mean residuals, which are noise.
LEAST_ORDERED = 100


class Binned:
    """The bins of some rows, shape (n, D), and what was computed from them: a tree is evaluated once on the same rows.

    What is remembered lives as long as the rows: a predictor keeps its trees, never the rows it was fitted on.
    """

    def __init__(self, codes: NDArray[np.unsignedinteger[Any]]) -> None:
        self.codes = codes
        self._known: dict[int, tuple[object, Any]] = {}
        #: What keeps values of rows that are read again and again: a key and how its value is made -> the value.
        self.store: Callable[[object, Callable[[], Any]], Any] | None = None

    def __reduce__(self) -> tuple[type[Binned], tuple[NDArray[Any]]]:
        return Binned, (self.codes,)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.codes.shape[0], self.codes.shape[1]

    def __getitem__(self, some: Any) -> Binned:
        return Binned(self.codes[some])

    @classmethod
    def join(cls, parts: Sequence[Binned]) -> Binned:
        """Return the rows of all parts, one after the other."""
        return Binned(np.concatenate([part.codes for part in parts]))

    def flat(self) -> tuple[list[NDArray[Any]], Callable[[Iterator[NDArray[Any]]], Binned]]:
        """Return the array that holds the bins, and how it becomes rows again."""
        return [self.codes], lambda arrays: Binned(next(arrays))

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Return what `make` makes for this key, made at the first call.

        >>> rows, key = Binned(np.zeros((2, 1), dtype=np.uint8)), object()
        >>> rows.once(key, lambda: [1]) is rows.once(key, lambda: [2])
        True
        """
        if self._known.get(id(key), (None,))[0] is not key:
            # the key is kept with its value: an id may be used again once its object is gone
            self._known[id(key)] = (key, make() if self.store is None else self.store(key, make))
        made: T = self._known[id(key)][1]
        return made


@ENCODERS.register
@dataclass(frozen=True)
class BinEncoder(ByLevels):
    """The ordered levels of every column."""

    kind: ClassVar[str] = "bins"

    def __call__(self, X: Frame) -> Binned:
        """Return the bins as small integers, a row after the other; unseen values count as missing."""
        kind = np.min_scalar_type(max([2, *(level.count for level in self.levels)]))
        codes = np.empty((X.n_rows, len(self.levels)), dtype=kind)
        for k, level in enumerate(self.levels):
            column = level.codes(X)
            codes[:, k] = column if level.categories is None else np.where(column == UNSEEN, MISSING, column)
        return Binned(codes)

    def row_reader(self) -> RowReader:
        """Return the bins of a row; unseen categories count as missing."""
        readers = [level.row_reader() for level in self.levels]

        def read(row: Row) -> list[int]:
            return [MISSING if code == UNSEEN else code for code in [reader(row) for reader in readers]]

        return read

    @classmethod
    def from_dict(cls, at: Plain) -> BinEncoder:
        """Return the encoder of plain data."""
        _, columns = at.fields("kind", "levels")
        return cls(read_columns(columns))


def learn_bins(column_name: str, X: Frame, max_bins: int, sample_weight: FloatArray) -> Levels:
    """Return the ordered levels of a column: its categories, each of few numbers, or at most max_bins bins."""
    column = X.column(column_name)
    if not column.is_numeric:
        return learn_levels(column, max_bins, sample_weight)
    is_large = X.n_rows > BIN_ROWS
    distinct, mass = (
        weighted_values(column.numbers, sample_weight, BIN_ROWS) if is_large else values_of(column, sample_weight)
    )
    cuts = distinct[:-1].tolist() if len(distinct) <= max_bins else even_cuts(distinct, mass, max_bins)
    return Levels(column.name, None, tuple(cuts), column.is_date)


def order_by_sums(levels: Levels, sums: FloatArray) -> tuple[Levels, NDArray[Any]]:
    """Return a column's levels in order (`Orderly`) and the new code of each level; the same levels if none moves.

    `sums` are those of w, w^2 and w (y - f) over each level, shape (levels, 2 + d).
    """
    column = Orderly((levels,), np.zeros((0, 1), dtype=np.uint8))
    place = column.order_by(np.vstack([sums, sums.sum(axis=0)]))
    return column.levels_after(place)[0], place.astype(np.min_scalar_type(levels.count))


def can_be_ordered(levels: Levels) -> bool:
    """Whether the order of a column's categories matters: not that of two, nor that of numbers."""
    return len(levels.categories or ()) > 2


@dataclass(frozen=True, eq=False)
class Orderly:
    """The bins of rows in all columns, whose categories go from the lowest mean residual to the highest.

    For one label and all rows, some cut of this order is the best split into any two sets of categories (Fisher). Means
    of categories with fewer than LEAST_ORDERED effective rows are noise, which a tree would fit: these stay between.
    Several labels are ordered along the direction in which the means differ most.
    """

    levels: tuple[Levels, ...]
    codes: NDArray[Any]

    @cached_property
    def columns(self) -> IntArray:
        """The columns of more than two categories: others have but one order."""
        return np.flatnonzero([can_be_ordered(level) for level in self.levels])

    @cached_property
    def counts(self) -> IntArray:
        """How many levels these columns have."""
        return np.array([self.levels[k].count for k in self.columns], dtype=np.intp)

    @cached_property
    def starts(self) -> IntArray:
        """The first level of each of these columns, numbered through all of them."""
        return np.asarray(np.cumsum(self.counts) - self.counts)

    @cached_property
    def places(self) -> IntArray:
        """The number of every such level in its column."""
        return np.arange(self.counts.sum()) - np.repeat(self.starts, self.counts)

    def sums(self, rows: IntArray | slice, weight: FloatArray, residual: FloatArray) -> FloatArray:
        """Return the sums of weights, their squares and weighted residuals over each level, and over all rows."""
        return np.asarray(self.sums_of_parts(rows, np.zeros(len(weight), dtype=np.intp), 1, weight, residual)[0])

    def sums_of_parts(
        self, rows: IntArray | slice, part: IntArray, n_parts: int, weight: FloatArray, residual: FloatArray
    ) -> FloatArray:
        """Return the same for each part of the rows, shape (parts, levels + 1, 2 + d); the last level is all of it."""
        numbers, n = np.column_stack([weight, np.square(weight), weight[:, None] * residual]), len(self.places)
        sums = np.zeros((n_parts, n + 1, numbers.shape[1]))
        sums[:, -1] = histogram(part, numbers, n_parts)
        codes = self.codes[rows]
        for some in pieces(len(self.columns), len(codes) * (CHUNK // CACHE)):
            cells = codes[:, self.columns[some]] + self.starts[some]
            each = np.repeat(numbers, cells.shape[1], axis=0)
            sums[:, :-1] += histogram((cells + n * part[:, None]).ravel(), each, n * n_parts).reshape(n_parts, n, -1)
        return sums

    def order_by(self, sums: FloatArray) -> IntArray:
        """Return the new place of every level, by its sums."""
        mass, square, moments = sums[:-1, 0], sums[:-1, 1], sums[:-1, 2:]
        is_category = self.places >= FIRST
        known = is_category & is_enough(effective_rows(mass, square), LEAST_ORDERED)
        mean = moments / np.where(known, mass, 1.0)[:, None] - sums[-1, 2:] / sums[-1, 0]
        key = np.where(is_category, self._along(np.where(known[:, None], mean, 0.0)), -np.inf)
        place = np.empty(len(key), dtype=np.intp)
        place[np.lexsort((key, np.repeat(self.columns, self.counts)))] = self.places
        return place

    def _along(self, mean: FloatArray) -> FloatArray:
        """Return mean residuals of a single label, or those of several along each column's main direction."""
        if mean.shape[1] == 1:
            return mean[:, 0]
        each = []
        for start, count in zip(self.starts, self.counts, strict=True):
            means = mean[start : start + count]
            direction = np.linalg.svd(means, full_matrices=False)[2][0]
            each.append(product(means, direction * np.sign(direction[leading(np.abs(direction))])))
        return np.concatenate([np.zeros(0), *each])

    def codes_after(self, place: IntArray) -> NDArray[Any]:
        """Return the bins of all rows after categories have changed places."""
        codes = self.codes.copy()
        for k, new in self._moves(place):
            codes[:, k] = new.astype(codes.dtype)[self.codes[:, k]]
        return codes

    def levels_after(self, place: IntArray) -> tuple[Levels, ...]:
        """Return the levels of all columns after categories have changed places."""
        levels = list(self.levels)
        for k, new in self._moves(place):
            categories = levels[k].categories or ()
            levels[k] = replace(levels[k], categories=tuple(categories[j] for j in np.argsort(new[FIRST:])))
        return tuple(levels)

    def _moves(self, place: IntArray) -> Iterator[tuple[int, IntArray]]:
        """Yield the columns whose categories change places, and the new place of each level."""
        for k, start, count in zip(self.columns, self.starts, self.counts, strict=True):
            new = place[start : start + count]
            if (np.diff(new) < 0).any():
                yield k, new


def even_cuts(distinct: FloatArray, mass: FloatArray, n_bins: int) -> tuple[float, ...]:
    """Return inner cut points: a heavy value gets its own bin, the others share the remaining bins evenly.

    A run of light values worth less than half a share joins the heavy value that follows.

    >>> even_cuts(np.array([0.0, 1.0, 2.0, 3.0, 4.0]), np.array([96.0, 1.0, 1.0, 1.0, 1.0]), 3)
    (0.0, 2.0)
    """
    is_heavy = np.zeros(len(mass), dtype=bool)  # worth at least an even share of the bins that heavier values leave
    while (left := n_bins - int(is_heavy.sum())) > 1:
        more = ~is_heavy & (mass * left >= mass[~is_heavy].sum() * (1.0 - 1e-9))
        if not more.any():
            break
        is_heavy |= more
    heavy, light = [*np.flatnonzero(is_heavy).tolist(), len(distinct)], np.where(is_heavy, 0.0, mass)
    reached = np.concatenate([[0.0], np.cumsum(light)])
    total = reached.item(-1)
    ends: list[int] = []
    start, waiting = 0, 0  # `heavy` ends where the values do
    for left in range(n_bins, 1, -1):
        if start == len(distinct):
            break
        end, stop, before = start, heavy[waiting], reached.item(start)
        if stop == start:
            waiting += 1
        else:
            share = (total - before) / max(1, left - (len(heavy) - 1 - waiting))
            end = int(reached.searchsorted(before + share * (1.0 - 1e-9))) - 1
            end = max(start, min(end, stop - 1))
            if end == stop - 1 and stop < len(distinct) and reached.item(stop) - before < 0.5 * share * (1.0 - 1e-9):
                end, waiting = stop, waiting + 1
        ends.append(end)
        start = end + 1
    return tuple(distinct[[end for end in ends if end < len(distinct) - 1]].tolist())
