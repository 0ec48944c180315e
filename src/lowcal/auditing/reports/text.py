"""Text and numbers as they may stand in a page: whatever comes from data is shown, never obeyed."""

from __future__ import annotations

import re
from html import escape
from math import ceil, isfinite, log10

#: Names are cut after this many characters, so that no name can make a page long.
LONGEST = 160

_HIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_MARKED = re.compile(r"([\\`*_{}\[\]()#+!|~])")
_DIRECTED = re.compile("[\u202a-\u202e\u2066-\u2069]")


def shown(value: object) -> str:
    """Return text that can be written as UTF-8 and parsed: what neither can hold becomes the replacement character."""
    return _HIDDEN.sub("\ufffd", str(value))


def shorten(value: object, length: int = LONGEST) -> str:
    """Return at most `length` characters.

    >>> shorten("abcdef", 4)
    'abc…'
    """
    text = shown(value)
    return text if len(text) <= length else text[: length - 1] + "…"


def html(value: object) -> str:
    """Return text for an element or a quoted attribute.

    >>> html("<b a='1'>&")
    '&lt;b a=&#x27;1&#x27;&gt;&amp;'
    """
    return escape(shown(value)).replace("\r", "&#13;")


def marked(value: object, length: int = LONGEST) -> str:
    r"""Return text for Markdown, on one line, with nothing that Markdown or HTML would read.

    >>> print(marked("a|b <i>*c*\nd"))
    a\|b &lt;i&gt;\*c\* d
    """
    flat = " ".join(_DIRECTED.sub("", shorten(value, length)).split())
    return _MARKED.sub(r"\\\1", escape(flat, quote=False))


def digits(alpha: float) -> int:
    """Return how many decimals show a hundredth of alpha; at least 4.

    >>> digits(0.01), digits(0.0002)
    (4, 6)
    """
    return max(4, min(12, ceil(-log10(alpha)) + 2)) if alpha > 0 else 4


def number(value: float, decimals: int = 4, signed: bool = False) -> str:
    """Return a number with a true minus sign; a dash for one that is not there.

    >>> number(-0.01234), number(0.5, 2, signed=True), number(float("nan"))
    ('−0.0123', '+0.50', '–')
    """  # noqa: RUF002
    if not isfinite(value):
        return "–" if value != value else ("∞" if value > 0 else "−∞")  # noqa: RUF001
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    return text.replace("-", "−")  # noqa: RUF001


def percent(value: float) -> str:
    """Return a share as a percentage of two digits, for sentences.

    >>> percent(0.01), percent(0.3249), percent(1.0)
    ('1%', '32%', '100%')
    """
    return f"{100 * value:.2g}%" if value < 0.995 else "100%"


def several(n: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    >>> several(1, "group"), several(2, "group")
    ('1 group', '2 groups')
    """
    return f"{n:,} {one if n == 1 else (many or one + 's')}"
