"""Certificates: every half-width against its formula worked out by hand, and every limit against brute force."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import log, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.stats import norm, poisson

import lowcal
from lowcal import Groups
from lowcal.auditing.band import (
    BLOCKS,
    LARGEST_STAKE,
    Band,
    Bets,
    Intervals,
    _along,
    _intervals,
    _most,
    _phi,
    _stakes,
    band,
    bernstein,
    constraints,
    deviations,
    hoeffding,
    mean_limit,
    symmetrisation,
)
from lowcal.auditing.draws import (
    Draws,
    Redraws,
    draw,
    moment_scores,
    new_seed,
    null_test,
    union_bound,
)
from lowcal.auditing.panel import LEAST_NOISE, Panel, believed
from lowcal.auditing.score import SUMMANDS, Cumulants, Totals, WitnessSums, cumulants, normal_score
from lowcal.data.inputs import read_rows
from lowcal.kernels import exact, reference
from lowcal.kernels.reference import Codes, DecodeTable, Matrix, Stacked
from lowcal.notions import Full, LowDegree, Multiaccuracy, Smooth
from lowcal.notions.base import Suprema, Witness
from lowcal.notions.weights import CellIds, Monomial, evaluate, monomials
from lowcal.rows import START
from lowcal.rows.grids import LinePoints, PlacedResiduals
from lowcal.rows.keys import shares_of, uniforms
from lowcal.rows.reading import in_memory
from worlds import Shards, changed, panel_of, perfect, thirty_groups

ONE = (Monomial(),)
FINITE = [Multiaccuracy(), LowDegree(1), LowDegree(2), LowDegree(3), Full(0.25)]


def sample(n: int, d: int, m: int, seed: int, even: bool = False) -> Panel:
    """Return random rows with ties, uneven weights and fractional memberships."""
    rng = np.random.default_rng(seed)
    p = rng.integers(0, 9, (n, 1)) / 8 if d == 1 else rng.dirichlet(np.ones(d), n)
    y = (rng.random((n, 1)) < p).astype(float) if d == 1 else np.eye(d)[rng.integers(0, d, n)]
    C = np.column_stack([np.ones(n), *(rng.random(n) * (rng.random(n) < 0.6) for _ in range(m - 1))])
    weight = np.ones(n) if even else rng.random(n) + 0.1
    return panel_of(y, p, weight / weight.sum(), C, tuple(map(str, range(m))))


def table(notion, p):
    """Return the weights as a dense array."""
    weights = notion.constraints(p)
    return weights, np.column_stack([u(p) for u in weights])


def terms(panel, U):
    """Return Z_i for every constraint, (n, m, S, d)."""
    return np.einsum("nc,ns,na->ncsa", panel.design.dense(), U, panel.whole.y - panel.p)


# --- standard errors and half-widths ------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("notion", [*FINITE[:4], Full(0.25)], ids=str)
def test_sums_are_those_of_the_definition(notion, d):
    """Every sum of `Cumulants` by brute force: over the rows, and over the labels with their probabilities."""
    panel = sample(60, d, 4, 0)
    weights, U = table(notion, panel.p)
    a = np.einsum("n,nc,ns->ncs", panel.whole.weight, panel.design.dense(), U)[..., None]
    z, q, f, w = (np.broadcast_to(x, (60, 1, 1, d)) for x in by_row(panel))
    found = cumulants(panel, weights).sums
    mean, both = q * (1 - f) + (1 - q) * -f, {}
    for k in (1, 2, 3):
        both[k] = q * (1 - f) ** (k + 1) + (1 - q) * (-f) ** (k + 1) - mean * (q * (1 - f) ** k + (1 - q) * (-f) ** k)
    fourth = q * (1 - f) ** 4 + (1 - q) * f**4 - (q * (1 - f) ** 2 + (1 - q) * f**2) ** 2
    wanted = Totals(
        v=a * z,
        cross=w * a * z,
        second=a**2 * z**2,
        noise=a**2 * both[1],
        noise3=a**3 * both[2],
        square=a**4 * fourth,
        shift=a * both[1],
        shift1=w * a * both[1],
        shift2=a**2 * both[2],
        shift3=a**3 * both[3],
        steep=a**2 * np.abs(both[2]),
        **{f"base{k}".rstrip("1"): a**k * (q * (1 - f) ** k + (1 - q) * (-f) ** k) for k in (1, 2, 3)},
    )
    for name, one, terms_of in zip(Totals._fields, found, wanted, strict=True):
        np.testing.assert_allclose(one, terms_of.sum(axis=0), rtol=1e-9, atol=rounding(panel, name), err_msg=name)


def rounding(panel, name):
    """Return by how much exact sums of as many terms, each rounded to a grid, may differ from others."""
    return panel.rows.count * 2.0**-44 * panel.rows.scale.single ** getattr(SUMMANDS, name).order


def by_row(panel):
    """Return residuals, believed probabilities, predictions and weights as arrays of four axes."""
    shape = (len(panel.p), 1, 1, -1)
    w = np.broadcast_to(panel.whole.weight[:, None], panel.p.shape)
    return (
        (panel.whole.y - panel.p).reshape(shape),
        believed(panel.p, panel.share).reshape(shape),
        panel.p.reshape(shape),
        w.reshape(shape),
    )


@pytest.mark.parametrize("d", [1, 3])
def test_a_witness_of_one_weight_has_the_sums_of_its_constraint(d):
    panel = sample(80, d, 3, 1)
    one = cumulants(panel, LowDegree(2).constraints(panel.p)).sums
    witness = Witness((Monomial((0,)),), np.eye(d)[[0]])
    found = panel.rows.run(WitnessSums(panel.families, [witness] * 3, panel.share))
    for name, wanted, got in zip(Totals._fields, one, found, strict=True):
        if d == 1 or not name.startswith(("shift", "steep")):
            np.testing.assert_allclose(got[1], wanted[1, 1, 0], rtol=1e-9, atol=rounding(panel, name), err_msg=name)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5])
def test_the_interval_of_one_constant_prediction_is_that_of_a_binomial(rate):
    """Variance and skewness at any g are those of the binomial distribution with the probability f + g."""
    n, f = 400, rate
    y = (np.arange(n) < 9).astype(float)[:, None]
    panel = panel_of(y, np.full((n, 1), f), np.full(n, 1 / n), np.ones((n, 1)), ("all",))
    sums = cumulants(panel, ONE)
    for truth in (0.005, 0.02, 0.4, 0.9):
        g = np.full((1, 1, 1), truth - f)
        variance = truth * (1 - truth)
        assert sums.spread(g)[0].item() == pytest.approx(variance / (n - 1), rel=1e-6)
        skew = variance * (1 - 2 * truth) / variance**1.5 / sqrt(n)
        assert sums.spread(g)[1].item() == pytest.approx(skew * ((n - 1) / n) ** 1.5, rel=1e-6)
    lower, upper = sums.limits(1.96)
    z = sums.score(np.array([lower, upper]))
    np.testing.assert_allclose(np.abs(z), 1.96, rtol=1e-6)
    assert lower.item() + f > 0.0


def test_what_the_rows_say_against_f_counts_beyond_its_noise():
    """Residuals as large as f allows leave the variance to f; far larger ones make it their own."""
    n, rng = 4000, np.random.default_rng(0)
    f = rng.choice([0.05, 0.95], (n, 1))
    C = np.ones((n, 1))
    for truth, factor in ((f, 1.0), (0.5 + 0 * f, (0.95**2 + 0.05**2) / 2 / (0.95 * 0.05))):
        y = (rng.random((n, 1)) < truth).astype(float)
        sums = cumulants(panel_of(y, f, np.full(n, 1 / n), C), ONE)
        assert sums._second(sums.v).item() == pytest.approx(factor * 0.95 * 0.05 / n, rel=0.05)


def test_the_second_moment_by_hand():
    """It moves from 1 to 2; of an excess of 10 - 1 - 0.5 remain 8.5 (1 - 4 * 2 / 8.5^2), half of it if Z was chosen."""
    one = np.ones(1)
    sums = {"v": 2.0, "second": 11.0, "base2": 1.0, "shift": 1.0, "shift2": 1.0, "steep": 1.0}
    sums |= {"noise": 1.0, "noise3": 0.5, "square": 1.25}  # the rest of the noise has the variance 1

    def of(**other):
        return Cumulants(Totals(*((sums | other).get(name, 0.0) * one for name in Totals._fields)), 0.0, is_label=True)

    known = of()
    kept = 8.5 - 8.0 / 8.5
    assert known._second(one) == pytest.approx(2.0 + kept)
    assert replace(known, is_chosen=True)._second(one) == pytest.approx(2.0 + kept / 2)
    assert replace(known, is_chosen=True)._second(-one) == pytest.approx(0.0)
    assert of(second=3.0)._second(0.0 * one) == pytest.approx(1.0)  # within its noise
    both = of(shift2=0.6, square=0.25)  # without noise of its own; some rows raise it, and others lower it
    assert both._second(one) == pytest.approx(np.hypot(1.6, 0.8))


@pytest.mark.parametrize("shares", [(0.0, 0.2), (None,)])
@pytest.mark.parametrize("degree", [1, 3])
def test_draws_that_visit_picked_rows_alone_are_those_of_all_rows(monkeypatch, shares, degree):
    """To the last bit, also where the rows are in several shards and more than add up exactly at once."""
    for module in (exact, reference):
        monkeypatch.setattr(module, "BLOCK", 300)
    for grids in ("_grid", "_fine"):  # grids of these blocks are not kept
        monkeypatch.setattr(exact, grids, getattr(exact, grids).__wrapped__)
    monkeypatch.setattr("lowcal.kernels.loops.MANY_ROWS", 500)
    rng = np.random.default_rng(0)
    X = {"a": rng.integers(0, 5, 700), "b": rng.integers(0, 40, 700)}
    p = rng.random(700)
    outcomes, table = read_rows((rng.random(700) < p) * 1, p, X, rng.random(700) + 0.1, None)
    rows, learner = in_memory(Groups(min_mass=0.0), outcomes, table, 0)
    asked = Redraws(tuple(learner.families), monomials(1, degree - 1), shares, 7, range(30))
    found = rows.run(asked)
    assert Redraws._are_picks(asked, rows.whole.design(asked.families), rows.whole)
    np.testing.assert_array_equal(Shards.cut(rows, 3, threads=2).run(asked), found)
    monkeypatch.setattr(Redraws, "_are_picks", lambda *_: False)
    np.testing.assert_array_equal(rows.run(asked), found)


def test_scores_of_draws_are_those_of_binomials():
    n, f = 500, 0.03
    panel = panel_of(np.zeros((n, 1)), np.full((n, 1), f), np.full(n, 1 / n), np.ones((n, 1)), ("all",))
    variance, skewness = f * (1 - f) / n, (1 - 2 * f) / sqrt(n * f * (1 - f))
    score = moment_scores(panel, ONE, 0.0)(np.full((1, 1, 1), -f))
    assert score == pytest.approx(-normal_score(np.array(-f / sqrt(variance)), np.array(skewness)).item())


def test_the_noise_of_the_second_moment_beside_what_it_shares_with_the_estimate():
    """Labels drawn anew: sum p^2 Z^2 - regression v has the variance that the rows' excess is judged by."""
    panel = changed(sample(40, 1, 2, 4), p=np.random.default_rng(4).beta(2, 8, (40, 1)))
    rng, left, known, mean = np.random.default_rng(5), [], None, _plain(panel)  # the same for all labels
    for _ in range(2000):
        drawn = changed(panel, y=(rng.random((40, 1)) < panel.p).astype(float))
        known = cumulants(drawn, ONE)
        left.append(known.sums.second - mean.regression * known.v)
    wanted = mean.error
    np.testing.assert_allclose(np.var(left, axis=0), wanted, rtol=0.1)
    assert (wanted < 0.8 * known.sums.square).all()  # v and the second moment share much of their noise


