"""Steps in log odds, shrunk by empirical Bayes: the rows themselves determine the prior, by pools of groups.

Groups that partition the rows (the values of one column, the crossings of two) form a pool, whose coefficients are
taken as draws from N(0, tau^2), for each weight. A moment g of a feature with curvature h has the variance
v + h^2 tau^2, v being that of its noise, so tau^2 is estimated by

    tau^2 = max(0, sum of (g^2 / v - 1)) / sum of (h^2 / v)

(DerSimonian and Laird), and coefficients minimise log loss + theta^2 / (2 n tau^2). Where a pool shows no more than
noise, tau is 0 and its groups are left out: thousands of groups on thousands of rows do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from lowcal.kernels.logistic import Regression, fit_coefficients, fit_line, regress
from lowcal.kernels.products import dot, product
from lowcal.kernels.reference import Codes, DecodeTable, Design, stack
from lowcal.kernels.simplex import SMALLEST, FloatArray, IntArray, from_scores, log_loss, mirror, scores, sigmoid
from lowcal.kernels.together import Grouped, Regressions, regress_each
from lowcal.notions.base import Notion, Suprema
from lowcal.notions.weights import Cell, Evaluated, LogOdds, Monomial, Weight, evaluate, monomials
from lowcal.rows.base import FEW_ROWS, START, Local, Memory, Rows, State
from lowcal.rows.keys import MANY_ROWS
from lowcal.rows.passes import Evidence, Gradient, Seen, curvatures, losses
from lowcal.rows.updates import Term, Update
from lowcal.solve.blocks import (
    GRAM_ROWS,
    MOST_WITNESSES,
    RIDGE,
    WITNESS_ROWS,
    ridge_solve,
    shrunk_step,
    solve_all,
    split_terms,
    step_along,
    take_columns,
)
from lowcal.subpopulations.base import EVERYONE, Family, WeakLearner
from lowcal.subpopulations.memberships import Members

#: A step of groups is made of at most this many Newton steps; it ends with one that gains less than this share.
MOST_STEPS, LITTLE = 12, 0.01
#: The most members with a dense Hessian of the logit step.
MOST_DENSE = 500
#: The prior of a logit step is loosened this often at most.
LOOSENED = 3
#: The line of everyone is fitted to at most this many rows; one that a regression only starts from, to these.
LINE_ROWS, START_ROWS = FEW_ROWS, FEW_ROWS // 10
#: The prior variance of what a regression starts from: next to no prior.
FREE = 100.0


@dataclass(frozen=True, eq=False)
class Fitted:
    """Fitted rows as a step sees them: predictions, outcomes, and weights that sum to one.

    `unit` are the weights of single copies, where rows stand for several.
    """

    p: FloatArray
    y: FloatArray
    weight: FloatArray
    unit: FloatArray | None = None

    @classmethod
    def few(cls, rows: Rows, state: State, seed: Sequence[int]) -> Fitted:
        """Return the rows that a few coefficients for everyone need, as they are after a state."""
        some = rows.few(seed, LINE_ROWS)
        return cls(some.at(state), some.y, some.weight, some.unit)

    @property
    def n(self) -> float:
        """The effective number of rows."""
        return 1.0 / dot(self.weight, self.weight if self.unit is None else self.unit)

    @cached_property
    def loss(self) -> float:
        """The log loss."""
        return log_loss(self.p, self.y, self.weight)

    @property
    def rho(self) -> FloatArray:
        """The weighted residuals."""
        return self.weight[:, None] * (self.y - self.p)

    @property
    def curvature(self) -> FloatArray:
        """The weighted curvature f (1 - f) of the log loss in each coordinate."""
        return curvatures(self.p, self.weight[:, None])

    @property
    def noise(self) -> FloatArray:
        """The variances of the weighted residuals."""
        return np.asarray((self.weight if self.unit is None else self.unit)[:, None] * self.curvature)


# --- which groups, which weights ------------------------------------------------------------------------------


def depths_of(learner: WeakLearner) -> IntArray:
    """Return the number of conditions of every known member: 0 for everyone, 1 where a family does not know."""
    depths = [
        depth
        for family in learner.families
        for depth in getattr(family, "depths", None) or [int(name != EVERYONE) for name in family.names]
    ]
    return np.array(depths, dtype=np.intp)


def members_up_to(learner: WeakLearner, depth: int) -> list[Family]:
    """Return the families cut down to members of at most this many conditions."""
    depths, families, start = depths_of(learner), [], 0
    for family in learner.families:
        inside = np.flatnonzero(depths[start : start + len(family.names)] <= depth)
        start += len(family.names)
        if len(inside):
            families.append(family if len(inside) == len(family.names) else family.take(inside))
    return families


def logit_weights(notion: Notion, d: int) -> tuple[Weight, ...]:
    """Return the weights of a logit step: a shift, and for two classes a slope unless only means are asked about."""
    if d == 1 and set(monomials(1, 1)) <= set(notion.probes(1)):
        return (Monomial(), LogOdds())
    return (Monomial(),)


def starts_with_line(notion: Notion, learner: WeakLearner, d: int) -> bool:
    """Whether the logit step of groups is a regression that starts from the line of everyone."""
    return LogOdds() in logit_weights(notion, d) and len(learner.names) <= MOST_DENSE


def notion_weights(notion: Notion, features: tuple[Weight, ...], d: int) -> tuple[Weight, ...]:
    """Return the notion's own features, or its probes where these are many; none: witnesses of an infinite class."""
    probes = tuple(notion.probes(d))
    return probes if are_many(features or probes, d) else features


