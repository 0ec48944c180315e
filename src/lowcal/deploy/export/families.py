"""Subpopulations in a graph: who belongs where, and what an update's coefficients sum up to on each row.

A family becomes look-ups (codes and a table that says which members hold a code) and matrices of memberships. They do
not depend on the predictions, so updates that use the same members share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.deploy.export.columns import Columns
from lowcal.deploy.export.graph import Graph, Value
from lowcal.deploy.export.tables import Split, split
from lowcal.kernels.reference import Codes, Cumulative, Decode, Table
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.subpopulations.base import CodeFamily, Encoder, Everyone, Family
from lowcal.subpopulations.bins import BinEncoder, Binned
from lowcal.subpopulations.features import FeatureEncoder
from lowcal.subpopulations.groups import GroupEncoder
from lowcal.subpopulations.growing import Forest
from lowcal.subpopulations.levels import MISSING
from lowcal.subpopulations.linear import Sigmoids
from lowcal.subpopulations.memberships import Members, MembershipEncoder
from lowcal.subpopulations.regressor import Fitted
from lowcal.subpopulations.serving import columns_of
from lowcal.subpopulations.thresholds import ThresholdEncoder
from lowcal.subpopulations.trees import TreeNodes, TreeSum
from lowcal.subpopulations.union import Part, UnionEncoder


@dataclass(frozen=True, eq=False)
class Everybody:
    """One member, who everybody is."""

    members: IntArray


@dataclass(frozen=True, eq=False)
class Matrix:
    """Memberships as a value of shape (n, m)."""

    members: IntArray
    value: Value


@dataclass(frozen=True, eq=False)
class LookUp:
    """Memberships as functions of a code in 0..levels-1 of shape (n,)."""

    members: IntArray
    code: Value
    decode: Decode


Piece = Everybody | Matrix | LookUp


class Families:
    """Makes the memberships of families from the columns that an encoder reads.

    `pieces(family, numbers)` are parts of the family with the members of each; `numbers` is how many coefficients a
    member has, from which the size of tables follows.
    """

    def __init__(self, graph: Graph, columns: Columns, encoder: Encoder) -> None:
        self.graph, self.columns, self.encoder = graph, columns, encoder
        self._known: dict[tuple[int, int], list[Piece]] = {}
        self._splits: dict[Any, list[Split]] = {}

    def pieces(self, family: Family, numbers: int) -> Sequence[Piece]:
        """Return the parts of a family; a look-up of a single member becomes its membership, which updates share."""
        key = id(family), numbers  # the predictor keeps its families: an id stands for one of them
        if key not in self._known:
            self._known[key] = [self._shared(piece) for piece in self._pieces(self.encoder, family, numbers)]
        return self._known[key]

    def _shared(self, piece: Piece) -> Piece:
        if isinstance(piece, LookUp) and len(piece.members) == 1:
            return Matrix(piece.members, _membership(self.graph, piece))
        return piece

    def _pieces(self, encoder: Encoder, family: Family, numbers: int) -> Iterator[Piece]:
        graph, columns, every = self.graph, self.columns, np.arange(len(family.names))
        if isinstance(family, Part) and isinstance(encoder, UnionEncoder):
            yield from self._pieces(encoder.parts[family.index], family.family, numbers)
        elif isinstance(family, Everyone):
            yield Everybody(every)
        elif isinstance(family, CodeFamily) and isinstance(encoder, GroupEncoder | ThresholdEncoder):
            for members, k, decode in _by_column(family):
                yield from self._code_pieces(encoder, k, members, decode, numbers)
        elif isinstance(family, Members) and isinstance(encoder, MembershipEncoder):
            read = columns_of(encoder)
            yield Matrix(every, graph.side_by_side([graph.column(columns.number(read[j])) for j in family.columns]))
        elif isinstance(family, Sigmoids) and isinstance(encoder, FeatureEncoder):
            yield Matrix(every, _sigmoids(graph, columns, encoder, family))
        elif isinstance(family, TreeNodes) and isinstance(encoder, BinEncoder):
            leaf = graph.add("Squeeze", _leaves(graph, columns, encoder, family.tree), [1])
            yield LookUp(every, leaf, _nodes_of_leaves(encoder, family))
        elif isinstance(family, TreeSum) and isinstance(encoder, BinEncoder):
            yield Matrix(every, _tree_sum(graph, columns, encoder, family))
        else:
            raise _refusal(family)

    def _code_pieces(
        self, encoder: GroupEncoder | ThresholdEncoder, k: int, members: IntArray, decode: Decode, numbers: int
    ) -> Iterator[Piece]:
        """Yield look-ups of one code column, or of the raw columns that were merged into it."""
        if isinstance(encoder, ThresholdEncoder) and isinstance(decode, Cumulative):
            yield LookUp(members, self.columns.bin(encoder.columns[k], encoder.cuts[k], 0, 1), decode)
            return
        assert isinstance(decode, Table)
        levels = [encoder.levels[a] for a in encoder.plan[k]] if isinstance(encoder, GroupEncoder) else []
        shape = [level.count for level in levels] or [decode.shape[0]]
        for one in self._split(decode, shape, numbers):
            if not one.axes:
                yield from (Everybody(members[[j]]) for j in one.members)
                continue
            codes = [self.columns.level(levels[a]) for a in one.axes]
            yield LookUp(members[one.members], _joint(self.graph, codes, [shape[a] for a in one.axes]), one.table)

    def _split(self, decode: Table, shape: Sequence[int], numbers: int) -> list[Split]:
        """Return `split`, once for the same table: many updates of one group each use few groups."""
        key = (tuple(shape), decode.shape, *(array.tobytes() for array in decode.parts), numbers)
        if key not in self._splits:
            self._splits[key] = split(decode, shape, numbers)
        return self._splits[key]


def _by_column(family: CodeFamily) -> Iterator[tuple[IntArray, int, Decode]]:
    """Yield the members that each code column tells, the column and its table."""
    start = 0
    for k, decode in zip(family.columns, family.decode, strict=True):
        yield start + np.arange(decode.shape[1]), k, decode
        start += decode.shape[1]


def _nodes_of_leaves(encoder: BinEncoder, family: TreeNodes) -> Decode:
    """Return the table that says which nodes each leaf lies under: that of the family on no rows."""
    nobody = family.design(Binned(np.zeros((0, len(encoder.levels)), dtype=np.uint8)))
    assert isinstance(nobody, Codes)
    return nobody.decode[0]


def _refusal(family: Family) -> InvalidInput:
    possible = "Groups, Intersections, Memberships, Thresholds, Linear, Trees, and unions and Private(...) of these"
    if isinstance(family, Fitted):
        model = type(family.estimators[0]).__name__
        return InvalidInput(
            f"The predictor uses Regressor({model}(...)), a foreign model that lowcal can't write as ONNX. Exported "
            f"are {possible}: fit again with Trees(n_trees=25) or Linear()."
        )
    return InvalidInput(f"{type(family).__name__} can't be written as ONNX. Exported are {possible}.")


# --- code columns -----------------------------------------------------------------------------------------------


def _joint(graph: Graph, codes: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Return several codes as one number, the last running fastest."""
    joint = codes[0]
    for code, size in zip(codes[1:], sizes[1:], strict=True):
        joint = graph.add("Add", graph.add("Mul", joint, size), code)
    return joint


