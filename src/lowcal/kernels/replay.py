"""Many updates in one pass: each piece of rows goes through all of them while it is in cache.

A scalar Euclidean update on code columns with weights f^j is

    f <- clip(f + sum_j f^j sum_k T_k[code_k, j], 0, 1)

one table look-up for each column: what belongs to the powers of f lies side by side. A list of such updates is a
program: tables, and which of them an update reads. The work of an update on a piece of rows is too small for a call of
its own, so compiled code runs the whole program on each piece. A mirror update adds the same look-ups to the log odds,
which may be read like a power of f; NumPy takes its logarithms and exponentials.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.loops import Masks, MirrorReads, Reads, code_rows, kernels_for, padded
from lowcal.kernels.reference import rows_in_cache
from lowcal.kernels.simplex import FloatArray, IntArray, log_odds_of, of_odds_against, sigmoid_of

#: In place of a power of f: the log odds of f.
LOG_ODDS = -1


@dataclass(frozen=True, eq=False)
class Read:
    """One look-up of an update: f^power times the table's entry for the code of a column."""

    column: int
    power: int
    table: FloatArray


def _masks_of(updates: Sequence[Sequence[Read]]) -> Masks:
    """Find the updates of single groups, unless most groups have one update only and are not worth a mask."""
    groups: dict[tuple[int, bytes], int] = {}
    group, step, power = np.full(len(updates), -1), np.zeros(len(updates)), np.zeros(len(updates), dtype=np.intp)
    for t, update in enumerate(updates):
        moved = update[0].table[update[0].table != 0.0] if len(update) == 1 else np.zeros(0)
        if len(moved) and (moved == moved[0]).all():
            member = (update[0].table != 0.0).astype(np.uint8)
            group[t] = groups.setdefault((update[0].column, member.tobytes()), len(groups))
            step[t], power[t] = moved[0], update[0].power
    if np.count_nonzero(group >= 0) < 2 * len(groups):
        groups, group = {}, np.full(len(updates), -1)
    tables = [np.frombuffer(member, dtype=np.uint8) for _, member in groups]
    column = np.array([k for k, _ in groups], dtype=np.intp)
    return Masks(group, step, power, column, _offsets(tables), np.concatenate([*tables, np.zeros(1, np.uint8)]))


class _InPieces(ABC):
    """Updates that are run on a piece of the rows at a time."""

    def __call__(self, f: FloatArray, codes: Sequence[IntArray]) -> FloatArray:
        """Return the predictions after all updates; `codes` are the columns that the look-ups name."""
        moved = np.empty(len(f))
        for part, here in self.pieces(f, codes):
            moved[part] = here
        return moved

    @abstractmethod
    def pieces(self, f: FloatArray, codes: Sequence[IntArray]) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the predictions after all updates, a piece of the rows at a time."""


@dataclass(frozen=True, eq=False)
class Program(_InPieces):
    """Updates as flat arrays: their look-ups, or their masks.

    >>> twice = Program.of([[Read(0, 0, np.array([0.0, 0.25]))], [Read(0, 1, np.array([1.0, 0.0]))]])
    >>> twice(np.array([0.25, 0.5, 0.75]), [np.array([0, 1, 0])])
    array([0.5 , 0.75, 1.  ])
    """

    reads: Reads
    masks: Masks

    @classmethod
    def of(cls, updates: Sequence[Sequence[Read]]) -> Program:
        """Lay the tables of all updates one after the other, those of one column side by side."""
        masks = _masks_of(updates)
        rest = [update if g < 0 else [] for update, g in zip(updates, masks.group, strict=True)]
        width = [padded(1 + max((read.power for read in update), default=0)) for update in rest]
        every = [_by_column(update, w) for update, w in zip(rest, width, strict=True)]
        tables = [table for update in every for table in update.values()]
        reads = Reads(
            np.cumsum([0, *(len(update) for update in every)]),
            np.array([column for update in every for column in update], dtype=np.intp),
            _offsets(tables),
            np.array([*width, 1], dtype=np.intp),
            np.concatenate([*tables, np.zeros(1)]),
        )
        return cls(reads, masks)

    def pieces(self, f: FloatArray, codes: Sequence[IntArray]) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the predictions after all updates, a piece of the rows at a time."""
        replay = kernels_for(len(f) * (len(self.reads.column) + len(self.masks.group))).replay
        for part in rows_in_cache(len(f), 2):  # predictions, and the codes of a few columns
            here = np.array(f[part])
            replay(here, code_rows(codes, part), self.reads, self.masks)
            yield part, here

    def one(self, f: float, codes: Sequence[int]) -> float:
        """Return the prediction of one row after all updates: the same look-ups, without arrays.

        >>> Program.of([[Read(0, 1, np.array([1.0, 0.0]))]]).one(0.25, [0])
        0.5
        """
        for width, reads in self._listed:
            delta = 0.0
            for column, power, step, table in reads:
                at = width * codes[column]
                factor: float = table[at + width - 1]
                for j in range(at + width - 2, at - 1, -1):
                    factor = factor * f + table[j]
                delta += step * factor * f**power
            f = min(max(f + delta, 0.0), 1.0)
        return f

    @cached_property
    def _listed(self) -> list[tuple[int, list[tuple[int, int, float, memoryview]]]]:
        """The look-ups of every update as plain numbers and views of the tables, which Python reads faster."""
        r, m = self.reads, self.masks
        tables, groups = memoryview(r.tables.data), memoryview(m.tables.data)
        reads = [(k, 0, 1.0, tables[at:]) for k, at in np.column_stack([r.column, r.offset]).tolist()]
        masks = [(k, groups[at:]) for k, at in np.column_stack([m.column, m.offset]).tolist()]
        moves = zip(m.group.tolist(), m.step.tolist(), m.power.tolist(), r.width[:-1].tolist(), strict=True)
        return [
            (width, reads[start:stop]) if g < 0 else (1, [(masks[g][0], power, step, masks[g][1])])
            for (g, step, power, width), (start, stop) in zip(moves, pairwise(r.starts.tolist()), strict=True)
        ]


