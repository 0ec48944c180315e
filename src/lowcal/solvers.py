"""Three solvers, each a generator of updates: Algorithm 1 as printed, the largest violation first, all at once.

A solver knows nothing of limits, patience, progress bars or held-out rows; whoever consumes the stream does.
Every update lowers the training potential by a fixed amount, so each stream ends within `bound` updates (spec 4.3).
Paper: Algorithm 1 and Lemma 5.3.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np

from lowcal.blocks import bent_terms, block_terms, can_bend
from lowcal.engines.cells import Cells
from lowcal.engines.products import dot
from lowcal.moments import residual
from lowcal.notions import LowDegree, Multiaccuracy
from lowcal.notions.base import Finite, Notion, Suprema
from lowcal.simplex import FloatArray, Geometry, brier, leading, log_loss, width
from lowcal.steps import line_search, newton
from lowcal.subpopulations.base import Found, WeakLearner
from lowcal.updates import Term, Update, sum_terms
from lowcal.weights import Monomial, Weight, monomials

T = TypeVar("T")

#: The potential may rise by this much through rounding before a step counts as no progress.
ROUNDING = 1e-14
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


@dataclass(frozen=True, eq=False)
class Problem:
    """What a solver is asked to solve: outcomes, weights that sum to one, W, C, alpha, and how to move.

    `is_wary`: a step along many features must gain more than it would if all of them were noise.
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
    is_wary: bool = False
    _memory: list[tuple[FloatArray, dict[Hashable, Any]]] = field(default_factory=list, init=False, repr=False)

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
    """

    update: Update
    state: FloatArray | Cells
    violation: float
    progress: float = np.nan

    @cached_property
    def p(self) -> FloatArray:
        """The predictions after the update."""
        return self.state.predictions() if isinstance(self.state, Cells) else self.state

    def losses(self, problem: Problem) -> tuple[float, float]:
        """Return the Brier score and the log loss after the update, on the fitted rows."""
        if isinstance(self.state, Cells):
            return self.state.brier(), self.state.log_loss()
        return problem.brier(self.state), problem.log_loss(self.state)


Solver = Callable[[Problem, FloatArray], Iterator[Step]]


def holds(problem: Problem, p: FloatArray) -> bool:
    """Say whether the notion holds at alpha for every known subpopulation."""
    return is_within(float(problem.suprema(p).upper.max()), problem.alpha)


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


def block(problem: Problem, p: FloatArray) -> Iterator[Step]:
    """All constraints at once: least squares of the residual on every c(x) u(f), then a line search (spec 4.4).

    Progress is at least that of the best single constraint, so the bound of `worst` holds; where rounding, a
    subsample or the ridge would break that, the single step is taken instead. What a boosting learner offers at its
    own shrinkage is tried first, under the same condition, after a few steps on what it starts with.
    """
    if problem.learner.boosts:
        start = replace(problem, learner=problem.learner.start())
        for early in itertools.islice(block(start, p), START_STEPS):
            p = early.p
            yield early
    tries_all = True
    for attempt in itertools.count():
        explore(problem, p)
        found = _largest(problem, p)
        if found is None:
            return
        step = _offered(problem, p, found) or (_bent(problem, p, found) if attempt == 0 else None)
        if step is None and tries_all:
            step = _joint(problem, p, _directions(problem, p, found, attempt), found)
            # what gained no more than noise from the same subpopulations is not tried again
            tries_all = step is not None or not (problem.is_wary and problem.learner.is_exact)
        step = step or _single(problem, p, found)
        if step is None:
            return
        p = step.p
        yield step


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
    """Whether the supremum may exceed alpha and a witness shows at least the share of it that the bound counts on."""
    seen = not is_within(float(found.upper.max()), problem.alpha)
    return seen and bool(found.value.max() > problem.notion.gain(d) * problem.alpha)


def explore(problem: Problem, p: FloatArray) -> bool:
    """Let the learner and the weight class take turns: new c for the probes, then for the worst c's witness."""
    if problem.learner.is_exact:
        return False
    d = p.shape[1]
    Z = [residual(u, a, p, problem.y) for u in problem.notion.probes(d) for a in range(d)]
    new = problem.learner.learn(np.column_stack(Z))
    found = problem.suprema(p)
    z = (found.witness(found.worst)(p) * (problem.y - p)).sum(axis=1)
    return problem.learner.learn(z[:, None]) or new


