"""The best Lipschitz weight on the simplex, for one label: the exact kernel of the multi-class smooth notion.

    S+(r) = sup { sum_i r_i u(z_i) : u takes values in [0,1] and is 1-Lipschitz in l1 }            (spec 2.4)

By duality of linear programs this is a partial transport of the positive residuals to the negative ones:

    S+(r) = sum_i r_i^+ - max { sum_ij (1 - |z_i - z_j|_1)^+ pi_ij : rows <= r_i^+, columns <= r_j^- }

Only pairs closer than 1 can gain. The prices of the negative points are a weight function: `exact` returns it
as a witness. A plan that is not the best still proves an upper bound: `upper_bound` finds one greedily.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from lowcal.simplex import FloatArray

IntArray: TypeAlias = NDArray[np.intp]

# HiGHS' tolerances are absolute; 1e-10 is the smallest it takes
TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def aggregate_rows(Z: FloatArray, R: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sort the prediction rows and sum the residuals, of shape (n,) or (n, q), over equal rows.

    Formula: R'_k = sum of R_i over Z_i = Z'_k (spec 2.4). Cost: O(n (l log n + q)).

    >>> Z, R = aggregate_rows(np.array([[0.5, 0.5], [0.0, 1.0], [0.5, 0.5]]), np.array([1.0, -1.0, 2.0]))
    >>> Z.tolist(), R.tolist()
    ([[0.0, 1.0], [0.5, 0.5]], [-1.0, 3.0])
    """
    order = np.lexsort(Z.T[::-1])
    Z, R = Z[order], R[order]
    first = np.ones(len(Z), dtype=bool)
    np.any(Z[1:] != Z[:-1], axis=1, out=first[1:])
    starts = np.flatnonzero(first)
    return Z[starts], np.add.reduceat(R, starts, axis=0)


