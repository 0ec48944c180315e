"""The rows of one group, checked: outcomes, predictions, memberships, and what is known of the truth f*.

The moments E_c[f*^d], d >= 2, can't be estimated from one label a row. They are known with f* itself (synthetic data),
or with at least d independent labels of each row: E[y_1 ... y_d | x] = f*(x)^d, averaged over all choices of d labels
(a U-statistic; spec 5.14).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from numbers import Real
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowcal.data.errors import InvalidInput
from lowcal.data.frames import is_missing
from lowcal.data.inputs import Layout, Outcomes, check_length, read_outcomes, read_probabilities
from lowcal.kernels.simplex import FloatArray
from lowcal.theory.guarantees.group_moments import GroupMoments, group_moments

#: c(x) of each row; None is everyone.
Membership = ArrayLike | None


class AboutRows(TypedDict, total=False):
    """What a statement may be told about its rows, besides y, p and c."""

    f_star: ArrayLike | None
    replicates: ArrayLike | None
    sample_weight: ArrayLike | None
    classes: Sequence[Any] | None


class OneLabel(AboutRows, total=False):
    """The same, and the class that a statement about one label is about."""

    label: Any


@dataclass(frozen=True, eq=False)
class GroupRows:
    """Checked rows: y and p of shape (n, d), the weight w_i c(x_i) of each row, and what is known of f*."""

    y: FloatArray
    p: FloatArray
    weight: FloatArray
    layout: Layout
    truth: KnownTruth | Replicates | None

    @classmethod
    def read(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        c: Membership = None,
        *,
        f_star: ArrayLike | None = None,
        replicates: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        classes: Sequence[Any] | None = None,
    ) -> GroupRows:
        """Check everything together; the rows outside c keep the weight 0."""
        outcomes = read_outcomes(y, p, sample_weight, classes)
        n = len(outcomes.p)
        membership = read_memberships(c, n)
        if membership.shape[1] != 1:
            raise InvalidInput(f"c must hold one membership a row, shape ({n},), but its shape is {membership.shape}.")
        truth = _read_truth(f_star, replicates, outcomes)
        return cls(outcomes.y, outcomes.p, outcomes.weight * membership[:, 0], outcomes.layout, truth)

    def moments(self, labels: list[int], degree: int) -> GroupMoments:
        """Return the moments of a label, or of a set of labels taken as one, those of the truth where it is known."""
        truth = None if self.truth is None else self.mean(self.truth.powers(labels, degree, self.weight))
        f, y = (values[:, labels].sum(axis=1) for values in (self.p, self.y))
        return group_moments(f, y, self.weight, degree, truth)

    def mean(self, values: FloatArray) -> FloatArray:
        """Return E_c of values whose last axis are the rows; nan without mass."""
        mass = self.weight.sum()
        return np.asarray((self.weight * values).sum(axis=-1) / mass if mass > 0 else values.sum(axis=-1) * np.nan)


def label_moments(
    y: ArrayLike, p: ArrayLike, c: Membership, degree: int, *, label: Any = None, **rows: Unpack[AboutRows]
) -> GroupMoments:
    """Return the moments of one class up to a degree, from rows."""
    read = GroupRows.read(y, p, c, **rows)
    return read.moments([read_label(label, read.layout)], degree)


@dataclass(frozen=True, eq=False)
class KnownTruth:
    """f* itself, shape (n, d)."""

    f_star: FloatArray

    def powers(self, labels: list[int], degree: int, weight: FloatArray) -> FloatArray:
        """Return (sum of f* over the labels)^j for j = 0..degree, shape (degree + 1, n)."""
        f = self.f_star[:, labels].sum(axis=1)
        return np.stack([f**j for j in range(degree + 1)])

    def products(self, weight: FloatArray) -> FloatArray:
        """Return f* f*' for every row, shape (n, l, l)."""
        f = both_classes(self.f_star)
        return np.asarray(f[:, :, None] * f[:, None, :])


@dataclass(frozen=True, eq=False)
class Replicates:
    """Several labels a row, coded: shape (n, r, d), nan where one is missing. Only rows with weight need them."""

    labels: FloatArray

    def powers(self, labels: list[int], degree: int, weight: FloatArray) -> FloatArray:
        """Return unbiased estimates of (sum of f* over the labels)^j, j = 0..degree, shape (degree + 1, n)."""
        z = self.labels[:, :, labels].sum(axis=2)
        self._require(degree, weight)
        return power_means(z, degree)

    def products(self, weight: FloatArray) -> FloatArray:
        """Return unbiased estimates of f* f*' for every row: the mean of y_r y_s' over pairs of different labels."""
        self._require(2, weight)
        y = np.stack([both_classes(self.labels[:, r]) for r in range(self.labels.shape[1])], axis=1)
        there = ~np.isnan(y)
        y = np.where(there, y, 0.0)
        both = y.sum(axis=1)
        pairs = both[:, :, None] * both[:, None, :] - np.einsum("nra,nrb->nab", y, y)
        number = there[:, :, 0].sum(axis=1)
        return np.asarray(pairs / np.maximum(number * (number - 1), 1)[:, None, None])

    def _require(self, degree: int, weight: FloatArray) -> None:
        number = (~np.isnan(self.labels[:, :, 0])).sum(axis=1)
        short = (number < degree) & (weight > 0)
        if short.any():
            row = int(short.argmax())
            raise InvalidInput(
                f"Row {row} of replicates has {number[row]} labels, but the truth's moment of degree {degree} needs at "
                f"least {degree} independent labels of each row. Drop such rows, lower the degree or pass f_star."
            )


