"""The best Lipschitz weight on the simplex, for one label: the exact kernel of the multi-class smooth notion.

    S+(r) = sup { sum_i r_i u(z_i) : u takes values in [0,1] and is 1-Lipschitz in l1 }            (spec 2.4)

By duality of linear programs this is a partial transport of the positive residuals to the negative ones:

    S+(r) = sum_i r_i^+ - max { sum_ij (1 - |z_i - z_j|_1)^+ pi_ij : rows <= r_i^+, columns <= r_j^- }

Only pairs closer than 1 can gain. The prices of the negative points are a weight function: `exact` returns it
as a witness. A plan that is not the best still proves an upper bound: `greedy` fills near pairs, `near` solves for
them, and what a plan leaves behind may be shipped between the centres of `Clusters`. Of rows that can't be held, the
centres of a `Partition` take the place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from lowcal.kernels.products import dot, product
from lowcal.kernels.simplex import SMALLEST, FloatArray, IntArray

#: Pairs of a positive and a negative point, with their l1 distances below 1.
Pairs: TypeAlias = tuple[IntArray, IntArray, FloatArray]

#: A lower bound on S+, and the points and prices of the weight that attains it.
Attained: TypeAlias = tuple[float, FloatArray, FloatArray]

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


@dataclass(frozen=True, eq=False)
class Shipment:
    """A feasible transport plan: its cost sum_ij |z_i - z_j|_1 pi_ij, and the residuals that it leaves behind."""

    cost: float
    rest: FloatArray

    @classmethod
    def of(cls, pairs: Pairs, flow: FloatArray, r: FloatArray) -> Shipment:
        """Ship pi_ij = flow along the pairs."""
        i, j, distances = pairs
        load = np.bincount(np.r_[i, j], np.r_[flow, flow], len(r))
        return cls(dot(distances, flow), np.copysign(np.maximum(np.abs(r) - load, 0.0), r))

    def upper(self, clusters: Clusters | None = None) -> float:
        """Return a bound on S+(r): the cost, and all positive mass left behind or what `clusters` prove about it.

        S+ is subadditive, and at most the cost for what is shipped.
        """
        behind = float(self.rest[self.rest > 0].sum())
        return self.cost + (behind if clusters is None else min(behind, clusters.upper(self.rest)))


def exact(Z: FloatArray, r: FloatArray) -> Attained:
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
    return _best(Z, r, _all_pairs(Z, r))[0]


def near(Z: FloatArray, r: FloatArray, neighbours: int = 16) -> tuple[Attained, Shipment]:
    """Bracket S+(r) by the best transport plan between near neighbours: a witness from below, a plan from above.

    A plan on some of the pairs is a plan; its prices are a weight function once they are extended (see `evaluate`).
    The two meet when no other pair is needed. Equal rows must have been summed. Reference: spec 2.4.
    Cost: a linear program with at most 2 k n variables for k neighbours; meant for a few thousand rows.

    >>> Z = np.array([[0.2, 0.8], [0.4, 0.6], [0.5, 0.5]])
    >>> (lower, _, _), plan = near(Z, np.array([-0.5, 0.5, 0.25]))
    >>> round(lower, 12), round(plan.upper(), 12)
    (0.45, 0.45)
    """
    return _best(Z, r, _near_both(Z, r, neighbours))


def _best(Z: FloatArray, r: FloatArray, pairs: Pairs) -> tuple[Attained, Shipment]:
    """Solve the transport over these pairs: what the extended prices attain, and the plan."""
    flow, prices = _plan(pairs, np.abs(r))
    centres, heights = Z[r < 0], np.clip(prices[r < 0], 0.0, 1.0)
    value = float(np.sum(r * evaluate(Z, centres, heights)))
    return (value, centres, heights), Shipment.of(pairs, flow, r)


def _plan(pairs: Pairs, capacity: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Maximise sum (1 - d_ij) pi_ij such that no point carries more than its capacity; return pi and the prices."""
    i, j, distances = pairs
    if len(i) == 0:
        return np.zeros(0), np.zeros(len(capacity))
    gains, edges = 1.0 - distances, np.arange(len(i))
    incidence = sp.csr_array((np.ones(2 * len(i)), (np.r_[i, j], np.r_[edges, edges])), shape=(len(capacity), len(i)))
    # scale both to a maximum of 1, so that absolute tolerances become relative ones
    room = capacity / capacity.max()
    plan = linprog(-gains / gains.max(), A_ub=incidence, b_ub=room, method="highs", options=TIGHT)
    if plan.status != 0:
        raise RuntimeError(f"The transport of {len(i)} pairs was not solved; HiGHS says: {plan.message}")
    # the solver may overload a point by its tolerance: only a plan that is scaled back proves a bound
    flow = np.maximum(plan.x, 0.0)
    share = np.minimum(1.0, room / np.maximum(product(incidence, flow), SMALLEST))
    return capacity.max() * flow * np.minimum(share[i], share[j]), -gains.max() * plan.ineqlin.marginals


