"""`lowcal report`: compare saved audits, of several models or months."""

from __future__ import annotations

import argparse

from lowcal.auditing.reports import AuditComparison, SavedAudit, check_templates
from lowcal.cli.terminal import DONE, WrongUsage, check_outputs, put
from lowcal.data.files.tables import STREAM


def run(options: argparse.Namespace) -> int:
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
