"""The chance level: labels are redrawn from probabilities and everything is measured again; and the exact test.

A redrawn label depends only on the seed, the number of the draw and that of the row. Many draws share a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import NormalDist
from typing import TypeGuard

import numpy as np

from lowcal.auditing.panel import GRID, LEAST_NOISE, Panel, believed
from lowcal.auditing.score import ConstraintSums, cells_of, normal_score
from lowcal.kernels.exact import DrawnSums, Tables, Wholes, decode_draws
from lowcal.kernels.loops import spread
from lowcal.kernels.reference import Codes, Design, pieces, rows_in_cache
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.base import Finite, Notion
from lowcal.notions.moments import weigh
from lowcal.notions.smooth import Smooth
from lowcal.notions.weights import Cell, Weight
from lowcal.rows.base import START, Local, Scale, Shard
from lowcal.rows.grids import line_suprema, point_ids
from lowcal.rows.keys import draw_labels, draw_shares, key_of, uniforms_of
from lowcal.rows.passes import bound_of, decode_moments, moment_sums
from lowcal.subpopulations.base import Family

#: The largest number of sums in a pass over the draws, which bounds its memory.
MOST_SUMS = 1 << 23


def draws_for(beta: float) -> int:
    """Return the number of draws for a quantile at 1 - beta: five lie beyond it.

    >>> draws_for(0.05)
    99
    """
    return ceil(5 / beta - 1e-9) - 1


def union_bound(n_constraints: int, beta: float) -> float:
    """Return the normal quantile at which n two-sided intervals hold simultaneously, under any dependence.

    >>> round(union_bound(1, 0.05), 2), round(union_bound(100, 0.05), 2)
    (1.96, 3.48)
    """
    return NormalDist().inv_cdf(1.0 - beta / (2.0 * n_constraints))


@dataclass(frozen=True, eq=False)
class Draws:
    """The suprema of every draw and subpopulation, (draws, m), and the largest score of every draw.

    If the supremum is a single moment, there are scores: the largest absolute normal score of all moments, which
    `score` computes from moments.
    """

    suprema: FloatArray
    scores: FloatArray | None = None
    score: Callable[[FloatArray], float] | None = None

    def and_more(self, other: Draws) -> Draws:
        """Return these draws and others of the same labels."""
        scores = None if self.scores is None or other.scores is None else np.append(self.scores, other.scores)
        return Draws(np.concatenate([self.suprema, other.suprema]), scores, self.score)


def new_seed(rng: np.random.Generator) -> int:
    """Return a seed of draws."""
    return int(rng.integers(1 << 63))


def draw(panel: Panel, notion: Notion, shares: Sequence[float | None], draws: range, seed: int) -> list[Draws]:
    """Redraw the labels, a `share` of them uniformly (`believed`), with common random numbers for all shares; measure.

    The residuals of numbers get new signs instead, and so do those of labels if a share is None. Draws share passes
    over the rows, up to MOST_SUMS sums each.
    """
    own = tuple(share if panel.is_label else None for share in shares)
    if not isinstance(notion, Finite):
        return [Draws(drawn_suprema(panel, notion, share, draws, seed)) for share in own]
    weights = panel.constraints(notion)
    score = [moment_scores(panel, weights, share) if notion.is_largest(panel.d) else None for share in own]
    suprema: list[list[FloatArray]] = [[] for _ in own]
    scores: list[list[float]] = [[] for _ in own]
    size = max(1, MOST_SUMS // (len(panel.names) * len(weights) * panel.d * len(own)))
    for start in range(0, len(draws), size):
        some = Redraws(panel.families, weights, own, seed, tuple(draws[start : start + size]))
        for k, every in enumerate(panel.rows.run(some)):
            suprema[k] += [notion.norm(weights, v).value for v in every]
            scores[k] += [] if (of := score[k]) is None else [of(v) for v in every]
    found = zip(suprema, scores, score, strict=True)
    return [Draws(np.array(one), None if of is None else np.array(largest), of) for one, largest, of in found]


def moment_scores(panel: Panel, weights: tuple[Weight, ...], share: float | None) -> Callable[[FloatArray], float]:
    """Return the largest normal score as a function of moments, if labels have the believed probabilities.

    Variances and skewness depend on no label. An impossible moment has an infinite score; random signs have no skew.
    """
    one = ConstraintSums(panel.families, weights, share, panel.rows.is_even, ("noise", "noise3"))
    variance, third = panel.rows.run(one)
    safe = np.where(variance > 0.0, variance, 1.0)
    skewness = np.zeros_like(third) if share is None else third / safe**1.5

    def score(v: FloatArray) -> float:
        z = normal_score(v / np.sqrt(safe), skewness)
        return float(np.abs(np.where(variance > 0.0, z, np.where(np.abs(v) > 1e-12, np.inf, 0.0))).max())

    return score


def observed_moments(panel: Panel, weights: tuple[Weight, ...]) -> FloatArray:
    """Return the moments (m, S, d) of the outcomes as they are."""
    return np.asarray(panel.rows.run(Redraws(panel.families, weights, (None,), 0, (None,)))[0, 0])


def drawn_suprema(
    panel: Panel, notion: Notion, share: float | None, draws: Sequence[int | None], seed: int
) -> FloatArray:
    """Return the suprema of draws for a class that is not finitely many moments; draw None is the outcomes as they are.

    Smooth weights use predictions rounded to a grid; other notions need all rows in memory.
    """
    if isinstance(notion, Smooth):
        size = max(1, MOST_SUMS // (len(panel.names) * panel.d * GRID))
        passes = [GridRedraws(panel.families, share, seed, draws[k : k + size]) for k in range(0, len(draws), size)]
        return np.concatenate([panel.rows.run(one) for one in passes])
    whole = panel.whole

    def one(number: int | None) -> FloatArray:
        rho = redrawn(whole, share, seed, number, 0)(slice(0, len(whole)))
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
        design, ids, grid = shard.design(self.families), point_ids(shard.at(START), GRID), shard.scale.grid()

        def one(number: int | None) -> Wholes:
            residuals = redrawn(shard, self.share, self.seed, number, shard.first)
            total = np.zeros((ids.shape[1], design.shape[1], GRID + 1), dtype=np.int64)
            for part in pieces(len(shard), 1):
                R = grid.round(residuals(part))
                for a in range(ids.shape[1]):
                    sums = design.rows(part).cell_moments(ids[part, a], GRID + 1, R[:, [a]], grid)
                    total[a] += grid.wholes(sums[:, :, 0])
            return total

        return Tables(spread(one, self.draws, len(shard)))

    def read(self, total: Tables, some: Local, scale: Scale) -> FloatArray:
        """Return the suprema."""
        return np.array([line_suprema(scale.grid().floats(one), GRID) for one in total])


def redrawn(
    rows: Local, share: float | None, seed: int, number: int | None, first: int
) -> Callable[[slice], FloatArray]:
    """Return the weighted residuals of a draw as a function of a slice of the rows, which begin at number `first`.

    Without a number, they are those of the outcomes as they are. If a row stands for several, a label is drawn for each
    copy, and the sum is returned.
    """
    p, y, weight, copies = rows.at(START), rows.y, rows.weight[:, None], rows.copies
    if number is None:
        return lambda part: weight[part] * (y[part] - p[part])

    def residuals(part: slice) -> FloatArray:
        f = p[part]
        chance = np.full((len(f), 1), 0.5) if share is None else believed(f, share)
        if copies is None:
            drawn = draw_labels(chance, uniforms_of(key_of((seed, number)), first + part.start, len(f)))
        else:
            drawn = draw_shares(chance, copies[part], (seed, number, first, part.start))
        if share is None:
            signs = 1.0 - 2.0 * drawn if copies is None else 2.0 * drawn - 1.0
            return np.asarray(weight[part] * (y[part] - f) * signs)
        drawn -= chance
        drawn *= weight[part]
        return drawn

    return residuals


@dataclass(frozen=True, eq=False)
class Redraws:
    """The moments of some draws, shape (shares, draws, m, S, d); draw None is the outcomes as they are.

    Labels are drawn from `believed` probabilities, with common random numbers for all shares; with share None,
    residuals get new signs.
    """

    families: tuple[Family, ...]
    weights: tuple[Weight, ...]
    shares: tuple[float | None, ...]
    seed: int
    draws: Sequence[int | None]

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of all shares and draws, one after the other."""
        design, cells = shard.design(self.families), cells_of(self.weights, shard.at(START))
        if self._are_picks(design, shard):
            return Tables(self._picked(shard, design, share) for share in self.shares)

        def one(asked: tuple[float | None, int | None]) -> Tables:
            share, number = asked
            residuals = redrawn(shard, share, self.seed, number, shard.first)
            return moment_sums(design, self.weights, cells, shard.at(START), residuals, shard.scale)

        asked = [(share, number) for share in self.shares for number in self.draws]
        return Tables(table for tables in spread(one, asked, len(shard)) for table in tables)

    def _are_picks(self, design: Design, some: Local) -> TypeGuard[Codes]:
        """Whether a draw is a selection of rows of code columns: scalars have two outcomes, and there are no cells."""
        is_scalar = some.y.shape[1] == 1 and some.copies is None and not isinstance(self.weights[0], Cell)
        return is_scalar and isinstance(design, Codes) and None not in self.draws

    def _picked(self, shard: Shard, design: Codes, share: float | None) -> Wholes:
        """Return the sums of all draws of a share, shape (draws, levels, S)."""
        grid, p = shard.scale.grid(bound_of(self.weights)), shard.at(START)
        sums = DrawnSums(design, len(self.weights), grid, [key_of((self.seed, int(k or 0))) for k in self.draws])
        for part in rows_in_cache(len(p), len(self.weights) + 2):
            f, w = p[part], shard.weight[part, None]
            if share is None:
                rho = w * (shard.y[part] - f)
                chance, picked, passed = np.full(len(f), 0.5), -rho, rho
            else:
                q = believed(f, share)
                chance, picked, passed = q[:, 0], (1.0 - q) * w, -q * w
            each = (weigh(self.weights, f, one) for one in (picked, passed))
            sums.add(part, shard.first + part.start, chance, *each)
        return sums.wholes()

    def read(self, total: Tables, some: Local, scale: Scale) -> FloatArray:
        """Return the moments."""
        design, d = some.design(self.families), some.y.shape[1]
        if self._are_picks(design, some):
            grid = scale.grid(bound_of(self.weights))
            return np.array([decode_draws(design, len(self.weights), grid, one) for one in total])[..., None]
        size = len(total) // (len(self.shares) * len(self.draws))
        each = [total[k : k + size] for k in range(0, len(total), size)]
        found = np.array([decode_moments(design, self.weights, d, one, scale) for one in each])
        return found.reshape(len(self.shares), len(self.draws), *found.shape[1:])


