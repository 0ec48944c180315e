"""Certificates: every half-width against its formula worked out by hand, and every limit against brute force."""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import lowcal
from lowcal import certificates
from lowcal.certificates import Bags, Panel, Statistic, band, bernstein, hoeffding, null_test, standard_errors
from lowcal.engines import reference
from lowcal.engines.reference import Codes, Matrix, Stacked, Table
from lowcal.notions import Full, LowDegree, Multiaccuracy, Smooth
from lowcal.weights import CellIds, evaluate
from worlds import perfect, thirty_groups

FINITE = [Multiaccuracy(), LowDegree(1), LowDegree(2), LowDegree(3), Full(0.25)]


def sample(n: int, d: int, m: int, seed: int, even: bool = False) -> Panel:
    """Return random rows with ties, uneven weights and fractional memberships."""
    rng = np.random.default_rng(seed)
    p = rng.integers(0, 9, (n, 1)) / 8 if d == 1 else rng.dirichlet(np.ones(d), n)
    y = (rng.random((n, 1)) < p).astype(float) if d == 1 else np.eye(d)[rng.integers(0, d, n)]
    C = np.column_stack([np.ones(n), *(rng.random(n) * (rng.random(n) < 0.6) for _ in range(m - 1))])
    weight = np.ones(n) if even else rng.random(n) + 0.1
    return Panel(y, p, weight / weight.sum(), Matrix(C), tuple(map(str, range(m))))


def table(notion, p):
    """Return the weights as a dense array."""
    weights = notion.constraints(p)
    return weights, np.column_stack([u(p) for u in weights])


def terms(panel, U):
    """Return Z_i for every constraint, (n, m, S, d)."""
    return np.einsum("nc,ns,na->ncsa", panel.design.dense(), U, panel.y - panel.p)


# --- standard errors and half-widths ------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("notion", FINITE, ids=str)
def test_standard_errors_are_those_of_the_weighted_mean(notion, d):
    panel = sample(60, d, 4, 0)
    weights, U = table(notion, panel.p)
    Z = terms(panel, U)
    g = np.einsum("n,ncsa->csa", panel.weight, Z)
    variance = np.einsum("n,ncsa->csa", panel.weight**2, (Z - g) ** 2) / (1 - (panel.weight**2).sum())
    found = standard_errors(panel, evaluate(weights, panel.p), g)
    np.testing.assert_allclose(found, np.sqrt(variance), rtol=1e-9, atol=1e-15)


def test_standard_error_of_even_weights_is_the_usual_one():
    panel = sample(50, 1, 1, 1, even=True)
    z = (panel.y - panel.p).ravel()
    found = standard_errors(panel, np.ones((50, 1)), np.array([[[z.mean()]]]))
    assert found.item() == pytest.approx(z.std(ddof=1) / sqrt(50))


def test_one_row_has_no_standard_error():
    panel = sample(1, 1, 1, 0)
    assert np.isinf(standard_errors(panel, np.ones((1, 1)), np.zeros((1, 1, 1)))).all()


def test_hoeffding_by_hand():
    assert hoeffding(1 / 400, 10, 0.1) == pytest.approx(sqrt(2 * log(200) / 400))


def test_bernstein_by_hand():
    level = log(4 * 10 / 0.05)  # half of 0.1 is left for the masses
    wanted = 0.03 * sqrt(2 * level) + 14 * 1.5 * level / (3 * 99)
    assert bernstein(np.array([0.03]), 100, 1.5, 10, 0.1) == pytest.approx(wanted)
    assert np.isinf(bernstein(np.array([0.1]), 1, 1.0, 10, 0.1)).all()


def test_hoeffding_holds_for_every_constraint_alike():
    panel = sample(200, 1, 3, 2)
    found = band(panel, LowDegree(2), 0.9, "hoeffding", np.random.default_rng(0)).constraints
    np.testing.assert_allclose(found.half, sqrt(2 * log(2 * 6 / 0.1) * (panel.weight**2).sum()))


