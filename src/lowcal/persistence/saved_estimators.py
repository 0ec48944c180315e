"""Estimators as plain data: their settings, classes and fit; a base model is named, not written.

This file imports scikit-learn; it is itself imported only when an estimator is saved or loaded.
"""

from __future__ import annotations

from sys import float_info
from typing import Any, NoReturn

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.frozen import FrozenEstimator
from sklearn.utils import Tags

from lowcal.data.checked_json import MOST_LISTED, Plain, pack_labels, pack_number
from lowcal.data.errors import InvalidInput
from lowcal.estimators import MulticalibratedClassifier, MulticalibratedRegressor
from lowcal.persistence import NOTIONS, read_fit, read_value, write_fit, write_value
from lowcal.subpopulations import CLASSES

KINDS: dict[str, type] = {"classifier": MulticalibratedClassifier, "regressor": MulticalibratedRegressor}
#: Types of `classes_` that are kept; text has the width that it needs.
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"),
    *("str", "object"),
)


class MissingBase(BaseEstimator):  # type: ignore[misc]
    """Stands for a base model that was not saved: predicting raises an error that says what to do."""

    def __init__(self, name: str = "a model") -> None:
        self.name = name

    def predict(self, X: Any, y: Any = None) -> NoReturn:
        """Refuse."""
        raise InvalidInput(
            f"This model was saved without its base model ({self.name}), which is not lowcal's. Give it when loading, "
            "lowcal.load(path, estimator=base), or recalibrate its probabilities yourself: model.predictor_(p, X)."
        )

    fit = predict_proba = predict

    def __sklearn_tags__(self) -> Tags:
        """Let every X through: what is wrong is not X."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        return tags


def write(model: object) -> dict[str, Any] | None:
    """Return a fitted estimator as plain data; None for anything else."""
    kind = next((kind for kind, cls in KINDS.items() if type(model) is cls), None)
    if kind is None or not isinstance(model, MulticalibratedClassifier | MulticalibratedRegressor):
        return None
    if not hasattr(model, "fit_"):
        raise InvalidInput(f"The {type(model).__name__} is not fitted yet. Call fit before saving it.")
    settings = {name: value for name, value in model.get_params(deep=False).items() if name != "estimator"}
    for name in ("random_state", "cv"):
        if not isinstance(settings[name], int | np.integer | None):
            settings[name] = None  # the state of a generator is no setting, nor are the folds of a splitter
    names = getattr(model, "feature_names_in_", None)
    return {
        "kind": kind,
        "base": _name(model.estimator_),
        "settings": {name: write_value(value, f"The setting {name}") for name, value in settings.items()},
        "n_features": int(model.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "target": _write_classes(model.classes_) if kind == "classifier" else [pack_number(b) for b in model.bounds_],
        "fit": write_fit(model.fit_),
    }


def read(at: Plain, base: object) -> Any:
    """Return the fitted estimator of plain data, with the base model that is given."""
    kind, name, settings, n_features, names, target, fit = at.fields(
        "kind", "base", "settings", "n_features", "feature_names", "target", "fit"
    )
    cls = KINDS[kind.choice(KINDS)]
    fitted = _base(name, base, cls is MulticalibratedClassifier)
    # the models of folds are no single model to fit again
    single = MissingBase(f"{len(fitted)} models of folds") if isinstance(fitted, list) else fitted
    model = cls(estimator=single, **_read_settings(settings, cls))
    model.estimator_ = fitted
    model.n_features_in_ = n_features.whole(0, MOST_LISTED)
    columns = tuple(f"x{j}" for j in range(model.n_features_in_))
    if not names.is_null:
        columns = names.texts()
        model.feature_names_in_ = np.array(columns, dtype=object)
        if len(columns) != model.n_features_in_:
            names.refuse(f"a list of {model.n_features_in_} names")
    made = read_fit(fit)
    model.predictor_, model.status_, model.history_ = made.predictor, made.status, made.history
    model.n_updates_, model.n_oracle_calls_, model.fit_ = made.n_updates, made.n_oracle_calls, made
    # the names under which the predictor knows the columns, where these are known
    model._columns = columns if set(columns).issuperset(made.predictor.columns) else None
    n_classes = made.predictor.layout.n_classes
    if cls is MulticalibratedClassifier:
        model.classes_ = _read_classes(target, n_classes)
        return model
    model.bounds_ = low, high = tuple(target.floats((2,), -float_info.max, float_info.max).tolist())
    if not low < high:
        target.refuse("two numbers, the lower first")
    if n_classes != 2:
        fit.refuse("the fit of a bounded outcome")
    return model


def _base(name: Plain, base: Any, is_classifier: bool) -> Any:
    """Return the base model to use: none, the one given, or a `MissingBase`; of folds, a list."""
    if name.is_null:
        if base is not None:
            raise InvalidInput("the model was learned from scratch and has no base model. Leave out estimator=")
        return None
    if type(name.value) is list:
        names = name.some()
        given = [None] * len(names) if base is None else base
        if not isinstance(given, list | tuple) or len(given) != len(names):
            raise InvalidInput(
                f"the model was fitted with cv: estimator must be the list of its {len(names)} base models, "
                f"model.estimator_, but {base!r} was given"
            )
        return [_base(one, own, is_classifier) for one, own in zip(names, given, strict=True)]
    if base is None:
        return MissingBase(name.text())
    wanted = ("predict_proba", "decision_function") if is_classifier else ("predict",)
    if isinstance(base, type) or not any(hasattr(base, method) for method in wanted):
        raise InvalidInput(f"estimator must be the fitted base model ({name.text()}), but {base!r} was given")
    return base if isinstance(base, FrozenEstimator) else FrozenEstimator(base)


def _name(base: Any) -> Any:
    """Return the type of a base model, or a list of them, by name."""
    if isinstance(base, list):
        return [_name(one) for one in base]
    model = base.estimator if isinstance(base, FrozenEstimator) else base
    return None if model is None else type(model).__name__


def _read_settings(at: Plain, cls: type) -> dict[str, Any]:
    names = [name for name in cls._get_param_names() if name not in ("estimator", "cv")]  # type: ignore[attr-defined]
    # files of 0.1 have no cv
    given = dict(zip((*names, "cv"), at.fields(*names, optional=("cv",)), strict=True))
    if not given["random_state"].is_null:
        given["random_state"].whole(0, 2**32 - 1)
    allowed = {"notion": NOTIONS, "subpopulations": CLASSES.known}
    return {
        name: read_value(one, allowed.get(name, {})) if type(one.value) is dict else one.value
        for name, one in given.items()
    }


def _write_classes(classes: np.ndarray[Any, Any]) -> dict[str, Any]:
    kind = "str" if classes.dtype.kind == "U" else classes.dtype.name
    if kind not in DTYPES:
        raise InvalidInput(f"Classes of the type {classes.dtype} can't be saved. Convert y to text or numbers first.")
    return {"dtype": kind, "classes": pack_labels(classes.tolist(), "Classes")}


def _read_classes(at: Plain, count: int) -> np.ndarray[Any, Any]:
    kind, classes = at.fields("dtype", "classes")
    labels, dtype = classes.labels(), kind.choice(DTYPES)
    try:
        array = np.array(labels, dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        classes.refuse(f"a list of classes of the type {dtype}")
    if len(labels) != count or array.tolist() != list(labels):
        classes.refuse(f"a list of {count} classes of the type {dtype}")
    return array
