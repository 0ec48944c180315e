"""Smooth multicalibration: weights in [0, 1] that are 1-Lipschitz in l1 (Definition 3.4).

The class is infinite, yet its supremum on a sample is exact: for scalars by dynamic programming on the sorted
predictions (spec 2.3), on the simplex by transport (spec 2.4) when few rows differ. For more rows it is bracketed
between weights (of one coordinate each, or extended from few points) and a feasible transport plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import ceil, log2
from operator import itemgetter
from types import ModuleType
from typing import TypeAlias

import numpy as np

from lowcal.kernels import transport
from lowcal.kernels.line import SortedRows, passes_for, solve_line
from lowcal.kernels.products import dot
from lowcal.kernels.reference import Design
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.base import Notion, Suprema, Witness
from lowcal.notions.weights import Cell, Knots, Monomial, Points, Weight, monomials, n_cells, occupied_cells

#: Up to this many distinct rows of a subpopulation the multi-class supremum is solved exactly.
EXACT_ROWS = 400

#: Up to this many, the pairs of near neighbours are solved for; above it they are filled greedily.
NEAR_ROWS = 2_000

#: Centres of the clusters that bracket the supremum over many distinct rows.
CENTRES = 200

#: Subpopulations solved at once; more threads mostly wait for memory.
THREADS = 2

#: A supremum and the weight that attains it.
Side: TypeAlias = tuple[float, Witness]


@dataclass(frozen=True)
class Smooth(Notion):
    """W = Lip: every coordinate of w is [0, 1]-valued and 1-Lipschitz in l1 (Definition 3.4).

    >>> print(Smooth())
    smooth
    """

    def __str__(self) -> str:
        return "smooth"

    def basis(self, p: FloatArray, alpha: float) -> Sequence[Weight]:
        """Return dyadic cells from the whole space down to the finest scale, those that hold a row (spec 1.3, B4)."""
        cells: list[Weight] = []
        for s in range(finest_scale(p.shape[1], alpha) + 1):
            occupied = occupied_cells(p, 0.5**s)[0]
            cells += [Cell(0.5**s, tuple(index)) for index in occupied.tolist()]
        return cells

    def tolerance(self, p: FloatArray, alpha: float) -> float:
        """Return alpha / (2 + S) for scalars (B4); alpha / (2 floor(d/2) N) on the simplex, N finest cells (B2)."""
        n, d = len(p), int(p.shape[1])
        scale = finest_scale(d, alpha)
        if d == 1:
            return alpha / (2 + scale)
        return alpha / (2 * (d // 2) * min(n_cells(d, 0.5**scale), n))

    def probes(self, d: int) -> Sequence[Weight]:
        """Return constants and coordinates: the learner starts there and then follows the witnesses."""
        return monomials(d, 1)

    def features(self, p: FloatArray) -> Sequence[Weight]:
        """Return nothing: the class is infinite, every subpopulation brings its witness."""
        return ()

    def suprema(self, p: FloatArray, rho: FloatArray, design: Design, alpha: float | None = None) -> Suprema:
        """Return the supremum over the whole class: exact for scalars, exact or bracketed on the simplex.

        Cost: one sort for each label, then O(n) for each subpopulation.
        """
        own = self.classwise(p, rho, design)
        if p.shape[1] == 1:
            return own
        size = np.abs(rho).sum(axis=1) / 2
        most = np.array([dot(np.abs(design.column(j)), size) for j in range(design.shape[1])])

        def points(j: int) -> tuple[FloatArray, FloatArray]:
            c = design.column(j)
            inside = c != 0.0
            return transport.aggregate_rows(p[inside], (rho * c[:, None])[inside])

        return tightened(own, most, points, np.zeros(len(most)), alpha)

    def classwise(self, p: FloatArray, rho: FloatArray, design: Design) -> Suprema:
        """Return the suprema over weights whose coordinate w_a is a function of f_a alone (spec 2.4).

        The whole class for scalars; on the simplex a part of it that scales, and stands out from chance on a sample.
        """
        lines = [SortedRows.of(p[:, a], rho[:, a]) for a in range(p.shape[1])]
        members = [design.members(line.order) for line in lines]
        passes = passes_for(p.size)
        side = _scalar if len(lines) == 1 else _classwise

        def solve(j: int) -> Side:
            return side([line.inside(*find(j)) for line, find in zip(lines, members, strict=True)], passes)

        sides = _each(solve, design.shape[1], passes)
        value = np.array([side[0] for side in sides])
        found = [side[1] for side in sides]
        return Suprema(value, value, np.abs(design.moments(rho)).max(axis=1), found.__getitem__)


def _each(solve: Callable[[int], Side], groups: int, passes: ModuleType) -> list[Side]:
    """Solve every subpopulation, in threads if the passes release the GIL; the results do not depend on it."""
    if not passes.IS_COMPILED:
        return [solve(j) for j in range(groups)]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(solve, range(groups)))


def finest_scale(d: int, alpha: float) -> int:
    """Return S with discretisation error at most alpha / 2: 2^-(S+1) for scalars, d 2^-S on the simplex."""
    return max(0, ceil(log2(1.0 / alpha))) if d == 1 else max(0, ceil(log2(2.0 * d / alpha)))


def _line_witness(coordinate: int, v: FloatArray, w: FloatArray) -> Weight:
    """Store a weight on sorted predictions by the knots where its slope changes."""
    if len(v) == 0 or np.ptp(w) == 0.0:
        return Monomial() if len(v) == 0 or w[0] == 1.0 else Knots(coordinate, v[:1], w[:1])
    slope = np.diff(w) / np.diff(v)
    bends = np.concatenate([[True], np.abs(np.diff(slope)) > 1e-9, [True]])
    return Knots(coordinate, v[bends], w[bends])


def _scalar(lines: Sequence[tuple[FloatArray, FloatArray]], passes: ModuleType) -> Side:
    """Return max(V, V - R) and its witness: one solve serves both signs, as 1 - w is admissible with w (spec 2.3)."""
    v, mass = lines[0]
    up, w = solve_line(v, mass, passes=passes)
    down = up - float(mass.sum())
    sign = 1.0 if up >= down else -1.0
    weight = _line_witness(0, v, w if sign > 0 else 1.0 - w)
    return max(up, down), Witness((weight,), np.array([[sign]]))


def _classwise(lines: Sequence[tuple[FloatArray, FloatArray]], passes: ModuleType) -> Side:
    """Return sum_a V_a(lip = 2): weights of the own coordinate only, 2-Lipschitz there (spec 2.4); exact for d = 2."""
    total, weights = 0.0, []
    for a, (v, mass) in enumerate(lines):
        value, w = solve_line(v, mass, 2.0, passes=passes)
        total += value
        weights.append(_line_witness(a, v, w))
    return total, Witness(tuple(weights), np.eye(len(lines)))


def tightened(
    own: Suprema,
    most: FloatArray,
    points: Callable[[int], tuple[FloatArray, FloatArray]],
    error: FloatArray,
    alpha: float | None,
) -> Suprema:
    """Return suprema over all smooth weights from class-wise ones and the bounds sum_i |c_i| |rho_i|_1 / 2.

    `points(j)` are the predictions of a subpopulation, each once, with their residuals. Where these are centres of
    cells, moving the rows there changes the supremum by at most error[j]. With alpha, what does not decide is left out.
    """
    value, upper, found = own.value.copy(), most.copy(), [own.witness(j) for j in range(len(most))]
    if alpha is not None and value.max() > alpha:
        return replace(own, upper=upper)
    for j in np.flatnonzero(upper > (0.0 if alpha is None else alpha)):
        Z, r = points(int(j))
        plans = [transport.greedy(Z, label) for label in r.T]
        upper[j] = min(upper[j], sum(plan.upper() for plan in plans) + error[j])
        is_few = len(Z) <= EXACT_ROWS
        if alpha is not None and (upper[j] <= alpha or not (is_few or value.max() <= alpha)):
            continue
        low, high, witness = _exact(Z, r) if is_few else _narrow(Z, r, plans, found[j])
        if low - error[j] > value[j]:
            value[j], found[j] = low - error[j], witness
        upper[j] = max(value[j], min(upper[j], high + error[j]))
    return Suprema(value, upper, own.basis, found.__getitem__)


def _exact(Z: FloatArray, r: FloatArray) -> tuple[float, float, Witness]:
    """Return the exact supremum by transport, label by label, twice, and the weight through the sample's points."""
    labels = [transport.exact(Z, label) for label in r.T]
    total = sum(part for part, _, _ in labels)
    points = tuple(Points(centres, heights) for _, centres, heights in labels)
    return total, total, Witness(points, np.eye(r.shape[1]))