def _single(problem: Problem, p: FloatArray, found: Suprema) -> Step | None:
    """Return the step along the witness of the worst subpopulation."""
    j = found.worst
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
    sizes = [np.eye(p.shape[1])[[offer.label]][:, None] * offer.size for offer in offers]
    terms = [Term(offer.family, (Monomial(),), size) for offer, size in zip(offers, sizes, strict=True)]
    update = Update(tuple(terms), problem.geometry)
    moved = update(p, problem.learner.rows)
    enough = guaranteed_progress(problem, float(found.value.max()), p.shape[1])
    is_enough = problem.loss(moved) <= problem.loss(p) - enough + ROUNDING
    return Step(update, moved, float(found.value.max())) if is_enough else None


def _bent(problem: Problem, p: FloatArray, found: Suprema) -> Step | None:
    """Return the step that shifts and bends the log odds by group, shrunk, if it makes the guaranteed progress."""
    is_free = problem.geometry == "mirror" and problem.step is None and not problem.newton_only
    if not is_free or not can_bend(problem.notion, problem.learner, p):
        return None
    terms = bent_terms(problem.learner, p, problem.y, problem.weight, (problem.seed, 0))
    return _enough(problem, p, Update(terms, problem.geometry), found)


def _enough(problem: Problem, p: FloatArray, update: Update, found: Suprema) -> Step | None:
    """Return the step of an update if it makes the guaranteed progress; a wary problem asks for more than noise."""
    moved = problem.moved(update, p)
    enough = guaranteed_progress(problem, float(found.value.max()), p.shape[1])
    if problem.is_wary:
        features = sum(len(term.weights) * len(term.theta) for term in update.terms)
        enough = max(enough, gain_of_noise(problem, p, features))
    is_enough = problem.loss(moved) <= problem.loss(p) - enough + ROUNDING
    return Step(update, moved, float(found.value.max())) if is_enough else None


def _joint(problem: Problem, p: FloatArray, terms: tuple[Term, ...], found: Suprema) -> Step | None:
    """Return the step along all terms, if it makes the progress that a single one guarantees."""
    step = _take(problem, p, terms, found)
    if step is None:
        return None
    enough = guaranteed_progress(problem, float(found.value.max()), p.shape[1])
    if problem.is_wary:
        enough = max(enough, gain_of_noise(problem, p, sum(len(term.weights) * len(term.theta) for term in terms)))
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


def gain_of_noise(problem: Problem, p: FloatArray, n_features: int) -> float:
    """Return twice the drop of the potential that so many features bring if there is nothing but noise to fit.

    A drop of F E||y - f||^2 / n on the fitted rows is noise, and costs as much on fresh ones: only what exceeds both
    is a gain there (Mallows' C_p; for the log loss F (d - 1) / n, Akaike's criterion).
    """
    n, d = 1.0 / dot(problem.weight, problem.weight), p.shape[1]
    share = problem.brier(p) if problem.geometry == "euclidean" else float(max(1, d - 1)) / 2.0
    return 2.0 * n_features * share / n


def bound(solver: str, problem: Problem, p: FloatArray, loss: float | None = None) -> int:
    """Return the a-priori bound on the number of updates from the start p, whose potential may be known (spec 4.3)."""
    d = p.shape[1]
    if solver == "first":
        beta = problem.notion.tolerance(p, problem.alpha)
        own = 0.0 if problem.step is None else problem.loss(p) / min(problem.step, beta) / beta
        return _whole(max(8 * d / beta / beta, own))
    loss = problem.loss(p) if loss is None else loss
    gain = problem.notion.gain(d) * problem.alpha
    progress = guaranteed_progress(problem, gain, d)
    return _whole(loss / progress if progress > 0 else np.inf)


def _whole(bound: float) -> int:
    """Round a bound down; one beyond all counting is the largest integer a machine counts with."""
    return int(min(bound, sys.maxsize))


SOLVERS: dict[str, Solver] = {"first": first, "worst": worst, "block": block}
