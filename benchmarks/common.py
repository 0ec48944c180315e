"""What the benchmarks share: tasks with the same rows for every rival, clocks, scores and tables.

Nothing here imports lowcal at the top: a rival with other requirements reads its rows in an interpreter of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, TypeVar

import numpy as np

Array = np.ndarray
T = TypeVar("T")

#: Columns and levels of the made-up tasks, by their number of groups.
SHAPES = {20: (5, 4), 100: (10, 10)}
#: Every column of a task has fewer values than this, so `Groups` never cuts one.
MOST_LEVELS = 32
NOTIONS = {"degree 1": "multiaccuracy", "degree 2": "degree-2", "full 0.1": "full-0.1"}
#: Settings of lowcal that are compared with rivals.
OURS: dict[str, dict[str, Any]] = {
    "lowcal degree-2": {"alpha": 0.001},
    "lowcal degree-2, euclidean": {"alpha": 0.001, "geometry": "euclidean"},
    "lowcal degree-3": {"alpha": 0.001, "notion": "degree-3"},
    "lowcal defaults (degree-2, alpha 0.01)": {},
    "lowcal Trees": {"trees": True},
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Codes of the categorical columns (n, D), labels, start predictions and, where known, f*."""

    codes: Array
    y: Array
    p: Array
    f_star: Array | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def target(self) -> Array:
        """What violations and losses are measured against: f* where it is known."""
        return self.y.astype(float) if self.f_star is None else self.f_star

    def frame(self) -> Any:
        """Return the columns as a pandas frame of categories, or without pandas as columns of text."""
        text = np.array([f"v{k}" for k in range(MOST_LEVELS)])
        columns = {f"g{j}": column for j, column in enumerate(self.codes.T)}
        try:
            import pandas as pd
        except ImportError:
            return {name: text[column] for name, column in columns.items()}
        return pd.DataFrame({n: pd.Categorical.from_codes(c, categories=list(text)) for n, c in columns.items()})


@dataclass(frozen=True, eq=False)
class Task:
    """Rows to fit on and rows to judge on, drawn from one world."""

    name: str
    train: Rows
    test: Rows

    @property
    def n_groups(self) -> int:
        """Distinct values, added up over the columns."""
        return sum(len(np.unique(column)) for column in self.train.codes.T)

    def memberships(self) -> tuple[Array, Array]:
        """Return 0/1 memberships of the training and the test rows, a column for each value seen in training."""
        values = [np.unique(column) for column in self.train.codes.T]
        train, test = (
            np.concatenate([column[:, None] == v for column, v in zip(rows.codes.T, values, strict=True)], axis=1)
            for rows in (self.train, self.test)
        )
        return train, test

    def head(self, n: int) -> Task:
        """Return a small version, to warm up on."""
        parts = [
            Rows(r.codes[:n], r.y[:n], r.p[:n], None if r.f_star is None else r.f_star[:n])
            for r in (self.train, self.test)
        ]
        return Task(self.name, *parts)

    def save(self, path: Path) -> None:
        """Write the rows where a rival in another process can read them."""
        arrays = {}
        for part, rows in (("train", self.train), ("test", self.test)):
            arrays |= {f"{part}_{k}": v for k, v in vars(rows).items() if v is not None}
        np.savez(path, name=np.array(self.name), **arrays)

    @classmethod
    def load(cls, path: Path) -> Task:
        """Read what `save` wrote."""
        with np.load(path) as stored:
            parts = [Rows(*(stored.get(f"{part}_{k}") for k in Rows.__annotations__)) for part in ("train", "test")]
            return cls(str(stored["name"]), *parts)


def made_up(n: int, n_groups: int, seed: int = 0) -> Task:
    """Draw n rows to fit on and n to judge on: overlapping groups, an overconfident start blind to them, known f*."""
    from lowcal.datasets import make_miscalibrated

    columns, levels = SHAPES[n_groups]
    data = make_miscalibrated(2 * n, n_columns=columns, n_levels=levels, random_state=seed)
    codes = np.column_stack([_codes(data.X[f"g{j}"]) for j in range(columns)])
    train, test = slice(n), slice(n, None)
    return Task(
        f"made up, {n:,} rows, {n_groups} groups",
        Rows(codes[train], data.y[train], data.p[train], data.f_star[train]),
        Rows(codes[test], data.y[test], data.p[test], data.f_star[test]),
    )


def bent(n: int, n_groups: int, seed: int = 0) -> Task:
    """Draw a world whose log odds every group shifts and bends: a logistic regression on these is exactly true."""
    rng = np.random.default_rng([seed, 1])
    codes, size = _uneven(rng, 2 * n, n_groups), np.sqrt(SHAPES[n_groups][0])
    shift, slope = (rng.normal(0, s / size, SHAPES[n_groups]) for s in (0.9, 0.4))
    z = rng.normal(-0.8, 1.5, 2 * n)
    score = 0.2 + 0.8 * z + sum(a[c] + b[c] * z for a, b, c in zip(shift, slope, codes.T, strict=True))
    return _drawn(f"log odds bent by group, {n:,} rows, {n_groups} groups", rng, codes, z, score)


