"""Rows on a cluster, without one: the fit of memory to the last bit, in parts of any size, by workers that forget."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lowcal
from far_rows import COLUMNS, DATA, GROUPS, agree, digest, fit, measure, rows, three_classes
from lowcal.data.errors import FitInterrupted, InvalidInput, MissingColumn
from lowcal.rows import START, State, cluster, engines, reading, updates, wire
from lowcal.rows.engines.base import Job, add_up, predict_part
from lowcal.rows.updates import Update
from lowcal.solve import homes

N = len(DATA["y"])
TREES, BOOSTED = lowcal.Trees(2, COLUMNS), lowcal.Trees(2, COLUMNS, n_trees=3, geometry="mirror")


# A cluster within a process: everything crosses by its bytes, in any order, and workers forget now and then.


def sent(value: Any) -> Any:
    """Return a value as it comes out at the other end; arrays that cross a network can't be written to."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


class FakeEngine:
    """A table in parts. `loss` is how often what a worker remembers is lost before a part is visited."""

    shown = "The table"

    def __init__(self, data: Any, sizes: Sequence[int] | int = 4, loss: float = 0.0) -> None:
        self.frame, self.loss, self.chance = pd.DataFrame(data), loss, random.Random(0)
        cuts = np.array_split(np.arange(len(self.frame)), sizes) if isinstance(sizes, int) else self._cut(sizes)
        self.numbers, self.jobs = cuts, list[str]()

    def _cut(self, sizes: Sequence[int]) -> list[Any]:
        return np.split(np.arange(len(self.frame)), np.cumsum(sizes)[:-1])

    @property
    def columns(self) -> list[str]:
        return list(self.frame.columns)

    def parts(self, wanted: Sequence[str] | None) -> list[Any]:
        frame = self.frame if wanted is None else self.frame[[name for name in self.columns if name in wanted]]
        return [frame.iloc[own] for own in self.numbers]

    def keep(self, job: Job, parts: Sequence[Any]) -> list[Any]:
        return [sent(sent(job)(part, k)) for k, part in enumerate(parts)]

    def sums(self, job: Job, parts: Any) -> Iterator[Any]:
        self.jobs.append(job.name)
        order = self.chance.sample(range(len(parts)), len(parts))
        half = len(order) // 2
        for some in filter(None, (order[:half], order[half:])):
            yield sent(add_up([self._visit(sent(job), parts, k) for k in some]))

    def _visit(self, job: Job, parts: Any, k: int) -> Any:
        if self.chance.random() < self.loss:
            parts[k] = sent(parts[k])
        if self.chance.random() < self.loss:
            wire.forget()
        return sent(job(parts[k], k))

    def predict(self, predictor: Any, names: Any) -> Any:
        return pd.concat([predict_part(part, predictor, names) for part in self.parts(None)])


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (homes, updates):
        monkeypatch.setattr(module, "open_engine", lambda X: X if isinstance(X, FakeEngine) else None)


