"""Formulas of a row, what they read, and what a device must be able to do with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.card.bits import BYTE, fold
from lowcal.kernels.card.draws import Picking
from lowcal.kernels.exact import Wholes
from lowcal.kernels.loops import numbers_of

#: Bits of a term of size 1 in single precision: sums of a few thousand such terms fit into 32 bits ...
FINE_BITS = 18
#: ... namely those of this many rows of a copy, after which a block of threads moves them to 64 bits.
HELD_ROWS = 1 << 12
#: Bits of a term of size 1 where sums have 64 bits from the start, less those that the number of rows takes.
WIDE_BITS = 61
#: Log odds are kept within those of 1e-9, as everywhere.
MOST_ODDS = 20.72326583594641
#: The threads of a warp add to copies of their own, as many as fit: each in a bank of shared memory, so none waits.
BANKS = 32
#: A launch sums as many terms as leave room for half as many copies, or fewer copies if those terms are fewer than:
FEW_TERMS = 4
#: Look-up tables of more numbers stay in global memory.
MOST_TABLE = 4096
#: Shared memory that the system takes of every block.
TAKEN_BYTES = 1024
#: Rows that the twin works on at a time.
TWIN_ROWS = 1 << 16

Precision = Literal["single", "double"]


@dataclass(frozen=True)
class Formula:
    """What is computed at every row: named lines, one after the other, then the terms that are summed or returned.

    A line may use the inputs' names, earlier lines, `L[s]`, the sums of look-ups in all code columns, `k[j]`, the
    constants, `drawn(b, q)`, whether the number in [0, 1) of key b and the row is below q, and what `_functions`
    lists; one that begins with `whole(` is a whole number. `bounds` are the largest sizes of the terms. With `cells`,
    sums are by the whole number of the line `cell`, too, and so are look-ups in tables that have a row for each.
    """

    terms: tuple[str, ...]
    lines: tuple[tuple[str, str], ...] = ()
    bounds: tuple[float, ...] = ()
    cells: int = 1


@dataclass(frozen=True, eq=False)
class OneLevel:
    """A code column of which all rows have the same level: nothing need be read."""

    n: int
    dtype: np.dtype[Any] = field(default=np.dtype(np.uint8), init=False)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        return np.zeros(len(range(self.n)[part]), dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arrays of all rows that a formula reads, code columns with their levels, look-up tables, and constants.

    `tables` has a row for each level of each column, one column after the other, and S numbers in each; or a row for
    each cell of each level.
    """

    n: int
    arrays: Mapping[str, Any]
    codes: Sequence[Any] = ()
    levels: Sequence[int] = ()
    tables: NDArray[np.float64] | None = None
    constants: Sequence[float] | NDArray[np.float64] = ()
    #: The keys that the chance of rows belongs to, and the number of the first row.
    keys: Sequence[int] = ()
    first: int = 0
    #: The places of code columns that are bytes of eight memberships, of which sums by bit are wanted alone.
    bits: Sequence[int] = ()

    def __post_init__(self) -> None:
        assert all(len(array.shape) == 1 for array in self.arrays.values()), "A kernel reads one number a row."

    @property
    def size(self) -> int:
        """All levels."""
        return int(sum(self.levels))

    @property
    def looked_up(self) -> int:
        """The numbers that are looked up for each level."""
        return 0 if self.tables is None else int(self.tables.shape[1])

    def are_by_cell(self, formula: Formula) -> bool:
        """Whether tables have a row for each cell of a formula."""
        return self.tables is not None and formula.cells > 1 and len(self.tables) == self.size * formula.cells

    @cached_property
    def offsets(self) -> list[int]:
        """Where the levels of each column begin."""
        return [int(sum(self.levels[:j])) for j in range(len(self.levels))]


def wide_bits(n: int) -> int:
    """Return the bits of a term of size 1 whose n-fold sum fits into 64 bits.

    >>> wide_bits(1_000_000_000)
    31
    """
    return min(WIDE_BITS - max(1, (n - 1).bit_length()), 48)


def power_above(bound: float) -> float:
    """Return the least power of two that is no smaller.

    >>> power_above(1.0), power_above(20.7)
    (1.0, 32.0)
    """
    mantissa, exponent = np.frexp(bound)
    return float(np.ldexp(1.0, int(exponent) - (mantissa == 0.5)))


