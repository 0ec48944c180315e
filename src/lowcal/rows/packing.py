"""Encoded rows cut, joined and taken apart into plain arrays: code columns, matrices, bits, and tuples of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowcal.kernels.simplex import IntArray
from lowcal.subpopulations.base import Encoded

#: Arrays, as they come out of `flatten` -> the rows.
Rebuild = Callable[[Iterator[NDArray[Any]]], Encoded]


def take_rows(rows: Encoded, some: IntArray | slice) -> Encoded:
    """Return some of the rows.

    >>> take_rows((np.array([1, 2, 3]), np.array([4, 5, 6])), np.array([0, 2]))
    (array([1, 3]), array([4, 6]))
    """
    return tuple(take_rows(part, some) for part in rows) if isinstance(rows, tuple) else rows[some]


def join_rows(parts: Sequence[Encoded]) -> Encoded:
    """Return the rows of all parts, one after the other.

    >>> join_rows([(np.array([1]),), (np.array([2]),)])
    (array([1, 2]),)
    """
    first: Any = parts[0]
    if isinstance(first, tuple):
        return tuple(join_rows(list(each)) for each in zip(*parts, strict=True))
    if len({type(part) for part in parts}) > 1:  # bits in one batch, shares in the next
        parts = [part if isinstance(part, np.ndarray) else part.dense() for part in parts]
        return np.concatenate(parts)
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if sparse.issparse(first):
        return sparse.csr_array(sparse.vstack(parts))
    return type(first).join(parts)


def kinds(rows: Encoded) -> Any:
    """Return the kinds of what rows are made of: 0/1 memberships may be packed as bits in one part of the rows alone.

    >>> kinds((np.zeros(2), (np.zeros(2),)))
    ('ndarray', ('ndarray',))
    """
    return tuple(kinds(part) for part in rows) if isinstance(rows, tuple) else type(rows).__name__


def unpack_bits(rows: Encoded) -> Encoded:
    """Return rows with numbers in place of bits."""
    if isinstance(rows, tuple):
        return tuple(unpack_bits(part) for part in rows)
    return rows.dense() if hasattr(rows, "dense") else rows


def flatten(rows: Encoded) -> tuple[list[NDArray[Any]], Rebuild]:
    """Return the arrays that rows are made of, a row for each of theirs, and how they are put together again.

    >>> arrays, rebuild = flatten((np.array([1, 2]), (np.array([3, 4]),)))
    >>> len(arrays), rebuild(iter(arrays))
    (2, (array([1, 2]), (array([3, 4]),)))
    """
    if isinstance(rows, tuple):
        parts = [flatten(part) for part in rows]
        each = [rebuild for _, rebuild in parts]
        return [a for arrays, _ in parts for a in arrays], lambda arrays: tuple(one(arrays) for one in each)
    if isinstance(rows, np.ndarray):
        return [rows], next
    arrays, rebuild = rows.flat()
    return list(arrays), rebuild
