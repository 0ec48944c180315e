"""Sums of rows' values times powers of their memberships, by member or by member and cell: what certificates ask for.

Memberships of 0 and 1 are their own powers: then all sums are of one design, and are counted together. Where rows weigh
differently, the sums are fine: a group of light rows is as exact as one of heavy rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lowcal.kernels.exact import ExactSums, Grid, Tables, Wholes, decode
from lowcal.kernels.reference import Design
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.weights import CellIds
from lowcal.rows.base import Scale


class Powers(NamedTuple):
    """Columns of values of at most w^order, for a weight w, which are summed with a power of the memberships.

    Of k copies of weight s, which weigh w = k s together, these are k s^order = w s^(order - 1).
    """

    power: int
    order: int
    width: int = 1


@dataclass(frozen=True, eq=False)
class Columns:
    """The units of columns that are summed: one for each or, where rows weigh differently, a second for the rest."""

    grid: Grid
    is_fine: bool

    @classmethod
    def of(cls, orders: Sequence[int], scale: Scale, is_even: bool) -> Columns:
        """Return the units of columns of terms of at most w^order."""
        first = scale.grid(np.array([scale.single ** (order - 1) for order in orders]))
        second = Grid.of(first.unit, scale.n)
        return cls(first if is_even else Grid(np.concatenate([first.unit, second.unit])), not is_even)

    @cached_property
    def first(self) -> Grid:
        """The first units."""
        return Grid(self.grid.unit[: len(self.grid.unit) // 2])

    def lay(self, terms: FloatArray) -> FloatArray:
        """Return terms, shape (rows, q), as they are summed: in (rows, 2 q) if what the first unit leaves is."""
        if not self.is_fine:
            return terms
        high = self.first.round(terms.copy())
        return np.concatenate([high, terms - high], axis=1)

    def join(self, sums: FloatArray) -> FloatArray:
        """Return the sums of terms from those of what was laid."""
        if not self.is_fine:
            return sums
        high, low = np.split(sums, 2, axis=-1)
        return np.asarray(high + low)


@dataclass(frozen=True, eq=False)
class Group:
    """Blocks that are summed with one design, by their places, and their columns."""

    design: Design
    places: tuple[int, ...]
    widths: tuple[int, ...]
    columns: Columns

    def lay(self, blocks: Sequence[FloatArray]) -> FloatArray:
        """Return the columns of the group."""
        return self.columns.lay(np.concatenate([blocks[k] for k in self.places], axis=1))

    def split(self, sums: FloatArray) -> list[FloatArray]:
        """Return the sums of each block, along the last axis."""
        return np.split(self.columns.join(sums), np.cumsum(self.widths)[:-1], axis=-1)


@dataclass(frozen=True, eq=False)
class Plan:
    """How blocks of columns are summed over the rows of a design."""

    groups: tuple[Group, ...]

    @classmethod
    def of(cls, design: Design, blocks: Sequence[Powers], scale: Scale, is_even: bool) -> Plan:
        """Group the blocks by the design that they are summed with."""
        designs = {k: design.power(k) for k in dict.fromkeys(block.power for block in blocks)}
        places: dict[int, list[int]] = {}
        for place, block in enumerate(blocks):
            places.setdefault(id(designs[block.power]), []).append(place)
        groups = []
        for some in places.values():
            widths = tuple(blocks[k].width for k in some)
            orders = [blocks[k].order for k in some for _ in range(blocks[k].width)]
            columns = Columns.of(orders, scale, is_even)
            groups.append(Group(designs[blocks[some[0]].power], tuple(some), widths, columns))
        return cls(tuple(groups))

    def sums(self, cells: CellIds | None = None) -> PowerSums:
        """Return zero, before the first rows are added; with cells, sums are by member and cell."""
        return PowerSums(self, cells)

    def read(self, total: Sequence[Wholes], are_cells: bool = False) -> list[FloatArray]:
        """Return the sums of every block, shape (m, width) or (m, cells, width), from those of all shards."""
        found: dict[int, FloatArray] = {}
        start = 0
        for group in self.groups:
            n = 1 if are_cells else len(group.design.sums(1).tables())
            grid, tables = group.columns.grid, list(total[start : start + n])
            sums = grid.floats(tables[0]) if are_cells else decode(group.design, len(grid.unit), grid, tables)
            found.update(zip(group.places, group.split(sums), strict=True))
            start += n
        return [found[k] for k in sorted(found)]


class PowerSums:
    """Sums under construction."""

    def __init__(self, plan: Plan, cells: CellIds | None) -> None:
        self.plan, self.cells = plan, cells
        sums = [(group.design, group.columns.grid) for group in plan.groups]
        self.by_member = [ExactSums(design, len(grid.unit), grid) for design, grid in sums if cells is None]
        self.by_cell = [
            np.zeros((design.shape[1], cells.n_cells, len(grid.unit)), dtype=np.int64)
            for design, grid in sums
            if cells is not None
        ]

    def add(self, part: slice, blocks: Sequence[FloatArray]) -> None:
        """Add the rows of a slice: a block of shape (rows, width) for each of the plan's."""
        for k, group in enumerate(self.plan.groups):
            R = group.lay(blocks)
            if self.cells is None:
                self.by_member[k].add(part, R)
                continue
            grid = group.columns.grid
            ids, R = self.cells.ids[part], grid.round(R)
            self.by_cell[k] += grid.wholes(group.design.rows(part).cell_moments(ids, self.cells.n_cells, R, grid))

    def wholes(self) -> Tables:
        """Return all that was added."""
        if self.cells is not None:
            return Tables(self.by_cell)
        return Tables(table for sums in self.by_member for table in sums.wholes())
