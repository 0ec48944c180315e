"""The block step at scale: a subsample of rows, or only some of the subpopulations, never break its promises."""

import numpy as np
import pytest

import lowcal
from lowcal import blocks
from lowcal.blocks import ridge_solve
from lowcal.datasets import make_miscalibrated


@pytest.fixture(scope="module")
def data():
    return make_miscalibrated(3000, n_columns=4, n_levels=4, random_state=3)


def losses(fit, geometry):
    return [r.brier if geometry == "euclidean" else r.log_loss for r in fit.history]


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "smooth", "full-0.1"])
def test_a_gram_matrix_of_few_rows_still_reaches_alpha_and_lowers_the_loss(data, monkeypatch, notion, geometry):
    monkeypatch.setattr(blocks, "GRAM_ROWS", 60)
    fit = lowcal.multicalibrate(data.y, data.p, data.X, notion=notion, alpha=0.01, geometry=geometry, random_state=0)
    assert fit.status == "reached"
    assert fit.n_updates <= fit.bound
    assert np.all(np.diff(losses(fit, geometry)) <= 1e-12)


def test_a_subsample_is_drawn_and_its_seed_decides(data, monkeypatch):
    options = {"notion": "multiaccuracy", "alpha": 0.005}
    every = lowcal.multicalibrate(data.y, data.p, data.X, random_state=0, **options).predictor(data.p, data.X)
    monkeypatch.setattr(blocks, "GRAM_ROWS", 300)
    some, again, other = (
        lowcal.multicalibrate(data.y, data.p, data.X, random_state=seed, **options).predictor(data.p, data.X)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(some, again)
    assert not np.array_equal(some, other)
    assert not np.array_equal(some, every)


@pytest.mark.parametrize("notion", ["degree-2", "full-0.1", "smooth"])
def test_only_some_subpopulations_are_solved_for_when_there_are_many(data, monkeypatch, notion):
    monkeypatch.setattr(blocks, "MAX_FEATURES", 6)
    monkeypatch.setattr(blocks, "MAX_WITNESSES", 3)
    fit = lowcal.multicalibrate(data.y, data.p, data.X, notion=notion, alpha=0.01)
    assert fit.status == "reached"
    sizes = [sum(len(term.family.names) for term in update.terms) for update in fit.predictor.updates]
    assert max(sizes) <= 6
    assert lowcal.measure(data.y, fit.predictor(data.p, data.X), data.X, notion=notion).largest <= 0.01


def test_ridge_solve_is_least_squares_and_survives_duplicates_and_empty_features():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(50, 3))
    A = np.column_stack([A, A[:, 0], np.zeros(50)])
    g = A.T @ rng.normal(size=50)
    theta = ridge_solve(A.T @ A, g, 1e-9)
    np.testing.assert_allclose(A.T @ (A @ theta), g, atol=1e-6)
    assert theta[4] == 0.0
    assert theta[0] == pytest.approx(theta[3], rel=1e-5)


def test_ridge_solve_raises_the_ridge_until_the_matrix_is_definite():
    indefinite = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert np.isfinite(ridge_solve(indefinite, np.array([1.0, 1.0]), 1e-9)).all()
