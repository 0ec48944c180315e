"""Smooth weights past memory: residuals summed up at few places of the predictions, in passes, and what that costs.

Weights are 1-Lipschitz, so that moving the predictions of c to other places changes its supremum by at most
sum_i |c_i| sum_a |rho_ia| min(1, t_i) for distances t_i (spec 3.10, 2.4), which is summed up beside the residuals.
Class-wise weights, functions of their own coordinate with lip = 2 on the simplex, see the points of a grid. All weights
of several classes see the centres of a partition, between which residuals are shipped as between rows in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lowcal.kernels.exact import ExactSums, Grid, Tables, Wholes, decode
from lowcal.kernels.line import solve_lines
from lowcal.kernels.reference import Codes, DecodeTable, Design, pieces
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.kernels.transport import Partition
from lowcal.notions.base import Suprema, Witness
from lowcal.notions.moments import MOST_SUMS
from lowcal.notions.smooth import on_grid, tightened
from lowcal.rows.base import MOST_LOCAL, Local, Rows, Scale, Shard, State
from lowcal.rows.keys import MANY_ROWS
from lowcal.subpopulations.base import Family

#: Points of the grid on which class-wise weights see the predictions of rows that are not in memory.
POINTS = 1 << 16
#: Cells of the partition on which all weights of several classes do. Four times the cells take four times as long, and
#: lower the error by a half with 3 classes and by a third with 5.
CELLS = POINTS


@dataclass(frozen=True)
class LinePoints:
    """The points k / n of a grid, k = 0, ..., n, for every coordinate on its own; few places for all predictions."""

    points: int

    @property
    def size(self) -> int:
        """How many places there are."""
        return self.points + 1

    def bound(self, d: int) -> float:
        """Return what moving a row of weight 1 costs at most."""
        return _lipschitz(d) * d / self.points

    def __call__(self, f: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the place of every row and coordinate, and how much a weight of that coordinate may change there.

        These are the nearest points, and the distances times the steepest slope.
        """
        ids = point_ids(f, self.points)
        return ids, _lipschitz(f.shape[1]) * np.abs(f - ids / self.points)


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a partition, for all coordinates alike."""

    partition: Partition

    @classmethod
    def of(cls, rows: Rows, state: State) -> Cells:
        """Return cells that are small where predictions of a state are many."""
        return cls(Partition.of(rows.few(0, MANY_ROWS).at(state), CELLS))

    @property
    def size(self) -> int:
        """How many places there are."""
        return len(self.partition.centres)

    def bound(self, d: int) -> float:
        """Return what moving a row of weight 1 costs at most: residuals sum to at most 2, and weights are at most 1."""
        return 2.0

    def __call__(self, f: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the cells, and the l1 distances to their centres, but at most 1."""
        cell = self.partition(f)
        far = np.minimum(np.abs(f - self.partition.centres[cell]).sum(axis=1), 1.0)
        return np.broadcast_to(cell[:, None], f.shape), np.broadcast_to(far[:, None], f.shape)

    def tighten(self, found: PlaceSums, own: Suprema, most: FloatArray, alpha: float | None) -> Suprema:
        """Return a bracket over all weights from residuals in these cells and from class-wise suprema."""

        def points(j: int) -> tuple[FloatArray, FloatArray]:
            r = found.residuals[:, j].T
            inside = r.any(axis=1)
            return self.partition.centres[inside], r[inside]

        return tightened(own, most, points, found.error, alpha)


class PlaceSums(NamedTuple):
    """Residuals by coordinate, member and place, shape (d, m, places), and figures of every member.

    `error` is what moving its rows costs, `most` what no supremum exceeds, `basis` the largest plain moment.
    """

    residuals: FloatArray
    error: FloatArray
    most: FloatArray
    basis: FloatArray


