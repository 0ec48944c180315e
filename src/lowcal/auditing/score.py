"""Score intervals with a correction for skewness, which are right for rare outcomes and for few rows.

Let v = sum p_i Z_i estimate g = E[Z], Z = c <w(f), y - f>. A value g is accepted where the normal score of v under g,

    t = (v - g) / sd(g),   z = ((1 + s t / 2)^(1/3) - 1 + s^2 / 36) 6 / s   (Wilson and Hilferty 1931),

lies within a critical value. Both sd(g) and the skewness s(g) follow from the second and third moments of Z, which f
determines if g = 0, and which move with g as the labels' noise correlates them: by Cov(Z^k, Z) / Var(Z). For a constant
f this is the binomial variance at g, and the interval is Wilson's. Studentising by the observed variance instead calls
a perfect model wrong wherever few of the rare labels happen to be drawn. As sums of labels are discrete, |t| is reduced
by a share of s, which is one label in standard deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowcal.auditing.panel import Panel, believed
from lowcal.guarantees.groups import ratio
from lowcal.kernels.exact import Fine, Tables, Wholes
from lowcal.kernels.loops import FEW, spread
from lowcal.kernels.reference import pieces, rows_in_cache
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.notions.base import Witness
from lowcal.notions.weights import Cell, CellIds, Weight, evaluate
from lowcal.rows.base import START, Local, Scale, Shard
from lowcal.rows.powers import Plan, Powers
from lowcal.subpopulations.base import Family

T = TypeVar("T")
#: Sums of many numbers per row take pieces of the rows that are smaller by this factor, to stay in the second cache.
PIECES = 8


class Totals(NamedTuple, Generic[T]):
    """The sums for every Z; moments and variances are those of believed labels, given x.

    v = sum p Z, cross = sum p^2 Z and second = sum p^2 Z^2 are observed. noise = sum p^2 Var(Z), noise3 = sum p^3
    Cov(Z^2, Z), square = sum p^4 Var(Z^2); base, base2, base3 = sum p^k E[Z^k]. If all log odds move by t, base, the
    same with p^2, base2 and base3 move by t times shift, shift1, shift2 and shift3; steep is shift2 in absolute values.
    """

    v: T
    cross: T
    second: T
    noise: T
    noise3: T
    square: T
    shift: T
    shift1: T
    shift2: T
    shift3: T
    steep: T
    base: T
    base2: T
    base3: T


class Noise(NamedTuple):
    """Cov(z^k, z) of z = <w, y - f> for k = 1, 2, 3, Var(z^2) and E[z^k], at every row."""

    one: FloatArray
    two: FloatArray
    three: FloatArray
    square: FloatArray
    mean: FloatArray
    mean2: FloatArray
    mean3: FloatArray


#: The terms of `Totals` at every row: a factor (`factors`) times c^power w^order.
SUMMANDS = Totals(
    *(Powers(1, 1), Powers(1, 2), Powers(2, 2)),  # v, cross, second
    *(Powers(2, 2), Powers(3, 3), Powers(4, 4)),  # noise, noise3, square
    *(Powers(1, 1), Powers(1, 2), Powers(2, 2), Powers(3, 3)),  # shift, shift1, shift2, shift3
    *(Powers(2, 2), Powers(1, 1), Powers(2, 2), Powers(3, 3)),  # steep, base, base2, base3
)


def factors(z: FloatArray, noise: Noise, moved: Noise) -> Totals[FloatArray]:
    """Return the factors of the sums from residuals z, their noise, and the noise by which the moments move."""
    observed, spread = (z, z, np.square(z)), (noise.one, noise.two, noise.square)
    shifts = moved.one, moved.one, moved.two, moved.three, np.abs(moved.two)
    return Totals(*observed, *spread, *shifts, noise.mean, noise.mean2, noise.mean3)


# --- constraints ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ConstraintSums:
    """The sums of every constraint Z = c u_s (y_a - f_a), each of shape (m, S, d), all or some of `Totals`.

    `share` is that of labels drawn at random (`Panel.share`); None: outcomes are numbers, and their own powers stand
    for their noise.
    """

    families: tuple[Family, ...]
    weights: tuple[Weight, ...]
    share: float | None
    is_even: bool
    names: tuple[str, ...] = Totals._fields

    @property
    def _summands(self) -> list[Powers]:
        return [getattr(SUMMANDS, name) for name in self.names]

    def _plan(self, some: Local, scale: Scale) -> Plan:
        width = some.y.shape[1] * (1 if isinstance(self.weights[0], Cell) else len(self.weights))
        blocks = [one._replace(width=width) for one in self._summands]
        return Plan.of(some.design(self.families), blocks, scale, self.is_even)

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of a shard."""
        p, every = shard.at(START), self._summands
        cells = cells_of(self.weights, p)
        sums, numbers = self._plan(shard, shard.scale).sums(cells), p.shape[1] * len(every)
        for part in pieces(len(p), numbers if cells else numbers * len(self.weights) * PIECES):
            f, of_w = p[part], weight_powers(shard, part)
            of_u = powers(np.ones((1, 1)) if cells else np.asarray(evaluate(self.weights, f)), 4)
            z = shard.y[part] - f
            noise = _powers(z) if self.share is None else _label_noise(f, believed(f, self.share))
            found = [getattr(factors(z, noise, noise), name) for name in self.names]
            values = [of_w[one.order][:, None] * value for one, value in zip(every, found, strict=True)]
            sums.add(part, [outer_rows(of_u[one.power], value) for one, value in zip(every, values, strict=True)])
        return sums.wholes()

    def read(self, total: Tables, some: Local, scale: Scale) -> list[FloatArray]:
        """Return the sums."""
        found = self._plan(some, scale).read(total, isinstance(self.weights[0], Cell))
        return [one.reshape(len(one), len(self.weights), -1) for one in found]


