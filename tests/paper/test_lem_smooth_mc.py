"""Lemma 3.12 (lem:smooth-mc): a finite (eta, L)-basis implies smooth (spec 3.8), and the dyadic one (spec 1.3, B4)."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, log2

import numpy as np
import pytest

import hierarchy_worlds as worlds
from lowcal import Smooth
from lowcal.hierarchy import basis_to_smooth


def dyadic_error(w: worlds.Worlds, scale: int) -> np.ndarray:
    """The largest residual of a dyadic interval of length 1, 1/2, ..., 2^-scale."""
    return np.max([worlds.full_cell(w, 2**s) for s in range(scale + 1)], axis=0)


def dyadic_to_smooth(beta: float, scale: int) -> float:
    """Lemma 3.12 with the dyadic basis: a (2^-(S+1), 1 + S/2)-basis."""
    return basis_to_smooth(beta, 0.5 ** (scale + 1), 1 + scale / 2)


@pytest.mark.parametrize("scale", [0, 1, 3, 6])
def test_the_dyadic_basis_is_never_exceeded(scale: int) -> None:
    w = worlds.draw(2500, 3, 1, seed=scale)
    slack = dyadic_to_smooth(0.0, scale)
    factor = dyadic_to_smooth(1.0, scale) - slack
    assert (worlds.smooth(w) <= factor * dyadic_error(w, scale) + slack + 1e-12).all()


@pytest.mark.parametrize("scale", [0, 1, 2, 5, 9])
def test_the_dyadic_basis_is_an_eta_l_basis(scale: int) -> None:
    """Values at the centres, as differences from scale to scale: sum |lambda| <= 1 + S/2, distance 2^-(S+1)."""
    rng = np.random.default_rng(scale)
    t = np.linspace(0, 1, 2**11 + 1)
    tent = 1 - np.abs(t - 0.5)
    steps = (rng.choice([-1, 1], 2**11) * 2.0**-11 for _ in range(30))
    for u in [tent, *(np.clip(np.cumsum(np.r_[rng.random(), s]), 0, 1) for s in steps)]:
        parent, size = np.interp([0.5], t, u), abs(np.interp(0.5, t, u))
        for s in range(1, scale + 1):
            centre = np.interp((np.arange(2**s) + 0.5) / 2**s, t, u)
            size += np.abs(centre - np.repeat(parent, 2)).sum()
            parent = centre
        near = parent[np.minimum((t * 2**scale).astype(int), 2**scale - 1)]
        assert size <= 1 + scale / 2 + 1e-9
        assert np.abs(u - near).max() <= 0.5 ** (scale + 1) + 1e-12
        if u is tent:
            assert size == pytest.approx(1 + scale / 2, abs=1e-9)  # both constants are attained
            assert np.abs(u - near).max() == pytest.approx(0.5 ** (scale + 1), abs=1e-12)


def test_binary_pays_the_distance_once_and_the_simplex_twice() -> None:
    """The constant is a (1/2, 1)-basis of the Lipschitz weights; two predictions, both wrong, attain beta L + eta."""
    w = worlds.single([0.5, 0.5], np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    assert worlds.multiaccuracy(w)[0] == 0
    assert worlds.smooth(w)[0] == basis_to_smooth(0.0, 0.5, 1.0) == 0.5
    w = worlds.single([0.5, 0.5], np.eye(3)[:2], np.eye(3)[[1, 0]])
    assert worlds.multiaccuracy(w)[0] == 0
    assert worlds.smooth(w)[0] == basis_to_smooth(0.0, 0.5, 1.0, n_classes=3) == 1.0


def test_the_weight_of_the_basis_is_attained() -> None:
    """A single prediction: the smooth error is that of the constant."""
    w = worlds.single([1.0], np.array([0.25]), np.array([0.75]))
    assert worlds.smooth(w)[0] == basis_to_smooth(worlds.multiaccuracy(w)[0], 0.0, 1.0) == 0.5


@pytest.mark.parametrize("d", [1, 3, 4])
def test_any_finite_basis(d: int) -> None:
    """Cells of width 1/k as a basis, with the distance and the coefficients of the weight that is the worst."""
    w = worlds.draw(1000, 3, d, seed=d)
    smooth = worlds.smooth(w)
    for k in (2, 5):
        # u is constant up to width/2 (or l width/2 in l1) on a cell; L: one (or floor(l/2)) for each occupied cell
        eta, size = (d if d > 1 else 1) / (2 * k), max(1, d // 2) * worlds.occupied(w, k)
        bound = [
            basis_to_smooth(b, eta, L, 2 if d == 1 else d) for b, L in zip(worlds.full_cell(w, k), size, strict=True)
        ]
        assert (smooth <= np.array(bound) + 1e-12).all()


@pytest.mark.parametrize("alpha", [0.5, 0.3, 0.125, 0.01, 1e-3])
def test_the_dyadic_tolerance_reaches_its_target(alpha: float) -> None:
    scale, beta = max(0, ceil(log2(1 / alpha))), Smooth().tolerance(np.zeros((1, 1)), alpha)
    assert beta == pytest.approx(alpha / (2 + scale), rel=1e-15)
    assert dyadic_to_smooth(beta, scale) <= alpha * (1 + 1e-12)
    assert beta > alpha**2 / 2 or alpha > 0.4  # against one fixed width


def test_by_hand() -> None:
    assert Fraction(dyadic_to_smooth(0.25, 3)) == Fraction(1, 4) * Fraction(5, 2) + Fraction(1, 16)
