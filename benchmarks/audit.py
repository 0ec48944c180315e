"""What an audit costs: 1,000,000 rows, 100 groups, certificates and exact test included, beside the bare figures.

Run: python benchmarks/audit.py [rows]
"""

import sys
from time import perf_counter

import numpy as np

import lowcal


def people(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Labels, predictions that are too low for one group of 100, and ten columns of ten categories."""
    rng = np.random.default_rng(seed)
    X = {f"a{k}": rng.integers(0, 10, n).astype("U1") for k in range(10)}
    p = 1 / (1 + np.exp(-rng.normal(0.0, 1.2, n)))
    y = rng.random(n) < np.clip(p + 0.02 * (X["a0"] == "3"), 0, 1)
    return y.astype(int), p, X


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    y, p, X = people(n)
    print(f"{n:,} rows, 100 groups and everyone")
    print(f"{'notion':<12}{'measure':>9}{'audit':>9}{'ratio':>7}   verdict at alpha 0.002")
    for notion in ("degree-2", "degree-3", "full-0.1", "smooth"):
        kind = {"subpopulations": lowcal.Groups(), "notion": notion}
        lowcal.audit(y[:5000], p[:5000], {k: v[:5000] for k, v in X.items()}, **kind)  # compile, warm up
        start = perf_counter()
        lowcal.measure(y, p, X, **kind)
        middle = perf_counter()
        report = lowcal.audit(y, p, X, alpha=0.002, random_state=0, **kind)
        bare, full = middle - start, perf_counter() - middle
        print(f"{notion:<12}{bare:>7.2f} s{full:>7.2f} s{full / bare:>6.1f}x   {report.verdict.value}")


if __name__ == "__main__":
    main()
