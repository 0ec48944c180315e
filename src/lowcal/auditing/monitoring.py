"""Audits by windows of time (`audit(..., by=...)`): the windows, the drift of groups between them, and the report.

Drift: whether the error of a group in the latest windows differs from its error in all windows before them.

The error of a group is its mean outcome less its mean prediction, for every label. After each window, the last 1, 3
and 12 windows are compared with all before. A comparison uses no later window, its level is fixed in advance, and the
levels of all comparisons, groups and labels sum to 1 - confidence. By the union bound, this limits the chance of any
false alarm, however groups overlap, as far as the scores are normal; the null hypothesis is that the error is constant,
not that it is zero. Tail probabilities of comparisons that overlap in time nearly add up: the bound is close.

A comparison's level is split between rising and falling errors by a statistic that is independent of the difference:
the precision-weighted mean of both sides. Where the errors of the groups are near 0, as those of a calibrated model
are, a mean above 0 is a sign that the error has risen (`Contrast.rising`). This changes power only, not the level.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit, ndtr

from lowcal.auditing import words
from lowcal.auditing.page import monitoring_page
from lowcal.auditing.panel import Panel
from lowcal.auditing.reports import AuditReport, Gap, Origin, Verdict, labels_of, plain, written
from lowcal.auditing.score import ConstraintSums, normal_score
from lowcal.data.errors import InvalidInput, abbreviate, aligned, brief, printable
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import read_table
from lowcal.guarantees.groups import ratio
from lowcal.kernels.products import dot
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.notions.weights import Monomial
from lowcal.rows.base import Memory
from lowcal.rows.engines import open_engine
from lowcal.solve.homes import Home, far_roles
from lowcal.subpopulations.levels import show_dates

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from lowcal.auditing.plotting import DriftDisplay


# --- windows ---------------------------------------------------------------------------------------------------
#: A column with more distinct values than this holds times of day or identifiers, not windows.
MOST = 400


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a column in the order of time, the window of every row, and the other columns of the table."""

    by: str
    names: tuple[Any, ...]
    codes: IntArray
    rest: Frame

    def panels(self, home: Home) -> tuple[tuple[Any, ...], list[Panel], list[float]]:
        """Return the windows that have weight: their names, rows, and shares of the total weight.

        The home was opened on `rest`. Its groups and cut points are those of all rows, so windows can be compared.
        """
        if not home.learner.is_exact:
            raise InvalidInput(
                "by= compares the same groups in every window, but a learned class finds others each time. Use Groups, "
                "Intersections, Memberships or Thresholds."
            )
        assert isinstance(home.rows, Memory)
        codes = self.codes if home.given is None else self.codes[np.flatnonzero(home.given[0].weight)]
        families, is_label = tuple(home.learner.families), home.layout.classes is not None
        kept = np.unique(codes)
        rows = [np.flatnonzero(codes == t) for t in kept]
        panels = [Panel(home.rows.taken(some), families, is_label) for some in rows]
        shares = [float(home.rows.whole.weight[some].sum()) for some in rows]
        return tuple(self.names[t] for t in kept), panels, shares


