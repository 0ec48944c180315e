"""Theorem 4.2 (spec 5.2, 5.3): E_c f*^d + d alpha_c >= E_c f^d >= E_c y E_c f^(d-1) - alpha_c."""

import numpy as np
import pytest

from lowcal.guarantees.theorems import holder, moment_sandwich
from paper.worlds import agree, keeps, scalar_worlds, share_of_slack, world

DEGREES = [1, 2, 3, 4]


@pytest.mark.parametrize("degree", DEGREES)
def test_holds_in_random_worlds(degree):
    w = scalar_worlds()
    found = moment_sandwich.of(w.moments(degree, known=True), degree)
    keeps(found, w.mean(w.f**degree))
    alpha_c, below = w.alpha_c(degree), w.mean(w.f ** (degree - 1))
    agree(found.upper.bound, w.mean(w.star**degree) + degree * alpha_c)
    agree(found.lower.bound, w.mean(w.star) * below - below * alpha_c)
    agree(found.upper.signed, -degree * w.mean(w.f ** (degree - 1) * (w.star - w.f)))
    agree(found.lower.signed_bound, found.estimate)  # below, the signed form is an identity


@pytest.mark.parametrize("degree", DEGREES)
def test_the_upper_constant_d_is_approached(degree):
    w = world([1], [1.0], [1 - 1e-4])
    found = moment_sandwich.of(w.moments(degree, known=True), degree)
    assert 0.99 <= share_of_slack(found, "upper") <= 1 + 1e-9
    assert found.upper.constant == degree == found.upper.paper_constant


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("t", [0.3, 0.999])
def test_the_lower_constant_is_attained_by_constant_predictions(degree, t):
    w = world([1], [t], [t + 1e-3])
    found = moment_sandwich.of(w.moments(degree), degree)
    assert share_of_slack(found, "lower") == pytest.approx(1, abs=1e-6)
    assert found.lower.constant == pytest.approx(t ** (degree - 1))  # so the paper's 1 is approached at t = 1 only
    assert found.lower.paper_constant == 1


@pytest.mark.parametrize("degree", DEGREES)
def test_holders_certificate_holds_and_is_the_best_of_the_three(degree):
    """Any f: E f*^d >= (E f^(d-1) y)^d / (E f^d)^(d-1) >= E f^d + d e_(d-1)."""
    w = scalar_worlds()
    certified = holder(w.moments(degree), degree)
    assert np.all(certified <= w.mean(w.star**degree) + 1e-12)
    assert np.all(certified >= w.mean(w.f**degree) + degree * w.mean(w.f ** (degree - 1) * (w.star - w.f)) - 1e-12)
    cross, own = w.mean(w.f ** (degree - 1) * w.star), w.mean(w.f**degree)
    direct = cross**degree / np.where(own > 0, own, 1.0) ** (degree - 1)  # without f there is no cross moment
    agree(certified, direct)


@pytest.mark.parametrize("degree", [2, 3])
def test_holders_certificate_is_attained_by_a_multiple_of_the_truth(degree):
    f = np.array([0.3, 0.6, 0.9])
    w = world([0.2, 0.3, 0.5], f, 0.7 * f)
    assert holder(w.moments(degree), degree) == pytest.approx(w.mean(w.star**degree), rel=1e-12)


def test_no_rows_of_c_give_nan_and_no_verdict():
    w = world([0.5, 0.5], [0.2, 0.8], [0.3, 0.8], c=[0, 0])
    found = moment_sandwich.of(w.moments(2), 2).scalar()
    assert np.isnan(found.estimate)
    assert found.holds is None
