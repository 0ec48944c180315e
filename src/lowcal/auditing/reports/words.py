"""Every sentence of a report, for someone who has never heard of multicalibration; and its plain text and Markdown."""

from __future__ import annotations

import re
from math import isnan
from textwrap import fill
from typing import TYPE_CHECKING

from lowcal.auditing.reports.text import digits, marked, number, percent, several, shorten
from lowcal.data.errors import abbreviate, brief, brief_names, printable
from lowcal.data.inputs import Layout
from lowcal.data.version import __version__

if TYPE_CHECKING:
    from lowcal.auditing.reports.audit_report import AuditReport, Finding

#: Notes and lists of classes are cut after this many characters in Markdown.
LONG = 1000
_MONOMIAL = re.compile(r"p0(\^\d+)?")
_TITLES = {"satisfied": "Passed", "violated": "Not passed", "undecided": "Undecided"}


# --- sentences -----------------------------------------------------------------------------------------------
def title(audit: AuditReport) -> str:
    """Return the verdict in a word or two."""
    return _TITLES[str(audit.verdict)]


def verdict(audit: AuditReport, proof: str) -> str:
    """Return the verdict in one sentence.

    `proof` is the name of the group whose interval proves a violation, escaped for where it shall stand: nothing else
    in the sentence is from data.
    """
    certain, per, groups = f"with {sure(audit)} confidence", unit(audit), several(len(audit.findings), "group")
    low, high = size(audit, audit.largest.lower), size(audit, audit.largest.upper)
    tolerance = f"tolerance: {audit.tolerance.largest:g}{per}"
    if isnan(audit.largest.upper):
        return f"There are no {large(audit)}, so no group is judged."
    where, who = (f"all {large(audit)}", f" ({percent(audit.proof.mass)} of people)") if per else (f"all {groups}", "")
    if audit.verdict == "satisfied":
        return (
            f"The model's probabilities are accurate enough in {where}: {certain}, no group's error exceeds "
            f"{high}{per} ({tolerance})."
        )
    if audit.verdict == "violated":
        return (
            f"The model's probabilities are wrong for some groups: {certain}, the error for {proof}{who}, where "
            f"predictions are {side(audit.proof)}, is at least {low}{per} ({tolerance}; {groups} examined)."
        )
    whose = f"in {large(audit)}" if per else "of any group"
    return (
        f"These {audit.n_rows:,} rows are too few to tell whether the model's probabilities are good enough: "
        f"{certain}, the largest error{per} {whose} lies between {low} and {high} ({tolerance})."
    )


def reason(audit: AuditReport) -> str:
    """Return what the verdict rests on, for the first line of the text."""
    found, groups = audit.largest, large(audit)
    between = f"between {found.lower:.3g} and {found.upper:.3g}"
    if isnan(found.upper):
        return f"There are no {groups}, and nobody else is judged."
    if audit.by == "violation":
        said = {
            "satisfied": f"no violation exceeds {found.upper:.3g}",
            "violated": f"the violation of {brief(audit.proof.subpopulation)} is at least {found.lower:.3g}",
            "undecided": f"the largest violation lies {between}: these rows can't tell it from alpha",
        }
    else:
        who = f"{printable(audit.proof.subpopulation)} ({percent(audit.proof.mass)} of people)"
        said = {
            "satisfied": f"predictions are off by at most {found.upper:.3g} per person in all {groups}",
            "violated": f"predictions for {who} are off by at least {found.lower:.3g} per person",
            "undecided": f"the largest error per person in {groups} lies {between}: these rows can't tell it from the "
            "limit",
        }
    return f"With {audit.confidence:.0%} confidence {said[str(audit.verdict)]}."


def large(audit: AuditReport) -> str:
    """Return which groups are judged per person."""
    return f"groups of at least {percent(audit.min_share)} of people"


def sure(audit: AuditReport) -> str:
    """Return the confidence."""
    return f"{audit.confidence * 100:.4g}%"


def unit(audit: AuditReport) -> str:
    """Return what an error is measured by, where that is not the whole population."""
    return "" if audit.by == "violation" else " per person"


def side(found: Finding) -> str:
    """Return on which side the predictions err, and where: only the constant weight covers all of them."""
    if found.violation == 0:
        return "right"
    if len(found.gaps) > 1:
        return f"too {'low' if found.largest_gap.gap > 0 else 'high'} for some classes"
    weight = str(found.weight)
    where = "" if weight == "1" else " at the high end" if _MONOMIAL.fullmatch(weight) else " in part of their range"
    return ("too low" if found.violation > 0 else "too high") + where


def judged(found: Finding) -> str:
    """Return the side where the interval tells it."""
    return side(found) if found.is_significant else "not clearly wrong"


def counted(found: Finding) -> str:
    """Return which predictions the error of a finding counts."""
    weight = str(found.weight)
    if weight == "1":
        return "all equally"
    return f"high ones more: {weight}" if _MONOMIAL.fullmatch(weight) else weight


