"""The regression of log odds by group, against SciPy's optimiser and numerical derivatives on dense features."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from lowcal.kernels.logistic import ENOUGH, Path, Regression, ascend, fit_coefficients, fit_line, regress
from lowcal.kernels.reference import Codes, DecodeTable, Matrix
from lowcal.kernels.simplex import sigmoid


def make(n=400, seed=0, spread=1.5, fraction=False):
    rng = np.random.default_rng(seed)
    codes = [rng.integers(0, k, n).astype(np.uint8) for k in (3, 4)]
    tables = [
        DecodeTable(sparse.csr_array(np.column_stack([np.ones(3), np.eye(3)]))),
        DecodeTable(sparse.csr_array(np.eye(4))),
    ]
    z = rng.normal(0, spread, n)
    truth = 1 / (1 + np.exp(-(0.4 * z + 0.5 * (codes[0] == 1) - 0.6 * z * (codes[1] == 2))))
    y = truth if fraction else (rng.random(n) < truth).astype(float)
    weight = rng.random(n)
    penalty = np.tile([10.0, 40.0], (8, 1)) / n
    return Regression(Codes(tuple(codes), tuple(tables)), z, y, weight / weight.sum(), penalty)


def rows_of(r, some):
    """Return the regression on some of the rows."""
    weight = r.weight[some]
    return replace(r, design=r.design.rows(some), z=r.z[some], y=r.y[some], weight=weight / weight.sum())


def features(r):
    C = r.design.dense()
    return np.stack([C, C * r.z[:, None]], axis=2).reshape(len(C), -1)


def loss(r, theta):
    score = r.z + features(r) @ np.ravel(theta)
    return r.weight @ (np.logaddexp(0, score) - r.y * score) + 0.5 * np.sum(r.penalty * np.reshape(theta, (-1, 2)) ** 2)


def differences(f, x, h=1e-5):
    return np.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(len(x))])


@pytest.mark.parametrize("fraction", [False, True])
def test_gradient_and_hessian_are_derivatives(fraction):
    r = make(fraction=fraction)
    theta = np.random.default_rng(1).normal(0, 0.3, (8, 2))
    np.testing.assert_allclose(r.gradient(theta).ravel(), -differences(lambda t: loss(r, t), theta.ravel()), atol=1e-8)
    second = differences(lambda t: -r.gradient(t.reshape(8, 2)).ravel(), theta.ravel())
    np.testing.assert_allclose(r.hessian(theta) + np.diag(r.penalty.ravel()), second, atol=1e-7)


@pytest.mark.parametrize("everyone", [0, None])
@pytest.mark.parametrize("size", [None, 150])
@pytest.mark.parametrize("spread", [0.1, 1.5, 6.0])
def test_a_few_steps_reach_the_minimum(everyone, size, spread):
    r = make(spread=spread)
    n = 1 / float(r.weight @ r.weight)
    sample = None if size is None else np.sort(np.random.default_rng(2).choice(400, size, replace=False))
    best = minimize(lambda t: loss(r, t), np.zeros(16), tol=1e-12).fun
    start = np.zeros((8, 2))
    if everyone is not None:
        slope, shift = fit_line(sigmoid(r.z)[:, None], r.y[:, None], r.weight)
        start[everyone] = shift[0], slope
    some = None if sample is None else rows_of(r, sample)
    found = loss(r, regress(r, some, (some or r).hessian(start), start, n)[0])
    worth = 16 * ENOUGH / n
    assert best - 1e-9 <= found <= best + (0.1 if spread < 2 else 1.0) * worth
    assert found < loss(r, np.zeros(16)) - 5 * worth


def test_coefficients_that_are_shut_stay_where_they_are():
    r, n = make(), 400.0
    is_open = np.zeros((8, 2), dtype=bool)
    is_open[[0, 2, 5], :] = True
    theta, _ = regress(r, None, r.hessian(np.zeros((8, 2))), np.zeros((8, 2)), n, is_open)
    assert not theta[~is_open].any()

    def of_open(t):
        every = np.zeros((8, 2))
        every[is_open] = t
        return loss(r, every)

    assert loss(r, theta) <= minimize(of_open, np.zeros(6), tol=1e-12).fun + 16 * ENOUGH / n


def test_steps_on_all_rows_start_where_those_on_some_end():
    """All rows are asked for fewer gradients where some of them have done most of the way."""
    r, start, calls = make(4000), np.zeros((8, 2)), []

    class Counted:
        def __init__(self, of):
            self.of, self.penalty, self.size = of, of.penalty, of.size

        def gradient(self, theta):
            calls.append(theta)
            return self.of.gradient(theta)

    some = rows_of(r, np.arange(0, 4000, 4))
    regress(Counted(r), None, 3.0 * r.hessian(start), start, 4000.0)
    alone = len(calls)
    regress(Counted(r), some, 3.0 * r.hessian(start), start, 4000.0)
    assert calls[alone].any()
    assert len(calls) - alone < alone


def test_sure_predictions_that_are_wrong_do_no_harm():
    """Log odds of +-20 have no curvature: Newton's first steps go far too far and are cut short."""
    rng = np.random.default_rng(3)
    z = np.where(rng.random(300) < 0.5, 20.7, -20.7)
    y = (rng.random(300) < np.where(z > 0, 0.8, 0.3)).astype(float)
    slope, (shift,) = fit_line(sigmoid(z)[:, None], y[:, None], np.full(300, 1 / 300))
    rates = [y[z > 0].mean(), y[z < 0].mean()]
    np.testing.assert_allclose(1 / (1 + np.exp(-(shift + (1 + slope) * np.array([20.7, -20.7])))), rates, atol=1e-3)
    r = Regression(Matrix(np.ones((300, 1))), z, y, np.full(300, 1 / 300), np.full((1, 2), 1e-4))
    best = minimize(lambda t: loss(r, t), np.array([shift, slope]), tol=1e-12).fun
    for start in (np.array([[shift, slope]]), np.zeros((1, 2))):
        assert loss(r, regress(r, None, r.hessian(start), start, 300.0)[0]) <= best + 2 * ENOUGH / 300


