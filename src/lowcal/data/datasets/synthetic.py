"""Worlds whose truth is known: the paper's two exact examples, and a miscalibrated model of any size."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lowcal.data.datasets.base import Dataset
from lowcal.data.errors import InvalidInput, suggest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LARGEST = 1e6


def parity_square(labels: Literal["xnor", "xor"] = "xnor") -> Dataset:
    """Return the world in which a multiaccurate predictor is negatively correlated with its label.

    X = {0, 1}^2 with weights 1/3 on (0, 0), (0, 1) and 1/6 on (1, 0), (1, 1); the subpopulations are the
    four x_i = b. Least squares on them puts 2/3 on the half of x2 that agrees with the heavier x1 = 0 and
    1/3 on the other, so that Cov(p, y | x1 = 1) = -1/12 (paper, Appendix B).

    Parameters
    ----------
    labels : "xnor" or "xor"
        y = 1 where x1 = x2 (the paper's figure), or where x1 != x2 (its text).

    >>> data = parity_square()
    >>> data.y
    array([1, 0, 0, 1])
    >>> error = data.sample_weight * (data.X["x2"] == 1) * (data.y - data.p)
    >>> abs(float(error.sum())) < 1e-15
    True
    """
    if labels not in ("xnor", "xor"):
        hint = suggest(str(labels), ("xnor", "xor"))
        raise InvalidInput(f"labels must be 'xnor' or 'xor'; got {labels!r}.{hint}")
    x1, x2 = np.array([0, 0, 1, 1], dtype=np.int64), np.array([0, 1, 0, 1], dtype=np.int64)
    favoured = 0 if labels == "xnor" else 1
    y = (x1 ^ x2 == favoured).astype(np.int64)
    return Dataset(
        X={"x1": x1, "x2": x2},
        y=y,
        p=np.where(x2 == favoured, 2 / 3, 1 / 3),
        f_star=y.astype(np.float64),
        sample_weight=np.array([1 / 3, 1 / 3, 1 / 6, 1 / 6]),
        description=f"parity square, {labels.upper()} labels: multiaccurate, yet Cov(p, y) < 0 on x1 = 1",
    )


def two_halves() -> Dataset:
    """Return the population of which half A has label 1 with chance 70%, half B with chance 30%.

    Four weighted rows, half by label, hold it exactly. The start predictor is the paper's g, 1 on A and 0
    on B: right in expectation and overconfident. Its generalised false positive rate E[p | y = 0] is 0.30,
    below the 0.42 of f* itself (the paper prints 0.58, which is the true positive rate of f*).

    >>> data = two_halves()
    >>> float(np.average(data.f_star, weights=data.sample_weight * (data.y == 0))).__round__(2)
    0.42
    """
    return Dataset(
        X={"half": np.array(["A", "A", "B", "B"], dtype=object)},
        y=np.array([1, 0, 1, 0], dtype=np.int64),
        p=np.array([1.0, 1.0, 0.0, 0.0]),
        f_star=np.array([0.7, 0.7, 0.3, 0.3]),
        sample_weight=np.array([0.35, 0.15, 0.15, 0.35]),
        description="two halves, 70% and 30% positive; p says 1 and 0",
    )


def make_miscalibrated(
    n_samples: int = 10_000,
    *,
    n_columns: int = 5,
    n_levels: int = 4,
    n_classes: int = 2,
    overconfidence: float = 2.0,
    group_shift: float = 0.5,
    random_state: int | np.random.Generator | None = None,
) -> Dataset:
    """Draw labels from a known f*, with a start predictor that is overconfident and blind to groups.

    The scores of labels 1, ..., l - 1 (that of label 0 is 0) are s = <x, slope> + sum_j effect_j(g_j)
    + interaction(g0, g1); f* = softmax(s) and p = softmax(overconfidence * <x, slope>). Slopes have
    length 1 and point evenly in all directions. The levels of each column are spread evenly over
    [-b, b], b = group_shift / sqrt(n_columns), in random order: the sum keeps its size whatever the number
    of columns. The interaction is +-group_shift by the parity of the two levels, so that single columns
    see little of it. The world is drawn before the rows: one seed gives one f*, whatever `n_samples`.
    Memory is of order n_samples * (n_columns + n_classes), time n_samples * n_columns * n_classes.

    Parameters
    ----------
    n_samples : int, at least 1
    n_columns : int, at least 1
        Text columns "g0", "g1", ...; beside them stand the numeric "x0" and "x1". The interaction needs two.
    n_levels : int, at least 2
        Values "a", "b", ... of each text column.
    n_classes : int, at least 2
        2 gives p and f* of shape (n,), more give (n, n_classes).
    overconfidence : float, above 0 and at most 1e6
        Factor on the logits of p; 1 is none.
    group_shift : float, from 0 to 1e6
        Size, in logits, of what p ignores.
    random_state : int, Generator or None

    >>> data = make_miscalibrated(1000, n_classes=3, random_state=0)
    >>> data.p.shape, sorted(data.X), sorted(set(data.X["g0"]))
    ((1000, 3), ['g0', 'g1', 'g2', 'g3', 'g4', 'x0', 'x1'], ['a', 'b', 'c', 'd'])
    """
    from lowcal.data.inputs import check_whole  # which loads SciPy

    for least, name, value in ((1, "n_samples", n_samples), (1, "n_columns", n_columns), (2, "n_levels", n_levels)):
        check_whole(name, value, least)
    check_whole("n_classes", n_classes, 2)
    _check_size("overconfidence", overconfidence, above_zero=True)
    _check_size("group_shift", group_shift, above_zero=False)
    if not (random_state is None or isinstance(random_state, np.random.Generator)):
        check_whole("random_state", random_state, 0)
    rng = np.random.default_rng(random_state)
    slope = _slopes(rng, n_classes - 1)
    effects, sign = _group_effects(rng, n_columns, n_levels, n_classes - 1)
    codes = rng.integers(n_levels, size=(n_columns, n_samples))
    x = rng.standard_normal((2, n_samples))
    base = x.T @ slope
    f_star = _softmax(base + group_shift * _group_scores(codes, effects, sign))
    return Dataset(
        X=_columns(codes, x, n_levels),
        y=_draw(rng, f_star),
        p=_binary_or_simplex(_softmax(overconfidence * base)),
        f_star=_binary_or_simplex(f_star),
        description=f"made up: logits times {overconfidence:g}, group effects of {group_shift:g} ignored",
    )


def _slopes(rng: np.random.Generator, n_scores: int) -> Floats:
    """Spread directions of length 1 evenly over the plane, one column for each score, from a random start."""
    angle = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(n_scores) / n_scores
    return np.stack([np.cos(angle), np.sin(angle)])


def _group_effects(rng: np.random.Generator, n_columns: int, n_levels: int, n_scores: int) -> tuple[Floats, Floats]:
    """Draw the effects of (column, level) on the scores, evenly spaced in [-1, 1], and interaction signs."""
    steps = np.broadcast_to(np.linspace(-1, 1, n_levels)[:, None], (n_columns, n_levels, n_scores))
    return rng.permuted(steps, axis=1), rng.choice([-1.0, 1.0], size=n_scores)


def _group_scores(codes: Ints, effects: Floats, sign: Floats) -> Floats:
    """Add up the effects of every group column, and the parity of the first two."""
    scores = np.zeros((codes.shape[1], len(sign)))
    # without the root, many columns would make f* more extreme than the overconfident p
    for code, effect in zip(codes, effects / np.sqrt(len(codes)), strict=True):
        scores += effect[code]
    if len(codes) >= 2:
        parity = 1 - 2 * ((codes[0] + codes[1]) % 2)
        scores += parity[:, None] * sign
    return scores


def _softmax(scores: Floats) -> Floats:
    """Turn the scores of labels 1, ..., l - 1 into the probabilities of all l; label 0 has score 0."""
    full = np.column_stack([np.zeros(len(scores)), scores])
    full -= full.max(axis=1, keepdims=True)
    np.exp(full, out=full)
    full /= full.sum(axis=1, keepdims=True)
    return full


def _draw(rng: np.random.Generator, f: Floats) -> Ints:
    """Draw a label from each row by inverting its distribution function."""
    below = np.cumsum(f[:, :-1], axis=1) <= rng.random(len(f))[:, None]
    y: Ints = below.sum(axis=1, dtype=np.int64)
    return y


def _binary_or_simplex(f: Floats) -> Floats:
    return f[:, 1].copy() if f.shape[1] == 2 else f


def _columns(codes: Ints, x: Floats, n_levels: int) -> dict[str, NDArray[Any]]:
    names = np.array([_level_name(i) for i in range(n_levels)], dtype=object)
    groups = {f"g{j}": names[code] for j, code in enumerate(codes)}
    return groups | {f"x{j}": column.copy() for j, column in enumerate(x)}


def _level_name(i: int) -> str:
    """Name level i as spreadsheets name columns.

    >>> [_level_name(i) for i in (0, 25, 26, 701, 702)]
    ['a', 'z', 'aa', 'zz', 'aaa']
    """
    head, last = divmod(i, 26)
    return ("" if head == 0 else _level_name(head - 1)) + chr(ord("a") + last)


def _check_size(name: str, value: Any, *, above_zero: bool) -> None:
    # the upper bound keeps the logits finite, and comparing lets neither NaN nor infinity through
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    number = number and bool(0 <= value <= LARGEST)
    if not number or (above_zero and value == 0):
        least = "above 0" if above_zero else "of at least 0"
        raise InvalidInput(f"{name} must be a number {least} and at most {LARGEST:g}; got {value!r}")
