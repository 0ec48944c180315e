"""Rows cut into disjoint parts: sums of outer products inside each part, and the adjoint.

The moments of d classes at degree 2 are sums of (d + 1) x d products a row. They are never written out: the rows of
one part stand together, so that each part is one small matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from lowcal.kernels.products import gram, product
from lowcal.kernels.reference import CACHE, Codes, Decode, Design, Matrix, Stacked, histogram, pieces
from lowcal.kernels.simplex import FloatArray, IntArray

#: Up to this many products a row are written out and counted in histograms, which is faster than sorting the rows.
FEW_PRODUCTS = 64
#: At most this many sums are held while the parts of one code column are added up to its subpopulations.
MOST_SUMS = 1 << 23


@dataclass(frozen=True, eq=False)
class Parts:
    """The part of each row, 0..count-1, or `count` for none."""

    ids: IntArray
    count: int

    @cached_property
    def _order(self) -> IntArray:
        return np.argsort(self.ids, kind="stable")

    def _blocks(self, numbers_per_row: int) -> Iterator[tuple[IntArray, list[tuple[int, slice]]]]:
        """Yield rows sorted by part, as many whole parts as stay in cache, and where each part stands among them."""
        stops = np.cumsum(np.bincount(self.ids, minlength=self.count)[: self.count])
        starts = np.concatenate([[0], stops[:-1]])
        full = np.flatnonzero(stops > starts)
        block = (stops[full] - 1) * numbers_per_row // CACHE
        for some in np.split(full, np.flatnonzero(np.diff(block)) + 1):
            if len(some):
                first = starts[some[0]]
                places = zip(
                    some.tolist(), (starts[some] - first).tolist(), (stops[some] - first).tolist(), strict=True
                )
                yield self._order[first : stops[some[-1]]], [(k, slice(a, b)) for k, a, b in places]

    def products(self, A: FloatArray, B: FloatArray) -> FloatArray:
        """Return sum_{i in part} A_is B_it for every part, shape (count, S, T).

        >>> Parts(np.array([0, 1, 0, 2]), 2).products(np.ones((4, 1)), np.array([[1.0], [2.0], [3.0], [9.0]])).ravel()
        array([4., 2.])
        """
        S, T = A.shape[1], B.shape[1]
        total = np.zeros((self.count, S, T))
        if S * T <= FEW_PRODUCTS:
            for part in pieces(len(A), S * T):
                total += self._count(A[part], B[part], part)
            return total
        A, B = np.ascontiguousarray(A), np.ascontiguousarray(B)  # rows are taken whole
        for rows, parts in self._blocks(S + T):
            a, b = np.take(A, rows, axis=0), np.take(B, rows, axis=0)
            for k, here in parts:
                total[k] = product(a[here].T, b[here])
        return total

    def squares(self, A: FloatArray) -> FloatArray:
        """Return sum_{i in part} A_is A_it for every part.

        >>> Parts(np.array([0, 1, 0]), 2).squares(np.array([[1.0], [2.0], [3.0]])).ravel()
        array([10.,  4.])
        """
        if A.shape[1] ** 2 <= FEW_PRODUCTS:
            return self.products(A, A)
        total, A = np.zeros((self.count, A.shape[1], A.shape[1])), np.ascontiguousarray(A)
        for rows, parts in self._blocks(A.shape[1]):
            a = np.take(A, rows, axis=0)
            for k, here in parts:
                total[k] = gram(a[here])
        return total

    def _count(self, A: FloatArray, B: FloatArray, rows: slice) -> FloatArray:
        """Return the sums by histograms."""
        products = np.multiply(A[:, :, None], B[:, None, :], order="C").reshape(len(A), A.shape[1] * B.shape[1])
        sums = histogram(self.ids[rows], products, self.count + 1)[: self.count]
        return sums.reshape(self.count, A.shape[1], B.shape[1])

    def combine(self, A: FloatArray, theta: FloatArray) -> FloatArray:
        """Return sum_s A_is theta[part of i, s, :], shape (n, d); 0 where a row is in no part."""
        _, S, d = theta.shape
        if S * d <= FEW_PRODUCTS:
            tables = np.concatenate([theta, np.zeros((1, S, d))]).transpose(1, 2, 0).copy()
            return np.stack([sum(A[:, s] * tables[s, a].take(self.ids) for s in range(S)) for a in range(d)], axis=1)
        total = np.zeros((len(self.ids), d))
        A = np.ascontiguousarray(A)
        for rows, parts in self._blocks(S + d):
            a = np.take(A, rows, axis=0)
            total[rows] = np.concatenate([product(a[here], theta[k]) for k, here in parts])
        return total


def outer_moments(design: Design, A: FloatArray, B: FloatArray) -> FloatArray:
    """Return sum_i C_ic A_is B_it, shape (m, S, T), without an array of rows x S x T.

    Cost: a matrix product of every code column's level with its rows, O(n S T) for each column.
    """
    if isinstance(design, Stacked):
        return np.concatenate([outer_moments(part, A, B) for part in design.parts])
    if isinstance(design, Codes):
        return np.concatenate([_of_codes(c, t, A, B) for c, t in zip(design.codes, design.decode, strict=True)])
    if isinstance(design, Matrix) and not isinstance(design.matrix, np.ndarray):
        return _of_sparse(design.matrix.tocsc(), A, B)
    return np.stack([product((A * design.column(j)[:, None]).T, B) for j in range(design.shape[1])])


def _of_codes(codes: IntArray, decode: Decode, A: FloatArray, B: FloatArray) -> FloatArray:
    """Return the moments of one code column: the sums of its levels, some columns of B at a time."""
    levels, m = decode.shape
    parts = Parts(codes, levels)
    size = max(1, MOST_SUMS // (levels * A.shape[1]))
    slices = [B[:, k : k + size] for k in range(0, B.shape[1], size)]
    sums = [decode.gather(parts.products(A, b).reshape(levels, -1)).reshape(m, A.shape[1], -1) for b in slices]
    return np.concatenate(sums, axis=2)


def _of_sparse(C: sparse.csc_array, A: FloatArray, B: FloatArray) -> FloatArray:
    """Return the moments of sparse memberships from the rows of each member."""
    total = np.empty((C.shape[1], A.shape[1], B.shape[1]))
    for j in range(C.shape[1]):
        entries = slice(C.indptr[j], C.indptr[j + 1])
        rows = C.indices[entries]
        total[j] = product((A[rows] * C.data[entries, None]).T, B[rows])
    return total
