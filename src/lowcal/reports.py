"""What an audit says: a finding for every subpopulation, a verdict, and how sure it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isfinite, isnan
from os import PathLike
from textwrap import fill
from typing import Any

import numpy as np

from lowcal.certificates import Constraints, Method
from lowcal.drawing import SHOWN, Violations
from lowcal.errors import InvalidInput, MissingExtra, brief, brief_names, printable
from lowcal.files.atomic import atomic_write
from lowcal.guarantees import GroupMoments, GroupPage, describe
from lowcal.inputs import Layout, check_whole
from lowcal.notions import Notion, Witness
from lowcal.report import Binned, as_markdown, by_degree, fragment, page


class Verdict(StrEnum):
    """Whether the notion holds at alpha in the population, with the stated confidence."""

    SATISFIED = "satisfied"
    VIOLATED = "violated"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Gap:
    """One class on one subpopulation, per person: the mean prediction, the mean outcome and limits on their difference.

    The limits hold for all classes and subpopulations at once, with the report's confidence.
    """

    label: Any
    predicted: float
    actual: float
    lower: float
    upper: float

    @property
    def gap(self) -> float:
        """Mean outcome less mean prediction: positive where predictions are too low."""
        return self.actual - self.predicted

    def to_dict(self) -> dict[str, Any]:
        """Return the gap as plain data."""
        return {**{k: _finite(v) for k, v in vars(self).items()}, "label": _plain(self.label), "gap": _finite(self.gap)}


@dataclass(frozen=True, eq=False)
class Finding:
    """One subpopulation c and the weight w of the class that shows its largest violation.

    `violation` = E[c <w(f), y - f>], signed: positive where outcomes exceed predictions. `conditional` is the same per
    person, divided by the mass of c. `lower` and `upper` hold the violation of (c, w) in the population, for all
    findings at once, and the outer one bounds every weight of the class; `method` says how they were made.
    `n_effective` is the effective number of rows of c. `basis` is the part that single basis elements show,
    `null_floor` what a perfect model would show by chance, `detectable` the smallest violation of c that is detected
    with 80% power. `gaps` compare mean prediction and outcome for every class; `label` is the class with the largest.
    """

    subpopulation: str
    weight: Witness
    label: Any
    violation: float
    conditional: float
    standard_error: float
    lower: float
    upper: float
    mass: float
    n_effective: float
    basis: float
    null_floor: float
    detectable: float
    method: Method
    gaps: tuple[Gap, ...]

    @property
    def least(self) -> float:
        """The least size of the violation: above 0 where the interval excludes 0."""
        return max(self.lower, -self.upper, 0.0)

    @property
    def greatest(self) -> float:
        """The greatest size of any violation of the class on this subpopulation."""
        return max(-self.lower, self.upper)

    @property
    def largest_gap(self) -> Gap:
        """The class whose mean prediction is farthest from its mean outcome."""
        return max(self.gaps, key=lambda one: abs(one.gap))

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.lower > 0.0 or self.upper < 0.0

    def named(self, classes: Sequence[Any]) -> Finding:
        """Return the finding with other names for the classes 0, 1, ..., by which it was made."""
        gaps = tuple(replace(one, label=classes[one.label]) for one in self.gaps)
        weight = replace(self.weight, labels=tuple(str(one) for one in classes))
        return replace(self, label=classes[self.label], gaps=gaps, weight=weight)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        gaps = [one.to_dict() for one in self.gaps]
        return {**values, "weight": str(self.weight), "label": _plain(self.label), "gaps": gaps}

    def __str__(self) -> str:
        one = self.largest_gap
        what = "predictions" if len(self.gaps) == 1 else f"predictions of {printable(str(one.label))}"
        return (
            f"{brief(self.subpopulation)}: violation {self.violation:+.4f} [{self.lower:+.4f}, {self.upper:+.4f}] "
            f"with weight {brief(self.weight)}; {what} average {one.predicted:.4f}, outcomes {one.actual:.4f}"
        )


@dataclass(frozen=True, eq=False)
class AuditReport:
    """What `audit` returns.

    `violation` is the supremum over the whole weight class for the worst subpopulation of the sample, `basis_error` the
    largest of single basis elements. With the stated confidence the supremum in the population lies between
    `certified_lower` and `certified_alpha`; the verdict compares these with alpha. `null_floor` is what a perfect model
    would show by chance, `p_value` the exact test of "this model is perfectly calibrated". `detectable`: a violation
    of this size is detected with 80% power in any subpopulation.
    """

    notion: Notion
    alpha: float
    confidence: float
    method: Method
    layout: Layout
    n_rows: int
    n_effective: float
    verdict: Verdict
    violation: float
    basis_error: float
    certified_lower: float
    certified_alpha: float
    p_value: float
    null_floor: float
    detectable: float
    is_exact: bool
    findings: tuple[Finding, ...] = field(repr=False)
    constraints: tuple[tuple[tuple[str, ...], Constraints], ...] = field(repr=False)
    moments: Mapping[str, Sequence[tuple[GroupMoments, float]]] = field(repr=False)
    notes: tuple[str, ...] = ()
    reliability: Mapping[str, Sequence[Binned]] = field(default_factory=dict, repr=False)
    seed: int | None = None

    @property
    def proof(self) -> Finding:
        """The finding that proves the most: the violation with the largest lower limit."""
        return max(self.findings, key=lambda one: one.least)

    def worst(self, n: int = 5) -> tuple[Finding, ...]:
        """Return the n findings with the largest violations."""
        check_whole("n", n, 1)
        return self.findings[:n]

    def shown(self, n: int) -> tuple[Finding, ...]:
        """Return the n worst findings, and the one that the verdict rests on if it is not among them."""
        worst = self.worst(n)
        return worst if any(one is self.proof for one in worst) else (*worst, self.proof)

    def finding(self, subpopulation: str) -> Finding:
        """Return the finding of one subpopulation by its name."""
        for one in self.findings:
            if one.subpopulation == subpopulation:
                return one
        raise InvalidInput(f"There is no subpopulation {subpopulation!r}; see [f.subpopulation for f in .findings].")

    def guarantees(self, subpopulation: str | None = None) -> str:
        """Return what follows for the people of every subpopulation, or of one (Section 4 of the paper), to be read.

        Figures in the text hold with the report's confidence wherever it says so; `pages` has them as numbers.
        """
        names = [one.subpopulation for one in self.findings]
        chosen = names if subpopulation is None else [self.finding(subpopulation).subpopulation]
        sure = (
            f"With {self.confidence:.0%} confidence for all of it at once, by {self.method}, where a margin is given."
        )
        return "\n\n".join([sure, *(str(page) for name in chosen for page in self.pages(name))])

    def pages(self, subpopulation: str) -> tuple[GroupPage, ...]:
        """Return what is known of a subpopulation, a page for each label: sentences and figures."""
        name = subpopulation if subpopulation in self.moments else self.finding(subpopulation).subpopulation
        labels = [None] if self.layout.d == 1 else [str(label_of(self.layout, a)) for a in range(self.layout.d)]
        known = zip(labels, self.moments[name], strict=True)
        return tuple(describe(group, name, label, margin) for label, (group, margin) in known)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, ready for JSON."""
        skipped = ("notion", "layout", "findings", "constraints", "moments", "verdict", "notes", "reliability")
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in skipped}
        return {
            "notion": str(self.notion),
            "verdict": self.verdict.value,
            **{name: _finite(value) for name, value in plain.items()},
            "layout": self.layout.to_dict(),
            "notes": list(self.notes),
            "findings": [{k: _finite(v) for k, v in one.to_dict().items()} for one in self.findings],
        }

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """Return `to_dict` as JSON; with a path, also write it there, whole or not at all."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False, default=str) + "\n"
        if path is not None:
            _write(text, path)
        return text

    def to_html(self, path: str | PathLike[str] | None = None, *, before: AuditReport | None = None) -> str:
        """Return the report as one HTML page that needs nothing else; with a path, also write it there.

        The page stays below 2 MB: the worst groups come first, and it says what is left out.

        Parameters
        ----------
        path : where the page goes, whole or not at all
        before : an audit of another model by the same notion, to compare with
        """
        made = page(self, None if before is None else self.comparable(before))
        if path is not None:
            _write(made, path)
        return made

    def comparable(self, before: object) -> AuditReport:
        """Return an earlier report if this one can be compared with it, refuse it otherwise."""
        if not isinstance(before, AuditReport):
            raise InvalidInput(f"before must be an AuditReport, as audit() returns it, but {before!r} was given.")
        if str(before.notion) != str(self.notion) or before.layout != self.layout:
            raise InvalidInput(
                f"before is an audit of {before.notion} with {before.layout}, this one of {self.notion} with "
                f"{self.layout}, or their classes differ. Audit both models in the same way."
            )
        return before

    def to_markdown(self, n: int = 10) -> str:
        """Return the verdict, the figures and the n worst groups as Markdown."""
        check_whole("n", n, 1)
        return as_markdown(self, n)

    def plot(
        self, kind: str = "intervals", *, n: int | None = SHOWN, before: AuditReport | None = None, ax: Any = None
    ) -> Violations:
        """Draw the n worst groups (None: all) with their intervals, or by degree with kind="heatmap".

        Returns a display with the attributes `ax_` and `figure_`, as `lowcal.ViolationDisplay` is. Needs matplotlib.
        """
        return Violations(**violations_of(self, before)).plot(kind, n=n, ax=ax)

    def _repr_html_(self) -> str:
        return fragment(self)

    def to_frame(self, constraints: bool = False) -> Any:
        """Return the findings as a data frame (pandas, or polars where pandas is not installed).

        With `constraints`, every single constraint (subpopulation, basis weight, label) with its own interval.
        """
        rows = self._constraint_rows() if constraints else [one.to_dict() for one in self.findings]
        try:
            import pandas

            return pandas.DataFrame(rows)
        except ImportError:
            pass
        try:
            import polars
        except ImportError as error:
            raise MissingExtra("to_frame needs pandas or polars: pip install pandas. Or use to_dict().") from error
        return polars.DataFrame(rows)

    def _constraint_rows(self) -> list[dict[str, Any]]:
        """Return a row for every constraint."""
        rows = []
        for names, found in self.constraints:
            for j, s, a in np.ndindex(*found.v.shape):
                v, lower, upper = (float(of[j, s, a]) for of in (found.v, found.lower, found.upper))
                row = {"subpopulation": names[j], "weight": str(found.weights[s]), "label": label_of(self.layout, a)}
                error = float(found.standard_error[j, s, a])
                rows.append({**row, "violation": v, "standard_error": error, "lower": lower, "upper": upper})
        return rows

    def __str__(self) -> str:
        lines = [self._headline(), "", *self._figures(), "", *self._table()]
        lines += [fill(f"Note: {note}", 110, subsequent_indent="      ") for note in self.notes]
        return "\n".join(lines)

    def _headline(self) -> str:
        return fill(f"{self.notion} at alpha={self.alpha:g}: {self.verdict.value}. {self._reason()}", 110)

    def _reason(self) -> str:
        sure = f"With {self.confidence:.0%} confidence"
        if self.verdict is Verdict.SATISFIED:
            return f"{sure} no violation exceeds {self.certified_alpha:.3g}."
        if self.verdict is Verdict.VIOLATED:
            whose = brief(self.proof.subpopulation)
            return f"{sure} the violation of {whose} is at least {self.certified_lower:.3g}."
        between = f"between {self.certified_lower:.3g} and {self.certified_alpha:.3g}"
        return f"{sure} the largest violation lies {between}: these rows can't tell it from alpha."

    def _figures(self) -> list[str]:
        whose = "" if self.is_exact else " (found by a learner on one half of the rows, judged on the other)"
        test = "" if isnan(self.p_value) else f", p-value of perfect calibration {self.p_value:.3g}"
        basis = f" (single basis elements: {self.basis_error:.4f})" if self.basis_error < self.violation else ""
        return [
            f"  largest violation      {self.violation:.4f}{basis}",
            f"  by chance alone up to  {self.null_floor:.4f}{test}",
            f"  smallest detectable    {self.detectable:.4f} in any subpopulation, with 80% power",
            f"  {self.n_rows:,} rows, {len(self.findings)} subpopulations{whose}, intervals by {self.method}",
        ]

    def _table(self, n: int = 10) -> list[str]:
        shown = self.shown(n)
        names = brief_names(one.subpopulation for one in shown)
        wide = max(13, *map(len, names)) + 2
        label = "" if self.layout.d == 1 else f" {'class':<12}"
        head = f"{'share':>7}{'violation':>11}{f'{self.confidence:.0%} interval':>21}{'per person':>12}{label}   weight"
        rows = [f"  {'subpopulation':<{wide}}{head}"]
        for name, one in zip(names, shown, strict=True):
            interval = f"[{one.lower:+.4f}, {one.upper:+.4f}]"
            figures = f"{one.mass:>7.1%}{one.violation:>+11.4f}{interval:>21}{one.largest_gap.gap:>+12.4f}"
            label = "" if len(one.gaps) == 1 else f" {printable(str(one.label)):<12}"
            rows.append(f"  {name:<{wide}}{figures}{label}   {brief(one.weight)}")
        more = len(self.findings) - len(shown)
        return rows + ([f"  and {more} more"] if more else [])


def label_of(layout: Layout, a: int) -> Any:
    """Return the class that coordinate a speaks of: the second of two for scalars, None without classes."""
    if layout.classes is None:
        return None if layout.d == 1 else a
    return layout.classes[1] if layout.d == 1 else layout.classes[a]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _finite(value: Any) -> Any:
    """Return None for nan and the infinities, which JSON does not know."""
    return None if isinstance(value, float) and not isfinite(value) else value


def violations_of(report: AuditReport, before: AuditReport | None = None) -> dict[str, Any]:
    """Return the values that a picture of violations shows, by the names of `lowcal.drawing.Violations`."""
    shown = report.findings
    names = tuple(one.subpopulation for one in shown)
    earlier = {} if before is None else {one.subpopulation: one.violation for one in report.comparable(before).findings}
    return {
        "names": names,
        "violation": np.array([one.violation for one in shown]),
        "lower": np.array([one.lower for one in shown]),
        "upper": np.array([one.upper for one in shown]),
        "by_degree": np.array([by_degree([group for group, _ in report.moments[name]])[0] for name in names]),
        "alpha": report.alpha,
        "confidence": report.confidence,
        "before": None if before is None else np.array([earlier.get(name, np.nan) for name in names]),
    }


def sort_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings with the largest violation first; equal ones keep their order."""
    order = np.argsort(-np.abs(np.array([one.violation for one in findings])), kind="stable")
    return tuple(findings[j] for j in order)


def _write(text: str, path: str | PathLike[str]) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())
