"""The best step along a clipped line: the exact line search of scalar predictions (spec 4.4).

    min over eta >= 0 of   sum_i w_i (y_i - clip(f_i + eta delta_i, 0, 1))^2

A row moves until it reaches its end, 0 or 1, at the step limit_i = (end_i - f_i) / delta_i. Between the limits the loss
is quadratic, but it is not convex: every piece is looked at. Sorting all limits is the definition. Many rows are put
into bins of their limits instead: the sums of each bin give the loss exactly up to the first limit in the bin and from
the last one on, and a lower bound in between, so that only the few bins in which the minimum may hide are sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.exact import BLOCK, Grid
from lowcal.kernels.reference import rows_in_cache
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.kernels.switch import kernels_for

#: From this many rows on, they are binned before they are sorted.
BINNED_FROM = 5_000
#: A bin that may hide the minimum holds a small share of the rows, and all bins stay in the second cache.
BINS = 2_048
#: Displacements below this move nothing, and their limits would overflow.
TINY = 1e-150


class Line(NamedTuple):
    """The rows of a line: predictions, outcomes, displacements, weights."""

    f: FloatArray
    y: FloatArray
    delta: FloatArray
    weight: FloatArray

    def take(self, rows: IntArray | NDArray[np.bool_]) -> Line:
        """Return some of the rows."""
        return Line(*(a[rows] for a in self))


class Outside(NamedTuple):
    """For each bin: what rows of later bins add to the quadratic, of earlier ones to the constant, and where it starts.

    The loss of rows outside the bin is constant_ + square - 2 eta cross + eta^2 bend while eta lies in the bin.
    """

    bend: FloatArray
    cross: FloatArray
    square: FloatArray
    constant: FloatArray
    start: FloatArray


#: Which bins may hide the best step -> their rows, and the bin of each row.
Fetch = Callable[[NDArray[np.bool_]], tuple[Line, NDArray[np.integer]]]


def sorted_step(line: Line) -> float:
    """Return the global minimiser, of several the smallest but for rounding, from all rows: the definition.

    >>> f, y, w = np.array([0.5, 0.9]), np.array([1.0, 0.0]), np.array([0.5, 0.5])
    >>> sorted_step(Line(f, y, np.array([0.25, -0.25]), w))
    3.6
    """
    line = line.take((np.abs(line.delta) > TINY) & (line.weight > 0.0))
    nothing = np.zeros(1)
    return _best(*_pieces(line, np.zeros(len(line.f), dtype=np.intp), Outside(*[nothing] * 5)))


def binned_step(clipping: Clipping, fetch: Fetch) -> float:
    """Return the best step from bins, and from the rows of those bins in which it may hide."""
    bins = clipping.bins
    outside = _outside(bins)
    at_bins = _between(bins, outside)
    hidden = _may_hide(bins, outside, at_bins[1].min())
    inside = _pieces(*fetch(hidden), outside) if hidden.any() else (np.zeros(0), np.zeros(0))
    return _best(*(np.concatenate(pair) for pair in zip(at_bins, inside, strict=True)))


def _best(eta: FloatArray, loss: FloatArray) -> float:
    return float(eta[int(loss.argmin())])


class Clipping:
    """Rows in bins of their limits: sums that add up exactly on a grid, and the least and the largest limit of each."""

    def __init__(self, scale: float, grid: Grid | None = None) -> None:
        self.scale, self.grid, self.held = scale, grid, 0
        self.far = np.zeros(5) if grid is None else grid.far
        self._open, self._sums = _empty_bins(), np.zeros((BINS, 5), dtype=np.int64)

    @classmethod
    def of(cls, scale: float, grid: Grid, sums: FloatArray, limits: FloatArray) -> Clipping:
        """Return bins by their sums, shape (BINS, 5), and their least and largest limits, shape (BINS, 2)."""
        bins = cls(scale, grid)
        bins._sums += grid.wholes(sums)
        bins._open[:, 5:] = limits
        return bins

    def add(self, line: Line) -> NDArray[np.uint16]:
        """Add rows; return the bin of each, BINS for rows that do not move."""
        n = len(line.f)
        where = np.empty(n, dtype=np.uint16)
        add_clipped = kernels_for(8 * n).add_clipped
        for part in rows_in_cache(n, 4):
            piece = [np.ascontiguousarray(a[part]) for a in line]
            if self.held + len(piece[0]) > BLOCK:
                self._flush()
            self.held += len(piece[0])
            add_clipped(*piece, self.scale, TINY, self._open, where[part], self.far)
        return where

    def _flush(self) -> None:
        if self.grid is not None:
            self._sums += self.grid.wholes(self._open[:, :5])
            self._open[:, :5] = 0.0
            self.held = 0

    def __add__(self, other: Clipping) -> Clipping:
        both = Clipping(self.scale, self.grid)
        for one in (self, other):
            one._flush()
            both._sums += one._sums
            np.minimum(both._open[:, 5], one._open[:, 5], out=both._open[:, 5])
            np.maximum(both._open[:, 6], one._open[:, 6], out=both._open[:, 6])
        return both

    @property
    def bins(self) -> FloatArray:
        """The sums and limits of every bin (see `add_clipped`)."""
        self._flush()
        bins = self._open.copy()
        if self.grid is not None:
            bins[:, :5] = self.grid.floats(self._sums)
        return bins


def _empty_bins() -> FloatArray:
    """Return bins without rows."""
    bins = np.zeros((BINS, 7))
    bins[:, 5] = np.inf
    return bins


def _outside(bins: FloatArray) -> Outside:
    """Return what the other bins add inside each bin."""
    after = np.cumsum(bins[:0:-1, :3], axis=0)[::-1]
    bend, cross, square = np.vstack([after, np.zeros((1, 3))]).T
    before = np.concatenate([[0.0], np.cumsum(bins[:-1, 3])])
    start = np.concatenate([[0.0], np.maximum.accumulate(bins[:-1, 6])])
    return Outside(bend, cross, square, before, start)


def _vertex(bend: FloatArray, cross: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return where square - 2 eta cross + eta^2 bend is least between low and high."""
    return np.asarray(np.clip(np.divide(cross, bend, out=low.copy(), where=bend > 0.0), low, high))


