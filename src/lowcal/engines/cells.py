"""Cells: rows with the same codes move together, so that Algorithm 1 can run on patterns of codes instead of rows.

An update of Algorithm 1 with a weight 1 or f maps f to f + eta c or f + eta c f, and c is the same for all rows of a
pattern of codes. So f = a + b f_0 there, and five sums (of w, w y, w f_0, w f_0^2, w y f_0) give the moments
E[c (y - f)], E[c f (y - f)] and the Brier score of all rows, exactly. This holds until the projection clips a row. Then
the cell is cut: b > 0, so the clipped rows are the first or the last in the order of f_0, and from then on they share
one prediction, 0 or 1 at first: b = 0. A row is cut off once, so that all cuts of a run cost one pass over the rows.
Paper: Algorithm 1, with the weights of Definition 3.2 at degree 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowcal.engines.kernels import kernels_for
from lowcal.engines.reference import CACHE, Codes, Decode, Design, Stacked, Table
from lowcal.simplex import FloatArray, IntArray, binary_log_losses

#: Fewer rows a pattern than this are not worth a cell.
ROWS_A_PATTERN = 4
#: Pairs (pattern, code) are numbered by counting up to so many for each row, by sorting above.
COUNTS_A_ROW = 4
#: Cells that could be joined are left as they are up to this share: joining costs more than carrying them along.
SHARE_OF_DOUBLES = 0.05
#: Loading the compiled log loss pays as if so many numbers a row were touched: rounds are many.
ROUNDS = 8


@dataclass(frozen=True, eq=False)
class SortedRows:
    """Rows that stand together by pattern; inside a pattern they are sorted by f_0 when it is first cut.

    `order` says which row stands where, `starts` where each pattern starts, `design` who belongs to a pattern's groups.
    Labels take a byte, equal weights nothing.
    """

    order: IntArray
    f: FloatArray
    y: FloatArray
    weight: FloatArray
    starts: IntArray
    design: Codes
    is_sorted: NDArray[np.bool_]
    losses: Losses = field(default_factory=lambda: Losses())

    def sort(self, patterns: IntArray) -> None:
        """Sort the rows of these patterns by start value, in place: sums over cells do not change."""
        stops = np.append(self.starts[1:], len(self.f))
        for k in dict.fromkeys(patterns[~self.is_sorted[patterns]].tolist()):
            here = slice(self.starts[k], stops[k])
            by_f = np.argsort(self.f[here], kind="stable")
            for run in (self.order, self.f, self.y, self.weight):
                if run.flags.writeable:  # equal weights are one number
                    run[here] = run[here][by_f]
            self.is_sorted[k] = True

    def clipped(self, start: IntArray, stop: IntArray, a: FloatArray, b: FloatArray, end: float) -> IntArray:
        """Return how many rows of each sorted run have a + b f_0 < 0 (end = 0), or a + b f_0 > 1 (end = 1)."""
        size = stop - start

        def holds(count: IntArray) -> NDArray[np.bool_]:
            """Whether so many rows are clipped: those nearest to the end are the first, or the last, of a run."""
            within = np.minimum(count, size)
            f = a + b * self.f[stop - within if end else start + within - 1]
            return np.asarray((count <= size) & ((f > 1.0) if end else (f < 0.0)))

        count, bits = np.zeros_like(size), 0
        while holds(count + (1 << bits)).any():  # most cuts are of few rows: doubling finds that out soon
            bits += 1
        for bit in reversed(range(bits)):
            count = count + (holds(count + (1 << bit)) << bit)
        return count

    def sums(self, rows: IntArray | slice, offsets: IntArray) -> FloatArray:
        """Return the sums of w, w y, w f_0, w f_0^2 and w y f_0 over runs of these rows, shape (5, runs)."""
        w, y, f = self.weight[rows], self.y[rows], self.f[rows]
        total = np.empty((5, len(offsets)))
        total[0], total[1] = np.add.reduceat(w, offsets), np.add.reduceat(w * y, offsets)
        product = w * f
        total[2] = np.add.reduceat(product, offsets)
        total[3], total[4] = np.add.reduceat(product * f, offsets), np.add.reduceat(product * y, offsets)
        return total

    @property
    def is_even(self) -> bool:
        """Whether all rows weigh the same and all labels are 0 or 1."""
        return self.y.dtype == np.uint8 and not self.weight.flags.writeable

    @cached_property
    def square(self) -> float:
        """The sum of w y^2, which no update changes."""
        return float(np.einsum("i,i,i->", self.weight, self.y, self.y))


@dataclass(frozen=True, eq=False)
class Cells:
    """Predictions f = a + b f_0, or f = a where b = 0, on runs of rows with one pattern of codes.

    A value: `moved` returns new cells. `low` and `high` are the least and the largest f_0 where b > 0.
    """

    rows: SortedRows
    starts: IntArray
    pattern: IntArray
    a: FloatArray
    b: FloatArray
    sums: FloatArray
    low: FloatArray
    high: FloatArray

    @property
    def stops(self) -> IntArray:
        """Where each run ends."""
        return np.append(self.starts[1:], len(self.rows.f))

    def members(self, j: int) -> FloatArray:
        """Return the membership of every pattern in the subpopulation j."""
        return self.rows.design.column(j)

    def moments(self, power: int) -> FloatArray:
        """Return E[c f^power (y - f)] for every subpopulation c; the power is 0 or 1.

        >>> one = Codes((np.zeros(4, dtype=np.uint8),), (Table(sparse.csr_array(np.ones((1, 1)))),))
        >>> f, y = np.array([[0.25], [0.5], [0.5], [0.75]]), np.array([[1.0], [1.0], [0.0], [1.0]])
        >>> cells = Cells.of(one, f, y, np.full(4, 0.25))
        >>> [(one.moments(0).item(), one.moments(1).item()) for one in (cells, cells.moved(np.ones(1), 0, 0.25))]
        [(0.25, 0.09375), (0.0, -0.03125)]
        """
        rest = self._cross - self._squares if power else self._residual
        if len(self.starts) > len(self.rows.starts):
            rest = np.add.reduceat(rest, np.searchsorted(self.pattern, np.arange(len(self.rows.starts))))
        return self.rows.design.moments(rest[:, None])[:, 0]

    @property
    def _residual(self) -> FloatArray:
        """The sum of w (y - f)."""
        w, wy, wf, _, _ = self.sums
        return np.asarray(wy - (self.a * w + self.b * wf))

    @property
    def _cross(self) -> FloatArray:
        """The sum of w y f."""
        _, wy, _, _, wyf = self.sums
        return np.asarray(self.a * wy + self.b * wyf)

    @property
    def _squares(self) -> FloatArray:
        """The sum of w f^2."""
        w, _, wf, wff, _ = self.sums
        return np.asarray(self.a * (self.a * w + 2.0 * (self.b * wf)) + self.b * self.b * wff)

    def brier(self) -> float:
        """Return E(y - f)^2."""
        return self.rows.square + float((self._squares - 2.0 * self._cross).sum())

    def log_loss(self) -> float:
        """Return the log loss; only cells that have moved since it was last asked for are read row by row."""
        return self.rows.losses(self)

    def values(self, some: IntArray) -> tuple[FloatArray, IntArray]:
        """Return the predictions of the rows of some cells, one cell after the other, and their places."""
        start, stop = self.starts[some], self.stops[some]
        size, rows = stop - start, ranges(start, stop)
        f = self.rows.f[rows] * np.repeat(self.b[some], size)
        f += np.repeat(self.a[some], size)
        return np.clip(f, 0.0, 1.0, out=f), rows

    def predictions(self) -> FloatArray:
        """Return the predictions of all rows in their own order, shape (n, 1)."""
        p = np.empty((len(self.rows.f), 1))
        for some in blocks(np.arange(len(self.starts)), len(p)):
            f, rows = self.values(some)
            p[self.rows.order[rows], 0] = f
        return p

    def moved(self, inside: FloatArray, power: int, step: float) -> Cells:
        """Return the cells after f <- clip(f + step c f^power, 0, 1), where c is `inside` for each pattern."""
        shift = step * inside[self.pattern]
        a, b = (self.a + shift, self.b) if power == 0 else (self.a + shift * self.a, self.b + shift * self.b)
        is_point = b == 0.0
        a = np.where(is_point, np.clip(a, 0.0, 1.0), a)
        out = ((a + b * self.low < 0.0) | (a + b * self.high > 1.0)) & ~is_point
        moved = replace(self, a=a, b=b)
        return moved._cut(np.flatnonzero(out)) if out.any() else moved

    def _cut(self, cells: IntArray) -> Cells:
        """Cut the rows with f < 0 and f > 1 off some cells, and give them the predictions 0 and 1."""
        a, b, start, stop = self.a[cells], self.b[cells], self.starts[cells], self.stops[cells]
        self.rows.sort(self.pattern[cells])
        inside = start + self.rows.clipped(start, stop, a, b, 0.0)
        above = stop - self.rows.clipped(start, stop, a, b, 1.0)
        parts = np.array([inside > start, above > inside, stop > above])
        size = np.ones(len(self.starts), dtype=np.intp)
        size[cells] = parts.sum(axis=0)
        place = (np.cumsum(size) - size)[cells] + np.cumsum(parts, axis=0) - parts
        lower, middle, upper = (at[is_there] for at, is_there in zip(place, parts, strict=True))
        new = self._take(np.repeat(np.arange(len(size)), size))
        new.starts[middle], new.starts[upper] = inside[parts[1]], above[parts[2]]
        new.low[middle], new.high[middle] = self.rows.f[inside[parts[1]]], self.rows.f[above[parts[1]] - 1]
        new.a[lower], new.a[upper] = 0.0, 1.0
        new.b[lower], new.b[upper] = 0.0, 0.0
        new._share_sums(place, parts)
        return new._merged()

    def _take(self, which: IntArray) -> Cells:
        """Return fresh cells: those at these places, which may occur several times."""
        w, sums = which, self.sums[:, which]
        return Cells(self.rows, self.starts[w], self.pattern[w], self.a[w], self.b[w], sums, self.low[w], self.high[w])

    def _share_sums(self, place: IntArray, parts: NDArray[np.bool_]) -> None:
        """Share the sums of cells among their parts: what is cut off is added up, and taken from what is left."""
        is_cut = parts.sum(axis=0) > 1
        off = np.concatenate([place[k][parts[k] & is_cut] for k in (0, 2)])
        if len(off):
            start, stop = self.starts[off], self.stops[off]
            self.sums[:, off] = self.rows.sums(ranges(start, stop), np.cumsum(stop - start) - (stop - start))
        for k in (0, 2):
            both = parts[1] & parts[k]
            self.sums[:, place[1][both]] -= self.sums[:, place[k][both]]

    def _merged(self) -> Cells:
        """Return the cells with neighbours joined that share a pattern and one prediction, once these are not few."""
        is_point = self.b == 0.0
        same = is_point[1:] & is_point[:-1] & (self.pattern[1:] == self.pattern[:-1]) & (self.a[1:] == self.a[:-1])
        if SHARE_OF_DOUBLES * len(self.b) > np.count_nonzero(same):
            return self
        kept = np.flatnonzero(np.append(True, ~same))
        return replace(self._take(kept), sums=np.add.reduceat(self.sums, kept, axis=1))

    @classmethod
    def of(cls, design: Design, p: FloatArray, y: FloatArray, weight: FloatArray) -> Cells | None:
        """Return one cell for each pattern of codes, with f = f_0 = p; None if there are no codes or many patterns.

        Cost: a sort of the patterns; 13 bytes a row, 28 where weights differ and outcomes are no labels.

        Parameters
        ----------
        design : the memberships; only code columns have patterns.
        p, y, weight : start, outcomes (one column each) and weights that sum to one.
        """
        codes = _code_columns(design)
        found = None if codes is None else patterns(codes, len(p) // ROWS_A_PATTERN)
        if codes is None or found is None:
            return None
        ids, count = found
        order, sizes = np.argsort(ids, kind="stable"), np.bincount(ids, minlength=count)
        starts = np.cumsum(sizes) - sizes
        shared, order = _shared(codes, order[starts]), order.astype(np.min_scalar_type(len(p)))
        rows = _labels(y[order, 0]), _weights(weight, order)
        return cls._at_start(SortedRows(order, p[order, 0], *rows, starts, shared, np.zeros(count, dtype=bool)))

    @classmethod
    def _at_start(cls, rows: SortedRows) -> Cells:
        starts, f, count = rows.starts, rows.f, len(rows.starts)
        low, high = np.minimum.reduceat(f, starts), np.maximum.reduceat(f, starts)
        stops = np.append(starts[1:], len(f))
        parts = [
            (slice(starts[b[0]], stops[b[-1]]), starts[b] - starts[b[0]]) for b in blocks(np.arange(count), len(f))
        ]
        sums = np.concatenate([rows.sums(*part) for part in parts], axis=1)
        return cls(rows, starts, np.arange(count), np.zeros(count), np.ones(count), sums, low, high)


def _labels(y: FloatArray) -> Any:
    """Return labels that are 0 or 1 as bytes."""
    return y.astype(np.uint8) if ((y == 0.0) | (y == 1.0)).all() else y


def _weights(weight: FloatArray, order: IntArray) -> FloatArray:
    """Return the weights in another order; equal weights stay one number, which can't be written to."""
    is_one = bool((weight == weight[0]).all())
    return np.broadcast_to(weight[0], len(weight)) if is_one else np.asarray(weight[order])


