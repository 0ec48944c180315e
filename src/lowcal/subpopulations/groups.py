"""Groups, Intersections, Thresholds: subpopulations that are functions of small integer codes.

The columns are compiled once into few code columns: attributes are merged while their joint levels stay few, every
wanted conjunction lies inside one merged column, and a small table maps joint levels to groups. For thresholds, the
distinct values of a number are ordered codes, so that the moments of all are one cumulative sum of a histogram
(spec 4.1). No array of rows x groups is ever built. In an ONNX graph groups are looked up by only those columns that
they depend on, mostly one or two of the merged ones: tables over these are far smaller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import prod
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from scipy import sparse

from lowcal.data.checked_json import Numbers, Plain, PlainFields, Shares
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import check_whole
from lowcal.data.onnx_graph import GraphColumns, GraphEverybody, GraphLookUp, GraphMembers, Value
from lowcal.kernels.reference import Codes, Cumulative, Decode, DecodeTable, Design, histogram
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.subpopulations.base import (
    CLASSES,
    ENCODERS,
    EVERYONE,
    FAMILIES,
    Breakdown,
    ColumnChoice,
    CutPoints,
    LeftOut,
    OfColumns,
    OfSizes,
    ReadFor,
    TupleEncoder,
    WeakLearner,
    check_min_mass,
    effective_rows,
    is_enough,
    require_members,
)
from lowcal.subpopulations.levels import (
    UNSEEN,
    ByLevels,
    LevelMasses,
    Levels,
    bins_of,
    cut_levels,
    drop_rare,
    learn_levels,
    read_columns,
    resolve,
    weighted_values,
)
from lowcal.subpopulations.single_row import CodeRead, EncodedRow, Read, Row, RowFacts, RowReader, bin_of, number

#: More joint levels than this are refused: the groups would hold a row each, and their table would not fit.
MOST_LEVELS = 1 << 26
#: A table of more numbers is split into one for each set of columns that its groups depend on.
SMALL = 1 << 12
#: Attributes are merged into one code column up to this many joint levels: a table of that size stays in cache.
MERGED_LEVELS = 1024
#: For conjunctions, tables up to this many times as large, in the second cache, are faster; a level has as many rows.
MORE_LEVELS = 16

Plan = tuple[tuple[int, ...], ...]


# --- encoders and families of codes -------------------------------------------------------------------------------


class CodeEncoder(TupleEncoder, ABC):
    """An encoder whose rows are code columns, each of some raw columns' levels."""

    @property
    @abstractmethod
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The levels of the raw columns of each code column; its codes count through all their combinations."""

    @abstractmethod
    def code(self, columns: GraphColumns, k: int, axes: Sequence[int]) -> Value:
        """Return the joint levels of some raw columns of code column k in a graph, shape (n,)."""


@FAMILIES.register
@dataclass(frozen=True, eq=False)
class CodeFamily:
    """Subpopulations that are functions of small integer codes: tables over the columns `columns` of the rows.

    `depths` are the numbers of conditions of the members, where they differ.
    """

    names: tuple[str, ...]
    columns: tuple[int, ...]
    decode: tuple[Decode, ...]
    depths: tuple[int, ...] = ()
    kind: ClassVar[str] = "codes"

    def design(self, rows: Sequence[IntArray]) -> Design:
        """Return code columns with their decode tables; nothing of size rows x groups."""
        return Codes(tuple(rows[k] for k in self.columns), self.decode)

    def take(self, members: IntArray) -> CodeFamily:
        """Return some of the members, in the given order within each column."""
        taken: list[int] = []
        kept: list[tuple[int, Decode]] = []
        for every, column, decode in self._by_column():
            inside = members[(members >= every[0]) & (members <= every[-1])] if len(every) else every
            if len(inside):
                kept.append((column, decode.take(inside - every[0])))
                taken += inside.tolist()
        columns, decoded = tuple(c for c, _ in kept), tuple(t for _, t in kept)
        depths = tuple(self.depths[j] for j in taken) if self.depths else ()
        return CodeFamily(tuple(self.names[j] for j in taken), columns, decoded, depths)

    def _by_column(self) -> Iterator[tuple[IntArray, int, Decode]]:
        """Yield the members of each code column, the column and its table."""
        start = 0
        for k, decode in zip(self.columns, self.decode, strict=True):
            yield start + np.arange(decode.shape[1]), k, decode
            start += decode.shape[1]

    def reads(self, facts: RowFacts) -> Sequence[Read]:
        """Read the codes of a row."""
        return [CodeRead(facts.itself(), k, t) for k, t in zip(self.columns, self.decode, strict=True)]

    def breakdown(self, encoder: Any, rows: Sequence[IntArray]) -> Breakdown:
        """Return the groups of each row; all thresholds of a column together, as a row lies on a side of each."""
        names = list(self.names)
        for members, k, decode in self._by_column():
            if isinstance(decode, Cumulative):
                names[members[0] : members[-1] + 1] = [f"thresholds: {encoder.columns[k]}"] * len(members)
        return Breakdown(names, np.arange(len(names)), self.design(rows).sparse())

    def onnx(self, columns: GraphColumns, encoder: CodeEncoder, numbers: int) -> Iterator[GraphMembers]:
        """Yield look-ups of code columns, or of the raw columns that were merged into them."""
        for members, k, decode in self._by_column():
            shape = encoder.shapes[k]
            if not isinstance(decode, DecodeTable):
                yield GraphLookUp(members, encoder.code(columns, k, range(len(shape))), decode)
                continue
            # once for the same table: many updates of one group each use few groups
            key = ("split", tuple(shape), decode.shape, *(array.tobytes() for array in decode.parts), numbers)
            if key not in columns.known:
                columns.known[key] = split(decode, shape, numbers)
            for axes, inside, table in columns.known[key]:
                if axes:
                    yield GraphLookUp(members[inside], encoder.code(columns, k, axes), table)
                else:
                    yield from (GraphEverybody(members[[j]]) for j in inside)

    def to_dict(self) -> dict[str, Any]:
        """Return the tables as plain data, each with its code column."""
        tables = [{"column": k, **_plain_table(t)} for k, t in zip(self.columns, self.decode, strict=True)]
        return {"kind": self.kind, "names": list(self.names), "tables": tables}

    @classmethod
    def from_dict(cls, at: Plain, context: ReadFor) -> CodeFamily:
        """Return the family of plain data; its tables must have the levels of the encoder's code columns."""
        _, names, tables = at.fields("kind", "names", "tables")
        sizes = [prod(shape) for shape in context.rows_of(at, CodeEncoder).shapes]  # type: ignore[type-abstract]
        decoded = [DECODES[one.kind(DECODES)](one, sizes) for one in tables.items()]
        shown = names.names(sum(table.shape[1] for _, table in decoded))
        return cls(shown, tuple(column for column, _ in decoded), tuple(table for _, table in decoded))


