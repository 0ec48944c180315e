"""What a fit guarantees for the population: new rows for every round, or one sample used in all rounds.

`fresh` runs Algorithm 1 with a new batch for each round (spec 4.6): no choice depended on a batch before it is
measured, so its violations are unbiased. `certify_reuse` states what Algorithm 1 with a fixed step guarantees after
many looks at one sample (spec 4.7): its predictor is one of few sequences of choices. `Private` bounds what a run
learns about its rows (spec 4.8). Paper: Proposition 5.4 and the remarks after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.complexity import (
    basis_tolerance,
    basis_width,
    batch_deviation,
    check_level,
    finite_basis,
    fresh_batch,
    fresh_rounds,
    n_pairs,
    reuse_deviation,
)
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import check_fit, check_whole, read_features, read_outcomes
from lowcal.kernels.simplex import FloatArray, brier, leading, log_loss
from lowcal.notions import Notion
from lowcal.notions.moments import moments
from lowcal.notions.weights import evaluate
from lowcal.rows.updates import Predictor, Update
from lowcal.solve.fitting import Fit, Record
from lowcal.solve.homes import choose_subpopulations
from lowcal.solve.private import PrivacyGuarantee, PrivateFit, most_rounds
from lowcal.solve.solvers import single_term
from lowcal.solve.stopping import Status
from lowcal.subpopulations import Private, WeakLearner
from lowcal.subpopulations.base import ClassChoice, Encoded

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "FreshFit",
    "PopulationStatement",
    "PrivacyGuarantee",
    "Private",
    "PrivateFit",
    "certify_reuse",
    "fresh",
    "reuse_deviation",
]

#: Outcomes, start predictions and encoded rows of one round.
Batch = tuple[FloatArray, FloatArray, Encoded]


@dataclass(frozen=True)
class PopulationStatement:
    """What holds in the population with probability 1 - beta.

    The supremum over the whole class of weights is at most `bound` for every subpopulation of the fit; `holds` is
    whether this is at most the alpha asked for. `deviation` is the largest difference between the violations of a pair
    in the sample and in the population, `rows_used` the rows that were read, `rows_needed` a number that is enough.
    """

    alpha: float
    bound: float
    beta: float
    deviation: float
    rows_used: int
    rows_needed: int
    reason: str

    @property
    def holds(self) -> bool:
        """Whether the bound is at most alpha."""
        return self.bound <= self.alpha * (1 + 1e-12)

    def __str__(self) -> str:
        said = f"With probability {1 - self.beta:g} the supremum in the population is at most {self.bound:.4g}"
        if self.holds:
            return f"{said} on every subpopulation ({self.reason})."
        return f"{said}, NOT at most alpha={self.alpha:g}: {self.reason}."


@dataclass(frozen=True, eq=False)
class FreshFit(Fit):
    """A fit with a new batch for every round, and what it guarantees for the population.

    `violation` and `history` refer to the batch that a round measured; `upper` is the bound for the population.
    """

    statement: PopulationStatement = field(kw_only=True)

    def __str__(self) -> str:
        updates = "1 update" if self.n_updates == 1 else f"{self.n_updates} updates"
        return f"{self.notion} at alpha={self.alpha:g}: {self.status.value} after {updates}. {self.statement}"


@dataclass(frozen=True)
class _Plan:
    """The numbers of a run on fresh batches, fixed before a label is seen.

    pairs : N, the signed pairs of a subpopulation and a weight.
    tolerance : what single pairs are held to, which implies alpha over the class.
    needed : T_max + 1; a run whose updates gain half the tolerance has ended by then.
    """

    learner: WeakLearner
    notion: Notion
    alpha: float
    beta: float
    pairs: int
    tolerance: float
    needed: int
    rounds: int

    def deviation(self, n_rows: int) -> float:
        """Return how far the violations of a batch may be from the population's, in all rounds together."""
        return batch_deviation(n_rows, self.pairs, self.rounds, self.beta)

    def is_accurate(self, n_rows: int) -> bool:
        """Whether batches of this size deviate by at most a quarter of the tolerance."""
        return self.deviation(n_rows) <= self.tolerance / 4


