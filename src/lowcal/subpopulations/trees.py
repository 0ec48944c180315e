"""Trees: the nodes of bounded-depth trees, that is, conjunctions of at most `max_depth` conditions on single columns.

The features are binned once. A tree is grown level by level on histograms of the residuals; every node below the root
is a subpopulation. On given rows a tree is one code column, the leaf of each row, so its members cost a byte a row.
With `n_trees` > 1 each call boosts a forest instead; its sum, brought into [-1, 1], is one signed member for each
label: as rich a function as gradient boosting finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from scipy import sparse

from lowcal.engines.products import gram, product
from lowcal.engines.reference import Codes, Design, Matrix, Table
from lowcal.errors import InvalidInput
from lowcal.frames import Table as Frame
from lowcal.inputs import check_positive, check_whole
from lowcal.simplex import FloatArray, Geometry, IntArray
from lowcal.subpopulations.base import (
    Everyone,
    Family,
    Offer,
    Residual,
    Subpopulations,
    WeakLearner,
    check_min_mass,
    n_labels,
)
from lowcal.subpopulations.bins import BinEncoder, Binned, learn_bins, order_by_residual
from lowcal.subpopulations.growing import Forest, Growth, grow
from lowcal.subpopulations.levels import FIRST, MISSING, Levels, resolve

#: Up to this many residuals get a tree each; more share one tree that splits for all of them.
OWN_TREES = 16


@dataclass(frozen=True)
class Trees(Subpopulations):
    """Nodes of decision trees grown on the residuals; "none found" is relative to this greedy learner.

    Parameters
    ----------
    max_depth : the largest number of conditions.
    columns : names or positions; None is every column.
    max_bins : numeric features are cut into at most so many bins, once.
    min_mass : nodes worth fewer effective rows than this are not made.
    n_trees : with more than one, each call boosts so many trees, and their sum is one signed member instead of nodes.
    shrinkage : the share of its fit that each boosted tree takes.
    geometry : how trees are boosted: least squares ("euclidean") or Newton steps in log odds ("mirror").

    A value unseen in fitting goes where missing ones go. Categories are cut in the order of their mean residuals at the
    start of the fit, so that one split parts the low ones from the high ones; those of under 100 rows stay between.

    >>> Trees(max_depth=2)
    Trees(max_depth=2, columns=None, max_bins=64, min_mass=30, n_trees=1, shrinkage=0.1, geometry='mirror')
    """

    max_depth: int = 3
    columns: str | int | Sequence[str | int] | None = None
    max_bins: int = 64
    min_mass: float = 30
    n_trees: int = 1
    shrinkage: float = 0.1
    geometry: Geometry = "mirror"

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Bin the features once; every call then grows trees on histograms."""
        return self._bind(X, sample_weight, None)

    def bind_for(self, X: Frame, sample_weight: FloatArray, residual: Residual) -> WeakLearner:
        """Bin the features once, with categories in the order of their mean residuals."""
        return self._bind(X, sample_weight, residual)

    def _bind(self, X: Frame, sample_weight: FloatArray, residual: Residual | None) -> WeakLearner:
        self._check()
        levels = tuple(learn_bins(c, X, self.max_bins, sample_weight) for c in resolve(self.columns, X))
        if residual is not None and any(level.categories is not None for level in levels):
            known = residual()
            levels = tuple(
                level if level.categories is None else order_by_residual(level, level.codes(X), sample_weight, known)
                for level in levels
            )
        encoder = BinEncoder(levels)
        rows = encoder(X)
        learn = Learn(rows, levels, sample_weight, self)
        return WeakLearner(encoder, rows, sample_weight, [Everyone()], learn if levels else None)

    def _check(self) -> None:
        check_min_mass(self.min_mass)
        check_whole("max_depth", self.max_depth, 1, 12)
        check_whole("max_bins", self.max_bins, 2)
        check_whole("n_trees", self.n_trees, 1)
        check_positive("shrinkage", self.shrinkage)
        if self.shrinkage > 1:
            raise InvalidInput(f"shrinkage must be at most 1, but {self.shrinkage!r} was given.")
        if self.geometry not in ("euclidean", "mirror"):
            raise InvalidInput(f"geometry must be 'euclidean' or 'mirror', but {self.geometry!r} was given.")


