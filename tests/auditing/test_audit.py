"""`audit`: what it reports, recomputed from the definition; who is judged on which rows; when it warns."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lowcal
from lowcal import Groups, Intersections, Memberships, MulticalibratedClassifier, Trees, audit, measure, multicalibrate
from lowcal.auditing import audits as auditing
from lowcal.auditing.audits import Question, judge, panels_of
from lowcal.auditing.band import band
from lowcal.auditing.reports import Verdict
from lowcal.data.errors import AuditWarning, InvalidInput, brief_names
from lowcal.data.inputs import Layout
from lowcal.data.progress import Passes
from lowcal.datasets import make_miscalibrated
from lowcal.kernels.line import aggregate, solve_line
from lowcal.notions import LowDegree, parse_notion
from lowcal.solve.homes import open_home
from lowcal.solve.solvers import Tolerance
from lowcal.subpopulations.base import LeftOut
from worlds import panel_of

NOTIONS = ["multiaccuracy", "degree-1", "degree-2", "degree-3", "full-0.2", "smooth"]


@pytest.fixture(scope="module")
def data():
    return make_miscalibrated(1500, random_state=3)


@pytest.fixture(scope="module")
def data3():
    return make_miscalibrated(350, n_classes=3, random_state=3)


def groups(n=20):
    return Groups(["g0", "g1"], min_mass=n)


# --- the figures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("notion", NOTIONS)
def test_every_finding_is_the_violation_of_its_weight(data, data3, notion, n_classes):
    d = data if n_classes == 2 else data3
    weight = np.random.default_rng(0).random(len(d.y)) + 0.2
    report = audit(d.y, d.p, d.X, subpopulations=groups(), notion=notion, sample_weight=weight, random_state=0)
    measured = measure(d.y, d.p, d.X, subpopulations=groups(), notion=notion, sample_weight=weight)
    p = d.p[:, None] if d.p.ndim == 1 else d.p
    y = d.y[:, None] if d.p.ndim == 1 else np.eye(3)[d.y]
    share = weight / weight.sum()
    assert len(report.findings) == len(measured.names)
    for one in report.findings:
        c = members(d.X, one.subpopulation)
        W = one.weight(p)
        assert W.min() >= -1e-9
        assert W.max() <= 1 + 1e-9
        z = c * (W * (y - p)).sum(axis=1)
        g = share @ z
        assert one.violation == pytest.approx(g, abs=1e-12)
        error = np.sqrt(share**2 @ (z - g) ** 2 / (1 - (share**2).sum()))
        assert one.standard_error == pytest.approx(error, rel=1e-6)
        j = measured.names.index(one.subpopulation)
        if notion == "smooth" and n_classes == 3:
            sides = [aggregate(p[:, a], share * c * (y - p)[:, a]) for a in range(3)]
            value = sum(solve_line(v, r, 2.0)[0] for v, r in sides)  # class-wise, below the supremum of all weights
            assert measured.violation[j] >= value - 1e-12
            assert any("class-wise" in note for note in report.notes)
        else:
            value = measured.violation[j]
        assert abs(one.violation) == pytest.approx(value, abs=1e-9)
        assert one.basis == pytest.approx(measured.basis[j], abs=1e-12)
        assert one.mass == pytest.approx(share @ c)
        assert one.conditional == pytest.approx(g / (share @ c))
        assert one.n_effective == pytest.approx((share @ c) ** 2 / (share**2 @ c))
        assert one.lower < one.violation < one.upper
        bracket = 0.0 if notion == "smooth" else (measured.upper - measured.violation)[j]
        assert one.detectable > (one.upper - one.lower) / 2 - bracket - 1e-12
        assert max(one.upper, -one.lower) >= measured.upper[j] - 1e-12 or notion == "smooth"


def members(X, name):
    if name == "everyone":
        return np.ones(len(X["g0"]))
    column, value = name.split("=")
    return (np.asarray(X[column]) == value).astype(float)


def test_the_report_holds_the_largest_of_everything(data):
    report = audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)
    sizes = [abs(one.violation) for one in report.findings]
    assert sizes == sorted(sizes, reverse=True)
    assert report.violation == sizes[0]
    assert report.worst(2) == report.findings[:2]
    assert report.finding("everyone") in report.findings
    assert report.detectable == max(one.detectable for one in report.findings)
    assert report.certified_alpha >= report.violation >= report.certified_lower
    assert report.n_rows == 1500
    assert report.n_effective == pytest.approx(1500)
    assert report.is_exact


@pytest.mark.parametrize("method", ["bootstrap", "bernstein", "hoeffding"])
def test_three_verdicts(data, method):
    kind = {"subpopulations": groups(), "method": method, "random_state": 0}
    limits = audit(data.y, data.p, data.X, **kind)
    low, high = limits.certified_lower, limits.certified_alpha
    verdict = {alpha: audit(data.y, data.p, data.X, alpha=alpha, **kind).verdict for alpha in (high, (low + high) / 2)}
    assert verdict[high] is Verdict.SATISFIED
    assert verdict[(low + high) / 2] is Verdict.UNDECIDED
    if low > 0:
        assert audit(data.y, data.p, data.X, alpha=low / 2, **kind).verdict == "violated"
    else:
        assert method != "bootstrap"


def test_more_confidence_is_wider(data):
    kind = {"subpopulations": groups(), "random_state": 0}
    wide = audit(data.y, data.p, data.X, confidence=0.999, **kind)
    narrow = audit(data.y, data.p, data.X, confidence=0.5, **kind)
    assert wide.certified_alpha > narrow.certified_alpha
    assert wide.certified_lower < narrow.certified_lower
    assert wide.null_floor > narrow.null_floor


def test_labels_are_named_and_any_labels_will_do(data):
    words = np.where(data.y == 1, "yes", "no")
    report = audit(words, data.p, data.X, subpopulations=groups(), random_state=0)
    plain = audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)
    assert {one.label for one in report.findings} == {"yes"}
    assert [one.violation for one in report.findings] == [one.violation for one in plain.findings]


def test_bounded_outcomes_have_no_exact_test(data):
    y = 0.25 + 0.5 * data.y
    report = audit(y, data.p, data.X, subpopulations=groups(), random_state=0)
    assert np.isnan(report.p_value)
    assert any("numbers, not labels" in note for note in report.notes)
    assert report.to_dict()["p_value"] is None
    assert report.findings[0].label is None


def test_weights_scale_freely_and_zero_weights_drop_rows(data):
    weight = np.random.default_rng(1).integers(0, 3, 1500).astype(float)
    kind = {"subpopulations": groups(), "random_state": 0, "method": "bernstein"}
    report = audit(data.y, data.p, data.X, sample_weight=weight, **kind)
    scaled = audit(data.y, data.p, data.X, sample_weight=7 * weight, **kind)
    for one, two in zip(scaled.findings, report.findings, strict=True):
        assert (one.violation, one.upper) == pytest.approx((two.violation, two.upper))
    keep = weight > 0
    X = {name: np.asarray(column)[keep] for name, column in data.X.items()}
    kept = audit(data.y[keep], data.p[keep], X, sample_weight=weight[keep], **kind)
    assert {f.subpopulation: f.violation for f in kept.findings} == pytest.approx(
        {f.subpopulation: f.violation for f in report.findings}
    )


def test_the_same_seed_gives_the_same_report(data):
    kind = {"subpopulations": groups(), "random_state": 5}
    one, two = (audit(data.y, data.p, data.X, **kind).to_dict() for _ in range(2))
    assert json.dumps(one) == json.dumps(two)
    assert json.dumps(one) != json.dumps(audit(data.y, data.p, data.X, **{**kind, "random_state": 6}).to_dict())


def test_frames_give_the_same_report(data):
    kind = {"subpopulations": groups(), "random_state": 5}
    frame = pd.DataFrame({name: np.asarray(column) for name, column in data.X.items()})
    assert audit(data.y, data.p, frame, **kind).to_dict() == audit(data.y, data.p, data.X, **kind).to_dict()


def test_without_groups_everyone_is_audited(data):
    report = audit(data.y, data.p, random_state=0)
    assert [one.subpopulation for one in report.findings] == ["everyone"]


# --- what is printed and written ----------------------------------------------------------------------------


def test_the_text_says_what_was_found(data):
    report = audit(data.y, data.p, data.X, subpopulations=groups(), alpha=0.001, random_state=0)
    text = str(report)
    start = (
        f"degree-2 at alpha=0.001: violated. With 95% confidence, the violation of {report.proof.subpopulation} is at"
    )
    assert " ".join(text.split()).startswith(start)
    assert f"{report.violation:.4f}" in text
    assert f"{report.null_floor:.4f}" in text
    assert f"p-value {report.p_value:.3g} (of perfect calibration)" in " ".join(text.split())
    assert report.p_value <= 0.05
    assert all(len(line) <= 120 for line in text.splitlines())
    assert "everyone" in text
    assert f"outcomes {report.worst(1)[0].gaps[0].actual:.4f}" in str(report.worst(1)[0])
    satisfied = str(audit(data.y, data.p, data.X, subpopulations=groups(), alpha=0.9, random_state=0))
    assert "satisfied. With 95% confidence, the violation is at most" in satisfied
    between = (report.certified_lower + report.certified_alpha) / 2
    undecided = str(audit(data.y, data.p, data.X, subpopulations=groups(), alpha=between, random_state=0))
    assert "rows are too few to decide" in " ".join(undecided.split())


def test_plain_data_and_frames(data):
    report = audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["verdict"] == report.verdict
    assert plain["findings"][0]["subpopulation"] == report.findings[0].subpopulation
    frame = report.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame["violation"].tolist() == [one.violation for one in report.findings]
    assert {"subpopulation", "weight", "label", "lower", "upper", "mass", "n_effective"} <= set(frame.columns)


def test_frames_without_pandas(data, monkeypatch):
    import sys

    report = audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert type(report.to_frame()).__module__.startswith("polars")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(lowcal.MissingExtra, match="pip install pandas"):
        report.to_frame()


def test_unknown_subpopulations_and_options(data):
    report = audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)
    with pytest.raises(InvalidInput, match="no subpopulation 'nobody'"):
        report.finding("nobody")
    with pytest.raises(InvalidInput, match="n must be a whole number"):
        report.worst(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 1.0}, "confidence must be a number in"),
        ({"confidence": 0}, "confidence must be above 0"),
        ({"confidence": "high"}, "confidence must be a number"),
        ({"method": "bootsrap"}, "Did you mean 'bootstrap'"),
        ({"null_draws": 5}, "null_draws must be a whole number of at least 19"),
        ({"alpha": 0}, "alpha must be a positive number"),
        ({"notion": "degre-2"}, "degree-2"),
        ({"random_state": "x"}, "random_state must be"),
        ({"sample_weight": [1.0]}, "sample_weight has 1 rows"),
    ],
)
def test_bad_options_are_refused(data, options, message):
    with pytest.raises(InvalidInput, match=message):
        audit(data.y, data.p, data.X, **options)


def test_bad_rows_are_refused(data):
    bad = data.p.copy()
    bad[7] = np.nan
    with pytest.raises(InvalidInput, match="row 7"):
        audit(data.y, bad, data.X)


# --- small, empty and constant ------------------------------------------------------------------------------


def test_an_empty_group_a_single_row_and_a_constant_prediction():
    n = 400
    rng = np.random.default_rng(0)
    y = (rng.random(n) < 0.3).astype(int)
    single = np.zeros(n)
    single[3] = 1.0
    X = pd.DataFrame({"all": np.ones(n), "none": np.zeros(n), "one": single})
    for notion in ("multiaccuracy", "degree-2", "full-0.1", "smooth"):
        for method in ("bootstrap", "bernstein", "hoeffding"):
            report = audit(
                y,
                np.full(n, 0.3),
                X,
                subpopulations=Memberships(min_mass=0),
                notion=notion,
                method=method,
                random_state=0,
            )
            one = report.finding("one")
            assert "none" not in {found.subpopulation for found in report.findings}  # nobody is there to be judged
            assert one.n_effective == pytest.approx(1.0)
            assert one.lower < one.violation < one.upper
            assert str(report)
            json.dumps(report.to_dict(), allow_nan=False)


def judged(panel, notion="degree-2", method="bootstrap", is_exact=True):
    """Return the report on rows and memberships as they are, found by a learner if not exact."""
    learner = SimpleNamespace(is_exact=is_exact, left_out=LeftOut())
    home = SimpleNamespace(layout=Layout(2, (0, 1)), learner=learner, is_fitted=False)
    streams = np.random.default_rng(0).spawn(3)
    return judge([panel], home, Question(parse_notion(notion), Tolerance(0.01, None, 0.01), 0.95, method, 99), streams)


@pytest.mark.parametrize("method", ["bootstrap", "bernstein", "hoeffding"])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "smooth", "full-0.1"])
def test_a_learned_group_that_nobody_of_the_judging_rows_belongs_to(notion, method):
    n = 400
    rng = np.random.default_rng(0)
    y, p = (rng.random((n, 1)) < 0.3).astype(float), rng.random((n, 1))
    panel = panel_of(y, p, np.full(n, 1 / n), np.column_stack([np.ones(n), np.zeros(n)]), ("everyone", "none"))
    report = judged(panel, notion, method, is_exact=False)
    none = report.finding("none")
    assert (none.violation, none.mass, none.n_effective) == (0.0, 0.0, 0.0)
    assert np.isnan(none.conditional)
    assert none.lower < -0.005 < 0.005 < none.upper  # no row says nothing: the interval is no point
    assert any("no row belongs to none" in note for note in report.notes)
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "smooth", "full-0.1"])
def test_two_rows(notion):
    report = audit([0, 1], [0.2, 0.9], notion=notion, random_state=0)
    assert report.verdict == "undecided"
    assert (report.certified_lower, report.findings[0].mass) == (0.0, 1.0)


# --- learned classes ----------------------------------------------------------------------------------------


def halves(seed=0, n=800):
    """Return outcomes that are wrong for x > 0.5 only, their table and the panels of an audit with trees."""
    rng = np.random.default_rng(seed)
    x = rng.random((n, 3))
    p = rng.random(n) * 0.6 + 0.2
    y = (rng.random(n) < np.clip(p + 0.2 * (x[:, 0] > 0.5), 0, 1)).astype(int)
    return x, y, p


def panels(x, y, p, seed=0):
    home = open_home(y, p, x, None, None, Trees(max_depth=2), 0, None, Passes(False), is_fit=False)
    return panels_of(home, LowDegree(2), np.random.default_rng(seed))


def test_what_a_learner_finds_is_judged_on_other_rows():
    x, y, p = halves()
    whole, first, second = panels(x, y, p)
    assert whole.names == ("everyone",)
    assert len(first.whole.y) + len(second.whole.y) == len(y)
    own = [set(map(tuple, panel.p)) for panel in (first, second)]
    assert not own[0] & own[1]
    # the labels that judge have no say in what is judged
    judged = {tuple(row) for row in first.p}
    flipped = np.array([1 - b if (a,) in judged else b for a, b in zip(p, y, strict=True)])
    _, again, other = panels(x, flipped, p)
    assert again.names == first.names
    assert other.names != second.names


def test_learned_subpopulations_are_found_where_the_model_is_wrong():
    x, y, p = halves(n=3000)
    report = audit(y, p, x, subpopulations=Trees(max_depth=2), alpha=0.01, random_state=0)
    assert report.verdict == "violated"
    assert not report.is_exact
    assert any("found by a learner" in note for note in report.notes)
    assert "judged on the other" in str(report)
    assert "x0" in report.worst(2)[1].subpopulation or "x0" in report.worst(2)[0].subpopulation


def test_panels_share_the_risk_of_being_wrong(monkeypatch):
    x, y, p = halves()
    asked = []

    def listen(panel, notion, confidence, *rest):
        asked.append(confidence)
        return band(panel, notion, confidence, *rest)

    monkeypatch.setattr(auditing, "band", listen)
    report = audit(y, p, x, subpopulations=Trees(max_depth=2), confidence=0.94, random_state=0)
    assert asked == [pytest.approx(0.98)] * 3
    assert report.confidence == 0.94


def test_noise_is_not_found_by_a_learner():
    """On the rows that it learns from, a tree finds noise; the audit does not report it."""
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, p = rng.random((300, 5)), rng.random(300)
        y = (rng.random(300) < p).astype(int)
        found += audit(y, p, x, subpopulations=Trees(max_depth=3), alpha=1e-9, random_state=seed).p_value <= 0.05
    assert found <= 3


def test_a_union_judges_its_groups_on_all_rows(data):
    report = audit(data.y, data.p, data.X, subpopulations=groups() + Trees(max_depth=1), random_state=0)
    plain = audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)
    for one in plain.findings:
        assert report.finding(one.subpopulation).violation == pytest.approx(one.violation)


# --- rows that were used before -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(data):
    fit = multicalibrate(data.y, data.p, data.X, subpopulations=groups(), alpha=0.02)
    return fit, fit.predictor(data.p, data.X)


def test_an_audit_on_the_fitted_rows_warns(data, fitted):
    with pytest.warns(AuditWarning, match="rows the model was fitted on"):
        report = audit(data.y, fitted[1], data.X, subpopulations=groups(), random_state=0)
    assert any("fitted on" in note for note in report.notes)
    assert "Note: these are the rows" in str(report)


def test_other_rows_and_other_models_do_not_warn(data, fitted):
    fresh = make_miscalibrated(1500, random_state=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        audit(fresh.y, fitted[0].predictor(fresh.p, fresh.X), fresh.X, subpopulations=groups(), random_state=0)
        audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)


def test_fitted_rows_in_another_order_look_too_good(data):
    fit = multicalibrate(data.y, data.p, data.X, subpopulations=groups(), alpha=1e-6, guard=False)
    order = np.random.default_rng(0).permutation(len(data.y))
    X = {name: np.asarray(column)[order] for name, column in data.X.items()}
    with pytest.warns(AuditWarning, match="smaller than a perfect model would show"):
        audit(data.y[order], fit.predictor(data.p, data.X)[order], X, subpopulations=groups(), random_state=0)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_an_audit_of_an_estimator_on_its_own_rows_warns(data, data3, n_classes):
    from sklearn.linear_model import LogisticRegression

    d = data if n_classes == 2 else data3
    x = np.column_stack([np.asarray(d.X[name]) for name in ("x0", "x1")])
    model = MulticalibratedClassifier(LogisticRegression(), alpha=0.05, random_state=0).fit(x, d.y)
    with pytest.warns(AuditWarning, match="rows the model was fitted on"):
        audit(d.y, model.predict_proba(x), x, subpopulations=Trees(), random_state=0)


def test_a_fit_that_changes_nothing_leaves_no_trace(data):
    fit = multicalibrate(data.y, data.p, data.X, subpopulations=groups(), alpha=0.9)
    assert fit.n_updates == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)


def test_reports_compare_by_identity(data):
    report = audit(data.y, data.p, random_state=0)
    assert report != replace(report, tolerance=Tolerance(0.5))


def test_intersections_of_a_real_table():
    data = lowcal.datasets.load_adult()
    rows = np.arange(4000)
    X = {name: data.X[name][rows] for name in ("sex", "race")}
    report = audit(data.y[rows], np.full(4000, 0.25), X, subpopulations=Intersections(["sex", "race"], depth=2))
    assert report.verdict == "violated"
    assert any(one.is_significant for one in report.findings)


# --- guarantees and users' own notions ----------------------------------------------------------------------


@pytest.mark.parametrize("notion", ["degree-2", "multiaccuracy", "smooth"])
def test_pages_hold_the_moments_of_their_group(data, notion):
    report = audit(data.y, data.p, data.X, subpopulations=groups(), notion=notion, random_state=0)
    (page,) = report.pages("g0=a")
    c = members(data.X, "g0=a") == 1
    f, y = data.p[c], data.y[c]
    assert page.figures["mean_prediction"] == pytest.approx(f.mean())
    assert page.figures["mean_outcome"] == pytest.approx(y.mean())
    assert page.figures["mass"] == pytest.approx(c.mean())
    assert page.figures["margin"] > 0
    assert page.name == "g0=a"
    assert any("variance" in sentence for sentence in page.sentences)


def test_margins_of_pages_are_those_of_the_constraints(data, monkeypatch):
    found = []

    def listen(*given):
        found.append(band(*given))
        return found[0]

    monkeypatch.setattr(auditing, "band", listen)
    report = audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)
    violation = report.finding("g1=b").violation
    (j,) = (j for j, value in enumerate(found[0].found.value) if value == abs(violation))
    (page,) = report.pages("g1=b")
    assert page.figures["margin"] == pytest.approx(found[0].constraints.half[j].max() / page.figures["mass"])


def test_guarantees_read_as_a_page_for_each_group(data, data3):
    report = audit(data.y, data.p, data.X, subpopulations=groups(), random_state=0)
    text = report.guarantees()
    assert all(f"For {one.subpopulation}, " in text for one in report.findings)
    assert report.guarantees("everyone").count("For everyone,") == len(report.pages("everyone")[0].sentences)
    with pytest.raises(InvalidInput, match="no subpopulation"):
        report.guarantees("nobody")
    several = audit(data3.y, data3.p, data3.X, subpopulations=groups(), random_state=0)
    assert [page.label for page in several.pages("everyone")] == ["0", "1", "2"]


class Own:
    """A user's notion: multiaccuracy, with nothing but the protocol."""

    def __str__(self):
        return "own"

    def __getattr__(self, name):
        if name in ("constraints", "norm", "is_largest", "limits") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(lowcal.Multiaccuracy(), name)


