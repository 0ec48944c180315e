"""Parquet files, through pyarrow: only the columns asked for, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowcal.errors import InvalidInput, MissingExtra
from lowcal.files.delimited import Batch, check_names
from lowcal.files.fields import Typed

BATCH_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Parquet:
    """A Parquet file whose footer has been read."""

    path: Path
    shown: str
    names: tuple[str, ...]
    schema: Any
    size: int

    def batches(self, columns: Sequence[int]) -> Iterator[Batch]:
        """Yield the rows in batches, only the columns at these positions; the position is a share of the size."""
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile

        names, done = [self.names[j] for j in columns], 0
        try:
            with ParquetFile(self.path, memory_map=False, pre_buffer=False) as file:
                n_rows = max(1, file.metadata.num_rows)
                for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                    done += batch.num_rows
                    fields = tuple(Typed(batch.column(name), name) for name in names)
                    yield Batch(fields, batch.num_rows, self.size * done // n_rows)
        except (pa.ArrowException, OSError) as error:
            raise damaged(self.shown, error) from error


def open_parquet(path: Path, shown: str) -> Parquet:
    """Read the footer of a Parquet file."""
    pa = require_pyarrow("reading Parquet")
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise damaged(shown, error) from error
    check_names(schema.names, shown)
    return Parquet(path, shown, tuple(schema.names), schema.remove_metadata(), path.stat().st_size)


def require_pyarrow(what: str) -> Any:
    """Return pyarrow, or say what to install."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra(f"{what} needs pyarrow: pip install 'lowcal[files]'. CSV works without it.") from error
    return pyarrow


def damaged(shown: str, error: Exception, kind: str = "a Parquet file") -> InvalidInput:
    """Tell that a file is not what it should be, or not all of it."""
    why = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return InvalidInput(f"{shown} is damaged, cut short or not {kind} ({why}); write it again.")