def _all_pairs(Z: FloatArray, r: FloatArray) -> Pairs:
    """List every positive and negative point closer than 1: only these can gain."""
    sources, sinks = np.flatnonzero(r > 0), np.flatnonzero(r < 0)
    distances = cdist(Z[sources], Z[sinks], "cityblock")
    i, j = np.nonzero(distances < 1.0)
    return sources[i], sinks[j], distances[i, j]


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


def greedy(Z: FloatArray, r: FloatArray, neighbours: int = 16) -> Shipment:
    """Fill the pairs of near neighbours from the shortest on, as far as both masses last; equal rows come summed.

    S+(r) <= sum_i r_i^+ - sum_ij (1 - |z_i - z_j|_1)^+ pi_ij for every pi >= 0 with rows <= r^+ and columns <= r^-.
    Proof (weak duality), for u in [0,1], 1-Lipschitz: sum r_i u_i <= sum r_i^+ - sum_ij pi_ij (1 - u_i) - sum_ij
    pi_ij u_j, and 1 - u_i + u_j >= (1 - |z_i - z_j|_1)^+. Cost: O(n k log n) for k neighbours, in few dimensions.

    >>> Z = np.array([[0.2, 0.8], [0.4, 0.6]])
    >>> round(greedy(Z, np.array([-0.5, 0.75])).upper(), 12)  # 0.5 moves over 0.4, 0.25 stays
    0.45
    """
    pairs = i, j, distances = _near_both(Z, r, neighbours)
    left: list[float] = np.abs(r).tolist()
    flow = [0.0] * len(i)
    order = np.argsort(distances, kind="stable")
    for e, a, b in zip(order.tolist(), i[order].tolist(), j[order].tolist(), strict=True):
        amount = min(left[a], left[b])
        if amount > 0.0:
            left[a] -= amount
            left[b] -= amount
            flow[e] = amount
    return Shipment.of(pairs, np.array(flow), r)


def _near_both(Z: FloatArray, r: FloatArray, neighbours: int) -> Pairs:
    """List each point's nearest ones of the other sign; a heavy point needs more partners than its own nearest."""
    sources, sinks = np.flatnonzero(r > 0), np.flatnonzero(r < 0)
    if len(sources) == 0 or len(sinks) == 0:
        return sources[:0], sinks[:0], np.zeros(0)
    i, j, d = _near_pairs(Z, sources, sinks, neighbours)
    jj, ii, dd = _near_pairs(Z, sinks, sources, neighbours)
    i, j, d = np.r_[i, ii], np.r_[j, jj], np.r_[d, dd]
    _, first = np.unique(i * len(r) + j, return_index=True)  # a pair may be near from both sides
    return i[first], j[first], d[first]


def _near_pairs(Z: FloatArray, here: IntArray, there: IntArray, neighbours: int) -> Pairs:
    """List (from, to, distance) for each point of `here` and its nearest ones of `there` closer than 1."""
    nearest = range(1, min(neighbours, len(there)) + 1)
    distances, found = cKDTree(Z[there]).query(Z[here], k=nearest, p=1, distance_upper_bound=1.0)
    row, column = np.nonzero(np.isfinite(distances))
    return here[row], there[found[row, column]], distances[row, column]


@dataclass(frozen=True, eq=False)
class Clusters:
    """Rows gathered at few centres: row i belongs to centre which_i, at distance distance_i.

    Moving a row to its centre changes u by at most min(t_i, 1), so |S+(r) - V_K| <= E = sum_i |r_i| min(t_i, 1) for the
    supremum V_K of the summed residuals at the centres (spec 2.4).
    """

    centres: FloatArray
    which: IntArray
    distance: FloatArray

    @classmethod
    def of(cls, Z: FloatArray, limit: int) -> Clusters:
        """Take the row farthest from all centres as the next centre, from the first row on.

        No row is farther from its centre than twice the best `limit` centres would allow. Cost: O(n k l).

        >>> found = Clusters.of(np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0]]), limit=2)
        >>> found.centres.tolist(), found.which.tolist(), found.distance.round(12).tolist()
        ([[0.0, 1.0], [1.0, 0.0]], [0, 0, 1], [0.0, 0.2, 0.0])
        """
        chosen: list[int] = []
        which, distance = np.zeros(len(Z), dtype=np.intp), np.full(len(Z), np.inf)
        while len(chosen) < limit and distance.max(initial=0.0) > 0.0:
            chosen.append(int(distance.argmax()))
            reach = np.abs(Z - Z[chosen[-1]]).sum(axis=1)
            closer = reach < distance
            which[closer], distance[closer] = len(chosen) - 1, reach[closer]
        return cls(Z[chosen], which, distance)

    def upper(self, r: FloatArray) -> float:
        """Return V_K + E, an upper bound on S+(r)."""
        return self._best(r)[1].upper() + dot(np.abs(r), np.minimum(self.distance, 1.0))

    def lower(self, Z: FloatArray, r: FloatArray) -> Attained:
        """Return what the best weight at the centres attains, extended to the rows Z."""
        _, centres, heights = self._best(r)[0]
        return float(np.sum(r * evaluate(Z, centres, heights))), centres, heights

    def _best(self, r: FloatArray) -> tuple[Attained, Shipment]:
        """Return V_K from below and above."""
        summed = np.asarray(np.bincount(self.which, r, len(self.centres)), dtype=np.float64)
        return _best(self.centres, summed, _all_pairs(self.centres, summed))


