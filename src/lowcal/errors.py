"""Errors that say what is wrong, what was given and what to do.

Every error raised on purpose by lowcal is a `LowcalError`. Those about values are also `ValueError`,
which is what scikit-learn and its users catch.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class LowcalError(Exception):
    """The base of all errors of lowcal."""


class InvalidInput(LowcalError, ValueError):
    """A value given by the user can't be used; the message names it and the remedy."""


class MissingColumn(InvalidInput, KeyError):
    """A column was asked for that the data does not have."""

    __str__ = Exception.__str__  # KeyError would print the message in quotes


class DamagedFile(InvalidInput):
    """A saved model can't be read: the file is cut off, was changed, or is not lowcal's."""


class CannotWrite(LowcalError, OSError):
    """A file can't be written; what was there before is kept."""


class MissingExtra(LowcalError, ImportError):
    """An optional library is needed that is not installed."""


class AuditWarning(UserWarning):
    """An audit can't be believed as it stands: its rows were used to fit the model, or look as if they were."""


class FitWarning(UserWarning):
    """A fit may have made a model worse; the message says how, and what to do."""


class FitInterrupted(LowcalError, KeyboardInterrupt):
    """The fit was interrupted; what was reached so far is in `.fit`."""

    def __init__(self, message: str, fit: object) -> None:
        super().__init__(message)
        self.fit = fit


class CheckFailed(LowcalError, AssertionError):
    """A notion or a hypothesis class breaks a rule that lowcal relies on; the message names it and the remedy."""


def printable(text: str, keep: str = "") -> str:
    """Return text as it may reach a terminal: line breaks, escapes and other controls are spelled out.

    Names of groups, columns and files come from the user's data and could move the cursor or hide what follows.

    >>> print(printable("g=a\\nb"))
    g=a\\nb
    """
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def suggest(given: str, valid: Iterable[str]) -> str:
    """Name the nearest valid word, for the end of a message.

    >>> suggest("degre-2", ["degree-2", "smooth"])
    " Did you mean 'degree-2'?"
    >>> suggest("banana", ["degree-2", "smooth"])
    ''
    """
    near = get_close_matches(given, list(valid), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
