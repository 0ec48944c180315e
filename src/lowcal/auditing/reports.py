"""What an audit found: a finding for every subpopulation and a verdict; and saved audits side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from math import isfinite, isnan, nan
from os import PathLike
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from lowcal.auditing import words
from lowcal.auditing.band import Method
from lowcal.auditing.page import comparison_page, fragment, page
from lowcal.auditing.panel import ReliabilityBins
from lowcal.data.errors import (
    InvalidInput,
    MissingExtra,
    abbreviate,
    aligned,
    brief,
    brief_names,
    check_choice,
    printable,
    repeated,
    some_of,
)
from lowcal.data.files import atomic_write
from lowcal.data.inputs import Layout, check_whole
from lowcal.guarantees import GroupMoments, GroupPage, describe
from lowcal.guarantees.groups import class_names
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.notions import Notion, Witness
from lowcal.rows.explaining import Explanation, most_changed
from lowcal.rows.updates import Predictor
from lowcal.solve.fitting import Fit
from lowcal.solve.solvers import Tolerance
from lowcal.subpopulations.base import EVERYONE

if TYPE_CHECKING:
    from lowcal.auditing.plotting import ViolationDisplay


#: The error by which findings are ranked: the violation over all rows, or the error per person.
By = Literal["violation", "per_person"]
BY = get_args(By)
#: The number of groups drawn by default.
SHOWN = 40
#: The attributes that `to_dict` copies.
_PLAIN = (
    *("alpha", "per_person", "min_share", "certified_per_person", "confidence", "method", "n_rows", "n_effective"),
    *("violation", "basis_error", "certified_lower", "certified_alpha", "p_value", "null_floor", "detectable"),
    *("is_exact", "seed"),
)


class Verdict(StrEnum):
    """Whether the notion holds in the population, at alpha or per person, with the stated confidence."""

    SATISFIED = "satisfied"
    VIOLATED = "violated"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Origin:
    """The names of what was audited, and the hash of its file or files; empty where unknown.

    It is not in `to_dict`: the same rows give the same report, whatever their names and wherever they are.
    """

    model: str = ""
    outcome: str = ""
    file: str = ""
    sha256: str = ""
    #: The command that made the report; it names outputs, so what the command saves leaves it out.
    command: str = ""

    def named(self, model: str | None, outcome: str | None) -> Origin:
        """Return the origin with the names that are given."""
        given = {"model": model, "outcome": outcome}
        return replace(self, **{name: str(value) for name, value in given.items() if value is not None})

    def to_dict(self) -> dict[str, str]:
        """Return the known names, without the command."""
        return {name: value for name, value in vars(self).items() if value and name != "command"}


@dataclass(frozen=True)
class Gap:
    """The mean prediction and outcome of one class on one subpopulation, and limits on their difference.

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

    @property
    def least(self) -> float:
        """The least size of the gap: above 0 where its interval excludes 0; 0 where there is no interval."""
        return max(0.0, self.lower, -self.upper)

    def to_dict(self) -> dict[str, Any]:
        """Return the gap as plain data."""
        return plain(vars(self) | {"gap": self.gap})


@dataclass(frozen=True)
class LargestError:
    """The largest error of any subpopulation, as violations or per person.

    `error` is that of the sample; with the report's confidence the population's lies between `lower` and `upper`.
    `null_floor` is the chance level, that of a perfect model; `detectable` is detected with 80% power in any of them.
    """

    error: float
    lower: float
    upper: float
    null_floor: float
    detectable: float


