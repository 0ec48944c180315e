"""`lowcal audit`: does the notion hold in the population these rows come from, and for whom not?"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from hashlib import sha256
from typing import Any

from lowcal.auditing.audits import audit
from lowcal.auditing.reports import AuditReport, MonitoringReport, Origin, Verdict, check_templates
from lowcal.cli.predict import Recalibrator, load, probability_of
from lowcal.cli.rows import LABEL, FileRows, given, open_file, read_rows, subpopulations_of
from lowcal.cli.terminal import DONE, UNDECIDED, VIOLATED, WrongUsage, check_outputs, put
from lowcal.data.errors import printable
from lowcal.data.files.batches import files_of
from lowcal.data.files.tables import STREAM, FileTable
from lowcal.rows.explaining import Explanation

_CODES = {Verdict.SATISFIED: DONE, Verdict.VIOLATED: VIOLATED, Verdict.UNDECIDED: UNDECIDED}


def run(options: argparse.Namespace) -> int:
    """Audit a file and return the verdict as an exit code."""
    outputs = (options.html, options.json, options.markdown)
    check_outputs(*outputs, inputs=[options.file])
    if options.html:
        check_templates()
    if options.model and (not options.html or options.by):
        raise WrongUsage("--model explains predictions on the page of one audit; give --html, and leave out --by.")
    with open_file(options) as table:
        rows = read_rows(options, table, *([options.against] if options.against else []))
        if options.by is not None:
            return _monitor(options, rows)
        report, *earlier = [_audit(options, rows, k) for k in range(len(rows.probability))]
        explained = _explained(options, table)
    before = earlier[0] if earlier else None
    one, other = (printable(", ".join(names)) for names in (rows.chosen.probability[0], rows.chosen.probability[-1]))
    # files first: nobody may be reading what is printed
    _write(options, rows, report, before, other, explained)
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
    notes, source = (*found.notes, *rows.notes), _origin(options, rows, 0)
    report = replace(found, windows=windows, alarms=alarms, notes=notes, origin=source)
    if options.html:
        put(report.to_html().encode(), options.html)
    if options.markdown:
        put(report.to_markdown().encode(), options.markdown)
    if options.json:
        put(_json(_saved(report) | rows.sampled), options.json)
    if STREAM not in (options.html, options.json, options.markdown) and not options.quiet:
        print(report)
    return VIOLATED if report.is_failed else _CODES[report.verdict]


def _audit(options: argparse.Namespace, rows: FileRows, k: int) -> AuditReport:
    """Audit the k-th set of probabilities."""
    report: AuditReport = audit(LABEL, rows.probability[k], rows.X, **_asked(options, rows))
    source = _origin(options, rows, k)
    return _named(replace(report, notes=(*report.notes, *rows.notes), origin=source), rows)


def _origin(options: argparse.Namespace, rows: FileRows, k: int) -> Origin:
    """Return what was audited; the file is hashed only if a file says so."""
    model, file = ", ".join(rows.chosen.probability[k]), "" if options.file == STREAM else options.file
    is_written = options.html or options.json
    return Origin(model, options.label, file, hash_files(file) if is_written else "", options.command_line)


def hash_files(path: str) -> str:
    """Return the SHA-256 of a file, or of all files of a folder or a glob one after another; "" for a pipe."""
    files = files_of(path) if path else []
    if not files or not all(os.path.isfile(file) for file in files):
        return ""
    digest = sha256()
    for name in files:
        with open(name, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _explained(options: argparse.Namespace, table: FileTable) -> dict[int, Explanation]:
    """Return why the saved model changes predictions, of the rows that it changes most."""
    if not options.model:
        return {}
    predictor, metadata = load(options.model)
    given = argparse.Namespace(probability=None, classes=None)
    return Recalibrator(predictor, *probability_of(given, table, predictor, metadata), table).most_changed()


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
    options: argparse.Namespace,
    rows: FileRows,
    report: AuditReport,
    before: AuditReport | None,
    other: str,
    explained: dict[int, Explanation],
) -> None:
    """Write the report in the formats asked for, with that of an earlier probability where there is one."""
    if options.html:
        put(report.to_html(before=before, explain=explained).encode(), options.html)
    if options.markdown:
        more = "" if before is None else f"\nBefore, with {other}:\n\n{before.to_markdown()}"
        put((report.to_markdown() + more).encode(), options.markdown)
    if options.json:
        data = _saved(report) | rows.sampled | ({} if before is None else {"before": _saved(before)})
        put(_json(data), options.json)


def _saved(report: AuditReport | MonitoringReport) -> dict[str, Any]:
    """Return the report as plain data, and what was audited."""
    return report.to_dict() | {"origin": report.origin.to_dict()}


def _json(data: dict[str, Any]) -> bytes:
    return f"{json.dumps(data, indent=1, allow_nan=False, default=str)}\n".encode()
