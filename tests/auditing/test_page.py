"""The HTML page: valid, complete, true to the report, and nothing in it comes from data but text."""

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audits import COLUMN, MARKUP, audited, read, rows
from lowcal import audit, multicalibrate, recalibrate
from lowcal.auditing import page as pages
from lowcal.auditing import words
from lowcal.auditing.page import GroupPanel, PageLimits, heat, page, page_of, panels
from lowcal.auditing.panel import ReliabilityBins
from lowcal.auditing.reports import Origin, Verdict
from lowcal.data.errors import CannotWrite, InvalidInput, printable
from lowcal.datasets import make_miscalibrated

LOADS = {"src", "href", "srcset", "action", "data", "poster", "xlink:href", "formaction", "background"}


def shown(value):
    return float(value.replace("−", "-").replace(",", "").replace("%", ""))  # noqa: RUF001


@pytest.fixture(scope="module", params=[(2, False), (2, True), (5, False), (5, True)], ids=str)
def made(request):
    n_classes, compared = request.param
    report = audited(n_classes, "better" if compared else "poor")
    return report, read(report.to_html(before=audited(n_classes) if compared else None)), n_classes


def test_the_page_is_valid_and_loads_nothing(made):
    _, parser, _ = made
    tags = {tag for tag, _ in parser.elements}
    assert not tags & {"img", "link", "iframe", "object", "embed", "base", "form", "b:x"}
    assert sum(tag == "script" for tag, _ in parser.elements) == 1
    for _, attributes in parser.elements:
        assert not any(name.startswith("on") for name in attributes)
        for name in LOADS & set(attributes):
            assert attributes[name].startswith("#")
            assert attributes[name][1:] in parser.ids
        for name in ("aria-labelledby", "aria-describedby"):
            assert set(attributes.get(name, "").split()) <= set(parser.ids)


