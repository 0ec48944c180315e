"""Trees: the nodes of bounded-depth trees, that is, conjunctions of at most `max_depth` conditions on single columns.

The features are binned once. A tree is grown level by level on histograms of the residuals; every node below the root
is a subpopulation. On given rows a tree is one code column, the leaf of each row, so its members cost a byte a row.
With `n_trees` > 1 each call boosts a forest instead; its sum, brought into [-1, 1], is one signed member for each
label: as rich a function as gradient boosting finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse

from lowcal.data.checked_json import MOST, Numbers, Plain
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import check_positive, check_whole
from lowcal.data.onnx_graph import GraphColumns, GraphLookUp, GraphMatrix, Value
from lowcal.kernels.exact import Scale
from lowcal.kernels.products import by_row, gram, product
from lowcal.kernels.reference import Codes, DecodeTable, Design, Matrix
from lowcal.kernels.simplex import FloatArray, Geometry, IntArray
from lowcal.subpopulations.base import (
    CLASSES,
    FAMILIES,
    MOST_RESIDUALS,
    Asked,
    Breakdown,
    ColumnChoice,
    Everyone,
    Family,
    OfColumns,
    Offer,
    ReadFor,
    Residual,
    Residuals,
    Visited,
    WeakLearner,
    check_min_mass,
)
from lowcal.subpopulations.bins import BinEncoder, Binned, Orderly, learn_bins
from lowcal.subpopulations.growing import MOST_DEPTH, Forest, Growth, Request, grow_forests, odds_of
from lowcal.subpopulations.levels import FIRST, MISSING, Levels, resolve
from lowcal.subpopulations.single_row import CodeRead, Evaluate, MemberRead, Read, RowFacts, part_of_rows

#: Whether a residual is a combination of others is first looked at on this many rows ...
COMPARED = 1 << 12
#: ... and it is one if no more than this share of it is left.
UNEXPLAINED = 1e-6


@CLASSES.register
@dataclass(frozen=True)
class Trees(OfColumns):
    """Nodes of decision trees grown on the residuals; "none found" is relative to this greedy learner.

    Parameters
    ----------
    max_depth : the largest number of conditions.
    columns : names or positions; None is every column.
    max_bins : the largest number of bins that a numeric feature is cut into, once.
    min_mass : nodes with fewer effective rows than this are not made.
    n_trees : with more than one, each call boosts this many trees, and their sum is one signed member instead of nodes.
    shrinkage : the share of its fit that each boosted tree takes.
    geometry : how trees are boosted: least squares ("euclidean") or Newton steps in log odds ("mirror").

    A value unseen in fitting goes where missing ones go. Categories are cut in the order of their mean residuals at the
    start of the fit, so that one split parts the low ones from the high ones; those of under 100 rows stay between.

    >>> Trees(max_depth=2)
    Trees(max_depth=2, columns=None, max_bins=64, min_mass=30, n_trees=1, shrinkage=0.1, geometry='mirror')
    """

    max_depth: int = 3
    columns: ColumnChoice = None
    max_bins: int = 64
    min_mass: float = 30
    n_trees: int = 1
    shrinkage: float = 0.1
    geometry: Geometry = "mirror"
    needs_no_matrix = True

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Bin the features once; every call then grows trees on histograms."""
        return self.bind_for(X, sample_weight, None)

    def bind_for(self, X: Frame, sample_weight: FloatArray, residual: Residual | None) -> WeakLearner:
        """Bin the features once, with categories in the order of their mean residuals, where these are known."""
        check_min_mass(self.min_mass)
        check_whole("max_depth", self.max_depth, 1, MOST_DEPTH)
        check_whole("max_bins", self.max_bins, 2)
        check_whole("n_trees", self.n_trees, 1)
        check_positive("shrinkage", self.shrinkage)
        if self.shrinkage > 1:
            raise InvalidInput(f"shrinkage must be at most 1, but {self.shrinkage!r} was given.")
        if self.geometry not in ("euclidean", "mirror"):
            raise InvalidInput(f"geometry must be 'euclidean' or 'mirror', but {self.geometry!r} was given.")
        levels = tuple(learn_bins(c, X, self.max_bins, sample_weight) for c in resolve(self.columns, X))
        rows = BinEncoder(levels)(X)
        bins = Orderly(levels, rows.codes)
        if residual is not None and len(bins.columns):
            place = bins.order_by(bins.sums(slice(None), sample_weight, residual()))
            levels, rows = bins.levels_after(place), Binned(bins.codes_after(place))
        learn = _Learn(levels, self) if levels else None
        return WeakLearner(BinEncoder(levels), rows, sample_weight, [Everyone()], learn)


