"""The options of a fit as one value, checked once: what is asked for, how to get there, and when to stop.

alpha is the paper's: it bounds E[c <w(f), y - f>] over all rows, so a group that holds 1% of them may be off by
100 alpha per person. `per_person` bounds the same violation divided by the mass of the group.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput, suggest
from lowcal.data.inputs import check_share, check_whole
from lowcal.kernels.simplex import FloatArray, Geometry
from lowcal.notions import Notion, parse_notion
from lowcal.solve.homes import read_class
from lowcal.subpopulations import Private, Subpopulations

SolverName = Literal["first", "worst", "block"]

#: What `audit` tolerates where neither alpha nor per_person is given.
ALPHA = 0.01
#: Limits per person hold in groups that hold at least this share of the population.
MIN_SHARE = 0.01
#: Held-out rounds without improvement before stopping: the steps of the three solvers differ in size.
PATIENCE = {"first": 100, "worst": 20, "block": 3}
#: The words that an option may be, where it is a word.
WORDS = {
    "solver": tuple(PATIENCE),
    "geometry": (None, "euclidean", "mirror"),
}
#: What must be left at its default where `Private(...)` brings its own solver, step and stop rule.
NOT_PRIVATE = {
    "solver": "block",
    "geometry": "euclidean",
    "step": None,
    "per_person": None,
    "validation_fraction": 0,
}


@dataclass(frozen=True)
class Tolerance:
    """The largest violation allowed: `alpha` everywhere, or `per_person` times the mass of each group.

    >>> Tolerance(per_person=0.02).of(np.array([1.0, 0.25, 0.001]))
    array([0.02 , 0.005,   inf])
    >>> print(Tolerance(0.01), "|", Tolerance(per_person=0.02))
    alpha=0.01 | per_person=0.02
    """

    alpha: float | None = None
    per_person: float | None = None
    min_share: float = MIN_SHARE

    def __post_init__(self) -> None:
        if self.alpha is not None and self.per_person is not None:
            raise InvalidInput("Give alpha or per_person, not both.")
        for name, typical in (("alpha", "0.001 to 0.1"), ("per_person", "0.01 to 0.1")):
            value = getattr(self, name)
            if value is not None and (not _is_number(value) or not 0.0 < float(value) < np.inf):
                raise InvalidInput(
                    f"{name} must be a positive number, but {value!r} was given. Typical values: {typical}."
                )
        if not _is_number(self.min_share) or not 0.0 <= float(self.min_share) <= 1.0:
            raise InvalidInput(f"min_share must be a share in [0, 1], but {self.min_share!r} was given.")

    def of(self, mass: FloatArray) -> FloatArray:
        """Return the largest violation allowed in each group of this mass; infinite in groups below `min_share`."""
        if self.per_person is None:
            return np.full(mass.shape, self.largest)
        return np.where(self.judges(mass), self.per_person * mass, np.inf)

    def judges(self, mass: FloatArray | float) -> NDArray[np.bool_]:
        """Return whether groups of this mass are large enough for limits per person."""
        return np.asarray(mass) >= self.min_share * (1.0 - 1e-9)

    @property
    def largest(self) -> float:
        """The number asked for: the largest error per person, or the largest violation."""
        return self.per_person if self.per_person is not None else ALPHA if self.alpha is None else self.alpha

    def __str__(self) -> str:
        return f"{'alpha' if self.per_person is None else 'per_person'}={self.largest:g}"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `multicalibrate` and the estimators are asked for; their docstrings explain each option."""

    subpopulations: Subpopulations | None = None
    notion: str | Notion = "degree-2"
    alpha: float | None = None
    per_person: float | None = None
    min_share: float = MIN_SHARE
    solver: SolverName = "block"
    geometry: Geometry | None = None
    step: float | None = None
    guard: bool | float = True
    validation_fraction: float = 0.0
    max_updates: int | None = None
    callback: Callable[[Any], bool | None] | None = None
    progress: bool = False
    memory: int | None = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        """Refuse options that have no meaning, before any work is done."""
        Tolerance(self.alpha, self.per_person, self.min_share)
        self._check_words()
        if self.step is not None and (not _is_number(self.step) or not 0 < float(self.step) <= 1):
            raise InvalidInput(f"step must be None or a number in (0, 1], but {self.step!r} was given.")
        check_share("validation_fraction", self.validation_fraction)
        check_share("guard", self.fold_share)
        for name in ("max_updates", "memory"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        if self.callback is not None and not callable(self.callback):
            raise InvalidInput(f"callback must be a function of a Record, but {self.callback!r} was given.")
        if self.resume and self.checkpoint is None:
            raise InvalidInput("resume=True needs the file to go on from: pass checkpoint=path as well.")
        parse_notion(self.notion)
        object.__setattr__(self, "subpopulations", read_class(self.subpopulations))
        if isinstance(self.subpopulations, Private):
            self._check_private()

    @property
    def target(self) -> float:
        """The number that violations are held to; 0: as far as the rows allow."""
        given = self.alpha if self.per_person is None else self.per_person
        return 0.0 if given is None else float(given)

    @property
    def fold_share(self) -> float:
        """The share of the rows that each fold of the guard holds out; 0: there is no guard."""
        return 0.2 * self.guard if isinstance(self.guard, bool) else self.guard

    def _check_words(self) -> None:
        for name, valid in WORDS.items():
            given, words = getattr(self, name), [word for word in valid if word is not None]
            if given not in valid:
                raise InvalidInput(f"Unknown {name} {given!r}; valid: {', '.join(words)}.{suggest(str(given), words)}")
        if self.solver == "first" and self.geometry == "mirror":
            raise InvalidInput(
                'The solver "first" is the paper\'s Euclidean algorithm; use "worst" or "block" with geometry="mirror".'
            )
        if self.solver == "first" and self.per_person is not None:
            raise InvalidInput('The solver "first" knows one alpha only; use "block" or "worst" with per_person.')

    def _check_private(self) -> None:
        for name, default in NOT_PRIVATE.items():
            given = getattr(self, name)
            if given != default and not (name == "geometry" and given is None):
                raise InvalidInput(
                    f"Private(...) brings its own solver, step and stop rule, so {name} must be left at {default!r}, "
                    f"but is {given!r}. Pass {name}={default!r}."
                )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def read_random_state(random_state: int | np.random.Generator | None) -> np.random.Generator:
    """Return the generator of a seed."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"random_state must be None, a whole number or a Generator, but {random_state!r} was given."
        ) from error
