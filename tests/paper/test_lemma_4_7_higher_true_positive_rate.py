"""Lemma 4.7 (spec 5.6): E_c[f^d | y = 1] <= E_c[f*^d | y = 1] + d alpha_c / E_c[y], and its lower side."""

import numpy as np
import pytest

from lowcal.guarantees.theorems import true_positive_rate
from paper.worlds import agree, keeps, scalar_worlds, share_of_slack, two_points, world


@pytest.mark.parametrize("d", [2, 3])
def test_holds_in_random_worlds(d):
    w = scalar_worlds()
    share = w.mean(w.star)
    there = share > 1e-9
    safe = np.where(there, share, 1.0)
    found = true_positive_rate.of(w.moments(d + 1, known=True), d)
    keeps(found, w.mean(w.f**d * w.star) / safe, there)
    alpha_c, moment = w.alpha_c(d + 1), w.mean(w.f**d)
    agree(found.upper.bound[there], ((w.mean(w.star ** (d + 1)) + d * alpha_c) / safe)[there])
    agree(found.lower.bound[there], (moment - (1 + moment) * alpha_c / safe)[there])


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_upper_constant_d_is_approached(d):
    w = world([1], [1.0], [1 - 1e-4])
    found = true_positive_rate.of(w.moments(d + 1, known=True), d)
    assert 0.99 <= share_of_slack(found, "upper") <= 1 + 1e-9
    assert found.upper.constant == d
    assert found.upper.paper_constant == (3 if d == 1 else d + 1)


@pytest.mark.parametrize("d", [2, 3])
def test_the_lower_constant_is_approached(d):
    w = two_points(0.99 - 1e-6, 0.99 + 1e-6, d, 2e-9, -2e-9)
    found = true_positive_rate.of(w.moments(d + 1), d)
    assert 0.99 <= share_of_slack(found, "lower") <= 1 + 1e-6
    assert found.lower.paper_constant == 2