class _Learn:
    """Makes new members from residuals: nodes of a tree for each, or the sum of a forest for each label."""

    def __init__(self, levels: Sequence[Levels], trees: Trees) -> None:
        self.levels, self.trees = levels, trees
        self.counts = np.array([level.count for level in levels])
        self.number = count(1)
        self.seen: Asked | None = None
        self.offers: tuple[Offer, ...] = ()
        self.grown: list[list[Forest]] = []
        self.n_taken = 0

    def on(self, encoder: BinEncoder) -> _Learn:
        return _Learn(encoder.levels, self.trees)

    @property
    def geometry(self) -> Geometry | None:
        return self.trees.geometry if self.trees.n_trees > 1 else None

    @property
    def growths(self) -> list[list[list[Forest]]]:
        """All forests so far, in the order of the calls; a resumed fit puts the first ones here beforehand."""
        return [self.grown]

    def ask(self, asked: Asked) -> Sequence[Family]:
        """Return the nodes of a tree for each residual, or the sum of a boosted forest for each label, in [-1, 1].

        The first residuals are y - f, of each label, and a round combines what is found with all its weights. So a
        linear combination of the residuals seen last, such as a witness, gets the same sums again.
        """
        if self.geometry is not None:
            if self.seen is None or not is_seen(asked, self.seen):
                self.seen, self.offers = asked, tuple(self._offers(asked))
            return [offer.family for offer in self.offers]
        q, growth = asked.residuals.q, Growth(self.trees.max_depth, self.trees.min_mass)
        targets = tuple((a,) for a in range(q)) if q <= MOST_RESIDUALS else (tuple(range(q)),)
        grown = self._grow(asked, growth, q, targets)
        return [family(tree, self.levels) for tree in grown if (tree.feature >= 0).any()]

    def _grow(self, asked: Asked, growth: Growth, size: int, targets: tuple[tuple[int, ...], ...]) -> list[Forest]:
        """Return a forest for each target, from the first residuals; an interrupted fit may have grown it already."""
        if self.n_taken == len(self.grown):
            start, bound = Start(asked.residuals, growth.geometry, size), asked.residuals.bound
            request = Request(start, targets, bound, self.counts, growth, asked.part)
            self.grown.append(grow_forests(asked.rows, request))
        self.n_taken += 1
        return self.grown[self.n_taken - 1]

    def _offers(self, asked: Asked) -> Iterator[Offer]:
        t, d = self.trees, asked.residuals.n_labels
        growth = Growth(t.max_depth, t.min_mass, t.n_trees, t.shrinkage, t.geometry)
        width = 2 if t.geometry == "mirror" else 1
        forests = self._grow(asked, growth, d, tuple(tuple(range(width * a, width * (a + 1))) for a in range(d)))
        scales = asked.rows.run(LargestValues(tuple(forests), asked.part)).tolist()
        # log odds of one label against the rest move the other labels too: (d - 1) / d of them is the whole way
        share = (d - 1) / d if d > 1 and t.geometry == "mirror" else 1.0
        for label, (forest, scale) in enumerate(zip(forests, scales, strict=True)):
            if share * scale > 0.0:
                yield Offer(TreeSum(self._name(forest), forest, scale), label, share * scale, t.geometry)

    def _name(self, forest: Forest) -> str:
        """Name a sum by the three columns that most splits use, a split at depth d counting 2^-d."""
        t, used = self.trees, forest.feature >= 0
        share = 0.5 ** np.floor(np.log2(np.arange(1, forest.feature.shape[1] + 1)))
        importance = np.bincount(forest.feature[used], np.broadcast_to(share, used.shape)[used], len(self.levels))
        order = np.argsort(-importance, kind="stable")[:3]
        name = f"sum #{next(self.number)} of {t.n_trees} trees (depth {t.max_depth}, shrinkage {t.shrinkage:g}): "
        return name + ", ".join(self.levels[k].column for k in order if importance[k] > 0)


@dataclass(frozen=True, eq=False)
class Start:
    """What forests start from: the first residuals as they are, or the log odds and outcomes that they stand for."""

    residuals: Residuals
    geometry: Geometry
    size: int

    def __call__(self, shard: Any) -> FloatArray:
        """Return the columns of these rows."""
        Z = self.residuals(shard)
        if self.geometry == "euclidean":
            return Z[:, : self.size]
        return np.column_stack([odds_of(Z[:, a]) for a in range(self.size)])


