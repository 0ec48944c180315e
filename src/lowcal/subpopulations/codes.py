"""Families on code columns: subpopulations that are functions of small integers, as groups and thresholds are.

A merged code column has up to thousands of joint levels, and a table maps them to groups. In an ONNX graph groups are
looked up by only those columns that they depend on, mostly one or two of the merged ones: tables over these are far
smaller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from lowcal.data.checked_json import Numbers, Plain, Shares
from lowcal.data.onnx_graph import GraphColumns, GraphEverybody, GraphLookUp, GraphMembers, Value
from lowcal.kernels.reference import Codes, Cumulative, Decode, DecodeTable, Design
from lowcal.kernels.simplex import IntArray
from lowcal.subpopulations.base import FAMILIES, Breakdown, ReadFor, TupleEncoder
from lowcal.subpopulations.single_row import CodeRead, Read, RowFacts

#: More joint levels than this are refused: the groups would hold a row each, and their table would not fit.
MOST_LEVELS = 1 << 26
#: A table of more numbers is split into one for each set of columns that its groups depend on.
SMALL = 1 << 12


class CodeEncoder(TupleEncoder, ABC):
    """An encoder whose rows are code columns, each of some raw columns' levels."""

    @property
    @abstractmethod
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The levels of the raw columns of each code column; its codes count through all their combinations."""

    @abstractmethod
    def code(self, columns: GraphColumns, k: int, axes: Sequence[int]) -> Value:
        """Return the joint levels of some raw columns of code column k in a graph, shape (n,)."""


@FAMILIES.register
@dataclass(frozen=True, eq=False)
class CodeFamily:
    """Subpopulations that are functions of small integer codes: tables over the columns `columns` of the rows.

    `depths` are the numbers of conditions of the members, where they differ.
    """

    names: tuple[str, ...]
    columns: tuple[int, ...]
    decode: tuple[Decode, ...]
    depths: tuple[int, ...] = ()
    kind: ClassVar[str] = "codes"

    def design(self, rows: Sequence[IntArray]) -> Design:
        """Return code columns with their decode tables; nothing of size rows x groups."""
        return Codes(tuple(rows[k] for k in self.columns), self.decode)

    def take(self, members: IntArray) -> CodeFamily:
        """Return some of the members, in the given order within each column."""
        taken: list[int] = []
        kept: list[tuple[int, Decode]] = []
        for every, column, decode in self._by_column():
            inside = members[(members >= every[0]) & (members <= every[-1])] if len(every) else every
            if len(inside):
                kept.append((column, decode.take(inside - every[0])))
                taken += inside.tolist()
        columns, decoded = tuple(c for c, _ in kept), tuple(t for _, t in kept)
        depths = tuple(self.depths[j] for j in taken) if self.depths else ()
        return CodeFamily(tuple(self.names[j] for j in taken), columns, decoded, depths)

    def _by_column(self) -> Iterator[tuple[IntArray, int, Decode]]:
        """Yield the members of each code column, the column and its table."""
        start = 0
        for k, decode in zip(self.columns, self.decode, strict=True):
            yield start + np.arange(decode.shape[1]), k, decode
            start += decode.shape[1]

    def reads(self, facts: RowFacts) -> Sequence[Read]:
        """Read the codes of a row."""
        return [CodeRead(facts.itself(), k, t) for k, t in zip(self.columns, self.decode, strict=True)]

    def breakdown(self, encoder: Any, rows: Sequence[IntArray]) -> Breakdown:
        """Return the groups of each row; all thresholds of a column together, as a row lies on a side of each."""
        names = list(self.names)
        for members, k, decode in self._by_column():
            if isinstance(decode, Cumulative):
                names[members[0] : members[-1] + 1] = [f"thresholds: {encoder.columns[k]}"] * len(members)
        return Breakdown(names, np.arange(len(names)), self.design(rows).sparse())

    def onnx(self, columns: GraphColumns, encoder: CodeEncoder, numbers: int) -> Iterator[GraphMembers]:
        """Yield look-ups of code columns, or of the raw columns that were merged into them."""
        for members, k, decode in self._by_column():
            shape = encoder.shapes[k]
            if not isinstance(decode, DecodeTable):
                yield GraphLookUp(members, encoder.code(columns, k, range(len(shape))), decode)
                continue
            # once for the same table: many updates of one group each use few groups
            key = ("split", tuple(shape), decode.shape, *(array.tobytes() for array in decode.parts), numbers)
            if key not in columns.known:
                columns.known[key] = split(decode, shape, numbers)
            for axes, inside, table in columns.known[key]:
                if axes:
                    yield GraphLookUp(members[inside], encoder.code(columns, k, axes), table)
                else:
                    yield from (GraphEverybody(members[[j]]) for j in inside)

    def to_dict(self) -> dict[str, Any]:
        """Return the tables as plain data, each with its code column."""
        tables = []
        for k, decode in zip(self.columns, self.decode, strict=True):
            data = {"column": k, **decode.to_dict()}
            if "entries" in data:
                levels, groups, values = data["entries"]
                tables.append({**data, "entries": [Numbers(levels), Numbers(groups), Shares(values)]})
            else:
                tables.append({key: Numbers(v) if isinstance(v, list) else v for key, v in data.items()})
        return {"kind": self.kind, "names": list(self.names), "tables": tables}

    @classmethod
    def from_dict(cls, at: Plain, context: ReadFor) -> CodeFamily:
        """Return the family of plain data; its tables must have the levels of the encoder's code columns."""
        _, names, tables = at.fields("kind", "names", "tables")
        sizes = [prod(shape) for shape in context.rows_of(at, CodeEncoder).shapes]  # type: ignore[type-abstract]
        decoded = [DECODES[one.kind(DECODES)](one, sizes) for one in tables.items()]
        shown = names.names(sum(table.shape[1] for _, table in decoded))
        return cls(shown, tuple(column for column, _ in decoded), tuple(table for _, table in decoded))


