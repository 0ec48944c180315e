"""Tables in files: both readers agree, columns stay narrow, every odd file is told in a sentence, writing is whole."""

import csv
import errno
import gzip
import io
import json
import os
import re
import stat
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowcal.files.columns as columns
import lowcal.files.delimited as delimited
import lowcal.files.writing as writing
from lowcal.errors import InvalidInput, MissingColumn, MissingExtra
from lowcal.files.atomic import check_writable
from lowcal.files.columns import Sample, Wanted, gather
from lowcal.files.fields import MISSING, ArrowWritten, Computed, Kind, NotANumber, Typed, Written, wider
from lowcal.files.opening import find_column, open_table
from lowcal.files.writing import form_of, join_fields, kinds_of, open_bytes, open_writer

ENGINES = ("python", "arrow")


def texts(path, engine, **options):
    """All fields of a text file as text, row by row."""
    with open_table(str(path), engine=engine, **options) as source:
        everything = range(len(source.names))
        rows = [
            row
            for batch in source.batches(everything)
            for row in zip(*(field.texts(".") for field in batch.fields), strict=True)
        ]
        return source.names, rows


def read(path, wanted, engine=None, **options):
    keys = ("most_rows", "seed", "check", "tell")
    given = {key: options.pop(key) for key in keys if key in options}
    with open_table(str(path), engine=engine, **options) as source:
        return gather(source, [one if isinstance(one, Wanted) else Wanted(one) for one in wanted], **given)


def values(narrow):
    """A gathered column as Python values, None for missing."""
    if narrow.kind is Kind.NUMBER:
        return [None if v != v else v for v in narrow.values.astype(float).tolist()]
    return [None if code < 0 else narrow.distinct[code] for code in narrow.values.tolist()]


@pytest.fixture
def write(tmp_path):
    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# --- text files, as programs and spreadsheets write them -----------------------------------------------------

SHEETS = {
    "plain": "a,b\n1,x\n2,y\n",
    "mark": "\ufeffa,b\n1,x\n2,y\n",
    "semicolons": "a;b\n1;x\n2;y\n",
    "tabs": "a\tb\n1\tx\n2\ty\n",
    "bars": "a|b\n1|x\n2|y\n",
    "line ends": "a,b\r\n1,x\r\n2,y\r\n",
    "old line ends": "a,b\r1,x\r2,y\r",
    "no last line end": "a,b\n1,x\n2,y",
    "empty lines": "\na,b\n\n1,x\n2,y\n\n\n",
    "quotes": '"a","b"\n"1","x"\n"2","y"\n',
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", SHEETS)
def test_a_sheet_is_read_however_it_is_written(write, kind, engine):
    assert texts(write(SHEETS[kind]), engine) == (("a", "b"), [("1", "x"), ("2", "y")])


@pytest.mark.parametrize("engine", ENGINES)
def test_quoted_separators_quotes_and_line_ends_are_part_of_a_value(write, engine):
    path = write('name,note\n"Smith, J.","said ""no""\nand left"\n5" pipe,ok\n')
    assert texts(path, engine)[1] == [("Smith, J.", 'said "no"\nand left'), ('5" pipe', "ok")]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("encoding", "options"), [("utf-16", {}), ("utf-8-sig", {}), ("latin-1", {"encoding": "latin-1"})]
)
def test_encodings(write, engine, encoding, options):
    assert texts(write("ort;p\nZürich;1\n".encode(encoding)), engine, **options)[1] == [("Zürich", "1")]


