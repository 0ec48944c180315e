"""What a boosting learner offers is taken at its own shrinkage, and only if it makes the guaranteed progress."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from lowcal import Trees, multicalibrate
from lowcal.estimators import BOOSTED
from lowcal.notions import LowDegree
from lowcal.rows import START, Memory
from lowcal.solve.solvers import SOLVERS, START_STEPS, Problem, guaranteed_progress
from lowcal.subpopulations.trees import TreeSum

#: At most this many steps for everyone come before trees are grown on what these leave; one in log odds is the line.
FIRST = {"euclidean": START_STEPS, "mirror": 1}


def world(n=6000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    truth = np.where(X[:, 0] * X[:, 1] > 0, 0.85, 0.15)
    return X, (rng.random(n) < truth).astype(float), rng.uniform(0.2, 0.8, n), truth


def problem(X, y, f, geometry="mirror", **options):
    learner = Trees(**{**BOOSTED, "geometry": geometry, **options}).prepare(X)
    rows = Memory.of(learner.rows, f[:, None], y[:, None], np.full(len(y), 1 / len(y)))
    return Problem(rows, LowDegree(2), learner, 0.001, geometry)


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_the_sum_is_taken_as_it_is(geometry):
    X, y, f, _ = world()
    one = problem(X, y, f, geometry)
    steps, state = [], START
    for step in SOLVERS["block"](one, START):
        steps.append(step)
        if len(steps) == FIRST[geometry] + 3:
            break
    on_everyone = [all(term.family.names == ("everyone",) for term in step.state.update.terms) for step in steps]
    assert 1 <= sum(on_everyone) == sum(on_everyone[: FIRST[geometry]])
    for step in steps:
        assert one.loss(step.state) <= one.loss(state) - guaranteed_progress(one, step.violation) + 1e-12
        state = step.state
    offered = [step for step in steps if isinstance(step.state.update.terms[0].family, TreeSum)]
    assert len(offered) >= 3
    for step in offered:
        (term,) = step.state.update.terms
        h = term.family.forest(one.learner.rows)
        np.testing.assert_allclose(term(f[:, None], term.family.design(one.learner.rows)), h, atol=1e-12)


def test_an_offer_without_enough_progress_is_not_taken():
    """A forest that hardly moves keeps the bound by the step on all constraints instead."""
    X, y, f, _ = world(1500)
    one = problem(X, y, f, n_trees=2, shrinkage=1e-6)
    steps = []
    for step in SOLVERS["block"](one, START):
        steps.append(step)
        if len(steps) == FIRST["mirror"] + 2:
            break
    assert all(len(step.state.update.terms) > 1 for step in steps[FIRST["mirror"] :])
    assert one.loss(steps[-1].state) < one.loss(steps[FIRST["mirror"] - 1].state) - 0.01


@pytest.mark.parametrize("change", [{"step": 0.5}])
def test_a_step_that_the_user_chose_is_kept(change):
    X, y, f, _ = world(1500)
    one = replace(problem(X, y, f), **change)
    for step in itertools.islice(SOLVERS["block"](one, START), START_STEPS, START_STEPS + 3):
        assert len(step.state.update.terms) > 1


def test_an_offer_of_another_geometry_is_not_taken():
    X, y, f, _ = world(1500)
    one = replace(problem(X, y, f, "mirror"), geometry="euclidean")
    for step in itertools.islice(SOLVERS["block"](one, START), START_STEPS, START_STEPS + 3):
        assert len(step.state.update.terms) > 1


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_boosted_trees_bring_their_geometry(geometry):
    """Without a word on the geometry what they offer is taken, by other solvers and steps in the same geometry."""
    X, y, f, _ = world(1500)
    trees = Trees(**BOOSTED, geometry=geometry)
    fit = multicalibrate(y, f, X, subpopulations=trees, alpha=0.001, max_updates=FIRST[geometry] + 2)
    assert {update.geometry for update in fit.predictor.updates} == {geometry}
    assert isinstance(fit.predictor.updates[-1].terms[0].family, TreeSum)
    assert len(fit.predictor.updates[-1].terms) == 1
    for options in ({"solver": "worst"}, {"step": 0.5}, {"geometry": "euclidean"}):
        other = multicalibrate(y, f, X, subpopulations=trees, alpha=0.001, max_updates=1, **options)
        assert other.predictor.updates[0].geometry == options.get("geometry", geometry)
    first = multicalibrate(y, f, X, subpopulations=trees, alpha=0.001, max_updates=1, solver="first", guard=False)
    assert first.predictor.updates[0].geometry == "euclidean"


def test_shrinkage_is_what_generalises():
    """Held-out rows and shrinkage recover an interaction that no column shows alone, from a start that is noise."""
    X, y, f, truth = world()
    options = {"alpha": 0.001, "geometry": "mirror", "validation_fraction": 0.2, "random_state": 0}
    trees = Trees(**BOOSTED, geometry="mirror")
    fit = multicalibrate(y[:4000], f[:4000], X[:4000], subpopulations=trees, **options)
    p = fit.predictor(f[4000:], X[4000:])
    assert np.mean((p - truth[4000:]) ** 2) < 0.1 * np.mean((f[4000:] - truth[4000:]) ** 2)
    assert fit.n_updates <= fit.bound
