"""Sources of rows that do not fit into memory: every kind gives the same fit, and errors say where and what."""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lowcal
from far_rows import (
    COLUMNS,
    DATA,
    GROUPS,
    SOURCES,
    agree,
    arrow,
    cut,
    digest,
    fit,
    measure,
    source,
    three_classes,
    write,
)
from lowcal.data import batches
from lowcal.data.errors import InvalidInput, MissingColumn, MissingExtra
from lowcal.data.frames import Table
from lowcal.data.inputs import read_outcomes
from lowcal.data.progress import Passes
from lowcal.rows import reading

N = len(DATA["y"])
X = {name: DATA[name] for name in COLUMNS}


# --- every source -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_fit_of_memory_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    given = source(kind, tmp_path)
    wanted = digest(fit(DATA, None, sample_weight="w"))
    assert digest(fit(given, sample_weight="w")) == wanted
    assert digest(fit(given, None, sample_weight="w")) == wanted


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_is_measured_as_in_memory(kind: str, tmp_path: Path) -> None:
    agree(measure(source(kind, tmp_path)), measure(DATA, None))


@pytest.mark.parametrize("size", [29, 1024, N])
@pytest.mark.parametrize("form", ["parquet", "arrow", "ipc"])
def test_the_size_of_row_groups_changes_no_bit(form: str, size: int, tmp_path: Path) -> None:
    assert digest(fit(write(tmp_path, form, size))) == digest(fit(DATA, None))


@pytest.mark.parametrize("size", [29, 1024])
@pytest.mark.parametrize("name", ["trees", "boosted"])
def test_nor_does_it_change_trees(name: str, size: int, tmp_path: Path) -> None:
    of = {"subpopulations": CLASSES[name], "guard": False}
    assert digest(fit(write(tmp_path, "parquet", size), **of)) == digest(fit(DATA, None, **of))


@pytest.mark.parametrize("size", [37, 1000, N])
@pytest.mark.parametrize(
    "table", [DATA, pd.DataFrame(DATA), pl.DataFrame(DATA), arrow()], ids=lambda t: type(t).__name__
)
def test_the_size_of_batches_changes_no_bit(table: Any, size: int) -> None:
    assert digest(fit(cut(table, size))) == digest(fit(DATA, None))


CLASSES = {
    "groups": lowcal.Groups(["city", "age", "band"], n_bins=4),
    "pairs": lowcal.Intersections(["city", "age", "flag"], n_bins=3, min_mass=60),
    "thresholds": lowcal.Thresholds("age", min_mass=1200),
    "sum": lowcal.Groups("city") + lowcal.Thresholds("age", min_mass=1300),
    "trees": lowcal.Trees(columns=["city", "age", "flag"]),
    "boosted": lowcal.Groups("band") + lowcal.Trees(n_trees=3),
}


KINDS = [(name, notion) for name in CLASSES for notion in ("multiaccuracy", "degree-3", "full-0.2")]


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize(("name", "notion"), KINDS)
def test_every_class_and_notion_gives_what_memory_gives(name: str, notion: str, weight: str | None) -> None:
    of = {"subpopulations": CLASSES[name], "notion": notion, "sample_weight": weight}
    agree(measure(cut(arrow(), 97), **of), measure(DATA, None, **of))


def test_memberships_may_be_bits_in_one_batch_and_shares_in_the_next() -> None:
    C = (np.random.default_rng(1).random((N, 5)) < 0.4).astype(float)
    C[2000:] *= 0.5
    data = {"y": DATA["y"], "p": DATA["p"], **{f"c{j}": C[:, j] for j in range(5)}}
    of = {"subpopulations": lowcal.Memberships()}
    agree(measure(cut(data, 500), **of), measure(data, None, **of))
    assert digest(fit(cut(data, 500), **of)) == digest(fit(data, None, **of))


