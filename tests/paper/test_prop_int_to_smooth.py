"""Proposition 3.14 (prop:int-to-smooth): full implies smooth and every degree, for scalars (spec 3.5, 3.6)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import definition
import hierarchy_worlds as worlds
from lowcal import Full
from lowcal.hierarchy import implied_alpha

WIDTHS = [1, 2, 3, 5, 10]


@cache
def batch(k: int) -> tuple[worlds.Worlds, np.ndarray]:
    """Worlds whose predictions share few cells, and their smooth errors."""
    w = worlds.draw(600, 4, 1, seed=k)
    rng = np.random.default_rng(k)
    base = rng.integers(0, k, (600, 1, 1)) / k
    w.F = np.where(rng.random((600, 1, 1)) < 0.7, np.minimum(base + w.F / k, 1.0), w.F)
    return w, worlds.smooth(w)


@pytest.mark.parametrize("constants", ["sharp", "best"])
@pytest.mark.parametrize("k", WIDTHS)
def test_never_exceeded(k: int, constants: str) -> None:
    w, smooth = batch(k)
    many, cell, whole = worlds.occupied(w, k), worlds.full_cell(w, k), worlds.full_class(w, k)
    for want, actual in (("smooth", smooth), *((f"degree-{j}", worlds.degree(w, j)) for j in (1, 2, 3, 5))):
        slack = implied_alpha(Full(1 / k), want, 0.0, constants=constants)
        factor = implied_alpha(Full(1 / k), want, 1.0, constants=constants) - slack
        occupied = many * factor / k  # N alpha: alpha times the cells that hold a point
        assert (actual <= occupied * cell + slack + 1e-12).all()
        whole_slack = implied_alpha(Full(1 / k), want, 0.0, constants=constants, per_cell=False)
        whole_factor = implied_alpha(Full(1 / k), want, 1.0, constants=constants, per_cell=False) - whole_slack
        assert (actual <= whole_factor * whole + whole_slack + 1e-12).all()


def test_the_part_of_the_width_is_attained() -> None:
    """One cell, f = 0 and f = 1, both wrong: residual 0 in the cell, 1/2 for a Lipschitz weight and for t."""
    w = worlds.single([0.5, 0.5], np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    assert worlds.full_cell(w, 1)[0] == 0
    assert worlds.smooth(w)[0] == implied_alpha("full-1", "smooth", 0.0) == 0.5
    assert worlds.degree(w, 2)[0] == implied_alpha("full-1", "degree-2", 0.0) == 0.5


@pytest.mark.parametrize("k", [1, 3, 5, 11, 21])
def test_the_best_part_of_the_width_is_approached(k: int) -> None:
    """width (1 + width) / 4: f* = 1 at the left end of the middle cell, f* = 0 at its right end."""
    a, b = (k - 1) / (2 * k), (k + 1) / (2 * k) - 1e-9
    mass = np.array([b, 1 - a]) / (1 - a + b)
    w = worlds.single(mass, np.array([a, b]), np.array([1.0, 0.0]))
    assert worlds.full_cell(w, k)[0] <= 1e-12
    best = implied_alpha(Full(1 / k), "smooth", 0.0, constants="best")
    assert best == pytest.approx((1 + 1 / k) / (4 * k), abs=1e-15)
    assert worlds.smooth(w)[0] / best == pytest.approx(1, abs=1e-6)
    assert best <= implied_alpha(Full(1 / k), "smooth", 0.0)


@pytest.mark.parametrize("k", [4, 10])
@pytest.mark.parametrize("degree", [2, 3, 5])
def test_the_best_part_of_the_width_is_approached_by_degrees(k: int, degree: int) -> None:
    """The same in the cell where the monomial gains most."""
    ratios = []
    best = implied_alpha(Full(1 / k), f"degree-{degree}", 0.0, constants="best")
    for j in range(k):
        a, b = j / k, (j + 1) / k - 1e-9
        w = worlds.single(np.array([b, 1 - a]) / (1 - a + b), np.array([a, b]), np.array([1.0, 0.0]))
        ratios.append(worlds.degree(w, degree)[0] / best)
    assert max(ratios) == pytest.approx(1, abs=1e-6)
    assert best <= implied_alpha(Full(1 / k), f"degree-{degree}", 0.0)


def test_the_part_of_the_cells_is_approached() -> None:
    """400 cells with the same residual each: the constant 1 collects them all."""
    k = 400
    f = (np.arange(k) + 0.5) / k
    mass = 1 / (1 - f)
    beta = 1 / mass.sum()
    w = worlds.single(mass * beta, f, np.ones(k))
    assert worlds.full_cell(w, k)[0] == pytest.approx(beta, rel=1e-12)
    error = definition.class_supremum("smooth", *w.one(0))
    assert 0.98 <= error / implied_alpha("full-0.0025", "smooth", beta) <= 1
    for name in ("degree-1", "multiaccuracy"):
        assert error / implied_alpha("full-0.0025", name, beta) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("k", "alpha"), [(2, 0.1), (3, 0.1), (5, 0.08), (2, 0.003)])
def test_the_best_width_for_a_degree(k: int, alpha: float) -> None:
    """Of all widths, alpha / (k - 1) lets beta be the largest, alpha^2 / (2 (k - 1)) (spec 3.6)."""
    width, beta = alpha / (k - 1), alpha**2 / (2 * (k - 1))
    if abs(round(1 / width) * width - 1) < 1e-9:
        assert implied_alpha(Full(width), f"degree-{k}", beta) == pytest.approx(alpha, rel=1e-12)
    for other in range(1, 3 * round(1 / width)):
        assert implied_alpha(Full(1 / other), f"degree-{k}", beta) >= alpha * (1 - 1e-12)


def test_the_best_width_for_smooth() -> None:
    assert implied_alpha("full-0.1", "smooth", 0.1**2 / 2) == pytest.approx(0.1)
    assert all(implied_alpha(Full(1 / k), "smooth", 0.1**2 / 2) >= 0.1 * (1 - 1e-12) for k in range(1, 60))
