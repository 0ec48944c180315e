"""Weight functions: scalar functions u of a prediction; a weight of the paper is w(f) = u(f) e_a for a label a.

Constants and monomials span the low degrees, cells the full notion, knots and points carry the witnesses of the
smooth one. Each is a value that evaluates itself on predictions of shape (n, d). Paper: Definitions 3.1 to 3.6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations_with_replacement
from math import ceil, comb, log, prod
from typing import Any, Protocol

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.kernels import transport
from lowcal.kernels.simplex import FLOOR, FloatArray, IntArray, log_odds_of, scores

#: More weights than this are laid out row by row: what is made of them is a product of matrices.
MANY_WEIGHTS = 8
#: No more monomials of degree two or higher are listed: a block step holds the square of their number in memory.
MOST_MONOMIALS = 3000


class Weight(Protocol):
    """A scalar weight function u: predictions -> [0, 1]."""

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p, shape (n,)."""
        ...


@dataclass(frozen=True)
class Monomial:
    """u(z) = prod_{j in factors} z_j; no factors: the constant 1.

    >>> print(Monomial(), Monomial((0, 0)), Monomial((0, 2)))
    1 p0^2 p0*p2
    """

    factors: tuple[int, ...] = ()

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        product = np.ones(len(p))
        for j in self.factors:
            product *= p[:, j]
        return product

    def __str__(self) -> str:
        powers = [(j, self.factors.count(j)) for j in sorted(set(self.factors))]
        return "*".join(f"p{j}" if k == 1 else f"p{j}^{k}" for j, k in powers) or "1"


@dataclass(frozen=True)
class Cell:
    """u(z) = 1 if z lies in the cell `index` of the grid of the given width; the last cell is closed at 1.

    >>> print(Cell(0.1, (9,)))
    p0 in [0.9, 1]
    """

    width: float
    index: tuple[int, ...]

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return np.asarray((cell_index(p, self.width) == self.index).all(axis=1).astype(np.float64))

    def __str__(self) -> str:
        last = n_intervals(self.width) - 1

        def interval(j: int) -> str:
            upper = "1]" if j == last else f"{(j + 1) * self.width:.6g})"
            return f"[{j * self.width:.6g}, {upper}"

        return " & ".join(f"p{a} in {interval(j)}" for a, j in enumerate(self.index))


@dataclass(frozen=True, eq=False)
class Knots:
    """u(z) = the piecewise linear function of z_coordinate through (positions, heights), constant outside."""

    coordinate: int
    positions: FloatArray
    heights: FloatArray

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return np.asarray(np.interp(p[:, self.coordinate], self.positions, self.heights))

    def __str__(self) -> str:
        return f"a Lipschitz function of p{self.coordinate} with {len(self.positions)} knots"


@dataclass(frozen=True, eq=False)
class Points:
    """u(z) = min(1, min_j heights_j + ||z - centres_j||_1): the McShane extension of values at points."""

    centres: FloatArray
    heights: FloatArray

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return transport.evaluate(p, self.centres, self.heights)

    def __str__(self) -> str:
        return f"a Lipschitz function through {len(self.centres)} points"


@dataclass(frozen=True)
class LogOdds:
    """u(z) = log(z / (1 - z)) of a scalar, log z_a of one coordinate of a point: in no weight class.

    It is the direction in which a step in log space changes the slope of the log odds, or the temperature.

    >>> print(LogOdds(), LogOdds()(np.array([[0.75], [0.5]])).round(4))
    logit(p0) [1.0986 0.    ]
    """

    coordinate: int = 0

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return scores(p)[:, self.coordinate]

    def __str__(self) -> str:
        return f"logit(p{self.coordinate})"


