"""`python -m experiments`: the paper's figures, tables and examples, computed anew, each claim with a verdict."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from experiments.networks import ENGINES
from experiments.targets import ALIASES, TARGETS, run
from lowcal.data.errors import LowcalError

INTERRUPTED = 130

_EXAMPLES = f"""examples:
  python -m experiments counterexample
  python -m experiments figure-1 --seeds 5 --out results
  python -m experiments all --small

Targets: {", ".join(TARGETS)}, all ({", ".join(f"{short} is {name}" for short, name in ALIASES.items())}).
A run that is interrupted goes on where it stopped. Torch trains the networks where it is installed (extra
[experiments]), else scikit-learn; peers (extra [peers]) and data that are absent are left out with a sentence.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute a target, print its verdicts and write it to the folder; return the exit code."""
    grammar = parser()
    options = grammar.parse_args(arguments)
    try:
        run(**vars(options))
    except (LowcalError, OSError) as error:
        grammar.error(str(error))
    except KeyboardInterrupt:
        print(f"\nexperiments: interrupted; finished parts are kept in {options.out}", file=sys.stderr)
        return INTERRUPTED
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command's grammar: every option is an argument of `run`."""
    found = argparse.ArgumentParser(
        prog="python -m experiments",
        description="Recompute the paper's experiment, hierarchy, sample sizes and examples, and judge each claim.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("target", metavar="TARGET", nargs="?", default="all", help="see below (default: all)")
    add("--out", metavar="FOLDER", default="results", help="where results and finished parts go (default: results)")
    add("--seeds", type=int, default=5, metavar="N", help="number of random data sets (default: 5)")
    add("--engine", choices=ENGINES, default="auto", help="what trains the networks (default: auto)")
    add("--data", metavar="FOLDER", help="folder of the real data sets (default: the variable LOWCAL_DATA)")
    add("--small", action="store_true", help="tiny sizes, to see that everything runs")
    add(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=sys.stderr.isatty(),
        help="report each finished part (default: on a terminal)",
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
