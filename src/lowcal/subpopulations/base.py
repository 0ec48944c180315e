"""What a hypothesis class C is, and the weak learner that searches it.

`subpopulations.prepare(X)` does all work on X once and returns a `WeakLearner` bound to those rows. A class that can
be listed is searched exactly. A class that can only be learned (trees, linear functions, any regressor) keeps the
members it has found: it first looks among those, then learns a new one; its "none found" is relative to the learner.

Paper: Definition 5.1, with the signed contract of spec 4.1:
(1) if a c of C has |E[c z]| > alpha, return a signed c with s E[c z] >= alpha / 2 (ours: > alpha);
(2) return None only if no c has; (3) whatever is returned has s E[c z] >= alpha / 2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowcal.data.batches import for_frames
from lowcal.data.checked_json import Kinds, Plain
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import read_weight
from lowcal.data.onnx_graph import GraphColumns, GraphEverybody, GraphMembers
from lowcal.kernels.exact import Scale
from lowcal.kernels.products import dot
from lowcal.kernels.reference import Codes, DecodeTable, Design, place_of, stack
from lowcal.kernels.simplex import SMALLEST, TIE, FloatArray, Geometry, IntArray, leading
from lowcal.subpopulations.single_row import Always, Read, RowFacts, columns_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

T = TypeVar("T")

#: What an encoder makes of X: code columns, a matrix, or a tuple of these. Only its own family reads it.
Encoded = Any
#: Columns of X, as classes take them: names or positions; None is every column.
ColumnChoice: TypeAlias = str | int | Sequence[str | int] | None
#: The cut points of columns; None cuts a column at its quantiles.
CutPoints: TypeAlias = Mapping[Any, Sequence[Any] | None]
#: Returns y - f at the start, shape (n, d); it is made only for a class that asks.
Residual: TypeAlias = Callable[[], FloatArray]

#: The name of the whole population, and the table of its code column, which has one level.
EVERYONE, _ONE = "everyone", DecodeTable(sparse.csr_array(np.ones((1, 1))))
#: Up to this many residuals get a member each; of more, the strongest of each label and half as many of all do.
MOST_RESIDUALS = 16

EXPORTED = "Groups, Intersections, Memberships, Thresholds, Linear, Trees, and unions and Private(...) of these"
#: What files may hold: encoders, families, and as settings of an estimator hypothesis classes.
_OWN = "Build the class from Groups, Memberships, Thresholds, Trees or Linear"
ENCODERS, FAMILIES = Kinds("an encoder", _OWN), Kinds("a family of subpopulations", _OWN)
CLASSES = Kinds("a hypothesis class", _OWN)


class Encoder(Protocol):
    """Turns X into the rows that a family understands, with what was learned from the fitted X."""

    def __call__(self, X: Frame) -> Encoded:
        """Encode new rows."""

    def to_dict(self) -> dict[str, Any]:
        """Return the encoder as plain data."""


def encode_batch(encoder: Encoder, batch: Mapping[str, Any]) -> Encoded:
    """Encode a batch of a stream: the same rows as those of a table; an encoder without `columns` may read all."""
    return encoder(Frame.of({name: for_frames(batch[name]) for name in columns_of(encoder) or batch}))


class TupleEncoder:
    """An encoder whose rows are tuples: code columns, or the rows of each part of a union."""


class Family(Protocol):
    """Finitely many subpopulations, as a value: it can be evaluated on encoded rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """A readable name for each."""

    def design(self, rows: Encoded) -> Design:
        """Return the matrix of memberships on these rows."""

    def take(self, members: IntArray) -> Family:
        """Return some of the members."""

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain data."""


@dataclass(frozen=True, eq=False)
class ReadFor:
    """What reading a family needs: the encoder of its rows, and the values that it refers to by their place."""

    encoder: Encoder
    shared: Sequence[Any]

    def rows_of(self, at: Plain, kind: type[T]) -> T:
        """Return the encoder, which must be of the kind that the family reads."""
        if not isinstance(self.encoder, kind):
            at.refuse(f"a family for the rows of {type(self.encoder).__name__}")
        return self.encoder


@runtime_checkable
class GraphFamily(Protocol):
    """A family that can be exported to ONNX."""

    def onnx(self, columns: GraphColumns, encoder: Any, numbers: int) -> Iterable[GraphMembers]:
        """Return the members in a graph; `numbers` is how many coefficients each has."""


def in_graph(family: Family, columns: GraphColumns, encoder: Encoder, numbers: int) -> Iterable[GraphMembers]:
    """Return the members of a family in a graph."""
    if not isinstance(family, GraphFamily):
        raise InvalidInput(
            f"{type(family).__name__} can't be written as ONNX: it has no method `onnx`. Exported are {EXPORTED}."
        )
    return family.onnx(columns, encoder, numbers)


class Breakdown(NamedTuple):
    """The parts of members on some rows, for explanations: c_j(x) is the sum of `matrix[x, k]`, `member[k] == j`.

    Parts of the same name are shown as one.
    """

    names: Sequence[str]
    member: IntArray
    matrix: sparse.csr_array


@runtime_checkable
class BrokenDownFamily(Protocol):
    """A family whose members are better explained by parts, or under other names."""

    def breakdown(self, encoder: Any, rows: Any) -> Breakdown:
        """Return the parts of all members on encoded rows."""


def breakdown_of(family: Family, encoder: Encoder, rows: Encoded) -> Breakdown:
    """Return the parts of a family's members on encoded rows: the members themselves, unless it has others."""
    if isinstance(family, BrokenDownFamily):
        return family.breakdown(encoder, rows)
    return Breakdown(family.names, np.arange(len(family.names)), family.design(rows).sparse())