@pytest.mark.parametrize("method", ["bootstrap", "bernstein"])
def test_a_users_own_notion_is_audited_by_its_own_search(data, method):
    kind = {"subpopulations": groups(), "method": method, "random_state": 0}
    own = audit(data.y, data.p, data.X, notion=Own(), **kind)
    known = audit(data.y, data.p, data.X, notion="multiaccuracy", **kind)
    assert own.violation == pytest.approx(known.violation, rel=1e-9)
    assert own.p_value == pytest.approx(known.p_value, abs=0.1)  # scores of suprema, and of single moments
    assert own.null_floor == pytest.approx(known.null_floor)
    assert own.certified_alpha > own.violation
    if method == "bootstrap":  # resampling the suprema themselves gives bands of the same size
        assert own.certified_alpha - own.violation == pytest.approx(known.certified_alpha - known.violation, rel=0.25)


def test_a_half_without_weight_can_not_judge(data):
    weight = np.zeros(1500)
    weight[0] = 1.0
    with pytest.raises(InvalidInput, match="both halves"):
        audit(data.y, data.p, data.X, subpopulations=Trees(), sample_weight=weight, classes=[0, 1], random_state=0)


@pytest.mark.parametrize("n", [300, 900])
def test_smooth_weights_of_several_classes_are_bracketed_for_few_rows(n, monkeypatch):
    d = make_miscalibrated(n, n_classes=3, random_state=1)
    report = audit(d.y, d.p, notion="smooth", random_state=0)
    note = next(note for note in report.notes if "class-wise" in note)
    figures = [float(word) for word in note.replace(",", "").split() if word.startswith("0.")]
    every = measure(d.y, d.p, notion="smooth")
    wanted = {round(float(every.violation[0]), 4), round(float(every.upper[0]), 4)}
    assert set(figures) == wanted
    assert report.violation <= every.violation[0] + 1e-12
    monkeypatch.setattr(auditing, "BRACKET", 10)
    assert audit(d.y, d.p, notion="smooth", random_state=0).notes[0].endswith("its own probability.")


