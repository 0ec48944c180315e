"""Arrays that took long to make, kept in a folder as npz files without pickle, whose own checksums find damage."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from lowcal.data.files import atomic_write

Arrays = dict[str, NDArray[Any]]


def cached_arrays(key: str, make: Callable[[], Arrays], folder: str | Path | bool | None = None) -> Arrays:
    """Return what `make` returns, from the folder if it is there and whole.

    A damaged file is made again, with a warning. A folder that can't be written is no reason to fail: the arrays are
    then made each time.

    Parameters
    ----------
    key : the file's name, without its ending.
    make : makes the arrays.
    folder : None is the variable LOWCAL_CACHE or ~/.cache/lowcal; False keeps nothing.

    >>> cached_arrays("two", lambda: {"a": np.array([2.0])}, False)["a"].tolist()
    [2.0]
    """
    if folder is False:
        return make()
    path = cache_folder(None if folder is True else folder) / f"{key}.npz"
    found = _read(path)
    if found is None:
        found = make()
        _write(path, found)
    return found


def cache_folder(folder: str | Path | None = None) -> Path:
    """Return the folder of cached models."""
    given = folder or os.environ.get("LOWCAL_CACHE")
    if given:
        return Path(given)
    try:
        return Path.home() / ".cache" / "lowcal"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / "lowcal"


def _read(path: Path) -> Arrays | None:
    """Return the arrays, or None where there are none that can be trusted."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        warnings.warn(f"the cached model {path} is damaged ({error}); it is made again.", stacklevel=4)
        return None


def _write(path: Path, arrays: Arrays) -> None:
    """Write the file, which appears whole or not at all."""
    save: Any = np.savez  # its stub takes one of the names for an option
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            save(file, **arrays)
    except OSError as error:
        warnings.warn(f"the trained model could not be cached in {path.parent}: {error}", stacklevel=4)