@FAMILIES.register
@dataclass(frozen=True)
class Everyone:
    """The whole population, c = 1."""

    names: tuple[str, ...] = (EVERYONE,)
    kind: ClassVar[str] = "everyone"

    def design(self, rows: Encoded) -> Design:
        """Return a column of ones."""
        return Codes((np.zeros(rows.shape[0], dtype=np.uint8),), (_ONE,))

    def take(self, members: IntArray) -> Everyone:
        """Return itself: there is one member."""
        return self

    def reads(self, facts: RowFacts) -> Sequence[Read]:
        """Read nothing."""
        return [Always()]

    def onnx(self, columns: GraphColumns, encoder: Encoder, numbers: int) -> Sequence[GraphMembers]:
        """Return everybody."""
        return [GraphEverybody(np.arange(1))]

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain data."""
        return {"kind": self.kind}

    @classmethod
    def from_dict(cls, at: Plain, context: ReadFor) -> Everyone:
        """Return the family of plain data; rows that are tuples do not know their number."""
        at.fields("kind")
        if isinstance(context.encoder, TupleEncoder):
            at.refuse(f"a family for the rows of {type(context.encoder).__name__}")
        return cls()


@dataclass(frozen=True)
class Found:
    """What a search returns: a member of the class, its sign, and s E[c z] > alpha."""

    family: Family
    sign: float
    violation: float


@dataclass(frozen=True, eq=False)
class Offer:
    """An update that a boosting learner proposes, with its own shrinkage as the step: add size * c(x) to the label."""

    family: Family
    label: int
    size: float
    geometry: Geometry


# --- the question to a learner: residuals as functions of a shard, and the rows, which may be anywhere ----------------


class Trail(Protocol):
    """Numbers of every row, computed step by step, each step from the one before; rows keep the last few."""

    @property
    def before(self) -> Trail | None:
        """The step before; None for the first."""

    @property
    def remembered(self) -> int:
        """How many of the last steps rows keep."""

    def advance(self, before: FloatArray | None, shard: Any) -> FloatArray:
        """Return the numbers of a shard from those before, shape (rows, k)."""


class Visited(Protocol):
    """Rows at hand: encoded, with weights that sum to one over all rows."""

    rows: Any
    weight: FloatArray
    scale: Scale

    def at(self, trail: Any) -> FloatArray:
        """Return the numbers of a trail."""


class Source(Protocol):
    """Rows that passes visit, wherever they are."""

    @property
    def scale(self) -> Scale:
        """How many rows there are, and the largest weight."""

    @property
    def single(self) -> Visited | None:
        """All rows, if they are in memory in one piece."""

    def run(self, one: Any) -> Any:
        """Take one pass over all rows."""

    def sample(self, rows: IntArray | None) -> Any:
        """Return rows by their numbers; None: all of them."""


class Residuals(Protocol):
    """Residuals z_i, shape (rows, q), as a value that is called with rows at hand."""

    @property
    def bound(self) -> float:
        """No residual is larger."""

    @property
    def q(self) -> int:
        """How many residuals a row has."""

    @property
    def n_labels(self) -> int:
        """The first residuals are those of this many labels, y - f."""

    def __call__(self, shard: Any) -> FloatArray:
        """Return the residuals of these rows."""

    def follows(self, other: Residuals) -> bool:
        """Whether these are known to be a linear combination of others, without reading any row."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Residuals of some rows, for which a learner is to find members; `part` is the part of the rows that it reads."""

    rows: Source
    residuals: Residuals
    part: tuple[int, ...] = ()

    def of_part(self, index: int) -> Asked:
        """Return the same for one part of a union."""
        return replace(self, part=(*self.part, index))

    def all(self) -> FloatArray:
        """Return the residuals of all rows, which must be in memory."""
        return self.residuals(self.rows.sample(None))


