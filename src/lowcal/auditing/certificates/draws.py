"""What chance shows: labels drawn anew from probabilities, everything measured again, and the exact test of that.

A label of a draw depends on the seed, the draw and the number of its row alone, and many draws share a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import NormalDist
from typing import TypeGuard

import numpy as np

from lowcal.auditing.certificates.panel import GRID, Panel, believed
from lowcal.auditing.certificates.score import ConstraintSums, cells_of, normal_score
from lowcal.kernels.drawn import DrawnSums, decode_draws
from lowcal.kernels.exact import Tables, Wholes
from lowcal.kernels.reference import Codes, Design, pieces, rows_in_cache
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.kernels.threads import spread
from lowcal.notions.base import Finite, Notion
from lowcal.notions.moments import weigh
from lowcal.notions.smooth import Smooth
from lowcal.notions.weights import Cell, CellIds, Weight
from lowcal.rows.base import START, Local, Scale, Shard
from lowcal.rows.grids import line_suprema, point_ids
from lowcal.rows.keys import draw_labels, draw_shares, key_of, uniforms_of
from lowcal.rows.passes import bound_of, decode_moments, moment_sums
from lowcal.subpopulations.base import Family

#: At least this many draws lie beyond a quantile that is taken from them.
BEYOND = 5
#: The most sums that the draws of one pass hold.
MOST_SUMS = 1 << 23


def draws_for(beta: float) -> int:
    """Return how many draws a quantile at 1 - beta asks for.

    >>> draws_for(0.05)
    99
    """
    return ceil(BEYOND / beta - 1e-9) - 1


def union_bound(n_constraints: int, beta: float) -> float:
    """Return the normal quantile at which n two-sided intervals hold together, whatever their dependence.

    >>> round(union_bound(1, 0.05), 2), round(union_bound(100, 0.05), 2)
    (1.96, 3.48)
    """
    return NormalDist().inv_cdf(1.0 - beta / (2.0 * n_constraints))


@dataclass(frozen=True, eq=False)
class Draws:
    """The suprema of every draw and subpopulation, (draws, m), and the largest score of every draw.

    There are scores where the supremum is a single moment: the largest of all moments' normal scores in size, and
    `scored` is what they were computed by.
    """

    suprema: FloatArray
    scores: FloatArray | None = None
    scored: MomentScores | None = None


def new_seed(rng: np.random.Generator) -> int:
    """Return a seed of draws."""
    return int(rng.integers(1 << 63))


def draw(panel: Panel, notion: Notion, share: float, draws: int, seed: int) -> Draws:
    """Draw labels of which a `share` is random and measure them again; numbers get their residuals with signs anew."""
    own = share if panel.is_label else None
    if not isinstance(notion, Finite):
        return Draws(drawn_suprema(panel, notion, own, range(draws), seed))
    weights = panel.constraints(notion)
    every = drawn_moments(panel, weights, own, draws, seed)
    if not notion.is_largest(panel.d):
        return Draws(np.array([notion.norm(weights, v).value for v in every]))
    scores = MomentScores.of(panel, notion, weights, own)
    suprema, largest = zip(*(scores.both(v) for v in every), strict=True)
    return Draws(np.array(suprema), np.array(largest), scores)


def drawn_moments(
    panel: Panel, weights: tuple[Weight, ...], share: float | None, draws: int, seed: int
) -> Iterator[FloatArray]:
    """Yield the moments (m, S, d) of every draw; of as many draws in each pass over the rows as may be held."""
    size = max(1, MOST_SUMS // (len(panel.names) * len(weights) * panel.d))
    for start in range(0, draws, size):
        some = tuple(range(start, min(start + size, draws)))
        yield from panel.rows.run(Redraws(panel.families, weights, share, seed, some))


def observed_moments(panel: Panel, weights: tuple[Weight, ...]) -> FloatArray:
    """Return the moments (m, S, d) of the outcomes as they are."""
    return np.asarray(panel.rows.run(Redraws(panel.families, weights, None, 0, (None,)))[0])


def signed_suprema(panel: Panel, notion: Notion, draws: int, seed: int) -> FloatArray:
    """Return no less than the suprema of residuals with signs drawn at random, shape (draws, m)."""
    if not isinstance(notion, Finite):
        return drawn_suprema(panel, notion, None, range(draws), seed) + panel.grid_error(notion)
    weights = panel.constraints(notion)
    return np.array([notion.norm(weights, v).value for v in drawn_moments(panel, weights, None, draws, seed)])


def drawn_suprema(
    panel: Panel, notion: Notion, share: float | None, draws: Sequence[int | None], seed: int
) -> FloatArray:
    """Return the suprema of draws where these are no function of finitely many moments; None: outcomes as they are.

    Smooth weights see predictions on a grid; other notions need all rows in memory.
    """
    if isinstance(notion, Smooth):
        size = max(1, MOST_SUMS // (len(panel.names) * panel.d * GRID))
        passes = [GridRedraws(panel.families, share, seed, draws[k : k + size]) for k in range(0, len(draws), size)]
        return np.concatenate([panel.rows.run(one) for one in passes])
    whole = panel.whole
    every = slice(0, len(whole))

    def one(number: int | None) -> FloatArray:
        rho = redrawn(whole, share, seed, number, 0)(every)
        return notion.suprema(panel.p, rho, panel.design).value

    return np.array(spread(one, draws, len(whole)))


@dataclass(frozen=True, eq=False)
class GridRedraws:
    """The smooth suprema of some draws, shape (draws, m), with predictions at the points of a grid."""

    families: tuple[Family, ...]
    share: float | None
    seed: int
    draws: Sequence[int | None]

    def __call__(self, shard: Shard) -> Tables:
        """Return the residuals of all draws by coordinate, member and point, one draw after the other."""
        design, ids = shard.design(self.families), point_ids(shard.at(START), GRID)
        return Tables(spread(lambda number: self._one(shard, design, ids, number), self.draws, len(shard)))

    def _one(self, shard: Shard, design: Design, ids: IntArray, number: int | None) -> Wholes:
        residuals, grid = redrawn(shard, self.share, self.seed, number, shard.first), shard.scale.grid()
        total = np.zeros((ids.shape[1], design.shape[1], GRID + 1), dtype=np.int64)
        for part in pieces(len(shard), 1):
            R = grid.round(residuals(part))
            for a in range(ids.shape[1]):
                sums = design.rows(part).cell_moments(ids[part, a], GRID + 1, R[:, [a]], grid)
                total[a] += grid.wholes(sums[:, :, 0])
        return total

    def read(self, total: Tables, some: Local, scale: Scale) -> FloatArray:
        """Return the suprema."""
        return np.array([line_suprema(scale.grid().floats(one), GRID) for one in total])


def redrawn(
    rows: Local, share: float | None, seed: int, number: int | None, first: int
) -> Callable[[slice], FloatArray]:
    """Return the weighted residuals of a draw as a function of a slice of the rows, which begin at number `first`.

    Without a number, they are those of the outcomes as they are.
    """
    p, y, weight = rows.at(START), rows.y, rows.weight[:, None]
    if number is None:
        return lambda part: weight[part] * (y[part] - p[part])
    if rows.copies is not None:
        return _redrawn_copies(rows, rows.copies, share, (seed, number, first))
    key = key_of((seed, number))

    def residuals(part: slice) -> FloatArray:
        f, w = p[part], weight[part]
        u = uniforms_of(key, first + part.start, len(f))
        if share is None:
            return w * (y[part] - f) * np.where(u < 0.5, -1.0, 1.0)[:, None]
        chance = believed(f, share)
        rho = draw_labels(chance, u)
        rho -= chance
        rho *= w
        return rho

    return residuals


def _redrawn_copies(
    rows: Local, copies: IntArray, share: float | None, seed: tuple[int, ...]
) -> Callable[[slice], FloatArray]:
    """Return the same where rows stand for several: their copies draw one by one, and only their sums count."""
    p, weight = rows.at(START), rows.weight[:, None]

    def residuals(part: slice) -> FloatArray:
        f, w, k, chance = p[part], weight[part], copies[part], (*seed, part.start)
        if share is None:
            signs = 2.0 * draw_shares(np.full((len(f), 1), 0.5), k, chance) - 1.0
            return np.asarray(w * (rows.y[part] - f) * signs)
        drawn_from = believed(f, share)
        return np.asarray(w * (draw_shares(drawn_from, k, chance) - drawn_from))

    return residuals


@dataclass(frozen=True, eq=False)
class Redraws:
    """The moments of some draws, shape (draws, m, S, d); None is no draw, but the outcomes as they are.

    Labels are drawn from `believed` probabilities; with share None, residuals get new signs.
    """

    families: tuple[Family, ...]
    weights: tuple[Weight, ...]
    share: float | None
    seed: int
    draws: Sequence[int | None]

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of all draws, one after the other."""
        design, cells = shard.design(self.families), cells_of(self.weights, shard.at(START))
        if self._are_picks(design, shard):
            return Tables([self._picked(shard, design)])
        each = spread(lambda number: self._one(shard, design, cells, number), self.draws, len(shard))
        return Tables(table for tables in each for table in tables)

    def _one(self, shard: Shard, design: Design, cells: CellIds | None, number: int | None) -> Tables:
        residuals = redrawn(shard, self.share, self.seed, number, shard.first)
        return moment_sums(design, self.weights, cells, shard.at(START), residuals, shard.scale)

    def _are_picks(self, design: Design, some: Local) -> TypeGuard[Codes]:
        """Whether a draw picks some rows out of code columns: a scalar has two outcomes; weights must be no cells."""
        is_scalar = some.y.shape[1] == 1 and some.copies is None and not isinstance(self.weights[0], Cell)
        return is_scalar and isinstance(design, Codes) and None not in self.draws

    def _picked(self, shard: Shard, design: Codes) -> Wholes:
        """Return the sums of all draws, shape (draws, levels, S)."""
        grid, p = shard.scale.grid(bound_of(self.weights)), shard.at(START)
        sums = DrawnSums(design, len(self.weights), grid, [key_of((self.seed, int(k or 0))) for k in self.draws])
        for part in rows_in_cache(len(p), len(self.weights) + 2):
            f, w = p[part], shard.weight[part, None]
            if self.share is None:
                rho = w * (shard.y[part] - f)
                chance, picked, passed = np.full(len(f), 0.5), -rho, rho
            else:
                q = believed(f, self.share)
                chance, picked, passed = q[:, 0], (1.0 - q) * w, -q * w
            each = (weigh(self.weights, f, one) for one in (picked, passed))
            sums.add(part, shard.first + part.start, chance, *each)
        return sums.wholes()

    def read(self, total: Tables, some: Local, scale: Scale) -> FloatArray:
        """Return the moments."""
        design, d = some.design(self.families), some.y.shape[1]
        if self._are_picks(design, some):
            grid = scale.grid(bound_of(self.weights))
            return decode_draws(design, len(self.weights), grid, total[0])[..., None]
        size = len(total) // len(self.draws)
        each = [total[k * size : (k + 1) * size] for k in range(len(self.draws))]
        return np.array([decode_moments(design, self.weights, d, one, scale) for one in each])