def _narrow(
    Z: FloatArray, r: FloatArray, plans: Sequence[transport.Shipment], witness: Witness
) -> tuple[float, float, Witness]:
    """Return lower and upper bounds on the supremum over many distinct rows, and the weight that attains the lower.

    The best plan between near neighbours while that program is small, the given plans above it; what a plan leaves
    behind goes through the clusters (spec 2.4). Each label keeps its best weight: the supremum is a sum over labels.
    """
    clusters = transport.Clusters.of(Z, CENTRES)
    if len(Z) <= NEAR_ROWS:
        # on a simplex of three labels, near pairs run out sooner
        near = [transport.near(Z, label, 16 if Z.shape[1] == 3 else 8) for label in r.T]
        plans = [plan for _, plan in near]
    total, weights = 0.0, []
    for a, label in enumerate(r.T):
        lowers = [clusters.lower(Z, label)] + ([near[a][0]] if len(Z) <= NEAR_ROWS else [])
        sides = [(dot(label, witness.weights[a](Z)), witness.weights[a])]
        sides += [(value, Points(centres, heights)) for value, centres, heights in lowers]
        value, weight = max(sides, key=itemgetter(0))
        total += value
        weights.append(weight)
    upper = sum(plan.upper(clusters) for plan in plans)
    return total, upper, Witness(tuple(weights), np.eye(Z.shape[1]))


def on_grid(v: FloatArray, R: FloatArray, error: FloatArray, basis: FloatArray) -> Suprema:
    """Return the (class-wise) suprema from residuals R[label, c, point] at the points v of a grid.

    Weights are Lipschitz, so that moving predictions to their points changes the supremum of c by at most error[c]
    (spec 3.10): it lies between value and upper, and the witness of the grid attains value on the rows themselves.
    """
    side, passes = _scalar if len(R) == 1 else _classwise, passes_for(R.size)
    each = [side([(v[row != 0.0], row[row != 0.0]) for row in of_label], passes) for of_label in R.transpose(1, 0, 2)]
    found, witnesses = np.array([value for value, _ in each]), [witness for _, witness in each]
    return Suprema(np.maximum(found - error, 0.0), found + error, basis, witnesses.__getitem__)
