"""Columns gathered from batches, each in the narrowest type that holds it: a file need not fit into memory.

Numbers are kept as float32 where that is exact (whole numbers below 2^24, halves, ...) and as float64 otherwise; text
as codes of one, two or four bytes and a dictionary, and so are whole numbers that a float would round. A column starts
as what its first batch looks like; if a later batch contradicts, the file is read again with that column as text, or
with all digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.errors import InvalidInput
from lowcal.files.delimited import Batch
from lowcal.files.fields import Field, Kind, NotANumber
from lowcal.files.opening import Source, find_column
from lowcal.simplex import MOST_EXACT, FloatArray

#: More different texts than this are identifiers, not groups.
MOST_TEXTS = 1_000_000
_NUMERIC = (Kind.WHOLE, Kind.NUMBER)

#: Rows that wait to be compared with the values that are known.
MOST_WAITING = 1 << 20
#: Takes the numbers of a batch by column, and the number of rows before it; raises what is wrong with them.
Check = Callable[[Mapping[str, FloatArray], int], None]


@dataclass(frozen=True)
class Wanted:
    """A column to read: its kind (None: what it looks like), and whether a row may lack it."""

    name: str
    kind: Kind | None = None
    is_required: bool = False


@dataclass(frozen=True, eq=False)
class Narrow:
    """A gathered column: numbers with NaN for missing, or distinct values (no order) and codes, -1 for missing."""

    name: str
    kind: Kind
    values: NDArray[Any]
    distinct: tuple[Any, ...] = ()


class Buffer:
    """A growing array. The memory of a bytearray grows in place, where joining arrays at the end would double it."""

    def __init__(self, kind: type[np.generic]) -> None:
        self.dtype, self.data = np.dtype(kind), bytearray()

    def extend(self, values: NDArray[Any]) -> None:
        """Add values; the type widens to theirs where they need it."""
        if values.dtype.itemsize > self.dtype.itemsize:
            wide = self.array().astype(values.dtype)
            self.dtype, self.data = values.dtype, bytearray(wide.view(np.uint8).data)
        self.data += np.ascontiguousarray(values, dtype=self.dtype).view(np.uint8).data

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Keep some of the values."""
        kept = self.array()[rows]
        self.data = bytearray(kept.view(np.uint8).data)

    def array(self) -> NDArray[Any]:
        """Return the values, in the buffer's memory."""
        return np.frombuffer(self.data, dtype=self.dtype)


class Numbers:
    """Gathers a column of numbers."""

    def __init__(self, name: str, n_missing: int) -> None:
        self.name = name
        self.buffer = Buffer(np.float32)
        self.buffer.extend(np.full(n_missing, np.nan, dtype=np.float32))

    def append(self, numbers: FloatArray) -> None:
        """Add the numbers of a batch."""
        with np.errstate(over="ignore"):
            narrow = numbers.astype(np.float32)
        is_exact = self.buffer.dtype == np.float32 and np.array_equal(narrow, numbers, equal_nan=True)
        self.buffer.extend(narrow if is_exact else numbers)

    def finish(self) -> Narrow:
        """Return the column."""
        return Narrow(self.name, Kind.NUMBER, self.buffer.array())


class Texts:
    """Gathers a column of texts, truth values or exact numbers as codes."""

    def __init__(self, name: str, kind: Kind, n_missing: int) -> None:
        self.name, self.kind = name, kind
        self.codes: dict[Any, int] = {False: 0, True: 1} if kind is Kind.BOOLEAN else {}
        self.buffer = Buffer(np.int8)
        self.buffer.extend(np.full(n_missing, -1, dtype=np.int8))

    def append(self, distinct: Sequence[Any], places: NDArray[np.intp]) -> NDArray[Any]:
        """Add the values of a batch; returns their codes."""
        known = self.codes
        for value in distinct:
            if value is not None:
                known.setdefault(value, len(known))
        if len(known) > MOST_TEXTS and self.kind is Kind.WHOLE:
            raise _NotSo(self.name, Kind.NUMBER)  # columns with this many values are cut into bins: floats will do
        if len(known) > MOST_TEXTS:
            raise InvalidInput(
                f"Column {self.name!r} holds more than {MOST_TEXTS:,} different texts: it names rows, not groups. "
                "Leave it out, or write it in coarser values."
            )
        # the smallest signed type that holds the codes and -1
        kind = np.min_scalar_type(-max(1, len(known)))
        codes = np.array([-1 if value is None else known[value] for value in distinct] or [-1], dtype=kind)[places]
        self.buffer.extend(codes)
        return codes

    def finish(self) -> Narrow:
        """Return the column."""
        return Narrow(self.name, self.kind, self.buffer.array(), tuple(self.codes))