@dataclass(frozen=True, eq=False)
class Finding:
    """One subpopulation c and the weight w of the class that shows its largest violation.

    `violation` = E[c <w(f), y - f>], signed: positive where outcomes exceed predictions. `conditional` is the same per
    person, divided by the mass of c. `lower` and `upper` are limits on the violation of (c, w) in the population, by
    `method`, simultaneous for all findings; the outer one bounds every weight of the class.
    `conditional_lower` and `conditional_upper` are the same limits per person, valid together with them: for
    memberships of 0 or 1 conditional on which rows belong to c, otherwise with the uncertainty of its mass
    (`lowcal.auditing.band.masses`); nan for memberships with signs, which have no share of the people.
    `n_effective` is the effective number of rows of c. `basis` is the largest violation of a single basis element,
    `null_floor` the chance level, `detectable` the smallest violation of c that is detected with 80% power. `gaps`
    compare mean prediction and outcome for every class; `label` is the class with the largest gap.
    """

    subpopulation: str
    weight: Witness
    label: Any
    violation: float
    conditional: float
    standard_error: float
    lower: float
    upper: float
    conditional_lower: float
    conditional_upper: float
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
    def least_per_person(self) -> float:
        """The least size of the error per person: above 0 where its interval excludes 0."""
        return max(self.conditional_lower, -self.conditional_upper, 0.0)

    @property
    def greatest_per_person(self) -> float:
        """The greatest size of any error per person of the class on this subpopulation."""
        return max(-self.conditional_lower, self.conditional_upper)

    def interval(self, by: By = "violation") -> tuple[float, float, float]:
        """Return the violation, or the error per person, with its limits."""
        if by == "per_person":
            return self.conditional, self.conditional_lower, self.conditional_upper
        return self.violation, self.lower, self.upper

    def is_judged(self, tolerance: Tolerance) -> bool:
        """Return whether the group is large enough to be judged per person."""
        return bool(tolerance.judges(self.mass)) and not isnan(self.conditional_lower)

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.least > 0.0

    @property
    def largest_gap(self) -> Gap:
        """The class whose mean prediction is farthest from its mean outcome."""
        return max(self.gaps, key=lambda one: abs(one.gap))

    def named(self, classes: Sequence[Any]) -> Finding:
        """Return the finding with names in place of the classes 0, 1, ..."""
        gaps = tuple(replace(one, label=classes[one.label]) for one in self.gaps)
        weight = replace(self.weight, labels=tuple(str(one) for one in classes))
        return replace(self, label=classes[self.label], gaps=gaps, weight=weight)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        label = self.label.item() if isinstance(self.label, np.generic) else self.label
        return vars(self) | {"weight": str(self.weight), "label": label, "gaps": [one.to_dict() for one in self.gaps]}

    def __str__(self) -> str:
        one = self.largest_gap
        what = "predictions" if len(self.gaps) == 1 else f"predictions of {printable(str(one.label))}"
        found = f"violation {self.violation:+.4f} [{self.lower:+.4f}, {self.upper:+.4f}] ({words.side(self)})"
        means = f"{what} average {one.predicted:.4f}, outcomes {one.actual:.4f}"
        return f"{brief(self.subpopulation)}: {found}; {means}"


