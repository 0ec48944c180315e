"""Predicting: pieces of rows, programs and single rows all say what the updates say one after the other."""

from __future__ import annotations

import pickle
from dataclasses import replace
from decimal import Decimal
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

import lowcal
from lowcal import Groups, Intersections, Linear, Memberships, Regressor, Thresholds, Trees
from lowcal.data.errors import InvalidInput, MissingColumn
from lowcal.kernels import loops, reference
from lowcal.kernels.simplex import move, move_row
from lowcal.notions import parse_notion
from lowcal.notions.weights import Knots
from lowcal.rows import START, Memory, updates
from lowcal.rows.passes import Moments
from lowcal.rows.updates import MANY, Compiled, Term, Update, table_size
from worlds import multicalibrate

N = 400


def people(seed: int = 0, classes: int = 2) -> tuple[np.ndarray, np.ndarray, dict[str, list]]:
    """Labels, predictions that are wrong in many groups, and columns of several kinds with missing values."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 80, N).astype(float)
    age[::17] = np.nan
    city = rng.choice(np.array(["Rome", "Oslo", "Bern", None], dtype=object), N)
    X = {
        "age": age.tolist(),
        "city": city.tolist(),
        "member": (rng.random(N) < 0.5).tolist(),
        "kids": rng.integers(0, 3, N).tolist(),
    }
    truth = np.clip(0.3 + 0.3 * (city == "Rome") + 0.2 * (np.array(X["kids"]) == 1) - 0.2 * (age > 50), 0.02, 0.98)
    if classes == 2:
        return (rng.random(N) < truth).astype(int), np.clip(0.5 + 0.3 * rng.normal(size=N), 0, 1), X
    p = rng.dirichlet(np.ones(classes), N)
    return (rng.random(N) * classes * truth).astype(int) % classes, p, X


NUMERIC = ("age", "kids")
CLASSES = {
    "groups": Groups(min_mass=5),
    "intersections": Intersections(min_mass=5),
    "thresholds": Thresholds(NUMERIC, min_mass=5),
    "trees": Trees(max_depth=2, min_mass=5),
    "linear": Linear(),
    "union": Groups(["city"], min_mass=5) + Thresholds("age", min_mass=5),
    "mixed union": Groups(["city"], min_mass=5) + Trees(max_depth=1, min_mass=5) + Linear(["age"]),
    "regressor": Regressor(DecisionTreeRegressor(max_depth=2, random_state=0)),
}

#: Values seen and unseen, missing in several ways, and of other types than in fitting.
ROWS = [
    {"age": 31, "city": "Rome", "member": True, "kids": 1},
    {"age": 54.5, "city": "Oslo", "member": False, "kids": 0},
    {"age": None, "city": None, "member": None, "kids": None},
    {"age": float("nan"), "city": "Paris", "member": 1, "kids": 7},
    {"age": np.float32(20.0), "city": np.str_("Bern"), "member": np.bool_(False), "kids": np.int64(2)},
    {"age": Decimal("79.5"), "city": "rome", "member": 0.5, "kids": 2.0},
    {"age": float("inf"), "city": 3, "member": "yes", "kids": True},
    {"age": -float("inf"), "city": np.nan, "member": True, "kids": -0.0},
]


def fitted(name: str, **options: object) -> lowcal.Predictor:
    y, p, X = people()
    return multicalibrate(y, p, X, subpopulations=CLASSES[name], alpha=0.01, max_updates=30, **options).predictor


@pytest.mark.parametrize("solver", ["block", "worst"])
@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("name", CLASSES)
def test_one_row_is_a_table_of_one_row(name: str, geometry: str, solver: str) -> None:
    predictor = fitted(name, geometry=geometry, solver=solver)
    assert len(predictor) > 0
    for k, row in enumerate(ROWS):
        if name in ("thresholds", "linear", "mixed union", "regressor", "trees") and k == 6:
            row = {**row, "kids": 1}  # numbers are wanted there, and True is none
        p = (0.0, 1.0, 0.37)[k % 3]
        expected = predictor([p], {name: [value] for name, value in row.items()})[0]
        got = predictor.one(p, row)
        assert type(got) is float
        assert got == pytest.approx(expected, abs=1e-14)
        if name != "regressor":
            ordered = [row[column] for column in predictor.columns]
            assert predictor.one(p, ordered) == pytest.approx(expected, abs=1e-14)


LEARNED = {
    **CLASSES,
    "boosted": Trees(max_depth=2, min_mass=5, n_trees=12),
    "boosted in log odds": Trees(max_depth=3, min_mass=5, n_trees=12, geometry="mirror"),
    "boosted union": Trees(max_depth=2, min_mass=5, n_trees=5) + Linear(["age", "city"]) + Trees(max_depth=1),
}
#: Every class in both geometries, and each kind of weight.
KINDS = [
    *((name, geometry, "degree-2") for name in LEARNED for geometry in ("euclidean", "mirror") if name != "regressor"),
    *(("mixed union", "euclidean", notion) for notion in ("degree-3", "full-0.25", "smooth")),
]


@cache
def served(name: str, geometry: str, notion: str, n_classes: int) -> lowcal.Predictor:
    """Fit once for all rows that are drawn."""
    y, p, X = people(classes=n_classes)
    options = {"geometry": geometry, "notion": notion, "alpha": 0.01, "max_updates": 4}
    predictor = multicalibrate(y, p, X, subpopulations=LEARNED[name], **options).predictor
    assert len(predictor) > 0
    return predictor


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3).filter(lambda p: sum(p) > 0.01),
    st.fixed_dictionaries(
        {
            "age": st.none() | st.floats(0, 120) | st.sampled_from([float("nan"), float("inf"), np.float64(40.0)]),
            "city": st.sampled_from(["Rome", "Oslo", "Bern", "Paris", "", None, np.str_("Rome")]),
            "member": st.sampled_from([True, False, None, np.bool_(True)]),
            "kids": st.none() | st.integers(-1, 4) | st.sampled_from([np.int64(1), np.uint8(2), 0.5]),
        }
    ),
)
def test_one_row_is_a_table_of_one_row_for_any_values(kind, weights, row) -> None:
    table = {column: [value] for column, value in row.items()}
    three = [w / sum(weights) for w in weights]
    for n_classes, p in ((2, weights[0]), (3, three), (3, np.array(three))):
        predictor = served(*kind, n_classes)
        np.testing.assert_allclose(predictor.one(p, row), predictor([p], table)[0], rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", CLASSES)
def test_one_row_needs_no_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a foreign regressor is asked with arrays; all else is done in plain numbers."""
    for n_classes in (2, 3):
        predictor = served(name, "euclidean", "degree-2", n_classes)
        with monkeypatch.context() as patch:
            patch.setattr(type(predictor), "replay", None)
            if name == "regressor":
                with pytest.raises(TypeError):
                    predictor.one(np.full(n_classes, 1.0 / n_classes), ROWS[0])
            else:
                predictor.one(np.full(n_classes, 1.0 / n_classes), ROWS[0])


