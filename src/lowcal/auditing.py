"""Measuring and auditing: the suprema that a fit drives down, on any rows, and what they say of the population.

`measure` is the exact in-sample figure of spec 2 for each c; `audit` adds confidence (spec 10.i), on rows that were
not used to make the model or to find the subpopulations.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lowcal import provenance
from lowcal.certificates import METHODS, Band, Constraints, Method, Null, Panel, band, constraints, draws_for, null_test
from lowcal.engines.reference import Matrix, stack
from lowcal.errors import AuditWarning, InvalidInput, abbreviate, brief, brief_names, printable, sentence, suggest
from lowcal.fitting import choose_subpopulations, read_random_state
from lowcal.frames import Table as Frame
from lowcal.guarantees import GroupMoments, moments_of
from lowcal.inputs import Layout, Outcomes, check_share, check_whole, read_outcomes
from lowcal.notions import LowDegree, Multiaccuracy, Notion, Smooth, Suprema, parse_notion
from lowcal.report.binning import KEPT, joined, reliability
from lowcal.reports import AuditReport, Finding, Gap, Verdict, label_of, sort_findings
from lowcal.simplex import FloatArray, IntArray
from lowcal.solvers import Problem, explore
from lowcal.subpopulations import Subpopulations
from lowcal.subpopulations.base import LeftOut, few_sums
from lowcal.tolerances import Tolerance
from lowcal.updates import read_features
from lowcal.weights import Monomial

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Measurement:
    """The supremum over the weight class for every subpopulation.

    `violation[j]` = sup over w in W of |E[c_j <w(f), y - f>]|, attained by the witness; `upper[j]` is certified to be
    no less than it; `basis[j]` is the part that single basis elements show; `mass[j]` = E[c_j]; `names[j]` says who.
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
        """The violation divided by the mass of the subpopulation: how wrong it is for each member."""
        return self.violation / np.maximum(self.mass, np.finfo(float).tiny)

    @property
    def largest(self) -> float:
        """The largest violation of all."""
        return float(self.violation.max())

    def worst(self, n: int = 5) -> list[tuple[str, float, str]]:
        """Return the n subpopulations with the largest violations: (name, violation, weight that shows it)."""
        order = np.argsort(-self.violation, kind="stable")[:n]
        return [(self.names[j], float(self.violation[j]), str(self.suprema.witness(int(j)))) for j in order]

    def __repr__(self) -> str:
        return f"Measurement({self.notion}, {len(self.names)} subpopulations, largest violation {self.largest:.4g})"

    def __str__(self) -> str:
        worst = self.worst(10)
        names = brief_names(name for name, _, _ in worst)
        wide = max(13, *map(len, names)) + 2
        rows = [f"  {'subpopulation':<{wide}}{'violation':>9}   weight"]
        for shown, (_, violation, weight) in zip(names, worst, strict=True):
            rows.append(f"  {shown:<{wide}}{violation:>9.4f}   {brief(weight)}")
        more = len(self.names) - len(worst)
        return "\n".join([repr(self), *rows, *([f"  and {more} more"] if more else [])])