class Here:
    """Rows in one piece, as a source of their own; `numbers` are their places among all rows."""

    def __init__(self, rows: Any, weight: FloatArray, numbers: IntArray | slice = slice(None)) -> None:
        self.rows, self.weight, self.numbers = rows, weight, numbers
        self.scale = Scale(len(weight), float(weight.max(initial=0.0)))
        self._known: dict[Trail, FloatArray] = {}

    @property
    def single(self) -> Here:
        """All rows."""
        return self

    def run(self, one: Any) -> Any:
        """Take one pass over all rows."""
        return one.read(one(self), self, self.scale)

    def sample(self, rows: IntArray | None) -> Here:
        """Return rows by their numbers, without their encoding: for residuals."""
        return self if rows is None else Here(None, self.weight[rows], rows)

    def at(self, trail: Trail) -> FloatArray:
        """Return the numbers of a trail; the last ones are remembered."""
        if trail not in self._known:
            before = None if trail.before is None else self.at(trail.before)
            self._known = {trail: trail.advance(before, self)}
        return self._known[trail]


@dataclass(frozen=True, eq=False)
class Given:
    """Residuals that are given for all rows of `Here`."""

    Z: FloatArray
    n_labels: int

    @property
    def bound(self) -> float:
        """No residual is larger."""
        return float(np.abs(self.Z).max(initial=0.0))

    @property
    def q(self) -> int:
        """How many residuals a row has."""
        return int(self.Z.shape[1])

    def __call__(self, shard: Here) -> FloatArray:
        """Return the residuals of these rows."""
        return np.asarray(self.Z[shard.numbers])

    def follows(self, other: Residuals) -> bool:
        """Return False: residuals that are given as numbers are not compared."""
        return False


#: Makes new members from weighted residuals Z of shape (n, q).
Learn = Callable[[FloatArray], Sequence[Family]]


class Asks(Protocol):
    """Makes new members from residuals by passes over the rows, which may be anywhere."""

    def ask(self, asked: Asked) -> Sequence[Family]:
        """Return the new families."""

    def on(self, encoder: Any) -> Asks:
        """Return a new learner of the same kind for rows of another encoder."""


class LeftOut(NamedTuple):
    """Groups that hold too few rows to be examined, in words, and the columns of which no group is examined at all."""

    groups: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