def test_bernstein_never_exceeds_what_the_mass_allows():
    """A violation is at most the mass of its subpopulation, in the sample and in the population."""
    n = 2000
    tiny = np.zeros(n)
    tiny[0] = 1.0
    base = sample(n, 1, 1, 3, even=True)
    panel = replace(base, design=Matrix(np.column_stack([np.ones(n), tiny])), names=("all", "one"))
    found = band(panel, Multiaccuracy(), 0.95, "bernstein", np.random.default_rng(0)).constraints
    step = log(2 / 0.025) / n
    limit = 1 / n + step + sqrt(step * (step + 2 / n))
    assert found.half[1, 0, 0] == pytest.approx(abs(found.v[1, 0, 0]) + limit)
    assert found.half[1, 0, 0] < found.half[0, 0, 0]


def test_the_mass_limit_solves_the_tail_bound():
    panel = sample(500, 1, 4, 4)
    mu, s = certificates._mean_limit(panel.mass, panel, 0.05), panel.weight.max()
    np.testing.assert_allclose(mu - panel.mass, np.sqrt(2 * mu * s * log(4 / 0.05)), rtol=1e-9)


# --- limits of the suprema ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(FINITE), st.sampled_from([1, 3, 4]))
def test_limits_hold_for_all_moments_within_the_box(seed, notion, d):
    rng = np.random.default_rng(seed)
    S = 4 if isinstance(notion, Full) else len(notion.constraints(np.full((1, d), 1 / d)))
    v = centred(rng.normal(size=(2, S, d)))
    e = np.abs(centred(rng.normal(size=(2, S, d)))) * rng.random()
    lower, upper = notion.limits(v, e)
    weights = notion.constraints(np.full((1, d), 1 / d))
    for _ in range(30):
        move = centred(rng.choice([-1.0, 1.0], e.shape) * e * rng.random(e.shape) ** 0.2)
        move *= np.min(e / np.maximum(np.abs(move), 1e-300), initial=1.0)
        found = notion.norm(weights, v + move)
        assert (found.value <= upper + 1e-12).all()
        assert (found.upper >= lower - 1e-12).all()


def centred(v):
    """Residuals on the simplex sum to zero over the labels."""
    return v - v.mean(axis=2, keepdims=True) if v.shape[2] > 1 else v


@pytest.mark.parametrize(("notion", "d"), [(Multiaccuracy(), 1), (Multiaccuracy(), 3), (LowDegree(3), 1)], ids=str)
def test_limits_of_single_moments_are_attained(notion, d):
    assert notion.is_largest(d)
    rng = np.random.default_rng(0)
    v = rng.normal(size=(3, len(notion.constraints(np.full((1, d), 1 / d))), d))
    e = rng.random(v.shape)
    weights = notion.constraints(np.full((1, d), 1 / d))
    lower, upper = notion.limits(v, e)
    shrunk = np.sign(v) * np.maximum(np.abs(v) - e, 0)
    np.testing.assert_allclose(notion.norm(weights, shrunk).value, lower)
    np.testing.assert_allclose(notion.norm(weights, v + np.sign(v) * e).value, upper)


def test_deviations_of_several_labels_add_up():
    """Two of four labels too low and two too high, each by 1: weights that see both of a side move by 2."""
    weights = LowDegree(2).constraints(np.full((1, 4), 0.25))
    move = np.array([[[1.0, 1.0, -1.0, -1.0]] + [[0.25, 0.25, -0.25, -0.25]] * 4])
    assert LowDegree(2).norm(weights, move).value.item() == pytest.approx(2.0)
    assert LowDegree(2).limits(np.zeros_like(move), np.abs(move))[1].item() >= 2.0


def test_squared_memberships_of_codes_and_matrices():
    half = Codes((np.array([0, 1, 1], dtype=np.uint8),), (Table(sparse.csr_array([[1.0, 0.0], [0.5, 0.25]])),))
    both = Stacked((half, Matrix(np.array([[0.5], [1.0], [0.0]])), Matrix(sparse.csr_array([[0.5], [0.0], [0.1]]))))
    np.testing.assert_allclose(both.squared().dense(), np.square(both.dense()))


