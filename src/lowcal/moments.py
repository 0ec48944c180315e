"""Residuals and moments: the one kernel that fits and audits both measure with.

g(c, u, a) = E[ c(x) u(f(x)) (y_a - f_a(x)) ]: the violation of subpopulation c, weight u and label a (spec 0).
Paper: Definition 3.1.
"""

from __future__ import annotations

import numpy as np

from lowcal.engines.reference import Design, pieces
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
    total = np.zeros((m, S * d))
    for part in pieces(n, S * d):
        # one contiguous run for each moment, which is what histograms read
        R = (U[part].T[:, None, :] * rho[part].T[None, :, :]).reshape(S * d, -1).T
        total += design.rows(part).moments(R)
    return total.reshape(m, S, d)


def displacement(design: Design, U: Evaluated, theta: FloatArray) -> FloatArray:
    """Return delta_ia = sum_{c, s} theta[c, s, a] c(x_i) u_s(f_i): the adjoint of `moments`."""
    n, m = design.shape
    _, S, d = theta.shape
    flat = theta.reshape(m, S * d)
    delta = np.empty((n, d))
    for part in pieces(n, S * d):
        amplitude = design.rows(part).combine(flat).reshape(-1, S, d)
        if isinstance(U, CellIds):
            ids = U.ids[part]
            inside = (ids < S)[:, None]
            delta[part] = np.where(inside, amplitude[np.arange(len(ids)), np.minimum(ids, S - 1)], 0.0)
        else:
            delta[part] = np.einsum("ns,nsa->na", U[part], amplitude)
    return delta
