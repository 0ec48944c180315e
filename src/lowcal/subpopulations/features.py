"""Classes that are learned from a matrix of features: Linear, and Regressor for any regressor of scikit-learn.

Linear is c(x) = sigmoid(<theta, x> + b), the class of the paper's experiment (Section 6). The direction is the ridge
regression of the residual on the features (closed form, the Gram matrix factored once), a fast direction that
generalises well; its steepness is then chosen by correlation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import copysign, isfinite, isnan
from sys import float_info
from typing import Any, ClassVar, NoReturn

import numpy as np
from scipy.special import expit

from lowcal.data.checked_json import MOST, Kinds, Plain, PlainFields
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import check_positive
from lowcal.data.onnx_graph import GraphColumns, GraphMatrix, Value
from lowcal.kernels.products import Cholesky, by_row, product
from lowcal.kernels.reference import Design, Matrix, pieces
from lowcal.kernels.simplex import SMALLEST, FloatArray, IntArray, leading
from lowcal.subpopulations.base import (
    CLASSES,
    ENCODERS,
    EXPORTED,
    FAMILIES,
    ColumnChoice,
    Everyone,
    Family,
    OfColumns,
    ReadFor,
    WeakLearner,
    strongest,
)
from lowcal.subpopulations.levels import MISSING, Levels, learn_levels, resolve
from lowcal.subpopulations.single_row import Evaluate, MemberRead, Read, Row, RowFacts, RowReader, number

#: Steepness of the sigmoid tried for every direction, in units of the score's standard deviation.
STEEPNESS = (1.0, 3.0, 9.0)

#: What files may hold as features.
FEATURES = Kinds("a feature", "Use Linear")


@FEATURES.register
@dataclass(frozen=True)
class _ScaledColumn(PlainFields):
    """A numeric column, centred and scaled; a missing value becomes the mean."""

    column: str
    mean: float
    deviation: float
    kind: ClassVar[str] = "scale"
    levels: ClassVar[Levels | None] = None

    @property
    def names(self) -> list[str]:
        return [self.column]

    def __call__(self, X: Frame) -> FloatArray:
        values = (X.numeric([self.column]) - self.mean) / self.deviation
        return np.nan_to_num(values, nan=0.0, posinf=1e6, neginf=-1e6)

    def row_reader(self) -> Callable[[Row], Sequence[float]]:
        def read(row: Row) -> Sequence[float]:
            shifted = (number(row(self.column), self.column) - self.mean) / self.deviation
            return [shifted if isfinite(shifted) else 0.0 if isnan(shifted) else copysign(1e6, shifted)]

        return read

    def onnx(self, columns: GraphColumns) -> Value:
        """Return the feature in a graph, shape (n, 1)."""
        g = columns.graph
        value = g.add("Div", g.add("Sub", columns.number(self.column), self.mean), self.deviation)
        for infinite, limit in ((np.inf, 1e6), (-np.inf, -1e6)):
            value = g.add("Where", g.add("Equal", value, infinite), limit, value)
        return g.column(g.add("Where", g.add("IsNaN", value), 0.0, value))

    @classmethod
    def from_dict(cls, at: Plain) -> _ScaledColumn:
        _, column, mean, deviation = at.fields("kind", "column", "mean", "deviation")
        return cls(column.text(), mean.number(-float_info.max, float_info.max), deviation.number(SMALLEST))


@FEATURES.register
@dataclass(frozen=True)
class _Indicators(PlainFields):
    """A 0/1 feature for each of some levels of a column."""

    levels: Levels
    wanted: tuple[int, ...]
    kind: ClassVar[str] = "indicators"

    @property
    def column(self) -> str:
        return self.levels.column

    @property
    def names(self) -> list[str]:
        return [self.levels.name(level) for level in self.wanted]

    def __call__(self, X: Frame) -> FloatArray:
        return np.asarray(self.levels.codes(X)[:, None] == np.array(self.wanted), dtype=np.float64)

    def row_reader(self) -> Callable[[Row], Sequence[float]]:
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
    def from_dict(cls, at: Plain) -> _Indicators:
        _, levels, wanted = at.fields("kind", "levels", "wanted")
        own = Levels.from_dict(levels)
        return cls(own, tuple(one.whole(MISSING, own.count - 1) for one in wanted.items()))


@ENCODERS.register
@dataclass(frozen=True)
class FeatureEncoder(PlainFields):
    """The features of all columns, side by side."""

    features: tuple[_ScaledColumn | _Indicators, ...]
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
    features: list[_ScaledColumn | _Indicators] = []
    for name in resolve(columns, X):
        column = X.column(name)
        if not column.is_numeric:
            levels = learn_levels(column, 2, sample_weight)
            seen = np.unique(levels.codes(X)[sample_weight > 0])
            features.append(_Indicators(levels, tuple(int(v) for v in seen)))
            continue
        values = column.values
        assert values is not None
        finite = np.isfinite(values) & (sample_weight > 0)
        if finite.any():
            mean = float(np.average(values[finite], weights=sample_weight[finite]))
            deviation = float(np.sqrt(np.average(np.square(values[finite] - mean), weights=sample_weight[finite])))
            features.append(_ScaledColumn(column.name, mean, deviation or 1.0))
            if np.isnan(values).any():
                features.append(_Indicators(Levels(column.name, None), (MISSING,)))
    return FeatureEncoder(tuple(features))


# --- sigmoids of linear functions ------------------------------------------------------------------------------


@CLASSES.register
@dataclass(frozen=True)
class Linear(OfColumns):
    """Sigmoids of linear functions; "none found" is relative to the ridge direction.

    Parameters
    ----------
    columns : names or positions; None is every column. Categories become indicators.
    ridge : added to the diagonal of the standardised Gram matrix.

    >>> Linear()
    Linear(columns=None, ridge=0.001)
    """

    columns: ColumnChoice = None
    ridge: float = 1e-3

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Standardise the features and factor their Gram matrix once."""
        check_positive("ridge", self.ridge)
        encoder = learn_features(self.columns, X, sample_weight)
        rows = encoder(X)
        A = np.column_stack([rows, np.ones(len(rows))])
        w = sample_weight / sample_weight.sum()
        factor = Cholesky.of(product((A * w[:, None]).T, A) + self.ridge * np.eye(A.shape[1]))
        number = count(1)

        def learn(Z: FloatArray) -> Sequence[Family]:
            theta, gain = _sigmoids(A, factor.solve(product(A.T, Z)), Z, w)
            found = theta[:, [a for a in strongest(gain, Z) if theta[:, a].any()]]
            names = tuple(_name(beta, encoder.names, next(number)) for beta in found.T)
            return [_Sigmoids(names, found)] if names else []

        return WeakLearner(encoder, rows, sample_weight, [Everyone()], learn)


