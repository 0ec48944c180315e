"""Lemma 4.1 (spec 5.1): |E_c[f^(d-1) y] - E_c[f^d]| <= alpha_c."""

import numpy as np
import pytest

from lowcal.guarantees.theorems import moment_match
from paper.worlds import agree, keeps, scalar_worlds, share_of_slack, world


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_holds_in_random_worlds(degree):
    w = scalar_worlds()
    found = moment_match.of(w.moments(degree), degree)
    keeps(found, w.mean(w.f ** (degree - 1) * w.star))
    agree(found.upper.bound, w.mean(w.f**degree) + w.alpha_c(degree))
    agree(found.lower.bound, w.mean(w.f**degree) - w.alpha_c(degree))
    agree(found.upper.signed, w.mean(w.f ** (degree - 1) * (w.star - w.f)))  # an identity
    agree(found.upper.signed_bound, found.estimate)
    agree(found.lower.signed_bound, found.estimate)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_the_constant_1_is_attained_on_both_sides(degree):
    below = moment_match.of(world([1], [1.0], [0.9]).moments(degree), degree)
    assert share_of_slack(below, "lower") == pytest.approx(1, abs=1e-9)
    corners = world([0.5, 0.5], [1.0, 1.0], [1.0, 0.4], c=[0, 1])
    assert share_of_slack(moment_match.of(corners.moments(degree), degree), "lower") == pytest.approx(1, abs=1e-9)
    # from above f = 1 can't be exceeded; near it all powers are
    above = moment_match.of(world([1], [0.999], [1.0]).moments(degree), degree)
    assert share_of_slack(above, "upper") >= 0.99


def test_a_given_alpha_is_divided_by_the_mass():
    w = world([0.5, 0.5], [0.2, 0.8], [0.3, 0.8], c=[0.5, 0])
    found = moment_match.of(w.moments(2), 2, alpha=0.01)
    agree(found.upper.alpha_c, 0.04)
    agree(found.upper.slack, 0.04)
    assert np.shape(found.estimate) == ()
