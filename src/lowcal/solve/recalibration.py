"""`recalibrate`: the best calibrated predictions that these rows allow, chosen by cross-validation.

The candidates (`candidates`) go from a line of the log odds to boosted trees. Each is fitted to the rows outside every
fold and predicts the fold. The model moves towards one after the other, as far as these predictions ask (`_choose`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from lowcal.data.errors import FitInterrupted, InvalidInput
from lowcal.data.inputs import Outcomes, check_fit, check_whole, read_rows
from lowcal.data.progress import Passes
from lowcal.kernels.products import dot, product
from lowcal.kernels.reference import Design
from lowcal.kernels.simplex import (
    FloatArray,
    IntArray,
    auc,
    brier,
    brier_losses,
    from_scores,
    log_loss,
    log_losses,
    losses_of_scores,
    scores,
)
from lowcal.notions import LowDegree
from lowcal.notions.weights import evaluate, monomials
from lowcal.rows.updates import Predictor
from lowcal.solve.candidates import (
    LINE,
    MOST_TREES,
    TEMPERATURE,
    TREES,
    UNCHANGED,
    Boosting,
    Shared,
    Side,
    fit,
    trees_begin_with,
)
from lowcal.solve.crossfits import Predicted, fit_simple
from lowcal.solve.fitting import Candidate, Candidates, Fit, Record
from lowcal.solve.homes import drop_weightless, near_rows, read_random_state, remember, remember_rows, sketch_rows
from lowcal.solve.stopping import ORDER, Status, caution, deal, mean_change
from lowcal.subpopulations.base import WeakLearner
from lowcal.subpopulations.bins import Binned

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: Trees are grown until the held-out loss has not fallen for this many rounds and this share of those before.
PATIENCE, MORE_PATIENCE = 7, 0.15
#: This many held-out rows are enough to choose on: more rows are dealt into at most this many folds, of which not every
#: one is judged. It saves a fifth of the time (benchmarks/recalibrate.py) and costs nothing.
JUDGED, FOLDS = 12_000, 3
#: The choice is made on at most this many rows, a sample of more: it hardly changes, and all rows are fitted only once.
CHOSEN_ON = 150_000
#: Fewer rows than this leave the model as it is: they can't tell which candidate is better, nor set a whole line.
LEAST_ROWS = 100
#: Shares that are smaller than this are left out.
LEAST_SHARE = 0.05
#: A difference of sums that is this small a share of them is rounding.
CRUMBS = 1e-9
#: Products of weights and labels that are summed for all candidates at once; more are summed for one after the other.
FEW = 16


def recalibrate(
    y: ArrayLike,
    p: ArrayLike,
    X: object = None,
    *,
    sample_weight: ArrayLike | None = None,
    groups: str | Sequence[str] | None = None,
    cv: int = 5,
    progress: bool = False,
    random_state: int | np.random.Generator | None = None,
    classes: Sequence[Any] | None = None,
) -> Fit:
    """Recalibrate the probabilities p of any classifier as well as these rows allow, or leave them as they are.

    No notion, no alpha: cross-validation chooses shares of a line of the log odds (matrix scaling for 3 to 7 classes, a
    temperature for more), beta calibration for two classes, isotonic regression, the groups of all columns, and boosted
    trees that read the score as a column. From the model as it is, the log odds move towards one candidate after the
    other, simple ones first: by the share s that is best on held-out rows, times 1 - k / Q. Q is twice the gain in log
    likelihood there, and k is 4 and more after every candidate that showed nothing; Q below k is noise, and nothing is
    taken. Nor is anything that lowers the AUC by .002.

    Parameters
    ----------
    y : labels (n,), or numbers in [0, 1] for bounded outcomes; or the name of a column of X.
    p : probabilities, (n,) or (n, 2) for binary, (n, l) for l classes; or the name of a column, one for each class.
    X : the columns to find errors with: pandas, polars, pyarrow, NumPy, SciPy sparse, dict of columns, or files and
        tables on a cluster as in `multicalibrate`, whose rows are all read into memory here; None: p alone.
    sample_weight : weights of the rows, not negative; or the name of a column.
    groups : columns whose groups are protected: the largest degree-2 violation among them must not grow.
    cv : the number of folds. Above 12,000 rows, at most three, of which as many are judged as hold 12,000; above
        150,000, the choice is made on a sample of 150,000 rows and then fitted to all of them.
    progress : show a progress bar (needs tqdm, else plain lines on standard error).
    random_state : seed of the folds; equal calls give equal predictors with or without one.
    classes : names of the columns of p, where the values of y do not tell.

    Returns
    -------
    A `Fit` whose `candidates` say what each would have done on held-out rows, and what the chosen shares of them do. An
    interrupt (`FitInterrupted`) keeps the best of the candidates that were judged by then in `.fit`.

    Examples
    --------
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(5000, random_state=0)
    >>> fit = recalibrate(data.y, data.p, data.X)
    >>> fit.candidates.chosen.name
    '0.95 trees'
    >>> calibrated = fit.predictor(data.p, data.X)
    """
    return recalibrate_from(y, p, X, sample_weight, groups, cv, progress, random_state, classes, takes_line=False)


def recalibrate_from(
    y: ArrayLike,
    p: ArrayLike,
    X: object,
    sample_weight: ArrayLike | None,
    groups: str | Sequence[str] | None,
    cv: int,
    progress: bool,
    random_state: int | np.random.Generator | None,
    classes: Sequence[Any] | None,
    *,
    takes_line: bool,
) -> Fit:
    """Recalibrate as `recalibrate` does.

    With `takes_line` from the line of the log odds, not from the model as it is: it is taken whole, as Platt scaling
    does. Models fitted to some of these rows need one.
    """
    check_whole("cv", cv, 2)
    with Passes(progress) as passes:
        outcomes, table = read_rows(y, p, near_rows(y, p, X, sample_weight, passes), sample_weight, classes)
    check_fit(outcomes)
    given = outcomes, table
    outcomes, table = drop_weightless(outcomes, table)
    seed = 0 if random_state is None else int(read_random_state(random_state).integers(2**31))
    shared = Shared(table, outcomes.weight, outcomes.p, seed, takes_line)
    protected = shared.groups if groups is None else shared.groups_of(_listed(groups))
    whole = Side(shared, outcomes, np.arange(len(outcomes.p)))
    with Passes(progress) as passes:
        look = _look(whole, protected, cv, passes)
        if not look.found:
            raise KeyboardInterrupt
        chosen, shares = _choose(look, is_protected=groups is not None)
        passes.start("fitting the choice to all rows", 1, " fits")
        final = fit(whole, shares, chosen.n_trees)
    predictor = Predictor(final.encoder, final.updates, outcomes.layout, shared.names if TREES in shares else ())
    path = [outcomes.p]
    for update in final.updates:
        path.append(update(path[-1], final.rows))
    result = _result(Judge(whole, protected, [len(outcomes.p)]), predictor, path, look, chosen)
    if len(path) > 1 and outcomes is given[0]:
        some = sketch_rows(len(outcomes.p))
        remember(len(outcomes.p), outcomes.y[some], path[-1][some])
    elif len(path) > 1:
        remember_rows(*given, predictor)
    if not look.is_whole:
        raise FitInterrupted(
            f"Interrupted after {len(look.found)} candidates; the best of them, {chosen.name}, is kept in .fit.",
            replace(result, status=Status.STOPPED),
        ) from None
    return result


def _listed(groups: str | Sequence[str]) -> list[str]:
    """Return the names of protected columns."""
    listed = [groups] if isinstance(groups, str) else list(groups)
    if not listed:
        raise InvalidInput("groups is empty; name at least one column, or leave it out.")
    return listed


# --- the choice ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Judged:
    """Held-out predictions of a candidate, and what they are worth row by row."""

    name: str
    p: FloatArray
    log_losses: FloatArray
    brier_losses: FloatArray
    auc: float
    violation: float
    seconds: float
    n_trees: int = 0


class Fold:
    """All candidates on the rows outside a fold, and what they predict on the fold."""

    def __init__(self, fitted: Side, held: Side, simple: dict[str, Predicted], codes: NDArray[Any]) -> None:
        self.fitted, self.held, self.simple, self.codes = fitted, held, simple, codes
        self.p = {UNCHANGED: held.outcomes.p} | {name: one.held for name, one in simple.items()}
        self.seconds = {UNCHANGED: 0.0} | {name: one.seconds for name, one in simple.items()}
        self.start = trees_begin_with(held.outcomes.p.shape[1])
        self.seconds[TREES] = self.seconds[self.start]
        self.z = scores(self.p[self.start])

    @cached_property
    def held_rows(self) -> Binned:
        """The bins of the fold."""
        return Binned(self.codes[self.held.index])

    @cached_property
    def boosting(self) -> Boosting:
        """The trees on what the line leaves."""
        return Boosting(self.fitted, Binned(self.codes[self.fitted.index]), self.simple[self.start].fitted)

    def boost(self, n: int) -> FloatArray:
        """Grow n more rounds; return the scores on the fold after each of them, shape (n, rows, d)."""
        began, paths = perf_counter(), np.empty((self.z.shape[1], n, len(self.z)))
        for forest, z, path in zip(self.boosting.grow(n), self.z.T, paths, strict=True):
            forest.path(self.held_rows, z.copy(), path)
        self.z = paths[:, -1].T
        self.seconds[TREES] += perf_counter() - began
        return np.moveaxis(paths, 0, -1)


def ordered(whole: Side, dealt: Sequence[tuple[IntArray, IntArray]]) -> Iterator[NDArray[Any]]:
    """Yield the bins of all rows, with categories in the order of the residuals outside each fold."""
    bins, o = whole.shared.bins, whole.outcomes
    rows = np.concatenate([held for _, held in dealt])
    part = np.repeat(np.arange(len(dealt)), [len(held) for _, held in dealt])
    for inside in bins.sums_of_parts(rows, part, len(dealt), o.weight[rows], o.residual()[rows]):
        outside = whole.sums - inside
        outside[outside[:, 0] <= CRUMBS * whole.sums[:, 0]] = 0.0
        yield bins.codes_after(bins.order_by(outside)) if len(bins.columns) else bins.codes


class Look(NamedTuple):
    """The candidates on judged rows; an interrupt leaves the first of them."""

    judge: Judge
    found: Sequence[Judged]
    is_whole: bool


def _look(whole: Side, protected: WeakLearner, cv: int, passes: Passes) -> Look:
    """Judge all candidates on as many folds as hold enough rows; too few rows can judge none."""
    shared, outcomes = whole.shared, whole.outcomes
    if dot(outcomes.weight, outcomes.weight) * LEAST_ROWS > 1.0:
        judge = Judge(whole, protected, [len(outcomes.p)])
        return Look(judge, list(judge.all({UNCHANGED: outcomes.p}).values()), True)
    n_folds = cv if len(outcomes.weight) <= JUDGED else min(cv, FOLDS)
    dealt = list(deal(_sampled(outcomes.weight, shared.seed), 1.0 / n_folds, shared.seed, JUDGED))
    judged = Side.of(shared, outcomes, np.concatenate([held for _, held in dealt]))
    judge = Judge(judged, protected, [len(held) for _, held in dealt])
    judged_by_now = list[Judged]()
    try:
        judged_by_now.extend(_judged(whole, dealt, judge, passes))
    except KeyboardInterrupt:
        return Look(judge, judged_by_now, False)
    return Look(judge, judged_by_now, True)


def _sampled(weight: FloatArray, seed: int) -> FloatArray:
    """Return the weights of rows, zeros outside a sample of those that the choice is made on."""
    if len(weight) <= CHOSEN_ON:
        return weight
    inside = np.random.default_rng(seed).permutation(len(weight))[:CHOSEN_ON]
    return np.where(np.isin(np.arange(len(weight)), inside), weight, 0.0)


def _judged(whole: Side, dealt: Sequence[tuple[IntArray, IntArray]], judge: Judge, passes: Passes) -> Iterator[Judged]:
    """Yield all candidates on all folds."""
    passes.start("fitting simple candidates", len(dealt), " folds")
    folds = []
    for (fitted, held), predicted, codes in zip(dealt, fit_simple(whole, dealt), ordered(whole, dealt), strict=True):
        outside, inside = (Side.of(whole.shared, whole.outcomes, rows) for rows in (fitted, held))
        folds.append(Fold(outside, inside, predicted, codes))
        passes.add(1)
    yield from judge.all(
        {name: np.concatenate([fold.p[name] for fold in folds]) for name in folds[0].p}, folds
    ).values()
    yield _boosted(folds, judge, passes)


def _boosted(folds: Sequence[Fold], judge: Judge, passes: Passes) -> Judged:
    """Return the best number of rounds of trees by the loss of all folds together.

    All rows support more rounds than those outside a fold, in proportion to how many they are.
    """
    passes.start("boosting trees", MOST_TREES, " rounds")
    best, n_best, n = np.concatenate([fold.z for fold in folds]), 0, 0
    (least,) = judge.mean_losses([fold.z[None] for fold in folds])
    while n < (stop := min(MOST_TREES, int((1.0 + MORE_PATIENCE) * n_best) + PATIENCE)):
        paths = [fold.boost(stop - n) for fold in folds]
        losses = judge.mean_losses(paths)
        lowest = int(losses.argmin())
        if losses[lowest] < least:
            least, best, n_best = losses[lowest], np.concatenate([path[lowest] for path in paths]), n + lowest + 1
        passes.add(stop - n)
        n = stop
    n_trees = round(n_best * (1.0 + len(folds[0].held.index) / len(folds[0].fitted.index)))
    return replace(judge.all({TREES: from_scores(best)}, folds)[TREES], n_trees=n_trees)


def _seconds(folds: Sequence[Fold], name: str) -> float:
    """Return how long a candidate takes on a fold's rows."""
    return float(np.mean([fold.seconds[name] for fold in folds])) if folds else 0.0


