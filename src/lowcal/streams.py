"""Encoded that are read batch by batch, as often as needed, and never held whole (scale beyond memory).

A first pass checks the rows, counts them and keeps a seeded random sample, from which levels and cut points are
learned. Every later pass encodes the batches anew: nothing is kept of a row, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.engines.kernels import part_of
from lowcal.errors import InvalidInput
from lowcal.files.batches import Batch, Batches, for_frames, is_arrow_array, join, take, to_numpy
from lowcal.frames import Table as Frame
from lowcal.inputs import (
    Layout,
    check_labels,
    check_two_classes,
    check_weight,
    code_labels,
    find_classes,
    is_fraction,
    read_probabilities,
)
from lowcal.progress import Passes
from lowcal.simplex import FloatArray, IntArray
from lowcal.subpopulations import (
    EVERYONE,
    Groups,
    Intersections,
    Memberships,
    Subpopulations,
    Thresholds,
    Union,
    WeakLearner,
)
from lowcal.subpopulations.base import Family, Encoded, effective_rows, is_enough, require_members
from lowcal.subpopulations.batches import BatchEncoder
from lowcal.subpopulations.serving import columns_of
from lowcal.subpopulations.union import Part

#: Levels, cut points and Gram matrices are learned from a sample of so many rows, or of fewer if columns are many.
SAMPLE_ROWS, SAMPLE_NUMBERS, LEAST_SAMPLE = 1 << 18, 1 << 23, 1 << 15
#: A group must show so many rows in the sample, if the stream is larger, to be counted in the whole stream.
SEEN_ROWS = 3
#: Of labels that are no classes, so many are remembered to be named in an error.
MOST_LABELS = 100

_BINARY = Layout(2, None)


@dataclass(frozen=True)
class Roles:
    """The columns of outcomes, of predictions, and of weights if there are any."""

    y: str
    p: str
    weight: str | None = None

    def __post_init__(self) -> None:
        for role, name in (("y", self.y), ("p", self.p), ("sample_weight", self.weight)):
            given: object = name
            if not isinstance(given, str) and not (role == "sample_weight" and given is None):
                raise InvalidInput(
                    f"{role} must be the name of one column of the stream, but {given!r} was given. For several "
                    "classes, or for arrays, use measure or multicalibrate on rows that fit into memory."
                )
        if len(set(self.columns)) < len(self.columns):
            raise InvalidInput(f"y, p and sample_weight must be different columns, but {self.columns} were given.")

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them."""
        return (self.y, self.p) if self.weight is None else (self.y, self.p, self.weight)


@dataclass(frozen=True, eq=False)
class Survey:
    """What the first pass found: how many rows there are, their weight, the classes, and a sample of the rows."""

    n: int
    weight: float
    layout: Layout
    sample: Batch


def survey(
    batches: Batches, roles: Roles, wanted: Sequence[str] | None, classes: Sequence[Any] | None, seed: int, bar: Passes
) -> Survey:
    """Read all rows once: check outcomes, predictions and weights, and draw the sample.

    `wanted` are the columns of the subpopulations; None: all the others.
    """
    columns = None if wanted is None else tuple(dict.fromkeys([*roles.columns, *wanted]))
    labels, reservoir, n, total = _Labels(), _Reservoir(seed), 0, 0.0
    bar.start("reading")
    for batch in batches.read(columns):
        here = _length(batch)
        with at_row(n):
            batches.require(batch, roles.columns)
            read_probabilities(to_numpy(batch[roles.p]), _BINARY)
            weight = None if roles.weight is None else check_weight(to_numpy(batch[roles.weight]))
            labels.add(batch[roles.y], weight)
        with np.errstate(over="ignore"):  # refused below
            total += float(here) if weight is None else float(weight.sum())
        reservoir.add(batch, here)
        n += here
        bar.add(here)
    bar.close()
    _check_total(n, total, batches.shown)
    return Survey(n, total, labels.layout(classes), reservoir.rows())


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values()))) if batch else 0


def _check_total(n: int, total: float, shown: str) -> None:
    if n == 0:
        raise InvalidInput(f"{shown} holds no rows; give at least one row.")
    if total <= 0.0:
        raise InvalidInput("All sample weights are zero. Give at least one row a positive weight.")
    if not np.isfinite(total):
        raise InvalidInput("The sample weights add up to infinity. Divide them by the largest.")


