"""A line in log odds for everyone: one slope, and a shift for each label, of least log loss.

    minimise over (s, b)   E[ log loss of z + s logit f + b ] + 1/2 precision ||b||^2,   z = logit f or log f

For two classes that is Platt's scaling of the log odds; for more it is temperature scaling with a shift for each label.
Newton's method with its exact Hessian of labels + 1 parameters, halved where the loss does not fall.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax

from lowcal.engines.products import dot, product
from lowcal.simplex import FLOOR, FloatArray, log_odds, sigmoid

#: Newton's steps; they end earlier with one that gains less than this many rows' worth.
MOST_STEPS, LITTLE = 25, 1e-3
#: Added to the Hessian: the log odds of one sure prediction may be all there is, and shifts of all labels are one.
LEAST_BEND = 1e-9


def fit_line(p: FloatArray, y: FloatArray, weight: FloatArray, precision: float = 0.0) -> tuple[float, FloatArray]:
    """Return the slope s and the shifts b, shape (d,); an infinite precision leaves the shifts out.

    >>> p = 1 / (1 + np.exp(-np.array([-2.0] * 4 + [2.0] * 4)))[:, None]
    >>> y = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0])[:, None]
    >>> slope, shift = fit_line(p, y, np.full(8, 1 / 8))  # 2 + 2 slope is the log odds of 3/4
    >>> round(slope, 3), abs(shift.round(3)).item()
    (-0.451, 0.0)
    """
    z, start, d = log_odds(p), _start(p), p.shape[1]
    theta = np.zeros(1 + d)
    free = np.ones(1 + d, dtype=bool)
    free[1:] = np.isfinite(precision)
    penalty = np.where(np.arange(1 + d) > 0, precision if np.isfinite(precision) else 0.0, 0.0)

    def loss(at: FloatArray) -> float:
        return _loss(start + at[0] * z + at[1:], y, weight) + 0.5 * dot(penalty, np.square(at))

    least = loss(theta)
    for _ in range(MOST_STEPS):
        g, H = _derivatives(start + theta[0] * z + theta[1:], z, y, weight)
        g, H = g - penalty * theta, H + np.diag(penalty + LEAST_BEND)
        step = np.zeros(1 + d)
        step[free] = np.linalg.solve(H[np.ix_(free, free)], g[free])
        while (found := loss(theta + step)) > least and np.abs(step).max() > LEAST_BEND:
            step /= 2.0
        gain = least - found
        if gain > 0.0:
            theta, least = theta + step, found
        if gain < LITTLE / len(p):
            break
    return float(theta[0]), theta[1:]


def _start(p: FloatArray) -> FloatArray:
    """Return the scores that a step adds to: log odds of scalars, logarithms on the simplex."""
    return log_odds(p) if p.shape[1] == 1 else np.log(np.maximum(p, FLOOR))


def _loss(score: FloatArray, y: FloatArray, weight: FloatArray) -> float:
    if score.shape[1] == 1:
        return dot(weight, (np.logaddexp(0.0, score) - y * score)[:, 0])
    return -dot(weight, (y * log_softmax(score, axis=1)).sum(axis=1))


def _derivatives(score: FloatArray, z: FloatArray, y: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return minus the gradient and the Hessian of the loss in (slope, shifts)."""
    w = weight[:, None]
    if score.shape[1] == 1:
        f = sigmoid(score)
        r, h, A = w * (y - f), w * f * (1.0 - f), np.column_stack([z, np.ones(len(z))])
        return product(A.T, r)[:, 0], product((A * h).T, A)
    f = np.exp(log_softmax(score, axis=1))
    r, mean = w * (y - f), (f * z).sum(axis=1, keepdims=True)
    g = np.concatenate([[(r * z).sum()], r.sum(axis=0)])
    H = np.empty((len(g), len(g)))
    H[0, 0] = (w * f * np.square(z - mean)).sum()
    H[0, 1:] = H[1:, 0] = (w * f * (z - mean)).sum(axis=0)
    H[1:, 1:] = np.diag((w * f).sum(axis=0)) - product((w * f).T, f)
    return g, H
