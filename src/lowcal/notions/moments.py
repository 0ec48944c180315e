"""Residuals and moments: the one kernel that fits and audits both measure with.

g(c, u, a) = E[ c(x) u(f(x)) (y_a - f_a(x)) ]: the violation of subpopulation c, weight u and label a (spec 0).
Paper: Definition 3.1.

The moments of d classes at degree 2 are sums of (d + 1) x d products a row. They are never written out: the rows of one
level of a code column, a part, stand together, so that each part is one small matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from lowcal.kernels.exact import ExactSums, Grid, Tables
from lowcal.kernels.loops import lay_powers, padded
from lowcal.kernels.products import gram, product
from lowcal.kernels.reference import (
    CACHE,
    Codes,
    CodeSums,
    Decode,
    Design,
    Matrix,
    Stacked,
    histogram,
    pieces,
    rows_in_cache,
)
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.notions.weights import Cell, CellIds, Evaluated, Weight, evaluate, evaluate_dense, monomials

#: Up to this many products a row are written out and counted in histograms, which is faster than sorting the rows.
FEW_PRODUCTS = 64
#: At most this many sums are held while the parts of one code column are added up to its subpopulations.
MOST_SUMS = 1 << 23


def residual(u: Weight, label: int, p: FloatArray, y: FloatArray) -> FloatArray:
    """Return z_i = <w(f_i), y_i - f_i> for w = u e_label: what a weak learner is asked to correlate with."""
    return u(p) * (y[:, label] - p[:, label])


def moments(design: Design, U: Evaluated, rho: FloatArray) -> FloatArray:
    """Return g[c, s, a] = sum_i c(x_i) u_s(f_i) rho_ia for weighted residuals rho_i = p_i (y_i - f_i).

    Paper: Definition 3.1. Cost: one pass over the rows for each code column.
    """
    if isinstance(U, CellIds):
        return design.cell_moments(U.ids, U.n_cells, rho)
    return _sum_products(design, U.shape[1], rho.shape[1], lambda part: _products(U[part], rho[part]))


def moments_at(design: Design, weights: Sequence[Weight], p: FloatArray, rho: FloatArray) -> FloatArray:
    """Return `moments` of weights at predictions p, which are evaluated a piece of the rows at a time."""
    if any(isinstance(u, Cell) for u in weights):
        return moments(design, evaluate(weights, p), rho)
    return _sum_products(design, len(weights), rho.shape[1], lambda part: weigh(weights, p[part], rho[part]))


def _sum_products(design: Design, S: int, d: int, products: Callable[[slice], FloatArray]) -> FloatArray:
    """Return C'R, shape (m, S, d), for S d products of every row, which are made a piece of the rows at a time."""
    sums = design.sums(S * d)
    for part in rows_in_cache(design.shape[0], S * d):
        sums.add(part, products(part))
    return sums.total().reshape(-1, S, d)


class MomentSums:
    """`moments` of weights as exact sums under construction, where predictions and residuals come in pieces."""

    def __init__(self, design: Design, weights: Sequence[Weight], d: int, grid: Grid) -> None:
        self.weights, self.far = weights, float(grid.far)
        self.sums = ExactSums(design, len(weights) * d, grid)
        self.are_powers = are_powers(weights, d)

    def add(self, part: slice, p: FloatArray, rho: FloatArray) -> None:
        """Add the rows of a slice, with their predictions and weighted residuals."""
        tables = self.sums.sums
        if self.are_powers or not isinstance(tables, CodeSums):
            self.sums.add(part, weigh(self.weights, p, rho))
            return
        self.sums.hold(len(p))
        tables.add_products(part, np.ascontiguousarray(evaluate_dense(self.weights, p)), rho, self.far)

    def wholes(self) -> Tables:
        """Return exact sums of all that was added."""
        return self.sums.wholes()


def are_powers(weights: Sequence[Weight], d: int) -> bool:
    """Whether weights are 1, f, f^2, .. of a scalar."""
    return d == 1 and tuple(weights) == monomials(1, len(weights) - 1)


def weigh(weights: Sequence[Weight], p: FloatArray, rho: FloatArray) -> FloatArray:
    """Return u_s(f_i) rho_ia as (rows, S d), or more columns that do not count."""
    if are_powers(weights, rho.shape[1]):
        R = np.empty((len(p), padded(len(weights))))
        lay_powers(p[:, 0], rho[:, 0], R)
        return R
    return _products(evaluate_dense(weights, p), rho)


def _products(U: FloatArray, rho: FloatArray) -> FloatArray:
    """Return u_s(f_i) rho_ia as (rows, S d); those of a row lie together, which is what histograms read."""
    R = np.empty((len(U), U.shape[1], rho.shape[1]))
    np.multiply(U[:, :, None], rho[:, None, :], out=R)
    return R.reshape(len(U), -1)


#: A slice of the rows and their evaluated weights -> the displacement of these rows.
Displacer: TypeAlias = Callable[[slice, Evaluated], FloatArray]


def displacement(design: Design, U: Evaluated, theta: FloatArray) -> FloatArray:
    """Return delta_ia = sum_{c, s} theta[c, s, a] c(x_i) u_s(f_i): the adjoint of `moments`."""
    displace = displacer(design, theta)
    n, (_, S, d) = design.shape[0], theta.shape
    delta = np.empty((n, d))
    for part in rows_in_cache(n, d if isinstance(U, CellIds) else S * d):
        delta[part] = displace(part, CellIds(U.ids[part], U.n_cells) if isinstance(U, CellIds) else U[part])
    return delta


def displacer(design: Design, theta: FloatArray) -> Displacer:
    """Return `displacement` as a function of some rows and the weights on them; the tables are made when first used."""
    m, S, d = theta.shape
    made: list[Any] = []  # `functools.cache` takes longer than the tables of a few subpopulations

    def displace(part: slice, U: Evaluated) -> FloatArray:
        if not made:
            is_cells = isinstance(U, CellIds)
            made.append(design.cell_combination(theta) if is_cells else design.combination(theta.reshape(m, S * d)))
        if isinstance(U, CellIds):
            return np.asarray(made[0](part, U.ids))
        amplitude = made[0](part)
        if d == 1:
            return np.asarray(np.einsum("ns,ns->n", U, amplitude)[:, None])
        return np.asarray(np.einsum("ns,nsa->na", U, amplitude.reshape(len(amplitude), S, d)))

    return displace


# --- many products a row: never written out -------------------------------------------------------------------------


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
        sums = histogram(self.ids[rows], _products(A, B), self.count + 1)[: self.count]
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
