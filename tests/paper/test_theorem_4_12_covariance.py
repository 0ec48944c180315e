"""Theorem 4.12 (spec 5.10): Var_c f - (1 + E_c f) alpha_c <= Cov_c(f, y) <= Var_c f* + (1 + E_c f) alpha_c."""

from fractions import Fraction

import numpy as np
import pytest

from lowcal.guarantees.theorems import covariance, unjustified
from paper.worlds import agree, keeps, scalar_worlds, share_of_slack, two_points, world


def test_holds_in_random_worlds():
    w = scalar_worlds()
    found = covariance.of(w.moments(2, known=True))
    f, star = w.mean(w.f), w.mean(w.star)
    keeps(found, w.mean((w.f - f[:, None]) * (w.star - star[:, None])))
    agree(found.lower.bound, w.mean((w.f - f[:, None]) ** 2) - (1 + f) * w.alpha_c(2))
    agree(found.upper.bound, w.mean((w.star - star[:, None]) ** 2) + (1 + f) * w.alpha_c(2))


def test_the_identity():
    """Cov_c(f, y) - Var_c f = e_1 - e_0 E_c f."""
    w = scalar_worlds()
    m = w.moments(2)
    direct = w.mean((w.f - w.mean(w.f)[:, None]) * (w.star - w.f))
    agree(-unjustified(m), direct)
    agree(covariance.of(m).lower.signed_bound, covariance.of(m).estimate)


@pytest.mark.parametrize("high_weight", [0.5, 0.999])
def test_both_constants_are_attained(high_weight):
    """e_0 = a, e_1 = -a; with E_c f near 1 the paper's 2 below, and 2 instead of its 6 above."""
    w = two_points(0.05, 0.999, 1, 1e-7, -1e-7, high_weight)
    found = covariance.of(w.moments(2, known=True))
    assert share_of_slack(found, "lower") == pytest.approx(1, abs=1e-6)
    assert 0.99 <= share_of_slack(found, "upper") <= 1 + 1e-6
    assert found.lower.constant == pytest.approx(1 + w.mean(w.f))
    assert (found.lower.paper_constant, found.upper.paper_constant) == (2, 6)


def test_no_world_comes_near_the_papers_6():
    w = scalar_worlds()
    found = covariance.of(w.moments(2, known=True))
    some = found.upper.alpha_c > 1e-9
    beyond = (found.estimate - found.upper.reference)[some] / found.upper.alpha_c[some]
    assert beyond.max() <= 2 + 1e-6


def test_the_parity_square():
    """Multiaccurate and yet Cov = -1/12 on x1 = 1: degree 2 is needed (Lemma 4.14)."""
    w = world([1 / 3, 1 / 3, 1 / 6, 1 / 6], [2 / 3, 1 / 3, 2 / 3, 1 / 3], [1, 0, 0, 1], c=[0, 0, 1, 1])
    found = covariance.of(w.moments(2)).scalar()
    assert found.estimate == pytest.approx(float(Fraction(-1, 12)), abs=1e-15)
    assert found.lower.signed == pytest.approx(float(Fraction(1, 9)), abs=1e-15)
    assert found.lower.reference == pytest.approx(float(Fraction(1, 36)), abs=1e-15)
    strict = covariance.of(w.moments(2), alpha=0.0).scalar()
    assert strict.holds is False
    assert strict.lower.allows(strict.estimate) is False
    assert np.isclose(float(w.moments(2).gap(0)), 0)
