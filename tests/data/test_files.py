"""Tables in files: read by the same rules whatever wrote them; odd files are told in a sentence; writing is whole."""

import csv
import errno
import gzip
import io
import json
import os
import re
import stat
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowcal.data.files as tables
import lowcal.data.text as text_files
from lowcal.data.errors import InvalidInput, MissingColumn, MissingExtra
from lowcal.data.files import check_writable, form_of, join_columns, open_bytes, open_table, write_table
from lowcal.data.text import MISSING, Kind, cast, kind_of, numbers, wider
from lowcal.rows.reading import Sampling


def texts(path, **options):
    """All values of a text file as text, row by row."""
    with open_table(str(path), **options) as source:
        columns = ((column.to_pylist() for column in batch.columns) for batch in source.batches())
        return source.names, [row for batch in columns for row in zip(*batch, strict=True)]


def read(path, names, kinds=None, most_texts=np.inf, **options):
    """Some columns of a file as Python values, None for missing, by the kinds that all rows show."""
    with open_table(str(path), **options) as source:
        found = source.survey(names, most_texts=most_texts)[1] | (kinds or {})
        columns = {name: [] for name in names}
        for batch in source.typed(found):
            for name, column in zip(names, batch.columns, strict=True):
                columns[name] += column.to_pylist()
        return columns


def read_floats(path, name, **options):
    """A column of a file as numbers, whatever it looks like."""
    with open_table(str(path), **options) as source:
        found, n = [], 0
        for batch in source.batches([name]):
            found += numbers(batch.columns[0], source.decimal, name, n).tolist()
            n += batch.num_rows
        return found


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


@pytest.mark.parametrize("kind", SHEETS)
def test_a_sheet_is_read_however_it_is_written(write, kind):
    assert texts(write(SHEETS[kind])) == (("a", "b"), [("1", "x"), ("2", "y")])


def test_quoted_separators_quotes_and_line_ends_are_part_of_a_value(write):
    path = write('name,note\n"Smith, J.","said ""no""\nand left"\n5" pipe,ok\n')
    assert texts(path)[1] == [("Smith, J.", 'said "no"\nand left'), ('5" pipe', "ok")]


@pytest.mark.parametrize(
    ("encoding", "options"), [("utf-16", {}), ("utf-8-sig", {}), ("latin-1", {"encoding": "latin-1"})]
)
def test_encodings(write, encoding, options):
    assert texts(write("ort;p\nZürich;1\n".encode(encoding)), **options)[1] == [("Zürich", "1")]


def test_packed_files_are_read_and_damaged_ones_told(write):
    packed = gzip.compress(b"a,b\n" + b"1,x\n" * 50_000)
    assert len(texts(write(packed, "table.csv.gz"))[1]) == 50_000
    with pytest.raises(InvalidInput, match=r"cut\.csv\.gz is damaged or cut short"):
        texts(write(packed[:-40], "cut.csv.gz"))


def test_a_separator_can_be_given_and_tsv_tells_its_own(write):
    assert texts(write("a b\n1 2\n"), separator=" ")[0] == ("a", "b")
    assert texts(write("a,c\tb\n1\t2\n", "t.tsv"))[0] == ("a,c", "b")
    assert texts(write("a,c\tb\n1\t2\n"), form="tsv")[0] == ("a,c", "b")


def test_a_comma_in_a_name_does_not_hide_the_separator(write):
    assert texts(write("income, yearly;sex\n1;2\n3;4\n5;6\n"))[0] == ("income, yearly", "sex")


def test_rows_longer_than_a_block_are_read(write, monkeypatch):
    monkeypatch.setattr(text_files, "BATCH_BYTES", 24)
    rows = [(str(j), f"r{j}") for j in range(30)]
    rows[20] = ("20", "long" * 100)  # longer than any block
    path = write("a,b\n" + "".join(f"{a},{b}\n" for a, b in rows))
    assert texts(path) == (("a", "b"), rows)


