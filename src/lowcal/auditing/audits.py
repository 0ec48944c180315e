"""Measure and audit: the suprema that a fit drives down, on any rows, and what follows for the population.

`measure` is the exact in-sample figure of spec 2 for each c; `audit` adds confidence (spec 10.i), on rows that were
not used to make the model or to find the subpopulations.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np

from lowcal.auditing.band import METHODS, Band, Masses, Method, band, constraints, masses
from lowcal.auditing.draws import Null, draws_for, new_seed, null_test
from lowcal.auditing.monitoring import Drift, MonitoringReport, Windows, read_windows, window_sums
from lowcal.auditing.panel import KEPT, Panel, reliability
from lowcal.auditing.reports import (
    BY,
    AuditReport,
    By,
    Finding,
    Gap,
    LargestError,
    Origin,
    Verdict,
    labels_of,
    sort_findings,
)
from lowcal.auditing.words import UNSEEN, left_out, percent, weighting
from lowcal.data.errors import (
    AuditWarning,
    InvalidInput,
    abbreviate,
    aligned,
    brief,
    brief_names,
    check_choice,
    printable,
    sentence,
)
from lowcal.data.inputs import Layout, are_names, check_share, check_whole
from lowcal.data.progress import Passes
from lowcal.guarantees import GroupMoments
from lowcal.guarantees.groups import moment_columns, read_moments
from lowcal.kernels.exact import Tables
from lowcal.kernels.reference import Matrix, rows_in_cache
from lowcal.kernels.simplex import SMALLEST, FloatArray
from lowcal.notions import LowDegree, Notion, Smooth, Suprema, parse_notion
from lowcal.notions.weights import Monomial
from lowcal.rows import START
from lowcal.rows.base import Local, Mask, Scale, Shard
from lowcal.rows.keys import Dealt
from lowcal.rows.passes import MassSums
from lowcal.rows.powers import Plan, Powers
from lowcal.solve.homes import Home, Refit, open_home, read_random_state
from lowcal.solve.solvers import ALPHA, MIN_SHARE, Problem, Tolerance, explore
from lowcal.subpopulations.base import ClassChoice, Family

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


#: The seed of the sample from which levels and cut points of many rows are learned: the class is the same each time.
SEED = 0


class MetricRows(TypedDict, total=False):
    """What every measurement and metric may be given with its rows."""

    subpopulations: ClassChoice
    sample_weight: ArrayLike | None
    classes: Sequence[Any] | None


@dataclass(frozen=True, eq=False)
class Measurement:
    """The supremum over the weight class for every subpopulation.

    `violation[j]` = sup over w in W of |E[c_j <w(f), y - f>]|, attained by the witness; `upper[j]` is certified to be
    no less than it; `basis[j]` is the largest violation of a single basis element; `mass[j]` = E[c_j]; `names[j]` is
    the name of c_j.
    """

    notion: Notion
    names: tuple[str, ...]
    mass: FloatArray
    suprema: Suprema
    is_exact: bool

    @property
    def violation(self) -> FloatArray:
        """The supremum for every subpopulation."""
        return self.suprema.value

    @property
    def upper(self) -> FloatArray:
        """A certified upper bound on it; equal where the supremum is exact."""
        return self.suprema.upper

    @property
    def basis(self) -> FloatArray:
        """The largest violation of a single basis element."""
        return self.suprema.basis

    @property
    def conditional(self) -> FloatArray:
        """The violation divided by the mass of the subpopulation: the error per person."""
        return self.violation / np.maximum(self.mass, SMALLEST)

    @property
    def largest(self) -> float:
        """The largest violation of all."""
        return float(self.violation.max())

    def worst(self, n: int = 5, by: By = "violation") -> list[tuple[str, float, str]]:
        """Return the n worst subpopulations: (name, violation or error per person, weight that attains it).

        With by="per_person", groups below 1% of the rows come last: a measurement has no intervals, and in so small a
        group chance alone produces large errors per person.
        """
        check_choice("by", by, BY)
        size = self.conditional if by == "per_person" else self.violation
        is_last = (self.mass < MIN_SHARE) & (by == "per_person")
        order = np.lexsort((-size, is_last))[:n]
        return [(self.names[j], float(size[j]), str(self.suprema.witness(int(j)))) for j in order]

    def __repr__(self) -> str:
        return f"Measurement({self.notion}, {len(self.names)} subpopulations, largest violation {self.largest:.4g})"

    def __str__(self) -> str:
        names, violations, weights = zip(*self.worst(10), strict=True)
        shown = [brief(weighting(weight)) for weight in weights]
        rows = zip(brief_names(names), map("{:.4f}".format, violations), shown, strict=True)
        table = aligned([("Group", "Violation", "Weighting"), *rows], "lrl")
        return "\n".join([repr(self), *table, *left_out(len(self.names) - len(names))])


def measure(
    y: ArrayLike,
    p: ArrayLike,
    X: object = None,
    *,
    subpopulations: ClassChoice = None,
    notion: str | Notion = "degree-2",
    sample_weight: ArrayLike | None = None,
    frequency_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
    memory: int | None = None,
) -> Measurement:
    """Return the violation of a notion on every subpopulation of these rows, exactly (spec 2).

    The arguments are those of `multicalibrate`. A learned class is searched once. Where the rows do not fit into
    memory, suprema over smooth weights are bracketed by `suprema.value` and `suprema.upper`, which differ by at most
    2^-16 for two classes.

    >>> from lowcal.datasets import parity_square
    >>> from lowcal.subpopulations import Groups
    >>> world = parity_square()
    >>> groups = Groups(min_mass=0)
    >>> kind = dict(subpopulations=groups, sample_weight=world.sample_weight)
    >>> round(measure(world.y, world.p, world.X, notion="multiaccuracy", **kind).largest, 12)
    0.0
    >>> measured = measure(world.y, world.p, world.X, notion="degree-2", **kind)
    >>> measured.worst(1)[0][0], round(measured.largest * 27, 9)
    ('x1=0', 1.0)
    """
    chosen_notion = parse_notion(notion)
    given = (y, p, X, sample_weight, classes, subpopulations)
    home = open_home(*given, SEED, memory, Passes(False), is_fit=False, frequency_weight=frequency_weight)
    problem = Problem(home.rows, chosen_notion, home.learner, alpha=np.inf)
    explore(problem, START)
    found, _ = problem.measure(START, None)
    mass = home.rows.run(MassSums(problem.families))[:, 0]
    return Measurement(chosen_notion, home.learner.names, mass, found, home.learner.is_exact)


#: Searches of a learner on one half of the rows, and the number of its worst members that are tested on the other half.
SEARCHES, JUDGED = 3, 10
#: Up to this number of rows times squared classes, an audit of class-wise smooth weights also brackets the supremum
#: over all smooth weights; for more, the search would take much longer than the audit.
BRACKET = 200_000


class AuditOptions(MetricRows, total=False):
    """The options of `audit` other than the rows and `by`."""

    notion: str | Notion
    alpha: float | None
    per_person: float | None
    min_share: float
    frequency_weight: ArrayLike | None
    confidence: float
    random_state: int | np.random.Generator | None
    method: Method
    null_draws: int
    memory: int | None


@overload
def audit(
    y: ArrayLike, p: ArrayLike, X: object = None, *, by: None = None, **options: Unpack[AuditOptions]
) -> AuditReport: ...
@overload
def audit(
    y: ArrayLike, p: ArrayLike, X: object = None, *, by: str, **options: Unpack[AuditOptions]
) -> MonitoringReport: ...
def audit(
    y: ArrayLike,
    p: ArrayLike,
    X: object = None,
    *,
    subpopulations: ClassChoice = None,
    notion: str | Notion = "degree-2",
    alpha: float | None = None,
    per_person: float | None = None,
    min_share: float = MIN_SHARE,
    sample_weight: ArrayLike | None = None,
    frequency_weight: ArrayLike | None = None,
    confidence: float = 0.95,
    by: str | None = None,
    random_state: int | np.random.Generator | None = None,
    method: Method = "bootstrap",
    null_draws: int = 99,
    classes: Sequence[Any] | None = None,
    memory: int | None = None,
) -> AuditReport | MonitoringReport:
    """Report whether the notion holds in the population these rows were drawn from, and in which groups it does not.

    For every subpopulation: the violation E[c <w(f), y - f>] of the worst weight w of the WHOLE class, the same per
    person (divided by the mass E[c]), intervals with a simultaneous confidence level, and the chance level. alpha
    bounds violations, which are means over all rows, so a group of 1% may be off by 100 alpha per person; `per_person`
    instead bounds the violation of every group by per_person times its mass.

    The model must not have been fitted on these rows. Subpopulations that are learned (trees, linear functions) are
    found on one half of the rows and tested on the other half, and vice versa.

    Parameters
    ----------
    y, p, X, subpopulations, notion, sample_weight, classes : as in `multicalibrate`; weights are taken as fixed.
    frequency_weight : the number of rows that each row stands for, as in `multicalibrate`: the report is that of all
        these rows, which all count in sizes, intervals and the test.
    alpha : the largest violation that is tolerated; 0.01 if neither alpha nor per_person is given.
    per_person : the largest error per person that is tolerated in every group with at least `min_share` of the rows,
        instead of alpha. The shares are those of these rows; for memberships of 0 or 1, intervals per person are
        conditional on which rows belong to each group (`lowcal.auditing.band.masses`).
    min_share : the smallest share of the rows at which a group is judged per person; smaller groups are only listed.
    confidence : the probability with which all intervals, the verdict and `certified_alpha` hold simultaneously.
    by : a column of X, such as "month", that splits the rows into windows of time: one window for each of its values
        (numbers, text or dates), in sorted order. Each window is audited, with intervals that hold for all windows and
        groups at once, and every group is tested for drift: the result is a `MonitoringReport`. The column is not used
        as a feature. Needs the rows in memory and a class that is not learned.
    random_state : seed of the bootstrap, of the redrawn labels and of the halves.
    method : "bootstrap" (asymptotic, narrowest); "exact", "bernstein" or "hoeffding" hold for any number of rows.
    null_draws : the number of times that labels are redrawn for the p-value, which is at least 1 / (null_draws + 1).
    memory : the memory limit in bytes for rows from files or other sources (see `multicalibrate`); None: a quarter of
        the machine's. More rows stay on disk and are read in passes: nothing is sampled, and the report is the same to
        the last bit; violations of smooth weights are bracketed. Linear and Regressor need the rows in memory.

    Examples
    --------
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(5000, random_state=0)
    >>> report = audit(data.y, data.p, data.X, alpha=0.005, random_state=0)
    >>> report.verdict.value, report.violation > report.null_floor, report.p_value
    ('violated', True, 0.01)
    >>> finding = report.worst(1)[0]
    >>> finding.lower <= finding.violation <= finding.upper
    True
    """
    tolerance = Tolerance(ALPHA if alpha is None and per_person is None else alpha, per_person, min_share)
    asked = Question(parse_notion(notion), tolerance, confidence, method, null_draws)
    rng = read_random_state(random_state)
    windows = None if by is None else read_windows(y, p, X, sample_weight, by, memory)
    given = (y, p, X if windows is None else windows.rest, sample_weight, classes, subpopulations)
    home = open_home(*given, SEED, memory, Passes(False), is_fit=False, frequency_weight=frequency_weight)
    if not home.rows.is_near:
        from lowcal.auditing import on_card  # noqa: F401  (registers the passes below for a graphics card)
    names: Any = p
    origin = Origin(
        model=names if isinstance(p, str) else ", ".join(names) if are_names(p) else "",
        outcome=y if isinstance(y, str) else "",
        file=str(X) if isinstance(X, str | PathLike) else "",
    )
    seed = int(random_state) if isinstance(random_state, int | np.integer) else None
    if windows is not None:
        return replace(_monitor(home, windows, asked, rng), seed=seed, origin=origin)
    # each part draws from its own stream, so that the test does not depend on the method of the bands
    dealing, *streams = rng.spawn(4)
    return replace(judge(panels_of(home, asked.notion, dealing), home, asked, streams), seed=seed, origin=origin)


def _monitor(home: Home, windows: Windows, asked: Question, rng: np.random.Generator) -> MonitoringReport:
    """Audit every window, with the given confidence for all of them (union bound), and test every group for drift."""
    names, panels, shares = windows.panels(home)
    each = replace(asked, confidence=1.0 - (1.0 - asked.confidence) / len(panels))
    audits = {
        name: judge([one], home, each, own.spawn(4)[1:])
        for name, one, own in zip(names, panels, rng.spawn(len(panels)), strict=True)
    }
    drift = Drift(window_sums(panels, shares), panels[0].is_label)
    return MonitoringReport.of(windows.by, audits, panels[0].names, drift, asked.confidence)


@dataclass(frozen=True)
class Question:
    """What to test on a sample, and how."""

    notion: Notion
    tolerance: Tolerance
    confidence: float
    method: Method
    null_draws: int

    def __post_init__(self) -> None:
        check_share("confidence", self.confidence)
        if self.confidence == 0:
            raise InvalidInput("confidence must be above 0, for instance 0.95.")
        check_choice("method", self.method, METHODS)
        check_whole("null_draws", self.null_draws, 19)


def judge(panels: Sequence[Panel], home: Home, asked: Question, streams: Sequence[np.random.Generator]) -> AuditReport:
    """Report on panels, with the given confidence for all of them."""
    beta = (1.0 - asked.confidence) / len(panels)
    # the smallest p-value of the panels is multiplied by their number
    draws = max(len(panels) * (asked.null_draws + 1) - 1, draws_for(beta))
    parts = [_judged(panel, home.layout, asked, 1.0 - beta, draws, streams) for panel in panels]
    return _report(parts, home, asked)


# --- which groups are tested on which rows ------------------------------------------------------------------


def panels_of(home: Home, notion: Notion, rng: np.random.Generator) -> list[Panel]:
    """Return the panels: the class on all rows and, for a learner, what it finds on each half, on the other half."""
    is_label = home.layout.classes is not None
    panels = [Panel(home.rows, tuple(home.learner.families), is_label)]
    if not home.learner.is_exact:
        n, seed = home.rows.scale.n, (new_seed(rng),)
        if n < 2:
            raise InvalidInput("A learned class needs rows with weight in both halves of the sample; give more rows.")
        halves = [Dealt(seed, n, 2, 0, is_inside) for is_inside in (True, False)]
        crossed = [_crossed(home.refit, notion, is_label, *pair) for pair in (halves, halves[::-1])]
        panels += [panel for panel in crossed if panel is not None]
    return panels


def _crossed(refit: Refit, notion: Notion, is_label: bool, finds: Mask, judges: Mask) -> Panel | None:
    """Return the worst members that a learner finds on one half, on the rows of the other; None if it finds none."""
    learner, found_on, judged_on = refit(finds, judges)
    problem = Problem(found_on, notion, learner, np.inf)
    known = len(learner.names)
    for _ in range(SEARCHES):
        if not explore(problem, START):
            break
    found = problem.suprema(START).value[known:]
    if len(found) == 0:
        return None
    worst = [known + int(j) for j in np.argsort(-found, kind="stable")[:JUDGED]]
    return Panel(judged_on, tuple(learner.member(j) for j in worst), is_label)


# --- the report ---------------------------------------------------------------------------------------------


def _notes(parts: Sequence[_Judged], home: Home, asked: Question) -> tuple[str, ...]:
    """Return the caveats of the report, and warn of rows that were used before."""
    panels, layout, left_out, notes = [part.panel for part in parts], home.layout, home.learner.left_out, []
    if home.is_fitted:
        notes.append(f"these are the rows the model was fitted on: nothing is certified. {UNSEEN}")
    elif parts[0].null.is_too_good:
        notes.append(
            "the violations are smaller than a perfect model would show by chance: were these rows used to fit the "
            f"model? {UNSEEN}"
        )
    for note in notes:
        warnings.warn(f"Audit: {note}", AuditWarning, stacklevel=5)
    if layout.d > 1 and isinstance(asked.notion, Smooth):
        notes.append(_all_smooth(asked.notion, panels[0], parts[0].band))
    if not home.learner.is_exact:
        notes.append("subpopulations were found by a learner; others may exist that it does not find.")
    if layout.classes is None:
        notes.append("outcomes are numbers, not labels: there is no exact test, and the null floor is that of labels.")
    if left_out.groups:
        notes.append(f"not examined, as there are too few rows (min_mass): {', '.join(left_out.groups)}.")
    if left_out.columns:
        columns = ", ".join(left_out.columns)
        notes.append(f"no group of {columns} could be examined: give more rows, other values or a smaller min_mass.")
    empty = [name for panel in panels for name, mass in zip(panel.names, panel.mass, strict=True) if mass <= 0.0]
    if empty:
        notes.append(sentence(f"no row belongs to {_listed(empty)}"))
    if asked.tolerance.per_person is not None:
        small = [one.is_share & ~asked.tolerance.judges(one.mass) for one in panels]
        why = f"they hold less than {percent(asked.tolerance.min_share)} of the rows (min_share)"
        signed = [~one.is_share for one in panels], "memberships with signs have no error per person"
        for unjudged, reason in ((small, why), signed):
            if names := [n for one, which in zip(panels, unjudged, strict=True) for n in np.array(one.names)[which]]:
                notes.append(f"not judged, as {reason}: {_listed(names)}.")
    return tuple(printable(note) for note in notes)


def _listed(names: Sequence[str]) -> str:
    """Return the first five names, and an ellipsis if there are more."""
    return f"{', '.join(abbreviate(name) for name in names[:5])}{', ...' if len(names) > 5 else ''}"


def _all_smooth(notion: Smooth, panel: Panel, found: Band) -> str:
    """Return the note on class-wise smooth weights, with a bracket over all of them if rows are few (spec 2.4)."""
    note = "with several classes the audit is of class-wise smooth weights, each a function of its own probability"
    if panel.rows.scale.n * panel.d**2 > BRACKET:
        return f"{note}."
    j = found.found.worst
    every = notion.suprema(panel.p, panel.rho, Matrix(panel.design.column(j)[:, None]))
    low, high = float(every.value[0]), float(every.upper[0])
    between = f"is {low:.4f}" if low == high else f"lies between {low:.4f} and {high:.4f}"
    whose = abbreviate(panel.names[j])
    return f"{note}; over all smooth weights the violation of these rows on {whose} {between}, much by chance."


@dataclass(frozen=True, eq=False)
class _Judged:
    """A panel with the test, the limits and the description of its subpopulations, at the panel's confidence level.

    `described` has, for each label, the moments of a subpopulation and the half-width of a band on their violations.
    """

    panel: Panel
    level: float
    null: Null
    band: Band
    masses: Masses
    described: Mapping[str, Sequence[tuple[GroupMoments, float]]]
    gaps: Sequence[tuple[Gap, ...]]


def _judged(
    panel: Panel, layout: Layout, asked: Question, level: float, draws: int, streams: Sequence[np.random.Generator]
) -> _Judged:
    """Test and bound the violations, and describe the groups by the moments of f and f y.

    The guarantees need margins of error of E[c f^j (y - f)]. These margins and the limits of the gaps come from the
    band itself where it has these constraints, and from a band of degree 2 otherwise.
    """
    bounding, testing, describing = streams
    notion, method = asked.notion, asked.method
    noisy = draws_for(1.0 - level) if method == "bootstrap" else 0
    null = null_test(panel, notion, level, testing, draws=draws, noisy=noisy)
    known = band(panel, notion, level, method, bounding, null.noisy)
    degree = max(2, notion.degree) if isinstance(notion, LowDegree) else 2
    limits = known.constraints if isinstance(notion, LowDegree) and notion.degree >= 2 else None
    limits = limits or constraints(panel, LowDegree(2), level, method, describing)
    place = {weight: s for s, weight in enumerate(limits.weights)}
    half = np.minimum(limits.half, panel.reach[:, None, None])  # of the powers of each label's own probability
    powers = [[place[Monomial((a,) * j)] for j in range(degree)] for a in range(panel.d)]
    margins = np.column_stack([half[:, own, a].max(axis=1) for a, own in enumerate(powers)]).tolist()
    moments = panel.rows.run(Described(panel.families, degree, panel.rows.is_even))
    described = {
        name: list(zip(labels, own, strict=True))
        for name, labels, own in zip(panel.names, moments, margins, strict=True)
    }
    shares = masses(panel, notion, method, level)
    lower, upper = (one[:, place[Monomial()]].tolist() for one in shares.per_person(limits.lower, limits.upper))
    gaps = [
        tuple(
            Gap(label, float(one.f[1]), float(one.fy[0]), *limits)
            for label, one, *limits in zip(labels_of(layout), *known, strict=True)
        )
        for known in zip(moments, lower, upper, strict=True)
    ]
    return _Judged(panel, level, null, known, shares, described, gaps)


def _report(parts: Sequence[_Judged], home: Home, asked: Question) -> AuditReport:
    notes = _notes(parts, home, asked)
    findings = [one for part in parts for one in _findings(part, asked.method, home.layout)]
    # with several classes, only class-wise smooth weights are tested
    is_bounded = not (isinstance(asked.notion, Smooth) and home.layout.d > 1)
    largest = LargestError(
        error=max(float(part.band.found.value.max()) for part in parts),
        lower=max(float(part.band.lower.max()) for part in parts),
        upper=min(1.0, max(float(part.band.upper.max()) for part in parts)) if is_bounded else 1.0,
        null_floor=max(part.null.largest for part in parts),
        detectable=max(one.detectable for one in findings),
    )
    per_person = _largest_per_person(findings, parts, asked.tolerance, is_bounded)
    by: By = "violation" if asked.tolerance.per_person is None else "per_person"
    judged, verdict = largest if by == "violation" else per_person, Verdict.UNDECIDED
    if judged.lower > asked.tolerance.largest:
        verdict = Verdict.VIOLATED
    elif judged.upper <= asked.tolerance.largest and not home.learner.left_out.columns:  # which were not tested at all
        verdict = Verdict.SATISFIED
    ranked = sort_findings(findings, by)
    kept = list(dict.fromkeys(one.subpopulation for one in ranked))[:KEPT]
    bins = {
        name: own for one in parts for name, own in reliability(one.panel.rows, one.panel.families, {*kept}).items()
    }
    return AuditReport(
        notion=asked.notion,
        tolerance=asked.tolerance,
        confidence=float(asked.confidence),
        method=asked.method,
        layout=home.layout,
        n_rows=parts[0].panel.rows.count,
        n_effective=1.0 / parts[0].panel.energy,
        verdict=verdict,
        violation=largest.error,
        basis_error=max(float(part.band.found.basis.max()) for part in parts),
        certified_lower=largest.lower,
        certified_alpha=largest.upper,
        p_value=float(np.minimum(1.0, len(parts) * np.min([part.null.p_value for part in parts]))),
        null_floor=largest.null_floor,
        detectable=largest.detectable,
        largest_per_person=per_person,
        is_exact=home.learner.is_exact,
        findings=ranked,
        moments={name: described for part in parts for name, described in part.described.items()},
        notes=notes,
        reliability={name: bins[name] for name in kept},
    )


def _largest_per_person(
    findings: Sequence[Finding], parts: Sequence[_Judged], tolerance: Tolerance, is_bounded: bool
) -> LargestError:
    """Return the largest error per person among groups with at least min_share of the rows; nan if there is none."""
    judged = [one for one in findings if one.is_judged(tolerance)]
    if not judged:
        return LargestError(*[np.nan] * 5)
    drawn = []
    for part in parts:
        mass = part.panel.mass
        is_judged = tolerance.judges(mass) & part.panel.is_share & (mass > 0.0)
        if is_judged.any():
            largest = (part.null.drawn.suprema[:, is_judged] / mass[is_judged]).max(axis=1)
            drawn.append(float(np.quantile(largest, part.level, method="higher")))
    return LargestError(
        error=max(abs(one.conditional) for one in judged),
        lower=max(one.least_per_person for one in judged),
        upper=max(one.greatest_per_person for one in judged) if is_bounded else 1.0,
        null_floor=max(drawn),
        detectable=max(min(1.0, one.detectable / one.mass) for one in judged),
    )


@dataclass(frozen=True, eq=False)
class Described:
    """The pass for the moments of f and f y of every subpopulation and label (`read_moments`)."""

    families: tuple[Family, ...]
    degree: int
    is_even: bool

    def _plan(self, some: Local, scale: Scale) -> Plan:
        width = 1 + 2 * some.y.shape[1] * self.degree
        return Plan.of(some.design(self.families), [Powers(1, 1, width)], scale, self.is_even)

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of a shard."""
        sums, p = self._plan(shard, shard.scale).sums(), shard.at(START)
        for part in rows_in_cache(len(p), 1 + 2 * p.shape[1] * self.degree):
            sums.add(part, [moment_columns(shard.y[part], p[part], shard.weight[part], self.degree)])
        return sums.wholes()

    def read(self, total: Tables, some: Local, scale: Scale) -> list[list[GroupMoments]]:
        """Return the moments."""
        return read_moments(self._plan(some, scale).read(total)[0], self.degree)


