"""What the kernels cost: ratios to the machine's limits and to other ways, CPU time, one thread, one run.

Run: OPENBLAS_NUM_THREADS=1 python benchmarks/engines.py [rows]

The rivals of a line take turns; a line shows the median and the range of the ratio over the turns, and where there is a
gate (T1 to T10), its limit and whether it is met. T6 is in predict.py, the peers' share of T5 and T6 in peers.py.
"""

import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from itertools import combinations
from time import perf_counter, process_time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from common import show
from scale import categorical
from scipy import sparse
from scipy.optimize import linprog

import lowcal
from lowcal.data.batches import open_batches
from lowcal.data.frames import Table as Frame
from lowcal.data.progress import Passes
from lowcal.kernels import loops
from lowcal.kernels.line import solve_line
from lowcal.kernels.reference import Codes, DecodeTable
from lowcal.notions.moments import moments_at, outer_moments
from lowcal.notions.weights import monomials
from lowcal.rows import START, Memory
from lowcal.rows.passes import Moments
from lowcal.rows.reading import Roles, on_disk
from lowcal.rows.updates import Term, Update
from lowcal.solve.solvers import SOLVERS, Problem

TURNS = 7
#: CPU nanoseconds that the best loop in C needs to add two numbers into a table in cache, for each row and column.
SCATTER = 0.6

Work = Callable[[], object]


def times(works: dict[str, Work], turns: int = TURNS) -> dict[str, np.ndarray]:
    """CPU seconds of each, in turns, after one call of each that does not count."""
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            start = process_time()
            work()
            seconds[name].append(process_time() - start)
    return {name: np.array(each) for name, each in seconds.items()}


def without_numba(work: Work) -> Work:
    def run() -> object:
        before, loops.COMPILE_FROM = loops.COMPILE_FROM, sys.maxsize
        try:
            return work()
        finally:
            loops.COMPILE_FROM = before

    return run


