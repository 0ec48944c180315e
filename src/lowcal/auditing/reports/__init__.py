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
from lowcal.auditing.reports.binning import KEPT, Reliability, ReliabilityBins, ReliabilityCurve, joined, reliability
from lowcal.auditing.reports.page import by_degree, check_templates
from lowcal.auditing.reports.text import percent

__all__ = [
    "KEPT",
    "SHOWN",
    "AuditReport",
    "By",
    "Finding",
    "Gap",
    "LargestError",
    "Reliability",
    "ReliabilityBins",
    "ReliabilityCurve",
    "Verdict",
    "by_degree",
    "check_by",
    "check_templates",
    "joined",
    "label_of",
    "percent",
    "reliability",
    "sort_findings",
]