def test_a_decimal_comma_does_not_hide_the_separator(write):
    assert texts(write("a;b\n0,5;1,5\n0,7;2,5\n"))[0] == ("a", "b")


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
def test_what_is_wrong_with_a_text_file_is_said(write, content, message, separator):
    with pytest.raises(InvalidInput, match=message):
        texts(write(content), separator=separator)


def test_a_field_without_an_end_is_told_with_its_row(write, monkeypatch):
    """Also one so long that the rest of the file is not read, which may hold a quote."""
    monkeypatch.setattr(text_files, "LONGEST", 1000)
    for rest in ("x" * 2000 + "\n", "7,8\n" * 1000, "7,8\n" * 1000 + '5" pipe,1\n'):
        with pytest.raises(InvalidInput, match=r"Row 2 of .* begins a value with a quote that is never closed"):
            texts(write('a,b\n1,2\n3,"' + rest))


@pytest.mark.parametrize("separator", [None, ","])
def test_lines_and_values_may_be_longer_than_any_open_quote(write, separator, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST", 1000)
    monkeypatch.setattr(text_files, "BATCH_BYTES", 2000)
    long, n = "x" * 5000, 2000
    several_lines = f"{long}\n{long}"
    rows = [("1", long), ("2", several_lines), ("3", "end")]
    found = texts(write(f'a,b\n1,{long}\n2,"{several_lines}"\n3,end\n'), separator=separator)
    assert found[1] == rows
    wide = ",".join(f"c{k}" for k in range(n)), ",".join(["1"] * n)
    assert texts(write("\n".join(wide)), separator=separator)[1] == [("1",) * n]


def test_lines_of_many_megabytes_are_read(write):
    long = "x" * (text_files.LONGEST + 1)
    assert texts(write(f"a,b\n1,{long}\n"))[1] == [("1", long)]


@pytest.mark.parametrize("asked", [["a", "b"], ["a"], ["b"]])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_quote_that_is_never_closed_does_not_swallow_the_rows_after_it(tmp_path, asked, name):
    content = ("a,b\n1,2\n3,4\n" + '5,"6\n' + "7,8\n" * 1000).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with (
        open_table(str(path)) as source,
        pytest.raises(InvalidInput, match=rf"Row 3 of .*{name} begins a value with a quote that is never closed"),
    ):
        list(source.batches(asked))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("row", ['5" pipe,1', 'a,"b""c"', '"a""",1', '"a"b,5"', "\u2222,\u2200"])
def test_other_odd_quotes_are_text(write, encoding, row):
    _, found = texts(write(f"a,b\n1,2\n{row}\n3,4\n".encode(encoding)), encoding=encoding)
    assert found == [("1", "2"), tuple(next(csv.reader([row]))), ("3", "4")]


def test_long_texts_are_read(write):
    long = "x" * 200_000
    assert texts(write(f"a,b\n1,{long}\n"))[1] == [("1", long)]


def test_paths_that_are_no_files(tmp_path):
    (tmp_path / "adult.csv").write_text("a\n1\n")
    for path, message in [
        (tmp_path / "adlt.csv", r"There is no file .*adlt\.csv\. Did you mean 'adult\.csv'"),
        (tmp_path / "no" / "x.csv", r"There is no file"),
    ]:
        with pytest.raises(InvalidInput, match=message), open_table(str(path)):
            pass
    with pytest.raises(InvalidInput, match="is a folder"), open_table(str(tmp_path), form="csv"):
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
        source.require("age", "aeg")


cells = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=6)


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 4).flatmap(lambda k: st.lists(st.lists(cells, min_size=k, max_size=k), min_size=1, max_size=8)))
def test_values_are_read_as_they_were_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, quoting=csv.QUOTE_ALL)
        table.writerow([f"c{j}" for j in range(len(rows[0]))])
        table.writerows(rows)
    assert texts(path, separator=",")[1] == [tuple(row) for row in rows]