class Judge:
    """The judged rows, fold after fold: what held-out predictions are worth."""

    def __init__(self, side: Side, protected: WeakLearner, sizes: Sequence[int]) -> None:
        self.side, self.outcomes, self.protected = side, side.outcomes, protected
        self.starts = np.cumsum([0, *sizes[:-1]])

    @cached_property
    def design(self) -> Design:
        """Who is protected, on the judged rows."""
        return self.protected.design(self.side.group_rows(self.protected))

    def _moments(self, R: FloatArray) -> FloatArray:
        """Return the sums of columns of R over the members of all groups."""
        shared = self.side.shared
        if self.protected is not shared.groups or not shared.is_small:
            return self.design.moments(R)
        every = np.zeros((len(shared.p), R.shape[1]))
        every[self.side.index] = R
        return shared.members.moments(every)

    def mean_losses(self, paths: Sequence[FloatArray]) -> FloatArray:
        """Return the mean log losses of scores of the folds, of shape (rounds, rows, d) each."""
        y, weight = (np.split(each, self.starts[1:]) for each in (self.outcomes.y, self.outcomes.weight))
        each = [product(losses_of_scores(z, o), w) for z, o, w in zip(paths, y, weight, strict=True)]
        return np.asarray(np.sum(each, axis=0))

    def all(self, p: Mapping[str, FloatArray], folds: Sequence[Fold] = ()) -> dict[str, Judged]:
        """Return the figures of candidates from their predictions."""
        violations = self.violations(list(p.values()))
        return {
            name: self._judge(name, each, violation, _seconds(folds, name))
            for (name, each), violation in zip(p.items(), violations, strict=True)
        }

    def _judge(self, name: str, p: FloatArray, violation: float, seconds: float) -> Judged:
        o = self.outcomes
        order = float(auc(p, o.y, o.weight, self.starts).mean())
        return Judged(name, p, log_losses(p, o.y), brier_losses(p, o.y), order, violation, seconds)

    def violations(self, each: Sequence[FloatArray]) -> list[float]:
        """Return the largest degree-2 violations of predictions: of few classes, from one pass over the rows."""
        o, notion = self.outcomes, LowDegree(2)
        rho, weights = [o.weight[:, None] * (o.y - p) for p in each], monomials(o.p.shape[1], 1)
        if len(weights) * o.p.shape[1] > FEW:
            return [float(notion.suprema(p, r, self.design).value.max()) for p, r in zip(each, rho, strict=True)]
        terms = [np.asarray(evaluate(weights, p))[:, :, None] * r[:, None, :] for p, r in zip(each, rho, strict=True)]
        sums = self._moments(np.concatenate([one.reshape(len(one), -1) for one in terms], axis=1))
        found = np.split(sums, len(each), axis=1)
        return [float(notion.norm(weights, v.reshape(len(v), *terms[0].shape[1:])).value.max()) for v in found]


