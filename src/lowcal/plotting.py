"""Displays: pictures in the style of scikit-learn, with their values as attributes (matplotlib, an extra).

`from_...` computes and draws; `plot(ax=...)` draws again, on the axes given; `ax_` and `figure_` are what it drew on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lowcal.auditing import audit, measure
from lowcal.drawing import (
    SHOWN,
    Curve,
    Violations,
    draw_levels,
    draw_reliability,
    draw_sandwich,
    draw_trajectory,
    new_axes,
)
from lowcal.errors import InvalidInput, suggest
from lowcal.guarantees import moment_sandwich
from lowcal.guarantees.reading import read_label, read_sample
from lowcal.inputs import check_share
from lowcal.notions import Notion
from lowcal.report import Binned, reliability
from lowcal.reports import AuditReport, degrees_of, violations_of
from lowcal.rows import Memory
from lowcal.runs import Fit
from lowcal.simplex import FloatArray
from lowcal.subpopulations import EVERYONE, Subpopulations
from lowcal.subpopulations.base import Everyone

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: What `HierarchyDisplay` measures.
LEVELS = ("multiaccuracy", "degree-2", "degree-3", "degree-4", "smooth", "full-0.1")
METRICS = ("violation", "brier", "log_loss")


class ViolationDisplay(Violations):
    """Violations of groups: each with its interval, or by degree as a heat map.

    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(2000, random_state=0)
    >>> report = audit(data.y, data.p, data.X, random_state=0)
    >>> display = ViolationDisplay.from_report(report, kind="heatmap", n=10)
    >>> display.names[0], display.by_degree.shape[1]
    ('everyone', 2)
    """

    @classmethod
    def from_report(
        cls,
        report: AuditReport,
        *,
        kind: str = "intervals",
        n: int | None = SHOWN,
        before: AuditReport | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw the n worst groups of an audit (None: all), with the violations of an earlier one beside them."""
        _check_report(report)
        return cls(**violations_of(report, before)).plot(kind, n=n, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        X: object = None,
        *,
        kind: str = "intervals",
        n: int | None = SHOWN,
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Audit and draw; further options are those of `audit`."""
        return cls.from_report(audit(y, p, X, **options), kind=kind, n=n, ax=ax)


@dataclass(eq=False)
class ReliabilityDisplay:
    """The reliability of one group: mean outcome against mean prediction in bins, with the band of the outcomes.

    The band holds for all bins of the group at once. `before` is the curve of an earlier model.

    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(2000, random_state=0)
    >>> display = ReliabilityDisplay.from_predictions(data.y, data.p, data.X["g0"] == "a", title="g0=a")
    >>> len(display.curve.prediction)
    10
    """

    curve: Curve
    before: Curve | None
    title: str
    confidence: float
    ax_: Any = field(init=False, repr=False, default=None)
    figure_: Any = field(init=False, repr=False, default=None)

    def plot(self, ax: Any = None) -> Self:
        """Draw and return the display."""
        self.figure_, self.ax_ = new_axes(ax, 5.0, 5.0)
        draw_reliability(self.ax_, self.curve, self.before, self.title, self.confidence)
        return self

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
        shown = found.label if label is None else label
        a = 0 if report.layout.d == 1 and label is None else read_label(shown, report.layout)
        name = found.subpopulation
        if name not in report.reliability:
            raise InvalidInput(
                f"The report keeps no bins of {name!r}, only of the worst {len(report.reliability)} groups."
            )
        title = name if report.layout.d == 1 else f"{name}, label {shown}"
        curve, old = _curve(report.reliability[name][a], report.confidence), None
        if before is not None:
            _check_report(before)
            earlier = report.comparable(before).reliability
            old = _curve(earlier[name][a], report.confidence) if name in earlier else None
        return cls(curve, old, title, report.confidence).plot(ax)

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
        check_share("confidence", confidence)
        models = [p] if p_before is None else [p, p_before]
        curves = [_binned(y, one, c, label, sample_weight, classes, confidence) for one in models]
        return cls(curves[0], curves[1] if len(curves) > 1 else None, title, confidence).plot(ax)


@dataclass(eq=False)
class TrajectoryDisplay:
    """A figure after every update of a fit, on the fitted and on the held-out rows (nan where there are none).

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
    ax_: Any = field(init=False, repr=False, default=None)
    figure_: Any = field(init=False, repr=False, default=None)

    def plot(self, ax: Any = None) -> Self:
        """Draw and return the display."""
        self.figure_, self.ax_ = new_axes(ax, 6.5, 4.0)
        named = self.metric.replace("_", " ").replace("brier", "Brier score")
        draw_trajectory(self.ax_, named, self.training, self.held_out, self.alpha, self.kept)
        return self

    @classmethod
    def from_fit(cls, fit: Any, *, metric: str = "violation", ax: Any = None) -> Self:
        """Draw what `multicalibrate` returned, or the fit of a fitted estimator: violation, brier or log_loss."""
        done = getattr(fit, "fit_", fit)
        if not isinstance(done, Fit):
            raise InvalidInput(
                f"fit must be what multicalibrate returns, or a fitted estimator, but {fit!r} was given."
            )
        if metric not in METRICS:
            raise InvalidInput(
                f"Unknown metric {metric!r}; valid: {', '.join(METRICS)}.{suggest(str(metric), METRICS)}"
            )
        if not done.history:
            raise InvalidInput("The fit made no update, so there is no trajectory to draw: the start is good enough.")
        training = np.array([getattr(one, metric) for one in done.history], dtype=np.float64)
        held_out = np.array([getattr(one, f"held_out_{metric}") for one in done.history], dtype=np.float64)
        kept = len(done.predictor) if len(done.predictor) < done.n_updates else None
        return cls(metric, training, held_out, done.alpha if metric == "violation" else None, kept).plot(ax)


@dataclass(eq=False)
class HierarchyDisplay:
    """The largest violation at each level of the hierarchy, or at each degree, for one or two models.

    >>> from lowcal.datasets import make_miscalibrated
    >>> data = make_miscalibrated(1000, random_state=0)
    >>> display = HierarchyDisplay.from_predictions(data.y, data.p, data.X, notions=("degree-1", "degree-2"))
    >>> bool(display.violation[0] <= display.violation[1])
    True
    """

    levels: tuple[str, ...]
    violation: FloatArray
    before: FloatArray | None
    ax_: Any = field(init=False, repr=False, default=None)
    figure_: Any = field(init=False, repr=False, default=None)

    def plot(self, ax: Any = None) -> Self:
        """Draw and return the display."""
        self.figure_, self.ax_ = new_axes(ax, max(4.0, 1.5 + 0.8 * len(self.levels)), 4.0)
        draw_levels(self.ax_, self.levels, self.violation, self.before)
        return self

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        X: object = None,
        *,
        notions: Sequence[str | Notion] = LEVELS,
        p_before: ArrayLike | None = None,
        subpopulations: Subpopulations | None = None,
        sample_weight: ArrayLike | None = None,
        classes: Sequence[Any] | None = None,
        ax: Any = None,
    ) -> Self:
        """Measure every notion on these rows and draw; the figures are those of `measure`, without certificates."""

        def largest(one: ArrayLike) -> FloatArray:
            options = {"subpopulations": subpopulations, "sample_weight": sample_weight, "classes": classes}
            return np.array([measure(y, one, X, notion=notion, **options).largest for notion in notions])  # type: ignore[arg-type]

        if isinstance(notions, str) or not notions:
            raise InvalidInput(
                f"notions must be a list such as ['multiaccuracy', 'degree-2'], but {notions!r} was given."
            )
        earlier = None if p_before is None else largest(p_before)
        return cls(tuple(str(notion) for notion in notions), largest(p), earlier).plot(ax)

    @classmethod
    def from_report(cls, report: AuditReport, *, before: AuditReport | None = None, ax: Any = None) -> Self:
        """Draw, by degree, the largest moment E[c f^j (y - f)] over all groups and labels of an audit."""
        _check_report(report)
        degrees = np.abs(degrees_of(report)).max(axis=0)
        old = None
        if before is not None:
            old = np.abs(degrees_of(report.comparable(before))).max(axis=0)
        return cls(tuple(f"degree {j + 1}" for j in range(len(degrees))), degrees, old).plot(ax)


