"""The audit as one HTML page, and as a fragment for notebooks: jinja2 templates (an extra) and the values they show.

Text from data is never executed: everything that is not a template's own text is escaped.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from html import escape
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lowcal.auditing import words
from lowcal.auditing.panel import KEPT, ReliabilityBins
from lowcal.data.errors import MissingExtra, abbreviate
from lowcal.guarantees import GroupPage, describe
from lowcal.guarantees.groups import read_label
from lowcal.kernels.simplex import FloatArray
from lowcal.rows.explaining import Explanation
from lowcal.solve.fitting import Candidate

if TYPE_CHECKING:
    from jinja2 import Environment

    from lowcal.auditing.monitoring import MonitoringReport
    from lowcal.auditing.reports import AuditComparison, AuditReport, Finding

FOLDER = Path(__file__).with_name("templates")
#: A page stays below this number of bytes (2 MB) by leaving out groups that are not the worst.
MOST_BYTES = 1_980_000
#: The number of groups on the first screen, and the length of the longest bar in their pictures.
CARDS = 8
BAR = 130.0
#: The side of a reliability diagram's square.
SIDE = 200
#: Possible ends of the axes of a reliability diagram: on [0, 1], rare outcomes would crowd into a corner.
ENDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Characters that UTF-8 or HTML does not allow.
_HIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


class PageLimits(NamedTuple):
    """How much a page shows: rows of the long tables, groups in detail, and the number of these with all labels."""

    rows: int = KEPT
    groups: int = 200
    with_all_labels: int = 40

    def less(self) -> PageLimits:
        """Return tighter limits: first only the worst label of each group, then half of everything."""
        if self.with_all_labels:
            return self._replace(with_all_labels=0)
        return PageLimits(self.rows // 2, self.groups // 2, 0)


def page(audit: AuditReport, *more: Any) -> str:
    """Return the page with as many groups as fit into MOST_BYTES; tables state what is left out."""
    limits = PageLimits()
    while len((made := page_of(limits, audit, *more)).encode()) > MOST_BYTES and limits.groups > 1:
        limits = limits.less()
    return made


def page_of(
    limits: PageLimits,
    audit: AuditReport,
    before: AuditReport | None = None,
    candidates: Sequence[Candidate] = (),
    explained: Mapping[int, Explanation] = MappingProxyType({}),
) -> str:
    """Return the page within some limits: the first screen for everyone, then the analyst's part and the auditor's."""

    def size(value: float, signed: bool = True) -> str:
        return minus(words.size(audit, value, signed))

    shown = {"audit": audit, "before": before, "candidates": candidates, "explained": explained, "limits": limits}
    return environment().get_template("page.html.jinja").render(**shown, size=size)


def monitoring_page(report: MonitoringReport) -> str:
    """Return the page of an audit by windows: verdict, alarms, windows, and the groups that changed most."""
    return environment().get_template("monitoring.html.jinja").render(report=report, drift_panels=drift_panels(report))


def comparison_page(compared: AuditComparison) -> str:
    """Return the page of several audits: their verdicts, the groups that differ most, and all groups.

    Differences are drawn on an axis with 0 in the middle; unknown ones at 0.
    """
    drawn = {group: compared.gaps(group) for group in compared.groups[:CARDS]}
    ends = [abs(end) for gaps in drawn.values() for one in gaps.values() for end in (one.gap, one.lower, one.upper)]
    scale = (BAR / 2) / max((end for end in ends if isfinite(end)), default=1.0)
    shown: dict[str, list[dict[str, Any]]] = {group: [] for group in drawn}
    for group, name, one in ((group, name, one) for group, gaps in drawn.items() for name, one in gaps.items()):
        value, lower, upper = (140.0 + scale * np.nan_to_num([one.gap, one.lower, one.upper])).tolist()
        mark = {"name": name, "value": value, "lower": lower, "upper": upper, "text": minus(words.means(one)[2])}
        shown[group].append(mark)
    return environment().get_template("comparison.html.jinja").render(compared=compared, shown=list(shown.items()))


def fragment(audit: AuditReport) -> str:
    """Return the verdict, the worst groups and the notes as an element with its own style."""
    return environment().get_template("notebook.html.jinja").render(audit=audit, shown=audit.shown(10))


# --- templates -----------------------------------------------------------------------------------------------
@cache
def environment() -> Environment:
    """Return the environment of the templates; without jinja2, refuse a page before the work for it begins."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtra("An HTML report needs jinja2: pip install 'lowcal[report]'.") from error

    def text(value: object) -> Markup:
        """Return a value as text of the page: what is HTML already stays, all else is escaped."""
        return value if isinstance(value, Markup) else Markup(html(value))

    def shorten(value: object, length: int = 160) -> str:
        """Return at most `length` characters, so that no name can make a page long."""
        return abbreviate(str(value), length)

    def fingerprint(script: str) -> str:
        """Return the hash by which the page allows its own script."""
        return b64encode(sha256(script.encode()).digest()).decode()

    made = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, finalize=text, undefined=StrictUndefined)
    made.trim_blocks = made.lstrip_blocks = made.keep_trailing_newline = True
    made.filters |= {"count": "{:,.0f}".format, "share": "{:.1%}".format, "several": words.several, "minus": minus}
    made.filters |= {"shorten": shorten, "fingerprint": fingerprint, "number": words.number, "heat": heat}
    made.globals |= {"words": words, "asset": asset, "panels": panels, "described": described}
    made.globals |= {"cards": cards, "earlier_prediction": earlier_prediction}
    made.filters |= {"capitalize_first": lambda text: text[:1].upper() + text[1:]}
    made.tests |= {"off": words.is_off}
    return made


