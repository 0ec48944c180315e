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

from lowcal.data.errors import InvalidInput
from lowcal.data.files.atomic import atomic_write
from lowcal.data.version import __version__
from lowcal.deploy.export import predictions
from lowcal.deploy.export.columns import MATRIX, Columns, are_numbered, input_names, is_bare, places_of, text_columns
from lowcal.deploy.export.families import Families
from lowcal.deploy.export.graph import Graph, Port, Value, load_onnx
from lowcal.rows.updates import Predictor
from lowcal.solve.runs import Fit

__all__ = ["to_onnx"]

#: The input that holds the start probabilities, and the output.
START, OUTPUT = "p", "probabilities"


def to_onnx(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    missing: str = "",
    matrix: bool | None = None,
    two_columns: bool | None = None,
) -> Any:
    """Return a predictor as an ONNX model (`onnx.ModelProto`), and write it to a file if a path is given.

    Inputs of the graph, for n rows:

    * `p`: the start probabilities, double, (n,) for two classes and (n, l) for l classes;
    * one input for each column that some update reads, under the column's own name, shape (n,). Numbers, whole numbers
      and booleans (0 and 1) are double, NaN if missing; text is string, `missing` if missing. A column that mixes
      text and numbers is text, numbers as `str` writes them. A value not met in fitting belongs to no group;
    * or, with `matrix`, one input `X`, double, shape (n, columns), instead of these.

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
    matrix : whether all columns come in one input `X` of numbers, in the order of `predictor.columns`; columns called
        x0, x1, ..., as those of a bare array are, stand at these places. None: for memberships and estimators that
        were fitted on a bare array.
    two_columns : whether `p` and the output have the columns of both classes, (n, 2), in a binary problem. None: as
        `predict_proba` for a classifier, (n,) otherwise.

    Raises InvalidInput for `Regressor(...)`, whose foreign models lowcal can't translate, and for classes, notions and
    encoders that are not lowcal's.

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
    source = _read(model, two_columns)
    if not isinstance(missing, str):
        raise InvalidInput(f"missing is the text that stands for a missing value, but {missing!r} was given.")
    try:
        made = _build(source, missing, matrix)
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


def _read(model: Any, two_columns: bool | None) -> _Source:
    """Return what a model exports."""
    if not isinstance(model, Predictor | Fit):
        return _read_estimator(model, two_columns)
    predictor, facts = (model.predictor, _facts(model)) if isinstance(model, Fit) else (model, {})
    facts["classes"] = _json(predictor.layout.classes)
    return _Source(predictor, bool(two_columns), is_bare=is_bare(predictor.encoder), facts=facts)


def _read_estimator(model: Any, two_columns: bool | None) -> _Source:
    from lowcal.estimators import MulticalibratedClassifier, MulticalibratedRegressor

    if not isinstance(model, MulticalibratedClassifier | MulticalibratedRegressor):
        raise InvalidInput(
            f"to_onnx takes a Predictor, a Fit or a fitted MulticalibratedClassifier or MulticalibratedRegressor, but "
            f"{type(model).__name__} was given."
        )
    if "predictor_" not in vars(model):
        raise InvalidInput(f"This {type(model).__name__} is not fitted yet. Call fit first.")
    encoder, facts = model.predictor_.encoder, _facts(model.fit_)
    bare = (
        "feature_names_in_" not in vars(model) and are_numbered(model.predictor_.columns) and not text_columns(encoder)
    )
    source = _Source(model.predictor_, is_uniform=model.estimator_ is None, is_bare=bare, facts=facts)
    if isinstance(model, MulticalibratedRegressor):
        bounds = (float(model.bounds_[0]), float(model.bounds_[1]))
        return replace(source, bounds=bounds, facts={**facts, "bounds": _json(bounds)})
    return replace(
        source, two_columns=two_columns is not False, facts={**facts, "classes": _json(model.classes_.tolist())}
    )


def _facts(fit: Fit) -> dict[str, str]:
    return {"notion": str(fit.notion), "alpha": _json(fit.alpha)}


def _json(value: Any) -> str:
    """Write plain data; NumPy's scalars as Python's, anything else as its text."""
    return json.dumps(value, default=lambda v: v.item() if isinstance(v, np.generic) else str(v))


def _build(source: _Source, missing: str, matrix: bool | None) -> Any:
    """Return the model; a uniform start that no input tells the number of rows of becomes an input."""
    predictor = source.predictor
    names = predictor.columns
    places = places_of(predictor.encoder, names, source.is_bare if matrix is None else matrix)
    inputs = {} if places else input_names(names, (START, OUTPUT))
    graph = Graph([START, OUTPUT, MATRIX, *inputs.values()])
    if source.is_uniform:
        _assemble(graph, source, Columns(graph, predictor.encoder, missing, inputs, places), uniform=True)
    if not graph.inputs:
        graph = Graph([START, OUTPUT, MATRIX, *inputs.values()])
        _assemble(graph, source, Columns(graph, predictor.encoder, missing, inputs, places), uniform=False)
    _sort(graph, [START, *inputs.values()])
    return graph.model([Port(OUTPUT, "double", _shape(source))], _metadata(graph, source, inputs, places, missing))


def _assemble(graph: Graph, source: _Source, columns: Columns, uniform: bool) -> None:
    """Add the start, all updates and the output to a graph."""
    d = source.predictor.layout.d
    p = graph.constant(np.full((1, d), 0.5 if d == 1 else 1.0 / d)) if uniform else _start(graph, source, d)
    for a, name in enumerate(source.predictor.scores):
        columns.scores[name] = graph.add("Gather", predictions.scores(graph, p, d), a, axis=1)
    families = Families(graph, columns, source.predictor.encoder)
    for update in source.predictor.updates:
        p = predictions.update(graph, families, update, p, d)
    if uniform and graph.inputs:
        p = predictions.on_all_rows(graph, p, next(iter(graph.inputs)), d)
    graph.rename(_shown(graph, source, p, d), OUTPUT)


def _shape(source: _Source) -> tuple[int, ...]:
    """Return the dimensions of p after the rows."""
    d = source.predictor.layout.d
    return (d,) if d > 1 else (2,) if source.two_columns else ()


def _start(graph: Graph, source: _Source, d: int) -> Value:
    """Return the given start in the convention of the updates, shape (n, d)."""
    given = graph.input(START, "double", _shape(source))
    if d > 1:
        return predictions.normalise(graph, given)
    if source.two_columns:
        return graph.add("Gather", predictions.normalise(graph, given), [1], axis=1)
    if source.bounds is not None:
        low, high = source.bounds
        given = graph.add("Clip", graph.add("Div", graph.add("Sub", given, low), high - low), 0.0, 1.0)
    return graph.column(given)


def _shown(graph: Graph, source: _Source, p: Value, d: int) -> Value:
    """Return the result in the shape, and the units, of what was given."""
    if d > 1:
        return p
    if source.two_columns:
        return predictions.both_classes(graph, p)
    shown = graph.add("Squeeze", p, [1])
    if source.bounds is None:
        return shown
    low, high = source.bounds
    return graph.add("Add", low, graph.add("Mul", high - low, shown))


def _sort(graph: Graph, order: Sequence[str]) -> None:
    """Put the inputs in the order of the columns, p first."""
    graph.inputs = dict(sorted(graph.inputs.items(), key=lambda item: order.index(item[0]) if item[0] in order else 0))


def _metadata(
    graph: Graph, source: _Source, inputs: dict[str, str], places: dict[str, int], missing: str
) -> dict[str, str]:
    columns = {name: column for column, name in inputs.items() if name in graph.inputs}
    shown = _json(columns if not places else {MATRIX: sorted(places, key=places.__getitem__)})
    facts = {"lowcal_version": __version__, "columns": shown, "missing": _json(missing)}
    return {**facts, "updates": _json(len(source.predictor)), **source.facts}
