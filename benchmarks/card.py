"""A graphics card: a billion rows x 100 groups that lie on it, fitted, measured, audited and predicted (needs CuPy).

Run: python benchmarks/card.py [--rows 1000000000] [--check]
     python benchmarks/card.py --trees [--rows 10000000] [--check]
     python benchmarks/card.py --host [--rows 200000000]
     python benchmarks/card.py --notions | --classes 5 [--rows 100000000]

Rows have 10 columns of 10 values; labels come from other log odds than the predictions. A pass stands beside the card's
own copy bandwidth, counted in bytes that a row takes. Times are the median of some turns after a first one, in which
kernels are compiled. An audit of a model whose labels vary more than its predictions allow draws labels a second time.
`--check` compares kernels with their twins in NumPy, to the last bit in single precision, for several grids and block
sizes, and moments with float64 on 10,000,000 rows.

`--trees` grows 100 trees of depth 4 on 20 columns, half of them numbers, half of 10 values, on the card and in memory:
the same call of `multicalibrate`, which takes a step for everyone, one along the sum of the trees, and stops. In memory
a single core grows trees; so the growth itself stands beside that of rows in as many shards as there are cores, by
threads. XGBoost and LightGBM, where they are installed, boost as many trees of that depth from the same start.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from common import table

import lowcal
from lowcal.auditing.on_card import members_of_levels
from lowcal.data.progress import Passes
from lowcal.kernels.card.cuda import Cuda, Streamed
from lowcal.kernels.card.formula import Formula, Inputs, OneLevel
from lowcal.kernels.card.trees import trees_on
from lowcal.kernels.card.twin import Twin
from lowcal.kernels.loops import part_of
from lowcal.kernels.reference import Codes
from lowcal.notions.weights import Monomial
from lowcal.rows import START, Memory, Shard
from lowcal.rows.base import take_rows
from lowcal.rows.card.coded import ROW, Moves
from lowcal.rows.card.reading import open_card, settle_on_card
from lowcal.rows.card.rows import Card
from lowcal.rows.keys import key_of
from lowcal.rows.passes import Gradient, Losses, Moments, Probed
from lowcal.solve.homes import open_home
from lowcal.subpopulations.base import Family
from lowcal.subpopulations.growing import Growth, Request, grow_forests
from lowcal.subpopulations.memberships import Bits
from lowcal.subpopulations.trees import Start

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
    near = brought(inputs)
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
    chances = {"q0": "f", "q1": "f*T(0.8) + T(0.1)"}
    found += [
        ["labels drawn on tensor cores, 37 draws", picks_agree(rows, design, near, 37, {"q0": "f"})],
        ["labels drawn on tensor cores, 51 draws by two chances", picks_agree(rows, design, near, 51, chances)],
        ["memberships in bits on tensor cores", bits_agree(xp, y, p)],
    ]
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


def picks_agree(rows: Card, design: Codes, near: Inputs, draws: int, chances: dict[str, str]) -> str:
    """Say whether sums over rows that chance picks are those of the twin."""
    belongs, keys = members_of_levels(design), [int(key_of((7, b))) for b in range(draws)]
    formula = Formula(("T(1)", "f"), (*ROW, *chances.items()))
    want = Twin("single").picks(formula, replace(near, keys=keys), belongs, tuple(chances))
    inputs = rows.inputs(design, keys=keys)
    assert inputs is not None
    have = Cuda("single").picks(formula, inputs, belongs, tuple(chances))
    return "same bits" if bool((want == have).all()) else "DIFFERENT"


def bits_agree(xp: Any, y: Any, p: Any) -> str:
    """Say whether sums over memberships in bits are those of the twin."""
    rows, families = bits_on_card(xp, y, p)
    design = rows.coded.design(families)
    inputs = None if design is None else rows.inputs(design)
    assert inputs is not None
    every = ("y - f", "(y - f)*s", "f*f", "(y - f)*f", "y*s", "f", "y*f*f")
    formula = Formula(every, ROW, (1.0, 32.0, 1.0, 1.0, 32.0, 1.0, 1.0))
    want = Twin("single").histogram(formula, brought(inputs))
    grids = [Cuda("single", 1024, blocks) for blocks in (None, 7)]
    return "same bits" if all(bool((want == card.histogram(formula, inputs)).all()) for card in grids) else "DIFFERENT"


def brought(inputs: Inputs) -> Inputs:
    """Return what a formula reads in this machine's memory."""
    arrays = {name: array.get() for name, array in inputs.arrays.items()}
    return replace(inputs, arrays=arrays, codes=[c if isinstance(c, OneLevel) else c.get() for c in inputs.codes])


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


