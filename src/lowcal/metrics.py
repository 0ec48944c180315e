"""Metrics in the style of scikit-learn: one number for a sample, the truth first (spec 7, 2.3 and 2.5).

The errors of the notions are suprema over every subpopulation AND the whole weight class, by `measure`. Wherever y is
asked for, f_star (numbers in [0, 1], or rows that sum to one) may be given instead: the expectation is the same
without the noise of the labels. Arguments that are not described are those of `measure`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

import numpy as np

from lowcal.auditing.audits import MetricRows, measure
from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import Outcomes, read_outcomes, read_rows, spelled_out
from lowcal.kernels.line import aggregate, solve_line
from lowcal.kernels.products import product
from lowcal.kernels.reference import Design
from lowcal.kernels.simplex import SMALLEST, FloatArray
from lowcal.notions import Full, LowDegree, Multiaccuracy, Smooth
from lowcal.rows import START, Memory
from lowcal.solve.homes import choose_subpopulations
from lowcal.solve.solvers import Problem, explore

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# --- the notions of the hierarchy ------------------------------------------------------------------------------
@spelled_out(MetricRows)
def degree_error(y: ArrayLike, p: ArrayLike, X: object = None, *, degree: int = 2, **rows: Unpack[MetricRows]) -> float:
    """Return the degree-k error: max over c and over all of W_k of |E[c <w(f), y - f>]| (Definition 3.2, spec 2.2).

    Exact for binary problems and for k <= 2. For three or more classes and k >= 3 it is the value that a weight
    attains, a lower bound; `measure(...).upper` is the certified upper bound.

    >>> from lowcal.datasets import parity_square
    >>> from lowcal.subpopulations import Groups
    >>> world = parity_square()
    >>> kind = dict(subpopulations=Groups(min_mass=0), sample_weight=world.sample_weight)
    >>> round(27 * degree_error(world.y, world.p, world.X, degree=2, **kind), 9)
    1.0
    """
    return measure(y, p, X, notion=LowDegree(degree), **rows).largest


@spelled_out(MetricRows)
def smooth_error(y: ArrayLike, p: ArrayLike, X: object = None, **rows: Unpack[MetricRows]) -> float:
    """Return the smooth error: max over c and all Lipschitz w of |E[c <w(f), y - f>]| (Definition 3.4, spec 2.3, 2.4).

    Exact for binary problems in O(n) after a sort. With three or more classes and many distinct rows it is the value
    that a weight attains, a lower bound; `measure(...).upper` is the certified upper bound.

    >>> round(smooth_error([0.0, 1.0], [0.2, 0.8]), 9)
    0.06
    """
    return measure(y, p, X, notion=Smooth(), **rows).largest


@spelled_out(MetricRows)
def full_error(
    y: ArrayLike, p: ArrayLike, X: object = None, *, width: float = 0.1, **rows: Unpack[MetricRows]
) -> float:
    """Return the full error: max over c and all functions w of the cell of |E[c <w(f), y - f>]| (spec 2.5).

    >>> round(full_error([0.0, 1.0], [0.25, 0.75], width=0.5), 9)
    0.125
    """
    return measure(y, p, X, notion=Full(width), **rows).largest


# ---------------------------------------------------------------------------------------------- the paper's experiment
@spelled_out(MetricRows)
def multiaccuracy_error(
    y: ArrayLike, p: ArrayLike, X: object = None, *, signed_members: bool = False, **rows: Unpack[MetricRows]
) -> float:
    """Return max over c and labels a of |E[c (y_a - f_a)]|: the error of the notion (spec 2.1).

    signed_members : take 2c - 1 for every c, the subpopulation against its complement: max |E[(2c - 1)(y_a - f_a)]|,
        the metric of the paper's experiment with the absolute value it lacks (spec 7, 9.w). c = 1 stays itself.

    >>> from lowcal.subpopulations import Groups
    >>> X = {"g": ["a", "a", "b", "b"]}
    >>> kind = dict(subpopulations=Groups(min_mass=0))
    >>> multiaccuracy_error([1, 0, 1, 0], [0.7, 0.7, 0.3, 0.3], X, **kind).__round__(9)
    0.1
    >>> multiaccuracy_error([1, 0, 1, 0], [0.7, 0.7, 0.3, 0.3], X, signed_members=True, **kind).__round__(9)
    0.2
    """
    if not signed_members:
        return measure(y, p, X, notion=Multiaccuracy(), **rows).largest
    sample = MemberRows.read(y, p, X, **rows)
    against_the_rest = 2 * sample.design.moments(sample.rho) - sample.rho.sum(axis=0)
    return float(np.abs(against_the_rest).max())


@spelled_out(MetricRows)
def excess_variance(f_star: ArrayLike, p: ArrayLike, X: object = None, **rows: Unpack[MetricRows]) -> float:
    """Return max over c and labels of mu_c (Var_c f - Var_c f*): how much more the predictions vary than the truth.

    Variances are weighted by c, so that c in [0, 1] is allowed (spec 7, 9.w); mu_c = E[c]. It needs the true f*; with
    labels only, `excess_variance_bound` is never below it in expectation. May be negative: an underconfident p.

    >>> round(excess_variance([0.7, 0.7, 0.3, 0.3], [1.0, 1.0, 0.0, 0.0]), 9)  # Var 1/4 against 1/25
    0.21
    """
    sample = MemberRows.read(f_star, p, X, **rows)
    f, truth = sample.outcomes.p, sample.outcomes.y
    return float((sample.mass * (sample.covariance(f, f) - sample.covariance(truth, truth))).max())


@spelled_out(MetricRows)
def excess_variance_bound(y: ArrayLike, p: ArrayLike, X: object = None, **rows: Unpack[MetricRows]) -> float:
    """Return max over c and labels of mu_c (V - C^2 / V): an upper bound on `excess_variance` from y (spec 5.11).

    V = Var_c f and C = Cov_c(f, y), in expectation Cov_c(f, f*): C^2 <= V Var_c f* holds for every f. The other bound
    of spec 5.11, 2 (V - C), is larger by (V - C)^2 / V.

    >>> round(excess_variance_bound([0.7, 0.7, 0.3, 0.3], [1.0, 1.0, 0.0, 0.0]), 9)  # C = 1/10
    0.21
    """
    sample = MemberRows.read(y, p, X, **rows)
    f = sample.outcomes.p
    V, C = sample.covariance(f, f), sample.covariance(f, sample.outcomes.y)
    safe = np.where(V > 0.0, V, 1.0)  # a constant f has C = 0 too
    return float((sample.mass * (V - C**2 / safe)).max())


# ------------------------------------------------------------------------------ calibration on the line of predictions
def smooth_calibration_error(y: ArrayLike, p: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Return smCE = max of E[w(f)(y - f)] over 1-Lipschitz w with values in [-1, 1], for binary problems.

    Kakade and Foster 2008, Blasiok et al. 2023. In the terms of the smooth notion it is 2 V(1/2) - R: w = 2u - 1 with
    u in [0, 1] and 1/2-Lipschitz (spec 2.3). Cost: O(n) after a sort.

    >>> round(smooth_calibration_error([0.0, 1.0], [0.2, 0.8]), 9)  # residuals -0.1, 0.1; w may differ by 0.6
    0.06
    """
    outcomes = read_outcomes(y, p, sample_weight)
    if outcomes.p.shape[1] > 1:
        given = f"p has {outcomes.p.shape[1]} columns. Use smooth_error."
        raise InvalidInput(f"smooth_calibration_error is about binary problems, but {given}")
    v, r = aggregate(outcomes.p[:, 0], (outcomes.weight[:, None] * (outcomes.y - outcomes.p))[:, 0])
    return 2 * solve_line(v, r, 0.5)[0] - float(r.sum())


