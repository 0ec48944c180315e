"""`multicalibrate`: consume a solver's updates until the notion holds, and say what was reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lowcal.blocks import can_bend
from lowcal.errors import InvalidInput, suggest
from lowcal.frames import Table as Frame
from lowcal.inputs import Outcomes, check_fit, check_share, check_whole, read_outcomes
from lowcal.notions import Notion, parse_notion
from lowcal.private_runs import check_private, fit_privately
from lowcal.provenance import remember, sketch_rows
from lowcal.runs import Fit, HeldOut, Record, Run
from lowcal.simplex import FloatArray, Geometry
from lowcal.solvers import SOLVERS, Problem
from lowcal.stopping import Monitor, may_interpolate, noise_floor
from lowcal.subpopulations import Private, Subpopulations, default_subpopulations
from lowcal.subpopulations.base import WeakLearner
from lowcal.updates import read_features

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
    alpha: float = 0.01,
    solver: SolverName = "block",
    geometry: Geometry | None = None,
    step: float | Literal["newton"] | None = None,
    sample_weight: ArrayLike | None = None,
    validation_fraction: float = 0.0,
    max_updates: int | None = None,
    callback: Callable[[Record], bool | None] | None = None,
    progress: bool = False,
    random_state: int | np.random.Generator | None = None,
    classes: Sequence[Any] | None = None,
    monitor: Monitor | None = None,
    patience: int | None = None,
    stop_at_noise: bool | None = None,
) -> Fit:
    """Mend the probabilities p of any classifier until the notion holds at alpha on every subpopulation.

    max over c in C and w in W of |E[c(x) <w(f(x)), y - f(x)>]| <= alpha, the supremum over the WHOLE class W.
    Paper: Algorithm 1 and Lemma 5.3; the solvers "worst" and "block" keep its bound (spec 4.4).

    Parameters
    ----------
    y : labels (n,), or numbers in [0, 1] for bounded outcomes.
    p : probabilities, (n,) or (n, 2) for binary, (n, l) for l classes.
    X : what the subpopulations are functions of: pandas, polars, pyarrow, NumPy, SciPy sparse, dict of columns.
    subpopulations : the class C; None: the groups of a table's columns, trees on a bare array. `Private(...)` brings
        its own solver and step: the arguments solver, geometry, step, validation_fraction, monitor, patience and
        stop_at_noise keep their defaults, and what is returned is a `PrivateFit`.
    notion : "multiaccuracy", "degree-2", "smooth", "full-0.1", or a notion.
    alpha : the largest violation that may remain: of E over all rows, so a group of mass 0.1 may be off by 10 alpha.
    solver : "first" (Algorithm 1 as printed), "worst" (largest violation first), "block" (all constraints at once).
    geometry : "euclidean" (add and project: the paper) or "mirror" (add in log space; log loss is its potential).
        None: "mirror" for block steps beyond multiaccuracy on at most 500 listed subpopulations of a binary problem,
        where it was measured to be better and the first step shifts and bends log odds by group; for block steps on
        boosted trees, `Trees(n_trees=...)`, the geometry they are boosted in; otherwise "euclidean".
    step : for "first" the step size, at most alpha (None: alpha / (2d)); otherwise a share in (0, 1] of the Newton
        step (shrinkage), "newton" for the Newton step, None for a line search.
    sample_weight : weights of the rows, not negative.
    validation_fraction : share of the rows that is held out to stop early; 0 fits on all rows.
    max_updates : stop after so many updates; None: the a-priori bound.
    callback : called with a `Record` after every update (its violation is the one the update was made for, as the
        next is not known yet); return True to stop.
    progress : show a progress bar (needs tqdm, else plain lines on standard error).
    random_state : seed of the held-out split and of subsamples; without one, only the held-out split is left to chance.
    classes : names of the columns of p, where the values of y do not tell.
    monitor : what is watched on held-out rows: "brier", "log_loss" or "violation"; None: the geometry's own loss.
    patience : held-out updates without improvement before stopping; None: 100, 20 and 3 for the three solvers.
    stop_at_noise : stop at violations that chance would show in a perfect predictor, and take no step along many
        features that gains no more than noise would. None: only without held-out rows, and where rows are so few that
        to meet all constraints (subpopulations times weights) may be to learn the rows by heart: fewer than 20 for
        each of at least 100 constraints (100 for each if weights are cells), fewer than 4 for each of at least 40, or
        50 to 10,000 in all where a class is searched (trees, linear, any regressor). False: never.

    Examples
    --------
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(5000, random_state=0)
    >>> fit = multicalibrate(data.y, data.p, data.X, alpha=0.005)
    >>> fit.status.value, fit.n_updates <= 5
    ('reached', True)
    >>> mended = fit.predictor(data.p, data.X)
    """
    check_options(alpha, solver, geometry, step, validation_fraction, max_updates, monitor, patience, callback)
    notion = parse_notion(notion)
    outcomes = read_outcomes(y, p, sample_weight, classes)
    check_fit(outcomes)
    table = read_features(X, len(outcomes.p))
    rng = read_random_state(random_state)
    chosen = choose_subpopulations(subpopulations, X, table)
    if isinstance(chosen, Private):
        check_private(
            solver, geometry or "euclidean", step, validation_fraction, monitor, patience, bool(stop_at_noise)
        )
        return fit_privately(chosen, outcomes, table, notion, alpha, max_updates, callback, progress, rng)
    held_out = _draw_held_out(outcomes.weight, validation_fraction, rng)
    fitted = _subset(outcomes, ~held_out) if held_out.any() else outcomes
    fitted_table = table.take(np.flatnonzero(~held_out)) if held_out.any() else table
    learner = chosen.prepare(fitted_table, fitted.weight, fitted.residual)
    geometry = geometry or _best_geometry(solver, step, notion, learner, fitted.p)
    problem = Problem(
        fitted.y,
        fitted.weight,
        notion,
        learner,
        alpha,
        geometry,
        None if step == "newton" else step,
        step == "newton",
        # chance enters the held-out rows only if no seed is given: equal calls should give equal predictors
        0 if random_state is None else int(rng.integers(2**31)),
    )
    watch = None
    if held_out.any():
        rest = _subset(outcomes, held_out)
        watched: Monitor = monitor or ("brier" if geometry == "euclidean" else "log_loss")
        watch = HeldOut(
            rest, learner.encoder(table.take(np.flatnonzero(held_out))), watched, patience or PATIENCE[solver]
        )
    if stop_at_noise is None:
        stop_at_noise = watch is None and may_interpolate(problem, fitted.p)
    floor = noise_floor(problem, fitted.p, np.random.default_rng(problem.seed)) if stop_at_noise else None
    run = Run(problem, solver, outcomes.layout, watch, max_updates, callback, floor)
    fit = run(fitted.p, progress)
    if fit.predictor.updates:
        _remember(fit, outcomes, table, run.end if watch is None else None)
    return fit


def _best_geometry(solver: str, step: object, notion: Notion, learner: WeakLearner, p: FloatArray) -> Geometry:
    """Return the geometry that None stands for; what trees boosted in another one offer could not be taken."""
    if solver != "block" or step is not None:
        return "euclidean"
    return learner.geometry or ("mirror" if can_bend(notion, learner, p) else "euclidean")


def _remember(fit: Fit, outcomes: Outcomes, table: Frame, mended: FloatArray | None) -> None:
    """Leave a sketch of the rows, so that an audit on them can warn; `mended` are their predictions, where known."""
    some = sketch_rows(len(outcomes.p))
    if mended is None:
        end = fit.predictor.replay(outcomes.p[some], fit.predictor.encoder(table.take(some)))
    else:
        end = mended[some]
    remember(len(outcomes.p), outcomes.y[some], end)


def check_options(
    alpha: object,
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
    check_alpha(alpha)
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


def check_alpha(alpha: object) -> None:
    """Refuse a tolerance that is not a positive number."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < float(alpha) < np.inf:
        raise InvalidInput(f"alpha must be a positive number, but {alpha!r} was given. Typical values: 0.001 to 0.1.")


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