@pytest.mark.parametrize("engine", ENGINES)
def test_packed_files_are_read_and_damaged_ones_told(write, engine):
    packed = gzip.compress(b"a,b\n" + b"1,x\n" * 50_000)
    assert len(texts(write(packed, "table.csv.gz"), engine)[1]) == 50_000
    with pytest.raises(InvalidInput, match=r"cut\.csv\.gz is damaged or cut short"):
        texts(write(packed[:-40], "cut.csv.gz"), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_separator_can_be_given_and_tsv_tells_its_own(write, engine):
    assert texts(write("a b\n1 2\n"), engine, separator=" ")[0] == ("a", "b")
    assert texts(write("a,c\tb\n1\t2\n", "t.tsv"), engine)[0] == ("a,c", "b")
    assert texts(write("a,c\tb\n1\t2\n"), engine, form="tsv")[0] == ("a,c", "b")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_comma_in_a_name_does_not_hide_the_separator(write, engine):
    assert texts(write("income, yearly;sex\n1;2\n3;4\n5;6\n"), engine)[0] == ("income, yearly", "sex")


def test_what_arrow_can_not_read_is_read_on_by_python(write, monkeypatch):
    monkeypatch.setattr(delimited, "BATCH_BYTES", 24)
    rows = [(str(j), f"r{j}") for j in range(30)]
    rows[20] = ("20", "long" * 100)  # longer than any block
    path = write("a,b\n" + "".join(f"{a},{b}\n" for a, b in rows))
    assert texts(path, "arrow") == (("a", "b"), rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_decimal_comma_does_not_hide_the_separator(write, engine):
    assert texts(write("a;b\n0,5;1,5\n0,7;2,5\n"), engine)[0] == ("a", "b")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n1,2\n3\n", "Row 2 of .* has 1 value, but the header names 2 columns"),
        ("a,b\n1,2\n\n3,4,5\n", "Row 2 of .* has 3 values, but the header names 2 columns"),
        ("a,b,a\n1,2,3\n", "names 'a' more than once"),
        (
            "a,b\n1,\xe9\n".encode("latin-1"),
            "not text in the encoding UTF-8; give its encoding, such as --encoding latin-1",
        ),
        (b"PK\x03\x04....", "is a spreadsheet or an archive"),
    ],
)
@pytest.mark.parametrize("separator", [None, ","])
def test_what_is_wrong_with_a_text_file_is_said(write, engine, content, message, separator):
    with pytest.raises(InvalidInput, match=message):
        texts(write(content), engine, separator=separator)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_field_without_an_end_is_told_with_its_row(write, engine, monkeypatch):
    """Also one so long that the rest of the file is not read, which may hold a quote."""
    monkeypatch.setattr(delimited, "LONGEST", 1000)
    for rest in ("x" * 2000 + "\n", "7,8\n" * 1000, "7,8\n" * 1000 + '5" pipe,1\n'):
        with pytest.raises(InvalidInput, match=r"Row 2 of .* begins a value with a quote that is never closed"):
            texts(write('a,b\n1,2\n3,"' + rest), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("separator", [None, ","])
def test_lines_and_values_may_be_longer_than_any_open_quote(write, engine, separator, monkeypatch):
    monkeypatch.setattr(delimited, "LONGEST", 1000)
    monkeypatch.setattr(delimited, "BATCH_BYTES", 2000)
    long, n = "x" * 5000, 2000
    several_lines = f"{long}\n{long}"
    rows = [("1", long), ("2", several_lines), ("3", "end")]
    found = texts(write(f'a,b\n1,{long}\n2,"{several_lines}"\n3,end\n'), engine, separator=separator)
    assert found[1] == rows
    wide = ",".join(f"c{k}" for k in range(n)), ",".join(["1"] * n)
    assert texts(write("\n".join(wide)), engine, separator=separator)[1] == [("1",) * n]


def test_lines_of_many_megabytes_are_read(write):
    long = "x" * (delimited.LONGEST + 1)
    assert texts(write(f"a,b\n1,{long}\n"), "python")[1] == [("1", long)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("asked", [[0, 1], [0], [1]])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_quote_that_is_never_closed_does_not_swallow_the_rows_after_it(tmp_path, engine, asked, name):
    content = ("a,b\n1,2\n3,4\n" + '5,"6\n' + "7,8\n" * 1000).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with (
        open_table(str(path), engine=engine) as source,
        pytest.raises(InvalidInput, match=rf"Row 3 of .*{name} begins a value with a quote that is never closed"),
    ):
        list(source.batches(asked))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("row", ['5" pipe,1', 'a,"b""c"', '"a""",1', '"a"b,5"', "\u2222,\u2200"])
def test_other_odd_quotes_are_text(write, engine, encoding, row):
    _, found = texts(write(f"a,b\n1,2\n{row}\n3,4\n".encode(encoding)), engine, encoding=encoding)
    assert found == [("1", "2"), tuple(next(csv.reader([row]))), ("3", "4")]


@pytest.mark.parametrize("engine", ENGINES)
def test_long_texts_are_read(write, engine):
    long = "x" * 200_000
    assert texts(write(f"a,b\n1,{long}\n"), engine)[1] == [("1", long)]


def test_paths_that_are_no_files(tmp_path):
    (tmp_path / "adult.csv").write_text("a\n1\n")
    for path, message in [
        (tmp_path, "is a folder"),
        (tmp_path / "adlt.csv", r"There is no file .*adlt\.csv\. Did you mean 'adult\.csv'"),
        (tmp_path / "no" / "x.csv", r"There is no file"),
    ]:
        with pytest.raises(InvalidInput, match=message), open_table(str(path)):
            pass
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(InvalidInput, match="is JSON"), open_table(str(tmp_path / "x.json")):
        pass


def test_an_unreadable_file_is_told(write, monkeypatch):
    path = write("a\n1\n")
    monkeypatch.setattr("pathlib.Path.open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(InvalidInput, match="can't be read: Permission denied"), open_table(str(path)):
        pass


def test_a_folder_without_access_is_told(write, monkeypatch):
    path = write("a\n1\n")
    monkeypatch.setattr(
        "pathlib.Path.exists", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    with pytest.raises(InvalidInput, match="can't be read: Permission denied"), open_table(str(path)):
        pass


def test_a_missing_column_names_the_nearest(write):
    with (
        open_table(str(write("age,race\n1,2\n"))) as source,
        pytest.raises(MissingColumn, match=r"has no column 'aeg'; it has 'age', 'race'\. Did you mean 'age'\?"),
    ):
        find_column(source, "aeg")


cells = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=6)


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 4).flatmap(lambda k: st.lists(st.lists(cells, min_size=k, max_size=k), min_size=1, max_size=8)))
def test_both_readers_read_the_same_fields(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, quoting=csv.QUOTE_ALL)
        table.writerow([f"c{j}" for j in range(len(rows[0]))])
        table.writerows(rows)
    plain, arrow = (texts(path, engine, separator=",") for engine in ENGINES)
    assert plain == arrow
    assert plain[1] == [tuple(row) for row in rows]


# --- what a value is -------------------------------------------------------------------------------------------

number_like = st.sampled_from(
    [*sorted(MISSING), " 1", "+1", "1.", ".5", "1e3", "1e400", "-inf", "Infinity", "1_0", "0x1"]
)
number_like |= st.sampled_from(
    ["007", "-0", "0", "true", "1,5", "\u0661", "-nan", "1e", "--1", "1.2.3", "\u00a01", "12345678901234567890"]
)
number_like |= st.floats(allow_nan=False).map(repr) | st.integers().map(str)


@settings(max_examples=300, deadline=None)
@given(st.lists(number_like, min_size=1, max_size=4), st.sampled_from([".", ","]))
def test_both_readers_agree_on_numbers_and_kinds(given_texts, decimal):
    plain, arrow = Written(given_texts, decimal), ArrowWritten(pa.array(given_texts, pa.string()), decimal)
    assert plain.kind() == arrow.kind()
    assert plain.has_names() == arrow.has_names()
    results = []
    for field in (plain, arrow):
        try:
            results.append(field.numbers().tolist())
        except NotANumber as error:
            results.append((error.place, error.text))
    assert repr(results[0]) == repr(results[1])


def test_numbers_are_what_python_reads():
    given_texts = ["0.1", "1e-300", "123456789.123456789", "-0.0", "NA", " 7 "]
    expected = [float(text) if text != "NA" else np.nan for text in given_texts]
    for field in (Written(given_texts), ArrowWritten(pa.array(given_texts))):
        np.testing.assert_array_equal(field.numbers(), expected)
    np.testing.assert_array_equal(Written(["0,25", "1"], ",").numbers(), [0.25, 1.0])


@pytest.mark.parametrize(
    ("given_texts", "kind"),
    [
        (["1", "-20", ""], Kind.WHOLE),
        (["1", "2.5"], Kind.NUMBER),
        (["1", "007"], Kind.TEXT),
        (["0.5", "00.5"], Kind.TEXT),
        (["0", "0.5", "1e5"], Kind.NUMBER),
        (["True", "false", "NA"], Kind.BOOLEAN),
        (["true", "1"], Kind.TEXT),
        (["a", "NA"], Kind.TEXT),
        (["", "NaN"], None),
        (["1529984736251830000", "-9223372036854775808"], Kind.WHOLE),
        (["9223372036854775808"], Kind.NUMBER),
        (["99999999999999999999"], Kind.NUMBER),
    ],
)
def test_the_kind_of_a_column_is_the_narrowest_that_holds_it(given_texts, kind):
    assert Written(given_texts).kind() is kind
    assert ArrowWritten(pa.array(given_texts)).kind() is kind


def test_kinds_of_batches_join():
    kinds = [None, *Kind]
    for one in kinds:
        assert wider(one, one) is one
        for other in kinds:
            assert wider(one, other) is wider(other, one)
            for third in kinds:
                assert wider(wider(one, other), third) is wider(one, wider(other, third))


def test_objects_are_python_values_of_their_kind():
    for field in (Written(["1", "NA"]), ArrowWritten(pa.array(["1", "NA"]))):
        assert field.objects(Kind.WHOLE) == [1, None]
        assert [type(v) for v in field.objects(Kind.NUMBER)] == [float, type(None)]
        assert field.objects(Kind.TEXT) == ["1", "NA"]
        for kind in Kind:
            assert field.arrow(kind).to_pylist() == field.objects(kind)
    assert Written(["TRUE", "False", ""]).objects(Kind.BOOLEAN) == [True, False, None]
    computed = Computed(np.array([0.5, np.nan, np.inf]))
    assert computed.objects(Kind.NUMBER) == [0.5, None, "inf"]
    assert computed.texts(",") == ["0,5", "", "inf"]
    assert computed.kind() is Kind.NUMBER
    assert not computed.has_names()
    np.testing.assert_array_equal(computed.numbers(), [0.5, np.nan, np.inf])
    assert computed.factorise(Kind.TEXT)[0] == ["0.5", None, "inf"]


# --- Parquet ---------------------------------------------------------------------------------------------------


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "table.parquet"
    frame = pl.DataFrame(
        {
            "p": [0.5, None, 0.25],
            "n": [1, 2, None],
            "sex": ["F", None, "M"],
            "city": pl.Series(["Rome", "Oslo", None], dtype=pl.Categorical),
            "member": [True, None, False],
            "nothing": pl.Series([None, None, None], dtype=pl.Null),
            "price": [Decimal("1.5"), None, Decimal("2.25")],
            "text number": ["1", "2.5", None],
        }
    )
    frame.write_parquet(path)
    return path


def test_parquet_columns_keep_their_types(parquet):
    names = ["p", "n", "sex", "city", "member", "nothing", "price"]
    found = read(parquet, names)
    assert {name: values(column) for name, column in found.columns.items()} == {
        "p": [0.5, None, 0.25],
        "n": [1, 2, None],
        "sex": ["F", None, "M"],
        "city": ["Rome", "Oslo", None],
        "member": [True, None, False],
        "nothing": [None, None, None],
        "price": [1.5, None, 2.25],
    }
    assert found.columns["p"].values.dtype == np.float32  # exact, so half the memory
    assert found.columns["sex"].values.dtype == np.int8


def test_parquet_columns_as_other_kinds(parquet):
    wanted = [Wanted("n", Kind.TEXT), Wanted("text number", Kind.NUMBER), Wanted("member", Kind.NUMBER)]
    found = read(parquet, wanted).columns
    assert values(found["n"]) == ["1", "2", None]
    assert values(found["text number"]) == [1.0, 2.5, None]
    assert values(found["member"]) == [1.0, None, 0.0]
    whole = Typed(pa.array([2.0, None, 2.5]), "x").factorise(Kind.TEXT)
    assert [whole[0][j] for j in whole[1]] == ["2", None, "2.5"]
    truth = Typed(pa.array([0, 1, 7, None]), "x").factorise(Kind.BOOLEAN)
    assert [truth[0][j] for j in truth[1]] == [False, True, "7", None]
    truth = Typed(pa.array(["true", "0", "x", None]), "x").factorise(Kind.BOOLEAN)
    assert [truth[0][j] for j in truth[1]] == [True, False, "x", None]


def test_dates_are_refused_by_name():
    with pytest.raises(InvalidInput, match="Column 'day' has the type date32"):
        Typed(pa.array([date(2020, 1, 1)]), "day").kind()


def test_parquet_from_pandas_and_under_any_name(tmp_path):
    path = tmp_path / "table.data"
    pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).to_parquet(path, engine="pyarrow")
    assert values(read(path, ["b"]).columns["b"]) == ["x", "y"]


