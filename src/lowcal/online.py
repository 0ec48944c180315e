"""Online forecasts that are multicalibrated on ANY sequence (spec 4.9).

Hedge keeps a weight for each of the N = 2 |C| |W| signed pairs, which grows with the pair's violation so far. At each
step the weighted sum of the pairs is a function s(p) of the forecast, and p is chosen with <s(p), y - p> <= 0 for
every outcome y: a root of s, or an end of [0, 1]; on the simplex an equilibrium of a small symmetric game. So the
weighted violation never grows, and Hedge's regret bounds the largest one. Forecasts are deterministic.

The paper leaves a sample complexity of order alpha^-2 for low degrees open (end of Section 5.2); this gives it for
finite C. `ErrorSequence` watches the forecasts of any model: limits on the error of every group, valid at all times.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq

from lowcal.complexity import basis_tolerance, check_level, coordinates, n_pairs
from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import check_whole
from lowcal.kernels.products import dot, product
from lowcal.kernels.simplex import FloatArray
from lowcal.notions import LowDegree, Multiaccuracy, Notion, parse_notion

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Forecaster:
    """Forecasts one outcome after another; the largest violation stays below `bound` whatever comes.

    After T steps, for every group c and basis weight w: |1/T sum_t c_t <w(p_t), y_t - p_t>| <= sqrt(2 ln N / T) if T
    is the horizon (spec 4.9). For another T it is ln N / (eta T) + eta / 2 with the rate eta = sqrt(2 ln N /
    horizon). Without a horizon the rate sqrt(ln N / t) gives 2 sqrt(ln N / T) at every T. Outcomes may depend on the
    forecasts.

    Cost of a step: O(groups x weights).

    Parameters
    ----------
    n_groups : the number of groups in a membership vector; give everyone a group of its own, always 1.
    notion : "multiaccuracy" or a degree. With three or more classes, degree 2 at most.
    horizon : the number of steps, if known; None holds at any time, for a factor sqrt(2).
    n_classes : 2 (forecasts are numbers in [0, 1]) or more (points of the simplex).

    >>> forecaster = Forecaster(2, horizon=1000)
    >>> rng = np.random.default_rng(0)
    >>> for t in range(1000):
    ...     p = forecaster.predict([1, t % 2])
    ...     forecaster.update(1 if p < 0.5 else 0)  # an adversary
    >>> forecaster.violation <= forecaster.bound
    True
    """

    def __init__(
        self, n_groups: int, notion: str | Notion = "degree-2", horizon: int | None = None, n_classes: int = 2
    ) -> None:
        check_whole("n_groups", n_groups, 1)
        if horizon is not None:
            check_whole("horizon", horizon, 1)
        self.notion = parse_notion(notion)
        self.horizon, self.n_groups, self.n_classes = horizon, int(n_groups), int(n_classes)
        self.n_pairs = n_pairs(self.notion, n_groups, n_classes)
        self._rule = _rule(self.notion, coordinates(n_classes))
        self._sums = np.zeros((self.n_groups, *self._rule.shape))
        self._pending: tuple[FloatArray, FloatArray] | None = None
        self._slack = 0.0
        self.n_steps = 0

    @property
    def violation(self) -> float:
        """The largest |1/T sum c <w(p), y - p>| so far, over groups and basis weights; 0 before the first step."""
        return float(np.abs(self._sums).max()) / max(self.n_steps, 1)

    @property
    def bound(self) -> float:
        """What `violation` can't exceed on any sequence of `n_steps`: Hedge's regret, and what rounding left over."""
        t = self.n_steps
        if t == 0:
            return 1.0
        if self.horizon is None:
            regret = 2.0 * sqrt(log(self.n_pairs) / t)
        else:
            eta = self._rate(t)
            regret = log(self.n_pairs) / (eta * t) + eta / 2
        return min(1.0, regret + self._slack / t)

    @property
    def class_bound(self) -> float:
        """What the supremum over the whole class of weights can't exceed; larger than `bound` on the simplex (3.2)."""
        return self.bound / basis_tolerance(self.notion, 1.0, self.n_classes)

    def predict(self, c: ArrayLike) -> float | FloatArray:
        """Return the forecast for a row with memberships c in [-1, 1], shape (n_groups,)."""
        if self._pending is not None:
            raise InvalidInput(
                "predict was called twice; report the outcome of the last forecast with update(y) first."
            )
        given = _numbers(c, "c")
        if given.shape != (self.n_groups,):
            raise InvalidInput(f"c must hold {self.n_groups} memberships, but its shape is {given.shape}.")
        p = self._predict(_in_range(given[None])[0])
        return float(p[0]) if len(p) == 1 else p

    def update(self, y: ArrayLike) -> None:
        """Take the outcome of the last forecast: 0 or 1 or a number between, or the class 0..l-1."""
        if self._pending is None:
            raise InvalidInput("update was called without a forecast; call predict(c) before each update(y).")
        self._update(self._read_outcomes(np.asarray(y)[None])[0])

    def run(self, C: ArrayLike, y: ArrayLike) -> FloatArray:
        """Forecast rows in order, each before its outcome is seen; return the forecasts, (n,) or (n, l)."""
        if self._pending is not None:
            raise InvalidInput("A forecast is waiting for its outcome; call update(y) before run.")
        rows, outcomes = _read_rows(C, self.n_groups), self._read_outcomes(np.asarray(y))
        if len(rows) != len(outcomes):
            raise InvalidInput(f"C has {len(rows)} rows, but y has {len(outcomes)}. They must describe the same rows.")
        p = np.empty((len(rows), self._sums.shape[2]))
        for t, (c, outcome) in enumerate(zip(rows, outcomes, strict=True)):
            p[t] = self._predict(c)
            self._update(outcome)
        return p[:, 0] if p.shape[1] == 1 else p

    def _rate(self, t: int) -> float:
        """Return Hedge's rate at step t."""
        return sqrt(log(self.n_pairs) / t) if self.horizon is None else sqrt(2 * log(self.n_pairs) / self.horizon)

    def _predict(self, c: FloatArray) -> FloatArray:
        p, slack = self._rule.forecast(self._rate(self.n_steps + 1) * self._sums, c)
        self._slack += slack
        self._pending = (c, p)
        return p

    def _update(self, y: FloatArray) -> None:
        assert self._pending is not None
        c, p = self._pending
        self._sums += c[:, None, None] * self._rule.gains(p, y)
        self._pending = None
        self.n_steps += 1

    def _read_outcomes(self, y: Any) -> FloatArray:
        """Return outcomes as (n, d): numbers in [0, 1], or one-hot rows for classes."""
        given = _numbers(y, "y")
        if given.ndim != 1:
            raise InvalidInput(f"y must hold one outcome for each row, but its shape is {given.shape}.")
        is_binary = self.n_classes == 2
        good = (given >= 0) & (given <= 1) if is_binary else np.isin(given, np.arange(self.n_classes))
        if not good.all():
            row = int((~good).argmax())
            wanted = "a number in [0, 1]" if is_binary else f"a class 0..{self.n_classes - 1}"
            raise InvalidInput(f"An outcome is {wanted}, but {given[row]:g} was given in row {row}.")
        return given[:, None] if is_binary else np.eye(self.n_classes)[given.astype(np.intp)]


