"""The grammar of the command `lowcal`: its words, its options, and what their values may be."""

from __future__ import annotations

import argparse
import codecs
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from lowcal.cli.terminal import WRONG_USAGE
from lowcal.data.errors import LowcalError, sentence, suggest
from lowcal.data.version import __version__

_EPILOG = """examples:
  lowcal demo
  lowcal audit   test.csv --label y --probability p --groups sex,race --depth 2 --html audit.html
  lowcal fit     train.csv --label y --probability p --out model.json
  lowcal predict model.json new.csv --out calibrated.csv

exit codes:
  0 done (audit: satisfied)   1 audit violated   2 audit undecided   64 wrong usage   65 bad data
  70 a bug                    130 interrupted    141 output closed   143 terminated

'lowcal COMMAND --help' shows the options of a command.
"""
_DEMO = """example:
  lowcal demo                  audit and recalibrate a model on built-in data, write lowcal-demo.html and .png
  lowcal demo --out results    the same, with the report and the picture in the folder results
"""
_AUDIT = """example:
  lowcal audit test.csv --label y --probability p --groups sex,race --depth 2 --alpha 0.01 --html audit.html
  lowcal audit test.csv --label y --probability p --groups sex,race --per-person 0.02

--alpha bounds errors averaged over all rows: a group of 1% may be off by 100 times alpha. --per-person bounds the
error of every group averaged over its own people.

The exit code is the verdict: 0 satisfied, 1 violated, 2 undecided. Use held-out rows: rows that neither the model nor
a fit has seen. Rows in messages are counted from 1, without the header.
"""
_FIT = """example:
  lowcal fit train.csv --label y --probability p --out model.json
  lowcal fit train.csv --label y --probability p --groups sex,race --out model.json
  lowcal fit train.csv --label y --probability p --groups sex,race --depth 2 --per-person 0.02 --out model.json

In the first two examples cross-validation chooses between the model as it is, a curve of its scores, groups, and
boosted trees. It reads all other columns, or --features; with --groups only those, and their largest error must not
grow. With --notion, --alpha, --per-person or any other option of a class or a solver, that notion is fitted on these
groups: without --alpha and --per-person as far as the rows allow. An update that does not lower the loss on held-out
rows (cross-fitting) is undone; --no-guard keeps it. Such fits of groups take files of any size; others need the rows
in memory, or --sample.
The model recalibrates new rows of the same classifier: see 'lowcal predict --help'.
Rows in messages are counted from 1, without the header.
"""
_PREDICT = """example:
  lowcal predict model.json new.csv --out calibrated.parquet
  lowcal predict model.json new.csv --out - | head

All columns of FILE are written, in its order, followed by the calibrated predictions (p becomes p_calibrated).
Files of any size are read in batches; to write Parquet or JSON, a CSV file is read twice, first to find its types.
"""
_PLAN = """example:
  lowcal plan --notion degree-2 --alpha 0.05 --classes 10 --vc 20
  lowcal plan --notion degree-2 --alpha 0.1 --groups 50
"""
_EXPORT = """example:
  lowcal export model.json model.onnx
"""


# --- values of options --------------------------------------------------------------------------------------------


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


def _number(convert: Callable[[str], float], is_good: Callable[[Any], bool], what: str, text: str) -> Any:
    try:
        number = convert(text)
    except ValueError:
        number = float("nan")
    if not is_good(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
    return number


def _whole(least: int) -> Callable[[str], int]:
    what = f"whole number of at least {least}"
    return lambda text: _number(lambda one: int(one.replace("_", "")), lambda x: x >= least, what, text)


def _real(is_good: Callable[[float], bool], what: str) -> Callable[[str], float]:
    return lambda text: _number(float, is_good, what, text)


_positive = _real(lambda x: 0 < x < float("inf"), "positive number")
_share = _real(lambda x: 0 <= x < 1, "number from 0 to below 1")
_level = _real(lambda x: 0 < x < 1, "number between 0 and 1")


def _separator(text: str) -> str:
    sign = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}.get(text, text)
    if len(sign) != 1 or not sign.isascii() or sign in '"\r\n' or sign.isalnum():
        raise argparse.ArgumentTypeError(f"{text!r} can't separate fields; give one character, or the word tab")
    return sign


def _encoding(text: str) -> str:
    try:
        found = codecs.lookup(text).name
    except LookupError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an encoding; try latin-1, cp1252 or utf-16") from None
    return "utf-8-sig" if found in ("utf-8", "utf-8-sig") else found


# --- options ------------------------------------------------------------------------------------------------------

Options = Mapping[str, Any]


def _option(words: str, type_: Callable[[str], Any] | None = None, metavar: str | None = None, **more: Any) -> Options:
    """Return what argparse is told of an option."""
    given = {"help": words, "type": type_, "metavar": metavar, **more}
    return {name: value for name, value in given.items() if value is not None}


