"""Three solvers, each a generator of updates: Algorithm 1 as printed, the largest violation first, all at once.

A solver knows nothing of limits, patience, progress bars or held-out rows; whoever consumes the stream does, and may
answer a step with False: it is then undone, and the solver goes on with what comes next.
Every update lowers the training potential by a fixed amount, so each stream ends within `bound` updates (spec 4.3).
Paper: Algorithm 1 and Lemma 5.3.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lowcal.blocks import block_terms
from lowcal.engines.cells import Cells
from lowcal.engines.products import dot
from lowcal.moments import residual
from lowcal.notions import LowDegree, Multiaccuracy
from lowcal.notions.base import Finite, Notion, Suprema
from lowcal.shrinkage import (
    Fitted,
    are_many,
    depths_of,
    group_terms,
    has_own_weights,
    line_terms,
    logit_terms,
    logit_weights,
    members_up_to,
    notion_weights,
    probes_and_labels,
    starts_with_line,
    witness_terms,
)
from lowcal.simplex import FloatArray, Geometry, brier, leading, log_loss, width
from lowcal.steps import line_search, newton
from lowcal.subpopulations.base import Found, Offer, WeakLearner
from lowcal.tolerances import Tolerance
from lowcal.updates import Term, Update, sum_terms
from lowcal.weights import LogOdds, Monomial, Weight, monomials

T = TypeVar("T")

#: The potential may rise by this much through rounding before a step counts as no progress.
ROUNDING = 1e-14
#: What a learner finds is tried again unless it gained less than this share of all that it has gained so far: a fit of
#: `Linear` to 20,000 rows of ACS took 143 s and 78 updates without it, 1.5 s and 7 with it (log loss -.106 and -.089).
LITTLE = 0.02
#: Steps on what a boosting learner starts with (everyone), before it grows trees on what these leave.
START_STEPS = 2
#: A supremum that exceeds alpha by a smaller share than this equals it: two sums of the same numbers differ so much.
SLACK = 1e-12
#: Fewer rows than this are not worth the making of cells.
FEW_ROWS = 1 << 13


def is_within(supremum: float, alpha: float) -> bool:
    """Say whether the supremum is at most alpha, up to rounding.

    >>> is_within(0.1 + 0.2, 0.3), is_within(0.3001, 0.3)
    (True, False)
    """
    return bool(supremum <= alpha * (1.0 + SLACK))


def are_within(suprema: FloatArray, limits: FloatArray) -> bool:
    """Say whether every supremum is at most its limit, up to rounding."""
    return bool((suprema <= limits * (1.0 + SLACK)).all())


@dataclass(frozen=True, eq=False)
class Problem:
    """What a solver is asked to solve: outcomes, weights that sum to one, W, C, alpha, and how to move.

    alpha = 0 asks for all that shrunk steps find, and for nothing beyond. `tolerance`, where it is given, sets a limit
    for each subpopulation in the place of alpha. `is_measured`: whether steps say which violation they are made for;
    `is_guarded`: whether steps may be undone, so that small ones come first; `is_study`: whether alpha is to be reached
    on these rows whatever that does to others.
    """

    y: FloatArray
    weight: FloatArray
    notion: Notion
    learner: WeakLearner
    alpha: float
    geometry: Geometry = "euclidean"
    step: float | None = None
    newton_only: bool = False
    seed: int = 0
    tolerance: Tolerance | None = None
    is_measured: bool = True
    is_guarded: bool = False
    is_study: bool = False
    _memory: list[tuple[FloatArray, dict[Hashable, Any]]] = field(default_factory=list, init=False, repr=False)

    @property
    def limits(self) -> FloatArray:
        """The largest violation allowed for every known subpopulation."""
        if self.tolerance is None:
            return np.full(len(self.learner.names), self.alpha)
        return self.tolerance.of(self.learner.design().moments(self.weight[:, None])[:, 0])

    @property
    def n(self) -> float:
        """The effective number of rows."""
        return 1.0 / dot(self.weight, self.weight)

    def fitted(self, p: FloatArray) -> Fitted:
        """Return the rows with predictions p as a shrunk step sees them."""
        return Fitted(p, self.y, self.weight)

    def rho(self, p: FloatArray) -> FloatArray:
        """Return the weighted residuals p_i (y_i - f_i)."""
        rho = self.y - p
        rho *= self.weight[:, None]
        return rho

    def suprema(self, p: FloatArray, alpha: float | None = None) -> Suprema:
        """Return the suprema over the weight class for every known subpopulation."""
        alpha = self.alpha if alpha is None else alpha

        def measure() -> Suprema:
            self.learner.n_calls += 1
            return self.notion.suprema(p, self.rho(p), self.learner.design(), alpha)

        return self._once(p, ("suprema", len(self.learner.families), alpha), measure)

    def moved(self, update: Update, p: FloatArray) -> FloatArray:
        """Return the predictions after an update.

        Where the suprema follow from moments of scalar predictions, the next round's are taken in the same pass.
        """
        if not self._measures_on_the_way(p):
            return update(p, self.learner.rows)
        assert isinstance(self.notion, Finite)
        weights, design = self.notion.constraints(p), self.learner.design()
        moved, v = update.with_moments(p, self.learner.rows, self.y, self.weight, design, weights)
        self.learner.n_calls += 1
        found = replace(self.notion.norm(weights, v), moments=v)
        self._once(moved, ("suprema", len(self.learner.families), self.alpha), lambda: found)
        return moved

    def _measures_on_the_way(self, p: FloatArray) -> bool:
        """Whether the weights are powers of scalar predictions, and no learner adds groups before they count."""
        if p.shape[1] > 1 or not self.learner.is_exact or not isinstance(self.notion, Finite):
            return False
        return all(isinstance(u, Monomial) for u in self.notion.constraints(p))

    def brier(self, p: FloatArray) -> float:
        """Return the Brier score on the fitted rows."""
        return self._once(p, "brier", lambda: brier(p, self.y, self.weight))

    def log_loss(self, p: FloatArray) -> float:
        """Return the log loss on the fitted rows."""
        return self._once(p, "log_loss", lambda: log_loss(p, self.y, self.weight))

    def loss(self, p: FloatArray) -> float:
        """Return the potential of the geometry."""
        return self.brier(p) if self.geometry == "euclidean" else self.log_loss(p)

    def _once(self, p: FloatArray, what: Hashable, compute: Callable[[], T]) -> T:
        """Return a figure of these very predictions, computed once; the last two predictors are remembered."""
        known = next((figures for q, figures in self._memory if q is p), None)
        if known is None:
            known = {}
            self._memory.append((p, known))
            del self._memory[:-2]
        if what not in known:
            known[what] = compute()
        figure: T = known[what]
        return figure


@dataclass(frozen=True, eq=False)
class Step:
    """An update, the predictions after it, the violation seen before it, and the drop of the potential if known.

    `state` is the predictions, or cells: then the predictions of single rows are computed when they are asked for.
    `stage` says where in the solver's plan the step stands: equal for equal steps on other rows.
    """

    update: Update
    state: FloatArray | Cells
    violation: float
    progress: float = np.nan
    stage: tuple[int, ...] = ()

    @cached_property
    def p(self) -> FloatArray:
        """The predictions after the update."""
        return self.state.predictions() if isinstance(self.state, Cells) else self.state

    def losses(self, problem: Problem) -> tuple[float, float]:
        """Return the Brier score and the log loss after the update, on the fitted rows."""
        if isinstance(self.state, Cells):
            return self.state.brier(), self.state.log_loss()
        return problem.brier(self.state), problem.log_loss(self.state)


#: Yields steps; what is sent back is False where a step is to be undone.
Steps = Generator[Step, bool | None, None]
Solver = Callable[[Problem, FloatArray], Iterator[Step]]


def holds(problem: Problem, p: FloatArray) -> bool:
    """Say whether the notion holds for every known subpopulation."""
    return are_within(problem.suprema(p).upper, problem.limits)


def first(problem: Problem, p: FloatArray) -> Iterator[Step]:
    """Algorithm 1 as printed: the first weight for which the weak learner finds a violation, step beta / (2d).

    The basis runs at the tolerance beta = alpha. Where the basis does not imply the class (spec 9.b, 9.c), beta is
    halved until the definition holds, at the latest at the tolerance that the theory asks for. Rows that move
    together are moved together, as cells, where that is exact and costs less.
    """
    beta, least = problem.alpha, problem.notion.tolerance(p, problem.alpha)
    while not holds(problem, p) or not problem.learner.is_exact:
        cells, last = cells_of(problem, p), None
        for step in _algorithm_1(problem, p, beta) if cells is None else _algorithm_1_on_cells(problem, cells, beta):
            yield step
            last = step
        p = p if last is None else last.p
        if holds(problem, p) or beta <= least:
            return
        beta = max(beta / 2, least)


# fmt: off
def _algorithm_1(problem: Problem, p: FloatArray, beta: float) -> Iterator[Step]:
    eta = beta / (2 * p.shape[1]) if problem.step is None else min(problem.step, beta)
    while True:                                                  # while not mc
        for u, a in _basis(problem, p):                          #     for w = u e_a in W
            z = residual(u, a, p, problem.y)                     #         <w(f_t), y - f_t>
            c = problem.learner.search(z, beta)                  #         c <- WAL_{C, beta}
            if c is None:                                        #         if c is bottom:
                continue                                         #             continue
            term = single_term(c, u, a, p.shape[1], eta)         #         delta <- w(f_t) * c
            update = Update((term,))                             #
            p = update(p, problem.learner.rows)                  #         f <- proj(f + eta * delta)
            yield Step(update, p, c.violation)                   #         mc <- false
            break                                                #         break
        else:                                                    #
            return                                               # mc
# fmt: on


def cells_of(problem: Problem, p: FloatArray) -> Cells | None:
    """Return the rows as cells, where the rounds of Algorithm 1 are exact on them and cost less; None: use rows.

    They are for groups that are functions of few codes, scalar predictions and the weights 1 and f.
    """
    basis = problem.notion.basis(p, problem.alpha) if isinstance(problem.notion, Multiaccuracy | LowDegree) else ()
    if p.shape[1] > 1 or tuple(basis) not in (monomials(1, 0), monomials(1, 1)):
        return None
    if not problem.learner.is_exact or len(p) < FEW_ROWS:
        return None
    return Cells.of(problem.learner.design(), p, problem.y, problem.weight)


def _algorithm_1_on_cells(problem: Problem, cells: Cells, beta: float) -> Iterator[Step]:
    """The same rounds as `_algorithm_1`, a few numbers for each pattern of codes instead of a pass over the rows."""
    eta = beta / 2 if problem.step is None else min(problem.step, beta)
    weights = problem.notion.basis(np.empty((0, 1)), problem.alpha)
    inside = cache(cells.members)

    @cache
    def update(j: int, power: int, sign: float) -> Update:
        return Update((Term(problem.learner.member(j), (weights[power],), np.full((1, 1, 1), sign * eta)),))

    while True:
        for power in range(len(weights)):
            problem.learner.n_calls += 1
            v = cells.moments(power)
            j = leading(np.abs(v))
            if abs(v[j]) <= beta:
                continue
            sign = float(np.sign(v[j]))
            cells = cells.moved(inside(j), power, sign * eta)
            yield Step(update(j, power, sign), cells, float(abs(v[j])))
            break
        else:
            return


def single_term(c: Found, u: Weight, label: int, d: int, eta: float) -> Term:
    """Return the term s * eta * c(x) * u(f) e_label for what a search found."""
    theta = np.zeros((1, 1, d))
    theta[0, 0, label] = c.sign * eta
    return Term(c.family, (u,), theta)


def worst(problem: Problem, p: FloatArray) -> Iterator[Step]:
    """The largest violation first: the supremum over all of W and C, its witness, a Newton or line-search step."""
    while True:
        found = _largest(problem, p)
        if found is None:
            return
        step = _single(problem, p, found)
        if step is None:
            return
        p = step.p
        yield step


def block(problem: Problem, p: FloatArray) -> Steps:
    """All constraints at once, first as far as shrunk steps in log odds go, then until alpha is reached (spec 4.4).

    In log odds the plan goes from coarse to fine: a line for everyone; then, for one condition, two, ..., a logit step
    and the notion's own weights, each shrunk by the rows themselves; then what a learner finds, while it gains. Where
    a target is given and not reached, least squares on every c(x) u(f) and a line search follow.
    """
    stages = _stages(problem) if is_shrunk(problem) else []
    for number, stage in enumerate(stages):
        gained = 0.0
        for repeat in itertools.count() if stage.repeats else range(1):
            if problem.alpha > 0.0 and _largest(problem, p) is None:
                return
            step = stage.propose(problem, p, (number, repeat))
            if step is None or (yield step) is False:
                break
            p, gained = step.p, gained + step.progress
            if step.progress < LITTLE * gained:
                break
    if problem.alpha > 0.0:
        yield from _all_at_once(problem, p, len(stages))


def is_shrunk(problem: Problem) -> bool:
    """Whether block steps begin with shrunk ones: in log odds, unless the user chose the step."""
    return problem.geometry == "mirror" and problem.step is None and not problem.newton_only


Propose = Callable[[Problem, FloatArray, tuple[int, ...]], Step | None]


class Stage(NamedTuple):
    """A kind of shrunk step, and whether it is repeated while it gains: a learner finds something new each time."""

    propose: Propose
    repeats: bool = False


def _stages(problem: Problem) -> list[Stage]:
    """Return the plan of shrunk steps, from coarse to fine; what is learned comes last.

    A study of scalar means of listed groups has none: least squares reach its alpha in one step.
    """
    d = problem.y.shape[1]
    if problem.is_study and d == 1 and problem.learner.is_exact and LogOdds() not in logit_weights(problem.notion, d):
        return []
    listed = range(1, 1 + int(depths_of(problem.learner).max(initial=0)))
    is_begun = listed and not problem.is_guarded and starts_with_line(problem.notion, problem.learner, d)
    plan = [] if is_begun else [Stage(_line)]
    if are_many(problem.notion.probes(d), d):
        plan.append(Stage(partial(_features, 0)))
    for depth in listed:
        plan += [Stage(partial(_logit, depth)), Stage(partial(_features, depth))]
    if problem.learner.boosts:
        plan.append(Stage(_boosted, repeats=True))
    elif not problem.learner.is_exact:
        plan += [Stage(partial(which, sys.maxsize), repeats=True) for which in (_logit, _features)]
    return plan


def _line(problem: Problem, p: FloatArray, stage: tuple[int, ...]) -> Step | None:
    """Propose a slope and shifts of the log odds for everyone."""
    return _shrunk(problem, p, line_terms(problem.learner, problem.fitted(p), (problem.seed, 0)), stage)


def _logit(depth: int, problem: Problem, p: FloatArray, stage: tuple[int, ...]) -> Step | None:
    """Propose a shift and a slope of the log odds for groups of at most this many conditions, or for learned ones."""
    if depth == sys.maxsize:
        _learn_for_step(problem, p)
    weights, families = logit_weights(problem.notion, p.shape[1]), members_up_to(problem.learner, depth)
    given = (problem.learner, problem.fitted(p), (problem.seed, *stage))
    if LogOdds() in weights:
        terms = logit_terms(families, *given, is_mild=problem.is_study)
    else:
        terms = group_terms(families, weights, *given)
    return _shrunk(problem, p, terms, stage)


def _features(depth: int, problem: Problem, p: FloatArray, stage: tuple[int, ...]) -> Step | None:
    """Propose a step along the notion's own weights; an infinite class brings its witnesses."""
    if depth == sys.maxsize:
        _learn_for_step(problem, p)
    seed, weights = (problem.seed, *stage), notion_weights(problem.notion, p)
    if set(weights) == {Monomial()} == set(logit_weights(problem.notion, p.shape[1])):
        return None  # the logit step was the same
    if not weights:
        terms = witness_terms(problem.learner, problem.suprema(p), problem.fitted(p), depth, seed)
    else:
        families = members_up_to(problem.learner, depth)
        terms = group_terms(families, weights, problem.learner, problem.fitted(p), seed)
    return _shrunk(problem, p, terms, stage)


