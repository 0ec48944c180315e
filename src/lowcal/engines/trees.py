"""Histogram trees, compiled: the steps of `subpopulations.growing`, its definition, in one pass over the rows a level.

At each level only the smaller child of every split node is added up; its sibling is the parent minus it. Needs numba,
an optional extra; `growing` imports this module when a problem is large enough, never before.
"""

from __future__ import annotations

from functools import partial
from math import frexp, ldexp

import numpy as np
from numpy.typing import NDArray

from lowcal.engines.compiled import compile_kernel
from lowcal.engines.lanes import adder
from lowcal.engines.portable import FAR_OUT, SQUARES, TAYLOR
from lowcal.simplex import TIE, FloatArray, IntArray

#: Changes with lanes.py and with the numbers of simplex.py: numba keeps kernels by the text of the file they stand in.
MADE_WITH = "d5935170"
#: Changes with portable.py.
PORTABLE = "469750ee"
#: Numbers of a record are added four at a time, so that one vector instruction does it.
LANES = 4

#: The smallest normal number.
TINY = float(np.finfo(np.float64).tiny)

#: Named one by one, so that the loop has no loop inside and takes several rows at a time.
T12, T11, T10, T9, T8, T7, T6, T5, T4, T3, T2, T1, T0 = TAYLOR

add_four = adder(LANES)