def people(n: int, cards: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Labels, predictions that are wrong in several groups, and columns with so many values each."""
    rng = np.random.default_rng(seed)
    X = {f"a{k}": rng.integers(0, card, n).astype(float) for k, card in enumerate(cards)}
    p = 1 / (1 + np.exp(-rng.normal(0.0, 1.2, n)))
    wrong = (
        0.05 * (X["a0"] == 1) - 0.06 * p * (X["a1"] == 0) + 0.04 * (1 - p) * (X["a2"] < 2) - 0.05 * p * (X["a3"] < 1)
    )
    return (rng.random(n) < np.clip(p + wrong, 0, 1)).astype(float), p, X


def reading(n: int, bytes_a_row: int) -> Work:
    """Read so many bytes for each row from memory."""
    memory = np.ones(n * bytes_a_row // 8)
    return memory.sum


def passes(n: int) -> None:
    """A pass of degree 2 over 10 columns of 10 values: moments, update, both, and the whole fit."""
    y, p, X = people(n, [10] * 10)
    learner = lowcal.Groups(n_bins=20).prepare(X)
    design, weights = learner.design(), monomials(1, 1)
    P, rho = p[:, None], (y - p)[:, None] / n
    held = Memory.of(learner.rows, P, y[:, None], np.full(n, 1 / n))
    update = Update((Term(learner.families[0], weights, 1e-3 * np.ones((design.shape[1], 2, 1))),))
    columns = len(design.codes)

    def histograms() -> object:
        return moments_at(design, weights, P, rho)

    def both() -> object:
        return held.run(Moments(START.then(update), tuple(learner.families), weights))

    def bare() -> object:
        sums = design.sums(2)
        for start in range(0, n, 16_384):
            sums.add(slice(start, start + 16_384), R[start : start + 16_384])
        return sums.total()

    R = np.column_stack([rho[:, 0], rho[:, 0] * p])
    # codes, f, y and weights are read; the update writes f
    bytes_a_row = sum(c.itemsize for c in design.codes) + 24
    works: dict[str, Work] = {
        "bare": bare,
        "moments": histograms,
        "update": lambda: update(P, learner.rows),
        "both": both,
        "numpy": without_numba(both),
        "read": reading(n, bytes_a_row),
    }
    t = times(works)
    print(f"{n:,} rows, 100 groups of 10 columns in {columns} code columns, degree 2; ns a row: ", end="")
    print(", ".join(f"{name} {np.median(each) / n * 1e9:.1f}" for name, each in t.items()))
    limit = np.maximum(t["read"], SCATTER * 1e-9 * n * columns)
    ten = np.maximum(t["read"], SCATTER * 1e-9 * n * 10)
    show("T3 histograms of two moments / scatter limit (.6 ns a row and code column)", t["bare"] / limit, "<= 2")
    show("   moments / the larger of reading and scattering, code columns as merged", t["moments"] / limit)
    show("   update and moments / the same", t["both"] / limit)
    show("   update and moments in one pass / the same, ten columns counted", t["both"] / ten, "<= 2")
    show("T8 update and moments, NumPy / numba", t["numpy"] / t["both"], "<= 3")


def bits(n: int) -> None:
    """100 overlapping 0/1 groups, two moments: eight to a byte, against matrix products."""
    rng = np.random.default_rng(0)
    C = rng.random((n, 100), dtype=np.float32) < 0.3
    R = rng.normal(size=(n, 2))
    dense, small = C.astype(np.float32), R.astype(np.float32)
    learner = lowcal.Memberships(everyone=False).prepare(C.astype(float))
    design = learner.design()
    eight = C.astype(np.uint8)
    p, rho = rng.random((n, 1)), R[:, :1] / n

    def audit() -> object:
        return lowcal.LowDegree(2).suprema(p, rho, design)

    def chunked() -> object:
        parts = (slice(s, s + 8192) for s in range(0, n, 8192))
        return sum(eight[part].T.astype(np.float32) @ small[part] for part in parts)

    t = times(
        {
            "bits": lambda: design.moments(R),
            "sgemm": lambda: dense.T @ small,
            "chunks": chunked,
            "audit": audit,
            "numpy": without_numba(audit),
        }
    )
    show(f"T1 {n:,} rows x 100 0/1 groups: sgemm in float32 / packed bits", t["sgemm"] / t["bits"], ">= 3")
    show("T1 bytes to float32 in pieces, then sgemm / packed bits", t["chunks"] / t["bits"], ">= 4")
    show("T8 degree-2 suprema from packed bits, NumPy / numba", t["numpy"] / t["audit"], "<= 3")


def from_bytes(n: int) -> None:
    """100 overlapping 0/1 groups as they come, a byte each: packed and summed; measured at degree 2."""
    rng = np.random.default_rng(0)
    rows, columns = rng.random((n, 100), dtype=np.float32) < 0.3, lowcal.Memberships(everyone=False)
    turned, floats = np.asfortranarray(rows), rows.astype(float)
    p, R = rng.random(n), rng.normal(size=(n, 2))
    y = (rng.random(n) < p * p).astype(float)
    learner, encoder = columns.prepare(rows), columns.prepare(rows).encoder
    design, table = learner.design(), Frame.of(rows)

    members = learner.families[0]

    def through_bits() -> object:
        return members.design(encoder(table)).moments(R)

    def measure(X: np.ndarray) -> Work:
        return lambda: lowcal.measure(y, p, X, subpopulations=columns)

    def fit() -> object:
        return lowcal.multicalibrate(y, p, rows, subpopulations=columns, alpha=0.001, random_state=0)

    works: dict[str, Work] = {
        "read": reading(n, 116),
        "pack": lambda: encoder(table).packed,
        "packed": through_bits,
        "bits": lambda: design.moments(R),
        "measure": measure(rows),
        "columns": measure(turned),
        "floats": measure(floats),
        "numpy": without_numba(measure(rows)),
        "fit": fit,
        "numpy's fit": without_numba(fit),
    }
    t = times(works, 5)
    print(f"{n:,} rows x 100 0/1 bytes; ns an entry: ", end="")
    print(", ".join(f"{name} {np.median(each) / n * 1e7:.3g}" for name, each in t.items()))
    show("T1 bytes, packed and summed: share of the read roofline, percent", 100 * t["read"] / t["packed"])
    show("   packing alone: share of the read roofline, percent", 100 * t["read"] / t["pack"])
    show("   measure of bytes, CPU seconds", t["measure"])
    show("   measure of bytes, column by column in memory, CPU seconds", t["columns"])
    show("   measure of 0/1 in float64, CPU seconds", t["floats"])
    show("   measure of bytes, NumPy / numba", t["numpy"] / t["measure"])
    show("T8 fit of bytes, degree 2, alpha .001, NumPy / numba", t["numpy's fit"] / t["fit"], "<= 3")
    show("   peak of new memory in measure, bytes an entry", peak(measure(rows)) / rows.size)


def conjunctions(n: int) -> None:
    """All single values and pairs of values of 8 columns: few merged columns against one pass for each pair."""
    cards = [2, 3, 5, 5, 6, 7, 8, 10]
    _, p, X = people(n, cards)
    design = lowcal.Intersections(n_bins=20, min_mass=0, everyone=False).prepare(X).design()
    columns = [X[f"a{k}"].astype(np.int64) for k in range(8)]
    R = np.column_stack([p, p * p])
    runs = R[:, 0].copy(), R[:, 1].copy()

    def by_pair() -> object:
        found = []
        for j, k in combinations(range(8), 2):
            key = columns[j] * cards[k] + columns[k]
            found += [np.bincount(key, run, cards[j] * cards[k]) for run in runs]
        return found

    def audit() -> object:
        return lowcal.LowDegree(2).suprema(p[:, None], R[:, :1], design)

    starts = np.cumsum([0, *(cards[j] * cards[k] for j, k in combinations(range(8), 2))])
    indices = [
        columns[j] * cards[k] + columns[k] + s for (j, k), s in zip(combinations(range(8), 2), starts, strict=False)
    ]
    csr = sparse.csr_array(
        (np.ones(28 * n, dtype=np.float32), np.column_stack(indices).ravel(), np.arange(0, 28 * n + 1, 28)),
        shape=(n, int(starts[-1])),
    )
    works: dict[str, Work] = {
        "merged": lambda: design.moments(R),
        "read": reading(n, 24),
        "bincount": by_pair,
        "sparse": lambda: csr.T @ R,
        "audit": audit,
        "numpy": without_numba(audit),
    }
    t = times(works, 5)
    print(f"{n:,} rows, {design.shape[1]} groups of single values and pairs in {len(design.codes)} code columns")
    show("T2 moments of all groups / reading 24 bytes a row", t["merged"] / t["read"], "<= 8")
    show("T2 SciPy's sparse product / merged columns", t["sparse"] / t["merged"], ">= 6")
    show("T2 bincount for each pair of columns / merged columns", t["bincount"] / t["merged"], ">= 15")
    show("T8 degree-2 suprema from merged columns, NumPy / numba", t["numpy"] / t["audit"], "<= 3")
    frames(columns, runs, t["merged"])


def frames(columns: list[np.ndarray], runs: tuple[np.ndarray, ...], merged: np.ndarray) -> None:
    """pandas' groupby for each pair of columns, once: it takes seconds."""
    import pandas as pd

    frame = pd.DataFrame({**{f"a{k}": c for k, c in enumerate(columns)}, "r": runs[0], "s": runs[1]})
    start = process_time()
    for j, k in combinations(range(8), 2):
        frame.groupby([f"a{j}", f"a{k}"])[["r", "s"]].sum()
    show("T2 pandas' groupby for each pair / merged columns", (process_time() - start) / merged, ">= 100")


def fits(n: int) -> None:
    """The whole fit to alpha .001, its table made before: with numba and without, and in passes."""
    y, p, X = people(n, [10] * 10)
    learner = lowcal.Groups(n_bins=20).prepare(X)
    table = Frame.of(X)

    class Ready(lowcal.Groups):
        def bind(self, X: Frame, sample_weight: np.ndarray) -> object:
            return learner.fresh()

    def fit() -> object:
        return lowcal.multicalibrate(y, p, table, subpopulations=Ready(), alpha=0.001, random_state=0)

    weights, held = monomials(1, 1), Memory.of(learner.rows, p[:, None], y[:, None], np.full(n, 1 / n))
    update = Update((Term(learner.families[0], weights, 1e-3 * np.ones((len(learner.names), 2, 1))),))
    works: dict[str, Work] = {
        "numba": fit,
        "numpy": without_numba(fit),
        "pass": lambda: held.run(Moments(START.then(update), tuple(learner.families), weights)),
    }
    t = times(works, 5)
    fitted = fit()
    print(f"{n:,} rows x 100 groups, degree 2, alpha .001: {fitted}")
    show("   fit, CPU seconds (the limit is for 1,000,000 rows)", t["numba"], "< 1")
    show("T5 rounds of the fit", fitted.n_updates, "<= 3")
    show("T5 fit / a pass of update and moments", t["numba"] / t["pass"], "<= 12")
    show("T8 fit, NumPy / numba", t["numpy"] / t["numba"], "<= 3")
    show("   peak of new memory in a fit, bytes a row", peak(fit) / n, "<= 64")
    naive(n)


def peak(work: Work) -> int:
    """The most bytes that were in use at once beyond those before."""
    work()
    tracemalloc.start()
    work()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def naive(n: int) -> None:
    """Largest violation first with a dense matrix of memberships, as one would write it; all rounds cost the same."""
    y, p, X = categorical(n, 10)
    learner = lowcal.Groups().prepare(X)
    C = learner.design().dense()

    def problem() -> Problem:
        held = Memory.of(learner.rows, p[:, None], y[:, None], np.full(n, 1 / n))
        return Problem(held, lowcal.LowDegree(2), learner.fresh(), 0.001)

    def one_round() -> object:
        rho = (y - p) / n
        g = C.T @ np.column_stack([rho, rho * p])
        return np.clip(p + g[0, 0] * C[:, 0] * p, 0, 1)

    one = problem()
    states = [START, *(step.state for step in SOLVERS["worst"](one, START))]
    brier = [one.losses(state).brier for state in states]
    t = times({"naive": one_round, "fit": lambda: list(SOLVERS["block"](problem(), START))}, 5)
    rounds = len(brier) - 1
    show(f"T5 {n:,} rows: {rounds} rounds of dense NumPy / block solver", t["naive"] * rounds / t["fit"], ">= 150")
    show(
        "T9 rounds of the largest violation first in which the loss fell, percent",
        100 * np.mean(np.diff(brier) < 0),
        ">= 100",
    )


def many_classes(n: int, classes: int = 100) -> None:
    """Moments of 100 classes at degree 2, 100 groups of ten columns: products by level against a dense matrix."""
    _, _, X = people(n, [10] * 10)
    design = lowcal.Groups(n_bins=20, everyone=False).prepare(X).design()
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(classes, 0.5), n)
    rho = (np.eye(classes)[rng.integers(0, classes, n)] - p) / n
    C, small, part = design.dense().astype(np.float32), p.astype(np.float32), rho.astype(np.float32)

    def dense() -> object:
        total = np.zeros((C.shape[1], classes * classes), dtype=np.float32)
        for s in range(0, n, 512):
            rows = slice(s, s + 512)
            total += C[rows].T @ (small[rows, :, None] * part[rows, None, :]).reshape(-1, classes**2)
        return total

    square, notion = rng.normal(size=(1500, 1500)), lowcal.LowDegree(2)
    works: dict[str, Work] = {
        "ours": lambda: outer_moments(design, p, rho),
        "audit": lambda: notion.suprema(p, rho, design),
        "gemm": lambda: square @ square,
        "dense": dense,
    }
    t = times(works, 5)
    peak_rate = 2 * 1500**3 / t["gemm"]
    print(f"{n:,} rows, {classes} classes, 100 groups of ten columns in {len(design.codes)} code columns; ms: ", end="")
    print(", ".join(f"{name} {1e3 * np.median(each):.3g}" for name, each in t.items()))
    show("T4 products with dense memberships in float32 / by level in float64", t["dense"] / t["ours"], ">= 5")
    asked = 2 * n * classes * (classes + 1) / peak_rate * 100
    columns = len(design.codes)
    show("T4 multiplications by level, percent of the float64 peak", columns * asked / t["ours"], ">= 45")
    show("T4 multiplications of ten columns, percent of the float64 peak", 10 * asked / t["ours"], ">= 45")