def choose_subpopulations(subpopulations: Subpopulations | None, X: object, table: Frame) -> Subpopulations:
    """Return the class to use; None is the default for this kind of X."""
    if subpopulations is None:
        return default_subpopulations(table)
    check_class(subpopulations)
    if X is None:
        raise InvalidInput("subpopulations were given without X; pass the columns they are functions of as X.")
    return subpopulations


def check_class(subpopulations: object) -> None:
    """Refuse what is not a class of subpopulations, nor None."""
    if subpopulations is not None and not isinstance(subpopulations, Subpopulations):
        raise InvalidInput(
            f"subpopulations must be a class such as Groups([...]) or Trees(), but {subpopulations!r} was given."
        )


def _draw_held_out(weight: FloatArray, fraction: float, rng: np.random.Generator) -> np.typing.NDArray[np.bool_]:
    """Return which rows are held out: a random share, with weight on both sides."""
    n = len(weight)
    held_out = np.zeros(n, dtype=bool)
    if fraction == 0.0:
        return held_out
    held_out[rng.permutation(n)[: int(np.ceil(fraction * n))]] = True
    if weight[held_out].sum() <= 0 or weight[~held_out].sum() <= 0:
        raise InvalidInput(
            f"validation_fraction={fraction:g} of {n} rows leaves a part without weighted rows; use 0 or more rows."
        )
    return held_out


def _subset(outcomes: Outcomes, rows: np.typing.NDArray[np.bool_]) -> Outcomes:
    weight = outcomes.weight[rows]
    return Outcomes(outcomes.y[rows], outcomes.p[rows], weight / weight.sum(), outcomes.layout)
