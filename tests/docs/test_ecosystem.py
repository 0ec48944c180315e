"""The examples with other libraries run where these are installed."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pages

PAGE = (pages.ROOT / "docs" / "how-to" / "ecosystem.md").read_text(encoding="utf-8")
TITLES = {"LightGBM": "lightgbm", "XGBoost": "xgboost", "CatBoost": "catboost", "torch": "torch"}


def blocks(title):
    """Return the code of a section."""
    section = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(r"^```py\n(.*?)^```$", section[1], re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def shared():
    names = {}
    exec(re.search(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1], names)
    return names


def test_every_section_is_tested():
    assert set(re.findall(r"^## (.*)$", PAGE, re.MULTILINE)) == {*TITLES, "fairlearn", "MLflow"}


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.filterwarnings("ignore")
def test_a_model_is_recalibrated(title, shared):
    pytest.importorskip(TITLES[title], reason=f"{TITLES[title]} is not installed")
    names = dict(shared)
    for block in blocks(title):
        exec(block, names)
    assert names["after"] < names["before"] + 0.002
    assert names["calibrated"].shape == (len(names["test"]),)


@pytest.mark.filterwarnings("ignore")
def test_fairlearn_shows_the_gaps_of_an_audit(shared, capsys):
    pytest.importorskip("fairlearn", reason="fairlearn is not installed")
    names = dict(shared)
    exec(*blocks("fairlearn"), names)
    printed = capsys.readouterr().out
    rows = re.findall(r"(\w+): ([+-]\d\.\d+), audited ([+-]\d\.\d+) to ([+-]\d\.\d+)", printed)
    assert [row[0] for row in rows] == ["Female", "Male"]
    assert all(float(low) <= float(gap) <= float(high) for _, gap, low, high in rows)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_serves_the_same_probabilities(shared, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    names = dict(shared)
    exec(*blocks("MLflow"), names)
    expected = names["fit"].predictor(names["p"][names["test"]], names["take"](names["test"]))
    np.testing.assert_array_equal(np.asarray(names["calibrated"]), expected)