def _membership(graph: Graph, piece: LookUp) -> Value:
    """Return the membership in a single member, shape (n, 1)."""
    decode, code = piece.decode, graph.column(piece.code)
    if not isinstance(decode, Cumulative):
        return graph.add("Gather", decode.spread(np.ones((1, 1)))[:, 0], code)
    inside = graph.add("Greater", code, decode.cuts[0])
    if not decode.is_above[0]:
        inside = graph.add("And", graph.add("Not", inside), graph.add("Greater", code, 0))
    return graph.cast(inside, "double")


# --- learned members --------------------------------------------------------------------------------------------


def sigmoid(graph: Graph, value: Value) -> Value:
    """Return 1 / (1 + exp(-t)): unlike the operator Sigmoid, to full relative precision where it is nearly 0."""
    return graph.add("Div", 1.0, graph.add("Add", 1.0, graph.add("Exp", graph.add("Neg", value))))


def _sigmoids(graph: Graph, columns: Columns, encoder: FeatureEncoder, family: Sigmoids) -> Value:
    """Return the sigmoids of linear functions of the features, shape (n, m)."""
    blocks = [columns.feature(feature) for feature in encoder.features]
    score = graph.add("MatMul", graph.side_by_side(blocks), family.theta[:-1])
    return sigmoid(graph, graph.add("Add", score, family.theta[-1:]))


