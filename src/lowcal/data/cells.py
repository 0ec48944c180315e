"""Cells: the rows that agree in some columns, in a bin of p and in y, counted; a small table stands for a large one.

Within a bin, p becomes its mean over both outcomes: were it that of each outcome, residuals would depend on y twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowcal.data.batches import is_source, open_batches, require_columns, require_pyarrow
from lowcal.data.errors import InvalidInput, repeated
from lowcal.data.inputs import check_whole

#: The column of counts.
FREQUENCY = "frequency"
#: Columns on the way: the bin of p, and the sum of p.
BIN, TOTAL = "lowcal_bin", "lowcal_total"


def cells(table: Any, columns: str | Sequence[str], bins: int = 256, *, y: str = "y", p: str = "p") -> Any:
    """Return a small table that stands for all rows: one row for each cell and outcome, with a count, `frequency`.

    A cell holds the rows that agree in `columns` and lie in the same of `bins` intervals of p; p becomes its mean
    there. Fit and audit the cells with `frequency_weight="frequency"`, for groups of these columns. Two classes, or
    numbers in [0, 1]; for `sample_weight`, list its column among `columns`.

    A mean for p costs little. Violations of multiaccuracy do not change. Those of degree k change by at most
    (k - 1) / (2 bins), and those of smooth weights by 1 / (2 bins), whatever the labels; in expectation by this times
    the largest |E[y | x] - p|: for degree 2, 256 bins and errors of 0.05 by 0.0001. Those of full do not change if each
    of its cells is a whole number of bins, as with bins=250 for "full-0.1".

    Parameters
    ----------
    table : a pandas or polars frame, an Arrow table, a polars LazyFrame or a DuckDB relation; a table of the same kind
        is returned, lazy if it is. Or files, an Arrow dataset or a function as in `multicalibrate`, which are read in
        one pass; an Arrow table is returned. `cells_sql` is the same as a statement for a warehouse.
    columns : what the subpopulations will be functions of. Few values each: cells of different values are not joined.
    bins : the number of intervals of p; where it is exactly 1, it is a cell of its own.
    y, p : the names of the columns of outcomes and of predictions.

    Examples
    --------
    >>> import polars as pl
    >>> rows = pl.DataFrame({"g": list("aaab"), "p": [0.25, 0.375, 0.75, 0.25], "y": [0, 1, 1, 0]})
    >>> cells(rows, "g", bins=2).rows()
    [('a', 0.3125, 0, 1), ('a', 0.3125, 1, 1), ('a', 0.75, 1, 1), ('b', 0.25, 0, 1)]
    """
    import narwhals.stable.v2 as nw

    names = _names(columns, bins, y, p)

    def counted(frame: Any) -> Any:
        """Return the sum of p and the number of rows of each cell and outcome."""
        number = nw.col(p).cast(nw.Float64)  # sums in single precision would be off
        placed = frame.select(*names, y, number.alias(TOTAL), (number * bins).floor().alias(BIN))
        return placed.group_by(*names, y, BIN).agg(nw.col(TOTAL).sum(), nw.len().alias(FREQUENCY))

    frame: Any = nw.from_native(table, pass_through=True)
    if frame is not table:
        require_columns("The table", frame.collect_schema().names(), [*names, y, p])
        summed = counted(frame)
    elif is_source(table):
        require_pyarrow("cells of files")
        import pyarrow as pa

        batches = open_batches(table)
        parts = [counted(nw.from_native(pa.table(dict(batch)))) for batch in batches.read((*names, y, p))]
        if not parts:
            raise batches.nothing()
        sums = nw.col(TOTAL).sum(), nw.col(FREQUENCY).sum()
        summed = nw.concat(parts).group_by(*names, y, BIN).agg(*sums)
    else:
        raise InvalidInput(
            f"cells can't read {type(table).__name__}; give a data frame, an Arrow table, a DuckDB relation or files."
        )
    total, count = (nw.col(name).sum().over(*names, BIN) for name in (TOTAL, FREQUENCY))
    found = summed.select(*names, (total / count).alias(p), y, nw.col(FREQUENCY).cast(nw.Int64))
    # the order of rows decides which of them a fit holds out
    return nw.maybe_reset_index(found.sort(*names, p, y)).to_native()


def cells_sql(
    table: str, columns: str | Sequence[str], bins: int = 256, *, y: str = "y", p: str = "p", quote: str = '"'
) -> str:
    """Return the statement that makes `cells` in a database or warehouse: one GROUP BY over all rows.

    `table` is what stands after FROM, written as it is: a name, a call such as read_parquet('*.parquet'), or a query in
    parentheses. Names of columns are put in quotes, in backticks (quote="`") for BigQuery, Databricks, MySQL and Spark.

    >>> print(cells_sql("scores", ["sex"]))
    SELECT "sex",
      SUM("lowcal_total") OVER (PARTITION BY "sex", "lowcal_bin")
        / SUM("frequency") OVER (PARTITION BY "sex", "lowcal_bin") AS "p",
      "y", "frequency"
    FROM (
      SELECT "sex", "y", FLOOR("p" * 256) AS "lowcal_bin", SUM(1.0 * "p") AS "lowcal_total", COUNT(*) AS "frequency"
      FROM scores
      GROUP BY "sex", "y", FLOOR("p" * 256)
    ) cells
    ORDER BY "sex", "p", "y"
    """
    names = _names(columns, bins, y, p)

    def listed(*more: str) -> str:
        return ", ".join(quote + name.replace(quote, 2 * quote) + quote for name in more)

    bin_of, within = f"FLOOR({listed(p)} * {bins})", f"OVER (PARTITION BY {listed(*names, BIN)})"
    first = f"{listed(*names)},\n  " if names else ""
    return (
        f"SELECT {first}SUM({listed(TOTAL)}) {within}\n"
        f"    / SUM({listed(FREQUENCY)}) {within} AS {listed(p)},\n"
        f"  {listed(y, FREQUENCY)}\n"
        "FROM (\n"
        f"  SELECT {listed(*names, y)}, {bin_of} AS {listed(BIN)}, SUM(1.0 * {listed(p)}) AS {listed(TOTAL)}, "
        f"COUNT(*) AS {listed(FREQUENCY)}\n"
        f"  FROM {table}\n"
        f"  GROUP BY {listed(*names, y)}, {bin_of}\n"
        ") cells\n"
        f"ORDER BY {listed(*names, p, y)}"
    )


def _names(columns: str | Sequence[str], bins: int, y: str, p: str) -> list[str]:
    """Return the columns of cells, checked."""
    check_whole("bins", bins, 1)
    if not isinstance(y, str) or not isinstance(p, str):
        raise InvalidInput(
            f"y and p are the names of one column each, but {y!r} and {p!r} were given: cells have two classes."
        )
    names = [columns] if isinstance(columns, str) else list(columns)
    twice = repeated([*names, y, p, FREQUENCY, BIN, TOTAL])
    if twice:
        raise InvalidInput(
            f"The column {twice[0]!r} has two meanings: columns, y and p must differ, and {FREQUENCY!r}, {BIN!r} and "
            f"{TOTAL!r} are names of cells. Rename it, or leave it out of columns."
        )
    return names
