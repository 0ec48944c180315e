"""y, p and weights of rows on a card: read and checked here once, as `data.inputs` does it in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.cards import ThroughCard, card_columns, is_on_card, read_card
from lowcal.data.errors import InvalidInput, MissingColumn
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
from lowcal.kernels.card.formula import Device, Formula, Inputs
from lowcal.kernels.simplex import IntArray
from lowcal.rows.card.coded import Lines, arrays_of, each, own_predictions
from lowcal.rows.card.forests import every_value
from lowcal.rows.reading import Labels

#: The most classes: the predictions of a row are held in registers.
MOST_CLASSES = 16
#: Labels of at most this many rows are listed at once.
SKETCHED = 1 << 16
#: Numbers in single precision tell whole numbers up to this one apart.
MOST_WHOLE = 1 << 24


# --- what was given --------------------------------------------------------------------------------------------


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


def check_lengths(n: int, columns: Mapping[str, Any], **others: Any) -> None:
    """Refuse lengths that are not that of p."""
    for name, one in {**others, **{f"Column {name!r} of X": column for name, column in columns.items()}}.items():
        check_length(name, len(one), n)


def is_number(array: Any) -> bool:
    """Whether an array holds numbers or truth values."""
    return array.dtype.kind in "biuf"


# --- checks -----------------------------------------------------------------------------------------------------


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


def is_probability(name: str) -> str:
    """Return the condition that a number is a probability, up to rounding; the log odds of others are infinite.

    >>> is_probability("p")
    '(p >= T(-1e-06)) & (p <= T(1.000001))'
    """
    return f"({name} >= T({-RANGE_TOLERANCE!r})) & ({name} <= T({1.0 + RANGE_TOLERANCE!r}))"


# --- labels -----------------------------------------------------------------------------------------------------


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
