"""Running the command: a verb returns its exit code, and errors are one sentence, never a traceback.

Standard streams may be closed, full, or unable to write every letter: that changes no result. Files appear whole or not
at all.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from shlex import join
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from lowcal.cli import BAD_DATA, BROKEN_PIPE, BUG, INTERRUPTED, TERMINATED, WRONG_USAGE, parser
from lowcal.data.errors import AuditWarning, FitWarning, LowcalError, printable
from lowcal.data.progress import Passes

if TYPE_CHECKING:
    from lowcal.data.files import FileTable

#: The files of the commands that do not have one of their own name.
_FILES = {"fit": "models", "predict": "models", "export": "models", "report": "audit"}


class WrongUsage(LowcalError):
    """The options do not go together, or with this file."""


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


# --- streams and outputs, for all commands ------------------------------------------------------------------------


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
        print(*map(printable, text.split("\n")), sep="\n", file=sys.stderr, flush=True)
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
    passes = Passes(is_wanted(options))
    passes.start(printable(f"{what} {table.shown}"), table.size, table.unit)
    return passes


def check_outputs(*paths: str | None, inputs: Sequence[str] = ()) -> None:
    """Refuse, before any work, outputs that can't be written, that replace an input, or that go to one place."""
    from lowcal.data.batches import files_of, is_several
    from lowcal.data.files import STREAM, check_writable

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
    from lowcal.data.files import open_bytes

    with open_bytes(path) as stream:
        stream.write(data)