def test_style_and_script_ask_nothing_of_a_network(made):
    report, _, _ = made
    html = report.to_html()
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttp|WebSocket|import\(", html)


def test_no_tag_is_written_in_python():
    sources = sorted(Path(pages.__file__).parent.glob("*.py"))
    assert {"page.py", "words.py", "reports.py"} <= {one.name for one in sources}
    assert [one.name for one in sources if re.search(r"</\w|/>", one.read_text(encoding="utf-8"))] == []


def test_names_are_text(made):
    report, parser, n_classes = made
    whole = "".join(parser.text)
    assert f"g0={MARKUP}" in whole
    assert f"{COLUMN}=a" in whole
    assert ("<z>" in whole) == (n_classes == 5)
    assert MARKUP not in report.to_html()
    assert "alert('x')" not in report.to_html()


def limits(cell):
    return [shown(end) for end in cell.split(" to ")]


def test_the_table_of_groups_holds_the_findings(made):
    report, parser, n_classes = made
    heads, *rows = parser.tables["groups-table"]
    assert len(rows) == len(report.findings)
    assert ("Class" in heads) == (n_classes == 5)
    for k, (one, row) in enumerate(zip(report.findings, rows, strict=True)):
        cells = dict(zip(heads, row, strict=True))
        gap = one.largest_gap
        assert cells["#"] == str(k + 1)
        assert cells["Group"] == one.subpopulation
        for name, value in (("Predicted", gap.predicted), ("Actual", gap.actual), ("Difference", gap.gap)):
            assert shown(cells[name]) / 100 == pytest.approx(value, abs=5e-4)
        assert [end / 100 for end in limits(cells["Difference, interval"])] == pytest.approx(
            [gap.lower, gap.upper], abs=5e-4
        )
        assert shown(cells["Violation"]) == pytest.approx(one.violation, abs=5e-5)
        assert limits(cells["Violation, interval"]) == pytest.approx([one.lower, one.upper], abs=5e-5)
        assert shown(cells["Per person"]) == pytest.approx(one.conditional, abs=5e-5)
        assert limits(cells["Per person, interval"]) == pytest.approx(
            [one.conditional_lower, one.conditional_upper], abs=5e-5
        )
        assert shown(cells["Chance level"]) == pytest.approx(one.null_floor, abs=5e-5)
        assert shown(cells["Share"]) / 100 == pytest.approx(one.mass, abs=5e-4)
        assert shown(cells["Rows"]) == pytest.approx(one.n_effective, abs=0.5)
        assert cells["Significant"] == ("yes" if one.lower > 0 or one.upper < 0 else "no")
        expected = {"1": "equal", "p0": "by prediction: p0"}.get(str(one.weight), str(one.weight))
        assert cells["Weighting"] == expected
        if n_classes == 5:
            assert cells["Class"] == str(one.label)


# --- the first screen ---------------------------------------------------------------------------------------


def cards_of(html):
    """The texts of the cards, each with the widths of its bars and the ends of its line."""
    found = []
    for part in html.split('<ol class="who">')[1].split("</ol>")[0].split("<li")[1:]:
        bars = [float(width) for width in re.findall(r'<rect class="\w+" x="64" y="\d+" width="([\d.]+)"', part)]
        line = [float(end) - 64 for end in re.search(r'class="whisker" d="M([\d.]+) \d+H([\d.]+)"', part).groups()]
        text = "".join(read("<div>" + part.partition(">")[2].rpartition("</li>")[0] + "</div>").text)
        found.append((text, bars, line))
    return found


def clear(one):
    gap = one.largest_gap
    return gap.lower > 0 or gap.upper < 0 or one.lower > 0 or one.upper < 0


def test_cards_show_who_is_off_most_and_every_number_is_the_report_s(made):
    report, _, n_classes = made
    ranked = sorted(report.findings, key=lambda one: (not clear(one), -abs(one.largest_gap.gap)))
    before = audited(n_classes)
    drawn = cards_of(report.to_html(before=before))
    assert len(drawn) == 8
    longest = max(max(*bars, line[1]) for _, bars, line in drawn)
    scale = max(max(bars[-1] / one.largest_gap.actual for one, (_, bars, _) in zip(ranked, drawn, strict=False)), 1e-9)
    for one, (text, bars, line) in zip(ranked, drawn, strict=False):
        gap = one.largest_gap
        assert text.startswith(one.subpopulation + (f": {one.label}" if n_classes == 5 else ""))
        said = re.search(r"Predicted ([\d.]+)%, actual ([\d.]+)%. (\S+) points \((\S+) to (\S+)\): ", text)
        assert [shown(value) / 100 for value in said.groups()] == pytest.approx(
            [gap.predicted, gap.actual, gap.gap, gap.lower, gap.upper], abs=5e-4
        )
        assert f"{one.mass * report.n_rows:,.0f} people ({one.mass:.1%})" in text
        old = next(each for each in before.finding(one.subpopulation).gaps if each.label == gap.label)
        ends = [gap.predicted + gap.lower, gap.predicted + gap.upper]
        assert [*bars, *line] == pytest.approx(
            [scale * value for value in (old.predicted, gap.predicted, gap.actual, *ends)], abs=0.2
        )
        assert text.partition("): ")[2].startswith("within chance") == (
            one.largest_gap.lower < 0 < one.largest_gap.upper
        )
    assert longest == pytest.approx(130.0, abs=0.1)


@pytest.mark.parametrize("per_person", [None, 0.02])
@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_plain_verdict_names_the_group_that_is_off_most(n_classes, per_person):
    report = audited(n_classes, alpha=None if per_person else 0.01, per_person=per_person)
    assert report.verdict == "violated"
    sure = [one for one in report.findings if one.largest_gap.lower > 0 or one.largest_gap.upper < 0]
    worst = max(sure, key=lambda one: abs(one.largest_gap.gap))
    assert words.example(report) is worst
    sentence = words.plain_verdict(report, "GROUP", "CLASS")
    numbers = [shown(value) / 100 for value in re.findall(r"([\d.]+)%", sentence)]
    assert numbers == pytest.approx([worst.largest_gap.predicted, worst.largest_gap.actual], abs=5e-4)
    assert ("predicts CLASS with" in sentence) == (n_classes == 5)
    assert sentence.startswith("This model is wrong for at least one group: for GROUP, it predicts ")
    assert words.reason(report) == "An audit finds an error where there is none in at most 5% of cases."
    other = words.largest_over_all(report, "PROOF", "CLASS")
    assert ("for PROOF" in other) == (per_person is None and report.proof is not worst)


def test_the_plain_verdict_of_an_audit_that_passes_or_is_open():
    passed = replace(audited(2), verdict=Verdict.SATISFIED, certified_alpha=0.0087)
    assert words.plain_verdict(passed, "", "") == "This model is right for all 13 groups, within the tolerance."
    assert words.reason(passed) == (
        "With 95% confidence, the error of every group, averaged over all people, is at most 0.87 percentage points; "
        "1 is tolerated. A group of 10% of the people is then off by at most 8.70 points."
    )
    assert words.next_step(passed).startswith("Nothing for now.")
    undecided = replace(passed, verdict=Verdict.UNDECIDED, certified_lower=0.004, certified_alpha=0.03)
    calm = [
        replace(one, lower=-0.1, upper=0.1, gaps=tuple(replace(gap, lower=-0.1, upper=0.1) for gap in one.gaps))
        for one in undecided.findings
    ]
    quiet = words.plain_verdict(replace(undecided, findings=tuple(calm)), "", "")
    assert quiet == "These 3,000 rows are too few to tell whether this model is right for all 13 groups."
    assert "lies between 0.40 and 3.00 percentage points; 1 is tolerated." in words.reason(undecided)
    assert f"at least {100 * undecided.detectable:.2f} percentage points" in words.next_step(undecided)
    off = sum(clear(one) for one in undecided.findings)
    assert words.plain_verdict(undecided, "", "") == (
        f"This model is off for {off} of 13 groups; these 3,000 rows are too few to tell whether by more than is "
        "tolerated."
    )
    unknown = replace(passed, verdict=Verdict.UNDECIDED)  # a column could not be examined
    assert words.plain_verdict(unknown, "", "").startswith("Some groups could not be examined")
    strict = audited(2, alpha=None, per_person=0.02)
    judged = replace(strict, verdict=Verdict.SATISFIED)
    assert words.plain_verdict(judged, "", "").startswith("This model is right for all groups of at least 1% of people")
    nobody = replace(strict, largest_per_person=replace(strict.largest_per_person, upper=float("nan")))
    assert words.plain_verdict(nobody, "", "").startswith("No group is judged")
    assert words.reason(nobody) == "Audit more rows, or larger groups."
    none = replace(nobody.largest_per_person, detectable=float("nan"))
    unknown = replace(nobody, verdict=Verdict.UNDECIDED, largest_per_person=none)
    assert words.next_step(unknown) == "Audit more rows that the model has not seen."


def hiding(report):
    """The same report with gaps that chance explains."""
    findings = tuple(
        replace(one, gaps=tuple(replace(gap, lower=-0.5, upper=0.5) for gap in one.gaps)) for one in report.findings
    )
    return replace(report, findings=findings)


def test_an_error_that_averages_hide_is_shown_where_it_is_largest():
    report = hiding(audited(2))
    assert words.example(report) is report.proof
    [bins] = report.reliability[report.proof.subpopulation]
    lower, upper = bins.limits(0.95)
    far = np.maximum(lower - bins.prediction, bins.prediction - upper)
    b = far.argmax()
    said = f"for GROUP, {bins.outcome[b]:.1%} is true where it predicts about {bins.prediction[b]:.1%}."
    assert far[b] > 0
    assert words.plain_verdict(report, "GROUP", "").endswith(said)
    assert any("within chance on average, but" in text for text, _, _ in cards_of(report.to_html()))
    unseen = replace(report, reliability={})
    side = words.side(report.proof)
    assert words.plain_verdict(unseen, "GROUP", "").endswith(f"for GROUP, predictions are {side}.")
    several = hiding(audited(5))
    assert words.part_of(several, several.proof) == f"predictions are {words.side(several.proof)}"


def test_memberships_with_signs_have_no_means_over_people():
    report = audited(2)
    nan = float("nan")
    signed = tuple(
        replace(one, gaps=tuple(replace(gap, lower=nan, upper=nan) for gap in one.gaps)) for one in report.findings
    )
    odd = replace(report, findings=signed)
    assert words.affected(odd) == []
    assert words.plain_verdict(odd, "GROUP", "").endswith(f"predictions are {words.side(odd.proof)}.")
    heads, *rows = read(odd.to_html()).tables["groups-table"]
    for row in rows:
        assert dict(zip(heads, row, strict=True))["Predicted"] == "–"  # noqa: RUF001


def test_weighted_people_are_an_effective_number():
    one = audited(2).findings[1]
    assert words.people(audited(2), replace(one, n_effective=12.3)) == f"effective number 12 ({one.mass:.1%})"


def test_warnings_stand_with_the_verdict_and_other_notes_below_the_groups():
    report = replace(audited(2), notes=(f"bad rows. {words.UNSEEN}", "few rows"))
    first, rest = report.to_html().split('<h2 id="who">')
    assert f"bad rows. {words.UNSEEN}" in first
    assert "few rows" not in first
    assert "<strong>Note:</strong> few rows" in rest


# --- where it comes from ------------------------------------------------------------------------------------


def test_the_page_names_model_outcome_file_and_date(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    y, p, _, X = rows(2)
    by_name = audit("y", "p", {**X, "y": y, "p": p}, random_state=7, null_draws=19)
    assert by_name.origin == Origin("p", "y")
    html = by_name.to_html(outcome="repaid <in full>")
    header = "".join(read(html).text).partition("Skip to the verdict")[2][:200]
    assert re.search(r"Model\s*p\s*Outcome\s*repaid <in full>\s*Date\s*2023-11-14\s*Rows\s*3,000", header)
    assert "<title>Calibration audit of p: not passed</title>" in html
    assert by_name.origin.to_dict() == {"model": "p", "outcome": "y"}
    assert by_name.to_dict() == audit(y, p, X, random_state=7, null_draws=19).to_dict()
    full = replace(by_name, origin=Origin("m", "o", "rows.csv", "ab12", "lowcal audit rows.csv"))
    whole = "".join(read(full.to_html(model="m2")).text)
    for fact in ("Datarows.csv", "SHA-256 of the dataab12", "Commandlowcal audit rows.csv", "Modelm2", "Seed7"):
        assert fact in whole
    assert "command" not in full.origin.to_dict()


def test_only_bands_that_are_shared_are_said_to_hold_together():
    assert "differences, violations and errors per person hold for all groups at once" in words.intervals(audited(2))
    alone = words.intervals(audited(2, notion="full-0.25"))
    assert alone.endswith("so do those of differences, by themselves.")


# --- explanations -------------------------------------------------------------------------------------------


def test_the_rows_that_changed_most_are_explained():
    y, p, _, X = rows(2)
    fit = multicalibrate(y[:1500], p[:1500], {name: column[:1500] for name, column in X.items()})
    new, q = {name: column[1500:] for name, column in X.items()}, p[1500:]
    change = np.abs(fit.predictor(q, new) - q)
    html = audited(2).to_html(fit=fit, explain=(q, new))
    tables = {key: table for key, table in read_captions(html).items() if key.startswith("Contributions to row")}
    assert len(tables) == 5
    order = np.argsort(-change, kind="stable")[:5]
    assert list(tables) == [f"Contributions to row {k + 1:,}" for k in order]
    for k, (heads, *listed) in zip(order, tables.values(), strict=True):
        expected = fit.predictor.explain(q[k], {name: column[k] for name, column in new.items()})
        assert heads == ["Contribution", "Added to the log odds", "Probability"]
        for one, row in zip(expected.contributions, listed, strict=False):
            assert shown(row[1]) == pytest.approx(one.value, abs=5e-5)
            assert shown(row[2]) == pytest.approx(one.after, abs=5e-5)
        assert shown(listed[-1][2]) == pytest.approx(fit.predictor(q, new)[k], abs=5e-5)
    assert audited(2).to_html(fit=fit.predictor, explain=(q, new)) == html
    chosen = audited(2).to_html(explain={17: expected})
    assert "Row 17: " in chosen


def read_captions(html):
    """Tables by their captions."""
    found = {}
    for part in html.split("<table")[1:]:
        table = read("<table" + part.split("</table>")[0] + "</table>")
        caption = re.search(r"<caption[^>]*>(.*?)</caption>", part, re.S)[1]
        found["".join(read(f"<p>{caption}</p>").text)] = next(iter(table.tables.values()))
    return found


def test_explanations_that_can_t_be_made_are_refused():
    with pytest.raises(InvalidInput, match="needs the fit that changed p"):
        audited(2).to_html(explain=([0.5], None))
    with pytest.raises(InvalidInput, match=r"explain must be \(p, X\)"):
        audited(2).to_html(fit=multicalibrate([0, 1], [0.5, 0.5]), explain=[0.5])


def test_errors_before_stand_beside_those_after():
    before, after = audited(2), audited(2, "better")
    heads, *rows = read(after.to_html(before=before)).tables["groups-table"]
    for one, row in zip(after.findings, rows, strict=True):
        old = before.finding(one.subpopulation)
        assert shown(row[heads.index("Violation before")]) == pytest.approx(old.violation, abs=5e-5)
        assert shown(row[heads.index("Predicted before")]) == pytest.approx(100 * old.gaps[0].predicted, abs=0.05)
    compared = {row[0]: row[1:] for row in read(after.to_html(before=before)).tables["both"]}
    for name, key in (("Largest violation observed", "violation"), ("Smallest detectable violation", "detectable")):
        assert [shown(v) for v in compared[name]] == pytest.approx(
            [getattr(before, key), getattr(after, key)], abs=5e-5
        )
    smaller = sum(abs(one.violation) < abs(before.finding(one.subpopulation).violation) for one in after.findings)
    whole = "".join(read(after.to_html(before=before)).text)
    assert f"{smaller} of the {len(after.findings)} groups in both audits have a smaller violation" in whole


def chosen_from(n: int = 1000):
    """Return a fit of `recalibrate`."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=n)
    return recalibrate((rng.random(n) < 1 / (1 + np.exp(-0.3 * z))).astype(int), 1 / (1 + np.exp(-z)))


def test_what_recalibration_chose_from_is_shown():
    fit = chosen_from()
    parser = read(audited(2).to_html(fit=fit))
    heads, *rows = parser.tables["candidates-table"]
    assert len(rows) == len(fit.candidates)
    for one, row in zip(fit.candidates, rows, strict=True):
        cells = dict(zip(heads, row, strict=True))
        assert cells["Candidate"].startswith(one.name)
        assert cells["Candidate"].endswith(", chosen") == one.is_chosen
        assert cells["Log loss"] == f"{one.log_loss:.4f} ± {one.log_loss_error:.4f}"
        assert cells["Brier score"] == f"{one.brier:.4f} ± {one.brier_error:.4f}"
        assert cells["AUC"] == f"{one.auc:.4f}"
        assert shown(cells["Largest degree-2 violation"]) == pytest.approx(one.violation, abs=5e-5)
    assert "candidates" not in read(audited(2).to_html(fit=multicalibrate([0, 1], [0.5, 0.5]))).ids
    with pytest.raises(InvalidInput, match="fit must be a Fit"):
        audited(2).to_html(fit="best")


def test_a_page_per_person_is_ranked_drawn_and_coloured_per_person():
    before, report = audited(2, alpha=None, per_person=0.02), audited(2, "better", alpha=None, per_person=0.02)
    parser = read(report.to_html(before=before))
    heads, *rows = parser.tables["groups-table"]
    assert [row[heads.index("Group")] for row in rows] == [one.subpopulation for one in report.findings]
    for one, row in zip(report.findings, rows, strict=True):
        old = before.finding(one.subpopulation).conditional
        assert shown(row[heads.index("Per person before")]) == pytest.approx(old, abs=5e-5)
    _, *hot = parser.tables["heat"]
    for one, row in zip(report.findings, hot, strict=True):
        [(moments, _)] = report.moments[one.subpopulation]
        assert shown(row[1]) == pytest.approx(float(moments.fy[0] - moments.f[1]), abs=5e-5)
    whole = "".join(parser.text)
    assert "Tolerance per person0.02" in whole
    assert "Smallest group judged1% of people" in whole


def test_the_verdict_per_person_is_one_sentence_with_its_figures():
    report = audited(2, alpha=None, per_person=0.02)
    found = report.largest_per_person
    assert report.verdict == "violated"
    violated = words.verdict(report, "WORST")
    share = words.percent(report.proof.mass)
    assert f"the error per person of WORST ({share} of people) is at least {found.lower:.4f}" in violated
    satisfied = words.verdict(replace(report, verdict=Verdict.SATISFIED), "WORST")
    assert f"the error per person is at most {found.upper:.4f}" in satisfied
    assert satisfied.endswith("in all groups of at least 1% of people.")
    undecided = words.verdict(replace(report, verdict=Verdict.UNDECIDED), "WORST")
    between = f"{found.lower:.4f} and {found.upper:.4f}"
    assert f"the largest error per person among groups of at least 1% of people lies between {between}" in undecided
    assert "degree-2 at per_person=0.02: violated. With 95% confidence, the error" in report.to_html()
    with pytest.raises(InvalidInput, match=r"before is an audit at alpha=0\.01, this one at per_person=0\.02"):
        report.to_html(before=audited(2))


def test_the_heat_map_holds_the_moments_by_degree(made):
    report, parser, n_classes = made
    heads, *rows = parser.tables["heat"]
    assert heads == ["Group", "Degree 1", "Degree 2"]
    for one, row in zip(report.findings, rows, strict=True):
        groups = [moments for moments, _ in report.moments[one.subpopulation]]
        for j, cell in enumerate(row[1:]):
            gaps = [float((m.fy[j] - m.f[j + 1]) * m.mass) for m in groups]
            largest = max(gaps, key=abs)
            assert shown(cell.split(" (")[0]) == pytest.approx(largest, abs=5e-5)
            if n_classes == 5:
                assert cell.endswith(f"({report.layout.classes[gaps.index(largest)]})")


def test_every_group_has_a_diagram_with_its_numbers(made):
    report, parser, n_classes = made
    pictures = [found for tag, found in parser.elements if tag == "svg" and found.get("role") == "img"]
    assert len(pictures) == len(report.findings) * (1 if n_classes == 2 else 5)
    groups = [found["id"] for tag, found in parser.elements if tag == "details" and "id" in found]
    assert groups == [f"g{k + 1}" for k in range(len(report.findings))]
    assert sum(tag == "title" for tag, _ in parser.elements) == len(pictures) + 1
    assert sum(tag == "desc" for tag, _ in parser.elements) == len(pictures)


def test_guarantees_are_said_of_every_group(made):
    report, parser, n_classes = made
    whole = "".join(parser.text)
    for one in report.findings[:5]:
        page_of = report.pages(one.subpopulation)[0]
        label = "" if n_classes == 2 else f", label {page_of.label}"
        for sentence in page_of.sentences:
            assert sentence.replace(f"For {printable(one.subpopulation)}{label}", "For this group") in whole


def test_moments_of_every_group_and_label(made):
    report, parser, n_classes = made
    heads, *rows = parser.tables["moments-table"]
    assert len(rows) == len(report.findings) * (1 if n_classes == 2 else 5)
    known = [one for found in report.findings for one, _ in report.moments[found.subpopulation]]
    for row, one in zip(rows, known, strict=True):
        cells = dict(zip(heads, row, strict=True))
        if cells["Mean prediction"] == "–":  # noqa: RUF001  (nobody belongs there)
            continue
        assert shown(cells["Mean prediction"]) == pytest.approx(one.f[1], abs=6e-4)
        assert shown(cells["Mean square"]) == pytest.approx(one.f[2], abs=6e-4)
        assert shown(cells["Mean outcome"]) == pytest.approx(one.fy[0], abs=6e-4)
        assert shown(cells["Gap"]) == pytest.approx(one.fy[0] - one.f[1], abs=6e-4)


def test_the_figures_for_the_auditor_are_the_report_s(made):
    report, parser, _ = made
    text = "".join(parser.text)
    auditor = text[text.rindex("Largest violation observed") :]
    known = {
        "Largest violation observed": [report.violation],
        "Largest violation in the population": [report.certified_lower, report.certified_alpha],
        "Tolerance": [report.tolerance.largest],
        "Chance level": [report.null_floor],
        "Smallest detectable violation": [report.largest.detectable],
        "Largest error per person": [report.largest_per_person.lower, report.largest_per_person.upper],
        "p-value": [report.p_value],
    }
    assert [name for name, _, _ in words.figures(report)] == list(known)
    for name, value, _ in words.figures(report):
        assert value in auditor[auditor.index(name) :][:200], name
        numbers = [float(one) for one in re.findall(r"[0-9]+(?:\.[0-9]+)?", value)]
        assert numbers == pytest.approx(known[name], abs=6e-5), name


@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_bins_behind_the_diagrams_are_the_report_s(n_classes):
    report = audited(n_classes)
    tables = re.findall(
        r'<table class="bins"><caption>Bins</caption>.*?<tbody>(.*?)</tbody>', report.to_html(), re.DOTALL
    )
    known = [bins for one in report.findings for bins in report.reliability[one.subpopulation]]
    assert len(tables) == len(known) > 0
    for table, bins in zip(tables, known, strict=True):
        numbers = [[shown(cell) for cell in re.findall("<td>(.*?)</td>", row)] for row in table.split("</tr>")[:-1]]
        wanted = np.column_stack([bins.prediction, bins.outcome, *bins.limits(report.confidence), bins.rows])
        assert (np.abs(np.array(numbers) - wanted) <= [6e-4, 6e-4, 6e-4, 6e-4, 0.6]).all()


def test_tables_can_be_heard(made):
    _, parser, _ = made
    tables = [found for tag, found in parser.elements if tag == "table"]
    assert sum(tag == "caption" for tag, _ in parser.elements) == len(tables)
    assert all("scope" in found for tag, found in parser.elements if tag == "th")
    regions = [found for _, found in parser.elements if found.get("role") == "region"]
    assert all(found["tabindex"] == "0" for found in regions)
    assert ("a", {"class": "skip", "href": "#main"}) in parser.elements
    assert parser.elements[0] == ("html", {"lang": "en"})


def test_only_the_page_s_own_script_may_run():
    html = audited(2).to_html()
    script = html.split("<script>")[1].split("</script>")[0]
    key = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{key}'" in html
    assert "default-src 'none'" in html


# --- words --------------------------------------------------------------------------------------------------


def test_the_verdict_is_one_sentence_with_its_figures():
    report = audited(2)
    violated = words.verdict(report, "WORST")
    assert report.verdict == "violated"
    assert f"at least {report.certified_lower:.4f}" in violated
    assert "95% confidence" in violated
    assert "WORST" in violated
    satisfied = words.verdict(replace(report, verdict=Verdict.SATISFIED, certified_alpha=0.0098), "WORST")
    assert "the violation is at most 0.0098" in satisfied
    assert "WORST" not in satisfied
    undecided = words.verdict(replace(report, verdict=Verdict.UNDECIDED), "WORST")
    assert f"between {report.certified_lower:.4f} and {report.certified_alpha:.4f}" in undecided
    for sentence in (violated, satisfied, undecided):
        assert sentence.endswith(".")
        assert ". " not in sentence


def test_the_side_says_where_predictions_err():
    report = audited(2)
    by_weight = {str(one.weight): one for one in report.findings}
    high = next(one for one in report.findings if str(one.weight) == "p0" and one.violation < 0)
    assert words.side(high) == "too high at the high end"
    plain = by_weight["1"]
    assert words.side(plain) == ("too low" if plain.violation > 0 else "too high")
    assert words.side(replace(plain, violation=0.0)) == "right"
    assert words.side(audited(5).findings[0]).endswith("for some classes")
    assert words.side(audited(2, notion="full-0.25").findings[0]).endswith("in part of their range")


def test_what_chance_may_have_done_is_not_called_wrong():
    one = audited(2).findings[0]
    assert words.cells(audited(2), one)[-1] == words.side(one)
    assert words.cells(audited(2), replace(one, lower=-0.1, upper=0.1))[-1] == "not clearly wrong"


def test_notes_and_provenance_are_on_the_page():
    report = replace(audited(2), notes=("these are <b>the</b> rows the model was fitted on.",), n_effective=100.0)
    whole = "".join(read(report.to_html()).text)
    assert "these are <b>the</b> rows the model was fitted on." in whole
    for fact in ("degree-2", "95%", "3,000 (effective: 100)", "bootstrap", "Seed7", "lowcal 0."):
        assert fact in whole
    data = make_miscalibrated(300, random_state=0)
    loose = audit(data.y, data.p, data.X, random_state=np.random.default_rng(0), null_draws=19)
    assert "Seednot given" in "".join(read(loose.to_html()).text)


def test_a_learner_is_named_as_such():
    whole = "".join(read(replace(audited(2), is_exact=False).to_html()).text)
    assert "A learner found the groups on one half of the rows" in whole
    assert "13, some found by a learner" in whole
    assert "found by a learner" not in "".join(read(audited(2).to_html()).text)


def test_no_p_value_no_card():
    whole = "".join(read(replace(audited(2), p_value=float("nan")).to_html()).text)
    assert "p-value" not in whole
    assert "p-value" in "".join(read(audited(2).to_html()).text)


def test_cells_are_coloured_by_what_is_tolerated():
    assert [heat(v, 0.01) for v in (0.0, 0.005, 0.0051, 0.01, 0.0101, 0.02, 0.021)] == [
        *["h0"] * 2,
        *["p1"] * 2,
        *["p2"] * 2,
        "p3",
    ]
    assert [heat(-v, 0.01) for v in (0.0051, 0.0101, 0.021)] == ["m1", "m2", "m3"]


# --- pictures -----------------------------------------------------------------------------------------------


def panel(bins):
    return GroupPanel(None, bins, None, 0.95)


def test_diagrams_are_drawn_to_scale_and_say_how_many_bins_are_off():
    bins = ReliabilityBins(np.ones(2) / 2, np.array([100.0, 100.0]), np.array([0.1, 0.3]), np.array([0.12, 0.45]))
    assert words.outside(bins, 0.95) == "In 1 of 2 bins the mean prediction lies outside the band of the mean outcome."
    assert panel(bins).end == 0.5
    assert dict(panel(bins).paths)["dot1"] == "M40.0 152.0h0M120.0 20.0h0"
    report = audited(2)
    drawn = dict(panel(report.reliability[report.findings[0].subpopulation][0]).paths)
    svg = report.to_html().partition('<svg class="diagram"')[2].partition("</svg>")[0]
    for kind in ("band", "bars", "line1", "dot1"):
        assert f'<path class="{kind}" d="{drawn[kind]}"/>' in svg


def test_rare_outcomes_fill_the_picture():
    small = ReliabilityBins(np.ones(1), np.array([1e5]), np.array([0.004]), np.array([0.006]))
    assert panel(small).end == 0.01
    assert panel(ReliabilityBins(*np.empty((4, 0)))).end == 1.0


def test_groups_without_rows_are_shown():
    report = audited(2)
    worst = report.findings[0]
    nobody = ReliabilityBins(*np.empty((4, 0)))
    nan = np.array(np.nan)
    moments = replace(
        report.moments[worst.subpopulation][0][0], mass=np.array(0.0), f=np.full(3, nan), fy=np.full(2, nan)
    )
    odd = replace(
        report,
        findings=(replace(worst, mass=0.0, conditional=float("nan"), violation=0.0), *report.findings[1:]),
        reliability={**report.reliability, worst.subpopulation: (nobody,)},
        moments={**report.moments, worst.subpopulation: ((moments, 0.0),)},
    )
    whole = "".join(read(odd.to_html()).text)
    assert "No rows." in whole
    assert "nothing can be said" in whole


# --- size ---------------------------------------------------------------------------------------------------


def many(report, n):
    """The same findings under n long names."""
    long = "a group whose name is as long as that of an intersection of three columns <&> number"
    names = [f"{long} {k}" for k in range(n)]
    every = [report.findings[k % len(report.findings)] for k in range(n)]
    return replace(
        report,
        findings=tuple(replace(one, subpopulation=name) for name, one in zip(names, every, strict=True)),
        moments={name: report.moments[one.subpopulation] for name, one in zip(names, every, strict=True)},
        reliability={name: report.reliability[one.subpopulation] for name, one in zip(names, every, strict=True)},
    )


def test_a_thousand_groups_and_five_classes_stay_below_two_megabytes():
    report = many(audited(5), 1000)
    html = report.to_html(before=report)
    assert 200_000 < len(html.encode()) < 2_000_000
    parser = read(html)
    assert len(parser.tables["groups-table"]) == 1001
    assert len(parser.tables["heat"]) == 201
    assert sum(found.get("class") == "group" for _, found in parser.elements) == 200
    assert "The worst 200 of 1,000 groups are shown" in "".join(parser.text)


def test_a_page_is_cut_until_it_is_small_enough(monkeypatch):
    monkeypatch.setattr(pages, "MOST_BYTES", 120_000)
    html = many(audited(5), 300).to_html()
    assert len(html.encode()) <= 120_000
    read(html)


def test_the_longest_names_are_cut():
    report = audited(2)
    old, name = report.findings[0], "x" * 100_000
    odd = replace(
        report,
        findings=(replace(old, subpopulation=name), *report.findings[1:]),
        moments={**report.moments, name: report.moments[old.subpopulation]},
        reliability={**report.reliability, name: report.reliability[old.subpopulation]},
    )
    html = odd.to_html()
    assert "x" * 80 + "…" + "x" * 79 in html
    visible = re.sub(r' title="[^"]*"', "", html)
    assert "x" * 160 not in visible
    assert f'title="{"x" * 2000}…{"x" * 1999}"' in html
    assert "x" * 2001 not in html


def test_all_labels_of_the_worst_groups_and_the_worst_label_of_the_others():
    report = audited(5)
    for one in report.findings:
        assert [panel.label for panel in panels(report, None, one, True)] == [*report.layout.classes]
        assert [panel.label for panel in panels(report, None, one, False)] == [str(one.label)]
    m, some = len(report.findings), page_of(PageLimits(with_all_labels=2), report)
    assert some.count('<svg class="diagram"') == 2 * 5 + (m - 2)
    assert f"For {m - 2} groups not all classes are shown" in some
    assert "not all classes are shown" not in page_of(PageLimits(), report)


def test_less_takes_other_labels_first():
    first = PageLimits(1000, 200, 40).less()
    assert first == (1000, 200, 0)
    assert first.less() == (500, 100, 0)


# --- writing ------------------------------------------------------------------------------------------------


def test_the_file_is_the_page(tmp_path):
    path = tmp_path / "audit.html"
    html = audited(2).to_html(path)
    assert path.read_text(encoding="utf-8") == html
    assert audited(2).to_html(str(path)) == html
    assert [one.name for one in tmp_path.iterdir()] == ["audit.html"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "audit.html"
    path.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        audited(2).to_html(path)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["audit.html"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CannotWrite, match="there is no folder"):
        audited(2).to_html(tmp_path / "nowhere" / "audit.html")


def test_same_report_same_bytes():
    assert page(audited(5)) == page(audited(5))


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InvalidInput, match="before must be an AuditReport"):
        audited(2).to_html(before="yesterday")
    with pytest.raises(InvalidInput, match="Audit both models in the same way"):
        audited(2).to_html(before=audited(5))
    with pytest.raises(InvalidInput, match="degree-3"):
        audited(2).to_html(before=audited(2, notion="degree-3"))


# --- text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evil", ["\x00a\x1b[31m", "a\ud800b", "\ufffe", "\x85"])
def test_what_no_page_can_hold_is_replaced(evil):
    assert "\ufffd" in pages.html(evil)
    pages.html(evil).encode()


def test_numbers():
    assert words.number(-0.00004, signed=True) == "-0.0000"
    assert words.number(float("inf")) == "∞"
    assert words.number(float("-inf")) == "-∞"
    assert pages.minus("-0.5 to -0.1") == "−0.5 to −0.1"  # noqa: RUF001
    assert words.digits(0.0) == 4
    assert words.digits(1e-30) == 12
    assert pages.html("a\rb") == "a&#13;b"


def test_json_is_what_to_dict_says(tmp_path):
    report = replace(audited(5), p_value=float("nan"), detectable=float("inf"))
    loaded = json.loads(report.to_json(tmp_path / "a.json"))
    assert loaded == json.loads((tmp_path / "a.json").read_text())
    assert loaded["p_value"] is None
    assert loaded["detectable"] is None
    assert loaded["seed"] == 7
    assert loaded["findings"][0]["violation"] == report.findings[0].violation
