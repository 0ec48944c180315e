"""Models as plain data: a predictor, a fit, or an estimator, each with what belongs to it.

Notions and hypothesis classes are values with plain fields: they are written as the name of their class and these, and
read by a registry. A base model of an estimator is foreign: it is not written, only named, and must be given to `load`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from lowcal.data.checked_json import Plain, kind_of, pack_number
from lowcal.data.documents import check_plain
from lowcal.data.errors import DamagedFile, InvalidInput
from lowcal.notions import Full, LowDegree, Multiaccuracy, Smooth
from lowcal.rows.documents import read_predictor, write_predictor
from lowcal.rows.updates import Predictor
from lowcal.solve.private import PrivacyGuarantee, PrivateFit
from lowcal.solve.runs import Candidate, Candidates, Fit, Record
from lowcal.solve.sampling import FreshFit, PopulationStatement
from lowcal.solve.stopping import Status
from lowcal.subpopulations import CLASSES, Regressor

T = TypeVar("T")

#: Notions, values with plain fields as hypothesis classes are.
NOTIONS: dict[str, type] = {cls.__name__: cls for cls in (Multiaccuracy, LowDegree, Smooth, Full)}
#: Kinds of fits, and what each has beside the fields of all.
FITS: dict[str, tuple[type[Fit], str | None, type | None]] = {
    "fit": (Fit, None, None),
    "private fit": (PrivateFit, "guarantee", PrivacyGuarantee),
    "fresh fit": (FreshFit, "statement", PopulationStatement),
}
#: Fields of all fits that are single numbers.
FIGURES = ("violation", "upper", "bound", "n_oracle_calls", "is_exact", "alpha", "noise_floor")
#: Fields of all fits that files of earlier versions do not have.
LATER = ("per_person", "start", "candidates")


def write_model(model: object) -> dict[str, Any]:
    """Return a model as plain data."""
    if type(model) is Predictor:
        return write_predictor(model)
    if any(type(model) is cls for cls, _, _ in FITS.values()):
        return write_fit(model)
    if "lowcal.estimators" in sys.modules:  # otherwise nobody can have one, and scikit-learn need not be imported
        from lowcal.deploy import saved_estimators as estimators

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
        from lowcal.deploy import saved_estimators as estimators

        return estimators.read(at, base)
    if base is not None:
        raise InvalidInput(f"the file holds a {kind}, which has no base model. Leave out estimator=")
    return read_predictor(at) if kind == "predictor" else read_fit(at)


# Fits.


def write_fit(fit: Any) -> dict[str, Any]:
    """Return a fit as plain data."""
    kind, extra = next((kind, extra) for kind, (cls, extra, _) in FITS.items() if type(fit) is cls)
    more = {} if extra is None else {extra: write_record(getattr(fit, extra))}
    return {
        "kind": kind,
        "status": str(fit.status),
        "notion": write_value(fit.notion, "The notion of the fit"),
        **{name: write_figure(getattr(fit, name)) for name in FIGURES},
        "per_person": write_figure(fit.per_person),
        "start": None if fit.start is None else write_record(fit.start),
        "candidates": [write_record(one) for one in fit.candidates],
        **more,
        "history": [write_record(record) for record in fit.history],
        "predictor": write_predictor(fit.predictor),
    }


def read_fit(at: Plain) -> Fit:
    """Return the fit of plain data."""
    cls, extra, guarantee = FITS[at.kind(FITS)]
    more = () if extra is None else (extra,)
    _, status, notion, history, predictor, *rest = at.fields(
        "kind", "status", "notion", "history", "predictor", *FIGURES, *more, optional=LATER
    )
    given = dict(zip((*FIGURES, *more, *LATER), rest, strict=True))
    types = {field.name: str(field.type) for field in fields(Fit)}
    return cls(
        predictor=read_predictor(predictor),
        status=Status(status.choice([one.value for one in Status])),
        notion=read_value(notion, NOTIONS),
        history=tuple(read_record(record, Record) for record in history.items()),
        **{name: FIGURE[types[name]](given[name]) for name in (*FIGURES, "per_person")},
        start=None if given["start"].is_null else read_record(given["start"], Record),
        candidates=_read_candidates(given["candidates"]),
        **{name: read_record(given[name], guarantee) for name in more if guarantee is not None},
    )


def _read_candidates(at: Plain) -> Candidates:
    """Return the candidates of a fit, of which older files and other fits have none; one of them was chosen."""
    found = Candidates(() if at.is_null else (read_record(one, Candidate) for one in at.items()))
    if found and sum(one.is_chosen for one in found) != 1:
        at.refuse("a list of candidates, one of them chosen")
    return found


# Records: values whose fields are single numbers and texts.


def write_figure(value: Any) -> Any:
    """Return a number, text or nothing as it is written."""
    value = value.item() if isinstance(value, np.generic) else value
    return pack_number(value) if isinstance(value, float) else value


def write_record(record: Any) -> dict[str, Any]:
    """Return a value whose fields are single numbers and texts as plain data.

    >>> write_record(Record(1, float("nan"), 0.25, 0.5))["violation"]
    'nan'
    """
    return {field.name: write_figure(getattr(record, field.name)) for field in fields(record)}


def read_record(at: Plain, cls: type[T]) -> T:
    """Return a value whose fields are single numbers and texts."""
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


# Values: notions and hypothesis classes.


def write_value(value: Any, what: str) -> Any:
    """Return a notion, a hypothesis class, or a plain setting as plain data."""
    if type(value) in (*NOTIONS.values(), *CLASSES.known.values()):
        own = {field.name: write_value(getattr(value, field.name), what) for field in fields(value)}
        return {"kind": kind_of(type(value)), **own}
    if isinstance(value, list | tuple):
        return [write_value(one, what) for one in value]
    try:
        return check_plain(value.tolist() if isinstance(value, np.ndarray) else value, what)
    except InvalidInput as error:
        raise InvalidInput(
            f"{what} is {value!r}, which is not lowcal's own and can't be saved. {_remedy(value)}"
        ) from error


def _remedy(value: Any) -> str:
    """Say how to keep what can't be saved; the predictor of a foreign regressor can't be saved either."""
    if isinstance(value, Regressor):
        return "Use pickle or joblib, and only with files you trust."
    return "Save the predictor alone: lowcal.save(fit.predictor, path), or model.predictor_ of an estimator."


def read_value(at: Plain, allowed: Mapping[str, Any]) -> Any:
    """Return a value of one of the allowed classes, its fields plain or hypothesis classes again."""
    kind = at.kind(allowed)
    names = [field.name for field in fields(allowed[kind])]
    _, *given = at.fields("kind", *names)
    try:
        return allowed[kind](**{name: _read_setting(one) for name, one in zip(names, given, strict=True)})
    except (TypeError, OverflowError):
        at.refuse(f"a {kind}")
    except InvalidInput as error:
        raise DamagedFile(f"{at.place} is no {kind}: {error}") from error


def _read_setting(at: Plain) -> Any:
    if type(at.value) is dict:
        return read_value(at, CLASSES.known)
    return [_read_setting(one) for one in at.items()] if type(at.value) is list else at.value
