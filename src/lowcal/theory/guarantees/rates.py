"""True and false positive rates: what those with the outcome are given, between everyone's share and the truth's.

tau_c(f) = E_c[f | y = 1] = E_c[f y] / E_c[y] is the corollary of the moment sandwich divided by E_c[y]
(spec 5.5, 5.6, 5.9; Lemmas 4.5, 4.7, 4.11). A set L of labels counts as one: f_L and y_L are sums over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import check_whole
from lowcal.kernels.simplex import FloatArray
from lowcal.theory.guarantees.base import Guarantee, Side, ratio
from lowcal.theory.guarantees.confusion_matrices import simplex_violation
from lowcal.theory.guarantees.group_moments import GroupMoments
from lowcal.theory.guarantees.reading import read_alpha, read_label, read_sample
from lowcal.theory.guarantees.sandwich import crossing, holder

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# ------------------------------------------------------------------------------------------- on moments
def positive_rate(
    m: GroupMoments, degree: int = 1, star: FloatArray | None = None, alpha: float | None = None
) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f^d | y = 1]: `crossing` of degree d + 1, divided by E_c[y] (Lemmas 4.5 and 4.7).

    Sharp constants: d above (the paper: d + 1, but 3 at d = 1), 1 + E_c[f^d] below (the paper: 2).
    """
    cross = crossing(m, degree + 1, star, alpha)
    assert cross.lower is not None
    assert cross.upper is not None
    share = divisor(m.fy[0])
    low, high = cross.lower, cross.upper
    words = "the mean prediction" if degree == 1 else f"the predictions' moment of degree {degree}"
    lower = Side("lower", words, m.f[degree], low.constant, 2.0, low.alpha_c, share, low.signed / share)
    reference = np.full_like(share, np.nan) if star is None else ratio(star[degree + 1], star[1])
    paper = 3.0 if degree == 1 else degree + 1.0
    words = "the truth's own"
    upper = Side("upper", words, reference, high.constant, paper, high.alpha_c, share, high.signed / share, True)
    name = "The true positive rate" if degree == 1 else f"The true positive rate of degree {degree}"
    return Guarantee(name, "Lemma 4.5" if degree == 1 else "Lemma 4.7", cross.estimate / share, lower, upper)


def negative_rate(m: GroupMoments, star: FloatArray | None = None, alpha: float | None = None) -> Guarantee[FloatArray]:
    """Return the bounds on the false positive rate E_c[f | y = 0] (spec 5.5: the true one of 1 - f and 1 - y, from 1).

    At most E_c[f] + (1 + E_c[f]) alpha_c / E_c[1 - y]; at least the truth's own less 2 alpha_c / E_c[1 - y]: the weight
    1 - f is the difference of two weights of degree 2, hence 2 and not 1. Signed: less (e_0 - e_1) / E_c[1 - y].
    """
    alpha_c, share = m.violation(2, alpha), divisor(1.0 - m.fy[0])
    estimate = (m.f[1] - m.fy[1]) / share
    reference = np.full_like(share, np.nan) if star is None else ratio(star[1] - star[2], 1.0 - star[1])
    signed = (m.gap(0) - m.gap(1)) / share
    two = 2.0 * np.ones_like(share)
    lower = Side("lower", "the truth's own", reference, two, None, alpha_c, share, signed, True)
    against = -m.covariance / share
    upper = Side("upper", "the mean prediction", m.f[1], 1.0 + m.f[1], None, alpha_c, share, against)
    return Guarantee("The false positive rate", "Lemma 4.5, for 1 - f and 1 - y", estimate, lower, upper)


def divisor(share: FloatArray) -> FloatArray:
    """Return the share of outcomes that a rate is divided by; nan where there are none.

    >>> divisor(np.array([0.5, 0.0]))
    array([0.5, nan])
    """
    return np.where(share > 0, share, np.nan)


def set_constant(n_labels: int, size: int, *, is_basis: bool = False) -> float:
    """Return K with |E_c[f_L (y_L - f_L)]| <= K alpha_c for a set L of s of l labels (spec 5.9).

    K = s (l - s) / (l - 1) when alpha bounds all of W_2: the weight ((l - s - 1) f_L / s + 1) / (l - s) on the labels
    of L and (1 - f_L) / (l - s) on the others is one of W_2, and its violation is E_c[f_L (y_L - f_L)] / K because
    residuals sum to 0. K = s min(s, l - s) when alpha bounds the monomials alone: each column of E_c[(y - f) f'] sums
    to 0.

    >>> set_constant(4, 2), set_constant(4, 2, is_basis=True), set_constant(4, 4)
    (1.3333333333333333, 4.0, 0.0)
    """
    if is_basis:
        return float(size * min(size, n_labels - size))
    return size * (n_labels - size) / (n_labels - 1)


