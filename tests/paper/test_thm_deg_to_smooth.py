"""Theorem 3.7 (thm:deg-to-smooth): smooth implies every degree (spec 3.3), and scalars the other way (spec 3.9)."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from scipy.optimize import linprog

import definition
import hierarchy_worlds as worlds
from lowcal.hierarchy import implied_alpha


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_binary_constant_is_never_exceeded(k: int) -> None:
    w = worlds.draw(4000, 3, 1, seed=k)
    assert (worlds.degree(w, k) <= implied_alpha("smooth", f"degree-{k}", 1.0) * worlds.smooth(w) + 1e-14).all()


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_binary_constant_is_approached(k: int) -> None:
    """Predictions 1 and 1 - e with residuals -m and +m: t^(k-1) differs by (k - 1) e, a Lipschitz weight by e."""
    e = 1e-4
    w = worlds.single([e, 1.0], np.array([1.0, 1.0 - e]), np.array([0.0, 1.0]))
    ratio = worlds.degree(w, k)[0] / worlds.smooth(w)[0]
    if k == 1:  # constants: a single prediction
        w = worlds.single([1.0], np.array([0.5]), np.array([0.6]))
        ratio = worlds.degree(w, 1)[0] / worlds.smooth(w)[0]
    assert 0.98 <= ratio / implied_alpha("smooth", f"degree-{k}", 1.0) <= 1 + 1e-9


@pytest.mark.parametrize("d", [2, 3, 4])
@pytest.mark.parametrize("k", [1, 2])
def test_simplex_constant_is_one_for_low_degrees(d: int, k: int) -> None:
    w = worlds.draw(3000, 3, d, seed=d)
    ratio = worlds.degree(w, k) / worlds.smooth(w)
    assert ratio.max() <= implied_alpha("smooth", f"degree-{k}", 1.0, max(d, 3)) + 1e-12
    assert ratio.max() >= 0.98


@pytest.mark.parametrize(("d", "k"), [(2, 3), (2, 4), (2, 5), (2, 7), (3, 3), (3, 4)])
def test_simplex_constants_are_never_exceeded(d: int, k: int) -> None:
    """By polynomials that a linear program finds and that lie in the class."""
    w = worlds.draw(16, 2, d, seed=10 * d + k)
    smooth = worlds.smooth(w)
    for i in range(len(smooth)):
        shown = attained(*w.one(i), k)
        for constants in ("sharp", "best"):
            assert shown <= implied_alpha("smooth", f"degree-{k}", smooth[i], 3, constants=constants) + 1e-9


@cache
def on_grids(d: int, k: int) -> list[np.ndarray]:
    """Return all monomials of degree below k on a coarse and on a fine grid of the simplex."""
    t = [np.arange(n + 1) / n for n in (30, 600)]
    grids = [np.column_stack([x, 1 - x]) for x in t] if d == 2 else [definition.simplex_grid(d, n) for n in (9, 40)]
    return [np.array([np.prod(z ** np.array(s), axis=1) for s in definition.exponents(d, k - 1)]).T for z in grids]


def attained(r: np.ndarray, p: np.ndarray, k: int) -> float:
    """Return the violation of members of W_k: the best q >= 0 on a grid, lifted until it is so on a far finer one."""
    S = definition.exponents(p.shape[1], k - 1)
    m = definition.polynomial_moments(r, p, S)
    coarse, fine = on_grids(p.shape[1], k)
    sides = []
    for sign in (1, -1):
        total = 0.0
        for column in sign * m.T:
            q = best_coefficients(column, coarse)
            q[S.index((0,) * p.shape[1])] += max(0.0, -(fine @ q).min()) * 1.01
            total += max(0.0, float(column @ q) / max(np.abs(q).sum(), 1.0))
        sides.append(total)
    return max(sides)


def best_coefficients(m: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return q that maximises m'q over sum |q| <= 1 and q >= 0 on the points."""
    scale = max(np.abs(m).max(), 1e-300)
    A = np.vstack([np.ones(2 * len(m)), np.hstack([-values, values])])
    b = np.concatenate([[1.0], np.zeros(len(values))])
    found = linprog(-np.concatenate([m, -m]) / scale, A_ub=A, b_ub=b, bounds=(0, None), method="highs")
    return found.x[: len(m)] - found.x[len(m) :]


def corner(e: float, d: int) -> worlds.Worlds:
    """Return a corner and a point next to it, with opposite residuals on the first two labels."""
    at, near = np.eye(d)[0], (1 - e) * np.eye(d)[0] + e * np.eye(d)[1]
    return worlds.single([e, 1.0], np.array([at, near]), np.array([np.eye(d)[1], at]))


def polynomial_value(w: worlds.Worlds, K: int) -> float:
    """Return the violation of w_2 = z_1^K and w_1 = (1 - z_1^K) / 2, which lie in P_K."""
    r, z = w.r[0], w.F[0][:, 0]
    return float(r[:, 1] @ z**K + r[:, 0] @ (1 - z**K) / 2)


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("k", [4, 5, 9])
def test_the_best_simplex_constant_is_approached(d: int, k: int) -> None:
    """3 (k - 1) / 8, next to a corner; the Lipschitz constant (k - 1) / 2 of a single monomial is not reached."""
    w = corner(1e-5, d)
    ratio = polynomial_value(w, k - 1) / worlds.smooth(w)[0]
    best = implied_alpha("smooth", f"degree-{k}", 1.0, 3, constants="best")
    assert best == 3 * (k - 1) / 8
    assert 0.98 <= ratio / best <= 1 + 1e-9
    assert best < implied_alpha("smooth", f"degree-{k}", 1.0, 3) == (k - 1) / 2


