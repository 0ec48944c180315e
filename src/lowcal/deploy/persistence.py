"""Saved models: `save` writes a model as JSON, `load` reads it back to the last bit and executes nothing.

A file holds what predicting needs and what the fit said: names of columns and categories, cut points, trees,
coefficients, and for smooth weights some of the fitted predictions; no rows. `data.documents` is the text and its
checksum, `data.checked_json` how values are written and read, `rows.documents` the predictor. A user's own encoder,
family or weight is written and read like lowcal's if its class is registered; nothing is imported by a name in a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowcal.data import documents
from lowcal.data.checked_json import Plain
from lowcal.data.errors import DamagedFile, InvalidInput, sentence
from lowcal.data.files.atomic import atomic_write, check_path
from lowcal.data.version import __version__
from lowcal.deploy.saved_models import read_model, write_model

__all__ = ["Saved", "atomic_write", "load", "read", "read_metadata", "save"]


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
    data = _read_bytes(Path(check_path(path)))
    try:
        return from_bytes(data, estimator)
    except DamagedFile as error:
        raise DamagedFile(sentence(f"{path} can't be loaded: {error}")) from error
    except InvalidInput as error:
        raise InvalidInput(sentence(f"{path} can't be loaded: {error}")) from error


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what was saved beside the model; the whole file is checked."""
    data = _read_bytes(Path(check_path(path)))
    try:
        metadata: dict[str, Any] = documents.read(data)["metadata"]
    except InvalidInput as error:
        raise type(error)(sentence(f"{path} can't be loaded: {error}")) from error
    return metadata


def to_bytes(model: object, metadata: Mapping[str, Any] | None = None) -> bytes:
    """Return the bytes of a file; they have been read again, so they can be loaded."""
    if not isinstance(metadata, Mapping | None):
        raise InvalidInput(f"metadata must be a dict of plain values, but {metadata!r} was given.")
    try:
        plain = documents.check_plain({} if metadata is None else metadata, "metadata")
        data = documents.write(write_model(model), plain, __version__)
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
    parts = documents.read(data)
    written_by = Plain(parts["lowcal"], "lowcal").text()
    try:
        model = read_model(Plain(parts["model"], "model"), estimator)
    except RecursionError:
        raise DamagedFile("it is nested too deeply") from None
    return Saved(model, parts["metadata"], written_by)


def _read_bytes(path: Path) -> bytes:
    """Return the bytes of a file of a size that can be a model's."""
    try:
        with open(path, "rb") as file:
            data = file.read(documents.MOST_BYTES + 1)
    except FileNotFoundError:
        raise InvalidInput(f"There is no file {str(path)!r}. Check the path.") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a folder. Give the file that lowcal.save wrote.") from None
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {error.strerror}.") from error
    if len(data) > documents.MOST_BYTES:
        raise InvalidInput(f"{path} has more than {documents.MOST_BYTES >> 20} MiB, too much for a saved model.")
    return data
