"""Histogram trees, compiled: the steps of `subpopulations.growing`, its definition, with the same bits.

Rows in one piece are kept in order of their nodes, so that only those of a child are touched to add it up; rows in
several pieces are added up level by level. At each level only the smaller child of every split node is added up; its
sibling is the parent minus it. `growing` imports this module when a problem is large enough, never before.
"""

from __future__ import annotations

from functools import partial
from math import frexp, ldexp, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.compiled import adder, compile_kernel
from lowcal.kernels.simplex import FAR_OUT, SMALLEST, SQUARES, TAYLOR, TIE, FloatArray, IntArray

#: Numbers of a record are added four at a time, so that one vector instruction does it.
LANES = 4
#: A cache line holds this many floats: histograms begin with one, so that no bin lies on two.
LINE = 8
#: Trees are evaluated on this many rows at a time, which stay in cache; of levels that are no wider than this, every
#: node looks at all of them.
ROWS, MOST_NODES = 1024, 32
#: Features share a column of at most this many cells where there are at least this many rows: fewer do not pay for it.
#: 100,000 rows of five columns of four levels take 6 to 13 percent less of `recalibrate`.
MOST_SHARED, LEAST_ROWS = 256, 4096

#: The coefficients of the logistic function's polynomial: the first, those between, the last.
HIGHEST, BETWEEN, CONSTANT = TAYLOR[0], TAYLOR[1:-1], TAYLOR[-1]

add_four = adder(LANES)
#: Divisions by zero give infinities, as in NumPy: a check of each one would keep loops from being vectorised.
_compile = partial(compile_kernel, error_model="numpy")


# --- rows in one piece -----------------------------------------------------------------------------------------


class Bundles(NamedTuple):
    """Columns to add rows up in, fewer than features: those of few bins share one, whose cells are pairs, triples, ...

    The cells of shared columns lie behind those of all features. `source` and `target` say which of them are added up
    to which bins of single features; `size` is how many cells there are in all.
    """

    columns: NDArray[np.uint16]
    source: IntArray
    target: IntArray
    size: int


def lay_columns(
    codes: NDArray[np.unsignedinteger], counts: IntArray
) -> tuple[NDArray[np.uint16], IntArray, Bundles] | None:
    """Return the place of every code in a histogram of all features, where each feature begins, and shared columns.

    Places lie feature after feature, shape (features, rows). None if bins are many.

    >>> cells, offsets, _ = lay_columns(np.array([[1, 0], [0, 2]], dtype=np.uint8), np.array([2, 3]))
    >>> cells.tolist(), offsets.tolist()
    ([[1, 0], [2, 4]], [0, 2, 5])
    """
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if offsets[-1] >= 1 << 16:
        return None
    cells = np.empty(codes.shape[::-1], np.uint16)
    np.add(codes.T, offsets[:-1, None].astype(np.uint16), out=cells)
    return cells, offsets, lay_bundles(codes, cells, offsets)


def lay_bundles(codes: NDArray[np.unsignedinteger], cells: NDArray[np.uint16], offsets: IntArray) -> Bundles:
    """Share columns among features of few bins, each in the first column that still has room.

    >>> codes = np.array([[1, 2], [2, 3], [2, 2]] * LEAST_ROWS, dtype=np.uint8)
    >>> found = lay_bundles(codes, codes.T + np.array([[0], [3]], dtype=np.uint16), np.array([0, 3, 7]))
    >>> found.columns[:3, 0], found.target
    (array([ 7, 10,  9], dtype=uint16), array([1, 1, 2, 2, 5, 6, 5, 6]))
    """
    columns, source, target, stop = [], [np.zeros(0, np.intp)], [np.zeros(0, np.intp)], int(offsets[-1])
    if len(codes) < LEAST_ROWS:
        return Bundles(np.ascontiguousarray(cells.T), source[0], target[0], stop)
    low, size = codes.min(axis=0).astype(np.intp), np.ptp(codes, axis=0).astype(np.intp) + 1
    sets: list[list[int]] = []
    for j in np.argsort(size, kind="stable").tolist():
        fitting = next((shared for shared in sets if np.prod(size[shared]) * size[j] <= MOST_SHARED), None)
        if fitting is None:
            sets.append([j])
        else:
            fitting.append(j)
    for shared in sets:
        shape = tuple(size[shared].tolist())
        if len(shared) == 1 or stop + prod(shape) >= 1 << 16:
            columns += [cells[j] for j in shared]
            continue
        joint = np.ravel_multi_index(tuple(codes[:, j] - low[j] for j in shared), shape)
        columns.append((stop + joint).astype(np.uint16))
        source += [stop + np.arange(prod(shape))] * len(shared)
        target += [
            offsets[j] + low[j] + code
            for j, code in zip(shared, np.unravel_index(np.arange(prod(shape)), shape), strict=True)
        ]
        stop += prod(shape)
    return Bundles(np.column_stack(columns), np.concatenate(source), np.concatenate(target), stop)


