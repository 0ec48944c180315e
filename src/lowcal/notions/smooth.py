"""Smooth multicalibration: weights in [0, 1] that are 1-Lipschitz in l1 (Definition 3.4).

The class is infinite, yet its supremum on a sample is exact: for scalars by dynamic programming on the sorted
predictions (spec 2.3), on the simplex by transport (spec 2.4) when few rows differ. For more rows it is bracketed
between weights of one coordinate each and a feasible transport plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from lowcal.engines import transport
from lowcal.engines.line import aggregate, solve_line
from lowcal.engines.reference import Design
from lowcal.notions.base import Suprema, Witness
from lowcal.simplex import FloatArray
from lowcal.weights import Cell, Knots, Monomial, Points, Weight, monomials, n_cells, occupied_cells

#: Up to this many distinct rows of a subpopulation the multi-class supremum is solved exactly.
EXACT_ROWS = 400


@dataclass(frozen=True)
class Smooth:
    """W = Lip: every coordinate of w is [0, 1]-valued and 1-Lipschitz in l1 (Definition 3.4).

    >>> print(Smooth())
    smooth
    """

    def __str__(self) -> str:
        return "smooth"

    def gain(self, d: int) -> float:
        """Return 1: the supremum is attained by its witness."""
        return 1.0

    def basis(self, p: FloatArray, alpha: float) -> Sequence[Weight]:
        """Return dyadic cells from the whole space down to the finest scale, those that hold a row (spec 1.3, B4)."""
        cells: list[Weight] = []
        for s in range(_finest_scale(p.shape[1], alpha) + 1):
            occupied = occupied_cells(p, 0.5**s)[0]
            cells += [Cell(0.5**s, tuple(index)) for index in occupied.tolist()]
        return cells

    def tolerance(self, p: FloatArray, alpha: float) -> float:
        """Return alpha / (2 + S) for scalars (B4); alpha / (2 floor(d/2) N) on the simplex, N finest cells (B2)."""
        n, d = len(p), int(p.shape[1])
        scale = _finest_scale(d, alpha)
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
        """Return the supremum over the whole class: exact for scalars, exact or bracketed on the simplex."""
        solve = _scalar if p.shape[1] == 1 else _classwise
        sides = [solve(p, rho * design.column(j)[:, None]) for j in range(design.shape[1])]
        value = np.array([side[0] for side in sides])
        basis = np.abs(design.moments(rho)).max(axis=1)
        found = [side[1] for side in sides]
        if p.shape[1] == 1:
            return Suprema(value, value, basis, found.__getitem__)
        upper = _tighten(p, rho, design, value, found, alpha)
        return Suprema(value, upper, basis, found.__getitem__)


def _finest_scale(d: int, alpha: float) -> int:
    """Return S with discretisation error at most alpha / 2: 2^-(S+1) for scalars, d 2^-S on the simplex."""
    return max(0, ceil(log2(1.0 / alpha))) if d == 1 else max(0, ceil(log2(2.0 * d / alpha)))


def _line_witness(coordinate: int, v: FloatArray, w: FloatArray) -> Weight:
    """Store a weight on sorted predictions by the knots where its slope changes."""
    if len(v) == 0 or np.ptp(w) == 0.0:
        return Monomial() if len(v) == 0 or w[0] == 1.0 else Knots(coordinate, v[:1], w[:1])
    slope = np.diff(w) / np.diff(v)
    bends = np.concatenate([[True], np.abs(np.diff(slope)) > 1e-9, [True]])
    return Knots(coordinate, v[bends], w[bends])


def _on_line(p: FloatArray, r: FloatArray, lip: float) -> tuple[FloatArray, FloatArray, float, FloatArray]:
    """Return the aggregated line problem of the rows with r != 0, its optimum and its weight."""
    inside = r != 0.0
    v, mass = aggregate(p[inside], r[inside])
    value, w = solve_line(v, mass, lip)
    return v, mass, value, w


def _scalar(p: FloatArray, r: FloatArray) -> tuple[float, Witness]:
    """Return max(V, V - R) and its witness: one solve serves both signs, as 1 - w is admissible with w (spec 2.3)."""
    v, mass, up, w = _on_line(p[:, 0], r[:, 0], 1.0)
    down = up - float(mass.sum())
    sign = 1.0 if up >= down else -1.0
    weight = _line_witness(0, v, w if sign > 0 else 1.0 - w)
    return max(up, down), Witness((weight,), np.array([[sign]]))


def _classwise(p: FloatArray, r: FloatArray) -> tuple[float, Witness]:
    """Return sum_a V_a(lip = 2): weights of the own coordinate only, 2-Lipschitz there (spec 2.4); exact for d = 2."""
    solved = [_on_line(p[:, a], r[:, a], 2.0) for a in range(p.shape[1])]
    weights = tuple(_line_witness(a, v, w) for a, (v, _, _, w) in enumerate(solved))
    return sum(value for _, _, value, _ in solved), Witness(weights, np.eye(p.shape[1]))


def _tighten(
    p: FloatArray,
    rho: FloatArray,
    design: Design,
    value: FloatArray,
    found: list[Witness],
    alpha: float | None,
) -> FloatArray:
    """Return upper bounds; where they decide, replace value and witness (in place) by the exact ones."""
    upper = np.array([np.abs(rho * design.column(j)[:, None]).sum() / 2 for j in range(len(value))])
    if alpha is not None and value.max() > alpha:
        return upper
    for j in np.flatnonzero(upper > (0.0 if alpha is None else alpha)):
        c = design.column(int(j))
        inside = c != 0.0
        Z, r = transport.aggregate_rows(p[inside], (rho * c[:, None])[inside])
        upper[j] = min(upper[j], sum(transport.upper_bound(Z, r[:, a]) for a in range(r.shape[1])))
        if (alpha is None or upper[j] > alpha) and len(Z) <= EXACT_ROWS:
            value[j], found[j] = _exact(Z, r, value[j], found[j])
            upper[j] = value[j]
    return upper


def _exact(Z: FloatArray, r: FloatArray, value: float, witness: Witness) -> tuple[float, Witness]:
    """Return the exact supremum by transport, label by label, and the weight through the sample's points."""
    labels = [transport.exact(Z, r[:, a]) for a in range(r.shape[1])]
    total = sum(part for part, _, _ in labels)
    if total <= value:
        return value, witness
    points = tuple(Points(centres, heights) for _, centres, heights in labels)
    return total, Witness(points, np.eye(r.shape[1]))


class GridSmooth:
    """TEMPORARY."""

    def __init__(self, p, design, step=1 / 1024):
        self.p, self.design = np.round(p / step) * step, design

    def values(self, rho):
        return Smooth().suprema(self.p, rho, self.design).value

    def error(self, rho):
        return np.zeros(self.design.shape[1])