@dataclass(frozen=True, eq=False)
class Null:
    """What a perfectly calibrated model would have shown on these rows.

    `floor[c]` is exceeded by chance with probability 1 - confidence, `largest` likewise by the largest violation;
    `p_value` is exact at any n (nan if outcomes are numbers); `is_too_good`: the violations are far smaller than those
    of any draw, as happens on rows that the model was fitted to; `drawn` are the draws from the predictions, and
    `noisy` those of labels with the noise of these rows, if there are any.
    """

    floor: FloatArray
    largest: float
    p_value: float
    is_too_good: bool
    drawn: Draws
    noisy: Draws | None


def null_test(
    panel: Panel, notion: Notion, confidence: float, rng: np.random.Generator, *, draws: int = 99, noisy: int = 0
) -> Null:
    """Redraw the labels from the predictions, measure everything again, and compare (spec 10.i.d).

    If f = f*, the sample and its redraws are exchangeable, so p = (1 + #{T_b >= T}) / (1 + B) is exact. T is the
    largest normal score of a moment, or of a supremum: small subpopulations count as much as large ones. If labels vary
    more than the predictions allow, `noisy` draws with their own noise are made too, with common random numbers.
    """
    seed, is_known = new_seed(rng), panel.is_label and panel.share <= LEAST_NOISE
    first = min(noisy, draws) if panel.is_label and not is_known else 0
    shares = (0.0, panel.share) if first else (0.0,)
    drawn, *own = draw(panel, notion, shares, range(first or draws), seed)
    if 0 < first < draws:
        drawn = drawn.and_more(*draw(panel, notion, (0.0,), range(first, draws), seed))
    if isinstance(notion, Finite):
        weights = panel.constraints(notion)
        v = observed_moments(panel, weights)
        observed = notion.norm(weights, v).value
    else:  # computed as those of the draws
        observed = drawn_suprema(panel, notion, None, [None], 0)[0]
    if drawn.score is not None and drawn.scores is not None:
        T = np.append(drawn.score(v), drawn.scores)
    else:  # the largest standardised cube root of a supremum
        root = np.cbrt(np.vstack([observed, drawn.suprema]))
        spread_of = root.std(axis=0)
        T = ((root - root.mean(axis=0)) / np.where(spread_of > 0.0, spread_of, np.inf)).max(axis=1)
    least = T[0] - panel.rows.rounding * abs(T[0]) if np.isfinite(T[0]) else T[0]  # counts of labels can be equal
    p_value = (1.0 + np.count_nonzero(T[1:] >= least)) / (1.0 + draws) if panel.is_label else np.nan
    floor = np.quantile(drawn.suprema, confidence, axis=0, method="higher")
    largest = float(np.quantile(drawn.suprema.max(axis=1), confidence, method="higher"))
    is_too_good = bool(largest > 0.0 and observed.max() < 0.5 * drawn.suprema.max(axis=1).min())
    return Null(floor, largest, float(p_value), is_too_good, drawn, own[0] if own else drawn if is_known else None)
