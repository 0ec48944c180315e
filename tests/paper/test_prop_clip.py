"""Proposition 3.5 (prop:clip): weights with Lipschitz constant r cost max(1, r) times the smooth alpha (spec 3.4)."""

from __future__ import annotations

import numpy as np
import pytest

import hierarchy_worlds as worlds
from lowcal.hierarchy import smooth_to_lipschitz


@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("r", [0.3, 1.0, 1.7, 5.0])
def test_never_exceeded(d: int, r: float) -> None:
    w = worlds.draw(1500, 3, d, seed=d)
    assert (worlds.smooth(w, lip=r) <= smooth_to_lipschitz(1.0, r) * worlds.smooth(w) + 1e-14).all()


@pytest.mark.parametrize("r", [1.0, 1.7, 5.0])
def test_attained_by_two_near_predictions(r: float) -> None:
    """Residuals +m and -m at a distance of 0.1: the weight gains m min(1, r 0.1)."""
    w = worlds.single([0.5, 0.5], np.array([0.45, 0.55]), np.array([0.25, 0.75]))
    assert worlds.smooth(w, lip=r)[0] / worlds.smooth(w)[0] == pytest.approx(smooth_to_lipschitz(1.0, r), rel=1e-12)


def test_below_one_nothing_is_gained() -> None:
    """A single prediction: constants attain the supremum whatever the Lipschitz constant."""
    w = worlds.single([1.0], np.array([0.5]), np.array([0.75]))
    assert worlds.smooth(w, lip=0.3)[0] == worlds.smooth(w)[0] == 0.25
    assert smooth_to_lipschitz(0.25, 0.3) == 0.25
