"""Shards of encoded rows, the state of a fit, what a home of rows must be able to do, and rows in memory.

Encoded rows are code columns, matrices, bits, and tuples of these, which are cut, joined and taken apart into arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowcal.kernels.exact import Fine, normalised
from lowcal.kernels.exact import Scale as Scale
from lowcal.kernels.loops import part_of
from lowcal.kernels.reference import Design, Stacked, sample_rows, stack
from lowcal.kernels.simplex import FloatArray, IntArray, scores
from lowcal.rows.keys import MANY_ROWS, copies_inside, draw_labels, draw_shares, uniforms
from lowcal.rows.updates import Term, Update, displacements
from lowcal.subpopulations.base import Encoded, Family, Trail

# --- encoded rows as plain arrays -----------------------------------------------------------------------------

#: Arrays, as they come out of `flatten` -> the rows.
Rebuild = Callable[[Iterator[NDArray[Any]]], Encoded]


def take_rows(rows: Encoded, some: IntArray | slice) -> Encoded:
    """Return some of the rows.

    >>> take_rows((np.array([1, 2, 3]), np.array([4, 5, 6])), np.array([0, 2]))
    (array([1, 3]), array([4, 6]))
    """
    return tuple(take_rows(part, some) for part in rows) if isinstance(rows, tuple) else rows[some]


def join_rows(parts: Sequence[Encoded]) -> Encoded:
    """Return the rows of all parts, one after the other.

    >>> join_rows([(np.array([1]),), (np.array([2]),)])
    (array([1, 2]),)
    """
    first: Any = parts[0]
    if isinstance(first, tuple):
        return tuple(join_rows(list(each)) for each in zip(*parts, strict=True))
    if len({type(part) for part in parts}) > 1:  # bits in one batch, shares in the next
        parts = [part if isinstance(part, np.ndarray) else part.dense() for part in parts]
        return np.concatenate(parts)
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if sparse.issparse(first):
        return sparse.csr_array(sparse.vstack(parts))
    return type(first).join(parts)


def kinds(rows: Encoded) -> Any:
    """Return the kinds of what rows are made of: 0/1 memberships may be packed as bits in one part of the rows alone.

    >>> kinds((np.zeros(2), (np.zeros(2),)))
    ('ndarray', ('ndarray',))
    """
    return tuple(kinds(part) for part in rows) if isinstance(rows, tuple) else type(rows).__name__


def unpack_bits(rows: Encoded) -> Encoded:
    """Return rows with numbers in place of bits."""
    if isinstance(rows, tuple):
        return tuple(unpack_bits(part) for part in rows)
    return rows.dense() if hasattr(rows, "dense") else rows


def flatten(rows: Encoded) -> tuple[list[NDArray[Any]], Rebuild]:
    """Return the arrays that rows are made of, a row for each of theirs, and how they are put together again.

    >>> arrays, rebuild = flatten((np.array([1, 2]), (np.array([3, 4]),)))
    >>> len(arrays), rebuild(iter(arrays))
    (2, (array([1, 2]), (array([3, 4]),)))
    """
    if isinstance(rows, tuple):
        parts = [flatten(part) for part in rows]
        each = [rebuild for _, rebuild in parts]
        return [a for arrays, _ in parts for a in arrays], lambda arrays: tuple(one(arrays) for one in each)
    if isinstance(rows, np.ndarray):
        return [rows], next
    arrays, rebuild = rows.flat()
    return list(arrays), rebuild


# --- states, shards and passes --------------------------------------------------------------------------------


T = TypeVar("T")
Result = TypeVar("Result", covariant=True)

#: How many states a shard keeps predictions of, beside the start.
REMEMBERED = 3
#: The number of designs, log odds and sums of trees that are kept.
DESIGNS = 8
#: This many rows are enough to judge on and for the sums that a few coefficients need. Of fewer no sample is drawn, and
#: they are looked at in the order of what they hold, as sums of floats depend on an order.
FEW_ROWS = 20_000
#: Up to this many rows may be asked for all at once, wherever they live.
MOST_LOCAL = 4 * MANY_ROWS


@dataclass(frozen=True, eq=False)
class State:
    """A predictor on its way: the updates so far, each with the state before it."""

    before: State | None = None
    update: Update | None = None
    n_updates: int = 0
    remembered: int = REMEMBERED

    def advance(self, before: FloatArray | None, shard: Shard) -> FloatArray:
        """Return the predictions of a shard after the update."""
        assert before is not None
        assert self.update is not None
        return self.update(before, shard.rows)

    def then(self, update: Update) -> State:
        """Return the state after one more update."""
        return State(self, update, self.n_updates + 1)

    @property
    def updates(self) -> tuple[Update, ...]:
        """All updates, the first one first."""
        return tuple(state.update for state in self.path() if state.update is not None)

    def path(self) -> list[State]:
        """Return the states from the start to this one."""
        path: list[State] = []
        state: State | None = self
        while state is not None:
            path.append(state)
            state = state.before
        return path[::-1]


#: Before the first update.
START = State()


def outdated(kept: Iterable[Trail], kind: type) -> list[Trail]:
    """Return the oldest steps of a kind, all but the last few that are worth keeping; the start always is."""
    own = [state for state in kept if type(state) is kind and state is not START]
    return own[: max(0, len(own) - own[0].remembered)] if own else []


class Recent(dict[Hashable, tuple[object, Any]]):
    """The last few values that were made, by key; what a value was made of is kept with it, so that ids last."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def once(self, key: Hashable, make: Callable[[], T], of: object = None) -> T:
        """Return the value of a key, which is made at the first call."""
        if key not in self:
            self[key] = of, make()
            if len(self) > self.size:
                del self[next(iter(self))]
        made: T = self[key][1]
        return made


