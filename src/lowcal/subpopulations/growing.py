"""Growing trees on binned rows: level by level on histograms of the residuals, for all residuals at once.

A forest is boosted: each tree is grown on what the ones before, shrunk, left of the residuals. In the Euclidean
geometry that is least squares. In the mirror geometry the trees are Newton steps of the log loss in log odds: the
residual z = y - f of a 0/1 outcome tells both, y = [z > 0] and f = y - z. This file is the definition; the same steps
are compiled in `engines.trees` for large problems where numba is installed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from lowcal.engines.reference import CHUNK, histogram, pieces
from lowcal.engines.switch import compiled
from lowcal.simplex import FLOOR, SMALLEST, TIE, FloatArray, Geometry, IntArray
from lowcal.subpopulations.base import effective_rows, is_enough
from lowcal.subpopulations.bins import Binned

#: A split must gain, and a node must weigh, at least this much; the weights of all rows sum to one.
LEAST = 1e-12
#: In the mirror geometry a row's curvature f (1 - f) counts as at least this much: few rows can't make a huge step.
LEAST_BEND = 0.01
#: From this many additions (rows x features x levels x trees) on the compiled kernels are worth loading: a fit grows
#: some fifty trees, which then take NumPy about as long as loading takes (0.4 s).
COMPILE_FROM = 500_000
#: Features are searched together while their rows and histograms hold at most this many numbers, which stay in cache.
AT_ONCE = 1 << 18
#: The compiled kernels hold the histograms of a whole level: at most this many numbers.
MOST_CELLS = 1 << 24


@dataclass(frozen=True)
class Growth:
    """How trees are grown: their depth and number, the effective rows of a node, the share of each tree's fit."""

    depth: int
    min_mass: float
    n_trees: int = 1
    shrinkage: float = 1.0
    geometry: Geometry = "euclidean"


@dataclass(frozen=True, eq=False)
class Forest:
    """Complete binary trees in heap order: node k has children 2k + 1 (bin <= cut) and 2k + 2; -1 is no split.

    Shapes: feature and cut (T, 2^depth - 1), value (T, 2^depth, q).
    """

    feature: IntArray
    cut: IntArray
    value: FloatArray

    @classmethod
    def empty(cls, growth: Growth, q: int) -> Forest:
        """Return trees of q values without splits, to be filled."""
        shape = growth.n_trees, 2**growth.depth - 1
        feature, cut = np.full(shape, -1, dtype=np.intp), np.zeros(shape, dtype=np.intp)
        return cls(feature, cut, np.zeros((shape[0], shape[1] + 1, q)))

    @property
    def depth(self) -> int:
        """The number of conditions on the way to a leaf."""
        return int(self.feature.shape[1]).bit_length()

    def leaf(self, rows: Binned, tree: int = 0) -> IntArray:
        """Return the leaf of every row in one tree, numbered from 0; rows at an unsplit node go left."""
        feature, cut = self.feature[tree], self.cut[tree]
        leaf: IntArray = np.zeros(rows.shape[0], dtype=np.min_scalar_type(len(feature)))
        kernels = _evaluators(len(leaf) * self.depth)
        if kernels is not None:
            kernels.leaves(rows.codes, feature, cut, leaf)
            return leaf
        node = np.zeros(len(leaf), dtype=np.intp)
        for _ in range(self.depth):
            node = 2 * node + 1 + _goes_right(rows.codes, feature[node], cut[node])
        leaf[:] = node - len(feature)
        return leaf

    def __call__(self, rows: Binned) -> FloatArray:
        """Return the sum over the trees of the values of every row's leaf, shape (n, q)."""
        total = np.zeros((rows.shape[0], self.value.shape[2]))
        kernels = _evaluators(total.shape[0] * self.feature.shape[0] * self.depth)
        if kernels is not None:
            kernels.evaluate(rows.codes, self.feature, self.cut, self.value, total)
            return total
        for tree, value in enumerate(self.value):
            total += value[self.leaf(rows, tree)]
        return total

    def path(self, rows: Binned, start: FloatArray) -> FloatArray:
        """Return numbers of every row after each tree has added its first value to them, shape (T, n)."""
        path = np.empty((len(self.feature), len(start)))
        kernels = _evaluators(path.size * self.depth)
        if kernels is not None:
            kernels.follow(rows.codes, self.feature, self.cut, self.value, start, path)
            return path
        for tree, value in enumerate(self.value):
            path[tree] = (path[tree - 1] if tree else start) + value[self.leaf(rows, tree), 0]
        return path

    def to_dict(self) -> dict[str, Any]:
        """Return the trees as plain data."""
        arrays = {"feature": self.feature.tolist(), "cut": self.cut.tolist(), "value": self.value.tolist()}
        return {"depth": self.depth, **arrays}