def curved(n: int, n_groups: int, seed: int = 0) -> Task:
    """Draw a world in which two groups curve the log odds, and p distorts them along no line."""
    rng = np.random.default_rng([seed, 2])
    codes, size = _uneven(rng, 2 * n, n_groups), np.sqrt(SHAPES[n_groups][0])
    shift, u = rng.normal(0, 0.7 / size, SHAPES[n_groups]), rng.normal(0, 1, 2 * n)
    score = 1.3 * u - 0.5 + sum(a[c] for a, c in zip(shift, codes.T, strict=True))
    score += 0.5 * (codes[:, 0] == 0) * np.abs(u) - 0.4 * (codes[:, 1] == 1) * (u**2 - 1)
    q = 1 / (1 + np.exp(0.5 - 1.3 * u))
    p = 0.08 + 0.9 * q**2 / (q**2 + (1 - q) ** 1.2)
    return _drawn(f"log odds curved by group, {n:,} rows, {n_groups} groups", rng, codes, np.log(p / (1 - p)), score)


def _uneven(rng: np.random.Generator, n: int, n_groups: int) -> Array:
    """Draw columns whose values differ in how often they occur."""
    columns, levels = SHAPES[n_groups]
    shares = rng.dirichlet(np.full(levels, 3.0), columns)
    return np.column_stack([rng.choice(levels, n, p=share) for share in shares]).astype(np.uint8)


def _drawn(name: str, rng: np.random.Generator, codes: Array, z: Array, score: Array) -> Task:
    """Draw labels of the true score and cut the rows in two halves; z is what the start predicts."""
    f_star, p = 1 / (1 + np.exp(-score)), 1 / (1 + np.exp(-z))
    y, n = (rng.random(len(p)) < f_star).astype(np.int64), len(p) // 2
    return Task(name, *(Rows(codes[h], y[h], p[h], f_star[h]) for h in (slice(n), slice(n, None))))


