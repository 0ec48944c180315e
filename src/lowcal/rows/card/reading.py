"""From arrays on a card to rows: checks, the class, encoding; and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.cards import card_columns, read_card
from lowcal.data.errors import InvalidInput, MissingColumn
from lowcal.data.files.batches import at_row
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import Layout, check_weight, read_probabilities
from lowcal.kernels.card.cuda import open_device
from lowcal.kernels.card.formula import Device, Formula, Inputs, chances
from lowcal.kernels.simplex import IntArray
from lowcal.rows.card import trees  # noqa: F401  (registers how a card sums what the solver asks for)
from lowcal.rows.card.coded import Coded, Moves
from lowcal.rows.card.forests import binned_on, every_value, moved_probabilities
from lowcal.rows.card.rows import BLOCK, Card
from lowcal.rows.keys import key_of
from lowcal.rows.packing import flatten
from lowcal.rows.reading import (
    SAMPLE_ROWS,
    Labels,
    Roles,
    Survey,
    keep_large,
    learn_sample,
    sample_size,
    wanted_columns,
)
from lowcal.rows.updates import Predictor
from lowcal.subpopulations import Subpopulations, WeakLearner
from lowcal.subpopulations.base import Encoded, Encoder
from lowcal.subpopulations.bins import BinEncoder
from lowcal.subpopulations.groups import GroupEncoder
from lowcal.subpopulations.memberships import Bits, MembershipEncoder
from lowcal.subpopulations.union import UnionEncoder


@dataclass(frozen=True, eq=False)
class CardTable:
    """Columns on a device, by name."""

    device: Device
    columns: Mapping[str, Any]
    n: int

    def near(self, some: Any, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return some rows of these columns in this machine's memory."""
        return {name: self.device.download(self.columns[name][some]) for name in names}

    def encoded(self, encoder: Encoder) -> Encoded:
        """Return the rows as an encoder writes them."""
        if isinstance(encoder, GroupEncoder) and all(self._is_listed(level.column) for level in encoder.levels):
            return self._merged(encoder)
        if isinstance(encoder, UnionEncoder):
            return tuple(map(self.encoded, encoder.parts))
        if isinstance(encoder, BinEncoder) and set(encoder.columns) <= set(self.columns):
            return binned_on(self.device, self.columns, encoder, self.n)
        if isinstance(encoder, MembershipEncoder) and all(map(self._is_byte, encoder.columns)):
            packed = self._packed(encoder)
            if packed is not None:
                return packed
        blocks = []
        for at in range(0, self.n, BLOCK):
            part = slice(at, min(at + BLOCK, self.n))
            names = list(self.columns)
            with at_row(at):
                table = self.near(part, names) if names else np.zeros((part.stop - at, 0))
                blocks.append(flatten(encoder(Frame.of(table))))
        joined = (np.concatenate(each) for each in zip(*(arrays for arrays, _ in blocks), strict=True))
        return blocks[0][1](self.device.upload(array) for array in joined)

    def _is_byte(self, name: str) -> bool:
        return name in self.columns and self.columns[name].dtype in (np.uint8, np.bool_)

    def _packed(self, encoder: MembershipEncoder) -> Bits | None:
        """Return memberships as bits, eight to a byte; None: some are neither 0 nor 1."""
        packed = []
        for start in range(0, len(encoder.columns), 8):
            some = [self.device.own(self.columns[name].view(np.uint8)) for name in encoder.columns[start : start + 8]]
            inputs = Inputs(self.n, {f"m{j}": column for j, column in enumerate(some)})
            if len(self.device.picked(" | ".join(f"(m{j} > T(1))" for j in range(len(some))), inputs, 1)):
                return None
            bits = " + ".join(f"T({1 << j})*m{j}" for j in range(len(some)))
            packed.append(self.device.rows(Formula((bits,)), inputs, np.uint8))
        return Bits(tuple(packed), len(encoder.columns))

    def _is_listed(self, name: str) -> bool:
        """Whether all values that a column's type allows can be listed."""
        kind = self.columns[name].dtype
        return kind.kind in "bui" and kind.itemsize <= 2

    def _merged(self, encoder: GroupEncoder) -> Encoded:
        """Return merged code columns: the levels of all values that a type allows are looked up in tables."""
        merged = []
        for places in encoder.plan:
            levels = [encoder.levels[k] for k in places]
            sizes = encoder.shape(places)
            strides = np.cumprod([1, *sizes[::-1]])[::-1][1:]
            tables, columns = [], []
            for level, stride in zip(levels, strides, strict=True):
                column = self.columns[level.column]
                every = Frame.of({level.column: every_value(column.dtype)})
                tables.append(level.codes(every).astype(np.float64) * stride)
                columns.append(self.device.own(column.view(np.dtype(f"u{column.dtype.itemsize}"))))
            text = "L[0]" if columns else "T(0)"
            inputs = Inputs(
                self.n, {}, columns, [len(t) for t in tables], np.concatenate(tables)[:, None] if tables else None
            )
            merged.append(self.device.rows(Formula((text,)), inputs, np.min_scalar_type(int(np.prod(sizes)))))
        return tuple(merged)


