"""`multicalibrate`: consume a solver's updates until the notion holds, and say what was reached."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lowcal.data.errors import FitWarning, InvalidInput, suggest
from lowcal.data.inputs import check_fit, check_share, check_whole, read_rows
from lowcal.data.progress import Passes
from lowcal.kernels.simplex import SMALLEST, Geometry
from lowcal.notions import Notion, parse_notion
from lowcal.solve.checkpoints import Checkpoint
from lowcal.solve.guard import SHARE, is_harmless, make_guard
from lowcal.solve.homes import open_home
from lowcal.solve.private_runs import check_private, fit_privately
from lowcal.solve.runs import Fit, HeldOut, Record, Run
from lowcal.solve.solvers import SOLVERS, Problem, is_shrunk
from lowcal.solve.stopping import Monitor, noise_floor
from lowcal.solve.tolerances import ALPHA, MIN_SHARE, Tolerance
from lowcal.subpopulations import Private, Subpopulations
from lowcal.subpopulations.base import WeakLearner

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

SolverName = Literal["first", "worst", "block"]
#: Held-out rounds without improvement before stopping: the steps of the three solvers differ in size.
PATIENCE = {"first": 100, "worst": 20, "block": 3}


def multicalibrate(
    y: ArrayLike,
    p: ArrayLike,
    X: object = None,
    *,
    subpopulations: Subpopulations | None = None,
    notion: str | Notion = "degree-2",
    alpha: float | None = None,
    per_person: float | None = None,
    min_share: float = MIN_SHARE,
    solver: SolverName = "block",
    geometry: Geometry | None = None,
    step: float | Literal["newton"] | None = None,
    sample_weight: ArrayLike | None = None,
    guard: bool | float = True,
    validation_fraction: float = 0.0,
    max_updates: int | None = None,
    callback: Callable[[Record], bool | None] | None = None,
    progress: bool = False,
    random_state: int | np.random.Generator | None = None,
    classes: Sequence[Any] | None = None,
    monitor: Monitor | None = None,
    patience: int | None = None,
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
        LazyFrame, a function that returns an iterator of tables. Rows that do not fit into `memory` stay on disk.
    subpopulations : the class C; None: the groups of a table's columns, trees on a bare array. `Private(...)` brings
        its own solver and step: the arguments solver, geometry, step, per_person, validation_fraction, monitor and
        patience keep their defaults, there is no guard, and what is returned is a `PrivateFit`.
    notion : "multiaccuracy", "degree-2", "smooth", "full-0.1", or a notion.
    alpha : the largest violation that may remain: of E over all rows, so a group of mass 0.1 may be off by 10 alpha.
        None: as far as the rows allow, that is, until what is left is noise.
    per_person : instead of alpha, the largest error for each member on average: alpha_c = per_person * mass of c.
    min_share : `per_person` holds in subpopulations that are at least this share of the population.
    solver : "first" (Algorithm 1 as printed), "worst" (largest violation first), "block" (all constraints at once).
    geometry : "mirror" (add in log space; log loss is its potential) or "euclidean" (add and project: the paper).
        None: "mirror", but "euclidean" for the solver "first". With "mirror", block steps are shrunk by what the rows
        themselves say (empirical Bayes), from everyone to single conditions to their conjunctions.
    step : for "first" the step size, at most alpha (None: alpha / (2d)); otherwise a share in (0, 1] of the Newton
        step (shrinkage), "newton" for the Newton step, None for a line search.
    sample_weight : weights of the rows, not negative; or the name of a column.
    guard : keep an update only if it lowers the loss on rows it was not fitted to, and keeps their order: the fit is
        repeated on four fifths of the rows, five times (fewer where rows are many, not at all where constraints are few
        for the rows). A number is the share that each fold holds out (True: 0.2). False: fit the rows whatever it does
        to others, for study; steps towards a given target are then hardly shrunk.
    validation_fraction : share of the rows that is held out to stop early, instead of the guard; 0 fits on all rows.
    max_updates : stop after this many updates; None: the a-priori bound.
    callback : called with a `Record` after every update (its violation is the one the update was made for, as the
        next is not known yet); return True to stop.
    progress : show a progress bar (needs tqdm, else plain lines on standard error).
    random_state : seed of the held-out split and of subsamples; without one, only the held-out split is left to chance.
    classes : names of the columns of p, where the values of y do not tell.
    monitor : what is watched on held-out rows: "brier", "log_loss" or "violation"; None: the geometry's own loss.
    patience : held-out updates without improvement before stopping; None: 100, 20 and 3 for the three solvers.
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
    tolerance = Tolerance(alpha, per_person, min_share)
    check_options(solver, geometry, step, validation_fraction, max_updates, monitor, patience, callback)
    check_share("guard", float(guard) if isinstance(guard, bool) and not guard else SHARE if guard is True else guard)
    if resume and checkpoint is None:
        raise InvalidInput("resume=True needs the file to go on from: pass checkpoint=path as well.")
    if solver == "first" and per_person is not None:
        raise InvalidInput('The solver "first" knows one alpha only; use "block" or "worst" with per_person.')
    notion = parse_notion(notion)
    rng = read_random_state(random_state)
    if isinstance(subpopulations, Private):
        check_private(solver, geometry or "euclidean", step, per_person, validation_fraction, monitor, patience)
        outcomes, table = read_rows(y, p, X, sample_weight, classes)
        check_fit(outcomes)
        target = ALPHA if alpha is None else alpha
        return fit_privately(subpopulations, outcomes, table, notion, target, max_updates, callback, progress, rng)
    # without a seed, chance enters the held-out rows alone: equal calls should give equal predictors
    seed = 0 if random_state is None else int(rng.integers(2**31))
    given = (y, p, X, sample_weight, classes, subpopulations)
    with closing(Passes(progress)) as bar:
        home = open_home(*given, seed, memory, bar, validation_fraction, (int(rng.integers(2**31)),))
        geometry = geometry or _best_geometry(solver, home.learner)
        problem = Problem(home.rows, notion, home.learner, 0.0 if alpha is None else float(alpha), geometry, seed=seed)
        problem = replace(problem, step=None if step == "newton" else step, newton_only=step == "newton")
        if per_person is not None:
            problem = replace(problem, alpha=float(per_person), tolerance=tolerance)
        problem = replace(problem, is_study=guard is False and problem.alpha > 0.0)
        floor = None
        if problem.alpha == 0.0 and not (solver == "block" and is_shrunk(problem)):
            floor = noise_floor(problem)
            problem = replace(problem, alpha=max(floor, SMALLEST))
        watch = watched = None
        rounds = patience or PATIENCE[solver]
        if home.held is not None:
            watch = HeldOut(home.held, monitor or ("brier" if geometry == "euclidean" else "log_loss"), rounds)
        elif guard and not is_harmless(problem):
            problem, share = replace(problem, is_guarded=True), SHARE if guard is True else float(guard)
            watched = make_guard(problem, solver, None if solver == "block" else rounds, share, home.refit)
        keep = None
        if checkpoint is not None:
            kept = Checkpoint.of(checkpoint, problem, solver, home.layout)
            problem = replace(problem, past=kept.read() if resume else ())
            keep = partial(kept.write, problem)
        run = Run(problem, solver, home.layout, watch, watched, max_updates, callback, floor, keep)
        fit = run(progress and not home.is_far)
    _warn_of_harm(fit, problem.losses(run.end).sure, problem.rows.scale.n)
    if fit.predictor.updates:
        home.remember(fit.predictor, run.end)
    return fit


def _warn_of_harm(fit: Fit, sure: int, n: int) -> None:
    """Warn where a fit made `sure` of n probabilities exactly 0 or 1, or raised the loss on held-out rows."""
    if sure:
        warnings.warn(
            f"{sure:,} of {n:,} calibrated predictions are exactly 0 or 1, which one wrong label makes "
            'infinitely wrong; use geometry="mirror", a larger alpha or more rows.',
            FitWarning,
            stacklevel=3,
        )
    start, end = fit.start, fit.history[len(fit.predictor) - 1] if len(fit.predictor) else fit.start
    if start is None or end is None or start.held_out_log_loss is None or end.held_out_log_loss is None:
        return
    if end.held_out_log_loss > start.held_out_log_loss:
        warnings.warn(
            f"The log loss on held-out rows rose from {start.held_out_log_loss:.4g} to {end.held_out_log_loss:.4g}: "
            'leave the model as it is, or use geometry="mirror", a larger alpha or more rows.',
            FitWarning,
            stacklevel=3,
        )


def _best_geometry(solver: str, learner: WeakLearner) -> Geometry:
    """Return the geometry that None stands for; what trees boosted in another one offer could not be taken."""
    return "euclidean" if solver == "first" else learner.geometry or "mirror"


def check_options(
    solver: str,
    geometry: str | None,
    step: object,
    validation_fraction: object,
    max_updates: object,
    monitor: str | None = None,
    patience: object = None,
    callback: object = None,
) -> None:
    """Refuse options that have no meaning, before any work is done."""
    for name, given, valid in (
        ("solver", solver, tuple(SOLVERS)),
        ("geometry", geometry, (None, "euclidean", "mirror")),
        ("monitor", monitor, (None, "brier", "log_loss", "violation")),
    ):
        if given not in valid:
            words = [word for word in valid if word is not None]
            raise InvalidInput(f"Unknown {name} {given!r}; valid: {', '.join(words)}.{suggest(str(given), words)}")
    if solver == "first" and geometry == "mirror":
        raise InvalidInput(
            'The solver "first" is the paper\'s Euclidean algorithm; use "worst" or "block" with geometry="mirror".'
        )
    _check_step(step, solver)
    check_share("validation_fraction", validation_fraction)
    for name, value in (("max_updates", max_updates), ("patience", patience)):
        if value is not None:
            check_whole(name, value, 1)
    if callback is not None and not callable(callback):
        raise InvalidInput(f"callback must be a function of a Record, but {callback!r} was given.")


def _check_step(step: object, solver: str) -> None:
    if step is None or (isinstance(step, str) and step == "newton" and solver != "first"):
        return
    if isinstance(step, bool) or not isinstance(step, Real) or not 0 < float(step) <= 1:
        more = "" if solver == "first" else ' or "newton"'
        raise InvalidInput(
            f"step must be None, a number in (0, 1]{more} for the solver {solver!r}, but {step!r} was given."
        )


def read_random_state(random_state: int | np.random.Generator | None) -> np.random.Generator:
    """Return the generator of a seed."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"random_state must be None, a whole number or a Generator, but {random_state!r} was given."
        ) from error
