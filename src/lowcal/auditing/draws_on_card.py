"""Labels drawn anew as formulas: those of several classes, and those that smooth weights see on a grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from lowcal.auditing.draws import GridRedraws, Redraws
from lowcal.auditing.panel import GRID
from lowcal.kernels.exact import Tables
from lowcal.kernels.reference import Codes
from lowcal.rows.base import START
from lowcal.rows.card.coded import Lines, each
from lowcal.rows.card.passes import cell_tables, label_tables, to_wholes
from lowcal.rows.card.rows import Card, drawn_label, on_card
from lowcal.rows.card.smooth import point_text
from lowcal.rows.keys import key_of
from lowcal.rows.passes import bound_of

#: Terms of draws that share a pass, and draws on a grid that do.
TERMS, GRIDS = 24, 4


def believed_text(share: float | None, d: int = 1, f: str = "f") -> str:
    """Return the probability that a label is believed to have, as a formula."""
    return f"{f}*T({1.0 - share!r}) + T({share / max(2, d)!r})" if share else f


def _residuals(share: float | None, d: int, numbers: Sequence[int | None]) -> Lines:
    """Return the lines of a label's residuals d0, d1, .. in some draws; None: in the outcomes as they are."""
    lines: Lines = (("q", believed_text(share, d, "o")),)
    if d > 1 and share is not None:
        lines = *lines, *((f"q{a}", believed_text(share, d, f)) for a, f in enumerate(each("f", d)))
    for b, number in enumerate(numbers):
        if number is None or share is None:
            lines = *lines, (f"d{b}", "yo - o" if number is None else f"pick(drawn({b}, T(0.5)), o - yo, yo - o)")
            continue
        below, label = drawn_label(each("q", d), b)
        own = f"pick(label{b} == {'T(1)' if d == 1 else 'mine'}, T(1), T(0)) - q"
        lines = *lines, *below, (f"label{b}", label), (f"d{b}", own)
    return lines


def _batches(one: Redraws | GridRedraws, size: int) -> Iterator[tuple[Sequence[int | None], list[int]]]:
    """Yield some draws at a time, with their keys."""
    for start in range(0, len(one.draws), size):
        some = one.draws[start : start + size]
        yield some, [0 if number is None else int(key_of((one.seed, int(number)))) for number in some]


def redrawn_classes(one: Redraws, card: Card, design: Codes, weights: Sequence[str]) -> Tables:
    """Return the sums of all draws of several classes, one after the other."""
    grid, found, size = card.scale.grid(bound_of(one.weights)), Tables(), max(1, TERMS // len(weights))
    for share, (some, keys) in product(one.shares, _batches(one, size)):
        terms, lines = [f"d{b}*{text}" for b in range(len(some)) for text in weights], _residuals(share, card.d, some)
        tables = label_tables(card, design, terms, [1.0] * len(terms), lines=lines, keys=keys)
        every = [np.split(table, len(some), axis=1) for table in tables]
        for draw in zip(*every, strict=True):
            found += to_wholes(grid, draw)
    return found


def redrawn_cells(one: Redraws, card: Card, design: Codes) -> Tables | None:
    """Return the sums of all draws by cell, one after the other; None: cells are too many."""
    found = Tables()
    for share, (some, keys) in product(one.shares, _batches(one, GRIDS)):
        terms, lines = [f"d{b}" for b in range(len(some))], _residuals(share, card.d, some)
        sums = cell_tables(card, design, one.weights, terms, lines=lines, keys=keys)
        if sums is None:
            return None
        found += np.split(card.scale.grid().wholes(sums), len(some), axis=2)
    return found


@on_card.register
def _(one: GridRedraws, card: Card) -> Tables | None:
    design = card.coded.design(one.families)
    if design is None:
        return None
    found = Tables()
    for some, keys in _batches(one, GRIDS):
        every = []
        for own in card.each_label(START):
            lines = (*own.pop("lines"), *_residuals(one.share, card.d, some), ("cell", point_text("o", GRID)))
            terms = [f"d{b}" for b in range(len(some))]
            sums = card.by_cell(design, terms, [1.0] * len(some), GRID + 1, lines, keys=keys, **own)
            assert sums is not None
            every.append(card.scale.grid().wholes(sums))
        found += list(np.stack(every).transpose(3, 0, 1, 2))
    return found