def chances(key: int, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the numbers in [0, 1) that belong to a key and these rows."""
    return np.asarray(numbers_of(np.uint64(key), rows.astype(np.uint64)) * 2.0**-53)


class Device(ABC):
    """Where rows are: a card, or memory in the place of one."""

    #: NumPy, or what stands for it.
    xp: Any

    def __init__(self, precision: Precision = "single") -> None:
        self.precision: Precision = precision
        self.kind: np.dtype[Any] = np.dtype(np.float32 if precision == "single" else np.float64)

    def histogram(self, formula: Formula, inputs: Inputs) -> NDArray[np.float64]:
        """Return the sums of the terms by level (and cell), shape (levels, cells, terms); equal ones are summed once.

        Those of bytes of memberships are by bit, each at the level that has no other, unless there are cells.
        """
        asked = list(zip(formula.terms, formula.bounds, strict=True))
        distinct = list(dict.fromkeys(asked))  # where all rows weigh the same, many terms are equal
        terms, bounds = zip(*distinct, strict=True)
        bits = FINE_BITS if self.precision == "single" else wide_bits(inputs.n)
        scales = [2.0**bits / power_above(bound) for bound in bounds]
        sums = self._sums(replace(formula, terms=terms, bounds=bounds), inputs, scales)
        sums = sums.reshape(inputs.size, formula.cells, len(scales))
        for j in inputs.bits if formula.cells == 1 else ():
            own = slice(inputs.offsets[j], inputs.offsets[j] + BYTE)
            sums[own, 0] = fold(sums[own, 0])
        return np.asarray(sums / np.array(scales))[:, :, [distinct.index(one) for one in asked]]

    def total(self, formula: Formula, inputs: Inputs) -> NDArray[np.float64]:
        """Return the sums of the terms over all rows."""
        scales = [2.0 ** wide_bits(inputs.n) / power_above(bound) for bound in formula.bounds]
        return np.asarray(self._total(formula, inputs, scales) / np.array(scales))

    def picks(
        self, formula: Formula, inputs: Inputs, belongs: NDArray[np.bool_], chances: tuple[str, ...]
    ) -> NDArray[np.float64]:
        """Return the sums of the terms, in [0, 1], over the rows of each member that each key picks.

        Rows are picked with a chance, one of the lines; a key picks those of all `chances`, one or two, by the same
        number. `belongs` are the members of every level, each made of levels of one code column. The shape is (chances,
        keys, members, terms). Terms are rounded to two bytes; 1 is exact.
        """
        shape = Picking.of(formula.terms, belongs.shape[1], len(inputs.keys), len(chances))
        return np.asarray(self._picks(formula, inputs, belongs, chances, shape) / np.array(shape.units))

    @abstractmethod
    def _picks(
        self,
        formula: Formula,
        inputs: Inputs,
        belongs: NDArray[np.bool_],
        chances: tuple[str, ...],
        shape: Picking,
    ) -> NDArray[np.int64]: ...

    @abstractmethod
    def _sums(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes: ...

    @abstractmethod
    def _total(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes: ...

    @abstractmethod
    def largest(self, formula: Formula, inputs: Inputs) -> float:
        """Return the largest size of the only term at any row."""

    @abstractmethod
    def rows(self, formula: Formula, inputs: Inputs, kind: Any) -> Any:
        """Return the only term at every row."""

    @abstractmethod
    def columns(self, formula: Formula, inputs: Inputs, kind: Any) -> Any:
        """Return all terms at every row, shape (terms, n); the rows of each lie together."""

    def block(self, q: int, n: int, kind: Any) -> Any:
        """Return room for q numbers of n rows, as kernels read it."""
        return self.xp.empty((q, -(-n // 4) * 4), dtype=kind)[:, :n]

    @abstractmethod
    def extremes(self, formula: Formula, inputs: Inputs) -> NDArray[np.float64]:
        """Return the least and the largest value of the only term by cell, (cells, 2); it is not negative.

        A cell without rows has inf and 0.
        """

    @abstractmethod
    def picked(self, text: str, inputs: Inputs, most: int, lines: tuple[tuple[str, str], ...] = ()) -> Wholes:
        """Return the numbers of up to `most` rows for which a condition holds."""

    @abstractmethod
    def own(self, array: Any) -> Any:
        """Return an array of the device as kernels read it: without gaps, four numbers at a time."""

    @abstractmethod
    def upload(self, array: NDArray[Any]) -> Any:
        """Return an array of this machine's memory on the device."""

    @abstractmethod
    def download(self, array: Any) -> NDArray[Any]:
        """Return an array of the device in this machine's memory."""