def grow(
    rows: Binned,
    counts: IntArray,
    sample_weight: FloatArray,
    Z: FloatArray,
    growth: Growth,
    total: FloatArray | None = None,
    odds: FloatArray | None = None,
    more: int = 1,
) -> Forest:
    """Grow trees that split where sum_a (S_left^2 / B_left + S_right^2 / B_right) is largest, S = sums of Z, B = bends.

    `counts` are the levels of each feature, Z the weighted residuals p_i z_i of shape (n, q), q = 1 for the mirror
    geometry, whose log odds and outcomes may be given as `odds`, shape (n, 2), which are moved. A leaf's value is the
    share `shrinkage` of S / B: of its mean residual, or of its Newton step.
    The forest's values on these rows, the same bits as evaluating it gives, are added to `total` where it is given.
    Compiled kernels are loaded if they pay for `more` calls like this one.
    Cost: about half of depth + 1 passes over rows x features for each tree.
    """
    n_inner, forest = 2**growth.depth - 1, Forest.empty(growth, Z.shape[1])
    total = np.zeros(Z.shape) if total is None else total
    if odds is None:
        odds = np.zeros((0, 2)) if growth.geometry == "euclidean" else _odds(sample_weight, Z[:, 0])
    kernels = kernels_for(rows.codes.size * growth.depth * growth.n_trees * more)
    if kernels is None or (n_inner + 1) * int(counts.sum()) * (Z.shape[1] + 3) > MOST_CELLS:
        _boost(rows.codes, counts, sample_weight, Z, odds, growth, forest, total)
        return forest
    kernels.boost(
        rows.codes,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64),
        kernels.make_records(sample_weight, Z),
        odds,
        max(growth.min_mass * (1.0 - 1e-9), SMALLEST),
        (LEAST, LEAST, LEAST_BEND),
        growth.shrinkage,
        bool(np.ptp(sample_weight) == 0.0),
        forest.feature,
        forest.cut,
        forest.value,
        total,
    )
    return forest


class OddsBooster:
    """Trees in log odds, some at a time, of the same rows: what a call of `grow` needs is laid out once.

    `z` are the log odds, which trees move; they may be set between calls.
    """

    def __init__(self, rows: Binned, counts: IntArray, weight: FloatArray, z: FloatArray, y: FloatArray) -> None:
        self.rows, self.counts, self.weight, self.z, self.y = rows, counts, weight, z.copy(), y

    def grow(self, growth: Growth, more: int) -> Forest:
        """Grow trees as `grow` does in the mirror geometry; kernels are loaded if they pay for `more` such calls."""
        kernels = kernels_for(self.rows.codes.size * growth.depth * growth.n_trees * more)
        laid = None if kernels is None else self._laid(kernels)
        if kernels is None or laid is None or 2**growth.depth * int(self.counts.sum()) * 4 > MOST_CELLS:
            odds, residual = np.column_stack([self.z, self.y]), np.zeros((len(self.z), 1))
            forest = grow(self.rows, self.counts, self.weight, residual, growth, odds=odds, more=more)
            self.z[:] = odds[:, 0]
            return forest
        forest = Forest.empty(growth, 1)
        limits = max(growth.min_mass * (1.0 - 1e-9), SMALLEST), (LEAST, LEAST, LEAST_BEND), growth.shrinkage
        kernels.boost_odds(*laid, self.z, self.y, *limits, self.is_even, forest.feature, forest.cut, forest.value)
        return forest

    @cached_property
    def is_even(self) -> bool:
        """Whether all weights are equal."""
        return bool(np.ptp(self.weight) == 0.0)

    def _laid(self, kernels: ModuleType) -> tuple[Any, ...] | None:
        """Return the rows as the kernel reads them; None if they have too many bins."""
        records = self.rows.once(self.weight, lambda: kernels.lay_records(self.weight))
        columns = self.rows.once(self.counts, lambda: kernels.lay_columns(self.rows.codes, self.counts))
        return None if columns is None else (*columns, records)


def _odds(sample_weight: FloatArray, z: FloatArray) -> FloatArray:
    """Return the log odds of f and the outcome y that residuals p_i (y_i - f_i) of 0/1 outcomes tell, shape (n, 2)."""
    residual = np.divide(z, sample_weight, out=np.zeros_like(z), where=sample_weight > 0)
    y = (residual > 0).astype(np.float64)
    return np.column_stack([logit(np.clip(y - residual, FLOOR, 1.0 - FLOOR)), y])


def kernels_for(additions: int) -> ModuleType | None:
    """Return the compiled kernels for a large problem where numba is installed.

    >>> kernels_for(100) is None
    True
    """
    return compiled("trees") if additions >= COMPILE_FROM else None


