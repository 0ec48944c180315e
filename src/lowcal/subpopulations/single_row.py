"""One row at a time, for serving: a single row of raw values is encoded without a data frame, and families read it.

Values mean what they mean in a column: None and NaN are missing, numbers are compared as numbers, and an unseen
category belongs to no group. What families read does not depend on the prediction, and updates share much of it: a fit
that found ten trees reads all of them in its last update. So trees, forests and sigmoids are collected in blocks first,
a block is evaluated at once, and an update looks up what it needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import isnan, nan
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput, MissingColumn, suggest
from lowcal.data.frames import Table as Frame
from lowcal.kernels.reference import Decode

#: A column of X -> the raw value in the row.
Row: TypeAlias = Callable[[str], Any]
#: A row as numbers, column by column: codes, bins, features or memberships; of a union, those of each part.
EncodedRow: TypeAlias = Sequence[Any]
#: A row -> its numbers.
RowReader: TypeAlias = Callable[[Row], EncodedRow]

#: NumPy scalars that equal a Python value: booleans, whole numbers, float64 and text.
_SCALARS = frozenset({np.str_, *(np.dtype(kind).type for kind in "?bBhHiIlLqQd")})


@runtime_checkable
class RowEncoder(Protocol):
    """An encoder that names the columns it reads, and encodes single rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of X that are read, in the order of first use."""

    def row_reader(self) -> RowReader | None:
        """Return the function from a row to the numbers that the encoder puts into the only row of a table."""


def columns_of(encoder: object) -> tuple[str, ...]:
    """Return the columns that an encoder reads; none if they are unknown."""
    return encoder.columns if isinstance(encoder, RowEncoder) else ()


def reader_of(encoder: object) -> RowReader | None:
    """Return the function from a row to its numbers; None for an encoder that has none."""
    return encoder.row_reader() if isinstance(encoder, RowEncoder) else None


def row_of(columns: Sequence[str], row: Mapping[str, Any] | Sequence[Any]) -> Row:
    """Return the look-up of values in a row: a mapping from column names, or a sequence in the order of `columns`.

    The columns of a bare array are called x0, x1, ...; a sequence then is a row of the array.

    >>> row_of(("age", "sex"), {"sex": "F", "age": 31})("age"), row_of(("x2",), [5.0, 6.0, 7.0])("x2")
    (31, 7.0)
    """
    if isinstance(row, Mapping):

        def look_up(name: str) -> Any:
            try:
                return row[name]
            except KeyError:
                names = [str(key) for key in row]
                raise MissingColumn(
                    f"The row has no value for the column {name!r}; it has {', '.join(map(repr, names[:10]))}."
                    f"{suggest(name, names)} Give None for a missing value."
                ) from None

        return look_up
    if hasattr(row, "items") and all(isinstance(name, str) for name, _ in row.items()):  # a row of a pandas frame
        return row_of(columns, dict(row.items()))
    places = {name: k for k, name in enumerate(columns)}
    if columns and are_numbered(columns):
        places = {name: int(name[1:]) for name in columns}
    elif len(row) != len(columns):
        raise InvalidInput(
            f"The row has {len(row)} values, but {len(columns)} columns are read ({', '.join(columns[:8])}"
            f"{', ...' * (len(columns) > 8)}). Give one value for each in this order, or a dict."
        )
    if max(places.values(), default=-1) >= len(row):
        raise InvalidInput(
            f"The row has {len(row)} values, but column {max(places.values())} is read. Give all columns."
        )
    return lambda name: row[places[name]]


def are_numbered(columns: Sequence[str]) -> bool:
    """Whether columns are called as those of a bare array."""
    return all(name[:1] == "x" and name[1:].isdigit() for name in columns)


def number(value: Any, name: str) -> float:
    """Return a value of a numeric column, NaN if missing."""
    value = plain_value(value)
    if type(value) is float or type(value) is int:
        return float(value)
    return nan if value is None else float(Frame.of({name: [value]}).numeric([name])[0, 0])


def plain_value(value: Any) -> Any:
    """Return a NumPy scalar as the Python value it equals."""
    return value.item() if type(value) in _SCALARS else value


def bin_of(value: float, cuts: Sequence[float], missing: int, first: int) -> int:
    """Return `first` plus the number of cuts below a value, `missing` for NaN."""
    return missing if isnan(value) else first + bisect_left(cuts, value)


# --- what families read of an encoded row ----------------------------------------------------------------------


class Always(NamedTuple):
    """A member that holds everyone: nothing is read."""

    size: int = 1


class CodeRead(NamedTuple):
    """Members that are functions of a code: `facts[block][position]` is the row of the table."""

    block: int
    position: int
    table: Decode

    @property
    def size(self) -> int:
        """How many members there are."""
        return self.table.shape[1]


class MemberRead(NamedTuple):
    """Members that are listed: `facts[block][positions]` are their values."""

    block: int
    positions: Sequence[int]

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.positions)


#: How some members of a family follow from the facts of a row.
Read: TypeAlias = Always | CodeRead | MemberRead
#: An encoded row, or its part of a union -> what is read of it.
Evaluate: TypeAlias = Callable[[Any], NDArray[Any]]
#: Values that are evaluated together -> how.
Jointly: TypeAlias = Callable[[list[Any]], Evaluate]


def part_of_rows(rows: Any, part: tuple[int, ...]) -> Any:
    """Return the part of encoded rows that a learner of a union reads.

    >>> part_of_rows((1, (2, 3)), (1, 0))
    2
    """
    for index in part:
        rows = rows[index]
    return rows


class RowFacts:
    """Collects what the families of a predictor read; `evaluator` then finds all of it in a row."""

    def __init__(self) -> None:
        # blocks, by their kind and the part they read: their number, how they are evaluated, their values by content
        self._blocks: dict[tuple[Hashable, tuple[int, ...]], tuple[int, Jointly, dict[object, tuple[int, Any]]]] = {}
        self._part: tuple[int, ...] = ()

    def of_part(self, index: int) -> RowFacts:
        """Return the same for families that read one part of a union."""
        inner = RowFacts()
        inner._blocks, inner._part = self._blocks, (*self._part, index)
        return inner

    def place(self, kind: Hashable, together: Jointly, content: object, value: Any) -> tuple[int, int]:
        """Return the block of a kind and the position of a value there, which is kept once for the same content."""
        number, _, known = self._blocks.setdefault((kind, self._part), (len(self._blocks), together, {}))
        return number, known.setdefault(content, (len(known), value))[0]

    def itself(self) -> int:
        """Return the number of the block that is the encoded row as it is: its codes or memberships."""
        return self.place("itself", lambda _: np.array, None, None)[0]

    def members(self, family: object, size: int, evaluate: Evaluate) -> Sequence[Read]:
        """Return what is read of a family that evaluates its members by a function of the encoded row."""
        # the family is kept, as its id stands for it
        number, _ = self.place(("members", id(family)), lambda _: evaluate, None, family)
        return [MemberRead(number, range(size))]

    def evaluator(self) -> Callable[[EncodedRow], list[NDArray[Any]]]:
        """Return the function from an encoded row to all facts, block by block."""
        blocks = self._blocks.items()
        each = [(part, make([value for _, value in known.values()])) for (_, part), (_, make, known) in blocks]
        return lambda row: [evaluate(part_of_rows(row, part)) for part, evaluate in each]


@runtime_checkable
class RowFamily(Protocol):
    """A family that can be read off single rows."""

    def reads(self, facts: RowFacts) -> Sequence[Read] | None:
        """Note what is read of a row and say where it will be found; None: a part of the family can't be read so."""


def reads_of(family: object, facts: RowFacts) -> Sequence[Read] | None:
    """Note what a family reads; None if it can't be read off single rows."""
    return family.reads(facts) if isinstance(family, RowFamily) else None