def settle_on_card(
    subpopulations: Subpopulations,
    given: Given,
    classes: Sequence[Any] | None,
    seed: int,
    is_fit: bool,
) -> tuple[Card, WeakLearner, Layout]:
    """Check outcomes and predictions, learn a class from a sample of the rows, and encode all of them on the device."""
    table, y, p, weight = given.table, given.y, given.p, given.weight
    device, roles = table.device, Roles("\0y", ("\0p",), None if weight is None else "\0w")
    if weight is not None:
        weight = checked_weight(weight)
        if not bool((weight > 0).all()):
            kept = device.xp.flatnonzero(weight > 0)
            columns = {name: device.own(column[kept]) for name, column in table.columns.items()}
            table, y, p, weight = CardTable(device, columns, len(kept)), y[kept], p[kept], weight[kept]
    z = checked_odds(device, p)
    layout, codes, outcomes = read_labels(device, y, classes)
    names = list(wanted_columns(subpopulations) or table.columns)
    some = sampled(device, seed, table.n, sample_size(len(names)))
    sample = {**table.near(device.xp.asarray(some), names), "\0p": np.zeros(len(some)), "\0y": np.zeros(len(some))}
    if weight is not None:
        sample["\0w"] = device.download(weight[device.xp.asarray(some)]).astype(np.float64)
    found = Survey(table.n, layout, codes, sample)
    learner = learn_sample(subpopulations, found, roles, is_fit)
    even = (
        None
        if weight is None or bool((weight == weight[0]).all())
        else device.own((weight / weight.max()).astype(device.kind))
    )
    rows = Card(device, table.encoded(learner.encoder), z, outcomes, even)
    return rows, keep_large(subpopulations, learner, rows, found.size), layout


def sampled(device: Device, seed: int, n: int, size: int) -> IntArray:
    """Return the rows that a class is learned from, as rows in memory choose them: those with the smallest keys."""
    if n <= size:
        return np.arange(n)
    key, bar = int(key_of((seed, SAMPLE_ROWS))), (size + 8.0 * np.sqrt(size) + 8.0) / n
    rows = device.picked("drawn(0, k[0])", Inputs(n, {}, constants=[bar], keys=[key]), 2 * size)
    keys = chances(key, rows)
    return np.asarray(rows[keys < np.partition(keys, size)[size]])


def checked_weight(weight: Any) -> Any:
    """Return weights that are finite, none negative, and some positive."""
    low, high = float(weight.min()), float(weight.max())
    check_weight(np.array([low, high]))
    if high == 0.0:
        raise InvalidInput("All sample weights are zero. Give at least one row a positive weight.")
    return weight


def checked_probabilities(device: Device, p: Any) -> Any:
    """Return probabilities as kernels read them; one outside [0, 1] is named."""
    p = device.own(p)
    for row in device.picked("((p >= T(0)) & (p <= T(1))) == 0", Inputs(len(p), {"p": p}), 1).tolist():
        with at_row(row):
            read_probabilities(device.download(p[row : row + 1]), Layout(2, None))
    return p


