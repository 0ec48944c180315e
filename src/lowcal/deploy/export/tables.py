"""Tables over joint levels, made small: groups are looked up in the columns that they depend on, and no others.

A merged code column has up to thousands of joint levels, and a table over them holds coefficients for each. Most groups
depend on one or two of the merged columns, so that tables over these tell the same in far fewer numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from scipy import sparse

from lowcal.kernels.reference import Table
from lowcal.kernels.simplex import IntArray

#: A table of more numbers is split into one for each set of columns that its groups depend on.
SMALL = 1 << 12


@dataclass(frozen=True, eq=False)
class Split:
    """Some members of a table, by the axes (columns) that they depend on, as a table over the levels of these."""

    axes: tuple[int, ...]
    members: IntArray
    table: Table


def split(decode: Table, shape: Sequence[int], numbers: int) -> list[Split]:
    """Return the groups of a table over joint levels: together while their table is small, else by their columns.

    `shape` are the levels of the merged columns, `numbers` the coefficients of a group.
    """
    sets = axes_of(decode.matrix, shape)
    together = tuple(sorted(set().union(*sets)))
    if prod(shape[a] for a in together) * numbers <= SMALL:
        sets = [together] * len(sets)
    found = []
    for axes in dict.fromkeys(sets):
        inside = np.flatnonzero([own == axes for own in sets])
        found.append(Split(axes, inside, project(decode.take(inside), shape, axes)))
    return found


def axes_of(matrix: sparse.csr_array, shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Return for each group (column of a table over joint levels) the axes of the levels that it depends on.

    A group is a product of sets of levels; it does not depend on an axis where its set is all levels. A column that
    is no such product depends on all axes.

    >>> table = sparse.csr_array(np.array([[1, 0], [1, 0], [1, 1], [0, 0], [0, 0], [0, 0]], dtype=float))
    >>> axes_of(table, (2, 3))
    [(0,), (0, 1)]
    """
    entries = matrix.tocoo()
    levels = np.unravel_index(entries.row, tuple(shape))
    m = matrix.shape[1]
    met = np.array([_distinct(entries.col, level, m) for level in levels]).reshape(len(shape), m)
    held = np.bincount(entries.col, minlength=m)
    is_product = (held == met.prod(axis=0)) & (np.bincount(entries.col, entries.data != 1.0, minlength=m) == 0)
    needed = (met < np.array(shape)[:, None]) | ~is_product
    return [tuple(np.flatnonzero(axis).tolist()) for axis in needed.T]


def _distinct(groups: IntArray, level: IntArray, m: int) -> IntArray:
    """Return how many levels of one axis each group holds."""
    pairs = np.unique(np.column_stack([groups, level]), axis=0)
    return np.bincount(pairs[:, 0], minlength=m)


def project(decode: Table, shape: Sequence[int], axes: Sequence[int]) -> Table:
    """Return the table over the joint levels of some axes, for groups that depend on no other."""
    entries = decode.matrix.tocoo()
    levels = np.unravel_index(entries.row, tuple(shape))
    row = np.zeros_like(entries.row)
    for a in axes:
        row = row * shape[a] + levels[a]
    pairs, first = np.unique(np.column_stack([row, entries.col]), axis=0, return_index=True)
    size = (prod(shape[a] for a in axes), decode.shape[1])
    return Table(sparse.csr_array((entries.data[first], (pairs[:, 0], pairs[:, 1])), shape=size))
