"""The estimators: scikit-learn's contract, and that recalibration helps where the model was wrong."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.metrics import brier_score_loss, get_scorer, log_loss
from sklearn.model_selection import GridSearchCV, ShuffleSplit, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from sklearn.utils.metadata_routing import get_routing_for_object

import lowcal
from lowcal import Groups, Linear, MulticalibratedClassifier, MulticalibratedRegressor, Status, Trees, multicalibrate
from lowcal.data.errors import InvalidInput
from lowcal.estimators import BOOSTED, LEAST_HELD_OUT
from lowcal.solve.fitting import fit_rows

Classifier, Regressor = MulticalibratedClassifier, MulticalibratedRegressor


@pytest.fixture(scope="module")
def data():
    """Two groups whose logits differ by more than a linear model on the numbers can know."""
    return draw(3000, seed=0)


def draw(n, seed):
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(n, 3))
    sex = rng.choice(["F", "M"], n)
    truth = 1 / (1 + np.exp(-(numbers[:, 0] + np.where(sex == "F", 1.2, -1.2))))
    return numbers, sex, (rng.random(n) < truth).astype(int), truth


def frame(numbers, sex):
    pd = pytest.importorskip("pandas")
    return pd.DataFrame(numbers, columns=["a", "b", "c"]).assign(sex=sex)


def coded(numbers, sex):
    return np.column_stack([numbers, sex == "F"])


class Numbers(ClassifierMixin, BaseEstimator):
    """A logistic model that sees the first three columns only."""

    def __init__(self, C=1.0):
        self.C = C

    def fit(self, X, y, sample_weight=None):
        self.model_ = LogisticRegression(C=self.C).fit(self._numbers(X), y, sample_weight)
        self.classes_ = self.model_.classes_
        return self

    def _numbers(self, X):
        return np.asarray(X[["a", "b", "c"]] if hasattr(X, "columns") else X[:, :3], dtype=float)

    def predict_proba(self, X):
        return self.model_.predict_proba(self._numbers(X))

    def predict(self, X):
        return self.model_.predict(self._numbers(X))


# --- defaults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_cross_fitting_chooses_the_updates_and_all_rows_fit_them(data, share):
    """The share that each fold holds out is the guard's."""
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    base = Numbers().fit(X[:500], y[:500])
    options = {"subpopulations": Trees(max_depth=1), "alpha": 1e-4}
    model = Classifier(FrozenEstimator(base), validation_fraction=share, random_state=3, **options).fit(X, y)
    p = base.predict_proba(X)
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    same = multicalibrate(y, p, X, guard=share, random_state=seed, **options)
    np.testing.assert_array_equal(model.predict_proba(X), same.predictor(p, X))
    assert (model.status_, model.history_) == (same.status, same.history)
    assert model.status_ == Status.GUARDED
    assert model.history_[-1].held_out_log_loss < same.start.held_out_log_loss


@pytest.mark.parametrize(
    ("options", "n", "expected"),
    [
        ({}, 100, (None, None, BOOSTED["n_trees"], "mirror")),
        ({}, 95, (None, 0.01, 1, "mirror")),  # too few rows to hold any out: no boosting, no small alpha
        ({"validation_fraction": 0.0}, 400, (None, 0.01, 1, "mirror")),
        ({"solver": "first"}, 95, (None, 0.01, 1, "mirror")),
        ({"geometry": "euclidean", "alpha": 0.2}, 100, ("euclidean", 0.2, BOOSTED["n_trees"], "euclidean")),
    ],
)
def test_what_the_defaults_mean(monkeypatch, options, n, expected):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, 2)), np.arange(n) % 2
    given = []

    def watch(*args):
        given.append(args[5])
        return fit_rows(*args)

    monkeypatch.setattr("lowcal.estimators.fit_rows", watch)
    Classifier(random_state=0, max_updates=1, **options).fit(X, y)
    for call in given:
        trees = call.subpopulations
        assert (call.geometry, call.alpha, trees.n_trees, trees.geometry) == expected
    assert len(given) == 1
    Regressor(random_state=0, max_updates=1).fit(X, y.astype(float))
    assert given[1].subpopulations.geometry == "mirror"


@pytest.mark.parametrize(("make", "base"), [(Classifier, LogisticRegression), (Regressor, LinearRegression)])
@pytest.mark.parametrize("asked", [{}, {"alpha": 0.01}, {"notion": "smooth"}, {"subpopulations": Groups([])}])
def test_a_base_model_is_recalibrated_by_what_cross_validation_chooses(make, base, asked):
    """Unless a notion, a class or a target is asked for."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 3))
    y = X[:, 0] + np.abs(X[:, 1]) > 0.5 if make is Classifier else np.tanh(X[:, 0] + np.abs(X[:, 1]))
    model = make(base(), random_state=0, **asked).fit(X, y)
    assert (model.status_ == "chosen") == (not asked)
    assert bool(model.fit_.candidates) == (not asked)
    if not asked:
        assert model.fit_.candidates.chosen.name.endswith(("groups", "trees"))
        assert model.score(X, y) > model.estimator_.score(X, y)


def test_a_base_model_on_few_rows_is_guarded(monkeypatch):
    """However few they are: there is a model that could be made worse."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), np.arange(60) % 2
    given = []
    monkeypatch.setattr("lowcal.estimators.fit_rows", lambda *args: given.append(args[5]) or fit_rows(*args))
    Classifier(LogisticRegression(), alpha=0.01, random_state=0).fit(X, y)
    assert [call.guard for call in given] == [0.2]


