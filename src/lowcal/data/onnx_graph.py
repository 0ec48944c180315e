"""ONNX under construction: a graph of operators, the raw columns as its inputs, and memberships that updates sum up.

Families and weights write themselves into a graph by a method `onnx`; the package onnx is imported at the end, when
the graph becomes a model. All arithmetic is in doubles. Numbers and booleans are doubles, NaN for missing; text is a
string, and one word, by default the empty one, marks a missing value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowcal.data.errors import InvalidInput, load_extra
from lowcal.kernels.reference import Cumulative, Decode
from lowcal.kernels.simplex import FloatArray, IntArray

#: The name of a value in the graph.
Value: TypeAlias = str

#: The name of the dimension that counts the rows, and of the input that holds all columns of a bare array.
ROWS, MATRIX = "rows", "X"
#: Up to this many sorted numbers a value is compared with all of them; among more it is found by halving.
FEW = 16

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
        """Make a value the output of this name."""
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

    def sigmoid(self, value: Value) -> Value:
        """Return 1 / (1 + exp(-t)): unlike the operator Sigmoid, to full relative precision where it is nearly 0."""
        return self.add("Div", 1.0, self.add("Add", 1.0, self.add("Exp", self.add("Neg", value))))

    def count_below(self, value: Value, cuts: FloatArray, compare: str = "Less") -> Value:
        """Return how many sorted cuts are below the value ("LessOrEqual": at most the value), shape (n,); NaN gives 0.

        Cost: len(cuts) comparisons a row if they are few, else log2 of it, each by a look-up.
        """
        if len(cuts) <= FEW:
            below = self.add(compare, cuts[None, :], self.column(value))
            return self.add("ReduceSum", self.cast(below, "int64"), [1], keepdims=0)
        size = 1 << (len(cuts).bit_length() - 1)
        padded = np.full(2 * size, np.nan)  # nothing compares with NaN
        padded[: len(cuts)] = cuts
        place = self.constant(0)
        while size:
            probe = self.add("Gather", padded, self.add("Add", place, size - 1))
            step = self.cast(self.add(compare, probe, value), "int64")
            place = self.add("Add", place, self.add("Mul", step, size))
            size //= 2
        return place

    def _name(self) -> Value:
        """Return a name that no input, output or other value has."""
        name = f"v{len(self._known)}"
        while name in self._taken:
            name += "_"
        return name

    def model(self, outputs: Sequence[Port], metadata: Mapping[str, str]) -> Any:
        """Return the ONNX model, checked."""
        onnx = load_onnx()
        helper, types = onnx.helper, {"double": onnx.TensorProto.DOUBLE, "string": onnx.TensorProto.STRING}
        nodes = []
        for op, inputs, output, attributes in self.nodes:
            every = [output, f"{output} places"] if op == "TopK" else [output]  # the places are not used
            nodes.append(helper.make_node(op, inputs, every, domain=_DOMAINS.get(op, ""), **attributes))
        constants = [onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        ports = [
            [helper.make_tensor_value_info(port.name, types[port.type], [ROWS, *port.shape]) for port in side]
            for side in (self.inputs.values(), outputs)
        ]
        # versions that onnxruntime 1.17 and later read; every operator used has a double kernel there
        opsets = [helper.make_opsetid("", 17)]
        if any(op in _DOMAINS for op, *_ in self.nodes):  # what is not declared can't differ from a graph joined to it
            opsets.append(helper.make_opsetid("ai.onnx.ml", 2))
        graph = helper.make_graph(nodes, "lowcal", *ports, constants)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="lowcal")
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        return model


@dataclass(frozen=True, eq=False)
class GraphColumns:
    """The raw columns of X; a column becomes an input of the graph when it is first read.

    Parameters
    ----------
    missing : the text that marks a missing value.
    text : the columns that are given as text.
    names : column -> name of its input; empty where `places` is given.
    places : column -> its place in the input X, where X is one matrix of numbers.
    scores : columns that are not in X: scores of the start.
    known : what encoders and families have made for others to use again.
    """

    graph: Graph
    missing: str
    text: frozenset[str]
    names: Mapping[str, str]
    places: Mapping[str, int]
    scores: dict[str, Value] = field(default_factory=dict)
    known: dict[Any, Any] = field(default_factory=dict)

    def number(self, column: str) -> Value:
        """Return a column of numbers, shape (n,): one of X, or a score of the start."""
        if column in self.scores:
            return self.scores[column]
        if self.places:
            matrix = self.graph.input(MATRIX, "double", ("columns",))
            return self.graph.add("Gather", matrix, self.places[column], axis=1)
        if column not in self.names:
            raise InvalidInput(f"Column {column!r} is exported, but is not among the `columns` of its encoder.")
        return self.graph.input(self.names[column], "double")

    def label(self, column: str, levels: Mapping[str, int], unseen: int) -> Value:
        """Return a number for the text of every row, by a dictionary that knows the missing one too."""
        text = self.graph.input(self.names[column], "string")
        keys, values = list(levels), list(levels.values())
        return self.graph.add("LabelEncoder", text, keys_strings=keys, values_int64s=values, default_int64=unseen)

    def bin(self, column: str, cuts: Sequence[float] | FloatArray, missing: int, first: int) -> Value:
        """Return `first` plus the number of cuts below the value, `missing` for NaN."""
        value = self.number(column)
        if len(cuts) == 0:
            return self.unless_missing(value, missing, first)
        below = self.graph.count_below(value, np.asarray(cuts, dtype=np.float64))
        return self.unless_missing(value, missing, self.graph.add("Add", below, first))

    def unless_missing(self, value: Value, missing: int, level: Value | int) -> Value:
        """Return a level where a number is present, another where it is missing."""
        return self.graph.add("Where", self.graph.add("IsNaN", value), missing, level)


# Members of a family: `sum` returns C theta for coefficients of shape (m, q), shape (n, q) or, for everybody, (1, q);
# `sum_in_cells` returns sum_j C_j theta[j, cell, :] for coefficients (m, cells, d), shape (n, d), the last cell none.


@dataclass(frozen=True, eq=False)
class GraphEverybody:
    """One member, who everybody is."""

    members: IntArray

    def sum(self, graph: Graph, theta: FloatArray) -> Value:
        """Return the coefficients."""
        return graph.constant(theta)

    def sum_in_cells(self, graph: Graph, theta: FloatArray, cell: Value) -> Value:
        """Return the coefficients of each row's cell."""
        return graph.add("ReduceSum", graph.add("Gather", theta.transpose(1, 0, 2), cell), [1], keepdims=0)