def _plain(panel: Panel):
    """Return the cumulants of a panel whose labels are what f says on average."""
    return cumulants(changed(panel, y=panel.p), ONE)


def test_a_perfect_model_is_believed():
    """Its residuals exceed what f allows in half of the samples, and by two standard errors in few."""
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        p = rng.beta(2, 2, (400, 1))
        panel = changed(sample(400, 1, 1, 0), y=(rng.random((400, 1)) < p).astype(float), p=p)
        found.append(panel.share <= LEAST_NOISE)
    assert sum(found) >= 36


def test_the_mass_of_everyone_is_known_and_signs_reach_further_than_their_mass():
    panel = sample(300, 1, 2, 8)
    c = panel.design.column(1)
    wanted = sqrt((panel.whole.weight**2 * (c - panel.whole.weight @ c) ** 2).sum())
    assert panel.mass_error[0] == pytest.approx(0.0, abs=1e-9)
    assert panel.mass_error[1] == pytest.approx(wanted, rel=0.1)
    signed = changed(panel, C=np.column_stack([np.ones(300), np.where(np.arange(300) % 2, 1.0, -1.0)]))
    assert signed.reach.tolist() == pytest.approx([1.0, 1.0])
    assert panel.reach.tolist() == pytest.approx(panel.mass.tolist())


