"""Residuals and moments: the one kernel that fits and audits both measure with.

g(c, u, a) = E[ c(x) u(f(x)) (y_a - f_a(x)) ]: the violation of subpopulation c, weight u and label a (spec 0).
Paper: Definition 3.1.
"""

from __future__ import annotations

import numpy as np

from lowcal.engines.reference import Design, rows_in_cache
from lowcal.simplex import FloatArray
from lowcal.weights import CellIds, Evaluated, Weight


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
        # one contiguous run for each moment, which is what histograms read
        sums.add(part, (U[part].T[:, None, :] * rho[part].T[None, :, :]).reshape(S * d, -1).T)
    return sums.total().reshape(m, S, d)


def displacement(design: Design, U: Evaluated, theta: FloatArray) -> FloatArray:
    """Return delta_ia = sum_{c, s} theta[c, s, a] c(x_i) u_s(f_i): the adjoint of `moments`."""
    n, m = design.shape
    _, S, d = theta.shape
    combination = design.combination(theta.reshape(m, S * d))
    delta = np.empty((n, d))
    for part in rows_in_cache(n, S * d):
        delta[part] = _weighted(combination(part), U, part, d)
    return delta


def _weighted(amplitude: FloatArray, U: Evaluated, part: slice, d: int) -> FloatArray:
    """Return sum_s u_s(f_i) amplitude[i, s, a] on some rows; a cell's weight is 1 in the cell alone."""
    if isinstance(U, CellIds):
        ids = U.ids[part]
        inside = amplitude.reshape(len(ids), -1, d)[np.arange(len(ids)), np.minimum(ids, U.n_cells - 1)]
        return np.where((ids < U.n_cells)[:, None], inside, 0.0)
    if d == 1:
        return np.einsum("sn,sn->n", U[part].T, amplitude.T)[:, None]
    return np.einsum("ns,nsa->na", U[part], amplitude.reshape(len(amplitude), -1, d))