def fresh(
    y: ArrayLike,
    p: ArrayLike,
    X: object,
    *,
    subpopulations: ClassChoice = None,
    notion: str | Notion = "degree-2",
    alpha: float = 0.05,
    beta: float = 0.05,
    n_rounds: int | None = None,
    classes: Sequence[Any] | None = None,
    random_state: int | np.random.Generator | None = None,
) -> FreshFit:
    """Split one sample of independent rows into batches and run Algorithm 1 with a new one for each round (spec 4.6).

    The rows are shuffled. The groups are read off a tenth of them (10,000 at most) which is used for nothing else, so
    that the class is fixed before a label is seen. A round takes a batch and moves along the pair with the largest
    violation if that exceeds 3/4 of the tolerance; otherwise the run stops. With batches large enough, with probability
    1 - beta every update has a true gain of at least half the tolerance, and after stopping all true violations are at
    most alpha. The last batch only measures, so that a bound holds even if the batches run out.

    Parameters
    ----------
    y, p, X, subpopulations, notion, alpha, classes : as for `multicalibrate`; the class must be finite (no learner),
        the notion multiaccuracy, a degree or full. p must come from a model that was not fitted to these rows.
    beta : the probability with which the statement may fail.
    n_rounds : batches to split into; None: as many as leave them large enough for the statement.
    random_state : seed of the shuffle.

    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(40_000, random_state=0)
    >>> fit = fresh(data.y, data.p, data.X, alpha=0.2, random_state=0)
    >>> fit.status.value, fit.statement.holds
    ('reached', True)
    >>> print(fresh(data.y, data.p, data.X, alpha=0.02, random_state=0).statement)
    With probability 0.95 the supremum in the population is at most 0.07..., NOT at most alpha=0.02: batches of 9000
    rows ...
    """
    check_level("alpha", alpha)
    check_level("beta", beta)
    outcomes = read_outcomes(y, p, None, classes)
    check_fit(outcomes)
    table = read_features(X, len(outcomes.p))
    order = np.random.default_rng(random_state).permutation(len(outcomes.p))
    first, rest = np.split(order, [max(1, min(len(order) // 10, 10_000))])
    learner = _bind(subpopulations, X, table.take(first))
    plan = _plan(learner, finite_basis(notion), alpha, beta, outcomes.layout.n_classes)
    if n_rounds is None:
        most = min(plan.needed, len(rest))
        n_rounds = most_rounds(lambda k: replace(plan, rounds=k).is_accurate(len(rest) // k), most)
        n_rounds = n_rounds or 4  # too few rows for the statement with even one round
    check_whole("n_rounds", n_rounds, 1, max(1, len(rest)))
    plan, rows_used = replace(plan, rounds=n_rounds), len(first)
    updates: list[Update] = []
    history: list[Record] = []
    for part in np.array_split(rest, n_rounds):
        batch = outcomes.y[part], outcomes.p[part], plan.learner.encoder(table.take(part))
        rows_used += len(part)
        batch, violation, update = _measure(batch, updates, plan)
        if updates:
            history.append(_record(len(updates), violation, batch))
        if violation <= 0.75 * plan.tolerance or len(updates) + 1 == n_rounds:
            break
        updates.append(update)
    predictor = Predictor(plan.learner.encoder, tuple(updates), outcomes.layout)
    return _finish(predictor, history, plan, batch, rows_used)


def _plan(learner: WeakLearner, notion: Notion, alpha: float, beta: float, n_classes: int) -> _Plan:
    """Return the plan of a run that may take all rounds it needs."""
    pairs = n_pairs(notion, len(learner.names), n_classes)
    tolerance = basis_tolerance(notion, alpha, n_classes)
    needed = fresh_rounds(tolerance, n_classes) + 1
    return _Plan(learner, notion, float(alpha), float(beta), pairs, tolerance, needed, needed)


def _bind(subpopulations: ClassChoice, X: object, table: Frame) -> WeakLearner:
    learner = choose_subpopulations(subpopulations, X, table).prepare(table)
    if not learner.is_exact:
        raise InvalidInput(
            "These subpopulations are learned from the rows, so there is no finite list to be sure of. "
            "Use Groups, Intersections, Memberships or Thresholds, or certify a fit on held-out rows."
        )
    return learner


def _measure(batch: Batch, updates: Sequence[Update], plan: _Plan) -> tuple[Batch, float, Update]:
    """Return a batch with its predictions so far, its largest violation, and the update along that pair.

    A true gain of tolerance / 2 lowers the loss by tolerance^2 / (4B).
    """
    y, p, rows = batch
    for update in updates:
        p = update(p, rows)
    plan.learner.n_calls += 1
    weights = tuple(plan.notion.basis(p, plan.alpha))
    g = moments(plan.learner.design(rows), evaluate(weights, p), (y - p) / len(y))
    c, u, a = np.unravel_index(leading(np.abs(g).ravel()), g.shape)
    step = plan.tolerance / (2 * basis_width(p.shape[1])) * float(np.sign(g[c, u, a]))
    term = single_term(plan.learner.member(int(c)), weights[u], int(a), p.shape[1], step)
    return (y, p, rows), float(abs(g[c, u, a])), Update((term,))


def _record(n_updates: int, violation: float, batch: Batch) -> Record:
    y, p, _ = batch
    weight = np.full(len(y), 1.0 / len(y))
    return Record(n_updates, violation, brier(p, y, weight), log_loss(p, y, weight))


def _finish(predictor: Predictor, history: Sequence[Record], plan: _Plan, last: Batch, rows_used: int) -> FreshFit:
    """Measure the predictor on the last batch, which no update has seen, and state what follows."""
    y, p, rows = last
    found = plan.notion.suprema(p, (y - p) / len(y), plan.learner.design(rows), plan.alpha)
    deviation = plan.deviation(len(y))
    bound = min(1.0, float(found.upper.max()) + deviation * plan.alpha / plan.tolerance)
    batch = fresh_batch(plan.tolerance, plan.pairs, plan.needed, plan.beta)
    needed = (plan.needed + 1) * batch
    reason = f"{rows_used:,} rows used, a new batch for each round"
    if not plan.is_accurate(len(y)):
        reason = (
            f"batches of {len(y)} rows are too small, as a violation may deviate by {deviation:.3g}, more than a "
            f"quarter of the tolerance {plan.tolerance:.3g}; it takes {batch:,} rows a batch, and "
            f"{needed:,} in all are enough whatever the data"
        )
    elif bound > plan.alpha:
        rounds = len(predictor.updates) + 1
        reason = f"the batches ran out after {rounds} rounds; {needed:,} rows are enough whatever the data"
    statement = PopulationStatement(plan.alpha, bound, plan.beta, deviation, rows_used, needed, reason)
    value = float(found.value.max())
    status = Status.REACHED if statement.holds else Status.UNDECIDED if value <= plan.alpha else Status.LIMIT
    rest = (plan.needed - 1, plan.learner.n_calls, True, plan.notion, plan.alpha)
    return FreshFit(predictor, status, tuple(history), value, bound, *rest, statement=statement)


def certify_reuse(
    fit: Fit, n_rows: int, n_subpopulations: int, *, step: float | None = None, beta: float = 0.05
) -> PopulationStatement:
    """Say what a fit of the solver "first", made on one sample of independent rows, guarantees for the population.

    With a fixed step the predictor is given by its T choices among N signed pairs. A union over all (N Q)^T such
    sequences bounds the deviation of every pair (`reuse_deviation`, spec 4.7), and the supremum in the population is at
    most the fit's own plus that deviation (times the factor between basis and class on the simplex, spec 3.2).

    Line searches and least squares choose a step from a continuum: their predictors are not among finitely many, so the
    solvers "worst" and "block" are refused; certify them on held-out rows.

    Parameters
    ----------
    fit : a fit with solver="first", from a start p that was not fitted to the same rows.
    n_rows : the rows it was fitted on, not weighted.
    n_subpopulations : how many subpopulations the class has, those that `min_mass` dropped included. It must be known
        without looking at the rows; so must the groups themselves (quantile cuts, strictly, are not).
    step : the step that was given to `multicalibrate`, if one was.
    beta : the probability with which the statement may fail.

    >>> from lowcal import multicalibrate
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(20_000, random_state=0)
    >>> fit = multicalibrate(data.y, data.p, data.X, alpha=0.03, solver="first", step=0.03, guard=False)
    >>> statement = certify_reuse(fit, 20_000, 21, step=0.03)
    >>> statement.holds, statement.bound < 0.1
    (False, True)
    """
    check_whole("n_rows", n_rows, 1)
    if fit.alpha is None:
        raise InvalidInput("alpha=None lets the rows set the target; fit with an alpha, or certify on held-out rows.")
    if len(fit.predictor) < fit.n_updates:
        raise InvalidInput("The guard cut this fit short; fit with guard=False, or certify on held-out rows.")
    if isinstance(fit, FreshFit | PrivateFit):
        raise InvalidInput("This fit carries its own statement: see fit.statement, or fit.guarantee for a private one.")
    if not fit.is_exact:
        raise InvalidInput("The subpopulations of this fit were learned from the rows; certify it on held-out rows.")
    layout, alpha = fit.predictor.layout, fit.alpha
    least, levels = fit.notion.tolerance(np.broadcast_to(0.0, (n_rows, layout.d)), alpha), [alpha]
    while levels[-1] > least:
        levels.append(max(levels[-1] / 2, least))
    # the step sizes that the solver "first" chooses from: alpha / (2d), or the given one, then halves
    sizes = sorted({level / (2 * layout.d) if step is None else min(float(step), level) for level in levels})
    for update in fit.predictor.updates:
        theta = [t for term in update.terms for t in np.abs(term.theta[term.theta != 0.0])]
        if update.geometry != "euclidean" or len(theta) != 1 or not np.isclose(theta[0], sizes, rtol=1e-9).any():
            raise InvalidInput(
                'This fit did not move by one pair and a fixed step at a time: the steps of the solvers "worst" and '
                '"block" come from a continuum, and their predictors are not among finitely many. Fit with '
                'solver="first" (and pass the same step= here), or certify on held-out rows.'
            )
    pairs = n_pairs(finite_basis(fit.notion), n_subpopulations, layout.n_classes)
    deviation = reuse_deviation(n_rows, pairs, fit.n_updates, beta, len(sizes))
    factor = alpha / basis_tolerance(fit.notion, alpha, layout.n_classes)
    bound = min(1.0, fit.upper + factor * deviation)
    needed = int(np.ceil(n_rows * (2 * factor * deviation / alpha) ** 2))
    reason = f"{fit.n_updates} choices on {n_rows:,} rows deviate by at most {deviation:.3g}"
    if bound > alpha:
        reason += f"; for a deviation of alpha/2 the same run would need {needed:,} rows"
    return PopulationStatement(alpha, bound, beta, deviation, n_rows, needed, reason)