def checked_odds(device: Device, p: Any) -> Any:
    """Return the log odds of probabilities."""
    p = checked_probabilities(device, p)
    return device.rows(Formula(("logit(p)",)), Inputs(len(p), {"p": p}), device.kind)


def read_labels(device: Device, y: Any, classes: Sequence[Any] | None) -> tuple[Layout, IntArray, Any]:
    """Return the layout of outcomes, the classes that occur, and outcomes: 0 and 1 in a byte, or numbers in [0, 1]."""
    labels, y = Labels(2), device.own(y)
    low, high = float(y.min()), float(y.max())
    others = device.picked("(y != k[0]) & (y != k[1])", Inputs(len(y), {"y": y}, constants=[low, high]), 100)
    labels.add(np.append(np.array([low, high]).astype(y.dtype), device.download(y[others])), None)
    layout, codes = labels.layout(classes)
    if layout.classes is None:
        return layout, codes, device.own(y.astype(device.kind))
    return layout, codes, device.own((y == layout.classes[1]).astype(np.uint8))


@dataclass(frozen=True, eq=False)
class Given:
    """What a user gave on a card: a table, and y, p and weights beside it."""

    table: CardTable
    y: Any
    p: Any
    weight: Any | None


def open_card(y: Any, p: Any, X: object, weight: Any = None) -> Given:
    """Return arrays on a card as rows of two classes; the precision is that of p."""
    columns = {} if X is None else card_columns(X)
    y, p = take_role(columns, "y", y), take_role(columns, "p", p)
    weight = None if weight is None else take_role(columns, "sample_weight", weight)
    if p.ndim == 2 and p.shape[1] == 2:
        p = p[:, 1]
    lengths = {len(each) for each in (y, p, *([] if weight is None else [weight]), *columns.values())}
    if p.ndim != 1 or len(lengths) != 1:
        raise InvalidInput(
            f"On a card p must be one probability a row and everything as long as y, but p has the shape {p.shape} "
            f"and lengths are {sorted(lengths)}. Several classes are fitted in memory: give arrays of NumPy."
        )
    return Given(CardTable(open_device("double" if p.dtype == np.float64 else "single"), columns, len(p)), y, p, weight)


def take_role(columns: dict[str, Any], role: str, given: Any) -> Any:
    """Return y, p or weights: an array, or the column of that name, which is then no feature."""
    if not isinstance(given, str):
        return read_card(given)
    if given not in columns:
        raise MissingColumn(f"{role} names the column {given!r}, but X has {', '.join(map(repr, columns)) or 'none'}.")
    return columns.pop(given)


def predict_on_card(predictor: Predictor, p: Any, X: object) -> Any:
    """Return calibrated probabilities on the device, in the type of p."""
    columns = {} if X is None else card_columns(X)
    given = take_role(columns, "p", p)
    table = CardTable(open_device("double" if given.dtype == np.float64 else "single"), columns, len(given))
    device, last = table.device, len(predictor.updates) - 1
    moved, coded = checked_probabilities(device, given), Coded(device, table.encoded(predictor.encoder), table.n)
    for k, update in enumerate(predictor.updates):
        moves = Moves.of(update.terms, coded)
        if moves is None:
            found = moved_probabilities(coded, checked_probabilities(device, given), predictor.updates)
            return _predict_near(predictor, table, given) if found is None else found.astype(given.dtype, copy=False)
        moved = moves.between(device, moved, update.geometry, k == 0, k == last)
    return moved.astype(given.dtype, copy=False)


def _predict_near(predictor: Predictor, table: CardTable, p: Any) -> Any:
    """Return the same for updates that are made of more than look-ups: block by block in this machine's memory."""
    found = []
    for at in range(0, table.n, BLOCK):
        part = slice(at, at + BLOCK)
        here = Frame.of(table.near(part, list(table.columns)))
        found.append(predictor(table.device.download(p[part]), here))
    return table.device.upload(np.concatenate(found).astype(p.dtype))
