"""`recalibrate`: the best calibrated predictions that these rows allow, chosen by cross-validation.

The candidates go from simple to rich: the model as it is, a line of its log odds, groups, boosted trees that read the
score as a column, and trees on top of groups. Each is fitted to the rows outside every fold and judged on the fold; the
simplest within a standard error of the best is then fitted to all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.engines.products import dot
from lowcal.errors import InvalidInput
from lowcal.fitting import read_random_state, remember_rows
from lowcal.frames import Table as Frame
from lowcal.guard import CAUTION, ORDER, are_enough, deal, mean_change, subset
from lowcal.inputs import Outcomes, check_fit, check_whole, read_outcomes
from lowcal.notions import LowDegree
from lowcal.progress import Passes
from lowcal.runs import Candidate, Candidates, Fit, Record
from lowcal.shrinkage import Fitted, line_terms
from lowcal.simplex import FloatArray, IntArray, auc, brier, brier_losses, log_loss, log_losses, mirror, scores
from lowcal.solvers import Problem, block
from lowcal.stopping import Status
from lowcal.subpopulations import Groups
from lowcal.subpopulations.base import Everyone, Rows, WeakLearner
from lowcal.subpopulations.bins import BinEncoder, Binned, learn_bins, order_by_residual, recoded
from lowcal.subpopulations.growing import Forest, Growth, grow
from lowcal.subpopulations.levels import Levels
from lowcal.subpopulations.trees import TreeSum
from lowcal.subpopulations.union import Part, UnionEncoder
from lowcal.updates import Predictor, Term, Update, read_features
from lowcal.weights import Monomial

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: The candidates, from simple to rich.
UNCHANGED, LINE, GROUPS, TREES, BOTH = "unchanged", "line", "groups", "trees", "groups and trees"
#: The depth of boosted trees, the share of its fit that each takes, and how many there are at most.
DEPTH, SHRINKAGE, MOST_TREES = 3, 0.08, 400
#: Trees are grown this many at a time, until this many have not lowered the held-out loss.
AT_A_TIME, PATIENCE = 10, 30
#: Numbers are cut into at most this many bins.
MOST_BINS = 64
#: A leaf holds at least this many rows, or this share of few.
LEAF_ROWS, LEAF_SHARE = 30, 0.02
#: This many held-out rows are enough to choose on: with more rows, not every fold is judged.
JUDGED = 50_000


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

    No notion, no alpha: cross-validation chooses among the model as it is, a line of its log odds (temperature and
    shifts for several classes), the groups of all columns, boosted trees that read the score as a column, and trees on
    top of groups. The choice is the simplest candidate whose held-out log loss is within one standard error of the
    best; it must beat the untouched model by 2 standard errors, and keep its AUC to .002.

    Parameters
    ----------
    y : labels (n,), or numbers in [0, 1] for bounded outcomes.
    p : probabilities, (n,) or (n, 2) for binary, (n, l) for l classes.
    X : the columns to find errors with: pandas, polars, pyarrow, NumPy, SciPy sparse, dict of columns; None: p alone.
    sample_weight : weights of the rows, not negative.
    groups : columns whose groups are protected: the largest degree-2 violation among them must not grow.
    cv : the number of folds; above 50,000 rows as many of them are judged as hold that many.
    progress : show a progress bar (needs tqdm, else plain lines on standard error).
    random_state : seed of the folds; equal calls give equal predictors with or without one.
    classes : names of the columns of p, where the values of y do not tell.

    Returns
    -------
    A `Fit` whose `candidates` say what each would have done on held-out rows.

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
    outcomes = read_outcomes(y, p, sample_weight, classes)
    check_fit(outcomes)
    table = read_features(X, len(outcomes.p))
    seed = 0 if random_state is None else int(read_random_state(random_state).integers(2**31))
    shared = Shared(table, outcomes.weight, scores(outcomes.p), seed)
    protected = shared.groups if groups is None else shared.groups_of(_listed(groups))
    with Passes(progress) as passes:
        found, weight = _judge(shared, outcomes, protected, cv, passes)
        chosen = _choose(found, weight, is_protected=groups is not None)
        passes.start(f"fitting {chosen.name} to all rows", 1, " fits")
        whole = Side(shared, outcomes, np.arange(len(outcomes.p)))
        updates, encoder = _fit(whole, chosen.name, chosen.n_trees)
    predictor = Predictor(encoder, updates, outcomes.layout, shared.names if chosen.n_trees else ())
    return _result(whole, protected, predictor, found, chosen, weight)


def _listed(groups: str | Sequence[str]) -> list[str]:
    """Return the names of protected columns."""
    listed = [groups] if isinstance(groups, str) else list(groups)
    if not listed:
        raise InvalidInput("groups is empty; name at least one column, or leave it out.")
    return listed


# --- candidates on some rows -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shared:
    """The table of all rows, encoded once for all folds; no label has a say in it."""

    table: Frame
    weight: FloatArray
    scores: FloatArray
    seed: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names for the columns of scores that no column of the table has."""
        d = self.scores.shape[1]
        names = ["score"] if d == 1 else [f"score {a}" for a in range(d)]
        while set(names) & set(self.table.names):
            names = [f"{name}_" for name in names]
        return tuple(names)

    @cached_property
    def groups(self) -> WeakLearner:
        """The groups of all columns."""
        return self.groups_of(self.table.names)

    def groups_of(self, names: Sequence[str]) -> WeakLearner:
        """Return the groups of some columns."""
        return Groups(list(names)).prepare(self.table, self.weight)

    @cached_property
    def levels(self) -> tuple[Levels, ...]:
        """The bins of all columns and scores."""
        return tuple(learn_bins(name, self._scored, MOST_BINS, self.weight) for name in self._scored.names)

    @cached_property
    def codes(self) -> NDArray[Any]:
        """The bin of every row in every column."""
        return BinEncoder(self.levels)(self._scored).codes

    @cached_property
    def _scored(self) -> Frame:
        return self.table.joined(self.names, self.scores)


