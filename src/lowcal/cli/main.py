"""The command `lowcal`: words in, files out. Errors are one sentence on standard error, never a traceback."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

from lowcal.cli.talk import open_streams, say, silence
from lowcal.cli.usage import (
    BAD_DATA,
    BROKEN_PIPE,
    BUG,
    INTERRUPTED,
    TERMINATED,
    WRONG_USAGE,
    WrongUsage,
)
from lowcal.data.errors import AuditWarning, FitWarning, LowcalError, sentence, suggest
from lowcal.data.version import __version__

_EXAMPLES = """examples:
  lowcal demo
  lowcal audit   test.csv --label y --probability p --groups sex,race --depth 2 --html audit.html
  lowcal fit     train.csv --label y --probability p --out model.json
  lowcal predict model.json new.csv --out calibrated.csv

exit codes:
  0 done (audit: satisfied)   1 audit violated   2 audit undecided   64 wrong usage   65 bad data
  70 a bug                    130 interrupted    141 nobody reads the output     143 terminated

'lowcal COMMAND --help' tells more.
"""
_DEMO = """example:
  lowcal demo                  audit and recalibrate a model on built-in data, write lowcal-demo.html and .png
  lowcal demo --out results    the same, with the picture in the folder results
"""
_FILE = "CSV, JSON lines, Parquet or Arrow; a folder or a quoted glob of Parquet and Arrow files; '-': standard input"
_AUDIT = """example:
  lowcal audit test.csv --label y --probability p --groups sex,race --depth 2 --alpha 0.01 --html audit.html
  lowcal audit test.csv --label y --probability p --groups sex,race --per-person 0.02

--alpha bounds errors averaged over all rows: a group of 1% may be off by 100 times alpha. --per-person bounds the
error of every group averaged over its own people.

The exit code is the verdict: 0 satisfied, 1 violated, 2 undecided. Audit rows that neither the model nor a fit has
seen. Rows in messages are counted from 1, without the header.
"""
_FIT = """example:
  lowcal fit train.csv --label y --probability p --out model.json
  lowcal fit train.csv --label y --probability p --groups sex,race --out model.json
  lowcal fit train.csv --label y --probability p --groups sex,race --depth 2 --per-person 0.02 --out model.json

As in the first two lines, cross-validation chooses: the model as it is, a curve of its scores, groups, or boosted
trees. It reads all other columns, or --features; with --groups only those, and their largest error must not grow.
With --notion, --alpha, --per-person or any other option of a class or a solver, the fit is of that notion on these
groups: without --alpha and --per-person as far as the rows allow. Every update has to lower the loss on held-out rows
(cross-fitting), or it is undone; --no-guard fits the rows whatever it does to others. Such fits of groups take files
of any size; others need the rows in memory, or --sample.
The model recalibrates new rows of the same classifier: see 'lowcal predict --help'.
Rows in messages are counted from 1, without the header.
"""
_PREDICT = """example:
  lowcal predict model.json new.csv --out calibrated.parquet
  lowcal predict model.json new.csv --out - | head

All columns of FILE are written, in its order, and behind them the calibrated predictions (p becomes p_calibrated).
Files of any size go through in batches; for Parquet and JSON, a CSV file is read once more before, to learn its types.
"""
_PLAN = """example:
  lowcal plan --notion degree-2 --alpha 0.05 --classes 10 --vc 20
  lowcal plan --notion degree-2 --alpha 0.1 --groups 50