def test_without_columns_only_everyone_is_measured() -> None:
    found = measure(cut({"y": DATA["y"], "p": DATA["p"]}, 1000), subpopulations=None)
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
    of = {"subpopulations": lowcal.Groups("city")}
    agree(measure(cut(table, 100), **of), measure(frame, None, **of))
    found = fit(cut(table, 100), alpha=0.01, **of)
    assert found.predictor.layout == read_outcomes(np.asarray(labels), DATA["p"]).layout
    assert digest(found) == digest(fit(frame, None, alpha=0.01, **of))


def test_named_classes_tell_which_label_is_the_second() -> None:
    data = {**DATA, "y": np.where(DATA["y"] == 1, "bad", "good")}
    of = {"classes": ["good", "bad"]}
    agree(measure(cut(data, 400), **of), measure(data, None, **of))


def test_several_classes() -> None:
    data, names = three_classes(), ["p_a", "p_b", "p_c"]
    of = {"subpopulations": lowcal.Groups("city"), "p": names}
    agree(measure(cut(data, 400), **of), measure(data, None, **of))
    for more in ({}, {"guard": False, "alpha": 0.003}):
        far, near = fit(cut(data, 400), **of, **more), fit(data, None, **of, **more)
        assert far.predictor.layout.classes == ("a", "b", "c")
        assert digest(far) == digest(near)


def test_there_may_be_many_classes() -> None:
    """More than are named in an error, and not all of them in every batch."""
    rng, n = np.random.default_rng(0), 130
    names = [f"p{k:03}" for k in range(n)]
    data = {
        "y": np.array([f"c{k:03}" for k in np.arange(N) % n]),
        **dict(zip(names, rng.dirichlet(np.ones(n), N).T, strict=True)),
    }
    of = {"subpopulations": None, "notion": "multiaccuracy", "p": names}
    agree(measure(cut(data, 99), **of), measure(data, None, **of))


def test_rows_without_weight_change_nothing() -> None:
    data = {name: np.concatenate([column, column]) for name, column in DATA.items()}
    data["w"][N:] = 0.0
    data["city"][N:] = "Ulm"
    data["y"][N:] = 0
    few = {name: column[DATA["w"] > 0] for name, column in DATA.items()}
    assert digest(fit(cut(data, 500), sample_weight="w")) == digest(fit(cut(few, 500), sample_weight="w"))


def test_columns_of_a_dict_may_be_series_of_any_kind() -> None:
    kinds = {"y": pd.Series(DATA["y"]), "p": pl.Series(DATA["p"]), "city": pa.chunked_array([DATA["city"].tolist()])}
    lists = {name: DATA[name].tolist() for name in ("y", "p", "city")}
    of = {"subpopulations": lowcal.Groups("city")}
    for given in (kinds, lists):
        agree(measure(lambda given=given: [given], **of), measure(DATA, None, **of))


def test_csv_is_read_in_chunks() -> None:
    text = pd.DataFrame(DATA).to_csv(index=False)
    found = fit(lambda: pd.read_csv(io.StringIO(text), chunksize=700))
    assert digest(found) == digest(fit(pd.read_csv(io.StringIO(text)), None))


def test_columns_without_values_have_no_type() -> None:
    """A batch may lack all values of a column, whatever its type then is."""
    data = {"y": DATA["y"], "p": DATA["p"], "age": DATA["age"].copy()}
    data["age"][1000:2000] = np.nan
    parts = [pa.table(part) for part in cut(data, 1000)()]
    parts[1] = parts[1].set_column(2, "age", pa.nulls(1000))
    of = {"subpopulations": lowcal.Groups("age")}
    agree(measure(lambda: parts, **of), measure(data, None, **of))


# --- batches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dicts", "pandas", "polars", "tables", "arrow", "ipc", "parquet", "lazy", "dataset"])
def test_no_batch_is_longer_than_wanted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 100)
    given = source(kind, tmp_path, 1100)
    lengths = [len(batch["p"]) for batch in batches.open_batches(given).read(None)]
    assert sum(lengths) == N
    assert max(lengths) <= 100
    assert digest(fit(given)) == digest(fit(DATA, None))


