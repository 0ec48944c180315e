"""`multicalibrate`: consume a solver's updates until the notion holds, and report what was reached."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.data.errors import FitWarning, InvalidInput
from lowcal.data.inputs import check_fit, read_rows
from lowcal.data.progress import Passes
from lowcal.kernels.simplex import SMALLEST, Geometry
from lowcal.notions import Notion, parse_notion
from lowcal.solve.checkpoints import Checkpoint
from lowcal.solve.guard import is_harmless, make_guard
from lowcal.solve.homes import Home, open_home, read_class
from lowcal.solve.options import MIN_SHARE, PATIENCE, Options, SolverName, Tolerance, read_random_state
from lowcal.solve.private import fit_privately
from lowcal.solve.runs import Fit, Record, Run
from lowcal.solve.solvers import Problem, is_shrunk
from lowcal.solve.stopping import HeldOut, Watch, noise_floor
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
        subpopulations=read_class(subpopulations),
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
        fit = run(options.progress and not home.is_far)
    _warn_of_harm(fit, problem.losses(run.end).sure, problem.rows.scale.n)
    if fit.predictor.updates:
        home.remember(fit.predictor, run.end)
    return fit


def _state(home: Home, options: Options, seed: int) -> tuple[Problem, float | None]:
    """Return what the solver is to solve, and the noise floor where that is the target."""
    # what trees boosted in another geometry offer could not be taken
    default: Geometry = "euclidean" if options.solver == "first" else home.learner.geometry or "mirror"
    by_person = Tolerance(None, options.per_person, options.min_share)
    problem = Problem(
        home.rows,
        parse_notion(options.notion),
        home.learner,
        options.target,
        options.geometry or default,
        step=options.step,
        seed=seed,
        tolerance=None if options.per_person is None else by_person,
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
    if sure:
        warnings.warn(
            f"{sure:,} of {n:,} calibrated predictions are exactly 0 or 1, which one wrong label makes "
            'infinitely wrong; use geometry="mirror", a larger alpha or more rows.',
            FitWarning,
            stacklevel=3,
        )
    if fit._held_out is not None and fit._held_out[1] > fit._held_out[0]:
        warnings.warn(
            f"The log loss on held-out rows rose from {fit._held_out[0]:.4g} to {fit._held_out[1]:.4g}: "
            'leave the model as it is, or use geometry="mirror", a larger alpha or more rows.',
            FitWarning,
            stacklevel=3,
        )
