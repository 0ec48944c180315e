"""Categories of binned columns in the order of their mean residuals on given rows: one pass over these rows.

Bins and groups do not depend on outcomes and are learned once. The order of categories does, so it is found again
for the rows that a fit, or a fold of it, may look at; the codes of all rows then change places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.exact import Grid, Scale, Tables
from lowcal.kernels.reference import histogram
from lowcal.rows.base import START, Local, Rows, Shard
from lowcal.rows.memory import Memory
from lowcal.subpopulations.base import Encoded, Encoder, WeakLearner
from lowcal.subpopulations.bins import BinEncoder, Binned, can_be_ordered, order_by_sums
from lowcal.subpopulations.growing import shares
from lowcal.subpopulations.levels import Levels
from lowcal.subpopulations.single_row import part_of_rows
from lowcal.subpopulations.union import UnionEncoder


@dataclass(frozen=True)
class Place:
    """A column of bins: in which part of the encoded rows, and where there."""

    part: tuple[int, ...]
    column: int
    levels: Levels


def ordered(learner: WeakLearner, rows: Rows, others: Rows | None = None) -> tuple[WeakLearner, Rows, Rows | None]:
    """Return a class that is learned from rows as it is at the start, on these rows, and other rows encoded alike."""
    places = list(_places(learner.encoder, ()))
    sums = rows.run(CategorySums(tuple(places))) if places else []
    after = [order_by_sums(place.levels, own) for place, own in zip(places, sums, strict=True)]
    moves = [(p, new, codes) for p, (new, codes) in zip(places, after, strict=True) if new is not p.levels]
    change = Reordered(tuple((p.part, p.column, codes) for p, _, codes in moves))
    encoder = _with_levels(learner.encoder, {(p.part, p.column): new for p, new, _ in moves}, ())
    if moves:
        rows, others = rows.recoded(change), None if others is None else others.recoded(change)
    encoded = rows.whole.rows if isinstance(rows, Memory) else None
    weight = rows.whole.weight if isinstance(rows, Memory) else np.ones(1)
    return learner.on(encoder, encoded, weight), rows, others


def _places(encoder: Encoder, part: tuple[int, ...]) -> Iterator[Place]:
    """Yield the columns of categories whose order matters."""
    if isinstance(encoder, UnionEncoder):
        for k, own in enumerate(encoder.parts):
            yield from _places(own, (*part, k))
    if isinstance(encoder, BinEncoder):
        yield from (Place(part, k, levels) for k, levels in enumerate(encoder.levels) if can_be_ordered(levels))


def _with_levels(encoder: Encoder, new: dict[tuple[tuple[int, ...], int], Levels], part: tuple[int, ...]) -> Encoder:
    """Return the encoder with the levels of some columns replaced."""
    if isinstance(encoder, UnionEncoder):
        return UnionEncoder(tuple(_with_levels(own, new, (*part, k)) for k, own in enumerate(encoder.parts)))
    if isinstance(encoder, BinEncoder):
        levels = tuple(new.get((part, k), own) for k, own in enumerate(encoder.levels))
        return replace(encoder, levels=levels)
    return encoder


@dataclass(frozen=True, eq=False)
class Reordered:
    """Encoded rows with other codes in some columns: part of the rows, column, and the new code of each old one."""

    moves: tuple[tuple[tuple[int, ...], int, NDArray[Any]], ...]

    def __call__(self, rows: Encoded) -> Encoded:
        """Return the rows with their new codes."""
        for part in dict.fromkeys(part for part, _, _ in self.moves):
            codes = part_of_rows(rows, part).codes.copy()
            for own, column, new in self.moves:
                if own == part:
                    codes[:, column] = new[codes[:, column]]
            rows = _replaced(rows, part, Binned(codes))
        return rows


def _replaced(rows: Encoded, part: tuple[int, ...], new: Binned) -> Encoded:
    """Return encoded rows with a part replaced."""
    if not part:
        return new
    first, *rest = part
    return tuple(_replaced(own, tuple(rest), new) if k == first else own for k, own in enumerate(rows))


@dataclass(frozen=True, eq=False)
class CategorySums:
    """The sums of w, w^2 and w (y - f) at the start, for every level of some columns; w over the largest weight."""

    places: tuple[Place, ...]

    def __call__(self, shard: Shard) -> Tables:
        """Return the tables of a shard, of shape (levels, 2 + d)."""
        grid, share = Grid.whole(1.0, shard.scale.n), shares(shard)
        terms = np.column_stack([share, np.square(share), share[:, None] * (shard.y - shard.at(START))])
        grid.round(terms)
        codes = (part_of_rows(shard.rows, place.part).codes[:, place.column] for place in self.places)
        return Tables(histogram(own, terms, place.levels.count) for own, place in zip(codes, self.places, strict=True))

    def read(self, total: Tables, some: Local, scale: Scale) -> Tables:
        """Return the tables of all rows."""
        return total