def test_small_arrow_batches_are_joined_even_if_their_dictionaries_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 1000)
    tables = [arrow(part) for part in cut(DATA, 10)()]
    assert len({str(t["city"].chunk(0).dictionary.to_pylist()) for t in tables}) > 5
    found = list(batches.open_batches(tables).read(None))
    assert [len(batch["p"]) for batch in found] == [1000] * 3
    assert [v for batch in found for v in batch["city"].to_pylist()] == DATA["city"].tolist()
    assert digest(fit(lambda: tables)) == digest(fit(DATA, None))


@pytest.mark.parametrize("form", ["parquet", "arrow", "ipc"])
def test_only_the_wanted_columns_of_a_file_are_read(form: str, tmp_path: Path) -> None:
    opened = batches.open_batches(write(tmp_path, form)).open(["p", "city"])
    assert {name for batch in opened for name in batch.schema.names} == {"p", "city"}


def test_text_of_a_parquet_file_comes_as_a_dictionary(tmp_path: Path) -> None:
    pq.write_table(pa.table({"city": DATA["city"].tolist()}), tmp_path / "text.parquet")
    batch = next(batches.open_batches(tmp_path / "text.parquet").read(None))
    assert pa.types.is_dictionary(batch["city"].type)


def count_openings(made: list[int]) -> Any:
    def tables() -> Iterator[Any]:
        made.append(0)
        for table in cut(DATA, 1000)():
            made[-1] += 1
            yield table

    return tables


def test_a_function_is_read_twice_and_until_memory_is_full() -> None:
    """Once to survey the rows and once to encode them; before, as far as it takes to see that they do not fit."""
    made: list[int] = []
    fit(count_openings(made), 150_000)
    assert made == [2, 3, 3]
    made.clear()
    fit(count_openings(made), 10**9)
    assert made == [3, 3]


def test_readers_of_a_function_are_closed() -> None:
    made: list[Any] = []

    class Reader:
        """Yields tables, and holds a file until it is closed."""

        def __init__(self) -> None:
            self.tables, self.is_open = cut(DATA, 1000)(), True
            made.append(self)

        def __iter__(self) -> Iterator[Any]:
            return self.tables

        def close(self) -> None:
            self.is_open = False

    fit(lambda: Reader())  # a class is no function
    assert [reader.is_open for reader in made] == [False] * 3


# --- the sample ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SAMPLE_ROWS", 400)
    monkeypatch.setattr(reading, "LEAST_SAMPLE", 400)


def sampled(size: int, seed: int) -> np.ndarray:
    """Return the numbers of the rows that a survey of batches of a size keeps."""
    given = batches.open_batches(cut({**DATA, "row": np.arange(N)}, size))
    found = reading.survey(given, reading.Roles("y", ("p",)), None, None, seed, Passes(False))
    return np.asarray(found.sample["row"])


@pytest.mark.usefixtures("small_sample")
def test_the_sample_is_uniform_and_does_not_depend_on_the_batches() -> None:
    first = sampled(1000, 3)
    assert len(first) == 400
    assert (np.diff(first) > 0).all()
    for size in (7, 250, N):
        assert np.array_equal(sampled(size, 3), first)
    times = np.bincount(np.concatenate([sampled(1000, seed) for seed in range(60)]) // 300, minlength=10)
    # each tenth of the rows holds 2400 of 24000 draws, with a deviation of about 43
    assert np.abs(times - 2400).max() < 5 * np.sqrt(60 * 400 * 0.1 * 0.9)


@pytest.mark.usefixtures("small_sample")
def test_memory_learns_from_the_same_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Table] = []
    real = reading.learn
    monkeypatch.setattr(reading, "learn", lambda kind, table, *rest: seen.append(table) or real(kind, table, *rest))
    outcomes = read_outcomes(DATA["y"], DATA["p"])
    table = Table.of({"row": np.arange(N)})
    reading.in_memory(lowcal.Groups("row"), outcomes, table, 5)
    assert np.array_equal(seen[0].array("row"), sampled(250, 5))


