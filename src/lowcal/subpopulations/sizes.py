"""How many rows a group is worth, and which groups are too small to be examined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput
from lowcal.kernels.simplex import SMALLEST, FloatArray

#: More groups of one column that are too small are counted instead of named: a report has a line for them.
MOST_NAMED = 3


def masses_of(sample_weight: FloatArray) -> FloatArray:
    """Return w and w^2 of every row, shape (n, 2): their sums over a group give the number of rows it is worth."""
    return np.column_stack([sample_weight, np.square(sample_weight)])


def effective_rows(mass: FloatArray, square: FloatArray) -> FloatArray:
    """Return n_eff(c) = (sum w c)^2 / sum w^2 c from the two sums: the rows a group is worth (spec 0)."""
    return np.asarray(np.square(mass) / np.maximum(square, SMALLEST))


def is_enough(worth: FloatArray, min_mass: float) -> NDArray[np.bool_]:
    """Return which groups are worth min_mass rows; rounding does not count against 30 rows of weight 1/n each."""
    return np.asarray(worth >= max(min_mass * (1.0 - 1e-9), SMALLEST))


def list_rare(worth: FloatArray, name: Callable[[int], str], what: str, min_mass: float) -> list[str]:
    """List the groups that hold rows, but fewer than min_mass; of many, only their number.

    >>> list_rare(np.array([40.0, 29.0, 0.0]), lambda j: f"g={j}", "values of g", 30)
    ['g=1 (29 rows)']
    >>> list_rare(np.full(2000, 2.0), str, "values of id", 30)
    ['2,000 values of id (4,000 rows)']
    """
    rare = np.flatnonzero((worth > 0.0) & ~is_enough(worth, min_mass))
    if len(rare) > MOST_NAMED:
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