def test_one_row_of_large_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = served("trees", "mirror", "degree-2", 3)
    expected = predictor.one([0.2, 0.5, 0.3], ROWS[0])
    monkeypatch.setattr(updates, "MOST_NUMBERS", 1)
    by_table = replace(predictor)
    assert by_table._by_row is None
    np.testing.assert_allclose(by_table.one([0.2, 0.5, 0.3], ROWS[0]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("p", [[0.2, 0.5, 0.30001], [1, 0, 0], (0.2, 0.5, 0.3), np.float32([0.2, 0.5, 0.3])])
def test_one_row_reads_probabilities_of_any_kind(p) -> None:
    predictor = served("trees", "mirror", "degree-2", 3)
    table = {column: [value] for column, value in ROWS[0].items()}
    np.testing.assert_allclose(predictor.one(p, ROWS[0]), predictor([p], table)[0], rtol=0, atol=1e-12)


def test_one_row_refuses_what_is_no_distribution() -> None:
    predictor = served("trees", "mirror", "degree-2", 3)
    for p, message in (([0.2, 0.5, 0.4], "sums to 1.1"), ([0.5, 0.5], "3 columns"), ([1.2, -0.2, 0.0], "outside")):
        with pytest.raises(InvalidInput, match=message):
            predictor.one(p, ROWS[0])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from([0.01, 1.0, 1000.0]))
def test_a_row_moves_as_a_table_does(d, seed, size) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(max(d, 2), 0.3))[:d]
    delta = size * rng.normal(size=d).round(1)
    for geometry in ("euclidean", "mirror"):
        expected = move(p[None], delta[None], geometry)[0]
        np.testing.assert_allclose(move_row(p.tolist(), delta.tolist(), geometry), expected, rtol=0, atol=1e-14)


