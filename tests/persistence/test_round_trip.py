"""What is loaded predicts the same bytes as what was saved, whatever it is, and is saved to the same bytes again."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.tree import DecisionTreeClassifier

import lowcal
import saved
from lowcal import (
    Full,
    Groups,
    InvalidInput,
    Linear,
    Memberships,
    MulticalibratedClassifier,
    MulticalibratedRegressor,
    Predictor,
    Private,
    Thresholds,
    Trees,
    persistence,
)
from lowcal.data.checked_json import Plain
from lowcal.kernels.reference import DecodeTable
from lowcal.notions.weights import Points
from lowcal.persistence import read_model, write_model
from lowcal.rows.updates import MANY, Compiled, Term, Update
from lowcal.subpopulations.groups import CodeFamily
from worlds import WAYS, multicalibrate

NOTIONS = ("multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.25")


def fitted(name: str, kind: int | str = 2, **options: object) -> tuple[lowcal.Fit, np.ndarray, object, object]:
    y, p, X = saved.people(kind)
    subpopulations, here, there = saved.tables(name, X)
    options = {"alpha": 0.02, "max_updates": 3, "random_state": 0, "guard": False, **options}
    return multicalibrate(y, p, here, subpopulations=subpopulations, **options), p, here, there


def again(model: object) -> object:
    data = persistence.to_bytes(model)
    loaded = persistence.from_bytes(data).model
    assert persistence.to_bytes(loaded) == data, "what was loaded is saved to the same bytes"
    return loaded


def check(one: Predictor, two: Predictor, p: np.ndarray, here: object, there: object) -> None:
    """The two predict the same bytes: on fitted and unseen rows, whole, cut short, stage by stage and row by row."""
    few = p[:7]
    for X, start in ((here, p), (there, few)):
        assert two(start, X).tobytes() == one(start, X).tobytes()
        assert two[:1](start, X).tobytes() == one[:1](start, X).tobytes()
        for a, b in zip(one.staged(start, X), two.staged(start, X), strict=True):
            assert b.tobytes() == a.tobytes()
    assert two.columns == one.columns
    assert two.layout == one.layout
    assert [str(u) for u in two.updates] == [str(u) for u in one.updates]
    for i in range(7):
        row = {column: values[i] for column, values in there.items()}
        assert np.asarray(two.one(few[i], row)).tobytes() == np.asarray(one.one(few[i], row)).tobytes()


def check_fit(kind: int | str, name: str, notion: str, solver: str, geometry: str) -> None:
    if name == "private":  # brings its own solver, which can't search smooth weights
        notion, solver, geometry = notion.replace("smooth", "full-0.5"), "block", "euclidean"
    fit, *data = fitted(name, kind, notion=notion, solver=solver, geometry=geometry)
    assert len(fit.predictor) > 0
    check(fit.predictor, again(fit.predictor), *data)


@pytest.mark.product
@pytest.mark.parametrize("kind", [2, 3])
@pytest.mark.parametrize("notion", range(len(NOTIONS)))
@pytest.mark.parametrize("name", saved.NAMES)
def test_every_notion_and_every_solver_of_each_class(name: str, notion: int, kind: int) -> None:
    solver = WAYS[(notion + saved.NAMES.index(name) + kind) % len(WAYS)]
    check_fit(kind, name, NOTIONS[notion], *solver)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [2, 3, "bounded"])
@pytest.mark.parametrize("solver", WAYS)
@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize("name", saved.NAMES)
def test_every_notion_with_every_solver(name: str, notion: str, solver: tuple[str, str], kind: int | str) -> None:
    check_fit(kind, name, notion, *solver)


@pytest.mark.parametrize("name", saved.NAMES)
def test_bounded_outcomes(name: str) -> None:
    fit, *data = fitted(name, "bounded")
    check(fit.predictor, again(fit.predictor), *data)


def test_programs_of_many_updates_are_programs_again() -> None:
    fit, *data = fitted("groups", solver="first", max_updates=40)
    loaded = again(fit.predictor)
    assert len(loaded) >= 2 * MANY
    assert any(isinstance(segment, Compiled) for segment in loaded._segments)
    assert loaded._by_program is not None
    check(fit.predictor, loaded, *data)


def test_what_occurs_often_is_held_once() -> None:
    fit, *_ = fitted("trees", solver="worst", max_updates=12, guard=False)
    loaded = again(fit.predictor)
    trees = [t.family.tree for u in loaded.updates for t in u.terms if hasattr(t.family, "tree")]
    texts = {json.dumps(tree.to_dict()) for tree in trees}
    assert len({id(tree) for tree in trees}) == len(texts) < len(trees)
    block, *_ = fitted("groups", alpha=1e-4)
    assert len(block.predictor) > 1
    families = [t.family for u in again(block.predictor).updates for t in u.terms]
    assert len({id(family) for family in families}) == len({family.names for family in families}) < len(families)


def test_the_plain_form_is_the_same() -> None:
    for name in saved.NAMES:
        fit, *_ = fitted(name, 3)
        assert again(fit.predictor).to_dict() == fit.predictor.to_dict()


def test_a_predictor_without_updates() -> None:
    fit, *_ = fitted("groups")
    assert len(again(fit.predictor[:0])) == 0


def test_weights_through_points() -> None:
    fit, *data = fitted("groups", 3)
    family = fit.predictor.updates[0].terms[0].family
    rng = np.random.default_rng(0)
    many = Points(rng.dirichlet(np.ones(3), 40), rng.random(40))
    none = Points(np.zeros((0, 3)), np.zeros(0))
    term = Term(family, (many, none), rng.normal(size=(len(family.names), 2, 3)) / 10)
    predictor = replace(fit.predictor, updates=(*fit.predictor.updates, Update((term,))))
    loaded = again(predictor)
    check(predictor, loaded, *data)
    assert loaded.updates[-1].terms[0].weights[1].centres.shape == (0, 3)


def test_shares_of_groups() -> None:
    """Tables of codes may hold shares, though no class of lowcal's makes them."""
    fit, *data = fitted("groups")
    update = fit.predictor.updates[0]
    (term,) = update.terms
    halves = tuple(DecodeTable(0.5 * table.matrix) for table in term.family.decode)
    half = replace(term, family=CodeFamily(term.family.names, term.family.columns, halves))
    predictor = replace(fit.predictor, updates=(Update((half,)), update))
    assert predictor(data[0], data[1]).tobytes() != fit.predictor[:1](data[0], data[1]).tobytes()
    check(predictor, again(predictor), *data)


