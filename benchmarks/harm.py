"""Harm: does recalibration with the default settings ever make a model worse?

Seven data sets and two base models for each: gradient boosting on all columns ("good"), logistic regression on a few
("weak"). A third of the rows trains the base model, `lowcal.multicalibrate` recalibrates it on rows of the second third
with every argument at its default except the class and the notion, and the last third judges: log loss, Brier score and
AUC against those of the untouched model. A cell is a data set, a base model, a number of calibration rows, a class and
a notion; its figures are means over seeds. A cell is harmed if the mean change in log loss exceeds both two standard
errors over the seeds and .001; its AUC is harmed if the mean AUC falls by more than .003.

Run: python benchmarks/harm.py --out FILE [--data FOLDER] [--sets adult,letter] [--bases good] [--rows 300,third]
         [--classes groups-5,trees] [--notions degree-2] [--seeds 0,1] [--workers 2] [--cache FOLDER]
     python benchmarks/harm.py --summary FILE     prints the summary of a file of results
     python benchmarks/harm.py --quick            a few fits on the Adult data that lowcal ships

Results are appended to FILE, one JSON object a line, and fits that FILE already holds are skipped: an interrupted run
continues, and slices add up. Use a new file for every version of the code. Adult is shipped with lowcal; FOLDER holds
the other data sets as Parquet files, and those that are absent are skipped. All cells take hours.
"""

from __future__ import annotations

import os

if __name__ == "__main__":  # before numpy is imported; worker processes inherit it
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

import argparse
import json
import multiprocessing
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from common import Array, three
from common import table as markdown

import lowcal

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
#: Rows of a data set that are used at most, drawn by the seed, and rows of the training and the test third.
MOST_ROWS, MOST_TRAINING, MOST_TEST = 60_000, 20_000, 20_000
#: Log loss keeps probabilities this far from 0 and 1.
CLIP = 1e-12
#: Smallest mean increase of log loss and smallest mean decrease of AUC that count as harm.
LOG_LOSS_HARM, AUC_HARM = 0.001, 0.003


@dataclass(frozen=True)
class Set:
    """One data set: its label, the columns that define groups, and those of the weak base model."""

    label: str
    groups: tuple[str, ...]
    weak: tuple[str, ...]
    #: Not features: identifiers, published splits, the scores of another model.
    drop: tuple[str, ...] = ()
    #: Whole numbers that are codes of categories.
    coded: tuple[str, ...] = ()


