"""The moment sandwich: the moments of f lie between those of the truth and what positive correlation asks for.

With e_j = E_c[f^j (y - f)] and |e_j| <= alpha_c (spec 5.1 to 5.4; Lemma 4.1, Theorem 4.2, Corollary 4.3):

    E_c[f*^d] + d alpha_c >= E_c[f^d] >= E_c[y] E_c[f^(d-1)] - alpha_c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.data.inputs import check_whole
from lowcal.kernels.simplex import FloatArray
from lowcal.theory.guarantees.base import Guarantee, Side, ratio
from lowcal.theory.guarantees.group_moments import GroupMoments
from lowcal.theory.guarantees.reading import read_alpha, read_sample

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# ------------------------------------------------------------------------------------------- on moments
def matching(m: GroupMoments, degree: int, alpha: float | None = None) -> Guarantee[FloatArray]:
    """Return |E_c[f^(d-1) y] - E_c[f^d]| = |e_(d-1)| <= alpha_c (Lemma 4.1, spec 5.1)."""
    alpha_c, one, gap = m.violation(degree, alpha), np.ones_like(m.f[0]), m.gap(degree - 1)
    words = f"the predictions' moment of degree {degree}"
    lower = Side("lower", words, m.f[degree], one, 1.0, alpha_c, one, -gap)
    upper = Side("upper", words, m.f[degree], one, 1.0, alpha_c, one, gap)
    return Guarantee(f"E_c[f^{degree - 1} y]", "Lemma 4.1", m.fy[degree - 1], lower, upper)


def sandwich(
    m: GroupMoments, degree: int, star: FloatArray | None = None, alpha: float | None = None
) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f^d] (Theorem 4.2, spec 5.2 and 5.3).

    Signed, for any predictor: E_c[f^d] <= E_c[f*^d] - d e_(d-1), and
    E_c[f^d] = E_c[y] E_c[f^(d-1)] - e_0 E_c[f^(d-1)] + Cov_c(f, f^(d-1)). So the lower constant is E_c[f^(d-1)] <= 1.
    """
    alpha_c, one, below = m.violation(degree, alpha), np.ones_like(m.f[0]), m.f[degree - 1]
    rise = m.f[degree] - m.f[1] * below
    words = "the mean outcome times the moment below it"
    lower = Side("lower", words, m.fy[0] * below, below, 1.0, alpha_c, one, m.gap(0) * below - rise)
    reference = np.full_like(one, np.nan) if star is None else star[degree]
    signed = -degree * m.gap(degree - 1)
    upper = Side("upper", "the truth's moment", reference, degree * one, float(degree), alpha_c, one, signed, True)
    return Guarantee(f"The moment of degree {degree} of the predictions", "Theorem 4.2", m.f[degree], lower, upper)


def holder(m: GroupMoments, degree: int) -> FloatArray:
    """Return E_c[f^(d-1) y]^d / E_c[f^d]^(d-1) <= E_c[f*^d], for any predictor (Holder's inequality, spec 5.2)."""
    cross = m.fy[degree - 1]
    return np.asarray(cross * ratio(cross, m.f[degree], empty=0.0) ** (degree - 1))


