"""Rows on a local Spark: the fit of memory to the last bit, with Python workers that die; predictions as a column."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lowcal
from far_rows import DATA, fit, four_classes, rows, saved, three_classes
from lowcal.data.errors import ClusterFailed, FitInterrupted, InvalidInput, MissingColumn
from lowcal.rows.engines import spark as engine
from lowcal.rows.engines.base import Job
from lowcal.rows.wire import pack

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'lowcal[spark]'.")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java, and there is none on the path.", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

N, PARTS = 30_000, 3
COLUMNS = ["city", "age", "band"]
GROUPS, TREES = lowcal.Groups(COLUMNS), lowcal.Trees(2, COLUMNS)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """A session of two tasks at a time, each of which may fail three times, with workers that have lowcal."""
    from pyspark.cloudpickle import register_pickle_by_value
    from pyspark.sql import SparkSession

    register_pickle_by_value(sys.modules[__name__])  # workers have lowcal, not its tests
    settings = {
        "spark.default.parallelism": PARTS,
        "spark.driver.memory": "2g",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(Path(lowcal.__file__).parents[1]))
        session = SparkSession.builder.master("local[2,4]").config(map=settings).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture(scope="module")
def many() -> dict[str, np.ndarray]:
    return rows(N)


@pytest.fixture(scope="module")
def four() -> dict[str, np.ndarray]:
    return four_classes(N)


@pytest.fixture
def frame(session: Any) -> Callable[[dict[str, np.ndarray]], Any]:
    """A function that returns rows as a Spark frame in three partitions."""
    return lambda data: session.createDataFrame(pd.DataFrame(data))


def brought(frame: Any) -> pd.DataFrame:
    """Return the rows of a Spark frame."""
    return pd.DataFrame(frame.collect(), columns=frame.columns)


def n_cached(session: Any) -> int:
    return int(session.sparkContext._jsc.getPersistentRDDs().size())


# --- the same fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [GROUPS, TREES], ids=["groups", "trees"])
@pytest.mark.parametrize("classes", [2, 4])
def test_memory_and_spark_save_the_same_bytes(
    of: lowcal.Subpopulations, classes: int, many: Any, four: Any, frame: Any, tmp_path: Path
) -> None:
    data, p = (many, "p") if classes == 2 else (four, [f"p{k}" for k in range(4)])
    given = {"p": p, "subpopulations": of, "alpha": 0.01, "guard": False}
    near, far = (fit(X, None, **given) for X in (data, frame(data)))
    assert near.predictor.updates
    assert saved(near, tmp_path) == saved(far, tmp_path)
    assert near.history == far.history


def test_an_audit(many: Any, frame: Any) -> None:
    given, data = {"subpopulations": GROUPS, "sample_weight": "w", "random_state": 0}, {**many, "w": many["w"] + 0.1}
    far, near = (lowcal.audit("y", "p", X, **given) for X in (frame(data), data))
    assert json.dumps(far.to_dict()) == json.dumps(near.to_dict())


def test_files_empty_partitions_and_sums_of_many(
    session: Any, frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "FAN_IN", 2)
    frame(DATA).repartition(4).write.parquet(str(tmp_path / "rows"))
    some = session.read.parquet(str(tmp_path / "rows")).union(frame(DATA).where("age < -1000"))
    near = fit(brought(some), None, alpha=0.01, guard=False)
    assert saved(fit(some, None, alpha=0.01, guard=False), tmp_path) == saved(near, tmp_path)


def test_nothing_stays_cached_but_what_the_user_cached(session: Any, frame: Any) -> None:
    before, mine = n_cached(session), frame(DATA).persist()
    lowcal.measure("y", "p", mine, subpopulations=GROUPS)
    lowcal.measure("y", "p", frame(DATA), subpopulations=GROUPS)
    gc.collect()
    assert n_cached(session) == before + 1
    mine.unpersist()


# --- predictions --------------------------------------------------------------------------------------------------


def test_predictions_are_a_column(frame: Any) -> None:
    predictor = fit(DATA, None).predictor
    table = frame(DATA)
    found = table.withColumn("q", predictor("p", table)).select("y", "q")
    assert found.dtypes[1] == ("q", "double")
    found = brought(found)
    assert np.array_equal(found.q, predictor("p", DATA))
    assert np.array_equal(found.y, DATA["y"])


def test_predictions_of_several_classes_are_arrays(frame: Any) -> None:
    data, names = three_classes(), ["p_a", "p_b", "p_c"]
    predictor = fit(data, None, p=names, subpopulations=lowcal.Groups("city")).predictor
    table = frame(data)
    found = table.select(predictor(names, table).alias("q"))
    assert found.dtypes == [("q", "array<double>")]
    assert np.array_equal(np.stack(brought(found).q), predictor(names, data))


# --- workers that die ---------------------------------------------------------------------------------------------


def find_worker(frame: Any) -> int:
    """Return the process id of a Python worker of Spark."""

    def own(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})

    return int(frame.mapInArrow(own, "pid long").first().pid)


def test_workers_that_die_between_passes_and_within_one_change_nothing(
    many: Any, frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, killed, table = engine.Spark._collect, list[int](), frame(many)

    def collect(self: Any, job: Any) -> Any:
        killed.append(0)
        pid = find_worker(table) if len(killed) in (6, 9) else 0
        if len(killed) == 6:
            os.kill(pid, signal.SIGKILL)
        if len(killed) == 9:
            threading.Timer(0.1, os.kill, [pid, signal.SIGKILL]).start()
        return real(self, job)

    monkeypatch.setattr(engine.Spark, "_collect", collect)
    given = {"subpopulations": GROUPS, "alpha": 0.01, "guard": False}
    far = fit(table, None, **given)
    assert len(killed) > 9
    assert saved(far, tmp_path) == saved(fit(many, None, **given), tmp_path)


def dies(batches: Iterator[Any]) -> Iterator[Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


def fails(batches: Iterator[Any]) -> Iterator[Any]:
    raise ValueError("no such luck")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (dies, "Workers of Spark died again and again"),
        (fails, "could not finish a pass over these rows: ValueError: no such luck"),
    ],
)
def test_workers_that_can_not_go_on(function: Any, words: str, frame: Any) -> None:
    table = frame(DATA)
    with pytest.raises(ClusterFailed, match=words):
        fit(table.mapInArrow(function, table.schema), None)


def test_workers_without_lowcal() -> None:
    with pytest.raises(ClusterFailed, match="can't import lowcal; install it where they run"), engine._telling(None):
        raise sys.modules["pyspark.errors"].PythonException("No module named 'lowcal'")


def test_an_interrupt_stops_the_job(session: Any, frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = engine.Spark._collect, list[int]()

    def collect(self: Any, job: Any) -> Any:
        seen.append(0)
        if len(seen) == 12:
            threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGINT]).start()
        return real(self, job)

    monkeypatch.setattr(engine.Spark, "_collect", collect)
    given = {"solver": "worst", "alpha": 0.01, "guard": False, "checkpoint": tmp_path / "fit.json"}
    with pytest.raises(FitInterrupted):
        fit(frame(DATA), None, **given)
    running = session.sparkContext.statusTracker().getActiveStageIds
    assert any(not running() or time.sleep(0.05) for _ in range(100))


# --- what is refused ----------------------------------------------------------------------------------------------


def test_what_can_not_be_fitted(frame: Any) -> None:
    with pytest.raises(MissingColumn, match=r"The Spark frame has no column 'sitty'.*Did you mean 'city'"):
        fit(frame(DATA), None, subpopulations=lowcal.Groups("sitty"))
    wrong = {**DATA, "p": np.where(np.arange(len(DATA["p"])) == 2500, np.nan, DATA["p"])}
    with pytest.raises(InvalidInput, match=r"p is nan in row 500.*begins at row 2000"):
        fit(frame(wrong), None)
    with pytest.raises(InvalidInput, match="several columns named 'p'"):
        fit(frame(DATA).select("*", "p"), None)
    with pytest.raises(MissingColumn, match="The Spark frame has no column 'q'"):
        fit(DATA, None).predictor("q", frame(DATA))


# --- what a worker remembers --------------------------------------------------------------------------------------


def test_a_worker_reads_what_it_keeps_in_pieces_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_IN_ROW", 100)
    monkeypatch.setattr(engine, "MOST_MET", 5000)
    monkeypatch.setattr(engine, "_met", OrderedDict())
    kept = [list(engine.keep_part(Job("", sized, pack()), lambda _, k=k: (k, 1000), iter(()))) for k in range(8)]
    assert len(kept[0]) > 10
    assert 1 < len(engine._met) < 8
    for pieces in (kept[0], [pa.Table.from_batches(kept[7]).combine_chunks().to_batches()[0]]):
        number, part = engine.read_block(iter(pieces))
        assert part == b"x" * 1000
        assert engine.read_block(iter(pieces))[1] is part
    assert number == 7


def sized(part: int, number: int) -> bytes:
    return b"x" * part
