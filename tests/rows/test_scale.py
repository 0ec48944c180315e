"""At scale: many classes without arrays of rows x classes^2, each figure computed once, and no chase after noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import definition
import lowcal
from lowcal.data.frames import Table as Frame
from lowcal.kernels.reference import Codes, Cumulative, DecodeTable, Design, Matrix, Stacked
from lowcal.notions import finite, moments
from lowcal.notions.finite import LowDegree
from lowcal.notions.moments import Parts, outer_moments
from lowcal.notions.weights import Monomial
from lowcal.rows import START, Memory
from lowcal.rows.passes import Losses, Moments
from lowcal.rows.updates import Term, Update
from lowcal.solve import solvers
from worlds import multicalibrate


# ------------------------------------------------------------------------------------------------- many classes
def make_design(kind: str, rng: np.random.Generator, n: int) -> Design:
    codes = rng.integers(0, 7, n).astype(np.uint8)
    matrix = rng.random((n, 4)) * (rng.random((n, 4)) < 0.5)
    made: dict[str, Design] = {
        "codes": Codes(
            (codes, codes[::-1].copy()),
            (DecodeTable(sparse.csr_array(np.tri(7))), DecodeTable(sparse.csr_array(np.eye(7)))),
        ),
        "thresholds": Codes((codes,), (Cumulative.every(7),)),
        "matrix": Matrix(matrix),
        "sparse": Matrix(sparse.csr_array(matrix)),
    }
    made["stacked"] = Stacked((made["codes"], made["sparse"], made["matrix"]))
    return made[kind]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["codes", "thresholds", "matrix", "sparse", "stacked"]),
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.sampled_from([0, 10**6]),
    st.sampled_from([1, 1 << 23]),
)
def test_outer_moments_are_sums_over_rows(kind: str, seed: int, n: int, few: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    design, A, B = make_design(kind, rng, n), rng.normal(size=(n, 5)), rng.normal(size=(n, 3))
    before = moments.FEW_PRODUCTS, moments.MOST_SUMS
    moments.FEW_PRODUCTS, moments.MOST_SUMS = few, most
    try:
        got = outer_moments(design, A, B)
    finally:
        moments.FEW_PRODUCTS, moments.MOST_SUMS = before
    expected = np.einsum("nc,ns,nt->cst", design.dense(), A, B)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


def residuals(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, ...]:
    """Probabilities with zeros and ones among them, weights with zeros, labels, and the residuals of these."""
    p = rng.dirichlet(np.full(d, 0.3), n)
    p[rng.random(p.shape) < 0.2] = 0.0
    p[np.arange(n), rng.integers(0, d, n)] += 1e-12
    p /= p.sum(axis=1, keepdims=True)
    w, y = rng.random(n) * (rng.random(n) < 0.8) * 10.0 ** rng.integers(-9, 2, n), rng.integers(0, d, n)
    return p, w, y, w[:, None] * (np.eye(d)[y] - p)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["codes", "thresholds", "matrix", "sparse", "stacked"]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 40),
    st.integers(3, 12),
    st.sampled_from([0, 10**6]),
    st.sampled_from([1, 1 << 23]),
)
def test_moments_of_labels_are_sums_over_rows(kind: str, seed: int, n: int, d: int, few: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    design, (p, _, _, rho) = make_design(kind, rng, n), residuals(rng, n, d)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "FEW_PRODUCTS", few)
        patch.setattr(moments, "MOST_SUMS", most)
        patch.setattr(moments, "CACHE", 100)
        got = outer_moments(design, p, rho)
        degree = LowDegree(2).suprema(p, rho, design).moments
    dense = design.dense()
    np.testing.assert_allclose(got, np.einsum("nc,ns,nt->cst", dense, p, rho), rtol=0, atol=1e-10)
    one = np.column_stack([np.ones(n), p])
    np.testing.assert_allclose(degree, np.einsum("nc,ns,nt->cst", dense, one, rho), rtol=0, atol=1e-10)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from([0.0, 1.0, -1.0]))
def test_one_sort_gives_both_sides(seed: int, d: int, shift: float) -> None:
    m = np.random.default_rng(seed).normal(size=(4, 3, d)) + shift
    for side, sign in zip(finite._both_sides(m), (1.0, -1.0), strict=True):
        np.testing.assert_allclose(side, finite.best_linear(sign * m)[0], atol=1e-13)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 30),
    st.integers(1, 5),
    st.sampled_from([0, 10**6]),
    st.sampled_from([1, 20, 10**6]),
)
def test_parts_are_sums_inside_and_look_ups(seed: int, n: int, count: int, few: int, numbers: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, count + 1, n).astype(np.uint8)
    A, B, theta = rng.normal(size=(n, 2)), rng.normal(size=(n, 3)), rng.normal(size=(count, 2, 3))
    before = moments.FEW_PRODUCTS, moments.CACHE
    moments.FEW_PRODUCTS, moments.CACHE = few, numbers
    try:
        sums, looked_up = Parts(ids, count).products(A, B), Parts(ids, count).combine(A, theta)
        squares = Parts(ids, count).squares(A)
    finally:
        moments.FEW_PRODUCTS, moments.CACHE = before
    assert sums.shape == (count, 2, 3)
    assert looked_up.shape == (n, 3)
    for k in range(count):
        np.testing.assert_allclose(
            sums[k], sum((np.outer(A[i], B[i]) for i in range(n) if ids[i] == k), np.zeros((2, 3)))
        )
        np.testing.assert_allclose(
            squares[k], sum((np.outer(A[i], A[i]) for i in range(n) if ids[i] == k), np.zeros((2, 2))), atol=1e-12
        )
    for i in range(n):
        np.testing.assert_allclose(looked_up[i], A[i] @ theta[ids[i]] if ids[i] < count else 0.0, atol=1e-12)


def many_classes(n: int = 600, d: int = 12) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.full(d, 0.5), n)
    g = rng.integers(0, 4, n)
    p = truth ** np.array([0.4, 1.0, 1.0, 2.0])[g][:, None]
    y = np.array([rng.choice(d, p=row) for row in truth])
    return y, p / p.sum(axis=1, keepdims=True), {"g": np.array(list("abcd"))[g]}


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_many_classes_reach_alpha(geometry: str) -> None:
    y, p, X = many_classes()
    names, C = definition.groups(X)
    hot = np.eye(12)[y]
    learner = lowcal.Groups(min_mass=0).prepare(Frame.of(X))
    found = LowDegree(2).suprema(p, (hot - p) / len(p), learner.design())
    expected = definition.suprema("degree-2", C, hot, p)
    np.testing.assert_allclose(found.value[[learner.names.index(name) for name in names]], expected, atol=1e-12)
    U = np.column_stack([np.ones(len(p)), p])
    members = learner.design().dense()
    np.testing.assert_allclose(found.moments, np.einsum("nc,ns,na->csa", members, U, hot - p) / len(p), atol=1e-12)
    options = {"subpopulations": lowcal.Groups(min_mass=0), "alpha": 0.02, "classes": range(12), "geometry": geometry}
    fit = multicalibrate(y, p, X, guard=False, **options)
    assert fit.status == "reached"
    assert fit.n_updates <= 12
    assert definition.supremum("degree-2", C, hot, fit.predictor(p, X)) <= 0.02 + 1e-12


def test_memberships_and_groups_of_many_classes_agree() -> None:
    y, p, X = many_classes()
    one_hot = (X["g"][:, None] == np.array(list("abcd"))).astype(float)
    # groups that partition the rows are a pool, columns of a matrix are another: shrunk steps differ
    options = {"alpha": 0.02, "classes": range(12), "max_updates": 2, "geometry": "euclidean"}
    groups = multicalibrate(y, p, X, subpopulations=lowcal.Groups(), **options)
    for members in (one_hot, np.clip(one_hot, 1e-12, 1), sparse.csr_array(one_hot)):
        same = multicalibrate(y, p, members, subpopulations=lowcal.Memberships(), **options)
        np.testing.assert_allclose(same.predictor(p, members), groups.predictor(p, X), atol=1e-3)


# ------------------------------------------------------------------------------------------------- passes
@pytest.mark.parametrize("solver", ["block", "worst", "first"])
def test_each_figure_of_a_predictor_is_computed_once(monkeypatch: pytest.MonkeyPatch, solver: str) -> None:
    data = lowcal.datasets.make_miscalibrated(2000, random_state=0)
    counts = {"norm": 0, "moments": 0, "losses": 0}

    def count(name, function):
        def counted(*arguments):
            counts[name] += 1
            return function(*arguments)

        return counted

    monkeypatch.setattr(LowDegree, "norm", count("norm", LowDegree.norm))
    for name, one in (("moments", Moments), ("losses", Losses)):
        monkeypatch.setattr(one, "__call__", count(name, one.__call__))
    alpha = 0.001 if solver == "block" else 0.005
    fit = multicalibrate(data.y, data.p, data.X, alpha=alpha, solver=solver, geometry="euclidean")
    assert fit.status == "reached"
    assert fit.n_updates >= 2
    # every predictor is measured once, in one pass, the start and the end among them; both losses take another pass
    assert set(counts.values()) == {fit.n_updates + 1}


def test_what_is_remembered_belongs_to_these_predictions_labels_and_members() -> None:
    data = lowcal.datasets.make_miscalibrated(500, random_state=1)
    learner = lowcal.Groups().prepare(Frame.of(data.X))
    p, y, weight = data.p[:, None], data.y[:, None].astype(float), np.full(500, 1 / 500)
    problem = solvers.Problem(Memory.of(learner.rows, p, y, weight), LowDegree(2), learner, 0.01)
    assert problem.suprema(START) is problem.suprema(START)
    assert problem.suprema(START, 0.5) is not problem.suprema(START)
    up = Update((Term(learner.member(0), (Monomial(),), np.full((1, 1, 1), 0.1)),))
    for state in (START, START.then(up), START.then(Update((up.terms[0].scaled(-2.0),))), START):
        moved = np.clip(data.p + sum(update.terms[0].theta.item() for update in state.updates), 0, 1)
        assert problem.losses(state).brier == pytest.approx(np.mean((data.y - moved) ** 2))
        np.testing.assert_allclose(problem.suprema(state).moments[0, 0, 0], np.mean(data.y - moved), atol=1e-12)
    before = problem.suprema(START)
    learner.families.append(learner.member(0))
    assert len(problem.suprema(START).value) == len(before.value) + 1
    other = replace(problem, rows=Memory.of(learner.rows, p, 1.0 - y, weight))
    assert other.losses(START).brier == pytest.approx(np.mean((1 - data.y - data.p) ** 2))


# ------------------------------------------------------------------------------------------------- rounding
def test_a_supremum_within_rounding_of_alpha_is_alpha() -> None:
    """Half the l1 norm of a vector that sums to zero is its largest entry, but the two sums may round differently."""
    rounded_up = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        p, y = rng.dirichlet(np.ones(3), 20), np.eye(3)[rng.integers(0, 3, 20)]
        learner = lowcal.Groups(everyone=True).prepare(Frame.of(np.zeros((20, 0))))
        rows = Memory.of(learner.rows, p, y, np.full(20, 1 / 20))
        problem = solvers.Problem(rows, LowDegree(1), learner, 1.0)
        found = problem.suprema(START)
        alpha = float(found.basis.max())
        assert found.upper.max() == pytest.approx(alpha, rel=1e-13)
        if not found.upper.max() > alpha:
            continue
        rounded_up += 1
        for solver in ("first", "worst", "block"):
            assert list(solvers.SOLVERS[solver](replace(problem, alpha=alpha), START)) == []
            fit = multicalibrate(y, p, notion="degree-1", alpha=alpha, solver=solver)
            assert (fit.status, fit.n_updates) == ("reached", 0)
        below = multicalibrate(y, p, notion="degree-1", alpha=alpha * (1 - 1e-9), solver="worst")
        assert below.n_updates >= 1, "the slack is rounding, no more"
    assert rounded_up >= 3


# ------------------------------------------------------------------------------------------------- noise
def noisy_world(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return labels, a start that ignores ten columns of ten levels each, and the columns: 100 groups."""
    rng = np.random.default_rng(seed)
    G = rng.integers(0, 10, size=(n, 10))
    shift, slope = np.random.default_rng(99).normal(size=(2, 10, 10)) * np.array([0.3, 0.1])[:, None, None]
    base = 1.3 * rng.normal(size=n)
    odds = base * (1 + slope[np.arange(10), G].sum(axis=1)) + shift[np.arange(10), G].sum(axis=1)
    truth = 1 / (1 + np.exp(-odds))
    return (
        (rng.random(n) < truth).astype(int),
        1 / (1 + np.exp(-base)),
        {f"g{k}": np.array(list("abcdefghij"))[G[:, k]] for k in range(10)},
    )