class WeakLearner:
    """A hypothesis class bound to the rows of one sample.

    Parameters
    ----------
    encoder, rows : how X became rows, and the rows.
    weight : the sample weights, which sum to one; E is the mean under them.
    known : the whole class if it can be listed, otherwise what the learner starts with.
    learn : makes new members from the weighted residuals p_i Z_i of shape (n, q), or is asked by passes over the rows
        (`Asks`); None if `known` is the whole class.
    left_out : which groups of the class hold too few of these rows to be examined.
    """

    def __init__(
        self,
        encoder: Encoder,
        rows: Encoded,
        weight: FloatArray,
        known: Sequence[Family],
        learn: Learn | Asks | None = None,
        left_out: LeftOut | None = None,
    ) -> None:
        self.left_out = left_out or LeftOut()
        self.encoder = encoder
        self.rows = rows
        self._weight = weight
        self.families: list[Family] = []
        self.n_calls = 0
        self.learner = learn
        self._start = tuple(known)
        self._names: set[str] = set()
        self._designs: dict[int, tuple[Encoded, list[Design]]] = {}
        self._keep(known)

    @cached_property
    def weight(self) -> FloatArray:
        """The weights of the rows, which sum to one."""
        return np.asarray(self._weight / self._weight.sum())

    @property
    def is_exact(self) -> bool:
        """Whether "none found" refers to the whole class, not only to what the learner finds."""
        return self.learner is None

    @property
    def boosts(self) -> bool:
        """Whether the learner offers updates at its own shrinkage."""
        return self.geometry is not None

    @property
    def geometry(self) -> Geometry | None:
        """The geometry of the updates that the learner offers; None if it does not boost."""
        return getattr(self.learner, "geometry", None)

    def start(self) -> WeakLearner:
        """Return the class of only those members that the learner starts with."""
        return WeakLearner(self.encoder, self.rows, self.weight, self._start)

    @property
    def offers(self) -> Sequence[Offer]:
        """The updates that a boosting learner proposed last; none from other learners."""
        return getattr(self.learner, "offers", ())

    @property
    def growths(self) -> list[list[Any]]:
        """What each learner of trees has grown, which a fit that is resumed need not grow again; see `Trees`."""
        growths: list[list[Any]] = getattr(self.learner, "growths", [])
        return growths

    def design(self, rows: Encoded | None = None) -> Design:
        """Return the matrix of all known members, on the fitted rows or on others encoded by `encoder`."""
        rows = self.rows if rows is None else rows
        # the rows are kept with their designs: an id may be used again once its object is gone
        _, cache = self._designs.setdefault(id(rows), (rows, []))
        cache += [family.design(rows) for family in self.families[len(cache) :]]
        return stack(cache)

    def learn(self, Z: FloatArray) -> bool:
        """Ask the learner for members that correlate with the columns of Z; return whether there are new ones."""
        return self._keep(self.found(Z))

    def found(self, Z: FloatArray) -> Sequence[Family]:
        """Return the members that the learner finds for the columns of Z, be they known or not."""
        return self._found(self._here, Given(Z, n_labels(self.weight[:, None] * Z)))

    def ask(self, rows: Source, residuals: Residuals) -> bool:
        """Ask for members that correlate with residuals of rows anywhere; return whether there are new ones."""
        return self._keep(self._found(rows, residuals))

    def _found(self, rows: Source, residuals: Residuals) -> Sequence[Family]:
        if self.learner is None:
            return ()
        self.n_calls += 1
        return self.answer(Asked(rows, residuals))

    def answer(self, asked: Asked) -> Sequence[Family]:
        """Ask the learner, if there is one; a plain function gets the matrix of all residuals, weighted."""
        if callable(self.learner):
            return self.learner(self.weight[:, None] * asked.all())
        return () if self.learner is None else self.learner.ask(asked)

    @cached_property
    def _here(self) -> Here:
        return Here(self.rows, self.weight)

    def search(self, z: FloatArray, alpha: float) -> Found | None:
        """Return a signed member with s E[c z] > alpha for residuals z in [-1, 1], or None: the paper's bottom."""
        if dot(self.weight, np.abs(z)) <= alpha:  # no c with |c| <= 1 can correlate more
            return None
        found = self._best_known(z, alpha)
        if found is None and self.learn(z[:, None]):
            found = self._best_known(z, alpha)
        return found

    def member(self, j: int) -> Family:
        """Return the family that holds only the member j."""
        k, own = place_of(j, [len(family.names) for family in self.families])
        return self.families[k].take(np.array([own]))

    def fresh(self) -> WeakLearner:
        """Return the same class on the same rows, without the members found since."""
        return self.on(self.encoder, self.rows, self.weight)

    def on(self, encoder: Encoder, rows: Encoded, weight: FloatArray) -> WeakLearner:
        """Return the class as it was at the start, on other rows."""
        learn = self.learner if self.learner is None or callable(self.learner) else self.learner.on(encoder)
        return WeakLearner(encoder, rows, weight, self._start, learn, self.left_out)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all known members, in the order of the design's columns."""
        return tuple(name for family in self.families for name in family.names)

    def _keep(self, families: Sequence[Family]) -> bool:
        """Keep the members that are not known yet; return whether there are any."""
        before = len(self.families)
        for family in families:
            new = [j for j, name in enumerate(family.names) if name not in self._names]
            self._names.update(family.names)
            if new:
                self.families.append(family if len(new) == len(family.names) else family.take(np.array(new)))
        return len(self.families) > before

    def _best_known(self, z: FloatArray, alpha: float) -> Found | None:
        self.n_calls += 1
        violations = self.design().moments((self.weight * z)[:, None])[:, 0]
        j = leading(np.abs(violations))
        if abs(violations[j]) <= alpha:
            return None
        return Found(self.member(j), float(np.sign(violations[j])), float(abs(violations[j])))