def power(j: int) -> str:
    """Return in words what the moment of degree j + 1 multiplies errors with."""
    return (
        ("every error counts equally", "errors count in proportion to the prediction")[j]
        if j < 2
        else (f"errors count in proportion to the prediction to the power {j}")
    )


def size(audit: AuditReport, value: float, signed: bool = False) -> str:
    """Return an error with as many decimals as the tolerance asks for."""
    return number(value, digits(audit.tolerance.largest), signed)


def errors(audit: AuditReport, found: Finding) -> list[str]:
    """Return the violation with its limits, then the error per person with its limits."""
    both = (*found.interval("violation"), *found.interval("per_person"))
    return [size(audit, value, signed=True) for value in both]


def labels(layout: Layout) -> list[str | None]:
    """Return the name of every coordinate of a prediction: one for each class, or None alone for scalars."""
    if layout.d == 1:
        return [None]
    return [str(a if layout.classes is None else layout.classes[a]) for a in range(layout.d)]


def figures(audit: AuditReport) -> list[tuple[str, str, str]]:
    """Return the key figures: name, value, and what it is."""
    one, per, person = audit.largest, unit(audit), audit.largest_per_person
    any_group = f"any {large(audit).replace('groups', 'group')}" if per else "any group"
    interval = f"{sure(audit)} confidence, for all groups at once"
    limits, of_person = (f"{size(audit, a.lower)} to {size(audit, a.upper)}" for a in (one, person))
    found = [
        (f"Largest error{per} observed", size(audit, one.error), f"in {any_group}, on these rows"),
        (f"Largest error{per} in the population", limits, interval),
        ("Tolerance", f"{audit.tolerance.largest:g}{per}", f"{'per_person' if per else 'alpha'}, for {audit.notion}"),
        ("Chance level", f"up to {size(audit, one.null_floor)}{per}", "what a perfectly calibrated model would show"),
        ("Smallest detectable error", f"{size(audit, one.detectable)}{per}", f"in {any_group}, with 80% power"),
    ]
    if not per:
        found.append(("Largest error per person", of_person, f"{sure(audit)} confidence, {large(audit)}"))
    if not isnan(audit.p_value):
        found.append(("p-value", f"{audit.p_value:.3g}", "of the hypothesis that the model is perfectly calibrated"))
    return found


def guarantee_lead(audit: AuditReport) -> str:
    """Return how sure the sentences on each group are."""
    return (
        f"Statements with a margin of error hold for all groups at once with {sure(audit)} confidence "
        f"({audit.method}); other figures describe these rows only."
    )


def meaning(audit: AuditReport) -> list[str]:
    """Return how the figures are to be read."""
    where = ", for the class where that is largest" if audit.layout.d > 1 else ""
    said = [
        "The error of a group (its violation) is an average over everyone: of (outcome − prediction) for the people in "  # noqa: RUF001
        "the group, weighted as the last column of the table says, and of 0 for all others. It is positive where "
        "predictions are too low. Small groups count little in it. The error per person is the same, divided by the "
        "group's share: an average over the group's own people. The mean gap is the group's mean outcome minus its "
        f"mean prediction{where}.",
        "Errors can count equally, or more where predictions are high: that detects overconfidence, which averages "
        f"hide. The report shows, for each group, the weighting in {audit.notion} that gives the largest error.",
        "Ranked per person, groups with the largest certified lower limit come first, then those with the largest "
        "estimate: in small groups, chance alone produces large errors per person.",
        f"Intervals hold for all groups at once with {sure(audit)} confidence ({audit.method}), provided these rows "
        "are a random sample of the population and were not used to fit the model.",
    ]
    if not audit.is_exact:
        said.append(
            "A learner found the groups on one half of the rows, and they were tested on the other half; other groups "
            "may have larger errors."
        )
    return said


def provenance(audit: AuditReport) -> list[tuple[str, str]]:
    """Return where the figures come from."""
    classes = "numbers in [0, 1]" if audit.layout.classes is None else ", ".join(str(c) for c in audit.layout.classes)
    fewer = f" (effective: {audit.n_effective:,.0f})" if audit.n_effective < 0.999 * audit.n_rows else ""
    tolerated = [("Alpha", f"{audit.tolerance.largest:g}")]
    if audit.by == "per_person":
        smallest = ("Smallest group judged", f"{percent(audit.min_share)} of people")
        tolerated = [("Tolerance per person", f"{audit.tolerance.largest:g}"), smallest]
    return [
        ("Notion", str(audit.notion)),
        *tolerated,
        ("Confidence", sure(audit)),
        ("Rows", f"{audit.n_rows:,}{fewer}"),
        ("Groups", f"{len(audit.findings):,}" + ("" if audit.is_exact else ", some found by a learner")),
        ("Outcomes", classes),
        ("Interval method", audit.method),
        ("Seed", "not given" if audit.seed is None else str(audit.seed)),
        ("Software", f"lowcal {__version__}"),
    ]


