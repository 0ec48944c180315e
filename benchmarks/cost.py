"""What a fit of a billion rows and more would take: a cost model, fitted to measured passes of Dask on this machine.

A job over the rows costs what it takes to begin it, what every part costs the scheduler, and what every row costs a
worker. Each of these is a number that is fitted to measured jobs by least squares of relative errors. The jobs of the
largest number of rows are left out at first: they tell how far the model is off when it goes beyond what it has seen.
What can't be measured on one machine, the network and the price, is assumed, and the page says so.

Run: python benchmarks/cost.py [--rows 1000000 2000000 5000000 10000000] [--parts 4 16 64] [--page]

--page writes docs/cost-of-scale.md and its picture; without it the page is printed. Needs dask, distributed, pandas,
matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import ceil, log
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from common import table
from scipy.optimize import nnls

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PICTURE = DOCS / "cost-of-scale.md", DOCS / "_static" / "cost-of-scale.svg"
#: Rows and workers that the page shows.
ROWS, WORKERS = (1e9, 1e10, 1e11), (10, 100, 1000)
#: Rows of a part in the forecast; fewer where a worker would have none.
PART = 4_000_000
#: Assumed: dollars for an hour of a worker with one core, seconds that a message takes, bytes a second of its network,
#: bytes a row that are read from storage.
PRICE, LATENCY, BANDWIDTH, BYTES = 0.05, 0.5e-3, 1.25e8, 20.0
#: As many sums are added up by one task; each has about as many bytes: tables of 1,024 levels and a dozen columns.
FAN_IN, SUMS = 16, 98_304.0


@dataclass(frozen=True)
class Measured:
    """A job on all rows: what it is, whether its results stay on the workers, and how long it took on the wall."""

    name: str
    is_kept: bool
    rows: int
    parts: int
    workers: int
    seconds: float


def depth(parts: int) -> int:
    """Return how many levels of tasks add up the sums of this many parts.

    >>> depth(16), depth(17), depth(4096)
    (0, 1, 2)
    """
    return max(0, ceil(log(parts, FAN_IN) - 1e-9) - 1)


@dataclass(frozen=True)
class Model:
    """Seconds of a level of sums and of a part, the same for all jobs; of a start and of a row, by their names."""

    level: float
    part: float
    start: dict[str, float]
    row: dict[str, float]

    def seconds(self, name: str, rows: float, parts: int, workers: int) -> float:
        """Return what a job takes on the wall."""
        return self.start[name] + self.level * depth(parts) + self.part * parts + self.row[name] * rows / workers


def fit(measured: Sequence[Measured]) -> Model:
    """Fit the model by least squares of relative errors; nothing costs less than nothing.

    >>> true = Model(0.002, 0.001, {"moments": 0.01}, {"moments": 4e-9})
    >>> sizes = [(10**6, 4), (10**6, 64), (10**7, 4), (10**7, 256), (10**7, 16)]
    >>> jobs = [Measured("moments", False, n, k, 2, true.seconds("moments", n, k, 2)) for n, k in sizes]
    >>> bool(abs(fit(jobs).seconds("moments", 1e9, 1000, 100) / true.seconds("moments", 1e9, 1000, 100) - 1) < 1e-6)
    True
    """
    names = sorted({one.name for one in measured})
    A = np.zeros((len(measured), 2 + 2 * len(names)))
    for line, one in zip(A, measured, strict=True):
        place = 2 + 2 * names.index(one.name)
        line[[0, 1, place, place + 1]] = depth(one.parts), one.parts, 1.0, one.rows / one.workers
        line /= one.seconds
    (level, part, *rest), _ = nnls(A, np.ones(len(A)))
    return Model(level, part, dict(zip(names, rest[::2], strict=True)), dict(zip(names, rest[1::2], strict=True)))


def errors(model: Model, measured: Sequence[Measured]) -> np.ndarray:
    """Return the relative errors of the model."""
    return np.array([model.seconds(m.name, m.rows, m.parts, m.workers) / m.seconds - 1.0 for m in measured])


# --- measuring ------------------------------------------------------------------------------------------------


def frame_part(number: int, n: int) -> Any:
    """Return rows of a part as a pandas frame: ten columns of ten values, and predictions that miss their shifts."""
    import pandas as pd

    from rows import world

    data, names = world(n, number), [f"v{k}" for k in range(10)]
    groups = {g: pd.Categorical.from_codes(data.pop(g), categories=names) for g in list(data) if g not in "yp"}
    return pd.DataFrame({**data, **groups})


def measure(sizes: Sequence[int], parts: Sequence[int], workers: Sequence[int]) -> list[Measured]:
    """Fit frames of all sizes on Dask clusters of this machine, and time their jobs."""
    from dask.distributed import Client, LocalCluster

    found = []
    for n_workers in workers:
        with (
            LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster),
        ):
            for n, k in product(sizes, parts):
                found += list(_measure_fit(n, k, n_workers))
    return found


def _measure_fit(n: int, parts: int, workers: int) -> Iterator[Measured]:
    """Fit twice, and yield the jobs of the second fit: the first one loads the library on the workers."""
    import dask.dataframe as dd
    from dask.distributed import wait

    import lowcal

    sizes = [n * (k + 1) // parts - n * k // parts for k in range(parts)]
    frame = dd.from_map(frame_part, range(parts), sizes).persist()
    wait(frame)
    for is_counted in (False, True):
        with Timed(n, workers) as timed:
            lowcal.multicalibrate("y", "p", frame, alpha=1e-4, random_state=0)
        if is_counted:
            yield from timed.found


class Timed:
    """Notes how long the jobs of a fit on Dask take."""

    def __init__(self, rows: int, workers: int) -> None:
        self.rows, self.workers = rows, workers
        self.found: list[Measured] = []

    def __enter__(self) -> Timed:
        from dask.distributed import wait

        from lowcal.rows.engines.dask import Dask

        self.engine, self.before = Dask, (Dask.sums, Dask.keep)
        sums, keep = self.before

        def timed_sums(engine: Any, job: Any, parts: Any) -> Iterator[Any]:
            start = perf_counter()
            yield from sums(engine, job, parts)
            self._note(job.name, False, len(parts), start)

        def timed_keep(engine: Any, job: Any, parts: Any) -> Any:
            start = perf_counter()
            kept = keep(engine, job, parts)
            wait(kept)
            self._note(job.name, True, len(parts), start)
            return kept

        Dask.sums, Dask.keep = timed_sums, timed_keep
        return self

    def _note(self, name: str, is_kept: bool, parts: int, start: float) -> None:
        self.found.append(Measured(name, is_kept, self.rows, parts, self.workers, perf_counter() - start))

    def __exit__(self, *_: object) -> None:
        self.engine.sums, self.engine.keep = self.before


# --- the forecast ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forecast:
    """What a fit would take."""

    rows: float
    workers: int
    parts: int
    reading: float
    passes: float

    @property
    def seconds(self) -> float:
        """Seconds on the wall."""
        return self.reading + self.passes

    @property
    def dollars(self) -> float:
        """What the workers cost in that time."""
        return self.workers * self.seconds / 3600.0 * PRICE

    def line(self) -> list[str]:
        """Return a row of the table."""
        times = map(_time, (self.reading, self.passes, self.seconds))
        return [f"{self.rows:,.0f}", f"{self.workers:,}", f"{self.parts:,}", *times, f"{self.dollars:,.2f}"]


def forecast(model: Model, jobs: dict[str, int], rows: float, workers: int) -> Forecast:
    """Return what a fit takes whose jobs are counted by name.

    To what was measured come messages of the network for every level of sums, and the storage's bytes for the three
    jobs that read the table.
    """
    parts = max(workers, ceil(rows / PART))
    network = (2 + depth(parts)) * (LATENCY + FAN_IN * SUMS / BANDWIDTH)
    passes = reading = 0.0
    for name, times in jobs.items():
        seconds = times * (model.seconds(name, rows, parts, workers) + network)
        if name in READING:
            reading += seconds + times * BYTES * rows / workers / BANDWIDTH
        else:
            passes += seconds
    return Forecast(rows, workers, parts, reading, passes)


#: The jobs that read the table; the others read what is encoded.
READING = ("checking", "sampling", "encoding")


def count_jobs(measured: Sequence[Measured]) -> dict[str, int]:
    """Return how often each job runs in a fit of the most rows: the most of all these fits."""
    found, most = dict[str, int](), max(m.rows for m in measured)
    for case in {(m.rows, m.parts, m.workers) for m in measured if m.rows == most}:
        own = [m.name for m in measured if (m.rows, m.parts, m.workers) == case]
        for name in set(own):
            found[name] = max(found.get(name, 0), own.count(name))
    return dict(sorted(found.items()))


# --- the page -------------------------------------------------------------------------------------------------

TEXT = """\
# What a hundred billion rows would cost

