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

from lowcal.kernels.kernels import kernels_for, padded
from lowcal.kernels.products import gram, product
from lowcal.kernels.reference import CHUNK, Codes, Decode, Design, Matrix, Stacked, histogram, pieces
from lowcal.kernels.simplex import FloatArray, IntArray

#: Up to so many products a row are written out and counted in histograms, which is faster than sorting the rows.
FEW_PRODUCTS = 64
#: Rows are sorted by part in blocks of about so many numbers, which stay in the second cache.
NUMBERS = 1 << 16
#: At most this many sums are held while the parts of one code column are added up to its subpopulations.
MOST_SUMS = 1 << 23
#: Residuals are those of labels if they are up to this share of the row's weight.
ROUNDING = 1e-14


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
        block = (stops[full] - 1) * numbers_per_row // NUMBERS
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
        """Return sum_{i in part} A_is A_it for every part: NumPy makes half of a product of a matrix with itself.

        >>> Parts(np.array([0, 1, 0]), 2).squares(np.array([[1.0], [2.0], [3.0]])).ravel()
        array([10.,  4.])
        """
        S = A.shape[1]
        if S * S <= FEW_PRODUCTS:
            return self.products(A, A)
        total = np.zeros((self.count, S, S))
        A = np.ascontiguousarray(A)
        for rows, parts in self._blocks(S):
            a = np.take(A, rows, axis=0)
            for k, here in parts:
                total[k] = gram(a[here])
        return total

    def label_products(self, A: FloatArray, weight: FloatArray, labels: IntArray) -> FloatArray:
        """Return sum_{i in part} (weight_i [labels_i = t] - A_it) A_is as (count, t, s); A is `padded`."""
        W = A.shape[1]
        total = np.zeros((self.count, W, W))
        place, add = self.ids.astype(np.intp) * W + labels, kernels_for(A.size * W).add_histogram
        for rows, parts in self._blocks(W):
            a = np.take(A, rows, axis=0)
            for k, here in parts:
                total[k] = gram(a[here])
            first, last = parts[0][0], parts[-1][0] + 1
            np.negative(total[first:last], out=total[first:last])
            a *= weight[rows, None]
            add(place[rows] - first * W, a, total[first:last].reshape(-1, W))
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


def residual_moments(design: Design, p: FloatArray, rho: FloatArray) -> FloatArray:
    """Return `outer_moments` of p and residuals, shape (m, d, d), with half the multiplications where y is a label.

    Then rho_i = w_i (e_y - p_i): sum_i c w p_s [y = t] are d additions a row, and sum_i c w p_s p_t is symmetric.
    """
    found = labels_of(p, rho) if isinstance(design, Codes | Stacked) else None
    if found is None:
        return outer_moments(design, p, rho)
    return _of_labels(design, p, rho, *found)


def _of_labels(design: Design, p: FloatArray, rho: FloatArray, weight: FloatArray, labels: IntArray) -> FloatArray:
    """Return the moments of labels for code columns whose sums may be held, the general ones for other parts."""
    d = p.shape[1]
    if isinstance(design, Stacked):
        return np.concatenate([_of_labels(part, p, rho, weight, labels) for part in design.parts])
    if not isinstance(design, Codes) or max(t.shape[0] for t in design.decode) * padded(d) ** 2 > MOST_SUMS:
        return outer_moments(design, p, rho)
    root = np.zeros((len(p), padded(d)))
    np.multiply(np.sqrt(weight)[:, None], p, out=root[:, :d])
    found = []
    for codes, decode in zip(design.codes, design.decode, strict=True):
        sums = Parts(codes, decode.shape[0]).label_products(root, np.sqrt(weight), labels)
        found.append(decode.gather(sums.reshape(len(sums), -1)).reshape(-1, *sums.shape[1:])[:, :d, :d])
    return np.concatenate(found).transpose(0, 2, 1)


def labels_of(p: FloatArray, rho: FloatArray) -> tuple[FloatArray, IntArray] | None:
    """Return w >= 0 and y with rho_ia = w_i ([y_i = a] - p_ia); None if there are none, as outcomes are no labels.

    The only positive residual of a row is that of its label, w (1 - p_y).

    >>> labels_of(np.array([[0.5, 0.25, 0.25]]), np.array([[-1.0, 1.5, -0.5]]))
    (array([2.]), array([1]))
    """
    weight, labels = np.empty(len(p)), np.empty(len(p), dtype=np.intp)
    find_labels = kernels_for(p.size * p.shape[1]).find_labels
    for part in pieces(len(p), p.shape[1] * (CHUNK // NUMBERS)):
        if not find_labels(p[part], rho[part], ROUNDING, weight[part], labels[part]):
            return None
    return weight, labels


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