@contextmanager
def at_row(start: int) -> Iterator[None]:
    """Say of errors with rows of a batch where the batch begins."""
    try:
        yield
    except InvalidInput as error:
        if start == 0:
            raise
        raise type(error)(f"{error} (Encoded are counted within the batch that begins at row {start}.)") from error


# --- outcomes -----------------------------------------------------------------------------------------------


class _Labels:
    """The values of y, as far as they decide which classes there are."""

    def __init__(self) -> None:
        self.found: dict[Any, None] = {}
        self.weighed: dict[Any, None] = {}
        self.is_inside, self.is_between = True, False

    def add(self, column: Any, weight: FloatArray | None) -> None:
        """Add the labels of a batch."""
        values, index = _labels(column)
        if index is None:
            check_labels(values)
            self.is_between |= is_fraction(values)
            self.is_inside &= bool(values.dtype.kind == "f" and ((values >= 0) & (values <= 1)).all())
        else:
            self.is_inside = False
        rows = None if weight is None else weight > 0
        self._remember(self.found, values, index, None)
        self._remember(self.weighed, values, index, rows)

    def _remember(
        self, known: dict[Any, None], values: NDArray[Any], index: IntArray | None, rows: NDArray[np.bool_] | None
    ) -> None:
        if index is not None:
            inside = index if rows is None else index[rows]
            values = values[np.bincount(inside, minlength=len(values)) > 0]
        elif rows is not None:
            values = values[rows]
        for value in _distinct(values)[: MOST_LABELS - len(known)]:
            known.setdefault(value)

    def layout(self, classes: Sequence[Any] | None) -> Layout:
        """Return the layout that these labels have, as if all had been given at once."""
        if classes is None and self.is_inside and self.is_between:
            return _BINARY
        known = find_classes(_array(self.found), 2, classes)
        check_two_classes(np.array([known.index(v) for v in self.weighed if v in known], dtype=np.intp), known)
        return Layout(2, tuple(known))


def _array(values: Mapping[Any, None]) -> NDArray[Any]:
    """Return labels as an array: of numbers if all are."""
    listed = list(values)
    return np.array(listed, dtype=None if all(isinstance(v, int | float) for v in listed) else object)


def _labels(column: Any) -> tuple[NDArray[Any], IntArray | None]:
    """Return labels, or distinct ones and where each row's stands among them: Arrow's text is not decoded by row."""
    if is_arrow_array(column):
        import pyarrow as pa

        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            if coded.null_count:
                check_labels(np.array(column.to_pylist(), dtype=object))
            values = np.array(coded.dictionary.to_pylist(), dtype=object)
            return values, coded.indices.to_numpy().astype(np.intp)
    return to_numpy(column), None


def _distinct(values: NDArray[Any]) -> list[Any]:
    """Return distinct labels; those that are 0 and 1 are found without sorting."""
    if values.dtype.kind in "biuf":
        ones = values == 1
        if bool((ones | (values == 0)).all()):
            return [v for v, occurs in ((0, not ones.all()), (1, ones.any())) if occurs]
        return list(np.unique(values).tolist())
    return list(dict.fromkeys(values.tolist()))


def code_outcomes(column: Any, layout: Layout) -> FloatArray:
    """Return the outcomes of a batch, shape (n, 1): 1 for the second class, or numbers in [0, 1]."""
    values, index = _labels(column)
    if layout.classes is None:
        return np.array(values, dtype=np.float64)[:, None]
    known = list(layout.classes)
    if index is not None:
        return _code_distinct(values, index, known)[:, None]
    if values.dtype.kind in "biuf" and all(isinstance(c, int | float) for c in known):
        ones = values == known[1]
        if bool((ones | (values == known[0])).all()):
            return np.asarray(ones.astype(np.float64)[:, None])
    check_labels(values)
    return np.asarray((code_labels(values, known) == 1).astype(np.float64)[:, None])


def _code_distinct(values: NDArray[Any], index: IntArray, known: list[Any]) -> FloatArray:
    occurs = np.bincount(index, minlength=len(values)) > 0
    if any(value not in known for value in values[occurs].tolist()):
        code_labels(values[index], known)  # names the row
    return np.array([float(value == known[1]) for value in values.tolist()])[index]


