"""The moments of one subpopulation that all its guarantees are made of; no rows are kept.

f[j] = E_c[f^j] and fy[j] = E_c[f^j y] for one label; e_j = E_c[f^j (y - f)] = fy[j] - f[j + 1] (spec 5). All arrays may
have further axes, with an entry for each of many subpopulations: every formula works on all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowcal.kernels.simplex import FloatArray
from lowcal.theory.guarantees.inequalities import given_alpha, ratio


@dataclass(frozen=True, eq=False)
class GroupMoments:
    """The moments of degree k of a subpopulation and a label: f[0..k], fy[0..k-1], and the mass E[c].

    `f_star` holds E_c[f*^j] for j = 0..k where the truth f* is known.

    >>> m = group_moments(np.array([0.2, 0.6]), np.array([0.0, 1.0]), np.array([0.5, 0.5]), degree=2)
    >>> m.f.round(3), m.fy.round(3), float(m.gap(0).round(3))
    (array([1. , 0.4, 0.2]), array([0.5, 0.3]), 0.1)
    """

    mass: FloatArray
    f: FloatArray
    fy: FloatArray
    f_star: FloatArray | None = None

    @property
    def degree(self) -> int:
        """The degree k of the notion whose violations these moments hold."""
        return len(self.fy)

    def gap(self, j: int) -> FloatArray:
        """Return e_j = E_c[f^j (y - f)], the violation of the weight f^j, conditional on c."""
        return np.asarray(self.fy[j] - self.f[j + 1])

    def violation(self, degree: int, alpha: float | None = None) -> FloatArray:
        """Return alpha_c: alpha / E[c], or, without an alpha, the measured max_{j < degree} |e_j|."""
        if alpha is not None:
            return given_alpha(alpha, self.mass)
        return np.asarray(np.abs(np.stack([self.gap(j) for j in range(degree)])).max(axis=0))

    def truth(self, j: int) -> FloatArray:
        """Return E_c[f*^j]; nan where the truth is unknown."""
        return np.full_like(self.f[j], np.nan) if self.f_star is None else np.asarray(self.f_star[j])

    @property
    def variance(self) -> FloatArray:
        """V = Var_c f."""
        return np.asarray(np.maximum(self.f[2] - self.f[1] ** 2, 0.0))

    @property
    def covariance(self) -> FloatArray:
        """C = Cov_c(f, y)."""
        return np.asarray(self.fy[1] - self.f[1] * self.fy[0])


def group_moments(
    f: FloatArray, y: FloatArray, weight: FloatArray, degree: int, f_star: FloatArray | None = None
) -> GroupMoments:
    """Return the moments of one label for weights w_i c(x_i), summed over the last axis; nan without mass."""
    mass = weight.sum(axis=-1)
    powers = np.stack([f**j for j in range(degree + 1)])
    moments = ratio((weight * powers).sum(axis=-1), mass)
    return GroupMoments(mass, moments, ratio((weight * powers[:-1] * y).sum(axis=-1), mass), f_star)


def read_moments(total: FloatArray, degree: int) -> list[list[GroupMoments]]:
    """Return the moments of every subpopulation and label from the sums of `moment_columns`, shape (m, 1 + 2 d k)."""
    m, d = len(total), (total.shape[1] - 1) // (2 * degree)
    mass = np.maximum(total[:, 0], 0.0)
    conditional = ratio(total[:, 1:], mass[:, None]).reshape(m, 2, degree, d)
    one = np.where(mass > 0, 1.0, np.nan)  # E_c[f^0]
    return [
        [GroupMoments(mass[j], np.concatenate([one[j : j + 1], f]), fy) for f, fy in conditional[j].transpose(2, 0, 1)]
        for j in range(m)
    ]


def moment_columns(y: FloatArray, p: FloatArray, weight: FloatArray, degree: int) -> FloatArray:
    """Return w, then w f^j for j = 1..k and w f^j y for j = 0..k-1, with all labels of each together."""
    powers = [p**j for j in range(degree + 1)]
    moments: Sequence[FloatArray] = [*powers[1:], *(u * y for u in powers[:-1])]
    return weight[:, None] * np.column_stack([np.ones(len(p)), *moments])
