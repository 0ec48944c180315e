"""Regressor: any scikit-learn regressor as the weak learner; its rescaled prediction is a signed subpopulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.kernels.products import product
from lowcal.kernels.reference import Design, Matrix
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.subpopulations.base import EXPORTED, ColumnChoice, Everyone, Family, OfColumns, WeakLearner, strongest
from lowcal.subpopulations.features import learn_features


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
        if not _is_regressor(self.estimator):
            raise InvalidInput(
                f"Regressor needs an unfitted scikit-learn regressor such as DecisionTreeRegressor(max_depth=3), "
                f"but {self.estimator!r} was given."
            )
        encoder = learn_features(self.columns, X, sample_weight)
        rows = encoder(X)
        if rows.shape[1] == 0:
            raise InvalidInput("Regressor has nothing to learn from: X has no column with values. Give it one.")
        name = self._name(encoder.names)
        w = sample_weight / sample_weight.sum()
        seen = w > 0
        number = count(1)

        def learn(Z: FloatArray) -> Sequence[Family]:
            size = product(np.square(Z[seen]).T, 1.0 / w[seen])
            found = [_fit(self.estimator, rows, Z[:, a], w) for a in strongest(size, Z)]
            return [FittedRegressors((f"{name} #{next(number)}",), (h,), (s,)) for h, s in found if s > 0]

        return WeakLearner(encoder, rows, sample_weight, [Everyone()], learn)

    def _name(self, features: Sequence[str]) -> str:
        """Say which regressor this is, so that those of a union are told apart."""
        model = " ".join(repr(self.estimator).split())
        return model if self.columns is None else f"{model} on {', '.join(features)}"


@dataclass(frozen=True, eq=False)
class FittedRegressors:
    """FittedRegressors regressors with the scale that brings each into [-1, 1]."""

    names: tuple[str, ...]
    estimators: tuple[Any, ...]
    scales: tuple[float, ...]

    def design(self, rows: FloatArray) -> Design:
        """Return the signed memberships."""
        if len(rows) == 0:  # scikit-learn refuses to predict for nobody
            return Matrix(np.zeros((0, len(self.names))))
        columns = [h.predict(rows) / s for h, s in zip(self.estimators, self.scales, strict=True)]
        return Matrix(np.clip(np.column_stack(columns).astype(np.float64), -1.0, 1.0))

    def take(self, members: IntArray) -> FittedRegressors:
        """Return some of the members."""
        estimators, scales = [self.estimators[j] for j in members], [self.scales[j] for j in members]
        return FittedRegressors(tuple(self.names[j] for j in members), tuple(estimators), tuple(scales))

    def onnx(self, columns: object, encoder: object, numbers: int) -> NoReturn:
        """Refuse: lowcal can't translate a foreign model."""
        raise InvalidInput(
            f"The predictor uses Regressor({type(self.estimators[0]).__name__}(...)), a foreign model that lowcal "
            f"can't write as ONNX. Exported are {EXPORTED}: fit again with Trees(n_trees=25) or Linear()."
        )

    def to_dict(self) -> dict[str, Any]:
        """Refuse: a foreign estimator is not plain data."""
        raise InvalidInput(
            "A predictor over Regressor holds fitted foreign estimators, which can't be written as plain data. "
            "Use Trees or Linear for a predictor that can be saved, or pickle the whole object at your own risk."
        )


def _is_regressor(estimator: Any) -> bool:
    from sklearn.base import is_regressor  # on first use: scikit-learn takes a second to import

    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        return False
    try:
        return bool(is_regressor(estimator))
    except AttributeError:  # no estimator of scikit-learn's kind
        return False


def _fit(estimator: Any, rows: FloatArray, z: FloatArray, w: FloatArray) -> tuple[Any, float]:
    """Fit a clone to the unweighted residual z / w and return it with the largest absolute prediction."""
    from sklearn.base import clone
    from sklearn.utils.validation import has_fit_parameter

    h = clone(estimator)
    seen = w > 0
    weights = {"sample_weight": w[seen] / w[seen].mean()} if has_fit_parameter(h, "sample_weight") else {}
    h.fit(rows[seen], z[seen] / w[seen], **weights)
    return h, float(np.abs(h.predict(rows[seen])).max())
