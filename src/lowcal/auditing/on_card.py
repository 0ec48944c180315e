"""The sums of an audit as formulas, for rows on a graphics card; see `lowcal.rows.card`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lowcal.auditing import witnesses_on_card  # noqa: F401  (registers sums of witnesses)
from lowcal.auditing.audits import Described
from lowcal.auditing.draws import Redraws
from lowcal.auditing.draws_on_card import believed_text, redrawn_cells, redrawn_classes
from lowcal.auditing.panel import BINS, Bins, Excess, Sizes
from lowcal.auditing.score import SUMMANDS, ConstraintSums
from lowcal.kernels.card.draws import MOST_PLACES_BYTES, PICKED_UNITS, places_bytes
from lowcal.kernels.card.formula import Formula
from lowcal.kernels.exact import Tables, Wholes
from lowcal.kernels.loops import padded
from lowcal.kernels.products import product
from lowcal.kernels.reference import Codes
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.weights import Cell, Weight
from lowcal.rows.base import START
from lowcal.rows.card.coded import ROW, Lines, each
from lowcal.rows.card.passes import cell_tables, fine_wholes, label_tables, residual_texts, to_wholes, weight_texts
from lowcal.rows.card.rows import Answer, Card, on_card
from lowcal.rows.keys import key_of
from lowcal.rows.passes import bound_of
from lowcal.rows.powers import Columns, Plan

#: Draws that share a pass where values are not rounded: each bank of shared memory can hold the sums of two.
DRAWS = 2

#: What each sum of `score.Totals` adds up, by the probability q of a label, or by the residual where there is none.
LABELS = {
    "v": "r",
    "cross": "r",
    "second": "r*r",
    "noise": "h",
    "noise3": "h*skew",
    "square": "h*skew*skew",
    "shift": "h",
    "shift1": "h",
    "shift2": "h*skew",
    "shift3": "h*cube",
    "steep": "size(h*skew)",
    "base": "(q - o)",
    "base2": "(o*o + q*skew)",
    "base3": "(q*cube - o*o*o)",
}
NUMBERS = LABELS | {
    "noise": "r*r",
    "noise3": "r*r*r",
    "square": "r*r*r*r",
    "shift": "r*r",
    "shift1": "r*r",
    "shift2": "r*r*r",
    "shift3": "r*r*r*r",
    "steep": "size(r*r*r)",
    "base": "r",
    "base2": "r*r",
    "base3": "r*r*r",
}


def _by_plan(
    plan: Plan,
    card: Card,
    design: Codes,
    terms: Sequence[tuple[str, int]],
    lines: Lines,
    cells: Sequence[Weight],
) -> Tables | None:
    """Return the sums of terms, each with a power of the weight, as a plan of one group takes them; by cell if any."""
    (group,) = plan.groups
    texts = [text if card.weight is None or order == 1 else f"{'w*' * (order - 1)}{text}" for text, order in terms]
    factors = np.array([card.scale.most ** (order - 1) for _, order in terms for _ in range(card.d)])
    if cells:
        sums = cell_tables(card, design, cells, texts, lines=lines)
        return None if sums is None else Tables([group.columns.grid.wholes(_laid(group.columns, sums * factors))])
    found = label_tables(card, design, texts, [1.0] * len(texts), lines=lines)
    return to_wholes(group.columns.grid, [_laid(group.columns, table * factors) for table in found])


@on_card.register
def _(one: ConstraintSums, card: Card) -> Tables | None:
    is_cells = isinstance(one.weights[0], Cell)
    design, weights = card.coded.design(one.families), ["T(1)"] if is_cells else weight_texts(one.weights, card.d)
    if design is None or weights is None:
        return None
    known = NUMBERS if one.share is None else LABELS
    terms = []
    for name in one.names:
        summand = getattr(SUMMANDS, name)
        own = [text if text == "T(1)" else "*".join([f"({text})"] * summand.power) for text in weights]
        terms += [(f"{known[name]}*{text}", summand.order) for text in own]
    believed = believed_text(one.share, card.d, "o")
    lines: Lines = ("r", "yo - o"), ("q", believed), ("h", "q*(T(1) - q)"), ("skew", "T(1) - T(2)*o")
    lines = *lines, ("cube", "T(1) - T(3)*(o - o*o)")
    plan = one._plan(card.sample(np.arange(1)), card.scale)
    return _by_plan(plan, card, design, terms, lines, one.weights if is_cells else ())


@on_card.register
def _(one: Sizes, card: Card) -> Tables | None:
    design, most = card.coded.design(one.families), card.scale.most
    w = "T(1)" if card.weight is None else "w"
    found = None if design is None else card.tables(design, ["T(1)", "T(1)", w], [1.0] * 3)
    if found is None:
        return None
    (group,) = one._plan(card.sample(np.arange(1)), card.scale).groups
    return to_wholes(group.columns.grid, [_laid(group.columns, table * [1.0, 1.0, most]) for table in found])


@on_card.register
def _(one: Excess, card: Card) -> Wholes | None:
    room = "f*f + (T(1) - f)*(T(1) - f)" if card.d == 1 else " + ".join(f"{f}*{f}" for f in each("f", card.d))
    gap = " + ".join(f"{r}*{r}" for r in residual_texts(card.d))
    e = f"({'T(2)' if card.d == 1 else 'T(1)'}*({gap}) - (T(1) - room))"
    w = "T(1)" if card.weight is None else "w"
    terms = e, "room", f"{w}*{e}", f"{w}*{e}*{e}", w
    inputs = card.inputs()
    assert inputs is not None
    formula = Formula(card.terms(*terms), (*card.lines, ("room", room)), (2.0, 1.0, 2.0, 4.0, 1.0))
    most = card.scale.most
    found = card.device.total(formula, inputs) * np.array([most, most, most**2, most**2, most**2])
    return np.array([fine_wholes(g, v) for g, v in zip(one._grids(card.scale), found.tolist(), strict=True)])


@on_card.register
def _(one: Redraws, card: Card) -> Tables | Answer | None:
    design, texts = card.coded.design(one.families), weight_texts(one.weights, card.d)
    if design is not None and isinstance(one.weights[0], Cell):
        return redrawn_cells(one, card, design)
    if design is None or texts is None:
        return None
    if card.d > 1:
        return redrawn_classes(one, card, design, texts)
    if None in one.draws:
        grid = card.scale.grid(bound_of(one.weights))
        found = card.tables(design, [f"(y - f)*{text}" for text in texts], [1.0] * len(texts))
        return to_wholes(grid, found) if found is not None and len(one.draws) == 1 else None
    keys = [int(key_of((one.seed, int(k or 0)))) for k in one.draws]
    shares = [share for share in one.shares if share is not None]
    if shares and card.device.precision == "single":
        picked = _picked(shares, card, design, texts, keys)
        if picked is not None:
            return picked
    return Tables(_drawn_two_by_two(share, card, design, one.weights, keys) for share in one.shares)


def _picked(
    shares: Sequence[float], card: Card, design: Codes, texts: Sequence[str], keys: Sequence[int]
) -> Answer | None:
    """Return the moments of labels drawn by every key: rows that are picked have the label 1.

    sum (y - q) v = sum over picked rows of v - sum q v, for values v = w u(f), rounded alike in both.
    """
    values = [text if card.weight is None else f"w*({text})" for text in texts]
    chances = {f"q{k}": believed_text(share) for k, share in enumerate(shares)}
    lines, belongs = (*ROW, *chances.items()), members_of_levels(design)
    inputs = card.inputs(design, keys=keys)
    if inputs is None or places_bytes(belongs, inputs.levels) > MOST_PLACES_BYTES:
        return None
    every = card.device.picks(Formula(tuple(values), lines), inputs, belongs, tuple(chances))
    rounded = [text if text == "T(1)" else f"near(({text})*T({PICKED_UNITS!r}))/T({PICKED_UNITS!r})" for text in values]
    terms = tuple(f"{q}*({text})" for q in chances for text in rounded)
    sums = card.device.histogram(Formula(terms, lines, (1.0,) * len(terms)), inputs)[:, 0]
    mean = product(belongs.T.astype(np.float64), sums).reshape(-1, len(shares), len(texts)).transpose(1, 0, 2)
    return Answer(card.scale.most * (every - mean[:, None])[..., None])


def members_of_levels(design: Codes) -> NDArray[np.bool_]:
    """Return which members the levels of all distinct code columns belong to, shape (levels, members)."""
    columns = list(design.firsts)
    sizes = [design.decode[design.firsts[column]].shape[0] for column in columns]
    starts = dict(zip(columns, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    found = np.zeros((sum(sizes), design.shape[1]), dtype=bool)
    member = 0
    for codes, table in zip(design.codes, design.decode, strict=True):
        levels, size = table.shape
        own = slice(starts[id(codes)], starts[id(codes)] + levels)
        found[own, member : member + size] = table.gather(np.eye(levels)).T
        member += size
    return found


def _drawn_two_by_two(
    share: float | None, card: Card, design: Codes, weights: Sequence[Weight], keys: Sequence[int]
) -> Wholes:
    """Return the sums of a few draws in each pass."""
    every, texts = [], weight_texts(weights, 1) or []
    for start in range(0, len(keys), DRAWS):
        some = keys[start : start + DRAWS]
        if share is None:
            drawn = [f"pick(drawn({b}, T(0.5)), f - y, y - f)" for b in range(len(some))]
        else:
            drawn = [f"pick(drawn({b}, q), T(1) - q, -q)" for b in range(len(some))]
        lines = (("q", believed_text(share)), *((f"d{b}", text) for b, text in enumerate(drawn)))
        terms = [f"d{b}*{text}" for b in range(len(some)) for text in texts]
        found = card.tables(design, terms, [1.0] * len(terms), lines=lines, keys=some)
        assert found is not None
        every.append(np.concatenate(found).reshape(-1, len(some), len(texts)).transpose(1, 0, 2))
    sums = np.concatenate(every)
    total = np.zeros((*sums.shape[:2], padded(len(texts))), dtype=np.int64)
    total[:, :, : len(texts)] = card.scale.grid(bound_of(weights)).wholes(sums)
    return total


@on_card.register
def _(one: Described, card: Card) -> Tables | None:
    design = card.coded.design(one.families)
    if design is None:
        return None
    powers = ["*".join(["o"] * j) or "T(1)" for j in range(one.degree + 1)]
    terms = [*powers, *(f"{text}*yo" for text in powers[:-1])]
    found = label_tables(card, design, terms, [1.0] * len(terms))
    (group,) = one._plan(card.sample(np.arange(1)), card.scale).groups
    # one column of the mass, then those of the labels
    tables = [np.concatenate([table[:, :1], table[:, card.d :]], axis=1) for table in found]
    return to_wholes(group.columns.grid, [_laid(group.columns, table) for table in tables])


@on_card.register
def _(one: Bins, card: Card) -> Tables | None:
    design = card.coded.design(one.families)
    if design is None:
        return None
    w, most, tables = "T(1)" if card.weight is None else "w", card.scale.most, Tables()
    (group,) = one._plan(card.sample(np.arange(1)), card.scale).groups
    for a, cuts in enumerate(one.cuts):
        (own,) = [given for k, given in enumerate(card.each_label(START, None, [*cuts.tolist(), 2.0])) if k == a]
        above = " + ".join(["T(0)", *(f"pick(k[{j}] < o, T(1), T(0))" for j in range(len(cuts)))])
        lines = (*own.pop("lines"), ("cell", f"whole({above})"))
        sums = card.by_cell(design, ("T(1)", "o", "yo", w), (1.0,) * 4, BINS, lines, **own)
        assert sums is not None
        tables.append(group.columns.grid.wholes(_laid(group.columns, sums * np.array([1.0, 1.0, 1.0, most]))))
    return tables


def _laid(columns: Columns, table: FloatArray) -> FloatArray:
    """Return sums as columns take them: those of the rest beside them, where there is a second unit."""
    if not columns.is_fine:
        return table
    high = columns.first.floats(columns.first.wholes(table))
    return np.concatenate([high, table - high], axis=-1)