def read_windows(
    y: ArrayLike, p: ArrayLike, X: object, sample_weight: ArrayLike | None, by: str, memory: int | None
) -> Windows:
    """Split the rows of X by a column of numbers, text or dates, whose sorted values are the windows in order of time.

    >>> table = {"month": ["2024-02", "2024-01", "2024-02"], "sex": ["F", "M", "M"]}
    >>> windows = read_windows([0, 1, 0], [0.5, 0.5, 0.5], table, None, "month", None)
    >>> windows.names, windows.codes.tolist(), windows.rest
    (('2024-01', '2024-02'), [1, 0, 1], Table(3 rows: 'sex'))
    """
    if X is None:
        raise InvalidInput(f"by names the column {by!r}, but X is None; give the table that holds it as X.")
    if open_engine(X) is not None or far_roles(y, p, X, sample_weight, memory) is not None:
        raise InvalidInput("by= needs the rows in memory. Give the rows of the windows you watch, or a sample of them.")
    table = read_table(X)
    column = table.column(by)
    order: list[Any] = list(column.categories or ())
    if column.categories is None:
        order = sorted(value for value in column.distinct()[0] if value is not None and value == value)
    codes = column.encode(tuple(order))
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise InvalidInput(f"Column {by!r} of X, row {row}: the window is missing. Fill it in or drop the row.")
    kept, places = np.unique(codes, return_inverse=True)
    if len(kept) > MOST:
        raise InvalidInput(
            f"Column {by!r} of X has {len(kept):,} different values; by= makes a window of each, and {MOST} at most. "
            "Round it to days, weeks or months."
        )
    values = [order[k] for k in kept]  # numbers and text name windows as they are, dates in the form of ISO 8601
    whole = (int(one) if isinstance(one, float) and one.is_integer() else one for one in values)
    names = show_dates(values) if column.is_date else tuple(whole)
    return Windows(by, names, places.astype(np.intp), table.without([column.name]))


# --- drift -----------------------------------------------------------------------------------------------------
#: The numbers of latest windows that are compared with all before them, and each one's share of the level. Three months
#: get most: a single month shows only large changes, and a year is slow. Chosen, with PAST, by the power against the
#: drift of benchmarks/monitoring.py, with normal errors.
SPANS = {1: 0.05, 3: 0.9, 12: 0.05}
#: A comparison gets its full level once there are this many windows before: the error over a short past is imprecise.
PAST = max(SPANS)
#: The level is allocated to at least this many windows, with which the longest comparison has its full level. Up to
#: then, added windows change no alarm if the groups stay the same.
HORIZON = PAST + max(SPANS)
#: The drift that the split between rise and fall is designed for, in standard errors of the difference: one that is
#: just detectable. Each side keeps at least this share of the level, for groups whose error is unlike the others'.
FOUND, LEAST_SIDE = 4.0, 0.1


class Sums(NamedTuple):
    """Sums over the rows of every window, group and label, (K, m, d): of w c, w c z, and of w^2 c^2 times 1 and z^2.

    `noise` is the sum of w^2 c^2 times the variance of labels drawn from the predictions, `third` their third cumulant.
    """

    mass: FloatArray
    residual: FloatArray
    square: FloatArray
    second: FloatArray
    noise: FloatArray
    third: FloatArray

    def over(self, first: int, end: int) -> Sums:
        """Return the sums over some windows, (m, d)."""
        return Sums(*(one[first:end].sum(axis=0) for one in self))

    @property
    def error(self) -> FloatArray:
        """The mean residual; nan without rows."""
        return ratio(self.residual, self.mass)


def window_sums(panels: Sequence[Panel], shares: Sequence[float]) -> Sums:
    """Return the sums of windows that hold these shares of all weight."""
    every = []
    for panel, share in zip(panels, shares, strict=True):
        names, believed = ("v", "second", "noise", "noise3"), panel.share if panel.is_label else None
        run = ConstraintSums(panel.families, (Monomial(),), believed, panel.rows.is_even, names)
        v, second, noise, third = (one[:, 0, :] for one in panel.rows.run(run))
        square = ratio(np.square(panel.mass), panel.n_effective, 0.0)
        mass, square = (np.broadcast_to(one[:, None], v.shape) for one in (panel.mass, square))
        own = (mass, 1), (v, 1), (square, 2), (second, 2), (noise, 2), (third, 3)
        every.append([one * share**power for one, power in own])
    return Sums(*(np.stack(one) for one in zip(*every, strict=True)))


class Contrast(NamedTuple):
    """The normal score of the difference of the errors before and after a window began, (m, d).

    `rising` is the share of the level for a rise of the error; a fall has the rest.
    """

    score: FloatArray
    rising: FloatArray

    @property
    def p_value(self) -> FloatArray:
        """The smaller of the p-values of both directions, each divided by its share."""
        return np.asarray(np.fmin(ndtr(-self.score) / self.rising, ndtr(self.score) / (1.0 - self.rising)))


