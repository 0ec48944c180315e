"""From arrays on a card to rows: checks, the class, encoding; and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.batches import at_row
from lowcal.data.cards import NEEDS_CUPY, ThroughCard
from lowcal.data.errors import InvalidInput, load_extra, missing_column
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import (
    Layout,
)
from lowcal.kernels.card import cuda
from lowcal.kernels.card.formula import Device, Formula, Inputs, Precision, chances
from lowcal.kernels.simplex import IntArray
from lowcal.rows.base import flatten
from lowcal.rows.card import clipped, smooth, trees  # noqa: F401  (register how a card sums what is asked for)
from lowcal.rows.card.coded import Coded, Moves, own_predictions
from lowcal.rows.card.forests import binned_on, every_value, moved_probabilities
from lowcal.rows.card.inputs import (
    check_lengths,
    checked_labels,
    checked_predictions,
    checked_weight,
    columns_of,
    given_columns,
    is_number,
    read_labels,
    take_points,
    take_role,
)
from lowcal.rows.card.rows import BLOCK, STATES, Card, told_when_full
from lowcal.rows.keys import key_of
from lowcal.rows.reading import (
    SAMPLE_ROWS,
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


def rows_of(device: Device, column: Any, some: IntArray | slice) -> Any:
    """Return some rows of a column, which may be in this machine's memory."""
    is_far = isinstance(some, np.ndarray) and not isinstance(column, np.ndarray)
    return column[..., device.xp.asarray(some) if is_far else some]