def cells_of(weights: Sequence[Weight], p: FloatArray) -> CellIds | None:
    """Return the cell of every row, where the weights are cells."""
    U = evaluate(weights, p) if isinstance(weights[0], Cell) else None
    assert U is None or isinstance(U, CellIds)
    return U


def outer_rows(U: FloatArray, values: FloatArray) -> FloatArray:
    """Return u_s r_a as (rows, S d)."""
    return np.multiply(U[:, :, None], values[:, None, :]).reshape(len(values), -1)


def powers(x: FloatArray, most: int, by: FloatArray | None = None) -> list[FloatArray]:
    """Return x^0, x, .., x^most, by products, as NumPy takes logarithms above the second; or 1, x, x by, x by^2, ...

    >>> [one.tolist() for one in powers(np.array([3.0]), 3)]
    [[1.0], [3.0], [9.0], [27.0]]
    >>> [one.tolist() for one in powers(np.array([3.0]), 3, np.array([2.0]))]
    [[1.0], [3.0], [6.0], [12.0]]
    """
    found = [np.ones_like(x), x]
    for _ in range(most - 1):
        found.append(found[-1] * (x if by is None else by))
    return found


def weight_powers(shard: Shard, rows: slice | IntArray) -> list[FloatArray]:
    """Return 1, w, w^2, w^3, w^4 of some rows; of k copies of weight s, k s^2 and so on, which are sums over them."""
    return powers(shard.weight[rows], 4, None if shard.copies is None else shard.unit[rows])


def _label_noise(f: FloatArray, chance: FloatArray) -> Noise:
    """With h = q (1 - q): h, h (1 - 2f), h (1 - 3f + 3f^2), h (1 - 2f)^2, as z is 1 - f or, with 1 - q, -f."""
    h, square, skew = chance * (1.0 - chance), f * f, 1.0 - 2.0 * f
    cube = 1.0 - 3.0 * (f - square)  # (1 - f)^3 + f^3
    means = chance - f, square + chance * skew, chance * cube - square * f
    return Noise(h, h * skew, h * cube, h * skew * skew, *means)