@dataclass(frozen=True, eq=False)
class Side:
    """Some of the rows: those that candidates are fitted to, or those they are judged on."""

    shared: Shared
    outcomes: Outcomes
    index: IntArray

    @classmethod
    def of(cls, shared: Shared, outcomes: Outcomes, index: IntArray) -> Side:
        """Return some of the rows of all outcomes."""
        return cls(shared, subset(outcomes, index), index)

    def groups(self) -> WeakLearner:
        """Return the groups of all columns on these rows."""
        known = self.shared.groups
        return WeakLearner(known.encoder, self.group_rows(known), self.outcomes.weight, known.families)

    def group_rows(self, known: WeakLearner) -> tuple[IntArray, ...]:
        """Return these rows as listed groups read them."""
        return tuple(codes[self.index] for codes in known.rows)

    def bins(self, order: Sequence[Levels] | None = None) -> WeakLearner:
        """Return the bins of these rows; categories are in the order of these rows' residuals, or in a given one."""
        o, levels, codes = self.outcomes, self.shared.levels, self.shared.codes[self.index]
        if order is None:
            order = [
                level if level.categories is None else order_by_residual(level, codes[:, k], o.weight, o.residual())
                for k, level in enumerate(levels)
            ]
        for k, (before, after) in enumerate(zip(levels, order, strict=True)):
            codes[:, k] = recoded(before, after, codes[:, k])
        return WeakLearner(BinEncoder(tuple(order)), Binned(codes), o.weight, [Everyone()])


@dataclass(frozen=True, eq=False)
class Corrected:
    """Updates that were fitted to some rows, with the predictions there."""

    updates: tuple[Update, ...]
    p: FloatArray

    def on(self, p: FloatArray, rows: Rows) -> FloatArray:
        """Return the predictions on other rows."""
        for update in self.updates:
            p = update(p, rows)
        return p


def _line(side: Side, learner: WeakLearner) -> Corrected:
    """Fit a slope and shifts of the log odds for everyone."""
    o = side.outcomes
    terms = line_terms(learner, Fitted(o.p, o.y, o.weight), (side.shared.seed, 0))
    updates = () if terms is None else (Update(terms, "mirror"),)
    return Corrected(updates, Corrected(updates, o.p).on(o.p, learner.rows))


def _groups(side: Side, learner: WeakLearner) -> Corrected:
    """Fit the shrunk block steps of degree 2 to the groups."""
    o, updates, p = side.outcomes, [], side.outcomes.p
    problem = Problem(o.y, o.weight, LowDegree(2), learner, 0.0, "mirror", seed=side.shared.seed, is_measured=False)
    for step in block(problem, p):
        updates.append(step.update)
        p = step.p
    return Corrected(tuple(updates), p)


