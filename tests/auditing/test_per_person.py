"""`audit(per_person=...)`: verdicts, intervals and rankings by the error per person, E[c <w(f), y - f>] / E[c]."""

from __future__ import annotations

import json
from math import isnan, log

import numpy as np
import pandas as pd
import pytest

from lowcal import Groups, Memberships, Trees, audit, measure
from lowcal.auditing.band import METHODS, least_mean, masses, mean_limit
from lowcal.auditing.reports import Verdict
from lowcal.data.errors import InvalidInput
from lowcal.datasets import make_miscalibrated
from lowcal.notions import LowDegree, Smooth
from worlds import panel_of

RATE = 0.06


def rare(n=20_000, seed=0, n_sites=20, off=0.03):
    """Return rare outcomes at many sites of 1 to 10% of the rows: half are off by +off, half by -off per person."""
    rng = np.random.default_rng(seed)
    share = np.linspace(1.0, 9.0, n_sites)
    site = rng.choice(n_sites, n, p=share / share.sum())
    p = rng.beta(3.0, 3.0 / RATE * (1.0 - RATE), n)
    truth = np.clip(p + np.where(site % 2 == 0, off, -off), 0.0, 1.0)
    y = (rng.random(n) < truth).astype(int)
    return y, p, {"site": np.array([f"s{k:02d}" for k in range(n_sites)])[site]}, truth


@pytest.fixture(scope="module")
def data():
    return make_miscalibrated(1500, random_state=3)


def groups():
    return Groups(["g0", "g1"], min_mass=20)


# --- verdicts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_three_verdicts_follow_from_the_printed_intervals(data, method):
    kind = {"subpopulations": groups(), "method": method, "random_state": 0}
    found = audit(data.y, data.p, data.X, **kind).largest_per_person
    low, high = found.lower, found.upper
    asked = {limit: audit(data.y, data.p, data.X, per_person=limit, **kind) for limit in (high, (low + high) / 2)}
    assert asked[high].verdict is Verdict.SATISFIED
    assert asked[(low + high) / 2].verdict is Verdict.UNDECIDED
    if low > 0:
        violated = audit(data.y, data.p, data.X, per_person=low / 2, **kind)
        assert violated.verdict is Verdict.VIOLATED
        assert violated.proof.least_per_person == low
    else:
        assert method != "bootstrap"
    for report in asked.values():
        judged = [one for one in report.findings if one.mass >= report.min_share]
        assert report.certified_per_person == high == max(one.greatest_per_person for one in judged)
        assert report.largest.error == max(abs(one.conditional) for one in judged)


@pytest.mark.parametrize("limit", [0.002, 0.02, 0.5])
@pytest.mark.parametrize("method", ["bootstrap", "bernstein", "hoeffding"])
def test_for_everyone_the_limit_per_person_is_alpha(data, limit, method):
    one = audit(data.y, data.p, alpha=limit, method=method, random_state=0)
    other = audit(data.y, data.p, per_person=limit, method=method, random_state=0)
    assert one.verdict is other.verdict
    assert other.certified_per_person == pytest.approx(one.certified_alpha, rel=1e-12)
    assert other.largest_per_person == pytest.approx(one.largest_per_person)
    assert other.certified_alpha == one.certified_alpha
    assert (one.alpha, one.per_person, other.alpha, other.per_person) == (limit, None, None, limit)


def test_groups_far_off_per_person_pass_alpha_but_not_the_limit_per_person():
    """Base rate 6%, every site off by half of it: no violation is as large as alpha = 0.01."""
    y, p, X, _ = rare()
    at_alpha = audit(y, p, X, alpha=0.01, random_state=0)
    assert at_alpha.verdict is not Verdict.VIOLATED
    per_person = audit(y, p, X, per_person=0.01, random_state=0)
    assert per_person.verdict is Verdict.VIOLATED
    assert per_person.certified_alpha == at_alpha.certified_alpha
    shown = [one for one in per_person.worst(10) if one.least_per_person > 0.01]
    assert len(shown) >= 5