`python benchmarks/cost.py --page` writes this page; do not edit it by hand. It is **a forecast, not a measurement**:
no cluster of this size was used. A fit consists of some tens of jobs over the rows. A job costs a fixed time to
start, a time for every part of the table at Dask's scheduler, and a time for every row at a worker. These times were
measured on one machine with {workers} workers of one core: {n_jobs} jobs of fits of {least:,} to {most:,} rows in
{parts} parts (ten columns of ten values, degree 2, alpha 0.0001). A model fitted to these measurements makes the
forecasts.

![{alt}](_static/cost-of-scale.svg)

{forecast}

More workers help until the cost of the parts at the scheduler dominates; then fewer and larger parts help more. Sums do
not grow with the number of rows, so neither does the client's memory.

## How far the model is off

To measure the errors, the model was also fitted without the jobs of {most:,} rows. Its relative errors for these jobs
are {held} at the median and {held_worst} at most, and for whole fits of that size {held_fit} at most. For the jobs
that it was fitted to they are {own} at the median and {own_worst} at most. The model has a separate starting time for
every job. This was decided after the errors were seen (with one starting time for all jobs, whole fits were off by 74
% at most), so the errors flatter the model. A fit of 100,000,000,000 rows is {factor:,.0f} times the largest that was
measured, and these errors do not show how accurate the model is there.

