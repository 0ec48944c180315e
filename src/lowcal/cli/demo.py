"""`lowcal demo`: a small overconfident network on UCI Adult, judged by every level of the hierarchy, then recalibrated.

Three parts of the data that share no row: one trains the network, one recalibrates it, one judges. Everything
printed is measured in this run.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill, indent
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.auditing.audits import Measurement, audit, measure
from lowcal.auditing.reports import AuditReport
from lowcal.cli import DONE
from lowcal.data.errors import MissingExtra
from lowcal.data.frames import Table
from lowcal.datasets import Dataset, load_adult
from lowcal.kernels.simplex import FloatArray, brier, log_loss
from lowcal.solve.fitting import Fit, multicalibrate
from lowcal.subpopulations import Intersections, Subpopulations
from lowcal.subpopulations.features import learn_features

NOTIONS = ("multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.1")
COLUMNS = ("sex", "race", "age", "marital_status")
#: What the fits aim at, and what the audit at the end tolerates: above the noise of the held-out rows.
ALPHA, TOLERATED = 0.003, 0.015
#: The network is trained on few rows, so that it is overconfident, and recalibrated on most.
TRAIN, CALIBRATE = 3_000, 25_000
#: Groups with a smaller share of the rows are not listed.
SMALLEST = 0.02
#: What the page calls the model and the outcome.
NAMES = {"model": "small network, recalibrated", "outcome": "earns more than 50,000 dollars a year"}
PICTURE, PAGE = "lowcal-demo.png", "lowcal-demo.html"


class AdultRows(NamedTuple):
    """Rows of Adult with the network's probabilities."""

    X: dict[str, NDArray[Any]]
    y: NDArray[Any]
    p: FloatArray


@dataclass(frozen=True, eq=False)
class Level:
    """One level of the hierarchy on the held-out rows, before and after recalibration for that level."""

    notion: str
    before: Measurement
    after: Measurement
    fit: Fit
    calibrated: FloatArray
    seconds: float


def run_demo(options: argparse.Namespace) -> int:
    """Run the demonstration."""
    demonstrate(options.seed, None if options.no_plot else options.out)
    return DONE


def demonstrate(seed: int = 0, folder: Path | None = None) -> list[Level]:
    """Measure, recalibrate, measure again and print it; with a folder, save the report and the picture there."""
    classes = Intersections(COLUMNS, depth=2, min_mass=100)
    print("lowcal demo: UCI Adult, does a person earn more than 50,000 dollars a year?\n", flush=True)
    rows, test = _prepare(seed)
    judged = [_judge(notion, rows, test, classes, seed) for notion in NOTIONS]
    degree_two = judged[NOTIONS.index("degree-2")]
    _print_levels(judged, test)
    _print_groups(degree_two, test, classes)
    _print_scores(judged, degree_two, test)
    before, after = _print_audits(degree_two, test, classes, seed)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        shown: dict[str, Any] = {"before": before, "fit": degree_two.fit, "explain": (test.p, test.X), **NAMES}
        _save("Report", folder / PAGE, lambda path: after.to_html(path, **shown))
        _save("Picture", folder / PICTURE, lambda path: _draw(judged, before, after, path))
    return judged


def _prepare(seed: int) -> tuple[AdultRows, AdultRows]:
    """Return the calibration and the test rows, with the probabilities of a network trained on others."""
    data = load_adult()
    order = np.random.default_rng(seed).permutation(len(data.y))
    train, calibrate, test = np.split(order, [TRAIN, TRAIN + CALIBRATE])
    start = perf_counter()
    p = _train(data, train, seed)
    took = perf_counter() - start
    fitted, unseen = (f"{np.mean((p[rows] > 0.5) == data.y[rows]):.1%}" for rows in (train, test))
    print(f"1. Trained a small network on {TRAIN:,} rows ({took:.1f} s); its accuracy is {fitted} on these,")
    print(f"   and {unseen} on {len(test):,} rows that it has not seen.\n", flush=True)
    first, second = (
        AdultRows({name: data.X[name][rows] for name in COLUMNS}, data.y[rows], p[rows]) for rows in (calibrate, test)
    )
    return first, second


