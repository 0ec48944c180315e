"""Score intervals with a correction for skewness: limits that are right for rare outcomes and for few rows.

Let v = sum p_i Z_i estimate g = E[Z], Z = c <w(f), y - f>. A value g is accepted where the normal score of v under g,

    t = (v - g) / sd(g),   z = ((1 + s t / 2)^(1/3) - 1 + s^2 / 36) 6 / s   (Wilson and Hilferty 1931),

lies within a critical value. Both sd(g) and the skewness s(g) follow from the second and the third moment of Z, which
f tells if g = 0, and which move with g as the labels' noise makes them move together: by Cov(Z^k, Z) / Var(Z). For a
constant f that is the binomial variance at g, and the interval is Wilson's; studentising by what was observed instead
calls a perfect model wrong wherever few of few rare labels were drawn. As sums of labels are discrete, |t| is reduced
by a share of s, which is one label in standard deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lowcal.auditing.certificates.panel import Panel
from lowcal.auditing.certificates.sums import ConstraintSums, Sums
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.weights import Weight

#: A limit is searched by this many steps outwards, each longer by this factor, and then by this many halvings.
STEPS, GROWTH, HALVINGS = 30, 1.5, 45
#: Share of one label taken off a deviation. With 2 to 40 labels expected and critical values from 1.96 to 3.4 there are
#: then at most 1.2 times as many misses as stated, 1.7 times without it (tests/test_certificates.py).
CONTINUITY = 0.15
#: Skewness below this is none: the formula divides by it.
NO_SKEW = 1e-6


@dataclass(frozen=True, eq=False)
class Cumulants:
    """Moments from which the variance and the skewness of v follow under any g; arrays of one shape.

    second and third = sum p^k E[Z^k] if g = base; their slopes are by how much they move with g, and so does slope1 for
    sum p^2 E[Z]. What the sample's own second moment says against them counts as far as it exceeds its noise
    (`_second`): `excess` at g = base, `regression` times v - g of it is noise that v shares, `error` is its variance.
    """

    sums: Sums[FloatArray]
    base: FloatArray
    second: FloatArray
    third: FloatArray
    slope1: FloatArray
    slope2: FloatArray
    slope3: FloatArray
    steepest: FloatArray
    excess: FloatArray
    regression: FloatArray
    error: FloatArray
    energy: float
    is_chosen: bool

    @classmethod
    def of(cls, sums: Sums[FloatArray], energy: float, is_label: bool, *, is_chosen: bool = False) -> Cumulants:
        """Choose where moments are known best: for labels where they have the believed probabilities, else at v.

        `is_chosen` says that the sample chose Z, as the one with the largest v of many.
        """
        moved = sums.shift1, sums.shift2, sums.shift3, sums.steep
        one, two, three, steepest = (_ratio(part, sums.shift) for part in moved)
        nothing = np.zeros_like(sums.v)
        if not is_label:
            known = sums.v, sums.second, sums.base3, one, two, three, steepest
            return cls(sums, *known, nothing, nothing, nothing, energy, is_chosen)
        slope = _ratio(sums.noise3, sums.noise)
        error = np.maximum(sums.square - slope * sums.noise3, 0.0)
        known = sums.base, sums.base2, sums.base3, one, two, three, steepest
        return cls(sums, *known, sums.second - sums.base2, slope, error, energy, is_chosen)

    @property
    def v(self) -> FloatArray:
        """The estimates."""
        return self.sums.v

    def variance(self, g: FloatArray) -> FloatArray:
        """Return the variance of v if E[Z] = g: sum p^2 (Z - g)^2 / (1 - sum p^2), its sums moved to g."""
        return self._variance(g, self._second(g))

    def skewness(self, g: FloatArray) -> FloatArray:
        """Return the skewness of v if E[Z] = g."""
        second = self._second(g)
        return self._skewness(g, second, self._variance(g, second))

    def _variance(self, g: FloatArray, second: FloatArray) -> FloatArray:
        left = 1.0 - self.energy
        spread = second - np.square(g) * (2.0 * self.slope1 - self.energy)
        return np.maximum(spread, 0.0) / left if left > 1e-12 else np.full(np.shape(g), np.inf)

    def _skewness(self, g: FloatArray, second: FloatArray, variance: FloatArray) -> FloatArray:
        third = self.third + self.slope3 * (g - self.base)
        third = third - 3.0 * g * self.energy * second + 2.0 * g**3 * self.energy**2
        return _ratio(third, variance**1.5)

    def _second(self, g: FloatArray) -> FloatArray:
        """Return sum p^2 E[Z^2] if E[Z] = g.

        It moves along a straight line where all rows move it the same way. Where some raise it and others lower it, as
        predictions near 0 and near 1 do, those that lower it run out of noise: a hyperbola with the same slope at the
        base, and the slopes of either kind of rows far from it. Of the sample's excess D, of variance R^2,
        D (1 - (2 R / D)^2) is added, or nothing; if the sample chose Z, the share g / v of it: the more freely it
        chose, the larger its second moment, also where f is right.
        """
        balance = self._balance
        along = balance * self.second + self.steepest * (g - self.base)
        moved = np.sqrt(np.square(along) + (1.0 - np.square(balance)) * np.square(self.second))
        moved = np.where(np.abs(balance) < 1.0, moved, self.second + self.slope2 * (g - self.base))
        excess = self.excess - (moved - self.second) - self.regression * (self.v - g)
        error = self.error * np.maximum(_ratio(moved, self.second), 1.0)  # it grows with the number of events
        kept = excess * np.maximum(0.0, 1.0 - _ratio(4.0 * error, np.square(excess)))
        if self.is_chosen:
            kept = kept * np.clip(_ratio(g * np.sign(self.v), np.abs(self.v)), 0.0, 1.0)
        return np.asarray(np.maximum(moved + np.where(error > 0.0, kept, 0.0), 0.0))

    @cached_property
    def _balance(self) -> FloatArray:
        """1 or -1 where all rows move the second moment the same way, and between them where they disagree."""
        return np.clip(_ratio(self.slope2, self.steepest), -1.0, 1.0)

    @property
    def standard_error(self) -> FloatArray:
        """The standard error of v, as observed: sqrt(sum p^2 (Z - v)^2 / (1 - sum p^2)); one row alone has none."""
        spread = self.sums.second - 2.0 * self.v * self.sums.cross + np.square(self.v) * self.energy
        left = 1.0 - self.energy
        return np.sqrt(np.maximum(spread, 0.0) / left) if left > 1e-12 else np.full(np.shape(self.v), np.inf)

    def score(self, g: FloatArray) -> FloatArray:
        """Return the normal score of v if E[Z] = g; infinite where v cannot be if g has no variance."""
        second = self._second(g)
        variance = self._variance(g, second)
        t = np.divide(self.v - g, np.sqrt(variance), out=np.zeros(np.shape(g)), where=variance > 0.0)
        z = normal_score(t, self._skewness(g, second, variance))
        gap = np.abs(self.v - g) > 1e-12 * (np.abs(self.v) + np.abs(g))
        return np.where((variance <= 0.0) & gap, np.copysign(np.inf, self.v - g), z)

    def limits(self, critical: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        """Return the least and the greatest g in [-1, 1] whose score is within the critical value."""
        side = np.array([-1.0, 1.0]).reshape(2, *np.ones(self.v.ndim, dtype=int))
        step = side * np.maximum(self.standard_error, self.steepest) / 4.0

        def is_in(g: FloatArray) -> NDArray[np.bool_]:
            return np.abs(self.score(g)) <= critical

        # step outwards to the first g that is refused, then halve: far from v the score may come back
        inside, outside = np.broadcast_to(self.v, step.shape), np.clip(self.v + step, -1.0, 1.0)
        for _ in range(STEPS):
            further = is_in(outside) & (np.abs(outside) < 1.0)
            if not further.any():
                break
            ahead = np.clip(self.v + GROWTH * (outside - self.v), -1.0, 1.0)
            inside, outside = np.where(further, outside, inside), np.where(further, ahead, outside)
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            accepted = is_in(middle)
            inside, outside = np.where(accepted, middle, inside), np.where(accepted, outside, middle)
        lower, upper = np.where(self.sums.noise > 0.0, outside, side)  # else nothing is known: no row, or no noise
        return lower, upper


def normal_score(t: FloatArray, skew: FloatArray) -> FloatArray:
    """Return the normal score of a standardised sum of given skewness, by Wilson and Hilferty's cube root.

    >>> normal_score(np.array([-1.96, 0.0, 1.96]), np.zeros(3)).round(2)
    array([-1.96,  0.  ,  1.96])
    >>> normal_score(np.array([-1.96, 1.96]), np.full(2, 0.5)).round(2)  # skewed to the right: low sums are rarer
    array([-2.21,  1.73])
    """
    size = np.abs(skew)
    t = np.sign(t) * np.maximum(np.abs(t) - CONTINUITY * size, 0.0)
    s = np.where(size < NO_SKEW, NO_SKEW, skew)
    root = np.cbrt(np.maximum(1.0 + s * t / 2.0, 0.0))
    return np.asarray(np.where(size < NO_SKEW, t, (root - 1.0 + s * s / 36.0) * 6.0 / s))


def _ratio(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b))), where=b > 0.0)


def cumulants(panel: Panel, weights: Sequence[Weight]) -> Cumulants:
    """Return the sums of every constraint Z = c u_s (y_a - f_a), shape (m, S, d): one pass over the rows."""
    share = panel.share if panel.is_label else None
    found = panel.rows.run(ConstraintSums(panel.families, tuple(weights), share, panel.rows.is_even))
    return Cumulants.of(Sums(*found), panel.energy, panel.is_label)