class Largest(NamedTuple):
    """The largest of some numbers, of all rows."""

    most: FloatArray

    def __add__(self, other: Largest) -> Largest:  # type: ignore[override]
        return Largest(np.maximum(self.most, other.most))


@dataclass(frozen=True, eq=False)
class LargestValues:
    """The largest absolute value of every forest on rows that have weight; 0 without a split."""

    forests: tuple[Forest, ...]
    part: tuple[int, ...]

    def __call__(self, shard: Visited) -> Largest:
        """Return the largest values of rows at hand."""
        rows, seen, most = part_of_rows(shard.rows, self.part), shard.weight > 0, np.zeros(len(self.forests))
        for k, forest in enumerate(self.forests):
            if (forest.feature >= 0).any():
                most[k] = np.abs(rows.once(forest, partial(forest, rows))[seen]).max(initial=0.0)
        return Largest(most)

    def read(self, total: Largest, some: Any, scale: Scale) -> FloatArray:
        """Return the largest values of all rows."""
        return total.most


def is_seen(asked: Asked, seen: Asked) -> bool:
    """Return whether a single residual is a linear combination of those seen last on the same rows."""
    if asked.rows is not seen.rows or asked.residuals.q > 1:
        return False
    if asked.residuals.follows(seen.residuals):
        return True
    n = asked.rows.scale.n
    some = asked.rows.sample(np.linspace(0, n - 1, COMPARED).astype(np.intp) if n > COMPARED else None)
    theta = combination_of(asked.residuals(some), seen.residuals(some))
    if theta is None or n <= COMPARED:
        return theta is not None
    return bool(asked.rows.run(Unexplained(asked.residuals, seen.residuals, theta)))


def combination_of(Z: FloatArray, seen: FloatArray) -> FloatArray | None:
    """Return the coefficients with which the columns seen make a single residual; None if they do not.

    >>> combination_of(np.array([[1.0], [3.0]]), np.eye(2)).round(9), combination_of(np.eye(2), np.eye(2)) is None
    (array([1., 3.]), True)
    """
    if Z.shape[1] > 1 or seen.shape[1] == 0:
        return None
    theta = np.asarray(np.linalg.lstsq(gram(seen), product(seen.T, Z[:, 0]))[0], dtype=np.float64)
    rest = Z[:, 0] - product(seen, theta)
    return theta if np.linalg.norm(rest) <= UNEXPLAINED * np.linalg.norm(Z) else None


@dataclass(frozen=True, eq=False)
class Unexplained:
    """Whether nothing is left of a residual when a combination of others is taken off, on all rows."""

    residuals: Residuals
    seen: Residuals
    theta: FloatArray

    def __call__(self, shard: Any) -> Largest:
        """Return the largest residual of rows at hand, and the largest rest."""
        z = self.residuals(shard)[:, 0]
        rest = z - by_row(self.seen(shard), self.theta[:, None])[:, 0]
        return Largest(np.array([np.abs(z).max(initial=0.0), np.abs(rest).max(initial=0.0)]))

    def read(self, total: Largest, some: Any, scale: Scale) -> bool:
        """Say whether nothing is left."""
        return bool(total.most[1] <= UNEXPLAINED * total.most[0])


