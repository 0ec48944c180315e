"""Limits per person: limits on a violation E[c <w(f), y - f>] divided by the mass E[c] of the group (spec 10.i.f)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowcal.auditing.certificates.band import MASS_SHARE, Method, is_listed
from lowcal.auditing.certificates.draws import union_bound
from lowcal.auditing.certificates.finite_sample import least_mean, mean_limit
from lowcal.auditing.certificates.panel import Panel
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.base import Finite, Notion


class Masses(NamedTuple):
    """What limits on violations are divided by, for every c; nan where a membership has no share of the rows."""

    lower: FloatArray
    upper: FloatArray

    def per_person(self, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the limits of E[c z] / E[c] from those of E[c z], c along the first axis; both lie in [-1, 1].

        >>> masses = Masses(np.array([0.2]), np.array([0.25]))
        >>> [one.round(3).tolist() for one in masses.per_person(np.array([0.01]), np.array([0.03]))]
        [[0.04], [0.15]]
        """
        return self._divide(lower, lower > 0.0), self._divide(upper, upper < 0.0)

    def _divide(self, limits: FloatArray, is_inner: NDArray[np.bool_]) -> FloatArray:
        """Divide limits that lie towards zero by the upper mass, others by the lower one; by 0 nothing is known."""
        low, high = (of.reshape(-1, *[1] * (limits.ndim - 1)) for of in self)
        mass = np.where(is_inner, high, low)
        shares = np.divide(limits, mass, out=np.sign(limits), where=mass != 0.0)
        return np.asarray(np.clip(shares, -1.0, 1.0))


def masses(panel: Panel, notion: Notion, method: Method, confidence: float) -> Masses:
    """Return masses such that limits on violations, divided by them, are limits per person with the same confidence.

    Where c is 0 or 1 they are the sample's masses: given which rows belong to c, these are draws from its people, and
    E[c z] / E[c] times the sample's mass is the mean of sum p_i c_i z_i, whose variance is at most that of the
    violation. The scores of "bootstrap" and the union bounds of "bernstein" and "hoeffding", which hold for independent
    terms with different means, hold given these rows. Betting and symmetrisation need limits on the masses, for which
    their share of the error is set aside, and so do memberships between 0 and 1.
    """
    beta = 1.0 - confidence
    if method == "bootstrap":
        half = union_bound(len(panel.mass), beta) * panel.mass_error
        low, high = np.maximum(panel.mass - half, 0.0), np.minimum(panel.mass + half, 1.0)
    else:
        low, high = (limit(panel.mass, panel, beta * MASS_SHARE) for limit in (least_mean, mean_limit))
    is_sample = np.full(len(low), method == "bootstrap" or _is_union(panel, notion, method)) & panel.is_set
    known = np.where(is_sample, panel.mass, low), np.where(is_sample, panel.mass, high)
    has_share = (panel.mass > 0.0) & panel.is_share
    return Masses(*(np.where(has_share, one, np.nan) for one in known))


def _is_union(panel: Panel, notion: Notion, method: Method) -> bool:
    """Whether the limits are a union bound over single constraints, by inequalities for independent terms."""
    return method in ("bernstein", "hoeffding") and isinstance(notion, Finite) and is_listed(notion, panel.d)
