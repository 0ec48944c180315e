"""The passes that the solver asks for: each a small value, its sums exact, whatever the order of the rows.

Moments and losses of a state, what a learner is asked about, the evidence and the gradient of a step in log odds, the
slopes along a direction. All of them are sums over rows of functions of a row; a pass defines the function and how
large its terms can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.clipped import TINY, Clipping, Line, bins_of
from lowcal.kernels.exact import ExactSums, Fine, Grid, Tables, Wholes, decode
from lowcal.kernels.logistic import LEAST_CURVATURE, residuals
from lowcal.kernels.reference import CACHE, CHUNK, Design, pieces, rows_in_cache
from lowcal.kernels.simplex import (
    FloatArray,
    Geometry,
    IntArray,
    brier_losses,
    centred,
    from_scores,
    log_losses,
    move,
    scores,
)
from lowcal.notions.base import Witness
from lowcal.notions.moments import MomentSums, residual
from lowcal.notions.weights import Cell, CellIds, LogOdds, LogRest, Monomial, Weight, evaluate, occupied_cells
from lowcal.rows.base import START, Local, Rows, Scale, Shard, State, order_of
from lowcal.rows.updates import Term
from lowcal.subpopulations.base import Family, Residuals

#: Log odds and logarithms of probabilities, kept away from 0 and 1, are smaller than this.
MOST_SCORE = 32.0


def bound_of(weights: Sequence[Weight]) -> float:
    """Return the largest value that the weights can have."""
    return MOST_SCORE if any(isinstance(u, LogOdds | LogRest) for u in weights) else 1.0


# --- losses and moments ---------------------------------------------------------------------------------------


class Lost(NamedTuple):
    """Losses of a state: Brier score, log loss, and how many rows became certain that were not at the start."""

    brier: float
    log_loss: float
    sure: int


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of a state."""

    state: State

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of both losses and the count of certain rows."""
        (squares, logs), p, start = self._grids(shard.scale), shard.at(self.state), shard.at(START)
        total, sure = np.zeros((2, 2), dtype=np.int64), 0
        for part in rows_in_cache(len(p), 4 * p.shape[1]):
            here, y, w = p[part], shard.y[part], shard.weight[part]
            total[0] += squares.wholes(w * brier_losses(here, y))
            total[1] += logs.wholes(w * log_losses(here, y))
            if self.state is not START and (here.min(initial=1.0) <= 0.0 or here.max(initial=0.0) >= 1.0):
                is_sure = (here == 0.0) | (here == 1.0)
                sure += int((is_sure & (start[part] > 0.0) & (start[part] < 1.0)).any(axis=1).sum())
        return Tables([total, np.array(sure)])

    @staticmethod
    def _grids(scale: Scale) -> tuple[Fine, Fine]:
        return scale.fine(2.0), scale.fine(MOST_SCORE)

    def read(self, total: Tables, some: Local, scale: Scale) -> Lost:
        """Return the losses."""
        brier, log_loss = (fine.number(each) for fine, each in zip(self._grids(scale), total[0], strict=True))
        return Lost(brier, log_loss, int(total[1]))


@dataclass(frozen=True, eq=False)
class Moved:
    """How many rows have other predictions after one state than after another."""

    before: State
    after: State

    def __call__(self, shard: Shard) -> int:
        """Return the number of rows of a shard."""
        return int((shard.at(self.before) != shard.at(self.after)).any(axis=1).sum())

    def read(self, total: int, some: Local, scale: Scale) -> int:
        """Return the number."""
        return total


def losses(rows: Rows, state: State) -> Lost:
    """Return the losses of a state, which rows remember for the last few."""
    return rows.lost.once(state, lambda: rows.run(Losses(state)))


@dataclass(frozen=True, eq=False)
class Moments:
    """The moments g(c, u, a) of a state for weights other than cells, shape (m, S, d)."""

    state: State
    families: tuple[Family, ...]
    weights: tuple[Weight, ...]

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of all tables."""
        p, design, rho = shard.at(self.state), shard.design(self.families), residuals_of(shard, self.state)
        return moment_sums(design, self.weights, None, p, rho, shard.scale)

    def read(self, total: Tables, some: Local, scale: Scale) -> FloatArray:
        """Return the moments."""
        return decode_moments(some.design(self.families), self.weights, some.y.shape[1], total, scale)


