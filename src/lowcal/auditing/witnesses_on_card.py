"""The sums of witnesses as formulas: every subpopulation has a weight of its own, and a pass over its code column."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lowcal.auditing.draws_on_card import believed_text
from lowcal.auditing.panel import Negatives
from lowcal.auditing.score import SUMMANDS, WitnessSums
from lowcal.kernels.card.formula import power_above
from lowcal.kernels.exact import Wholes
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.base import Witness
from lowcal.notions.weights import cells_of_one_grid
from lowcal.rows.card.coded import Lines, each, grid_knots, listed_cells, weight_text
from lowcal.rows.card.passes import fine_wholes, residual_texts
from lowcal.rows.card.rows import Card, on_card
from lowcal.subpopulations.base import Family

#: What each sum of `score.Totals` adds up, and the power of r that bounds it.
SUMS = {
    "v": ("r", 1),
    "cross": ("r", 1),
    "second": ("r*r", 2),
    "noise": ("one", 2),
    "noise3": ("two", 3),
    "square": ("fourth", 4),
    "shift": ("one_", 2),
    "shift1": ("one_", 2),
    "shift2": ("two_", 3),
    "shift3": ("three_", 4),
    "steep": ("size(two_)", 3),
    "base": ("m1", 1),
    "base2": ("m2", 2),
    "base3": ("m3", 3),
}
#: Noise and means of a residual r: of numbers, and of two labels (`_label_noise`, times powers of the weight v).
NUMBERS = {"one": "r*r", "two": "r*r*r", "three": "r*r*r*r", "fourth": "r*r*r*r", "m1": "r", "m2": "r*r", "m3": "r*r*r"}
SCALAR = {
    "h": "q*(T(1) - q)",
    "skew": "T(1) - T(2)*f",
    "cube": "T(1) - T(3)*(f - f*f)",
    "one": "h*v*v",
    "two": "h*skew*v*v*v",
    "fourth": "h*skew*skew*v*v*v*v",
    "m1": "(q - f)*v",
    "m2": "(f*f + q*skew)*v*v",
    "m3": "(q*cube - f*f*f)*v*v*v",
    "one_": "h*v",
    "two_": "h*skew*v*v",
    "three_": "h*cube*v*v*v",
}


def _noise(d: int, share: float | None) -> Lines:
    """Return the lines of noise and means, and of how they move."""
    if d == 1 and share is not None:
        return (("q", believed_text(share)), ("v", "w0"), *SCALAR.items())
    if share is None:
        lines: Lines = tuple(NUMBERS.items())
    else:
        chance = [believed_text(share, d, f) for f in each("f", d)]
        mean = " + ".join(f"w{a}*f{a}" for a in range(d))
        lines = (("mean", mean), *((f"q{a}", text) for a, text in enumerate(chance)))
        lines = *lines, *((f"D{a}", f"w{a} - mean") for a in range(d))
        for k in range(1, 5):
            lines = *lines, (f"m{k}", " + ".join(f"q{a}*{'*'.join([f'D{a}'] * k)}" for a in range(d)))
        lines = *lines, *((name, f"m{k} - m{j}*m1") for name, (j, k) in zip(STEPS, pairwise(range(1, 5)), strict=True))
        lines = *lines, ("fourth", "m4 - m2*m2")
    return (*lines, *((f"{name}_", name) for name in STEPS))


STEPS = "one", "two", "three"


def _weights(witness: Witness, d: int, kind: np.dtype[Any]) -> tuple[Lines, FloatArray] | None:
    """Return the lines of a witness w0, w1, .. and the constants that they read; None: it is made of other weights."""
    cells = cells_of_one_grid(witness.weights)
    if cells:
        listed = listed_cells(cells, kind)
        values = [] if listed is None else [(f"w{a}", f"k[{len(listed.constants) + a} + cell*{d}]") for a in range(d)]
        outside = np.concatenate([witness.coefficients.ravel(), np.zeros(d)])
        return None if listed is None else ((*listed.lines, *values), np.concatenate([listed.constants, outside]))
    known = [weight_text(u, d) for u in witness.weights]
    laid = grid_knots([u for u, text in zip(witness.weights, known, strict=True) if text is None], d)
    if laid is None:
        return None
    lines, heights, of_knots = laid
    texts = [f"({next(of_knots) if text is None else text})" for text in known]
    at = [[len(heights) + s * d + a for s in range(len(texts))] for a in range(d)]
    sums = [" + ".join(f"k[{k}]*{text}" for k, text in zip(row, texts, strict=True)) or "T(0)" for row in at]
    named = tuple((f"w{a}", text) for a, text in enumerate(sums))
    return (*lines, *named), np.concatenate([heights, witness.coefficients.ravel()])


@on_card.register
def _(one: WitnessSums, card: Card) -> Wholes | None:
    members = [(family, j) for family in one.families for j in range(len(family.names))]
    found = []
    for (family, j), witness in zip(members, one.witnesses, strict=True):
        sums = _of_member(one, card, family.take(np.array([j])), witness)
        if sums is None:
            return None
        found.append([fine_wholes(fine, v) for fine, v in zip(one._grids(card.scale), sums, strict=True)])
    return np.array(found)


def _of_member(one: WitnessSums, card: Card, family: Family, witness: Witness) -> Sequence[float] | None:
    """Return the sums of one subpopulation."""
    design, laid = card.coded.design([family]), _weights(witness, card.d, card.device.kind)
    if design is None or laid is None:
        return None
    orders = [getattr(SUMMANDS, name).order for name in SUMS]
    texts = [
        text if card.weight is None else f"{'w*' * (order - 1)}{text}"
        for (text, _), order in zip(SUMS.values(), orders, strict=True)
    ]
    far = 2.0 * max(1.0, float(np.abs(witness.coefficients).sum(axis=0).max(initial=0.0)))
    bounds = [power_above(far**power) for _, power in SUMS.values()]
    z = " + ".join(f"w{a}*{rho}" for a, rho in enumerate(residual_texts(card.d)))
    lines = (*laid[0], ("r", z), *_noise(card.d, one.share))
    tables = card.tables(design, texts, bounds, lines=lines, constants=laid[1], is_fine=True)
    assert tables is not None
    by_column = dict(zip(design.firsts, tables, strict=True))
    sums = np.concatenate([t.gather(by_column[id(c)]) for c, t in zip(design.codes, design.decode, strict=True)])
    return [float(v) * card.scale.most ** (order - 1) for v, order in zip(sums[0], orders, strict=True)]


@on_card.register
def _(one: Negatives, card: Card) -> int | None:
    return None if card.coded.design(one.families) is None else 0
