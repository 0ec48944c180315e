"""Histogram trees, compiled: the steps of `subpopulations.growing`, its definition, with the same bits.

Rows in one piece are kept in order of their nodes, so that only those of a child are touched to add it up; rows in
several pieces are added up level by level. At each level only the smaller child of every split node is added up; its
sibling is the parent minus it. Needs numba, an optional extra; `growing` imports this module when a problem is large
enough, never before.
"""

from __future__ import annotations

from functools import partial
from math import frexp, ldexp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.compiled import compile_kernel
from lowcal.kernels.lanes import adder
from lowcal.kernels.portable import FAR_OUT, SQUARES, TAYLOR
from lowcal.kernels.simplex import TIE, FloatArray, IntArray

#: Changes with lanes.py and with the numbers of simplex.py: numba keeps kernels by the text of the file they stand in.
MADE_WITH = "147e5c06"
#: Changes with portable.py.
PORTABLE = "d60d25ae"
#: Numbers of a record are added four at a time, so that one vector instruction does it.
LANES = 4

#: The smallest normal number.
TINY = float(np.finfo(np.float64).tiny)

#: Named one by one, so that the loop has no loop inside and takes several rows at a time.
T12, T11, T10, T9, T8, T7, T6, T5, T4, T3, T2, T1, T0 = TAYLOR

#: A cache line holds this many floats.
LINE = 8
#: Features share a column of at most this many cells where there are at least this many rows: fewer do not pay for it.
MOST_SHARED, LEAST_ROWS = 256, 4096

add_four = adder(LANES)
#: Divisions by zero give infinities, as in NumPy: a check of each one would keep loops from being vectorised.
_compile = partial(compile_kernel, error_model="numpy")


# --- how rows in one piece are laid out ------------------------------------------------------------------------


def lay_columns(
    codes: NDArray[np.unsignedinteger], counts: IntArray
) -> tuple[NDArray[np.uint16], IntArray, Bundles] | None:
    """Return the cells of all rows, where those of each feature begin, and shared columns; None if bins are many."""
    cells = lay_cells(codes, counts)
    if cells is None:
        return None
    return cells, np.concatenate([[0], np.cumsum(counts)]), lay_bundles(codes, cells, counts)


def lay_cells(codes: NDArray[np.unsignedinteger], counts: IntArray) -> NDArray[np.uint16] | None:
    """Return the place of every code in a histogram of all features, one after the other; None if these are too many.

    >>> lay_cells(np.array([[1, 0], [0, 2]], dtype=np.uint8), np.array([2, 3]))
    array([[1, 2],
           [0, 4]], dtype=uint16)
    """
    if counts.sum() >= 1 << 16:
        return None
    starts = np.cumsum(counts) - counts
    return np.asarray(np.add(codes, starts.astype(np.uint16), dtype=np.uint16))


class Bundles(NamedTuple):
    """Columns to add rows up in, fewer than features: those of few bins share one, whose cells are pairs, triples, ...

    The cells of shared columns lie behind those of all features. `source` and `target` say which of them are added up
    to which bins of single features; `size` is how many cells there are in all.
    """

    columns: NDArray[np.uint16]
    source: IntArray
    target: IntArray
    size: int


def lay_bundles(codes: NDArray[np.unsignedinteger], cells: NDArray[np.uint16], counts: IntArray) -> Bundles:
    """Share columns among features of few bins.

    >>> codes = np.array([[1, 2], [2, 3], [2, 2]] * LEAST_ROWS, dtype=np.uint8)
    >>> found = lay_bundles(codes, lay_cells(codes, np.array([3, 4])), np.array([3, 4]))
    >>> found.columns[:3, 0], found.target
    (array([ 7, 10,  9], dtype=uint16), array([1, 1, 2, 2, 5, 6, 5, 6]))
    """
    if len(codes) < LEAST_ROWS:
        return Bundles(cells, np.zeros(0, np.intp), np.zeros(0, np.intp), int(counts.sum()))
    low, size = codes.min(axis=0).astype(np.intp), np.ptp(codes, axis=0).astype(np.intp) + 1
    columns, source, target, stop = [], [np.zeros(0, np.intp)], [np.zeros(0, np.intp)], int(counts.sum())
    starts = np.cumsum(counts) - counts + low
    for shared in share_columns(size, MOST_SHARED):
        if len(shared) == 1 or stop + int(np.prod(size[shared])) >= 1 << 16:
            columns += [cells[:, j] for j in shared]
            continue
        joint = np.ravel_multi_index(tuple(codes[:, j] - low[j] for j in shared), tuple(size[shared]))
        columns.append((stop + joint).astype(np.uint16))
        each = np.unravel_index(np.arange(np.prod(size[shared])), tuple(size[shared]))
        source += [stop + np.arange(len(each[0]))] * len(shared)
        target += [starts[j] + code for j, code in zip(shared, each, strict=True)]
        stop += len(each[0])
    return Bundles(np.column_stack(columns), np.concatenate(source), np.concatenate(target), stop)


