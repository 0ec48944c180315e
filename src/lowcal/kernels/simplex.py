"""The space of predictions, and the two ways to move in it.

A prediction is a row of an array of shape (n, d). With d = 1 it is the SCALAR convention of binary problems:
one number in [0, 1], the probability of the second class. With d >= 2 it is the SIMPLEX convention: a point of
Delta_d. The two conventions give different violations at d = 2 (spec 3.7), so the shape carries the convention
and nothing converts one into the other behind the user's back.

Paper: Section 2 (predictors) and line 9 of Algorithm 1 (the projection).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import exp, factorial, log
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Geometry = Literal["euclidean", "mirror"]

#: Probabilities are lifted to at least this much before a logarithm is taken, in every place that takes one.
FLOOR = 1e-9

#: Log odds below minus this much have the same sigmoid: the exponential would overflow.
FAR = 700.0

#: The largest probability below 1: that of a finite score is never 1, and rounding must not make it so.
BELOW_ONE = 1.0 - 2.0**-53

#: Up to here, every whole number is a float64.
MOST_EXACT = 1 << 53

#: Rows over which losses are summed at a time.
LOSS_ROWS = 8192

#: The smallest positive number that is not subnormal: what is below it is 0 for all purposes.
SMALLEST = float(np.finfo(float).tiny)

#: Numbers that differ by a smaller share than this are equal: rounding must not choose between them.
TIE = 1e-9

#: Beyond these log odds the logistic function is 0 or 1 to the last bit of a sum of outcomes.
FAR_OUT = 40.0
#: How often the polynomial is squared.
SQUARES = 7
#: The coefficients of the polynomial, the highest power first.
TAYLOR = tuple(1.0 / factorial(k) for k in range(12, -1, -1))


def project(v: FloatArray) -> FloatArray:
    """Return the nearest point of [0, 1] (d = 1) or of the simplex (d >= 2) to each row of v.

    argmin_{z in Delta} ||v - z||_2 = max(v - theta, 0) with theta such that the row sums to one.
    It is non-expansive, idempotent, and unchanged by adding a constant to a row.
    Paper: the projection of Algorithm 1. Cost: O(n d log d).

    >>> project(np.array([[0.7, 0.7, -0.4]]))
    array([[0.5, 0.5, 0. ]])
    >>> project(np.array([[1.5], [-0.5]])).ravel()
    array([1., 0.])
    """
    if v.shape[1] == 1:
        return np.clip(v, 0.0, 1.0)
    v = v - v.max(axis=1, keepdims=True)  # nothing is lost where numbers are large: those that count lie in [-1, 0]
    # sorted coordinates: the same sum, to the last bit, in whatever order the labels come
    descending = -np.sort(-v, axis=1)
    excess = np.cumsum(descending, axis=1) - 1.0
    rank = np.arange(1, v.shape[1] + 1)
    support = np.count_nonzero(descending * rank > excess, axis=1)
    theta = excess[np.arange(len(v)), support - 1] / support
    return np.asarray(np.maximum(v - theta[:, None], 0.0))


def mirror(p: FloatArray, delta: FloatArray) -> FloatArray:
    """Return sigmoid(logit p + delta) (d = 1) or softmax(log p + delta) (d >= 2).

    The same step in the geometry whose potential is the log loss; it never leaves the simplex.

    >>> mirror(np.array([[0.5]]), np.array([[np.log(3.0)]]))
    array([[0.75]])
    """
    return from_scores(scores(p) + delta)


def from_scores(z: FloatArray) -> FloatArray:
    """Return the probabilities of scores: sigmoid(z) (d = 1) or softmax(z) (d >= 2), never exactly 1."""
    return sigmoid(z) if z.shape[1] == 1 else np.minimum(softmax(z), BELOW_ONE)


def softmax(z: FloatArray) -> FloatArray:
    """Return e^z of every row over its sum.

    >>> softmax(np.log([[1.0, 3.0], [1000.0, 1000.0]])).round(12)
    array([[0.25, 0.75],
           [0.5 , 0.5 ]])
    """
    return np.ascontiguousarray(softmax_of_columns(z.T).T)


def softmax_of_columns(z: FloatArray) -> FloatArray:
    """Return e^z of every column over its sum.

    >>> softmax_of_columns(np.log([[1.0], [3.0]])).round(12).tolist()
    [[0.25], [0.75]]
    """
    t, _ = _exponentials(z)
    t /= t.sum(axis=0)
    return t


def log_sum_exp(z: FloatArray) -> FloatArray:
    """Return the logarithm of the sum of e^z of every row.

    >>> log_sum_exp(np.log([[1.0, 3.0]])).round(6), round(float(np.log(4.0)), 6)
    (array([1.386294]), 1.386294)
    """
    t, most = _exponentials(z.T)
    return np.asarray(most + np.log(t.sum(axis=0)))


def _exponentials(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return e^(z - m) for the largest number m of each column of z, and m.

    Sums and maxima run down columns: along rows of a few numbers NumPy takes ten times as long.
    """
    t = np.array(z, order="C")
    most = t.max(axis=0)
    t -= most
    return np.exp(t, out=t), most