def probes_and_labels(notion: Notion, d: int) -> list[tuple[Weight, int]]:
    """Return the weights and labels that a learner is asked about: every pair, or of many each label's own."""
    probes, labels = tuple(notion.probes(d)), range(d)
    if has_own_weights(probes, d):
        return [*((Monomial(), a) for a in labels), *((Monomial((a,)), a) for a in labels)]
    return [(u, a) for u in probes for a in labels]


def has_own_weights(weights: tuple[Weight, ...], d: int) -> bool:
    """Whether a label of many classes has weights of its own, 1 and its coordinate, instead of all coordinates."""
    return are_many(weights, d) and weights == monomials(d, 1)


def are_many(weights: Sequence[object], d: int) -> bool:
    """Whether weights times labels are more than every group is given coefficients for: the few probes take over."""
    return len(weights) * d > 64


# --- the prior ------------------------------------------------------------------------------------------------


def pools_of(design: Design) -> IntArray:
    """Return the number of every member's pool: groups that partition the rows, or all columns of a matrix.

    >>> from scipy import sparse
    >>> both = DecodeTable(sparse.csr_array(np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])))  # everyone, a, b
    >>> pools_of(Codes((np.array([0, 1, 1]),), (both,)))
    array([1, 2, 2])
    """
    pools, last = [], 0
    for column in design.columns():
        m = column.shape[1]
        if isinstance(column, Codes) and isinstance(column.decode[0], DecodeTable):
            runs = column.decode[0].runs
            pools.append(last + runs)
            last = pools[-1][-1]
        else:
            pools.append(np.zeros(m, dtype=np.intp))
    return np.concatenate(pools).astype(np.intp)


def precisions(g: FloatArray, h: FloatArray, v: FloatArray, pools: IntArray, n: float) -> FloatArray:
    """Return the prior precision 1 / (n tau^2) of every feature from moments, curvatures and noise, shapes (m, S, d).

    A pool is taken for each weight and for all labels together. It is infinite where a pool shows no more than noise.

    >>> g, one = np.array([[[3.0]], [[-3.0]], [[0.1]]]), np.ones((3, 1, 1))
    >>> precisions(g, one, one, np.array([0, 0, 1]), 1.0).ravel()
    array([0.125, 0.125,   inf])
    """
    live = h > SMALLEST
    safe = np.where(live, v, 1.0)
    excess = np.where(live, np.square(g) / safe - 1.0, 0.0)
    information = np.where(live, np.square(h) / safe, 0.0)
    totals = np.zeros((int(pools.max()) + 1, 3, g.shape[1]))
    np.add.at(totals, pools, np.stack([live, excess, information], axis=1).sum(axis=3))
    count, extra, known = totals[:, 0], totals[:, 1], totals[:, 2]
    is_seen = (extra > np.sqrt(2.0 * count)) & (known > 0.0)  # by one standard deviation of a chi-square
    precision = np.divide(known, n * extra, out=np.full(extra.shape, np.inf), where=is_seen)
    return np.where(live, precision[pools][:, :, None], np.inf)