BOOSTS = Trees(n_trees=2, geometry="euclidean")


@pytest.mark.parametrize(
    ("trees", "geometry"), [(BOOSTS, "euclidean"), (Groups() + BOOSTS, "euclidean"), (Trees(n_trees=2), "mirror")]
)
def test_trees_that_boost_bring_their_geometry(trees, geometry):
    X = np.random.default_rng(0).normal(size=(400, 2))
    y = X[:, 0] > -0.7
    model = Classifier(subpopulations=trees, alpha=1e-4, random_state=0, max_updates=1).fit(X, y)
    assert model.predictor_.updates[0].geometry == geometry


def test_the_default_learns_an_interaction():
    """Neither column says anything alone, and the base model is sure of nothing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 4))
    truth = np.where(X[:, 0] * X[:, 1] > 0, 0.85, 0.15)
    y = (rng.random(6000) < truth).astype(int)
    model = Classifier(LogisticRegression(), random_state=0).fit(X[:4000], y[:4000])
    p = model.predict_proba(X[4000:])[:, 1]
    assert np.mean((p - truth[4000:]) ** 2) < 0.3 * np.mean((0.5 - truth[4000:]) ** 2)


# --- scikit-learn's own checks -------------------------------------------------------------------------------


@parametrize_with_checks(
    [  # without a base model, the classifier passes all of them in the next test
        Regressor(),
        Classifier(LogisticRegression(), random_state=0),
        Regressor(LinearRegression(), random_state=0),
        Classifier(LogisticRegression(), cv=3, random_state=0),
        Regressor(LinearRegression(), cv=3, random_state=0),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def outcomes(estimator):
    """Return what each check says, "passed" if all of its variants pass."""
    found = {}
    for result in check_estimator(estimator, on_fail=None, on_skip=None):
        if found.get(result["check_name"], "passed") == "passed":
            found[result["check_name"]] = result["status"]
    return found


def test_no_check_is_skipped_that_the_nearest_relative_passes():
    ours = outcomes(Classifier())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = outcomes(CalibratedClassifierCV(LogisticRegression(C=1)))
    passed = {name for name, status in theirs.items() if status == "passed"}
    assert len(passed) > 30
    short = {name: ours.get(name, "not run") for name in passed if ours.get(name) != "passed"}
    assert not short
    left = {name for name, status in ours.items() if status != "passed"}
    assert left <= {"check_array_api_input"}  # scikit-learn's own condition: an environment variable


# --- inside scikit-learn's tools -----------------------------------------------------------------------------


def test_in_a_pipeline_and_a_grid_search(data):
    numbers, sex, y, _ = data
    model = Classifier(LogisticRegression(), random_state=0)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {
            "multicalibratedclassifier__alpha": [0.01, 0.2],
            "multicalibratedclassifier__notion": ["multiaccuracy", "degree-2"],
            "multicalibratedclassifier__estimator__C": [1.0],
        },
        scoring="neg_brier_score",
        cv=2,
    )
    search.fit(coded(numbers, sex)[:1000], y[:1000])
    assert set(search.best_params_) == set(search.param_grid)
    assert search.predict_proba(coded(numbers, sex)).shape == (3000, 2)
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()


@pytest.mark.parametrize("backend", ["pandas", "polars"])
def test_cross_val_predict_on_frames_with_named_groups(data, backend):
    numbers, sex, y, truth = data
    X = frame(numbers, sex)
    if backend == "polars":
        X = pytest.importorskip("polars").from_pandas(X)
    start = cross_val_predict(Numbers(), X, y, cv=3, method="predict_proba")[:, 1]
    model = Classifier(Numbers(), subpopulations=Groups(["sex", "a"]), alpha=0.005, random_state=0)
    calibrated = cross_val_predict(model, X, y, cv=3, method="predict_proba")[:, 1]
    for group in ("F", "M"):
        wrong = [abs(np.mean((p - truth)[sex == group])) for p in (start, calibrated)]
        assert wrong[1] < 0.3 * wrong[0]
    assert brier_score_loss(y, calibrated) < brier_score_loss(y, start) - 0.01


def test_an_arrow_table_is_read_where_the_base_model_can(data):
    pa = pytest.importorskip("pyarrow")
    numbers, sex, y, _ = data
    table = pa.Table.from_pandas(frame(numbers, sex), preserve_index=False)
    model = Classifier(subpopulations=Groups(["sex"]), random_state=0).fit(table, y)
    expected = Classifier(subpopulations=Groups(["sex"]), random_state=0).fit(frame(numbers, sex), y)
    np.testing.assert_array_equal(model.predict_proba(table), expected.predict_proba(frame(numbers, sex)))


def test_a_column_transformer_as_the_base_model(data):
    numbers, sex, y, _ = data
    X = frame(numbers, sex)
    base = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["sex"]), remainder="passthrough"), LogisticRegression()
    )
    model = Classifier(base, subpopulations=Groups(["sex"]), random_state=0).fit(X, y)
    assert list(model.feature_names_in_) == ["a", "b", "c", "sex"]
    assert model.score(X, y) > 0.7


@pytest.mark.parametrize("make", [Classifier, Regressor])
def test_clone_and_parameters(make):
    model = make(Numbers(C=2.0), alpha=0.03, subpopulations=Groups("sex") + Linear(), notion="smooth", solver="worst")
    copy = clone(model)
    assert copy is not model
    assert copy.get_params()["estimator__C"] == 2.0
    assert copy.subpopulations == model.subpopulations
    assert copy.set_params(alpha=0.1, estimator__C=3.0).estimator.C == 3.0
    assert model.alpha == 0.03
    assert "alpha=0.03" in repr(model)


def test_constructors_do_nothing():
    for make in (Classifier, Regressor):
        model = make(estimator="no model", alpha=-1, notion="?")
        assert model.get_params()["alpha"] == -1


# --- the three kinds of base model ---------------------------------------------------------------------------


def test_a_frozen_model_is_recalibrated_on_all_rows(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    base = Numbers().fit(X[:500], y[:500])
    options = {"subpopulations": Groups(["x3"]), "alpha": 0.005, "geometry": "mirror"}
    model = Classifier(FrozenEstimator(base), validation_fraction=0.0, **options).fit(X, y)
    fit = multicalibrate(y, base.predict_proba(X), X, **options)  # on every row given
    np.testing.assert_array_equal(model.predict_proba(X), fit.predictor(base.predict_proba(X), X))
    assert model.status_ == Status.REACHED
    assert model.fit_.violation == fit.violation
    assert model.estimator_ is model.estimator
    fresh = draw(3000, seed=1)
    X = coded(*fresh[:2])
    before, after = (np.mean((m.predict_proba(X)[:, 1] - fresh[3]) ** 2) for m in (base, model))
    assert after < 0.5 * before


def test_an_unfitted_model_is_fitted_on_the_other_rows(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    seen = []

    class Spy(Numbers):
        def fit(self, X, y, sample_weight=None):
            seen.append(X)
            return super().fit(X, y, sample_weight)

    model = Classifier(Spy(), calibration_fraction=0.3, random_state=0).fit(X, y)
    assert [len(part) for part in seen] == [2100]
    assert model.estimator_ is not model.estimator
    assert not hasattr(model.estimator, "model_")
    rows = {tuple(row) for row in X} - {tuple(row) for row in seen[0]}
    assert len(rows) == 900


class Seen(Numbers):
    """A base model that remembers its rows."""

    def fit(self, X, y, sample_weight=None):
        self.seen_ = {tuple(row) for row in X}
        return super().fit(X, y, sample_weight)


def test_cross_fitted_predictions_are_of_rows_not_seen_and_averaged(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    folds = [(np.flatnonzero(np.arange(len(y)) % 3 != k), np.flatnonzero(np.arange(len(y)) % 3 == k)) for k in range(3)]
    options = {"subpopulations": Groups(["x3"]), "alpha": 0.005, "geometry": "mirror"}
    model = Classifier(Seen(), cv=folds, validation_fraction=0.0, **options).fit(X, y)
    p = np.empty((len(y), 2))
    for one, (train, held) in zip(model.estimator_, folds, strict=True):
        assert one.seen_ == {tuple(row) for row in X[train]}
        p[held] = one.predict_proba(X[held])
    fit = multicalibrate(y, p, X, **options)
    expected = np.mean([fit.predictor(one.predict_proba(X), X) for one in model.estimator_], axis=0)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-12)
    *_, last = model.staged_predict_proba(X)
    np.testing.assert_array_equal(last, model.predict_proba(X))


def test_cross_fitted_models_start_with_their_whole_line(data):
    """Nothing shows on 300 rows, and a model that was given stays as it is; those fitted here are scaled."""
    numbers, sex, y, _ = data
    rows = slice(0, 300)
    base = make_pipeline(StandardScaler(), LogisticRegression())
    X, y = coded(numbers, sex)[rows], np.random.default_rng(0).permutation(y[rows])
    assert Classifier(base, cv=5, random_state=0).fit(X, y).fit_.candidates.chosen.name == "1.00 line"
    given = FrozenEstimator(base.fit(X[:150], y[:150]))
    assert Classifier(given, cv=5, random_state=0).fit(X[150:], y[150:]).fit_.candidates.chosen.name == "unchanged"


@pytest.mark.parametrize("make", [Classifier, Regressor])
def test_a_number_of_folds_uses_every_row_once(data, make):
    numbers, sex, y, _ = data
    X, y = coded(numbers, sex), np.sort(y)  # folds in the order of the rows would hold one class only
    base = Seen() if make is Classifier else Ridge()
    model = make(base, cv=4, random_state=0).fit(X, y)
    assert len(model.estimator_) == 4
    if make is Classifier:
        assert [len(one.seen_) for one in model.estimator_] == [2250] * 4
        assert min(sum(tuple(row) in one.seen_ for one in model.estimator_) for row in X) == 3
    again = make(base, cv=4, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), again.predict(X))


def test_weights_of_folds_are_those_of_their_rows(data):
    numbers, sex, y, _ = data
    X, w = coded(numbers, sex), np.arange(len(y)) % 3.0
    given = []

    class Spy(Numbers):
        def fit(self, X, y, sample_weight=None):
            given.append((X[:, -1], sample_weight))
            return super().fit(X, y, sample_weight)

    Classifier(Spy(), cv=2, random_state=0).fit(np.column_stack([X, w]), y, sample_weight=w)
    assert len(given) == 2
    for marked, weight in given:
        np.testing.assert_array_equal(marked, weight)


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        (1, "cv must be a whole number of at least 2, but 1"),
        (True, "cv must be a whole number of at least 2, but True"),
        (ShuffleSplit(3, random_state=0), "cv must hold out every row at most once"),
        ("five", "cv"),
    ],
)
def test_folds_that_make_no_sense(data, cv, message):
    numbers, sex, y, _ = data
    with pytest.raises(ValueError, match=message):
        Classifier(Numbers(), cv=cv).fit(coded(numbers, sex), y)


def test_cross_fitting_beats_a_split_of_few_rows(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    change = []
    for k in range(8):
        rows = np.random.default_rng(k).permutation(len(y))
        few, rest = rows[:200], rows[200:]
        base = make_pipeline(StandardScaler(), LogisticRegression())
        losses = [
            log_loss(y[rest], Classifier(base, cv=cv, random_state=0).fit(X[few], y[few]).predict_proba(X[rest]))
            for cv in (None, 5)
        ]
        change.append(losses[1] - losses[0])
    assert np.mean(change) < 0


def test_cross_fitted_models_are_saved_without_the_base_models(data, tmp_path):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    model = Classifier(Numbers(), cv=3, random_state=0).fit(X, y)
    lowcal.save(model, tmp_path / "m.json")
    loaded = lowcal.load(tmp_path / "m.json", estimator=model.estimator_)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert loaded.cv == 3
    with pytest.raises(InvalidInput, match=r"without its base model \(Numbers"):
        lowcal.load(tmp_path / "m.json").predict(X)
    with pytest.raises(InvalidInput, match="3 models of folds"):
        loaded.fit(X, y)
    for wrong in (model.estimator_[0], model.estimator_[:2]):
        with pytest.raises(InvalidInput, match="the list of its 3 base models"):
            lowcal.load(tmp_path / "m.json", estimator=wrong)


def test_learning_from_scratch_beats_the_constant(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    model = Classifier(None, alpha=0.003, subpopulations=Trees(max_depth=3), random_state=0).fit(X[:2000], y[:2000])
    assert model.estimator_ is None
    constant = DummyClassifier().fit(X[:2000], y[:2000]).predict_proba(X[2000:])[:, 1]
    own = model.predict_proba(X[2000:])[:, 1]
    assert brier_score_loss(y[2000:], own) < brier_score_loss(y[2000:], constant) - 0.03


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_base_model_without_probabilities(data, n_classes):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    y = y if n_classes == 2 else np.where(numbers[:, 0] > 1, 2, y)
    model = Classifier(LinearSVC(), random_state=0).fit(X, y)
    p = model.predict_proba(X)
    assert p.shape == (len(y), n_classes)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)
    assert model.score(X, y) > 0.65


def test_a_base_model_that_saw_fewer_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = np.array(["a", "b", "rare"])[np.where(X[:, 0] > 0, 1, 0)]
    y[:40] = "rare"
    base = GaussianNB().fit(X[40:], y[40:])
    model = Classifier(FrozenEstimator(base), alpha=0.02, validation_fraction=0.0, random_state=0).fit(X, y)
    assert list(model.classes_) == ["a", "b", "rare"]
    p = model.predict_proba(X)
    assert p.shape == (400, 3)
    assert p[:, 2].mean() == pytest.approx(0.1, abs=0.05)  # learnt in recalibration; the base model says 0


def test_the_columns_of_a_base_model_are_matched_by_class(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)

    class Turned(Numbers):
        def fit(self, X, y, sample_weight=None):
            super().fit(X, y, sample_weight)
            self.classes_ = self.classes_[::-1]
            return self

        def predict_proba(self, X):
            return super().predict_proba(X)[:, ::-1]

    plain, turned = (Classifier(base, random_state=0).fit(X, y) for base in (Numbers(), Turned()))
    np.testing.assert_allclose(plain.predict_proba(X), turned.predict_proba(X), atol=1e-12)


# --- weights, classes, stages --------------------------------------------------------------------------------


def test_weights_reach_the_base_model_and_the_recalibration(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    rng = np.random.default_rng(0)
    w = rng.integers(0, 3, len(y)).astype(float)
    base = Numbers().fit(X, y)
    # in log odds the first step is shrunk, and two rows say more than one of weight 2
    options = {"subpopulations": Groups(["x3"]), "alpha": 0.005, "validation_fraction": 0.0, "geometry": "euclidean"}
    weighted = Classifier(FrozenEstimator(base), **options).fit(X, y, sample_weight=w)
    repeated = Classifier(FrozenEstimator(base), **options).fit(
        np.repeat(X, w.astype(int), axis=0), np.repeat(y, w.astype(int))
    )
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-9)
    plain = Classifier(FrozenEstimator(base), **options).fit(X, y)
    assert np.abs(weighted.predict_proba(X) - plain.predict_proba(X)).max() > 1e-4

    given = []

    class Spy(Numbers):
        def fit(self, X, y, sample_weight=None):
            given.append((X, sample_weight))
            return super().fit(X, y, sample_weight)

    marked = np.column_stack([X, w])
    Classifier(Spy(), random_state=0).fit(marked, y, sample_weight=w)
    np.testing.assert_array_equal(given[0][1], given[0][0][:, -1])  # the weights of just these rows


def test_a_base_model_without_weights_is_fitted_without(data):
    numbers, sex, y, _ = data

    class Deaf(Numbers):
        def fit(self, X, y):
            return super().fit(X, y)

    with pytest.warns(UserWarning, match="Deaf.fit takes no sample_weight"):
        model = Classifier(Deaf(), random_state=0).fit(coded(numbers, sex), y, sample_weight=np.ones(len(y)))
    assert model.n_updates_ >= 0


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_are_named_and_predicted(data, n_classes):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    codes = y if n_classes == 2 else np.where(numbers[:, 0] > 0.8, 2, y)
    names = np.array(["zebra", "ant", "mole"])[codes]
    model = Classifier(LogisticRegression(), alpha=0.01, random_state=0).fit(X, names)
    assert list(model.classes_) == sorted(set(names))
    p = model.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), model.classes_[p.argmax(axis=1)])
    assert model.score(X, names) > 0.65
    same = Classifier(LogisticRegression(), alpha=0.01, random_state=0).fit(X, np.searchsorted(model.classes_, names))
    np.testing.assert_array_equal(same.predict_proba(X), p)


def test_stages_end_at_the_prediction(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    model = Classifier(alpha=0.005, solver="worst", subpopulations=Trees(), random_state=0).fit(X, y)
    stages = list(model.staged_predict_proba(X))
    assert model.n_updates_ >= len(stages) == len(model.predictor_) > 3
    np.testing.assert_array_equal(stages[-1], model.predict_proba(X))
    np.testing.assert_array_equal(stages[1], model.predictor_[:2](np.full((len(y), 2), 0.5), X))
    scores = [brier_score_loss(y, p[:, 1]) for p in stages]
    assert scores[-1] < scores[0] < 0.25


@pytest.mark.parametrize(
    "model",
    [
        Classifier(Numbers(), subpopulations=Trees(max_depth=2), random_state=0),
        Classifier(None, subpopulations=Linear(), notion="smooth", random_state=0),
        Regressor(LinearRegression(), subpopulations=Groups(), random_state=0),
    ],
    ids=["trees", "linear", "regression"],
)
def test_pickling(data, model):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)[:600]
    fitted = clone(model).fit(X, y[:600])
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    assert again.status_ == fitted.status_
    assert again.history_ == fitted.history_


def test_the_same_seed_gives_the_same_model(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    one, two, three = (Classifier(Numbers(), random_state=s).fit(X, y).predict_proba(X) for s in (4, 4, 5))
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - three).max() > 0
    generators = [np.random.RandomState(3), np.random.RandomState(3)]
    left, right = (Classifier(Numbers(), random_state=g).fit(X, y).predict_proba(X) for g in generators)
    np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(("n", "held_out"), [(99, False), (100, True), (500, True)])
def test_few_rows_are_not_held_out(data, n, held_out):
    numbers, sex, y, _ = data
    assert LEAST_HELD_OUT == 20
    model = Classifier(alpha=1e-4, solver="worst", max_updates=3, random_state=0).fit(coded(numbers, sex)[:n], y[:n])
    assert all((record.held_out_brier is not None) is held_out for record in model.history_)
    assert len(model.history_) > 0
    never = Classifier(alpha=1e-4, max_updates=1, validation_fraction=0.0).fit(coded(numbers, sex)[:n], y[:n])
    assert never.history_[0].held_out_brier is None


def test_what_is_fitted_can_be_asked_for(data):
    numbers, sex, y, _ = data
    model = Classifier(subpopulations=Groups(), alpha=0.01, random_state=0).fit(coded(numbers, sex), y)
    assert model.status_ in set(Status)
    assert model.history_ == model.fit_.history
    assert model.n_oracle_calls_ > 0
    assert model.n_features_in_ == 4
    assert model.predictor_ is model.fit_.predictor


def test_missing_values_need_somebody_who_can_use_them(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    X[::7, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        Classifier().fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        Classifier(LogisticRegression()).fit(X, y)
    for model in (Classifier(subpopulations=Groups()), Classifier(DecisionTreeClassifier(max_depth=3), random_state=0)):
        assert np.isfinite(model.fit(X, y).predict_proba(X)).all()


# --- regression ----------------------------------------------------------------------------------------------


def regression(n, seed):
    rng = np.random.default_rng(seed)
    x, group = rng.normal(size=n), rng.integers(0, 3, n)
    y = np.clip(50 + 10 * x + np.array([-12.0, 0.0, 12.0])[group] + rng.normal(size=n), 0, 100)
    return np.column_stack([x, group]), y, group


class First(RegressorMixin, BaseEstimator):
    """A line on the first column only."""

    def fit(self, X, y):
        self.model_ = LinearRegression().fit(X[:, :1], y)
        return self

    def predict(self, X):
        return self.model_.predict(X[:, :1])


def test_a_regressor_corrects_the_means_of_groups():
    X, y, _ = regression(4000, 0)
    model = Regressor(First(), bounds=(0, 100), subpopulations=Groups("x1"), alpha=0.003, random_state=0).fit(X, y)
    fresh, truth, group = regression(4000, 1)
    start, calibrated = model.estimator_.predict(fresh), model.predict(fresh)
    assert model.bounds_ == (0.0, 100.0)
    for g in range(3):
        off = [abs(np.mean((p - truth)[group == g])) for p in (start, calibrated)]
        assert off[1] < 1.5
        assert off[1] < 0.3 * off[0] or g == 1
    assert np.mean((calibrated - truth) ** 2) < 0.5 * np.mean((start - truth) ** 2)
    assert (calibrated >= 0).all()
    assert (calibrated <= 100).all()


def test_a_regressor_in_stages_and_its_bounds():
    X, y, _ = regression(800, 0)
    model = Regressor(alpha=0.01, subpopulations=Groups(), random_state=0).fit(X, y)
    assert model.bounds_ == (y.min(), y.max())
    stages = list(model.staged_predict(X))
    assert model.n_updates_ >= len(stages) == len(model.predictor_) > 0
    np.testing.assert_array_equal(stages[-1], model.predict(X))
    assert abs(np.mean(model.predict(X) - y)) < 0.05 * (y.max() - y.min())
    assert model.score(X, y) > 0.5
    constant = Regressor().fit(X, np.full(800, 7.0))
    np.testing.assert_allclose(constant.predict(X), 7.0)


def test_a_regressor_is_the_same_in_other_units():
    X, y, _ = regression(800, 0)
    options = {"subpopulations": Groups("x1"), "alpha": 0.01, "random_state": 0}
    celsius = Regressor(First(), bounds=(0, 100), **options).fit(X, y).predict(X)
    fahrenheit = Regressor(First(), bounds=(32, 212), **options).fit(X, 32 + 1.8 * y).predict(X)
    np.testing.assert_allclose(fahrenheit, 32 + 1.8 * celsius, atol=1e-6)


def test_weights_of_a_regressor():
    X, y, _ = regression(400, 0)
    w = np.random.default_rng(0).integers(0, 3, 400).astype(float)
    options = {"subpopulations": Groups("x1"), "alpha": 0.01, "validation_fraction": 0.0, "bounds": (0, 100)}
    options |= {"geometry": "euclidean"}  # a prior counts rows
    weighted = Regressor(**options).fit(X, y, sample_weight=w).predict(X)
    repeated = Regressor(**options).fit(np.repeat(X, w.astype(int), axis=0), np.repeat(y, w.astype(int))).predict(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-6)


def test_a_refit_that_fails_leaves_the_estimator_as_it_was(data):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    model = Classifier(Numbers(), random_state=0, subpopulations=Trees(max_depth=1)).fit(X, y)
    before = model.predict_proba(X)
    fitted = []

    class Loud(Numbers):
        def fit(self, X, y, sample_weight=None):
            fitted.append(len(y))
            return super().fit(X, y, sample_weight)

    for wrong in ({"alpha": -1.0}, {"notion": "degre-2"}, {"solver": "none"}, {"subpopulations": "sex"}):
        kept = {name: model.get_params()[name] for name in (*wrong, "estimator")}
        with pytest.raises(InvalidInput):
            model.set_params(estimator=Loud(), **wrong).fit(X, 1 - y)
        np.testing.assert_array_equal(model.predict_proba(X), before)
        model.set_params(**kept)
    assert not fitted  # what can't be right is refused before the base model is trained

    class Slow(Numbers):
        def fit(self, X, y, sample_weight=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.set_params(estimator=Slow()).fit(X[:, :1], y)
    np.testing.assert_array_equal(model.predict_proba(X), before)


@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_columns_are_taken_in_their_order_where_only_one_side_has_names(data, kind):
    numbers, sex, y, _ = data
    X = coded(numbers, sex)
    frame = pytest.importorskip("pandas").DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])
    predict = "predict_proba" if kind is Classifier else "predict"
    for fitted, other in ((frame, X), (X, frame)):
        model = kind(random_state=0).fit(fitted, y)
        with pytest.warns(UserWarning, match="feature names"):
            np.testing.assert_array_equal(getattr(model, predict)(other), getattr(model, predict)(fitted))


def test_calibration_rows_with_one_class(data):
    numbers, sex, _, _ = data
    X = coded(numbers, sex)
    labels = np.where(np.arange(len(X)) == 3, "yes", "no")
    with pytest.raises(InvalidInput, match=r"kept for recalibration .* holds one class only: .*'no'"):
        Classifier(Numbers(), random_state=0).fit(X, labels)
    weight = (labels == "no").astype(float)
    with pytest.raises(InvalidInput, match=r"^y holds one class only in the rows with weight: .*'no'"):
        Classifier(random_state=0).fit(X, labels, sample_weight=weight)


def test_few_rows_do_not_spoil_a_base_model():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    X, fresh = rng.normal(size=(150, 5)), rng.normal(size=(5000, 5))
    truth = [1.0 / (1.0 + np.exp(0.7 * x[:, 1] - x[:, 0])) for x in (X, fresh)]
    y, labels = ((rng.random(len(t)) < t).astype(int) for t in truth)
    model = Classifier(LogisticRegression(), random_state=0).fit(X, y)
    base, calibrated = (np.square(m.predict_proba(fresh)[:, 1] - labels).mean() for m in (model.estimator_, model))
    assert calibrated < base + 0.01


# --- found by trials ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [20, 40, 98, 100, 102])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_base_model_on_few_rows_is_not_made_worse(n, n_classes):
    losses = []
    for seed in range(4):
        X, y = make_classification(n + 2000, 8, n_informative=5, n_classes=n_classes, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = Classifier(LogisticRegression(max_iter=500), random_state=seed).fit(X[:n], y[:n])
        losses.append([log_loss(y[n:], m.predict_proba(X[n:])) for m in (model.estimator_, model)])
    base, calibrated = np.mean(losses, axis=0)
    assert calibrated < 1.15 * base  # it was 10 to 20 times as large


@pytest.mark.parametrize("base", [None, LogisticRegression()])
def test_columns_without_names_are_taken_in_their_order(data, base):
    pd = pytest.importorskip("pandas")
    numbers, _, y, _ = data
    bare = Classifier(base, random_state=0).fit(numbers, y)
    expected = bare.predict_proba(numbers)
    with pytest.warns(UserWarning, match="feature names"):
        turned = bare.predict_proba(pd.DataFrame(numbers, columns=["x2", "x1", "x0"]))
    np.testing.assert_allclose(turned, expected, atol=1e-12)
    numbered = Classifier(base, random_state=0).fit(pd.DataFrame(numbers, columns=[5, 0, 1]), y)
    np.testing.assert_allclose(numbered.predict_proba(numbers), expected, atol=1e-12)
    np.testing.assert_allclose(numbered.predict_proba(pd.DataFrame(numbers)), expected, atol=1e-12)
    named = Classifier(base, random_state=0).fit(pd.DataFrame(numbers, columns=["a", "b", "c"]), y)
    with pytest.warns(UserWarning, match="feature names"):
        np.testing.assert_allclose(named.predict_proba(numbers), expected, atol=1e-12)


def test_what_a_base_model_takes_is_taken(data):
    numbers, sex, y, _ = data
    gaps, texts = numbers.copy(), np.column_stack([sex, sex]).astype(object)
    gaps[::7, 1] = np.nan
    for X, base in (
        (gaps, make_pipeline(SimpleImputer(), LogisticRegression())),
        (texts, make_pipeline(OneHotEncoder(), LogisticRegression())),
    ):
        p = Classifier(base, subpopulations=Groups(), random_state=0).fit(X, y).predict_proba(X)
        assert np.isfinite(p).all()
    with pytest.raises(ValueError, match="contains NaN"):  # the base model's own words
        Classifier(LogisticRegression()).fit(gaps, y)


def test_rounds_that_held_out_rows_chose_are_no_limit_of_the_user(data):
    numbers, sex, y, _ = data
    options = {"subpopulations": Groups(["sex"]) + Groups(["a", "b"], n_bins=40), "alpha": 1e-5, "random_state": 0}
    model = Classifier(Numbers(), **options).fit(frame(numbers[:600], sex[:600]), y[:600])
    assert model.status_ != Status.LIMIT
    assert Classifier(Numbers(), **options, max_updates=1).fit(frame(numbers, sex), y).status_ == Status.LIMIT


class Untouched(ClassifierMixin, BaseEstimator):
    """A model that must not be trained."""

    def fit(self, X, y, sample_weight=None):
        raise AssertionError("trained")


def test_mistakes_are_told_before_the_base_model_is_trained(data):
    numbers, sex, y, _ = data
    X = frame(numbers, sex)
    for subpopulations in (Groups(["A"]), Trees(columns=["A"]), Groups(["sex"]) + Groups(["A"])):
        with pytest.raises(InvalidInput, match="no column 'A'"):
            Classifier(Untouched(), subpopulations=subpopulations).fit(X, y)
    with pytest.raises(InvalidInput, match=r"sample_weight is -1.0 in row 0"):
        Classifier(Untouched()).fit(X, y, sample_weight=-np.ones(len(y)))
    with pytest.raises(InvalidInput, match="more than once"):
        Classifier(Untouched()).fit(X[["a", "a"]], y)
    with pytest.raises(InvalidInput, match=r"y holds .*'a'.*needs numbers"):
        Regressor(Untouched()).fit(X, np.array(["a"] * len(y)))


def test_a_loaded_estimator_reads_columns_as_it_was_fitted(data, tmp_path):
    pd = pytest.importorskip("pandas")
    numbers, _, y, _ = data
    for X in (numbers, pd.DataFrame(numbers, columns=["a", "b", "c"])):
        model = Classifier(random_state=0).fit(X, y)
        lowcal.save(model, tmp_path / "model.json")
        loaded = lowcal.load(tmp_path / "model.json")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # scikit-learn's, of names on one side only
            np.testing.assert_array_equal(loaded.predict_proba(numbers), model.predict_proba(X))
            if X is numbers:
                turned = pd.DataFrame(numbers, columns=["x2", "x1", "x0"])
                np.testing.assert_array_equal(loaded.predict_proba(turned), model.predict_proba(X))


def test_a_class_of_the_user_may_mean_something_else_by_columns(data):
    class Own(Groups):
        def bind(self, X, sample_weight):
            assert self.columns == ("made of a and b",)
            return Groups(["sex"]).bind(X, sample_weight)

    numbers, sex, y, _ = data
    model = Classifier(subpopulations=Own(("made of a and b",)), random_state=0).fit(frame(numbers, sex), y)
    assert model.predictor_.columns == ("sex",)


def test_routed_weights_reach_a_pipeline():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2000, 3)), rng.integers(0, 2, 2000)
    with sklearn.config_context(enable_metadata_routing=True):
        scale = StandardScaler().set_fit_request(sample_weight=False)
        base = make_pipeline(scale, LogisticRegression().set_fit_request(sample_weight=True))
        model = Classifier(base, random_state=0).fit(X, y, sample_weight=np.where(y == 1, 9.0, 1.0))
    assert model.estimator_.predict_proba(X)[:, 1].mean() == pytest.approx(0.9, abs=0.02)


# --- metadata routing ----------------------------------------------------------------------------------------


@pytest.fixture
def routing():
    """Turn scikit-learn's metadata routing on."""
    with sklearn.config_context(enable_metadata_routing=True):
        yield


