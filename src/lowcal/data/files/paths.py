"""Paths of files: what their names tell, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowcal.data.errors import InvalidInput, MissingExtra, suggest

#: The name of the standard streams.
STREAM = "-"
_SUFFIXES = {".csv": "csv", ".txt": "csv", ".tsv": "tsv", ".tab": "tsv", ".parquet": "parquet", ".pq": "parquet"}
_SUFFIXES |= {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl"}


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


def require_pyarrow(what: str) -> Any:
    """Return pyarrow, or say what to install; one that was built for another NumPy can't be imported."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra(f"{what} needs pyarrow: pip install 'lowcal[cli]'.") from error
    return pyarrow


def damaged(shown: str, error: Exception, kind: str = "a Parquet file") -> InvalidInput:
    """Tell that a file is not what it should be, or not all of it."""
    why = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return InvalidInput(f"{shown} is damaged, cut short or not {kind} ({why}); write it again.")