@dataclass(frozen=True, eq=False)
class Drift:
    """The drift of every group and label, from the sums of windows in the order of time.

    `is_label`: outcomes are labels, whose noise is assumed to be at least that of the predictions.
    """

    sums: Sums
    is_label: bool = True

    @cached_property
    def error(self) -> FloatArray:
        """The mean outcome less the mean prediction in every window, (K, m, d); nan without rows."""
        return self.sums.error

    @cached_property
    def standard_error(self) -> FloatArray:
        """The standard error of `error`, from this window and those before."""
        spread = np.stack([self._dispersion(t) for t in range(1, len(self.error) + 1)])
        return np.sqrt(ratio(spread * self.sums.noise, np.square(self.sums.mass)))

    @cached_property
    def p_value(self) -> FloatArray:
        """The adjusted p-values, (K, m, d): an alarm is raised at a window where this is at most 1 - confidence.

        The smallest of the p-values of the window's comparisons, each divided by its share of the level.
        """
        n, tests = self.error.shape[0], self.error[0].size
        found = np.ones(self.error.shape)
        for (end, span), share in level_shares(n).items():
            p = self.contrast(end - span, end).p_value * tests / share
            found[end - 1] = np.fmin(found[end - 1], p)
        return found

    def contrast(self, split: int, end: int) -> Contrast:
        """Compare the windows from `split` to before `end` with all before `split`.

        Labels are drawn independently, so variances and third cumulants of the two errors add up; these are those of
        the predictions, times the dispersion. The normal score accounts for the skewness of few labels.
        """
        before, after = self.sums.over(0, split), self.sums.over(split, end)
        spread = self._dispersion(end)
        old, new = (spread * ratio(one.noise, np.square(one.mass)) for one in (before, after))
        variance = old + new
        third = spread * (ratio(after.third, after.mass**3) - ratio(before.third, before.mass**3))
        t = ratio(after.error - before.error, np.sqrt(variance))
        score = normal_score(t, ratio(third, variance**1.5))
        return Contrast(score, _rising(before.error, after.error, old, new))

    def _dispersion(self, end: int) -> FloatArray:
        """Return the ratio of the variance observed before a window to that under the predictions.

        For labels it is at least 1: a small group without outcomes does not show that there is no noise.
        """
        known = self.sums.over(0, end)
        observed = known.second - np.square(known.error) * known.square
        return np.maximum(ratio(observed, known.noise), 1.0 if self.is_label else 0.0)

    def since(self, end: int, group: int, label: int) -> int:
        """Return the likeliest onset before `end`: the window from which the error differs most clearly from before."""
        scores = [self.contrast(split, end).score[group, label] for split in range(1, end)]
        return 1 + int(np.nanargmax(np.abs(scores)))


