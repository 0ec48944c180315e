"""A panel: rows to test on, the subpopulations tested there, and what passes tell of them: sizes, noise and bins."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.exact import Fine, Tables, Wholes
from lowcal.kernels.reference import Design, rows_in_cache
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.base import Finite, Notion, Suprema
from lowcal.notions.finite import Full, LowDegree, Multiaccuracy
from lowcal.notions.smooth import Smooth
from lowcal.notions.weights import CellIds, Weight
from lowcal.rows.base import START, Local, Rows, Scale, Shard
from lowcal.rows.grids import LinePoints, PlacedResiduals, negatives, smooth_on_grid
from lowcal.rows.passes import CellMoments
from lowcal.rows.powers import Plan, Powers
from lowcal.subpopulations.base import Family, effective_rows

#: The least share of labels that are assumed to be drawn at random: predictions of exactly 0 and 1 need some noise.
LEAST_NOISE = 1e-9
#: Points of the grid on which smooth weights see the predictions of redrawn labels.
GRID = 1 << 10


@dataclass(frozen=True, eq=False)
class Panel:
    """Rows to test on, and the subpopulations tested there, which were chosen without the labels of these rows.

    `is_label`: outcomes are labels, drawn with some probability, and not numbers in [0, 1]. The rows are read by
    passes; only weight classes that are not finitely many moments use `whole`.
    """

    rows: Rows
    families: tuple[Family, ...]
    is_label: bool = True

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all subpopulations."""
        return tuple(name for family in self.families for name in family.names)

    @property
    def d(self) -> int:
        """The number of coordinates of a prediction."""
        return self.rows.d

    @cached_property
    def energy(self) -> float:
        """Return sum p_i^2 = 1 / n_eff."""
        return 1.0 / self.rows.worth

    @property
    def mass(self) -> FloatArray:
        """E[c] for every subpopulation."""
        return self._sizes[0]

    @cached_property
    def reach(self) -> FloatArray:
        """A bound on the violations of a subpopulation on these rows: its mass, or 1 for memberships with signs."""
        return np.where(self.is_share, self.mass, 1.0)

    @cached_property
    def is_share(self) -> NDArray[np.bool_]:
        """Whether memberships have no signs, so that the mass is a share of the rows."""
        return self._sizes[1] <= self.mass * (1.0 + 1e-9)

    @cached_property
    def is_set(self) -> NDArray[np.bool_]:
        """Whether memberships are 0 or 1."""
        return np.abs(self._sizes[1] - self.mass) <= np.abs(self.mass) * 1e-9

    @cached_property
    def n_effective(self) -> FloatArray:
        """The effective number of rows of every subpopulation."""
        return effective_rows(self.mass, self._sizes[2])

    @cached_property
    def mass_error(self) -> FloatArray:
        """The standard error of every mass."""
        return np.sqrt(np.maximum(self._sizes[2] - np.square(self.mass) * self.energy, 0.0))

    @cached_property
    def _sizes(self) -> list[FloatArray]:
        """E[c], E[c^2] and sum p_i^2 c_i^2."""
        return self.rows.run(Sizes(self.families, self.rows.is_even))

    @cached_property
    def share(self) -> float:
        """The share t of labels that are assumed to be drawn at random, with `believed` probabilities.

        It is negligible unless the residuals are clearly larger than f allows (E|y - f|^2 = 1 - |f|^2 + 2t (|f|^2 -
        1 / labels) if a share t of the labels is drawn at random): then it is the least share within two standard
        errors. Predictions of 0 and 1 that are occasionally wrong have no noise of their own.
        """
        return self.rows.run(Excess())

    def grid_error(self, notion: Notion) -> FloatArray | float:
        """Return a bound on the error of a redrawn smooth supremum due to the rounding of predictions."""
        if not isinstance(notion, Smooth):
            return 0.0
        return self.rows.run(PlacedResiduals(START, self.families, LinePoints(GRID))).error

    def suprema(self, notion: Notion) -> Suprema:
        """Return the suprema of a class that is not finitely many moments; of smooth weights class-wise.

        Those of rows on disk are bracketed on a fine grid of predictions.
        """
        if isinstance(notion, Smooth) and not self.rows.is_near:
            return smooth_on_grid(self.rows, START, self.families)
        search = notion.classwise if isinstance(notion, Smooth) else notion.suprema
        return search(self.p, self.rho, self.design)

    def constraints(self, notion: Finite) -> tuple[Weight, ...]:
        """Return the weights whose moments determine the suprema on these rows."""
        if isinstance(notion, Full) and not notion.lists_every_cell(self.d):
            cells, _ = self.rows.run(CellMoments(START, self.families, notion.width))
            return cells
        if isinstance(notion, Full | LowDegree | Multiaccuracy):
            return tuple(notion.constraints(np.empty((0, self.d))))
        return tuple(notion.constraints(self.p))

    # --- all rows at once, which must be in memory

    @property
    def whole(self) -> Local:
        """All rows."""
        return self.rows.sample(None)

    @property
    def p(self) -> FloatArray:
        """The predictions."""
        return self.whole.at(START)

    @property
    def design(self) -> Design:
        """The memberships."""
        return self.whole.design(self.families)

    @property
    def rho(self) -> FloatArray:
        """The weighted residuals p_i (y_i - f_i)."""
        return self.whole.weight[:, None] * (self.whole.y - self.p)


