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
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.kernels.switch import part_of
from lowcal.rows.base import START, Local, Mask, Pass, Result, Rows, Scale, Shard, State
from lowcal.rows.keys import draw_labels, uniforms
from lowcal.rows.packing import join_rows, take_rows
from lowcal.subpopulations.base import Encoded


class Memory(Rows):
    """Shards of one process."""

    def __init__(self, shards: Sequence[Shard], threads: int = 1) -> None:
        self.shards, self.threads = shards, threads
        self.scale, self.d = shards[0].scale, int(shards[0].y.shape[1])
        self.single = shards[0] if len(shards) == 1 else None

    @classmethod
    def of(cls, rows: Encoded, p: FloatArray, y: FloatArray, weight: FloatArray) -> Memory:
        """Return checked rows as one shard; weights sum to one."""
        return cls([Shard(rows, p, y, weight, Scale(len(p), float(weight.max(initial=0.0))))])

    def split(self, n_shards: int, threads: int = 1) -> Memory:
        """Return the same rows in several shards."""
        whole = self.whole
        edges = np.linspace(0, len(whole), n_shards + 1).astype(np.intp)
        cut = [np.arange(a, b) for a, b in pairwise(edges) if b > a]
        return Memory([take_shard(whole, some) for some in cut], threads)

    @cached_property
    def worth(self) -> float:  # type: ignore[override]
        """The effective number of rows."""
        squares = Fine.of(self.scale.most**2, self.scale.n)
        if self.least == self.scale.most:  # the same bits without a look at every row
            return 1.0 / squares.number(self.scale.n * squares.wholes(np.array([self.least**2])))
        each = [squares.wholes(np.square(shard.weight)) for shard in self.shards]
        return 1.0 / squares.number(np.sum(each, axis=0))

    @cached_property
    def is_even(self) -> bool:  # type: ignore[override]
        """Whether all rows weigh the same."""
        return self.scale.most - self.least <= 1e-12 * self.scale.most

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
        return Shard(rows, p, y, np.concatenate([shard.weight for shard in self.shards]), self.scale)

    def part(self, mask: Mask) -> Memory:
        """Return some of the rows, numbered anew."""
        some = np.flatnonzero(mask(0, self.scale.n))
        whole = self.whole
        weight = normalised(whole.weight[some])
        return Memory.of(take_rows(whole.rows, some), whole.at(START)[some], whole.y[some], weight)

    def recoded(self, change: Callable[[Encoded], Encoded]) -> Memory:
        """Return the same rows, encoded otherwise."""
        each = [Shard(change(s.rows), s.at(START), s.y, s.weight, s.scale, s.first) for s in self.shards]
        return Memory(each, self.threads)

    def redrawn(self, state: State, seed: Sequence[int]) -> Memory:
        """Return the same rows with outcomes drawn from the predictions of a state."""
        return Memory([_redraw(shard, state, seed) for shard in self.shards], self.threads)

    def sample(self, rows: IntArray | None) -> Local:
        """Return rows by their numbers, with weights that sum to one; None: all of them."""
        return self.whole if rows is None else self.whole.take(rows)


def _redraw(shard: Shard, state: State, seed: Sequence[int]) -> Shard:
    return shard.with_outcomes(draw_labels(shard.at(state), uniforms(seed, shard.first, len(shard))))


def take_shard(shard: Shard, some: IntArray) -> Shard:
    """Return some rows as a shard of their own."""
    p, y, weight = shard.at(START)[some], shard.y[some], shard.weight[some]
    return Shard(take_rows(shard.rows, some), p, y, weight, shard.scale, shard.first + int(some[0]))