class Losses:
    """The log loss of every cell as it was last asked for; what has not moved since is not computed again."""

    def __init__(self) -> None:
        self.last: Cells | None = None
        self.each = np.zeros(0)

    def __call__(self, cells: Cells) -> float:
        """Return the log loss of all rows."""
        each = np.full(len(cells.starts), np.nan) if self.last is None else self._known(self.last, cells)
        some = np.flatnonzero(np.isnan(each))
        if len(some):
            each[some] = _log_losses(cells.rows)(cells, some)
        self.last, self.each = cells, each
        return float(each.sum())

    def _known(self, last: Cells, cells: Cells) -> FloatArray:
        """Return the losses of the cells that are as they were, and nan for the others."""
        at = np.arange(len(last.starts))
        if cells.starts is not last.starts:
            at = np.minimum(np.searchsorted(last.starts, cells.starts), len(last.starts) - 1)
        same = (last.starts[at] == cells.starts) & (last.stops[at] == cells.stops)
        same &= (last.a[at] == cells.a) & (last.b[at] == cells.b)
        return np.where(same, self.each[at], np.nan)


def _log_losses(rows: SortedRows) -> Callable[[Cells, IntArray], FloatArray]:
    """Return what sums the log loss over the rows of some cells; compiled by size alone, where numba is installed."""
    if not kernels_for(ROUNDS * len(rows.f)).compiled:
        return log_losses
    from lowcal.engines import compiled_cells

    def compiled(cells: Cells, some: IntArray) -> FloatArray:
        runs = cells.starts[some], cells.stops[some], cells.a[some], cells.b[some]
        if rows.is_even:
            return compiled_cells.even_log_losses(rows.f, rows.y, rows.weight[0], *runs)
        return compiled_cells.log_losses(rows.f, rows.y, rows.weight, *runs)

    return compiled


