"""Tables in files, read and written batch by batch: CSV and its relatives, Parquet, Arrow and JSON.

Nothing here knows what the columns mean. `batches` reads files with types, `text` reads text files. What is written
appears whole or not at all: a reader sees the old file or the new one, whatever happens in between.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lowcal.data.batches import (
    BATCH_ROWS,
    check_readable,
    files_of,
    is_several,
    open_batches,
    require_columns,
    require_pyarrow,
    stored_format,
)
from lowcal.data.errors import CannotWrite, InvalidInput, repeated, sentence
from lowcal.data.text import (
    Kind,
    TextFile,
    cast,
    check_names,
    factorise,
    ignore,
    is_text,
    kind_of,
    open_text_file,
    wider,
)

#: The name of the standard streams.
STREAM = "-"
#: A row group of a Parquet file has at least this many rows, which wait in memory until it is written.
GROUP_ROWS = BATCH_ROWS // 4
#: Errors of a full disk, which only writing meets.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SUFFIXES = {".csv": "csv", ".txt": "csv", ".tsv": "tsv", ".tab": "tsv", ".parquet": "parquet", ".pq": "parquet"}
_SUFFIXES |= {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}

#: The Arrow arrays of a batch's columns, and new columns of numbers or texts.
Extended = tuple[Sequence[Any], Sequence[NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class FileTable:
    """A table in files: a text file, or the rows of files with types.

    `batches(names, add)` yields Arrow record batches of some columns, or of all, as the file holds them: those of a
    text file as text. `add` is given how much was read for each of them.
    """

    shown: str
    names: tuple[str, ...]
    #: What all batches read together: bytes or rows.
    size: int
    unit: str
    batches: Callable[..., Iterator[Any]]
    #: The text file, or the schema of files with types.
    text: TextFile | None = None
    schema: Any = None

    @property
    def decimal(self) -> str | None:
        """The decimal sign of its numbers if it is a text file."""
        return None if self.text is None else self.text.decimal

    def require(self, *names: str) -> None:
        """Refuse a name that is not a column; the error names the nearest."""
        require_columns(self.shown, self.names, names)

    def typed(self, kinds: Mapping[str, Kind | None]) -> Iterator[Any]:
        """Yield record batches of some columns as values of these kinds.

        None is the type that the file has; values other than texts become the names of groups if they are to be text.
        """
        import pyarrow as pa

        for batch in self.batches(list(kinds)):
            arrays = []
            for column, kind in zip(batch.columns, kinds.values(), strict=True):
                if self.decimal is not None:
                    column = cast(column, kind, self.decimal)
                elif kind is Kind.TEXT:
                    distinct, places = factorise(column)
                    names = pa.array([*map(text_of, distinct), None], pa.string())
                    column = names.take(pa.array(places)).dictionary_encode()
                arrays.append(column)
            yield pa.RecordBatch.from_arrays(arrays, list(kinds))

    def survey(
        self,
        unknown: Sequence[str],
        others: Sequence[str] = (),
        look: Callable[[Mapping[str, Any], int], None] = ignore,
        add: Callable[[int], object] = ignore,
        most_texts: float = np.inf,
    ) -> tuple[int, dict[str, Kind | None]]:
        """Read all rows; return their number and the kinds of unknown columns, None where the file has types.

        `look` is given the arrays of every batch, those of other columns too, and the number of rows before it. An
        unknown column with more than `most_texts` different texts is refused.
        """
        n, texts = 0, {name: set[str]() for name in unknown}
        kinds: dict[str, Kind | None] = dict.fromkeys(unknown)
        for batch in self.batches([*unknown, *others], add):
            arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
            look(arrays, n)
            for name, known in texts.items():
                if self.decimal is not None and kinds[name] is not Kind.TEXT:
                    kinds[name] = wider(kinds[name], kind_of(arrays[name], self.decimal))
                if most_texts < np.inf and (kinds[name] is Kind.TEXT or (self.text is None and is_text(arrays[name]))):
                    known.update(arrays[name].unique().to_pylist())
                if len(known) > most_texts:
                    raise InvalidInput(
                        f"Column {name!r} holds more than {most_texts:,} different texts: it identifies rows, not "
                        "groups. Leave it out, or replace it by coarser values."
                    )
            n += batch.num_rows
        return n, kinds


def text_of(value: Any) -> str | None:
    """Return a value of any type as the name of a group; None if it is missing.

    >>> text_of("NA"), text_of(""), text_of(2.0), text_of(True), text_of(float("nan"))
    ('NA', None, '2', 'True', None)
    """
    if value is None or value != value or value == "":
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


# --- opening --------------------------------------------------------------------------------------------------


@contextmanager
def open_table(
    path: str,
    *,
    form: str | None = None,
    separator: str | None = None,
    decimal: str = ".",
    encoding: str | None = None,
) -> Iterator[FileTable]:
    """Open a file, a folder or a glob, or "-" for standard input, which is first copied to a temporary file.

    The format is read off the file itself: Parquet begins with PAR1, Arrow with ARROW1, everything else is text.
    """
    require_pyarrow(f"Reading {'standard input' if path == STREAM else path}", "cli")
    if is_several(path) and form in (None, "parquet"):
        yield _open_stored(files_of(path), path)
        return
    with _on_disk(path) as (file, shown):
        known = form or _suffix_of(path)
        if known in ("parquet", "jsonl") or (form is None and stored_format(str(file)) is not None):
            yield _open_stored([str(file)], shown)
            return
        if known == "json":
            raise InvalidInput(f"{shown} is JSON, which can't be read; give JSON lines (.jsonl), CSV or Parquet.")
        separator = separator or ("\t" if known == "tsv" else None)
        text = open_text_file(file, shown, separator=separator, decimal=decimal, encoding=encoding)
        yield FileTable(shown, text.names, file.stat().st_size, " bytes", text.batches, text)


def _suffix_of(path: str) -> str | None:
    """Return the format of a file's extension, whether compressed or not."""
    return _SUFFIXES.get(Path(path.lower().removesuffix(".gz")).suffix)