@dataclass(frozen=True)
class LogRest:
    """u(z) = log(1 - z_coordinate): beside the log odds, what beta calibration is made of; in no weight class.

    >>> print(LogRest(), LogRest()(np.array([[0.5], [0.0]])).round(4))
    log(1 - p0) [-0.6931  0.    ]
    """

    coordinate: int = 0

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return np.asarray(np.log(np.maximum(1.0 - p[:, self.coordinate], FLOOR)))

    def __str__(self) -> str:
        return f"log(1 - p{self.coordinate})"


def weight_to_dict(u: Weight) -> dict[str, Any]:
    """Return one of the weights above as plain data; a weight of a user's own has no such form.

    >>> weight_to_dict(Monomial((0, 0)))
    {'kind': 'monomial', 'factors': [0, 0]}
    """
    if type(u) is Monomial:
        return {"kind": "monomial", "factors": list(u.factors)}
    if type(u) is LogOdds:
        return {"kind": "log_odds", "coordinate": u.coordinate}
    if type(u) is LogRest:
        return {"kind": "log_rest", "coordinate": u.coordinate}
    if type(u) is Cell:
        return {"kind": "cell", "width": float(u.width), "index": list(u.index)}
    if type(u) is Knots:
        knots = {"positions": u.positions.tolist(), "heights": u.heights.tolist()}
        return {"kind": "knots", "coordinate": u.coordinate, **knots}
    if type(u) is Points:
        return {"kind": "points", "centres": u.centres.tolist(), "heights": u.heights.tolist()}
    raise InvalidInput(
        f"The weight {u!r} has no plain form, as it is not one of lowcal's own. Build your notion from Monomial, Cell, "
        "Knots or Points if its predictors are to be saved."
    )


@dataclass(frozen=True)
class CellIds:
    """Weights that are all cells of one grid, evaluated: the position of each row's cell, or n_cells for none."""

    ids: IntArray
    n_cells: int


Evaluated = FloatArray | CellIds


def evaluate(weights: Sequence[Weight], p: FloatArray) -> Evaluated:
    """Evaluate all weights on p: a dense (n, S) array, or one cell id a row when all are cells of one grid."""
    cells = _cells_of_one_grid(weights)
    if cells:
        return _cell_ids(cells, p)
    if len(weights) > MANY_WEIGHTS and tuple(weights) == monomials(p.shape[1], 1):
        return np.column_stack([np.ones(len(p)), p])
    return np.array([u(p) for u in weights]).T


def _cells_of_one_grid(weights: Sequence[Weight]) -> Sequence[Cell]:
    """Return the weights if all are cells of one grid, otherwise nothing."""
    cells = [u for u in weights if isinstance(u, Cell)]
    return cells if len(cells) == len(weights) and len({u.width for u in cells}) == 1 else []


def _cell_ids(cells: Sequence[Cell], p: FloatArray) -> CellIds:
    occupied, which = occupied_cells(p, cells[0].width)
    position = {cell.index: s for s, cell in enumerate(cells)}
    lookup = np.array([position.get(tuple(row), len(cells)) for row in occupied.tolist()], dtype=np.intp)
    return CellIds(lookup[which], len(cells))


def row_weights(weights: Sequence[Weight]) -> Callable[[Sequence[float]], Sequence[float]]:
    """Return all weights as one function of a single prediction, in plain numbers.

    >>> row_weights([Monomial(), Monomial((0, 0)), Cell(0.1, (3,))])([0.3])
    [1.0, 0.09, 1.0]
    """
    cells = _cells_of_one_grid(weights)
    if cells:
        return _row_cells(cells)
    each = [_row_weight(u) for u in weights]
    return lambda f: [u(f) for u in each]


def _row_weight(u: Weight) -> Callable[[Sequence[float]], float]:
    """Return one weight as a function of a single prediction."""
    if isinstance(u, Monomial):
        factors = u.factors
        return lambda f: float(prod(map(f.__getitem__, factors)))
    if isinstance(u, LogOdds):
        coordinate = u.coordinate
        return lambda f: log_odds_of(f[0]) if len(f) == 1 else log(max(f[coordinate], FLOOR))
    if isinstance(u, LogRest):
        rest = u.coordinate
        return lambda f: log(max(1.0 - f[rest], FLOOR))
    return lambda f: float(u(np.array([f]))[0])


