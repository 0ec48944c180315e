"""Trees: the nodes of bounded-depth trees, that is, conjunctions of at most `max_depth` conditions on single columns.

The features are binned once. A tree is grown level by level on histograms of the residuals; every node below the root
is a subpopulation. On given rows a tree is one code column, the leaf of each row, so its members cost a byte a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from lowcal.engines.reference import Codes, Design, Table, histogram
from lowcal.frames import Table as Frame
from lowcal.inputs import check_whole
from lowcal.simplex import TIE, FloatArray, IntArray
from lowcal.subpopulations.base import (
    Everyone,
    Family,
    Subpopulations,
    WeakLearner,
    check_min_mass,
    effective_rows,
    is_enough,
)
from lowcal.subpopulations.features import ordered_levels
from lowcal.subpopulations.levels import FIRST, MISSING, UNSEEN, Levels, resolve

#: Up to this many residuals get a tree each; more share one tree that splits for all of them.
OWN_TREES = 16


@dataclass(frozen=True)
class Trees(Subpopulations):
    """Nodes of decision trees grown on the residuals; "none found" is relative to this greedy learner.

    Parameters
    ----------
    max_depth : the largest number of conditions.
    columns : names or positions; None is every column.
    max_bins : numeric features are cut at quantiles into at most so many bins, once.
    min_mass : nodes worth fewer effective rows than this are not made.

    A value unseen in fitting goes where missing ones go.

    >>> Trees(max_depth=2)
    Trees(max_depth=2, columns=None, max_bins=64, min_mass=30)
    """

    max_depth: int = 3
    columns: str | int | Sequence[str | int] | None = None
    max_bins: int = 64
    min_mass: float = 30

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Bin the features once; every call then grows trees on histograms."""
        check_min_mass(self.min_mass)
        check_whole("max_depth", self.max_depth, 1, 12)
        check_whole("max_bins", self.max_bins, 2)
        levels = tuple(ordered_levels(c, X, self.max_bins, sample_weight) for c in resolve(self.columns, X))
        encoder = BinEncoder(levels)
        rows = encoder(X)

        def learn(Z: FloatArray) -> Sequence[Family]:
            targets = [Z[:, [a]] for a in range(Z.shape[1])] if Z.shape[1] <= OWN_TREES else [Z]
            trees = [grow(rows, t, sample_weight, self.max_depth, self.min_mass, levels) for t in targets]
            return [family(tree, levels) for tree in trees if (tree.feature >= 0).any()]

        return WeakLearner(encoder, rows, sample_weight, [Everyone()], learn if levels else None)


@dataclass(frozen=True)
class BinEncoder:
    """The ordered levels of every column."""

    levels: tuple[Levels, ...]

    def __call__(self, X: Frame) -> IntArray:
        """Return the bins as an (n, D) array of small integers; unseen values count as missing."""
        kind = np.min_scalar_type(max([2, *(level.count for level in self.levels)]))
        codes = np.empty((X.n_rows, len(self.levels)), dtype=kind, order="F")
        for k, level in enumerate(self.levels):
            column = level.codes(X)
            codes[:, k] = np.where(column == UNSEEN, MISSING, column)
        return codes

    def to_dict(self) -> dict[str, Any]:
        """Return the encoder as plain data."""
        return {"kind": "bins", "levels": [level.to_dict() for level in self.levels]}


@dataclass(frozen=True, eq=False)
class Tree:
    """A complete binary tree in heap order: node k has children 2k + 1 (bin <= cut) and 2k + 2; -1 is no split."""

    depth: int
    feature: IntArray
    cut: IntArray

    def leaf(self, rows: IntArray) -> IntArray:
        """Return the leaf of every row, numbered from 0; rows at an unsplit node go left."""
        node = np.zeros(len(rows), dtype=np.intp)
        every = np.arange(len(rows))
        for _ in range(self.depth):
            feature = self.feature[node]
            right = (feature >= 0) & (rows[every, feature] > self.cut[node])
            node = 2 * node + 1 + right
        return np.asarray(node - (2**self.depth - 1), dtype=np.min_scalar_type(2**self.depth))

    def to_dict(self) -> dict[str, Any]:
        """Return the tree as plain data."""
        return {"depth": self.depth, "feature": self.feature.tolist(), "cut": self.cut.tolist()}