def _open_stored(files: Sequence[str], shown: str) -> FileTable:
    """Read the types of Parquet and Arrow files and of JSON lines; all must have the same columns."""
    schemas = []
    for file in files:
        form = stored_format(file)
        if form is None:
            raise InvalidInput(
                f"{file} is neither a Parquet nor an Arrow file; a folder or a glob must hold only these."
                if is_several(shown)
                else f"{shown} is damaged, cut short or not a Parquet file or JSON lines (it does not begin as one); "
                "write it again."
            )
        schemas.append(form.columns(file).remove_metadata())
    one, first = schemas[0], files[0]
    check_names(one.names, shown)
    for file, other in zip(files, schemas, strict=True):
        for name in sorted({*one.names} ^ {*other.names}):
            has, lacks = (first, file) if name in one.names else (file, first)
            raise InvalidInput(f"{lacks} has no column {name!r}, but {has} has; give all files the same columns.")
        for name, kind in zip(one.names, one.types, strict=True):
            if kind != other.field(name).type:
                raise InvalidInput(
                    f"Column {name!r} has the type {kind} in {first}, but {other.field(name).type} in {file}; give all "
                    "files the same types."
                )
    rows = open_batches(list(files))

    def batches(names: Sequence[str] | None = None, add: Callable[[int], object] = ignore) -> Iterator[Any]:
        wanted = list(one.names if names is None else names)
        for batch in rows.open(wanted):
            yield batch.select(wanted)
            add(batch.nbytes if rows.count is None else batch.num_rows)

    size = (sum(map(os.path.getsize, files)), " bytes") if rows.count is None else (rows.count()[0], " rows")
    return FileTable(shown, tuple(one.names), *size, batches, schema=one)


