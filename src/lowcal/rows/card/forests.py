"""Trees on a device: columns as bins, the leaves of rows, sums of forests, and how far these move predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.frames import Table as Frame
from lowcal.kernels.card.formula import Device, Formula, Inputs
from lowcal.kernels.card.trees import trees_on
from lowcal.kernels.simplex import IntArray
from lowcal.rows.card.coded import Coded, Moves, arrays_of, moved_by, score_lines, weight_text
from lowcal.rows.updates import Term, Update
from lowcal.subpopulations.base import Encoded, Family
from lowcal.subpopulations.bins import BinEncoder, Binned
from lowcal.subpopulations.growing import Forest
from lowcal.subpopulations.levels import MISSING, UNSEEN, Levels
from lowcal.subpopulations.trees import TreeSum
from lowcal.subpopulations.union import Part

#: Nodes of the rows are kept for this many trees that are grown together.
MOST_TREES = 16
#: Rows of a column that are encoded in this machine's memory at a time.
NEAR_ROWS = 1 << 20


class BinColumns(Binned):
    """Bins that are held column by column, on a device; brought here, they are bins as everywhere."""

    def __init__(self, columns: Sequence[Any]) -> None:
        self.columns, self.store = tuple(columns), None
        self._known: dict[int, tuple[object, Any]] = {}
        #: By the id of a tree's features: these, a level of the tree, and the node of every row there.
        self.nodes: dict[int, tuple[IntArray, int, Any]] = {}

    @cached_property
    def codes(self) -> NDArray[Any]:  # type: ignore[override]
        """The bins of rows that are in this machine's memory, shape (n, D)."""
        return np.column_stack(self.columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return len(self.columns[0]), len(self.columns)

    def flat(self) -> tuple[list[Any], Callable[[Iterator[Any]], Binned]]:
        """Return the columns, and how they become rows again."""
        return list(self.columns), lambda arrays: BinColumns([next(arrays) for _ in self.columns])

    def leaves(self, device: Device, tree: Forest) -> Any:
        """Return the leaf of every row in a single tree."""
        return self.at_level(device, tree, tree.depth)

    def at_level(self, device: Device, tree: Forest, depth: int) -> Any:
        """Return the node of every row at a level of a single tree, numbered from 0; the last level is kept."""
        feature, level, node = self.nodes.pop(id(tree.feature), (None, 0, None))
        if feature is not tree.feature or level > depth:
            kind = np.min_scalar_type(tree.feature.shape[1])
            level, node = 0, device.own(device.xp.zeros(self.shape[0], dtype=kind))
        for d in range(level, depth):
            here = slice(2**d - 1, 2 ** (d + 1) - 1)
            node = trees_on(device).step(self.columns, node, tree.feature[0, here], tree.cut[0, here])
        self.nodes[id(tree.feature)] = tree.feature, depth, node
        while len(self.nodes) > MOST_TREES:
            del self.nodes[next(iter(self.nodes))]
        return node


def by_columns(rows: Encoded) -> Encoded:
    """Return rows whose bins are held column by column."""
    if isinstance(rows, tuple):
        return tuple(by_columns(part) for part in rows)
    is_whole = isinstance(rows, Binned) and not isinstance(rows, BinColumns)
    return BinColumns(list(np.ascontiguousarray(rows.codes.T))) if is_whole else rows


# --- encoding -------------------------------------------------------------------------------------------------


def binned_on(device: Device, columns: Mapping[str, Any], encoder: BinEncoder, n: int) -> BinColumns:
    """Return the bins of columns on a device; without any, a column that nothing reads."""
    kind = np.min_scalar_type(max([2, *(level.count for level in encoder.levels)]))
    found = [codes_on(device, columns[level.column], level, kind) for level in encoder.levels]
    return BinColumns(found or [device.own(device.xp.zeros(n, dtype=kind))])


def codes_on(device: Device, column: Any, level: Levels, kind: np.dtype[Any]) -> Any:
    """Return the level of every row: by a table of all values that a small type allows, or by comparison with cuts."""
    if column.dtype.kind in "bui" and column.dtype.itemsize <= 2:
        every = every_value(column.dtype)
        table = _seen(level, level.codes(Frame.of({level.column: every})))[:, None].astype(np.float64)
        codes = device.own(column.view(np.dtype(f"u{column.dtype.itemsize}")))
        return device.rows(Formula(("L[0]",)), Inputs(len(codes), {}, [codes], [len(every)], table), kind)
    if column.dtype.kind in "fui" and level.categories is None and not level.is_date:
        wide = column.astype(np.float32) if column.dtype == np.float16 else device.own(column)
        return trees_on(device).bin(wide, np.array(level.cuts), kind)
    blocks = (column[at : at + NEAR_ROWS] for at in range(0, len(column), NEAR_ROWS))
    near = [_seen(level, level.codes(Frame.of({level.column: device.download(block)}))) for block in blocks]
    return device.upload(np.concatenate(near).astype(kind))


def every_value(kind: np.dtype[Any]) -> NDArray[Any]:
    """Return all values of a small type, in the order of their bits.

    >>> every_value(np.dtype(np.int8))[[0, 1, 127, 128]]
    array([   0,    1,  127, -128], dtype=int8)
    """
    bits = np.arange(1 << 8 * kind.itemsize).astype(f"u{kind.itemsize}")
    return np.asarray(bits != 0 if kind.kind == "b" else bits.view(kind))


def _seen(level: Levels, codes: IntArray) -> IntArray:
    """Return the codes of a column of bins: unseen categories count as missing."""
    return codes if level.categories is None else np.where(codes == UNSEEN, MISSING, codes)


# --- what trees say of rows -----------------------------------------------------------------------------------


def forest_values(device: Device, rows: BinColumns, forest: Forest) -> Any:
    """Return the sum over the trees of the values of every row's leaf, found once."""
    value = forest.value[:, :, 0]
    return rows.once(forest, lambda: trees_on(device).evaluate(rows.columns, forest.feature, forest.cut, value))


def tree_sum(family: Family) -> TreeSum | None:
    """Return the sum of a forest that a family is, maybe as a part of a union; None: it is none."""
    while isinstance(family, Part):
        family = family.family
    return family if isinstance(family, TreeSum) else None


def tree_sum_values(coded: Coded, family: Family) -> Any:
    """Return the memberships of all rows in the sum of a forest."""
    rows = coded.rows
    while isinstance(family, Part):
        rows, family = rows[family.index], family.family
    assert isinstance(family, TreeSum)
    clipped, scale = Formula(("least(most(h / k[0], T(-1)), T(1))",)), family.scale
    h = forest_values(coded.device, rows, family.forest)
    make = lambda: coded.device.rows(clipped, Inputs(coded.n, {"h": h}, constants=[scale]), coded.device.kind)  # noqa: E731
    return rows.once(family, make)


# --- moves ----------------------------------------------------------------------------------------------------


def displacement(coded: Coded, z: Any, terms: Sequence[Term]) -> Any | None:
    """Return how far terms move every row, those of forests one after the other; None: they are made of more."""
    d, device, others = 1 if z.ndim == 1 else len(z), coded.device, [t for t in terms if tree_sum(t.family) is None]
    moves, sums = Moves.of(others, coded) if others else None, [t for t in terms if tree_sum(t.family) is not None]
    if (others and moves is None) or not all(weight_text(u, d) for term in sums for u in term.weights):
        return None
    if moves is not None and not sums:
        return moves.size(device, z)
    delta = device.block(d, coded.n, device.kind)
    delta[...] = 0.0 if moves is None else moves.size(device, z)
    for term, a in product(sums, range(d)):
        weight = " + ".join(f"k[{s}]*({weight_text(u, d)})" for s, u in enumerate(term.weights))
        arrays = {**arrays_of(z), "e": delta[a], "c": tree_sum_values(coded, term.family)}
        inputs = Inputs(coded.n, arrays, constants=term.theta[0, :, a].tolist())
        delta[a] = device.rows(Formula((f"e + c*({weight})",), score_lines(d)), inputs, device.kind)
    return delta if z.ndim == 2 else delta[0]


def moved(coded: Coded, z: Any, update: Update) -> Any | None:
    """Return log odds, or probabilities of several classes, after an update; None: it is made of more than these."""
    moves = Moves.of(update.terms, coded)
    if moves is not None:
        return moves.after(coded.device, z, update.geometry)
    delta = displacement(coded, z, update.terms)
    return None if delta is None else moved_by(coded.device, z, delta, update.geometry)


def moved_probabilities(coded: Coded, p: Any, updates: Sequence[Update]) -> Any | None:
    """Return probabilities after updates; None: one is made of more than look-ups and forests."""
    device, is_binary = coded.device, p.ndim == 1
    z = device.rows(Formula(("logit(p)",)), Inputs(coded.n, {"p": p}), device.kind) if is_binary else p
    for update in updates:
        z = moved(coded, z, update)
        if z is None:
            return None
    return device.rows(Formula(("sigmoid(z)",)), Inputs(coded.n, {"z": z}), device.kind) if is_binary else z
