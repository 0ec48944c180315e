"""From arrays on a card to rows: checks, the class, encoding; and predictions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.batches import at_row
from lowcal.data.cards import NEEDS_CUPY, ThroughCard, card_columns, is_on_card, read_card
from lowcal.data.errors import InvalidInput, MissingColumn, load_extra, missing_column
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import (
    RANGE_TOLERANCE,
    SUM_TOLERANCE,
    Layout,
    are_names,
    as_numbers,
    check_labels,
    check_length,
    check_weight,
    read_probabilities,
)
from lowcal.kernels.card import cuda
from lowcal.kernels.card.formula import Device, Formula, Inputs, Precision, chances
from lowcal.kernels.simplex import IntArray
from lowcal.rows.base import flatten
from lowcal.rows.card import clipped, smooth, trees  # noqa: F401  (register how a card sums what is asked for)
from lowcal.rows.card.coded import Coded, Lines, Moves, arrays_of, each, own_predictions
from lowcal.rows.card.forests import binned_on, every_value, moved_probabilities
from lowcal.rows.card.rows import BLOCK, STATES, Card, told_when_full
from lowcal.rows.keys import key_of
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

#: The most classes: the predictions of a row are held in registers.
MOST_CLASSES = 16
#: Labels of at most this many rows are listed at once.
SKETCHED = 1 << 16
#: Numbers in single precision tell whole numbers up to this one apart.
MOST_WHOLE = 1 << 24


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
    if weight is not None and not bool((weight > 0).all()):
        kept = device.download(device.xp.flatnonzero(weight > 0))
        columns = {name: rows_of(device, column, kept) for name, column in table.columns.items()}
        y, z, weight = (rows_of(device, one, kept) for one in (y, z, weight))
        z, table = own_predictions(device, z), CardTable(device, columns, len(kept))
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


def sampled(device: Device, seed: int, n: int, size: int) -> IntArray:
    """Return the rows that a class is learned from, as rows in memory choose them: those with the smallest keys."""
    if n <= size:
        return np.arange(n)
    key, bar = int(key_of((seed, SAMPLE_ROWS))), (size + 8.0 * np.sqrt(size) + 8.0) / n
    rows = device.picked("drawn(0, k[0])", Inputs(n, {}, constants=[bar], keys=[key]), 2 * size)
    keys = chances(key, rows)
    return np.asarray(rows[keys < np.partition(keys, size)[size]])


@contextmanager
def as_row(row: int) -> Iterator[None]:
    """Let the error of a row that is checked by itself name its place among all.

    >>> with as_row(77):
    ...     raise InvalidInput("p is nan in row 0.")
    Traceback (most recent call last):
    lowcal.data.errors.InvalidInput: p is nan in row 77.
    """
    try:
        yield
    except InvalidInput as error:
        raise type(error)(re.sub(r"(?<=[Rr]ow )0\b", str(row), str(error))) from error


def doubtful(device: Device, is_good: str, inputs: Inputs, lines: Lines = ()) -> list[int]:
    """Return rows for which a condition does not hold: all of them, or some of very many."""
    rows: list[int] = device.picked(f"({is_good}) == 0", inputs, SKETCHED, lines).tolist()
    return rows


def checked_weight(device: Device, weight: Any) -> Any:
    """Return weights that are finite, none negative, and some positive; a bad one is named."""
    weight = device.own(weight)
    for row in doubtful(device, "(w >= T(0)) & (w < T(1e38))", Inputs(len(weight), {"w": weight})):
        with as_row(row):
            check_weight(device.download(weight[row : row + 1]))
    if float(weight.max()) == 0.0:
        raise InvalidInput("All sample weights are zero. Give at least one row a positive weight.")
    return weight


def checked_labels(device: Device, y: Any) -> Any:
    """Return labels as kernels read them; one that is missing or infinite is named."""
    if not is_number(y):  # names of classes, in this machine's memory
        check_labels(y)
        return y
    y = device.own(y)
    for row in doubtful(device, "size(y) < T(1e38)", Inputs(len(y), {"y": y})) if y.dtype.kind == "f" else ():
        with as_row(row):
            check_labels(device.download(y[row : row + 1]))
    return y


def checked_predictions(device: Device, p: Any) -> Any:
    """Return probabilities as kernels read them: those of the second of two classes, or (d, n) that sum to one.

    One outside [0, 1], or a row that does not sum to one, both but for rounding, is named.
    """
    if p.ndim == 2:
        shares = checked_points(device, p)
        return shares if len(p) > 2 else device.own(shares[1])
    p = device.own(p)
    for row in doubtful(device, is_probability("p"), Inputs(len(p), {"p": p})):
        with as_row(row):
            read_probabilities(device.download(p[row : row + 1]), Layout(2, None))
    return p


def is_probability(name: str) -> str:
    """Return the condition that a number is a probability, up to rounding; the log odds of others are infinite.

    >>> is_probability("p")
    '(p >= T(-1e-06)) & (p <= T(1.000001))'
    """
    return f"({name} >= T({-RANGE_TOLERANCE!r})) & ({name} <= T({1.0 + RANGE_TOLERANCE!r}))"


def read_labels(
    device: Device, y: Any, classes: Sequence[Any] | None, n_classes: int = 2
) -> tuple[Layout, IntArray, Any]:
    """Return the layout of outcomes, the classes that occur, and outcomes: places in a byte, or numbers in [0, 1]."""
    labels = Labels(n_classes)
    if not is_number(y):  # names of classes, in this machine's memory
        names, which = np.unique(y, return_inverse=True)
        labels.add(names, None)
        layout, codes = labels.layout(classes)
        assert layout.classes is not None
        places = np.array([list(layout.classes).index(name) for name in names.tolist()], dtype=np.uint8)
        return layout, codes, device.own(places[which])
    if n_classes > 2:
        return read_classes(device, y, classes, n_classes)
    labels.add(outer_values(device, y), None)
    layout, codes = labels.layout(classes)
    if layout.classes is None:
        return layout, codes, device.own(y.astype(device.kind))
    if y.dtype == np.uint8 and tuple(layout.classes) == (0, 1):
        return layout, codes, y
    return layout, codes, device.own((y == layout.classes[1]).astype(np.uint8))


def checked_points(device: Device, p: Any) -> Any:
    """Return probabilities of all classes, shape (d, n), that sum to one; a row of which they do not is named."""
    d, n = p.shape
    arrays, names = arrays_of(own_predictions(device, device.xp.asarray(p))), each("f", d)
    inside = tuple((f"c{a}", f"least(most({name}, T(0)), T(1))") for a, name in enumerate(names))
    lines = (*inside, ("mass", " + ".join(each("c", d))))
    right = " & ".join([*map(is_probability, names), f"(size(mass - T(1)) <= T({SUM_TOLERANCE!r}))"])
    for row in doubtful(device, right, Inputs(n, arrays), lines):
        with as_row(row):
            read_probabilities(device.download(p[:, row : row + 1].T), Layout(d, None))
    shares = Formula(tuple(f"{name}/mass" for name in each("c", d)), lines)
    return device.columns(shares, Inputs(n, arrays), device.kind)


def outer_values(device: Device, y: Any) -> NDArray[Any]:
    """Return all values of a column of bytes, or the least, the largest and some of those in between."""
    if y.dtype.itemsize == 1:
        counts = device.histogram(Formula(("T(1)",), bounds=(1.0,)), Inputs(len(y), {}, [y.view(np.uint8)], [256]))
        return np.unique(every_value(y.dtype)[counts[:, 0, 0] > 0])
    low, high = float(y.min()), float(y.max())
    others = device.picked("(y != k[0]) & (y != k[1])", Inputs(len(y), {"y": y}, constants=[low, high]), 100)
    return np.append(np.array([low, high]).astype(y.dtype), device.download(y[others]))


def read_classes(device: Device, y: Any, classes: Sequence[Any] | None, n_classes: int) -> tuple[Layout, IntArray, Any]:
    """Return the layout of several classes, those that occur, and the place of every row's class in a byte."""
    labels, (values, keys, y) = Labels(n_classes), distinct_labels(device, y, n_classes)
    labels.add(values, None)
    layout, codes = labels.layout(classes)
    places = [(layout.classes or ()).index(value) for value in values.tolist()]
    text = " + ".join(f"pick(y == k[{j}], k[{len(places) + j}], T(0))" for j in range(len(places)))
    inputs = Inputs(len(y), {"y": y}, constants=[*keys, *places])
    return layout, codes, device.rows(Formula((text,)), inputs, np.uint8)


