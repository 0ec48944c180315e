"""Real data, where nobody knows f*: the same methods, judged by certified intervals on rows that nothing was fitted to.

A small network is trained on one part (ACS employment and CIFAR-100 bring a real model's probabilities), recalibrated
on another, and judged on a third: Brier score, log loss, and the multiaccuracy and degree-2 violations with certified
intervals.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from experiments.experiment import METHODS, Settings
from experiments.networks import fit_classifier
from experiments.parts import Parts
from experiments.results import Claim, Result, markdown_table, show, summarise_trees, verdict_lines
from experiments.rivals import PEERS, Make, Ours, Sample, fit_and_predict, hkrr, present_peers
from experiments.sources import SOURCES, load
from lowcal.auditing.audits import audit
from lowcal.data.errors import AuditWarning, LowcalError
from lowcal.data.frames import Table
from lowcal.datasets import Dataset
from lowcal.kernels.simplex import FloatArray, brier, log_loss
from lowcal.metrics import excess_variance_bound
from lowcal.subpopulations import Groups, Intersections, Subpopulations
from lowcal.subpopulations.features import learn_features

NAME = "real"
START = "start"
#: Columns with more levels than this are left to the groups: the network does not read them.
MOST_LEVELS = 40
TRAIN, CALIBRATE, TEST = 3_000, 5_000, 10_000
COLUMNS = (
    "degree-2",
    "degree-2, at least",
    "degree-2, at most",
    "multiaccuracy",
    "multiaccuracy, at most",
    "excess variance, at most",
    "Brier score",
    "log loss",
)


@dataclass(frozen=True)
class Task:
    """A data set and the columns whose groups (and pairs of groups) are judged."""

    title: str
    groups: tuple[str, ...]
    n_classes: int = 2
    depth: int = 2


TASKS = {
    "adult": Task("UCI Adult", ("sex", "race", "age", "marital_status")),
    **{name: Task(SOURCES[name].title, SOURCES[name].groups, len(SOURCES[name].classes)) for name in SOURCES},
    "cifar100": Task("CIFAR-100, a wide residual network", ("superclass",), 100, 1),
}


def run(parts: Parts, settings: Settings) -> Result:
    """Run every data set that is there and every seed that is not done yet, and sum up."""
    absent: dict[str, str] = {}
    found: dict[str, dict[str, Any]] = {}
    peers, missing = present_peers()
    for name in TASKS:
        try:
            data = load(name, settings.data)
        except LowcalError as error:
            absent[name] = str(error)
            continue
        key = {"target": NAME, "data": name, "rows": len(data.y), "peers": sorted(peers), "small": settings.is_small}
        compute = partial(one_seed, name, data, settings.is_small)
        found[name] = summarise_trees(parts.get_seeds(f"{NAME}-{name}", key, settings.seeds, compute))
    tables, seconds = ({name: both[what] for name, both in found.items()} for what in ("metrics", "seconds"))
    summary = {"settings": {"seeds": settings.seeds}, "tables": tables, "absent": absent, "missing": missing}
    claims = judge(summary)
    return Result(
        NAME, summary, claims, page(summary, seconds, claims), csv_rows(summary), {"fit, CPU seconds": seconds}
    )


def one_seed(name: str, data: Dataset, small: bool, seed: int) -> dict[str, Any]:
    """Return the metrics and the seconds of every method on one random split."""
    task = TASKS[name]
    order = np.random.default_rng(seed).permutation(len(data.y))
    limits = [300, 400, 600] if small else [TRAIN, CALIBRATE, TEST]
    if data.p is None:
        share = min(1.0, len(order) / sum(limits))
        ends = np.cumsum([int(limit * share) for limit in limits])
        data = _with_network(data, order[: ends[0]], seed, 10 if small else 60)
        calibrate, test = (data[order[a:b]] for a, b in pairwise(ends))
    else:
        half = min(limits[1], len(order) // 2)
        calibrate, test = data[order[:half]], data[order[half : half + limits[2]]]
    groups = Intersections(task.groups, depth=task.depth, min_mass=60) if task.depth > 1 else Groups(task.groups)
    return _compare(task, groups, calibrate, test)


def _with_network(data: Dataset, rows: Any, seed: int, epochs: int) -> Dataset:
    """Return the data with the probabilities of a network trained on some rows for many passes: overconfident ones."""
    columns = {name: c for name, c in data.X.items() if c.dtype != object or len({*c.tolist()}) <= MOST_LEVELS}
    table = Table.of(columns)
    features = learn_features(None, table.take(rows), np.full(len(rows), 1 / len(rows)))(table)
    p = fit_classifier(features[rows], data.y[rows], (64, 64), epochs, seed).predict_proba(features)
    return replace(data, p=p[:, 1] if p.shape[1] == 2 else p)


def _compare(task: Task, groups: Subpopulations, calibrate: Dataset, test: Dataset) -> dict[str, Any]:
    assert test.p is not None
    metrics, seconds = {START: _judge(task, groups, test, test.p)}, {}
    samples = [_sample(rows, task.groups) for rows in (calibrate, test)]
    for name, make in _rivals(task, groups).items():
        found, seconds[name] = fit_and_predict(make, samples[0], samples[1], 1)
        metrics[name] = _judge(task, groups, test, found)
    return {"metrics": metrics, "seconds": seconds}


def _sample(rows: Dataset, groups: Sequence[str]) -> Sample:
    assert rows.p is not None
    columns = {name: rows.X[name] for name in groups}
    return Sample(columns, columns, rows.y, rows.p)


def _rivals(task: Task, groups: Subpopulations) -> dict[str, Make]:
    """Return ours and the peers for this number of classes; many classes have too many products for degree 3 and up."""
    names = list(METHODS) if task.n_classes == 2 else ["MA", "MC2", "MC-full"] if task.n_classes < 10 else ["MA", "MC2"]
    classes = list(range(task.n_classes))
    ours: dict[str, Make] = {
        name: partial(Ours, notion=METHODS[name], subpopulations=groups, classes=classes) for name in names
    }
    peers = {k: make for k, make in present_peers()[0].items() if task.n_classes == 2 or not PEERS[k][2]}
    if "HKRR" in peers:
        peers["HKRR"] = partial(hkrr, groups=groups)
    return ours | peers


def _judge(task: Task, groups: Subpopulations, test: Dataset, p: FloatArray) -> dict[str, float]:
    """Return losses, and violations with their certified intervals."""
    kind: dict[str, Any] = {"subpopulations": groups, "classes": list(range(task.n_classes))}
    X = {name: test.X[name] for name in task.groups}
    # with many classes the bootstrap has a hundred thousand products to redraw; Bernstein's bound needs no draws
    how: dict[str, Any] = {
        "method": "bernstein" if task.n_classes >= 10 else "bootstrap",
        "null_draws": 19,
        "random_state": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AuditWarning)
        reports = {k: audit(test.y, p, X, notion=k, **how, **kind) for k in ("multiaccuracy", "degree-2")}
    f = p[:, None] if p.ndim == 1 else p
    y = test.y[:, None].astype(np.float64) if p.ndim == 1 else np.eye(task.n_classes)[test.y]
    weight = np.full(len(f), 1.0 / len(f))
    return {
        "degree-2": reports["degree-2"].violation,
        "degree-2, at least": reports["degree-2"].certified_lower,
        "degree-2, at most": reports["degree-2"].certified_alpha,
        "multiaccuracy": reports["multiaccuracy"].violation,
        "multiaccuracy, at most": reports["multiaccuracy"].certified_alpha,
        "excess variance, at most": excess_variance_bound(test.y, p, X, **kind),
        "Brier score": brier(f, y, weight),
        "log loss": log_loss(f, y, weight),
    }


def judge(summary: dict[str, Any]) -> tuple[Claim, ...]:
    """Say for each data set whether MC2 lowers the certified degree-2 violation, without a worse Brier score."""
    return tuple(_lowers(name, table) for name, table in summary["tables"].items())


def _lowers(name: str, table: dict[str, Any]) -> Claim:
    before, after = table[START], table["MC2"]
    lower = after["degree-2, at most"]["mean"] < before["degree-2, at most"]["mean"]
    kept = after["Brier score"]["mean"] <= before["Brier score"]["mean"] + before["Brier score"]["sd"]
    said = [f"{k} {show(before[k])} before, {show(after[k])} after" for k in ("degree-2, at most", "Brier score")]
    why = "" if lower else "The start was already within what these rows can certify."
    if after["degree-2, at most"]["mean"] >= 1.0:
        why = "With this many classes there are too many constraints for these rows: the certificate is empty."
    if not kept:
        why += f" The Brier score rose by {after['Brier score']['mean'] - before['Brier score']['mean']:.4f}."
    return Claim(
        f"{TASKS[name].title}: MC2 lowers the certified degree-2 violation and keeps the Brier score",
        "ours",
        "; ".join(said),
        lower and kept,
        why.strip(),
    )


def csv_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each data set and method."""
    return [
        {"data": name, "method": method}
        | {c: row[c]["mean"] for c in COLUMNS}
        | {f"{c}, sd": row[c]["sd"] for c in COLUMNS}
        for name, table in summary["tables"].items()
        for method, row in table.items()
    ]


