"""Saved models: `save` writes a model as JSON, `load` reads it back to the last bit and executes nothing.

A file holds what predicting needs and what the fit said: names of columns and categories, cut points, trees,
coefficients, and for smooth weights some of the fitted predictions; no rows. `data.checked_json` is the text and
its checksum, and how values are written and read, `rows.documents` the predictor.
Notions and hypothesis classes are written as the name of their class and their fields, and read by a
registry. A user's own encoder, family or weight is written and read like lowcal's if its class is registered; nothing
is imported by a name in a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from sys import float_info
from typing import Any, TypeVar

import numpy as np

from lowcal.data import checked_json
from lowcal.data.checked_json import MOST_LISTED, Plain, kind_of, pack_labels, pack_number
from lowcal.data.errors import DamagedFile, InvalidInput, sentence
from lowcal.data.files import atomic_write, check_path
from lowcal.notions import Full, LowDegree, Multiaccuracy, Smooth
from lowcal.rows.documents import read_predictor, write_predictor
from lowcal.rows.updates import Predictor
from lowcal.sampling import FreshFit, PopulationStatement
from lowcal.solve.fitting import Candidate, Candidates, Fit, Record
from lowcal.solve.private import PrivacyGuarantee, PrivateFit
from lowcal.solve.stopping import Status
from lowcal.subpopulations import CLASSES, Regressor

__all__ = ["Saved", "load", "read", "save"]

T = TypeVar("T")

#: Notions, values with plain fields as hypothesis classes are.
NOTIONS: dict[str, type] = {cls.__name__: cls for cls in (Multiaccuracy, LowDegree, Smooth, Full)}
#: How a file names a dictionary of cut points.
CUTS = "cuts"
#: Kinds of fits, and what each has beside the fields of all.
FITS: dict[str, tuple[type[Fit], dict[str, type]]] = {
    "fit": (Fit, {}),
    "private fit": (PrivateFit, {"guarantee": PrivacyGuarantee}),
    "fresh fit": (FreshFit, {"statement": PopulationStatement}),
}
#: Fields of all fits that are single numbers.
FIGURES = ("violation", "upper", "bound", "n_oracle_calls", "is_exact", "alpha", "noise_floor")
#: Fields of all fits that files of earlier versions do not have.
LATER = ("per_person", "start", "candidates")


@dataclass(frozen=True, eq=False)
class Saved:
    """What a file holds: the model, the metadata of whoever saved it, and the version of lowcal that wrote it."""

    model: Any
    metadata: dict[str, Any] = field(default_factory=dict)
    lowcal_version: str = ""


def save(model: object, path: str | os.PathLike[str], *, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a model to a file as JSON with a version and a checksum; the same model gives the same bytes.

    A `Predictor`, a `Fit`, or a fitted `MulticalibratedClassifier` or `MulticalibratedRegressor` can be saved. An
    estimator's base model is not lowcal's and is not saved: give it to `load` again. Predictors over `Regressor(...)`
    or over a user's own subpopulations or weights can't be saved, unless their classes are registered. The file is
    replaced at once or not at all.

    Parameters
    ----------
    model : what to save.
    path : the file; an old one is replaced.
    metadata : what else to keep, as plain JSON values with text as keys; `lowcal.persistence.read(path).metadata`
        gives it back.

    >>> import tempfile
    >>> from lowcal import multicalibrate
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(2000, random_state=0)
    >>> predictor = multicalibrate(data.y, data.p, data.X).predictor
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(predictor, f"{folder}/model.json")
    ...     loaded = load(f"{folder}/model.json")
    >>> bool((loaded(data.p, data.X) == predictor(data.p, data.X)).all())
    True
    """
    check_path(path)
    data = to_bytes(model, metadata)
    with atomic_write(path) as file:
        file.write(data)


def load(path: str | os.PathLike[str], *, estimator: object = None) -> Any:
    """Return the model of a file that `save` wrote; predictions are the same to the last bit.

    Nothing from the file is executed or imported. A damaged, truncated or changed file, or one of a newer version, is
    refused with an `InvalidInput` that says what is wrong.

    Parameters
    ----------
    path : the file.
    estimator : the fitted base model of a saved `MulticalibratedClassifier` or `MulticalibratedRegressor` that has one.
    """
    return read(path, estimator=estimator).model


def read(path: str | os.PathLike[str], *, estimator: object = None) -> Saved:
    """Return the model of a file, its metadata, and the version of lowcal that wrote it."""
    place = Path(check_path(path))
    try:
        with open(place, "rb") as file:
            data = file.read(checked_json.MOST_BYTES + 1)
    except FileNotFoundError:
        raise InvalidInput(f"There is no file {str(place)!r}. Check the path.") from None
    except IsADirectoryError:
        raise InvalidInput(f"{place} is a folder. Give the file that lowcal.save wrote.") from None
    except OSError as error:
        raise InvalidInput(f"{place} can't be read: {error.strerror}.") from error
    if len(data) > checked_json.MOST_BYTES:
        raise InvalidInput(f"{place} has more than {checked_json.MOST_BYTES >> 20} MiB, too much for a saved model.")
    try:
        return from_bytes(data, estimator)
    except InvalidInput as error:
        kind = DamagedFile if isinstance(error, DamagedFile) else InvalidInput
        raise kind(sentence(f"{path} can't be loaded: {error}")) from error


