"""Chance that belongs to a row: a function of a seed and the row's number, wherever the row is and whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.loops import kernels_at_hand
from lowcal.kernels.simplex import FloatArray, IntArray

#: Rows that are drawn, sorted, sampled or held out at a time: more would take too much memory or time.
MANY_ROWS = 1 << 18


def uniforms(seed: Sequence[int], first: int, n: int) -> FloatArray:
    """Return a number in [0, 1) for each of n rows from number `first` on (splitmix64).

    >>> bool((uniforms((0, 1), 2, 3) == uniforms((0, 1), 0, 5)[2:]).all())
    True
    """
    return uniforms_of(key_of(seed), first, n)


def key_of(seed: Sequence[int]) -> np.uint64:
    """Return the key of a seed, for many calls of `uniforms_of`."""
    key: np.uint64 = np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0]
    return key


def uniforms_of(key: np.uint64, first: int, n: int) -> FloatArray:
    """Return `uniforms` of the seed that the key belongs to."""
    u = np.empty(n)
    kernels_at_hand().lay_uniforms(key, first, u)
    return u


def draw_labels(p: FloatArray, u: FloatArray) -> FloatArray:
    """Return labels drawn from the predictions by uniform numbers: 0 or 1 for scalars, one-hot on the simplex.

    >>> draw_labels(np.array([[0.25], [0.25]]), np.array([0.2, 0.3])).ravel().tolist()
    [1.0, 0.0]
    """
    if p.shape[1] == 1:
        return (u < p[:, 0]).astype(np.float64)[:, None]
    label = np.minimum((u[:, None] > np.cumsum(p, axis=1)).sum(axis=1), p.shape[1] - 1)
    return np.asarray(np.eye(p.shape[1])[label])


def draw_shares(p: FloatArray, copies: IntArray, seed: Sequence[int]) -> FloatArray:
    """Return the share of each label among the copies of every row, which draw theirs from the predictions.

    Labels of single rows have keys; copies, of which there are many, share a generator for all rows of a shard.

    >>> shares = draw_shares(np.array([[0.0], [0.5], [1.0]]), np.array([5, 10**8, 7]), (0,)).ravel()
    >>> shares.round(3).tolist()
    [0.0, 0.5, 1.0]
    """
    rng, every = np.random.default_rng(list(seed)), copies[:, None]
    if p.shape[1] == 1:
        return np.asarray(rng.binomial(every, p) / every)
    drawn, left, rest = np.empty(p.shape), copies, np.ones(len(p))
    for a, f in enumerate(p.T[:-1]):
        chance = np.divide(f, rest, out=np.ones(len(f)), where=rest > 0.0)
        taken = rng.binomial(left, np.minimum(chance, 1.0))
        drawn[:, a], left, rest = taken, left - taken, np.maximum(rest - f, 0.0)
    drawn[:, -1] = left
    return drawn / every


@dataclass(frozen=True)
class Dealt:
    """Some of `n` rows: those of a fold of `n_folds`, or all but these. Few rows are dealt evenly."""

    seed: tuple[int, ...]
    n: int
    n_folds: int
    fold: int
    is_inside: bool

    def __call__(self, first: int, n: int) -> NDArray[np.bool_]:
        """Return which of the n rows from number `first` on these are.

        >>> [int(Dealt((0,), 10, 5, k, True)(0, 10).sum()) for k in range(5)]
        [2, 2, 2, 2, 2]
        """
        return np.asarray((folds_of(self.seed, self.n, self.n_folds, first, n) == self.fold) == self.is_inside)


def folds_of(seed: tuple[int, ...], of: int, n_folds: int, first: int, n: int) -> NDArray[np.intp]:
    """Return the fold of each of n rows from number `first` on; few rows are dealt evenly."""
    place = _places(seed, of, first, n)
    return (uniforms(seed, first, n) * n_folds).astype(np.intp) if place is None else place % n_folds


@dataclass(frozen=True)
class Drawn:
    """A share of `n` rows, or all but these; of few rows, at least one."""

    seed: tuple[int, ...]
    n: int
    share: float
    is_inside: bool

    def __call__(self, first: int, n: int) -> NDArray[np.bool_]:
        """Return which of the n rows from number `first` on these are.

        >>> int(Drawn((0,), 10, 0.25, True)(0, 10).sum())
        3
        """
        place = _places(self.seed, self.n, first, n)
        inside = uniforms(self.seed, first, n) < self.share if place is None else place < ceil(self.share * self.n)
        return np.asarray(inside == self.is_inside)


def shares_of(seed: tuple[int, ...], of: int, first: int, n: int) -> FloatArray:
    """Return a number in [0, 1) for each of n rows: of few rows, their places in a random order, evenly spaced.

    >>> sorted(shares_of((0,), 4, 0, 4).tolist())
    [0.125, 0.375, 0.625, 0.875]
    """
    place = _places(seed, of, first, n)
    return uniforms(seed, first, n) if place is None else (place + 0.5) / of


def _places(seed: tuple[int, ...], of: int, first: int, n: int) -> NDArray[np.intp] | None:
    """Return the places of rows in the order of the numbers of all `of` rows; None: these are too many to be sorted."""
    if of > MANY_ROWS:
        return None
    places = np.empty(of, dtype=np.intp)
    places[np.argsort(uniforms(seed, 0, of), kind="stable")] = np.arange(of)
    return places[first : first + n]


def copies_inside(mask: Callable[[int, int], NDArray[np.bool_]], copies: IntArray) -> IntArray:
    """Return how many copies of each row a mask means, where copies are numbered one after the other, row by row.

    >>> copies_inside(lambda first, n: np.arange(first, first + n) % 2 == 0, np.array([1, 4, 3])).tolist()
    [1, 2, 1]
    """
    ends = np.cumsum(copies)
    n, before, below = int(ends[-1]), 0, np.zeros(len(ends), dtype=np.int64)
    for first in range(0, n, MANY_ROWS):
        inside = np.cumsum(mask(first, min(MANY_ROWS, n - first)))
        start, stop = np.searchsorted(ends, (first, first + len(inside)), side="right")
        below[start:stop] = before + inside[ends[start:stop] - first - 1]
        before += int(inside[-1])
    return np.diff(below, prepend=0)


def count(mask: Callable[[int, int], NDArray[np.bool_]], n: int) -> int:
    """Return how many of n rows a mask means.

    >>> count(Drawn((0,), 10, 0.0, False), 10)
    10
    """
    return sum(int(mask(first, min(MANY_ROWS, n - first)).sum()) for first in range(0, n, MANY_ROWS))
