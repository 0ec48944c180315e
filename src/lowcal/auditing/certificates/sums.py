"""What certificates add up over the rows for every constraint or witness Z = c <w(f), y - f>, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from lowcal.auditing.certificates.panel import believed
from lowcal.kernels.exact import Fine, Tables, Wholes
from lowcal.kernels.loops import FEW
from lowcal.kernels.reference import pieces, rows_in_cache
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.base import Witness
from lowcal.notions.weights import Cell, CellIds, Weight, evaluate
from lowcal.rows.base import START, Local, Scale, Shard
from lowcal.rows.powers import Block, Plan
from lowcal.solve.threads import spread
from lowcal.subpopulations.base import Family

T = TypeVar("T")
#: Sums of many numbers a row are made of smaller pieces of the rows by this factor, which stay in the second cache.
PIECES = 8


class Sums(NamedTuple, Generic[T]):
    """What is added up for every Z; moments and variances are those of believed labels, given x.

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


class Terms(NamedTuple):
    """The residuals z of rows, their noise, and how its moments move."""

    z: FloatArray
    noise: Noise
    moved: Noise


class Summand(NamedTuple):
    """What a sum adds up at every row: the factor times c^power w^order."""

    power: int
    order: int
    factor: Callable[[Terms], FloatArray]


#: The summands of `Sums`.
SUMMANDS = Sums[Summand](
    v=Summand(1, 1, lambda of: of.z),
    cross=Summand(1, 2, lambda of: of.z),
    second=Summand(2, 2, lambda of: np.square(of.z)),
    noise=Summand(2, 2, lambda of: of.noise.one),
    noise3=Summand(3, 3, lambda of: of.noise.two),
    square=Summand(4, 4, lambda of: of.noise.square),
    shift=Summand(1, 1, lambda of: of.moved.one),
    shift1=Summand(1, 2, lambda of: of.moved.one),
    shift2=Summand(2, 2, lambda of: of.moved.two),
    shift3=Summand(3, 3, lambda of: of.moved.three),
    steep=Summand(2, 2, lambda of: np.abs(of.moved.two)),
    base=Summand(1, 1, lambda of: of.noise.mean),
    base2=Summand(2, 2, lambda of: of.noise.mean2),
    base3=Summand(3, 3, lambda of: of.noise.mean3),
)


# --- constraints ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ConstraintSums:
    """The sums of every constraint Z = c u_s (y_a - f_a), each of shape (m, S, d), all or some of `Sums`.

    `share` is that of labels drawn at random (`Panel.share`); None: outcomes are numbers, and their own powers stand
    for their noise.
    """

    families: tuple[Family, ...]
    weights: tuple[Weight, ...]
    share: float | None
    is_even: bool
    names: tuple[str, ...] = Sums._fields

    @property
    def _summands(self) -> list[Summand]:
        return [getattr(SUMMANDS, name) for name in self.names]

    @property
    def _are_cells(self) -> bool:
        return isinstance(self.weights[0], Cell)

    def _plan(self, some: Local, scale: Scale) -> Plan:
        width = some.y.shape[1] * (1 if self._are_cells else len(self.weights))
        blocks = [Block(one.power, one.order, width) for one in self._summands]
        return Plan.of(some.design(self.families), blocks, scale, self.is_even)

    def __call__(self, shard: Shard) -> Tables:
        """Return the sums of a shard."""
        p = shard.at(START)
        cells = cells_of(self.weights, p)
        sums, numbers = self._plan(shard, shard.scale).sums(cells), p.shape[1] * len(self.names)
        for part in pieces(len(p), numbers if cells else numbers * len(self.weights) * PIECES):
            U = np.ones((1, 1)) if cells else evaluate(self.weights, p[part])
            assert isinstance(U, np.ndarray)
            sums.add(part, self._blocks(U, p[part], shard.y[part], shard.weight[part]))
        return sums.wholes()

    def _blocks(self, U: FloatArray, f: FloatArray, y: FloatArray, weight: FloatArray) -> list[FloatArray]:
        """Return the summands of some rows, each of shape (rows, S d)."""
        of_u, of_w, z = powers(U, 4), powers(weight[:, None], 4), y - f
        noise = row_noise(f, z, self.share)
        values = [of_w[one.order] * one.factor(Terms(z, noise, noise)) for one in self._summands]
        return [outer_rows(of_u[one.power], value) for one, value in zip(self._summands, values, strict=True)]

    def read(self, total: Tables, some: Local, scale: Scale) -> list[FloatArray]:
        """Return the sums."""
        found = self._plan(some, scale).read(total, self._are_cells)
        return [one.reshape(len(one), len(self.weights), -1) for one in found]