def _row_cells(cells: Sequence[Cell]) -> Callable[[Sequence[float]], Sequence[float]]:
    """Return cells of one grid as a function of a single prediction: 1 for its own cell, if it is among them."""
    position, width = {cell.index: s for s, cell in enumerate(cells)}, cells[0].width

    def evaluate(f: Sequence[float]) -> Sequence[float]:
        values = [0.0] * len(cells)
        own = position.get(tuple(cell_index(np.array(f), width).tolist()))
        if own is not None:
            values[own] = 1.0
        return values

    return evaluate


@lru_cache(maxsize=64)
def monomials(d: int, degree: int) -> tuple[Monomial, ...]:
    """All monomials of degree at most `degree` in d variables, the constant first: C(d + degree, degree) of them.

    >>> [str(u) for u in monomials(2, 2)]
    ['1', 'p0', 'p1', 'p0^2', 'p0*p1', 'p1^2']
    """
    count = comb(d + degree, degree)
    if degree > 1 and count > MOST_MONOMIALS:
        raise InvalidInput(
            f"Polynomials of degree {degree} in {d} classes have {count:,} monomials, more than the {MOST_MONOMIALS:,} "
            f'that fit into memory beside the rows. Use a degree below {degree + 1}, such as "degree-2".'
        )
    multisets = (combinations_with_replacement(range(d), k) for k in range(degree + 1))
    return tuple(Monomial(s) for s in chain.from_iterable(multisets))


def n_intervals(width: float) -> int:
    """Return the number of intervals of this width that cover [0, 1], robust to rounding.

    >>> n_intervals(0.1), n_intervals(0.3)
    (10, 4)
    """
    return ceil(1.0 / float(width) - 1e-9)


def cell_index(p: FloatArray, width: float) -> IntArray:
    """Return the grid cell of every coordinate of p, shape (n, d); never floor(p / width), which errs at 0.3 / 0.1.

    >>> cell_index(np.array([[0.3, 0.7, 0.29, 1.0]]), 0.1)
    array([[3, 7, 2, 9]])
    """
    k = n_intervals(width)
    if abs(k * width - 1.0) <= 1e-9:
        cells = np.floor(p * k + 4 * np.finfo(float).eps * k)
    else:  # the quotient errs by less than one cell: the edges of the cell decide
        cells = np.floor(p / width)
        cells += ((cells + 1.0) * width <= p).astype(np.float64) - (cells * width > p)
    return np.minimum(cells, k - 1).astype(np.intp)


def occupied_cells(p: FloatArray, width: float) -> tuple[IntArray, IntArray]:
    """Return the cells that hold a row of p, shape (m, d), and for each row which of them holds it."""
    index = cell_index(p, width)
    k = n_intervals(width)
    if k ** p.shape[1] < 2**62:
        radix = k ** np.arange(p.shape[1])[::-1]
        key = index @ radix
        if k ** p.shape[1] <= len(p):  # counting is faster than sorting
            seen = np.bincount(key, minlength=k ** p.shape[1]) > 0
            return np.flatnonzero(seen)[:, None] // radix % k, (np.cumsum(seen) - 1)[key]
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return index[first], which
    occupied, which = np.unique(index, axis=0, return_inverse=True)
    return occupied, which.ravel()


def n_cells(d: int, width: float) -> int:
    """Return how many cells of the grid meet the space of predictions (spec 1.1, W4; exact when 1/width is whole).

    >>> [n_cells(*a) for a in [(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.1), (5, 0.2)]]
    [10, 19, 163, 787, 246]
    """
    k = n_intervals(width)
    if d == 1:
        return k
    if abs(k * width - 1.0) > 1e-9:
        return int(k**d)
    return sum(comb(s + d - 1, d - 1) for s in range(max(0, k - d + 1), k + 1)) - d
