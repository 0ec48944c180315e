"""Pages that are laid out as plain text, and names of lowcal in any page.

In a page of plain text a star of a formula stays a star, and a line that ends early is a line on the page. Everywhere,
`lowcal.name` in backticks becomes a link where the reference has that name, and long names in tables may break.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms import SphinxTransform

PLAIN = ("specification",)
#: Lines of the source are wrapped here; one that ends well before was ended on purpose.
WRAPPED = 100
#: A single star; two are bold and stay.
STAR = re.compile(r"(?<![*\\])\*(?!\*)")
#: What begins a new line on the page although the line before it is full: 3.1, a. and the like.
ENTRY = re.compile(r"\s*(\d+\.\d+|[a-z]\.|\([A-Z]\d\)) ")
BLOCK = re.compile(r"\s*([*#|>-]|$)")
NAME = re.compile(r"lowcal(\.\w+)+")
MARKS = re.compile(r"(?<=[./_:])(?=\w)")


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", keep_layout)
    app.connect("missing-reference", leave_code)
    app.add_transform(BreakNames)
    app.add_transform(LinkNames)
    return {"parallel_read_safe": True}


def keep_layout(_app: Any, page: str, source: list[str]) -> None:
    """Keep the stars and the line ends of a page of plain text."""
    if page in PLAIN:
        lines = source[0].splitlines()
        following = [*lines[1:], ""]
        source[0] = "\n".join(_stars(line) + _end(line, after) for line, after in zip(lines, following, strict=True))


def _stars(line: str) -> str:
    """Return a line with its stars escaped, outside code; the one that begins a list item stays."""
    lead = re.match(r"\s*(\* )?", line)
    start = lead.end() if lead else 0
    parts = re.split(r"(`[^`]*`)", line[start:])
    return line[:start] + "".join(part if part.startswith("`") else STAR.sub(r"\\*", part) for part in parts)


def _end(line: str, after: str) -> str:
    """Return a backslash, a line break in Markdown, where the next line of the same paragraph is a line of its own."""
    if BLOCK.fullmatch(line) or line.startswith("#") or BLOCK.match(after):
        return ""
    return "\\" if len(line) < WRAPPED or ENTRY.match(after) else ""


class BreakNames(SphinxTransform):
    """Let long names in tables break after a dot, a slash, a colon or an underscore, and nowhere else."""

    default_priority = 390

    def apply(self, **_: Any) -> None:
        """Put a break that is not copied with the text after each mark."""
        for entry in self.document.findall(nodes.entry):
            for literal in list(entry.findall(nodes.literal)):
                parts = [part for part in MARKS.split(literal.astext()) if part]
                if len(parts) > 2:
                    literal.children = []
                    for part in parts:
                        literal += [nodes.Text(part), nodes.raw("", "<wbr>", format="html")]


class LinkNames(SphinxTransform):
    """Make `lowcal.name` a reference that may stay unresolved: a name that the reference lacks is plain code."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        """Wrap every such literal that is not in a link yet."""
        for literal in list(self.document.findall(nodes.literal)):
            name = "".join(part.astext() for part in literal.findall(nodes.Text) if part.parent is literal)
            if NAME.fullmatch(name) and not isinstance(literal.parent, nodes.reference | pending_xref):
                target = pending_xref(
                    "", refdomain="py", reftype="obj", reftarget=name, refexplicit=True, refdoc=self.env.docname
                )
                target["may_be_missing"] = True
                literal.replace_self(target)
                target += literal


def leave_code(_app: Any, _env: Any, node: pending_xref, code: nodes.Element) -> nodes.Element | None:
    """Return the plain code of a name that the reference lacks; `tests/docs/test_docs.py` checks that it exists."""
    return code if node.get("may_be_missing") else None