@dataclass(frozen=True, eq=False)
class AuditReport:
    """What `audit` returns.

    `violation` is the supremum over the whole weight class for the worst subpopulation of the sample, `basis_error` the
    largest of single basis elements. With the stated confidence the supremum in the population lies between
    `certified_lower` and `certified_alpha`; the verdict compares these with alpha. `null_floor` is the chance level of
    a perfect model, `p_value` the exact test of "this model is perfectly calibrated". `detectable`: a violation of this
    size is detected with 80% power in any subpopulation.

    `largest_per_person` has the same figures per person, for subpopulations with at least `min_share` of the rows; an
    audit with `per_person` compares these with it. `findings` are ranked by the error that was audited (`worst`).
    """

    notion: Notion
    tolerance: Tolerance
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
    largest_per_person: LargestError
    is_exact: bool
    findings: tuple[Finding, ...] = field(repr=False)
    moments: Mapping[str, Sequence[tuple[GroupMoments, float]]] = field(repr=False)
    notes: tuple[str, ...] = ()
    reliability: Mapping[str, Sequence[ReliabilityBins]] = field(default_factory=dict, repr=False)
    seed: int | None = None
    origin: Origin = field(default_factory=Origin, repr=False)

    @property
    def alpha(self) -> float | None:
        """The largest violation that is tolerated; None for an audit with per_person."""
        return self.tolerance.alpha

    @property
    def per_person(self) -> float | None:
        """The largest error per person that is tolerated; None for an audit with alpha."""
        return self.tolerance.per_person

    @property
    def min_share(self) -> float:
        """The smallest share of the rows at which a group is judged per person."""
        return self.tolerance.min_share

    @property
    def certified_per_person(self) -> float:
        """The upper limit on the largest error per person among groups of at least `min_share`; nan without any."""
        return self.largest_per_person.upper

    @property
    def by(self) -> By:
        """The error that was audited: violations, or errors per person."""
        return "violation" if self.per_person is None else "per_person"

    @property
    def largest(self) -> LargestError:
        """The largest error that the verdict compares with the tolerance, as violation or per person."""
        if self.by == "per_person":
            return self.largest_per_person
        limits = self.certified_lower, self.certified_alpha
        return LargestError(self.violation, *limits, self.null_floor, self.detectable)

    @property
    def proof(self) -> Finding:
        """The finding with the largest lower limit of the error that was audited, which proves a violation."""
        if self.by == "violation":
            return max(self.findings, key=lambda one: one.least)
        judged = [one for one in self.findings if one.is_judged(self.tolerance)]
        return max(judged or self.findings, key=lambda one: one.least_per_person)

    def worst(self, n: int = 5, by: By | None = None) -> tuple[Finding, ...]:
        """Return the n worst findings by "violation" or "per_person" (default: the error that was audited).

        By violation, the largest come first. Per person, those with the largest certified lower limit come first, then
        those with the largest estimate: in a group of few rows, chance alone produces large errors per person.
        """
        check_whole("n", n, 1)
        return (self.findings if by in (None, self.by) else sort_findings(self.findings, by))[:n]

    def shown(self, n: int) -> tuple[Finding, ...]:
        """Return the n worst findings, and also the one that proves the verdict if it is not among them."""
        worst = self.worst(n)
        return worst if any(one is self.proof for one in worst) else (*worst, self.proof)

    @cached_property
    def by_name(self) -> Mapping[str, Finding]:
        """The findings by the names of their subpopulations; of equal names the worst counts."""
        return {one.subpopulation: one for one in reversed(self.findings)}

    def finding(self, subpopulation: str) -> Finding:
        """Return the finding of one subpopulation by its name."""
        if subpopulation in self.by_name:
            return self.by_name[subpopulation]
        raise InvalidInput(f"There is no subpopulation {subpopulation!r}; see [f.subpopulation for f in .findings].")

    def guarantees(self, subpopulation: str | None = None) -> str:
        """Return what follows for every subpopulation, or for one (Section 4 of the paper), as text.

        Statements with a margin of error hold with the report's confidence; `pages` has the figures as numbers.
        """
        chosen = [one.subpopulation for one in self.findings] if subpopulation is None else [subpopulation]
        return "\n\n".join([words.guarantee_lead(self), *(str(page) for name in chosen for page in self.pages(name))])

    def pages(self, subpopulation: str) -> tuple[GroupPage, ...]:
        """Return the guarantees of a subpopulation, a page with sentences and figures for each label."""
        known = zip(words.labels(self.layout), self.moments[self.finding(subpopulation).subpopulation], strict=True)
        return tuple(describe(group, subpopulation, label, margin) for label, (group, margin) in known)

    def by_degree(self, by: By = "violation", n: int | None = None) -> tuple[FloatArray, IntArray]:
        """Return E[c f^j (y - f)] of the first n findings for j = 0, 1, ..., and the label for which it is largest.

        Both have shape (n, degrees); moments per person are divided by the mass. Groups without rows have 0.
        """
        groups = [[group for group, _ in self.moments[one.subpopulation]] for one in self.findings[:n]]
        scale = [[1.0 if by == "per_person" else one.mass for one in labels] for labels in groups]
        gaps = [[[one.gap(j) for j in range(one.degree)] for one in labels] for labels in groups]
        table = np.nan_to_num(np.array(gaps) * np.array(scale)[:, :, None])
        label = np.abs(table).argmax(axis=1)
        return np.take_along_axis(table, label[:, None], axis=1)[:, 0], label

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, ready for JSON."""
        return {
            "notion": str(self.notion),
            "verdict": self.verdict.value,
            "largest_per_person": plain(vars(self.largest_per_person)),
            **plain({name: getattr(self, name) for name in _PLAIN}),
            "layout": self.layout.to_dict(),
            "notes": list(self.notes),
            "findings": [plain(one.to_dict()) for one in self.findings],
        }

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """Return `to_dict` as JSON; with a path, also write it there, whole or not at all."""
        return written(json.dumps(self.to_dict(), indent=1, allow_nan=False, default=str) + "\n", path)

    def to_html(
        self,
        path: str | PathLike[str] | None = None,
        *,
        before: AuditReport | None = None,
        fit: Fit | Predictor | None = None,
        explain: tuple[Any, Any] | Mapping[int, Explanation] | None = None,
        model: str | None = None,
        outcome: str | None = None,
    ) -> str:
        """Return the report as one self-contained HTML page; with a path, also write it there.

        The page stays below 2 MB: the worst groups come first, and it states what is left out. Its date is in UTC, and
        from SOURCE_DATE_EPOCH if that is set. Needs jinja2.

        Parameters
        ----------
        path : where the page is written, completely or not at all
        before : an audit of another model with the same notion, for comparison
        fit : the `Fit` that made these predictions, or its predictor; the page shows the candidates of `recalibrate`
        explain : (p, X), the probabilities before the fit and their rows: the page explains the predictions that the
            fit changed most. Or explanations of your own choice, by row number, as `Predictor.explain` returns them
        model, outcome : names for the page; by default those of columns that `audit` was given by name
        """
        if not isinstance(fit, Fit | Predictor | None):
            raise InvalidInput(f"fit must be a Fit, as recalibrate() returns it, or its predictor, but got {fit!r}.")
        earlier = None if before is None else self.comparable(before)
        candidates = fit.candidates if isinstance(fit, Fit) else ()
        named = replace(self, origin=self.origin.named(model, outcome))
        return written(page(named, earlier, candidates, _explained(fit, explain)), path)

    def comparable(self, before: object) -> AuditReport:
        """Return an earlier report if this one can be compared with it; refuse it otherwise."""
        if not isinstance(before, AuditReport):
            raise InvalidInput(f"before must be an AuditReport, as audit() returns it, but {before!r} was given.")
        if str(before.notion) != str(self.notion) or before.layout != self.layout:
            this = f"{self.notion} with {self.layout}, or their classes differ. Audit both models in the same way."
            raise InvalidInput(f"before is an audit of {before.notion} with {before.layout}, this one of {this}")
        if before.by != self.by:
            raise InvalidInput(
                f"before is an audit at {before.tolerance}, this one at {self.tolerance}. Give both one."
            )
        return before

    def to_markdown(self, n: int = 10) -> str:
        """Return the verdict, the figures and the n worst groups as Markdown."""
        return words.as_markdown(self, n)

    def plot(self, *, n: int | None = SHOWN, before: AuditReport | None = None, ax: Any = None) -> ViolationDisplay:
        """Draw the n worst groups (None: all) with their intervals, and the violations of an earlier audit.

        Returns a `lowcal.ViolationDisplay` with the attributes `ax_` and `figure_`. Needs matplotlib.
        """
        from lowcal.auditing.plotting import ViolationDisplay

        return ViolationDisplay.from_report(self, n=n, before=before, ax=ax)

    def _repr_html_(self) -> str | None:
        try:
            return fragment(self)
        except MissingExtra:  # then notebooks show the text
            return None

    def to_frame(self) -> Any:
        """Return the findings as a data frame (pandas, or polars where pandas is not installed)."""
        for library in ("pandas", "polars"):
            with suppress(ImportError):
                return import_module(library).DataFrame([one.to_dict() for one in self.findings])
        raise MissingExtra("to_frame needs pandas or polars: pip install pandas. Or use to_dict().")

    def __str__(self) -> str:
        return words.as_text(self)


def _explained(
    fit: Fit | Predictor | None, explain: tuple[Any, Any] | Mapping[int, Explanation] | None
) -> Mapping[int, Explanation]:
    """Return the explanations given, or those of the rows that a fit changed most."""
    if explain is None or isinstance(explain, Mapping):
        return explain or {}
    if fit is None:
        raise InvalidInput("explain=(p, X) needs the fit that changed p: give fit=, or explanations by row number.")
    if not isinstance(explain, tuple) or len(explain) != 2:
        raise InvalidInput("explain must be (p, X), the probabilities before the fit and their rows.")
    return most_changed(fit.predictor if isinstance(fit, Fit) else fit, *explain)


def labels_of(layout: Layout) -> tuple[Any, ...]:
    """Return the class of every coordinate: the second of two for scalars, which is None without classes."""
    return tuple(class_names(layout)) if layout.d > 1 else (layout.classes[1] if layout.classes else None,)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that JSON can hold: Python's own types, and None for nan and the infinities."""
    own = ((name, value.item() if isinstance(value, np.generic) else value) for name, value in values.items())
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in own}


