"""The best Lipschitz weight on a line: the exact kernel of the smooth notion (spec 2.3).

    V(r) = max sum_j r_j w_j   such that   0 <= w_j <= 1,   |w_{j+1} - w_j| <= lip (v_{j+1} - v_j)

over sorted distinct predictions v_1 < ... < v_m. Constraints between neighbours imply all others, and a
feasible vector extends to a weight function on [0,1] (McShane, then clip), so V is the supremum over the
whole class. Replacing w by 1 - w gives V(-r) = V(r) - sum r: the other sign costs nothing.

Both solvers run the dynamic program F_j(w) = r_j w + max_{|u-w| <= d_j} F_{j-1}(u), keep only the interval
where the concave F_j is largest, and read the weights backwards from these intervals. `stack` holds the
slope drops of F_j and is nearly linear on real data; `dual` holds those of its conjugate and is
O(m log m) always. The passes of this file are plain Python on lists of numbers; `compiled` compiles them as they
stand, for arrays.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

from lowcal.kernels.loops import compiled
from lowcal.kernels.simplex import FloatArray, IntArray

Method: TypeAlias = Literal["auto", "stack", "dual"]
#: A list or an array of floats.
Floats: TypeAlias = Any

#: The passes of this file: the definition.
PURE = sys.modules[__name__]
IS_COMPILED = False
#: Moves a point that the stacks may take before the dual is faster (`benchmarks/smooth.py`).
MOVES = 64
#: From this many points on, compiled passes are worth the import of numba.
COMPILE_FROM = 5_000


@dataclass(frozen=True, eq=False)
class SortedRows:
    """Rows sorted by prediction once, so that every group after them costs O(n) (spec 2.3).

    >>> rows = SortedRows.of(np.array([0.8, 0.2, 0.8]), np.array([1.0, -1.0, 2.0]))
    >>> [x.tolist() for x in rows.inside(np.array([1, 2]), np.array([1.0, 0.5]))]
    [[0.8], [2.0]]
    """

    order: IntArray
    v: FloatArray
    r: FloatArray

    @classmethod
    def of(cls, v: FloatArray, r: FloatArray) -> SortedRows:
        """Sort predictions v and weighted residuals r."""
        order = np.argsort(v, kind="stable")
        return cls(order, v[order], r[order])

    def inside(self, places: IntArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the line problem of the members at these places of the order: distinct v, and c r summed over ties.

        Rows without mass are left out: the gaps around them add up, so the optimum stays.
        """
        v, mass = self.v[places], self.r[places] * c
        moved = mass != 0.0
        return _sum_ties(v[moved], mass[moved])


