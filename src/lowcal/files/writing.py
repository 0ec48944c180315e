"""Writing tables batch by batch: CSV, Parquet, JSON records."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Protocol

import numpy as np

from lowcal.errors import InvalidInput
from lowcal.files.atomic import atomic_write
from lowcal.files.columns import Recalled, survey, typed
from lowcal.files.delimited import Delimited
from lowcal.files.kinds import Kind, arrow_type, is_text
from lowcal.files.opening import Source, Stored
from lowcal.files.paths import STREAM, is_packed, suffix_of
from lowcal.simplex import FloatArray

#: A row group of a Parquet file has at least so many rows.
GROUP_ROWS = 1 << 16


class Writer(Protocol):
    """Takes batch after batch."""

    def write(self, columns: Sequence[Any], more: Sequence[FloatArray]) -> None:
        """Write a batch: the Arrow arrays of the source, and the new columns."""
        ...

    def finish(self) -> None:
        """Write what comes after the last batch."""
        ...

    def abandon(self) -> None:
        """Write no more: something went wrong."""
        ...


def form_of(path: str, form: str | None) -> str:
    """Return the format to write: as asked for, as the name tells, or CSV on standard output."""
    found = form or suffix_of(path)
    if found is None and path != STREAM:
        raise InvalidInput(
            f"The name {path} does not tell a format; end it in .csv, .parquet or .json, or give --format."
        )
    if found == "parquet" and is_packed(path):
        raise InvalidInput(f"{path}: Parquet is packed inside, and no program reads it packed again; leave out .gz.")
    return found or "csv"


@contextmanager
def open_writer(path: str, form: str, source: Source, more: Sequence[str]) -> Iterator[Writer]:
    """Open a table for writing: the columns of a source, then more columns of numbers.

    Text files are written as the source is, if it is one: separator, decimal sign and mark. Formats with types need to
    know what a text file holds, so it is read once before.
    """
    names = (*source.names, *more)
    if form in ("parquet", "json", "jsonl"):
        check_distinct(names, form)
    with open_bytes(path) as stream:
        writer = _writer(stream, form, names, source)
        try:
            yield writer
        except BaseException:
            writer.abandon()
            raise
        writer.finish()


def _writer(stream: IO[bytes], form: str, names: Sequence[str], source: Source) -> Writer:
    if form in ("csv", "tsv"):
        like = source if isinstance(source, Delimited) else None
        separator = "\t" if form == "tsv" else like.separator if like else ","
        mark = "utf-8-sig" if like and like.encoding == "utf-8-sig" else "utf-8"
        return TextWriter(stream, names, separator, like.decimal if like else ".", mark)
    read = Typing.of(source, names[len(source.names) :])
    return ParquetWriter(stream, read) if form == "parquet" else JsonWriter(stream, read, is_list=form == "json")


@dataclass(frozen=True, eq=False)
class Typing:
    """Makes record batches of a source's columns and of new ones; those of a text file get the types of all values."""

    schema: Any
    kinds: tuple[Kind | None, ...]
    decimal: str | None

    @classmethod
    def of(cls, source: Source, more: Sequence[str]) -> Typing:
        """Find the types; a text file is read once for it."""
        import pyarrow as pa

        new = [pa.field(name, pa.float64()) for name in more]
        if isinstance(source, Stored):
            return cls(pa.schema([*source.schema, *new]), (None,) * len(source.names), None)
        found = survey(Recalled(source, {name: j for j, name in enumerate(source.names)}), source.names)
        kinds = tuple(found.kinds[name] or Kind.TEXT for name in source.names)
        own = [pa.field(name, arrow_type(kind)) for name, kind in zip(source.names, kinds, strict=True)]
        return cls(pa.schema([*own, *new]), kinds, source.decimal)

    def __call__(self, columns: Sequence[Any], more: Sequence[FloatArray]) -> Any:
        """Return a record batch."""
        import pyarrow as pa

        read = [typed(column, kind, self.decimal) for column, kind in zip(columns, self.kinds, strict=True)]
        own = [column.cast(field.type) for column, field in zip(read, self.schema, strict=False)]
        return pa.record_batch([*own, *(pa.array(column, from_pandas=True) for column in more)], schema=self.schema)


@contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """Open a file that appears whole or not at all, packed if its name ends in .gz; "-" is standard output."""
    if path == STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with atomic_write(path) as file:
        if not is_packed(path):
            yield file
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            yield packed  # type: ignore[misc]


