"""The report of an audit by windows: an audit of every window, and the groups whose error drifted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lowcal.auditing.certificates.drift import Drift
from lowcal.auditing.reports import words
from lowcal.auditing.reports.audit_report import AuditReport, Gap, Origin, Verdict, label_of, plain, written
from lowcal.auditing.reports.page import monitoring_page
from lowcal.data.errors import InvalidInput, abbreviate, aligned, brief, printable
from lowcal.kernels.products import dot

if TYPE_CHECKING:
    from lowcal.auditing.plotting import DriftDisplay

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
    month (`lowcal.auditing.certificates.drift`). `drift` has the error of every window, group and label, its standard
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
        return replace(report, alarms=tuple(_alarms(report)))

    @property
    def labels(self) -> tuple[Any, ...]:
        """The labels: one for each class, or the positive class alone of two."""
        layout = self.latest.layout
        return tuple(label_of(layout, a) for a in range(layout.d))

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
        alarms = {self._place_of(one): one for one in self.alarms}
        least = self.drift.p_value.min(axis=0)
        order = np.argsort(least, axis=None, kind="stable").tolist()
        places = dict.fromkeys([*alarms, *(divmod(one, least.shape[1]) for one in order)])
        label = [""] if len(self.labels) == 1 else [f", {one}" for one in self.labels]
        return [
            Course(self.names[j] + label[a], self.gaps(self.names[j], a), alarms.get((j, a)))
            for j, a in list(places)[:n]
        ]

    def _place_of(self, alarm: Alarm) -> tuple[int, int]:
        """Return the positions of an alarm's group and label in `names` and `labels`."""
        label = 0 if alarm.label is None else self.labels.index(alarm.label)
        return self.names.index(alarm.subpopulation), label

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


def _alarms(report: MonitoringReport) -> list[Alarm]:
    """Return the first alarm of every group and label, in the order of time."""
    is_alarm = report.drift.p_value <= 1.0 - report.confidence
    raised = [(int(is_alarm[:, j, a].argmax()), int(j), int(a)) for j, a in np.argwhere(is_alarm.any(axis=0))]
    return [_alarm(report, *one) for one in sorted(raised)]


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
