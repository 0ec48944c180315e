"""The rows of a fit on a device, and how they are visited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, singledispatch, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from lowcal.data.errors import CardFull, InvalidInput
from lowcal.kernels.card.formula import Device, Formula, Inputs
from lowcal.kernels.reference import Codes
from lowcal.kernels.simplex import FloatArray, IntArray, from_scores
from lowcal.rows.base import START, Mask, Pass, Result, Scale, Shard, State, flatten, outdated
from lowcal.rows.card.coded import Coded, Lines, arrays_of, each, flat_on, in_two, own_predictions, row_lines
from lowcal.rows.card.forests import by_columns, displacement, moved
from lowcal.rows.disk import Far, outcomes_of
from lowcal.rows.keys import key_of
from lowcal.rows.updates import Term
from lowcal.subpopulations.base import Encoded, Trail

P = ParamSpec("P")
T = TypeVar("T")

#: Rows that are brought into this machine's memory at a time.
BLOCK = 1 << 20
#: A column of whole numbers in a range of this size is encoded by a table of all of them.
MOST_VALUES = 1 << 16
#: The errors of rounded terms average out over more rows than these; terms of fewer, by not too many levels, are summed
#: in two parts.
FEW_ROWS, FEW_SUMS = 1 << 24, 1 << 20
#: Relative rounding errors of scores in single precision: of 18 bits of a residual, over its standard deviation.
ROUNDING = 2e-5
#: Numbers a row that a fit holds: log odds of a few states, a displacement, weights.
STATES = 6


def told_when_full(work: Callable[P, T]) -> Callable[P, T]:
    """Turn the error of a full card into a sentence."""

    @wraps(work)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except MemoryError as error:
            raise CardFull(
                "The rows, and what is kept of them, do not fit into the card's memory. Give the table from this "
                "machine's memory as lowcal.on_card(table): rows that do not fit then pass through the card in parts."
            ) from error

    return told


class Answer(NamedTuple):
    """What a pass returns, where a card need not return its sums."""

    value: Any


@singledispatch
def on_card(one: object, card: Card) -> Any | None:  # noqa: ARG001
    """Return the sums of a pass; None: it has no formula, or not for these weights or this class."""
    return None


class Card(Far):
    """Rows on a device: of two classes, or with outcomes in [0, 1], or of several classes.

    Predictions `z` are log odds, shape (n,), or the probabilities of several classes, shape (d, n). Then y is the place
    of a class. `weight` holds weights over the largest one, or None where all rows weigh the same.
    """

    reason = "lie on a card"

    def __init__(self, device: Device, rows: Encoded, z: Any, y: Any, weight: Any | None) -> None:
        self.device, self.y, self.weight, self.d = device, y, weight, 1 if z.ndim == 1 else len(z)
        n = z.shape[-1]
        self.coded, self.lines = Coded(device, rows, n), row_lines(self.d)
        self._z: dict[Trail, Any] = {START: z}
        self._displaced: tuple[State, Sequence[Term], Any] | None = None
        mass, square = float(n), float(n)
        if weight is not None:
            mass, square = device.total(Formula(("w", "w*w"), bounds=(1.0, 1.0)), Inputs(n, {"w": weight})).tolist()
        self.scale, self.worth = Scale(n, 1.0 / mass), mass * mass / square
        self.is_even = weight is None
        self.rounding = ROUNDING if device.precision == "single" else Far.rounding

    # --- passes ---

    @told_when_full
    def run(self, one: Pass[Result]) -> Result:
        """Take one pass over all rows: on the card if it has a formula, else block by block."""
        total = on_card(one, self)
        if isinstance(total, Answer):
            return total.value  # type: ignore[no-any-return]
        if total is None:
            for first in range(0, self.scale.n, BLOCK):
                found = one(self._shard(first))
                total = found if total is None else total + found
        return one.read(total, self.sample(np.arange(1)), self.scale)

    def _shard(self, first: int) -> Shard:
        part = slice(first, first + BLOCK)
        weight = self._near(self.weight, part) * self.scale.most
        return Shard(self._rebuilt(part), *self._outcomes(part), weight, self.scale, first)

    def _outcomes(self, part: Any) -> tuple[FloatArray, FloatArray]:
        """Return predictions and outcomes of some rows in this machine's memory."""
        z, y = self._near(self._z[START], part), self._near(self.y, part)
        if self.d == 1:
            return from_scores(z[:, None]), y[:, None]
        return np.ascontiguousarray(z.T), outcomes_of(y.astype(np.intp), self.d)

    def _near(self, array: Any | None, part: Any) -> FloatArray:
        """Return numbers of some rows in this machine's memory; None: ones."""
        if array is None:
            return np.ones(len(range(self.scale.n)[part]) if isinstance(part, slice) else len(part))
        return self.device.download(array[..., part]).astype(np.float64)

    def _rebuilt(self, part: Any) -> Encoded:
        arrays, rebuild = self._flat
        return rebuild(self.device.download(array[part]) for array in arrays)

    @cached_property
    def _flat(self) -> tuple[list[Any], Any]:
        return flat_on(self.coded.rows)

    def inputs(self, design: Codes | None = None, state: State = START, **more: Any) -> Inputs | None:
        """Return what a formula reads: predictions of a state, outcomes, weights, and the code columns of a design."""
        z = self.at(state)
        if z is None:
            return None
        weight = {} if self.weight is None else {"w": self.weight}
        arrays = {**arrays_of(z), "y": self.y, **weight, **more.pop("arrays", {})}
        columns = [] if design is None else list(design.firsts.values())
        codes = [] if design is None else [design.codes[k] for k in columns]
        levels = [] if design is None else [design.decode[k].shape[0] for k in columns]
        bits = [j for j, column in enumerate(codes) if any(column is byte for byte in self.coded.bytes_)]
        return Inputs(self.scale.n, arrays, codes, levels, bits=bits, **more)

    def each_label(
        self, state: State, now: Any = None, constants: Sequence[float] | FloatArray = ()
    ) -> Iterator[dict[str, Any]]:
        """Yield what formulas of a label may use: `o` and `yo`, its prediction and outcome, and `g`, the former `now`.

        The formulas of all labels are the same: one kernel serves them, however many classes there are.
        """
        known: dict[str, Any] = {"state": state, "constants": constants}
        if self.d == 1:
            lines = ("o", "f"), ("yo", "y"), *([] if now is None else [("g", "sigmoid(e)")])
            yield {**known, "arrays": {} if now is None else {"e": now}, "lines": lines}
            return
        z = self.at(state)
        assert z is not None
        own = ("mine", f"k[{len(constants)}]"), ("yo", "pick(y == mine, T(1), T(0))")
        for a in range(self.d):
            arrays = {"o": z[a]} if now is None else {"o": z[a], "g": now[a]}
            yield {**known, "arrays": arrays, "lines": own, "constants": np.append(constants, float(a))}

    def terms(self, *texts: str) -> tuple[str, ...]:
        """Return terms with their weight."""
        return texts if self.weight is None else tuple(f"w*({text})" for text in texts)

    def tables(
        self, design: Codes, terms: Sequence[str], bounds: Sequence[float], **more: Any
    ) -> list[FloatArray] | None:
        """Return the sums of terms times weights, for each distinct code column a table (levels, terms).

        With `is_fine`, and of few rows in single precision, terms are summed in two parts.
        """
        lines, is_fine = more.pop("lines", ()), more.pop("is_fine", False)
        inputs = self.inputs(design, **more)
        if inputs is None:
            return None
        found = self._summed(terms, bounds, lines, inputs, 1, is_fine)[:, 0]
        return np.split(found, np.cumsum(inputs.levels)[:-1])

    def _summed(
        self, terms: Sequence[str], bounds: Sequence[float], lines: Lines, inputs: Inputs, cells: int, is_fine: bool
    ) -> FloatArray:
        """Return the sums of terms times weights by level and cell, shape (levels, cells, terms)."""
        few = self.scale.n <= FEW_ROWS and inputs.size * cells <= FEW_SUMS and self.device.precision == "single"
        some = self.terms(*terms)
        parts, both, units = in_two(some, bounds) if few or is_fine else ((), some, tuple(bounds))
        sums = self.device.histogram(Formula(both, (*self.lines, *lines, *parts), units, cells), inputs)
        return np.asarray(sums.reshape(len(sums), cells, -1, len(some)).sum(axis=2) * self.scale.most)

    def by_cell(
        self, design: Codes, terms: Sequence[str], bounds: Sequence[float], cells: int, lines: Lines, **more: Any
    ) -> FloatArray | None:
        """Return the sums of terms times weights of every member and cell, shape (m, cells, terms)."""
        inputs = self.inputs(design, **more)
        if inputs is None:
            return None
        found = self._summed(terms, bounds, lines, inputs, cells, False)
        by_column = dict(zip(design.firsts, np.split(found, np.cumsum(inputs.levels)[:-1]), strict=True))
        pairs = zip(design.codes, design.decode, strict=True)
        sums = np.concatenate([t.gather(by_column[id(c)].reshape(t.shape[0], -1)) for c, t in pairs])
        return sums.reshape(len(sums), cells, len(terms))

    def in_cells(
        self, terms: Sequence[str], bounds: Sequence[float], cells: int, lines: Lines, **more: Any
    ) -> FloatArray | None:
        """Return the sums of terms times weights of all rows by cell, shape (cells, terms)."""
        inputs = self.inputs(**more)
        if inputs is None:
            return None
        whole = replace(inputs, codes=[self.coded.zeros], levels=[1])
        return np.asarray(self._summed(terms, bounds, lines, whole, cells, False)[0])

    def total(self, terms: Sequence[str], bounds: Sequence[float], **more: Any) -> FloatArray | None:
        """Return the sums of terms times weights over all rows."""
        lines = (*self.lines, *more.pop("lines", ()))
        inputs = self.inputs(**more)
        if inputs is None:
            return None
        return self.device.total(Formula(self.terms(*terms), lines, tuple(bounds)), inputs) * self.scale.most

    # --- states ---

    def at(self, state: Trail) -> Any | None:
        """Return the predictions after the updates of a state; None: an update is made of more than look-ups."""
        if state not in self._z:
            before = self.at(state.before) if isinstance(state, State) and state.before is not None else None
            moved = self._moved(before, state) if isinstance(state, State) and before is not None else None
            if moved is None:
                return None
            self._z[state] = moved
            for old in outdated(self._z, type(state)):
                del self._z[old]
        return self._z[state]

    def _moved(self, z: Any, state: State) -> Any | None:
        assert state.update is not None
        return moved(self.coded, z, state.update) if state.update.terms else z

    def displaced(self, state: State, terms: Sequence[Term]) -> Any | None:
        """Return how far terms move every row from a state; the last answer is kept."""
        kept = self._displaced
        if kept is None or kept[0] is not state or list(map(id, kept[1])) != list(map(id, terms)):
            z = self.at(state)
            delta = None if z is None else displacement(self.coded, z, terms)
            if delta is None:
                return None
            self._displaced = kept = state, terms, delta
        return kept[2]

    # --- other rows ---

    def _gather(self, rows: IntArray) -> Shard:
        on = self.device.xp.asarray(rows)
        weight = self._near(self.weight, on)
        return Shard(self._rebuilt(on), *self._outcomes(on), weight / weight.sum(), self.scale)

    @told_when_full
    def part(self, mask: Mask) -> Card:
        """Return some of the rows, numbered anew."""
        n = self.scale.n
        blocks = ((first, mask(first, min(BLOCK, n - first))) for first in range(0, n, BLOCK))
        some = self.device.xp.asarray(np.concatenate([first + np.flatnonzero(inside) for first, inside in blocks]))
        arrays, rebuild = self._flat
        weight = None if self.weight is None else self.device.own(self.weight[some] / self.weight[some].max())
        rows = rebuild(self.device.own(array[some]) for array in arrays)
        z = own_predictions(self.device, self._z[START][..., some])
        return Card(self.device, rows, z, self.device.own(self.y[some]), weight)

    @told_when_full
    def recoded(self, change: Callable[[Encoded], Encoded]) -> Card:
        """Return the same rows, encoded otherwise."""
        other = self._copy()
        blocks = [
            flatten(by_columns(change(self._rebuilt(slice(at, at + BLOCK))))) for at in range(0, self.scale.n, BLOCK)
        ]
        joined = (np.concatenate(each) for each in zip(*(arrays for arrays, _ in blocks), strict=True))
        rows = blocks[0][1](self.device.upload(array) for array in joined)
        other.coded = Coded(self.device, rows, self.scale.n)
        other._z, other._displaced = {START: self._z[START]}, None
        other.__dict__.pop("_flat", None)
        return other

    @told_when_full
    def redrawn(self, state: State, seed: Sequence[int]) -> Card:
        """Return the same rows with outcomes drawn from the predictions of a state."""
        other, z, key = self._copy(), self.at(state), int(key_of(seed))
        if z is None:
            raise InvalidInput("Labels can't be drawn on a card for this class; give the rows in memory.")
        lines, label = drawn_label(each("f", self.d), 0)
        lines = (("f", "sigmoid(z)"), *lines) if self.d == 1 else lines
        drawn = Inputs(self.scale.n, arrays_of(z), keys=[key])
        other.y = self.device.rows(Formula((label,), lines), drawn, np.uint8)
        return other


def drawn_label(chance: Sequence[str], key: int) -> tuple[Lines, str]:
    """Return lines and the formula of a label that is drawn by a key: 0 or 1 of one chance, or a place, as in memory.

    >>> drawn_label(["f0", "f1", "f2"], 0)[1]
    'pick(drawn(0, below0_0), T(0), T(1)) + pick(drawn(0, below0_1), T(0), T(1))'
    """
    if len(chance) == 1:
        return (), f"pick(drawn({key}, {chance[0]}), T(1), T(0))"
    names = [f"below{key}_{a}" for a in range(len(chance) - 1)]
    sums = [chance[0], *(f"{below} + {q}" for below, q in zip(names, chance[1:], strict=False))]
    lines = tuple(zip(names, sums[: len(names)], strict=True))
    return lines, " + ".join(f"pick(drawn({key}, {name}), T(0), T(1))" for name in names)
