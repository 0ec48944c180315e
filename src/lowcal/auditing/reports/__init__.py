"""What an audit says, and how it is shown: text, one HTML page, a fragment for notebooks, Markdown, plain data."""

from lowcal.auditing.reports.audit_report import (
    SHOWN,
    AuditReport,
    By,
    Finding,
    Gap,
    LargestError,
    Verdict,
    check_by,
    label_of,
    sort_findings,
)
from lowcal.auditing.reports.binning import KEPT, ReliabilityBins, joined, reliability
from lowcal.auditing.reports.page import check_templates
from lowcal.auditing.reports.words import percent

__all__ = [
    "KEPT",
    "SHOWN",
    "AuditReport",
    "By",
    "Finding",
    "Gap",
    "LargestError",
    "ReliabilityBins",
    "Verdict",
    "check_by",
    "check_templates",
    "joined",
    "label_of",
    "percent",
    "reliability",
    "sort_findings",
]
