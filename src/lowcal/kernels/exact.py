"""Sums that do not depend on the order of their terms: the same bits for any chunks, threads or workers.

Every term is rounded to a multiple of a power of two, its unit (add 1.5 2^52 units, take them off again). A block of
rows is so short that its terms add up without rounding in float64; blocks are added up as integers. A term is off by
half a unit at most: 2^-34 of the largest term for many rows, less for few. `Fine` sums carry the rest of each term
along, on a unit of its own, and are as accurate as float64 allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import frexp, ldexp
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.loops import MAX_THREADS, OTHER_SIDE, code_rows, kernels_at_hand, pad, spread
from lowcal.kernels.simplex import SMALLEST, FloatArray

if TYPE_CHECKING:
    from lowcal.kernels.reference import Codes, Design

#: The most rows whose rounded terms add up exactly in float64.
BLOCK = 1 << 18
#: Whole numbers of units.
Wholes: TypeAlias = NDArray[np.int64]
#: Up to this many columns of different units are rounded one by one: it saves a tenth of a fit of 1,000,000 rows x 100
#: groups.
NARROW = 16


@dataclass(frozen=True, eq=False)
class Grid:
    """Multiples of `unit`: one number, or one for each column."""

    unit: FloatArray

    @classmethod
    def of(cls, bound: float | FloatArray, n: int) -> Grid:
        """Return the finest grid on which n terms of at most `bound` add up exactly.

        >>> float(Grid.of(1.0, 4).unit) == 2.0**-49, float(Grid.of(1.0, 10**6).unit) == 2.0**-33
        (True, True)
        """
        if isinstance(bound, float):
            return _grid(_exponent(bound), n)
        return cls(np.array([_grid(_exponent(float(one)), n).unit for one in bound]))

    @classmethod
    def whole(cls, bound: float, n: int) -> Grid:
        """Return the finest grid on which any sums of n terms of at most `bound` are exact floats: none is flushed.

        A term is off by half a unit at most: by 2^(bits - 52) of the bound for 2^bits rows, 2^-32 for a million.

        >>> float(Grid.whole(1.0, 10**6).unit) == 2.0**-31, float(Grid.whole(0.9, 10**6).unit) == 2.0**-32
        (True, True)
        """
        return _of_bits(_exponent(bound), row_bits(n))

    @cached_property
    def far(self) -> FloatArray:
        """A number large enough that what is added to it is rounded to the grid."""
        return np.asarray(1.5 * 2.0**52 * self.unit)

    def repeated(self, times: int) -> Grid:
        """Return the grid of as many columns for each column of this one."""
        return Grid(np.repeat(self.unit, times))

    def round(self, terms: FloatArray) -> FloatArray:
        """Round terms to the grid, in place.

        >>> Grid(np.array(0.25)).round(np.array([0.3, -0.7]))
        array([ 0.25, -0.75])
        """
        if self.far.ndim and len(self.far) <= NARROW:  # NumPy would take a few numbers at a time
            for column, far in zip(terms.T, self.far, strict=True):
                column += far
                column -= far
            return terms
        terms += self.far
        terms -= self.far
        return terms

    def wholes(self, sums: FloatArray) -> Wholes:
        """Return exact sums as numbers of units."""
        return np.rint(sums / self.unit).astype(np.int64)

    def floats(self, wholes: Wholes) -> FloatArray:
        """Return numbers of units as floats."""
        return np.asarray(wholes * self.unit)


def _exponent(bound: float) -> int:
    """Return the exponent of the power of two above a bound: a grid depends on nothing else of it."""
    return frexp(max(bound, SMALLEST))[1]


@lru_cache(maxsize=256)
def _grid(exponent: int, n: int) -> Grid:
    # integers of 64 bits hold the sums of 2^10 full blocks
    return _of_bits(exponent, max(row_bits(min(n, BLOCK)), row_bits(n) - 10))


@lru_cache(maxsize=256)
def _fine(exponent: int, n: int) -> Fine:
    first = _grid(exponent, n)
    return Fine(first, _grid(_exponent(float(first.unit)), n))


def row_bits(n: int) -> int:
    """Return how many bits the sum of n terms may have more than one of them.

    >>> row_bits(1000)
    10
    """
    return max(2, (n - 1).bit_length())


@lru_cache(maxsize=256)
def _of_bits(exponent: int, bits: int) -> Grid:
    return Grid(np.array(ldexp(1.0, max(exponent + bits - 52, -1000))))


@dataclass(frozen=True, eq=False)
class Fine:
    """Sums of few numbers a row to the last bit: what the first grid leaves of a term is added on a second one."""

    first: Grid
    second: Grid

    @classmethod
    def of(cls, bound: float, n: int) -> Fine:
        """Return the grids of n terms of at most `bound`."""
        return _fine(_exponent(bound), n)

    @cached_property
    def numbers(self) -> tuple[float, float, float, float]:
        """What rounds to either grid, and their units."""
        return float(self.first.far), float(self.second.far), float(self.first.unit), float(self.second.unit)

    def wholes(self, terms: FloatArray) -> Wholes:
        """Return the sum of terms, shape (rows,), in both units.

        >>> fine = Fine.of(1.0, 3)
        >>> fine.number(fine.wholes(np.array([0.1, 0.2])) + fine.wholes(np.array([0.3])))
        0.6
        """
        add, high, low, (first, second, unit, small) = kernels_at_hand().add_fine, 0, 0, self.numbers
        for start in range(0, len(terms), BLOCK):
            sums = add(np.ascontiguousarray(terms[start : start + BLOCK]), first, second)
            high, low = high + round(sums[0] / unit), low + round(sums[1] / small)
        return np.array([high, low], dtype=np.int64)

    def wholes_of_each(self, terms: FloatArray) -> Wholes:
        """Return the sums of several series of at most BLOCK terms, shape (series, rows), in both units.

        >>> fine, terms = Fine.of(1.0, 3), np.array([[0.1, 0.2, 0.3], [0.3, 0.3, 0.3]])
        >>> bool((fine.wholes_of_each(terms) == np.stack([fine.wholes(each) for each in terms], axis=1)).all())
        True
        """
        high = self.first.round(terms.copy())
        low = self.second.round(terms - high)
        return np.array([self.first.wholes(high.sum(axis=1)), self.second.wholes(low.sum(axis=1))])

    def number(self, wholes: Wholes) -> float:
        """Return one sum as a float."""
        _, _, unit, small = self.numbers
        return int(wholes[0]) * unit + int(wholes[1]) * small

    def total(self, wholes: Wholes) -> FloatArray:
        """Return sums as floats."""
        return self.first.floats(wholes[0]) + self.second.floats(wholes[1])


@dataclass(frozen=True)
class Scale:
    """What bounds the sums over all rows: how many there are, and the largest weight.

    `copy` is the largest weight of a single copy, where rows stand for several.
    """

    n: int
    most: float
    copy: float | None = None

    @property
    def single(self) -> float:
        """The largest weight of a single row, not counting the copies it stands for."""
        return self.most if self.copy is None else self.copy

    def grid(self, bound: float | FloatArray = 1.0) -> Grid:
        """Return the grid of terms that are at most a weight times `bound`."""
        return Grid.of(self.most * bound, self.n)

    def fine(self, bound: float = 1.0) -> Fine:
        """Return the grids of the same terms for sums of few numbers a row."""
        return Fine.of(self.most * bound, self.n)


def normalised(weight: FloatArray) -> FloatArray:
    """Return weights that sum to one, for any order of the rows, and whatever rows without weight are among them.

    >>> normalised(np.array([1.0, 3.0]))
    array([0.25, 0.75])
    """
    share = weight / weight.max()  # so that the sum can't overflow
    fine = Fine.of(1.0, int(np.count_nonzero(weight)))
    return np.asarray(share / fine.number(fine.wholes(share)))


class ExactSums:
    """C'R under construction, where R comes in pieces: whole numbers of units for every table of the design."""

    def __init__(self, design: Design, q: int, grid: Grid) -> None:
        self.sums, self.grid, self.held = design.sums(q, grid), grid, 0
        self.total: list[Wholes] | None = None

    def add(self, part: slice, R: FloatArray) -> None:
        """Add C[part]'R for the rows of a slice, of which there are at most BLOCK; R is rounded in place."""
        self.add_rounded(part, self.grid.round(R))

    def add_rounded(self, part: slice, R: FloatArray) -> None:
        """Add the same for R that lies on the grid."""
        self.hold(len(R))
        self.sums.add(part, R)

    def hold(self, n: int) -> None:
        """Make room for n more rows."""
        if self.held + n > BLOCK:
            self._flush()
        self.held += n

    def _flush(self) -> None:
        fresh = []
        for table in self.sums.tables():
            fresh.append(_columns(self.grid, table.shape[1]).wholes(table))
            table.fill(0.0)
        self.total = fresh if self.total is None else [a + b for a, b in zip(self.total, fresh, strict=True)]
        self.held = 0

    def wholes(self) -> Tables:
        """Return all that was added."""
        self._flush()
        assert self.total is not None
        return Tables(self.total)


