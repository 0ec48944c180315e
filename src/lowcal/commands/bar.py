"""How far a command is: a line on a terminal, nothing in a pipe."""

from __future__ import annotations

import argparse
import sys
import time
from types import TracebackType

from lowcal.commands.talk import draw
from lowcal.errors import printable


def is_wanted(options: argparse.Namespace) -> bool:
    """Whether progress is shown: as asked for, or else if standard error is a terminal."""
    if options.quiet:
        return False
    return bool(sys.stderr.isatty() if options.progress is None else options.progress)


class Bar:
    """A line that is written over and over, and goes when the work is done."""

    def __init__(self, what: str, total: int, is_shown: bool) -> None:
        self.what, self.total, self.is_shown = printable(what), max(1, total), is_shown
        self.last = 0.0

    def tell(self, done: int) -> None:
        """Show how much is done, ten times a second at most."""
        if self.is_shown and time.monotonic() - self.last > 0.1:
            self.last = time.monotonic()
            share = min(1.0, done / self.total)
            draw(f"\r{self.what} [{'#' * int(30 * share):<30}] {share:4.0%}")

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_shown and self.last:
            draw("\r\x1b[K")
