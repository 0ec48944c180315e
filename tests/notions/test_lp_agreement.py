"""Degree 2 with several classes and the binary smooth error are what a linear program of their definition finds.

500 random instances each: ties, sample weights, fractional memberships, groups of one to three rows and of everyone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from lowcal import LowDegree, Memberships, Smooth, measure
from lowcal.kernels import line
from lowcal.kernels.line import PURE, aggregate, passes_for, solve_line
from lowcal.kernels.reference import Matrix

Array = NDArray[np.float64]

INSTANCES = 500
LIPS = (0.5, 1.0, 2.0, 4.0, 20.0)


def maximum(objective: Array, A: Array, b: Array, bounds: tuple[float | None, float | None]) -> float:
    """max objective'x over A x <= b, by HiGHS; its tolerances are absolute, so the objective is scaled to 1."""
    scale = np.abs(objective).max()
    if scale == 0.0:
        return 0.0
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(-objective / scale, A_ub=A, b_ub=b, bounds=bounds, method="highs", options=tight)
    assert found.status == 0, found.message
    return float(-found.fun * scale)


def sample(seed: int, d: int) -> tuple[Array, Array, Array, Array]:
    """Predictions (n, max(d, 2)) that may tie, one-hot labels, sample weights, and a membership of one to n rows."""
    rng = np.random.default_rng(seed)
    n, labels = int(rng.integers(3, 61)), max(d, 2)
    p = rng.dirichlet(np.full(labels, rng.choice([0.3, 1.0, 5.0])), n)
    if seed % 3 == 0:  # ties: few distinct rows, and coordinates of 0 and 1
        counts = rng.multinomial(4, p[rng.integers(0, n, 8)])
        p = (counts / 4.0)[rng.integers(0, 8, n)]
    y = np.eye(labels)[np.concatenate([[0, 1], rng.integers(0, labels, n - 2)])]
    weight = rng.pareto(1.2, n) + 1e-9 if seed % 2 else np.ones(n)
    kind = seed % 5
    c = np.ones(n) if kind == 0 else rng.random(n) if kind == 1 else (rng.random(n) < 0.5).astype(float)
    if kind == 2:
        c[rng.integers(n)] = 1.0  # nobody is no group
    if kind in (3, 4):  # a tiny group, fully or in part
        c = np.zeros(n)
        c[rng.choice(n, int(rng.integers(1, 4)), replace=False)] = 1.0 if kind == 3 else rng.random()
    return p, y, weight, c


def residuals(p: Array, y: Array, weight: Array, c: Array) -> Array:
    """r_ia = p_i c_i (y_ia - f_ia) with weights that sum to one."""
    return (weight / weight.sum() * c)[:, None] * (y - p)


def by_measure(y: Array, p: Array, weight: Array, c: Array, notion: str, classes: list[int]) -> float:
    """The public path, which reads labels, weights and memberships itself."""
    groups = Memberships(min_mass=0, everyone=False)
    found = measure(y, p, c[:, None], subpopulations=groups, notion=notion, sample_weight=weight, classes=classes)
    return float(found.violation[0])


# --- degree 2, several classes ------------------------------------------------------------------------------


def degree_two_by_lp(p: Array, r: Array) -> float:
    """sup over w with w_a(z) = q_0 + sum_i q_i z_i, w_a >= 0 at every vertex and |q_0| + sum |q_i| <= 1, of both signs.

    The variables are q = plus - minus, one copy for each label; a linear function is >= 0 on the simplex iff it is at
    the vertices, and <= 1 there because the coefficients are summable to 1.
    """
    d = p.shape[1]
    vertices = np.column_stack([np.ones(d), np.eye(d)])  # q at vertex e_i is q_0 + q_i
    A = np.vstack([np.ones(2 * (d + 1)), np.hstack([-vertices, vertices])])
    b = np.concatenate([[1.0], np.zeros(d)])
    features = np.column_stack([np.ones(len(p)), p])
    sides = []
    for sign in (1.0, -1.0):
        moments = [sign * features.T @ r[:, a] for a in range(d)]
        sides.append(sum(maximum(np.concatenate([m, -m]), A, b, (0, None)) for m in moments))
    return max(sides)


@pytest.mark.parametrize("d", [3, 4, 5, 6])
def test_degree_two_is_its_linear_program(d: int) -> None:
    for seed in range(INSTANCES // 4):
        p, y, weight, c = sample(1000 * d + seed, d)
        r = residuals(p, y, weight, c)
        rho = residuals(p, y, weight, np.ones(len(p)))
        best = degree_two_by_lp(p, r)
        found = LowDegree(2).suprema(p, rho, Matrix(c[:, None]))
        assert found.value[0] == pytest.approx(best, abs=1e-9), seed
        assert found.upper[0] == found.value[0]
        public = by_measure(y.argmax(axis=1), p, weight, c, "degree-2", list(range(d)))
        assert public == pytest.approx(best, abs=1e-9), seed


# --- smooth, binary -----------------------------------------------------------------------------------------


def smooth_by_lp(f: Array, r: Array, lip: float) -> float:
    """max of sum r_i w(f_i) over w: the variables are w at the distinct predictions, with every pair constrained."""
    v, which = np.unique(f, return_inverse=True)
    mass = np.bincount(which, r)
    i, j = np.nonzero(~np.eye(len(v), dtype=bool))
    A = np.zeros((len(i), len(v)))
    A[np.arange(len(i)), i], A[np.arange(len(i)), j] = 1.0, -1.0
    if len(v) == 1:
        return max(0.0, float(mass[0]))
    return maximum(mass, A, lip * np.abs(v[i] - v[j]), (0, 1))


def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Set the size from which numba is used, to never and to always."""
    for name, smallest in (("pure", 10**9), ("compiled", 1)):
        monkeypatch.setattr(line, "COMPILE_FROM", smallest)
        assert (name == "compiled") == passes_for(1).IS_COMPILED
        yield name


@pytest.mark.parametrize("part", range(5))
def test_smooth_is_its_linear_program(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    for seed in range(part, INSTANCES, 5):
        q, y, weight, c = sample(seed, 1)
        p, y = q[:, 1:], y[:, 1:]
        r = residuals(p, y, weight, c)[:, 0]
        best = max(smooth_by_lp(p[:, 0], sign * r, 1.0) for sign in (1.0, -1.0))
        for name in kernels(monkeypatch):
            found = Smooth().suprema(p, residuals(p, y, weight, np.ones(len(p))), Matrix(c[:, None]))
            assert found.value[0] == pytest.approx(best, abs=1e-9), (seed, name)
            assert found.upper[0] == found.value[0]
            public = by_measure(y[:, 0].astype(int), p[:, 0], weight, c, "smooth", [0, 1])
            assert public == pytest.approx(best, abs=1e-9), (seed, name)


def test_other_slopes_are_their_linear_programs() -> None:
    for seed in range(150):
        q, y, weight, c = sample(5000 + seed, 1)
        f, r = q[:, 1], residuals(q, y, weight, c)[:, 1]
        lip = LIPS[seed % len(LIPS)]
        best = smooth_by_lp(f, r, lip)
        for passes in (PURE, passes_for(line.COMPILE_FROM)):
            assert solve_line(*aggregate(f, r), lip, passes=passes)[0] == pytest.approx(best, abs=1e-9), seed