def test_groups_that_are_too_small_to_be_examined_are_named():
    rng = np.random.default_rng(0)
    n = 4000
    p = rng.uniform(0.2, 0.8, n)
    y = (rng.random(n) < p).astype(int)
    few = np.where(np.arange(n) < 29, "b", "a")
    options = {"alpha": 0.1, "random_state": 0, "null_draws": 19}
    report = audit(y, p, {"g": few}, subpopulations=Groups(["g"]), **options)
    assert report.verdict == "satisfied"
    assert "not examined, as there are too few rows (min_mass): g=b (29 rows)." in report.notes
    assert any("g=b (29 rows)" in line for line in str(report).splitlines())
    members = np.column_stack([few == "b", few == "a"]).astype(float)
    report = audit(y, p, members, subpopulations=lowcal.Memberships(["b", "a"]), **options)
    assert "not examined, as there are too few rows (min_mass): b (29 rows)." in report.notes
    both = Groups(["g"]) + lowcal.Groups(["g"], everyone=False)
    assert sum("g=b" in note for note in audit(y, p, {"g": few}, subpopulations=both, **options).notes) == 1


def test_a_column_of_which_nothing_can_be_examined_is_not_satisfied():
    rng = np.random.default_rng(0)
    n = 4000
    p = rng.uniform(0.2, 0.8, n)
    y = (rng.random(n) < p).astype(int)
    X = {"id": np.array([f"k{i}" for i in range(n)]), "g": np.where(rng.random(n) < 0.5, "a", "b")}
    report = audit(y, p, X, subpopulations=Groups(), alpha=0.1, random_state=0, null_draws=19)
    assert report.verdict == "undecided"
    assert "not examined, as there are too few rows (min_mass): 4,000 values of id (4,000 rows)." in report.notes
    assert any(note.startswith("no group of id could be examined") for note in report.notes)
    assert audit(y, p, X, subpopulations=Groups("g"), alpha=0.1, random_state=0, null_draws=19).verdict == "satisfied"


