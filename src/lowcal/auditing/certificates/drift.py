"""Drift: whether the error of a group in the latest windows differs from its error in all windows before them.

The error of a group is its mean outcome less its mean prediction, for every label. After each window, the last 1, 3
and 12 windows are compared with all before. A comparison uses no later window, its level is fixed in advance, and the
levels of all comparisons, groups and labels sum to 1 - confidence. By the union bound, this limits the chance of any
false alarm, however groups overlap, as far as the scores are normal; the null hypothesis is that the error is constant,
not that it is zero. Tail probabilities of comparisons that overlap in time nearly add up: the bound is close.

A comparison's level is split between rising and falling errors by a statistic that is independent of the difference:
the precision-weighted mean of both sides. Where the errors of the groups are near 0, as those of a calibrated model
are, a mean above 0 is a sign that the error has risen (`Contrast.rising`). This changes power only, not the level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from scipy.special import expit, ndtr

from lowcal.auditing.certificates.panel import Panel
from lowcal.auditing.certificates.score import ConstraintSums, normal_score, ratio
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.weights import Monomial

#: The numbers of latest windows that are compared with all before them, and each one's share of the level. Three months
#: get most: a single month shows only large changes, and a year is slow. Chosen, with PAST, by the power against the
#: drift of benchmarks/monitoring.py, with normal errors.
SPANS = {1: 0.05, 3: 0.9, 12: 0.05}
#: A comparison gets its full level once there are this many windows before: the error over a short past is imprecise.
PAST = max(SPANS)
#: The level is allocated to at least this many windows, with which the longest comparison has its full level. Up to
#: then, added windows change no alarm if the groups stay the same.
HORIZON = PAST + max(SPANS)
#: The drift that the split between rise and fall is designed for, in standard errors of the difference: one that is
#: just detectable. Each side keeps at least this share of the level, for groups whose error is unlike the others'.
FOUND, LEAST_SIDE = 4.0, 0.1

#: The error of a group without rows is nan.
_ratio = partial(ratio, otherwise=np.nan)


class Sums(NamedTuple):
    """Sums over the rows of every window, group and label, (K, m, d): of w c, w c z, and of w^2 c^2 times 1 and z^2.

    `noise` is the sum of w^2 c^2 times the variance of labels drawn from the predictions, `third` their third cumulant.
    """

    mass: FloatArray
    residual: FloatArray
    square: FloatArray
    second: FloatArray
    noise: FloatArray
    third: FloatArray

    def over(self, first: int, end: int) -> Sums:
        """Return the sums over some windows, (m, d)."""
        return Sums(*(one[first:end].sum(axis=0) for one in self))

    @property
    def error(self) -> FloatArray:
        """The mean residual; nan without rows."""
        return _ratio(self.residual, self.mass)


def window_sums(panels: Sequence[Panel], shares: Sequence[float]) -> Sums:
    """Return the sums of windows that hold these shares of all weight."""
    every = []
    for panel, share in zip(panels, shares, strict=True):
        names, believed = ("v", "second", "noise", "noise3"), panel.share if panel.is_label else None
        run = ConstraintSums(panel.families, (Monomial(),), believed, panel.rows.is_even, names)
        v, second, noise, third = (one[:, 0, :] for one in panel.rows.run(run))
        square = ratio(np.square(panel.mass), panel.n_effective)
        mass, square = (np.broadcast_to(one[:, None], v.shape) for one in (panel.mass, square))
        own = (mass, 1), (v, 1), (square, 2), (second, 2), (noise, 2), (third, 3)
        every.append([one * share**power for one, power in own])
    return Sums(*(np.stack(one) for one in zip(*every, strict=True)))


class Contrast(NamedTuple):
    """The errors before and after a window began, and the normal score of their difference; each (m, d).

    `rising` is the share of the level for a rise of the error; a fall has the rest.
    """

    before: FloatArray
    after: FloatArray
    score: FloatArray
    rising: FloatArray

    @property
    def p_value(self) -> FloatArray:
        """The smaller of the p-values of both directions, each divided by its share."""
        return np.asarray(np.fmin(ndtr(-self.score) / self.rising, ndtr(self.score) / (1.0 - self.rising)))


@dataclass(frozen=True, eq=False)
class Drift:
    """The drift of every group and label, from the sums of windows in the order of time.

    `is_label`: outcomes are labels, whose noise is assumed to be at least that of the predictions.
    """

    sums: Sums
    is_label: bool = True

    @cached_property
    def error(self) -> FloatArray:
        """The mean outcome less the mean prediction in every window, (K, m, d); nan without rows."""
        return self.sums.error

    @cached_property
    def standard_error(self) -> FloatArray:
        """The standard error of `error`, from this window and those before."""
        spread = np.stack([self._dispersion(t) for t in range(1, len(self.error) + 1)])
        return np.sqrt(_ratio(spread * self.sums.noise, np.square(self.sums.mass)))

    @cached_property
    def p_value(self) -> FloatArray:
        """The adjusted p-values, (K, m, d): an alarm is raised at a window where this is at most 1 - confidence.

        The smallest of the p-values of the window's comparisons, each divided by its share of the level.
        """
        n, tests = self.error.shape[0], self.error[0].size
        found = np.ones(self.error.shape)
        for (end, span), share in level_shares(n).items():
            p = self.contrast(end - span, end).p_value * tests / share
            found[end - 1] = np.fmin(found[end - 1], p)
        return found

    def contrast(self, split: int, end: int) -> Contrast:
        """Compare the windows from `split` to before `end` with all before `split`.

        Labels are drawn independently, so variances and third cumulants of the two errors add up; these are those of
        the predictions, times the dispersion. The normal score accounts for the skewness of few labels.
        """
        before, after = self.sums.over(0, split), self.sums.over(split, end)
        spread = self._dispersion(end)
        old, new = (spread * _ratio(one.noise, np.square(one.mass)) for one in (before, after))
        variance = old + new
        third = spread * (_ratio(after.third, after.mass**3) - _ratio(before.third, before.mass**3))
        t = _ratio(after.error - before.error, np.sqrt(variance))
        score = normal_score(t, _ratio(third, variance**1.5))
        return Contrast(before.error, after.error, score, _rising(before.error, after.error, old, new))

    def _dispersion(self, end: int) -> FloatArray:
        """Return the ratio of the variance observed before a window to that under the predictions.

        For labels it is at least 1: a small group without outcomes does not show that there is no noise.
        """
        known = self.sums.over(0, end)
        observed = known.second - np.square(known.error) * known.square
        return np.maximum(_ratio(observed, known.noise), 1.0 if self.is_label else 0.0)

    def since(self, end: int, group: int, label: int) -> int:
        """Return the likeliest onset before `end`: the window from which the error differs most clearly from before."""
        scores = [self.contrast(split, end).score[group, label] for split in range(1, end)]
        return 1 + int(np.nanargmax(np.abs(scores)))


def _rising(before: FloatArray, after: FloatArray, old: FloatArray, new: FloatArray) -> FloatArray:
    """Return the share of the level for a rise, from the precision-weighted mean of both sides.

    It is the probability of a rise if errors rise or fall by FOUND standard errors equally often and if errors before
    vary between groups as the means of all groups do. Normal means are independent of the differences.
    """
    variance = old + new
    mean, noise = _ratio(before * new + after * old, variance), _ratio(old * new, variance)
    known = np.isfinite(mean)
    between = np.where(known, np.square(mean) - noise, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    shift = _ratio(FOUND * old, np.sqrt(variance))
    odds = ratio(2.0 * mean * shift, np.maximum(between, 0.0) + noise)
    return np.asarray(LEAST_SIDE + (1.0 - 2.0 * LEAST_SIDE) * expit(np.nan_to_num(odds)))


def level_shares(n_windows: int) -> dict[tuple[int, int], float]:
    """Return each comparison's share of the level, by the number of windows so far and the number of latest windows.

    >>> shares = level_shares(24)
    >>> round(sum(shares.values()), 9), shares[14, 3] == level_shares(14)[14, 3]
    (1.0, True)
    """
    ends = range(2, max(n_windows, HORIZON) + 1)
    size = {(t, k): share * min(1.0, (t - k) / PAST) for t in ends for k, share in SPANS.items() if k < t}
    return {(t, k): one / sum(size.values()) for (t, k), one in size.items() if t <= n_windows}
