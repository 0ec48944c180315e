"""Opening a table: a text file, or Parquet and Arrow files, as Arrow arrays batch by batch."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from lowcal.data.errors import InvalidInput, MissingColumn, suggest
from lowcal.data.files.batches import Batches, files_of, open_batches, schema_of
from lowcal.data.files.delimited import Batch, Delimited, check_names, open_delimited
from lowcal.data.files.paths import STREAM, check_readable, damaged, require_pyarrow, suffix_of

#: How Parquet files, Arrow files, Arrow streams and JSON lines begin.
_STORED = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"{"


@dataclass(frozen=True, eq=False)
class Source:
    """A table in files: its columns, and its rows as Arrow arrays in batches."""

    shown: str
    names: tuple[str, ...]
    #: Positions of columns -> batches of these columns.
    batches: Callable[[Sequence[int]], Iterator[Batch]]
    #: What all batches read together: bytes or rows.
    size: int
    unit: str
    #: How it is written, if it is a text file; the types of its columns, if it is not.
    text: Delimited | None = None
    schema: Any = None

    @property
    def decimal(self) -> str | None:
        """The decimal sign of its numbers if it is a text file."""
        return None if self.text is None else self.text.decimal


@contextmanager
def open_table(
    path: str,
    *,
    form: str | None = None,
    separator: str | None = None,
    decimal: str = ".",
    encoding: str | None = None,
) -> Iterator[Source]:
    """Open a file, a folder or a glob, or "-" for standard input, which is first copied to a temporary file.

    The format is told by the file itself: Parquet begins with PAR1, Arrow with ARROW1, everything else is text.
    """
    require_pyarrow(f"Reading {'standard input' if path == STREAM else path}")
    if is_several(path) and form in (None, "parquet"):
        yield _open_stored(files_of(path), path)
        return
    with _on_disk(path) as (file, shown):
        told = form or suffix_of(path)
        if told in ("parquet", "jsonl") or (form is None and _is_stored(file)):
            yield _open_stored([str(file)], shown)
            return
        if told == "json":
            raise InvalidInput(f"{shown} is JSON, which can't be read; give JSON lines (.jsonl), CSV or Parquet.")
        separator = separator or ("\t" if told == "tsv" else None)
        text = open_delimited(file, shown, separator=separator, decimal=decimal, encoding=encoding)
        yield Source(shown, text.names, text.batches, file.stat().st_size, " bytes", text=text)


def is_several(path: str) -> bool:
    """Whether a path is a folder or a glob."""
    return os.path.isdir(path) or (glob.has_magic(path) and not os.path.exists(path))


def find_column(source: Source, name: str) -> int:
    """Return the position of a column; one that is not there is an error that names the nearest."""
    if name in source.names:
        return source.names.index(name)
    some = ", ".join(repr(one) for one in source.names[:10]) + (", ..." if len(source.names) > 10 else "")
    raise MissingColumn(f"{source.shown} has no column {name!r}; it has {some}.{suggest(name, source.names)}")


def _is_stored(file: str | Path) -> bool:
    with open(file, "rb") as stream:
        return stream.read(6).startswith(_STORED)


def _open_stored(files: Sequence[str], shown: str) -> Source:
    """Read the types of Parquet and Arrow files; all must have the same columns."""
    for file in files:
        check_readable(file)
        if not _is_stored(file) and not is_several(shown):
            raise damaged(shown, ValueError("it does not begin as one"), "a Parquet file or JSON lines")
        if not _is_stored(file):
            raise InvalidInput(
                f"{file} is neither a Parquet nor an Arrow file; give a folder or a glob of these, or a file."
            )
    first, *others = [schema_of(file).remove_metadata() for file in files]
    check_names(first.names, shown)
    for file, other in zip(files[1:], others, strict=True):
        _check_same(files[0], first, file, other)
    rows = open_batches(list(files))
    size = sum(os.path.getsize(file) for file in files) if rows.count is None else rows.count()[0]
    unit = " bytes" if rows.count is None else " rows"
    return Source(shown, tuple(first.names), partial(_stored_batches, rows, first.names), size, unit, schema=first)


def _stored_batches(rows: Batches, names: Sequence[str], columns: Sequence[int]) -> Iterator[Batch]:
    """Yield the rows of files in batches, only the columns at these positions."""
    wanted = [names[j] for j in columns]
    for batch in rows.open(wanted):
        n_read = batch.nbytes if rows.count is None else batch.num_rows
        yield Batch(tuple(batch.column(name) for name in wanted), batch.num_rows, n_read)


def _check_same(first: str, one: Any, file: str, other: Any) -> None:
    """Refuse files whose columns differ."""
    for name in sorted({*one.names} ^ {*other.names}):
        has, lacks = (first, file) if name in one.names else (file, first)
        raise InvalidInput(f"{lacks} has no column {name!r}, but {has} has; give all files the same columns.")
    for name in one.names:
        if one.field(name).type != other.field(name).type:
            raise InvalidInput(
                f"Column {name!r} has the type {one.field(name).type} in {first}, but {other.field(name).type} in "
                f"{file}; give all files the same types."
            )


@contextmanager
def _on_disk(path: str) -> Iterator[tuple[Path, str]]:
    """Give the file of a path and how messages call it; what can be read only once is copied to a file."""
    if path != STREAM:
        check_readable(path)
        if Path(path).is_file():
            yield Path(path), path
            return
    shown = "standard input" if path == STREAM else path
    with tempfile.TemporaryDirectory(prefix="lowcal-") as folder:
        file = Path(folder) / "input"
        with _reading(path) as stream, file.open("wb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
        try:
            yield file, shown
        except InvalidInput as error:
            raise type(error)(str(error).replace(str(file), shown)) from error


@contextmanager
def _reading(path: str) -> Iterator[IO[bytes]]:
    """Open standard input, a pipe or a device."""
    if path == STREAM:
        yield sys.stdin.buffer
        return
    with Path(path).open("rb") as stream:
        yield stream
