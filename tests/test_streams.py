"""Streams: what is measured and fitted batch by batch is what the same rows give in memory, and errors say where."""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lowcal.streaming import measure_stream, multicalibrate_stream

import lowcal
from lowcal import persistence, provenance, streaming, streams
from lowcal.errors import FitInterrupted, InvalidInput, MissingColumn, MissingExtra
from lowcal.files import batches as reading
from lowcal.inputs import read_outcomes
from lowcal.subpopulations.base import WeakLearner
from study import multicalibrate

N = 3000


def rows(n: int = N, seed: int = 0) -> dict[str, np.ndarray]:
    """Labels, predictions that are wrong in some groups, weights, and columns of several kinds."""
    rng = np.random.default_rng(seed)
    city, age = rng.choice(["Oslo", "Rome", "Bern", "Lima"], n), rng.normal(40.0, 12.0, n).round(2)
    band, flag = rng.integers(-2, 3, n).astype(np.int8), rng.random(n) < 0.3
    p = 1.0 / (1.0 + np.exp(-rng.normal(0.0, 1.5, n)))
    wrong = 0.25 * (city == "Rome") * (1 - p) - 0.3 * p * (band == 1) - 0.15 * p * (age > 45)
    y = (rng.random(n) < p + wrong).astype(np.int64)
    weight = rng.integers(0, 4, n).astype(float)
    return {"y": y, "p": p, "w": weight, "city": city, "age": age, "band": band, "flag": flag}


DATA = rows()
X = {name: DATA[name] for name in ("city", "age", "band", "flag")}


def arrow() -> pa.Table:
    table = pa.table({name: column if name != "city" else pa.array(column.tolist()) for name, column in DATA.items()})
    return table.set_column(table.schema.get_field_index("city"), "city", table["city"].dictionary_encode())


def cut(table: Any, size: int) -> Callable[[], Iterator[Any]]:
    """Return a function that yields a table in batches."""
    n = len(next(iter(table.values()))) if isinstance(table, dict) else len(table)

    def part(start: int) -> Any:
        if isinstance(table, dict):
            return {name: column[start : start + size] for name, column in table.items()}
        return table.iloc[start : start + size] if isinstance(table, pd.DataFrame) else table.slice(start, size)

    return lambda: (part(start) for start in range(0, n, size))


def write(folder: Path, form: str, size: int = 317) -> str:
    path, table = str(folder / f"rows.{form}"), arrow()
    if form == "parquet":
        pq.write_table(table, path, row_group_size=size)
        return path
    with (pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream)(path, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=size):
            writer.write(batch)
    return path


SOURCES = ["dict", "pandas", "polars", "arrow table", "record batches", "a list", "a table", "parquet", "arrow", "ipc"]


def source(kind: str, folder: Path, size: int = 211) -> Any:
    if kind in ("parquet", "arrow", "ipc"):
        return write(folder, kind)
    if kind == "record batches":
        return lambda: iter(arrow().to_batches(max_chunksize=size))
    tables = {"dict": DATA, "pandas": pd.DataFrame(DATA), "polars": pl.DataFrame(DATA)}
    if kind in tables:
        return cut(tables[kind], size)
    return {"arrow table": cut(arrow(), size), "a list": list(cut(DATA, size)()), "a table": pd.DataFrame(DATA)}[kind]


def agree(streamed: lowcal.Measurement, whole: lowcal.Measurement, tolerance: float = 1e-12) -> None:
    assert streamed.names == whole.names
    assert np.abs(streamed.violation - whole.violation).max() <= tolerance
    assert np.abs(streamed.mass - whole.mass).max() <= tolerance
    assert [streamed.worst(3)[k][0] for k in range(3)] == [whole.worst(3)[k][0] for k in range(3)]


# --- measuring --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_what_memory_gives(kind: str, tmp_path: Path) -> None:
    groups = lowcal.Groups(list(X))
    whole = lowcal.measure(DATA["y"], DATA["p"], X, subpopulations=groups)
    agree(measure_stream(source(kind, tmp_path), subpopulations=groups), whole)


CLASSES = {
    "groups": lowcal.Groups(["city", "age", "band"], n_bins=4),
    "pairs": lowcal.Intersections(["city", "age", "flag"], n_bins=3, min_mass=60),
    "thresholds": lowcal.Thresholds("age", min_mass=100),
    "sum": lowcal.Groups("city") + lowcal.Thresholds("age", min_mass=400),
}


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-3", "full-0.2"])
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_and_notion_gives_what_memory_gives(name: str, notion: str, weight: str | None) -> None:
    of = {"subpopulations": CLASSES[name], "notion": notion}
    whole = lowcal.measure(DATA["y"], DATA["p"], X, sample_weight=None if weight is None else DATA[weight], **of)
    agree(measure_stream(cut(arrow(), 97), sample_weight=weight, **of), whole)


