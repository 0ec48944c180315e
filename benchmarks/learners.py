"""Learner-defined classes: ours against MCGrad, which is told the same columns, on real data and one synthetic set.

A base model is fitted on a third of the rows (ACS ships a real model's scores), recalibrated on the second, and judged
on the last: log loss, Brier score, and the largest violation on groups that nobody was told (levels and depth-2
intersections of protected columns, at least 200 rows). CPU seconds. After each set, what is asked of trees: losses and
largest violation against MCGrad's, with the noise of the difference, and the ratio of the seconds. Then gate T10: a
learner's second call.

Run: python benchmarks/learners.py [--data FOLDER] [--seeds 5] [--sets adult,bank] [--geometries] [--no-peer]
FOLDER holds adult, bank_marketing, credit_default and acs_employment_ma as Parquet files; what is absent is skipped.
"""

import argparse
import importlib.util
import itertools
import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from common import boosted_trees, show

import lowcal

SETS = {
    "adult": ("adult", "income", ">50K", ["split"], ["age", "education_num", "hours_per_week", "capital_gain"]),
    "bank": ("bank_marketing", "y", "yes", [], ["age", "balance", "day", "campaign", "pdays", "previous", "duration"]),
    "credit": ("credit_default", "default", 1, [], ["LIMIT_BAL", "PAY_0", "PAY_2", "BILL_AMT1", "PAY_AMT1"]),
    "acs": ("acs_employment_ma", "employed", 1, ["id", "prediction", "predicted_probability", "part"], []),
    "synthetic": (None, "y", 1, [], ["x0", "x1", "x2"]),
}
GROUPS = {
    "adult": ["sex", "race", "age", "marital_status", "education"],
    "bank": ["age", "marital", "job", "education"],
    "credit": ["SEX", "EDUCATION", "MARRIAGE", "AGE"],
    "acs": ["SEX", "RAC1P", "AGEP", "DIS", "MAR", "year"],
    "synthetic": ["c0", "c1", "c2", "x0", "x4"],
}
#: The base models of these sets are made overconfident: their log odds are stretched.
STRETCH = {"adult": 1.5, "bank": 1.0, "credit": 1.5, "synthetic": 1.7}
SCORES = ("log loss", "Brier", "degree 1", "degree 2")
#: How often the rows are drawn anew to tell the noise of a difference.
REDRAWS = 200


def log_odds(p):
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return np.log(p / (1 - p))


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def synthetic(seed, n=60_000):
    """Interactions of numbers and categories that no column shows alone."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({f"x{k}": rng.normal(size=n) for k in range(6)})
    for k, size in enumerate((2, 4, 6, 12)):
        X[f"c{k}"] = np.array([f"v{j}" for j in range(size)], dtype=object)[rng.integers(0, size, n)]
    z = 0.8 * X.x0 - 0.6 * X.x1 + 0.5 * X.x2 - 0.4
    z += 1.2 * ((X.c0 == "v0") & (X.x3 > 0)) - 1.0 * ((X.c1 == "v1") & (X.c2 == "v2"))
    z += 0.8 * np.sign(X.x4 * X.x5) * (X.c0 == "v1") + 0.7 * X.c3.isin(["v3", "v4", "v5"]) * (X.x0 > 0)
    return X.assign(y=(rng.random(n) < sigmoid(z.to_numpy())).astype(int))


def load(name, folder, seed):
    """Return (X, p, y) of calibration and test rows, and how often each test row is redrawn; None without the file."""
    file, label, positive, drop, base = SETS[name]
    if file is not None and not (folder / f"{file}.parquet").exists():
        return None
    data = synthetic(seed) if file is None else pd.read_parquet(folder / f"{file}.parquet")
    y = (data[label] == positive).to_numpy().astype(int)
    X = data.drop(columns=[label, *drop])
    for column in X.columns:
        if not pd.api.types.is_numeric_dtype(X[column]):
            X[column] = X[column].astype(object).where(X[column].notna(), None)
    first, calibrate, test = np.array_split(np.random.default_rng(seed).permutation(len(X)), 3)
    p = data["predicted_probability"].to_numpy() if not base else start(name, X[base].to_numpy(float), y, first)
    parts = [(X.iloc[rows].reset_index(drop=True), p[rows], y[rows]) for rows in (calibrate, test)]
    return *parts, redraws(len(X), seed if file is None else 0)[test]


def redraws(n, seed):
    """Return how often each row is drawn, shape (n, 1 + REDRAWS): once, then as chance has it.

    A file's rows are drawn alike for all seeds, as the test rows of two seeds have a third of their rows in common.
    """
    drawn = np.random.default_rng([seed, n]).poisson(1.0, (n, REDRAWS))
    return np.concatenate([np.ones((n, 1)), drawn], axis=1).astype(np.uint8)


def start(name, B, y, rows):
    """Fit a base model that sees a part of the columns and return its probabilities."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    logistic = make_pipeline(StandardScaler(), LogisticRegression())
    model = (
        HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=8, random_state=0) if name == "bank" else logistic
    )
    return sigmoid(STRETCH[name] * log_odds(model.fit(B[rows], y[rows]).predict_proba(B)[:, 1]))