def test_few_numbers_can_be_read_and_many_are_bytes() -> None:
    fit, *_ = fitted("thresholds", notion="multiaccuracy")
    few = json.loads(persistence.to_bytes(fitted("linear", notion="multiaccuracy")[0].predictor))["model"]
    assert isinstance(few["updates"][0]["terms"][0]["theta"][0][0][0], float)
    place = next(k for k, update in enumerate(fit.predictor.updates) if update.terms[0].theta.size > 64)
    theta = json.loads(persistence.to_bytes(fit.predictor))["model"]["updates"][place]["terms"][0]["theta"]
    content = np.frombuffer(base64.b64decode(theta["base64"]), "<f8").reshape(theta["shape"])
    assert content.size > 64
    assert content.tobytes() == fit.predictor.updates[place].terms[0].theta.tobytes()


def test_an_array_without_names_and_a_sparse_matrix() -> None:
    rng = np.random.default_rng(0)
    y, p, _ = saved.people()
    X = rng.normal(size=(saved.N, 4))
    X[::7, 1] = np.nan
    for subpopulations in (Groups(min_mass=5), Trees(min_mass=5), Linear(), Thresholds(min_mass=5)):
        predictor = multicalibrate(y, p, X, subpopulations=subpopulations, alpha=0.001, max_updates=3).predictor
        loaded = again(predictor)
        assert loaded(p, X).tobytes() == predictor(p, X).tobytes()
        assert loaded.one(p[0], X[0]) == predictor.one(p[0], X[0])
    from scipy import sparse

    C = sparse.coo_array(rng.random((saved.N, 12)) * (rng.random((saved.N, 12)) < 0.3))
    predictor = multicalibrate(y, p, C, subpopulations=Memberships(min_mass=1), alpha=0.001).predictor
    assert again(predictor)(p, C).tobytes() == predictor(p, C).tobytes()


def test_numbers_that_json_lacks() -> None:
    """Infinite categories and cut points, deviations that overflow, minus zero."""
    y, p, _ = saved.people()
    X = {"few": np.resize([np.inf, -np.inf, 0.0], saved.N), "many": np.r_[[-np.inf] * 40, np.arange(saved.N - 40)]}
    for subpopulations in (Groups(min_mass=1), Thresholds(min_mass=1), Groups("many", n_bins=4) + Trees(min_mass=1)):
        predictor = multicalibrate(y, p, X, subpopulations=subpopulations, alpha=1e-3, max_updates=3).predictor
        assert b"inf" in persistence.to_bytes(predictor)
        assert again(predictor)(p, X).tobytes() == predictor(p, X).tobytes()
    wide = {"x": np.r_[-1e200, 1e200, np.zeros(saved.N - 2)]}
    with np.errstate(over="ignore"):
        predictor = multicalibrate(y, p, wide, subpopulations=Linear(), alpha=1e-3, max_updates=2).predictor
    assert predictor.encoder.features[0].deviation == np.inf
    assert again(predictor).encoder.features[0].deviation == np.inf


# Fits.