def _boosted(problem: Problem, p: FloatArray, stage: tuple[int, ...]) -> Step | None:
    """Propose what a boosting learner offers, at its own shrinkage."""
    explore(problem, p)
    offers = [offer for offer in problem.learner.offers if offer.geometry == problem.geometry]
    if not offers:
        return None
    return _progressed(problem, p, _sum_of(offers, p, problem.geometry), _seen(problem, p), _least(problem, p), stage)


def _shrunk(problem: Problem, p: FloatArray, terms: tuple[Term, ...] | None, stage: tuple[int, ...]) -> Step | None:
    """Return the step of shrunk terms, if it gains as much as the bound counts on."""
    if terms is None:
        return None
    return _progressed(problem, p, Update(terms, problem.geometry), _seen(problem, p), _least(problem, p), stage)


def _progressed(
    problem: Problem, p: FloatArray, update: Update, seen: float, least: float, stage: tuple[int, ...] = ()
) -> Step | None:
    """Return the step of an update if the potential falls by at least so much."""
    moved = problem.moved(update, p)
    progress = problem.loss(p) - problem.loss(moved)
    return Step(update, moved, seen, progress, stage) if progress >= least - ROUNDING else None


def _seen(problem: Problem, p: FloatArray) -> float:
    """Return the violation that a step is made for."""
    return float(problem.suprema(p).value.max()) if problem.is_measured else np.nan


