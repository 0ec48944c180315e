"""From columns to groups: what `Groups` costs on columns of every kind, beside pandas' own way to the same groups.

Run: python benchmarks/columns.py [--rows 1000000]

pandas cuts numbers at quintiles with qcut, keeps few numbers and truth values as they are with factorize, and reads the
codes of categories; neither counts the rows of each group nor looks for small ones, which ours does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

import numpy as np
import pandas as pd
from common import ratios, table, three, timed

import lowcal
import lowcal.data.frames

REPEATS = 5
COLUMNS = 5


def frames(n: int) -> dict[str, tuple[pd.DataFrame, Callable[[pd.Series], object]]]:
    """Return frames of five columns of a kind, and what pandas does with one of them."""
    rng = np.random.default_rng(0)
    words = np.array([f"level {k}" for k in range(10)], dtype=object)

    def frame(make: Callable[[], object]) -> pd.DataFrame:
        return pd.DataFrame({f"x{j}": make() for j in range(COLUMNS)})

    def quintiles(column: pd.Series) -> object:
        return pd.qcut(column, 5, labels=False, duplicates="drop")

    return {
        "float64, all distinct": (frame(lambda: rng.normal(size=n)), quintiles),
        "float32, all distinct": (frame(lambda: rng.normal(size=n).astype(np.float32)), quintiles),
        "whole numbers 18 to 89 as float64": (frame(lambda: rng.integers(18, 90, n).astype(float)), quintiles),
        "whole numbers 18 to 89 as int64": (frame(lambda: rng.integers(18, 90, n)), quintiles),
        "whole numbers 0 to 4 as uint8": (frame(lambda: rng.integers(0, 5, n).astype(np.uint8)), pd.factorize),
        "truth values": (frame(lambda: rng.random(n) < 0.5), pd.factorize),
        "categories, ten": (frame(lambda: pd.Categorical(rng.choice(words, n))), lambda c: c.cat.codes),
        "text, ten values": (frame(lambda: rng.choice(words, n)), pd.factorize),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    n = parser.parse_args().rows
    y = np.arange(n) % 2
    print(f"{n:,} rows, five columns of a kind; CPU milliseconds a column, medians of {REPEATS} turns.\n")
    lines = []
    for kind, (X, by_pandas) in frames(n).items():
        start = np.full(n, 0.5)
        predictor = lowcal.multicalibrate(y, start, X, subpopulations=lowcal.Groups(), max_updates=1).predictor
        works: dict[str, Callable[[], object]] = {
            "ours": lambda X=X: lowcal.Groups().prepare(X),
            "pandas": lambda X=X, do=by_pandas: [do(X[name]) for name in X],
            "encode": lambda X=X, encode=predictor.encoder: encode(lowcal.data.frames.Table.of(X)),
        }
        clocks: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(REPEATS + 1):
            for name, work in works.items():
                clocks[name].append(timed(work)[1].cpu * 1e3 / COLUMNS)
        middle = {name: median(found[1:]) for name, found in clocks.items()}
        ratio = [three(x) for x in ratios(clocks["pandas"][1:], clocks["ours"][1:])]
        shown = f"{ratio[0]}x ({ratio[1]} to {ratio[2]})"
        lines.append([kind, three(middle["ours"]), three(middle["encode"]), three(middle["pandas"]), shown])
    print(table(["column", "to groups", "at prediction", "pandas", "pandas / to groups"], lines))


if __name__ == "__main__":
    main()
