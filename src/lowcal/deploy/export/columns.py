"""The raw columns as inputs of a graph, and what encoders make of them: levels, bins, scaled features.

The same conventions as in `subpopulations.levels`, `bins` and `features`, operator by operator. Numbers and booleans
are doubles, NaN for missing. Text is a string; one word, by default the empty one, stands for missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.deploy.export.graph import Graph, Value
from lowcal.kernels.simplex import FloatArray
from lowcal.subpopulations.base import Encoder
from lowcal.subpopulations.bins import BinEncoder
from lowcal.subpopulations.features import FeatureEncoder, Indicators, Scale
from lowcal.subpopulations.groups import GroupEncoder
from lowcal.subpopulations.levels import FIRST, MISSING, UNSEEN, Levels
from lowcal.subpopulations.memberships import MembershipEncoder
from lowcal.subpopulations.union import UnionEncoder

#: Up to this many sorted numbers a value is compared with all of them; among more it is found by halving.
FEW = 16
#: The input that holds all columns of a bare array.
MATRIX = "X"


class Columns:
    """The columns that an encoder reads; a column becomes an input of the graph when it is first read.

    Parameters
    ----------
    missing : the text that stands for a missing value.
    names : column -> name of its input; empty where `places` is given.
    places : column -> its place in the input X, where X is one matrix of numbers.
    """

    def __init__(
        self, graph: Graph, encoder: Encoder, missing: str, names: dict[str, str], places: dict[str, int]
    ) -> None:
        self.graph, self.missing, self.names, self.places = graph, missing, names, places
        self.text = text_columns(encoder)
        self.scores: dict[str, Value] = {}

    def number(self, column: str) -> Value:
        """Return a column of numbers, shape (n,): one of X, or a score of the start."""
        if column in self.scores:
            return self.scores[column]
        if self.places:
            matrix = self.graph.input(MATRIX, "double", ("columns",))
            return self.graph.add("Gather", matrix, self.places[column], axis=1)
        return self.graph.input(self.names[column], "double")

    def level(self, levels: Levels, unseen: int = UNSEEN) -> Value:
        """Return the level of every row of a column, shape (n,), with `unseen` for values not met in fitting."""
        if levels.categories is None:
            return self.bin(levels.column, levels.cuts, MISSING, FIRST)
        if levels.column in self.text:
            return self._level_of_text(levels, unseen)
        numbers = {c: FIRST + k for k, c in enumerate(levels.categories) if isinstance(c, int | float)}
        rounded = next((c for c in numbers if not _is_met(c)), None)
        if rounded is not None:
            raise InvalidInput(
                f"Column {levels.column!r} has the category {rounded}, a whole number beyond 2^53 that no double of an "
                "ONNX input equals. Make the column text before fitting."
            )
        known = np.array(sorted(numbers), dtype=np.float64)
        value = self.number(levels.column)
        if not len(known):
            return self._unless_missing(value, MISSING, unseen)
        place = count_below(self.graph, value, known)
        padded = self.graph.add("Gather", np.append(known, np.nan), place)
        level = self.graph.add("Gather", [*(numbers[v] for v in sorted(numbers)), unseen], place)
        found = self.graph.add("Where", self.graph.add("Equal", padded, value), level, unseen)
        return self._unless_missing(value, MISSING, found)

    def bin(self, column: str, cuts: Sequence[float] | FloatArray, missing: int, first: int) -> Value:
        """Return `first` plus the number of cuts below the value, `missing` for NaN."""
        value = self.number(column)
        if len(cuts) == 0:
            return self._unless_missing(value, missing, first)
        below = count_below(self.graph, value, np.asarray(cuts, dtype=np.float64))
        return self._unless_missing(value, missing, self.graph.add("Add", below, first))

    def feature(self, feature: Scale | Indicators) -> Value:
        """Return the features of one column, shape (n, k)."""
        g = self.graph
        if isinstance(feature, Indicators):
            equal = g.add("Equal", g.column(self.level(feature.levels)), [feature.wanted])
            return g.cast(equal, "double")
        value = g.add("Div", g.add("Sub", self.number(feature.column), feature.mean), feature.deviation)
        for infinite, limit in ((np.inf, 1e6), (-np.inf, -1e6)):
            value = g.add("Where", g.add("Equal", value, infinite), limit, value)
        return g.column(g.add("Where", g.add("IsNaN", value), 0.0, value))

    def _level_of_text(self, levels: Levels, unseen: int) -> Value:
        """Return the levels of text by a dictionary."""
        keys = [str(c) for c in levels.categories or ()]
        twice = [key for key, times in Counter([*keys, self.missing]).items() if times > 1]
        if twice and twice[0] == self.missing:
            raise InvalidInput(
                f"Column {levels.column!r} has the category {self.missing!r}, which is to stand for missing values in "
                "the graph, as ONNX has no missing text. Choose another word: missing='<missing>'."
            )
        if twice:
            raise InvalidInput(
                f"Column {levels.column!r} has the number {twice[0]} and the text {twice[0]!r} as categories, which an "
                "ONNX input can't tell apart. Make the column all text before fitting."
            )
        text = self.graph.input(self.names[levels.column], "string")
        attributes = {"keys_strings": [*keys, self.missing], "values_int64s": [*range(FIRST, levels.count), MISSING]}
        return self.graph.add("LabelEncoder", text, **attributes, default_int64=unseen)

    def _unless_missing(self, value: Value, missing: int, level: Value | int) -> Value:
        return self.graph.add("Where", self.graph.add("IsNaN", value), missing, level)


def count_below(graph: Graph, value: Value, cuts: FloatArray, compare: str = "Less") -> Value:
    """Return how many sorted cuts are below the value ("LessOrEqual": at most the value), shape (n,); NaN gives 0.

    Cost: len(cuts) comparisons a row if they are few, else log2 of it, each by a look-up.
    """
    if len(cuts) <= FEW:
        below = graph.add(compare, cuts[None, :], graph.column(value))
        return graph.add("ReduceSum", graph.cast(below, "int64"), [1], keepdims=0)
    size = 1 << (len(cuts).bit_length() - 1)
    padded = np.full(2 * size, np.nan)  # nothing compares with NaN
    padded[: len(cuts)] = cuts
    place = graph.constant(0)
    while size:
        probe = graph.add("Gather", padded, graph.add("Add", place, size - 1))
        step = graph.cast(graph.add(compare, probe, value), "int64")
        place = graph.add("Add", place, graph.add("Mul", step, size))
        size //= 2
    return place


def text_columns(encoder: Encoder) -> frozenset[str]:
    """Return the columns that are given as text: some category is text, or none is left to tell."""
    readers: dict[str, list[Levels]] = {}
    for levels in _levels_of(encoder):
        readers.setdefault(levels.column, []).append(levels)
    return frozenset(column for column, every in readers.items() if _is_text(every))


def _is_text(readers: Sequence[Levels]) -> bool:
    categories = [c for levels in readers for c in levels.categories or ()]
    return any(isinstance(c, str) for c in categories) or all(levels.categories == () for levels in readers)


def _levels_of(encoder: Encoder) -> Iterator[Levels]:
    if isinstance(encoder, UnionEncoder):
        for part in encoder.parts:
            yield from _levels_of(part)
    elif isinstance(encoder, GroupEncoder | BinEncoder):
        yield from encoder.levels
    elif isinstance(encoder, FeatureEncoder):
        yield from (f.levels for f in encoder.features if isinstance(f, Indicators))


def _is_met(number: int | float) -> bool:
    """Whether some double equals the number; infinities do, some large whole numbers do not."""
    return abs(number) == np.inf or (abs(number) < 2**1000 and float(number) == number)


def is_bare(encoder: Encoder) -> bool:
    """Whether the encoder says that it was fitted on a bare array; only memberships do."""
    if isinstance(encoder, UnionEncoder):
        return any(is_bare(part) for part in encoder.parts)
    return isinstance(encoder, MembershipEncoder) and encoder.columns is None


def places_of(encoder: Encoder, columns: Sequence[str], matrix: bool) -> dict[str, int]:
    """Return where the columns stand in one matrix of numbers; empty: each column is an input of its own.

    The columns of a bare array are called x0, x1, ... and stand at these places; others in the order of first use.
    """
    text = text_columns(encoder)
    if matrix and text:
        raise InvalidInput(
            f"matrix=True needs columns of numbers only, but {', '.join(map(repr, sorted(text)[:5]))} hold text. "
            "Leave matrix=None: each column is then an input of its own."
        )
    if not matrix:
        return {}
    return {name: int(name[1:]) if are_numbered(columns) else k for k, name in enumerate(columns)}


def are_numbered(columns: Sequence[str]) -> bool:
    """Whether columns are called as those of a bare array."""
    return all(name[:1] == "x" and name[1:].isdigit() for name in columns)


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