# --- what a value is -------------------------------------------------------------------------------------------

number_like = st.sampled_from(
    [*sorted(MISSING), " 1", "+1", "1.", ".5", "1e3", "1e400", "-inf", "Infinity", "1_0", "0x1"]
)
number_like |= st.sampled_from(
    ["007", "-0", "0", "true", "1,5", "\u0661", "-nan", "1e", "--1", "1.2.3", "\u00a01", "12345678901234567890"]
)
number_like |= st.floats(allow_nan=False).map(repr) | st.integers().map(str)


def number_by_the_rules(text, decimal):
    """What a text writes, as the rules say it: a float, NaN if missing, None if it is no number."""
    if text in MISSING:
        return np.nan
    text = text.strip()
    if decimal == ",":
        text = text.replace(".", "?").replace(",", ".")
    return (
        float(text)
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity)", text)
        else None
    )


def kind_by_the_rules(given_texts, decimal):
    present = [text for text in given_texts if text not in MISSING]
    if not present:
        return None
    if {text.lower() for text in present} <= {"true", "false"}:
        return Kind.BOOLEAN
    found = [number_by_the_rules(text, decimal) for text in present]
    whole = [int(text) for text in present if re.fullmatch(r"\s*[+-]?[0-9]+\s*", text, re.ASCII)]
    if None in found or any(re.match(r"\s*[+-]?0[0-9]", text) for text in present):
        return Kind.TEXT
    is_large = max(map(abs, found)) >= 2**53
    if all(re.fullmatch("-?[0-9]+", text) and -(2**63) <= int(text) < 2**63 for text in present):
        return Kind.LARGE if is_large else Kind.WHOLE
    return Kind.TEXT if any(len(str(abs(number))) >= 16 for number in whole) and is_large else Kind.NUMBER


@settings(max_examples=400, deadline=None)
@given(st.lists(number_like, min_size=1, max_size=4), st.sampled_from([".", ","]), st.booleans())
def test_numbers_and_kinds_are_those_of_the_rules(given_texts, decimal, is_dictionary):
    array = pa.array(given_texts, pa.string())
    array = array.dictionary_encode() if is_dictionary else array
    expected = [number_by_the_rules(text, decimal) for text in given_texts]
    assert kind_of(array, decimal) is kind_by_the_rules(given_texts, decimal)
    if None in expected:
        row = expected.index(None)
        told = f"Row {row + 1}, column 'x': {given_texts[row]!r} is not a number"
        with pytest.raises(InvalidInput, match=f"^{re.escape(told)}"):
            numbers(array, decimal, "x")
    else:
        np.testing.assert_array_equal(numbers(array, decimal), expected)


def test_numbers_are_what_python_reads():
    given_texts = ["0.1", "1e-300", "123456789.123456789", "-0.0", "NA", " 7 "]
    expected = [float(text) if text != "NA" else np.nan for text in given_texts]
    np.testing.assert_array_equal(numbers(pa.array(given_texts), "."), expected)
    np.testing.assert_array_equal(numbers(pa.array(["0,25", "1"]), ","), [0.25, 1.0])


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
        (["1529984736251830000", "-9223372036854775808"], Kind.LARGE),
        (["9007199254740993", "0.5"], Kind.TEXT),
        (["9223372036854775808"], Kind.TEXT),
        (["99999999999999999999"], Kind.TEXT),
        (["1e20", "0.5"], Kind.NUMBER),
    ],
)
def test_the_kind_of_a_column_is_the_narrowest_that_holds_it(given_texts, kind):
    assert kind_of(pa.array(given_texts), ".") is kind


def test_kinds_of_batches_join():
    kinds = [None, *Kind]
    for one in kinds:
        assert wider(one, one) is one
        for other in kinds:
            assert wider(one, other) is wider(other, one)
            for third in kinds:
                assert wider(wider(one, other), third) is wider(one, wider(other, third))