def smooth(n: int) -> None:
    """The exact smooth supremum of one group: nanoseconds a point, and against a linear program."""
    rng = np.random.default_rng(0)

    def residuals(m: int) -> tuple[np.ndarray, np.ndarray]:
        v = np.sort(rng.random(m))
        return v, (rng.random(m) < np.clip(v + 0.1 * np.sin(12 * v), 0, 1)) - v

    v, r = residuals(n)
    t = times({"": lambda: solve_line(v, r / n)}, 3)[""]
    show(f"T7 smooth supremum of {n:,} sorted points, ns a point", t / n * 1e9, "<= 120")
    v, r = residuals(10_000)
    gaps, steps = (
        np.diff(v),
        sparse.diags_array([-np.ones(9_999), np.ones(9_999)], offsets=[0, 1], shape=(9_999, 10_000)),
    )
    A, b = sparse.vstack([steps, -steps]).tocsr(), np.concatenate([gaps, gaps])
    start = process_time()
    program = linprog(-r, A_ub=A, b_ub=b, bounds=(0, 1), method="highs")
    seconds = process_time() - start
    ours = times({"": lambda: solve_line(v, r)}, 5)[""]
    show("T7 HiGHS / ours at 10,000 points", seconds / ours, ">= 500")
    show("T7 difference of the two", abs(-program.fun - solve_line(v, r)[0]), "<= 1e-10")