def test_a_cut_parquet_file_is_told(parquet):
    whole = parquet.read_bytes()
    parquet.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match="is damaged, cut short or not a Parquet file"), open_table(str(parquet)):
        pass
    parquet.write_bytes(whole[:4] + bytes(100) + whole[104:])  # the pages, not the footer
    with pytest.raises(InvalidInput, match="is damaged"):
        read(parquet, ["p"])


def test_parquet_without_pyarrow_says_what_to_install(parquet, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lowcal\[files\]'"), open_table(str(parquet)):
        pass


# --- gathering -------------------------------------------------------------------------------------------------


@pytest.fixture(params=ENGINES)
def small_batches(request, monkeypatch):
    """A reader whose batches have two or few rows."""
    monkeypatch.setattr(delimited, "BATCH_ROWS", 2)
    monkeypatch.setattr(delimited, "BATCH_BYTES", 24)
    return request.param


def column_file(write, cells):
    return write("x,y\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2", "3", "", "5.5", "6"], [1, 2, 3, None, 5.5, 6]),
        (["1", "2", "3", "4", "x", "6"], ["1", "2", "3", "4", "x", "6"]),
        (["1", "2", "3", "4", "007", "6"], ["1", "2", "3", "4", "007", "6"]),
        (["NA", "", "NA", "NA", "5", "6"], [None, None, None, None, 5, 6]),
        (["None", "", "None", "", "some", "6"], ["None", None, "None", None, "some", "6"]),
        (["true", "False", "true", "", "NA", "TRUE"], [True, False, True, None, None, True]),
        (["true", "False", "true", "true", "maybe", ""], ["true", "False", "true", "true", "maybe", None]),
        (["true", "False", "true", "true", "1", "0"], ["true", "False", "true", "true", "1", "0"]),
        (["", "", "", "", "", ""], [None] * 6),
        (["0.1", "0.2", "3", "4", "5", "16777217"], [0.1, 0.2, 3, 4, 5, 16777217]),
    ],
)
def test_a_column_is_what_all_its_rows_say_not_the_first_batch(write, small_batches, cells, expected):
    found = read(column_file(write, cells), ["x", "y"], small_batches)
    assert values(found.columns["x"]) == expected
    assert values(found.columns["y"]) == [0, 1, 2, 3, 4, 5]