def distinct_labels(device: Device, y: Any, most: int) -> tuple[NDArray[Any], list[float], Any]:
    """Return the labels that occur (more than `most` of them need not be all), numbers for them, and these numbers.

    Labels of some rows are listed first, then those that are none of them, until there are no others.
    """
    if y.dtype.kind in "ui" and max(int(y.max()), -int(y.min())) >= MOST_WHOLE:
        values, y = device.xp.unique(y, return_inverse=True)
        return device.download(values), list(range(len(values))), device.own(y.astype(np.int32))
    known = np.unique(device.download(y[:: max(1, len(y) // SKETCHED)]))
    others = np.arange(1)
    while len(others) and len(known) <= most:
        text = " & ".join(f"(y != k[{j}])" for j in range(len(known)))
        others = device.picked(text, Inputs(len(y), {"y": y}, constants=known.tolist()), SKETCHED)
        known = np.union1d(known, device.download(y[device.xp.asarray(others)]))
    return known, [float(value) for value in known], y


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


def check_lengths(n: int, columns: Mapping[str, Any], **others: Any) -> None:
    """Refuse lengths that are not that of p."""
    for name, one in {**others, **{f"Column {name!r} of X": column for name, column in columns.items()}}.items():
        check_length(name, len(one), n)


def take_points(X: object, columns: dict[str, Any], p: Any) -> Any:
    """Return p as (n,) for two classes or (l, n) for several, from an array, a column or a list of columns."""
    if are_names(p) and not isinstance(p, str):
        found = [take_role(X, columns, "p", name) for name in p]
    else:
        given = take_role(X, columns, "p", p)
        if given.ndim not in (1, 2):
            raise InvalidInput(f"p must have the shape (n,) or (n, l) for l classes, but its shape is {given.shape}.")
        found = [given] if given.ndim == 1 else list(given.T)
    if len(found) > MOST_CLASSES:
        raise InvalidInput(
            f"p holds {len(found)} classes, but on a card at most {MOST_CLASSES} are fitted; give arrays of NumPy."
        )
    found = [one if one.dtype.kind == "f" else one.astype(np.float32) for one in found]
    if len(found) == 1:
        return found[0]
    return np.stack(found) if isinstance(X, ThroughCard) else read_card(found, "p")


def given_columns(p: Any) -> int:
    """Return how many columns p was given as; 0: it is a single one, or its name."""
    if are_names(p):
        return 0 if isinstance(p, str) else len(p)
    return int(p.shape[1]) if getattr(p, "ndim", 1) == 2 else 0


def columns_of(X: object) -> dict[str, Any]:
    """Return the columns of a table on a card, or of one that passes through, by name."""
    if not isinstance(X, ThroughCard):
        return card_columns(X)
    table = Frame.of(X.table)
    return {name: table.array(name) for name in table.names}


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


def is_number(array: Any) -> bool:
    """Whether an array holds numbers or truth values."""
    return array.dtype.kind in "biuf"


def take_role(X: object, columns: dict[str, Any], role: str, given: Any) -> Any:
    """Return y, p or weights: an array, or the column of that name, which is then no feature."""
    if isinstance(given, str):
        if given not in columns:
            names = ", ".join(map(repr, columns)) or "none"
            raise MissingColumn(f"{role} names the column {given!r}, but X has {names}.")
        found = columns.pop(given)
    elif is_on_card(given):
        if isinstance(X, ThroughCard):
            raise InvalidInput(f"{role} lies on a card, but X is in this machine's memory. Give both in one place.")
        found = read_card(given, role)
    else:
        found = np.asarray(given)
    if not is_number(found) and role != "y":
        found = as_numbers(found, role)
    if isinstance(found, np.ndarray) and is_number(found) and not isinstance(X, ThroughCard):
        found = read_card(found, role)
    if role == "y" and found.shape[1:] == (1,):
        found = found[:, 0]
    if role != "p" and found.ndim != 1:
        raise InvalidInput(f"{role} must have one dimension on a card, but its shape is {found.shape}.")
    return found.astype(np.float32) if found.dtype == np.float16 else found


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