# --- the bootstrap ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bags", [7, 1000])
@pytest.mark.parametrize("notion", [LowDegree(3), Full(0.25)], ids=str)
@pytest.mark.parametrize("d", [1, 3])
def test_bags_add_up_to_the_sample(monkeypatch, n_bags, notion, d):
    monkeypatch.setattr(certificates, "BAGS", n_bags)
    monkeypatch.setattr(certificates, "CHUNK", 50)
    panel = sample(300, d, 3, 5)
    weights, U = table(notion, panel.p)
    shape = (3, U.shape[1], d)
    bags = Bags.deal(panel.weight, 1, np.random.default_rng(0))
    sums, share = bags.moments(panel.design, evaluate(weights, panel.p), panel.rho, shape), bags.share
    assert len(share) == (256 if n_bags == 7 else 300)  # at least 256, at most a row each
    assert share.sum() == pytest.approx(1.0)
    direct = np.einsum("n,ncsa->csa", panel.weight, terms(panel, U))
    np.testing.assert_allclose(sums.sum(axis=0), direct, atol=1e-14)


def test_single_rows_as_bags_are_the_rows():
    panel = sample(40, 1, 3, 6)
    weights, U = table(LowDegree(2), panel.p)
    bags = Bags.deal(panel.weight, 6, np.random.default_rng(0))
    sums, share = bags.moments(panel.design, evaluate(weights, panel.p), panel.rho, (3, 2, 1)), bags.share
    np.testing.assert_allclose(share, panel.weight)
    np.testing.assert_allclose(sums, panel.weight[:, None, None, None] * terms(panel, U), atol=1e-16)


def test_one_constraint_has_the_normal_quantile():
    panel = sample(3000, 1, 1, 7, even=True)
    found = band(panel, Multiaccuracy(), 0.95, "bootstrap", np.random.default_rng(0)).constraints
    assert (found.half / found.standard_error).item() == pytest.approx(1.96, abs=0.15)


def test_multipliers_are_centred_under_the_weights():
    panel = sample(100, 1, 1, 12)
    bags = Bags.deal(panel.weight, 1, np.random.default_rng(0))
    for xi in bags.multipliers(50, 1, np.random.default_rng(1)):
        np.testing.assert_allclose(xi @ bags.share, 0.0, atol=1e-12)
        assert xi.std() == pytest.approx(1.0, abs=0.1)


def test_a_large_violation_is_no_reason_for_a_wide_band():
    """Almost every residual is 0.9: their mean says little about their spread, and the band must not follow it."""
    n = 3000
    y = (np.arange(n) % 50 > 0).astype(float)[:, None]
    panel = Panel(y, np.full((n, 1), 0.1), np.full(n, 1 / n), Matrix(np.ones((n, 1))), ("all",))
    found = band(panel, Multiaccuracy(), 0.95, "bootstrap", np.random.default_rng(0)).constraints
    assert (found.half / found.standard_error).item() == pytest.approx(1.96, abs=0.15)


@pytest.mark.parametrize("notion", [LowDegree(2), LowDegree(3), Full(0.5)], ids=str)
def test_suprema_of_several_classes_have_limits_of_their_own(notion):
    panel = sample(900, 3, 3, 13, even=True)
    found = band(panel, notion, 0.95, "bootstrap", np.random.default_rng(0))
    assert (found.half > 0).all()
    np.testing.assert_allclose(found.upper, found.found.upper + found.half)
    np.testing.assert_allclose(found.lower, np.maximum(found.found.value - found.half, 0.0))


