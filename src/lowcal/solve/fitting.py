"""One fit: `multicalibrate`, the loop that consumes a solver's stream of updates, and what it returns.

The loop knows nothing of the method: it records, asks the held-out rows, the callback and the limits, and at the end
reports what is true of the predictor on the fitted rows.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from lowcal.data.errors import FitInterrupted, FitWarning, InvalidInput, suggest
from lowcal.data.inputs import Layout, check_fit, check_share, check_whole, read_rows
from lowcal.data.progress import Passes, Progress
from lowcal.kernels.simplex import SMALLEST, Geometry
from lowcal.notions import Notion, Suprema, parse_notion
from lowcal.rows import START, State
from lowcal.rows.updates import Predictor
from lowcal.solve.homes import Home, open_home, read_class, read_random_state
from lowcal.solve.solvers import (
    MIN_SHARE,
    PATIENCE,
    SOLVERS,
    Problem,
    SolverName,
    Step,
    Tolerance,
    are_within,
    bound,
    explore,
    is_number,
    is_shrunk,
)
from lowcal.solve.stopping import Checkpoint, HeldOut, Status, Watch, is_harmless, make_guard, noise_floor
from lowcal.subpopulations import Private
from lowcal.subpopulations.base import ClassChoice

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def multicalibrate(
    y: ArrayLike,
    p: ArrayLike,
    X: object = None,
    *,
    subpopulations: ClassChoice = None,
    notion: str | Notion = "degree-2",
    alpha: float | None = None,
    per_person: float | None = None,
    min_share: float = MIN_SHARE,
    solver: SolverName = "block",
    geometry: Geometry | None = None,
    step: float | None = None,
    sample_weight: ArrayLike | None = None,
    frequency_weight: ArrayLike | None = None,
    guard: bool | float = True,
    validation_fraction: float = 0.0,
    max_updates: int | None = None,
    callback: Callable[[Record], bool | None] | None = None,
    progress: bool = False,
    random_state: int | np.random.Generator | None = None,
    classes: Sequence[Any] | None = None,
    memory: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Fit:
    """Recalibrate the probabilities p of any classifier on every subpopulation, as far as that helps on fresh rows.

    max over c in C and w in W of |E[c(x) <w(f(x)), y - f(x)>]| <= alpha, the supremum over the WHOLE class W.
    Paper: Algorithm 1 and Lemma 5.3; the solvers "worst" and "block" keep its bound (spec 4.4).

    Parameters
    ----------
    y : labels (n,), or numbers in [0, 1] for bounded outcomes; or the name of a column of X.
    p : probabilities, (n,) or (n, 2) for binary, (n, l) for l classes; or the name of a column, one for each class.
    X : what the subpopulations are functions of: pandas, polars, pyarrow, NumPy, SciPy sparse, dict of columns; or,
        with names for y and p, a Parquet or Arrow file, a folder, a glob, a list of files, an Arrow dataset, a polars
        LazyFrame, a function that returns an iterator of tables. Rows that do not fit into `memory` stay on disk. Or,
        with names, a Dask frame, a list of delayed frames, a Ray dataset or a Spark frame: their rows stay on the
        cluster of the active Dask client, of Ray or of the Spark session.
    subpopulations : the class C; a list of columns, or a dictionary of their cut points, is `Groups` of these; None:
        the groups of a table's columns, trees on a bare array. `Private(...)` brings its own solver and step: the
        arguments solver, geometry, step, per_person and validation_fraction keep their defaults, there is no guard, and
        what is returned is a `PrivateFit`.
    notion : "multiaccuracy", "degree-2", "smooth", "full-0.1", or a notion.
    alpha : the largest violation that may remain: of E over all rows, so a group of mass 0.1 may be off by 10 alpha.
        None: as far as the rows allow, that is, until what is left is noise.
    per_person : instead of alpha, the largest error for each member on average: alpha_c = per_person * mass of c.
    min_share : `per_person` holds in subpopulations that are at least this share of the population.
    solver : "first" (Algorithm 1 as printed), "worst" (largest violation first), "block" (all constraints at once).
    geometry : "mirror" (add in log space; log loss is its potential) or "euclidean" (add and project: the paper).
        None: "mirror", but "euclidean" for the solver "first". With "mirror", block steps are shrunk by
        empirical Bayes, from everyone to single conditions to their conjunctions.
    step : for "first" the step size, at most alpha (None: alpha / (2d)); otherwise a share in (0, 1) of the Newton
        step (shrinkage), or None or 1 for a line search.
    sample_weight : weights of the rows, not negative; or the name of a column.
    frequency_weight : how many rows each row stands for, whole numbers, as in a table of `cells`; or the name of a
        column. The fit is that of all these rows, each with the `sample_weight` of its row. Classes that are learned
        from outcomes (Trees, Linear, Regressor) and `Private` need the rows themselves.
    guard : keep an update only if it lowers the loss on rows it was not fitted to, and keeps their order: the fit is
        repeated on four fifths of the rows, five times (fewer where rows are many, not at all where constraints are few
        for the rows). A number is the share that each fold holds out (True: 0.2). False: fit the rows whatever it does
        to others, for study; steps towards a given target are then hardly shrunk.
    validation_fraction : share of the rows that is held out to stop early, instead of the guard, once their loss has
        not fallen for 3 updates ("worst": 20, "first": 100); 0 fits on all rows.
    max_updates : stop after this many updates; None: the a-priori bound.
    callback : called with a `Record` after every update (its violation is the one the update was made for, as the
        next is not known yet); return True to stop.
    progress : show a progress bar (needs tqdm, else plain lines on standard error).
    random_state : seed of the held-out split and of subsamples; without one, only the held-out split is left to chance.
    classes : names of the columns of p, where the values of y do not determine them.
    memory : bytes that rows may take, if they come from files or other sources; None: a quarter of the machine's. More
        rows are encoded into a temporary file of a few bytes a row, and the fit is the same to the last bit.
    checkpoint : a file to which the updates are written as they come, each time at once; `load` reads it as a model.
    resume : go on from the checkpoint, if there is one: the same fit, to the last bit, as if nothing had happened. What
        a learner finds is computed anew.

    Examples
    --------
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(5000, random_state=0)
    >>> fit = multicalibrate(data.y, data.p, data.X, alpha=0.01)
    >>> fit.status.value, fit.n_updates <= 5
    ('reached', True)
    >>> calibrated = fit.predictor(data.p, data.X)
    """
    options = Options(
        subpopulations=subpopulations,
        notion=notion,
        alpha=alpha,
        per_person=per_person,
        min_share=min_share,
        solver=solver,
        geometry=geometry,
        step=step,
        guard=guard,
        validation_fraction=validation_fraction,
        max_updates=max_updates,
        callback=callback,
        progress=progress,
        memory=memory,
        checkpoint=checkpoint,
        resume=resume,
    )
    return fit_rows(y, p, X, sample_weight, classes, options, random_state, frequency_weight)


def fit_rows(
    y: ArrayLike,
    p: ArrayLike,
    X: object,
    sample_weight: ArrayLike | None,
    classes: Sequence[Any] | None,
    options: Options,
    random_state: int | np.random.Generator | None,
    frequency_weight: ArrayLike | None = None,
) -> Fit:
    """Return the fit that the options ask for: read the rows, state the problem, watch, run, and report what holds."""
    rng = read_random_state(random_state)
    if isinstance(options.subpopulations, Private):
        from lowcal.solve.private import fit_privately  # a fit of its own, which few need

        if frequency_weight is not None:
            raise InvalidInput("Private(...) protects every row by itself: give all rows, without frequency_weight.")
        outcomes, table = read_rows(y, p, X, sample_weight, classes)
        check_fit(outcomes)
        return fit_privately(options.subpopulations, outcomes, table, options, rng)
    # without a seed, chance enters the held-out rows alone: equal calls should give equal predictors
    seed = 0 if random_state is None else int(rng.integers(2**31))
    given, share = (y, p, X, sample_weight, classes, options.subpopulations), options.validation_fraction
    with closing(Passes(options.progress)) as bar:
        chance = (int(rng.integers(2**31)),)
        home = open_home(*given, seed, options.memory, bar, share, chance, frequency_weight=frequency_weight)
        problem, floor = _state(home, options, seed)
        problem, watch = _watch(problem, home, options)
        problem, keep = _remember_steps(problem, watch, home, options)
        run = Run(problem, options.solver, home.layout, watch, options.max_updates, options.callback, floor, keep)
        fit = run(options.progress and home.rows.is_near)
    _warn_of_harm(fit, problem.losses(run.end).sure, problem.rows.scale.n)
    if fit.predictor.updates:
        home.remember(fit.predictor, run.end)
    return fit


def _state(home: Home, options: Options, seed: int) -> tuple[Problem, float | None]:
    """Return what the solver is to solve, and the noise floor where that is the target."""
    # what trees boosted in another geometry offer could not be taken
    default: Geometry = "euclidean" if options.solver == "first" else home.learner.geometry or "mirror"
    problem = Problem(
        home.rows,
        parse_notion(options.notion),
        home.learner,
        options.target,
        options.geometry or default,
        step=options.step,
        seed=seed,
        tolerance=None if options.per_person is None else Tolerance(None, options.per_person, options.min_share),
        is_study=options.guard is False and options.target > 0.0,
    )
    if problem.alpha > 0.0 or (options.solver == "block" and is_shrunk(problem)):
        return problem, None
    floor = noise_floor(problem)
    return replace(problem, alpha=max(floor, SMALLEST)), floor


def _watch(problem: Problem, home: Home, options: Options) -> tuple[Problem, Watch]:
    """Return the held-out rows or the guard that watch the fit, where it needs one."""
    if home.held is not None:
        return problem, HeldOut(home.held, problem, options.solver)
    if not options.guard or is_harmless(problem):
        return problem, Watch()
    problem, rounds = replace(problem, is_guarded=True), None if options.solver == "block" else PATIENCE[options.solver]
    guard = make_guard(problem, options.solver, rounds, options.fold_share, home.refit)
    return problem, guard or Watch()


def _remember_steps(
    problem: Problem, watch: Watch, home: Home, options: Options
) -> tuple[Problem, Callable[[Sequence[Any]], None] | None]:
    """Return the problem with the steps of a checkpoint to go on from, and what writes steps there."""
    if options.checkpoint is None:
        return problem, None
    growths = (*problem.learner.growths, *watch.growths)
    kept = Checkpoint(options.checkpoint, problem, options.solver, home.layout, growths)
    problem = kept.resumed(problem) if options.resume else problem
    return problem, partial(kept.write, problem)


def _warn_of_harm(fit: Fit, sure: int, n: int) -> None:
    """Warn where a fit made `sure` of n probabilities exactly 0 or 1, or raised the loss on held-out rows."""
    before, after = fit._held_out or (0.0, 0.0)
    certain = (
        f"{sure:,} of {n:,} calibrated predictions are exactly 0 or 1, which one wrong label makes infinitely wrong; "
        'use geometry="mirror", a larger alpha or more rows.'
    )
    harmful = (
        f"The log loss on held-out rows rose from {before:.4g} to {after:.4g}: leave the model as it is, or use "
        'geometry="mirror", a larger alpha or more rows.'
    )
    for message, is_true in ((certain, sure > 0), (harmful, after > before)):
        if is_true:
            warnings.warn(message, FitWarning, stacklevel=3)


# --- what is asked for ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `multicalibrate` and the estimators are asked for, checked once; their docstrings explain each option."""

    subpopulations: ClassChoice = None
    notion: str | Notion = "degree-2"
    alpha: float | None = None
    per_person: float | None = None
    min_share: float = MIN_SHARE
    solver: SolverName = "block"
    geometry: Geometry | None = None
    step: float | None = None
    guard: bool | float = True
    validation_fraction: float = 0.0
    max_updates: int | None = None
    callback: Callable[[Any], bool | None] | None = None
    progress: bool = False
    memory: int | None = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        """Refuse options that have no meaning, before any work is done."""
        object.__setattr__(self, "subpopulations", read_class(self.subpopulations))
        Tolerance(self.alpha, self.per_person, self.min_share)
        self._check_words()
        if self.step is not None and (not is_number(self.step) or not 0 < float(self.step) <= 1):
            raise InvalidInput(f"step must be None or a number in (0, 1], but {self.step!r} was given.")
        check_share("validation_fraction", self.validation_fraction)
        check_share("guard", self.fold_share)
        for name in ("max_updates", "memory"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        if self.callback is not None and not callable(self.callback):
            raise InvalidInput(f"callback must be a function of a Record, but {self.callback!r} was given.")
        if self.resume and self.checkpoint is None:
            raise InvalidInput("resume=True needs the file to go on from: pass checkpoint=path as well.")
        parse_notion(self.notion)
        if isinstance(self.subpopulations, Private):
            self._check_private()

    @property
    def target(self) -> float:
        """The number that violations are held to; 0: as far as the rows allow."""
        given = self.alpha if self.per_person is None else self.per_person
        return 0.0 if given is None else float(given)

    @property
    def fold_share(self) -> float:
        """The share of the rows that each fold of the guard holds out; 0: there is no guard."""
        return 0.2 * self.guard if isinstance(self.guard, bool) else self.guard

    def _check_words(self) -> None:
        for name, given, words in (
            ("solver", self.solver, tuple(SOLVERS)),
            ("geometry", self.geometry, get_args(Geometry)),
        ):
            if given not in words and (name, given) != ("geometry", None):
                raise InvalidInput(f"Unknown {name} {given!r}; valid: {', '.join(words)}.{suggest(str(given), words)}")
        if self.solver == "first" and self.geometry == "mirror":
            raise InvalidInput(
                'The solver "first" is the paper\'s Euclidean algorithm; use "worst" or "block" with geometry="mirror".'
            )
        if self.solver == "first" and self.per_person is not None:
            raise InvalidInput('The solver "first" knows one alpha only; use "block" or "worst" with per_person.')

    def _check_private(self) -> None:
        defaults = {
            "solver": "block",
            "geometry": "euclidean",
            "step": None,
            "per_person": None,
            "validation_fraction": 0,
        }
        for name, default in defaults.items():
            given = getattr(self, name)
            if given != default and not (name == "geometry" and given is None):
                raise InvalidInput(
                    f"Private(...) brings its own solver, step and stop rule, so {name} must be left at {default!r}, "
                    f"but is {given!r}. Pass {name}={default!r}."
                )


# --- the loop, and what it returns ----------------------------------------------------------------------------


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
        return f"{self.notion} " + ("as far as the rows allow" if self.alpha is None else f"at alpha={self.alpha:g}")

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
            chosen = f"Chosen by cross-validation (*): {self.candidates.chosen.name}.{self.cross_fitted}"
            return f"{chosen}\n{self.candidates}"
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
                message = f"Interrupted after {len(self.history)} updates; they are kept in .fit."
                raise FitInterrupted(message, fit) from None
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
