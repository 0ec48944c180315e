"""The border of the guarantees: outcomes, predictions, the subpopulation and what is known of the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import Layout, Outcomes, check_length, is_missing, read_outcomes, read_probabilities
from lowcal.kernels.simplex import FloatArray
from lowcal.theory.guarantees.group_moments import GroupMoments, group_moments
from lowcal.theory.guarantees.truth import Known, Replicates, Truth

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Sample:
    """Checked rows: y and p of shape (n, d), the weight w_i c(x_i) of each row, and what is known of f*."""

    y: FloatArray
    p: FloatArray
    weight: FloatArray
    layout: Layout
    truth: Truth | None

    def moments(self, labels: list[int], degree: int) -> GroupMoments:
        """Return the moments of a label, or of a set of labels taken as one."""
        return group_moments(self.p[:, labels].sum(axis=1), self.y[:, labels].sum(axis=1), self.weight, degree)

    def star(self, labels: list[int], degree: int) -> FloatArray | None:
        """Return E_c[f*^j] for j = 0..degree of a label or a set of labels; None where nothing is known of f*."""
        if self.truth is None:
            return None
        return self.mean(self.truth.powers(labels, degree, self.weight))

    def of_label(self, label: Any, degree: int) -> tuple[GroupMoments, FloatArray | None]:
        """Return the moments of one class up to a degree, and those of the truth, None where it is unknown."""
        which = [read_label(label, self.layout)]
        return self.moments(which, degree), self.star(which, degree)

    def mean(self, values: FloatArray) -> FloatArray:
        """Return E_c of values whose last axis are the rows; nan without mass."""
        mass = self.weight.sum()
        return np.asarray((self.weight * values).sum(axis=-1) / mass if mass > 0 else values.sum(axis=-1) * np.nan)


def read_sample(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None,
    sample_weight: ArrayLike | None,
    classes: Sequence[Any] | None,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
) -> Sample:
    """Check everything together; the rows outside c keep the weight 0."""
    outcomes = read_outcomes(y, p, sample_weight, classes)
    membership = read_membership(c, len(outcomes.p))
    truth = _read_truth(f_star, replicates, outcomes)
    return Sample(outcomes.y, outcomes.p, outcomes.weight * membership, outcomes.layout, truth)


def read_membership(c: ArrayLike | None, n: int) -> FloatArray:
    """Return c as numbers in [0, 1], shape (n,); None is everyone.

    >>> read_membership([True, False], 2)
    array([1., 0.])
    """
    if c is None:
        return np.ones(n)
    membership = read_memberships(c, n)
    if membership.shape[1] != 1:
        raise InvalidInput(f"c must hold one membership a row, shape ({n},), but its shape is {np.shape(c)}.")
    return membership[:, 0]


def read_memberships(c: ArrayLike | None, n: int) -> FloatArray:
    """Return memberships as numbers in [0, 1], shape (n, m); None is everyone alone."""
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


def _read_truth(f_star: ArrayLike | None, replicates: ArrayLike | None, outcomes: Outcomes) -> Truth | None:
    if f_star is not None and replicates is not None:
        raise InvalidInput("Both f_star and replicates were given. Give one of them: either tells of the truth.")
    if f_star is not None:
        truth = read_probabilities(f_star, outcomes.layout)
        check_length("f_star", len(truth), len(outcomes.p))
        return Known(truth)
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


def _names(layout: Layout) -> list[Any]:
    """Return the classes, or their positions where y has soft labels."""
    return list(layout.classes) if layout.classes is not None else list(range(layout.n_classes))


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


def read_alpha(alpha: object) -> float | None:
    """Return alpha as a number of at least 0; None stands for what is measured."""
    if alpha is None:
        return None
    if not (isinstance(alpha, Real) and 0 <= float(alpha) < np.inf):
        raise InvalidInput(f"alpha must be a number of at least 0, or None for what is measured; got {alpha!r}.")
    return float(alpha)
