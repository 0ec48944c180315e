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
#: Ten regions, six ages and eight products; one region and one product are off, the latter more where p is high.
ROWS = """
CREATE TABLE people AS
SELECT region, age, product, p, CAST(u < p + 0.04 * CAST(region = 3 AS INT) * (1 - p)
    - 0.06 * CAST(product = 5 AS INT) * p * p AS INT) AS y
FROM (
  SELECT hash(i) % 10 AS region, hash(i + 1000000007) % 6 AS age, hash(i + 2000000011) % 8 AS product,
    pow((hash(i + 3000000019) % 1000000007) / 1000000007.0, 1.5) AS p,
    (hash(i + 4000000007) % 1000000007) / 1000000007.0 AS u
  FROM range({n}) AS numbers(i)
)
"""


class Agreement(NamedTuple):
    """How far cells are from all rows: violations, before and after a fit, and shares of errors and interval widths."""

    n_cells: int
    violation: float
    error: float
    width: float
    fitted: float
    seconds: dict[str, float]


class Clock:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Any) -> Any:
        """Return what some work returns, and remember how long it took."""
        began = perf_counter()
        found = work()
        self.seconds[name] = perf_counter() - began
        return found


def compare(n: int, bins: int = 256, draws: int = 99) -> Agreement:
    """Return how well the cells of n rows agree with them."""
    import duckdb

    clock, base = Clock(), duckdb.connect()
    clock("make rows", lambda: base.execute(ROWS.format(n=n)))
    few = clock("make cells", lambda: base.sql(cells_sql("people", COLUMNS, bins)).to_arrow_table())
    every = base.sql(f"SELECT {', '.join(COLUMNS)}, p, y FROM people").to_arrow_table()
    base.close()
    cells, rows = _as_text(few), _as_text(every)
    groups = Groups(list(COLUMNS))

    def both(function: Any, **options: Any) -> tuple[Any, Any]:
        ask, name = partial(function, "y", "p", subpopulations=groups, **options), function.__name__
        few = clock(f"{name} cells", lambda: ask(cells, frequency_weight="frequency"))
        return few, clock(f"{name} rows", lambda: ask(rows))

    measured, reports = both(measure), both(audit, null_draws=draws, random_state=0)
    fits = both(multicalibrate, alpha=1e-4)
    return Agreement(
        len(few),
        float(np.abs(measured[0].violation - measured[1].violation).max()),
        _largest_share(reports, lambda one: one.standard_error),
        _largest_share(reports, lambda one: one.upper - one.lower),
        _fitted(fits, rows, groups),
        clock.seconds,
    )


def _as_text(table: Any) -> Any:
    """Return a table whose columns are categories, as numbers would be cut into few bins."""
    import pyarrow as pa

    for name in COLUMNS:
        column = table[name].cast(pa.string()).combine_chunks().dictionary_encode()
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _largest_share(reports: Sequence[Any], figure: Callable[[Any], float]) -> float:
    """Return the largest difference of a figure between two reports, as a share of it."""
    own, other = ({one.subpopulation: figure(one) for one in report.findings} for report in reports)
    return max(abs(own[name] / value - 1.0) for name, value in other.items())


def _fitted(fits: Sequence[Any], table: Any, groups: Groups) -> float:
    """Return how far what is fitted to cells is from what is fitted to all rows, in violations of all rows."""
    violations = []
    for fit in fits:
        q = np.asarray(fit.predictor("p", table))
        violations.append(
            measure(table["y"].to_numpy(), q, table.select(list(COLUMNS)), subpopulations=groups).violation
        )
    return float(np.abs(violations[0] - violations[1]).max())


def main() -> None:
    """Print how well cells agree with all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--bins", type=int, default=256)
    parser.add_argument("--draws", type=int, default=999)
    asked = parser.parse_args()
    found = compare(asked.rows, asked.bins, asked.draws)
    print(f"{found.n_cells:,} cells of {asked.rows:,} rows, {asked.bins} bins")
    print(f"violations differ by {found.violation:.1e}, those after a fit by {found.fitted:.1e}")
    print(
        f"standard errors differ by {found.error:.4%}, widths of intervals by {found.width:.2%} ({asked.draws} draws)"
    )
    for name, seconds in found.seconds.items():
        print(f"  {name}: {seconds:.2f} s")


if __name__ == "__main__":
    main()
