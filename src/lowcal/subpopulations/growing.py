"""Growing trees on binned rows: level by level on histograms of the residuals, one pass over the rows for each.

A forest is boosted: each tree is grown on what the ones before, shrunk, left of the residuals. In the Euclidean
geometry that is least squares. In the mirror geometry the trees are Newton steps of the log loss in log odds: the
residual z = y - f of a 0/1 outcome gives both, y = [z > 0] and f = y - z.

Every term that is added up (the weight w over the largest, w^2, w times the curvature, w z) is first rounded to a
multiple of a power of two, so coarse that the sums of all rows are exact. So histograms do not depend on the order of
the rows, those of pieces add up to those of the whole, and a node is its parent minus its sibling, to the last bit. For
n <= 2^b rows a term is off by at most 2^(b - 52) of the largest one (in the mirror geometry by 2^-46 more, as the
logistic function is our own). Squares are rounded up, by twice that, so that rows lighter than about 2^(b/2 - 26) of
the heaviest add less than they should to the effective number of rows.

This file is the definition; the same steps, with the same bits, are compiled in `kernels.trees` for large problems
where numba is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from lowcal.data.checked_json import MOST, Numbers, Plain, WrittenOnce
from lowcal.kernels.exact import Grid, Scale, Tables, row_bits
from lowcal.kernels.loops import compiled
from lowcal.kernels.reference import CACHE, CHUNK, histogram, pieces
from lowcal.kernels.simplex import (
    FLOOR,
    SMALLEST,
    TIE,
    FloatArray,
    Geometry,
    IntArray,
    portable_sigmoid,
    portable_softmax,
)
from lowcal.subpopulations.base import Here, Source, Visited
from lowcal.subpopulations.bins import Binned
from lowcal.subpopulations.single_row import part_of_rows

#: A split must gain, and a node must weigh, at least this much; the weights of all rows sum to one.
LEAST = 1e-12
#: In the mirror geometry a row's curvature f (1 - f) is at least this: few rows can't make a huge step.
LEAST_BEND = 0.01
#: The compiled kernels are loaded from this many additions (rows x features x levels x trees) on: a fit grows some
#: fifty trees, which then take NumPy about as long as loading takes (0.4 s).
COMPILE_FROM = 500_000
#: Features are searched together while their rows and histograms hold at most this many numbers, which stay in cache.
AT_ONCE = 2 * CACHE
#: The most conditions of a tree: the last of its levels has thousands of nodes.
MOST_DEPTH = 12
#: The histograms of a level, of as many trees as are grown together, hold at most this many numbers.
MOST_CELLS = 1 << 24


@dataclass(frozen=True)
class Growth:
    """How trees are grown: their depth and number, the least effective rows of a node, the share of each tree's fit."""

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
        else:
            leaf[:] = _descend(rows.codes, feature, cut, self.depth)
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

    def path(self, rows: Binned, start: FloatArray, path: FloatArray) -> None:
        """Fill `path`, shape (T, n), with numbers of every row after each tree has added its first value to them."""
        kernels = _evaluators(path.size * self.depth)
        if kernels is not None:
            kernels.follow(rows.codes, self.feature, self.cut, self.value, start, path)
            return
        for tree, value in enumerate(self.value):
            path[tree] = (path[tree - 1] if tree else start) + value[self.leaf(rows, tree), 0]

    @classmethod
    def join(cls, forests: Sequence[Forest]) -> Forest:
        """Return the trees of some forests as one."""
        return cls(*(np.concatenate([getattr(one, part) for one in forests]) for part in ("feature", "cut", "value")))

    def to_dict(self) -> dict[str, Any]:
        """Return the trees as plain data, which a file holds once for all families that name them."""
        arrays = {"feature": Numbers(self.feature), "cut": Numbers(self.cut), "value": Numbers(self.value)}
        return WrittenOnce(depth=self.depth, **arrays)

    @classmethod
    def from_dict(cls, at: Plain) -> Forest:
        """Return the trees of plain data."""
        depth, feature, cut, value = at.fields("depth", "feature", "cut", "value")
        inner = 2 ** depth.whole(1, MOST_DEPTH) - 1
        features = feature.wholes((None, inner), -1, 2**31)
        if len(features) == 0:
            feature.refuse("the features of at least one tree")
        cuts = cut.wholes(features.shape, 0, 2**31)
        values = value.floats((len(features), inner + 1, None), -MOST, MOST)
        if values.shape[2] == 0:
            value.refuse("an array with a value in each leaf")
        return cls(features, cuts, values)