def memberships(X, columns, least=200):
    """Return the groups that nobody was told as a 0/1 matrix."""
    codes = {}
    for c in columns:
        is_wide = pd.api.types.is_numeric_dtype(X[c]) and X[c].nunique() > 12
        codes[c] = pd.factorize((pd.qcut(X[c], 5, duplicates="drop") if is_wide else X[c]).astype(str))[0]
    keys = [*codes.values(), *(a * 1000 + b for a, b in itertools.combinations(codes.values(), 2))]
    found = [np.ones(len(X), dtype=bool), *(key == v for key in keys for v in np.unique(key))]
    return np.array([c for c in found if c.sum() >= least], dtype=float).T


def judge(p, y, C, drawn):
    """Return log loss, Brier score and the largest degree-1 and degree-2 violations, each for every redraw."""
    r, q, n = y - p, np.clip(p, 1e-6, 1 - 1e-6), drawn.sum(axis=0, dtype=float)
    one, two = (np.abs(C.T @ (drawn * z[:, None])).max(axis=0) / n for z in (r, r * p))
    loss = -np.where(y == 1, np.log(q), np.log(1 - q))
    return np.array([loss @ drawn / n, r * r @ drawn / n, one, np.maximum(one, two)])


def in_standard_errors(p, y, C):
    """Return the largest violation of a group, in standard errors of the group that has it."""
    r = y - p
    violation = np.abs(C.T @ r)
    worst = violation.argmax()
    return violation[worst] / np.sqrt(C[:, worst] @ (r * r))


def ours(geometry, with_score=False):
    """Return a rival: trees as the estimators use them, without or with the score as one more column."""

    def run(X, p, y, Xt, pt):
        if with_score:
            X, Xt = X.assign(_score=p), Xt.assign(_score=pt)
        began = time.process_time()
        fit = boosted_trees(y, p, X, geometry)
        fitted = time.process_time()
        q = fit.predictor(pt, Xt)
        return q, fitted - began, time.process_time() - fitted

    return run


def mcgrad(X, p, y, Xt, pt):
    """MCGrad with its defaults: 5-fold early stopping, then a fit on all rows; the score is one of its features."""
    from mcgrad.methods import MCGrad

    numbers = [c for c in X.columns if pd.api.types.is_numeric_dtype(X[c])]
    names = {
        "prediction_column_name": "_p",
        "categorical_feature_column_names": [c for c in X.columns if c not in numbers],
        "numerical_feature_column_names": numbers,
    }
    model = MCGrad()
    began = time.process_time()
    model.fit(df_train=X.assign(_p=p, _y=y), label_column_name="_y", **names)
    fitted = time.process_time()
    q = np.asarray(model.predict(df=Xt.assign(_p=pt), **names))
    return q, fitted - began, time.process_time() - fitted


def compare(name, folder, seeds, rivals):
    """Print a row for each rival, means over the seeds, and what is asked of the first against the last."""
    rivals = {"start": lambda *task: (task[-1], 0.0, 0.0), **rivals}
    scores, seconds, worst = ({rival: [] for rival in rivals} for _ in range(3))
    for seed in range(seeds):
        task = load(name, folder, seed)
        if task is None:
            print(f"{name}: skipped, its file is not in {folder}")
            return
        (X, p, y), (Xt, pt, yt), drawn = task
        C = memberships(Xt, GROUPS[name])
        for rival, run in rivals.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                q, *times = run(X, p, y, Xt, pt)
            scores[rival].append(judge(q, yt, C, drawn))
            worst[rival].append(in_standard_errors(q, yt, C))
            seconds[rival].append(times)
    last = list(rivals)[-1]
    for rival in rivals:
        write(name, rival, scores[rival], scores[last], seconds[rival])
    print(
        "largest violation, in standard errors of its group: "
        + ", ".join(f"{rival} {np.mean(found):.1f}" for rival, found in worst.items())
    )
    if last == "mcgrad":
        gates(name, scores["ours"], scores[last], np.array(seconds["ours"]), np.array(seconds[last]))