@dataclass(eq=False)
class SandwichDisplay:
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
    ax_: Any = field(init=False, repr=False, default=None)
    figure_: Any = field(init=False, repr=False, default=None)

    def plot(self, ax: Any = None) -> Self:
        """Draw and return the display."""
        self.figure_, self.ax_ = new_axes(ax, 6.5, 4.5)
        draw_sandwich(self.ax_, self.degrees, self.moment, self.lower, self.upper)
        return self

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


# --- helpers ------------------------------------------------------------------------------------------------


def _check_report(report: object) -> None:
    if not isinstance(report, AuditReport):
        raise InvalidInput(f"report must be an AuditReport, as audit() returns it, but {report!r} was given.")


def _curve(bins: Binned, confidence: float) -> Curve:
    return Curve(bins.prediction, bins.outcome, *bins.limits(confidence))


def _binned(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None,
    label: Any,
    sample_weight: ArrayLike | None,
    classes: Sequence[Any] | None,
    confidence: float,
) -> Curve:
    """Return the bins of one label on the members of c."""
    sample = read_sample(y, p, c, sample_weight, classes)
    if not sample.weight.any():
        raise InvalidInput("No row with weight belongs to c, so there is nothing to draw.")
    a = read_label(label, sample.layout)
    rows = Memory.of(np.zeros((len(sample.p), 0)), sample.p[:, [a]], sample.y[:, [a]], sample.weight)
    return _curve(reliability(rows, [Everyone()])[EVERYONE][0], confidence)