def page(summary: dict[str, Any], seconds: dict[str, Any], claims: Sequence[Claim]) -> str:
    """Return the page of the documentation."""
    texts = []
    for name, table in summary["tables"].items():
        rows = [
            {"method": method, **_cells(row), "fit, s": _seconds(seconds[name], method)}
            for method, row in table.items()
        ]
        texts.append(f"## {TASKS[name].title}, {TASKS[name].n_classes} classes\n\n{markdown_table(rows)}")
    absent = "".join(f"\n* {name} is left out: {why}" for name, why in summary["absent"].items())
    absent += "".join(f"\n* {line}." for line in summary["missing"])
    s = summary["settings"]
    return f"""# Real data

`python -m experiments real --seeds {s["seeds"]}` wrote this page and [real.json](real.json).

Nobody knows f* here. A network trained for many passes on {TRAIN:,} rows is recalibrated on {CALIBRATE:,} (ACS
employment and CIFAR-100 bring a real model's probabilities) and judged on up to {TEST:,} others: the violation over the
groups of the protected columns and their pairs, in square brackets its certified interval at 95% (`lowcal.audit`), and
an upper bound on the excess variance from labels alone. Means ± one standard deviation over {s["seeds"]} random splits.
With 100 classes the intervals are Bernstein's, wider and valid for every number of rows, and the groups are the
superclasses of the predicted class.

{verdict_lines(claims)}{absent}

{chr(10).join(texts)}"""


def _cells(row: dict[str, Any]) -> dict[str, str]:
    low, high = (row[f"degree-2, {side}"]["mean"] for side in ("at least", "at most"))
    return {
        "degree-2 violation": f"{show(row['degree-2'])} [{low:.4f}, {high:.4f}]",
        "multiaccuracy violation": show(row["multiaccuracy"]),
        "excess variance, at most": show(row["excess variance, at most"]),
        "Brier score": show(row["Brier score"]),
        "log loss": show(row["log loss"]),
    }


def _seconds(seconds: dict[str, Any], method: str) -> str:
    return f"{seconds[method]['mean']:.3f}" if method in seconds else ""
