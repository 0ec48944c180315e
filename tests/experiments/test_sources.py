"""Loaders of real data: files in a folder, OpenML where there is none, and clear words where there is neither."""

import os
from pathlib import Path

import numpy as np
import pytest

from experiments import sources
from lowcal.data.errors import InvalidInput
from lowcal.datasets import load_adult

SHARED = Path(os.environ.get("LOWCAL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))

BANK = """age,job,marital,education,default,balance,housing,loan,contact,day,month,duration,campaign,pdays,previous,\
poutcome,y
58,management,married,tertiary,no,2143,yes,no,?,5,may,261,1,-1,0,unknown,no
44,technician,single,,no,29,yes,no,unknown,5,may,151,1,-1,0,unknown,yes
"""


@pytest.fixture(autouse=True)
def without_variable(monkeypatch):
    monkeypatch.delenv("LOWCAL_DATA", raising=False)


def test_a_csv_file_in_the_folder_is_read(tmp_path):
    (tmp_path / "bank_marketing.csv").write_text(BANK)
    data = sources.load("bank_marketing", tmp_path)
    assert data.y.tolist() == [0, 1]
    assert data.X["age"].tolist() == [58, 44]
    assert data.X["age"].dtype == np.int64
    assert data.X["contact"].tolist() == [None, "unknown"]
    assert data.X["education"].tolist() == ["tertiary", None]
    assert "y" not in data.X
    assert data.p is None
    assert "CC BY 4.0" in data.description


def test_the_folder_may_be_named_by_a_variable(tmp_path, monkeypatch):
    (tmp_path / "bank_marketing.csv").write_text(BANK)
    monkeypatch.setenv("LOWCAL_DATA", str(tmp_path))
    assert len(sources.load("bank_marketing").y) == 2


def test_a_parquet_file_comes_first_and_keeps_its_kinds(tmp_path):
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(
        {
            "\ufeffMarital status": [1, 2, 1],
            "Application mode": [17, 17, 1],
            "Course": [171, 9, 9],
            "Gender": [1, 0, 1],
            "Scholarship holder": [0, 1, 0],
            "Debtor": [0, 0, 1],
            "Displaced": [1, 0, 1],
            "Age at enrollment": [20, 19, 41],
            "GDP": [1.74, 0.32, None],
            "Target": ["Dropout", "Graduate", "Enrolled"],
        }
    )
    frame.write_parquet(tmp_path / "student_dropout.parquet")
    data = sources.load("student_dropout", tmp_path)
    assert data.y.tolist() == [0, 2, 1]
    assert data.X["Marital status"].tolist() == ["1", "2", "1"]
    assert data.X["Gender"].dtype == object
    assert np.isnan(data.X["GDP"][2])


def test_outputs_of_a_network_come_with_predicted_superclasses(tmp_path):
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.3, 0.4, 0.3]], dtype=np.float32)
    stored = {"label": np.array([0, 0, 1]), "fine_to_coarse": np.array([0, 1, 1]), "probs_lenet5": p}
    np.savez(tmp_path / "cifar100_probs.npz", **stored)
    data = sources.load_cifar100("lenet5", tmp_path)
    assert data.X["superclass"].tolist() == ["superclass 0", "superclass 1", "superclass 1"]
    assert np.allclose(data.p.sum(axis=1), 1.0, atol=1e-15)
    assert data.y.tolist() == [0, 0, 1]
    with pytest.raises(InvalidInput, match="network must be one of"):
        sources.load_cifar100("resnet", tmp_path)


@pytest.mark.parametrize("name", ["acs_employment", "student_dropout", "cifar100"])
def test_a_file_that_openml_does_not_have_is_asked_for(name, tmp_path):
    with pytest.raises(InvalidInput, match=r"was not found as neither folder= nor the variable LOWCAL_DATA"):
        sources.load(name)
    with pytest.raises(InvalidInput, match=rf"was not found in .*{tmp_path.name}"):
        sources.load(name, tmp_path)


