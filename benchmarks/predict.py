"""What prediction costs: CPU nanoseconds a row and update, many updates in one pass, and a single row.

Run: OPENBLAS_NUM_THREADS=1 python benchmarks/predict.py [rows]
"""

import os
import sys
import warnings
from collections.abc import Callable
from time import process_time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from common import show

import lowcal
from lowcal.data.errors import FitWarning
from lowcal.data.frames import Table as Frame
from lowcal.kernels import loops
from lowcal.rows.updates import Predictor, Update

TURNS = 7


def people(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Labels, predictions that are wrong in several groups, and ten columns of ten values."""
    rng = np.random.default_rng(seed)
    X = {f"a{k}": rng.integers(0, 10, n).astype(float) for k in range(10)}
    p = 1 / (1 + np.exp(-rng.normal(0.0, 1.2, n)))
    wrong = (
        0.05 * (X["a0"] == 1) - 0.06 * p * (X["a1"] == 0) + 0.04 * (1 - p) * (X["a2"] < 2) - 0.05 * p * (X["a3"] < 1)
    )
    return (rng.random(n) < np.clip(p + wrong, 0, 1)).astype(float), p, X


def seconds(work: Callable[[], object]) -> np.ndarray:
    work()
    found = []
    for _ in range(TURNS):
        start = process_time()
        work()
        found.append(process_time() - start)
    return np.array(found)


def replays(predictor: Predictor, p: np.ndarray, rows: object, what: str, gate: str) -> None:
    """CPU nanoseconds a row and update, as the predictor replays, without numba, and update by update."""
    n, P = len(p), p[:, None]
    a_row_and_update = 1e9 / n / len(predictor)
    show(f"{what}, ns a row and update", seconds(lambda: predictor.replay(P, rows)) * a_row_and_update, gate)
    before, loops.COMPILE_FROM = loops.COMPILE_FROM, sys.maxsize
    fresh = predictor[:]
    show("   without numba", seconds(lambda: fresh.replay(P, rows)) * a_row_and_update)
    loops.COMPILE_FROM = before

    def one_by_one(updates: tuple[Update, ...] = predictor.updates[:100]) -> None:
        moved = P
        for update in updates:
            moved = update(moved, rows)

    updates = min(len(predictor), 100)
    show("   one update after the other", seconds(one_by_one) * 1e9 / n / updates)


def main() -> None:
    warnings.simplefilter("ignore", FitWarning)  # the paper's steps clip to 0 and 1
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    y, p, X = people(n)
    groups = lowcal.Groups(n_bins=20)
    some = {name: column[:100_000] for name, column in X.items()}
    fit = {"subpopulations": groups, "alpha": 0.001, "random_state": 0}
    block = lowcal.multicalibrate(y[:100_000], p[:100_000], some, **fit).predictor
    paper = {**fit, "solver": "worst", "alpha": 1e-4, "geometry": "euclidean", "guard": False}
    worst = lowcal.multicalibrate(y[:100_000], p[:100_000], some, **paper).predictor
    rows = block.encoder(Frame.of(X))
    print(f"{n:,} rows, ten columns, degree 2: {len(block)} updates of all groups, {len(worst)} of single groups")
    replays(block, p, rows, "T6 updates of all groups", "<= 15")
    replays(worst, p, rows, "T6 updates of single groups", "<= .3")
    fitted = p[:100_000, None]
    for update in worst.updates:
        fitted = update(fitted, tuple(c[:100_000] for c in rows))
    show(
        "T6 replay of single updates against one after the other",
        np.abs(worst(p[:100_000], some) - fitted[:, 0]).max(),
        "<= 1e-12",
    )
    whole = seconds(lambda: block(p, X)) * 1e9 / n
    show("predictor(p, X) with X a dict of numbers, ns a row", whole)
    one = {name: float(column[0]) for name, column in X.items()}
    table = {name: column[:1] for name, column in X.items()}
    fast = np.array([seconds(lambda: [block.one(0.3, one) for _ in range(200)]) / 200]).ravel()
    slow = np.array([seconds(lambda: [block([0.3], table) for _ in range(50)]) / 50]).ravel()
    show("predictor.one(p, row), microseconds", fast * 1e6)
    show("predictor([p], X) of one row / predictor.one(p, row)", slow / fast)


if __name__ == "__main__":
    main()
