"""The weak learner's contract (spec 4.1), and the classes that learn: linear functions, regressors, unions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeRegressor

from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table
from lowcal.subpopulations import (
    Groups,
    Intersections,
    Linear,
    Memberships,
    Regressor,
    Thresholds,
    Trees,
    default_subpopulations,
)
from lowcal.subpopulations.base import MOST_RESIDUALS
from lowcal.subpopulations.union import Union

N = 300
RNG = np.random.default_rng(0)
COLUMNS = {
    "a": RNG.normal(size=N),
    "b": np.where(RNG.random(N) < 0.1, np.nan, RNG.integers(0, 9, N)),
    "s": RNG.choice(np.array(["u", "v", "w", None], dtype=object), N),
}
NUMBERS = {"a": COLUMNS["a"], "c": RNG.random(N)}
UNIT = {"a": RNG.random(N), "b": RNG.random(N) * 0.5}
W = np.full(N, 1.0 / N)

EXACT = {
    "groups": (Groups(min_mass=1), COLUMNS),
    "intersections": (Intersections(min_mass=1), COLUMNS),
    "memberships": (Memberships(min_mass=1), UNIT),
    "thresholds": (Thresholds(min_mass=1), NUMBERS),
    "union": (Groups("s", min_mass=1) + Thresholds("a", min_mass=1), COLUMNS),
}
LEARNED = {
    "trees": (Trees(max_depth=2, min_mass=5), COLUMNS),
    "linear": (Linear(), COLUMNS),
    "regressor": (Regressor(DecisionTreeRegressor(max_depth=2, random_state=0)), COLUMNS),
    "mixed union": (Groups("s", min_mass=1) + Trees(max_depth=2, min_mass=5), COLUMNS),
}
EVERY = EXACT | LEARNED


def prepare(name, weight=W):
    kind, data = EVERY[name]
    return kind.prepare(Table.of(data), weight)


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), alpha=st.floats(1e-4, 0.2), shift=st.sampled_from([-0.5, 0.0, 0.5]))
def test_an_exact_search_keeps_its_contract(name, seed, alpha, shift):
    learner = prepare(name)
    z = W * np.clip(np.random.default_rng(seed).normal(size=N) + shift, -1, 1)
    every = learner.design().dense().T @ z
    found = learner.search(z / learner.weight, alpha)
    if found is None:
        assert np.abs(every).max() <= alpha + 1e-15
    else:
        c = found.family.design(learner.rows).dense()[:, 0]
        assert found.sign * (c @ z) == pytest.approx(found.violation, abs=1e-12)
        assert found.violation > alpha
        assert found.violation == pytest.approx(np.abs(every).max(), abs=1e-12)


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("seed", range(5))
def test_a_learned_search_keeps_its_contract(name, seed):
    learner = prepare(name)
    z = W * np.clip(np.random.default_rng(seed).normal(size=N), -1, 1)
    for alpha in (0.05, 0.02, 0.01, 1e-4):
        found = learner.search(z / learner.weight, alpha)
        known = np.abs(learner.design().dense().T @ z).max()
        if found is None:
            assert known <= alpha + 1e-15
        else:
            c = found.family.design(learner.rows).dense()[:, 0]
            assert found.sign * (c @ z) == pytest.approx(found.violation, abs=1e-12)
            assert found.violation > alpha
    assert found is not None  # 1e-4 is below what noise shows


@pytest.mark.parametrize("name", EVERY)
def test_only_negative_violations_are_found_with_their_sign(name):
    learner = prepare(name)
    found = learner.search(np.full(N, -0.5), 0.1)
    assert found is not None
    assert found.sign == -1.0
    assert found.violation == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_found_in_nothing(name):
    learner = prepare(name)
    assert learner.search(np.zeros(N), 0.01) is None
    assert learner.n_calls == 0  # |z| is too small for any c: nobody is asked


@pytest.mark.parametrize("name", EVERY)
def test_the_pool_never_loses_a_member(name):
    learner = prepare(name)
    rng = np.random.default_rng(3)
    names, C = learner.names, learner.design().dense()
    for _ in range(5):
        learner.learn(rng.normal(size=(N, 2)))
        now = learner.design().dense()
        assert learner.names[: len(names)] == names
        np.testing.assert_array_equal(now[:, : C.shape[1]], C)
        assert now.shape == (N, len(learner.names))
        assert len(set(learner.names)) == len(learner.names)
        names, C = learner.names, now
    assert learner.is_exact is (name in EXACT)
    assert name in EXACT or len(names) > 5


@pytest.mark.parametrize("name", EVERY)
def test_new_rows_are_encoded_like_the_fitted_ones(name):
    learner = prepare(name)
    learner.learn(np.random.default_rng(1).normal(size=(N, 2)))
    full = learner.design().dense()
    rows = np.array([5, 3, 299, 3, 0])
    part = learner.encoder(Table.of(EVERY[name][1]).take(rows))
    np.testing.assert_allclose(learner.design(part).dense(), full[rows], atol=1e-12)
    assert (np.abs(full) <= 1.0 + 1e-12).all()


def test_designs_of_rows_that_are_gone_are_not_mixed_up():
    """Rows are told apart by identity: one that is freed must not lend its design to the next."""
    learner = prepare("trees")
    rng = np.random.default_rng(0)
    learner.learn(rng.normal(size=(N, 1)))
    table = Table.of(COLUMNS)
    full = learner.design().dense()
    for _ in range(30):
        some = rng.integers(0, N, 7)
        np.testing.assert_array_equal(learner.design(learner.encoder(table.take(some))).dense(), full[some])


# --- linear --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_linear_finds_a_planted_direction(sign):
    rng = np.random.default_rng(4)
    n = 4000
    X = rng.normal(size=(n, 5))
    direction = np.array([3.0, 0.0, -4.0, 0.0, 0.0]) / 5
    c = expit(3 * (X @ direction))
    z = sign * (c - c.mean() + 0.02 * rng.normal(size=n)) / n
    learner = Linear().prepare(Table.of(X), np.full(n, 1 / n))
    found = learner.search(z / learner.weight, 0.5 * abs(c @ z))
    assert found is not None
    theta = found.family.theta[:-1, 0]
    cosine = theta @ direction / np.linalg.norm(theta)
    assert abs(cosine) > 0.99
    assert found.violation > 0.95 * abs(c @ z)
    assert "[x0]" in found.family.names[0]
    assert "[x2]" in found.family.names[0]


@pytest.mark.parametrize("high", [True, False])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_linear_looks_at_the_side_where_the_residual_is(high, sign):
    x = np.linspace(-1, 1, 1000)
    side = (x > 0) == high
    z = sign * side / 1000
    learner = Linear().prepare(Table.of({"x": x}), np.full(1000, 1 / 1000))
    learner.learn(z[:, None] / learner.weight[:, None])
    c = learner.design().column(1)
    assert abs(c @ z) > 0.9 * np.abs(z).sum()
    assert c[side].mean() > c[~side].mean() + 0.3


def test_linear_memberships_are_sigmoids_of_scaled_features():
    learner = prepare("linear")
    assert learner.encoder.names == ("a", "b", "b is missing", "s is missing", "s=u", "s=v", "s=w")
    learner.learn(np.random.default_rng(1).normal(size=(N, 1)))
    A = np.zeros((N, len(learner.encoder.names)))
    for j, name in enumerate(learner.encoder.names):
        if name == "a":
            A[:, j] = (COLUMNS["a"] - COLUMNS["a"].mean()) / COLUMNS["a"].std()
        elif name == "b":
            b = COLUMNS["b"]
            A[:, j] = np.nan_to_num((b - np.nanmean(b)) / np.nanstd(b))
        elif name == "b is missing":
            A[:, j] = np.isnan(COLUMNS["b"])
        elif name == "s is missing":
            A[:, j] = [v is None for v in COLUMNS["s"]]
        else:
            A[:, j] = COLUMNS["s"] == name.split("=")[1]
    np.testing.assert_allclose(learner.rows, A, atol=1e-12)
    theta = learner.families[1].theta
    np.testing.assert_allclose(learner.design().dense()[:, 1], expit(A @ theta[:-1, 0] + theta[-1, 0]), atol=1e-12)
    taken = learner.families[1].take(np.array([0]))
    np.testing.assert_array_equal(taken.design(learner.rows).dense()[:, 0], learner.design().dense()[:, 1])
    json.dumps([learner.encoder.to_dict(), *(f.to_dict() for f in learner.families)])


def test_linear_survives_infinite_and_constant_columns():
    X = {"x": np.array([1.0, np.inf, -np.inf, 2.0] * 10), "k": np.ones(40), "none": np.full(40, np.nan)}
    learner = Linear().prepare(Table.of(X), np.full(40, 1 / 40))
    assert learner.encoder.names == ("x", "k")
    assert np.isfinite(learner.design().dense()).all()
    alone = Linear("none").prepare(Table.of(X), np.full(40, 1 / 40))
    assert not alone.learn(np.ones((40, 1)))  # no direction in no feature
    assert alone.names == ("everyone",)


# --- regressors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [LinearRegression(), DecisionTreeRegressor(max_depth=2), KNeighborsRegressor()])
def test_a_regressor_is_signed(estimator):
    rng = np.random.default_rng(6)
    X = rng.normal(size=(500, 2))
    z = (0.5 * np.sign(X[:, 0]) + 0.05 * rng.normal(size=500)) / 500
    learner = Regressor(estimator).prepare(Table.of(X), np.full(500, 1 / 500))
    found = learner.search(z / learner.weight, 0.1)
    assert found is not None
    assert found.sign == 1.0  # the regressor follows the residual, so its own sign does
    c = found.family.design(learner.rows).dense()[:, 0]
    assert c.min() < -0.1
    assert c.max() > 0.1
    assert np.abs(c).max() == pytest.approx(1.0)
    expected = estimator.fit(learner.rows, 500 * z).predict(learner.rows)
    np.testing.assert_allclose(c, expected / np.abs(expected).max(), atol=1e-9)


def test_a_regressor_knows_the_weights():
    X = np.array([[0.0], [0.0], [1.0]])
    w = np.array([0.5, 0.25, 0.25])
    learner = Regressor(DecisionTreeRegressor()).prepare(Table.of(X), w)
    learner.learn(np.array([[1.0], [-1.0], [0.5]]))  # the mean at 0 is (0.5 - 0.25) / 0.75
    np.testing.assert_allclose(learner.design().dense()[:, 1], [2 / 3, 2 / 3, 1.0])
    nobody = Regressor(DecisionTreeRegressor()).prepare(Table.of(X), np.array([0.5, 0.0, 0.5]))
    nobody.learn(np.array([[1.0], [0.0], [-1.0]]))
    np.testing.assert_allclose(nobody.design().dense()[:, 1], [1, 1, -1])


def test_a_regressor_without_an_answer_adds_nothing():
    learner = Regressor(DecisionTreeRegressor()).prepare(Table.of(np.ones((5, 1))), np.full(5, 0.2))
    assert not learner.learn(np.zeros((5, 1)))


def test_a_regressor_predicts_for_nobody():
    learner = prepare("regressor")
    learner.learn(np.random.default_rng(2).normal(size=(N, 1)))
    nobody = learner.encoder(Table.of(COLUMNS).take(np.arange(0)))
    assert learner.design(nobody).dense().shape == (0, 2)


def test_a_regressor_is_not_plain_data():
    learner = prepare("regressor")
    learner.learn(np.random.default_rng(1).normal(size=(N, 1)))
    with pytest.raises(InvalidInput, match=r"can't be written as plain data.*Use Trees or Linear"):
        learner.families[1].to_dict()
    json.dumps(learner.encoder.to_dict())
    taken = learner.families[1].take(np.array([0]))
    np.testing.assert_array_equal(taken.design(learner.rows).dense()[:, 0], learner.design().dense()[:, 1])


# --- unions --------------------------------------------------------------------------------------------------


def test_a_union_counts_everyone_once():
    union = Groups("s", min_mass=1) + Thresholds("a", min_mass=100) + Trees(columns="b", min_mass=5)
    assert isinstance(union, Union)
    assert len(union.parts) == 3
    learner = union.prepare(Table.of(COLUMNS), W)
    assert learner.names.count("everyone") == 1
    assert not learner.is_exact
    parts = [part.prepare(Table.of(COLUMNS), W) for part in union.parts]
    assert set(learner.names) == set().union(*(part.names for part in parts))
    for part in parts:
        C = part.design().dense()
        for name, c in zip(part.names, C.T, strict=True):
            np.testing.assert_array_equal(learner.design().column(learner.names.index(name)), c)


@pytest.mark.parametrize(
    ("union", "is_exact"),
    [
        (Groups(min_mass=1) + Thresholds("a", min_mass=1), True),
        (Groups(min_mass=1) + Groups(min_mass=1), True),
        (Groups(min_mass=1) + Linear(), False),
        (Trees() + Linear(), False),
    ],
)
def test_a_union_is_exact_if_all_its_parts_are(union, is_exact):
    learner = union.prepare(Table.of(COLUMNS), W)
    assert learner.is_exact is is_exact
    assert learner.learn(np.sign(COLUMNS["a"])[:, None]) is not is_exact


def test_a_union_with_itself_is_itself():
    one, two = (kind.prepare(Table.of(COLUMNS), W) for kind in (Groups(), Groups() + Groups()))
    assert two.names == one.names
    np.testing.assert_array_equal(two.design().dense(), one.design().dense())


def test_a_union_learns_with_all_its_learners():
    union = Groups("s", min_mass=1) + Trees(columns="a", max_depth=1, min_mass=5) + Linear("a")
    learner = union.prepare(Table.of(COLUMNS), W)
    before = len(learner.names)
    assert learner.learn(np.sign(COLUMNS["a"])[:, None])
    new = learner.names[before:]
    assert any(name.startswith("a>") for name in new)
    assert any(name.startswith("sigmoid") for name in new)
    j = learner.names.index(new[0])
    np.testing.assert_array_equal(learner.member(j).design(learner.rows).column(0), learner.design().column(j))


@pytest.mark.parametrize(
    "union",
    [
        Regressor(DecisionTreeRegressor(max_depth=1)) + Regressor(Ridge()),
        Regressor(DecisionTreeRegressor(max_depth=1)) + Regressor(DecisionTreeRegressor(max_depth=4)),
        Regressor(DecisionTreeRegressor(max_depth=1), "a") + Regressor(DecisionTreeRegressor(max_depth=1), "b"),
    ],
)
def test_regressors_of_a_union_do_not_hide_each_other(union):
    learner = union.prepare(Table.of(COLUMNS), W)
    learner.learn(np.random.default_rng(2).normal(size=(N, 1)))
    assert len(learner.names) == 3
    C = learner.design().dense()
    assert np.abs(C[:, 1] - C[:, 2]).max() > 0.1


def test_a_union_is_plain_data_and_refuses_strangers():
    learner = prepare("mixed union")
    learner.learn(np.random.default_rng(2).normal(size=(N, 1)))
    json.dumps([learner.encoder.to_dict(), *(f.to_dict() for f in learner.families)])
    with pytest.raises(TypeError):
        Groups() + 3


# --- the default ---------------------------------------------------------------------------------------------


def test_the_default_depends_on_the_table():
    assert default_subpopulations(Table.of(COLUMNS)) == Groups()
    assert default_subpopulations(Table.of(np.zeros((3, 2)))) == Trees()


@pytest.mark.parametrize("kind", [Linear(), Regressor(DecisionTreeRegressor(max_depth=2, random_state=0))])
def test_many_residuals_get_the_strongest_members_of_each_label(kind):
    """Five labels times six weights: a member of each label, and the best of all, not thirty near copies."""
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(5), N)
    y = np.eye(5)[rng.integers(0, 5, N)]
    y[COLUMNS["a"] > 0.5] = np.eye(5)[2]
    U = np.column_stack([np.ones(N), p])
    Z = (U[:, :, None] * (y - p)[:, None, :]).reshape(N, -1)
    learner = kind.prepare(Table.of(COLUMNS), W)
    assert learner.learn(Z)
    members = len(learner.names) - 1
    assert 5 <= members <= 5 + MOST_RESIDUALS // 2
    each = [kind.prepare(Table.of(COLUMNS), W) for _ in range(5)]
    for a, own in enumerate(each):  # what a call for one label alone finds is found here too
        own.learn(Z[:, [a]])
        alone = np.abs(own.design().moments(W[:, None] * Z[:, [a]])).max()
        assert np.abs(learner.design().moments(W[:, None] * Z[:, [a]])).max() >= 0.999 * alone


def test_few_residuals_get_a_member_each():
    rng = np.random.default_rng(2)
    learner = Linear().prepare(Table.of(COLUMNS), W)
    learner.learn(rng.uniform(-1, 1, (N, MOST_RESIDUALS)))
    assert len(learner.names) == 1 + MOST_RESIDUALS
