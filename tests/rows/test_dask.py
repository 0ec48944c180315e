"""Rows on a Dask cluster of two processes: the fit of memory to the last bit, whichever worker dies."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lowcal
from far_rows import DATA, cut, fit, four_classes, rows, saved, three_classes, until
from lowcal.data.errors import ClusterFailed, FitInterrupted, InvalidInput, MissingColumn
from lowcal.rows.engines import dask as engine

distributed = pytest.importorskip("distributed")
dd = pytest.importorskip("dask.dataframe")

N = 50_000
GROUPS, TREES = lowcal.Groups(["city", "age", "band"]), lowcal.Trees(2, ["city", "age", "band"])


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a cluster of two processes, with workers that have lowcal."""
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def many() -> dict[str, np.ndarray]:
    return rows(N)


@pytest.fixture(scope="module")
def four() -> dict[str, np.ndarray]:
    return four_classes(N)


def frame(data: dict[str, np.ndarray], parts: int = 5) -> Any:
    return dd.from_pandas(pd.DataFrame(data), npartitions=parts)


# --- the same fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [GROUPS, TREES], ids=["groups", "trees"])
@pytest.mark.parametrize("classes", [2, 4])
def test_memory_disk_and_dask_save_the_same_bytes(
    of: lowcal.Subpopulations, classes: int, many: Any, four: Any, client: Any, tmp_path: Path
) -> None:
    data, p = (many, "p") if classes == 2 else (four, [f"p{k}" for k in range(4)])
    given = {"p": p, "subpopulations": of, "alpha": 0.002}
    near, disk, far = fit(data, None, **given), fit(cut(data, 9000), **given), fit(frame(data), None, **given)
    assert saved(near, tmp_path) == saved(disk, tmp_path) == saved(far, tmp_path)
    assert near.history == far.history


@pytest.mark.parametrize("given", [{"subpopulations": GROUPS, "sample_weight": "w"}, {"subpopulations": TREES}])
def test_an_audit_and_a_measurement(given: dict[str, Any], many: Any, client: Any) -> None:
    far, near = (lowcal.audit("y", "p", X, **given, random_state=0) for X in (frame(many), many))
    assert json.dumps(far.to_dict()) == json.dumps(near.to_dict())
    far, near = (lowcal.measure("y", "p", X, **given) for X in (frame(many), many))
    assert np.array_equal(far.violation, near.violation)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dask's own
def test_files_and_many_small_partitions(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_SENT", 1000)
    frame(DATA, 20).to_parquet(tmp_path / "rows")
    read = dd.read_parquet(tmp_path / "rows")
    assert len(engine.Dask(read).parts(None)) > engine.FAN_IN
    some, near = read[read.age < 1e9], fit(DATA, None)
    assert saved(fit(some, None), tmp_path) == saved(near, tmp_path)
    found = some.assign(q=near.predictor("p", some))[["y", "q"]].compute()
    assert np.array_equal(found.q, near.predictor("p", DATA))
    assert np.array_equal(found.y, DATA["y"])


def test_delayed_frames(client: Any, tmp_path: Path) -> None:
    parts = list(frame(DATA, 3).to_delayed())
    found = fit(parts, None)
    assert saved(found, tmp_path) == saved(fit(DATA, None), tmp_path)
    each = client.gather(client.compute(found.predictor("p", parts)))
    assert np.array_equal(np.concatenate(each), found.predictor("p", DATA))


def test_recalibrate(client: Any, tmp_path: Path) -> None:
    data = {name: DATA[name] for name in ("y", "p", "city", "age")}
    far, near = (lowcal.recalibrate("y", "p", X) for X in (frame(data), data))
    assert saved(far, tmp_path) == saved(near, tmp_path)


def test_predictions_are_a_lazy_series_with_the_index_of_the_frame(client: Any) -> None:
    predictor, table = fit(DATA, None).predictor, pd.DataFrame(DATA).set_index(np.arange(len(DATA["y"]))[::-1] * 7)
    lazy = predictor("p", dd.from_pandas(table, npartitions=3, sort=False))
    assert isinstance(lazy, dd.Series)
    assert (lazy.name, lazy.dtype, lazy.npartitions) == ("p", float, 3)
    found = lazy.compute()
    assert found.index.equals(table.index)
    assert np.array_equal(found, predictor("p", DATA))


def test_predictions_of_several_classes_are_a_frame(client: Any) -> None:
    data, names = three_classes(), ["p_a", "p_b", "p_c"]
    predictor = fit(data, None, p=names, subpopulations=lowcal.Groups("city")).predictor
    lazy = predictor(names, frame(data, 2))
    assert list(lazy.columns) == names
    assert np.array_equal(lazy.compute(), predictor(names, data))


def test_nothing_is_left_on_the_workers(client: Any) -> None:
    fit(frame(DATA), None)
    gc.collect()
    assert until(lambda: not any(client.has_what().values()))


# --- workers that die ---------------------------------------------------------------------------------------------


def kill(client: Any) -> None:
    """Kill a worker's process."""
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)


