"""Section 4 of the paper, theorem by theorem: what multicalibration guarantees for one group (spec 5).

Statements about one label follow from e_j = E_c[f^j (y - f)] and |e_j| <= alpha_c. They are written as formulas on
moments, for many groups at once (`moment_sandwich.of(moments, degree)`), and called with rows.

    Theorem 4.2    E_c[f*^d] + d alpha_c >= E_c[f^d] >= E_c[y] E_c[f^(d-1)] - alpha_c
    Lemma 4.5      tau_c(f) = E_c[f | y = 1] = E_c[f y] / E_c[y] lies between E_c[f] and tau_c(f*)
    Theorem 4.12   V = Var_c f, C = Cov_c(f, y): V - C = e_0 E_c[f] - e_1 exactly

`describe` puts what the moments of one subpopulation show about the model into sentences and figures. Each moment
E[c f^j (y - f)] is known up to a margin, so e_j up to margin / E[c], and V - C = e_0 E_c[f] - e_1 up to (1 + E_c f)
margin / E[c]. The moments of f itself are those of the rows at hand (spec 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from math import sqrt
from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast

import numpy as np

from lowcal.data.errors import InvalidInput, printable
from lowcal.data.inputs import check_numbers, check_whole, spelled_out
from lowcal.guarantees.groups import (
    ROUNDING,
    AboutRows,
    Alpha,
    GroupMoments,
    GroupRows,
    Guarantee,
    Inequality,
    Membership,
    all_hold,
    both_classes,
    given_alpha,
    mean,
    ratio,
    read_label,
)
from lowcal.kernels.products import product
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.finite import best_linear

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


#: What a variance may miss by rounding. It is added below a fraction line, so that a certificate stays on its side.
MISSED = 1e-15

Formula = Callable[..., Guarantee[FloatArray]]


class OneLabel(AboutRows, total=False):
    """The same for statements about one label: which one it is."""

    label: Any


class Statement(Protocol):
    """A theorem about one label, called with rows; `of` is its formula on moments."""

    __name__: str
    of: Formula

    def __call__(
        self,
        y: ArrayLike,
        p: ArrayLike,
        c: Membership = None,
        *,
        degree: int = ...,
        alpha: Alpha = ...,
        **rows: Unpack[OneLabel],
    ) -> Guarantee[float]:
        """Return the theorem on these rows."""


def on_rows(more: int = 0) -> Callable[[Formula], Statement]:
    """Let a formula on moments up to its degree (2 if it has none) plus `more` be called with rows y, p, c."""
    read = list(signature(GroupRows.read).parameters.values())
    label = Parameter("label", Parameter.KEYWORD_ONLY, default=None, annotation="Any")

    def decorate(formula: Formula) -> Statement:
        own = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in signature(formula).parameters.values()][1:]
        shape = Signature([*read[:3], *own, *read[3:], label], return_annotation="Guarantee[float]")

        @wraps(formula)
        def statement(*positional: Any, **keywords: Any) -> Guarantee[float]:
            bound = shape.bind(*positional, **keywords)
            bound.apply_defaults()
            given = bound.arguments
            degree = given.get("degree", 2)
            check_whole("degree", degree, 1)
            rows = GroupRows.read(**{one.name: given[one.name] for one in read})
            moments = rows.moments([read_label(given["label"], rows.layout)], degree + more)
            return formula(moments, **{one.name: given[one.name] for one in own}).scalar()

        made = cast(Any, statement)
        made.__signature__, made.of = shape, formula
        return cast(Statement, made)

    return decorate


# ------------------------------------------------------------------------------------------- moments
@on_rows()
def moment_match(m: GroupMoments, degree: int = 2, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return |E_c[f^(d-1) y] - E_c[f^d]| <= alpha_c: the moments of f meet the outcomes (Lemma 4.1, spec 5.1).

    The difference is e_(d-1). The parameters are those of `moment_sandwich`; the truth is not needed.

    >>> round(moment_match([1, 0, 1], [0.9, 0.2, 0.7]).estimate, 4)
    0.5333
    """
    alpha_c, gap = m.violation(degree, alpha), m.gap(degree - 1)
    words = f"the predictions' moment of degree {degree}"
    lower = Inequality("lower", words, m.f[degree], 1.0, 1.0, alpha_c, -gap)
    upper = Inequality("upper", words, m.f[degree], 1.0, 1.0, alpha_c, gap)
    return Guarantee(f"E_c[f^{degree - 1} y]", "Lemma 4.1", m.fy[degree - 1], lower, upper)


