"""Weight functions: scalar functions u of a prediction; a weight of the paper is w(f) = u(f) e_a for a label a.

Constants and monomials span the low degrees, cells the full notion, knots and points carry the witnesses of the
smooth one. Each is a value that evaluates itself on predictions of shape (n, d), on a single one and in an ONNX graph,
and writes and reads itself. Paper: Definitions 3.1 to 3.6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, combinations_with_replacement
from math import ceil, comb, log, prod
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np

from lowcal.data.checked_json import Kinds, Plain, PlainFields
from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import RANGE_TOLERANCE
from lowcal.data.onnx_graph import Graph, Value
from lowcal.kernels import transport
from lowcal.kernels.simplex import FLOOR, MOST_EXACT, FloatArray, IntArray, log_odds_of, scores

#: More weights than this are laid out row by row: what is made of them is a product of matrices.
MANY_WEIGHTS = 8
#: No more monomials of degree two or higher are listed: a block step holds the square of their number in memory.
MOST_MONOMIALS = 3000
#: A graph holds the distances to this many centres at once, and finds cells by tables of at most this many entries.
CENTRES, MOST_ENTRIES = 128, 1 << 22
#: Predictions and weights in a file lie in [0, 1], up to rounding, and a monomial has at most this many factors.
LOW, HIGH, MOST_FACTORS = -RANGE_TOLERANCE, 1.0 + RANGE_TOLERANCE, 1_000

#: Weights that files may hold.
WEIGHTS = Kinds("a weight", "Build your notion from Monomial, Cell, Knots or Points")


class Weight(Protocol):
    """A scalar weight function u: predictions -> [0, 1]."""

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p, shape (n,)."""


@runtime_checkable
class RowWeight(Protocol):
    """A weight that knows a faster way for a single prediction."""

    def at(self, f: Sequence[float]) -> float:
        """Return u at a prediction, in plain numbers."""


@runtime_checkable
class GraphWeight(Protocol):
    """A weight that can be exported."""

    def onnx(self, graph: Graph, p: Value, d: int) -> Value:
        """Return u at predictions of shape (n, d), shape (n, 1)."""


@WEIGHTS.register
@dataclass(frozen=True)
class Monomial(PlainFields):
    """u(z) = prod_{j in factors} z_j; no factors: the constant 1.

    >>> print(Monomial(), Monomial((0, 0)), Monomial((0, 2)))
    1 p0^2 p0*p2
    """

    factors: tuple[int, ...] = ()
    kind: ClassVar[str] = "monomial"

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        product = np.ones(len(p))
        for j in self.factors:
            product *= p[:, j]
        return product

    def at(self, f: Sequence[float]) -> float:
        """Return u at a prediction."""
        return float(prod(map(f.__getitem__, self.factors)))

    def __str__(self) -> str:
        powers = [(j, self.factors.count(j)) for j in sorted(set(self.factors))]
        return "*".join(f"p{j}" if k == 1 else f"p{j}^{k}" for j, k in powers) or "1"

    def onnx(self, graph: Graph, p: Value, d: int) -> Value:
        """Return u in a graph."""
        return _graph_monomials(graph, [self.factors], p, d)

    @classmethod
    def from_dict(cls, at: Plain, d: int) -> Monomial:
        """Return the weight of plain data, for predictions with d coordinates."""
        _, factors = at.fields("kind", "factors")
        listed = factors.items()
        if len(listed) > MOST_FACTORS:
            factors.refuse(f"a list of at most {MOST_FACTORS} factors")
        return cls(tuple(factor.whole(0, d - 1) for factor in listed))


@dataclass(frozen=True)
class OfCoordinate(PlainFields):
    """A function of one coordinate: in no weight class, but a direction of steps in log space."""

    coordinate: int = 0

    @classmethod
    def from_dict(cls, at: Plain, d: int) -> Self:
        """Return the weight of plain data, for predictions with d coordinates."""
        _, coordinate = at.fields("kind", "coordinate")
        return cls(coordinate.whole(0, d - 1))


