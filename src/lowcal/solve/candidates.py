"""Ways to recalibrate, from simple to rich: each is fitted to some rows and predicts others.

A line of the log odds (matrix scaling for a few classes), beta calibration, isotonic regression, groups with empirical
Bayes, and boosted trees that read the score as a column. Each adds to the scores of the model as it is, so that shares
of several can be taken: `recalibration` chooses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.optimize import isotonic_regression

from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import Outcomes
from lowcal.kernels.products import dot
from lowcal.kernels.reference import Codes
from lowcal.kernels.simplex import FLOOR, FloatArray, IntArray, scores
from lowcal.kernels.together import Grouped, Regressions, Weighted
from lowcal.notions.weights import Knots, LogOdds, LogRest, Monomial, Weight
from lowcal.rows import START, Memory
from lowcal.rows.updates import Term, Update
from lowcal.solve.blocks import split_terms
from lowcal.solve.homes import subset
from lowcal.solve.shrinkage import (
    LINE_ROWS,
    MOST_DENSE,
    Curve,
    Fitted,
    are_many,
    curvatures,
    fit_curve,
    fit_line_of,
    fit_matrix,
    group_step,
    logit_hessian,
    logit_step,
    logit_steps,
    shift_step,
)
from lowcal.subpopulations import Groups
from lowcal.subpopulations.base import EVERYONE, Encoded, Everyone, WeakLearner
from lowcal.subpopulations.bins import BinEncoder, Binned, Orderly, learn_bins
from lowcal.subpopulations.growing import Forest, Growth, OddsBooster
from lowcal.subpopulations.trees import TreeSum
from lowcal.subpopulations.union import Part, UnionEncoder

#: The candidates, from simple to rich.
UNCHANGED, LINE, TEMPERATURE, BETA = "unchanged", "line", "temperature", "beta"
ISOTONIC, GROUPS, TREES = "isotonic", "groups", "trees"
#: The depth of boosted trees, the share of its fit that each takes, and how many there are at most.
DEPTH, SHRINKAGE, MOST_TREES = 3, 0.15, 300
#: Numbers are cut into at most this many bins.
MOST_BINS = 32
#: A leaf holds at least this many rows, or this share of few.
LEAF_ROWS, LEAF_SHARE = 30, 0.02


@dataclass(frozen=True, eq=False)
class Shared:
    """The table of all rows, encoded once for all folds; no label has a say in it."""

    table: Frame
    weight: FloatArray
    p: FloatArray
    seed: int
    #: Whether the line is taken whole, as Platt scaling does, and not only as far as it shows on held-out rows.
    takes_line: bool = False

    @cached_property
    def scores(self) -> FloatArray:
        """The log odds, or the logarithms of several classes."""
        return scores(self.p)

    @cached_property
    def ties(self) -> list[tuple[FloatArray, IntArray]]:
        """The distinct predictions of each label, and which of them every row has."""
        return [np.unique(p, return_inverse=True) for p in self.p.T]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names for the columns of scores that no column of the table has."""
        d = self.p.shape[1]
        names = ["score"] if d == 1 else [f"score {a}" for a in range(d)]
        while set(names) & set(self.table.names):
            names = [f"{name}_" for name in names]
        return tuple(names)

    @cached_property
    def groups(self) -> WeakLearner:
        """The groups of all columns."""
        return self.groups_of(self.table.names)

    @cached_property
    def hessian(self) -> FloatArray:
        """The Hessian of the groups' regression on all rows, for two classes."""
        if self.is_small:
            return self.members.hessian(self.scores[:, 0], self.weight)
        rows = Memory.of(self.groups.rows, self.p, np.zeros(self.p.shape), self.weight)
        return logit_hessian(self.groups.families, rows, (self.seed, 0))

    @cached_property
    def grams(self) -> FloatArray:
        """The Gram matrices of the groups under each label's curvature on all rows, over the sum of the curvature."""
        h = curvatures(self.p, self.weight[:, None])
        return self.members.gram(h / h.sum(axis=0))

    def grams_near(self, curvature: FloatArray) -> FloatArray:
        """Return the Gram matrices under about this curvature, which may be that of some of the rows."""
        return np.asarray(self.grams * curvature.sum(axis=0)[:, None, None])

    @cached_property
    def everyone(self) -> int:
        """The place of everyone among the groups."""
        return self.groups.names.index(EVERYONE)

    @cached_property
    def is_small(self) -> bool:
        """Whether rows and groups are few enough to look at all of them at once."""
        return len(self.p) <= LINE_ROWS and len(self.groups.names) <= MOST_DENSE

    @cached_property
    def members(self) -> Grouped:
        """Which groups every row is in."""
        design = self.groups.design()
        assert isinstance(design, Codes)
        return Grouped(design)

    def groups_of(self, names: Sequence[str]) -> WeakLearner:
        """Return the groups of some columns."""
        return Groups(list(names)).bind(self.table, self.weight)

    @cached_property
    def bins(self) -> Orderly:
        """The bins of all rows in all columns and scores."""
        levels = tuple(learn_bins(name, self._scored, MOST_BINS, self.weight) for name in self._scored.names)
        return Orderly(levels, BinEncoder(levels)(self._scored).codes)

    @cached_property
    def counts(self) -> IntArray:
        """How many levels every column of bins has."""
        return np.array([level.count for level in self.bins.levels])

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

    @cached_property
    def fitted(self) -> Fitted:
        """As many of these rows as a few coefficients for everyone need."""
        return Fitted.few(self.rows_from(self.outcomes.p, ()), START, self.seed)

    @cached_property
    def line(self) -> Curve | None:
        """The line of everyone: Platt scaling, matrix scaling of a few classes, a temperature of many; None: noise."""
        d = self.outcomes.p.shape[1]
        if d == 1 or are_many(range(1 + d), d):
            return self.straight
        return fit_matrix(self.fitted, self.worth, self.straight)

    @cached_property
    def straight(self) -> Curve | None:
        """Platt scaling, or a temperature of several classes: it keeps the order of each row's classes; None: noise."""
        return fit_line_of(self.fitted, self.worth, self.outcomes.p.shape[1] == 1, not self.shared.takes_line)

    def keeps_order(self, name: str) -> bool:
        """Whether a candidate is a rising line of each score: it keeps the order, whatever those of single folds do."""
        is_straight = name == TEMPERATURE or (name == LINE and self.line is self.straight)
        return is_straight and self.straight is not None and bool(self.straight.theta[1, 0] > -1.0)

    @cached_property
    def worth(self) -> float:
        """The effective number of rows."""
        return 1.0 / dot(self.outcomes.weight, self.outcomes.weight)

    def rows_from(self, p: FloatArray, encoded: Encoded) -> Memory:
        """Return these rows, with predictions to go on from."""
        return Memory.of(encoded, p, self.outcomes.y, self.outcomes.weight)

    @property
    def seed(self) -> tuple[int, int]:
        """The seed of a step."""
        return self.shared.seed, 0

    def corrected(self, learner: WeakLearner, step: Step | None, before: Corrected | None = None) -> Corrected:
        """Return one step in log odds, or none, after what came before."""
        first = before or Corrected((), self.outcomes.p, learner.rows)
        return first if step is None else replace(first, steps=(*first.steps, step))

    def groups(self) -> WeakLearner:
        """Return the groups of all columns on these rows."""
        known = self.shared.groups
        return WeakLearner(known.encoder, self.group_rows(known), self.outcomes.weight, known.families)

    def group_rows(self, known: WeakLearner) -> tuple[IntArray, ...]:
        """Return these rows as listed groups read them."""
        return tuple(codes[self.index] for codes in known.rows)

    @cached_property
    def sums(self) -> FloatArray:
        """The sums over all levels of columns that put their categories in order."""
        return self.shared.bins.sums(self.index, self.outcomes.weight, self.outcomes.residual())

    def bins(self) -> WeakLearner:
        """Return the bins of these rows, with categories in the order of their residuals."""
        bins = self.shared.bins
        place = bins.order_by(self.sums)
        rows = Binned(bins.codes_after(place)[self.index])
        return WeakLearner(BinEncoder(bins.levels_after(place)), rows, self.outcomes.weight, [Everyone()])