def test_numbers_and_codes_are_narrow_and_widen_when_they_must(write, small_batches):
    cells = ["1.5", "2", "", "0.1"]
    wide = read(column_file(write, cells), ["x"], small_batches).columns["x"].values
    assert wide.dtype == np.float64
    assert wide[3] == 0.1
    assert read(column_file(write, cells[:3]), ["x"], small_batches).columns["x"].values.dtype == np.float32
    many = [f"t{j}" for j in range(300)]
    found = read(column_file(write, many), ["x"], small_batches).columns["x"]
    assert found.values.dtype == np.int16
    assert values(found) == many
    assert read(column_file(write, many[:128]), ["x"], small_batches).columns["x"].values.dtype == np.int8


def test_a_column_of_names_is_refused(write, monkeypatch):
    monkeypatch.setattr(columns, "MOST_TEXTS", 5)
    path = column_file(write, [f"id{j}" for j in range(6)])
    with pytest.raises(InvalidInput, match=r"Column 'x' holds more than 5 different texts"):
        read(path, ["x"])


def test_what_is_not_a_number_is_told_with_row_and_column(write, small_batches):
    path = column_file(write, ["1", "2", "3", "4", "5,5", "abc"])
    path.write_text(path.read_text().replace("5,5", '"5,5"'))
    with pytest.raises(
        InvalidInput, match=r"^Row 5, column 'x': '5,5' is not a number; if the comma is .* --decimal ','"
    ):
        read(path, [Wanted("x", Kind.NUMBER)], small_batches)
    path = column_file(write, ["1", "2", "3", "4", "5", "abc"])
    with pytest.raises(InvalidInput, match=r"^Row 6, column 'x': 'abc' is not a number\.$"):
        read(path, [Wanted("x", Kind.NUMBER)], small_batches)
    path = write("x;y\n0.5;1\n")
    with pytest.raises(InvalidInput, match=r"'0.5' is not a number with the decimal comma that --decimal asks for"):
        read(path, [Wanted("x", Kind.NUMBER)], small_batches, decimal=",")


