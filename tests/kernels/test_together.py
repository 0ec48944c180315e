"""Regressions under several weights at once: each column is the regression of its own weights."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lowcal.kernels import together
from lowcal.kernels.logistic import Regression, fit_coefficients, regress
from lowcal.kernels.reference import Codes, DecodeTable
from lowcal.kernels.together import Grouped, Regressions, Weighted, fit_each, regress_each
from worlds import sigmoid


def world(seed: int, n: int = 600, columns: int = 3) -> tuple[Weighted, Grouped]:
    """Rows under unequal weights, a third of which are 0, and groups of two code columns, some in none."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0.0, 1.5, n)
    codes = rng.integers(0, 4, n), rng.integers(0, 3, n)
    y = (rng.random(n) < sigmoid(0.6 * z + 0.8 * (codes[0] == 1) - 0.2)).astype(float)
    weight = rng.random((n, columns)) * (rng.random((n, columns)) < 2 / 3)
    tables = np.array([[1.0, 0, 0], [1, 1, 0], [1, 0, 1], [1, 0, 0]]), np.array([[0.0, 0], [1, 0], [0, 1]])
    design = Codes(
        codes, tuple(DecodeTable(sparse.csr_array(table)) for table in tables)
    )  # the first group is everyone
    return Weighted(z, y, weight / weight.sum(axis=0)), Grouped(design)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_warm", [False, True])
def test_each_column_of_weights_has_its_own_fit(seed, is_warm):
    rows, _ = world(seed)
    U = np.column_stack([np.ones(len(rows.z)), rows.z, np.maximum(rows.z, 0.0)])
    found, losses = fit_each(rows, U, np.full((3, 3), 0.3) if is_warm else None)
    for k, weight in enumerate(rows.weight.T):
        alone = fit_coefficients(rows.z[:, None], U, rows.y[:, None], weight)
        np.testing.assert_allclose(found[:, k], alone[:, 0], atol=2e-3)
        f = sigmoid(rows.z + U @ found[:, k])
        assert losses[k] == pytest.approx(-weight @ np.log(np.where(rows.y == 1, f, 1 - f)), rel=1e-12)


def test_steps_that_go_too_far_are_halved():
    """Next to no curvature at sure predictions that are wrong: the whole first step raises the loss."""
    z = np.array([8.0, 8.0, 8.0, -8.0])
    rows, U = Weighted(z, np.array([0.0, 0.0, 1.0, 0.0]), np.full((4, 1), 0.25)), np.ones((4, 1))
    before, f = rows.losses(z[:, None])
    step = together._newton_steps(rows, U, together._pairs(U), f)
    assert rows.losses(z[:, None] + step)[0] > before
    theta, loss = fit_each(rows, U)
    grid = np.linspace(-15.0, 5.0, 2001)
    assert loss == pytest.approx(rows.take(np.array([0])).losses(z[:, None] + grid)[0].min(), abs=1e-3)
    assert np.isfinite(theta).all()


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_regressed_under_each_column_of_weights(seed):
    rows, grouped = world(seed)
    rng = np.random.default_rng(seed)
    penalty, is_open = rng.random((5, 2, 3)) / 50, rng.random((5, 2, 3)) < 0.8
    groups, hessian = Regressions(rows, grouped), grouped.hessian(rows.z, rows.weight.mean(axis=1))
    theta, left = regress_each(groups, hessian, penalty, is_open, np.zeros((5, 2, 3)))
    for k, weight in enumerate(rows.weight.T):
        alone = Regression(grouped.design, rows.z, rows.y, weight, penalty[..., k])
        at = rng.normal(size=(5, 2, 3))
        np.testing.assert_allclose(groups.gradient(at)[..., k] - (penalty * at)[..., k], alone.gradient(at[..., k]))
        found, g = regress(alone, None, hessian, np.zeros((5, 2)), float(rows.worth[k]), is_open[..., k])
        np.testing.assert_allclose(theta[..., k], found, atol=1e-12)
        np.testing.assert_allclose(left[..., k], g, atol=1e-12)
        assert np.abs(theta[..., k][~is_open[..., k]]).max(initial=0.0) == 0.0


def test_some_columns_of_weights_are_the_same_fits():
    rows, grouped = world(0)
    groups, some = Regressions(rows, grouped), np.array([2, 0])
    theta = np.random.default_rng(0).normal(size=(5, 2, 3))
    np.testing.assert_allclose(groups.take(some).gradient(theta[..., some]), groups.gradient(theta)[..., some])
    assert rows.take(np.arange(3)) is rows


@pytest.mark.parametrize("q", [1, 3, 4, 6])
def test_compiled_sums_over_pairs_of_groups_are_those_of_the_design(q, monkeypatch):
    pytest.importorskip("numba")
    _, grouped = world(1)
    H = np.random.default_rng(0).random((600, q))
    monkeypatch.setattr(together, "COMPILE_FROM", 0)
    found = grouped.gram(H)
    np.testing.assert_allclose(found, grouped.design.gram(H), rtol=1e-12)
    monkeypatch.setattr(together, "COMPILE_FROM", np.inf)
    np.testing.assert_array_equal(grouped.gram(H), grouped.design.gram(H))


@pytest.mark.parametrize("q", [1, 4, 6])
def test_compiled_sums_over_memberships_are_the_same_to_the_last_bit(q, monkeypatch):
    pytest.importorskip("numba")
    _, grouped = world(3)
    R, theta = (np.random.default_rng(0).normal(size=(size, q)) for size in grouped.matrix.shape)
    found = []
    for limit in (np.inf, 0):
        monkeypatch.setattr(together, "COMPILE_FROM", limit)
        found.append((grouped.moments(R), grouped.combined(theta)))
    for pure, fast in zip(*found, strict=True):
        np.testing.assert_array_equal(pure, fast)
    np.testing.assert_allclose(found[0][0], grouped.matrix.toarray().T @ R)


def test_the_hessian_is_that_of_the_regression():
    rows, grouped = world(2)
    alone = Regression(grouped.design, rows.z, rows.y, rows.weight[:, 0], np.zeros((5, 2)))
    np.testing.assert_allclose(grouped.hessian(rows.z, rows.weight[:, 0]), alone.hessian(np.zeros((5, 2))), rtol=1e-9)