class Watched(LogisticRegression):
    """A logistic model that writes down the rows and the weights it is given."""

    def fit(self, X, y, sample_weight=None):
        type(self).given = (X, sample_weight)
        return super().fit(X, y, sample_weight)


class WatchedRegressor(LinearRegression):
    """The same for regression."""

    def fit(self, X, y, sample_weight=None):
        type(self).given = (X, sample_weight)
        return super().fit(X, y, sample_weight)


BASES = pytest.mark.parametrize(("Meta", "Base"), [(Classifier, Watched), (Regressor, WatchedRegressor)])


def weighted_rows(n=300):
    """Return rows whose first column is their weight."""
    rng = np.random.default_rng(0)
    w = rng.integers(1, 9, n).astype(float)
    return np.column_stack([w, rng.normal(size=(n, 2))]), rng.integers(0, 2, n), w


@BASES
def test_a_base_model_that_refuses_weights_gets_none(routing, Meta, Base):
    X, y, w = weighted_rows()
    model = Meta(Base().set_fit_request(sample_weight=False), random_state=0)
    weighted = model.fit(X, y, sample_weight=w)
    assert Base.given[1] is None
    plain = clone(model).fit(X, y)
    assert weighted.fit_.violation != plain.fit_.violation  # the recalibration uses them all the same


