"""What a page reads: the parts of an audit and of its findings, as `lowcal.reports` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from lowcal.guarantees import GroupMoments
from lowcal.inputs import Layout
from lowcal.report.binning import Binned
from lowcal.tolerances import Tolerance

#: What findings are ranked by: the violation over all rows, or the error per person.
By = Literal["violation", "per_person"]


class Difference(Protocol):
    """One class on one subpopulation, per person."""

    @property
    def gap(self) -> float:
        """Mean outcome less mean prediction."""
        ...


class Found(Protocol):
    """One subpopulation and the weight that shows its largest violation."""

    @property
    def subpopulation(self) -> str:
        """Its name."""
        ...

    @property
    def weight(self) -> object:
        """The weight; `str()` names it."""
        ...

    @property
    def label(self) -> Any:
        """The class whose mean prediction is farthest from its mean outcome."""
        ...

    @property
    def violation(self) -> float:
        """E[c <w(f), y - f>], signed."""
        ...

    @property
    def conditional(self) -> float:
        """The violation divided by the mass."""
        ...

    @property
    def lower(self) -> float:
        """The lower limit of the violation."""
        ...

    @property
    def upper(self) -> float:
        """The upper limit of the violation."""
        ...

    @property
    def least_per_person(self) -> float:
        """The certified lower limit of the size of the error per person."""
        ...

    def interval(self, by: By) -> tuple[float, float, float]:
        """Return the violation, or the error per person, with its limits."""
        ...

    @property
    def mass(self) -> float:
        """The share of the population."""
        ...

    @property
    def n_effective(self) -> float:
        """How many rows it is worth."""
        ...

    @property
    def null_floor(self) -> float:
        """What a perfect model would show by chance."""
        ...

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero."""
        ...

    @property
    def gaps(self) -> Sequence[Difference]:
        """Mean prediction and outcome of every class."""
        ...

    @property
    def largest_gap(self) -> Difference:
        """The class where they differ most."""
        ...


class Extent(Protocol):
    """The largest error of any subpopulation."""

    @property
    def error(self) -> float:
        """That of the sample."""
        ...

    @property
    def lower(self) -> float:
        """The lower limit of the population's."""
        ...

    @property
    def upper(self) -> float:
        """The upper limit of the population's."""
        ...

    @property
    def null_floor(self) -> float:
        """What a perfect model would show by chance."""
        ...

    @property
    def detectable(self) -> float:
        """The smallest one that is detected with 80% power."""
        ...


class Audit(Protocol):
    """An audit: `lowcal.AuditReport`."""

    @property
    def notion(self) -> object:
        """What was audited; `str()` names it."""
        ...

    @property
    def tolerance(self) -> Tolerance:
        """The error that is tolerated."""
        ...

    @property
    def by(self) -> By:
        """What was asked about: violations, or errors per person."""
        ...

    @property
    def confidence(self) -> float:
        """The probability with which everything said holds."""
        ...

    @property
    def method(self) -> str:
        """How the intervals were made."""
        ...

    @property
    def layout(self) -> Layout:
        """The classes."""
        ...

    @property
    def n_rows(self) -> int:
        """How many rows judged."""
        ...

    @property
    def n_effective(self) -> float:
        """How many rows these are worth."""
        ...

    @property
    def verdict(self) -> str:
        """Satisfied, violated or undecided."""
        ...

    @property
    def largest(self) -> Extent:
        """The largest error, as violation or per person: the one that the verdict is about."""
        ...

    @property
    def largest_per_person(self) -> Extent:
        """The largest error per person among groups that are large enough to be judged."""
        ...

    @property
    def p_value(self) -> float:
        """The exact test of perfect calibration; nan without one."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether every subpopulation of the class was judged."""
        ...

    @property
    def findings(self) -> tuple[Found, ...]:
        """A finding for each subpopulation, the worst first."""
        ...

    @property
    def proof(self) -> Found:
        """The finding that proves the most."""
        ...

    def shown(self, n: int) -> tuple[Found, ...]:
        """Return the n worst findings, and the one the verdict rests on."""
        ...

    @property
    def moments(self) -> Mapping[str, Sequence[tuple[GroupMoments, float]]]:
        """For each subpopulation and label the moments, and a margin on their violations."""
        ...

    @property
    def reliability(self) -> Mapping[str, Sequence[Binned]]:
        """For the worst subpopulations the bins of each label."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a reader must know."""
        ...

    @property
    def seed(self) -> int | None:
        """The seed, where one was given."""
        ...


def labels(audit: Audit) -> list[str]:
    """Return the name of every coordinate of a prediction: one for each class, or one empty name for scalars."""
    layout = audit.layout
    if layout.d == 1:
        return [""]
    return [str(a if layout.classes is None else layout.classes[a]) for a in range(layout.d)]
