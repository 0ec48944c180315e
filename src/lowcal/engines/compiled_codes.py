"""The kernels on code columns, compiled: the same loops as in `kernels`, several times faster.

Needs numba, an optional extra. `kernels` imports this module when a problem is large enough, never before. A moment is
added at a time, so that its table stays in the smallest cache: two passes over a piece of rows in cache cost less than
one pass over a table that is not. Codes are read as they are stored, a byte or two each.
"""

from __future__ import annotations

from lowcal.engines.compiled import compile_kernel
from lowcal.simplex import FloatArray, IntArray


@compile_kernel
def add_histogram(codes: IntArray, R: FloatArray, out: FloatArray) -> None:
    """Add sum_i [codes_i = v] R[a, i] to out[a, v]."""
    for a in range(len(R)):
        run, table = R[a], out[a]
        for i in range(len(codes)):
            table[codes[i]] += run[i]


@compile_kernel
def add_pairs(a: IntArray, b: IntArray, width: int, R: FloatArray, out: FloatArray) -> None:
    """Add the histogram of R over pairs of codes, numbered a * width + b."""
    for j in range(len(R)):
        run, table = R[j], out[j]
        for i in range(len(a)):
            table[a[i] * width + b[i]] += run[i]


@compile_kernel
def add_look_up(codes: IntArray, tables: FloatArray, out: FloatArray) -> None:
    """Add tables[a, codes_i] to out[a, i]."""
    for a in range(len(tables)):
        table, run = tables[a], out[a]
        for i in range(len(codes)):
            run[i] += table[codes[i]]
