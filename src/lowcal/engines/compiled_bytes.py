"""Sums over members that are given as bytes, compiled: one reading of the bytes, and nothing is packed first.

float32: numbers are rounded to it (by at most 2^-24 of each), and added in it over ROWS rows at a time, whose sums are
added in float64. The error of a sum is at most ROWS 2^-24 of the sum of |R| over the members. It is of the order of
1e-10 of the mean of |R| for a million rows of different numbers, whose roundings are as often up as down, and up to
2^-24 of it where all rows hold the same few numbers. Numbers that are all equal are summed exactly.

Needs numba, an optional extra. `kernels` imports this module when a problem is large enough, never before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowcal.engines.compiled import compile_kernel
from lowcal.engines.kernels import ByteArray
from lowcal.engines.kernels import add_members as add_few
from lowcal.engines.lanes import STRIP, STRIPS, sum_strips
from lowcal.simplex import FloatArray

#: Changes with lanes.py and with the numbers of simplex.py: numba keeps kernels by the text of the file they stand in.
MADE_WITH = "e2aadae9"
#: So many rows are added in float32.
ROWS = 128
#: So many columns are summed in one reading.
PANEL = STRIP * STRIPS
#: What is further from 1 than this is not used as the unit of a column: numbers up to 1e20 stay finite in float32.
FAR = 1e18


def add_members(C: ByteArray, R: FloatArray, out: FloatArray) -> None:
    """Add sum_i [C[i, j] is not 0] R[i, k] to out[j, k]; the error is stated above."""
    if len(C) and C.shape[1] >= STRIP:
        flat = np.ascontiguousarray(C).reshape(-1)
        if _add_members(flat, C.shape[1], np.ascontiguousarray(R), out):
            return
    add_few(C, R, out)


@compile_kernel
def _add_members(flat: ByteArray, m: int, R: FloatArray, out: FloatArray) -> bool:
    """Sum two numbers of each row and PANEL columns at a time, while the rows stay in cache; there are rows.

    False, and nothing is added, if a byte is neither 0 nor 1.
    """
    n, q = R.shape
    last, panels = min(m, PANEL) - STRIP, -(-m // PANEL)
    pairs, some, seen = np.zeros((ROWS, 2), np.float32), np.empty(2 * PANEL, np.float32), np.zeros(STRIP, np.uint8)
    sums = np.zeros((-(-q // 2), panels, 2 * PANEL))
    for s in range(0, n, ROWS):
        size = min(ROWS, n - s)
        for k in range(len(sums)):
            for h in range(2 * k, min(q, 2 * k + 2)):
                _lay(R[s : s + size, h], 1.0 / _unit(R[0, h]), pairs[:size, h - 2 * k])
            for panel in range(panels):
                start = min(PANEL * panel, m - STRIP - last)
                sum_strips(flat, s * m + start, m, last, size, pairs.reshape(-1), some, seen)
                _add_sums(some, sums[k, panel])
    if seen.max() > 1:
        return False
    for j in range(m):
        panel = j // PANEL
        place = j - min(PANEL * panel, m - STRIP - last)
        strip = place // STRIP
        lane = place - min(STRIP * strip, last)
        for h in range(q):
            out[j, h] += sums[h // 2, panel, STRIP * (2 * strip + h % 2) + lane] * _unit(R[0, h])
    return True


@compile_kernel
def _lay(numbers: FloatArray, scale: float, out: NDArray[np.float32]) -> None:
    """Fill out with numbers times scale."""
    for i in range(len(numbers)):
        out[i] = numbers[i] * scale


@compile_kernel
def _add_sums(some: NDArray[np.float32], sums: FloatArray) -> None:
    """Add what was summed in float32."""
    for k in range(len(sums)):
        sums[k] += some[k]


@compile_kernel
def _unit(x: float) -> float:
    """Return what a column is measured in: its first number, so that equal numbers are all 1."""
    return abs(x) if 1.0 / FAR < abs(x) < FAR else 1.0
