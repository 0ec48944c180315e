"""`lowcal audit`: does the notion hold in the population these rows come from, and for whom not?"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

from lowcal.auditing.audits import audit
from lowcal.auditing.reports import AuditReport, MonitoringReport, Verdict, check_templates
from lowcal.cli.rows import LABEL, FileRows, given, open_file, read_rows, subpopulations_of
from lowcal.cli.terminal import DONE, UNDECIDED, VIOLATED, check_outputs, put
from lowcal.data.errors import printable
from lowcal.data.files.tables import STREAM

_CODES = {Verdict.SATISFIED: DONE, Verdict.VIOLATED: VIOLATED, Verdict.UNDECIDED: UNDECIDED}


def run(options: argparse.Namespace) -> int:
    """Audit a file and return the verdict as an exit code."""
    outputs = (options.html, options.json, options.markdown)
    check_outputs(*outputs, inputs=[options.file])
    if options.html:
        check_templates()
    with open_file(options) as table:
        rows = read_rows(options, table, *([options.against] if options.against else []))
        if options.by is not None:
            return _monitor(options, rows)
        report, *earlier = [_audit(options, rows, p) for p in rows.probability]
    before = earlier[0] if earlier else None
    one, other = (printable(", ".join(names)) for names in (rows.chosen.probability[0], rows.chosen.probability[-1]))
    # files first: nobody may be reading what is printed
    _write(options, rows, report, before, other)
    if STREAM not in outputs and not options.quiet:
        if before is not None:
            print(f"With {other}:\n{before}\n\nWith {one}:")
        print(report)
    return _CODES[report.verdict]


def _monitor(options: argparse.Namespace, rows: FileRows) -> int:
    """Audit a file by windows; a drift alarm counts as a violation."""
    found: MonitoringReport = audit(LABEL, rows.probability[0], rows.X, by=options.by, **_asked(options, rows))
    windows = {name: _named(one, rows) for name, one in found.windows.items()}
    classes = rows.classes or ()
    alarms = tuple(one.named(classes) if classes and one.label is not None else one for one in found.alarms)
    report = replace(found, windows=windows, alarms=alarms, notes=(*found.notes, *rows.notes))
    if options.html:
        put(report.to_html().encode(), options.html)
    if options.markdown:
        put(report.to_markdown().encode(), options.markdown)
    if options.json:
        put(_json(report.to_dict() | rows.sampled), options.json)
    if STREAM not in (options.html, options.json, options.markdown) and not options.quiet:
        print(report)
    return VIOLATED if report.is_failed else _CODES[report.verdict]


def _audit(options: argparse.Namespace, rows: FileRows, p: str | list[str]) -> AuditReport:
    report: AuditReport = audit(LABEL, p, rows.X, **_asked(options, rows))
    return _named(replace(report, notes=(*report.notes, *rows.notes)), rows)


def _asked(options: argparse.Namespace, rows: FileRows) -> dict[str, Any]:
    """Return what the library is asked."""
    return {
        "subpopulations": subpopulations_of(options, [name for name in rows.chosen.columns if name != options.by]),
        "sample_weight": rows.weight,
        "frequency_weight": rows.frequency,
        "random_state": options.seed,
        "classes": None if rows.classes is None else range(len(rows.classes)),
        **given(options, "notion", "alpha", "per_person", "min_share", "confidence", "method"),
    }


def _named(report: AuditReport, rows: FileRows) -> AuditReport:
    """Return a report with the names of the classes: the audit knows them by their positions."""
    if rows.classes is None or report.layout.classes is None:
        return report
    findings = tuple(one.named(rows.classes) for one in report.findings)
    return replace(report, layout=replace(report.layout, classes=rows.classes), findings=findings)


def _write(
    options: argparse.Namespace, rows: FileRows, report: AuditReport, before: AuditReport | None, other: str
) -> None:
    """Write the report in the formats asked for, with that of an earlier probability where there is one."""
    if options.html:
        put(report.to_html(before=before).encode(), options.html)
    if options.markdown:
        more = "" if before is None else f"\nBefore, with {other}:\n\n{before.to_markdown()}"
        put((report.to_markdown() + more).encode(), options.markdown)
    if options.json:
        data = report.to_dict() | rows.sampled | ({} if before is None else {"before": before.to_dict()})
        put(_json(data), options.json)


def _json(data: dict[str, Any]) -> bytes:
    return f"{json.dumps(data, indent=1, allow_nan=False, default=str)}\n".encode()
