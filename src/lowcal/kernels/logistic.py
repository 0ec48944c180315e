"""Logistic regression in log odds: a line for everyone, and a shift and a slope for every subpopulation.

The line: one slope, and a shift for each label, of least log loss,

    minimise over (s, b)   E[ log loss of z + s logit f + b ] + 1/2 precision ||b||^2,   z = logit f or log f

For two classes that is Platt's scaling of the log odds; for more it is temperature scaling with a shift for each label.
Newton's method with its exact Hessian of labels + 1 parameters, halved where the loss does not fall.

The groups, for two classes:

    minimise over theta   E[ log loss of z + sum_c c(x) (theta_c0 + theta_c1 z) ] + 1/2 sum penalty theta^2

A few Newton steps whose Hessian comes from some of the rows: first on those rows alone, then on all rows. Pairs of
steps and gradients correct the Hessian (L-BFGS). Cost: a few passes over the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.loops import lay_powers
from lowcal.kernels.products import Cholesky, dot, product
from lowcal.kernels.reference import Codes, Design, rows_in_cache
from lowcal.kernels.simplex import FloatArray, from_scores, losses_of_scores, scores, sigmoid

#: Newton's steps; they end earlier with one that gains less than this many rows' worth.
MOST_STEPS, LITTLE = 25, 1e-3
#: Added to the Hessian: the log odds of one sure prediction may be all there is, and shifts of all labels are one.
LEAST_BEND = 1e-9
#: A row's curvature f (1 - f) counts as at least this much.
LEAST_CURVATURE = 1e-3
#: Steps of a regression end with one that lowers the loss by less than this many rows' worth for each parameter, whose
#: noise alone is worth half a row; on a sample of the rows, which has noise of its own, they end at twice that.
ENOUGH = 0.05


class Regressed(Protocol):
    """A regression on any rows, as steps see it."""

    @property
    def penalty(self) -> FloatArray:
        """The precision of every coefficient, shape (m, 2)."""
        ...

    @property
    def size(self) -> int:
        """How many rows there are."""
        ...

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return minus the gradient of the penalised loss."""
        ...


@dataclass(frozen=True, eq=False)
class Regression:
    """The regression on some rows: memberships, log odds z, outcomes, weights that sum to one, penalties (m, 2)."""

    design: Design
    z: FloatArray
    y: FloatArray
    weight: FloatArray
    penalty: FloatArray

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.z)

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return minus the gradient of the penalised loss: the moments of 1 and z, less penalty * theta."""
        sums, moments = self.design.sums(2), residuals(self.design, theta, self.z, self.y, self.weight)
        for part in rows_in_cache(len(self.z), 4):
            sums.add(part, moments(part))
        return sums.total() - self.penalty * theta

    def hessian(self, theta: FloatArray) -> FloatArray:
        """Return the Hessian of the loss, without its penalties, at theta; features are ordered as theta.ravel()."""
        amplitude, H = self.design.combination(theta), np.empty((len(self.z), 3))
        for part in rows_in_cache(len(self.z), 8):  # the allocator gives large temporaries back each time
            z = self.z[part]
            f = sigmoid(_bend(z, amplitude(part)))
            h = self.weight[part] * f * (1.0 - f)
            H[part, 0], H[part, 1], H[part, 2] = h, h * z, h * z**2
        return join_hessian(*self.design.gram(H))


def join_hessian(one: FloatArray, first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the Hessian in shifts and slopes from the Gram matrices of curvatures times 1, z and z^2."""
    m = len(one)
    H = np.empty((m, 2, m, 2))
    H[:, 0, :, 0], H[:, 0, :, 1], H[:, 1, :, 0], H[:, 1, :, 1] = one, first, first, second
    flat = H.reshape(2 * m, 2 * m)
    flat.reshape(-1)[:: 2 * m + 1] *= 1.0 + 1e-9
    return flat


def residuals(
    design: Design, theta: FloatArray, z: FloatArray, y: FloatArray, weight: FloatArray
) -> Callable[[slice], FloatArray]:
    """Return weighted residuals of the regression, and these times z, as a function of a slice of the rows: (n, 2)."""
    predict = _predictions(design, theta, z)

    def residuals_of(part: slice) -> FloatArray:
        rho = y[part] - predict(part)
        rho *= weight[part]
        R = np.empty((len(rho), 2))
        lay_powers(z[part], rho, R)
        return R

    return residuals_of