@BASES
def test_a_base_model_that_requests_weights_gets_those_of_its_rows(routing, Meta, Base):
    X, y, w = weighted_rows()
    Meta(Base().set_fit_request(sample_weight=True), random_state=0).fit(X, y, sample_weight=w)
    np.testing.assert_array_equal(Base.given[1], Base.given[0][:, 0])


@BASES
def test_weights_reach_the_base_model_under_another_name(routing, Meta, Base):
    X, y, w = weighted_rows()
    model = Meta(Base().set_fit_request(sample_weight="my_weight"), random_state=0)
    model.fit(X, y, my_weight=w)
    np.testing.assert_array_equal(Base.given[1], Base.given[0][:, 0])
    model.fit(X, y, sample_weight=w)
    assert Base.given[1] is None


@BASES
def test_an_unset_request_is_refused_as_everywhere_in_scikit_learn(routing, Meta, Base):
    X, y, w = weighted_rows()
    with pytest.raises(UnsetMetadataPassedError) as theirs:
        CalibratedClassifierCV(Watched()).fit(X, y, sample_weight=w)
    with pytest.raises(UnsetMetadataPassedError) as ours:
        Meta(Base()).fit(X, y, sample_weight=w)
    assert "sample_weight" in str(ours.value)
    assert ours.value.unrequested_params.keys() == theirs.value.unrequested_params.keys()
    assert Meta(Base()).fit(X, y).n_updates_ >= 0  # nothing passed, nothing to request
    with pytest.raises(TypeError, match="got unexpected argument"):
        Meta(Base()).fit(X, y, banana=w)