@on_rows()
def moment_sandwich(m: GroupMoments, degree: int = 2, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the sandwich of the d-th moment of the predictions on a subpopulation (Theorem 4.2, spec 5.2, 5.3).

    E_c[f*^d] + d alpha_c >= E_c[f^d] >= E_c[y] E_c[f^(d-1)] - E_c[f^(d-1)] alpha_c, alpha_c = alpha / E[c].
    Signed, for any predictor: E_c[f^d] <= E_c[f*^d] - d e_(d-1), and
    E_c[f^d] = E_c[y] E_c[f^(d-1)] - e_0 E_c[f^(d-1)] + Cov_c(f, f^(d-1)).

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
    alpha_c, below = m.violation(degree, alpha), m.f[degree - 1]
    rise = m.f[degree] - m.f[1] * below
    words = "the mean outcome times the moment below it"
    lower = Inequality("lower", words, m.fy[0] * below, below, 1.0, alpha_c, m.gap(0) * below - rise)
    signed, truth = -degree * m.gap(degree - 1), m.truth(degree)
    upper = Inequality("upper", "the truth's moment", truth, degree, float(degree), alpha_c, signed, needs_f_star=True)
    return Guarantee(f"The moment of degree {degree} of the predictions", "Theorem 4.2", m.f[degree], lower, upper)


def holder(m: GroupMoments, degree: int) -> FloatArray:
    """Return E_c[f^(d-1) y]^d / E_c[f^d]^(d-1) <= E_c[f*^d], for any predictor (Holder's inequality, spec 5.2)."""
    cross = m.fy[degree - 1]
    return np.asarray(cross * ratio(cross, m.f[degree], empty=0.0) ** (degree - 1))


@on_rows()
def cross_moment(m: GroupMoments, degree: int = 2, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f^(d-1) y], for d = 2 on the covariance of f and y (Corollary 4.3, spec 5.4).

    Upper: E_c[f*^d] + (d - 1) alpha_c (the paper: d + 1). `estimate - upper.signed` is a lower bound on E_c[f*^d] from
    single labels, for ANY predictor: E_c[f^(d-1) y]^d / E_c[f^d]^(d-1), by Holder's inequality (spec 5.2).

    Lower: E_c[y] E_c[f^(d-1)] less (1 + E_c[f^(d-1)]) alpha_c (the paper: 2), for Cov_c(f^(d-1), y) =
    Cov_c(f^(d-1), f) + e_(d-1) - e_0 E_c[f^(d-1)]; at d = 1 the two terms of that sum cancel, and 0 is left. The
    parameters are those of `moment_sandwich`.

    >>> found = cross_moment([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], alpha=0.0)
    >>> round(found.estimate, 3), round(found.lower.bound, 3), found.lower.allows(found.estimate)
    (0.35, 0.25, True)
    """
    alpha_c, cross, below = m.violation(degree, alpha), m.fy[degree - 1], m.f[degree - 1]
    product, constant = m.fy[0] * below, 1.0 + below if degree > 1 else 0.0 * below
    words = "the mean outcome times the predictions' moment"
    lower = Inequality("lower", words, product, constant, 2.0, alpha_c, product - cross)
    signed, words, truth = cross - holder(m, degree), "the truth's moment", m.truth(degree)
    upper = Inequality("upper", words, truth, degree - 1.0, degree + 1.0, alpha_c, signed, needs_f_star=True)
    return Guarantee(f"E_c[f^{degree - 1} y]", "Corollary 4.3", cross, lower, upper)


# ------------------------------------------------------------------------------------------- rates
@on_rows(more=1)
def true_positive_rate(m: GroupMoments, degree: int = 1, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the bounds on the generalised true positive rate E_c[f^d | y = 1] (Lemmas 4.5 and 4.7, spec 5.5, 5.6).

    E_c[f^d] - (1 + E_c[f^d]) alpha_c / E_c[y] <= E_c[f^d | y = 1] <= E_c[f*^d | y = 1] + d alpha_c / E_c[y], for
    alpha the violation of degree d + 1: `cross_moment` of degree d + 1, divided by E_c[y]. The paper's constants are
    d + 1 above (3 at d = 1) and 2 below. `replicates` need d + 1 labels of each row; the other parameters are those of
    `moment_sandwich`. Without an outcome in c everything is nan.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = true_positive_rate(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 2), round(found.upper.reference, 2), round(found.upper.slack, 2), found.holds
    (0.7, 0.58, 0.3, True)
    """
    cross, share = cross_moment.of(m, degree + 1, alpha), divisor(m.fy[0])
    low, high = cross.sides
    words = "the mean prediction" if degree == 1 else f"the predictions' moment of degree {degree}"
    lower = Inequality("lower", words, m.f[degree], low.constant, 2.0, low.alpha_c, low.signed / share, share)
    truth, paper, signed = ratio(m.truth(degree + 1), m.truth(1)), 3.0 if degree == 1 else degree + 1.0, high.signed
    upper = Inequality(
        "upper", "the truth's own", truth, high.constant, paper, high.alpha_c, signed / share, share, needs_f_star=True
    )
    name = "The true positive rate" if degree == 1 else f"The true positive rate of degree {degree}"
    return Guarantee(name, "Lemma 4.5" if degree == 1 else "Lemma 4.7", cross.estimate / share, lower, upper)


@on_rows()
def false_positive_rate(m: GroupMoments, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the bounds on the generalised false positive rate E_c[f | y = 0] (spec 5.5).

    It is 1 less the true positive rate of 1 - f and 1 - y. At most E_c[f] + (1 + E_c[f]) alpha_c / E_c[1 - y]; at least
    the truth's own less 2 alpha_c / E_c[1 - y] (a low rate is no virtue): the weight 1 - f is the difference of two
    weights of degree 2, hence 2 and not 1. Signed: less (e_0 - e_1) / E_c[1 - y]. The parameters are those of
    `moment_sandwich`.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = false_positive_rate(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 2), round(found.lower.reference, 2)
    (0.3, 0.42)
    """
    alpha_c, share = m.violation(2, alpha), divisor(1.0 - m.fy[0])
    truth, signed = ratio(m.truth(1) - m.truth(2), 1.0 - m.truth(1)), (m.gap(0) - m.gap(1)) / share
    lower = Inequality("lower", "the truth's own", truth, 2.0, None, alpha_c, signed, share, needs_f_star=True)
    constant, signed = 1.0 + m.f[1], -m.covariance / share
    upper = Inequality("upper", "the mean prediction", m.f[1], constant, None, alpha_c, signed, share)
    estimate = (m.f[1] - m.fy[1]) / share
    return Guarantee("The false positive rate", "Lemma 4.5, for 1 - f and 1 - y", estimate, lower, upper)


def divisor(share: FloatArray) -> FloatArray:
    """Return the share of outcomes that a rate is divided by; nan where there are none."""
    return np.where(share > 0, share, np.nan)


# ------------------------------------------------------------------------------------------- variance and covariance
def truth_variance(variance: FloatArray, covariance: FloatArray) -> FloatArray:
    """Return max(C^2 / V, 2 C - V) <= Var_c f*, what the outcomes show of the truth's variance, for any predictor.

    The first is Cauchy-Schwarz, the second Var_c(f* - f) >= 0. Exactly, the first is larger by (V - C)^2 / V; but where
    V is hardly more than rounding, only the second can be trusted.
    """
    return np.asarray(np.maximum(covariance**2 / (variance + MISSED), 2.0 * covariance - variance))


def excess_variance(variance: FloatArray, covariance: FloatArray) -> FloatArray:
    """Return min(V - C^2 / V, 2 (V - C)) >= Var_c f - Var_c f*, for any predictor (spec 5.11)."""
    return np.asarray(variance - truth_variance(variance, covariance))


def unjustified(m: GroupMoments) -> FloatArray:
    """Return V - C = e_0 E_c[f] - e_1: the variance that the outcomes do not justify (spec 5.10)."""
    return np.asarray(m.gap(0) * m.f[1] - m.gap(1))


def star_variance(m: GroupMoments) -> FloatArray:
    """Return Var_c f*; nan where it is unknown."""
    return np.asarray(m.truth(2) - m.truth(1) ** 2)


@on_rows()
def covariance(m: GroupMoments, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the bounds on Cov_c(f, y): positive, and not more than the truth allows (Theorem 4.12, spec 5.10).

    Var_c f - (1 + E_c f) alpha_c <= Cov_c(f, y) <= Var_c f* + (1 + E_c f) alpha_c; the paper's constants are 2 and 6.
    The parameters are those of `moment_sandwich`.

    >>> from lowcal.datasets import parity_square
    >>> d = parity_square()
    >>> found = covariance(d.y, d.p, d.X["x1"] == 1, sample_weight=d.sample_weight)
    >>> round(12 * found.estimate, 9), round(9 * found.lower.signed, 9)
    (-1.0, 1.0)
    """
    alpha_c, V, C, constant = m.violation(2, alpha), m.variance, m.covariance, 1.0 + m.f[1]
    lower = Inequality("lower", "the predictions' variance", V, constant, 2.0, alpha_c, unjustified(m))
    words, signed = "the truth's variance", C - truth_variance(V, C)
    upper = Inequality("upper", words, star_variance(m), constant, 6.0, alpha_c, signed, needs_f_star=True)
    return Guarantee("The covariance of predictions and outcomes", "Theorem 4.12", C, lower, upper)


@on_rows()
def variance(m: GroupMoments, alpha: Alpha = None) -> Guarantee[FloatArray]:
    """Return the bound on Var_c f: at most the truth's plus 2 (1 + E_c f) alpha_c (Lemma 4.13, spec 5.11).

    The paper's constant is 4. `upper.signed` = V - C^2 / V, C = Cov_c(f, y), is an upper bound on Var_c f - Var_c f*
    from single labels, for ANY predictor. The parameters are those of `moment_sandwich`.

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = variance(d.y, d.p, f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 3), round(found.upper.reference, 3), round(found.upper.signed, 3), found.holds
    (0.25, 0.04, 0.21, True)
    """
    alpha_c, constant, signed = m.violation(2, alpha), 2.0 * (1.0 + m.f[1]), excess_variance(m.variance, m.covariance)
    words = "the truth's variance"
    upper = Inequality("upper", words, star_variance(m), constant, 4.0, alpha_c, signed, needs_f_star=True)
    return Guarantee("The variance of the predictions", "Lemma 4.13", m.variance, None, upper)


# ------------------------------------------------------------------------------------------- several labels
def second_moment(a: FloatArray, b: FloatArray, weight: FloatArray) -> FloatArray:
    """Return E_c[a b'] for rows a and b of shape (..., n, l) and weights (..., n); nan without mass."""
    left, right = np.broadcast_arrays(weight[..., None] * a, b)
    total = product(np.swapaxes(left, -1, -2), right)
    return ratio(total, weight.sum(axis=-1)[..., None, None])


def simplex_violation(f: FloatArray, y: FloatArray, weight: FloatArray, alpha: Alpha = None) -> FloatArray:
    """Return alpha_c of degree 2 on the simplex: alpha / E[c], or the supremum over W_2 without an alpha (spec 2.2)."""
    if alpha is not None:
        return given_alpha(alpha, weight.sum(axis=-1))
    M = second_moment(y - f, f, weight)
    return np.asarray(np.maximum(best_linear(M)[0].sum(axis=-1), best_linear(-M)[0].sum(axis=-1)))


@dataclass(frozen=True, eq=False)
class Confusion:
    """The two matrices and what is guaranteed of them; rows are true labels, columns predicted ones.

    `matrix` = B_c(f*, f), `predicted` = B_c(f, f), `gap` = M = matrix - predicted; `distance` is Lemma 4.8 and
    `order` Lemma 4.9.
    """

    matrix: FloatArray
    predicted: FloatArray
    gap: FloatArray
    distance: Guarantee[float]
    order: Guarantee[float]

    @property
    def estimate(self) -> FloatArray:
        """The confusion matrix B_c(f*, f), estimated from the labels."""
        return self.matrix

    @property
    def holds(self) -> bool | None:
        """Whether both parts hold; None while the order is unknown."""
        return all_hold((self.distance.holds, self.order.holds))

    def __str__(self) -> str:
        return f"{self.distance} {self.order}"


@spelled_out(AboutRows)
def confusion(
    y: ArrayLike,
    p: ArrayLike,
    c: Membership = None,
    *,
    alpha: Alpha = None,
    **about: Unpack[AboutRows],
) -> Confusion:
    """Return the confusion matrix of labels drawn from f, near the predicted one and below the truth's (spec 5.7, 5.8).

    B_c(f*, f) = E_c[y f'] and B_c(f, f) = E_c[f f'] are estimable, and so is their difference M = E_c[(y - f) f'].
    max |B_c(f*, f) - B_c(f, f)| <= alpha_c (Lemma 4.8) and B_c(f, f) <= B_c(f*, f*) + K alpha_c I in the PSD order
    (Lemma 4.9; the paper writes alpha, it must be alpha_c). What the data show instead of K alpha_c is
    lambda_max(-(M + M')), `order.upper.signed`.

    Parameters
    ----------
    alpha : a bound on the degree-2 violation; None takes that of these rows
    replicates : at least 2 labels of each row
    others : as in `moment_sandwich`. Two classes keep the scalar convention and its constants.

    >>> found = confusion([0, 1, 2], [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
    >>> (3 * found.matrix).round(2)
    array([[0.5, 0.3, 0.2],
           [0.2, 0.5, 0.3],
           [0.1, 0.1, 0.8]])
    >>> found.distance.holds, found.holds
    (True, None)
    """
    rows = GroupRows.read(y, p, c, **about)
    outcomes, f, is_scalar = both_classes(rows.y), both_classes(rows.p), rows.layout.d == 1
    matrix, predicted = (second_moment(a, f, rows.weight) for a in (outcomes, f))
    M, excess = matrix - predicted, None
    if is_scalar:
        alpha_c = rows.moments([0], 2).violation(2, alpha)
    else:
        alpha_c = simplex_violation(rows.p, rows.y, rows.weight, alpha)
    if rows.truth is not None:
        excess = predicted - mean(rows.truth.products(rows.weight).transpose(1, 2, 0), rows.weight)
    near = distance(M, alpha_c, is_scalar=is_scalar).scalar()
    below = order(M, alpha_c, excess, is_scalar=is_scalar).scalar()
    return Confusion(matrix, predicted, M, near, below)


def distance(M: FloatArray, alpha_c: FloatArray, *, is_scalar: bool = False) -> Guarantee[FloatArray]:
    """Return ||B_c(f*, f) - B_c(f, f)||_max = max |M| <= alpha_c (Lemma 4.8, spec 5.7).

    In the scalar convention the entry E_c[(y - f)(1 - f)] = e_0 - e_1 is bounded by 2 alpha_c only.
    """
    size = np.abs(M).max(axis=(-2, -1))
    upper = Inequality("upper", "", np.zeros_like(alpha_c), 2.0 if is_scalar else 1.0, 1.0, alpha_c, size)
    return Guarantee("The distance of the confusion matrix from the predicted one", "Lemma 4.8", size, None, upper)


def order(
    M: FloatArray, alpha_c: FloatArray, excess: FloatArray | None = None, *, is_scalar: bool = False
) -> Guarantee[FloatArray]:
    """Return the largest eigenvalue of B_c(f, f) - B_c(f*, f*), at most lambda_max(-(M + M')) (Lemma 4.9, spec 5.8).

    `excess` is that difference; it equals -(M + M') - E_c[(f* - f)(f* - f)'].
    """
    n_labels, zero = M.shape[-1], np.zeros_like(alpha_c)
    estimate = zero * np.nan if excess is None else largest_eigenvalue(excess)
    constant = order_constant(n_labels, is_scalar=is_scalar)
    signed = largest_eigenvalue(-(M + np.swapaxes(M, -1, -2)))
    upper = Inequality("upper", "", zero, constant, 2.0 * n_labels, alpha_c, signed, needs_f_star=True)
    name = "The largest excess of the predicted confusion over the truth's"
    return Guarantee(name, "Lemma 4.9", estimate, None, upper)


def order_constant(n_labels: int, *, is_scalar: bool = False) -> float:
    """Return K with B_c(f, f) <= B_c(f*, f*) + K alpha_c I (Lemma 4.9 prints 2 l alpha; spec 5.8).

    K bounds -2 u'M u over unit vectors u. K = 1 + sqrt(l) + sqrt(l - 1), which is not sharp: split u by sign; the
    weights u+ (u+ f) + u- (u- f) and u+ (u- f) + u- (u+ f) are in W_2 up to factors of at most (1 + sqrt(l)) / 2 and
    sqrt(l - 1) / 2. In the scalar convention M = (-1, 1)'(e_0 - e_1, e_1), and K = 3 + sqrt(10), at e_0 = -e_1.
    """
    return 3.0 + sqrt(10.0) if is_scalar else 1.0 + sqrt(n_labels) + sqrt(n_labels - 1.0)


def largest_eigenvalue(A: FloatArray) -> FloatArray:
    """Return the largest eigenvalue of symmetric matrices (..., l, l); nan where an entry is nan."""
    bad = np.asarray(np.isnan(A).any(axis=(-2, -1)))
    values = np.linalg.eigvalsh(np.where(bad[..., None, None], 0.0, A))[..., -1]
    return np.where(bad, np.nan, values)


@spelled_out(AboutRows)
def set_true_positive_rate(
    y: ArrayLike,
    p: ArrayLike,
    c: Membership = None,
    *,
    labels: Iterable[Any],
    alpha: Alpha = None,
    **about: Unpack[AboutRows],
) -> Guarantee[float]:
    """Return the bounds on E_c[f_L | y in L], the true positive rate of a set L of labels (Lemma 4.11, spec 5.9).

    E_c[f_L] - K alpha_c / E_c[y_L] <= tau_c(f, L) <= tau_c(f*, L) + K alpha_c / E_c[y_L], K = s (l - s) / (l - 1) for
    s = |L| of l labels; f_L and y_L are sums over L. The paper divides one slack by E_c[f_L]; it must be E_c[y_L].

    Parameters
    ----------
    labels : the classes of the set
    alpha : a bound on the degree-2 violation; None takes that of these rows
    others : as in `moment_sandwich`

    >>> p = [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]
    >>> found = set_true_positive_rate([0, 1, 2], p, labels=[0, 1])
    >>> round(found.estimate, 3), round(found.lower.bound, 3)
    (0.75, 0.367)
    """
    rows = GroupRows.read(y, p, c, **about)
    if rows.layout.d == 1:
        raise InvalidInput("Sets of labels need three or more classes. For two, use true_positive_rate.")
    which = sorted({read_label(label, rows.layout) for label in labels})
    if not which:
        raise InvalidInput("labels is empty. Name at least one class.")
    alpha_c = simplex_violation(rows.p, rows.y, rows.weight, alpha)
    return set_rate(rows.moments(which, 2), rows.layout.n_classes, len(which), alpha_c).scalar()


def set_rate(m: GroupMoments, n_labels: int, size: int, alpha_c: FloatArray) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f_L | y_L = 1] for a set of `size` labels; `m` holds the moments of f_L and y_L.

    Below, t e_0 - e_1 with t = E_c[f_L] is an average of e_0 - e_1 and -e_1, and e_0 - e_1 is -E_c[f_R (y_R - f_R)] for
    the other labels R: W_2 bounds both by the same K.
    """
    s, K, share = float(size), set_constant(n_labels, size), divisor(m.fy[0])
    signed = (m.fy[0] * m.f[1] - m.fy[1]) / share
    lower = Inequality("lower", "the mean prediction", m.f[1], K, s**2 + s, alpha_c, signed, share)
    truth, signed, paper = ratio(m.truth(2), m.truth(1)), (m.fy[1] - holder(m, 2)) / share, 2.0 * n_labels * s**2
    upper = Inequality("upper", "the truth's own", truth, K, paper, alpha_c, signed, share, needs_f_star=True)
    return Guarantee("The true positive rate of the set", "Lemma 4.11", m.fy[1] / share, lower, upper)


def set_constant(n_labels: int, size: int) -> float:
    """Return K = s (l - s) / (l - 1) with |E_c[f_L (y_L - f_L)]| <= K alpha_c for a set L of s of l labels (spec 5.9).

    The weight ((l - s - 1) f_L / s + 1) / (l - s) on the labels of L and (1 - f_L) / (l - s) on the others is one of
    W_2, and its violation is E_c[f_L (y_L - f_L)] / K because residuals sum to 0.
    """
    return size * (n_labels - size) / (n_labels - 1)


# --- a page on one subpopulation -------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class GroupPage:
    """The description of a subpopulation: `sentences`, and the `figures` in them by name."""

    name: str
    label: str | None
    figures: Mapping[str, float]
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def describe(moments: GroupMoments, name: str, label: str | None = None, margin: float = 0.0) -> GroupPage:
    """Describe a subpopulation in words, from its moments (spec 5.2 to 5.11).

    Parameters
    ----------
    moments : of degree 2 or more; with degree 1 only the means are described
    name, label : who is described
    margin : a half-width that covers every E[c f^j (y - f)] at once; 0 describes these rows only

    >>> from lowcal.guarantees import group_moments
    >>> f, y = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.3, 0.7, 0.3, 0.7])
    >>> page = describe(group_moments(f, y, np.full(4, 0.25), 2), "sex=F", margin=0.01)
    >>> print(page.sentences[-1])
    For sex=F, the variance of the predictions is 0.25, of which the outcomes justify 0.1: it exceeds the justified
    part by at least 0.135 (net of the margin of error), and the variance of the true probabilities by at most 0.221.
    """
    check_numbers(margin=margin)
    who = printable(name if label is None else f"{name}, label {label}")
    mass = float(moments.mass)
    if not mass > 0:
        return GroupPage(name, label, {"mass": 0.0}, (f"For {who}, nothing can be said: it has no rows with weight.",))
    figures = _figures(moments, float(margin) / mass)
    return GroupPage(name, label, figures, tuple(f"For {who}, {sentence}." for sentence in _sentences(figures)))


def _figures(m: GroupMoments, t: float) -> dict[str, float]:
    """Return every figure and its limits, where each e_j is known up to t."""
    mean, gap = float(m.f[1]), float(m.gap(0))
    figures = {"mass": float(m.mass), "margin": t, "mean_prediction": mean, "mean_outcome": float(m.fy[0]), "gap": gap}
    figures |= {"gap_lower": max(gap - t, -mean), "gap_upper": min(gap + t, 1.0 - mean)}  # a mean outcome is in [0, 1]
    if m.degree < 2:
        return figures
    lowered = replace(m, fy=np.maximum(m.fy - t, 0.0))
    for d in range(2, m.degree + 1):
        figures |= {f"moment_{d}": float(m.f[d]), f"truth_moment_{d}_at_least": float(holder(lowered, d))}
    rate = true_positive_rate.of(m, 1, alpha=(float(m.violation(2)) + t) * float(m.mass)).scalar()
    figures |= {"true_positive_rate": rate.estimate, "true_positive_rate_at_least": rate.sides[0].bound}
    V, C, excess, half = float(m.variance), float(m.covariance), float(unjustified(m)), (1.0 + mean) * t
    figures |= {"covariance": C, "covariance_lower": C - half, "covariance_upper": C + half, "variance": V}
    figures |= {"justified": C, "excess": excess, "excess_lower": excess - half, "excess_upper": excess + half}
    least = np.clip(0.0, C - half, C + half)  # the covariance nearest to 0
    return figures | {"excess_over_truth_at_most": float(excess_variance(np.asarray(V), least))}


def _sentences(figures: dict[str, float]) -> Iterator[str]:
    """Say the means, and beyond degree 1 the second moment, the true positive rate, covariance and variance."""
    prediction, outcome, t = figures["mean_prediction"], figures["mean_outcome"], figures["margin"]
    agree = "they agree" if t == 0 else f"no significant difference (margin of error {t:.3g})"
    low, high = _at_least(figures["gap_lower"], t), _at_least(-figures["gap_upper"], t)
    verdict = _verdict(
        figures, "gap", f"predictions are too low by {low}", f"predictions are too high by {high}", agree
    )
    yield f"the mean prediction is {prediction:.3g} and the mean outcome is {outcome:.3g}: {verdict}"
    if "variance" in figures:
        model, truth = figures["moment_2"], figures["truth_moment_2_at_least"]
        yield f"the mean squared prediction is {model:.3g}; the mean squared true probability is at least {truth:.3g}"
        rate, C, most = figures["true_positive_rate"], figures["covariance"], figures["excess_over_truth_at_most"]
        people = f"people with the outcome have a mean prediction of {rate:.3g} (the true positive rate)"
        people += f", against {prediction:.3g} for the whole group"
        yield "nobody has the outcome, so there is no true positive rate" if np.isnan(rate) else people
        rise, fall = "predictions rise with the outcomes", "predictions FALL where outcomes rise"
        verdict = _verdict(figures, "covariance", rise, fall, f"whether {rise} is uncertain")
        yield f"the covariance of predictions and outcomes is {C:.3g}: {verdict}"
        above, all_of_it = _at_least(figures["excess_lower"], t), "all of it is justified"
        above = f"it exceeds the justified part by {above}, and the variance of the true probabilities by at most"
        unsure = all_of_it if t == 0 else f"whether the rest is justified is uncertain (margin of error {t:.3g})"
        verdict = _verdict(figures, "excess", f"{above} {most:.3g}", all_of_it, unsure)
        share, variance = f"{C:.3g}" if C > 0 else "nothing", figures["variance"]
        yield f"the variance of the predictions is {variance:.3g}, of which the outcomes justify {share}: {verdict}"


def _at_least(limit: float, t: float) -> str:
    """Put a limit into words; without a margin it is the value itself."""
    return f"{limit:.3g}" if t == 0 else f"at least {limit:.3g} (net of the margin of error)"


def _verdict(figures: dict[str, float], name: str, positive: str, negative: str, unsure: str) -> str:
    """Return the phrase for a figure's sign; it is certain if both limits agree."""
    if figures[f"{name}_lower"] > ROUNDING:
        return positive
    return negative if figures[f"{name}_upper"] < -ROUNDING else unsure
