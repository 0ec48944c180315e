"""What a command prints and writes, and its exit codes.

Standard streams may be closed, full, or unable to write every letter: that changes no result. Files appear whole or not
at all.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from lowcal.data.errors import LowcalError, printable

if TYPE_CHECKING:
    from lowcal.data.files.tables import FileTable
    from lowcal.data.progress import Passes

#: The audit's own: satisfied, violated, undecided.
DONE, VIOLATED, UNDECIDED = 0, 1, 2
#: The numbers of sysexits.h, and those of a shell for a signal.
WRONG_USAGE, BAD_DATA, BUG, INTERRUPTED, TERMINATED, BROKEN_PIPE = 64, 65, 70, 130, 143, 141


class WrongUsage(LowcalError):
    """The options do not go together, or with this file."""


def open_streams() -> None:
    """Replace closed streams by the null device, and let streams escape the characters that they can't encode."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        # no file of ours may get the number of a stream
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "surrogateescape") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Print a message on standard error, if anything can be printed there; what it quotes can't steer the terminal."""
    try:
        print(printable(text, keep="\n"), file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Discard what a failed stream has still to write, which Python would report as an error at exit."""
    with suppress(OSError):  # a stream without a number needs none of this
        number = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(number, stream.fileno())
        finally:
            os.close(number)


def is_wanted(options: argparse.Namespace) -> bool:
    """Whether progress is shown: as asked for, or else if standard error is a terminal."""
    return not options.quiet and bool(sys.stderr.isatty() if options.progress is None else options.progress)


def showing(options: argparse.Namespace, what: str, table: FileTable) -> Passes:
    """Show how much of a file has been read, if that is wanted."""
    from lowcal.data.progress import Passes

    passes = Passes(is_wanted(options))
    passes.start(printable(f"{what} {table.shown}"), table.size, table.unit)
    return passes


def check_outputs(*paths: str | None, inputs: Sequence[str] = ()) -> None:
    """Refuse, before any work, outputs that can't be written, that replace an input, or that go to one place."""
    from lowcal.data.files.atomic import check_writable
    from lowcal.data.files.batches import files_of, is_several
    from lowcal.data.files.tables import STREAM

    given = [path for path in paths if path is not None]
    if len({path if path == STREAM else os.path.realpath(path) for path in given}) < len(given):
        raise WrongUsage("Two outputs have the same name; give each a file of its own.")
    read = [file for one in inputs for file in (files_of(one) if is_several(one) else [one]) if os.path.isfile(file)]
    for path in given:
        if path == STREAM:
            continue
        for one in read if os.path.exists(path) else ():
            if os.path.samefile(one, path):  # pipes and devices may be both
                raise WrongUsage(f"The output {path} would replace the input {one}; give another name.")
        check_writable(path)


def put(data: bytes, path: str) -> None:
    """Write bytes to a file, or to standard output."""
    from lowcal.data.files.tables import open_bytes

    with open_bytes(path) as stream:
        stream.write(data)
