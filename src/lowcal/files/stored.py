"""Arrow files, and folders and globs of Parquet and Arrow files, as one table that is read in batches."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lowcal.errors import InvalidInput
from lowcal.files.batches import files_of, reader_of, reading
from lowcal.files.delimited import Batch, check_names
from lowcal.files.fields import Typed
from lowcal.files.parquet import Parquet, open_parquet, require_pyarrow

#: How Parquet files, Arrow files and Arrow streams begin.
_PARQUET, _ARROW, _STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"


def is_stored(path: str) -> bool:
    """Whether a path is a folder, a glob, or an Arrow file."""
    if os.path.isdir(path) or (glob.has_magic(path) and not os.path.exists(path)):
        return True
    is_readable = os.path.isfile(path) and os.access(path, os.R_OK)
    return is_readable and _start(path).startswith((_ARROW, _STREAM))


@dataclass(frozen=True, eq=False)
class ArrowFile(Parquet):
    """An Arrow file or stream whose schema has been read."""

    #: None for a stream, whose rows are counted by reading them.
    n_rows: int | None

    def batches(self, columns: Sequence[int]) -> Iterator[Batch]:
        """Yield the rows in batches, only the columns at these positions."""
        names, done = [self.names[j] for j in columns], 0
        for batch in reader_of(str(self.path))(str(self.path), names):
            done += batch.nbytes if self.n_rows is None else self.size * batch.num_rows // self.n_rows
            fields = tuple(Typed(batch.column(name), name) for name in names)
            yield Batch(fields, batch.num_rows, min(self.size, done))


@dataclass(frozen=True, eq=False)
class Stored(Parquet):
    """Files that are one table."""

    parts: tuple[Parquet, ...]

    def batches(self, columns: Sequence[int]) -> Iterator[Batch]:
        """Yield the rows of all files in batches, only the columns at these positions."""
        before = 0
        for part in self.parts:
            for batch in part.batches([part.names.index(self.names[j]) for j in columns]):
                yield replace(batch, position=before + batch.position)
            before += part.size


@contextmanager
def open_stored(path: str) -> Iterator[Stored]:
    """Open an Arrow file, or all Parquet and Arrow files of a folder or a glob; all must have the same columns."""
    require_pyarrow(f"reading {path}")
    parts = tuple(_open(file) for file in files_of(path))
    for part in parts[1:]:
        _check_same(parts[0], part)
    first, size = parts[0], sum(part.size for part in parts)
    yield Stored(Path(path), path, first.names, first.schema, size, parts)


def _open(path: str) -> Parquet:
    start = _start(path)
    if start.startswith(_PARQUET):
        return open_parquet(Path(path), path)
    if not start.startswith((_ARROW, _STREAM)):
        raise InvalidInput(
            f"{path} is neither a Parquet nor an Arrow file; give a folder or a glob of these, or a file."
        )
    with reading(path, "an Arrow file"):
        schema, n_rows = _facts(path, start.startswith(_ARROW))
    check_names(schema.names, path)
    return ArrowFile(Path(path), path, tuple(schema.names), schema.remove_metadata(), os.path.getsize(path), n_rows)


def _facts(path: str, is_file: bool) -> tuple[Any, int | None]:
    """Return the schema of an Arrow file or stream, and the number of rows of a file."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    if is_file:
        found = ds.dataset(path, format="ipc")
        return found.schema, found.count_rows()
    with pa.OSFile(path) as file, pa.ipc.open_stream(file) as reader:
        return reader.schema, None


def _start(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(6)


def _check_same(first: Parquet, other: Parquet) -> None:
    """Refuse files whose columns differ."""
    for name in sorted({*first.names} ^ {*other.names}):
        has, lacks = (first, other) if name in first.names else (other, first)
        raise InvalidInput(
            f"{lacks.shown} has no column {name!r}, but {has.shown} has; give all files the same columns."
        )
    for name in first.names:
        one, two = first.schema.field(name).type, other.schema.field(name).type
        if one != two:
            raise InvalidInput(
                f"Column {name!r} has the type {one} in {first.shown}, but {two} in {other.shown}; give all files the "
                "same types."
            )
