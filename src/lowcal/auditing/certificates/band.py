"""Bands: simultaneous limits on the suprema of all subpopulations, by any of the methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.auditing.certificates.draws import Draws, draw, draws_for, new_seed, observed_moments, union_bound
from lowcal.auditing.certificates.finite_sample import (
    bernstein,
    betting,
    hoeffding,
    least_mean,
    mean_limit,
    symmetrisation,
)
from lowcal.auditing.certificates.panel import Negatives, Panel
from lowcal.auditing.certificates.score import Cumulants, Totals, WitnessSums, cumulants, normal_score
from lowcal.kernels.simplex import SMALLEST, FloatArray, leading
from lowcal.notions.base import Finite, Notion, Suprema, Witness
from lowcal.notions.finite import Full
from lowcal.notions.weights import Cell, Monomial, Weight

Method = Literal["bootstrap", "exact", "bernstein", "hoeffding"]
METHODS = ("bootstrap", "exact", "bernstein", "hoeffding")
#: The share of a finite-sample method's error probability for each side of the masses; the deviations get the rest.
MASS_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Constraints:
    """The moments v[c, s, a] with their standard errors and simultaneous limits, and the sums behind them."""

    weights: Sequence[Weight]
    v: FloatArray
    standard_error: FloatArray
    lower: FloatArray
    upper: FloatArray
    sums: Totals[FloatArray]

    @property
    def half(self) -> FloatArray:
        """The farther of the two limits, as a distance from v."""
        return np.maximum(self.upper - self.v, self.v - self.lower)


class Intervals(NamedTuple):
    """The violation of every subpopulation by its witness, signed, with limits.

    The outer limit bounds the whole class: no weight has a larger violation of either sign on this subpopulation.
    """

    weights: Sequence[Witness]
    violation: FloatArray
    standard_error: FloatArray
    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True, eq=False)
class Band:
    """The suprema of a panel with simultaneous limits: an interval for every c, all of which hold together."""

    found: Suprema
    intervals: Intervals
    constraints: Constraints | None

    @property
    def lower(self) -> FloatArray:
        """A lower limit on the supremum of every c in the population."""
        return np.maximum(np.maximum(self.intervals.lower, -self.intervals.upper), 0.0)

    @property
    def upper(self) -> FloatArray:
        """An upper limit on it."""
        return np.maximum(-self.intervals.lower, self.intervals.upper)


def band(
    panel: Panel,
    notion: Notion,
    confidence: float,
    method: Method,
    rng: np.random.Generator,
    drawn: Draws | None = None,
) -> Band:
    """Return the suprema of a panel with limits that hold simultaneously with the given confidence.

    `drawn` are the draws of labels with the noise of these rows, if the exact test made them already. Finite-sample
    methods split their error probability: half for the deviations, and a quarter each for the upper and the lower
    limits on the masses of the subpopulations (`per_person`).
    """
    beta = 1.0 - confidence
    if method == "bootstrap" and drawn is None:
        (drawn,) = draw(panel, notion, (panel.share,), range(draws_for(beta)), new_seed(rng))
    known = None
    if not isinstance(notion, Finite):
        found = panel.suprema(notion)
    elif method == "bootstrap" or is_listed(notion, panel.d):
        known = constraints(panel, notion, confidence, method, rng, drawn)
        found = notion.norm(known.weights, known.v)
        if notion.is_largest(panel.d):
            return Band(found, _single_intervals(known), known)
    else:
        weights = panel.constraints(notion)
        found = notion.norm(weights, observed_moments(panel, weights))
    if method == "bootstrap":
        assert drawn is not None
        return Band(found, _redrawn_intervals(panel, notion, found, beta, drawn, known), known)
    if known is None:
        deviation = np.full(len(found.value), symmetrisation(panel, notion, beta / 2, rng))
    else:
        assert isinstance(notion, Finite)
        deviation = notion.limits(np.zeros_like(known.v), known.half)[1]
    witnesses, sums = _along(panel, found, known)
    most = mean_limit(panel.reach, panel, beta * MASS_SHARE)
    return Band(found, _intervals(found, witnesses, sums, sums.v - deviation, sums.v + deviation, most), known)


def is_listed(notion: Finite, d: int) -> bool:
    """Whether the constraints are listed in full, including those without rows, as a union bound requires."""
    return not isinstance(notion, Full) or notion.lists_every_cell(d)


# --- finitely many moments ----------------------------------------------------------------------------------


def constraints(
    panel: Panel,
    notion: Finite,
    confidence: float,
    method: Method,
    rng: np.random.Generator,
    drawn: Draws | None = None,
) -> Constraints:
    """Return simultaneous limits on all moments: by the largest scores of the draws, or by a union bound."""
    beta, weights = 1.0 - confidence, panel.constraints(notion)
    sums = cumulants(panel, weights)
    if method == "bootstrap":
        scores = np.zeros(1) if drawn is None or drawn.scores is None else drawn.scores
        largest = float(np.quantile(scores, confidence, method="higher"))  # 0 if no label varies in most draws
        q = max(largest, union_bound(1, beta)) if largest > 0.0 else union_bound(sums.v.size, beta)
        lower, upper = sums.limits(q)
        most = _most(panel, q)
    else:  # limits that hold for any number of rows, by a union bound over all constraints
        if method == "exact" and not panel.rows.run(Negatives(panel.families)):
            lower, upper = betting(panel, weights, beta / 2, rng)
        else:
            half: FloatArray | float = hoeffding(panel.energy, sums.v.size, beta / 2)
            if method != "hoeffding":
                spread = panel.n * panel.largest_weight
                half = bernstein(sums.standard_error, panel.n, spread, sums.v.size, beta / 2)
            lower, upper = sums.v - half, sums.v + half
        most = mean_limit(panel.reach, panel, beta * MASS_SHARE)
    lower, upper = np.maximum(lower, -most[:, None, None]), np.minimum(upper, most[:, None, None])
    return Constraints(weights, sums.v, sums.standard_error, lower, upper, sums.sums)


def _most(panel: Panel, critical: FloatArray | float) -> FloatArray:
    """Return upper limits on the masses, which no violation exceeds; q^2 / n for a subpopulation without rows."""
    rare = np.square(critical) * panel.energy / 2.0
    return np.minimum(1.0, panel.reach + rare + np.sqrt(np.square(critical * panel.mass_error) + rare**2))


def _single_intervals(known: Constraints) -> Intervals:
    """Return the interval of the largest moment of every c; its outer limit is that of all moments of c."""
    outer = np.maximum(known.upper, -known.lower).max(axis=(1, 2))
    m, S, d = known.v.shape
    places = np.array([leading(one) for one in np.abs(known.v).reshape(m, S * d)], dtype=np.intp)
    s, a = np.divmod(places, d)
    v, error, lower, upper = (
        of[np.arange(m), s, a] for of in (known.v, known.standard_error, known.lower, known.upper)
    )
    witnesses = [Witness((known.weights[i],), np.eye(d)[[k]]) for i, k in zip(s, a, strict=True)]
    return Intervals(witnesses, v, error, np.where(v >= 0.0, lower, -outer), np.where(v >= 0.0, outer, upper))


# --- any weight class: the deviation of the supremum itself -------------------------------------------------


def _redrawn_intervals(
    panel: Panel, notion: Notion, found: Suprema, beta: float, drawn: Draws, known: Constraints | None = None
) -> Intervals:
    """Return score intervals along the witnesses, calibrated by the suprema of redrawn labels.

    The draws have the noise of the believed labels. The deviation of a class in them becomes a normal score along the
    witness, which is the critical value for the variance and the skewness that the witness has under any g; this
    changes nothing where the model is right. It is at least the critical value of a single weight.
    """
    deviation = deviations(drawn.suprema, beta) + panel.grid_error(notion)
    weights, sums = _along(panel, found, known)
    noise = np.sqrt(np.maximum(sums.sums.noise, 0.0))
    union, is_drawn = union_bound(len(deviation), beta), deviation > 0.0
    t = np.copysign(deviation / np.where(noise > 0.0, noise, 1.0), sums.v)
    score = np.maximum(np.abs(normal_score(t, sums.spread(np.zeros_like(t))[1])), union_bound(1, beta))
    critical = np.where(is_drawn & (noise > 0.0), score, union)
    lower, upper = sums.limits(critical)
    is_empty = is_drawn & (noise <= 0.0)  # the witness has no noise: the limits are those of chance
    lower, upper = np.where(is_empty, -deviation, lower), np.where(is_empty, deviation, upper)
    return _intervals(found, weights, sums, lower, upper, _most(panel, np.maximum(critical, union)))


def deviations(suprema: FloatArray, beta: float) -> FloatArray:
    """Return a limit for every c such that any supremum exceeds its limit with probability beta, from (draws, m).

    Cube roots of the suprema are close to normal, whatever their skewness, so a common quantile of their standardised
    values treats rare and common outcomes alike. Each draw is standardised by the mean and spread of the other draws:
    included among them, it would look closer to their mean than a new sample does.
    """
    root = np.cbrt(suprema)
    centre, spread_of = root.mean(axis=0), root.std(axis=0)
    n = len(root)
    off = (root - centre) / np.where(spread_of > 0.0, spread_of, np.inf)
    others = np.maximum((1.0 - np.square(off) / (n - 1)) * (n - 1) / n, SMALLEST)
    z = off / np.sqrt(others)
    q = float(np.quantile(z.max(axis=1), 1.0 - beta, method="higher"))
    return np.asarray(np.maximum(centre + q * spread_of, 0.0) ** 3)


def _along(panel: Panel, found: Suprema, known: Constraints | None) -> tuple[list[Witness], Cumulants]:
    """Return the witnesses of all subpopulations without their signs, and their sums over the members.

    If a witness is a union of disjoint cells of a scalar prediction, its sums are those of the cells added up.
    """
    witnesses = [found.witness(j) for j in range(len(found.value))]
    if known is not None and panel.d == 1 and all(isinstance(u, Cell) for u in known.weights):
        chosen = np.array([one.coefficients for one in witnesses]) != 0.0
        sums = Totals(*(np.where(chosen, part, 0.0).sum(axis=(1, 2)) for part in known.sums))
        unsigned = [Witness(one.weights, np.abs(one.coefficients)) for one in witnesses]
    else:
        unsigned = [Witness(one.weights, _sign(panel, one) * one.coefficients) for one in witnesses]
        share = panel.share if panel.is_label else None
        sums = panel.rows.run(WitnessSums(panel.families, tuple(unsigned), share))
    return unsigned, Cumulants.of(sums, panel.energy, panel.is_label, is_chosen=True)


def _sign(panel: Panel, witness: Witness) -> float:
    """Return the sign of a weight: that of its coefficients or, where these differ, of its values.

    The sign of a nonzero polynomial appears at a corner of the simplex or in its centre.
    """
    theta = witness.coefficients
    if (theta >= 0.0).all() or (theta <= 0.0).all():
        return -1.0 if (theta < 0.0).any() else 1.0
    if all(isinstance(u, Cell) for u in witness.weights):
        return -1.0 if theta.min() < -1e-9 else 1.0
    corners = np.vstack([np.eye(panel.d), np.full(panel.d, 1.0 / panel.d)]) if panel.d > 1 else np.array([[0.0], [1.0]])
    are_powers = all(isinstance(u, Monomial) for u in witness.weights)
    return -1.0 if witness(corners if are_powers else panel.p).min(initial=0.0) < -1e-9 else 1.0


def _intervals(
    found: Suprema,
    weights: Sequence[Witness],
    sums: Cumulants,
    lower: FloatArray,
    upper: FloatArray,
    most: FloatArray,
) -> Intervals:
    """Return signed intervals; the outer limits include the bracket between a witness and the supremum."""
    room = found.upper - found.value
    outer = np.minimum(most, np.maximum(upper, -lower) + room)
    is_up = sums.v >= 0.0
    lower, upper = np.where(is_up, np.maximum(lower, -outer), -outer), np.where(is_up, outer, np.minimum(upper, outer))
    return Intervals(weights, sums.v, sums.standard_error, lower, upper)


class Masses(NamedTuple):
    """Limits on the mass of every c, which divide those on violations; nan where memberships have signs or no rows."""

    lower: FloatArray
    upper: FloatArray

    def per_person(self, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the limits of E[c z] / E[c] from those of E[c z], c along the first axis; both lie in [-1, 1].

        >>> masses = Masses(np.array([0.2]), np.array([0.25]))
        >>> [one.round(3).tolist() for one in masses.per_person(np.array([0.01]), np.array([0.03]))]
        [[0.04], [0.15]]
        """
        low, high = (of.reshape(-1, *[1] * (lower.ndim - 1)) for of in self)

        def divide(limits: FloatArray, is_inner: NDArray[np.bool_]) -> FloatArray:
            mass = np.where(is_inner, high, low)  # the upper mass for limits on the side of zero
            shares = np.divide(limits, mass, out=np.sign(limits), where=mass != 0.0)  # no bound if the mass may be 0
            return np.asarray(np.clip(shares, -1.0, 1.0))

        return divide(lower, lower > 0.0), divide(upper, upper < 0.0)


