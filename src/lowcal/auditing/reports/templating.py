"""Templates (jinja2, an extra) filled with plain values: whatever comes from data is shown, never obeyed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowcal.auditing.reports.text import count, html, number, several, share, shorten
from lowcal.data.errors import MissingExtra

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """Return a template filled with values; all that is not a template's own is escaped."""
    return _environment().get_template(template).render(values)


def check_templates() -> None:
    """Refuse to go on where pages can't be made, before the work for one begins."""
    _environment()


@cache
def asset(file: str) -> str:
    """Return a style sheet or a script as it stands in its file."""
    return (FOLDER / file).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtra("An HTML report needs jinja2: pip install 'lowcal[report]'.") from error

    def text(value: object) -> Markup:
        """Return a value as text of the page: what is HTML already stays, all else is escaped."""
        return value if isinstance(value, Markup) else Markup(html(value))

    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        finalize=text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"count": count, "number": number, "several": several, "share": share, "shorten": shorten}
    return made