def _plain_table(decode: Decode) -> dict[str, Any]:
    """Return a table as its entries, or as thresholds."""
    if isinstance(decode, Cumulative):
        cuts, is_above = Numbers(decode.cuts), Numbers(decode.is_above)
        return {"kind": "cumulative", "levels": decode.levels, "cuts": cuts, "is_above": is_above}
    coo = decode.matrix.tocoo()
    entries = [Numbers(coo.row), Numbers(coo.col), Shares(coo.data)]
    return {"kind": "table", "shape": list(decode.shape), "entries": entries}


def _read_table(at: Plain, sizes: Sequence[int]) -> tuple[int, Decode]:
    place, _, shape, entries = at.fields("column", "kind", "shape", "entries")
    column = place.whole(0, len(sizes) - 1)
    n_levels, n_groups = shape.wholes((2,), 1, MOST_LEVELS).tolist()
    parts = entries.items()
    if n_levels != sizes[column] or len(parts) != 3:
        at.refuse(f"a table of {sizes[column]} levels: the levels, groups and values of its entries")
    levels = parts[0].wholes((None,), 0, n_levels - 1)
    groups = parts[1].wholes(levels.shape, 0, n_groups - 1)
    values = np.ones(len(levels)) if parts[2].is_null else parts[2].floats(levels.shape, -1.0, 1.0)
    # the order of the entries is kept, as it is the order in which they are summed
    if (np.diff(levels) < 0).any() or len(np.unique(levels * n_groups + groups)) < len(levels):
        entries.refuse("entries level by level, each once")
    starts = np.concatenate([[0], np.cumsum(np.bincount(levels, minlength=n_levels))])
    return column, DecodeTable(sparse.csr_array((values, groups, starts), shape=(n_levels, n_groups)))