# --- Markdown ------------------------------------------------------------------------------------------------
def as_markdown(audit: AuditReport, n: int = 10) -> str:
    """Return the verdict, the figures, the n worst groups, the notes and where they come from."""
    lines = [f"# Calibration audit: {title(audit)}", ""]
    lines += [verdict(audit, marked(abbreviate(audit.proof.subpopulation))), ""]
    lines += [f"- {marked(name)}: **{marked(value)}** ({marked(hint)})" for name, value, hint in figures(audit)]
    lines += ["", *_markdown_table(audit, audit.shown(n)), ""]
    for note in audit.notes:
        lines += [f"> Note: {marked(note, LONG)}", ""]
    made = [f"{name}: {shorten(value, 200)}" for name, value in provenance(audit)]
    return "\n".join([*lines, marked("; ".join(made) + ".", LONG), ""])


def _markdown_table(audit: AuditReport, shown: tuple[Finding, ...]) -> list[str]:
    label = ["label"] if audit.layout.d > 1 else []
    heads = ["group", *label, "share", "error", "lower", "upper", "per person", "lower", "upper", "predictions are"]
    text = 1 + len(label)
    rows = [heads, ["---"] * text + ["---:"] * (len(heads) - text - 1) + ["---"]]
    names = brief_names(" ".join(one.subpopulation.split()) for one in shown)
    for name, one in zip(names, shown, strict=True):
        label = [marked(one.label, 40)] if audit.layout.d > 1 else []
        rows.append([marked(name), *label, f"{one.mass:.1%}", *errors(audit, one), judged(one)])
    more = len(audit.findings) - len(shown)
    return ["| " + " | ".join(row) + " |" for row in rows] + (["", f"and {more:,} more groups."] if more else [])


# --- plain text ----------------------------------------------------------------------------------------------
def as_text(audit: AuditReport) -> str:
    """Return the verdict, the figures, the worst groups and the notes."""
    head = fill(f"{audit.notion} at {audit.tolerance}: {audit.verdict.value}. {reason(audit)}", 110)
    notes = [fill(f"Note: {note}", 110, subsequent_indent="      ") for note in audit.notes]
    return "\n".join([head, "", *_text_figures(audit), "", *_text_table(audit), *notes])


def _text_figures(audit: AuditReport) -> list[str]:
    whose = "" if audit.is_exact else " (found by a learner on one half of the rows, judged on the other)"
    test = "" if isnan(audit.p_value) else f", p-value of perfect calibration {audit.p_value:.3g}"
    basis = f" (single basis elements: {audit.basis_error:.4f})" if audit.basis_error < audit.violation else ""
    found, person = audit.largest, audit.largest_per_person
    unit, who = ("", "any subpopulation") if audit.by == "violation" else (" per person", "any group judged")
    return [
        f"  largest violation      {audit.violation:.4f}{basis}",
        f"  largest per person     {person.error:.4f} [{person.lower:.4f}, {person.upper:.4f}], {large(audit)}",
        f"  by chance alone up to  {found.null_floor:.4f}{unit}{test}",
        f"  smallest detectable    {found.detectable:.4f}{unit} in {who}, with 80% power",
        f"  {audit.n_rows:,} rows, {len(audit.findings)} subpopulations{whose}, intervals by {audit.method}",
    ]


def _text_table(audit: AuditReport, n: int = 10) -> list[str]:
    shown = audit.shown(n)
    names = brief_names(one.subpopulation for one in shown)
    wide = max(13, *map(len, names)) + 2
    label = "" if audit.layout.d == 1 else f" {'class':<12}"
    interval = f"{f'{audit.confidence:.0%} interval':>20}"
    head = f"{'share':>7}{'violation':>11}{interval}{'per person':>12}{interval}{label}   weight"
    rows = [f"  {'subpopulation':<{wide}}{head}"]
    for name, one in zip(names, shown, strict=True):
        both = _text_error(*one.interval("violation"), wide=11) + _text_error(*one.interval("per_person"), wide=12)
        label = "" if len(one.gaps) == 1 else f" {printable(str(one.label)):<12}"
        rows.append(f"  {name:<{wide}}{one.mass:>7.1%}{both}{label}   {brief(one.weight)}")
    more = len(audit.findings) - len(shown)
    return rows + ([f"  and {more} more"] if more else [])


def _text_error(value: float, lower: float, upper: float, wide: int) -> str:
    """Return an error and its interval as columns of a table; a dash where there is none."""
    if isnan(lower):
        return f"{'-':>{wide}}{'-':>20}"
    return f"{value:>+{wide}.4f}{f'[{lower:+.4f}, {upper:+.4f}]':>20}"