def test_copies_of_a_constraint_cost_nothing_and_new_ones_do():
    base = sample(3000, 1, 1, 8, even=True)
    rng = np.random.default_rng(0)

    def critical(C):
        panel = replace(base, design=Matrix(C), names=tuple(map(str, range(C.shape[1]))))
        found = band(panel, Multiaccuracy(), 0.95, "bootstrap", np.random.default_rng(1)).constraints
        return (found.half / found.standard_error).max()

    one = critical(np.ones((3000, 1)))
    assert critical(np.ones((3000, 20))) == pytest.approx(one, abs=1e-9)
    many = critical(np.eye(20)[rng.integers(0, 20, 3000)])
    assert many == pytest.approx(3.02, abs=0.2)  # the 95% quantile of the largest of twenty normals


def test_bags_change_the_band_little(monkeypatch):
    panel = thirty_groups().draw(6000, np.random.default_rng(0))
    monkeypatch.setattr(certificates, "BAGS", 6000)
    rows = band(panel, LowDegree(2), 0.95, "bootstrap", np.random.default_rng(1))
    monkeypatch.setattr(certificates, "BAGS", 512)
    bags = band(panel, LowDegree(2), 0.95, "bootstrap", np.random.default_rng(1))
    np.testing.assert_allclose(bags.constraints.half, rows.constraints.half, rtol=0.06)
    np.testing.assert_array_equal(bags.constraints.standard_error, rows.constraints.standard_error)


@pytest.mark.parametrize("notion", [LowDegree(1), LowDegree(2), Full(0.5)], ids=str)
def test_the_deviation_of_suprema_has_the_size_of_direct_draws(notion):
    """Draw the multipliers row by row, take the supremum by the notion itself, and compare the typical sizes."""
    panel = sample(600, 3, 2, 9, even=True)
    found = band(panel, notion, 0.95, "bootstrap", np.random.default_rng(0))
    rng = np.random.default_rng(1)
    draws = []
    for _ in range(400):
        xi = rng.standard_normal(600)
        draws.append(notion.suprema(panel.p, (xi - panel.weight @ xi)[:, None] * panel.rho, panel.design).upper)
    typical = np.sqrt(np.mean(np.square(draws), axis=0))
    wanted = np.quantile((np.array(draws) / typical).max(axis=1), 0.95) * typical
    np.testing.assert_allclose(found.half, wanted, rtol=0.12)


def test_small_groups_are_judged_by_bernstein():
    n = 3000
    few = np.zeros(n)
    few[:10] = 1.0
    base = sample(n, 1, 1, 10, even=True)
    panel = replace(base, design=Matrix(np.column_stack([np.ones(n), few])), names=("all", "ten"))
    rng = np.random.default_rng
    normal = band(panel, LowDegree(2), 0.95, "bootstrap", rng(0)).constraints
    safe = band(panel, LowDegree(2), 0.95, "bernstein", rng(0)).constraints
    np.testing.assert_array_equal(normal.half[1], safe.half[1])
    assert (normal.half[0] < safe.half[0]).all()


@pytest.mark.parametrize(("rate", "is_small"), [(0.0018, True), (0.0021, False)])
def test_rare_labels_count_for_less_than_their_rows(rate, is_small):
    n = 4000
    p = np.full((n, 1), rate)
    y = (np.arange(n) < 8).astype(float)[:, None]
    panel = Panel(y, p, np.full(n, 1 / n), Matrix(np.ones((n, 1))), ("all",))
    worth = certificates._worth(panel, np.ones((n, 1))).item()
    assert worth == pytest.approx(n * 4 * rate * (1 - rate))
    assert (worth < certificates.SMALL) == is_small
    found = band(panel, Multiaccuracy(), 0.95, "bootstrap", np.random.default_rng(0)).constraints
    safe = band(panel, Multiaccuracy(), 0.95, "bernstein", np.random.default_rng(0)).constraints
    assert (found.half.item() == safe.half.item()) == is_small


# --- infinite classes and the exact test --------------------------------------------------------------------


def test_symmetrisation_by_hand():
    panel = sample(100, 1, 2, 11)
    fixed = Statistic(lambda _: np.array([0.1, 0.2]), lambda _: np.array([0.05, 0.0]))
    e, L = (panel.weight**2).sum(), log(3 / 0.1)
    wanted = 2 * 0.2 + 2 * sqrt(2 * L * e / 5) + 3 * sqrt(2 * L * e)
    assert certificates.symmetrisation(panel, fixed, 0.1, np.random.default_rng(0), 5) == pytest.approx(wanted)