def _predictions(design: Design, theta: FloatArray, z: FloatArray) -> Callable[[slice], FloatArray]:
    """Return sigmoid(z + sum of c(x) (theta_c0 + theta_c1 z)) as a function of a slice of the rows."""
    if isinstance(design, Codes):
        return design.bent(theta, z)
    combination = design.combination(theta)
    return lambda part: sigmoid(_bend(z[part], combination(part)))


def _bend(z: FloatArray, amplitude: FloatArray) -> FloatArray:
    """Return z + shift + slope z for the shift and the slope of every row."""
    score = amplitude[:, 1] * z
    score += amplitude[:, 0]
    score += z
    return score


class Path:
    """A quasi-Newton ascent of minus the loss from a Hessian: L-BFGS whose first guess is that Hessian's inverse.

    Only coefficients that are open move; None: all of them.
    """

    def __init__(self, hessian: FloatArray, is_open: NDArray[np.bool_] | None = None) -> None:
        self.open = np.arange(len(hessian)) if is_open is None else np.flatnonzero(is_open)
        inside = hessian if len(self.open) == len(hessian) else hessian[np.ix_(self.open, self.open)]
        self.factor = Cholesky.of(inside)
        self.pairs: list[tuple[FloatArray, FloatArray, float]] = []

    def direction(self, g: FloatArray) -> FloatArray:
        """Return the inverse Hessian times g, corrected by what earlier steps saw."""
        q, shares = g.ravel()[self.open], []
        for s, change, bend in reversed(self.pairs):
            share = dot(s, q) / bend
            q -= share * change
            shares.append(share)
        q = self.factor.solve(q)
        for (s, change, bend), share in zip(self.pairs, reversed(shares), strict=True):
            q += (share - dot(change, q) / bend) * s
        step = np.zeros(g.size)
        step[self.open] = q
        return step.reshape(g.shape)

    def see(self, step: FloatArray, change: FloatArray) -> None:
        """Remember by how much the gradient fell along a step."""
        along, fall = step.ravel()[self.open], change.ravel()[self.open]
        bend = dot(along, fall)
        if bend > 0.0:
            self.pairs.append((along, fall, bend))


def ascend(regression: Regressed, theta: FloatArray, path: Path, enough: float) -> tuple[FloatArray, FloatArray]:
    """Return theta after steps, the last of which gains less than `enough`, and the gradient before that one.

    A step that goes too far is cut short.
    """
    g = regression.gradient(theta)
    for _ in range(MOST_STEPS):
        step = path.direction(g)
        ahead = float((g * step).sum())
        if ahead <= 2.0 * enough:
            return theta + step, g
        there = regression.gradient(theta + step)
        while (behind := float((there * step).sum())) < -0.5 * ahead:  # the slope along a step has one root
            share = max(0.1, ahead / (ahead - behind))
            step, ahead = share * step, share * ahead
            there = regression.gradient(theta + step)
        path.see(step, g - there)
        theta, g = theta + step, there
    return theta, g


def fit_line(p: FloatArray, y: FloatArray, weight: FloatArray, precision: float = 0.0) -> tuple[float, FloatArray]:
    """Return the slope s and the shifts b, shape (d,); an infinite precision leaves the shifts out.

    >>> p = 1 / (1 + np.exp(-np.array([-2.0] * 4 + [2.0] * 4)))[:, None]
    >>> y = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0])[:, None]
    >>> slope, shift = fit_line(p, y, np.full(8, 1 / 8))  # 2 + 2 slope is the log odds of 3/4
    >>> round(slope, 3), abs(shift.round(3)).item()
    (-0.451, 0.0)
    """
    z, d = scores(p), p.shape[1]
    free = np.arange(1 + d if np.isfinite(precision) else 1)
    penalty = np.where(free > 0, precision, 0.0) if len(free) > 1 else np.zeros(1)

    def score(at: FloatArray) -> FloatArray:
        return np.asarray((1.0 + at[0]) * z + (at[1:] if len(at) > 1 else 0.0))

    def derivatives(at: FloatArray) -> tuple[FloatArray, FloatArray]:
        g, H = _derivatives(score(at), z, y, weight)
        return g[free], H[free[:, None], free]

    theta = np.zeros(1 + d)
    theta[free] = _minimise(score, derivatives, y, weight, penalty)
    return float(theta[0]), theta[1:]