def measure(
    y: ArrayLike,
    p: ArrayLike,
    X: object = None,
    *,
    subpopulations: Subpopulations | None = None,
    notion: str | Notion = "degree-2",
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Measurement:
    """Return the violation of a notion on every subpopulation of these rows, exactly (spec 2).

    The arguments are those of `multicalibrate`. Learner-defined classes are searched once. Memberships given as a large
    array of booleans are added up with float32 inside, which changes violations by less than 1e-7, mostly far less.

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
    outcomes = read_outcomes(y, p, sample_weight, classes)
    table = read_features(X, len(outcomes.p))
    with few_sums():
        learner = choose_subpopulations(subpopulations, X, table).prepare(table, outcomes.weight, outcomes.residual)
    problem = Problem(outcomes.y, outcomes.weight, chosen_notion, learner, alpha=np.inf)
    explore(problem, outcomes.p)
    rho = problem.rho(outcomes.p)
    are_sums = isinstance(chosen_notion, LowDegree | Multiaccuracy)
    design = learner.design_for_sums() if are_sums else learner.design()
    mass = design.moments(outcomes.weight[:, None])[:, 0]
    found = chosen_notion.suprema(outcomes.p, rho, design)
    return Measurement(chosen_notion, learner.names, mass, found, learner.is_exact)


#: A learner is asked this many times, and so many of the worst members it finds on one half are judged on the other.
SEARCHES = 3
JUDGED = 10
#: Up to this number of rows times squared classes, an audit of smooth weights with several classes also
#: brackets those of all probabilities at once.
BRACKET = 200_000
#: The chance with which a detectable violation is seen.
POWER = 0.8


def audit(
    y: ArrayLike,
    p: ArrayLike,
    X: object = None,
    *,
    subpopulations: Subpopulations | None = None,
    notion: str | Notion = "degree-2",
    alpha: float = 0.01,
    sample_weight: ArrayLike | None = None,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | None = None,
    method: Method = "bootstrap",
    null_draws: int = 99,
    classes: Sequence[Any] | None = None,
) -> AuditReport:
    """Say whether the notion holds at alpha in the population these rows were drawn from, and for whom it does not.

    For every subpopulation: the violation E[c <w(f), y - f>] of the worst weight w of the WHOLE class, an interval that
    holds for all of them at once, and what chance alone would show. Nothing of the rows may have been used to fit the
    model. Subpopulations that are learned (trees, linear functions) are found on one half of the rows and judged on the
    other, and the other way round.

    Parameters
    ----------
    y, p, X, subpopulations, notion, sample_weight, classes : as in `multicalibrate`; weights are taken as fixed.
    alpha : the largest violation that is tolerated.
    confidence : the probability with which all intervals, the verdict and `certified_alpha` hold together.
    random_state : seed of the bootstrap, of the redrawn labels and of the halves.
    method : "bootstrap" (asymptotic, narrowest); "exact", "bernstein" or "hoeffding" hold for every number of rows.
    null_draws : how often the labels are redrawn for the p-value, which can't be smaller than 1 / (null_draws + 1).

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
    _check_options(alpha, confidence, method, null_draws)
    parsed = parse_notion(notion)
    outcomes = read_outcomes(y, p, sample_weight, classes)
    table = read_features(X, len(outcomes.p))
    chosen = choose_subpopulations(subpopulations, X, table)
    # each part draws from its own stream, so that the test does not depend on the method of the bands
    dealing, bounding, testing, describing = read_random_state(random_state).spawn(4)
    panels, is_exact, left_out = _panels(chosen, table, outcomes, parsed, dealing)
    beta = (1.0 - confidence) / len(panels)
    level = 1.0 - beta
    # the least p-value of any panel is multiplied by their number
    draws = max(len(panels) * (null_draws + 1) - 1, draws_for(beta))
    nulls = [null_test(panel, parsed, level, testing, draws=draws) for panel in panels]
    bands = [
        band(panel, parsed, level, method, bounding, null.drawn) for panel, null in zip(panels, nulls, strict=True)
    ]
    groups = [
        _groups(panel, parsed, one, level, method, outcomes.layout, describing)
        for panel, one in zip(panels, bands, strict=True)
    ]
    binned = joined([reliability(one.design, one.y, one.p, one.weight, one.names) for one in panels])
    notes = _notes(parsed, outcomes, panels, bands, nulls, is_exact, left_out)
    report = _report(parsed, alpha, confidence, method, outcomes, panels, bands, nulls, groups, is_exact, notes)
    if left_out.columns and report.verdict is Verdict.SATISFIED:  # nothing is known of what was asked about
        report = replace(report, verdict=Verdict.UNDECIDED)
    kept = binned.keep(list(dict.fromkeys(one.subpopulation for one in report.findings))[:KEPT])
    seed = int(random_state) if isinstance(random_state, int | np.integer) else None
    return replace(report, reliability=kept, seed=seed)


def _check_options(alpha: object, confidence: object, method: str, null_draws: object) -> None:
    Tolerance(alpha)
    check_share("confidence", confidence)
    if confidence == 0:
        raise InvalidInput("confidence must be above 0, for instance 0.95.")
    if method not in METHODS:
        raise InvalidInput(f"Unknown method {method!r}; valid: {', '.join(METHODS)}.{suggest(str(method), METHODS)}")
    check_whole("null_draws", null_draws, 19)


# --- who is judged on which rows ----------------------------------------------------------------------------


def _panels(
    chosen: Subpopulations, table: Frame, outcomes: Outcomes, notion: Notion, rng: np.random.Generator
) -> tuple[list[Panel], bool, LeftOut]:
    """Return what is judged on all rows, and for a learner what each half of the rows found, judged on the other.

    Then whether that is the whole class, and which groups of it hold too few rows to be judged.
    """
    learner = chosen.prepare(table, outcomes.weight)
    is_label = outcomes.layout.classes is not None
    whole = Panel(outcomes.y, outcomes.p, outcomes.weight, learner.design(), learner.names, is_label)
    if learner.is_exact:
        return [whole], True, learner.left_out
    halves = [np.sort(half) for half in np.array_split(rng.permutation(len(outcomes.p)), 2)]
    if any(outcomes.weight[half].sum() <= 0 for half in halves):
        raise InvalidInput("A learned class needs rows with weight in both halves of the sample; give more rows.")
    crossed = [_crossed(chosen, table, outcomes, notion, *pair) for pair in (halves, halves[::-1])]
    return [whole, *(panel for panel in crossed if panel is not None)], False, learner.left_out


def _crossed(
    chosen: Subpopulations, table: Frame, outcomes: Outcomes, notion: Notion, finds: IntArray, judges: IntArray
) -> Panel | None:
    """Return the worst members that a learner finds on some rows, on the rows that judge; None if it finds none."""
    y, p = outcomes.y[finds], outcomes.p[finds]
    learner = chosen.prepare(table.take(finds), outcomes.weight[finds], lambda: y - p)
    problem = Problem(y, learner.weight, notion, learner, np.inf)
    known = len(learner.names)
    for _ in range(SEARCHES):
        if not explore(problem, p):
            break
    found = problem.suprema(p).value[known:]
    if len(found) == 0:
        return None
    worst = [known + int(j) for j in np.argsort(-found, kind="stable")[:JUDGED]]
    rows = learner.encoder(table.take(judges))
    members = [learner.member(j) for j in worst]
    weight = outcomes.weight[judges]
    names = tuple(name for member in members for name in member.names)
    design = stack([member.design(rows) for member in members])
    is_label = outcomes.layout.classes is not None
    return Panel(outcomes.y[judges], outcomes.p[judges], weight / weight.sum(), design, names, is_label)


# --- what is said -------------------------------------------------------------------------------------------


def _notes(
    notion: Notion,
    outcomes: Outcomes,
    panels: Sequence[Panel],
    bands: Sequence[Band],
    nulls: Sequence[Null],
    is_exact: bool,
    left_out: LeftOut,
) -> tuple[str, ...]:
    """Return what a reader must know, and warn of rows that were used before."""
    notes = []
    if provenance.was_fitted_on(outcomes.y, outcomes.p):
        notes.append(
            "these are the rows the model was fitted on: nothing is certified. Audit it on rows it has not seen."
        )
    elif nulls[0].is_too_good:
        notes.append(
            "the violations are smaller than a perfect model would show by chance: were these rows used to fit the "
            "model? Audit it on rows it has not seen."
        )
    for note in notes:
        warnings.warn(f"Audit: {note}", AuditWarning, stacklevel=3)
    if outcomes.layout.d > 1 and isinstance(notion, Smooth):
        notes.append(_all_smooth(notion, panels[0], bands[0]))
    if not is_exact:
        notes.append("subpopulations were found by a learner; others may exist that it does not find.")
    if outcomes.layout.classes is None:
        notes.append("outcomes are numbers, not labels: there is no exact test, and the null floor is that of labels.")
    if left_out.groups:
        notes.append(f"not examined, as there are too few rows (min_mass): {', '.join(left_out.groups)}.")
    if left_out.columns:
        columns = ", ".join(left_out.columns)
        notes.append(f"no group of {columns} could be examined: give more rows, other values or a smaller min_mass.")
    empty = [name for panel in panels for name, mass in zip(panel.names, panel.mass, strict=True) if mass <= 0.0]
    if empty:
        some = ", ".join(abbreviate(name) for name in empty[:5])
        notes.append(sentence(f"no row belongs to {some}{', ...' if len(empty) > 5 else ''}"))
    return tuple(printable(note) for note in notes)


def _all_smooth(notion: Smooth, panel: Panel, found: Band) -> str:
    """Say what class-wise weights leave out, with the bracket of all smooth weights where rows are few (spec 2.4)."""
    note = "with several classes the audit is of class-wise smooth weights, each a function of its own probability"
    if panel.p.size * panel.p.shape[1] > BRACKET:
        return f"{note}."
    j = found.found.worst
    every = notion.suprema(panel.p, panel.rho, Matrix(panel.design.column(j)[:, None]))
    low, high = float(every.value[0]), float(every.upper[0])
    between = f"is {low:.4f}" if low == high else f"lies between {low:.4f} and {high:.4f}"
    whose = abbreviate(panel.names[j])
    return f"{note}; over all smooth weights the violation of these rows on {whose} {between}, much by chance."


def _report(
    notion: Notion,
    alpha: float,
    confidence: float,
    method: Method,
    outcomes: Outcomes,
    panels: Sequence[Panel],
    bands: Sequence[Band],
    nulls: Sequence[Null],
    groups: Sequence[Groups],
    is_exact: bool,
    notes: tuple[str, ...],
) -> AuditReport:
    lower = max(float(one.lower.max()) for one in bands)
    upper = min(1.0, max(float(one.upper.max()) for one in bands))
    if isinstance(notion, Smooth) and outcomes.layout.d > 1:
        upper = 1.0  # only class-wise weights are judged: nothing bounds the others
    verdict = Verdict.VIOLATED if lower > alpha else Verdict.SATISFIED if upper <= alpha else Verdict.UNDECIDED
    findings = [
        one
        for panel, limits, null, group in zip(panels, bands, nulls, groups, strict=True)
        for one in _findings(panel, limits, null, group, method, outcomes)
    ]
    return AuditReport(
        notion=notion,
        alpha=float(alpha),
        confidence=float(confidence),
        method=method,
        layout=outcomes.layout,
        n_rows=len(outcomes.p),
        n_effective=1.0 / panels[0].energy,
        verdict=verdict,
        violation=max(float(one.found.value.max()) for one in bands),
        basis_error=max(float(one.found.basis.max()) for one in bands),
        certified_lower=lower,
        certified_alpha=upper,
        p_value=float(np.minimum(1.0, len(nulls) * np.min([null.p_value for null in nulls]))),
        null_floor=max(null.largest for null in nulls),
        detectable=max(one.detectable for one in findings),
        is_exact=is_exact,
        findings=sort_findings(findings),
        constraints=tuple(
            (panel.names, one.constraints)
            for panel, one in zip(panels, bands, strict=True)
            if one.constraints is not None
        ),
        moments={name: described for group in groups for name, described in group.described.items()},
        notes=notes,
    )


#: For each label the moments of a subpopulation, and the half-width of a band that covers their violations.
Described: TypeAlias = Sequence[tuple[GroupMoments, float]]


@dataclass(frozen=True, eq=False)
class Groups:
    """What is said of the subpopulations of a panel beside their violations: moments with margins, and gaps."""

    described: Mapping[str, Described]
    gaps: Sequence[tuple[Gap, ...]]


def _groups(
    panel: Panel, notion: Notion, known: Band, level: float, method: Method, layout: Layout, rng: np.random.Generator
) -> Groups:
    """Return what the guarantees are computed from: the moments of f and f y, with a margin on E[c f^j (y - f)].

    Margins and gaps come from the band itself where it holds these constraints, from one of degree 2 otherwise.
    """
    degree = max(2, notion.degree) if isinstance(notion, LowDegree) else 2
    held = known.constraints if isinstance(notion, LowDegree) and notion.degree >= 2 else None
    limits = constraints(panel, LowDegree(2), level, method, rng) if held is None else held
    margins = _margins(limits, panel, degree)
    moments = moments_of(panel.design, panel.y, panel.p, panel.weight, degree)
    described = {
        name: [(one, float(margin)) for one, margin in zip(labels, own, strict=True)]
        for name, labels, own in zip(panel.names, moments, margins, strict=True)
    }
    return Groups(described, [_gaps(limits, labels, j, layout) for j, labels in enumerate(moments)])


def _margins(limits: Constraints, panel: Panel, degree: int) -> FloatArray:
    """Return the largest half-width among the powers of each label's own probability, (m, d), at most the mass."""
    place = {weight: s for s, weight in enumerate(limits.weights)}
    own = [[place[Monomial((a,) * j)] for j in range(degree)] for a in range(panel.p.shape[1])]
    half = np.minimum(limits.half, panel.reach[:, None, None])
    return np.column_stack([half[:, powers, a].max(axis=1) for a, powers in enumerate(own)])


def _gaps(known: Constraints, labels: Sequence[GroupMoments], j: int, layout: Layout) -> tuple[Gap, ...]:
    """Return, for every label, mean prediction and outcome of subpopulation j, and limits on their difference."""
    s = list(known.weights).index(Monomial())
    return tuple(
        Gap(
            label_of(layout, a),
            float(one.f[1]),
            float(one.fy[0]),
            *(float(np.clip(of[j, s, a] / one.mass, -1.0, 1.0)) if one.mass > 0 else np.nan for of in limits),
        )
        for limits in [(known.lower, known.upper)]
        for a, one in enumerate(labels)
    )


def _findings(
    panel: Panel, limits: Band, null: Null, groups: Groups, method: Method, outcomes: Outcomes
) -> list[Finding]:
    """Return a finding for every subpopulation of a panel."""
    named = tuple(str(label_of(outcomes.layout, a)) for a in range(panel.p.shape[1]))
    return [
        Finding(
            subpopulation=name,
            weight=replace(one.weight, labels=named),
            label=gaps[max(range(len(gaps)), key=lambda a: abs(gaps[a].gap))].label,
            violation=one.violation,
            conditional=one.violation / mass if mass > 0 else np.nan,
            standard_error=one.standard_error,
            lower=one.lower,
            upper=one.upper,
            mass=mass,
            n_effective=worth,
            basis=basis,
            null_floor=floor,
            detectable=min(1.0, (one.upper - one.lower) / 2 + NormalDist().inv_cdf(POWER) * one.standard_error),
            method=method,
            gaps=gaps,
        )
        for name, one, gaps, mass, worth, basis, floor in zip(
            panel.names,
            limits.intervals,
            groups.gaps,
            panel.mass.tolist(),
            panel.n_effective.tolist(),
            limits.found.basis.tolist(),
            null.floor.tolist(),
            strict=True,
        )
    ]