class Learn:
    """Makes new members from weighted residuals: nodes of a tree for each, or the sum of a forest for each label."""

    def __init__(self, rows: Binned, levels: Sequence[Levels], sample_weight: FloatArray, trees: Trees) -> None:
        self.rows, self.levels, self.weight, self.trees = rows, levels, sample_weight, trees
        self.counts = np.array([level.count for level in levels])
        self.number = count(1)
        self.seen = np.zeros((len(sample_weight), 0))
        self.offers: tuple[Offer, ...] = ()

    @property
    def boosts(self) -> bool:
        """Whether this learner offers sums of trees."""
        return self.trees.n_trees > 1

    @property
    def geometry(self) -> Geometry:
        """How the trees are boosted: what is offered is for updates of this geometry."""
        return self.trees.geometry

    def __call__(self, Z: FloatArray) -> Sequence[Family]:
        """Return the new families."""
        return self._sums(Z) if self.boosts else self._nodes(Z)

    def _nodes(self, Z: FloatArray) -> list[Family]:
        """Return the nodes of a tree for each residual."""
        targets = [Z[:, [a]] for a in range(Z.shape[1])] if Z.shape[1] <= OWN_TREES else [Z]
        growth = Growth(self.trees.max_depth, self.trees.min_mass)
        grown = [grow(self.rows, self.counts, self.weight, t, growth) for t in targets]
        return [family(tree, self.levels) for tree in grown if (tree.feature >= 0).any()]

    def _sums(self, Z: FloatArray) -> list[Family]:
        """Return the sum of a boosted forest for each label, brought into [-1, 1].

        The first columns of Z are the plain residuals of the labels, and a round combines what is found with all its
        weights. So a residual that combines the columns seen last, such as a witness, gets the same sums again.
        """
        if not is_combination(Z, self.seen):
            self.seen = Z
            d = n_labels(Z)
            # log odds of one label against the rest move the other labels too: (d - 1) / d of them is the whole way
            share = (d - 1) / d if d > 1 and self.trees.geometry == "mirror" else 1.0
            self.offers = tuple(o for a in range(d) if (o := self._offer(Z[:, [a]], a, share)).size > 0)
        return [offer.family for offer in self.offers]

    def _offer(self, z: FloatArray, label: int, share: float) -> Offer:
        t = self.trees
        growth = Growth(t.max_depth, t.min_mass, t.n_trees, t.shrinkage, t.geometry)
        h = np.zeros(z.shape)
        forest = grow(self.rows, self.counts, self.weight, z, growth, h)
        self.rows.once(forest, lambda: h)  # what the forest is on these rows need not be computed again
        scale = float(np.abs(h[self.weight > 0]).max(initial=0.0)) if (forest.feature >= 0).any() else 0.0
        name = f"sum #{next(self.number)} of {t.n_trees} trees (depth {t.max_depth}, shrinkage {t.shrinkage:g}): "
        return Offer(
            TreeSum(name + ", ".join(_leading(forest, self.levels)), forest, scale), label, share * scale, t.geometry
        )


def _leading(forest: Forest, levels: Sequence[Levels]) -> list[str]:
    """Return the three columns that most splits use, a split at depth d counting 2^-d."""
    share = 0.5 ** np.floor(np.log2(np.arange(1, forest.feature.shape[1] + 1)))
    used = forest.feature >= 0
    importance = np.bincount(forest.feature[used], np.broadcast_to(share, used.shape)[used], len(levels))
    order = np.argsort(-importance, kind="stable")[:3]
    return [levels[k].column for k in order if importance[k] > 0]


def is_combination(Z: FloatArray, seen: FloatArray) -> bool:
    """Say whether a single residual is a linear combination of the columns seen.

    >>> is_combination(np.array([[1.0], [3.0]]), np.eye(2)), is_combination(np.eye(2), np.eye(2))
    (True, False)
    """
    if Z.shape[1] > 1 or seen.shape[1] == 0:
        return False
    fitted = np.linalg.lstsq(gram(seen), product(seen.T, Z[:, 0]))[0]
    rest = Z[:, 0] - product(seen, fitted)
    return bool(np.linalg.norm(rest) <= 1e-6 * np.linalg.norm(Z))


@dataclass(frozen=True, eq=False)
class TreeNodes:
    """Some nodes of a tree, as a table over its leaves."""

    names: tuple[str, ...]
    tree: Forest
    nodes: IntArray

    def design(self, rows: Binned) -> Design:
        """Return one code column, the leaves, and which nodes each leaf lies under."""
        leaf = rows.once(self.tree, lambda: self.tree.leaf(rows))
        return Codes((leaf,), (self.table,))

    @cached_property
    def table(self) -> Table:
        """Which nodes each leaf lies under."""
        leaves = np.arange(2**self.tree.depth) + 2**self.tree.depth - 1
        under = np.zeros((len(leaves), len(self.nodes)))
        for _ in range(self.tree.depth + 1):
            under += leaves[:, None] == self.nodes
            leaves = (leaves - 1) // 2
        return Table(sparse.csr_array(under))

    def take(self, members: IntArray) -> TreeNodes:
        """Return some of the nodes."""
        return TreeNodes(tuple(self.names[j] for j in members), self.tree, self.nodes[members])

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain data."""
        nodes = self.nodes.tolist()
        return {"kind": "tree", "names": list(self.names), "tree": self.tree.to_dict(), "nodes": nodes}


@dataclass(frozen=True, eq=False)
class TreeSum:
    """c(x) = clip(h(x) / s, -1, 1) for the sum h of a forest; signed."""

    name: str
    forest: Forest
    scale: float

    @property
    def names(self) -> tuple[str, ...]:
        """The one name."""
        return (self.name,)

    def design(self, rows: Binned) -> Design:
        """Return the signed membership."""
        h = rows.once(self.forest, lambda: self.forest(rows))
        return rows.once(self, lambda: Matrix(np.clip(h / self.scale, -1.0, 1.0)))

    def take(self, members: IntArray) -> TreeSum:
        """Return itself: there is one member."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain data."""
        return {"kind": "forest", "names": [self.name], "forest": self.forest.to_dict(), "scale": self.scale}


def family(tree: Forest, levels: Sequence[Levels]) -> TreeNodes:
    """Return all nodes of a tree below the root, named by their conditions."""
    nodes: list[int] = []
    names: list[str] = []
    bounds: dict[int, dict[int, tuple[int, int]]] = {0: {}}
    for k in range(tree.feature.shape[1]):
        f = int(tree.feature[0, k])
        if f < 0 or k not in bounds:
            continue
        low, high = bounds[k].get(f, (MISSING - 1, levels[f].count - 1))
        cut = int(tree.cut[0, k])
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
