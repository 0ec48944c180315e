"""Lemma 4.11 (spec 5.9): the true positive rate of a set of labels."""

import numpy as np
import pytest

from lowcal.guarantees import group_moments
from lowcal.guarantees.theorems import set_constant, set_rate, simplex_violation
from paper.worlds import agree, keeps, realise, second, share_of_slack, simplex_worlds

SETS = [(3, 1), (3, 2), (4, 2), (4, 3), (5, 2), (5, 3), (4, 4)]


def rate_of(w, n_labels, size):
    f, star = (v[..., :size].sum(axis=-1) for v in (w.f, w.star))
    stars = np.stack([w.mean(star**j) for j in range(3)])
    moments = group_moments(f, star, w.member, 2, stars)
    return set_rate(moments, n_labels, size, simplex_violation(w.f, w.star, w.member)), f, star


@pytest.mark.parametrize(("n_labels", "size"), SETS)
def test_holds_in_random_worlds(n_labels, size):
    w = simplex_worlds(n_labels)
    found, f, star = rate_of(w, n_labels, size)
    share = w.mean(star)
    there = share > 1e-9
    safe = np.where(there, share, 1.0)
    keeps(found, w.mean(f * star) / safe, there)
    agree(found.upper.reference[there], (w.mean(star**2) / safe)[there])
    agree(found.lower.reference[there], w.mean(f)[there])


@pytest.mark.parametrize(("n_labels", "size"), SETS)
def test_the_moment_of_the_set_is_a_block_of_the_gap_and_bounded(n_labels, size):
    """E_c[f_L y_L] - E_c[f_L^2] = 1'M_LL 1, at most K alpha_c."""
    w = simplex_worlds(n_labels)
    _, f, star = rate_of(w, n_labels, size)
    block = second(w, w.star - w.f, w.f)[:, :size, :size].sum(axis=(1, 2))
    agree(w.mean(f * (star - f)), block)
    alpha_c = simplex_violation(w.f, w.star, w.member)
    assert np.all(np.abs(block) <= set_constant(n_labels, size) * alpha_c + 1e-12)


@pytest.mark.parametrize(("n_labels", "size"), [(n, s) for n in (2, 3, 4, 5, 6) for s in range(1, n)])
def test_the_constant_for_the_class_is_that_of_the_proof(n_labels, size):
    """The weight of the proof is one of W_2, and its violation is that of the set over K."""
    rng, rest = np.random.default_rng(0), n_labels - size
    f = np.vstack([rng.dirichlet(np.ones(n_labels), 50), np.eye(n_labels)])
    residual = rng.dirichlet(np.ones(n_labels), len(f)) - f
    of_set = f[:, :size].sum(axis=1)
    inside, outside = ((rest - 1) * of_set / size + 1) / rest, (1 - of_set) / rest
    weight = np.where(np.arange(n_labels) < size, inside[:, None], outside[:, None])
    assert weight.min() >= -1e-12
    assert weight.max() <= 1 + 1e-12
    block = of_set * residual[:, :size].sum(axis=1)
    np.testing.assert_allclose((weight * residual).sum(axis=1), block / set_constant(n_labels, size), atol=1e-12)


def worst_for_the_class(n_labels, size):
    """1'M_LL 1 = -1 at the smallest degree-2 violation."""
    rest, t = n_labels - size, (size - 1) / size
    M = np.zeros((n_labels, n_labels))
    if rest == 1:
        M[0, 0], M[-1, 0] = -1, 1
        return M
    M[:size, :size], M[:size, size:] = -1 / size**2, t / (size * rest)
    M[size:, :size], M[size:, size:] = 1 / (size * rest), -t / rest**2
    return M


@pytest.mark.parametrize(("n_labels", "size"), [(3, 1), (3, 2), (4, 2), (4, 3), (5, 2), (5, 3), (6, 3)])
def test_the_constant_for_the_class_is_approached(n_labels, size):
    w = realise(1e-6 * worst_for_the_class(n_labels, size))
    found, _, _ = rate_of(w, n_labels, size)
    assert 0.99 <= share_of_slack(found, "upper") <= 1 + 1e-6
    assert found.upper.constant == pytest.approx(size * (n_labels - size) / (n_labels - 1))
    assert found.upper.constant <= min(size, n_labels + 1 - size)  # the simpler bound
    assert found.upper.paper_constant == 2 * n_labels * size**2


@pytest.mark.parametrize(("n_labels", "size"), [(3, 1), (4, 2), (5, 3)])
def test_the_lower_constant_for_the_class_is_approached_by_predictions_that_hardly_differ(n_labels, size):
    base = np.r_[np.full(size, 0.004 / size), np.full(n_labels - size, 0.996 / (n_labels - size))]
    w = realise(1e-11 * worst_for_the_class(n_labels, size), base, spread=1e-7)
    found, _, _ = rate_of(w, n_labels, size)
    assert 0.99 <= share_of_slack(found, "lower") <= 1 + 1e-3


def test_the_set_of_all_labels_has_rate_1_and_no_slack():
    w = simplex_worlds(4)
    found, _, _ = rate_of(w, 4, 4)
    agree(found.estimate, 1.0)
    assert np.all(found.upper.slack == 0)