def test_smooth_weights_of_several_classes_are_never_satisfied():
    """A violation that class-wise weights do not see: labels depend on the order of all three probabilities."""
    import itertools

    orders = list(itertools.permutations(range(3)))
    P = np.array([0.5, 0.3, 0.2])[np.array(orders)]
    sign = np.array([np.linalg.det(np.eye(3)[list(order)]) for order in orders]).round()
    truth = P + sign[:, None] * np.where(P == 0.5, 0.18, -0.09)
    rng = np.random.default_rng(0)
    i = rng.integers(6, size=3000)
    y = (rng.random(3000)[:, None] > np.cumsum(truth[i], 1)).sum(1).clip(0, 2)
    report = audit(y, P[i], notion="smooth", alpha=0.04, random_state=0, null_draws=19)
    assert (report.verdict, report.certified_alpha) == ("undecided", 1.0)
    assert report.findings[0].upper < 0.04  # what is said of class-wise weights


def test_a_name_with_a_line_break_stays_in_its_line(data):
    g = np.where(np.arange(len(data.y)) % 2 == 0, "a\nb", "c")
    report = audit(data.y, data.p, {"g": g}, random_state=0, null_draws=19)
    assert "g=a\\nb" in str(report)
    assert report.finding("g=a\nb").mass == pytest.approx(0.5, abs=0.01)