def test_an_alpha_below_the_noise_is_not_chased_by_default() -> None:
    y, p, X = noisy_world(10_000)
    fresh_y, fresh_p, fresh_X = noisy_world(10_000, seed=1)

    def held_out(fit: lowcal.Fit) -> float:
        return definition.brier(fresh_y, fit.predictor(fresh_p, fresh_X))

    start = definition.brier(fresh_y, fresh_p)
    fit = lowcal.multicalibrate(y, p, X, notion="full-0.1", alpha=0.001)
    assert fit.status == "guarded"
    assert "guard=False" in str(fit)
    assert fit.alpha == 0.001 < fit.violation
    assert held_out(fit) < start - 0.002
    eager = multicalibrate(y, p, X, notion="full-0.1", alpha=0.001)
    assert eager.status == "reached"
    assert eager.violation <= 0.001
    assert held_out(eager) > start + 0.05, "what the guard is for"


def test_the_estimator_does_not_chase_noise_either() -> None:
    import pandas as pd
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.frozen import FrozenEstimator

    class Given(ClassifierMixin, BaseEstimator):
        classes_ = np.array([0, 1])

        def predict_proba(self, X):
            return np.column_stack([1 - X["p"], X["p"]])

        def __sklearn_is_fitted__(self):
            return True

    (y, p, X), (fresh_y, fresh_p, fresh_X) = noisy_world(10_000), noisy_world(10_000, seed=1)
    model = lowcal.MulticalibratedClassifier(
        FrozenEstimator(Given()),
        notion="full-0.1",
        alpha=0.001,
        subpopulations=lowcal.Groups([f"g{k}" for k in range(10)]),
        random_state=0,
    ).fit(pd.DataFrame({**X, "p": p}), y)
    calibrated = model.predict_proba(pd.DataFrame({**fresh_X, "p": fresh_p}))[:, 1]
    assert model.status_ == "guarded"
    assert definition.brier(fresh_y, calibrated) < definition.brier(fresh_y, fresh_p)


def test_few_constraints_are_met_whatever_the_rows() -> None:
    y, p, X = noisy_world(400)
    options = {"subpopulations": lowcal.Groups(["g0"], min_mass=5), "alpha": 1e-4}
    assert multicalibrate(y, p, X, **options).status == "reached"


def test_few_rows_for_many_groups_are_not_learned_by_heart() -> None:
    """1,000 rows and 100 groups, alpha .001: without the guard the log loss of fresh rows went up by more than 1."""
    y, p, X = noisy_world(1000, seed=3)
    fresh_y, fresh_p, fresh_X = noisy_world(20_000, seed=4)
    fit = lowcal.multicalibrate(y, p, X, alpha=0.001)
    assert fit.status == "guarded"
    calibrated = fit.predictor(fresh_p, fresh_X)
    assert definition.brier(fresh_y, calibrated) < definition.brier(fresh_y, fresh_p)


def test_held_out_rows_take_the_place_of_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    y, p, X = noisy_world(5000)
    monkeypatch.setattr("lowcal.solve.fitting.make_guard", lambda *_: pytest.fail("the rows are dealt all the same"))
    lowcal.multicalibrate(y, p, X, notion="full-0.1", alpha=0.001, validation_fraction=0.2, random_state=0)
