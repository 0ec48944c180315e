"""Empirical Bayes by pools of groups: the prior that rows tell, and the steps it shrinks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.metrics import log_loss

import lowcal
from lowcal.data.frames import Table
from lowcal.kernels.reference import Matrix
from lowcal.notions import LowDegree, Multiaccuracy
from lowcal.notions.weights import Monomial, monomials
from lowcal.rows import START, Memory
from lowcal.solve.shrinkage import (
    Features,
    depths_of,
    group_step,
    line_step,
    logit_step,
    logit_weights,
    members_up_to,
    pools_of,
    precisions,
    probes_and_labels,
    starts_with_line,
)
from lowcal.subpopulations.memberships import Members


def world(n=4000, seed=0, spread=0.5):
    """Return a learner of 12 + 5 groups, and rows whose log odds are shifted by group."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 12, n), rng.integers(0, 5, n)
    learner = lowcal.Groups().prepare(Table.of({"a": a.astype(str), "b": b.astype(str)}))
    z = rng.normal(0, 1, n)
    f = 1 / (1 + np.exp(-(z + rng.normal(0, spread, 12)[a])))
    y, p = (rng.random(n) < f).astype(float), 1 / (1 + np.exp(-z))
    return learner, Memory.of(learner.rows, p[:, None], y[:, None], np.full(n, 1 / n))


def after(rows, moved):
    """Return the predictions before a step and after it, if there is one."""
    return rows.whole.at(START), rows.whole.at(START if moved is None else moved)


@pytest.mark.parametrize("tau", [0.0, 0.2, 1.0])
def test_the_variance_of_a_pool_is_found(tau):
    """Moments are drawn with variance v + h^2 tau^2."""
    rng, m, n = np.random.default_rng(0), 4000, 500.0
    h = rng.uniform(0.01, 0.2, (m, 1, 1))
    g = rng.normal(0, np.sqrt(h / n + np.square(h) * tau**2))
    found = precisions(g, h, h / n, np.zeros(m, dtype=np.intp), n)
    if tau == 0.0:
        assert np.isinf(found).all() or (1 / (n * found)).max() < 0.05**2
    else:
        assert 1 / (n * found[0, 0, 0]) == pytest.approx(tau**2, rel=0.15)


@given(st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_pools_and_weights_do_not_look_at_each_other(seed):
    rng = np.random.default_rng(seed)
    g, h = rng.normal(0, 1, (9, 2, 3)), rng.uniform(0.1, 1, (9, 2, 3))
    pools = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2])
    whole = precisions(g, h, h / 10, pools, 10.0)
    for k in range(3):
        alone = precisions(g[pools == k], h[pools == k], h[pools == k] / 10, np.zeros((pools == k).sum(), int), 10.0)
        np.testing.assert_allclose(whole[pools == k], alone)
    np.testing.assert_allclose(whole[:, [1]], precisions(g[:, [1]], h[:, [1]], h[:, [1]] / 10, pools, 10.0))


def test_groups_that_partition_the_rows_are_a_pool():
    learner, _ = world()
    pools = pools_of(learner.design())
    kinds = [name.split("=")[0] for name in learner.names]
    assert {kind: len(set(pools[[k == kind for k in kinds]])) for kind in kinds} == {"everyone": 1, "a": 1, "b": 1}
    assert len(set(pools)) == 3
    assert set(pools_of(Matrix(np.ones((4, 3))))) == {0}


