"""The definitions of spec 1, 2 and 4, computed the slow and obvious way: loops and linear programs, nothing of lowcal.

`supremum` is the largest violation over the whole weight class and over the columns of a membership matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations, product

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


# ---------------------------------------------------------------------------------------------------- suprema
def supremum(notion: str, C: np.ndarray, y: np.ndarray, p: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Return max over columns c of C and over the whole class of |E[c <w(f), y - f>]|; y and p have shape (n, d)."""
    return max(suprema(notion, C, y, p, weight))


def suprema(notion: str, C: np.ndarray, y: np.ndarray, p: np.ndarray, weight: np.ndarray | None = None) -> list[float]:
    y, p = as_columns(y), as_columns(p)
    weight = np.ones(len(p)) if weight is None else np.asarray(weight, dtype=float)
    share = weight / weight.sum()
    return [class_supremum(notion, share[:, None] * C[:, [j]] * (y - p), p) for j in range(C.shape[1])]


def as_columns(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    return values[:, None] if values.ndim == 1 else values


def class_supremum(notion: str, r: np.ndarray, p: np.ndarray) -> float:
    """Return the supremum for weighted residuals r = p_i c_i (y_i - f_i) of one subpopulation."""
    kind, _, parameter = notion.partition("-")
    if kind == "multiaccuracy":
        return float(np.abs(r.sum(axis=0)).max())
    if kind == "degree":
        return degree(r, p, int(parameter))
    if kind == "smooth":
        side = line if p.shape[1] == 1 else lipschitz
        return max(sum(side(sign * r[:, a], p) for a in range(r.shape[1])) for sign in (1, -1))
    if kind == "full":
        return full(r, p, parameter)
    raise ValueError(notion)


def degree(r: np.ndarray, p: np.ndarray, k: int) -> float:
    """Return sup over W_k; with q >= 0 on vertices and a grid only, hence an upper bound for 3 classes and k >= 3."""
    if p.shape[1] == 1:
        return max(abs(sum(r[:, 0] * p[:, 0] ** j)) for j in range(k))
    if k == 1:
        v = r.sum(axis=0)
        return max(sum(max(sign * x, 0.0) for x in v) for sign in (1, -1))
    S = exponents(p.shape[1], k - 1)
    m = polynomial_moments(r, p, S)
    points = np.eye(p.shape[1]) if k == 2 else simplex_grid(p.shape[1], {3: 8, 4: 5}.get(p.shape[1], 3))
    return max(sum(best_polynomial(sign * m[:, a], S, points) for a in range(p.shape[1])) for sign in (1, -1))


def polynomial_moments(r: np.ndarray, p: np.ndarray, S: list[tuple[int, ...]]) -> np.ndarray:
    """Return m[S, a] = sum_i f_i^S r_ia."""
    return np.array([np.prod(p ** np.array(s), axis=1) @ r for s in S])


@cache
def _exponents(d: int, degree: int) -> list[tuple[int, ...]]:
    return [s for s in product(range(degree + 1), repeat=d) if sum(s) <= degree]


def exponents(d: int, degree: int) -> list[tuple[int, ...]]:
    """Return all exponent vectors of total degree at most `degree`."""
    return _exponents(d, degree)


def simplex_grid(d: int, steps: int) -> np.ndarray:
    return np.array([s for s in product(range(steps + 1), repeat=d) if sum(s) == steps]) / steps


def best_polynomial(m: np.ndarray, S: list[tuple[int, ...]], points: np.ndarray) -> float:
    """Return max sum_S q_S m_S over sum |q_S| <= 1 and q >= 0 on the points."""
    scale = np.abs(m).max()
    if scale == 0:
        return 0.0
    values = np.array([[np.prod(z ** np.array(s)) for s in S] for z in points])
    A = np.vstack([np.ones(2 * len(m)), np.hstack([-values, values])])
    b = np.concatenate([[1.0], np.zeros(len(points))])
    return scale * _maximise(np.concatenate([m, -m]) / scale, A, b, (0, None))


def line(r: np.ndarray, p: np.ndarray, lip: float = 1.0) -> float:
    """Return max sum r_i w(f_i) over w: [0, 1] -> [0, 1] with the Lipschitz constant, for scalar predictions."""
    v, which = np.unique(p[:, 0] if p.ndim == 2 else p, return_inverse=True)
    r = np.bincount(which.ravel(), r, len(v))
    scale = np.abs(r).max()
    if scale == 0 or len(v) == 1:
        return max(float(r.sum()), 0.0)
    difference = sp.diags_array([-np.ones(len(v) - 1), np.ones(len(v) - 1)], offsets=[0, 1], shape=(len(v) - 1, len(v)))
    gaps = lip * np.diff(v)
    return scale * _maximise(r / scale, sp.vstack([difference, -difference], format="csr"), np.r_[gaps, gaps], (0, 1))


def lipschitz(r: np.ndarray, p: np.ndarray) -> float:
    """Return max sum r_i u(f_i) over u in [0, 1] with |u(z) - u(z')| <= ||z - z'||_1, every pair a constraint."""
    Z, which = np.unique(np.round(p, 12), axis=0, return_inverse=True)
    r = np.bincount(which.ravel(), r, len(Z))
    scale = np.abs(r).max()
    if scale == 0 or len(Z) == 1:
        return max(float(r.sum()), 0.0)
    distance = np.abs(Z[:, None] - Z[None]).sum(axis=2)
    i, j = np.nonzero((distance < 1.0) & ~np.eye(len(Z), dtype=bool))  # further apart, the range is the constraint
    row = np.arange(len(i))
    A = sp.csr_array((np.r_[np.ones(len(i)), -np.ones(len(i))], (np.r_[row, row], np.r_[i, j])), (len(i), len(Z)))
    return scale * _maximise(r / scale, A, distance[i, j], (0, 1))


def _maximise(objective: np.ndarray, A: object, b: np.ndarray, bounds: tuple[float, float | None]) -> float:
    found = linprog(-objective, A_ub=A, b_ub=b, bounds=bounds, method="highs", options=TIGHT)
    assert found.status == 0, found.message
    return float(-found.fun)


def full(r: np.ndarray, p: np.ndarray, width: str) -> float:
    """Return the supremum over functions constant on cells [j w, (j + 1) w), the last one closed."""
    cells: dict[tuple[int, ...], np.ndarray] = {}
    for residual, f in zip(r, p, strict=True):
        index = tuple(cell(x, width) for x in f)
        cells[index] = cells.get(index, np.zeros(len(residual))) + residual
    up = sum(max(x, 0.0) for v in cells.values() for x in v)
    down = sum(max(-x, 0.0) for v in cells.values() for x in v)
    return float(max(up, down))


def cell(x: float, width: str) -> int:
    """Return the cell of x in exact arithmetic; what is within 1e-14 of a decimal counts as that decimal."""
    w = Fraction(width)
    last = -(-1 // w) - 1
    return int(min(Fraction(f"{x:.14f}") // w, last))


# ------------------------------------------------------------------------------------------------ predictions
def project(v: np.ndarray) -> np.ndarray:
    """Return the nearest point of [0, 1] or of the simplex, by bisection on the multiplier of sum z = 1."""
    if v.shape[1] == 1:
        return np.array([[min(max(float(x), 0.0), 1.0)] for x in v[:, 0]])
    low, high = v.min(axis=1, keepdims=True) - 1.0, v.max(axis=1, keepdims=True)
    for _ in range(200):
        middle = (low + high) / 2
        above = np.maximum(v - middle, 0.0).sum(axis=1, keepdims=True) > 1.0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.maximum(v - high, 0.0)


def mirror(p: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Return the point with odds (or ratios) multiplied by exp(delta)."""
    if p.shape[1] == 1:
        odds = p / (1 - p) * np.exp(delta)
        return odds / (1 + odds)
    up = p * np.exp(delta)
    return up / up.sum(axis=1, keepdims=True)


def brier(y: np.ndarray, p: np.ndarray, weight: np.ndarray | None = None) -> float:
    y, p = as_columns(y), as_columns(p)
    return float(np.average(((y - p) ** 2).sum(axis=1), weights=weight))


def log_loss(y: np.ndarray, p: np.ndarray, weight: np.ndarray | None = None) -> float:
    y, p = as_columns(y), as_columns(p)
    if p.shape[1] == 1:
        y, p = np.hstack([1 - y, y]), np.hstack([1 - p, p])
    return float(np.average(-(y * np.log(np.maximum(p, 1e-9))).sum(axis=1), weights=weight))


# --------------------------------------------------------------------------------------------- subpopulations
def groups(X: dict[str, np.ndarray], depth: int = 1) -> tuple[list[str], np.ndarray]:
    """Return names and memberships of everyone and of every conjunction of at most `depth` categorical columns."""
    n = len(next(iter(X.values())))
    names, columns = ["everyone"], [np.ones(n)]
    for size in range(1, depth + 1):
        for chosen in combinations(X, size):
            for values in product(*(sorted(set(X[c].tolist())) for c in chosen)):
                inside = np.array([all(X[c][i] == v for c, v in zip(chosen, values, strict=True)) for i in range(n)])
                if inside.any():
                    names.append(" & ".join(f"{c}={v}" for c, v in zip(chosen, values, strict=True)))
                    columns.append(inside.astype(float))
    return names, np.column_stack(columns)


# ------------------------------------------------------------------------------------------------------ worlds
@dataclass
class World:
    """Rows with categorical columns g0, g1 and an ordered t, an overconfident predictor and its outcomes."""

    X: dict[str, np.ndarray]
    y: np.ndarray
    p: np.ndarray
    hot: np.ndarray  # outcomes in the shape (n, d) of the definitions
    fractional: np.ndarray
    binary: np.ndarray


def world(n: int = 240, classes: int = 2, *, bounded: bool = False, seed: int = 0, coarse: bool | None = None) -> World:
    """Return a made-up sample; `coarse` predictions take few values, which keeps pairwise programs small."""
    rng = np.random.default_rng(seed)
    coarse = classes > 2 if coarse is None else coarse
    g0, g1 = rng.choice(["a", "b"], n), rng.choice(["u", "v", "w"], n)
    t = rng.integers(0, 3, n) if coarse else rng.integers(0, 12, n)
    x = rng.integers(0, 4, n) / 3 if coarse else rng.random(n)
    d = max(classes, 2)
    score = np.column_stack([np.zeros(n)] + [np.sin(3 * k) + 2 * np.cos(2 * k) * (x - 0.5) for k in range(1, d)])
    shift = np.zeros((n, d))
    shift[:, 1] += np.where(g0 == "a", 0.9, -0.7) + 0.3 * (t - t.mean()) / t.std()
    shift[:, -1] += np.where(g1 == "u", 0.8, np.where(g1 == "v", -0.9, 0.1))
    truth, said = softmax(score + shift), softmax(2.0 * score)
    label = (truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    y = label if not bounded else np.clip(truth[:, 1] + rng.uniform(-0.2, 0.2, n), 0, 1)
    hot = as_columns(y) if d == 2 else np.eye(d)[label]
    indicators = np.column_stack([g0 == "a", g0 == "b", g1 == "u", (g0 == "a") | (g1 == "v"), t > t.mean()])
    fractional = np.column_stack([np.where(g0 == "a", 0.75, 0.25), np.where(g1 == "u", 1.0, 0.5), t / t.max()])
    p = said[:, 1] if d == 2 else said
    return World({"g0": g0, "g1": g1, "t": t}, y, p, hot, fractional, indicators.astype(float))


def softmax(score: np.ndarray) -> np.ndarray:
    up = np.exp(score - score.max(axis=1, keepdims=True))
    return up / up.sum(axis=1, keepdims=True)