def residuals_of(shard: Shard, state: State) -> Callable[[slice], FloatArray]:
    """Return the weighted residuals after a state as a function of a slice of the rows."""
    p = shard.at(state)

    def residuals_in(part: slice) -> FloatArray:
        rho = shard.y[part] - p[part]
        rho *= shard.weight[part, None]
        return rho

    return residuals_in


def moment_sums(
    design: Design,
    weights: Sequence[Weight],
    cells: CellIds | None,
    p: FloatArray,
    rho: Callable[[slice], FloatArray],
    scale: Scale,
) -> Tables:
    """Return the sums of the moments of any residuals rho, by a slice of the rows; `cells`: weights that are cells."""
    n, d = p.shape
    if cells is not None:
        return Tables([cell_sums(design, cells, scale.grid(), rho, p.shape)])
    sums = MomentSums(design, weights, d, scale.grid(bound_of(weights)))
    for part in pieces(n, (len(weights) + d) * (CHUNK // CACHE)):
        sums.add(part, p[part], rho(part))
    return sums.wholes()


def decode_moments(
    design: Design, weights: Sequence[Weight], d: int, total: Sequence[Wholes], scale: Scale
) -> FloatArray:
    """Return the moments (m, S, d) from the sums of all shards."""
    if isinstance(weights[0], Cell):
        return scale.grid().floats(total[0])
    S = len(weights)
    return decode(design, S * d, scale.grid(bound_of(weights)), list(total)).reshape(-1, S, d)


@dataclass(frozen=True, eq=False)
class CellSums:
    """Sums (m, cells, q) of the cells of a grid that hold a row; `cells` are in order."""

    cells: IntArray
    sums: Wholes

    def __add__(self, other: CellSums) -> CellSums:
        cells, which = np.unique(np.concatenate([self.cells, other.cells]), axis=0, return_inverse=True)
        sums = np.zeros((len(self.sums), len(cells), self.sums.shape[2]), dtype=np.int64)
        sums[:, which.ravel()[: len(self.cells)]] += self.sums
        sums[:, which.ravel()[len(self.cells) :]] += other.sums
        return CellSums(cells, sums)


@dataclass(frozen=True, eq=False)
class CellMoments:
    """The cells of a width that hold a row after a state, and the moments of each, shape (m, cells, d)."""

    state: State
    families: tuple[Family, ...]
    width: float

    def __call__(self, shard: Shard) -> CellSums:
        """Return the sums of the cells of a shard."""
        p, grid = shard.at(self.state), shard.scale.grid()
        index, which = occupied_cells(p, self.width)
        design, ids = shard.design(self.families), CellIds(which, len(index))
        return CellSums(index, cell_sums(design, ids, grid, residuals_of(shard, self.state), p.shape))

    def read(self, total: CellSums, some: Local, scale: Scale) -> tuple[tuple[Cell, ...], FloatArray]:
        """Return the cells and their moments."""
        cells = tuple(Cell(self.width, tuple(index)) for index in total.cells.tolist())
        return cells, scale.grid().floats(total.sums)


def cell_sums(
    design: Design, U: CellIds, grid: Grid, terms: Callable[[slice], FloatArray], shape: tuple[int, ...]
) -> Wholes:
    """Return the sums of terms (rows, q) by member and cell, a block of the rows at a time."""
    n, q = shape
    total = np.zeros((design.shape[1], U.n_cells, q), dtype=np.int64)
    for part in rows_in_cache(n, max(q, 8)):
        R = grid.round(terms(part))
        total += grid.wholes(design.rows(part).cell_moments(U.ids[part], U.n_cells, R, grid))
    return total


@dataclass(frozen=True, eq=False)
class MassSums:
    """The sums of w and of w^2 of every member, shape (m, 2); copies of a row are squared one by one."""

    families: tuple[Family, ...]

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of all tables."""
        grid, weight, unit, both = self._grid(shard.scale), shard.weight, shard.unit, np.empty((0, 2))
        is_even = shard.copies is None and weight.min(initial=np.inf) == weight.max(initial=0.0)
        sums = ExactSums(shard.design(self.families), 2, grid)
        for part in rows_in_cache(len(shard), 2):
            w = weight[part]
            if not is_even or len(both) < len(w):  # rows that weigh the same are all alike
                both = grid.round(np.column_stack([w, w * unit[part]]))
            sums.add_rounded(part, both[: len(w)])
        return sums.wholes()

    @staticmethod
    def _grid(scale: Scale) -> Grid:
        return scale.grid(np.array([1.0, scale.single]))

    def read(self, total: Tables, some: Local, scale: Scale) -> FloatArray:
        """Return the sums."""
        return decode(some.design(self.families), 2, self._grid(scale), total)


# --- steps in log odds ----------------------------------------------------------------------------------------


def curvatures(f: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the weighted curvatures f (1 - f) of the log loss."""
    return np.asarray(weight * np.maximum(f * (1.0 - f), LEAST_CURVATURE))


class Seen(NamedTuple):
    """Moments g of features, their curvatures h and the variances v of their noise, each of shape (m, S, d)."""

    g: FloatArray
    h: FloatArray
    v: FloatArray


@dataclass(frozen=True, eq=False)
class Evidence:
    """Sums over rows for the features c(x) u(f): f taken at `base`, residuals and curvatures `now`.

    `own`: whether every label of many classes has two weights of its own, 1 and its coordinate.
    """

    base: State
    now: State
    families: tuple[Family, ...]
    weights: tuple[Weight, ...]
    own: bool
    is_even: bool

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of g, h and v of every member."""
        design = shard.design(self.families)
        if isinstance(self.weights[0], Cell):
            return self._of_cells(shard, design)
        plan = self._plan(design, shard.scale, shard.y.shape[1])
        each = [ExactSums(one, len(grid.unit), grid) for one, _, grid in plan]
        for part in rows_in_cache(len(shard), 3 * self._size * shard.y.shape[1]):
            p, values = shard.at(self.base)[part], self._values(shard, part)
            U = np.stack([np.ones(p.shape), p], axis=1) if self.own else np.asarray(evaluate(self.weights, p))
            factors = [U, *[np.square(U)] * (len(values) - 1)]
            for sums, (_, kinds, _) in zip(each, plan, strict=True):
                products = [self._products(factors[k], values[k]) for k in kinds]
                sums.add(part, np.concatenate(products, axis=1))
        return Tables(table for sums in each for table in sums.wholes())

    @property
    def _size(self) -> int:
        """How many weights act on a label."""
        return 2 if self.own else len(self.weights)

    def _bounds(self, scale: Scale) -> FloatArray:
        """Return the bounds of g, h and, where noise is not a multiple of curvature, v."""
        most = bound_of(self.weights)
        bounds = np.array([most, most * most, most * most * scale.single])
        return bounds[:2] if self.is_even else bounds

    def _plan(self, design: Design, scale: Scale, d: int) -> list[tuple[Design, list[int], Grid]]:
        """Return designs, which of g, h and v are summed with each, and grids: for h and v memberships are squared."""
        squared, bounds = design.power(2), self._bounds(scale)
        kinds = list(range(len(bounds)))
        split = [(design, kinds)] if squared is design else [(design, kinds[:1]), (squared, kinds[1:])]
        return [(one, some, scale.grid(bounds[some]).repeated(self._size * d)) for one, some in split]

    def _values(self, shard: Shard, part: slice) -> list[FloatArray]:
        """Return weighted residuals, curvatures and, where it is asked for, their noise, as they are now."""
        f, w = shard.at(self.now)[part], shard.weight[part, None]
        h = curvatures(f, w)
        z = w * (shard.y[part] - f)
        return [z, h] if self.is_even else [z, h, shard.unit[part, None] * h]

    def _products(self, U: FloatArray, values: FloatArray) -> FloatArray:
        """Return weights times values as (rows, S d): those of all weights with all labels, or each label's own."""
        R = U * values[:, None, :] if self.own else U[:, :, None] * values[:, None, :]
        return R.reshape(len(R), -1)

    def _of_cells(self, shard: Shard, design: Design) -> Tables:
        """Return the same for cells, which do not overlap: their squares are themselves."""
        U, d = evaluate(self.weights, shard.at(self.base)), shard.y.shape[1]
        assert isinstance(U, CellIds)
        tables = []
        for one, kinds, grid in self._plan(design, shard.scale, 1):
            wide = Grid(np.repeat(grid.unit[:: self._size], d))

            def terms(part: slice, kinds: list[int] = kinds) -> FloatArray:
                values = self._values(shard, part)
                return np.concatenate([values[k] for k in kinds], axis=1)

            tables.append(cell_sums(one, U, wide, terms, (len(shard), len(kinds) * d)))
        return Tables(tables)

    def read(self, total: Tables, some: Local, scale: Scale) -> Seen:
        """Return moments, curvatures and noise."""
        S, d = self._size, some.y.shape[1]
        found, start = [], 0
        for one, kinds, grid in self._plan(some.design(self.families), scale, d):
            if isinstance(self.weights[0], Cell):
                wide, start = Grid(grid.unit[::S]), start + 1
                found += np.split(wide.floats(total[start - 1]), len(kinds), axis=2)
                continue
            n = len(one.sums(1).tables())
            sums = decode(one, len(grid.unit), grid, total[start : start + n])
            found += [sums[:, k * S * d : (k + 1) * S * d].reshape(-1, S, d) for k in range(len(kinds))]
            start += n
        return Seen(found[0], found[1], found[1] * scale.most if self.is_even else found[2])


@dataclass(frozen=True, eq=False)
class Gradient:
    """The moments of 1 and z = logit f where the log odds are z + sum of c(x) (theta_c0 + theta_c1 z), shape (m, 2)."""

    state: State
    families: tuple[Family, ...]
    theta: FloatArray

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of all tables."""
        design, z = shard.design(self.families), shard.scores(self.state)[:, 0]
        sums = ExactSums(design, 2, shard.scale.grid(MOST_SCORE))
        terms = residuals(design, self.theta, z, shard.y[:, 0], shard.weight)
        for part in rows_in_cache(len(z), 4):
            sums.add(part, terms(part))
        return sums.wholes()

    def read(self, total: Tables, some: Local, scale: Scale) -> FloatArray:
        """Return the moments."""
        return decode(some.design(self.families), 2, scale.grid(MOST_SCORE), total)


# --- along a direction ----------------------------------------------------------------------------------------


def reach(terms: Sequence[Term]) -> float:
    """Return a bound on the displacement of any row by some terms."""
    return float(sum(np.abs(t.theta).sum() * bound_of(t.weights) for t in terms)) or 1.0


class Ahead(NamedTuple):
    """Along a direction: the slope g, the curvature B, and the largest displacement of a row."""

    slope: float
    curvature: float
    most: float

    @property
    def newton(self) -> float:
        """The Newton step g / B, or 0 where nothing moves."""
        return self.slope / self.curvature if self.curvature > 0.0 else 0.0


class Farthest(NamedTuple):
    """Sums of a direction, and the largest displacement."""

    sums: Wholes
    most: float

    def __add__(self, other: Farthest) -> Farthest:  # type: ignore[override]
        return Farthest(self.sums + other.sums, max(self.most, other.most))


@dataclass(frozen=True, eq=False)
class Along:
    """How the potential falls along terms: phi(eta) <= phi(0) - 2 eta g + eta^2 B, or - eta g + eta^2 B / 2 (mirror).

    Euclidean: B = E||delta - mean||^2, exactly. Mirror: E[range(delta)^2] / 4, a bound on E[Var_f(delta)].
    """

    state: State
    terms: tuple[Term, ...]
    geometry: Geometry

    def __call__(self, shard: Shard) -> Farthest:
        """Return the sums of a shard."""
        p, (slopes, curvatures) = shard.at(self.state), self._grids(shard.scale)
        total, most = np.zeros((2, 2), dtype=np.int64), 0.0
        for part, delta in shard.displaced(self.state, self.terms):
            w, here = shard.weight[part], p[part]
            g = np.einsum("ia,ia->i", delta, shard.y[part] - here)
            total[0] += slopes.wholes(w * g)
            total[1] += curvatures.wholes(w * _widths(delta, self.geometry))
            most = max(most, float(np.abs(delta).max(initial=0.0)))
        return Farthest(total, most)

    def _grids(self, scale: Scale) -> tuple[Fine, Fine]:
        far = reach(self.terms)
        return scale.fine(2.0 * far), scale.fine(2.0 * far * far)

    def read(self, total: Farthest, some: Local, scale: Scale) -> Ahead:
        """Return slope, curvature and the largest displacement."""
        slope, curvature = (fine.number(each) for fine, each in zip(self._grids(scale), total.sums, strict=True))
        return Ahead(slope, curvature, total.most)


def _widths(delta: FloatArray, geometry: Geometry) -> FloatArray:
    """Return what each row adds to the curvature B."""
    if geometry == "euclidean":
        return np.asarray(np.square(centred(delta)).sum(axis=1))
    spread = np.abs(delta[:, 0]) if delta.shape[1] == 1 else np.ptp(delta, axis=1)
    return np.asarray(np.square(spread) / 4.0)


@dataclass(frozen=True, eq=False)
class Slopes:
    """The derivative of the log loss at some steps from where rows are `now`, along terms of f as it is at `base`.

    No row moves by more than `most` at step 1.
    """

    base: State
    now: State
    terms: tuple[Term, ...]
    steps: tuple[float, ...]
    most: float

    def __call__(self, shard: Shard) -> Wholes:
        """Return the sums of a shard."""
        now, fine = shard.at(self.now), shard.scale.fine(2.0 * self.most)
        total = np.zeros((2, len(self.steps)), dtype=np.int64)
        for part, delta in shard.displaced(self.base, self.terms):
            every: tuple[FloatArray, ...] = now[part], shard.y[part], shard.weight[part], delta
            if not delta.all():
                is_moving = delta.any(axis=1)
                every = tuple(each[is_moving] for each in every)
            for few in rows_in_cache(len(every[0]), len(self.steps) * delta.shape[1]):
                p, y, w, moves = (each[few] for each in every)
                z = scores(p) + np.multiply.outer(self.steps, moves)
                ahead = from_scores(z.reshape(-1, z.shape[2])).reshape(z.shape)
                ahead -= y
                moves = w[:, None] * moves
                falls = ahead[:, :, 0] * moves[:, 0] if moves.shape[1] == 1 else np.einsum("kia,ia->ki", ahead, moves)
                total += fine.wholes_of_each(falls)
        return total

    def read(self, total: Wholes, some: Local, scale: Scale) -> FloatArray:
        """Return the slopes; far along a direction that separates the outcomes, all that is left of them is small."""
        return scale.fine(2.0 * self.most).total(total)


@dataclass(frozen=True, eq=False)
class Tries:
    """The Brier score after some steps along terms."""

    state: State
    terms: tuple[Term, ...]
    steps: tuple[float, ...]

    def __call__(self, shard: Shard) -> Wholes:
        """Return the sums of a shard."""
        p, grid = shard.at(self.state), shard.scale.grid(2.0)
        total = np.zeros(len(self.steps), dtype=np.int64)
        for part, delta in shard.displaced(self.state, self.terms):
            y, w = shard.y[part], shard.weight[part]
            for k, eta in enumerate(self.steps):
                terms = w * brier_losses(move(p[part], eta * delta, "euclidean"), y)
                total[k] += grid.wholes(grid.round(terms).sum())
        return total

    def read(self, total: Wholes, some: Local, scale: Scale) -> FloatArray:
        """Return the losses."""
        return scale.grid(2.0).floats(total)


@dataclass(frozen=True, eq=False)
class Clipped:
    """Rows that move ahead along terms, in bins of the step at which they reach 0 or 1 (scalars)."""

    state: State
    terms: tuple[Term, ...]
    ahead: Ahead

    def __call__(self, shard: Shard) -> Clipping:
        """Return the bins of a shard."""
        bins = Clipping(abs(self.ahead.newton), self._grid(shard.scale))
        for line in self.lines(shard):
            bins.add(line)
        return bins

    def lines(self, shard: Shard) -> Iterator[Line]:
        """Yield predictions, outcomes, displacements and weights, a piece of the rows at a time."""
        p, sign = shard.at(self.state), np.sign(self.ahead.slope)
        for part, delta in shard.displaced(self.state, self.terms):
            yield Line(p[part, 0], shard.y[part, 0], sign * delta[:, 0], shard.weight[part])

    def _grid(self, scale: Scale) -> Grid:
        far = max(self.ahead.most, TINY)
        return scale.grid(np.array([far * far, far, 1.0, 1.0, 1.0]))

    def read(self, total: Clipping, some: Local, scale: Scale) -> Clipping:
        """Return the bins of all rows."""
        return total


class Lines(list[tuple[int, Line, Any]]):
    """Rows of some bins, with the number of the shard's first row."""

    def __add__(self, other: list[Any]) -> Lines:  # type: ignore[override]
        return Lines([*self, *other])


@dataclass(frozen=True, eq=False)
class Hidden:
    """The rows of some bins of `Clipped`; None: all rows."""

    clipped: Clipped
    hidden: NDArray[np.bool_] | None

    def __call__(self, shard: Shard) -> Lines:
        """Return the rows of a shard."""
        found = Lines()
        for line in self.clipped.lines(shard):
            if self.hidden is None:
                found.append((shard.first, line, np.zeros(len(line.f), dtype=np.intp)))
                continue
            where = bins_of(line, abs(self.clipped.ahead.newton))
            rows = np.flatnonzero(np.append(self.hidden, False)[where])
            found.append((shard.first, line.take(rows), where[rows]))
        return found

    def read(self, total: Lines, some: Local, scale: Scale) -> tuple[Line, IntArray]:
        """Return the rows in an order that depends on their values alone, and their bins."""
        parts = total
        line = Line(*(np.concatenate(column) for column in zip(*(one for _, one, _ in parts), strict=True)))
        order = order_of(line.f, lambda: line[1:])
        return line.take(order), np.concatenate([where for _, _, where in parts])[order]


# --- what a learner is asked ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Probed:
    """z = u(f) (y_a - f_a) for pairs of a weight u, which is at most 1, and a label a."""

    state: State
    pairs: tuple[tuple[Weight, int], ...]
    bound: float = 1.0

    @property
    def q(self) -> int:
        """How many residuals a row has."""
        return len(self.pairs)

    @property
    def n_labels(self) -> int:
        """How many labels the first pairs run through with the weight 1; at least one residual stands for a label."""
        plain = [(Monomial(), a) for a in range(self.q)]
        return next((a for a, pair in enumerate(self.pairs) if pair != plain[a]), self.q) or 1

    def __call__(self, shard: Local) -> FloatArray:
        """Return the residuals of these rows."""
        p = shard.at(self.state)
        return np.column_stack([residual(u, a, p, shard.y) for u, a in self.pairs])

    def follows(self, other: Residuals) -> bool:
        """Whether a single pair was asked about at the same state."""
        same = isinstance(other, Probed) and other.state is self.state
        return same and self.q == 1 and self.pairs[0] in other.pairs  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Witnessed:
    """z = <w(f), y - f> for a signed weight w."""

    state: State
    witness: Witness
    q: int = 1
    n_labels: int = 1

    @property
    def bound(self) -> float:
        """A weight is at most the sum of its coefficients, and residuals y - f sum to at most 2."""
        size, weights = np.abs(self.witness.coefficients), self.witness.weights
        is_apart = all(isinstance(u, Cell) for u in weights)  # cells do not overlap
        return 2.0 * float((size.max(axis=0) if is_apart else size.sum(axis=0)).max())

    def __call__(self, shard: Local) -> FloatArray:
        """Return the residuals of these rows."""
        p = shard.at(self.state)
        return np.asarray((self.witness(p) * (shard.y - p)).sum(axis=1)[:, None])

    def follows(self, other: Residuals) -> bool:
        """Whether all parts of the weight were asked about at the same state."""
        if not isinstance(other, Probed) or other.state is not self.state:
            return False
        parts = zip(*np.nonzero(self.witness.coefficients), strict=True)
        return all((self.witness.weights[s], int(a)) in other.pairs for s, a in parts)
