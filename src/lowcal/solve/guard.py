"""The guard: an update is kept only if it lowers the loss on rows it was not fitted to, and keeps their order.

The rows are dealt into folds. Beside the fit on all rows, the same solver runs on the rows of all folds but one, for
each fold, and what it does there is applied to the fold. The loss of these predictions is an honest estimate of what
the fit does to fresh rows. A step of the block solver that does not lower it is undone, and so is one that leaves the
AUC below that of the start; the solvers that take many small steps run on while the loss falls, and keep the best
number of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.kernels.products import dot
from lowcal.kernels.simplex import FloatArray, Geometry, IntArray, auc, brier_losses, log_losses
from lowcal.rows import START, Rows, State
from lowcal.rows.base import FEW_ROWS
from lowcal.rows.keys import MANY_ROWS, Dealt, count, folds_of
from lowcal.solve.homes import Refit
from lowcal.solve.solvers import SOLVERS, Problem, Step
from lowcal.solve.stopping import Status, Watch

#: Fewer rows than this can't distinguish a gain from chance: nothing is kept.
LEAST_ROWS = 50
#: The first step is kept if the loss falls by more than this many standard errors of its change: benchmarks/harm.py.
#: Steps that were undone raise the bar (`caution`).
CAUTION = 2.0
#: A fit in log odds may lower the AUC on held-out rows by this much.
ORDER = 0.002
#: What the fit may cost on fresh rows, in expectation, if there is nothing but noise: below this no guard is needed.
HARMLESS = 2e-4
#: Weights of a class without finitely many count as this many.
INFINITE = 20


def is_harmless(problem: Problem) -> bool:
    """Whether the constraints are so few for the rows that to fit them all can do no harm of note.

    F coefficients fitted to noise cost F / (2 n) of log loss on fresh rows (Akaike). Learned classes are unlimited.
    """
    if not problem.learner.is_exact:
        return False
    weights = len(problem.features(START)) or INFINITE
    features = len(problem.learner.names) * weights * problem.d
    return bool(features / (2.0 * problem.n) < HARMLESS)


class FoldRun:
    """The solver on the rows outside a fold, and the predictions on the fold."""

    def __init__(self, problem: Problem, solver: str, held: Rows) -> None:
        self.held = held.sample(None)
        self.state = self.trial = START
        self.growths = problem.learner.growths
        self._stream = SOLVERS[solver](problem, START)
        self._is_tried = False

    @cached_property
    def _step(self) -> Step | None:
        """The next step, found on first use: by then a checkpoint may have restored the trees that were grown."""
        return next(self._stream, None)

    @property
    def tried(self) -> FloatArray:
        """The predictions on the fold after what is tried."""
        return self.held.at(self.trial)

    def propose(self, stage: tuple[int, ...]) -> None:
        """Try the solver's step of this stage on the fold, if it has one; steps of earlier stages are passed over."""
        while self._step is not None and self._step.stage < stage:
            self._answer(False)
        self._is_tried = self._step is not None and self._step.stage == stage
        self.trial = self._step.state if self._is_tried and self._step is not None else self.state

    def decide(self, is_kept: bool) -> None:
        """Keep what was tried, or undo it."""
        if is_kept:
            self.state = self.trial
        if self._is_tried:
            self._answer(is_kept)

    def _answer(self, is_kept: bool) -> None:
        try:
            self._step = self._stream.send(is_kept)  # type: ignore[attr-defined]
        except StopIteration:
            self._step = None


@dataclass(frozen=True, eq=False)
class FoldScores:
    """Losses of every judged row, and the predictions of every fold."""

    brier: FloatArray
    log_loss: FloatArray
    p: Sequence[FloatArray]