@pytest.mark.parametrize("base", [None, "frozen"])
def test_weights_need_no_request_where_no_base_model_is_fitted(routing, base):
    X, y, w = weighted_rows()
    base = None if base is None else FrozenEstimator(LogisticRegression().fit(X, y))
    assert Classifier(base, random_state=0).fit(X, y, sample_weight=w).n_updates_ >= 0


def test_the_estimator_requests_weights_for_itself(routing):
    """Inside a search its own request is needed beside the base model's, as that of CalibratedClassifierCV."""
    X, y, w = weighted_rows()
    base = Watched().set_fit_request(sample_weight=True)
    options = {"param_grid": {"alpha": [0.05]}, "cv": 2}
    options["scoring"] = get_scorer("neg_brier_score").set_score_request(sample_weight=False)
    for model in (Classifier(base), CalibratedClassifierCV(base)):
        mapping = get_routing_for_object(model).consumes("fit", ["sample_weight"])
        assert mapping == {"sample_weight"}
    with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
        GridSearchCV(Classifier(base), **options).fit(X, y, sample_weight=w)
    model = Classifier(base, random_state=0).set_fit_request(sample_weight=True)
    GridSearchCV(model, **options, refit=True).fit(X, y, sample_weight=w)
    np.testing.assert_array_equal(Watched.given[1], Watched.given[0][:, 0])


def test_other_arguments_need_routing():
    X, y, w = weighted_rows()
    with pytest.raises(ValueError, match="only supported if enable_metadata_routing=True"):
        Classifier(Watched()).fit(X, y, my_weight=w)
    Classifier(Watched(), random_state=0).fit(X, y, sample_weight=w)
    np.testing.assert_array_equal(Watched.given[1], Watched.given[0][:, 0])