@pytest.mark.parametrize("text", ["+-0.5", "\uff10.\uff15", "0.5%"])
def test_a_decimal_sign_that_nobody_gave_is_not_blamed(write, text):
    with pytest.raises(InvalidInput, match=rf"column 'x': {re.escape(repr(text))} is not a number\.$"):
        read(write(f"x,y\n{text},1\n"), [Wanted("x", Kind.NUMBER)])


def test_text_of_a_file_with_types_has_no_decimal_sign_to_choose(tmp_path):
    pl.DataFrame({"x": ["0,5"]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match=r"'0,5' is not a number\.$"):
        read(tmp_path / "a.parquet", [Wanted("x", Kind.NUMBER)])


@pytest.mark.parametrize(
    "cells", [["1", "2", "3", "", "5"], ["a", "b", "c", "", "d"], ["true", "true", "true", "", ""]]
)
def test_a_value_that_must_be_there_is_told_with_its_row(write, small_batches, cells):
    with pytest.raises(InvalidInput, match=r"^Row 4, column 'x': the value is missing"):
        read(column_file(write, cells), [Wanted("x", None, is_required=True)], small_batches)


def test_a_header_alone_is_told(write, small_batches):
    with pytest.raises(InvalidInput, match="has a header but no rows"):
        read(write("x,y\n"), ["x"], small_batches)


def test_checks_see_every_row_and_where_it_is(write, small_batches):
    seen = []
    read(
        column_file(write, "123456"),
        [Wanted("x", Kind.NUMBER)],
        small_batches,
        check=lambda numbers, before: seen.extend((before + i, v) for i, v in enumerate(numbers["x"])),
    )
    assert seen == [(i, i + 1) for i in range(6)]


def test_progress_tells_bytes(write, small_batches):
    told = []
    path = column_file(write, "123456")
    read(path, ["x"], small_batches, tell=told.append)
    assert told == sorted(told)
    assert told[-1] == path.stat().st_size


def test_a_sample_is_a_part_of_the_rows_in_their_order(write, small_batches):
    path = column_file(write, [f"t{j}" for j in range(50)])
    kinds = ["x", "y"]
    one = read(path, kinds, small_batches, most_rows=12, seed=3)
    assert (one.n_rows, one.n_in_file) == (12, 50)
    rows = [int(v) for v in values(one.columns["y"])]
    assert rows == sorted(set(rows))
    assert values(one.columns["x"]) == [f"t{j}" for j in rows]
    again = read(path, kinds, "python", most_rows=12, seed=3)
    assert values(again.columns["y"]) == rows  # whatever the batches
    assert values(read(path, kinds, most_rows=12, seed=4).columns["y"]) != rows
    assert read(path, kinds, most_rows=50).n_rows == 50


def test_a_sample_takes_every_row_equally_often():
    """Each of 40 rows is kept with probability 1/4: over 800 seeds the counts stay within five standard errors."""

    class Rows:
        n_kept = 0

        def __init__(self):
            self.rows = np.zeros(0, dtype=int)

        def keep(self, kept):
            self.rows, self.n_kept = self.rows[kept], int(kept.sum())

    times = np.zeros(40)
    for seed in range(800):
        sample, rows = Sample(10, seed), Rows()
        for start in range(0, 40, 5):
            rows.rows = np.append(rows.rows, np.arange(start, start + 5))
            rows.n_kept += 5
            sample.draw(5, rows)
        sample.cut(rows)
        assert len(rows.rows) == 10
        times[rows.rows] += 1
    assert np.abs(times - 200).max() < 5 * np.sqrt(800 * 0.25 * 0.75)


def test_a_sample_knows_columns_that_start_empty(write, small_batches):
    cells = [""] * 30 + ["7"] * 30
    found = read(column_file(write, cells), ["x", "y"], small_batches, most_rows=10, seed=0)
    x, y = values(found.columns["x"]), values(found.columns["y"])
    assert [v is None for v in x] == [v < 30 for v in y]
    assert len(x) == len(y) == 10


# --- writing ---------------------------------------------------------------------------------------------------


def convert(source_path, target, form=None, **options):
    """Write a file anew with one more column."""
    with open_table(str(source_path), **options) as source:
        more = np.linspace(0, 1, 3)
        with open_writer(str(target), form_of(str(target), form), source, ["new"]) as writer:
            start = 0
            for batch in source.batches(range(len(source.names))):
                writer.write([*batch.fields, Computed(more[start : start + batch.n_rows])])
                start += batch.n_rows


TABLE = 'id,zip,name,n,x,ok\n1,01234,"a,b",5,0.5,true\n2,98765,"say ""x""",,NA,false\n3,00001,,7,2,\n'


@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_file_keeps_its_text(write, tmp_path, engine):
    convert(write(TABLE), tmp_path / "out.csv", engine=engine)
    lines = TABLE.splitlines()
    new = ["new", "0.0", "0.5", "1.0"]
    assert (tmp_path / "out.csv").read_text().splitlines() == [f"{a},{b}" for a, b in zip(lines, new, strict=True)]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sheet_stays_a_sheet(write, tmp_path, engine):
    convert(write("\ufeffa;b\r\n0,5;x\r\n"), tmp_path / "out.csv", engine=engine, decimal=",")
    assert (tmp_path / "out.csv").read_bytes() == "\ufeffa;b;new\n0,5;x;0,0\n".encode()


@pytest.mark.parametrize("engine", ENGINES)
def test_parquet_gets_the_types_of_all_rows(write, tmp_path, engine, monkeypatch):
    monkeypatch.setattr(delimited, "BATCH_ROWS", 1)
    monkeypatch.setattr(writing, "GROUP_ROWS", 2)
    convert(write(TABLE), tmp_path / "out.parquet", engine=engine)
    table = pq.read_table(tmp_path / "out.parquet")
    assert [str(kind) for kind in table.schema.types] == [
        "int64",
        "string",
        "string",
        "int64",
        "double",
        "bool",
        "double",
    ]
    assert table.to_pydict() == {
        "id": [1, 2, 3],
        "zip": ["01234", "98765", "00001"],
        "name": ["a,b", 'say "x"', None],
        "n": [5, None, 7],
        "x": [0.5, None, 2.0],
        "ok": [True, False, None],
        "new": [0.0, 0.5, 1.0],
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_json_has_records(write, tmp_path, engine):
    convert(write(TABLE), tmp_path / "out.json", engine=engine)
    convert(write(TABLE), tmp_path / "out.jsonl", engine=engine)
    records = json.loads((tmp_path / "out.json").read_text())
    assert records[1] == {"id": 2, "zip": "98765", "name": 'say "x"', "n": None, "x": None, "ok": False, "new": 0.5}
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == records


@pytest.mark.parametrize("engine", ENGINES)
def test_long_whole_numbers_keep_their_digits(write, tmp_path, engine, monkeypatch):
    monkeypatch.setattr(delimited, "BATCH_ROWS", 2)
    ids, longer = ["1529984736251830001", "7", "-9223372036854775808"], ["1", "2", "18446744073709551615"]
    path = write("id,longer\n" + "".join(f"{a},{b}\n" for a, b in zip(ids, longer, strict=True)))
    convert(path, tmp_path / "out.parquet", engine=engine)
    convert(path, tmp_path / "out.json", engine=engine)
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert (found["id"], found["longer"]) == ([int(one) for one in ids], longer)
    records = json.loads((tmp_path / "out.json").read_text())
    assert [(one["id"], one["longer"]) for one in records] == list(zip(found["id"], longer, strict=True))


def test_long_whole_numbers_of_groups_keep_their_digits(write):
    path = write("longer\n18446744073709551615\n7\n\n0.5\n")
    assert values(read(path, ["longer"]).columns["longer"]) == [2**64 - 1, 7, 0.5]


def test_parquet_to_every_format(parquet, tmp_path):
    for name in ("out.csv", "out.csv.gz", "out.CSV.GZ", "out.parquet", "out.json"):
        convert(parquet, tmp_path / name)
    again = pl.read_parquet(tmp_path / "out.parquet")
    assert again.drop("new").equals(pl.read_parquet(parquet))
    text = (tmp_path / "out.csv").read_text()
    assert text.splitlines()[1] == "0.5,1,F,Rome,True,,1.50,1,0.0"
    for name in ("out.csv.gz", "out.CSV.GZ"):
        assert gzip.decompress((tmp_path / name).read_bytes()).decode() == text
    assert json.loads((tmp_path / "out.json").read_text())[2]["price"] == "2.25"


def test_a_file_without_rows_is_written_without_rows(write, tmp_path):
    for name, expected in [("o.csv", b"a,new\n"), ("o.json", b"[]\n"), ("o.jsonl", b"")]:
        convert(write("a\n"), tmp_path / name)
        assert (tmp_path / name).read_bytes() == expected
    convert(write("a\n"), tmp_path / "o.parquet")
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 0


def test_columns_without_a_name_are_kept_in_text_and_refused_elsewhere(write, tmp_path):
    path = write("a,,\n1,2,3\n")
    convert(path, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "a,,,new\n1,2,3,0.0\n"
    with pytest.raises(InvalidInput, match="several columns without a name, which json can't hold"):
        convert(path, tmp_path / "out.json")
    with pytest.raises(InvalidInput, match="several columns named 'new', which parquet can't hold"):
        convert(write("new\n1\n"), tmp_path / "out.parquet")


def test_a_name_must_tell_the_format():
    with pytest.raises(InvalidInput, match=r"The name out\.xyz does not tell a format"):
        form_of("out.xyz", None)
    assert form_of("out.xyz", "json") == "json"
    assert form_of("-", None) == "csv"
    for path, form in (("out.parquet.gz", None), ("out.pq.GZ", None), ("out.gz", "parquet")):
        with pytest.raises(InvalidInput, match=r"leave out \.gz"):
            form_of(path, form)


def test_writing_parquet_without_pyarrow_says_what_to_install(write, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="writing Parquet needs pyarrow"):
        convert(write("a\n1\n"), tmp_path / "out.parquet", engine="python")
    assert not (tmp_path / "out.parquet").exists()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(cells, cells), min_size=1, max_size=6),
    st.sampled_from([",", ";", "\t", "|"]),
)
def test_joined_lines_are_those_of_python(rows, separator):
    first, second = ([row[j] for row in rows] for j in (0, 1))
    lines = join_fields([ArrowWritten(pa.array(first, pa.string())), Written(second)], separator, ".")
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    assert bytes(lines).decode() == text.getvalue()


def test_joined_lines_of_a_slice():
    array = pa.array(["skipped", "a", 'q"', "skipped"]).slice(1, 2)
    assert bytes(join_fields([ArrowWritten(array), Computed(np.array([1.0, 2.0]))], ",", ".")) == b'a,1.0\n"q""",2.0\n'


def test_kinds_are_those_of_all_rows(write, monkeypatch):
    monkeypatch.setattr(delimited, "BATCH_ROWS", 1)
    with open_table(str(write("a,b,c\n1,1,\n2.5,x,\n")), engine="python") as source:
        assert kinds_of(source) == [Kind.NUMBER, Kind.TEXT, Kind.TEXT]


# --- whole files or none ---------------------------------------------------------------------------------------


def write_half(target, error):
    with open_bytes(str(target)) as stream:
        stream.write(b"half")
        raise error


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path):
    target = tmp_path / "model.json"
    target.write_text("old")
    for error in (ValueError("no"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):
        with pytest.raises(type(error)):
            write_half(target, error)
        assert target.read_text() == "old"
        assert os.listdir(tmp_path) == ["model.json"]


def test_the_new_file_is_there_at_once_and_is_only_then_seen(tmp_path):
    target = tmp_path / "model.json"
    target.write_text("old")
    with open_bytes(str(target)) as new:
        new.write(b"new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["model.json"]


def test_rights_are_those_of_the_old_file_or_of_a_new_one(tmp_path):
    target, fresh = tmp_path / "a", tmp_path / "b"
    target.write_text("old")
    target.chmod(0o640)
    for path in (target, fresh):
        with open_bytes(str(path)) as stream:
            stream.write(b"x")
    (tmp_path / "c").write_text("x")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert fresh.stat().st_mode == (tmp_path / "c").stat().st_mode


def test_what_a_link_points_to_is_replaced(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with open_bytes(str(tmp_path / "link")) as stream:
        stream.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_what_is_not_a_file_is_written_to_as_it_is():
    with open_bytes("/dev/null") as stream:
        stream.write(b"gone")
    assert not os.path.isfile("/dev/null")


def test_places_that_can_not_be_written_are_told_before_any_work(tmp_path, monkeypatch):
    for path, message in [(tmp_path, "is a folder"), (tmp_path / "no" / "x", "there is no folder")]:
        with pytest.raises(InvalidInput, match=message):
            check_writable(str(path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InvalidInput, match="is protected"):
        check_writable(str(tmp_path / "x"))


def test_an_arrow_that_can_not_be_imported_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowcal.files import opening

    def broken(name: str) -> object:
        raise ImportError(f"{name}: built for another NumPy")

    assert opening.has_arrow()
    monkeypatch.setattr(opening, "import_module", broken)
    assert not opening.has_arrow()
