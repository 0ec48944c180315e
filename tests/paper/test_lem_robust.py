"""Lemma 3.16 (lem:robust): weights with Lipschitz constant r pay for a move of the predictions (spec 3.10)."""

from __future__ import annotations

import numpy as np
import pytest

import hierarchy_worlds as worlds
from lowcal.hierarchy import lipschitz_robustness


@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("r", [0.5, 1.0, 3.0])
def test_never_exceeded(d: int, r: float) -> None:
    f = worlds.draw(1500, 3, d, seed=d)
    g, distance = worlds.moved(f, d)
    price = lipschitz_robustness(r, 0.0, 1.0, 2 if d == 1 else max(d, 3))
    before, after = worlds.smooth(f, lip=r), worlds.smooth(g, lip=r)
    assert (after <= before + price * distance + 1e-12).all()
    assert price < 2 * r + 1  # as printed


@pytest.mark.parametrize("r", [0.6, 1.0, 2.0, 5.0])
def test_binary_price_is_approached(r: float) -> None:
    """f = 1 - e with y = 0 moves to 1; w falls from 1 with slope r, held by a residual at the distance 1 / r."""
    e, x = 1e-4, max(0.0, 1 - 1 / r)
    other = 0.999 / (1 - x)  # nearly the same residual mass, upwards
    P = np.array([1.0, other]) / (1 + other)
    before, after = (worlds.single(P, np.array([f, x]), np.array([0.0, 1.0])) for f in (1 - e, 1.0))
    gained = worlds.smooth(after, lip=r)[0] - worlds.smooth(before, lip=r)[0]
    assert 0.98 <= gained / (lipschitz_robustness(r, 0.0, P[0] * e)) <= 1


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("r", [0.6, 1.0, 2.0])
def test_simplex_price_is_approached(d: int, r: float) -> None:
    """Next to the second corner with y = e_1, held by the opposite residual at the distance 1 / r."""
    e, far = 1e-4, 1 / (2 * r)
    P = np.array([1.0, 0.9999 * 2 * r]) / (1 + 0.9999 * 2 * r)
    pad = np.zeros(d - 2)
    h = np.r_[far, 1 - far, pad]
    truth = np.array([np.eye(d)[0], np.eye(d)[1]])
    before, after = (worlds.single(P, np.array([np.r_[t, 1 - t, pad], h]), truth) for t in (e, 0.0))
    gained = worlds.smooth(after, lip=r)[0] - worlds.smooth(before, lip=r)[0]
    assert 0.98 <= gained / lipschitz_robustness(r, 0.0, P[0] * 2 * e, 3) <= 1 + 1e-6
