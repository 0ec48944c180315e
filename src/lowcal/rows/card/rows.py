"""The rows of a fit on a device, and how they are visited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, singledispatch
from typing import Any

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.kernels.card.formula import Device, Formula, Inputs
from lowcal.kernels.reference import Codes
from lowcal.kernels.simplex import FloatArray, IntArray, from_scores
from lowcal.rows.base import START, Mask, Pass, Result, Scale, Shard, State, outdated
from lowcal.rows.card.coded import ROW, Coded, flat_on
from lowcal.rows.card.forests import by_columns, displacement, moved
from lowcal.rows.disk import Far
from lowcal.rows.keys import key_of
from lowcal.rows.packing import flatten
from lowcal.rows.updates import Term
from lowcal.subpopulations.asking import Trail
from lowcal.subpopulations.base import Encoded

#: Rows that are brought into this machine's memory at a time.
BLOCK = 1 << 20
#: A column of whole numbers in a range of this size is encoded by a table of all of them.
MOST_VALUES = 1 << 16
#: Sums of so many numbers share a pass: there is room for several copies of them in the shared memory of a block.
MOST_SUMS = 1 << 13
#: The most cells of a grid that are counted on the card.
MOST_CELLS = 64


@singledispatch
def on_card(one: object, card: Card) -> Any | None:  # noqa: ARG001
    """Return the sums of a pass; None: it has no formula, or not for these weights or this class."""
    return None


class Card(Far):
    """Rows of two classes, or with outcomes in [0, 1], on a device.

    `weight` holds weights over the largest one, or None where all rows weigh the same.
    """

    reason = "lie on a card"

    def __init__(self, device: Device, rows: Encoded, z: Any, y: Any, weight: Any | None) -> None:
        self.device, self.y, self.weight, self.d = device, y, weight, 1
        self.coded = Coded(device, rows, len(z))
        self._z: dict[Trail, Any] = {START: z}
        self._displaced: tuple[State, Sequence[Term], Any] | None = None
        n = len(z)
        mass, square = float(n), float(n)
        if weight is not None:
            mass, square = device.total(Formula(("w", "w*w"), bounds=(1.0, 1.0)), Inputs(n, {"w": weight})).tolist()
        self.scale, self.worth = Scale(n, 1.0 / mass), mass * mass / square
        self.is_even = weight is None

    # --- passes ---

    def run(self, one: Pass[Result]) -> Result:
        """Take one pass over all rows: on the card if it has a formula, else block by block."""
        total = on_card(one, self)
        if total is None:
            for first in range(0, self.scale.n, BLOCK):
                found = one(self._shard(first))
                total = found if total is None else total + found
        return one.read(total, self.sample(np.arange(1)), self.scale)

    def _shard(self, first: int) -> Shard:
        part = slice(first, first + BLOCK)
        p, y, weight = (self._near(each, part) for each in (self._z[START], self.y, self.weight))
        return Shard(
            self._rebuilt(part), from_scores(p[:, None]), y[:, None], weight * self.scale.most, self.scale, first
        )

    def _near(self, array: Any | None, part: Any) -> FloatArray:
        """Return numbers of some rows in this machine's memory; None: ones."""
        if array is None:
            return np.ones(len(range(self.scale.n)[part]) if isinstance(part, slice) else len(part))
        return self.device.download(array[part]).astype(np.float64)

    def _rebuilt(self, part: Any) -> Encoded:
        arrays, rebuild = self._flat
        return rebuild(self.device.download(array[part]) for array in arrays)

    @cached_property
    def _flat(self) -> tuple[list[Any], Any]:
        return flat_on(self.coded.rows)

    def inputs(self, design: Codes | None = None, state: State = START, **more: Any) -> Inputs | None:
        """Return what a formula reads: log odds of a state, outcomes, weights, and the code columns of a design."""
        z = self.at(state)
        if z is None:
            return None
        arrays = {"z": z, "y": self.y, **({} if self.weight is None else {"w": self.weight}), **more.pop("arrays", {})}
        columns = [] if design is None else list(design.firsts.values())
        codes = [] if design is None else [design.codes[k] for k in columns]
        levels = [] if design is None else [design.decode[k].shape[0] for k in columns]
        return Inputs(self.scale.n, arrays, codes, levels, **more)

    def terms(self, *texts: str) -> tuple[str, ...]:
        """Return terms with their weight."""
        return texts if self.weight is None else tuple(f"w*({text})" for text in texts)

    def tables(
        self, design: Codes, terms: Sequence[str], bounds: Sequence[float], **more: Any
    ) -> list[FloatArray] | None:
        """Return the sums of terms times weights, for each distinct code column a table (levels, terms)."""
        lines = (*ROW, *more.pop("lines", ()))
        inputs = self.inputs(design, **more)
        if inputs is None:
            return None
        each, size = [], max(1, MOST_SUMS // inputs.size)
        for at in range(0, len(terms), size):
            formula = Formula(self.terms(*terms[at : at + size]), lines, tuple(bounds[at : at + size]))
            each.append(self.device.histogram(formula, inputs)[:, 0])
        found = np.concatenate(each, axis=1) * self.scale.most
        return np.split(found, np.cumsum(inputs.levels)[:-1])

    def total(self, terms: Sequence[str], bounds: Sequence[float], **more: Any) -> FloatArray | None:
        """Return the sums of terms times weights over all rows."""
        inputs = self.inputs(**more)
        if inputs is None:
            return None
        return self.device.total(Formula(self.terms(*terms), ROW, tuple(bounds)), inputs) * self.scale.most

    # --- states ---

    def at(self, state: Trail) -> Any | None:
        """Return the log odds after the updates of a state; None: an update is made of more than look-ups."""
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
        return moved(self.coded, z, state.update)

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
        z, y, weight = (self._near(each, on) for each in (self._z[START], self.y, self.weight))
        return Shard(self._rebuilt(on), from_scores(z[:, None]), y[:, None], weight / weight.sum(), self.scale)

    def part(self, mask: Mask) -> Card:
        """Return some of the rows, numbered anew."""
        n = self.scale.n
        blocks = ((first, mask(first, min(BLOCK, n - first))) for first in range(0, n, BLOCK))
        some = self.device.xp.asarray(np.concatenate([first + np.flatnonzero(inside) for first, inside in blocks]))
        arrays, rebuild = self._flat
        weight = None if self.weight is None else self.device.own(self.weight[some] / self.weight[some].max())
        rows = rebuild(self.device.own(array[some]) for array in arrays)
        return Card(self.device, rows, self.device.own(self._z[START][some]), self.device.own(self.y[some]), weight)

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

    def redrawn(self, state: State, seed: Sequence[int]) -> Card:
        """Return the same rows with outcomes drawn from the predictions of a state."""
        other, z, key = self._copy(), self.at(state), int(key_of(seed))
        if z is None:
            raise InvalidInput("Labels can't be drawn on a card for this class; give the rows in memory.")
        drawn = Formula(("pick(drawn(0, f), T(1), T(0))",), (("f", "sigmoid(z)"),))
        other.y = self.device.rows(drawn, Inputs(self.scale.n, {"z": z}, keys=[key]), np.uint8)
        return other
