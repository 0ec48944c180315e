"""Theorem 3.9 (thm:int-to-smooth): full implies smooth and every degree on the simplex (spec 3.5, 3.6)."""

from __future__ import annotations

import numpy as np
import pytest

import hierarchy_worlds as worlds
from lowcal import Full
from lowcal.hierarchy import implied_alpha


@pytest.mark.parametrize("classes", [3, 4, 6])
@pytest.mark.parametrize("k", [1, 4, 20, 200])
def test_never_exceeded(classes: int, k: int) -> None:
    """With the occupied cells, and with the supremum over all cells at once."""
    w = worlds.draw(1200, 3, classes, seed=classes)
    rng = np.random.default_rng(k)
    near = w.F[:, :1] + (w.F - w.F[:, :1]) / k  # predictions that often share a cell
    w.F = np.where(rng.random((1200, 1, 1)) < 0.7, near, w.F)
    many, cell, whole = worlds.occupied(w, k), worlds.full_cell(w, k), worlds.full_class(w, k)
    wanted = {"smooth": worlds.smooth(w), "degree-1": worlds.degree(w, 1), "degree-2": worlds.degree(w, 2)}
    for want, actual in wanted.items():
        slack = implied_alpha(Full(1 / k), want, 0.0, classes)
        assert (actual <= classes // 2 * many * cell + slack + 1e-12).all()
        assert (actual <= [implied_alpha(Full(1 / k), want, one, classes) + 1e-12 for one in cell]).all()
        assert (actual <= whole + slack + 1e-12).all()


@pytest.mark.parametrize("classes", [3, 4, 5, 8])
def test_the_part_of_the_cells_is_approached(classes: int) -> None:
    """One prediction, half of the labels too high and half too low: floor(l/2) times the cell's residual."""
    half = classes // 2
    truth = np.full((1, classes), 1 / classes)
    said = truth + 0.5 / classes * (np.arange(classes) < half) - 0.5 / classes * (np.arange(classes) >= classes - half)
    w = worlds.single([1.0], said, truth)
    beta = worlds.full_cell(w, 10_000)[0]
    for want in ("smooth", "degree-2"):
        bound = implied_alpha("full-0.0001", want, half * beta, classes, per_cell=False)
        assert 0.98 <= worlds.smooth(w)[0] / bound <= 1
    assert worlds.smooth(w)[0] == pytest.approx(half * beta)
    assert worlds.multiaccuracy(w)[0] == pytest.approx(beta)
    # a single cell, of width 1, is all that the hierarchy can count here
    for want, factor in (("degree-1", half), ("multiaccuracy", 1)):
        assert implied_alpha("full-1", want, beta, classes) == pytest.approx(factor * beta)


@pytest.mark.parametrize("classes", [4, 6])
def test_half_of_the_part_of_the_width_is_reached(classes: int) -> None:
    """Two opposite corners of the cell of the uniform prediction are l width apart; residuals of mass 1/2 in all."""
    sign = np.where(np.arange(classes) < classes // 2, 1.0, -1.0)
    k = 10
    low = np.floor(k / classes) / k
    reach = min(1 / classes - low, low + 1 / k - 1 / classes)
    z = np.array([1 / classes + reach * (1 - 1e-9) * s * sign for s in (1, -1)])
    truth = np.array([(1 - sign) / classes, (1 + sign) / classes])
    w = worlds.single([0.5, 0.5], z, truth)
    assert worlds.full_cell(w, k)[0] < 0.5 * reach + 1e-12
    distance = np.abs(z[0] - z[1]).sum()
    assert worlds.smooth(w)[0] >= 0.5 * min(distance, 1.0) * (1 - 1e-6)
    assert worlds.smooth(w)[0] <= classes // 2 * worlds.full_cell(w, k)[0] + classes / k


def test_the_constants() -> None:
    """floor(l/2) N alpha + l delta, N the cells that meet the simplex; the paper prints ceil(1/delta)^l alpha."""
    assert implied_alpha("full-0.1", "smooth", 1e-5, 3) == pytest.approx(1e-5 * 163 + 0.3)
    assert implied_alpha("full-0.1", "smooth", 1e-5, 4) == pytest.approx(2e-5 * 787 + 0.4)
    # a degree directly: (k - 1) / 2 times l delta; the paper reaches it through smooth only
    assert implied_alpha("full-0.1", "degree-3", 1e-5, 3) == pytest.approx(1e-5 * 163 + 0.3)
    assert implied_alpha("full-0.1", "degree-2", 1e-5, 4) == pytest.approx(2e-5 * 787 + 0.2)