def scores(p: FloatArray) -> FloatArray:
    """Return what a step in log space adds to: the log odds (d = 1), or the logarithms on the simplex (d >= 2)."""
    return log_odds(p) if p.shape[1] == 1 else np.log(np.maximum(p, FLOOR))


def sigmoid(z: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(-z)), the inverse of the log odds: NumPy's exponential takes many numbers at a time.

    >>> sigmoid(np.array([0.0, np.log(3.0), -1000.0])).round(3)
    array([0.5 , 0.75, 0.  ])
    """
    against = np.negative(z)
    return of_odds_against(np.minimum(against, FAR, out=against))


def portable_sigmoid(z: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(-z)) without calls: the same bits in NumPy's loops and in compiled ones.

    >>> portable_sigmoid(np.array([-50.0, 0.0, 50.0])).round(15)
    array([0. , 0.5, 1. ])
    """
    e = _decay(np.minimum(np.maximum(z, -FAR_OUT), FAR_OUT))
    e += 1.0
    return np.asarray(np.divide(1.0, e, out=e))


def portable_softmax(z: FloatArray) -> FloatArray:
    """Return e^z of every label over the sum of all labels, shape (labels, n); of a single label, the logistic of z.

    >>> portable_softmax(np.log([[1.0], [3.0]])).round(12).tolist()
    [[0.25], [0.75]]
    """
    if len(z) == 1:
        return portable_sigmoid(z)
    e = _decay(np.minimum(z.max(axis=0) - z, FAR_OUT))
    total = e[0].copy()
    for one in e[1:]:
        total += one
    return np.asarray(e / total)


def _decay(x: FloatArray) -> FloatArray:
    """Return exp(-x), in the place of x but for its last step, by additions and products alone.

    exp(x) = exp(x / 128)^128: a Taylor polynomial and seven squares, off by less than 2^-45 of the value.
    """
    x *= -(2.0**-SQUARES)
    e = x * TAYLOR[0]
    for c in TAYLOR[1:-1]:
        e += c
        e *= x
    e += TAYLOR[-1]
    for _ in range(SQUARES):
        e *= e
    return e