def test_a_stream_lists_every_cell_of_a_fine_grid_or_refuses() -> None:
    of = {"subpopulations": CLASSES["groups"]}
    whole = lowcal.measure(DATA["y"], DATA["p"], X, notion="full-0.0003", **of)
    agree(measure_stream(cut(arrow(), 97), notion="full-0.0003", **of), whole)
    with pytest.raises(InvalidInput, match="width 1e-06 has more than 100,000 cells"):
        measure_stream(cut(arrow(), 97), notion="full-1e-6", **of)


def test_memberships_may_be_bits_in_one_batch_and_shares_in_the_next() -> None:
    rng = np.random.default_rng(1)
    C = (rng.random((N, 5)) < 0.4).astype(float)
    C[2000:] *= 0.5
    shares = {f"c{j}": C[:, j] for j in range(5)}
    whole = lowcal.measure(DATA["y"], DATA["p"], shares, subpopulations=lowcal.Memberships())
    stream = cut({"y": DATA["y"], "p": DATA["p"], **shares}, 500)
    agree(measure_stream(stream, subpopulations=lowcal.Memberships()), whole)


def test_without_columns_only_everyone_is_measured() -> None:
    found = measure_stream(cut({"y": DATA["y"], "p": DATA["p"]}, 1000))
    rest = DATA["y"] - DATA["p"]
    assert found.names == ("everyone",)
    assert found.largest == pytest.approx(max(abs(rest.mean()), abs((rest * DATA["p"]).mean())), abs=1e-12)


@pytest.mark.parametrize(
    "labels",
    [
        np.where(DATA["y"] == 1, "yes", "no"),
        DATA["y"] == 1,
        DATA["y"].astype(float),
        DATA["y"] * 2 - 1,
        np.where(DATA["y"] == 1, 0.9, 0.25),
        pd.Categorical(np.where(DATA["y"] == 1, "yes", "no")),
    ],
    ids=["text", "truth", "floats", "signs", "fractions", "categories"],
)
@pytest.mark.parametrize("as_arrow", [True, False])
def test_labels_mean_what_they_mean_in_memory(labels: Any, as_arrow: bool) -> None:
    frame = pd.DataFrame({"y": labels, "p": DATA["p"], "city": DATA["city"]})
    table = pa.Table.from_pandas(frame) if as_arrow else frame
    whole = lowcal.measure(np.asarray(labels), DATA["p"], {"city": DATA["city"]})
    agree(measure_stream(cut(table, 100)), whole)
    fit = multicalibrate_stream(cut(table, 100), alpha=0.01)
    assert fit.predictor.layout == read_outcomes(np.asarray(labels), DATA["p"]).layout


def test_named_classes_tell_which_label_is_the_second() -> None:
    table = {"y": np.where(DATA["y"] == 1, "bad", "good"), "p": DATA["p"], "city": DATA["city"]}
    kind = {"classes": ["good", "bad"]}
    agree(measure_stream(cut(table, 400), **kind), lowcal.measure(table["y"], table["p"], {"city": X["city"]}, **kind))


# --- a sample stands for the values, never for the sums ---------------------------------------------------------


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SAMPLE_ROWS", 400)
    monkeypatch.setattr(streams, "LEAST_SAMPLE", 400)


def test_sums_are_of_all_rows_when_values_come_from_a_sample(small_sample: None) -> None:
    groups = lowcal.Groups(["city", "band", "flag"])
    agree(
        measure_stream(cut(DATA, 250), subpopulations=groups),
        lowcal.measure(DATA["y"], DATA["p"], X, subpopulations=groups),
    )


def test_cut_points_come_from_the_sample_and_the_violation_from_all_rows(small_sample: None) -> None:
    found = measure_stream(cut(DATA, 250), subpopulations=lowcal.Groups("age", n_bins=3))
    for name, violation, mass in zip(found.names[1:], found.violation[1:], found.mass[1:], strict=True):
        low, high = (
            (name.split("<age<=") if "<age<=" in name else (None, name.removeprefix("age<=")))
            if ("<=" in name)
            else (name.removeprefix("age>"), None)
        )
        # names show six digits; ages have two places
        inside = (DATA["age"] > float(low or -np.inf) + 1e-9) & (DATA["age"] <= float(high or np.inf) + 1e-9)
        rest = (DATA["y"] - DATA["p"]) * inside
        expected = max(abs(rest.mean()), abs((rest * DATA["p"]).mean()))
        assert violation == pytest.approx(expected, abs=1e-12)
        assert mass == pytest.approx(inside.mean(), abs=1e-12)