class Shard:
    """A run of encoded rows: predictions at the start, outcomes, and weights that sum to one over all shards.

    `first` is the number of the first row. `copies` is the number of rows that each stands for; None: for itself.
    What a shard remembers is only a cache, replayed when it is lost.
    """

    def __init__(
        self,
        rows: Encoded,
        p: FloatArray,
        y: FloatArray,
        weight: FloatArray,
        scale: Scale,
        first: int = 0,
        copies: IntArray | None = None,
    ) -> None:
        self.rows, self.y, self.weight, self.scale, self.first = rows, y, weight, scale, first
        self.copies, self.unit = copies, unit_of(weight, copies)
        self._p: dict[Trail, FloatArray] = {START: p}
        self._made = Recent(DESIGNS)
        self._displaced: tuple[Trail, Sequence[Term], list[tuple[slice, FloatArray]]] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def at(self, state: Trail) -> FloatArray:
        """Return the predictions after the updates of a state, from the nearest one that is remembered."""
        if state in self._p:
            return self._p[state]
        ahead: list[Trail] = []
        nearest: Trail | None = state
        while nearest is not None and nearest not in self._p:
            ahead.append(nearest)
            nearest = nearest.before
        p = None if nearest is None else self._p[nearest]
        with part_of(len(self), self.scale.n):
            for after in reversed(ahead):
                p = after.advance(p, self)
        assert p is not None
        self.remember(state, p)
        return p

    def remember(self, state: Trail, p: FloatArray) -> None:
        """Keep the predictions of a state; the oldest of its kind but the start are forgotten."""
        self._p[state] = p
        for old in outdated(self._p, type(state)):
            del self._p[old]

    def scores(self, state: State) -> FloatArray:
        """Return the log odds of the predictions, or their logarithms."""
        return self._made.once(state, lambda: scores(self.at(state)))

    def design(self, families: Sequence[Family]) -> Design:
        """Return the memberships in all families; many matrices of a column each, as learners find them, become one."""
        make = lambda: stack(Stacked(tuple(family.design(self.rows) for family in families)).joined())  # noqa: E731
        return self._made.once(tuple(map(id, families)), make, tuple(families))

    def displaced(self, state: State, terms: Sequence[Term]) -> list[tuple[slice, FloatArray]]:
        """Return the displacement of all terms where rows are after a state, in pieces; the last one is kept."""
        kept = self._displaced
        if kept is None or kept[0] is not state or list(map(id, kept[1])) != list(map(id, terms)):
            self._displaced = kept = state, terms, list(displacements(terms, self.at(state), self.rows))
        return kept[2]

    def with_outcomes(self, y: FloatArray) -> Shard:
        """Return the same rows with other outcomes; predictions and designs are shared."""
        other = Shard(self.rows, self._p[START], y, self.weight, self.scale, self.first, self.copies)
        other._p, other._made = self._p, self._made
        return other


