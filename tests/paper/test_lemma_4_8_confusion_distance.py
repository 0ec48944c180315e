"""Lemma 4.8 (spec 5.7): max |B_c(f*, f) - B_c(f, f)| <= alpha_c on the simplex, 2 alpha_c in the scalar convention."""

import numpy as np
import pytest

import definition
from lowcal.guarantees.theorems import distance, second_moment, simplex_violation
from paper.worlds import agree, keeps, realise, scalar_worlds, second, share_of_slack, simplex_worlds, two_points

LABELS = [2, 3, 4]


@pytest.mark.parametrize("n_labels", LABELS)
def test_holds_in_random_worlds(n_labels):
    w = simplex_worlds(n_labels)
    expected = second(w, w.star - w.f, w.f)
    M = second_moment(w.star - w.f, w.f, w.member)
    agree(M, expected)
    agree(M.sum(axis=-2), 0.0)
    found = distance(M, simplex_violation(w.f, w.star, w.member))
    keeps(found, np.abs(expected).max(axis=(-2, -1)))


def test_the_violation_is_that_of_the_definition():
    """The measured alpha_c of a few worlds against linear programs over all of W_2."""
    for n_labels in LABELS:
        w = simplex_worlds(n_labels)
        found = simplex_violation(w.f[:12], w.star[:12], w.member[:12])
        for i in range(12):
            residuals = (w.member[i] / w.member[i].sum())[:, None] * (w.star[i] - w.f[i])
            if np.abs(residuals).max() > 1e-7:
                assert found[i] == pytest.approx(definition.degree(residuals, w.f[i], 2), rel=1e-6)


def test_the_scalar_convention_holds_in_random_worlds():
    w = scalar_worlds()
    f, star = (np.stack([1 - v, v], axis=-1) for v in (w.f, w.star))
    M = second_moment(star - f, f, w.member)
    keeps_scalar = distance(M, w.alpha_c(2), is_scalar=True)
    size = np.abs(second(w, star - f, f)).max(axis=(-2, -1))
    assert np.all(size <= keeps_scalar.bound + 1e-12)
    agree(keeps_scalar.bound, 2 * w.alpha_c(2))


@pytest.mark.parametrize("n_labels", LABELS)
def test_the_constant_1_is_attained(n_labels):
    M = np.zeros((n_labels, n_labels))
    M[0, 0], M[1, 0] = -1e-3, 1e-3
    w = realise(M)
    found = distance(second_moment(w.star - w.f, w.f, w.member), simplex_violation(w.f, w.star, w.member))
    assert share_of_slack(found, "upper") == pytest.approx(1, abs=1e-6)


def test_the_scalar_constant_2_is_attained_and_the_printed_1_fails_there():
    w = two_points(0.2, 0.8, 1, 1e-3, -1e-3)
    f, star = (np.stack([1 - v, v], axis=-1) for v in (w.f, w.star))
    found = distance(second_moment(star - f, f, w.member), w.moments(2).violation(2), is_scalar=True)
    assert share_of_slack(found, "upper") == pytest.approx(1, abs=1e-9)
    assert found.estimate > 1.99 * found.upper.paper_slack
