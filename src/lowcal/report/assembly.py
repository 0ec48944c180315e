"""The audit as one HTML page that needs nothing else: style and script are inside, and no other may run."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from lowcal.report import sections
from lowcal.report.sections import Limits, View
from lowcal.report.source import Audit
from lowcal.report.text import html
from lowcal.runs import Candidate

#: A page stays below this many bytes; groups that are not the worst are left out for it.
MOST_BYTES = 1_900_000


def page(audit: Audit, before: Audit | None = None, candidates: Sequence[Candidate] = ()) -> str:
    """Return the page: verdict, worst groups, degrees, reliability, guarantees, moments, provenance.

    As many groups are shown as fit into MOST_BYTES; tables say what is left out.
    """
    limits = Limits()
    while True:
        made = _page(View(audit, before, limits, candidates))
        if len(made.encode()) <= MOST_BYTES or limits.groups <= 1:
            return made
        limits = limits.less()


def _page(view: View) -> str:
    """Return the page of one view."""
    body = "\n".join(
        [
            sections.verdict(view),
            sections.figures(view),
            sections.comparison(view),
            sections.candidates(view),
            sections.worst(view),
            sections.heat_map(view),
            sections.findings(view),
            sections.details(view),
            sections.moments(view),
            sections.reading(view),
            sections.provenance(view),
        ]
    )
    script = _asset("page.js")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Calibration audit: {html(view.audit.verdict)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the verdict</a>
<header><h1>Calibration audit</h1><p>{html(view.audit.notion)}, {view.audit.n_rows:,} rows</p></header>
<main id="main" tabindex="-1">
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def _policy(script: str) -> str:
    """Return the rule that nothing is loaded and that this script only may run."""
    key = b64encode(sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{key}'; base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(file: str) -> str:
    return Path(__file__).with_name(file).read_text(encoding="utf-8")