@pytest.mark.parametrize("K", [2, 3, 4, 6, 10])
def test_the_best_simplex_constant_by_its_proof(K: int) -> None:
    """q - sum_i psi(z_i) has slope at most 3K/8 for every q in P_K: checked on the extreme points of a larger set.

    P_K lies in { sum |q_S| <= 1, q >= 0 at the corners i and j }. The slope in the direction e_i - e_j is linear in q.
    """
    monomials = [(a, b) for a in range(K + 1) for b in range(K + 1 - a)]  # z_i^a z_j^b; others are smaller
    x0 = 0.75 ** (1 / (K - 1))
    t = np.concatenate([np.linspace(0, 1, 201), x0 + np.linspace(-1e-6, 1e-6, 5)])
    zi, zj = np.meshgrid(t, t, indexing="ij")
    inside = (zi + zj <= 1 + 1e-12) & (zi >= 0) & (zj >= 0)
    zi, zj = zi[inside], zj[inside]

    def slope(a: int, b: int) -> np.ndarray:
        di = a * zi ** (a - 1) * zj**b if a else np.zeros_like(zi)
        dj = b * zi**a * zj ** (b - 1) if b else np.zeros_like(zi)
        return di - dj

    def bend(x: np.ndarray) -> np.ndarray:
        return np.maximum(0.0, K * x ** (K - 1) - 0.75 * K)

    at_i = [s for s in monomials if s[1] == 0]  # do not vanish at the corner i; (0, 0) at no corner
    at_j = [s for s in monomials if s[0] == 0]
    up = [slope(*s) for s in monomials]
    down = [-slope(*s) for s in monomials if s[0] and s[1]]
    mixed = [(slope(*s) - slope(*m)) / 2 for own in (at_i, at_j) for s in own for m in own if m != (0, 0)]
    steepest = np.max([*up, *down, *mixed], axis=0) - bend(zi) + bend(zj)
    assert steepest.max() <= 0.75 * K + 1e-9
    assert steepest.max() >= 0.75 * K - 1e-5
    psi = 1 - x0**K - 0.75 * K * (1 - x0)
    assert K == 2 or 1 + psi <= 3 * K / 8


# ------------------------------------------------------------------------------------------ spec 3.9: degree to smooth
@pytest.mark.parametrize("constants", ["sharp", "best"])
def test_degree_to_smooth_is_never_exceeded(constants: str) -> None:
    w = worlds.draw(500, 4, 1, seed=5)
    smooth = worlds.smooth(w)
    for k in (2, 3, 5):
        bound = [implied_alpha(f"degree-{k}", "smooth", a, constants=constants) for a in worlds.degree(w, k)]
        assert (smooth <= np.array(bound)).all()


def test_bernstein_by_hand() -> None:
    """K = 1: B_1 u = u(0)(1 - t) + u(1) t, coefficients of l1 norm at most 3, distance at most 1/2."""
    assert implied_alpha("degree-2", "smooth", 0.01) == pytest.approx(0.53, abs=1e-15)
    assert implied_alpha("degree-3", "smooth", 0.01) == pytest.approx(0.09 + 1 / np.sqrt(8), abs=1e-15)
    assert implied_alpha("degree-2", "smooth", 0.01, constants="best") == pytest.approx(0.52, abs=1e-15)
    assert implied_alpha("degree-5", "smooth", 0.1) == implied_alpha("degree-2", "smooth", 0.1)  # the lower is better
    bounds = [implied_alpha(f"degree-{k}", "smooth", 1e-6) for k in range(2, 9)]
    assert all(b < a for a, b in pairwise(bounds))


@pytest.mark.parametrize("K", [1, 2, 5])
def test_bernstein_polynomials_are_as_near_and_as_large_as_said(K: int) -> None:
    """|u - B_K u| <= 1 / (2 sqrt K) for Lipschitz u, and the coefficients of all C(K, j) t^j (1 - t)^(K-j): 3^K."""
    rng = np.random.default_rng(K)
    t = np.linspace(0, 1, 101)
    base = np.array([comb(K, j) * t**j * (1 - t) ** (K - j) for j in range(K + 1)])
    power = np.polynomial.polynomial.polypow
    assert sum(comb(K, j) * np.abs(power([1.0, -1.0], K - j)).sum() for j in range(K + 1)) == 3**K
    for _ in range(50):
        u = np.clip(np.cumsum(rng.choice([-0.01, 0.01], 101)) + rng.random(), 0, 1)
        assert np.abs(u - np.interp(np.arange(K + 1) / K, t, u) @ base).max() <= 0.5 / np.sqrt(K) + 1e-12
    if K == 1:  # a tent misses its chord by 1/2 = 1 / (2 sqrt K)
        assert np.abs(np.abs(t - 0.5) - 0.5).max() == 0.5
