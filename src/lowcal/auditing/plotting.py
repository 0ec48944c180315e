"""Displays: plots in the style of scikit-learn, with their values as attributes (matplotlib, an extra).

`from_...` computes and draws; `plot(ax=...)` draws again, on the axes given; `ax_` and `figure_` are what it drew on.
The two colours are from the Okabe-Ito palette: distinct for every kind of colour vision and in grey; marks and hatches
show the same. No setting of matplotlib is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from lowcal.auditing.audits import MetricRows, measure
from lowcal.auditing.monitoring import DRAWN, MonitoringReport
from lowcal.auditing.panel import ReliabilityBins, reliability
from lowcal.auditing.reports import SHOWN, AuditReport
from lowcal.auditing.words import noun
from lowcal.data.errors import InvalidInput, MissingExtra, abbreviate, check_choice
from lowcal.data.inputs import check_share, check_whole, spelled_out
from lowcal.guarantees import moment_sandwich
from lowcal.guarantees.groups import GroupRows, read_label
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.notions import Notion
from lowcal.rows import Memory
from lowcal.solve.fitting import Fit
from lowcal.subpopulations import EVERYONE
from lowcal.subpopulations.base import Everyone

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: What `HierarchyDisplay` measures.
LEVELS = ("multiaccuracy", "degree-2", "degree-3", "degree-4", "smooth", "full-0.1")
#: Vermilion and blue of the Okabe-Ito palette.
BEFORE, AFTER = "#D55E00", "#0072B2"


class Display:
    """The base of displays: the axes and the figure they drew on, and the size of a new figure in inches."""

    ax_: Any = None
    figure_: Any = None
    size: tuple[float, float] = (6.5, 4.5)

    def plot(self, ax: Any = None) -> Self:
        """Draw on the axes given, or on new ones of pyplot as scikit-learn's displays do, and return the display."""
        self.ax_ = _pyplot().subplots(figsize=self.size, layout="constrained")[1] if ax is None else ax
        self.figure_ = self.ax_.figure
        self._draw(self.ax_)
        self.ax_.spines[["top", "right"]].set_visible(False)
        return self

    def _draw(self, axes: Any) -> None:
        raise NotImplementedError


@dataclass(eq=False)
class ViolationDisplay(Display):
    """Violations of groups with their intervals, the worst first.

    `before` are the violations of an earlier model, nan where it has no such group. `unit` names what is drawn:
    violations, or errors per person. `shown` is the number of groups drawn.

    >>> from lowcal import audit
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(2000, random_state=0)
    >>> report = audit(data.y, data.p, data.X, random_state=0)
    >>> display = ViolationDisplay.from_report(report, n=10)
    >>> display.names[0], len(display.violation) == len(report.findings)
    ('everyone', True)
    """

    names: tuple[str, ...]
    violation: FloatArray
    lower: FloatArray
    upper: FloatArray
    alpha: float
    confidence: float
    before: FloatArray | None = None
    unit: str = "violation"
    shown: int = 0

    def plot(self, ax: Any = None, *, n: int | None = SHOWN) -> Self:
        """Draw the n worst groups (None: all) and return the display."""
        check_whole("n", 1 if n is None else n, 1)
        self.shown = len(self.names) if n is None else min(n, len(self.names))
        self.size = (8.0, 1.6 + 0.24 * max(self.shown, 3))
        return super().plot(ax)

    def _draw(self, axes: Any) -> None:
        shown, at = self.shown, np.arange(self.shown)
        value, lower, upper = self.violation[:shown], self.lower[:shown], self.upper[:shown]
        axes.axvspan(-self.alpha, self.alpha, color="0.9", zorder=0, label=f"tolerated, ±{self.alpha:g}")
        axes.axvline(0.0, color="0.4", linewidth=1, zorder=1)
        if self.before is not None:
            axes.plot(self.before[:shown], at, "s", color=BEFORE, markersize=5, label="before", zorder=2)
        axes.hlines(at, lower, upper, color=AFTER, linewidth=2, zorder=3)
        name = self.unit if self.before is None else "after"
        axes.plot(value, at, "o", color=AFTER, markersize=6, label=f"{name}, {self.confidence:.0%} interval", zorder=4)
        axes.set_yticks(at, [short(name) for name in self.names[:shown]])
        for label in axes.get_yticklabels():
            label.set_parse_math(False)  # dollar signs in names are shown as they are
        axes.set_ylim(shown - 0.5, -0.5)
        left = len(self.names) - shown
        rest = f"\n{left:,} of {len(self.names):,} groups, ranked below these, are not shown" if left else ""
        axes.set_xlabel(f"predictions too high  ←  {self.unit}  →  too low{rest}")
        axes.xaxis.get_major_locator().set_params(nbins=5)  # more would touch each other
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)

    @classmethod
    def from_report(
        cls, report: AuditReport, *, n: int | None = SHOWN, before: AuditReport | None = None, ax: Any = None
    ) -> Self:
        """Draw the n worst groups of an audit (None: all), with the violations of an earlier one beside them."""
        _check_report(report)
        names, by = tuple(one.subpopulation for one in report.findings), report.by
        value, lower, upper = np.array([one.interval(by) for one in report.findings]).T
        old = None
        if before is not None:
            known = report.comparable(before).by_name
            old = np.array([known[name].interval(by)[0] if name in known else np.nan for name in names])
        limits = report.tolerance.largest, report.confidence
        return cls(names, value, lower, upper, *limits, old, noun(report)).plot(ax, n=n)