def _read_rows(C: ArrayLike, n_groups: int) -> FloatArray:
    given = _numbers(C, "C")
    if given.ndim != 2 or given.shape[1] != n_groups:
        raise InvalidInput(f"C must have shape (n, {n_groups}), but its shape is {given.shape}.")
    return _in_range(given)


def _in_range(C: FloatArray) -> FloatArray:
    good = np.abs(C) <= 1
    if not good.all():
        row, group = np.unravel_index(int((~good).argmax()), C.shape)
        raise InvalidInput(f"Memberships lie in [-1, 1], but {C[row, group]} was given in row {row}, group {group}.")
    return C


def _numbers(values: Any, name: str) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must hold numbers, but could not be read as such ({error}).") from error


def _rule(notion: Notion, d: int) -> _Scalar | _Simplex:
    """Return how forecasts are made for this notion."""
    if not isinstance(notion, Multiaccuracy | LowDegree):
        raise InvalidInput(
            f"Online forecasts need a finite list of weights that are continuous in the forecast; {notion} has none. "
            'Use "multiaccuracy" or a degree such as "degree-2".'
        )
    degree = notion.degree if isinstance(notion, LowDegree) else 1
    if d == 1:
        return _Scalar(degree)
    if degree > 2:
        raise InvalidInput(
            f"With {d} classes online forecasts are made up to degree 2, but degree {degree} was asked for."
        )
    return _Simplex(d, degree)


def _mixed(scaled: FloatArray, c: FloatArray) -> FloatArray:
    """Return sum_c c (lambda+ - lambda-) for each basis weight, with Hedge's normalised weights lambda of the sums."""
    top = float(np.abs(scaled).max())
    up, down = np.exp(scaled - top), np.exp(-scaled - top)
    total = float(up.sum() + down.sum())
    return np.asarray(np.einsum("c,c...->...", c, up - down) / total)


