"""The command `lowcal`: its options, what their values may be, which verb takes which, and exit codes.

`main` runs a verb, `rows` reads the file that most of them take.
"""

from __future__ import annotations

import argparse
import codecs
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from lowcal.data import __version__
from lowcal.data.errors import LowcalError, sentence, suggest

#: Exit codes: the audit's own (satisfied, violated, undecided), those of sysexits.h, and those of a shell for a signal.
DONE, VIOLATED, UNDECIDED = 0, 1, 2
WRONG_USAGE, BAD_DATA, BUG, INTERRUPTED, TERMINATED, BROKEN_PIPE = 64, 65, 70, 130, 143, 141

# --- values of options --------------------------------------------------------------------------------------------


def _notion(text: str) -> str:
    from lowcal.notions import parse_notion

    try:
        return str(parse_notion(text))
    except LowcalError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def _names(text: str) -> str:
    if not text.replace(",", "").strip():
        raise argparse.ArgumentTypeError(f"{text!r} contains no name")
    return text


def _number(what: str, is_good: Callable[[Any], bool], convert: Callable[[str], Any] = float) -> Callable[[str], Any]:
    """Return a reader of numbers that refuses others as not being `what`."""

    def read(text: str) -> Any:
        try:
            number = convert(text)
        except ValueError:
            number = float("nan")
        if not is_good(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not a {what}")
        return number

    return read


def _whole(least: int) -> Callable[[str], int]:
    return _number(f"whole number of at least {least}", lambda x: x >= least, lambda text: int(text.replace("_", "")))


_positive = _number("positive number", lambda x: 0 < x < float("inf"))
_share = _number("number from 0 to below 1", lambda x: 0 <= x < 1)
_level = _number("number between 0 and 1", lambda x: 0 < x < 1)


def _separator(text: str) -> str:
    sign = "\t" if text in ("tab", "\\t") else text
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
    """Return what argparse is given for an option."""
    given = {"help": words, "type": type_, "metavar": metavar, **more}
    return {name: value for name, value in given.items() if value is not None}


def _columns(words: str, **more: Any) -> Options:
    """Return an option that takes names separated by commas, and may be repeated."""
    return _option(words, _names, action="append", **{"metavar": "A,B", **more})


def _cuts(text: str) -> tuple[str, list[float | str]]:
    """Return a column and its cut points: numbers, or dates as text.

    >>> _cuts("age:25,40,65")
    ('age', [25.0, 40.0, 65.0])
    """
    column, colon, points = text.rpartition(":")
    if not (column and colon and points):
        raise argparse.ArgumentTypeError(f"{text!r} has no column and cut points, such as age:25,40,65")
    cuts: list[float | str] = []
    for one in points.split(","):
        try:
            cuts.append(float(one))
        except ValueError:
            cuts.append(one.strip())
    return column, cuts


def _choice(words: str, *choices: str, **more: Any) -> Options:
    return _option(words, choices=choices, **more)


#: Every option by its name. Where its default is left to the library, it is None here and named in the help.
_OPTIONS: Mapping[str, Options] = {
    "file": _option(
        "CSV, JSON lines, Parquet or Arrow file; a folder or a quoted glob of Parquet and Arrow files; '-' is standard "
        "input",
        _name,
        "FILE",
    ),
    "model": _option("the saved model", _name, "MODEL"),
    # columns
    "--label": _option("column with the outcome: text or numbers", _name, "Y", required=True),
    "--probability": _columns(
        "column with the probability of the positive class; for several classes one column each: p_a,p_b,p_c",
        metavar="P",
        required=True,
    ),
    "--positive": _option("the positive class (default: true, or the larger of two numbers)", None, "VALUE"),
    "--classes": _columns(
        "class of each probability column, in order (default: from the column names); for a single column both "
        "labels, the positive one last",
        metavar="A,B,C",
    ),
    "--weight": _option("column with the sample weights", _name, "W"),
    "--frequency-weight": _option("column with the number of rows that each row stands for", _name, "K"),
    "--sample": _option("use a random sample of N rows (default: all); every output records it", _whole(1), "N"),
    # subpopulations
    "--groups": _columns("columns that define the groups"),
    "--depth": _option("intersections of at most N columns (default: 1); depth of trees (default: 3)", _whole(1), "N"),
    "--bins": _option("number of bins for a numeric column (default: 5)", _whole(2), "N", dest="n_bins"),
    "--cuts": _option(
        "cut points of a numeric column of --groups, instead of bins; may be repeated",
        _cuts,
        "A:25,40,65",
        action="append",
    ),
    "--min-mass": _option("drop groups with fewer rows (default: 30)", _whole(0), "N"),
    "--categorical": _columns("numeric columns to treat as categories, such as postal codes"),
    "--subpopulations": _choice("groups (default), or subpopulations found by a learner", "groups", "trees", "linear"),
    "--features": _columns("columns for trees and linear (default: all others)"),
    # target
    "--notion": _option("multiaccuracy, degree-2 (default), degree-3, ..., smooth, full-0.1", _notion),
    "--alpha": _option("largest violation tolerated, as a mean over all rows (default: 0.01)", _positive, "A"),
    "--per-person": _option("largest error tolerated in any group, as a mean over its own rows", _positive, "E"),
    "--min-share": _option(
        "--per-person applies to groups with at least this share of the rows (default: 0.01)", _share, "SHARE"
    ),
    "--seed": _option("seed for all random choices", _whole(0), "N"),
    "--confidence": _option("simultaneous confidence level of all intervals (default: 0.95)", _level, "C"),
    "--method": _choice(
        "confidence intervals: bootstrap (default), or valid for any number of rows",
        *("bootstrap", "bernstein", "hoeffding"),
    ),
    "--by": _option("column that splits the rows into windows of time: audit each, and test for drift", _name, "MONTH"),
    "--against": _columns("also audit an earlier probability, for comparison", metavar="P"),
    # solver
    "--solver": _choice("how updates are chosen (default: block)", "first", "worst", "block"),
    "--geometry": _choice(
        "add to the probabilities and project, or add to the log odds (default: mirror; euclidean for --solver first)",
        *("euclidean", "mirror"),
    ),
    "--validation-fraction": _option(
        "share of the rows held out for early stopping, instead of the guard (default: 0)", _share, "SHARE"
    ),
    "--no-guard": _option("keep updates that do not lower the held-out loss, for study", action="store_true"),
    "--max-updates": _option("stop after N updates", _whole(1), "N"),
    # output
    "--model": _option(
        "explain on the page why this saved model changes the predictions that it changes most", _name, "MODEL"
    ),
    "--html": _option("write the report as an HTML page", _name, "FILE"),
    "--json": _option("write the report as JSON", _name, "FILE"),
    "--markdown": _option("write the report as Markdown", _name, "FILE"),
    "--out": _option("file for the model", _name, "FILE", required=True),
    "--format": _choice("format of --out (default: from its name, or CSV)", "csv", "tsv", "parquet", "json", "jsonl"),
    "--explain": _option(
        "add a column 'why': the three largest contributions to the change of each row's prediction",
        action="store_true",
    ),
    "--suffix": _option("suffix of the new columns (default: _calibrated)", None, "TEXT", default="_calibrated"),
    "--quiet": _option("print only errors", action="store_true"),
    "--progress": _option("show progress (default: on a terminal)", action=argparse.BooleanOptionalAction),
    # format of FILE
    "--input-format": _choice("format of FILE", "csv", "tsv", "parquet", "jsonl"),
    "--separator": _option("separator of fields: , ; tab or |", _separator, "S"),
    "--decimal": _choice("decimal separator of numbers (default: '.')", ".", ",", default="."),
    "--encoding": _option("encoding of a text file, such as latin-1 (default: utf-8)", _encoding, "NAME"),
}

_COLUMNS = {
    "columns (repeat an option for names that contain commas)": "--label --probability --positive --classes --weight "
    "--frequency-weight --sample",
    "subpopulations": "--groups --depth --bins --cuts --min-mass --categorical --subpopulations --features",
}
_FORMAT = {"format of FILE (default: detected)": "--input-format --separator --decimal --encoding"}


class _Command(NamedTuple):
    """A command: a line for the list of commands, its help, its options by titles, and those that are its own."""

    short: str
    description: str
    epilog: str
    titles: Mapping[str, str]
    own: Mapping[str, Options] = {}


_COMMANDS = {
    "demo": _Command(
        "audit and recalibrate a model on built-in data; needs no arguments and no network",
        "Train a small, overconfident network on UCI Adult, audit it at every level of the hierarchy, find the groups\n"
        "on which it is wrong, recalibrate it, and compare on held-out rows.",
        """example:
  lowcal demo                  write lowcal-demo.html and lowcal-demo.png to the current folder
  lowcal demo --out results    write them to the folder results
""",
        {"": "--out --seed --no-plot"},
        {
            "--out": _option("folder for the report and the picture (default: .)", Path, "FOLDER", default=Path()),
            "--seed": _option("seed for the split and the network (default: 0)", _whole(0), "N", default=0),
            "--no-plot": _option("only print", action="store_true"),
        },
    ),
    "audit": _Command(
        "test whether the probabilities in a file are calibrated for every group",
        "Test whether the probabilities in a file are calibrated for many groups at once.",
        """example:
  lowcal audit test.csv --label y --probability p --groups sex,race --depth 2 --alpha 0.01 --html audit.html
  lowcal audit test.csv --label y --probability p --groups sex,race --per-person 0.02
  lowcal audit test.csv --label y --probability p --groups sex,race --by month
  lowcal audit calibrated.csv --label y --probability p_calibrated --against p --model model.json --groups sex,race \\
    --html audit.html

--alpha bounds errors averaged over all rows: in a group with 1% of the rows, the mean error may be 100 times alpha.
--per-person bounds the error of every group averaged over its own rows.
--by audits every window of time, one for each value of its column in sorted order (such as 2024-07), and raises an
alarm where the error of a group has changed. The verdict is that of all windows; an alarm counts as violated.

The exit code is the verdict: 0 satisfied, 1 violated, 2 undecided. Use held-out rows that neither the model nor a fit
has seen. Row numbers in messages start at 1 and do not count the header.
""",
        {
            "": "file",
            **_COLUMNS,
            "target": "--notion --alpha|--per-person --min-share --seed --confidence --method --by|--against --model",
            "output ('-' is standard output)": "--html --json --markdown --quiet --progress",
            **_FORMAT,
        },
    ),
    "fit": _Command(
        "recalibrate the probabilities in a file and save the model",
        "Recalibrate the probabilities in a file, as far as this helps on held-out rows, and save the model.",
        """example:
  lowcal fit train.csv --label y --probability p --out model.json
  lowcal fit train.csv --label y --probability p --groups sex,race --out model.json
  lowcal fit train.csv --label y --probability p --groups sex,race --depth 2 --per-person 0.02 --out model.json

In the first two examples, cross-validation selects the method: the model unchanged, a curve of its scores, groups, or
boosted trees. It uses all other columns, or those of --features; with --groups it uses only those, and the largest
error of a group must not grow. With --notion, --alpha, --per-person, or any other option for subpopulations or the
solver, lowcal fits that notion on the given groups: to --alpha or --per-person, or else as far as the data support.
Updates that do not lower the loss on held-out rows (cross-fitting) are undone, unless --no-guard is given. Such fits
on groups or trees read files of any size; all others need the rows in memory, or --sample.

The model recalibrates new rows of the same classifier: see 'lowcal predict --help'.
Row numbers in messages start at 1 and do not count the header.
""",
        {
            "": "file",
            **_COLUMNS,
            "target": "--notion --alpha|--per-person --min-share --seed",
            "solver": "--solver --geometry --validation-fraction --no-guard --max-updates",
            "output ('-' is standard output)": "--out --quiet --progress",
            **_FORMAT,
        },
        {
            "--alpha": _option(
                "largest violation tolerated, as a mean over all rows (default: as far as the data support)",
                _positive,
                "A",
            )
        },
    ),
    "predict": _Command(
        "recalibrate the probabilities of new rows with a saved model",
        "Recalibrate the probabilities in a file with a model saved by 'lowcal fit'.",
        """example:
  lowcal predict model.json new.csv --out calibrated.parquet
  lowcal predict model.json new.csv --out - | head
  lowcal predict model.json new.csv --explain --out explained.csv

The output has all columns of FILE, in the same order, followed by the calibrated predictions (p_calibrated for p).
With --explain, a column 'why' follows, such as "sex=F -0.41; score -0.22": what groups, trees and the score alone added
to the log odds of the positive class (to its probability after a fit with --geometry euclidean). All contributions to
the first row are printed as a table.
Files of any size are read in batches. To write Parquet or JSON, a CSV file is read twice: first to find its types.
""",
        {
            "": "model file --probability --classes",
            "output ('-' is standard output)": "--out --format --suffix --explain --quiet --progress",
            **_FORMAT,
        },
        {
            "--probability": _columns("probability columns (default: those of the fit)", metavar="P"),
            "--out": _option(".csv, .csv.gz, .parquet, .json or .jsonl file", _name, "FILE", required=True),
        },
    ),
    "report": _Command(
        "compare saved audits, of several models or months",
        "Compare audits that 'lowcal audit --json' or report.to_json() saved, of several models or months.",
        """example:
  lowcal audit test.csv --label y --probability p_old --groups sex,race --json old.json
  lowcal audit test.csv --label y --probability p_new --groups sex,race --json new.json
  lowcal report old.json new.json --html compared.html

The audits must have asked for the same notion and tolerance. An audit is named after its model, the probability
column, or after its file where these are the same. Groups that only one audit has are left out.
""",
        {"": "audits", "output ('-' is standard output)": "--html --quiet"},
        {"audits": _option("two or more saved audits", _name, "AUDIT", nargs="+")},
    ),
    "plan": _Command(
        "estimate how many rows and updates a notion needs",
        "Estimate how many rows and updates a notion needs, before any data are collected.",
        """example:
  lowcal plan --notion degree-2 --alpha 0.05 --classes 10 --vc 20
  lowcal plan --notion degree-2 --alpha 0.1 --groups 50
""",
        {"": "--notion --alpha --classes --groups --vc --beta --rate"},
        {
            "--alpha": _option("largest violation tolerated (default: 0.05)", _level, "A", default=0.05),
            "--classes": _option("number of classes (default: 2)", _whole(2), "N", default=2),
            "--groups": _option("number of subpopulations", _whole(1), "N"),
            "--vc": _option("VC dimension of the subpopulations", _positive, "N"),
            "--beta": _option("probability of failure (default: 0.05)", _level, "B", default=0.05),
            "--rate": _option("base rate, for audits (default: 0.5, the worst case)", _level, "R", default=0.5),
        },
    ),
    "export": _Command(
        "export a saved model to ONNX",
        "Export a saved model as a single ONNX graph.",
        """example:
  lowcal export model.json model.onnx
""",
        {"": "model out --quiet"},
        {"out": _option("the ONNX file to write; its name ends in .onnx", _name, "FILE")},
    ),
}

_EPILOG = """examples:
  lowcal demo
  lowcal audit   test.csv --label y --probability p --groups sex,race --depth 2 --html audit.html
  lowcal fit     train.csv --label y --probability p --out model.json
  lowcal predict model.json new.csv --out calibrated.csv
  lowcal report  old.json new.json --html compared.html

exit codes:
  0 success (audit: satisfied)   1 audit violated   2 audit undecided   64 wrong usage   65 bad data
  70 a bug in lowcal             130 interrupted    141 output closed   143 terminated

'lowcal COMMAND --help' lists the options of a command.
"""


# --- the parser ---------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are a sentence and exit with 64, as `sysexits.h` has it."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(WRONG_USAGE, f"lowcal: {sentence(message)} Try '{self.prog} --help'.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not a choice, and name the nearest."""
        if action.choices is not None and value not in action.choices:
            choices = [str(one) for one in action.choices]
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r} (choose from {', '.join(choices)}).{suggest(str(value), choices)}"
            )


