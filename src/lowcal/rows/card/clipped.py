"""The line search of scalar predictions as formulas: rows in bins of the step at which they reach 0 or 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lowcal.kernels.card.formula import Formula, Inputs
from lowcal.kernels.clipped import BINS, TINY, Clipping, Line
from lowcal.rows.card.coded import ROW, Lines, in_two
from lowcal.rows.card.rows import Card, on_card
from lowcal.rows.passes import Clipped, Hidden
from lowcal.rows.passes import Lines as Found

#: Displacements below this move nothing in single precision.
TINY_SINGLE = 1e-30


def _lines(kind: np.dtype[Any]) -> Lines:
    """Return the limit of a row and its bin, as `add_clipped` does; k[0] is the sign, k[1] the scale of limits."""
    tiny = TINY if kind == np.float64 else TINY_SINGLE
    return (
        *ROW,
        ("move", "k[0]*delta"),
        ("stays", f"pick(size(move) > T({tiny!r}), T(0), T(1))"),
        ("gap", "y - f"),
        ("end", "pick(move > T(0), T(1), T(0))"),
        ("limit", "pick(stays > T(0), T(0), most((end - f)/pick(stays > T(0), T(1), move), T(0)))"),
        ("share", "pick(limit > T(0), T(1)/(T(1) + k[1]/pick(limit > T(0), limit, T(1))), T(0))"),
        ("cell", f"whole(pick(stays > T(0), T({BINS}), least(share*T({BINS}), T({BINS - 1}))))"),
    )


def _inputs(one: Clipped, card: Card) -> Inputs | None:
    delta = card.displaced(one.state, one.terms)
    constants = [float(np.sign(one.ahead.slope)), abs(one.ahead.newton)]
    return None if delta is None else card.inputs(state=one.state, arrays={"delta": delta}, constants=constants)


@on_card.register
def _(one: Clipped, card: Card) -> Clipping | None:
    inputs, lines, far = _inputs(one, card), _lines(card.device.kind), max(one.ahead.most, TINY)
    if inputs is None:
        return None
    limits = card.device.extremes(Formula(("limit",), lines, cells=BINS + 1), inputs)[:BINS]
    terms = card.terms(
        "part*part", "part*gap", "gap*gap", "(y - end)*(y - end)", "pick(gap*move < T(0), gap*gap, T(0))"
    )
    parts, both, bounds = in_two(terms, [1.0] * 5)
    whole = replace(inputs, codes=[card.coded.zeros], levels=[1], constants=[*inputs.constants, 1.0 / far])
    formula = Formula(both, (*lines, ("part", "move*k[2]"), *parts), bounds, BINS + 1)
    sums = card.device.histogram(formula, whole)[0, :BINS].reshape(BINS, 2, 5).sum(axis=1)
    sums *= np.array([far * far, far, 1.0, 1.0, 1.0]) * card.scale.most
    return Clipping.of(abs(one.ahead.newton), one._grid(card.scale), sums, limits)


@on_card.register
def _(one: Hidden, card: Card) -> Found | None:
    inputs, lines, device = _inputs(one.clipped, card), _lines(card.device.kind), card.device
    if inputs is None:
        return None
    rows = np.arange(inputs.n)
    if one.hidden is not None:
        listed = replace(inputs, constants=[*inputs.constants, *one.hidden.astype(float), 0.0])
        count = device.total(Formula(("pick(k[2 + cell] > T(0), T(1), T(0))",), lines, (1.0,)), listed)[0]
        rows = device.picked("k[2 + cell] > T(0)", listed, round(float(count)), lines)
    on = device.xp.asarray(rows)
    some = replace(inputs, n=len(rows), arrays={name: device.own(array[on]) for name, array in inputs.arrays.items()})
    found = device.download(device.columns(Formula(("f", "move", "cell"), lines), some, np.float64))
    y, weight = card._near(card.y, on), card._near(card.weight, on) * card.scale.most
    where = found[2].astype(np.intp) if one.hidden is not None else np.zeros(len(rows), dtype=np.intp)
    return Found([(0, Line(found[0], y, found[1], weight), where)])
