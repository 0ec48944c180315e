"""The sections of the page, each a function of the audit (and of an earlier one, to compare with) to HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from lowcal.guarantees import describe
from lowcal.report import charts, words
from lowcal.report.degrees import by_degree
from lowcal.report.source import Audit, By, Found, labels
from lowcal.report.tables import Cell, Column, pairs, table
from lowcal.report.text import count, digits, html, name, number, several, share, shorten
from lowcal.runs import Candidate

#: Errors are shown both ways.
ORDERS: tuple[By, ...] = ("violation", "per_person")


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


@dataclass(frozen=True, eq=False)
class View:
    """An audit, the earlier one if any, how much of them is shown, and what recalibration chose from."""

    audit: Audit
    before: Audit | None
    limits: Limits
    candidates: Sequence[Candidate] = ()

    @property
    def labels(self) -> list[str]:
        """The names of the coordinates."""
        return labels(self.audit)

    @property
    def is_multiclass(self) -> bool:
        """Whether rows have labels."""
        return self.audit.layout.d > 1

    @property
    def decimals(self) -> int:
        """Decimals of a violation."""
        return digits(self.audit.tolerance.largest)

    def earlier(self, group: str) -> Found | None:
        """Return the finding of the earlier audit on a group, if it has one."""
        return self._before_by_name.get(group)

    @cached_property
    def _before_by_name(self) -> dict[str, Found]:
        return {} if self.before is None else {one.subpopulation: one for one in self.before.findings}

    def size(self, value: float, signed: bool = True) -> str:
        """Return a violation as text."""
        return number(value, self.decimals, signed)

    def error(self, one: Found, by: By) -> list[str]:
        """Return an error and its interval as two cells."""
        value, lower, upper = one.interval(by)
        return [self.size(value), f"{self.size(lower)} to {self.size(upper)}"]

    def label_column(self) -> list[Column]:
        """Return the column of labels, where there are several."""
        return [Column("Label", "text")] if self.is_multiclass else []

    def label_cell(self, label: object) -> list[str]:
        """Return the cell of that column."""
        return [html(shorten(label, 40))] if self.is_multiclass else []

    def place(self, label: object) -> int:
        """Return the coordinate of a label."""
        classes = self.audit.layout.classes
        return 0 if not self.is_multiclass else int(str(label)) if classes is None else list(classes).index(label)


def left_out(shown: int, total: int, what: str = "groups") -> str:
    """Say what is left out, and where it is."""
    if shown >= total:
        return ""
    return f" The worst {shown:,} of {total:,} {what} are shown; <code>report.to_dict()</code> has all."


# --- the head -----------------------------------------------------------------------------------------------


def verdict(view: View) -> str:
    """Return the verdict, its sentence, and the notes that bear on it."""
    audit = view.audit
    said = words.verdict(audit, name(audit.proof.subpopulation))
    notes = "".join(f'<p class="note"><strong>Note:</strong> {html(note)}</p>' for note in audit.notes)
    return (
        f'<section class="verdict {html(audit.verdict)}" aria-labelledby="verdict">'
        f'<h2 id="verdict"><span class="mark" aria-hidden="true"></span>{words.title(audit)}</h2>'
        f'<p class="sentence">{said}</p>{notes}</section>'
    )


def figures(view: View) -> str:
    """Return the key figures."""
    cards = "".join(
        f"<div><dt>{html(title)}</dt><dd><b>{html(value)}</b> <span>{html(hint)}</span></dd></div>"
        for title, value, hint in words.figures(view.audit)
    )
    return f'<dl class="cards">{cards}</dl>'


def comparison(view: View) -> str:
    """Return both audits side by side."""
    if view.before is None:
        return ""
    audits = (view.before, view.audit)
    found = [(view.earlier(one.subpopulation), one) for one in view.audit.findings]
    both = [(old, one) for old, one in found if old is not None]
    by = view.audit.by
    less = sum(abs(one.interval(by)[0]) < abs(old.interval(by)[0]) for old, one in both)
    rows = [["Verdict", *(words.title(one) for one in audits)], ["Rows", *(count(one.n_rows) for one in audits)]]
    rows += [
        [html(title), *(html(words.figures(one)[k][1]) for one in audits)]
        for k, (title, _, _) in enumerate(words.figures(view.audit)[:5])
    ]
    columns = [Column("", "text"), Column("Before"), Column("After")]
    said = f"Of {several(len(both), 'group')} in both audits, {less:,} have a smaller error after than before."
    return _section("compared", "Before and after", f"<p>{said}</p>" + table("both", "Both audits", columns, rows))


def candidates(view: View) -> str:
    """Return what every way to recalibrate would have done."""
    if not view.candidates:
        return ""
    chosen = next(one.name for one in view.candidates if one.is_chosen)
    rows = [
        [
            html(one.name) + f" ({several(one.n_trees, 'tree')})" * bool(one.n_trees) + ", chosen" * one.is_chosen,
            f"{one.log_loss:.4f} ± {one.log_loss_error:.4f}",
            f"{one.brier:.4f} ± {one.brier_error:.4f}",
            f"{one.auc:.4f}",
            view.size(one.violation, signed=False),
            f"{one.seconds:.2g}",
        ]
        for one in view.candidates
    ]
    columns = [Column("Candidate", "text"), Column("Log loss"), Column("Brier score"), Column("AUC")]
    columns += [Column("Largest degree-2 violation"), Column("Seconds")]
    caption = "On held-out rows of the fit; ± is the standard error of the change from the untouched model."
    said = (
        f"Cross-validation chose <b>{html(chosen)}</b>: the simplest candidate within one standard error of the best "
        "that lowers the log loss clearly and keeps the order of the scores, or else the model as it is."
    )
    body = f"<p>{said}</p>" + table("candidates-table", caption, columns, rows)
    return _section("candidates", "How the model was recalibrated", body)


# --- groups -------------------------------------------------------------------------------------------------


def worst(view: View, n: int = 10) -> str:
    """Return the worst groups with their intervals as pictures and as numbers."""
    audit = view.audit
    shown, tolerated, by = audit.shown(n), audit.tolerance.largest, audit.by
    earlier = [view.earlier(one.subpopulation) for one in shown]
    reach = charts.scale([*shown, *(one for one in earlier if one is not None)], tolerated, by)
    rows = [
        [
            name(one.subpopulation),
            *view.label_cell(one.label),
            share(one.mass),
            charts.interval(one, old, reach, tolerated, by),
            *view.error(one, "violation"),
            *view.error(one, "per_person"),
            words.judged(one),
        ]
        for one, old in zip(shown, earlier, strict=True)
    ]
    columns = [Column("Group", "text"), *view.label_column(), Column("Share")]
    columns += [Column(charts.axis(reach, view.decimals), "picture"), Column("Error"), Column("Interval")]
    columns += [Column("Per person"), Column("Interval"), Column("Predictions are", "text")]
    models = ' <span class="key two">before</span> <span class="key one">after</span>' if view.before else ""
    caption = (
        f"Errors{words.unit(audit)} with {audit.confidence * 100:.4g}% intervals that hold for all groups at once; the "
        f"shaded band is what is tolerated, ±{tolerated:g}.{models}"
    )
    return _section("worst", "The worst groups", table("worst-table", caption, columns, rows))


def findings(view: View) -> str:
    """Return the table of all groups."""
    audit, limit = view.audit, view.limits.rows
    columns = [
        Column("#"),
        Column("Group", "text"),
        *view.label_column(),
        Column("Share"),
        Column("Rows", hint="rows it is worth"),
    ]
    columns += [Column("Error"), *([Column("Error before")] if view.before else []), Column("Lower"), Column("Upper")]
    columns += [
        Column("Per person", hint="the error divided by the share of the group"),
        *([Column("Per person before")] if view.before else []),
        Column("Per person, lower"),
        Column("Per person, upper"),
        Column("Per person, at least", hint="the certified lower limit of the error per person, without its sign"),
        Column("Mean gap", hint="mean outcome less mean prediction"),
        Column("Chance", hint="what a perfect model shows by chance"),
    ]
    columns += [Column("Beyond zero", "text", "whether the interval excludes 0"), Column("Weight", "text")]
    rows = [_finding(view, k, one) for k, one in enumerate(audit.findings[:limit])]
    caption = f"All {several(len(audit.findings), 'group')}, worst first.{left_out(limit, len(audit.findings))}"
    body = table("groups-table", caption, columns, rows, row_heading=1, is_tool=True)
    return _section("groups", "All groups", body)


def _finding(view: View, k: int, one: Found) -> list[str]:
    old = view.earlier(one.subpopulation)
    errors = [cell for by in ORDERS for cell in _error(view, one, old, by)]
    linked = f'<a href="#g{k + 1}">{name(one.subpopulation)}</a>' if k < view.limits.groups else name(one.subpopulation)
    return [
        str(k + 1),
        linked,
        *view.label_cell(one.label),
        share(one.mass),
        count(one.n_effective),
        *errors,
        view.size(one.least_per_person, signed=False),
        number(one.largest_gap.gap, 3, signed=True),
        view.size(one.null_floor, signed=False),
        "yes" if one.is_significant else "no",
        html(shorten(one.weight, 60)),
    ]


def _error(view: View, one: Found, old: Found | None, by: By) -> list[str]:
    """Return an error, that of the earlier audit if there is one, and the limits."""
    value, *limits = one.interval(by)
    before = [] if view.before is None else [np.nan if old is None else old.interval(by)[0]]
    return [view.size(number) for number in (value, *before, *limits)]


def heat_map(view: View) -> str:
    """Return the moments E[c f^j (y - f)] of the groups by degree, as numbers on colours."""
    audit = view.audit
    shown = audit.findings[: view.limits.groups]
    degree = max((m.degree for one in shown for m, _ in audit.moments[one.subpopulation]), default=0)
    columns = [Column("Group", "text")]
    columns += [Column(f"Degree {j + 1}", hint=f"the weight {_power(j)}") for j in range(degree)]
    rows = [[name(one.subpopulation), *_hot(view, one.subpopulation)] for one in shown]
    label = ", for the label where it is largest (in brackets)" if view.is_multiclass else ""
    times = ", times its share" if audit.by == "violation" else ", per person"
    keys = "".join(
        f'<li><span class="{kind}" aria-hidden="true"></span>{text}</li>'
        for kind, text in (
            ("h0", "up to half of what is tolerated"),
            ("p1", "too low, tolerated"),
            ("p2", "too low, beyond it"),
            ("p3", "too low, beyond twice"),
            ("m1", "too high, tolerated"),
            ("m2", "too high, beyond it"),
            ("m3", "too high, beyond twice"),
        )
    )
    said = (
        f"<p>The mean of prediction<sup>j</sup> &times; (outcome &minus; prediction) over a group{times}"
        f"{label}. Degree j + 1 has the power j: degree 1 compares means; degree 2 sees overconfidence, which "
        "means cannot.</p>"
        f'<ul class="legend">{keys}</ul>'
    )
    caption = f"Errors by group and degree.{left_out(len(shown), len(audit.findings))}"
    return _section("degrees", "Errors by degree", said + table("heat", caption, columns, rows, is_tool=True))


def _power(j: int) -> str:
    return "1" if j == 0 else "prediction" if j == 1 else f"prediction to the power {j}"


def _hot(view: View, group: str) -> list[str | Cell]:
    """Return the cells of one group, a degree each."""
    audit = view.audit
    values, which = by_degree([moments for moments, _ in audit.moments[group]], audit.by == "per_person")
    return [
        Cell(
            view.size(value) + (f" ({html(shorten(view.labels[a], 20))})" if view.is_multiclass else ""),
            heat(value, audit.tolerance.largest),
        )
        for value, a in zip(values, which, strict=True)
    ]


def heat(value: float, alpha: float) -> str:
    """Return the class of a cell: its sign, and its size against what is tolerated.

    >>> [heat(v, 0.01) for v in (0.004, -0.008, 0.015, -0.03)]
    ['h0', 'm1', 'p2', 'm3']
    """
    steps = sum(abs(value) > limit * alpha for limit in (0.5, 1.0, 2.0))
    return "h0" if steps == 0 else f"{'p' if value > 0 else 'm'}{steps}"


# --- one group at a time ------------------------------------------------------------------------------------


def panels(view: View) -> list[tuple[Found, list[int]]]:
    """Return the groups that are described one by one, each with the labels that are shown of it."""
    shown = list(
        islice((one for one in view.audit.findings if one.subpopulation in view.audit.reliability), view.limits.groups)
    )
    left = view.limits.panels - len(shown)
    chosen = []
    for one in shown:
        first = view.place(one.label)
        others = [a for a in range(view.audit.layout.d) if a != first][: max(0, left)]
        left -= len(others)
        chosen.append((one, sorted([first, *others])))
    return chosen


def details(view: View) -> str:
    """Return, group by group, the reliability diagram and what is guaranteed."""
    chosen = panels(view)
    numbers = {id(one): k + 1 for k, one in enumerate(view.audit.findings)}
    body = "\n".join(_group(view, numbers[id(one)], one, which) for one, which in chosen)
    models = (
        ' Two models: <span class="key two">before</span> <span class="key one">after</span>.' if view.before else ""
    )
    missing = left_out(len(chosen), len(view.audit.findings))
    said = (
        f"<p>{html(words.guarantee_lead(view.audit))} In a diagram, points on the dashed line are right. The band "
        f"holds the mean outcomes of all bins of one group with {view.audit.confidence * 100:.4g}% confidence "
        f"(approximately); bins are cut at tenths of all rows.{models}{missing}</p>"
    )
    some = sum(len(which) < view.audit.layout.d for _, which in chosen)
    if some:
        said += f"<p>For {several(some, 'group')} not all labels are shown, but the worst one is.</p>"
    return _section(
        "each",
        "Group by group: reliability and guarantees",
        f'{said}<div id="each-list" data-tool="groups">{body}</div>',
    )


def _group(view: View, k: int, one: Found, which: Sequence[int]) -> str:
    is_open = " open" if k <= 3 else ""
    inner = "".join(_panel(view, k, one, a) for a in which)
    return (
        f'<details class="group" id="g{k}"{is_open}><summary><h3>{k}. {name(one.subpopulation)}</h3> '
        f"<span>error {view.size(one.violation)}, {view.size(one.interval('per_person')[0])} per person, "
        f"{share(one.mass)} of all</span></summary>{inner}</details>"
    )


def _panel(view: View, k: int, one: Found, a: int) -> str:
    """Return the diagram, its numbers and the sentences of one group and label."""
    audit, key = view.audit, f"g{k}-{a}"
    curve = charts.Curve.of(audit.reliability[one.subpopulation][a], audit.confidence)
    before = None
    if view.before is not None and one.subpopulation in view.before.reliability:
        before = charts.Curve.of(view.before.reliability[one.subpopulation][a], audit.confidence)
    of = f", label {shorten(view.labels[a], 40)}" if view.is_multiclass else ""
    title = f"Reliability of {shorten(one.subpopulation, 80)}{of}"
    head = f"<h4>Label {html(shorten(view.labels[a], 40))}</h4>" if view.is_multiclass else ""
    moments, margin = audit.moments[one.subpopulation][a]
    sentences = "".join(f"<li>{html(s)}</li>" for s in describe(moments, "this group", None, margin).sentences)
    return (
        f'<div class="panel">{head}<div class="pair"><figure>{charts.diagram(key, title, curve, before)}'
        f"<figcaption>{curve.words()}</figcaption></figure><ul>{sentences}</ul></div>"
        f"{_numbers(curve, before)}</div>"
    )


def _numbers(curve: charts.Curve, before: charts.Curve | None) -> str:
    """Return the bins as a table, behind a button."""
    tables = [_bins("After" if before else "Bins", curve)] + ([] if before is None else [_bins("Before", before)])
    return f"<details><summary>The diagram as a table</summary>{''.join(tables)}</details>"


def _bins(caption: str, curve: charts.Curve) -> str:
    heads = "".join(f'<th scope="col">{text}</th>' for text in ("Prediction", "Outcome", "Lower", "Upper", "Rows"))
    rows = "".join(
        f"<tr>{''.join(f'<td>{number(v, 3)}</td>' for v in row[:4])}<td>{count(row[4])}</td></tr>"
        for row in zip(
            curve.bins.prediction, curve.bins.outcome, curve.lower, curve.upper, curve.bins.rows, strict=True
        )
    )
    return (
        f'<table class="bins"><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    )


_MOMENTS = (
    ("Mean prediction", "mean_prediction", ""),
    ("Mean outcome", "mean_outcome", ""),
    ("Gap", "gap", "mean outcome less mean prediction"),
    ("Gap from", "gap_lower", "lower limit"),
    ("Gap to", "gap_upper", "upper limit"),
    ("Mean square", "moment_2", "of the predictions"),
    ("Truth's at least", "truth_moment_2_at_least", "the mean square of the truth, by Hölder's inequality"),
    (
        "Given to those with it",
        "true_positive_rate",
        "mean prediction of those with the outcome: the true positive rate",
    ),
    ("Variance", "variance", "of the predictions"),
    ("Justified", "justified", "the covariance of predictions and outcomes"),
    ("Excess from", "excess_lower", "variance that the outcomes do not justify, lower limit"),
    ("Excess to", "excess_upper", "variance that the outcomes do not justify, upper limit"),
)


def moments(view: View) -> str:
    """Return the moments of every group and label."""
    total = len(view.audit.findings) * view.audit.layout.d
    rows = list(islice(_moment_rows(view), view.limits.rows))
    columns = [Column("Group", "text"), *view.label_column()]
    columns += [Column(title, hint=hint) for title, _, hint in _MOMENTS]
    caption = f"Moments of predictions and outcomes, per person.{left_out(len(rows), total, 'rows')}"
    body = table("moments-table", caption, columns, rows, is_tool=True, what="rows")
    return _section("moments", "Moments", body)


def _moment_rows(view: View) -> Iterator[list[str]]:
    for one in view.audit.findings:
        for label, (group, margin) in zip(view.labels, view.audit.moments[one.subpopulation], strict=True):
            known = describe(group, "", None, margin).figures
            figures = [number(known.get(key, np.nan), 3) for _, key, _ in _MOMENTS]
            yield [name(one.subpopulation), *view.label_cell(label), *figures]


# --- the foot -----------------------------------------------------------------------------------------------


def reading(view: View) -> str:
    """Return how the figures are to be read."""
    return _section(
        "reading", "How to read this", "".join(f"<p>{html(said)}</p>" for said in words.meaning(view.audit))
    )


def provenance(view: View) -> str:
    """Return where the figures come from."""
    rows = [(html(title), html(shorten(value, 400))) for title, value in words.provenance(view.audit)]
    return _section("source", "Where this comes from", pairs(rows))


def _section(key: str, title: str, body: str) -> str:
    return f'<section aria-labelledby="{key}"><h2 id="{key}">{title}</h2>{body}</section>'
