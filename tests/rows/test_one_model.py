"""One model, wherever two million rows live, and whoever dies while it is fitted: memory, disk, Dask, Ray and Spark."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import lowcal
from far_rows import fit, four_classes, rows, saved

pytestmark = [
    pytest.mark.slow,
    *map(
        pytest.mark.filterwarnings, ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
    ),
]

N, COLUMNS = 2_000_000, ["city", "age", "band"]
CLASSES = {2: "p", 4: [f"p{k}" for k in range(4)]}
OF = {"groups": lowcal.Groups(COLUMNS), "trees": lowcal.Trees(2, COLUMNS)}


@pytest.fixture(scope="module", params=list(CLASSES))
def table(request: Any, tmp_path_factory: Any) -> Any:
    """The number of classes, the rows, and a Parquet file of them."""
    data = pd.DataFrame(rows(N) if request.param == 2 else four_classes(N)).drop(columns="w", errors="ignore")
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    data.to_parquet(path, row_group_size=300_000)
    return request.param, data, path


@pytest.fixture(scope="module", params=list(OF))
def known(request: Any, table: Any, tmp_path_factory: Any) -> Any:
    """What is fitted, and the sha256 of the model in memory."""
    classes, data, path = table
    given = {"p": CLASSES[classes], "subpopulations": OF[request.param], "alpha": 0.002}
    return given, path, saved(fit(data, None, **given), tmp_path_factory.mktemp("near"))


@contextmanager
def on_dask(path: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    distributed, dd = pytest.importorskip("distributed"), pytest.importorskip("dask.dataframe")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        frame = dd.read_parquet(path, split_row_groups=True).persist()
        yield frame, lambda: os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)


@contextmanager
def on_ray(path: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'lowcal[ray]'.")
    from lowcal.rows.engines.ray import _actors

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False)
    try:
        ask = lambda: ray.get(_actors(ray)[0].__ray_call__.remote(lambda _: os.getpid()))  # noqa: E731
        yield ray.data.read_parquet(str(path)).materialize(), lambda: os.kill(ask(), signal.SIGKILL)
    finally:
        ray.shutdown()


@contextmanager
def on_spark(path: Path) -> Iterator[tuple[Any, Callable[[], None]]]:
    sql = pytest.importorskip("pyspark.sql", reason="Spark is not installed: pip install 'lowcal[spark]'.")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, and there is none on the path.")
    settings = {"spark.driver.memory": "3g", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(Path(lowcal.__file__).parents[1]))
        session = sql.SparkSession.builder.master("local[2,4]").config(map=settings).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        java = session.sparkContext._gateway.proc.pid
        yield session.read.parquet(str(path)), lambda: os.kill(max(processes_under(java)), signal.SIGKILL)
        session.stop()


def processes_under(parent: int) -> list[int]:
    """Return the processes that a process started, and that these did."""
    found = Path(f"/proc/{parent}/task").glob("*/children")
    own = [int(pid) for file in found for pid in file.read_text().split()]
    return [*own, *(pid for child in own for pid in processes_under(child))]


def test_disk(known: Any, tmp_path: Path) -> None:
    given, path, model = known
    assert saved(fit(str(path), 1, **given), tmp_path) == model


@pytest.mark.parametrize("home", [on_dask, on_ray, on_spark])
def test_a_cluster_whose_worker_is_killed(home: Any, known: Any, tmp_path: Path) -> None:
    given, path, model = known
    with home(path) as (table, kill):
        start = time.perf_counter()
        assert saved(fit(table, None, **given), tmp_path) == model
        death = threading.Timer(0.4 * (time.perf_counter() - start), kill)
        death.start()
        assert saved(fit(table, None, **given), tmp_path) == model
        death.join()