@pytest.mark.parametrize(
    ("given_texts", "kind", "expected"),
    [
        (["1", "NA"], Kind.WHOLE, [1, None]),
        (["1", "NA"], Kind.NUMBER, [1.0, None]),
        (["1", "NA", ""], Kind.TEXT, ["1", "NA", None]),
        (["TRUE", "False", "", "NA"], Kind.BOOLEAN, [True, False, None, None]),
        ([str(2**53 + 1), ""], Kind.LARGE, [2**53 + 1, None]),
    ],
)
@pytest.mark.parametrize("is_dictionary", [True, False])
def test_texts_become_values_of_their_kind(given_texts, kind, expected, is_dictionary):
    array = pa.array(given_texts)
    found = cast(array.dictionary_encode() if is_dictionary else array, kind, ".").to_pylist()
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


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
    assert read(parquet, ["p", "n", "sex", "city", "member", "nothing", "price"]) == {
        "p": [0.5, None, 0.25],
        "n": [1, 2, None],
        "sex": ["F", None, "M"],
        "city": ["Rome", "Oslo", None],
        "member": [True, None, False],
        "nothing": [None, None, None],
        "price": [Decimal("1.5"), None, Decimal("2.25")],
    }


def test_parquet_columns_as_other_kinds(parquet):
    assert read(parquet, ["n", "p"], {"n": Kind.TEXT, "p": Kind.TEXT}) == {
        "n": ["1", "2", None],
        "p": ["0.5", None, "0.25"],
    }
    for name, expected in (
        ("text number", [1.0, 2.5, np.nan]),
        ("member", [1, np.nan, 0]),
        ("price", [1.5, np.nan, 2.25]),
    ):
        np.testing.assert_array_equal(read_floats(parquet, name), expected)


def test_parquet_from_pandas_and_under_any_name(tmp_path):
    path = tmp_path / "table.data"
    pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).to_parquet(path, engine="pyarrow")
    assert read(path, ["b"]) == {"b": ["x", "y"]}


def test_a_cut_parquet_file_is_told(parquet):
    whole = parquet.read_bytes()
    parquet.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match="is damaged, cut short or not a Parquet file"), open_table(str(parquet)):
        pass
    parquet.write_bytes(whole[:4] + bytes(100) + whole[104:])  # the pages, not the footer
    with pytest.raises(InvalidInput, match="is damaged"):
        read(parquet, ["p"])