def test_pairs_of_steps_correct_a_wrong_hessian():
    r = make()
    best = minimize(lambda t: loss(r, t), np.zeros(16), tol=1e-12).fun
    wrong = 3.0 * np.diag(np.diag(r.hessian(np.zeros((8, 2)))))
    assert loss(r, ascend(r, np.zeros((8, 2)), Path(wrong), 1e-9)[0]) <= best + 1e-5


def test_the_line_is_that_of_scipy():
    r = make(1000, 5)
    best = minimize(
        lambda t: r.weight @ (np.logaddexp(0, r.z + t[0] + t[1] * r.z) - r.y * (r.z + t[0] + t[1] * r.z)), [0.0, 0.0]
    )
    slope, (shift,) = fit_line(sigmoid(r.z)[:, None], r.y[:, None], r.weight)
    np.testing.assert_allclose([shift, slope], best.x, atol=0.01)


@pytest.mark.parametrize("precision", [0.0, 0.5, np.inf])
def test_the_line_of_several_labels_is_that_of_scipy(precision):
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(4), 800)
    y = np.eye(4)[(rng.random((800, 1)) > np.cumsum(softmax(0.5 * np.log(p) + [0.5, 0, 0, -0.5], axis=1), 1)).sum(1)]

    def loss(t):
        shifts = np.zeros(4) if np.isinf(precision) else t[1:]
        score = log_softmax((1 + t[0]) * np.log(p) + shifts, axis=1)
        penalty = 0.0 if np.isinf(precision) else 0.5 * precision * shifts @ shifts
        return -np.mean((y * score).sum(axis=1)) + penalty

    slope, shifts = fit_line(p, y, np.full(800, 1 / 800), precision)
    assert loss(np.array([slope, *shifts])) <= minimize(loss, np.zeros(5), tol=1e-12).fun + 1e-5
    assert np.isinf(precision) == (not shifts.any())


def test_coefficients_of_a_shift_and_the_score_are_the_line():
    r = make(1000, 5)
    slope, (shift,) = fit_line(sigmoid(r.z)[:, None], r.y[:, None], r.weight)
    theta = fit_coefficients(r.z[:, None], np.column_stack([np.ones(1000), r.z]), r.y[:, None], r.weight)
    np.testing.assert_allclose(theta.ravel(), [shift, slope], atol=1e-3)


def test_coefficients_of_several_labels_are_those_of_scipy():
    rng = np.random.default_rng(3)
    U, start = rng.normal(size=(500, 2)), rng.normal(size=(500, 3))
    y = np.eye(3)[rng.integers(0, 3, 500)]

    def loss(t):
        return -np.mean((y * log_softmax(start + U @ t.reshape(2, 3), axis=1)).sum(axis=1))

    theta = fit_coefficients(start, U, y, np.full(500, 1 / 500))
    assert loss(theta) <= minimize(loss, np.zeros(6), tol=1e-12).fun + 1e-5
