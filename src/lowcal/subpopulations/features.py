"""Columns as features: how X becomes a matrix of numbers for learners, the same on every new X."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowcal.data.frames import Column
from lowcal.data.frames import Table as Frame
from lowcal.kernels.simplex import FloatArray
from lowcal.subpopulations.levels import (
    MISSING,
    Levels,
    learn_levels,
    resolve,
)


@dataclass(frozen=True)
class Scale:
    """A numeric column, centred and scaled; a missing value becomes the mean."""

    column: str
    mean: float
    deviation: float

    @property
    def names(self) -> list[str]:
        """The name of the feature."""
        return [self.column]

    def __call__(self, X: Frame) -> FloatArray:
        """Return the feature, shape (n, 1)."""
        values = (X.numeric([self.column]) - self.mean) / self.deviation
        return np.nan_to_num(values, nan=0.0, posinf=1e6, neginf=-1e6)

    def to_dict(self) -> dict[str, Any]:
        """Return the scale as plain data."""
        return {"kind": "scale", "column": self.column, "mean": self.mean, "deviation": self.deviation}


@dataclass(frozen=True)
class Indicators:
    """A 0/1 feature for each of some levels of a column."""

    levels: Levels
    wanted: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [self.levels.name(level) for level in self.wanted]

    def __call__(self, X: Frame) -> FloatArray:
        """Return the features, shape (n, k)."""
        return np.asarray(self.levels.codes(X)[:, None] == np.array(self.wanted), dtype=np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return the indicators as plain data."""
        return {"kind": "indicators", "levels": self.levels.to_dict(), "wanted": list(self.wanted)}


@dataclass(frozen=True)
class FeatureEncoder:
    """The features of all columns, side by side."""

    features: tuple[Scale | Indicators, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features, in the order of the matrix."""
        return tuple(name for feature in self.features for name in feature.names)

    def __call__(self, X: Frame) -> FloatArray:
        """Return the matrix of features."""
        blocks = [feature(X) for feature in self.features]
        return np.concatenate(blocks, axis=1) if blocks else np.zeros((X.n_rows, 0))

    def to_dict(self) -> dict[str, Any]:
        """Return the encoder as plain data."""
        return {"kind": "features", "features": [feature.to_dict() for feature in self.features]}


def learn_features(
    columns: str | int | Sequence[str | int] | None, X: Frame, sample_weight: FloatArray
) -> FeatureEncoder:
    """Return the encoder of the wanted columns: numbers scaled, categories as indicators, missing marked."""
    features: list[Scale | Indicators] = []
    for name in resolve(columns, X):
        column = X.column(name)
        if column.is_numeric:
            features += _numeric(column, sample_weight)
        else:
            levels = learn_levels(column, 2, sample_weight)
            seen = np.unique(levels.codes(X)[sample_weight > 0])
            features.append(Indicators(levels, tuple(int(v) for v in seen)))
    return FeatureEncoder(tuple(features))


def _numeric(column: Column, sample_weight: FloatArray) -> list[Scale | Indicators]:
    values = column.values
    assert values is not None
    finite = np.isfinite(values) & (sample_weight > 0)
    if not finite.any():
        return []
    mean = float(np.average(values[finite], weights=sample_weight[finite]))
    deviation = float(np.sqrt(np.average(np.square(values[finite] - mean), weights=sample_weight[finite])))
    found: list[Scale | Indicators] = [Scale(column.name, mean, deviation or 1.0)]
    if np.isnan(values).any():
        found.append(Indicators(Levels(column.name, None), (MISSING,)))
    return found
