"""Rows in memory: one shard, or several that are visited one after the other or by threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np

from lowcal.kernels.exact import Fine, normalised
from lowcal.kernels.loops import part_of
from lowcal.kernels.reference import sample_rows
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.rows.base import START, Local, Mask, Pass, Picked, Result, Rows, Scale, Shard, State, unit_of
from lowcal.rows.keys import copies_inside, draw_labels, draw_shares, uniforms
from lowcal.rows.packing import join_rows, take_rows
from lowcal.subpopulations.base import Encoded


class Memory(Rows):
    """Shards of one process."""

    def __init__(self, shards: Sequence[Shard], threads: int = 1) -> None:
        self.shards, self.threads = shards, threads
        self.scale, self.d = shards[0].scale, int(shards[0].y.shape[1])
        self.single = shards[0] if len(shards) == 1 else None

    @classmethod
    def of(
        cls, rows: Encoded, p: FloatArray, y: FloatArray, weight: FloatArray, copies: IntArray | None = None
    ) -> Memory:
        """Return checked rows as one shard; weights sum to one, and are those of all copies of a row."""
        copy = None if copies is None else float(unit_of(weight, copies).max(initial=0.0))
        scale = Scale(len(p), float(weight.max(initial=0.0)), copy)
        return cls([Shard(rows, p, y, weight, scale, copies=copies)])

    def split(self, n_shards: int, threads: int = 1) -> Memory:
        """Return the same rows in several shards."""
        whole = self.whole
        edges = np.linspace(0, len(whole), n_shards + 1).astype(np.intp)
        cut = [np.arange(a, b) for a, b in pairwise(edges) if b > a]
        return Memory([take_shard(whole, some) for some in cut], threads)

    @cached_property
    def worth(self) -> float:  # type: ignore[override]
        """The effective number of rows."""
        squares = Fine.of(self.scale.most * self.scale.single, self.scale.n)
        if self.is_copied:
            return 1.0 / squares.number(np.sum([squares.wholes(s.weight * s.unit) for s in self.shards], axis=0))
        if self.least == self.scale.most:  # the same bits without a look at every row
            return 1.0 / squares.number(self.scale.n * squares.wholes(np.array([self.least**2])))
        each = [squares.wholes(np.square(shard.weight)) for shard in self.shards]
        return 1.0 / squares.number(np.sum(each, axis=0))

    @cached_property
    def is_even(self) -> bool:  # type: ignore[override]
        """Whether all rows weigh the same."""
        return not self.is_copied and self.scale.most - self.least <= 1e-12 * self.scale.most

    @property
    def is_copied(self) -> bool:
        """Whether rows stand for several."""
        return self.scale.copy is not None

    @cached_property
    def count(self) -> int:
        """The number of rows, copies included."""
        return sum(len(s) if s.copies is None else int(s.copies.sum()) for s in self.shards)

    @cached_property
    def least(self) -> float:
        """The smallest weight."""
        return min(float(shard.weight.min(initial=self.scale.most)) for shard in self.shards)

    def run(self, one: Pass[Result]) -> Result:
        """Take one pass over all rows."""

        if len(self.shards) == 1:
            return one.read(one(self.shards[0]), self.shards[0], self.scale)

        def visit(shard: Shard) -> Any:
            with part_of(len(shard), self.scale.n):
                return one(shard)

        if self.threads == 1:
            total = reduce(add, map(visit, self.shards))
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                total = reduce(add, pool.map(visit, self.shards))
        return one.read(total, self.shards[0], self.scale)

    @cached_property
    def whole(self) -> Shard:
        """All rows as one shard."""
        if len(self.shards) == 1:
            return self.shards[0]
        rows = join_rows([shard.rows for shard in self.shards])
        p, y = (np.concatenate(part) for part in zip(*((s.at(START), s.y) for s in self.shards), strict=True))
        weight = np.concatenate([shard.weight for shard in self.shards])
        copies = [shard.copies for shard in self.shards if shard.copies is not None]
        return Shard(rows, p, y, weight, self.scale, copies=np.concatenate(copies) if copies else None)

    def part(self, mask: Mask) -> Memory:
        """Return some of the rows, renumbered."""
        whole = self.whole
        if whole.copies is None:
            return self.taken(np.flatnonzero(mask(0, self.scale.n)))
        # copies are dealt one by one, as if each were a row: those of a cell are on both sides
        inside = copies_inside(mask, whole.copies)
        some = np.flatnonzero(inside)
        return self._taken(some, whole.unit[some] * inside[some], inside[some])

    def taken(self, some: IntArray) -> Memory:
        """Return the rows of these numbers, with all their copies, renumbered."""
        copies = self.whole.copies
        return self._taken(some, self.whole.weight[some], None if copies is None else copies[some])

    def _taken(self, some: IntArray, weight: FloatArray, copies: IntArray | None) -> Memory:
        whole = self.whole
        rows = take_rows(whole.rows, some)
        return Memory.of(rows, whole.at(START)[some], whole.y[some], normalised(weight), copies)

    def recoded(self, change: Callable[[Encoded], Encoded]) -> Memory:
        """Return the same rows, encoded otherwise."""
        each = [Shard(change(s.rows), s.at(START), s.y, s.weight, s.scale, s.first, s.copies) for s in self.shards]
        return Memory(each, self.threads)

    def redrawn(self, state: State, seed: Sequence[int]) -> Memory:
        """Return the same rows with outcomes drawn from the predictions of a state."""

        def draw(shard: Shard) -> FloatArray:
            p = shard.at(state)
            if shard.copies is not None:
                return draw_shares(p, shard.copies, (*seed, shard.first))
            return draw_labels(p, uniforms(seed, shard.first, len(shard)))

        return Memory([shard.with_outcomes(draw(shard)) for shard in self.shards], self.threads)

    def sample(self, rows: IntArray | None) -> Local:
        """Return rows by their numbers, with weights that sum to one; None: all of them."""
        return self.whole if rows is None else self.whole.take(rows)

    def few(self, seed: int | Sequence[int], size: int) -> Local:
        """Return that many rows, drawn by a seed, or all if there are fewer; copies are drawn one by one."""
        if not self.is_copied or self.scale.n <= size:
            return super().few(seed, size)
        numbers = sample_rows(self.count, seed, size)
        assert numbers is not None
        assert self.whole.copies is not None
        some, copies = np.unique(np.searchsorted(np.cumsum(self.whole.copies), numbers, "right"), return_counts=True)
        return Picked(self.whole, some, copies)


def take_shard(shard: Shard, some: IntArray) -> Shard:
    """Return some rows as a shard of their own."""
    p, y, weight = shard.at(START)[some], shard.y[some], shard.weight[some]
    copies = None if shard.copies is None else shard.copies[some]
    return Shard(take_rows(shard.rows, some), p, y, weight, shard.scale, shard.first + int(some[0]), copies)