@dataclass(frozen=True, eq=False)
class MomentScores:
    """The normal scores of all moments, if labels have given probabilities: these depend on no label."""

    notion: Finite
    weights: tuple[Weight, ...]
    variance: FloatArray
    skewness: FloatArray

    @classmethod
    def of(cls, panel: Panel, notion: Finite, weights: tuple[Weight, ...], share: float | None) -> MomentScores:
        """Sum up the noise of every moment; signs at random are not skewed."""
        one = ConstraintSums(panel.families, weights, share, panel.rows.is_even, ("noise", "noise3"))
        second, third = panel.rows.run(one)
        safe = np.where(second > 0.0, second, 1.0)
        return cls(notion, weights, second, third / safe**1.5 if panel.is_label else np.zeros_like(third))

    def both(self, v: FloatArray) -> tuple[FloatArray, float]:
        """Return the suprema of moments v, and their largest score; what can't be has an infinite one."""
        t = v / np.sqrt(np.where(self.variance > 0.0, self.variance, 1.0))
        z = np.where(self.variance > 0.0, normal_score(t, self.skewness), np.where(np.abs(v) > 1e-12, np.inf, 0.0))
        return self.notion.norm(self.weights, v).value, float(np.abs(z).max())


@dataclass(frozen=True, eq=False)
class Null:
    """What a perfectly calibrated model would have shown on these rows.

    `floor[c]` is exceeded by chance with probability 1 - confidence, `largest` likewise for the largest of all;
    `p_value` is exact at any n (nan where outcomes are no draws of labels); `is_too_good`: the violations are far
    smaller than those of any draw, as happens on rows that the model was fitted to; `drawn` is what the draws showed.
    """

    floor: FloatArray
    largest: float
    p_value: float
    is_too_good: bool
    drawn: Draws