@WEIGHTS.register
@dataclass(frozen=True)
class LogOdds(OfCoordinate):
    """u(z) = log(z / (1 - z)) of a scalar, log z_a of one coordinate of a point: it changes slope or temperature.

    >>> print(LogOdds(), LogOdds()(np.array([[0.75], [0.5]])).round(4))
    logit(p0) [1.0986 0.    ]
    """

    kind: ClassVar[str] = "log_odds"

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return scores(p)[:, self.coordinate]

    def at(self, f: Sequence[float]) -> float:
        """Return u at a prediction."""
        return log_odds_of(f[0]) if len(f) == 1 else log(max(f[self.coordinate], FLOOR))

    def __str__(self) -> str:
        return f"logit(p{self.coordinate})"

    def onnx(self, graph: Graph, p: Value, d: int) -> Value:
        """Return u in a graph."""
        return graph_scores(graph, graph.add("Gather", p, [self.coordinate], axis=1), d)


@WEIGHTS.register
@dataclass(frozen=True)
class LogRest(OfCoordinate):
    """u(z) = log(1 - z_coordinate): beside the log odds, what beta calibration is made of.

    >>> print(LogRest(), LogRest()(np.array([[0.5], [0.0]])).round(4))
    log(1 - p0) [-0.6931  0.    ]
    """

    kind: ClassVar[str] = "log_rest"

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return np.asarray(np.log(np.maximum(1.0 - p[:, self.coordinate], FLOOR)))

    def at(self, f: Sequence[float]) -> float:
        """Return u at a prediction."""
        return log(max(1.0 - f[self.coordinate], FLOOR))

    def __str__(self) -> str:
        return f"log(1 - p{self.coordinate})"

    def onnx(self, graph: Graph, p: Value, d: int) -> Value:
        """Return u in a graph."""
        rest = graph.add("Sub", 1.0, graph.add("Gather", p, [self.coordinate], axis=1))
        return graph.add("Log", graph.add("Max", rest, FLOOR))


@WEIGHTS.register
@dataclass(frozen=True)
class Cell:
    """u(z) = 1 if z lies in the cell `index` of the grid of the given width; the last cell is closed at 1.

    >>> print(Cell(0.1, (9,)))
    p0 in [0.9, 1]
    """

    width: float
    index: tuple[int, ...]
    kind: ClassVar[str] = "cell"

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return np.asarray((cell_index(p, self.width) == self.index).all(axis=1).astype(np.float64))

    def __str__(self) -> str:
        last = n_intervals(self.width) - 1

        def interval(j: int) -> str:
            upper = "1]" if j == last else f"{(j + 1) * self.width:.6g})"
            return f"[{j * self.width:.6g}, {upper}"

        return " & ".join(f"p{a} in {interval(j)}" for a, j in enumerate(self.index))

    def onnx(self, graph: Graph, p: Value, d: int) -> Value:
        """Return u in a graph."""
        other = graph.add("Equal", graph.column(graph_cells(graph, [self], p)), 1)
        return graph.cast(graph.add("Not", other), "double")

    def to_dict(self) -> dict[str, Any]:
        """Return the weight as plain data."""
        return {"kind": self.kind, "width": float(self.width), "index": list(self.index)}

    @classmethod
    def from_dict(cls, at: Plain, d: int) -> Cell:
        """Return the weight of plain data, for predictions with d coordinates."""
        _, width, index = at.fields("kind", "width", "index")
        side = width.number(1.0 / MOST_EXACT, 1.0)
        place = tuple(one.whole(0, n_intervals(side) - 1) for one in index.items())
        if len(place) != d:
            index.refuse(f"a list of {d} numbers")
        return cls(side, place)


