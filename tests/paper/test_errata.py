"""Spec 9, outside the moment guarantees: each printed statement fails on an example, and the code's holds."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import comb, log

import numpy as np
import pytest
from scipy.optimize import linprog

import definition
import hierarchy_worlds as worlds
import lowcal
from lowcal import metrics
from lowcal.datasets import parity_square, two_halves
from lowcal.hierarchy import (
    basis_to_class,
    binary_to_simplex,
    implied_alpha,
    robustness,
)
from lowcal.kernels.simplex import brier, project, width
from lowcal.notions.weights import monomials
from worlds import multicalibrate

POINTS = [(0, 0), (0, 1), (1, 0), (1, 1)]
WEIGHT = [Fraction(1, 3), Fraction(1, 3), Fraction(1, 6), Fraction(1, 6)]


# --------------------------------------------------------------------------------------------------- 9.a counterexample
def accuracy_errors(f: dict[tuple[int, int], Fraction], y: dict[tuple[int, int], int]) -> list[Fraction]:
    """Return E[c (y - f)] for the four subpopulations x_i = b."""
    return [
        sum(w * (y[x] - f[x]) for x, w in zip(POINTS, WEIGHT, strict=True) if x[i] == b)
        for i, b in product((0, 1), (0, 1))
    ]


def test_9a_the_printed_predictions_are_those_of_xnor_and_the_coefficients_those_of_xor() -> None:
    printed = {x: Fraction(2, 3) if x[1] == 0 else Fraction(1, 3) for x in POINTS}
    coefficients = {
        x: Fraction(1, 2) + (Fraction(1, 6) if x[1] == 1 else -Fraction(1, 6)) for x in POINTS
    }  # lambda_{2,1} = 1/6
    xor = {x: x[0] ^ x[1] for x in POINTS}
    xnor = {x: 1 - xor[x] for x in POINTS}
    assert printed != coefficients
    assert any(accuracy_errors(printed, xor))  # the text's labels, the printed predictions: not multiaccurate
    assert not any(accuracy_errors(printed, xnor))
    assert not any(accuracy_errors(coefficients, xor))
    for f, y in ((printed, xnor), (coefficients, xor)):
        inside = [(1, 0), (1, 1)]
        mean_f, mean_y = (sum(Fraction(h[x]) for x in inside) / 2 for h in (f, y))
        assert sum(f[x] * y[x] for x in inside) / 2 - mean_f * mean_y == Fraction(-1, 12)
    for labels in ("xnor", "xor"):
        world = parity_square(labels)
        options = {"subpopulations": lowcal.Groups(min_mass=0), "sample_weight": world.sample_weight}
        assert metrics.multiaccuracy_error(world.y, world.p, world.X, **options) < 1e-15
        assert metrics.degree_error(world.y, world.p, world.X, **options) == pytest.approx(1 / 27)


# --------------------------------------------------------------------------------------------- 9.b, 9.c basis and class
@pytest.mark.parametrize("l", [4, 5, 8])
def test_9b_multiaccuracy_is_not_degree_one(l: int) -> None:  # noqa: E741
    half = l // 2
    v = [Fraction(1)] * half + [Fraction(-1)] * half + [Fraction(0)] * (l % 2)
    best = max(sum(x for x, chosen in zip(v, corner, strict=True) if chosen) for corner in product((0, 1), repeat=l))
    assert best == half > max(v)
    assert implied_alpha("multiaccuracy", "degree-1", 1.0, l) == half
    # the printed factor, 1, is false
    p = np.full((1, l), 1 / l) + 0.5 / l * np.array(v, dtype=float)
    y = np.full((1, l), 1 / l)
    assert metrics.degree_error(y, p, degree=1) == pytest.approx(half * metrics.multiaccuracy_error(y, p))


@pytest.mark.parametrize("l", [3, 4, 10])
def test_9c_monomials_do_not_suffice_at_the_same_alpha(l: int) -> None:  # noqa: E741
    """E[f_i (y_a - f_a)] is the same number on the diagonal; w(z) = z adds up all l of them."""
    said, truth = Fraction(2, 5), Fraction(7, 10)  # the lift of the favoured label over 1 / l
    moment = {
        (i, a): sum((said * (x == i) + (1 - said) / l) * (truth - said) * ((x == a) - Fraction(1, l)) for x in range(l))
        / l
        for i, a in product(range(l), repeat=2)
    }
    largest = max(abs(m) for m in moment.values())
    assert sum(moment[a, a] for a in range(l)) == l * largest > largest
    eye = np.eye(l)
    p, y = 0.4 * eye + 0.6 / l, 0.7 * eye + 0.3 / l
    assert metrics.degree_error(y, p) == pytest.approx(float(l * largest))
    assert basis_to_class("degree-2", float(largest), l) == pytest.approx(float(l * largest))


# ------------------------------------------------------------------------------------------------------- 9.h iterations
def test_9h_more_rounds_than_l_over_alpha_squared() -> None:
    """Three labels, truth e_1; a learner that always gains just alpha / 2: more than l / alpha^2 rounds (Prop. 5.5)."""
    l, alpha = 3, 0.1  # noqa: E741
    f, rounds = np.full((1, l), 1 / l), 0
    while 1 - f[0, 0] > alpha:
        c = alpha / 2 / (1 - f[0, 0])
        assert 0 <= c <= 1
        f = project(f + alpha / (2 * l) * c * np.eye(l)[:1])
        rounds += 1
    assert l / alpha**2 < rounds <= 8 * l / alpha**2


@pytest.mark.parametrize("l", [2, 3, 4, 7])
def test_9h_the_constants_of_the_potential(l: int) -> None:  # noqa: E741
    """phi(f_0) = 1 - 1/l, not 2; ||w - mean||^2 <= floor(l/2) ceil(l/2) / l, not l."""
    start = np.full((1, l), 1 / l)
    assert brier(start, np.eye(l)[:1], np.ones(1)) == pytest.approx(1 - 1 / l)
    corners = [[Fraction(int(b)) for b in format(k, f"0{l}b")] for k in range(2**l)]
    largest = max(sum((x - sum(w) / l) ** 2 for x in w) for w in corners)
    assert float(largest) == pytest.approx(width(l))
    assert largest <= Fraction(l, 4)


def test_9h_the_projection_gains_more_than_printed() -> None:
    """The first "=" of the progress is ">=": the projection takes part of the step away, and the loss with it."""
    truth, f, step = np.array([[1.0, 0.0]]), np.array([[0.9, 0.1]]), np.array([[0.4, 0.0]])
    raw, moved = np.sum((truth - f - step) ** 2), np.sum((truth - project(f + step)) ** 2)
    assert moved < raw - 0.05
    rng = np.random.default_rng(0)
    v, z = rng.normal(size=(500, 4)), rng.dirichlet(np.ones(4), 500)
    kept = ((v - project(v)) ** 2).sum(axis=1)
    assert (((z - project(v)) ** 2).sum(axis=1) <= ((z - v) ** 2).sum(axis=1) - kept + 1e-12).all()


# -------------------------------------------------------------------------------------------------- 9.i, 9.k, 9.l cells
def test_9i_the_last_interval_is_closed() -> None:
    """Half-open cells [(j - 1)/10, j/10) miss f = 1, and with it a predictor that is always wrong."""
    assert not any(Fraction(j - 1, 10) <= 1 < Fraction(j, 10) for j in range(1, 11))
    y, p = np.array([0, 0, 0, 1]), np.ones(4)
    printed = sum(abs(np.mean((p >= (j - 1) / 10) * (p < j / 10) * (y - p))) for j in range(1, 11))
    assert printed == 0
    assert metrics.full_error(y, p, width=0.1) == 0.75


def test_9k_scalar_indicators_see_nothing() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(4), 50), np.eye(4)[rng.integers(0, 4, 50)]
    cells = [(p >= low).all(axis=1) & (p < low + 0.5).all(axis=1) for low in (0.0, 0.5)]
    assert max(abs((c[:, None] * (y - p)).sum()) for c in cells) < 1e-12  # <1, y - f> = 0 in every cell
    hot = y.argmax(axis=1)
    assert metrics.full_error(hot, p, width=0.5) == pytest.approx(
        definition.supremum("full-0.5", np.ones((50, 1)), y, p)
    )
    assert metrics.full_error(hot, p, width=0.5) > 0.05


def test_9l_a_cell_needs_more_than_one_coefficient() -> None:
    """One occupied cell, four labels: beta L + l delta with L = 1 is exceeded, with floor(l/2) it is not."""
    p, y = np.full((1, 4), 0.25) + 0.1 * np.array([[1, 1, -1, -1]]), np.full((1, 4), 0.25)
    w = worlds.single([1.0], p, y)
    beta, delta = worlds.full_cell(w, 100)[0], 0.01
    actual = definition.class_supremum("smooth", *w.one(0))
    assert actual > beta + 4 * delta
    assert actual <= implied_alpha("full-0.01", "smooth", 4 // 2 * beta, 4, per_cell=False)
    # and the centre of the cube [0, 1/2)^3, which meets the simplex, lies off it
    assert 3 * Fraction(1, 4) != 1


# ------------------------------------------------------------------------------------------------- 9.j the weak learner
def test_9j_a_one_sided_promise_can_not_be_kept() -> None:
    """C = {1} and residuals of -1/2: |E[c z]| > alpha, yet no c has E[c z] >= alpha / 2."""
    z, alpha = np.full(40, -0.5), 0.1
    assert abs(z.mean()) > alpha
    assert not z.mean() >= alpha / 2
    learner = lowcal.Memberships(min_mass=0).prepare(np.ones((40, 1)))
    found = learner.search(z, alpha)
    assert found is not None
    assert found.sign == -1.0
    assert found.violation == pytest.approx(0.5)
    assert learner.search(z, 0.6) is None  # bottom only if every |E[c z]| <= alpha
    fit = multicalibrate(np.array([0, 0, 0, 1] * 10), np.full(40, 0.9), notion="multiaccuracy", alpha=0.01)
    assert fit.status == "reached"


# ----------------------------------------------------------------------------------------------- 9.m, 9.t the hierarchy
@pytest.mark.parametrize("k", [4, 10, 50])
def test_9m_binary_full_needs_a_square_of_k(k: int) -> None:
    """(alpha/k)-smooth through one width takes alpha^2 / (4 k^2), sharp / (2 k^2), not of order alpha^2 / k."""
    alpha = 0.1
    sharp, wanted = alpha**2 / (2 * k**2), alpha**2 / (2 * k)
    assert implied_alpha(lowcal.Full(alpha / k), "smooth", sharp) == pytest.approx(alpha / k)
    most = max((alpha / k - width) * width for width in 1 / np.arange(1, 20 * k))  # alpha delta - delta^2, as printed
    assert most == pytest.approx(alpha**2 / (4 * k**2), rel=1e-2)
    for beta in (1.01 * sharp, wanted):
        assert all(implied_alpha(lowcal.Full(1 / n), "smooth", beta) > alpha / k for n in range(1, 20 * k, 3))
    # for degree k + 1 directly it is right
    assert implied_alpha(lowcal.Full(alpha / k), f"degree-{k + 1}", wanted) == pytest.approx(alpha)


def test_9t_the_constant_k_minus_one_is_zero_at_one() -> None:
    """A constant predictor that is off: smooth at 1/4, and degree 1 at 1/4, not at 0."""
    w = worlds.single([1.0], np.array([0.25]), np.array([0.5]))
    assert worlds.smooth(w)[0] == worlds.degree(w, 1)[0] == 0.25 > (1 - 1) * 0.25
    for constants in ("sharp", "best"):
        assert implied_alpha("smooth", "degree-1", 0.25, constants=constants) == 0.25
    assert implied_alpha("smooth", "degree-3", 0.25, 3) == 0.25  # the simplex: max(1, (k - 1) / 2)


# ------------------------------------------------------------------------------------------------------ 9.n, 9.o counts
@pytest.mark.parametrize(("l", "k", "count"), [(10, 2, 660), (3, 2, 30), (5, 3, 280)])
def test_9n_the_number_of_monomials(l: int, k: int, count: int) -> None:  # noqa: E741
    listed = sum(1 for j in range(k + 1) for _ in combinations_with_replacement(range(l), j))
    assert l * listed == l * comb(l + k, k) == l * len(monomials(l, k)) == count
    assert count > l**k  # what the paper counts


@pytest.mark.parametrize("l", [2, 3, 5])
def test_9o_copies_for_each_coordinate_are_no_basis_of_weight_one(l: int) -> None:  # noqa: E741
    """sum_i lambda_i b_i e_a with sum |lambda| <= 1 stays 1 - 1/l away from the weight (1, .., 1)."""
    # variables: lambda_1..lambda_l >= 0 (b = 1 is the best scalar) and the distance t
    A = np.block([[-np.eye(l), -np.ones((l, 1))], [np.ones((1, l)), np.zeros((1, 1))]])
    b = np.concatenate([-np.ones(l), [1.0]])
    nearest = linprog(np.eye(l + 1)[l], A_ub=A, b_ub=b, bounds=(0, None)).fun
    assert nearest == pytest.approx(1 - 1 / l)
    # the product of l scalar bases B holds it: |B|^l functions, not l |B|
    cubes, values = (3 * l * 4) ** (l - 1), 3 * 4 + 1  # eta = 1/4
    assert l * cubes * log(values) > log(l) + cubes * log(values)
    if l == 2:
        assert len(set(product(range(3), repeat=l))) == 3**l > l * 3


# --------------------------------------------------------------------------------------------------- 9.r, 9.s, 9.u, 9.w
def test_9r_the_false_positive_rate_of_the_truth() -> None:
    """0.42; the printed 0.58 is its true positive rate. The conclusion 0.30 < 0.42 stands."""
    truth, said = (Fraction(7, 10), Fraction(3, 10)), (Fraction(1), Fraction(0))

    def rate(f: tuple[Fraction, Fraction], label: int) -> Fraction:
        chance = [t if label else 1 - t for t in truth]
        return sum(x * q for x, q in zip(f, chance, strict=True)) / sum(chance)

    assert (rate(truth, 0), rate(truth, 1), rate(said, 0)) == (Fraction(42, 100), Fraction(58, 100), Fraction(3, 10))
    world = two_halves()
    negative = world.sample_weight * (world.y == 0)
    assert np.average(world.f_star, weights=negative) == pytest.approx(0.42)
    assert np.average(world.p, weights=negative) == pytest.approx(0.30)


def test_9s_the_absolute_value_belongs_inside() -> None:
    """max |c| |E[diff]| = 0 < |E[c diff]| for diff = (.1, -.1), c = (1, 0); E|diff| bounds it."""
    diff, c = (Fraction(1, 10), Fraction(-1, 10)), (1, 0)
    outside, actual, inside = (
        abs(sum(diff)) / 2,
        abs(sum(x * d for x, d in zip(c, diff, strict=True))) / 2,
        Fraction(1, 10),
    )
    assert outside == 0 < actual <= inside
    f, g = np.array([0.5, 0.5]), np.array([0.6, 0.4])
    C, y = np.array([[1.0], [0.0]]), np.array([0.5, 0.5])
    kind = {"subpopulations": lowcal.Memberships(min_mass=0)}
    before, after = (metrics.multiaccuracy_error(y, p, C, **kind) for p in (f, g))
    assert before == 0
    assert after == pytest.approx(0.05)
    assert after <= robustness("multiaccuracy", before, 0.1)


@pytest.mark.parametrize(("cell", "breaks"), [(0.1, True), (0.2, False)])
def test_9s_the_example_needs_an_edge_at_one_half(cell: float, breaks: bool) -> None:
    y, e = np.array([0, 1]), 1e-6
    assert metrics.full_error(y, np.array([0.5, 0.5]), width=cell) == 0
    after = metrics.full_error(y, np.array([0.5 - e, 0.5 + e]), width=cell)
    assert (after > 0.2) == breaks
    assert metrics.smooth_error(y, np.array([0.5 - e, 0.5 + e])) <= robustness("smooth", 0.0, e)


def test_9u_two_labels_are_not_the_scalar_convention() -> None:
    """Degree 2, m_1 = -m_0: the simplex sees three times as much; Lipschitz weights are twice as steep there."""
    P, f, truth = (Fraction(1, 3), Fraction(2, 3)), (Fraction(1), Fraction(0)), (Fraction(0), Fraction(1))
    m0 = sum(p * (t - x) for p, x, t in zip(P, f, truth, strict=True))
    m1 = sum(p * x * (t - x) for p, x, t in zip(P, f, truth, strict=True))
    assert m1 == -m0
    u = (m0 - m1, m1)  # the moments of z_0 and z_1 with the label 1
    side = [max(0, *(s * x for x in u), s * sum(u)) for s in (1, -1)]
    assert sum(side) == 3 * max(abs(m0), abs(m1))
    w = worlds.single([float(x) for x in P], np.array(f, dtype=float), np.array(truth, dtype=float))
    wide = worlds.Worlds(w.P, np.concatenate([1 - w.F, w.F], 2), np.concatenate([1 - w.T, w.T], 2), w.C)
    assert worlds.degree(wide, 2)[0] == pytest.approx(binary_to_simplex("degree-2", worlds.degree(w, 2)[0]))
    near = worlds.single([0.5, 0.5], np.array([0.4, 0.6]), np.array([0.2, 0.8]))
    assert worlds.smooth(near, lip=2.0)[0] == pytest.approx(2 * worlds.smooth(near)[0])


def test_9w_the_metrics_of_the_experiment() -> None:
    """Without |.| an error of the other sign is invisible; Var[f | c = 1] is 0 / 0 for memberships inside (0, 1)."""
    f_star, p = np.array([0.9, 0.9, 0.2, 0.2]), np.array([0.5, 0.5, 0.2, 0.2])
    C = np.array([[0.9], [0.9], [0.2], [0.2]])
    printed = max(np.mean((2 * c - 1) * (p - f_star)) for c in (np.ones(4), C[:, 0]))
    kind = {"subpopulations": lowcal.Memberships(min_mass=0)}
    assert printed < 0
    found = metrics.multiaccuracy_error(f_star, p, C, signed_members=True, **kind)
    assert found == pytest.approx(max(0.2, 0.8 * 0.2))
    assert not (C == 1).any()
    wild = np.array([1.0, 0.0, 0.2, 0.2])
    q = C[:, 0] / C.sum()
    spread = q @ wild**2 - (q @ wild) ** 2 - (q @ f_star**2 - (q @ f_star) ** 2)
    only = {"subpopulations": lowcal.Memberships(min_mass=0, everyone=False)}
    assert metrics.excess_variance(f_star, wild, C, **only) == pytest.approx(C.mean() * spread)


# ----------------------------------------------------------------------------------------------- 9.x, 9.z the algorithm
def test_9x_the_output_lies_on_the_simplex() -> None:
    """Printed as f: X -> [0, 1]^l; the update leaves Delta_l, the projection brings it back."""
    data = definition.world(200, 3)
    f, step = definition.as_columns(data.p), 0.1 * np.eye(3)[:1]
    assert not np.allclose((f + step).sum(axis=1), 1)
    for solver in ("first", "block"):
        X = {"g0": data.X["g0"]}
        fit = multicalibrate(data.y, data.p, X, notion="degree-2", alpha=0.05, solver=solver)
        q = fit.predictor(data.p, X)
        assert np.allclose(q.sum(axis=1), 1)
        assert q.min() >= 0


def test_9x_a_product_of_vectors_is_no_inner_product() -> None:
    """Prop. 3.5 writes w (y - f); coordinate by coordinate it is a vector, of which multiaccuracy bounds each entry."""
    w, rho = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.1, -0.1, 0.1, -0.1])
    assert np.abs(w * rho).max() == 0.1
    assert w @ rho == pytest.approx(0.2)
    p, y = np.full((1, 4), 0.25) - rho, np.full((1, 4), 0.25)
    assert metrics.smooth_error(y, p) == pytest.approx(w @ rho)


@pytest.mark.parametrize("l", [3, 5, 10])
def test_9z_the_factor_l_is_too_much_for_monomials_and_too_little_for_the_class(l: int) -> None:  # noqa: E741
    """A weight u e_a has ||w - mean||^2 <= 1 - 1/l, so T does not grow with l; the class costs alpha / l."""
    sparse = max(sum((Fraction(int(i == a)) - Fraction(1, l)) ** 2 for i in range(l)) for a in range(l))
    assert sparse == 1 - Fraction(1, l) < 1 < l
    # the class at alpha through monomials needs them at alpha / l: l^2 in 1 / alpha^2, against the printed l
    needed = 1 / basis_to_class("degree-2", 1.0, l)
    assert 1 / needed**2 == pytest.approx(l**2)
    data = np.eye(l)
    p, y = 0.4 * data + 0.6 / l, 0.7 * data + 0.3 / l
    w = worlds.single(np.full(l, 1 / l), p, y)
    printed = worlds.monomial(w, 2)[0] * np.sqrt(l)  # what a factor l in the sample size would pay for
    assert metrics.degree_error(y, p) > printed
