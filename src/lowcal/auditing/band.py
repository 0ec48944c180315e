"""Bands: simultaneous limits on the suprema of all subpopulations, for the population from a sample (spec 10.i).

The rows must not have been used to make the model or to choose the subpopulations. Then, with the stated confidence and
simultaneously for every subpopulation c and weight w, the violation in the population lies within the limits around the
violation of the sample. There are four methods:

* "bootstrap": score intervals with a correction for skewness, whose critical value comes from redrawn labels. Nearly
  exact at any number of rows if the model is right, asymptotic otherwise. The narrowest;
* "exact": by betting; holds for any number of rows (Waudby-Smith and Ramdas 2024);
* "bernstein": from each constraint's own variance; holds for any number of rows (10.i.b);
* "hoeffding": from the range alone; holds for any number of rows (10.i.a).

For weight classes that are not finitely many moments (smooth) the last three use the symmetrisation bound of 10.i.e.
Limits per person (`masses`) divide these by the mass of the subpopulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.auditing.draws import Draws, draw, draws_for, new_seed, observed_moments, union_bound
from lowcal.auditing.panel import Negatives, Panel
from lowcal.auditing.score import PIECES, Cumulants, Totals, WitnessSums, cells_of, cumulants, normal_score, outer_rows
from lowcal.kernels.exact import Tables
from lowcal.kernels.reference import pieces
from lowcal.kernels.simplex import SMALLEST, FloatArray, IntArray, leading
from lowcal.notions.base import Finite, Notion, Suprema, Witness
from lowcal.notions.finite import Full
from lowcal.notions.weights import Cell, CellIds, Monomial, Weight, evaluate
from lowcal.rows.base import START, Local, Scale, Shard, take_rows
from lowcal.rows.keys import shares_of
from lowcal.rows.powers import Plan, Powers
from lowcal.subpopulations.base import Family

Method = Literal["bootstrap", "exact", "bernstein", "hoeffding"]
METHODS = ("bootstrap", "exact", "bernstein", "hoeffding")
#: The share of a finite-sample method's error probability for each side of the masses; the deviations get the rest.
MASS_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Constraints:
    """The moments v[c, s, a] with their standard errors and simultaneous limits, and the sums behind them."""

    weights: Sequence[Weight]
    v: FloatArray
    standard_error: FloatArray
    lower: FloatArray
    upper: FloatArray
    sums: Totals[FloatArray]

    @property
    def half(self) -> FloatArray:
        """The farther of the two limits, as a distance from v."""
        return np.maximum(self.upper - self.v, self.v - self.lower)


class Intervals(NamedTuple):
    """The violation of every subpopulation by its witness, signed, with limits.

    The outer limit bounds the whole class: no weight has a larger violation of either sign on this subpopulation.
    """

    weights: Sequence[Witness]
    violation: FloatArray
    standard_error: FloatArray
    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True, eq=False)
class Band:
    """The suprema of a panel with simultaneous limits: an interval for every c, all of which hold together."""

    found: Suprema
    intervals: Intervals
    constraints: Constraints | None

    @property
    def lower(self) -> FloatArray:
        """A lower limit on the supremum of every c in the population."""
        return np.maximum(np.maximum(self.intervals.lower, -self.intervals.upper), 0.0)

    @property
    def upper(self) -> FloatArray:
        """An upper limit on it."""
        return np.maximum(-self.intervals.lower, self.intervals.upper)


def band(
    panel: Panel,
    notion: Notion,
    confidence: float,
    method: Method,
    rng: np.random.Generator,
    drawn: Draws | None = None,
) -> Band:
    """Return the suprema of a panel with limits that hold simultaneously with the given confidence.

    `drawn` are the draws of labels with the noise of these rows, if the exact test made them already. Finite-sample
    methods split their error probability: half for the deviations, and a quarter each for the upper and the lower
    limits on the masses of the subpopulations (`per_person`).
    """
    beta = 1.0 - confidence
    if method == "bootstrap" and drawn is None:
        (drawn,) = draw(panel, notion, (panel.share,), range(draws_for(beta)), new_seed(rng))
    known = None
    if not isinstance(notion, Finite):
        found = panel.suprema(notion)
    elif method == "bootstrap" or is_listed(notion, panel.d):
        known = constraints(panel, notion, confidence, method, rng, drawn)
        found = notion.norm(known.weights, known.v)
        if notion.is_largest(panel.d):
            return Band(found, _single_intervals(known), known)
    else:
        weights = panel.constraints(notion)
        found = notion.norm(weights, observed_moments(panel, weights))
    if method == "bootstrap":
        assert drawn is not None
        return Band(found, _redrawn_intervals(panel, notion, found, beta, drawn, known), known)
    if known is None:
        deviation = np.full(len(found.value), symmetrisation(panel, notion, beta / 2, rng))
    else:
        assert isinstance(notion, Finite)
        deviation = notion.limits(np.zeros_like(known.v), known.half)[1]
    witnesses, sums = _along(panel, found, known)
    most = mean_limit(panel.reach, panel, beta * MASS_SHARE)
    return Band(found, _intervals(found, witnesses, sums, sums.v - deviation, sums.v + deviation, most), known)


def is_listed(notion: Finite, d: int) -> bool:
    """Whether the constraints are listed in full, including those without rows, as a union bound requires."""
    return not isinstance(notion, Full) or notion.lists_every_cell(d)


# --- finitely many moments ----------------------------------------------------------------------------------


def constraints(
    panel: Panel,
    notion: Finite,
    confidence: float,
    method: Method,
    rng: np.random.Generator,
    drawn: Draws | None = None,
) -> Constraints:
    """Return simultaneous limits on all moments: by the largest scores of the draws, or by a union bound."""
    beta, weights = 1.0 - confidence, panel.constraints(notion)
    sums = cumulants(panel, weights)
    if method == "bootstrap":
        scores = np.zeros(1) if drawn is None or drawn.scores is None else drawn.scores
        largest = float(np.quantile(scores, confidence, method="higher"))  # 0 if no label varies in most draws
        q = max(largest, union_bound(1, beta)) if largest > 0.0 else union_bound(sums.v.size, beta)
        lower, upper = sums.limits(q)
        most = _most(panel, q)
    else:  # limits that hold for any number of rows, by a union bound over all constraints
        if method == "exact" and not panel.rows.run(Negatives(panel.families)):
            lower, upper = betting(panel, weights, beta / 2, rng)
        else:
            half: FloatArray | float = hoeffding(panel.energy, sums.v.size, beta / 2)
            if method != "hoeffding":
                spread = panel.rows.count * panel.rows.scale.single
                half = bernstein(sums.standard_error, panel.rows.count, spread, sums.v.size, beta / 2)
            lower, upper = sums.v - half, sums.v + half
        most = mean_limit(panel.reach, panel, beta * MASS_SHARE)
    lower, upper = np.maximum(lower, -most[:, None, None]), np.minimum(upper, most[:, None, None])
    return Constraints(weights, sums.v, sums.standard_error, lower, upper, sums.sums)


def _most(panel: Panel, critical: FloatArray | float) -> FloatArray:
    """Return upper limits on the masses, which no violation exceeds; q^2 / n for a subpopulation without rows."""
    rare = np.square(critical) * panel.energy / 2.0
    return np.minimum(1.0, panel.reach + rare + np.sqrt(np.square(critical * panel.mass_error) + rare**2))


def _single_intervals(known: Constraints) -> Intervals:
    """Return the interval of the largest moment of every c; its outer limit is that of all moments of c."""
    outer = np.maximum(known.upper, -known.lower).max(axis=(1, 2))
    m, S, d = known.v.shape
    places = np.array([leading(one) for one in np.abs(known.v).reshape(m, S * d)], dtype=np.intp)
    s, a = np.divmod(places, d)
    v, error, lower, upper = (
        of[np.arange(m), s, a] for of in (known.v, known.standard_error, known.lower, known.upper)
    )
    witnesses = [Witness((known.weights[i],), np.eye(d)[[k]]) for i, k in zip(s, a, strict=True)]
    return Intervals(witnesses, v, error, np.where(v >= 0.0, lower, -outer), np.where(v >= 0.0, outer, upper))


# --- any weight class: the deviation of the supremum itself -------------------------------------------------


def _redrawn_intervals(
    panel: Panel, notion: Notion, found: Suprema, beta: float, drawn: Draws, known: Constraints | None = None
) -> Intervals:
    """Return score intervals along the witnesses, calibrated by the suprema of redrawn labels.

    The draws have the noise of the believed labels. The deviation of a class in them becomes a normal score along the
    witness, which is the critical value for the variance and the skewness that the witness has under any g; this
    changes nothing where the model is right. It is at least the critical value of a single weight.
    """
    deviation = deviations(drawn.suprema, beta) + panel.grid_error(notion)
    weights, sums = _along(panel, found, known)
    noise = np.sqrt(np.maximum(sums.sums.noise, 0.0))
    union, is_drawn = union_bound(len(deviation), beta), deviation > 0.0
    t = np.copysign(deviation / np.where(noise > 0.0, noise, 1.0), sums.v)
    score = np.maximum(np.abs(normal_score(t, sums.spread(np.zeros_like(t))[1])), union_bound(1, beta))
    critical = np.where(is_drawn & (noise > 0.0), score, union)
    lower, upper = sums.limits(critical)
    is_empty = is_drawn & (noise <= 0.0)  # the witness has no noise: the limits are those of chance
    lower, upper = np.where(is_empty, -deviation, lower), np.where(is_empty, deviation, upper)
    return _intervals(found, weights, sums, lower, upper, _most(panel, np.maximum(critical, union)))


def deviations(suprema: FloatArray, beta: float) -> FloatArray:
    """Return a limit for every c such that any supremum exceeds its limit with probability beta, from (draws, m).

    Cube roots of the suprema are close to normal, whatever their skewness, so a common quantile of their standardised
    values treats rare and common outcomes alike. Each draw is standardised by the mean and spread of the other draws:
    included among them, it would look closer to their mean than a new sample does.
    """
    root = np.cbrt(suprema)
    centre, spread_of = root.mean(axis=0), root.std(axis=0)
    n = len(root)
    off = (root - centre) / np.where(spread_of > 0.0, spread_of, np.inf)
    others = np.maximum((1.0 - np.square(off) / (n - 1)) * (n - 1) / n, SMALLEST)
    z = off / np.sqrt(others)
    q = float(np.quantile(z.max(axis=1), 1.0 - beta, method="higher"))
    return np.asarray(np.maximum(centre + q * spread_of, 0.0) ** 3)


def _along(panel: Panel, found: Suprema, known: Constraints | None) -> tuple[list[Witness], Cumulants]:
    """Return the witnesses of all subpopulations without their signs, and their sums over the members.

    If a witness is a union of disjoint cells of a scalar prediction, its sums are those of the cells added up.
    """
    witnesses = [found.witness(j) for j in range(len(found.value))]
    if known is not None and panel.d == 1 and all(isinstance(u, Cell) for u in known.weights):
        chosen = np.array([one.coefficients for one in witnesses]) != 0.0
        sums = Totals(*(np.where(chosen, part, 0.0).sum(axis=(1, 2)) for part in known.sums))
        unsigned = [Witness(one.weights, np.abs(one.coefficients)) for one in witnesses]
    else:
        unsigned = [Witness(one.weights, _sign(panel, one) * one.coefficients) for one in witnesses]
        share = panel.share if panel.is_label else None
        sums = panel.rows.run(WitnessSums(panel.families, tuple(unsigned), share))
    return unsigned, Cumulants(sums, panel.energy, panel.is_label, is_chosen=True)


def _sign(panel: Panel, witness: Witness) -> float:
    """Return the sign of a weight: that of its coefficients or, where these differ, of its values.

    The sign of a nonzero polynomial appears at a corner of the simplex or in its centre.
    """
    theta = witness.coefficients
    if (theta >= 0.0).all() or (theta <= 0.0).all():
        return -1.0 if (theta < 0.0).any() else 1.0
    if all(isinstance(u, Cell) for u in witness.weights):
        return -1.0 if theta.min() < -1e-9 else 1.0
    corners = np.vstack([np.eye(panel.d), np.full(panel.d, 1.0 / panel.d)]) if panel.d > 1 else np.array([[0.0], [1.0]])
    are_powers = all(isinstance(u, Monomial) for u in witness.weights)
    return -1.0 if witness(corners if are_powers else panel.p).min(initial=0.0) < -1e-9 else 1.0


def _intervals(
    found: Suprema,
    weights: Sequence[Witness],
    sums: Cumulants,
    lower: FloatArray,
    upper: FloatArray,
    most: FloatArray,
) -> Intervals:
    """Return signed intervals; the outer limits include the bracket between a witness and the supremum."""
    room = found.upper - found.value
    outer = np.minimum(most, np.maximum(upper, -lower) + room)
    is_up = sums.v >= 0.0
    lower, upper = np.where(is_up, np.maximum(lower, -outer), -outer), np.where(is_up, outer, np.minimum(upper, outer))
    return Intervals(weights, sums.v, sums.standard_error, lower, upper)


class Masses(NamedTuple):
    """Limits on the mass of every c, which divide those on violations; nan where memberships have signs or no rows."""

    lower: FloatArray
    upper: FloatArray

    def per_person(self, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the limits of E[c z] / E[c] from those of E[c z], c along the first axis; both lie in [-1, 1].

        >>> masses = Masses(np.array([0.2]), np.array([0.25]))
        >>> [one.round(3).tolist() for one in masses.per_person(np.array([0.01]), np.array([0.03]))]
        [[0.04], [0.15]]
        """
        low, high = (of.reshape(-1, *[1] * (lower.ndim - 1)) for of in self)

        def divide(limits: FloatArray, is_inner: NDArray[np.bool_]) -> FloatArray:
            mass = np.where(is_inner, high, low)  # the upper mass for limits on the side of zero
            shares = np.divide(limits, mass, out=np.sign(limits), where=mass != 0.0)  # no bound if the mass may be 0
            return np.asarray(np.clip(shares, -1.0, 1.0))

        return divide(lower, lower > 0.0), divide(upper, upper < 0.0)


