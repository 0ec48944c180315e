"""The sums of the solver's passes as formulas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowcal.kernels.card.formula import Formula, Inputs
from lowcal.kernels.exact import Fine, Grid, Tables, Wholes
from lowcal.kernels.logistic import LEAST_CURVATURE
from lowcal.kernels.loops import padded
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.weights import n_intervals
from lowcal.rows.card.coded import ROW, cell_text, weight_text
from lowcal.rows.card.rows import MOST_CELLS, Card, on_card
from lowcal.rows.passes import (
    MOST_SCORE,
    Along,
    CellMoments,
    CellSums,
    Evidence,
    Farthest,
    Gradient,
    Losses,
    MassSums,
    Moments,
    Slopes,
    reach,
)


def to_wholes(grid: Grid, tables: Sequence[FloatArray]) -> Tables:
    """Return sums (levels, q) as whole numbers of units, padded as kernels in memory do."""
    found = Tables()
    for table in tables:
        wide = np.zeros((len(table), padded(table.shape[1])), dtype=np.int64)
        wide[:, : table.shape[1]] = grid.wholes(table)
        found.append(wide)
    return found


def fine_wholes(fine: Fine, value: float) -> Wholes:
    """Return a number in both units."""
    high = fine.first.wholes(np.array(value))
    return np.array([high, fine.second.wholes(np.array(value) - fine.first.floats(high))], dtype=np.int64)


@on_card.register
def _(one: MassSums, card: Card) -> Tables | None:
    design, w = card.coded.design(one.families), "T(1)" if card.weight is None else "w"
    found = None if design is None else card.tables(design, ("T(1)", w), (1.0, 1.0))
    if found is None:
        return None
    return to_wholes(one._grid(card.scale), [table * [1.0, card.scale.most] for table in found])


@on_card.register
def _(one: Losses, card: Card) -> Tables | None:
    loss = "most(s, T(0)) - y*s + log_(T(1) + exp_(-size(s)))"
    found = card.total(("(y - f)*(y - f)", loss), (1.0, MOST_SCORE), state=one.state)
    if found is None:
        return None
    is_bounded = all(update.geometry == "mirror" for update in one.state.updates)
    sure = 0.0 if is_bounded else card.count_certain(one.state)
    grids = one._grids(card.scale)
    sums = np.array([fine_wholes(fine, value) for fine, value in zip(grids, found.tolist(), strict=True)])
    return Tables([sums, np.array(int(sure))])


@on_card.register
def _(one: Moments, card: Card) -> Tables | None:
    design, texts = card.coded.design(one.families), [weight_text(u) for u in one.weights]
    if design is None or None in texts:
        return None
    bounds = [MOST_SCORE if text == "s" else 1.0 for text in texts]
    found = card.tables(design, [f"(y - f)*{text}" for text in texts], bounds, state=one.state)
    return None if found is None else to_wholes(card.scale.grid(max(bounds)), found)


@on_card.register
def _(one: Evidence, card: Card) -> Tables | None:
    design, texts = card.coded.design(one.families), [weight_text(u) for u in one.weights]
    now = card.at(one.now)
    if design is None or None in texts or now is None or one.own:
        return None
    curvature = f"most(g*(T(1) - g), T({LEAST_CURVATURE!r}))"
    values = ["(y - g)", curvature] if one.is_even else ["(y - g)", curvature, f"w*{curvature}"]
    terms = [f"{values[0]}*{text}" for text in texts]
    terms += [f"{value}*({text})*({text})" for value in values[1:] for text in texts]
    sizes = [MOST_SCORE if text == "s" else 1.0 for text in texts]
    bounds = [*sizes, *[size * size for _ in values[1:] for size in sizes]]
    found = card.tables(design, terms, bounds, state=one.base, arrays={"e": now}, lines=(("g", "sigmoid(e)"),))
    if found is None:
        return None
    factors = np.repeat([1.0, 1.0, card.scale.most][: len(values)], len(texts))
    (_, _, grid), *_ = one._plan(design, card.scale, 1)
    return to_wholes(grid, [table * factors for table in found])


@on_card.register
def _(one: Gradient, card: Card) -> Tables | None:
    design = card.coded.design(one.families)
    if design is None:
        return None
    spread: dict[int, FloatArray] = {}
    for codes, table in zip(design.codes, design._spread(one.theta), strict=True):
        spread[id(codes)] = spread.get(id(codes), 0.0) + table
    tables = np.concatenate([spread[key] for key in design.firsts])
    bent, terms = (("b", "y - sigmoid(s + L[0] + L[1]*s)"),), ("b", "b*s")
    found = card.tables(design, terms, (1.0, MOST_SCORE), state=one.state, tables=tables, lines=bent)
    return None if found is None else to_wholes(card.scale.grid(MOST_SCORE), found)


@on_card.register
def _(one: CellMoments, card: Card) -> CellSums | None:
    design, cells = card.coded.design(one.families), n_intervals(one.width)
    inputs = None if design is None or not 1 < cells <= MOST_CELLS else card.inputs(design, one.state)
    if design is None or inputs is None:
        return None
    lines = (*ROW, ("cell", cell_text(one.width, card.device.kind)))
    found = card.device.histogram(Formula((*card.terms("y - f"), "T(1)"), lines, (1.0, 1.0), cells), inputs)
    by_column = dict(zip(design.firsts, np.split(found, np.cumsum(inputs.levels)[:-1]), strict=True))
    held = np.flatnonzero(next(iter(by_column.values()))[:, :, 1].sum(axis=0))
    pairs = zip(design.codes, design.decode, strict=True)
    sums = np.concatenate([t.gather(by_column[id(c)][:, held, 0]) for c, t in pairs]) * card.scale.most
    return CellSums(held[:, None], card.scale.grid().wholes(sums)[:, :, None])


@on_card.register
def _(one: Along, card: Card) -> Farthest | None:
    delta, far = card.displaced(one.state, one.terms), reach(one.terms)
    if delta is None:
        return None
    bend = "delta*delta" if one.geometry == "euclidean" else "delta*delta*T(0.25)"
    found = card.total(("delta*(y - f)", bend), (far, far * far), state=one.state, arrays={"delta": delta})
    assert found is not None
    farthest = card.device.largest(Formula(("delta",)), Inputs(card.scale.n, {"delta": delta}))
    grids = one._grids(card.scale)
    return Farthest(np.array([fine_wholes(g, v) for g, v in zip(grids, found.tolist(), strict=True)]), farthest)


@on_card.register
def _(one: Slopes, card: Card) -> Wholes | None:
    delta = card.displaced(one.base, one.terms)
    if delta is None:
        return None
    steps = [f"delta*(sigmoid(s + k[{j}]*delta) - y)" for j in range(len(one.steps))]
    given = {"state": one.now, "arrays": {"delta": delta}, "constants": one.steps}
    found = card.total(steps, [one.most] * len(steps), **given)
    fine = card.scale.fine(2.0 * one.most)
    return None if found is None else np.stack([fine_wholes(fine, v) for v in found.tolist()], axis=1)