def test_tables_without_pyarrow_say_what_to_install(parquet, write, monkeypatch):
    """Also one that is there and can't be imported, as if it were built for another NumPy."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    for path in (parquet, write("a\n1\n")):
        with pytest.raises(MissingExtra, match=r"needs pyarrow: pip install 'lowcal\[cli\]'"), open_table(str(path)):
            pass


# --- gathering -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_batches(monkeypatch):
    """A reader whose batches have few rows."""
    monkeypatch.setattr(text_files, "BATCH_BYTES", 24)


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
@pytest.mark.usefixtures("small_batches")
def test_a_column_is_what_all_its_rows_say_not_the_first_batch(write, cells, expected):
    found = read(column_file(write, cells), ["x", "y"])
    assert found == {"x": expected, "y": [0, 1, 2, 3, 4, 5]}


def test_a_column_of_names_is_refused(write):
    path = column_file(write, [f"id{j}" for j in range(6)])
    with pytest.raises(InvalidInput, match=r"Column 'x' holds more than 5 different texts"):
        read(path, ["x"], most_texts=5)
    assert len(read(path, ["x"], most_texts=6)["x"]) == 6


@pytest.mark.usefixtures("small_batches")
def test_what_is_not_a_number_is_told_with_row_and_column(write):
    path = column_file(write, ["1", "2", "3", "4", "5,5", "abc"])
    path.write_text(path.read_text().replace("5,5", '"5,5"'))
    with pytest.raises(
        InvalidInput, match=r"^Row 5, column 'x': '5,5' is not a number; if the comma is .* --decimal ','"
    ):
        read_floats(path, "x")
    path = column_file(write, ["1", "2", "3", "4", "5", "abc"])
    with pytest.raises(InvalidInput, match=r"^Row 6, column 'x': 'abc' is not a number\.$"):
        read_floats(path, "x")
    path = write("x;y\n0.5;1\n")
    with pytest.raises(InvalidInput, match=r"'0.5' is not a number, given --decimal ','"):
        read_floats(path, "x", decimal=",")


@pytest.mark.parametrize("text", ["+-0.5", "\uff10.\uff15", "0.5%"])
def test_a_decimal_sign_that_nobody_gave_is_not_blamed(write, text):
    with pytest.raises(InvalidInput, match=rf"column 'x': {re.escape(repr(text))} is not a number\.$"):
        read_floats(write(f"x,y\n{text},1\n"), "x")


def test_text_of_a_file_with_types_has_no_decimal_sign_to_choose(tmp_path):
    pl.DataFrame({"x": ["0,5"]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match=r"'0,5' is not a number\.$"):
        read_floats(tmp_path / "a.parquet", "x")


@pytest.mark.usefixtures("small_batches")
def test_a_survey_sees_every_row_and_where_it_is(write):
    path, seen, told = column_file(write, "123456"), [], []

    def look(arrays, before):
        seen.extend((before + i, value) for i, value in enumerate(arrays["x"].to_pylist()))

    with open_table(str(path)) as source:
        assert source.survey(["x"], (), look, told.append)[0] == 6
    assert seen == [(i, str(i + 1)) for i in range(6)]
    assert len(told) > 1
    assert sum(told) == path.stat().st_size


@pytest.mark.parametrize("native", [["1.5", "-2"], ["+1.5", "-2"], [" 1.5 ", "-2"], ["1.5", "+2"]])
@pytest.mark.usefixtures("small_batches")
def test_numbers_that_arrow_does_not_read_are_read(write, native):
    cells = [*(["1"] * 9), *native]
    assert read(column_file(write, cells), ["x"])["x"] == [float(cell) for cell in cells]


def test_a_sample_is_a_part_of_the_rows_in_their_order():
    def drawn(seed, size, most=12):
        sample = Sampling(seed, most)
        for start in range(0, 50, size):
            sample.add({"x": np.arange(start, min(50, start + size))}, 1)
        return sample.rows()["x"].tolist()

    rows = drawn(3, 7)
    assert len(rows) == 12
    assert rows == sorted(set(rows))
    assert drawn(3, 50) == rows  # whatever the batches
    assert drawn(4, 7) != rows
    assert drawn(3, 7, most=50) == list(range(50))


def test_a_sample_takes_every_row_equally_often():
    """Each of 40 rows is kept with probability 1/4: over 800 seeds the counts stay within five standard errors."""
    times = np.zeros(40)
    for seed in range(800):
        sample = Sampling(seed, 10)
        for start in range(0, 40, 5):
            sample.add({"x": np.arange(start, start + 5)}, 1)
        times[sample.rows()["x"]] += 1
    assert times.sum() == 8000
    assert np.abs(times - 200).max() < 5 * np.sqrt(800 * 0.25 * 0.75)


# --- writing ---------------------------------------------------------------------------------------------------


def convert(source_path, target, form=None, **options):
    """Write a file anew with one more column."""
    with open_table(str(source_path), **options) as source:
        more = iter(np.linspace(0, 1, 3))
        batches = (
            (batch.columns, [np.array([next(more) for _ in range(batch.num_rows)])]) for batch in source.batches()
        )
        write_table(str(target), form_of(str(target), form), source, ["new"], batches)


TABLE = 'id,zip,name,n,x,ok\n1,01234,"a,b",5,0.5,true\n2,98765,"say ""x""",,NA,false\n3,00001,,7,2,\n'


