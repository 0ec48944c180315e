"""Tables that are read batch by batch, any number of times, without holding all rows in memory.

A source is an Arrow IPC file or stream, a Parquet file, JSON lines, several of these, a folder or a glob of Parquet and
Arrow files, an Arrow dataset, or anything that can be read again and again: a list of tables, or a function that
returns an iterator. A batch is a dict of columns of equal length, at most BATCH_ROWS: NumPy arrays, Arrow arrays in one
piece, or the series of another data frame. Small Arrow batches are joined. Arrow files are mapped into memory, and
pages are released after they were read.
"""

from __future__ import annotations

import glob
import mmap
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput, load_extra, missing_column, repeated, suggest
from lowcal.kernels.exact import BLOCK

#: The number of rows in a batch: no more than exact sums take at once.
BATCH_ROWS = BLOCK
#: Bytes of text, CSV and JSON lines, that are read at a time; more where a row is longer.
BATCH_BYTES = 1 << 20
#: Of a folder, files with these endings are read.
SUFFIXES = ".parquet", ".pq", ".arrow", ".feather", ".arrows"

Column = Any
Batch = dict[str, Column]
#: Wanted columns (None: all) -> tables.
Opening = Callable[[Sequence[str] | None], Iterable[Any]]

#: What messages call a function or a list of tables.
SOURCE = "the source"


@dataclass(frozen=True, eq=False)
class Batches:
    """A source that can be read again and again."""

    shown: str
    open: Opening
    #: How many rows and values there are, where that is known without reading them.
    count: Callable[[], tuple[int, int]] | None = None

    def read(self, wanted: Sequence[str] | None) -> Generator[Batch, None, None]:
        """Yield batches that have the wanted columns (None: those of the first batch), all of the same kinds."""
        kinds: dict[str, tuple[Any, str | None]] = {}
        for k, batch in enumerate(_pieces(self.open(wanted), self.shown)):
            wanted = tuple(batch) if wanted is None else wanted
            self.require(batch, wanted, k)
            kept = {name: batch[name] for name in wanted}
            for name, column in kept.items():
                type_, before = kinds.get(name, (None, None))
                own = column.type if is_arrow_array(column) else column.dtype
                if before is None or type_ != own:
                    kind = _kind(column)
                    if None not in (kind, before) and kind != before:
                        raise InvalidInput(
                            f"Column {name!r} of {self.shown} holds {before} at first, but {kind} in batch {k} (from "
                            "0). Give every batch the same types."
                        )
                    kinds[name] = own, kind or before
            yield kept

    def nothing(self) -> InvalidInput:
        """Return the error of a source without rows."""
        again = ", and a new iterator at every call of a function" if self.shown == SOURCE else ""
        return InvalidInput(f"{self.shown} holds no rows; give at least one{again}.")

    def require(self, batch: Batch, wanted: Sequence[str], k: int = 0) -> None:
        """Refuse a batch without a wanted column."""
        require_columns(self.shown if k == 0 else f"Batch {k} (from 0) of {self.shown}", tuple(batch), wanted)


