"""Rows of several kinds in every form that a source can have, for tests of rows that do not fit into memory."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import lowcal
from lowcal import persistence

N = 3000
#: The columns that subpopulations are made of.
COLUMNS = ["city", "age", "band", "flag"]
GROUPS = lowcal.Groups(COLUMNS)


def rows(n: int = N, seed: int = 0) -> dict[str, np.ndarray]:
    """Labels, predictions that are wrong in some groups, weights, and columns of several kinds."""
    rng = np.random.default_rng(seed)
    city, age = rng.choice(["Oslo", "Rome", "Bern", "Lima"], n), rng.normal(40.0, 12.0, n).round(2)
    band, flag = rng.integers(-2, 3, n).astype(np.int8), rng.random(n) < 0.3
    p = 1.0 / (1.0 + np.exp(-rng.normal(0.0, 1.5, n)))
    wrong = 0.25 * (city == "Rome") * (1 - p) - 0.3 * p * (band == 1) - 0.15 * p * (age > 45)
    y = (rng.random(n) < p + wrong).astype(np.int64)
    weight = rng.integers(0, 4, n) * rng.random(n)
    return {"y": y, "p": p, "w": weight, "city": city, "age": age, "band": band, "flag": flag}


DATA = rows()


def three_classes(n: int = N) -> dict[str, np.ndarray]:
    """Labels of three classes with a column of probabilities for each, and groups."""
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(3), n)
    y = np.array(["a", "b", "c"])[(rng.random((n, 1)) > np.cumsum(p**2 / (p**2).sum(1, keepdims=True), 1)).sum(1)]
    return {"y": y, **{f"p_{name}": p[:, k] for k, name in enumerate("abc")}, "city": DATA["city"][:n]}


def four_classes(n: int) -> dict[str, np.ndarray]:
    """Labels of four classes with a column of probabilities for each, and columns."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(4), n)
    y = (rng.random((n, 1)) > np.cumsum(p**2 / (p**2).sum(1, keepdims=True), 1)).sum(1)
    return {"y": y, **{f"p{k}": p[:, k] for k in range(4)}, **{k: v for k, v in rows(n).items() if k not in "ypw"}}


def arrow(data: dict[str, np.ndarray] = DATA) -> pa.Table:
    """Return columns as an Arrow table; text is a dictionary."""
    kinds = {name: pa.array(column.tolist()) if column.dtype.kind == "U" else column for name, column in data.items()}
    table = pa.table(kinds)
    if "city" not in data:
        return table
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
    """Write the rows into a file, in groups of rows or batches of a size, and return its path."""
    path, table = str(folder / f"rows.{form}"), arrow()
    if form == "parquet":
        pq.write_table(table, path, row_group_size=size)
        return path
    with (pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream)(path, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=size):
            writer.write(batch)
    return path


def write_folder(folder: Path) -> Path:
    """Write the rows into three Parquet files of a folder, one of them deeper; return the folder."""
    (folder / "rows" / "more").mkdir(parents=True)
    for k, name in enumerate(("a", "b", "more/c")):
        pq.write_table(arrow().slice(k * 1100, 1100), folder / "rows" / f"{name}.parquet", row_group_size=317)
    return folder / "rows"


BATCHES = ["dicts", "pandas", "polars", "tables", "record batches"]
FILES = ["parquet", "arrow", "ipc", "folder", "glob", "paths", "dataset", "address", "lazy"]
SOURCES = [*BATCHES, "method", "partial", *FILES]


class Store:
    """Has rows, by a method."""

    def read(self) -> Iterator[Any]:
        """Yield the rows."""
        return cut(DATA, 700)()


def source(kind: str, folder: Path, size: int = 211) -> Any:
    """Return the rows as a source of some kind."""
    if kind in ("parquet", "arrow", "ipc"):
        return write(folder, kind)
    if kind in ("folder", "glob", "paths"):
        inside = write_folder(folder)
        found = sorted(inside.glob("**/*.parquet"))
        return {"folder": inside, "glob": f"{inside}/**/*.parquet", "paths": found}[kind]
    made: dict[str, Callable[[], Any]] = {
        "dicts": lambda: cut(DATA, size),
        "pandas": lambda: cut(pd.DataFrame(DATA), size),
        "polars": lambda: cut(pl.DataFrame(DATA), size),
        "tables": lambda: cut(arrow(), size),
        "record batches": lambda: lambda: iter(arrow().to_batches(max_chunksize=size)),
        "method": lambda: Store().read,
        "partial": lambda: partial(iter, [DATA]),
        "dataset": lambda: ds.dataset(write(folder, "parquet")),
        "address": lambda: f"file://{write(folder, 'parquet')}",
        "lazy": lambda: pl.scan_parquet(write(folder, "parquet")),
    }
    return made[kind]()


def digest(fit: lowcal.Fit) -> str:
    """Return the sha256 of a fit's predictor."""
    return hashlib.sha256(json.dumps(fit.predictor.to_dict(), sort_keys=True, default=str).encode()).hexdigest()


def saved(found: lowcal.Fit, folder: Path) -> str:
    """Return the sha256 of a fit's predictor as it is saved."""
    path = folder / "model.json"
    persistence.save(found.predictor, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fit(data: Any, memory: int | None = 1, p: Any = "p", **options: Any) -> lowcal.Fit:
    """Fit, on disk unless memory is None."""
    return lowcal.multicalibrate("y", p, data, memory=memory, **{"subpopulations": GROUPS, **options})


def measure(data: Any, memory: int | None = 1, p: Any = "p", **options: Any) -> lowcal.Measurement:
    """Measure, on disk unless memory is None."""
    return lowcal.measure("y", p, data, memory=memory, **{"subpopulations": GROUPS, **options})


def agree(far: lowcal.Measurement, near: lowcal.Measurement) -> None:
    """Assert that two measurements of the same rows are the same to the last bit."""
    assert far.names == near.names
    assert np.array_equal(far.violation, near.violation)
    assert np.array_equal(far.mass, near.mass)


def until(holds: Callable[[], bool]) -> bool:
    """Return whether something holds within a few seconds."""
    return any(holds() or time.sleep(0.05) for _ in range(100))