@pytest.mark.usefixtures("small_sample")
@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("name", ["groups", "pairs", "trees", "boosted"])
def test_a_fit_on_more_rows_than_the_sample_is_the_same_everywhere(name: str, weight: str | None) -> None:
    of = {"subpopulations": CLASSES[name], "sample_weight": weight, "random_state": 2}
    near = digest(fit(DATA, None, **of))
    assert {digest(fit(cut(DATA, size), **of)) for size in (97, N)} == {near}
    assert digest(fit(DATA, None, **(of | {"random_state": 3}))) != near


@pytest.mark.usefixtures("small_sample")
def test_sums_are_of_all_rows_when_values_come_from_a_sample() -> None:
    of = {"subpopulations": lowcal.Groups(["city", "band", "flag"])}
    agree(measure(cut(DATA, 250), **of), measure(DATA, None, **of))


@pytest.mark.usefixtures("small_sample")
def test_cut_points_come_from_the_sample_and_the_violation_from_all_rows() -> None:
    found = measure(cut(DATA, 250), subpopulations=lowcal.Groups("age", n_bins=3))
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


@pytest.mark.usefixtures("small_sample")
def test_groups_are_judged_by_their_rows_in_the_whole_source() -> None:
    """A group of 60 rows shows about 8 in the sample, one of 24 rows about 3: min_mass counts all of them."""
    rare = np.full(N, "most", dtype=object)
    rare[100:160], rare[-24:] = "sixty", "two dozen"
    data, seen = {"y": DATA["y"], "p": DATA["p"], "rare": rare}, set()
    for seed in range(20):
        found = fit(cut(data, 250), subpopulations=None, random_state=seed, guard=False, max_updates=1)
        names = {name for term in found.predictor.updates[0].terms for name in term.family.names}
        assert {"everyone", "rare=most"} <= names <= {"everyone", "rare=most", "rare=sixty"}
        seen |= names
    assert "rare=sixty" in seen


# --- what is no source --------------------------------------------------------------------------------------------


def test_an_iterator_is_refused_before_it_is_read() -> None:
    generator = cut(DATA, 1000)()
    with pytest.raises(InvalidInput, match=r"generator can be read only once.*Pass a function"):
        measure(generator)
    assert len(next(generator)["y"]) == 1000
    reader = pa.RecordBatchReader.from_batches(arrow().schema, arrow().to_batches())
    for memory in (1, None):
        with pytest.raises(InvalidInput, match="only once"):
            fit(reader, memory)


@pytest.mark.parametrize("memory", [1, 10**9])
def test_a_function_that_returns_the_same_iterator_is_found_out(memory: int) -> None:
    generator = cut(DATA, 1000)()
    with pytest.raises(InvalidInput, match=r"the source holds no rows.*a new iterator at every call"):
        fit(lambda: generator, memory)


def test_a_function_that_yields_other_rows_is_found_out() -> None:
    calls: list[int] = []

    def growing() -> Iterator[Any]:
        calls.append(1)
        return iter([{name: column[: 2000 + len(calls)] for name, column in DATA.items()}])

    with pytest.raises(InvalidInput, match=r"held 2002 rows with weight in the first pass and 2003 in a later one"):
        fit(growing)


@pytest.mark.parametrize("given", [lambda: 5, lambda: "text"])
def test_a_function_must_return_tables(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"a function that returns an iterator of tables, but (5|'text') was given"):
        measure(given)


def test_an_error_of_the_users_function_stays_as_it_is() -> None:
    def broken() -> Iterator[Any]:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(broken)


class ListLike:
    """Has a length and nothing else."""

    def __len__(self) -> int:
        return 3


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(InvalidInput, match="yields float, which is not a table; give Arrow tables"):
        measure(lambda: [0.5, 0.25])
    with pytest.raises(InvalidInput, match="differ in length"):
        measure(lambda: [{"y": np.zeros(3), "p": np.zeros(4)}])
    with pytest.raises(InvalidInput, match="A column is ListLike; give an array or a series"):
        measure(lambda: [{"y": ListLike(), "p": ListLike()}])


