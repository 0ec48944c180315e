"""Confusion matrices: how the labels drawn from f meet the true ones, against how they would meet each other.

B_c(f*, f) = E_c[y f'] and B_c(f, f) = E_c[f f'] are estimable, and so is M = E_c[(y - f) f'], their difference
(spec 5.7, 5.8; Lemmas 4.8 and 4.9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.kernels.products import product
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.low_degree import best_linear
from lowcal.theory.guarantees.base import Guarantee, Side, ratio
from lowcal.theory.guarantees.group_moments import group_moments
from lowcal.theory.guarantees.reading import Sample, read_alpha, read_sample
from lowcal.theory.guarantees.truth import two_sided

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


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
        verdicts = (self.distance.holds, self.order.holds)
        if False in verdicts:
            return False
        return None if None in verdicts else True

    def __str__(self) -> str:
        return f"{self.distance} {self.order}"


# ------------------------------------------------------------------------------------------- on moments
def second_moment(a: FloatArray, b: FloatArray, weight: FloatArray) -> FloatArray:
    """Return E_c[a b'] for rows a and b of shape (..., n, l) and weights (..., n); nan without mass."""
    left, right = np.broadcast_arrays(weight[..., None] * a, b)
    total = product(np.swapaxes(left, -1, -2), right)
    return ratio(total, weight.sum(axis=-1)[..., None, None])


def simplex_violation(
    f: FloatArray, y: FloatArray, weight: FloatArray, alpha: float | None = None, *, is_basis: bool = False
) -> FloatArray:
    """Return alpha_c of degree 2 on the simplex: alpha / E[c], or what is measured when alpha is None.

    Measured over all of W_2 (exact, spec 2.2), or with `is_basis` over monomials: max(|E_c[y - f]|, |M|).
    """
    if alpha is not None:
        return ratio(np.asarray(alpha), weight.sum(axis=-1))
    M = second_moment(y - f, f, weight)
    if is_basis:
        return np.asarray(np.maximum(np.abs(M).max(axis=(-2, -1)), np.abs(M.sum(axis=-1)).max(axis=-1)))
    return np.asarray(np.maximum(best_linear(M)[0].sum(axis=-1), best_linear(-M)[0].sum(axis=-1)))


def distance(M: FloatArray, alpha_c: FloatArray, *, is_scalar: bool = False) -> Guarantee[FloatArray]:
    """Return ||B_c(f*, f) - B_c(f, f)||_max = max |M| <= alpha_c (Lemma 4.8, spec 5.7).

    In the scalar convention the entry E_c[(y - f)(1 - f)] = e_0 - e_1 is bounded by 2 alpha_c only.
    """
    size = np.abs(M).max(axis=(-2, -1))
    one = np.ones_like(alpha_c)
    constant = 2.0 * one if is_scalar else one
    upper = Side("upper", "", 0.0 * one, constant, 1.0, alpha_c, one, size)
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
    n_labels, one = M.shape[-1], np.ones_like(alpha_c)
    estimate = one * np.nan if excess is None else largest_eigenvalue(excess)
    constant = order_constant(n_labels, is_scalar=is_scalar, is_basis=is_basis) * one
    signed = largest_eigenvalue(-(M + np.swapaxes(M, -1, -2)))
    upper = Side("upper", "", 0.0 * one, constant, 2.0 * n_labels, alpha_c, one, signed, True)
    return Guarantee(
        "The largest excess of the predicted confusion over the truth's", "Lemma 4.9", estimate, None, upper
    )


def largest_eigenvalue(A: FloatArray) -> FloatArray:
    """Return the largest eigenvalue of symmetric matrices (..., l, l); nan where an entry is nan."""
    bad = np.asarray(np.isnan(A).any(axis=(-2, -1)))
    values = np.linalg.eigvalsh(np.where(bad[..., None, None], 0.0, A))[..., -1]
    return np.where(bad, np.nan, values)


# ------------------------------------------------------------------------------------------- on rows
def confusion(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    alpha: float | None = None,
    is_basis: bool = False,
    f_star: ArrayLike | None = None,
    replicates: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
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
    sample = read_sample(y, p, c, sample_weight, classes, f_star, replicates)
    outcomes, f, is_scalar = two_sided(sample.y), two_sided(sample.p), sample.layout.d == 1
    matrix, predicted = (second_moment(a, f, sample.weight) for a in (outcomes, f))
    M, alpha_c = matrix - predicted, _violation(sample, read_alpha(alpha), is_basis)
    excess = None
    if sample.truth is not None:
        excess = predicted - sample.mean(sample.truth.products(sample.weight).transpose(1, 2, 0))
    near = distance(M, alpha_c, is_scalar=is_scalar).scalar()
    below = order(M, alpha_c, excess, is_scalar=is_scalar, is_basis=is_basis).scalar()
    return Confusion(matrix, predicted, M, near, below)


def _violation(sample: Sample, alpha: float | None, is_basis: bool) -> FloatArray:
    """Return alpha_c in the convention of the predictions."""
    if sample.layout.d > 1:
        return simplex_violation(sample.p, sample.y, sample.weight, alpha, is_basis=is_basis)
    return group_moments(sample.p[:, 0], sample.y[:, 0], sample.weight, 2).violation(2, alpha)
