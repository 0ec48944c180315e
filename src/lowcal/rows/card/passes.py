"""The sums of the solver's passes as formulas."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from lowcal.kernels.card.formula import Formula, Inputs
from lowcal.kernels.exact import Fine, Grid, Tables, Wholes
from lowcal.kernels.logistic import LEAST_CURVATURE
from lowcal.kernels.loops import padded
from lowcal.kernels.reference import Codes
from lowcal.kernels.simplex import FLOOR, FloatArray, Geometry, IntArray
from lowcal.notions.weights import Cell, Weight, n_intervals
from lowcal.rows.base import START, State
from lowcal.rows.card.coded import (
    MOST_CELLS,
    Lines,
    arrays_of,
    bound_of_text,
    each,
    grid_text,
    largest,
    listed_cells,
    moved,
    radix,
    softmax_lines,
    weight_text,
)
from lowcal.rows.card.rows import Card, on_card
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
    Moved,
    Slopes,
    Tries,
    reach,
)

#: The most sums by cell that a pass holds.
MOST_CELL_SUMS = 1 << 23


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
    if card.d == 1:
        lines: Lines = ()
        square, loss = "(y - f)*(y - f)", "most(s, T(0)) - y*s + log_(T(1) + exp_(-size(s)))"
    else:
        y, f, s = (each(stem, card.d) for stem in "yfs")
        lines = (("mass", " + ".join(f"most({name}, T({FLOOR!r}))" for name in f)),)
        square = " + ".join(f"({a} - {b})*({a} - {b})" for a, b in zip(y, f, strict=True))
        loss = f"log_(mass) - ({' + '.join(f'{a}*{b}' for a, b in zip(y, s, strict=True))})"
    found = card.total((square, loss), (2.0, MOST_SCORE), state=one.state, lines=lines)
    if found is None:
        return None
    grids = one._grids(card.scale)
    sums = np.array([fine_wholes(fine, value) for fine, value in zip(grids, found.tolist(), strict=True)])
    return Tables([sums, np.array(_newly_sure(card, one.state))])


def residual_texts(d: int) -> list[str]:
    """Return y - f of every label."""
    return [f"({y} - {f})" for y, f in zip(each("y", d), each("f", d), strict=True)]


def _newly_sure(card: Card, state: State) -> int:
    """Return how many rows became certain that were not at the start."""
    if all(update.geometry == "mirror" for update in state.updates):
        return 0
    end, start = card.at(state), card.at(START)
    arrays = arrays_of(end, "a") | arrays_of(start, "b")
    if card.d == 1:
        new = ["(size(a) > T(1e30)) & (size(b) < T(1e30))"]
    else:
        pairs = zip(each("a", card.d), each("b", card.d), strict=True)
        new = [f"(({a} == T(0)) | ({a} == T(1))) & ({b} > T(0)) & ({b} < T(1))" for a, b in pairs]
    text = " | ".join(f"({one})" for one in new)
    formula = Formula((f"pick({text}, T(1), T(0))",), bounds=(1.0,))
    return round(float(card.device.total(formula, Inputs(card.scale.n, arrays))[0]))


@on_card.register
def _(one: Moved, card: Card) -> int | None:
    after, f = card.at(one.after), each("f", card.d)
    inputs = None if after is None else card.inputs(state=one.before, arrays=arrays_of(after, "e"))
    if inputs is None:
        return None
    other = ["sigmoid(e)"] if card.d == 1 else each("e", card.d)
    text = " | ".join(f"({a} != {b})" for a, b in zip(f, other, strict=True))
    return round(float(card.device.total(Formula((f"pick({text}, T(1), T(0))",), card.lines, (1.0,)), inputs)[0]))


@on_card.register
def _(one: Moments, card: Card) -> Tables | None:
    design, texts = card.coded.design(one.families), weight_texts(one.weights, card.d)
    if design is None or texts is None or card.at(one.state) is None:
        return None
    bounds = [bound_of_text(text) for text in texts]
    found = label_tables(card, design, [f"(yo - o)*{text}" for text in texts], bounds, one.state)
    return to_wholes(card.scale.grid(max(bounds)), found)


def label_tables(
    card: Card, design: Codes, terms: Sequence[str], bounds: Sequence[float], state: State = START, **more: Any
) -> list[FloatArray]:
    """Return the sums of terms of every label, for each distinct code column a table (levels, terms d)."""
    lines = more.pop("lines", ())
    every = []
    for own in card.each_label(state, more.pop("now", None)):
        found = card.tables(design, terms, bounds, **{**own, "lines": (*own["lines"], *lines)}, **more)
        assert found is not None
        every.append(found)
    return [np.stack(tables, axis=2).reshape(len(tables[0]), -1) for tables in zip(*every, strict=True)]


def weight_texts(weights: Sequence[Weight], d: int) -> list[str] | None:
    """Return all weights as formulas; None: one has none."""
    texts = [weight_text(u, d) for u in weights]
    return None if None in texts else [text or "" for text in texts]


@on_card.register
def _(one: Evidence, card: Card) -> Tables | None:
    design, now, d = card.coded.design(one.families), card.at(one.now), card.d
    if design is None or now is None or card.at(one.base) is None:
        return None
    curved = f"most(g*(T(1) - g), T({LEAST_CURVATURE!r}))"
    values = ["(yo - g)", curved, f"w*{curved}"][: 2 if one.is_even else 3]
    factors = [1.0, 1.0, card.scale.most][: len(values)]
    if isinstance(one.weights[0], Cell):
        sums = cell_tables(card, design, one.weights, values, one.base, now)
        ((_, _, grid),) = one._plan(design, card.scale, 1)
        wide = Grid(np.repeat(grid.unit[:: one._size], d))
        return None if sums is None else Tables([wide.wholes(sums * np.repeat(factors, d))])
    texts = ["T(1)", "o"] if one.own else weight_texts(one.weights, d)
    if texts is None:
        return None
    terms = [f"{values[0]}*({u})" for u in texts]
    terms += [f"{value}*({u})*({u})" for value in values[1:] for u in texts]
    sizes = [bound_of_text(u) for u in texts]
    bounds = [*sizes, *[size * size for _ in values[1:] for size in sizes]]
    is_fine = d > 1 or not one.is_even  # noise is no multiple of curvature: both must be exact where they are small
    found = label_tables(card, design, terms, bounds, one.base, now=now, is_fine=is_fine)
    ((_, _, grid),) = one._plan(design, card.scale, d)
    scales = np.repeat(factors, len(texts) * d)
    return to_wholes(grid, [table * scales for table in found])


def cell_tables(
    card: Card,
    design: Codes,
    weights: Sequence[Weight],
    terms: Sequence[str],
    state: State = START,
    now: Any = None,
    **more: Any,
) -> FloatArray | None:
    """Return the sums of terms of every label by member and cell, (m, cells, terms d); None: cells are too many."""
    cells = [u for u in weights if isinstance(u, Cell)]
    listed = listed_cells(cells, card.device.kind)
    if listed is None or design.shape[1] * len(cells) * card.d * len(terms) > MOST_CELL_SUMS:
        return None
    every, after = [], more.pop("lines", ())
    for own in card.each_label(state, now, listed.constants):
        lines = (*own.pop("lines"), *listed.lines, *after)
        sums = card.by_cell(design, terms, [1.0] * len(terms), len(cells) + 1, lines, **own, **more)
        assert sums is not None
        every.append(sums[:, :-1])
    return np.stack(every, axis=3).reshape(*every[0].shape[:2], -1)


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
    design = card.coded.design(one.families)
    held = None if design is None else _held_cells(one, card)
    if design is None or held is None:
        return None
    cells = [Cell(one.width, tuple(index)) for index in held.tolist()]
    sums = cell_tables(card, design, cells, ["(yo - o)"], one.state)
    return None if sums is None else CellSums(held, card.scale.grid().wholes(sums))


def _held_cells(one: CellMoments, card: Card) -> IntArray | None:
    """Return the cells that hold a row, shape (cells, d); None: the grid has too many to be counted."""
    k, d = n_intervals(one.width), card.d
    if k == 1 or k**d > MOST_CELLS:
        return None
    lines = (("cell", grid_text(one.width, d, card.device.kind)),)
    found = card.in_cells(("T(1)",), (1.0,), k**d, lines, state=one.state)
    return None if found is None else np.asarray(np.flatnonzero(found)[:, None] // radix(k, d) % k)


@on_card.register
def _(one: Along, card: Card) -> Farthest | None:
    delta, far, d = card.displaced(one.state, one.terms), reach(one.terms), card.d
    if delta is None:
        return None
    names = each("delta", d)
    slope = " + ".join(f"{name}*{rho}" for name, rho in zip(names, residual_texts(d), strict=True))
    lines, bend = _bend(names, one.geometry)
    more: dict[str, Any] = {"state": one.state, "arrays": arrays_of(delta, "delta"), "lines": lines}
    found = card.total((slope, bend), (2.0 * far, 2.0 * far * far), **more)
    assert found is not None
    every = [Inputs(card.scale.n, {"delta": own}) for own in more["arrays"].values()]
    farthest = max(card.device.largest(Formula(("delta",)), one) for one in every)
    grids = one._grids(card.scale)
    return Farthest(np.array([fine_wholes(g, v) for g, v in zip(grids, found.tolist(), strict=True)]), farthest)


def _bend(names: Sequence[str], geometry: Geometry) -> tuple[Lines, str]:
    """Return lines and a formula of the bend of a displacement."""
    if len(names) == 1:
        return (), "delta*delta" if geometry == "euclidean" else "delta*delta*T(0.25)"
    if geometry == "mirror":
        least = reduce(lambda a, b: f"least({a}, {b})", names)
        return (("range", f"{largest(names)} - {least}"),), "range*range*T(0.25)"
    lines = (("mean", f"({' + '.join(names)})/T({len(names)})"),)
    return lines, " + ".join(f"({name} - mean)*({name} - mean)" for name in names)


@on_card.register
def _(one: Slopes, card: Card) -> Wholes | None:
    delta, d = card.displaced(one.base, one.terms), card.d
    if delta is None or card.at(one.now) is None:
        return None
    steps = [[eta] for eta in one.steps] if d > 1 else [list(one.steps)]  # a kernel of many softmaxes compiles for long
    lines, ahead = softmax_lines([f"s{a} + k[0]*delta{a}" for a in range(d)], card.device.kind) if d > 1 else ((), ())
    falls = [" + ".join(f"delta{a}*({text} - y{a})" for a, text in enumerate(ahead))]
    falls = falls if d > 1 else [f"delta*(sigmoid(s + k[{j}]*delta) - y)" for j in range(len(one.steps))]
    given = {"state": one.now, "arrays": arrays_of(delta, "delta"), "lines": lines}
    found = [card.total(falls, [2.0 * one.most] * len(falls), constants=some, **given) for some in steps]
    fine, every = card.scale.fine(2.0 * one.most), np.concatenate([sums for sums in found if sums is not None])
    return np.stack([fine_wholes(fine, v) for v in every.tolist()], axis=1)


@on_card.register
def _(one: Tries, card: Card) -> Wholes | None:
    delta, d = card.displaced(one.state, one.terms), card.d
    if delta is None or d == 1:
        return None
    lines, ahead = moved(d, "euclidean", card.device.kind, "k[0]*")
    loss = " + ".join(f"(y{a} - {text})*(y{a} - {text})" for a, text in enumerate(ahead))
    given = {"state": one.state, "arrays": arrays_of(delta, "delta"), "lines": lines}
    found = [card.total((loss,), (2.0,), constants=[eta], **given) for eta in one.steps]
    return card.scale.grid(2.0).wholes(np.concatenate([sums for sums in found if sums is not None]))