def require_columns(where: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse rows without a wanted column; name the nearest one."""
    for name in wanted:
        if name not in names:
            raise missing_column(where, name, names)


def open_batches(rows: object) -> Batches:
    """Return a source: a path, folder, glob or several paths, an Arrow dataset, a function, a table or several.

    >>> batches = open_batches(lambda: ({"p": np.array([0.5, 0.25])} for _ in range(2)))
    >>> [batch["p"].tolist() for batch in batches.read(None)]
    [[0.5, 0.25], [0.5, 0.25]]
    """
    if isinstance(rows, Batches):
        return rows
    if isinstance(rows, str) and "://" in rows:  # such as s3://bucket/folder, through Arrow's own file systems
        require_pyarrow(f"Reading {rows}")
        import pyarrow.dataset as ds

        with _reading(rows, "a dataset"):
            return _of_dataset(ds.dataset(rows))
    if isinstance(rows, str | os.PathLike):
        return _of_files(files_of(os.fspath(rows)))
    if is_a(rows, "polars", "LazyFrame"):
        return _of_lazy(rows)
    if is_a(rows, "pyarrow.dataset", "Dataset"):
        return _of_dataset(rows)
    if callable(rows):
        return Batches(SOURCE, lambda _: _of_function(rows))
    if isinstance(rows, Iterator):
        raise InvalidInput(
            f"{type(rows).__name__} can be read only once, but every pass reads the rows again. Pass a function that "
            "returns a new iterator each time, for instance lambda: pandas.read_csv(path, chunksize=100_000)."
        )
    if isinstance(rows, Sequence) and rows and all(isinstance(one, str | os.PathLike) for one in rows):
        return _of_files(rows)
    return Batches(SOURCE, lambda _: _iterable(rows))


def is_source(rows: object) -> bool:
    """Whether rows are to be read from a source, rather than given as a table; iterators are refused when opened.

    >>> is_source("rows/*.parquet"), is_source({"p": [0.5]}), is_source([["a", 1.5]])
    (True, False, False)
    """
    if isinstance(rows, list | tuple):
        return bool(rows) and all(isinstance(one, os.PathLike) or str(one).endswith(SUFFIXES) for one in rows)
    is_function = callable(rows) and not isinstance(rows, type)
    is_named = isinstance(rows, str | os.PathLike | Iterator | Batches)
    return is_named or is_function or is_a(rows, "pyarrow.dataset", "Dataset") or is_a(rows, "polars", "LazyFrame")


def has_more(rows: object, most: int, beside: int = 0) -> bool:
    """Whether a source holds more than `most` values, with `beside` more for each row.

    Parquet files and datasets are asked; others are read until the answer is known.

    >>> has_more(lambda: [{"p": np.array([0.5, 0.25])}], 2), has_more(lambda: [{"p": np.array([0.5, 0.25])}], 2, 1)
    (False, True)
    """
    source = open_batches(rows)
    if source.count is not None:
        n, numbers = source.count()
        return numbers + beside * n > most
    total = 0
    with closing(source.read(None)) as batches:
        for batch in batches:
            total += (len(batch) + beside) * len(next(iter(batch.values())))
            if total > most:
                return True
    return False


def read_whole(rows: object) -> Batch:
    """Return all rows of a source in memory, as a dict of columns that `frames` takes."""
    source = open_batches(rows)
    batches = list(source.read(None))
    if not batches:
        raise source.nothing()
    # the batches of a column are freed as soon as they are joined
    return {name: for_frames(join([batch.pop(name) for batch in batches])) for name in list(batches[0])}


@contextmanager
def at_row(start: int) -> Iterator[None]:
    """Add the first row of the batch to errors that count rows within it."""
    try:
        yield
    except InvalidInput as error:
        if start == 0:
            raise
        raise type(error)(f"{error} (Rows are counted within the batch that begins at row {start}.)") from error


# --- sources --------------------------------------------------------------------------------------------------


def is_a(value: object, module: str, *names: str) -> bool:
    """Whether a value has a type of a library that may not be loaded."""
    found = sys.modules.get(module)
    return found is not None and isinstance(value, tuple(getattr(found, name) for name in names))


def _of_function(make: Callable[[], object]) -> Iterator[Any]:
    """Yield the tables of a function's iterator, which is closed in the end, or when no more are wanted."""
    tables: Any = _iterable(make())
    with closing(tables) if hasattr(tables, "close") else nullcontext():
        yield from tables


def _iterable(tables: object) -> Iterable[Any]:
    """Return several tables, or a single one as several."""
    is_one = not isinstance(tables, list | tuple | Iterator)
    if is_one and (is_a(tables, "pyarrow", "Table", "RecordBatch") or _columns(tables) is not None):
        return [tables]
    if not isinstance(tables, Iterable) or isinstance(tables, str | bytes):
        raise InvalidInput(
            f"Rows come from a path, a list of tables or a function that returns an iterator of tables, but "
            f"{tables!r} was given."
        )
    return tables


def _of_dataset(dataset: Any) -> Batches:
    names = dataset.schema.names

    def read(wanted: Sequence[str] | None) -> Iterator[Any]:
        require_columns("The dataset", names, wanted or ())
        with _reading("The dataset", "a dataset"):
            some = names if wanted is None else list(wanted)
            yield from dataset.scanner(columns=some, batch_size=BATCH_ROWS, use_threads=False).to_batches()

    def count() -> tuple[int, int]:
        n = dataset.count_rows()
        return n, n * len(names)

    return Batches("the dataset", read, count)


def _of_lazy(frame: Any) -> Batches:
    """Return the frames of a polars LazyFrame, in their order, without collecting it."""

    def read(wanted: Sequence[str] | None) -> Iterator[Any]:
        names = frame.collect_schema().names()
        require_columns("The LazyFrame", names, wanted or ())
        some = frame.select(names if wanted is None else list(wanted))
        yield from some.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True)

    def count() -> tuple[int, int]:
        n = frame.select(sys.modules["polars"].len()).collect(engine="streaming").item()
        return n, n * len(frame.collect_schema().names())

    return Batches("the LazyFrame", read, count)