@compile_kernel
def boost(
    codes: NDArray[np.uint8],
    offsets: NDArray[np.uint64],
    share: FloatArray,
    state: FloatArray,
    is_mirror: bool,
    bound: float,
    bits: int,
    min_mass: float,
    least: tuple[float, float, float],
    shrinkage: float,
    feature: IntArray,
    cut: IntArray,
    value: FloatArray,
    total: FloatArray,
) -> None:
    """Grow tree after tree on what the ones before left of the residuals; fill feature, cut and value.

    `share` is the weight of each row over the largest, `state` its residuals, at most `bound`, or its log odds and its
    outcome, which are moved between trees. There are at most 2^bits rows. `least` are the smallest gain of a split,
    mass of a node and bend of a row. The values of every row's leaves are added to `total`, as `evaluate` does.
    """
    n_trees, n_leaves, q = value.shape
    bins = int(offsets[-1])
    records = np.zeros((len(codes), 3 + q + (-3 - q) % LANES))
    width = records.shape[1]
    tables = np.zeros((2, n_leaves // 2 * bins, width))
    sums = np.zeros((2, n_leaves, width))
    node = np.zeros(len(codes), np.uint32)
    build, split = np.zeros(n_leaves, np.bool_), np.zeros(n_leaves, np.bool_)
    scores, f = np.zeros(bins), np.empty(len(share) if is_mirror else 0)
    _weigh(share, bits, records)
    for t in range(n_trees):
        node[:] = 0
        build[0] = True
        first, n_nodes, now = 0, 1, 0
        _refresh(share, state, is_mirror, bound, bits, least[2], f, records)
        while n_nodes < n_leaves:
            _clear(tables[now], build, n_nodes, bins)
            add_up(codes, offsets, records, node, build, tables[now])
            _add_siblings(tables, now, build, n_nodes, bins)
            if n_nodes == 1:
                _add_totals(tables[now], int(offsets[1]), sums[now, 0])
            here, then = sums[now, :n_nodes], sums[1 - now]
            split_level(
                tables[now], offsets, here, q, min_mass, least, scores, feature[t, first:], cut[t, first:], then
            )
            for k in range(n_nodes):
                split[k] = feature[t, first + k] >= 0
            if 2 * n_nodes < n_leaves:
                _choose(split, then, n_nodes, build)
            descend(codes, feature[t, first:], cut[t, first:], node)
            first, n_nodes, now = 2 * first + 1, 2 * n_nodes, 1 - now
        _set_values(sums[now], shrinkage, value[t])
        bound += _largest(value[t])
        _take_off(state, is_mirror, node, value[t], total, t + 1 < n_trees)


@compile_kernel
def fill_records(
    share: FloatArray, state: FloatArray, is_mirror: bool, bound: float, bits: int, least: float, records: FloatArray
) -> None:
    """Set what is added up for every row: mass, its square, the bend and the residuals, rounded as in `growing`."""
    _weigh(share, bits, records)
    _refresh(share, state, is_mirror, bound, bits, least, np.empty(len(share) if is_mirror else 0), records)


@compile_kernel
def _weigh(share: FloatArray, bits: int, records: FloatArray) -> None:
    """Set the mass of every row, its square, rounded up, and the bend of least squares."""
    one, unit = ldexp(1.5, 1 + bits), ldexp(1.0, bits - 51)
    for i in range(len(share)):
        w = share[i]
        mass, square = (w + one) - one, (w * w + one) - one
        records[i, 0], records[i, 2] = mass, mass
        records[i, 1] = square + unit if square < w * w else square


@compile_kernel
def _refresh(
    share: FloatArray,
    state: FloatArray,
    is_mirror: bool,
    bound: float,
    bits: int,
    least: float,
    f: FloatArray,
    records: FloatArray,
) -> None:
    """Set the residuals of every row and, in the mirror geometry, the bends, at the predictions f, which are set."""
    one, own = ldexp(1.5, 1 + bits), ldexp(1.5, max(frexp(max(bound, TINY))[1] + bits, -948))
    if is_mirror:
        for i in range(len(f)):
            f[i] = state[i, 0]
        set_sigmoids(f)
        for i in range(len(share)):
            records[i, 2] = (share[i] * max(f[i] * (1.0 - f[i]), least) + one) - one
            records[i, 3] = (share[i] * (state[i, 1] - f[i]) + one) - one
    else:
        for i in range(len(share)):
            for a in range(state.shape[1]):
                records[i, 3 + a] = (share[i] * state[i, a] + own) - own


@partial(compile_kernel, error_model="numpy")  # the divisor is not looked at, so that several rows go at a time
def set_sigmoids(z: FloatArray) -> None:
    """Put 1 / (1 + exp(-z)) in the place of z, by the steps of `portable_sigmoid`."""
    for i in range(len(z)):
        x = min(max(z[i], -FAR_OUT), FAR_OUT) * -(2.0**-SQUARES)
        e = x * T12
        e = (e + T11) * x
        e = (e + T10) * x
        e = (e + T9) * x
        e = (e + T8) * x
        e = (e + T7) * x
        e = (e + T6) * x
        e = (e + T5) * x
        e = (e + T4) * x
        e = (e + T3) * x
        e = (e + T2) * x
        e = (e + T1) * x
        e = e + T0
        e = e * e
        e = e * e
        e = e * e
        e = e * e
        e = e * e
        e = e * e
        e = e * e
        z[i] = 1.0 / (e + 1.0)


@compile_kernel
def split_level(
    table: FloatArray,
    offsets: NDArray[np.uint64],
    sums: FloatArray,
    q: int,
    min_mass: float,
    least: tuple[float, float, float],
    scores: FloatArray,
    feature: IntArray,
    cut: IntArray,
    then: FloatArray,
) -> None:
    """Find the best split of every node of a level from its table, and share its sums among its children."""
    bins = int(offsets[-1])
    for k in range(len(sums)):
        here = table[k * bins : (k + 1) * bins]
        f, c = _best_split(here, offsets, sums[k], q, min_mass, least, scores)
        feature[k], cut[k] = f, c
        _share(here, offsets, f, c, sums[k], then[2 * k], then[2 * k + 1])


def evaluate(codes: NDArray[np.uint8], feature: IntArray, cut: IntArray, value: FloatArray, total: FloatArray) -> None:
    """Add the values of every row's leaves, over all trees, to `total`."""
    _evaluate(codes, *_without_gaps(feature, cut), value, total)


def leaves(codes: NDArray[np.uint8], feature: IntArray, cut: IntArray, leaf: NDArray[np.uint8]) -> None:
    """Write the leaf of every row in one tree."""
    _leaves(codes, *_without_gaps(feature, cut), leaf)


def _without_gaps(feature: IntArray, cut: IntArray) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Let an unsplit node send all rows left by a cut that no code exceeds."""
    gap = feature < 0
    return np.where(gap, 0, feature).astype(np.uint32), np.where(gap, 2**32 - 1, cut).astype(np.uint32)


@compile_kernel
def _evaluate(
    codes: NDArray[np.uint8],
    feature: NDArray[np.uint32],
    cut: NDArray[np.uint32],
    value: FloatArray,
    total: FloatArray,
) -> None:
    n_trees, n_leaves, q = value.shape
    n_inner = n_leaves - 1
    for i in range(len(codes)):
        row = codes[i]
        for t in range(n_trees):
            k = 0
            while k < n_inner:
                k = 2 * k + 1 + (row[feature[t, k]] > cut[t, k])
            for a in range(q):
                total[i, a] += value[t, k - n_inner, a]


@compile_kernel
def _leaves(
    codes: NDArray[np.uint8], feature: NDArray[np.uint32], cut: NDArray[np.uint32], leaf: NDArray[np.uint8]
) -> None:
    n_inner = len(feature)
    for i in range(len(codes)):
        row = codes[i]
        k = 0
        while k < n_inner:
            k = 2 * k + 1 + (row[feature[k]] > cut[k])
        leaf[i] = k - n_inner


@compile_kernel
def _clear(table: FloatArray, build: NDArray[np.bool_], n_nodes: int, bins: int) -> None:
    for k in range(n_nodes):
        if build[k]:
            table[k * bins : (k + 1) * bins] = 0.0


@compile_kernel
def add_up(
    codes: NDArray[np.uint8],
    offsets: NDArray[np.uint64],
    records: FloatArray,
    node: NDArray[np.uint32],
    build: NDArray[np.bool_],
    table: FloatArray,
) -> None:
    """Add every row's record to the bin of each of its features, in the nodes to build."""
    n, n_features = codes.shape
    width, bins = np.uint64(records.shape[1]), offsets[-1]
    lanes, flat = records.reshape(-1), table.reshape(-1)
    for i in range(n):
        if not build[node[i]]:
            continue
        start = np.uint64(node[i]) * bins
        for lane in range(0, records.shape[1], LANES):
            for j in range(n_features):
                at = (start + offsets[j] + np.uint64(codes[i, j])) * width
                add_four(flat, np.intp(at) + lane, lanes, records.shape[1] * i + lane)


@compile_kernel
def _choose(split: NDArray[np.bool_], sums: FloatArray, n_nodes: int, build: NDArray[np.bool_]) -> None:
    """Say which children to add up: the smaller one of each split node."""
    for k in range(n_nodes):
        is_left = sums[2 * k, 0] <= sums[2 * k + 1, 0]
        build[2 * k], build[2 * k + 1] = split[k] and is_left, split[k] and not is_left


@compile_kernel
def _add_siblings(tables: FloatArray, now: int, build: NDArray[np.bool_], n_nodes: int, bins: int) -> None:
    """Fill in every node that was not built: the parent minus the sibling, or nothing below an unsplit node."""
    table, parents = tables[now], tables[1 - now]
    for k in range(n_nodes):
        if build[k]:
            continue
        if n_nodes > 1 and build[k ^ 1]:
            parent, sibling = (k >> 1) * bins, (k ^ 1) * bins
            for b in range(bins):
                for c in range(table.shape[1]):
                    table[k * bins + b, c] = parents[parent + b, c] - table[sibling + b, c]
        else:
            table[k * bins : (k + 1) * bins] = 0.0


@compile_kernel
def _add_totals(table: FloatArray, stop: int, total: FloatArray) -> None:
    """Add the bins of the first feature up: every row lies in one of them."""
    total[:] = 0.0
    for b in range(stop):
        for c in range(len(total)):
            total[c] += table[b, c]


@compile_kernel
def _best_split(
    table: FloatArray,
    offsets: NDArray[np.uint64],
    total: FloatArray,
    q: int,
    min_mass: float,
    least: tuple[float, float, float],
    scores: FloatArray,
) -> tuple[int, int]:
    """Return the feature and cut of the largest gain, the first among equals; (-1, 0) where none is large enough."""
    whole, best, feature, cut = 0.0, least[0], -1, 0
    if total[0] <= least[1]:
        return feature, cut
    for a in range(3, 3 + q):
        whole += total[a] * total[a]
    whole /= max(total[2], TINY)
    below, flat = np.zeros(len(total)), table.reshape(-1)
    for j in range(len(offsets) - 1):
        start, count = int(offsets[j]), int(offsets[j + 1] - offsets[j])
        below[:] = 0.0
        top = -np.inf
        for b in range(count - 1):
            for lane in range(0, len(total), LANES):
                add_four(below, lane, flat, (start + b) * len(total) + lane)
            scores[b] = _gain(below, total, q, min_mass, least[1]) - whole
            top = max(top, scores[b])
        if top > best * (1.0 + TIE):
            best, feature, cut = top, j, 0
            while scores[cut] < top - TIE * abs(top):
                cut += 1
    return feature, cut


@compile_kernel
def _gain(below: FloatArray, total: FloatArray, q: int, min_mass: float, least: float) -> float:
    """Return the squared sums over the bends of both sides, or -inf where one is too small."""
    mass, square = below[0], below[1]
    rest, rest_square = total[0] - mass, total[1] - square
    if mass <= least or rest <= least or below[2] <= 0.0 or total[2] <= below[2]:
        return -np.inf
    if mass * mass < min_mass * max(square, TINY) or rest * rest < min_mass * max(rest_square, TINY):
        return -np.inf
    squares, others = 0.0, 0.0
    for a in range(3, 3 + q):
        other = total[a] - below[a]
        squares, others = squares + below[a] * below[a], others + other * other
    gain: float = squares / below[2] + others / (total[2] - below[2])
    return gain


@compile_kernel
def _share(
    table: FloatArray,
    offsets: NDArray[np.uint64],
    feature: int,
    cut: int,
    total: FloatArray,
    left: FloatArray,
    right: FloatArray,
) -> None:
    """Share the sums of a node among its children; an unsplit node leaves all to the left one."""
    left[:] = 0.0
    if feature < 0:
        for c in range(len(total)):  # to copy an array, numba would compile the message that shapes differ
            left[c] = total[c]
    else:
        start = int(offsets[feature])
        for b in range(start, start + cut + 1):
            for c in range(len(total)):
                left[c] += table[b, c]
    for c in range(len(total)):
        right[c] = total[c] - left[c]


@compile_kernel
def descend(codes: NDArray[np.uint8], feature: IntArray, cut: IntArray, node: NDArray[np.uint32]) -> None:
    """Send every row to its child."""
    for i in range(len(codes)):
        k = node[i]
        f = feature[k]
        node[i] = 2 * k + (f >= 0 and codes[i, f] > cut[k])


@compile_kernel
def _set_values(sums: FloatArray, shrinkage: float, value: FloatArray) -> None:
    """Set the leaves' values, a share of the Newton step."""
    for k in range(len(value)):
        for a in range(value.shape[1]):
            value[k, a] = shrinkage * sums[k, 3 + a] / sums[k, 2] if sums[k, 2] > 0.0 else 0.0


@compile_kernel
def _largest(value: FloatArray) -> float:
    """Return the largest absolute value of a leaf."""
    most = 0.0
    for k in range(len(value)):
        for a in range(value.shape[1]):
            most = max(most, abs(value[k, a]))
    return most


@compile_kernel
def _take_off(
    state: FloatArray,
    is_mirror: bool,
    node: NDArray[np.uint32],
    value: FloatArray,
    total: FloatArray,
    goes_on: bool,
) -> None:
    """Add the values to the total and, if trees follow, to the log odds, or take them off the residuals."""
    for i in range(len(total)):
        for a in range(value.shape[1]):
            total[i, a] += value[node[i], a]
    if not goes_on:
        return
    if is_mirror:
        for i in range(len(state)):
            state[i, 0] += value[node[i], 0]
    else:
        for i in range(len(state)):
            for a in range(value.shape[1]):
                state[i, a] -= value[node[i], a]
