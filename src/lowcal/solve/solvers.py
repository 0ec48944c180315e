"""Three solvers, each a generator of updates: Algorithm 1 as printed, the largest violation first, all at once.

A solver knows nothing of limits, patience, progress bars or held-out rows; whoever consumes the stream does, and may
answer a step with False: it is then undone, and the solver continues with its next step.
Every update lowers the training potential by a fixed amount, so each stream ends within `bound` updates (spec 4.3).
Paper: Algorithm 1 and Lemma 5.3.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import copysign, isfinite
from numbers import Real
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput
from lowcal.kernels.simplex import FloatArray, Geometry, leading, width
from lowcal.notions import Full, LowDegree, Multiaccuracy, Smooth
from lowcal.notions.base import Notion, Suprema
from lowcal.notions.moments import residual
from lowcal.notions.weights import LogOdds, Monomial, Weight
from lowcal.rows.base import REMEMBERED, START, Recent, Rows, State
from lowcal.rows.grids import are_placed, smooth_suprema
from lowcal.rows.passes import Along, CellMoments, Lost, MassSums, Moments, Moved, Probed, Witnessed, losses
from lowcal.rows.updates import Term, Update
from lowcal.solve.blocks import SLACK, block_terms, line_search
from lowcal.solve.shrinkage import (
    are_many,
    depths_of,
    group_step,
    has_own_weights,
    line_step,
    logit_step,
    logit_weights,
    members_up_to,
    notion_weights,
    probes_and_labels,
    starts_with_line,
    witness_step,
)
from lowcal.subpopulations.base import Family, WeakLearner

SolverName = Literal["first", "worst", "block"]

#: What `audit` tolerates where neither alpha nor per_person is given.
ALPHA = 0.01
#: Limits per person hold in groups that hold at least this share of the population.
MIN_SHARE = 0.01
#: Held-out rounds without improvement before stopping: the steps of the three solvers differ in size.
PATIENCE = {"first": 100, "worst": 20, "block": 3}
#: The potential may rise by this much through rounding before a step counts as no progress.
ROUNDING = 1e-14
#: What a learner finds is tried again unless it gained less than this share of all that it has gained so far: a fit of
#: `Linear` to 20,000 rows of ACS took 143 s and 78 updates without it, 1.5 s and 7 with it (log loss -.106 and -.089).
LITTLE = 0.02
#: Steps on what a boosting learner starts with (everyone), before it grows trees on what these leave.
START_STEPS = 2


@dataclass(frozen=True)
class Tolerance:
    """The largest violation allowed: `alpha` everywhere, or `per_person` times the mass of each group.

    alpha is the paper's: it bounds E[c <w(f), y - f>] over all rows, so a group that holds 1% of them may be off by
    100 alpha per person. `per_person` bounds the same violation divided by the mass of the group.

    >>> Tolerance(per_person=0.02).of(np.array([1.0, 0.25, 0.001]))
    array([0.02 , 0.005,   inf])
    >>> print(Tolerance(0.01), "|", Tolerance(per_person=0.02))
    alpha=0.01 | per_person=0.02
    """

    alpha: float | None = None
    per_person: float | None = None
    min_share: float = MIN_SHARE

    def __post_init__(self) -> None:
        if self.alpha is not None and self.per_person is not None:
            raise InvalidInput("Give alpha or per_person, not both.")
        for name, typical in (("alpha", "0.001 to 0.1"), ("per_person", "0.01 to 0.1")):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or not 0.0 < float(value) < np.inf):
                raise InvalidInput(
                    f"{name} must be a positive number, but {value!r} was given. Typical values: {typical}."
                )
        if not is_number(self.min_share) or not 0.0 <= float(self.min_share) <= 1.0:
            raise InvalidInput(f"min_share must be a share in [0, 1], but {self.min_share!r} was given.")

    def of(self, mass: FloatArray) -> FloatArray:
        """Return the largest violation allowed in each group of this mass; infinite in groups below `min_share`."""
        if self.per_person is None:
            return np.full(mass.shape, self.largest)
        return np.where(self.judges(mass), self.per_person * mass, np.inf)

    def judges(self, mass: FloatArray | float) -> NDArray[np.bool_]:
        """Return whether groups of this mass are large enough for limits per person."""
        return np.asarray(mass) >= self.min_share * (1.0 - 1e-9)

    @property
    def largest(self) -> float:
        """The number asked for: the largest error per person, or the largest violation."""
        return self.per_person if self.per_person is not None else ALPHA if self.alpha is None else self.alpha

    def __str__(self) -> str:
        return f"{'alpha' if self.per_person is None else 'per_person'}={self.largest:g}"


def is_number(value: object) -> bool:
    """Whether an argument is a real number, which True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def are_within(suprema: FloatArray, limits: FloatArray) -> bool:
    """Return whether every supremum is at most its limit, up to rounding."""
    return bool((suprema <= limits * (1.0 + SLACK)).all())