# --- files ----------------------------------------------------------------------------------------------------


def check_readable(path: str) -> None:
    """Refuse a path that no file can be read from, and name the nearest file beside it."""
    file = Path(path)
    try:
        if file.is_dir():
            raise InvalidInput(f"{path} is a folder; give a file.")
        if not file.exists():
            near = suggest(file.name, [one.name for one in file.parent.iterdir()]) if file.parent.is_dir() else ""
            raise InvalidInput(f"There is no file {path}.{near}")
        if file.is_file():  # a pipe that is opened twice would lose its writer
            with file.open("rb") as stream:
                if not stream.read(1):
                    raise InvalidInput(f"{path} is empty; give a file with a header and at least one row.")
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {error.strerror}.") from error


def require_pyarrow(what: str, extra: str = "files") -> None:
    """Raise the error that says what to install, if pyarrow can't be imported."""
    hint = "" if extra == "cli" else " Or pass a function that returns an iterator of dicts of arrays."
    load_extra("pyarrow", f"{what} needs pyarrow: pip install 'lowcal[{extra}]'.{hint}")


def is_several(path: str) -> bool:
    """Whether a path is a folder or a glob."""
    return os.path.isdir(path) or (glob.has_magic(path) and not os.path.exists(path))


def files_of(path: str) -> list[str]:
    """Return the files of a path: itself, those of a folder and its folders, or those that match a glob, by name."""
    if not is_several(path):
        return [path]
    if not os.path.isdir(path):
        found, nothing = glob.glob(path, recursive=True), f"No file matches {path}."
    else:
        every = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        found = [file for file in every if file.endswith(SUFFIXES)]
        nothing = f"The folder {path} holds no file that ends in {', '.join(SUFFIXES)}."
    if not found:
        raise InvalidInput(nothing)
    return sorted(found)


@dataclass(frozen=True)
class Format:
    """A kind of files with types: what it is called, its columns, and its record batches."""

    shown: str
    schema: Callable[[str], Any]
    batches: Callable[[str, Any, Sequence[str]], Iterator[Any]]

    def columns(self, path: str) -> Any:
        """Return the columns of a file and their types."""
        with _reading(path, self.shown):
            return self.schema(path)

    def read(self, path: str, wanted: Sequence[str] | None) -> Iterator[Any]:
        """Yield record batches of the wanted columns (None: all)."""
        schema = self.columns(path)
        require_columns(path, schema.names, wanted or ())
        names = [name for name in schema.names if wanted is None or name in wanted]
        with _reading(path, self.shown):
            yield from self.batches(path, schema, names)


def stored_format(path: str) -> Format | None:
    """Return the format of a file, known by its first bytes; None for text and others."""
    check_readable(path)
    with open(path, "rb") as file:
        start = file.read(6)
    return next((form for mark, form in _FORMATS.items() if start.startswith(mark)), None)


def _of_files(paths: Sequence[Any]) -> Batches:
    """Return the rows of files, one after the other."""
    require_pyarrow("Reading rows from a file")
    files = [(os.fspath(path), stored_format(os.fspath(path))) for path in paths]
    known = [(path, form) for path, form in files if form is not None]
    if len(known) < len(files):
        path = next(path for path, form in files if form is None)
        raise InvalidInput(
            f"{path} is neither a Parquet nor an Arrow file nor JSON lines. For other files, pass a function that "
            "returns an iterator of tables, for instance lambda: pandas.read_csv(path, chunksize=100_000)."
        )

    def read(wanted: Sequence[str] | None) -> Iterator[Any]:
        return (batch for path, form in known for batch in form.read(path, wanted))

    def count() -> tuple[int, int]:
        from pyarrow.parquet import read_metadata

        n = numbers = 0
        for path, form in known:
            with _reading(path, form.shown):
                found = read_metadata(path)
            n, numbers = n + found.num_rows, numbers + found.num_rows * found.num_columns
        return n, numbers

    shown = files[0][0] if len(files) == 1 else f"{files[0][0]} and {len(files) - 1} more files"
    return Batches(shown, read, count if all(form is _PARQUET for _, form in known) else None)


def _parquet_schema(path: str) -> Any:
    from pyarrow.parquet import read_schema

    return read_schema(path)