@WEIGHTS.register
@dataclass(frozen=True, eq=False)
class Knots(PlainFields):
    """u(z) = the piecewise linear function of z_coordinate through (positions, heights), constant outside."""

    coordinate: int
    positions: FloatArray
    heights: FloatArray
    kind: ClassVar[str] = "knots"

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return np.asarray(np.interp(p[:, self.coordinate], self.positions, self.heights))

    def __str__(self) -> str:
        return f"a Lipschitz function of p{self.coordinate} with {len(self.positions)} knots"

    def onnx(self, graph: Graph, p: Value, d: int) -> Value:
        """Return u in a graph: the segment of each row gives its start, height and slope."""
        value = graph.add("Gather", p, self.coordinate, axis=1)
        rise, run = np.diff(self.heights), np.diff(self.positions)
        slope = np.divide(rise, run, out=np.zeros(len(run)), where=run > 0)
        tables = (
            np.append(self.positions[:1], self.positions),
            np.append(self.heights[:1], self.heights),
            np.concatenate([[0.0], slope, [0.0]]),
        )
        segment = graph.count_below(value, self.positions, "LessOrEqual")
        start, height, steep = (graph.add("Gather", table, segment) for table in tables)
        above = graph.add("Mul", steep, graph.add("Sub", value, start))
        return graph.column(graph.add("Add", above, height))

    @classmethod
    def from_dict(cls, at: Plain, d: int) -> Knots:
        """Return the weight of plain data, for predictions with d coordinates."""
        _, coordinate, positions, heights = at.fields("kind", "coordinate", "positions", "heights")
        places = positions.increasing()
        if len(places) == 0 or places[0] < LOW or places[-1] > HIGH:
            positions.refuse("a list of predictions that is not empty")
        return cls(coordinate.whole(0, d - 1), places, heights.floats(places.shape, LOW, HIGH))


@WEIGHTS.register
@dataclass(frozen=True, eq=False)
class Points(PlainFields):
    """u(z) = min(1, min_j heights_j + ||z - centres_j||_1): the McShane extension of values at points."""

    centres: FloatArray
    heights: FloatArray
    kind: ClassVar[str] = "points"

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return u at every row of p."""
        return transport.evaluate(p, self.centres, self.heights)

    def __str__(self) -> str:
        return f"a Lipschitz function through {len(self.centres)} points"

    def onnx(self, graph: Graph, p: Value, d: int) -> Value:
        """Return u in a graph, some centres at a time."""
        if not len(self.centres):
            return _graph_monomials(graph, [()], p, d)
        least = graph.constant(1.0)
        for start in range(0, len(self.centres), CENTRES):
            centres, heights = self.centres[start : start + CENTRES], self.heights[start : start + CENTRES]
            gap = graph.add("Abs", graph.add("Sub", graph.add("Unsqueeze", p, [1]), centres[None]))
            reach = graph.add("Add", graph.add("ReduceSum", gap, [2], keepdims=0), heights[None])
            least = graph.add("Min", least, graph.add("ReduceMin", reach, axes=[1], keepdims=1))
        return graph.add("Clip", least, 0.0, 1.0)

    @classmethod
    def from_dict(cls, at: Plain, d: int) -> Points:
        """Return the weight of plain data, for predictions with d coordinates."""
        _, centres, heights = at.fields("kind", "centres", "heights")
        places = centres.floats((None, d), LOW, HIGH)
        return cls(places, heights.floats((len(places),), LOW, HIGH))


@dataclass(frozen=True)
class CellIds:
    """Weights that are all cells of one grid, evaluated: the position of each row's cell, or n_cells for none."""

    ids: IntArray
    n_cells: int


Evaluated = FloatArray | CellIds


def evaluate(weights: Sequence[Weight], p: FloatArray) -> Evaluated:
    """Evaluate all weights on p: a dense (n, S) array, or one cell id a row when all are cells of one grid."""
    cells = cells_of_one_grid(weights)
    if cells:
        return _cell_ids(cells, p)
    if len(weights) > MANY_WEIGHTS and tuple(weights) == monomials(p.shape[1], 1):
        return np.column_stack([np.ones(len(p)), p])
    return np.array([u(p) for u in weights]).T


def evaluate_dense(weights: Sequence[Weight], p: FloatArray) -> FloatArray:
    """Evaluate weights that are not all cells of one grid: a dense (n, S) array."""
    U = evaluate(weights, p)
    assert isinstance(U, np.ndarray)
    return U


def cells_of_one_grid(weights: Sequence[Weight]) -> Sequence[Cell]:
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
    cells = cells_of_one_grid(weights)
    if cells:
        return _row_cells(cells)
    each = [u.at if isinstance(u, RowWeight) else partial(_at, u) for u in weights]
    return lambda f: [u(f) for u in each]


def _at(u: Weight, f: Sequence[float]) -> float:
    return float(u(np.array([f]))[0])


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


