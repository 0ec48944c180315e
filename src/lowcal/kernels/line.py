"""The best Lipschitz weight on a line: the exact kernel of the smooth notion (spec 2.3).

    V(r) = max sum_j r_j w_j   such that   0 <= w_j <= 1,   |w_{j+1} - w_j| <= lip (v_{j+1} - v_j)

over sorted distinct predictions v_1 < ... < v_m. Constraints between neighbours imply all others, and a
feasible vector extends to a weight function on [0,1] (McShane, then clip), so V is the supremum over the
whole class. Replacing w by 1 - w gives V(-r) = V(r) - sum r: the other sign costs nothing.

Both solvers run the dynamic program F_j(w) = r_j w + max_{|u-w| <= d_j} F_{j-1}(u), keep only the interval
where the concave F_j is largest, and read the weights backwards from these intervals. `stack` holds the
slope drops of F_j and is nearly linear on real data; `dual` holds those of its conjugate and is
O(m log m) always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.kernels.switch import compiled

Intervals: TypeAlias = tuple[FloatArray, FloatArray]
Method: TypeAlias = Literal["auto", "stack", "dual"]

METHODS = ("auto", "stack", "dual")

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


# --- the solver, in pure Python or compiled -----------------------------------------------------------------


class Passes(NamedTuple):
    """The three passes of a solver, and how many moves a point the stacks may take before the dual is faster."""

    forward_stacks: Callable[[FloatArray, FloatArray, float], Intervals | None]
    forward_dual: Callable[[FloatArray, IntArray, int], Intervals]
    backtrack: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    moves: int
    compiled: bool = False

    def budget(self, points: int) -> float:
        """Return the moves after which the stacks give up."""
        return float(self.moves * points + 1024)


def passes_for(points: int) -> Passes:
    """Return the compiled passes for a large problem where numba is installed, else those of this file.

    Both take the same steps in the same order. A small problem is solved before numba would be imported.

    >>> passes_for(100).compiled
    False
    """
    return (_compiled() or PURE) if points >= COMPILE_FROM else PURE


def _compiled() -> Passes | None:
    """Return the compiled passes; None without numba."""
    loops = compiled("compiled")
    if loops is None:
        return None
    return Passes(loops.forward_stacks, loops.forward_dual, loops.backtrack, moves=256, compiled=True)


def solve_line(
    v: FloatArray, r: FloatArray, lip: float = 1.0, *, method: Method = "auto", passes: Passes | None = None
) -> tuple[float, FloatArray]:
    """Maximise sum_j r_j w_j over weights in [0,1] that are lip-Lipschitz on the sorted distinct v.

    Formula: (V, w) of the module's first line; V is computed as sum_j r_j w_j from a feasible w, hence a
    lower bound on the supremum even under rounding. Reference: spec 2.3, algorithms A and B.
    Cost: O(m + moves) by stacks, O(m log m) by the dual. `auto` starts with the stacks and turns to the dual
    after 64 m moves, or 256 m compiled, where a move is cheaper (labels against predictions take 1 to 100 m).
    `passes` are chosen by the size of the problem unless given.

    >>> v, r = np.array([0.2, 0.8]), np.array([-0.5, 0.5])
    >>> value, w = solve_line(v, r)
    >>> round(value, 12), (w[1] - w[0]).round(12).item()
    (0.3, 0.6)
    >>> solve_line(v, r, lip=2.0)[0]
    0.5
    """
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; use one of {', '.join(METHODS)}.")
    if len(v) == 0:
        return 0.0, np.zeros(0)
    passes = passes_for(len(v)) if passes is None else passes
    gaps, r = _gaps(v, lip), np.ascontiguousarray(r)
    w = passes.backtrack(gaps, *_forward(passes, gaps, r, method))
    return float(np.sum(r * w)), w


def solve_lines(v: FloatArray, R: FloatArray, lip: float = 1.0, *, passes: Passes | None = None) -> FloatArray:
    """Return V for every row of R, on the same points v: many small problems at once, without their weights.

    `passes` are chosen by the size of all of them unless given.

    >>> solve_lines(np.array([0.2, 0.8]), np.array([[-0.5, 0.5], [1.0, -1.0], [0.0, 2.0]])).round(12).tolist()
    [0.3, 0.6, 2.0]
    """
    W, gaps, R = np.zeros(R.shape), _gaps(v, lip), np.ascontiguousarray(R)
    left = np.arange(len(R))
    passes = passes_for(R.size) if passes is None else passes
    loops = compiled("compiled") if passes.compiled else None
    if loops is not None:
        left = np.flatnonzero(loops.weights_by_stacks(gaps, R, passes.budget(len(v)), W))
    for j in left:
        W[j] = solve_line(v, R[j], lip)[1]
    return np.asarray((R * W).sum(axis=1))


def _gaps(v: FloatArray, lip: float) -> FloatArray:
    """Return how far neighbours may differ; a gap of 1 already frees the neighbour, as weights lie in [0,1]."""
    return np.minimum(lip * np.diff(v), 1.0)


def _forward(passes: Passes, gaps: FloatArray, r: FloatArray, method: Method) -> Intervals:
    """Choose the pass: stacks within their budget of moves, the dual beyond it."""
    intervals = None
    if method != "dual":
        intervals = passes.forward_stacks(gaps, r, passes.budget(len(r)) if method == "auto" else np.inf)
    if intervals is not None:
        return intervals
    # in a frame that moves along with F_j, slope 0 sits at minus the prefix sums of r
    keys, rank = np.unique(np.concatenate(([0.0], -np.cumsum(r))), return_inverse=True)
    return passes.forward_dual(gaps, rank, len(keys))


def _backtrack(gaps: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Read the weights backwards: w_j goes from w_{j+1} towards [low_j, high_j], by at most the gap."""
    lows, highs = low.tolist(), high.tolist()
    weight = lows[-1]
    w = [weight]
    for gap, a, b in zip(gaps[::-1].tolist(), lows[-2::-1], highs[-2::-1], strict=True):
        if weight < a:
            weight = min(a, weight + gap)
        elif weight > b:
            weight = max(b, weight - gap)
        w.append(weight)
    return np.asarray(np.clip(w[::-1], 0.0, 1.0))  # against rounding; clipping keeps the slopes