def _descend(codes: NDArray[Any], feature: IntArray, cut: IntArray, depth: int) -> IntArray:
    """Return the node of every row at a level of one tree, numbered from 0."""
    node, row = np.zeros(len(codes), dtype=np.intp), np.arange(len(codes))
    for d in range(depth):
        place = node + (2**d - 1)
        node = 2 * node + ((feature[place] >= 0) & (codes[row, feature[place]] > cut[place]))
    return node


# --- what is grown ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Request:
    """Forests to grow side by side, all in the same way.

    `start` returns for a shard what the forests start from, the columns `targets` of each: residuals of at most
    `bound`, or for the mirror geometry log odds and outcomes; of a single tree also predictions and outcomes, if it is
    `near`. `counts` are the numbers of levels of the features, which are in the part `part` of the encoded rows.
    Compiled kernels are loaded if they pay for `more` such calls.
    """

    start: Callable[[Any], FloatArray]
    targets: tuple[tuple[int, ...], ...]
    bound: float
    counts: IntArray
    growth: Growth
    part: tuple[int, ...] = ()
    more: int = 1
    near: bool = False

    @property
    def is_mirror(self) -> bool:
        """Whether trees are Newton steps in log odds."""
        return self.growth.geometry == "mirror"

    @property
    def q(self) -> int:
        """The number of residuals that a tree splits for."""
        return 1 if self.is_mirror else len(self.targets[0])

    @cached_property
    def offsets(self) -> NDArray[np.uint64]:
        """Where the bins of each feature begin, and how many there are."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.uint64)

    @property
    def cells(self) -> int:
        """The numbers in the histograms of the last level of a tree."""
        return int(self.counts.sum()) * (self.q + 3) << (self.growth.depth - 1)

    def rows(self, shard: Visited) -> Binned:
        """Return the bins of rows at hand."""
        binned: Binned = part_of_rows(shard.rows, self.part)
        return binned

    def kernels(self, n: int) -> ModuleType | None:
        """Return the compiled kernels, if they pay for n rows: all of them, of which some may be at hand."""
        growth = self.growth
        additions = n * len(self.counts) * growth.depth * growth.n_trees * self.more
        return kernels_for(additions) if 2 * self.cells <= MOST_CELLS else None

    def blank(self, n_trees: int) -> Forest:
        """Return trees without a split."""
        n_inner = 2**self.growth.depth - 1
        unsplit, cut = np.full((n_trees, n_inner), -1, dtype=np.intp), np.zeros((n_trees, n_inner), dtype=np.intp)
        return Forest(unsplit, cut, np.zeros((n_trees, n_inner + 1, self.q)))

    def limits(self, scale: Scale) -> tuple[float, tuple[float, float, float]]:
        """Return the effective rows of a node, and the least gain, mass of a node and curvature of a row.

        Sums are of shares of the largest weight; rounding does not count against 30 rows of equal weight.
        """
        least = LEAST / max(scale.most, SMALLEST)
        return max(self.growth.min_mass * (1.0 - 1e-9), SMALLEST), (least, least, LEAST_BEND)


@dataclass(frozen=True, eq=False)
class Grown:
    """The numbers of every row between trees: what the forests start from, or that after one more tree of each.

    `bounds` are those of the residuals of each forest.
    """

    request: Request
    bounds: tuple[float, ...]
    before: Grown | None = None
    trees: tuple[Forest, ...] = ()
    remembered: int = 1

    def then(self, trees: tuple[Forest, ...]) -> Grown:
        """Return the rows after one more tree of each forest."""
        bounds = [bound + float(np.abs(tree.value).max()) for bound, tree in zip(self.bounds, trees, strict=True)]
        return Grown(self.request, tuple(bounds), self, trees)

    def advance(self, before: FloatArray | None, shard: Visited) -> FloatArray:
        """Return the numbers of a shard: those before, moved by the values of the last trees."""
        request = self.request
        if before is None:
            return request.start(shard)
        state, rows = before.copy(), request.rows(shard)
        for columns, tree in zip(request.targets, self.trees, strict=True):
            value = tree.value[0][tree.leaf(rows)]
            if request.is_mirror:
                state[:, columns[0]] += value[:, 0]
            else:
                state[:, columns] -= value
        return state

    def of(self, shard: Visited) -> FloatArray:
        """Return the numbers of a shard; what a single tree starts from is not worth keeping."""
        return self.request.start(shard) if self.request.growth.n_trees == 1 else shard.at(self)


def grow_forests(source: Source, request: Request) -> list[Forest]:
    """Return a forest for each target, wherever the rows are: the same bits for any number of pieces.

    Trees split where sum_a (S_left^2 / B_left + S_right^2 / B_right) is largest, S = sums of residuals, B = of
    curvatures. A leaf's value is the share `shrinkage` of S / B: of its mean residual, or of its Newton step.
    Cost: depth passes over the rows for each tree; over half of the rows, from the second level on, where compiled.
    """
    single, forests = source.single, list[Forest]()
    boost = None if single is None else _in_one_piece(single, request)
    if single is None or boost is None:
        together = max(1, MOST_CELLS // request.cells)
        for k in range(0, len(request.targets), together):
            targets = request.targets[k : k + together]
            grown, each = Grown(replace(request, targets=targets), (request.bound,) * len(targets)), []
            for _ in range(request.growth.n_trees):
                each.append(_grow_trees(source, grown))
                grown = grown.then(each[-1])
            forests += [Forest.join(trees) for trees in zip(*each, strict=True)]
        return forests
    state, rows = request.start(single), request.rows(single)
    for columns in request.targets:
        total = np.zeros(len(state) if request.growth.n_trees > 1 else 0)
        z, y = state[:, columns[0]].copy()[None], np.ascontiguousarray(state[:, columns[-1]])[None]
        forests.append(boost(z, y, total))
        if len(total):  # the rows then know the values of what was boosted
            rows.once(forests[-1], partial(np.asarray, total[:, None]))
    return forests


class OddsBooster:
    """Trees in log odds, some at a time, of the same rows in one piece, for one label or several.

    `z` are the log odds of outcomes y, or the scores of several labels, shape (labels, n), which trees move. In every
    round all labels get a tree, each a Newton step against the rest from the same predictions.
    """

    def __init__(self, rows: Binned, counts: IntArray, weight: FloatArray, z: FloatArray, y: FloatArray) -> None:
        self.here, self.counts, self.z, self.y = Here(rows, weight), counts, z.copy(), y

    def grow(self, growth: Growth, more: int) -> list[Forest]:
        """Grow trees of every label in the mirror geometry; kernels are loaded if they pay for `more` such calls."""
        q = len(self.z)
        boost = _in_one_piece(self.here, self._request(growth, self.z[0], self.y[0], more))
        if boost is not None:
            grown = boost(self.z, self.y, np.zeros(0))
            return [Forest(grown.feature[a::q], grown.cut[a::q], grown.value[a::q]) for a in range(q)]
        rounds = [self._round(replace(growth, n_trees=1), more) for _ in range(growth.n_trees)]
        return [Forest.join(trees) for trees in zip(*rounds, strict=True)]

    def _round(self, growth: Growth, more: int) -> list[Forest]:
        """Grow a tree of every label: the definition."""
        trees = list[Forest]()
        for z, y, f in zip(self.z, self.y, portable_softmax(self.z), strict=True):
            trees += grow_forests(self.here, self._request(growth, f, y, more))
            trees[-1].path(self.here.rows, z.copy(), z[None])
        return trees

    def _request(self, growth: Growth, f: FloatArray, y: FloatArray, more: int) -> Request:
        """Return the request for trees of a label near predictions f."""
        start = np.column_stack([f, y])
        return Request(lambda _: start, ((0, 1),), 1.0, self.counts, growth, (), more, near=True)


def odds_of(residual: FloatArray) -> FloatArray:
    """Return the log odds of f and the outcome y of residuals y - f of 0/1 outcomes, shape (n, 2)."""
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
    return kernels_for(COMPILE_FROM if "lowcal.kernels.trees" in sys.modules else steps)


# --- rows in one piece, compiled -------------------------------------------------------------------------------


#: Grows the forest of one residual from log odds and outcomes, or from residuals, which are moved, shape (labels, n);
#: trees of labels take turns. What is added to every row is added to the last array, unless that is empty.
Boost: TypeAlias = Callable[[FloatArray, FloatArray, FloatArray], Forest]


def _in_one_piece(shard: Visited, request: Request) -> Boost | None:
    """Return the compiled kernel for rows in one piece; None if it does not pay, or is not for such trees."""
    kernels, rows, growth = request.kernels(shard.scale.n), request.rows(shard), request.growth
    if kernels is None or request.q > 1:
        return None
    laid = rows.once(request.counts, lambda: kernels.lay_columns(rows.codes, request.counts))
    if laid is None:
        return None
    how = request.is_mirror, request.bound, row_bits(shard.scale.n), *request.limits(shard.scale), growth.shrinkage

    def boost(z: FloatArray, y: FloatArray, total: FloatArray) -> Forest:
        forest = request.blank(growth.n_trees * len(z))
        kernels.boost(*laid, shares(shard), z, y, *how, forest.feature, forest.cut, forest.value, total)
        return forest

    return boost


# --- rows in pieces: the definition ----------------------------------------------------------------------------


def shares(shard: Visited) -> FloatArray:
    """Return weights over the largest: equal ones are 1, and their sums and squares counts."""
    return np.asarray(shard.weight / max(shard.scale.most, SMALLEST))


def _grow_trees(source: Source, grown: Grown) -> tuple[Forest, ...]:
    """Return a tree for every target, grown level by level; features whose histograms are too large come in runs."""
    request, features = grown.request, len(grown.request.counts)
    most = features if request.cells <= MOST_CELLS else max(1, MOST_CELLS * features // request.cells)
    parts = [slice(start, min(start + most, features)) for start in range(0, features, most)]
    growing = [_Growing(request, source.scale) for _ in request.targets]
    trees = tuple(one.tree for one in growing)
    for depth in range(request.growth.depth):
        builds = tuple(one.build for one in growing)
        so_far = tuple(replace(tree) for tree in trees)  # as values: the trees themselves grow on
        for part in parts:
            tables = source.run(LevelSums(grown, so_far, builds, depth, part))
            for one, table in zip(growing, tables, strict=True):
                one.see(table, part)
        for one in growing:
            one.descend()
    for one in growing:
        one.set_values()
    return trees


@dataclass(frozen=True, eq=False)
class LevelSums:
    """The sums of a level of every tree, shape (nodes x bins, 3 + q): mass, its square, curvature, residuals.

    `builds` are the nodes whose rows are added up, `part` the features.
    """

    grown: Grown
    trees: tuple[Forest, ...]
    builds: tuple[NDArray[np.bool_], ...]
    depth: int
    part: slice

    def __call__(self, shard: Visited) -> Tables:
        """Return the sums of rows at hand."""
        request, n = self.grown.request, shard.scale.n
        kernels, codes = request.kernels(n), request.rows(shard).codes
        state, share = self.grown.of(shard), shares(shard)
        tables = Tables()
        for k, columns in enumerate(request.targets):
            is_all = len(columns) == state.shape[1]  # a copy of every row costs as much as its histogram
            own, bound = state if is_all else np.ascontiguousarray(state[:, columns]), self.grown.bounds[k]
            if request.is_mirror and not request.near:
                own = np.column_stack([_predicted(kernels, own[:, 0].copy()), own[:, 1]])
            if kernels is None:
                records = make_records(share, own, request.is_mirror, bound, n)
                tables.append(self._add_up(k, codes, records))
            else:
                records = np.zeros((len(codes), 3 + request.q + (-3 - request.q) % kernels.LANES))
                kernels.fill_records(share, own, request.is_mirror, bound, row_bits(n), LEAST_BEND, records)
                tables.append(self._add_up_compiled(kernels, k, codes, records))
        return tables

    def _add_up(self, k: int, codes: NDArray[Any], records: FloatArray) -> FloatArray:
        """Return the sums of the nodes to build, features together while their rows stay in cache."""
        tree, build = self.trees[k], self.builds[k]
        node = _descend(codes, tree.feature[0], tree.cut[0], self.depth)
        if not build.all():
            inside = np.flatnonzero(build[node])
            codes, node, records = codes[inside], node[inside], records[inside]
        counts, n_nodes = self.grown.request.counts[self.part], 2**self.depth
        own, ends, tables = codes[:, self.part], np.cumsum(counts), []
        most = max(len(codes), n_nodes * int(counts.max(initial=1))) * records.shape[1]
        for some in pieces(len(counts), most * (CHUNK // AT_ONCE)):
            starts, bins = ends[some] - counts[some], int(counts[some].sum())
            cell = (node * bins)[:, None] + (starts - starts[0]) + own[:, some]
            sums = histogram(cell.ravel(), np.repeat(records, len(starts), axis=0), n_nodes * bins)
            tables.append(sums.reshape(n_nodes, bins, -1))
        return np.concatenate(tables, axis=1).reshape(-1, records.shape[1])

    def _add_up_compiled(self, kernels: ModuleType, k: int, codes: NDArray[Any], records: FloatArray) -> FloatArray:
        tree, offsets, node = self.trees[k], self.grown.request.offsets, np.zeros(len(codes), dtype=np.uint32)
        for d in range(self.depth):
            first = 2**d - 1
            kernels.descend(codes, tree.feature[0, first:], tree.cut[0, first:], node)
        table = np.zeros((2**self.depth * int(offsets[-1]), records.shape[1]))
        kernels.add_up(codes, offsets, records, node, self.builds[k], table)
        return table

    def read(self, total: Tables, some: Any, scale: Scale) -> Tables:
        """Return the sums of all rows."""
        return total


def _predicted(kernels: ModuleType | None, z: FloatArray) -> FloatArray:
    """Return the predictions at log odds, which may be overwritten."""
    if kernels is None:
        return portable_sigmoid(z)
    kernels.set_sigmoids(z)
    return z


def make_records(share: FloatArray, state: FloatArray, is_mirror: bool, bound: float, n: int) -> FloatArray:
    """Return what is added up, a column each: mass, its square, curvature, residuals; rounded for sums of n rows.

    The state holds residuals, or predictions and outcomes.

    >>> make_records(np.array([0.5]), np.array([[0.25, -1.0]]), False, 1.0, 4).tolist()
    [[0.5, 0.25, 0.5, 0.125, -0.5]]
    """
    one = Grid.whole(1.0, n)
    records = np.empty((len(share), 4 if is_mirror else 3 + state.shape[1]))
    square = np.square(share)
    records[:, 0], records[:, 1] = one.round(share.copy()), one.round(square.copy())
    records[:, 1] += one.unit * (records[:, 1] < square)
    if is_mirror:
        f, y = state.T
        records[:, 2] = one.round(share * np.maximum(f * (1.0 - f), LEAST_BEND))
        records[:, 3] = one.round(share * (y - f))
    else:
        records[:, 2] = records[:, 0]
        records[:, 3:] = Grid.whole(bound, n).round(share[:, None] * state)
    return records


class _Growing:
    """A tree under construction, from the sums of one level after the other.

    `build` are the nodes whose rows are added up: the smaller child of each node that was split, where all features
    come at once; the other child is the parent minus it.
    """

    def __init__(self, request: Request, scale: Scale) -> None:
        self.request, self.kernels = request, request.kernels(scale.n)
        self.min_mass, self.least = request.limits(scale)
        self.tree, self.depth, self.build = request.blank(1), 0, np.ones(1, dtype=bool)
        self.sums: FloatArray | None = None
        self.parents: FloatArray | None = None
        self._begin()

    def _begin(self) -> None:
        self.best = np.full(2**self.depth, self.least[0])
        self.left = np.zeros((0, 0)) if self.sums is None else self.sums.copy()
        self.seen: FloatArray | None = None

    @property
    def level(self) -> slice:
        return slice(2**self.depth - 1, 2 ** (self.depth + 1) - 1)

    def see(self, table: FloatArray, part: slice) -> None:
        """Take the best split of each node among some features."""
        sums = table.reshape(2**self.depth, -1, table.shape[-1])
        if part.stop - part.start == len(self.request.counts):
            # all nodes are seen: those that were not built are the parent minus the sibling
            sums = self.seen = np.require(sums, requirements="W")  # what comes from another process may be read-only
            for k in np.flatnonzero(~self.build).tolist():
                if self.build[k ^ 1]:
                    assert self.parents is not None
                    sums[k] = self.parents[k >> 1] - sums[k ^ 1]
        if self.sums is None:
            self.sums = sums[:, : self.request.counts[part.start]].sum(axis=1)
            self.left = self.sums.copy()
        if self.kernels is not None:
            self._see_compiled(sums)
            return
        counts = self.request.counts[part]
        gains, cuts = _best_of_features(sums, counts, self.min_mass, self.least[1])
        starts = np.cumsum(counts) - counts
        for node in np.flatnonzero((gains > self.best[:, None]).any(axis=1)).tolist():
            k, self.best[node] = _first_of_best(gains[node].tolist(), float(self.best[node]))
            if k >= 0:
                cut, place = int(cuts[node, k]), self.level.start + node
                self.tree.feature[0, place], self.tree.cut[0, place] = part.start + k, cut
                self.left[node] = sums[node, starts[k] : starts[k] + cut + 1].sum(axis=0)

    def _see_compiled(self, sums: FloatArray) -> None:
        assert self.kernels is not None
        assert self.sums is not None
        n_nodes, bins, width = sums.shape
        of_level, totals = np.ascontiguousarray(sums), np.ascontiguousarray(self.sums)
        limits, below, then = (self.min_mass, self.least), np.zeros((width + 1, bins)), np.zeros((2 * n_nodes, width))
        found = self.tree.feature[0, self.level], self.tree.cut[0, self.level]
        request = self.request
        self.kernels.split_level(of_level, request.offsets, totals, request.q, *limits, below, *found, then)
        self.left = then[::2]

    def descend(self) -> None:
        """Go down a level: a node that was not split leaves all to its left child."""
        assert self.sums is not None
        split = self.tree.feature[0, self.level] >= 0
        children = np.stack([self.left, self.sums - self.left], axis=1)
        is_left = children[:, 0, 0] <= children[:, 1, 0]
        smaller = np.column_stack([split & is_left, split & ~is_left])
        # without the sums of the whole level no node can be had from the others
        self.build = (smaller if self.seen is not None else np.column_stack([split, split])).reshape(-1)
        self.parents, self.sums = self.seen, children.reshape(len(split) * 2, -1)
        self.depth += 1
        self._begin()

    def set_values(self) -> None:
        """Set the values of the leaves, a share of the Newton step."""
        assert self.sums is not None
        bend, S = self.sums[:, 2], self.sums[:, 3 : 3 + self.request.q]
        self.tree.value[0] = self.request.growth.shrinkage * S / np.where(bend > 0, bend, np.inf)[:, None]


def _first_of_best(gains: Sequence[float], best: float) -> tuple[int, float]:
    """Return the place of the largest gain above `best`, the first among equals, and the gain; -1 if there is none.

    >>> _first_of_best([1.0, 2.0, 2.0, 0.5], 1.5), _first_of_best([1.0], 1.5)
    ((1, 2.0), (-1, 1.5))
    """
    place = -1
    for k, gain in enumerate(gains):
        if gain > best * (1 + TIE):
            place, best = k, gain
    return place, best


def _best_of_features(sums: FloatArray, counts: IntArray, min_mass: float, least: float) -> tuple[FloatArray, IntArray]:
    """Return the best gain of every node and feature, and its cut, for sums of shape (nodes, bins, columns)."""
    ends = np.cumsum(counts)
    numbers = sums.shape[0] * int(counts.max(initial=1)) * sums.shape[2]
    found = []
    for some in pieces(len(counts), numbers * (CHUNK // AT_ONCE)):
        own, most = counts[some], int(counts[some].max())
        first, last = ends[some][0] - own[0], ends[some][-1]
        if (own == most).all():
            padded = sums[:, first:last].reshape(len(sums), len(own), most, -1)
        else:  # features of fewer levels are filled up with empty bins
            place = np.minimum((ends[some] - own)[:, None] + np.arange(most), last - 1)
            padded = np.where((np.arange(most) < own[:, None])[:, :, None], sums[:, place], 0.0)
        found.append(_best_cuts(padded, min_mass, least))
    return np.concatenate([gain for gain, _ in found], axis=1), np.concatenate([cut for _, cut in found], axis=1)


def _best_cuts(sums: FloatArray, min_mass: float, least: float) -> tuple[FloatArray, IntArray]:
    """Return the best gain of a split, relative to no split, and its cut, for sums of shape (..., levels, columns)."""
    below = np.cumsum(np.ascontiguousarray(np.moveaxis(sums, -1, 0)), axis=-1)
    total = below[..., -1:]
    whole = np.square(total[3:]).sum(axis=0) / np.maximum(total[2], SMALLEST)
    score = (_score(below, min_mass, least) + _score(total - below, min_mass, least) - whole)[..., :-1]
    best = score.max(axis=-1)
    cut = (score >= (best - TIE * np.abs(best))[..., None]).argmax(axis=-1)
    return best, cut


def _score(sums: FloatArray, min_mass: float, least: float) -> FloatArray:
    """Return sum_a S_a^2 / B for columns of sums, or -inf where fewer than min_mass effective rows lie."""
    mass, square, bend = sums[:3]
    enough = (np.square(mass) >= min_mass * np.maximum(square, SMALLEST)) & (mass > least) & (bend > 0)
    squares = np.square(sums[3:]).sum(axis=0)
    return np.asarray(np.divide(squares, bend, out=np.full(bend.shape, -np.inf), where=enough))