SETS = {
    "adult": Set(
        "income",
        ("sex", "race", "age", "marital_status", "education", "occupation", "workclass", "hours_per_week"),
        ("age", "education_num", "hours_per_week", "capital_gain"),
    ),
    "bank_marketing": Set(
        "y",
        ("marital", "education", "age", "job", "housing", "loan", "contact", "balance"),
        ("age", "balance", "campaign", "previous"),
    ),
    "credit_default": Set(
        "default",
        ("SEX", "EDUCATION", "MARRIAGE", "AGE", "LIMIT_BAL", "PAY_0", "PAY_2", "BILL_AMT1"),
        ("LIMIT_BAL", "PAY_0", "BILL_AMT1", "PAY_AMT1"),
        coded=("SEX", "EDUCATION", "MARRIAGE"),
    ),
    "acs_employment_ma": Set(
        "employed",
        ("SEX", "RAC1P", "AGEP", "DIS", "MAR", "SCHL", "CIT", "MIL"),
        ("AGEP", "SCHL", "SEX"),
        drop=("id", "prediction", "predicted_probability", "part"),
    ),
    "diabetes130": Set(
        "readmitted",
        ("race", "gender", "age", "admission_type_id", "insulin", "A1Cresult", "time_in_hospital", "number_inpatient"),
        ("time_in_hospital", "num_medications", "number_inpatient", "number_diagnoses"),
        drop=("encounter_id", "patient_nbr"),
        coded=("admission_type_id", "discharge_disposition_id", "admission_source_id"),
    ),
    "student_dropout": Set(
        "Target",
        (
            "Gender",
            "Scholarship holder",
            "Age at enrollment",
            "Marital status",
            "Displaced",
            "Debtor",
            "Course",
            "Daytime/evening attendance",
        ),
        ("Age at enrollment", "Admission grade", "Gender", "Scholarship holder"),
        coded=("Marital status", "Course"),
    ),
    "letter": Set(
        "lettr",
        ("x.box", "y.box", "width", "high", "onpix", "xybar", "x.ege", "y.ege"),
        ("x.bar", "y.bar", "x2bar", "y2bar"),
    ),
}
BASES = ("good", "weak")
ROWS = ("300", "1000", "5000", "third")
NOTIONS = ("degree-2", "degree-3", "smooth", "full-0.1")
#: What each class is called in the tables, the number of group columns it is given, and how it is made of them.
CLASSES: dict[str, tuple[str, int, Callable[[list[str]], Any]]] = {
    "groups-5": ("Groups, 5 columns", 5, lowcal.Groups),
    "intersections-2": ("Intersections, 2 columns", 2, lowcal.Intersections),
    "intersections-5": ("Intersections, 5 columns", 5, lowcal.Intersections),
    "intersections-8": ("Intersections, 8 columns", 8, lowcal.Intersections),
    "trees": ("Trees, 8 columns", 8, lambda _: lowcal.Trees()),
    "linear": ("Linear, 8 columns", 8, lambda _: lowcal.Linear()),
}
#: Rough costs of a fit, to run the cheap ones first; learners of smooth weights of several classes take minutes.
COST = {"intersections-5": 2, "linear": 2, "trees": 3, "intersections-8": 4, "degree-3": 2, "full-0.1": 2, "smooth": 5}
COST |= {"300": 0.5, "1000": 1, "5000": 2, "third": 4, "student_dropout": 10, "diabetes130": 10, "letter": 200}
SLOW = {
    (name, kind, "smooth"): 10 for name in ("student_dropout", "diabetes130", "letter") for kind in ("linear", "trees")
}
QUICK = {"sets": "adult", "bases": "weak", "rows": "300", "classes": "groups-5,intersections-5", "notions": "degree-2"}
#: Rows of the quick version.
QUICK_ROWS = 3_000


class Key(NamedTuple):
    """What identifies one fit; without the seed, one cell."""

    set: str
    base: str
    rows: str
    kind: str
    notion: str
    seed: int = -1

    @property
    def cell(self) -> Key:
        return self._replace(seed=-1)

    @property
    def cost(self) -> float:
        slow = SLOW.get((self.set, self.kind, self.notion), 1)
        return float(np.prod([slow, *(COST.get(part, 1) for part in self[:5])]))

    def __str__(self) -> str:
        seed = f" seed {self.seed}" if self.seed >= 0 else ""
        return f"{self.set} {self.base} {self.rows} {self.kind} {self.notion}{seed}"


# --- data and base models -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Part:
    """The group columns, the labels as whole numbers from 0, and the base model's probabilities of some rows."""

    X: pd.DataFrame
    y: Array
    p: Array

    def head(self, n: int) -> Part:
        return Part(self.X.iloc[:n], self.y[:n], self.p[:n])