@FAMILIES.register
@dataclass(frozen=True, eq=False)
class TreeNodes:
    """Some nodes of a tree, as a table over its leaves."""

    names: tuple[str, ...]
    tree: Forest
    nodes: IntArray
    kind: ClassVar[str] = "tree"

    def design(self, rows: Binned) -> Design:
        """Return one code column, the leaves, and which nodes each leaf lies under."""
        leaf = rows.once(self.tree, lambda: self.tree.leaf(rows))
        return Codes((leaf,), (self.table,))

    @cached_property
    def table(self) -> DecodeTable:
        """The nodes above each leaf."""
        leaves = np.arange(2**self.tree.depth) + 2**self.tree.depth - 1
        under = np.zeros((len(leaves), len(self.nodes)))
        for _ in range(self.tree.depth + 1):
            under += leaves[:, None] == self.nodes
            leaves = (leaves - 1) // 2
        return DecodeTable(sparse.csr_array(under))

    def take(self, members: IntArray) -> TreeNodes:
        """Return some of the nodes."""
        return TreeNodes(tuple(self.names[j] for j in members), self.tree, self.nodes[members])

    def reads(self, facts: RowFacts) -> Sequence[Read]:
        """Read the leaf of a row, with those of all trees of this depth."""
        content = self.tree.feature.tobytes() + self.tree.cut.tobytes()
        return [CodeRead(*facts.place(("leaves", self.tree.depth), _Walk, content, self.tree), self.table)]

    def onnx(self, columns: GraphColumns, encoder: BinEncoder, numbers: int) -> Sequence[GraphLookUp]:
        """Return the leaf in a graph, and which nodes it lies under."""
        leaf = columns.graph.add("Squeeze", _leaves(columns, encoder, self.tree), [1])
        return [GraphLookUp(np.arange(len(self.names)), leaf, self.table)]

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain data."""
        nodes = Numbers(self.nodes)
        return {"kind": self.kind, "names": list(self.names), "tree": self.tree.to_dict(), "nodes": nodes}

    @classmethod
    def from_dict(cls, at: Plain, context: ReadFor) -> TreeNodes:
        """Return the family of plain data."""
        _, names, tree, nodes = at.fields("kind", "names", "tree", "nodes")
        grown = _read_grown(at, tree, context)
        if len(grown.feature) != 1:
            tree.refuse("the place of a single tree")
        places = nodes.wholes((None,), 1, 2 ** (grown.depth + 1) - 2)
        return cls(names.names(len(places)), grown, places)


@FAMILIES.register
@dataclass(frozen=True, eq=False)
class TreeSum:
    """c(x) = clip(h(x) / s, -1, 1) for the sum h of a forest; signed."""

    name: str
    forest: Forest
    scale: float
    kind: ClassVar[str] = "forest"

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

    def reads(self, facts: RowFacts) -> Sequence[Read]:
        """Read the sum, with those of all forests of this depth."""
        arrays = (self.forest.feature, self.forest.cut, self.forest.value, np.float64(self.scale))
        content = b"".join(array.tobytes() for array in arrays)
        number, position = facts.place(("sums", self.forest.depth), _all_sums, content, self)
        return [MemberRead(number, [position])]

    def breakdown(self, encoder: BinEncoder, rows: Binned) -> Breakdown:
        """Return the trees' values by the columns on the way to each row's leaf; a clipped sum shrinks them alike."""
        sets, place = self._paths
        every, values = np.arange(rows.shape[0]), np.zeros((rows.shape[0], len(sets)))
        for tree, value in enumerate(self.forest.value[:, :, 0]):
            leaf = self.forest.leaf(rows, tree)
            values[every, place[tree, leaf]] += value[leaf]
        values /= np.maximum(np.abs(values.sum(axis=1)), self.scale)[:, None]
        listed = [", ".join(encoder.levels[k].column for k in used) for used in sets]
        names = [f"trees: {columns}" if columns else "trees" for columns in listed]
        return Breakdown(names, np.zeros(len(names), dtype=np.intp), sparse.csr_array(values))

    @cached_property
    def _paths(self) -> tuple[list[list[int]], IntArray]:
        """The sets of features on the way to leaves, and which of them each leaf has, shape (T, 2^depth)."""
        n_trees, n_inner = self.forest.feature.shape
        node, met = np.arange(n_inner + 1) + n_inner, []
        while node.any():
            node = (node - 1) // 2
            met.append(self.forest.feature[:, node])
        used = np.sort(np.stack(met, axis=-1), axis=-1).reshape(n_trees * (n_inner + 1), -1)
        used[:, 1:][used[:, 1:] == used[:, :-1]] = -1  # a feature counts once
        sets, place = np.unique(np.sort(used, axis=1), axis=0, return_inverse=True)
        return [[k for k in one if k >= 0] for one in sets.tolist()], place.reshape(n_trees, n_inner + 1)

    def onnx(self, columns: GraphColumns, encoder: BinEncoder, numbers: int) -> Sequence[GraphMatrix]:
        """Return the signed membership in a graph."""
        graph, value = columns.graph, self.forest.value[:, :, 0]
        starts = value.shape[1] * np.arange(len(value))[None, :]
        place = graph.add("Add", _leaves(columns, encoder, self.forest), starts)
        h = graph.total(graph.add("Gather", value.ravel(), place))
        clipped = graph.add("Clip", graph.add("Div", h, self.scale), -1.0, 1.0)
        return [GraphMatrix(np.arange(1), clipped)]

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain data."""
        return {"kind": self.kind, "names": [self.name], "forest": self.forest.to_dict(), "scale": self.scale}

    @classmethod
    def from_dict(cls, at: Plain, context: ReadFor) -> TreeSum:
        """Return the family of plain data."""
        _, names, forest, scale = at.fields("kind", "names", "forest", "scale")
        grown = _read_grown(at, forest, context)
        if grown.value.shape[2] != 1:
            forest.refuse("the place of a forest with one value in a leaf")
        return cls(names.names(1)[0], grown, scale.number(1.0 / MOST, MOST))


