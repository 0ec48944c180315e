"""lowcal beside what a user would pick instead: logistic regression on (logit p, groups, groups x logit p).

Run: python benchmarks/baseline.py [--quick] [--seeds N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from common import (
    MOST_LEVELS,
    NOTIONS,
    OURS,
    SHAPES,
    Array,
    Clock,
    Ours,
    Score,
    Task,
    adult,
    bent,
    curved,
    logit,
    made_up,
    ratios,
    score,
    small,
    table,
    three,
    timed,
)
from scipy import sparse
from threadpoolctl import threadpool_limits

SEEDS = 5


class Logistic:
    """Logistic regression on the logit of p, every group, and every group times the logit, from the same frame."""

    def __init__(self, task: Task, **options: Any):
        self.task, self.options = task, options
        self.train, self.test = task.train.frame(), task.test.frame()

    def fit(self) -> None:
        from sklearn.linear_model import LogisticRegression

        self.places = [np.cumsum(np.bincount(codes, minlength=MOST_LEVELS) > 0) for codes in _codes(self.train)]
        X = self._features(self.train, self.task.train.p)
        self.model = LogisticRegression(max_iter=1_000, **self.options).fit(X, self.task.train.y)

    def predict(self) -> Array:
        return np.asarray(self.model.predict_proba(self._features(self.test, self.task.test.p))[:, 1])

    def _features(self, frame: Any, p: Array) -> Any:
        """Write the sparse matrix down at once: a row holds z, a one for each column, and z for each column."""
        z, D = logit(p), len(self.places)
        starts = np.cumsum([0, *(places[-1] for places in self.places)])
        columns, values = np.zeros((len(z), 2 * D + 1), dtype=np.int32), np.empty((len(z), 2 * D + 1))
        values[:, : D + 1], values[:, 0], values[:, D + 1 :] = 1.0, z, z[:, None]
        for j, codes in enumerate(_codes(frame)):
            columns[:, 1 + j] = (starts[j] + self.places[j]).astype(np.int32)[codes]
        columns[:, D + 1 :] = columns[:, 1 : D + 1] + starts[-1]
        ends = np.arange(len(z) + 1, dtype=np.int32) * (2 * D + 1)
        X = sparse.csr_array((values.ravel(), columns.ravel(), ends), shape=(len(z), 2 * starts[-1] + 1))
        return X.toarray() if self.options.get("solver") == "newton-cholesky" else X


def _codes(frame: Any) -> list[Array]:
    """Return the codes of categorical columns."""
    return [frame[name].array.codes for name in frame]


LOGISTIC = {
    "logistic, lbfgs (scikit-learn's default)": partial(Logistic),
    "logistic, newton-cholesky": partial(Logistic, solver="newton-cholesky"),
}
DEFAULTS = "lowcal defaults (degree-2, alpha 0.01)"
METHODS = {
    **LOGISTIC,
    **{name: partial(Ours, **options) for name, options in OURS.items() if "trees" not in options},
}


@dataclass
class Trials:
    """What one method did over the seeds."""

    fits: list[Clock] = field(default_factory=list)
    predicts: list[Clock] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)

    def mean(self, kind: str) -> float:
        """Return the mean violation or loss."""
        return float(np.mean(self._values(kind)))

    def gap(self, other: Trials, kind: str) -> tuple[float, float]:
        """Return the mean difference to another method over the seeds, and its standard error."""
        difference = self._values(kind) - other._values(kind)
        return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))

    def _values(self, kind: str) -> Array:
        found = [s.violations[kind] if kind in NOTIONS else getattr(s, kind) for s in self.scores]
        return np.array(found)


def run_seeds(draw: Callable[[int], Task], seeds: int) -> dict[str, Trials]:
    """Let every method fit and predict in turn on a task for each seed; the first seed is done twice to warm up."""
    found = {name: Trials() for name in METHODS}
    for turn, seed in enumerate([0, *range(seeds)]):
        task = draw(seed)
        for name, make in METHODS.items():
            rival = make(task)
            _, fit = timed(rival.fit)
            q, predict = timed(rival.predict)
            if turn > 0:
                found[name].fits.append(fit)
                found[name].predicts.append(predict)
                found[name].scores.append(score(task.test, q))
    return found


def faster(found: dict[str, Trials]) -> str:
    """Return the logistic regression that fits in less CPU time."""
    return min(LOGISTIC, key=lambda name: median(c.cpu for c in found[name].fits))


HEAD = (
    "method",
    "fit, CPU s",
    "predict, CPU s",
    *NOTIONS,
    "Brier",
    "log loss",
    "Brier - logistic",
    "log loss - logistic",
)


def show(found: dict[str, Trials]) -> str:
    """Return the table of one size."""
    base = found[faster(found)]
    lines = []
    for name, trials in found.items():
        cells = [_timing(trials, base, clocks) for clocks in ("fits", "predicts")]
        values = [small(trials.mean(kind)) for kind in (*NOTIONS, "brier", "log_loss")]
        gaps = [
            "" if trials is base else "{:+.4f} ± {:.4f}".format(*trials.gap(base, k)) for k in ("brier", "log_loss")
        ]
        lines.append([name, *cells, *values, *gaps])
    return table(HEAD, lines)


def _timing(trials: Trials, base: Trials, clocks: str) -> str:
    seconds, theirs = ([c.cpu for c in getattr(t, clocks)] for t in (trials, base))
    if trials is base:
        return f"{three(median(seconds))} ({three(min(seconds))} to {three(max(seconds))})"
    middle, least, most = ratios(seconds, theirs)
    return f"{three(median(seconds))}, {three(middle)}x ({three(least)} to {three(most)})"


def sentences(found: dict[str, Trials]) -> list[str]:
    """Say for each setting of lowcal where it is worse than the logistic regression, and where it is better."""
    name = faster(found)
    said = [f"The baseline is {name}, the one that fits in less CPU time."]
    for ours in (o for o in found if o.startswith("lowcal")):
        worse, best = [], []
        for kind in ("brier", "log_loss", *NOTIONS):
            gap, error = found[ours].gap(found[name], kind)
            what = {"brier": "Brier score", "log_loss": "log loss"}.get(kind, f"{kind} violation")
            if abs(gap) > error:
                (worse if gap > 0 else best).append(f"{what} ({gap:+.4f} ± {error:.4f})")
        middle, _, _ = ratios([c.cpu for c in found[ours].fits], [c.cpu for c in found[name].fits])
        (worse if middle > 1 else best).append(f"CPU time to fit ({three(middle)}x)")
        said.append(f"{ours}: worse in {', '.join(worse) or 'nothing'}; better in {', '.join(best) or 'nothing'}.")
    return said


INTRODUCTION = """\
Made-up tasks as in the comparison with peers, judged against the true f* on as many new rows, a new world for each
seed, and Adult, judged by the labels of its test rows, a new split of the other rows for each seed; {seeds} seeds,
methods in turns, one thread. All read the same frame of categorical columns within their seconds; the features of the
logistic regression are written into a sparse matrix without a detour. Differences are means over the seeds with their
standard error; "worse" and "better" mean by more than one. The made-up world has the very form of the logistic
regression, but for an interaction of two columns that neither can see; where log odds are bent by group its form is
exactly true, and where they are curved it is not.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare at every size and print the tables and what they show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes only, to see that everything runs")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rows", type=int, nargs="*")
    parser.add_argument("--groups", type=int, nargs="*", default=list(SHAPES))
    given = parser.parse_args(arguments)
    print(INTRODUCTION.format(seeds=given.seeds))
    rows = given.rows or ([1_000] if given.quick else [10_000, 100_000])
    draws = [partial(made_up, n, g) for n in rows for g in given.groups]
    draws += [partial(draw, min(rows), g) for draw in (bent, curved) for g in given.groups]
    draws.append(partial(adult, 1_000 if given.quick else None))
    for draw in draws:
        with threadpool_limits(1):
            found = run_seeds(draw, given.seeds)
        print(f"### {draw(0).name}\n\n{show(found)}\n")
        print("".join(f"* {line}\n" for line in sentences(found)), flush=True)


if __name__ == "__main__":
    main()