@dataclass(frozen=True, eq=False)
class Step:
    """The state after an update, the violation seen before it, and the drop of the potential.

    `stage` is the place of the step in the solver's plan: the same for the same step on other rows.
    """

    state: State
    violation: float
    progress: float = np.nan
    stage: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Problem:
    """What a solver is asked to solve: rows, W, C, alpha, and how to move.

    alpha = 0 asks for all that shrunk steps find, and for nothing beyond. `tolerance`, where it is given, sets a limit
    for each subpopulation in the place of alpha. `is_measured`: whether steps record the violation they are made for;
    `is_guarded`: whether steps may be undone, so that small ones come first; `is_study`: whether alpha is to be reached
    on these rows whatever that does to others. `past`: the first steps of a fit that is resumed, to be taken again.
    """

    rows: Rows
    notion: Notion
    learner: WeakLearner
    alpha: float
    geometry: Geometry = "euclidean"
    step: float | None = None
    seed: int = 0
    tolerance: Tolerance | None = None
    is_measured: bool = True
    is_guarded: bool = False
    is_study: bool = False
    past: tuple[Step, ...] = ()
    _memory: Recent = field(default_factory=partial(Recent, REMEMBERED), init=False, repr=False)

    @property
    def d(self) -> int:
        """The number of coordinates of a prediction."""
        return self.rows.d

    @property
    def n(self) -> float:
        """The effective number of rows."""
        return self.rows.worth

    @property
    def families(self) -> tuple[Family, ...]:
        """All known subpopulations."""
        return tuple(self.learner.families)

    @property
    def limits(self) -> FloatArray:
        """The largest violation allowed for every known subpopulation, or for all of them."""
        if self.tolerance is None:
            return np.array([self.alpha])
        return self.tolerance.of(self.rows.run(MassSums(self.families))[:, 0])

    @cached_property
    def shape(self) -> FloatArray:
        """Zeros of the shape of the predictions: what a notion may know of them."""
        return np.broadcast_to(0.0, (self.rows.scale.n, self.d))

    def whole(self, state: State) -> tuple[FloatArray, FloatArray]:
        """Return predictions and outcomes of all rows, which must be in memory."""
        whole = self.rows.sample(None)
        return whole.at(state), whole.y

    def suprema(self, state: State, alpha: float | None = None) -> Suprema:
        """Return the suprema over the weight class for every known subpopulation."""
        return self._measured(state, self.alpha if alpha is None else alpha)[0]

    def features(self, state: State) -> tuple[Weight, ...]:
        """Return the weights that the block step combines; none: witnesses of an infinite class."""
        if isinstance(self.notion, Full):
            return self._measured(state, self.alpha)[1]
        return tuple(self.notion.features(self.shape))

    def _measured(self, state: State, alpha: float) -> tuple[Suprema, tuple[Weight, ...]]:
        """Return the same, which is remembered for the last states."""

        def measure() -> tuple[Suprema, tuple[Weight, ...]]:
            self.learner.n_calls += 1
            return self.measure(state, alpha)

        return self._memory.once((state, len(self.learner.families), alpha), measure)

    def measure(self, state: State, alpha: float | None) -> tuple[Suprema, tuple[Weight, ...]]:
        """Return the suprema, and the weights whose moments they came from; without alpha no work is saved."""
        notion, weights = self.notion, tuple[Weight, ...]()
        if isinstance(notion, Full):
            weights, v = self.rows.run(CellMoments(state, self.families, notion.width))
        elif isinstance(notion, LowDegree | Multiaccuracy):
            weights = tuple(notion.features(self.shape))
            v = self.rows.run(Moments(state, self.families, weights))
        elif isinstance(notion, Smooth) and are_placed(self.rows):
            return smooth_suprema(self.rows, state, self.families, alpha), ()
        else:
            whole = self.rows.sample(None)
            p = whole.at(state)
            rho = whole.weight[:, None] * (whole.y - p)
            return notion.suprema(p, rho, whole.design(self.families), alpha), ()
        return replace(notion.norm(weights, v), moments=v), weights

    def losses(self, state: State) -> Lost:
        """Return the Brier score and the log loss on the fitted rows."""
        return losses(self.rows, state)

    def loss(self, state: State) -> float:
        """Return the potential of the geometry."""
        found = self.losses(state)
        return found.brier if self.geometry == "euclidean" else found.log_loss