def test_a_normal_score_is_that_of_a_gamma_and_takes_a_part_of_one_label_off():
    """The chance of each Poisson count's tail, with what discreteness asks for (`CONTINUITY`)."""
    for expected in (2, 5, 12, 40):
        k = np.arange(0, 200)
        t, skew = (k - expected) / sqrt(expected), np.full(200, 1 / sqrt(expected))
        for critical in (1.96, 2.5, 3.0, 3.4):
            inside = np.abs(normal_score(t, skew)) <= critical
            missed = poisson.pmf(k, expected)[~inside].sum() / (2 * norm.sf(critical))
            assert 0.1 < missed < 1.2, (expected, critical)
    np.testing.assert_allclose(normal_score(np.array([-2.0, 2.0]), np.zeros(2)), [-2.0, 2.0])
    np.testing.assert_allclose(
        normal_score(np.array([2.0]), np.array([-0.4])), -normal_score(np.array([-2.0]), np.array([0.4]))
    )


def test_one_row_has_no_standard_error():
    assert np.isinf(cumulants(sample(1, 1, 1, 0), ONE).standard_error).all()


def test_predictions_of_0_and_1_that_are_wrong_now_and_then_have_noise():
    """Their own variance is none; that of what is seen to be wrong stands for it."""
    n, rng = 2000, np.random.default_rng(0)
    truth = rng.integers(0, 2, n)
    wrong = rng.random(n) < 0.1
    y = np.where(wrong, 1 - truth, truth).astype(float)[:, None]
    panel = panel_of(y, truth.astype(float)[:, None], np.full(n, 1 / n), np.ones((n, 1)), ("all",))
    assert panel.share > LEAST_NOISE
    assert 0.08 < np.abs(believed(panel.p, panel.share) - panel.p).max() < 0.12
    found = band(panel, LowDegree(2), 0.95, "bootstrap", np.random.default_rng(0))
    error = sqrt(0.1 / n)
    assert 1.5 * error < found.constraints.half[0, 0, 0] < 3.0 * error
    assert perfect().draw(2000, rng).share <= LEAST_NOISE


