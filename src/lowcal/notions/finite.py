"""Multiaccuracy, degree-k and full multicalibration: notions whose supremum is a function of finitely many moments.

Degree-k uses polynomials of degree at most k - 1 with 0 <= q <= 1 on the simplex and sum |coefficients| <= 1
(Definition 3.2). Monomials are its basis. In the scalar convention the supremum IS the largest monomial; on the simplex
it is larger by a factor up to d (spec 2.2), and the closed forms below give it.

Full multicalibration uses all functions that are constant on the cells of a grid (Definition 3.6, corrected by spec 9.i
and 9.k): the last interval is closed at 1, the weights are vector valued (e_a 1_P), and only cells that hold a row are
stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Protocol

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.kernels.reference import CACHE, CHUNK, Design, pieces
from lowcal.kernels.simplex import TIE, FloatArray, above_noise, leading
from lowcal.notions.base import Finite, Suprema, Witness
from lowcal.notions.moments import FEW_PRODUCTS, moments, moments_at, outer_moments
from lowcal.notions.weights import (
    Cell,
    CellIds,
    Monomial,
    Weight,
    evaluate_dense,
    monomials,
    n_cells,
    n_intervals,
    occupied_cells,
)

#: Above this degree, neighbouring powers of a number in [0, 1] differ by less than 0.006: they are nearly one function.
MOST_DEGREE = 64
#: Cells of a smaller width are more than any sample fills: each holds one row at most, and its violation is noise.
LEAST_WIDTH = 1e-6
#: Up to this many cells, those without a row are constraints as well.
MANY_CELLS = 1_000


class Polynomials(Finite, Protocol):
    """Notions whose constraints are monomials."""

    def suprema(self, p: FloatArray, rho: FloatArray, design: Design, alpha: float | None = None) -> Suprema:
        """Return the suprema from the moments of all monomials; they may be a bracket (spec 2.2)."""
        weights = self.features(p)
        v = monomial_moments(weights, p, rho, design)
        return replace(self.norm(weights, v), moments=v)


@dataclass(frozen=True)
class Multiaccuracy(Polynomials):
    """W = {e_a}: |E[c (y_a - f_a)]| <= alpha for every label a (Section 3.1).

    >>> print(Multiaccuracy())
    multiaccuracy
    """

    def __str__(self) -> str:
        return "multiaccuracy"

    def basis(self, p: FloatArray, alpha: float) -> Sequence[Weight]:
        """Return the constant weight."""
        return (Monomial(),)

    def tolerance(self, p: FloatArray, alpha: float) -> float:
        """Return alpha: the class is its basis."""
        return alpha

    def probes(self, d: int) -> Sequence[Weight]:
        """Return the constant weight."""
        return (Monomial(),)

    def norm(self, weights: Sequence[Weight], v: FloatArray) -> Suprema:
        """Return max_a |v_a| (spec 2.1)."""
        return _largest_monomial(weights, v)

    def is_largest(self, d: int) -> bool:
        """Return True: the class is its basis."""
        return True


@dataclass(frozen=True)
class LowDegree(Polynomials):
    """W_k: weights whose coordinates are bounded, sparse polynomials of degree at most k - 1 (Definition 3.2).

    >>> print(LowDegree(3))
    degree-3
    """

    degree: int = 2

    def __post_init__(self) -> None:
        degree: object = self.degree
        if isinstance(degree, bool) or not isinstance(degree, Integral) or int(degree) < 1:
            raise InvalidInput(f"The degree must be a whole number of at least 1, but {self.degree!r} was given.")
        if int(degree) > MOST_DEGREE:
            raise InvalidInput(
                f"The degree must be at most {MOST_DEGREE}, but {self.degree!r} was given: higher powers of a "
                'probability are nearly the same function. Use a lower degree, or "smooth".'
            )

    def __str__(self) -> str:
        return f"degree-{self.degree}"

    def gain(self, d: int) -> float:
        """Return 1 where the supremum is exact; 1/2 for the bracket: LB+ + LB- >= UB, so the larger is >= UB / 2."""
        return 1.0 if d == 1 or self.degree <= 2 else 0.5

    def basis(self, p: FloatArray, alpha: float) -> Sequence[Weight]:
        """Return all monomials of degree below k: C(d + k - 1, k - 1) of them, for each label."""
        return monomials(p.shape[1], self.degree - 1)

    def tolerance(self, p: FloatArray, alpha: float) -> float:
        """Return alpha for scalars, alpha / floor(d/2) at degree 1, alpha / d above (spec 3.2)."""
        d = int(p.shape[1])
        if d == 1:
            return alpha
        return alpha / (d // 2 if self.degree == 1 else d)

    def probes(self, d: int) -> Sequence[Weight]:
        """Return the monomials up to the degree, or up to degree 1 where these are many."""
        every = monomials(d, self.degree - 1)
        return every if len(every) * d <= 16 else monomials(d, 1)

    def norm(self, weights: Sequence[Weight], v: FloatArray) -> Suprema:
        """Return the supremum from the moments of all monomials: exact for scalars and for k <= 2, else a bracket."""
        if v.shape[2] == 1:
            return _largest_monomial(weights, v)
        if self.degree == 1:
            return _half_l1(weights, v)
        return _degree_two(weights, v) if self.degree == 2 else _monomial_bracket(weights, v)

    def is_largest(self, d: int) -> bool:
        """Whether single monomials attain the supremum: for scalars only (spec 9.c)."""
        return d == 1

    def deviation(self, e: FloatArray) -> FloatArray:
        """Return sum_a max_S e (l1 norms of at most 1), at degree 1 half the l1 norm of e (constants in [0, 1]^d)."""
        return np.asarray(e.sum(axis=(1, 2)) / 2 if self.degree == 1 else e.max(axis=1).sum(axis=1))


def monomial_moments(weights: Sequence[Weight], p: FloatArray, rho: FloatArray, design: Design) -> FloatArray:
    """Return the moments of all weights; many products a row (many classes) are never written out."""
    if len(weights) * rho.shape[1] <= FEW_PRODUCTS:
        return moments_at(design, weights, p, rho)
    if tuple(weights) == monomials(p.shape[1], 1):  # probabilities sum to one, so the moments of p hold those of 1
        v = outer_moments(design, p, rho)
        return np.concatenate([v.sum(axis=1, keepdims=True), v], axis=1)
    return outer_moments(design, evaluate_dense(weights, p), rho)


def _largest_monomial(weights: Sequence[Weight], v: FloatArray) -> Suprema:
    """Return max |v|: exact whenever single basis elements attain the supremum (l1 / l-infinity duality)."""
    size = np.abs(v)
    value = size.max(axis=(1, 2))

    def witness(j: int) -> Witness:
        s, a = np.unravel_index(leading(size[j].ravel()), size[j].shape)
        coefficients = np.zeros((1, v.shape[2]))
        coefficients[0, a] = np.sign(v[j, s, a])
        return Witness((weights[int(s)],), coefficients)

    return Suprema(value, value, value, witness)


def _half_l1(weights: Sequence[Weight], v: FloatArray) -> Suprema:
    """Return ||v||_1 / 2: constants in [0, 1]^d against a vector that sums to zero (spec 2.1)."""
    value = np.abs(v).sum(axis=(1, 2)) / 2

    def witness(j: int) -> Witness:
        return Witness(tuple(weights), above_noise(v[j]).astype(np.float64))

    return Suprema(value, value, _largest(v), witness)


def best_linear(m: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return S+ of degree 2 for moments m_i = E[c z_i (y_a - f_a)] (last axis) and the size s of the best set.

    S+(m) = max(0, max_s (sum of the s largest m_i) / min(s, d + 1 - s))   (spec 2.2, proved there; O(d log d)).

    >>> [float(best_linear(np.array(m))[0]) for m in ([3., -1, -1], [1., 1, -1], [1., 1, 1], [-1, -2, 0.5])]
    [3.0, 1.0, 3.0, 0.5]
    """
    d = m.shape[-1]
    top = np.cumsum(-np.sort(-m, axis=-1), axis=-1)
    s = np.arange(1, d + 1)
    value = top / np.minimum(s, d + 1 - s)
    best = value.max(axis=-1, keepdims=True)
    size = np.argmax(value >= best - TIE * np.abs(best), axis=-1) + 1
    return np.maximum(best[..., 0], 0.0), size