#: Yields steps; what is sent back is False where a step is to be undone.
Steps = Generator[Step, bool | None, None]
Solver = Callable[[Problem, State], Iterator[Step]]


def holds(problem: Problem, state: State) -> bool:
    """Return whether the notion holds for every known subpopulation."""
    return are_within(problem.suprema(state).upper, problem.limits)


def first(problem: Problem, state: State) -> Iterator[Step]:
    """Algorithm 1 as printed: the first weight for which the weak learner finds a violation, step beta / (2d).

    The basis runs at the tolerance beta = alpha. Where the basis does not imply the class (spec 9.b, 9.c), beta is
    halved until the definition holds, at the latest at the tolerance that the theory asks for.
    """
    beta, least = problem.alpha, problem.notion.tolerance(problem.shape, problem.alpha)
    while not holds(problem, state) or not problem.learner.is_exact:
        for step in _algorithm_1(problem, state, beta):
            yield step
            state = step.state
        if holds(problem, state) or beta <= least:
            return
        beta = max(beta / 2, least)


# fmt: off
def _algorithm_1(problem: Problem, state: State, beta: float) -> Iterator[Step]:
    eta = beta / (2 * problem.d) if problem.step is None else min(problem.step, beta)
    while True:                                                  # while not mc
        past = recalled(problem, state) if problem.learner.is_exact else None  # (a resumed fit)
        if past is not None:
            state = past.state
            yield past
            continue
        for u, a, search in _basis(problem, state):              #     for w = u e_a in W
            c, v = search(beta)                                  #         c <- WAL_{C, beta}
            if c is None:                                        #         if c is bottom:
                continue                                         #             continue
            term = single_term(c, u, a, problem.d, copysign(eta, v))  #    delta <- w(f_t) * c
            state = state.then(Update((term,)))                  #         f <- proj(f + eta * delta)
            yield Step(state, abs(v))                            #         mc <- false
            break                                                #         break
        else:                                                    #
            return                                               # mc
# fmt: on


#: A tolerance -> a member whose violation exceeds it, or None, and the violation.
Search = Callable[[float], tuple[Family | None, float]]


def _basis(problem: Problem, state: State) -> Iterator[tuple[Weight, int, Search]]:
    """Yield the weights and labels of the basis, and how to ask for a violation of each.

    One pass gives the moments of the known members for all of them.
    """
    labels = range(problem.d)
    found, listed = problem._measured(state, problem.alpha)
    if listed and found.moments is not None:
        for (s, u), a in itertools.product(enumerate(listed), labels):
            yield u, a, partial(_search_moments, problem, state, (s, u, a))
        return
    p, y = problem.whole(state)
    for u, a in itertools.product(problem.notion.basis(p, problem.alpha), labels):
        yield u, a, partial(_search_rows, problem, residual(u, a, p, y))


def _search_moments(
    problem: Problem, state: State, place: tuple[int, Weight, int], beta: float
) -> tuple[Family | None, float]:
    """Return the known member of the largest moment, if it exceeds beta; if none does, ask the learner for more."""
    s, u, a = place
    is_asked = False
    while True:
        moments = problem.suprema(state).moments
        assert moments is not None
        problem.learner.n_calls += 1
        j = leading(np.abs(moments[:, s, a]))
        v = float(moments[j, s, a])
        if abs(v) > beta:
            return problem.learner.member(j), v
        if is_asked or not problem.learner.ask(problem.rows, Probed(state, ((u, a),))):
            return None, v
        is_asked = True


def _search_rows(problem: Problem, z: FloatArray, beta: float) -> tuple[Family | None, float]:
    """Ask the learner for a member that correlates with residuals of rows in memory."""
    found = problem.learner.search(z, beta)
    return (None, 0.0) if found is None else (found.family, found.sign * found.violation)