@pytest.mark.parametrize("name", ["groups", "private", "trees"])
def test_a_fit_is_kept_whole(name: str) -> None:
    fit, *data = fitted(name, validation_fraction=0.0 if name == "private" else 0.3, notion=Full(1 / 3))
    loaded = again(fit)
    check(fit.predictor, loaded.predictor, *data)
    assert type(loaded) is type(fit)
    assert str(loaded) == str(fit)
    assert repr(loaded.history) == repr(fit.history)
    assert (loaded.status, loaded.notion, loaded.alpha, loaded.bound) == (fit.status, fit.notion, fit.alpha, fit.bound)
    assert repr(loaded.start) == repr(fit.start)
    assert loaded.cross_fitted == fit.cross_fitted
    assert type(loaded.status) is lowcal.Status
    if name == "private":
        assert loaded.guarantee == fit.guarantee


@pytest.mark.parametrize("target", [{}, {"per_person": 0.05}])
def test_what_a_fit_was_asked_for_is_kept(target: dict[str, float]) -> None:
    data = lowcal.datasets.make_miscalibrated(2000, random_state=0)
    fit = lowcal.multicalibrate(data.y, data.p, data.X, **target)
    loaded = again(fit)
    assert (loaded.goal, loaded.per_person) == (fit.goal, target.get("per_person"))
    assert loaded.start.held_out_log_loss == fit.start.held_out_log_loss is not None
    assert str(loaded) == str(fit)


def test_a_fit_of_an_earlier_version_had_neither_start_nor_per_person() -> None:
    data = lowcal.datasets.make_miscalibrated(2000, random_state=0)
    fit = lowcal.multicalibrate(data.y, data.p, data.X, alpha=0.01)
    plain = write_model(fit)
    del plain["start"], plain["per_person"]
    loaded = read_model(Plain(plain, "model"))
    assert (loaded.start, loaded.per_person, loaded.alpha) == (None, None, 0.01)


def test_a_fit_on_fresh_batches() -> None:
    from lowcal.sampling import fresh

    data = lowcal.datasets.make_miscalibrated(3000, random_state=0)
    fit = fresh(data.y, data.p, data.X, alpha=0.1, random_state=0)
    loaded = again(fit)
    assert loaded.statement == fit.statement
    assert loaded.predictor(data.p, data.X).tobytes() == fit.predictor(data.p, data.X).tobytes()


# Estimators.


