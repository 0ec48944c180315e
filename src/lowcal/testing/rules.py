"""A rule: what must hold of a user's class, in one sentence, with what to change where it does not.

A rule is a function that yields (whether it holds, what is broken), with the numbers; `attempt` runs it and raises a
`CheckFailed` at the first that does not hold. A third entry replaces the rule's own remedy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lowcal.data.errors import CheckFailed, FitWarning
from lowcal.kernels.simplex import FloatArray, brier
from lowcal.solve.fitting import Fit
from lowcal.solve.solvers import SolverName

#: The solvers with which every notion and class is fitted; "first" may need very many updates.
SOLVERS: tuple[SolverName, ...] = ("worst", "block")
#: Two figures agree if they differ by no more than this share of the size of the problem.
CLOSE = 1e-8
#: Brier scores of the same predictions differ by no more than this, by rounding.
EXACT = 1e-12

Findings = Iterator[tuple[bool | np.bool_, str] | tuple[bool | np.bool_, str, str]]


@dataclass(frozen=True)
class Rule:
    """A function that yields findings, the remedy, and what draws its samples if they are not the usual ones."""

    check: Callable[..., Findings]
    remedy: str
    on: Any = None

    @property
    def name(self) -> str:
        """The name by which a failure calls the rule."""
        return self.check.__name__


def listed(rules: list[Rule]) -> Callable[..., Callable[[Callable[..., Findings]], Callable[..., Findings]]]:
    """Return a decorator that adds rules to a list, in the order in which they are written."""

    def rule(remedy: str = "", on: Any = None) -> Callable[[Callable[..., Findings]], Callable[..., Findings]]:
        def add(check: Callable[..., Findings]) -> Callable[..., Findings]:
            rules.append(Rule(check, remedy, on))
            return check

        return add

    return rule


def attempt(rule: Rule, subject: object, where: str, *arguments: Any) -> None:
    """Try a rule; a failure, or an error in the subject's own code, names the subject, the rule and the place."""
    name = type(subject).__name__ if not isinstance(subject, type) else f"the class {subject.__name__}"
    place = f"{name} breaks the rule '{rule.name}' {where}:"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # fits to a few rows are studied, not used
            broken = next((rest for holds, *rest in rule.check(*arguments) if not holds), None)
    except Exception as error:
        raise CheckFailed(f"{place} it raised {type(error).__name__}: {error}") from error
    if broken is not None:
        raise CheckFailed(f"{place} {' '.join(broken if len(broken) == 2 else [*broken, rule.remedy])}")


def distance(given: ArrayLike, wanted: ArrayLike) -> float:
    """Return the largest difference of two arrays, infinity if their shapes differ.

    >>> distance([1.0, 2.0], [1.0, 2.5]), distance([1.0], [1.0, 2.0]), distance([], [])
    (0.5, inf, 0.0)
    """
    a, b = np.asarray(given), np.asarray(wanted)
    return float(np.abs(a - b).max(initial=0.0)) if a.shape == b.shape else np.inf


def largest_rise(fit: Fit, p: FloatArray, y: FloatArray, weight: FloatArray) -> float:
    """Return by how much an update of a fit raises the training Brier score, at most; 0 if none does."""
    return float(np.diff([brier(p, y, weight), *(record.brier for record in fit.history)]).max(initial=0.0))