def log_losses(cells: Cells, some: IntArray) -> FloatArray:
    """Return the weighted log loss of the rows of some cells, row by row: the definition."""
    return np.concatenate([_block_log_losses(cells, block) for block in blocks(some, len(cells.rows.f))])


def _block_log_losses(cells: Cells, some: IntArray) -> FloatArray:
    f, rows = cells.values(some)
    losses = binary_log_losses(f[:, None], cells.rows.y[rows][:, None])
    losses *= cells.rows.weight[rows]
    size = cells.stops[some] - cells.starts[some]
    return np.add.reduceat(losses, np.cumsum(size) - size)


def blocks(cells: IntArray, n: int) -> list[IntArray]:
    """Cut some cells of n rows into blocks, so that what is made of all their rows at a time stays small.

    >>> [len(block) for block in blocks(np.arange(5), 2 * CACHE)]
    [2, 2, 1]
    """
    return np.array_split(cells, min(len(cells), 1 + n // CACHE))


def ranges(start: IntArray, stop: IntArray) -> IntArray:
    """Return the whole numbers from start to stop of each range, one range after the other.

    >>> ranges(np.array([2, 7]), np.array([5, 9])).tolist()
    [2, 3, 4, 7, 8]
    """
    size = stop - start
    return np.repeat(start - (np.cumsum(size) - size), size) + np.arange(size.sum())


def patterns(design: Codes, most: int) -> tuple[IntArray, int] | None:
    """Return which rows have the same codes, as a number for each row, and how many patterns there are.

    None if there are more than `most`: then the remaining columns are not looked at.

    >>> two = Table(sparse.csr_array(np.eye(2)))
    >>> patterns(Codes((np.array([0, 1, 0, 1]), np.array([1, 1, 1, 0])), (two, two)), 3)
    (array([0, 2, 0, 1], dtype=uint16), 3)
    """
    columns = {id(c): (c, t.shape[0]) for c, t in zip(design.codes, design.decode, strict=True)}
    ids: IntArray = np.zeros(design.shape[0], dtype=_smallest(1))
    count = 1
    for codes, levels in columns.values():
        ids, count = _numbered(ids, codes, levels, count)
        if count > most:
            return None
    return ids, count


def _numbered(ids: IntArray, codes: IntArray, levels: int, count: int) -> tuple[IntArray, int]:
    """Number the pairs (pattern so far, code) that occur; sixteen bits where they suffice, which sort fastest."""
    pairs = ids.astype(np.intp) * levels + codes
    if count * levels <= COUNTS_A_ROW * len(ids):
        seen = np.bincount(pairs, minlength=count * levels) > 0
        found, number = int(seen.sum()), np.cumsum(seen) - 1
        return number.astype(_smallest(found))[pairs], found
    which, place = np.unique(pairs, return_inverse=True)
    return place.astype(_smallest(len(which))), len(which)


def _smallest(count: int) -> Any:
    return np.uint16 if count <= 1 << 16 else np.uint32


def _code_columns(design: Design) -> Codes | None:
    """Return the design as code columns, if it is made of them alone."""
    parts = design.joined() if isinstance(design, Stacked) else (design,)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], Codes) else None


def _shared(design: Codes, rows: IntArray) -> Codes:
    """Return the memberships of some rows, in tables without the levels that do not occur."""
    some = [_used(c[rows], t) for c, t in zip(design.codes, design.decode, strict=True)]
    return Codes(tuple(c for c, _ in some), tuple(t for _, t in some))


def _used(codes: IntArray, decode: Decode) -> tuple[IntArray, Decode]:
    if not isinstance(decode, Table):
        return codes, decode
    levels, place = np.unique(codes, return_inverse=True)
    return place, Table(sparse.csr_array(decode.matrix[levels]))
