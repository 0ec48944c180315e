"""How often all intervals of an audit hold at once, on data whose truth is known; 95% is stated.

Run: python benchmarks/intervals.py [--data-sets 1000] [--notions degree-2,smooth] [--methods exact] [case ...]
"""

import argparse
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

import lowcal
from lowcal.kernels import line


@dataclass(frozen=True)
class Sample:
    """Rows to audit, and the largest violation of the population, signed: 0 for a perfect model."""

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


def perfect(f: np.ndarray, groups: int | np.ndarray, rng: np.random.Generator, **options: Any) -> Sample:
    """Return a perfect model with predictions f, on the given groups, or on that number of equal ones."""
    groups = rng.integers(0, groups, len(f)) if isinstance(groups, int) else groups
    X = {"g": groups.astype(str)}
    classes = range(2 if f.ndim == 1 else f.shape[1])
    return Sample(labels(f, rng), f, X, {"classes": list(classes), **options})


def wrong(p: float, truth: float, n: int, rng: np.random.Generator, **options: Any) -> Sample:
    """Return a model that says p of everyone where the truth is another."""
    y = labels(np.full(n, truth), rng)
    return Sample(y, np.full(n, p), None, {"classes": [0, 1], **options}, gap=truth - p)


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
    "p = .5, truth .01, 300 rows": lambda rng: wrong(0.5, 0.01, 300, rng),
    "p = .5, truth .01, 500 rows": lambda rng: wrong(0.5, 0.01, 500, rng),
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
    # no constant was chosen with these in sight
    "f ~ Beta(1, 30), groups of 4 to 30%, 4,000 rows": lambda rng: perfect(
        rng.beta(1, 30, 4_000), rng.geometric(0.3, 4_000).clip(max=7), rng
    ),
    "gamma(.5) weights, f ~ Beta(1, 20), 12 groups, 2,000 rows": lambda rng: perfect(
        rng.beta(1, 20, 2_000), 12, rng, sample_weight=rng.gamma(0.5, size=2_000)
    ),
    "4 classes (.02, .08, .3, .6), 10 groups of 150": lambda rng: perfect(
        np.tile([0.02, 0.08, 0.3, 0.6], (1_500, 1)), 10, rng
    ),
    "p = .02, truth .05, 400 rows": lambda rng: wrong(0.02, 0.05, 400, rng),
    "p = .3, truth .35, 300 rows": lambda rng: wrong(0.3, 0.35, 300, rng),
    "p = .9, truth .8, lognormal weights, 500 rows": lambda rng: wrong(
        0.9, 0.8, 500, rng, sample_weight=rng.lognormal(size=500)
    ),
}


@dataclass(frozen=True)
class Coverage:
    """Shares of the data sets, and the median half-width of the intervals."""

    certified: float
    findings: float
    p_values: float
    wrong_verdicts: float
    half: float


def coverage(case: str, notion: str, method: str, data_sets: int, seed: int = 0) -> Coverage:
    """Audit many data sets of a case: how often the certified limits, and all findings, hold the truth."""
    certified, findings, halves, p_values, verdicts = [], [], [], [], []
    for k in range(data_sets):
        sample = CASES[case](np.random.default_rng([seed, k]))
        alpha = max(1e-6, 0.999 * abs(sample.gap))  # a perfect model satisfies it, any other just fails to
        options = {"notion": notion, "method": method, "alpha": alpha, "random_state": k, **sample.options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lowcal.AuditWarning)
            report = lowcal.audit(sample.y, sample.p, sample.X, **options)
        certified.append(report.certified_lower <= abs(sample.gap) <= report.certified_alpha)
        findings.append(all(one.lower <= sample.gap <= one.upper for one in report.findings))
        halves.append(np.median([one.upper - one.lower for one in report.findings]) / 2)
        p_values.append(report.p_value <= 0.05)
        verdicts.append(report.verdict == ("satisfied" if sample.gap else "violated"))
    shares = [float(np.mean(share)) for share in (certified, findings, p_values, verdicts)]
    return Coverage(*shares, float(np.median(halves)))


def compile_at_once() -> None:
    """Of thousands of audits in one process, small ones are faster compiled, too; the steps are the same."""
    line.COMPILE_FROM = 0


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help="part of a case's name (all)")
    parser.add_argument("--data-sets", type=int, default=1000)
    parser.add_argument("--notions", default="degree-2,smooth,full-0.1")
    parser.add_argument("--methods", default="bootstrap,exact")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="cases at a time (all cores)")
    given = parser.parse_args(arguments)
    cases = [case for case in CASES if not given.cases or any(part in case for part in given.cases)]
    chosen = list(product(cases, given.notions.split(","), given.methods.split(",")))
    print(f"{given.data_sets:,} data sets; 0.950 is stated\n")
    print(
        "| case | notion | method | certified | findings | wrong verdicts | p-value at most .05 | median half-width |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|")
    with ProcessPoolExecutor(given.processes, initializer=compile_at_once) as pool:
        tasks = [pool.submit(coverage, *one, given.data_sets) for one in chosen]
        for (case, notion, method), task in zip(chosen, tasks, strict=True):
            found = task.result()
            shares = found.certified, found.findings, found.wrong_verdicts, found.p_values
            figures = " | ".join(f"{share:.3f}" for share in shares)
            print(f"| {case} | {notion} | {method} | {figures} | {found.half:.3g} |", flush=True)


if __name__ == "__main__":
    main()
