"""Predictions in a graph: weight functions of them, the displacement of an update, and the move.

The formulas are those of `weights`, `moments.displacement` and `simplex.move`, operator by operator and in doubles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.deploy.export.columns import count_below
from lowcal.deploy.export.families import Families, Piece, combine, combine_in_cells, join, sigmoid
from lowcal.deploy.export.graph import Graph, Value
from lowcal.kernels.simplex import FLOOR, FloatArray, Geometry
from lowcal.notions.weights import Cell, Knots, LogOdds, LogRest, Monomial, Points, Weight, n_intervals
from lowcal.rows.updates import Term, Update

#: The number of centres whose distances are held at once.
CENTRES = 128
#: A graph finds the cell of a row by tables with at most this many entries.
MOST_ENTRIES = 1 << 22


def update(graph: Graph, families: Families, step: Update, p: Value, d: int) -> Value:
    """Return the predictions after an update, shape (n, d)."""
    if not step.terms:
        return p
    by_weights: dict[tuple[Weight, ...], list[Term]] = {}
    for term in step.terms:
        _check_weights(term.weights)
        by_weights.setdefault(term.weights, []).append(term)
    parts = [_displacement(graph, families, terms, weights, p) for weights, terms in by_weights.items()]
    return move(graph, p, graph.sum(parts), d, step.geometry)


def _displacement(
    graph: Graph, families: Families, terms: Sequence[Term], weights: tuple[Weight, ...], p: Value
) -> Value:
    """Return the displacement of terms with the same weights, shape (n, d) or (1, d)."""
    _, S, d = terms[0].theta.shape
    grid = _grid(weights)
    if grid is not None:
        cell = _cell_ids(graph, grid, p)
        none = [(0, 0), (0, 1), (0, 0)]  # the last cell is none: its coefficients are zero
        cells = [(piece, np.pad(theta, none)) for piece, theta in _pieces(families, terms, (S + 1) * d)]
        return graph.sum([combine_in_cells(graph, piece, theta, cell) for piece, theta in cells])
    pieces = [(piece, theta.reshape(-1, S * d)) for piece, theta in _pieces(families, terms, S * d)]
    amplitude = graph.sum([combine(graph, piece, theta) for piece, theta in join(graph, pieces)])
    return _contract(graph, weigh(graph, weights, p, d), amplitude, S, d)


def _pieces(families: Families, terms: Sequence[Term], numbers: int) -> Iterator[tuple[Piece, FloatArray]]:
    """Yield the parts of all families with the coefficients of their members."""
    for term in terms:
        for piece in families.pieces(term.family, numbers):
            yield piece, term.theta[piece.members]


def _contract(graph: Graph, U: Value | None, amplitude: Value, S: int, d: int) -> Value:
    """Return sum_s U_s amplitude[s, a] for an amplitude of shape (n, S d); U = None is the constant 1."""
    if U is None:
        return amplitude
    if S == 1 or d == 1:
        product = graph.add("Mul", U, amplitude)
        return product if S == 1 else graph.total(product)
    by_weight = graph.add("Reshape", amplitude, [-1, S, d])
    product = graph.add("Mul", graph.add("Unsqueeze", U, [2]), by_weight)
    return graph.add("ReduceSum", product, [1], keepdims=0)


# --- weights ----------------------------------------------------------------------------------------------------


def weigh(graph: Graph, weights: Sequence[Weight], p: Value, d: int) -> Value | None:
    """Return all weights at the predictions, shape (n, S); None: there is one, the constant 1."""
    powers = [u.factors for u in weights if isinstance(u, Monomial)]
    if len(powers) < len(weights):
        return graph.side_by_side([_weight(graph, u, p, d) for u in weights])
    return None if powers == [()] else _monomials(graph, powers, p, d)


def _weight(graph: Graph, u: Weight, p: Value, d: int) -> Value:
    """Return one weight at the predictions, shape (n, 1)."""
    if isinstance(u, Monomial):
        return _monomials(graph, [u.factors], p, d)
    if isinstance(u, LogOdds):
        return scores(graph, graph.add("Gather", p, [u.coordinate], axis=1), d)
    if isinstance(u, LogRest):
        rest = graph.add("Sub", 1.0, graph.add("Gather", p, [u.coordinate], axis=1))
        return graph.add("Log", graph.add("Max", rest, FLOOR))
    if isinstance(u, Cell):
        other = graph.add("Equal", graph.column(_cell_ids(graph, [u], p)), 1)
        return graph.cast(graph.add("Not", other), "double")
    if isinstance(u, Knots):
        return _knots(graph, u, p)
    assert isinstance(u, Points)
    return _points(graph, u, p)


def _check_weights(weights: Sequence[Weight]) -> None:
    """Refuse weights of a notion that is not lowcal's."""
    for u in weights:
        if not isinstance(u, Monomial | LogOdds | LogRest | Cell | Knots | Points):
            raise InvalidInput(
                f"The weight {u} ({type(u).__name__}) can't be written as ONNX. Exported are the weights of the "
                "notions multiaccuracy, degree-k, smooth and full."
            )