class Picked:
    """Some rows of a shard, or all of them in another order: what is computed for the shard is looked up.

    `copies` is the number of a row's copies that are taken; None: all of them.
    """

    def __init__(self, shard: Shard, some: IntArray, copies: IntArray | None = None) -> None:
        self.shard, self.some, self._made = shard, some, Recent(DESIGNS)
        self.y, weight = shard.y[some], shard.weight[some] if copies is None else shard.unit[some] * copies
        self.weight = weight if len(some) == len(shard) and copies is None else weight / weight.sum()
        self.copies = shard.copies[some] if copies is None and shard.copies is not None else copies
        self.unit = unit_of(self.weight, self.copies)

    def __len__(self) -> int:
        return len(self.some)

    def at(self, state: State) -> FloatArray:
        """Return the predictions after the updates of a state."""
        return self._made.once(state, lambda: self.shard.at(state)[self.some])

    def scores(self, state: State) -> FloatArray:
        """Return the log odds of the predictions, or their logarithms."""
        return self._made.once((state, "scores"), lambda: self.shard.scores(state)[self.some])

    def design(self, families: Sequence[Family]) -> Design:
        """Return the memberships in all families."""
        make = lambda: self.shard.design(families).rows(self.some)  # noqa: E731
        return self._made.once(tuple(map(id, families)), make, tuple(families))


def unit_of(weight: FloatArray, copies: IntArray | None) -> FloatArray:
    """Return the weight of a single copy of every row: sums of w^2 over all copies are sums of weight * unit."""
    return weight if copies is None else np.asarray(weight / copies)


#: The number of a first row and of rows -> which of them are meant.
Mask = Callable[[int, int], NDArray[np.bool_]]
#: Rows in this process: a shard, or some rows of one.
Local = Shard | Picked


class Pass(Protocol[Result]):
    """A reduction over the rows, as a value."""

    def __call__(self, shard: Shard) -> Any:
        """Return the sums of a shard: `+` joins those of two, in any order."""
        ...

    def read(self, total: Any, some: Local, scale: Scale) -> Result:
        """Return the result from the sums of all shards; `some` are any of the rows."""
        ...


def order_of(first: FloatArray, others: Callable[[], Sequence[NDArray[Any]]]) -> IntArray:
    """Return an order of rows by predictions, and by others where that is not enough: rows that tie then are alike.

    >>> order_of(np.array([0.2, 0.1, 0.2]), lambda: [np.array([5, 6, 4])])
    array([1, 2, 0])
    """
    # NumPy sorts by counting where numbers have two bytes, and is fast again where little is out of order
    nearly = np.argsort((first * (2**16 - 1)).astype(np.uint16), kind="stable")
    order = nearly[np.argsort(first[nearly], kind="stable")]
    ranked = first[order]
    if (ranked[1:] == ranked[:-1]).any():
        order = np.lexsort([*others(), first])
    return np.asarray(order)


def _contents(rows: Encoded) -> list[NDArray[Any]]:
    """Return what rows hold, column by column."""
    if sparse.issparse(rows):  # a number that sums up a row
        return [rows @ np.random.default_rng(0).random(rows.shape[1])]
    return [column for array in flatten(rows)[0] for column in (array[:, None] if array.ndim == 1 else array).T]