@dataclass(frozen=True, eq=False)
class MemberRows:
    """Checked outcomes and the memberships of all known subpopulations; a learner is asked once for new ones."""

    outcomes: Outcomes
    design: Design
    rho: FloatArray
    mass: FloatArray  # (m, 1)

    @staticmethod
    def read(y: ArrayLike, p: ArrayLike, X: object, **given: Unpack[MetricRows]) -> MemberRows:
        """Check everything together and ask the learner once."""
        outcomes, table = read_rows(y, p, X, given.get("sample_weight"), given.get("classes"))
        chosen = choose_subpopulations(given.get("subpopulations"), X, table)
        learner = chosen.prepare(table, outcomes.weight, outcomes.residual)
        rows = Memory.of(learner.rows, outcomes.p, outcomes.y, outcomes.weight)
        explore(Problem(rows, LowDegree(2), learner, alpha=np.inf), START)
        design, rho = learner.design(), outcomes.weight[:, None] * (outcomes.y - outcomes.p)
        return MemberRows(outcomes, design, rho, design.moments(outcomes.weight[:, None]))

    def covariance(self, f: FloatArray, g: FloatArray) -> FloatArray:
        """Return Cov_c(f_a, g_a) for every c and label a: c-weighted means, shape (m, d)."""
        w = self.outcomes.weight[:, None]
        # centred first: variances of nearly constant predictions survive rounding
        f, g = f - product(w.T, f), g - product(w.T, g)
        mass = np.maximum(self.mass, SMALLEST)  # a subpopulation without weight has no variance either
        mean = [self.design.moments(w * h) / mass for h in (f * g, f, g)]
        return np.asarray(mean[0] - mean[1] * mean[2])
