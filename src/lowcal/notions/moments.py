"""Residuals and moments: the one kernel that fits and audits both measure with.

g(c, u, a) = E[ c(x) u(f(x)) (y_a - f_a(x)) ]: the violation of subpopulation c, weight u and label a (spec 0).
Paper: Definition 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from lowcal.kernels.exact import ExactSums, Grid, Tables
from lowcal.kernels.loops import lay_powers, padded
from lowcal.kernels.reference import CodeSums, Design, rows_in_cache
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.weights import Cell, CellIds, Evaluated, Weight, evaluate, monomials


def residual(u: Weight, label: int, p: FloatArray, y: FloatArray) -> FloatArray:
    """Return z_i = <w(f_i), y_i - f_i> for w = u e_label: what a weak learner is asked to correlate with."""
    return u(p) * (y[:, label] - p[:, label])


def moments(design: Design, U: Evaluated, rho: FloatArray) -> FloatArray:
    """Return g[c, s, a] = sum_i c(x_i) u_s(f_i) rho_ia for weighted residuals rho_i = p_i (y_i - f_i).

    Paper: Definition 3.1. Cost: one pass over the rows for each code column.
    """
    if isinstance(U, CellIds):
        return design.cell_moments(U.ids, U.n_cells, rho)
    n, m = design.shape
    S, d = U.shape[1], rho.shape[1]
    sums = design.sums(S * d)
    for part in rows_in_cache(n, S * d):
        sums.add(part, _products(U[part], rho[part]))
    return sums.total().reshape(m, S, d)


def moments_at(design: Design, weights: Sequence[Weight], p: FloatArray, rho: FloatArray) -> FloatArray:
    """Return `moments` of weights at predictions p, which are evaluated a piece of the rows at a time."""
    if any(isinstance(u, Cell) for u in weights):
        return moments(design, evaluate(weights, p), rho)
    (n, m), S, d = design.shape, len(weights), rho.shape[1]
    sums = design.sums(S * d)
    for part in rows_in_cache(n, S * d):
        sums.add(part, weigh(weights, p[part], rho[part]))
    return sums.total().reshape(m, S, d)


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
        U = evaluate(self.weights, p)
        assert isinstance(U, np.ndarray)
        self.sums.hold(len(U))
        tables.add_products(part, np.ascontiguousarray(U), rho, self.far)

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
    U = evaluate(weights, p)
    assert isinstance(U, np.ndarray)
    return _products(U, rho)


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
