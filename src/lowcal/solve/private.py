"""The private solver: Algorithm 1 with the exponential mechanism for its search and noise on its stop rule (spec 4.8).

Candidates are all signed pairs (c, u e_a, s), scored by s E_n[c u(f) (y_a - f_a)]. A round selects one with probability
proportional to exp(eps0 m score / 4) and releases its score with Laplace noise of scale 2 / (m eps0). Below three
quarters of the tolerance the run stops; otherwise the prediction moves along the pair by a step that is fixed
beforehand. What the rows decide is released in no other way, so the run costs what its rounds cost (`accounting`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from lowcal.accounting import laplace_scale, log_odds_per_score, release_error, selection_error, share_of
from lowcal.complexity import basis_tolerance, basis_width, finite_basis, fresh_rounds, reuse_deviation
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import Outcomes
from lowcal.data.progress import Progress
from lowcal.kernels.simplex import FloatArray
from lowcal.notions import Full, LowDegree, Notion, parse_notion
from lowcal.notions.moments import moments
from lowcal.notions.weights import Cell, Weight, evaluate, monomials, n_intervals
from lowcal.rows import START, Memory
from lowcal.rows.updates import Predictor, Update
from lowcal.solve.fitting import Fit, Options, Record
from lowcal.solve.solvers import ALPHA, Problem, single_term
from lowcal.solve.stopping import Status
from lowcal.subpopulations.union import Private

#: Without max_rounds, the least number of rounds, even where the noise of a round is large.
LEAST_ROUNDS = 10


@dataclass(frozen=True)
class PrivacyGuarantee:
    """What a private fit costs and what it guarantees.

    The fit is (epsilon, delta)-differentially private for samples that differ in one row: `rounds` rounds, each of a
    selection and a release of eps0, under `theorem`. With probability 1 - beta every selected score is within
    `selection_error` of the best, every released one within `release_error` of the true, so that

    * a run that stops below `threshold` leaves a supremum of at most `accuracy` on its rows;
    * if `is_certain`, the run stops by itself, and `accuracy` is at most alpha;
    * in the population everything differs by at most `deviation(n_updates)`, with probability 1 - beta again (4.7).

    `tolerance` is what single pairs are held to: it implies alpha over the whole class of weights.
    """

    epsilon: float
    delta: float
    theorem: str
    eps0: float
    rounds: int
    n_rows: int
    n_candidates: int
    alpha: float
    tolerance: float
    step: float
    beta: float
    rounds_needed: int

    @property
    def threshold(self) -> float:
        """The released score below which a run stops: 3/4 of the tolerance."""
        return 0.75 * self.tolerance

    @property
    def selection_error(self) -> float:
        """How far below the best a selected score may be; beta is shared by all selections and releases."""
        return selection_error(self.n_rows, self.eps0, self.n_candidates, self.beta / (2 * self.rounds))

    @property
    def release_error(self) -> float:
        """How far a released score may be from the true one."""
        return release_error(self.n_rows, self.eps0, self.beta / (2 * self.rounds))

    @property
    def accuracy(self) -> float:
        """The supremum on the fitted rows after a run that stopped by itself, but for probability beta."""
        return self.upper(self.threshold)

    @property
    def is_accurate(self) -> bool:
        """Whether the errors of a round are at most a quarter of the tolerance."""
        return self.selection_error + self.release_error <= self.tolerance / 4

    @property
    def is_certain(self) -> bool:
        """Whether the errors and the rounds are such that the run must stop by itself, with accuracy alpha."""
        return self.is_accurate and self.rounds >= self.rounds_needed

    def upper(self, released: float) -> float:
        """Return the bound on the supremum over the class that a released score implies, but for probability beta."""
        pairs = max(released, 0.0) + self.selection_error + self.release_error
        return float(pairs * self.alpha / self.tolerance)

    def deviation(self, n_updates: int) -> float:
        """Return how far the suprema of the sample and of the population may differ after a number of updates (4.7)."""
        pairs = reuse_deviation(self.n_rows, max(2, self.n_candidates), n_updates, self.beta)
        return pairs * self.alpha / self.tolerance

    def __str__(self) -> str:
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        certain = "" if self.is_certain else ", if it stops before the rounds run out"
        return (
            f"({self.epsilon:g}, {self.delta:g})-differentially private for replacing one of {self.n_rows} rows: "
            f"at most {rounds} of a selection and a release with eps0={self.eps0:.3g} each, by {self.theorem}. "
            f"With probability {1 - self.beta:g} the run leaves a supremum of at most {self.accuracy:.3g}{certain}. "
            "The list of groups is taken as public."
        )


@dataclass(frozen=True, eq=False)
class PrivateFit(Fit):
    """What `multicalibrate` returns for `Private(...)`; all of it is private and may be published.

    `violation` is the released, noisy score of the pair that the last round selected, `history` the released scores
    (its losses are nan: they are not released), and `upper` bounds the supremum over the class on the fitted rows
    with probability 1 - beta. `guarantee` is the budget and what it guarantees. The status is "reached" if the
    last score was below 3/4 of the tolerance and the errors were small enough for alpha, "undecided" if they were
    not, "limit" if the rounds ran out.
    """

    guarantee: PrivacyGuarantee = field(kw_only=True)

    def __str__(self) -> str:
        updates = "1 update" if self.n_updates == 1 else f"{self.n_updates} updates"
        return (
            f"{self.notion} at alpha={self.alpha:g}: {self.status.value} after {updates}, released score "
            f"{self.violation:.3g}; with probability {1 - self.guarantee.beta:g} the supremum is at most "
            f"{self.upper:.3g} on the fitted rows. {self.guarantee}"
        )


def plan(private: Private, problem: Problem, d: int, most: int | None = None) -> PrivacyGuarantee:
    """Return the budget of a fit, fixed before the rows are looked at: rounds, eps0, tolerance and step.

    The step alpha / (2B) makes a gain of alpha / 2 lower the Brier score by alpha^2 / (4B), so that 4 phi B / alpha^2
    updates are enough (spec 4.3) and one more round to find nothing.
    """
    n, n_classes = problem.rows.scale.n, max(2, d)
    tolerance = basis_tolerance(finite_basis(problem.notion), problem.alpha, n_classes)
    pairs = 2 * problem.learner.design().shape[1] * len(public_weights(problem.notion, d)) * d
    needed = fresh_rounds(tolerance, n_classes) + 1

    def budget(rounds: int) -> PrivacyGuarantee:
        share = share_of(private.epsilon, rounds, private.delta)
        step = tolerance / (2 * basis_width(d))
        costs = (float(private.epsilon), float(private.delta), share.theorem, share.eps0, rounds, n, pairs)
        return PrivacyGuarantee(*costs, problem.alpha, tolerance, step, float(private.beta), needed)

    limit = needed if most is None else min(needed, most)
    if private.max_rounds is not None:
        return budget(min(limit, private.max_rounds))
    return budget(max(most_rounds(lambda rounds: budget(rounds).is_accurate, limit), min(LEAST_ROUNDS, limit)))


def most_rounds(is_accurate: Callable[[int], bool], limit: int) -> int:
    """Return the most rounds, up to the limit, that are accurate, as fewer then are too; 0 if none."""
    return bisect_left(range(1, limit + 1), True, key=lambda rounds: not is_accurate(rounds))


def rounds(
    problem: Problem, guarantee: PrivacyGuarantee, rng: np.random.Generator
) -> Iterator[tuple[float, Update | None]]:
    """Yield each round's released score and the update it led to; None ends the run. The last round only measures.

    Cost: the moments of all pairs once a round.
    """
    p, y = problem.whole(START)
    n, d = p.shape
    weights = public_weights(problem.notion, d)
    design = problem.learner.design()
    for t in range(1, guarantee.rounds + 1):
        problem.learner.n_calls += 1
        g = moments(design, evaluate(weights, p), problem.learner.weight[:, None] * (y - p))
        scores = np.concatenate([g.ravel(), -g.ravel()])
        chosen = select(scores, n, guarantee.eps0, rng)
        released = release(scores[chosen], n, guarantee.eps0, rng)
        if released < guarantee.threshold or t == guarantee.rounds:
            yield released, None
            return
        sign, pair = divmod(chosen, g.size)
        c, u, a = np.unravel_index(pair, g.shape)  # f <- proj(f + s step c(x) u(f) e_a)
        step = -guarantee.step if sign else guarantee.step
        update = Update((single_term(problem.learner.member(int(c)), weights[u], int(a), d, step),))
        yield released, update
        p = update(p, problem.learner.rows)


def fit_privately(
    chosen: Private, outcomes: Outcomes, table: Frame, options: Options, rng: np.random.Generator
) -> PrivateFit:
    """Consume the private rounds; only what they release is kept."""
    weight = outcomes.weight
    if np.ptp(weight) > 1e-9 * weight.max():
        raise InvalidInput(
            "Private(...) takes no sample weights: a heavy row would need more noise. Leave sample_weight out."
        )
    learner, notion, alpha = chosen.listed(table, weight), parse_notion(options.notion), options.target or ALPHA
    problem = Problem(Memory.of(learner.rows, outcomes.p, outcomes.y, weight), notion, learner, alpha)
    most = None if options.max_updates is None else options.max_updates + 1
    guarantee = plan(chosen, problem, outcomes.p.shape[1], most)
    updates: list[Update] = []
    history: list[Record] = []
    violation, status = np.nan, Status.LIMIT
    with Progress(options.progress, alpha) as bar:
        for violation, update in rounds(problem, guarantee, rng):
            history[-1:] = [Record(len(updates), violation, np.nan, np.nan)] if updates else []
            if updates and options.callback is not None and options.callback(history[-1]):
                status = Status.STOPPED
                break
            if update is None:
                break
            updates.append(update)
            history.append(Record(len(updates), np.nan, np.nan, np.nan))
            bar.show(len(updates), violation)
    if status is Status.LIMIT and violation < guarantee.threshold:
        status = Status.REACHED if guarantee.accuracy <= alpha else Status.UNDECIDED
    predictor = Predictor(problem.learner.encoder, tuple(updates), outcomes.layout)
    found = (float(violation), guarantee.upper(violation), guarantee.rounds - 1, problem.learner.n_calls)
    return PrivateFit(predictor, status, tuple(history), *found, True, notion, alpha, guarantee=guarantee)


def select(scores: FloatArray, n_rows: int, eps0: float, rng: np.random.Generator) -> int:
    """Return a candidate drawn by the exponential mechanism: P(k) proportional to exp(eps0 m q_k / 4).

    The largest of eps0 m q_k / 4 plus Gumbel noise has exactly this law, and nothing is exponentiated.
    """
    return int(np.argmax(log_odds_per_score(n_rows, eps0) * scores + rng.gumbel(size=len(scores))))


def release(score: float, n_rows: int, eps0: float, rng: np.random.Generator) -> float:
    """Return a score with Laplace noise of scale 2 / (m eps0)."""
    return float(score + rng.laplace(scale=laplace_scale(n_rows, eps0)))


def public_weights(notion: Notion, d: int) -> tuple[Weight, ...]:
    """Return the basis of a notion as it is before any row is seen: for the full notion all cells, occupied or not."""
    if not isinstance(finite_basis(notion), Full):
        return monomials(d, notion.degree - 1 if isinstance(notion, LowDegree) else 0)
    assert isinstance(notion, Full)
    width, k, most = notion.width, n_intervals(notion.width), 100_000
    if k**d > most:
        raise InvalidInput(
            f"A grid of width {width:g} has more than {most:,} cells, too many to list. Use a larger width, or a low "
            "degree instead."
        )
    every = product(range(k), repeat=d)
    if d == 1:
        return tuple(Cell(width, index) for index in every)
    # those that meet the simplex, or touch it
    return tuple(Cell(width, i) for i in every if sum(i) * width <= 1 + 1e-9 and (sum(i) + d) * width >= 1 - 1e-9)
