"""Smooth weights as formulas: residuals at the points of a grid."""

from __future__ import annotations

import numpy as np

from lowcal.kernels.exact import Tables
from lowcal.rows.card.coded import each
from lowcal.rows.card.passes import fine_wholes, residual_texts, to_wholes
from lowcal.rows.card.rows import Card, on_card
from lowcal.rows.grids import LinePoints, PlacedResiduals


def point_text(f: str, points: int) -> str:
    """Return the number of the nearest point of a grid.

    >>> point_text("f", 1024)
    'whole(near(f*T(1024)))'
    """
    return f"whole(near({f}*T({points})))"


@on_card.register
def _(one: PlacedResiduals, card: Card) -> Tables | None:
    design, d = card.coded.design(one.families), card.d
    if design is None or not isinstance(one.places, LinePoints):
        return None
    if card.at(one.state) is None:
        return None
    points, rho, f = one.places.points, residual_texts(d), each("f", d)
    placed = []
    for own in card.each_label(one.state):
        lines = (*own.pop("lines"), ("cell", point_text("o", points)))
        sums = card.by_cell(design, ["(yo - o)"], [1.0], points + 1, lines, **own)
        assert sums is not None
        placed.append(card.scale.grid().wholes(sums[:, :, 0]))
    near = [f"T({point_text(name, points)})*T({1.0 / points!r})" for name in f]
    steep = 1.0 if d == 1 else 2.0
    price = " + ".join(f"size({r})*size({a} - {b})" for r, a, b in zip(rho, f, near, strict=True))
    half = " + ".join(f"size({r})" for r in rho)
    both, bounds = (f"T({steep})*({price})", f"({half})*T({1.0 / min(d, 2)})"), one._bounds(d)
    tables = card.tables(design, [*both, *rho], bounds.tolist(), state=one.state)
    total = card.total(both, bounds[:2].tolist(), state=one.state)
    if tables is None or total is None:
        return None
    fine = card.scale.fine(float(bounds.max()))
    everyone = np.stack([fine_wholes(fine, value) for value in total.tolist()], axis=1)
    signs = np.zeros(design.shape[1], dtype=np.int64)
    return Tables([np.stack(placed), everyone, signs, *to_wholes(card.scale.grid(bounds), tables)])