@dataclass(frozen=True, eq=False)
class CardTable:
    """Columns on a device, by name."""

    device: Device
    columns: Mapping[str, Any]
    n: int

    def near(self, some: IntArray | slice, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return some rows of these columns in this machine's memory."""
        return {name: self.device.download(rows_of(self.device, self._column(name), some)) for name in names}

    def _column(self, name: str) -> Any:
        if name not in self.columns:
            raise missing_column("X", name, list(self.columns))
        return self.columns[name]

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
        kind = self._column(name).dtype
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


@told_when_full
def settle_on_card(
    subpopulations: Subpopulations,
    given: CardInput,
    classes: Sequence[Any] | None,
    seed: int,
    is_fit: bool,
) -> tuple[Card, WeakLearner, Layout]:
    """Check outcomes and predictions, learn a class from a sample of the rows, and encode all of them on the device."""
    table, y, p, weight = given.table, given.y, given.p, given.weight
    device, roles = table.device, Roles("\0y", ("\0p",), None if weight is None else "\0w")
    if weight is not None:
        weight = checked_weight(device, weight)
    z, y = checked_predictions(device, p), checked_labels(device, y)
    if z.ndim == 1:
        z = device.rows(Formula(("logit(p)",)), Inputs(len(z), {"p": z}), device.kind)
    table, y, z, weight = drop_weightless(table, y, z, weight)
    layout, codes, outcomes = read_labels(device, y, classes, 2 if z.ndim == 1 else len(z))
    names = list(wanted_columns(subpopulations) or table.columns)
    some = sampled(device, seed, table.n, sample_size(len(names)))
    sample = {**table.near(some, names), "\0p": np.zeros(len(some)), "\0y": np.zeros(len(some))}
    if weight is not None:
        sample["\0w"] = device.download(rows_of(device, weight, some)).astype(np.float64)
    found = Survey(table.n, layout, codes, sample)
    learner = learn_sample(subpopulations, found, roles, is_fit)
    even = (
        None
        if weight is None or bool((weight == weight[0]).all())
        else device.own((weight / weight.max()).astype(device.kind))
    )
    rows = Card(device, table.encoded(learner.encoder), z, outcomes, even)
    return rows, keep_large(subpopulations, learner, rows, found.size), layout


def drop_weightless(table: CardTable, y: Any, z: Any, weight: Any) -> tuple[CardTable, Any, Any, Any]:
    """Return what belongs to the rows with weight, as kernels read it."""
    if weight is None or bool((weight > 0).all()):
        return table, y, z, weight
    device = table.device
    kept = device.download(device.xp.flatnonzero(weight > 0))
    columns = {name: rows_of(device, column, kept) for name, column in table.columns.items()}
    y, z, weight = (rows_of(device, one, kept) for one in (y, z, weight))
    y = device.own(y) if is_number(y) else y
    return CardTable(device, columns, len(kept)), y, own_predictions(device, z), weight


def sampled(device: Device, seed: int, n: int, size: int) -> IntArray:
    """Return the rows that a class is learned from, as rows in memory choose them: those with the smallest keys."""
    if n <= size:
        return np.arange(n)
    key, bar = int(key_of((seed, SAMPLE_ROWS))), (size + 8.0 * np.sqrt(size) + 8.0) / n
    rows = device.picked("drawn(0, k[0])", Inputs(n, {}, constants=[bar], keys=[key]), 2 * size)
    keys = chances(key, rows)
    return np.asarray(rows[keys < np.partition(keys, size)[size]])


@dataclass(frozen=True, eq=False)
class CardInput:
    """What a user gave on a card: a table, and y, p and weights beside it."""

    table: CardTable
    y: Any
    p: Any
    weight: Any | None


@told_when_full
def open_card(y: Any, p: Any, X: object, weight: Any = None) -> CardInput:
    """Return rows on a card, or beside one; the precision of arrays there is that of p."""
    columns = {} if X is None else columns_of(X)
    y, p = take_role(X, columns, "y", y), take_points(X, columns, p)
    weight = None if weight is None else take_role(X, columns, "sample_weight", weight)
    n = p.shape[-1]
    if n == 0:
        raise InvalidInput("There are no rows: p is empty.")
    check_lengths(n, columns, **({"y": y} if weight is None else {"y": y, "sample_weight": weight}))
    device = device_for(X, p, columns)
    return CardInput(CardTable(device, columns, n), y, p, weight)


def device_for(X: object, p: Any, columns: Mapping[str, Any]) -> Device:
    """Return the device for a table: rows that do not fit on it pass through."""
    if not isinstance(X, ThroughCard):
        return open_device("double" if p.dtype == np.float64 else "single")
    size = 4 if X.precision == "single" else 8
    coded = sum(column.dtype.itemsize if is_number(column) else 4 for column in columns.values())
    needed = p.shape[-1] * (coded + STATES * size * (1 if p.ndim == 1 else len(p)) + 1)
    return open_device(X.precision, needed, X.memory)


def open_device(precision: Precision, needed: int = 0, memory: int | None = None) -> Device:
    """Return the card that is in use; rows of `needed` bytes that do not fit into its memory pass through."""
    cupy = load_extra("cupy", NEEDS_CUPY)
    try:
        cupy.cuda.runtime.getDevice()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InvalidInput(f"CuPy finds no graphics card that it can use ({error}).") from error
    return cuda.open_device(precision, needed, memory)


@told_when_full
def predict_on_card(predictor: Predictor, p: Any, X: object) -> Any:
    """Return calibrated probabilities on the device, in the type and shape of p."""
    columns = {} if X is None else columns_of(X)
    given = take_points(X, columns, p)
    n_given, n = 2 if given.ndim == 1 else len(given), given.shape[-1]
    if n_given != predictor.layout.n_classes:
        raise InvalidInput(f"p holds {n_given} classes, but the predictor has {predictor.layout.n_classes}.")
    check_lengths(n, columns)
    device, moved = device_for(X, given, columns), given[-1] if given.ndim == n_given == 2 else given
    if n:
        moved = _predict(predictor, CardTable(device, columns, n), checked_predictions(device, given))
    moved = moved.astype(given.dtype, copy=False)
    if n_given > 2:
        moved = device.xp.ascontiguousarray(moved.T)
    elif given_columns(p):
        moved = device.xp.stack([1 - moved, moved][-given_columns(p) :], axis=1)
    return device.download(moved) if isinstance(X, ThroughCard) else moved


def _predict(predictor: Predictor, table: CardTable, p: Any) -> Any:
    device, coded = table.device, Coded(table.device, table.encoded(predictor.encoder), table.n)
    moved, last = p, len(predictor.updates) - 1
    for k, update in enumerate(predictor.updates):
        moves = Moves.of(update.terms, coded)
        if moves is None:
            moved = moved_probabilities(coded, p, predictor.updates)
            return _predict_near(predictor, table, p) if moved is None else moved
        moved = moves.between(device, moved, update.geometry, k == 0, k == last)
    return moved


def _predict_near(predictor: Predictor, table: CardTable, p: Any) -> Any:
    """Return the same for updates that are made of more than look-ups: block by block in this machine's memory."""
    found = []
    for at in range(0, table.n, BLOCK):
        part = slice(at, at + BLOCK)
        here = Frame.of(table.near(part, list(table.columns)))
        found.append(predictor(np.ascontiguousarray(table.device.download(p[..., part]).T), here).T)
    return own_predictions(table.device, table.device.xp.asarray(np.concatenate(found, axis=-1)))