def _leaves(graph: Graph, columns: Columns, encoder: BinEncoder, forest: Forest) -> Value:
    """Return the leaf of every row in every tree, shape (n, T): all trees go down one level at a time."""
    used = np.unique(forest.feature[forest.feature >= 0])
    bins = [graph.column(columns.level(encoder.levels[k], unseen=MISSING)) for k in used]
    codes = graph.side_by_side(bins)
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


def _tree_sum(graph: Graph, columns: Columns, encoder: BinEncoder, family: TreeSum) -> Value:
    """Return clip(h / s, -1, 1) for the sum h of the values of all leaves, shape (n, 1)."""
    value = family.forest.value[:, :, 0]
    place = graph.add(
        "Add",
        _leaves(graph, columns, encoder, family.forest),
        value.shape[1] * np.arange(len(value))[None, :],
    )
    h = graph.total(graph.add("Gather", value.ravel(), place))
    return graph.add("Clip", graph.add("Div", h, family.scale), -1.0, 1.0)


# --- coefficients summed over the members -----------------------------------------------------------------------


def join(graph: Graph, pieces: Sequence[tuple[Piece, FloatArray]]) -> list[tuple[Piece, FloatArray]]:
    """Put all matrices side by side, as one product is cheaper than many; the others stay as they are."""
    matrices = [(piece.value, theta) for piece, theta in pieces if isinstance(piece, Matrix)]
    rest: list[tuple[Piece, FloatArray]] = [(piece, theta) for piece, theta in pieces if not isinstance(piece, Matrix)]
    if not matrices:
        return rest
    theta = np.concatenate([theta for _, theta in matrices])
    return [*rest, (Matrix(np.arange(len(theta)), graph.side_by_side([value for value, _ in matrices])), theta)]


def combine(graph: Graph, piece: Piece, theta: FloatArray) -> Value:
    """Return C theta for coefficients of shape (m, q), shape (n, q) or, for everybody, (1, q)."""
    if isinstance(piece, Everybody):
        return graph.constant(theta)
    if isinstance(piece, Matrix):
        return graph.add("Mul" if len(theta) == 1 else "MatMul", piece.value, theta)
    return graph.add("Gather", piece.decode.spread(theta), piece.code)


def combine_in_cells(graph: Graph, piece: Piece, theta: FloatArray, cell: Value) -> Value:
    """Return sum_j C_j theta[j, cell, :] for coefficients (m, cells, d), shape (n, d); the last cell is none."""
    m, n_cells, d = theta.shape
    if isinstance(piece, LookUp):
        levels = piece.decode.shape[0]
        table = piece.decode.spread(theta.reshape(m, n_cells * d)).reshape(levels * n_cells, d)
        place = graph.add("Add", graph.add("Mul", piece.code, n_cells), cell)
        return graph.add("Gather", table, place)
    by_cell = graph.add("Gather", theta.transpose(1, 0, 2), cell)  # (n, m, d)
    if isinstance(piece, Matrix):
        by_cell = graph.add("Mul", by_cell, graph.add("Unsqueeze", piece.value, [2]))
    return graph.add("ReduceSum", by_cell, [1], keepdims=0)