def _read_table(at: Plain, sizes: Sequence[int]) -> tuple[int, Decode]:
    place, _, shape, entries = at.fields("column", "kind", "shape", "entries")
    column = place.whole(0, len(sizes) - 1)
    n_levels, n_groups = shape.wholes((2,), 1, MOST_LEVELS).tolist()
    parts = entries.items()
    if n_levels != sizes[column] or len(parts) != 3:
        at.refuse(f"a table of {sizes[column]} levels: the levels, groups and values of its entries")
    levels = parts[0].wholes((None,), 0, n_levels - 1)
    groups = parts[1].wholes(levels.shape, 0, n_groups - 1)
    values = np.ones(len(levels)) if parts[2].is_null else parts[2].floats(levels.shape, -1.0, 1.0)
    # the order of the entries is kept, as it is the order in which they are summed
    if (np.diff(levels) < 0).any() or len(np.unique(levels * n_groups + groups)) < len(levels):
        entries.refuse("entries level by level, each once")
    starts = np.concatenate([[0], np.cumsum(np.bincount(levels, minlength=n_levels))])
    return column, DecodeTable(sparse.csr_array((values, groups, starts), shape=(n_levels, n_groups)))


def _read_cumulative(at: Plain, sizes: Sequence[int]) -> tuple[int, Decode]:
    place, _, levels, cuts, is_above = at.fields("column", "kind", "levels", "cuts", "is_above")
    column = place.whole(0, len(sizes) - 1)
    size = levels.whole(sizes[column], sizes[column])
    places = cuts.wholes((None,), 1, size - 2)
    return column, Cumulative(size, places, is_above.wholes(places.shape, 0, 1).astype(bool))


DECODES: dict[str, Callable[[Plain, Sequence[int]], tuple[int, Decode]]] = {
    "table": _read_table,
    "cumulative": _read_cumulative,
}

#: Some members of a table, by the axes (columns) that they depend on, as a table over the levels of these.
Split = tuple[tuple[int, ...], IntArray, DecodeTable]


def split(decode: DecodeTable, shape: Sequence[int], numbers: int) -> list[Split]:
    """Return the groups of a table over joint levels: together while their table is small, else by their columns.

    `shape` are the levels of the merged columns, `numbers` the coefficients of a group.
    """
    sets = axes_of(decode.matrix, shape)
    together = tuple(sorted(set().union(*sets)))
    if prod(shape[a] for a in together) * numbers <= SMALL:
        sets = [together] * len(sets)
    each = [(axes, np.flatnonzero([own == axes for own in sets])) for axes in dict.fromkeys(sets)]
    return [(axes, inside, _project(decode.take(inside), shape, axes)) for axes, inside in each]


def axes_of(matrix: sparse.csr_array, shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return for each group (column of a table over joint levels) the axes of the levels that it depends on.

    A group is a product of sets of levels; it does not depend on an axis where its set is all levels. A column that
    is not such a product depends on all axes.

    >>> table = sparse.csr_array(np.array([[1, 0], [1, 0], [1, 1], [0, 0], [0, 0], [0, 0]], dtype=float))
    >>> axes_of(table, (2, 3))
    [(0,), (0, 1)]
    """
    entries, m = matrix.tocoo(), matrix.shape[1]
    levels = zip(np.unravel_index(entries.row, tuple(shape)), shape, strict=True)
    met = np.array([np.bincount(np.unique(entries.col * size + level) // size, minlength=m) for level, size in levels])
    held = np.bincount(entries.col, minlength=m)
    is_product = (held == met.prod(axis=0)) & (np.bincount(entries.col, entries.data != 1.0, minlength=m) == 0)
    needed = (met < np.array(shape)[:, None]) | ~is_product
    return [tuple(np.flatnonzero(axis).tolist()) for axis in needed.T]


def _project(decode: DecodeTable, shape: Sequence[int], axes: Sequence[int]) -> DecodeTable:
    """Return the table over the joint levels of some axes, for groups that hold all levels of every other axis."""
    entries = decode.matrix.tocoo()
    levels, row = np.unravel_index(entries.row, tuple(shape)), np.zeros_like(entries.row)
    once = np.ones(len(row), dtype=bool)
    for a, size in enumerate(shape):
        if a in axes:
            row = row * size + levels[a]
        else:
            once &= levels[a] == 0
    entry = (entries.data[once], (row[once], entries.col[once]))
    return DecodeTable(sparse.csr_array(entry, shape=(prod(shape[a] for a in axes), decode.shape[1])))