def of_odds_against(t: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(t)), the probability whose log odds are -t, in the place of t <= FAR."""
    np.exp(t, out=t)
    t += 1.0
    np.divide(1.0, t, out=t)
    return np.minimum(t, BELOW_ONE, out=t)


def log_odds(p: FloatArray) -> FloatArray:
    """Return log(p / (1 - p)) of probabilities that are kept FLOOR away from 0 and 1.

    >>> log_odds(np.array([0.5, 0.75, 1.0])).round(3)
    array([ 0.   ,  1.099, 20.723])
    """
    inside = odds(p)
    return np.log(inside, out=inside)


def odds(p: FloatArray) -> FloatArray:
    """Return p / (1 - p) of probabilities that are kept FLOOR away from 0 and 1."""
    inside = _inside(p)
    inside /= 1.0 - inside
    return inside


def _inside(p: FloatArray) -> FloatArray:
    """Return probabilities kept FLOOR away from 0 and 1; `np.clip` takes longer for few."""
    q = np.maximum(p, FLOOR)
    return np.minimum(q, 1.0 - FLOOR, out=q)


def move(p: FloatArray, delta: FloatArray, geometry: Geometry) -> FloatArray:
    """Move the predictions p along delta: add and project, or add in log space and normalise."""
    return project(p + delta) if geometry == "euclidean" else mirror(p, delta)


def move_row(p: Sequence[float], delta: Sequence[float], geometry: Geometry) -> list[float]:
    """Return `move` of a single row in plain numbers, without the cost of arrays.

    >>> move_row([0.5, 0.5, 0.0], [0.2, 0.2, -0.4], "euclidean"), move_row([0.5], [log(3.0)], "mirror")
    ([0.5, 0.5, 0.0], [0.75])
    """
    if geometry == "euclidean":
        return _project_row([x + step for x, step in zip(p, delta, strict=True)])
    if len(p) == 1:
        return [sigmoid_of(log_odds_of(p[0]) + delta[0])]
    return _softmax_row([log(max(x, FLOOR)) + step for x, step in zip(p, delta, strict=True)])


def log_odds_of(p: float) -> float:
    """Return `log_odds` of one number."""
    inside = min(max(p, FLOOR), 1.0 - FLOOR)
    return log(inside / (1.0 - inside))


def sigmoid_of(z: float) -> float:
    """Return `sigmoid` of one number."""
    return min(1.0 / (1.0 + exp(min(-z, FAR))), BELOW_ONE)


def _project_row(v: list[float]) -> list[float]:
    """Return `project` of one row."""
    if len(v) == 1:
        return [min(max(v[0], 0.0), 1.0)]
    top = max(v)
    v = [x - top for x in v]
    total, theta = 0.0, 0.0
    for rank, x in enumerate(sorted(v, reverse=True), 1):
        total += x
        if x * rank > total - 1.0:
            theta = (total - 1.0) / rank
    return [max(x - theta, 0.0) for x in v]


def _softmax_row(v: list[float]) -> list[float]:
    """Return exp(v) / sum exp(v) of one row."""
    top = max(v)
    each = [exp(x - top) for x in v]
    total = sum(each)
    return [min(x / total, BELOW_ONE) for x in each]


def brier(p: FloatArray, y: FloatArray, weight: FloatArray) -> float:
    """Return E||y - f||^2, the potential of the Euclidean geometry (for d = 1: E(y - f)^2).

    >>> brier(np.array([[0.5], [1.0]]), np.array([[1.0], [1.0]]), np.array([0.5, 0.5]))
    0.125
    """
    total = 0.0
    for rows in _blocks(len(p)):
        gap = y[rows] - p[rows]
        total += float(np.einsum("i,ia,ia->", weight[rows], gap, gap))
    return total


def log_loss(p: FloatArray, y: FloatArray, weight: FloatArray) -> float:
    """Return E[-<y, log f>], the potential of the mirror geometry (both outcomes for d = 1).

    >>> round(log_loss(np.array([[0.5]]), np.array([[1.0]]), np.array([1.0])), 6)
    0.693147
    """
    return float(sum(np.einsum("i,i->", weight[rows], log_losses(p[rows], y[rows])) for rows in _blocks(len(p))))


def auc(p: FloatArray, y: FloatArray, weight: FloatArray, starts: Sequence[int] | IntArray = (0,)) -> FloatArray:
    """Return the share of pairs, one with and one without a label, that predictions put in order; ties count half.

    Labels count by their pairs, and an outcome between 0 and 1 on both sides; 1/2 if there are no pairs. Pairs are of
    rows of the same part: one for each of `starts`, where parts begin.

    >>> auc(np.array([[0.1], [0.4], [0.4], [0.8]]), np.array([[0.0], [0.0], [1.0], [1.0]]), np.ones(4))
    array([0.875])
    """
    ordered = pairs = np.zeros(len(starts))
    edges = [*starts, len(p)]
    for scores_of_label, outcomes in zip(p.T, y.T, strict=True):
        order = np.concatenate([a + np.argsort(scores_of_label[a:b]) for a, b in pairwise(edges)])
        value, mass = scores_of_label[order], weight[order]
        with_it = mass * outcomes[order]
        is_new = np.concatenate([[True], value[1:] != value[:-1]])
        is_new[edges[:-1]] = True
        ties = np.flatnonzero(is_new)
        parts = np.searchsorted(ties, edges[:-1])
        with_it, mass = np.add.reduceat(with_it, ties), np.add.reduceat(mass, ties)
        without = mass - with_it
        below = np.cumsum(without) - without / 2.0
        total, negatives = np.add.reduceat(with_it, parts), np.add.reduceat(without, parts)
        ordered = ordered + np.add.reduceat(with_it * below, parts) - total * (np.cumsum(negatives) - negatives)
        pairs = pairs + total * negatives
    return np.where(pairs > 0.0, ordered / np.where(pairs > 0.0, pairs, 1.0), 0.5)


def brier_losses(p: FloatArray, y: FloatArray) -> FloatArray:
    """Return ||y - f||^2 of every row."""
    gap = y - p
    gap *= gap
    return gap[:, 0] if gap.shape[1] == 1 else np.asarray(np.einsum("ij->i", gap))


def log_losses(p: FloatArray, y: FloatArray) -> FloatArray:
    """Return -<y, log f> of every row; for d = 1 both outcomes count, -y log f - (1 - y) log(1 - f).

    >>> log_losses(np.array([[0.5], [0.5]]), np.array([[1.0], [0.25]])).round(6)
    array([0.693147, 0.693147])
    """
    if p.shape[1] > 1:
        q = np.maximum(p, FLOOR)
        return np.asarray(np.einsum("ij,ij->i", y, np.log(np.einsum("ij->i", q))[:, None] - np.log(q)))
    q, y = _inside(p[:, 0]), y[:, 0]
    other = 1.0 - y
    if not (y * other).any():  # of a label that is 0 or 1 only one logarithm is needed
        np.abs(np.subtract(other, q, out=q), out=q)
        return np.negative(np.log(q, out=q), out=q)
    return np.asarray(-(y * np.log(q) + other * np.log(1.0 - q)))  # the same bits as above where y is 0 or 1


def losses_of_scores(z: FloatArray, y: FloatArray) -> FloatArray:
    """Return the log losses of scores, (..., n, d): log(1 + e^z) - y z, or the log of the sum of e^z less <y, z>.

    >>> losses_of_scores(np.array([[0.0], [np.log(3.0)]]), np.array([[1.0], [0.0]])).round(6)
    array([0.693147, 1.386294])
    """
    if z.shape[-1] > 1:
        whole = log_sum_exp(z.reshape(-1, z.shape[-1])).reshape(z.shape[:-1])
        return np.asarray(whole - np.einsum("...ij,ij->...i", z, y))
    z = z[..., 0]
    losses = np.abs(z)
    np.negative(losses, out=losses)
    np.exp(losses, out=losses)
    losses += 1.0  # NumPy's logarithm takes many numbers at a time, its `log1p` does not
    np.log(losses, out=losses)
    losses += np.maximum(z, 0.0)
    losses -= z * y[:, 0]
    return losses


def _blocks(n: int) -> Iterator[slice]:
    """Cut rows into slices that stay in cache."""
    return (slice(start, start + LOSS_ROWS) for start in range(0, n, LOSS_ROWS))


def centred(w: FloatArray) -> FloatArray:
    """Subtract each row's mean when d >= 2: <w + t 1, y - f> = <w, y - f>, so it costs nothing (spec 0, Z1).

    >>> centred(np.array([[1.0, 0.0]]))
    array([[ 0.5, -0.5]])
    >>> centred(np.array([[1.0]]))
    array([[1.]])
    """
    return w if w.shape[1] == 1 else w - w.mean(axis=1, keepdims=True)


def leading(values: FloatArray) -> int:
    """Return the first position whose value is the largest up to rounding: ties must not be broken by noise.

    >>> leading(np.array([1.0, 1.0 + 1e-15, 0.5]))
    0
    """
    best = values.max()
    return int(np.argmax(values >= best - TIE * abs(best)))


def above_noise(values: FloatArray) -> NDArray[np.bool_]:
    """Say which values are positive beyond rounding, compared with the largest of them.

    >>> above_noise(np.array([1.0, 1e-17, -1.0]))
    array([ True, False, False])
    """
    return np.asarray(values > TIE * np.abs(values).max(initial=0.0))


def width(d: int) -> float:
    """Return B, the largest E||c (w - mean w)||^2 over |c| <= 1 and w in [0, 1]^d (spec 4.3).

    1 for scalars, floor(d/2) ceil(d/2) / d on the simplex (the paper uses the weaker d).

    >>> width(1), width(4)
    (1.0, 1.0)
    """
    return 1.0 if d == 1 else (d // 2) * (d - d // 2) / d
