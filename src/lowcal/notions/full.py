"""Full multicalibration: weights that are constant on the cells of a grid (Definition 3.6, corrected by spec 9.i, 9.k).

The last interval is closed at 1, the weights are vector valued (e_a 1_P), and only cells that hold a row are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.kernels.reference import Design
from lowcal.kernels.simplex import TIE, FloatArray, above_noise
from lowcal.notions.base import Finite, Suprema, Witness
from lowcal.notions.moments import moments
from lowcal.notions.weights import Cell, CellIds, Weight, monomials, n_cells, n_intervals, occupied_cells

#: Cells of a smaller width are more than any sample fills: each holds one row at most, and its violation is noise.
LEAST_WIDTH = 1e-6
#: Up to this many cells, those without a row are constraints as well.
MANY_CELLS = 1_000


@dataclass(frozen=True)
class Full(Finite):
    """W = all functions from cells of the given width to [0, 1]^d; basis {e_a 1_P}.

    >>> print(Full(0.1))
    full-0.1
    """

    width: float = 0.1

    def __post_init__(self) -> None:
        width: object = self.width
        if not isinstance(width, Real) or not 0 < float(width) <= 1:
            raise InvalidInput(f"The width of the cells must be in (0, 1], but {self.width!r} was given.")
        if float(width) < LEAST_WIDTH:
            raise InvalidInput(
                f"The width of the cells must be at least {LEAST_WIDTH:g}, but {self.width!r} was given: such cells "
                'hold one row at most, and their violation is noise. Use a larger width, or "smooth".'
            )

    def __str__(self) -> str:
        short = f"{self.width:.12g}"
        return f"full-{short if float(short) == self.width else repr(float(self.width))}"

    def basis(self, p: FloatArray, alpha: float) -> Sequence[Weight]:
        """Return the indicators of the cells that hold a row; the others have no violation."""
        return _cells(occupied_cells(p, self.width)[0].tolist(), self.width)

    def tolerance(self, p: FloatArray, alpha: float) -> float:
        """Return alpha / N for scalars, alpha / (floor(d/2) N) on the simplex, for N cells (spec 2.5)."""
        n, d = len(p), int(p.shape[1])
        cells = min(n_cells(d, self.width), n)
        return alpha / (cells * max(1, d // 2))

    def probes(self, d: int) -> Sequence[Weight]:
        """Return constants and coordinates: the learner starts there and then follows the witnesses."""
        return monomials(d, 1)

    def suprema(self, p: FloatArray, rho: FloatArray, design: Design, alpha: float | None = None) -> Suprema:
        """Return max(sum v+, sum v-) for scalars and ||v||_1 / 2 on the simplex, v over cells (spec 2.5)."""
        occupied, which = occupied_cells(p, self.width)
        v = moments(design, CellIds(which, len(occupied)), rho)
        return replace(self.norm(_cells(occupied.tolist(), self.width), v), moments=v)

    def constraints(self, p: FloatArray) -> Sequence[Weight]:
        """Return every cell for scalars, those that hold a row on the simplex or where there are many cells."""
        if not self.lists_every_cell(p.shape[1]):
            return self.basis(p, 1.0)
        return _cells([[j] for j in range(n_intervals(self.width))], self.width)

    def lists_every_cell(self, d: int) -> bool:
        """Whether the constraints are known before any row: a union bound over those that hold a row proves nothing."""
        return d == 1 and n_intervals(self.width) <= MANY_CELLS

    def norm(self, weights: Sequence[Weight], v: FloatArray) -> Suprema:
        """Return the supremum from the moments of the cells."""
        up = np.maximum(v, 0.0).sum(axis=(1, 2))
        down = np.maximum(-v, 0.0).sum(axis=(1, 2))
        value = np.maximum(up, down)

        def witness(j: int) -> Witness:
            sign = 1.0 if up[j] >= down[j] * (1.0 - TIE) else -1.0
            return Witness(tuple(weights), np.where(above_noise(sign * v[j]), sign, 0.0))

        return Suprema(value, value, np.abs(v).max(axis=(1, 2)), witness)

    def deviation(self, e: FloatArray) -> FloatArray:
        """Return the sum of e, half of it on the simplex: cells of one sign add up."""
        return np.asarray(e.sum(axis=(1, 2)) / (1.0 if e.shape[2] == 1 else 2.0))


def _cells(indices: list[list[int]], width: float) -> tuple[Cell, ...]:
    return tuple(Cell(width, tuple(index)) for index in indices)
