"""Tables of any kind in, arrays and integer codes out.

No other module depends on a data frame library. A column is converted when it is first used, and is one of two things:

- numbers (integers, floats, decimals): float64, with NaN for every missing value; infinities are kept; whole numbers
  that float64 rounds (beyond 2^53) keep their identity where values are looked up; dates, with or without a time of
  day, are numbers too: seconds since 1970, in UTC (a date without a time zone is taken as UTC);
- categories (text, categoricals, booleans, objects): sorted Python scalars, and a code for each row.

Missing are None, NaN, NaT, pandas.NA and the nulls of polars and Arrow, alike. Times of day, durations, lists
and other containers are refused. Data frames are read through narwhals alone, which is imported when one arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowcal.data.cards import refuse_card
from lowcal.data.errors import InvalidInput, missing_column, repeated, some_of
from lowcal.kernels.reference import CACHE
from lowcal.kernels.simplex import MOST_EXACT, FloatArray

if TYPE_CHECKING:
    import narwhals.stable.v2 as nw

T = TypeVar("T")

Categories = tuple[Hashable, ...]

#: Codes of a missing value, and of one that is none of the given categories.
MISSING, UNSEEN = -1, -2

_BOOLEANS = (False, True)
_DATES = (date, np.datetime64)
_REFUSED = (*_DATES, time, timedelta, np.timedelta64, bytes, complex, np.complexfloating)


@dataclass(frozen=True, eq=False)
class Column:
    """One column of X: either numbers, or categories with a code for each row.

    It is held as `raw`, numbers in the type that X has them in, or as distinct `scalars`, in any order, and the
    `places` of each row's; None, the place -1 and the place after the last are missing. A column without a single value
    is numeric, all NaN: it then suits a reader of numbers and a reader of categories.

    Objects other than numbers and text (intervals, enums) count as their str(). An object column is
    numeric if all its values are numbers. 1, 1.0 and True are one category, named as the first one seen.
    The arrays may share memory with X: don't write to them.

    >>> column = Table.of({"city": ["Rome", None, "Oslo"]}).column("city")
    >>> column.categories, column.codes.tolist()
    (('Oslo', 'Rome'), [1, -1, 0])
    """

    name: str
    raw: NDArray[Any] | None = None
    scalars: Sequence[Any] = ()
    places: NDArray[Any] | None = None
    #: Whether it holds numbers rather than categories.
    is_numeric: bool = True
    #: Whether the numbers are seconds since 1970.
    is_date: bool = False

    @cached_property
    def categories(self) -> Categories | None:
        """The distinct values that occur, as Python scalars sorted by type name and then value; None of numbers.

        A boolean column always has (False, True).
        """
        if self.is_numeric:
            return None
        kinds = {type(value) for value in self.scalars}
        if bool in kinds and {value for value in self.scalars if value is not None} <= {*_BOOLEANS}:
            return _BOOLEANS  # numbers equal to them may be among them
        assert self.places is not None
        occurs = np.zeros(len(self.scalars) + 1, dtype=bool)
        occurs[self.places] = True
        found = {self.scalars[k] for k in np.flatnonzero(occurs[:-1]).tolist()} - {None}
        types = sorted({type(value) for value in found}, key=lambda kind: kind.__name__)
        return tuple(value for kind in types for value in sorted(v for v in found if type(v) is kind))

    @cached_property
    def codes(self) -> NDArray[np.int32] | None:
        """The place of each row's category, -1 for missing; None of numbers."""
        return None if self.categories is None else self.encode(self.categories)

    @cached_property
    def values(self) -> FloatArray | None:
        """The numbers as float64, NaN for missing; None of categories."""
        if not self.is_numeric:
            return None
        if self.raw is None:
            return np.asarray(_rounded(self.scalars)[self.places])
        return np.ascontiguousarray(self.raw, dtype=np.float64)

    @property
    def numbers(self) -> NDArray[Any]:
        """The numbers in their own type if each is a float64, else as float64: in all forms of X they are the same."""
        found = self.values if self.raw is None or self.is_rounded else self.raw
        assert found is not None
        return found

    @cached_property
    def is_rounded(self) -> bool:
        """Whether `numbers` are rounded, as X holds whole numbers beyond 2^53; `distinct` and `look_up` are exact."""
        if self.raw is None:
            return self.is_numeric
        is_small = self.raw.dtype.kind == "f" or self.raw.dtype.itemsize < 8 or len(self.raw) == 0
        return not is_small and (int(self.raw.min()) < -MOST_EXACT or int(self.raw.max()) > MOST_EXACT)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Return what `make` makes of this column for a key, which is kept: made at the first call."""
        if self._known.get(id(key), (None,))[0] is not key:
            self._known[id(key)] = (key, make())
        made: T = self._known[id(key)][1]
        return made

    @cached_property
    def _known(self) -> dict[int, tuple[object, Any]]:
        return {}

    def encode(self, categories: Categories) -> NDArray[np.int32]:
        """Return the place of each row's value among given categories: -1 is missing, -2 is unseen.

        Values are compared as Python compares them: 1, 1.0 and True are the same, 1 and "1" are not. So
        a numeric column can be coded in categories that were fitted on booleans or integers.
        """
        return self.look_up({category: i for i, category in enumerate(categories)}, MISSING, UNSEEN, np.int32)

    def look_up(
        self, numbers: Mapping[Any, int], missing: int, unseen: int, kind: type[np.integer[Any]] | np.dtype[Any]
    ) -> NDArray[Any]:
        """Return the number of each row's value, in one pass over the rows."""
        own, places = self.distinct()
        new, dtype = [missing if v is None else numbers.get(v, unseen) for v in own], np.dtype(kind)
        held = int(places.max(initial=-1)) + 1
        if dtype.kind == "u" and new[:held] == list(range(missing + 1, missing + 1 + held)):
            return np.asarray(np.add(places, missing + 1, dtype=dtype, casting="unsafe"))
        return np.asarray(np.array([*new, missing], dtype=dtype)[places.astype(np.intp, copy=False)])

    def take(self, rows: NDArray[np.intp]) -> Column:
        """Keep some rows; only the categories that occur in them are left."""
        if self.raw is not None:
            return replace(self, raw=self.raw[rows])
        assert self.places is not None
        if self.is_numeric:
            return _exact(self.name, self.scalars, self.places[rows])
        return replace(self, places=self.places[rows])

    def distinct(self) -> tuple[Sequence[Any], NDArray[Any]]:
        """Return the distinct values, all digits kept, and each row's place; missing is None, -1, or the last."""
        if self.raw is None:
            assert self.places is not None
            return self.scalars, self.places
        found, places = np.unique(self.raw, return_inverse=True)
        return found[found == found].tolist(), places