def numbers(classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    return X, (X[:, 0] + rng.normal(size=300) > 0).astype(int) + (classes == 3) * (X[:, 1] > 1)


@pytest.mark.parametrize("dtype", ["int8", "int64", "float64", "bool", "str", "object"])
def test_a_classifier_from_scratch_is_whole(dtype: str) -> None:
    X, y = numbers(2 if dtype == "bool" else 3)
    y = np.array(["a", np.str_("b"), 'ç"'], dtype=object)[y] if dtype == "object" else y.astype(dtype)
    settings = {"notion": Full(0.5), "random_state": np.random.RandomState(0), "max_updates": 2}
    model = MulticalibratedClassifier(**settings).fit(X, y)
    loaded = again(model)
    assert loaded.predict_proba(X).tobytes() == model.predict_proba(X).tobytes()
    assert loaded.classes_.dtype.kind == model.classes_.dtype.kind
    assert dtype == "str" or loaded.predict(X).dtype == model.predict(X).dtype  # text has the width that it needs
    assert (loaded.predict(X) == model.predict(X)).all()
    for a, b in zip(loaded.staged_predict_proba(X), model.staged_predict_proba(X), strict=True):
        assert a.tobytes() == b.tobytes()
    assert (loaded.status_, loaded.n_updates_) == (model.status_, model.n_updates_)
    assert (loaded.get_params()["notion"], loaded.get_params()["random_state"]) == (Full(0.5), None)
    with pytest.raises(ValueError, match="3 features"):
        loaded.predict_proba(X[:, :2])


def test_a_loaded_estimator_can_be_fitted_again() -> None:
    X, y = numbers()
    model = again(MulticalibratedClassifier(max_updates=1, random_state=3).fit(X, y))
    once = model.predict_proba(X).tobytes()
    assert model.fit(X, y).predict_proba(X).tobytes() == once


def test_settings_are_kept() -> None:
    pd = pytest.importorskip("pandas")
    y, _, X = saved.people()
    frame = pd.DataFrame(X)
    model = MulticalibratedClassifier(
        subpopulations=Groups([saved.CITY, "kids"]) + Trees(columns=(saved.AGE,)), solver="worst", max_updates=2
    ).fit(frame, y)
    loaded = again(model)
    assert repr(loaded.subpopulations) == repr(model.subpopulations).replace(f"({saved.AGE!r},)", f"[{saved.AGE!r}]")
    assert (loaded.solver, loaded.max_updates) == ("worst", 2)
    assert loaded.feature_names_in_.tolist() == list(X)
    assert loaded.predict_proba(frame).tobytes() == model.predict_proba(frame).tobytes()
    private = MulticalibratedClassifier(subpopulations=Private(Groups(["kids"]), epsilon=50.0), validation_fraction=0.0)
    private.fit(frame, y)
    assert again(private).subpopulations == private.subpopulations


@pytest.mark.parametrize("base", [LogisticRegression(), DecisionTreeClassifier(max_depth=2)])
def test_a_base_model_must_be_given_again(base: object, tmp_path: Path) -> None:
    X, y = numbers()
    model = MulticalibratedClassifier(base, random_state=0, alpha=0.05).fit(X, y)
    lowcal_path = tmp_path / "model.json"
    persistence.save(model, lowcal_path)
    for given in (model.estimator_, FrozenEstimator(model.estimator_)):
        loaded = persistence.load(lowcal_path, estimator=given)
        assert loaded.predict_proba(X).tobytes() == model.predict_proba(X).tobytes()
        assert persistence.to_bytes(loaded) == lowcal_path.read_bytes()
    bare = persistence.load(lowcal_path)
    for call in (bare.predict, bare.predict_proba, lambda X: bare.fit(X, y)):
        with pytest.raises(InvalidInput, match=rf"without its base model \({type(base).__name__}\).*estimator=base"):
            call(X)
    start = model.estimator_.predict_proba(X)
    assert bare.predictor_(start, X).tobytes() == model.predict_proba(X).tobytes()
    with pytest.raises(InvalidInput, match="must be the fitted base model"):
        persistence.load(lowcal_path, estimator=Ridge())
    with pytest.raises(InvalidInput, match="must be the fitted base model"):
        persistence.load(lowcal_path, estimator=type(base))


def test_a_base_model_where_there_is_none(tmp_path: Path) -> None:
    X, y = numbers()
    model = MulticalibratedClassifier(alpha=0.1).fit(X, y)
    for one in (model, model.fit_, model.predictor_):
        persistence.save(one, tmp_path / "m.json")
        with pytest.raises(InvalidInput, match=r"no base model. Leave out estimator="):
            persistence.load(tmp_path / "m.json", estimator=LogisticRegression())


@pytest.mark.parametrize("base", [None, Ridge()])
def test_a_regressor(base: object, tmp_path: Path) -> None:
    X, _ = numbers()
    y = 3.0 * X[:, 0] + X[:, 1] ** 2
    model = MulticalibratedRegressor(base, random_state=0, alpha=0.05).fit(X, y)
    persistence.save(model, tmp_path / "m.json")
    loaded = persistence.load(tmp_path / "m.json", estimator=model.estimator_)
    assert loaded.bounds_ == model.bounds_
    assert loaded.predict(X).tobytes() == model.predict(X).tobytes()


# Files.


def test_metadata_and_bytes(tmp_path: Path) -> None:
    fit, *_ = fitted("groups")
    given = {"label": "y", "classes": ("no", "yes"), "n": np.int64(3), "nested": {"a": [1.5, None, True]}, "ü\n": "☂"}
    persistence.save(fit.predictor, tmp_path / "a.json", metadata=given)
    persistence.save(fit.predictor, str(tmp_path / "b.json"), metadata=dict(reversed(given.items())))
    found = persistence.read(tmp_path / "a.json")
    wanted = {**given, "classes": ["no", "yes"], "n": 3}
    assert found.metadata == wanted
    assert found.lowcal_version == lowcal.__version__
    assert type(found.model) is Predictor
    persistence.save(found.model, tmp_path / "c.json", metadata=found.metadata)
    assert (tmp_path / "c.json").read_bytes() == (tmp_path / "a.json").read_bytes()
    one, two = (json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in ("a.json", "b.json"))
    assert one == two, "the order of keys does not change the checksum"
    persistence.save(fit.predictor, tmp_path / "a.json")
    assert persistence.read(tmp_path / "a.json").metadata == {}


def test_another_process_predicts_the_same_bytes(tmp_path: Path) -> None:
    fit, p, here, _ = fitted("mixed union", 3, geometry="mirror")
    persistence.save(fit, tmp_path / "m.json")
    code = """
import sys, saved, lowcal.persistence
assert "sklearn" not in sys.modules, "a predictor needs no scikit-learn"
fit = lowcal.persistence.load(sys.argv[1])
_, p, X = saved.people(3)
sys.stdout.buffer.write(fit.predictor(p, X).tobytes())
"""
    paths = os.pathsep.join([str(Path(lowcal.__file__).parents[1]), str(Path(saved.__file__).parent)])
    command = [sys.executable, "-c", code, str(tmp_path / "m.json")]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert done.stderr == b""
    assert done.stdout == fit.predictor(p, here).tobytes()
