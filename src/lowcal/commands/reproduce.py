"""`lowcal reproduce`: the paper's figures, tables and examples, computed anew, each claim with a verdict."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lowcal.commands.usage import DONE
from lowcal.errors import InvalidInput


def run(options: argparse.Namespace) -> int:
    """Compute a target, print its verdicts and write it to the folder."""
    from lowcal.reproduction import run as reproduce

    try:
        Path(options.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"The folder {options.out} can't be made: {error.strerror}.") from error
    shows = sys.stderr.isatty() if options.progress is None else options.progress
    reproduce(
        options.target,
        options.out,
        options.seeds,
        engine=options.engine,
        data=options.data,
        small=options.small,
        progress=shows,
    )
    return DONE
