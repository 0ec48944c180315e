"""Updates of a single row in plain numbers: what is read of the row, times weights of its prediction, then the move.

The same sums as `Update.__call__` on a table with this row alone, without its cost: arrays of length one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lowcal.kernels.simplex import FloatArray, Geometry, IntArray, move_row
from lowcal.notions.weights import Weight, row_weights
from lowcal.subpopulations.base import Encoder, Family
from lowcal.subpopulations.single_row import CodeRead, MemberRead, Read, Row, RowFacts, reader_of, reads_of

#: The tables of updates that are prepared together hold at most this many numbers.
MOST_NUMBERS = 1 << 22

#: A term of an update: its family, its weights and theta of shape (members, weights, labels).
RowTerm: TypeAlias = tuple[Family, Sequence[Weight], FloatArray]
#: A prediction and a row -> the prediction after all updates.
RowUpdates: TypeAlias = Callable[[list[float], Row], list[float]]


def update_rows(encoder: Encoder, updates: Sequence[tuple[Geometry, Sequence[RowTerm]]]) -> RowUpdates | None:
    """Return the updates as one function of a single row; None if a part can't be read off a row, or is large."""
    read, facts = reader_of(encoder), RowFacts()
    if read is None:
        return None
    steps = []
    for geometry, terms in updates:
        if not terms:  # it changes nothing, not even by rounding
            continue
        sums = _sums(terms, facts)
        if sums is None:
            return None
        steps.append((geometry, sums))
    if sum(each.size for _, sums in steps for each in sums) > MOST_NUMBERS:
        return None
    evaluate = facts.evaluator()

    def run(f: list[float], row: Row) -> list[float]:
        found = evaluate(read(row))
        for geometry, sums in steps:
            delta = [0.0] * len(f)
            for each in sums:
                delta = each.add(delta, f, found)
            f = move_row(f, delta, geometry)
        return f

    return run


class RowLookUp(NamedTuple):
    """Codes of one block: code v of the k-th position has its numbers in row `offset[k] + v` of the table."""

    block: int
    positions: IntArray
    offset: IntArray
    table: FloatArray

    def __call__(self, facts: Sequence[IntArray]) -> FloatArray:
        """Return the sum of the codes' rows."""
        rows = facts[self.block].take(self.positions) + self.offset
        return np.asarray(np.add.reduce(self.table.take(rows, axis=0), axis=0))


class RowProduct(NamedTuple):
    """Members of one block times their factors, shape (members, width)."""

    block: int
    positions: IntArray
    theta: FloatArray

    def __call__(self, facts: Sequence[FloatArray]) -> FloatArray:
        """Return the sum of the factors, each times its member."""
        return np.asarray(np.einsum("k,kw->w", facts[self.block].take(self.positions), self.theta))


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """sum over c, u and labels a of theta[c, u, a] c(x) u(f) e_a, for all terms of an update with the same weights."""

    weights: Callable[[Sequence[float]], Sequence[float]]
    constant: FloatArray
    parts: Sequence[RowLookUp | RowProduct]

    @property
    def size(self) -> int:
        """How many numbers the tables hold."""
        return sum(part[-1].size for part in self.parts)

    def add(self, delta: list[float], f: list[float], facts: Sequence[Any]) -> list[float]:
        """Return the displacement with this sum added to it."""
        total = self.constant
        for part in self.parts:
            total = total + part(facts)
        factors, u, d = total.tolist(), self.weights(f), len(f)
        return [before + sum(map(mul, u, factors[a::d])) for a, before in enumerate(delta)]


def _sums(terms: Sequence[RowTerm], facts: RowFacts) -> list[WeightedSum] | None:
    """Return an update's terms, those of the same weights together; None if a family can't be read off a row."""
    groups: dict[tuple[Weight, ...], list[tuple[Read, FloatArray]]] = {}
    for family, weights, theta in terms:
        reads = reads_of(family, facts)
        if reads is None:
            return None
        pieces = np.split(theta.reshape(len(theta), -1), np.cumsum([read.size for read in reads])[:-1])
        groups.setdefault(tuple(weights), []).extend(zip(reads, pieces, strict=True))
    return [_weighted_sum(weights, reads) for weights, reads in groups.items()]


def _weighted_sum(weights: Sequence[Weight], reads: Sequence[tuple[Read, FloatArray]]) -> WeightedSum:
    """Return the sum over some reads, those of one block together."""
    constant, codes, members = np.zeros(reads[0][1].shape[1]), defaultdict(list), defaultdict(list)
    for read, theta in reads:
        if isinstance(read, CodeRead):
            codes[read.block].append((read.position, read.table.spread(theta)))
        elif isinstance(read, MemberRead):
            members[read.block].append((read.positions, theta))
        else:
            constant += theta[0]
    parts: list[RowLookUp | RowProduct] = []
    for block, found in codes.items():  # the tables one after the other
        tables = [table for _, table in found]
        offset = np.cumsum([0, *(len(table) for table in tables)])[:-1]
        parts.append(RowLookUp(block, np.array([position for position, _ in found]), offset, np.concatenate(tables)))
    for block, listed in members.items():  # the factors one below the other
        positions = np.array([k for places, _ in listed for k in places], dtype=np.intp)
        parts.append(RowProduct(block, positions, np.concatenate([theta for _, theta in listed])))
    return WeightedSum(row_weights(weights), constant, parts)