def _rising(before: FloatArray, after: FloatArray, old: FloatArray, new: FloatArray) -> FloatArray:
    """Return the share of the level for a rise, from the precision-weighted mean of both sides.

    It is the probability of a rise if errors rise or fall by FOUND standard errors equally often and if errors before
    vary between groups as the means of all groups do. Normal means are independent of the differences.
    """
    variance = old + new
    mean, noise = ratio(before * new + after * old, variance), ratio(old * new, variance)
    known = np.isfinite(mean)
    between = np.where(known, np.square(mean) - noise, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    shift = ratio(FOUND * old, np.sqrt(variance))
    odds = ratio(2.0 * mean * shift, np.maximum(between, 0.0) + noise, 0.0)
    return np.asarray(LEAST_SIDE + (1.0 - 2.0 * LEAST_SIDE) * expit(np.nan_to_num(odds)))


def level_shares(n_windows: int) -> dict[tuple[int, int], float]:
    """Return each comparison's share of the level, by the number of windows so far and the number of latest windows.

    >>> shares = level_shares(24)
    >>> round(sum(shares.values()), 9), shares[14, 3] == level_shares(14)[14, 3]
    (1.0, True)
    """
    ends = range(2, max(n_windows, HORIZON) + 1)
    size = {(t, k): share * min(1.0, (t - k) / PAST) for t in ends for k, share in SPANS.items() if k < t}
    return {(t, k): one / sum(size.values()) for (t, k), one in size.items() if t <= n_windows}


# --- the report ------------------------------------------------------------------------------------------------
#: The number of groups drawn by default.
DRAWN = 9


@dataclass(frozen=True)
class Alarm:
    """A group whose error changed: raised at `window`, from the rows up to then; `since` is the likeliest onset.

    `predicted` and `actual` are the means since then, `predicted_before` and `actual_before` those of all windows
    before. The p-value is adjusted: with no drift anywhere, the smallest of all windows and groups is at most
    1 - confidence with at most that probability.
    """

    window: Any
    since: Any
    subpopulation: str
    label: Any
    predicted: float
    actual: float
    predicted_before: float
    actual_before: float
    p_value: float

    @property
    def gap(self) -> float:
        """Mean outcome less mean prediction since the change: positive where predictions are too low."""
        return self.actual - self.predicted

    @property
    def gap_before(self) -> float:
        """Mean outcome less mean prediction before it."""
        return self.actual_before - self.predicted_before

    def named(self, classes: Sequence[Any]) -> Alarm:
        """Return the alarm with another name for the class 0, 1, ..., by which it was made."""
        return replace(self, label=classes[self.label])

    def to_dict(self) -> dict[str, Any]:
        """Return the alarm as plain data."""
        return plain(vars(self) | {"gap": self.gap, "gap_before": self.gap_before})

    def __str__(self) -> str:
        who = brief(self.subpopulation) + ("" if self.label is None else f", {printable(str(self.label))}")
        means = (self.predicted, self.actual, self.predicted_before, self.actual_before)
        now, then, old, past = map(words.rate, means)
        since = f"since {printable(str(self.since))}, predicted {now}, actual {then}"
        return f"{who}: {since}; before, predicted {old}, actual {past} (adjusted p-value {self.p_value:.2g})"


class Course(NamedTuple):
    """A group (and label, if there are several): its name, its gap in every window, and its alarm if there is one."""

    name: str
    gaps: list[Gap]
    alarm: Alarm | None


@dataclass(frozen=True, eq=False)
class MonitoringReport:
    """What `audit(..., by=...)` returns.

    `windows` maps every window to its `AuditReport`, in the order of time. Each holds with confidence
    1 - (1 - confidence) / K for K windows, so all intervals and verdicts of all windows and groups hold at once with
    `confidence` (union bound). `verdict` is "violated" if that of any window is, "satisfied" if all are.

    `alarms` are the groups whose error changed, each when it was first detected. If no group's error ever changes, the
    probability of any alarm is at most 1 - confidence, even if errors are not zero and alarms are read month after
    month (`lowcal.auditing.monitoring`). `drift` has the error of every window, group and label, its standard
    error and p-value, as arrays; `names` and `labels` are their last two axes.
    """

    by: str
    confidence: float
    windows: Mapping[Any, AuditReport] = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    drift: Drift = field(repr=False)
    alarms: tuple[Alarm, ...]
    notes: tuple[str, ...] = ()
    seed: int | None = None
    origin: Origin = field(default_factory=Origin, repr=False)

    @classmethod
    def of(
        cls, by: str, windows: Mapping[Any, AuditReport], names: tuple[str, ...], drift: Drift, confidence: float
    ) -> MonitoringReport:
        """Report on audited windows: raise the alarms, and keep the notes that all windows share."""
        first, *rest = windows.values()
        notes = tuple(note for note in first.notes if all(note in one.notes for one in rest))
        report = cls(by, float(confidence), windows, names, drift, (), notes)
        is_alarm = drift.p_value <= 1.0 - confidence  # the first of every group and label counts
        raised = [(int(is_alarm[:, j, a].argmax()), j, a) for j, a in np.argwhere(is_alarm.any(axis=0)).tolist()]
        return replace(report, alarms=tuple(_alarm(report, *one) for one in sorted(raised)))

    @property
    def labels(self) -> tuple[Any, ...]:
        """The labels: one for each class, or the positive class alone of two."""
        return labels_of(self.latest.layout)

    @property
    def latest(self) -> AuditReport:
        """The audit of the last window."""
        return [*self.windows.values()][-1]

    @property
    def verdict(self) -> Verdict:
        """Whether the notion holds in all windows."""
        found = {one.verdict for one in self.windows.values()}
        every = (Verdict.VIOLATED, Verdict.UNDECIDED, Verdict.SATISFIED)
        return next(one for one in every if one in found)

    @property
    def is_failed(self) -> bool:
        """Whether a window is violated or a group drifted; the command's exit code is 1 then."""
        return bool(self.alarms) or self.verdict is Verdict.VIOLATED

    def gaps(self, subpopulation: str, label: int = 0) -> list[Gap]:
        """Return mean prediction and outcome of a group in every window, with limits that hold for all at once."""
        if subpopulation not in self.names:
            raise InvalidInput(f"There is no subpopulation {subpopulation!r}; see report.names.")
        return [one.finding(subpopulation).gaps[label] for one in self.windows.values()]

    def most_changed(self, n: int | None = None) -> list[Course]:
        """Return the n groups and labels that changed most; those with an alarm come first."""
        of_label = {label: a for a, label in enumerate(self.labels)}
        alarms = {(self.names.index(one.subpopulation), of_label.get(one.label, 0)): one for one in self.alarms}
        least = self.drift.p_value.min(axis=0)
        order = np.argsort(least, axis=None, kind="stable").tolist()
        places = dict.fromkeys([*alarms, *(divmod(one, least.shape[1]) for one in order)])
        label = [""] if len(self.labels) == 1 else [f", {one}" for one in self.labels]
        return [
            Course(self.names[j] + label[a], self.gaps(self.names[j], a), alarms.get((j, a)))
            for j, a in list(places)[:n]
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, ready for JSON."""
        return {
            **plain({name: getattr(self, name) for name in ("by", "confidence", "seed")}),
            "verdict": self.verdict.value,
            "alarms": [one.to_dict() for one in self.alarms],
            "notes": list(self.notes),
            "drift": self._drift_rows(),
            "windows": [
                {"window": plain({"name": name})["name"], **one.to_dict()} for name, one in self.windows.items()
            ],
        }

    def _drift_rows(self) -> list[dict[str, Any]]:
        """Return a row for every window, group and label that has rows."""
        figures = {name: getattr(self.drift, name) for name in ("error", "standard_error", "p_value")}
        windows, labels, rows = list(self.windows), self.labels, []
        for t, j, a in np.argwhere(np.isfinite(self.drift.error)).tolist():
            who = {"window": windows[t], "subpopulation": self.names[j], "label": labels[a]}
            rows.append(plain(who | {name: float(value[t, j, a]) for name, value in figures.items()}))
        return rows

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """Return `to_dict` as JSON; with a path, also write it there, whole or not at all."""
        return written(json.dumps(self.to_dict(), indent=1, allow_nan=False, default=str) + "\n", path)

    def to_markdown(self) -> str:
        """Return the windows and the alarms as Markdown."""
        rows = self.table()
        alarms = [f"- {words.marked(one.window)}: {words.marked(one, 1000)}" for one in self.alarms]
        blocks = [
            f"# Calibration by {words.marked(self.by)}",
            words.marked(self.summary, 1000),
            words.markdown_table(rows, "l" * len(rows[0])),
            words.marked(self.alarm_lead, 1000),
            "\n".join(alarms),
            *(f"> Note: {words.marked(note, 1000)}" for note in self.notes),
        ]
        return "\n\n".join(filter(None, blocks)) + "\n"

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """Return the report as one HTML page that needs nothing else (by jinja2); with a path, also write it there."""
        return written(monitoring_page(self), path)

    def plot(self, *, n: int | None = DRAWN, axes: Any = None) -> DriftDisplay:
        """Draw the error of the n groups that changed most (None: all), window by window; alarms are marked.

        Returns a `lowcal.DriftDisplay` with the attributes `axes_` and `figure_`. Needs matplotlib.
        """
        from lowcal.auditing.plotting import DriftDisplay

        return DriftDisplay.from_report(self, n=n, axes=axes)

    # --- words

    @property
    def summary(self) -> str:
        """The number of windows with each verdict, in a sentence."""
        found = [one.verdict.value for one in self.windows.values()]
        counts = [f"{found.count(one.value)} {one.value}" for one in Verdict if one.value in found]
        asked = f"{self.latest.notion} at {self.latest.tolerance}"
        intervals = f"all intervals hold at once with {100 * self.confidence:.4g}% confidence"
        return (
            f"{asked}, {words.several(len(found), 'window')} by {printable(self.by)}: {', '.join(counts)}; {intervals}."
        )

    @property
    def alarm_lead(self) -> str:
        """The number of alarms, and the chance of any without drift."""
        chance = f"without drift, the chance of any alarm is at most {words.percent(1.0 - self.confidence)}"
        if len(self.windows) == 1:
            return "Drift: a single window has nothing before it to compare with."
        return f"Drift: {words.several(len(self.alarms), 'alarm') if self.alarms else 'no alarm'} ({chance})."

    def table(self) -> list[list[str]]:
        """Return the windows as rows of cells, with their headings first: the worst group, its error and interval."""
        noun = words.noun(self.latest).capitalize()
        raised = [one.window for one in self.alarms]
        rows = []
        for name, one in self.windows.items():
            worst = one.worst(1)[0]
            value, lower, upper = (words.size(one, end, signed=True) for end in worst.interval(one.by))
            found = [abbreviate(printable(worst.subpopulation), 40), value, f"[{lower}, {upper}]"]
            alarms = [words.several(raised.count(name), "alarm") if name in raised else ""]
            rows.append([printable(str(name)), f"{one.n_rows:,}", one.verdict.value, *found, *alarms])
        return [["Window", "Rows", "Verdict", "Worst group", noun, "Interval", "Drift"], *rows]

    def __str__(self) -> str:
        table = aligned(self.table(), "lrllrll")
        alarms = [
            fill(f"{printable(str(one.window))}: {one}", 110, initial_indent="  ", subsequent_indent="    ")
            for one in self.alarms
        ]
        notes = [fill(f"Note: {note}", 110, subsequent_indent="      ") for note in self.notes]
        return "\n".join([fill(self.summary, 110), "", *table, "", fill(self.alarm_lead, 110), *alarms, *notes])


def _alarm(report: MonitoringReport, t: int, j: int, a: int) -> Alarm:
    windows, drift = list(report.windows), report.drift
    split = drift.since(t + 1, j, a)
    mass, gaps = drift.sums.mass[:, j, a], report.gaps(report.names[j], a)

    def mean(of: str, part: slice) -> float:
        return dot(mass[part], np.nan_to_num([getattr(one, of) for one in gaps[part]])) / float(mass[part].sum())

    now, past = slice(split, t + 1), slice(split)
    return Alarm(
        window=windows[t],
        since=windows[split],
        subpopulation=report.names[j],
        label=None if len(report.labels) == 1 else report.labels[a],
        predicted=mean("predicted", now),
        actual=mean("actual", now),
        predicted_before=mean("predicted", past),
        actual_before=mean("actual", past),
        p_value=float(drift.p_value[t, j, a]),
    )
