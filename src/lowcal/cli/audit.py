"""`lowcal audit`: does the notion hold in the population these rows come from, and for whom not?"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from lowcal.auditing.audits import audit
from lowcal.auditing.reports import AuditReport, Verdict, check_templates
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


def _audit(options: argparse.Namespace, rows: FileRows, p: str | list[str]) -> AuditReport:
    report = audit(
        LABEL,
        p,
        rows.X,
        subpopulations=subpopulations_of(options, rows.chosen.columns),
        sample_weight=rows.weight,
        frequency_weight=rows.frequency,
        random_state=options.seed,
        classes=None if rows.classes is None else range(len(rows.classes)),
        **given(options, "notion", "alpha", "per_person", "min_share", "confidence", "method"),
    )
    report = replace(report, notes=(*report.notes, *rows.notes))
    if rows.classes is None or report.layout.classes is None:
        return report
    # the audit knows classes by their positions
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
        put(f"{json.dumps(data, indent=1, allow_nan=False, default=str)}\n".encode(), options.json)
