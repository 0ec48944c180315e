"""Where the marks of the page's pictures stand: positions and paths of SVG, which the templates draw."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from lowcal.auditing.reports.binning import ReliabilityCurve
from lowcal.kernels.simplex import FloatArray

if TYPE_CHECKING:
    from lowcal.auditing.reports.audit_report import By, Finding

#: The side of a reliability diagram's square.
SIDE = 200
#: Where the axes of a reliability diagram may end: rare outcomes would sit in a corner of [0, 1].
ENDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

#: What a model is in the picture (1 or 2), its height, and where its error and the limits stand.
Line = tuple[int, int, str, str, str]


def reach_of(found: Sequence[Finding], tolerated: float, by: By) -> float:
    """Return the largest number that the intervals of some findings reach."""
    limits = (abs(limit) for one in found for limit in one.interval(by)[1:])
    return max([tolerated * 1.25, *(limit for limit in limits if not isnan(limit))]) * 1.02


def lines(found: Finding, before: Finding | None, reach: float, by: By) -> list[Line]:
    """Return the line of each model on an axis where 0 to 200 is -reach to reach.

    A group without a share of the people has no error per person, and no line.
    """
    models = [(1, 10, found)] if before is None else [(2, 5, before), (1, 14, found)]
    drawn = ((kind, y, *one.interval(by)) for kind, y, one in models)
    at = partial(_along, reach)
    return [(kind, y, at(value), at(lower), at(upper)) for kind, y, value, lower, upper in drawn if not isnan(lower)]


def _along(reach: float, value: float) -> str:
    return f"{100 + 100 * float(np.clip(value / reach, -1, 1)):.1f}"


def end_of(curves: Sequence[ReliabilityCurve]) -> float:
    """Return where both axes end: the first of ENDS that all predictions and outcomes stay below."""
    top = max((float(v) for one in curves for v in (*one.prediction, *one.outcome)), default=1.0)
    return next(end for end in ENDS if top <= end or end == 1.0)


def paths(curve: ReliabilityCurve, before: ReliabilityCurve | None, end: float) -> list[tuple[str, str]]:
    """Return the class and the path of every mark of a reliability diagram, the last on top.

    Dots are strokes of no length: round or square ends make them dots.
    """
    drawn = []
    if before is not None:
        at = _places(before.prediction, before.outcome, end)
        drawn += [("line2", _line(at)), ("dot2", _dots(at))]
    low, at, high = (_places(curve.prediction, y, end) for y in (curve.lower, curve.outcome, curve.upper))
    bars = "".join(f"M{a}V{b.split()[1]}" for a, b in zip(low, high, strict=True))
    band = f"M{'L'.join(high + low[::-1])}Z" if high else ""
    return [*drawn, ("band", band), ("bars", bars), ("line1", _line(at)), ("dot1", _dots(at))]


def _places(f: FloatArray, y: FloatArray, end: float) -> list[str]:
    """Return "x y" for every bin; what lies above the end of the axis stays on its edge."""
    x, height = SIDE * f / end, SIDE * (1.0 - np.minimum(y / end, 1.0))
    return [f"{a:.1f} {b:.1f}" for a, b in zip(x, height, strict=True)]


def _line(places: list[str]) -> str:
    return "M" + "L".join(places) if places else ""


def _dots(places: list[str]) -> str:
    return "".join(f"M{place}h0" for place in places)