"""
_EXPORT = """example:
  lowcal export model.json model.onnx
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors exit with 64, as `sysexits` has it."""

    #: The commands of the command itself, each with a parser of its own.
    commands: Mapping[str, argparse.ArgumentParser] = {}

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(WRONG_USAGE, f"lowcal: {sentence(message)} Try '{self.prog} --help'.\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse all arguments; what is left over is an error of the command that was called."""
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            self.commands.get(options.command, self).error(f"unrecognized arguments: {' '.join(rest)}")
        return options

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse a misspelt option by its own name, not by what is missing without it."""
        if not self.commands:
            known = list(self._option_string_actions)
            for given in takewhile(lambda one: one != "--", args or ()):
                name = given.split("=", 1)[0]
                if given.startswith("--") and name not in known and " " not in name:
                    near = suggest(name[2:], [one[2:] for one in known]).replace(" '", " '--")
                    self.error(f"there is no option {name}.{near}")
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is no choice, and name the nearest."""
        if action.choices is not None and value not in action.choices:
            choices = [str(one) for one in action.choices]
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r} (choose from {', '.join(choices)}).{suggest(str(value), choices)}"
            )


# --- the grammar --------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the command's grammar."""
    top = _Parser(
        prog="lowcal",
        description="Low-degree multicalibration: find the subpopulations on which a classifier's probabilities are "
        "wrong, and recalibrate them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"lowcal {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def add(name: str, short: str, description: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=short,
            description=description,
            epilog=example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    for build in (_demo, _audit, _fit, _predict, _plan, _export):
        build(add)
    top.commands = commands.choices
    return top


_Add = Callable[[str, str, str, str], argparse.ArgumentParser]


def _demo(add: _Add) -> None:
    demo = add(
        "demo",
        "audit and recalibrate a model on built-in real data; no arguments, no network",
        "Train a small overconfident network on UCI Adult, see how every level of the hierarchy judges\n"
        "it and on whom it is wrong, recalibrate it, and compare on held-out rows.",
        _DEMO,
    )
    demo.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER", help="where the report and the picture go (default: here)"
    )
    demo.add_argument("--seed", type=_whole(0), default=0, help="seed of the split and of the network (default: 0)")
    demo.add_argument("--no-plot", action="store_true", help="print only")


def _audit(add: _Add) -> None:
    audit = add(
        "audit",
        "say whether the probabilities of a file can be trusted, and for whom not",
        "Judge the probabilities of a CSV or Parquet file on many groups at once.",
        _AUDIT,
    )
    _add_data(audit)
    _add_subpopulations(audit)
    target = _add_target(audit, is_audit=True)
    target.add_argument(
        "--confidence", type=_level, default=0.95, metavar="C", help="simultaneous confidence level (0.95)"
    )
    target.add_argument(
        "--method",
        choices=("bootstrap", "bernstein", "hoeffding"),
        default="bootstrap",
        help="intervals: bootstrap (default), or those that hold for any number of rows",
    )
    target.add_argument(
        "--against", action="append", type=_names, metavar="P", help="also audit this earlier probability, to compare"
    )
    output = audit.add_argument_group("output ('-' is standard output)")
    output.add_argument("--html", type=_name, metavar="FILE", help="write the report as one page")
    output.add_argument("--json", type=_name, metavar="FILE", help="write the report as JSON")
    output.add_argument("--markdown", type=_name, metavar="FILE", help="write the report as Markdown")
    _add_talk(output)
    _add_format(audit)


#: Options that ask a fit for a notion, a class, a target or a way; without any of them cross-validation chooses.
_ASKED = (
    *("notion", "alpha", "per_person", "min_share", "depth", "bins", "min_mass", "subpopulations"),
    *("solver", "geometry", "validation_fraction", "no_guard", "max_updates"),
)


def _fit(add: _Add) -> None:
    fit = add(
        "fit",
        "recalibrate the probabilities of a file and save what was learned",
        "Recalibrate the probabilities of a CSV or Parquet file, as far as that helps on held-out rows.",
        _FIT,
    )
    _add_data(fit)
    _add_subpopulations(fit)
    _add_target(fit)
    how = fit.add_argument_group("how it is reached")
    how.add_argument("--solver", choices=("first", "worst", "block"), default="block", help="default: block")
    how.add_argument(
        "--geometry",
        choices=("euclidean", "mirror"),
        help="add and project, or add in log odds (default: mirror, but euclidean for the solver first)",
    )
    how.add_argument(
        "--validation-fraction",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="share of the rows held out to stop early, instead of the guard (0)",
    )
    how.add_argument(
        "--no-guard", action="store_true", help="keep updates that do not lower the loss on held-out rows, for study"
    )
    how.add_argument("--max-updates", type=_whole(1), metavar="N", help="stop after N updates")
    fit.set_defaults(unasked={name: fit.get_default(name) for name in _ASKED})
    output = fit.add_argument_group("output")
    output.add_argument(
        "--out", required=True, type=_name, metavar="FILE", help="where the model goes; '-' is standard output"
    )
    _add_talk(output)
    _add_format(fit)


def _predict(add: _Add) -> None:
    predict = add(
        "predict",
        "recalibrate the probabilities of new rows with a saved model",
        "Recalibrate the probabilities of a CSV or Parquet file with a model that 'lowcal fit' saved.",
        _PREDICT,
    )
    predict.add_argument("model", type=_name, metavar="MODEL", help="the saved model")
    predict.add_argument("file", type=_name, metavar="FILE", help=_FILE)
    predict.add_argument(
        "--probability",
        action="append",
        type=_names,
        metavar="P",
        help="the probability columns (default: those of the fit)",
    )
    _add_classes(predict)
    output = predict.add_argument_group("output")
    output.add_argument(
        "--out",
        required=True,
        type=_name,
        metavar="FILE",
        help=".csv, .csv.gz, .parquet, .json, .jsonl; '-' is standard output",
    )
    output.add_argument(
        "--format", choices=("csv", "tsv", "parquet", "json", "jsonl"), help="of --out (default: by its name, or CSV)"
    )
    output.add_argument(
        "--suffix", default="_calibrated", metavar="TEXT", help="ending of the new columns' names (_calibrated)"
    )
    _add_talk(output)
    _add_format(predict)


def _plan(add: _Add) -> None:
    plan = add(
        "plan",
        "how many rows and updates a notion takes",
        "Say how many rows and updates a notion takes, before any data are collected.",
        _PLAN,
    )
    plan.add_argument("--notion", type=_notion, default="degree-2", help="default: degree-2")
    plan.add_argument("--alpha", type=_level, default=0.05, help="the largest violation tolerated (0.05)")
    plan.add_argument("--classes", type=_whole(2), default=2, metavar="N", help="number of classes (2)")
    plan.add_argument("--groups", type=_whole(1), metavar="N", help="number of subpopulations")
    plan.add_argument("--vc", type=_positive, metavar="N", help="VC dimension of the subpopulations")
    plan.add_argument("--beta", type=_level, default=0.05, help="probability of failure (0.05)")
    plan.add_argument(
        "--rate", type=_level, default=0.5, help="base rate of the label, for audits (0.5: the worst case)"
    )


def _export(add: _Add) -> None:
    export = add("export", "write a saved model as ONNX", "Write a saved model as one ONNX graph.", _EXPORT)
    export.add_argument("model", type=_name, metavar="MODEL", help="the saved model")
    export.add_argument("out", type=_name, metavar="FILE", help="the graph to write: a name that ends in .onnx")
    export.add_argument("--quiet", action="store_true", help="print nothing")


def _add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=_name, metavar="FILE", help=_FILE)
    data = command.add_argument_group("columns (names with commas: repeat the option)")
    data.add_argument("--label", required=True, type=_name, metavar="Y", help="the outcome: text or numbers")
    data.add_argument(
        "--probability",
        required=True,
        action="append",
        type=_names,
        metavar="P",
        help="the probability of the positive class, or p_a,p_b,p_c: one of each class",
    )
    data.add_argument(
        "--positive", metavar="VALUE", help="the positive class (default: true, or the larger of two numbers)"
    )
    _add_classes(data)
    data.add_argument("--weight", type=_name, metavar="W", help="the weight of each row")
    data.add_argument(
        "--sample",
        type=_whole(1),
        metavar="N",
        help="use a random sample of N rows (default: all rows); every output says so, also with --quiet",
    )


def _add_classes(group: Any) -> None:
    group.add_argument(
        "--classes",
        action="append",
        type=_names,
        metavar="A,B,C",
        help="the class of each probability, in order (default: by the columns' names); for a single one both, "
        "the positive one last",
    )


def _add_subpopulations(command: argparse.ArgumentParser) -> None:
    who = command.add_argument_group("subpopulations")
    who.add_argument(
        "--groups", action="append", type=_names, metavar="A,B", help="columns whose values make the groups"
    )
    who.add_argument(
        "--depth", type=_whole(1), metavar="N", help="conjunctions of at most N columns (1); trees: their depth (3)"
    )
    who.add_argument("--bins", type=_whole(2), default=5, metavar="N", help="bins of a numeric column (5)")
    who.add_argument(
        "--min-mass", type=_whole(0), default=30, metavar="N", help="groups of fewer rows are left out (30)"
    )
    who.add_argument(
        "--categorical",
        action="append",
        type=_names,
        metavar="A,B",
        help="columns of numbers that are names, such as postal codes",
    )
    who.add_argument(
        "--subpopulations",
        choices=("groups", "trees", "linear"),
        default="groups",
        help="groups (default), or found by a learner",
    )
    who.add_argument(
        "--features", action="append", type=_names, metavar="A,B", help="columns for trees and linear (default: all)"
    )


def _add_target(command: argparse.ArgumentParser, is_audit: bool = False) -> Any:
    target = command.add_argument_group("what is asked")
    target.add_argument(
        "--notion",
        type=_notion,
        default="degree-2" if is_audit else None,
        help="multiaccuracy, degree-2 (default), degree-3, smooth, full-0.1",
    )
    _add_tolerance(target, "0.01" if is_audit else "as far as the rows allow")
    target.add_argument("--seed", type=_whole(0), metavar="N", help="makes every random choice repeatable")
    return target


def _add_tolerance(target: Any, default: str) -> None:
    """Add alpha and the limit per person, of which at most one is given."""
    one = target.add_mutually_exclusive_group()
    one.add_argument(
        "--alpha", type=_positive, metavar="A", help=f"the largest violation tolerated, over all rows ({default})"
    )
    one.add_argument(
        "--per-person", type=_positive, metavar="E", help="the largest error per person tolerated in any group"
    )
    target.add_argument(
        "--min-share",
        type=_share,
        metavar="SHARE",
        help="--per-person holds in groups of at least this share of the rows (0.01)",
    )


def _add_talk(output: Any) -> None:
    output.add_argument("--quiet", action="store_true", help="print nothing but errors")
    output.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="show progress (default: on a terminal)"
    )


