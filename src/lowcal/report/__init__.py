"""How an audit is shown: one HTML page, a fragment for notebooks, Markdown. Nothing here computes a verdict."""

from lowcal.report.degrees import by_degree
from lowcal.report.markdown import markdown
from lowcal.report.notebook import fragment
from lowcal.report.page import page
from lowcal.report.reliability import Binned, Reliability, reliability
from lowcal.report.source import Audit, Found
from lowcal.report.writing import write

__all__ = [
    "Audit",
    "Binned",
    "Found",
    "Reliability",
    "by_degree",
    "fragment",
    "markdown",
    "page",
    "reliability",
    "write",
]
