"""Reports of audits, as text, one HTML page, a fragment for notebooks, Markdown and plain data."""

from lowcal.auditing.reports.audit_report import AuditReport, Finding, Origin, Verdict
from lowcal.auditing.reports.comparison import AuditComparison, SavedAudit
from lowcal.auditing.reports.monitoring_report import Alarm, MonitoringReport
from lowcal.auditing.reports.page import environment as check_templates

__all__ = [
    "Alarm",
    "AuditComparison",
    "AuditReport",
    "Finding",
    "MonitoringReport",
    "Origin",
    "SavedAudit",
    "Verdict",
    "check_templates",
]