def test_one_row_in_the_shape_of_p() -> None:
    predictor = fitted("groups")
    got = predictor.one([0.4, 0.6], ROWS[0])
    np.testing.assert_allclose(got, [1.0 - predictor.one(0.6, ROWS[0]), predictor.one(0.6, ROWS[0])], atol=1e-15)


@pytest.mark.parametrize("fractional", [False, True])
def test_one_row_of_memberships_and_of_a_bare_array(fractional: bool) -> None:
    y, p, _ = people()
    rng = np.random.default_rng(0)
    C = rng.random((N, 10)) if fractional else (rng.random((N, 10)) < 0.3).astype(float)
    predictor = multicalibrate(y, p, C, subpopulations=Memberships(), alpha=0.005).predictor
    assert len(predictor) > 0
    expected = predictor(p[:5], C[:5])
    for i in range(5):
        assert predictor.one(p[i], C[i]) == pytest.approx(expected[i], abs=1e-14)
        assert predictor.one(p[i], {f"x{j}": C[i, j] for j in range(10)}) == pytest.approx(expected[i], abs=1e-14)
    with pytest.raises(InvalidInput, match="Memberships must lie in"):
        predictor.one(0.5, [2.0] * 10)
    columns = multicalibrate(y, p, C, subpopulations=Groups([7], n_bins=3), alpha=0.001).predictor
    assert columns.one(p[0], C[0]) == pytest.approx(columns(p[:1], C[:1])[0], abs=1e-15)


def test_one_row_says_what_is_wrong() -> None:
    predictor = fitted("groups")
    with pytest.raises(MissingColumn, match=r"no value for the column 'city'.*Did you mean 'citty'"):
        predictor.one(0.5, {"age": 31, "citty": "Rome", "member": True, "kids": 1})
    with pytest.raises(InvalidInput, match=r"3 values, but 4 columns are read \(age, city, member, kids\)"):
        predictor.one(0.5, [31, "Rome", True])
    with pytest.raises(InvalidInput, match="outside"):
        predictor.one(1.5, ROWS[0])
    with pytest.raises(InvalidInput, match="p must have shape"):
        predictor.one([0.2, 0.3, 0.5], ROWS[0])
    with pytest.raises(InvalidInput, match="not numeric"):
        predictor.one(0.5, {**ROWS[0], "age": "old"})
    y, p, _ = people()
    array = multicalibrate(y, p, np.random.default_rng(0).random((N, 3)), subpopulations=Groups(), alpha=1e-4).predictor
    with pytest.raises(InvalidInput, match="2 values, but column 2 is read"):
        array.one(0.5, [0.1, 0.2])