def _mirror_reads(update: Sequence[Read]) -> MirrorReads:
    """Lay the tables of all columns one after the other, what belongs to the powers side by side."""
    powers = list(dict.fromkeys(read.power for read in update))
    tables: dict[int, FloatArray] = {}
    for read in update:
        table = tables.setdefault(read.column, np.zeros((len(read.table), padded(len(powers)))))
        table[:, powers.index(read.power)] += read.table
    every = list(tables.values())
    laid = np.concatenate([*every, np.zeros((1, padded(len(powers))))])
    return MirrorReads(np.array(powers, dtype=np.intp), np.array(list(tables), dtype=np.intp), _offsets(every), laid)


@dataclass(frozen=True, eq=False)
class MirrorProgram(_InPieces):
    """Scalar mirror updates on code columns: look-ups times powers of f, or times logit f, are added to logit f.

    >>> double = MirrorProgram.of([[Read(0, LOG_ODDS, np.array([0.0, 1.0]))]])
    >>> double(np.array([0.75, 0.75]), [np.array([0, 1])])
    array([0.75, 0.9 ])
    """

    updates: tuple[MirrorReads, ...]

    @classmethod
    def of(cls, updates: Sequence[Sequence[Read]]) -> MirrorProgram:
        """Lay out the tables of every update."""
        return cls(tuple(map(_mirror_reads, updates)))

    def pieces(self, f: FloatArray, codes: Sequence[IntArray]) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the predictions after all updates, a piece of the rows at a time."""
        numbers = max((len(update.powers) * len(update.column) for update in self.updates), default=0)
        kernels = kernels_for(len(f) * numbers)
        for part in rows_in_cache(len(f), 2):  # predictions, and the codes of a few columns
            here, coded = np.ascontiguousarray(f[part]), code_rows(codes, part)
            for u in self.updates:
                z, against = np.empty(len(here)), np.empty(len(here))
                kernels.lay_odds(here, z)
                np.log(z, out=z)
                kernels.bend(z, here, coded, u, against)
                here = of_odds_against(against)
            yield part, here

    def one(self, f: float, codes: Sequence[int]) -> float:
        """Return the prediction of one row after all updates."""
        for reads in self._listed:
            z = score = log_odds_of(f)
            for power, tables in reads:
                factor = 0.0
                for column, table in tables:
                    factor += table[codes[column]]
                score += factor * (z if power == LOG_ODDS else f**power)
            f = sigmoid_of(score)
        return f

    @cached_property
    def _listed(self) -> list[list[tuple[int, list[tuple[int, memoryview]]]]]:
        """The look-ups of every update and power as views of the tables, which Python reads faster."""

        def views(update: MirrorReads, k: int) -> list[tuple[int, memoryview]]:
            table = memoryview(np.ascontiguousarray(update.tables[:, k]).data)
            return [(c, table[at:]) for c, at in zip(update.column.tolist(), update.offset.tolist(), strict=True)]

        return [
            [(power, views(update, k)) for k, power in enumerate(update.powers.tolist())] for update in self.updates
        ]


def _by_column(update: Sequence[Read], width: int) -> dict[int, FloatArray]:
    """Return one flat table for each column that an update reads, `width` numbers for each code."""
    tables: dict[int, FloatArray] = {}
    for read in update:
        table = tables.setdefault(read.column, np.zeros(width * len(read.table)))
        table[read.power :: width] += read.table
    return tables


def _offsets(tables: Sequence[NDArray[np.generic]]) -> IntArray:
    """Return where each table starts when all are laid one after the other."""
    return np.array([0, *accumulate(map(len, tables))][:-1], dtype=np.intp)