class Rows(ABC):
    """The rows of a fit, wherever they live."""

    #: How many rows there are, and the largest weight.
    scale: Scale
    #: The number of coordinates of a prediction.
    d: int
    #: The effective number of rows, 1 / sum of w^2.
    worth: float
    #: Whether all rows weigh the same.
    is_even: bool
    #: Whether all rows are in memory.
    is_near: bool = True
    #: Scores whose relative difference is smaller are equal but for rounding.
    rounding: float = 1e-12
    #: All rows, if they are in memory in one piece.
    single: Shard | None = None

    @property
    def count(self) -> int:
        """The number of rows, copies included."""
        return self.scale.n

    @cached_property
    def lost(self) -> Recent:
        """The losses of the last states that were asked for."""
        return Recent(REMEMBERED)

    @abstractmethod
    def run(self, one: Pass[Result]) -> Result:
        """Take one pass over all rows."""

    @abstractmethod
    def sample(self, rows: IntArray | None) -> Local:
        """Return rows by their numbers, which increase, with weights that sum to one; None: all of them."""

    def few(self, seed: int | Sequence[int], size: int) -> Local:
        """Return that many rows, drawn by a seed, or all if there are fewer; few rows come in an order of their own."""
        which = sample_rows(self.scale.n, seed, size)
        return self._sorted if which is None and self.scale.n <= FEW_ROWS else self.sample(which)

    @cached_property
    def _sorted(self) -> Local:
        """All rows in the order of their predictions, and where these agree of all that they hold."""
        whole = self.sample(None)
        assert isinstance(whole, Shard)
        p = whole.at(START)
        return Picked(whole, order_of(p[:, 0], lambda: [*p.T[1:], *whole.y.T, whole.weight, *_contents(whole.rows)]))

    @abstractmethod
    def part(self, mask: Mask) -> Rows:
        """Return some of the rows, renumbered, with weights that sum to one."""

    @abstractmethod
    def recoded(self, change: Callable[[Encoded], Encoded]) -> Rows:
        """Return the same rows, encoded otherwise."""

    @abstractmethod
    def redrawn(self, state: State, seed: Sequence[int]) -> Rows:
        """Return the same rows with outcomes drawn from the predictions of a state, by a seed and a row's number."""


# --- rows in memory -------------------------------------------------------------------------------------------


class Memory(Rows):
    """Rows in memory, as one shard."""

    def __init__(self, whole: Shard) -> None:
        self.whole, self.single = whole, whole
        self.scale, self.d = whole.scale, int(whole.y.shape[1])

    @classmethod
    def of(
        cls, rows: Encoded, p: FloatArray, y: FloatArray, weight: FloatArray, copies: IntArray | None = None
    ) -> Memory:
        """Return checked rows; weights sum to one, and are those of all copies of a row."""
        copy = None if copies is None else float(unit_of(weight, copies).max(initial=0.0))
        scale = Scale(len(p), float(weight.max(initial=0.0)), copy)
        return Memory(Shard(rows, p, y, weight, scale, copies=copies))

    @cached_property
    def worth(self) -> float:  # type: ignore[override]
        """The effective number of rows."""
        squares, weight = Fine.of(self.scale.most * self.scale.single, self.scale.n), self.whole.weight
        if not self.is_copied and self.least == self.scale.most:  # the same bits without a look at every row
            return 1.0 / squares.number(self.scale.n * squares.wholes(np.array([self.least**2])))
        return 1.0 / squares.number(squares.wholes(weight * self.whole.unit))

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
        return len(self.whole) if self.whole.copies is None else int(self.whole.copies.sum())

    @cached_property
    def least(self) -> float:
        """The smallest weight."""
        return float(self.whole.weight.min(initial=self.scale.most))

    def run(self, one: Pass[Result]) -> Result:
        """Take one pass over all rows."""
        return one.read(one(self.whole), self.whole, self.scale)

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
        s = self.whole
        return Memory(Shard(change(s.rows), s.at(START), s.y, s.weight, s.scale, s.first, s.copies))

    def redrawn(self, state: State, seed: Sequence[int]) -> Memory:
        """Return the same rows with outcomes drawn from the predictions of a state."""
        whole, p = self.whole, self.whole.at(state)
        if whole.copies is not None:
            return Memory(whole.with_outcomes(draw_shares(p, whole.copies, (*seed, whole.first))))
        return Memory(whole.with_outcomes(draw_labels(p, uniforms(seed, whole.first, len(whole)))))

    def sample(self, rows: IntArray | None) -> Local:
        """Return rows by their numbers, with weights that sum to one; None: all of them."""
        return self.whole if rows is None else Picked(self.whole, rows)

    def few(self, seed: int | Sequence[int], size: int) -> Local:
        """Return that many rows, drawn by a seed, or all if there are fewer; copies are drawn one by one."""
        if not self.is_copied or self.scale.n <= size:
            return super().few(seed, size)
        numbers = sample_rows(self.count, seed, size)
        assert numbers is not None
        assert self.whole.copies is not None
        some, copies = np.unique(np.searchsorted(np.cumsum(self.whole.copies), numbers, "right"), return_counts=True)
        return Picked(self.whole, some, copies)
