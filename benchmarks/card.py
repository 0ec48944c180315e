"""A graphics card: a billion rows x 100 groups that lie on it, fitted, measured, audited and predicted (needs CuPy).

Run: python benchmarks/card.py [--rows 1000000000] [--check] [--notions] [--classes 5]

Rows have 10 columns of 10 values; labels come from other log odds than the predictions. A pass is timed by CUDA events
and stands beside the card's own copy bandwidth, counted in bytes that a row takes. Times are the median of some turns
after a first one, in which kernels are compiled. `--check` compares kernels with their twins in NumPy, to the last bit
in single precision, for several grids and block sizes, and moments with float64 on 10,000,000 rows. `--notions` and
`--classes` time fits of other notions and geometries, and of several classes, instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from common import table

import lowcal
from lowcal.auditing.on_card import members_of_levels
from lowcal.kernels.card.cuda import Cuda
from lowcal.kernels.card.formula import Formula, Inputs, OneLevel
from lowcal.kernels.card.twin import Twin
from lowcal.kernels.reference import Codes
from lowcal.notions.weights import Monomial
from lowcal.rows import START
from lowcal.rows.card.coded import ROW, Moves
from lowcal.rows.card.reading import open_card, settle_on_card
from lowcal.rows.card.rows import Card
from lowcal.rows.keys import key_of
from lowcal.rows.passes import Gradient, Losses, Moments

COLUMNS, VALUES, MADE_AT_ONCE = 10, 10, 100_000_000


def rows_on_card(xp: Any, n: int) -> tuple[Any, Any, dict[str, Any]]:
    """Return y, p and a table of made-up rows."""
    rng = xp.random.default_rng(0)
    columns = {f"c{j}": xp.empty(n, dtype=np.uint8) for j in range(COLUMNS)}
    y, p = xp.empty(n, dtype=np.uint8), xp.empty(n, dtype=np.float32)
    for start in range(0, n, MADE_AT_ONCE):
        part = slice(start, min(start + MADE_AT_ONCE, n))
        size = part.stop - start
        for column in columns.values():
            column[part] = (rng.random(size, dtype=np.float32) * VALUES).astype(np.uint8)
        z = rng.standard_normal(size, dtype=np.float32)
        shift = (columns["c0"][part] - 4.5) * np.float32(0.3 / 4.5)
        p[part] = 1 / (1 + xp.exp(-1.8 * z))
        y[part] = rng.random(size, dtype=np.float32) < 1 / (1 + xp.exp(shift - z))
    return y, p, columns


def classes_on_card(xp: Any, n: int, classes: int) -> tuple[Any, Any, dict[str, Any]]:
    """Return labels of several classes, their probabilities, and the columns of made-up rows."""
    _, _, columns = rows_on_card(xp, n)
    rng, y, p = xp.random.default_rng(1), xp.empty(n, dtype=np.uint8), xp.empty((n, classes), dtype=np.float32)
    for start in range(0, n, MADE_AT_ONCE // classes):
        part = slice(start, min(start + MADE_AT_ONCE // classes, n))
        z = rng.standard_normal((part.stop - start, classes), dtype=np.float32)
        shift = (columns["c0"][part] - 4.5)[:, None] * xp.linspace(-0.3 / 4.5, 0.3 / 4.5, classes, dtype=np.float32)
        e, true = xp.exp(1.5 * z), xp.exp(z + shift)
        p[part] = e / e.sum(axis=1, keepdims=True)
        drawn = rng.random((len(z), 1), dtype=np.float32) * true.sum(axis=1, keepdims=True)
        y[part] = xp.minimum((true.cumsum(axis=1) < drawn).sum(axis=1), classes - 1)
    return y, p, columns


def fits(xp: Any, n: int, classes: int, notions: Sequence[str]) -> list[list[str]]:
    """Time fits of some notions in both geometries, and what is done with the first of them."""
    y, p, columns = rows_on_card(xp, n) if classes == 2 else classes_on_card(xp, n, classes)
    how = {"subpopulations": lowcal.Groups(n_bins=VALUES), "alpha": 1e-3, "random_state": 0}
    found = []

    def add(what: str, work: Callable[[], Any]) -> None:
        found.append([what, f"{1e3 * timed(xp, work, 1):,.0f} ms"])
        print(*found[-1], flush=True)

    for notion in notions:
        for geometry in ("mirror", "euclidean"):
            fit = lowcal.multicalibrate(y, p, columns, notion=notion, geometry=geometry, **how)
            add(
                f"multicalibrate, {notion}, {geometry} ({fit.status.value}, {fit.n_updates} updates)",
                lambda notion=notion, geometry=geometry: lowcal.multicalibrate(
                    y, p, columns, notion=notion, geometry=geometry, **how
                ),
            )
            add("  predict", lambda fit=fit: fit.predictor(p, columns))
        asked = {"subpopulations": how["subpopulations"], "notion": notion}
        add(f"measure, {notion}", lambda asked=asked: lowcal.measure(y, p, columns, **asked))
        add(f"audit, {notion}", lambda asked=asked: lowcal.audit(y, p, columns, random_state=0, **asked))
    return found


def timed(xp: Any, work: Callable[[], Any], turns: int = 5) -> float:
    """Return the median seconds of a call, without the first."""
    work()
    found = []
    for _ in range(turns):
        xp.cuda.Device().synchronize()
        start = perf_counter()
        work()
        xp.cuda.Device().synchronize()
        found.append(perf_counter() - start)
    return median(found)


def copy_bandwidth(xp: Any) -> float:
    """Return the bytes a second that a copy reads and writes."""
    source = xp.empty(4 << 30, dtype=np.uint8)
    target = xp.empty_like(source)
    return 2 * source.nbytes / timed(xp, lambda: xp.copyto(target, source))


def check(xp: Any) -> list[list[str]]:
    """Compare kernels with their twins, grids with each other, and moments with float64."""
    found = []
    y, p, columns = rows_on_card(xp, 1_000_003)
    given = open_card(y, p, columns)
    groups = lowcal.Groups(n_bins=VALUES)
    rows, learner, _ = settle_on_card(groups, given, None, 0, True)
    design = rows.coded.design(learner.families)
    assert design is not None
    theta = np.random.default_rng(0).normal(0, 0.01, (design.shape[1], 2))
    tables = np.concatenate(design._spread(theta))
    lines = (*ROW, ("b", "y - sigmoid(s + L[0] + L[1]*s)"))
    sums = Formula(("b", "b*s", "(y - f)*f"), lines, (1.0, 32.0, 1.0))
    totals = Formula(("(y - f)*(y - f)", "most(s, T(0)) - y*s + log_(T(1) + exp_(-size(s)))"), ROW, (1.0, 32.0))
    moved = Formula(("inside(s + L[0] + L[1]*s)",), ROW)
    inputs = rows.inputs(design, START, tables=tables)
    assert inputs is not None
    near = replace(
        inputs,
        arrays={name: array.get() for name, array in inputs.arrays.items()},
        codes=[c if isinstance(c, OneLevel) else c.get() for c in inputs.codes],
    )
    for precision in ("single", "double"):
        twin = Twin(precision)
        want = twin.histogram(sums, near), twin.total(totals, near), twin.rows(moved, near, twin.kind)
        for threads, blocks, shared in ((1024, None, None), (512, 7, 50_000), (32, 132, None), (96, 50, 0)):
            card = Cuda(precision, threads, blocks, shared)
            have = card.histogram(sums, inputs), card.total(totals, inputs), card.rows(moved, inputs, card.kind).get()
            apart = [float(np.abs(a - b).max()) for a, b in zip(want, have, strict=True)]
            same = "same bits" if max(apart) == 0.0 else "{:.1e}, {:.1e}, {:.1e}".format(*apart)
            room = "all" if shared is None else f"{shared:,} B of"
            found.append([f"{precision}, {threads} threads, {blocks or 'all'} blocks, {room} shared memory", same])
    found += [["labels drawn on tensor cores, 37 draws", picks_agree(rows, design, near)]]
    order = xp.random.permutation(len(y))
    other = Inputs(
        inputs.n,
        {k: Cuda().own(a[order]) for k, a in inputs.arrays.items()},
        [c if isinstance(c, OneLevel) else Cuda().own(c[order]) for c in inputs.codes],
        inputs.levels,
        tables,
    )
    is_same = bool((Cuda().histogram(sums, inputs) == Cuda().histogram(sums, other)).all())
    found.append(["rows permuted", "same bits" if is_same else "DIFFERENT"])
    return found


def picks_agree(rows: Card, design: Codes, near: Inputs) -> str:
    """Say whether sums over rows that chance picks are those of the twin."""
    belongs, keys = members_of_levels(design), [int(key_of((7, b))) for b in range(37)]
    formula = Formula(("T(1)", "f", "f*f"), (*ROW, ("q", "f")))
    want = Twin("single").picks(formula, replace(near, keys=keys), belongs)
    inputs = rows.inputs(design, keys=keys)
    assert inputs is not None
    return "same bits" if bool((want == Cuda("single").picks(formula, inputs, belongs)).all()) else "DIFFERENT"


def agreement(xp: Any, n: int = 10_000_000) -> float:
    """Return the largest error of moments, relative to the mass of all rows, against float64."""
    y, p, columns = rows_on_card(xp, n)
    groups, weights = lowcal.Groups(n_bins=VALUES), (Monomial(), Monomial((0,)))
    rows, learner, _ = settle_on_card(groups, open_card(y, p, columns), None, 0, True)
    found = rows.run(Moments(START, tuple(learner.families), weights))
    f = p.astype(np.float64)
    rho, worst = y - f, 0.0
    names = {name: j for j, name in enumerate(learner.names)}
    for column, values in columns.items():
        for s, u in enumerate((xp.ones_like(f), f)):
            exact = xp.bincount(values.astype(np.int64), weights=rho * u, minlength=VALUES).get() / n
            have = [found[names[f"{column}={v}"], s, 0] for v in range(VALUES)]
            worst = max(worst, float(np.abs(exact - have).max()))
    return worst


def main() -> None:
    """Print the table of a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000_000)
    parser.add_argument("--check", action="store_true", help="compare kernels with their twins first")
    parser.add_argument("--notions", action="store_true", help="time fits of other notions instead")
    parser.add_argument("--classes", type=int, default=2, help="time fits of so many classes instead")
    asked = parser.parse_args()
    import cupy as xp

    if asked.check:
        print(table(["kernels and their twins, 1,000,003 rows", ""], check(xp)), flush=True)
        print(f"moments of 10,000,000 rows against float64: {agreement(xp):.1e} of the mass\n", flush=True)
    if asked.notions or asked.classes > 2:
        notions = ("degree-2", "full-0.1", "smooth") if asked.notions else ("degree-2",)
        title = f"{asked.rows:,} rows x {COLUMNS * VALUES} groups, {asked.classes} classes"
        print(table([title, ""], fits(xp, asked.rows, asked.classes, notions)))
        return
    n, bandwidth = asked.rows, copy_bandwidth(xp)
    xp.get_default_memory_pool().free_all_blocks()
    y, p, columns = rows_on_card(xp, n)
    groups = lowcal.Groups(n_bins=VALUES)
    lines = [["copy", "", f"{bandwidth / 1e9:,.0f} GB/s", ""]]

    def add(what: str, seconds: float, size: int = 0) -> None:
        rate = n * size / seconds if size else 0.0
        lines.append(
            [
                what,
                f"{1e3 * seconds:.1f} ms",
                *([f"{rate / 1e9:,.0f} GB/s", f"{rate / bandwidth:.0%}"] if size else ["", ""]),
            ]
        )
        print(*lines[-1], flush=True)

    given = open_card(y, p, columns)
    add("survey and encoding", timed(xp, lambda: settle_on_card(groups, given, None, 0, True), 3))
    rows, learner, _ = settle_on_card(groups, given, None, 0, True)
    families, weights = tuple(learner.families), (Monomial(), Monomial((0,)))
    theta = np.random.default_rng(0).normal(0, 0.01, (len(learner.names), 2))
    add("pass: moments of 1 and f", timed(xp, lambda: rows.run(Moments(START, families, weights))), 10)
    add("pass: gradient", timed(xp, lambda: rows.run(Gradient(START, families, theta))), 10)
    add("pass: losses", timed(xp, lambda: rows.run(Losses(START))), 5)
    fit = lowcal.multicalibrate(y, p, columns, subpopulations=groups, alpha=1e-4, random_state=0)
    add(
        f"multicalibrate, degree 2, alpha 1e-4 ({fit.status.value}, {fit.n_updates} updates)",
        timed(xp, lambda: lowcal.multicalibrate(y, p, columns, subpopulations=groups, alpha=1e-4, random_state=0), 3),
    )
    moves = Moves.of(fit.predictor.updates[0].terms, rows.coded)
    z = rows.at(START)
    assert moves is not None
    assert z is not None
    device = rows.device
    add("pass: update", timed(xp, lambda moves=moves, z=z: moves.after(device, z, "mirror")), 13)  # type: ignore[misc]
    rows = z = moves = None  # type: ignore[assignment]
    add("predict", timed(xp, lambda: fit.predictor(p, columns), 3), 18)
    add("measure", timed(xp, lambda: lowcal.measure(y, p, columns, subpopulations=groups), 3))
    add("audit", timed(xp, lambda: lowcal.audit(y, p, columns, subpopulations=groups, random_state=0), 2))
    print(table([f"{n:,} rows x {COLUMNS * VALUES} groups", "", "", "of copy"], lines))


if __name__ == "__main__":
    main()