@dataclass(frozen=True)
class _Scalar:
    """Forecasts in [0, 1]: s(p) = sum_j coef_j p^j, j < degree."""

    degree: int

    @property
    def shape(self) -> tuple[int, int]:
        """Weights and labels."""
        return self.degree, 1

    def gains(self, p: FloatArray, y: FloatArray) -> FloatArray:
        """Return p^j (y - p) for every weight, shape (degree, 1)."""
        value = float(p[0])
        return np.array([[value**j] for j in range(self.degree)]) * (float(y[0]) - value)

    def forecast(self, scaled: FloatArray, c: FloatArray) -> tuple[FloatArray, float]:
        """Return p with s(p) (y - p) <= 0 for y = 0 and y = 1, and by how much rounding misses that."""
        coefficients = _mixed(scaled, c)[:, 0].tolist()
        p = _root(coefficients)
        s = _polynomial(coefficients, p)
        return np.array([p]), max(0.0, s * (1.0 - p), -s * p)


def _polynomial(coefficients: list[float], p: float) -> float:
    value = 0.0
    for coefficient in reversed(coefficients):
        value = value * p + coefficient
    return value


def _root(coefficients: list[float]) -> float:
    """Return 1 if s(1) >= 0, 0 if s(0) <= 0, otherwise a point between where s changes its sign.

    >>> _root([0.3, -0.5]), _root([0.1, 0.2]), _root([-0.1, -0.2]), round(_root([1.0, -3.0, 0.0, 1.0]), 6)
    (0.6, 1.0, 0.0, 0.347296)
    """
    if sum(coefficients) >= 0:
        return 1.0
    if coefficients[0] <= 0:
        return 0.0
    return float(brentq(lambda p: _polynomial(coefficients, p), 0.0, 1.0, xtol=1e-300, disp=False))


@dataclass(frozen=True)
class _Simplex:
    """Forecasts on the simplex: s(p) = M p, and p is an equilibrium: max_a (M p)_a <= p' M p."""

    d: int
    degree: int

    @property
    def shape(self) -> tuple[int, int]:
        """Weights (the constant, then the coordinates) and labels."""
        return (1 if self.degree == 1 else 1 + self.d), self.d

    def gains(self, p: FloatArray, y: FloatArray) -> FloatArray:
        """Return u(p) (y_a - p_a) for every weight and label."""
        weights = np.ones(1) if self.degree == 1 else np.concatenate([[1.0], p])
        return np.asarray(weights[:, None] * (y - p))

    def forecast(self, scaled: FloatArray, c: FloatArray) -> tuple[FloatArray, float]:
        """Return p with <s(p), y - p> <= 0 for every y of the simplex, and by how much it misses that."""
        theta = _mixed(scaled, c)
        M = np.repeat(theta[0][:, None], self.d, axis=1)  # a constant is M p with equal columns, as sum p = 1
        if self.degree == 2:
            M = M + theta[1:].T
        p = equilibrium(M)
        s = product(M, p)
        return p, max(0.0, float(s.max() - dot(s, p)))


def equilibrium(M: FloatArray) -> FloatArray:
    """Return p on the simplex with max_a (M p)_a <= p' M p: a symmetric equilibrium of the game with payoffs M.

    Complementary pivoting on {z >= 0, M z <= 1} for M > 0 (adding a constant to M changes no equilibrium): from the
    vertex z = 0, where every label a has z_a = 0, along edges that miss one label at most, to the next vertex where
    every a has z_a = 0 or (M z)_a = 1 (Lemke and Howson 1964); ties are broken lexicographically. The caller measures
    what is missing.

    >>> equilibrium(np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])).round(6)
    array([0.333333, 0.333333, 0.333333])
    """
    d = len(M)
    payoffs = M - M.min() + max(float(np.ptp(M)), 1e-300)
    tableau = np.hstack([payoffs / payoffs.max(), np.eye(d), np.ones((d, 1))])
    basis = list(range(d, 2 * d))
    entering = 0
    for _ in range(50 * d):  # then it is taken as it is
        row = _leaving(tableau, entering, d)
        leaving, basis[row] = basis[row], entering
        tableau[row] /= tableau[row, entering]
        column = tableau[:, entering].copy()
        column[row] = 0.0
        tableau -= column[:, None] * tableau[row]
        if leaving % d == 0:  # the label that was missing is back
            break
        entering = (leaving + d) % (2 * d)
    z = np.zeros(2 * d)
    z[basis] = np.maximum(tableau[:, -1], 0.0)
    return np.asarray(z[:d] / z[:d].sum()) if z[:d].sum() > 0 else np.full(d, 1.0 / d)


