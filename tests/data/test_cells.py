"""Cells: the same table from every kind of rows and from SQL, and close to all rows."""

from __future__ import annotations

import sqlite3

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lowcal import Groups, InvalidInput, MissingColumn, audit, cells, cells_sql, measure
from lowcal.datasets import make_miscalibrated


def make(n=3000, seed=0):
    """Return rows with missing values, predictions of 0 and 1, and names that need quotes."""
    rng = np.random.default_rng(seed)
    p = np.where(rng.random(n) < 0.02, rng.integers(0, 2, n), rng.random(n))
    return {
        'the "g"': rng.choice(["a", "b", "it's", None], n).tolist(),
        "h": rng.integers(0, 3, n),
        "p": p,
        "y": (rng.random(n) < p) * 1,
    }


def rows_of(table):
    """Return a table as a sorted list of rows."""
    columns = [table[name].to_pylist() if isinstance(table, pa.Table) else list(table[name]) for name in ROW]
    rows = [
        (str(None if g is None or g != g else g), int(h), round(p, 12), int(y), int(k))
        for g, h, p, y, k in zip(*columns, strict=True)
    ]
    return sorted(rows)


COLUMNS, ROW = ['the "g"', "h"], ['the "g"', "h", "p", "y", "frequency"]


def by_hand(rows, bins):
    table = pd.DataFrame(rows).assign(bin=np.floor(rows["p"] * bins))
    keys = [*COLUMNS, "bin"]
    table["p"] = table.groupby(keys, dropna=False)["p"].transform("mean")
    counted = table.groupby([*keys, "p", "y"], dropna=False).size().rename("frequency").reset_index()
    return rows_of(counted[ROW])


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_frames_become_cells_of_their_kind(kind):
    rows = make()
    found = cells(kind(rows), COLUMNS, 16)
    assert type(found) is type(kind(rows))
    assert rows_of(found) == by_hand(rows, 16)


def test_lazy_frames_stay_lazy():
    found = cells(pl.LazyFrame(make()), COLUMNS, 16)
    assert isinstance(found, pl.LazyFrame)
    assert rows_of(found.collect()) == by_hand(make(), 16)


def test_files_and_functions_are_read_in_a_pass(tmp_path):
    rows = pl.DataFrame(make())
    for k in range(3):
        rows[k * 1000 : (k + 1) * 1000].write_parquet(tmp_path / f"{k}.parquet")
    assert rows_of(cells(tmp_path, COLUMNS, 16)) == by_hand(make(), 16)
    assert rows_of(cells(lambda: [rows[:1200], rows[1200:]], COLUMNS, 16)) == by_hand(make(), 16)


def test_single_precision_is_summed_in_double():
    p = np.full(2_000_001, 0.1, dtype=np.float32)
    (found,) = cells(pd.DataFrame({"p": p, "y": 0, "g": "a"}), "g")["p"]
    assert found == pytest.approx(float(np.float32(0.1)), abs=1e-12)


def test_sql_makes_the_same_cells_in_duckdb():
    duckdb = pytest.importorskip("duckdb")
    people = pa.table(make())
    base = duckdb.connect()
    base.register("people", people)
    found = base.sql(cells_sql("people", COLUMNS, 16)).to_arrow_table()
    assert rows_of(found) == by_hand(make(), 16)
    assert rows_of(cells(base.sql("SELECT * FROM people"), COLUMNS, 16).to_arrow_table()) == by_hand(make(), 16)


def test_sql_makes_the_same_cells_in_sqlite():
    base = sqlite3.connect(":memory:")
    base.create_function("FLOOR", 1, np.floor, deterministic=True)  # not every build has it
    pd.DataFrame(make()).to_sql("people", base, index=False)
    found = pd.DataFrame(base.execute(cells_sql("people", COLUMNS, 16)).fetchall(), columns=ROW)
    assert rows_of(found) == by_hand(make(), 16)
    base.close()


def test_names_are_quoted_in_any_dialect():
    text = cells_sql("t", ["a`b", "c"], y="label", p="score", quote="`")
    assert "`a``b`, `c`" in text
    assert 'FLOOR("score" * 8)' in cells_sql("t", [], 8, p="score")
    assert cells_sql("t", []).startswith('SELECT SUM("lowcal_total") OVER (PARTITION BY "lowcal_bin")')


@pytest.mark.parametrize("bins", [10, 40])
@pytest.mark.parametrize(
    ("notion", "slope"),
    [("multiaccuracy", 0.0), ("degree-2", 1.0), ("degree-3", 2.0), ("smooth", 1.0), ("full-0.1", 0.0)],
)
@pytest.mark.parametrize("seed", range(4))
def test_violations_change_by_no_more_than_the_bound(notion, slope, bins, seed):
    """Labels that depend on p within its bin are the worst case; those of a good model change little."""
    rng, n = np.random.default_rng(seed), 2000
    p = rng.random(n)
    within = np.floor(p * 2 * bins) % 2
    y = within if seed % 2 else (rng.random(n) < p) * 1.0
    rows = pd.DataFrame({"g": rng.choice(["a", "b"], n), "p": p, "y": y.astype(int)})
    ask = {"subpopulations": Groups("g"), "notion": notion}
    few = measure("y", "p", cells(rows, "g", bins), frequency_weight="frequency", **ask)
    every = measure("y", "p", rows, **ask)
    assert few.names == every.names
    assert np.abs(few.violation - every.violation).max() <= slope / (2 * bins) + 1e-9


def test_cells_are_audited_as_all_rows():
    data = make_miscalibrated(200_000, random_state=0)
    rows = pl.DataFrame({"y": data.y, "p": data.p, **{name: data.X[name] for name in ("g0", "g1", "g2")}})
    few, ask = cells(rows, ["g0", "g1", "g2"]), {"subpopulations": Groups(), "random_state": 0, "method": "bernstein"}
    assert len(few) < len(rows) / 4
    reports = audit("y", "p", few, frequency_weight="frequency", **ask), audit("y", "p", rows, **ask)
    own, other = ({one.subpopulation: one for one in report.findings} for report in reports)
    assert own.keys() == other.keys()
    assert reports[0].n_rows == reports[1].n_rows == 200_000
    for name, one in own.items():
        assert one.violation == pytest.approx(other[name].violation, abs=1e-4)
        assert one.standard_error == pytest.approx(other[name].standard_error, rel=1e-3)
        assert one.n_effective == pytest.approx(other[name].n_effective, rel=1e-9)
        assert one.upper - one.lower == pytest.approx(other[name].upper - other[name].lower, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["h", "h"]}, "The column 'h' has two meanings"),
        ({"columns": ["h", "y"]}, "The column 'y' has two meanings"),
        ({"columns": ["frequency"]}, "The column 'frequency' has two meanings"),
        ({"columns": "h", "bins": 0}, "bins must be a whole number of at least 1"),
        ({"columns": "h", "p": ["p0", "p1", "p2"]}, "cells have two classes"),
    ],
)
def test_what_cells_cannot_be_is_said(options, message):
    with pytest.raises(InvalidInput, match=message):
        cells(pd.DataFrame(make(10)), **options)
    with pytest.raises(InvalidInput, match=message):
        cells_sql("people", **options)


def test_tables_that_cannot_be_read_are_refused():
    with pytest.raises(InvalidInput, match="cells can't read dict"):
        cells(make(10), "h")
    with pytest.raises(MissingColumn, match="'age'"):
        cells(pd.DataFrame(make(10)), "age")