def _monomials(graph: Graph, powers: Sequence[tuple[int, ...]], p: Value, d: int) -> Value:
    """Return products of coordinates, shape (n, S): a coordinate that is always 1 fills up the shorter ones."""
    padded = graph.add("Pad", p, [0, 0, 0, 1], 1.0)
    degree = max(1, *(len(factors) for factors in powers))
    places = np.array([[*factors, *[d] * (degree - len(factors))] for factors in powers])
    product = graph.add("Gather", padded, places[:, 0], axis=1)
    for place in places.T[1:]:
        product = graph.add("Mul", product, graph.add("Gather", padded, place, axis=1))
    return product


def _grid(weights: Sequence[Weight]) -> Sequence[Cell] | None:
    """Return the weights if all are cells of one grid."""
    cells = [u for u in weights if isinstance(u, Cell)]
    is_grid = len(cells) == len(weights) and len({u.width for u in cells}) == 1
    return cells if is_grid else None


def _cell_ids(graph: Graph, cells: Sequence[Cell], p: Value) -> Value:
    """Return which of the cells holds each row, shape (n,); len(cells) for none.

    The coordinates are read one after the other, each by a table from (prefix met so far, interval) to the next prefix.
    """
    k, width = n_intervals(cells[0].width), cells[0].width
    index = _intervals(graph, p, k, width)
    prefixes: dict[tuple[int, ...], int] = {(): 0}
    state: Value | int = 0
    for a in range(len(cells[0].index)):
        last = a + 1 == len(cells[0].index)
        longer = {cell.index: s for s, cell in enumerate(cells)} if last else _number({c.index[: a + 1] for c in cells})
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
    assert isinstance(state, str)
    return state