def share_columns(sizes: IntArray, most: int) -> list[list[int]]:
    """Return sets of features of at most this many joint cells, by the first set that still has room.

    >>> share_columns(np.array([2, 30, 3, 5]), 32)
    [[0, 2, 3], [1]]
    """
    sets: list[list[int]] = []
    room: list[int] = []
    for j in np.argsort(sizes, kind="stable").tolist():
        fitting = next((k for k, left in enumerate(room) if left >= sizes[j]), None)
        if fitting is None:
            sets.append([j])
            room.append(most // int(sizes[j]))
        else:
            sets[fitting].append(j)
            room[fitting] //= int(sizes[j])
    return sets


# --- rows in one piece -----------------------------------------------------------------------------------------


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

    `share` is the weight of each row over the largest; z are the log odds of outcomes y, or residuals of at most
    `bound`, and are moved by every tree. There are at most 2^bits rows. `least` are the smallest gain of a split, mass
    of a node and bend of a row. The values of every row's leaves are added to `total`, unless that is empty. Histograms
    begin with a cache line, so that no bin lies on two.
    """
    n_trees, n_leaves, _ = value.shape
    n = len(cells)
    records = _on_lines(LANES * n).reshape(-1, LANES)
    tables = _on_lines(n_leaves * bundles.size * LANES).reshape(2, n_leaves // 2, bundles.size, LANES)
    sums, below, f = np.zeros((2, n_leaves, LANES)), np.zeros((LANES + 1, offsets[-1])), np.empty(n)
    order, starts = np.zeros((3, n + 1), np.uint32), np.zeros((2, n_leaves + 1), np.intp)
    _lay_masses(share, bits, records)
    for t in range(n_trees):
        if is_mirror:
            _lay_bends(share, z, y, bits, least[2], f, records)
        else:
            _lay_residuals(share, z, bound, bits, records[:, 3])
        _add_everyone(bundles, offsets, records, tables[0, 0], sums[0, 0])
        for i in range(n):
            order[0, i] = i
        starts[0, 0], starts[0, 1] = 0, n
        first, n_nodes, now = 0, 1, 0
        while True:
            inner = slice(first, first + n_nodes)
            _split_nodes(tables[now], offsets, sums, now, min_mass, least, below, feature[t, inner], cut[t, inner])
            if 2 * n_nodes == n_leaves:
                break
            for k in range(n_nodes):
                _deal_rows(cells, offsets, feature[t, first + k], cut[t, first + k], order, starts, now, k)
                _add_children(bundles, offsets, records, order, starts, tables, sums, feature[t, first + k], now, k)
            starts[1 - now, 2 * n_nodes] = n
            first, n_nodes, now = 2 * first + 1, 2 * n_nodes, 1 - now
        _set_values(sums[1 - now], shrinkage, value[t])
        bound += _largest(value[t])
        for k in range(n_nodes):
            rows = order[now, starts[now, k] : starts[now, k + 1]]
            two = value[t, 2 * k : 2 * k + 2]
            _move(cells, offsets, feature[t, first + k], cut[t, first + k], rows, two, 1.0 if is_mirror else -1.0, z)
            if len(total) > 0:
                _move(cells, offsets, feature[t, first + k], cut[t, first + k], rows, two, 1.0, total)


@_compile
def _on_lines(size: int) -> FloatArray:
    """Return zeros that begin with a cache line."""
    wide = np.zeros(size + LINE)
    start = -(wide.ctypes.data // wide.itemsize) % LINE
    return wide[start : start + size]


@_compile
def _add_everyone(
    bundles: Bundles, offsets: IntArray, records: FloatArray, table: FloatArray, total: FloatArray
) -> None:
    """Add all rows up at the root."""
    table[:] = 0.0
    columns, lanes, flat = bundles.columns, records.reshape(-1), table.reshape(-1)
    for i in range(len(columns)):
        for j in range(columns.shape[1]):
            add_four(flat, np.intp(columns[i, j]) * LANES, lanes, i * LANES)
    _unpack(bundles, flat)
    _add_totals(table, offsets[1], total)


@_compile
def _unpack(bundles: Bundles, flat: FloatArray) -> None:
    """Add the cells that features share up to the bins of each."""
    for k in range(len(bundles.source)):
        add_four(flat, bundles.target[k] * LANES, flat, bundles.source[k] * LANES)


@_compile
def _add_rows(bundles: Bundles, records: FloatArray, rows: NDArray[np.uint32], table: FloatArray) -> None:
    """Add the records of some rows to the bins of all features."""
    table[:] = 0.0
    columns, lanes, flat = bundles.columns, records.reshape(-1), table.reshape(-1)
    for i in rows:
        for j in range(columns.shape[1]):
            add_four(flat, np.intp(columns[i, j]) * LANES, lanes, np.intp(i) * LANES)
    _unpack(bundles, flat)


@_compile
def _split_nodes(
    table: FloatArray,
    offsets: IntArray,
    sums: FloatArray,
    now: int,
    min_mass: float,
    least: tuple[float, float, float],
    below: FloatArray,
    feature: IntArray,
    cut: IntArray,
) -> None:
    """Find the best cut of every node of a level, and share its sums among its children."""
    for k in range(len(feature)):
        here, total = table[k], sums[now, k]
        feature[k], cut[k] = _best_cut(here, offsets, total, min_mass, least, below)
        _share(here, offsets, feature[k], cut[k], total, sums[1 - now, 2 * k], sums[1 - now, 2 * k + 1])  # type: ignore[arg-type]


@_compile
def _best_cut(
    table: FloatArray,
    offsets: IntArray,
    total: FloatArray,
    min_mass: float,
    least: tuple[float, float, float],
    below: FloatArray,
) -> tuple[int, int]:
    """Return what `_best_split` does, for one residual."""
    best, feature, cut = least[0], -1, 0
    if total[0] <= least[1]:
        return feature, cut
    score = below[LANES]
    for j in range(len(offsets) - 1):
        start, last = offsets[j], offsets[j + 1] - 1
        _sum_below(table, start, last, below)
        _lay_gains(below, start, last, total, min_mass, least[1])
        top = -np.inf
        for b in range(start, last):
            top = score[b] if score[b] > top else top
        if top > best * (1.0 + TIE):
            best, feature, cut = top, j, 0
            while score[start + cut] < top - TIE * abs(top):
                cut += 1
    return feature, cut


@_compile
def _sum_below(table: FloatArray, start: int, last: int, below: FloatArray) -> None:
    """Fill in the sums up to every bin of a feature."""
    mass, square, bend, residual = 0.0, 0.0, 0.0, 0.0
    for b in range(start, last):
        mass += table[b, 0]
        square += table[b, 1]
        bend += table[b, 2]
        residual += table[b, 3]
        below[0, b], below[1, b], below[2, b], below[3, b] = mass, square, bend, residual


@_compile
def _lay_gains(below: FloatArray, start: int, last: int, total: FloatArray, min_mass: float, least: float) -> None:
    """Fill in what a cut after every bin gains, as `_gain` does: this loop is vectorised."""
    whole = total[3] * total[3] / max(total[2], TINY)
    mass, square, bend, residual, score = below[0], below[1], below[2], below[3], below[4]
    for b in range(start, last):
        m, s, h, g = mass[b], square[b], bend[b], residual[b]
        rest, rest_square, rest_bend, other = total[0] - m, total[1] - s, total[2] - h, total[3] - g
        s, rest_square = s if s > TINY else TINY, rest_square if rest_square > TINY else TINY
        is_large = (m > least) & (rest > least) & (m * m >= min_mass * s) & (rest * rest >= min_mass * rest_square)
        gain = g * g / h + other * other / rest_bend - whole
        score[b] = gain if is_large & (h > 0.0) & (rest_bend > 0.0) else -np.inf


@_compile
def _deal_rows(
    cells: NDArray[np.uint16],
    offsets: IntArray,
    feature: int,
    cut: int,
    order: NDArray[np.uint32],
    starts: IntArray,
    now: int,
    k: int,
) -> None:
    """Put the rows of a node into its children, in the order of the rows; without a split, all go left."""
    start, stop = starts[now, k], starts[now, k + 1]
    edge, j = (offsets[feature] + cut, feature) if feature >= 0 else (offsets[-1], 0)
    n_left, n_right = int(start), 0
    for i in order[now, start:stop]:
        goes_right = int(cells[i, j] > edge)
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
    one, other = tables[later, small], tables[later, large]
    if feature < 0:
        one[:] = 0.0
        other[:] = 0.0
        return
    _add_rows(bundles, records, order[later, starts[later, small] : starts[later, small + 1]], one)
    parent = tables[now, k]
    for b in range(offsets[-1]):
        for c in range(LANES):
            other[b, c] = parent[b, c] - one[b, c]
    _add_totals(one, offsets[1], sums[later, small])
    _add_totals(other, offsets[1], sums[later, large])


@_compile
def _move(
    cells: NDArray[np.uint16],
    offsets: IntArray,
    feature: int,
    cut: int,
    rows: NDArray[np.uint32],
    value: FloatArray,
    sign: float,
    z: FloatArray,
) -> None:
    """Add the values of two leaves, or take them off, for their rows."""
    edge, j = (offsets[feature] + cut, feature) if feature >= 0 else (offsets[-1], 0)
    for i in rows:
        z[i] += sign * value[np.intp(cells[i, j] > edge), 0]


# --- what is added up ------------------------------------------------------------------------------------------


@_compile
def fill_records(
    share: FloatArray, state: FloatArray, is_mirror: bool, bound: float, bits: int, least: float, records: FloatArray
) -> None:
    """Set what is added up for every row: mass, its square, the bend and the residuals, rounded as in `growing`."""
    _lay_masses(share, bits, records)
    if is_mirror:
        _lay_bends(share, state[:, 0], state[:, 1], bits, least, np.empty(len(share)), records)
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
    own = ldexp(1.5, max(frexp(max(bound, TINY))[1] + bits, -948))
    for i in range(len(share)):
        out[i] = (share[i] * z[i] + own) - own


@_compile
def _lay_bends(
    share: FloatArray, z: FloatArray, y: FloatArray, bits: int, least: float, f: FloatArray, records: FloatArray
) -> None:
    """Set the residual and the curvature f (1 - f) of every row at the log odds z of f, which is set."""
    for i in range(len(f)):
        f[i] = z[i]
    set_sigmoids(f)
    one = ldexp(1.5, 1 + bits)
    for i in range(len(f)):
        curvature = f[i] * (1.0 - f[i])
        records[i, 2] = (share[i] * (curvature if curvature > least else least) + one) - one
        records[i, 3] = (share[i] * (y[i] - f[i]) + one) - one


@_compile
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


# --- rows in several pieces ------------------------------------------------------------------------------------


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


# --- of both ---------------------------------------------------------------------------------------------------


@compile_kernel
def _add_totals(table: FloatArray, stop: int, total: FloatArray) -> None:
    """Add the bins of the first feature up: every row lies in one of them."""
    total[:] = 0.0
    for b in range(stop):
        for c in range(len(total)):
            total[c] += table[b, c]


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


# --- what trees say of rows ------------------------------------------------------------------------------------


@_compile
def follow(
    codes: NDArray[np.uint8], feature: IntArray, cut: IntArray, value: FloatArray, z: FloatArray, path: FloatArray
) -> None:
    """Write the log odds z of every row after each tree, shape (trees, rows)."""
    n_inner = feature.shape[1]
    for t in range(len(feature)):
        for i in range(len(codes)):
            k = 0
            while k < n_inner:
                f = feature[t, k]
                k = 2 * k + 1 + (f >= 0 and codes[i, f] > cut[t, k])
            path[t, i] = (z[i] if t == 0 else path[t - 1, i]) + value[t, k - n_inner, 0]


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