def _add_format(command: argparse.ArgumentParser) -> None:
    form = command.add_argument_group("format of FILE (found out if not given)")
    form.add_argument("--input-format", choices=("csv", "tsv", "parquet", "jsonl"), help="what FILE is")
    form.add_argument("--separator", type=_separator, metavar="S", help="between fields: , ; tab or |")
    form.add_argument("--decimal", choices=(".", ","), default=".", help="the decimal sign of numbers ('.')")
    form.add_argument("--encoding", type=_encoding, metavar="NAME", help="of a text file, such as latin-1 (utf-8)")


# --- values of options --------------------------------------------------------------------------------------


def _notion(text: str) -> str:
    """Check a notion that was given; the default is known to be one, and costs no import."""
    if text != "degree-2":
        from lowcal.notions import parse_notion

        try:
            parse_notion(text)
        except LowcalError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def _names(text: str) -> str:
    if not text.replace(",", "").strip():
        raise argparse.ArgumentTypeError(f"{text!r} names nothing")
    return text


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text.replace("_", ""))
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return number

    return read


def _number(text: str, is_good: Callable[[float], bool], what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not is_good(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
    return number


def _positive(text: str) -> float:
    return _number(text, lambda x: 0 < x < float("inf"), "positive number")


def _share(text: str) -> float:
    return _number(text, lambda x: 0 <= x < 1, "number from 0 to below 1")


def _level(text: str) -> float:
    return _number(text, lambda x: 0 < x < 1, "number between 0 and 1")


def _separator(text: str) -> str:
    sign = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}.get(text, text)
    if len(sign) != 1 or not sign.isascii() or sign in '"\r\n' or sign.isalnum():
        raise argparse.ArgumentTypeError(f"{text!r} does not separate fields; give one sign, or the word tab")
    return sign


def _encoding(text: str) -> str:
    import codecs

    try:
        found = codecs.lookup(text).name
    except LookupError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an encoding; try latin-1, cp1252 or utf-16") from None
    return "utf-8-sig" if found in ("utf-8", "utf-8-sig") else found


# --- running ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    open_streams()
    try:
        options = parser().parse_args(arguments)
    except SystemExit as stop:  # help, the version or wrong usage was printed
        raise SystemExit(_end(int(stop.code or 0))) from None
    return _end(_attempt(options))


def _attempt(options: argparse.Namespace) -> int:
    """Run the command; what goes wrong is a sentence and an exit code."""
    try:
        with _manners():
            return _run(options)
    except BrokenPipeError:
        silence(sys.stdout)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _say(f"interrupted; {_left(options)}", INTERRUPTED)
    except _Terminated:
        return _say(f"terminated; {_left(options)}", TERMINATED)
    except Exception as error:
        if os.environ.get("LOWCAL_DEBUG"):
            raise
        return _say(*_sentence(error, options.command))


def _end(code: int) -> int:
    """Pass on all that was printed; return the exit code, or that of standard output if it fails only now."""
    try:
        sys.stdout.flush()
    except OSError as error:
        silence(sys.stdout)
        if code < WRONG_USAGE:
            is_left = isinstance(error, BrokenPipeError)
            code = BROKEN_PIPE if is_left else _say(f"could not write to standard output: {error.strerror}.", BAD_DATA)
    try:
        sys.stderr.flush()
    except OSError:
        silence(sys.stderr)
    return code


def _left(options: argparse.Namespace) -> str:
    """Say what a command that did not come to its end has written."""
    outputs = [getattr(options, name, None) for name in ("out", "html", "json", "markdown")]
    return "standard output is not whole" if "-" in outputs else "nothing was written"


def _run(options: argparse.Namespace) -> int:
    if options.command == "demo":
        from lowcal.cli.demo import run

        run(seed=options.seed, folder=None if options.no_plot else options.out)
        return 0
    code: int = import_module(f"lowcal.cli.{options.command}").run(options)
    return code


def _sentence(error: Exception, command: str) -> tuple[str, int]:
    """Return what to say of an error, and the exit code."""
    if isinstance(error, WrongUsage):
        return f"{error} Try 'lowcal {command} --help'.", WRONG_USAGE
    if isinstance(error, LowcalError):
        return str(error), BAD_DATA
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "could not write: the disk is full. No file is left half written.", BAD_DATA
    if isinstance(error, OSError):
        return f"could not read or write: {error}", BAD_DATA
    if isinstance(error, MemoryError):
        return "there is not enough memory; use a random sample of the rows with --sample N.", BAD_DATA
    what = f"{type(error).__name__}: {error}".replace("\n", " ")
    return f"this is a bug ({what}). Set LOWCAL_DEBUG=1 to see where, and please report it.", BUG


def _say(sentence: str, code: int) -> int:
    say(f"lowcal: {sentence}")
    return code


class _Terminated(BaseException):
    """The process was asked to end; files in the making are removed on the way out."""


@contextmanager
def _manners() -> Iterator[None]:
    """Warnings are sentences (an audit's are part of its report), and a request to end is an exception."""

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        say(f"lowcal: {message}")

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise _Terminated

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AuditWarning)
        warnings.simplefilter("always", FitWarning)
        warnings.showwarning = warn
        try:
            before = signal.signal(signal.SIGTERM, end)
        except ValueError:  # not the main thread
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