def _listed(words: str, metavar: str, **more: Any) -> Options:
    """Return an option that takes names, separated by commas, and may be repeated."""
    return _option(words, _names, metavar, action="append", **more)


def _flag(words: str) -> Options:
    return _option(words, action="store_true")


_FILE = "CSV, JSON lines, Parquet or Arrow; a folder or a quoted glob of Parquet and Arrow files; '-': standard input"
_SEED = _option("makes every random choice repeatable", _whole(0), "N")
_CLASSES = _listed(
    "the class of each probability, in order (default: by the columns' names); for a single one both, the positive one "
    "last",
    "A,B,C",
)
_COLUMNS = {
    "--label": _option("the outcome: text or numbers", _name, "Y", required=True),
    "--probability": _listed(
        "the probability of the positive class, or p_a,p_b,p_c: one of each class", "P", required=True
    ),
    "--positive": _option("the positive class (default: true, or the larger of two numbers)", None, "VALUE"),
    "--classes": _CLASSES,
    "--weight": _option("the weight of each row", _name, "W"),
    "--sample": _option(
        "use a random sample of N rows (default: all rows); every output says so, also with --quiet", _whole(1), "N"
    ),
}
_SUBPOPULATIONS = {
    "--groups": _listed("columns whose values make the groups", "A,B"),
    "--depth": _option(
        "conjunctions of at most N columns (default: 1); trees: their depth (default: 3)", _whole(1), "N"
    ),
    "--bins": _option("bins of a numeric column (default: 5)", _whole(2), "N", default=5),
    "--min-mass": _option("groups of fewer rows are left out (default: 30)", _whole(0), "N", default=30),
    "--categorical": _listed("columns of numbers that are names, such as postal codes", "A,B"),
    "--subpopulations": _option(
        "groups (default), or found by a learner", choices=("groups", "trees", "linear"), default="groups"
    ),
    "--features": _listed("columns for trees and linear (default: all)", "A,B"),
}


def _target(notion: str | None, alpha: str) -> Options:
    """Return the options of a notion and its tolerance; alpha and the limit per person exclude each other."""
    return {
        "--notion": _option("multiaccuracy, degree-2 (default), degree-3, smooth, full-0.1", _notion, default=notion),
        "one of": {
            "--alpha": _option(f"the largest violation tolerated, over all rows (default: {alpha})", _positive, "A"),
            "--per-person": _option("the largest error per person tolerated in any group", _positive, "E"),
        },
        "--min-share": _option(
            "--per-person holds in groups of at least this share of the rows (default: 0.01)", _share, "SHARE"
        ),
        "--seed": _SEED,
    }


_INTERVALS = {
    "--confidence": _option("simultaneous confidence level (default: 0.95)", _level, "C", default=0.95),
    "--method": _option(
        "intervals: bootstrap (default), or those that hold for any number of rows",
        choices=("bootstrap", "bernstein", "hoeffding"),
        default="bootstrap",
    ),
    "--against": _listed("also audit this earlier probability, to compare", "P"),
}
_SOLVER = {
    "--solver": _option(
        "how updates are chosen (default: block)", choices=("first", "worst", "block"), default="block"
    ),
    "--geometry": _option(
        "add and project, or add in log odds (default: mirror, but euclidean for the solver first)",
        choices=("euclidean", "mirror"),
    ),
    "--validation-fraction": _option(
        "share of the rows held out to stop early, instead of the guard (default: 0)", _share, "SHARE", default=0.0
    ),
    "--no-guard": _flag("keep updates that do not lower the loss on held-out rows, for study"),
    "--max-updates": _option("stop after N updates", _whole(1), "N"),
}
_REPORTS = {
    "--html": _option("write the report as one page", _name, "FILE"),
    "--json": _option("write the report as JSON", _name, "FILE"),
    "--markdown": _option("write the report as Markdown", _name, "FILE"),
}
_TALK = {
    "--quiet": _flag("print nothing but errors"),
    "--progress": _option("show progress (default: on a terminal)", action=argparse.BooleanOptionalAction),
}
_MODEL = {"--out": _option("where the model goes; '-' is standard output", _name, "FILE", required=True)}
_TABLE = {
    "--out": _option(".csv, .csv.gz, .parquet, .json, .jsonl; '-' is standard output", _name, "FILE", required=True),
    "--format": _option("of --out (default: by its name, or CSV)", choices=("csv", "tsv", "parquet", "json", "jsonl")),
    "--suffix": _option("ending of the new columns' names (default: _calibrated)", None, "TEXT", default="_calibrated"),
}
_FORMAT = {
    "--input-format": _option("what FILE is", choices=("csv", "tsv", "parquet", "jsonl")),
    "--separator": _option("between fields: , ; tab or |", _separator, "S"),
    "--decimal": _option("the decimal sign of numbers (default: '.')", choices=(".", ","), default="."),
    "--encoding": _option("of a text file, such as latin-1 (default: utf-8)", _encoding, "NAME"),
}
_PLANNED = {
    "--notion": _option("the notion of calibration (default: degree-2)", _notion, default="degree-2"),
    "--alpha": _option("the largest violation tolerated (default: 0.05)", _level, default=0.05),
    "--classes": _option("number of classes (default: 2)", _whole(2), "N", default=2),
    "--groups": _option("number of subpopulations", _whole(1), "N"),
    "--vc": _option("VC dimension of the subpopulations", _positive, "N"),
    "--beta": _option("probability of failure (default: 0.05)", _level, default=0.05),
    "--rate": _option("base rate of the label, for audits (default: 0.5, the worst case)", _level, default=0.5),
}
_SHOWN = {
    "--out": _option("where the report and the picture go (default: here)", Path, "FOLDER", default=Path()),
    "--seed": _option("seed of the split and of the network (default: 0)", _whole(0), default=0),
    "--no-plot": _flag("print only"),
}
_SAVED = {"model": _option("the saved model", _name, "MODEL")}
_READ = {"file": _option(_FILE, _name, "FILE")}
_COLUMNS_TITLE, _FORMAT_TITLE = "columns (names with commas: repeat the option)", "format of FILE (default: detected)"