#: A correction of everyone, or an update of groups: takes predictions and rows.
Step: TypeAlias = Curve | Update


@dataclass(frozen=True, eq=False)
class Corrected:
    """Steps that were fitted to some rows, with the predictions before them: what one adds to scores, none changes."""

    steps: tuple[Step, ...]
    start: FloatArray
    rows: Encoded

    @cached_property
    def p(self) -> FloatArray:
        """The predictions on these rows, when they are asked for."""
        return self.on(self.start, self.rows)

    def on(self, p: FloatArray, rows: Encoded) -> FloatArray:
        """Return the predictions on other rows."""
        for step in self.steps:
            p = step(p, rows)
        return p

    def terms(self, share: float, learner: WeakLearner) -> list[Term]:
        """Return a share of the steps, as terms that read a learner's rows."""
        everyone = learner.member(learner.names.index(EVERYONE))
        each = [(step.term(everyone),) if isinstance(step, Curve) else step.terms for step in self.steps]
        return [term.scaled(share) for terms in each for term in terms]


def line(side: Side, learner: WeakLearner) -> Corrected:
    """Fit a line of the log odds for everyone, or of the logarithms of several classes."""
    return side.corrected(learner, side.line)


def temperature(side: Side, learner: WeakLearner) -> Corrected:
    """Fit a temperature of several classes."""
    return side.corrected(learner, side.straight)