FIRST = """
import sys, time, numpy as np
start = time.process_time()
import lowcal
imported = time.process_time() - start
assert not {"numba", "pandas", "torch"} & set(sys.modules)
rng = np.random.default_rng(0)
n = 500_000
p = rng.random(n)
X = {f"a{k}": rng.integers(0, 10, n).astype(float) for k in range(10)}
y = (rng.random(n) < p * p).astype(float)
seconds = []

def fit(m):
    start = time.process_time()
    some = {name: column[:m] for name, column in X.items()}
    lowcal.multicalibrate(y[:m], p[:m], some, subpopulations=lowcal.Groups(n_bins=20), alpha=0.001)
    return time.process_time() - start

fit(1000)  # imports all but numba
seconds = [fit(n) for _ in range(3)]
print(imported, seconds[0] - min(seconds[1:]))
"""


def first_calls() -> None:
    """Fresh processes: CPU seconds of the import, and what the first fit takes longer with kernels on disk."""
    runs = [subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True) for _ in range(4)]
    imported, first = np.array([[float(x) for x in run.stdout.split()] for run in runs[1:]]).T
    show("T8 import lowcal, CPU seconds (without numba, pandas, torch)", imported, "<= .25")
    show("T8 first fit less a later one, kernels on disk, CPU seconds", first, "<= .7")


