"""Cells by SQL against all rows: DuckDB makes the rows and their cells; both are measured, audited and fitted.

`python benchmarks/cells.py --rows 20000000`: violations should agree to 1e-4 and the widths of intervals to 2 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from lowcal import Groups, audit, cells_sql, measure, multicalibrate

COLUMNS = ("region", "age", "product")
#: Ten regions, six ages and eight products; p is too high in one region, and too low for one product.
#: Residuals are no larger than p allows: then the draws of the exact test also make the intervals, as many as asked.
ROWS = """
CREATE TABLE people AS
SELECT region, age, product, p, CAST(u < p - 0.08 * CAST(region = 3 AS INT) * p * (1 - p)
    + 0.1 * CAST(product = 5 AS INT) * p * p * (1 - p) AS INT) AS y
FROM (
  SELECT hash(i) % 10 AS region, hash(i + 1000000007) % 6 AS age, hash(i + 2000000011) % 8 AS product,
    pow((hash(i + 3000000019) % 1000000007) / 1000000007.0, 1.5) AS p,
    (hash(i + 4000000007) % 1000000007) / 1000000007.0 AS u
  FROM range({n}) AS numbers(i)
)
"""


class Agreement(NamedTuple):
    """How far cells are from all rows: violations before and after a fit, and widths of intervals as shares.

    There is no chance in the widths of "bernstein"; in those of "bootstrap" there is that of the draws.
    """

    n_cells: int
    violation: float
    fitted: float
    bernstein: float
    bootstrap: float


def clock(name: str, work: Callable[[], Any]) -> Any:
    """Return what some work returns, and print how long it took."""
    began = perf_counter()
    found = work()
    print(f"  {name}: {perf_counter() - began:.2f} s", flush=True)
    return found


def compare(n: int, bins: int = 256, draws: int = 99) -> Agreement:
    """Return how well the cells of n rows agree with them."""
    import duckdb

    base = duckdb.connect()
    clock("make rows", lambda: base.execute(ROWS.format(n=n)))
    few = clock("make cells", lambda: base.sql(cells_sql("people", COLUMNS, bins)).to_arrow_table())
    every = base.sql(f"SELECT {', '.join(COLUMNS)}, p, y FROM people").to_arrow_table()
    base.close()
    cells, rows, groups = _as_text(few), _as_text(every), Groups(list(COLUMNS))

    def both(function: Any, **options: Any) -> tuple[Any, Any]:
        ask, name = partial(function, "y", "p", subpopulations=groups, **options), function.__name__
        own = clock(f"{name} cells", lambda: ask(cells, frequency_weight="frequency"))
        return own, clock(f"{name} rows", lambda: ask(rows))

    measured = both(measure)
    return Agreement(
        len(few),
        float(np.abs(measured[0].violation - measured[1].violation).max()),
        _fitted(both(multicalibrate, alpha=1e-4), rows, groups),
        _widths(both(audit, method="bernstein", random_state=0)),
        _widths(both(audit, null_draws=draws, random_state=0)),
    )


def _as_text(table: Any) -> Any:
    """Return a table whose columns are categories; numbers would be cut into five bins."""
    import pyarrow as pa

    for name in COLUMNS:
        column = table[name].cast(pa.string()).combine_chunks().dictionary_encode()
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _widths(reports: Sequence[Any]) -> float:
    """Return the largest difference of the widths of intervals, as a share of them."""
    own, other = ({one.subpopulation: one.upper - one.lower for one in report.findings} for report in reports)
    return max(abs(own[name] / width - 1.0) for name, width in other.items())


def _fitted(fits: Sequence[Any], table: Any, groups: Groups) -> float:
    """Return how far what is fitted to cells is from what is fitted to all rows, in violations of all rows."""
    violations = []
    for fit in fits:
        q = np.asarray(fit.predictor("p", table))
        violations.append(measure(table["y"].to_numpy(), q, table.select(COLUMNS), subpopulations=groups).violation)
    return float(np.abs(violations[0] - violations[1]).max())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how well cells agree with all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--bins", type=int, default=256)
    parser.add_argument("--draws", type=int, default=2999)
    asked = parser.parse_args(arguments)
    found = compare(asked.rows, asked.bins, asked.draws)
    print(f"{found.n_cells:,} cells of {asked.rows:,} rows, {asked.bins} bins")
    print(f"violations differ by {found.violation:.1e}, those after a fit by {found.fitted:.1e}")
    print(f"intervals differ in width by {found.bernstein:.4%} (bernstein), {found.bootstrap:.2%} (bootstrap)")


if __name__ == "__main__":
    main()
