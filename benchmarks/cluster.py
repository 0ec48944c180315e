"""A fit of rows on a cluster beside the same fit in memory: seconds, their ratio, and whether the models are the same.

10 columns of 10 values, degree 2, alpha 1e-4. Fits in memory and on the cluster take turns, so that both see the same
machine; the median of the ratios is printed. In the end, a worker is killed in the middle of a fit. Fits are warm:
kernels were compiled by one before.

On Spark, seconds of packing are printed too, and those of a pass beside a job that does nothing with the packed rows.

Run: python benchmarks/cluster.py [--engine dask|ray|spark] [--rows 5000000] [--parts 6] [--repeats 5]
     python benchmarks/cluster.py --memory 5000000 20000000

The second one fits rows that are made on the workers of Dask, each number of rows in a process of its own, and prints
the peak memory of the client, which has the scheduler with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import operator
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from tempfile import TemporaryDirectory
from threading import Timer
from time import perf_counter
from typing import Any, NamedTuple

import pandas as pd
from common import show

import lowcal
from lowcal.data.progress import Passes
from lowcal.notions.weights import Monomial
from lowcal.rows import START
from lowcal.rows.engines import open_engine
from lowcal.rows.engines.base import Job
from lowcal.rows.passes import Moments
from lowcal.rows.wire import pack
from lowcal.solve.homes import open_home
from rows import world


class Engine(NamedTuple):
    """A table on two workers of a cluster, how one of them is killed, and the CPU seconds of all of them so far."""

    table: Any
    kill: Callable[[], None]
    cpu: Callable[[], float]
    tell: Callable[[], None] = lambda: None  # prints what this engine alone has


def own_cpu() -> float:
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def dask(table: pd.DataFrame, parts: int) -> Iterator[Engine]:
    import dask.dataframe as dd
    from dask.distributed import Client, LocalCluster, wait

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        spread = dd.from_pandas(table, npartitions=parts).persist()
        wait(spread)
        kill = lambda: os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)  # noqa: E731
        yield Engine(spread, kill, lambda: sum(client.run(own_cpu).values()))


@contextmanager
def ray(table: pd.DataFrame, parts: int) -> Iterator[Engine]:
    import pyarrow as pa
    import ray

    from lowcal.rows.engines.ray import _actors

    def kill() -> None:
        os.kill(ray.get(_actors(ray)[0].__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)

    cpu = lambda: sum(map(cpu_of, processes_under(os.getpid())))  # noqa: E731
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "200")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=1 << 31, log_to_driver=False)
    arrow, size = pa.Table.from_pandas(table, preserve_index=False), -(-len(table) // parts)
    yield Engine(ray.data.from_arrow([arrow.slice(k, size) for k in range(0, len(table), size)]), kill, cpu)
    ray.shutdown()


@contextmanager
def spark(table: pd.DataFrame, parts: int) -> Iterator[Engine]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.default.parallelism": parts,
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    session = SparkSession.builder.master("local[2,4]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    folder = TemporaryDirectory()
    try:
        # a file: all rows of a local frame would be a part of every plan
        table.to_parquet(f"{folder.name}/rows.parquet", row_group_size=-(-len(table) // parts))
        spread = session.read.parquet(folder.name)
        java = session.sparkContext._gateway.proc.pid
        kill = lambda: os.kill(max(processes_under(java)), signal.SIGKILL)  # noqa: E731
        cpu = lambda: sum(map(cpu_of, [java, *processes_under(java)]))  # noqa: E731
        yield Engine(spread, kill, cpu, lambda: tell_spark(spread))
    finally:
        session.stop()
        folder.cleanup()


def processes_under(parent: int) -> list[int]:
    """Return the processes that a process started, and that these did: the last ones are Python workers."""
    found = Path(f"/proc/{parent}/task").glob("*/children")
    own = [int(pid) for file in found for pid in file.read_text().split()]
    return [*own, *(pid for child in own for pid in processes_under(child))]


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process, and of those that it started and that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def tell_spark(table: Any, times: int = 7) -> None:
    """Print the seconds of packing, and of a pass and a job that does nothing with the packed rows, in turns."""

    def drain(batches: Iterator[Any]) -> Iterator[Any]:  # within: workers can't import a benchmark
        for _ in batches:
            pass
        return iter(())

    start = perf_counter()
    home = open_home("y", "p", table, None, None, lowcal.Groups(), 0, None, Passes(False))
    show("rows checked, sampled and packed (wall s)", perf_counter() - start)
    asked, packed = Moments(START, tuple(home.learner.families), (Monomial(), Monomial((0,)))), home.rows.blocks.frame
    turns = {"moments": lambda: home.rows.run(asked), "nothing": lambda: packed.mapInArrow(drain, "n long").collect()}
    took: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(times):
        for name, turn in turns.items():
            start = perf_counter()
            turn()
            took[name].append(perf_counter() - start)
    show("a pass: moments (wall s)", took["moments"])
    show("a job that does nothing with the packed rows (wall s)", took["nothing"])
    ratios = [a / b for a, b in zip(took["moments"], took["nothing"], strict=True)]
    show("a pass / a job that does nothing (wall)", ratios, "<= 2.5")


#: By their names, and the ratio to memory that they may take.
ENGINES = {"dask": (dask, "<= 1.2"), "ray": (ray, "<= 1.1"), "spark": (spark, "")}


def empty_passes(table: Any) -> list[float]:
    """Milliseconds of passes that do nothing."""
    engine, job, seconds = open_engine(table), Job("nothing", operator.is_not, pack()), []
    assert engine is not None
    kept = engine.keep(job, engine.parts(None))
    for _ in range(20):
        start = perf_counter()
        list(engine.sums(job, kept))
        seconds.append(1e3 * (perf_counter() - start))
    return seconds[1:]


class Fitted(NamedTuple):
    """Wall and CPU seconds of this process, and the model's digest."""

    wall: float
    cpu: float
    bits: str