# --- steps ----------------------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """A correction of everyone that reads the prediction alone: weights, and coefficients of shape (weights, d)."""

    weights: tuple[Weight, ...]
    theta: FloatArray

    def __call__(self, p: FloatArray, rows: object = None) -> FloatArray:
        """Return the predictions moved in log space."""
        return mirror(p, product(np.asarray(evaluate(self.weights, p)), self.theta))

    def term(self, everyone: Family) -> Term:
        """Return the same as a term of an update."""
        return Term(everyone, self.weights, self.theta[None])


def line_step(rows: Rows, state: State, learner: WeakLearner, seed: Sequence[int]) -> State | None:
    """Return the line of everyone; None if it is noise, or nobody is everyone."""
    if EVERYONE not in learner.names:
        return None
    line = fit_line_of(Fitted.few(rows, state, seed), rows.worth)
    if line is None:
        return None
    return state.then(Update((line.term(learner.member(learner.names.index(EVERYONE))),), "mirror"))


def fit_line_of(few: Fitted, n: float, has_shifts: bool = True, is_shrunk: bool = True) -> Curve | None:
    """Return one slope of the scores and a shift for each label, for rows worth n; None if it is noise.

    The shifts of several labels are shrunk as a pool, or left out; the whole by James and Stein's factor, if at all.
    """
    d = few.p.shape[1]
    precision = 0.0 if has_shifts else np.inf
    if d > 1 and has_shifts:
        g, h = few.rho.sum(axis=0)[None, None], few.curvature.sum(axis=0)[None, None]
        precision = float(precisions(g, h, h / few.n, np.zeros(1, dtype=np.intp), few.n).min()) * few.n / n
    slope, shifts = fit_line(few.p, few.y, few.weight, precision)
    curve = Curve(line_weights(d), np.vstack([shifts, slope * np.eye(d)]))
    return _james_stein(curve, few, n, float(is_shrunk) * (2.0 if d == 1 else 1.0))


def line_weights(d: int) -> tuple[Weight, ...]:
    """Return the weights of a line: 1, and the log odds or the logarithm of each coordinate."""
    return (Monomial(), *(LogOdds(a) for a in range(d)))


def fit_curve(weights: tuple[Weight, ...], few: Fitted, n: float) -> Curve | None:
    """Return coefficients of a few weights for each label, of least log loss, shrunk as a line is; None if noise."""
    theta = fit_coefficients(scores(few.p), np.asarray(evaluate(weights, few.p)), few.y, few.weight)
    return _james_stein(Curve(weights, theta), few, n, float(len(weights) * max(1, few.p.shape[1] - 1)))


def fit_matrix(few: Fitted, n: float, line: Curve | None) -> Curve | None:
    """Return shifts and multiples of every log p_b for each label, for rows worth n: matrix scaling; None if noise.

    It starts from a temperature, from which multiples deviate by N(0, 1): rows of a rare label alone would set them
    anywhere. What it gains beyond the temperature is shrunk as a line is.
    """
    d, weights = few.p.shape[1], line_weights(few.p.shape[1])
    start = np.zeros((1 + d, d)) if line is None else line.theta
    U = np.asarray(evaluate(weights, few.p))
    precision = np.where(np.arange(1 + d) > 0, 1.0 / few.n, 0.0)
    more = fit_coefficients(scores(few.p) + product(U, start), U, few.y, few.weight, precision)
    free = (1 + d) * (d - 1) - (line is not None)
    return _james_stein(Curve(weights, start + more), few, n, float(free), line)