@pytest.mark.parametrize("of", [GROUPS, TREES], ids=["groups", "trees"])
def test_a_worker_that_dies_between_passes_changes_nothing(
    of: lowcal.Subpopulations, many: Any, client: Any, tmp_path: Path
) -> None:
    killed = list[int]()

    def stop(record: Any) -> None:
        if not killed:
            killed.append(1)
            kill(client)

    given = {"subpopulations": of, "solver": "worst", "alpha": 0.008, "guard": False}
    far = fit(frame(many), None, **given, callback=stop)
    assert killed
    assert saved(far, tmp_path) == saved(fit(many, None, **given), tmp_path)
    client.wait_for_workers(2)


def test_a_worker_that_dies_within_a_pass_changes_nothing(
    many: Any, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = count_submits(monkeypatch)
    passes[8] = lambda: threading.Timer(0.01, kill, [client]).start()
    assert saved(fit(frame(many, 12), None), tmp_path) == saved(fit(many, None), tmp_path)
    client.wait_for_workers(2)


def count_submits(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], None]]:
    """Return what is done when the jobs of these numbers start."""
    real, seen, actions = engine.Dask._submit, list[str](), dict[int, Callable[[], None]]()

    def submit(self: Any, job: Any, parts: Any) -> Any:
        seen.append(job.name)
        futures = real(self, job, parts)
        actions.get(len(seen), lambda: None)()
        return futures

    monkeypatch.setattr(engine.Dask, "_submit", submit)
    return actions


def test_an_interrupt_leaves_no_tasks_and_a_checkpoint(
    many: Any, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"solver": "worst", "alpha": 0.006, "guard": False, "checkpoint": tmp_path / "fit.json"}

    def interrupted(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(1.0)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background ignore it
    try:
        with monkeypatch.context() as patch:
            count_submits(patch)[20] = lambda: patch.setattr(distributed.Client, "gather", interrupted)
            with pytest.raises(FitInterrupted) as caught:
                fit(frame(many), None, **given)
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.value.fit.predictor.updates
    assert until(lambda: not any(client.processing().values()))
    resumed = fit(frame(many), None, **given, resume=True)
    assert saved(resumed, tmp_path) == saved(fit(many, None, **{**given, "checkpoint": None}), tmp_path)


def test_workers_that_die_again_and_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any, **__: Any) -> Any:
        raise distributed.KilledWorker("lowcal-moments", None, 4)

    monkeypatch.setattr(distributed.Client, "gather", lost)
    with pytest.raises(ClusterFailed, match="Dask workers died again and again"):
        fit(frame(DATA), None)


# --- what is refused ----------------------------------------------------------------------------------------------


def test_without_a_client_it_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise ValueError("No clients found")

    monkeypatch.setattr(distributed, "default_client", none)
    with pytest.raises(InvalidInput, match=r"from dask\.distributed import Client"):
        fit(frame(DATA), None)


def test_what_can_not_be_fitted(client: Any) -> None:
    with pytest.raises(MissingColumn, match=r"The Dask frame has no column 'sitty'.*Did you mean 'city'"):
        fit(frame(DATA), None, subpopulations=lowcal.Groups("sitty"))
    wrong = {**DATA, "p": np.where(np.arange(len(DATA["p"])) == 2500, np.nan, DATA["p"])}
    with pytest.raises(InvalidInput, match="begins at row 2400"):
        fit(frame(wrong), None)
    with pytest.raises(InvalidInput, match="give y, p and sample_weight as the names of its columns"):
        lowcal.multicalibrate(DATA["y"], "p", frame(DATA))
    parts = list(frame({name: DATA[name] for name in ("y", "p", "age")}, 2).to_delayed())
    with pytest.raises(MissingColumn, match="has no column 'city'"):
        fit(parts, None)