def test_depths_are_the_numbers_of_conditions():
    X = Table.of({"a": np.arange(600) % 3, "b": np.arange(600) % 2, "c": np.arange(600) // 300})
    learner = lowcal.Intersections(depth=2).prepare(X)
    expected = [0 if name == "everyone" else 1 + name.count(" & ") for name in learner.names]
    np.testing.assert_array_equal(depths_of(learner), expected)
    for depth in (0, 1, 2):
        kept = [name for family in members_up_to(learner, depth) for name in family.names]
        assert kept == [name for name, d in zip(learner.names, expected, strict=True) if d <= depth]
    both = (lowcal.Intersections(["a", "b"]) + lowcal.Groups("c")).prepare(X)
    assert sorted(set(depths_of(both))) == [0, 1, 2]


@pytest.mark.parametrize("step", ["groups", "regression"])
def test_a_shrunk_step_is_nearer_to_the_truth_than_one_without_a_prior(step, monkeypatch):
    """600 rows, twelve groups that differ and five that do not."""
    errors = {"start": [], "shrunk": [], "unshrunk": []}
    real = precisions
    for kind, seed in ((kind, seed) for kind in ("shrunk", "unshrunk") for seed in range(8)):
        prior = real if kind == "shrunk" else lambda g, *_: np.full(g.shape, 1e-6)
        monkeypatch.setattr("lowcal.solve.shrinkage.precisions", prior)
        learner, rows, truth = small_world(seed)
        given = (rows, START, (0,))
        if step == "regression":
            moved = logit_step(learner.families, *given)
        else:
            moved = group_step(learner.families, logit_weights(LowDegree(2), 1), *given)
        for name, p in zip(("start", kind), after(rows, moved), strict=True):
            errors[name].append(np.mean((p[:, 0] - truth) ** 2))
    start, shrunk, unshrunk = (np.mean(errors[kind]) for kind in ("start", "shrunk", "unshrunk"))
    assert shrunk < 0.8 * unshrunk
    assert shrunk < start


def small_world(seed):
    rng = np.random.default_rng(seed)
    a, b, z = rng.integers(0, 12, 600), rng.integers(0, 5, 600), rng.normal(0, 1, 600)
    learner = lowcal.Groups(min_mass=0).prepare(Table.of({"a": a.astype(str), "b": b.astype(str)}))
    truth = 1 / (1 + np.exp(-(z + rng.normal(0, 0.4, 12)[a])))
    y, p = (rng.random(600) < truth).astype(float), 1 / (1 + np.exp(-z))
    return learner, Memory.of(learner.rows, p[:, None], y[:, None], np.full(600, 1 / 600)), truth


def test_both_ways_of_a_logit_step_are_near(monkeypatch):
    learner, rows = world()
    start, one = after(rows, logit_step(learner.families, rows, START, (0,)))
    monkeypatch.setattr("lowcal.solve.shrinkage.MOST_DENSE", 0)
    _, other = after(rows, logit_step(learner.families, rows, START, (0,)))
    assert np.abs(one - other).mean() < 0.02
    assert np.abs(one - start).mean() > 0.03


def test_noise_alone_makes_no_step():
    steps = 0
    for seed in range(20):
        learner, rows = world(2000, seed, spread=0.0)
        start, moved = after(rows, group_step(learner.families, logit_weights(Multiaccuracy(), 1), rows, START, (0,)))
        steps += np.abs(moved - start).mean() > 0.02
    assert steps <= 3


@pytest.mark.parametrize("d", [1, 4])
def test_the_line_of_everyone_is_found_and_shrunk(d):
    rng = np.random.default_rng(0)
    for n, most in ((20_000, 0.06 if d == 1 else 0.25), (100, 1.0)):
        z = rng.normal(0, 2, (n, d))
        p = 1 / (1 + np.exp(-z)) if d == 1 else np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        f = 1 / (1 + np.exp(-(0.5 * z + 0.3))) if d == 1 else np.exp(0.5 * z) / np.exp(0.5 * z).sum(1, keepdims=True)
        y = (rng.random((n, 1)) < f).astype(float) if d == 1 else np.eye(d)[(rng.random((n, 1)) > f.cumsum(1)).sum(1)]
        learner = lowcal.Groups([]).prepare(Table.of({"a": np.zeros(n)}))
        rows = Memory.of(learner.rows, p, y, np.full(n, 1 / n))
        _, moved = after(rows, line_step(rows, START, learner, (0,)))
        assert np.abs(moved - f).mean() < most * np.abs(p - f).mean() + (n == 100)
    assert starts_with_line(LowDegree(2), learner, 1)
    assert not starts_with_line(LowDegree(2), learner, 3)
    assert not starts_with_line(Multiaccuracy(), learner, 1)


def features_of(C, p, y=None):
    """Return the features of degree 2 on fractional memberships."""
    n, m = C.shape
    rows = Memory.of(C, p, p if y is None else y, np.full(n, 1 / n))
    members = Members(tuple(f"m{j}" for j in range(m)), tuple(range(m)))
    return Features(rows, START, (members,), monomials(p.shape[1], 1))


@pytest.mark.parametrize("d", [3, 9])
def test_a_label_of_many_classes_has_weights_of_its_own(d):
    """1 and its own coordinate: what they say is what all coordinates say there, and the rest is 0."""
    rng = np.random.default_rng(d)
    C, p = rng.random((40, 4)), rng.dirichlet(np.ones(d), 40)
    y, labels = np.eye(d)[rng.integers(0, d, 40)], np.arange(d)
    features, U = features_of(C, p, y), np.column_stack([np.ones(40), p])
    g, h, _ = features.seen(START)
    assert features.own == (d == 9)
    for found, power, values in ((g, 1, y - p), (h, 2, np.maximum(p * (1 - p), 1e-3))):
        every = np.einsum("nc,ns,na->csa", C**power, U**power, values) / 40
        own = every if d == 3 else np.stack([every[:, 0], every[:, 1 + labels, labels]], axis=1)
        np.testing.assert_allclose(found, own, atol=1e-12)
    theta = rng.normal(size=g.shape)
    (term,) = features.terms(theta)
    spread = theta if d == 3 else np.zeros((4, 1 + d, d))
    if d == 9:
        spread[:, 0], spread[:, 1 + labels, labels] = theta[:, 0], theta[:, 1]
    np.testing.assert_array_equal(term.theta, spread)
    np.testing.assert_allclose(term(p, Matrix(C)), np.einsum("nc,ns,csa->na", C, U, spread))


def test_everyone_alone_has_all_weights():
    p = np.random.default_rng(0).dirichlet(np.ones(9), 30)
    assert features_of(np.ones((30, 1)), p).seen(START).g.shape == (1, 10, 9)


def test_a_learner_is_asked_about_each_label_of_many_classes_alone():
    assert probes_and_labels(LowDegree(2), 3) == [(u, a) for u in monomials(3, 1) for a in range(3)]
    assert probes_and_labels(LowDegree(2), 9) == [
        *((Monomial(), a) for a in range(9)),
        *((Monomial((a,)), a) for a in range(9)),
    ]
    assert probes_and_labels(Multiaccuracy(), 30) == [(Monomial(), a) for a in range(30)]


def test_labels_that_are_taken_for_others_are_told_apart_by_everyone():
    """With nine classes no group has the weights for it, and no temperature helps."""
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1.5, (6000, 9))
    truth = softmax(z + 0.7 * np.roll(z, 1, axis=1), axis=1)
    y, p = np.array([rng.choice(9, p=q) for q in truth]), softmax(z, axis=1)
    fit = lowcal.multicalibrate(y[:3000], p[:3000], {"g": rng.choice(list("ab"), 3000)}, random_state=0)
    calibrated = fit.predictor(p[3000:], {"g": np.full(3000, "a")})
    before, after, best = (log_loss(y[3000:], q) for q in (p[3000:], calibrated, truth[3000:]))
    assert after - best < 0.6 * (before - best)
