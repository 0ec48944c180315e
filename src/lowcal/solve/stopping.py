"""What follows a fit from outside: when to stop, what to undo, what is then true, and where to go on.

All are consumers of a stream of updates: held-out rows, the guard, and checkpoints.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from time import monotonic
from typing import Any

import numpy as np

from lowcal.data import checked_json
from lowcal.data.checked_json import Plain, Pool, packed
from lowcal.data.errors import DamagedFile, InvalidInput, sentence
from lowcal.data.files import atomic_write, check_path
from lowcal.data.inputs import Layout
from lowcal.kernels.products import dot
from lowcal.kernels.simplex import FloatArray, Geometry, IntArray, auc, brier_losses, log_losses
from lowcal.notions.smooth import Smooth
from lowcal.rows import START, Rows, State
from lowcal.rows.base import FEW_ROWS
from lowcal.rows.documents import read_predictor, write_predictor
from lowcal.rows.grids import smooth_on_grid
from lowcal.rows.keys import MANY_ROWS, Dealt, count, folds_of
from lowcal.rows.updates import Predictor, Update
from lowcal.solve.blocks import SLACK
from lowcal.solve.homes import Refit
from lowcal.solve.solvers import PATIENCE, SOLVERS, Problem, SolverName, Step, explore
from lowcal.subpopulations.growing import Forest


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
        lost, violation = self.problem.losses(state), None
        if self.has_violation and state is not START:
            violation = float(self.problem.measure(state, self.problem.alpha)[0].value.max())
        score, self._last = self.problem.loss(state), state.n_updates
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
    draws = 40 if problem.learner.is_exact else 12  # a learner has to search anew in each
    return float(np.quantile([_redrawn(problem, (problem.seed, k)) for k in range(draws)], 0.95))


def _redrawn(problem: Problem, seed: Sequence[int]) -> float:
    """Return the largest supremum for redrawn labels; a learner that searches is asked anew.

    Smooth weights of a listed class see a coarse grid of predictions, of 256 points.
    """
    rows, learner = problem.rows.redrawn(START, seed), problem.learner
    if learner.is_exact and isinstance(problem.notion, Smooth):
        found = smooth_on_grid(rows, START, problem.families, 256)
        return float((found.value + found.upper).max() / 2.0)
    null = replace(problem, rows=rows, learner=learner if learner.is_exact else learner.fresh())
    explore(null, START)
    return float(null.suprema(START, np.inf).value.max())


# --- the guard ------------------------------------------------------------------------------------------------

#: Fewer rows than this can't distinguish a gain from chance: nothing is kept.
LEAST_ROWS = 50
#: The first step is kept if the loss falls by more than this many standard errors of its change: benchmarks/harm.py.
#: Steps that were undone raise the bar (`caution`).
CAUTION = 2.0
#: A fit in log odds may lower the AUC on held-out rows by this much.
ORDER = 0.002


def is_harmless(problem: Problem) -> bool:
    """Whether the constraints are so few for the rows that to fit them all can do no harm of note.

    F coefficients fitted to noise cost F / (2 n) of log loss on fresh rows (Akaike), which may be 2e-4. Weights of an
    infinite class count as 20. Learned classes are unlimited.
    """
    if not problem.learner.is_exact:
        return False
    features = len(problem.learner.names) * (len(problem.features(START)) or 20) * problem.d
    return bool(features / (2.0 * problem.n) < 2e-4)


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
    """The guard: an update is kept only if it lowers the loss on rows it was not fitted to, and keeps their order.

    The rows are dealt into folds. Beside the fit on all rows, the same solver runs on the rows of all folds but one,
    for each fold, and what it does there is applied to the fold. The loss of these predictions is an honest estimate of
    what the fit does to fresh rows. A step of the block solver that does not lower it is undone, and so is one that
    leaves the AUC below that of the start; the solvers that take many small steps run on while the loss falls, and keep
    the best number of them.
    """

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


# --- checkpoints ----------------------------------------------------------------------------------------------


class Checkpoint:
    """The file of a fit's updates as they come, so that a fit that was killed continues where it was.

    The updates are all that a fit knows, beside the trees that its learners, and those of the folds, have grown. A
    checkpoint is a saved model of the updates made so far, with these trees, what the solver needs to go on, and a
    fingerprint of the rows and the options: that of another fit is refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        problem: Problem,
        solver: str,
        layout: Layout,
        growths: Sequence[list[Any]] = (),
    ) -> None:
        self.path, self.layout, self.growths = check_path(path), layout, growths
        self.fingerprint = fingerprint(problem, solver, layout)
        self._written: float | None = None

    def write(self, problem: Problem, steps: Sequence[Step]) -> None:
        """Write all updates so far, at once or not at all; after 20 updates, those of a second are written together."""
        if len(steps) > 20 and self._written is not None and monotonic() - self._written < 1.0:
            return
        end = steps[-1].state if steps else START
        model = write_predictor(Predictor(problem.learner.encoder, end.updates, self.layout))
        plan = [[list(step.stage), step.violation.hex(), step.progress.hex()] for step in steps]
        metadata = {"checkpoint": self.fingerprint, "steps": plan, "grown": _write_grown(self.growths, model)}
        with atomic_write(self.path) as file:
            file.write(checked_json.write_document(model, metadata))
        self._written = monotonic()

    def resumed(self, problem: Problem) -> Problem:
        """Return the problem with the steps of the file, if there is one; the learners get the trees they had grown."""
        if not os.path.exists(self.path):
            return problem
        updates, forests, metadata = self._read()
        for own, places in zip(self.growths, metadata.get("grown", ()), strict=False):
            own += [[forests[k] for k in each] for each in places]
        past, state = [], START
        for update, (stage, violation, progress) in zip(updates, metadata["steps"], strict=True):
            state = state.then(update)
            past.append(Step(state, float.fromhex(violation), float.fromhex(progress), tuple(stage)))
        return replace(problem, past=tuple(past))

    def _read(self) -> tuple[Sequence[Update], list[Forest], dict[str, Any]]:
        """Return the updates, the forests and the metadata of the file, which must be that of this fit."""
        try:
            with open(self.path, "rb") as file:
                parts = checked_json.read_document(file.read())
            updates = read_predictor(Plain(parts["model"], "model")).updates
            forests = [Forest.from_dict(one) for one in Plain(parts["model"]["forests"], "forests").items()]
        except (OSError, DamagedFile) as error:
            raise InvalidInput(sentence(f"The checkpoint {self.path} can't be read: {error}")) from error
        if parts["metadata"].get("checkpoint") != self.fingerprint:
            raise InvalidInput(
                f"{self.path} is not a checkpoint of this fit: its rows or options differ. Give another path, or "
                "resume=False to begin anew and replace it."
            )
        return updates, forests, parts["metadata"]


def _write_grown(growths: Sequence[list[Any]], model: dict[str, Any]) -> list[Any]:
    """Return the trees of every learner by their places among the forests of a model, to which they are added."""
    pool = Pool()
    for forest in model["forests"]:
        pool.place(forest)
    model["forests"] = pool.values
    return [[[packed(one.to_dict(), pool) for one in each] for each in grown] for grown in growths]


def fingerprint(problem: Problem, solver: str, layout: Layout) -> str:
    """Return what identifies a fit: rows by their exact losses at the start, the class by its names, the options."""
    lost, rows = problem.losses(START), problem.rows
    parts = [
        rows.scale.n, rows.scale.most.hex(), rows.worth.hex(), lost.brier.hex(), lost.log_loss.hex(), layout.to_dict(),
        str(problem.notion), problem.alpha.hex(), problem.geometry, problem.step, problem.seed,
        repr(problem.tolerance), problem.is_guarded, problem.is_study, solver, problem.learner.names,
    ]  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()
