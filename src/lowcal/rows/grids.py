"""Smooth weights on a grid of predictions: residuals summed up at its points, in passes, and what rounding costs.

Weights are 1-Lipschitz, so that moving the predictions of c to the nearest points changes its supremum by at most
lip sum_i |c_i rho_i| |f_i - point_i| (spec 3.10), which is summed up beside the residuals. On the simplex weights are
class-wise, functions of their own coordinate with lip = 2 (spec 2.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lowcal.kernels.exact import ExactSums, Grid, Tables, Wholes, decode
from lowcal.kernels.line import solve_lines
from lowcal.kernels.reference import Codes, DecodeTable, Design, columns_of, pieces
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.notions.base import Suprema, Witness
from lowcal.notions.smooth import on_grid
from lowcal.rows.base import Local, Rows, Scale, Shard, State
from lowcal.subpopulations.base import Family

#: Points of the grid on which smooth weights see the predictions of rows that are not in memory.
POINTS = 1 << 16
#: The most sums that a pass holds.
MOST_SUMS = 1 << 23


class GridSums(NamedTuple):
    """Residuals by coordinate, member and point, shape (d, m, points + 1); what moving rows costs; plain moments."""

    residuals: FloatArray
    error: FloatArray
    basis: FloatArray


@dataclass(frozen=True, eq=False)
class GridResiduals:
    """The residuals of a state at the points of a grid."""

    state: State
    families: tuple[Family, ...]
    points: int

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of a shard."""
        p, design = shard.at(self.state), shard.design(self.families)
        d, fine = p.shape[1], self._grid(shard.scale, p.shape[1])
        price, everyone = ExactSums(design, 1 + d, fine), np.zeros(2, dtype=np.int64)
        total = np.zeros((d, design.shape[1], self.points + 1), dtype=np.int64)
        for part in pieces(len(p), 1):
            f, rho = p[part], shard.weight[part, None] * (shard.y[part] - p[part])
            ids = point_ids(f, self.points)
            far = _lipschitz(d) * (np.abs(rho) * np.abs(f - ids / self.points)).sum(axis=1)
            everyone += shard.scale.fine().wholes(far)
            price.add(part, np.column_stack([far, rho]))
            total += point_sums(design.rows(part), ids, self.points, rho, shard.scale.grid())
        return Tables([total, everyone, negatives(design), *price.wholes()])

    def _grid(self, scale: Scale, d: int) -> Grid:
        return scale.grid(np.array([_lipschitz(d) * d / self.points, *[1.0] * d]))

    def read(self, total: Tables, some: Local, scale: Scale) -> GridSums:
        """Return the sums; for memberships with signs, what moving everyone costs."""
        d = some.y.shape[1]
        both = decode(some.design(self.families), 1 + d, self._grid(scale, d), total[3:])
        error = np.where(total[2] > 0, float(scale.fine().total(total[1])), both[:, 0])
        return GridSums(scale.grid().floats(total[0]), error, np.abs(both[:, 1:]).max(axis=1))


def _lipschitz(d: int) -> float:
    """Return how steep weights may be in their own coordinate."""
    return 1.0 if d == 1 else 2.0


def point_ids(f: FloatArray, points: int) -> IntArray:
    """Return the number of the point of a grid that is nearest to each prediction."""
    return np.rint(f * points).astype(np.intp)


def negatives(design: Design) -> Wholes:
    """Return how many memberships of each member are negative."""
    counts = [
        np.zeros(column.shape[1], dtype=np.int64)
        if isinstance(column, Codes)
        else np.array([np.count_nonzero(column.column(j) < 0.0) for j in range(column.shape[1])])
        for column in columns_of(design)
    ]
    return np.concatenate(counts)


def point_sums(design: Design, ids: IntArray, points: int, rho: FloatArray, grid: Grid) -> Wholes:
    """Return the sums of residuals by coordinate, member and point, every term rounded to the grid."""
    return np.stack([_of_coordinate(design, ids[:, a], points + 1, rho[:, a], grid) for a in range(rho.shape[1])])


def _of_coordinate(design: Design, ids: IntArray, size: int, rho: FloatArray, grid: Grid) -> Wholes:
    parts = []
    for column in columns_of(design):
        decode_table = column.decode[0] if isinstance(column, Codes) else None
        if isinstance(column, Codes) and isinstance(decode_table, DecodeTable):
            start, groups, share = decode_table.parts
            counts = np.diff(start)[column.codes[0]]
            rows = np.repeat(np.arange(len(rho)), counts)
            place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + start[column.codes[0]][rows]
            terms = grid.round(share[place] * rho[rows])
            where = groups[place].astype(np.intp) * size + ids[rows]
            parts.append(np.bincount(where, terms, column.shape[1] * size).reshape(-1, size))
        else:
            each = (grid.round(column.column(j) * rho) for j in range(column.shape[1]))
            parts.append(np.array([np.bincount(ids, terms, size) for terms in each]))
    return grid.wholes(np.concatenate(parts))


def smooth_on_grid(rows: Rows, state: State, families: Sequence[Family], points: int = POINTS) -> Suprema:
    """Return a bracket of the (class-wise) smooth suprema; it is at most lip d / points wide."""
    v, runs = np.arange(points + 1) / points, _runs(families, max(1, MOST_SUMS // (rows.d * points)))
    found = [on_grid(v, *rows.run(GridResiduals(state, some, points))) for some in runs]
    stops = np.cumsum([0, *(len(one.value) for one in found)])

    def witness(j: int) -> Witness:
        k = int(np.searchsorted(stops, j, side="right")) - 1
        return found[k].witness(j - int(stops[k]))

    value, upper, basis = (np.concatenate([getattr(one, of) for one in found]) for of in ("value", "upper", "basis"))
    return Suprema(value, upper, basis, witness)


def _runs(families: Sequence[Family], most: int) -> Iterator[tuple[Family, ...]]:
    """Yield families in pieces of at most that many members."""
    held: list[Family] = []
    size = 0
    for family in families:
        for start in range(0, len(family.names), most):
            some = np.arange(start, min(start + most, len(family.names)))
            if size + len(some) > most:
                yield tuple(held)
                held, size = [], 0
            held.append(family if len(some) == len(family.names) else family.take(some))
            size += len(some)
    yield tuple(held)


def line_suprema(residuals: FloatArray, points: int) -> FloatArray:
    """Return the suprema of every member from residuals (d, m, points + 1) at the points of a grid.

    >>> line_suprema(np.array([[[-0.5, 0.0, 0.5]]]), 2)
    array([0.5])
    """
    d, total = len(residuals), np.zeros(residuals.shape[1])
    for R in residuals:
        inside = np.flatnonzero(R.any(axis=0))
        total += solve_lines(inside / points, R[:, inside], _lipschitz(d)) if len(inside) else 0.0
    return total + np.maximum(0.0, -residuals[0].sum(axis=1)) if d == 1 else total
