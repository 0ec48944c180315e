"""Errors that say what is wrong, what was given and what to do.

Every error raised on purpose by lowcal is a `LowcalError`. Those about values are also `ValueError`,
which is what scikit-learn and its users catch. Also what messages are made of.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class LowcalError(Exception):
    """The base of all errors of lowcal."""


class InvalidInput(LowcalError, ValueError):
    """A value given by the user can't be used; the message names it and the remedy."""


class MissingColumn(InvalidInput, KeyError):
    """The data lacks a column that was asked for."""

    __str__ = Exception.__str__  # KeyError would print the message in quotes


class DamagedFile(InvalidInput):
    """A saved model can't be read: the file is cut off, was changed, or is not lowcal's."""


class CannotWrite(LowcalError, OSError):
    """A file can't be written; what was there before is kept."""


class MissingExtra(LowcalError, ImportError):
    """An optional library is needed that is not installed."""


class CardFull(LowcalError, MemoryError):
    """Rows do not fit into the memory of a graphics card; the message says how to stream them."""


class ClusterFailed(LowcalError, RuntimeError):
    """The workers of a cluster could not finish a pass over the rows."""


class AuditWarning(UserWarning):
    """An audit can't be trusted: its rows were used to fit the model, or look as if they were."""


class FitWarning(UserWarning):
    """A fit may have made a model worse; the message says how, and what to do."""


class FitInterrupted(LowcalError, KeyboardInterrupt):
    """The fit was interrupted; what was reached so far is in `.fit`."""

    def __init__(self, message: str, fit: object) -> None:
        super().__init__(message)
        self.fit = fit


class CheckFailed(LowcalError, AssertionError):
    """A notion or a hypothesis class breaks a rule that lowcal relies on; the message names it and the remedy."""


# --- messages -----------------------------------------------------------------------------------------------------


def load_extra(name: str, remedy: str) -> Any:
    """Import an optional library; where it is missing, or can't be imported, say what to do."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(remedy) from error


def printable(text: str) -> str:
    """Return text as it may reach a terminal: line breaks, escapes and other controls are spelled out.

    Names of groups, columns and files come from the user's data and could move the cursor or hide what follows.

    >>> print(printable("g=a\\nb"))
    g=a\\nb
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def sentence(text: str) -> str:
    """Return text with a full stop, unless it ends in one: names, paths and reasons from elsewhere may.

    >>> sentence("no row belongs to city=St."), sentence("Wrote out.csv")
    ('no row belongs to city=St.', 'Wrote out.csv.')
    """
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."


def abbreviate(text: str, length: int = 60) -> str:
    """Return at most `length` characters: lists in braces keep their first and last, then the middle is left out.

    The ends of names tell groups apart. Two names may look alike then: full ones are what identifies a group.

    >>> abbreviate("job in {clerk, cook, driver, nurse} & age>40", 40), abbreviate("education=Some-college", 12)
    ('job in {clerk, …, nurse} & age>40', 'educat…llege')
    """
    if len(text) > length:
        text = re.sub(r"\{([^{}]*)\}", _few, text)
    tail = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - tail]}…{text[-tail:]}"


def _few(braces: re.Match[str]) -> str:
    """Keep the first and the last of a list in braces: those of a tree follow one another in its order."""
    listed = braces[1].split(", ")
    return braces[0] if len(listed) <= 2 else f"{{{listed[0]}, …, {listed[-1]}}}"


def brief(name: object) -> str:
    """Return a name for a line of text: printable, and abbreviated."""
    return abbreviate(printable(str(name)))


def brief_names(names: Iterable[str]) -> list[str]:
    """Return different names for a column of text: printable, abbreviated, and numbered where two would look alike.

    >>> brief_names([f"age in {{20, {one}, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90}}" for one in (24, 25)])
    ['age in {20, …, 90}', 'age in {20, …, 90} (2)']
    """
    known: dict[str, list[str]] = {}
    shown = []
    for name in names:
        text = brief(name)
        alike = known.setdefault(text, [])
        alike += [name] if name not in alike else []
        place = alike.index(name) + 1
        shown.append(text if place == 1 else f"{text} ({place})")
    return shown


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return rows of cells as indented lines; `sides` are the sides, l or r, on which columns are aligned.

    >>> aligned([["a", "1"], ["bc", "-10"]], "lr")
    ['  a     1', '  bc  -10']
    """
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    places = [f"{{:{'<' if side == 'l' else '>'}{w}}}" for side, w in zip(sides, wide, strict=True)]
    return [("  " + "  ".join(places).format(*row)).rstrip() for row in rows]


def some_of(values: Sequence[object], most: int = 10) -> str:
    """List the first values, and how many more there are.

    >>> some_of("abcde", 3)
    "'a', 'b', 'c' and 2 more"
    """
    shown = ", ".join(repr(value) for value in values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def missing_column(where: str, name: object, names: Sequence[str]) -> MissingColumn:
    """Return the error of a column that is not there; it names the nearest one."""
    known = some_of(names) if names else "none"
    return MissingColumn(f"{where} has no column {name!r}; it has {known}.{suggest(str(name), names)}")


def suggest(given: str, valid: Iterable[str]) -> str:
    """Name the nearest valid word, for the end of a message.

    >>> suggest("degre-2", ["degree-2", "smooth"])
    " Did you mean 'degree-2'?"
    >>> suggest("banana", ["degree-2", "smooth"])
    ''
    """
    near = get_close_matches(given, list(valid), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_choice(name: str, given: object, valid: Iterable[str]) -> None:
    """Refuse a word that is none of the valid ones, and name the nearest."""
    known = list(valid)
    if given not in known:
        raise InvalidInput(f"Unknown {name} {given!r}; valid: {', '.join(known)}.{suggest(str(given), known)}")
