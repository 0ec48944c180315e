"""Rows behind sums: what exact sums cost, and a fit of rows on disk beside the same fit in memory.

Prints, for 10 columns of 10 values: the CPU time of a pass with exact sums over that of plain sums; the nanoseconds a
row of a pass over a spill file; and for fits of Parquet files, from disk and in memory, each in a process of its own,
CPU seconds, peak memory, and whether the predictors are the same to the last bit.

Run: python benchmarks/rows.py [--rows 20000000]
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

import lowcal
from lowcal.kernels.reference import rows_in_cache
from lowcal.kernels.simplex import brier, log_loss
from lowcal.notions.moments import MomentSums
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


def world(n: int, seed: int) -> dict[str, np.ndarray]:
    """Return labels, predictions and columns; the predictions miss every column's shift of the log odds."""
    rng, shift = np.random.default_rng(seed), np.random.default_rng(99).normal(0, 0.3, (10, 10))
    codes, z = rng.integers(0, 10, (n, 10)).astype(np.int8), rng.normal(0, 1.3, n)
    score = 0.8 * z + sum(shift[j][codes[:, j]] for j in range(10))
    y = (rng.random(n) < 1 / (1 + np.exp(-score))).astype(np.int8)
    return {"y": y, "p": 1 / (1 + np.exp(-z)), **{f"g{j}": codes[:, j] for j in range(10)}}


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
    disk = Disk(spill, True, 1)

    def plain() -> None:
        sums = MomentSums(rows.whole.design(families), WEIGHTS, 1)
        for part in rows_in_cache(n, 2):
            sums.add_residuals(part, p[part], y[part], weight[part])
        sums.total()

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


def fits(n: int) -> None:
    """Fit Parquet files from disk and in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = pa.array([f"v{k}" for k in range(10)])
    with TemporaryDirectory() as folder:
        for k in range(-(-n // FILE)):
            data = world(min(FILE, n - k * FILE), k)
            coded = {
                g: pa.DictionaryArray.from_arrays(pa.array(data.pop(g)), names) for g in list(data) if g not in "yp"
            }
            pq.write_table(pa.table({**data, **coded}), Path(folder) / f"part-{k:05d}.parquet")
        for home, memory in (("disk", 1 << 28), ("memory", 1 << 45)):
            command = [sys.executable, "-c", FIT, folder, str(memory)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, peak, bits, status = json.loads(done.stdout)
            print(f"{n:,} rows from {home}: {status}, {seconds:.1f} CPU s, peak {peak:,.0f} MB, bits {bits}")


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    given = parser.parse_args()
    exact(1_000_000)
    fits(given.rows)


if __name__ == "__main__":
    main()