def _powers(z: FloatArray) -> Noise:
    square = z * z
    return Noise(square, square * z, square**2, square**2, z, square, square * z)


# --- witnesses ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WitnessSums:
    """The sums of Z = c <w(f), y - f> for a weight w of every subpopulation c, each of shape (m,)."""

    families: tuple[Family, ...]
    witnesses: Sequence[Witness]
    share: float | None

    def _grids(self, scale: Scale) -> list[Fine]:
        return [scale.fine(scale.single ** (one.order - 1)) for one in SUMMANDS]

    def __call__(self, shard: Shard) -> Wholes:
        """Return the sums of a shard."""
        design, p, grids = shard.design(self.families), shard.at(START), self._grids(shard.scale)

        def one(j: int) -> Wholes:
            c, witness = design.column(j), self.witnesses[j]
            members, total = np.flatnonzero(c), np.zeros((len(grids), 2), dtype=np.int64)
            for part in rows_in_cache(len(members), FEW):
                here = members[part]
                f, of_w, of_c = p[here], weight_powers(shard, here), powers(c[here], 4)
                W = _values(witness, f)
                z = np.einsum("na,na->n", W, shard.y[here] - f)
                noise = moved = _powers(z)
                if self.share is not None:
                    noise, moved = _witness_noise(f, believed(f, self.share), W)
                values = zip(grids, SUMMANDS, factors(z, noise, moved), strict=True)
                total += [fine.wholes(of_c[one.power] * of_w[one.order] * value) for fine, one, value in values]
            return total

        return np.array(spread(one, range(len(self.witnesses)), len(p)))

    def read(self, total: Wholes, some: Local, scale: Scale) -> Totals[FloatArray]:
        """Return the sums."""
        return Totals(
            *(fine.total(one.T) for fine, one in zip(self._grids(scale), total.transpose(1, 0, 2), strict=True))
        )


def _values(witness: Witness, f: FloatArray) -> FloatArray:
    """Return the witness at every row, with the same bits for any number of rows, unlike a product of matrices."""
    used = np.flatnonzero(witness.coefficients.any(axis=1))
    weights, theta = [witness.weights[s] for s in used], witness.coefficients[used]
    U = evaluate(weights, f) if weights else np.zeros((len(f), 0))
    if isinstance(U, CellIds):
        return np.vstack([theta, np.zeros((1, theta.shape[1]))])[U.ids]
    total = np.zeros((len(f), theta.shape[1]))
    for u, row in zip(U.T, theta, strict=True):
        total += u[:, None] * row
    return total


def _witness_noise(f: FloatArray, chance: FloatArray, W: FloatArray) -> tuple[Noise, Noise]:
    """Return the noise of z = <w, y - f> at every row under the given label probabilities, and how its moments move.

    For scalars, moments move with a common shift of all log odds; on the simplex, with a shift of log odds along w.
    """
    if f.shape[1] == 1:
        w, own = powers(W[:, 0], 4), _label_noise(f[:, 0], chance[:, 0])
        means = own.mean * w[1], own.mean2 * w[2], own.mean3 * w[3]
        noise, moved = (
            Noise(own.one * w[k], own.two * w[k + 1], own.three * w[k + 2], own.square * w[4], *means) for k in (2, 1)
        )
        return noise, moved
    D = W - np.einsum("na,na->n", W, f)[:, None]  # what z is where the label is a
    mean = [np.einsum("na,na->n", chance, power) for power in powers(D, 4)[1:]]
    one, two, three = (mean[k] - mean[k - 1] * mean[0] for k in (1, 2, 3))
    noise = Noise(one, two, three, mean[3] - mean[1] ** 2, *mean[:3])
    return noise, noise