# --- a partition of many predictions: the centres of its cells stand for all rows ----------------------------------


@dataclass(frozen=True, eq=False)
class Partition:
    """Few cells of the space of predictions, small where rows are many; a grid would spend most where no row is.

    A tree of cuts, grown on a sample: a cell is cut at the mean of the coordinate in which its rows differ most, and
    those whose rows lie farthest from their mean, in sum, are cut first. From node k, rows with f[feature_k] >= cut_k
    go to left_k + 1, others to left_k. A leaf leads to itself; `cell` numbers the leaves, and `centres` are the means
    of their rows in the sample.
    """

    feature: IntArray
    cut: FloatArray
    left: IntArray
    cell: IntArray
    centres: FloatArray
    depth: int

    @classmethod
    def of(cls, sample: FloatArray, limit: int) -> Partition:
        """Grow at most `limit` cells; where the sample has no more distinct rows, each has its own.

        Cost: O(n d log(limit)) for n rows of d coordinates.

        >>> found = Partition.of(np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]), limit=3)
        >>> found.centres.tolist(), found(np.array([[0.6, 0.4], [0.9, 0.1]])).tolist()
        ([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], [2, 1])
        """
        growth = _Growth(sample, min(limit, len(sample)))
        depth = 0
        while growth.cut_worst():
            depth += 1
        is_leaf = growth.left == np.arange(len(growth.left))
        cell = np.cumsum(is_leaf) - 1
        centres = _means(sample, cell[growth.node], int(cell[-1]) + 1)
        return cls(growth.feature, np.where(is_leaf, np.inf, growth.cut), growth.left, cell, centres, depth)

    def __call__(self, f: FloatArray) -> IntArray:
        """Return the cell of every row."""
        node, row = np.zeros(len(f), dtype=np.intp), np.arange(len(f))
        for _ in range(self.depth):
            node = self.left[node] + (f[row, self.feature[node]] >= self.cut[node])
        return self.cell[node]


class _Growth:
    """A partition under construction: the node of every row, and for every node the cut that is next, and its worth."""

    def __init__(self, sample: FloatArray, limit: int) -> None:
        self.sample, self.limit, self.node = sample, limit, np.zeros(len(sample), dtype=np.intp)
        self.left, self.feature = np.arange(1), np.zeros(1, dtype=np.intp)
        self.cut, self.cost = np.zeros(1), np.zeros(1)
        self._look(np.arange(len(sample)))

    def cut_worst(self) -> bool:
        """Cut the cells with the largest costs in two; return whether there are any."""
        made = len(self.left)
        room = self.limit - (made + 1) // 2
        # half of what is left, or an eighth of all: the last cuts go where they help most
        k = min(room, max(room // 2, self.limit // 8, 1))
        worst = np.argsort(-self.cost, kind="stable")[:k]
        worst = worst[self.cost[worst] > 0.0]
        self.left[worst], self.cost[worst] = made + 2 * np.arange(len(worst)), 0.0
        more = np.zeros(2 * len(worst))
        self.left = np.append(self.left, made + np.arange(len(more)))
        self.feature = np.append(self.feature, more.astype(np.intp))
        self.cut, self.cost = np.append(self.cut, more), np.append(self.cost, more)
        rows = np.flatnonzero(self.left[self.node] != self.node)
        here = self.node[rows]
        self.node[rows] = self.left[here] + (self.sample[rows, self.feature[here]] >= self.cut[here])
        self._look(rows)
        return len(worst) > 0

    def _look(self, rows: IntArray) -> None:
        """Find the next cuts of the cells that hold these rows, and what their rows are away from the mean, in sum."""
        rows = rows[np.argsort(self.node[rows], kind="stable")]
        nodes, start, own = np.unique(self.node[rows], return_index=True, return_inverse=True)
        if len(nodes) == 0:
            return
        x, k = self.sample[rows], len(nodes)
        mean = _means(x, own, k)
        spread = np.column_stack([np.bincount(own, column, k) for column in np.abs(x - mean[own]).T])
        feature = spread.argmax(axis=1)
        column, middle = x[np.arange(len(x)), feature[own]], mean[np.arange(k), feature]
        low, high = np.minimum.reduceat(column, start), np.maximum.reduceat(column, start)
        self.feature[nodes], self.cut[nodes] = feature, np.clip(middle, np.nextafter(low, np.inf), high)
        self.cost[nodes] = np.where(high > low, spread.sum(axis=1), 0.0)


def _means(x: FloatArray, own: IntArray, k: int) -> FloatArray:
    """Return the means of k groups of rows."""
    return np.column_stack([np.bincount(own, column, k) for column in x.T]) / np.bincount(own, minlength=k)[:, None]