def test_groups_are_judged_by_their_rows_in_the_whole_stream(small_sample: None) -> None:
    """A group of 60 rows shows about 8 in the sample, one of 24 rows about 3: min_mass counts all of them."""
    rare = np.full(N, "most", dtype=object)
    rare[100:160] = "sixty"
    rare[-24:] = "two dozen"
    table = {"y": DATA["y"], "p": DATA["p"], "rare": rare}
    seen = set()
    for seed in range(20):
        names = measure_stream(cut(table, 250), random_state=seed).names
        assert set(names) <= {"everyone", "rare=most", "rare=sixty"}
        assert {"everyone", "rare=most"} <= set(names)
        seen |= set(names)
    assert "rare=sixty" in seen
    small = lowcal.Groups(min_mass=20)
    assert any("rare=two dozen" in measure_stream(cut(table, 250), subpopulations=small, random_state=s).names
               for s in range(20))  # fmt: skip


def test_the_sample_is_uniform_and_does_not_depend_on_the_batches(small_sample: None) -> None:
    def sampled(size: int, seed: int) -> np.ndarray:
        found = streams.survey(
            reading.open_batches(cut({**DATA, "row": np.arange(N)}, size)),
            streams.Roles("y", "p"),
            None,
            None,
            seed,
            streams.Passes(False),
        )
        return np.asarray(found.sample["row"])

    first = sampled(1000, 3)
    assert len(first) == 400
    assert (np.diff(first) > 0).all()
    for size in (7, 250, N):
        assert np.array_equal(sampled(size, 3), first)
    times = np.bincount(np.concatenate([sampled(1000, seed) for seed in range(60)]) // 300, minlength=10)
    # each tenth of the rows holds 2400 of 24000 draws, with a deviation of about 43
    assert np.abs(times - 2400).max() < 5 * np.sqrt(60 * 400 * 0.1 * 0.9)


def test_fits_hold_on_all_rows_when_the_gram_matrix_comes_from_a_sample(small_sample: None) -> None:
    groups = lowcal.Groups(["city", "band", "flag"])
    for geometry in ("euclidean", "mirror"):
        fit = multicalibrate_stream(cut(DATA, 250), subpopulations=groups, alpha=0.0005, geometry=geometry)
        assert fit.status is lowcal.Status.REACHED
        after = lowcal.measure(DATA["y"], fit.predictor(DATA["p"], X), X, subpopulations=groups)
        assert after.largest <= 0.0005
        assert after.largest == pytest.approx(fit.violation, abs=1e-12)
        losses = [record.brier if geometry == "euclidean" else record.log_loss for record in fit.history]
        assert (np.diff(losses) < 0).all()


# --- fitting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", ["euclidean", "mirror", None])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "degree-4", "full-0.25"])
def test_a_fit_is_what_it_says(notion: str, geometry: Any) -> None:
    of = {"subpopulations": lowcal.Groups(["city", "age", "band"]), "notion": notion}
    start = lowcal.measure(DATA["y"], DATA["p"], X, **of).largest
    fit = multicalibrate_stream(cut(arrow(), 331), alpha=0.004, geometry=geometry, **of)
    mended = fit.predictor(DATA["p"], X)
    after = lowcal.measure(DATA["y"], mended, X, **of)
    assert start > 0.02
    assert fit.status is lowcal.Status.REACHED
    assert after.largest <= 0.004 * (1 + 1e-12)
    assert fit.violation == pytest.approx(after.largest, abs=1e-12)
    assert 1 <= fit.n_updates <= fit.bound
    last = fit.history[-1]
    assert last.violation == fit.violation
    assert last.brier == pytest.approx(np.mean((DATA["y"] - mended) ** 2), abs=1e-12)
    likely = np.where(DATA["y"] == 1, mended, 1 - mended)
    assert last.log_loss == pytest.approx(-np.mean(np.log(np.maximum(likely, 1e-9))), abs=1e-9)
    assert fit.is_exact


def test_weights_count_in_a_fit() -> None:
    groups = lowcal.Groups(["city", "band"])
    fit = multicalibrate_stream(cut(DATA, 400), sample_weight="w", subpopulations=groups, alpha=0.002)
    mended = fit.predictor(DATA["p"], X)
    of = {"subpopulations": groups, "sample_weight": DATA["w"]}
    assert lowcal.measure(DATA["y"], mended, X, **of).largest == pytest.approx(fit.violation, abs=1e-12)
    assert fit.violation <= 0.002
    heavy = {name: np.repeat(column, DATA["w"].astype(int)) for name, column in DATA.items()}
    again = lowcal.measure(heavy["y"], np.repeat(mended, DATA["w"].astype(int)), heavy, subpopulations=groups)
    assert again.largest == pytest.approx(fit.violation, abs=1e-12)


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_the_size_of_batches_changes_nothing_but_rounding(geometry: Any) -> None:
    groups = lowcal.Intersections(["city", "band"])
    fits = [
        multicalibrate_stream(cut(arrow(), size), subpopulations=groups, alpha=0.001, geometry=geometry)
        for size in (29, 1024, N)
    ]
    mended = [fit.predictor(DATA["p"], X) for fit in fits]
    assert len({fit.n_updates for fit in fits}) == 1
    for other in mended[1:]:
        assert np.abs(other - mended[0]).max() <= 1e-9


def test_the_same_seed_gives_the_same_bytes() -> None:
    fits = [multicalibrate_stream(cut(DATA, 500), alpha=0.002, random_state=7) for _ in range(2)]
    assert str(fits[0].predictor.to_dict()) == str(fits[1].predictor.to_dict())


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_a_direction_that_leads_nowhere_gives_way_to_the_worst_constraint(
    geometry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the sample says: every update lowers the loss of all rows as much as its violation guarantees."""
    real = streaming.block_terms

    def astray(*given: Any) -> Any:
        return tuple(replace(term, theta=np.where(np.arange(term.theta.size).reshape(term.theta.shape) == 2, 1.0, 0.0))
                     for term in real(*given))  # fmt: skip

    monkeypatch.setattr(streaming, "block_terms", astray)
    monkeypatch.setattr(streaming._Run, "_shrunk", lambda *given: False)
    of = {"subpopulations": lowcal.Groups(["city", "band"]), "notion": "multiaccuracy"}
    fit = multicalibrate_stream(cut(DATA, 1000), alpha=0.003, geometry=geometry, max_updates=60, **of)
    start = DATA["p"] if geometry == "euclidean" else np.clip(DATA["p"], 1e-9, 1 - 1e-9)
    likely = np.where(DATA["y"] == 1, start, 1 - start)
    first = np.mean((DATA["y"] - start) ** 2) if geometry == "euclidean" else -np.mean(np.log(likely))
    losses = [first, *(r.brier if geometry == "euclidean" else r.log_loss for r in fit.history)]
    before = [lowcal.measure(DATA["y"], DATA["p"], X, **of).largest, *(r.violation for r in fit.history[:-1])]
    least = np.square(before) * (1.0 if geometry == "euclidean" else 2.0)
    assert fit.status is lowcal.Status.REACHED
    assert fit.n_updates > 3
    assert (-np.diff(losses) >= least - 1e-13).all()


def test_a_fit_needs_about_as_many_updates_as_in_memory() -> None:
    of = {"subpopulations": lowcal.Groups(list(X)), "alpha": 0.0005, "geometry": "euclidean"}
    whole = multicalibrate(DATA["y"], DATA["p"], X, **of)
    streamed = multicalibrate_stream(cut(DATA, 500), **of)
    assert streamed.n_updates <= whole.n_updates + 1
    assert streamed.bound == whole.bound


def test_a_fit_that_rounding_stops_says_so() -> None:
    fit = multicalibrate_stream(cut(DATA, 1000), alpha=1e-19, subpopulations=lowcal.Groups("city"), max_updates=99)
    assert fit.status is lowcal.Status.STALLED
    assert fit.violation < 1e-9


def test_nothing_is_updated_that_holds_already() -> None:
    fit = multicalibrate_stream(cut(DATA, 500), alpha=0.9, subpopulations=lowcal.Groups(list(X)))
    assert (fit.status, fit.n_updates) == (lowcal.Status.REACHED, 0)
    assert np.array_equal(fit.predictor(DATA["p"], X), DATA["p"])


def test_the_predictor_can_be_saved_and_serves_single_rows(tmp_path: Path) -> None:
    predictor = multicalibrate_stream(cut(DATA, 500), subpopulations=lowcal.Groups(list(X))).predictor
    persistence.save(predictor, tmp_path / "model.json")
    loaded = persistence.load(tmp_path / "model.json")
    mended = predictor(DATA["p"], X)
    assert np.array_equal(loaded(DATA["p"], X), mended)
    assert predictor.one(DATA["p"][5], {name: X[name][5].item() for name in X}) == pytest.approx(mended[5], abs=1e-12)


def test_an_audit_on_the_fitted_rows_warns() -> None:
    fit = multicalibrate_stream(cut(DATA, 777), alpha=0.003, subpopulations=lowcal.Groups(list(X)))
    assert provenance.was_fitted_on(DATA["y"][:, None].astype(float), fit.predictor(DATA["p"], X)[:, None])
    with pytest.warns(lowcal.AuditWarning):
        lowcal.audit(DATA["y"], fit.predictor(DATA["p"], X), X, null_draws=19, random_state=0)


def test_max_updates_and_callback_stop() -> None:
    of = {"notion": "full-0.1", "alpha": 1e-4, "geometry": "euclidean"}
    limited = multicalibrate_stream(cut(DATA, 1000), max_updates=2, **of)
    assert (limited.status, limited.n_updates) == (lowcal.Status.LIMIT, 2)
    seen: list[lowcal.Record] = []

    def stop(record: lowcal.Record) -> bool:
        seen.append(record)
        return len(seen) == 3

    stopped = multicalibrate_stream(cut(DATA, 1000), callback=stop, **of)
    assert (stopped.status, stopped.n_updates) == (lowcal.Status.STOPPED, 3)
    assert tuple(seen) == stopped.history


def test_an_interrupt_keeps_the_updates_so_far() -> None:
    passes = []

    def tables() -> Iterator[Any]:
        passes.append(1)
        for k, table in enumerate(cut(DATA, 1000)()):
            if len(passes) == 7 and k == 1:
                raise KeyboardInterrupt
            yield table

    with pytest.raises(FitInterrupted, match="Interrupted after 2 updates") as caught:
        multicalibrate_stream(tables, notion="full-0.1", alpha=1e-4, geometry="euclidean")
    fit = caught.value.fit
    assert isinstance(fit, lowcal.Fit)
    assert len(fit.predictor) == 2
    after = lowcal.measure(DATA["y"], fit.predictor(DATA["p"], DATA), {k: v for k, v in DATA.items() if k not in "yp"},
                           notion="full-0.1")  # fmt: skip
    assert after.largest == pytest.approx(fit.violation, abs=1e-12)


def test_a_round_takes_two_passes() -> None:
    passes = []

    def tables() -> Iterator[Any]:
        passes.append(1)
        return cut(DATA, 1000)()

    fit = multicalibrate_stream(tables, alpha=0.0005, geometry="euclidean", subpopulations=lowcal.Groups(list(X)))
    assert len(passes) == 2 + 2 * fit.n_updates
    passes.clear()
    measure_stream(tables)
    assert len(passes) == 2


# --- memory, and what is read -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dict", "pandas", "polars", "arrow table", "a table", "arrow", "ipc", "parquet"])
def test_no_batch_is_longer_than_wanted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 100)
    lengths = [len(batch["p"]) for batch in reading.open_batches(source(kind, tmp_path, 1100)).read(None)]
    assert sum(lengths) == N
    assert max(lengths) <= 100
    if kind in ("arrow table", "arrow", "ipc", "parquet"):
        groups = lowcal.Groups(list(X))
        whole = lowcal.measure(DATA["y"], DATA["p"], X, subpopulations=groups)
        agree(measure_stream(source(kind, tmp_path, 1100), subpopulations=groups), whole)


def test_small_arrow_batches_are_joined_even_if_their_dictionaries_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 1000)
    tables = [
        pa.table({**{n: c[s : s + 10] for n, c in DATA.items() if n != "city"},
                  "city": pa.array(DATA["city"][s : s + 10].tolist()).dictionary_encode()})
        for s in range(0, N, 10)
    ]  # fmt: skip
    assert len({str(t["city"].chunk(0).dictionary.to_pylist()) for t in tables}) > 5
    found = list(reading.open_batches(tables).read(None))
    assert [len(batch["p"]) for batch in found] == [1000] * 3
    assert [v for batch in found for v in batch["city"].to_pylist()] == DATA["city"].tolist()
    whole = lowcal.measure(DATA["y"], DATA["p"], X, subpopulations=lowcal.Groups("city"))
    agree(measure_stream(tables, subpopulations=lowcal.Groups("city")), whole)


@pytest.mark.parametrize("form", ["parquet", "arrow", "ipc"])
def test_only_the_wanted_columns_of_a_file_are_read(form: str, tmp_path: Path) -> None:
    found = reading.open_batches(write(tmp_path, form))
    opened = found.open(["p", "city"])
    assert {name for batch in opened for name in batch.schema.names} == {"p", "city"}


def test_text_of_a_parquet_file_comes_as_a_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "text.parquet"
    pq.write_table(pa.table({"city": DATA["city"].tolist()}), path)
    batch = next(reading.open_batches(path).read(None))
    assert pa.types.is_dictionary(batch["city"].type)


def test_several_files_are_one_stream(tmp_path: Path) -> None:
    paths = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    pq.write_table(arrow().slice(0, 1234), paths[0])
    pq.write_table(arrow().slice(1234), paths[1])
    agree(measure_stream(paths), lowcal.measure(DATA["y"], DATA["p"], {"w": DATA["w"], **X}))


# --- progress ---------------------------------------------------------------------------------------------------


def test_progress_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measure_stream(cut(DATA, 1000), progress=True)
    assert "measuring" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    clock = iter(np.arange(0.0, 1e4, 0.7))
    monkeypatch.setattr("lowcal.progress.time.monotonic", lambda: float(next(clock)))
    multicalibrate_stream(cut(DATA, 1000), alpha=0.005, progress=True)
    told = capsys.readouterr().err
    assert "lowcal: reading, " in told
    assert "lowcal: update 1, measuring, " in told
    assert " of 3,000 rows" in told
    measure_stream(cut(DATA, 1000))
    assert capsys.readouterr().err == ""


# --- errors -----------------------------------------------------------------------------------------------------


def test_a_generator_is_refused_before_it_is_read() -> None:
    generator = cut(DATA, 1000)()
    with pytest.raises(InvalidInput, match=r"generator can be read once only.*Pass a function"):
        measure_stream(generator)
    assert len(next(generator)["y"]) == 1000
    reader = pa.RecordBatchReader.from_batches(arrow().schema, arrow().to_batches())
    with pytest.raises(InvalidInput, match="once only"):
        measure_stream(reader)


def test_a_function_that_returns_the_same_iterator_is_found_out() -> None:
    generator = cut(DATA, 1000)()
    with pytest.raises(InvalidInput, match=r"held 3000 rows in the first pass and 0 in a later one.*new iterator"):
        measure_stream(lambda: generator)


@pytest.mark.parametrize("given", [3, None, lambda: 5, lambda: "text"])
def test_what_is_no_stream_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="A stream of rows is a path, a list of tables or a function"):
        measure_stream(given)


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(InvalidInput, match="yields float, which is no table; give Arrow tables"):
        measure_stream([0.5, 0.25])
    with pytest.raises(InvalidInput, match="differ in length"):
        measure_stream([{"y": np.zeros(3), "p": np.zeros(4)}])
    with pytest.raises(InvalidInput, match="A column is ListLike; give an array or a series"):
        measure_stream([{"y": ListLike(), "p": ListLike()}])


class ListLike:
    """Has a length and nothing else."""

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("empty", [[], lambda: iter([]), [{"y": np.zeros(0), "p": np.zeros(0)}]])
def test_an_empty_stream_is_refused(empty: Any) -> None:
    with pytest.raises(InvalidInput, match="the stream holds no rows"):
        measure_stream(empty)


def test_an_empty_arrow_file_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "none.arrow")
    pa.ipc.new_file(path, arrow().schema).close()
    with pytest.raises(InvalidInput, match=r"none.arrow holds no rows"):
        measure_stream(path)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingColumn, match=r"the stream has no column 'label'; it has 'y', 'p'"):
        measure_stream(cut(DATA, 500), y="label")
    with pytest.raises(MissingColumn, match=r"rows.arrow has no column 'citi'; .* Did you mean 'city'"):
        measure_stream(write(tmp_path, "arrow"), subpopulations=lowcal.Groups("citi"))
    later = [{**DATA}, {name: column for name, column in DATA.items() if name != "age"}]
    with pytest.raises(MissingColumn, match=r"Batch 1 \(from 0\) of the stream has no column 'age'"):
        measure_stream(later)


def test_types_may_not_change() -> None:
    text = {**DATA, "age": DATA["age"].astype(str)}
    with pytest.raises(InvalidInput, match=r"Column 'age' of the stream holds numbers at first, but text in batch 1"):
        measure_stream([DATA, text])
    for kind in (pd.DataFrame, pl.DataFrame, pa.table):
        with pytest.raises(
            InvalidInput, match="Column 'age' of the stream holds text at first, but numbers in batch 1"
        ):
            measure_stream([kind(text), kind(DATA)])


def test_columns_without_values_have_no_type() -> None:
    """A batch may lack all values of a column, whatever its type then is."""
    age = DATA["age"].astype(object)
    age[1000:2000] = None
    table = {"y": DATA["y"], "p": DATA["p"], "age": age.astype(float)}
    parts = [pa.table(part) for part in cut({**table, "age": table["age"]}, 1000)()]
    parts[1] = parts[1].set_column(2, "age", pa.nulls(1000))
    whole = lowcal.measure(DATA["y"], DATA["p"], {"age": table["age"]})
    agree(measure_stream(parts), whole)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("p", np.nan, "p is nan in row 34"),
        ("p", 1.5, r"p is 1.5 in row 34, outside \[0, 1\]"),
        ("w", -1.0, "sample_weight is -1.0 in row 34"),
        ("y", np.nan, "y is missing in row 34"),
    ],
)
def test_a_bad_value_is_named_with_its_row(column: str, value: float, said: str) -> None:
    bad = {**DATA, column: DATA[column].astype(float).copy()}
    bad[column][1034] = value
    with pytest.raises(InvalidInput, match=said + r".*within the batch that begins at row 1000\."):
        measure_stream(cut(bad, 500), sample_weight="w")
    with pytest.raises(InvalidInput, match=said.replace("34", "1034")) as caught:
        measure_stream([bad], sample_weight="w")
    assert "batch" not in str(caught.value)


def test_labels_that_are_missing_or_many_are_refused() -> None:
    labels = np.where(DATA["y"] == 1, "yes", "no").astype(object)
    labels[1034] = None
    table = pa.table({"y": pa.array(labels.tolist()), "p": DATA["p"]})
    with pytest.raises(InvalidInput, match=r"y is missing in row 1034"):
        measure_stream([table])
    third = DATA["y"].copy()
    third[2000] = 2
    with pytest.raises(InvalidInput, match="y holds 3 classes"):
        measure_stream(cut({**DATA, "y": third}, 500))
    texts = np.array(["no", "yes"])[DATA["y"]].astype(object)
    texts[2999] = "perhaps"
    for as_arrow in (False, True):
        table = {"y": pa.array(texts.tolist()) if as_arrow else texts, "p": pa.array(DATA["p"])}
        given = pa.table(table) if as_arrow else {"y": texts, "p": DATA["p"]}
        with pytest.raises(InvalidInput, match="y is 'perhaps' in row 2999, a class that p has no column for"):
            measure_stream([given], classes=["no", "yes"])
    with pytest.raises(InvalidInput, match="y holds one class only"):
        measure_stream(cut({**DATA, "y": np.zeros(N)}, 500))
    with pytest.raises(InvalidInput, match="y holds one class only"):
        measure_stream(cut({**DATA, "w": (DATA["y"] == 1).astype(float)}, 500), sample_weight="w")


def test_weights_that_are_zero_or_huge_are_refused() -> None:
    with pytest.raises(InvalidInput, match="All sample weights are zero"):
        measure_stream(cut({**DATA, "w": np.zeros(N)}, 500), sample_weight="w")
    with pytest.raises(InvalidInput, match="add up to infinity"):
        measure_stream(cut({**DATA, "w": np.full(N, 1e308)}, 500), sample_weight="w")


def test_a_sample_without_weight_is_refused(small_sample: None) -> None:
    weight = np.zeros(N)
    weight[:2], weight[-2:] = 1.0, 1.0
    table = {**DATA, "w": weight, "y": np.arange(N) % 2}
    said = []
    for seed in range(8):
        try:
            measure_stream(cut(table, 500), sample_weight="w", random_state=seed)
        except InvalidInput as error:
            said.append(str(error))
    assert said
    assert all("The sampled rows have no weight" in error for error in said)


@pytest.mark.parametrize("role", [{"y": 3}, {"p": ["a", "b"]}, {"p": DATA["p"]}, {"sample_weight": 1}])
def test_roles_are_names_of_columns(role: Any) -> None:
    with pytest.raises(InvalidInput, match=f"(?s){next(iter(role))} must be the name of one column.*use measure"):
        measure_stream(cut(DATA, 500), **role)


def test_roles_are_different_columns() -> None:
    with pytest.raises(InvalidInput, match="must be different columns"):
        measure_stream(cut(DATA, 500), y="p")


@pytest.mark.parametrize("given", [lowcal.Trees(), lowcal.Groups() + lowcal.Linear(), "city"])
def test_learned_classes_are_refused_before_anything_is_read(given: Any) -> None:
    with pytest.raises(InvalidInput, match="A stream takes Groups, Intersections, Memberships, Thresholds"):
        measure_stream(lambda: pytest.fail("read"), subpopulations=given)


def test_smooth_weights_and_unknown_options_are_refused() -> None:
    with pytest.raises(InvalidInput, match="A stream is measured by moments, which smooth is not made of"):
        measure_stream(cut(DATA, 500), notion="smooth")
    with pytest.raises(InvalidInput, match="alpha must be a positive number"):
        multicalibrate_stream(cut(DATA, 500), alpha=0.0)
    with pytest.raises(
        InvalidInput, match=r"Unknown geometry 'miror'; valid: euclidean, mirror\. Did you mean 'mirror'"
    ):
        multicalibrate_stream(cut(DATA, 500), geometry="miror")
    with pytest.raises(InvalidInput, match="max_updates must be a whole number"):
        multicalibrate_stream(cut(DATA, 500), max_updates=0)
    with pytest.raises(InvalidInput, match="callback must be a function"):
        multicalibrate_stream(cut(DATA, 500), callback=3)


def test_a_class_without_members_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no subpopulation with at least 5000 rows"):
        measure_stream(cut(DATA, 500), subpopulations=lowcal.Groups("city", min_mass=5000, everyone=False))


@pytest.mark.parametrize("form", ["parquet", "arrow", "ipc"])
@pytest.mark.parametrize("share", [0.5, 0.97])
def test_a_file_that_was_cut_short_is_refused(form: str, share: float, tmp_path: Path) -> None:
    path = Path(write(tmp_path, form))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(
        InvalidInput, match=f"rows.{form} is damaged, cut short or not an? (Parquet|Arrow) (file|stream)"
    ):
        measure_stream(str(path))


def test_paths_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "arrow")
    with pytest.raises(InvalidInput, match=r"There is no file .*row.arrow. Did you mean 'rows.arrow'"):
        measure_stream(str(tmp_path / "row.arrow"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InvalidInput, match=r"The folder .*nothing holds no file that ends in .parquet"):
        measure_stream(tmp_path / "nothing")
    csv = tmp_path / "rows.csv"
    csv.write_text("y,p\n1,.5\n")
    with pytest.raises(InvalidInput, match=r"rows.csv is neither a Parquet nor an Arrow file.*read_csv"):
        measure_stream(csv)
    (tmp_path / "none.parquet").touch()
    with pytest.raises(InvalidInput, match="is empty"):
        measure_stream(tmp_path / "none.parquet")


def test_types_that_have_nothing_in_common_are_refused() -> None:
    dates = pa.array([1] * N, pa.date32())
    tables = [pa.table({"y": DATA["y"], "p": DATA["p"], "x": x}) for x in (pa.array(DATA["age"]), dates)]
    with pytest.raises(InvalidInput, match="Batches hold different types in one column"):
        measure_stream(tables)


def test_columns_of_a_dict_may_be_series_of_any_kind() -> None:
    kinds = {"y": pd.Series(DATA["y"]), "p": pl.Series(DATA["p"]), "city": pa.chunked_array([DATA["city"].tolist()])}
    whole = lowcal.measure(DATA["y"], DATA["p"], {"city": DATA["city"]})
    agree(measure_stream([kinds]), whole)
    lists = {name: list(kinds[name]) for name in ("y", "p")} | {"city": DATA["city"].tolist()}
    agree(measure_stream([lists]), whole)


def test_columns_of_one_name_are_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1, 0]), pa.array([0.5, 0.5]), pa.array([0.5, 0.5])], ["y", "p", "p"])
    with pytest.raises(InvalidInput, match="several columns named 'p'"):
        measure_stream([twice])


def test_files_need_pyarrow_and_dicts_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "arrow")
    monkeypatch.setattr(reading, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"needs pyarrow: pip install 'lowcal\[files\]'.*dicts of arrays"):
        measure_stream(path)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "pyarrow")
    assert multicalibrate_stream(cut(DATA, 500)).status is lowcal.Status.REACHED


def test_a_stream_may_read_csv_in_chunks() -> None:
    text = pd.DataFrame(DATA).to_csv(index=False)
    found = measure_stream(lambda: pd.read_csv(io.StringIO(text), chunksize=700), subpopulations=lowcal.Groups(list(X)))
    agree(found, lowcal.measure(DATA["y"], DATA["p"], X, subpopulations=lowcal.Groups(list(X))))


def test_names_are_not_made_anew_for_every_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = WeakLearner.names.fget
    monkeypatch.setattr(WeakLearner, "names", property(lambda self: asked.append(1) or real(self)))
    rng = np.random.default_rng(0)
    table = {"y": rng.integers(0, 2, 300), "p": rng.random(300), "x": rng.random(300)}
    lowcal.measure_stream([table], subpopulations=lowcal.Thresholds(["x"]))
    assert len(asked) < 20


def test_batches_of_different_kinds_are_refused_in_words() -> None:

    rng = np.random.default_rng(0)
    table = {"y": rng.integers(0, 2, 100), "p": rng.random(100), "x": rng.random(100)}
    with pytest.raises(lowcal.InvalidInput, match=r"different kinds \(pandas, polars\)"):
        lowcal.measure_stream([pd.DataFrame(table), pl.DataFrame(table)], subpopulations=lowcal.Groups())
