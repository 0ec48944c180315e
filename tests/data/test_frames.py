"""The door for data: every kind of table gives the same columns, and bad ones a clear error."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from enum import Enum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lowcal.data import frames
from lowcal.data.errors import InvalidInput, MissingColumn
from lowcal.data.frames import Column, Table, categorical

NAN = float("nan")

# --- backends: each makes a table of a dict of Python lists ---------------------------------------


def as_pandas(data):
    return pytest.importorskip("pandas").DataFrame(data)


def as_pandas_nullable(data):
    return pytest.importorskip("pandas").DataFrame(data).convert_dtypes()


def as_pandas_arrow(data):
    pa, pd = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    return pa.table(data).to_pandas(types_mapper=pd.ArrowDtype)


def as_pandas_object(data):
    return pytest.importorskip("pandas").DataFrame(data, dtype=object)


def as_polars(data):
    return pytest.importorskip("polars").DataFrame(data, strict=False)


def as_lazy(data):
    return as_polars(data).lazy()


def as_arrow(data):
    return pytest.importorskip("pyarrow").table(data)


def as_arrow_chunked(data):
    pa = pytest.importorskip("pyarrow")
    table = pa.table(data)
    return pa.concat_tables([table.slice(0, 2), table.slice(2)])


def as_arrow_of_polars(data):
    return pytest.importorskip("pyarrow").table(as_polars(data))  # string_view


def as_duckdb(data):
    duckdb = pytest.importorskip("duckdb")
    arrow = as_arrow(data)  # found by its name in the query
    assert arrow.num_rows
    return duckdb.sql("select * from arrow")


def as_dict(data):
    return data


def as_structured(data):
    columns = {name: np.array(values, dtype=object) for name, values in data.items()}
    records = np.empty(len(next(iter(columns.values()))), dtype=[(name, object) for name in columns])
    for name, values in columns.items():
        records[name] = values
    return records


BACKENDS = [
    as_pandas,
    as_pandas_nullable,
    as_pandas_arrow,
    as_pandas_object,
    as_polars,
    as_lazy,
    as_arrow,
    as_arrow_chunked,
    as_arrow_of_polars,
    as_duckdb,
    as_dict,
    as_structured,
]
backends = pytest.mark.parametrize("backend", BACKENDS)

DATA = {
    "text": ["b", None, "a", "", "b"],
    "number": [1.5, None, NAN, math.inf, -2.0],
    "integer": [3, 1, None, 2, 3],
    "flag": [True, None, False, True, True],
    "always": [True, True, True, True, True],
    "nothing": [None, None, None, None, None],
    "unicode": ["é", "z", "ß", "日本", None],
}


def same(column: Column, expected: Column) -> None:
    assert column.name == expected.name
    assert column.categories == expected.categories
    assert [type(c) for c in column.categories or ()] == [type(c) for c in expected.categories or ()]
    for left, right in ((column.codes, expected.codes), (column.values, expected.values)):
        assert (left is None) == (right is None)
        if left is not None and right is not None:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)


def categories(name, cats, codes):
    return categorical(name, cats, np.array(codes, dtype=np.int32))


def numbers(name, values):
    return Column(name, np.array(values, dtype=np.float64))


@backends
def test_every_backend_gives_the_same_columns(backend):
    table = Table.of(backend(DATA))
    assert table.n_rows == 5
    assert table.names == tuple(DATA)
    assert table.is_named
    assert table.matrix is None
    same(table.column("text"), categories("text", ("", "a", "b"), [2, -1, 1, 0, 2]))
    same(table.column("number"), numbers("number", [1.5, NAN, NAN, math.inf, -2.0]))
    same(table.column("integer"), numbers("integer", [3, 1, NAN, 2, 3]))
    same(table.column("flag"), categories("flag", (False, True), [1, -1, 0, 1, 1]))
    same(table.column("always"), categories("always", (False, True), [1] * 5))
    same(table.column("nothing"), numbers("nothing", [NAN] * 5))
    same(table.column("unicode"), categories("unicode", ("z", "ß", "é", "日本"), [2, 0, 1, 3, -1]))


# --- property: random columns against a reference in plain Python ---------------------------------


def reference(values):
    """The rules again, one value at a time."""
    present = [v for v in values if v is not None and v == v]
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in present):
        return numbers("c", [v if v is not None else NAN for v in values])
    cats = (False, True) if isinstance(present[0], bool) else tuple(sorted(set(present)))
    return categories("c", cats, [cats.index(v) if v in present else -1 for v in values])


words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=3)
columns = st.one_of(
    st.lists(st.one_of(st.none(), words), max_size=12),
    st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "nan", "None", ""])), max_size=12),
    st.lists(st.one_of(st.none(), st.booleans()), max_size=12),
    st.lists(st.one_of(st.none(), st.floats()), max_size=12),
    st.lists(st.one_of(st.none(), st.integers(-(2**53), 2**53)), max_size=12),
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=12),
)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b is not as_duckdb])
@settings(max_examples=60, deadline=None)
@given(values=columns)
def test_random_columns_agree_with_the_reference(backend, values):
    same(Table.of(backend({"c": values})).column("c"), reference(values))


@backends
def test_whole_numbers_beyond_what_floats_hold_are_rounded_in_every_form(backend):
    values = [2**62 + 1, None, 3, -(2**63), 2**53 + 1]
    same(Table.of(backend({"c": values})).column("c"), reference(values))


@settings(max_examples=60, deadline=None)
@given(values=columns, seed=st.integers(0, 100))
def test_taking_rows_then_reading_is_reading_then_taking(values, seed):
    rows = np.random.default_rng(seed).integers(0, len(values), 5) if values else np.arange(0)
    taken = Table.of({"c": values}).take(rows).column("c")
    direct = Table.of({"c": [values[i] for i in rows]}).column("c")
    if direct.is_numeric and not taken.is_numeric:  # the rows left no value: the kind is kept
        assert (taken.codes == -1).all()
    else:
        same(taken, direct)


@settings(max_examples=60, deadline=None)
@given(values=columns)
def test_encoding_in_its_own_categories_changes_nothing(values):
    column = Table.of({"c": values}).column("c")
    if not column.is_numeric:
        np.testing.assert_array_equal(column.encode(column.categories), column.codes)


# --- types of the backends --------------------------------------------------------------------------


def test_pandas_types():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "categorical": pd.Categorical(["b", "a", None], categories=["c", "b", "a"]),
            "ordered": pd.Categorical(["lo", "hi", "lo"], categories=["lo", "mid", "hi"], ordered=True),
            "numbered": pd.Categorical([10, 2, None]),
            "cut": pd.cut(pd.Series([1.0, 2.0, None]), [0, 1, 2]),
            "string": pd.array(["b", pd.NA, "a"], dtype="string"),
            "Int64": pd.array([1, pd.NA, 3], dtype="Int64"),
            "boolean": pd.array([True, pd.NA, False], dtype="boolean"),
            "Float64": pd.array([1.5, pd.NA, 3], dtype="Float64"),
            "mixed": pd.Series([1, "a", pd.NaT], dtype=object),
            "decimal": pd.Series([Decimal("1.5"), None, Decimal("NaN")], dtype=object),
            "sparse": pd.arrays.SparseArray([0.0, 1.0, 0.0]),
            "uint8": np.array([1, 2, 255], dtype=np.uint8),
        }
    )
    table = Table.of(frame)
    same(table.column("categorical"), categories("categorical", ("a", "b"), [1, 0, -1]))
    same(table.column("ordered"), categories("ordered", ("hi", "lo"), [1, 0, 1]))
    same(table.column("numbered"), categories("numbered", (2, 10), [1, 0, -1]))
    same(table.column("cut"), categories("cut", ("(0, 1]", "(1, 2]"), [0, 1, -1]))
    same(table.column("string"), categories("string", ("a", "b"), [1, -1, 0]))
    same(table.column("Int64"), numbers("Int64", [1, NAN, 3]))
    same(table.column("boolean"), categories("boolean", (False, True), [1, -1, 0]))
    same(table.column("Float64"), numbers("Float64", [1.5, NAN, 3]))
    same(table.column("mixed"), categories("mixed", (1, "a"), [0, 1, -1]))
    same(table.column("decimal"), numbers("decimal", [1.5, NAN, NAN]))
    same(table.column("sparse"), numbers("sparse", [0, 1, 0]))
    same(table.column("uint8"), numbers("uint8", [1, 2, 255]))


def test_pandas_arrow_types():
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    arrow = {
        "dictionary": (["b", None, "a"], pa.dictionary(pa.int32(), pa.string())),
        "large": (["b", None, "a"], pa.large_string()),
        "null": ([None] * 3, pa.null()),
        "decimal": ([Decimal("1.5"), None, Decimal("2.5")], pa.decimal128(5, 2)),
    }
    table = Table.of(pd.DataFrame({k: pd.array(v, dtype=pd.ArrowDtype(t)) for k, (v, t) in arrow.items()}))
    same(table.column("dictionary"), categories("dictionary", ("a", "b"), [1, -1, 0]))
    same(table.column("large"), categories("large", ("a", "b"), [1, -1, 0]))
    same(table.column("null"), numbers("null", [NAN] * 3))
    same(table.column("decimal"), numbers("decimal", [1.5, NAN, 2.5]))


def test_polars_types():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "categorical": pl.Series(["b", None, "a"], dtype=pl.Categorical),
            "enum": pl.Series(["b", None, "a"], dtype=pl.Enum(["c", "b", "a"])),
            "decimal": pl.Series([Decimal("1.5"), None, Decimal("2.5")]),
            "object": pl.Series([1, "a", None], dtype=pl.Object),
            "float32": pl.Series([1.5, None, NAN], dtype=pl.Float32),
            "uint8": pl.Series([1, None, 255], dtype=pl.UInt8),
        }
    )
    table = Table.of(frame)
    same(table.column("categorical"), categories("categorical", ("a", "b"), [1, -1, 0]))
    same(table.column("enum"), categories("enum", ("a", "b"), [1, -1, 0]))
    same(table.column("decimal"), numbers("decimal", [1.5, NAN, 2.5]))
    same(table.column("object"), categories("object", (1, "a"), [0, 1, -1]))
    same(table.column("float32"), numbers("float32", [1.5, NAN, NAN]))
    same(table.column("uint8"), numbers("uint8", [1, NAN, 255]))


def test_arrow_types():
    pa = pytest.importorskip("pyarrow")
    parts = [pa.array(["b", None]).dictionary_encode(), pa.array(["a", "b"]).dictionary_encode()]
    unused = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 0]), ["x", "y", "never"])
    frame = pa.table(
        {
            "chunks": pa.chunked_array(parts),
            "unused": unused,
            "numbered": pa.array([10, 2, None, 10]).dictionary_encode(),
            "large": pa.array(["b", None, "a", "a"], pa.large_string()),
            "view": pa.array(["b", None, "a", "a"], pa.string_view()),
            "half": pa.array(np.array([1, 2, 3, 4], dtype=np.float16)),
        }
    )
    table = Table.of(frame)
    same(table.column("chunks"), categories("chunks", ("a", "b"), [1, -1, 0, 1]))
    same(table.column("unused"), categories("unused", ("x", "y"), [1, -1, 0, 0]))
    same(table.column("numbered"), categories("numbered", (2, 10), [1, 0, -1, 1]))
    same(table.column("large"), categories("large", ("a", "b"), [1, -1, 0, 0]))
    same(table.column("view"), categories("view", ("a", "b"), [1, -1, 0, 0]))
    same(table.column("half"), numbers("half", [1, 2, 3, 4]))


def test_a_column_without_a_value_is_numeric_whatever_its_type():
    pl = pytest.importorskip("polars")
    for dtype in (pl.String, pl.Boolean, pl.Categorical, pl.Int8, pl.Null):
        table = Table.of(pl.DataFrame({"c": pl.Series([None, None], dtype=dtype)}))
        same(table.column("c"), numbers("c", [NAN, NAN]))


def test_series_are_one_column():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for series in (pd.Series([1, 2], name="age"), pl.Series("age", [1, 2])):
        assert Table.of(series).names == ("age",)
        assert Table.of(series).is_named
    for series in (pd.Series([1, 2]), pl.Series([1, 2])):
        assert Table.of(series).names == ("x0",)
        assert not Table.of(series).is_named


def test_integer_names_win_over_positions():
    pd = pytest.importorskip("pandas")
    table = Table.of(pd.DataFrame({3: [1.0], 0: [2.0], "a": [3.0]}))
    assert table.names == ("3", "0", "a")
    assert table.column(3).values == [1.0]
    assert table.column(0).values == [2.0]
    assert table.column(2).values == [3.0]
    assert table.column(np.int64(2)).name == "a"


def test_pandas_index_and_column_levels_do_not_matter():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame([[1, 2], [3, 4]], columns=pd.MultiIndex.from_tuples([("a", "u"), ("a", "v")]))
    frame.index = [7, 7]
    table = Table.of(frame)
    assert table.names == ("('a', 'u')", "('a', 'v')")
    assert table.numeric([0, 1]).tolist() == [[1, 2], [3, 4]]


# --- arrays, lists, dicts ---------------------------------------------------------------------------


def test_arrays():
    X = np.arange(6).reshape(3, 2)
    table = Table.of(X)
    assert (table.names, table.n_rows, table.is_named) == (("x0", "x1"), 3, False)
    same(table.column("x1"), numbers("x1", [1, 3, 5]))
    same(table.column(1), numbers("x1", [1, 3, 5]))
    assert table.column(1).values.flags.c_contiguous
    assert Table.of(np.array([1.0, 2.0])).numeric([0]).tolist() == [[1], [2]]
    assert Table.of(np.zeros((0, 2))).n_rows == 0
    assert Table.of(np.zeros((3, 0))).n_rows == 3
    same(Table.of(np.array(["b", "a"])).column(0), categories("x0", ("a", "b"), [1, 0]))
    same(Table.of(np.array([[True], [True]])).column(0), categories("x0", (False, True), [1, 1]))


def test_numpy_strings_of_variable_width():
    dtype = pytest.importorskip("numpy.dtypes").StringDType(na_object=None)
    same(Table.of(np.array(["b", None], dtype=dtype)).column(0), categories("x0", ("b",), [0, -1]))


def test_object_arrays_are_read_column_by_column():
    X = np.array([[1, "b", True, None], [None, "a", None, None], [2.5, NAN, False, None]], dtype=object)
    table = Table.of(X)
    same(table.column(0), numbers("x0", [1, NAN, 2.5]))
    same(table.column(1), categories("x1", ("a", "b"), [1, 0, -1]))
    same(table.column(2), categories("x2", (False, True), [1, -1, 0]))
    same(table.column(3), numbers("x3", [NAN] * 3))


def test_pandas_missing_values_in_bare_object_arrays():
    pd = pytest.importorskip("pandas")
    values = np.array(["a", pd.NA, pd.NaT, None, np.float64(NAN), np.datetime64("NaT")], dtype=object)
    same(Table.of(values).column(0), categories("x0", ("a",), [0, -1, -1, -1, -1, -1]))
    same(Table.of([[pd.NA], [2]]).column(0), numbers("x0", [NAN, 2]))


def test_mixed_objects_are_sorted_by_type_then_value():
    class Colour(str, Enum):  # noqa: UP042 - its str() is not its value
        RED = "red"

    values = [10, "b", None, 2, True, "a", np.str_("b"), Colour.RED, Decimal("2.5"), np.int64(2), (1, 2)]
    column = Table.of({"c": np.array([*values, None], dtype=object)[:-1]}).column("c")
    assert column.categories == (True, 2.5, 2, 10, "(1, 2)", "a", "b", "red")
    assert column.codes.tolist() == [3, 6, -1, 2, 0, 5, 6, 7, 1, 2, 4]
    assert {type(c) for c in column.categories} == {bool, float, int, str}


def test_masked_values_are_missing():
    table = Table.of(np.ma.array([[1, 2], [3, 4]], mask=[[0, 1], [0, 0]]))
    assert table.numeric([0, 1])[1].tolist() == [3, 4]
    assert np.isnan(table.column(1).values[0])
    same(Table.of({"a": np.ma.array(["b", "c"], mask=[1, 0])}).column("a"), categories("a", ("c",), [-1, 0]))


def test_structured_arrays():
    records = np.array([(1, "b", True), (2, "a", False)], dtype=[("age", "i4"), ("city", "U3"), ("m", "?")])
    for X in (records, records.view(np.recarray), np.ma.array(records)):
        table = Table.of(X)
        assert table.is_named
        same(table.column("age"), numbers("age", [1, 2]))
        same(table.column("city"), categories("city", ("a", "b"), [1, 0]))
        same(table.column("m"), categories("m", (False, True), [1, 0]))


def test_lists():
    table = Table.of([[1, "b"], (2, None)])
    assert table.names == ("x0", "x1")
    same(table.column(0), numbers("x0", [1, 2]))
    same(table.column(1), categories("x1", ("b",), [0, -1]))
    same(Table.of(["b", "a"]).column(0), categories("x0", ("a", "b"), [1, 0]))
    same(Table.of([np.array([1.0, 2.0])]).column(1), numbers("x1", [2]))
    assert Table.of([]).n_rows == 0


def test_dicts_of_arrays_and_series():
    pl = pytest.importorskip("polars")
    table = Table.of({"a": np.array([1, 2]), 7: pl.Series(["x", None]), "l": [True, False]})
    assert table.names == ("a", "7", "l")
    same(table.column(7), categories("7", ("x",), [0, -1]))
    assert Table.of({}).n_rows == 0


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
def test_sparse(kind):
    dense = np.array([[0, 1.5, 0], [2, 0, 0]])
    table = Table.of(kind(dense))
    assert (table.names, table.n_rows, table.is_named) == (("x0", "x1", "x2"), 2, False)
    assert table.matrix.format == "csr"
    np.testing.assert_array_equal(table.matrix.toarray(), dense)
    same(table.column(1), numbers("x1", [1.5, 0]))
    np.testing.assert_array_equal(table.numeric(["x2", 0]), dense[:, [2, 0]])
    taken = table.take(np.array([1, 1]))
    np.testing.assert_array_equal(taken.matrix.toarray(), dense[[1, 1]])
    assert Table.of(kind(dense.astype(bool))).column(0).is_numeric


def test_sparse_of_csr_is_not_copied():
    matrix = sparse.csr_array(np.array([[0.0, 1.5], [2.5, 0.0], [0.0, 3.5]]))
    assert Table.of(matrix).matrix.data is matrix.data


# --- the table ---------------------------------------------------------------------------------------


def test_a_table_passes_through_and_columns_are_cached():
    table = Table.of({"a": ["x"]})
    assert Table.of(table) is table
    assert table.column("a") is table.column(0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 126), max_size=70))
def test_bytes_are_counted_two_at_a_time(codes):
    unsigned = np.array(codes, dtype=np.int8).view(np.uint8)
    assert frames.count_bytes(unsigned).tolist() == np.bincount(unsigned, minlength=256).tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 7), max_size=9), st.sampled_from([np.int8, np.int16, np.intp]))
def test_a_category_is_one_that_occurs(places, kind):
    """-1 and the place after the last are missing."""
    column = frames.categorical("c", "abcdefg", np.array(places, dtype=kind))
    assert column.categories == tuple(sorted({"abcdefg"[place] for place in places if 0 <= place < 7}))


def test_many_bytes_are_counted_in_pieces():
    many = np.random.default_rng(0).integers(0, 7, 2 * frames.CACHE + 3).astype(np.uint8)
    assert frames.count_bytes(many).tolist() == np.bincount(many, minlength=256).tolist()


def test_categories_of_polars_may_count_those_of_others():
    pl = pytest.importorskip("polars")
    others = pl.Series(["x", "y", "z"], dtype=pl.Categorical)  # takes the first numbers
    several = pl.concat([pl.Series(["b", "a"]), pl.Series([None, "b", "c"])]).cast(pl.Categorical)
    column = Table.of(pl.DataFrame({"c": several})).column("c")
    same(column, categories("c", ("a", "b", "c"), [1, 0, -1, 1, 2]))
    assert len(others) == 3
    empty = Table.of(pl.DataFrame({"c": pl.Series([None, None], dtype=pl.Categorical)})).column("c")
    same(empty, numbers("c", [NAN, NAN]))
    assert Table.of(pl.DataFrame({"c": pl.Series([], dtype=pl.Categorical)})).column("c").is_numeric


def test_take():
    table = Table.of({"c": ["b", None, "a", "c"], "n": [1, 2, None, 4], "f": [True, True, False, None]})
    taken = table.take(np.array([3, 0, 0, 1]))
    assert (taken.n_rows, taken.names, taken.is_named) == (4, ("c", "n", "f"), True)
    same(taken.column("c"), categories("c", ("b", "c"), [1, 0, 0, -1]))
    same(taken.column("n"), numbers("n", [4, 1, 1, 2]))
    same(taken.column("f"), categories("f", (False, True), [-1, 1, 1, 1]))
    same(taken.take(np.array([1])).column("c"), categories("c", ("b",), [0]))
    same(table.take(np.array([1])).column("c"), categories("c", (), [-1]))
    assert table.take(np.array([True, False, False, True])).n_rows == 2
    with pytest.raises(IndexError):
        table.take(np.array([4]))


def test_encode_missing_and_unseen():
    column = Table.of({"c": ["b", None, "z", "a"]}).column("c")
    assert column.encode(("a", "b")).tolist() == [1, -1, -2, 0]
    assert column.encode(()).tolist() == [-2, -1, -2, -2]
    assert column.encode(("a", "b")).dtype == np.int32


def test_encode_compares_by_value():
    number = Table.of({"c": [1, 0, None, 0.5, math.inf]}).column("c")
    assert number.encode((False, True)).tolist() == [1, 0, -1, -2, -2]
    assert number.encode((0, 1)).tolist() == [1, 0, -1, -2, -2]
    assert number.encode(("0", "1")).tolist() == [-2, -2, -1, -2, -2]
    flag = Table.of({"c": [True, False, None]}).column("c")
    assert flag.encode((0, 1, 2)).tolist() == [1, 0, -1]
    assert Table.of({"c": [None, None]}).column("c").encode(("a",)).tolist() == [-1, -1]
    assert Table.of({"c": np.zeros(0)}).column("c").encode(("a",)).tolist() == []


def test_numeric():
    table = Table.of({"a": [1, None], "b": [math.inf, 2.5], "c": ["x", "y"], "f": [True, False]})
    matrix = table.numeric(["b", 0])
    assert matrix.dtype == np.float64
    np.testing.assert_array_equal(matrix, [[math.inf, 1], [2.5, NAN]])
    assert table.numeric([]).shape == (2, 0)
    for name in ("c", "f"):
        with pytest.raises(InvalidInput, match=rf"Column '{name}' of X is not numeric: it holds"):
            table.numeric(["a", name])


def test_nothing_is_written_to():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": ["x", None], "b": [1.0, NAN], "c": pd.Categorical(["u", "v"])})
    before = frame.copy()
    table = Table.of(frame)
    for name in table.names:
        table.column(name).take(np.array([1]))
    pd.testing.assert_frame_equal(frame, before)


# --- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("X", [None, 3, 3.5, "text", object(), np.float64(3), {1, 2}, b"bytes", len])
def test_what_is_no_table_is_refused(X):
    with pytest.raises(InvalidInput, match=r"X is [\w.]*, which can't be read; give a data frame .*list"):
        Table.of(X)


@pytest.mark.parametrize("shape", [(), (2, 2, 2)])
def test_arrays_of_other_dimensions_are_refused(shape):
    with pytest.raises(InvalidInput, match=r"X is an array of shape .* only one or two dimensions"):
        Table.of(np.zeros(shape))


def test_nested_lists_are_refused():
    with pytest.raises(InvalidInput, match=r"shape \(1, 1, 1\)"):
        Table.of([[[1]]])


@pytest.mark.parametrize("X", [[[1, 2], [3]], [[1], 2], [np.zeros((2, 2)), np.zeros((2, 3))]])
def test_ragged_rows_are_refused(X):
    with pytest.raises(InvalidInput, match="rows of X differ in length"):
        Table.of(X)


def test_sparse_errors():
    with pytest.raises(InvalidInput, match=r"sparse with shape \(2, 2\) and type complex128"):
        Table.of(sparse.csr_array(np.eye(2) * 1j))
    with pytest.raises(InvalidInput, match=r"sparse with shape \(2,\)"):
        Table.of(sparse.coo_array(np.ones(2)))


def test_dict_errors():
    with pytest.raises(InvalidInput, match=r"differ in length: \('a', 1\), \('b', 2\);"):
        Table.of({"a": [1], "b": [1, 2]})
    with pytest.raises(InvalidInput, match=r"Column 'a' of X is int; give an array"):
        Table.of({"a": 1})
    with pytest.raises(InvalidInput, match=r"Column 'a' of X has shape \(2, 2\)"):
        Table.of({"a": np.eye(2)})
    with pytest.raises(InvalidInput, match="several columns named '1'"):
        Table.of({"1": [1], 1: [2]})


def test_duplicate_names_are_refused():
    pd, pa, pl = (pytest.importorskip(name) for name in ("pandas", "pyarrow", "polars"))
    with pytest.raises(InvalidInput, match=r"(?s)several columns of the same name; rename them.*'a'"):
        Table.of(pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(InvalidInput, match="several columns named 'a'; rename them"):
        Table.of(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(InvalidInput, match="several columns named '3'; rename them"):
        Table.of(pd.DataFrame([[1, 2]], columns=[3, "3"]))
    lazy = pl.LazyFrame({"a": [1]})
    with pytest.raises(InvalidInput, match=r"(?s)several columns of the same name; rename them.*'a'"):
        Table.of(pl.concat([lazy, lazy], how="horizontal"))


def test_unknown_columns():
    table = Table.of({f"column{i}": [i] for i in range(12)})
    with pytest.raises(MissingColumn, match=r"no column 'colunm3'; it has 'column0', .* 'column9' and 2 more"):
        table.column("colunm3")
    with pytest.raises(MissingColumn, match="Did you mean 'column3'"):
        table.column("colunm3")
    for position in (12, -1, 1.5, None):
        with pytest.raises(MissingColumn, match=f"no column {position};"):
            table.column(position)
    with pytest.raises(MissingColumn, match="it has none"):
        Table.of({}).column("a")
    with pytest.raises(MissingColumn):
        table.numeric(["absent"])
    with pytest.raises(KeyError):
        Table.of(sparse.eye_array(2)).numeric(["absent"])


REFUSED = {
    "duration": dt.timedelta(1),
    "time": dt.time(1),
    "list": [1, 2],
    "struct": {"a": 1},
    "binary": b"a",
}


@backends
@pytest.mark.parametrize("kind", REFUSED)
def test_types_that_are_refused(backend, kind):
    table = Table.of(backend({"fine": [1.0, 2.0], "c": [REFUSED[kind], None]}))
    assert table.column("fine").is_numeric
    with pytest.raises(InvalidInput, match=r"Column 'c' of X has .*; convert it to .* name the columns to use"):
        table.column("c")


@pytest.mark.parametrize(
    "values",
    [
        np.array([1], dtype="timedelta64[D]"),
        np.array([1j]),
        np.array([b"a"]),
        np.array([1j, "a"], dtype=object),
        np.array([np.datetime64("2020-01-01", "ns"), "a"], dtype=object),
        np.array([{}, "a"], dtype=object),
        [{"a": 1}, {"a": 2}],
    ],
)
def test_arrays_that_are_refused(values):
    with pytest.raises(InvalidInput, match=r"Column 'x0' of X has .*; convert it to a number or a string"):
        Table.of(values).column(0)


# --- dates -------------------------------------------------------------------------------------------

MOMENTS = [dt.datetime(2020, 1, 1, 12, 30, 0, 250000), None, dt.datetime(1950, 6, 1)]
SECONDS = [1577881800.25, NAN, -618105600.0]
DAYS = [dt.date(2020, 1, 1), None, dt.date(1950, 6, 1)]
DAY_SECONDS = [1577836800.0, NAN, -618105600.0]


def check_dates(values, expected):
    column = Table.of({"c": values}).column("c")
    assert column.is_numeric
    assert column.is_date
    np.testing.assert_array_equal(column.values, expected)
    some = column.take(np.array([2, 0, 1]))
    assert some.is_date
    np.testing.assert_array_equal(some.values, np.array(expected)[[2, 0, 1]])


@backends
@pytest.mark.parametrize(("given", "expected"), [(MOMENTS, SECONDS), (DAYS, DAY_SECONDS)])
def test_dates_are_seconds_since_1970(backend, given, expected):
    column = Table.of(backend({"c": given})).column("c")
    assert column.is_date
    np.testing.assert_array_equal(column.values, expected)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_dates_of_any_unit_and_zone_are_the_same_moments(unit):
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    naive = np.array(MOMENTS, dtype=f"datetime64[{unit}]")
    in_pandas, in_polars = pd.Series(naive), pl.Series(MOMENTS, dtype=pl.Datetime(unit))
    check_dates(naive, SECONDS)
    check_dates(in_pandas, SECONDS)
    check_dates(in_pandas.astype("category"), SECONDS)
    check_dates(in_polars, SECONDS)
    check_dates(pa.chunked_array([pa.array(MOMENTS, pa.timestamp(unit))]), SECONDS)
    for zone in ("Europe/Rome", "America/New_York"):
        aware = in_pandas.dt.tz_localize("UTC").dt.tz_convert(zone)
        check_dates(aware, SECONDS)
        check_dates(aware.astype(object), SECONDS)
        check_dates([None if value is pd.NaT else value.to_pydatetime() for value in aware], SECONDS)
        check_dates(in_polars.dt.replace_time_zone("UTC").dt.convert_time_zone(zone), SECONDS)
        check_dates(pa.chunked_array([pa.array(MOMENTS, pa.timestamp(unit, zone))]), SECONDS)


def test_arrow_dates_of_64_bits_and_objects_of_numpy():
    pa = pytest.importorskip("pyarrow")
    check_dates(pa.chunked_array([pa.array(DAYS, pa.date64())]), DAY_SECONDS)
    check_dates(np.array([np.datetime64("2020-01-01"), np.datetime64("NaT"), DAYS[2]], dtype=object), DAY_SECONDS)
    check_dates(np.ma.masked_array(np.array(DAYS, dtype="M8[D]"), [0, 1, 0]), DAY_SECONDS)


def test_a_column_of_missing_dates_is_any_missing_column():
    column = Table.of({"c": np.full(2, "NaT", dtype="M8[D]")}).column("c")
    assert np.isnan(column.values).all()
    assert not column.is_date


def test_arrays_need_no_data_frame_library(run_python):
    code = (
        "import sys, numpy as np, scipy.sparse as sp; from lowcal.data.frames import Table;"
        "Table.of(np.eye(2)).column(0); Table.of({'a': ['x']}).column('a'); Table.of([[1]]).column(0);"
        "Table.of(sp.eye_array(2)).column(0);"
        "print([m for m in ('narwhals', 'pandas', 'polars', 'pyarrow') if m in sys.modules])"
    )
    assert run_python("-c", code).stdout.strip() == "[]"


def test_categories_of_pandas_are_read_as_they_are_held():
    """Unsorted, unused and missing categories; truth values and numbers equal to them; a part without any."""
    pd = pytest.importorskip("pandas")
    values = pd.Series(["b", None, "a", "b"], dtype=pd.CategoricalDtype(["z", "b", "a"]))
    column = Table.of({"c": values}).column("c")
    assert (column.categories, column.codes.tolist()) == (("a", "b"), [1, -1, 0, 1])
    assert column.look_up({"b": 7, "z": 8}, 5, 6, np.uint8).tolist() == [7, 5, 6, 7]
    taken = column.take(np.array([1, 2]))
    assert (taken.categories, taken.codes.tolist(), taken.codes.dtype) == (("a",), [-1, 0], np.int32)
    assert column.take(np.array([1])).categories == ()
    assert column.take(np.array([3])).take(np.array([0])).encode(("b",)).tolist() == [0]
    truth = Table.of({"c": pd.Series([True, None, True], dtype=pd.CategoricalDtype([True]))}).column("c")
    assert (truth.categories, truth.codes.tolist()) == ((False, True), [1, -1, 1])
    assert truth.take(np.array([1])).categories == (False, True)
    assert truth.encode((0, 1)).tolist() == [1, -1, 1]


def test_columns_of_text_are_sorted_only_when_asked():
    column = Table.of({"c": np.array(["b", "a", "b"], dtype=object)}).column("c")
    assert column.encode(("a", "b")).tolist() == [1, 0, 1]
    assert not {"categories", "codes"} & set(vars(column))
    assert column.categories == ("a", "b")
    assert "codes" not in vars(column)


def test_columns_named_like_positions_stay_where_they_are_when_others_are_joined():
    table = Table.of({"1": [10.0], "0": [20.0]}).joined(["score"], np.array([[0.5]]))
    assert [table.column(name).values.tolist() for name in ("1", "0", "score")] == [[10.0], [20.0], [0.5]]
