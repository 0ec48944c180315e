"""Arrays that took long to make, kept in a folder: npz without pickle, and a checksum that is checked on reading."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def cached_arrays(key: str, make: Callable[[], Arrays], folder: str | Path | bool | None = None) -> Arrays:
    """Return what `make` returns, from the folder if it is there and whole.

    Beside `key.npz` stands `key.sha256`. A damaged file is made again, with a warning. A folder that can't be written
    is no reason to fail: the arrays are then made each time.

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
    try:
        content, expected = path.read_bytes(), path.with_suffix(".sha256").read_text().strip()
    except OSError:
        return None
    if sha256(content).hexdigest() != expected:
        warnings.warn(f"the cached model {path} is damaged (its checksum differs); it is made again.", stacklevel=4)
        return None
    with np.load(BytesIO(content), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _write(path: Path, arrays: Arrays) -> None:
    """Write both files; each appears whole or not at all."""
    buffer = BytesIO()
    save: Any = np.savez  # its stub takes one of the names for an option
    save(buffer, **arrays)
    content = buffer.getvalue()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for target, data in ((path, content), (path.with_suffix(".sha256"), sha256(content).hexdigest().encode())):
            temporary = target.with_name(f"{target.name}.{os.getpid()}.part")
            temporary.write_bytes(data)
            temporary.replace(target)
    except OSError as error:
        warnings.warn(f"the trained model could not be cached in {path.parent}: {error}", stacklevel=4)