def beta(side: Side, learner: WeakLearner) -> Corrected:
    """Fit a shift, a multiple of log p and one of log(1 - p) for everyone: beta calibration, shrunk.

    Where the curve falls anywhere, the line stands in: at scores that few rows have, such a curve goes far astray.
    """
    curve = fit_curve((Monomial(), LogOdds(), LogRest()), side.fitted, side.worth)
    if curve is not None and not is_rising(*curve.theta[1:, 0]):
        curve = side.line
    return side.corrected(learner, curve)


def is_rising(slope: float, bend: float) -> bool:
    """Whether (1 + slope) log p - (1 + slope - bend) log(1 - p), the log odds of beta calibration, falls nowhere."""
    return min(1.0 + slope, 1.0 + slope - bend) >= 0.0


def isotonic(side: Side, learner: WeakLearner) -> Corrected:
    """Fit a rising function of each label's own probability: isotonic regression, drawn through its blocks.

    A block counts one row more, with the model's own mean there: no prediction is 0 or 1.
    """
    o, rows = side.outcomes, side.worth
    d = o.p.shape[1]
    weights: list[Weight] = [Monomial()]
    theta = np.zeros((1 + d, d))
    for a in range(d):
        places, which = side.shared.ties[a]
        centre, mean, mass = _blocks(places, which[side.index], o.y[:, a], o.weight)
        target = np.maximum.accumulate((rows * mass * mean + centre) / (rows * mass + 1.0))
        before, after = (np.stack([each, 1.0 - each], axis=1)[:, : 1 + (d == 1)] for each in (centre, target))
        move = np.log(np.maximum(after, FLOOR)) - np.log(np.maximum(before, FLOOR))
        height = move[:, 0] - (move[:, 1] if d == 1 else 0.0)
        span = float(np.ptp(height))
        weights.append(Knots(a, centre, (height - height.min()) / (span or 1.0)))
        theta[[0, 1 + a], a] = height.min(), span
    return side.corrected(learner, Curve(tuple(weights), theta))