class Subpopulations(ABC):
    """A hypothesis class C, which searches itself on given rows. `A + B` is the union."""

    #: Whether the members are known without a look at outcomes, from a sample of the rows.
    is_listed: ClassVar[bool] = False
    #: Whether the class is listed or learned by passes over encoded rows, so that these may be anywhere.
    needs_no_matrix: ClassVar[bool] = False

    @property
    def given_columns(self) -> ColumnChoice:
        """The columns that the class was given; None: all, or unknown."""
        return None

    @property
    def least_mass(self) -> float:
        """Members with fewer effective rows than this are left out."""
        return 0.0

    def each(self) -> Sequence[Subpopulations]:
        """Return the parts of a union, or the class alone."""
        return (self,)

    def eased(self, least: Callable[[float], float]) -> Subpopulations:
        """Return the class with another least mass, where it has one."""
        return self

    def prepare(
        self, X: object, sample_weight: ArrayLike | None = None, residual: Residual | None = None
    ) -> WeakLearner:
        """Do all work on X (any supported table) once and return the weak learner bound to those rows.

        `residual` returns y - f at the start, shape (n, d), where that is known already.
        """
        table = Frame.of(X)
        return self.bind_for(table, read_weight(sample_weight, table.n_rows), residual)

    @abstractmethod
    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Return the weak learner of this class on a table, for weights that sum to one."""

    def bind_for(self, X: Frame, sample_weight: FloatArray, residual: Residual | None) -> WeakLearner:
        """Return the weak learner for a search that begins at residuals, if known; most classes need not know them."""
        return self.bind(X, sample_weight)

    def every_member(self) -> Subpopulations:
        """Return the class with members of any size, so that its list does not depend on how many rows each holds."""
        return self

    def __add__(self, other: Subpopulations) -> Subpopulations:
        """Return the union of the two classes."""
        from lowcal.subpopulations.union import Union

        return Union((*self.each(), *other.each())) if isinstance(other, Subpopulations) else NotImplemented


#: What is accepted wherever a class is: a list of columns, or their cut points, stand for `Groups` of them.
ClassChoice: TypeAlias = Subpopulations | Sequence[str | int] | CutPoints | None


class OfColumns(Subpopulations):
    """A class that is given columns."""

    columns: ColumnChoice

    @property
    def given_columns(self) -> ColumnChoice:
        """The columns."""
        return self.columns


class OfSizes(Subpopulations):
    """A class that lists groups and leaves out those with fewer than min_mass effective rows."""

    is_listed = needs_no_matrix = True
    min_mass: float

    @property
    def least_mass(self) -> float:
        """The least mass."""
        return self.min_mass

    def eased(self, least: Callable[[float], float]) -> Subpopulations:
        """Return the class with another least mass."""
        return replace(self, min_mass=least(self.min_mass))  # type: ignore[type-var]

    def every_member(self) -> Subpopulations:
        """Return the class without a least mass."""
        return self.eased(lambda _: 0)


# --- the effective rows of a group, and which groups are too small to be examined ---------------------------------


def masses_of(sample_weight: FloatArray) -> FloatArray:
    """Return w and w^2 of every row, shape (n, 2): their sums over a group give its effective number of rows."""
    return np.column_stack([sample_weight, np.square(sample_weight)])


def effective_rows(mass: FloatArray, square: FloatArray) -> FloatArray:
    """Return n_eff(c) = (sum w c)^2 / sum w^2 c from the two sums: the effective rows of a group (spec 0)."""
    return np.asarray(np.square(mass) / np.maximum(square, SMALLEST))


def is_enough(worth: FloatArray, min_mass: float) -> NDArray[np.bool_]:
    """Return which groups have min_mass effective rows; 30 rows of weight 1/n are 30 in spite of rounding."""
    return np.asarray(worth >= max(min_mass * (1.0 - TIE), SMALLEST))


def list_rare(worth: FloatArray, name: Callable[[int], str], what: str, min_mass: float) -> list[str]:
    """List the groups that hold rows, but fewer than min_mass; of many, only their number.

    >>> list_rare(np.array([40.0, 29.0, 0.0]), lambda j: f"g={j}", "values of g", 30)
    ['g=1 (29 rows)']
    >>> list_rare(np.full(2000, 2.0), str, "values of id", 30)
    ['2,000 values of id (4,000 rows)']
    """
    rare = np.flatnonzero((worth > 0.0) & ~is_enough(worth, min_mass))
    if len(rare) > 3:  # a report has a line for them
        return [f"{len(rare):,} {what} ({worth[rare].sum():,.0f} rows)"]
    return [f"{name(j)} ({worth[j]:,.3g} {'row' if worth[j] == 1.0 else 'rows'})" for j in rare.tolist()]


def check_min_mass(min_mass: object) -> None:
    """Refuse a negative or undefined minimum size of a group."""
    if not (isinstance(min_mass, Real) and float(min_mass) >= 0):
        raise InvalidInput(f"min_mass is a number of rows of at least 0, but {min_mass!r} was given.")


def require_members(names: Sequence[str], what: str, min_mass: float) -> None:
    """Refuse a class without a single member."""
    if not names:
        raise InvalidInput(
            f"{what} has no subpopulation with at least {min_mass:g} rows; lower min_mass or keep everyone=True."
        )


def n_labels(Z: FloatArray) -> int:
    """Return d: residuals on the simplex sum to zero over its labels, scalar ones have one label.

    >>> n_labels(np.array([[0.3, -0.1, -0.2, 0.03]])), n_labels(np.array([[0.3, 0.1]]))
    (3, 1)
    """
    total, small = np.zeros(len(Z)), TIE * np.abs(Z).max(initial=0.0)
    for a in range(Z.shape[1]):
        total += Z[:, a]
        if np.abs(total).max(initial=0.0) <= small:
            return a + 1
    return 1


def strongest(strength: FloatArray, Z: FloatArray) -> list[int]:
    """Return for which columns of the residuals Z members are made: all of few, else the strongest of each label.

    The columns run through the labels for one weight after the other. A block step combines each member with every
    weight, so members for all columns would add little, and its cost grows with the square of their number. Those that
    are strongest whatever their label are added.

    >>> Z = np.tile([[0.3, -0.1, -0.2]], 9)
    >>> strongest(np.arange(27.0), Z), strongest(np.arange(3.0), Z[:, :3])
    ([19, 20, 21, 22, 23, 24, 25, 26], [0, 1, 2])
    """
    if len(strength) <= MOST_RESIDUALS:
        return list(range(len(strength)))
    d, order = n_labels(Z), np.argsort(-strength, kind="stable").tolist()
    of_label = {j % d: j for j in reversed(order)}
    return sorted({*of_label.values(), *order[: MOST_RESIDUALS // 2]})