@pytest.mark.parametrize("memory", [1, None])
@pytest.mark.parametrize("empty", [list, lambda: iter([]), lambda: [{"y": np.zeros(0), "p": np.zeros(0)}]])
def test_an_empty_source_is_refused(empty: Any, memory: int | None) -> None:
    with pytest.raises(InvalidInput, match=r"holds no rows|X is type"):
        fit(empty, memory)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    pa.ipc.new_file(str(tmp_path / "none.arrow"), arrow().schema).close()
    pq.write_table(arrow().slice(0, 0), tmp_path / "none.parquet")
    for name in ("none.arrow", "none.parquet"):
        with pytest.raises(InvalidInput, match=rf"{name} holds no rows; give at least one\.$"):
            measure(tmp_path / name)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingColumn, match=r"the source has no column 'label'; it has 'y', 'p'"):
        lowcal.measure("label", "p", cut(DATA, 500), memory=1)
    with pytest.raises(MissingColumn, match=r"the source has no column 'p_b'"):
        fit(cut(DATA, 500), p=["p", "p_b"])
    with pytest.raises(MissingColumn, match=r"rows.arrow has no column 'citi'; .* Did you mean 'city'"):
        measure(write(tmp_path, "arrow"), subpopulations=lowcal.Groups("citi"))
    for kind in ("dataset", "lazy"):
        with pytest.raises(MissingColumn, match=rf"[Tt]he {kind.replace('lazy', 'LazyFrame')} has no column 'weight'"):
            fit(source(kind, tmp_path), sample_weight="weight")
    later = [DATA, {name: column for name, column in DATA.items() if name != "age"}]
    with pytest.raises(MissingColumn, match=r"Batch 1 \(from 0\) of the source has no column 'age'"):
        measure(lambda: later, subpopulations=None)


def test_types_may_not_change() -> None:
    text = {**DATA, "age": DATA["age"].astype(str)}
    with pytest.raises(InvalidInput, match=r"Column 'age' of the source holds numbers at first, but text in batch 1"):
        measure(lambda: [DATA, text])
    for kind in (pd.DataFrame, pl.DataFrame, pa.table):
        tables = [kind(text), kind(DATA)]
        with pytest.raises(
            InvalidInput, match="Column 'age' of the source holds text at first, but numbers in batch 1"
        ):
            measure(lambda tables=tables: tables)
    dates = pa.array([1] * N, pa.date32())
    with pytest.raises(InvalidInput, match="Batches hold different types in one column"):
        measure(lambda: [arrow(), arrow().set_column(4, "age", dates)], 10**9)


def test_batches_of_different_kinds_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"different kinds \(pandas, polars\)"):
        measure(lambda: [pd.DataFrame(DATA), pl.DataFrame(DATA)])


def test_columns_of_one_name_are_refused() -> None:
    twice = pa.Table.from_arrays([pa.array([1, 0]), pa.array([0.5, 0.5]), pa.array([0.5, 0.5])], ["y", "p", "p"])
    with pytest.raises(InvalidInput, match="several columns named 'p'"):
        measure(lambda: [twice])


def test_roles_are_different_columns() -> None:
    with pytest.raises(InvalidInput, match="must be different columns"):
        lowcal.measure("p", "p", cut(DATA, 500), memory=1)


@pytest.mark.parametrize("memory", [0, -1, 1.5, "1 GB", True])
def test_memory_is_a_number_of_bytes(memory: Any) -> None:
    with pytest.raises(InvalidInput, match="memory must be a whole number of at least 1"):
        fit(cut(DATA, 500), memory)


def test_arrays_for_labels_need_the_rows_in_memory() -> None:
    """What is given as an array is in memory already, and so are its rows."""
    found = lowcal.multicalibrate(DATA["y"], DATA["p"], cut(X, 500), subpopulations=GROUPS, memory=1)
    assert digest(found) == digest(fit(DATA, None))


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("p", np.nan, "p is nan in row 34"),
        ("p", 1.5, r"p is 1.5 in row 34, outside \[0, 1\]"),
        ("w", -1.0, "sample_weight is -1.0 in row 34"),
        ("w", np.nan, "sample_weight is nan in row 34"),
        ("y", np.nan, "y is missing in row 34"),
        ("y", np.inf, "y is inf in row 34"),
    ],
)
@pytest.mark.parametrize("work", [fit, measure])
def test_a_bad_value_is_named_with_its_row(work: Any, column: str, value: float, said: str) -> None:
    bad = {**DATA, column: DATA[column].astype(float).copy()}
    bad[column][1034] = value
    with pytest.raises(InvalidInput, match=said + r".*within the batch that begins at row 1000\."):
        work(cut(bad, 500), sample_weight="w")
    with pytest.raises(InvalidInput, match=said.replace("34", "1034")) as caught:
        work(lambda: [bad], sample_weight="w")
    assert "batch" not in str(caught.value)