def power_means(z: FloatArray, degree: int) -> FloatArray:
    """Return for each row the mean of z_{i1} ... z_{ij} over all choices of j entries, j = 0..degree; nan are missing.

    The elementary symmetric polynomial over C(r, j), built up one label at a time. Cost: O(n r degree).
    Rows with fewer than j entries get 0.

    >>> power_means(np.array([[1.0, 0.0, 1.0]]), 2).round(3).ravel()
    array([1.   , 0.667, 0.333])
    """
    total = np.zeros((degree + 1, len(z)))
    total[0] = 1.0
    for column in z.T:
        value = np.where(np.isnan(column), 0.0, column)
        total[1:] += total[:-1] * value
    number = (~np.isnan(z)).sum(axis=1)
    choices = np.array([[max(comb(r, j), 1) for r in range(z.shape[1] + 1)] for j in range(degree + 1)])
    return np.asarray(total / choices[:, number])


def both_classes(values: FloatArray) -> FloatArray:
    """Return both classes of the scalar convention, (1 - v, v); rows on the simplex stay themselves.

    >>> both_classes(np.array([[0.25]]))
    array([[0.75, 0.25]])
    """
    return np.concatenate([1.0 - values, values], axis=-1) if values.shape[-1] == 1 else values


# ------------------------------------------------------------------------------------------- reading
def read_memberships(c: Membership, n: int) -> FloatArray:
    """Return memberships as numbers in [0, 1], shape (n, m); None is everyone alone.

    >>> read_memberships([True, False], 2)
    array([[1.],
           [0.]])
    """
    if c is None:
        return np.ones((n, 1))
    try:
        C = np.array(c, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"c must hold memberships, numbers in [0, 1], but can't be read so ({error}).") from error
    if C.ndim not in (1, 2):
        raise InvalidInput(f"c must have a row for each prediction, but its shape is {C.shape}.")
    C = C.reshape(len(C), -1)
    check_length("c", len(C), n)
    bad = ~((C >= 0.0) & (C <= 1.0))
    if bad.any():
        row, column = np.unravel_index(int(bad.ravel().argmax()), C.shape)
        raise InvalidInput(f"c is {C[row, column]:g} in row {row}, but a membership must lie in [0, 1].")
    return C


def read_label(label: Any, layout: Layout) -> int:
    """Return the coordinate of a label; binary problems have one, that of the second class.

    >>> read_label("b", Layout(3, ("a", "b", "c")))
    1
    """
    names = _names(layout)
    if layout.d == 1:
        if label is None or label == names[1]:
            return 0
        raise InvalidInput(
            f"label={label!r} was given, but a binary problem is read through its second class, {names[1]!r}. "
            "For the other class pass 1 - p and classes=[second, first]."
        )
    if label is None:
        raise InvalidInput(f"Say which class is meant: label= one of {', '.join(map(repr, names))}.")
    if label not in names:
        raise InvalidInput(f"label={label!r} is not a class; the classes are {', '.join(map(repr, names))}.")
    return names.index(label)


def _names(layout: Layout) -> list[Any]:
    """Return the classes, or their positions where y has soft labels."""
    return list(layout.classes) if layout.classes is not None else list(range(layout.n_classes))


def _read_truth(
    f_star: ArrayLike | None, replicates: ArrayLike | None, outcomes: Outcomes
) -> KnownTruth | Replicates | None:
    if f_star is not None and replicates is not None:
        raise InvalidInput("Both f_star and replicates were given. Give one of them: either tells of the truth.")
    if f_star is not None:
        truth = read_probabilities(f_star, outcomes.layout)
        check_length("f_star", len(truth), len(outcomes.p))
        return KnownTruth(truth)
    return None if replicates is None else Replicates(_read_replicates(replicates, outcomes))


def _read_replicates(replicates: ArrayLike, outcomes: Outcomes) -> FloatArray:
    """Return the labels coded like y, shape (n, r, d), nan where one is missing."""
    given = np.asarray(replicates, dtype=object)
    if given.ndim != 2 or given.shape[1] == 0:
        raise InvalidInput(f"replicates must have shape (n, r), r labels of each row, but its shape is {given.shape}.")
    check_length("replicates", len(given), len(outcomes.p))
    values = given.tolist()
    there = np.array([[not is_missing(v) for v in row] for row in values], dtype=bool)
    if outcomes.layout.d == 1 and outcomes.layout.classes is None:
        numbers = [[float(v) if isinstance(v, Real) else -1.0 for v in row] for row in values]
        coded = np.where(there, np.array(numbers, dtype=np.float64), 0.0)[:, :, None]
        _refuse_unknown(given, (coded[:, :, 0] < 0) | (coded[:, :, 0] > 1), "Give outcomes in [0, 1].")
    else:
        names = _names(outcomes.layout)
        position = {label: k for k, label in enumerate(names)}
        codes = np.array([[position.get(v, -1) for v in row] for row in values])
        _refuse_unknown(given, there & (codes < 0), f"The classes are {', '.join(map(repr, names))}.")
        coded = np.eye(len(names))[codes][:, :, -outcomes.layout.d :]
    return np.where(there[:, :, None], coded, np.nan)


def _refuse_unknown(given: NDArray[Any], bad: NDArray[np.bool_], known: str) -> None:
    """Name the first label that y does not have."""
    if bad.any():
        row, column = np.unravel_index(int(bad.ravel().argmax()), bad.shape)
        raise InvalidInput(
            f"replicates holds {given[row, column]!r} in row {row}, which can't be a label of y. {known} "
            "Leave what is missing as nan or None."
        )
