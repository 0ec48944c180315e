"""Classes made of others: the union, which searches each and takes the best, and the private search of a finite class.

`Private` (spec 4.8) holds the budget and lists the class; `lowcal.solve.private` holds the algorithm. What it protects
are the rows: labels, start probabilities and who belongs to which group. The LIST of the groups is taken as public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from lowcal.data.checked_json import Plain, PlainFields
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import check_positive, check_whole, is_share
from lowcal.data.onnx_graph import GraphColumns, GraphMembers
from lowcal.kernels.reference import Decode, Design
from lowcal.kernels.simplex import FloatArray, Geometry, IntArray
from lowcal.subpopulations.base import (
    CLASSES,
    ENCODERS,
    FAMILIES,
    Asked,
    Breakdown,
    Encoded,
    Encoder,
    Family,
    LeftOut,
    Offer,
    ReadFor,
    Residual,
    Subpopulations,
    TupleEncoder,
    WeakLearner,
    breakdown_of,
    in_graph,
)
from lowcal.subpopulations.groups import CodeFamily
from lowcal.subpopulations.single_row import Read, RowFacts, RowReader, columns_of, reader_of, reads_of


@CLASSES.register
@dataclass(frozen=True)
class Union(Subpopulations):
    """C = C_1 + C_2 + ...; written `A + B`. A member of several parts counts once."""

    parts: tuple[Subpopulations, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Prepare every part on the same rows."""
        return self.bind_for(X, sample_weight, None)

    def bind_for(self, X: Frame, sample_weight: FloatArray, residual: Residual | None) -> WeakLearner:
        """Prepare every part for the same residuals, and return the learner that searches each."""
        learners = [part.bind_for(X, sample_weight, residual) for part in self.parts]
        known = [Part(i, family) for i, one in enumerate(learners) for family in one.families]
        encoder = UnionEncoder(tuple(one.encoder for one in learners))
        rows = tuple(one.rows for one in learners)
        learn = None if all(one.is_exact for one in learners) else _LearnEach(learners)
        rare = dict.fromkeys(group for one in learners for group in one.left_out.groups)  # parts may name the same
        silent = dict.fromkeys(column for one in learners for column in one.left_out.columns)
        return WeakLearner(encoder, rows, sample_weight, known, learn, LeftOut(tuple(rare), tuple(silent)))

    def each(self) -> Sequence[Subpopulations]:
        """Return the parts."""
        return self.parts

    def eased(self, least: Callable[[float], float]) -> Union:
        """Return the union of every part with another least mass, where it has one."""
        return Union(tuple(part.eased(least) for part in self.parts))

    def every_member(self) -> Union:
        """Return the union of every part with members of any size."""
        return Union(tuple(part.every_member() for part in self.parts))


class _LearnEach:
    """Makes new members with every part that learns, and offers what the parts that boost offer."""

    def __init__(self, learners: Sequence[WeakLearner]) -> None:
        self.learners = learners

    def ask(self, asked: Asked) -> Sequence[Family]:
        return [Part(i, family) for i, one in enumerate(self.learners) for family in one.answer(asked.of_part(i))]

    def on(self, encoder: UnionEncoder) -> _LearnEach:
        parts = zip(self.learners, encoder.parts, strict=True)
        return _LearnEach([one.on(own, None, one.weight) for one, own in parts])

    @property
    def geometry(self) -> Geometry | None:
        """The geometry of what is offered: that of the first part that boosts."""
        return next((one.geometry for one in self.learners if one.boosts), None)

    @property
    def growths(self) -> list[list[Any]]:
        """What each part that grows trees has grown."""
        return [grown for one in self.learners for grown in one.growths]

    @property
    def offers(self) -> Sequence[Offer]:
        return [
            replace(offer, family=Part(i, offer.family))
            for i, one in enumerate(self.learners)
            for offer in one.offers
            if offer.geometry == self.geometry
        ]


@ENCODERS.register
@dataclass(frozen=True)
class UnionEncoder(TupleEncoder, PlainFields):
    """One encoder for each part."""

    parts: tuple[Encoder, ...]
    kind: ClassVar[str] = "union"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(dict.fromkeys(name for part in self.parts for name in columns_of(part)))

    def __call__(self, X: Frame) -> tuple[Encoded, ...]:
        """Encode X for every part."""
        return tuple(part(X) for part in self.parts)

    def row_reader(self) -> RowReader | None:
        """Return the numbers of a row for every part; None if a part has none."""
        readers = [reader for reader in map(reader_of, self.parts) if reader is not None]
        return None if len(readers) < len(self.parts) else lambda row: tuple(read(row) for read in readers)

    @classmethod
    def from_dict(cls, at: Plain) -> UnionEncoder:
        """Return the encoder of plain data."""
        _, parts = at.fields("kind", "parts")
        return cls(tuple(ENCODERS.read(part) for part in parts.some()))


def leaves(encoder: Encoder) -> Iterator[Encoder]:
    """Yield the encoders of all parts of unions, or the encoder itself."""
    if isinstance(encoder, UnionEncoder):
        for part in encoder.parts:
            yield from leaves(part)
    else:
        yield encoder


