"""Audits by passes: one shard, seven shards and a file on disk give the same report, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import lowcal
from lowcal.auditing import Sample, judge
from lowcal.certificates import Panel
from lowcal.inputs import read_rows
from lowcal.notions import parse_notion
from lowcal.rows.reading import in_memory
from lowcal.subpopulations import Groups, Intersections, Memberships, Subpopulations, Thresholds
from lowcal.tolerances import Tolerance

pytest.importorskip("pyarrow")

#: Rows of every test: not a multiple of seven.
N = 3001


def table(d: int, seed: int = 0, n: int = N) -> dict[str, np.ndarray]:
    """Labels of d classes, predictions that are wrong in a group, uneven weights and columns of two kinds."""
    rng = np.random.default_rng(seed)
    columns = {"g": rng.integers(0, 4, n).astype(str), "h": rng.integers(0, 3, n).astype(str), "x": rng.random(n)}
    weight = {"w": np.exp(rng.normal(0.0, 1.5, n)) * (rng.random(n) < 0.9)}
    p = rng.dirichlet(np.full(d, 2.0), n)
    off = np.where(columns["g"] == "1", 0.15, 0.0)[:, None] * np.eye(d)[0]
    truth = (p + off) / (p + off).sum(axis=1, keepdims=True)
    label = (rng.random(n)[:, None] > truth.cumsum(axis=1)).sum(axis=1)
    named = {"p": p[:, 1]} if d == 2 else {f"p{a}": p[:, a] for a in range(d)}
    return {"y": label, **named, **columns, **weight}


def shares(n: int = N) -> dict[str, np.ndarray]:
    """Labels of two classes, predictions, weights, and memberships between 0 and 1."""
    rng = np.random.default_rng(1)
    p = rng.random(n)
    members = {f"m{k}": np.where(rng.random(n) < 0.5, rng.random(n), 0.0) for k in range(3)}
    return {"y": (rng.random(n) < p**1.2).astype(int), "p": p, "w": rng.random(n) + 0.01, **members}


def write(rows: dict[str, np.ndarray], folder: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "rows.parquet"
    pq.write_table(pa.table(rows), path, row_group_size=700)
    return str(path)


def roles(rows: dict[str, np.ndarray]) -> tuple[str, str | list[str]]:
    several = [name for name in rows if name[0] == "p" and name != "p"]
    return "y", several or "p"


def listing(report: lowcal.AuditReport) -> str:
    """Everything that a report says, with every bit of its numbers."""
    bins = {
        name: [[one.tolist() for one in vars(bin_).values()] for bin_ in bins]
        for name, bins in report.reliability.items()
    }
    return json.dumps([report.to_dict(), bins, str(report), report.p_value, report.notes])


def in_shards(
    rows: dict[str, np.ndarray], chosen: Subpopulations, notion: str, method: str, weight: str | None, n_shards: int
) -> lowcal.AuditReport:
    """Audit rows in memory in several shards."""
    y, p = roles(rows)
    outcomes, frame = read_rows(y, p, rows, weight, None)
    kept = np.flatnonzero(outcomes.weight)
    outcomes = type(outcomes)(outcomes.y[kept], outcomes.p[kept], outcomes.weight[kept], outcomes.layout)
    memory, learner = in_memory(chosen, outcomes, frame.take(kept), 0)
    panel = Panel(memory.split(n_shards), tuple(learner.families), outcomes.layout.classes is not None)
    sample = Sample([panel], outcomes.layout, True, learner.left_out, False)
    _, *streams = np.random.default_rng(3).spawn(4)
    tolerance = Tolerance(0.01, None, 0.01)
    return judge(sample, parse_notion(notion), tolerance, 0.95, method, 19, streams)


def same(
    rows: dict[str, np.ndarray], chosen: Subpopulations, notion: str, method: str, weight: str | None, folder: Path
) -> None:
    y, p = roles(rows)
    options = {"subpopulations": chosen, "notion": notion, "method": method, "sample_weight": weight, "null_draws": 19}
    near = lowcal.audit(y, p, rows, random_state=3, **options)
    far = lowcal.audit(y, p, write(rows, folder), random_state=3, memory=1, **options)
    split = in_shards(rows, chosen, notion, method, weight, 7)
    assert listing(near) == listing(far)
    assert listing(near) == listing(lowcal.auditing.replace(split, seed=3))


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("method", ["bootstrap", "bernstein", "hoeffding"])
@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-1", "degree-2", "degree-3", "full-0.1"])
def test_memory_shards_and_disk_agree(notion: str, d: int, method: str, weight: str | None, tmp_path: Path) -> None:
    same(table(d), Groups(["g", "h"]), notion, method, weight, tmp_path)


CLASSES: Sequence[Subpopulations] = [
    Intersections(["g", "h"]),
    Thresholds(["x"]),
    Groups(["g"]) + Thresholds(["x"]),
    Groups(["x"], min_mass=900),
]


@pytest.mark.parametrize("chosen", CLASSES, ids=str)
@pytest.mark.parametrize("d", [2, 4])
def test_every_listed_class_agrees(chosen: Subpopulations, d: int, tmp_path: Path) -> None:
    same(table(d), chosen, "degree-2", "bootstrap", "w", tmp_path)


@pytest.mark.parametrize("notion", ["degree-2", "full-0.2"])
@pytest.mark.parametrize("method", ["bootstrap", "bernstein"])
def test_memberships_between_0_and_1_agree(notion: str, method: str, tmp_path: Path) -> None:
    same(shares(), Memberships(), notion, method, "w", tmp_path)