def categorical(name: str, scalars: Sequence[Any], places: NDArray[Any]) -> Column:
    """Make a column of categories from distinct scalars; None, -1 and the place after the last are missing."""
    return Column(name, None, scalars, places, is_numeric=False)


def _exact(name: str, scalars: Sequence[float | None], places: NDArray[Any]) -> Column:
    """Make a column of distinct numbers: of floats, unless a whole number beyond 2^53 would be rounded."""
    floats = _rounded(scalars)
    if all(value is None or value == number for value, number in zip(scalars, floats.tolist(), strict=False)):
        return Column(name, floats[places])
    return Column(name, None, scalars, places)


@dataclass(eq=False, repr=False)
class Table:
    """The columns of X, by name, each converted when first asked for and then kept.

    `names` are strings. The columns of bare arrays and of lists of rows are called "x0", "x1", ..., and
    `is_named` is False for them; a list or an array with one dimension is one column.

    >>> table = Table.of({"age": [31, 54, None], "member": [True, False, True]})
    >>> table
    Table(3 rows: 'age', 'member')
    >>> table.column("age").values
    array([31., 54., nan])
    >>> table.column(1).categories
    (False, True)
    >>> Table.of(np.eye(2)).names
    ('x0', 'x1')
    """

    names: tuple[str, ...]
    n_rows: int
    #: Converts the column at a position.
    read: Callable[[int], Column]
    is_named: bool
    #: The CSR matrix of a sparse X in float64, not to be written to; None of other X.
    matrix: Any = None
    #: X as it was given, where it is an array of numbers or columns of arrays and series.
    source: NDArray[Any] | Sequence[Any] | None = None

    def __post_init__(self) -> None:
        self._columns: dict[int, Column] = {}
        self._position = {name: i for i, name in enumerate(self.names)}
        if len(self._position) < len(self.names):
            raise _duplicates(self.names)

    @classmethod
    def of(cls, X: object) -> Table:
        """Read X: a data frame, an array, a sparse matrix, a dict of columns, a list of rows or a Table.

        Lazy frames are collected, once. Nothing else is converted before it is asked for.
        """
        if isinstance(X, Table):
            return X
        if isinstance(X, np.ndarray):
            return _of_array(X)
        if sparse.issparse(X):
            return _of_sparse(X)
        if isinstance(X, Mapping):
            return _of_mapping(X)
        if isinstance(X, (list, tuple)):
            return _of_rows(X)
        return _of_frame(X)

    def column(self, name: str | int) -> Column:
        """Return one column by its name or, for an integer that names no column, by its position."""
        position = self._find(name)
        if position not in self._columns:
            self._columns[position] = self.read(position)
        return self._columns[position]

    def numeric(self, names: Sequence[str | int]) -> FloatArray:
        """Return some numeric columns as a matrix with a row for each row of X, NaN for missing."""
        if self.matrix is not None:
            return np.asarray(self.matrix[:, [self._find(name) for name in names]].toarray(), dtype=np.float64)
        matrix = np.empty((self.n_rows, len(names)))
        for j, name in enumerate(names):
            column = self.column(name)
            if column.values is None:
                given = some_of(column.categories or ())
                raise InvalidInput(f"Column {column.name!r} of X is not numeric: it holds {given}. Encode it first.")
            matrix[:, j] = column.values
        return matrix

    def take(self, rows: NDArray[np.intp]) -> Table:
        """Return the same columns on some rows, in that order, repeats allowed.

        A column keeps its kind but loses the categories that do not occur in these rows. The conversion
        is done once for all the tables taken from this one.
        """
        rows = np.arange(self.n_rows)[rows]
        if self.matrix is not None:
            return _of_sparse(self.matrix[rows])
        if isinstance(self.source, np.ndarray) and self.source.dtype.itemsize == 1:
            return _of_array(self.source[rows])
        return Table(self.names, len(rows), lambda k: self.column(self.names[k]).take(rows), self.is_named)

    def joined(self, names: Sequence[str], numbers: FloatArray) -> Table:
        """Return the same columns and, after them, those of a matrix of numbers."""
        own = len(self.names)

        def read(k: int) -> Column:
            return self.column(self.names[k]) if k < own else _from_array(names[k - own], numbers[:, k - own])

        return Table((*self.names, *names), self.n_rows, read, self.is_named)

    def without(self, names: Sequence[str]) -> Table:
        """Return the other columns."""
        kept = tuple(name for name in self.names if name not in names)
        return Table(kept, self.n_rows, lambda k: self.column(kept[k]), self.is_named)

    def array(self, name: str) -> NDArray[Any]:
        """Return one column as an array: numbers, truth values, or objects with None for missing."""
        column = self.column(name)
        if column.is_numeric:
            return column.numbers
        values, codes = column.distinct()
        if tuple(values) == (False, True) and codes.min(initial=0) >= 0:
            return codes.astype(bool)
        return np.array([*values, None], dtype=object)[np.where(codes < 0, len(values), codes)]

    def name_of(self, name: str | int) -> str:
        """Return the name of a column, given its name or its position; nothing is converted."""
        return self.names[self._find(name)]

    def named(self, names: Sequence[str]) -> Table:
        """Return the same columns under other names."""
        return replace(self, names=tuple(names), is_named=True)

    def held(self, names: Sequence[str | int]) -> NDArray[Any] | None:
        """Return numeric or boolean columns as one array of the type that X holds them in; None if types differ.

        Nothing is converted to float64, and an array whose columns are all asked for, in order, is given as it is.
        """
        positions = [self._find(name) for name in names]
        if isinstance(self.source, np.ndarray):
            return self.source if positions == list(range(len(self.names))) else self.source[:, positions]
        columns = [_plain(self.source[k]) for k in positions] if self.source is not None else []
        kinds = {None if column is None else column.dtype for column in columns}
        if len(kinds) != 1 or None in kinds:
            return None
        matrix = np.empty((self.n_rows, len(columns)), dtype=kinds.pop(), order="F")
        for j, column in enumerate(columns):
            matrix[:, j] = column
        return matrix

    def _find(self, name: str | int) -> int:
        """Find the position of a column."""
        position = self._position.get(str(name))
        if position is None and isinstance(name, (int, np.integer)):
            position = int(name)
        if position is None or not 0 <= position < len(self.names):
            raise missing_column("X", name, self.names)
        return position

    def __repr__(self) -> str:
        return f"Table({self.n_rows} rows: {some_of(self.names)})"