@FAMILIES.register
@dataclass(frozen=True, eq=False)
class _Sigmoids(PlainFields):
    """c_j(x) = sigmoid(<theta_j, x> + b_j); the last coefficient of each column is b_j."""

    names: tuple[str, ...]
    theta: FloatArray
    kind: ClassVar[str] = "sigmoids"

    def design(self, rows: FloatArray) -> Design:
        return Matrix(np.asarray(expit(by_row(rows, self.theta[:-1]) + self.theta[-1])))

    def take(self, members: IntArray) -> _Sigmoids:
        return _Sigmoids(tuple(self.names[j] for j in members), self.theta[:, members])

    def reads(self, facts: RowFacts) -> Sequence[Read]:
        """Read the sigmoids of all updates at once."""
        places = [facts.place("sigmoids", _all_sigmoids, theta.tobytes(), theta) for theta in self.theta.T]
        return [MemberRead(places[0][0], [position for _, position in places])]

    def onnx(self, columns: GraphColumns, encoder: FeatureEncoder, numbers: int) -> Sequence[GraphMatrix]:
        graph = columns.graph
        features = graph.side_by_side([feature.onnx(columns) for feature in encoder.features])
        score = graph.add("Add", graph.add("MatMul", features, self.theta[:-1]), self.theta[-1:])
        return [GraphMatrix(np.arange(len(self.names)), graph.sigmoid(score))]

    @classmethod
    def from_dict(cls, at: Plain, context: ReadFor) -> _Sigmoids:
        _, names, theta = at.fields("kind", "names", "theta")
        width, shown = len(context.rows_of(at, FeatureEncoder).names), names.texts()
        return cls(names.names(len(shown)), theta.floats((width + 1, len(shown)), -MOST, MOST))


def _all_sigmoids(columns: list[FloatArray]) -> Evaluate:
    """Return sigmoids as one function of the features of a single row."""
    theta = np.column_stack(columns)
    slope, intercept = np.ascontiguousarray(theta[:-1]), theta[-1]
    return lambda features: expit(np.einsum("k,kw->w", np.array(features), slope) + intercept)