def fit(table: Any) -> Fitted:
    start, cpu = perf_counter(), own_cpu()
    found = lowcal.multicalibrate("y", "p", table, subpopulations=lowcal.Groups(), alpha=1e-4)
    seconds, cpu = perf_counter() - start, own_cpu() - cpu
    return Fitted(seconds, cpu, hashlib.sha256(json.dumps(found.predictor.to_dict()).encode()).hexdigest())


#: Rows of a part that a worker makes.
MADE = 500_000
CLIENT = """
import resource, sys
import dask.dataframe as dd
from dask.distributed import Client, LocalCluster, wait
import lowcal
sys.path.insert(0, sys.argv[1])
from cluster import MADE, made_part

if __name__ == "__main__":
    n = int(sys.argv[2])
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        client.run(sys.path.insert, 0, sys.argv[1])
        frame = dd.from_map(made_part, range(n // MADE)).persist()
        wait(frame)
        lowcal.multicalibrate("y", "p", frame, subpopulations=lowcal.Groups(), alpha=1e-4)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def made_part(number: int) -> pd.DataFrame:
    """Return the rows of a part."""
    return pd.DataFrame(world(MADE, number))


def client_memory(sizes: list[int]) -> None:
    """Print the peak memory of clients of Dask whose frames have these numbers of rows."""
    peaks = []
    with TemporaryDirectory() as folder:
        script = Path(folder) / "client.py"
        script.write_text(CLIENT, encoding="utf-8")
        for n in sizes:
            command = [sys.executable, str(script), str(Path(__file__).parent), str(n)]
            peaks.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            show(f"{n:,} rows, {n // MADE} parts: peak memory of the client of Dask (MB)", peaks[-1])
    show("the largest of these / the smallest", max(peaks) / min(peaks), "<= 1.1")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="dask")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--parts", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", type=int, nargs="+", metavar="ROWS", help="print the peak memory of the client")
    given = parser.parse_args(arguments)
    if given.memory:
        client_memory(given.memory)
        return
    table = pd.DataFrame(world(given.rows, 0))
    start, most = ENGINES[given.engine]
    with start(table, given.parts) as engine:
        found = [fit(table), fit(engine.table)]
        show(f"{given.rows:,} rows x 10 columns, first fit in memory (wall s)", found[0].wall)
        show(f"first fit on {given.engine}, 2 workers, {given.parts} parts (wall s)", found[1].wall)
        near, far, workers = list[Fitted](), list[Fitted](), list[float]()
        for _ in range(given.repeats):
            near.append(fit(table))
            before = engine.cpu()
            far.append(fit(engine.table))
            workers.append(engine.cpu() - before)
        empty, usual = empty_passes(engine.table), median(one.wall for one in far)
        death = Timer(0.5 * usual, engine.kill)
        death.start()
        killed = fit(engine.table)
        death.join()
        engine.tell()
    show("memory (wall s)", [one.wall for one in near])
    show("memory (CPU s)", [one.cpu for one in near])
    show(f"{given.engine} (wall s)", [one.wall for one in far])
    show(f"{given.engine}, client and scheduler (CPU s)", [one.cpu for one in far])
    show(f"{given.engine}, workers (CPU s)", workers)
    show(
        f"{given.engine} / memory, in turns (wall)",
        [b.wall / a.wall for a, b in zip(near, far, strict=True)],
        most,
    )
    show("an empty pass (wall ms)", empty)
    show("a worker killed in the middle / undisturbed (wall)", killed.wall / usual, "<= 2.5")
    show("different models", len({one.bits for one in (*found, *near, *far, killed)}), "<= 1")


if __name__ == "__main__":
    main()
