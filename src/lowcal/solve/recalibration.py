"""`recalibrate`: the best calibrated predictions that these rows allow, chosen by cross-validation.

The candidates (`candidates`) go from leaving the model as it is to trees on top of groups. Each is fitted to the rows
outside every fold and judged on the fold; the simplest within a standard error of the best is fitted to all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lowcal.data.errors import FitInterrupted, InvalidInput
from lowcal.data.inputs import check_fit, check_whole, read_rows
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
    scores,
)
from lowcal.notions import LowDegree
from lowcal.notions.weights import evaluate, monomials
from lowcal.rows.updates import Predictor
from lowcal.solve.candidates import BOTH, GROUPS, LINE, MOST_TREES, TREES, UNCHANGED, Boosting, Shared, Side, fit
from lowcal.solve.crossfits import Predicted, fit_simple
from lowcal.solve.guard import CAUTION, ORDER, are_enough, deal, mean_change
from lowcal.solve.homes import drop_weightless, remember_rows
from lowcal.solve.options import read_random_state
from lowcal.solve.runs import Candidate, Candidates, Fit, Record
from lowcal.solve.stopping import Status
from lowcal.subpopulations.base import Encoded, WeakLearner
from lowcal.subpopulations.bins import Binned

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: Trees are grown this many at a time, until the held-out loss has not fallen for this many and a quarter of its best.
AT_A_TIME, PATIENCE = 10, 10
#: This many held-out rows are enough to choose on: with more rows, not every fold is judged. A close choice takes more.
JUDGED, JUDGED_AGAIN = 12_000, 60_000
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

    No notion, no alpha: cross-validation chooses among the model as it is, a line of its log odds (a temperature for
    several classes), beta calibration (matrix scaling), isotonic regression, the groups of all columns, boosted trees
    that read the score as a column, and trees on top of groups. The choice is the simplest candidate whose held-out log
    loss is within one standard error of the best; it must beat the untouched model by 2 standard errors (a line may
    instead make held-out rows e^2 times as likely for each of its coefficients), and keep its AUC to .002.

    Parameters
    ----------
    y : labels (n,), or numbers in [0, 1] for bounded outcomes; or the name of a column of X.
    p : probabilities, (n,) or (n, 2) for binary, (n, l) for l classes; or the name of a column, one for each class.
    X : the columns to find errors with: pandas, polars, pyarrow, NumPy, SciPy sparse, dict of columns, or files as in
        `multicalibrate`; None: p alone.
    sample_weight : weights of the rows, not negative; or the name of a column.
    groups : columns whose groups are protected: the largest degree-2 violation among them must not grow.
    cv : the number of folds; above 12,000 rows as many of them are judged as hold that many, and up to 60,000 where a
        candidate beats the untouched model by 1 to 2 standard errors only.
    progress : show a progress bar (needs tqdm, else plain lines on standard error).
    random_state : seed of the folds; equal calls give equal predictors with or without one.
    classes : names of the columns of p, where the values of y do not tell.

    Returns
    -------
    A `Fit` whose `candidates` say what each would have done on held-out rows. An interrupt (`FitInterrupted`) keeps the
    best of the candidates that were judged by then in `.fit`.

    Examples
    --------
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(5000, random_state=0)
    >>> fit = recalibrate(data.y, data.p, data.X)
    >>> fit.candidates.chosen.name
    'trees'
    >>> calibrated = fit.predictor(data.p, data.X)
    """
    check_whole("cv", cv, 2)
    outcomes, table = read_rows(y, p, X, sample_weight, classes)
    check_fit(outcomes)
    given = outcomes, table
    outcomes, table = drop_weightless(outcomes, table)
    seed = 0 if random_state is None else int(read_random_state(random_state).integers(2**31))
    shared = Shared(table, outcomes.weight, outcomes.p, seed)
    protected = shared.groups if groups is None else shared.groups_of(_listed(groups))
    whole = Side(shared, outcomes, np.arange(len(outcomes.p)))
    with Passes(progress) as passes:
        look = _look(whole, protected, cv, JUDGED, passes)
        if not look.found:
            raise KeyboardInterrupt
        chosen = _choose(look, is_protected=groups is not None)
        if look.is_whole and len(look.weight) < min(len(outcomes.p), JUDGED_AGAIN) and _is_close(look, chosen):
            again = _look(whole, protected, cv, JUDGED_AGAIN, passes)
            look = again if again.is_whole else look._replace(is_whole=False)
            chosen = _choose(look, is_protected=groups is not None)
        passes.start(f"fitting {chosen.name} to all rows", 1, " fits")
        final = fit(whole, chosen.name, chosen.n_trees)
    predictor = Predictor(final.encoder, final.updates, outcomes.layout, shared.names if chosen.n_trees else ())
    result = _result(whole, protected, predictor, final.rows, look, chosen)
    if predictor.updates:
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

    def __init__(self, whole: Side, fitted: Side, held: Side, simple: dict[str, Predicted]) -> None:
        self.fitted, self.held, self.simple = fitted, held, simple
        self.p = {UNCHANGED: held.outcomes.p} | {name: one.held for name, one in simple.items()}
        self.seconds = {UNCHANGED: 0.0} | {name: one.seconds for name, one in simple.items()}
        bins, share = whole.shared.bins, float(whole.outcomes.weight[held.index].sum())
        outside = whole.sums - held.sums * np.array([share, share**2, *[share] * whole.outcomes.p.shape[1]])
        outside[outside[:, 0] <= CRUMBS * whole.sums[:, 0]] = 0.0
        codes = bins.codes_after(bins.order_by(outside))
        self.rows, self.held_rows = Binned(codes[fitted.index]), Binned(codes[held.index])

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - began

    def boost(self, name: str, start: str) -> Iterator[FloatArray]:
        """Grow trees on what a simpler candidate leaves; yield the predictions on the fold after each of some rounds.

        Of shape (rounds, rows, d).
        """
        boosting, at = Boosting(self.fitted, self.rows, self.simple[start].fitted), scores(self.p[start])
        self.seconds[name] = self.seconds[start]
        while True:
            with self._timed(name):
                rounds = boosting.grow(AT_A_TIME)
            paths = []
            for forests in rounds:
                moved = [forest.path(self.held_rows, at[:, a].copy()) for a, forest in enumerate(forests)]
                paths.append(np.stack(moved, axis=-1))
                at = paths[-1][-1]
            path = np.concatenate(paths)
            yield from_scores(path.reshape(-1, path.shape[-1])).reshape(path.shape)


