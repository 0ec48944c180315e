"""Cut points of the user's own: the same groups wherever rows live, saved, exported and served."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

import lowcal
from lowcal import Groups, Intersections, MulticalibratedClassifier, Thresholds, Trees, audit, measure, multicalibrate
from lowcal.data.errors import DamagedFile, InvalidInput

CUTS = {"age": [25, 40, 65], "sex": None}
AGES = ["age<=25", "25<age<=40", "40<age<=65", "age>65"]


@pytest.fixture(scope="module")
def world():
    """Labels, predictions and a table: those older than 40 are underestimated."""
    rng = np.random.default_rng(0)
    X = {"age": rng.integers(18, 90, 4000), "sex": rng.choice(["F", "M"], 4000), "other": rng.random(4000)}
    p = rng.uniform(0.1, 0.6, 4000)
    y = (rng.random(4000) < p + 0.2 * (X["age"] > 40)).astype(int)
    return y, p, X


def names_of(chosen, X):
    return list(chosen.prepare(X).families[0].names)


def test_groups_end_at_the_cut_points(world):
    _, _, X = world
    assert names_of(Groups(CUTS), X) == ["everyone", *AGES, "sex=F", "sex=M"]
    assert names_of(Groups({0: [40]}), np.column_stack([X["age"]])) == ["everyone", "x0<=40", "x0>40"]
    inside = measure(*world[:2], X, subpopulations=Groups(CUTS)).mass[2]
    assert inside == pytest.approx(np.mean((X["age"] > 25) & (X["age"] <= 40)))


def test_intersections_of_cut_points(world):
    _, _, X = world
    names = names_of(Intersections(CUTS), X)
    assert len(names) == 1 + 4 + 2 + 8
    assert "25<age<=40 & sex=F" in names


def test_few_values_are_cut_and_small_bins_are_left_out(world):
    _, _, X = world
    assert names_of(Groups({"age": [40, 88.5]}), X)[1:] == ["age<=40", "40<age<=88.5", "age>88.5"]
    assert names_of(Groups({"age": [40, 200]}), X)[1:] == ["age<=40", "40<age<=200"]
    children = {"kids": np.arange(400) % 3}
    assert names_of(Groups({"kids": [0]}), children)[1:] == ["kids<=0", "kids>0"]


def test_dates_are_cut_at_dates():
    days = np.datetime64("2024-01-01") + np.arange(400)
    expected = ["day<=2024-06-30", "day>2024-06-30"]
    for cut in ("2024-06-30", dt.date(2024, 6, 30), np.datetime64("2024-06-30")):
        assert names_of(Groups({"day": [cut]}), {"day": days})[1:] == expected


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([40, 25], r"rising order, but 'age' was given \[40, 25\]"),
        ([25, 25], "rising order"),
        ([], "rising order"),
        ([[25]], "rising order"),
        ([float("nan")], "rising order"),
        (["old"], "must be numbers"),
        (40, "rising order"),
    ],
)
def test_cut_points_that_make_no_sense(world, cuts, message):
    with pytest.raises(InvalidInput, match=message):
        Groups({"age": cuts}).prepare(world[2])


def test_cut_points_for_what_can_not_be_cut(world):
    with pytest.raises(InvalidInput, match=r"'sex' of X holds no numbers to cut at \[1\].*\{'sex': None\}"):
        Groups({"sex": [1]}).prepare(world[2])
    for other in (Trees(columns=CUTS), Thresholds(CUTS)):
        with pytest.raises(InvalidInput, match="Only Groups and Intersections take cut points"):
            other.prepare(world[2])


def test_a_list_of_columns_is_accepted_wherever_a_class_is(world, tmp_path):
    y, p, X = world
    for given, meant in ((["age", "sex"], Groups(["age", "sex"])), (("sex",), Groups(["sex"])), (CUTS, Groups(CUTS))):
        one, other = (measure(y, p, X, subpopulations=chosen) for chosen in (given, meant))
        assert one.names == other.names
        np.testing.assert_array_equal(one.violation, other.violation)
        fits = [multicalibrate(y, p, X, subpopulations=chosen, alpha=0.02) for chosen in (given, meant)]
        np.testing.assert_array_equal(*(fit.predictor(p, X) for fit in fits))
    assert "25<age<=40" in [one.subpopulation for one in audit(y, p, X, subpopulations=CUTS).findings]
    assert lowcal.metrics.degree_error(y, p, X, subpopulations=["sex"]) >= 0.0
    with pytest.raises(InvalidInput, match="or a list of columns, but 'sex' was given"):
        measure(y, p, X, subpopulations="sex")


@pytest.mark.parametrize("make", [Groups, Intersections])
def test_cut_points_are_saved_served_and_exported(world, make, tmp_path):
    y, p, X = world
    fit = multicalibrate(y, p, X, subpopulations=make(CUTS), alpha=0.01)
    calibrated = fit.predictor(p, X)
    assert np.abs(calibrated - p).max() > 0.1
    lowcal.save(fit, tmp_path / "m.json")
    np.testing.assert_array_equal(lowcal.load(tmp_path / "m.json").predictor(p, X), calibrated)
    for i in range(20):
        row = {"age": int(X["age"][i]), "sex": str(X["sex"][i])}
        assert fit.predictor.one(p[i], row) == pytest.approx(calibrated[i], abs=1e-12)
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    lowcal.to_onnx(fit, tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    feed = {"p": p, "age": X["age"].astype(float), "sex": X["sex"].astype(object)}
    wanted = {one.name: feed[one.name] for one in session.get_inputs()}
    np.testing.assert_allclose(session.run(None, wanted)[0].ravel(), calibrated, atol=1e-12)


def test_cut_points_are_the_same_on_disk_and_with_copies(world, tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow as pa
    import pyarrow.parquet as pq

    y, p, X = world
    pq.write_table(pa.table({**X, "y": y, "p": p}), tmp_path / "rows.parquet", row_group_size=500)
    options = {"subpopulations": Intersections(CUTS), "alpha": 0.01}
    near = multicalibrate(y, p, X, **options)
    far = multicalibrate("y", "p", tmp_path / "rows.parquet", memory=1, **options)
    np.testing.assert_array_equal(near.predictor(p, X), far.predictor(p, X))
    once = measure(y, p, X, subpopulations=CUTS, frequency_weight=np.full(len(y), 2))
    assert once.names == measure(y, p, X, subpopulations=CUTS).names


def test_estimators_keep_cut_points_and_lists(world, tmp_path):
    pd = pytest.importorskip("pandas")
    y, _, X = world
    frame = pd.DataFrame(X)
    for given in (CUTS, ["age"], Intersections(CUTS)):
        model = MulticalibratedClassifier(subpopulations=given, validation_fraction=0.0, max_updates=3).fit(frame, y)
        lowcal.save(model, tmp_path / "m.json")
        loaded = lowcal.load(tmp_path / "m.json")
        assert loaded.subpopulations == given
        np.testing.assert_array_equal(loaded.predict_proba(frame), model.predict_proba(frame))


@pytest.mark.parametrize(
    "damaged", [{"columns": ["age"], "cuts": []}, {"columns": [["age"]], "cuts": [[1]]}, {"columns": "a", "cuts": "b"}]
)
def test_damaged_cut_points_are_refused(damaged):
    from lowcal.data.checked_json import Plain
    from lowcal.persistence import read_value
    from lowcal.subpopulations import CLASSES

    with pytest.raises(DamagedFile):
        read_value(Plain({"kind": "cuts", **damaged}, "settings"), CLASSES.known)


# --- settings in a grid search ---------------------------------------------------------------------------------


def test_settings_of_the_class_are_searched(world):
    pd = pytest.importorskip("pandas")
    y, _, X = world
    chosen = Groups(["age"])
    model = MulticalibratedClassifier(subpopulations=chosen, max_updates=3, random_state=0)
    grid = {"subpopulations__n_bins": [2, 6], "subpopulations__min_mass": [30]}
    search = GridSearchCV(model, grid, scoring="neg_log_loss", cv=2, error_score="raise").fit(pd.DataFrame(X), y)
    best = search.best_estimator_.subpopulations
    assert best == Groups(["age"], n_bins=search.best_params_["subpopulations__n_bins"])
    assert chosen.n_bins == 5  # a value: nothing was changed


def test_settings_of_the_class_by_name():
    model = MulticalibratedClassifier(LogisticRegression(), subpopulations=Intersections(["a", "b"]))
    names = {name for name in model.get_params() if name.startswith("subpopulations__")}
    assert names == {f"subpopulations__{name}" for name in ("columns", "depth", "n_bins", "min_mass", "everyone")}
    assert "subpopulations__depth" not in model.get_params(deep=False)
    model.set_params(estimator__C=0.5, subpopulations__depth=3)
    assert (model.estimator.C, model.subpopulations) == (0.5, Intersections(["a", "b"], depth=3))
    model.set_params(subpopulations=Groups(["a"]), subpopulations__n_bins=4)
    assert model.subpopulations == Groups(["a"], n_bins=4)
    with pytest.raises(ValueError, match="Invalid parameter 'depth' for subpopulations=Groups"):
        model.set_params(subpopulations__depth=2)