def test_text_is_no_probability_and_no_weight() -> None:
    for column in ("p", "w"):
        bad = {**DATA, column: np.array(["high"] * N)}
        with pytest.raises(InvalidInput, match=r"^(p|sample_weight) "):
            fit(cut(bad, 500), sample_weight="w")


def test_probabilities_of_several_classes_sum_to_one() -> None:
    data = three_classes()
    data["p_a"] = data["p_a"].copy()
    data["p_a"][1001] += 0.25
    with pytest.raises(InvalidInput, match=r"Row 1 of p sums to 1.25, not to 1.*the batch that begins at row 1000"):
        fit(cut(data, 500), p=["p_a", "p_b", "p_c"], subpopulations=lowcal.Groups("city"))


def test_labels_that_are_missing_or_many_are_refused() -> None:
    labels = np.where(DATA["y"] == 1, "yes", "no").astype(object)
    labels[1034] = None
    with pytest.raises(InvalidInput, match=r"y is missing in row 1034"):
        measure(lambda: [pa.table({"y": pa.array(labels.tolist()), "p": DATA["p"]})], subpopulations=None)
    third = DATA["y"].copy()
    third[2000] = 2
    with pytest.raises(InvalidInput, match="y holds 3 classes"):
        fit(cut({**DATA, "y": third}, 500))
    texts = np.array(["no", "yes"])[DATA["y"]].astype(object)
    texts[2999] = "perhaps"
    for given in (pa.table({"y": texts.tolist(), "p": DATA["p"]}), {"y": texts, "p": DATA["p"]}):
        with pytest.raises(InvalidInput, match="y is 'perhaps' in row 2999, a class that p has no column for"):
            fit(lambda given=given: [given], classes=["no", "yes"], subpopulations=None)
    two = {**three_classes(), "y": np.array(["no", "yes"])[DATA["y"]]}
    with pytest.raises(InvalidInput, match=r"y holds 2 classes .* but p has 3 columns"):
        fit(cut(two, 500), p=["p_a", "p_b", "p_c"], subpopulations=None)


def test_one_class_is_refused_as_in_memory() -> None:
    for data, of in (
        ({**DATA, "y": np.zeros(N)}, {}),
        ({**DATA, "w": (DATA["y"] == 1).astype(float)}, {"sample_weight": "w"}),
        ({**three_classes(), "y": np.ones(N, dtype=int)}, {"p": ["p_a", "p_b", "p_c"], "subpopulations": None}),
    ):
        said = []
        for memory in (1, None):
            with pytest.raises(InvalidInput, match=r"y holds one class only.*classes=\[0, 1") as caught:
                fit(cut(data, 500), memory, **of)
            said.append(str(caught.value))
        assert said[0] == said[1]


def test_one_of_two_named_classes_can_be_measured_but_not_fitted() -> None:
    data, of = {**DATA, "y": np.zeros(N)}, {"classes": [0, 1]}
    agree(measure(cut(data, 500), **of), measure(data, None, **of))
    for memory in (1, None):
        with pytest.raises(InvalidInput, match=r"y holds one class only.*Give rows of others too"):
            fit(cut(data, 500), memory, **of)


def test_labels_that_count_from_one_warn_as_in_memory() -> None:
    data = {**three_classes(), "y": 1 + np.arange(N) % 2}
    for memory in (1, None):
        with pytest.warns(UserWarning, match="y holds 1 to 2 but no 0"):
            measure(cut(data, 500), memory, p=["p_a", "p_b", "p_c"], subpopulations=None)