# --- the same fit -------------------------------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {},
    {"sample_weight": "w"},
    {"alpha": 0.01},
    {"notion": "degree-4", "geometry": "euclidean", "alpha": 0.004},
    {"notion": "full-0.25", "alpha": 0.01, "sample_weight": "w"},
    {"solver": "worst", "alpha": 0.01, "sample_weight": "w"},
    {"solver": "first", "alpha": 0.02},
    {"per_person": 0.05},
    {"guard": 0.3},
    {"validation_fraction": 0.3, "random_state": 1, "sample_weight": "w"},
    {"subpopulations": lowcal.Intersections(COLUMNS)},
    {"subpopulations": {"age": [30, 50], "city": None}},
    {"subpopulations": lowcal.Thresholds("age", min_mass=900), "sample_weight": "w"},
    {"subpopulations": TREES, "sample_weight": "w"},
    {"subpopulations": TREES, "validation_fraction": 0.2, "random_state": 1},
    {"subpopulations": BOOSTED, "sample_weight": "w"},
    {"subpopulations": BOOSTED, "geometry": "euclidean", "notion": "multiaccuracy", "alpha": 0.004},
    {"subpopulations": GROUPS + TREES, "notion": "degree-3"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.filterwarnings("ignore:.*calibrated predictions are exactly 0 or 1")
def test_a_fit_on_a_cluster_is_that_of_memory_to_the_last_bit(options: dict[str, Any]) -> None:
    near = fit(DATA, None, **options)
    for engine in (FakeEngine(DATA, [1, 0, 999, N - 1000]), FakeEngine(DATA, 7, loss=0.1)):
        far = fit(engine, None, **options)
        assert digest(far) == digest(near)
        assert far.history == near.history
        assert (far.status, far.violation, far.upper) == (near.status, near.violation, near.upper)


@pytest.mark.parametrize("of", [GROUPS, TREES, BOOSTED], ids=repr)
def test_the_sums_of_a_single_part_are_never_written_to(of: lowcal.Subpopulations) -> None:
    assert digest(fit(FakeEngine(DATA, 1), None, subpopulations=of)) == digest(fit(DATA, None, subpopulations=of))


@pytest.mark.parametrize("options", [{}, {"notion": "full-0.25", "alpha": 0.02}, {"geometry": "euclidean"}], ids=str)
@pytest.mark.parametrize("of", [lowcal.Groups("city"), lowcal.Trees(2, ["city"])], ids=repr)
def test_several_classes(of: lowcal.Subpopulations, options: dict[str, Any]) -> None:
    data, given = three_classes(), {"p": ["p_a", "p_b", "p_c"], "subpopulations": of, **options}
    assert digest(fit(FakeEngine(data, 5, loss=0.1), None, **given)) == digest(fit(data, None, **given))


@pytest.mark.parametrize("half", [1.0, 0.5])
def test_memberships(half: float) -> None:
    share = np.where(np.arange(N) < N // 2, 1.0, half)  # bits in some parts, shares in others
    data = {**{name: DATA[name] for name in "yp"}, "flag": share * DATA["flag"], "old": share * (DATA["age"] > 45)}
    given = {"subpopulations": lowcal.Memberships(), "alpha": 0.001}
    assert digest(fit(FakeEngine(data, loss=0.1), None, **given)) == digest(fit(data, None, **given))


@pytest.mark.parametrize("options", [{}, {"sample_weight": "w", "subpopulations": GROUPS + TREES}], ids=str)
def test_the_sample_of_many_rows_is_that_of_memory(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "sample_size", lambda _: 1000)
    assert digest(fit(FakeEngine(DATA), None, **options)) == digest(fit(DATA, None, **options))


@pytest.mark.parametrize("notion", ["degree-2", "full-0.25", "multiaccuracy"])
@pytest.mark.parametrize("options", [{}, {"sample_weight": "w"}, {"subpopulations": TREES}], ids=str)
def test_a_measurement(notion: str, options: dict[str, Any]) -> None:
    agree(measure(FakeEngine(DATA), notion=notion, **options), measure(DATA, None, notion=notion, **options))


def test_smooth_weights_are_bracketed_as_on_disk() -> None:
    far, disk = (measure(data, 1, notion="smooth") for data in (FakeEngine(DATA), lambda: [DATA]))
    agree(far, disk)
    assert np.array_equal(far.upper, disk.upper)


@pytest.mark.parametrize("notion", ["degree-2", "full-0.25"])
@pytest.mark.parametrize("method", ["bootstrap", "exact", "bernstein"])
@pytest.mark.parametrize("options", [{}, {"sample_weight": "w"}, {"subpopulations": TREES}], ids=str)
@pytest.mark.product
def test_an_audit(notion: str, method: Any, options: dict[str, Any]) -> None:
    given = {"subpopulations": GROUPS, "notion": notion, "method": method, "random_state": 0, **options}
    far, near = (lowcal.audit("y", "p", data, **given) for data in (FakeEngine(DATA, 5, loss=0.05), DATA))
    assert json.dumps(far.to_dict()) == json.dumps(near.to_dict())


def test_recalibrate_reads_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {name: DATA[name] for name in ("y", "p", "city", "age")}
    assert digest(lowcal.recalibrate("y", "p", FakeEngine(data))) == digest(lowcal.recalibrate("y", "p", data))
    monkeypatch.setattr(homes, "_quarter", lambda: 1000)
    with pytest.raises(InvalidInput, match="recalibrate looks at all rows at once"):
        lowcal.recalibrate("y", "p", FakeEngine(data))


def test_a_predictor_gives_the_engines_own_kind() -> None:
    predictor = fit(DATA, None).predictor
    assert np.array_equal(predictor("p", FakeEngine(DATA)), predictor("p", DATA))


def test_an_interrupt_keeps_the_updates_and_a_checkpoint_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    of = {"notion": "full-0.1", "alpha": 1e-3, "geometry": "euclidean", "guard": False, "max_updates": 8}
    of["checkpoint"], real, passes = tmp_path / "fit.json", cluster.Cluster.run, list[Any]()

    def run(self: cluster.Cluster, one: Any) -> Any:
        passes.append(one)
        if len(passes) == 12:
            raise KeyboardInterrupt
        return real(self, one)

    monkeypatch.setattr(cluster.Cluster, "run", run)
    with pytest.raises(FitInterrupted, match="Interrupted after"):
        fit(FakeEngine(DATA), None, **of)
    resumed = fit(FakeEngine(DATA, 3), None, **of, resume=True)
    assert digest(resumed) == digest(fit(DATA, None, **{**of, "checkpoint": None}))


# --- what is refused ----------------------------------------------------------------------------------------------


def wrong(column: str, row: int, value: Any) -> dict[str, np.ndarray]:
    """Return the rows with one wrong value."""
    data = {name: values.copy() for name, values in DATA.items()}
    data[column] = data[column].astype(float)
    data[column][row] = value
    return data


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (wrong("p", 2500, np.nan), {}, r"(?s)p.*row.*begins at row 2250"),
        (wrong("p", 100, 1.5), {}, "row 100"),
        (wrong("w", 800, -1.0), {"sample_weight": "w"}, "begins at row 750"),
        ({**DATA, "w": np.zeros(N)}, {"sample_weight": "w"}, "All sample weights are zero"),
        ({**DATA, "y": np.zeros(N, dtype=int)}, {}, "one class|single class|two classes"),
        ({name: values[:0] for name, values in DATA.items()}, {}, "The table holds no rows"),
        (DATA, {"subpopulations": lowcal.Linear(["age"])}, "lie on a cluster, and Linear"),
    ],
)
def test_rows_that_are_refused(data: dict[str, np.ndarray], options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        fit(FakeEngine(data), None, **options)


def test_the_first_wrong_row_is_named() -> None:
    data = wrong("p", 2500, np.nan)
    data["p"][1700] = 2.0
    with pytest.raises(InvalidInput, match="begins at row 1500"):
        fit(FakeEngine(data), None)


def test_columns_that_do_not_exist() -> None:
    with pytest.raises(MissingColumn, match=r"The table has no column 'sitty'.*Did you mean 'city'"):
        fit(FakeEngine(DATA), None, subpopulations=lowcal.Groups("sitty"))
    with pytest.raises(MissingColumn, match="The table has no column 'q'"):
        fit(FakeEngine(DATA), None, p="q")


def test_arrays_beside_rows_on_a_cluster() -> None:
    for given in ((DATA["y"], "p"), ("y", DATA["p"])):
        with pytest.raises(InvalidInput, match="give y, p and sample_weight as the names of its columns"):
            lowcal.multicalibrate(*given, FakeEngine(DATA))


def test_rows_that_are_others_when_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(DATA)
    real = engine.keep
    monkeypatch.setattr(engine, "keep", lambda job, parts: real(job, [part.iloc[1:] for part in parts]))
    with pytest.raises(InvalidInput, match="in the first pass and"):
        fit(engine, None)


def test_tables_in_memory_have_no_engine() -> None:
    assert engines.open_engine(DATA) is None


# --- what travels -------------------------------------------------------------------------------------------------


def test_a_value_is_the_same_object_again() -> None:
    wire.forget()
    state = START.then(Update(()))
    first, second = (wire.unpack(sent(wire.pack(state, {"of": state}))) for _ in range(2))
    assert first[0] is first[1]["of"] is second[0]
    assert first[0] is not state
    assert first[0].before is START
    wire.forget()
    assert wire.unpack(wire.pack(state))[0] is not first[0]


def test_a_long_trail_is_not_too_deep() -> None:
    state = START
    for _ in range(5000):
        state = state.then(Update(()))
    (found,) = wire.unpack(wire.pack(state))
    assert isinstance(found, State)
    assert len(found.path()) == 5001


def test_workers_do_not_remember_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    wire.forget()
    monkeypatch.setattr(wire, "MOST_MET", 2000)
    states = [START.then(Update(())) for _ in range(100)]
    for state in states:
        wire.unpack(wire.pack(state))
    assert 1 < len(wire._met) < 50


def test_a_pass_replays_nothing_that_a_worker_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = State.advance, list[State]()
    monkeypatch.setattr(State, "advance", lambda self, *given: calls.append(self) or real(self, *given))
    of = {"solver": "worst", "alpha": 0.004, "guard": False}
    near = fit(DATA, None, **of)
    assert near.n_updates > 3
    once = len(calls)
    calls.clear()
    fit(FakeEngine(DATA, 2), None, **of)
    assert len(calls) <= 2 * once + 2 * near.n_updates


def test_payloads_are_small() -> None:
    sizes = list[int]()

    class Weighed(FakeEngine):
        def sums(self, job: Any, parts: Any) -> Any:
            sizes.append(len(job.payload))
            return super().sums(job, parts)

    fit(Weighed(rows(3000)), None)
    assert max(sizes) < 100_000
