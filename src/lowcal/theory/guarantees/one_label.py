"""Statements about one label of one group: moments, true and false positive rates, variance and covariance.

Everything follows from e_j = E_c[f^j (y - f)] and |e_j| <= alpha_c (spec 5.1 to 5.6, 5.10, 5.11). Each statement has
two functions: the formula on moments, for many groups at once, and the public one on rows.

    Theorem 4.2    E_c[f*^d] + d alpha_c >= E_c[f^d] >= E_c[y] E_c[f^(d-1)] - alpha_c
    Lemma 4.5      tau_c(f) = E_c[f | y = 1] = E_c[f y] / E_c[y] lies between E_c[f] and tau_c(f*)
    Theorem 4.12   V = Var_c f, C = Cov_c(f, y): V - C = e_0 E_c[f] - e_1 exactly
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from lowcal.data.inputs import check_whole
from lowcal.data.signatures import spelled_out
from lowcal.kernels.simplex import FloatArray
from lowcal.theory.guarantees.group_moments import GroupMoments
from lowcal.theory.guarantees.group_rows import Membership, OneLabel, label_moments
from lowcal.theory.guarantees.inequalities import Alpha, Guarantee, Inequality, ratio

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: What a variance may miss by rounding. It is added below a fraction line, so that a certificate stays on its side.
MISSED = 1e-15


# ------------------------------------------------------------------------------------------- moments
def matching(m: GroupMoments, degree: int, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return |E_c[f^(d-1) y] - E_c[f^d]| = |e_(d-1)| <= alpha_c (Lemma 4.1, spec 5.1)."""
    alpha_c, gap = m.violation(degree, alpha), m.gap(degree - 1)
    words = f"the predictions' moment of degree {degree}"
    lower = Inequality("lower", words, m.f[degree], 1.0, 1.0, alpha_c, -gap)
    upper = Inequality("upper", words, m.f[degree], 1.0, 1.0, alpha_c, gap)
    return Guarantee(f"E_c[f^{degree - 1} y]", "Lemma 4.1", m.fy[degree - 1], lower, upper)