def _james_stein(curve: Curve, few: Fitted, n: float, free: float, before: Curve | None = None) -> Curve | None:
    """Return 1 - k / Q of the way to a curve, Q being the likelihood-ratio statistic 2 n (fall of the log loss).

    The way begins at the curve before it; None: at predictions as they are.
    """
    loss, start = few.loss, np.zeros(curve.theta.shape)
    if before is not None:
        loss, start = log_loss(before(few.p), few.y, few.weight), before.theta
    fall = 2.0 * n * (loss - log_loss(curve(few.p), few.y, few.weight))
    return before if fall <= free else curve._replace(theta=start + (1.0 - free / fall) * (curve.theta - start))


@dataclass(frozen=True, eq=False)
class Features:
    """The features c(x) u(f) of a step: members, weights, and rows whose f is that of a state.

    Of many classes, every label has two weights of its own, 1 and its coordinate (`own`).
    """

    rows: Rows
    base: State
    families: tuple[Family, ...]
    weights: tuple[Weight, ...]

    @cached_property
    def pools(self) -> IntArray:
        """The number of every member's pool, from the design on any of the rows."""
        return pools_of(self.rows.few(0, GRAM_ROWS).design(self.families))

    @property
    def own(self) -> bool:
        """Whether every label has weights of its own."""
        return has_own_weights(self.weights, self.rows.d) and sum(len(f.names) for f in self.families) > 1

    def seen(self, now: State) -> Seen:
        """Return moments, curvatures and noise where rows are now."""
        return self.rows.run(Evidence(self.base, now, self.families, self.weights, self.own, self.rows.is_even))

    def moved(self, theta: FloatArray) -> State:
        """Return the state after a step with these coefficients."""
        return self.base.then(Update(self.terms(theta), "mirror"))

    def terms(self, theta: FloatArray) -> tuple[Term, ...]:
        """Return the terms of coefficients (m, S, d): those of all `monomials(d, 1)` from each label's own two."""
        if self.own:
            m, _, d = theta.shape
            common, labels = np.zeros((m, 1 + d, d)), np.arange(d)
            common[:, 0], common[:, 1 + labels, labels] = theta[:, 0], theta[:, 1]
            theta = common
        return split_terms(self.families, self.weights, theta)

    def evaluated(self, some: Local) -> list[Evaluated]:
        """Return the weights on some rows: one evaluation that all labels share, or one for each."""
        p = some.at(self.base)
        if self.own:
            return [np.column_stack([np.ones(len(p)), p[:, a]]) for a in range(p.shape[1])]
        return [evaluate(self.weights, p)]


def group_step(
    families: Sequence[Family],
    weights: tuple[Weight, ...],
    rows: Rows,
    state: State,
    seed: Sequence[int],
) -> State | None:
    """Return the shrunk step of the log loss along c(x) u(f), for all members and weights; None if it is all noise.

    Newton's steps, each shrunk by what the one before has left, until one gains little: groups that are far off are
    shrunk less in the end than the many that are not.
    """
    features = Features(rows, state, tuple(families), weights)
    now, theta, gained = state, None, 0.0
    for _ in range(MOST_STEPS):
        solved = _newton(features, now, features.pools, seed)
        if solved is None:
            break
        eta = shrunk_step(rows, state, now, features.terms(solved.theta), solved.price)
        total = eta * solved.theta + (0.0 if theta is None else theta)
        moved = features.moved(total)
        gain = losses(rows, now).log_loss - losses(rows, moved).log_loss
        if gain < 1.0 / rows.worth:
            break
        theta, now, gained = total, moved, gained + gain
        if gain < LITTLE * gained:
            break
    return None if theta is None else now


def shift_step(members: Grouped, rows: Fitted, grams: Callable[[], FloatArray]) -> FloatArray:
    """Return the shifts (m, 1, d) of `group_step` for all groups of few rows, by the same steps; 0 if all is noise.

    `grams` returns the Gram matrices of the groups on about these rows, under each label's curvature.
    """
    pools, n, z, now = pools_of(members.design), rows.n, scores(rows.p), rows
    theta, gained = np.zeros((members.matrix.shape[1], 1, z.shape[1])), 0.0
    for _ in range(MOST_STEPS):
        seen = np.split(members.moments(np.hstack([now.rho, now.curvature, now.noise])), 3, axis=1)
        solved = _shrunk(Seen(*(each[:, None] for each in seen)), pools, n, partial(_solve_shifts, grams))
        if solved is None:
            break
        delta = members.combined(solved.theta[:, 0])
        eta = step_along(partial(_slopes, now, z, delta, solved.price))
        moved = replace(now, p=from_scores(z + eta * delta))
        gain = now.loss - moved.loss
        if gain < 1.0 / n:
            break
        theta, z, now, gained = theta + eta * solved.theta, z + eta * delta, moved, gained + gain
        if gain < LITTLE * gained:
            break
    return theta