def test_alpha_is_one_hundredth_where_nothing_is_given(data):
    report = audit(data.y, data.p, random_state=0)
    assert (report.alpha, report.per_person, report.min_share) == (0.01, None, 0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.01, "per_person": 0.01}, "Give alpha or per_person, not both"),
        ({"per_person": 0.0}, "per_person must be a positive number"),
        ({"per_person": "small"}, "per_person must be a positive number"),
        ({"per_person": 0.1, "min_share": 2}, "min_share must be a share"),
    ],
)
def test_bad_tolerances_are_refused(data, options, message):
    with pytest.raises(InvalidInput, match=message):
        audit(data.y, data.p, data.X, **options)


def test_small_groups_are_listed_and_not_judged():
    n = 4000
    rng = np.random.default_rng(0)
    y = (rng.random(n) < 0.5).astype(int)
    small = np.arange(n) < 36
    p = np.where(small, np.where(y == 1, 0.02, 0.98), 0.5)
    X = {"g": np.where(small, "few", "many")}
    report = audit(y, p, X, per_person=0.2, random_state=0)
    assert report.verdict is Verdict.SATISFIED
    assert report.finding("g=few").least_per_person > 0.2
    assert any(note.startswith("not judged") and "g=few" in note for note in report.notes)
    judged = audit(y, p, X, per_person=0.2, min_share=0.005, random_state=0)
    assert judged.verdict is Verdict.VIOLATED
    assert judged.proof.subpopulation == "g=few"
    assert not judged.notes


def test_nothing_is_decided_where_nobody_is_judged(data):
    c = (np.arange(len(data.y)) < 100).astype(float)
    report = audit(
        data.y,
        data.p,
        pd.DataFrame({"few": c}),
        per_person=1.0,
        min_share=0.5,
        subpopulations=Memberships(everyone=False),
    )
    assert report.verdict is Verdict.UNDECIDED
    assert isnan(report.certified_per_person)
    assert "no groups of at least 50% of people" in str(report)
    assert "no groups of at least 50% of people" in report.to_html()
    assert report.to_dict()["certified_per_person"] is None


def test_memberships_with_signs_have_no_error_per_person(data):
    learner = Trees(max_depth=2, n_trees=3)
    report = audit(data.y, data.p, data.X, subpopulations=learner, per_person=0.9, random_state=0)
    signed = [one for one in report.findings if isnan(one.conditional_lower)]
    assert signed
    assert all(isnan(one.conditional) for one in signed)
    assert report.findings[-1] in signed
    assert any("memberships with signs" in note for note in report.notes)
    assert report.verdict is Verdict.SATISFIED
    assert "nan" not in str(report)
    assert all("nan" not in text for text in (report.to_markdown(), report.to_json()))


# --- intervals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "least"), [("bootstrap", 0.9), ("exact", 0.98), ("bernstein", 0.98)])
def test_intervals_per_person_cover_the_truth_together(method, least):
    """In 40 samples of rare outcomes, with shares that vary from sample to sample."""
    n_sites, covered = 8, []
    # for these rows f* - f is off on even and -off on odd sites, but where that would leave [0, 1]
    _, p, X, truth = rare(400_000, 10_000, n_sites)
    sites = np.unique(X["site"])
    limits = {s: [float(np.mean((w * (truth - p))[X["site"] == s])) for w in (1.0, p)] for s in sites}
    for seed in range(40):
        y, p, X, _ = rare(3000, seed, n_sites)
        report = audit(y, p, X, subpopulations=Groups(min_mass=0), method=method, random_state=seed, null_draws=19)
        holds = True
        for one in report.findings:
            if one.subpopulation == "everyone":
                continue
            true = dict(zip(("1", "p0"), limits[one.subpopulation.removeprefix("site=")], strict=True))
            holds &= one.conditional_lower - 1e-4 <= true[str(one.weight)] <= one.conditional_upper + 1e-4
            holds &= max(map(abs, true.values())) <= one.greatest_per_person + 1e-4
        covered.append(holds)
    assert np.mean(covered) >= least