class Look(NamedTuple):
    """The candidates on judged rows of these weights; an interrupt leaves the first of them."""

    weight: FloatArray
    found: Sequence[Judged]
    is_whole: bool


def _look(whole: Side, protected: WeakLearner, cv: int, most: int, passes: Passes) -> Look:
    """Judge all candidates on as many folds as hold this many rows."""
    weight, found = np.zeros(0), list[Judged]()
    try:
        weight, judged = _judge(whole, protected, cv, most, passes)
        while (one := next(judged, None)) is not None:
            found.append(one)
    except KeyboardInterrupt:
        return Look(weight, found, False)
    return Look(weight, found, True)


def _is_close(look: Look, chosen: Judged) -> bool:
    """Whether a candidate that gains more than the chosen one beats the model as it is, but not by enough."""
    untouched, weight = look.found[0], look.weight
    changes = [mean_change(untouched.log_losses, one.log_losses, weight) for one in look.found]
    gained = dot(weight, chosen.log_losses - untouched.log_losses)
    return any(-CAUTION * error <= mean < min(-error, gained) for mean, error in changes)


def _judge(
    whole: Side, protected: WeakLearner, cv: int, most: int, passes: Passes
) -> tuple[FloatArray, Iterator[Judged]]:
    """Return the weights of the judged rows, and one candidate after the other there; too few rows can judge none."""
    shared, outcomes = whole.shared, whole.outcomes
    if not are_enough(outcomes.weight):
        judge = Judge(whole, protected, [len(outcomes.p)])
        return outcomes.weight, iter(judge.all({UNCHANGED: outcomes.p}).values())
    dealt = list(deal(outcomes.weight, 1.0 / cv, shared.seed, most))
    judged = Side.of(shared, outcomes, np.concatenate([held for _, held in dealt]))
    judge = Judge(judged, protected, [len(held) for _, held in dealt])
    return judged.outcomes.weight, _judged(whole, dealt, judge, passes)


