"""One fit: the loop that consumes a solver's stream of updates, and what it returns.

The loop knows nothing of the method: it records, asks the held-out rows, the callback and the limits, and at the end
reports what is true of the predictor on the fitted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lowcal.data.errors import FitInterrupted
from lowcal.data.inputs import Layout
from lowcal.data.progress import Progress
from lowcal.notions import Notion, Suprema
from lowcal.rows import START, State
from lowcal.rows.updates import Predictor
from lowcal.solve.solvers import SOLVERS, Problem, Step, are_within, bound, explore
from lowcal.solve.stopping import Status, Watch


@dataclass(frozen=True)
class Record:
    """The state after one update: figures of the fitted rows, and of held-out rows (None without these).

    `brier` is E||y - f||^2 and `log_loss` is E[-<y, log f>], with both outcomes of a binary problem. `violation` is the
    supremum over the class (for the solver "first": the violation that Algorithm 1 found next, and the supremum in the
    last record); for smooth weights of three classes or more it is one that a witness shows, until that is at most
    alpha.
    """

    n_updates: int
    violation: float
    brier: float
    log_loss: float
    held_out_violation: float | None = None
    held_out_brier: float | None = None
    held_out_log_loss: float | None = None


@dataclass(frozen=True)
class Candidate:
    """What one way to recalibrate does on held-out rows (cross-fitted).

    `log_loss` and `brier` are means; their errors are standard errors of the change from the untouched model.
    `violation` is the largest degree-2 violation of the groups looked at, `seconds` the time of one fit.
    """

    name: str
    log_loss: float
    log_loss_error: float
    brier: float
    brier_error: float
    auc: float
    violation: float
    seconds: float
    n_trees: int
    is_chosen: bool


class Candidates(tuple[Candidate, ...]):
    """The candidates of `recalibrate`, from simple to rich; prints as a table."""

    @property
    def chosen(self) -> Candidate:
        """The one that was fitted to all rows."""
        return next(one for one in self if one.is_chosen)

    def __str__(self) -> str:
        names = [("* " if one.is_chosen else "  ") + one.name + f" ({one.n_trees})" * (one.n_trees > 0) for one in self]
        width = max(26, *(len(name) + 1 for name in names))
        head = f"{'candidate':<{width}}{'log loss':>16}{'Brier score':>18}{'AUC':>8}{'violation':>11}{'seconds':>9}"
        return "\n".join([head, *(name.ljust(width) + self._line(one) for name, one in zip(names, self, strict=True))])

    @staticmethod
    def _line(one: Candidate) -> str:
        losses = f"{one.log_loss:.4f} +- {one.log_loss_error:.4f}", f"{one.brier:.4f} +- {one.brier_error:.4f}"
        return f"{losses[0]:>16}{losses[1]:>18}{one.auc:>8.4f}{one.violation:>11.4f}{one.seconds:>9.2g}"


@dataclass(frozen=True, eq=False)
class Fit:
    """What `multicalibrate` and `recalibrate` return.

    predictor : recalibrates the probabilities of any rows.
    status : how the fit ended (`Status`).
    history : a `Record` for every update.
    start : the `Record` before the first update.
    bound : the a-priori bound on the number of updates.
    n_oracle_calls : how often a weak learner was asked.
    notion, alpha, per_person : what was asked for; neither alpha nor per_person: as far as the rows allow.
    noise_floor : the violation that chance would show in a perfect predictor; None where it was not looked for.
    candidates : what each way to recalibrate does on held-out rows (`recalibrate` only).

    `violation` is attained by a witness on the fitted rows and `upper` is certified: the supremum lies between them,
    and they are equal wherever it is known exactly. `is_exact`: whether "no subpopulation" refers to the whole
    class or to what its learner found.
    """

    predictor: Predictor
    status: Status
    history: tuple[Record, ...] = field(repr=False)
    violation: float
    upper: float
    bound: int
    n_oracle_calls: int
    is_exact: bool
    notion: Notion
    alpha: float | None
    noise_floor: float | None = None
    per_person: float | None = None
    start: Record | None = field(default=None, repr=False)
    candidates: Candidates = field(default=Candidates(), repr=False)

    @property
    def goal(self) -> str:
        """What was asked for, in words."""
        if self.per_person is not None:
            return f"{self.notion} at per_person={self.per_person:g}"
        return (
            f"{self.notion} as far as the rows allow"
            if self.alpha is None
            else f"{self.notion} at alpha={self.alpha:g}"
        )

    @property
    def _held_out(self) -> tuple[float, float] | None:
        """The log loss on held-out rows before the first update and at the end; None where it was not looked for."""
        end = self.history[len(self.predictor) - 1] if len(self.predictor) else self.start
        if self.start is None or end is None or self.start.held_out_log_loss is None or end.held_out_log_loss is None:
            return None
        return self.start.held_out_log_loss, end.held_out_log_loss

    @property
    def cross_fitted(self) -> str:
        """What happened to the loss on held-out rows, in words; empty where it was not looked for."""
        return "" if self._held_out is None else " Log loss on held-out rows: {:.4g} -> {:.4g}.".format(*self._held_out)

    @property
    def n_updates(self) -> int:
        """How many updates the run made; after held-out stopping the predictor keeps the first `len(predictor)`."""
        return len(self.history)

    def __str__(self) -> str:
        if self.candidates:
            return (
                f"Chosen by cross-validation (*): {self.candidates.chosen.name}.{self.cross_fitted}\n{self.candidates}"
            )
        violation = f"{self.violation:.3g}"
        if self.upper > self.violation:
            violation += f" (certified to be at most {self.upper:.3g})"
        whose = "" if self.is_exact else " Subpopulations were found by a learner: others may exist."
        updates = "1 update" if self.n_updates == 1 else f"{self.n_updates} updates"
        if len(self.predictor) < self.n_updates:
            updates += f", of which the held-out rows keep {len(self.predictor)}"
        return (
            f"{self.goal}: {self.status.value} after {updates} "
            f"(bound {self.bound}), violation {violation} on the fitted rows: {self.status.sentence}."
            f"{self.cross_fitted}{whose}"
        )


@dataclass(eq=False)
class Run:
    """One fit: the loop that consumes the solver's stream."""

    problem: Problem
    solver: str
    layout: Layout
    watch: Watch
    max_updates: int | None
    callback: Callable[[Record], bool | None] | None
    floor: float | None
    keep: Callable[[Sequence[Step]], None] | None = None
    steps: list[Step] = field(default_factory=list)
    history: list[Record] = field(default_factory=list)

    def __call__(self, progress: bool) -> Fit:
        """Consume updates until the stream ends or a stop rule applies."""
        self.bound = bound(self.solver, self.problem)
        self.before = self._record(START)
        status = None
        with Progress(progress, self.problem.alpha) as bar:
            try:
                for step in self._kept_steps():
                    status = self._take(step)
                    bar.show(len(self.history), step.violation)
                    if status is not None:
                        break
            except KeyboardInterrupt:
                fit = self._finish(Status.STOPPED)
                raise FitInterrupted(
                    f"Interrupted after {len(self.history)} updates; they are kept in .fit.", fit
                ) from None
        return self._finish(status)

    def _kept_steps(self) -> Iterator[Step]:
        """Yield the solver's steps that the guard keeps; send the solver whether each was kept."""
        stream = SOLVERS[self.solver](self.problem, START)
        step = next(stream, None)
        while step is not None:
            is_kept = self.watch.keeps(step)
            if is_kept:
                yield step
            try:
                step = stream.send(is_kept)  # type: ignore[attr-defined]
            except StopIteration:
                return

    def _record(self, state: State) -> Record:
        lost = self.problem.losses(state)
        return Record(state.n_updates, np.nan, lost.brier, lost.log_loss, **self.watch.figures(state))

    def _take(self, step: Step) -> Status | None:
        """Record an update; return a status if it is time to stop."""
        if self.history:
            self.history[-1] = replace(self.history[-1], violation=step.violation)
        self.steps.append(step)
        if self.keep is not None:
            self.keep(self.steps)
        self.history.append(self._record(step.state))
        if self.callback is not None and self.callback(replace(self.history[-1], violation=step.violation)):
            return Status.STOPPED
        if self.watch.is_over():
            return self.watch.status
        if step.state.n_updates >= (self.bound if self.max_updates is None else self.max_updates):
            return Status.LIMIT
        return None

    def _finish(self, status: Status | None) -> Fit:
        """Measure once more, keep the best held-out predictor, and report what holds."""
        states = [START, *(step.state for step in self.steps)]
        self.end = states[-1]
        best = self.watch.best(len(self.history))
        if best < self.end.n_updates and status is not Status.STOPPED:
            status, self.end = self.watch.status, states[best]
        if status is Status.LIMIT:
            explore(self.problem, self.end)  # a learner that was cut short is asked once more before anything is said
        found = self.problem.suprema(self.end)
        if self.history:  # where the last update is not kept, this measures it as well
            last = self.problem.suprema(states[-1])
            self.history[-1] = replace(self.history[-1], violation=float(last.value.max()))
        learner, tolerance = self.problem.learner, self.problem.tolerance
        return Fit(
            Predictor(learner.encoder, self.end.updates, self.layout),
            self._status(found, status),
            tuple(self.history),
            float(found.value.max()),
            float(found.upper.max()),
            self.bound,
            learner.n_calls,
            learner.is_exact,
            self.problem.notion,
            None if self._is_open or tolerance is not None else self.problem.alpha,
            self.floor,
            None if tolerance is None else tolerance.per_person,
            self.before,
        )

    @property
    def _is_open(self) -> bool:
        """Whether the rows determine how far to go."""
        return self.problem.alpha == 0.0 or self.floor is not None

    def _status(self, found: Suprema, status: Status | None) -> Status:
        """Return what is true of the final predictor."""
        if status in (Status.PATIENCE, Status.STOPPED):
            return status
        if self.problem.alpha > 0.0 and are_within(found.upper, self.problem.limits):
            return Status.NOISE if self._is_open else Status.REACHED
        if status is not None:
            return status
        if self.watch.n_undone:
            return Status.GUARDED
        if self.problem.alpha == 0.0:
            return Status.NOISE
        return Status.UNDECIDED if are_within(found.value, self.problem.limits) else Status.STALLED
