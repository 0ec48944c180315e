"""From batches to rows on disk: a first pass checks and surveys, a second one encodes; on a cluster, part by part.

The first pass counts the rows, finds the classes and keeps a sample, drawn by a seed and the rows' numbers, from which
levels and cut points are learned; groups that turn out too small in all rows are left out. Rows in memory that are more
than the sample are learned from it all the same, so that a fit is the same to the last bit wherever its rows live.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.batches import Batch, Batches, at_row, for_frames, is_arrow_array, join, take, to_numpy
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import (
    Layout,
    Outcomes,
    check_labels,
    check_occurring,
    check_two_classes,
    check_weight,
    code_labels,
    find_classes,
    is_fraction,
    read_probabilities,
)
from lowcal.data.progress import Passes
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.rows.base import Memory, Rows
from lowcal.rows.disk import Disk, RawRows, Spill
from lowcal.rows.keys import MANY_ROWS, uniforms
from lowcal.rows.passes import MassSums
from lowcal.subpopulations import EVERYONE, Subpopulations, WeakLearner
from lowcal.subpopulations.base import (
    Encoder,
    Family,
    LeftOut,
    check_min_mass,
    effective_rows,
    encode_batch,
    is_enough,
    list_rare,
    require_members,
)
from lowcal.subpopulations.groups import GroupEncoder
from lowcal.subpopulations.single_row import columns_of
from lowcal.subpopulations.union import Part, Union, UnionEncoder

#: Rows from which levels and cut points are learned; fewer, down to the last, if there are more than 32 columns.
SAMPLE_ROWS, LEAST_SAMPLE = MANY_ROWS, MANY_ROWS // 8


@dataclass(frozen=True)
class Roles:
    """The columns of outcomes, of predictions (one, or one for each class), and of weights if there are any."""

    y: str
    p: tuple[str, ...]
    weight: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them."""
        return (self.y, *self.p) if self.weight is None else (self.y, *self.p, self.weight)

    def __post_init__(self) -> None:
        if len(set(self.columns)) < len(self.columns):
            raise InvalidInput(f"y, p and sample_weight must be different columns, but {self.columns} were given.")

    @property
    def n_classes(self) -> int:
        """Two, unless there is a column for each of more."""
        return max(2, len(self.p))

    def probabilities(self, batch: Batch) -> FloatArray:
        """Return the checked predictions of a batch."""
        columns = [to_numpy(batch[name]) for name in self.p]
        return read_probabilities(columns[0] if len(columns) == 1 else np.column_stack(columns), self.blank)

    def weights(self, batch: Batch) -> FloatArray | None:
        """Return the checked weights of a batch, if rows have any."""
        return None if self.weight is None else check_weight(to_numpy(batch[self.weight]))

    @property
    def blank(self) -> Layout:
        """The layout as far as it is known from the predictions."""
        return Layout(self.n_classes, None)


# --- the survey -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Survey:
    """What the first pass found: how many rows have weight, their classes, and a sample of the rows."""

    n: int
    layout: Layout
    codes: IntArray
    sample: Batch

    @property
    def size(self) -> int:
        """The number of rows of the sample."""
        return length_of(self.sample)

    def require_same(self, shown: str, n: int) -> None:
        """Refuse a source that yields another number of rows when it is read again."""
        if n != self.n:
            raise InvalidInput(
                f"{shown} held {self.n} rows with weight in the first pass and {n} in a later one. It must "
                "yield the same rows each time; a function must return a new iterator at every call."
            )


def survey(
    batches: Batches,
    roles: Roles,
    wanted: Sequence[str] | None,
    classes: Sequence[Any] | None,
    seed: int,
    bar: Passes,
) -> Survey:
    """Read all rows once: check outcomes, predictions and weights, and draw the sample.

    `wanted` are the columns of the subpopulations; None: all the others.
    """
    columns = None if wanted is None else tuple(dict.fromkeys([*roles.columns, *wanted]))
    labels, sample, n = Labels(roles.n_classes), Sampling(seed), 0
    bar.start("reading")
    for batch in batches.read(columns):
        here = length_of(batch)
        with at_row(n):
            batches.require(batch, roles.columns)
            check_batch(batch, roles, labels)
        sample.add(weighted(batch, roles), len(batch) - len(roles.columns))
        n += here
        bar.add(here)
    bar.close()
    if n == 0:
        raise batches.nothing()
    require_weight(sample.n)
    return Survey(sample.n, *labels.layout(classes), sample.rows())


def check_batch(batch: Batch, roles: Roles, labels: Labels) -> None:
    """Check predictions, weights and outcomes of a batch, and note its labels."""
    roles.probabilities(batch)
    labels.add(batch[roles.y], roles.weights(batch))