def _judged(whole: Side, dealt: Sequence[tuple[IntArray, IntArray]], judge: Judge, passes: Passes) -> Iterator[Judged]:
    """Yield all candidates on all folds; trees on top of groups only where groups beat trees and the model as it is."""
    passes.start("fitting simple candidates", len(dealt), " folds")
    folds = []
    for (fitted, held), predicted in zip(dealt, fit_simple(whole, dealt), strict=True):
        outside, inside = (Side.of(whole.shared, whole.outcomes, rows) for rows in (fitted, held))
        folds.append(Fold(whole, outside, inside, predicted))
        passes.add(1)
    simple = judge.all({name: np.concatenate([fold.p[name] for fold in folds]) for name in folds[0].p}, folds)
    yield from simple.values()
    trees = _boosted(folds, judge, passes, TREES, LINE)
    yield trees
    weight = judge.outcomes.weight
    others = trees.log_losses, simple[UNCHANGED].log_losses
    if dot(weight, simple[GROUPS].log_losses) < min(dot(weight, losses) for losses in others):
        yield _boosted(folds, judge, passes, BOTH, GROUPS)


def _boosted(folds: Sequence[Fold], judge: Judge, passes: Passes, name: str, start: str) -> Judged:
    """Return the best number of rounds of trees, on top of a simpler candidate, by the loss of all folds together."""
    passes.start(f"boosting {name}", MOST_TREES, " rounds")
    best, n_best, n = np.concatenate([fold.p[start] for fold in folds]), 0, 0
    (least,) = judge.mean_losses(best[None])
    rounds = zip(*(fold.boost(name, start) for fold in folds), strict=True)
    while n < min(MOST_TREES, 1.25 * n_best + PATIENCE):
        paths = np.concatenate(next(rounds), axis=1)
        losses = judge.mean_losses(paths)
        lowest = int(losses.argmin())
        if losses[lowest] < least:
            least, best, n_best = losses[lowest], paths[lowest], n + lowest + 1
        n += len(paths)
        passes.add(len(paths))
    return replace(judge.all({name: best}, folds)[name], n_trees=n_best)


def _seconds(folds: Sequence[Fold], name: str) -> float:
    """Return how long a candidate takes on a fold's rows."""
    return float(np.mean([fold.seconds[name] for fold in folds])) if folds else 0.0