# --- the sample ---------------------------------------------------------------------------------------------


class _Reservoir:
    """A uniform random sample of the rows, in their order: those with the smallest of random keys.

    The keys are drawn row by row, so that the sample does not depend on the batches.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.limit = np.inf
        self.parts: list[tuple[FloatArray, Batch]] = []
        self.n_kept, self.most = 0, SAMPLE_ROWS

    def add(self, batch: Batch, n: int) -> None:
        """Keep the rows of a batch whose keys are small."""
        self.most = min(SAMPLE_ROWS, max(LEAST_SAMPLE, SAMPLE_NUMBERS // max(1, len(batch))))
        keys = self.rng.random(n)
        kept = np.flatnonzero(keys < self.limit)
        self.parts.append((keys[kept], {name: take(column, kept) for name, column in batch.items()}))
        self.n_kept += len(kept)
        if self.n_kept > self.most + self.most // 4:
            self._cut()

    def _cut(self) -> None:
        """Keep as many rows as are wanted."""
        keys, batch = self._joined()
        if len(keys) > self.most:
            self.limit = float(np.partition(keys, self.most)[self.most])
            kept = np.flatnonzero(keys < self.limit)
            keys, batch = keys[kept], {name: take(column, kept) for name, column in batch.items()}
        self.parts, self.n_kept = [(keys, batch)], len(keys)

    def _joined(self) -> tuple[FloatArray, Batch]:
        keys = np.concatenate([part for part, _ in self.parts])
        names = self.parts[0][1]
        return keys, {name: join([batch[name] for _, batch in self.parts]) for name in names}

    def rows(self) -> Batch:
        """Return the sample."""
        self._cut()
        return self.parts[0][1]


@dataclass(frozen=True, eq=False)
class Sample:
    """The sampled rows as a problem of their own: the class on them, predictions, outcomes, weights that sum to one."""

    learner: WeakLearner
    p: FloatArray
    y: FloatArray
    weight: FloatArray
    least: FloatArray

    def keep(self, members: IntArray) -> Sample:
        """Return the same rows with some of the subpopulations."""
        families: list[Family] = []
        start = 0
        for family in self.learner.families:
            inside = members[(members >= start) & (members < start + len(family.names))] - start
            start += len(family.names)
            if len(inside):
                families.append(family if len(inside) == len(family.names) else family.take(inside))
        learner = WeakLearner(self.learner.encoder, self.learner.rows, self.weight, families)
        return replace(self, learner=learner, least=self.least[members])


def learn(subpopulations: Subpopulations, found: Survey, roles: Roles) -> Sample:
    """Learn levels and cut points from the sample; groups that may be worth min_mass rows of the stream are listed."""
    batch = found.sample
    n = _length(batch)
    weight = np.ones(n) if roles.weight is None else check_weight(to_numpy(batch[roles.weight]))
    if not weight.any():
        raise InvalidInput("The sampled rows have no weight: nearly all sample weights are zero. Drop such rows.")
    table = Frame.of({name: for_frames(column) for name, column in batch.items() if name not in roles.columns})
    learner = _eased(subpopulations, n / found.n).prepare(table if table.names else _without_columns(n), weight)
    y, p = code_outcomes(batch[roles.y], found.layout), read_probabilities(to_numpy(batch[roles.p]), _BINARY)
    return Sample(learner, p, y, learner.weight, _least_rows(subpopulations, learner))


def _without_columns(n: int) -> Frame:
    return Frame.of(np.zeros((n, 0)))


def check_subpopulations(subpopulations: object) -> Subpopulations:
    """Return the class; refuse one whose members are not known before the rows are read."""
    if subpopulations is None:
        return Groups()
    parts = subpopulations.parts if isinstance(subpopulations, Union) else (subpopulations,)
    if not isinstance(subpopulations, Subpopulations) or not all(isinstance(part, _LISTED) for part in parts):
        raise InvalidInput(
            f"A stream takes Groups, Intersections, Memberships, Thresholds and their sums, but {subpopulations!r} was "
            "given. What is learned from all rows at once needs measure or multicalibrate, on a sample of the rows."
        )
    return subpopulations


_LISTED = Groups | Intersections | Memberships | Thresholds


def wanted_columns(subpopulations: Subpopulations) -> tuple[str, ...] | None:
    """Return the columns that a class names; None: all columns of the rows may be wanted.

    >>> wanted_columns(Groups(["sex", "age"]) + Thresholds("age")), wanted_columns(Groups())
    (('sex', 'age'), None)
    """
    if isinstance(subpopulations, Union):
        each = [wanted_columns(part) for part in subpopulations.parts]
        return None if None in each else tuple(dict.fromkeys(name for part in each for name in part or ()))
    columns = subpopulations.columns if isinstance(subpopulations, Groups | Intersections | Thresholds) else None
    listed = [columns] if isinstance(columns, str) else columns
    if not isinstance(listed, Sequence) or not all(isinstance(name, str) for name in listed):
        return None
    return tuple(str(name) for name in listed)


def _eased(subpopulations: Subpopulations, share: float) -> Subpopulations:
    """Return the class with the size that groups of min_mass rows have at least in a sample of this share."""
    if isinstance(subpopulations, Union):
        return Union(tuple(_eased(part, share) for part in subpopulations.parts))
    if share >= 1.0 or not isinstance(subpopulations, Groups | Intersections | Memberships):
        return subpopulations
    least = subpopulations.min_mass
    return replace(subpopulations, min_mass=min(least, max(SEEN_ROWS, least * share / 2.0)))


def _least_rows(subpopulations: Subpopulations, learner: WeakLearner) -> FloatArray:
    """Return the effective rows that each member must be worth in the whole stream; the population always counts."""
    parts = subpopulations.parts if isinstance(subpopulations, Union) else (subpopulations,)
    least = [part.min_mass if isinstance(part, Groups | Intersections | Memberships) else 0.0 for part in parts]
    return np.array(
        [
            0.0 if name == EVERYONE else least[family.index if isinstance(family, Part) else 0]
            for family in learner.families
            for name in family.names
        ]
    )


def large_enough(sample: Sample, sums: FloatArray) -> IntArray:
    """Return the members that are worth their min_mass, from sums of w and w^2 over the whole stream."""
    worth = effective_rows(sums[:, 0], sums[:, 1])
    kept = np.flatnonzero([is_enough(worth[[j]], least)[0] or least == 0.0 for j, least in enumerate(sample.least)])
    names = sample.learner.names  # made anew each time they are asked for
    require_members([names[j] for j in kept], "The stream", float(sample.least.max(initial=0.0)))
    return kept


# --- passes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Piece:
    """A batch, encoded: its first row's number, rows, predictions, outcomes, and weights that sum to one over all."""

    start: int
    rows: Encoded
    p: FloatArray
    y: FloatArray
    weight: FloatArray