def masses(panel: Panel, notion: Notion, method: Method, confidence: float) -> Masses:
    """Return masses such that limits on violations, divided by them, are limits per person with the same confidence.

    For memberships of 0 or 1 they are the sample's masses: given which rows belong to c, E[c z] / E[c] times the
    sample's mass is the mean of sum p_i c_i z_i, whose variance is at most that of the violation. The scores of
    "bootstrap" and the union bounds of "bernstein" and "hoeffding", which allow independent terms with different means,
    hold conditionally on these rows. Betting, symmetrisation and memberships between 0 and 1 need limits on the masses,
    for which part of the error probability is set aside.
    """
    beta = 1.0 - confidence
    if method == "bootstrap":
        half = union_bound(len(panel.mass), beta) * panel.mass_error
        low, high = np.maximum(panel.mass - half, 0.0), np.minimum(panel.mass + half, 1.0)
    else:
        low, high = (limit(panel.mass, panel, beta * MASS_SHARE) for limit in (least_mean, mean_limit))
    is_union = isinstance(notion, Finite) and method in ("bernstein", "hoeffding") and is_listed(notion, panel.d)
    is_sample = (method == "bootstrap" or is_union) & panel.is_set
    known = np.where(is_sample, panel.mass, low), np.where(is_sample, panel.mass, high)
    has_share = (panel.mass > 0.0) & panel.is_share
    return Masses(*(np.where(has_share, one, np.nan) for one in known))
