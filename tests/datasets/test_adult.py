"""The shipped Adult data equal the published ones, and a damaged copy is noticed."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import lowcal.datasets as adult
from lowcal.data.errors import InvalidInput
from lowcal.datasets import load_adult

ROOT = Path(__file__).resolve().parents[2]
PARQUET = ROOT.parent / "shared" / "data" / "adult.parquet"
SHIPPED = Path(adult.__file__).parent / "data" / "adult.npz"

TEXT = [
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native_country",
]
NUMERIC = ["age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"]


@pytest.mark.parametrize(
    ("subset", "rows", "positive"),
    [("all", 48_842, 11_687), ("train", 32_561, 7_841), ("test", 16_281, 3_846)],
)
def test_published_counts(subset, rows, positive):
    data = load_adult(subset)
    assert len(data.y) == rows
    assert data.y.dtype == np.int64
    assert set(data.y) == {0, 1}
    assert data.y.sum() == positive
    assert all(len(column) == rows for column in data.X.values())
    assert data.p is data.f_star is data.sample_weight is None
    assert "CC BY 4.0" in data.description


def test_columns_have_their_names_and_types():
    data = load_adult()
    assert set(data.X) == {*TEXT, *NUMERIC}
    for name in TEXT:
        assert data.X[name].dtype == object
        assert {type(v) for v in data.X[name]} <= {str, type(None)}
    for name in NUMERIC:
        assert data.X[name].dtype == np.int64


def test_known_values():
    X = load_adult().X
    assert Counter(X["sex"]) == {"Male": 32_650, "Female": 16_192}
    missing = {name: int(sum(v is None for v in X[name])) for name in TEXT}
    assert {k: v for k, v in missing.items() if v} == {
        "workclass": 2_799,
        "occupation": 2_809,
        "native_country": 857,
    }
    assert [X[name][0] for name in ("age", "workclass", "fnlwgt", "sex")] == [39, "State-gov", 77_516, "Male"]


def test_all_is_train_then_test():
    whole, train, test = (load_adult(subset) for subset in ("all", "train", "test"))
    assert np.array_equal(whole.y, np.concatenate([train.y, test.y]))
    for name, column in whole.X.items():
        assert np.array_equal(column, np.concatenate([train.X[name], test.X[name]]))


def test_equals_the_parquet_file_value_for_value():
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    if not PARQUET.exists():
        pytest.skip("the file that the shipped table was made from is not beside the project")
    table = parquet.read_table(PARQUET)
    data = load_adult()
    assert [*data.X, "income", "split"] == table.column_names
    for name, column in data.X.items():
        assert column.tolist() == table[name].to_pylist()
    assert data.y.tolist() == [int(v == ">50K") for v in table["income"].to_pylist()]
    for subset in ("train", "test"):
        rows = np.array([v == subset for v in table["split"].to_pylist()])
        part = load_adult(subset)
        assert np.array_equal(part.y, data.y[rows])
        assert all(np.array_equal(part.X[name], data.X[name][rows]) for name in data.X)


def test_writing_into_one_copy_leaves_the_next_alone():
    first = load_adult("test")
    first.X["age"][:] = 0
    first.y[:] = 0
    second = load_adult("test")
    assert second.X["age"].min() >= 17
    assert second.y.sum() == 3_846


def test_needs_no_frame_library(monkeypatch):
    for library in ("pandas", "polars", "pyarrow", "narwhals"):
        monkeypatch.setitem(sys.modules, library, None)
    assert len(load_adult().y) == 48_842


def test_a_truncated_file_is_refused(tmp_path):
    short = tmp_path / "adult.npz"
    content = SHIPPED.read_bytes()
    short.write_bytes(content)
    assert len(adult._read(short)["age"]) == 48_842
    short.write_bytes(content[:-1000])
    with pytest.raises(InvalidInput, match=r"damaged or truncated.*Reinstall"):
        adult._read(short)


def test_a_flipped_bit_is_refused(tmp_path):
    content = bytearray(SHIPPED.read_bytes())
    content[len(content) // 2] ^= 1
    path = tmp_path / "adult.npz"
    path.write_bytes(bytes(content))
    with pytest.raises(InvalidInput, match="damaged"):
        adult._read(path)


def test_an_absent_file_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"can't be read from.*Reinstall"):
        adult._read(tmp_path / "nothing.npz")


@pytest.mark.parametrize("subset", ["tests", "", None])
def test_an_unknown_subset_is_refused(subset):
    with pytest.raises(InvalidInput, match=r"Unknown subset .*; valid: all, train, test"):
        load_adult(subset)


def test_the_shipped_file_is_small_and_attributed():
    assert SHIPPED.stat().st_size < 600_000
    text = SHIPPED.with_name("ATTRIBUTION.md").read_text(encoding="utf-8")
    for part in ("Becker", "Kohavi", "1996", "10.24432/C5XW20", "CC BY 4.0"):
        assert part in text