#: Share of one label taken off a deviation. With 2 to 40 labels expected and critical values from 1.96 to 3.4 there are
#: then at most 1.2 times as many misses as stated, 1.7 times without it (tests/auditing/test_certificates.py).
CONTINUITY = 0.15


@dataclass(frozen=True, eq=False)
class Cumulants:
    """Moments from which the variance and the skewness of v follow under any g; arrays of one shape.

    sum p^k E[Z^k], k = 2 and 3, are `sums.base2` and `sums.base3` if g = `sums.base`, where they are known best: at the
    believed probabilities for labels, else at v. The sample's own second moment counts against them as far as the
    difference exceeds its noise (`_second`). `is_chosen`: the sample chose Z, as the one with the largest v of many.
    """

    sums: Totals[FloatArray]
    energy: float
    is_label: bool
    is_chosen: bool = False

    @cached_property
    def slopes(self) -> tuple[FloatArray, ...]:
        """The derivatives in g of sum p^2 E[Z] and of these two, and that of the second in absolute values."""
        moved = self.sums.shift1, self.sums.shift2, self.sums.shift3, self.sums.steep
        return tuple(ratio(part, self.sums.shift, 0.0) for part in moved)

    @cached_property
    def regression(self) -> FloatArray:
        """How much of the second moment's noise goes with that of v."""
        return ratio(self.sums.noise3, self.sums.noise, 0.0)

    @cached_property
    def error(self) -> FloatArray:
        """The variance of the rest of that noise; 0 for numbers, whose own powers are their moments."""
        rest = np.maximum(self.sums.square - self.regression * self.sums.noise3, 0.0)
        return rest if self.is_label else np.zeros_like(rest)

    @property
    def v(self) -> FloatArray:
        """The estimates."""
        return self.sums.v

    def spread(self, g: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the variance and the skewness of v if E[Z] = g: sum p^2 (Z - g)^2 / (1 - sum p^2), moved to g."""
        second, left = self._second(g), 1.0 - self.energy
        slope1, _, slope3, _ = self.slopes
        around = np.maximum(second - np.square(g) * (2.0 * slope1 - self.energy), 0.0)
        variance = around / left if left > 1e-12 else np.full(np.shape(g), np.inf)
        third = self.sums.base3 + slope3 * (g - self.sums.base)
        third = third - 3.0 * g * self.energy * second + 2.0 * g**3 * self.energy**2
        return variance, ratio(third, variance**1.5, 0.0)

    def _second(self, g: FloatArray) -> FloatArray:
        """Return sum p^2 E[Z^2] if E[Z] = g.

        It is linear in g if all rows move it in the same direction. If some raise it and others lower it, as
        predictions near 0 and near 1 do, those that lower it run out of noise: then it is a hyperbola with the same
        slope at the base, and far from it with the slopes of either kind of rows. Of the sample's excess D with
        variance R^2, D (1 - (2 R / D)^2) is added, if positive; the share g / v of this if the sample chose Z: the more
        freely it chose, the larger its second moment, even if f is right.
        """
        sums, balance, (_, slope, _, steepest) = self.sums, self._balance, self.slopes
        along = balance * sums.base2 + steepest * (g - sums.base)
        moved = np.sqrt(np.square(along) + (1.0 - np.square(balance)) * np.square(sums.base2))
        moved = np.where(np.abs(balance) < 1.0, moved, sums.base2 + slope * (g - sums.base))
        excess = (sums.second - sums.base2) - (moved - sums.base2) - self.regression * (self.v - g)
        error = self.error * np.maximum(ratio(moved, sums.base2, 0.0), 1.0)  # it grows with the number of events
        kept = excess * np.maximum(0.0, 1.0 - ratio(4.0 * error, np.square(excess), 0.0))
        if self.is_chosen:
            kept = kept * np.clip(ratio(g * np.sign(self.v), np.abs(self.v), 0.0), 0.0, 1.0)
        return np.asarray(np.maximum(moved + np.where(error > 0.0, kept, 0.0), 0.0))

    @cached_property
    def _balance(self) -> FloatArray:
        """1 or -1 where all rows move the second moment the same way, and between them where they disagree."""
        return np.clip(ratio(self.slopes[1], self.slopes[3], 0.0), -1.0, 1.0)

    @property
    def standard_error(self) -> FloatArray:
        """The observed standard error of v: sqrt(sum p^2 (Z - v)^2 / (1 - sum p^2)); infinite for a single row."""
        spread = self.sums.second - 2.0 * self.v * self.sums.cross + np.square(self.v) * self.energy
        left = 1.0 - self.energy
        return np.sqrt(np.maximum(spread, 0.0) / left) if left > 1e-12 else np.full(np.shape(self.v), np.inf)

    def score(self, g: FloatArray) -> FloatArray:
        """Return the normal score of v if E[Z] = g; infinite where v is not g although the variance is 0."""
        variance, skewness = self.spread(g)
        t = np.divide(self.v - g, np.sqrt(variance), out=np.zeros(np.shape(g)), where=variance > 0.0)
        z = normal_score(t, skewness)
        gap = np.abs(self.v - g) > 1e-12 * (np.abs(self.v) + np.abs(g))
        return np.where((variance <= 0.0) & gap, np.copysign(np.inf, self.v - g), z)

    def limits(self, critical: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        """Return the least and the greatest g in [-1, 1] whose score is within the critical value."""
        side = np.array([-1.0, 1.0]).reshape(2, *np.ones(self.v.ndim, dtype=int))
        step = side * np.maximum(self.standard_error, self.slopes[3]) / 4.0

        def is_in(g: FloatArray) -> NDArray[np.bool_]:
            return np.abs(self.score(g)) <= critical

        # step outwards to the first g that is rejected, then bisect: the score is not monotone far from v
        inside, outside = np.broadcast_to(self.v, step.shape), np.clip(self.v + step, -1.0, 1.0)
        for _ in range(30):
            further = is_in(outside) & (np.abs(outside) < 1.0)
            if not further.any():
                break
            ahead = np.clip(self.v + 1.5 * (outside - self.v), -1.0, 1.0)
            inside, outside = np.where(further, outside, inside), np.where(further, ahead, outside)
        for _ in range(45):
            middle = (inside + outside) / 2
            accepted = is_in(middle)
            inside, outside = np.where(accepted, middle, inside), np.where(accepted, outside, middle)
        lower, upper = np.where(self.sums.noise > 0.0, outside, side)  # no bound without rows or noise
        return lower, upper


def normal_score(t: FloatArray, skew: FloatArray) -> FloatArray:
    """Return the normal score of a standardised sum of given skewness, by Wilson and Hilferty's cube root.

    >>> normal_score(np.array([-1.96, 0.0, 1.96]), np.zeros(3)).round(2)
    array([-1.96,  0.  ,  1.96])
    >>> normal_score(np.array([-1.96, 1.96]), np.full(2, 0.5)).round(2)  # skewed to the right: low sums are rarer
    array([-2.21,  1.73])
    """
    size, least = np.abs(skew), 1e-6  # less skewness is none, as the formula divides by it
    t = np.sign(t) * np.maximum(np.abs(t) - CONTINUITY * size, 0.0)
    s = np.where(size < least, least, skew)
    root = np.cbrt(np.maximum(1.0 + s * t / 2.0, 0.0))
    return np.asarray(np.where(size < least, t, (root - 1.0 + s * s / 36.0) * 6.0 / s))


def cumulants(panel: Panel, weights: Sequence[Weight]) -> Cumulants:
    """Return the sums of every constraint Z = c u_s (y_a - f_a), shape (m, S, d): one pass over the rows."""
    share = panel.share if panel.is_label else None
    found = panel.rows.run(ConstraintSums(panel.families, tuple(weights), share, panel.rows.is_even))
    return Cumulants(Totals(*found), panel.energy, panel.is_label)
