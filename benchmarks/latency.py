"""What the first call and a single row cost, what numba is worth, how far a pass is from the machine's limit.

Run: python benchmarks/latency.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

import import_time
import numpy as np
from common import MOST_LEVELS, OURS, SHAPES, Array, made_up, ratios, table, three, timed

REPEATS = 5
#: Calls that are timed together where one takes microseconds.
SINGLE = 100
ROWS = 1_000_000
#: Nanoseconds that adding one row into the table of one code column takes at best, in hand-written C.
SCATTER = 0.6
#: Columns of the table that passes are timed on.
COLUMNS = SHAPES[100][0]

#: The calls of a fresh process, in this order; each is made three times.
CALLS = ("fit", "predict", "measure", "smooth measure")
SCRIPT = """
import json, sys, time
if {blocked}:
    sys.modules["numba"] = None
import numpy as np, lowcal
n, rng = {n}, np.random.default_rng(0)
X = {{f"g{{j}}": rng.integers(0, 10, n).astype(np.uint8) for j in range(10)}}
p = rng.random(n)
y = (rng.random(n) < np.clip(p + 0.1 * (X["g0"] == 3) - 0.1 * (X["g1"] == 4) * p, 0, 1)).astype(int)
kind = {{"subpopulations": lowcal.Groups(n_bins=32)}}
fit = lambda: lowcal.multicalibrate(y, p, X, alpha=0.001, random_state=0, **kind)
works = [fit, lambda: made.predictor(p, X), lambda: lowcal.measure(y, p, X, **kind),
         lambda: lowcal.measure(y, p, X, notion="smooth", **kind)]
times = []
for work in works:
    times.append([])
    for _ in range({calls}):
        start = time.perf_counter(), time.process_time()
        result = work()
        times[-1].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        if work is fit:
            made = result
