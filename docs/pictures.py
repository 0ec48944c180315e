"""Draw the pictures of the first page and of Concepts, from real audits of UCI Adult.

Run: python docs/pictures.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import figures
import numpy as np
from figures import AFTER, BAND, BEFORE, INK, QUIET
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lowcal

STATIC = Path(__file__).parent / "_static"
FEATURES = ("age", "education_num", "hours_per_week", "capital_gain")
GROUPS = ("sex", "race", "marital_status")
WHO = lowcal.Groups(list(GROUPS), min_mass=300)
#: Rows to train on, to recalibrate on, and to audit.
SPLIT = (10_000, 30_000)
MARRIED = "marital_status=Married-civ-spouse"
#: What the first picture calls the groups.
NAMES = {
    "everyone": "Everyone",
    "sex=Female": "Women",
    "sex=Male": "Men",
    "race=Black": "Black",
    "race=White": "White",
    MARRIED: "Married",
    "marital_status=Never-married": "Never married",
    "marital_status=Divorced": "Divorced",
}


class World:
    """A model's probabilities for all rows, and the three parts of the rows."""

    def __init__(self, model: Any) -> None:
        self.people = lowcal.datasets.load_adult()
        order = np.random.default_rng(0).permutation(len(self.people.y))
        self.train, self.calibrate, self.test = np.split(order, SPLIT)
        known = np.column_stack([self.people.X[name] for name in FEATURES])
        self.p = model.fit(known[self.train], self.people.y[self.train]).predict_proba(known)[:, 1]

    def rows(self, part: Any, p: Any = None) -> tuple[Any, Any, dict[str, Any]]:
        """Return y, p and X of some rows."""
        table = {name: self.people.X[name][part] for name in GROUPS}
        return self.people.y[part], self.p[part] if p is None else p, table

    def audit(self, p: Any = None, part: Any = None, **options: Any) -> lowcal.AuditReport:
        """Audit the test rows, or some of them."""
        rows = self.rows(self.test if part is None else part, p)
        return lowcal.audit(*rows, subpopulations=WHO, alpha=0.02, random_state=0, **options)

    def recalibrated(self, **options: Any) -> Any:
        """Return the test rows' probabilities after a fit on the calibration set."""
        fit = lowcal.multicalibrate(*self.rows(self.calibrate), subpopulations=WHO, **options)
        return fit.predictor(*self.rows(self.test)[1:])


def save(figure: Any, path: Path, text: str) -> None:
    """Write a picture and print what it shows."""
    figures.save(figure, path, text)
    print(f"{path.name}: {text}")


# --- an audit before and after ----------------------------------------------------------------------------------------


def before_and_after(out: Path) -> None:
    """Draw what was predicted for each group and what happened, before and after recalibration."""
    from matplotlib import pyplot as plt

    world = World(make_pipeline(StandardScaler(), LogisticRegression()))
    reports = world.audit(), world.audit(world.recalibrated())
    figure, axes = plt.subplots(1, 2, figsize=(8.2, 4.3), sharex=True, sharey=True)
    heads = ("Before: right on average only", "After: right on average and in groups")
    for ax, report, head, colour in zip(axes, reports, heads, (BEFORE, AFTER), strict=True):
        _dumbbells(ax, report, colour)
        ax.set_title(head, fontsize=10.5, pad=26)
        ax.text(0, 1.035, _verdict(report), transform=ax.transAxes, color=QUIET, fontsize=9.5)
    figure.supxlabel("share earning more than 50,000 dollars, in percent", fontsize=10)
    save(figure, out / "before-after.svg", _description(*reports))
    plt.close(figure)


def _description(*reports: lowcal.AuditReport) -> str:
    """Return what the picture shows, with the figures of these audits."""
    women, married = ([r.finding(name).largest_gap for r in reports] for name in ("sex=Female", MARRIED))
    return (
        f"An audit of a census model on {reports[0].n_rows:,} people, before and after recalibration. Before, the "
        f"average is right, but women are predicted {women[0].predicted:.0%} where {women[0].actual:.0%} is true, and "
        f"married people {married[0].predicted:.0%} where {married[0].actual:.0%} is true. After, the predictions are "
        f"{women[1].predicted:.0%} and {married[1].predicted:.0%}."
    )


def _verdict(report: lowcal.AuditReport) -> str:
    if report.verdict == "violated":
        return f"audit at alpha = 0.02: violated, by {report.certified_lower:.3f} or more"
    return f"audit at alpha = 0.02: {report.verdict.value}, {report.certified_alpha:.3f} at most"


def _dumbbells(ax: Any, report: lowcal.AuditReport, colour: str) -> None:
    gaps = [report.finding(name).largest_gap for name in NAMES]
    at = np.arange(len(gaps))
    predicted, actual = (100 * np.array([getattr(gap, what) for gap in gaps]) for what in ("predicted", "actual"))
    ax.hlines(at, predicted, actual, color=colour, linewidth=3, alpha=0.45)
    ax.plot(actual, at, "|", color=INK, markersize=15, markeredgewidth=2.5, label="actual")
    ax.plot(predicted, at, "o", color=colour, markersize=8, label="predicted")
    for k in np.flatnonzero(abs(predicted - actual) >= 2):
        right = predicted[k] > actual[k]
        ax.annotate(
            f"{predicted[k] - actual[k]:+.0f}",
            (predicted[k], at[k]),
            xytext=(9 if right else -9, -4),
            textcoords="offset points",
            ha="left" if right else "right",
            color=colour,
            fontsize=10,
        )
    ax.set_yticks(at, list(NAMES.values()))
    ax.set_ylim(len(at) - 0.4, -0.6)
    ax.set_xlim(0, 53)
    ax.grid(axis="x")
    ax.set_axisbelow(True)
    ax.legend(loc="lower right", handletextpad=0.3, labelspacing=0.3)


