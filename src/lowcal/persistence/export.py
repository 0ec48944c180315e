"""The whole predictor as one ONNX graph: raw columns and start probabilities in, calibrated predictions out.

It runs in onnxruntime, in any language, without code of ours. All arithmetic is in doubles, with the formulas of
`predict`; the two differ by rounding only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lowcal.data import __version__
from lowcal.data.errors import InvalidInput
from lowcal.data.files import atomic_write
from lowcal.data.onnx_graph import (
    MATRIX,
    Graph,
    GraphColumns,
    GraphLookUp,
    GraphMatrix,
    GraphMembers,
    Port,
    Value,
    load_onnx,
)
from lowcal.kernels.simplex import Geometry
from lowcal.notions.weights import Weight, cells_of_one_grid, graph_cells, graph_scores, graph_weight, graph_weights
from lowcal.rows.updates import Predictor, Term, Update
from lowcal.solve.fitting import Fit
from lowcal.subpopulations.base import Encoder, Family, in_graph
from lowcal.subpopulations.features import FeatureEncoder
from lowcal.subpopulations.levels import ByLevels
from lowcal.subpopulations.memberships import MembershipEncoder
from lowcal.subpopulations.single_row import are_numbered
from lowcal.subpopulations.union import leaves

__all__ = ["to_onnx"]

#: The input that holds the start probabilities, and the output.
START, OUTPUT = "p", "probabilities"


def to_onnx(model: Any, path: str | os.PathLike[str] | None = None, *, missing: str = "") -> Any:
    """Return a predictor as an ONNX model (`onnx.ModelProto`), and write it to a file if a path is given.

    Inputs of the graph, for n rows:

    * `p`: the start probabilities, double, (n, l) for l classes; (n,) for two, unless the model is a classifier;
    * one input for each column that some update reads, under the column's own name, shape (n,). Numbers, whole numbers
      and booleans (0 and 1) are double, NaN if missing; text is string, `missing` if missing. A column that mixes
      text and numbers is text, numbers as `str` writes them. A value not met in fitting belongs to no group;
    * or, for memberships and estimators fitted on a bare array, this array: one input `X`, double, (n, columns).

    The output `probabilities` is double, of the shape of `p`. Nothing is checked inside the graph: probabilities that
    `predict` refuses give something. A column whose name is empty or taken (`p`, `probabilities`) gets underscores at
    its end. The metadata hold `lowcal_version`, `classes`, `columns` (input -> column), `missing`, `updates` and, where
    the model knows them, `notion`, `alpha` and `bounds`, all but the first and the notion as JSON.

    What differs from `predict` is rounding: 1e-15 or so. A prediction that lies on the edge of a cell of the full
    notion to the last bit may fall on the other side. Opset 17: onnxruntime 1.17 or later.

    Parameters
    ----------
    model : a `Predictor`, a `Fit`, or a fitted `MulticalibratedClassifier` or `MulticalibratedRegressor`. Of an
        estimator its recalibration is exported, not its base model: feed `base.predict_proba(X)` (of a regressor
        `base.predict(X)`, in the units of the outcome) as `p`, or join the two graphs with
        `onnx.compose.merge_models` after exporting the base model, e.g. with skl2onnx. With `estimator=None` the
        uniform start is built in and there is no `p`, unless no update reads a column.
    path : the file to write, replaced at once: a reader sees the old file or the new one.
    missing : the text that stands for a missing value in text columns: ONNX has none.

    Raises InvalidInput for `Regressor(...)`, whose foreign models lowcal can't translate, and for a user's own families
    and weights that have no method `onnx`.

    Examples
    --------
    >>> from lowcal import Groups, multicalibrate
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(5000, random_state=0)
    >>> fit = multicalibrate(data.y, data.p, data.X, subpopulations=Groups(["g0", "g1"]))
    >>> [port.name for port in to_onnx(fit).graph.input]
    ['p', 'g0', 'g1']
    """
    load_onnx()
    source = _read(model)
    if not isinstance(missing, str):
        raise InvalidInput(f"missing is the text that stands for a missing value, but {missing!r} was given.")
    try:
        made = _build(source, missing)
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"ONNX holds text as UTF-8, but {error.object!r} is not valid Unicode. Rename the column or category."
        ) from error
    if path is not None:
        with atomic_write(path) as file:
            file.write(made.SerializeToString(deterministic=True))
    return made


@dataclass(frozen=True, eq=False)
class _Source:
    """What is exported: a predictor, the shape of p, and what comes before and after the updates."""

    predictor: Predictor
    two_columns: bool = False
    is_uniform: bool = False
    bounds: tuple[float, float] | None = None
    is_bare: bool = False
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of p after the rows."""
        d = self.predictor.layout.d
        return (d,) if d > 1 else (2,) if self.two_columns else ()


