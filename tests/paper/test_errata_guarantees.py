"""The paper's slips in its Section 4: each printed step that fails, with numbers, and what holds instead (spec 9)."""

import numpy as np
import pytest

from lowcal.guarantees import group_moments
from lowcal.guarantees.theorems import (
    covariance,
    cross_moment,
    moment_sandwich,
    order,
    second_moment,
    set_rate,
    simplex_violation,
    true_positive_rate,
    variance,
)
from paper.worlds import Worlds, realise, scalar_worlds, second, simplex_worlds, two_points, world


# ------------------------------------------------------------------------------------------------ 9.d
def overconfident(mass):
    """Corners against (0.8, 0.2), on a subpopulation of this mass; nothing else is wrong."""
    f = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    star = np.array([[0.8, 0.2], [0.2, 0.8], [0.5, 0.5]])
    return Worlds(np.array([mass / 2, mass / 2, 1 - mass]), np.array([1.0, 1.0, 0.0]), f, star)


def test_d_the_psd_order_needs_alpha_c():
    w = overconfident(0.05)
    alpha_c = simplex_violation(w.f, w.star, w.member)
    excess = second(w, w.f, w.f) - second(w, w.star, w.star)
    found = order(second_moment(w.star - w.f, w.f, w.member), alpha_c, excess).scalar()
    printed = 2 * 2 * float(alpha_c) * 0.05
    assert found.estimate == pytest.approx(0.32)
    assert printed == pytest.approx(0.04)
    assert found.estimate > printed  # with alpha it fails
    assert found.holds  # with alpha_c it holds


def test_d_the_proof_must_add_absolute_values():
    w = overconfident(1.0)
    M, u = second_moment(w.star - w.f, w.f, w.member), np.array([1, -1]) / np.sqrt(2)
    alpha_c = np.abs(M).max()
    assert -(u @ M @ u) > alpha_c * np.outer(u, u).sum() + 0.1
    assert -(u @ M @ u) <= alpha_c * np.abs(np.outer(u, u)).sum() + 1e-12


# ------------------------------------------------------------------------------------------------ 9.e
def test_e_the_set_rate_divides_by_the_outcomes():
    """tau is a mean over y_L = 1. The printed divisor E_c[f_L] is another number, though no world refutes it."""
    n_labels, size = 4, 2
    w = simplex_worlds(n_labels)
    f, star = (v[..., :size].sum(axis=-1) for v in (w.f, w.star))
    stars = np.stack([w.mean(star**j) for j in range(3)])
    alpha_c = simplex_violation(w.f, w.star, w.member)
    found = set_rate(group_moments(f, star, w.member, 2, stars), n_labels, size, alpha_c)
    np.testing.assert_allclose(found.upper.divisor, w.mean(star), rtol=1e-9)
    assert np.abs(found.upper.divisor - w.mean(f)).max() > 0.5
    there = (w.mean(star) > 1e-9) & (w.mean(f) > 1e-9)
    printed = found.upper.reference + 2 * n_labels * size**2 * alpha_c / np.where(there, w.mean(f), 1.0)
    assert np.all((found.estimate <= printed + 1e-9)[there])
    assert np.median((printed - found.upper.reference)[there] / found.upper.slack[there]) > 10  # true, and loose


def test_e_a_correct_chain_exceeds_the_printed_constant_for_one_label_and_the_sharp_one_does_not():
    for n_labels in (3, 4, 10):
        assert 2 * n_labels * 1 + 1**2 > 2 * n_labels * 1**2
    m = group_moments(np.array([0.5]), np.array([0.4]), np.ones(1), 2)
    found = set_rate(m, 3, 1, np.asarray(0.1))
    assert found.upper.constant == 1
    assert found.upper.paper_constant == 6


