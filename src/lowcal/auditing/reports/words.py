"""What an audit says, in sentences for someone who has never heard of multicalibration."""

from __future__ import annotations

import re
from math import isnan
from typing import TYPE_CHECKING

from lowcal.auditing.reports.text import digits, number, percent, several
from lowcal.data.inputs import Layout
from lowcal.data.version import __version__

if TYPE_CHECKING:
    from lowcal.auditing.reports.audit_report import AuditReport, Finding

_MONOMIAL = re.compile(r"p0(\^\d+)?")
_TITLES = {
    "satisfied": "Passed",
    "violated": "Not passed",
    "undecided": "Undecided",
}


def title(audit: AuditReport) -> str:
    """Return the verdict in a word or two."""
    return _TITLES[str(audit.verdict)]


def verdict(audit: AuditReport, proof: str) -> str:
    """Return the verdict in one sentence.

    `proof` is the name of the group whose interval proves a violation, escaped for where it shall stand: nothing else
    in the sentence is from data.
    """
    certain = f"with {sure(audit)} confidence"
    low, high = size(audit, audit.largest.lower), size(audit, audit.largest.upper)
    per, groups = unit(audit), several(len(audit.findings), "group")
    tolerated = f"{audit.tolerance.largest:g}{per}"
    large = f"groups of at least {percent(audit.tolerance.min_share)} of people"
    if isnan(audit.largest.upper):
        return f"There are no {large}, and nobody else is judged."
    where, who = (f"all {large}", f" ({percent(audit.proof.mass)} of people)") if per else (_every(audit), "")
    if audit.verdict == "satisfied":
        return (
            f"The model's probabilities can be relied on in {where}: {certain} no group's error exceeds {high}{per}, "
            f"and up to {tolerated} is tolerated."
        )
    if audit.verdict == "violated":
        return (
            f"The model's probabilities are wrong for some groups: {certain} the error of {proof}{who}, where "
            f"predictions are {side(audit.proof)}, is at least {low}{per}, and up to {tolerated} is tolerated; "
            f"{groups} were examined."
        )
    whose = f"in {large}" if per else "of a group"
    return (
        f"These {audit.n_rows:,} rows cannot tell whether the model's probabilities are good enough: {certain} the "
        f"largest error{per} {whose} lies between {low} and {high}, and {tolerated} is tolerated."
    )


def _every(audit: AuditReport) -> str:
    return f"every one of the {several(len(audit.findings), 'group')} examined"


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
    too, weight = "too low" if found.violation > 0 else "too high", str(found.weight)
    if len(found.gaps) > 1:
        return f"too {'low' if found.largest_gap.gap > 0 else 'high'} for some classes"
    where = "" if weight == "1" else " at the upper end" if _MONOMIAL.fullmatch(weight) else " in part of their range"
    return too + where


def judged(found: Finding) -> str:
    """Return the side where the interval tells it."""
    return side(found) if found.is_significant else "not clearly wrong"


def size(audit: AuditReport, value: float, signed: bool = False) -> str:
    """Return an error with as many decimals as the tolerance asks for."""
    return number(value, digits(audit.tolerance.largest), signed)


def errors(audit: AuditReport, found: Finding) -> list[str]:
    """Return the violation with its limits, then the error per person with its limits."""
    both = (*found.interval("violation"), *found.interval("per_person"))
    return [size(audit, value, signed=True) for value in both]