def _choose(look: Look, *, is_protected: bool) -> tuple[Judged, dict[str, float]]:
    """Return what is taken, on the judged rows, and the share of every candidate in it.

    From the model as it is, scores move towards one candidate after the other. The best share of the way, by the loss
    of held-out rows, is shrunk by James and Stein's factor 1 - k / Q, Q being twice the gain in log likelihood: noise
    alone would gain as much as k, the square of the guard's caution. Order and protected groups are kept: a temperature
    stands in for a line that does not keep them.
    """
    judge, (untouched, *rest), _ = look
    o = judge.outcomes
    moves = {one.name: scores(one.p) - scores(untouched.p) for one in rest}
    now, shares, n_undone = untouched, dict[str, float](), 0
    for one in rest:
        if one.name == TEMPERATURE and LINE in shares:
            continue
        z = scores(now.p)
        toward = scores(one.p) - z
        step, limit = _best_step(z, toward, o), caution(n_undone) ** 2
        gain = dot(o.weight, now.log_losses - log_losses(from_scores(z + step * toward), o.y))
        evidence = 2.0 * gain / dot(o.weight, o.weight)
        step *= max(0.0, 1.0 - limit / evidence) if evidence > 0.0 else 0.0
        is_start = one.name == LINE and judge.side.shared.takes_line
        if is_start:
            step = 1.0
        if step < LEAST_SHARE:
            n_undone += 1
            continue
        each = {name: (1.0 - step) * share for name, share in shares.items()} | {one.name: step}
        each = {name: share for name, share in each.items() if share >= LEAST_SHARE}
        moved = from_scores(scores(untouched.p) + sum(share * moves[name] for name, share in each.items()))
        name = " + ".join(f"{share:.2f} {name}" for name, share in each.items())
        tried = judge.all({name: moved})[name]
        is_fair = not is_protected or tried.violation <= untouched.violation
        is_ordered = tried.auc >= untouched.auc - ORDER or judge.side.keeps_order(one.name)
        if is_start or (is_fair and is_ordered):
            seconds = sum(part.seconds for part in rest if part.name in each)
            now, shares = replace(tried, n_trees=one.n_trees, seconds=seconds), each
    return now, shares