@dataclass(frozen=True, eq=False)
class GraphMatrix:
    """Memberships as a value of shape (n, m)."""

    members: IntArray
    value: Value

    def sum(self, graph: Graph, theta: FloatArray) -> Value:
        """Return the product."""
        return graph.add("Mul" if len(theta) == 1 else "MatMul", self.value, theta)

    def sum_in_cells(self, graph: Graph, theta: FloatArray, cell: Value) -> Value:
        """Return the product with the coefficients of each row's cell, which are (n, m, d)."""
        by_cell = graph.add("Gather", theta.transpose(1, 0, 2), cell)
        by_cell = graph.add("Mul", by_cell, graph.add("Unsqueeze", self.value, [2]))
        return graph.add("ReduceSum", by_cell, [1], keepdims=0)


@dataclass(frozen=True, eq=False)
class GraphLookUp:
    """Memberships as functions of a code in 0..levels-1 of shape (n,)."""

    members: IntArray
    code: Value
    decode: Decode

    def sum(self, graph: Graph, theta: FloatArray) -> Value:
        """Return the sums of each code, looked up."""
        return graph.add("Gather", self.decode.spread(theta), self.code)

    def sum_in_cells(self, graph: Graph, theta: FloatArray, cell: Value) -> Value:
        """Return the sums of each code and cell, looked up."""
        m, n_cells, d = theta.shape
        table = self.decode.spread(theta.reshape(m, n_cells * d)).reshape(self.decode.shape[0] * n_cells, d)
        return graph.add("Gather", table, graph.add("Add", graph.add("Mul", self.code, n_cells), cell))

    def matrix(self, graph: Graph) -> GraphMatrix:
        """Return the same as memberships, which updates share, for a single member."""
        decode, code = self.decode, graph.column(self.code)
        if not isinstance(decode, Cumulative):
            return GraphMatrix(self.members, graph.add("Gather", decode.spread(np.ones((1, 1)))[:, 0], code))
        inside = graph.add("Greater", code, decode.cuts[0])
        if not decode.is_above[0]:
            inside = graph.add("And", graph.add("Not", inside), graph.add("Greater", code, 0))
        return GraphMatrix(self.members, graph.cast(inside, "double"))


#: Some members of a family in a graph; `members` says which.
GraphMembers: TypeAlias = GraphEverybody | GraphMatrix | GraphLookUp


def load_onnx() -> Any:
    """Import onnx, which only this package needs."""
    return load_extra("onnx", "onnx is not installed; run: pip install 'lowcal[onnx]'")