def _train(data: Dataset, rows: NDArray[np.intp], seed: int) -> FloatArray:
    """Return the probabilities, on all rows, of a network trained too long on few rows."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    table, weight = Table.of(data.X), np.zeros(len(data.y))
    weight[rows] = 1.0
    features = learn_features(None, table, weight)(table)
    network = MLPClassifier((32, 32), alpha=0.0, max_iter=400, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # too long is the point, converged is not
        network.fit(features[rows], data.y[rows])
    return np.asarray(network.predict_proba(features)[:, 1], dtype=np.float64)


def _judge(notion: str, rows: AdultRows, test: AdultRows, classes: Subpopulations, seed: int) -> Level:
    """Measure the network on the held-out rows, recalibrate it on the others, measure again."""
    kind: dict[str, Any] = {"subpopulations": classes, "notion": notion}
    before = measure(test.y, test.p, test.X, **kind)
    start = perf_counter()
    how: dict[str, Any] = {"alpha": ALPHA, "validation_fraction": 0.2, "random_state": seed}
    fit = multicalibrate(rows.y, rows.p, rows.X, **kind, **how)
    seconds = perf_counter() - start
    calibrated = fit.predictor(test.p, test.X)
    after = measure(test.y, calibrated, test.X, **kind)
    return Level(notion, before, after, fit, calibrated, seconds)


def _print_levels(judged: list[Level], test: AdultRows) -> None:
    print(f"2. Each level of the hierarchy: the largest violation over {len(judged[0].before.names)} groups")
    print(f"   (intersections of {', '.join(COLUMNS)}) on {len(test.y):,} held-out rows,")
    print("   before and after recalibration for that level.\n")
    print(f"   {'level':<15}{'before':>8}{'after':>8}{'updates':>9}{'seconds':>9}   worst group before")
    for one in judged:
        figures = f"{one.before.largest:>8.4f}{one.after.largest:>8.4f}{one.fit.n_updates:>9}{one.seconds:>9.1f}"
        print(f"   {one.notion:<15}{figures}   {one.before.worst(1)[0][0]}")
    print(flush=True)


def _print_groups(one: Level, test: AdultRows, classes: Subpopulations) -> None:
    """Print on whom the network is wrong: its mean probability and the actual rate."""
    weight = np.full(len(test.y), 1.0 / len(test.y))
    design = classes.prepare(Table.of(test.X), weight).design()
    sums = design.moments(np.column_stack([test.p, one.calibrated, test.y]) * weight[:, None])
    worst = _worst_per_person(one.before)
    wide = max(len(one.before.names[j]) for j in worst) + 1
    print("3. Where it is wrong: the groups with the largest degree-2 violation per person, among those with at least")
    print(f"   {SMALLEST:.0%} of the held-out rows. Mean probabilities before and after, and the actual rate:\n")
    print(f"   {'group':<{wide}}{'share':>7}{'before':>8}{'after':>7}{'actual':>8}{'per person':>12}{'after':>7}")
    for j in worst:
        before, after, truth = sums[j] / one.before.mass[j]
        row = f"{one.before.mass[j]:>7.1%}{before:>8.1%}{after:>7.1%}{truth:>8.1%}"
        per_person = f"{one.before.conditional[j]:>12.3f}{one.after.conditional[j]:>7.3f}"
        print(f"   {one.before.names[j]:<{wide}}{row}{per_person}")
    print(flush=True)


def _worst_per_person(measured: Measurement) -> list[int]:
    """Return the groups with the largest violation divided by their mass, tiny ones left out."""
    order = np.argsort(-measured.conditional, kind="stable")
    return [int(j) for j in order if measured.mass[j] >= SMALLEST][:10]


def _print_scores(judged: list[Level], degree_two: Level, test: AdultRows) -> None:
    """Print what recalibration does to the usual scores of the whole held-out sample."""
    y, weight = test.y[:, None].astype(np.float64), np.full(len(test.y), 1.0 / len(test.y))
    print("4. The usual scores on the held-out rows (lower is better):\n")
    print(f"   {'':<15}{'Brier':>9}{'log loss':>10}")
    for name, p in [("the network", test.p), *((one.notion, one.calibrated) for one in judged)]:
        print(f"   {name:<15}{brier(p[:, None], y, weight):>9.4f}{log_loss(p[:, None], y, weight):>10.4f}")
    print("\n   On the calibration rows:")
    print(indent(fill(str(degree_two.fit), 107, break_on_hyphens=False), "   "), flush=True)


def _print_audits(one: Level, test: AdultRows, classes: Subpopulations, seed: int) -> list[AuditReport]:
    """Print what the held-out rows certify, before and after, and return both reports."""
    n = len(one.before.names)
    print(f"\n5. What {len(test.y):,} held-out rows certify for all {n} groups at once, with 95% confidence:\n")
    kind: dict[str, Any] = {"subpopulations": classes, "notion": one.notion, "alpha": TOLERATED, "random_state": seed}
    reports = [audit(test.y, p, test.X, **kind) for p in (test.p, one.calibrated)]
    for name, report in zip(("the network", "calibrated"), reports, strict=True):
        limits = f"{report.certified_lower:.4f} to {report.certified_alpha:.4f}"
        print(f"   {name:<12}{report.notion} at alpha={TOLERATED:g}: {report.verdict.value}; the largest violation is")
        print(f"   {'':<12}{limits}, chance alone shows up to {report.null_floor:.4f} (p-value {report.p_value:.2g})")
    print(flush=True)
    return reports


def _save(what: str, path: Path, write: Callable[[Path], object]) -> None:
    """Write a file and say where it is, or what is missing."""
    try:
        write(path)
    except MissingExtra as error:
        print(f"   No {what.lower()}: {error}")
    else:
        print(f"   {what + ':':<8} {path}")


def _draw(judged: list[Level], before: AuditReport, after: AuditReport, path: Path) -> None:
    from lowcal.auditing.plotting import HierarchyDisplay, draw_before_after

    measured = np.array([(one.after.largest, one.before.largest) for one in judged])
    draw_before_after(HierarchyDisplay(NOTIONS, *measured.T), after, before, path)
