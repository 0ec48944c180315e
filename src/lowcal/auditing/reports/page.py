"""The audit as one HTML page, and as a fragment for notebooks: the values that their templates show."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

from lowcal.auditing.reports import charts, words
from lowcal.auditing.reports.binning import ReliabilityCurve
from lowcal.auditing.reports.degrees import by_degree
from lowcal.auditing.reports.templating import asset, render
from lowcal.auditing.reports.text import count, shorten
from lowcal.solve.runs import Candidate
from lowcal.theory.guarantees import GroupPage, describe
from lowcal.theory.guarantees.group_rows import read_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowcal.auditing.reports.audit_report import AuditReport, Finding

#: A page stays below this many bytes; groups that are not the worst are left out for it.
MOST_BYTES = 1_900_000


@dataclass(frozen=True)
class Limits:
    """How much a page shows: rows of the long tables, groups in the heat map, and panels with a diagram.

    A panel is one group and label. Every group gets the panel of its worst label before any gets its others.
    """

    rows: int = 1000
    groups: int = 200
    panels: int = 400

    def less(self) -> Limits:
        """Return less: first fewer panels with other than the worst label, then half of everything."""
        if self.panels > self.groups:
            return Limits(self.rows, self.groups, max(self.groups, self.panels * 3 // 4))
        return Limits(self.rows // 2, self.groups // 2, self.panels // 2)


def page(audit: AuditReport, before: AuditReport | None = None, candidates: Sequence[Candidate] = ()) -> str:
    """Return the page: verdict, worst groups, degrees, reliability, guarantees, moments, provenance.

    As many groups are shown as fit into MOST_BYTES; tables say what is left out.
    """
    view, limits = View(audit, before, candidates), Limits()
    while True:
        made = page_of(view, limits)
        if len(made.encode()) <= MOST_BYTES or limits.groups <= 1:
            return made
        limits = limits.less()


def page_of(view: View, limits: Limits) -> str:
    """Return the page within some limits."""
    script = asset("page.js")
    key = b64encode(sha256(script.encode()).digest()).decode()
    shown = {"view": view, "audit": view.audit, "before": view.before, "limits": limits, "words": words}
    return render("page.html.jinja", **shown, style=asset("page.css"), script=script, script_key=key)


def fragment(audit: AuditReport, n: int = 10) -> str:
    """Return the verdict, the n worst groups and the notes as an element with its own style."""
    values = {"view": View(audit), "audit": audit, "shown": audit.shown(n), "words": words}
    return render("notebook.html.jinja", **values, style=asset("notebook.css"))


@dataclass(frozen=True, eq=False)
class Panel:
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
        return charts.end_of([self.curve] if self.before is None else [self.curve, self.before])

    @property
    def paths(self) -> list[tuple[str, str]]:
        """The marks of the diagram."""
        return charts.paths(self.curve, self.before, self.end)


@dataclass(frozen=True, eq=False)
class Group:
    """One group, its rank, and the panels that are shown of it."""

    rank: int
    found: Finding
    panels: list[Panel]


@dataclass(frozen=True, eq=False)
class View:
    """An audit, the earlier one if any, and what recalibration chose from, as pages show them."""

    audit: AuditReport
    before: AuditReport | None = None
    candidates: Sequence[Candidate] = ()

    @property
    def is_multiclass(self) -> bool:
        """Whether rows have labels."""
        return self.audit.layout.d > 1

    def size(self, value: float, signed: bool = True) -> str:
        """Return a violation as text."""
        return words.size(self.audit, value, signed)

    def earlier(self, group: str) -> Finding | None:
        """Return the finding of the earlier audit on a group, if it has one."""
        return self._earlier.get(group)

    @cached_property
    def _earlier(self) -> Mapping[str, Finding]:
        return {} if self.before is None else self.before.by_name

    @cached_property
    def described(self) -> Callable[[str], list[GroupPage]]:
        """What is known of a group, label by label; the tables and the panels both ask for it."""
        moments = self.audit.moments
        return cache(lambda group: [describe(known, "this group", None, margin) for known, margin in moments[group]])

    def compared(self) -> list[tuple[str, str, str]]:
        """Return the figures of both audits: name, before, after."""
        assert self.before is not None
        old, new = (
            [("Verdict", words.title(one)), ("Rows", count(one.n_rows)), *(pair[:2] for pair in words.figures(one)[:5])]
            for one in (self.before, self.audit)
        )
        return [(name, before, after) for (_, before), (name, after) in zip(old, new, strict=True)]

    def progress(self) -> tuple[int, int]:
        """Return how many groups are in both audits, and how many of these have a smaller error now."""
        by = self.audit.by
        pairs = ((self.earlier(one.subpopulation), one) for one in self.audit.findings)
        less = [abs(one.interval(by)[0]) < abs(old.interval(by)[0]) for old, one in pairs if old is not None]
        return len(less), sum(less)

    def worst(self, n: int = 10) -> tuple[float, list[tuple[Finding, list[charts.Line]]]]:
        """Return where the axis of the worst groups ends, and each with the lines of its picture."""
        audit = self.audit
        pairs = [(one, self.earlier(one.subpopulation)) for one in audit.shown(n)]
        every = [one for pair in pairs for one in pair if one is not None]
        reach = charts.reach_of(every, audit.tolerance.largest, audit.by)
        return reach, [(one, charts.lines(one, old, reach, audit.by)) for one, old in pairs]

    def heat_map(self, limits: Limits) -> tuple[list[str], list[tuple[str, list[tuple[str, str | None, str]]]]]:
        """Return the weight of every degree, and for each group the moments E[c f^j (y - f)]: size, label, class."""
        shown = [one.subpopulation for one in self.audit.findings[: limits.groups]]
        rows = [(name, self._hot(name)) for name in shown]
        return [words.power(j) for j in range(max((len(cells) for _, cells in rows), default=0))], rows

    def _hot(self, group: str) -> list[tuple[str, str | None, str]]:
        """Return the cells of one group, a degree each."""
        audit, labels = self.audit, words.labels(self.audit.layout)
        values, which = by_degree([moments for moments, _ in audit.moments[group]], audit.by == "per_person")
        found = zip(values, which, strict=True)
        return [(self.size(value), labels[a], heat(value, audit.tolerance.largest)) for value, a in found]

    def groups(self, limits: Limits) -> list[Group]:
        """Return the groups that are described one by one."""
        return [
            Group(rank, one, [self._panel(rank, one, a) for a in which])
            for rank, one, which in panels(self.audit, limits)
        ]

    def _panel(self, rank: int, one: Finding, a: int) -> Panel:
        """Return one group and label."""
        audit, group, label = self.audit, one.subpopulation, words.labels(self.audit.layout)[a]
        of = "" if label is None else f", label {shorten(label, 40)}"
        title, said = f"Reliability of {shorten(group, 80)}{of}", self.described(group)[a].sentences
        curve = ReliabilityCurve.of(audit.reliability[group][a], audit.confidence)
        before = (
            None if self.before is None else ReliabilityCurve.find(self.before.reliability, group, a, audit.confidence)
        )
        return Panel(f"g{rank}-{a}", label, title, curve, before, said)

    def moments(self, limits: Limits) -> list[tuple[str, str | None, Mapping[str, float]]]:
        """Return the moments of every group and label."""
        return list(islice(self._moments(), limits.rows))

    def _moments(self) -> Iterator[tuple[str, str | None, Mapping[str, float]]]:
        labels = words.labels(self.audit.layout)
        for one in self.audit.findings:
            for label, known in zip(labels, self.described(one.subpopulation), strict=True):
                yield one.subpopulation, label, known.figures


def panels(audit: AuditReport, limits: Limits) -> list[tuple[int, Finding, list[int]]]:
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


def heat(value: float, alpha: float) -> str:
    """Return the class of a cell: its sign, and its size against what is tolerated.

    >>> [heat(v, 0.01) for v in (0.004, -0.008, 0.015, -0.03)]
    ['h0', 'm1', 'p2', 'm3']
    """
    steps = sum(abs(value) > limit * alpha for limit in (0.5, 1.0, 2.0))
    return "h0" if steps == 0 else f"{'p' if value > 0 else 'm'}{steps}"