def set_rate(
    m: GroupMoments,
    n_labels: int,
    size: int,
    alpha_c: FloatArray,
    star: FloatArray | None = None,
    *,
    is_basis: bool = False,
) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f_L | y_L = 1] for a set of `size` labels (Lemma 4.11, spec 5.9).

    `m` holds the moments of f_L and y_L. Below, t e_0 - e_1 with t = E_c[f_L] is an average of e_0 - e_1 and -e_1, and
    e_0 - e_1 is -E_c[f_R (y_R - f_R)] for the other labels R: W_2 bounds both by the same K. With monomials it is
    K + t min(s, l - s).
    """
    s, K = float(size), set_constant(n_labels, size, is_basis=is_basis)
    share, one = divisor(m.fy[0]), np.ones_like(m.f[0])
    below = K + m.f[1] * min(size, n_labels - size) if is_basis else K * one
    signed = (m.fy[0] * m.f[1] - m.fy[1]) / share
    lower = Side("lower", "the mean prediction", m.f[1], below, s**2 + s, alpha_c, share, signed)
    reference = np.full_like(share, np.nan) if star is None else ratio(star[2], star[1])
    signed, paper = (m.fy[1] - holder(m, 2)) / share, 2.0 * n_labels * s**2
    upper = Side("upper", "the truth's own", reference, K * one, paper, alpha_c, share, signed, True)
    return Guarantee("The true positive rate of the set", "Lemma 4.11", m.fy[1] / share, lower, upper)


# ------------------------------------------------------------------------------------------- on rows
def true_positive_rate(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    degree: int = 1,
    label: Any = None,
    alpha: float | None = None,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
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
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    m, star = sample.of_label(label, degree + 1)
    return positive_rate(m, degree, star, read_alpha(alpha)).scalar()


def false_positive_rate(
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
    """Return the bounds on the generalised false positive rate E_c[f | y = 0] (spec 5.5).

    A low rate is no virtue: it should not fall below the truth's own. The parameters are those of `moment_sandwich`.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = false_positive_rate(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 2), round(found.lower.reference, 2)
    (0.3, 0.42)
    """
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    m, star = sample.of_label(label, 2)
    return negative_rate(m, star, read_alpha(alpha)).scalar()


def set_true_positive_rate(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    labels: Iterable[Any],
    alpha: float | None = None,
    is_basis: bool = False,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return the bounds on E_c[f_L | y in L], the true positive rate of a set L of labels (Lemma 4.11, spec 5.9).

    E_c[f_L] - K alpha_c / E_c[y_L] <= tau_c(f, L) <= tau_c(f*, L) + K alpha_c / E_c[y_L], K = s (l - s) / (l - 1) for
    s = |L| of l labels. The paper divides one slack by E_c[f_L]; it must be E_c[y_L].

    Parameters
    ----------
    labels : the classes of the set
    alpha : a bound on the degree-2 violation over all of W_2; None takes that of these rows
    is_basis : whether alpha bounds the monomials only (`Measurement.basis`), which changes the constants
    others : as in `moment_sandwich`

    >>> p = [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]
    >>> found = set_true_positive_rate([0, 1, 2], p, labels=[0, 1])
    >>> round(found.estimate, 3), round(found.lower.bound, 3)
    (0.75, 0.367)
    """
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    if sample.layout.d == 1:
        raise InvalidInput("Sets of labels need three or more classes. For two, use true_positive_rate.")
    which = sorted({read_label(label, sample.layout) for label in labels})
    if not which:
        raise InvalidInput("labels is empty. Name at least one class.")
    m, star = sample.moments(which, 2), sample.star(which, 2)
    alpha_c = simplex_violation(sample.p, sample.y, sample.weight, read_alpha(alpha), is_basis=is_basis)
    return set_rate(m, sample.layout.n_classes, len(which), alpha_c, star, is_basis=is_basis).scalar()
