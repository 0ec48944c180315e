"""Corollary 4.3 (spec 5.4): E_c[f^(d-1) y] between the truth's moment and a product of means."""

import pytest

from lowcal.guarantees.theorems import cross_moment
from paper.worlds import agree, keeps, scalar_worlds, share_of_slack, two_points, world

DEGREES = [1, 2, 3, 4]


@pytest.mark.parametrize("degree", DEGREES)
def test_holds_in_random_worlds(degree):
    w = scalar_worlds()
    found = cross_moment.of(w.moments(degree, known=True), degree)
    keeps(found, w.mean(w.f ** (degree - 1) * w.star))
    alpha_c, below = w.alpha_c(degree), w.mean(w.f ** (degree - 1))
    agree(found.upper.bound, w.mean(w.star**degree) + (degree - 1) * alpha_c)
    slack = (1 + below) * alpha_c if degree > 1 else 0
    agree(found.lower.bound, w.mean(w.star) * below - slack)


@pytest.mark.parametrize("degree", DEGREES)
def test_the_covariance_identity(degree):
    """Cov(f^(d-1), y) = Cov(f^(d-1), f) + e_(d-1) - e_0 E f^(d-1), signed."""
    w = scalar_worlds()
    u = w.f ** (degree - 1)
    gap = [w.mean(v * (w.star - w.f)) for v in (1.0, u)]
    rise = w.mean(u * w.f) - w.mean(u) * w.mean(w.f)
    agree(-cross_moment.of(w.moments(degree), degree).lower.signed, rise + gap[1] - gap[0] * w.mean(u))


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_the_upper_constant_is_d_minus_1_and_not_the_papers_d_plus_1(degree):
    w = world([1], [1.0], [1 - 1e-4])
    found = cross_moment.of(w.moments(degree, known=True), degree)
    assert 0.99 <= share_of_slack(found, "upper") <= 1 + 1e-9
    assert found.upper.paper_slack / found.upper.slack == pytest.approx((degree + 1) / (degree - 1))


def test_at_degree_1_there_is_nothing_to_grant():
    w = world([1], [1.0], [0.5])
    found = cross_moment.of(w.moments(1, known=True), 1)
    assert found.upper.slack == 0
    assert found.lower.slack == 0
    agree(found.estimate, 0.5)
    assert found.upper.paper_slack == pytest.approx(1.0)


@pytest.mark.parametrize(("degree", "t"), [(2, 0.5), (2, 0.99), (3, 0.7), (3, 0.99), (4, 0.99)])
def test_the_lower_constant_is_approached_by_predictions_that_hardly_differ(degree, t):
    """f = t +- eta against its truth: e_0 = a, e_(d-1) = -a, while Cov(f^(d-1), f) is of order eta^2."""
    w = two_points(t - 1e-6, t + 1e-6, degree - 1, 2e-9, -2e-9)
    found = cross_moment.of(w.moments(degree), degree)
    assert 0.99 <= share_of_slack(found, "lower") <= 1 + 1e-6
    agree(found.lower.constant, 1 + w.mean(w.f ** (degree - 1)))  # near t = 1 the paper's 2