@dataclass(frozen=True)
class Source:
    """Where data sets are read, where base models' probabilities are kept, and how many rows of a set are used."""

    data: Path
    cache: Path
    most_rows: int = MOST_ROWS

    def has(self, name: str) -> bool:
        return name == "adult" or (self.data / f"{name}.parquet").exists()

    def read(self, name: str) -> tuple[pd.DataFrame, Array]:
        """Return the features and the labels, coded from 0 in the order of their values."""
        if name == "adult":
            shipped = lowcal.datasets.load_adult()
            return pd.DataFrame(shipped.X), shipped.y
        data = pd.read_parquet(self.data / f"{name}.parquet")
        data.columns = data.columns.str.removeprefix("\ufeff")
        chosen = SETS[name]
        y = np.unique(data[chosen.label].astype(str), return_inverse=True)[1]
        X = data.drop(columns=[chosen.label, *chosen.drop])
        return X.astype(dict.fromkeys(chosen.coded, str)), y

    def file(self, name: str, base: str, seed: int) -> Path:
        """Return the cached file; its name changes with the definition of the set."""
        defined = repr((SETS[name], self.most_rows, MOST_TRAINING, MOST_TEST))
        return self.cache / f"{name}-{base}-{seed}-{sha256(defined.encode()).hexdigest()[:8]}.npz"

    def prepare(self, task: tuple[str, str, int]) -> int:
        """Fit one base model unless its probabilities are cached; return the number of calibration rows."""
        file = self.file(*task)
        if not file.exists():
            name, base, seed = task
            X, y = self.read(name)
            shuffled = np.random.default_rng(seed).permutation(len(y))[: self.most_rows]
            train, calibration, test = np.array_split(shuffled, 3)
            train, test = train[:MOST_TRAINING], test[:MOST_TEST]
            rows = np.concatenate([calibration, test])
            p = base_model(base, name, X, y, train, seed)(rows)
            file.parent.mkdir(parents=True, exist_ok=True)
            X[list(SETS[name].groups)].iloc[rows].reset_index(drop=True).to_parquet(file.with_suffix(".parquet"))
            written = file.with_suffix(f".{os.getpid()}.npz")  # renamed when it is complete
            np.savez(written, y=y[rows], p=p, n=len(calibration))
            written.replace(file)
        with np.load(file) as stored:
            return int(stored["n"])

    def load(self, task: tuple[str, str, int]) -> tuple[Part, Part]:
        """Return the calibration rows and the test rows."""
        self.prepare(task)
        file = self.file(*task)
        X = pd.read_parquet(file.with_suffix(".parquet"))
        with np.load(file) as stored:
            y, p, n = stored["y"], stored["p"], int(stored["n"])
        return Part(X.iloc[:n], y[:n], p[:n]), Part(X.iloc[n:].reset_index(drop=True), y[n:], p[n:])


