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

from lowcal.kernels.exact import Grid
from lowcal.kernels.reference import rows_in_cache
from lowcal.kernels.simplex import FloatArray, IntArray

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

    def take(self, rows: IntArray | NDArray[np.bool_] | slice) -> Line:
        """Return some of the rows."""
        return Line(*(a[rows] for a in self))

    @property
    def moving(self) -> NDArray[np.bool_]:
        """Which rows move, and have weight."""
        return np.asarray((np.abs(self.delta) > TINY) & (self.weight > 0.0))

    def limits(self) -> tuple[FloatArray, FloatArray]:
        """Return the end of every row, 0 or 1, and the step at which it is reached; all rows move."""
        end = (self.delta > 0.0).astype(np.float64)
        return end, (end - self.f) / self.delta


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
    line = line.take(line.moving)
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
    """Rows in bins of their limits: sums that add up exactly on a grid, and the least and the largest limit of each.

    A row loses w (y - f - eta delta)^2 until eta = limit = (end - f) / delta, then w (y - end)^2. The sums of a bin are
    those of w delta^2, w delta (y - f), w (y - f)^2, w (y - end)^2, and w (y - f)^2 of the rows that move away from y.
    """

    def __init__(self, scale: float, grid: Grid) -> None:
        self.scale, self.grid = scale, grid
        self._sums = np.zeros((BINS, 5), dtype=np.int64)
        self._least, self._largest = np.full(BINS, np.inf), np.zeros(BINS)

    @classmethod
    def of(cls, scale: float, grid: Grid, sums: FloatArray, limits: FloatArray) -> Clipping:
        """Return bins by their sums, shape (BINS, 5), and their least and largest limits, shape (BINS, 2)."""
        bins = cls(scale, grid)
        bins._sums += grid.wholes(sums)
        bins._least, bins._largest = limits.T.copy()
        return bins

    def add(self, line: Line) -> None:
        """Add rows, a piece at a time."""
        for part in rows_in_cache(len(line.f), 4):
            piece = line.take(part)
            moving = piece.take(piece.moving)
            end, limit = moving.limits()
            where = _bins(limit, self.scale)
            f, y, delta, weight = moving
            gap = y - f
            loss = weight * gap * gap
            away = np.where(gap * delta < 0.0, loss, 0.0)
            terms = (weight * delta * delta, weight * delta * gap, loss, weight * np.square(y - end), away)
            rounded = self.grid.round(np.array(terms).T).T
            self._sums += self.grid.wholes(np.array([np.bincount(where, one, BINS) for one in rounded]).T)
            np.minimum.at(self._least, where, limit)
            np.maximum.at(self._largest, where, limit)

    def __add__(self, other: Clipping) -> Clipping:
        both = Clipping(self.scale, self.grid)
        both._sums = self._sums + other._sums
        both._least, both._largest = np.minimum(self._least, other._least), np.maximum(self._largest, other._largest)
        return both

    @property
    def bins(self) -> FloatArray:
        """The five sums of every bin, its least and its largest limit."""
        return np.column_stack([self.grid.floats(self._sums), self._least, self._largest])


def bins_of(line: Line, scale: float) -> IntArray:
    """Return the bin of each row: the one of its limit; BINS for rows that do not move."""
    where = np.full(len(line.f), BINS)
    where[line.moving] = _bins(line.take(line.moving).limits()[1], scale)
    return where


def _bins(limit: FloatArray, scale: float) -> IntArray:
    """Return the bins BINS limit / (limit + scale), which grow with the limits."""
    share = np.divide(1.0, 1.0 + np.divide(scale, limit, out=np.full(len(limit), np.inf), where=limit > 0.0))
    return np.asarray(np.minimum(share * BINS, BINS - 1).astype(np.intp))


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
    end, limit = line.limits()
    order = np.argsort(limit, kind="stable")
    limit, where = limit[order], where[order]
    gap, w = (y - f)[order], weight[order]
    move, rest = delta[order], (y - end)[order]
    o = Outside(*(a[where] for a in outside))
    first = np.concatenate([[True], where[1:] != where[:-1]])
    starts, run = np.flatnonzero(first), np.cumsum(first) - 1

    def suffix(x: FloatArray) -> FloatArray:
        """Return the sums of x from each place to the end of its run."""
        total = np.cumsum(x[::-1])[::-1]
        return np.asarray(total - np.append(total[starts[1:]], 0.0)[run])

    terms = w * move * move, w * move * gap, w * gap * gap
    bend, cross, square = (suffix(x) + a for x, a in zip(terms, o[:3], strict=True))
    ends = np.cumsum(w * rest * rest)
    before = np.concatenate([[0.0], ends[:-1]])
    constant = o.constant + (before - before[starts][run])
    low = np.where(first, o.start, np.concatenate([[0.0], limit[:-1]]))
    eta = _vertex(bend, cross, low, limit)
    loss = constant + square - 2.0 * eta * cross + eta * eta * bend
    # with all rows in one bin, the step at which the last one stops
    last = limit[-1] if len(outside.start) == 1 else 0.0
    at_last = ends[-1] if len(outside.start) == 1 else np.inf
    return np.append(eta, last), np.append(loss, at_last)
