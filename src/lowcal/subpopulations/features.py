"""Columns as features: how X becomes a matrix of numbers for learners, the same on every new X."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from lowcal.data.checked_json import Kinds, Plain, PlainFields
from lowcal.data.frames import Column
from lowcal.data.frames import Table as Frame
from lowcal.data.onnx_graph import GraphColumns, Value
from lowcal.kernels.simplex import FloatArray
from lowcal.subpopulations.base import ENCODERS, ColumnChoice
from lowcal.subpopulations.levels import MISSING, Levels, learn_levels, resolve
from lowcal.subpopulations.single_row import Row, RowReader, number

#: The largest finite number, and the smallest positive one.
LARGEST, SMALLEST = float(np.finfo(float).max), float(np.finfo(float).smallest_subnormal)

#: What files may hold as features.
FEATURES = Kinds("a feature", "Use Linear")


@FEATURES.register
@dataclass(frozen=True)
class ScaledColumn(PlainFields):
    """A numeric column, centred and scaled; a missing value becomes the mean."""

    column: str
    mean: float
    deviation: float
    kind: ClassVar[str] = "scale"
    levels: ClassVar[Levels | None] = None

    @property
    def names(self) -> list[str]:
        """The name of the feature."""
        return [self.column]

    def __call__(self, X: Frame) -> FloatArray:
        """Return the feature, shape (n, 1)."""
        values = (X.numeric([self.column]) - self.mean) / self.deviation
        return np.nan_to_num(values, nan=0.0, posinf=1e6, neginf=-1e6)

    def row_reader(self) -> Callable[[Row], Sequence[float]]:
        """Return the feature of a row."""

        def read(row: Row) -> Sequence[float]:
            shifted = (number(row(self.column), self.column) - self.mean) / self.deviation
            if -inf < shifted < inf:
                return [shifted]
            return [float(np.nan_to_num(shifted, nan=0.0, posinf=1e6, neginf=-1e6))]

        return read

    def onnx(self, columns: GraphColumns) -> Value:
        """Return the feature in a graph, shape (n, 1)."""
        g = columns.graph
        value = g.add("Div", g.add("Sub", columns.number(self.column), self.mean), self.deviation)
        for infinite, limit in ((np.inf, 1e6), (-np.inf, -1e6)):
            value = g.add("Where", g.add("Equal", value, infinite), limit, value)
        return g.column(g.add("Where", g.add("IsNaN", value), 0.0, value))

    @classmethod
    def from_dict(cls, at: Plain) -> ScaledColumn:
        """Return the feature of plain data."""
        _, column, mean, deviation = at.fields("kind", "column", "mean", "deviation")
        return cls(column.text(), mean.number(-LARGEST, LARGEST), deviation.number(SMALLEST))


@FEATURES.register
@dataclass(frozen=True)
class Indicators(PlainFields):
    """A 0/1 feature for each of some levels of a column."""

    levels: Levels
    wanted: tuple[int, ...]
    kind: ClassVar[str] = "indicators"

    @property
    def column(self) -> str:
        """The column that is read."""
        return self.levels.column

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [self.levels.name(level) for level in self.wanted]

    def __call__(self, X: Frame) -> FloatArray:
        """Return the features, shape (n, k)."""
        return np.asarray(self.levels.codes(X)[:, None] == np.array(self.wanted), dtype=np.float64)

    def row_reader(self) -> Callable[[Row], Sequence[float]]:
        """Return the features of a row."""
        level = self.levels.row_reader()

        def read(row: Row) -> Sequence[float]:
            code = level(row)
            return [float(code == one) for one in self.wanted]

        return read

    def onnx(self, columns: GraphColumns) -> Value:
        """Return the features in a graph, shape (n, k)."""
        equal = columns.graph.add("Equal", columns.graph.column(self.levels.onnx(columns)), [self.wanted])
        return columns.graph.cast(equal, "double")

    @classmethod
    def from_dict(cls, at: Plain) -> Indicators:
        """Return the features of plain data."""
        _, levels, wanted = at.fields("kind", "levels", "wanted")
        own = Levels.from_dict(levels)
        return cls(own, tuple(one.whole(MISSING, own.count - 1) for one in wanted.items()))


@ENCODERS.register
@dataclass(frozen=True)
class FeatureEncoder(PlainFields):
    """The features of all columns, side by side."""

    features: tuple[ScaledColumn | Indicators, ...]
    kind: ClassVar[str] = "features"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features, in the order of the matrix."""
        return tuple(name for feature in self.features for name in feature.names)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(dict.fromkeys(feature.column for feature in self.features))

    @property
    def levels(self) -> tuple[Levels, ...]:
        """How columns are read that are read as levels."""
        return tuple(feature.levels for feature in self.features if feature.levels is not None)

    def __call__(self, X: Frame) -> FloatArray:
        """Return the matrix of features."""
        blocks = [feature(X) for feature in self.features]
        return np.concatenate(blocks, axis=1) if blocks else np.zeros((X.n_rows, 0))

    def row_reader(self) -> RowReader:
        """Return the features of a row."""
        readers = [feature.row_reader() for feature in self.features]
        return lambda row: [value for read in readers for value in read(row)]

    @classmethod
    def from_dict(cls, at: Plain) -> FeatureEncoder:
        """Return the encoder of plain data."""
        _, features = at.fields("kind", "features")
        return cls(tuple(FEATURES.read(one) for one in features.items()))


def learn_features(columns: ColumnChoice, X: Frame, sample_weight: FloatArray) -> FeatureEncoder:
    """Return the encoder of the wanted columns: numbers scaled, categories as indicators, missing marked."""
    features: list[ScaledColumn | Indicators] = []
    for name in resolve(columns, X):
        column = X.column(name)
        if column.is_numeric:
            features += _numeric(column, sample_weight)
        else:
            levels = learn_levels(column, 2, sample_weight)
            seen = np.unique(levels.codes(X)[sample_weight > 0])
            features.append(Indicators(levels, tuple(int(v) for v in seen)))
    return FeatureEncoder(tuple(features))


def _numeric(column: Column, sample_weight: FloatArray) -> list[ScaledColumn | Indicators]:
    values = column.values
    assert values is not None
    finite = np.isfinite(values) & (sample_weight > 0)
    if not finite.any():
        return []
    mean = float(np.average(values[finite], weights=sample_weight[finite]))
    deviation = float(np.sqrt(np.average(np.square(values[finite] - mean), weights=sample_weight[finite])))
    found: list[ScaledColumn | Indicators] = [ScaledColumn(column.name, mean, deviation or 1.0)]
    if np.isnan(values).any():
        found.append(Indicators(Levels(column.name, None), (MISSING,)))
    return found
