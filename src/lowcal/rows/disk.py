"""Rows on disk: encoded once into a temporary file of a few bytes a row, which every pass reads block by block.

A block is in memory at a time, whatever the number of rows. Predictions after an update are kept in files of their own
for the last few states, as `Memory` keeps them, so that a pass need not replay what came before.
"""

from __future__ import annotations

import os
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, BinaryIO, Self, TypeAlias
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import CannotWrite, InvalidInput
from lowcal.data.progress import Passes
from lowcal.kernels.exact import BLOCK, Fine, Scale
from lowcal.kernels.loops import part_of
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.rows.base import (
    DESIGNS,
    MOST_LOCAL,
    REMEMBERED,
    START,
    Local,
    Mask,
    Pass,
    Rebuild,
    Recent,
    Result,
    Rows,
    Shard,
    State,
    flatten,
    join_rows,
    kinds,
    outdated,
    take_rows,
    unpack_bits,
)
from lowcal.rows.keys import draw_labels, uniforms
from lowcal.subpopulations.base import Encoded, Trail
from lowcal.subpopulations.bins import Binned

#: Where an array is in a file, its type and its shape.
Address: TypeAlias = tuple[int, np.dtype[Any], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class RawRows:
    """Encoded rows, predictions, outcomes (labels of several classes as whole numbers) and raw weights."""

    rows: Encoded
    p: FloatArray
    y: NDArray[Any]
    weight: FloatArray | None

    def __len__(self) -> int:
        return len(self.p)

    def take(self, some: IntArray | slice) -> RawRows:
        """Return some of the rows."""
        weight = None if self.weight is None else self.weight[some]
        return RawRows(take_rows(self.rows, some), self.p[some], self.y[some], weight)

    def weights(self, most: float, total: float) -> FloatArray:
        """Return the weights over the largest of all rows, and over a total; rows without any weigh the same."""
        return np.full(len(self), 1.0 / total) if self.weight is None else np.asarray(self.weight / most / total)

    @property
    def nbytes(self) -> int:
        """The memory that the rows take."""
        arrays = [*flatten(self.rows)[0], self.p, self.y, *([] if self.weight is None else [self.weight])]
        return sum(array.nbytes for array in arrays)


def outcomes_of(y: NDArray[Any], d: int) -> FloatArray:
    """Return outcomes of shape (n, d): labels of several classes become indicators."""
    return np.asarray(np.eye(d)[y] if d > 1 else np.asarray(y, dtype=np.float64)[:, None])


def join_raw_rows(chunks: Sequence[RawRows]) -> RawRows:
    """Return the rows of all chunks, one after the other."""
    if len(chunks) == 1:
        return chunks[0]
    weight = [chunk.weight for chunk in chunks if chunk.weight is not None]
    return RawRows(
        join_rows([chunk.rows for chunk in chunks]),
        np.concatenate([chunk.p for chunk in chunks]),
        np.concatenate([chunk.y for chunk in chunks]),
        np.concatenate(weight) if weight else None,
    )


class Scratch:
    """A temporary file of arrays, which goes with the object."""

    def __init__(self) -> None:
        with writing():
            self.file: BinaryIO = tempfile.TemporaryFile(prefix="lowcal-")  # noqa: SIM115
        finalize(self, _close, self.file)

    def write(self, array: NDArray[Any]) -> Address:
        """Write an array at the end; return where it is."""
        with writing():
            at = self.file.seek(0, os.SEEK_END)
            self.file.write(np.ascontiguousarray(array).data)
            self.file.flush()
        return at, array.dtype, array.shape

    def read(self, at: int, kind: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the array at an address."""
        array = np.empty(shape, dtype=kind)
        self.file.seek(at)
        if self.file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:  # type: ignore[attr-defined]
            raise OSError("The temporary file with the encoded rows was cut short.")
        return array


def _close(file: BinaryIO) -> None:
    with suppress(OSError):  # what a full disk did not take is not missed
        file.close()


@contextmanager
def writing() -> Iterator[None]:
    """Report a full disk and similar errors in one sentence."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(
            f"The rows do not fit into memory, and their temporary file in {tempfile.gettempdir()} can't be written "
            f"({error.strerror or error}); free space there, or set TMPDIR to a folder with more."
        ) from error


class Spill:
    """A temporary file of blocks: rows come in chunks of any size and are read in blocks of `BLOCK` rows."""

    def __init__(self) -> None:
        self.file = Scratch()
        self.n, self.most, self.least = 0, 0.0, np.inf
        #: Of each block the number of its first row, the addresses of its arrays, and how these make rows again.
        self.index: list[tuple[int, list[Address], Rebuild]] = []
        self._waiting: list[RawRows] = []
        self.has_weight = False
        self.kinds: set[Any] = set()

    def add(self, chunk: RawRows) -> None:
        """Add rows."""
        self.has_weight = chunk.weight is not None
        if chunk.weight is not None and len(chunk):
            self.most = max(self.most, float(chunk.weight.max()))
            self.least = min(self.least, float(chunk.weight.min()))
        self._waiting.append(chunk)
        while sum(map(len, self._waiting)) >= BLOCK:
            whole = join_raw_rows(self._waiting)
            self._write(whole.take(slice(0, BLOCK)))
            self._waiting = [whole.take(slice(BLOCK, None))] if len(whole) > BLOCK else []

    def close(self) -> None:
        """Write what is left."""
        if sum(map(len, self._waiting)):
            self._write(join_raw_rows(self._waiting))
        self._waiting = []

    def _write(self, block: RawRows) -> None:
        self.kinds.add(kinds(block.rows))
        encoded, rebuild = flatten(block.rows)
        arrays = [block.p, block.y, *([] if block.weight is None else [block.weight]), *encoded]
        self.index.append((self.n, [self.file.write(array) for array in arrays], rebuild))
        self.n += len(block)

    def read(self, k: int) -> tuple[int, RawRows]:
        """Return the number of the first row of a block, and the block."""
        first, addresses, rebuild = self.index[k]
        arrays = iter([self.file.read(*address) for address in addresses])
        p, y = next(arrays), next(arrays)
        weight = next(arrays) if self.has_weight else None
        return first, RawRows(rebuild(arrays), p, y, weight)

    def recoded(self, change: Callable[[Encoded], Encoded]) -> Spill:
        """Return the same rows, encoded otherwise, in a file of their own: many passes read it as it is."""
        other = Spill()
        for _, block in self.chunks():
            other.add(replace(block, rows=change(block.rows)))
        other.close()
        return other

    def uniform(self) -> Spill:
        """Return the same rows, all of one kind: sums over memberships as bits are others than over numbers."""
        return self if len(self.kinds) < 2 else self.recoded(unpack_bits)

    def chunks(self) -> Iterator[tuple[int, RawRows]]:
        """Yield all blocks with the numbers of their first rows."""
        return (self.read(k) for k in range(len(self.index)))

    def total(self) -> float:
        """Return the sum of the weights over the largest."""
        if not self.has_weight:
            return float(self.n)
        fine = Fine.of(1.0, self.n)
        weights = (block.weight for _, block in self.chunks() if block.weight is not None)
        return float(fine.total(np.sum([fine.wholes(weight / self.most) for weight in weights], axis=0)))


class Kept:
    """Numbers of every row by what they belong to, in files: reading them costs less than computing them again."""

    def __init__(self) -> None:
        #: By the id of an owner: the owner, which must outlive its id, a file, and the addresses of parts of the rows.
        self._known: dict[int, tuple[Any, Scratch, dict[Hashable, Address]]] = {}

    def has(self, owner: object, part: Hashable) -> bool:
        """Whether the numbers of a part of the rows are known."""
        return id(owner) in self._known and part in self._known[id(owner)][2]

    def read(self, owner: object, part: Hashable) -> FloatArray:
        """Return the numbers of a part of the rows."""
        _, file, addresses = self._known[id(owner)]
        return file.read(*addresses[part])

    def write(self, owner: object, part: Hashable, numbers: FloatArray) -> None:
        """Keep the numbers of a part of the rows."""
        if id(owner) not in self._known:
            self._known[id(owner)] = owner, Scratch(), {}
        _, file, addresses = self._known[id(owner)]
        addresses[part] = file.write(numbers)

    def value(self, part: Hashable, owner: object, make: Callable[[], Any]) -> Any:
        """Return a value of a part of the rows; floats are kept for the last few owners."""
        if self.has(owner, part):
            return self.read(owner, part)
        value = make()
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            self.write(owner, part, value)
            if len(self._known) > DESIGNS:
                del self._known[next(iter(self._known))]
        return value

    def forget_outdated(self) -> None:
        """Drop all but the last states of each kind."""
        states = [owner for owner, _, _ in self._known.values()]
        for kind in {type(state) for state in states}:
            for old in outdated(states, kind):
                del self._known[id(old)]


def binned_parts(rows: Encoded) -> list[Binned]:
    """Return the bins among the parts of encoded rows."""
    if isinstance(rows, tuple):
        return [one for part in rows for one in binned_parts(part)]
    return [rows] if isinstance(rows, Binned) else []


class SpilledShard(Shard):
    """A block of rows, which finds predictions of earlier passes on disk."""

    kept: Kept

    def at(self, state: Trail) -> FloatArray:
        """Return the predictions after the updates of a state."""
        nearest: Trail | None = state
        while nearest is not None and nearest not in self._p:
            if self.kept.has(nearest, self.first):
                self._p[nearest] = self.kept.read(nearest, self.first)
                break
            nearest = nearest.before
        return super().at(state)

    def keep(self) -> None:
        """Write the predictions that no file holds yet."""
        for state, p in self._p.items():
            if state is not START and not self.kept.has(state, self.first):
                self.kept.write(state, self.first, p)


class Far(Rows):
    """Rows that are not in memory: some of them are gathered by their numbers, and the last few samples kept."""

    is_near = False
    #: Why not all rows can be looked at.
    reason: str

    @cached_property
    def _samples(self) -> Recent:
        return Recent(REMEMBERED)

    @abstractmethod
    def _gather(self, rows: IntArray) -> Shard:
        """Return rows by their numbers, with weights that sum to one."""

    def sample(self, rows: IntArray | None) -> Local:
        """Return rows by their numbers, with weights that sum to one; None: all of them, if they are not too many."""
        if rows is None:
            if self.scale.n > MOST_LOCAL:
                raise InvalidInput(
                    f"This notion or class looks at all {self.scale.n:,} rows at once, and they {self.reason}. Use a "
                    "degree, multiaccuracy or full with Groups, Intersections, Memberships, Thresholds or Trees, or "
                    "give a sample of the rows."
                )
            rows = np.arange(self.scale.n)
        return self._samples.once(rows.tobytes(), partial(self._gather, rows))

    def _copy(self) -> Self:
        """Return the same rows, with none of what was computed from outcomes or codes."""
        other = object.__new__(type(self))
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("lost", "_sorted", "_samples")})
        return other


