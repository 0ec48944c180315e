"""Writing tables batch by batch: CSV, Parquet, JSON records."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Protocol

import numpy as np

from lowcal.errors import InvalidInput
from lowcal.files.atomic import atomic_write
from lowcal.files.delimited import Delimited
from lowcal.files.fields import ArrowWritten, Field, Kind, arrow_type, kept_kind, wider
from lowcal.files.opening import STREAM, Source, is_packed, suffix_of
from lowcal.files.parquet import Parquet, require_pyarrow

#: The least number of rows in a row group of a Parquet file.
GROUP_ROWS = 1 << 16


class Writer(Protocol):
    """Takes batches of fields, one for each column."""

    def write(self, fields: Sequence[Field]) -> None:
        """Write a batch."""
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
    if form == "parquet":
        require_pyarrow("writing Parquet")
    with open_bytes(path) as stream:
        writer = _writer(stream, form, names, source, len(more))
        try:
            yield writer
        except BaseException:
            writer.abandon()
            raise
        writer.finish()


def _writer(stream: IO[bytes], form: str, names: Sequence[str], source: Source, n_more: int) -> Writer:
    if form in ("csv", "tsv"):
        like = source if isinstance(source, Delimited) else None
        separator = "\t" if form == "tsv" else like.separator if like else ","
        mark = "utf-8-sig" if like and like.encoding == "utf-8-sig" else "utf-8"
        return TextWriter(stream, names, separator, like.decimal if like else ".", mark)
    kinds = [*kinds_of(source), *[Kind.NUMBER] * n_more]
    if form == "parquet":
        return ParquetWriter(stream, names, kinds, source.schema if isinstance(source, Parquet) else None)
    return JsonWriter(stream, names, kinds, is_list=form == "json")


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


def kinds_of(source: Source) -> list[Kind]:
    """Return what each column of a source holds, over all its rows; a column without a value is text."""
    kinds: list[Kind | None] = [None] * len(source.names)
    open_ones = list(range(len(kinds)))
    if isinstance(source, Parquet):
        return [Kind.TEXT] * len(kinds)  # its own types are kept
    for batch in source.batches(open_ones):
        for j in open_ones:
            kinds[j] = wider(kinds[j], kept_kind(batch.fields[j]))
        open_ones = [j for j in open_ones if kinds[j] is not Kind.TEXT]
    return [kind or Kind.TEXT for kind in kinds]


def check_distinct(names: Sequence[str], form: str) -> None:
    """Refuse columns that a format can't tell apart."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        what = f"named {twice[0]!r}" if twice[0] else "without a name"
        raise InvalidInput(f"There are several columns {what}, which {form} can't hold; name each once, or write CSV.")


class TextWriter:
    """CSV: fields are quoted where they must be; lines end in a line feed."""

    def __init__(self, stream: IO[bytes], names: Sequence[str], separator: str, decimal: str, encoding: str) -> None:
        self.stream, self.decimal, self.separator = stream, decimal, separator
        self.text = io.StringIO(newline="")
        self.rows = csv.writer(self.text, delimiter=separator, lineterminator="\n")
        self.rows.writerow(names)
        self._pass_on(encoding)

    def write(self, fields: Sequence[Field]) -> None:
        """Write a batch."""
        if len(fields) > 1 and any(isinstance(field, ArrowWritten) for field in fields):
            self.stream.write(join_fields(fields, self.separator, self.decimal))
            return
        self.rows.writerows(zip(*(field.texts(self.decimal) for field in fields), strict=True))
        self._pass_on("utf-8")

    def _pass_on(self, encoding: str) -> None:
        self.stream.write(self.text.getvalue().encode(encoding))
        self.text.seek(0)
        self.text.truncate()

    def finish(self) -> None:
        """Nothing comes after the last row."""

    def abandon(self) -> None:
        """Nothing is held back."""


def join_fields(fields: Sequence[Field], separator: str, decimal: str) -> memoryview:
    """Return the lines of several fields, the same bytes as Python's csv makes, joined by Arrow.

    >>> from lowcal.files.fields import Written
    >>> bytes(join_fields([Written(["0.5"]), Written([""])], ",", "."))
    b'0.5,\\n'
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    arrays = [f.values if isinstance(f, ArrowWritten) else pa.array(f.texts(decimal), pa.string()) for f in fields]
    rows = pc.binary_join_element_wise(*(_quoted(array, separator) for array in arrays), separator)
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
    """Parquet, written in row groups of a fixed least size."""

    def __init__(self, stream: IO[bytes], names: Sequence[str], kinds: Sequence[Kind], schema: Any) -> None:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter as Native

        own = [] if schema is None else list(schema)
        new = [pa.field(n, arrow_type(k)) for n, k in list(zip(names, kinds, strict=True))[len(own) :]]
        self.schema, self.kinds = pa.schema([*own, *new]), kinds
        self.native = Native(stream, self.schema)
        self.waiting: list[Any] = []

    def write(self, fields: Sequence[Field]) -> None:
        """Write a batch."""
        import pyarrow as pa

        arrays = [field.arrow(kind) for field, kind in zip(fields, self.kinds, strict=True)]
        self.waiting.append(pa.record_batch(arrays, schema=self.schema))
        if sum(len(batch) for batch in self.waiting) >= GROUP_ROWS:
            self._pass_on()

    def _pass_on(self) -> None:
        import pyarrow as pa

        self.native.write_table(pa.Table.from_batches(self.waiting, schema=self.schema))
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

    def __init__(self, stream: IO[bytes], names: Sequence[str], kinds: Sequence[Kind], *, is_list: bool) -> None:
        self.stream, self.names, self.kinds, self.is_list = stream, names, kinds, is_list
        self.before = b"[\n" if is_list else b""

    def write(self, fields: Sequence[Field]) -> None:
        """Write a batch."""
        columns = [field.objects(kind) for field, kind in zip(fields, self.kinds, strict=True)]
        for row in zip(*columns, strict=True):
            record = json.dumps(dict(zip(self.names, row, strict=True)), ensure_ascii=False)
            self.stream.write(self.before + record.encode())
            self.before = b",\n" if self.is_list else b"\n"

    def finish(self) -> None:
        """Close the list."""
        ending = b"\n]\n" if self.is_list else b"\n"
        self.stream.write(ending if self.before not in (b"", b"[\n") else b"[]\n" if self.is_list else b"")

    def abandon(self) -> None:
        """Nothing is held back."""