def believed(f: FloatArray, share: float) -> FloatArray:
    """Return (1 - t) f + t / labels: the probabilities of labels of which a share t is drawn at random.

    >>> believed(np.array([[1.0], [0.5]]), 0.2).ravel().tolist()
    [0.9, 0.5]
    """
    return np.asarray((1.0 - share) * f + share / max(2, f.shape[1])) if share > 0.0 else f


@dataclass(frozen=True, eq=False)
class Sizes:
    """Totals of w c, w c^2 and w^2 c^2 of every member."""

    families: tuple[Family, ...]
    is_even: bool

    def _plan(self, some: Local, scale: Scale) -> Plan:
        blocks = Powers(1, 1), Powers(2, 1), Powers(2, 2)
        return Plan.of(some.design(self.families), blocks, scale, self.is_even)

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of a shard."""
        sums = self._plan(shard, shard.scale).sums()
        for part in rows_in_cache(len(shard), 3):
            w = shard.weight[part, None]
            sums.add(part, [w, w, w * shard.unit[part, None]])
        return sums.wholes()

    def read(self, total: Tables, some: Local, scale: Scale) -> list[FloatArray]:
        """Return the sums."""
        return [one[:, 0] for one in self._plan(some, scale).read(total)]


@dataclass(frozen=True, eq=False)
class Negatives:
    """The number of negative memberships: with them, the sign of a residual does not separate gains from losses."""

    families: tuple[Family, ...]

    def __call__(self, shard: Shard) -> int:
        """Return the sums of a shard."""
        return int(negatives(shard.design(self.families)).sum())

    def read(self, total: int, some: Local, scale: Scale) -> int:
        """Return the number."""
        return total


@dataclass(frozen=True, eq=False)
class Excess:
    """The pass for the share of labels that are drawn at random (`Panel.share`)."""

    def _grids(self, scale: Scale) -> list[Fine]:
        return [scale.fine(bound) for bound in (2.0, 1.0, 2.0 * scale.single, 4.0 * scale.single, scale.single)]

    def __call__(self, shard: Shard) -> Wholes:
        """Return the sums of e, room, w e, w e^2 and w, times w, for an excess e and a room |f|^2."""
        grids = self._grids(shard.scale)
        total = np.zeros((len(grids), 2), dtype=np.int64)
        p = shard.at(START)
        for part in rows_in_cache(len(p), 4 * p.shape[1]):
            f, w, unit = p[part], shard.weight[part], shard.unit[part]
            both = 2.0 if f.shape[1] == 1 else 1.0  # a scalar stands for two labels
            room = np.square(f).sum(axis=1) + (np.square(1.0 - f[:, 0]) if f.shape[1] == 1 else 0.0)
            e = both * np.square(shard.y[part] - f).sum(axis=1) - (1.0 - room)
            we = w * e
            terms = we, w * room, w * unit * e, we * (we if shard.copies is None else unit * e), w * unit
            total += [fine.wholes(one) for fine, one in zip(grids, terms, strict=True)]
        return total

    def read(self, total: Wholes, some: Local, scale: Scale) -> float:
        """Return the share."""
        mean, room, cross, square, energy = (
            fine.number(one) for fine, one in zip(self._grids(scale), total, strict=True)
        )
        error = np.sqrt(max(square - 2.0 * mean * cross + mean * mean * energy, 0.0))
        slope = 2.0 * (room - 1.0 / max(2, some.y.shape[1]))
        return min(1.0, max(LEAST_NOISE, float(mean - 2.0 * error) / slope if slope > LEAST_NOISE else 0.0))


# --- reliability -----------------------------------------------------------------------------------------------
#: Bins of a diagram: enough to see a shape, few enough that each holds rows.
BINS = 10
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
    step = max(1, rows.scale.n // 50_000)  # of few rows, evenly spaced: the positions of the cuts matter little
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
        """Return the sums of a shard."""
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