def _least(problem: Problem, p: FloatArray) -> float:
    """Return the least gain of a shrunk step: what the bound counts on, and a row's worth: 1 / n, as noise has half."""
    return max(
        guaranteed_progress(problem, problem.notion.gain(p.shape[1]) * _target(problem), p.shape[1]), 1.0 / problem.n
    )


def _target(problem: Problem) -> float:
    """Return the least violation that a step may be asked to remove."""
    limits = problem.limits if problem.tolerance is not None else np.array([problem.alpha])
    return float(limits[np.isfinite(limits)].min(initial=np.inf)) if np.isfinite(limits).any() else 1.0


def _all_at_once(problem: Problem, p: FloatArray, number: int) -> Steps:
    """Least squares of the residual on every c(x) u(f), then a line search, until alpha is reached (spec 4.4).

    Progress is at least that of the best single constraint, so the bound of `worst` holds; where rounding, a
    subsample or the ridge would break that, the single step is taken instead. What a boosting learner offers at its
    own shrinkage is tried first, under the same condition; where no line in log odds came before, after a few steps on
    what the learner starts with.
    """
    if problem.learner.boosts and number == 0:
        start = replace(problem, learner=problem.learner.start())
        for early in itertools.islice(_all_at_once(start, p, 0), START_STEPS):
            if (yield replace(early, stage=(-1, *early.stage))) is False:
                break
            p = early.p
    for attempt in itertools.count():
        explore(problem, p)
        found = _largest(problem, p)
        if found is None:
            return
        step = _offered(problem, p, found) or _joint(problem, p, _directions(problem, p, found, attempt), found)
        step = step or _single(problem, p, found)
        if step is None or (yield replace(step, stage=(number, attempt))) is False:
            return
        p = step.p