# --- Concepts ---------------------------------------------------------------------------------------------------------


def concepts(out: Path) -> None:
    """Draw the four ideas of an audit: groups, degrees, chance and verdicts."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(8.2, 7.6))
    world, rough = (
        World(make_pipeline(StandardScaler(), LogisticRegression())),
        World(RandomForestClassifier(60, random_state=0)),
    )
    _groups(axes[0, 0], world)
    _degrees(axes[0, 1], rough)
    _chance(axes[1, 0], world)
    _verdicts(axes[1, 1], world)
    save(
        figure,
        out / "concepts.svg",
        "Four panels: the average is right while groups are not; the mean is right while low predictions are too low "
        "and high ones too high; what chance shows in a perfect model; and intervals that make the three verdicts.",
    )
    plt.close(figure)


def _reliability(ax: Any, y: Any, p: Any, colour: str, mark: str, label: str, n_bins: int = 8) -> None:
    """Draw mean outcomes against mean predictions in bins of equally many rows."""
    parts = np.array_split(np.argsort(p, kind="stable"), n_bins)
    means = np.array([(p[rows].mean(), y[rows].mean()) for rows in parts])
    ax.plot(*(100 * means.T), mark + "-", color=colour, label=label, markersize=5, linewidth=1.5)


def _diagonal(ax: Any, head: str, reach: float) -> None:
    ax.plot([0, reach], [0, reach], color=QUIET, linewidth=1)
    ax.set_title(head)
    ax.set_xlabel("mean prediction, %")
    ax.set_ylabel("mean outcome, %")
    ax.legend(loc="upper left")


def _groups(ax: Any, world: World) -> None:
    y, p, X = world.rows(world.test)
    married = X["marital_status"] == "Married-civ-spouse"
    _reliability(ax, y, p, INK, "o", "everyone")
    _reliability(ax, y[married], p[married], BEFORE, "s", "married")
    _reliability(ax, y[~married], p[~married], AFTER, "^", "not married")
    _diagonal(ax, "1  Average against groups", 90)


def _degrees(ax: Any, world: World) -> None:
    """Draw a random forest whose mean is right, and whose predictions are too extreme."""
    y, p, _ = world.rows(world.test)
    parts = np.array_split(np.argsort(p, kind="stable")[len(p) // 4 :], 8)  # the lowest quarter is predicted 0
    errors = [100 * (y[rows] - p[rows]).mean() for rows in parts]
    ax.bar(range(8), errors, color=[AFTER if error > 0 else BEFORE for error in errors])
    ax.axhline(0, color=QUIET, linewidth=1)
    ax.set_xticks(range(8), [f"{100 * p[rows].mean():.0f}" for rows in parts])
    means = (f"weight 1: {100 * (y - p).mean():+.1f}", f"weight p: {100 * (p * (y - p)).mean():+.1f}")
    ax.text(0.02, 0.06, "mean over all rows\n" + "\n".join(means), transform=ax.transAxes)
    ax.set_title("2  Degree 1 against degree 2")
    ax.set_xlabel("mean prediction, %")
    ax.set_ylabel("outcome less prediction, points")


def _chance(ax: Any, world: World) -> None:
    """Draw the largest violation of redrawn labels, for which the model is perfect, against that of the real ones."""
    _, p, X = world.rows(world.test)
    rng = np.random.default_rng(0)

    def largest(labels: Any) -> float:
        return float(lowcal.measure(labels, p, X, subpopulations=WHO, notion="degree-2").largest)

    redrawn = [largest((rng.random(len(p)) < p).astype(int)) for _ in range(200)]
    report = world.audit()
    ax.hist(redrawn, bins=16, color=QUIET)
    ax.axvline(report.null_floor, color=INK, linewidth=1, linestyle=":")
    ax.annotate("noise floor", (report.null_floor, 20), xytext=(5, 0), textcoords="offset points")
    ax.axvline(report.violation, color=BEFORE)
    ax.annotate(
        "this model", (report.violation, 20), xytext=(-5, 0), textcoords="offset points", ha="right", color=BEFORE
    )
    ax.set_title("3  What chance alone shows")
    ax.set_xlabel("largest violation of any group")
    ax.set_ylabel("of 200 perfect models")
    ax.set_xlim(0, None)


def _verdicts(ax: Any, world: World) -> None:
    after = world.recalibrated()
    few = world.test[:600]
    audits = world.audit(), world.audit(after), world.audit(after[:600], few)
    notes = (f"before\n{len(world.test):,} rows", f"after\n{len(world.test):,} rows", f"after\n{len(few)} rows")
    _intervals(ax, audits, notes)
    ax.set_title("4  Three verdicts at alpha = 0.02")
    ax.set_xlabel("largest violation in the population")


def _intervals(ax: Any, audits: Sequence[lowcal.AuditReport], notes: Sequence[str]) -> None:
    ax.axvspan(0, 0.02, color=BAND)
    for at, (report, colour) in enumerate(zip(audits, (BEFORE, AFTER, QUIET), strict=True)):
        ax.hlines(at, report.certified_lower, report.certified_alpha, color=colour, linewidth=6)
        ax.annotate(report.verdict.value, (report.certified_lower, at), xytext=(0, 9), textcoords="offset points")
    ax.set_yticks(range(len(audits)), notes)
    ax.set_ylim(2.5, -0.6)
    ax.set_xlim(0, None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=STATIC, help="where the pictures are written")
    given = parser.parse_args()
    figures.use_style()
    before_and_after(given.out)
    concepts(given.out)