def _slopes(rows: Fitted, z: FloatArray, delta: FloatArray, price: float, steps: tuple[float, ...]) -> FloatArray:
    """Return the derivatives of the log loss + step^2 price / 2 at some steps along delta."""
    own = rows.weight[:, None] * delta
    return np.array([((from_scores(z + step * delta) - rows.y) * own).sum() + step * price for step in steps])


def logit_step(
    families: Sequence[Family],
    rows: Rows,
    state: State,
    seed: Sequence[int],
    hessian: Callable[[], FloatArray] | None = None,
    line: FloatArray | None = None,
    is_mild: bool = False,
) -> State | None:
    """Return the shift and the slope of the log odds of every member, for two classes; None if all of it is noise.

    The same shrinkage as that of `group_step`, by the regression that takes the fewest passes over the rows. What a
    regression leaves that is more than noise loosens its prior, and it continues from where it is. `hessian` may be
    that of about these rows; the `line` of everyone, (shift, slope), is where it starts. With a mild prior all members
    take part, noise or not.
    """
    names = [name for family in families for name in family.names]
    m, weights = len(names), (Monomial(), LogOdds())
    if m > MOST_DENSE:
        return group_step(families, weights, rows, state, seed)
    features = Features(rows, state, tuple(families), weights)
    few = _few_rows(features, seed)
    prior = _Prior(features, few, hessian)
    theta, free = np.zeros((m, 2)), np.zeros((m, 2))
    if EVERYONE in names:
        everyone = names.index(EVERYONE)
        theta[everyone], free[everyone] = _line_of_few(few) if line is None else line, FREE
    if is_mild:
        theta, _ = prior.regress(np.maximum(free, (1.0, 0.025)), theta)  # variances of shifts and slopes
    else:
        theta = _loosened(prior, free, theta)
    return features.moved(theta[:, :, None]) if theta.any() else None


@dataclass(frozen=True, eq=False)
class _Whole:
    """A regression on all rows, by passes."""

    features: Features
    penalty: FloatArray

    @property
    def size(self) -> int:
        """How many rows there are."""
        return self.features.rows.scale.n

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return minus the gradient of the penalised loss."""
        own = self.features
        return own.rows.run(Gradient(own.base, own.families, theta)) - self.penalty * theta


@dataclass(eq=False)
class _Prior:
    """A regression on all rows and on some, to be solved under one prior after the other; one Hessian serves all."""

    features: Features
    few: Regression
    hessian: Callable[[], FloatArray] | None
    _found: FloatArray | None = None

    def regress(self, variance: FloatArray, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return coefficients and remaining moments for prior variances (m, 2); those without variance stay at 0."""
        if self._found is None:
            self._found = self.few.hessian(theta) if self.hessian is None else self.hessian()
        n, is_open = self.features.rows.worth, variance > 0.0
        penalty = np.divide(1.0 / n, variance, out=np.zeros(variance.shape), where=is_open)
        whole = _Whole(self.features, penalty)
        some = None if self.few.size == whole.size else replace(self.few, penalty=penalty)
        theta, left = regress(whole, some, self._found, theta, n, is_open)
        # at a minimum the moment of an open coefficient equals the pull of its prior
        return theta, np.where(is_open, penalty * theta, left)


def _loosened(prior: _Prior, variance: FloatArray, theta: FloatArray) -> FloatArray:
    """Return coefficients under the prior that the rows imply; what is left beyond noise loosens it a few times."""
    features = prior.features
    seen = features.seen(features.moved(theta[:, :, None]) if theta.any() else features.base)
    n, g, h = features.rows.worth, seen.g, seen.h  # the curvatures at the start will do
    for _ in range(LOOSENED):
        found = 1.0 / (n * precisions(g, h, h / n, features.pools, n)[:, :, 0])
        if not found.any():
            break
        variance = variance + found
        theta, left = prior.regress(variance, theta)
        g = left[:, :, None]
    return theta


