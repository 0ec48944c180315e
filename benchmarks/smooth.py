"""What smooth suprema cost: compiled and pure passes in turns, the worst case, every group after one sort; and fits.

Run: python benchmarks/smooth.py   (numba must be installed; kernels are compiled before anything is timed)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from types import ModuleType

import numpy as np
from common import Ours, adult, made_up
from scipy import sparse
from sklearn.metrics import log_loss

from lowcal.kernels import line
from lowcal.kernels.line import PURE, Method, aggregate, passes_for, solve_line
from lowcal.kernels.reference import Codes, DecodeTable, Matrix
from lowcal.notions.smooth import Smooth

REPEATS = 3
Array = np.ndarray


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def in_turns(*works: Callable[[], object]) -> list[float]:
    """Median seconds of each, taken in turns, so that a busy machine slows all of them."""
    times = [[seconds(work) for work in works] for _ in range(REPEATS)]
    return [median(column) for column in zip(*times, strict=True)]


def outcomes(n: int, seed: int = 0) -> tuple[Array, Array]:
    """Predictions and weighted residuals of a miscalibrated binary predictor."""
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    y = rng.random(n) < np.clip(p + 0.1 * np.sin(12 * p), 0, 1)
    return p, (y - p) / n


def adversarial(m: int) -> tuple[Array, Array]:
    """Tiny masses first, then large alternating ones (spec 11)."""
    r = np.full(m, 1e-7)
    r[m // 2 :] = np.where(np.arange(m - m // 2) % 2 == 0, -1.0, 1.0)
    return np.linspace(0.0, 0.5, m), r


def columns(n: int, seed: int = 1) -> Codes:
    """Ten categorical columns of ten levels: 100 groups."""
    rng = np.random.default_rng(seed)
    codes = tuple(rng.integers(0, 10, n).astype(np.uint8) for _ in range(10))
    return Codes(codes, tuple(DecodeTable(sparse.csr_array(np.eye(10))) for _ in codes))


def solvers(compiled: ModuleType) -> None:
    print("one line problem, seconds                       compiled      pure   pure/compiled")
    problems = {f"labels against predictions, m={m}": aggregate(*outcomes(m)) for m in (10_000, 100_000)}
    problems["adversarial, m=40000 (falls back)"] = adversarial(40_000)
    methods: list[Method] = ["auto", "dual"]
    for name, (v, r) in problems.items():
        for method in methods:
            fast, slow = in_turns(
                lambda v=v, r=r, method=method: solve_line(v, r, method=method, passes=compiled),
                lambda v=v, r=r, method=method: solve_line(v, r, method=method, passes=PURE),
            )
            print(f"  {name:<38}{method:<6}{fast:10.4f}{slow:10.4f}{slow / fast:12.0f}x")


def audit(p: Array, rho: Array, design: Codes) -> tuple[float, float]:
    """Seconds of an audit with compiled passes (the median) and with pure ones (once)."""
    smallest = line.COMPILE_FROM
    fast = median(seconds(lambda: Smooth().suprema(p, rho, design, alpha=0.0)) for _ in range(REPEATS))
    try:
        line.COMPILE_FROM = sys.maxsize
        return fast, seconds(lambda: Smooth().suprema(p, rho, design, alpha=0.0))
    finally:
        line.COMPILE_FROM = smallest


def audits() -> None:
    print("binary smooth suprema of 100 groups, seconds    compiled      pure   pure/compiled")
    for n in (100_000, 1_000_000):
        p, rho = outcomes(n)
        fast, slow = audit(p[:, None], rho[:, None], columns(n))
        print(f"  n={n:<42}{fast:10.2f}{slow:10.2f}{slow / fast:12.0f}x")


def brackets() -> None:
    print("three classes, everyone                          lower      upper    seconds")
    for n in (400, 2_000, 20_000):
        rng = np.random.default_rng(0)
        p = rng.dirichlet(np.full(3, 0.7), n)
        label = (rng.random((n, 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(0, 2)
        rho, everyone = (np.eye(3)[label] - p) / n, Matrix(np.ones((n, 1)))
        start = perf_counter()
        found = Smooth().suprema(p, rho, everyone)
        taken = perf_counter() - start
        print(f"  n={n:<42}{found.value[0]:10.4f}{found.upper[0]:11.4f}{taken:11.2f}")


def fits() -> None:
    """Smooth and full fits beside degree 2 on the same rows, by default and Euclidean, with log loss on fresh rows."""
    print("fits, alpha .003                                          seconds   updates   / degree-2   log loss")
    ways = [(notion, geometry) for notion in ("smooth", "full-0.1") for geometry in (None, "euclidean")]
    for task in (made_up(10_000, 100), made_up(100_000, 100), adult()):
        least = None
        for notion, geometry in (("degree-2", None), *ways):
            model = Ours(task, notion=notion, alpha=0.003, geometry=geometry)
            taken = median(seconds(model.fit) for _ in range(REPEATS))
            least = least or taken
            score = log_loss(task.test.y, model.predict())
            name = f"{task.name}: {notion}{', ' + geometry if geometry else ''}"
            print(f"  {name:<55}{taken:8.3f}{model.model.n_updates:10}{taken / least:12.1f}x{score:11.4f}")


def main() -> None:
    compiled = passes_for(line.COMPILE_FROM)
    if not compiled.compiled:
        sys.exit("numba is not installed: pip install 'lowcal[fast]'")
    for method in ("stack", "dual"):  # compile
        solve_line(*adversarial(100), method=method, passes=compiled)
    solvers(compiled)
    audits()
    brackets()
    fits()


if __name__ == "__main__":
    main()