def _directions(problem: Problem, p: FloatArray, found: Suprema, attempt: int) -> tuple[Term, ...]:
    """Return the least-squares direction over all constraints; each attempt draws its own subsample."""
    return block_terms(
        problem.notion,
        problem.learner,
        p,
        problem.rho(p),
        problem.weight,
        found,
        problem.geometry,
        (problem.seed, attempt),
        problem.alpha,
    )


def _basis(problem: Problem, p: FloatArray) -> Iterator[tuple[Weight, int]]:
    return ((u, a) for u in problem.notion.basis(p, problem.alpha) for a in range(p.shape[1]))


def _largest(problem: Problem, p: FloatArray) -> Suprema | None:
    """Return the suprema while a witness can act on them; a learner is asked for more before it is believed."""
    found = problem.suprema(p)
    if not _can_act(problem, found, p.shape[1]) and explore(problem, p):
        found = problem.suprema(p)
    return found if _can_act(problem, found, p.shape[1]) else None


def _can_act(problem: Problem, found: Suprema, d: int) -> bool:
    """Whether a supremum may exceed its limit and a witness shows at least the share of it that the bound counts on."""
    limits = problem.limits
    return not are_within(found.upper, limits) and bool((found.value > problem.notion.gain(d) * limits).any())


def _worst(problem: Problem, found: Suprema) -> int:
    """Return the subpopulation whose violation is largest, relative to its limit where these differ."""
    return found.worst if problem.tolerance is None else leading(found.value / problem.limits)