# --- algorithm A: the slope drops of F_j, on two stacks -----------------------------------------------------


def _forward_stacks(gaps: FloatArray, r: FloatArray, budget: float) -> Intervals | None:
    """Find the argmax interval of every F_j with two stacks, or None once `budget` moves are spent.

    The slope of F_j drops by given masses at given positions. Those left of the argmax lie on one stack,
    those right of it on the other, nearest on top; the walls 0 and 1 have infinite mass. Widening by d moves
    the left ones by -d and the right ones by +d; adding r_j w carries mass r_j across the argmax. The right
    stack counts positions from 1 downwards, so that both obey the same code: position = key - shift.
    """
    left_keys: list[float] = []
    left_masses: list[float] = []
    right_keys: list[float] = []
    right_masses: list[float] = []
    low, high = [], []
    shift, moves = 0.0, 0
    for gap, residual in zip([0.0, *gaps.tolist()], r.tolist(), strict=True):
        shift += gap
        if residual > 0.0:
            moves += _pour(residual, shift, right_keys, right_masses, left_keys, left_masses)
        elif residual < 0.0:
            moves += _pour(-residual, shift, left_keys, left_masses, right_keys, right_masses)
        low.append(left_keys[-1] - shift if left_keys and left_keys[-1] > shift else 0.0)
        high.append(1.0 - (right_keys[-1] - shift) if right_keys and right_keys[-1] > shift else 1.0)
        if moves > budget:
            return None
    return np.array(low), np.array(high)


