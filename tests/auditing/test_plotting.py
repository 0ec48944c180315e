"""Displays: their values are those of the report, what is drawn is what they hold, and matplotlib is left alone."""

import sys
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

import lowcal
from audits import CLASSES, MARKUP, audited, rows
from lowcal import MulticalibratedClassifier, measure, multicalibrate
from lowcal.auditing.plotting import (
    AFTER,
    BEFORE,
    HierarchyDisplay,
    ReliabilityDisplay,
    SandwichDisplay,
    TrajectoryDisplay,
    ViolationDisplay,
    draw_before_after,
    short,
)
from lowcal.data.errors import InvalidInput, MissingExtra
from lowcal.datasets import make_miscalibrated, two_halves
from lowcal.guarantees import moment_sandwich


@pytest.fixture(autouse=True)
def clean():
    settings, backend = dict(mpl.rcParams), mpl.get_backend()
    yield
    plt.close("all")
    assert dict(mpl.rcParams) == settings
    assert mpl.get_backend() == backend


@pytest.fixture
def ax():
    return Figure().subplots()


def line(axes, label):
    """The line of a picture whose label begins so."""
    return next(one for one in axes.get_lines() if one.get_label().startswith(label))


def drawn(figure):
    figure.canvas.draw()  # raises where a text can't be drawn
    return figure


