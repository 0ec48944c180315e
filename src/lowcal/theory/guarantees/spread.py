"""Variance and covariance: how much of the spread of the predictions the outcomes justify.

V = Var_c f, C = Cov_c(f, y), and V - C = e_0 E_c[f] - e_1 exactly (spec 5.10, 5.11; Theorem 4.12, Lemma 4.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.kernels.simplex import FloatArray
from lowcal.theory.guarantees.base import Guarantee, Side
from lowcal.theory.guarantees.group_moments import GroupMoments
from lowcal.theory.guarantees.reading import read_alpha, read_sample

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: What a variance may miss by rounding. It is added below a fraction line, so that a certificate stays on its side.
MISSED = 1e-15


# ------------------------------------------------------------------------------------------- on moments
def truth_variance(variance: FloatArray, covariance: FloatArray) -> FloatArray:
    """Return max(C^2 / V, 2 C - V) <= Var_c f*, what the outcomes show of the truth's variance, for any predictor.

    The first is Cauchy-Schwarz, the second Var_c(f* - f) >= 0. Exactly, the first is larger by (V - C)^2 / V; but where
    V is hardly more than rounding, only the second can be trusted.
    """
    return np.asarray(np.maximum(covariance**2 / (variance + MISSED), 2.0 * covariance - variance))


def excess_variance(variance: FloatArray, covariance: FloatArray) -> FloatArray:
    """Return min(V - C^2 / V, 2 (V - C)) >= Var_c f - Var_c f*, for any predictor (spec 5.11).

    >>> float(excess_variance(np.array(0.05), np.array(0.03)).round(3))
    0.032
    """
    return np.asarray(variance - truth_variance(variance, covariance))


def unjustified(m: GroupMoments) -> FloatArray:
    """Return V - C = e_0 E_c[f] - e_1: the variance that the outcomes do not justify (spec 5.10)."""
    return np.asarray(m.gap(0) * m.f[1] - m.gap(1))


def star_variance(star: FloatArray | None, m: GroupMoments) -> FloatArray:
    """Return Var_c f* from its moments; nan where they are unknown."""
    return np.full_like(m.f[1], np.nan) if star is None else np.asarray(star[2] - star[1] ** 2)


def covariances(m: GroupMoments, star: FloatArray | None = None, alpha: float | None = None) -> Guarantee[FloatArray]:
    """Return V - (1 + E_c f) alpha_c <= C <= Var_c f* + (1 + E_c f) alpha_c (Theorem 4.12: 2 and 6; spec 5.10)."""
    alpha_c, one = m.violation(2, alpha), np.ones_like(m.f[1])
    V, C, constant = m.variance, m.covariance, 1.0 + m.f[1]
    lower = Side("lower", "the predictions' variance", V, constant, 2.0, alpha_c, one, unjustified(m))
    signed = C - truth_variance(V, C)
    upper = Side("upper", "the truth's variance", star_variance(star, m), constant, 6.0, alpha_c, one, signed, True)
    return Guarantee("The covariance of predictions and outcomes", "Theorem 4.12", C, lower, upper)


def variances(m: GroupMoments, star: FloatArray | None = None, alpha: float | None = None) -> Guarantee[FloatArray]:
    """Return V <= Var_c f* + 2 (1 + E_c f) alpha_c (Lemma 4.13: 4; spec 5.11), signed by `excess_variance`."""
    alpha_c, one = m.violation(2, alpha), np.ones_like(m.f[1])
    signed = excess_variance(m.variance, m.covariance)
    constant, reference = 2.0 * (1.0 + m.f[1]), star_variance(star, m)
    upper = Side("upper", "the truth's variance", reference, constant, 4.0, alpha_c, one, signed, True)
    return Guarantee("The variance of the predictions", "Lemma 4.13", m.variance, None, upper)


# ------------------------------------------------------------------------------------------- on rows
def covariance(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    label: Any = None,
    alpha: float | None = None,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return the bounds on Cov_c(f, y): positive, and not more than the truth allows (Theorem 4.12, spec 5.10).

    Var_c f - (1 + E_c f) alpha_c <= Cov_c(f, y) <= Var_c f* + (1 + E_c f) alpha_c. The parameters are those of
    `moment_sandwich`.

    >>> from lowcal.datasets import parity_square
    >>> d = parity_square()
    >>> found = covariance(d.y, d.p, d.X["x1"] == 1, sample_weight=d.sample_weight)
    >>> round(12 * found.estimate, 9), round(9 * found.lower.signed, 9)
    (-1.0, 1.0)
    """
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    return covariances(*sample.of_label(label, 2), read_alpha(alpha)).scalar()


def variance(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    label: Any = None,
    alpha: float | None = None,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return the bound on Var_c f: at most the truth's plus 2 (1 + E_c f) alpha_c (Lemma 4.13, spec 5.11).

    The parameters are those of `moment_sandwich`.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = variance(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 3), round(found.upper.reference, 3), round(found.upper.signed, 3), found.holds
    (0.25, 0.04, 0.21, True)
    """
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    return variances(*sample.of_label(label, 2), read_alpha(alpha)).scalar()


def excess_variance_certificate(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    label: Any = None,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return an upper bound on Var_c f - Var_c f* from single labels, for ANY predictor: V - C^2 / V (spec 5.11).

    No alpha enters. The parameters are those of `moment_sandwich`.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = excess_variance_certificate(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 3), round(found.lower.reference, 3), found.holds
    (0.21, 0.21, True)
    """
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    m, star = sample.of_label(label, 2)
    zero, one = np.zeros_like(m.f[1]), np.ones_like(m.f[1])
    reference = m.variance - star_variance(star, m)
    lower = Side("lower", "the excess itself", reference, zero, None, zero, one, zero, True)
    estimate = excess_variance(m.variance, m.covariance)
    name = "The certified excess variance over the truth"
    return Guarantee(name, "Cauchy-Schwarz (spec 5.11)", estimate, lower, None).scalar()
