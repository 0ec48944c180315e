"""Rows that stand for several (`frequency_weight`): in memory, with a class whose groups are sized by all copies."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import Outcomes
from lowcal.kernels.simplex import IntArray
from lowcal.rows.memory import Memory
from lowcal.rows.reading import is_listed, keep_large
from lowcal.subpopulations import Subpopulations, WeakLearner
from lowcal.subpopulations.base import Encoder, check_min_mass
from lowcal.subpopulations.groups import GroupEncoder
from lowcal.subpopulations.union import Union, UnionEncoder


def rows_of_copies(
    subpopulations: Subpopulations, outcomes: Outcomes, table: Frame, copies: IntArray
) -> tuple[Memory, WeakLearner]:
    """Return the rows, and the members of a listed class that are worth min_mass rows, counted as copies."""
    if not is_listed(subpopulations):
        raise InvalidInput(
            f"{subpopulations!r} is learned from single rows, not from rows with a frequency_weight. Use Groups, "
            "Intersections, Memberships or Thresholds, or give one row for each copy."
        )
    least = [_least(part) for part in subpopulations.each()]
    every = _of_any_size(subpopulations).prepare(table, outcomes.weight)
    rows = Memory.of(every.rows, outcomes.p, outcomes.y, outcomes.weight, copies)
    known = keep_large(subpopulations, every, rows, len(copies), least)
    known.left_out = known.left_out._replace(columns=tuple(_silent(every.encoder, set(known.names))))
    return rows, known


def _least(part: Subpopulations) -> float:
    """Return the least mass of a class; one that has none lists members of any size."""
    least = getattr(part, "min_mass", 0.0)
    check_min_mass(least)
    return float(least)


def _of_any_size(subpopulations: Subpopulations) -> Subpopulations:
    """Return the class with members of any size: their copies are counted once rows are encoded."""
    if isinstance(subpopulations, Union):
        return Union(tuple(map(_of_any_size, subpopulations.parts)))
    if _least(subpopulations) == 0.0:
        return subpopulations
    return replace(subpopulations, min_mass=0.0)  # type: ignore[type-var]


def _silent(encoder: Encoder, names: Container[str]) -> list[str]:
    """Return the columns of which no group is large enough to be examined."""
    if isinstance(encoder, UnionEncoder):
        return [column for own in encoder.parts for column in _silent(own, names)]
    if not isinstance(encoder, GroupEncoder):
        return []
    return [own.column for own in encoder.levels if not any(own.name(j) in names for j in range(own.count))]
