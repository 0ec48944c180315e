"""A graph of ONNX operators under construction: named values, constants stored once, no node computed twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowcal.data.errors import MissingExtra

#: The name of a value in the graph.
Value: TypeAlias = str

#: What onnxruntime 1.17 and later read; every operator used has a double kernel there.
OPSET, ML_OPSET, IR_VERSION = 17, 2, 8
#: The name of the dimension that counts the rows.
ROWS = "rows"

_DOMAINS = {"LabelEncoder": "ai.onnx.ml"}


@dataclass(frozen=True)
class Port:
    """An input or output of the graph: its name, "double" or "string", and its dimensions after the rows."""

    name: Value
    type: str
    shape: tuple[int | str, ...] = ()


class Graph:
    """Operators in the order in which they run; `add` returns the name of what an operator computes.

    Numbers and arrays given as inputs become constants. The same operator on the same inputs is added once.

    >>> g = Graph()
    >>> x = g.input("x", "double")
    >>> g.add("Add", x, 1.0) == g.add("Add", x, 1.0) != g.add("Add", x, 2.0)
    True
    >>> len(g.nodes), len(g.constants)
    (2, 2)
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.inputs: dict[Value, Port] = {}
        self.constants: dict[Value, NDArray[Any]] = {}
        self.nodes: list[tuple[str, tuple[Value, ...], Value, dict[str, Any]]] = []
        self._known: dict[Any, Value] = {}
        self._taken = set(reserved)

    def input(self, name: str, kind: str, shape: tuple[int | str, ...] = ()) -> Value:
        """Return the input of this name, declared at the first call."""
        self.inputs.setdefault(name, Port(name, kind, shape))
        self._taken.add(name)
        return name

    def constant(self, value: ArrayLike) -> Value:
        """Return a constant: whole numbers are int64, others double."""
        array = np.array(value)  # a contiguous copy that keeps zero dimensions
        array = array.astype(np.int64 if array.dtype.kind in "biu" else np.float64, order="C")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self._name()
            self.constants[self._known[key]] = array
        return self._known[key]

    def add(self, operator: str, *inputs: Value | ArrayLike, **attributes: Any) -> Value:
        """Return the (first) output of an operator."""
        names = tuple(value if isinstance(value, str) else self.constant(value) for value in inputs)
        key = (operator, names, repr(sorted(attributes.items())))
        if key not in self._known:
            self._known[key] = self._name()
            self.nodes.append((operator, names, self._known[key], attributes))
        return self._known[key]

    def rename(self, value: Value, name: str) -> None:
        """Give the last result the name of an output."""
        self.nodes.append(("Identity", (value,), name, {}))

    def cast(self, value: Value, kind: str) -> Value:
        """Return a value as "int64" or "double"."""
        return self.add("Cast", value, to={"int64": 7, "double": 11}[kind])

    def column(self, value: Value) -> Value:
        """Return an array of shape (n,) as (n, 1)."""
        return self.add("Unsqueeze", value, [1])

    def total(self, value: Value) -> Value:
        """Return the sums of the rows, shape (n, 1)."""
        return self.add("ReduceSum", value, [1], keepdims=1)

    def sum(self, values: Sequence[Value]) -> Value:
        """Return the sum of values, added in the given order."""
        return reduce(lambda a, b: self.add("Add", a, b), values)

    def side_by_side(self, columns: Sequence[Value]) -> Value:
        """Return columns of shape (n, k) as one array."""
        return columns[0] if len(columns) == 1 else self.add("Concat", *columns, axis=1)

    def _name(self) -> Value:
        """Return a name that no input, output or other value has."""
        name = f"v{len(self._known)}"
        while name in self._taken:
            name += "_"
        return name

    def model(self, outputs: Sequence[Port], metadata: Mapping[str, str]) -> Any:
        """Return the ONNX model, checked."""
        onnx = load_onnx()
        helper = onnx.helper
        nodes = [
            helper.make_node(op, inputs, _outputs(op, output), domain=_DOMAINS.get(op, ""), **attributes)
            for op, inputs, output, attributes in self.nodes
        ]
        constants = [onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        ports = [[_port(onnx, port) for port in side] for side in (self.inputs.values(), outputs)]
        opsets = [helper.make_opsetid("", OPSET)]
        if any(op in _DOMAINS for op, *_ in self.nodes):  # what is not declared can't differ from a graph joined to it
            opsets.append(helper.make_opsetid("ai.onnx.ml", ML_OPSET))
        graph = helper.make_graph(nodes, "lowcal", *ports, constants)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="lowcal")
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        return model


def _outputs(operator: str, output: Value) -> list[Value]:
    """Return the names of an operator's outputs; of a TopK the places are not used."""
    return [output, f"{output} places"] if operator == "TopK" else [output]


def _port(onnx: Any, port: Port) -> Any:
    kind = {"double": onnx.TensorProto.DOUBLE, "string": onnx.TensorProto.STRING}[port.type]
    return onnx.helper.make_tensor_value_info(port.name, kind, [ROWS, *port.shape])


def load_onnx() -> Any:
    """Import onnx, which only this package needs."""
    try:
        return import_module("onnx")
    except ImportError as error:
        raise MissingExtra("onnx is not installed; run: pip install 'lowcal[onnx]'") from error