class Tables(list[NDArray[Any]]):
    """Tables of whole numbers, or of floats that add up exactly, added one by one."""

    def __add__(self, other: list[NDArray[Any]]) -> Tables:  # type: ignore[override]
        return Tables(a + b for a, b in zip(self, other, strict=True))


def decode(design: Design, q: int, grid: Grid, tables: list[Wholes]) -> FloatArray:
    """Return C'R, shape (m, q), from the sums of all shards; `design` is that of any rows."""
    sums = design.sums(q, grid)
    for table, wholes in zip(sums.tables(), tables, strict=True):
        table[...] = _columns(grid, table.shape[1]).floats(wholes)
    return sums.total()


def _columns(grid: Grid, width: int) -> Grid:
    """Return the grid of a table that is padded with columns that do not count."""
    if grid.unit.ndim == 0 or len(grid.unit) == width:
        return grid
    return Grid(np.concatenate([grid.unit, np.ones(width - len(grid.unit))]))


# --- many draws at once, where chance picks rows --------------------------------------------------------------------


class DrawnSums:
    """C'R of many draws under construction, by level of every code column: shape (draws, levels, q).

    A row has two outcomes, and what either adds to the sums is the same in all draws. So every row is added once with
    its likelier outcome, and in each draw the rows with the other one add the difference, which lies on the grid too.
    """

    def __init__(self, design: Codes, q: int, grid: Grid, keys: Sequence[np.uint64]) -> None:
        self.grid, self.keys, self.n, self.held = grid, np.array(keys, dtype=np.uint64), design.shape[0], 0
        self.columns = [design.codes[k] for k in design.firsts.values()]
        edges = np.cumsum([0, *(design.decode[k].shape[0] for k in design.firsts.values())])
        self.starts, self.passed = edges[:-1], ExactSums(design, q, grid)
        self.tables = np.zeros((len(keys), edges[-1], self.passed.sums.tables()[0].shape[1]))
        self.total = np.zeros(self.tables.shape, dtype=np.int64)
        self.add_drawn = kernels_at_hand(self.n * q * len(self.columns)).add_drawn

    def add(self, part: slice, first: int, chance: FloatArray, picked: FloatArray, passed: FloatArray) -> None:
        """Add the rows of a slice, the first of which has a number that its chance belongs to (`lay_uniforms`).

        A draw picks a row if its number in [0, 1) is below `chance`; the row adds a row of `picked` or of `passed`.
        """
        more, base = (self.grid.round(pad(one)) for one in (picked, passed))
        if self.held + len(more) > BLOCK:
            self._flush()
        self.held += len(more)
        more -= base
        is_likely = chance > 0.5
        base[is_likely] += more[is_likely]
        more[is_likely] *= -1.0
        self.passed.add_rounded(part, base)
        bars, codes = np.ceil(chance * 2.0**53).astype(np.uint64), code_rows(self.columns, part)
        bars[is_likely] += OTHER_SIDE

        def add(some: slice) -> None:
            self.add_drawn(self.keys[some], first, bars, more, codes, self.starts, self.tables[some])

        size = -(-len(self.keys) // MAX_THREADS)
        spread(add, [slice(k, k + size) for k in range(0, len(self.keys), size)], self.n)

    def _flush(self) -> None:
        self.total += self.grid.wholes(self.tables)
        self.tables[...], self.held = 0.0, 0

    def wholes(self) -> Wholes:
        """Return all that was added."""
        self._flush()
        return np.asarray(self.total + np.concatenate(self.passed.wholes()))


def decode_draws(design: Codes, q: int, grid: Grid, total: Wholes) -> FloatArray:
    """Return C'R of every draw, shape (draws, m, q), from the sums of all shards; `design` is that of any rows."""
    tables, found, place = grid.floats(total)[:, :, :q], {}, 0
    for k in design.firsts.values():
        stop = place + design.decode[k].shape[0]
        found[id(design.codes[k])] = tables[:, place:stop].transpose(1, 0, 2).reshape(stop - place, -1)
        place = stop
    pairs = zip(design.codes, design.decode, strict=True)
    return np.concatenate([t.gather(found[id(c)]) for c, t in pairs]).reshape(-1, len(total), q).transpose(1, 0, 2)