@dataclass(frozen=True, eq=False)
class PlacedResiduals:
    """The residuals of a state at few places."""

    state: State
    families: tuple[Family, ...]
    places: LinePoints | Cells

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of a shard."""
        p, design = shard.at(self.state), shard.design(self.families)
        d, bounds = p.shape[1], self._bounds(p.shape[1])
        prices, everyone = ExactSums(design, 2 + d, shard.scale.grid(bounds)), np.zeros((2, 2), dtype=np.int64)
        total = np.zeros((d, design.shape[1], self.places.size), dtype=np.int64)
        for part in pieces(len(p), 1):
            rho = shard.weight[part, None] * (shard.y[part] - p[part])
            ids, far = self.places(p[part])
            both = np.stack([(np.abs(rho) * far).sum(axis=1), np.abs(rho).sum(axis=1) / min(d, 2)])
            everyone += shard.scale.fine(float(bounds.max())).wholes_of_each(both)
            prices.add(part, np.column_stack([*both, rho]))
            total += place_sums(design.rows(part), ids, self.places.size, rho, shard.scale.grid())
        return Tables([total, everyone, negatives(design), *prices.wholes()])

    def _bounds(self, d: int) -> FloatArray:
        """Return the largest price, half the l1 norm and residuals of a row of weight 1."""
        return np.array([self.places.bound(d), *[1.0] * (1 + d)])

    def read(self, total: Tables, some: Local, scale: Scale) -> PlaceSums:
        """Return the sums; memberships with signs pay as if everyone moved."""
        d = some.y.shape[1]
        bounds, is_signed = self._bounds(d), total[2] > 0
        found = decode(some.design(self.families), 2 + d, scale.grid(bounds), total[3:])
        every = scale.fine(float(bounds.max())).total(total[1])
        error, most = (np.where(is_signed, every[k], found[:, k]) for k in range(2))
        return PlaceSums(scale.grid().floats(total[0]), error, most, np.abs(found[:, 2:]).max(axis=1))


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
        for column in design.columns()
    ]
    return np.concatenate(counts)


def place_sums(design: Design, ids: IntArray, size: int, rho: FloatArray, grid: Grid) -> Wholes:
    """Return the sums of residuals by coordinate, member and place, every term rounded to the grid."""
    return np.stack([_of_coordinate(design, ids[:, a], size, rho[:, a], grid) for a in range(rho.shape[1])])


def _of_coordinate(design: Design, ids: IntArray, size: int, rho: FloatArray, grid: Grid) -> Wholes:
    parts = []
    for column in design.columns():
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


def are_placed(rows: Rows) -> bool:
    """Whether smooth suprema of these rows are bracketed at few places: rows on disk, many rows of several classes."""
    return not rows.is_near if rows.d == 1 else rows.scale.n > MOST_LOCAL


def smooth_suprema(rows: Rows, state: State, families: Sequence[Family], alpha: float | None = None) -> Suprema:
    """Return a bracket of the suprema over all smooth weights.

    With alpha, several classes are not looked at more closely where class-wise weights exceed it already.
    """
    runs = list(_class_wise(rows, state, families, POINTS))
    own, most = _joined([one for _, one, _ in runs]), np.concatenate([bound for _, _, bound in runs])
    if rows.d == 1:
        return own
    if alpha is not None and own.value.max() > alpha:
        return replace(own, upper=most)
    cells = Cells.of(rows, state)
    each = ((rows.run(PlacedResiduals(state, some, cells)), one, bound) for some, one, bound in runs)
    return _joined([cells.tighten(found, one, bound, alpha) for found, one, bound in each])


def smooth_on_grid(rows: Rows, state: State, families: Sequence[Family], points: int = POINTS) -> Suprema:
    """Return a bracket of the (class-wise) smooth suprema; it is at most lip d / points wide."""
    return _joined([one for _, one, _ in _class_wise(rows, state, families, points)])


def _class_wise(
    rows: Rows, state: State, families: Sequence[Family], points: int
) -> Iterator[tuple[tuple[Family, ...], Suprema, FloatArray]]:
    """Yield runs of families with their class-wise suprema, and with what no supremum of all weights exceeds."""
    line = LinePoints(points)
    for some in _runs(families, max(1, MOST_SUMS // (rows.d * points))):
        found = rows.run(PlacedResiduals(state, some, line))
        yield some, on_grid(np.arange(line.size) / points, found.residuals, found.error, found.basis), found.most


def _joined(found: Sequence[Suprema]) -> Suprema:
    """Return the suprema of several runs of families as one."""
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