def single_term(c: Family, u: Weight, label: int, d: int, size: float) -> Term:
    """Return the term size * c(x) * u(f) e_label of one member."""
    theta = np.zeros((1, 1, d))
    theta[0, 0, label] = size
    return Term(c, (u,), theta)


def worst(problem: Problem, state: State) -> Iterator[Step]:
    """The largest violation first: the supremum over all of W and C, its witness, a Newton or line-search step."""
    while True:
        found = _largest(problem, state)
        if found is None:
            return
        step = recalled(problem, state) or _single(problem, state, found)
        if step is None:
            return
        state = step.state
        yield step


def block(problem: Problem, state: State) -> Steps:
    """All constraints at once, first as far as shrunk steps in log odds go, then until alpha is reached (spec 4.4).

    In log odds the plan goes from coarse to fine: a line for everyone; then, for one condition, two, ..., a logit step
    and the notion's own weights, each shrunk by the rows themselves; then what a learner finds, while it gains. Where
    a target is given and not reached, least squares on every c(x) u(f) and a line search follow.
    """
    stages = _stages(problem) if is_shrunk(problem) else []
    for number, stage in enumerate(stages):
        gained = 0.0
        for repeat in itertools.count() if stage.repeats else range(1):
            if problem.alpha > 0.0 and _largest(problem, state) is None:
                return
            if stage.learn is not None:
                stage.learn(problem, state)
            step = recalled(problem, state, (number, repeat)) or stage.propose(problem, state, (number, repeat))
            if step is None or (yield step) is False:
                break
            state, gained = step.state, gained + step.progress
            if step.progress < LITTLE * gained:
                break
    if problem.alpha > 0.0:
        yield from _all_at_once(problem, state, len(stages))


def recalled(problem: Problem, state: State, stage: tuple[int, ...] = ()) -> Step | None:
    """Return the step that an interrupted fit took from here, if it had come so far.

    A learner is asked all the same, before: it must know what it knew. Trees of the interrupted fit are its answers.
    """
    if state.n_updates >= len(problem.past):
        return None
    past = problem.past[state.n_updates]
    return past if past.stage == stage else None


def is_shrunk(problem: Problem) -> bool:
    """Whether block steps begin with shrunk ones: in log odds, unless the user chose the step."""
    return problem.geometry == "mirror" and problem.step is None


Propose = Callable[[Problem, State, tuple[int, ...]], Step | None]


class Stage(NamedTuple):
    """A kind of shrunk step; what is learned for it, and whether it is repeated while it gains, as that is new then."""

    propose: Propose
    learn: Callable[[Problem, State], object] | None = None
    repeats: bool = False


def _stages(problem: Problem) -> list[Stage]:
    """Return the plan of shrunk steps, from coarse to fine; what is learned comes last.

    A study of scalar means of listed groups has none: least squares reach its alpha in one step.
    """
    d = problem.d
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
        plan.append(Stage(_boosted, explore, repeats=True))
    elif not problem.learner.is_exact:
        plan += [Stage(partial(which, sys.maxsize), _learn_for_step, repeats=True) for which in (_logit, _features)]
    return plan


def _line(problem: Problem, state: State, stage: tuple[int, ...]) -> Step | None:
    """Propose a slope and shifts of the log odds for everyone."""
    moved = line_step(problem.rows, state, problem.learner, (problem.seed, 0))
    return _shrunk(problem, state, moved, stage)


def _logit(depth: int, problem: Problem, state: State, stage: tuple[int, ...]) -> Step | None:
    """Propose a shift and a slope of the log odds for groups of at most this many conditions, or for learned ones."""
    weights, families = logit_weights(problem.notion, problem.d), members_up_to(problem.learner, depth)
    given = (problem.rows, state, (problem.seed, *stage))
    if LogOdds() in weights:
        moved = logit_step(families, *given, is_mild=problem.is_study)
    else:
        moved = group_step(families, weights, *given)
    return _shrunk(problem, state, moved, stage)