def logit_steps(groups: Regressions, hessian: Callable[[], FloatArray], line: FloatArray, everyone: int) -> FloatArray:
    """Return the coefficients (m, 2, F) of `logit_step` under each column of weights, all columns at once.

    `line` are the shifts and slopes of everyone, shape (2, F), where the regressions start.
    """
    pools, worth, going = pools_of(groups.members.design), groups.rows.worth, np.arange(line.shape[1])
    theta, variance = np.zeros((2, groups.members.design.shape[1], *line.shape))
    theta[everyone], variance[everyone] = line, FREE
    f = groups.predict(theta)
    g, h = groups.moments(groups.rows.residuals(f)), groups.moments(curvatures(f, groups.rows.weight), 2)
    for _ in range(LOOSENED):
        # columns of weights have pools of their own
        flat, here, curvature = (len(g), -1, 1), g[..., going], h[..., going]
        noise = (curvature / worth[going]).reshape(flat)
        found = 1.0 / precisions(here.reshape(flat), curvature.reshape(flat), noise, pools, 1.0).reshape(here.shape)
        more = found.any(axis=(0, 1))  # whether more is left than the prior allows for
        going = going[more]
        if not len(going):
            break
        variance[..., going] += found[..., more]
        some, is_open = groups.take(going), variance[..., going] > 0.0
        penalty = np.divide(1.0 / some.rows.worth, variance[..., going], out=np.zeros(is_open.shape), where=is_open)
        theta[..., going], left = regress_each(some, hessian(), penalty, is_open, theta[..., going])
        g[..., going] = np.where(is_open, penalty * theta[..., going], left)
    return np.asarray(theta)


def logit_hessian(families: Sequence[Family], rows: Rows, seed: Sequence[int]) -> FloatArray:
    """Return the Hessian of `logit_step` where nothing is corrected yet, without a look at outcomes."""
    few = _few_rows(Features(rows, START, tuple(families), (Monomial(), LogOdds())), seed)
    return few.hessian(np.zeros(few.penalty.shape))


