"""How the fit grows: rows, groups, classes. CPU seconds of one process, medians; preparing X is not counted.

Run: python benchmarks/scale.py                   (OPENBLAS_NUM_THREADS=1 for one thread throughout)
     python benchmarks/scale.py rows columns      (only these of: rows, groups, columns, overlapping, classes, cifar)
     python benchmarks/scale.py --quick           (a tenth of the rows)
CIFAR-100 outputs are measured where LOWCAL_CIFAR100 names the file of probabilities.
"""

import os
import resource
import sys
from statistics import median
from time import process_time

import numpy as np
from common import show

import lowcal
from lowcal.data.frames import Table
from lowcal.notions import parse_notion
from lowcal.rows import START, Memory
from lowcal.solve.solvers import Problem, block
from lowcal.subpopulations.base import WeakLearner

#: Fits of each size.
REPEATS = int(os.environ.get("LOWCAL_REPEATS", "5"))
LEVELS = np.array(list("abcdefghij"))


def categorical(n: int, columns: int, wrong: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict]:
    """Labels, a start that ignores the first `wrong` columns, and columns of ten levels each."""
    rng, effects = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    G = rng.integers(0, 10, size=(columns, n))
    start = rng.beta(2, 3, n).clip(0.01, 0.99)
    odds = np.log(start / (1 - start))
    shift = np.zeros(n)
    for k in range(min(wrong, columns)):
        shift += (0.35 * effects.normal(size=10))[G[k]] + (0.15 * effects.normal(size=10))[G[k]] * odds
    y = rng.random(n) < 1 / (1 + np.exp(-odds - shift))
    return y.astype(float), start, {f"g{k}": LEVELS[codes] for k, codes in enumerate(G)}


def fit(learner: WeakLearner, y: np.ndarray, p: np.ndarray, notion: str, alpha: float) -> tuple[float, int, float]:
    """CPU seconds, rounds and the violation reached by the bare solver."""
    started = process_time()
    held = Memory.of(learner.rows, p, y, np.full(len(p), 1 / len(p)))
    problem, state = Problem(held, parse_notion(notion), learner.fresh(), alpha), START
    for step in block(problem, START):
        state = step.state
    return process_time() - started, state.n_updates, float(problem.suprema(state).upper.max())


def audit(learner: WeakLearner, y: np.ndarray, p: np.ndarray, notion: str) -> float:
    """CPU seconds of measuring all suprema once."""
    started = process_time()
    parse_notion(notion).suprema(p, (y - p) / len(p), learner.design())
    return process_time() - started


def line(name: str, learner: WeakLearner, y: np.ndarray, p: np.ndarray, notion: str, alpha: float) -> float:
    """Print one line and return the median CPU seconds of the fit."""
    y, p = (v if v.ndim == 2 else v[:, None] for v in (y, p))
    fit(learner, y, p, notion, alpha)  # compile and warm up
    runs = [fit(learner, y, p, notion, alpha) for _ in range(REPEATS)]
    audits = median(audit(learner, y, p, notion) for _ in range(REPEATS))
    seconds = sorted(run[0] for run in runs)
    groups = learner.design().shape[1]
    print(
        f"{name:<34}{groups:>7} groups {notion:>10} alpha {alpha:<6g}{median(seconds):9.3f} s"
        f" ({seconds[0]:.3f} to {seconds[-1]:.3f}){runs[0][1]:4} rounds, violation {runs[0][2]:.5f};"
        f" audit {1e3 * audits:8.1f} ms",
        flush=True,
    )
    return median(seconds)


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope of log seconds against log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def rows(scale: float) -> None:
    """Growth in rows: 100 groups."""
    sizes = [int(n * scale) for n in (100_000, 300_000, 1_000_000, 3_000_000)]
    for notion in ("degree-2", "degree-3", "full-0.1"):
        seconds = []
        for n in sizes:
            y, p, X = categorical(n, 10)
            seconds.append(line(f"{n:,} rows", lowcal.Groups().prepare(Table.of(X)), y, p, notion, 0.001))
        show(f"growth of the fit in rows, {notion}: exponent", exponent(sizes, seconds), "<= 1.1")