def _features(depth: int, problem: Problem, state: State, stage: tuple[int, ...]) -> Step | None:
    """Propose a step along the notion's own weights; an infinite class brings its witnesses."""
    seed, weights = (problem.seed, *stage), notion_weights(problem.notion, problem.features(state), problem.d)
    if set(weights) == {Monomial()} == set(logit_weights(problem.notion, problem.d)):
        return None  # the logit step was the same
    if not weights:
        moved = witness_step(problem.learner, problem.suprema(state), problem.rows, state, depth, seed)
    else:
        moved = group_step(members_up_to(problem.learner, depth), weights, problem.rows, state, seed)
    return _shrunk(problem, state, moved, stage)


def _boosted(problem: Problem, state: State, stage: tuple[int, ...]) -> Step | None:
    """Propose what a boosting learner offers, at its own shrinkage."""
    return _shrunk(problem, state, _offered(problem, state), stage)


def _shrunk(problem: Problem, state: State, moved: State | None, stage: tuple[int, ...]) -> Step | None:
    """Return a shrunk step, if it gains as much as the bound counts on, and a row's worth: 1 / n, as noise has half."""
    if moved is None:
        return None
    seen = float(problem.suprema(state).value.max()) if problem.is_measured else np.nan
    return _progressed(problem, state, moved, seen, max(_least_progress(problem), 1.0 / problem.n), stage)


def _progressed(
    problem: Problem, state: State, moved: State, seen: float, least: float, stage: tuple[int, ...] = ()
) -> Step | None:
    """Return the step to a state if the potential falls by at least `least`, up to rounding."""
    progress = problem.loss(state) - problem.loss(moved)
    return Step(moved, seen, progress, stage) if progress >= least - ROUNDING else None


def _least_progress(problem: Problem) -> float:
    """Return the drop of the potential that the bound counts on: that of the least violation a step has to remove."""
    limits = [limit for limit in problem.limits.tolist() if isfinite(limit)]
    return guaranteed_progress(problem, problem.notion.gain(problem.d) * min(limits, default=1.0))


def _all_at_once(problem: Problem, state: State, number: int) -> Steps:
    """Least squares of the residual on every c(x) u(f), then a line search, until alpha is reached (spec 4.4).

    Progress is at least that of the best single constraint, so the bound of `worst` holds; where rounding, a
    subsample or the ridge would break that, the single step is taken instead. What a boosting learner offers at its
    own shrinkage is tried first, under the same condition; where no line in log odds came before, after a few steps on
    what the learner starts with.
    """
    if problem.learner.boosts and number == 0:
        start = replace(problem, learner=problem.learner.start())
        for early in itertools.islice(_all_at_once(start, state, 0), START_STEPS):
            if (yield replace(early, stage=(-1, *early.stage))) is False:
                break
            state = early.state
    for attempt in itertools.count():
        explore(problem, state)
        found = _largest(problem, state)
        if found is None:
            return
        step = recalled(problem, state, (number, attempt)) or _as_offered(problem, state, found)
        step = step or _joint(problem, state, found, attempt) or _single(problem, state, found)
        if step is None or (yield replace(step, stage=(number, attempt))) is False:
            return
        state = step.state


def _largest(problem: Problem, state: State) -> Suprema | None:
    """Return the suprema while a witness can act on them; a learner is asked for more before it is believed."""
    found = problem.suprema(state)
    if _can_act(problem, found):
        return found
    if explore(problem, state) and _can_act(problem, found := problem.suprema(state)):
        return found
    return None


def _can_act(problem: Problem, found: Suprema) -> bool:
    """Whether a supremum may exceed its limit and a witness shows at least the share of it that the bound counts on."""
    limits = problem.limits
    return not are_within(found.upper, limits) and bool((found.value > problem.notion.gain(problem.d) * limits).any())


def _worst(problem: Problem, found: Suprema) -> int:
    """Return the subpopulation whose violation is largest, relative to its limit where these differ."""
    return found.worst if problem.tolerance is None else leading(found.value / problem.limits)


def explore(problem: Problem, state: State) -> bool:
    """Let the learner and the weight class take turns: new c for the probes, then for the worst c's witness."""
    if problem.learner.is_exact:
        return False
    new = _ask_about_probes(problem, state)
    found = problem.suprema(state)
    return problem.learner.ask(problem.rows, Witnessed(state, found.witness(found.worst))) or new


def _learn_for_step(problem: Problem, state: State) -> None:
    """Let the learner find members for a shrunk step; steps of many classes have no use for a witness."""
    probes = tuple(problem.notion.probes(problem.d))
    (_ask_about_probes if has_own_weights(probes, problem.d) else explore)(problem, state)