def test_smooth_limits_hold_the_supremum_and_shrink_with_rows():
    widths = []
    for n in (500, 4000):
        panel = thirty_groups().draw(n, np.random.default_rng(n))
        some = replace(panel, design=Matrix(panel.design.dense()[:, :4]), names=panel.names[:4])
        normal = band(some, Smooth(), 0.95, "bootstrap", np.random.default_rng(0))
        proof = band(some, Smooth(), 0.95, "bernstein", np.random.default_rng(0))
        assert (normal.lower <= normal.found.value).all()
        assert (normal.found.value <= normal.upper).all()
        assert (proof.half > normal.half).all()
        assert normal.constraints is None
        widths.append(normal.half.max())
    assert widths[1] < 0.5 * widths[0]


@pytest.mark.parametrize("cache", [reference.CACHE, 1 << 7])
@pytest.mark.parametrize("notion", [LowDegree(2), Multiaccuracy(), LowDegree(3), Full(0.25)])
def test_the_null_floor_is_the_quantile_of_redrawn_suprema(monkeypatch, notion, cache):
    """In however many pieces the rows are drawn."""
    monkeypatch.setattr(reference, "CACHE", cache)
    panel = perfect().draw(400, np.random.default_rng(0))
    null = null_test(panel, notion, 0.9, np.random.default_rng(5), draws=49)
    drawn = []
    for own in np.random.default_rng(5).spawn(49):
        y = (own.random(400) < panel.p[:, 0]).astype(float)[:, None]
        drawn.append(notion.suprema(panel.p, panel.weight[:, None] * (y - panel.p), panel.design).value)
    np.testing.assert_allclose(null.floor, np.quantile(drawn, 0.9, axis=0, method="higher"))
    assert null.largest == pytest.approx(np.quantile(np.max(drawn, axis=1), 0.9, method="higher"))


def test_a_small_group_that_is_all_wrong_is_seen_among_many_rows():
    """Forty people of four thousand: their violation is below what chance shows in everyone, far beyond their own."""
    n = 4000
    rng = np.random.default_rng(0)
    p = np.full((n, 1), 0.5)
    y = (rng.permutation(n) < n / 2).astype(float)[:, None]
    few = np.zeros(n)
    few[np.flatnonzero(y[:, 0] == 1)[:40]] = 1.0
    panel = Panel(y, p, np.full(n, 1 / n), Matrix(np.column_stack([np.ones(n), few])), ("all", "forty"))
    null = null_test(panel, LowDegree(2), 0.95, np.random.default_rng(0), draws=39)
    assert LowDegree(2).suprema(p, panel.rho, panel.design).value.max() < null.largest
    assert null.p_value == 1 / 40


def test_labels_that_predictions_exclude_are_as_significant_as_can_be():
    p = np.repeat([0.0, 1.0], 50)[:, None]
    panel = Panel(1.0 - p, p, np.full(100, 0.01), Matrix(np.ones((100, 1))), ("all",))
    assert null_test(panel, LowDegree(2), 0.95, np.random.default_rng(0), draws=19).p_value == 1 / 20
    right = replace(panel, y=p)
    null = null_test(right, LowDegree(2), 0.95, np.random.default_rng(0), draws=19)
    assert (null.p_value, null.largest, null.is_too_good) == (1.0, 0.0, False)


def test_cells_without_rows_are_constraints_too():
    p = np.full((50, 1), 0.55)
    panel = Panel(np.ones((50, 1)), p, np.full(50, 0.02), Matrix(np.ones((50, 1))), ("all",))
    found = band(panel, Full(0.1), 0.95, "hoeffding", np.random.default_rng(0)).constraints
    assert len(found.weights) == 10
    assert isinstance(evaluate(found.weights, p), CellIds)