def test_hoeffding_by_hand():
    assert hoeffding(1 / 400, 10, 0.1) == pytest.approx(sqrt(2 * log(200) / 400))


def test_bernstein_by_hand():
    level = log(4 * 10 / 0.05)
    wanted = 0.03 * sqrt(2 * level) + 14 * 1.5 * level / (3 * 99)
    assert bernstein(np.array([0.03]), 100, 1.5, 10, 0.05) == pytest.approx(wanted)
    assert np.isinf(bernstein(np.array([0.1]), 1, 1.0, 10, 0.1)).all()


def test_hoeffding_holds_for_every_constraint_alike():
    panel = sample(200, 1, 3, 2)
    found = band(panel, LowDegree(2), 0.9, "hoeffding", np.random.default_rng(0)).constraints
    most = mean_limit(panel.mass, panel, 0.025)[:, None, None]  # a quarter of 0.1 is left for either side of masses
    half = sqrt(2 * log(2 * 6 / 0.05) * (panel.whole.weight**2).sum())
    np.testing.assert_allclose(found.lower, np.maximum(found.v - half, -most))
    np.testing.assert_allclose(found.upper, np.minimum(found.v + half, most))


def test_bernstein_never_exceeds_what_the_mass_allows():
    """A violation is at most the mass of its subpopulation, in the sample and in the population."""
    n = 2000
    tiny = np.zeros(n)
    tiny[0] = 1.0
    base = sample(n, 1, 1, 3, even=True)
    panel = changed(base, C=np.column_stack([np.ones(n), tiny]))
    found = band(panel, Multiaccuracy(), 0.95, "bernstein", np.random.default_rng(0)).constraints
    step = log(2 / 0.0125) / n
    limit = 1 / n + step + sqrt(step * (step + 2 / n))
    assert (found.lower[1, 0, 0], found.upper[1, 0, 0]) == pytest.approx((-limit, limit))
    assert found.half[1, 0, 0] < found.half[0, 0, 0]


def test_the_mass_limit_solves_the_tail_bound():
    panel = sample(500, 1, 4, 4)
    mu, s = mean_limit(panel.mass, panel, 0.05), panel.whole.weight.max()
    room = np.sqrt(2 * mu * s * log(4 / 0.05))
    np.testing.assert_allclose(mu[1:] - panel.mass[1:], room[1:], rtol=1e-9)
    assert mu[0] == 1.0  # everyone: no mean of such terms is larger


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
    half = Codes((np.array([0, 1, 1], dtype=np.uint8),), (DecodeTable(sparse.csr_array([[1.0, 0.0], [0.5, 0.25]])),))
    both = Stacked((half, Matrix(np.array([[0.5], [1.0], [0.0]])), Matrix(sparse.csr_array([[0.5], [0.0], [0.1]]))))
    np.testing.assert_allclose(both.power(2).dense(), np.square(both.dense()))


# --- the bootstrap ------------------------------------------------------------------------------------------


def test_one_constraint_has_the_normal_quantile():
    panel = sample(3000, 1, 1, 7, even=True)
    found = band(panel, Multiaccuracy(), 0.95, "bootstrap", np.random.default_rng(0)).constraints
    assert (found.half / found.standard_error).item() == pytest.approx(1.96, abs=0.35)


def test_a_large_violation_is_no_reason_for_a_wide_band():
    """Almost every residual is 0.9: their mean says little about their spread, and the band must not follow it."""
    n = 3000
    y = (np.arange(n) % 50 > 0).astype(float)[:, None]
    panel = panel_of(y, np.full((n, 1), 0.1), np.full(n, 1 / n), np.ones((n, 1)), ("all",))
    found = band(panel, Multiaccuracy(), 0.95, "bootstrap", np.random.default_rng(0)).constraints
    half = (found.upper - found.lower) / 2
    assert (half / found.standard_error).item() == pytest.approx(1.96, abs=0.5)


@pytest.mark.parametrize("notion", [LowDegree(2), LowDegree(3), Full(0.5)], ids=str)
def test_suprema_of_several_classes_have_limits_of_their_own(notion):
    panel = sample(900, 3, 3, 13, even=True)
    found = band(panel, notion, 0.95, "bootstrap", np.random.default_rng(0))
    assert (found.upper > found.found.upper).all()
    assert (found.lower < found.found.value).all()


def test_copies_of_a_constraint_cost_nothing_and_new_ones_do():
    base = sample(3000, 1, 1, 8, even=True)
    rng = np.random.default_rng(0)

    def critical(C):
        panel = changed(base, C=C)
        found = band(panel, Multiaccuracy(), 0.95, "bootstrap", np.random.default_rng(1)).constraints
        return (found.half / found.standard_error).max()

    one = critical(np.ones((3000, 1)))
    assert critical(np.ones((3000, 20))) == pytest.approx(one, abs=1e-9)
    many = critical(np.eye(20)[rng.integers(0, 20, 3000)])
    assert many == pytest.approx(3.02, abs=0.45)  # the 95% quantile of the largest of twenty normals


