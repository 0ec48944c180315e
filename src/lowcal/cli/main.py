"""The command `lowcal`: it runs a verb and returns its exit code. Errors are one sentence, never a traceback."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from shlex import join
from types import FrameType

from lowcal.cli.grammar import parser
from lowcal.cli.terminal import (
    BAD_DATA,
    BROKEN_PIPE,
    BUG,
    INTERRUPTED,
    TERMINATED,
    WRONG_USAGE,
    WrongUsage,
    open_streams,
    say,
    silence,
)
from lowcal.data.errors import AuditWarning, FitWarning, LowcalError

#: Commands that share the file of another.
_FILES = {"report": "audit", "export": "predict"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    open_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parser().parse_args(given)
    except SystemExit as stop:  # help, the version or wrong usage was printed
        raise SystemExit(_end(int(stop.code or 0))) from None
    options.command_line = join(["lowcal", *given])
    return _end(_attempt(options))


def _attempt(options: argparse.Namespace) -> int:
    """Run the command; what goes wrong is a sentence and an exit code."""
    outputs = [getattr(options, name, None) for name in ("out", "html", "json", "markdown")]
    left = "the output is incomplete" if "-" in outputs else "nothing was written"
    try:
        with _signals_and_warnings():
            file = import_module(f"lowcal.cli.{_FILES.get(options.command, options.command)}")
            code: int = getattr(file, f"run_{options.command}")(options)
            return code
    except BrokenPipeError:
        silence(sys.stdout)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        sentence, code = f"interrupted; {left}", INTERRUPTED
    except _Terminated:
        sentence, code = f"terminated; {left}", TERMINATED
    except Exception as error:
        if os.environ.get("LOWCAL_DEBUG"):
            raise
        sentence, code = _sentence(error, options.command)
    say(f"lowcal: {sentence}")
    return code


def _end(code: int) -> int:
    """Pass on all that was printed; return the exit code, or that of standard output if it fails only now."""
    try:
        sys.stdout.flush()
    except OSError as error:
        silence(sys.stdout)
        if code < WRONG_USAGE and isinstance(error, BrokenPipeError):
            code = BROKEN_PIPE
        elif code < WRONG_USAGE:
            say(f"lowcal: could not write to standard output: {error.strerror}.")
            code = BAD_DATA
    try:
        sys.stderr.flush()
    except OSError:
        silence(sys.stderr)
    return code


def _sentence(error: Exception, command: str) -> tuple[str, int]:
    """Return the message of an error, and the exit code."""
    match error:
        case WrongUsage():
            return f"{error} Try 'lowcal {command} --help'.", WRONG_USAGE
        case LowcalError():
            return str(error), BAD_DATA
        case OSError(errno=errno.ENOSPC):
            return "could not write: the disk is full. No incomplete file is left.", BAD_DATA
        case OSError():
            return f"could not read or write: {error}", BAD_DATA
        case MemoryError():
            return "out of memory; use a random sample of the rows with --sample N.", BAD_DATA
    what = f"{type(error).__name__}: {error}".replace("\n", " ")
    return f"this is a bug ({what}). Set LOWCAL_DEBUG=1 to see where, and please report it.", BUG


class _Terminated(BaseException):
    """SIGTERM was received; unfinished files are removed before the process ends."""


@contextmanager
def _signals_and_warnings() -> Iterator[None]:
    """Print warnings as sentences (an audit's are part of its report), and turn SIGTERM into an exception."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise _Terminated

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AuditWarning)
        warnings.simplefilter("always", FitWarning)
        warnings.showwarning = lambda message, *_, **__: say(f"lowcal: {message}")
        try:
            before = signal.signal(signal.SIGTERM, end)
        except ValueError:  # not the main thread
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
