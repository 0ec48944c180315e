"""Sums over pairs of groups, compiled: the Gram matrices of `reference` for groups that a row is in or not."""

from __future__ import annotations

from lowcal.kernels.compiled import compile_kernel
from lowcal.kernels.lanes import adder
from lowcal.kernels.simplex import FloatArray, IntArray

#: Changes with lanes.py: numba keeps kernels by the text of the file they stand in.
MADE_WITH = "147e5c06"
#: Numbers of a row are added four at a time.
LANES = 4

add_four = adder(LANES)


@compile_kernel
def add_pairs(starts: IntArray, groups: IntArray, H: FloatArray, total: FloatArray) -> None:
    """Add H[i] to total[a, b] for any two groups a >= b of row i, which are groups[starts[i] : starts[i + 1]]."""
    m = total.shape[1]
    numbers, flat = H.reshape(-1), total.reshape(-1)
    for i in range(len(H)):
        for j in range(starts[i], starts[i + 1]):
            row = int(groups[j]) * m
            for k in range(starts[i], j + 1):
                add_four(flat, (row + int(groups[k])) * LANES, numbers, i * LANES)
