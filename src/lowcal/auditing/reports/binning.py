"""Reliability: mean prediction and mean outcome in bins of the predictions, for every subpopulation.

For a label a, rows fall into bins B_1, ..., B_b by their probability f_a, at quantiles of all rows. A bin of a
subpopulation keeps E[c 1_B], E_c[f_a | B], E_c[y_a | B] and its effective number of rows: no rows are kept.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from lowcal.kernels.exact import Tables
from lowcal.kernels.reference import rows_in_cache
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.weights import CellIds
from lowcal.rows.base import START, Local, Rows, Scale, Shard
from lowcal.rows.powers import Plan, Powers
from lowcal.subpopulations.base import Family, effective_rows

#: Bins of a diagram: enough to see a shape, few enough that each holds rows.
BINS = 10
#: The cuts are quantiles of at most about this many rows, evenly spaced: their positions matter little.
SKETCHED = 50_000
#: A report keeps the bins of at most this many subpopulations, the worst, as many as its page lists.
KEPT = 1_000


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """The bins of one subpopulation and label that hold rows, in the order of the predictions.

    >>> one = ReliabilityBins(np.array([0.5]), np.array([100.0]), np.array([0.3]), np.array([0.4]))
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


def reliability(
    rows: Rows, families: Sequence[Family], wanted: Container[str] | None = None
) -> dict[str, tuple[ReliabilityBins, ...]]:
    """Return the bins of every wanted subpopulation (None: of all), one for each label; of equal names the last counts.

    Cost: a few rows for the cuts, then one pass.

    >>> from lowcal.rows import Memory
    >>> from lowcal.subpopulations.base import Everyone
    >>> y, p = np.array([[0.0], [1.0], [1.0], [1.0]]), np.array([[0.2], [0.2], [0.9], [0.9]])
    >>> rows = Memory.of(np.zeros((4, 0)), p, y, np.full(4, 0.25))
    >>> bins = reliability(rows, [Everyone()])["everyone"][0]
    >>> bins.prediction, bins.outcome, bins.rows
    (array([0.2, 0.9]), array([0.5, 1. ]), array([2., 2.]))
    """
    step = max(1, rows.scale.n // SKETCHED)
    some = rows.sample(np.arange(0, rows.scale.n, step) if step > 1 else None)
    at = tuple(cuts(f, some.weight, BINS) for f in some.at(START).T)
    table = rows.run(Bins(tuple(families), at, rows.is_even))
    names = [name for family in families for name in family.names]
    kept = [(j, name) for j, name in enumerate(names) if wanted is None or name in wanted]
    return {name: tuple(ReliabilityBins(*one[:, one[0] > 0.0]) for one in table[j]) for j, name in kept}


def cuts(f: FloatArray, weight: FloatArray, n_bins: int) -> FloatArray:
    """Return at most n_bins - 1 cuts at the weighted quantiles of f, each between two values that occur.

    >>> cuts(np.array([0.0, 0.0, 0.0, 0.4, 1.0, 1.0]), np.full(6, 1 / 6), 3)
    array([0.2, 0.7])
    """
    held = weight > 0.0
    values, which = np.unique(f[held], return_inverse=True)
    if len(values) < 2:
        return np.empty(0)
    below = np.cumsum(np.bincount(which, weight[held]))
    wanted = below[-1] * np.arange(1, n_bins) / n_bins
    last = np.unique(np.searchsorted(below, wanted * (1.0 - 1e-12)))
    last = last[last < len(values) - 1]
    return np.asarray((values[last] + values[last + 1]) / 2)


@dataclass(frozen=True, eq=False)
class Bins:
    """Mass, rows, mean prediction and mean outcome of every subpopulation, label and bin: (m, d, 4, bins)."""

    families: tuple[Family, ...]
    cuts: tuple[FloatArray, ...]
    is_even: bool

    def _plan(self, some: Local, scale: Scale) -> Plan:
        return Plan.of(some.design(self.families), (Powers(1, 1, 3), Powers(2, 2)), scale, self.is_even)

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of a shard, label by label."""
        plan, p, tables = self._plan(shard, shard.scale), shard.at(START), Tables()
        for a, at in enumerate(self.cuts):
            sums = plan.sums(CellIds(np.searchsorted(at, p[:, a]), BINS))
            for part in rows_in_cache(len(p), 8):
                w, unit = shard.weight[part, None], shard.unit[part, None]
                sums.add(part, [w * np.column_stack([np.ones(len(w)), p[part, a], shard.y[part, a]]), w * unit])
            tables += sums.wholes()
        return tables

    def read(self, total: Tables, some: Local, scale: Scale) -> FloatArray:
        """Return the bins."""
        plan, size = self._plan(some, scale), len(total) // len(self.cuts)
        each = [plan.read(total[k : k + size], are_cells=True) for k in range(0, len(total), size)]
        return np.stack([_bins(sums, square[:, :, 0]) for sums, square in each], axis=1)


def _bins(sums: FloatArray, square: FloatArray) -> FloatArray:
    """Return the bins of one label, (m, 4, bins), from the sums of w, w f and w y, and of w^2."""
    mass = np.maximum(sums[:, :, 0], 0.0)
    mass[mass < mass.sum(axis=1, keepdims=True) * 1e-12] = 0.0  # rounding errors in empty bins
    means = np.clip(sums[:, :, 1:] / np.where(mass > 0.0, mass, 1.0)[:, :, None], 0.0, 1.0)
    return np.stack([mass, effective_rows(mass, square), means[:, :, 0], means[:, :, 1]], axis=1)
