"""The golden rule (spec 5, GR): E_c g(f) - E_c g(f*) <= -E_c[g'(f)(y - f)] for convex g and any predictor."""

import numpy as np
import pytest

from lowcal.guarantees.losses import Convex, above, confidence, distance_from, negative_entropy, power
from lowcal.guarantees.theorems import moment_sandwich
from paper.worlds import agree, keeps, scalar_worlds, world


def entropy(t):
    t = np.asarray(t)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((t <= 0) | (t >= 1), 0.0, t * np.log(t) + (1 - t) * np.log(1 - t))


OWN = Convex("e^t", np.exp, np.exp)
CASES = {
    "square": (power(2), np.square),
    "cube": (power(3), lambda t: t * t * t),
    "entropy": (negative_entropy(), entropy),
    "distance": (distance_from(0.5), lambda t: np.maximum(t - 0.5, 0.5 - t)),
    "above": (above(0.3), lambda t: np.where(t > 0.3, t - 0.3, 0.0)),
    "own": (OWN, lambda t: np.e**t),
}


@pytest.mark.parametrize("name", CASES)
def test_holds_in_random_worlds(name):
    g, plain = CASES[name]
    w = scalar_worlds()
    known = w.mean(g.value(w.star))
    np.testing.assert_allclose(known, w.mean(plain(w.star)), atol=1e-7)  # the entropy is changed within 1e-9 of 0 and 1
    found = confidence(g, w.f, w.star, w.member, known)
    keeps(found, w.mean(g.value(w.f)))
    slope = -w.mean(g.slope(w.f) * (w.star - w.f))
    agree(found.upper.signed, slope)
    agree(found.upper.slack, np.abs(slope))
    divergence = w.mean(g.value(w.star) - g.value(w.f) - g.slope(w.f) * (w.star - w.f))
    agree(known - found.estimate, -slope + divergence)  # the identity
    assert np.all(divergence >= -1e-11)


@pytest.mark.parametrize("name", ["square", "cube", "entropy", "own"])
def test_it_is_approached_near_the_truth(name):
    g, _ = CASES[name]
    f = np.array([0.8, 0.9])
    w = world([0.5, 0.5], f, f - 1e-5)
    found = confidence(g, w.f, w.star, w.member, w.mean(g.value(w.star)))
    assert 0.99 <= (found.estimate - found.upper.reference) / found.upper.signed <= 1 + 1e-9


@pytest.mark.parametrize("name", ["distance", "above"])
def test_it_is_attained_where_g_is_straight(name):
    g, _ = CASES[name]
    w = world([0.5, 0.5], [0.8, 0.9], [0.7, 0.6])
    found = confidence(g, w.f, w.star, w.member, w.mean(g.value(w.star)))
    assert found.estimate - found.upper.reference == pytest.approx(float(found.upper.signed), abs=1e-12)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_powers_are_the_upper_side_of_the_sandwich(degree):
    w = scalar_worlds()
    rule = confidence(power(degree), w.f, w.star, w.member, w.mean(w.star**degree), alpha=0.01)
    side = moment_sandwich.of(w.moments(degree, known=True), degree, alpha=0.01).upper
    agree(rule.upper.signed, side.signed)
    np.testing.assert_allclose(rule.upper.slack, side.slack, rtol=1e-9)
    assert rule.upper.paper_constant == side.paper_constant