def _parquet(path: str, schema: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield record batches; text comes as dictionary indices."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    texts = [name for name in names if pa.types.is_string(schema.field(name).type)]
    with ParquetFile(path, read_dictionary=texts, pre_buffer=False) as file:
        yield from file.iter_batches(BATCH_ROWS, columns=names, use_threads=False)


def _arrow_schema(path: str, is_stream: bool) -> Any:
    import pyarrow as pa

    with pa.OSFile(path) as file:
        return (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(file).schema


def _arrow(path: str, schema: Any, names: Sequence[str], is_stream: bool) -> Iterator[Any]:
    """Yield slices of the record batches of a mapped file; its pages, which would count as memory, are released."""
    import pyarrow as pa

    advice = getattr(mmap, "MADV_DONTNEED", None)
    with open(path, "rb") as opened:  # the map is closed when the last array that lies in it is gone
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    # options that read all columns leave them where they are
    fields = None if len(names) == len(schema.names) else [schema.get_field_index(name) for name in names]
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    with (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(pa.py_buffer(mapped), options=options) as file:
        for one in file if is_stream else map(file.get_batch, range(file.num_record_batches)):
            for batch in _slices(one):
                yield batch
                if advice is not None:
                    mapped.madvise(advice)


def _json_schema(path: str) -> Any:
    """Return the types of JSON lines that hold all values; texts that look like dates are texts."""
    import pyarrow as pa

    schema = pa.unify_schemas([table.schema for table in _json_tables(path, None)], promote_options="permissive")
    return pa.schema([one.with_type(pa.string()) if pa.types.is_timestamp(one.type) else one for one in schema])


def _json_lines(path: str, schema: Any, names: Sequence[str]) -> Iterator[Any]:
    from pyarrow.json import ParseOptions

    for table in _json_tables(path, ParseOptions(explicit_schema=schema)):
        yield from table.select(names).to_batches()


def _json_tables(path: str, options: Any) -> Iterator[Any]:
    """Yield a table for each piece of JSON lines."""
    from pyarrow.json import ReadOptions, read_json

    with open(path, "rb") as file:
        while lines := file.readlines(BATCH_BYTES):
            data = b"".join(lines)
            yield read_json(BytesIO(data), ReadOptions(use_threads=False, block_size=len(data) + 1), options)


_PARQUET = Format("a Parquet file", _parquet_schema, _parquet)
#: Formats by how their files begin.
_FORMATS = {
    b"PAR1": _PARQUET,
    b"ARROW1": Format("an Arrow file", partial(_arrow_schema, is_stream=False), partial(_arrow, is_stream=False)),
    b"\xff\xff\xff\xff": Format(
        "an Arrow stream", partial(_arrow_schema, is_stream=True), partial(_arrow, is_stream=True)
    ),
    b"{": Format("a file of JSON lines", _json_schema, _json_lines),
}


@contextmanager
def _reading(path: str, kind: str) -> Iterator[None]:
    """Report errors of Arrow as what they are: a damaged file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise InvalidInput(f"{path} is damaged, cut short or not {kind} ({why}); write it again.") from error


# --- tables to batches ----------------------------------------------------------------------------------------


def _pieces(tables: Iterable[Any], shown: str) -> Iterator[Batch]:
    """Yield the tables as batches of at most BATCH_ROWS rows; neighbouring small Arrow batches are joined."""
    waiting: list[Any] = []
    for table in tables:
        if not is_a(table, "pyarrow", "Table", "RecordBatch"):
            yield from _joined(waiting)
            waiting = []
            yield from _of_table(table, shown)
            continue
        for batch in _slices(table):
            is_alike = not waiting or waiting[0].schema.equals(batch.schema)
            if sum(one.num_rows for one in waiting) + batch.num_rows > BATCH_ROWS or not is_alike:
                yield from _joined(waiting)
                waiting = []
            waiting.append(batch)
    yield from _joined(waiting)


def _joined(waiting: Sequence[Any]) -> Iterator[Batch]:
    """Yield Arrow batches as one, if they hold rows."""
    batches = [batch for batch in waiting if batch.num_rows]
    names = batches[0].schema.names if batches else []
    if twice := repeated(names):
        raise InvalidInput(f"The rows have several columns named {twice[0]!r}; rename them.")
    if batches:
        columns = zip(*(batch.columns for batch in batches), strict=True)
        yield {name: join(column) for name, column in zip(names, columns, strict=True)}


def _slices(table: Any) -> Iterator[Any]:
    """Yield an Arrow table or record batch as record batches that are not too long."""
    for batch in table.to_batches() if hasattr(table, "to_batches") else [table]:
        yield from (batch.slice(start, BATCH_ROWS) for start in range(0, batch.num_rows, BATCH_ROWS))


def _of_table(table: Any, shown: str) -> Iterator[Batch]:
    """Yield another table as batches of its series or arrays."""
    columns = _columns(table)
    if columns is None:
        raise InvalidInput(
            f"{shown} yields {type(table).__name__}, which is not a table; give Arrow tables or record batches, pandas "
            "or polars frames, or dicts of arrays."
        )
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise InvalidInput(f"The columns of a table of {shown} differ in length ({sorted(lengths)}).")
    for start in range(0, lengths.pop() if lengths else 0, BATCH_ROWS):
        yield {name: take(column, slice(start, start + BATCH_ROWS)) for name, column in columns.items()}


def _columns(table: Any) -> Batch | None:
    """Return the columns of a data frame or of a dict; None of anything else."""
    if isinstance(table, Mapping):
        made: Batch = {
            str(name): np.array(one) if isinstance(one, list | tuple) else one for name, one in table.items()
        }
        is_chunked = {name: is_a(one, "pyarrow", "ChunkedArray") for name, one in made.items()}
        return {name: one.combine_chunks() if is_chunked[name] else one for name, one in made.items()}
    import narwhals.stable.v2 as nw

    try:
        frame = nw.from_native(table, eager_only=True)
    except TypeError:
        return None
    return {str(column.name): column.to_native() for column in frame.iter_columns()}


# --- columns of batches ---------------------------------------------------------------------------------------


def is_arrow_array(column: object) -> bool:
    """Whether a column is an Arrow array."""
    return is_a(column, "pyarrow", "Array")


def to_numpy(column: Column) -> NDArray[Any]:
    """Return a column as an array, NaN or None where it has no value."""
    if isinstance(column, np.ndarray):
        return column
    if is_arrow_array(column):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(_series(column).to_numpy())


def take(column: Column, rows: NDArray[np.intp] | slice) -> Column:
    """Return some rows of a column; a slice is not copied."""
    if isinstance(column, np.ndarray) or (is_arrow_array(column) and isinstance(rows, slice)):
        return column[rows]
    if is_arrow_array(column):
        return column.take(sys.modules["pyarrow"].array(rows))
    return _series(column)[rows].to_native()


def join(columns: Sequence[Column]) -> Column:
    """Return the rows of several columns, one after the other."""
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    if all(is_arrow_array(column) for column in columns):
        import pyarrow as pa

        # one without values takes the type of the others, and dictionaries become one
        tables = [pa.table({"x": column}) for column in columns]
        try:
            return pa.concat_tables(tables, promote_options="permissive")["x"].unify_dictionaries().combine_chunks()
        except pa.ArrowException as error:
            raise InvalidInput(f"Batches hold different types in one column ({error}). Give all the same.") from error
    import narwhals.stable.v2 as nw

    kinds = sorted({type(column).__module__.partition(".")[0] for column in columns})
    if len(kinds) > 1:
        raise InvalidInput(f"Batches are tables of different kinds ({', '.join(kinds)}). Give all of one kind.")
    frames = [_series(column).alias("x").to_frame() for column in columns]
    return nw.concat(frames).get_column("x").to_native()


def for_frames(column: Column) -> Any:
    """Return a column as `frames` takes it: an array or a series."""
    return sys.modules["pyarrow"].chunked_array([column]) if is_arrow_array(column) else column


def _series(column: Any) -> Any:
    """Return a narwhals series of a data frame's column."""
    import narwhals.stable.v2 as nw

    try:
        return nw.from_native(column, series_only=True)
    except TypeError as error:
        raise InvalidInput(f"A column is {type(column).__name__}; give an array or a series.") from error


def _kind(column: Column) -> str | None:
    """Return whether a column holds numbers or text; None where that is unknown."""
    if isinstance(column, np.ndarray):
        return {"O": None, "U": "text", "T": "text", "S": "text"}.get(column.dtype.kind, "numbers")
    import narwhals.stable.v2 as nw

    dtype = _series(for_frames(column)).dtype
    if dtype in (nw.Object, nw.Unknown):
        return None
    return "text" if dtype in (nw.String, nw.Categorical, nw.Enum) else "numbers"