def _read(model: Any) -> _Source:
    """Return what a model exports."""
    if isinstance(model, Predictor | Fit):
        predictor, facts = (model.predictor, _facts(model)) if isinstance(model, Fit) else (model, {})
        # only memberships know that they were fitted on a bare array
        is_bare = any(isinstance(part, MembershipEncoder) and part.named is None for part in leaves(predictor.encoder))
        return _Source(predictor, is_bare=is_bare, facts=facts | {"classes": _json(predictor.layout.classes)})
    from lowcal.estimators import MulticalibratedClassifier, MulticalibratedRegressor

    if not isinstance(model, MulticalibratedClassifier | MulticalibratedRegressor):
        raise InvalidInput(
            f"to_onnx takes a Predictor, a Fit or a fitted MulticalibratedClassifier or MulticalibratedRegressor, but "
            f"{type(model).__name__} was given."
        )
    if "predictor_" not in vars(model):
        raise InvalidInput(f"This {type(model).__name__} is not fitted yet. Call fit first.")
    is_bare = "feature_names_in_" not in vars(model) and are_numbered(model.predictor_.columns)
    source = _Source(model.predictor_, is_uniform=model.estimator_ is None, is_bare=is_bare, facts=_facts(model.fit_))
    if isinstance(model, MulticalibratedRegressor):
        bounds = (float(model.bounds_[0]), float(model.bounds_[1]))
        return replace(source, bounds=bounds, facts=source.facts | {"bounds": _json(bounds)})
    return replace(source, two_columns=True, facts=source.facts | {"classes": _json(model.classes_.tolist())})


def _facts(fit: Fit) -> dict[str, str]:
    return {"notion": str(fit.notion), "alpha": _json(fit.alpha)}


def _json(value: Any) -> str:
    """Write plain data; NumPy's scalars as Python's, anything else as its text."""
    return json.dumps(value, default=lambda v: v.item() if isinstance(v, np.generic) else str(v))


def _build(source: _Source, missing: str) -> Any:
    """Return the model; a uniform start becomes an input where no other input has the number of rows."""
    predictor = source.predictor
    names, text = predictor.columns, text_columns(predictor.encoder)
    # the columns of a bare array are called x0, x1, ..., after their places in its one input
    places = {name: int(name[1:]) for name in names} if source.is_bare and not text else {}
    inputs = {} if places else input_names(names, (START, OUTPUT))
    for uniform in [True, False] if source.is_uniform else [False]:
        graph = Graph([START, OUTPUT, MATRIX, *inputs.values()])
        _assemble(source, GraphColumns(graph, missing, text, inputs, places), uniform)
        if graph.inputs:
            break
    order = [START, MATRIX, *inputs.values()]
    graph.inputs = dict(sorted(graph.inputs.items(), key=lambda item: order.index(item[0])))
    read = {name: column for column, name in inputs.items() if name in graph.inputs}
    shown = {MATRIX: sorted(places, key=places.__getitem__)} if places else read
    facts = {"lowcal_version": __version__, "columns": _json(shown), "missing": _json(missing)}
    facts |= {"updates": _json(len(predictor)), **source.facts}
    return graph.model([Port(OUTPUT, "double", source.shape)], facts)


