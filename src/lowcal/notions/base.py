"""What a notion of calibration is: a weight class W, as a value without data.

A notion knows a finite basis of its class, the tolerance at which the basis implies the class, and how to turn a
finite sample into the supremum over the WHOLE class, with the weight that attains it. Paper: Section 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from lowcal.kernels.products import by_row
from lowcal.kernels.reference import Design
from lowcal.kernels.simplex import FloatArray, leading
from lowcal.notions.weights import Evaluated, Weight, evaluate


@dataclass(frozen=True, eq=False)
class Witness:
    """A signed weight s * w, as coefficients of scalar weights u_s for each label: (s w)_a = sum_s theta_sa u_s.

    `labels`, where they are given, name the coordinates when the weight is printed.
    """

    weights: tuple[Weight, ...]
    coefficients: FloatArray
    labels: tuple[str, ...] = ()

    def __call__(self, p: FloatArray) -> FloatArray:
        """Return s * w(f) at every row, shape (n, d)."""
        return combination(evaluate(self.weights, p), self.coefficients)

    def __str__(self) -> str:
        s, a = np.unravel_index(np.abs(self.coefficients).argmax(), self.coefficients.shape)
        more = "" if np.count_nonzero(self.coefficients) == 1 else " and others"
        if self.coefficients.shape[1] == 1:
            return f"{self.weights[s]}{more}"
        names = self.labels or tuple(f"label {k}" for k in range(self.coefficients.shape[1]))
        weight = re.sub(r"\bp(\d+)", lambda found: f"p[{names[int(found[1])]}]", str(self.weights[s]))
        return f"{weight} on {names[int(a)]}{more}"


@dataclass(frozen=True, eq=False)
class Suprema:
    """For each subpopulation c the supremum over the weight class of |E[c <w(f), y - f>]|.

    `value` is attained by `witness(j)`; `upper` is certified. They are equal wherever the supremum is exact.
    `basis` is the largest violation among the basis elements alone, which the paper's algorithm controls.
    `moments`, where they were computed for the notion's `features`, spare the block step a pass.
    """

    value: FloatArray
    upper: FloatArray
    basis: FloatArray
    witness: Callable[[int], Witness]
    moments: FloatArray | None = None

    @property
    def worst(self) -> int:
        """The subpopulation with the largest violation."""
        return leading(self.value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields with all witnesses computed: a notion's function can't be pickled, a list's method can."""
        return {**vars(self), "witness": [self.witness(j) for j in range(len(self.value))].__getitem__}


@runtime_checkable
class Notion(Protocol):
    """A level of the hierarchy."""

    def gain(self, d: int) -> float:
        """Return a share: a witness has value at least gain * alpha whenever the certified supremum exceeds alpha."""
        return 1.0

    def basis(self, p: FloatArray, alpha: float) -> Sequence[Weight]:
        """Return finitely many weights u; with every label they form the basis used by Algorithm 1."""
        ...

    def tolerance(self, p: FloatArray, alpha: float) -> float:
        """Return beta such that basis violations of at most beta imply a supremum of at most alpha."""
        ...

    def probes(self, d: int) -> Sequence[Weight]:
        """Return a few weights with which a learner is asked for subpopulations.

        Where they contain 1 and f, logit steps of a binary problem have a slope beside the shift.
        """
        ...

    def features(self, p: FloatArray) -> Sequence[Weight]:
        """Return the weights that the block step combines; none: every subpopulation brings its witness."""
        return self.basis(p, 1.0)

    def suprema(self, p: FloatArray, rho: FloatArray, design: Design, alpha: float | None = None) -> Suprema:
        """Return the suprema for predictions p and weighted residuals rho_i = p_i (y_i - f_i).

        With `alpha`, work may be saved where it can't change whether the supremum exceeds it.
        """
        ...


@runtime_checkable
class Finite(Notion, Protocol):
    """A notion whose supremum is a function of finitely many moments v[c, s, a], those of its `constraints`."""

    def constraints(self, p: FloatArray) -> Sequence[Weight]:
        """Return the weights u whose moments determine the supremum."""
        return self.features(p)

    def norm(self, weights: Sequence[Weight], v: FloatArray) -> Suprema:
        """Return the suprema from the moments of the constraints."""
        ...

    def is_largest(self, d: int) -> bool:
        """Whether the supremum is always the largest single moment."""
        return False

    def deviation(self, e: FloatArray) -> FloatArray:
        """Return how far the supremum moves at most when every moment moves by at most e; here that of single ones."""
        return np.asarray(e.max(axis=(1, 2)))

    def limits(self, v: FloatArray, e: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the least and the greatest supremum, at worst, when every moment lies within e of v."""
        if self.is_largest(v.shape[2]):  # attained at a corner of the box v +- e
            return np.maximum(np.abs(v) - e, 0.0).max(axis=(1, 2)), (np.abs(v) + e).max(axis=(1, 2))
        found, deviation = self.norm((), v), self.deviation(e)
        return np.maximum(found.value - deviation, 0.0), found.upper + deviation


def combination(U: Evaluated, theta: FloatArray) -> FloatArray:
    """Return sum_s theta_sa u_s(f_i), shape (n, d): every row on its own, whatever rows come with it."""
    if isinstance(U, np.ndarray):
        return by_row(U, theta)
    return np.vstack([theta, np.zeros((1, theta.shape[1]))])[U.ids]
