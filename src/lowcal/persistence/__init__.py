"""Saved models: `save` writes a model as JSON, `load` reads it back to the last bit and executes nothing.

A file holds what predicting needs and what the fit said: names of columns and categories, cut points, trees,
coefficients, and for smooth weights some of the fitted predictions; no rows. `data.checked_json` is the text and
its checksum, and how values are written and read, `rows.documents` the predictor, `saved_estimators` the estimators.
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
from typing import Any, TypeVar

import numpy as np

from lowcal.data import checked_json
from lowcal.data.checked_json import Plain, kind_of, pack_number
from lowcal.data.errors import DamagedFile, InvalidInput, sentence
from lowcal.data.files.atomic import atomic_write, check_path
from lowcal.data.version import __version__
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
        data = checked_json.write_document(write_model(model), plain, __version__)
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
    if "lowcal.estimators" in sys.modules:  # otherwise nobody can have one, and scikit-learn need not be imported
        from lowcal.persistence import saved_estimators as estimators

        if (written := estimators.write(model)) is not None:
            return written
    raise InvalidInput(
        f"A model of the type {type(model).__name__} can't be saved. Give the Fit of multicalibrate, its predictor, "
        "or a fitted MulticalibratedClassifier or MulticalibratedRegressor."
    )


def read_model(at: Plain, base: object = None) -> Any:
    """Return the model of plain data; `base` is the base model that an estimator was saved without."""
    kind = at.kind(("predictor", *FITS, "classifier", "regressor"))
    if kind in ("classifier", "regressor"):
        from lowcal.persistence import saved_estimators as estimators

        return estimators.read(at, base)
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
