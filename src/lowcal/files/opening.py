"""Opening a table: which format a file has, and what is wrong with a path."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Protocol

from lowcal.errors import InvalidInput, MissingColumn, suggest
from lowcal.files.delimited import Batch, open_delimited
from lowcal.files.parquet import open_parquet

#: The name of the standard streams.
STREAM = "-"
_SUFFIXES = {".csv": "csv", ".txt": "csv", ".tsv": "tsv", ".tab": "tsv", ".parquet": "parquet", ".pq": "parquet"}
_SUFFIXES |= {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class Source(Protocol):
    """A table in a file: its columns, and its rows in batches."""

    @property
    def shown(self) -> str:
        """How messages call it."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        ...

    @property
    def size(self) -> int:
        """How many bytes it has."""
        ...

    def batches(self, columns: Sequence[int]) -> Iterator[Batch]:
        """Yield the rows in batches, only the columns at these positions."""
        ...


@contextmanager
def open_table(
    path: str,
    *,
    form: str | None = None,
    separator: str | None = None,
    decimal: str = ".",
    encoding: str | None = None,
    engine: str | None = None,
) -> Iterator[Source]:
    """Open a CSV or Parquet file, or "-" for standard input, which is first copied to a temporary file.

    The format is told by the file itself: Parquet begins with PAR1, everything else is text. `engine` is "arrow" or
    "python", for text; None: Arrow where it is installed. The values are the same.
    """
    with _on_disk(path) as (file, shown):
        if (form or _form(file)) == "parquet":
            yield open_parquet(file, shown)
            return
        if form in ("json", "jsonl") or (form is None and suffix_of(path) in ("json", "jsonl")):
            raise InvalidInput(f"{shown} is JSON, which can't be read; give a CSV or a Parquet file.")
        separator = separator or ("\t" if "tsv" in (form, suffix_of(path)) else None)
        engine = engine or ("arrow" if has_arrow() else "python")
        yield open_delimited(file, shown, separator=separator, decimal=decimal, encoding=encoding, engine=engine)


def has_arrow() -> bool:
    """Whether Arrow is installed and can be imported: one that was built for another NumPy can't."""
    if find_spec("pyarrow") is None:
        return False
    try:
        import_module("pyarrow")
    except ImportError:
        return False
    return True


@contextmanager
def _on_disk(path: str) -> Iterator[tuple[Path, str]]:
    """Give the file of a path and how messages call it; what can be read only once is copied to a file."""
    if path != STREAM:
        check_readable(path)
        if Path(path).is_file():
            yield Path(path), path
            return
    with tempfile.TemporaryDirectory(prefix="lowcal-") as folder:
        file = Path(folder) / "input"
        with _reading(path) as stream, file.open("wb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
        yield file, "standard input" if path == STREAM else path


@contextmanager
def _reading(path: str) -> Iterator[IO[bytes]]:
    """Open standard input, a pipe or a device."""
    if path == STREAM:
        yield sys.stdin.buffer
        return
    with Path(path).open("rb") as stream:
        yield stream


def check_readable(path: str) -> None:
    """Refuse a path that no file can be read from, and name the nearest file beside it."""
    try:
        _check_readable(Path(path), path)
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {error.strerror}.") from error


def _check_readable(file: Path, path: str) -> None:
    if file.is_dir():
        raise InvalidInput(f"{path} is a folder; give a file.")
    if not file.exists():
        near = suggest(file.name, [one.name for one in file.parent.iterdir()]) if file.parent.is_dir() else ""
        raise InvalidInput(f"There is no file {path}.{near}")
    if not file.is_file():
        return  # a pipe that is opened twice would lose its writer
    with file.open("rb") as stream:
        is_empty = not stream.read(1)
    if is_empty:
        raise InvalidInput(f"{path} is empty; give a file with a header and at least one row.")


def _form(file: Path) -> str:
    with file.open("rb") as stream:
        return "parquet" if stream.read(4) == b"PAR1" or suffix_of(str(file)) == "parquet" else "csv"


def suffix_of(path: str) -> str | None:
    """Return the format that a file's name tells, whether packed or not.

    >>> suffix_of("a.csv.gz"), suffix_of("b.parquet"), suffix_of("c")
    ('csv', 'parquet', None)
    """
    name = Path(path.lower().removesuffix(".gz"))
    return _SUFFIXES.get(name.suffix)


def is_packed(path: str) -> bool:
    """Whether a file's name tells that it is packed."""
    return path.lower().endswith(".gz")


def find_column(source: Source, name: str) -> int:
    """Return the position of a column; one that is not there is an error that names the nearest."""
    if name in source.names:
        return source.names.index(name)
    some = ", ".join(repr(one) for one in source.names[:10]) + (", ..." if len(source.names) > 10 else "")
    raise MissingColumn(f"{source.shown} has no column {name!r}; it has {some}.{suggest(name, source.names)}")
