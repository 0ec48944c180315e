"""Exit codes, and the error of a command that was called wrongly."""

from __future__ import annotations

from lowcal.data.errors import LowcalError

#: The audit's own: satisfied, violated, undecided.
DONE, VIOLATED, UNDECIDED = 0, 1, 2
#: The numbers of sysexits.h, and those of a shell for a signal.
WRONG_USAGE, BAD_DATA, BUG, INTERRUPTED, TERMINATED, BROKEN_PIPE = 64, 65, 70, 130, 143, 141


class WrongUsage(LowcalError):
    """The options do not go together, or with this file."""