def _read_cumulative(at: Plain, sizes: Sequence[int]) -> tuple[int, Decode]:
    place, _, levels, cuts, is_above = at.fields("column", "kind", "levels", "cuts", "is_above")
    column = place.whole(0, len(sizes) - 1)
    size = levels.whole(sizes[column], sizes[column])
    places = cuts.wholes((None,), 1, size - 2)
    return column, Cumulative(size, places, is_above.wholes(places.shape, 0, 1).astype(bool))


DECODES: dict[str, Callable[[Plain, Sequence[int]], tuple[int, Decode]]] = {
    "table": _read_table,
    "cumulative": _read_cumulative,
}


# --- groups and conjunctions --------------------------------------------------------------------------------------


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

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Compile the columns so that every conjunction lies inside one merged code column, and list the groups."""
        check_whole("depth", self.depth, 1)
        check_min_mass(self.min_mass)
        check_whole("n_bins", self.n_bins, 2)
        given = self.columns if isinstance(self.columns, Mapping) else {}
        cuts = {X.name_of(name): points for name, points in given.items() if points is not None}
        weigh, found = LevelMasses(sample_weight), []
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
        """Return the merged code columns of n rows from those of each column: joint levels, the last fastest."""
        columns = []
        for merged in self.plan:
            joint = np.zeros(n, dtype=np.min_scalar_type(prod(self.shape(merged))))
            for k, size in zip(merged, self.shape(merged), strict=True):
                joint *= joint.dtype.type(size)
                joint += codes[k].astype(joint.dtype, copy=False)
            columns.append(joint)
        return tuple(columns)

    def shape(self, merged: Sequence[int]) -> tuple[int, ...]:
        """Return the level counts of the attributes of one merged column."""
        return tuple(self.levels[k].count for k in merged)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The levels of the attributes of each merged column."""
        return tuple(self.shape(merged) or (1,) for merged in self.plan)

    def row_reader(self) -> RowReader:
        """Return the merged codes of a row."""
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
    names, depths, used, tables = list[str](), list[int](), list[int](), list[DecodeTable]()
    listed = set[tuple[int, ...]]()
    for k, (merged, shape) in enumerate(zip(encoder.plan, encoder.shapes, strict=True)):
        every = (subset for size in range(1, chosen.depth + 1) for subset in combinations(merged, size))
        subsets, size = [subset for subset in every if subset not in listed], prod(shape)
        listed.update(subsets)
        joint = dict(zip(merged, np.unravel_index(np.arange(size), shape), strict=False))
        mass = weigh(rows[k], size) if any(len(subset) > 1 for subset in subsets) else np.zeros((size, 0))
        found = [_conjunctions(encoder, subset, joint, mass, single, chosen.min_mass) for subset in subsets]
        if chosen.everyone and k == 0:
            found.insert(0, _Conjunctions(0, np.arange(size), np.zeros(size, dtype=np.intp), [EVERYONE]))
        if any(one.names for one in found):
            names += [name for one in found for name in one.names]
            depths += [one.depth for one in found for _ in one.names]
            used.append(k)
            tables.append(_table(found, size))
    return CodeFamily(tuple(names), tuple(used), tuple(tables), tuple(depths))


class _Conjunctions(NamedTuple):
    """The groups of one set of columns: how many columns, pairs of a joint level and a group, and names."""

    depth: int
    levels: IntArray
    groups: IntArray
    names: list[str]


def _table(found: Sequence[_Conjunctions], size: int) -> DecodeTable:
    """Return the table that is 1 at the pairs of a merged column, no two alike; SciPy would look for repeats."""
    counts = [len(one.names) for one in found]
    levels = np.concatenate([one.levels for one in found], dtype=np.int32)
    first = np.cumsum([0, *counts])[:-1]
    groups = np.concatenate([one.groups + k for one, k in zip(found, first, strict=True)], dtype=np.int32)
    order = np.argsort(levels, kind="stable")
    starts = np.searchsorted(levels[order], np.arange(size + 1, dtype=np.int32)).astype(np.int32)
    return DecodeTable(sparse.csr_array((np.ones(len(levels)), groups[order], starts), shape=(size, sum(counts))))