def crossing(
    m: GroupMoments, degree: int, star: FloatArray | None = None, alpha: float | None = None
) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f^(d-1) y] (Corollary 4.3, spec 5.4).

    Upper: E_c[f*^d] + (d - 1) alpha_c (the paper: d + 1), signed by `holder`. Lower: E_c[y] E_c[f^(d-1)] less
    (1 + E_c[f^(d-1)]) alpha_c (the paper: 2), for
    Cov_c(f^(d-1), y) = Cov_c(f^(d-1), f) + e_(d-1) - e_0 E_c[f^(d-1)].
    """
    alpha_c, one = m.violation(degree, alpha), np.ones_like(m.f[0])
    cross, below = m.fy[degree - 1], m.f[degree - 1]
    product = m.fy[0] * below
    words = "the mean outcome times the predictions' moment"
    lower = Side("lower", words, product, lower_constant(below, degree), 2.0, alpha_c, one, product - cross)
    reference = np.full_like(one, np.nan) if star is None else star[degree]
    signed = cross - holder(m, degree)
    words = "the truth's moment"
    upper = Side("upper", words, reference, (degree - 1) * one, degree + 1.0, alpha_c, one, signed, True)
    return Guarantee(f"E_c[f^{degree - 1} y]", "Corollary 4.3", cross, lower, upper)


def lower_constant(below: FloatArray, degree: int) -> FloatArray:
    """Return 1 + E_c[f^(d-1)], the sum of two terms with signs of their own; at d = 1 they cancel, and 0 is left."""
    return np.asarray(1.0 + below if degree > 1 else 0.0 * below)


# ------------------------------------------------------------------------------------------- on rows
def moment_match(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    degree: int = 2,
    label: Any = None,
    alpha: float | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return |E_c[f^(d-1) y] - E_c[f^d]| <= alpha_c: the moments of f meet the outcomes (Lemma 4.1, spec 5.1).

    The parameters are those of `moment_sandwich`.

    >>> round(moment_match([1, 0, 1], [0.9, 0.2, 0.7]).estimate, 4)
    0.5333
    """
    check_whole("degree", degree, 1)
    sample = read_sample(y, p, c, sample_weight, classes)
    m, _ = sample.of_label(label, degree)
    return matching(m, degree, read_alpha(alpha)).scalar()


def moment_sandwich(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    degree: int = 2,
    label: Any = None,
    alpha: float | None = None,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return the sandwich of the d-th moment of the predictions on a subpopulation (Theorem 4.2, spec 5.2, 5.3).

    E_c[f*^d] + d alpha_c >= E_c[f^d] >= E_c[y] E_c[f^(d-1)] - E_c[f^(d-1)] alpha_c, alpha_c = alpha / E[c].

    Parameters
    ----------
    y, p, sample_weight, classes : as in `lowcal.measure`
    c : membership of each row in [0, 1], shape (n,); None is everyone
    degree : d, at least 1
    label : the class meant, for three or more classes
    alpha : the violation of degree-d multicalibration that is granted; None takes the one of these rows and this
        label, max_{j < d} |E[c f^j (y - f)]|
    f_star : the truth, shaped like p; without it the upper side is unknown
    replicates : (n, r) independent labels of each row instead, nan where missing; at least d of each row in c

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = moment_sandwich(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 3), round(found.upper.reference, 3), round(found.upper.slack, 3), found.holds
    (0.5, 0.29, 0.3, True)
    """
    check_whole("degree", degree, 1)
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    m, star = sample.of_label(label, degree)
    return sandwich(m, degree, star, read_alpha(alpha)).scalar()


def cross_moment(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    degree: int = 2,
    label: Any = None,
    alpha: float | None = None,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return the bounds on E_c[f^(d-1) y], which at d = 2 say that f is rightly correlated (Corollary 4.3, spec 5.4).

    The parameters are those of `moment_sandwich`.

    >>> found = cross_moment([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], alpha=0.0)
    >>> round(found.estimate, 3), round(found.lower.bound, 3), found.lower.allows(found.estimate)
    (0.35, 0.25, True)
    """
    check_whole("degree", degree, 1)
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    m, star = sample.of_label(label, degree)
    return crossing(m, degree, star, read_alpha(alpha)).scalar()


def holder_certificate(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    degree: int = 2,
    label: Any = None,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return a lower bound on the truth's moment E_c[f*^d] from single labels, for ANY predictor (spec 5.2).

    E_c[f*^d] >= E_c[f^(d-1) y]^d / E_c[f^d]^(d-1). No alpha enters. The parameters are those of `moment_sandwich`.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = holder_certificate(d.y, d.p, sample_weight=d.sample_weight, f_star=d.f_star)
    >>> round(found.estimate, 3), round(found.upper.reference, 3)
    (0.245, 0.29)
    """
    check_whole("degree", degree, 1)
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    m, star = sample.of_label(label, degree)
    zero, one = np.zeros_like(m.f[0]), np.ones_like(m.f[0])
    reference = zero * np.nan if star is None else star[degree]
    upper = Side("upper", "the truth's moment", reference, zero, None, zero, one, zero, True)
    name = f"The certified moment of degree {degree} of the truth"
    return Guarantee(name, "Holder's inequality (spec 5.2)", holder(m, degree), None, upper).scalar()