class _NotSo(Exception):
    """A later batch shows that a column is of another kind."""

    def __init__(self, name: str, kind: Kind = Kind.TEXT) -> None:
        self.name, self.kind = name, kind


@dataclass
class _Gathering:
    """The columns of one reading of the file."""

    wanted: Sequence[Wanted]
    kinds: dict[str, Kind | None]
    shown: str
    columns: dict[str, Numbers | Texts] = field(default_factory=dict)
    n_rows: int = 0
    n_kept: int = 0

    def append(self, batch: Batch, check: Check | None) -> None:
        """Add a batch, checked."""
        numbers: dict[str, FloatArray] = {}
        for one, values in zip(self.wanted, batch.fields, strict=True):
            column = self._column(one.name, values)
            if column is None:
                missing = np.ones(batch.n_rows, dtype=bool)
            elif isinstance(column, Numbers):
                numbers[one.name] = self._numbers(one, values)
                missing = np.isnan(numbers[one.name])
            else:
                missing = column.append(*self._distinct(one, column.kind, values)) < 0
            if one.is_required and missing.any():
                raise lacks(one.name, self.n_rows + int(missing.argmax()))
        if check is not None:
            check(numbers, self.n_rows)
        for name, new in numbers.items():
            column = self.columns[name]
            assert isinstance(column, Numbers)
            column.append(new)
        self.n_rows += batch.n_rows
        self.n_kept += batch.n_rows

    def _column(self, name: str, values: Field) -> Numbers | Texts | None:
        """Return where a column is gathered; None while it has shown nothing but missing values."""
        if name not in self.columns:
            kind = self.kinds[name] or values.kind()
            if kind is None:
                return None
            if kind is Kind.TEXT and self.kinds[name] is None and self.n_rows > 0:
                raise _NotSo(name)  # what was taken for missing so far, such as 'None', may be text
            is_number = kind in _NUMERIC and self.kinds[name] is not Kind.WHOLE
            self.columns[name] = Numbers(name, self.n_kept) if is_number else Texts(name, kind, self.n_kept)
        return self.columns[name]

    def _numbers(self, one: Wanted, values: Field) -> FloatArray:
        """Return numbers; a column that only looked numeric may turn out to be text."""
        if self.kinds[one.name] is not None:
            return read_numbers(values, one.name, self.n_rows)
        try:
            if not values.has_names():
                numbers = values.numbers()
                if may_be_rounded(numbers) and values.has_rounded():
                    raise _NotSo(one.name, Kind.WHOLE)
                return numbers
        except NotANumber:
            pass
        raise _NotSo(one.name)

    def _distinct(self, one: Wanted, kind: Kind, values: Field) -> tuple[list[Any], NDArray[np.intp]]:
        """Return distinct values and places; a column that only looked boolean may turn out to be text."""
        if kind is Kind.BOOLEAN and self.kinds[one.name] is None and values.kind() not in (None, kind):
            raise _NotSo(one.name)
        if kind is not Kind.WHOLE:
            return values.factorise(kind)
        try:
            if not values.has_names():
                return values.factorise(kind)
        except NotANumber:
            pass
        raise _NotSo(one.name)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Keep some of the rows gathered so far."""
        for column in self.columns.values():
            column.buffer.keep(rows)
        self.n_kept = int(rows.sum())

    def finish(self) -> dict[str, Narrow]:
        """Return the columns; one without a single value is numeric."""
        empty = [one.name for one in self.wanted if one.name not in self.columns]
        self.columns |= {name: Numbers(name, self.n_kept) for name in empty}
        return {name: column.finish() for name, column in self.columns.items()}


@dataclass(frozen=True, eq=False)
class Gathered:
    """The columns of a file, or of a random sample of its rows."""

    columns: Mapping[str, Narrow]
    n_rows: int
    n_in_file: int


def gather(
    source: Source,
    wanted: Sequence[Wanted],
    *,
    check: Check | None = None,
    most_rows: int | None = None,
    seed: int | None = 0,
    distinct: str | None = None,
    tell: Callable[[int], None] | None = None,
) -> Gathered:
    """Read some columns of a file, batch after batch.

    Parameters
    ----------
    check : is called with the numbers of every batch and the number of rows before it.
    most_rows : keep a uniform random sample of this many rows, in the order of the file; None: all rows.
    seed : of the sample.
    distinct : instead of a sample, keep a row for each value of this column.
    tell : is called with the bytes read so far.
    """
    places = [find_column(source, one.name) for one in wanted]
    kinds = {one.name: one.kind for one in wanted}
    while True:
        kept = Distinct(distinct) if distinct else Sample(most_rows, seed) if most_rows else None
        try:
            return _gather(source, places, _Gathering(wanted, kinds, source.shown), check, kept, tell)
        except _NotSo as found:
            kinds[found.name] = found.kind


def _gather(
    source: Source,
    places: Sequence[int],
    gathering: _Gathering,
    check: Check | None,
    kept: Distinct | Sample | None,
    tell: Callable[[int], None] | None,
) -> Gathered:
    for batch in source.batches(places):
        gathering.append(batch, check)
        if kept is not None:
            kept.draw(batch.n_rows, gathering)
        if tell is not None:
            tell(batch.position)
    if gathering.n_rows == 0:
        raise InvalidInput(f"{source.shown} has a header but no rows; give at least one row.")
    if kept is not None:
        kept.cut(gathering)
    return Gathered(gathering.finish(), gathering.n_kept, gathering.n_rows)


def columns_of(batch: Batch, wanted: Sequence[Wanted]) -> dict[str, Narrow]:
    """Return the columns of one batch, whose kinds are known."""
    gathering = _Gathering(wanted, {one.name: one.kind for one in wanted}, "")
    gathering.append(batch, None)
    return gathering.finish()


class Distinct:
    """A row for each value of a column."""

    def __init__(self, name: str) -> None:
        self.name = name

    def draw(self, n: int, gathering: _Gathering) -> None:
        """Drop rows whose value is known once there are many."""
        if gathering.n_kept > MOST_WAITING:
            self.cut(gathering)

    def cut(self, gathering: _Gathering) -> None:
        """Keep the first row of each value; of very many values some."""
        values = gathering.columns[self.name].buffer.array()
        kept = np.zeros(len(values), dtype=bool)
        kept[np.unique(values, return_index=True)[1][: MOST_WAITING // 2]] = True
        gathering.keep(kept)


class Sample:
    """A uniform random sample of a stream of rows: those with the smallest of random keys, in their order."""

    def __init__(self, most: int, seed: int | None) -> None:
        self.most, self.rng = most, np.random.default_rng(seed)
        self.keys = Buffer(np.float64)

    def draw(self, n: int, gathering: _Gathering) -> None:
        """Draw the keys of a batch; drop rows once there are many more than wanted."""
        self.keys.extend(self.rng.random(n))
        if gathering.n_kept > self.most + self.most // 4:
            self.cut(gathering)

    def cut(self, gathering: _Gathering) -> None:
        """Keep the rows with the smallest keys."""
        if gathering.n_kept <= self.most:
            return
        keys = self.keys.array()
        kept = keys <= np.partition(keys, self.most - 1)[self.most - 1]
        self.keys.keep(kept)
        gathering.keep(kept)


def may_be_rounded(numbers: FloatArray) -> bool:
    """Whether some of these floats may stand for whole numbers that they do not equal."""
    return bool((np.abs(numbers) >= MOST_EXACT).any())


def read_numbers(values: Field, name: str, before: int) -> FloatArray:
    """Return the numbers of a field; one that is none is told with its row (`before` rows come before the batch)."""
    try:
        return values.numbers()
    except NotANumber as error:
        hint = ""
        if error.is_otherwise and error.decimal == ".":
            hint = "; if the comma is a decimal comma, add --decimal ','"
        elif error.is_otherwise:
            hint = " with the decimal comma that --decimal asks for"
        raise InvalidInput(f"{place(name, before + error.place)}: {error.text!r} is not a number{hint}.") from error


def lacks(name: str, row: int) -> InvalidInput:
    """Tell that a value is missing that must be there."""
    return InvalidInput(f"{place(name, row)}: the value is missing. Fill it in or drop the row.")


def place(name: str, row: int) -> str:
    """Name a place in a file; rows are counted from 1, without the header.

    >>> place("p", 16)
    "Row 17, column 'p'"
    """
    return f"Row {row + 1}, column {name!r}"
