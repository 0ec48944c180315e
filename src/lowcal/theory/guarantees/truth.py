"""What is known of the truth f*: its values on synthetic data, or several independent labels for each row.

The moments E_c[f*^d], d >= 2, can't be estimated from one label a row. With at least d independent labels they can:
E[y_1 ... y_d | x] = f*(x)^d, averaged over all choices of d labels of the row (a U-statistic; spec 5.14).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.kernels.simplex import FloatArray


@dataclass(frozen=True, eq=False)
class Known:
    """f* itself, shape (n, d)."""

    f_star: FloatArray

    def powers(self, labels: list[int], degree: int, counts: FloatArray) -> FloatArray:
        """Return (sum of f* over the labels)^j for j = 0..degree, shape (degree + 1, n)."""
        f = self.f_star[:, labels].sum(axis=1)
        return np.stack([f**j for j in range(degree + 1)])

    def products(self, counts: FloatArray) -> FloatArray:
        """Return f* f*' for every row, shape (n, l, l)."""
        f = two_sided(self.f_star)
        return np.asarray(f[:, :, None] * f[:, None, :])


@dataclass(frozen=True, eq=False)
class Replicates:
    """Several labels a row, coded: shape (n, r, d), nan where one is missing."""

    labels: FloatArray

    def powers(self, labels: list[int], degree: int, counts: FloatArray) -> FloatArray:
        """Return unbiased estimates of (sum of f* over the labels)^j, j = 0..degree, shape (degree + 1, n).

        `counts` are the weights of the rows; only rows with weight need `degree` labels.
        """
        z = self.labels[:, :, labels].sum(axis=2)
        self._require(degree, counts)
        return power_means(z, degree)

    def products(self, counts: FloatArray) -> FloatArray:
        """Return unbiased estimates of f* f*' for every row: the mean of y_r y_s' over pairs of different labels."""
        self._require(2, counts)
        y = np.stack([two_sided(self.labels[:, r]) for r in range(self.labels.shape[1])], axis=1)
        there = ~np.isnan(y)
        y = np.where(there, y, 0.0)
        both = y.sum(axis=1)
        pairs = both[:, :, None] * both[:, None, :] - np.einsum("nra,nrb->nab", y, y)
        number = there[:, :, 0].sum(axis=1)
        return np.asarray(pairs / np.maximum(number * (number - 1), 1)[:, None, None])

    def _require(self, degree: int, counts: FloatArray) -> None:
        number = (~np.isnan(self.labels[:, :, 0])).sum(axis=1)
        short = (number < degree) & (counts > 0)
        if short.any():
            row = int(short.argmax())
            raise InvalidInput(
                f"Row {row} of replicates has {number[row]} labels, but the truth's moment of degree {degree} needs at "
                f"least {degree} independent labels of each row. Drop such rows, lower the degree or pass f_star."
            )


Truth = Known | Replicates


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


def two_sided(values: FloatArray) -> FloatArray:
    """Return both classes of the scalar convention, (1 - v, v); rows on the simplex stay themselves.

    >>> two_sided(np.array([[0.25]]))
    array([[0.75, 0.25]])
    """
    return np.concatenate([1.0 - values, values], axis=-1) if values.shape[-1] == 1 else values