class Boosting:
    """Trees in log odds, grown on some rows from given predictions; several classes move jointly."""

    def __init__(self, side: Side, learner: WeakLearner, start: FloatArray) -> None:
        self.outcomes, self.rows, self.start = side.outcomes, learner.rows, start
        self.counts = np.array([level.count for level in learner.encoder.levels])  # type: ignore[attr-defined]
        self.moved = np.zeros(start.shape)
        self.forests: list[list[Forest]] = []
        self.leaf = min(LEAF_ROWS, max(1.0, LEAF_SHARE * len(start)))

    def grow(self, n: int) -> Sequence[list[Forest]]:
        """Grow n more rounds; each is a forest for every label: all rounds at once for one label."""
        fresh = [self._round(n)] if self.start.shape[1] == 1 else [self._round(1) for _ in range(n)]
        self.forests += fresh
        return fresh

    def _round(self, n: int) -> list[Forest]:
        o, d = self.outcomes, self.start.shape[1]
        # log odds of one label against the rest move the other labels too: (d - 1) / d of them is the whole way
        growth = Growth(DEPTH, self.leaf, n, SHRINKAGE * (1.0 if d == 1 else (d - 1) / d), "mirror")
        f, forests, moved = mirror(self.start, self.moved), [], self.moved.copy()
        for a in range(d):
            odds = np.column_stack([scores(f[:, [a]])[:, 0], o.y[:, a]])
            rho, total = o.weight[:, None] * (o.y[:, [a]] - f[:, [a]]), np.zeros((len(f), 1))
            forests.append(grow(self.rows, self.counts, o.weight, rho, growth, total, odds))
            moved[:, [a]] += total
        self.moved = moved
        return forests

    def update(self) -> Update:
        """Return all rounds as one update."""
        terms = []
        for a in range(self.start.shape[1]):
            each = [forests[a] for forests in self.forests]
            forest = Forest(*(np.concatenate([getattr(f, part) for f in each]) for part in ("feature", "cut", "value")))
            h = forest(self.rows)
            scale = float(np.abs(h).max(initial=0.0))
            if scale > 0.0:
                name = f"sum of {len(forest.feature)} trees on all columns and the score"
                size = scale * np.eye(self.start.shape[1])[[a]][:, None]
                terms.append(Term(TreeSum(name, forest, scale), (Monomial(),), size))
        return Update(tuple(terms), "mirror")


def _fit(whole: Side, name: str, n_trees: int) -> tuple[tuple[Update, ...], Any]:
    """Fit the chosen candidate to all rows; return its updates and the encoder that they need."""
    if name in (UNCHANGED, LINE):
        nobody = whole.shared.groups_of([])
        return (() if name == UNCHANGED else _line(whole, nobody).updates), nobody.encoder
    if name == GROUPS:
        learner = whole.groups()
        return _groups(whole, learner).updates, learner.encoder
    bins = whole.bins()
    if name == TREES:
        before = _line(whole, bins)
        return (*before.updates, _boosted(whole, bins, before.p, n_trees)), bins.encoder
    learner = whole.groups()
    before = _groups(whole, learner)
    updates = [_in_part(0, update) for update in before.updates]
    updates.append(_in_part(1, _boosted(whole, bins, before.p, n_trees)))
    return tuple(updates), UnionEncoder((learner.encoder, bins.encoder))


def _boosted(whole: Side, bins: WeakLearner, start: FloatArray, n_trees: int) -> Update:
    boosting = Boosting(whole, bins, start)
    boosting.grow(n_trees)
    return boosting.update()


def _in_part(index: int, update: Update) -> Update:
    """Return an update that reads one part of the rows of a union."""
    return replace(update, terms=tuple(replace(term, family=Part(index, term.family)) for term in update.terms))


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

    def __init__(self, fitted: Side, held: Side) -> None:
        self.held, self.seconds = held, dict.fromkeys((UNCHANGED, LINE, GROUPS, TREES, BOTH), 0.0)
        self.p = {UNCHANGED: held.outcomes.p}
        learner = fitted.groups()
        rows = held.group_rows(fitted.shared.groups)
        before = {}
        for name, correct in ((LINE, _line), (GROUPS, _groups)):
            with self._timed(name):
                before[name] = correct(fitted, learner)
            self.p[name] = before[name].on(held.outcomes.p, rows)
        bins = fitted.bins()
        self.rows = held.bins(bins.encoder.levels).rows  # type: ignore[attr-defined]
        self.boosting = {TREES: Boosting(fitted, bins, before[LINE].p), BOTH: Boosting(fitted, bins, before[GROUPS].p)}
        self.start = {TREES: self.p[LINE], BOTH: self.p[GROUPS]}
        self.moved = {name: np.zeros(held.outcomes.p.shape) for name in self.boosting}

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = process_time()
        yield
        self.seconds[name] += process_time() - began

    def boost(self, name: str, n: int) -> Iterator[FloatArray]:
        """Grow n more rounds of trees and yield the predictions on the fold after each."""
        with self._timed(name):
            rounds = self.boosting[name].grow(n)
        for forests in rounds:
            for t in range(len(forests[0].feature)):
                step = [forest.value[t][forest.leaf(self.rows, t)] for forest in forests]
                self.moved[name] = self.moved[name] + np.concatenate(step, axis=1)
                yield mirror(self.start[name], self.moved[name])


