"""Statements about several labels of one group: confusion matrices, and the true positive rate of a set of labels.

B_c(f*, f) = E_c[y f'] and B_c(f, f) = E_c[f f'] are estimable, and so is M = E_c[(y - f) f'], their difference
(spec 5.7 to 5.9; Lemmas 4.8, 4.9 and 4.11). A set L of labels counts as one: f_L and y_L are sums over it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.data.signatures import spelled_out
from lowcal.kernels.products import product
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.low_degree import best_linear
from lowcal.theory.guarantees.group_moments import GroupMoments
from lowcal.theory.guarantees.group_rows import AboutRows, GroupRows, Membership, both_classes, read_label
from lowcal.theory.guarantees.inequalities import Alpha, Guarantee, Inequality, all_hold, given_alpha, ratio
from lowcal.theory.guarantees.one_label import divisor, holder

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def second_moment(a: FloatArray, b: FloatArray, weight: FloatArray) -> FloatArray:
    """Return E_c[a b'] for rows a and b of shape (..., n, l) and weights (..., n); nan without mass."""
    left, right = np.broadcast_arrays(weight[..., None] * a, b)
    total = product(np.swapaxes(left, -1, -2), right)
    return ratio(total, weight.sum(axis=-1)[..., None, None])


def simplex_violation(
    f: FloatArray, y: FloatArray, weight: FloatArray, alpha: Alpha = None, *, is_basis: bool = False
) -> FloatArray:
    """Return alpha_c of degree 2 on the simplex: alpha / E[c], or what is measured when alpha is None.

    Measured over all of W_2 (exact, spec 2.2), or with `is_basis` over monomials: max(|E_c[y - f]|, |M|).
    """
    if alpha is not None:
        return given_alpha(alpha, weight.sum(axis=-1))
    M = second_moment(y - f, f, weight)
    if is_basis:
        return np.asarray(np.maximum(np.abs(M).max(axis=(-2, -1)), np.abs(M.sum(axis=-1)).max(axis=-1)))
    return np.asarray(np.maximum(best_linear(M)[0].sum(axis=-1), best_linear(-M)[0].sum(axis=-1)))


# ------------------------------------------------------------------------------------------- confusion matrices
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
    name: str = "The confusion matrix"
    theorem: str = "Lemmas 4.8 and 4.9"

    @property
    def estimate(self) -> FloatArray:
        """The confusion matrix B_c(f*, f), estimated from the labels."""
        return self.matrix

    @property
    def needs_f_star(self) -> bool:
        """Whether a part refers to the truth f*: the order does."""
        return self.order.needs_f_star

    @property
    def holds(self) -> bool | None:
        """Whether both parts hold; None while the order is unknown."""
        return all_hold((self.distance.holds, self.order.holds))

    def __str__(self) -> str:
        return f"{self.distance} {self.order}"


def distance(M: FloatArray, alpha_c: FloatArray, *, is_scalar: bool = False) -> Guarantee[FloatArray]:
    """Return ||B_c(f*, f) - B_c(f, f)||_max = max |M| <= alpha_c (Lemma 4.8, spec 5.7).

    In the scalar convention the entry E_c[(y - f)(1 - f)] = e_0 - e_1 is bounded by 2 alpha_c only.
    """
    size = np.abs(M).max(axis=(-2, -1))
    upper = Inequality("upper", "", np.zeros_like(alpha_c), 2.0 if is_scalar else 1.0, 1.0, alpha_c, size)
    return Guarantee("The distance of the confusion matrix from the predicted one", "Lemma 4.8", size, None, upper)


def order_constant(n_labels: int, *, is_scalar: bool = False, is_basis: bool = False) -> float:
    """Return K with B_c(f, f) <= B_c(f*, f*) + K alpha_c I (Lemma 4.9 prints 2 l alpha; spec 5.8).

    K bounds -2 u'M u over unit vectors u. For monomials K = 2 l if l is even, l - 1 + sqrt(l (l - 1)) if it is odd: the
    largest value when |M| <= 1 and its columns sum to 0. For all of W_2 K = 1 + sqrt(l) + sqrt(l - 1), which is not
    sharp: split u by sign; the weights u+ (u+ f) + u- (u- f) and u+ (u- f) + u- (u+ f) are in W_2 up to factors of at
    most (1 + sqrt(l)) / 2 and sqrt(l - 1) / 2. In the scalar convention M = (-1, 1)'(e_0 - e_1, e_1), and
    K = 3 + sqrt(10), at e_0 = -e_1.

    >>> [round(order_constant(n, is_basis=True), 3) for n in (2, 3, 4)]
    [4.0, 4.449, 8.0]
    >>> [round(order_constant(n), 3) for n in (2, 3, 4)]
    [3.414, 4.146, 4.732]
    """
    if is_scalar:
        return 3.0 + sqrt(10.0)
    if not is_basis:
        return 1.0 + sqrt(n_labels) + sqrt(n_labels - 1.0)
    return 2.0 * n_labels if n_labels % 2 == 0 else n_labels - 1.0 + sqrt(n_labels * (n_labels - 1.0))


def order(
    M: FloatArray,
    alpha_c: FloatArray,
    excess: FloatArray | None = None,
    *,
    is_scalar: bool = False,
    is_basis: bool = False,
) -> Guarantee[FloatArray]:
    """Return the largest eigenvalue of B_c(f, f) - B_c(f*, f*), at most lambda_max(-(M + M')) (Lemma 4.9, spec 5.8).

    `excess` is that difference; it equals -(M + M') - E_c[(f* - f)(f* - f)'].
    """
    n_labels, zero = M.shape[-1], np.zeros_like(alpha_c)
    estimate = zero * np.nan if excess is None else largest_eigenvalue(excess)
    constant = order_constant(n_labels, is_scalar=is_scalar, is_basis=is_basis)
    signed = largest_eigenvalue(-(M + np.swapaxes(M, -1, -2)))
    upper = Inequality("upper", "", zero, constant, 2.0 * n_labels, alpha_c, signed, needs_f_star=True)
    name = "The largest excess of the predicted confusion over the truth's"
    return Guarantee(name, "Lemma 4.9", estimate, None, upper)


def largest_eigenvalue(A: FloatArray) -> FloatArray:
    """Return the largest eigenvalue of symmetric matrices (..., l, l); nan where an entry is nan."""
    bad = np.asarray(np.isnan(A).any(axis=(-2, -1)))
    values = np.linalg.eigvalsh(np.where(bad[..., None, None], 0.0, A))[..., -1]
    return np.where(bad, np.nan, values)


@spelled_out(AboutRows)
def confusion(
    y: ArrayLike,
    p: ArrayLike,
    c: Membership = None,
    *,
    alpha: Alpha = None,
    is_basis: bool = False,
    **about: Unpack[AboutRows],
) -> Confusion:
    """Return the confusion matrix of labels drawn from f, near the predicted one and below the truth's.

    max |B_c(f*, f) - B_c(f, f)| <= alpha_c (Lemma 4.8) and B_c(f, f) <= B_c(f*, f*) + K alpha_c I in the PSD order
    (Lemma 4.9; the paper writes alpha, it must be alpha_c). What the data show instead of K alpha_c is
    lambda_max(-(M + M')), `order.upper.signed`.

    Parameters
    ----------
    alpha : a bound on the degree-2 violation (three or more classes: over all of W_2); None takes that of these rows
    is_basis : whether alpha bounds the monomials only (`Measurement.basis`)
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
        alpha_c = simplex_violation(rows.p, rows.y, rows.weight, alpha, is_basis=is_basis)
    if rows.truth is not None:
        excess = predicted - rows.mean(rows.truth.products(rows.weight).transpose(1, 2, 0))
    near = distance(M, alpha_c, is_scalar=is_scalar).scalar()
    below = order(M, alpha_c, excess, is_scalar=is_scalar, is_basis=is_basis).scalar()
    return Confusion(matrix, predicted, M, near, below)


# ------------------------------------------------------------------------------------------- sets of labels
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
    m: GroupMoments, n_labels: int, size: int, alpha_c: FloatArray, *, is_basis: bool = False
) -> Guarantee[FloatArray]:
    """Return the bounds on E_c[f_L | y_L = 1] for a set of `size` labels (Lemma 4.11, spec 5.9).

    `m` holds the moments of f_L and y_L. Below, t e_0 - e_1 with t = E_c[f_L] is an average of e_0 - e_1 and -e_1, and
    e_0 - e_1 is -E_c[f_R (y_R - f_R)] for the other labels R: W_2 bounds both by the same K. With monomials it is
    K + t min(s, l - s).
    """
    s, K, share = float(size), set_constant(n_labels, size, is_basis=is_basis), divisor(m.fy[0])
    below = K + m.f[1] * min(size, n_labels - size) if is_basis else K
    signed = (m.fy[0] * m.f[1] - m.fy[1]) / share
    lower = Inequality("lower", "the mean prediction", m.f[1], below, s**2 + s, alpha_c, signed, share)
    truth, signed, paper = ratio(m.truth(2), m.truth(1)), (m.fy[1] - holder(m, 2)) / share, 2.0 * n_labels * s**2
    upper = Inequality("upper", "the truth's own", truth, K, paper, alpha_c, signed, share, needs_f_star=True)
    return Guarantee("The true positive rate of the set", "Lemma 4.11", m.fy[1] / share, lower, upper)


@spelled_out(AboutRows)
def set_true_positive_rate(
    y: ArrayLike,
    p: ArrayLike,
    c: Membership = None,
    *,
    labels: Iterable[Any],
    alpha: Alpha = None,
    is_basis: bool = False,
    **about: Unpack[AboutRows],
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
    rows = GroupRows.read(y, p, c, **about)
    if rows.layout.d == 1:
        raise InvalidInput("Sets of labels need three or more classes. For two, use true_positive_rate.")
    which = sorted({read_label(label, rows.layout) for label in labels})
    if not which:
        raise InvalidInput("labels is empty. Name at least one class.")
    m, alpha_c = rows.moments(which, 2), simplex_violation(rows.p, rows.y, rows.weight, alpha, is_basis=is_basis)
    return set_rate(m, rows.layout.n_classes, len(which), alpha_c, is_basis=is_basis).scalar()
