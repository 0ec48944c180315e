"""Step sizes: how far to go along terms, by passes over the rows (spec 4.4).

Any step whose loss is at most that of the Newton step eta* = g / B keeps the iteration bound:
phi(f) - phi(f_new) >= g^2 / B. In the scalar Euclidean case the best step of all is found exactly; in log space the
loss is convex, and the step at which its slope is 0 is found between a few steps, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lowcal.kernels import clipped
from lowcal.kernels.simplex import FloatArray, Geometry
from lowcal.rows.base import Rows, State
from lowcal.rows.passes import Along, Clipped, Hidden, Slopes, Tries, reach
from lowcal.rows.updates import Term

#: Multiples of the Newton step at which slopes are taken: before it the loss falls, and a separable direction has no
#: minimum.
MULTIPLES = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
#: Steps between two others at which slopes are looked at next.
BETWEEN = 7
#: Multiples of the Newton step that are tried on the simplex.
TRIED = (1.0, 2.0, 0.5, 4.0, 8.0)

#: Steps -> the slopes of a convex loss there.
SlopesAt = Callable[[tuple[float, ...]], FloatArray]


def newton(rows: Rows, state: State, terms: tuple[Term, ...], geometry: Geometry) -> float:
    """Return eta* = g / B, or 0 where the terms do not move anything."""
    return rows.run(Along(state, terms, geometry)).newton


def line_search(rows: Rows, state: State, terms: tuple[Term, ...], geometry: Geometry) -> float:
    """Return a step that loses no more than the Newton step: exact for scalars, the best of a few on the simplex."""
    ahead = rows.run(Along(state, terms, geometry))
    if ahead.newton == 0.0:
        return 0.0
    if geometry == "mirror":
        sign, newton_step = float(np.sign(ahead.newton)), abs(ahead.newton)

        def slopes(steps: tuple[float, ...]) -> FloatArray:
            signed = tuple(sign * eta for eta in steps)
            return sign * rows.run(Slopes(state, state, terms, signed, ahead.most))

        return sign * root_between(slopes, [newton_step * multiple for multiple in MULTIPLES])
    if rows.d == 1:
        return float(np.sign(ahead.slope)) * _clipped_step(rows, Clipped(state, terms, ahead))
    tries = tuple(ahead.newton * multiple for multiple in TRIED)
    return tries[int(np.argmin(rows.run(Tries(state, terms, tries))))]


def _clipped_step(rows: Rows, along: Clipped) -> float:
    """Return the global minimiser over eta >= 0 of E(y - clip(f + eta delta, 0, 1))^2."""
    if rows.scale.n < clipped.BINNED_FROM:
        return clipped.sorted_step(rows.run(Hidden(along, None))[0])
    return clipped.binned_step(rows.run(along), lambda hidden: rows.run(Hidden(along, hidden)))


def root_between(slopes: SlopesAt, steps: Sequence[float]) -> float:
    """Return where slopes that grow cross 0 between the first step and the last; the last if they do not.

    >>> round(root_between(lambda at: np.array(at) ** 2 - 2.0, [0.0, 1.0, 4.0]), 2)
    1.41
    """
    values = slopes(tuple(steps))
    low, high = _around(values)
    if low is None or high is None:
        return float(steps[-1] if high is None else steps[0])
    between = np.linspace(steps[low], steps[high], BETWEEN + 2)
    values = np.concatenate([[values[low]], slopes(tuple(between[1:-1].tolist())), [values[high]]])
    low, high = _around(values)
    if low is None or high is None:
        return float(between[-1])
    share = values[low] / (values[low] - values[high])
    return float(between[low] + share * (between[high] - between[low]))


def _around(values: FloatArray) -> tuple[int | None, int | None]:
    """Return the places of the last slope before 0 is crossed and of the first after it; None: there is none."""
    above = values > 0.0
    if not above.any():
        return len(values) - 1, None
    first = int(above.argmax())
    return (first - 1 if first else None), first


def shrunk_step(rows: Rows, base: State, now: State, terms: tuple[Term, ...], price: float) -> float:
    """Return the step of `step_along` along a shrunk Newton step; the penalised loss is log loss + step^2 price / 2."""
    most = reach(terms)

    def slopes(steps: tuple[float, ...]) -> FloatArray:
        return rows.run(Slopes(base, now, terms, steps, most)) + np.array(steps) * price

    return step_along(slopes)


def step_along(slopes: SlopesAt) -> float:
    """Return a step in (0, 1] from the slopes of a penalised loss in log space; 0 if it rises from the start.

    The whole step is taken unless its slope there has grown to half of what it was at the start, against it: then the
    step ends where the slope is 0.

    >>> step_along(lambda at: np.array(at) - 2.0), step_along(lambda at: 1.0 - np.array(at))
    (1.0, 0.0)
    """
    start, end = slopes((0.0, 1.0))
    if not start < 0.0:
        return 0.0
    return 1.0 if end <= -0.5 * start else root_between(slopes, [0.0, 0.5, 1.0])
