"""The question to a learner: residuals as functions of a shard, and the rows, which may be anywhere.

A learner that finds its members by sums has a method `ask` and takes passes over the rows. One that needs the matrix of
all residuals is a plain function of it; its rows must be in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from lowcal.kernels.exact import Scale
from lowcal.kernels.simplex import FloatArray, IntArray


class Trail(Protocol):
    """Numbers of every row, computed step by step, each step from the one before; rows keep the last few."""

    @property
    def before(self) -> Trail | None:
        """The step before; None for the first."""

    @property
    def remembered(self) -> int:
        """How many of the last steps rows keep."""

    def advance(self, before: FloatArray | None, shard: Any) -> FloatArray:
        """Return the numbers of a shard from those before, shape (rows, k)."""


class Visited(Protocol):
    """Rows at hand: encoded, with weights that sum to one over all rows."""

    rows: Any
    weight: FloatArray
    scale: Scale

    def at(self, trail: Any) -> FloatArray:
        """Return the numbers of a trail."""


class Source(Protocol):
    """Rows that passes visit, wherever they are."""

    @property
    def scale(self) -> Scale:
        """How many rows there are, and the largest weight."""

    @property
    def single(self) -> Visited | None:
        """All rows, if they are in memory in one piece."""

    def run(self, one: Any) -> Any:
        """Take one pass over all rows."""

    def sample(self, rows: IntArray | None) -> Any:
        """Return rows by their numbers; None: all of them."""


class Residuals(Protocol):
    """Residuals z_i, shape (rows, q), as a value that is called with rows at hand."""

    @property
    def bound(self) -> float:
        """No residual is larger."""

    @property
    def q(self) -> int:
        """How many residuals a row has."""

    @property
    def n_labels(self) -> int:
        """The first residuals are those of this many labels, y - f."""

    def __call__(self, shard: Any) -> FloatArray:
        """Return the residuals of these rows."""

    def follows(self, other: Residuals) -> bool:
        """Whether these are known to be a linear combination of others, without reading any row."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Residuals of some rows, for which a learner is to find members; `part` is the part of the rows that it reads."""

    rows: Source
    residuals: Residuals
    part: tuple[int, ...] = ()

    def of_part(self, index: int) -> Asked:
        """Return the same for one part of a union."""
        return replace(self, part=(*self.part, index))

    def all(self) -> FloatArray:
        """Return the residuals of all rows, which must be in memory."""
        return self.residuals(self.rows.sample(None))


def part_of_rows(rows: Any, part: tuple[int, ...]) -> Any:
    """Return the part of encoded rows that a learner of a union reads.

    >>> part_of_rows((1, (2, 3)), (1, 0))
    2
    """
    for index in part:
        rows = rows[index]
    return rows


class Here:
    """Rows in one piece, as a source of their own; `numbers` are their places among all rows."""

    def __init__(self, rows: Any, weight: FloatArray, numbers: IntArray | slice = slice(None)) -> None:
        self.rows, self.weight, self.numbers = rows, weight, numbers
        self.scale = Scale(len(weight), float(weight.max(initial=0.0)))
        self._known: dict[Trail, FloatArray] = {}

    @property
    def single(self) -> Here:
        """All rows."""
        return self

    def run(self, one: Any) -> Any:
        """Take one pass over all rows."""
        return one.read(one(self), self, self.scale)

    def sample(self, rows: IntArray | None) -> Here:
        """Return rows by their numbers, without their encoding: for residuals."""
        return self if rows is None else Here(None, self.weight[rows], rows)

    def at(self, trail: Trail) -> FloatArray:
        """Return the numbers of a trail; the last ones are remembered."""
        if trail not in self._known:
            before = None if trail.before is None else self.at(trail.before)
            self._known = {trail: trail.advance(before, self)}
        return self._known[trail]


@dataclass(frozen=True, eq=False)
class Given:
    """Residuals that are given for all rows of `Here`."""

    Z: FloatArray
    n_labels: int

    @property
    def bound(self) -> float:
        """No residual is larger."""
        return float(np.abs(self.Z).max(initial=0.0))

    @property
    def q(self) -> int:
        """How many residuals a row has."""
        return int(self.Z.shape[1])

    def __call__(self, shard: Here) -> FloatArray:
        """Return the residuals of these rows."""
        return np.asarray(self.Z[shard.numbers])

    def follows(self, other: Residuals) -> bool:
        """Return False: residuals that are given as numbers are not compared."""
        return False
