"""Few rows: `MulticalibratedClassifier(cv=5)` beside scikit-learn's `CalibratedClassifierCV` and a single split.

Seven data sets are cut to 700 rows, which must do for training and for calibration, as in German credit. Three base
models: logistic regression, gradient boosting and a random forest on all columns. Up to 5,000 other rows judge: log
loss, as means over seeds. The last column is the mean of the paired differences to CalibratedClassifierCV(sigmoid,
cv=5), with its standard error over the seeds; a line passes if the mean is at most one standard error above 0.

Run: python benchmarks/crossfit.py [--data FOLDER] [--sets adult,student_dropout] [--bases forest] [--seeds 8]

Sets that are absent are left out; Adult is shipped with lowcal.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import Array
from common import table as markdown
from harm import DATA, as_numbers
from recalibrate import read, scores_log_loss
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import lowcal

#: Rows that are given, and rows that judge at most.
ROWS, JUDGING = 700, 5_000
NAMES = (
    "adult",
    "bank_marketing",
    "credit_default",
    "acs_employment_ma",
    "flights_3m",
    "student_dropout",
    "diabetes130",
)
BASES: dict[str, Callable[[int], Any]] = {
    "logistic": lambda _: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "boosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "forest": lambda seed: RandomForestClassifier(100, min_samples_leaf=5, random_state=seed),
}
RIVAL = "sigmoid, cv=5"
RIVALS: dict[str, Callable[[Any, int], Any]] = {
    "untouched": lambda base, _: base,
    RIVAL: lambda base, _: CalibratedClassifierCV(base, method="sigmoid", cv=5),
    "lowcal, split": lambda base, seed: lowcal.MulticalibratedClassifier(base, random_state=seed),
    "lowcal, cv=5": lambda base, seed: lowcal.MulticalibratedClassifier(base, cv=5, random_state=seed),
}


def numbers(X: pd.DataFrame) -> Array:
    """Return all columns as numbers for the base model: lowcal is given the same table as its rivals, in full."""
    return np.nan_to_num(np.column_stack([codes(X[name]) for name in X.columns]), nan=-1.0)


def codes(column: pd.Series) -> Array:
    return as_numbers(column) if not isinstance(column.dtype, pd.CategoricalDtype) else column.cat.codes.to_numpy(float)


def losses(data: Path, name: str, base: str, seed: int) -> dict[str, float]:
    """Return the log loss of every rival with one seed."""
    X, y = read(data, name)
    text = [c for c in X if not pd.api.types.is_numeric_dtype(X[c])]
    X = X.assign(**{c: pd.Categorical(X[c].astype(str)) for c in text})  # the same codes in every part
    rows = np.random.default_rng(seed).permutation(len(y))
    few, rest = rows[:ROWS], rows[ROWS : ROWS + JUDGING]
    found = {}
    for rival, make in RIVALS.items():
        model = make(make_pipeline(FunctionTransformer(numbers), BASES[base](seed)), seed).fit(X.iloc[few], y[few])
        p = model.predict_proba(X.iloc[rest])
        wide = np.zeros((len(rest), int(y.max()) + 1))
        wide[:, model.classes_] = p
        found[rival] = scores_log_loss(y[rest], wide)
    return found


def row(name: str, base: str, each: pd.DataFrame) -> list[str]:
    change = each["lowcal, cv=5"] - each[RIVAL]
    error = change.std() / len(change) ** 0.5
    verdict = "" if change.mean() <= error else " (misses)"
    means = [f"{mean:.4f}" for mean in each.mean()]
    return [name, base, *means, f"{change.mean():+.4f} ± {error:.4f}{verdict}"]


def main(arguments: list[str] | None = None) -> None:
    """Print a table with a line for every data set and base model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with the data sets as Parquet files")
    parser.add_argument("--sets", default=",".join(NAMES))
    parser.add_argument("--bases", default=",".join(BASES))
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args(arguments)
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.sets.split(","):
            if name not in ("adult",) and not (options.data / f"{name}.parquet").exists():
                print(f"{name} is not in {options.data} and is left out.")
                continue
            for base in options.bases.split(","):
                each = pd.DataFrame([losses(options.data, name, base, seed) for seed in range(options.seeds)])
                rows.append(row(name, base, each))
                print(" | ".join(rows[-1]), flush=True)
    print(markdown(["set", "base model", *RIVALS, "lowcal, cv=5, less sigmoid, cv=5"], rows))


if __name__ == "__main__":
    main()