#: Options that ask a fit for a notion, a class, a target or a way; without any of them cross-validation chooses.
_ASKED = (
    *("notion", "alpha", "per_person", "min_share", "depth", "bins", "min_mass", "subpopulations"),
    *("solver", "geometry", "validation_fraction", "no_guard", "max_updates"),
)


class _Command(NamedTuple):
    """A command: a line for the list of commands, what it does, examples, and its options by titles."""

    short: str
    description: str
    epilog: str
    groups: Mapping[str, Options]


_COMMANDS = {
    "demo": _Command(
        "audit and recalibrate a model on built-in real data; no arguments, no network",
        "Train a small overconfident network on UCI Adult, see how every level of the hierarchy judges\n"
        "it and on whom it is wrong, recalibrate it, and compare on held-out rows.",
        _DEMO,
        {"": _SHOWN},
    ),
    "audit": _Command(
        "test whether the probabilities of a file are calibrated on every group",
        "Test whether the probabilities of a file are calibrated on many groups at once.",
        _AUDIT,
        {
            "": _READ,
            _COLUMNS_TITLE: _COLUMNS,
            "subpopulations": _SUBPOPULATIONS,
            "target": {**_target("degree-2", "0.01"), **_INTERVALS},
            "output ('-' is standard output)": {**_REPORTS, **_TALK},
            _FORMAT_TITLE: _FORMAT,
        },
    ),
    "fit": _Command(
        "recalibrate the probabilities of a file and save the model",
        "Recalibrate the probabilities of a file, as far as that helps on held-out rows, and save the model.",
        _FIT,
        {
            "": _READ,
            _COLUMNS_TITLE: _COLUMNS,
            "subpopulations": _SUBPOPULATIONS,
            "target": _target(None, "as far as the rows allow"),
            "solver": _SOLVER,
            "output": {**_MODEL, **_TALK},
            _FORMAT_TITLE: _FORMAT,
        },
    ),
    "predict": _Command(
        "recalibrate the probabilities of new rows with a saved model",
        "Recalibrate the probabilities of a file with a model that 'lowcal fit' saved.",
        _PREDICT,
        {
            "": {
                **_SAVED,
                **_READ,
                "--probability": _listed("the probability columns (default: those of the fit)", "P"),
                "--classes": _CLASSES,
            },
            "output": {**_TABLE, **_TALK},
            _FORMAT_TITLE: _FORMAT,
        },
    ),
    "plan": _Command(
        "how many rows and updates a notion takes",
        "Compute how many rows and updates a notion takes, before any data are collected.",
        _PLAN,
        {"": _PLANNED},
    ),
    "export": _Command(
        "write a saved model as ONNX",
        "Write a saved model as one ONNX graph.",
        _EXPORT,
        {
            "": {
                **_SAVED,
                "out": _option("the graph to write: a name that ends in .onnx", _name, "FILE"),
                "--quiet": _flag("print nothing"),
            }
        },
    ),
}


# --- the parser ---------------------------------------------------------------------------------------------------


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


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    top = _Parser(
        prog="lowcal",
        description="Low-degree multicalibration: find the subpopulations on which a classifier's probabilities are "
        "wrong, and recalibrate them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"lowcal {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, command in _COMMANDS.items():
        one = commands.add_parser(
            name,
            help=command.short,
            description=command.description,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for title, options in command.groups.items():
            _add(one.add_argument_group(title) if title else one, options)
    fit = commands.choices["fit"]
    fit.set_defaults(unasked={name: fit.get_default(name) for name in _ASKED})
    top.commands = commands.choices
    return top


def _add(group: Any, options: Options) -> None:
    """Add options to a group; those of a nested table exclude each other."""
    for name, option in options.items():
        if name == "one of":
            _add(group.add_mutually_exclusive_group(), option)
        else:
            group.add_argument(name, **option)