# Kinds of tables: each has names of columns and reads one.


def _of_columns(names: Sequence[str], columns: Sequence[Any], n_rows: int, is_named: bool, source: Any = None) -> Table:
    def read(k: int) -> Column:
        return (_from_array if isinstance(columns[k], np.ndarray) else _from_series)(names[k], columns[k])

    return Table(tuple(names), n_rows, read, is_named, source=source)


def _of_array(X: NDArray[Any]) -> Table:
    """Read an array: with one dimension it is one column, unless it is structured."""
    if X.dtype.names is not None:
        return _of_mapping({name: X[name] for name in X.dtype.names})
    if X.ndim not in (1, 2):
        raise InvalidInput(f"X is an array of shape {X.shape}, but only one or two dimensions make a table.")
    X = unmasked(X)
    columns = [X] if X.ndim == 1 else list(X.T)
    source = X.reshape(len(X), len(columns)) if X.dtype.kind in "biuf" else None
    return _of_columns(_numbered(len(columns)), columns, len(X), is_named=False, source=source)


def _of_sparse(X: Any) -> Table:
    """Read a SciPy sparse matrix or array."""
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise InvalidInput(f"X is sparse with shape {X.shape} and type {X.dtype}; give a matrix of numbers.")
    matrix = X.tocsr().astype(np.float64, copy=False)
    names = tuple(_numbered(matrix.shape[1]))

    def read(k: int) -> Column:
        return Column(names[k], matrix[:, [k]].toarray()[:, 0])

    return Table(names, matrix.shape[0], read, is_named=False, matrix=matrix)