@pytest.mark.parametrize("notion", [LowDegree(1), LowDegree(2), Full(0.5)], ids=str)
def test_intervals_of_suprema_are_as_wide_as_suprema_of_new_labels(notion):
    panel = changed(sample(600, 3, 2, 9, even=True), y=np.eye(3)[np.arange(600) % 3], p=np.full((600, 3), 1 / 3))
    several = [band(panel, notion, 0.95, "bootstrap", np.random.default_rng(seed)) for seed in range(8)]
    rng, suprema = np.random.default_rng(1), []
    for _ in range(400):
        y = np.eye(3)[rng.integers(0, 3, 600)]
        suprema.append(notion.suprema(panel.p, panel.whole.weight[:, None] * (y - panel.p), panel.design).upper)
    wanted = deviations(np.array(suprema), 0.05)
    np.testing.assert_allclose(np.mean([one.upper - one.found.upper for one in several], axis=0), wanted, rtol=0.15)


def test_deviations_are_exceeded_by_one_draw_in_twenty():
    rng = np.random.default_rng(0)
    suprema = rng.gamma([0.5, 3.0, 50.0], size=(999, 3))
    limit = deviations(suprema, 0.05)
    assert (suprema > limit).any(axis=1).mean() == pytest.approx(0.05, abs=0.002)
    alone = (suprema > limit).mean(axis=0)
    assert alone.min() > 0.004  # each takes its part of the misses, rare or not


def test_few_draws_say_as_much_of_a_sample_as_of_each_other():
    """Standardised by all draws, itself among them, a draw looks smaller than the sample: 17% exceeded them."""
    rng = np.random.default_rng(0)
    exceeded = []
    for _ in range(1500):
        suprema = np.abs(rng.normal(size=(40, 30))) ** 3
        exceeded.append((suprema[0] > deviations(suprema[1:], 0.05)).any())
    assert np.mean(exceeded) == pytest.approx(0.05, abs=0.017)


def test_a_sample_that_chose_its_weights_is_judged_by_what_f_says_of_them():
    """Every row has a cell of its own, so that its label chooses its weight, and the second moment is far above what f
    says of it. At g = 0 that is chance, and counts for nothing; at g = v it counts in full.
    """
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), 200)
    y = np.eye(5)[(rng.random(200)[:, None] > p.cumsum(axis=1)).sum(axis=1).clip(max=4)]
    panel = panel_of(y, p, np.full(200, 1 / 200), np.ones((200, 1)), ("everyone",))
    found = Full(0.05).suprema(p, panel.rho, panel.design)
    chosen = _along(panel, found, None)[1]
    free = replace(chosen, is_chosen=False)
    nothing = np.zeros(1)
    assert chosen.spread(nothing)[0] == pytest.approx(chosen.sums.noise / (1 - panel.energy))
    assert free.spread(nothing)[0] > 1.5 * chosen.spread(nothing)[0]
    assert chosen.spread(chosen.v)[0] == pytest.approx(free.spread(chosen.v)[0])
    assert found.value[0] < deviations(draw(panel, Full(0.05), (0.0,), range(99), 0)[0].suprema, 0.05)[0]
    assert band(panel, Full(0.05), 0.95, "bootstrap", rng).lower[0] == 0.0


@pytest.mark.parametrize(("score", "q"), [(0.0, union_bound(6, 0.05)), (0.5, union_bound(1, 0.05)), (2.5, 2.5)])
def test_draws_that_show_nothing_leave_a_union_bound_and_none_ask_for_less_than_one_interval(score, q):
    panel = sample(300, 1, 6, 2, even=True)
    drawn = Draws(np.zeros((99, 6)), np.full(99, score))
    found = constraints(panel, Multiaccuracy(), 0.95, "bootstrap", np.random.default_rng(0), drawn)
    lower, upper = cumulants(panel, ONE).limits(q)
    most = _most(panel, q)[:, None, None]
    np.testing.assert_allclose(found.lower, np.maximum(lower, -most))
    np.testing.assert_allclose(found.upper, np.minimum(upper, most))


def test_no_class_deviates_by_less_than_a_single_weight(monkeypatch):
    panel = sample(300, 1, 2, 2, even=True)
    monkeypatch.setattr(sys.modules[_along.__module__], "deviations", lambda suprema, beta: np.full(2, 1e-9))
    found = band(panel, Full(0.25), 0.95, "bootstrap", np.random.default_rng(0))
    known = _along(panel, found.found, found.constraints)[1]
    lower, upper = known.limits(union_bound(1, 0.05))
    np.testing.assert_allclose(found.upper, np.maximum(upper, -lower))


def test_intervals_of_mirrored_labels_are_mirrored(monkeypatch):
    """Rare labels are skewed to one side, frequent ones to the other."""
    rng = np.random.default_rng(0)
    p = rng.beta(2, 18, (400, 1))
    panel = changed(sample(400, 1, 2, 2, even=True), p=p, y=(rng.random((400, 1)) < p + 0.05).astype(float))
    mirrored = changed(panel, y=1 - panel.whole.y, p=1 - p)
    monkeypatch.setattr(sys.modules[_along.__module__], "deviations", lambda suprema, beta: np.full(2, 0.04))
    one, other = (band(rows, Full(0.25), 0.95, "bootstrap", np.random.default_rng(0)) for rows in (panel, mirrored))
    here, there = one.intervals, other.intervals
    np.testing.assert_allclose([there.lower, there.upper], [-here.upper, -here.lower], rtol=1e-6)


