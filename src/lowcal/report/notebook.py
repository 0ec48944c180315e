"""The audit as a fragment for notebooks: the verdict and the worst groups, in the notebook's own colours."""

from __future__ import annotations

from lowcal.report import words
from lowcal.report.source import Audit, Found
from lowcal.report.text import digits, html, name, number, share, shorten

#: Every rule begins with the fragment's own class, so that nothing else in the notebook changes.
_STYLE = """
.lowcal-audit { max-width: 60rem; line-height: 1.45; }
.lowcal-audit .lowcal-verdict { border-left: .4rem solid; padding: .1rem .8rem; margin: .3rem 0; }
.lowcal-audit p { margin: .3rem 0; }
.lowcal-audit table { border-collapse: collapse; background: transparent; color: inherit; margin: .5rem 0; }
.lowcal-audit th, .lowcal-audit td { padding: .15rem .6rem; text-align: right; color: inherit; }
.lowcal-audit tr { background: transparent; border-top: 1px solid rgba(128, 128, 128, .4); }
.lowcal-audit th:first-child, .lowcal-audit .lowcal-text { text-align: left; }
.lowcal-audit caption { text-align: left; color: inherit; opacity: .85; }
"""


def fragment(audit: Audit, n: int = 10) -> str:
    """Return the verdict, the n worst groups and the notes as an element with its own style."""
    said = words.verdict(audit, name(audit.proof.subpopulation))
    notes = "".join(f"<p><b>Note:</b> {html(shorten(note, 1000))}</p>" for note in audit.notes)
    title = f"{audit.notion} at {audit.tolerance}: {words.title(audit).lower()}"
    return (
        f'<div class="lowcal-audit"><style>{_STYLE}</style><div class="lowcal-verdict"><p><b>{html(title)}</b></p>'
        f"<p>{said}</p>{notes}</div>{_table(audit, audit.shown(n))}</div>"
    )


def _table(audit: Audit, shown: tuple[Found, ...]) -> str:
    label = ["Label"] if audit.layout.d > 1 else []
    heads = ["Group", *label, "Share", "Error", "Lower", "Upper", "Per person", "Lower", "Upper"]
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    rows = "".join(f"<tr>{_row(audit, one)}</tr>" for one in shown)
    more = len(audit.findings) - len(shown)
    rest = f" The worst {len(shown)} of {len(audit.findings):,} groups; to_html(path) shows more." if more else ""
    caption = f"Errors of groups, with {audit.confidence * 100:.4g}% intervals for all at once.{rest}"
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(audit: Audit, one: Found) -> str:
    errors = (*one.interval("violation"), *one.interval("per_person"))
    sizes = [number(v, digits(audit.tolerance.largest), signed=True) for v in errors]
    label = f'<td class="lowcal-text">{html(shorten(one.label, 40))}</td>' if audit.layout.d > 1 else ""
    cells = [share(one.mass), *sizes]
    return f'<th scope="row">{name(one.subpopulation)}</th>{label}{"".join(f"<td>{text}</td>" for text in cells)}'