# --- what an attack with known truth found ------------------------------------------------------------------


def weighted(sigma: float, n: int = 4000, groups: int = 30, seed: int = 0):
    """A perfect model with uneven weights."""
    rng = np.random.default_rng(seed)
    p = rng.beta(2, 2, n)
    X = {"g": rng.integers(0, groups, n).astype(str), "h": rng.integers(0, 3, n).astype(str)}
    return (rng.random(n) < p).astype(int), p, X, rng.lognormal(sigma=sigma, size=n)


def test_no_interval_leaves_what_is_possible():
    """With one weight far above the others, intervals were wider than the group's own mass, and gaps beyond 6."""
    y, p, X, weight = weighted(1.5)
    report = audit(y, p, X, sample_weight=weight, random_state=0)
    for one in report.findings:
        assert max(-one.lower, one.upper) <= one.mass * (1 + 4 / np.sqrt(one.n_effective)) + 1e-9
    for one in report.findings:
        for gap in one.gaps:
            assert -1.0 <= gap.lower <= gap.gap <= gap.upper <= 1.0
        (page,) = report.pages(one.subpopulation)
        assert -1.0 <= page.figures["gap_lower"] <= page.figures["gap_upper"] <= 1.0
        assert page.figures["margin"] <= 1.0
        assert one.method == report.method == "bootstrap"