def write(name, rival, scores, last, seconds):
    """Print a line: means over the seeds, the noise of the differences to the last rival, CPU seconds."""
    _, noise = difference(scores, last)
    means = np.mean([found[:, 0] for found in scores], axis=0)
    cells = [f"{mean:.5f} ±{error:.5f}" for mean, error in zip(means, noise, strict=True)]
    fit, predict = np.mean(seconds, axis=0)
    print(f"{name:<10}{rival:<22}{'  '.join(cells)}  {fit:8.3f} {predict:8.3f}", flush=True)


def difference(scores, last):
    """Return the mean difference of each score over the seeds, and its standard error.

    That is the larger one of two: over the seeds, which are other splits of the same rows, and over redrawn test rows.
    """
    apart = np.array(scores) - np.array(last)
    over_rows = apart.mean(axis=0)[:, 1:].std(axis=1, ddof=1)
    over_seeds = apart[:, :, 0].std(axis=0, ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else over_rows
    return apart[:, :, 0].mean(axis=0), np.maximum(over_rows, over_seeds)


def gates(name, ours, theirs, seconds, their_seconds):
    """Print what is asked of trees against MCGrad, and whether it is met."""
    means, noise = difference(ours, theirs)
    for score, mean, error in zip(SCORES, means, noise, strict=True):
        times, words = (1, "one standard error") if score in SCORES[:2] else (2, "two standard errors")
        what = score if score in SCORES[:2] else f"{score} violation, groups not told,"
        show(f"   {name}: {what} less MCGrad's; limit: {words}", mean, f"<= {times * error:.2g}")
    show(f"   {name}: fit, CPU seconds of MCGrad / ours", their_seconds[:, 0] / seconds[:, 0], ">= 10")


def second_call(n=1_000_000, d=20):
    """Gate T10: features are binned once, so a learner's second call is far cheaper than prepare and first call."""
    rng = np.random.default_rng(0)
    X, y, p = rng.normal(size=(n, d)), rng.random(n) < 0.5, rng.random(n)
    Z = (y - p)[:, None]
    lowcal.Trees().prepare(X[:100_000]).learn(Z[:100_000])  # loads the kernels
    for label, kind in {"Trees()": lowcal.Trees(), "Linear()": lowcal.Linear()}.items():
        times = []
        for _ in range(3):
            began = time.process_time()
            learner = kind.prepare(X)
            learner.learn(Z)
            first = time.process_time()
            learner.learn(Z * p[:, None])
            times.append((first - began, time.process_time() - first))
        one, two = np.median(times, axis=0)
        print(f"{label:<10} {n:,} x {d}: first call {one:.2f} s, second {two:.3f} s, ratio {one / two:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--geometries", action="store_true", help="also the Euclidean geometry")
    parser.add_argument("--no-peer", action="store_true")
    chosen = parser.parse_args()
    rivals = {"ours": ours("mirror"), "ours, score a column": ours("mirror", with_score=True)}
    if chosen.geometries:
        rivals["ours, euclidean"] = ours("euclidean")
    if importlib.util.find_spec("mcgrad") is None:
        print("mcgrad is not installed: ours only; the last of ours takes its place in the differences.")
    elif not chosen.no_peer:
        rivals["mcgrad"] = mcgrad
    warm = synthetic(0, 6000)
    ours("mirror")(
        warm.drop(columns="y"), np.full(6000, 0.4), warm.y.to_numpy(), warm.drop(columns="y"), np.full(6000, 0.4)
    )
    print(
        f"{'data':<10}{'':<22}{'log loss':<19}{'Brier':<19}{'degree 1':<19}{'degree 2':<19}{'fit s':>8} {'pred s':>8}"
    )
    print(
        "± is the standard error of the difference to the last line of each set: the larger one of that over seeds\n"
        "and that over redrawn test rows"
    )
    for name in chosen.sets.split(","):
        compare(name, chosen.data, chosen.seeds, rivals)
    second_call()


if __name__ == "__main__":
    main()
