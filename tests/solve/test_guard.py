"""The guard: what cross-fitting keeps, what it undoes, and what a fit then says."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import lowcal
from lowcal import FitWarning, multicalibrate
from lowcal.datasets import make_miscalibrated
from lowcal.notions import LowDegree
from lowcal.rows import Memory
from lowcal.rows.base import FEW_ROWS
from lowcal.solve.solvers import Problem
from lowcal.solve.stopping import Guard, caution, deal, is_harmless, mean_change
from worlds import good_model, sigmoid


def test_rare_outcomes_need_a_bound_per_person():
    rng = np.random.default_rng(0)
    g = rng.integers(0, 10, 20_000)
    p = np.full(20_000, 0.06)
    y, X = rng.random(20_000) < np.where(g < 3, 0.12, 0.035), {"g": g.astype(str)}
    assert multicalibrate(y, p, X, alpha=0.01).n_updates == 0
    fit = multicalibrate(y, p, X, per_person=0.01)
    calibrated = fit.predictor(p, X)
    assert max(abs((y - calibrated)[g == k].mean()) for k in range(10)) < 0.01
    assert (fit.status, fit.per_person, fit.alpha) == ("reached", 0.01, None)
    assert str(fit).startswith("degree-2 at per_person=0.01: reached")


def test_per_person_bounds_every_group_that_is_large_enough():
    data = make_miscalibrated(20_000, random_state=1)
    fit = multicalibrate(data.y, data.p, data.X, per_person=0.03, min_share=0.05, guard=False)
    measured = lowcal.measure(data.y, fit.predictor(data.p, data.X), data.X)
    judged = measured.mass >= 0.05
    assert fit.status == "reached"
    assert measured.conditional[judged].max() <= 0.03 * (1 + 1e-9)
    other = multicalibrate(data.y, data.p, data.X, per_person=0.03, min_share=0.05, solver="worst", guard=False)
    assert other.status == "reached"
    with pytest.raises(lowcal.InvalidInput, match="one alpha only"):
        multicalibrate(data.y, data.p, data.X, per_person=0.03, solver="first")
    with pytest.raises(lowcal.InvalidInput, match="not both"):
        multicalibrate(data.y, data.p, data.X, per_person=0.03, alpha=0.01)


def test_a_fit_tells_its_cross_fitted_loss():
    data = make_miscalibrated(3000, random_state=0)
    fit = multicalibrate(data.y, data.p, data.X)
    losses = [fit.start.held_out_log_loss, *(record.held_out_log_loss for record in fit.history)]
    assert losses == sorted(losses, reverse=True)
    assert f"Log loss on held-out rows: {losses[0]:.4g} -> {losses[-1]:.4g}." in str(fit)
    assert multicalibrate(data.y, data.p, data.X, guard=False).start.held_out_log_loss is None


@pytest.mark.parametrize("solver", ["first", "worst"])
def test_solvers_of_small_steps_keep_the_best_number_of_them(solver):
    y, p, X = good_model(400, 3)
    fit = multicalibrate(y, p, X, solver=solver, alpha=0.001, max_updates=60)
    assert (fit.status, len(fit.predictor)) == ("guarded", 0)
    assert fit.n_updates > 0
    np.testing.assert_array_equal(fit.predictor(p, X), p)


@pytest.mark.parametrize("how", [{}, {"validation_fraction": 0.3}])
def test_the_solver_first_searches_smooth_weights_on_the_fitted_rows(how):
    data = make_miscalibrated(2000, random_state=0)
    fit = multicalibrate(data.y, data.p, data.X, notion="smooth", alpha=0.02, solver="first", random_state=0, **how)
    assert fit.status == "reached"
    assert fit.n_updates >= 1


def test_what_makes_zeros_or_ones_warns():
    data = make_miscalibrated(300, random_state=0)
    with pytest.warns(FitWarning, match="exactly 0 or 1"):
        multicalibrate(data.y, data.p, data.X, geometry="euclidean", alpha=0.0005, guard=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        multicalibrate(data.y, data.p, data.X)


def test_fewer_than_fifty_rows_leave_the_model_as_it_is():
    y, p, _ = good_model(40, 0)
    assert len(multicalibrate(1 - y, p).predictor) == 0


def test_few_constraints_for_the_rows_need_no_guard():
    for n, expected in ((24_000, False), (26_000, True)):  # 5 groups x 2 weights / (2 n) against 2e-4
        y, p, X = good_model(n, 0, columns=1, levels=4)
        learner = lowcal.Groups().prepare(X)
        assert len(learner.names) == 5
        rows = Memory.of(learner.rows, p[:, None], y[:, None], np.full(n, 1 / n))
        problem = Problem(rows, LowDegree(2), learner, 0.01)
        assert is_harmless(problem) == expected


def test_folds_hold_every_row_once_and_none_without_weight():
    weight = np.where(np.arange(103) % 4 == 0, 0.0, 1.0)
    dealt = list(deal(weight, 0.2, 0, FEW_ROWS))
    assert len(dealt) == 5
    held = np.sort(np.concatenate([rows for _, rows in dealt]))
    np.testing.assert_array_equal(held, np.flatnonzero(weight))
    for fitted, out in dealt:
        np.testing.assert_array_equal(np.sort(np.concatenate([fitted, out])), np.flatnonzero(weight))
    assert len(list(deal(np.ones(50_000), 0.2, 0, FEW_ROWS))) == 2, "20,000 rows are enough to judge on"
    assert len(list(deal(np.ones(10), 0.5, 0, FEW_ROWS))) == 2


@pytest.mark.parametrize("guard", [-0.1, 1.0, "yes", np.nan])
def test_a_share_that_is_none_is_refused(guard):
    y, p, X = good_model(100, 0)
    with pytest.raises(lowcal.InvalidInput, match="guard"):
        multicalibrate(y, p, X, guard=guard)


def guard_of(p, y, geometry):
    """Return a guard that judges one fold of these rows."""
    weight = np.full(len(y), 1 / len(y))
    held = SimpleNamespace(y=y[:, None], weight=weight, unit=weight)
    return Guard([SimpleNamespace(held=held, tried=p[:, None])], geometry, None)


@pytest.mark.parametrize(("geometry", "is_kept"), [("mirror", False), ("euclidean", True)])
def test_a_step_in_log_odds_that_loses_the_order_is_no_gain(geometry, is_kept):
    """The base rate for everyone beats sure predictions in either loss, but puts nobody before anybody."""
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1.0, 2000)
    y = (rng.random(2000) < sigmoid(0.4 * z)).astype(float)
    guard = guard_of(sigmoid(8 * z), y, geometry)
    before = guard.now
    guard.folds[0].tried = np.full((2000, 1), y.mean())
    assert guard._is_gain(before, guard._scores()) == is_kept
    guard.folds[0].tried = sigmoid(0.4 * z)[:, None]
    assert guard._is_gain(before, guard._scores())


def test_undone_steps_raise_the_bar():
    y = np.tile([1.0, 0.0], 500)
    guard = guard_of(np.full(1000, 0.5), y, "mirror")
    before = guard.now
    # 55% of each label gain what the others lose: about three standard errors
    better = np.where(np.arange(1000) % 20 < 11, 1.0, -1.0) * (y - 0.5)
    guard.folds[0].tried = (0.5 + 0.02 * better)[:, None]
    gain, error = mean_change(before.log_loss, guard._scores().log_loss, guard.weight)
    assert 2.0 < -gain / error < 3.5
    assert guard._is_gain(before, guard._scores())
    guard.n_undone = 200
    assert caution(200) > -gain / error
    assert not guard._is_gain(before, guard._scores())