def _ask_about_probes(problem: Problem, state: State) -> bool:
    """Ask the learner for members that correlate with the probes' residuals; return whether there are new ones."""
    return problem.learner.ask(problem.rows, Probed(state, tuple(probes_and_labels(problem.notion, problem.d))))


def _single(problem: Problem, state: State, found: Suprema) -> Step | None:
    """Return the step along the witness of the worst subpopulation."""
    j = _worst(problem, found)
    witness = found.witness(j)
    term = Term(problem.learner.member(j), witness.weights, witness.coefficients[None])
    return _take(problem, state, (term,), found)


def _offered(problem: Problem, state: State) -> State | None:
    """Return the state after what a boosting learner offers in this geometry, as one update; None if there is none."""
    offers = [offer for offer in problem.learner.offers if offer.geometry == problem.geometry]
    sizes = [np.eye(problem.d)[[offer.label]][:, None] * offer.size for offer in offers]
    terms = [Term(offer.family, (Monomial(),), size) for offer, size in zip(offers, sizes, strict=True)]
    return state.then(Update(tuple(terms), problem.geometry)) if terms else None


def _as_offered(problem: Problem, state: State, found: Suprema) -> Step | None:
    """Return the update that a boosting learner offers, at its own shrinkage, if it makes the guaranteed progress.

    A line search would undo the shrinkage: it follows the fitted rows, on which the learner has grown.
    """
    moved = _offered(problem, state) if problem.step is None else None
    if moved is None:
        return None
    seen = float(found.value[_worst(problem, found)])
    return _progressed(problem, state, moved, seen, guaranteed_progress(problem, seen))


def _joint(problem: Problem, state: State, found: Suprema, attempt: int) -> Step | None:
    """Return the step along the least-squares direction over all constraints, if it makes the guaranteed progress.

    Each attempt draws its own subsample.
    """
    seed, weights = (problem.seed, attempt), problem.features(state)
    given = (problem.rows, state, problem.learner, weights, found, problem.geometry, seed, problem.alpha)
    enough = guaranteed_progress(problem, float(found.value[_worst(problem, found)]))
    return _take(problem, state, block_terms(*given), found, enough)


def _take(problem: Problem, state: State, terms: tuple[Term, ...], found: Suprema, least: float = 0.0) -> Step | None:
    """Return the step along the terms, by a line search or a share of the Newton step (spec 4.4), if it moves rows."""
    if problem.step is None or problem.step == 1.0:
        eta = line_search(problem.rows, state, terms, problem.geometry)
    else:
        eta = problem.step * problem.rows.run(Along(state, terms, problem.geometry)).newton
    if eta == 0.0:
        return None
    moved = state.then(Update(tuple(term.scaled(eta) for term in terms), problem.geometry))
    if problem.losses(moved) == problem.losses(state) and problem.rows.run(Moved(state, moved)) == 0:
        return None
    return _progressed(problem, state, moved, float(found.value.max()), least)


def guaranteed_progress(problem: Problem, violation: float) -> float:
    """Return the drop of the potential that a violation of this size guarantees (spec 4.3).

    Euclidean: g^2 / B. Mirror: 2 g^2, as the curvature of the log loss is at most 1/4. Shrinkage nu: times nu (2 - nu).
    """
    share = 1.0 if problem.step is None else problem.step
    best = violation**2 / width(problem.d) if problem.geometry == "euclidean" else 2.0 * violation**2
    return share * (2.0 - share) * best


def bound(solver: str, problem: Problem) -> int:
    """Return the a-priori bound on the number of updates from the start (spec 4.3)."""
    loss = problem.loss(START)
    if solver == "first":
        beta = problem.notion.tolerance(problem.shape, problem.alpha)
        own = 0.0 if problem.step is None else loss / min(problem.step, beta) / beta
        return _whole(max(8 * problem.d / beta / beta, own))
    if problem.alpha == 0.0:  # every shrunk step gains a row's worth
        return _whole(loss * problem.n)
    progress = _least_progress(problem)
    return _whole(loss / progress if progress > 0 else np.inf)


def _whole(bound: float) -> int:
    """Round a bound down; one that is too large becomes the largest machine integer."""
    return int(min(bound, sys.maxsize))


SOLVERS: dict[str, Solver] = {"first": first, "worst": worst, "block": block}
