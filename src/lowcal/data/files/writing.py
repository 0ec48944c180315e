"""Writing tables batch by batch: CSV, Parquet, JSON records."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.data.files.atomic import atomic_write
from lowcal.data.files.columns import Recalled, survey, typed
from lowcal.data.files.kinds import Kind, arrow_type, is_text
from lowcal.data.files.opening import Source
from lowcal.data.files.paths import STREAM, is_packed, suffix_of
from lowcal.kernels.simplex import FloatArray

#: A row group of a Parquet file has at least this many rows.
GROUP_ROWS = 1 << 16

#: The Arrow arrays of a source's columns, and new columns of numbers.
Wider = tuple[Sequence[Any], Sequence[FloatArray]]


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


def write_table(path: str, form: str, source: Source, more: Sequence[str], batches: Iterable[Wider]) -> None:
    """Write the columns of a source, then more columns of numbers, whole or not at all.

    Text files are written as the source is, if it is one: separator, decimal sign and mark. Formats with types need to
    know what a text file holds, so it is read once before.
    """
    names = (*source.names, *more)
    if form not in ("csv", "tsv"):
        _check_distinct(names, form)
    with open_bytes(path) as stream:
        if form in ("csv", "tsv"):
            _write_text(stream, names, source, batches, "\t" if form == "tsv" else None)
        elif form == "parquet":
            _write_parquet(stream, *_record_batches(source, more, batches))
        else:
            _write_json(stream, _record_batches(source, more, batches)[1], is_list=form == "json")


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


def _check_distinct(names: Sequence[str], form: str) -> None:
    """Refuse columns that a format can't tell apart."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        what = f"named {twice[0]!r}" if twice[0] else "without a name"
        raise InvalidInput(f"There are several columns {what}, which {form} can't hold; name each once, or write CSV.")


# --- CSV --------------------------------------------------------------------------------------------------------


def _write_text(
    stream: IO[bytes], names: Sequence[str], source: Source, batches: Iterable[Wider], separator: str | None
) -> None:
    """Write CSV: values are quoted where they must be; lines end in a line feed."""
    import pyarrow as pa

    like = source.text
    separator = separator or (like.separator if like else ",")
    header = str(join_columns([pa.array([name]) for name in names], separator), "utf-8")
    stream.write(header.encode("utf-8-sig" if like and like.encoding == "utf-8-sig" else "utf-8"))
    for columns, more in batches:
        texts = [_texts(column, source.decimal or ".") for column in (*columns, *more)]
        stream.write(join_columns(texts, separator))


def _texts(column: Any, decimal: str) -> Any:
    """Return what is written of a column, '' where missing: texts as they are, numbers with all digits."""
    import pyarrow as pa

    if not isinstance(column, np.ndarray) and is_text(column):
        return column.cast(pa.string()).fill_null("")
    values = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    return pa.array([_text(value, decimal) for value in values], pa.string())


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


# --- formats with types -----------------------------------------------------------------------------------------


def _record_batches(source: Source, more: Sequence[str], batches: Iterable[Wider]) -> tuple[Any, Iterator[Any]]:
    """Return a schema and record batches; columns of a text file get the types that hold all their values."""
    import pyarrow as pa

    kinds: list[Kind | None] = [None] * len(source.names)
    own = source.schema
    if own is None:
        everything = Recalled(source, {name: j for j, name in enumerate(source.names)}, most=0)
        found = survey(everything, source.names).kinds
        kinds = [found[name] or Kind.TEXT for name in source.names]
        own = [pa.field(name, arrow_type(kind)) for name, kind in zip(source.names, kinds, strict=True)]
    schema = pa.schema([*own, *(pa.field(name, pa.float64()) for name in more)])

    def typed_batches() -> Iterator[Any]:
        for columns, new in batches:
            read = [typed(column, kind, source.decimal) for column, kind in zip(columns, kinds, strict=True)]
            arrays = [*read, *(pa.array(column, from_pandas=True) for column in new)]
            cast = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
            yield pa.record_batch(cast, schema=schema)

    return schema, typed_batches()


def _write_parquet(stream: IO[bytes], schema: Any, batches: Iterable[Any]) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    writer, waiting = ParquetWriter(stream, schema), []
    try:
        for batch in batches:
            waiting.append(batch)
            if sum(one.num_rows for one in waiting) >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
        writer.write_table(pa.Table.from_batches(waiting, schema=schema))
    except BaseException:
        writer.is_open = False  # leave out the footer, which would else be written when the object goes
        raise
    writer.close()


def _write_json(stream: IO[bytes], batches: Iterable[Any], *, is_list: bool) -> None:
    """Write a list of records, or a record on each line."""
    before = b"[\n" if is_list else b""
    n = 0
    for row in (row for batch in batches for row in batch.to_pylist()):
        record = json.dumps({name: _plain(value) for name, value in row.items()}, ensure_ascii=False)
        stream.write(before + record.encode())
        before, n = b",\n" if is_list else b"\n", n + 1
    stream.write((b"\n]\n" if is_list else b"\n") if n else (b"[]\n" if is_list else b""))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what it does not know becomes text."""
    if value is None or value != value:
        return None
    finite = not isinstance(value, float) or np.isfinite(value)
    return value if isinstance(value, bool | int | float | str) and finite else str(value)