def _best_step(z: FloatArray, toward: FloatArray, o: Outcomes) -> float:
    """Return the share of the way from scores z that has the least loss, which is convex."""

    given = np.einsum("ij,ij->i", o.y, toward)

    def slope(step: float) -> float:
        return dot(o.weight, np.einsum("ij,ij->i", from_scores(z + step * toward), toward) - given)

    if slope(0.0) >= 0.0:
        return 0.0
    return 1.0 if slope(1.0) <= 0.0 else float(brentq(slope, 0.0, 1.0, xtol=1e-3))


def _result(judge: Judge, predictor: Predictor, path: Sequence[FloatArray], look: Look, chosen: Judged) -> Fit:
    """Return the fit: what was chosen, what every candidate did, and the figures of all rows along the updates."""
    o, weight, untouched = judge.outcomes, look.judge.outcomes.weight, look.found[0]
    found = {one.name: one for one in (*look.found, chosen)}.values()
    held = [
        {"held_out_log_loss": dot(weight, one.log_losses), "held_out_brier": dot(weight, one.brier_losses)}
        for one in (untouched, chosen)
    ]
    start, *history = [
        Record(k, np.nan, brier(p, o.y, o.weight), log_loss(p, o.y, o.weight)) for k, p in enumerate(path)
    ]
    (violation,) = judge.violations(path[-1:])
    if history:
        history[-1] = replace(history[-1], violation=violation, **held[1])  # type: ignore[arg-type]
    return Fit(
        predictor,
        Status.CHOSEN,
        tuple(history),
        violation,
        violation,
        len(history),
        sum(one.n_trees for one in look.found),
        True,
        LowDegree(2),
        None,
        start=replace(start, **held[0]),  # type: ignore[arg-type]
        candidates=Candidates(_candidate(one, untouched, weight, one is chosen) for one in found),
    )


def _candidate(one: Judged, untouched: Judged, weight: FloatArray, is_chosen: bool) -> Candidate:
    """Return a candidate's means and standard errors."""
    means = dot(weight, one.log_losses), dot(weight, one.brier_losses)
    errors = (
        mean_change(untouched.log_losses, one.log_losses, weight)[1],
        mean_change(untouched.brier_losses, one.brier_losses, weight)[1],
    )
    return Candidate(
        one.name, means[0], errors[0], means[1], errors[1], one.auc, one.violation, one.seconds, one.n_trees, is_chosen
    )