def adult(limit: int | None = None, seed: int = 0) -> Task:
    """UCI Adult: a logistic regression on five numbers; a quarter of the training rows fit it, the rest recalibrate it.

    Groups are the values of eight columns (age and hours cut at quintiles); the published test rows judge.
    """
    from lowcal.datasets import load_adult

    data = load_adult("all")
    split = 32_561
    codes = np.column_stack([_codes(data.X[name]) for name in ADULT_TEXT] + [_quintiles(data.X[k], split) for k in CUT])
    numbers = np.column_stack([np.log1p(data.X[name]) for name in ADULT_NUMBERS])
    shuffled = np.random.default_rng(seed).permutation(split)
    model, calibrate = shuffled[: split // 4], shuffled[split // 4 :][:limit]
    p = _start(numbers[model], data.y[model], numbers)
    test = np.arange(split, len(p))[:limit]
    n_groups = sum(len(np.unique(column)) for column in codes.T)
    return Task(
        f"UCI Adult, {len(calibrate):,} rows, {n_groups} groups",
        *(Rows(codes[rows], data.y[rows], p[rows]) for rows in (calibrate, test)),
    )


ADULT_TEXT = ("sex", "race", "education", "marital_status", "occupation", "workclass")
CUT = ("age", "hours_per_week")
ADULT_NUMBERS = ("age", "education_num", "hours_per_week", "capital_gain", "capital_loss")


def _start(numbers: Array, y: Array, everyone: Array) -> Array:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(numbers, y)
    probabilities: Array = model.predict_proba(everyone)[:, 1]
    return probabilities


def _codes(column: Array) -> Array:
    return np.unique(column.astype(str), return_inverse=True)[1].astype(np.uint8)


def _quintiles(column: Array, fitted: int) -> Array:
    cuts = np.unique(np.quantile(column[:fitted], [0.2, 0.4, 0.6, 0.8]))
    return np.searchsorted(cuts, column).astype(np.uint8)


# --- scores ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Score:
    """Largest held-out violation of each notion, and the losses with their values on single rows."""

    violations: dict[str, float]
    brier: float
    log_loss: float
    brier_rows: Array
    log_loss_rows: Array

    def gap(self, other: Score, loss: str) -> tuple[float, float]:
        """Return how much larger this loss is than the other's, and the standard error of that over the rows."""
        difference = getattr(self, f"{loss}_rows") - getattr(other, f"{loss}_rows")
        return float(difference.mean()), float(difference.std() / np.sqrt(len(difference)))


def score(rows: Rows, q: Array) -> Score:
    """Judge predictions q on held-out rows: against f* where it is known, otherwise against labels.

    With f* the losses are their expectations over labels. Log loss keeps probabilities a machine epsilon away from 0
    and 1, as scikit-learn does.
    """
    import lowcal

    t, frame = rows.target, rows.frame()
    groups = lowcal.Groups(n_bins=MOST_LEVELS)
    found = {k: lowcal.measure(t, q, frame, subpopulations=groups, notion=v).largest for k, v in NOTIONS.items()}
    brier = t * (1 - q) ** 2 + (1 - t) * q**2
    inside = np.clip(q, np.finfo(float).eps, 1 - np.finfo(float).eps)
    log_loss = -(t * np.log(inside) + (1 - t) * np.log1p(-inside))
    return Score(found, float(brier.mean()), float(log_loss.mean()), brier, log_loss)


# --- lowcal as a rival: the same three methods that every rival has ----------------------------------------------


class Ours:
    """lowcal with some settings, or with trees as the estimators use them: prepare (not timed), fit, predict."""

    def __init__(self, task: Task, trees: bool = False, **options: Any):
        import lowcal

        groups = lowcal.Groups(n_bins=MOST_LEVELS)
        self.task, self.options, self.trees = task, {"subpopulations": groups, "random_state": 0, **options}, trees
        self.train, self.test = task.train.frame(), task.test.frame()

    def fit(self) -> None:
        """Recalibrate the training rows."""
        import lowcal

        fit = boosted_trees if self.trees else partial(lowcal.multicalibrate, **self.options)
        self.model = fit(self.task.train.y, self.task.train.p, self.train)

    def predict(self) -> Array:
        """Recalibrate the test rows."""
        return np.asarray(self.model.predictor(self.task.test.p, self.test))


def boosted_trees(y: Array, p: Array, X: Any, geometry: str = "mirror") -> Any:
    """Recalibrate as MulticalibratedClassifier does by default: cross-fitting chooses the rounds."""
    import lowcal
    from lowcal.estimators import BOOSTED

    trees = lowcal.Trees(**BOOSTED, geometry=geometry)  # type: ignore[arg-type]
    return lowcal.multicalibrate(y, p, X, subpopulations=trees, random_state=0)


def logit(p: Array) -> Array:
    """Return log odds, with p kept a millionth away from 0 and 1."""
    inside = np.clip(p, 1e-6, 1 - 1e-6)
    return np.log(inside / (1 - inside))


# --- clocks and tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clock:
    """CPU seconds of this process, all its threads, and wall seconds."""

    cpu: float
    wall: float


def timed(work: Callable[[], T]) -> tuple[T, Clock]:
    """Run the work once and say what it took."""
    wall, cpu = perf_counter(), process_time()
    result = work()
    return result, Clock(process_time() - cpu, perf_counter() - wall)


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Return median, least and largest of their seconds over ours; turn by turn where both ran in every turn.

    >>> ratios([4.0, 6.0], [2.0, 2.0]), ratios([8.0], [2.0, 4.0])
    ((2.5, 2.0, 3.0), (3.0, 2.0, 4.0))
    """
    if len(theirs) == len(ours):
        found = [a / b for a, b in zip(theirs, ours, strict=True)]
    else:
        found = [a / b for a in theirs for b in ours]
    return median(found), min(found), max(found)


def three(x: float) -> str:
    """Write a positive number with two or three digits.

    >>> [three(x) for x in (0.00123, 0.0456, 1.234, 12.34, 1234.5)]
    ['0.0012', '0.046', '1.2', '12', '1,234']
    """
    if x >= 10:
        return f"{x:,.0f}"
    digits = 1 if x >= 1 else max(2, 1 - int(np.floor(np.log10(max(x, 1e-12)))))
    return f"{x:.{digits}f}"


def small(x: float) -> str:
    """Write a violation or a loss to four places, without the leading zero."""
    return f"{x:.4f}".removeprefix("0")


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table that is aligned, so that it reads well in a terminal too."""
    rows = [list(head), *map(list, lines)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    written = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([written[0], rule, *written[1:]])


def verdict(measured: float, limit: str) -> str:
    """Say whether a figure is within a limit such as "<= 2", ">= 15" or "< 1".

    >>> verdict(1.9, "<= 2"), verdict(14.0, ">= 15"), verdict(0.4, "< .5 s")
    ('met', 'NOT MET', 'met')
    """
    sign, bound = limit.split()[:2]
    within = {"<=": measured <= float(bound), ">=": measured >= float(bound), "<": measured < float(bound)}[sign]
    return "met" if within else "NOT MET"


def show(what: str, measured: Array | float, limit: str = "") -> None:
    """Print one line: what, the median of what was measured and its range, the limit, and whether it is met."""
    numbers = np.atleast_1d(np.asarray(measured, dtype=float))
    middle = float(np.median(numbers))
    spread = f"[{numbers.min():.3g} .. {numbers.max():.3g}]" if len(numbers) > 1 else ""
    judged = f"{limit:>10}   {verdict(middle, limit)}" if limit else ""
    print(f"{what:<92}{middle:>9.3g}  {spread:<20}{judged}".rstrip(), flush=True)
