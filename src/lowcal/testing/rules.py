"""How a rule is tried, and how a broken one is reported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from lowcal.errors import CheckFailed, FitWarning

#: Two figures agree if they differ by no more than this share of the size of the problem.
CLOSE = 1e-8


def require(holds: bool | np.bool_, broken: str, remedy: str) -> None:
    """Raise a CheckFailed that says what is broken, with its numbers, and what to change.

    >>> require(1 < 2, "never seen", "never seen")
    >>> require(2 < 1, "2 is not below 1.", "Take a smaller number.")
    Traceback (most recent call last):
    lowcal.errors.CheckFailed: 2 is not below 1. Take a smaller number.
    """
    if not holds:
        raise CheckFailed(f"{broken} {remedy}")


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
