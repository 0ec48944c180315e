"""Writing a file so that a reader finds the old one or the new one, never a half."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path


def write(text: str, path: str | PathLike[str]) -> None:
    """Write text as UTF-8 beside the path, then put it in its place at once."""
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".lowcal-{os.getpid()}-{target.name[-100:]}.part")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