def test_weights_that_are_zero_are_refused_and_huge_ones_are_not() -> None:
    with pytest.raises(InvalidInput, match="All sample weights are zero"):
        fit(cut({**DATA, "w": np.zeros(N)}, 500), sample_weight="w")
    huge = {**DATA, "w": np.where(DATA["flag"], 1e308, 5e307)}
    assert digest(fit(cut(huge, 500), sample_weight="w")) == digest(fit(huge, None, sample_weight="w"))


# --- classes and notions past memory ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [lowcal.Linear(), lowcal.Groups() + lowcal.Linear(), lowcal.Trees() + lowcal.Linear()]
)
@pytest.mark.parametrize("work", [fit, measure])
def test_classes_that_need_a_matrix_are_refused_past_memory(work: Any, given: Any) -> None:
    made: list[int] = []
    with pytest.raises(
        InvalidInput, match=r"do not fit into memory, and .* is learned from all of them at once. Use Gr"
    ):
        work(count_openings(made), subpopulations=given)
    assert set(made) == {1}


def test_what_is_no_class_is_refused() -> None:
    for work in (fit, measure):
        with pytest.raises(InvalidInput, match="subpopulations must be a class such as Groups"):
            work(cut(DATA, 500), subpopulations="city")


def test_what_looks_at_all_rows_at_once_is_refused_past_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowcal.rows.disk.MOST_LOCAL", N - 1)
    with pytest.raises(InvalidInput, match=r"looks at all 3,000 rows at once.*Use a degree, multiaccuracy or full"):
        fit(cut(DATA, 500), subpopulations=lowcal.Groups("city"), notion="smooth", solver="first", alpha=0.001)


def test_a_class_without_members_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no subpopulation with at least 5000 rows"):
        fit(cut(DATA, 500), subpopulations=lowcal.Groups("city", min_mass=5000, everyone=False))


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "arrow", "ipc"])
@pytest.mark.parametrize("share", [0.5, 0.97])
def test_a_file_that_was_cut_short_is_refused(form: str, share: float, tmp_path: Path) -> None:
    path = Path(write(tmp_path, form))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(
        InvalidInput, match=f"rows.{form} is damaged, cut short or not an? (Parquet|Arrow) (file|stream)"
    ):
        fit(str(path))


def test_a_folder_with_two_schemas_is_refused(tmp_path: Path) -> None:
    folder = source("folder", tmp_path)
    pq.write_table(arrow().drop_columns("age"), folder / "d.parquet")
    with pytest.raises(MissingColumn, match=r"d.parquet has no column 'age'"):
        fit(folder)
    text = [str(age) for age in DATA["age"]]
    pq.write_table(arrow().set_column(4, "age", pa.array(text)), folder / "d.parquet")
    with pytest.raises(InvalidInput, match=r"Column 'age' of .*a.parquet and 3 more files holds numbers at first, but"):
        fit(folder)


def test_paths_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "arrow")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "rows.csv").write_text("y,p\n1,.5\n")
    (tmp_path / "none.parquet").touch()
    for given, said in (
        (str(tmp_path / "row.arrow"), r"There is no file .*row.arrow. Did you mean 'rows.arrow'"),
        (tmp_path / "nothing", r"The folder .*nothing holds no file that ends in .parquet"),
        (f"{tmp_path}/*.pq", "No file matches .*pq"),
        (f"{tmp_path}/*.csv", r"rows.csv is neither a Parquet nor an Arrow file.*read_csv"),
        (tmp_path / "none.parquet", "is empty"),
        (f"file://{tmp_path}/nowhere.parquet", "nowhere.parquet is .*not a dataset"),
        ("s4://bucket/rows", "s4://bucket/rows is .*not a dataset"),
    ):
        with pytest.raises(InvalidInput, match=said):
            fit(given)


def test_files_need_pyarrow_and_dicts_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "arrow")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtra, match=r"'lowcal\[files\]'.*dicts of arrays"):
            fit(path)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "pyarrow")
    assert fit(cut(DATA, 500)).predictor.updates
