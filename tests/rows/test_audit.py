"""Audits by passes: one shard, seven shards and a file on disk give the same report, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import lowcal
from lowcal.auditing import draws
from lowcal.auditing.audits import Question, judge
from lowcal.auditing.panel import Panel
from lowcal.auditing.score import ConstraintSums
from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import read_rows
from lowcal.kernels.reference import DecodeTable
from lowcal.notions import parse_notion
from lowcal.notions.weights import Cell, Weight, monomials
from lowcal.rows import Memory, Scale, Shard, disk
from lowcal.rows.reading import in_memory
from lowcal.solve.homes import drop_weightless
from lowcal.solve.solvers import Tolerance
from lowcal.subpopulations import Groups, Intersections, Memberships, Subpopulations, Thresholds, Trees
from lowcal.subpopulations.groups import CodeFamily
from worlds import Shards

pytest.importorskip("pyarrow")

#: Rows of every test, and of a block on disk.
N, BLOCK = 1501, 400


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "BLOCK", BLOCK)


def table(d: int, seed: int = 0, n: int = N) -> dict[str, np.ndarray]:
    """Labels of d classes, predictions that are wrong in a group, uneven weights and columns of two kinds."""
    rng = np.random.default_rng(seed)
    columns = {
        "g": rng.integers(0, 4, n).astype(str),
        "h": rng.integers(0, 3, n).astype(str),
        "x": rng.integers(0, 12, n),
    }
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
    outcomes, frame = drop_weightless(*read_rows(y, p, rows, weight, None))
    memory, learner = in_memory(chosen, outcomes, frame, 0)
    panel = Panel(Shards.cut(memory, n_shards), tuple(learner.families), outcomes.layout.classes is not None)
    home = SimpleNamespace(layout=outcomes.layout, learner=learner, is_fitted=False)
    _, *streams = np.random.default_rng(3).spawn(4)
    tolerance = Tolerance(0.01, None, 0.01)
    return judge([panel], home, Question(parse_notion(notion), tolerance, 0.95, method, 19), streams)


def same(
    rows: dict[str, np.ndarray], chosen: Subpopulations, notion: str, method: str, weight: str | None, folder: Path
) -> None:
    y, p = roles(rows)
    options = {"subpopulations": chosen, "notion": notion, "method": method, "sample_weight": weight, "null_draws": 19}
    near = lowcal.audit(y, p, rows, random_state=3, **options)
    far = lowcal.audit(y, p, write(rows, folder), random_state=3, memory=1, **options)
    split = in_shards(rows, chosen, notion, method, weight, 7)
    assert listing(near) == listing(far)
    assert listing(near) == listing(replace(split, seed=3))


@pytest.mark.product
@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("method", ["bootstrap", "bernstein", "hoeffding"])
@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-1", "degree-2", "degree-3", "full-0.2"])
def test_memory_shards_and_disk_agree(notion: str, d: int, method: str, weight: str | None, tmp_path: Path) -> None:
    same(table(d), Groups(["g", "h"]), notion, method, weight, tmp_path)


CLASSES: Sequence[Subpopulations] = [
    Intersections(["g", "h"]),
    Thresholds(["x"]),
    Groups(["g"]) + Thresholds(["x"]),
    Groups(["x"], min_mass=300),
]


@pytest.mark.parametrize("chosen", CLASSES, ids=str)
@pytest.mark.parametrize("d", [2, 4])
def test_every_listed_class_agrees(chosen: Subpopulations, d: int, tmp_path: Path) -> None:
    same(table(d), chosen, "degree-2", "bootstrap", "w", tmp_path)


@pytest.mark.parametrize("notion", ["degree-2", "full-0.2"])
@pytest.mark.parametrize("method", ["bootstrap", "bernstein"])
def test_memberships_between_0_and_1_agree(notion: str, method: str, tmp_path: Path) -> None:
    same(shares(), Memberships(), notion, method, "w", tmp_path)


@pytest.mark.parametrize("notion", ["degree-2", "full-0.2"])
def test_labels_that_are_noisier_than_predictions_agree(notion: str, tmp_path: Path) -> None:
    """Their draws are not those of the exact test."""
    rows = table(2)
    same({**rows, "p": np.rint(rows["p"])}, Groups(["g"]), notion, "bootstrap", None, tmp_path)


@pytest.mark.parametrize("notion", ["degree-2", "full-0.2"])
def test_outcomes_that_are_numbers_agree(notion: str, tmp_path: Path) -> None:
    rows = table(2)
    same({**rows, "y": np.clip(rows["p"] + 0.1 * rows["y"], 0, 1)}, Groups(["g"]), notion, "bootstrap", "w", tmp_path)


def test_rows_of_a_single_class_can_be_audited_from_disk(tmp_path: Path) -> None:
    rows = table(2)
    path = write({**rows, "y": np.zeros(N, dtype=int)}, tmp_path)
    report = lowcal.audit("y", "p", path, subpopulations=Groups(["g"]), classes=[0, 1], memory=1, random_state=0)
    assert report.verdict == "violated"


# --- on disk ---------------------------------------------------------------------------------------------------


def both(rows: dict[str, np.ndarray], folder: Path, **options: Any) -> list[lowcal.AuditReport]:
    """Audit rows in memory and on disk."""
    y, p = roles(rows)
    sources = [(rows, None), (write(rows, folder), 1)]
    return [lowcal.audit(y, p, source, random_state=3, memory=memory, **options) for source, memory in sources]


@pytest.mark.product
@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("notion", ["degree-2", "full-0.2"])
def test_bets_agree(notion: str, d: int, weight: str | None, tmp_path: Path) -> None:
    same(table(d), Groups(["g", "h"]), notion, "exact", weight, tmp_path)


TREES = [Trees(2), Trees(2, n_trees=3), Groups(["g"]) + Trees(2, columns=["h", "x"])]


@pytest.mark.parametrize("method", ["bootstrap", "exact"])
@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("chosen", TREES, ids=["nodes", "sums", "union"])
def test_trees_agree(chosen: Subpopulations, d: int, method: str, tmp_path: Path) -> None:
    """They are found on one half of the rows and judged on the other, wherever the rows are."""
    rows = {name: column for name, column in table(d).items() if name != "w"}
    near, far = both(rows, tmp_path, subpopulations=chosen, method=method, null_draws=19)
    assert len(near.findings) > 1
    assert listing(near) == listing(far)


def test_trees_are_measured_alike(tmp_path: Path) -> None:
    rows = table(2)
    found = [
        lowcal.measure("y", "p", source, subpopulations=Trees(2), sample_weight="w", memory=memory)
        for source, memory in ((rows, None), (write(rows, tmp_path), 1))
    ]
    assert found[0].names == found[1].names
    assert len(found[0].names) > 3
    np.testing.assert_array_equal(found[0].violation, found[1].violation)
    np.testing.assert_array_equal(found[0].mass, found[1].mass)


@pytest.mark.parametrize("method", ["bootstrap", "exact"])
@pytest.mark.parametrize(
    ("d", "chosen"),
    [
        pytest.param(2, Groups(["g", "h"]), id="groups-2"),
        pytest.param(2, Trees(2), id="nodes-2", marks=pytest.mark.integration),
        pytest.param(3, Groups(["g", "h"]), id="groups-3", marks=pytest.mark.integration),
        pytest.param(3, Trees(2), id="nodes-3", marks=pytest.mark.slow),
    ],
)
def test_smooth_weights_on_disk_are_judged_by_the_safe_side_of_their_bracket(
    d: int, method: str, chosen: Subpopulations, tmp_path: Path
) -> None:
    rows = {name: column for name, column in table(d).items() if name != "w"}
    options = {"notion": "smooth", "subpopulations": chosen, "method": method, "null_draws": 19}
    near, far = both(rows, tmp_path, **options)
    wide = 2e-5 if d == 2 else 1e-4
    assert near.violation - wide <= far.violation <= near.violation + 1e-12
    assert near.p_value == far.p_value
    assert far.null_floor == near.null_floor
    assert near.certified_alpha <= far.certified_alpha + 1e-9
    assert {one.subpopulation for one in near.findings} == {one.subpopulation for one in far.findings}
    for one in near.findings:
        other = far.finding(one.subpopulation)
        assert (other.lower, other.upper) == pytest.approx((one.lower, one.upper), abs=50 * wide)


def test_what_needs_all_rows_at_once_is_refused(tmp_path: Path) -> None:
    path = write(table(2), tmp_path)
    with pytest.raises(InvalidInput, match=r"do not fit into memory, and Linear.*is learned from all of them at once"):
        lowcal.audit("y", "p", path, memory=1, subpopulations=lowcal.Linear())


@pytest.mark.parametrize(("notion", "d"), [("degree-2", 2), ("full-0.2", 4)])
def test_a_hundred_draws_share_a_pass(notion: str, d: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, passes, run = table(d), [], disk.Disk.run
    monkeypatch.setattr(disk.Disk, "run", lambda self, one: passes.append(one) or run(self, one))
    y, p = roles(rows)
    kind = {"subpopulations": Groups(["g", "h"]), "notion": notion, "random_state": 0}
    lowcal.audit(y, p, write(rows, tmp_path), memory=1, **kind)
    assert len(passes) <= 15


def test_draws_of_many_sums_take_several_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(table(2), tmp_path)
    kind = {"subpopulations": Groups(["g", "h"]), "memory": 1, "random_state": 0}
    one = lowcal.audit("y", "p", path, **kind)
    monkeypatch.setattr(draws, "MOST_SUMS", 100)
    assert listing(lowcal.audit("y", "p", path, **kind)) == listing(one)


# --- sums ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights", [monomials(1, 1), tuple(Cell(0.5, (j,)) for j in range(2))], ids=["powers", "cells"]
)
def test_a_group_of_light_rows_is_summed_as_exactly_as_a_heavy_one(weights: tuple[Weight, ...]) -> None:
    """Among a billion rows, the fourth power of a weight of 1e-3 of the largest is far below the unit of the grid."""
    rng, n = np.random.default_rng(0), 500
    p, light = rng.random((n, 1)), np.arange(n) % 2
    y, weight = (rng.random((n, 1)) < p).astype(float), np.where(light, 1e-3, 1.0) / n
    codes = (light.astype(np.uint8),)
    family = CodeFamily(("heavy", "light"), (0,), (DecodeTable(sparse.csr_array(np.eye(2))),))
    rows = Memory(Shard(codes, p, y, weight, Scale(10**9, float(weight.max()))))
    noise, square = rows.run(ConstraintSums((family,), weights, 0.0, rows.is_even, ("noise", "square")))
    U = np.column_stack([u(p) for u in weights])[:, :, None]
    h, C, w = (p * (1 - p))[:, :, None], np.eye(2)[light], weight[:, None, None]
    np.testing.assert_allclose(noise, np.einsum("nc,nsa->csa", C, w**2 * U**2 * h), rtol=1e-6)
    fourth = w**4 * U**4 * h * np.square(1 - 2 * p)[:, :, None]
    np.testing.assert_allclose(square, np.einsum("nc,nsa->csa", C, fourth), rtol=1e-4)
