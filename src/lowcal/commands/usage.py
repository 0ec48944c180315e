"""Exit codes, limits, and the error of a command that was called wrongly."""

from __future__ import annotations

from lowcal.errors import LowcalError

#: The audit's own: satisfied, violated, undecided.
DONE, VIOLATED, UNDECIDED = 0, 1, 2
#: The numbers of sysexits.h, and those of a shell for a signal.
WRONG_USAGE, BAD_DATA, BUG, INTERRUPTED, TERMINATED, BROKEN_PIPE = 64, 65, 70, 130, 143, 141

#: Of a larger file a random sample is used, so that memory stays below 1.5 GB: so many rows of two classes and listed
#: groups, else about so many rows times the numbers that each of them becomes.
MOST_ROWS, MOST_NUMBERS = {"fit": 14_000_000, "audit": 12_000_000}, 6_000_000


class WrongUsage(LowcalError):
    """The options do not go together, or with this file."""