def test_betting_leaves_half_of_the_error_to_either_side(monkeypatch):
    panel, levels = sample(200, 1, 3, 2), []
    module = sys.modules[_phi.__module__]
    stakes = module._stakes
    monkeypatch.setattr(module, "_stakes", lambda *given: levels.append(given[1]) or stakes(*given))
    constraints(panel, LowDegree(2), 0.95, "exact", np.random.default_rng(0))
    assert levels == pytest.approx([log(2 * 3 * 2 / 0.025)] * 2)


@pytest.mark.parametrize("g", [-0.5, 0.0, 0.5])
def test_no_stake_can_lose_everything(g):
    """A row loses 1 + g of what is staked on it at most."""
    (block, *_), _ = dealt(sample(60, 1, 2, 3), monomials(1, 0), 0)
    bold, most = np.full((2, 1, 1), 5.0), np.full((2, 1, 1), LARGEST_STAKE / (1 + max(g, 0.0)))
    wealth = block.log_wealth(bold, np.full((2, 1, 1), g), 1)
    np.testing.assert_allclose(wealth, block.log_wealth(most, np.full((2, 1, 1), g), 1))
    assert np.isfinite(wealth).all()


@pytest.mark.parametrize("method", ["bootstrap", "bernstein"])
def test_the_interval_of_the_largest_moment_reaches_as_far_as_any_moment_may(method):
    found = band(sample(300, 1, 4, 2), LowDegree(2), 0.95, method, np.random.default_rng(0))
    known = found.constraints
    for j, (weight, violation, _, *limits) in enumerate(zip(*found.intervals, strict=True)):
        s = int(np.abs(known.v[j, :, 0]).argmax())
        assert weight.weights == (known.weights[s],)
        assert violation == known.v[j, s, 0]
        outer = max(known.upper[j].max(), -known.lower[j].min())
        inner = (known.lower if violation >= 0 else known.upper)[j, s, 0]
        assert limits == ([inner, outer] if violation >= 0 else [-outer, inner])


def test_an_interval_below_zero_has_its_sizes_turned_around():
    one = Intervals([Witness((), np.zeros((0, 1)))], *(np.array([v]) for v in (-0.3, 0.05, -0.4, -0.2)))
    either = Band(None, one, None)
    assert (either.lower.tolist(), either.upper.tolist()) == ([0.2], [0.4])


def test_the_outer_limit_leaves_room_for_what_a_bracket_does_not_tell():
    found = Suprema(np.array([0.1, 0.1]), np.array([0.15, 0.1]), np.zeros(2), lambda _: None)
    sums = SimpleNamespace(v=np.array([0.1, -0.1]), standard_error=np.zeros(2))
    lower, upper = np.array([0.05, -0.13]), np.array([0.13, -0.05])
    intervals = _intervals(found, [None, None], sums, lower, upper, np.ones(2))
    assert intervals.lower == pytest.approx([0.05, -0.13])
    assert intervals.upper == pytest.approx([0.18, -0.05])


def test_a_group_without_a_row_may_have_a_mass_all_the_same():
    n = 400
    empty = np.column_stack([np.ones(n), np.zeros(n), np.arange(n) < 40]).astype(float)
    panel = changed(sample(n, 1, 1, 2, even=True), C=empty)
    most = _most(panel, 2.0)
    assert most[:2].tolist() == pytest.approx([1.0, 4.0 / n])
    rare = 2.0 / n
    assert most[2] == pytest.approx(0.1 + rare + sqrt(4.0 * (0.1 / n - 0.01 / n) + rare**2))


def test_what_rounding_may_cost_a_redrawn_supremum_is_added(monkeypatch):
    panel = sample(400, 1, 2, 5, even=True)
    before = band(panel, Smooth(), 0.95, "bootstrap", np.random.default_rng(0)).upper
    rounded = panel.rows.run(PlacedResiduals(START, panel.families, LinePoints(4))).error
    monkeypatch.setattr(Panel, "grid_error", lambda *_: rounded)  # the draws know nothing of it
    after = band(panel, Smooth(), 0.95, "bootstrap", np.random.default_rng(0)).upper
    assert (rounded > 0.004).all()
    np.testing.assert_allclose(after - before, rounded, rtol=0.35)


@pytest.mark.parametrize("notion", [LowDegree(2), Full(0.25), Smooth()], ids=str)
def test_a_group_of_ten_rows_has_an_interval_within_what_is_possible(notion):
    n = 3000
    few = np.zeros(n)
    few[:10] = 1.0
    base = sample(n, 1, 1, 10, even=True)
    panel = changed(base, C=np.column_stack([np.ones(n), few]))
    found = band(panel, notion, 0.95, "bootstrap", np.random.default_rng(0))
    assert 0.3 * 10 / n < found.intervals.upper[1] - found.intervals.lower[1] < 4 * 10 / n


# --- betting ------------------------------------------------------------------------------------------------