def _conjunctions(
    encoder: GroupEncoder,
    subset: tuple[int, ...],
    joint: Mapping[int, IntArray],
    mass: FloatArray,
    single: Sequence[FloatArray],
    min_mass: float,
) -> _Conjunctions:
    """Return the groups of one set of columns; `mass` and `single` are sums of w and w^2 by joint and single levels."""
    shape, key, total = encoder.shape(subset), joint[subset[0]], single[subset[0]]
    if len(subset) > 1:
        key = np.ravel_multi_index([joint[column] for column in subset], shape)
        total = histogram(key, mass, prod(shape))
    keep = is_enough(effective_rows(total[:, 0], total[:, 1]), min_mass).reshape(shape)
    for axis in range(len(shape)):
        keep.swapaxes(0, axis)[UNSEEN] = False
    kept, number = np.flatnonzero(keep), np.full(keep.size, -1)
    number[kept] = np.arange(len(kept))
    values = (v.tolist() for v in np.unravel_index(kept, shape))
    each = [map(encoder.levels[k].name, v) for k, v in zip(subset, values, strict=True)]
    group = number[key]
    inside = np.flatnonzero(group >= 0)
    names = [" & ".join(parts) for parts in zip(*each, strict=True)]
    return _Conjunctions(len(subset), inside, group[inside], names)


# --- which columns are merged -----------------------------------------------------------------------------


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


# --- thresholds: the codes of a column are ordered, and its groups are one cumulative sum -----------------------


@CLASSES.register
@dataclass(frozen=True)
class Thresholds(OfColumns):
    """All sets {x <= t} and {x > t} of each numeric column; exact, O(n) a column after one sort.

    Parameters
    ----------
    columns : names or positions of numeric columns; None is every column.
    min_mass : thresholds that leave fewer effective rows than this on a side are left out.
    everyone : whether the whole population is a member.

    Missing values are on neither side.

    >>> Thresholds("age")
    Thresholds(columns='age', min_mass=30, everyone=True)
    """

    columns: ColumnChoice = None
    min_mass: float = 30
    everyone: bool = True
    is_listed = needs_no_matrix = True

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Sort every column once; the thresholds between its distinct values are the class."""
        check_min_mass(self.min_mass)
        columns = resolve(self.columns, X)
        if not columns:
            raise InvalidInput("Thresholds needs at least one numeric column.")
        cuts = tuple(_cuts(X.numeric([c])[:, 0], sample_weight, self.min_mass) for c in columns)
        encoder = ThresholdEncoder(columns, cuts)
        family = _list_thresholds(encoder, X, self.everyone)
        require_members(family.names, "The class of thresholds", self.min_mass)
        return WeakLearner(encoder, encoder(X), sample_weight, [family])

    def every_member(self) -> NoReturn:
        """Refuse: the list of thresholds depends on the rows, whatever their sizes."""
        raise InvalidInput(
            "Thresholds are cut at the values of the rows, so their list would reveal them. Use Private(Groups([...]))."
        )


@ENCODERS.register
@dataclass(frozen=True, eq=False)
class ThresholdEncoder(CodeEncoder, PlainFields):
    """The cut points of every column."""

    columns: tuple[str, ...]
    cuts: tuple[FloatArray, ...]
    kind: ClassVar[str] = "thresholds"

    def __call__(self, X: Frame) -> tuple[IntArray, ...]:
        """Return ordered codes: 0 is missing, code k means k - 1 cuts lie below the value."""
        each = zip(self.columns, self.cuts, strict=True)
        return tuple(
            bins_of(X.numeric([column])[:, 0], cuts, np.min_scalar_type(len(cuts) + 1), 0, 1) for column, cuts in each
        )

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The codes of each column."""
        return tuple((len(cuts) + 2,) for cuts in self.cuts)

    def row_reader(self) -> RowReader:
        """Return the codes of a row."""
        each = [(column, cuts.tolist()) for column, cuts in zip(self.columns, self.cuts, strict=True)]
        return lambda row: tuple(bin_of(number(row(column), column), cuts, 0, 1) for column, cuts in each)

    def code(self, columns: GraphColumns, k: int, axes: Sequence[int]) -> Value:
        """Return the codes of a column in a graph."""
        return columns.bin(self.columns[k], self.cuts[k], 0, 1)

    @classmethod
    def from_dict(cls, at: Plain) -> ThresholdEncoder:
        """Return the encoder of plain data."""
        _, columns, cuts = at.fields("kind", "columns", "cuts")
        names, points = columns.texts(), tuple(one.increasing() for one in cuts.items())
        if len(names) != len(points) or not names:
            cuts.refuse(f"a list of cut points for each of {len(names)} columns")
        return cls(names, points)


