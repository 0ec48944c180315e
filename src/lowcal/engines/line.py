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

from heapq import heappop, heappush
from typing import Literal, TypeAlias

import numpy as np

from lowcal.errors import InvalidInput, suggest
from lowcal.simplex import FloatArray

Intervals: TypeAlias = tuple[list[float], list[float]]
Method: TypeAlias = Literal["auto", "stack", "dual"]

METHODS = ("auto", "stack", "dual")


def aggregate(v: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sort by prediction and sum the residual mass over ties.

    Formula: r'_k = sum of r_i over v_i = v'_k, with v'_1 < v'_2 < ... (spec 2.3). Cost: O(n log n).

    >>> v, r = aggregate(np.array([0.8, 0.2, 0.8]), np.array([1.0, -1.0, 2.0]))
    >>> v.tolist(), r.tolist()
    ([0.2, 0.8], [-1.0, 3.0])
    """
    order = np.argsort(v, kind="stable")
    v, r = v[order], r[order]
    first = np.ones(len(v), dtype=bool)
    np.not_equal(v[1:], v[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    return v[starts], np.add.reduceat(r, starts)


def solve_line(v: FloatArray, r: FloatArray, lip: float = 1.0, *, method: Method = "auto") -> tuple[float, FloatArray]:
    """Maximise sum_j r_j w_j over weights in [0,1] that are lip-Lipschitz on the sorted distinct v.

    Formula: (V, w) of the module's first line; V is computed as sum_j r_j w_j from a feasible w, hence a
    lower bound on the supremum even under rounding. Reference: spec 2.3, algorithms A and B.
    Cost: O(m + moves) by stacks, O(m log m) by the dual. `auto` starts with the stacks and turns to the dual
    after 64 m + 1024 moves (random residuals take 1 to 3 m, heavy tails up to 8 m).

    >>> v, r = np.array([0.2, 0.8]), np.array([-0.5, 0.5])
    >>> value, w = solve_line(v, r)
    >>> round(value, 12), (w[1] - w[0]).round(12).item()
    (0.3, 0.6)
    >>> solve_line(v, r, lip=2.0)[0]
    0.5
    """
    if method not in METHODS:
        raise InvalidInput(f"method is {method!r}; use one of {', '.join(METHODS)}.{suggest(method, METHODS)}")
    if len(v) == 0:
        return 0.0, np.zeros(0)
    # a gap of 1 already frees the neighbour: weights lie in [0,1]
    gaps: list[float] = np.minimum(lip * np.diff(v), 1.0).tolist()
    w = _backtrack(gaps, *_forward(gaps, r, method))
    return float(np.sum(r * w)), w


def _forward(gaps: list[float], r: FloatArray, method: Method) -> Intervals:
    """Choose the pass: stacks within their budget of moves, the dual beyond it."""
    intervals = None
    if method != "dual":
        budget = 64 * len(r) + 1024 if method == "auto" else np.inf
        intervals = _forward_stacks(gaps, r.tolist(), budget)
    return _forward_dual(gaps, r) if intervals is None else intervals


def _backtrack(gaps: list[float], low: list[float], high: list[float]) -> FloatArray:
    """Read the weights backwards: w_j goes from w_{j+1} towards [low_j, high_j], by at most the gap."""
    weight = low[-1]
    w = [weight]
    for gap, a, b in zip(reversed(gaps), low[-2::-1], high[-2::-1], strict=True):
        if weight < a:
            weight = min(a, weight + gap)
        elif weight > b:
            weight = max(b, weight - gap)
        w.append(weight)
    return np.clip(w[::-1], 0.0, 1.0)  # against rounding; clipping keeps the slopes


# --- algorithm A: the slope drops of F_j, on two stacks -----------------------------------------------------


def _forward_stacks(gaps: list[float], r: list[float], budget: float) -> Intervals | None:
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
    for gap, residual in zip([0.0, *gaps], r, strict=True):
        shift += gap
        if residual > 0.0:
            moves += _pour(residual, shift, right_keys, right_masses, left_keys, left_masses)
        elif residual < 0.0:
            moves += _pour(-residual, shift, left_keys, left_masses, right_keys, right_masses)
        low.append(left_keys[-1] - shift if left_keys and left_keys[-1] > shift else 0.0)
        high.append(1.0 - (right_keys[-1] - shift) if right_keys and right_keys[-1] > shift else 1.0)
        if moves > budget:
            return None
    return low, high


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


def _forward_dual(gaps: list[float], r: FloatArray) -> Intervals:
    """Find the argmax interval of every F_j from its conjugate G_j(s) = max_w F_j(w) - s w.

    The slope of G_j climbs from -1 to 0: a measure of mass 1, and F_j is largest between the mass right of
    s = 0 and the mass at or right of it. Widening by d adds mass 2d at 0 and takes d off each end; adding
    r_j w shifts the measure by r_j. In a frame that moves along, 0 sits at minus the prefix sums of r, so
    all places are known beforehand.
    """
    zeros = np.concatenate(([0.0], -np.cumsum(r)))
    keys, rank = np.unique(zeros, return_inverse=True)
    zero_at: list[int] = rank.tolist()
    measure = _Measure(len(keys))
    measure.add(zero_at[0], 1.0)
    low, high = [], []
    for gap, before, after in zip([0.0, *gaps], zero_at[:-1], zero_at[1:], strict=True):
        if gap > 0.0:
            measure.add(before, 2.0 * gap)
            measure.trim(gap)
        right = measure.right_of(after)
        low.append(right)
        high.append(right + measure.at(after))
    return low, high


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