def test_a_text_file_keeps_its_text(write, tmp_path):
    convert(write(TABLE), tmp_path / "out.csv")
    lines = TABLE.splitlines()
    new = ["new", "0.0", "0.5", "1.0"]
    assert (tmp_path / "out.csv").read_text().splitlines() == [f"{a},{b}" for a, b in zip(lines, new, strict=True)]


def test_a_sheet_stays_a_sheet(write, tmp_path):
    convert(write("\ufeffa;b\r\n0,5;x\r\n"), tmp_path / "out.csv", decimal=",")
    assert (tmp_path / "out.csv").read_bytes() == "\ufeffa;b;new\n0,5;x;0,0\n".encode()


def test_parquet_gets_the_types_of_all_rows(write, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BATCH_BYTES", 40)
    monkeypatch.setattr(tables, "GROUP_ROWS", 2)
    convert(write(TABLE), tmp_path / "out.parquet")
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


def test_json_has_records(write, tmp_path):
    convert(write(TABLE), tmp_path / "out.json")
    convert(write(TABLE), tmp_path / "out.jsonl")
    records = json.loads((tmp_path / "out.json").read_text())
    assert records[1] == {"id": 2, "zip": "98765", "name": 'say "x"', "n": None, "x": None, "ok": False, "new": 0.5}
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == records


def test_long_whole_numbers_keep_their_digits(write, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "BATCH_BYTES", 40)
    ids, longer = ["1529984736251830001", "7", "-9223372036854775808"], ["1", "2", "18446744073709551615"]
    path = write("id,longer\n" + "".join(f"{a},{b}\n" for a, b in zip(ids, longer, strict=True)))
    convert(path, tmp_path / "out.parquet")
    convert(path, tmp_path / "out.json")
    found = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert (found["id"], found["longer"]) == ([int(one) for one in ids], longer)
    records = json.loads((tmp_path / "out.json").read_text())
    assert [(one["id"], one["longer"]) for one in records] == list(zip(found["id"], longer, strict=True))


def test_long_whole_numbers_of_groups_keep_their_digits(write):
    path = write("longer\n18446744073709551615\n7\n\n0.5\n")
    assert read(path, ["longer"])["longer"] == ["18446744073709551615", "7", "0.5"]


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
    with pytest.raises(InvalidInput, match=r"The name out\.xyz has no known extension"):
        form_of("out.xyz", None)
    assert form_of("out.xyz", "json") == "json"
    assert form_of("-", None) == "csv"
    for path, form in (("out.parquet.gz", None), ("out.pq.GZ", None), ("out.gz", "parquet")):
        with pytest.raises(InvalidInput, match=r"leave out \.gz"):
            form_of(path, form)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(cells, cells), min_size=1, max_size=6),
    st.sampled_from([",", ";", "\t", "|"]),
)
def test_joined_lines_are_those_of_python(rows, separator):
    lines = join_columns([pa.array([row[j] for row in rows], pa.string()) for j in (0, 1)], separator)
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    assert bytes(lines).decode() == text.getvalue()


def test_joined_lines_of_a_slice():
    array = pa.array(["skipped", "a", 'q"', "skipped"]).slice(1, 2)
    assert bytes(join_columns([array, pa.array(["1.0", "2.0"])], ",")) == b'a,1.0\n"q""",2.0\n'


@pytest.mark.parametrize(
    ("name", "expected"), [("o.csv", "a;b;new\n1;x;0,5\n2;y;\n3;z;inf\n"), ("o.json", [0.5, None, "inf"])]
)
def test_new_columns_are_written_with_all_digits(write, tmp_path, name, expected):
    with (
        open_table(str(write("a;b\n1;x\n2;y\n3;z\n")), decimal=",") as source,
    ):
        batches = ((batch.columns, [np.array([0.5, np.nan, np.inf])]) for batch in source.batches())
        write_table(str(tmp_path / name), form_of(name, None), source, ["new"], batches)
    text = (tmp_path / name).read_text()
    assert (text if name == "o.csv" else [one["new"] for one in json.loads(text)]) == expected


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
