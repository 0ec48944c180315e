"""Lemma 4.13 (spec 5.11): Var_c f <= Var_c f* + 2 (1 + E_c f) alpha_c, and certificates for any predictor."""

import numpy as np
import pytest

from lowcal.guarantees.theorems import excess_variance, truth_variance, variance
from paper.worlds import agree, keeps, scalar_worlds, share_of_slack, two_points, world


def spreads(w):
    """V, V*, C and Var(f* - f), centred first."""

    def spread(a, b):
        return w.mean((a - w.mean(a)[..., None]) * (b - w.mean(b)[..., None]))

    delta = w.star - w.f
    return spread(w.f, w.f), spread(w.star, w.star), spread(w.f, w.star), spread(delta, delta)


def test_holds_in_random_worlds():
    w = scalar_worlds()
    V, truth, _, _ = spreads(w)
    found = variance.of(w.moments(2, known=True))
    keeps(found, V)
    agree(found.upper.bound, truth + 2 * (1 + w.mean(w.f)) * w.alpha_c(2))


def test_the_certificate_holds_for_any_predictor_and_the_other_is_never_below_it():
    w = scalar_worlds()
    V, truth, C, _ = spreads(w)
    certified = excess_variance(V, C)
    assert np.all(V - truth <= certified + 1e-12)
    assert np.all(certified <= 2 * (V - C) + 1e-12)
    assert np.all(truth_variance(V, C) <= truth + 1e-12)


def test_the_certificate_keeps_what_rounding_leaves_of_cauchy_schwarz():
    """At V = C = 1e-16 the quotient is nothing but rounding, and 2 C - V is what the outcomes show."""
    V, C = np.array([1e-16, 4e-16, 1e-3]), np.array([1e-16, 3e-16, 5e-4])
    np.testing.assert_allclose(truth_variance(V, C), [1e-16, 2e-16, 2.5e-4], rtol=1e-9)
    np.testing.assert_allclose(excess_variance(V, C), [0.0, 2e-16, 7.5e-4], rtol=1e-9, atol=1e-25)


def test_the_identity():
    """Var f - Var f* = 2 (Var f - Cov(f, y)) - Var(f* - f)."""
    w = scalar_worlds()
    V, truth, C, apart = spreads(w)
    agree(V - truth, 2 * (V - C) - apart)
    m = w.moments(2)
    agree(m.variance, V)
    agree(m.covariance, C)


def test_the_certificate_is_attained_by_stretching_the_truth():
    """f = m + s (f* - m): V - C^2 / V = Var f - Var f* exactly."""
    star = np.array([0.3, 0.45, 0.6])
    w = world([0.3, 0.3, 0.4], 0.5 + 2.0 * (star - 0.45), star)
    V, truth, C, _ = spreads(w)
    assert excess_variance(V, C) == pytest.approx(V - truth, rel=1e-12)


@pytest.mark.parametrize("high_weight", [0.5, 0.999])
def test_the_constant_is_approached(high_weight):
    w = two_points(0.05, 0.999, 1, 1e-7, -1e-7, high_weight)
    found = variance.of(w.moments(2, known=True))
    assert 0.99 <= share_of_slack(found, "upper") <= 1 + 1e-6
    assert found.upper.constant == pytest.approx(2 * (1 + w.mean(w.f)))  # near E_c f = 1 the paper's 4
    assert found.upper.paper_constant == 4


def test_constant_predictions_have_no_excess():
    w = world([0.5, 0.5], [0.3, 0.3], [0.1, 0.9])
    found = variance.of(w.moments(2, known=True)).scalar()
    assert found.estimate == pytest.approx(0, abs=1e-15)
    assert found.upper.signed == pytest.approx(0, abs=1e-15)
    assert found.holds