def trees(n: int) -> None:
    """Trees: the first question bins the features, later ones reuse the bins."""
    rng = np.random.default_rng(0)
    X = {f"x{k}": rng.normal(size=n) for k in range(20)}
    z = rng.normal(size=(n, 1))
    start = process_time()
    learner = lowcal.Trees().prepare(X)
    learner.learn(z)
    first = process_time() - start
    later = times({"": lambda: learner.learn(z)}, 5)[""]
    show(f"T10 trees on {n:,} x 20 numbers, first call / later call", first / later, ">= 20")


def exponent(sizes: list[int], make: Callable[[int], Work]) -> float:
    """The slope of the logarithm of CPU time."""
    seconds = [np.median(times({"": make(size)}, 5)[""]) for size in sizes]
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def growth() -> None:
    """How time grows with rows, groups and degree, for `measure`'s suprema and for the fit."""

    def audit(n: int, groups: int, degree: int) -> Work:
        y, p, X = people(n, [10] * (groups // 10))
        learner = lowcal.Groups(n_bins=20).prepare(X)
        design, P, rho = learner.design(), p[:, None], (y - p)[:, None] / n
        return lambda: lowcal.LowDegree(degree).suprema(P, rho, design)

    def fit(n: int, groups: int) -> Work:
        y, p, X = people(n, [10] * (groups // 10))
        table = Frame.of(X)
        for name in table.names:
            table.column(name)
        return lambda: lowcal.multicalibrate(y, p, table, subpopulations=lowcal.Groups(n_bins=20), alpha=0.001)

    kinds = {
        "T9 audit in rows, 300,000 to 3,000,000": (
            [300_000, 1_000_000, 3_000_000],
            lambda n: audit(n, 100, 2),
            "<= 1.1",
        ),
        "T9 audit in groups, 100 to 800": ([100, 200, 400, 800], lambda m: audit(300_000, m, 2), "<= 1.05"),
        "T9 audit in degree, 1 to 4": ([1, 2, 3, 4], lambda k: audit(500_000, 100, k), "<= .8"),
        "   fit in rows, 300,000 to 3,000,000, X read": (
            [300_000, 1_000_000, 3_000_000],
            lambda n: fit(n, 100),
            "<= 1.1",
        ),
    }
    for name, (sizes, make, gate) in kinds.items():
        show(f"{name}: exponent", exponent(sizes, make), gate)


def codes_of_one(n: int) -> None:
    """Every row in the same bin, the worst case of a histogram."""
    ones = Codes((np.zeros(n, dtype=np.uint8),), (DecodeTable(sparse.csr_array(np.ones((1, 1)))),))
    R = np.ones((n, 2))
    t = times({"one": lambda: ones.moments(R), "read": reading(n, 17)})
    show("   all rows in one bin, two moments / reading", t["one"] / t["read"])


#: Runs in a process of its own: memory beyond what imports take, in MB, and what was reached.
ADDED = """
import sys
import numba, pyarrow.ipc
import lowcal
from lowcal.auditing import audits as auditing
from lowcal.kernels import compiled

def peak():  # of this program: getrusage would count what the process held before it became Python
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

path, what, before = sys.argv[1], sys.argv[2], peak()
if what == "measure":
    found = lowcal.measure("y", "p", path, subpopulations=lowcal.Groups(), memory=1)
    print(peak() - before, f"{len(found.names)} groups, largest violation {found.largest:.3g}")
else:
    found = lowcal.multicalibrate("y", "p", path, subpopulations=lowcal.Groups(), alpha=0.001, memory=1)
    print(peak() - before, found)
"""


def write_stream(path: str, n: int, is_sorted: bool = True) -> None:
    """An Arrow file of 10 columns of 10 texts as bytes, predictions in float32 and labels in a byte: 15 bytes a row."""
    import pyarrow as pa

    order = range(10) if is_sorted else (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)
    texts, writer = pa.array([f"v{k}" for k in order]), None
    for start in range(0, n, 1 << 18):
        y, p, X = people(min(1 << 18, n - start), [10] * 10, seed=start)
        bytes_ = {name: pa.array(column.astype(np.uint8)) for name, column in X.items()}
        columns = {name: pa.DictionaryArray.from_arrays(column, texts) for name, column in bytes_.items()}
        batch = pa.RecordBatch.from_pydict(
            {**columns, "p": pa.array(p.astype(np.float32)), "y": pa.array(y.astype(np.uint8))}
        )
        writer = writer or pa.ipc.new_file(path, batch.schema)
        writer.write(batch)
    assert writer is not None
    writer.close()


def streams(n: int) -> None:
    """A pass over the rows of an Arrow file, encoded on disk, against one in memory; memory of a fit."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.arrow"
        write_stream(path, n)
        show(
            "T10 rows on disk, a pass of moments / in memory",
            passes_of_stream(path, n),
            "<= 2",
        )
        for what in ("measure", "fit"):
            start = perf_counter()
            done = subprocess.run([sys.executable, "-c", ADDED, path, what], capture_output=True, text=True, check=True)
            added, said = done.stdout.strip().split(" ", 1)
            print(f"{what} of a stream, {perf_counter() - start:.1f} s with all imports: {said}")
            show(f"T10 added memory (RSS) of a {what} of {n:,} streamed rows, MB", float(added), "<= 250")
        write_stream(path, n, is_sorted=False)
        show("   the pass / in memory, dictionaries in no order", passes_of_stream(path, n))


def passes_of_stream(path: str, n: int) -> np.ndarray:
    """Moments of degree 2 of 100 groups: rows encoded on disk, against the same rows in memory."""
    far, learner, _ = on_disk(lowcal.Groups(), open_batches(path), Roles("y", ("p",)), None, 0, Passes(False))
    whole = far.sample(np.arange(n))
    near = Memory.of(whole.rows, whole.at(START), whole.y, whole.weight)
    one = Moments(START, tuple(learner.families), monomials(1, 1))
    assert np.array_equal(far.run(one), near.run(one))
    t = times({"disk": lambda: far.run(one), "memory": lambda: near.run(one)}, 5)
    print(f"{n:,} rows, Arrow file; ns a row: ", end="")
    print(", ".join(f"{name} {np.median(each) / n * 1e9:.1f}" for name, each in t.items()))
    return t["disk"] / t["memory"]


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    passes(n)
    bits(n)
    from_bytes(n)
    conjunctions(n)
    codes_of_one(n)
    fits(n)
    many_classes(n // 50)
    smooth(n)
    first_calls()
    trees(n // 5)
    growth()
    streams(10 * n)


if __name__ == "__main__":
    main()