def _sigmoids(A: FloatArray, betas: FloatArray, Z: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return for each residual the s * beta, over steepness and sign, whose sigmoid correlates most with it.

    The second value is |sum_i c(x_i) z_i| of that sigmoid. A direction that is constant gets zeros.
    """
    theta, gain = np.zeros_like(betas), np.zeros(Z.shape[1])
    for part in pieces(Z.shape[1], len(A)):
        score, z = product(A, betas[:, part]), Z[:, part]
        deviation = np.sqrt(product(w, np.square(score - product(w, score))))
        varies = deviation > 1e-12 * np.maximum(1.0, np.abs(score).max(axis=0, initial=0.0))
        score /= np.where(varies, deviation, 1.0)
        rising = [np.einsum("ij,ij->j", expit(s * score), z) for s in STEEPNESS]
        total = z.sum(axis=0)  # sigmoid(-t) = 1 - sigmoid(t)
        gains = np.abs([g for up in rising for g in (up, total - up)])
        scales = np.array([sign * s for s in STEEPNESS for sign in (1.0, -1.0)])
        best = [leading(column) for column in gains.T]
        theta[:, part] = np.where(varies, scales[best] / np.where(varies, deviation, 1.0), 0.0) * betas[:, part]
        gain[part] = np.where(varies, gains[best, np.arange(len(best))], 0.0)
    return theta, gain


def _name(beta: FloatArray, features: Sequence[str], number: int) -> str:
    """Name a direction by its three largest coefficients."""
    order = np.argsort(-np.abs(beta[:-1]), kind="stable")[:3]
    terms = " ".join(f"{beta[j]:+.3g}*[{features[j]}]" for j in order)
    return f"sigmoid #{number}: {terms}{' ...' if len(features) > 3 else ''}"


# --- any regressor ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regressor(OfColumns):
    """c(x) = clip(h(x) / max |h|, -1, 1) for a regressor h fitted to the residual; signed, so c may be negative.

    "None found" is relative to the regressor.

    Parameters
    ----------
    estimator : an unfitted scikit-learn regressor; it is cloned for every fit.
    columns : names or positions; None is every column. Categories become indicators, numbers are scaled.

    >>> from sklearn.tree import DecisionTreeRegressor
    >>> Regressor(DecisionTreeRegressor(max_depth=2))
    Regressor(estimator=DecisionTreeRegressor(max_depth=2), columns=None)
    """

    estimator: Any
    columns: ColumnChoice = None

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Encode the features once; every call fits clones."""
        from sklearn.base import is_regressor  # on first use: scikit-learn takes a second to import

        try:
            is_good = not isinstance(self.estimator, type) and hasattr(self.estimator, "fit")
            is_good = is_good and is_regressor(self.estimator)
        except AttributeError:  # no estimator of scikit-learn's kind
            is_good = False
        if not is_good:
            raise InvalidInput(
                f"Regressor needs an unfitted scikit-learn regressor such as DecisionTreeRegressor(max_depth=3), "
                f"but {self.estimator!r} was given."
            )
        encoder = learn_features(self.columns, X, sample_weight)
        rows = encoder(X)
        if rows.shape[1] == 0:
            raise InvalidInput("Regressor has nothing to learn from: X has no column with values. Give it one.")
        w, number = sample_weight / sample_weight.sum(), count(1)
        seen, name = w > 0, " ".join(repr(self.estimator).split())
        if self.columns is not None:  # so that the parts of a union have different names
            name += f" on {', '.join(encoder.names)}"

        def learn(Z: FloatArray) -> Sequence[Family]:
            size = product(np.square(Z[seen]).T, 1.0 / w[seen])
            found = [_fit(self.estimator, rows[seen], Z[seen, a], w[seen]) for a in strongest(size, Z)]
            return [_FittedRegressor(f"{name} #{next(number)}", h, scale) for h, scale in found if scale > 0]

        return WeakLearner(encoder, rows, sample_weight, [Everyone()], learn)


@dataclass(frozen=True, eq=False)
class _FittedRegressor:
    """A regressor with the scale that brings it into [-1, 1]."""

    name: str
    estimator: Any
    scale: float

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def design(self, rows: FloatArray) -> Design:
        if len(rows) == 0:  # scikit-learn refuses to predict for nobody
            return Matrix(np.zeros((0, 1)))
        h = np.asarray(self.estimator.predict(rows) / self.scale, dtype=np.float64)
        return Matrix(np.clip(h.reshape(-1, 1), -1.0, 1.0))

    def take(self, members: IntArray) -> _FittedRegressor:
        return self

    def onnx(self, columns: object, encoder: object, numbers: int) -> NoReturn:
        """Refuse: lowcal can't translate a foreign model."""
        raise InvalidInput(
            f"The predictor uses Regressor({type(self.estimator).__name__}(...)), a foreign model that lowcal "
            f"can't write as ONNX. Exported are {EXPORTED}: fit again with Trees(n_trees=25) or Linear()."
        )

    def to_dict(self) -> dict[str, Any]:
        """Refuse: a foreign estimator is not plain data."""
        raise InvalidInput(
            "A predictor over Regressor holds fitted foreign estimators, which can't be written as plain data. "
            "Use Trees or Linear for a predictor that can be saved, or pickle the whole object at your own risk."
        )


def _fit(estimator: Any, rows: FloatArray, z: FloatArray, w: FloatArray) -> tuple[Any, float]:
    """Fit a clone to the unweighted residual z / w and return it with the largest absolute prediction."""
    from sklearn.base import clone
    from sklearn.utils.validation import has_fit_parameter

    h = clone(estimator)
    weights = {"sample_weight": w / w.mean()} if has_fit_parameter(h, "sample_weight") else {}
    h.fit(rows, z / w, **weights)
    return h, float(np.abs(h.predict(rows)).max())
