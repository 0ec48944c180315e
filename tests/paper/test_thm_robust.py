"""Theorem 3.15 (thm:robust): degree k and smooth survive small moves, full does not (spec 3.10)."""

from __future__ import annotations

import numpy as np
import pytest

import definition
import hierarchy_worlds as worlds
from lowcal.hierarchy import robustness


@pytest.mark.parametrize("constants", ["sharp", "best"])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_never_exceeded(classes: int, constants: str) -> None:
    d = 1 if classes == 2 else classes
    f = worlds.draw(1500, 3, d, seed=d)
    g, distance = worlds.moved(f, d)
    cases = {"multiaccuracy": worlds.multiaccuracy, "smooth": worlds.smooth}
    cases |= {f"degree-{k}": lambda w, k=k: worlds.degree(w, k) for k in ((1, 2, 3, 5) if d == 1 else (1, 2))}
    for notion, supremum in cases.items():
        price = robustness(notion, 0.0, 1.0, classes, constants)
        assert (supremum(g) <= supremum(f) + price * distance + 1e-12).all(), notion


def test_prices_by_hand() -> None:
    assert [robustness(f"degree-{k}", 0.5, 0.125) for k in (1, 2, 4)] == [0.625, 0.75, 1.0]
    assert [robustness(f"degree-{k}", 0.5, 0.125, 3) for k in (1, 2, 4)] == [0.5625, 0.6875, 0.9375]
    assert [robustness(f"degree-{k}", 0.0, 1.0, 3, "best") for k in (1, 2, 3, 5)] == [0.5, 1.5, 2.0, 3.5]
    assert [robustness("smooth", 0.0, 1.0, 2), robustness("smooth", 0.0, 1.0, 3)] == [2.0, 2.5]
    assert robustness("multiaccuracy", 0.0, 1.0, 5) == 0.5


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_binary_price_is_approached(k: int) -> None:
    """f = 1 - e with y = 0 moves to 1: t^k gains k e. A second prediction keeps the lower moments small."""
    e = 1e-4
    x, share = (0.0, 1.0) if k == 2 else (0.5, 2.8)
    if k == 1:
        share = 0.0
    P = np.array([1.0, share]) / (1 + share)
    before, after = (worlds.single(P, np.array([f, x]), np.array([0.0, 1.0])) for f in (1 - e, 1.0))
    gained = worlds.degree(after, k)[0] - worlds.degree(before, k)[0]
    assert 0.98 <= gained / robustness(f"degree-{k}", 0.0, P[0] * e) <= 1 + 1e-9


def test_smooth_prices_are_approached() -> None:
    e = 1e-4
    P = np.array([1.0, 0.999]) / 1.999
    before, after = (worlds.single(P, np.array([f, 0.0]), np.array([0.0, 1.0])) for f in (1 - e, 1.0))
    gained = worlds.smooth(after)[0] - worlds.smooth(before)[0]
    assert 0.98 <= gained / robustness("smooth", 0.0, P[0] * e) <= 1 + 1e-9
    truth, h = np.eye(3)[:2], [0.5, 0.5, 0.0]
    before, after = (worlds.single([1 / 3, 2 / 3], np.array([[t, 1 - t, 0.0], h]), truth) for t in (e, 0.0))
    gained = worlds.smooth(after)[0] - worlds.smooth(before)[0]
    assert 0.98 <= gained / robustness("smooth", 0.0, 2 * e / 3, 3) <= 1 + 1e-9


@pytest.mark.parametrize("d", [2, 3, 5])
def test_simplex_price_of_degree_two_is_approached(d: int) -> None:
    e, truth = 1e-4, np.eye(d)[[0, 1]]
    before, after = (
        worlds.single([0.5, 0.5], np.array([t * np.eye(d)[0] + (1 - t) * np.eye(d)[1], np.eye(d)[0]]), truth)
        for t in (e, 0.0)
    )
    gained = worlds.degree(after, 2)[0] - worlds.degree(before, 2)[0]
    assert 0.98 <= gained / robustness("degree-2", 0.0, e, 3) <= 1 + 1e-9


@pytest.mark.parametrize("k", [3, 4, 6])
def test_the_best_simplex_price_is_that_of_single_rows(k: int) -> None:
    """|<w(f), y - f> - <w(g), y - g>| <= ((3k - 1)/4) ||f - g||_1 for w in W_k, approached next to a corner."""
    rng = np.random.default_rng(k)
    K, d, n = k - 1, 3, 4000
    price = robustness(f"degree-{k}", 0.0, 1.0, 3, "best")
    S = np.array([s for s in definition.exponents(d, K) if sum(s)])

    def weights(z: np.ndarray) -> np.ndarray:
        """Return, at z (m, d), a coordinate of each kind: monomials, their complements, products of both."""
        m = np.prod(z[:, None, :] ** S, axis=2)
        return np.hstack([m, (1 - m) / 2, (m[:, :1] + m) / 2])

    near = 0.99 * np.eye(d)[rng.integers(0, d, n)] + 0.01 * rng.dirichlet(np.ones(d), n)
    f = np.where(rng.random((n, 1)) < 0.5, near, rng.dirichlet(np.ones(d), n))
    g = f + rng.choice([1e-4, 0.1, 1.0], (n, 1)) * (rng.dirichlet(np.full(d, 0.3), n) - f)
    y = np.eye(d)[rng.integers(0, d, n)]
    wf, wg = weights(f), weights(g)
    gain = wf[:, :, None] * (y - f)[:, None] - wg[:, :, None] * (y - g)[:, None]  # (n, weight, label)
    most = np.maximum(gain.max(axis=1).sum(axis=1), -gain.min(axis=1).sum(axis=1))  # the best weight of each label
    assert (most <= price * np.abs(f - g).sum(axis=1) + 1e-12).all()
    e = 1e-5
    value = [(1 - t) * ((1 - t) ** K - (1 - (1 - t) ** K) / 2) for t in (0.0, e)]  # y = e_1, f = (t, 1 - t)
    assert 0.98 <= (value[0] - value[1]) / (price * 2 * e) <= 1 + 1e-9


def test_rounding_costs_half_a_step() -> None:
    w = worlds.draw(1500, 3, 1, seed=9)
    for h in (0.1, 0.01):
        rounded = worlds.Worlds(w.P, np.round(w.F / h) * h, w.T, w.C)
        for k in (1, 2, 3):
            allowed = [robustness(f"degree-{k}", a, h / 2) for a in worlds.degree(w, k)]
            assert (worlds.degree(rounded, k) <= np.array(allowed) + 1e-12).all()


@pytest.mark.parametrize(("k", "jumps"), [(10, True), (2, True), (5, False)])
def test_full_is_not_robust_where_half_is_an_edge(k: int, jumps: bool) -> None:
    """f = 1/2 for everyone is calibrated; 1/2 -+ e is not, if 1/2 is an edge: width 0.1 yes, 0.2 no."""
    e = 1e-9
    w = worlds.single([0.5, 0.5], np.array([0.5 - e, 0.5 + e]), np.array([0.0, 1.0]))
    assert worlds.full_class(worlds.single([0.5, 0.5], np.array([0.5, 0.5]), np.array([0.0, 1.0])), k)[0] == 0
    assert worlds.full_cell(w, k)[0] == pytest.approx(0.25 if jumps else 0.0, abs=1e-8)
    assert robustness("full-0.1", 0.0, e) == np.inf