def base_model(base: str, name: str, X: pd.DataFrame, y: Array, train: Array, seed: int) -> Callable[[Array], Array]:
    """Fit a base model on the training rows; return a function from rows to probabilities, (n,) for two classes."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if base == "good":
        model, columns = HistGradientBoostingClassifier(random_state=seed), list(X.columns)
    else:
        model, columns = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), list(SETS[name].weak)
    numbers = np.column_stack([as_numbers(X[column]) for column in columns])
    model.fit(numbers[train], y[train])
    if len(model.classes_) != len(np.unique(y)):
        raise ValueError(f"{name}, seed {seed}: a class does not occur in the training rows.")

    def predict(rows: Array) -> Array:
        found = model.predict_proba(numbers[rows])
        return found[:, 1] if found.shape[1] == 2 else found

    return predict


def as_numbers(column: pd.Series) -> Array:
    """Return a column as floats: text that spells numbers is read, other text is coded in sorted order."""
    numbers = pd.to_numeric(column.astype(object), errors="coerce")
    if (numbers.isna() == column.isna()).all():
        return numbers.to_numpy(float)
    codes = pd.factorize(column.astype(object), sort=True)[0].astype(float)
    codes[codes < 0] = np.nan
    return codes


# --- one fit ------------------------------------------------------------------------------------------------------


def scores(y: Array, p: Array) -> dict[str, float]:
    """Return log loss, Brier score and AUC (several classes: mean of one-versus-rest) of probabilities."""
    from sklearn.metrics import roc_auc_score

    columns = np.column_stack([1 - p, p]) if p.ndim == 1 else p
    truth = y[:, None] == np.arange(columns.shape[1])
    judged = [k for k in (range(columns.shape[1]) if p.ndim == 2 else [1]) if 0 < truth[:, k].sum() < len(y)]
    return {
        "log_loss": float(-np.log(np.clip(columns[truth], CLIP, 1 - CLIP)).mean()),
        "brier": float(((columns - truth) ** 2).sum(axis=1).mean() / (2 if p.ndim == 1 else 1)),
        "auc": float(np.mean([roc_auc_score(truth[:, k], columns[:, k]) for k in judged])),
    }


def new_extremes(before: Array, after: Array) -> int:
    """Count the predictions that are exactly 0 or 1 where the base prediction was not.

    >>> new_extremes(np.array([0.0, 0.5, 0.5, 1.0]), np.array([0.0, 1.0, 0.4, 0.0]))
    1
    """
    return int((np.isin(after, (0.0, 1.0)) & ~np.isin(before, (0.0, 1.0))).sum())


@lru_cache(maxsize=4)
def loaded(source: Source, task: tuple[str, str, int]) -> tuple[Part, Part, dict[str, float]]:
    calibration, test = source.load(task)
    return calibration, test, scores(test.y, test.p)


def fit_one(source: Source, key: Key) -> dict[str, Any]:
    """Recalibrate and judge; an exception is part of the result."""
    line: dict[str, Any] = key._asdict()
    try:
        return line | _fit_one(source, key)
    except Exception as error:
        return line | {"failure": f"{type(error).__name__}: {error}"}


def _fit_one(source: Source, key: Key) -> dict[str, Any]:
    calibration, test, before = loaded(source, (key.set, key.base, key.seed))
    if key.rows != "third":
        calibration = calibration.head(int(key.rows))
    _, n_columns, make = CLASSES[key.kind]
    columns = list(SETS[key.set].groups[:n_columns])
    # names of the columns of p, as a few rows need not have every label
    known = {"classes": list(range(test.p.shape[1]))} if test.p.ndim == 2 else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        began = process_time()
        fit = lowcal.multicalibrate(
            calibration.y,
            calibration.p,
            calibration.X[columns],
            subpopulations=make(columns),
            notion=key.notion,
            random_state=key.seed,
            **known,
        )
        cpu = process_time() - began
        q = np.asarray(fit.predictor(test.p, test.X[columns]))
    if q.shape != test.p.shape or not np.isfinite(q).all():
        raise ValueError(f"predictions of shape {q.shape}, {(~np.isfinite(q)).sum()} of them not finite")
    return {
        "n": len(calibration.y),
        "n_test": len(test.y),
        **scores(test.y, q),
        **{f"base_{name}": value for name, value in before.items()},
        "extremes": new_extremes(test.p, q),
        "cpu": cpu,
        "status": fit.status.value,
        "updates": len(fit.predictor),
        "warnings": dict(Counter(w.category.__name__ for w in caught)),
    }


def warm_up() -> None:
    """Load and compile what every fit uses, so that the first one is not charged for it."""
    data = lowcal.datasets.make_miscalibrated(500, random_state=0)
    for kind in (lowcal.Groups(), lowcal.Trees(), lowcal.Linear()):
        for notion in NOTIONS:
            lowcal.multicalibrate(data.y, data.p, data.X, subpopulations=kind, notion=notion, max_updates=2)


# --- all fits -----------------------------------------------------------------------------------------------------


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read a file of results; a last line that was cut off is removed from it."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.decode("utf-8").splitlines()]


def key_of(line: dict[str, Any]) -> Key:
    return Key(*(line[name] for name in Key._fields))


def plan(chosen: argparse.Namespace, sizes: dict[tuple[str, str, int], int], done: Iterable[Key]) -> list[Key]:
    """Return the fits to run, cheap cells first and the seeds of a cell together."""
    every = {
        Key(*task[:2], rows, kind, notion, task[2])
        for task, n in sizes.items()
        for rows in chosen.rows
        if rows == "third" or int(rows) <= n
        for kind in chosen.classes
        for notion in chosen.notions
    }
    return sorted(every - set(done), key=lambda key: (key.cost, key))


def run(source: Source, chosen: argparse.Namespace, out: Path | None) -> list[dict[str, Any]]:
    """Run what is not in the file yet; return every result of the file."""
    began = perf_counter()
    results = read_results(out) if out else []

    def say(words: str) -> None:
        print(f"[{perf_counter() - began:8.1f} s] {words}", file=sys.stderr, flush=True)

    for name in chosen.sets:
        if not source.has(name):
            say(f"{name} is left out: its file is not in the folder of the data")
    present = [name for name in chosen.sets if source.has(name)]
    tasks = [(name, base, seed) for name in present for base in chosen.bases for seed in chosen.seeds]
    with ExitStack() as stack:
        spread: Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]] = map
        if chosen.workers > 1:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(chosen.workers, warm_up))
            spread = pool.imap
        else:
            warm_up()
        sizes = {}
        for task, n in zip(tasks, spread(source.prepare, tasks), strict=True):
            sizes[task] = n
            say(f"prepared {task[0]} {task[1]} seed {task[2]}: {n:,} calibration rows")
        keys = plan(chosen, sizes, map(key_of, results))
        say(f"{len(keys):,} fits to run, {len(results):,} results in the file")
        if chosen.workers > 1:
            spread = pool.imap_unordered
        for number, line in enumerate(spread(partial(fit_one, source), keys), 1):
            results.append(line)
            if out:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            say(f"{number:,} of {len(keys):,}: {key_of(line)}: {in_words(line)}")
    return results


def in_words(line: dict[str, Any]) -> str:
    if "failure" in line:
        return f"FAILED, {line['failure']}"
    change = line["log_loss"] - line["base_log_loss"]
    return f"log loss {change:+.4f}, {line['updates']} updates, {line['status']}, {three(line['cpu'])} CPU s"


# --- summary ------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A mean over seeds and its standard error, None with one seed."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Change:
        """
        >>> Change.of([1.0, 3.0]), Change.of([2.0])
        (Change(mean=2.0, error=1.0), Change(mean=2.0, error=None))
        """
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        return cls(float(np.mean(values)), error)

    def exceeds(self, least: float) -> bool:
        """Whether the mean exceeds both `least` and two standard errors; one seed has no standard error."""
        return self.mean > max(least, 2 * (self.error or 0.0))

    def __str__(self) -> str:
        return f"{self.mean:+.4f}" + ("" if self.error is None else f" ± {self.error:.4f}")


class Cell:
    """The results of all seeds of one cell."""

    def __init__(self, key: Key, lines: Sequence[dict[str, Any]]):
        self.key, self.lines = key, sorted(lines, key=lambda line: line["seed"])

    def change(self, score: str) -> Change:
        return Change.of([line[score] - line[f"base_{score}"] for line in self.lines])

    def mean(self, name: str) -> float:
        return float(np.mean([line[name] for line in self.lines]))

    @property
    def is_harmed(self) -> bool:
        return self.change("log_loss").exceeds(LOG_LOSS_HARM)

    @property
    def auc_is_harmed(self) -> bool:
        return self.change("auc").mean < -AUC_HARM

    @property
    def extremes(self) -> int:
        return sum(line["extremes"] for line in self.lines)

    def row(self) -> list[str]:
        """The line of this cell in a table whose head is HEAD."""
        statuses = Counter(line["status"] for line in self.lines)
        figures = [str(self.change(score)) for score in ("log_loss", "brier", "auc")]
        losses = f"{self.mean('base_log_loss'):.4f} to {self.mean('log_loss'):.4f}"
        rest = [f"{self.mean('updates'):.1f}", ", ".join(statuses), str(self.extremes), three(self.mean("cpu"))]
        return [*self.key[:3], CLASSES[self.key.kind][0], self.key.notion, losses, *figures, *rest]


HEAD = ("data set", "base", "rows", "class", "notion", "log loss", "its change", "Brier change", "AUC change")
HEAD += ("updates", "status", "exact 0 or 1", "CPU s")


def cells_of(results: Iterable[dict[str, Any]]) -> list[Cell]:
    """Group results by cell, failures left out."""
    found = defaultdict(list)
    for line in results:
        if "failure" not in line:
            found[key_of(line).cell].append(line)
    return [Cell(key, lines) for key, lines in sorted(found.items(), key=lambda item: _order(item[0]))]


def _order(key: Key) -> tuple[int, ...]:
    lists = (list(SETS), BASES, ROWS, list(CLASSES), NOTIONS)
    return tuple(known.index(part) if part in known else 99 for known, part in zip(lists, key[:5], strict=True))


def worse_than_groups(cells: Sequence[Cell]) -> tuple[int, list[tuple[Key, Change]]]:
    """Compare intersections with groups of the same 5 columns, seed by seed.

    Returns the number of comparisons, and those in which intersections have the larger log loss, by more than two
    standard errors of the paired difference.
    """
    by_key = {cell.key: cell for cell in cells}
    compared, worse = 0, []
    for cell in cells:
        groups = by_key.get(cell.key._replace(kind="groups-5"))
        if cell.key.kind != "intersections-5" or groups is None:
            continue
        theirs = {line["seed"]: line["log_loss"] for line in groups.lines}
        apart = [line["log_loss"] - theirs[line["seed"]] for line in cell.lines if line["seed"] in theirs]
        if len(apart) > 1:
            compared += 1
            difference = Change.of(apart)
            if difference.exceeds(1e-9):
                worse.append((cell.key, difference))
    return compared, sorted(worse, key=lambda pair: -pair[1].mean)


def by_size(cells: Sequence[Cell]) -> str:
    """Tabulate the mean change in log loss by data set, base model and number of calibration rows."""
    found = defaultdict(list)
    for cell in cells:
        found[cell.key[:3]].append(cell)
    pairs = dict.fromkeys(key[:2] for key in found)
    sizes = [rows for rows in ROWS if any(key[2] == rows for key in found)]
    lines = [[*pair, *(_mean_and_harmed(found.get((*pair, rows), [])) for rows in sizes)] for pair in pairs]
    heads = ["whole third" if rows == "third" else f"{int(rows):,} rows" for rows in sizes]
    return markdown(["data set", "base", *heads], lines)


def _mean_and_harmed(cells: Sequence[Cell]) -> str:
    if not cells:
        return "-"
    mean = np.mean([cell.change("log_loss").mean for cell in cells])
    return f"{mean:+.4f}, {sum(cell.is_harmed for cell in cells)} of {len(cells)}"


def by_part(cells: Sequence[Cell], name: str, shown: Callable[[str], str] = str) -> str:
    """Tabulate the changes by class or by notion."""
    found = defaultdict(list)
    for cell in cells:
        found[getattr(cell.key, name)].append(cell)
    lines = []
    for part, some in found.items():
        changes = [cell.change("log_loss").mean for cell in some]
        harmed = [sum(cell.is_harmed for cell in some), sum(cell.auc_is_harmed for cell in some)]
        seconds = [line["cpu"] for cell in some for line in cell.lines]
        figures = [f"{np.mean(changes):+.4f}", f"{max(changes):+.4f}", *map(str, harmed)]
        extremes = sum(cell.extremes > 0 for cell in some)
        lines.append([shown(part), str(len(some)), *figures, str(extremes), three(median(seconds))])
    head = ["class" if name == "kind" else name, "cells", "mean change", "largest change", "harmed", "AUC harmed"]
    return markdown([*head, "exact 0 or 1", "CPU s, median"], lines)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the summary in Markdown, as docs/benchmarks.md shows it."""
    cells, failures = cells_of(results), [line for line in results if "failure" in line]
    if not cells:
        return "\n\n".join(["No fit succeeded.", *_failures(failures)])
    harmed = sorted((cell for cell in cells if cell.is_harmed), key=lambda cell: -cell.change("log_loss").mean)
    auc_harmed = sorted((cell for cell in cells if cell.auc_is_harmed), key=lambda cell: cell.change("auc").mean)
    weakest = max(cells, key=lambda cell: cell.change("log_loss").mean)
    compared, worse = worse_than_groups(cells)
    seconds = [line["cpu"] for cell in cells for line in cell.lines]
    seeds = sorted({len(cell.lines) for cell in cells})
    caught = sum((Counter(line["warnings"]) for cell in cells for line in cell.lines), Counter())
    parts = [
        f"{len(cells):,} cells of {' to '.join(map(str, seeds[:: max(1, len(seeds) - 1)]))} seeds, {len(seconds):,} "
        f"fits: **{len(harmed):,} cells harmed** (log loss up by more than two standard errors over the seeds and "
        f"{LOG_LOSS_HARM:g}), {len(auc_harmed):,} with a mean AUC lower by more than {AUC_HARM:g}, "
        f"{sum(cell.extremes > 0 for cell in cells):,} with predictions of exactly 0 or 1 that the base model did not "
        f"make, {len(failures):,} fits failed. Warnings: {_counts(caught)}. CPU seconds of the fits: "
        f"{sum(seconds):,.0f} in all, median {three(median(seconds))}, largest {three(max(seconds))}.",
        "Mean change in log loss, and harmed cells, by data set, base model and number of calibration rows:",
        by_size(cells),
        "By class:",
        by_part(cells, "kind", lambda kind: CLASSES[kind][0]),
        "By notion:",
        by_part(cells, "notion"),
        "The weakest cell (the largest mean change in log loss):",
        markdown(HEAD, [weakest.row()]),
        f"Intersections of 5 columns have a larger log loss than groups of the same columns, by more than two standard "
        f"errors of the paired difference, in {len(worse):,} of {compared:,} cells.",
    ]
    if worse:
        lines = [[*key[:3], key.notion, str(difference)] for key, difference in worse]
        parts.append(markdown(["data set", "base", "rows", "notion", "log loss, intersections less groups"], lines))
    if harmed:
        parts += ["Harmed cells, the worst first:", markdown(HEAD, [cell.row() for cell in harmed])]
    if auc_harmed:
        parts += ["Cells with a lower AUC, the worst first:", markdown(HEAD, [cell.row() for cell in auc_harmed])]
    return "\n\n".join([*parts, *_failures(failures)])


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in counted.most_common()) or "none"


