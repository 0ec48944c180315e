"""The sentences of a report's first screen, in plain words: the verdict, who is affected, by how much, what to do."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from lowcal.auditing.reports import words

if TYPE_CHECKING:
    from lowcal.auditing.reports.audit_report import AuditReport, Finding


def verdict(audit: AuditReport, group: str, label: str) -> str:
    """Return the verdict in one sentence for everyone.

    `group` and `label` are the names of the group that is off most and of its class, escaped for the form of the
    report: nothing else in the sentence is from data.
    """
    if isnan(audit.largest.upper):
        return f"No group is judged: there are no {words.judged_groups(audit)}."
    n = len(audit.findings)
    every = (
        f"all {words.judged_groups(audit)}"
        if audit.by == "per_person"
        else f"all {n:,} groups"
        if n > 1
        else "the one group"
    )
    if audit.verdict == "satisfied":
        return f"This model is right for {every}, within the tolerance."
    if audit.verdict == "violated":
        return f"This model is wrong for at least one group: {_error(audit, example(audit), group, label)}."
    if audit.largest.upper <= audit.tolerance.largest:
        return "Some groups could not be examined, so it stays open whether this model is right for them."
    off = sum(map(is_off, audit.findings))
    if off:
        found = f"This model is off for {off:,} of {words.several(n, 'group')}"
        return f"{found}; these {audit.n_rows:,} rows are too few to tell whether by more than is tolerated."
    return f"These {audit.n_rows:,} rows are too few to tell whether this model is right for {every}."


def _error(audit: AuditReport, one: Finding, group: str, label: str) -> str:
    """Return how a group is off: on average, or in part of the predictions."""
    gap = one.largest_gap
    if gap.least == 0.0:
        return f"for {group}, {part_of(audit, one)}"
    predicted, actual, *_ = words.means(gap)
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
            predicted, actual = words.rate(bins[0].prediction[b]), words.rate(bins[0].outcome[b])
            return f"{actual} is true where it predicts about {predicted}"
    return f"predictions are {words.side(one)}"


def largest_over_all(audit: AuditReport, group: str, label: str) -> str:
    """Return the group with the largest error over all people if it is not the one in the verdict."""
    if audit.verdict != "violated" or audit.by == "per_person" or audit.proof is example(audit):
        return ""
    error = _error(audit, audit.proof, group, label)
    return f" Weighed by the number of people, another error is the largest: {error}."


def reason(audit: AuditReport) -> str:
    """Return the confidence of the verdict and the tolerance, for everyone."""
    low, high = (words.points(audit, end) for end in (audit.largest.lower, audit.largest.upper))
    if isnan(audit.largest.upper):
        return "Audit more rows, or larger groups."
    if audit.verdict == "violated":
        return (
            f"An audit finds an error where there is none in at most {words.percent(1.0 - audit.confidence)} of cases."
        )
    over, limit = ", averaged over all people," if audit.by == "violation" else "", f"{100 * audit.tolerance.largest:g}"
    tolerated = f"{limit} {'is' if limit == '1' else 'are'} tolerated"
    if audit.verdict == "undecided":
        found = f"the largest error{over} lies between {low} and {high} percentage points"
        return f"With {words.confidence(audit)} confidence, {found}; {tolerated}."
    found = f"the error of every group{over} is at most {high} percentage points"
    tenth = words.points(audit, min(1.0, audit.largest.upper / 0.1))
    small = f" A group of 10% of the people is then off by at most {tenth} points." if over else ""
    return f"With {words.confidence(audit)} confidence, {found}; {tolerated}.{small}"


def next_step(audit: AuditReport) -> str:
    """Return what to do about the verdict."""
    least = audit.largest.detectable
    only = f" With these, only an error of at least {words.points(audit, least)} percentage points is found with a "
    return {
        "satisfied": "Nothing for now. Audit again when the model, or the people it is used for, change.",
        "violated": "Recalibrate the model on other rows than these, then audit it again on rows it has not seen.",
        "undecided": "Audit more rows that the model has not seen."
        + ("" if isnan(least) else f"{only}probability of 80%."),
    }[str(audit.verdict)]


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