def require_weight(n: int) -> None:
    """Refuse rows of which none has weight."""
    if n == 0:
        raise InvalidInput("All sample weights are zero. Give at least one row a positive weight.")


def weighted(batch: Batch, roles: Roles) -> Batch:
    """Return the rows of a batch that have weight."""
    weight = roles.weights(batch)
    if weight is None or weight.all():
        return batch
    kept = np.flatnonzero(weight)
    return {name: take(column, kept) for name, column in batch.items()}


def length_of(batch: Batch) -> int:
    """Return the number of rows of a batch."""
    return len(next(iter(batch.values()))) if batch else 0


# --- outcomes -------------------------------------------------------------------------------------------------


class Labels:
    """The values of y, as far as they decide which classes there are; those of several parts are added up."""

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
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
        new = [value for value in _distinct(values) if value not in known]
        # of labels that are not classes, a hundred are kept, to be named in an error
        known.update(dict.fromkeys(new[: self.n_classes + 100 - len(known)]))

    def __add__(self, other: Labels) -> Labels:
        both = Labels(self.n_classes)
        both.found, both.weighed = ({**a, **b} for a, b in ((self.found, other.found), (self.weighed, other.weighed)))
        both.is_inside, both.is_between = self.is_inside and other.is_inside, self.is_between or other.is_between
        return both

    def layout(self, classes: Sequence[Any] | None) -> tuple[Layout, IntArray]:
        """Return the layout that these labels have, as if all had been given at once, and the classes with weight."""
        if self.n_classes == 2 and classes is None and self.is_inside and self.is_between:
            return Layout(2, None), np.arange(2)
        known = find_classes(_array(self.found), self.n_classes, classes)
        codes = np.array([known.index(v) for v in self.weighed if v in known], dtype=np.intp)
        if classes is None:
            check_occurring(codes, known)
        return Layout(self.n_classes, tuple(known)), codes


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


def code_outcomes(column: Any, layout: Layout) -> NDArray[Any]:
    """Return the place of every row's class, or numbers in [0, 1]."""
    values, index = _labels(column)
    if layout.classes is None:
        return np.array(values, dtype=np.float64)
    known = list(layout.classes)
    kind = np.min_scalar_type(len(known))
    if index is not None:
        return _code_distinct(values, index, known).astype(kind)
    if len(known) == 2 and values.dtype.kind in "biuf" and all(isinstance(c, int | float) for c in known):
        ones = values == known[1]
        if bool((ones | (values == known[0])).all()):
            return np.asarray(ones.astype(kind))
    check_labels(values)
    return np.asarray(code_labels(values, known).astype(kind))


def _code_distinct(values: NDArray[Any], index: IntArray, known: list[Any]) -> IntArray:
    occurs = np.bincount(index, minlength=len(values)) > 0
    if any(value not in known for value in values[occurs].tolist()):
        code_labels(values[index], known)  # names the row
    return np.array([known.index(value) if value in known else -1 for value in values.tolist()])[index]


# --- the sample -----------------------------------------------------------------------------------------------


