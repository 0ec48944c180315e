"""Atomic writing: a reader sees the old file or the whole new one, whatever happens in between.

The new content goes to a temporary file in the same folder, is forced to the disk and then takes the old one's name.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from lowcal.data.errors import CannotWrite, InvalidInput, sentence

#: Errors of a full disk, which only writing meets.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for bytes that appears under its name only when the block has ended without an error.

    `file.name` is the temporary file's path, for writers that want one. An old file stays as it is until then, and
    stays for good if anything is raised (Ctrl-C too), which also removes the temporary file. Links are followed,
    an existing file keeps its permissions, a new one gets the usual ones. Devices and pipes are written directly.
    """
    target = Path(os.path.realpath(check_path(path)))
    temporary = target.parent / f".{target.name[:50]}.{token_hex(8)}.tmp"
    try:
        mode = os.stat(path).st_mode if os.path.exists(path) else None
        if mode is None or stat.S_ISREG(mode):
            with _replacing(target, temporary, mode) as file:
                yield file
        else:
            with open(path, "wb") as file:  # not the target: a pipe such as /dev/stdout has no other name
                yield file
    except OSError as error:
        # the block may have met an error of its own, with another file
        if error.errno in DISK_FULL or error.filename in (os.fspath(path), str(target), str(temporary)):
            why = f"{error.strerror}.{' The old file is as it was.' if target.is_file() else ''}"
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                why = f"there is no folder {str(target.parent)!r}. Make it first."
            elif isinstance(error, IsADirectoryError):
                why = "it is a folder. Give the name of a file."
            raise CannotWrite(f"{path} can't be written: {why}") from error
        raise


def check_path(path: object) -> str:
    """Return the path as text; refuse what is none."""
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f"The path of a file must be text or a pathlib.Path, but {path!r} was given.")
    return text


def check_writable(path: str) -> None:
    """Refuse a path that can't be written to, before any work is done for it."""
    target = Path(os.path.realpath(path))
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return  # a device or a pipe
    if target.is_dir():
        raise InvalidInput(f"{path} is a folder; give the name of a file.")
    if not target.parent.is_dir():
        raise InvalidInput(sentence(f"{path} can't be written: there is no folder {target.parent}"))
    if not os.access(target.parent, os.W_OK):
        raise InvalidInput(f"{path} can't be written: the folder {target.parent} is protected.")


@contextmanager
def _replacing(target: Path, temporary: Path, mode: int | None) -> Iterator[BinaryIO]:
    """Open the temporary file, then give it the target's name; remove it if anything is raised."""
    file = open(temporary, "xb")  # noqa: SIM115
    try:
        with file:
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    with suppress(OSError):  # force the new name to the disk, where the system lets a folder be synced
        handle = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