@FAMILIES.register
@dataclass(frozen=True, eq=False)
class Part(PlainFields):
    """A family that reads one part of the rows."""

    index: int
    family: Family
    kind: ClassVar[str] = "part"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members."""
        return self.family.names

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of conditions of the members, where the family knows them."""
        depths: tuple[int, ...] = getattr(self.family, "depths", ())
        return depths

    def design(self, rows: Sequence[Encoded]) -> Design:
        """Return the memberships on the part's own rows."""
        return self.family.design(rows[self.index])

    def take(self, members: IntArray) -> Part:
        """Return some of the members."""
        return Part(self.index, self.family.take(members))

    def reads(self, facts: RowFacts) -> Sequence[Read] | None:
        """Read the part's own row."""
        return reads_of(self.family, facts.of_part(self.index))

    def breakdown(self, encoder: UnionEncoder, rows: Sequence[Encoded]) -> Breakdown:
        """Return what the members are made of on the part's own rows."""
        return breakdown_of(self.family, encoder.parts[self.index], rows[self.index])

    def onnx(self, columns: GraphColumns, encoder: UnionEncoder, numbers: int) -> Iterable[GraphMembers]:
        """Return the members in a graph."""
        return in_graph(self.family, columns, encoder.parts[self.index], numbers)

    @classmethod
    def from_dict(cls, at: Plain, context: ReadFor) -> Part:
        """Return the family of plain data."""
        _, index, family = at.fields("kind", "index", "family")
        parts = context.rows_of(at, UnionEncoder).parts
        place = index.whole(0, len(parts) - 1)
        return cls(place, FAMILIES.read(family, replace(context, encoder=parts[place])))


def look_ups_of(family: Family) -> list[tuple[tuple[int, ...], Decode]] | None:
    """Return where rows hold the code columns of a family, through the parts of unions, and their tables; or None."""
    if isinstance(family, Part):
        inner = look_ups_of(family.family)
        return None if inner is None else [((family.index, *key), decode) for key, decode in inner]
    if not isinstance(family, CodeFamily):
        return None
    return [((column,), decode) for column, decode in zip(family.columns, family.decode, strict=True)]


def innermost(family: Family) -> Family:
    """Return the family that parts of unions hold, or the family itself."""
    while isinstance(family, Part):
        family = family.family
    return family


@CLASSES.register
@dataclass(frozen=True)
class Private(Subpopulations):
    """The subpopulations of `groups`, searched with (epsilon, delta)-differential privacy of the rows.

    `multicalibrate(..., subpopulations=Private(Groups(["sex"]), epsilon=1.0))` then uses its own solver, and
    everything in the `Fit` it returns is private: anyone may see it. Two samples are neighbours if one row differs.

    What is NOT protected: the list of the groups, that is, the names of columns and categories and the cut points of
    numeric columns, and the list of the classes of y: a predictor carries them with it. Categories and quantiles are
    read off X: pass columns whose values are known beforehand, or `Memberships`, whose list of columns is all that is
    used. `min_mass` is switched off, because which groups are large enough depends on the rows. The start
    probabilities p must not come from a model that was fitted to these rows, and the number of rows counts as public.
    The noise is drawn in floating point by a seeded generator: it is not hardened against attacks on the last bits,
    and whoever knows the seed knows the noise.

    Parameters
    ----------
    groups : Groups, Intersections, Memberships or a union of them. Learned classes (Trees, Linear, Regressor) can't be
        listed, and Thresholds are cut at the rows' own values: both are refused.
    epsilon : the budget of the whole fit.
    delta : the probability with which the promise may fail; well below 1 / rows. 0: pure privacy, by basic composition.
    max_rounds : rounds that share the budget, fixed beforehand; the last one only measures. None: as many as leave the
        errors of a round at alpha / 4, at least 10, at most what the iteration bound asks for.
    beta : the probability with which the accuracy (not the privacy) may fail.

    >>> from lowcal import Groups
    >>> Private(Groups(["sex"]), epsilon=1.0)
    Private(groups=Groups(columns=['sex'], ...), epsilon=1.0, delta=1e-06, max_rounds=None, beta=0.05)
    """

    groups: Subpopulations
    epsilon: float
    delta: float = 1e-6
    max_rounds: int | None = None
    beta: float = 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Subpopulations) or isinstance(self.groups, Private):
            raise InvalidInput(f"Private wraps a class such as Groups([...]), but {self.groups!r} was given.")
        check_positive("epsilon", self.epsilon)
        for name, value, least in (("delta", self.delta, 0.0), ("beta", self.beta, 1e-300)):
            if isinstance(value, bool) or not is_share(value) or value < least:
                raise InvalidInput(f"{name} must be a probability below 1, but {value!r} was given.")
        if self.max_rounds is not None:
            check_whole("max_rounds", self.max_rounds, 1)

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Refuse: an ordinary search of this class would reveal the rows."""
        raise InvalidInput(
            "Private(...) is for multicalibrate alone: any other use would look at the rows without privacy. Measure "
            "with the groups themselves; for a union, wrap it: Private(A + B, epsilon)."
        )

    def listed(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Return the whole class on these rows; which members it has does not depend on their sizes."""
        learner = self.groups.every_member().bind(X, sample_weight)
        if not learner.is_exact:
            raise InvalidInput(
                f"{self.groups!r} learns its subpopulations from the rows, so they can't be listed beforehand. "
                "Private takes Groups, Intersections or Memberships."
            )
        return learner