@pytest.mark.parametrize("notion", ["degree-2", "full-0.1", "smooth"])
def test_rare_labels_that_were_not_drawn_prove_nothing(notion):
    """Without one of the rare labels the rows show no variance; an interval of that width would be a point."""
    n = 1000
    sure = np.arange(n) < 20
    p, y = np.where(sure, 1.0, 1e-4), sure.astype(int)
    report = lowcal.audit(y, p, notion=notion, alpha=0.0005, random_state=0, null_draws=19)
    assert report.verdict == "undecided"
    assert report.certified_alpha > 0.00088  # if f* is .001, this is the violation, and one sample in three looks so
    p3 = np.tile([0.9998, 0.0001, 0.0001], (n, 1))
    labels = np.where(np.arange(n) < 1, 1, 0)
    report = lowcal.audit(labels, p3, notion=notion, classes=[0, 1, 2], alpha=0.0005, random_state=0, null_draws=19)
    assert report.verdict == "undecided"
    assert report.certified_alpha > 0.001


def test_even_rows_and_the_safe_deviation():
    one, three = sample(400, 1, 3, 5), sample(400, 3, 3, 5)
    for panel in (one, three):
        C, w = panel.design.dense(), panel.weight
        f = np.column_stack([1 - panel.p, panel.p]) if panel.p.shape[1] == 1 else panel.p
        y = np.column_stack([1 - panel.y, panel.y]) if panel.p.shape[1] == 1 else panel.y
        gini, size = 2 * (f * (1 - f)).sum(1), np.abs(y - f).sum(1) / 2
        for j, c in enumerate(C.T):
            worth = (w @ c) ** 2 / (w**2 @ c**2)
            assert certificates._even_rows(panel)[j] == pytest.approx(worth * (w * c) @ gini / (w @ c))
            mean, level = (w * c) @ size, log(3 / 0.05) * w.max()
            limit = mean + level + sqrt(level * (level + 2 * mean))
            assert certificates._safe_deviation(panel, 0.05)[j] == pytest.approx(mean + limit)


@pytest.mark.parametrize(("notion", "n_classes"), [("degree-2", 2), ("degree-2", 3), ("full-0.25", 3)])
def test_draws_that_look_at_all_rows_give_the_limits_of_bags(notion, n_classes, monkeypatch):
    rng = np.random.default_rng(0)
    n = 3000
    p = rng.dirichlet(np.ones(n_classes), n)
    y = (rng.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(max=n_classes - 1)
    X = {"a": rng.integers(0, 5, n).astype(str), "b": rng.integers(0, 3, n).astype(str)}
    reports = []
    for most in (certificates.MOST_NUMBERS, 0):
        monkeypatch.setattr(certificates, "MOST_NUMBERS", most)
        reports.append(lowcal.audit(y, p, X, notion=notion, alpha=0.05, random_state=0))
    bags, rows = reports
    assert rows.violation == bags.violation
    assert rows.certified_alpha != bags.certified_alpha
    assert rows.certified_alpha == pytest.approx(bags.certified_alpha, rel=0.1)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_smooth_draws_do_not_depend_on_how_groups_are_cut(n_classes, monkeypatch):
    rng = np.random.default_rng(1)
    n = 1500
    p = rng.dirichlet(np.ones(n_classes), n)
    y = (rng.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(max=n_classes - 1)
    X = {"a": rng.choice(list("uvwxyz"), n, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.1])}
    uppers = []
    for cut in (lambda m, _: [slice(0, m)], lambda m, _: [slice(k, k + 2) for k in range(0, m, 2)]):
        monkeypatch.setattr(certificates, "pieces", cut)
        report = lowcal.audit(y, p, X, notion="smooth", alpha=0.05, random_state=0)
        uppers.append([(one.subpopulation, one.upper) for one in report.findings])
    assert [name for name, _ in uppers[0]] == [name for name, _ in uppers[1]]
    np.testing.assert_allclose([u for _, u in uppers[0]], [u for _, u in uppers[1]], rtol=1e-9)