def _number(prefixes: set[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    return {prefix: number for number, prefix in enumerate(sorted(prefixes))}


def _intervals(graph: Graph, p: Value, k: int, width: float) -> Value:
    """Return the interval of every coordinate, shape (n, d), as `weights.cell_index` does."""
    if abs(k * width - 1.0) <= 1e-9:
        lifted = graph.add("Add", graph.add("Mul", p, float(k)), 4 * np.finfo(float).eps * k)
        return graph.cast(graph.add("Min", graph.add("Floor", lifted), k - 1.0), "int64")
    edges = np.arange(1, k) * width
    passed = graph.add("LessOrEqual", edges[None, None, :], graph.add("Unsqueeze", p, [2]))
    return graph.add("ReduceSum", graph.cast(passed, "int64"), [2], keepdims=0)


def _knots(graph: Graph, u: Knots, p: Value) -> Value:
    """Return a piecewise linear function: the segment of each row tells its start, height and slope."""
    value = graph.add("Gather", p, u.coordinate, axis=1)
    rise, run = np.diff(u.heights), np.diff(u.positions)
    slope = np.divide(rise, run, out=np.zeros(len(run)), where=run > 0)
    segment = count_below(graph, value, u.positions, "LessOrEqual")
    start, height, steep = (
        graph.add("Gather", table, segment)
        for table in (
            np.append(u.positions[:1], u.positions),
            np.append(u.heights[:1], u.heights),
            np.concatenate([[0.0], slope, [0.0]]),
        )
    )
    above = graph.add("Mul", steep, graph.add("Sub", value, start))
    return graph.column(graph.add("Add", above, height))


def _points(graph: Graph, u: Points, p: Value) -> Value:
    """Return clip(min_j heights_j + |z - centres_j|_1, 0, 1), some centres at a time."""
    least = graph.constant(1.0)
    for start in range(0, len(u.centres), CENTRES):
        centres, heights = u.centres[start : start + CENTRES], u.heights[start : start + CENTRES]
        gap = graph.add("Abs", graph.add("Sub", graph.add("Unsqueeze", p, [1]), centres[None]))
        reach = graph.add("Add", graph.add("ReduceSum", gap, [2], keepdims=0), heights[None])
        least = graph.add("Min", least, graph.add("ReduceMin", reach, axes=[1], keepdims=1))
    if not len(u.centres):
        return _monomials(graph, [()], p, u.centres.shape[1])
    return graph.add("Clip", least, 0.0, 1.0)


# --- moves ------------------------------------------------------------------------------------------------------


def move(graph: Graph, p: Value, delta: Value, d: int, geometry: Geometry) -> Value:
    """Return `simplex.move`: add and project, or add in log space and normalise."""
    if geometry == "mirror":
        return _mirror(graph, p, delta, d)
    moved = graph.add("Add", p, delta)
    return graph.add("Clip", moved, 0.0, 1.0) if d == 1 else _project(graph, moved, d)


def _project(graph: Graph, v: Value, d: int) -> Value:
    """Return max(v - theta, 0) with theta such that each row sums to one, by sorting."""
    v = graph.add("Sub", v, graph.add("ReduceMax", v, axes=[1], keepdims=1))
    descending = graph.add("TopK", v, [d], axis=1)
    excess = graph.add("Sub", graph.add("CumSum", descending, 1), 1.0)
    scaled = graph.add("Mul", descending, np.arange(1.0, d + 1)[None, :])
    inside = graph.cast(graph.add("Greater", scaled, excess), "int64")
    support = graph.add("ReduceSum", inside, [1], keepdims=1)
    reached = graph.add("GatherElements", excess, graph.add("Sub", support, 1), axis=1)
    theta = graph.add("Div", reached, graph.cast(support, "double"))
    return graph.add("Max", graph.add("Sub", v, theta), 0.0)


def _mirror(graph: Graph, p: Value, delta: Value, d: int) -> Value:
    """Return sigmoid(logit p + delta) or softmax(log p + delta)."""
    moved = graph.add("Add", scores(graph, p, d), delta)
    return sigmoid(graph, moved) if d == 1 else graph.add("Softmax", moved, axis=1)


def scores(graph: Graph, p: Value, d: int) -> Value:
    """Return log(p / (1 - p)) or log p, kept away from infinity as `simplex.scores` does."""
    if d > 1:
        return graph.add("Log", graph.add("Max", p, FLOOR))
    q = graph.add("Clip", p, FLOOR, 1.0 - FLOOR)
    return graph.add("Log", graph.add("Div", q, graph.add("Sub", 1.0, q)))


# --- in and out -------------------------------------------------------------------------------------------------


def normalise(graph: Graph, p: Value) -> Value:
    """Return the rows divided by their sums."""
    return graph.add("Div", p, graph.total(p))


def both_classes(graph: Graph, p: Value) -> Value:
    """Return (1 - p, p) for p of shape (n, 1)."""
    return graph.add("Concat", graph.add("Sub", 1.0, p), p, axis=1)


def on_all_rows(graph: Graph, p: Value, like: Value, d: int) -> Value:
    """Return predictions that may be one row for all as an array of as many rows as an input has."""
    rows = graph.add("Gather", graph.add("Shape", like), [0])
    return graph.add("Expand", p, graph.add("Concat", rows, [d], axis=0))
