"""Groups and Intersections: one subpopulation for each value of each column, and for each conjunction of values.

The columns are compiled once into few code columns: attributes are merged while their joint levels stay few, every
wanted conjunction lies inside one merged column, and a small table maps joint levels to groups.
No array of rows x groups is ever built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from math import prod
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from lowcal.data.checked_json import Plain
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import check_whole
from lowcal.data.onnx_graph import GraphColumns, Value
from lowcal.kernels.reference import DecodeTable, histogram
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.subpopulations.base import (
    CLASSES,
    ENCODERS,
    EVERYONE,
    ColumnChoice,
    CutPoints,
    LeftOut,
    OfSizes,
    WeakLearner,
    check_min_mass,
    effective_rows,
    is_enough,
    require_members,
)
from lowcal.subpopulations.codes import MOST_LEVELS, CodeEncoder, CodeFamily
from lowcal.subpopulations.levels import (
    UNSEEN,
    ByLevels,
    LevelMasses,
    cut_levels,
    drop_rare,
    learn_levels,
    read_columns,
    resolve,
)
from lowcal.subpopulations.single_row import EncodedRow, Row, RowReader

#: Attributes are merged into one code column up to this many joint levels: a table of that size stays in cache.
MERGED_LEVELS = 1024
#: For conjunctions, tables up to this many times as large, in the second cache, are faster; a level has as many rows.
MORE_LEVELS = 16

Plan = tuple[tuple[int, ...], ...]


class _OfGroups(OfSizes):
    """A class of conjunctions of at most `depth` values of columns, which may come with cut points."""

    columns: ColumnChoice | CutPoints
    depth: ClassVar[int] = 1
    n_bins: int
    everyone: bool

    @property
    def given_columns(self) -> ColumnChoice:
        """The columns, without their cut points."""
        return list(self.columns) if isinstance(self.columns, Mapping) else self.columns

    def cuts(self, X: Frame) -> dict[str, Sequence[Any]]:
        """Return the cut points of those columns that come with some."""
        given = self.columns if isinstance(self.columns, Mapping) else {}
        return {X.name_of(name): cuts for name, cuts in given.items() if cuts is not None}

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Compile the columns so that every conjunction lies inside one merged code column, and list the groups."""
        check_whole("depth", self.depth, 1)
        check_min_mass(self.min_mass)
        check_whole("n_bins", self.n_bins, 2)
        weigh, found, cuts = LevelMasses(sample_weight), [], self.cuts(X)
        for name in resolve(self.given_columns, X):
            column = X.column(name)
            every = cut_levels(column, cuts[name]) if name in cuts else learn_levels(column, self.n_bins, sample_weight)
            found.append(drop_rare(every, X, weigh, self.min_mass))
        limit = MERGED_LEVELS
        if self.depth > 1:
            limit = min(max(MERGED_LEVELS, X.n_rows // MORE_LEVELS), MORE_LEVELS * MERGED_LEVELS)
        levels = tuple(column.levels for column in found)
        encoder = GroupEncoder(levels, cover([level.count for level in levels], self.depth, limit))
        rows = encoder.merge([column.codes for column in found], X.n_rows)
        family = _list_groups(self, encoder, rows, weigh, [column.mass for column in found])
        require_members(family.names, "The class of groups", self.min_mass)
        rare = tuple(group for column in found for group in column.rare)
        silent = tuple(column.levels.column for column in found if column.rare and not column.is_examined)
        return WeakLearner(encoder, rows, sample_weight, [family], left_out=LeftOut(rare, silent))


@CLASSES.register
@dataclass(frozen=True)
class Groups(_OfGroups):
    """One subpopulation for each value of each column.

    Parameters
    ----------
    columns : names or positions; None is every column of X. A dictionary has cut points of numbers or dates as well:
        `{"age": [25, 40, 65], "sex": None}` has the groups age<=25, 25<age<=40, 40<age<=65 and age>65.
    n_bins : other numeric columns with more distinct values than this are cut at quantiles into this many bins.
    min_mass : groups with fewer effective rows than this are dropped.
    everyone : whether the whole population is a member.

    Missing values form a group of their own; a value unseen in fitting belongs to no group of its column.

    >>> Groups(["sex", "age"], n_bins=4)
    Groups(columns=['sex', 'age'], n_bins=4, min_mass=30, everyone=True)
    """

    columns: ColumnChoice | CutPoints = None
    n_bins: int = 5
    min_mass: float = 30
    everyone: bool = True


@CLASSES.register
@dataclass(frozen=True)
class Intersections(_OfGroups):
    """All conjunctions of values of at most `depth` columns: sex=F & race=Black, and each alone.

    The other parameters are those of `Groups`.

    >>> Intersections(["sex", "race"])
    Intersections(columns=['sex', 'race'], depth=2, n_bins=5, min_mass=30, everyone=True)
    """

    columns: ColumnChoice | CutPoints = None
    depth: int = 2  # type: ignore[misc]
    n_bins: int = 5
    min_mass: float = 30
    everyone: bool = True


@ENCODERS.register
@dataclass(frozen=True)
class GroupEncoder(CodeEncoder, ByLevels):
    """Levels of the columns, and which of them are merged into each code column."""

    plan: Plan
    kind: ClassVar[str] = "groups"

    def __call__(self, X: Frame) -> tuple[IntArray, ...]:
        """Return the merged code columns."""
        return self.merge([levels.codes(X) for levels in self.levels], X.n_rows)

    def merge(self, codes: Sequence[IntArray], n: int) -> tuple[IntArray, ...]:
        """Return the merged code columns of n rows from the codes of each column."""
        return tuple(self._joint(codes, merged, n) for merged in self.plan)

    def shape(self, merged: Sequence[int]) -> tuple[int, ...]:
        """Return the level counts of the attributes of one merged column."""
        return tuple(self.levels[k].count for k in merged)

    def _joint(self, codes: Sequence[IntArray], merged: Sequence[int], n: int) -> IntArray:
        """Return the joint level of some columns as one number, the last column running fastest."""
        joint = np.zeros(n, dtype=np.min_scalar_type(prod(self.shape(merged))))
        for k, size in zip(merged, self.shape(merged), strict=True):
            joint *= joint.dtype.type(size)
            joint += codes[k].astype(joint.dtype, copy=False)
        return joint

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The levels of the attributes of each merged column."""
        return tuple(self.shape(merged) or (1,) for merged in self.plan)

    def row_reader(self) -> RowReader:
        """Return the merged codes of a row: mixed-radix numbers of the levels, the last column running fastest."""
        readers = [level.row_reader() for level in self.levels]
        plan = [list(zip(merged, self.shape(merged), strict=True)) for merged in self.plan]

        def read(row: Row) -> EncodedRow:
            levels = [reader(row) for reader in readers]
            codes = []
            for merged in plan:
                code = 0
                for k, size in merged:
                    code = code * size + levels[k]
                codes.append(code)
            return tuple(codes)

        return read

    def code(self, columns: GraphColumns, k: int, axes: Sequence[int]) -> Value:
        """Return the joint levels of some attributes of merged column k in a graph."""
        levels = [self.levels[self.plan[k][a]] for a in axes]
        joint, *rest = [level.onnx(columns) for level in levels]
        for code, level in zip(rest, levels[1:], strict=True):
            joint = columns.graph.add("Add", columns.graph.add("Mul", joint, level.count), code)
        return joint

    @classmethod
    def from_dict(cls, at: Plain) -> GroupEncoder:
        """Return the encoder of plain data."""
        _, columns, plan = at.fields("kind", "levels", "plan")
        levels = read_columns(columns)
        merged = tuple(tuple(k.whole(0, len(levels) - 1) for k in one.items()) for one in plan.some())
        if any(any(a >= b for a, b in pairwise(one)) or (not one) != (not levels) for one in merged):
            plan.refuse("lists of increasing places of columns")
        if any(prod(levels[k].count for k in one) > MOST_LEVELS for one in merged):
            plan.refuse(f"a plan of at most {MOST_LEVELS} joint levels")
        return cls(levels, merged)


def _list_groups(
    chosen: _OfGroups,
    encoder: GroupEncoder,
    rows: Sequence[IntArray],
    weigh: LevelMasses,
    single: Sequence[FloatArray],
) -> CodeFamily:
    """Return every group of min_mass effective rows, the whole population first; `single` are the levels' masses."""
    shapes, depth = encoder.shapes, chosen.depth
    sizes = [prod(shape) for shape in shapes]
    tables = _Tables(sizes)
    if chosen.everyone:
        tables.add(0, 0, np.arange(sizes[0]), np.zeros(sizes[0], dtype=np.intp), [EVERYONE])
    mass = cache(lambda k: weigh(rows[k], sizes[k]))
    joint = cache(lambda k: np.unravel_index(np.arange(sizes[k]), shapes[k]))
    home = _homes(encoder.plan, depth)
    for size in range(1, min(depth, len(encoder.levels)) + 1):
        for subset in combinations(range(len(encoder.levels)), size):
            k = home[subset]
            own = tuple(joint(k)[encoder.plan[k].index(column)] for column in subset)
            key = own[0] if size == 1 else np.ravel_multi_index(own, encoder.shape(subset))
            total = single[subset[0]] if size == 1 else histogram(key, mass(k), prod(encoder.shape(subset)))
            tables.add(k, size, *_conjunctions(encoder, subset, key, total, chosen.min_mass))
    return tables.family()


def _homes(plan: Plan, depth: int) -> dict[tuple[int, ...], int]:
    """Return which merged column is the first to hold each set of up to `depth` columns.

    >>> _homes(((0, 1), (1, 2)), 2)
    {(0,): 0, (1,): 0, (0, 1): 0, (2,): 1, (1, 2): 1}
    """
    found: dict[tuple[int, ...], int] = {}
    for k, merged in enumerate(plan):
        for size in range(1, depth + 1):
            for subset in combinations(merged, size):
                found.setdefault(subset, k)
    return found


def _conjunctions(
    encoder: GroupEncoder, subset: tuple[int, ...], key: IntArray, total: FloatArray, min_mass: float
) -> tuple[IntArray, IntArray, list[str]]:
    """Return (merged level, group) pairs and names for one set of columns; total holds sums of w and w^2 a value."""
    shape = encoder.shape(subset)
    keep = is_enough(effective_rows(total[:, 0], total[:, 1]), min_mass).reshape(shape)
    for axis in range(len(shape)):
        keep.swapaxes(0, axis)[UNSEEN] = False
    kept, number = np.flatnonzero(keep), np.full(keep.size, -1)
    number[kept] = np.arange(len(kept))
    values = (v.tolist() for v in np.unravel_index(kept, shape))
    each = [map(encoder.levels[k].name, v) for k, v in zip(subset, values, strict=True)]
    group = number[key]
    inside = np.flatnonzero(group >= 0)
    return inside, group[inside], [" & ".join(names) for names in zip(*each, strict=True)]


class _Tables:
    """The decode tables under construction: (level, group) pairs, names and depths for each merged column."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.entries: list[list[tuple[IntArray, IntArray]]] = [[] for _ in sizes]
        self.names: list[list[str]] = [[] for _ in sizes]
        self.depths: list[list[int]] = [[] for _ in sizes]

    def add(self, k: int, depth: int, levels: IntArray, groups: IntArray, names: Sequence[str]) -> None:
        """Add groups of this depth to the merged column k; `groups` are numbered from 0 among those added."""
        self.entries[k].append((levels, groups + len(self.names[k])))
        self.names[k] += names
        self.depths[k] += [depth] * len(names)

    def family(self) -> CodeFamily:
        """Return the finished family; merged columns without a group are left out."""
        used = [k for k in range(len(self.sizes)) if self.names[k]]
        names = tuple(name for k in used for name in self.names[k])
        depths = tuple(depth for k in used for depth in self.depths[k])
        return CodeFamily(names, tuple(used), tuple(self._table(k) for k in used), depths)

    def _table(self, k: int) -> DecodeTable:
        """Return the table that is 1 at the pairs of a merged column, no two alike; SciPy would look for repeats."""
        levels, groups = (np.concatenate(each, dtype=np.int32) for each in zip(*self.entries[k], strict=True))
        order = np.argsort(levels, kind="stable")
        starts = np.searchsorted(levels[order], np.arange(self.sizes[k] + 1, dtype=np.int32)).astype(np.int32)
        shape = (self.sizes[k], len(self.names[k]))
        return DecodeTable(sparse.csr_array((np.ones(len(levels)), groups[order], starts), shape=shape))


# --- which columns are merged ----------------------------------------------------------------------------------


def cover(counts: Sequence[int], depth: int, limit: int = MERGED_LEVELS) -> Plan:
    """Return sets of columns such that every `depth` columns lie in one set, each of few joint levels (greedy).

    >>> cover([4, 5, 6], 1), cover([50, 50, 50], 2)
    (((0, 1, 2),), ((0, 1), (0, 2), (1, 2)))
    """
    largest = prod(sorted(counts)[-depth:])
    if largest > MOST_LEVELS:
        raise InvalidInput(
            f"{depth} columns together have {largest:,} joint values, too many for one table. "
            "Use columns with fewer values, a smaller depth, or a larger min_mass."
        )
    if depth == 1 or len(counts) < 2:
        return tuple(_first_fit(counts, limit)) or ((),)
    wanted = list(combinations(range(len(counts)), min(depth, len(counts))))
    left: list[set[tuple[int, ...]]] = [set() for _ in counts]
    for subset in wanted:
        for k in subset:
            left[k].add(subset)
    return tuple(_grow(subset, left, counts, limit) for subset in wanted if subset in left[subset[0]])


def _first_fit(counts: Sequence[int], limit: int) -> list[tuple[int, ...]]:
    """Return sets that hold each column once: it joins the first set that it fits into."""
    sets: list[list[int]] = []
    rooms, least = dict[int, int](), min(counts, default=0)  # of the sets that some column may still fit into
    for k, count in enumerate(counts):
        place = next((place for place, room in rooms.items() if count <= room), len(sets))
        if place == len(sets):
            sets.append([])
        sets[place].append(k)
        rooms[place] = rooms.get(place, limit) // max(1, count)
        if rooms[place] < least:
            del rooms[place]
    return [tuple(chosen) for chosen in sets]


def _grow(
    start: tuple[int, ...], left: Sequence[set[tuple[int, ...]]], counts: Sequence[int], limit: int
) -> tuple[int, ...]:
    """Return a set that holds `start`, then each time the column that covers the most subsets while levels stay few.

    `left` are the subsets that no set holds yet, by the columns in them; those that this set holds are removed.
    """
    chosen: set[int] = set()
    gains: Counter[int] = Counter()
    room, wanted = limit, list(start)
    while wanted:
        column = wanted.pop()
        chosen.add(column)
        room //= max(1, counts[column])
        for subset in list(left[column]):
            lacks = [k for k in subset if k not in chosen]
            if len(lacks) == 1:
                gains[lacks[0]] += 1
            elif not lacks:
                for k in subset:
                    left[k].remove(subset)
        if not wanted and (fitting := [k for k in gains if k not in chosen and counts[k] <= room]):
            wanted = [min(fitting, key=lambda k: (-gains[k], k))]
    return tuple(sorted(chosen))
