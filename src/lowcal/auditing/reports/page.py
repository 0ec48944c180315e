"""The audit as one HTML page, and as a fragment for notebooks: jinja2 templates (an extra) and the values they show.

Whatever comes from data is shown, never obeyed: everything that is not a template's own text is escaped.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from itertools import islice
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.auditing.reports import words
from lowcal.auditing.reports.binning import ReliabilityCurve
from lowcal.auditing.reports.text import html, number, several, shorten
from lowcal.data.errors import MissingExtra
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.solve.runs import Candidate
from lowcal.theory.guarantees import GroupMoments, GroupPage, describe
from lowcal.theory.guarantees.groups import read_label

if TYPE_CHECKING:
    from jinja2 import Environment

    from lowcal.auditing.reports.audit_report import AuditReport, Finding

FOLDER = Path(__file__).with_name("templates")
#: A page stays below this many bytes; groups that are not the worst are left out for it.
MOST_BYTES = 1_900_000
#: The side of a reliability diagram's square.
SIDE = 200
#: Where the axes of a reliability diagram may end: rare outcomes would sit in a corner of [0, 1].
ENDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class PageLimits:
    """How much a page shows: rows of the long tables, groups in the heat map, and panels with a diagram.

    A panel is one group and label. Every group gets the panel of its worst label before any gets its others.
    """

    rows: int = 1000
    groups: int = 200
    panels: int = 400

    def less(self) -> PageLimits:
        """Return less: first fewer panels with other than the worst label, then half of everything."""
        if self.panels > self.groups:
            return PageLimits(self.rows, self.groups, max(self.groups, self.panels * 3 // 4))
        return PageLimits(self.rows // 2, self.groups // 2, self.panels // 2)


def page(audit: AuditReport, before: AuditReport | None = None, candidates: Sequence[Candidate] = ()) -> str:
    """Return the page: verdict, worst groups, degrees, reliability, guarantees, moments, provenance.

    As many groups are shown as fit into MOST_BYTES; tables say what is left out.
    """
    view, limits = View(audit, before, candidates), PageLimits()
    while True:
        made = page_of(view, limits)
        if len(made.encode()) <= MOST_BYTES or limits.groups <= 1:
            return made
        limits = limits.less()


def page_of(view: View, limits: PageLimits) -> str:
    """Return the page within some limits."""
    script = asset("page.js")
    key = b64encode(sha256(script.encode()).digest()).decode()
    return _render("page.html.jinja", view, limits=limits, style=asset("page.css"), script=script, script_key=key)


def fragment(audit: AuditReport, n: int = 10) -> str:
    """Return the verdict, the n worst groups and the notes as an element with its own style."""
    return _render("notebook.html.jinja", View(audit), shown=audit.shown(n), style=asset("notebook.css"))


# --- templates -----------------------------------------------------------------------------------------------
def _render(template: str, view: View, **values: Any) -> str:
    known = {"view": view, "audit": view.audit, "before": view.before, "words": words}
    return environment().get_template(template).render(known | values)


@cache
def asset(file: str) -> str:
    """Return a style sheet or a script as it stands in its file."""
    return (FOLDER / file).read_text(encoding="utf-8")


def check_templates() -> None:
    """Refuse to go on where pages can't be made, before the work for one begins."""
    environment()


