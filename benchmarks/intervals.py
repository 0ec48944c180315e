"""How often all intervals of an audit hold at once, on data whose truth is known; 95% is stated.

Run: python benchmarks/intervals.py [--data-sets 1000] [--notions degree-2,smooth,full-0.1] [--method exact] [case ...]
"""

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import lowcal


@dataclass(frozen=True)
class Sample:
    """Rows to audit, and the violation of everyone and of each of `groups` equal groups, per person."""

    y: np.ndarray
    p: np.ndarray
    X: dict[str, np.ndarray] | None
    options: dict[str, Any] = field(default_factory=dict)
    gap: float = 0.0


def labels(f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw labels with the probabilities f."""
    if f.ndim == 1:
        return (rng.random(len(f)) < f).astype(int)
    return (rng.random(len(f))[:, None] > f.cumsum(axis=1)).sum(axis=1).clip(max=f.shape[1] - 1)


def perfect(f: np.ndarray, groups: int, rng: np.random.Generator, **options: Any) -> Sample:
    """Return a perfect model with predictions f, on groups of random sizes."""
    X = {"g": rng.integers(0, groups, len(f)).astype(str)} if groups else None
    classes = range(2 if f.ndim == 1 else f.shape[1])
    return Sample(labels(f, rng), f, X, {"classes": list(classes), **options})


def wrong(n: int, rng: np.random.Generator) -> Sample:
    """Return a model that says 0.5 where the truth is 0.01."""
    return Sample(labels(np.full(n, 0.01), rng), np.full(n, 0.5), None, {"classes": [0, 1]}, gap=-0.49)


def features(n: int, rng: np.random.Generator) -> Sample:
    """Return a perfect model of rare outcomes whose subpopulations are found by trees."""
    f = rng.beta(1, 99, n)
    X = {"a": rng.normal(size=n), "b": rng.normal(size=n)}
    return Sample(labels(f, rng), f, X, {"classes": [0, 1], "subpopulations": lowcal.Trees()})


CASES: dict[str, Callable[[np.random.Generator], Sample]] = {
    "f ~ Beta(5, 495), 20 groups of 1,500": lambda rng: perfect(rng.beta(5, 495, 30_000), 20, rng),
    "f = .01, 20 groups of 1,000": lambda rng: perfect(np.full(20_000, 0.01), 20, rng),
    "f = .01, 20 groups of 2,000": lambda rng: perfect(np.full(40_000, 0.01), 20, rng),
    "f = .01, 20 groups of 5,000": lambda rng: perfect(np.full(100_000, 0.01), 20, rng),
    "f = .05, 20 groups of 220": lambda rng: perfect(np.full(4_400, 0.05), 20, rng),
    "f = .1, 20 groups of 120": lambda rng: perfect(np.full(2_400, 0.1), 20, rng),
    "f ~ Beta(2, 38), 12 groups of 300": lambda rng: perfect(rng.beta(2, 38, 3_600), 12, rng),
    "3 classes (.04, .04, .92), 20 groups of 110": lambda rng: perfect(
        np.tile([0.04, 0.04, 0.92], (2_200, 1)), 20, rng
    ),
    "p = .5, truth .01, 300 rows": lambda rng: wrong(300, rng),
    "p = .5, truth .01, 500 rows": lambda rng: wrong(500, rng),
    "Trees, f ~ Beta(1, 99), 10,000 rows": lambda rng: features(10_000, rng),
    "f ~ Beta(2, 2), 5 groups, 100 rows": lambda rng: perfect(rng.beta(2, 2, 100), 5, rng),
    "f ~ Beta(2, 2), 5 groups, 500 rows": lambda rng: perfect(rng.beta(2, 2, 500), 5, rng),
    "lognormal weights, f ~ Beta(2, 2), 8 groups, 500 rows": lambda rng: perfect(
        rng.beta(2, 2, 500), 8, rng, sample_weight=rng.lognormal(size=500)
    ),
    "lognormal weights, f ~ Beta(2, 38), 8 groups, 3,000 rows": lambda rng: perfect(
        rng.beta(2, 38, 3_000), 8, rng, sample_weight=rng.lognormal(size=3_000)
    ),
    "weights 1 and 100, f ~ Beta(2, 2), 8 groups, 1,000 rows": lambda rng: perfect(
        rng.beta(2, 2, 1_000), 8, rng, sample_weight=rng.choice([1.0, 100.0], 1_000, p=[0.9, 0.1])
    ),
    "3 classes, uniform, 5 groups, 300 rows": lambda rng: perfect(rng.dirichlet(np.ones(3), 300), 5, rng),
    "5 classes, uniform, 5 groups, 500 rows": lambda rng: perfect(rng.dirichlet(np.ones(5), 500), 5, rng),
}


@dataclass(frozen=True)
class Coverage:
    """Shares of the data sets, and the median half-width of the intervals."""

    certified: float
    findings: float
    half: float
    p_values: float


def coverage(case: str, notion: str, method: str, data_sets: int, seed: int = 0) -> Coverage:
    """Audit many data sets of a case: how often the certified limits, and all findings, hold the truth."""
    certified, findings, halves, p_values = [], [], [], []
    for k in range(data_sets):
        sample = CASES[case](np.random.default_rng([seed, k]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lowcal.AuditWarning)
            report = lowcal.audit(
                sample.y, sample.p, sample.X, notion=notion, method=method, alpha=1e-6, random_state=k, **sample.options
            )
        certified.append(report.certified_lower <= abs(sample.gap) <= report.certified_alpha)
        findings.append(all(one.lower <= sample.gap <= one.upper for one in report.findings))
        halves.append(np.median([one.upper - one.lower for one in report.findings]) / 2)
        p_values.append(report.p_value <= 0.05)
    return Coverage(np.mean(certified), np.mean(findings), np.median(halves), np.mean(p_values))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help="part of a case's name (all)")
    parser.add_argument("--data-sets", type=int, default=1000)
    parser.add_argument("--notions", default="degree-2,smooth,full-0.1")
    parser.add_argument("--method", default="bootstrap")
    given = parser.parse_args(arguments)
    print(f"{given.data_sets:,} data sets, method {given.method}; 0.950 is stated\n")
    print("| case | notion | certified | findings | p-value at most .05 | median half-width |")
    print("|---|---|---:|---:|---:|---:|")
    for case in CASES:
        if given.cases and not any(part in case for part in given.cases):
            continue
        for notion in given.notions.split(","):
            found = coverage(case, notion, given.method, given.data_sets)
            figures = f"{found.certified:.3f} | {found.findings:.3f} | {found.p_values:.3f} | {found.half:.3g}"
            print(f"| {case} | {notion} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