class _CommandParser(_Parser):
    """The parser of one command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is not known; a misspelt option by its own name, not by what is missing without it."""
        known = list(self._option_string_actions)
        for given in takewhile(lambda one: one != "--", args):
            name = given.split("=", 1)[0]
            if given.startswith("--") and name not in known and " " not in name:
                near = suggest(name[2:], [one[2:] for one in known]).replace(" '", " '--")
                self.error(f"there is no option {name}.{near}")
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return options, rest


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    layout: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    top = _Parser(
        prog="lowcal",
        description="Find the subpopulations on which a classifier's probabilities are miscalibrated, and recalibrate\n"
        "them (low-degree multicalibration).",
        epilog=_EPILOG,
        **layout,
    )
    top.add_argument("--version", action="version", version=f"lowcal {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser)
    for name, command in _COMMANDS.items():
        texts: dict[str, Any] = {"description": command.description, "epilog": command.epilog}
        one = commands.add_parser(name, help=command.short, **texts, **layout)
        options = {**_OPTIONS, **command.own}
        for title, names in command.titles.items():
            group: Any = one.add_argument_group(title) if title else one
            for either in (listed.split("|") for listed in names.split()):  # options between bars exclude each other
                place = group.add_mutually_exclusive_group() if len(either) > 1 else group
                for option in either:
                    place.add_argument(option, **options[option])
    return top