def _leaving(tableau: FloatArray, entering: int, d: int) -> int:
    """Return the row that leaves: the least ratio, ties by the ratios of the slack columns (lexicographic)."""
    rows = np.flatnonzero(tableau[:, entering] > 1e-12)
    for column in (2 * d, *range(d, 2 * d)):
        ratios = tableau[rows, column] / tableau[rows, entering]
        rows = rows[ratios <= ratios.min() + 1e-12]
        if len(rows) == 1:
            break
    return int(rows[0])


class ErrorSequence:
    """Limits on the mean error of every group, row after row, that hold at all times at once: a confidence sequence.

    The error of a group after any number of rows is its mean of E[y - p | everything before], weighted by memberships:
    by how much predictions have been too low. With the stated confidence it lies between `lower` and `upper` for all
    groups and after every row, whenever you look, stop or decide; it may change over time, and rows may depend on those
    before. Proof: given the past, y - p lies in an interval of length 1, so sum c (y - p) less its mean is sub-Gaussian
    with variance sum c^2 / 4; Robbins' mixture of exponential martingales bounds it at all times by Ville's inequality
    (Howard, Ramdas, McAuliffe and Sekhon 2021, (14)); then a union bound over groups.

    Nothing is assumed of the variance, so limits of rare outcomes are wide: where rows come in batches, compare windows
    instead (`audit(..., by=...)`).

    Parameters
    ----------
    n_groups : the number of groups in a membership vector; give everyone a group of its own, always 1.
    confidence : the probability with which all limits hold, for all groups and at all times.
    rows : the number of rows of a group at which the limits are about the narrowest.

    >>> sequence = ErrorSequence(2)
    >>> rng = np.random.default_rng(0)
    >>> groups, y = np.column_stack([np.ones(5000), np.arange(5000) % 2]), rng.random(5000) < 0.4
    >>> sequence.update(groups, y, np.full(5000, 0.3))
    >>> sequence.lower.round(3), sequence.upper.round(3)
    (array([0.077, 0.07 ]), array([0.125, 0.136]))
    """

    def __init__(self, n_groups: int, confidence: float = 0.95, rows: int = 1000) -> None:
        check_whole("n_groups", n_groups, 1)
        check_whole("rows", rows, 1)
        check_level("confidence", confidence)
        self.n_groups, self.confidence, self.n_rows = int(n_groups), float(confidence), 0
        level = 2.0 * log(n_groups / (1.0 - confidence))
        self._mixed = rows / 4.0 / (level + log(1.0 + level))  # close to the best for this number of rows
        self._mass, self._variance, self._sum = np.zeros((3, self.n_groups))

    def update(self, c: ArrayLike, y: ArrayLike, p: ArrayLike) -> None:
        """Take a row with memberships c in [0, 1], or several in order: outcomes y and predictions p in [0, 1]."""
        rows = _read_rows(np.atleast_2d(_numbers(c, "c")), self.n_groups)
        pair = [np.atleast_1d(_numbers(values, name)) for name, values in (("y", y), ("p", p))]
        if (rows < 0).any() or any(values.shape != (len(rows),) for values in pair):
            raise InvalidInput("Give memberships c in [0, 1], shape (n, groups), and one y and one p for each row.")
        if any(((values < 0) | (values > 1) | np.isnan(values)).any() for values in pair):
            raise InvalidInput("Outcomes y and predictions p must be numbers in [0, 1].")
        self._mass += rows.sum(axis=0)
        self._variance += np.square(rows).sum(axis=0) / 4.0
        self._sum += np.einsum("nc,n->c", rows, pair[0] - pair[1])
        self.n_rows += len(rows)

    @property
    def error(self) -> FloatArray:
        """The mean outcome less the mean prediction of every group so far; nan without rows."""
        return np.asarray(np.divide(self._sum, self._mass, out=np.full(self.n_groups, np.nan), where=self._mass > 0))

    @property
    def half_width(self) -> FloatArray:
        """The distance of the limits from `error`; infinite without rows."""
        wider = self._variance + self._mixed
        reach = np.sqrt(wider * np.log(wider / self._mixed * (self.n_groups / (1.0 - self.confidence)) ** 2))
        return np.asarray(np.divide(reach, self._mass, out=np.full(self.n_groups, np.inf), where=self._mass > 0))

    @property
    def lower(self) -> FloatArray:
        """The lower limits, at least -1."""
        return np.fmax(self.error - self.half_width, -1.0)

    @property
    def upper(self) -> FloatArray:
        """The upper limits, at most 1."""
        return np.fmin(self.error + self.half_width, 1.0)
