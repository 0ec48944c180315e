"""The numbers, sentences and tables of a report, for readers new to multicalibration; its text and its Markdown."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, inf, isfinite, isnan, log10
from textwrap import fill
from time import time
from typing import TYPE_CHECKING

import numpy as np

from lowcal.data import __version__
from lowcal.data.errors import abbreviate, aligned, brief, brief_names, printable
from lowcal.data.inputs import Layout
from lowcal.guarantees.groups import class_names
from lowcal.notions import LowDegree

if TYPE_CHECKING:
    from lowcal.auditing.monitoring import MonitoringReport
    from lowcal.auditing.panel import ReliabilityBins
    from lowcal.auditing.reports import AuditReport, Finding, Gap, Origin, SavedAudit

_MONOMIAL = re.compile(r"p0(\^\d+)?")
_MARKED = re.compile(r"([\\`*_{}\[\]()#!|~])")
_TITLES = {"satisfied": "Passed", "violated": "Not passed", "undecided": "Undecided"}
#: The end of every note by which the verdict is worth nothing.
UNSEEN = "Audit it on rows it has not seen."


# --- numbers -------------------------------------------------------------------------------------------------
def number(value: float, decimals: int = 4, signed: bool = False) -> str:
    """Return a number as text; a dash for nan.

    >>> number(-0.01234), number(0.5, 2, signed=True), number(float("nan"))
    ('-0.0123', '+0.50', '–')
    """  # noqa: RUF002
    if not isfinite(value):
        return "–" if isnan(value) else "∞" if value > 0 else "-∞"  # noqa: RUF001
    return f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"


def digits(alpha: float) -> int:
    """Return the number of decimals that show a hundredth of alpha; at least 4.

    >>> digits(0.01), digits(0.0002)
    (4, 6)
    """
    return max(4, min(12, ceil(-log10(alpha)) + 2)) if alpha > 0 else 4


def size(audit: AuditReport, value: float, signed: bool = False) -> str:
    """Return an error with the number of decimals that suits the tolerance."""
    return number(value, digits(audit.tolerance.largest), signed)


def percent(value: float) -> str:
    """Return a share as a percentage of two digits, for sentences.

    >>> percent(0.01), percent(0.3249), percent(1.0)
    ('1%', '32%', '100%')
    """
    return f"{100 * value:.2g}%" if value < 0.995 else "100%"


def rate(value: float) -> str:
    """Return a mean prediction or outcome as a percentage.

    >>> rate(0.0456), rate(0.27), rate(0.00123)
    ('4.6%', '27.0%', '0.12%')
    """
    return f"{100 * value:.1f}%" if abs(value) >= 0.01 else f"{100 * value:.2g}%"


def means(gap: Gap) -> tuple[str, ...]:
    """Return predicted and actual in percent, and their difference with its limits in points, to two digits.

    >>> from lowcal.auditing.reports import Gap
    >>> means(Gap(None, 0.0456, 0.0273, -0.026, -0.011)), means(Gap(None, 0.0012, 0.0009, -0.0008, 0.0002))
    (('4.6%', '2.7%', '-1.8', '-2.6', '-1.1'), ('0.120%', '0.090%', '-0.030', '-0.080', '+0.020'))
    """
    if isnan(gap.lower):  # a group without rows, or memberships with signs: no mean over people
        return ("–",) * 5  # noqa: RUF001
    largest = 100 * max(abs(one) for one in (gap.gap, gap.lower, gap.upper))
    k = max(1, min(6, 1 + ceil(-log10(largest)))) if 0.0 < largest < inf else 1
    shares = (f"{number(100 * value, k)}%" for value in (gap.predicted, gap.actual))
    return (*shares, *(number(100 * value, k, signed=True) for value in (gap.gap, gap.lower, gap.upper)))


def points(audit: AuditReport, value: float) -> str:
    """Return an error in percentage points, with the number of decimals that suits the tolerance."""
    return number(100 * value, digits(audit.tolerance.largest) - 2)


def several(n: int, one: str) -> str:
    """Return a number with its noun.

    >>> several(1, "group"), several(2, "group")
    ('1 group', '2 groups')
    """
    return f"{n:,} {one}{'' if n == 1 else 's'}"


# --- sentences -----------------------------------------------------------------------------------------------
def title(audit: AuditReport | MonitoringReport | SavedAudit) -> str:
    """Return the verdict in a word or two."""
    return _TITLES[str(audit.verdict)]


def verdict(audit: AuditReport, proof: str) -> str:
    """Return the verdict's reason in exact terms, in one sentence.

    `proof` is the name of the group that proves a violation, escaped for the form of the report: nothing else in the
    sentence is from data.
    """
    what, is_per_person = noun(audit), audit.by == "per_person"
    low, high = size(audit, audit.largest.lower), size(audit, audit.largest.upper)
    if isnan(audit.largest.upper):
        return f"There are no {judged_groups(audit)}, so no group is judged."
    who = f"{proof} ({percent(audit.proof.mass)} of people)" if is_per_person else proof
    every = judged_groups(audit) if is_per_person else several(len(audit.findings), "group")
    sentence = {
        "satisfied": f"the {what} is at most {high} in all {every}",
        "violated": f"the {what} of {who} is at least {low}: predictions are {side(audit.proof)}",
        "undecided": f"the largest {what} among {every} lies between {low} and {high}: "
        f"{audit.n_rows:,} rows are too few to decide",
    }
    return f"With {confidence(audit)} confidence, {sentence[str(audit.verdict)]}."


def noun(audit: AuditReport) -> str:
    """Return the name of the error that is compared with the tolerance."""
    return "violation" if audit.by == "violation" else "error per person"


def judged_groups(audit: AuditReport) -> str:
    """Return the groups that are judged per person, in words."""
    return f"groups of at least {percent(audit.min_share)} of people"


def confidence(audit: AuditReport) -> str:
    """Return the confidence in percent."""
    return f"{audit.confidence * 100:.4g}%"


def side(found: Finding) -> str:
    """Return the direction of the error, and in which predictions: only the constant weight covers all of them."""
    if found.violation == 0:
        return "right"
    if len(found.gaps) > 1:
        return f"too {'low' if found.largest_gap.gap > 0 else 'high'} for some classes"
    weight = str(found.weight)
    where = "" if weight == "1" else " at the high end" if _MONOMIAL.fullmatch(weight) else " in part of their range"
    return ("too low" if found.violation > 0 else "too high") + where


def weighting(weight: object) -> str:
    """Return how a witness weights the errors of different predictions."""
    name = str(weight)
    return "equal" if name == "1" else f"by prediction: {name}" if _MONOMIAL.fullmatch(name) else name


def labels(layout: Layout) -> list[str | None]:
    """Return the name of every coordinate of a prediction: one for each class, or None alone for scalars."""
    return [None] if layout.d == 1 else [str(one) for one in class_names(layout)]


def outside(bins: ReliabilityBins, confidence: float) -> str:
    """Return in how many bins the mean prediction lies outside the limits of the mean outcome."""
    lower, upper = bins.limits(confidence)
    n, off = len(bins.rows), ((bins.prediction < lower) | (bins.prediction > upper)).sum()
    if n == 0:
        return "No rows."
    return f"In {off} of {several(n, 'bin')} the mean prediction lies outside the band of the mean outcome."


def guarantee_lead(audit: AuditReport) -> str:
    """Return the confidence of the guarantees of each group."""
    return (
        f"Statements with a margin of error hold for all groups at once with {confidence(audit)} confidence "
        f"({audit.method}); other figures describe these rows only."
    )


def intervals(audit: AuditReport) -> str:
    """Return which intervals hold simultaneously; differences share a band with violations of degree 2 and above."""
    one_band = isinstance(audit.notion, LowDegree) and audit.notion.degree >= 2
    of = ["violations", "errors per person"]
    every = "differences, " + " and ".join(of) if one_band else " and ".join(of)
    rest = "" if one_band else "; so do those of differences, by themselves"
    return f"All intervals of {every} hold for all groups at once: {confidence(audit)} simultaneous confidence{rest}."


# --- sentences of the first screen, in plain words -----------------------------------------------------------
def plain_verdict(audit: AuditReport, group: str, label: str) -> str:
    """Return the verdict in one sentence for everyone.

    `group` and `label` are the names of the group that is off most and of its class, escaped for the form of the
    report: nothing else in the sentence is from data.
    """
    if isnan(audit.largest.upper):
        return f"No group is judged: there are no {judged_groups(audit)}."
    n = len(audit.findings)
    every = (
        f"all {judged_groups(audit)}" if audit.by == "per_person" else f"all {n:,} groups" if n > 1 else "the one group"
    )
    if audit.verdict == "satisfied":
        return f"This model is right for {every}, within the tolerance."
    if audit.verdict == "violated":
        return f"This model is wrong for at least one group: {_error(audit, example(audit), group, label)}."
    if audit.largest.upper <= audit.tolerance.largest:
        return "Some groups could not be examined, so it stays open whether this model is right for them."
    off = sum(map(is_off, audit.findings))
    if off:
        found = f"This model is off for {off:,} of {several(n, 'group')}"
        return f"{found}; these {audit.n_rows:,} rows are too few to tell whether by more than is tolerated."
    return f"These {audit.n_rows:,} rows are too few to tell whether this model is right for {every}."


def _error(audit: AuditReport, one: Finding, group: str, label: str) -> str:
    """Return how a group is off: on average, or in part of the predictions."""
    gap = one.largest_gap
    if gap.least == 0.0:
        return f"for {group}, {part_of(audit, one)}"
    predicted, actual, *_ = means(gap)
    what = "it predicts" if len(one.gaps) == 1 else f"it predicts {label} with"
    return f"for {group}, {what} {predicted} where {actual} is true"


def part_of(audit: AuditReport, one: Finding) -> str:
    """Return where a group that is within chance on average is off: in the bin farthest outside its band."""
    bins = audit.reliability.get(one.subpopulation, ())
    if len(bins) == 1 and len(bins[0].rows) and not isnan(one.largest_gap.lower):
        lower, upper = bins[0].limits(audit.confidence)
        far = np.maximum(lower - bins[0].prediction, bins[0].prediction - upper)
        b = int(far.argmax())
        if far[b] > 0.0:
            predicted, actual = rate(bins[0].prediction[b]), rate(bins[0].outcome[b])
            return f"{actual} is true where it predicts about {predicted}"
    return f"predictions are {side(one)}"


def largest_over_all(audit: AuditReport, group: str, label: str) -> str:
    """Return the group with the largest error over all people if it is not the one in the verdict."""
    if audit.verdict != "violated" or audit.by == "per_person" or audit.proof is example(audit):
        return ""
    error = _error(audit, audit.proof, group, label)
    return f" Weighed by the number of people, another error is the largest: {error}."


def reason(audit: AuditReport) -> str:
    """Return the confidence of the verdict and the tolerance, for everyone."""
    low, high = (points(audit, end) for end in (audit.largest.lower, audit.largest.upper))
    if isnan(audit.largest.upper):
        return "Audit more rows, or larger groups."
    if audit.verdict == "violated":
        return f"An audit finds an error where there is none in at most {percent(1.0 - audit.confidence)} of cases."
    over, limit = ", averaged over all people," if audit.by == "violation" else "", f"{100 * audit.tolerance.largest:g}"
    tolerated = f"{limit} {'is' if limit == '1' else 'are'} tolerated"
    if audit.verdict == "undecided":
        found = f"the largest error{over} lies between {low} and {high} percentage points"
        return f"With {confidence(audit)} confidence, {found}; {tolerated}."
    found = f"the error of every group{over} is at most {high} percentage points"
    tenth = points(audit, min(1.0, audit.largest.upper / 0.1))
    small = f" A group of 10% of the people is then off by at most {tenth} points." if over else ""
    return f"With {confidence(audit)} confidence, {found}; {tolerated}.{small}"


def next_step(audit: AuditReport) -> str:
    """Return what to do about the verdict."""
    if audit.verdict == "satisfied":
        return "Nothing for now. Audit again when the model, or the people it is used for, change."
    if audit.verdict == "violated":
        return "Recalibrate the model on other rows than these, then audit it again on rows it has not seen."
    more, least = "Audit more rows that the model has not seen.", audit.largest.detectable
    if isnan(least):
        return more
    found = f"an error of at least {points(audit, least)} percentage points is found with a probability of 80%"
    return f"{more} With these, only {found}."


def affected(audit: AuditReport) -> list[Finding]:
    """Return the groups by their mean error per person: those clearly off first, the largest first."""
    known = [one for one in audit.findings if not isnan(one.largest_gap.lower)]
    return sorted(known, key=lambda one: (not is_off(one), -abs(one.largest_gap.gap)))


def is_off(one: Finding) -> bool:
    """Whether a group is clearly off: on average, or by the weighting that shows it most."""
    return one.largest_gap.least > 0.0 or one.is_significant


def example(audit: AuditReport) -> Finding:
    """Return the group that illustrates a violation: the one with the largest mean error, or else the proof."""
    judged = [one for one in affected(audit) if audit.by == "violation" or one.is_judged(audit.tolerance)]
    clear = [one for one in judged if one.largest_gap.least > 0.0]
    return clear[0] if clear else audit.proof


def people(audit: AuditReport, one: Finding) -> str:
    """Return the number of people in a group; for weighted rows, the effective number."""
    n = one.mass * audit.n_rows
    count = f"{n:,.0f} people" if abs(n - one.n_effective) < 0.5 else f"effective number {one.n_effective:,.0f}"
    return f"{count} ({one.mass:.1%})"


def error_of(audit: AuditReport, one: Finding) -> str:
    """Return the direction in which a group is off, for everyone."""
    gap = one.largest_gap
    if gap.least > 0.0:
        return "predictions are too low" if gap.gap > 0 else "predictions are too high"
    return f"within chance on average, but {part_of(audit, one)}" if one.is_significant else "within chance"


# --- figures and tables --------------------------------------------------------------------------------------
def figures(audit: AuditReport) -> list[tuple[str, str, str]]:
    """Return the key figures: name, value and explanation."""
    found, person, what = audit.largest, audit.largest_per_person, noun(audit)
    who = "any group" if audit.by == "violation" else judged_groups(audit)
    interval = f"{confidence(audit)} confidence, for all groups at once"
    limits, of_person = (f"{size(audit, one.lower)} to {size(audit, one.upper)}" for one in (found, person))
    is_split = audit.by == "violation" and audit.basis_error < found.error
    basis = f"; single basis weights: {size(audit, audit.basis_error)}" if is_split else ""
    shown = [
        (f"Largest {what} observed", size(audit, found.error), f"{who}, on these rows{basis}"),
        (f"Largest {what} in the population", limits, interval),
        ("Tolerance", f"{audit.tolerance.largest:g}", f"{str(audit.tolerance).partition('=')[0]}, for {audit.notion}"),
        ("Chance level", f"up to {size(audit, found.null_floor)}", "what a perfectly calibrated model would show"),
        (f"Smallest detectable {what}", size(audit, found.detectable), f"80% power, {who}"),
    ]
    if audit.by == "violation":
        shown.append(("Largest error per person", of_person, f"{confidence(audit)} confidence, {judged_groups(audit)}"))
    if not isnan(audit.p_value):
        shown.append(("p-value", f"{audit.p_value:.3g}", "of perfect calibration"))
    return shown


def headings(audit: AuditReport) -> list[str]:
    """Return the headings of `cells`."""
    interval = f"{confidence(audit)} interval"
    return ["Share", "Violation", interval, "Per person", interval, "Predictions are"]


def cells(audit: AuditReport, found: Finding) -> list[str]:
    """Return share, violation and error per person of a group with their intervals, and the direction of its error."""
    shown = [f"{found.mass:.1%}"]
    for value, lower, upper in (found.interval("violation"), found.interval("per_person")):
        ends = [size(audit, one, signed=True) for one in (lower, upper)]
        shown += [size(audit, value, signed=True), "–" if isnan(lower) else " to ".join(ends)]  # noqa: RUF001
    return [*shown, side(found) if found.is_significant else "not clearly wrong"]


def today() -> str:
    """Return the date in UTC; SOURCE_DATE_EPOCH replaces the clock, so that a page can be reproduced."""
    moment = float(os.environ.get("SOURCE_DATE_EPOCH") or time())
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"


def facts(report: AuditReport | MonitoringReport) -> list[tuple[str, str]]:
    """Return what was audited, where it is known, and the date of the page."""
    named = [*_names(report.origin)[:3], ("Date", today())]
    return [(title, value) for title, value in named if value]


def reproduction(report: AuditReport) -> list[tuple[str, str]]:
    """Return what is needed to reproduce the report."""
    known, unknown = report.origin, "not recorded"
    call = f"lowcal.audit(y, p, X, notion='{report.notion}', {report.tolerance}, confidence={report.confidence:g}, "
    call += f"method='{report.method}', random_state={report.seed}), with the groups and weights of the first call"
    return [
        ("Software", f"lowcal {__version__}"),
        ("Command" if known.command else "Call", known.command or call),
        ("Seed", "not given" if report.seed is None else str(report.seed)),
        *((title, value or unknown) for title, value in _names(known)),
        ("Page made on", today()),
    ]


def _names(known: Origin) -> list[tuple[str, str]]:
    named = (("Model", known.model), ("Outcome", known.outcome), ("Data", known.file))
    return [*named, ("SHA-256 of the data", known.sha256)]


def settings(audit: AuditReport) -> list[tuple[str, str]]:
    """Return the settings of the audit: notion, tolerance, confidence, rows, groups, outcomes and method."""
    classes = "numbers in [0, 1]" if audit.layout.classes is None else ", ".join(str(c) for c in audit.layout.classes)
    fewer = f" (effective: {audit.n_effective:,.0f})" if audit.n_effective < 0.999 * audit.n_rows else ""
    learned = "" if audit.is_exact else ", some found by a learner on one half of the rows, judged on the other"
    tolerated = [("Alpha", f"{audit.tolerance.largest:g}")]
    if audit.by == "per_person":
        smallest = ("Smallest group judged", f"{percent(audit.min_share)} of people")
        tolerated = [("Tolerance per person", f"{audit.tolerance.largest:g}"), smallest]
    return [
        ("Notion", str(audit.notion)),
        *tolerated,
        ("Confidence", confidence(audit)),
        ("Rows", f"{audit.n_rows:,}{fewer}"),
        ("Groups", f"{len(audit.findings):,}{learned}"),
        ("Outcomes", abbreviate(classes, 200)),
        ("Interval method", audit.method),
    ]


# --- text and Markdown ---------------------------------------------------------------------------------------
def as_text(audit: AuditReport) -> str:
    """Return the verdict, the figures, the worst groups and the notes."""
    said = verdict(audit, brief(audit.proof.subpopulation))
    head = fill(f"{audit.notion} at {audit.tolerance}: {audit.verdict.value}. {said}", 110)
    listed = aligned([[name, value, f"({hint})"] for name, value, hint in figures(audit)], "lll")
    rows, sides = _table(audit, 10)
    table = aligned([[printable(one) for one in row] for row in rows], sides)
    table += left_out(len(audit.findings) - len(audit.shown(10)))
    notes = [fill(f"Note: {note}", 110, subsequent_indent="      ") for note in audit.notes]
    return "\n".join([head, "", *listed, "", *table, "", *notes, fill(_made(audit), 110)])


def as_markdown(audit: AuditReport, n: int = 10) -> str:
    """Return the verdict, the figures, the n worst groups, the notes and the settings."""
    head = [f"# Calibration audit: {title(audit)}", verdict(audit, marked(abbreviate(audit.proof.subpopulation)))]
    listed = [f"- {marked(name)}: **{marked(value)}** ({marked(hint)})" for name, value, hint in figures(audit)]
    table = [markdown_table(*_table(audit, n)), *left_out(len(audit.findings) - len(audit.shown(n)))]
    notes = [f"> Note: {marked(note, 1000)}" for note in audit.notes]
    blocks = [*head, "\n".join(listed), *table, *notes, marked(_made(audit), 1000)]
    return "\n\n".join(blocks) + "\n"


def markdown_table(rows: Sequence[Sequence[str]], sides: str) -> str:
    """Return rows of cells, the headings first, as a Markdown table; `sides` are those of `aligned`."""
    heads, *rest = ([marked(one) for one in row] for row in rows)
    rule = ["---" if side == "l" else "---:" for side in sides]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rest))


def _table(audit: AuditReport, n: int) -> tuple[list[list[str]], str]:
    """Return the n worst groups as rows of cells, with their headings first, and the sides of the columns."""
    shown, is_multiclass = audit.shown(n), audit.layout.d > 1
    names = brief_names(one.subpopulation for one in shown)
    labels = [[abbreviate(str(one.label), 40)] if is_multiclass else [] for one in shown]
    rows = zip(names, labels, (cells(audit, one) for one in shown), strict=True)
    heads = ["Group", *(["Class"] if is_multiclass else []), *headings(audit)]
    sides = ("ll" if is_multiclass else "l") + "rrrrrl"
    return [heads, *([name, *label, *rest] for name, label, rest in rows)], sides


def left_out(n: int) -> list[str]:
    """Return the line below a table that leaves out n groups; none if it has all."""
    return [f"  and {several(n, 'more group')}."] if n else []


def _made(audit: AuditReport) -> str:
    software, _, seed, *_ = reproduction(audit)
    return "; ".join(f"{name}: {printable(value)}" for name, value in (*settings(audit), seed, software)) + "."


def marked(value: object, length: int = 160) -> str:
    r"""Return text for Markdown, on one line, with the special characters of Markdown and HTML escaped.

    >>> print(marked("a|b <i>*c*\nd"))
    a\|b &lt;i&gt;\*c\* d
    """
    flat = printable(" ".join(str(value).split()))
    return _MARKED.sub(r"\\\1", escape(abbreviate(flat, length), quote=False))