def _pour(
    need: float,
    shift: float,
    from_keys: list[float],
    from_masses: list[float],
    to_keys: list[float],
    to_masses: list[float],
) -> int:
    """Carry mass `need` from the top of one stack to the other and count the items moved whole."""
    moves = 0
    while from_keys and from_keys[-1] > shift:
        # x = key - shift seen from one wall is 1 - x seen from the other
        to_keys.append(1.0 + 2.0 * shift - from_keys[-1])
        mass = from_masses[-1]
        if mass > need:
            from_masses[-1] = mass - need
            to_masses.append(need)
            return moves
        from_keys.pop()
        to_masses.append(from_masses.pop())
        moves += 1
        need -= mass
        if need == 0.0:
            return moves
    # only the wall is left: what lies behind it never comes back
    from_keys.clear()
    from_masses.clear()
    to_keys.append(1.0 + shift)
    to_masses.append(need)
    return moves


# --- algorithm B: the slope measure of the conjugate of F_j, on a tree --------------------------------------


def _forward_dual(gaps: FloatArray, rank: IntArray, places: int) -> Intervals:
    """Find the argmax interval of every F_j from its conjugate G_j(s) = max_w F_j(w) - s w.

    The slope of G_j climbs from -1 to 0: a measure of mass 1, and F_j is largest between the mass right of
    s = 0 and the mass at or right of it. Widening by d adds mass 2d at 0 and takes d off each end; adding
    r_j w shifts the measure by r_j. In a frame that moves along, 0 sits at the place rank_j before r_j and at
    rank_{j+1} after it: all places are known beforehand.
    """
    zero_at: list[int] = rank.tolist()
    measure = _Measure(places)
    measure.add(zero_at[0], 1.0)
    low, high = [], []
    for gap, before, after in zip([0.0, *gaps.tolist()], zero_at[:-1], zero_at[1:], strict=True):
        if gap > 0.0:
            measure.add(before, 2.0 * gap)
            measure.trim(gap)
        right = measure.right_of(after)
        low.append(right)
        high.append(right + measure.at(after))
    return np.array(low), np.array(high)


class _Measure:
    """Masses at the places 0..size-1: add anywhere, trim both ends, sum a tail; O(log size) amortised.

    A sum tree whose inner nodes are recomputed, never decremented, so that rounding does not drift; one heap
    for each end holds the places filled so far, and pops each of them once.
    """

    def __init__(self, size: int) -> None:
        self._leaf = 1 << (size - 1).bit_length()
        self._tree = [0.0] * (2 * self._leaf)
        self._first: list[int] = []
        self._last: list[int] = []

    def at(self, place: int) -> float:
        """Return the mass at a place."""
        return self._tree[self._leaf + place]

    def right_of(self, place: int) -> float:
        """Return the mass strictly right of a place."""
        tree, node, total = self._tree, self._leaf + place, 0.0
        while node > 1:
            if not node & 1:
                total += tree[node + 1]
            node >>= 1
        return total

    def add(self, place: int, mass: float) -> None:
        """Add mass at a place."""
        here = self.at(place)
        if here == 0.0:
            heappush(self._first, place)
            heappush(self._last, -place)
        self._set(place, here + mass)

    def trim(self, mass: float) -> None:
        """Take the mass off the left end, and off the right end what exceeds a total of 1."""
        self._trim_end(self._first, 1, mass)
        # the excess is `mass` again, but for rounding, which would add up over the steps
        self._trim_end(self._last, -1, self._tree[1] - 1.0)

    def _trim_end(self, ends: list[int], sign: int, need: float) -> None:
        while ends:
            place = sign * ends[0]
            here = self.at(place)
            if here > need:
                self._set(place, here - need)
                return
            heappop(ends)
            if here > 0.0:
                self._set(place, 0.0)
                need -= here

    def _set(self, place: int, mass: float) -> None:
        tree, node = self._tree, self._leaf + place
        tree[node] = mass
        while node > 1:
            node >>= 1
            tree[node] = tree[2 * node] + tree[2 * node + 1]


#: The passes of this file: the definition that the compiled ones must agree with.
PURE = Passes(_forward_stacks, _forward_dual, _backtrack, moves=64)