class Disk(Far):
    """Rows of a spill file."""

    reason = "do not fit into memory (memory=)"

    def __init__(self, spill: Spill, d: int, bar: Passes | None = None) -> None:
        spill = spill.uniform()
        self.spill, self.d, self.bar = spill, d, bar or Passes(False)
        self.total = spill.total()
        self.scale = Scale(spill.n, 1.0 / self.total)
        self.is_even = not spill.has_weight or spill.most - spill.least <= 1e-12 * spill.most
        self.worth = self._worth()
        self.states, self.trees = Kept(), Kept()
        self._redraw: tuple[State, tuple[int, ...]] | None = None

    def _worth(self) -> float:
        squares = Fine.of(self.scale.most**2, self.scale.n)
        each = [squares.wholes(np.square(self._weight(block))) for _, block in self.spill.chunks()]
        return 1.0 / squares.number(np.sum(each, axis=0))

    def _weight(self, block: RawRows) -> FloatArray:
        return block.weights(self.spill.most, self.total)

    def run(self, one: Pass[Result]) -> Result:
        """Take one pass over all rows; predictions of a new state are kept for the next."""
        total: Any = None
        self.bar.start(type(one).__name__.lower(), self.scale.n)
        for k in range(len(self.spill.index)):
            shard = self._shard(k)
            with part_of(len(shard), self.scale.n):
                found = one(shard)
            shard.keep()
            total = found if total is None else total + found
            self.bar.add(len(shard))
        self.bar.close()
        self.states.forget_outdated()
        return one.read(total, self.sample(np.arange(1)), self.scale)

    def _shard(self, k: int) -> SpilledShard:
        first, block = self.spill.read(k)
        shard = SpilledShard(block.rows, block.p, outcomes_of(block.y, self.d), self._weight(block), self.scale, first)
        shard.kept = self.states
        for number, part in enumerate(binned_parts(block.rows)):
            part.store = partial(self.trees.value, (k, number))
        if self._redraw is not None:
            state, seed = self._redraw
            shard.y = draw_labels(shard.at(state), uniforms(seed, first, len(shard)))
        return shard

    def recoded(self, change: Callable[[Encoded], Encoded]) -> Disk:
        """Return the same rows, encoded otherwise."""
        other = self._copy()
        other.spill, other.states, other.trees = self.spill.recoded(change), Kept(), Kept()
        return other

    def redrawn(self, state: State, seed: Sequence[int]) -> Disk:
        """Return the same rows with outcomes drawn from the predictions of a state."""
        other = self._copy()
        other._redraw = state, tuple(seed)
        return other

    def _gather(self, rows: IntArray) -> Shard:
        chunks, outcomes = [], []
        for k, (first, addresses, _) in enumerate(self.spill.index):
            n = addresses[0][2][0]
            here = rows[(rows >= first) & (rows < first + n)] - first
            if len(here):
                chunks.append(self.spill.read(k)[1].take(here))
                outcomes.append(self._shard(k).y[here] if self._redraw else outcomes_of(chunks[-1].y, self.d))
        joined = join_raw_rows(chunks)
        weight = self._weight(joined)
        if len(rows) < self.scale.n:
            weight = weight / weight.sum()
        return Shard(joined.rows, joined.p, np.concatenate(outcomes), weight, self.scale)

    def part(self, mask: Mask) -> Disk:
        """Return some of the rows, copied into a file of their own."""
        spill = Spill()
        for first, block in self.spill.chunks():
            weighted = replace(block, weight=None if block.weight is None else self._weight(block))
            spill.add(weighted.take(np.flatnonzero(mask(first, len(block)))))
        spill.close()
        return Disk(spill, self.d, self.bar)
