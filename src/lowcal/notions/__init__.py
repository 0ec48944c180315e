"""The notions of the hierarchy, and their names."""

from __future__ import annotations

import re
from functools import cache

from lowcal.data.errors import InvalidInput, suggest
from lowcal.notions.base import Notion, Suprema, Witness
from lowcal.notions.finite import Full, LowDegree, Multiaccuracy
from lowcal.notions.smooth import Smooth

__all__ = ["Full", "LowDegree", "Multiaccuracy", "Notion", "Smooth", "Suprema", "Witness", "parse_notion"]

_EXAMPLES = ("multiaccuracy", "degree-1", "degree-2", "degree-3", "degree-4", "smooth", "full-0.1", "full-0.05")


def parse_notion(text: str | Notion) -> Notion:
    """Return the notion of this name; a notion passes through. `str(notion)` is the inverse.

    >>> parse_notion("degree-2"), parse_notion("full-0.1"), parse_notion("smooth")
    (LowDegree(degree=2), Full(width=0.1), Smooth())
    """
    if not isinstance(text, str):
        if isinstance(text, Notion) and not isinstance(text, type):
            return text
        raise InvalidInput(
            f"A notion is a name such as 'degree-2' or an object with its methods, but {text!r} was given."
        )
    return _parse(text)


@cache
def _parse(text: str) -> Notion:
    word = text.strip().lower()
    if word == "multiaccuracy":
        return Multiaccuracy()
    if word == "smooth":
        return Smooth()
    if match := re.fullmatch(r"degree-(\d{1,99})", word):
        return LowDegree(int(match[1]))
    if match := re.fullmatch(r"full-(\d*\.?\d+(?:e-?\d+)?)", word):
        return Full(float(match[1]))
    raise InvalidInput(
        f"Unknown notion {text!r}. Valid: 'multiaccuracy', 'degree-2' (or another degree), 'smooth', "
        f"'full-0.1' (or another width).{suggest(word, _EXAMPLES)}"
    )