def null_test(panel: Panel, notion: Notion, confidence: float, rng: np.random.Generator, *, draws: int = 99) -> Null:
    """Redraw the labels from the predictions, measure everything again, and compare (spec 10.i.d).

    If f = f*, the sample and its redraws are exchangeable, so p = (1 + #{T_b >= T}) / (1 + B) is exact. T is the
    largest normal score of a moment, or of a supremum: small subpopulations count as much as large ones.
    """
    drawn = draw(panel, notion, 0.0, draws, new_seed(rng))
    if drawn.scores is None or drawn.scored is None:
        observed = _suprema(panel, notion)
        T = _largest_scores(np.vstack([observed, drawn.suprema]))
    else:
        observed, score = drawn.scored.both(observed_moments(panel, drawn.scored.weights))
        T = np.append(score, drawn.scores)
    least = T[0] - 1e-12 * abs(T[0]) if np.isfinite(T[0]) else T[0]
    p_value = (1.0 + np.count_nonzero(T[1:] >= least)) / (1.0 + draws) if panel.is_label else np.nan
    floor = np.quantile(drawn.suprema, confidence, axis=0, method="higher")
    largest = float(np.quantile(drawn.suprema.max(axis=1), confidence, method="higher"))
    is_too_good = bool(largest > 0.0 and observed.max() < 0.5 * drawn.suprema.max(axis=1).min())
    return Null(floor, largest, float(p_value), is_too_good, drawn)


def _suprema(panel: Panel, notion: Notion) -> FloatArray:
    """Return the suprema of the outcomes as they are, computed as those of the draws."""
    if isinstance(notion, Finite):
        weights = panel.constraints(notion)
        return notion.norm(weights, observed_moments(panel, weights)).value
    return np.asarray(drawn_suprema(panel, notion, None, [None], 0)[0])


def _largest_scores(suprema: FloatArray) -> FloatArray:
    """Return max over c of the standardised cube roots of suprema (draws, m): the same function of every draw."""
    root = np.cbrt(suprema)
    spread_of = root.std(axis=0)
    return np.asarray(((root - root.mean(axis=0)) / np.where(spread_of > 0.0, spread_of, np.inf)).max(axis=1))