def _of_mapping(X: Mapping[Any, Any]) -> Table:
    """Read a dict of columns: arrays, lists or series of one length."""
    columns = {str(name): _one_dimension(str(name), values) for name, values in X.items()}
    if len(columns) < len(X):
        raise _duplicates([str(name) for name in X])
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        given = some_of(list(lengths.items()))
        raise InvalidInput(f"The columns of X differ in length: {given}; give each a value for every row.")
    listed = list(columns.values())
    return _of_columns(list(columns), listed, next(iter(lengths.values()), 0), is_named=True, source=listed)


def _of_rows(X: Sequence[Any]) -> Table:
    """Read a list of rows as an array of objects, so that each column keeps its own type."""
    array = None
    with suppress(ValueError):
        array = np.array(X, dtype=object)
    if array is None or (array.ndim == 1 and any(isinstance(row, (list, tuple, np.ndarray)) for row in X)):
        raise InvalidInput("The rows of X differ in length; give each row a value for every column.")
    return _of_array(array)


def _of_frame(X: object) -> Table:
    """Read what narwhals reads: an eager frame, a lazy one or a series."""
    import narwhals.stable.v2 as nw
    from narwhals.exceptions import DuplicateError

    if nw.dependencies.is_pandas_dataframe(X):  # as it is: wrapping takes longer than reading few rows
        names, series = [str(name) for name in X.columns], [column for _, column in X.items()]
        return _of_columns(names, series, len(X), is_named=True, source=series)
    try:
        frame: Any = nw.from_native(X, allow_series=True)
        if frame.implementation.is_dask() or frame.implementation.is_spark_like():
            raise InvalidInput(
                f"X is {_type_name(X)}, whose rows lie on a cluster; collect the rows you want, as in X.compute() for "
                "Dask or X.toPandas() for Spark, and give those."
            )
        if isinstance(frame, nw.LazyFrame):  # once: a second run of the query may bring the rows in another order
            frame = frame.collect()
        columns = [frame] if isinstance(frame, nw.Series) else list(frame.iter_columns())
    except DuplicateError as error:
        raise InvalidInput(f"X has several columns of the same name; rename them. {error}") from error
    except TypeError as error:
        refuse_card("X", X)
        raise InvalidInput(
            f"X is {_type_name(X)}, which can't be read; give a data frame (pandas, polars, Arrow or another that "
            "narwhals reads), a NumPy array with one or two dimensions, a SciPy sparse matrix, a dict of columns or a "
            "list of rows."
        ) from error
    if isinstance(frame, nw.Series) and frame.name in (None, ""):
        return _of_columns(_numbered(1), columns, len(frame), is_named=False, source=columns)
    return _of_columns([str(column.name) for column in columns], columns, len(frame), is_named=True, source=columns)