def check_trees(n: int = 200_003) -> list[list[str]]:
    """Compare the kernels of trees with their twins, for several grids and sizes of shared memory."""
    rng, found = np.random.default_rng(0), []
    counts, build = np.array([66] * 10 + [12] * 10), rng.random(8) < 0.5
    numbers = rng.standard_normal(n, dtype=np.float32)
    numbers[::9] = np.nan
    cuts, kind = np.sort(rng.standard_normal(63)), np.dtype(np.uint8)
    near = [rng.integers(0, count, n).astype(kind) for count in counts]
    node, feature, cut = rng.integers(0, 8, n).astype(kind), rng.integers(-1, 20, (9, 15)), rng.integers(0, 60, (9, 15))
    value = rng.normal(size=(9, 16))
    for precision in ("single", "double"):
        twin = trees_on(Twin(precision))
        terms = [rng.integers(-(1 << 18), 1 << 18, n).astype(twin.whole) for _ in range(3)]
        want = twin.bin(numbers, cuts, kind), twin.step(near, node, feature[0, :8], cut[0, :8])
        want = *want, twin.evaluate(near, feature, cut, value), twin.add_up(near, counts, node, build, [None, *terms])
        for threads, blocks, shared in ((1024, None, None), (512, 7, 50_000), (32, 132, None), (96, 50, 0)):
            device = Cuda(precision, threads, blocks, shared)
            card, columns, far = trees_on(device), [device.upload(c) for c in near], device.upload(node)
            sums = card.add_up(columns, counts, far, build, [None, *(device.upload(term) for term in terms)])
            rows = card.bin(device.upload(numbers), cuts, kind), card.step(columns, far, feature[0, :8], cut[0, :8])
            have = *map(device.download, (*rows, card.evaluate(columns, feature, cut, value))), sums
            same = [bool((a == b).all()) for a, b in zip(want, have, strict=True)]
            room = "all" if shared is None else f"{shared:,} B of"
            what = f"trees, {precision}, {threads} threads, {blocks or 'all'} blocks, {room} shared memory"
            found.append([what, "same bits" if all(same) else f"DIFFERENT: {same}"])
    return found


