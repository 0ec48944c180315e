"""Data to try things on: the paper's two exact worlds, made-up data with a known truth, and UCI Adult."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput, check_choice, sentence

__all__ = ["Dataset", "load_adult", "make_miscalibrated", "parity_square", "two_halves"]

Floats = NDArray[np.float64]

#: The checksum of the shipped file of UCI Adult.
SHA256 = "29c4fe1a63361e4b5284df21b9797bf39fd3dfb2c593a19609d5bd4315348e50"
#: The largest size, in logits, with which all probabilities are finite.
LARGEST = 1e6


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows (x, y, weight) with the start predictor p and, in a made-up world, the Bayes predictor f*.

    Binary data hold p and f* as probabilities of label 1, of shape (n,); with l >= 3 labels their shape
    is (n, l) and each row sums to 1.

    Parameters
    ----------
    X : named columns, as `pandas.DataFrame(X)` takes them; text columns are object arrays of str, with None where the
        value is missing.
    y : labels 0, 1, ..., l - 1.
    p : the predictor to be recalibrated.
    f_star : E[y | x], where it is known.
    sample_weight : None means equal weights.
    description : where the rows come from.

    >>> Dataset({"x": np.array([1, 2])}, np.array([0, 1]), description="two rows")
    Dataset(2 rows, columns x; two rows)
    """

    X: dict[str, NDArray[Any]]
    y: NDArray[np.int64]
    p: NDArray[np.float64] | None = None
    f_star: NDArray[np.float64] | None = None
    sample_weight: NDArray[np.float64] | None = None
    description: str = ""

    def __repr__(self) -> str:
        return f"Dataset({len(self.y)} rows, columns {', '.join(self.X)}; {self.description})"

    def __getitem__(self, rows: slice | NDArray[Any]) -> Dataset:
        """Return some of the rows.

        >>> Dataset({"x": np.array([1, 2, 3])}, np.array([0, 1, 1]))[1:].X["x"]
        array([2, 3])
        """
        X = {name: column[rows] for name, column in self.X.items()}
        p, f_star, weight = (None if each is None else each[rows] for each in (self.p, self.f_star, self.sample_weight))
        return Dataset(X, self.y[rows], p, f_star, weight, self.description)


# --- exact worlds and made-up data ----------------------------------------------------------------------------


def parity_square(labels: Literal["xnor", "xor"] = "xnor") -> Dataset:
    """Return the world in which a multiaccurate predictor is negatively correlated with its label.

    X = {0, 1}^2 with weights 1/3 on (0, 0), (0, 1) and 1/6 on (1, 0), (1, 1); the subpopulations are the
    four x_i = b. Least squares on them puts 2/3 on the half of x2 that agrees with the heavier x1 = 0 and
    1/3 on the other, so that Cov(p, y | x1 = 1) = -1/12 (paper, Appendix B).

    Parameters
    ----------
    labels : "xnor" is y = 1 where x1 = x2 (the paper's figure), "xor" where x1 != x2 (its text).

    >>> data = parity_square()
    >>> data.y
    array([1, 0, 0, 1])
    >>> error = data.sample_weight * (data.X["x2"] == 1) * (data.y - data.p)
    >>> abs(float(error.sum())) < 1e-15
    True
    """
    check_choice("labels", labels, ("xnor", "xor"))
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
    n_samples : the number of rows.
    n_columns : text columns "g0", "g1", ...; beside them stand the numeric "x0" and "x1". The interaction needs two.
    n_levels : values "a", "b", ... of each text column, at least 2.
    n_classes : 2 gives p and f* of shape (n,), more give (n, n_classes).
    overconfidence : factor on the logits of p, above 0 and at most 1e6; 1 is none.
    group_shift : size, in logits, of what p ignores, from 0 to 1e6.
    random_state : seed.

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
    # directions of length 1, spread evenly over the plane from a random start
    angle = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(n_classes - 1) / (n_classes - 1)
    slope = np.stack([np.cos(angle), np.sin(angle)])
    # effects of (column, level) on the scores, evenly spaced in [-1, 1], and signs of the interaction
    steps = np.broadcast_to(np.linspace(-1, 1, n_levels)[:, None], (n_columns, n_levels, n_classes - 1))
    effects, sign = rng.permuted(steps, axis=1), rng.choice([-1.0, 1.0], size=n_classes - 1)
    codes = rng.integers(n_levels, size=(n_columns, n_samples))
    x = rng.standard_normal((2, n_samples))
    base = x.T @ slope
    f_star = _softmax(base + group_shift * _group_scores(codes, effects, sign))
    names = np.array([_level_name(i) for i in range(n_levels)], dtype=object)

    def shown(f: Floats) -> Floats:
        return f[:, 1].copy() if n_classes == 2 else f

    return Dataset(
        X={f"g{j}": names[code] for j, code in enumerate(codes)} | {f"x{j}": each.copy() for j, each in enumerate(x)},
        y=(np.cumsum(f_star[:, :-1], axis=1) <= rng.random((n_samples, 1))).sum(axis=1, dtype=np.int64),
        p=shown(_softmax(overconfidence * base)),
        f_star=shown(f_star),
        description=f"made up: logits times {overconfidence:g}, group effects of {group_shift:g} ignored",
    )