print(json.dumps(times))
"""


def fresh(n: int, cache: str, blocked: bool = False, calls: int = 3) -> dict[str, list[list[float]]]:
    """Run the calls in a new process; return (wall, CPU) seconds of each time they were made."""
    code = SCRIPT.format(n=n, blocked=blocked, calls=calls)
    environment = os.environ | {"NUMBA_CACHE_DIR": cache, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return dict(zip(CALLS, json.loads(done.stdout), strict=True))


def first_calls(n: int) -> str:
    """Return wall seconds of the first call with an empty and a filled kernel cache, and of the calls after it."""
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = fresh(n, cache), fresh(n, cache)
    bare = fresh(n, "", blocked=True)
    lines = []
    for call in CALLS:
        first = [three(times[call][0][0]) for times in (cold, warm, bare)]
        later, without = ([cpu for _, cpu in times[call][1:]] for times in (warm, bare))
        middle, least, most = ratios(without, later)
        lines.append(
            [
                call,
                *first,
                three(median(later)),
                f"{three(median(without))}, {three(middle)}x ({three(least)} to {three(most)})",
            ]
        )
    head = ["call", "first, no kernels cached", "first, kernels cached", "first, without numba", "later, CPU s"]
    return table([*head, "later, without numba, CPU s"], lines)


def imports() -> str:
    """Return milliseconds of the imports and their ratio, as `import_time.py` takes them."""
    for statement in import_time.STATEMENTS.values():
        import_time.seconds(statement)
    turns = [{k: import_time.seconds(v) for k, v in import_time.STATEMENTS.items()} for _ in range(REPEATS)]
    base = [turn["import sklearn.calibration"] for turn in turns]
    lines = []
    for name in import_time.STATEMENTS:
        taken = [turn[name] for turn in turns]
        middle, least, most = ratios(taken, base)
        lines.append([name, f"{1000 * median(taken):.0f}", f"{middle:.2f}x ({least:.2f} to {most:.2f})"])
    return table(["statement", "ms", "times scikit-learn's"], lines)


def bandwidth(n_bytes: int) -> float:
    """Return bytes a CPU second can be read, the best of three ways over an array that no cache holds."""
    data = np.ones(n_bytes // 8)
    ways: list[Callable[[], Any]] = [data.sum, data.max, lambda: data @ data]
    return max(data.nbytes / timed(way)[1].cpu for way in ways for _ in range(REPEATS))


def passes(n: int) -> tuple[dict[str, Callable[[], Any]], int, int]:
    """Return a pass of each kind over n rows and 100 groups, the bytes it must read and its code columns."""
    import lowcal
    from lowcal.data.frames import Table as Frame
    from lowcal.notions.moments import moments_at
    from lowcal.notions.weights import monomials
    from lowcal.rows import START, Memory
    from lowcal.rows.passes import Moments
    from lowcal.rows.updates import Term, Update

    task = made_up(n, 100)
    frame = task.train.frame()
    groups = lowcal.Groups(n_bins=MOST_LEVELS)
    fitted = lowcal.multicalibrate(
        task.train.y, task.train.p, frame, subpopulations=groups, random_state=0, **OURS["lowcal degree-2"]
    )
    update = fitted.predictor.updates[0]
    rows: tuple[Array, ...] = fitted.predictor.encoder(Frame.of(frame))
    p = task.train.p[:, None]
    y, weight = task.train.y.astype(float)[:, None], np.full(n, 1 / n)
    rho, weights = weight[:, None] * (y - p), monomials(1, 1)
    family = update.terms[0].family
    design, held = family.design(rows), Memory.of(rows, p, y, weight)
    straight = Update((Term(family, weights, update.terms[0].theta),))
    works: dict[str, Callable[[], Any]] = {"moments": lambda: moments_at(design, weights, p, rho)}
    for name, each in (("Euclidean", straight), ("mirror", update)):
        works[f"{name} update"] = lambda each=each: each(p, rows)
        works[f"{name} update and moments"] = lambda each=each: held.run(Moments(START.then(each), (family,), weights))
    return works, sum(column.nbytes for column in rows) + p.nbytes + y.nbytes + weight.nbytes, len(rows)


def roofline(n: int, array_bytes: int) -> str:
    """Return CPU nanoseconds a row of each pass beside the limits of memory and of adding into tables."""
    works, n_bytes, columns = passes(n)
    speed = bandwidth(array_bytes)
    reading, adding = 1e9 * n_bytes / speed / n, SCATTER * columns
    limit, given = max(reading, adding), max(reading, SCATTER * COLUMNS)
    for work in works.values():
        work()
    turns = [{name: 1e9 * timed(work)[1].cpu / n for name, work in works.items()} for _ in range(REPEATS)]
    lines = []
    for name in works:
        taken = [turn[name] for turn in turns]
        lines.append([name, f"{median(taken):.1f}"])
        for least in (limit, given):
            lines[-1].append("{:.1f}x ({:.1f} to {:.1f})".format(*ratios(taken, [least] * len(taken))))
    said = [
        f"Reading one array: {speed / 1e9:.1f} GB a CPU second.",
        f"{n:,} rows, 100 groups in {columns} code columns, degree 2: a pass reads {n_bytes / n:.0f} bytes a row,",
        f"at least {reading:.1f} ns, and adds into {columns} tables, at least {adding:.1f} ns; with a table for each",
        f"of the {COLUMNS} columns that were given, at least {SCATTER * COLUMNS:.1f} ns.",
    ]
    return (
        "\n".join(said)
        + "\n\n"
        + table(["pass", "CPU ns a row", "times the limit, merged columns", "times the limit, given columns"], lines)
    )


def single_rows(n: int) -> str:
    """Return microseconds of `predictor.one` and of a table of one row, for each kind of subpopulation."""
    import lowcal

    boosted = {"n_trees": 100, "geometry": "mirror"}
    kinds = {
        "Groups": lowcal.Groups(),
        "Trees": lowcal.Trees(),
        "Trees, boosted": lowcal.Trees(**boosted),
        "Linear": lowcal.Linear(),
        "Groups + Trees": lowcal.Groups() + lowcal.Trees(),
    }
    lines = []
    for n_classes in (2, 3):
        data = lowcal.datasets.make_miscalibrated(n, n_classes=n_classes, random_state=0)
        for name, kind in kinds.items():
            fit = lowcal.multicalibrate(data.y, data.p, data.X, subpopulations=kind, alpha=0.002, max_updates=10)
            lines.append([name, str(n_classes), str(len(fit.predictor)), *_of_one_row(fit.predictor, data)])
    return table(["subpopulations", "classes", "updates", "one(p, row), us", "predictor([p], X), us"], lines)


def _of_one_row(predictor: Any, data: Any) -> list[str]:
    """Return microseconds of the two ways to predict one row."""
    row = {name: data.X[name][0] for name in predictor.columns}
    X = {name: data.X[name][:1] for name in predictor.columns}
    ways: list[Callable[[], Any]] = [lambda: predictor.one(data.p[0], row), lambda: predictor(data.p[:1], X)]
    taken = [timed(lambda way=way: [way() for _ in range(SINGLE)])[1].cpu for way in ways for _ in range(REPEATS)]
    return [three(1e6 * median(taken[start : start + REPEATS]) / SINGLE) for start in (0, REPEATS)]


INTRODUCTION = """\
Fresh processes; wall seconds of the first call, CPU seconds of the second and third. "Without numba" is the same
library with numba out of reach. The limit of a pass is the larger of its bytes at the read bandwidth measured here,
and {scatter} ns for each row and code column (hand-written C, adding into a table that stays in the nearest cache;
not measured again here).
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the four tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes only, to see that everything runs")
    parser.add_argument("--rows", type=int)
    given = parser.parse_args(arguments)
    n = given.rows or (2_000 if given.quick else ROWS)
    print(INTRODUCTION.format(scatter=SCATTER))
    print(f"### Import\n\n{imports()}\n")
    if find_spec("numba") is None:
        print("numba is not installed: its caches are left out (pip install 'lowcal[fast]').\n")
    else:
        print(f"### First calls, {n // 5:,} rows, 100 groups\n\n{first_calls(n // 5)}\n")
    print(f"### One row, fits on {n // 50:,} rows\n\n{single_rows(n // 50)}\n", flush=True)
    print(f"### One pass\n\n{roofline(n, 400 * n)}\n", flush=True)


if __name__ == "__main__":
    main()