def check_distinct(names: Sequence[str], form: str) -> None:
    """Refuse columns that a format can't tell apart."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        what = f"named {twice[0]!r}" if twice[0] else "without a name"
        raise InvalidInput(f"There are several columns {what}, which {form} can't hold; name each once, or write CSV.")


class TextWriter:
    """CSV: values are quoted where they must be; lines end in a line feed."""

    def __init__(self, stream: IO[bytes], names: Sequence[str], separator: str, decimal: str, encoding: str) -> None:
        import pyarrow as pa

        self.stream, self.decimal, self.separator = stream, decimal, separator
        header = join_columns([pa.array([name]) for name in names], separator)
        stream.write(str(header, "utf-8").encode(encoding))

    def write(self, columns: Sequence[Any], more: Sequence[FloatArray]) -> None:
        """Write a batch."""
        texts = [self._texts(column) for column in (*columns, *more)]
        self.stream.write(join_columns(texts, self.separator))

    def _texts(self, column: Any) -> Any:
        """Return what is written of a column, '' where missing: texts as they are, numbers with all digits."""
        import pyarrow as pa

        if not isinstance(column, np.ndarray) and is_text(column):
            return column.cast(pa.string()).fill_null("")
        values = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
        return pa.array([_text(value, self.decimal) for value in values], pa.string())

    def finish(self) -> None:
        """Nothing comes after the last row."""

    def abandon(self) -> None:
        """Nothing is held back."""


def _text(value: Any, decimal: str) -> str:
    if value is None or value != value:
        return ""
    return str(value).replace(".", decimal) if isinstance(value, float) and decimal != "." else str(value)


def join_columns(columns: Sequence[Any], separator: str) -> memoryview:
    """Return the lines of several columns of texts.

    >>> import pyarrow as pa
    >>> bytes(join_columns([pa.array(["0.5"]), pa.array(["a,b"])], ","))
    b'0.5,"a,b"\\n'
    """
    import pyarrow.compute as pc

    rows = pc.binary_join_element_wise(*(_quoted(column, separator) for column in columns), separator)
    lines = pc.binary_join_element_wise(rows, "", "\n")
    _, offsets, data = lines.buffers()
    first, last = np.frombuffer(offsets, dtype=np.int32)[[lines.offset, lines.offset + len(lines)]]
    return memoryview(data)[first:last]


def _quoted(array: Any, separator: str) -> Any:
    """Return texts as CSV writes them: in quotes where they hold a separator, a quote or the end of a line."""
    import pyarrow.compute as pc

    must = pc.match_substring_regex(array, f'["\\r\\n{re.escape(separator)}]')
    if not pc.any(must).as_py():
        return array
    doubled = pc.replace_substring(array, '"', '""')
    return pc.if_else(must, pc.binary_join_element_wise('"', doubled, '"', ""), array)


class ParquetWriter:
    """Parquet, a row group for each GROUP_ROWS rows."""

    def __init__(self, stream: IO[bytes], read: Typing) -> None:
        from pyarrow.parquet import ParquetWriter as Native

        self.read, self.native = read, Native(stream, read.schema)
        self.waiting: list[Any] = []

    def write(self, columns: Sequence[Any], more: Sequence[FloatArray]) -> None:
        """Write a batch."""
        self.waiting.append(self.read(columns, more))
        if sum(len(batch) for batch in self.waiting) >= GROUP_ROWS:
            self._pass_on()

    def _pass_on(self) -> None:
        import pyarrow as pa

        self.native.write_table(pa.Table.from_batches(self.waiting))
        self.waiting = []

    def finish(self) -> None:
        """Write the last rows and the footer."""
        if self.waiting:
            self._pass_on()
        self.native.close()

    def abandon(self) -> None:
        """Leave out the footer, which would else be written when the object goes."""
        self.native.is_open = False


class JsonWriter:
    """JSON: a list of records, or a record on each line."""

    def __init__(self, stream: IO[bytes], read: Typing, *, is_list: bool) -> None:
        self.stream, self.read, self.is_list = stream, read, is_list
        self.before = b"[\n" if is_list else b""

    def write(self, columns: Sequence[Any], more: Sequence[FloatArray]) -> None:
        """Write a batch."""
        for row in self.read(columns, more).to_pylist():
            record = json.dumps({name: _plain(value) for name, value in row.items()}, ensure_ascii=False)
            self.stream.write(self.before + record.encode())
            self.before = b",\n" if self.is_list else b"\n"

    def finish(self) -> None:
        """Close the list."""
        ending = b"\n]\n" if self.is_list else b"\n"
        self.stream.write(ending if self.before not in (b"", b"[\n") else b"[]\n" if self.is_list else b"")

    def abandon(self) -> None:
        """Nothing is held back."""


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what it does not know becomes text."""
    if value is None or value != value:
        return None
    finite = not isinstance(value, float) or np.isfinite(value)
    return value if isinstance(value, bool | int | float | str) and finite else str(value)
