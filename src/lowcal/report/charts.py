"""Pictures as inline SVG. Colours are classes of the style sheet, so that they follow light, dark and paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowcal.report.binning import Binned
from lowcal.report.source import By, Found
from lowcal.report.text import html, number, several
from lowcal.simplex import FloatArray

#: The side of a reliability diagram's square, and the room for its numbers.
SIDE, ROOM = 200, 44
#: Where the axes of a reliability diagram may end: rare outcomes would sit in a corner of [0, 1].
ENDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def scale(found: Sequence[Found], alpha: float, by: By = "violation") -> float:
    """Return the largest number that the intervals of some findings reach."""
    limits = (abs(limit) for one in found for limit in one.interval(by)[1:])
    return max([alpha * 1.25, *(limit for limit in limits if limit == limit)]) * 1.02


def interval(found: Found, before: Found | None, reach: float, alpha: float, by: By = "violation") -> str:
    """Return a finding's interval on the axis from -reach to reach, with the tolerance as a band around zero.

    The numbers stand in the same row of the table, so readers of the screen need not hear it.
    """

    def at(value: float) -> str:
        return f"{100 + 100 * float(np.clip(value / reach, -1, 1)):.1f}"

    def line(one: Found, kind: int, y: int) -> list[str]:
        value, lower, upper = one.interval(by)
        if lower != lower:  # no share of the people, no error per person
            return []
        line = f'<path class="line{kind}" d="M{at(lower)} {y}H{at(upper)}"/>'
        return [line, f'<path class="dot{kind}" d="M{at(value)} {y}h0"/>']

    inner = 100 * alpha / reach
    parts = [f'<rect class="ok" x="{100 - inner:.1f}" y="0" width="{2 * inner:.1f}" height="20"/>']
    parts.append('<path class="zero" d="M100 0V20"/>')
    if before is not None:
        parts += line(before, 2, 5)
    parts += line(found, 1, 10 if before is None else 14)
    return f'<svg class="interval" viewBox="0 0 200 20" aria-hidden="true" focusable="false">{"".join(parts)}</svg>'


@dataclass(frozen=True, eq=False)
class Curve:
    """The bins of one model with the limits of their outcomes."""

    bins: Binned
    lower: FloatArray
    upper: FloatArray

    @classmethod
    def of(cls, bins: Binned, confidence: float) -> Curve:
        """Return the bins with limits that hold for all of them at once."""
        return cls(bins, *bins.limits(confidence))

    @property
    def outside(self) -> int:
        """In how many bins the mean prediction lies outside the limits of the mean outcome."""
        f = self.bins.prediction
        return int(np.count_nonzero((f < self.lower) | (f > self.upper)))

    def words(self) -> str:
        """Say what the diagram shows."""
        n = len(self.bins.rows)
        if n == 0:
            return "No rows."
        return (
            f"In {self.outside} of {several(n, 'bin')} the mean prediction lies outside the band of the mean outcome."
        )


def end_of(curves: Sequence[Curve]) -> float:
    """Return where both axes end: the first of ENDS that all predictions and outcomes stay below."""
    top = max((float(v) for one in curves for v in (*one.bins.prediction, *one.bins.outcome)), default=1.0)
    return next(end for end in ENDS if top <= end or end == 1.0)


def diagram(key: str, title: str, curve: Curve, before: Curve | None) -> str:
    """Return a reliability diagram: mean outcome against mean prediction, bin by bin, with the band of the outcomes."""
    curves = [curve] if before is None else [curve, before]
    end = end_of(curves)
    words = curve.words() if before is None else f"After: {curve.words()} Before: {before.words()}"
    parts = [_frame(end)]
    if before is not None:
        parts.append(f'<path class="line2" d="{_line(before.bins, end)}"/>')
        parts.append(f'<path class="dot2" d="{_dots(before.bins, end)}"/>')
    parts += [f'<path class="band" d="{_band(curve, end)}"/>', f'<path class="bars" d="{_bars(curve, end)}"/>']
    parts += [f'<path class="line1" d="{_line(curve.bins, end)}"/>']
    parts += [f'<path class="dot1" d="{_dots(curve.bins, end)}"/>']
    box = f"{-ROOM} -6 {SIDE + ROOM + 10} {SIDE + ROOM + 8}"
    return (
        f'<svg class="diagram" viewBox="{box}" role="img" aria-labelledby="{key}t {key}d">'
        f'<title id="{key}t">{html(title)}</title><desc id="{key}d">{html(words)}</desc>{"".join(parts)}</svg>'
    )


def _frame(end: float) -> str:
    """Return axes with numbers at 0, the middle and the end, and the diagonal of perfect calibration."""
    half, text = SIDE // 2, f"{end / 2:g}"
    marks = [
        f'<path class="grid" d="M0 0V{SIDE}H{SIDE}M0 {half}H{SIDE}M{half} 0V{SIDE}M0 0H{SIDE}V{SIDE}"/>',
        f'<path class="ideal" d="M0 {SIDE}L{SIDE} 0"/>',
        f'<text x="-4" y="{SIDE}" class="e">0</text><text x="-4" y="{half + 3}" class="e">{text}</text>',
        f'<text x="-4" y="8" class="e">{end:g}</text><text x="{half}" y="{SIDE + 13}" class="m">{text}</text>',
        f'<text x="{SIDE}" y="{SIDE + 13}" class="e">{end:g}</text>',
        f'<text x="{half}" y="{SIDE + 27}" class="m">mean prediction</text>',
        f'<text x="-34" y="{half}" class="m" transform="rotate(-90 -34 {half})">mean outcome</text>',
    ]
    return "".join(marks)


def _place(f: FloatArray, y: FloatArray, end: float) -> list[str]:
    """Return "x y" for every bin; what lies above the end of the axis stays on its edge."""
    x, height = SIDE * f / end, SIDE * (1.0 - np.minimum(y / end, 1.0))
    return [f"{a:.1f} {b:.1f}" for a, b in zip(x, height, strict=True)]


def _line(bins: Binned, end: float) -> str:
    return "M" + "L".join(_place(bins.prediction, bins.outcome, end)) if len(bins.rows) else ""


def _dots(bins: Binned, end: float) -> str:
    """Return a stroke of no length for every bin: round or square ends make it a dot."""
    return "".join(f"M{place}h0" for place in _place(bins.prediction, bins.outcome, end))


def _band(curve: Curve, end: float) -> str:
    above = _place(curve.bins.prediction, curve.upper, end)
    below = _place(curve.bins.prediction, curve.lower, end)[::-1]
    return f"M{'L'.join(above + below)}Z" if above else ""


def _bars(curve: Curve, end: float) -> str:
    low = _place(curve.bins.prediction, curve.lower, end)
    high = _place(curve.bins.prediction, curve.upper, end)
    return "".join(f"M{a}V{b.split()[1]}" for a, b in zip(low, high, strict=True))


def axis(reach: float, decimals: int) -> str:
    """Return the ends of the axis of `interval`, as text."""
    return f"{number(-reach, decimals, signed=True)} … 0 … {number(reach, decimals, signed=True)}"
