"""The passes of `line`, compiled: the same steps in the same order on arrays, tens of times faster (spec 2.3).

Needs numba, an optional extra. `line` imports this module when a problem is large enough, never before, and its pure
Python passes stay the definition. The kernels are compiled once for each machine and kept on disk (NUMBA_CACHE_DIR
says where). They let go of Python's lock, so several groups can be solved in threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numpy.typing import NDArray

from lowcal.kernels.interrupts import interrupts_wait
from lowcal.kernels.simplex import FloatArray, IntArray

F = TypeVar("F", bound=Callable[..., Any])


class KeptKernels(FunctionCache):
    """Compiled kernels on disk, which save time and nothing else: whatever is wrong with the files, kernels compile.

    Where a file can't be read or written, the index goes: it may name data files that hold something else.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel for these types; None if it is not there, or can't be read."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # what the bytes of a damaged file raise, there is no list of
            self._forget()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel, if there is room."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError:
            self._forget()

    def _forget(self) -> None:
        with suppress(OSError):
            Path(self._cache_file._index_path).unlink()


def compile_kernel(function: F, **options: Any) -> F:
    """Compile on first call, with numba's options, and keep the result on disk if there is a place to keep it.

    numba looks for a place at once, next to the file and then in the user's cache, and refuses when neither is
    writable: then the kernel lives as long as the process. An interrupt waits until a kernel is compiled.
    """
    kernel = numba.njit(nogil=True, **options)(function)
    if kernel is function:  # under a debugger's setting, NUMBA_DISABLE_JIT
        return function
    with suppress(RuntimeError):
        kernel._cache = KeptKernels(function)  # type: ignore[no-untyped-call]
    kernel.compile = interrupts_wait()(kernel.compile)
    return cast(F, kernel)


def forward_stacks(gaps: FloatArray, r: FloatArray, budget: float) -> tuple[FloatArray, FloatArray] | None:
    """Find the argmax interval of every F_j with two stacks, or None once `budget` moves are spent."""
    low, high = np.empty(len(r)), np.empty(len(r))
    return (low, high) if _stacks(gaps, r, budget, low, high, np.empty((4, len(r)))) else None


def forward_dual(gaps: FloatArray, zero_at: IntArray, places: int) -> tuple[FloatArray, FloatArray]:
    """Find the argmax interval of every F_j from the slope measure of its conjugate."""
    low, high = np.empty(len(gaps) + 1), np.empty(len(gaps) + 1)
    _dual(gaps, zero_at, np.zeros(2 << (places - 1).bit_length()), low, high)
    return low, high


def backtrack(gaps: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Read the weights backwards from the intervals."""
    w = np.empty(len(low))
    _backtrack(gaps, low, high, w)
    return w


@compile_kernel
def weights_by_stacks(gaps: FloatArray, R: FloatArray, budget: float, W: FloatArray) -> NDArray[np.bool_]:
    """Fill W with the best weights for every row of R, on the same points; mark the rows that the budget stopped."""
    m = R.shape[1]
    low, high, work = np.empty(m), np.empty(m), np.empty((4, m))
    stopped = np.zeros(len(R), np.bool_)
    for j in range(len(R)):
        if _stacks(gaps, R[j], budget, low, high, work):
            _backtrack(gaps, low, high, W[j])
        else:
            stopped[j] = True
    return stopped


@compile_kernel
def _backtrack(gaps: FloatArray, low: FloatArray, high: FloatArray, w: FloatArray) -> None:
    weight = low[-1]
    w[-1] = min(max(weight, 0.0), 1.0)
    for j in range(len(gaps) - 1, -1, -1):
        if weight < low[j]:
            weight = min(low[j], weight + gaps[j])
        elif weight > high[j]:
            weight = max(high[j], weight - gaps[j])
        w[j] = min(max(weight, 0.0), 1.0)


@compile_kernel
def _stacks(
    gaps: FloatArray, r: FloatArray, budget: float, low: FloatArray, high: FloatArray, work: FloatArray
) -> bool:
    """Fill the intervals; False once the budget is spent. A step adds at most one item, so m places are enough."""
    left_keys, left_masses, right_keys, right_masses = work[0], work[1], work[2], work[3]
    n_left, n_right, moves = 0, 0, 0
    shift = 0.0
    for j in range(len(r)):
        if j > 0:
            shift += gaps[j - 1]
        if r[j] > 0.0:
            n_right, n_left, more = _pour(
                r[j], shift, right_keys, right_masses, n_right, left_keys, left_masses, n_left
            )
            moves += more
        elif r[j] < 0.0:
            n_left, n_right, more = _pour(
                -r[j], shift, left_keys, left_masses, n_left, right_keys, right_masses, n_right
            )
            moves += more
        low[j] = max(left_keys[n_left - 1] - shift, 0.0) if n_left > 0 else 0.0
        high[j] = min(1.0 - (right_keys[n_right - 1] - shift), 1.0) if n_right > 0 else 1.0
        if moves > budget:
            return False
    return True


@compile_kernel
def _pour(
    need: float,
    shift: float,
    from_keys: FloatArray,
    from_masses: FloatArray,
    n_from: int,
    to_keys: FloatArray,
    to_masses: FloatArray,
    n_to: int,
) -> tuple[int, int, int]:
    """Carry mass `need` across; return the new sizes of the two stacks and the items moved whole."""
    moves = 0
    while n_from > 0 and from_keys[n_from - 1] > shift:
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
    to_keys[n_to] = 1.0 + shift
    to_masses[n_to] = need
    return 0, n_to + 1, moves


@compile_kernel
def _dual(gaps: FloatArray, zero_at: IntArray, tree: FloatArray, low: FloatArray, high: FloatArray) -> None:
    """Fill the intervals from a sum tree whose leaves are the places of the measure."""
    leaf = len(tree) // 2
    _set(tree, leaf + zero_at[0], 1.0)
    for j in range(len(low)):
        if j > 0 and gaps[j - 1] > 0.0:
            here = leaf + zero_at[j]
            _set(tree, here, tree[here] + 2.0 * gaps[j - 1])
            _trim(tree, 0, gaps[j - 1])
            # the excess is the gap again, but for rounding, which would add up over the steps
            _trim(tree, 1, tree[1] - 1.0)
        node = leaf + zero_at[j + 1]
        low[j] = _right_of(tree, node)
        high[j] = low[j] + tree[node]


@compile_kernel
def _right_of(tree: FloatArray, node: int) -> float:
    total = 0.0
    while node > 1:
        if not node & 1:
            total += tree[node + 1]
        node >>= 1
    return total


@compile_kernel
def _trim(tree: FloatArray, side: int, need: float) -> None:
    """Take mass off one end: the outermost place with mass is found by descent, as empty nodes hold an exact 0."""
    while tree[1] > 0.0:
        node = 1
        while node < len(tree) // 2:
            node = 2 * node + side if tree[2 * node + side] > 0.0 else 2 * node + 1 - side
        if tree[node] > need:
            _set(tree, node, tree[node] - need)
            return
        need -= tree[node]
        _set(tree, node, 0.0)


@compile_kernel
def _set(tree: FloatArray, node: int, mass: float) -> None:
    """Write a place; inner nodes are added up again, never decremented, so that rounding does not drift."""
    tree[node] = mass
    while node > 1:
        node >>= 1
        tree[node] = tree[2 * node] + tree[2 * node + 1]