def _both_sides(m: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return S+(m) and S+(-m) from one sort: the s largest of -m are the s smallest of m."""
    d = m.shape[-1]
    below = np.cumsum(np.sort(m, axis=-1), axis=-1)
    total = below[..., -1:]
    s = np.arange(1.0, d + 1.0)
    size = np.minimum(s, d + 1.0 - s)
    above = (total - below[..., :-1]) / size[-2::-1]  # the s largest are all but the d - s smallest
    up = np.maximum(above.max(axis=-1, initial=0.0), total[..., 0] / size[-1])
    return up, np.maximum(-(below / size).min(axis=-1), 0.0)


def _linear_witness(m: FloatArray, size: int) -> FloatArray:
    """Return the coefficients (q_0, q_1, .., q_d) that attain S+: z_A / s, or (1 - z_{A^c}) / (d + 1 - s)."""
    d = len(m)
    order = np.argsort(-m, kind="stable")
    q = np.zeros(d + 1)
    if size <= d + 1 - size:
        q[1 + order[:size]] = 1.0 / size
    else:
        q[0] = 1.0 / (d + 1 - size)
        q[1 + order[size:]] = -q[0]
    return q


def _degree_two(weights: Sequence[Weight], v: FloatArray) -> Suprema:
    """Return max(sum_a S+(m^a), sum_a S+(-m^a)): exact over all of W_2 (spec 2.2)."""
    linear = v[:, 1:, :].transpose(0, 2, 1)  # (m, label a, coordinate i)
    up, down = np.empty(len(v)), np.empty(len(v))
    for part in pieces(len(v), v.shape[1] * v.shape[2] * (CHUNK // CACHE)):  # temporaries stay in cache
        up[part], down[part] = (side.sum(axis=1) for side in _both_sides(linear[part]))
    value = np.maximum(up, down)

    def witness(j: int) -> Witness:
        sign = _larger_side(up[j], down[j])
        side = sign * linear[j]
        gains, sizes = best_linear(side)
        q = np.column_stack([_linear_witness(m, int(s)) for m, s in zip(side, sizes, strict=True)])
        return Witness(tuple(weights), sign * q * above_noise(gains))

    return Suprema(value, value, _largest(v), witness)


def _largest(v: FloatArray) -> FloatArray:
    """Return max |v| for each subpopulation, without a copy of v."""
    return np.asarray(np.maximum(v.max(axis=(1, 2)), -v.min(axis=(1, 2))))


def _larger_side(up: float, down: float) -> float:
    """Return the sign of the larger side; a tie is positive."""
    return 1.0 if up >= down * (1.0 - TIE) else -1.0


def _monomial_bracket(weights: Sequence[Weight], v: FloatArray) -> Suprema:
    """Return LB = the best monomial of each label on one side, UB = both sides added (spec 2.2)."""
    up = np.maximum(v, 0.0).max(axis=1)  # (m, d)
    down = np.maximum(-v, 0.0).max(axis=1)
    value = np.maximum(up.sum(axis=1), down.sum(axis=1))
    upper = np.maximum(up, down).sum(axis=1)

    def witness(j: int) -> Witness:
        sign = _larger_side(up[j].sum(), down[j].sum())
        best = np.array([leading(column) for column in (sign * v[j]).T])
        labels = np.arange(v.shape[2])
        coefficients = np.zeros(v.shape[1:])
        coefficients[best, labels] = sign * above_noise((sign * v[j])[best, labels])
        return Witness(tuple(weights), coefficients)

    return Suprema(value, upper, _largest(v), witness)


# --- cells -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Full(Finite):
    """W = all functions from cells of the given width to [0, 1]^d; basis {e_a 1_P}.

    >>> print(Full(0.1))
    full-0.1
    """

    width: float = 0.1

    def __post_init__(self) -> None:
        width: object = self.width
        if not isinstance(width, Real) or not 0 < float(width) <= 1:
            raise InvalidInput(f"The width of the cells must be in (0, 1], but {self.width!r} was given.")
        if float(width) < LEAST_WIDTH:
            raise InvalidInput(
                f"The width of the cells must be at least {LEAST_WIDTH:g}, but {self.width!r} was given: such cells "
                'hold one row at most, and their violation is noise. Use a larger width, or "smooth".'
            )

    def __str__(self) -> str:
        short = f"{self.width:.12g}"
        return f"full-{short if float(short) == self.width else repr(float(self.width))}"

    def basis(self, p: FloatArray, alpha: float) -> Sequence[Weight]:
        """Return the indicators of the cells that hold a row; the others have no violation."""
        return _cells(occupied_cells(p, self.width)[0].tolist(), self.width)

    def tolerance(self, p: FloatArray, alpha: float) -> float:
        """Return alpha / N for scalars, alpha / (floor(d/2) N) on the simplex, for N cells (spec 2.5)."""
        n, d = len(p), int(p.shape[1])
        cells = min(n_cells(d, self.width), n)
        return alpha / (cells * max(1, d // 2))

    def probes(self, d: int) -> Sequence[Weight]:
        """Return constants and coordinates: the learner starts there and then follows the witnesses."""
        return monomials(d, 1)

    def suprema(self, p: FloatArray, rho: FloatArray, design: Design, alpha: float | None = None) -> Suprema:
        """Return max(sum v+, sum v-) for scalars and ||v||_1 / 2 on the simplex, v over cells (spec 2.5)."""
        occupied, which = occupied_cells(p, self.width)
        v = moments(design, CellIds(which, len(occupied)), rho)
        return replace(self.norm(_cells(occupied.tolist(), self.width), v), moments=v)

    def constraints(self, p: FloatArray) -> Sequence[Weight]:
        """Return every cell for scalars, those that hold a row on the simplex or where there are many cells."""
        if not self.lists_every_cell(p.shape[1]):
            return self.basis(p, 1.0)
        return _cells([[j] for j in range(n_intervals(self.width))], self.width)

    def lists_every_cell(self, d: int) -> bool:
        """Whether the constraints are known before any row: a union bound over those that hold a row proves nothing."""
        return d == 1 and n_intervals(self.width) <= MANY_CELLS

    def norm(self, weights: Sequence[Weight], v: FloatArray) -> Suprema:
        """Return the supremum from the moments of the cells."""
        up = np.maximum(v, 0.0).sum(axis=(1, 2))
        down = np.maximum(-v, 0.0).sum(axis=(1, 2))
        value = np.maximum(up, down)

        def witness(j: int) -> Witness:
            sign = 1.0 if up[j] >= down[j] * (1.0 - TIE) else -1.0
            return Witness(tuple(weights), np.where(above_noise(sign * v[j]), sign, 0.0))

        return Suprema(value, value, np.abs(v).max(axis=(1, 2)), witness)

    def deviation(self, e: FloatArray) -> FloatArray:
        """Return the sum of e, half of it on the simplex: cells of one sign add up."""
        return np.asarray(e.sum(axis=(1, 2)) / (1.0 if e.shape[2] == 1 else 2.0))


def _cells(indices: list[list[int]], width: float) -> tuple[Cell, ...]:
    return tuple(Cell(width, tuple(index)) for index in indices)