def explore(problem: Problem, p: FloatArray) -> bool:
    """Let the learner and the weight class take turns: new c for the probes, then for the worst c's witness."""
    if problem.learner.is_exact:
        return False
    new = _ask_about_probes(problem, p)
    found = problem.suprema(p)
    z = (found.witness(found.worst)(p) * (problem.y - p)).sum(axis=1)
    return problem.learner.learn(z[:, None]) or new


def _learn_for_step(problem: Problem, p: FloatArray) -> None:
    """Let the learner find members for a shrunk step; steps of many classes have no use for a witness."""
    d = p.shape[1]
    (_ask_about_probes if has_own_weights(tuple(problem.notion.probes(d)), d) else explore)(problem, p)


def _ask_about_probes(problem: Problem, p: FloatArray) -> bool:
    """Ask the learner for members that correlate with the probes' residuals; say whether there are new ones."""
    Z = [residual(u, a, p, problem.y) for u, a in probes_and_labels(problem.notion, p.shape[1])]
    return problem.learner.learn(np.column_stack(Z))


def _single(problem: Problem, p: FloatArray, found: Suprema) -> Step | None:
    """Return the step along the witness of the worst subpopulation."""
    j = _worst(problem, found)
    witness = found.witness(j)
    term = Term(problem.learner.member(j), witness.weights, witness.coefficients[None])
    return _take(problem, p, (term,), found)