@contextmanager
def _on_disk(path: str) -> Iterator[tuple[Path, str]]:
    """Yield the file of a path and its name in messages; what can be read only once is copied to a file."""
    if path != STREAM:
        check_readable(path)
        if Path(path).is_file():
            yield Path(path), path
            return
    shown = "standard input" if path == STREAM else path
    with tempfile.TemporaryDirectory(prefix="lowcal-") as folder:
        file = Path(folder) / "input"
        reading = nullcontext(sys.stdin.buffer) if path == STREAM else Path(path).open("rb")  # noqa: SIM115
        with reading as stream, file.open("wb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
        try:
            yield file, shown
        except InvalidInput as error:
            raise type(error)(str(error).replace(str(file), shown)) from error


# --- writing ----------------------------------------------------------------------------------------------------


def form_of(path: str, form: str | None) -> str:
    """Return the format to write: as asked for, by the extension, or CSV on standard output."""
    found = form or _suffix_of(path)
    if found is None and path != STREAM:
        raise InvalidInput(
            f"The name {path} has no known extension; end it in .csv, .parquet or .json, or give --format."
        )
    if found == "parquet" and path.lower().endswith(".gz"):
        raise InvalidInput(f"{path}: Parquet is already compressed and can't be read from a .gz file; leave out .gz.")
    return found or "csv"


def write_table(
    path: str, form: str, table: FileTable, more: Sequence[str], batches: Iterable[Extended], texts: Sequence[str] = ()
) -> None:
    """Write the columns of a table, then more columns of numbers and, after them, of texts, whole or not at all.

    Text files are written as the table is, if it is one: separator, decimal sign and mark. Formats with types need to
    know what a text file holds, so it is read once before.
    """
    is_text_file, names = form in ("csv", "tsv"), [*table.names, *more, *texts]
    twice = repeated(names)
    if twice and not is_text_file:
        what = f"named {twice[0]!r}" if twice[0] else "without a name"
        raise InvalidInput(f"There are several columns {what}, which {form} can't hold; rename them, or write CSV.")
    with open_bytes(path) as stream:
        if is_text_file:
            _write_text(stream, names, table, batches, "\t" if form == "tsv" else None)
            return
        schema, typed = _record_batches(table, more, batches, texts)
        if form == "parquet":
            _write_parquet(stream, schema, typed)
        else:
            _write_json(stream, typed, is_list=form == "json")


@contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """Open a file that appears whole or not at all, packed if its name ends in .gz; "-" is standard output."""
    if path == STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with atomic_write(path) as file:
        if not path.lower().endswith(".gz"):
            yield file
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            yield packed  # type: ignore[misc]


def _write_text(
    stream: IO[bytes], names: Sequence[str], table: FileTable, batches: Iterable[Extended], separator: str | None
) -> None:
    """Write CSV: values are quoted where they must be; lines end in a line feed."""
    import pyarrow as pa

    like = table.text
    separator = separator or (like.separator if like else ",")
    header = str(join_columns([pa.array([name]) for name in names], separator), "utf-8")
    stream.write(header.encode("utf-8-sig" if like and like.encoding == "utf-8-sig" else "utf-8"))
    decimal = table.decimal or "."

    def text(value: Any) -> str:
        if value is None or value != value:
            return ""
        return str(value).replace(".", decimal) if isinstance(value, float) else str(value)

    for columns, more in batches:
        texts = []
        for column in (*columns, *more):
            if not isinstance(column, np.ndarray) and is_text(column):
                texts.append(column.cast(pa.string()).fill_null(""))
            else:  # numbers with all digits
                values = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
                texts.append(pa.array(map(text, values), pa.string()))
        stream.write(join_columns(texts, separator))


def join_columns(columns: Sequence[Any], separator: str) -> memoryview:
    """Return the lines of several columns of texts, quoted where they hold a separator, a quote or the end of a line.

    >>> import pyarrow as pa
    >>> bytes(join_columns([pa.array(["0.5"]), pa.array(["a,b"])], ","))
    b'0.5,"a,b"\\n'
    """
    import pyarrow.compute as pc

    def quoted(array: Any) -> Any:
        must = pc.match_substring_regex(array, f'["\\r\\n{re.escape(separator)}]')
        if not pc.any(must).as_py():
            return array
        doubled = pc.replace_substring(array, '"', '""')
        return pc.if_else(must, pc.binary_join_element_wise('"', doubled, '"', ""), array)

    rows = pc.binary_join_element_wise(*map(quoted, columns), separator)
    lines = pc.binary_join_element_wise(rows, "", "\n")
    _, offsets, data = lines.buffers()
    first, last = np.frombuffer(offsets, dtype=np.int32)[[lines.offset, lines.offset + len(lines)]]
    return memoryview(data)[first:last]


def _record_batches(
    table: FileTable, more: Sequence[str], batches: Iterable[Extended], texts: Sequence[str]
) -> tuple[Any, Iterator[Any]]:
    """Return a schema and record batches; columns of a text file get the types that hold all their values."""
    import pyarrow as pa

    own, kinds = list(table.schema or ()), list[Kind]()
    if table.text is not None:
        kinds = [kind or Kind.TEXT for kind in table.survey(table.names)[1].values()]
        types = {Kind.NUMBER: pa.float64(), Kind.BOOLEAN: pa.bool_(), Kind.TEXT: pa.string()}
        own = [pa.field(name, types.get(kind, pa.int64())) for name, kind in zip(table.names, kinds, strict=True)]
    new_types = [pa.float64()] * len(more) + [pa.string()] * len(texts)
    schema = pa.schema([*own, *map(pa.field, [*more, *texts], new_types)])

    def typed_batches() -> Iterator[Any]:
        for columns, new in batches:
            if table.decimal is not None:
                columns = [cast(column, kind, table.decimal) for column, kind in zip(columns, kinds, strict=True)]
            arrays = [*columns, *(pa.array(column, from_pandas=True) for column in new)]
            read = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
            yield pa.record_batch(read, schema=schema)

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
    """Write a list of records, or a record on each line; what JSON does not know becomes text."""

    def plain(value: Any) -> Any:
        if value is None or value != value:
            return None
        finite = not isinstance(value, float) or np.isfinite(value)
        return value if isinstance(value, bool | int | float | str) and finite else str(value)

    between, n = b",\n" if is_list else b"\n", 0
    for row in (row for batch in batches for row in batch.to_pylist()):
        record = json.dumps({name: plain(value) for name, value in row.items()}, ensure_ascii=False)
        stream.write((between if n else b"[\n" if is_list else b"") + record.encode())
        n += 1
    stream.write((b"\n]\n" if is_list else b"\n") if n else (b"[]\n" if is_list else b""))


# --- files that appear whole --------------------------------------------------------------------------------------


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for bytes that appears under its name only when the block has ended without an error.

    The content goes to a temporary file in the same folder (`file.name`, for writers that want a path), is forced to
    the disk and then takes the old one's name. An old file stays as it is until then, and for good if anything is
    raised (Ctrl-C too), which also removes the temporary file. Links are followed, an existing file keeps its
    permissions, a new one gets the usual ones. Devices and pipes are written directly.
    """
    target = Path(os.path.realpath(check_path(path)))
    temporary = target.parent / f".{target.name[:50]}.{token_hex(8)}.tmp"
    try:
        mode = os.stat(path).st_mode if os.path.exists(path) else None
        if mode is None or stat.S_ISREG(mode):
            with _replacing(target, temporary, mode) as file:
                yield file
        else:
            with open(path, "wb") as file:  # not the target: a pipe such as /dev/stdout has no other name
                yield file
    except OSError as error:
        # the block may have met an error of its own, with another file
        if error.errno in DISK_FULL or error.filename in (os.fspath(path), str(target), str(temporary)):
            why = f"{error.strerror}.{' The old file is as it was.' if target.is_file() else ''}"
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                why = f"there is no folder {str(target.parent)!r}. Make it first."
            elif isinstance(error, IsADirectoryError):
                why = "it is a folder. Give the name of a file."
            raise CannotWrite(f"{path} can't be written: {why}") from error
        raise


def check_path(path: object) -> str:
    """Return the path as text; refuse what is none."""
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f"The path of a file must be text or a pathlib.Path, but {path!r} was given.")
    return text


def check_writable(path: str) -> None:
    """Refuse a path that can't be written to, before any work is done for it."""
    target = Path(os.path.realpath(path))
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return  # a device or a pipe
    if target.is_dir():
        raise InvalidInput(f"{path} is a folder; give the name of a file.")
    if not target.parent.is_dir():
        raise InvalidInput(sentence(f"{path} can't be written: there is no folder {target.parent}"))
    if not os.access(target.parent, os.W_OK):
        raise InvalidInput(f"{path} can't be written: the folder {target.parent} is protected.")


@contextmanager
def _replacing(target: Path, temporary: Path, mode: int | None) -> Iterator[BinaryIO]:
    """Open the temporary file, then give it the target's name; remove it if anything is raised."""
    file = open(temporary, "xb")  # noqa: SIM115
    try:
        with file:
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    with suppress(OSError):  # force the new name to the disk, where the system lets a folder be synced
        handle = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