# ------------------------------------------------------------------------------------------------ 9.f
def test_f_the_variance_proof_confuses_the_square_of_the_mean_with_the_mean_square():
    w = world([0.5, 0.5], [0.0, 1.0], [0.0, 1.0])
    assert w.alpha_c(2) == 0
    assert abs(w.mean(w.f) ** 2 - w.mean(w.star**2)) == pytest.approx(0.25)  # printed as at most 2 alpha_c = 0
    assert abs(w.mean(w.f) ** 2 - w.mean(w.star) ** 2) == 0  # what is meant
    assert variance.of(w.moments(2, known=True)).scalar().holds


# ------------------------------------------------------------------------------------------------ 9.g
def test_g_bernoullis_inequality_fails_beyond_2_and_the_statement_does_not_need_it():
    assert (1 - 4) ** 3 == -27 < 1 - 3 * 4
    w = world([1], [0.1], [1.0])  # alpha_c = 0.9 is 900 times E f^3
    found = moment_sandwich.of(w.moments(3, known=True), 3).scalar()
    assert found.upper.alpha_c / found.estimate > 2
    assert found.holds
    low = world([1], [0.1], [0.0])
    assert moment_sandwich.of(low.moments(3, known=True), 3).scalar().holds


# ------------------------------------------------------------------------------------------------ 9.p
@pytest.mark.parametrize("d", [1, 2, 3])
def test_p_the_higher_rates_slack_is_neither_the_corollarys_nor_the_printed(d):
    w = world([1], [1.0], [1 - 1e-4])
    cross = cross_moment.of(w.moments(d + 1, known=True), d + 1)
    rate = true_positive_rate.of(w.moments(d + 1, known=True), d)
    assert cross.upper.paper_constant == d + 2  # what the corollary gives; the lemma prints d + 1, and 3 at d = 1
    assert rate.upper.paper_constant == (3 if d == 1 else d + 1)
    assert rate.upper.constant == d


# ------------------------------------------------------------------------------------------------ 9.q
def test_q_the_overviews_chain_must_be_conditional_on_c():
    f, c, weight = np.array([0.1, 0.9]), np.array([1.0, 0.0]), np.array([0.5, 0.5])
    printed = weight @ (c * f * f) / (weight @ f)
    assert weight @ (c * f) == pytest.approx(0.05)
    assert printed == pytest.approx(0.01)
    found = true_positive_rate.of(world(weight, f, f, c).moments(2)).scalar()
    assert found.estimate == pytest.approx(0.1)
    assert found.lower.allows(found.estimate)


# ------------------------------------------------------------------------------------------------ 9.v
def test_v_the_printed_constants_are_true_and_loose():
    w = scalar_worlds()
    m = w.moments(3, known=True)
    some = w.alpha_c(2) > 1e-6

    def worst(found, alpha_c):
        return ((found.estimate - found.upper.reference)[some] / alpha_c[some]).max()

    for found, sharp, printed in (
        (cross_moment.of(m, 3), 2, 4),
        (cross_moment.of(m, 2), 1, 3),
        (covariance.of(m), 2, 6),
    ):
        assert found.upper.paper_constant == printed
        assert worst(found, found.upper.alpha_c) <= sharp + 1e-6


# ------------------------------------------------------------------------------------------------ 9.u
def test_u_scalar_and_simplex_alphas_differ():
    """e_0 = a, e_1 = -a: the printed 2 l alpha_c fails at the scalar alpha; 3 + sqrt(10) holds."""
    w = two_points(0.2, 0.8, 1, 1e-6, -1e-6)
    f, star = (np.stack([1 - v, v], axis=-1) for v in (w.f, w.star))
    excess = second(w, f, f) - second(w, star, star)
    found = order(second_moment(star - f, f, w.member), w.moments(2).violation(2), excess, is_scalar=True).scalar()
    assert found.estimate > 1.5 * found.upper.paper_slack
    assert found.holds


def test_realised_worlds_are_what_they_claim():
    M = np.array([[-2.0, 1.0, 0.5], [1.0, -2.0, 0.5], [1.0, 1.0, -1.0]]) * 1e-3
    w = realise(M)
    np.testing.assert_allclose(second(w, w.star - w.f, w.f), M, atol=1e-15)