def _read_grown(at: Plain, place: Plain, context: ReadFor) -> Forest:
    """Return the forest at a place, which must split features that the encoder has at bins that they have."""
    forest: Forest = context.shared[place.whole(0, len(context.shared) - 1)]
    counts = np.array([level.count for level in context.rows_of(at, BinEncoder).levels], dtype=np.intp)
    split = forest.feature >= 0
    if len(counts) == 0 or forest.feature.max() >= len(counts):
        place.refuse(f"the place of a forest on {len(counts)} features")
    if (forest.cut[split] >= counts[forest.feature[split]]).any():
        place.refuse("the place of a forest that splits at bins of its features")
    return forest


def _leaves(columns: GraphColumns, encoder: BinEncoder, forest: Forest) -> Value:
    """Return the leaf of every row in every tree, shape (n, T): all trees go down one level at a time."""
    graph, used = columns.graph, np.unique(forest.feature[forest.feature >= 0])
    codes = graph.side_by_side([graph.column(encoder.levels[k].onnx(columns, unseen=MISSING)) for k in used])
    n_trees, n_inner = forest.feature.shape
    gap = forest.feature < 0  # an unsplit node sends all rows left: no bin exceeds its cut
    feature = np.where(gap, 0, np.searchsorted(used, forest.feature))
    cut = np.where(gap, np.iinfo(np.int32).max, forest.cut)
    offset = n_inner * np.arange(n_trees)[None, :]
    right = graph.add("Greater", graph.add("Gather", codes, feature[:, 0], axis=1), cut[None, :, 0])
    node = graph.add("Add", graph.cast(right, "int64"), 1)
    for _ in range(1, forest.depth):
        place = graph.add("Add", node, offset)
        code = graph.add("GatherElements", codes, graph.add("Gather", feature.ravel(), place), axis=1)
        right = graph.add("Greater", code, graph.add("Gather", cut.ravel(), place))
        child = graph.add("Add", graph.cast(right, "int64"), 1)
        node = graph.add("Add", graph.add("Mul", node, 2), child)
    return graph.add("Sub", node, n_inner)


def _all_sums(families: list[TreeSum]) -> Evaluate:
    """Return the sums of forests of one depth, brought into [-1, 1], as one function of the bins of a single row."""
    walk = _Walk([family.forest for family in families])
    value = np.concatenate([family.forest.value[:, :, 0] for family in families])
    trees, starts = np.arange(len(value)), np.cumsum([0, *(len(f.forest.value) for f in families)])[:-1]
    scale = np.array([family.scale for family in families])
    return lambda bins: np.clip(np.add.reduceat(value[trees, walk(bins)], starts) / scale, -1.0, 1.0)


class _Walk:
    """All trees of some forests of one depth, walked down together: their nodes lie one tree after the other.

    From an inner node a row goes to `left` or, if the bin of its feature lies above the cut, to the node after it. From
    the last inner level it goes to a leaf, numbered from 0. No bin lies above the cut of a node without a split.
    """

    def __init__(self, forests: Sequence[Forest]) -> None:
        feature, cut = np.concatenate([f.feature for f in forests]), np.concatenate([f.cut for f in forests])
        n_trees, n_inner = feature.shape
        node, self.depth = np.arange(n_inner), forests[0].depth
        self.roots: IntArray = np.arange(n_trees) * n_inner
        is_last = 2 * node + 1 >= n_inner
        self.left = np.where(is_last, 2 * node + 1 - n_inner, self.roots[:, None] + 2 * node + 1).ravel()
        self.cut = np.where(feature >= 0, cut, np.iinfo(np.intp).max).ravel()
        self.feature = np.maximum(feature, 0).ravel()

    def __call__(self, bins: Sequence[int]) -> IntArray:
        row, node = np.array(bins), self.roots
        for _ in range(self.depth):
            node = np.asarray(self.left.take(node) + (row.take(self.feature.take(node)) > self.cut.take(node)))
        return node


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
    if high == MISSING:
        return levels.name(MISSING)
    tail, low = " or missing" if low < MISSING else "", max(low, MISSING)
    if levels.categories is None:
        return levels.between(low, high) + tail
    shown = levels.shown[low + 1 - FIRST : high + 1 - FIRST]
    return f"{levels.column} in {{{', '.join(shown)}}}{tail}"