def exact(Z: FloatArray, r: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """Return S+(r) with a witness: the negative points and their prices, to be read by `evaluate`.

    Formula: u(z) = min(1, min_j beta_j + |z - z_j|_1) over the negative points z_j, where beta_j is the dual
    variable of the capacity of column j; the value is sum_i r_i u(z_i), hence never above S+ even if the
    solver were wrong. Without negative points there are no centres and u = 1. Reference: spec 2.4, transport
    form. Cost: a linear program with one variable for each pair closer than 1; meant for at most about 1000
    distinct rows (see `aggregate_rows`).

    >>> Z = np.array([[0.2, 0.8], [0.8, 0.2]])
    >>> value, centres, heights = exact(Z, np.array([-0.5, 0.5]))  # l1 distance 1.2: the two points are free
    >>> value, centres.tolist(), heights.tolist()
    (0.5, [[0.2, 0.8]], [0.0])
    """
    centres = Z[r < 0]
    heights = _prices(cdist(Z[r > 0], centres, "cityblock"), r[r > 0], -r[r < 0])
    return float(np.sum(r * evaluate(Z, centres, heights))), centres, heights


def _prices(distances: FloatArray, supply: FloatArray, demand: FloatArray) -> FloatArray:
    """Solve max sum (1 - d_ij) pi_ij, rows <= supply, columns <= demand; return the prices of the columns."""
    rows, columns = np.nonzero(distances < 1.0)
    if len(rows) == 0:
        return np.zeros(len(demand))
    gains = 1.0 - distances[rows, columns]
    edges = np.arange(len(rows))
    incidence = sp.csr_array(
        (np.ones(2 * len(edges)), (np.r_[rows, len(supply) + columns], np.r_[edges, edges])),
        shape=(len(supply) + len(demand), len(edges)),
    )
    capacity = np.r_[supply, demand]
    # scale both to a maximum of 1, so that absolute tolerances become relative ones
    plan = linprog(-gains / gains.max(), A_ub=incidence, b_ub=capacity / capacity.max(), method="highs", options=TIGHT)
    if plan.status != 0:
        raise RuntimeError(f"The transport of {len(edges)} pairs was not solved; HiGHS says: {plan.message}")
    prices: FloatArray = -gains.max() * plan.ineqlin.marginals[len(supply) :]
    return np.clip(prices, 0.0, 1.0)


def evaluate(Z: FloatArray, centres: FloatArray, heights: FloatArray, *, cells: int = 1 << 20) -> FloatArray:
    """Evaluate the weight function of a witness at the rows of Z.

    Formula: u(z) = clip(min(1, min_j heights_j + |z - centres_j|_1), 0, 1), the McShane extension: a minimum
    of 1-Lipschitz functions, hence 1-Lipschitz in l1. Reference: spec 2.4. Cost: O(n k l) time for k
    centres; at most max(cells, k) distances are held at once.

    >>> Z = np.array([[0.2, 0.8], [0.4, 0.6]])
    >>> evaluate(Z, centres=Z[:1], heights=np.array([0.1])).round(12).tolist()
    [0.1, 0.5]
    """
    u = np.ones(len(Z))
    if len(centres) == 0:
        return u
    step = max(1, cells // len(centres))
    for start in range(0, len(Z), step):
        reach = cdist(Z[start : start + step], centres, "cityblock")
        reach += heights
        u[start : start + step] = reach.min(axis=1)
    return np.clip(u, 0.0, 1.0)


def upper_bound(Z: FloatArray, r: FloatArray, neighbours: int = 16) -> float:
    """Bound S+(r) from above, up to rounding, by a greedy transport plan between near neighbours.

    Formula: S+(r) <= sum_i r_i^+ - sum_ij (1 - |z_i - z_j|_1)^+ pi_ij for every pi >= 0 with rows <= r^+ and
    columns <= r^-. Proof (weak duality), for u in [0,1], 1-Lipschitz: sum r_i u_i <= sum r_i^+ - sum_ij
    pi_ij (1 - u_i) - sum_ij pi_ij u_j, and 1 - u_i + u_j >= (1 - |z_i - z_j|_1)^+.
    Reference: spec 2.4. Cost: O(n k log n) for k neighbours; edges are filled from the shortest on. Equal
    rows are summed first, so the bound is exact when all rows coincide.

    >>> Z = np.array([[0.2, 0.8], [0.4, 0.6], [0.4, 0.6]])
    >>> round(upper_bound(Z, np.array([-0.5, 0.5, 0.25])), 12)  # 0.5 moves over 0.4, 0.25 stays
    0.45
    """
    Z, r = aggregate_rows(Z, r)
    sources, sinks = np.flatnonzero(r > 0), np.flatnonzero(r < 0)
    total = float(r[sources].sum())
    if len(sources) == 0 or len(sinks) == 0:
        return total
    # a heavy point needs more partners than its own nearest ones: ask from both sides
    i, j, d = _near_pairs(Z, sources, sinks, neighbours)
    jj, ii, dd = _near_pairs(Z, sinks, sources, neighbours)
    i, j, d = np.r_[i, ii], np.r_[j, jj], np.r_[d, dd]
    return total - _greedy_gain(i, j, d, np.abs(r))


def _near_pairs(
    Z: FloatArray, here: IntArray, there: IntArray, neighbours: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """List (from, to, distance) for each point of `here` and its nearest ones of `there` closer than 1."""
    nearest = range(1, min(neighbours, len(there)) + 1)
    distances, found = cKDTree(Z[there]).query(Z[here], k=nearest, p=1, distance_upper_bound=1.0)
    row, column = np.nonzero(np.isfinite(distances))
    return here[row], there[found[row, column]], distances[row, column]


def _greedy_gain(i: IntArray, j: IntArray, distances: FloatArray, mass: FloatArray) -> float:
    """Fill the pairs (i, j) from the shortest on, as far as both masses last; return sum (1 - d_ij) pi_ij."""
    left: list[float] = mass.tolist()
    gain = 0.0
    order = np.argsort(distances, kind="stable")
    for a, b, d in zip(i[order].tolist(), j[order].tolist(), distances[order].tolist(), strict=True):
        amount = min(left[a], left[b])
        if amount > 0.0:
            left[a] -= amount
            left[b] -= amount
            gain += (1.0 - d) * amount
    return gain