def tree_rows(n: int, columns: int = 20) -> tuple[Any, Any, dict[str, Any]]:
    """Return labels, probabilities in single precision and columns, in this machine's memory."""
    rng = np.random.default_rng(0)
    X: dict[str, Any] = {f"x{j}": rng.standard_normal(n, dtype=np.float32) for j in range(columns // 2)}
    X |= {f"c{j}": rng.integers(0, VALUES, n, dtype=np.uint8) for j in range(columns - len(X))}
    z = rng.standard_normal(n, dtype=np.float32)
    shift = 0.5 * (X["x0"] > 0) * (X["c0"] < 4) - 0.3 * np.abs(X["x1"]) + 0.2 * X["x2"] * (X["c1"] > 6)
    p = (1 / (1 + np.exp(-1.8 * z))).astype(np.float32)
    return (rng.random(n, dtype=np.float32) < 1 / (1 + np.exp(shift - z))).astype(np.uint8), p, X


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long a call takes, and what it returns."""
    start = perf_counter()
    found = work()
    return perf_counter() - start, found


class Shards(Memory):
    """Rows in memory in several shards, visited by as many threads: what this machine can do without a card."""

    def __init__(self, whole: Shard, threads: int) -> None:
        super().__init__(whole)
        edges = pairwise(np.linspace(0, len(whole), threads + 1).astype(np.intp).tolist())
        self.single, self.threads, self.shards = None, threads, [self._run_of(slice(a, b)) for a, b in edges]

    def _run_of(self, part: slice) -> Shard:
        p, y, weight = self.whole.at(START)[part], self.whole.y[part], self.whole.weight[part]
        return Shard(take_rows(self.whole.rows, part), p, y, weight, self.scale, part.start)

    def run(self, one: Any) -> Any:
        """Take one pass over all rows."""

        def visit(shard: Shard) -> Any:
            with part_of(len(shard), self.scale.n):
                return one(shard)

        with ThreadPoolExecutor(self.threads) as pool:
            return one.read(reduce(add, pool.map(visit, self.shards)), self.shards[0], self.scale)


def grow(rows: Any, learner: Any) -> Any:
    """Return a boosted forest on rows at the start."""
    start = Start(Probed(START, ((Monomial(), 0),)), "mirror", 1)
    counts = np.array([level.count for level in learner.encoder.levels])
    return grow_forests(rows, Request(start, ((0, 1),), 1.0, counts, Growth(4, 30, 100, 0.1, "mirror")))[0]


def splits(forest: Any) -> list[Any]:
    """Return the features and cuts of a forest."""
    return [forest.feature.tolist(), forest.cut.tolist()]


def peers(xp: Any, y: Any, p: Any, X: dict[str, Any]) -> Iterator[list[str]]:
    """Yield how long peers take that are installed to bin rows and to boost 100 trees on p, and their log losses."""
    matrix, start = np.stack([column.astype(np.float32) for column in X.values()], axis=1), np.log(p / (1 - p))
    asked = {"learning_rate": 0.1, "max_depth": 4, "max_bin": 64, "seed": 0}

    def by_xgboost(xgboost: Any) -> list[str]:
        there, labels, margin = xp.asarray(matrix), xp.asarray(y), xp.asarray(start)
        how = asked | {"device": "cuda", "tree_method": "hist", "objective": "binary:logistic"}
        binning, rows = seconds(lambda: xgboost.QuantileDMatrix(there, labels, base_margin=margin, max_bin=64))
        growing, model = seconds(lambda: xgboost.train(how, rows, 100))
        return [f"{binning:.2f} s", f"{growing:.2f} s", f"{cross_entropy(y, xp.asnumpy(model.predict(rows))):.5f}"]

    def by_lightgbm(lightgbm: Any, device: str) -> list[str]:
        how = asked | {"device_type": device, "num_leaves": 16, "objective": "binary", "verbose": -1}
        binning, rows = seconds(lambda: lightgbm.Dataset(matrix, y, init_score=start, params=how).construct())
        growing, model = seconds(lambda: lightgbm.train(how, rows, 100))
        q = 1 / (1 + np.exp(-start - model.predict(matrix, raw_score=True)))
        return [f"{binning:.2f} s", f"{growing:.2f} s", f"{cross_entropy(y, q):.5f}"]

    with suppress(ImportError):
        import xgboost

        by_xgboost(xgboost)  # loads kernels
        yield [f"XGBoost {xgboost.__version__}, card", *by_xgboost(xgboost)]
    with suppress(ImportError):
        import lightgbm

        for device, where in (("gpu", "card"), ("cpu", f"{len(os.sched_getaffinity(0))} cores")):
            try:
                took = by_lightgbm(lightgbm, device)
            except lightgbm.basic.LightGBMError as error:
                took = [str(error), "", ""]
            yield [f"LightGBM {lightgbm.__version__}, {where}", *took]


def cross_entropy(y: Any, p: Any) -> float:
    """Return the mean log loss."""
    return float(-np.log(np.where(y == 1, p, 1 - p), dtype=np.float64).mean())


def trees(xp: Any, n: int) -> None:
    """Print how long 100 trees of depth 4 take on the card and in memory, and how far predictions are apart."""
    y, p, X = tree_rows(n)
    on_card = xp.asarray(y), xp.asarray(p), {name: xp.asarray(column) for name, column in X.items()}
    wide, cores = p.astype(np.float64), len(os.sched_getaffinity(0))
    # at a limit of updates a learner would be asked once more, and grow another forest
    how: dict[str, Any] = {"guard": False, "callback": lambda record: record.n_updates == 2, "random_state": 0}
    how["subpopulations"] = lowcal.Trees(max_depth=4, n_trees=100)
    small = tree_rows(50_000)  # loads compiled kernels
    lowcal.multicalibrate(small[0], small[1].astype(np.float64), small[2], **how)
    fast = timed(xp, lambda: lowcal.multicalibrate(*on_card, **how), 3)
    print(f"card, multicalibrate: {fast:.2f} s", flush=True)
    given, trees_of = open_card(*on_card), how["subpopulations"]
    encoding = timed(xp, lambda: settle_on_card(trees_of, given, None, 0, True), 3)
    rows, learner, _ = settle_on_card(trees_of, given, None, 0, True)
    growing = timed(xp, lambda: grow(rows, learner), 3)
    rows = learner = None  # type: ignore[assignment]
    on = lowcal.multicalibrate(*on_card, **how)
    predicting = timed(xp, lambda: on.predictor(*on_card[1:]), 3)
    print(f"card, encoding {encoding:.3f} s, growing {growing:.3f} s, predict {predicting:.3f} s", flush=True)
    here = open_home(y, wide, X, None, None, trees_of, 0, None, Passes(False))
    assert isinstance(here.rows, Memory)
    in_shards = Shards(here.rows.whole, cores)
    by_threads, _ = seconds(lambda: grow(in_shards, here.learner))
    print(f"memory, growing in {cores} shards by {cores} threads: {by_threads:.2f} s", flush=True)
    slow, off = seconds(lambda: lowcal.multicalibrate(y, wide, X, **how))
    back, moved = seconds(lambda: off.predictor(wide, X))
    sums = [
        [t.family.forest for u in fit.predictor.updates for t in u.terms if hasattr(t.family, "forest")]
        for fit in (on, off)
    ]
    same = [splits(forest) for forest in sums[0]] == [splits(forest) for forest in sums[1]]
    apart = np.abs(on.predictor(*on_card[1:]).get() - moved)
    lines = [
        ["multicalibrate", f"{fast:.2f} s", f"{slow:.2f} s", f"{slow / fast:.1f}"],
        [
            f"growing alone, memory by {cores} threads",
            f"{growing:.2f} s",
            f"{by_threads:.2f} s",
            f"{by_threads / growing:.1f}",
        ],
        ["predict", f"{predicting:.3f} s", f"{back:.2f} s", f"{back / predicting:.1f}"],
    ]
    grown = sum(len(forest.feature) for forest in sums[0])
    print(table([f"{n:,} rows x 20 columns, {grown} trees of depth 4", "card", "memory", "ratio"], lines))
    print(
        f"splits are the same: {same}; predictions differ by at most {apart.max():.1e}, {np.median(apart):.1e} median\n"
    )
    first = on.predictor[:1](*on_card[1:]).get()  # a fit's first step is for everyone; its trees follow
    ours = ["lowcal, card", f"{encoding:.2f} s", f"{growing:.2f} s", f"{cross_entropy(y, moved):.5f}"]
    print(table(["boosting 100 trees of depth 4", "binning", "growing", "log loss"], [ours, *peers(xp, y, first, X)]))


def bits_on_card(xp: Any, y: Any, p: Any) -> tuple[Card, tuple[Family, ...]]:
    """Return rows with 100 random memberships, packed as they are encoded, and the families of these."""
    device = Cuda()
    packed = tuple(xp.random.randint(0, 256, len(y), dtype=np.uint8) for _ in range(13))
    z = device.rows(Formula(("logit(p)",)), Inputs(len(y), {"p": p}), device.kind)
    few = np.random.default_rng(0).integers(0, 2, (1_000, 100)).astype(np.uint8)
    return Card(device, Bits(packed, 100), z, y, None), tuple(lowcal.Memberships().prepare(few).families)


def link_bandwidth(xp: Any) -> float:
    """Return the bytes a second that are copied from this machine's memory to the card."""
    here, there = Streamed()._pinned(1 << 28, np.uint8), xp.empty(1 << 28, dtype=np.uint8)
    return float(here.nbytes / timed(xp, lambda: there.set(here)))


def host(xp: Any, n: int) -> None:
    """Print how long rows take that stay in this machine's memory and pass through the card."""
    y, p, columns = rows_on_card(xp, n)
    y, p, columns = y.get(), p.get(), {name: column.get() for name, column in columns.items()}
    xp.get_default_memory_pool().free_all_blocks()
    groups, link = lowcal.Groups(n_bins=VALUES), link_bandwidth(xp)
    through = lowcal.on_card(columns, memory=1)
    rows, learner, _ = settle_on_card(groups, open_card(y, p, through), None, 0, True)
    one = Moments(START, tuple(learner.families), (Monomial(), Monomial((0,))))
    a_pass = timed(xp, lambda: rows.run(one))
    print(
        f"link {link / 1e9:.1f} GB/s; a pass over {n:,} rows {1e3 * a_pass:.1f} ms, {10 * n / a_pass / link:.0%} of it"
    )
    how: dict[str, Any] = {"subpopulations": groups, "random_state": 0}
    fits = [
        seconds(lambda table=table: lowcal.multicalibrate(y, p, table, alpha=1e-4, **how))  # type: ignore[misc]
        for table in (through, through, lowcal.on_card(columns), columns)
    ]
    for name, (took, _) in zip(("through it", "again", "copied to it once", "in memory"), fits, strict=True):
        print(f"multicalibrate, rows {name}: {took:.2f} s")
    same = [
        str(fit.predictor.to_dict()["updates"]) == str(fits[0][1].predictor.to_dict()["updates"]) for _, fit in fits
    ]
    print(f"through it and on it: {'same bits' if same[2] else 'DIFFERENT'}")
    print(f"predict {seconds(lambda: fits[0][1].predictor(p, through))[0]:.2f} s")
    print(f"audit {seconds(lambda: lowcal.audit(y, p, through, **how))[0]:.2f} s")


def main() -> None:
    """Print the table of a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="1,000,000,000; of trees 10,000,000")
    parser.add_argument("--trees", action="store_true", help="grow trees on the card and in memory instead")
    parser.add_argument("--check", action="store_true", help="compare kernels with their twins first")
    parser.add_argument("--host", action="store_true", help="rows that stay in this machine's memory instead")
    parser.add_argument("--notions", action="store_true", help="time fits of other notions instead")
    parser.add_argument("--classes", type=int, default=2, help="time fits of this number of classes instead")
    asked = parser.parse_args()
    import cupy as xp

    if asked.host:
        host(xp, asked.rows or 200_000_000)
        return

    if asked.trees:
        if asked.check:
            print(table(["kernels of trees and their twins, 200,003 rows", ""], check_trees()), flush=True)
        trees(xp, asked.rows or 10_000_000)
        return
    if asked.check:
        print(table(["kernels and their twins, 1,000,003 rows", ""], check(xp)), flush=True)
        print(f"moments of 10,000,000 rows against float64: {agreement(xp):.1e} of the mass\n", flush=True)
    n = asked.rows or 1_000_000_000
    if asked.notions or asked.classes > 2:
        notions = ("degree-2", "full-0.1", "smooth") if asked.notions else ("degree-2",)
        title = f"{n:,} rows x {COLUMNS * VALUES} groups, {asked.classes} classes"
        print(table([title, ""], fits(xp, n, asked.classes, notions)))
        return
    bandwidth = copy_bandwidth(xp)
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
    how: dict[str, Any] = {"subpopulations": groups, "random_state": 0}
    calibrated = fit.predictor(p, columns)
    add("audit of the calibrated model", timed(xp, lambda: lowcal.audit(y, calibrated, columns, **how), 3))
    add("audit of the model, labels drawn twice", timed(xp, lambda: lowcal.audit(y, p, columns, **how), 3))
    columns = calibrated = None  # type: ignore[assignment]
    bits, members = bits_on_card(xp, y, p)
    add("pass: moments, 100 memberships in bits", timed(xp, lambda: bits.run(Moments(START, members, weights))), 18)
    print(table([f"{n:,} rows x {COLUMNS * VALUES} groups", "", "", "of copy"], lines))


if __name__ == "__main__":
    main()
