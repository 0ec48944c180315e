"""Rows in a Ray dataset, on two CPUs: the fit of memory to the last bit, whichever actor dies."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lowcal
from far_rows import COLUMNS, DATA, arrow, fit, four_classes, rows, saved, until
from lowcal.data.errors import ClusterFailed, FitInterrupted, InvalidInput, MissingColumn
from lowcal.rows.cluster import Block
from lowcal.rows.engines import ray as engine
from lowcal.rows.engines.base import Job
from lowcal.rows.wire import pack

ray = pytest.importorskip("ray", reason="rows on a Ray cluster need Ray: pip install 'lowcal[ray]'")
pytest.importorskip("ray.data", reason="Ray datasets need more than Ray's core: pip install 'lowcal[ray]'")

#: Ray's own.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning", "ResourceWarning")
]

N = 30_000
GROUPS, TREES = lowcal.Groups(["city", "age", "band"]), lowcal.Trees(2, ["city", "age", "band"])
#: A fit of many passes.
WORST = {"solver": "worst", "alpha": 0.008, "guard": False}


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """Ray on this machine, with workers that have lowcal."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "200")
    paths = os.pathsep.join([str(Path(lowcal.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=1 << 29,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    ray.shutdown()


@pytest.fixture(scope="module")
def many() -> dict[str, np.ndarray]:
    data = rows(N)
    return {**data, "w": data["w"] + 0.1}


@pytest.fixture(scope="module")
def four() -> dict[str, np.ndarray]:
    return four_classes(N)


def dataset(data: dict[str, np.ndarray], blocks: int = 3) -> Any:
    table = arrow(data)
    size = -(-len(table) // blocks)
    return ray.data.from_arrow([table.slice(start, size) for start in range(0, len(table), size)])


# --- the same fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [GROUPS, TREES], ids=["groups", "trees"])
@pytest.mark.parametrize("classes", [2, 4])
def test_memory_and_ray_save_the_same_bytes(
    of: lowcal.Subpopulations, classes: int, many: Any, four: Any, tmp_path: Path
) -> None:
    data, p = (many, "p") if classes == 2 else (four, [f"p{k}" for k in range(4)])
    given = {"p": p, "subpopulations": of, "alpha": 0.002}
    near, far = fit(data, None, **given), fit(dataset(data), None, **given)
    assert near.predictor.updates
    assert saved(near, tmp_path) == saved(far, tmp_path)
    assert near.history == far.history


def test_a_lazy_dataset_is_run_in_order(many: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of frames, with weights; large payloads travel once."""
    monkeypatch.setattr(engine, "MOST_SENT", 100)
    frame = pd.DataFrame(many)
    lazy = ray.data.from_pandas([frame[k : k + 4000] for k in range(0, N, 4000)]).map_batches(slower_at_first)
    assert saved(fit(lazy, None, sample_weight="w"), tmp_path) == saved(fit(many, None, sample_weight="w"), tmp_path)
    in_order = [part.ref for part in engine.Ray(lazy).parts(["age"])]
    assert np.array_equal(np.concatenate([table["age"] for table in ray.get(in_order)]), many["age"])
    assert not lazy.context.execution_options.preserve_order


def slower_at_first(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    time.sleep(0.2 * (batch["age"][0] == FIRST))
    return batch


FIRST = rows(N)["age"][0]


@pytest.mark.parametrize("given", [{"subpopulations": GROUPS, "sample_weight": "w"}, {"subpopulations": TREES}])
def test_an_audit_and_a_measurement(given: dict[str, Any], many: Any) -> None:
    far, near = (lowcal.audit("y", "p", X, **given, random_state=0) for X in (dataset(many), many))
    assert (far.p_value, far.verdict) == (near.p_value, near.verdict)
    assert json.dumps(far.to_dict()) == json.dumps(near.to_dict())
    far, near = (lowcal.measure("y", "p", X, **given) for X in (dataset(many), many))
    assert np.array_equal(far.violation, near.violation)


def test_predictions_are_a_lazy_dataset(many: Any, four: Any) -> None:
    predictor = fit(many, None, alpha=0.002, subpopulations=GROUPS).predictor
    lazy = predictor("p", dataset(many))
    assert isinstance(lazy, ray.data.Dataset)
    found = lazy.to_pandas()
    assert list(found.columns) == ["p"]
    assert np.array_equal(found["p"], predictor("p", many))
    names = [f"p{k}" for k in range(4)]
    predictor = fit(four, None, p=names, subpopulations=GROUPS).predictor
    found = predictor(names, dataset(four)).to_pandas()
    assert list(found.columns) == names
    assert np.array_equal(found, predictor(names, four))


# --- actors -------------------------------------------------------------------------------------------------------


def inside(function: Callable[[Any], Any]) -> list[Any]:
    """Return what a function of an actor returns, for every actor."""
    (actors,) = engine._started.values()
    return ray.get([actor.__ray_call__.remote(function) for actor in actors])


def pid() -> int:
    return inside(lambda actor: os.getpid())[0]


@pytest.mark.parametrize("of", [GROUPS, TREES], ids=["groups", "trees"])
def test_an_actor_that_dies_between_passes_changes_nothing(
    of: lowcal.Subpopulations, many: Any, tmp_path: Path
) -> None:
    killed = list[int]()

    def kill(record: Any) -> None:
        if not killed:
            killed.append(pid())
            os.kill(killed[0], signal.SIGKILL)

    given = {"subpopulations": of, **WORST}
    far = fit(dataset(many), None, **given, callback=kill)
    assert killed[0] != pid()
    assert saved(far, tmp_path) == saved(fit(many, None, **given), tmp_path)


def test_an_actor_that_dies_within_a_pass_changes_nothing(
    many: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions, killed = at_passes(monkeypatch), list[int]()

    @actions.append
    def strike(visit: Callable[[], Any]) -> Any:
        killed.append(pid())
        os.kill(killed[0], signal.SIGSTOP)  # the pass waits for this actor
        calls = visit()
        os.kill(killed[0], signal.SIGKILL)
        return calls

    assert saved(fit(dataset(many), None), tmp_path) == saved(fit(many, None), tmp_path)
    assert killed[0] != pid()


def at_passes(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Callable[[], Any]], Any]]:
    """Return a list; its only function takes the 20th pass."""
    real, seen, actions = engine.Ray._visit, list[str](), list[Callable[[Callable[[], Any]], Any]]()

    def visit(self: Any, job: Any, parts: Any) -> Any:
        seen.append(job.name)
        return actions[0](lambda: real(self, job, parts)) if len(seen) == 20 else real(self, job, parts)

    monkeypatch.setattr(engine.Ray, "_visit", visit)
    return actions


def test_an_interrupt_leaves_nothing_running_and_a_checkpoint(
    many: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {**WORST, "alpha": 0.006, "checkpoint": tmp_path / "fit.json"}
    stopped = list[int]()
    with monkeypatch.context() as patch:

        @at_passes(patch).append
        def interrupt(visit: Callable[[], Any]) -> Any:
            stopped.append(pid())
            os.kill(stopped[0], signal.SIGSTOP)  # so that the pass can't end before the interrupt
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
            return visit()

        with pytest.raises(FitInterrupted) as caught:
            fit(dataset(many), None, **given)
    assert caught.value.fit.predictor.updates
    os.kill(stopped[0], signal.SIGCONT)
    assert until(lambda: not os.path.exists(f"/proc/{stopped[0]}"))
    assert saved(fit(dataset(many), None, **given, resume=True), tmp_path) == saved(fit(many, None, **given), tmp_path)


def test_actors_forget_what_is_no_longer_wanted() -> None:
    seen = list[int]()
    fit(dataset(DATA), None, **WORST, callback=lambda record: seen.append(sum(inside(n_met))))
    assert seen[0] == 3
    gc.collect()
    assert until(lambda: sum(inside(n_met)) == 0)


def n_met(actor: Any) -> int:
    return sum(map(len, actor._met.values()))


def test_rows_stay_in_the_store() -> None:
    """Arrays of a block are not copied: nothing can be written to them."""
    rows = engine.Ray(dataset(DATA))
    encoded = rows.keep(Job("keeping", whole, pack()), rows.parts(None))
    block = ray.get(encoded[0].ref)
    assert not block.raw.flags.writeable
    assert not block.raw.flags.owndata


def whole(table: Any, number: int) -> Block:
    return Block(table["p"].to_numpy())


# --- errors -------------------------------------------------------------------------------------------------------


def test_a_missing_column() -> None:
    with pytest.raises(MissingColumn, match=r"The Ray dataset has no column 'citty'.* Did you mean 'city'"):
        fit(dataset(DATA), None, subpopulations=lowcal.Groups("citty"))
    predictor = fit(DATA, None).predictor
    with pytest.raises(MissingColumn, match="The Ray dataset has no column 'q'"):
        predictor("q", dataset(DATA))


def test_a_probability_that_is_none() -> None:
    data = {**DATA, "p": np.where(np.arange(len(DATA["p"])) == 2345, np.nan, DATA["p"])}
    with pytest.raises(InvalidInput, match=r"row 345\b.*batch that begins at row 2000"):
        fit(dataset(data), None)


def test_arrays_beside_a_dataset() -> None:
    with pytest.raises(InvalidInput, match="The Ray dataset lies on a cluster: give y, p and sample_weight as the na"):
        lowcal.multicalibrate(DATA["y"], DATA["p"], dataset(DATA), subpopulations=lowcal.Groups(COLUMNS))


def test_no_rows() -> None:
    with pytest.raises(InvalidInput, match="The Ray dataset holds no rows"):
        fit(dataset(DATA).filter(expr="y > 5"), None)
    with pytest.raises(InvalidInput, match="The Ray dataset holds no rows"):
        fit(ray.data.from_items([]), None)


def test_an_error_of_a_worker_is_raised_as_it_was() -> None:
    rows = engine.Ray(dataset(DATA))
    broken = rows.keep(Job("breaking", json.loads, pack()), rows.parts(None))
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        list(rows.sums(Job("reading", len, pack()), broken))


def test_actors_that_die_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RETRIES", 1)
    monkeypatch.setattr(engine, "_started", {})
    rows = engine.Ray(dataset(DATA))
    with pytest.raises(
        ClusterFailed, match=r"^Ray could not finish a pass over these rows \(.*Error\); [^.]*[.][^.]*[.]$"
    ):
        list(rows.sums(Job("dying", die, pack()), rows.parts(None)))


def die(part: Any, number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_ray_is_not_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dataset(DATA)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InvalidInput, match=r"needs Ray to be running, and it is not: import ray; ray.init\(\)"):
        fit(given, None)