class Judge:
    """The judged rows, fold after fold: what held-out predictions are worth."""

    def __init__(self, side: Side, protected: WeakLearner, sizes: Sequence[int]) -> None:
        self.side, self.outcomes, self.protected = side, side.outcomes, protected
        self.stops = np.cumsum(sizes)[:-1]

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
        return product(shared.members.transposed, every)

    def mean_losses(self, paths: FloatArray) -> FloatArray:
        """Return the mean log losses of predictions, shape (rounds, rows, d)."""
        o = self.outcomes
        return np.array([dot(o.weight, log_losses(p, o.y)) for p in paths])

    def all(self, p: Mapping[str, FloatArray], folds: Sequence[Fold] = ()) -> dict[str, Judged]:
        """Return the figures of candidates from their predictions."""
        violations = self._violations(list(p.values()))
        return {
            name: self._judge(name, each, violation, _seconds(folds, name))
            for (name, each), violation in zip(p.items(), violations, strict=True)
        }

    def _judge(self, name: str, p: FloatArray, violation: float, seconds: float) -> Judged:
        o = self.outcomes
        parts = zip(*(np.split(each, self.stops) for each in (p, o.y, o.weight)), strict=True)
        order = float(np.mean([auc(*part) for part in parts]))
        return Judged(name, p, log_losses(p, o.y), brier_losses(p, o.y), order, violation, seconds)

    def _violations(self, each: Sequence[FloatArray]) -> list[float]:
        """Return the largest degree-2 violations of predictions: of few classes, from one pass over the rows."""
        o, notion = self.outcomes, LowDegree(2)
        rho, weights = [o.weight[:, None] * (o.y - p) for p in each], monomials(o.p.shape[1], 1)
        if len(weights) * o.p.shape[1] > FEW:
            return [float(notion.suprema(p, r, self.design).value.max()) for p, r in zip(each, rho, strict=True)]
        terms = [np.asarray(evaluate(weights, p))[:, :, None] * r[:, None, :] for p, r in zip(each, rho, strict=True)]
        sums = self._moments(np.concatenate([one.reshape(len(one), -1) for one in terms], axis=1))
        found = np.split(sums, len(each), axis=1)
        return [float(notion.norm(weights, v.reshape(len(v), *terms[0].shape[1:])).value.max()) for v in found]


def _choose(look: Look, *, is_protected: bool) -> Judged:
    """Return the simplest candidate within one standard error of the best that does no harm."""
    weight, found, _ = look
    untouched = found[0]
    safe = [untouched, *(one for one in found[1:] if _does_no_harm(one, untouched, weight, is_protected))]
    best = min(safe, key=lambda one: dot(weight, one.log_losses))
    for one in safe:
        mean, error = mean_change(best.log_losses, one.log_losses, weight)
        if mean <= error:
            return one
    return best


def _does_no_harm(one: Judged, untouched: Judged, weight: FloatArray, is_protected: bool) -> bool:
    mean, error = mean_change(untouched.log_losses, one.log_losses, weight)
    is_fair = not is_protected or one.violation <= untouched.violation
    is_better = mean < -CAUTION * error or (one.name == LINE and _is_likely(one, mean, weight))
    return is_fair and is_better and one.auc >= untouched.auc - ORDER


def _is_likely(line: Judged, mean: float, weight: FloatArray) -> bool:
    """Whether held-out rows are as much likelier as a normal deviate of the same caution for each coefficient is.

    A few sure mistakes make the mean change of the loss uncertain, but not the likelihood of a line.
    """
    coefficients = 2.0 if line.p.shape[1] == 1 else 1.0
    return -2.0 * mean > CAUTION**2 * coefficients * dot(weight, weight)


def _result(
    whole: Side,
    protected: WeakLearner,
    predictor: Predictor,
    rows: Encoded,
    look: Look,
    chosen: Judged,
) -> Fit:
    """Return the fit: what was chosen, what every candidate did, and the figures of all rows."""
    o, p, (weight, found, _) = whole.outcomes, whole.outcomes.p, look
    held = [
        {"held_out_log_loss": dot(weight, one.log_losses), "held_out_brier": dot(weight, one.brier_losses)}
        for one in (found[0], chosen)
    ]
    start = Record(0, np.nan, brier(p, o.y, o.weight), log_loss(p, o.y, o.weight), **held[0])
    history: list[Record] = []
    for update in predictor.updates:
        p = update(p, rows)
        history.append(Record(len(history) + 1, np.nan, brier(p, o.y, o.weight), log_loss(p, o.y, o.weight)))
    notion = LowDegree(2)
    violation = float(notion.suprema(p, o.weight[:, None] * (o.y - p), protected.design()).value.max())
    if history:
        history[-1] = replace(history[-1], violation=violation, **held[1])  # type: ignore[arg-type]
    return Fit(
        predictor,
        Status.CHOSEN,
        tuple(history),
        violation,
        violation,
        len(history),
        sum(one.n_trees for one in found),
        True,
        notion,
        None,
        start=start,
        candidates=Candidates(_candidate(one, found[0], weight, one is chosen) for one in found),
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