def dealt(panel, weights, seed):
    """Return the blocks of bets, and the rows of each."""
    share = shares_of((seed,), panel.rows.count, 0, panel.rows.count)
    of = np.searchsorted(np.cumsum(BLOCKS)[:-1], share, side="right")
    blocks = panel.rows.run(Bets(panel.families, tuple(weights), seed, panel.rows.is_even))
    return blocks, [np.flatnonzero(of == k) for k in range(len(BLOCKS))]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3]), st.booleans())
def test_limits_by_betting_are_those_of_wealth_counted_row_by_row(seed, d, even):
    """No g that they exclude makes less than 2N / beta by the stakes, counted without any bound."""
    panel = sample(200, d, 2, seed, even)
    U = np.column_stack([np.ones(200), panel.p[:, 0]])
    blocks, rows = dealt(panel, [Monomial(), Monomial((0,))], seed)
    Z, b = terms(panel, U), panel.whole.weight / panel.whole.weight.max()
    for side in (1, -1):
        stakes = _stakes(blocks, 5.0, side)
        for g in (-0.3, -0.02, 0.0, 0.1, 0.6):
            bound = sum(
                one.log_wealth(stake, np.full(stake.shape, g), side) for one, stake in zip(blocks, stakes, strict=True)
            )
            exact = 0.0
            for some, stake in zip(rows, stakes, strict=True):
                held = np.minimum(stake, LARGEST_STAKE / (1 + max(side * g, 0.0)))
                exact = exact + np.log1p(held * b[some, None, None, None] * side * (Z[some] - g)).sum(axis=0)
            assert (bound <= exact + 1e-9).all()


def test_stakes_of_a_block_do_not_know_its_rows():
    panel = sample(320, 1, 1, 3, even=True)
    rows = dealt(panel, monomials(1, 0), 0)[1]
    other = changed(panel, y=np.where(np.isin(np.arange(320), rows[-1])[:, None], 1 - panel.whole.y, panel.whole.y))
    assert [len(some) for some in rows] == [20, 20, 40, 80, 160]
    stakes = [_stakes(dealt(one, monomials(1, 0), 0)[0], 5.0, 1) for one in (panel, other)]
    np.testing.assert_array_equal(stakes[0][-1], stakes[1][-1])
    assert (stakes[0][0] == 0).all()
    assert (stakes[0][-1] > 0).all()


def test_limits_by_betting_are_narrower_than_bernsteins():
    rng = np.random.default_rng(0)
    n = 20000
    p = rng.beta(5, 495, (n, 1))
    y = (rng.random((n, 1)) < p).astype(float)
    C = np.column_stack([np.ones(n), np.eye(10)[rng.integers(0, 10, n)]])
    panel = panel_of(y, p, np.full(n, 1 / n), C, tuple(map(str, range(11))))
    halves = [
        constraints(panel, LowDegree(2), 0.95, method, rng).half[:, 0, 0]
        for method in ("bootstrap", "exact", "bernstein")
    ]
    assert np.median(halves[0] / halves[2]) < 0.4
    assert np.median(halves[1] / halves[2]) < 0.6


def test_phi_bounds_the_logarithm():
    r = np.array([0.0, 1e-6, 0.1, 0.6, 0.95])
    for x in np.linspace(-1, 3, 101):
        ok = x >= -r
        assert (np.log1p(np.maximum(x, -r)) + 1e-12 >= (x - _phi(r) * x**2))[ok].all()


def test_classes_with_signs_are_bounded_by_bernstein():
    panel = sample(300, 1, 2, 0, even=True)
    signed = changed(panel, C=np.column_stack([np.ones(300), np.where(np.arange(300) % 2, 1.0, -1.0)]))
    exact, safe = (constraints(signed, LowDegree(2), 0.95, m, np.random.default_rng(0)) for m in ("exact", "bernstein"))
    np.testing.assert_array_equal(exact.lower, safe.lower)


# --- infinite classes and the exact test --------------------------------------------------------------------


def test_symmetrisation_by_hand(monkeypatch):
    panel = sample(100, 1, 2, 11)
    e, L = (panel.whole.weight**2).sum(), log(3 / 0.1)
    wanted = 2 * 0.2 + 2 * sqrt(2 * L * e / 5) + 3 * sqrt(2 * L * e)
    monkeypatch.setattr(sys.modules[draw.__module__], "drawn_suprema", lambda *_: np.array([[0.1, 0.2]] * 5))
    monkeypatch.setattr(Panel, "grid_error", lambda *_: np.array([0.05, 0.0]))
    assert symmetrisation(panel, Smooth(), 0.1, np.random.default_rng(0), 5) == pytest.approx(wanted)


@pytest.mark.parametrize("notion", [LowDegree(2), Full(0.25)], ids=str)
def test_signs_drawn_at_random_belong_to_rows(notion):
    panel = sample(100, 3, 2, 11)
    for number, found in enumerate(draw(panel, notion, (None,), range(3), 7)[0].suprema):
        signs = np.where(uniforms((7, number), 0, 100) < 0.5, -1.0, 1.0)[:, None]
        np.testing.assert_allclose(found, notion.suprema(panel.p, signs * panel.rho, panel.design).value, atol=1e-9)