def _group_scores(codes: NDArray[np.int64], effects: Floats, sign: Floats) -> Floats:
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
    """Return the probabilities of all l labels; label 0 has score 0."""
    full = np.column_stack([np.zeros(len(scores)), scores])
    full -= full.max(axis=1, keepdims=True)
    np.exp(full, out=full)
    full /= full.sum(axis=1, keepdims=True)
    return full


def _level_name(i: int) -> str:
    """Name level i as spreadsheets name columns: a, ..., z, aa, ..., zz, aaa.

    >>> [_level_name(i) for i in (0, 25, 26, 701, 702)]
    ['a', 'z', 'aa', 'zz', 'aaa']
    """
    head, last = divmod(i, 26)
    return ("" if head == 0 else _level_name(head - 1)) + chr(ord("a") + last)


def _check_size(name: str, value: Any, *, above_zero: bool) -> None:
    # the upper bound keeps the logits finite, and comparing lets neither NaN nor infinity through
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= LARGEST) or (above_zero and value == 0):
        least = "above 0" if above_zero else "of at least 0"
        raise InvalidInput(f"{name} must be a number {least} and at most {LARGEST:g}; got {value!r}")


# --- UCI Adult ------------------------------------------------------------------------------------------------


def load_adult(subset: Literal["all", "train", "test"] = "all") -> Dataset:
    """Load the Adult data, which are shipped inside the package; no network, no optional library.

    y = 1 where the income is above $50K. The text columns (workclass, education, marital_status,
    occupation, relationship, race, sex, native_country) hold str, or None where the published value is
    "?"; the numeric ones hold int64. The census weight `fnlwgt` is a column; `sample_weight` is None.
    Becker and Kohavi (1996), https://doi.org/10.24432/C5XW20, CC BY 4.0; see data/ATTRIBUTION.md.

    Parameters
    ----------
    subset : the published split: 32,561 rows to train, 16,281 to test; "all" is one after the other.

    >>> data = load_adult("test")
    >>> len(data.y), int(data.y.sum()), sorted(set(data.X["sex"]))
    (16281, 3846, ['Female', 'Male'])
    """
    check_choice("subset", subset, ("all", "train", "test"))
    columns = _read(files("lowcal.datasets").joinpath("data", "adult.npz"))
    split, income = columns.pop("split"), columns.pop("income")
    rows = (split == subset) | (subset == "all")
    return Dataset(
        X={name: column[rows] for name, column in columns.items()},
        y=(income[rows] == ">50K").astype(np.int64),
        description=f"UCI Adult (Becker and Kohavi, 1996; CC BY 4.0), {subset} rows",
    )


def _read(path: Traversable) -> dict[str, NDArray[Any]]:
    """Read every column of the file, after checking that its bytes are the shipped ones."""
    try:
        content = path.read_bytes()
    except OSError as error:
        why = sentence(f"the Adult data can't be read from {path}: {error}")
        raise InvalidInput(f"{why} Reinstall lowcal.") from error
    if sha256(content).hexdigest() != SHA256:
        raise InvalidInput(
            f"the Adult data in {path} are damaged or truncated: its {len(content)} bytes do not have the "
            f"SHA-256 checksum {SHA256}. Reinstall lowcal."
        )
    with np.load(BytesIO(content), allow_pickle=False) as stored:
        categories = json.loads(str(stored["categories"]))
        names = [name for name in stored.files if name != "categories"]
        # a column of text is stored as codes, -1 where it is missing
        texts = {name: np.array([*known, None], dtype=object) for name, known in categories.items()}
        return {name: texts[name][stored[name]] if name in texts else stored[name].astype(np.int64) for name in names}