def _between(bins: FloatArray, o: Outside) -> tuple[FloatArray, FloatArray]:
    """Return steps and exact losses: the best step between the limits of two bins, and the last limit of each bin."""
    full = bins[:, 6] >= bins[:, 5]
    bend, cross, square, ends, _, low, high = bins[full].T
    o = Outside(*(a[full] for a in o))
    eta = _vertex(o.bend + bend, o.cross + cross, o.start, low)
    loss = o.constant + o.square + square - 2.0 * eta * (o.cross + cross) + eta * eta * (o.bend + bend)
    end = o.constant + ends + o.square - 2.0 * high * o.cross + high * high * o.bend
    return np.concatenate([[0.0], eta, high]), np.concatenate([[bins[:, 2].sum()], loss, end])


def _may_hide(bins: FloatArray, o: Outside, best: float) -> NDArray[np.bool_]:
    """Say in which bins a step between the first and the last limit may lose less than `best`.

    Rows of the bin lose at least 0, and those that move away from their outcome at least what they lose now.
    """
    low, high = bins[:, 5], bins[:, 6]
    wide = high > low
    eta = _vertex(o.bend, o.cross, np.where(wide, low, 0.0), np.where(wide, high, 0.0))
    least = o.constant + bins[:, 4] + o.square - 2.0 * eta * o.cross + eta * eta * o.bend
    return wide & (least <= best + 1e-12 * abs(best))


def _pieces(line: Line, where: NDArray[np.integer], outside: Outside) -> tuple[FloatArray, FloatArray]:
    """Return the best step before each limit and after the one before it in its bin, and its loss; last, the end."""
    f, y, delta, weight = line
    if len(f) == 0:
        return np.zeros(1), np.full(1, np.inf)
    end = (delta > 0.0).astype(np.float64)
    limit = (end - f) / delta
    order = np.argsort(limit, kind="stable")
    limit, where = limit[order], where[order]
    gap, w = (y - f)[order], weight[order]
    move, rest = delta[order], (y - end)[order]
    o = Outside(*(a[where] for a in outside))
    first = np.concatenate([[True], where[1:] != where[:-1]])
    bend, cross, square = (
        _suffix(x, first) + a for x, a in zip((w * move * move, w * move * gap, w * gap * gap), o[:3], strict=True)
    )
    ends = np.cumsum(w * rest * rest)
    constant = o.constant + _since(np.concatenate([[0.0], ends[:-1]]), first)
    low = np.where(first, o.start, np.concatenate([[0.0], limit[:-1]]))
    eta = _vertex(bend, cross, low, limit)
    loss = constant + square - 2.0 * eta * cross + eta * eta * bend
    # with all rows in one bin, the step at which the last one stops
    last = limit[-1] if len(outside.start) == 1 else 0.0
    at_last = ends[-1] if len(outside.start) == 1 else np.inf
    return np.append(eta, last), np.append(loss, at_last)


def _suffix(x: FloatArray, first: NDArray[np.bool_]) -> FloatArray:
    """Return the sums of x from each place to the end of its run; runs begin where `first` is true."""
    total = np.cumsum(x[::-1])[::-1]
    starts = np.flatnonzero(first)
    beyond = np.append(total[starts[1:]], 0.0)
    return np.asarray(total - np.repeat(beyond, np.diff(np.append(starts, len(x)))))


def _since(x: FloatArray, first: NDArray[np.bool_]) -> FloatArray:
    """Return the growth of x since the start of each run."""
    starts = np.flatnonzero(first)
    return x - np.repeat(x[starts], np.diff(np.append(starts, len(x))))