def graph_weights(graph: Graph, weights: Sequence[Weight], p: Value, d: int) -> Value | None:
    """Return all weights at the predictions of a graph, shape (n, S); None: there is one, the constant 1."""
    powers = [u.factors for u in weights if isinstance(u, Monomial)]
    if len(powers) == len(weights):
        return None if powers == [()] else _graph_monomials(graph, powers, p, d)
    return graph.side_by_side([graph_weight(u).onnx(graph, p, d) for u in weights])


def graph_weight(u: Weight) -> GraphWeight:
    """Return a weight that can be exported; refuse another."""
    if not isinstance(u, GraphWeight):
        raise InvalidInput(
            f"The weight {u} ({type(u).__name__}) can't be written as ONNX: it has no method `onnx`. Exported are the "
            "weights of the notions multiaccuracy, degree-k, smooth and full."
        )
    return u


def _graph_monomials(graph: Graph, powers: Sequence[tuple[int, ...]], p: Value, d: int) -> Value:
    """Return products of coordinates, shape (n, S): a coordinate that is always 1 fills up the shorter ones."""
    padded = graph.add("Pad", p, [0, 0, 0, 1], 1.0)
    degree = max(1, *(len(factors) for factors in powers))
    places = np.array([[*factors, *[d] * (degree - len(factors))] for factors in powers])
    product = graph.add("Gather", padded, places[:, 0], axis=1)
    for place in places.T[1:]:
        product = graph.add("Mul", product, graph.add("Gather", padded, place, axis=1))
    return product


def graph_cells(graph: Graph, cells: Sequence[Cell], p: Value) -> Value:
    """Return which of the cells of one grid holds each row of a graph, shape (n,); len(cells) for none.

    The coordinates are read one after the other, each by a table from (prefix met so far, interval) to the next prefix.
    """
    k, width = n_intervals(cells[0].width), cells[0].width
    index = _graph_intervals(graph, p, k, width)
    prefixes: dict[tuple[int, ...], int] = {(): 0}
    state: Value = ""
    for a in range(len(cells[0].index)):
        starts = sorted({cell.index[: a + 1] for cell in cells})
        longer = {prefix: number for number, prefix in enumerate(starts)}
        if a + 1 == len(cells[0].index):
            longer = {cell.index: s for s, cell in enumerate(cells)}
        if (len(prefixes) + 1) * k > MOST_ENTRIES:
            raise InvalidInput(
                f"Cells of width {width:g} are too many for the tables of an ONNX graph. Fit with a larger width."
            )
        table = np.full((len(prefixes) + 1, k), len(longer))  # the state after the last is none, and stays so
        for prefix, number in longer.items():
            table[prefixes[prefix[:-1]], prefix[-1]] = number
        interval = graph.add("Gather", index, a, axis=1)
        place = interval if a == 0 else graph.add("Add", graph.add("Mul", state, k), interval)
        state, prefixes = graph.add("Gather", table.ravel(), place), longer
    return state


def _graph_intervals(graph: Graph, p: Value, k: int, width: float) -> Value:
    """Return the interval of every coordinate, shape (n, d), as `cell_index` does."""
    if abs(k * width - 1.0) <= 1e-9:
        lifted = graph.add("Add", graph.add("Mul", p, float(k)), 4 * np.finfo(float).eps * k)
        return graph.cast(graph.add("Min", graph.add("Floor", lifted), k - 1.0), "int64")
    edges = np.arange(1, k) * width
    passed = graph.add("LessOrEqual", edges[None, None, :], graph.add("Unsqueeze", p, [2]))
    return graph.add("ReduceSum", graph.cast(passed, "int64"), [2], keepdims=0)


def graph_scores(graph: Graph, p: Value, d: int) -> Value:
    """Return log(p / (1 - p)) or log p in a graph, kept away from infinity as `simplex.scores` does."""
    if d > 1:
        return graph.add("Log", graph.add("Max", p, FLOOR))
    q = graph.add("Clip", p, FLOOR, 1.0 - FLOOR)
    return graph.add("Log", graph.add("Div", q, graph.add("Sub", 1.0, q)))


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
    """Return the number of intervals of this width that cover [0, 1], robust to rounding."""
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