def column_like(X: Any, name: str, values: NDArray[Any]) -> Any:
    """Return values as a column of the kind that a data frame X has; as they are for other forms of X."""
    import narwhals.stable.v2 as nw

    if isinstance(X, Table | Mapping) or nw.from_native(X, pass_through=True) is X:
        return values
    frame: Any = nw.from_native(X)
    column = nw.new_series(name, values, backend=frame.implementation).to_native()
    if frame.implementation.is_pandas_like():
        column.index = X.index
    return column


def _numbered(n_columns: int) -> list[str]:
    return [f"x{j}" for j in range(n_columns)]


def unmasked(X: NDArray[Any]) -> NDArray[Any]:
    """Make a plain array of any subclass; what is masked becomes None, thus missing."""
    if not isinstance(X, np.ma.MaskedArray) or not np.ma.getmaskarray(X).any():
        return np.asarray(X)
    objects = np.array(X, dtype=object)
    objects[np.ma.getmaskarray(X)] = None
    return objects


def _one_dimension(name: str, values: Any) -> Any:
    """Make one entry of a dict an array or a narwhals series."""
    if isinstance(values, (list, tuple)):
        values = np.array(values, dtype=object)
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise InvalidInput(f"Column {name!r} of X has shape {values.shape}; give one value for each row.")
        return unmasked(values)
    import narwhals.stable.v2 as nw

    try:
        return nw.from_native(values, series_only=True)
    except TypeError as error:
        refuse_card(f"Column {name!r} of X", values)
        given = _type_name(values)
        raise InvalidInput(f"Column {name!r} of X is {given}; give an array, a list or a series.") from error


# Reading one column.


def _from_array(name: str, values: NDArray[Any]) -> Column:
    """Convert an array with one dimension by the kind of its type."""
    kind = values.dtype.kind
    if kind in "iu":
        return Column(name, np.ascontiguousarray(values))
    if kind == "f":
        return Column(name, np.ascontiguousarray(values, dtype=np.float64))
    if kind == "b":
        return categorical(name, _BOOLEANS, np.ascontiguousarray(values).view(np.int8))
    if kind == "O":  # to numbers if all are, else to categories
        objects = values.tolist()
        sizes = (abs(value) for value in objects if type(value) is int)
        if set(map(type, objects)) <= {int, float, type(None)} and max(sizes, default=0) < MOST_EXACT:
            return Column(name, values.astype(np.float64))  # only a short cut
        return _categorise(name, *_factorise(name, objects), infer=True)
    if kind == "M":
        return _dates(name, values, np.arange(len(values)))
    if kind in "UT":
        return _categorise(name, *_factorise(name, values.tolist()))
    return _refuse(name, f"the type {values.dtype}")


