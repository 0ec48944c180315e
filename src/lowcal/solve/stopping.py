"""When to stop, and what is then true: consumers of a stream of updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np

from lowcal.notions.smooth import Smooth
from lowcal.rows import START, Rows, State
from lowcal.rows.grids import smooth_on_grid
from lowcal.rows.passes import losses
from lowcal.solve.blocks import SLACK
from lowcal.solve.options import PATIENCE, SolverName
from lowcal.solve.solvers import Problem, Step, explore


class Status(StrEnum):
    """How a fit ended. It refers to the fitted rows only: certify on fresh rows. `sentence` explains it.

    REACHED : the supremum over the whole weight class is at most alpha for every subpopulation looked at.
    LIMIT : max_updates was reached before that.
    PATIENCE : the held-out rows stopped improving; the predictor is the best one on them.
    GUARDED : no further update lowers the cross-fitted loss: it would not help on fresh rows.
    NOISE : what is left is no larger than chance would show in a perfect predictor.
    UNDECIDED : no violation above alpha was found, but the supremum is only known to lie between two bounds.
    STALLED : a violation above alpha remains, but no step lowers the loss within rounding.
    STOPPED : the callback asked to stop, or the fit was interrupted.
    CHOSEN : `recalibrate` chose by cross-validation.
    """

    REACHED = "reached"
    LIMIT = "limit"
    PATIENCE = "patience"
    GUARDED = "guarded"
    NOISE = "noise"
    UNDECIDED = "undecided"
    STALLED = "stalled"
    STOPPED = "stopped"
    CHOSEN = "chosen"

    @property
    def sentence(self) -> str:
        """What this status means."""
        return _SENTENCES[self]


_SENTENCES = {
    Status.REACHED: "the supremum over the whole weight class is at most alpha for every subpopulation looked at",
    Status.LIMIT: "max_updates was reached before the notion held; raise max_updates or alpha",
    Status.PATIENCE: "the held-out rows stopped improving; the predictor is the best one on them",
    Status.GUARDED: "no further update lowers the loss on held-out rows (cross-fitted); give more rows to go further, "
    "or guard=False to fit these rows all the same",
    Status.NOISE: "what is left is no larger than chance would show in a perfect predictor",
    Status.UNDECIDED: "no violation above alpha was found, but the supremum is only known to lie between two bounds",
    Status.STALLED: "a violation above alpha remains, but no step lowers the loss within rounding; raise alpha",
    Status.STOPPED: "the callback asked to stop, or the fit was interrupted",
    Status.CHOSEN: "the shares of candidates that held-out rows support",
}

#: Labels are redrawn this often for listed subpopulations, and for a learner, which has to search anew in each.
DRAWS, DRAWS_TO_SEARCH = 40, 12
#: Points of the grid on which smooth weights see the predictions of redrawn labels.
COARSE = 256


class Watch:
    """What looks at a fit from outside and may stop it: held-out rows, or the guard; this one never does."""

    #: How a fit ends that the watch stopped.
    status = Status.LIMIT
    #: Steps that were undone.
    n_undone = 0

    @property
    def growths(self) -> list[list[Any]]:
        """The trees that learners of its own have grown; see `WeakLearner.growths`."""
        return []

    def keeps(self, step: Step) -> bool:
        """Whether a step is kept; the solver learns of those that are undone."""
        return True

    def figures(self, state: State) -> dict[str, float | None]:
        """Return the figures of held-out rows after a state, for its record; called once for each state kept."""
        return {}

    def is_over(self) -> bool:
        """Whether the fit should stop at the last state."""
        return False

    def best(self, n_updates: int) -> int:
        """Return how many of the updates are kept in the end."""
        return n_updates


class HeldOut(Watch):
    """The held-out rows: follow every update, measure, and run out of patience."""

    status = Status.PATIENCE

    def __init__(self, rows: Rows, problem: Problem, solver: SolverName) -> None:
        self.problem, self.rounds = replace(problem, rows=rows), PATIENCE[solver]
        self.has_violation = solver != "first"
        self._best_score, self._best, self._last = np.inf, 0, 0

    def figures(self, state: State) -> dict[str, float | None]:
        """Return the held-out figures; the solver "first" goes without the violation."""
        lost, violation = losses(self.problem.rows, state), None
        if self.has_violation and state is not START:
            violation = float(self.problem.measure(state, self.problem.alpha)[0].value.max())
        score = lost.brier if self.problem.geometry == "euclidean" else lost.log_loss
        self._last = state.n_updates
        if score < self._best_score - SLACK:
            self._best_score, self._best = score, self._last
        return {"held_out_violation": violation, "held_out_brier": lost.brier, "held_out_log_loss": lost.log_loss}

    def is_over(self) -> bool:
        """Whether the last `rounds` updates did not improve on the best."""
        return self._last - self._best >= self.rounds

    def best(self, n_updates: int) -> int:
        """Return the number of updates that are best on the held-out rows."""
        return self._best


def noise_floor(problem: Problem) -> float:
    """Return the 95th percentile of the supremum for labels redrawn from p itself: what chance alone shows.

    If f were perfect, y would be a draw from f; so redraw y ~ f, measure the supremum again, and repeat (spec 10.i.d).
    """
    draws = DRAWS if problem.learner.is_exact else DRAWS_TO_SEARCH
    return float(np.quantile([_redrawn(problem, (problem.seed, k)) for k in range(draws)], 0.95))


def _redrawn(problem: Problem, seed: Sequence[int]) -> float:
    """Return the largest supremum for redrawn labels; a learner that searches is asked anew.

    Smooth weights of a listed class see a coarse grid of predictions.
    """
    rows, learner = problem.rows.redrawn(START, seed), problem.learner
    if learner.is_exact and isinstance(problem.notion, Smooth):
        found = smooth_on_grid(rows, START, problem.families, COARSE)
        return float((found.value + found.upper).max() / 2.0)
    null = replace(problem, rows=rows, learner=learner if learner.is_exact else learner.fresh())
    explore(null, START)
    return float(null.suprema(START, np.inf).value.max())