def figures(audit: AuditReport) -> list[tuple[str, str, str]]:
    """Return the key figures: name, value, and what it is."""
    certain, one, per = f"with {sure(audit)} confidence", audit.largest, unit(audit)
    whose = f"group of at least {percent(audit.tolerance.min_share)} of people"
    group = whose if per else "group"
    name = "per_person" if per else "alpha"
    person = audit.largest_per_person
    found = [
        (f"Largest error{per} seen", size(audit, one.error), f"of any {group} in these rows, for its worst weight"),
        (
            f"Largest error{per} in the population",
            f"{size(audit, one.lower)} to {size(audit, one.upper)}",
            f"{certain}, for all groups at once",
        ),
        ("Tolerated", f"{audit.tolerance.largest:g}{per}", f"the {name} of {audit.notion}"),
        ("By chance alone", f"up to {size(audit, one.null_floor)}{per}", "what a perfect model would show here"),
        ("Smallest detectable error", f"{size(audit, one.detectable)}{per}", f"in any {group}, with 80% power"),
    ]
    if not per:
        limits = f"{size(audit, person.lower)} to {size(audit, person.upper)}"
        found.append(("Largest error per person", limits, f"{certain}, of any {whose}"))
    if not isnan(audit.p_value):
        found.append(("p-value", f"{audit.p_value:.3g}", "of the statement that the model is perfectly calibrated"))
    return found


def labels(layout: Layout) -> list[str | None]:
    """Return the name of every coordinate of a prediction: one for each class, or None alone for scalars."""
    if layout.d == 1:
        return [None]
    return [str(a if layout.classes is None else layout.classes[a]) for a in range(layout.d)]


def power(j: int) -> str:
    """Return the weight f^j in words."""
    return "1" if j == 0 else "prediction" if j == 1 else f"prediction to the power {j}"


def guarantee_lead(audit: AuditReport) -> str:
    """Return how sure the sentences on each group are."""
    return (
        f"With {sure(audit)} confidence for all of it at once, by {audit.method}, where a margin is "
        "given; other figures describe these rows."
    )


def meaning(audit: AuditReport) -> list[str]:
    """Return how the figures are to be read."""
    weight = "its label's weight" if audit.layout.d > 1 else "the weight"
    where = ", for the class where that is largest" if audit.layout.d > 1 else ""
    said = [
        "A group's error (violation) is the mean, over everyone, of membership × weight × (outcome − prediction). "  # noqa: RUF001
        "Positive: outcomes exceed predictions, which are too low. It counts small groups little; 'per person' is the "
        "same divided by the share of the group, the mean over its own people. The mean gap is the mean outcome less "
        f"the mean prediction in the group{where}.",
        f"The weight says where predictions err: 1 counts all members alike, p{'0' if audit.layout.d == 1 else 'a'} "
        "those with high predictions most. The report shows, for every group, "
        f"{weight} of the whole class of {audit.notion} with the largest error.",
        "Ranked per person, groups with the largest certified lower limit come first, then those with the largest "
        "estimate: in small groups, chance alone shows large errors per person.",
        f"Intervals hold for all groups at once with {sure(audit)} confidence ({audit.method}), if "
        "these rows were drawn from the population and were not used to fit the model.",
    ]
    if not audit.is_exact:
        said.append("Groups were found by a learner on one half of the rows and judged on the other; others may exist.")
    return said


def _tolerated(audit: AuditReport) -> list[tuple[str, str]]:
    tolerance = audit.tolerance
    if tolerance.per_person is None:
        return [("Alpha", f"{tolerance.largest:g}")]
    return [("Tolerated per person", f"{tolerance.largest:g}"), ("Least share judged", percent(tolerance.min_share))]


def provenance(audit: AuditReport) -> list[tuple[str, str]]:
    """Return where the figures come from."""
    classes = "numbers in [0, 1]" if audit.layout.classes is None else ", ".join(str(c) for c in audit.layout.classes)
    worth = f" (worth {audit.n_effective:,.0f} by their weights)" if audit.n_effective < 0.999 * audit.n_rows else ""
    return [
        ("Notion", str(audit.notion)),
        *_tolerated(audit),
        ("Confidence", sure(audit)),
        ("Rows", f"{audit.n_rows:,}{worth}"),
        ("Groups", f"{len(audit.findings):,}" + ("" if audit.is_exact else ", some found by a learner")),
        ("Outcomes", classes),
        ("Intervals by", audit.method),
        ("Seed", "not given" if audit.seed is None else str(audit.seed)),
        ("Made by", f"lowcal {__version__}"),
    ]
