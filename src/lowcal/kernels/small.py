"""Memberships in the small type in which they were given: bytes or float32, never float64 as a whole.

A piece of the rows is converted when it is needed, so sums and products are those of float64: bytes and float32 are
exact in it. 0/1 memberships are smaller and faster as bits (`pack`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.exact import Grid
from lowcal.kernels.products import by_row
from lowcal.kernels.reference import (
    CellCombination,
    Combination,
    Matrix,
    MatrixSums,
    combine_by_pieces,
    pick_cells,
    pieces,
    weighted_gram,
)
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.kernels.switch import kernels_for

#: An array of numbers of any type.
AnyArray: TypeAlias = NDArray[Any]


def pack(C: AnyArray) -> tuple[AnyArray, ...] | None:
    """Return 0/1 columns as bits, eight to a byte, the first one lowest; None if C holds other numbers.

    Cost: one pass over C. What is not of one byte is first compared with 0 and 1, which makes a byte for each entry.

    >>> pack(np.array([[1, 0, 1]])), pack(np.array([[0.5]]))
    ((array([5], dtype=uint8),), None)
    """
    if C.dtype == np.bool_:
        C = C.view(np.uint8) != 0  # whatever byte stands for true
    elif C.dtype.itemsize > 1:
        if not are_bits(C):
            return None
        C = C != 0
    n, m = C.shape
    bits = np.empty((-(-m // 8), n), dtype=np.uint8)
    return tuple(bits) if kernels_for(n * m).pack_bits(C.view(np.uint8), bits) else None


def are_bits(C: AnyArray) -> bool:
    """Whether all entries are 0 or 1."""
    return all(bool(((C[part] == 0) | (C[part] == 1)).all()) for part in pieces(*C.shape))


@dataclass(frozen=True, eq=False)
class Small:
    """C as an array of a small type, to a power."""

    matrix: AnyArray
    exponent: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and subpopulations."""
        n, m = self.matrix.shape
        return n, m

    def moments(self, R: FloatArray) -> FloatArray:
        """Return C'R."""
        sums = self.sums(R.shape[1])
        sums.add(slice(0, len(R)), R)
        return sums.total()

    def sums(self, q: int, grid: Grid | None = None) -> SmallSums:
        """Return zero."""
        return SmallSums(self, np.zeros((self.shape[1], q)), grid)

    def cell_moments(self, ids: IntArray, n_cells: int, R: FloatArray, grid: Grid | None = None) -> FloatArray:
        """Return the moments inside each cell, a piece of the rows at a time."""
        total = np.zeros((self.shape[1], n_cells, R.shape[1]))
        for part in pieces(*self.shape):
            total += Matrix(self.rows(part).dense()).cell_moments(ids[part], n_cells, R[part], grid)
        return total

    def combine(self, theta: FloatArray) -> FloatArray:
        """Return C theta."""
        return combine_by_pieces(self, theta)

    def combination(self, theta: FloatArray) -> Combination:
        """Return the products of pieces of C."""

        def combined(rows: slice) -> FloatArray:
            here = self.rows(rows)
            total = np.empty((here.shape[0], theta.shape[1]))
            for part in pieces(*here.shape):
                total[part] = by_row(here.rows(part).dense(), theta)
            return total

        return combined

    def cell_combination(self, theta: FloatArray) -> CellCombination:
        """Return the products of pieces of C with the coefficients of all cells, of which each row keeps its own."""
        return pick_cells(self, theta)

    def rows(self, part: slice | IntArray) -> Small:
        """Return the same memberships on some rows."""
        return replace(self, matrix=self.matrix[part])

    def dense(self) -> FloatArray:
        """Return C in float64, in which small types are exact."""
        C = self.matrix.astype(np.float64, order="C")
        return C if self.exponent == 1 else np.power(C, self.exponent, out=C)

    def column(self, j: int) -> FloatArray:
        """Return one membership."""
        return replace(self, matrix=self.matrix[:, [j]]).dense()[:, 0]

    def power(self, exponent: int) -> Small:
        """Return the powers, which float32 could not hold: they are made of the pieces."""
        return replace(self, exponent=exponent * self.exponent)

    def gram(self, H: FloatArray) -> FloatArray:
        """Return C' diag(H_k) C."""
        return weighted_gram(self, self, H)


@dataclass(frozen=True, eq=False)
class SmallSums:
    """C'R under construction for memberships of a small type."""

    design: Small
    sum: FloatArray
    grid: Grid | None = None

    def add(self, rows: slice, R: FloatArray) -> None:
        """Add the product of a slice, converted piece by piece."""
        here, R = self.design.rows(rows), R[:, : self.sum.shape[1]]
        for part in pieces(*here.shape):
            MatrixSums(here.rows(part).dense(), self.sum, self.grid).add(slice(None), R[part])

    def tables(self) -> list[FloatArray]:
        """Return the sum."""
        return [self.sum]

    def total(self) -> FloatArray:
        """Return the sum."""
        return self.sum