def test_smooth_limits_hold_the_supremum_and_shrink_with_rows():
    widths = []
    for n in (500, 4000):
        panel = thirty_groups().draw(n, np.random.default_rng(n))
        some = changed(panel, C=panel.design.dense()[:, :4])
        normal = band(some, Smooth(), 0.95, "bootstrap", np.random.default_rng(0))
        proof = band(some, Smooth(), 0.95, "bernstein", np.random.default_rng(0))
        assert (normal.lower <= normal.found.value).all()
        assert (normal.found.value <= normal.upper).all()
        assert (proof.upper - proof.lower > normal.upper - normal.lower).all()
        assert normal.constraints is None
        widths.append((normal.upper - normal.found.value).max())
    assert widths[1] < 0.5 * widths[0]


@pytest.mark.parametrize("cache", [reference.CACHE, 1 << 7])
@pytest.mark.parametrize("notion", [LowDegree(2), Multiaccuracy(), LowDegree(3), Full(0.25)])
def test_the_null_floor_is_the_quantile_of_redrawn_suprema(monkeypatch, notion, cache):
    """In however many pieces the rows are drawn."""
    monkeypatch.setattr(reference, "CACHE", cache)
    panel = perfect().draw(400, np.random.default_rng(0))
    null = null_test(panel, notion, 0.9, np.random.default_rng(5), draws=49)
    drawn = []
    seed = new_seed(np.random.default_rng(5))
    for number in range(49):
        y = (uniforms((seed, number), 0, 400) < panel.p[:, 0]).astype(float)[:, None]
        drawn.append(notion.suprema(panel.p, panel.whole.weight[:, None] * (y - panel.p), panel.design).value)
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
    panel = panel_of(y, p, np.full(n, 1 / n), np.column_stack([np.ones(n), few]), ("all", "forty"))
    null = null_test(panel, LowDegree(2), 0.95, np.random.default_rng(0), draws=39)
    assert LowDegree(2).suprema(p, panel.rho, panel.design).value.max() < null.largest
    assert null.p_value == 1 / 40


def test_labels_that_predictions_exclude_are_as_significant_as_can_be():
    p = np.repeat([0.0, 1.0], 50)[:, None]
    panel = panel_of(1.0 - p, p, np.full(100, 0.01), np.ones((100, 1)), ("all",))
    assert null_test(panel, LowDegree(2), 0.95, np.random.default_rng(0), draws=19).p_value == 1 / 20
    right = changed(panel, y=p)
    null = null_test(right, LowDegree(2), 0.95, np.random.default_rng(0), draws=19)
    assert (null.p_value, null.largest, null.is_too_good) == (1.0, 0.0, False)


def test_cells_without_rows_are_constraints_too():
    p = np.full((50, 1), 0.55)
    panel = panel_of(np.ones((50, 1)), p, np.full(50, 0.02), np.ones((50, 1)), ("all",))
    found = band(panel, Full(0.1), 0.95, "hoeffding", np.random.default_rng(0)).constraints
    assert len(found.weights) == 10
    assert isinstance(evaluate(found.weights, p), CellIds)


@pytest.mark.parametrize(("notion", "d"), [(Full(0.1), 3), (Full(1e-4), 1)])
@pytest.mark.parametrize("method", ["exact", "bernstein", "hoeffding"])
def test_cells_that_are_not_listed_are_bounded_all_at_once(notion, d, method):
    """The cells that hold a row are chosen by the rows: a union bound over them would leave out all others."""
    panel = sample(500, d, 2, 3)
    found = band(panel, notion, 0.95, method, np.random.default_rng(0))
    assert found.constraints is None
    room = symmetrisation(panel, notion, 0.025, np.random.default_rng(0))
    most = mean_limit(panel.reach, panel, 0.0125)
    assert found.upper == pytest.approx(np.minimum(found.found.value + room, most))


@pytest.mark.parametrize("even", [True, False])
def test_sums_along_a_set_of_cells_are_those_of_its_rows(even):
    panel = sample(300, 1, 3, 7, even=even)
    known = constraints(panel, Full(0.1), 0.95, "bernstein", np.random.default_rng(0))
    found = Full(0.1).norm(known.weights, known.v)
    by_cells, by_rows = _along(panel, found, known), _along(panel, found, None)
    for name, one, other in zip(Totals._fields, by_cells[1].sums, by_rows[1].sums, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=rounding(panel, name), err_msg=name)
    for one, other in zip(by_cells[0], by_rows[0], strict=True):
        np.testing.assert_array_equal(one.coefficients, other.coefficients)


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


@pytest.mark.parametrize("notion", ["degree-2", "full-0.1", "smooth"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_predictions_of_0_and_1_that_are_all_right_prove_no_more_than_their_rows(notion, n_classes):
    """No label varies, in the rows or in any draw; one in a hundred may be wrong all the same."""
    n = 200
    y = np.arange(n) % n_classes
    p = (y == 1).astype(float) if n_classes == 2 else np.eye(3)[y]
    report = lowcal.audit(y, p, notion=notion, alpha=0.005, random_state=0, null_draws=19)
    assert report.verdict == "undecided"
    assert report.certified_alpha > 0.01
    assert report.p_value == 1.0
