"""How an audit is shown: one HTML page, a fragment for notebooks, Markdown. Nothing here computes a verdict."""

from lowcal.report.assembly import page
from lowcal.report.binning import Binned, Reliability, reliability
from lowcal.report.degrees import by_degree
from lowcal.report.markdown import as_markdown
from lowcal.report.notebook import fragment
from lowcal.report.source import Audit, Found

__all__ = [
    "Audit",
    "Binned",
    "Found",
    "Reliability",
    "as_markdown",
    "by_degree",
    "fragment",
    "page",
    "reliability",
]