def test_weights_cost_no_more_than_their_effective_number_of_rows():
    y, p, X, weight = weighted(1.0)
    even = audit(y, p, X, random_state=0)
    uneven = audit(y, p, X, sample_weight=weight, random_state=0)
    wider = np.sqrt(even.n_effective / uneven.n_effective)
    for one in uneven.findings:
        other = even.finding(one.subpopulation)
        # in a group, weights may happen to be more uneven than in all rows; skewness asks for something, too, and so
        # does chance in the two quantiles of 99 draws
        own = np.sqrt(other.n_effective / one.n_effective) * one.mass / other.mass
        assert (one.upper - one.lower) / (other.upper - other.lower) < 1.5 * max(own, wider)


@pytest.mark.product
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.2"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("method", ["bootstrap", "exact"])
def test_the_verdict_follows_from_the_printed_intervals(data, data3, notion, n_classes, method):
    d = data if n_classes == 2 else data3
    report = audit(d.y, d.p, d.X, subpopulations=groups(), notion=notion, method=method, alpha=0.01, random_state=0)
    least = max(max(one.lower, -one.upper, 0.0) for one in report.findings)
    greatest = max(max(-one.lower, one.upper) for one in report.findings)
    assert report.certified_lower == least
    assert report.proof.least == least
    if not (notion == "smooth" and n_classes == 3):  # class-wise weights say nothing of the others
        assert report.certified_alpha == min(1.0, greatest)
    assert any(one is report.proof for one in report.shown(1))


