"""A partition of predictions into few cells, small where rows are many: the centres of its cells stand for all rows.

It is grown on a sample. A cell is cut at the mean of the coordinate in which its rows differ most, and those cells
whose rows lie farthest from their mean, in sum, are cut first. A uniform grid would spend most cells where no row is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowcal.kernels.simplex import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Partition:
    """A tree of cuts: from node k, rows with f[feature_k] >= cut_k go to left_k + 1, others to left_k.

    A leaf leads to itself; `cell` numbers the leaves, and `centres` are the means of their rows in the sample.
    """

    feature: IntArray
    cut: FloatArray
    left: IntArray
    cell: IntArray
    centres: FloatArray
    depth: int

    @classmethod
    def of(cls, sample: FloatArray, limit: int) -> Partition:
        """Grow at most `limit` cells; where the sample has no more distinct rows, each has its own.

        Cost: O(n d log(limit)) for n rows of d coordinates.

        >>> found = Partition.of(np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]), limit=3)
        >>> found.centres.tolist(), found(np.array([[0.6, 0.4], [0.9, 0.1]])).tolist()
        ([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], [2, 1])
        """
        growth = _Growth(sample, min(limit, len(sample)))
        depth = 0
        while growth.cut_worst():
            depth += 1
        is_leaf = growth.left == np.arange(len(growth.left))
        cell = np.cumsum(is_leaf) - 1
        centres = _means(sample, cell[growth.node], int(cell[-1]) + 1)
        return cls(growth.feature, np.where(is_leaf, np.inf, growth.cut), growth.left, cell, centres, depth)

    def __call__(self, f: FloatArray) -> IntArray:
        """Return the cell of every row."""
        node, row = np.zeros(len(f), dtype=np.intp), np.arange(len(f))
        for _ in range(self.depth):
            node = self.left[node] + (f[row, self.feature[node]] >= self.cut[node])
        return self.cell[node]


class _Growth:
    """A partition under construction: the node of every row, and for every node the cut that is next, and its worth."""

    def __init__(self, sample: FloatArray, limit: int) -> None:
        self.sample, self.limit, self.node = sample, limit, np.zeros(len(sample), dtype=np.intp)
        self.left, self.feature = np.arange(1), np.zeros(1, dtype=np.intp)
        self.cut, self.cost = np.zeros(1), np.zeros(1)
        self._look(np.arange(len(sample)))

    def cut_worst(self) -> bool:
        """Cut the cells with the largest costs in two; return whether there are any."""
        made = len(self.left)
        room = self.limit - (made + 1) // 2
        # half of what is left, or an eighth of all: the last cuts go where they help most
        k = min(room, max(room // 2, self.limit // 8, 1))
        worst = np.argsort(-self.cost, kind="stable")[:k]
        worst = worst[self.cost[worst] > 0.0]
        self.left[worst], self.cost[worst] = made + 2 * np.arange(len(worst)), 0.0
        self._extend(2 * len(worst))
        rows = np.flatnonzero(self.left[self.node] != self.node)
        here = self.node[rows]
        self.node[rows] = self.left[here] + (self.sample[rows, self.feature[here]] >= self.cut[here])
        self._look(rows)
        return len(worst) > 0

    def _extend(self, k: int) -> None:
        self.left = np.append(self.left, len(self.left) + np.arange(k))
        self.feature = np.append(self.feature, np.zeros(k, dtype=np.intp))
        self.cut, self.cost = np.append(self.cut, np.zeros(k)), np.append(self.cost, np.zeros(k))

    def _look(self, rows: IntArray) -> None:
        """Find the next cuts of the cells that hold these rows, and what their rows are away from the mean, in sum."""
        rows = rows[np.argsort(self.node[rows], kind="stable")]
        nodes, start, own = np.unique(self.node[rows], return_index=True, return_inverse=True)
        if len(nodes) == 0:
            return
        x, k = self.sample[rows], len(nodes)
        mean = _means(x, own, k)
        spread = np.column_stack([np.bincount(own, column, k) for column in np.abs(x - mean[own]).T])
        feature = spread.argmax(axis=1)
        column, middle = x[np.arange(len(x)), feature[own]], mean[np.arange(k), feature]
        low, high = np.minimum.reduceat(column, start), np.maximum.reduceat(column, start)
        self.feature[nodes], self.cut[nodes] = feature, np.clip(middle, np.nextafter(low, np.inf), high)
        self.cost[nodes] = np.where(high > low, spread.sum(axis=1), 0.0)


def _means(x: FloatArray, own: IntArray, k: int) -> FloatArray:
    """Return the means of k groups of rows."""
    return np.column_stack([np.bincount(own, column, k) for column in x.T]) / np.bincount(own, minlength=k)[:, None]