def sample_size(n_columns: int) -> int:
    """Return how many rows a class of n columns is learned from."""
    return min(SAMPLE_ROWS, max(LEAST_SAMPLE, 32 * MANY_ROWS // max(1, n_columns)))


def sample_keys(seed: int, first: int, n: int) -> FloatArray:
    """Return the keys of rows: those with the smallest are in the sample."""
    return uniforms((seed, SAMPLE_ROWS), first, n)


def _limit(keys: FloatArray, size: int) -> float:
    """Return what the smallest `size` of more keys lie below."""
    return float(np.partition(keys, size)[size])


class Sampling:
    """A uniform random sample of the rows, in their order: those with the smallest keys, `wanted` of them if given."""

    def __init__(self, seed: int, wanted: int | None = None) -> None:
        self.seed, self.n, self.limit = seed, 0, np.inf
        self.wanted = wanted
        self.parts: list[tuple[FloatArray, Batch]] = []
        self.n_kept, self.most = 0, SAMPLE_ROWS

    def add(self, batch: Batch, n_columns: int) -> None:
        """Keep the rows of a batch whose keys are small."""
        here, self.most = length_of(batch), self.wanted or sample_size(n_columns)
        keys = sample_keys(self.seed, self.n, here)
        kept = np.flatnonzero(keys < self.limit)
        self.parts.append((keys[kept], {name: take(column, kept) for name, column in batch.items()}))
        self.n, self.n_kept = self.n + here, self.n_kept + len(kept)
        if self.n_kept > self.most + self.most // 4:
            self._cut()

    def _cut(self) -> None:
        """Keep no more rows than are wanted."""
        keys = np.concatenate([part for part, _ in self.parts])
        names = self.parts[0][1]
        batch = {name: join([one[name] for _, one in self.parts]) for name in names}
        if len(keys) > self.most:
            self.limit = _limit(keys, self.most)
            kept = np.flatnonzero(keys < self.limit)
            keys, batch = keys[kept], {name: take(column, kept) for name, column in batch.items()}
        self.parts, self.n_kept = [(keys, batch)], len(keys)

    @classmethod
    def after(cls, first: int, seed: int, n: int, n_columns: int) -> Sampling:
        """Return the sample of n rows under construction, from number `first` on: what others have is joined later."""
        one = cls(seed)
        one.n, share = first, sample_size(n_columns) / n
        if share < 1.0:
            one.limit = 1.25 * share  # more than its part, so that all parts together hold the sample
        return one

    @classmethod
    def join(cls, samples: Sequence[Sampling]) -> Sampling:
        """Return the samples of runs of rows, in their order, as one."""
        whole = cls(samples[0].seed)
        whole.parts, whole.most = [part for one in samples for part in one.parts], samples[0].most
        return whole

    def rows(self) -> Batch:
        """Return the sample."""
        self._cut()
        return self.parts[0][1]


# --- the class ------------------------------------------------------------------------------------------------


def is_listed(subpopulations: Subpopulations) -> bool:
    """Whether the members of a class are known without a look at outcomes, from a sample of the rows."""
    return all(part.is_listed for part in subpopulations.each())


def needs_no_matrix(subpopulations: Subpopulations) -> bool:
    """Whether a class is listed or learned by passes over encoded rows, so that these may be anywhere."""
    return all(part.needs_no_matrix for part in subpopulations.each())


def wanted_columns(subpopulations: Subpopulations) -> tuple[str, ...] | None:
    """Return the columns that a class names; None: all columns of the rows may be wanted.

    >>> from lowcal import Groups, Thresholds
    >>> wanted_columns(Groups(["sex", "age"]) + Thresholds("age")), wanted_columns(Groups())
    (('sex', 'age'), None)
    """
    found: list[str] = []
    for part in subpopulations.each():
        columns = part.given_columns
        listed = [columns] if isinstance(columns, str) else columns
        if not isinstance(listed, Sequence) or not all(isinstance(name, str) for name in listed):
            return None
        found += [str(name) for name in listed]
    return tuple(dict.fromkeys(found))


def learn(subpopulations: Subpopulations, table: Frame, weight: FloatArray | None, n: int) -> WeakLearner:
    """Learn values and cut points from a sample of n rows; groups that may be worth min_mass of them all are listed."""
    share = table.n_rows / n
    if share < 1.0:  # the size that groups of min_mass rows have at least in a sample of this share; 3 rows to be seen
        subpopulations = subpopulations.eased(lambda least: min(least, max(3, least * share / 2.0)))
    return subpopulations.prepare(table, weight)


def learn_sample(subpopulations: Subpopulations, found: Survey, roles: Roles, is_fit: bool) -> WeakLearner:
    """Learn a class that needs no matrix from the sample of a survey; a fit needs rows of two classes."""
    if is_fit and found.layout.classes is not None:
        check_two_classes(found.codes, found.layout.classes)
    sample = {name: for_frames(column) for name, column in found.sample.items() if name not in roles.columns}
    weight = roles.weights(found.sample)
    table = Frame.of(sample if sample else np.zeros((found.size, 0)))
    return learn(subpopulations, table, weight, found.n)


def keep_large(
    subpopulations: Subpopulations, learner: WeakLearner, rows: Rows, size: int, least: Sequence[float] = ()
) -> WeakLearner:
    """Return the class on all rows: the members that are worth their min_mass there; the population always counts.

    What a sample of fewer rows left out is not counted in all of them, and so not listed. `least` are the least masses
    of all parts, if not their own.
    """
    least = least or [part.least_mass for part in subpopulations.each()]
    masses, start = rows.run(MassSums(tuple(learner.families))), 0
    families: list[Family] = []
    rare = list(learner.left_out.groups) if size == rows.scale.n else []
    for family in learner.families:
        own = least[family.index if isinstance(family, Part) else 0]
        sums = masses[start : start + len(family.names)]
        start += len(family.names)
        worth = np.where(np.array(family.names) == EVERYONE, np.inf, effective_rows(sums[:, 0], sums[:, 1]))
        kept = np.flatnonzero(is_enough(worth, own) | (own == 0.0))
        rare += list_rare(worth, family.names.__getitem__, "groups", own)
        if len(kept):
            families.append(family if len(kept) == len(family.names) else family.take(kept))
    require_members([name for family in families for name in family.names], "The class on all rows", max(least))
    encoded = rows.whole.rows if isinstance(rows, Memory) else None
    weight = rows.whole.weight if isinstance(rows, Memory) else np.ones(1)
    left_out = LeftOut(tuple(rare), learner.left_out.columns)
    return WeakLearner(learner.encoder, encoded, weight, families, learner.learner, left_out)


# --- rows in memory and on disk -------------------------------------------------------------------------------


def in_memory(
    subpopulations: Subpopulations, outcomes: Outcomes, table: Frame, seed: int
) -> tuple[Memory, WeakLearner]:
    """Return rows in memory and a class on them that needs no matrix, learned as it would be from disk."""
    wanted = wanted_columns(subpopulations)
    n, size = len(outcomes.p), sample_size(len(table.names if wanted is None else wanted))
    if n <= size:
        learner = subpopulations.prepare(table, outcomes.weight)
        return Memory.of(learner.rows, outcomes.p, outcomes.y, outcomes.weight), learner
    keys = sample_keys(seed, 0, n)
    some = np.flatnonzero(keys < _limit(keys, size))
    learner = learn(subpopulations, table.take(some), outcomes.weight[some], n)
    rows = Memory.of(learner.encoder(table), outcomes.p, outcomes.y, outcomes.weight)
    return rows, keep_large(subpopulations, learner, rows, size)


def of_copies(
    subpopulations: Subpopulations, outcomes: Outcomes, table: Frame, copies: IntArray
) -> tuple[Memory, WeakLearner]:
    """Return rows that stand for several (`frequency_weight`), and a listed class whose groups are sized by copies."""
    if not is_listed(subpopulations):
        raise InvalidInput(
            f"{subpopulations!r} is learned from single rows, not from rows with a frequency_weight. Use Groups, "
            "Intersections, Memberships or Thresholds, or give one row for each copy."
        )
    least = [getattr(part, "min_mass", 0.0) for part in subpopulations.each()]
    for one in least:
        check_min_mass(one)
    every = _of_any_size(subpopulations).prepare(table, outcomes.weight)
    rows = Memory.of(every.rows, outcomes.p, outcomes.y, outcomes.weight, copies)
    known = keep_large(subpopulations, every, rows, len(copies), least)
    known.left_out = known.left_out._replace(columns=tuple(_silent(every.encoder, set(known.names))))
    return rows, known


def _of_any_size(subpopulations: Subpopulations) -> Subpopulations:
    """Return the class with members of any size: their copies are counted once rows are encoded."""
    if isinstance(subpopulations, Union):
        return Union(tuple(map(_of_any_size, subpopulations.parts)))
    has_least = getattr(subpopulations, "min_mass", 0.0) != 0.0
    return replace(subpopulations, min_mass=0.0) if has_least else subpopulations  # type: ignore[type-var]


def _silent(encoder: Encoder, names: Container[str]) -> list[str]:
    """Return the columns of which no group is large enough to be examined."""
    if isinstance(encoder, UnionEncoder):
        return [column for own in encoder.parts for column in _silent(own, names)]
    if not isinstance(encoder, GroupEncoder):
        return []
    return [own.column for own in encoder.levels if not any(own.name(j) in names for j in range(own.count))]


def on_disk(
    subpopulations: Subpopulations,
    batches: Batches,
    roles: Roles,
    classes: Sequence[Any] | None,
    seed: int,
    bar: Passes,
    is_fit: bool = True,
) -> tuple[Disk, WeakLearner, Layout]:
    """Survey the rows of a source, learn a class that needs no matrix, and encode all rows into a temporary file."""
    found = survey(batches, roles, wanted_columns(subpopulations), classes, seed, bar)
    learner = learn_sample(subpopulations, found, roles, is_fit)
    spill, start = Spill(), 0
    bar.start("encoding", found.n)
    for batch in batches.read(encoded_columns(roles, learner.encoder)):
        with at_row(start):
            chunk = encode_rows(batch, roles, found.layout, learner.encoder)
        spill.add(chunk)
        start += length_of(batch)
        bar.add(length_of(batch))
    bar.close()
    spill.close()
    found.require_same(batches.shown, spill.n)
    rows = Disk(spill, found.layout.d, bar)
    return rows, keep_large(subpopulations, learner, rows, found.size), found.layout


def encoded_columns(roles: Roles, encoder: Encoder) -> tuple[str, ...]:
    """Return the columns that are read to encode rows."""
    return tuple(dict.fromkeys([*roles.columns, *columns_of(encoder)]))


def encode_rows(batch: Batch, roles: Roles, layout: Layout, encoder: Encoder) -> RawRows:
    """Return the rows of a batch that have weight, checked and encoded."""
    kept = weighted(batch, roles)
    y = code_outcomes(kept[roles.y], layout)
    return RawRows(encode_batch(encoder, kept), roles.probabilities(kept), y, roles.weights(kept))
