"""Intervals that hold for any number of rows: by betting, Bernstein, Hoeffding and symmetrisation (spec 10.i)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import NamedTuple

import numpy as np

from lowcal.auditing.certificates.draws import draw, new_seed
from lowcal.auditing.certificates.panel import Panel
from lowcal.auditing.certificates.score import PIECES, cells_of, outer_rows
from lowcal.kernels.exact import Tables
from lowcal.kernels.reference import pieces
from lowcal.kernels.simplex import SMALLEST, FloatArray, IntArray
from lowcal.notions.base import Notion
from lowcal.notions.weights import Cell, CellIds, Weight, evaluate
from lowcal.rows.base import START, Local, Scale, Shard, take_rows
from lowcal.rows.keys import shares_of
from lowcal.rows.powers import Plan, Powers
from lowcal.subpopulations.base import Family

#: Stakes are fixed within blocks of the rows, dealt at random, of these shares of all rows: after the first, each block
#: has as many rows as all before it, from which its stakes are computed.
BLOCKS = (1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
#: The largest stake: a bet never loses more than this share of the wealth, so its logarithm stays finite.
LARGEST_STAKE = 0.95
#: Bisection steps in the search of a limit, which leave an error of 2^-49.
HALVINGS = 50


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
    level = log(len(mean) / beta) * panel.largest_weight
    return np.minimum(1.0, mean + level + np.sqrt(level * (level + 2.0 * np.maximum(mean, 0.0))))


def least_mean(mean: FloatArray, panel: Panel, beta: float) -> FloatArray:
    """Return lower confidence limits on the same means: (sqrt(mu_n + L / 6) - sqrt(L / 2))^2, or 0.

    The upper tail of terms in [0, s] is mu_n - mu <= sqrt(2 mu s ln(1 / beta)) + s ln(1 / beta) / 3 (Bernstein).
    """
    level = log(len(mean) / beta) * panel.largest_weight
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
        for _ in range(HALVINGS):
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