def panel(c, weight=None):
    n = len(c)
    weight = np.full(n, 1.0 / n) if weight is None else weight
    p = np.linspace(0.1, 0.9, n)[:, None]
    return panel_of((p > 0.4).astype(float), p, weight, c, tuple("abcdefg"[: c.shape[1]]))


def columns(n=400):
    x = np.arange(n) / n
    return np.column_stack([np.ones(n), x < 0.2, np.where(x < 0.5, 0.3, 0.0), x - 0.5, np.zeros(n)]).astype(float)


def test_masses_are_those_of_the_rows_where_memberships_are_sets():
    one = panel(columns())
    for method in ("bootstrap", "bernstein", "hoeffding"):
        low, high = masses(one, LowDegree(2), method, 0.95)
        np.testing.assert_allclose(low[:2], one.mass[:2])
        np.testing.assert_allclose(high[:2], one.mass[:2])
        assert low[2] < one.mass[2] < high[2]  # memberships of 0.3: the mass is a mean of its own
        assert np.isnan(low[3:]).all()  # signs; nobody
    for notion, method in ((LowDegree(2), "exact"), (Smooth(), "bernstein")):
        low, high = masses(one, notion, method, 0.95)
        np.testing.assert_allclose(low[:3], least_mean(one.mass, one, 0.05 / 4)[:3])
        np.testing.assert_allclose(high[:3], mean_limit(one.mass, one, 0.05 / 4)[:3])


def test_the_least_mass_solves_the_tail_bound():
    one = panel(columns())
    mu, level = least_mean(one.mass, one, 0.05), log(5 / 0.05) / 400
    known = mu > 0.0
    np.testing.assert_allclose((mu + np.sqrt(2 * mu * level) + level / 3)[known], one.mass[known])
    assert mu[-1] == 0.0
    assert (mu[:3] < one.mass[:3]).all()


def test_mass_limits_hold_as_often_as_stated():
    rng = np.random.default_rng(0)
    true, missed = np.array([0.05, 0.3]), 0
    for _ in range(400):
        one = panel((rng.random((300, 2)) < true).astype(float))
        missed += (least_mean(one.mass, one, 0.1) > true).any() + (mean_limit(one.mass, one, 0.1) < true).any()
    assert missed <= 0.2 * 400


def test_limits_are_divided_by_the_mass_that_makes_them_wider():
    low, high = np.array([0.2, 0.0]), np.array([0.4, 0.1])
    found = type(masses(panel(columns()), LowDegree(2), "exact", 0.9))(low, high)
    lower, upper = found.per_person(np.array([0.02, -0.01]), np.array([0.04, 0.02]))
    np.testing.assert_allclose(lower, [0.05, -1.0])
    np.testing.assert_allclose(upper, [0.2, 1.0])
    lower, upper = found.per_person(np.array([-0.04, 0.0]), np.array([-0.02, 0.0]))
    np.testing.assert_allclose(lower, [-0.2, 0.0])
    np.testing.assert_allclose(upper, [-0.05, 0.0])


def test_limits_per_person_are_those_of_the_violation_by_the_share(data):
    report = audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)
    for one in report.findings:
        assert one.conditional == pytest.approx(one.violation / one.mass)
        assert one.conditional_lower == pytest.approx(max(-1.0, one.lower / one.mass))
        assert one.conditional_upper == pytest.approx(min(1.0, one.upper / one.mass))
        for gap in one.gaps:
            assert -1.0 <= gap.lower <= gap.gap <= gap.upper <= 1.0


# --- rankings -----------------------------------------------------------------------------------------------