@cache
def asset(file: str) -> str:
    """Return a style sheet or a script as it stands in its file."""
    return (FOLDER / file).read_text(encoding="utf-8")


def html(value: object) -> str:
    """Return text for an element or a quoted attribute; forbidden characters become the replacement character.

    >>> html("<b a='1'>&")
    '&lt;b a=&#x27;1&#x27;&gt;&amp;'
    """
    return escape(_HIDDEN.sub("\ufffd", str(value))).replace("\r", "&#13;")


def minus(number: str) -> str:
    """Return a number with a true minus sign."""
    return number.replace("-", "−")  # noqa: RUF001


def heat(value: float, alpha: float) -> str:
    """Return the class of a cell: its sign, and its size relative to the tolerance.

    >>> [heat(v, 0.01) for v in (0.004, -0.008, 0.015, -0.03)]
    ['h0', 'm1', 'p2', 'm3']
    """
    steps = sum(abs(value) > limit * alpha for limit in (0.5, 1.0, 2.0))
    return "h0" if steps == 0 else f"{'p' if value > 0 else 'm'}{steps}"


# --- what templates ask for ------------------------------------------------------------------------------------
class Bar(NamedTuple):
    """A bar of a card: its title, its class, its length, the interval around its end if any, and the number there."""

    title: str
    kind: str
    length: float
    interval: tuple[float, ...]
    text: str

    @property
    def end(self) -> float:
        """Where the bar and its interval end."""
        return max(self.length, *self.interval, 0.0)


def cards(audit: AuditReport, before: AuditReport | None) -> tuple[list[tuple[Finding, list[Bar]]], float]:
    """Return the groups that are off most, each with bars of predicted and actual means, and the scale of all.

    The bars are those of the class that is off most; the interval is that of the mean outcome.
    """
    earlier, drawn = before.by_name if before else {}, []
    for one in words.affected(audit)[:CARDS]:
        gap = one.largest_gap
        predicted, actual, *_ = words.means(gap)
        limits = max(0.0, gap.predicted + gap.lower), min(1.0, gap.predicted + gap.upper)
        bars = [Bar("Predicted", "predicted", gap.predicted, (), predicted)]
        bars.append(Bar("Actual", "actual", gap.actual, limits, actual))
        if one.subpopulation in earlier:
            was = earlier_prediction(earlier[one.subpopulation], one)
            bars.insert(0, Bar("Before", "before", was, (), words.rate(was)))
        drawn.append((one, bars))
    return drawn, BAR / max([bar.end for _, bars in drawn for bar in bars] or [1.0])


def earlier_prediction(old: Finding, one: Finding) -> float:
    """Return the mean prediction of an earlier model for the class that a group is off most in now."""
    return next(gap.predicted for gap in old.gaps if gap.label == one.largest_gap.label)


def described(audit: AuditReport, group: str) -> list[GroupPage]:
    """Return the guarantees of a group, label by label."""
    return [describe(known, "this group", None, margin) for known, margin in audit.moments[group]]