def to_bytes(model: object, metadata: Mapping[str, Any] | None = None) -> bytes:
    """Return the bytes of a file; they have been read again, so they can be loaded."""
    if not isinstance(metadata, Mapping | None):
        raise InvalidInput(f"metadata must be a dict of plain values, but {metadata!r} was given.")
    try:
        plain = checked_json.check_plain({} if metadata is None else metadata, "metadata")
        data = checked_json.write_document(write_model(model), plain)
        from_bytes(data)
    except RecursionError:
        raise InvalidInput("The model or its metadata is nested too deeply to be saved.") from None
    except UnicodeEncodeError as error:
        text = error.object[max(error.start - 20, 0) : error.end + 20]
        raise InvalidInput(f"A name holds text that is not valid Unicode: {text!r}. Clean it first.") from error
    except DamagedFile as error:
        raise InvalidInput(sentence(f"The model can't be saved, as it could not be loaded again: {error}")) from error
    return data


def from_bytes(data: bytes, estimator: object = None) -> Saved:
    """Return what a file's bytes hold."""
    parts = checked_json.read_document(data)
    written_by = Plain(parts["lowcal"], "lowcal").text()
    try:
        model = read_model(Plain(parts["model"], "model"), estimator)
    except RecursionError:
        raise DamagedFile("it is nested too deeply") from None
    return Saved(model, parts["metadata"], written_by)


# --- models ---------------------------------------------------------------------------------------------------


def write_model(model: object) -> dict[str, Any]:
    """Return a model as plain data."""
    if type(model) is Predictor:
        return write_predictor(model)
    if any(type(model) is cls for cls, _ in FITS.values()):
        return write_fit(model)
    if "lowcal.estimators" in sys.modules:  # otherwise nobody can have one
        for kind, cls in _estimators().items():
            if type(model) is cls:
                return write_estimator(model, kind)
    raise InvalidInput(
        f"A model of the type {type(model).__name__} can't be saved. Give the Fit of multicalibrate, its predictor, "
        "or a fitted MulticalibratedClassifier or MulticalibratedRegressor."
    )


def read_model(at: Plain, base: object = None) -> Any:
    """Return the model of plain data; `base` is the base model that an estimator was saved without."""
    kind = at.kind(("predictor", *FITS, "classifier", "regressor"))
    if kind in ("classifier", "regressor"):
        return read_estimator(at, base)
    if base is not None:
        raise InvalidInput(f"the file holds a {kind}, which has no base model. Leave out estimator=")
    return read_predictor(at) if kind == "predictor" else read_fit(at)


def write_fit(fit: Any) -> dict[str, Any]:
    """Return a fit as plain data."""
    kind, more = next((kind, more) for kind, (cls, more) in FITS.items() if type(fit) is cls)
    return {
        "kind": kind,
        "status": str(fit.status),
        "notion": write_value(fit.notion, "The notion of the fit"),
        **_write_figures(fit, (*FIGURES, "per_person")),
        "start": None if fit.start is None else _write_figures(fit.start),
        "candidates": [_write_figures(one) for one in fit.candidates],
        **{name: _write_figures(getattr(fit, name)) for name in more},
        "history": [_write_figures(record) for record in fit.history],
        "predictor": write_predictor(fit.predictor),
    }


