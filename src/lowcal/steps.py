"""Step sizes: how far to go along a displacement delta (spec 4.4).

Any step whose loss is at most that of the Newton step eta* = g / B keeps the iteration bound:
phi(f) - phi(f_new) >= g^2 / B. In the scalar Euclidean case the best step of all is found exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from lowcal.engines.clipped import best_step
from lowcal.engines.products import dot
from lowcal.engines.reference import rows_in_cache
from lowcal.simplex import FloatArray, Geometry, centred, log_odds, move, potential, scores, sigmoid, softmax

#: The convex search goes at most so many Newton steps far: a separable direction has no minimum.
MOST_NEWTON = 64.0


def slope(delta: FloatArray, rho: FloatArray) -> float:
    """Return g = sum_i <delta_i, rho_i> for weighted residuals rho: minus half the derivative of the Brier score."""
    return float(np.sum(delta * rho))


def curvature(p: FloatArray, delta: FloatArray, weight: FloatArray, geometry: Geometry) -> float:
    """Return B with phi(eta) <= phi(0) - 2 eta g + eta^2 B (Euclidean) or phi(0) - eta g + eta^2 B / 2 (mirror).

    Euclidean: E||delta - mean||^2, exactly. Mirror: E[range(delta)^2] / 4, a bound on E[Var_f(delta)].
    """
    if geometry == "euclidean":
        return dot(weight, np.square(centred(delta)).sum(axis=1))
    spread = np.abs(delta[:, 0]) if p.shape[1] == 1 else np.ptp(delta, axis=1)
    return dot(weight, np.square(spread)) / 4.0


def newton(p: FloatArray, delta: FloatArray, rho: FloatArray, weight: FloatArray, geometry: Geometry) -> float:
    """Return eta* = g / B, or 0 where delta does not move anything."""
    bend = curvature(p, delta, weight, geometry)
    return slope(delta, rho) / bend if bend > 0 else 0.0


def line_search(p: FloatArray, y: FloatArray, delta: FloatArray, weight: FloatArray, geometry: Geometry) -> float:
    """Return a step that loses no more than the Newton step: exact for scalars, the best of a few on the simplex."""
    start = _newton_by_pieces(p, y, delta, weight, geometry)
    if start == 0.0:
        return 0.0
    if geometry == "mirror":
        return _convex_search(p, y, delta, weight, start)
    if p.shape[1] == 1:
        ahead = delta[:, 0] if start > 0.0 else -delta[:, 0]
        return float(np.sign(start)) * exact_clipped(p[:, 0], y[:, 0], ahead, weight, abs(start))
    tries = [start * 2.0**k for k in (0, 1, -1, 2, 3)]
    losses = [potential(move(p, eta * delta, geometry), y, weight, geometry) for eta in tries]
    return tries[int(np.argmin(losses))]


def _newton_by_pieces(p: FloatArray, y: FloatArray, delta: FloatArray, weight: FloatArray, geometry: Geometry) -> float:
    """Return the Newton step without the residuals of all rows in memory."""
    g = bend = 0.0
    for part in rows_in_cache(*p.shape):
        g += slope(delta[part], weight[part, None] * (y[part] - p[part]))
        bend += curvature(p[part], delta[part], weight[part], geometry)
    return g / bend if bend > 0 else 0.0


def exact_clipped(f: FloatArray, y: FloatArray, delta: FloatArray, weight: FloatArray, scale: float = 1.0) -> float:
    """Return the global minimiser over eta >= 0 of sum_i p_i (y_i - clip(f_i + eta delta_i, 0, 1))^2 (spec 4.4).

    It lies near `scale`, which only changes the cost: O(n log n), and nearly O(n) for many rows.
    """
    return best_step(f, y, delta, weight, scale)


def _convex_search(p: FloatArray, y: FloatArray, delta: FloatArray, weight: FloatArray, start: float) -> float:
    """Return the minimiser of the log loss along delta: its derivative grows with the step, so its root is found."""
    along = _scalar_derivative if p.shape[1] == 1 else _derivative
    derivative = along(p, y, np.sign(start) * delta, weight)
    high = abs(start)
    while derivative(high) < 0.0 and high < MOST_NEWTON * abs(start):
        high *= 2.0
    root = brentq(derivative, 0.0, high, xtol=1e-300) if derivative(high) > 0.0 > derivative(0.0) else high
    return float(np.sign(start) * root)


def _derivative(p: FloatArray, y: FloatArray, delta: FloatArray, weight: FloatArray) -> Callable[[float], float]:
    """Return the derivative of the log loss along delta, as a function of the step."""
    score, seen = scores(p), dot(weight, np.einsum("ij,ij->i", y, delta))

    def derivative(eta: float) -> float:
        expected = np.einsum("ij,ij->i", softmax(score + eta * delta), delta)
        return dot(weight, expected) - seen

    return derivative


def _scalar_derivative(p: FloatArray, y: FloatArray, delta: FloatArray, weight: FloatArray) -> Callable[[float], float]:
    """Return the same of scalar predictions."""
    score, along, mass = log_odds(p[:, 0]), delta[:, 0], weight * delta[:, 0]
    seen = dot(mass, y[:, 0])
    return lambda eta: dot(mass, sigmoid(score + eta * along)) - seen


def shrunk_step(p: FloatArray, y: FloatArray, delta: FloatArray, weight: FloatArray, price: float) -> float:
    """Return a step in (0, 1] along a shrunk Newton step in log space; 0 if the penalised loss rises from the start.

    The penalised loss is the log loss + step^2 price / 2. The whole step is taken unless its slope there has grown to
    half of what it was at the start, against it: then the step ends where the slope is 0.
    """
    along = _scalar_derivative if p.shape[1] == 1 else _derivative
    slope_at = along(p, y, delta, weight)

    def derivative(eta: float) -> float:
        return slope_at(eta) + eta * price

    ahead = -derivative(0.0)
    if not ahead > 0.0:
        return 0.0
    if derivative(1.0) <= 0.5 * ahead:
        return 1.0
    return float(brentq(derivative, 0.0, 1.0, xtol=1e-3))
