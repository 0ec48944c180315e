"""What an audit says, in sentences for someone who has never heard of multicalibration."""

from __future__ import annotations

import re
from math import isnan

from lowcal.report.source import Audit, Found
from lowcal.report.text import digits, number, several
from lowcal.version import __version__

_MONOMIAL = re.compile(r"p0(\^\d+)?")
_TITLES = {
    "satisfied": "Passed",
    "violated": "Not passed",
    "undecided": "Undecided",
}


def title(audit: Audit) -> str:
    """Return the verdict in a word or two."""
    return _TITLES[str(audit.verdict)]


def verdict(audit: Audit, proof: str) -> str:
    """Return the verdict in one sentence.

    `proof` is the name of the group whose interval proves a violation, escaped for where it shall stand: nothing else
    in the sentence is from data.
    """
    sure = f"with {audit.confidence * 100:.4g}% confidence"
    low, high = size(audit, audit.certified_lower), size(audit, audit.certified_alpha)
    alpha, groups = f"{audit.alpha:g}", several(len(audit.findings), "group")
    if audit.verdict == "satisfied":
        return (
            f"The model's probabilities can be relied on in every one of the {groups} examined: {sure} no group's "
            f"error exceeds {high}, and up to {alpha} is tolerated."
        )
    if audit.verdict == "violated":
        return (
            f"The model's probabilities are wrong for some groups: {sure} the error of {proof}, where predictions are "
            f"{side(audit.proof)}, is at least {low}, and up to {alpha} is tolerated; {groups} were examined."
        )
    return (
        f"These {audit.n_rows:,} rows cannot tell whether the model's probabilities are good enough: {sure} the "
        f"largest error of a group lies between {low} and {high}, and {alpha} is tolerated."
    )


def side(found: Found) -> str:
    """Return on which side the predictions err, and where: only the constant weight speaks of all of them."""
    if found.violation == 0:
        return "right"
    too, weight = "too low" if found.violation > 0 else "too high", str(found.weight)
    if len(found.gaps) > 1:
        return f"too {'low' if found.largest_gap.gap > 0 else 'high'} for some classes"
    where = "" if weight == "1" else " at the upper end" if _MONOMIAL.fullmatch(weight) else " in part of their range"
    return too + where


def judged(found: Found) -> str:
    """Return the side where the interval tells it."""
    return side(found) if found.is_significant else "not clearly wrong"


def size(audit: Audit, value: float) -> str:
    """Return a violation with as many decimals as the tolerance asks for."""
    return number(value, digits(audit.alpha))


def figures(audit: Audit) -> list[tuple[str, str, str]]:
    """Return the key figures: name, value, and what it is."""
    sure = f"{audit.confidence * 100:.4g}%"
    between = f"{size(audit, audit.certified_lower)} to {size(audit, audit.certified_alpha)}"
    found = [
        (
            "Largest error seen",
            size(audit, audit.violation),
            "of any group in these rows, for the weight that shows most",
        ),
        ("Largest error in the population", between, f"with {sure} confidence, for all groups at once"),
        ("Tolerated", f"{audit.alpha:g}", f"the alpha of {audit.notion}"),
        (
            "By chance alone",
            f"up to {size(audit, audit.null_floor)}",
            "what a perfect model would show in as many rows",
        ),
        (
            "Smallest detectable error",
            size(audit, audit.detectable),
            "in any group, with 80% power",
        ),
    ]
    if not isnan(audit.p_value):
        found.append(("p-value", f"{audit.p_value:.3g}", "of the statement that the model is perfectly calibrated"))
    return found


def guarantee_lead(audit: Audit) -> str:
    """Return how sure the sentences on each group are."""
    return (
        f"With {audit.confidence * 100:.4g}% confidence for all of it at once, by {audit.method}, where a margin is "
        "given; other figures describe these rows."
    )


def meaning(audit: Audit) -> list[str]:
    """Return how the figures are to be read."""
    weight = "its label's weight" if audit.layout.d > 1 else "the weight"
    where = ", for the class where that is largest" if audit.layout.d > 1 else ""
    said = [
        "A group's error (violation) is the mean, over everyone, of membership × weight × (outcome − prediction). "  # noqa: RUF001
        "Positive: outcomes exceed predictions, which are too low. It counts small groups little; 'per person' is the "
        f"mean outcome less the mean prediction in the group{where}.",
        f"The weight says where predictions err: 1 counts all members alike, p{'0' if audit.layout.d == 1 else 'a'} "
        "those with high predictions most. The report shows, for every group, "
        f"{weight} of the whole class of {audit.notion} with the largest error.",
        f"Intervals hold for all groups at once with {audit.confidence * 100:.4g}% confidence ({audit.method}), if "
        "these rows were drawn from the population and were not used to fit the model.",
    ]
    if not audit.is_exact:
        said.append("Groups were found by a learner on one half of the rows and judged on the other; others may exist.")
    return said


def provenance(audit: Audit) -> list[tuple[str, str]]:
    """Return where the figures come from."""
    classes = "numbers in [0, 1]" if audit.layout.classes is None else ", ".join(str(c) for c in audit.layout.classes)
    worth = f" (worth {audit.n_effective:,.0f} by their weights)" if audit.n_effective < 0.999 * audit.n_rows else ""
    return [
        ("Notion", str(audit.notion)),
        ("Alpha", f"{audit.alpha:g}"),
        ("Confidence", f"{audit.confidence * 100:.4g}%"),
        ("Rows", f"{audit.n_rows:,}{worth}"),
        ("Groups", f"{len(audit.findings):,}" + ("" if audit.is_exact else ", some found by a learner")),
        ("Outcomes", classes),
        ("Intervals by", audit.method),
        ("Seed", "not given" if audit.seed is None else str(audit.seed)),
        ("Made by", f"lowcal {__version__}"),
    ]