def test_the_headline_names_the_group_that_proves_the_violation():
    """The largest estimate is everyone's; the proof is the site's, whose interval is narrow."""
    rng = np.random.default_rng(3)
    n = 3000
    site = rng.random(n) < 0.12
    p = np.where(site, 0.02, 0.5)
    y = (rng.random(n) < np.where(site, 0.25, 0.51)).astype(int)
    report = audit(y, p, {"site": np.where(site, "B", "A")}, alpha=0.01, random_state=0)
    assert report.verdict == "violated"
    assert report.findings[0].subpopulation != "site=B"
    assert "the violation of site=B is at least" in " ".join(str(report).split())
    assert report.proof.subpopulation == "site=B"
    assert "site=B" in report.to_markdown(1)


def test_p_value_and_intervals_agree_on_rare_outcomes():
    """An interval excludes 0 for a perfect model when the p-value is small, and not otherwise."""
    rng = np.random.default_rng(0)
    for seed in range(12):
        p = rng.beta(2, 38, 3000)
        y = (rng.random(3000) < p).astype(int)
        X = {"g": rng.integers(0, 12, 3000).astype(str)}
        report = audit(y, p, X, alpha=1e-6, random_state=seed)
        excluded = any(one.is_significant for one in report.findings)
        assert excluded == (report.p_value <= 0.05) or 0.03 <= report.p_value <= 0.08


def test_a_rare_group_that_is_wrong_has_the_smallest_p_value():
    """One of twenty groups has four times as many positives as predicted."""
    rng = np.random.default_rng(0)
    g = rng.integers(0, 20, 20_000)
    p = np.full(20_000, 0.01)
    y = (rng.random(20_000) < np.where(g == 7, 0.04, 0.01)).astype(int)
    report = audit(y, p, {"g": g.astype(str)}, random_state=0)
    assert report.p_value == 0.01
    assert report.proof.subpopulation == "g=7"


