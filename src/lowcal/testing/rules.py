"""How a rule is tried, and how a broken one is reported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from lowcal.data.errors import CheckFailed, FitWarning
from lowcal.kernels.simplex import FloatArray, brier
from lowcal.solve.runs import Fit

#: Two figures agree if they differ by no more than this share of the size of the problem.
CLOSE = 1e-8


def require(holds: bool | np.bool_, broken: str, remedy: str) -> None:
    """Raise a CheckFailed that says what is broken, with its numbers, and what to change.

    >>> require(1 < 2, "never seen", "never seen")
    >>> require(2 < 1, "2 is not below 1.", "Take a smaller number.")
    Traceback (most recent call last):
    lowcal.data.errors.CheckFailed: 2 is not below 1. Take a smaller number.
    """
    if not holds:
        fail(broken, remedy)


def fail(broken: str, remedy: str) -> NoReturn:
    """Raise the CheckFailed of `require`."""
    raise CheckFailed(f"{broken} {remedy}")


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


def attempt(rule: Callable[..., None], subject: object, where: str, *arguments: Any) -> None:
    """Try a rule; say of a failure, or of an error in the subject's own code, whose it is, of which rule and where."""
    name = type(subject).__name__ if not isinstance(subject, type) else f"the class {subject.__name__}"
    place = f"{name} breaks the rule '{rule.__name__}' {where}:"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # fits to a few rows are studied, not used
            rule(*arguments)
    except CheckFailed as failure:
        raise CheckFailed(f"{place} {failure}") from None
    except Exception as error:
        raise CheckFailed(f"{place} it raised {type(error).__name__}: {error}") from error