def _blocks(
    places: FloatArray, which: IntArray, y: FloatArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the mean prediction, mean outcome and mass of the blocks of an isotonic regression.

    `places` are the distinct predictions, and `which` says which of them a row has.
    """
    mass, total = (np.bincount(which, each, len(places)) for each in (weight, weight * y))
    held = np.flatnonzero(mass)
    places, mass, total = places[held], mass[held], total[held]
    starts = isotonic_regression(total / mass, weights=mass).blocks[:-1]
    masses = np.add.reduceat(mass, starts)
    return np.add.reduceat(mass * places, starts) / masses, np.add.reduceat(total, starts) / masses, masses


def groups(side: Side, learner: WeakLearner) -> Corrected:
    """Fit shrunk shifts and slopes of the log odds to all groups; to several classes a line, then shifts."""
    if side.outcomes.p.shape[1] == 1:
        start = np.zeros(2) if side.line is None else side.line.theta[:, 0]
        if side.shared.is_small and len(side.index) == len(side.shared.p):
            return side.corrected(learner, _fit_all_rows(side, start))
        rows = side.rows_from(side.outcomes.p, learner.rows)
        moved = logit_step(learner.families, rows, START, side.seed, lambda: side.shared.hessian, start)
        return side.corrected(learner, None if moved is None else moved.update)
    before = line(side, learner)
    if side.shared.is_small:
        return side.corrected(learner, _fit_shifts(side, before.p), before)
    moved = group_step(learner.families, (Monomial(),), side.rows_from(before.p, learner.rows), START, side.seed)
    return side.corrected(learner, None if moved is None else moved.update, before)


def _fit_shifts(side: Side, p: FloatArray) -> Update | None:
    """Fit shifts of all groups to few rows of several classes, from predictions p on."""
    shared, rows = side.shared, Fitted(p, side.outcomes.y, side.outcomes.weight)
    theta = shift_step(shared.members.take(side.index), rows, cache(lambda: shared.grams_near(rows.curvature)))
    return Update(split_terms(shared.groups.families, (Monomial(),), theta), "mirror") if theta.any() else None


def _fit_all_rows(side: Side, line: FloatArray) -> Update | None:
    """Fit shifts and slopes of all groups to all of few rows."""
    o, shared = side.outcomes, side.shared
    rows = Weighted(shared.scores[:, 0], o.y[:, 0], o.weight[:, None])
    theta = logit_steps(Regressions(rows, shared.members), lambda: shared.hessian, line[:, None], shared.everyone)
    terms = split_terms(shared.groups.families, (Monomial(), LogOdds()), theta)
    return Update(terms, "mirror") if theta.any() else None


class Boosting:
    """Trees in log odds, grown on some rows from given predictions; several classes move jointly."""

    def __init__(self, side: Side, rows: Binned, start: FloatArray) -> None:
        o, self.rows = side.outcomes, rows
        self.start, y = (np.ascontiguousarray(each.T) for each in (scores(start), o.y))
        self.booster, self.moved = OddsBooster(rows, side.shared.counts, o.weight, self.start, y), np.zeros(y.shape)
        self.leaf = min(LEAF_ROWS, max(1.0, LEAF_SHARE * len(start)))

    def grow(self, n: int) -> list[Forest]:
        """Grow n more rounds; return those of every label."""
        d = len(self.moved)
        # log odds of one label against the rest move the other labels too: (d - 1) / d of them is the whole way
        share = SHRINKAGE if d == 1 else SHRINKAGE * (d - 1) / d
        forests = self.booster.grow(Growth(DEPTH, self.leaf, n, share, "mirror"), MOST_TREES)
        self.moved = self.booster.z - self.start
        return forests

    def update(self, forests: Sequence[Forest], share: float) -> Update:
        """Return a share of all rounds, grown in one go, as one update."""
        terms, labels = [], np.eye(len(forests))
        for a, forest in enumerate(forests):
            scale = float(np.abs(self.rows.once(forest, self.moved[a][:, None].copy)).max(initial=0.0))
            if scale > 0.0:
                name = f"sum of {len(forest.feature)} trees on all columns and the score"
                size = share * scale * labels[[a]][:, None]
                terms.append(Term(TreeSum(name, forest, scale), (Monomial(),), size))
        return Update(tuple(terms), "mirror")


#: The candidates that are fitted in one go.
SIMPLE: dict[str, Callable[[Side, WeakLearner], Corrected]] = {
    LINE: line,
    TEMPERATURE: temperature,
    BETA: beta,
    ISOTONIC: isotonic,
    GROUPS: groups,
}


def simple_names(d: int) -> tuple[str, ...]:
    """Return the candidates that are fitted in one go, simple ones first; a temperature where a line is more."""
    more = (BETA,) if d == 1 else () if are_many(range(1 + d), d) else (TEMPERATURE,)
    return LINE, *more, ISOTONIC, GROUPS


def trees_begin_with(d: int) -> str:
    """Return the candidate that trees go on from: the one with the fewest coefficients."""
    return TEMPERATURE if TEMPERATURE in simple_names(d) else LINE


class Final(NamedTuple):
    """Candidates fitted to all rows: their updates, the encoder that they need, and these rows as it encodes them."""

    updates: tuple[Update, ...]
    encoder: Any
    rows: Encoded


def fit(whole: Side, shares: Mapping[str, float], n_trees: int) -> Final:
    """Fit shares of candidates to all rows; that of trees is also one of the line that they begin with, if not all."""
    bins = whole.bins() if TREES in shares and n_trees > 0 else None
    learner = whole.groups() if GROUPS in shares else bins or whole.shared.groups_of([])
    start = trees_begin_with(whole.outcomes.p.shape[1])
    simple = {start: shares.get(start, 0.0) + shares.get(TREES, 0.0)} | {
        name: share for name, share in shares.items() if name not in (start, TREES)
    }
    corrected = {name: SIMPLE[name](whole, learner) for name, share in simple.items() if share > 0.0}
    terms = [term for name, one in corrected.items() for term in one.terms(simple[name], learner)]
    first = Update(tuple(term for term in terms if term.theta.any()), "mirror")
    trees = _boosted(whole, bins, n_trees, shares[TREES]) if bins else Update((), "mirror")
    encoder, rows = learner.encoder, learner.rows
    if bins and learner is not bins:
        first, trees = _in_part(0, first), _in_part(1, trees)
        encoder, rows = UnionEncoder((learner.encoder, bins.encoder)), (learner.rows, bins.rows)
    return Final(tuple(update for update in (first, trees) if update.terms), encoder, rows)


def _boosted(whole: Side, bins: WeakLearner, n_trees: int, share: float) -> Update:
    boosting = Boosting(whole, bins.rows, whole.corrected(bins, whole.straight).p)
    return boosting.update(boosting.grow(n_trees), share)


def _in_part(index: int, update: Update) -> Update:
    """Return an update that reads one part of the rows of a union."""
    return replace(update, terms=tuple(replace(term, family=Part(index, term.family)) for term in update.terms))
