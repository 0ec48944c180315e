"""Runs the Python blocks of a Markdown page as a reader would: in order, in one session."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def run(page: Path) -> tuple[dict[str, object], str]:
    """Execute every python block; a text block right after one must be what it prints. Return names and all output."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed: list[str] = []
    before = ""
    for kind, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            printed.append(execute(body, page.name, names))
        elif kind == "text" and before == "python":
            assert body.rstrip() == printed[-1].rstrip(), f"{page.name} shows what is not printed"
        before = kind
    assert printed, f"{page.name} has no Python"
    return names, "".join(printed)


def execute(block: str, name: str, names: dict[str, object]) -> str:
    """Run one block and return what it prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(block, name, "exec", dont_inherit=True), names)
    return out.getvalue()


def broken_links(page: Path) -> list[str]:
    """Return the files that the page links to and that do not exist."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    return [target for target in targets if not (page.parent / target).exists()]