def _assemble(source: _Source, columns: GraphColumns, uniform: bool) -> None:
    """Add the start, all updates and the output to a graph."""
    graph, d = columns.graph, source.predictor.layout.d
    p = graph.constant(np.full((1, d), 0.5 if d == 1 else 1.0 / d)) if uniform else _start(graph, source, d)
    for a, name in enumerate(source.predictor.scores):
        columns.scores[name] = graph.add("Gather", graph_scores(graph, p, d), a, axis=1)
    replay = GraphPredictor(columns, source.predictor.encoder, d)
    for update in source.predictor.updates:
        p = replay.update(update, p)
    if uniform and graph.inputs:  # predictions may be one row for all
        rows = graph.add("Gather", graph.add("Shape", next(iter(graph.inputs))), [0])
        p = graph.add("Expand", p, graph.add("Concat", rows, [d], axis=0))
    if source.two_columns and d == 1:  # the result has the shape, and the units, of what was given
        p = graph.add("Concat", graph.add("Sub", 1.0, p), p, axis=1)
    elif d == 1:
        p = graph.add("Squeeze", p, [1])
        if source.bounds is not None:
            low, high = source.bounds
            p = graph.add("Add", low, graph.add("Mul", high - low, p))
    graph.rename(p, OUTPUT)


def _start(graph: Graph, source: _Source, d: int) -> Value:
    """Return the given start in the convention of the updates, shape (n, d)."""
    given = graph.input(START, "double", source.shape)
    if d > 1:
        return graph.add("Div", given, graph.total(given))
    if source.two_columns:
        return graph.add("Gather", graph.add("Div", given, graph.total(given)), [1], axis=1)
    if source.bounds is not None:
        low, high = source.bounds
        given = graph.add("Clip", graph.add("Div", graph.add("Sub", given, low), high - low), 0.0, 1.0)
    return graph.column(given)


# --- updates ------------------------------------------------------------------------------------------------------


class GraphPredictor:
    """Updates in a graph, with the formulas of `moments.displacement` and `simplex.move`, operator by operator."""

    def __init__(self, columns: GraphColumns, encoder: Encoder, d: int) -> None:
        self.graph, self.columns, self.encoder, self.d = columns.graph, columns, encoder, d
        self._known: dict[tuple[int, int], list[GraphMembers]] = {}

    def update(self, step: Update, p: Value) -> Value:
        """Return the predictions after an update, shape (n, d)."""
        if not step.terms:
            return p
        by_weights: dict[tuple[Weight, ...], list[Term]] = {}
        for term in step.terms:
            for u in term.weights:
                graph_weight(u)
            by_weights.setdefault(term.weights, []).append(term)
        parts = [self._displacement(terms, weights, p) for weights, terms in by_weights.items()]
        return move(self.graph, p, self.graph.sum(parts), self.d, step.geometry)

    def _displacement(self, terms: Sequence[Term], weights: tuple[Weight, ...], p: Value) -> Value:
        """Return the displacement of terms with the same weights, shape (n, d) or (1, d)."""
        graph, (_, S, d), cells = self.graph, terms[0].theta.shape, cells_of_one_grid(weights)
        numbers = (S + 1 if cells else S) * d
        members = [(one, term.theta[one.members]) for term in terms for one in self._of_family(term.family, numbers)]
        if cells:
            cell = graph_cells(graph, cells, p)
            none = [(0, 0), (0, 1), (0, 0)]  # the last cell is none: its coefficients are zero
            return graph.sum([one.sum_in_cells(graph, np.pad(theta, none), cell) for one, theta in members])
        every = [(one, theta.reshape(-1, numbers)) for one, theta in members]
        # all matrices stand side by side, as one product is cheaper than many
        matrices = [(one.value, theta) for one, theta in every if isinstance(one, GraphMatrix)]
        every = [(one, theta) for one, theta in every if not isinstance(one, GraphMatrix)]
        if matrices:
            values, thetas = zip(*matrices, strict=True)
            joined = np.concatenate(thetas)
            every.append((GraphMatrix(np.arange(len(joined)), graph.side_by_side(values)), joined))
        amplitude = graph.sum([one.sum(graph, theta) for one, theta in every])
        U = graph_weights(graph, weights, p, d)
        if U is None:  # the constant 1
            return amplitude
        if S == 1 or d == 1:
            product = graph.add("Mul", U, amplitude)
            return product if S == 1 else graph.total(product)
        by_weight = graph.add("Reshape", amplitude, [-1, S, d])
        product = graph.add("Mul", graph.add("Unsqueeze", U, [2]), by_weight)
        return graph.add("ReduceSum", product, [1], keepdims=0)

    def _of_family(self, family: Family, numbers: int) -> Sequence[GraphMembers]:
        """Return a family's members; a look-up of a single one becomes its membership, which updates share."""
        key = id(family), numbers  # the predictor keeps its families: an id stands for one of them
        if key not in self._known:
            self._known[key] = [
                one.matrix(self.graph) if isinstance(one, GraphLookUp) and len(one.members) == 1 else one
                for one in in_graph(family, self.columns, self.encoder, numbers)
            ]
        return self._known[key]


