"""Lemma 4.9 (spec 5.8): B_c(f, f) <= B_c(f*, f*) + K alpha_c I, and the identity behind it."""

from math import sqrt

import numpy as np
import pytest

from lowcal.guarantees.theorems import order, order_constant, second_moment, simplex_violation
from paper.worlds import agree, realise, scalar_worlds, second, share_of_slack, simplex_worlds, two_points

LABELS = [2, 3, 4, 5]


def largest(A):
    return np.linalg.eigvalsh(A)[..., -1]


def excess_of(w, f, star):
    return second(w, f, f) - second(w, star, star)


@pytest.mark.parametrize("n_labels", LABELS)
def test_holds_in_random_worlds(n_labels):
    w = simplex_worlds(n_labels)
    excess = excess_of(w, w.f, w.star)
    alpha_c = simplex_violation(w.f, w.star, w.member)
    found = order(second_moment(w.star - w.f, w.f, w.member), alpha_c, excess)
    eigenvalue = largest(excess)
    agree(found.estimate, eigenvalue)
    assert np.all(eigenvalue <= found.upper.bound + 1e-12)
    assert np.all(eigenvalue <= found.upper.signed_bound + 1e-12)
    assert np.all(found.upper.signed <= found.upper.slack + 1e-12)
    agree(found.upper.paper_slack, 2 * n_labels * alpha_c)
    assert found.upper.constant <= 2 * n_labels


@pytest.mark.parametrize("n_labels", LABELS)
def test_the_identity(n_labels):
    """B(f*, f*) - B(f, f) = M + M' + E[(f* - f)(f* - f)']."""
    w = simplex_worlds(n_labels)
    M, delta = second_moment(w.star - w.f, w.f, w.member), w.star - w.f
    agree(-excess_of(w, w.f, w.star), M + np.swapaxes(M, -1, -2) + second(w, delta, delta))


def test_the_scalar_convention_holds_in_random_worlds():
    w = scalar_worlds()
    f, star = (np.stack([1 - v, v], axis=-1) for v in (w.f, w.star))
    excess = excess_of(w, f, star)
    found = order(second_moment(star - f, f, w.member), w.alpha_c(2), excess, is_scalar=True)
    assert np.all(largest(excess) <= found.upper.bound + 1e-12)
    assert np.all(found.upper.signed <= found.upper.slack + 1e-12)


def test_what_the_data_show_is_approached_from_any_direction():
    """lambda_max(-(M + M')) is lost by E[(f* - f)(f* - f)'] only, which is of second order."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        M = rng.normal(size=(4, 4))
        w = realise(1e-6 * (M - M.mean(axis=0)))
        found = order(second_moment(w.star - w.f, w.f, w.member), np.asarray(1.0), excess_of(w, w.f, w.star))
        assert found.estimate >= 0.99 * found.upper.signed > 0


def test_the_scalar_constant_is_approached():
    w = two_points(0.2, 0.8, 1, 1e-6, -1e-6)
    f, star = (np.stack([1 - v, v], axis=-1) for v in (w.f, w.star))
    found = order(
        second_moment(star - f, f, w.member), w.moments(2).violation(2), excess_of(w, f, star), is_scalar=True
    )
    assert 0.99 <= share_of_slack(found, "upper") <= 1 + 1e-6
    assert found.upper.constant == pytest.approx(3 + sqrt(10))


def test_the_constant_for_the_whole_class_is_below_the_other_bounds():
    for n in range(2, 30):
        assert order_constant(n) == pytest.approx(1 + sqrt(n) + sqrt(n - 1))
        assert order_constant(n) < 2 * (1 + sqrt(n))
        assert order_constant(n) <= 2 * n


@pytest.mark.parametrize("n_labels", [6, 9])
def test_its_proof_step_by_step(n_labels):
    """-u'M u <= (the two weights of the proof) <= K / 2 times the supremum, for u drawn and u at its worst."""
    rng = np.random.default_rng(n_labels)
    for _ in range(300):
        u = rng.normal(size=n_labels) * 10.0 ** rng.uniform(-1.5, 0, n_labels)
        u[0] += rng.choice([0, np.linalg.norm(u)])
        u /= np.linalg.norm(u)
        up, down = np.maximum(u, 0), np.maximum(-u, 0)
        same = max(up.max() * up.sum(), down.max() * down.sum())
        other = max(up.max() * down.sum(), down.max() * up.sum())
        assert same <= (1 + sqrt(n_labels)) / 2 + 1e-12
        assert other <= sqrt(n_labels - 1) / 2 + 1e-12