def _evaluators(steps: int) -> ModuleType | None:
    """Return the kernels that evaluate trees; once loaded they serve small problems too, as they give the same bits."""
    return kernels_for(COMPILE_FROM if "lowcal.engines.trees" in sys.modules else steps)


def _boost(
    codes: NDArray[Any],
    counts: IntArray,
    sample_weight: FloatArray,
    Z: FloatArray,
    odds: FloatArray,
    growth: Growth,
    forest: Forest,
    total: FloatArray,
) -> None:
    """Fill the trees one after the other."""
    columns = np.column_stack([sample_weight, np.square(sample_weight), sample_weight, Z])
    for feature, cut, value in zip(forest.feature, forest.cut, forest.value, strict=True):
        if len(odds):
            f = expit(odds[:, 0])
            columns[:, 2] = sample_weight * np.maximum(f * (1.0 - f), LEAST_BEND)
            columns[:, 3] = sample_weight * (odds[:, 1] - f)
        node = np.zeros(len(codes), dtype=np.intp)
        for d in range(growth.depth):
            level = slice(2**d - 1, 2 ** (d + 1) - 1)
            feature[level], cut[level] = _best_splits(codes, counts, node, columns, 2**d, growth.min_mass)
            node = 2 * node + _goes_right(codes, feature[level][node], cut[level][node])
        sums = histogram(node, columns, 2**growth.depth)
        value[:] = growth.shrinkage * sums[:, 3:] / np.where(sums[:, 2] > 0, sums[:, 2], np.inf)[:, None]
        total += value[node]
        if len(odds):
            odds[:, 0] += value[node, 0]
        else:
            columns[:, 3:] -= sample_weight[:, None] * value[node]


def _goes_right(codes: NDArray[Any], feature: IntArray, cut: IntArray) -> NDArray[np.bool_]:
    return np.asarray((feature >= 0) & (codes[np.arange(len(codes)), feature] > cut))


def _best_splits(
    codes: NDArray[Any], counts: IntArray, node: IntArray, columns: FloatArray, n_nodes: int, min_mass: float
) -> tuple[IntArray, IntArray]:
    """Return for every node the feature and cut of the largest gain, the first among equals; -1 is no split."""
    feature, cut = np.full(n_nodes, -1, dtype=np.intp), np.zeros(n_nodes, dtype=np.intp)
    best = np.full(n_nodes, LEAST)
    most = max(len(codes), n_nodes * int(counts.max(initial=1))) * columns.shape[1]
    for part in pieces(len(counts), most * (CHUNK // AT_ONCE)):
        gains, cuts = _best_cuts(_histograms(codes[:, part], int(counts[part].max()), node, columns, n_nodes), min_mass)
        for k, (gain, where) in enumerate(zip(gains.T, cuts.T, strict=True), part.start):
            better = gain > best * (1 + TIE)
            if better.any():
                feature[better], cut[better], best[better] = k, where[better], gain[better]
    return feature, cut


def _histograms(codes: NDArray[Any], n_levels: int, node: IntArray, columns: FloatArray, n_nodes: int) -> FloatArray:
    """Return the sums of the columns for every node, feature and level; levels that a feature lacks hold nothing."""
    n_features = codes.shape[1]
    cell = (node[:, None] * n_features + np.arange(n_features)) * n_levels + codes
    sums = histogram(cell.ravel(), np.repeat(columns, n_features, axis=0), n_nodes * n_features * n_levels)
    return sums.reshape(n_nodes, n_features, n_levels, -1)


def _best_cuts(sums: FloatArray, min_mass: float) -> tuple[FloatArray, IntArray]:
    """Return the best gain of a split, relative to no split, and its cut, for sums of shape (..., levels, columns)."""
    below = np.cumsum(np.ascontiguousarray(np.moveaxis(sums, -1, 0)), axis=-1)
    total = below[..., -1:]
    whole = np.square(total[3:]).sum(axis=0) / np.maximum(total[2], SMALLEST)
    score = (_score(below, min_mass) + _score(total - below, min_mass) - whole)[..., :-1]
    best = score.max(axis=-1)
    cut = (score >= (best - TIE * np.abs(best))[..., None]).argmax(axis=-1)
    return best, cut


def _score(sums: FloatArray, min_mass: float) -> FloatArray:
    """Return sum_a S_a^2 / B for columns of sums, or -inf where fewer than min_mass effective rows lie.

    What is left of many rows where none are left is rounding: it may have mass, and then no bend.
    """
    mass, square, bend = sums[:3]
    enough = is_enough(effective_rows(mass, square), min_mass) & (mass > LEAST) & (bend > 0)
    squares = np.square(sums[3:]).sum(axis=0)
    return np.asarray(np.divide(squares, bend, out=np.full(bend.shape, -np.inf), where=enough))
