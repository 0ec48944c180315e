"""`lowcal audit`: does the notion hold in the population these rows come from, and for whom not?

And `lowcal report`: saved audits compared, of several models or months.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from hashlib import file_digest, sha256
from typing import Any

from lowcal.auditing.audits import audit
from lowcal.auditing.monitoring import MonitoringReport
from lowcal.auditing.page import environment as check_templates
from lowcal.auditing.reports import (
    AuditComparison,
    AuditReport,
    Origin,
    SavedAudit,
    Verdict,
)
from lowcal.cli import DONE, UNDECIDED, VIOLATED
from lowcal.cli.main import WrongUsage, check_outputs, put
from lowcal.cli.models import Recalibrator, load, probability_of
from lowcal.cli.rows import LABEL, FileRows, given, open_file, read_rows, subpopulations_of
from lowcal.data.batches import files_of
from lowcal.data.errors import printable
from lowcal.data.files import STREAM

_CODES = {Verdict.SATISFIED: DONE, Verdict.VIOLATED: VIOLATED, Verdict.UNDECIDED: UNDECIDED}


def run_report(options: argparse.Namespace) -> int:
    """Compare audits, print a table, and write the page."""
    if len(options.audits) < 2:
        raise WrongUsage("A comparison needs at least two audits; give their JSON files.")
    check_outputs(options.html, inputs=options.audits)
    if options.html:
        check_templates()
    compared = AuditComparison.of([SavedAudit.read(path) for path in options.audits])
    if options.html:
        put(compared.to_html().encode(), options.html)
    if options.html != STREAM and not options.quiet:
        print(compared)
    return DONE


def run_audit(options: argparse.Namespace) -> int:
    """Audit a file and return the verdict as an exit code."""
    check_outputs(options.html, options.json, options.markdown, inputs=[options.file])
    if options.html:
        check_templates()
    if options.model and (not options.html or options.by):
        raise WrongUsage("--model explains predictions on the page of one audit; give --html, and leave out --by.")
    explained = {}
    with open_file(options) as table:
        rows = read_rows(options, table, *([options.against] if options.against else []))
        if options.by is not None:
            return _monitor(options, rows)
        report, *earlier = [_audit(options, rows, k) for k in range(len(rows.probability))]
        if options.model:
            predictor, metadata = load(options.model)
            as_fitted = argparse.Namespace(probability=None, classes=None)
            columns = probability_of(as_fitted, table, predictor, metadata)
            explained = Recalibrator(predictor, *columns, table).most_changed()
    before = earlier[0] if earlier else None
    one, other = (printable(", ".join(names)) for names in (rows.chosen.probability[0], rows.chosen.probability[-1]))
    shown, markdown, more = "", "", {}
    if before is not None:
        shown, more = f"With {other}:\n{before}\n\nWith {one}:\n", {"before": _saved(before)}
        markdown = f"\nBefore, with {other}:\n\n{before.to_markdown()}"
    _write(
        options,
        lambda: f"{shown}{report}",
        html=lambda: report.to_html(before=before, explain=explained),
        markdown=lambda: report.to_markdown() + markdown,
        json=lambda: _json(_saved(report) | rows.sampled | more),
    )
    return _CODES[report.verdict]


def _audit(options: argparse.Namespace, rows: FileRows, k: int) -> AuditReport:
    """Audit the k-th set of probabilities."""
    report: AuditReport = audit(LABEL, rows.probability[k], rows.X, **_asked(options, rows))
    return _named(replace(report, notes=(*report.notes, *rows.notes), origin=_origin(options, rows, k)), rows)


def _monitor(options: argparse.Namespace, rows: FileRows) -> int:
    """Audit a file by windows; a drift alarm counts as a violation."""
    found: MonitoringReport = audit(LABEL, rows.probability[0], rows.X, by=options.by, **_asked(options, rows))
    windows = {name: _named(one, rows) for name, one in found.windows.items()}
    classes = rows.classes or ()
    alarms = tuple(one.named(classes) if classes and one.label is not None else one for one in found.alarms)
    notes, source = (*found.notes, *rows.notes), _origin(options, rows, 0)
    report = replace(found, windows=windows, alarms=alarms, notes=notes, origin=source)
    forms = {"html": report.to_html, "markdown": report.to_markdown}
    _write(options, report.__str__, **forms, json=lambda: _json(_saved(report) | rows.sampled))
    return VIOLATED if report.is_failed else _CODES[report.verdict]


def _asked(options: argparse.Namespace, rows: FileRows) -> dict[str, Any]:
    """Return what the library is asked."""
    return {
        "subpopulations": subpopulations_of(options, [name for name in rows.chosen.columns if name != options.by]),
        "random_state": options.seed,
        "classes": None if rows.classes is None else range(len(rows.classes)),
        **rows.weights,
        **given(options, "notion", "alpha", "per_person", "min_share", "confidence", "method"),
    }


def _origin(options: argparse.Namespace, rows: FileRows, k: int) -> Origin:
    """Return what was audited; the file is hashed only if a report file records it, and a pipe never."""
    model, file = ", ".join(rows.chosen.probability[k]), "" if options.file == STREAM else options.file
    files = files_of(file) if file and (options.html or options.json) else []
    digest = sha256()
    if not files or not all(os.path.isfile(name) for name in files):
        return Origin(model, options.label, file, "", options.command_line)
    for name in files:
        with open(name, "rb") as stream:
            file_digest(stream, lambda: digest)
    return Origin(model, options.label, file, digest.hexdigest(), options.command_line)


def _named(report: AuditReport, rows: FileRows) -> AuditReport:
    """Return a report with the names of the classes: the audit knows them by their positions."""
    if rows.classes is None or report.layout.classes is None:
        return report
    findings = tuple(one.named(rows.classes) for one in report.findings)
    return replace(report, layout=replace(report.layout, classes=rows.classes), findings=findings)


def _saved(report: AuditReport | MonitoringReport) -> dict[str, Any]:
    """Return the report as plain data, and what was audited."""
    return report.to_dict() | {"origin": report.origin.to_dict()}


def _json(data: dict[str, Any]) -> str:
    return f"{json.dumps(data, indent=1, allow_nan=False, default=str)}\n"


def _write(options: argparse.Namespace, text: Callable[[], str], **forms: Callable[[], str]) -> None:
    """Write the files asked for, then print: standard output may be closed."""
    for name, form in forms.items():
        if getattr(options, name):
            put(form().encode(), getattr(options, name))
    if STREAM not in (options.html, options.json, options.markdown) and not options.quiet:
        print(text())