@dataclass(frozen=True, eq=False)
class TreeNodes:
    """Some nodes of a tree, as a table over its leaves."""

    names: tuple[str, ...]
    tree: Tree
    nodes: IntArray

    def design(self, rows: IntArray) -> Design:
        """Return one code column, the leaves, and which nodes each leaf lies under."""
        leaves = np.arange(2**self.tree.depth) + 2**self.tree.depth - 1
        under = np.zeros((len(leaves), len(self.nodes)))
        for _ in range(self.tree.depth + 1):
            under += leaves[:, None] == self.nodes
            leaves = (leaves - 1) // 2
        return Codes((self.tree.leaf(rows),), (Table(sparse.csr_array(under)),))

    def take(self, members: IntArray) -> TreeNodes:
        """Return some of the nodes."""
        return TreeNodes(tuple(self.names[j] for j in members), self.tree, self.nodes[members])

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain data."""
        nodes = self.nodes.tolist()
        return {"kind": "tree", "names": list(self.names), "tree": self.tree.to_dict(), "nodes": nodes}


def grow(
    rows: IntArray,
    Z: FloatArray,
    sample_weight: FloatArray,
    depth: int,
    min_mass: float,
    levels: Sequence[Levels],
) -> Tree:
    """Grow a tree that splits where sum_a (S_left^2 / m_left + S_right^2 / m_right) is largest, S = sums of Z.

    Cost: depth passes over rows x features.
    """
    tree = Tree(depth, np.full(2**depth - 1, -1), np.zeros(2**depth - 1, dtype=np.intp))
    columns = np.column_stack([sample_weight, np.square(sample_weight), Z])
    node = np.zeros(len(rows), dtype=np.intp)
    for d in range(depth):
        first = 2**d - 1
        best = np.full(2**d, 1e-12)
        for k, level in enumerate(levels):
            gain, cut = _best_cuts(rows[:, k], node, columns, 2**d, level.count, min_mass)
            better = gain > best * (1 + TIE)
            tree.feature[first : first + 2**d][better] = k
            tree.cut[first : first + 2**d][better] = cut[better]
            best = np.where(better, gain, best)
        feature = tree.feature[first + node]
        right = (feature >= 0) & (rows[np.arange(len(rows)), feature] > tree.cut[first + node])
        node = 2 * node + right
    return tree


def _best_cuts(
    codes: IntArray, node: IntArray, columns: FloatArray, n_nodes: int, n_levels: int, min_mass: float
) -> tuple[FloatArray, IntArray]:
    """Return for every node the best gain of a split of this feature, relative to no split, and its cut."""
    key = node * n_levels + codes
    sums = histogram(key, columns, n_nodes * n_levels)
    below = np.cumsum(sums.reshape(n_nodes, n_levels, -1), axis=1)
    total = below[:, -1:, :]
    whole = np.square(total[..., 2:]).sum(axis=-1) / np.maximum(total[..., 0], np.finfo(float).tiny)
    score = (_score(below, min_mass) + _score(total - below, min_mass) - whole)[:, :-1]
    best = score.max(axis=1)
    cut = (score >= (best - TIE * np.abs(best))[:, None]).argmax(axis=1)
    return best, cut


def _score(sums: FloatArray, min_mass: float) -> FloatArray:
    """Return sum_a S_a^2 / m, or -inf where fewer than min_mass effective rows lie."""
    mass, square = sums[..., 0], sums[..., 1]
    safe = np.maximum(mass, np.finfo(float).tiny)
    enough = is_enough(effective_rows(mass, square), min_mass) & (mass > 0)
    return np.asarray(np.where(enough, np.square(sums[..., 2:]).sum(axis=-1) / safe, -np.inf))


def family(tree: Tree, levels: Sequence[Levels]) -> TreeNodes:
    """Return all nodes of a tree below the root, named by their conditions."""
    nodes: list[int] = []
    names: list[str] = []
    bounds: dict[int, dict[int, tuple[int, int]]] = {0: {}}
    for k in range(len(tree.feature)):
        f = int(tree.feature[k])
        if f < 0 or k not in bounds:
            continue
        low, high = bounds[k].get(f, (MISSING - 1, levels[f].count - 1))
        cut = int(tree.cut[k])
        for child, interval in ((2 * k + 1, (low, cut)), (2 * k + 2, (cut, high))):
            bounds[child] = {**bounds[k], f: interval}
            nodes.append(child)
            names.append(" & ".join(_condition(levels[j], *b) for j, b in sorted(bounds[child].items())))
    return TreeNodes(tuple(names), tree, np.array(nodes, dtype=np.intp))


def _condition(levels: Levels, low: int, high: int) -> str:
    """Name the codes in (low, high]: the missing level first, then categories or bins."""
    missing = low < MISSING
    low = max(low, MISSING)
    if high == MISSING:
        return levels.name(MISSING)
    tail = " or missing" if missing else ""
    if levels.categories is not None:
        shown = levels.shown[low + 1 - FIRST : high + 1 - FIRST]
        return f"{levels.column} in {{{', '.join(shown)}}}{tail}"
    left = "" if low == MISSING else f"{levels.shown[low - FIRST]}<"
    right = "" if high == levels.count - 1 else f"<={levels.shown[high - FIRST]}"
    if not left and not right:
        return f"{levels.column} is present"
    return f"{left}{levels.column}{right}{tail}" if right else f"{levels.column}>{left[:-1]}{tail}"
