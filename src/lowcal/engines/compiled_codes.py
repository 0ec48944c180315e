"""The kernels on code columns, compiled: the same loops as in `kernels`, several times faster.

Needs numba, an optional extra. `kernels` imports this module when a problem is large enough, never before. Codes are
read as they are stored, a byte or two each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowcal.engines.compiled import compile_kernel
from lowcal.engines.kernels import Sparse
from lowcal.simplex import FloatArray, IntArray


@compile_kernel
def add_histogram(codes: IntArray, R: FloatArray, out: FloatArray) -> None:
    """Add sum_i [codes_i = v] R[a, i] to out[v, a], two moments at a time: they lie side by side in the table."""
    q = len(R)
    for a in range(0, q - 1, 2):
        first, second = R[a], R[a + 1]
        for i in range(len(codes)):
            table = out[codes[i]]
            x, y = table[a] + first[i], table[a + 1] + second[i]
            table[a], table[a + 1] = x, y
    if q % 2:
        last = R[q - 1]
        for i in range(len(codes)):
            out[codes[i], q - 1] += last[i]


@compile_kernel
def add_pairs(a: IntArray, b: IntArray, width: int, R: FloatArray, out: FloatArray) -> None:
    """Add the histogram of R over pairs of codes, numbered a * width + b."""
    q = len(R)
    for j in range(0, q - 1, 2):
        first, second = R[j], R[j + 1]
        for i in range(len(a)):
            table = out[a[i] * width + b[i]]
            x, y = table[j] + first[i], table[j + 1] + second[i]
            table[j], table[j + 1] = x, y
    if q % 2:
        last = R[q - 1]
        for i in range(len(a)):
            out[a[i] * width + b[i], q - 1] += last[i]


@compile_kernel
def add_look_up(codes: IntArray, tables: FloatArray, out: FloatArray) -> None:
    """Add tables[a, codes_i] to out[a, i]."""
    for a in range(len(tables)):
        table, run = tables[a], out[a]
        for i in range(len(codes)):
            run[i] += table[codes[i]]


@compile_kernel
def add_pair_look_up(a: IntArray, b: IntArray, width: int, tables: FloatArray, out: FloatArray) -> None:
    """Add tables[j, a_i * width + b_i] to out[j, i]."""
    for j in range(len(tables)):
        table, run = tables[j], out[j]
        for i in range(len(a)):
            run[i] += table[a[i] * width + b[i]]


@compile_kernel
def add_groups(a: IntArray, b: IntArray, B: Sparse, H: FloatArray, out: FloatArray) -> None:
    """Add sum_i [a_i = v] H[k, i] B[b_i, g] to out[k, v, g]."""
    indptr, groups, shares = B
    for k in range(len(H)):
        run, table = H[k], out[k]
        for i in range(len(a)):
            row, h, code = table[a[i]], run[i], b[i]
            for t in range(indptr[code], indptr[code + 1]):
                row[groups[t]] += h * shares[t]


@compile_kernel
def add_clipped(
    f: FloatArray,
    y: FloatArray,
    delta: FloatArray,
    weight: FloatArray,
    scale: float,
    tiny: float,
    bins: FloatArray,
    where: NDArray[np.uint16],
) -> None:
    """Sort rows that move along delta into bins by the step at which they reach 0 or 1, and sum their quadratics."""
    n_bins = len(bins)
    for i in range(len(f)):
        d, w = delta[i], weight[i]
        if not (abs(d) > tiny and w > 0.0):
            where[i] = n_bins
            continue
        end = 1.0 if d > 0.0 else 0.0
        limit = (end - f[i]) / d
        share = 1.0 / (1.0 + scale / limit) if limit > 0.0 else 0.0
        b = min(int(share * n_bins), n_bins - 1)
        where[i] = b
        gap, rest = y[i] - f[i], y[i] - end
        loss = w * gap * gap
        bins[b, 0] += w * d * d
        bins[b, 1] += w * d * gap
        bins[b, 2] += loss
        bins[b, 3] += w * rest * rest
        if gap * d < 0.0:
            bins[b, 4] += loss
        bins[b, 5] = min(bins[b, 5], limit)
        bins[b, 6] = max(bins[b, 6], limit)


@compile_kernel
def replay(
    f: FloatArray,
    codes: IntArray,
    starts: IntArray,
    column: IntArray,
    power: IntArray,
    offset: IntArray,
    tables: FloatArray,
    group: IntArray,
    step: FloatArray,
    mask_power: IntArray,
    mask_column: IntArray,
    mask_offset: IntArray,
    masks: NDArray[np.uint8],
) -> None:
    """Run updates in place; a group that several of them move is looked up once, and then read as bytes."""
    inside = np.empty((len(mask_column), len(f)), np.uint8)
    for g in range(len(mask_column)):
        code, mask, own = codes[mask_column[g]], masks[mask_offset[g] :], inside[g]
        for i in range(len(f)):
            own[i] = mask[code[i]]
    delta = np.zeros(len(f))
    for t in range(len(starts) - 1):
        if group[t] >= 0:
            _move_group(f, inside[group[t]], step[t], mask_power[t])
            continue
        r = starts[t]
        while r < starts[t + 1]:
            here, next_ = tables[offset[r] :], tables[offset[min(r + 1, starts[t + 1] - 1)] :]
            if r + 1 < starts[t + 1] and column[r] == column[r + 1] and power[r] == 0 and power[r + 1] == 1:
                _add_line(delta, f, codes[column[r]], here, next_)
                r += 2
            else:
                _add_read(delta, f, codes[column[r]], here, power[r])
                r += 1
        for i in range(len(f)):
            f[i] = min(max(f[i] + delta[i], 0.0), 1.0)
            delta[i] = 0.0


@compile_kernel
def _move_group(f: FloatArray, inside: NDArray[np.uint8], step: float, power: int) -> None:
    """Move one group by step f^power; the loops are written out, so that they become vector instructions."""
    if power == 0:
        for i in range(len(f)):
            f[i] = min(max(f[i] + step * inside[i], 0.0), 1.0)
    elif power == 1:
        for i in range(len(f)):
            f[i] = min(max(f[i] + step * inside[i] * f[i], 0.0), 1.0)
    else:
        for i in range(len(f)):
            f[i] = min(max(f[i] + step * inside[i] * f[i] ** power, 0.0), 1.0)


@compile_kernel
def _add_line(delta: FloatArray, f: FloatArray, code: IntArray, constant: FloatArray, slope: FloatArray) -> None:
    """Add two look-ups with the same code, f^0 and f^1."""
    for i in range(len(f)):
        delta[i] += constant[code[i]] + slope[code[i]] * f[i]


@compile_kernel
def _add_read(delta: FloatArray, f: FloatArray, code: IntArray, table: FloatArray, power: int) -> None:
    if power == 0:
        for i in range(len(f)):
            delta[i] += table[code[i]]
    elif power == 1:
        for i in range(len(f)):
            delta[i] += table[code[i]] * f[i]
    else:
        for i in range(len(f)):
            delta[i] += table[code[i]] * f[i] ** power
