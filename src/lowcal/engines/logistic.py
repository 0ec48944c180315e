"""Logistic regression with an offset: every subpopulation shifts the log odds z and changes their slope.

    minimise over theta   E[ log loss of z + sum_c c(x) (theta_c0 + theta_c1 z) ] + 1/2 sum penalty theta^2

A few Newton steps whose Hessian comes from some of the rows: first on those rows alone, from the best line for all of
them, then on all rows. Pairs of steps and gradients correct the Hessian (L-BFGS). Cost: a few passes over the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lowcal.engines.products import Cholesky, dot, product
from lowcal.engines.reference import Design, rows_in_cache
from lowcal.simplex import FloatArray, IntArray, sigmoid

#: Steps end with one that lowers the loss by less than this many rows' worth for each parameter, whose noise alone is
#: worth half a row. What is left after that step is a small share of it.
ENOUGH = 0.01
#: On some of the rows, steps end sooner: these rows have noise of their own.
ENOUGH_OF_SAMPLE = 0.1
#: No more steps than this on the sample, and on all rows.
MOST_STEPS = 12
#: The best line for everyone is found on so many rows.
LINE_ROWS = 2000
#: The line is found when a step gains less than this many rows' worth.
LITTLE = 0.01
#: Added to the Hessian of the line: the log odds of one sure prediction may be all there is.
LEAST_BEND = 1e-9


@dataclass(frozen=True, eq=False)
class Regression:
    """The regression on some rows: memberships, log odds z, outcomes, weights that sum to one, penalties (m, 2)."""

    design: Design
    z: FloatArray
    y: FloatArray
    weight: FloatArray
    penalty: FloatArray

    def rows(self, some: IntArray) -> Regression:
        """Return the same regression on some rows."""
        weight = self.weight[some] / self.weight[some].sum()
        return Regression(self.design.rows(some), self.z[some], self.y[some], weight, self.penalty)

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return minus the gradient of the penalised loss: the moments of 1 and z, less penalty * theta."""
        sums, combination = self.design.sums(2), self.design.combination(theta)
        for part in rows_in_cache(len(self.z), 4):
            z, R = self.z[part], combination(part)
            r = np.subtract(self.y[part], sigmoid(_bend(z, R)))
            r *= self.weight[part]
            R[:, 0] = r
            np.multiply(r, z, out=R[:, 1])
            sums.add(part, R)
        return sums.total() - self.penalty * theta

    def hessian(self, f: FloatArray) -> FloatArray:
        """Return the Hessian at predictions f, features ordered as theta.ravel()."""
        h = self.weight * f * (1.0 - f)
        one, first, second = self.design.gram(np.column_stack([h, h * self.z, h * self.z**2]))
        m = len(one)
        H = np.empty((m, 2, m, 2))
        H[:, 0, :, 0], H[:, 0, :, 1], H[:, 1, :, 0], H[:, 1, :, 1] = one, first, first, second
        flat = H.reshape(2 * m, 2 * m)
        return flat + np.diag(self.penalty.ravel() + 1e-9 * np.diag(flat))


def _bend(z: FloatArray, amplitude: FloatArray) -> FloatArray:
    """Return z + shift + slope z for the shift and the slope of every row."""
    score = amplitude[:, 1] * z
    score += amplitude[:, 0]
    score += z
    return score


@dataclass
class Path:
    """A quasi-Newton ascent of minus the loss from a Hessian: L-BFGS whose first guess is that Hessian's inverse."""

    hessian: FloatArray
    pairs: list[tuple[FloatArray, FloatArray, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.factor = Cholesky.of(self.hessian)

    def direction(self, g: FloatArray) -> FloatArray:
        """Return the inverse Hessian times g, corrected by what earlier steps saw."""
        q, shares = g.ravel().copy(), []
        for s, change, bend in reversed(self.pairs):
            share = dot(s, q) / bend
            q -= share * change
            shares.append(share)
        q = self.factor.solve(q)
        for (s, change, bend), share in zip(self.pairs, reversed(shares), strict=True):
            q += (share - dot(change, q) / bend) * s
        return np.asarray(q.reshape(g.shape))

    def see(self, step: FloatArray, change: FloatArray) -> None:
        """Remember by how much the gradient fell along a step."""
        bend = dot(step.ravel(), change.ravel())
        if bend > 0.0:
            self.pairs.append((step.ravel(), change.ravel(), bend))


def ascend(regression: Regression, theta: FloatArray, path: Path, enough: float) -> FloatArray:
    """Return theta after steps, the last of which gains less than `enough`; one that goes too far is cut short."""
    g = regression.gradient(theta)
    for _ in range(MOST_STEPS):
        step = path.direction(g)
        ahead = float((g * step).sum())
        if ahead <= 2.0 * enough:
            return theta + step
        there = regression.gradient(theta + step)
        while (behind := float((there * step).sum())) < -0.5 * ahead:  # the slope along a step has one root
            share = max(0.1, ahead / (ahead - behind))
            step, ahead = share * step, share * ahead
            there = regression.gradient(theta + step)
        path.see(step, g - there)
        theta, g = theta + step, there
    return theta


def fit_line(z: FloatArray, y: FloatArray, weight: FloatArray) -> FloatArray:
    """Return (shift, slope) with E log loss of z + shift + slope z least, roughly, for all rows together.

    Newton's steps, halved while the loss does not fall: where predictions are extreme, the first go too far.

    >>> z = np.array([-2.0, -2.0, -2.0, -2.0, 2.0, 2.0, 2.0, 2.0])
    >>> y = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    >>> fit_line(z, y, np.full(8, 1 / 8)).round(3) + 0.0  # 2 + 2 slope is the log odds of 3/4
    array([ 0.   , -0.451])
    """
    A, theta = np.column_stack([np.ones(len(z)), z]), np.zeros(2)

    def loss(score: FloatArray) -> float:
        return dot(weight, np.logaddexp(0.0, score) - y * score)

    score, least = z, loss(z)
    for _ in range(MOST_STEPS):
        f = sigmoid(score)
        g, h = product(A.T, weight * (y - f)), weight * f * (1.0 - f)
        step = np.linalg.solve(product((A * h[:, None]).T, A) + LEAST_BEND * np.eye(2), g)
        while (found := loss(score + product(A, step))) > least and np.abs(step).max() > LEAST_BEND:
            step /= 2.0
        gain = least - found
        if gain > 0.0:
            theta, score, least = theta + step, score + product(A, step), found
        if gain < LITTLE / len(z):
            break
    return theta


def regress(regression: Regression, sample: IntArray | None, everyone: int | None, n: float) -> FloatArray:
    """Return theta of shape (m, 2) near the minimum, for rows worth n; `everyone` is the member that holds all rows.

    `sample`: the rows for the Hessian, on which the steps begin; None: all.
    """
    some = regression if sample is None else regression.rows(sample)
    theta, line = np.zeros(regression.penalty.shape), np.zeros(2)
    if everyone is not None:
        few = slice(None, None, -(-len(some.z) // LINE_ROWS))
        theta[everyone] = line = fit_line(some.z[few], some.y[few], some.weight[few] / some.weight[few].sum())
    path = Path(some.hessian(sigmoid(_bend(some.z, line[None]))))
    worth = theta.size / n
    if sample is not None:
        theta = ascend(some, theta, path, ENOUGH_OF_SAMPLE * worth * len(regression.z) / len(some.z))
    return ascend(regression, theta, path, ENOUGH * worth)