@_compile
def boost(
    cells: NDArray[np.uint16],
    offsets: IntArray,
    bundles: Bundles,
    share: FloatArray,
    z: FloatArray,
    y: FloatArray,
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
    """Grow tree after tree on what the ones before left of one residual; fill feature, cut and value.

    `share` is the weight of each row over the largest; z are the log odds of outcomes y, the scores of several labels,
    or residuals of at most `bound`, shape (labels, rows), and are moved by the trees. The trees of all labels take
    turns, each round from the same predictions. There are at most 2^bits rows. `least` are the smallest gain of a
    split, mass of a node and bend of a row. The values of every row's leaves are added to `total`, if it has any rows.
    """
    (n_trees, n_leaves, _), n, bins = value.shape, cells.shape[1], bundles.size
    records = _on_lines(LANES * n).reshape(-1, LANES)
    tables = _on_lines(n_leaves * bins * LANES).reshape(2, n_leaves // 2, bins, LANES)
    sums, below, f = np.zeros((2, n_leaves, LANES)), np.zeros((LANES + 1, offsets[-1])), np.empty(z.shape)
    order, starts = np.zeros((3, n + 1), np.uint32), np.zeros((2, n_leaves + 1), np.intp)
    _lay_masses(share, bits, records)
    for t in range(n_trees):
        if is_mirror:
            if t % len(z) == 0:
                set_shares(z, f)
            _lay_bends(share, f[t % len(z)], y[t % len(z)], bits, least[2], records)
        else:
            _lay_residuals(share, z[t % len(z)], bound, bits, records[:, 3])
        for i in range(n):
            order[0, i] = i
        starts[0, 0], starts[0, 1] = 0, n
        _add_rows(bundles, records, order[0, :n], tables[0, 0])
        _add_totals(tables[0, 0], offsets[1], sums[0, 0])
        first, n_nodes, now = 0, 1, 0
        while True:
            here, totals, then = tables[now], sums[now], sums[1 - now]
            split, at = feature[t, first : first + n_nodes], cut[t, first : first + n_nodes]
            split_level(here, offsets, totals, 1, min_mass, least, below, split, at, then)
            if 2 * n_nodes == n_leaves:
                break
            for k in range(n_nodes):
                j, edge = _edge(offsets, feature[t, first + k], cut[t, first + k])
                _deal_rows(cells[j], edge, order, starts, now, k)
                _add_children(bundles, offsets, records, order, starts, tables, sums, feature[t, first + k], now, k)
            starts[1 - now, 2 * n_nodes] = n
            first, n_nodes, now = 2 * first + 1, 2 * n_nodes, 1 - now
        bound += _set_values(sums[1 - now], shrinkage, value[t])
        for k in range(n_nodes):
            rows, two = order[now, starts[now, k] : starts[now, k + 1]], value[t, 2 * k : 2 * k + 2, 0]
            j, edge = _edge(offsets, feature[t, first + k], cut[t, first + k])
            _move(cells[j], edge, rows, two, 1.0 if is_mirror else -1.0, z[t % len(z)])
            if len(total) > 0:
                _move(cells[j], edge, rows, two, 1.0, total)


@_compile
def _on_lines(size: int) -> FloatArray:
    """Return zeros that begin with a cache line."""
    wide = np.zeros(size + LINE)
    start = -(wide.ctypes.data // wide.itemsize) % LINE
    return wide[start : start + size]


@_compile
def _edge(offsets: IntArray, feature: int, cut: int) -> tuple[int, int]:
    """Return a column and the last cell that goes left; without a split, all do."""
    return (feature, offsets[feature] + cut) if feature >= 0 else (0, offsets[-1])


@_compile
def _add_rows(bundles: Bundles, records: FloatArray, rows: NDArray[np.uint32], table: FloatArray) -> None:
    """Add the records of some rows to the bins of all features."""
    table[:] = 0.0
    columns, lanes, flat = bundles.columns, records.reshape(-1), table.reshape(-1)
    for i in rows:
        for j in range(columns.shape[1]):
            add_four(flat, np.intp(columns[i, j]) * LANES, lanes, np.intp(i) * LANES)
    for k in range(len(bundles.source)):  # the cells that features share are added up to the bins of each
        add_four(flat, bundles.target[k] * LANES, flat, bundles.source[k] * LANES)


@_compile
def _deal_rows(
    column: NDArray[np.uint16], edge: int, order: NDArray[np.uint32], starts: IntArray, now: int, k: int
) -> None:
    """Put the rows of a node into its children, in the order of the rows."""
    start, stop = starts[now, k], starts[now, k + 1]
    n_left, n_right = int(start), 0
    for i in order[now, start:stop]:
        goes_right = int(column[i] > edge)
        order[1 - now, n_left] = order[2, n_right] = i  # both: a branch would be guessed wrong too often
        n_left += 1 - goes_right
        n_right += goes_right
    for i in range(n_right):
        order[1 - now, n_left + i] = order[2, i]
    starts[1 - now, 2 * k], starts[1 - now, 2 * k + 1], starts[1 - now, 2 * k + 2] = start, n_left, stop


@_compile
def _add_children(
    bundles: Bundles,
    offsets: IntArray,
    records: FloatArray,
    order: NDArray[np.uint32],
    starts: IntArray,
    tables: FloatArray,
    sums: FloatArray,
    feature: int,
    now: int,
    k: int,
) -> None:
    """Add up the smaller child of a node, and take it off its parent; none where nothing was split."""
    later, left, right = 1 - now, 2 * k, 2 * k + 1
    small, large = (left, right) if sums[later, left, 0] <= sums[later, right, 0] else (right, left)
    one, other, parent = tables[later, small], tables[later, large], tables[now, k]
    if feature < 0:
        one[:] = 0.0
        other[:] = 0.0
        return
    _add_rows(bundles, records, order[later, starts[later, small] : starts[later, small + 1]], one)
    for b in range(offsets[-1]):
        for c in range(LANES):
            other[b, c] = parent[b, c] - one[b, c]
    _add_totals(one, offsets[1], sums[later, small])
    _add_totals(other, offsets[1], sums[later, large])


@_compile
def _add_totals(table: FloatArray, stop: int, total: FloatArray) -> None:
    """Add the bins of the first feature up: every row lies in one of them."""
    total[:] = 0.0
    for b in range(stop):
        for c in range(len(total)):
            total[c] += table[b, c]


@_compile
def _set_values(sums: FloatArray, shrinkage: float, value: FloatArray) -> float:
    """Set the leaves' values, a share of the Newton step; return the largest of them, signs apart."""
    most = 0.0
    for k in range(len(value)):
        value[k, 0] = shrinkage * sums[k, 3] / sums[k, 2] if sums[k, 2] > 0.0 else 0.0
        most = max(most, abs(value[k, 0]))
    return most


@_compile
def _move(
    column: NDArray[np.uint16], edge: int, rows: NDArray[np.uint32], value: FloatArray, sign: float, z: FloatArray
) -> None:
    """Add the values of two leaves, or take them off, for their rows."""
    for i in rows:
        z[i] += sign * value[np.intp(column[i] > edge)]


# --- what is added up ------------------------------------------------------------------------------------------


@_compile
def fill_records(
    share: FloatArray, state: FloatArray, is_mirror: bool, bound: float, bits: int, least: float, records: FloatArray
) -> None:
    """Set what is added up for every row: mass, its square, the bend and the residuals, rounded as in `growing`."""
    _lay_masses(share, bits, records)
    if is_mirror:
        _lay_bends(share, state[:, 0], state[:, 1], bits, least, records)
    else:
        for a in range(state.shape[1]):
            _lay_residuals(share, state[:, a], bound, bits, records[:, 3 + a])


@_compile
def _lay_masses(share: FloatArray, bits: int, records: FloatArray) -> None:
    """Set the mass of every row, its square, rounded up, and the bend of least squares."""
    one, unit = ldexp(1.5, 1 + bits), ldexp(1.0, bits - 51)
    for i in range(len(share)):
        w = share[i]
        mass, square = (w + one) - one, (w * w + one) - one
        records[i, 0], records[i, 2] = mass, mass
        records[i, 1] = square + unit if square < w * w else square


@_compile
def _lay_residuals(share: FloatArray, z: FloatArray, bound: float, bits: int, out: FloatArray) -> None:
    """Set a residual of at most `bound` of every row."""
    own = ldexp(1.5, max(frexp(max(bound, SMALLEST))[1] + bits, -948))
    for i in range(len(share)):
        out[i] = (share[i] * z[i] + own) - own


@_compile
def _lay_bends(share: FloatArray, f: FloatArray, y: FloatArray, bits: int, least: float, records: FloatArray) -> None:
    """Set the residual and the curvature f (1 - f) of every row."""
    one = ldexp(1.5, 1 + bits)
    for i in range(len(f)):
        curvature = f[i] * (1.0 - f[i])
        records[i, 2] = (share[i] * (curvature if curvature > least else least) + one) - one
        records[i, 3] = (share[i] * (y[i] - f[i]) + one) - one


@_compile
def set_shares(z: FloatArray, f: FloatArray) -> None:
    """Set the predictions f of all labels at scores z, shape (labels, rows), by the steps of `portable_softmax`."""
    total = f[0]
    if len(z) == 1:
        for i in range(len(total)):
            total[i] = z[0, i]
        set_sigmoids(total)
        return
    most, total = z[0].copy(), np.zeros(z.shape[1])
    for a in range(1, len(z)):
        for i in range(len(most)):
            most[i] = max(most[i], z[a, i])
    for a in range(len(z)):
        for i in range(len(most)):
            f[a, i] = _decay(min(most[i] - z[a, i], FAR_OUT))
            total[i] += f[a, i]
    for a in range(len(z)):
        for i in range(len(most)):
            f[a, i] /= total[i]


@_compile
def set_sigmoids(z: FloatArray) -> None:
    """Put 1 / (1 + exp(-z)) in the place of z, by the steps of `portable_sigmoid`."""
    for i in range(len(z)):
        z[i] = 1.0 / (_decay(min(max(z[i], -FAR_OUT), FAR_OUT)) + 1.0)


@_compile
def _decay(x: float) -> float:
    """Return exp(-x)."""
    x *= -(2.0**-SQUARES)
    e = x * HIGHEST
    for c in BETWEEN:
        e = (e + c) * x
    e = e + CONSTANT
    for _ in range(SQUARES):
        e = e * e
    return e


# --- the splits of a level -------------------------------------------------------------------------------------


@_compile
def split_level(
    table: FloatArray,
    offsets: NDArray[np.integer],
    sums: FloatArray,
    q: int,
    min_mass: float,
    least: tuple[float, float, float],
    below: FloatArray,
    feature: IntArray,
    cut: IntArray,
    then: FloatArray,
) -> None:
    """Find the best split of every node of a level, shape (nodes, bins, width), and share its sums among its children.

    There are q residuals; `below`, shape (width + 1, bins), is room to work in.
    """
    for k in range(len(feature)):
        here, total, left, right = table[k], sums[k], then[2 * k], then[2 * k + 1]
        feature[k], cut[k] = _best_split(here, offsets, total, q, min_mass, least, below)
        left[:] = 0.0
        if feature[k] < 0:  # an unsplit node leaves all to the left child
            for c in range(len(total)):  # to copy an array, numba would compile the message that shapes differ
                left[c] = total[c]
        else:
            start = int(offsets[feature[k]])
            for b in range(start, start + cut[k] + 1):
                for c in range(len(total)):
                    left[c] += here[b, c]
        for c in range(len(total)):
            right[c] = total[c] - left[c]


@_compile
def _best_split(
    table: FloatArray,
    offsets: NDArray[np.integer],
    total: FloatArray,
    q: int,
    min_mass: float,
    least: tuple[float, float, float],
    below: FloatArray,
) -> tuple[int, int]:
    """Return the feature and cut of the largest gain, the first among equals; (-1, 0) where none is large enough."""
    best, feature, cut = least[0], -1, 0
    if total[0] <= least[1]:
        return feature, cut
    score = below[-1]
    _sum_below(table, offsets, below)
    _lay_gains(below, total, q, min_mass, least[1])
    for j in range(len(offsets) - 1):
        start, last, top = int(offsets[j]), int(offsets[j + 1]) - 1, -np.inf
        for b in range(start, last):
            top = score[b] if score[b] > top else top
        if top > best * (1.0 + TIE):
            best, feature, cut = top, j, 0
            while score[start + cut] < top - TIE * abs(top):
                cut += 1
    return feature, cut


@_compile
def _sum_below(table: FloatArray, offsets: NDArray[np.integer], below: FloatArray) -> None:
    """Fill in the sums up to every bin of its feature, four columns at a time."""
    for c in range(0, table.shape[1], LANES):
        for j in range(len(offsets) - 1):
            s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
            for b in range(int(offsets[j]), int(offsets[j + 1])):
                s0 += table[b, c]
                s1 += table[b, c + 1]
                s2 += table[b, c + 2]
                s3 += table[b, c + 3]
                below[c, b], below[c + 1, b], below[c + 2, b], below[c + 3, b] = s0, s1, s2, s3


@_compile
def _lay_gains(below: FloatArray, total: FloatArray, q: int, min_mass: float, least: float) -> None:
    """Fill the last row with what a cut after every bin gains: squared sums over the bends of both sides.

    It is -inf where one side is too small. The loops over the bins of all features are vectorised.
    """
    mass, square, bend, squares, score = below[0], below[1], below[2], below[3], below[-1]
    whole = 0.0
    for a in range(3, 3 + q):
        whole += total[a] * total[a]
        for b in range(len(score)):
            g, other = below[a, b], total[a] - below[a, b]
            squares[b] = g * g if a == 3 else squares[b] + g * g
            score[b] = other * other if a == 3 else score[b] + other * other
    whole /= max(total[2], SMALLEST)
    for b in range(len(score)):
        m, s, h = mass[b], square[b], bend[b]
        rest, rest_square, rest_bend = total[0] - m, total[1] - s, total[2] - h
        s, rest_square = s if s > SMALLEST else SMALLEST, rest_square if rest_square > SMALLEST else SMALLEST
        is_large = (m > least) & (rest > least) & (m * m >= min_mass * s) & (rest * rest >= min_mass * rest_square)
        gain = squares[b] / h + score[b] / rest_bend - whole
        score[b] = gain if is_large & (h > 0.0) & (rest_bend > 0.0) else -np.inf


# --- rows in several pieces ------------------------------------------------------------------------------------


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
def descend(codes: NDArray[np.uint8], feature: IntArray, cut: IntArray, node: NDArray[np.uint32]) -> None:
    """Send every row to its child."""
    for i in range(len(codes)):
        k = node[i]
        f = feature[k]
        node[i] = 2 * k + (f >= 0 and codes[i, f] > cut[k])


# --- evaluating trees ------------------------------------------------------------------------------------------


def follow(
    codes: NDArray[np.uint8], feature: IntArray, cut: IntArray, value: FloatArray, z: FloatArray, path: FloatArray
) -> None:
    """Write the log odds z of every row after each tree, shape (trees, rows)."""
    _follow(codes, feature, _as_codes(cut, codes), value, z, path)


def evaluate(codes: NDArray[np.uint8], feature: IntArray, cut: IntArray, value: FloatArray, total: FloatArray) -> None:
    """Add the values of every row's leaves, over all trees, to `total`."""
    _evaluate(codes, feature, _as_codes(cut, codes), value, total)


def leaves(codes: NDArray[np.uint8], feature: IntArray, cut: IntArray, leaf: NDArray[np.uint8]) -> None:
    """Write the leaf of every row in one tree."""
    _leaves(codes, feature[None], _as_codes(cut, codes)[None], leaf)


def _as_codes(cut: IntArray, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return cuts in the type of the codes: numbers of one type are compared many at a time."""
    return np.minimum(cut, np.iinfo(codes.dtype).max).astype(codes.dtype)


@compile_kernel
def _follow(
    codes: NDArray[np.uint8],
    feature: IntArray,
    cut: NDArray[np.uint8],
    value: FloatArray,
    z: FloatArray,
    path: FloatArray,
) -> None:
    columns, leaf = np.empty((codes.shape[1], ROWS), codes.dtype), np.empty(ROWS, np.uint32)
    for s in range(0, len(codes), ROWS):
        block = codes[s : s + ROWS]
        _lay_block(block, feature, columns)
        for t in range(len(feature)):
            _set_leaves(columns, len(block), feature[t], cut[t], leaf)
            before, after = z[s : s + ROWS] if t == 0 else path[t - 1, s : s + ROWS], path[t, s : s + ROWS]
            for i in range(len(block)):
                after[i] = before[i] + value[t, leaf[i], 0]


@compile_kernel
def _evaluate(
    codes: NDArray[np.uint8], feature: IntArray, cut: NDArray[np.uint8], value: FloatArray, total: FloatArray
) -> None:
    columns, leaf = np.empty((codes.shape[1], ROWS), codes.dtype), np.empty(ROWS, np.uint32)
    for s in range(0, len(codes), ROWS):
        block = codes[s : s + ROWS]
        _lay_block(block, feature, columns)
        for t in range(len(feature)):
            _set_leaves(columns, len(block), feature[t], cut[t], leaf)
            for a in range(value.shape[2]):
                for i in range(len(block)):
                    total[s + i, a] += value[t, leaf[i], a]


@compile_kernel
def _leaves(codes: NDArray[np.uint8], feature: IntArray, cut: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    columns, leaf = np.empty((codes.shape[1], ROWS), codes.dtype), np.empty(ROWS, np.uint32)
    for s in range(0, len(codes), ROWS):
        block = codes[s : s + ROWS]
        _lay_block(block, feature, columns)
        _set_leaves(columns, len(block), feature[0], cut[0], leaf)
        for i in range(len(block)):
            out[s + i] = leaf[i]


@compile_kernel
def _lay_block(block: NDArray[np.uint8], feature: IntArray, columns: NDArray[np.uint8]) -> None:
    """Lay out the features of some rows that trees read, one after the other."""
    is_read = np.zeros(len(columns), np.bool_)
    for j in feature.flat:
        if j >= 0 and not is_read[j]:
            is_read[j] = True
            for i in range(len(block)):
                columns[j, i] = block[i, j]


@compile_kernel
def _set_leaves(
    columns: NDArray[np.uint8], n: int, feature: IntArray, cut: NDArray[np.uint8], leaf: NDArray[np.uint32]
) -> None:
    """Set the leaf of n rows in one tree: all nodes of a level look at all rows, many bytes at a time, while few."""
    node, turn, width = np.zeros(ROWS, np.uint8), np.empty(ROWS, np.uint8), 1
    while width <= min(len(feature), MOST_NODES):
        turn[:n] = 0
        for k in range(width):
            j, here, edge = feature[width - 1 + k], np.uint8(k), cut[width - 1 + k]
            if j >= 0:  # an unsplit node sends all rows left
                column = columns[j]
                for i in range(n):
                    turn[i] |= (node[i] == here) & (column[i] > edge)
        for i in range(n):
            node[i] = 2 * node[i] + turn[i]
        width *= 2
    for i in range(n):
        leaf[i] = node[i]
    while width <= len(feature):
        for i in range(n):
            j, edge = feature[width - 1 + leaf[i]], cut[width - 1 + leaf[i]]
            leaf[i] = 2 * leaf[i] + (j >= 0 and columns[j, i] > edge)
        width *= 2
