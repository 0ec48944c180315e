"""The audit as Markdown, for pull requests and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowcal.auditing.reports import words
from lowcal.auditing.reports.text import marked, share, shorten
from lowcal.data.errors import abbreviate, brief_names

if TYPE_CHECKING:
    from lowcal.auditing.reports.audit_report import AuditReport, Finding

#: Notes and lists of classes are cut after this many characters.
LONG = 1000


def as_markdown(audit: AuditReport, n: int = 10) -> str:
    """Return the verdict, the figures, the n worst groups, the notes and where they come from."""
    lines = [f"# Calibration audit: {words.title(audit)}", ""]
    lines += [words.verdict(audit, marked(abbreviate(audit.proof.subpopulation))), ""]
    lines += [f"- {marked(title)}: **{marked(value)}** ({marked(hint)})" for title, value, hint in words.figures(audit)]
    lines += ["", *_table(audit, audit.shown(n)), ""]
    for note in audit.notes:
        lines += [f"> Note: {marked(note, LONG)}", ""]
    made = [f"{title}: {shorten(value, 200)}" for title, value in words.provenance(audit)]
    return "\n".join([*lines, marked("; ".join(made) + ".", LONG), ""])


def _table(audit: AuditReport, shown: tuple[Finding, ...]) -> list[str]:
    label = ["label"] if audit.layout.d > 1 else []
    heads = ["group", *label, "share", "error", "lower", "upper", "per person", "lower", "upper", "predictions are"]
    text = 1 + len(label)
    rules = ["---"] * text + ["---:"] * (len(heads) - text - 1) + ["---"]
    names = brief_names(" ".join(one.subpopulation.split()) for one in shown)
    rows = [heads, rules, *(_row(audit, one, name) for one, name in zip(shown, names, strict=True))]
    more = len(audit.findings) - len(shown)
    return ["| " + " | ".join(row) + " |" for row in rows] + (["", f"and {more:,} more groups."] if more else [])


def _row(audit: AuditReport, one: Finding, group: str) -> list[str]:
    label = [marked(one.label, 40)] if audit.layout.d > 1 else []
    return [marked(group), *label, share(one.mass), *words.errors(audit, one), words.judged(one)]