def _judge(
    shared: Shared, outcomes: Outcomes, protected: WeakLearner, cv: int, passes: Passes
) -> tuple[list[Judged], FloatArray]:
    """Return all candidates on the judged folds, and the weights of these rows; too few rows can judge none."""
    if not are_enough(outcomes.weight):
        judge = Judge(Side(shared, outcomes, np.arange(len(outcomes.p))), protected)
        return [judge(UNCHANGED, [outcomes.p], 0.0)], outcomes.weight
    dealt = list(deal(outcomes.weight, 1.0 / cv, shared.seed, JUDGED))
    passes.start("fitting lines and groups", len(dealt), " folds")
    folds = []
    for fitted, held in dealt:
        folds.append(Fold(Side.of(shared, outcomes, fitted), Side.of(shared, outcomes, held)))
        passes.add(1)
    judge = Judge(Side.of(shared, outcomes, np.concatenate([held for _, held in dealt])), protected)
    found = [judge(name, [fold.p[name] for fold in folds], _seconds(folds, name)) for name in (UNCHANGED, LINE, GROUPS)]
    for name, start in ((TREES, LINE), (BOTH, GROUPS)):
        passes.start(f"boosting {name}", MOST_TREES, " rounds")
        best, n_best, n = [fold.p[start] for fold in folds], 0, 0
        least = judge.mean_loss(best)
        while n < MOST_TREES and n - n_best < PATIENCE:
            for each in zip(*(fold.boost(name, AT_A_TIME) for fold in folds), strict=True):
                n += 1
                passes.add(1)
                loss = judge.mean_loss(each)
                if loss < least:
                    least, best, n_best = loss, list(each), n
        found.append(replace(judge(name, best, _seconds(folds, name)), n_trees=n_best))
    return found, judge.outcomes.weight


def _seconds(folds: Sequence[Fold], name: str) -> float:
    """Return what a candidate costs on a fold's rows; trees begin with the line or the groups."""
    before = {TREES: LINE, BOTH: GROUPS}.get(name)
    return float(np.mean([fold.seconds[name] + (fold.seconds[before] if before else 0.0) for fold in folds]))


class Judge:
    """The judged rows: what held-out predictions are worth."""

    def __init__(self, side: Side, protected: WeakLearner) -> None:
        self.outcomes, self.design = side.outcomes, protected.design(side.group_rows(protected))

    def mean_loss(self, p: Sequence[FloatArray]) -> float:
        """Return the mean log loss of predictions, fold by fold."""
        return log_loss(np.concatenate(p), self.outcomes.y, self.outcomes.weight)

    def __call__(self, name: str, each: Sequence[FloatArray], seconds: float) -> Judged:
        """Return a candidate's figures from its predictions, fold by fold."""
        o, p = self.outcomes, np.concatenate(each)
        stops = np.cumsum([len(one) for one in each])[:-1]
        parts = zip(each, np.split(o.y, stops), np.split(o.weight, stops), strict=True)
        rho = o.weight[:, None] * (o.y - p)
        violation = LowDegree(2).suprema(p, rho, self.design).value.max()
        order = float(np.mean([auc(*part) for part in parts]))
        return Judged(name, p, log_losses(p, o.y), brier_losses(p, o.y), order, float(violation), seconds)


def _choose(found: Sequence[Judged], weight: FloatArray, *, is_protected: bool) -> Judged:
    """Return the simplest candidate within one standard error of the best that does no harm."""
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
    return is_fair and mean < -CAUTION * error and one.auc >= untouched.auc - ORDER


def _result(
    whole: Side,
    protected: WeakLearner,
    predictor: Predictor,
    found: Sequence[Judged],
    chosen: Judged,
    weight: FloatArray,
) -> Fit:
    """Return the fit: what was chosen, what every candidate did, and the figures of all rows."""
    o, p = whole.outcomes, whole.outcomes.p
    held = [
        {"held_out_log_loss": dot(weight, one.log_losses), "held_out_brier": dot(weight, one.brier_losses)}
        for one in (found[0], chosen)
    ]
    start = Record(0, np.nan, brier(p, o.y, o.weight), log_loss(p, o.y, o.weight), **held[0])
    history: list[Record] = []
    rows = predictor.rows(p, whole.shared.table)
    for update in predictor.updates:
        p = update(p, rows)
        history.append(Record(len(history) + 1, np.nan, brier(p, o.y, o.weight), log_loss(p, o.y, o.weight)))
    notion = LowDegree(2)
    violation = float(notion.suprema(p, o.weight[:, None] * (o.y - p), protected.design()).value.max())
    if history:
        history[-1] = replace(history[-1], violation=violation, **held[1])  # type: ignore[arg-type]
    fit = Fit(
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
    if predictor.updates:
        remember_rows(fit, o, whole.shared.table, p)
    return fit


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
