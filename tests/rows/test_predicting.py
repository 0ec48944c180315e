"""Predictors on sources: batch in, array out, the same numbers as in memory; errors say where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lowcal
from far_rows import DATA, SOURCES, cut, fit, source, three_classes
from lowcal import persistence
from lowcal.data.errors import InvalidInput, MissingColumn
from lowcal.data.frames import Table
from lowcal.rows.updates import Predictor

N = len(DATA["y"])


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return fit(DATA, None).predictor


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_is_calibrated_as_memory_is(kind: str, predictor: Predictor, tmp_path: Path) -> None:
    found = predictor("p", source(kind, tmp_path))
    assert isinstance(found, Iterator)
    parts = list(found)
    assert all(type(part) is np.ndarray and part.ndim == 1 for part in parts)
    assert np.array_equal(np.concatenate(parts), predictor("p", DATA))


def test_there_is_an_array_for_each_batch_and_none_is_read_ahead(predictor: Predictor) -> None:
    read: list[int] = []

    def tables() -> Iterator[Any]:
        for table in cut(DATA, 1000)():
            read.append(1)
            yield table

    found = predictor("p", tables)
    assert read == []
    assert len(next(found)) == 1000
    assert len(read) == 1
    assert [len(part) for part in found] == [1000, 1000]


def test_nothing_in_nothing_out(predictor: Predictor) -> None:
    assert list(predictor("p", lambda: iter([]))) == []


CLASSES = {
    "groups": lowcal.Groups(),
    "pairs": lowcal.Intersections(["city", "age"]),
    "thresholds": lowcal.Thresholds("age", min_mass=1000),
    "trees": lowcal.Trees(columns=["city", "age", "band"]),
    "linear": lowcal.Linear(columns=["age", "band"]),
    "sum": lowcal.Groups("city") + lowcal.Trees(columns=["age"]),
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_class(name: str, tmp_path: Path) -> None:
    data = {key: DATA[key] for key in ("y", "p", "city", "age", "band")}
    learned = fit(data, None, subpopulations=CLASSES[name], alpha=0.005, guard=False).predictor
    persistence.save(learned, tmp_path / "model.json")
    loaded = persistence.load(tmp_path / "model.json")
    for one in (learned, loaded):
        assert len(one) > 0
        found = np.concatenate(list(one("p", cut(data, 700))))
        np.testing.assert_allclose(found, one("p", data), rtol=0, atol=1e-15)


def test_memberships() -> None:
    C = np.random.default_rng(0).random((N, 3))
    X = {f"c{k}": C[:, k] * (DATA["y"] == 1) + 0.0 for k in range(3)}
    learned = lowcal.multicalibrate(DATA["y"], DATA["p"], X, subpopulations=lowcal.Memberships()).predictor
    assert len(learned) > 0
    found = np.concatenate(list(learned("p", cut({**X, "p": DATA["p"]}, 700))))
    np.testing.assert_allclose(found, learned(DATA["p"], X), rtol=0, atol=1e-15)
    assert np.array_equal(learned("p", {**DATA, **X}), learned(DATA["p"], X))


def test_a_predictor_that_reads_scores() -> None:
    learned = lowcal.recalibrate("y", "p", {key: DATA[key] for key in ("y", "p", "city", "age")}).predictor
    found = np.concatenate(list(learned("p", cut(DATA, 700))))
    np.testing.assert_allclose(found, learned("p", DATA), rtol=0, atol=1e-15)


class Own:
    """An encoder that is not lowcal's own."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder

    def __call__(self, X: Table) -> Any:
        return self.encoder(X)


def test_an_encoder_of_ones_own_sees_all_columns(predictor: Predictor) -> None:
    own = Predictor(Own(predictor.encoder), predictor.updates, predictor.layout)  # type: ignore[arg-type]
    assert np.array_equal(np.concatenate(list(own("p", cut(DATA, 700)))), predictor("p", DATA))


def test_several_classes() -> None:
    data, names = three_classes(), ["p_a", "p_b", "p_c"]
    learned = fit(data, None, p=names, subpopulations=lowcal.Groups("city"), alpha=0.003, guard=False).predictor
    parts = list(learned(names, cut(data, 700)))
    assert [part.shape for part in parts] == [(700, 3)] * 4 + [(200, 3)]
    assert np.array_equal(np.concatenate(parts), learned(names, data))
    with pytest.raises(InvalidInput, match=r"p must have 3 columns, but its shape is \(700, 2\)"):
        next(learned(names[:2], cut(data, 700)))


def test_two_columns_of_two_classes(predictor: Predictor) -> None:
    data = {**DATA, "q": 1.0 - DATA["p"]}
    found = np.concatenate(list(predictor(["q", "p"], cut(data, 700))))
    assert found.shape == (N, 2)
    assert np.array_equal(found, predictor(["q", "p"], data))


def test_errors_come_at_once_or_say_where(predictor: Predictor, tmp_path: Path) -> None:
    for given, said in (
        (tmp_path / "nowhere.parquet", "There is no file"),
        (iter([DATA]), "can be read only once"),
        (f"{tmp_path}/*.parquet", "No file matches"),
    ):
        with pytest.raises(InvalidInput, match=said):
            predictor("p", given)
    with pytest.raises(MissingColumn, match="the source has no column 'q'; it has 'y', 'p'"):
        next(predictor("q", cut(DATA, 500)))
    without = {name: column for name, column in DATA.items() if name != "city"}
    with pytest.raises(MissingColumn, match="the source has no column 'city'"):
        next(predictor("p", cut(without, 500)))
    bad = {**DATA, "p": np.where(np.arange(N) == 1034, 1.5, DATA["p"])}
    found = predictor("p", cut(pd.DataFrame(bad), 500))
    assert [len(next(found)), len(next(found))] == [500, 500]
    with pytest.raises(InvalidInput, match=r"p is 1.5 in row 34.*within the batch that begins at row 1000"):
        next(found)


def test_what_a_reader_does_with_a_batch_is_not_blamed_on_it(predictor: Predictor) -> None:
    """An error of the caller that is thrown into the iterator stays as it is."""
    found = predictor("p", cut(DATA, 500))
    next(found), next(found)
    with pytest.raises(InvalidInput, match=r"^mine$"):
        found.throw(InvalidInput("mine"))