@dataclass(frozen=True, eq=False)
class Stream:
    """Checked rows of a known class, ready for passes."""

    batches: Batches
    roles: Roles
    found: Survey
    encoder: BatchEncoder
    bar: Passes

    def each(self, what: str, use: Callable[[Piece], None]) -> None:
        """Use every batch once, with the kernels that the whole stream deserves.

        Cost: the batches are read, checked and encoded anew; one of them is in memory at a time.
        """
        wanted, start, n = (*self.roles.columns, *columns_of(self.encoder.encoder)), 0, self.found.n
        self.bar.start(what, n)
        for batch in self.batches.read(tuple(dict.fromkeys(wanted))):
            here = _length(batch)
            with part_of(here, n), at_row(start):
                use(self._piece(batch, start, here))
            start += here
            self.bar.add(here)
        self.bar.close()
        if start != n:
            raise InvalidInput(
                f"{self.batches.shown} held {n} rows in the first pass and {start} in a later one. It must yield the "
                "same rows each time; a function must return a new iterator at every call."
            )

    def _piece(self, batch: Batch, start: int, here: int) -> Piece:
        roles = self.roles
        p = read_probabilities(to_numpy(batch[roles.p]), _BINARY)
        y = code_outcomes(batch[roles.y], self.found.layout)
        if roles.weight is None:
            weight: FloatArray = np.broadcast_to(np.float64(1.0 / self.found.n), here)
        else:
            weight = check_weight(to_numpy(batch[roles.weight])) / self.found.weight
        return Piece(start, self.encoder(batch, here), p, y, weight)
