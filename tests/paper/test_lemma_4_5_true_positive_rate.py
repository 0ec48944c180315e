"""Lemma 4.5 (spec 5.5): the true positive rate, and its mirror image, the false positive rate."""

import numpy as np
import pytest

from lowcal.guarantees.theorems import false_positive_rate, true_positive_rate
from paper.worlds import agree, keeps, scalar_worlds, share_of_slack, two_points, world


def some_outcome(values):
    return values > 1e-9


def test_holds_in_random_worlds():
    w = scalar_worlds()
    share = w.mean(w.star)
    there = some_outcome(share)
    assert there.mean() > 0.9
    safe = np.where(there, share, 1.0)
    found = true_positive_rate.of(w.moments(2, known=True), 1)
    keeps(found, w.mean(w.f * w.star) / safe, there)
    alpha_c, f = w.alpha_c(2), w.mean(w.f)
    agree(found.upper.bound[there], ((w.mean(w.star**2) + alpha_c) / safe)[there])
    agree(found.lower.bound[there], (f - (1 + f) * alpha_c / safe)[there])
    assert np.isnan(found.estimate[share == 0]).all()


def test_the_false_positive_rate_holds_in_random_worlds():
    w = scalar_worlds()
    share = w.mean(1 - w.star)
    there = some_outcome(share)
    assert there.mean() > 0.9
    safe = np.where(there, share, 1.0)
    found = false_positive_rate.of(w.moments(2, known=True))
    # 1 - E_c y is a difference, known up to rounding only
    there &= share > 1e-6
    keeps(found, w.mean(w.f * (1 - w.star)) / safe, there)
    alpha_c, f = w.alpha_c(2), w.mean(w.f)
    agree(found.upper.bound[there], (f + (1 + f) * alpha_c / safe)[there])
    own = w.mean(w.star * (1 - w.star)) / safe
    np.testing.assert_allclose(found.lower.bound[there], (own - 2 * alpha_c / safe)[there], atol=1e-8)


def test_the_upper_constant_is_1_and_not_the_papers_3():
    w = world([1], [1.0], [1 - 1e-4])
    found = true_positive_rate.of(w.moments(2, known=True), 1)
    assert 0.99 <= share_of_slack(found, "upper") <= 1 + 1e-9
    assert (found.upper.constant, found.upper.paper_constant) == (1, 3)


@pytest.mark.parametrize("t", [0.4, 0.99])
def test_the_lower_constant_is_approached(t):
    w = two_points(t - 1e-6, t + 1e-6, 1, 2e-9, -2e-9)
    found = true_positive_rate.of(w.moments(2))
    assert 0.99 <= share_of_slack(found, "lower") <= 1 + 1e-6
    agree(found.lower.constant, 1 + t)
    assert found.lower.paper_constant == 2


def test_the_constants_of_the_false_positive_rate_are_approached():
    spread_out = two_points(0.2, 0.8, 1, 1e-6, -1e-6)
    found = false_positive_rate.of(spread_out.moments(2, known=True))
    assert 0.99 <= share_of_slack(found, "lower") <= 1 + 1e-6
    close = two_points(0.9 - 1e-6, 0.9 + 1e-6, 1, 2e-9, -2e-9)
    assert 0.99 <= share_of_slack(false_positive_rate.of(close.moments(2)), "upper") <= 1 + 1e-6


def test_the_70_30_example():
    w = world([0.5, 0.5], [1.0, 0.0], [0.7, 0.3])
    positive, negative = (
        rate.scalar()
        for rate in (
            true_positive_rate.of(w.moments(2, known=True), 1),
            false_positive_rate.of(w.moments(2, known=True)),
        )
    )
    assert positive.estimate == pytest.approx(0.7)
    assert positive.upper.reference == pytest.approx(0.58)
    assert negative.estimate == pytest.approx(0.30)
    assert negative.lower.reference == pytest.approx(0.42)
    assert positive.holds
    assert negative.holds


def test_no_outcome_gives_nan_and_no_verdict():
    w = world([0.5, 0.5], [0.2, 0.8], [0.0, 0.0])
    found = true_positive_rate.of(w.moments(2, known=True), 1).scalar()
    assert np.isnan(found.estimate)
    assert np.isnan(found.slack)
    assert found.holds is None
