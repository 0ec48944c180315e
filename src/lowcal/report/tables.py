"""Tables of the page: plain HTML that a script may sort and filter, and that is complete without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lowcal.report.text import html


@dataclass(frozen=True)
class Column:
    """A column: its heading, what it holds ("number", "text" or "picture"), and what the heading means."""

    heading: str
    kind: str = "number"
    hint: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell with a class of its own, for heat maps; plain cells are text."""

    text: str
    kind: str


def table(
    key: str,
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[str | Cell]],
    *,
    row_heading: int = 0,
    is_tool: bool = False,
    what: str = "groups",
) -> str:
    """Return a table in a region that scrolls and takes the focus; all texts are HTML already, headings are not.

    `row_heading` is the column that names a row. With `is_tool`, a script offers a filter and sorting.
    """
    heads = "".join(_head(column) for column in columns)
    body = "\n".join(_row(row, columns, row_heading) for row in rows)
    tool = f' data-tool="{html(what)}"' if is_tool else ""
    return (
        f'<div class="scroll" role="region" aria-labelledby="{key}-caption" tabindex="0">'
        f'<table id="{key}"{tool}><caption id="{key}-caption">{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _head(column: Column) -> str:
    hint = f' title="{html(column.hint)}"' if column.hint else ""
    kind = "" if column.kind == "number" else f' class="{column.kind}"'
    return f'<th scope="col"{kind}{hint}>{html(column.heading)}</th>'


def _row(row: Sequence[str | Cell], columns: Sequence[Column], row_heading: int) -> str:
    cells = [
        f'<th scope="row">{_text(cell)}</th>' if k == row_heading else _cell(cell, column)
        for k, (cell, column) in enumerate(zip(row, columns, strict=True))
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(cell: str | Cell, column: Column) -> str:
    if isinstance(cell, Cell):
        return f'<td class="{cell.kind}">{cell.text}</td>'
    kind = "" if column.kind == "number" else f' class="{column.kind}"'
    return f"<td{kind}>{cell}</td>"


def _text(cell: str | Cell) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values as a list of descriptions; both are HTML already."""
    return f"<dl>{''.join(f'<div><dt>{a}</dt><dd>{b}</dd></div>' for a, b in rows)}</dl>"