def move(graph: Graph, p: Value, delta: Value, d: int, geometry: Geometry) -> Value:
    """Return `simplex.move`: add and project, or add in log space and normalise."""
    if geometry == "mirror":
        moved = graph.add("Add", graph_scores(graph, p, d), delta)
        return graph.sigmoid(moved) if d == 1 else graph.add("Softmax", moved, axis=1)
    v = graph.add("Add", p, delta)
    if d == 1:
        return graph.add("Clip", v, 0.0, 1.0)
    # max(v - theta, 0) with theta such that each row sums to one, by sorting
    v = graph.add("Sub", v, graph.add("ReduceMax", v, axes=[1], keepdims=1))
    descending = graph.add("TopK", v, [d], axis=1)
    excess = graph.add("Sub", graph.add("CumSum", descending, 1), 1.0)
    scaled = graph.add("Mul", descending, np.arange(1.0, d + 1)[None, :])
    inside = graph.cast(graph.add("Greater", scaled, excess), "int64")
    support = graph.add("ReduceSum", inside, [1], keepdims=1)
    reached = graph.add("GatherElements", excess, graph.add("Sub", support, 1), axis=1)
    theta = graph.add("Div", reached, graph.cast(support, "double"))
    return graph.add("Max", graph.add("Sub", v, theta), 0.0)


# --- columns and inputs -------------------------------------------------------------------------------------------


def text_columns(encoder: Encoder) -> frozenset[str]:
    """Return the columns that are given as text: some category is text, or there are none."""
    readers = [part for part in leaves(encoder) if isinstance(part, ByLevels | FeatureEncoder)]
    known = [levels for reader in readers for levels in reader.levels]
    text = {levels.column for levels in known if any(isinstance(c, str) for c in levels.categories or ())}
    silent = {levels.column for levels in known} - {levels.column for levels in known if levels.categories != ()}
    return frozenset(text | silent)


def input_names(columns: Sequence[str], reserved: Sequence[str]) -> dict[str, str]:
    """Return the name of each column's input: its own, with underscores added where that is empty or taken.

    >>> input_names(["age", "p", "", "p_"], ["p"])
    {'age': 'age', 'p': 'p__', '': '_', 'p_': 'p_'}
    """
    taken = {*reserved, *columns, ""}
    names: dict[str, str] = {}
    for column in columns:
        name = column
        while name in reserved or name == "" or (name != column and name in taken):
            name += "_"
        taken.add(name)
        names[column] = name
    return names
