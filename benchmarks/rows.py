"""Rows behind sums: what exact sums cost, and a fit of rows on disk beside the same fit in memory.

Prints, for 10 columns of 10 values: the CPU time of a pass with exact sums over that of plain sums; the nanoseconds a
row of a pass over a spill file; and for fits of Parquet files, from disk and in memory, each in a process of its own,
CPU seconds, peak memory, and whether the predictors are the same to the last bit.

With --command, `lowcal fit`, `audit` and `predict` on a folder of Parquet files instead, of two classes or more.

Run: python benchmarks/rows.py [--rows 20000000]
     python benchmarks/rows.py --command [--rows 100000000] [--classes 5]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
from scipy.special import softmax

import lowcal
from lowcal.kernels.simplex import brier, log_loss
from lowcal.notions.moments import moments_at
from lowcal.notions.weights import monomials
from lowcal.rows import START, Memory
from lowcal.rows.base import Pass
from lowcal.rows.disk import Disk, RawRows, Spill
from lowcal.rows.passes import Losses, Moments

#: Rows of a Parquet file.
FILE = 1_000_000
WEIGHTS = monomials(1, 1)
FIT = """
import hashlib, json, resource, sys
import lowcal
path, memory = sys.argv[1], int(sys.argv[2])
fit = lowcal.multicalibrate("y", "p", path, alpha=1e-4, memory=memory)
used = resource.getrusage(resource.RUSAGE_SELF)
bits = hashlib.sha256(json.dumps(fit.predictor.to_dict(), sort_keys=True).encode()).hexdigest()[:12]
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, bits, str(fit.status.value)]))
"""


COMMAND = """
import resource, sys
from lowcal.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(f"{used.ru_utime + used.ru_stime:.0f} CPU s, peak {used.ru_maxrss / 1024:,.0f} MB, exit code {code}")
"""


def world(n: int, seed: int) -> dict[str, np.ndarray]:
    """Return labels, predictions and columns; the predictions miss every column's shift of the log odds."""
    rng, shift = np.random.default_rng(seed), np.random.default_rng(99).normal(0, 0.3, (10, 10))
    codes, z = rng.integers(0, 10, (n, 10)).astype(np.int8), rng.normal(0, 1.3, n)
    score = 0.8 * z + sum(shift[j][codes[:, j]] for j in range(10))
    y = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(np.int8)
    return {"y": y, "p": 1 / (1 + np.exp(-z)), **{f"g{j}": codes[:, j] for j in range(10)}}


def classes_world(n: int, seed: int, classes: int) -> dict[str, np.ndarray]:
    """Return the same for several classes, with a shift of every column for each of them."""
    rng, shift = np.random.default_rng(seed), np.random.default_rng(99).normal(0, 0.3, (10, 10, classes))
    codes, z = rng.integers(0, 10, (n, 10)).astype(np.int8), rng.normal(0, 1.3, (n, classes))
    p, true = (softmax(score, axis=1) for score in (z, 0.8 * z + sum(shift[j][codes[:, j]] for j in range(10))))
    y = (rng.random((n, 1)) > np.cumsum(true, axis=1)).sum(axis=1).clip(max=classes - 1).astype(np.int8)
    return {"y": y, **{f"p_{a}": p[:, a] for a in range(classes)}, **{f"g{j}": codes[:, j] for j in range(10)}}


def best(run: object, times: int = 15) -> float:
    """Return the least CPU time of several runs."""
    seconds = []
    for _ in range(times):
        start = process_time()
        run()  # type: ignore[operator]
        seconds.append(process_time() - start)
    return min(seconds)


def exact(n: int) -> None:
    """Compare passes with exact sums with plain ones, in memory and from a spill file."""
    data = world(n, 0)
    columns = {name: column.astype(str) for name, column in data.items() if name not in "yp"}
    learner, p, y = lowcal.Groups().prepare(columns), data["p"][:, None], data["y"][:, None].astype(float)
    families, weight = tuple(learner.families), np.full(n, 1 / n)
    rows = Memory.of(learner.rows, p, y, weight)
    spill = Spill()
    spill.add(RawRows(learner.rows, p, data["y"].astype(np.uint8), None))
    spill.close()
    disk = Disk(spill, 1)

    def plain() -> None:
        moments_at(rows.whole.design(families), WEIGHTS, p, weight[:, None] * (y - p))

    def losses() -> None:
        brier(p, y, weight)
        log_loss(p, y, weight)

    cases: list[tuple[str, object, Pass[Any]]] = [
        ("moments", plain, Moments(START, families, WEIGHTS)),
        ("losses", losses, Losses(START)),
    ]
    for name, by_float, one in cases:
        seconds = [best(run) for run in (by_float, lambda one=one: rows.run(one), lambda one=one: disk.run(one))]
        a, b, c = (1e9 * s / n for s in seconds)
        print(f"{n:,} rows, {name}: plain {a:.1f}, exact {b:.1f} ({b / a:.2f}x), from disk {c:.1f} ns a row")


def write(folder: str, n: int, classes: int) -> None:
    """Write rows as Parquet files, with columns of text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = pa.array([f"v{k}" for k in range(10)])
    for k in range(-(-n // FILE)):
        size = min(FILE, n - k * FILE)
        data = world(size, k) if classes == 2 else classes_world(size, k, classes)
        coded = {
            g: pa.DictionaryArray.from_arrays(pa.array(data.pop(g)), names) for g in list(data) if g.startswith("g")
        }
        pq.write_table(pa.table({**data, **coded}), Path(folder) / f"part-{k:05d}.parquet")


def commands(n: int, classes: int) -> None:
    """Run the command on a folder: a fit that goes on to alpha, an audit of the model as it was, predictions."""
    names = "p" if classes == 2 else ",".join(f"p_{a}" for a in range(classes))
    with TemporaryDirectory() as folder, TemporaryDirectory() as results:
        write(folder, n, classes)
        model, out = str(Path(results) / "model.json"), str(Path(results) / "calibrated.parquet")
        asked = [folder, "--label", "y", "--probability", names, "--alpha", "0.0001", "--quiet"]
        groups = ["--groups", ",".join(f"g{j}" for j in range(10))]
        for verb in (["fit", *asked, *groups, "--out", model], ["audit", *asked, *groups], ["predict", model, folder]):
            more = ["--out", out, "--quiet"] if verb[0] == "predict" else []
            done = subprocess.run([sys.executable, "-c", COMMAND, *verb, *more], capture_output=True, text=True)
            told = done.stdout.strip().splitlines() or [done.stderr]
            print(f"{n:,} rows, {classes} classes, lowcal {verb[0]}: {told[-1]}", flush=True)


def fits(n: int) -> None:
    """Fit Parquet files from disk and in memory."""
    with TemporaryDirectory() as folder:
        write(folder, n, 2)
        for home, memory in (("disk", 1 << 28), ("memory", 1 << 45)):
            command = [sys.executable, "-c", FIT, folder, str(memory)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, peak, bits, status = json.loads(done.stdout)
            print(f"{n:,} rows from {home}: {status}, {seconds:.1f} CPU s, peak {peak:,.0f} MB, bits {bits}")


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--command", action="store_true", help="run the command on a folder instead")
    parser.add_argument("--classes", type=int, default=2, help="classes of the rows that the command reads")
    given = parser.parse_args()
    if given.command:
        commands(given.rows, given.classes)
        return
    exact(1_000_000)
    fits(given.rows)


if __name__ == "__main__":
    main()