def _offered(problem: Problem, p: FloatArray, found: Suprema) -> Step | None:
    """Return the update that a boosting learner offers, at its own shrinkage, if it makes the guaranteed progress.

    A line search would undo the shrinkage: it follows the fitted rows, on which the learner has grown.
    """
    offers = problem.learner.offers
    if problem.step is not None or problem.newton_only or not offers or offers[0].geometry != problem.geometry:
        return None
    update, seen = _sum_of(offers, p, problem.geometry), float(found.value[_worst(problem, found)])
    return _progressed(problem, p, update, seen, guaranteed_progress(problem, seen, p.shape[1]))


def _sum_of(offers: Sequence[Offer], p: FloatArray, geometry: Geometry) -> Update:
    """Return what a boosting learner offers as one update."""
    sizes = [np.eye(p.shape[1])[[offer.label]][:, None] * offer.size for offer in offers]
    terms = [Term(offer.family, (Monomial(),), size) for offer, size in zip(offers, sizes, strict=True)]
    return Update(tuple(terms), geometry)


def _joint(problem: Problem, p: FloatArray, terms: tuple[Term, ...], found: Suprema) -> Step | None:
    """Return the step along all terms, if it makes the progress that a single one guarantees."""
    step = _take(problem, p, terms, found)
    if step is None:
        return None
    enough = guaranteed_progress(problem, float(found.value[_worst(problem, found)]), p.shape[1])
    return step if step.progress >= enough - ROUNDING else None


def _take(problem: Problem, p: FloatArray, terms: tuple[Term, ...], found: Suprema) -> Step | None:
    """Return the step along the terms whose size the step rule chooses; None if nothing moves."""
    delta = sum_terms(terms, p, problem.learner.rows)
    eta = _step_size(problem, p, delta)
    if eta == 0.0:
        return None
    update = Update(tuple(term.scaled(eta) for term in terms), problem.geometry)
    moved = problem.moved(update, p)
    if np.array_equal(moved, p):
        return None
    progress = problem.loss(p) - problem.loss(moved)
    return Step(update, moved, float(found.value.max()), progress) if progress >= -ROUNDING else None


def _step_size(problem: Problem, p: FloatArray, delta: FloatArray) -> float:
    """Return the line-search step, or a share of the Newton step (shrinkage, which keeps the bound by 1/(nu(2-nu)))."""
    share = 1.0 if problem.step is None else problem.step
    if share < 1.0 or problem.newton_only:
        return share * newton(p, delta, problem.rho(p), problem.weight, problem.geometry)
    return line_search(p, problem.y, delta, problem.weight, problem.geometry)


def guaranteed_progress(problem: Problem, violation: float, d: int) -> float:
    """Return the drop of the potential that a violation of this size guarantees (spec 4.3).

    Euclidean: g^2 / B. Mirror: 2 g^2, as the log loss bends by at most 1/4. Shrinkage nu: times nu (2 - nu).
    """
    share = 1.0 if problem.step is None else problem.step
    best = violation**2 / width(d) if problem.geometry == "euclidean" else 2.0 * violation**2
    return share * (2.0 - share) * best


def bound(solver: str, problem: Problem, p: FloatArray, loss: float | None = None) -> int:
    """Return the a-priori bound on the number of updates from the start p, whose potential may be known (spec 4.3)."""
    d = p.shape[1]
    if solver == "first":
        beta = problem.notion.tolerance(p, problem.alpha)
        own = 0.0 if problem.step is None else problem.loss(p) / min(problem.step, beta) / beta
        return _whole(max(8 * d / beta / beta, own))
    loss = problem.loss(p) if loss is None else loss
    if problem.alpha == 0.0:  # every shrunk step gains a row's worth
        return _whole(loss * problem.n)
    gain = problem.notion.gain(d) * _target(problem)
    progress = guaranteed_progress(problem, gain, d)
    return _whole(loss / progress if progress > 0 else np.inf)


def _whole(bound: float) -> int:
    """Round a bound down; one beyond all counting is the largest integer a machine counts with."""
    return int(min(bound, sys.maxsize))


SOLVERS: dict[str, Solver] = {"first": first, "worst": worst, "block": block}