def _cuts(values: FloatArray, sample_weight: FloatArray, min_mass: float) -> FloatArray:
    """Return the distinct values t with at least min_mass effective rows at or below and above t."""
    distinct, each = weighted_values(values, sample_weight)
    if len(distinct) == 0:
        return distinct
    seen = ~np.isnan(values) & (sample_weight > 0)
    which, w = np.searchsorted(distinct, values[seen]), sample_weight[seen]
    mass, square = np.cumsum(each), np.cumsum(histogram(which, np.square(w)[:, None], len(distinct))[:, 0])
    below, above = effective_rows(mass, square), effective_rows(mass[-1] - mass, square[-1] - square)
    return np.asarray(distinct[:-1][is_enough(np.minimum(below, above), min_mass)[:-1]])


def _list_thresholds(encoder: ThresholdEncoder, X: Frame, everyone: bool) -> CodeFamily:
    """Return every threshold of every column that has one, the whole population first."""
    names: list[str] = []
    tables: list[tuple[int, Decode]] = []
    if everyone:
        names.append(EVERYONE)
        tables.append((0, DecodeTable(sparse.csr_array(np.ones((len(encoder.cuts[0]) + 2, 1))))))
    for k, (column, cuts) in enumerate(zip(encoder.columns, encoder.cuts, strict=True)):
        if len(cuts):
            tables.append((k, Cumulative.every(len(cuts) + 2)))
            shown = Levels(column, None, tuple(cuts.tolist()), X.column(column).is_date).shown
            names += [f"{column}<={t}" for t in shown] + [f"{column}>{t}" for t in shown]
    return CodeFamily(tuple(names), tuple(k for k, _ in tables), tuple(t for _, t in tables))


# --- smaller tables for graphs ------------------------------------------------------------------------------------

#: Some members of a table, by the axes (columns) that they depend on, as a table over the levels of these.
Split = tuple[tuple[int, ...], IntArray, DecodeTable]


def split(decode: DecodeTable, shape: Sequence[int], numbers: int) -> list[Split]:
    """Return the groups of a table over joint levels: together while their table is small, else by their columns.

    `shape` are the levels of the merged columns, `numbers` the coefficients of a group.
    """
    sets = axes_of(decode.matrix, shape)
    together = tuple(sorted(set().union(*sets)))
    if prod(shape[a] for a in together) * numbers <= SMALL:
        sets = [together] * len(sets)
    each = [(axes, np.flatnonzero([own == axes for own in sets])) for axes in dict.fromkeys(sets)]
    return [(axes, inside, _project(decode.take(inside), shape, axes)) for axes, inside in each]


def axes_of(matrix: sparse.csr_array, shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return for each group (column of a table over joint levels) the axes of the levels that it depends on.

    A group is a product of sets of levels; it does not depend on an axis where its set is all levels. A column that
    is not such a product depends on all axes.

    >>> table = sparse.csr_array(np.array([[1, 0], [1, 0], [1, 1], [0, 0], [0, 0], [0, 0]], dtype=float))
    >>> axes_of(table, (2, 3))
    [(0,), (0, 1)]
    """
    entries, m = matrix.tocoo(), matrix.shape[1]
    levels = zip(np.unravel_index(entries.row, tuple(shape)), shape, strict=True)
    met = np.array([np.bincount(np.unique(entries.col * size + level) // size, minlength=m) for level, size in levels])
    held = np.bincount(entries.col, minlength=m)
    is_product = (held == met.prod(axis=0)) & (np.bincount(entries.col, entries.data != 1.0, minlength=m) == 0)
    needed = (met < np.array(shape)[:, None]) | ~is_product
    return [tuple(np.flatnonzero(axis).tolist()) for axis in needed.T]


def _project(decode: DecodeTable, shape: Sequence[int], axes: Sequence[int]) -> DecodeTable:
    """Return the table over the joint levels of some axes, for groups that hold all levels of every other axis."""
    entries = decode.matrix.tocoo()
    levels, row = np.unravel_index(entries.row, tuple(shape)), np.zeros_like(entries.row)
    once = np.ones(len(row), dtype=bool)
    for a, size in enumerate(shape):
        if a in axes:
            row = row * size + levels[a]
        else:
            once &= levels[a] == 0
    entry = (entries.data[once], (row[once], entries.col[once]))
    return DecodeTable(sparse.csr_array(entry, shape=(prod(shape[a] for a in axes), decode.shape[1])))
