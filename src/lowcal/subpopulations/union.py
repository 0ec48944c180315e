"""The union of hypothesis classes: search each, take the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lowcal.data.frames import Table as Frame
from lowcal.kernels.reference import Design
from lowcal.kernels.simplex import FloatArray, Geometry, IntArray
from lowcal.subpopulations.asking import Asked
from lowcal.subpopulations.base import (
    Encoded,
    Encoder,
    Family,
    LeftOut,
    Offer,
    Residual,
    Subpopulations,
    WeakLearner,
    answer,
)


@dataclass(frozen=True)
class Union(Subpopulations):
    """C = C_1 + C_2 + ...; written `A + B`. A member of several parts counts once."""

    parts: tuple[Subpopulations, ...]

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Prepare every part on the same rows."""
        return _together([part.bind(X, sample_weight) for part in self.parts], sample_weight)

    def bind_for(self, X: Frame, sample_weight: FloatArray, residual: Residual) -> WeakLearner:
        """Prepare every part for the same residuals."""
        return _together([part.bind_for(X, sample_weight, residual) for part in self.parts], sample_weight)


def _together(learners: Sequence[WeakLearner], sample_weight: FloatArray) -> WeakLearner:
    """Return the learner that searches each of those given."""
    known = [Part(i, family) for i, one in enumerate(learners) for family in one.families]
    encoder = UnionEncoder(tuple(one.encoder for one in learners))
    rows = tuple(one.rows for one in learners)
    learn = None if all(one.is_exact for one in learners) else LearnEach(learners)
    rare = dict.fromkeys(group for one in learners for group in one.left_out.groups)  # parts may name the same
    silent = dict.fromkeys(column for one in learners for column in one.left_out.columns)
    return WeakLearner(encoder, rows, sample_weight, known, learn, LeftOut(tuple(rare), tuple(silent)))


class LearnEach:
    """Makes new members with every part that learns, and offers what the parts that boost offer."""

    def __init__(self, learners: Sequence[WeakLearner]) -> None:
        self.learners = learners

    def ask(self, asked: Asked) -> Sequence[Family]:
        """Return the new families of all parts."""
        found: list[Family] = []
        for i, one in enumerate(self.learners):
            if one.learner is not None:
                found += [Part(i, family) for family in answer(one.learner, asked.of_part(i), one.weight)]
        return found

    def on(self, encoder: UnionEncoder) -> LearnEach:
        """Return the same parts for rows of another encoder."""
        parts = zip(self.learners, encoder.parts, strict=True)
        return LearnEach([one.on(own, None, one.weight) for one, own in parts])

    @property
    def boosts(self) -> bool:
        """Whether some part boosts."""
        return any(one.boosts for one in self.learners)

    @property
    def geometry(self) -> Geometry | None:
        """The geometry of what is offered: that of the first part that boosts."""
        return next((one.geometry for one in self.learners if one.boosts), None)

    @property
    def offers(self) -> Sequence[Offer]:
        """What the parts of this geometry proposed last."""
        return [
            replace(offer, family=Part(i, offer.family))
            for i, one in enumerate(self.learners)
            for offer in one.offers
            if offer.geometry == self.geometry
        ]


@dataclass(frozen=True)
class UnionEncoder:
    """One encoder for each part."""

    parts: tuple[Encoder, ...]

    def __call__(self, X: Frame) -> tuple[Encoded, ...]:
        """Encode X for every part."""
        return tuple(part(X) for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the encoders as plain data."""
        return {"kind": "union", "parts": [part.to_dict() for part in self.parts]}


@dataclass(frozen=True, eq=False)
class Part:
    """A family that reads one part of the rows."""

    index: int
    family: Family

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

    def to_dict(self) -> dict[str, Any]:
        """Return the family as plain data, with its place."""
        return {"kind": "part", "index": self.index, "family": self.family.to_dict()}
