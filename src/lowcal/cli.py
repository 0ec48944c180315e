"""The command `lowcal`: words in, files out. Errors are one sentence on standard error, never a traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lowcal import __version__
from lowcal.errors import LowcalError

DONE, INTERRUPTED, WRONG_USAGE, BAD_DATA = 0, 130, 64, 65

_EXAMPLES = """example:
  lowcal demo                  audit and mend a model on built-in data, write lowcal-demo.png
  lowcal demo --out results    the same, with the picture in the folder results
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors exit with 64, as `sysexits` has it."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(WRONG_USAGE, f"lowcal: {message}. Try 'lowcal --help'.\n")


def parser() -> argparse.ArgumentParser:
    """Return the command's grammar."""
    top = _Parser(
        prog="lowcal",
        description="Low-degree multicalibration: find the subpopulations on which a classifier's probabilities are "
        "wrong, and mend them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"lowcal {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    demo = commands.add_parser(
        "demo",
        help="audit and mend a model on built-in real data; no arguments, no network",
        description="Train a small overconfident network on UCI Adult, see how every level of the hierarchy judges "
        "it and on whom it is wrong, mend it, and compare on rows that neither has seen.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER", help="where the picture goes (default: here)"
    )
    demo.add_argument("--seed", type=int, default=0, help="seed of the split and of the network (default: 0)")
    demo.add_argument("--no-plot", action="store_true", help="print only")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    from lowcal.demo import run

    try:
        run(seed=options.seed, folder=None if options.no_plot else options.out)
    except LowcalError as error:
        print(f"lowcal: {error}", file=sys.stderr)
        return BAD_DATA
    except OSError as error:
        print(f"lowcal: could not write: {error}", file=sys.stderr)
        return BAD_DATA
    except KeyboardInterrupt:
        print("lowcal: interrupted", file=sys.stderr)
        return INTERRUPTED
    return DONE