def _failures(failures: Sequence[dict[str, Any]]) -> list[str]:
    if not failures:
        return []
    lines = [[str(key_of(line)), line["failure"].replace("\n", " ").replace("|", "\\|")] for line in failures]
    return ["Failed fits:", markdown(["fit", "error"], lines)]


# --- command line -------------------------------------------------------------------------------------------------


def one_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a reader of comma lists that refuses unknown words."""
    known = list(known)

    def words(given: str) -> list[str]:
        chosen = given.split(",")
        unknown = [word for word in chosen if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
        return chosen

    return words


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the Parquet files")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "lowcal-harm")
    parser.add_argument("--out", type=Path, help="results, one JSON object a line; without it they are only summarised")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="summarise a file of results and run nothing")
    known = {"sets": SETS, "bases": BASES, "rows": ROWS, "classes": CLASSES, "notions": NOTIONS}
    for name, words in known.items():
        parser.add_argument(f"--{name}", type=one_of(words), default=list(words), help=f"of {','.join(words)}")
    parser.add_argument("--seeds", type=lambda given: [int(seed) for seed in given.split(",")], default=list(range(5)))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two small cells of one seed on the shipped data")
    chosen = parser.parse_args(arguments)
    if chosen.summary:
        if not chosen.summary.exists():
            parser.error(f"there is no file {chosen.summary}")
        print(table(read_results(chosen.summary)))
        return
    with ExitStack() as stack:
        source = Source(chosen.data, chosen.cache)
        if chosen.quick:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            source, chosen.seeds = Source(folder, folder, QUICK_ROWS), [0]
            for name, words in QUICK.items():
                setattr(chosen, name, words.split(","))
        results = run(source, chosen, chosen.out)
    print(table(results))


if __name__ == "__main__":
    main()