@pytest.mark.parametrize("name", ["groups", "union", "trees"])
@pytest.mark.parametrize("compiled", [False, True])
def test_many_updates_at_once(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    y, p, X = people()
    predictor = multicalibrate(
        y, p, X, subpopulations=CLASSES[name], solver="first", alpha=0.02, max_updates=60, guard=False
    ).predictor
    assert len(predictor) >= 2 * MANY
    is_program = [isinstance(segment, Compiled) for segment in predictor._segments]
    assert any(is_program) == (name != "trees")
    expected = list(predictor.staged(p, X))[-1]
    monkeypatch.setattr(loops, "COMPILE_FROM", 0 if compiled else 10**9)
    np.testing.assert_allclose(predictor(p, X), expected, atol=1e-14)
    again = pickle.loads(pickle.dumps(predictor))
    np.testing.assert_array_equal(again(p, X), predictor(p, X))


def test_tables_of_a_program_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    y, p, X = people()
    predictor = multicalibrate(
        y, p, X, subpopulations=CLASSES["groups"], solver="first", alpha=0.02, max_updates=40
    ).predictor
    expected = list(predictor.staged(p, X))[-1]
    size = table_size(predictor.updates[0])
    assert size is not None
    monkeypatch.setattr(updates, "MOST_NUMBERS", 10 * size)
    fresh = predictor[:]
    assert len([segment for segment in fresh._segments if isinstance(segment, Compiled)]) >= 2
    np.testing.assert_allclose(fresh(p, X), expected, atol=1e-14)
    monkeypatch.setattr(updates, "MOST_NUMBERS", 0)
    again = predictor[:]
    assert again.one(p[0], {k: v[0] for k, v in X.items()}) == pytest.approx(expected[0], abs=1e-15)


@pytest.mark.parametrize("notion", ["degree-3", "full-0.2", "smooth"])
@pytest.mark.parametrize("classes", [2, 3])
def test_pieces_of_rows_move_like_all_rows(notion: str, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    y, p, X = people(classes=classes)
    predictor = multicalibrate(y, p, X, subpopulations=CLASSES["groups"], notion=notion, alpha=0.02).predictor
    assert len(predictor) > 0
    expected = predictor(p, X)
    monkeypatch.setattr(reference, "CHUNK", 256)
    monkeypatch.setattr(reference, "CACHE", 64)
    np.testing.assert_allclose(predictor(p, X), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["groups", "union", "trees"])
@pytest.mark.parametrize("notion", ["degree-1", "degree-2", "degree-4"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_moments_after_an_update_are_those_of_what_it_moves(
    name: str, notion: str, classes: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    y, p, X = people(classes=classes)
    learner = CLASSES[name].prepare(X)
    learner.learn(np.linspace(-1, 1, N)[:, None])
    rng = np.random.default_rng(0)
    Y = (y[:, None] == (np.arange(classes) if classes > 2 else [1])).astype(float)
    P, weight, d = p.reshape(N, -1), rng.random(N), Y.shape[1]
    chosen = tuple(parse_notion(notion).features(P))
    terms = [Term(f, chosen, 0.1 * rng.normal(size=(len(f.names), len(chosen), d))) for f in learner.families]
    monkeypatch.setattr(loops, "COMPILE_FROM", 0 if compiled else 10**9)
    monkeypatch.setattr(reference, "CACHE", 256)
    rows, state = Memory.of(learner.rows, P, Y, weight / weight.sum()), START.then(Update(tuple(terms)))
    g = rows.run(Moments(state, tuple(learner.families), chosen))
    moved = Update(tuple(terms))(P, learner.rows)
    np.testing.assert_array_equal(rows.whole.at(state), moved)
    assert not np.array_equal(moved, P)
    U, C = np.array([u(moved) for u in chosen]), learner.design().dense()
    rho = weight[:, None] / weight.sum() * (Y - moved)
    np.testing.assert_allclose(g, np.einsum("nc,sn,na->csa", C, U, rho), atol=1e-13)


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_the_fit_with_and_without_compiled_kernels(geometry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    y, p, X = people()
    fits = []
    for start in (0, 10**9):
        monkeypatch.setattr(loops, "COMPILE_FROM", start)
        fits.append(multicalibrate(y, p, X, subpopulations=CLASSES["groups"], geometry=geometry, alpha=0.001))
    assert fits[0].n_updates == fits[1].n_updates
    np.testing.assert_allclose(fits[0].predictor(p, X), fits[1].predictor(p, X), atol=1e-10)


def test_witnesses_are_evaluated_on_members_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the fit and in prediction; the predictions are those of all rows."""
    rng = np.random.default_rng(0)
    p, g = rng.random(600), np.repeat(["a", "b", "c"], 200)
    y = (rng.random(600) < np.clip(p + np.where(g == "a", 0.3, -0.2) * np.sin(6 * p), 0, 1)).astype(int)
    seen: list[int] = []
    evaluated = Knots.__call__

    def record(self: Knots, p: np.ndarray) -> np.ndarray:
        seen.append(len(p))
        return evaluated(self, p)

    monkeypatch.setattr(Knots, "__call__", record)
    kind = {"subpopulations": Groups(everyone=False), "notion": "smooth", "alpha": 0.002, "max_updates": 2}
    fit = multicalibrate(y, p, {"g": g}, geometry="euclidean", **kind)
    calibrated = fit.predictor(p, {"g": g})
    assert seen
    assert max(seen) == 200
    f = p.copy()
    for update in fit.predictor.updates:
        moves = [
            np.where(g == t.family.names[0][2:], t.weights[0](f[:, None]) * t.theta.item(), 0) for t in update.terms
        ]
        f = np.clip(f + sum(moves), 0, 1)
    np.testing.assert_allclose(calibrated, f, atol=1e-12)