def _findings(part: _Judged, method: Method, layout: Layout) -> list[Finding]:
    """Return a finding for every subpopulation of a panel."""
    panel, found, power = part.panel, part.band.intervals, NormalDist().inv_cdf(0.8)
    named = tuple(map(str, labels_of(layout)))
    limits = found.lower, found.upper, *part.masses.per_person(found.lower, found.upper)
    sizes = panel.mass, panel.n_effective, part.band.found.basis, part.null.floor
    columns = found.violation, found.standard_error, *limits, *sizes
    violation, error, lower, upper, low, high, mass, effective, basis, floor = (one.tolist() for one in columns)
    return [
        Finding(
            subpopulation=name,
            weight=replace(found.weights[j], labels=named),
            label=max(gaps, key=lambda gap: abs(gap.gap)).label,
            violation=violation[j],
            conditional=np.nan if np.isnan(low[j]) else violation[j] / mass[j],
            standard_error=error[j],
            lower=lower[j],
            upper=upper[j],
            conditional_lower=low[j],
            conditional_upper=high[j],
            mass=mass[j],
            n_effective=effective[j],
            basis=basis[j],
            null_floor=floor[j],
            detectable=min(1.0, (upper[j] - lower[j]) / 2 + power * error[j]),
            method=method,
            gaps=gaps,
        )
        for j, (name, gaps) in enumerate(zip(panel.names, part.gaps, strict=True))
    ]