@cache
def environment() -> Environment:
    """Return what renders templates."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtra("An HTML report needs jinja2: pip install 'lowcal[report]'.") from error

    def text(value: object) -> Markup:
        """Return a value as text of the page: what is HTML already stays, all else is escaped."""
        return value if isinstance(value, Markup) else Markup(html(value))

    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        finalize=text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"count": "{:,.0f}".format, "share": "{:.1%}".format}
    made.filters |= {"number": number, "several": several, "shorten": shorten}
    return made


# --- what templates ask for ------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class GroupPanel:
    """One group and label: its reliability, that of the earlier model if any, and what is guaranteed."""

    key: str
    label: str | None
    title: str
    curve: ReliabilityCurve
    before: ReliabilityCurve | None
    sentences: Sequence[str]

    @cached_property
    def end(self) -> float:
        """Where both axes of the diagram end."""
        return end_of([self.curve] if self.before is None else [self.curve, self.before])

    @property
    def paths(self) -> list[tuple[str, str]]:
        """The marks of the diagram."""
        return paths(self.curve, self.before, self.end)


@dataclass(frozen=True, eq=False)
class View:
    """An audit, the earlier one if any, and what recalibration chose from, as pages show them."""

    audit: AuditReport
    before: AuditReport | None = None
    candidates: Sequence[Candidate] = ()
    earlier: Mapping[str, Finding] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "earlier", {} if self.before is None else self.before.by_name)

    @property
    def is_multiclass(self) -> bool:
        """Whether rows have labels."""
        return self.audit.layout.d > 1

    def size(self, value: float, signed: bool = True) -> str:
        """Return a violation as text."""
        return words.size(self.audit, value, signed)

    @cached_property
    def described(self) -> Callable[[str], list[GroupPage]]:
        """What is known of a group, label by label; the tables and the panels both ask for it."""
        moments = self.audit.moments
        return cache(lambda group: [describe(known, "this group", None, margin) for known, margin in moments[group]])

    def progress(self) -> tuple[int, int]:
        """Return how many groups are in both audits, and how many of these have a smaller error now."""
        by = self.audit.by
        pairs = ((self.earlier.get(one.subpopulation), one) for one in self.audit.findings)
        less = [abs(one.interval(by)[0]) < abs(old.interval(by)[0]) for old, one in pairs if old is not None]
        return len(less), sum(less)

    def worst(self, n: int = 10) -> tuple[float, list[tuple[Finding, list[tuple[int, int, str, str, str]]]]]:
        """Return where the axis of the worst groups ends, and each group with the intervals of its picture.

        An interval is the model (1, or 2 for the earlier one), its height in the picture, and where its error and the
        limits stand on an axis from 0 to 200. A group without a share of the people has no error per person, and none.
        """
        by = self.audit.by
        pairs = [(one, self.earlier.get(one.subpopulation)) for one in self.audit.shown(n)]
        ends = [abs(end) for pair in pairs for one in pair if one is not None for end in one.interval(by)[1:]]
        reach = max([self.audit.tolerance.largest * 1.25, *(end for end in ends if not isnan(end))]) * 1.02

        def intervals(one: Finding, old: Finding | None) -> list[tuple[int, int, str, str, str]]:
            models = [(1, 10, one)] if old is None else [(2, 5, old), (1, 14, one)]
            drawn = [(kind, y, np.clip(np.array(found.interval(by)) / reach, -1, 1)) for kind, y, found in models]
            places = [(kind, y, [f"{100 + 100 * float(at):.1f}" for at in ends]) for kind, y, ends in drawn]
            return [(kind, y, at[0], at[1], at[2]) for kind, y, at in places if at[1] != "nan"]

        return reach, [(one, intervals(one, old)) for one, old in pairs]

    def heat_map(self, limits: PageLimits) -> list[tuple[str, list[tuple[str, str | None, str]]]]:
        """Return for each group the moments E[c f^j (y - f)], j = 0, 1, ...: size, label and class of the cell."""
        audit, labels = self.audit, words.labels(self.audit.layout)
        rows = []
        for one in audit.findings[: limits.groups]:
            groups = [moments for moments, _ in audit.moments[one.subpopulation]]
            found = zip(*by_degree(groups, audit.by == "per_person"), strict=True)
            cells = [(self.size(value), labels[a], heat(value, audit.tolerance.largest)) for value, a in found]
            rows.append((one.subpopulation, cells))
        return rows

    def groups(self, limits: PageLimits) -> list[tuple[int, Finding, list[GroupPanel]]]:
        """Return the groups that are described one by one: rank, finding and panels."""
        shown = panels(self.audit, limits)
        return [(rank, one, [self._panel(rank, one, a) for a in labels]) for rank, one, labels in shown]

    def _panel(self, rank: int, one: Finding, a: int) -> GroupPanel:
        """Return one group and label."""
        audit, group, label = self.audit, one.subpopulation, words.labels(self.audit.layout)[a]
        of = "" if label is None else f", label {shorten(label, 40)}"
        title, said = f"Reliability of {shorten(group, 80)}{of}", self.described(group)[a].sentences
        curve = ReliabilityCurve.of(audit.reliability[group][a], audit.confidence)
        known = {} if self.before is None else self.before.reliability
        before = ReliabilityCurve.find(known, group, a, audit.confidence)
        return GroupPanel(f"g{rank}-{a}", label, title, curve, before, said)

    def moments(self, limits: PageLimits) -> list[tuple[str, str | None, Mapping[str, float]]]:
        """Return the moments of every group and label."""
        return list(islice(self._moments(), limits.rows))

    def _moments(self) -> Iterator[tuple[str, str | None, Mapping[str, float]]]:
        labels = words.labels(self.audit.layout)
        for one in self.audit.findings:
            for label, known in zip(labels, self.described(one.subpopulation), strict=True):
                yield one.subpopulation, label, known.figures


def panels(audit: AuditReport, limits: PageLimits) -> list[tuple[int, Finding, list[int]]]:
    """Return the groups that are described one by one: rank, finding, and the labels that are shown of it."""
    ranked = ((k, one) for k, one in enumerate(audit.findings, 1) if one.subpopulation in audit.reliability)
    shown = list(islice(ranked, limits.groups))
    left = limits.panels - len(shown)
    chosen = []
    for rank, one in shown:
        first = read_label(one.label, audit.layout)
        others = [a for a in range(audit.layout.d) if a != first][: max(0, left)]
        left -= len(others)
        chosen.append((rank, one, sorted([first, *others])))
    return chosen


def by_degree(groups: Sequence[GroupMoments], per_person: bool = False) -> tuple[FloatArray, IntArray]:
    """Return E[c f^j (y - f)] for j = 0, 1, ..., of the label where it is largest, and which label that is.

    A group without rows has the moments 0. With `per_person` they are divided by the mass of the group.

    >>> from lowcal.guarantees import group_moments
    >>> weight = np.array([0.25, 0.25])
    >>> a = group_moments(np.array([0.5, 0.5]), np.array([1.0, 1.0]), weight, 2)
    >>> b = group_moments(np.array([0.9, 0.9]), np.array([0.2, 0.2]), weight, 2)
    >>> by_degree([a, b])
    (array([-0.35 , -0.315]), array([1, 1]))
    """
    table = np.nan_to_num(
        [[float(one.gap(j) * (1.0 if per_person else one.mass)) for j in range(one.degree)] for one in groups]
    )
    label = np.abs(table).argmax(axis=0)
    return table[label, np.arange(table.shape[1])], label


def heat(value: float, alpha: float) -> str:
    """Return the class of a cell: its sign, and its size against what is tolerated.

    >>> [heat(v, 0.01) for v in (0.004, -0.008, 0.015, -0.03)]
    ['h0', 'm1', 'p2', 'm3']
    """
    steps = sum(abs(value) > limit * alpha for limit in (0.5, 1.0, 2.0))
    return "h0" if steps == 0 else f"{'p' if value > 0 else 'm'}{steps}"


# --- reliability diagrams ----------------------------------------------------------------------------------------
def end_of(curves: Sequence[ReliabilityCurve]) -> float:
    """Return where both axes end: the first of ENDS that all predictions and outcomes stay below."""
    top = max((float(v) for one in curves for v in (*one.prediction, *one.outcome)), default=1.0)
    return next(end for end in ENDS if top <= end or end == 1.0)


def paths(curve: ReliabilityCurve, before: ReliabilityCurve | None, end: float) -> list[tuple[str, str]]:
    """Return the class and the SVG path of every mark of a reliability diagram, the last on top."""
    drawn = [] if before is None else _marks("2", _places(before.prediction, before.outcome, end))
    low, at, high = (_places(curve.prediction, y, end) for y in (curve.lower, curve.outcome, curve.upper))
    bars = "".join(f"M{a}V{b.split()[1]}" for a, b in zip(low, high, strict=True))
    band = f"M{'L'.join(high + low[::-1])}Z" if high else ""
    return [*drawn, ("band", band), ("bars", bars), *_marks("1", at)]


def _places(f: FloatArray, y: FloatArray, end: float) -> list[str]:
    """Return "x y" for every bin; what lies above the end of the axis stays on its edge."""
    x, height = SIDE * f / end, SIDE * (1.0 - np.minimum(y / end, 1.0))
    return [f"{a:.1f} {b:.1f}" for a, b in zip(x, height, strict=True)]


def _marks(model: str, places: list[str]) -> list[tuple[str, str]]:
    """Return a line through some places, and dots on them: strokes of no length, which round or square ends show."""
    line = "M" + "L".join(places) if places else ""
    return [(f"line{model}", line), (f"dot{model}", "".join(f"M{place}h0" for place in places))]