def sort_findings(findings: Sequence[Finding], by: By) -> tuple[Finding, ...]:
    """Return the worst findings first (`AuditReport.worst`); those without an error per person come last."""
    check_choice("by", by, BY)
    size = np.abs([one.interval(by)[0] for one in findings])
    least = np.array([one.least_per_person if by == "per_person" else 0.0 for one in findings])
    return tuple(findings[j] for j in np.lexsort((-size, -least)))


def written(text: str, path: str | PathLike[str] | None) -> str:
    """Return a text, and write it to the path if there is one."""
    if path is not None:
        with atomic_write(path) as file:
            file.write(text.encode())
    return text


# --- saved audits side by side ---------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class SavedAudit:
    """The part of an audit that a comparison shows: its verdict, and the mean difference of every group (and class)."""

    path: str
    asked: str
    verdict: Verdict
    confidence: float
    n_rows: int
    lower: float
    upper: float
    origin: Origin
    gaps: Mapping[str, Gap]

    @classmethod
    def read(cls, path: str) -> SavedAudit:
        """Return the audit that `AuditReport.to_json` or `lowcal audit --json` wrote; refuse other files."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")), path)
        except OSError as error:
            raise InvalidInput(f"{path} can't be read: {error.strerror}.") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            made_by = "'lowcal audit --json' or report.to_json()"
            raise InvalidInput(
                f"{path} is not an audit saved by {made_by}; audits with --by have pages of their own."
            ) from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], path: str) -> SavedAudit:
        """Return the audit in `AuditReport.to_dict`; of equal names the first group counts, the worst."""
        is_per_person = data["per_person"] is not None
        tolerance = "per_person={per_person:g}" if is_per_person else "alpha={alpha:g}"
        found = data["largest_per_person"] if is_per_person else data
        lower, upper = ("lower", "upper") if is_per_person else ("certified_lower", "certified_alpha")
        return cls(
            path=path,
            asked=f"{data['notion']} at {tolerance.format(**data)}",
            verdict=Verdict(data["verdict"]),
            confidence=float(data["confidence"]),
            n_rows=int(data["n_rows"]),
            lower=_number(found[lower]),
            upper=_number(found[upper]),
            origin=Origin(**data.get("origin", {})),
            gaps=dict(each for one in reversed(data["findings"]) for each in _gaps(one)),
        )

    @property
    def noun(self) -> str:
        """The name of the error that the verdict compares with the tolerance."""
        return "error per person" if "per_person=" in self.asked else "violation"

    @property
    def ranked(self) -> list[str]:
        """The groups, those that are clearly off first, then by the size of the difference."""
        return sorted(self.gaps, key=lambda name: _badness(self.gaps[name]), reverse=True)


def _number(value: float | None) -> float:
    return nan if value is None else float(value)


def _gaps(finding: Mapping[str, Any]) -> list[tuple[str, Gap]]:
    """Return the differences of a group by its name; with several classes, by that of each class too."""
    name, gaps = str(finding["subpopulation"]), finding["gaps"]
    ends = ("predicted", "actual", "lower", "upper")
    read = [Gap(one["label"], *(_number(one[end]) for end in ends)) for one in gaps]
    return [(name if len(gaps) == 1 else f"{name}: {one.label}", one) for one in read]


def _badness(gap: Gap) -> tuple[bool, float]:
    return gap.least > 0.0, -1.0 if isnan(gap.gap) else abs(gap.gap)


@dataclass(frozen=True, eq=False)
class AuditComparison:
    """Audits by name, in the order given, and the groups that two or more of them have, the worst anywhere first."""

    audits: Mapping[str, SavedAudit]

    @classmethod
    def of(cls, audits: Sequence[SavedAudit]) -> AuditComparison:
        """Compare audits of the same notion and tolerance that share groups; others are refused."""
        first, *rest = audits
        for one in rest:
            if one.asked != first.asked:
                both = f"{first.path} is an audit of {first.asked}, {one.path} of {one.asked}"
                raise InvalidInput(f"{both}. Audit all in the same way.")
            if not {*first.gaps} & {*one.gaps} - {EVERYONE} and len(first.gaps) + len(one.gaps) > 2:
                has = " has ".join((first.path, some_of(first.ranked, 2)))
                raise InvalidInput(f"{has}, {one.path} has {some_of(one.ranked, 2)}: they share no group to compare.")
        return cls(dict(zip(_names(audits), audits, strict=True)))

    @cached_property
    def groups(self) -> list[str]:
        """The groups of at least two audits."""
        common = repeated(name for one in self.audits.values() for name in one.gaps)
        return sorted(common, key=lambda name: max(map(_badness, self.gaps(name).values())), reverse=True)

    def gaps(self, group: str) -> dict[str, Gap]:
        """Return the differences of a group by the names of the audits that have it."""
        return {name: one.gaps[group] for name, one in self.audits.items() if group in one.gaps}

    @property
    def summary(self) -> str:
        """What was compared, and with which confidence."""
        each = {words.percent(one.confidence) for one in self.audits.values()}
        least = max(0.0, 1.0 - sum(1.0 - one.confidence for one in self.audits.values()))
        asked = next(iter(self.audits.values())).asked
        intervals = f"the intervals of an audit hold at once with {' or '.join(sorted(each))} confidence"
        together = f"those of all audits together with at least {words.percent(least)}"
        return f"{len(self.audits)} audits of {asked}; {intervals}, {together}."

    def verdicts(self) -> list[list[str]]:
        """Return a row for each audit, below their headings: its verdict, and its worst group."""
        noun = f"Largest {next(iter(self.audits.values())).noun}"
        heads = ["Audit", "Rows", "Verdict", noun, "Worst group", "Predicted", "Actual", "Difference", "Interval"]
        rows = []
        for name, one in self.audits.items():
            predicted, actual, gap, low, high = words.means(one.gaps[one.ranked[0]])
            largest = f"{words.number(one.lower)} to {words.number(one.upper)}"
            worst = [printable(abbreviate(one.ranked[0], 40)), predicted, actual, gap, f"{low} to {high}"]
            rows.append([printable(name), f"{one.n_rows:,}", one.verdict.value, largest, *worst])
        return [heads, *rows]

    def differences(self, n: int | None = None) -> list[list[str]]:
        """Return a row for each of the n worst groups, below their headings: actual minus predicted in every audit."""
        rows = ([name, *(_cell(one.gaps.get(name)) for one in self.audits.values())] for name in self.groups[:n])
        return [["Group", *self.audits], *rows]

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """Return the comparison as one HTML page that needs nothing else; with a path, also write it there."""
        return written(comparison_page(self), path)

    def __str__(self) -> str:
        heads, *rows = self.differences(15)
        names = brief_names(row[0] for row in rows)
        table = [[printable(one) for one in heads], *([name, *row[1:]] for name, row in zip(names, rows, strict=True))]
        left = len(self.groups) - len(rows)
        lead = "Actual minus predicted, in percentage points, with intervals; the largest difference comes first:"
        first = [fill(self.summary, 110), "", *aligned(self.verdicts(), "lrlllrrrr")]
        second = [lead, "", *aligned(table, "l" + "r" * len(self.audits)), *words.left_out(left)]
        return "\n".join([*first, "", *second])


def _cell(gap: Gap | None) -> str:
    """Return a difference and its interval; a dash where an audit does not have the group."""
    if gap is None or isnan(gap.gap):
        return "–"  # noqa: RUF001
    *_, value, low, high = words.means(gap)
    return f"{value} ({low} to {high})"


def _names(audits: Sequence[SavedAudit]) -> list[str]:
    """Return a name for each audit: its model, or else its file without or with its folder, the first that differ."""
    models = [one.origin.model for one in audits]
    for names in (models, [Path(one.path).stem for one in audits], [one.path for one in audits]):
        if all(names) and len({*names}) == len(names):
            return names
    raise InvalidInput("An audit is given twice; give each file once.")
