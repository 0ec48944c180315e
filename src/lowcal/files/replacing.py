"""Files that appear whole or not at all: written beside their place under another name, then moved there."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lowcal.errors import InvalidInput


@contextmanager
def replacing(path: str) -> Iterator[Path]:
    """Give a new file in the same folder to write to; when all went well it takes the place of `path`, else it goes.

    The bytes are on the disk before the name changes, so that even a crash leaves the old file or the new one. What
    is not a file, such as /dev/null or a named pipe, is written to as it is.
    """
    target = Path(os.path.realpath(path))  # what a link points to is replaced, not the link
    check_writable(target, path)
    if target.exists() and not target.is_file():
        yield target
        return
    handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    new = Path(name)
    try:
        yield new
        _settle(new, target)
        os.replace(new, target)
    except BaseException:
        with suppress(FileNotFoundError):
            new.unlink()
        raise
    _sync(target.parent)


def check_writable(target: Path, shown: str) -> None:
    """Refuse a path that can't be written to, before any work is done for it."""
    if target.is_dir():
        raise InvalidInput(f"{shown} is a folder; give the name of a file.")
    if not target.parent.is_dir():
        raise InvalidInput(f"{shown} can't be written: there is no folder {target.parent}.")
    if not os.access(target.parent, os.W_OK) and not (target.exists() and not target.is_file()):
        raise InvalidInput(f"{shown} can't be written: the folder {target.parent} is protected.")


def _settle(new: Path, target: Path) -> None:
    """Give the new file the rights of the old one, or those of any new file, and bring it to the disk."""
    if target.exists():
        rights = stat.S_IMODE(target.stat().st_mode)
    else:
        mask = os.umask(0)
        os.umask(mask)
        rights = 0o666 & ~mask
    new.chmod(rights)
    _sync(new)


def _sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk; some systems can't do the latter."""
    with suppress(PermissionError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