def fit_coefficients(
    start: FloatArray, U: FloatArray, y: FloatArray, weight: FloatArray, precision: FloatArray | None = None
) -> FloatArray:
    """Return the coefficients theta, shape (S, d), of the log odds or logarithms start + U theta of least log loss.

    With a `precision` of each weight, shape (S,), the loss is that plus 1/2 precision theta^2.

    >>> U = np.repeat(np.eye(2), 4, axis=0)  # two groups, with 1 and 3 positives of 4
    >>> y = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])[:, None]
    >>> fit_coefficients(np.zeros((8, 1)), U, y, np.full(8, 1 / 8)).ravel().round(3)
    array([-1.099,  1.099])
    """
    shape = U.shape[1], y.shape[1]
    penalty = np.repeat(np.zeros(shape[0]) if precision is None else precision, shape[1])

    def score(at: FloatArray) -> FloatArray:
        return start + product(U, at.reshape(shape))

    def derivatives(at: FloatArray) -> tuple[FloatArray, FloatArray]:
        f = from_scores(score(at))
        H = np.empty((*shape, *shape))
        for a, b in itertools.product(range(shape[1]), repeat=2):
            H[:, a, :, b] = product((U * (weight * f[:, a] * (float(a == b) - f[:, b]))[:, None]).T, U)
        return product(U.T, weight[:, None] * (y - f)).ravel(), H.reshape(len(at), -1)

    return _minimise(score, derivatives, y, weight, penalty).reshape(shape)


def _minimise(
    score: Callable[[FloatArray], FloatArray],
    derivatives: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    y: FloatArray,
    weight: FloatArray,
    penalty: FloatArray,
) -> FloatArray:
    """Return the theta of least log loss plus 1/2 penalty theta^2, from 0: Newton's steps, halved where it rises.

    `derivatives` are minus the gradient and the Hessian of the log loss of the scores.
    """

    def loss(at: FloatArray) -> float:
        return dot(weight, losses_of_scores(score(at), y)) + 0.5 * dot(penalty, np.square(at))

    theta, n, held, ridge = np.zeros(len(penalty)), len(y), np.diag(penalty), np.diag(np.full(len(penalty), LEAST_BEND))
    least = loss(theta)
    for _ in range(MOST_STEPS):
        g, H = derivatives(theta)
        step = np.linalg.solve(H + held + ridge, g - penalty * theta)
        while (found := loss(theta + step)) > least and np.abs(step).max() > LEAST_BEND:
            step /= 2.0
        gain = least - found
        if gain > 0.0:
            theta, least = theta + step, found
        if gain < LITTLE / n:
            break
    return theta


def _scalar_derivatives(
    score: FloatArray, x: FloatArray, y: FloatArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return minus the gradient and the Hessian of the loss of two classes in (slope, shift)."""
    f = sigmoid(score)
    r, h = weight * (y - f), weight * f
    h *= 1.0 - f
    across = dot(h, x)
    return np.array([dot(r, x), r.sum()]), np.array([[dot(h * x, x), across], [across, h.sum()]])


def _derivatives(score: FloatArray, z: FloatArray, y: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return minus the gradient and the Hessian of the loss in (slope, shifts)."""
    if score.shape[1] == 1:
        return _scalar_derivatives(score[:, 0], z[:, 0], y[:, 0], weight)
    w, f = weight[:, None], from_scores(score)
    r, mean = w * (y - f), np.einsum("ij,ij->i", f, z)[:, None]
    g = np.concatenate([[(r * z).sum()], r.sum(axis=0)])
    H = np.empty((len(g), len(g)))
    H[0, 0] = (w * f * np.square(z - mean)).sum()
    H[0, 1:] = H[1:, 0] = (w * f * (z - mean)).sum(axis=0)
    H[1:, 1:] = np.diag((w * f).sum(axis=0)) - product((w * f).T, f)
    return g, H


def regress(
    whole: Regressed,
    some: Regressed | None,
    hessian: FloatArray,
    theta: FloatArray,
    n: float,
    is_open: NDArray[np.bool_] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return coefficients of shape (m, 2) near the minimum, from a start, for rows worth n; and a gradient near there.

    `some`: the regression of some rows, on which the steps begin; `hessian`: one of about these rows. Coefficients that
    are not open stay where they are.
    """
    is_open = None if is_open is None else is_open.ravel()
    path, worth = Path(hessian + np.diag(whole.penalty.ravel()), is_open), theta.size / n
    if some is not None:
        theta, _ = ascend(some, theta, path, 2.0 * ENOUGH * worth * whole.size / some.size)
    return ascend(whole, theta, path, ENOUGH * worth)