def _few_rows(features: Features, seed: Sequence[int]) -> Regression:
    """Return the regression on the rows that its Hessian needs."""
    n, m = features.rows.scale.n, sum(len(family.names) for family in features.families)
    size = max(GRAM_ROWS, 20 * m, min(n // 10, MANY_ROWS))
    some = features.rows.few(seed, size)
    z = some.scores(features.base)[:, 0]
    return Regression(some.design(features.families), z, some.y[:, 0], some.weight, np.zeros((m, 2)))


def _line_of_few(regression: Regression) -> FloatArray:
    """Return the shift and the slope of the line of everyone, from few rows."""
    few = slice(None, None, -(-len(regression.z) // START_ROWS))
    weight = regression.weight[few]
    slope, shift = fit_line(sigmoid(regression.z[few, None]), regression.y[few, None], weight / weight.sum())
    return np.array([shift[0], slope])


def witness_step(
    learner: WeakLearner, found: Suprema, rows: Rows, state: State, depth: int, seed: Sequence[int]
) -> State | None:
    """Return the shrunk step of an infinite weight class: the worst subpopulations bring their witnesses."""
    order = np.argsort(-found.value, kind="stable")
    worst = order[(depths_of(learner)[order] <= depth) & (found.value[order] > 0.0)][:MOST_WITNESSES]
    if len(worst) == 0:
        return None
    whole = rows.few(seed, WITNESS_ROWS)
    p, design, witnesses = whole.at(state), whole.design(learner.families), [found.witness(int(j)) for j in worst]
    members = [(design.column(int(j)), one) for j, one in zip(worst, witnesses, strict=True)]
    A = np.stack([c[:, None] * one(p) for c, one in members])
    solved = [_witness_label(A[:, :, a].T, whole, p, a, seed) for a in range(rows.d)]
    size, price = np.stack([one.theta[:, 0, 0] for one in solved], axis=1), sum(one.price for one in solved)
    terms = tuple(
        Term(learner.member(int(j)), witness.weights, (witness.coefficients * size[k])[None])
        for k, (j, witness) in enumerate(zip(worst, witnesses, strict=True))
        if size[k].any()
    )
    eta = shrunk_step(rows, state, state, terms, price) if terms else 0.0
    return state.then(Update(tuple(term.scaled(eta) for term in terms), "mirror")) if eta > 0.0 else None


class Solved(NamedTuple):
    """Coefficients of shape (m, S, d) and what the prior charges for them."""

    theta: FloatArray
    price: float


def _witness_label(A: FloatArray, whole: Local, p: FloatArray, label: int, seed: Sequence[int]) -> Solved:
    """Return the coefficients of witnesses, the columns of A, on one label; 0 where they are noise."""
    A = np.ascontiguousarray(A)
    members = Members(tuple(map(str, range(A.shape[1]))), tuple(range(A.shape[1])))
    rows = Memory.of(A, p[:, [label]], whole.y[:, [label]], whole.weight, whole.copies)
    features = Features(rows, START, (members,), (Monomial(),))
    solved = _newton(features, START, np.zeros(A.shape[1], dtype=np.intp), seed)
    return solved or Solved(np.zeros((A.shape[1], 1, 1)), 0.0)


def _newton(features: Features, now: State, pools: IntArray, seed: Sequence[int]) -> Solved | None:
    """Return theta with (H + Lambda) theta = g, for the prior that the moments imply."""
    return _shrunk(features.seen(now), pools, features.rows.worth, partial(_solve, features, now, seed))


def _shrunk(
    seen: Seen, pools: IntArray, n: float, solve: Callable[[IntArray, FloatArray, FloatArray], FloatArray]
) -> Solved | None:
    """Return theta from moments; `solve` takes the active members, their moments and their prior."""
    g, h, v = seen
    prior = precisions(g, h, v, pools, n)
    active = np.flatnonzero(np.isfinite(prior).any(axis=(1, 2)))
    if len(active) == 0:
        return None
    # what a pool leaves out has a million times its own curvature as a penalty
    prior = np.where(np.isfinite(prior), prior, 1e6 * np.maximum(h, SMALLEST))
    theta = np.zeros(g.shape)
    theta[active] = solve(active, g[active], prior[active])
    return Solved(theta, float((prior[active] * np.square(theta[active])).sum()))


def _solve(
    features: Features, now: State, seed: Sequence[int], active: IntArray, g: FloatArray, prior: FloatArray
) -> FloatArray:
    """Return the coefficients of the active members; Gram matrices may come from some of the rows."""
    per_member = 1 if isinstance(features.weights[0], Cell) else g.shape[1]
    some = features.rows.few(seed, max(GRAM_ROWS, 10 * len(active) * per_member))
    few = take_members(some.design(features.families), active)
    h, U, solved = Fitted(some.at(now), some.y, some.weight).curvature, features.evaluated(some), []
    is_sample = len(some) < features.rows.scale.n
    for a, one in enumerate(U):
        own = slice(None) if len(U) == 1 else slice(a, a + 1)
        solved.append(solve_all(few, one, h[:, own], g[..., own], seed, is_sample, prior[..., own]))
    return np.concatenate(solved, axis=2)


def _solve_shifts(grams: Callable[[], FloatArray], active: IntArray, g: FloatArray, prior: FloatArray) -> FloatArray:
    """Return the shifts of the active members, from the Gram matrices of all."""
    solved = []
    for a, gram in enumerate(grams()):
        G = gram[np.ix_(active, active)]
        diagonal = np.maximum(np.diag(G), SMALLEST)
        solved.append(ridge_solve(G, g[:, :, a], RIDGE + prior[:, 0, a] / diagonal))
    return np.stack(solved, axis=2)


def take_members(design: Design, members: IntArray) -> Design:
    """Return a design of some members, in order."""
    if len(members) == design.shape[1]:
        return design
    parts, start = [], 0
    for column in design.columns():
        inside = members[(members >= start) & (members < start + column.shape[1])] - start
        start += column.shape[1]
        if len(inside):
            parts.append(take_columns(column, inside))
    return stack(parts)