def groups(scale: float) -> None:
    """Growth in groups: values of columns, then intersections of two and of three."""
    n = int(1_000_000 * scale)
    counts, seconds = [], []
    for width, depth in ((10, 1), (30, 1), (8, 2), (15, 2), (6, 3)):
        y, p, X = categorical(n, width)
        kind = lowcal.Groups() if depth == 1 else lowcal.Intersections(depth=depth)
        learner = kind.prepare(Table.of(X))
        counts.append(learner.design().shape[1])
        seconds.append(line(f"{n:,} rows, {width} columns, depth {depth}", learner, y, p, "degree-2", 0.002))
    show("growth of the fit in groups, with intersections: exponent", exponent(counts, seconds), "<= 1.1")


def columns(scale: float) -> None:
    """Growth in groups: values of more and more columns, ten of which are wrong."""
    counts, seconds = [], []
    n = int(200_000 * scale)
    for width in (10, 30, 100, 300):
        y, p, X = categorical(n, width)
        learner = lowcal.Groups().prepare(Table.of(X))
        counts.append(learner.design().shape[1])
        seconds.append(line(f"{n:,} rows, {width} columns", learner, y, p, "degree-2", 0.003))
    show("growth of the fit in groups, many columns: exponent", exponent(counts, seconds), "<= 1.1")


def overlapping(scale: float) -> None:
    """Growth in overlapping 0/1 memberships: half spaces of twelve numbers."""
    n = int(100_000 * scale)
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(n, 12))
    odds = 0.8 * Z[:, 0] - 0.7 * Z[:, 1] * Z[:, 2] + 0.6 * np.sin(2 * Z[:, 3])
    y, p = (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(float), 1 / (1 + np.exp(-1.5 * Z[:, 0]))
    counts, seconds = [100, 300, 1000, 3000], []
    for m in counts:
        directions, cuts = rng.normal(size=(12, m)), 0.5 * rng.normal(size=m)
        C = np.empty((n, m), dtype=bool)
        for part in (slice(s, s + 10_000) for s in range(0, n, 10_000)):
            C[part] = Z[part] @ directions / np.sqrt(12) > cuts
        learner = lowcal.Memberships().prepare(C)
        seconds.append(line(f"{n:,} rows, overlapping", learner, y, p, "degree-2", 0.002))
    show("growth of the fit in overlapping groups, 100 to 1000: exponent", exponent(counts[:3], seconds[:3]))
    show("growth of the fit in overlapping groups, 300 to 3000: exponent", exponent(counts[1:], seconds[1:]), "<= 1.1")


def classes(scale: float) -> None:
    """Growth in classes: 100,000 rows, 100 groups."""
    n = int(100_000 * scale)
    rng = np.random.default_rng(0)
    counts, seconds = [3, 10, 30], []
    for d in counts:
        p = rng.dirichlet(np.full(d, 0.5), n).clip(1e-9)
        p /= p.sum(axis=1, keepdims=True)
        _, _, X = categorical(n, 10)
        tilt = 0.3 * rng.normal(size=(10, 10, d))
        odds = np.log(p) + sum(tilt[k][np.searchsorted(LEVELS, X[f"g{k}"])] for k in range(10))
        odds += rng.gumbel(size=odds.shape)
        y = np.eye(d)[odds.argmax(axis=1)]
        learner = lowcal.Groups().prepare(Table.of(X))
        seconds.append(line(f"{n:,} rows, {d} classes", learner, y, p, "degree-2", 0.01))
    show("growth of the fit in classes, 3 to 30: exponent", exponent(counts, seconds))


def cifar(_: float) -> None:
    """100 classes x 20 superclasses of real networks."""
    path = os.environ.get("LOWCAL_CIFAR100")
    if not path:
        return
    data = np.load(path)
    names = np.array([f"s{c:02d}" for c in range(20)])[data["coarse_label"]]
    for network in ("wideresnet", "densenet", "lenet5"):
        p = data[f"probs_{network}"].astype(float)
        p /= p.sum(axis=1, keepdims=True)
        y = np.eye(100)[data["label"]]
        for what, learner in (
            ("groups", lowcal.Groups().prepare(Table.of({"c": names}))),
            ("memberships", lowcal.Memberships().prepare(np.eye(20)[data["coarse_label"]])),
        ):
            for alpha in (0.02, 0.01):
                seconds = line(f"{network}, {what}", learner, y, p, "degree-2", alpha)
                show(f"{network}, {what}, alpha {alpha}: CPU seconds of the fit", seconds, "< 10")


def main() -> None:
    scale = 0.1 if "--quick" in sys.argv else 1.0
    every = (rows, groups, columns, overlapping, classes, cifar)
    for part in [part for part in every if part.__name__ in sys.argv] or every:
        part(scale)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