@dataclass(eq=False)
class ReliabilityDisplay(Display):
    """The reliability of one group: mean outcome against mean prediction in bins, with the band of the outcomes.

    The band holds for all bins of the group at once. `before` is the curve of an earlier model.

    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(2000, random_state=0)
    >>> display = ReliabilityDisplay.from_predictions(data.y, data.p, data.X["g0"] == "a", title="g0=a")
    >>> len(display.curve.prediction)
    10
    """

    curve: ReliabilityBins
    before: ReliabilityBins | None
    title: str
    confidence: float
    size = (5.0, 5.0)

    def _draw(self, axes: Any) -> None:
        curve, before, (lower, upper) = self.curve, self.before, self.curve.limits(self.confidence)
        axes.plot([0, 1], [0, 1], ":", color="0.4", label="perfect")
        if before is not None:
            axes.plot(before.prediction, before.outcome, "s--", color=BEFORE, markersize=5, label="before")
        axes.fill_between(curve.prediction, lower, upper, color=AFTER, alpha=0.2, linewidth=0)
        axes.vlines(curve.prediction, lower, upper, color=AFTER, linewidth=1)
        label = f"{'model' if before is None else 'after'}, {self.confidence:.0%} band"
        axes.plot(curve.prediction, curve.outcome, "o-", color=AFTER, markersize=5, label=label)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="mean prediction", ylabel="mean outcome")
        axes.set_title(short(self.title, 40), parse_math=False)
        axes.legend(frameon=False, loc="upper left")

    @classmethod
    def from_report(
        cls,
        report: AuditReport,
        subpopulation: str | None = None,
        *,
        label: Any = None,
        before: AuditReport | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw one group of an audit, the worst unless named; of several labels, the worst unless named."""
        _check_report(report)
        found = report.findings[0] if subpopulation is None else report.finding(subpopulation)
        shown, name = found.label if label is None else label, found.subpopulation
        a = 0 if report.layout.d == 1 and label is None else read_label(shown, report.layout)
        curves, n = report.reliability.get(name), len(report.reliability)
        if curves is None:
            raise InvalidInput(f"The report keeps no bins of {name!r}, only of the worst {n} groups.")
        old = None if before is None else report.comparable(before).reliability.get(name)
        title = name if report.layout.d == 1 else f"{name}, label {shown}"
        return cls(curves[a], None if old is None else old[a], title, report.confidence).plot(ax)

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        c: ArrayLike | None = None,
        *,
        label: Any = None,
        p_before: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        classes: Sequence[Any] | None = None,
        confidence: float = 0.95,
        title: str = "",
        ax: Any = None,
    ) -> Self:
        """Draw the rows of one group, c being the membership of each row (None: everyone)."""

        def curve_of(p: ArrayLike) -> ReliabilityBins:
            group = GroupRows.read(y, p, c, sample_weight=sample_weight, classes=classes)
            if not group.weight.any():
                raise InvalidInput("No row with weight belongs to c, so there is nothing to draw.")
            a = [read_label(label, group.layout)]
            rows = Memory.of(np.zeros((len(group.p), 0)), group.p[:, a], group.y[:, a], group.weight)
            return reliability(rows, [Everyone()])[EVERYONE][0]

        check_share("confidence", confidence)
        return cls(curve_of(p), None if p_before is None else curve_of(p_before), title, confidence).plot(ax)


@dataclass(eq=False)
class DriftDisplay:
    """The error of groups over windows of time, one plot each on a common scale: those that changed most come first.

    `error[k]` is the mean outcome less the mean prediction of `names[k]` in every window, nan without rows, and `lower`
    and `upper` are limits that hold for all windows and groups at once. `raised[k]` is the window that raised an alarm
    and `since[k]` the onset of the change; both are -1 without an alarm.

    >>> from lowcal import audit
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(2000, random_state=0)
    >>> month = [1 + k // 500 for k in range(2000)]
    >>> report = audit(data.y, data.p, {**data.X, "month": month}, by="month", random_state=0)
    >>> DriftDisplay.from_report(report, n=4).error.shape
    (4, 4)
    """

    names: tuple[str, ...]
    windows: tuple[str, ...]
    error: FloatArray
    lower: FloatArray
    upper: FloatArray
    raised: IntArray
    since: IntArray
    confidence: float
    axes_: Any = None
    figure_: Any = None

    def plot(self, *, axes: Any = None) -> Self:
        """Draw on the axes given, one for each group, or on new ones, and return the display."""
        n = len(self.names)
        self.axes_ = self._new_axes(n) if axes is None else np.asarray(axes, dtype=object).ravel()
        if len(self.axes_) < n:
            raise InvalidInput(f"axes has {len(self.axes_)} axes for {n} groups; give one for each, or fewer groups.")
        self.figure_ = self.axes_[0].figure
        for k, one in enumerate(self.axes_[:n]):
            self._draw(one, k)
        label = f"actual minus predicted, {self.confidence:.0%} intervals over all windows and groups"
        alarm = "; square: alarm, shaded: since the change" if (self.raised >= 0).any() else "; no drift alarm"
        self.figure_.supxlabel(label + alarm, fontsize="small")
        return self

    def _new_axes(self, n: int) -> Any:
        """Return n axes of one scale, three in a row; the lowest of each column names the windows."""
        columns = min(3, n)
        rows = -(-n // columns)
        size = 1.0 + 3.4 * columns, 0.8 + 1.9 * rows  # inches
        share: dict[str, Any] = {"sharex": True, "sharey": True, "squeeze": False, "layout": "constrained"}
        axes = _pyplot().subplots(rows, columns, figsize=size, **share)[1].ravel()
        for one in axes[n:]:
            one.remove()
        for one in axes[max(n - columns, 0) : n]:
            one.tick_params(labelbottom=True)
        return axes[:n]

    def _draw(self, axes: Any, k: int) -> None:
        at = np.arange(len(self.windows))
        axes.axhline(0.0, color="0.4", linewidth=1, zorder=1)
        axes.vlines(at, self.lower[k], self.upper[k], color=AFTER, linewidth=4, alpha=0.25, zorder=2)
        axes.plot(at, self.error[k], "o-", color=AFTER, markersize=3, linewidth=1, zorder=3)
        if self.raised[k] >= 0:
            end = int(self.raised[k])
            axes.axvspan(self.since[k] - 0.5, end + 0.5, color=BEFORE, alpha=0.15, linewidth=0, zorder=0)
            axes.plot(at[end], self.error[k, end], "s", color=BEFORE, markersize=7, zorder=4)
        axes.set_title(short(self.names[k], 34), fontsize="medium", parse_math=False)
        ticks = np.unique(np.linspace(0, len(at) - 1, min(3, len(at))).round().astype(int))
        axes.set_xticks(ticks, [short(self.windows[t], 12) for t in ticks], fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)

    @classmethod
    def from_report(cls, report: MonitoringReport, *, n: int | None = DRAWN, axes: Any = None) -> Self:
        """Draw the n groups of an audit by windows that changed most (None: all); those with an alarm come first."""
        _check_report(report, MonitoringReport, "audit(..., by=...)")
        check_whole("n", 1 if n is None else n, 1)
        windows, (names, gaps, alarms) = list(report.windows), zip(*report.most_changed(n), strict=True)
        error, lower, upper = (
            np.array([[getattr(one, end) for one in own] for own in gaps]) for end in ("gap", "lower", "upper")
        )
        raised, since = (
            np.array([-1 if one is None else windows.index(getattr(one, which)) for one in alarms])
            for which in ("window", "since")
        )
        shown = tuple(map(str, windows))
        return cls(names, shown, error, lower, upper, raised, since, report.confidence).plot(axes=axes)


@dataclass(eq=False)
class TrajectoryDisplay(Display):
    """A metric after every update of a fit, on the fitted and on the held-out rows (nan without held-out rows).

    >>> from lowcal import multicalibrate
    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(2000, random_state=0)
    >>> fit = multicalibrate(data.y, data.p, data.X, validation_fraction=0.2, random_state=0)
    >>> display = TrajectoryDisplay.from_fit(fit, metric="brier")
    >>> len(display.training) == fit.n_updates
    True
    """

    metric: str
    training: FloatArray
    held_out: FloatArray
    alpha: float | None
    kept: int | None
    size = (6.5, 4.0)

    def _draw(self, axes: Any) -> None:
        at = np.arange(1, len(self.training) + 1)
        marks = ("", "") if len(at) > 60 else ("o", "s")  # more would hide the lines
        axes.plot(at, self.training, f"{marks[0]}-", color=AFTER, label="fitted rows", markersize=4)
        if np.isfinite(self.held_out).any():
            axes.plot(at, self.held_out, f"{marks[1]}--", color=BEFORE, label="held-out rows", markersize=4)
        if self.alpha is not None:
            axes.axhline(self.alpha, color="0.4", linewidth=1, linestyle=":", label=f"alpha {self.alpha:g}")
            axes.set_ylim(bottom=0.0)
        if self.kept is not None:
            axes.axvline(self.kept, color="0.4", linewidth=1, label=f"kept: {self.kept} updates")
        metric = self.metric.replace("_", " ").replace("brier", "Brier score")
        axes.set(xlabel="updates", ylabel=metric, xlim=(0.5, max(len(at), self.kept or 0) + 0.5))
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes.legend(frameon=False)

    @classmethod
    def from_fit(cls, fit: Any, *, metric: str = "violation", ax: Any = None) -> Self:
        """Draw what `multicalibrate` returned, or the fit of a fitted estimator: violation, brier or log_loss."""
        done = getattr(fit, "fit_", fit)
        if not isinstance(done, Fit):
            valid = "what multicalibrate returns, or a fitted estimator"
            raise InvalidInput(f"fit must be {valid}, but {fit!r} was given.")
        check_choice("metric", metric, ("violation", "brier", "log_loss"))
        if not done.history:
            raise InvalidInput("The fit made no update, so there is no trajectory to draw: the start is good enough.")
        training = np.array([getattr(one, metric) for one in done.history], dtype=np.float64)
        held_out = np.array([getattr(one, f"held_out_{metric}") for one in done.history], dtype=np.float64)
        kept = len(done.predictor) if len(done.predictor) < done.n_updates else None
        return cls(metric, training, held_out, done.alpha if metric == "violation" else None, kept).plot(ax)


@dataclass(eq=False)
class HierarchyDisplay(Display):
    """The largest violation at each level of the hierarchy, for one or two models.

    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(1000, random_state=0)
    >>> display = HierarchyDisplay.from_predictions(data.y, data.p, data.X, notions=("degree-1", "degree-2"))
    >>> bool(display.violation[0] <= display.violation[1])
    True
    """

    levels: tuple[str, ...]
    violation: FloatArray
    before: FloatArray | None

    def __post_init__(self) -> None:
        self.size = (max(4.0, 1.5 + 0.8 * len(self.levels)), 4.0)

    def _draw(self, axes: Any) -> None:
        at = np.arange(len(self.levels))
        if self.before is None:
            axes.bar(at, self.violation, 0.6, color=AFTER)
        else:
            axes.bar(at - 0.2, self.before, 0.4, label="before", color=BEFORE)
            axes.bar(at + 0.2, self.violation, 0.4, label="after", color=AFTER, hatch="//", edgecolor="white")
            axes.legend(frameon=False)
        axes.set_xticks(at, self.levels, rotation=25, ha="right", rotation_mode="anchor")
        axes.set_ylabel("largest violation over all groups")

    @classmethod
    @spelled_out(MetricRows)
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        X: object = None,
        *,
        notions: Sequence[str | Notion] = LEVELS,
        p_before: ArrayLike | None = None,
        ax: Any = None,
        **rows: Unpack[MetricRows],
    ) -> Self:
        """Measure every notion on these rows and draw; the figures are those of `measure`, without certificates."""

        def largest(one: ArrayLike) -> FloatArray:
            return np.array([measure(y, one, X, notion=notion, **rows).largest for notion in notions])

        if isinstance(notions, str) or not notions:
            valid = "a list such as ['multiaccuracy', 'degree-2']"
            raise InvalidInput(f"notions must be {valid}, but {notions!r} was given.")
        earlier = None if p_before is None else largest(p_before)
        return cls(tuple(str(notion) for notion in notions), largest(p), earlier).plot(ax)


@dataclass(eq=False)
class SandwichDisplay(Display):
    """The moments of the predictions on one group, between their bounds (Theorem 4.2, spec 5.2 and 5.3).

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> display = SandwichDisplay.from_predictions(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> display.moment.round(3).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    degrees: tuple[int, ...]
    moment: FloatArray
    lower: FloatArray
    upper: FloatArray

    def _draw(self, axes: Any) -> None:
        label = "degree (bounds include their slack)"
        if np.isfinite(self.upper).all():
            axes.fill_between(self.degrees, self.lower, self.upper, color="0.9", label="allowed")
            axes.plot(self.degrees, self.upper, "v--", color=BEFORE, markersize=5, label="at most: the truth's moment")
        else:
            label += "\nthe upper bound needs the truth: pass f_star or replicates"
        least = "at least: mean outcome x moment below"
        axes.plot(self.degrees, self.lower, "^:", color="black", markersize=5, label=least)
        axes.plot(self.degrees, self.moment, "o-", color=AFTER, markersize=6, label="moment of the predictions")
        axes.set(xticks=list(self.degrees), xlabel=label, ylabel="moment")
        axes.set_ylim(bottom=min(0.0, float(np.nanmin(self.lower))))
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize="small")

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        c: ArrayLike | None = None,
        *,
        degrees: Sequence[int] = (1, 2, 3, 4),
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Evaluate the sandwich at every degree and draw; options are those of `lowcal.guarantees.moment_sandwich`."""
        found = [moment_sandwich(y, p, c, degree=d, **options) for d in degrees]
        if not found:
            raise InvalidInput("degrees is empty. Give at least one, for instance degrees=(1, 2, 3).")
        lower = np.array([one.lower.bound if one.lower else np.nan for one in found])
        upper = np.array([one.upper.bound if one.upper else np.nan for one in found])
        return cls(tuple(degrees), np.array([one.estimate for one in found]), lower, upper).plot(ax)


def draw_before_after(
    levels: HierarchyDisplay, report: AuditReport, before: AuditReport, path: str | PathLike[str], n: int = 15
) -> None:
    """Draw the largest violation at each level and the n worst groups, before and after, and save the picture."""
    _pyplot()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.5), layout="constrained")  # no screen is needed, and no pyplot
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.6]})
    levels.plot(left)
    ViolationDisplay.from_report(report, n=n, before=before, ax=right)
    what = f"each level, and the worst groups of {report.notion}"
    figure.suptitle(f"Violations on held-out rows, before and after recalibration: {what}")
    figure.savefig(path, dpi=120)


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtra("matplotlib is not installed; run: pip install 'lowcal[plot]'") from error
    return plt


def short(name: str, length: int = 44) -> str:
    """Return a name on one line, of at most `length` characters."""
    return abbreviate(" ".join(str(name).split()), length)


def _check_report(report: object, kind: type = AuditReport, made_by: str = "audit()") -> None:
    if not isinstance(report, kind):
        article = "an" if kind is AuditReport else "a"
        raise InvalidInput(
            f"report must be {article} {kind.__name__}, as {made_by} returns it, but {report!r} was given."
        )