# --- violations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 5])
def test_intervals_are_those_of_the_findings(n_classes, ax):
    report = audited(n_classes)
    display = ViolationDisplay.from_report(report, n=6, ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is ax.figure
    points = line(ax, "violation")
    assert points.get_xdata() == pytest.approx([one.violation for one in report.findings[:6]])
    (bars,) = (one for one in ax.collections if len(one.get_segments()) == 6)
    for one, segment in zip(report.findings, bars.get_segments(), strict=False):
        assert segment[:, 0] == pytest.approx([one.lower, one.upper])
    assert [t.get_text() for t in ax.get_yticklabels()] == [short(one.subpopulation) for one in report.findings[:6]]
    assert f"{len(report.findings) - 6} of {len(report.findings)} groups" in ax.get_xlabel()
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the worst on top
    drawn(ax.figure)


def test_an_audit_per_person_is_drawn_per_person(ax):
    before, report = (audited(2, model, alpha=None, per_person=0.02) for model in ("poor", "better"))
    display = report.plot(before=before, ax=ax)
    assert line(ax, "after").get_xdata() == pytest.approx([one.conditional for one in report.findings])
    wanted = [before.finding(one.subpopulation).conditional for one in report.findings]
    assert line(ax, "before").get_xdata() == pytest.approx(wanted)
    assert "error per person" in ax.get_xlabel()
    assert display.alpha == 0.02


def test_an_earlier_model_stands_beside(ax):
    before, after = audited(2), audited(2, "better")
    display = after.plot(before=before, ax=ax, n=None)
    assert isinstance(display, ViolationDisplay)
    wanted = [before.finding(one.subpopulation).violation for one in after.findings]
    assert line(ax, "before").get_xdata() == pytest.approx(wanted)
    assert line(ax, "before").get_marker() != line(ax, "after").get_marker()
    assert "not shown" not in ax.get_xlabel()


def test_a_hundred_groups_grow_and_forty_are_shown():
    data = make_miscalibrated(4000, n_columns=10, n_levels=10, random_state=0)
    X = {f"column ${name}^$": value for name, value in data.X.items()}
    display = lowcal.audit(data.y, data.p, X, random_state=0, null_draws=19).plot()
    assert len(display.names) > 100
    assert len(display.ax_.get_yticks()) == 40
    assert "groups, ranked below these, are not shown" in display.ax_.get_xlabel()
    small, tall = display.figure_.get_figheight(), display.plot(n=None).figure_.get_figheight()
    assert tall > 2 * small
    boxes = [t.get_window_extent() for t in drawn(display.figure_).axes[0].get_yticklabels()]
    assert all(upper.y0 >= lower.y1 - 1 for upper, lower in pairwise(boxes))


def test_wrong_reports_and_numbers_are_refused():
    report = audited(2)
    for n in (0, -1, 2.5, True):
        with pytest.raises(InvalidInput, match="n must be a whole number"):
            report.plot(n=n)
    with pytest.raises(InvalidInput, match="report must be an AuditReport"):
        ViolationDisplay.from_report("yesterday")
    with pytest.raises(InvalidInput, match="Audit both models"):
        report.plot(before=audited(5))


# --- reliability --------------------------------------------------------------------------------------------


def test_the_worst_group_is_drawn_from_a_report(ax):
    report = audited(5)
    display = ReliabilityDisplay.from_report(report, ax=ax)
    worst = report.findings[0]
    bins = report.reliability[worst.subpopulation][CLASSES.index(worst.label)]
    assert display.curve.prediction == pytest.approx(bins.prediction)
    assert line(ax, "model").get_ydata() == pytest.approx(bins.outcome)
    (bars,) = (one for one in ax.collections if hasattr(one, "get_segments"))
    assert [segment[:, 1] for segment in bars.get_segments()] == pytest.approx(np.transpose(bins.limits(0.95)))
    assert ax.get_title() == f"{worst.subpopulation}, label {worst.label}"
    drawn(ax.figure)


def test_a_named_group_label_and_earlier_model(ax):
    before, after = audited(5), audited(5, "better")
    name = f"g0={MARKUP}"
    display = ReliabilityDisplay.from_report(after, name, label="x", before=before, ax=ax)
    assert display.before.outcome == pytest.approx(before.reliability[name][2].outcome)
    assert line(ax, "before").get_xdata() == pytest.approx(before.reliability[name][2].prediction)
    assert ReliabilityDisplay.from_report(audited(2), label=1, ax=ax).title == audited(2).findings[0].subpopulation
    with pytest.raises(InvalidInput, match="is not a class"):
        ReliabilityDisplay.from_report(after, name, label="nothing")
    with pytest.raises(InvalidInput, match="no subpopulation"):
        ReliabilityDisplay.from_report(after, "nobody")


def test_a_group_without_bins_is_refused():
    with pytest.raises(InvalidInput, match="keeps no bins"):
        ReliabilityDisplay.from_report(replace(audited(2), reliability={}))


def test_reliability_from_rows_is_that_of_the_group(ax):
    y, p, better, X = rows(5)
    inside = X["g2"] == "b"
    options = {"classes": CLASSES, "label": "w"}
    display = ReliabilityDisplay.from_predictions(y, better, inside, p_before=p, ax=ax, **options)
    alone = ReliabilityDisplay.from_predictions(y[inside], better[inside], ax=ax, **options)
    assert display.curve.outcome == pytest.approx(alone.curve.outcome)
    assert display.curve.outcome.mean() == pytest.approx((y[inside] == "w").mean(), abs=0.01)
    assert display.before is not None
    with pytest.raises(InvalidInput, match="No row with weight"):
        ReliabilityDisplay.from_predictions(y, p, np.zeros(len(y)), **options)
    with pytest.raises(InvalidInput, match="confidence"):
        ReliabilityDisplay.from_predictions(y, p, confidence=2, **options)


# --- trajectories -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fit():
    data = make_miscalibrated(2000, random_state=0)
    return multicalibrate(data.y, data.p, data.X, solver="worst", alpha=0.002, validation_fraction=0.3, random_state=0)


@pytest.mark.parametrize("metric", ["violation", "brier", "log_loss"])
def test_a_trajectory_is_the_history(fit, metric, ax):
    TrajectoryDisplay.from_fit(fit, metric=metric, ax=ax)
    assert line(ax, "fitted rows").get_ydata() == pytest.approx([getattr(one, metric) for one in fit.history])
    wanted = [getattr(one, f"held_out_{metric}") for one in fit.history]
    assert line(ax, "held-out rows").get_ydata() == pytest.approx(wanted)
    assert any(one.get_label().startswith("alpha") for one in ax.get_lines()) == (metric == "violation")
    assert len(fit.predictor) < fit.n_updates
    assert line(ax, "kept").get_xdata() == [len(fit.predictor)] * 2
    drawn(ax.figure)


def test_an_estimator_and_a_fit_without_held_out_rows(ax):
    data = make_miscalibrated(600, random_state=0)
    X = np.column_stack([data.X["x0"], data.X["x1"]])
    model = MulticalibratedClassifier(alpha=0.01, validation_fraction=0.0, random_state=0).fit(X, data.y)
    display = TrajectoryDisplay.from_fit(model, ax=ax)
    assert display.training == pytest.approx([one.violation for one in model.history_])
    assert [one.get_label() for one in ax.get_lines()] == ["fitted rows", "alpha 0.01"]


def test_trajectories_refuse_what_they_cannot_draw(fit):
    with pytest.raises(InvalidInput, match="Did you mean 'brier'"):
        TrajectoryDisplay.from_fit(fit, metric="brie")
    with pytest.raises(InvalidInput, match="what multicalibrate returns"):
        TrajectoryDisplay.from_fit([1, 2])
    world = two_halves()
    done = multicalibrate(world.y, world.f_star, alpha=0.9, sample_weight=world.sample_weight)
    with pytest.raises(InvalidInput, match="no update"):
        TrajectoryDisplay.from_fit(done)


# --- levels and moments -------------------------------------------------------------------------------------


def test_levels_are_measured(ax):
    y, p, better, X = rows(2)
    notions = ["multiaccuracy", "degree-2", "full-0.25"]
    display = HierarchyDisplay.from_predictions(y, better, X, notions=notions, p_before=p, ax=ax)
    assert display.levels == tuple(notions)
    wanted = [measure(y, one, X, notion=notion).largest for one in (p, better) for notion in notions]
    assert [bar.get_height() for bar in ax.patches] == pytest.approx(wanted)
    assert ax.patches[0].get_facecolor() == mpl.colors.to_rgba(BEFORE)
    assert ax.patches[3].get_facecolor() == mpl.colors.to_rgba(AFTER)
    assert ax.patches[3].get_hatch()
    for wrong in ("degree-2", []):
        with pytest.raises(InvalidInput, match="notions must be a list"):
            HierarchyDisplay.from_predictions(y, p, X, notions=wrong)


def test_the_sandwich_is_the_guarantee(ax):
    world = two_halves()
    options = {"f_star": world.f_star, "sample_weight": world.sample_weight}
    display = SandwichDisplay.from_predictions(world.y, world.p, degrees=(1, 3), ax=ax, **options)
    for k, degree in enumerate((1, 3)):
        found = moment_sandwich(world.y, world.p, degree=degree, **options)
        assert display.moment[k] == found.estimate
        assert display.lower[k] == found.lower.bound
        assert display.upper[k] == found.upper.bound
    assert line(ax, "at most").get_ydata() == pytest.approx(display.upper)
    assert "needs the truth" not in ax.get_xlabel()
    drawn(ax.figure)


def test_without_the_truth_the_upper_bound_is_missing(ax):
    world = two_halves()
    display = SandwichDisplay.from_predictions(world.y, world.p, sample_weight=world.sample_weight, ax=ax)
    assert np.isnan(display.upper).all()
    assert "needs the truth" in ax.get_xlabel()
    assert not any(one.get_label().startswith("at most") for one in ax.get_lines())
    with pytest.raises(InvalidInput, match="degrees is empty"):
        SandwichDisplay.from_predictions(world.y, world.p, degrees=())


# --- matplotlib is left alone -------------------------------------------------------------------------------


def test_a_new_figure_is_pyplots_and_plot_draws_again():
    display = ReliabilityDisplay.from_report(audited(2))
    assert plt.gcf() is display.figure_
    again = Figure().subplots()
    assert display.plot(ax=again) is display
    assert display.ax_ is again


def test_the_saved_picture_needs_no_pyplot_figure(tmp_path):
    levels = HierarchyDisplay(("degree-2",), np.array([0.1]), np.array([0.2]))
    before, after = audited(2), audited(2, "better")
    draw_before_after(levels, after, before, tmp_path / "a.png", n=5)
    assert len(levels.ax_.patches) == 2
    assert [t.get_text() for t in levels.figure_.axes[1].get_yticklabels()] == [
        short(one.subpopulation) for one in after.findings[:5]
    ]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert plt.get_fignums() == []


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lowcal\[plot\]'"):
        audited(2).plot()


def test_a_single_update_has_a_tick_of_its_own():
    data = lowcal.datasets.make_miscalibrated(2000, random_state=0)
    fit = lowcal.multicalibrate(data.y, data.p, data.X, alpha=0.01, max_updates=1)
    assert fit.n_updates == 1
    axes = lowcal.TrajectoryDisplay.from_fit(fit).ax_
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1.0]