def test_rankings_by_violation_and_per_person():
    y, p, X, _ = rare(n_sites=30, n=8000)
    report = audit(y, p, X, per_person=0.01, random_state=0)
    assert report.worst(5) == report.worst(5, by="per_person") == report.findings[:5]
    by_violation = [abs(one.violation) for one in report.worst(40, by="violation")]
    assert by_violation == sorted(by_violation, reverse=True)
    ranks = [(one.least_per_person, abs(one.conditional)) for one in report.findings]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks != sorted(ranks, key=lambda one: -one[1])  # certified limits come before estimates
    other = audit(y, p, X, alpha=0.01, random_state=0)
    assert [one.subpopulation for one in other.worst(40)] == [
        one.subpopulation for one in report.worst(40, by="violation")
    ]
    assert [one.subpopulation for one in other.worst(40, by="per_person")] == [
        one.subpopulation for one in report.findings
    ]
    with pytest.raises(InvalidInput, match="Did you mean 'per_person'"):
        report.worst(1, by="perperson")


def test_noise_in_a_small_group_is_not_the_worst_error_per_person():
    n = 4000
    rng = np.random.default_rng(1)
    p = np.full(n, 0.5)
    group = np.where(np.arange(n) < 32, "few", np.where(np.arange(n) < 2000, "a", "b"))
    y = (rng.random(n) < np.where(group == "a", 0.6, 0.5)).astype(int)
    y[:32] = np.arange(32) < 21  # off by 0.16, as often happens by chance
    report = audit(y, p, {"g": group}, per_person=0.02, random_state=0)
    few = report.finding("g=few")
    assert abs(few.conditional) > abs(report.finding("g=a").conditional)
    assert report.findings[0].subpopulation == "g=a"
    measured = measure(y, p, {"g": group})
    assert measured.worst(1, by="per_person")[0][0] == "g=a"
    assert measured.worst(4, by="per_person")[-1][0] == "g=few"
    assert measured.worst(2) == measured.worst(2, by="violation")
    name, size, _ = measured.worst(1, by="per_person")[0]
    assert size == measured.conditional[measured.names.index(name)]
    with pytest.raises(InvalidInput, match="valid: violation, per_person"):
        measured.worst(1, by="mass")


# --- what is printed and written ----------------------------------------------------------------------------


def test_the_headline_reads_as_a_sentence(data):
    kind = {"subpopulations": groups(), "random_state": 0}
    found = audit(data.y, data.p, data.X, **kind).largest_per_person
    report = audit(data.y, data.p, data.X, per_person=0.001, **kind)
    text = " ".join(str(report).split())
    one = report.proof
    assert text.startswith(
        "degree-2 at per_person=0.001: violated. With 95% confidence, the error per person of "
        f"{one.subpopulation} ({100 * one.mass:.2g}% of people) is at least {found.lower:.5f}: predictions are"
    )
    assert f"Largest error per person observed {found.error:.5f}" in text
    assert f"Largest error per person in the population {found.lower:.5f} to {found.upper:.5f}" in text
    assert f"Chance level up to {found.null_floor:.5f}" in text
    assert "Smallest detectable error per person" in text
    assert all(len(line) <= 120 for line in str(report).splitlines())
    satisfied = " ".join(str(audit(data.y, data.p, data.X, per_person=0.9, **kind)).split())
    assert f"the error per person is at most {found.upper:.4f} in all groups of at least 1% of people." in satisfied
    between = (found.lower + found.upper) / 2
    undecided = " ".join(str(audit(data.y, data.p, data.X, per_person=between, **kind)).split())
    assert f"lies between {found.lower:.4f} and {found.upper:.4f}: " in undecided
    assert "rows are too few to decide." in undecided


def test_plain_data_holds_the_tolerance_and_both_intervals(data):
    report = audit(data.y, data.p, data.X, subpopulations=groups(), per_person=0.02, min_share=0.05, random_state=0)
    plain = json.loads(report.to_json())
    assert (plain["alpha"], plain["per_person"], plain["min_share"]) == (None, 0.02, 0.05)
    assert plain["certified_per_person"] == report.certified_per_person
    assert plain["largest_per_person"] == vars(report.largest_per_person)
    frame = report.to_frame()
    for name in ("conditional", "conditional_lower", "conditional_upper"):
        wanted = [getattr(one, name) for one in report.findings]
        assert [one[name] for one in plain["findings"]] == wanted == frame[name].tolist()