def masses(panel: Panel, notion: Notion, method: Method, confidence: float) -> Masses:
    """Return masses such that limits on violations, divided by them, are limits per person with the same confidence.

    For memberships of 0 or 1 they are the sample's masses: given which rows belong to c, E[c z] / E[c] times the
    sample's mass is the mean of sum p_i c_i z_i, whose variance is at most that of the violation. The scores of
    "bootstrap" and the union bounds of "bernstein" and "hoeffding", which allow independent terms with different means,
    hold conditionally on these rows. Betting, symmetrisation and memberships between 0 and 1 need limits on the masses,
    for which part of the error probability is set aside.
    """
    beta = 1.0 - confidence
    if method == "bootstrap":
        half = union_bound(len(panel.mass), beta) * panel.mass_error
        low, high = np.maximum(panel.mass - half, 0.0), np.minimum(panel.mass + half, 1.0)
    else:
        low, high = (limit(panel.mass, panel, beta * MASS_SHARE) for limit in (least_mean, mean_limit))
    is_union = isinstance(notion, Finite) and method in ("bernstein", "hoeffding") and is_listed(notion, panel.d)
    is_sample = (method == "bootstrap" or is_union) & panel.is_set
    known = np.where(is_sample, panel.mass, low), np.where(is_sample, panel.mass, high)
    has_share = (panel.mass > 0.0) & panel.is_share
    return Masses(*(np.where(has_share, one, np.nan) for one in known))


