"""Other packages behind one pair of methods, fit and predict; experiments and benchmarks compare lowcal with these.

Nothing here imports lowcal: a peer with other requirements runs in an interpreter of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

#: HKRR's settings: the best of a few by held-out Brier score on made-up data of 10,000 rows and 20 groups.
HKRR = {"lambda": 0.1, "alpha": 0.3, "max_iter": 5, "randomized": True, "use_oracle": False}


class Isotonic:
    """scikit-learn's isotonic regression on the start predictions, with several classes one against the rest."""

    def __init__(self, y: Any, p: Any, p_test: Any) -> None:
        self.y, self.p, self.p_test = y, _columns(p), _columns(p_test)

    def fit(self) -> None:
        """Fit one curve for each class."""
        from sklearn.isotonic import IsotonicRegression

        labels = [self.y == 1] if self.p.shape[1] == 1 else [self.y == a for a in range(self.p.shape[1])]
        self.curves = [
            IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, hit)
            for p, hit in zip(self.p.T, labels, strict=True)
        ]

    def predict(self) -> Any:
        """Apply the curves; several classes are made to sum to one."""
        found = np.column_stack([curve.predict(p) for curve, p in zip(self.curves, self.p_test.T, strict=True)])
        if found.shape[1] == 1:
            return found[:, 0]
        total = found.sum(axis=1, keepdims=True)
        return np.asarray(np.where(total > 0, found / np.where(total > 0, total, 1.0), 1.0 / found.shape[1]))


def _columns(p: Any) -> Any:
    return p[:, None] if p.ndim == 1 else p


class MCGrad:
    """MCGrad on the columns of two pandas frames; `categorical` names those that hold categories."""

    def __init__(
        self, train: Any, test: Any, y: Any, p: Any, p_test: Any, categorical: Sequence[str], **options: Any
    ) -> None:
        self.names = {
            "prediction_column_name": "_p",
            "categorical_feature_column_names": list(categorical),
            "numerical_feature_column_names": [name for name in train if name not in categorical],
        }
        self.train, self.test, self.options = train.assign(_p=p, _y=y), test.assign(_p=p_test), options

    def fit(self) -> None:
        """Fit; by default with early stopping on folds."""
        self.model = import_module("mcgrad.methods").MCGrad(**self.options)
        self.model.fit(df_train=self.train, label_column_name="_y", **self.names)

    def predict(self) -> Any:
        """Predict."""
        return np.asarray(self.model.predict(df=self.test, **self.names), dtype=np.float64)


@dataclass
class Listed:
    """HKRR or HJZ of the package multicalibration: groups are lists of rows.

    The lists are made beforehand, as whichever container is fastest for the method: sets at prediction, where the
    package asks for every row whether it is in a group.
    """

    y: Any
    p: Any
    p_test: Any
    groups: Sequence[Any]
    groups_test: Sequence[Any]
    algorithm: str = "HKRR"
    settings: Any = None

    def __post_init__(self) -> None:
        if self.algorithm == "HKRR":
            self.groups = [np.asarray(members).tolist() for members in self.groups]
        self.groups_test = [set(np.asarray(members).tolist()) for members in self.groups_test]

    def fit(self) -> None:
        """Fit."""
        np.random.seed(0)  # noqa: NPY002 the package draws from the global generator
        self.model = import_module("multicalibration").MulticalibrationPredictor(self.algorithm)
        self.model.fit(self.p.copy(), self.y.astype(float), self.groups, self.settings or HKRR)

    def predict(self) -> Any:
        """Predict."""
        found = self.model.predict(self.p_test.copy(), self.groups_test)
        return np.clip(np.asarray(found, dtype=np.float64), 0, 1)