def aggregate(v: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sort by prediction and sum the residual mass over ties.

    Formula: r'_k = sum of r_i over v_i = v'_k, with v'_1 < v'_2 < ... (spec 2.3). Cost: O(n log n).

    >>> v, r = aggregate(np.array([0.8, 0.2, 0.8]), np.array([1.0, -1.0, 2.0]))
    >>> v.tolist(), r.tolist()
    ([0.2, 0.8], [-1.0, 3.0])
    """
    order = np.argsort(v, kind="stable")
    return _sum_ties(v[order], r[order])


def _sum_ties(v: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sum the mass over equal neighbours."""
    first = np.ones(len(v), dtype=bool)
    np.not_equal(v[1:], v[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    return v[starts], np.add.reduceat(r, starts)


# --- the solver -------------------------------------------------------------------------------------------------


def passes_for(points: int) -> ModuleType:
    """Return the module of the compiled passes for a large problem where numba is installed, else this one.

    Both take the same steps in the same order. A small problem is solved before numba would be imported.

    >>> passes_for(100).IS_COMPILED
    False
    """
    return (compiled("compiled") or PURE) if points >= COMPILE_FROM else PURE


def hold(numbers: FloatArray | IntArray) -> Any:
    """Return numbers as the passes read them fastest."""
    return numbers.tolist()


def solve_line(
    v: FloatArray, r: FloatArray, lip: float = 1.0, *, method: Method = "auto", passes: ModuleType | None = None
) -> tuple[float, FloatArray]:
    """Maximise sum_j r_j w_j over weights in [0,1] that are lip-Lipschitz on the sorted distinct v.

    Formula: (V, w) of the module's first line; V is computed as sum_j r_j w_j from a feasible w, hence a
    lower bound on the supremum even under rounding. Reference: spec 2.3, algorithms A and B.
    Cost: O(m + moves) by stacks, O(m log m) by the dual. `auto` starts with the stacks and turns to the dual
    after MOVES m moves (labels against predictions take 1 to 100 m).
    `passes` are chosen by the size of the problem unless given.

    >>> v, r = np.array([0.2, 0.8]), np.array([-0.5, 0.5])
    >>> value, w = solve_line(v, r)
    >>> round(value, 12), (w[1] - w[0]).round(12).item()
    (0.3, 0.6)
    >>> solve_line(v, r, lip=2.0)[0]
    0.5
    """
    m = len(v)
    if m == 0:
        return 0.0, np.zeros(0)
    passes = passes_for(m) if passes is None else passes
    hold, gaps = passes.hold, passes.hold(_gaps(v, lip))
    low, high, w = (hold(np.zeros(m)) for _ in range(3))
    budget = {"auto": _budget(passes, m), "stack": np.inf, "dual": -1.0}[method]
    if budget < 0.0 or not passes.by_stacks(gaps, hold(r), budget, low, high, hold(np.zeros((4, m)))):
        # in a frame that moves along with F_j, slope 0 sits at minus the prefix sums of r
        keys, rank = np.unique(np.concatenate(([0.0], -np.cumsum(r))), return_inverse=True)
        passes.by_dual(gaps, hold(rank), hold(np.zeros(2 << (len(keys) - 1).bit_length())), low, high)
    passes.backtrack(gaps, low, high, w)
    weights = np.asarray(w)
    return float(np.sum(r * weights)), weights


def solve_lines(v: FloatArray, R: FloatArray, lip: float = 1.0, *, passes: ModuleType | None = None) -> FloatArray:
    """Return V for every row of R, on the same points v: many small problems at once, without their weights.

    `passes` are chosen by the size of all of them unless given.

    >>> solve_lines(np.array([0.2, 0.8]), np.array([[-0.5, 0.5], [1.0, -1.0], [0.0, 2.0]])).round(12).tolist()
    [0.3, 0.6, 2.0]
    """
    W, gaps, left = np.zeros(R.shape), _gaps(v, lip), np.arange(len(R))
    passes = passes_for(R.size) if passes is None else passes
    if passes.IS_COMPILED:
        left = np.flatnonzero(passes.weights_by_stacks(gaps, np.ascontiguousarray(R), _budget(passes, len(v)), W))
    for j in left:
        W[j] = solve_line(v, R[j], lip)[1]
    return np.asarray((R * W).sum(axis=1))


def _gaps(v: FloatArray, lip: float) -> FloatArray:
    """Return how far neighbours may differ; a gap of 1 already frees the neighbour, as weights lie in [0,1]."""
    return np.minimum(lip * np.diff(v), 1.0)


def _budget(passes: ModuleType, points: int) -> float:
    """Return the moves after which the stacks give up."""
    return float(passes.MOVES * points + 1024)


def backtrack(gaps: Floats, low: Floats, high: Floats, w: Floats) -> None:
    """Read the weights backwards: w_j goes from w_{j+1} towards [low_j, high_j], by at most the gap."""
    weight = low[-1]
    w[-1] = min(max(weight, 0.0), 1.0)  # against rounding; clipping keeps the slopes
    for j in range(len(gaps) - 1, -1, -1):
        if weight < low[j]:
            weight = min(low[j], weight + gaps[j])
        elif weight > high[j]:
            weight = max(high[j], weight - gaps[j])
        w[j] = min(max(weight, 0.0), 1.0)


# --- algorithm A: the slope drops of F_j, on two stacks -----------------------------------------------------


def by_stacks(gaps: Floats, r: Floats, budget: float, low: Floats, high: Floats, work: Any) -> bool:
    """Fill in the argmax interval of every F_j with two stacks; False once `budget` moves are spent.

    The slope of F_j drops by given masses at given positions. Those left of the argmax lie on one stack,
    those right of it on the other, nearest on top; the walls 0 and 1 have infinite mass. Widening by d moves
    the left ones by -d and the right ones by +d; adding r_j w carries mass r_j across the argmax. The right
    stack counts positions from 1 downwards, so that both obey the same code: position = key - shift.
    A step adds at most one item, so that there is room in `work`, four times as long as r.
    """
    left_keys, left_masses, right_keys, right_masses = work[0], work[1], work[2], work[3]
    n_left, n_right, moves = 0, 0, 0
    shift = 0.0
    for j in range(len(r)):
        if j > 0:
            shift += gaps[j - 1]
        mass = r[j]
        if mass > 0.0:
            n_right, n_left, more = pour(mass, shift, right_keys, right_masses, n_right, left_keys, left_masses, n_left)
            moves += more
        elif mass < 0.0:
            n_left, n_right, more = pour(
                -mass, shift, left_keys, left_masses, n_left, right_keys, right_masses, n_right
            )
            moves += more
        low[j] = max(left_keys[n_left - 1] - shift, 0.0) if n_left > 0 else 0.0
        high[j] = min(1.0 - (right_keys[n_right - 1] - shift), 1.0) if n_right > 0 else 1.0
        if moves > budget:
            return False
    return True


def pour(
    need: float,
    shift: float,
    from_keys: Floats,
    from_masses: Floats,
    n_from: int,
    to_keys: Floats,
    to_masses: Floats,
    n_to: int,
) -> tuple[int, int, int]:
    """Carry mass `need` from the top of one stack to the other; return their new sizes and the items moved whole."""
    moves = 0
    while n_from > 0 and from_keys[n_from - 1] > shift:
        # x = key - shift seen from one wall is 1 - x seen from the other
        to_keys[n_to] = 1.0 + 2.0 * shift - from_keys[n_from - 1]
        mass = from_masses[n_from - 1]
        if mass > need:
            from_masses[n_from - 1] = mass - need
            to_masses[n_to] = need
            return n_from, n_to + 1, moves
        to_masses[n_to] = mass
        n_from -= 1
        n_to += 1
        moves += 1
        need -= mass
        if need == 0.0:
            return n_from, n_to, moves
    # only the wall is left: what lies behind it never comes back
    to_keys[n_to] = 1.0 + shift
    to_masses[n_to] = need
    return 0, n_to + 1, moves


# --- algorithm B: the slope measure of the conjugate of F_j, on a tree --------------------------------------


def by_dual(gaps: Floats, zero_at: Any, tree: Floats, low: Floats, high: Floats) -> None:
    """Fill in the argmax interval of every F_j from its conjugate G_j(s) = max_w F_j(w) - s w.

    The slope of G_j climbs from -1 to 0: a measure of mass 1, and F_j is largest between the mass right of
    s = 0 and the mass at or right of it. Widening by d adds mass 2d at 0 and takes d off each end; adding
    r_j w shifts the measure by r_j. In a frame that moves along, 0 sits at the place zero_at_j before r_j and at
    zero_at_{j+1} after it: all places are known beforehand, and are the leaves of a sum tree.
    """
    leaf = len(tree) // 2
    put(tree, leaf + zero_at[0], 1.0)
    for j in range(len(low)):
        if j > 0 and gaps[j - 1] > 0.0:
            here = leaf + zero_at[j]
            put(tree, here, tree[here] + 2.0 * gaps[j - 1])
            trim(tree, 0, gaps[j - 1])
            # the excess is the gap again, but for rounding, which would add up over the steps
            trim(tree, 1, tree[1] - 1.0)
        node = leaf + zero_at[j + 1]
        low[j] = right_of(tree, node)
        high[j] = low[j] + tree[node]


def right_of(tree: Floats, node: int) -> float:
    """Return the mass strictly right of a place."""
    total = 0.0
    while node > 1:
        if not node & 1:
            total += tree[node + 1]
        node >>= 1
    return total


def trim(tree: Floats, side: int, need: float) -> None:
    """Take mass off one end: the outermost place with mass is found by descent, as empty nodes hold an exact 0."""
    while tree[1] > 0.0:
        node = 1
        while node < len(tree) // 2:
            node = 2 * node + side if tree[2 * node + side] > 0.0 else 2 * node + 1 - side
        if tree[node] > need:
            put(tree, node, tree[node] - need)
            return
        need -= tree[node]
        put(tree, node, 0.0)


def put(tree: Floats, node: int, mass: float) -> None:
    """Write a place; inner nodes are added up again, never decremented, so that rounding does not drift."""
    tree[node] = mass
    while node > 1:
        node >>= 1
        tree[node] = tree[2 * node] + tree[2 * node + 1]