def test_the_least_p_value_of_a_learned_class_is_that_of_any_other(data):
    report = audit(data.y, data.p, data.X, subpopulations=lowcal.Trees(), random_state=0)
    assert report.p_value == pytest.approx(1 / 100)


def test_every_class_has_its_gap_and_the_largest_is_named():
    """Withdrawn is off most; a sum over the classes was printed as the gap of another."""
    rng = np.random.default_rng(0)
    n = 6000
    truth = np.tile([0.3, 0.5, 0.2], (n, 1))
    p = truth + np.array([-0.036, -0.04, 0.076])
    y = np.array(["Fail", "Pass", "Withdrawn"])[(rng.random(n)[:, None] > truth.cumsum(axis=1)).sum(axis=1)]
    report = audit(y, p, alpha=0.01, random_state=0)
    one = report.finding("everyone")
    assert one.label == "Withdrawn"
    by_label = {gap.label: gap for gap in one.gaps}
    for a, label in enumerate(["Fail", "Pass", "Withdrawn"]):
        gap = by_label[label]
        assert gap.gap == pytest.approx((y == label).mean() - p[0, a])
        assert gap.lower < gap.gap < gap.upper
    assert by_label["Withdrawn"].upper < -0.05
    assert "Withdrawn" in str(report)
    assert "on label" not in str(report)
    assert [gap["label"] for gap in report.to_dict()["findings"][0]["gaps"]] == ["Fail", "Pass", "Withdrawn"]


# --- names in text -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_long_names():
    """Outcomes that depend on a column of 80 cities, so that trees list dozens of them."""
    rng = np.random.default_rng(0)
    cities = np.array([f"city number {k}" for k in range(80)])
    code = rng.integers(0, 80, 6000)
    X = {"city": cities[code], "age": rng.normal(size=6000)}
    y = (rng.random(6000) < 0.2 + 0.6 * rng.permutation(80)[code] / 80).astype(int)
    return y, np.full(6000, 0.5), X


def test_long_names_are_abbreviated_in_text_alone(with_long_names):
    y, p, X = with_long_names
    trees = Trees(max_depth=3)
    report, measured = audit(y, p, X, subpopulations=trees, random_state=0), measure(y, p, X, subpopulations=trees)
    names = [one.subpopulation for one in report.findings]
    assert max(map(len, names)) > 300
    for text in (str(report), str(measured), str(report.findings[0])):
        assert max(map(len, text.splitlines())) < 200
        assert "…" in text
    assert len(repr(measured)) < 200
    table = [line.split("|")[1] for line in report.to_markdown().splitlines() if line.startswith("| ")]
    assert max(map(len, table)) < 80
    fit = multicalibrate(y, p, X, subpopulations=trees, alpha=0.02)
    assert all(len(str(update)) < 6 * 120 for update in fit.predictor.updates)
    assert [one["subpopulation"] for one in report.to_dict()["findings"]] == names
    assert report.to_frame()["subpopulation"].tolist() == names
    assert max(map(len, measured.names)) > 300
    assert f'title="{names[0]}"' in unescape(report.to_html())


def test_abbreviated_names_in_a_table_stay_different(with_long_names):
    y, p, X = with_long_names
    report = audit(y, p, X, subpopulations=Trees(max_depth=3), random_state=0)
    shown = brief_names(one.subpopulation for one in report.findings)
    assert len(set(shown)) == len({one.subpopulation for one in report.findings})
    start, end = "a" * 80, "z" * 80
    assert len(set(brief_names([f"{start}1{end}", f"{start}2{end}"]))) == 2
    assert brief_names(["g=a\nb", "g=a\nb"]) == ["g=a\\nb"] * 2


@pytest.mark.parametrize(
    ("names", "end"),
    [
        (("city=St.",), "no row belongs to city=St."),
        (("city=St. John's",), "no row belongs to city=St. John's."),
        (tuple("abcdef"), "no row belongs to a, b, c, d, e, ..."),
    ],
)
def test_a_name_that_ends_in_a_full_stop_ends_the_sentence(names, end):
    rng = np.random.default_rng(0)
    y, p = (rng.random((400, 1)) < 0.3).astype(float), rng.random((400, 1))
    C = np.column_stack([np.ones(400), np.zeros((400, len(names)))])
    panel = panel_of(y, p, np.full(400, 1 / 400), C, ("everyone", *names))
    assert judged(panel).notes[-1] == end
