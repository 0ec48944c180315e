"""Reliability: what a model says and what is, in bins of its predictions, for every subpopulation.

For a label a, rows fall into bins B_1, ..., B_b by their probability f_a, at quantiles of all rows. A bin of a
subpopulation keeps E[c 1_B], E_c[f_a | B], E_c[y_a | B] and how many rows it is worth: no rows are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from lowcal.engines.reference import Design, pieces
from lowcal.simplex import FloatArray
from lowcal.subpopulations.base import effective_rows

#: Bins of a diagram: enough to see a shape, few enough that each holds rows.
BINS = 10
#: The cuts are quantiles of at most this many rows, evenly picked.
SKETCHED = 50_000
#: A report keeps the bins of at most this many subpopulations, the worst ones.
KEPT = 1_000


@dataclass(frozen=True, eq=False)
class Binned:
    """The bins of one subpopulation and label that hold rows, in the order of the predictions.

    >>> one = Binned(np.array([0.5]), np.array([100.0]), np.array([0.3]), np.array([0.4]))
    >>> [limit.round(3).tolist() for limit in one.limits(0.95)]
    [[0.309], [0.498]]
    """

    mass: FloatArray
    rows: FloatArray
    prediction: FloatArray
    outcome: FloatArray

    def limits(self, confidence: float) -> tuple[FloatArray, FloatArray]:
        """Return limits on the mean outcome that hold for all bins at once: Wilson's, at (1 - confidence) / bins.

        (m + z^2 / 2n -+ z sqrt(m (1 - m) / n + z^2 / 4n^2)) / (1 + z^2 / n). Outcomes in [0, 1] that are not labels
        vary less than this allows for.
        """
        z = NormalDist().inv_cdf(1.0 - (1.0 - confidence) / (2 * max(1, len(self.rows))))
        share = z * z / self.rows
        centre = self.outcome + share / 2
        half = np.sqrt(np.maximum(self.outcome * (1.0 - self.outcome), 0.0) * share + share**2 / 4)
        return np.maximum((centre - half) / (1.0 + share), 0.0), np.minimum((centre + half) / (1.0 + share), 1.0)


@dataclass(frozen=True, eq=False)
class Reliability(Mapping[str, tuple[Binned, ...]]):
    """The bins of many subpopulations by name, a `Binned` for each label; `table` has shape (m, d, 4, bins)."""

    names: tuple[str, ...]
    table: FloatArray

    def __getitem__(self, name: str) -> tuple[Binned, ...]:
        return tuple(Binned(*one[:, one[0] > 0.0]) for one in self.table[self._place[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def keep(self, names: Sequence[str]) -> Reliability:
        """Return the bins of some subpopulations only."""
        return Reliability(tuple(names), self.table[[self._place[name] for name in names]])

    @cached_property
    def _place(self) -> dict[str, int]:
        """Where a subpopulation stands; of equal names the last counts."""
        return {name: j for j, name in enumerate(self.names)}


def reliability(
    design: Design, y: FloatArray, p: FloatArray, weight: FloatArray, names: Sequence[str], n_bins: int = BINS
) -> Reliability:
    """Return the bins of every subpopulation and label. Cost: two passes of few columns over the rows for each label.

    >>> from lowcal.engines.reference import Matrix
    >>> y, p = np.array([[0.0], [1.0], [1.0], [1.0]]), np.array([[0.2], [0.2], [0.9], [0.9]])
    >>> bins = reliability(Matrix(np.ones((4, 1))), y, p, np.full(4, 0.25), ["everyone"])["everyone"][0]
    >>> bins.prediction, bins.outcome, bins.rows
    (array([0.2, 0.9]), array([0.5, 1. ]), array([2., 2.]))
    """
    table = np.stack(
        [_table(design, y[:, a], p[:, a], weight, cuts(p[:, a], weight, n_bins), n_bins) for a in range(p.shape[1])],
        axis=1,
    )
    return Reliability(tuple(names), table)


def cuts(f: FloatArray, weight: FloatArray, n_bins: int) -> FloatArray:
    """Return at most n_bins - 1 cuts at the weighted quantiles of f, each between two values that occur.

    >>> cuts(np.array([0.0, 0.0, 0.0, 0.4, 1.0, 1.0]), np.full(6, 1 / 6), 3)
    array([0.2, 0.7])
    """
    every = slice(None, None, max(1, len(f) // SKETCHED))
    held = weight[every] > 0.0
    values, which = np.unique(f[every][held], return_inverse=True)
    if len(values) < 2:
        return np.empty(0)
    below = np.cumsum(np.bincount(which, weight[every][held]))
    wanted = below[-1] * np.arange(1, n_bins) / n_bins
    last = np.unique(np.searchsorted(below, wanted * (1.0 - 1e-12)))
    last = last[last < len(values) - 1]
    return np.asarray((values[last] + values[last + 1]) / 2)


def _table(design: Design, y: FloatArray, f: FloatArray, weight: FloatArray, at: FloatArray, n_bins: int) -> FloatArray:
    """Return mass, rows, mean prediction and mean outcome of every subpopulation and bin: (m, 4, bins)."""
    n, m = design.shape
    bins = np.searchsorted(at, f)
    sums, square = np.zeros((m, n_bins, 3)), np.zeros((m, n_bins, 1))
    for part in pieces(n, 4):
        rows, w = design.rows(part), weight[part, None]
        sums += rows.cell_moments(bins[part], n_bins, w * np.column_stack([np.ones(len(w)), f[part], y[part]]))
        square += rows.power(2).cell_moments(bins[part], n_bins, w * w)
    mass = np.maximum(sums[:, :, 0], 0.0)
    mass[mass < mass.sum(axis=1, keepdims=True) * 1e-12] = 0.0  # what sums of differences leave in an empty bin
    means = np.clip(sums[:, :, 1:] / np.where(mass > 0.0, mass, 1.0)[:, :, None], 0.0, 1.0)
    return np.stack([mass, effective_rows(mass, square[:, :, 0]), means[:, :, 0], means[:, :, 1]], axis=1)


def joined(parts: Sequence[Reliability]) -> Reliability:
    """Return the bins of several families as one."""
    return Reliability(tuple(name for one in parts for name in one.names), np.concatenate([one.table for one in parts]))