def _from_series(name: str, series: Any) -> Column:
    """Convert a series of pandas or narwhals by its type."""
    import narwhals.stable.v2 as nw

    if not isinstance(series, nw.Series) or series.implementation.is_pandas():
        native = series.to_native() if isinstance(series, nw.Series) else series
        if isinstance(native.dtype, np.dtype) and native.dtype.kind in "iufb":
            return _from_array(name, native.to_numpy())
        if hasattr(native.array, "codes"):
            return _categorise(name, native.array.categories.tolist(), native.array.codes)
        if native.dtype.name in ("str", "string"):
            return _categorise(name, *_factorise_pandas(native))
        series = nw.from_native(native, series_only=True)
    dtype = series.dtype
    if (dtype.is_integer() or dtype.is_float()) and series.null_count() == 0:
        return _from_array(name, _array(series))
    if dtype.is_numeric():
        floats = _floats(series)
        if dtype.is_float() or not (np.abs(floats) >= MOST_EXACT).any():
            return Column(name, floats)
        return _categorise(name, *_factorise(name, series.to_list()), infer=True)
    if dtype == nw.Boolean:
        is_full = series.null_count() == 0
        if is_full or series.is_null().all():
            return _from_array(name, series.to_numpy() if is_full else _floats(series))
        return categorical(name, _BOOLEANS, np.nan_to_num(_floats(series), nan=MISSING).astype(np.int8))
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return _categorise(name, *_factorise_series(series))
    if dtype == nw.Date or dtype == nw.Datetime:
        return _from_array(name, series.to_numpy())
    # a type that narwhals lacks shows in the array of pandas (time zones with an underscore too) and in Arrow's dates
    kind, plain = series.implementation, series.to_native()
    is_date = kind.is_pyarrow() and str(plain.type).startswith("date")
    if dtype == nw.Object or (dtype == nw.Unknown and (kind.is_pandas_like() or is_date or series.is_null().all())):
        has_zone = getattr(getattr(plain, "dtype", None), "tz", None) is not None
        return _from_array(name, np.asarray(plain.to_numpy("datetime64[us]")) if has_zone else series.to_numpy())
    return _refuse(name, f"the type {dtype}")


def _array(series: nw.Series[Any]) -> NDArray[Any]:
    """Return a series without nulls as an array; Arrow in one piece is not copied."""
    native: Any = series.to_native()
    if series.implementation.is_pyarrow() and native.num_chunks == 1:
        return np.asarray(native.chunk(0).to_numpy(zero_copy_only=False))
    return series.to_numpy()


def _plain(column: Any) -> NDArray[Any] | None:
    """Return an array or series of numbers or booleans as an array of its own type; None if it has nulls or others."""
    if not isinstance(column, np.ndarray):
        import narwhals.stable.v2 as nw

        column = column if isinstance(column, nw.Series) else nw.from_native(column, series_only=True)
        if not (column.dtype.is_numeric() or column.dtype == nw.Boolean) or column.null_count() > 0:
            return None
        column = _array(column)
    return column if column.dtype.kind in "biuf" else None


def _floats(series: nw.Series[Any]) -> FloatArray:
    """Return the numbers of a series, NaN for null."""
    import narwhals.stable.v2 as nw

    if series.dtype.is_integer():  # Arrow refuses to round those beyond 2^53
        found = series.fill_null(0).to_numpy().astype(np.float64)
        found[series.is_null().to_numpy()] = np.nan
        return found
    return np.ascontiguousarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)


def _factorise(name: str, values: list[Any]) -> tuple[list[Any], NDArray[np.intp]]:
    """Return the distinct values, in order of appearance, and the position of each row's."""
    try:
        place = {value: i for i, value in enumerate(dict.fromkeys(values))}
    except TypeError as error:
        _refuse(name, f"an {error}")
    return list(place), np.fromiter(map(place.__getitem__, values), dtype=np.intp, count=len(values))


def _factorise_series(series: nw.Series[Any]) -> tuple[list[Any], NDArray[Any]]:
    """Return the distinct values and the position of each row's, by the library of the series; null is -1."""
    import narwhals.stable.v2 as nw

    native: Any = series.to_native()
    if series.implementation.is_pandas_like():
        return _factorise_pandas(native)
    if series.implementation.is_pyarrow():
        encoded = native.dictionary_encode().combine_chunks()
        return encoded.dictionary.to_pylist(), encoded.indices.cast("int32").fill_null(MISSING).to_numpy()
    if series.implementation.is_polars() and series.dtype != nw.String:
        # categories are numbered, perhaps together with those of other columns; null is a value
        numbered = native.to_physical()
        first = numbered.arg_unique().to_numpy()
        numbers = (numbered.cast(int).fill_null(MISSING) if numbered.null_count() else numbered).to_numpy()
        place = np.empty(int(numbers.max(initial=0)) + 2, dtype=np.int32)
        place[numbers[first]] = np.arange(len(first))
        return native.gather(first).to_list(), place[numbers]
    values = series.drop_nulls().unique().to_list()
    places = [*range(len(values)), MISSING]
    return values, series.replace_strict([*values, None], places, return_dtype=nw.Int32).to_numpy()


