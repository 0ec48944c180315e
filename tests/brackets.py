"""The supremum over polynomials of degree >= 2 on the simplex, between two linear programs (spec 2.2).

Non-negativity of a polynomial on the simplex is hard to decide. Requiring non-negative coefficients after
homogenising (Polya, Bernstein) is sufficient: a lower bound. Requiring q >= 0 on finitely many points is necessary:
an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement
from math import factorial, prod

import numpy as np
from scipy.optimize import linprog

from lowcal.kernels.simplex import FloatArray
from lowcal.notions.weights import Monomial


def bracket(weights: Sequence[Monomial], v: FloatArray, raise_degree: int = 2) -> tuple[float, float]:
    """Return bounds on sum_a sup_q sum_S q_S v[S, a] over q >= 0 on the simplex with sum |q_S| <= 1."""
    d = v.shape[1]
    degree = max(len(u.factors) for u in weights) + raise_degree
    sufficient = _bernstein(weights, d, degree)
    points = _grid(d)
    necessary = np.column_stack([u(points) for u in weights])
    lower = sum(_largest(v[:, a], sufficient) for a in range(d))
    return lower, sum(_largest(v[:, a], necessary) for a in range(d))


def _largest(m: FloatArray, A: FloatArray) -> float:
    """Return max m'q over A q >= 0, ||q||_1 <= 1."""
    scale = np.abs(m).max()
    if scale == 0.0:
        return 0.0
    both = np.concatenate([m, -m]) / scale
    rows = np.vstack([np.ones(2 * len(m)), np.hstack([-A, A])])
    bounds = np.concatenate([[1.0], np.zeros(len(A))])
    found = linprog(-both, A_ub=rows, b_ub=bounds, bounds=(0, None), method="highs")
    return float(-found.fun * scale)


def _bernstein(weights: Sequence[Monomial], d: int, degree: int) -> FloatArray:
    """Return the matrix from coefficients q_S to those of sum_S q_S z^S (sum z)^(degree - |S|)."""
    top = {s: i for i, s in enumerate(combinations_with_replacement(range(d), degree))}
    H = np.zeros((len(top), len(weights)))
    for k, u in enumerate(weights):
        for extra in combinations_with_replacement(range(d), degree - len(u.factors)):
            repeats = prod(factorial(c) for c in Counter(extra).values())
            H[top[tuple(sorted(u.factors + extra))], k] += factorial(len(extra)) / repeats
    return H


def _grid(d: int) -> FloatArray:
    """Return the points of the simplex with coordinates in multiples of 1/steps, vertices included."""
    steps = {2: 60, 3: 20, 4: 10, 5: 7}.get(d, 4 if d <= 8 else 2)
    combos = list(combinations_with_replacement(range(d), steps))
    return np.array([np.bincount(c, minlength=d) for c in combos]) / steps
