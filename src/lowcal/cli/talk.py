"""Standard streams that may be closed, full, or unable to write every letter: they change no result."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from lowcal.data.errors import printable

if TYPE_CHECKING:
    from lowcal.data.files.opening import Source
    from lowcal.data.progress import Passes


def open_streams() -> None:
    """Give closed outputs a place where nothing arrives, and write letters that a stream does not know as escapes."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        # no file of ours may get the number of a stream
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "surrogateescape") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def is_wanted(options: argparse.Namespace) -> bool:
    """Whether progress is shown: as asked for, or else if standard error is a terminal."""
    if options.quiet:
        return False
    return bool(sys.stderr.isatty() if options.progress is None else options.progress)


def showing(options: argparse.Namespace, what: str, source: Source) -> Passes:
    """Show how far the reading of a file is, if that is wanted."""
    from lowcal.data.progress import Passes

    passes = Passes(is_wanted(options))
    passes.start(printable(f"{what} {source.shown}"), source.size, source.unit)
    return passes


def say(text: str) -> None:
    """Print a message on standard error, if anything can be printed there; what it quotes can't steer the terminal."""
    try:
        print(printable(text, keep="\n"), file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Nothing reaches this stream any more: let nothing complain of it when Python ends."""
    with suppress(OSError):  # a stream without a number needs none of this
        number = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(number, stream.fileno())
        finally:
            os.close(number)