def cells_of(weights: Sequence[Weight], p: FloatArray) -> CellIds | None:
    """Return the cell of every row, where the weights are cells."""
    U = evaluate(weights, p) if isinstance(weights[0], Cell) else None
    assert U is None or isinstance(U, CellIds)
    return U


def outer_rows(U: FloatArray, values: FloatArray) -> FloatArray:
    """Return u_s r_a as (rows, S d)."""
    return np.multiply(U[:, :, None], values[:, None, :]).reshape(len(values), -1)


def powers(x: FloatArray, most: int) -> list[FloatArray]:
    """Return x^0, x, .., x^most, by products: NumPy takes logarithms above the second.

    >>> [one.tolist() for one in powers(np.array([3.0]), 3)]
    [[1.0], [3.0], [9.0], [27.0]]
    """
    found = [np.ones_like(x)]
    for _ in range(most):
        found.append(found[-1] * x)
    return found


def row_noise(f: FloatArray, z: FloatArray, share: float | None) -> Noise:
    """Return the noise of z = y_a - f_a at every row and label, shape (n, d)."""
    return _powers(z) if share is None else _label_noise(f, believed(f, share))


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
        return [scale.fine(scale.most ** (one.order - 1)) for one in SUMMANDS]

    def __call__(self, shard: Shard) -> Wholes:
        """Return the sums of a shard, shape (m, 14, 2)."""
        design, p, grids = shard.design(self.families), shard.at(START), self._grids(shard.scale)

        def one(j: int) -> Wholes:
            c = design.column(j)
            members, total = np.flatnonzero(c), np.zeros((len(grids), 2), dtype=np.int64)
            for part in rows_in_cache(len(members), FEW):
                f, y, w, own = (of[members[part]] for of in (p, shard.y, shard.weight, c))
                terms = witness_terms(f, y, w, own, self.witnesses[j], self.share)
                total += [fine.wholes(term) for fine, term in zip(grids, terms, strict=True)]
            return total

        return np.array(spread(one, range(len(self.witnesses)), len(p)))

    def read(self, total: Wholes, some: Local, scale: Scale) -> Sums[FloatArray]:
        """Return the sums."""
        return Sums(
            *(fine.total(one.T) for fine, one in zip(self._grids(scale), total.transpose(1, 0, 2), strict=True))
        )


def witness_terms(
    f: FloatArray, y: FloatArray, weight: FloatArray, c: FloatArray, witness: Witness, share: float | None
) -> list[FloatArray]:
    """Return the summands of `Sums` for Z = c <w(f), y - f> at every row."""
    W = _values(witness, f)
    z = np.einsum("na,na->n", W, y - f)
    noise, moved = (_powers(z), _powers(z)) if share is None else _witness_noise(f, believed(f, share), W)
    of, of_c, of_w = Terms(z, noise, moved), powers(c, 4), powers(weight, 4)
    return [of_c[one.power] * of_w[one.order] * one.factor(of) for one in SUMMANDS]


def _values(witness: Witness, f: FloatArray) -> FloatArray:
    """Return the witness at every row, the same for however many rows: a product of matrices would not be."""
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
    """Return the noise of z = <w, y - f> at every row, if labels have the given probabilities, and how moments move.

    They move with all log odds alike for scalars; on the simplex, where labels are many, with log odds along w.
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