class Bunch(dict):
    pass


def openml_bank(**options):
    assert options["data_id"] == 1461
    names = [f"V{k}" for k in range(1, 17)]
    rows = [
        ["58", 4.0, 1, 2, 0, 2143, 1, 0, 2, 5, 8, 261, 1, -1, 0, 3],
        ["44", 9.0, 2, 1, 0, 29, 1, 0, 2, 5, 8, 151, 1, -1, 0, 3],
    ]
    values = np.array([[float(v) for v in row] for row in rows], dtype=object)
    categories = {"V2": [f"job {k}" for k in range(12)], "V3": ["divorced", "married", "single"]}
    return Bunch(
        data=values,
        target=np.array(["1", "2"], dtype=object),
        feature_names=names,
        target_names=["Class"],
        categories=categories,
    )


def test_openml_is_asked_where_there_is_no_file(monkeypatch):
    import sklearn.datasets

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", openml_bank)
    data = sources.load("bank_marketing")
    assert data.y.tolist() == [0, 1]
    assert data.X["job"].tolist() == ["job 4", "job 9"]
    assert data.X["marital"].tolist() == ["married", "single"]
    assert data.X["age"].tolist() == [58.0, 44.0]


def test_where_openml_fails_both_places_are_named(monkeypatch):
    import sklearn.datasets

    def fail(**options):
        raise OSError("no network")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fail)
    with pytest.raises(InvalidInput, match=r"bank_marketing.parquet or .*csv was not found.*1461.*OSError: no network"):
        sources.load("bank_marketing")


def test_openml_s_cache_gives_adult_as_it_is_shipped(monkeypatch):
    if not (SHARED / "openml_cache").is_dir():
        pytest.skip("there is no offline copy of OpenML's cache beside the project")
    from functools import partial

    import sklearn.datasets

    cached = partial(sklearn.datasets.fetch_openml, data_home=str(SHARED / "openml_cache"))
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", cached)
    source = sources.Source("Adult", "adult", "class", ("<=50K", ">50K"), ("sex",), openml=1590)
    columns = sources._fetch(source, None)
    found, shipped = sources._dataset(source, columns), load_adult()
    # the published files and OpenML's copy hold the same people, in another order
    assert len(found.y) == len(shipped.y)
    assert found.y.sum() == shipped.y.sum()
    assert sum(found.X["sex"] == "Male") == sum(shipped.X["sex"] == "Male")
    assert sum(v is None for v in found.X["workclass"]) == sum(v is None for v in shipped.X["workclass"])


def test_wrong_files_are_refused(tmp_path):
    (tmp_path / "credit_default.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match="lack the columns default, SEX"):
        sources.load("credit_default", tmp_path)
    (tmp_path / "bank_marketing.csv").write_text(BANK.replace(",yes\n", ",perhaps\n"))
    with pytest.raises(InvalidInput, match="holds 'perhaps'; expected"):
        sources.load("bank_marketing", tmp_path)
    (tmp_path / "diabetes130.parquet").write_bytes(b"no parquet")
    with pytest.raises(InvalidInput, match=r"diabetes130.parquet can't be read"):
        sources.load("diabetes", tmp_path)


@pytest.mark.parametrize(
    ("name", "rows", "counts"),
    [
        ("bank_marketing", 45_211, [39_922, 5_289]),
        ("credit_default", 30_000, [23_364, 6_636]),
        ("student_dropout", 4_424, [1_421, 794, 2_209]),
    ],
)
def test_the_published_files(name, rows, counts):
    if not (SHARED / f"{sources.SOURCES[name].file}.parquet").is_file():
        pytest.skip(f"{name} is not beside the project")
    data = sources.load(name, SHARED)
    assert len(data.y) == rows
    assert np.bincount(data.y).tolist() == counts
    assert set(sources.SOURCES[name].groups) <= set(data.X)
