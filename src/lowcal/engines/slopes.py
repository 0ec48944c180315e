"""The step along a line in log odds for rows that come in batches: slopes of the log loss at a few steps.

    phi(eta) = E[-y log f_eta - (1 - y) log(1 - f_eta)],   f_eta = sigmoid(logit f + eta delta)

is convex, and phi'(eta) = E[delta (f_eta - y)]. One pass over the rows gives phi' at fixed steps, between which its
root lies. The last sum, E[delta^2] / 4, bounds how much phi bends, so that the Newton step is safe (spec 4.4).
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from lowcal.engines.clipped import Line
from lowcal.engines.products import dot
from lowcal.engines.reference import rows_in_cache
from lowcal.simplex import log_odds

#: Slopes are taken at these multiples of a guess, and at 0.
MULTIPLES = (0.5, 0.8, 1.0, 1.25, 2.0, 4.0)


class Slopes:
    """Slopes of the log loss along a line, under construction; `scale` is a guess of the best step.

    >>> slopes = Slopes(2.0)
    >>> slopes.add(Line(np.array([0.5, 0.5]), np.array([1.0, 0.75]), np.ones(2), np.array([0.5, 0.5])))
    >>> round(slopes.best(), 2), round(float(np.log(0.875 / 0.125)), 2)
    (1.95, 1.95)
    """

    def __init__(self, scale: float) -> None:
        self.steps = scale * np.array([0.0, *MULTIPLES])
        self.slope = np.zeros(len(self.steps))
        self.bend = 0.0

    def add(self, line: Line) -> None:
        """Add rows."""
        for part in rows_in_cache(len(line.f), 4):
            f, y, delta, weight = (a[part] for a in line)
            score, mass = log_odds(f), weight * delta
            seen = dot(mass, y)
            self.slope += [dot(mass, expit(score + eta * delta)) - seen for eta in self.steps]
            self.bend += dot(mass, delta) / 4.0

    def best(self) -> float:
        """Return a step that loses no more than the Newton step: the root between two slopes, or one before it."""
        slope, steps = self.slope, self.steps
        if self.bend <= 0.0 or slope[0] >= 0.0:
            return 0.0
        newton = -float(slope[0]) / self.bend
        low = int(np.argmax(slope > 0.0)) - 1 if (slope > 0.0).any() else len(steps) - 1
        # phi' grows by at most `bend` a unit, so that phi still falls up to here
        safe = max(newton, float(steps[low]) - float(slope[low]) / self.bend)
        if low == len(steps) - 1:
            return safe
        eta = float(steps[low] - slope[low] * (steps[low + 1] - steps[low]) / (slope[low + 1] - slope[low]))
        return eta if self._drop(low, eta) >= -newton * float(slope[0]) / 2.0 else safe

    def _drop(self, low: int, eta: float) -> float:
        """Return how much phi falls at least up to eta, which lies between the step `low` and the next.

        From one step to the next, -phi' is at least what it is at the end, and at least what is left of the start.
        """
        gaps, falls = np.diff(self.steps[: low + 1]), -self.slope[: low + 1]
        until = np.minimum(-np.diff(falls) / self.bend, gaps)
        fallen = falls[:-1] * until - self.bend * until**2 / 2.0 + falls[1:] * (gaps - until)
        return float(fallen.sum()) - float(self.slope[low + 1]) * (eta - float(self.steps[low]))
