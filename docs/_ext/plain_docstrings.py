"""Docstrings of lowcal are plain text: formulas with bars, stars and underscores, names in backticks. Keep them so.

autodoc would read them as reStructuredText. Here each becomes reStructuredText that shows what is written: paragraphs
with their marks escaped, `names` as code (public ones as links), parameters as a list, examples and tables as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import lowcal

SECTIONS = ("Parameters", "Attributes", "Examples", "Returns", "Raises")
ENTRY = re.compile(r"^(\S.*?) : (.*)$")
CODE = re.compile(r"`([^`]+)`")


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}


def process(_app: Any, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Replace the lines of a docstring, in place, as autodoc wants it."""
    lines[:] = list(restructured(lines))


def restructured(lines: list[str]) -> Iterator[str]:
    """Yield the reStructuredText of a docstring, block by block."""
    section = ""
    for is_blank, block in groupby(_without_rules(lines), key=lambda line: not line.strip()):
        if is_blank:
            continue
        body = list(block)
        if body[0] in SECTIONS:
            section = body.pop(0)
            yield from (f".. rubric:: {section}", "")
        if body:
            yield from _block(body, section)
            yield ""


def _without_rules(lines: list[str]) -> list[str]:
    """Return the lines without the dashes under the names of sections."""
    kept = []
    for i, line in enumerate(lines):
        if not (i and lines[i - 1].strip() in SECTIONS and set(line.strip()) == {"-"}):
            kept.append(line)
    return kept


def _block(body: list[str], section: str) -> Iterator[str]:
    """Yield one block of lines that no blank line parts."""
    first = body[0]
    if first.lstrip().startswith(">>>"):
        yield from _verbatim(body, "pycon")
    elif first.startswith("|"):
        yield from _table(body)
    elif first.startswith("   "):
        yield from _verbatim(body, "text")
    elif section == "Parameters" and ENTRY.match(first):
        yield from _entries(body)
    else:
        yield from _text(body)


def _verbatim(body: list[str], language: str) -> Iterator[str]:
    yield from (f".. code-block:: {language}", "")
    yield from (f"   {line}" for line in body)


def _table(body: list[str]) -> Iterator[str]:
    """Yield a Markdown table as a list of rows; the second line only parts the head from the rest."""
    yield from (".. list-table::", "   :header-rows: 1", "")
    for line in [body[0], *body[2:]]:
        cells = [escape(cell.strip()) for cell in line.strip().strip("|").split("|")]
        yield from (f"   {'* - ' if i == 0 else '  - '}{cell}" for i, cell in enumerate(cells))


def _entries(body: list[str]) -> Iterator[str]:
    """Yield `name : what it is` as a definition list."""
    for line in body:
        entry = ENTRY.match(line)
        if entry:
            names = ", ".join(f"``{name.strip()}``" for name in entry[1].split(","))
            yield from (names, f"    {escape(entry[2])}")
        else:
            yield f"    {escape(line.strip())}"


def _text(body: list[str]) -> Iterator[str]:
    """Yield a paragraph, the lines of a list where they start with a star, and what follows `>>>` as an example."""
    for is_example, lines in groupby(_marked(body), key=lambda pair: pair[0]):
        part = [line for _, line in lines]
        if is_example:
            yield from ("", *_verbatim(part, "pycon"), "")
            continue
        yield ""
        for line in part:
            is_item = line.startswith(("* ", "- "))
            yield f"* {escape(line[2:])}" if is_item else ("  " if line.startswith("  ") else "") + escape(line.strip())


def _marked(body: list[str]) -> Iterator[tuple[bool, str]]:
    """Yield each line with whether it belongs to an example."""
    is_example = False
    for line in body:
        is_example = is_example or line.startswith(">>>")
        yield is_example, line


def escape(text: str) -> str:
    """Return the text with no mark that reStructuredText would read, but for names in backticks.

    >>> print(escape("|E[c*f]| of `p`, W_k and `audit`"))
    \\|E[c\\*f]\\| of ``p``, W\\_k and :py:obj:`~lowcal.audit`
    """
    parts = CODE.split(text)
    for i, part in enumerate(parts):
        parts[i] = _code(part) if i % 2 else re.sub(r"([\\*`|_<>])", r"\\\1", part)
    return "".join(parts)


def _code(name: str) -> str:
    bare = name.removeprefix("lowcal.").split("(")[0]
    if bare == name.removeprefix("lowcal.") and bare in lowcal.__all__ and bare not in lowcal._MODULES:
        return f":py:obj:`~lowcal.{bare}`"
    return f"``{name}``"