def panels(audit: AuditReport, before: AuditReport | None, one: Finding, has_all_labels: bool) -> list[GroupPanel]:
    """Return the panels of a group, of all its labels or of the worst; none if its bins were not kept."""
    bins = audit.reliability.get(one.subpopulation)
    if bins is None:
        return []
    none: Sequence[ReliabilityBins | None] = [None] * audit.layout.d
    old = none if before is None else before.reliability.get(one.subpopulation, none)
    names, known = words.labels(audit.layout), described(audit, one.subpopulation)
    which = range(audit.layout.d) if has_all_labels else [read_label(one.label, audit.layout)]
    return [GroupPanel(names[a], bins[a], old[a], audit.confidence, known[a].sentences) for a in which]


@dataclass(frozen=True, eq=False)
class GroupPanel:
    """One group and label: its reliability, that of the earlier model if any, and what is guaranteed."""

    label: str | None
    bins: ReliabilityBins
    before: ReliabilityBins | None
    confidence: float
    sentences: Sequence[str] = ()

    @cached_property
    def end(self) -> float:
        """Where both axes of the diagram end: the first of ENDS that all predictions and outcomes stay below."""
        curves = [self.bins] if self.before is None else [self.bins, self.before]
        top = max((float(v) for one in curves for v in (*one.prediction, *one.outcome)), default=1.0)
        return next(end for end in ENDS if top <= end or end == 1.0)

    @property
    def paths(self) -> list[tuple[str, str]]:
        """The class and the SVG path of every mark of the diagram, the last on top."""
        bins, before, (lower, upper) = self.bins, self.before, self.bins.limits(self.confidence)
        low, at, high = (self._places(bins.prediction, y) for y in (lower, bins.outcome, upper))
        bars = "".join(f"M{a}V{b.split()[1]}" for a, b in zip(low, high, strict=True))
        band = f"M{'L'.join(high + low[::-1])}Z" if high else ""
        old = [] if before is None else _marks("2", self._places(before.prediction, before.outcome))
        return [*old, ("band", band), ("bars", bars), *_marks("1", at)]

    def _places(self, f: FloatArray, y: FloatArray) -> list[str]:
        """Return "x y" for every bin; values beyond the end of the axis are drawn at its end."""
        x, height = SIDE * f / self.end, SIDE * (1.0 - np.minimum(y / self.end, 1.0))
        return [f"{a:.1f} {b:.1f}" for a, b in zip(x, height, strict=True)]


def _marks(model: str, places: list[str]) -> list[tuple[str, str]]:
    """Return a line through some places, and dots there: strokes of length 0, drawn by their round or square caps."""
    line = "M" + "L".join(places) if places else ""
    return [(f"line{model}", line), (f"dot{model}", "".join(f"M{place}h0" for place in places))]


# --- windows ---------------------------------------------------------------------------------------------------
def drift_panels(report: MonitoringReport) -> list[dict[str, Any]]:
    """Return pictures of 300 by 120 of the 12 groups that changed most, all on one scale.

    Each has the class and the SVG path of every mark, a text for screen readers, and the end of the axis. Windows
    without rows have no mark.
    """
    courses, windows = report.most_changed(12), list(report.windows)
    every = [one for course in courses for one in course.gaps]
    ends = [abs(end) for one in every for end in (one.lower, one.upper, one.gap) if isfinite(end)]
    reach, width = max(ends, default=1.0), 300.0 / max(1, len(windows) - 1)

    def height(value: float) -> str:
        return f"{60.0 - 60.0 * max(-1.0, min(1.0, value / reach)):.1f}"

    pictures = []
    for name, gaps, alarm in courses:
        seen = [(t * width, one) for t, one in enumerate(gaps) if isfinite(one.gap)]
        at = [f"{x:.1f} {height(one.gap)}" for x, one in seen]
        bars = "".join(f"M{x:.1f} {height(one.lower)}V{height(one.upper)}" for x, one in seen)
        paths = [("bars", bars), ("line1", "M" + "L".join(at) if at else "")]
        found = "no drift alarm" if alarm is None else f"drift alarm in {alarm.window}"
        if alarm is not None:
            paths.insert(0, ("ideal", f"M{windows.index(alarm.window) * width:.1f} 0V120"))
        text = f"{name}: actual minus predicted in {words.several(len(windows), 'window')}; {found}"
        pictures.append({"name": name, "text": text, "paths": paths, "top": f"+{100 * reach:.2g}%"})
    return pictures