def _write_figures(record: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return fields, by default all, that are single numbers and texts as plain data."""
    values = {name: getattr(record, name) for name in names or (field.name for field in fields(record))}
    own = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    return {name: pack_number(value) if isinstance(value, float) else value for name, value in own.items()}


def read_fit(at: Plain) -> Fit:
    """Return the fit of plain data; candidates, of which older files have none, hold one that was chosen."""
    cls, more = FITS[at.kind(FITS)]
    names = ("kind", "status", "notion", "history", "predictor", *FIGURES, *more)
    given = dict(zip((*names, *LATER), at.fields(*names, optional=LATER), strict=True))
    types = {field.name: str(field.type) for field in fields(Fit)}
    tried = [] if given["candidates"].is_null else given["candidates"].items()
    candidates = Candidates(_read_record(one, Candidate) for one in tried)
    if candidates and sum(one.is_chosen for one in candidates) != 1:
        given["candidates"].refuse("a list of candidates, one of them chosen")
    return cls(
        predictor=read_predictor(given["predictor"]),
        status=Status(given["status"].choice([one.value for one in Status])),
        notion=read_value(given["notion"], NOTIONS),
        history=tuple(_read_record(record, Record) for record in given["history"].items()),
        **{name: FIGURE[types[name]](given[name]) for name in (*FIGURES, "per_person")},
        start=None if given["start"].is_null else _read_record(given["start"], Record),
        candidates=candidates,
        **{name: _read_record(given[name], kind) for name, kind in more.items()},
    )


def _read_record(at: Plain, cls: type[T]) -> T:
    own = fields(cls)  # type: ignore[arg-type]
    given = at.fields(*(field.name for field in own))
    return cls(**{field.name: FIGURE[str(field.type)](one) for field, one in zip(own, given, strict=True)})


#: How a field is read, by its annotation.
FIGURE: dict[str, Callable[[Plain], Any]] = {
    "float": lambda at: at.number(may_be_nan=True),
    "float | None": lambda at: None if at.is_null else at.number(may_be_nan=True),
    "int": lambda at: at.whole(0),
    "bool": Plain.flag,
    "str": Plain.text,
}


def write_value(value: Any, what: str) -> Any:
    """Return a notion, a hypothesis class, or a plain setting as plain data."""
    if type(value) in (*NOTIONS.values(), *CLASSES.known.values()):
        own = {field.name: write_value(getattr(value, field.name), what) for field in fields(value)}
        return {"kind": kind_of(type(value)), **own}
    if isinstance(value, Mapping):  # cut points by column
        return {"kind": CUTS, "columns": write_value([*value], what), "cuts": write_value([*value.values()], what)}
    if isinstance(value, list | tuple):
        return [write_value(one, what) for one in value]
    try:
        return checked_json.check_plain(value.tolist() if isinstance(value, np.ndarray) else value, what)
    except InvalidInput as error:
        remedy = "Save the predictor alone: lowcal.save(fit.predictor, path), or model.predictor_ of an estimator."
        if isinstance(value, Regressor):  # its predictor can't be saved either
            remedy = "Use pickle or joblib, and only with files you trust."
        raise InvalidInput(f"{what} is {value!r}, which is not lowcal's own and can't be saved. {remedy}") from error


def read_value(at: Plain, allowed: Mapping[str, Any]) -> Any:
    """Return a value of one of the allowed classes, its fields plain or hypothesis classes again."""
    if allowed is CLASSES.known and at.value.get("kind") == CUTS:
        _, columns, cuts = at.fields("kind", "columns", "cuts")
        names, each = _read_setting(columns), _read_setting(cuts)
        if type(names) is not list or type(each) is not list or len(names) != len(each):
            at.refuse("columns, and as many lists of cut points")
        if any(type(name) not in (str, int) for name in names):
            columns.refuse("a list of names or positions")
        return dict(zip(names, each, strict=True))
    kind = at.kind(allowed)
    names = [field.name for field in fields(allowed[kind])]
    _, *given = at.fields("kind", *names)
    try:
        return allowed[kind](**{name: _read_setting(one) for name, one in zip(names, given, strict=True)})
    except (TypeError, OverflowError):
        at.refuse(f"a {kind}")
    except InvalidInput as error:
        raise DamagedFile(f"{at.place} is not a valid {kind}: {error}") from error


def _read_setting(at: Plain) -> Any:
    if type(at.value) is dict:
        return read_value(at, CLASSES.known)
    return [_read_setting(one) for one in at.items()] if type(at.value) is list else at.value


# --- estimators -------------------------------------------------------------------------------------------------
#: Types of `classes_` that are kept; text has the width that it needs.
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"),
    *("str", "object"),
)


def _estimators() -> dict[str, Any]:
    """Return the estimators by the names of their kinds; they import scikit-learn, so only what needs them asks."""
    from lowcal.estimators import MulticalibratedClassifier, MulticalibratedRegressor

    return {"classifier": MulticalibratedClassifier, "regressor": MulticalibratedRegressor}


def write_estimator(model: Any, kind: str) -> dict[str, Any]:
    """Return a fitted estimator as plain data: its settings, classes and fit; a base model is named, not written."""
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


def read_estimator(at: Plain, base: object) -> Any:
    """Return the fitted estimator of plain data, with the base model that is given."""
    kind, name, settings, n_features, names, target, fit = at.fields(
        "kind", "base", "settings", "n_features", "feature_names", "target", "fit"
    )
    is_classifier = kind.value == "classifier"
    cls, fitted = _estimators()[kind.value], _base(name, base, is_classifier)
    # the models of folds are no single model to fit again
    single = _missing(f"{len(fitted)} models of folds") if isinstance(fitted, list) else fitted
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
    model._keep(made)
    # the names under which the predictor knows the columns, where these are known
    model._columns = columns if set(columns).issuperset(made.predictor.columns) else None
    n_classes = made.predictor.layout.n_classes
    if is_classifier:
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
        return _missing(name.text())
    wanted = ("predict_proba", "decision_function") if is_classifier else ("predict",)
    if isinstance(base, type) or not any(hasattr(base, method) for method in wanted):
        raise InvalidInput(f"estimator must be the fitted base model ({name.text()}), but {base!r} was given")
    from sklearn.frozen import FrozenEstimator

    return base if isinstance(base, FrozenEstimator) else FrozenEstimator(base)


def _missing(name: str) -> Any:
    """Return what stands for a base model that was not saved."""
    from lowcal.estimators import MissingBase

    return MissingBase(name)


def _name(base: Any) -> Any:
    """Return the type of a base model, or a list of them, by name."""
    from sklearn.frozen import FrozenEstimator

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