def _factorise_pandas(native: Any) -> tuple[list[Any], NDArray[Any]]:
    """Return the distinct values and the position of each row's in a pandas series; missing is -1."""
    codes, distinct = native.factorize()
    return distinct.tolist(), codes


# Making columns of distinct values and codes.


def _categorise(name: str, distinct: Sequence[Any], codes: NDArray[Any], *, infer: bool = False) -> Column:
    """Make a column of raw distinct values; `infer` takes objects that are all numbers for numbers."""
    first = next((value for value in distinct if not is_missing(value)), None)
    if isinstance(first, _DATES) and all(isinstance(value, _DATES) or is_missing(value) for value in distinct):
        return _dates(name, np.array([_moment(value) for value in distinct]), codes)
    scalars: list[Any] = [value if type(value) is str else _scalar(name, value) for value in distinct]
    present = [value for value in scalars if value is not None]
    if not present or (infer and all(type(value) in (int, float) for value in present)):
        return _exact(name, scalars, codes)
    return categorical(name, scalars, codes)


def _moment(value: Any) -> np.datetime64:
    """Return a date in UTC to the microsecond; pandas' own converts itself."""
    if is_missing(value):
        return np.datetime64("NaT", "us")
    if hasattr(value, "to_datetime64"):
        value = value.to_datetime64()
    elif isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(value, "us")


def _dates(name: str, distinct: NDArray[Any], codes: NDArray[Any]) -> Column:
    """Make a column of dates from distinct ones; NaT, -1 and the place after the last are missing."""
    moments = np.append(distinct.astype("datetime64[us]"), np.datetime64("NaT", "us"))
    seconds = np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 1e6)[codes]
    return Column(name, seconds, is_date=not bool(np.isnan(seconds).all()))


def _rounded(distinct: Sequence[float | None]) -> FloatArray:
    """Make floats of distinct numbers, infinite beyond all floats; NaN is for missing ones, and stands last."""

    def rounded(number: float) -> float:
        try:
            return float(number)
        except OverflowError:
            return np.inf if number > 0 else -np.inf

    return np.array([*(np.nan if value is None else rounded(value) for value in distinct), np.nan])


def count_bytes(codes: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return the number of rows with each byte; many are counted in pairs, which takes half the steps."""
    if len(codes) < CACHE or not codes.flags.c_contiguous:
        return np.bincount(codes, minlength=256)
    total, even, values = np.zeros(256, dtype=np.intp), len(codes) // 2 * 2, int(codes.max()) + 1
    pairs = np.zeros((values, 256), dtype=np.intp)
    for start in range(0, even, CACHE):
        part = codes[start : min(start + CACHE, even)].view(np.uint16)
        pairs += np.bincount(part, minlength=pairs.size).reshape(pairs.shape)
    total[:values] = pairs.sum(axis=1)
    total += pairs.sum(axis=0)
    total[codes[even:]] += 1
    return total


def is_missing(value: Any) -> bool:
    """Whether a value is missing; pandas' own marks are known by their type's name."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _scalar(name: str, value: Any) -> bool | int | float | str | None:
    """Make a value a Python scalar: None if missing; numbers and text as they are; else its str()."""
    if is_missing(value):
        return None
    if isinstance(value, _REFUSED):
        _refuse(name, f"a value of the type {type(value).__name__}")
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Decimal) and value.is_finite() and abs(value) > MOST_EXACT and value == int(value):
        return int(value)
    if isinstance(value, (Real, Decimal)):
        return float(value)
    # str(value) of an enum that is a str would give its name
    return str.__str__(value) if isinstance(value, str) else str(value)


# What errors say.


def _refuse(name: str, given: str) -> NoReturn:
    """Refuse a column that is neither numbers nor categories."""
    raise InvalidInput(
        f"Column {name!r} of X has {given}; convert it to a number or a string first, or leave it out: name the "
        "columns to use, as in Groups(columns=[...])."
    )


def _duplicates(names: Iterable[str]) -> InvalidInput:
    return InvalidInput(f"X has several columns named {some_of(repeated(names))}; rename them.")


def _type_name(value: object) -> str:
    """Name a type with its module, unless it is a builtin."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
