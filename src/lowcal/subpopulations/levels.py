"""Columns as levels: how a column of X becomes small integer codes, the same on every new X.

Level 0 holds values unseen in fitting (they belong to no group of the column), level 1 the missing ones, and the
levels from 2 on the categories or the bins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.data.checked_json import Numbers, Plain, PlainFields, PlainLabels
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Column, count_bytes
from lowcal.data.frames import Table as Frame
from lowcal.data.onnx_graph import GraphColumns, Value
from lowcal.kernels.loops import FEW
from lowcal.kernels.reference import CACHE, CHUNK, histogram, pieces, sample_rows
from lowcal.kernels.simplex import MOST_EXACT, FloatArray, IntArray
from lowcal.subpopulations.base import ColumnChoice, effective_rows, is_enough, list_rare, masses_of
from lowcal.subpopulations.single_row import Row, bin_of, plain_value

#: Levels of a value that the fit has not seen, of a missing one, and of the first bin or category.
UNSEEN, MISSING, FIRST = 0, 1, 2

#: Up to this many cuts are compared with each number; more are searched by bisection.
FEW_CUTS = 64
#: Rows that show whether a column has many distinct numbers, and rows from which its quantiles are bracketed.
SOME_ROWS, SAMPLE = 1000, 1 << 14
#: How far a quantile of SAMPLE rows may be from that of all: four standard deviations of a share of 1/2.
MARGIN = 2.0 / SAMPLE**0.5
#: Dates of a file lie within this many seconds of 1970: their microseconds fit into 64 bits.
MOST_SECONDS = np.iinfo(np.int64).max / 1e6


@dataclass(frozen=True)
class Levels:
    """One column's levels: its categories, or the cut points of its bins; of dates both are seconds since 1970."""

    column: str
    categories: tuple[Hashable, ...] | None
    cuts: tuple[float, ...] = ()
    is_date: bool = False

    @property
    def count(self) -> int:
        """How many levels there are, the two special ones included."""
        return FIRST + (len(self.cuts) + 1 if self.categories is None else len(self.categories))

    def codes(self, X: Frame) -> IntArray:
        """Return the level of every row, in the smallest type that holds them all."""
        kind = np.min_scalar_type(self.count - 1)
        column = X.column(self.column)
        self._check_dates(column)
        if self.categories is not None and column.is_numeric and not column.is_rounded:
            return _levels_of_numbers(column.numbers, self.categories, kind)
        if self.categories is not None:
            return column.look_up(self.numbers, MISSING, UNSEEN, kind)
        return bins_of(column.numbers if column.is_numeric else X.numeric([self.column])[:, 0], self.cuts, kind)

    def _check_dates(self, column: Column) -> None:
        """Refuse dates where others were fitted, and others where dates were: no two values would ever be equal."""
        if column.is_date == self.is_date or not (self.categories or self.cuts):
            return
        if column.is_date:
            raise InvalidInput(
                f"Column {self.column!r} of X holds dates, but was fitted on other values. Convert it to the type it "
                "had in the fit."
            )
        if column.values is None or not np.isnan(column.values).all():
            raise InvalidInput(
                f"Column {self.column!r} of X holds no dates, but was fitted on dates. Convert it to dates, e.g. "
                "with pandas.to_datetime."
            )

    def name(self, level: int) -> str:
        """Return the group's name: 'sex=F', '28<age<=37', '2020-01-31<day<=2020-02-29', 'age is missing'."""
        if level == MISSING:
            return f"{self.column} is missing"
        if self.categories is not None:
            return f"{self.column}={self.shown[level - FIRST]}"
        return self.between(level - 1, level)

    def between(self, low: int, high: int) -> str:
        """Return the name of the bins after `low` up to `high`: '28<age<=37', 'age>37', 'age is present'."""
        left = "" if low == MISSING else f"{self.shown[low - FIRST]}<"
        if high < self.count - 1:
            return f"{left}{self.column}<={self.shown[high - FIRST]}"
        return f"{self.column}>{left[:-1]}" if left else f"{self.column} is present"

    @cached_property
    def numbers(self) -> dict[Hashable, int]:
        """The level of each category."""
        return {category: FIRST + k for k, category in enumerate(self.categories or ())}

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """The categories or the cut points as text, no two alike: a name stands for one group."""
        if self.is_date:
            return show_dates(self.cuts if self.categories is None else self.categories)  # type: ignore[arg-type]
        if self.categories is None:
            return show_numbers(self.cuts)
        times = Counter(str(c) for c in self.categories)
        return tuple(str(c) if times[str(c)] == 1 else repr(c) for c in self.categories)

    def row_reader(self) -> Callable[[Row], int]:
        """Return the function from a row to the level of its value."""
        name, code, cuts, is_number = self.column, self.numbers, self.cuts, self.categories is None
        kinds = () if self.is_date else (int, float) if is_number else (str, bool, int, float)

        def read(row: Row) -> int:
            value = plain_value(row(name))
            if value is None:
                return MISSING
            if type(value) not in kinds:
                return int(self.codes(Frame.of({name: [value]}))[0])
            if is_number:
                return bin_of(float(value), cuts, MISSING, FIRST)
            return code.get(value, UNSEEN) if value == value else MISSING

        return read

    def onnx(self, columns: GraphColumns, unseen: int = UNSEEN) -> Value:
        """Return the level of every row in a graph, shape (n,), with `unseen` for values not met in fitting."""
        if self.categories is None:
            return columns.bin(self.column, self.cuts, MISSING, FIRST)
        if self.column in columns.text:
            return columns.label(self.column, self._texts(columns.missing), unseen)
        numbers = {c: k for c, k in self.numbers.items() if isinstance(c, int | float)}
        rounded = next((c for c in numbers if isinstance(c, int) and not _fits(c)), None)
        if rounded is not None:
            raise InvalidInput(
                f"Column {self.column!r} has the category {rounded}, a whole number beyond 2^53 that no double of an "
                "ONNX input equals. Make the column text before fitting."
            )
        known, graph, value = np.array(sorted(numbers), dtype=np.float64), columns.graph, columns.number(self.column)
        if not len(known):
            return columns.unless_missing(value, MISSING, unseen)
        place = graph.count_below(value, known)
        padded = graph.add("Gather", np.append(known, np.nan), place)
        level = graph.add("Gather", [*(numbers[v] for v in sorted(numbers)), unseen], place)
        found = graph.add("Where", graph.add("Equal", padded, value), level, unseen)
        return columns.unless_missing(value, MISSING, found)

    def _texts(self, missing: str) -> dict[str, int]:
        """Return the level of each category as text, and of the word that stands for missing values."""
        keys = [*(str(c) for c in self.categories or ()), missing]
        twice = next((key for key, times in Counter(keys).items() if times > 1), None)
        if twice == missing:
            raise InvalidInput(
                f"Column {self.column!r} has the category {missing!r}, which is to stand for missing values in "
                "the graph, as ONNX has no missing text. Choose another word: missing='<missing>'."
            )
        if twice is not None:
            raise InvalidInput(
                f"Column {self.column!r} has the number {twice} and the text {twice!r} as categories, which an "
                "ONNX input can't tell apart. Make the column all text before fitting."
            )
        return dict(zip(keys, [*range(FIRST, self.count), MISSING], strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the levels as plain data."""
        categories = None if self.categories is None else PlainLabels(self.categories)
        data = {"column": self.column, "categories": categories, "cuts": Numbers(self.cuts)}
        return {**data, "is_date": True} if self.is_date else data

    @classmethod
    def from_dict(cls, at: Plain) -> Levels:
        """Return the levels of plain data."""
        column, categories, cuts, date = at.fields("column", "categories", "cuts", optional=("is_date",))
        inner, is_date = cuts.increasing(), not date.is_null  # written for dates alone, as true
        levels = cls(column.text(), None if categories.is_null else categories.labels(), tuple(inner.tolist()), is_date)
        if len(inner) and levels.categories is not None:
            cuts.refuse("empty beside categories")
        seconds: Any = levels.cuts if levels.categories is None else levels.categories
        are_moments = all(type(value) in (int, float) and abs(value) <= MOST_SECONDS for value in seconds)
        if is_date and not (date.value is True and are_moments):
            at.refuse("levels of dates: seconds since 1970")
        return levels


@dataclass(frozen=True)
class ByLevels(PlainFields):
    """An encoder that reads every column as levels."""

    levels: tuple[Levels, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(level.column for level in self.levels)


def read_columns(at: Plain) -> tuple[Levels, ...]:
    """Return the levels of different columns of plain data."""
    levels = tuple(Levels.from_dict(one) for one in at.items())
    if len({level.column for level in levels}) < len(levels):
        at.refuse("a list of different columns")
    return levels


def bins_of(
    values: NDArray[Any],
    cuts: Sequence[float] | FloatArray,
    kind: np.dtype[Any],
    missing: int = MISSING,
    first: int = FIRST,
) -> IntArray:
    """Return `first` plus the number of cuts below each number, `missing` for NaN.

    >>> bins_of(np.array([28.0, np.nan, 31.0]), (28.0, 37.0), np.dtype(np.uint8))
    array([2, 1, 3], dtype=uint8)
    """
    edges, found = np.asarray(cuts), np.empty(len(values), dtype=kind)
    for part in pieces(len(values), min(max(FEW, len(edges)), FEW_CUTS) * (CHUNK // CACHE)):
        here = values[part].astype(np.float64, copy=False)
        if len(edges) > FEW_CUTS:
            below = np.searchsorted(edges, here, side="left")
        else:  # every edge: there is nothing to branch on
            below = np.add.reduce((here > edges[:, None]).view(np.uint8), axis=0, dtype=np.uint8)
        np.add(below, first, out=found[part], casting="unsafe")
        absent = np.isnan(here)
        if absent.any():
            found[part][absent] = missing
    return found


def _levels_of_numbers(values: NDArray[Any], categories: Sequence[Hashable], kind: np.dtype[Any]) -> IntArray:
    """Return the levels of numbers among categories, some of which are numbers: by their place, or by search.

    >>> _levels_of_numbers(np.array([2.0, np.nan, 1.5, 0.0]), (0, 1, 2, "two"), np.dtype(np.uint8))
    array([4, 1, 0, 2], dtype=uint8)
    """
    # whole numbers that no float equals can't be met among floats
    numbers = {
        c: FIRST + k for k, c in enumerate(categories) if isinstance(c, float) or (isinstance(c, int) and _fits(c))
    }
    known = np.array(sorted(numbers), dtype=np.float64)
    levels = np.array([*(numbers[v] for v in sorted(numbers)), UNSEEN], dtype=kind)
    is_run = len(known) > 0 and float(known[0]).is_integer() and (np.diff(known) == 1.0).all()
    is_run = is_run and (np.diff(levels[:-1]) == 1).all() and values.dtype.kind in "iu" and len(values) > 0
    if is_run and known[0] <= values.min() and values.max() <= known[-1]:
        shift = (int(levels[0]) - int(known[0])) % (1 << 8 * kind.itemsize)  # sums of unsigned numbers wrap around
        return np.asarray(np.add(values, kind.type(shift), dtype=kind, casting="unsafe"))
    found, padded = np.empty(len(values), dtype=kind), np.append(known, np.nan)
    for part in pieces(len(values), CHUNK // CACHE):
        here = values[part]
        place = bins_of(here, known, np.dtype(np.intp)) - FIRST  # of a missing value: the last, which no value equals
        found[part] = np.where(padded[place] == here, levels[place], np.where(np.isnan(here), MISSING, UNSEEN))
    return found


def _fits(number: int) -> bool:
    """Whether a float holds this whole number exactly."""
    return number.bit_length() <= 1000 and int(float(number)) == number


def learn_levels(column: Column, n_bins: int, seen: FloatArray) -> Levels:
    """Return the levels of a fitted column: each category, or each of few numbers, or bins cut at quantiles.

    `seen` are the sample weights: rows without weight do not count.
    """
    if not column.is_numeric:
        return Levels(column.name, column.categories)
    values, some = column.numbers, slice(None, None, max(1, len(column.numbers) // SOME_ROWS))
    known: Sequence[Any]
    if column.is_rounded:  # floats round some numbers, so the distinct ones are taken with all their digits
        distinct, codes = column.distinct()
        known = sorted({distinct[k] for k in np.unique(codes[seen > 0]).tolist() if 0 <= k < len(distinct)} - {None})
    elif len(values) > SAMPLE and _are_many(values[some][seen[some] > 0.0], n_bins):
        return Levels(column.name, None, _cuts_of_many(values, seen, n_bins), column.is_date)
    else:
        known = values_of(column, seen)[0][: n_bins + 1].tolist()
    if len(known) <= n_bins:
        whole = (int(v) if isinstance(v, int) or float(v).is_integer() else float(v) for v in known)
        return Levels(column.name, tuple(whole), is_date=column.is_date)
    return Levels(column.name, None, quantile_cuts(*values_of(column, seen), n_bins), column.is_date)


def _are_many(some: NDArray[Any], n_bins: int) -> bool:
    """Whether some of a column's numbers show that it has more than a few, not all whole."""
    return len(np.unique(some)) > n_bins + 1 and bool((np.floor(some) != some).any())  # NaN is one


def cut_levels(column: Column, cuts: Sequence[Any]) -> Levels:
    """Return the bins of a column of numbers or dates with given cut points, each the last value of its bin.

    >>> cut_levels(Frame.of({"age": [20, 70]}).column("age"), [25, 65]).name(3)
    '25<age<=65'
    """
    if not column.is_numeric:
        raise InvalidInput(
            f"Column {column.name!r} of X holds no numbers to cut at {cuts!r}. Give it without cut points: "
            f"{{{column.name!r}: None}}."
        )
    try:
        edges = _seconds(cuts) if column.is_date else np.asarray(cuts, dtype=np.float64)
    except (TypeError, ValueError):
        edges = np.zeros(0)
    if edges.ndim != 1 or not len(edges) or not np.isfinite(edges).all() or (np.diff(edges) <= 0.0).any():
        kind = "dates" if column.is_date else "numbers"
        raise InvalidInput(f"Cut points must be {kind} in rising order, but {column.name!r} was given {cuts!r}.")
    return Levels(column.name, None, tuple(edges.tolist()), column.is_date)


def _seconds(dates: Sequence[Any]) -> FloatArray:
    """Return dates, or ISO 8601 text, as seconds since 1970; NaN for no date."""
    moments = np.array(dates, dtype="datetime64[us]")
    return np.where(np.isnat(moments), np.nan, moments.astype(np.float64) / 1e6)


class LevelMasses:
    """Sums of w and w^2 over the rows of each level of a code column; of equal weights only rows are counted.

    >>> LevelMasses(np.full(3, 0.5))(np.array([0, 1, 1]), 2)
    array([[0.5 , 0.25],
           [1.  , 0.5 ]])
    """

    def __init__(self, sample_weight: FloatArray) -> None:
        self._is_same = _each(sample_weight) is not None
        self._masses = masses_of(sample_weight[:1] if self._is_same else sample_weight)

    def __call__(self, codes: NDArray[Any], count: int) -> FloatArray:
        """Return the sums, shape (count, 2)."""
        if not self._is_same:
            return histogram(codes, self._masses, count)
        rows = count_bytes(codes)[:count] if codes.dtype == np.uint8 else np.bincount(codes, minlength=count)
        return np.asarray(rows[:, None] * self._masses)


def _each(sample_weight: FloatArray) -> float | None:
    """Return the weight of every row, if all have the same."""
    is_same = len(sample_weight) > 0 and bool((sample_weight == sample_weight[0]).all())
    return float(sample_weight[0]) if is_same and sample_weight[0] > 0.0 else None


class Weighed(NamedTuple):
    """A column's levels, the level of every row, and sums of w and w^2 for each level.

    Then the levels with too few rows, in words, and whether any level has enough.
    """

    levels: Levels
    codes: IntArray
    mass: FloatArray
    rare: list[str]
    is_examined: bool


def drop_rare(levels: Levels, X: Frame, weigh: LevelMasses, min_mass: float) -> Weighed:
    """Return the levels without categories of fewer than min_mass effective rows, which are in no group."""
    codes = levels.codes(X)
    mass = weigh(codes, levels.count)
    worth = effective_rows(*mass.T)
    enough = is_enough(worth, min_mass)
    rare, is_examined = list_rare(worth, levels.name, f"values of {levels.column}", min_mass), bool(enough.any())
    if levels.categories is not None and not enough[FIRST:].all():
        kept = tuple(c for c, keep in zip(levels.categories, enough[FIRST:], strict=True) if keep)
        levels = replace(levels, categories=kept)
        codes = levels.codes(X)
        mass = weigh(codes, levels.count)
    return Weighed(levels, codes, mass, rare, is_examined)


def values_of(column: Column, sample_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return `weighted_values` of all rows of a column, found once for the same weights."""
    return column.once(sample_weight, lambda: weighted_values(column.numbers, sample_weight))


def weighted_values(
    values: NDArray[Any], sample_weight: FloatArray, most_sorted: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the distinct values that are present and have weight, sorted, and the weight of each.

    Whole numbers of a small range are counted, others sorted: of more than `most_sorted` rows a
    sample of that size, which stands for the others.

    >>> weighted_values(np.array([2.0, np.nan, 0.5, 2.0]), np.array([1.0, 1.0, 2.0, 3.0]))
    (array([0.5, 2. ]), array([2., 4.]))
    """
    counted = _counted(values, sample_weight)
    if counted is not None:
        return counted
    if most_sorted is not None and len(values) > most_sorted:
        seen = np.flatnonzero(sample_weight)
        some = sample_rows(len(seen), 0, most_sorted)
        rows = seen if some is None else seen[some]
        values, sample_weight = values[rows], sample_weight[rows]
    return _sorted_values(values, sample_weight)


def _sorted_values(values: NDArray[Any], sample_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the same for numbers of any kind."""
    values = values.astype(np.float64, copy=False)
    seen = ~np.isnan(values) & (sample_weight > 0)
    if not seen.all():
        values, sample_weight = values[seen], sample_weight[seen]
    if len(values) == 0 or sample_weight.min() < sample_weight.max():
        distinct, which = np.unique(values, return_inverse=True)
        return distinct, histogram(which, sample_weight[:, None], len(distinct))[:, 0]
    distinct, count = np.unique(values, return_counts=True)
    return distinct, np.asarray(count * sample_weight[0], dtype=np.float64)


def _counted(values: NDArray[Any], sample_weight: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Return the same for whole numbers of a small range, a piece of the rows at a time; None for others."""
    low, high = (float(least.reduce(values)) if len(values) else np.nan for least in (np.fmin, np.fmax))
    if not (high - low < CACHE and low == np.floor(low) and max(-low, high) <= MOST_EXACT):
        return None
    size, each = int(high - low) + 1, _each(sample_weight)
    held, mass = np.zeros(size + 1, dtype=np.intp), np.zeros(size + 1)
    for part in pieces(len(values), CHUNK // CACHE):
        here, weight = values[part], sample_weight[part]
        if here.dtype.kind in "iu":
            which = np.subtract(here, int(low), dtype=np.intp, casting="unsafe")
        else:
            shifted = here - low
            which = np.where(np.isnan(shifted), size, shifted).astype(np.intp)
            if ((which != shifted) & (which < size)).any():  # not all of them are whole
                return None
        held += np.bincount(which, weight > 0 if each is None else None, size + 1).astype(np.intp, copy=False)
        if each is None:
            mass += np.bincount(which, weight, size + 1)
    present = np.flatnonzero(held[:size])
    return np.asarray(low + present), mass[present] if each is None else np.asarray(held[present] * each)


def quantile_cuts(distinct: FloatArray, mass: FloatArray, n_bins: int) -> tuple[float, ...]:
    """Return inner cut points at the weighted quantiles, without repeats and never at the maximum (an empty bin).

    >>> quantile_cuts(np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4), 2)
    (2.0,)
    """
    reached = np.cumsum(mass) / mass.sum()
    shares = np.arange(1, n_bins) / n_bins
    cuts = np.unique(distinct[np.searchsorted(reached, shares - 1e-12, side="left")])
    return tuple(float(c) for c in cuts if c < distinct[-1])


def _cuts_of_many(values: NDArray[Any], sample_weight: FloatArray, n_bins: int) -> tuple[float, ...]:
    """Return `quantile_cuts` of many distinct numbers, sorting none but those near the cuts; the others are counted.

    >>> _cuts_of_many(np.array([4.0, 1.0, np.nan, 3.0, 2.0]), np.ones(5), 2)
    (2.0,)
    """
    some = slice(None, None, max(1, len(values) // SAMPLE))
    distinct, each = _sorted_values(values[some], sample_weight[some])
    around = np.arange(1, n_bins)[:, None] / n_bins + np.array([-MARGIN, MARGIN])
    place = np.searchsorted(np.cumsum(each), around.ravel() * each.sum(), side="left")
    edges = np.unique(distinct[np.minimum(place, len(distinct) - 1)]) if len(distinct) else distinct
    part = bins_of(values, edges, np.min_scalar_type(FIRST + len(edges)))
    mass = LevelMasses(sample_weight)(part, FIRST + len(edges) + 1)[:, 0]
    mass[MISSING] = 0.0
    reached = np.cumsum(mass)
    targets = (np.arange(1, n_bins) / n_bins - 1e-12) * reached[-1]
    holds, last, cuts = np.searchsorted(reached, targets, side="left"), np.flatnonzero(mass)[-1], set()
    for k in np.unique(holds):
        inside = np.flatnonzero(part == k)
        distinct, each = _sorted_values(values[inside], sample_weight[inside])
        place = np.searchsorted(reached[k - 1] + np.cumsum(each), targets[holds == k], side="left")
        cuts |= set(distinct[np.minimum(place, len(distinct) - 1)].tolist()) - ({distinct[-1]} if k == last else set())
    return tuple(sorted(cuts))


def show_numbers(numbers: Sequence[float]) -> tuple[str, ...]:
    """Write distinct numbers with six digits, or with as many as distinguish them; -0.0 is 0.

    >>> show_numbers([0.5, 1 / 3]), show_numbers([1000001.0, 1000002.0])
    (('0.5', '0.333333'), ('1000001', '1000002'))
    """
    for digits in range(6, 17):
        shown = tuple(f"{t + 0.0:.{digits}g}" for t in numbers)
        if len(set(shown)) == len(shown):
            return shown
    return tuple(repr(t) for t in numbers)


def show_dates(seconds: Sequence[float]) -> tuple[str, ...]:
    """Write seconds since 1970 as dates in UTC, with the time of day unless all are at midnight.

    >>> show_dates([0.0, 86400.0]), show_dates([0.0, 1.5])
    (('1970-01-01', '1970-01-02'), ('1970-01-01T00:00:00.000000', '1970-01-01T00:00:01.500000'))
    """
    moments: Any = np.round(np.array(seconds, dtype=np.float64) * 1e6).astype(np.int64).astype("datetime64[us]")
    units: tuple[Literal["D", "s", "us"], ...] = ("D", "s", "us")
    unit = next(u for u in units if (moments.astype(f"datetime64[{u}]") == moments).all())
    return tuple(np.datetime_as_string(moments, unit=unit).tolist())


def resolve(columns: ColumnChoice, X: Frame) -> tuple[str, ...]:
    """Return the names of the wanted columns; None is all of them. An unknown one is an error."""
    if columns is None:
        return X.names
    if not isinstance(columns, str | Integral | Iterable):
        raise InvalidInput(f"columns must be a name, a position or a list of these, but {columns!r} was given.")
    if isinstance(columns, Mapping):
        raise InvalidInput(f"Only Groups and Intersections take cut points, but {columns!r} was given. List the names.")
    wanted = list(columns) if isinstance(columns, Iterable) and not isinstance(columns, str) else [columns]
    return tuple(dict.fromkeys(X.name_of(name) for name in wanted))
