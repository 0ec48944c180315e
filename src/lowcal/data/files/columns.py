"""What the columns of a file are, found by reading all rows once; and places in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.data.files.delimited import Batch
from lowcal.data.files.kinds import Kind, NotANumber, cast, factorise, is_text, kind_of, numbers, text_of, wider
from lowcal.data.files.opening import Source
from lowcal.kernels.simplex import FloatArray

#: More different texts than this are identifiers, not groups.
MOST_TEXTS = 1_000_000
#: Bytes of a file's columns that are remembered for the next reading.
MOST_BYTES = 1 << 28


@dataclass(frozen=True, eq=False)
class Survey:
    """The number of rows, and what those columns of a text file hold that were to be found out."""

    n: int
    kinds: Mapping[str, Kind | None]


class Recalled:
    """Some columns of a file, batch after batch; up to `most` bytes are remembered for the next reading."""

    def __init__(self, source: Source, columns: Mapping[str, int], most: int = MOST_BYTES) -> None:
        self.source, self.names, self.columns, self.most = source, tuple(columns), list(columns.values()), most
        self.kept: deque[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        kept, self.kept = self.kept, None
        if kept is not None:
            while kept:
                yield kept.popleft()
            return
        some: deque[Batch] = deque()
        n_bytes = 0
        for batch in self.source.batches(self.columns):
            yield batch
            n_bytes += sum(column.nbytes for column in batch.columns)
            if n_bytes <= self.most:
                some.append(batch)
            else:
                some.clear()
        self.kept = some if n_bytes <= self.most else None


def survey(
    rows: Recalled,
    unknown: Sequence[str],
    look: Callable[[Mapping[str, Any], int, int], None] | None = None,
    most_texts: float = np.inf,
) -> Survey:
    """Read all rows and find the kinds of columns that are unknown; files with types know theirs.

    `look` is given the Arrow arrays of every batch, the number of rows before it and how much was read for it. A column
    with more than `most_texts` different texts is refused.
    """
    decimal = rows.source.decimal
    n, texts = 0, {name: set[str]() for name in unknown}
    kinds: dict[str, Kind | None] = dict.fromkeys(unknown if decimal is not None else ())
    for batch in rows:
        arrays = dict(zip(rows.names, batch.columns, strict=True))
        if look is not None:
            look(arrays, n, batch.n_read)
        for name, known in texts.items():
            if decimal is not None and kinds[name] is not Kind.TEXT:
                kinds[name] = wider(kinds[name], kind_of(arrays[name], decimal))
            if most_texts < np.inf and (is_text(arrays[name]) if decimal is None else kinds[name] is Kind.TEXT):
                known.update(arrays[name].unique().to_pylist())
            if len(known) > most_texts:
                raise InvalidInput(
                    f"Column {name!r} holds more than {most_texts:,} different texts: it names rows, not groups. "
                    "Leave it out, or write it in coarser values."
                )
        n += batch.n_rows
    return Survey(n, kinds)


def typed(values: Any, kind: Kind | None, decimal: str | None) -> Any:
    """Return an array of a file as the values it holds; those of a file with types become names if they are to be text.

    A column without a value is numeric.
    """
    if decimal is not None:
        return cast(values, kind or Kind.NUMBER, decimal)
    if kind is not Kind.TEXT:
        return values
    import pyarrow as pa

    distinct, places = factorise(values)
    return pa.array([*map(text_of, distinct), None], pa.string()).take(pa.array(places)).dictionary_encode()


def read_numbers(values: Any, decimal: str | None, name: str, before: int) -> FloatArray:
    """Return the numbers of a column; one that is none is told with its row (`before` rows come before the batch)."""
    import pyarrow as pa

    try:
        return numbers(values, decimal)
    except pa.ArrowException:
        raise InvalidInput(f"Column {name!r} has the type {values.type}; convert it to a number first.") from None
    except NotANumber as error:
        hint = ""
        if error.is_otherwise and decimal == ".":
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