class Guard(Watch):
    """Judges every step of a fit by the same steps on the folds."""

    status = Status.GUARDED

    @property
    def growths(self) -> list[list[Any]]:
        """The trees that were grown for each fold."""
        return [grown for fold in self.folds for grown in fold.growths]

    def __init__(self, folds: Sequence[FoldRun], geometry: Geometry, rounds: int | None) -> None:
        self.folds, self.geometry = folds, geometry
        weight, unit = (np.concatenate([getattr(fold.held, of) for fold in folds]) for of in ("weight", "unit"))
        self.weight, self.unit = weight / weight.sum(), unit / weight.sum()
        self.chosen = self.now = self._scores()
        self.order = self._auc(self.now)
        self.rounds, self.best_score, self.n_best = rounds, dot(self.weight, self._watched(self.now)), 0
        self.n_kept, self.n_undone = 0, 0

    def keeps(self, step: Step) -> bool:
        """Try a step on every fold; return whether it is kept. A solver of small steps is judged in the end."""
        for fold in self.folds:
            fold.propose(step.stage)
        tried = self._scores()
        is_kept = self.rounds is not None or self._is_gain(self.now, tried)
        for fold in self.folds:
            fold.decide(is_kept)
        if is_kept:
            self.now, self.n_kept = tried, self.n_kept + 1
        else:
            self.n_undone += 1
        return is_kept

    def is_over(self) -> bool:
        """Whether a solver of small steps has run out of patience; the best number of them is remembered."""
        if self.rounds is None:
            return False
        score = dot(self.weight, self._watched(self.now))
        if score < self.best_score and self._is_gain(self.chosen, self.now):
            self.chosen, self.best_score, self.n_best = self.now, score, self.n_kept
        return self.n_kept - self.n_best >= self.rounds

    def best(self, n_updates: int) -> int:
        """Return the best number of small steps; of others, all that were kept."""
        return n_updates if self.rounds is None else self.n_best

    def figures(self, state: State) -> dict[str, float | None]:
        """Return the cross-fitted figures of a record."""
        losses = {"held_out_brier": self.now.brier, "held_out_log_loss": self.now.log_loss}
        return {name: dot(self.weight, each) for name, each in losses.items()}

    def _is_gain(self, before: FoldScores, after: FoldScores) -> bool:
        """Whether the mean loss falls by more standard errors of its change than caution asks, and order is kept.

        Euclidean steps clip to 0 and 1, where order is lost: there the loss alone decides.
        """
        mean, error = mean_change(self._watched(before), self._watched(after), self.weight, self.unit)
        are_enough = dot(self.weight, self.unit) * LEAST_ROWS <= 1.0
        is_lower = mean < -caution(self.n_undone) * error
        return are_enough and is_lower and (self.geometry == "euclidean" or self._auc(after) >= self.order - ORDER)

    def _auc(self, scores: FoldScores) -> float:
        """Return the mean AUC within the folds: each has its own fit, and their levels differ."""
        each = [auc(p, fold.held.y, fold.held.weight) for p, fold in zip(scores.p, self.folds, strict=True)]
        return float(np.mean(each))

    def _watched(self, scores: FoldScores) -> FloatArray:
        return scores.brier if self.geometry == "euclidean" else scores.log_loss

    def _scores(self) -> FoldScores:
        each = [fold.tried for fold in self.folds]
        p, y = np.concatenate(each), np.concatenate([fold.held.y for fold in self.folds])
        return FoldScores(brier_losses(p, y), log_losses(p, y), each)


def caution(n_undone: int) -> float:
    """Return how many standard errors a gain must exceed after n_undone steps that were undone.

    Every step that shows nothing is one more chance to be fooled. The largest of k + 1 normal deviates exceeds
    sqrt(z^2 + 2 log(k + 1)) no more often, to leading order, than a single one exceeds z.

    >>> [round(caution(k), 2) for k in range(4)]
    [2.0, 2.32, 2.49, 2.6]
    """
    return float(np.sqrt(CAUTION**2 + 2.0 * np.log1p(n_undone)))


def mean_change(
    before: FloatArray, after: FloatArray, weight: FloatArray, unit: FloatArray | None = None
) -> tuple[float, float]:
    """Return the mean change of the losses of rows and its standard error, for weights that sum to one.

    `unit` are the weights of single copies, where rows stand for several.
    """
    gap = after - before
    mean = dot(weight, gap)
    return mean, float(np.sqrt(dot(weight * (weight if unit is None else unit), np.square(gap - mean))))


def make_guard(problem: Problem, solver: str, rounds: int | None, share: float, refit: Refit) -> Guard | None:
    """Return the guard of a fit; None where rows are too few to deal. `refit` gives each fold a class of its own."""
    folds, n = [], problem.rows.count
    n_folds, n_judged = _count_folds(n, share, FEW_ROWS)
    for k in range(n_judged):
        outside, inside = (Dealt((problem.seed, n_folds), n, n_folds, k, is_inside) for is_inside in (False, True))
        if count(inside, n) in (0, n):
            continue
        try:
            learner, fitted, held = refit(outside, inside)
        except InvalidInput:  # no group is left on the rows of this fold
            continue
        # what is left of violations matters to the fit on all rows alone
        own = replace(problem, rows=fitted, learner=learner, is_measured=problem.alpha > 0.0, past=())
        folds.append(FoldRun(own, solver, held))
    return Guard(folds, problem.geometry, rounds) if folds else None


def deal(weight: FloatArray, share: float, seed: int, judged: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the fitted and the held-out rows of each fold, of as many folds as hold `judged` rows.

    Rows without weight belong to none.
    """
    rows = np.flatnonzero(weight)
    n_folds, n_judged = _count_folds(len(rows), share, judged)
    fold = folds_of((seed, n_folds), len(rows), n_folds, 0, len(rows))
    for k in range(n_judged):
        held = fold == k
        if held.any() and not held.all():
            yield rows[~held], rows[held]


def _count_folds(n: int, share: float, judged: int) -> tuple[int, int]:
    """Return how many folds n rows are dealt into, and how many of these hold `judged` rows.

    A fold holds that share of the rows, but never more than can be looked at at once.
    """
    n_folds = max(2, round(1.0 / share), -(-n // MANY_ROWS))
    return n_folds, int(np.clip(np.ceil(n_folds * judged / max(1, n)), 1, n_folds))