## What was measured, and what was assumed

{costs}

A level of sums costs {level:.1f} ms and a part {part:.2f} ms, the same for all jobs. A fit takes {jobs} jobs.

Assumed, not measured: ${price:.2f} for an hour of a worker with one core; {latency:.1f} ms for a message;
{bandwidth:.0f} MB a second for each worker, from storage and from other workers; {bytes:.0f} bytes a row in storage,
read three times (checked, sampled, encoded); sums of {sums:.0f} kB; parts of {part_rows:,} rows; no worker lost;
workers as fast as the cores of this machine.
"""
HEAD = ["rows", "workers", "parts", "reading", "passes", "in all", "dollars"]
ALT = (
    "Seconds of a fit against the number of workers, a line for each number of rows: lines fall until the cost of "
    "parts and passes is left."
)


def write(measured: Sequence[Measured]) -> tuple[str, list[Forecast], Model]:
    """Return the page, the forecasts and the model."""
    most = max(m.rows for m in measured)
    known, held = [m for m in measured if m.rows < most], [m for m in measured if m.rows == most]
    partial, model, jobs = fit(known), fit(measured), count_jobs(measured)
    off, own, whole = errors(partial, held), errors(partial, known), _whole_fits(partial, held)
    every = [forecast(model, jobs, rows, workers) for rows, workers in product(ROWS, WORKERS)]
    text = TEXT.format(
        workers=" and ".join(map(str, sorted({m.workers for m in measured}))),
        n_jobs=f"{len(measured):,}",
        least=min(m.rows for m in measured),
        most=most,
        parts=", ".join(map(str, sorted({m.parts for m in measured}))),
        forecast=table(HEAD, [f.line() for f in every]),
        held=_percent(np.median(np.abs(off))),
        held_worst=_percent(np.abs(off).max()),
        held_fit=_percent(np.abs(whole).max()),
        own=_percent(np.median(np.abs(own))),
        own_worst=_percent(np.abs(own).max()),
        factor=1e11 / most,
        costs=table(
            ["job", "times in a fit", "ms to begin", "ns a row of a worker"],
            [[n, str(jobs[n]), f"{1e3 * model.start[n]:.1f}", f"{1e9 * model.row[n]:.1f}"] for n in jobs],
        ),
        level=1e3 * model.level,
        part=1e3 * model.part,
        price=PRICE,
        latency=1e3 * LATENCY,
        bandwidth=BANDWIDTH / 1e6,
        bytes=BYTES,
        part_rows=PART,
        jobs=sum(jobs.values()),
        sums=SUMS / 1e3,
        alt=ALT,
    )
    return text, every, model


def _whole_fits(model: Model, measured: Sequence[Measured]) -> np.ndarray:
    """Return the relative errors of whole fits."""
    found = []
    for parts, workers in {(m.parts, m.workers) for m in measured}:
        own = [m for m in measured if (m.parts, m.workers) == (parts, workers)]
        found.append(sum(model.seconds(m.name, m.rows, parts, workers) for m in own) / sum(m.seconds for m in own) - 1)
    return np.array(found)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def draw(model: Model, jobs: dict[str, int], path: Path) -> None:
    """Draw the seconds of a fit against the number of workers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    workers = np.unique(np.round(np.geomspace(min(WORKERS), max(WORKERS), 41)).astype(int))
    for rows, colour, marker in zip(ROWS, ("#0072B2", "#009E73", "#D55E00"), "osD", strict=True):
        seconds = [forecast(model, jobs, rows, int(k)).seconds for k in workers]
        axes.plot(workers, seconds, color=colour, marker=marker, markevery=20, label=f"{rows:,.0f} rows")
        place = {"textcoords": "offset points", "xytext": (6, 6), "color": colour}
        axes.annotate(f"{rows:,.0f} rows", (workers[0], seconds[0]), **place)
    axes.set(xscale="log", yscale="log", xlabel="workers of one core", ylabel="seconds of a fit (forecast)")
    axes.margins(y=0.12)
    axes.grid(alpha=0.25, which="both")
    figure.savefig(path, metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, fit, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 2_000_000, 5_000_000, 10_000_000])
    parser.add_argument("--parts", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--jobs", type=Path, help="a file of measured jobs: read if it is there, else written")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name} and its picture")
    given = parser.parse_args(arguments)
    if given.jobs is not None and given.jobs.exists():
        measured = [Measured(**one) for one in json.loads(given.jobs.read_text(encoding="utf-8"))]
    else:
        measured = measure(given.rows, given.parts, given.workers)
        if given.jobs is not None:
            given.jobs.write_text(json.dumps([asdict(one) for one in measured]), encoding="utf-8")
    text, _, model = write(measured)
    if not given.page:
        print(text)
        return
    PAGE.write_text(text, encoding="utf-8")
    draw(model, count_jobs(measured), PICTURE)


if __name__ == "__main__":
    main()