# --- limits that hold for any number of rows -------------------------------------------------------------------
#: Stakes are fixed within blocks of the rows, dealt at random, of these shares of all rows: after the first, each block
#: has as many rows as all before it, from which its stakes are computed.
BLOCKS = (1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
#: The largest stake: a bet never loses more than this share of the wealth, so its logarithm stays finite.
LARGEST_STAKE = 0.95


def hoeffding(energy: float, n_pairs: int, beta: float) -> float:
    """Return sqrt(2 ln(2N / beta) sum p_i^2): the deviation of N means of terms in [-1, 1] (spec 10.i.a).

    >>> round(hoeffding(1 / 5000, 60, 0.05), 4)
    0.0558
    """
    return sqrt(2.0 * log(2.0 * n_pairs / beta) * energy)


def bernstein(se: FloatArray, n: int, spread: float, n_pairs: int, beta: float) -> FloatArray:
    """Return the empirical Bernstein deviation sqrt(2 V ln(4N/b) / n) + 14 ln(4N/b) / (3 (n - 1)) (spec 10.i.b).

    `se` = sqrt(V / n), and `spread` = n max p_i widens the range for uneven weights. Maurer and Pontil, 2009.

    >>> bernstein(np.array([0.002]), 5000, 1.0, 60, 0.025).round(4)
    array([0.0171])
    """
    level = log(4.0 * n_pairs / beta)
    if n < 2:
        return np.full(np.shape(se), np.inf)
    return np.asarray(se * sqrt(2.0 * level) + 14.0 * spread * level / (3.0 * (n - 1)))


def mean_limit(mean: FloatArray, panel: Panel, beta: float) -> FloatArray:
    """Return upper confidence limits on means of terms in [0, 1]: mu_n + L + sqrt(L (L + 2 mu_n)), or 1.

    L = ln(m / beta) max p_i. The lower tail of terms in [0, s] is mu - mu_n <= sqrt(2 mu s ln(1 / beta)); this is its
    solution for mu.
    """
    level = log(len(mean) / beta) * panel.rows.scale.single
    return np.minimum(1.0, mean + level + np.sqrt(level * (level + 2.0 * np.maximum(mean, 0.0))))


def least_mean(mean: FloatArray, panel: Panel, beta: float) -> FloatArray:
    """Return lower confidence limits on the same means: (sqrt(mu_n + L / 6) - sqrt(L / 2))^2, or 0.

    The upper tail of terms in [0, s] is mu_n - mu <= sqrt(2 mu s ln(1 / beta)) + s ln(1 / beta) / 3 (Bernstein).
    """
    level = log(len(mean) / beta) * panel.rows.scale.single
    root = np.sqrt(np.maximum(mean + level / 6.0, 0.0)) - sqrt(level / 2.0)
    return np.square(np.maximum(root, 0.0))


def symmetrisation(panel: Panel, notion: Notion, beta: float, rng: np.random.Generator, draws: int = 20) -> float:
    """Return 2 R + 2 sqrt(2 L e / B) + 3 sqrt(2 L e), L = ln(3 / beta), e = sum p_i^2 (spec 10.i.e).

    R is the mean over B draws of signs of the largest supremum of the signed residuals. With confidence 1 - beta, the
    violations of all weights deviate by no more, however large the class.
    """
    (signed,) = draw(panel, notion, (None,), range(draws), new_seed(rng))
    found = signed.suprema + panel.grid_error(notion)
    level = 2.0 * log(3.0 / beta) * panel.energy
    return 2.0 * float(found.max(axis=1).mean()) + 2.0 * sqrt(level / draws) + 3.0 * sqrt(level)


# --- betting ------------------------------------------------------------------------------------------------


def betting(
    panel: Panel, weights: Sequence[Weight], beta: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return limits on every E[Z] that hold for any number of rows, (m, S, d) each (Waudby-Smith and Ramdas 2024).

    A bettor who stakes a share l of their wealth on Z_i - g, row by row, ends with K(g) = prod_i (1 + l b_i (Z_i - g)),
    where b_i = p_i / max p. If E[Z] = g, its mean is 1, so it exceeds 1 / beta with probability at most beta; a g for
    which it does, with a stake on more or on less, is excluded. Rows are dealt into blocks at random; stakes are fixed
    within a block and depend on the blocks before it. log K is bounded by sums of |Z| and Z^2 (`_Block.log_wealth`):
    one pass.
    """
    blocks = panel.rows.run(Bets(panel.families, tuple(weights), new_seed(rng), panel.rows.is_even))
    shape = blocks[0].first[0].shape
    level = log(2.0 * int(np.prod(shape)) / beta)
    start = sum(block.first[0] - block.first[1] for block in blocks) / sum(block.rows for block in blocks)

    def search(side: int) -> FloatArray:
        """Return the nearest g towards `side` that a stake on the other side excludes."""
        stakes = _stakes(blocks, level, -side)
        inside, outside = np.clip(start, -1.0, 1.0), np.full(shape, float(side))
        for _ in range(50):  # the error is 2^-49 then
            g = (inside + outside) / 2
            wealth = sum(block.log_wealth(stake, g, -side) for block, stake in zip(blocks, stakes, strict=True))
            inside, outside = np.where(wealth < level, g, inside), np.where(wealth < level, outside, g)
        return outside

    return search(-1), search(1)


def _stakes(blocks: list[_Block], level: float, side: int) -> list[FloatArray]:
    """Return a stake for every block: sqrt(2 L / sum Z^2), with the sum predicted from the blocks before.

    It is smaller if losing rows lose much, as the logarithm then falls faster than its parabola.
    """
    win, lose = (0, 1) if side > 0 else (1, 0)
    everything = sum(block.square for block in blocks)
    nothing = np.zeros_like(blocks[0].second[0])
    stakes, gains, losses, seen = [nothing], nothing, nothing, 0.0
    for block in blocks[:-1]:
        gains, losses, seen = gains + block.second[win], losses + block.second[lose], seen + block.square
        total = np.maximum((gains + losses) * everything / seen, 1.0)
        bold = np.sqrt(2.0 * level / total)
        share = losses / np.maximum(gains + losses, SMALLEST)
        stakes.append(bold / (1.0 + bold * share))
    return stakes


@dataclass(frozen=True, eq=False)
class _Block:
    """Totals over a block of rows: of b and b^2 and, separately for outcomes above and below f, of b |Z| and (b Z)^2.

    `largest` bounds b |Z| on either side, for every label.
    """

    rows: float
    square: float
    first: tuple[FloatArray, FloatArray]
    second: tuple[FloatArray, FloatArray]
    largest: tuple[FloatArray, FloatArray]

    def log_wealth(self, stake: FloatArray, g: FloatArray, side: int) -> FloatArray:
        """Return a lower bound on sum_i log(1 + l b_i s (Z_i - g)) for a stake l and a side s = 1 or -1.

        1 + l b (Z - g) = (1 - l b g)(1 + l' b Z) with l' between l and l / (1 - l g). The logarithms of winning rows
        are at least their chord and at least x - x^2 / 2, those of losing rows at least x - phi(r) x^2, x >= -r.
        """
        win, lose = (0, 1) if side > 0 else (1, 0)
        g = g * side
        stake = np.minimum(stake, LARGEST_STAKE / (1.0 + np.maximum(g, 0.0)))  # no row loses more than 1 + g
        other = stake / (1.0 - stake * g)
        low, high = np.minimum(stake, other), np.maximum(stake, other)
        shift = stake * g
        base = -shift * self.rows - _phi(np.maximum(shift, 0.0)) * np.square(shift) * self.square
        top = np.maximum(low * self.largest[win], SMALLEST)
        chord = np.log1p(top) / top * low * self.first[win]
        parabola = low * self.first[win] - np.square(low) * self.second[win] / 2.0
        loss = high * self.first[lose] + _phi(high * self.largest[lose]) * np.square(high) * self.second[lose]
        return np.asarray(base + np.maximum(chord, parabola) - loss)


class BetSums(NamedTuple):
    """Exact sums of `Bets`, and the largest residuals of every block, side and label."""

    tables: Tables
    largest: FloatArray

    def __add__(self, other: BetSums) -> BetSums:  # type: ignore[override]
        return BetSums(self.tables + other.tables, np.maximum(self.largest, other.largest))


@dataclass(frozen=True, eq=False)
class Bets:
    """The pass for the sums of every block; rows are dealt to blocks by a seed and their numbers."""

    families: tuple[Family, ...]
    weights: tuple[Weight, ...]
    seed: int
    is_even: bool

    @property
    def _n_cells(self) -> int:
        return len(self.weights) if isinstance(self.weights[0], Cell) else 1

    def _plan(self, some: Local, scale: Scale) -> Plan:
        width = 2 * some.y.shape[1] * (len(self.weights) // self._n_cells)
        return Plan.of(some.design(self.families), [Powers(1, 1, width), Powers(2, 2, width)], scale, self.is_even)

    def __call__(self, shard: Shard) -> BetSums:
        """Return the sums of a shard."""
        shard, block = self._dealt(shard)
        p, n_cells, scale = shard.at(START), self._n_cells, shard.scale
        cells, counts = cells_of(self.weights, p), np.zeros((len(BLOCKS), 2, 2), dtype=np.int64)
        n_all = len(BLOCKS) * n_cells
        ids = block if cells is None else np.where(cells.ids < n_cells, block * n_cells + cells.ids, n_all)
        sums, largest = self._plan(shard, scale).sums(CellIds(ids, n_all)), np.zeros((len(BLOCKS), 2, p.shape[1]))
        for part in pieces(len(p), PIECES * 4 * p.shape[1] * len(self.weights)):
            U = np.ones((1, 1)) if cells is not None else np.asarray(evaluate(self.weights, p[part]))
            w, own = shard.weight[part, None], block[part]
            z = w * (shard.y[part] - p[part])
            sides = np.hstack([np.maximum(z, 0.0), np.maximum(-z, 0.0)])
            single = sides if shard.copies is None else sides / shard.copies[part, None]
            sums.add(part, [outer_rows(U, sides), outer_rows(np.square(U), sides * single)])
            squares = w * shard.unit[part, None]
            for k in range(len(BLOCKS)):
                here = own == k
                counts[k] += [scale.fine().wholes(w[here, 0]), scale.fine(scale.single).wholes(squares[here, 0])]
                np.maximum(largest[k], single[here].max(axis=0, initial=0.0).reshape(2, -1), out=largest[k])
        return BetSums(Tables([counts, *sums.wholes()]), largest)

    def _dealt(self, shard: Shard) -> tuple[Shard, IntArray]:
        """Return the rows and the block of each; copies are dealt one by one, so a row may be in several blocks."""
        ends = np.cumsum(BLOCKS)[:-1]
        if shard.copies is None:
            own = shares_of((self.seed,), shard.scale.n, shard.first, len(shard))
            return shard, np.searchsorted(ends, own, side="right")
        parts, rng = np.diff(ends, prepend=0.0, append=1.0), np.random.default_rng([self.seed, shard.first])
        dealt = rng.multinomial(shard.copies, parts)
        rows, block = np.nonzero(dealt)
        copies, p, weight = dealt[rows, block], shard.at(START)[rows], shard.unit[rows] * dealt[rows, block]
        return Shard(take_rows(shard.rows, rows), p, shard.y[rows], weight, shard.scale, copies=copies), block

    def read(self, total: BetSums, some: Local, scale: Scale) -> list[_Block]:
        """Return the blocks that hold rows, in units of the largest weight."""
        counts, *tables = total.tables
        d, first, second = some.y.shape[1], *self._plan(some, scale).read(tables, True)
        blocks = []
        for k in range(len(BLOCKS)):
            rows = float(scale.fine().total(counts[k, 0])) / scale.single
            square = float(scale.fine(scale.single).total(counts[k, 1])) / scale.single**2
            own = slice(k * self._n_cells, (k + 1) * self._n_cells)
            sums = [one[:, own].reshape(len(one), len(self.weights), 2, d) for one in (first, second)]
            sides = [
                (one[:, :, 0] / unit, one[:, :, 1] / unit)
                for one, unit in zip(sums, (scale.single, scale.single**2), strict=True)
            ]
            up, down = total.largest[k] / scale.single
            if rows > 0.0:
                blocks.append(_Block(rows, square, sides[0], sides[1], (up, down)))
        return blocks


def _phi(r: FloatArray) -> FloatArray:
    """Return (-log(1 - r) - r) / r^2, which is 1/2 at 0: log(1 + x) >= x - phi(r) x^2 for x >= -r (Fan et al. 2015).

    >>> _phi(np.array([0.0, 0.5])).round(4)
    array([0.5   , 0.7726])
    """
    safe = np.clip(r, 1e-4, 1.0 - 1e-12)
    return np.where(r < 1e-4, 0.5 + r / 3.0 + r * r / 3.0, (-np.log1p(-safe) - safe) / np.square(safe))