def moment_match(
    y: ArrayLike,
    p: ArrayLike,
    c: Membership = None,
    *,
    degree: int = 2,
    label: Any = None,
    alpha: Alpha = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return |E_c[f^(d-1) y] - E_c[f^d]| <= alpha_c: the moments of f meet the outcomes (Lemma 4.1, spec 5.1).

    The parameters are those of `moment_sandwich`.

    >>> round(moment_match([1, 0, 1], [0.9, 0.2, 0.7]).estimate, 4)
    0.5333
    """
    check_whole("degree", degree, 1)
    m = label_moments(y, p, c, degree, label=label, sample_weight=sample_weight, classes=classes)
    return matching(m, degree, alpha).scalar()


def sandwich(m: GroupMoments, degree: int, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f^d] (Theorem 4.2, spec 5.2 and 5.3).

    Signed, for any predictor: E_c[f^d] <= E_c[f*^d] - d e_(d-1), and
    E_c[f^d] = E_c[y] E_c[f^(d-1)] - e_0 E_c[f^(d-1)] + Cov_c(f, f^(d-1)). So the lower constant is E_c[f^(d-1)] <= 1.
    """
    alpha_c, below = m.violation(degree, alpha), m.f[degree - 1]
    rise = m.f[degree] - m.f[1] * below
    words = "the mean outcome times the moment below it"
    lower = Inequality("lower", words, m.fy[0] * below, below, 1.0, alpha_c, m.gap(0) * below - rise)
    signed, truth = -degree * m.gap(degree - 1), m.truth(degree)
    upper = Inequality("upper", "the truth's moment", truth, degree, float(degree), alpha_c, signed, needs_f_star=True)
    return Guarantee(f"The moment of degree {degree} of the predictions", "Theorem 4.2", m.f[degree], lower, upper)


@spelled_out(OneLabel)
def moment_sandwich(
    y: ArrayLike, p: ArrayLike, c: Membership = None, *, degree: int = 2, alpha: Alpha = None, **rows: Unpack[OneLabel]
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
    return sandwich(label_moments(y, p, c, degree, **rows), degree, alpha).scalar()


def holder(m: GroupMoments, degree: int) -> FloatArray:
    """Return E_c[f^(d-1) y]^d / E_c[f^d]^(d-1) <= E_c[f*^d], for any predictor (Holder's inequality, spec 5.2)."""
    cross = m.fy[degree - 1]
    return np.asarray(cross * ratio(cross, m.f[degree], empty=0.0) ** (degree - 1))


@spelled_out(OneLabel)
def holder_certificate(
    y: ArrayLike, p: ArrayLike, c: Membership = None, *, degree: int = 2, **rows: Unpack[OneLabel]
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
    m, zero = label_moments(y, p, c, degree, **rows), np.zeros(())
    upper = Inequality("upper", "the truth's moment", m.truth(degree), 0.0, None, zero, zero, needs_f_star=True)
    name = f"The certified moment of degree {degree} of the truth"
    return Guarantee(name, "Holder's inequality (spec 5.2)", holder(m, degree), None, upper).scalar()


def crossing(m: GroupMoments, degree: int, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f^(d-1) y] (Corollary 4.3, spec 5.4).

    Upper: E_c[f*^d] + (d - 1) alpha_c (the paper: d + 1), signed by `holder`. Lower: E_c[y] E_c[f^(d-1)] less
    (1 + E_c[f^(d-1)]) alpha_c (the paper: 2), for Cov_c(f^(d-1), y) = Cov_c(f^(d-1), f) + e_(d-1) - e_0 E_c[f^(d-1)];
    at d = 1 the two terms of that sum cancel, and 0 is left.
    """
    alpha_c, cross, below = m.violation(degree, alpha), m.fy[degree - 1], m.f[degree - 1]
    product, constant = m.fy[0] * below, 1.0 + below if degree > 1 else 0.0 * below
    words = "the mean outcome times the predictions' moment"
    lower = Inequality("lower", words, product, constant, 2.0, alpha_c, product - cross)
    signed, words, truth = cross - holder(m, degree), "the truth's moment", m.truth(degree)
    upper = Inequality("upper", words, truth, degree - 1.0, degree + 1.0, alpha_c, signed, needs_f_star=True)
    return Guarantee(f"E_c[f^{degree - 1} y]", "Corollary 4.3", cross, lower, upper)


@spelled_out(OneLabel)
def cross_moment(
    y: ArrayLike, p: ArrayLike, c: Membership = None, *, degree: int = 2, alpha: Alpha = None, **rows: Unpack[OneLabel]
) -> Guarantee[float]:
    """Return the bounds on E_c[f^(d-1) y], which at d = 2 say that f is rightly correlated (Corollary 4.3, spec 5.4).

    The parameters are those of `moment_sandwich`.

    >>> found = cross_moment([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], alpha=0.0)
    >>> round(found.estimate, 3), round(found.lower.bound, 3), found.lower.allows(found.estimate)
    (0.35, 0.25, True)
    """
    check_whole("degree", degree, 1)
    return crossing(label_moments(y, p, c, degree, **rows), degree, alpha).scalar()


# ------------------------------------------------------------------------------------------- rates
def positive_rate(m: GroupMoments, degree: int = 1, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f^d | y = 1]: `crossing` of degree d + 1, divided by E_c[y] (Lemmas 4.5 and 4.7).

    Sharp constants: d above (the paper: d + 1, but 3 at d = 1), 1 + E_c[f^d] below (the paper: 2).
    """
    cross, share = crossing(m, degree + 1, alpha), divisor(m.fy[0])
    low, high = cross.sides
    words = "the mean prediction" if degree == 1 else f"the predictions' moment of degree {degree}"
    lower = Inequality("lower", words, m.f[degree], low.constant, 2.0, low.alpha_c, low.signed / share, share)
    truth, paper, signed = ratio(m.truth(degree + 1), m.truth(1)), 3.0 if degree == 1 else degree + 1.0, high.signed
    upper = Inequality(
        "upper", "the truth's own", truth, high.constant, paper, high.alpha_c, signed / share, share, needs_f_star=True
    )
    name = "The true positive rate" if degree == 1 else f"The true positive rate of degree {degree}"
    return Guarantee(name, "Lemma 4.5" if degree == 1 else "Lemma 4.7", cross.estimate / share, lower, upper)


@spelled_out(OneLabel)
def true_positive_rate(
    y: ArrayLike, p: ArrayLike, c: Membership = None, *, degree: int = 1, alpha: Alpha = None, **rows: Unpack[OneLabel]
) -> Guarantee[float]:
    """Return the bounds on the generalised true positive rate E_c[f^d | y = 1] (Lemmas 4.5 and 4.7, spec 5.5, 5.6).

    E_c[f^d] - (1 + E_c[f^d]) alpha_c / E_c[y] <= E_c[f^d | y = 1] <= E_c[f*^d | y = 1] + d alpha_c / E_c[y], for
    alpha the violation of degree d + 1. `replicates` need d + 1 labels of each row; the other parameters are those of
    `moment_sandwich`. Without an outcome in c everything is nan.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = true_positive_rate(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 2), round(found.upper.reference, 2), round(found.upper.slack, 2), found.holds
    (0.7, 0.58, 0.3, True)
    """
    check_whole("degree", degree, 1)
    return positive_rate(label_moments(y, p, c, degree + 1, **rows), degree, alpha).scalar()


def negative_rate(m: GroupMoments, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the bounds on the false positive rate E_c[f | y = 0] (spec 5.5: the true one of 1 - f and 1 - y, from 1).

    At most E_c[f] + (1 + E_c[f]) alpha_c / E_c[1 - y]; at least the truth's own less 2 alpha_c / E_c[1 - y]: the weight
    1 - f is the difference of two weights of degree 2, hence 2 and not 1. Signed: less (e_0 - e_1) / E_c[1 - y].
    """
    alpha_c, share = m.violation(2, alpha), divisor(1.0 - m.fy[0])
    truth, signed = ratio(m.truth(1) - m.truth(2), 1.0 - m.truth(1)), (m.gap(0) - m.gap(1)) / share
    lower = Inequality("lower", "the truth's own", truth, 2.0, None, alpha_c, signed, share, needs_f_star=True)
    constant, signed = 1.0 + m.f[1], -m.covariance / share
    upper = Inequality("upper", "the mean prediction", m.f[1], constant, None, alpha_c, signed, share)
    estimate = (m.f[1] - m.fy[1]) / share
    return Guarantee("The false positive rate", "Lemma 4.5, for 1 - f and 1 - y", estimate, lower, upper)


@spelled_out(OneLabel)
def false_positive_rate(
    y: ArrayLike, p: ArrayLike, c: Membership = None, *, alpha: Alpha = None, **rows: Unpack[OneLabel]
) -> Guarantee[float]:
    """Return the bounds on the generalised false positive rate E_c[f | y = 0] (spec 5.5).

    A low rate is no virtue: it should not fall below the truth's own. The parameters are those of `moment_sandwich`.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = false_positive_rate(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 2), round(found.lower.reference, 2)
    (0.3, 0.42)
    """
    return negative_rate(label_moments(y, p, c, 2, **rows), alpha).scalar()


def divisor(share: FloatArray) -> FloatArray:
    """Return the share of outcomes that a rate is divided by; nan where there are none.

    >>> divisor(np.array([0.5, 0.0]))
    array([0.5, nan])
    """
    return np.where(share > 0, share, np.nan)


# ------------------------------------------------------------------------------------------- variance and covariance
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


def star_variance(m: GroupMoments) -> FloatArray:
    """Return Var_c f*; nan where it is unknown."""
    return np.asarray(m.truth(2) - m.truth(1) ** 2)


def covariances(m: GroupMoments, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return V - (1 + E_c f) alpha_c <= C <= Var_c f* + (1 + E_c f) alpha_c (Theorem 4.12: 2 and 6; spec 5.10)."""
    alpha_c, V, C, constant = m.violation(2, alpha), m.variance, m.covariance, 1.0 + m.f[1]
    lower = Inequality("lower", "the predictions' variance", V, constant, 2.0, alpha_c, unjustified(m))
    words, signed = "the truth's variance", C - truth_variance(V, C)
    upper = Inequality("upper", words, star_variance(m), constant, 6.0, alpha_c, signed, needs_f_star=True)
    return Guarantee("The covariance of predictions and outcomes", "Theorem 4.12", C, lower, upper)


@spelled_out(OneLabel)
def covariance(
    y: ArrayLike, p: ArrayLike, c: Membership = None, *, alpha: Alpha = None, **rows: Unpack[OneLabel]
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
    return covariances(label_moments(y, p, c, 2, **rows), alpha).scalar()


def variances(m: GroupMoments, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return V <= Var_c f* + 2 (1 + E_c f) alpha_c (Lemma 4.13: 4; spec 5.11), signed by `excess_variance`."""
    alpha_c, constant, signed = m.violation(2, alpha), 2.0 * (1.0 + m.f[1]), excess_variance(m.variance, m.covariance)
    words = "the truth's variance"
    upper = Inequality("upper", words, star_variance(m), constant, 4.0, alpha_c, signed, needs_f_star=True)
    return Guarantee("The variance of the predictions", "Lemma 4.13", m.variance, None, upper)


@spelled_out(OneLabel)
def variance(
    y: ArrayLike, p: ArrayLike, c: Membership = None, *, alpha: Alpha = None, **rows: Unpack[OneLabel]
) -> Guarantee[float]:
    """Return the bound on Var_c f: at most the truth's plus 2 (1 + E_c f) alpha_c (Lemma 4.13, spec 5.11).

    The parameters are those of `moment_sandwich`.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = variance(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 3), round(found.upper.reference, 3), round(found.upper.signed, 3), found.holds
    (0.25, 0.04, 0.21, True)
    """
    return variances(label_moments(y, p, c, 2, **rows), alpha).scalar()


@spelled_out(OneLabel)
def excess_variance_certificate(
    y: ArrayLike, p: ArrayLike, c: Membership = None, **rows: Unpack[OneLabel]
) -> Guarantee[float]:
    """Return an upper bound on Var_c f - Var_c f* from single labels, for ANY predictor: V - C^2 / V (spec 5.11).

    No alpha enters. The parameters are those of `moment_sandwich`.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = excess_variance_certificate(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 3), round(found.lower.reference, 3), found.holds
    (0.21, 0.21, True)
    """
    m, zero = label_moments(y, p, c, 2, **rows), np.zeros(())
    reference, estimate = m.variance - star_variance(m), excess_variance(m.variance, m.covariance)
    lower = Inequality("lower", "the excess itself", reference, 0.0, None, zero, zero, needs_f_star=True)
    name = "The certified excess variance over the truth"
    return Guarantee(name, "Cauchy-Schwarz (spec 5.11)", estimate, lower, None).scalar()
