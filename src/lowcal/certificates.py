"""Certificates: what a sample says about the population, for all constraints at once (spec 10.i).

The rows must not have helped to make the model or to choose the subpopulations. Then, with the stated confidence and
simultaneously for every subpopulation c and weight w, the violation in the population lies within the band around the
violation of the sample. Three methods make the bands:

* "bootstrap": studentised, by Gaussian multipliers on the rows; asymptotic, and the narrowest (10.i.c);
* "bernstein": from each constraint's own variance; holds for every n (10.i.b);
* "hoeffding": from the range alone; holds for every n (10.i.a).

For weight classes that are not finitely many moments (smooth) the bootstrap resamples the supremum itself, and the two
others stand for the symmetrisation bound of 10.i.e. The exact test redraws the labels from the predictions (10.i.d).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log, pi, sqrt
from typing import Literal

import numpy as np

from lowcal.engines.products import dot, product
from lowcal.engines.reference import CHUNK, Design, pieces, rows_in_cache
from lowcal.moments import MomentSums, moments
from lowcal.notions.base import Finite, Notion, Suprema
from lowcal.notions.smooth import GridSmooth, Smooth
from lowcal.resampling import COARSE, STEP, Statistic, redraw_labels, statistic
from lowcal.simplex import FloatArray, IntArray
from lowcal.subpopulations.base import effective_rows
from lowcal.threads import spread
from lowcal.weights import Cell, CellIds, Evaluated, Weight, evaluate

Method = Literal["bootstrap", "bernstein", "hoeffding"]
METHODS = ("bootstrap", "bernstein", "hoeffding")
#: Multiplier draws; quantiles near 95% are then good to about half a per cent of coverage.
DRAWS = 1000
#: At least so many of them are made at a time: the bags' moments are read anew each time.
BATCH = 256
#: Draws where each one has to look at all rows again.
SLOW_DRAWS = 200
#: Rows share a multiplier in bags beyond this many: the standard errors of the draws are then known to about 2%.
BAGS = 2048
#: The bags' moments hold at most this many numbers, and at least so many bags are used ...
BAG_NUMBERS, LEAST_BAGS = 1 << 25, 256
#: ... unless they would hold more than this: then every draw looks at all rows.
MOST_NUMBERS = 1 << 26
#: Below so many effective rows (of even labels) the normal approximation is not trusted, and Bernstein's band is used.
SMALL = 30.0


@dataclass(frozen=True, eq=False)
class Panel:
    """Rows to judge on, and the subpopulations judged there. No label of these rows helped to choose them."""

    y: FloatArray
    p: FloatArray
    weight: FloatArray
    design: Design
    names: tuple[str, ...]

    @property
    def rho(self) -> FloatArray:
        """The weighted residuals p_i (y_i - f_i)."""
        return self.weight[:, None] * (self.y - self.p)

    @cached_property
    def energy(self) -> float:
        """Return sum p_i^2 = 1 / n_eff."""
        return dot(self.weight, self.weight)

    @cached_property
    def mass(self) -> FloatArray:
        """E[c] for every subpopulation."""
        return self.design.moments(self.weight[:, None])[:, 0]

    @cached_property
    def n_effective(self) -> FloatArray:
        """How many rows every subpopulation is worth."""
        square = self.design.squared().moments(np.square(self.weight)[:, None])[:, 0]
        return effective_rows(self.mass, square)


@dataclass(frozen=True, eq=False)
class Constraints:
    """The moments v[c, s, a] with their standard errors and the half-widths of a simultaneous band."""

    weights: Sequence[Weight]
    v: FloatArray
    standard_error: FloatArray
    half: FloatArray


@dataclass(frozen=True, eq=False)
class Band:
    """The suprema of a panel with simultaneous limits.

    `lower` and `upper` (one for each c) hold the supremum over the whole class in the population; `half` is the
    largest deviation of any single weight of the class. `constraints` are there for finitely many moments.
    """

    found: Suprema
    lower: FloatArray
    upper: FloatArray
    half: FloatArray
    constraints: Constraints | None


def band(panel: Panel, notion: Notion, confidence: float, method: Method, rng: np.random.Generator) -> Band:
    """Return the suprema of a panel with limits that hold together with the given confidence."""
    if isinstance(notion, Finite):
        return _finite_band(panel, notion, 1.0 - confidence, method, rng)
    return _sup_band(panel, notion, 1.0 - confidence, method, rng)


# --- finitely many moments ----------------------------------------------------------------------------------


def _finite_band(panel: Panel, notion: Finite, beta: float, method: Method, rng: np.random.Generator) -> Band:
    weights = notion.constraints(panel.p)
    U = evaluate(weights, panel.p)
    v = moments(panel.design, U, panel.rho)
    se = standard_errors(panel, U, v)
    found = notion.norm(weights, v)
    if method != "bootstrap":
        half = _finite_sample(panel, v, se, beta, method)
        return _limits(notion, found, Constraints(weights, v, se, half))
    safe = _finite_sample(panel, v, se, beta, "bernstein")
    resample = _resample if LEAST_BAGS * v.size <= MOST_NUMBERS else _resample_rows
    resampled = resample(panel, notion, weights, U, se, beta, rng)
    # the error of the normal tail at q is of the order q^3 / sqrt(rows)
    enough = SMALL * max(1.0, resampled.critical / 3.0) ** 6
    half = np.where(_worth(panel, U) < enough, safe, resampled.critical * se)
    plain = _limits(notion, found, Constraints(weights, v, se, half))
    if notion.is_largest(v.shape[2]):
        return plain
    deviation = np.where(_even_rows(panel) < SMALL, _safe_deviation(panel, beta), resampled.deviation)
    lower, upper = np.maximum(found.value - deviation, 0.0), found.upper + deviation
    return Band(found, lower, upper, deviation, plain.constraints)


def _worth(panel: Panel, U: Evaluated) -> FloatArray:
    """Return how many rows every constraint is worth, shape (m, S, d).

    A row counts 4 f (1 - f): thirty rows with f near 0 or 1 may show a single label, and then no variance.
    """
    weight, square = panel.weight[:, None], U if isinstance(U, CellIds) else np.square(U)
    mass = moments(panel.design, U, weight)
    rows = effective_rows(mass, moments(panel.design.squared(), square, np.square(weight)))
    balance = moments(panel.design, U, 4.0 * weight * panel.p * (1.0 - panel.p))
    return np.asarray(rows * balance / np.maximum(mass, np.finfo(float).tiny))


def _even_rows(panel: Panel) -> FloatArray:
    """Return how many rows with even labels every subpopulation is worth: a row counts 2 sum_a f_a (1 - f_a)."""
    balance = 2.0 * (panel.p * (1.0 - panel.p)).sum(axis=1) * (2.0 if panel.p.shape[1] == 1 else 1.0)
    share = panel.design.moments((panel.weight * balance)[:, None])[:, 0]
    return np.asarray(panel.n_effective * share / np.maximum(panel.mass, np.finfo(float).tiny))


def _safe_deviation(panel: Panel, beta: float) -> FloatArray:
    """Return what no supremum deviates by, at any number of rows: it exceeds E[c |y - f|] neither here nor there.

    |y - f| is half the sum over the classes, so that it is at most one.
    """
    size = np.abs(panel.y - panel.p).sum(axis=1) * (1.0 if panel.p.shape[1] == 1 else 0.5)
    mean = panel.design.moments((panel.weight * size)[:, None])[:, 0]
    return np.asarray(mean + _mean_limit(mean, panel, beta))


def _limits(notion: Finite, found: Suprema, constraints: Constraints) -> Band:
    """Return what bands on the moments say about the suprema."""
    lower, upper = notion.limits(constraints.v, constraints.half)
    deviation = notion.limits(np.zeros_like(constraints.v), constraints.half)[1]
    return Band(found, lower, upper, deviation, constraints)


def standard_errors(panel: Panel, U: Evaluated, v: FloatArray) -> FloatArray:
    """Return the standard error of every moment: sqrt(sum p_i^2 (Z_i - g)^2 / (1 - sum p_i^2)).

    Z_i = c u_s (y_a - f_a); expanded, so that three passes over the rows do. One row alone has no standard error: inf.
    """
    rho, square = panel.rho, U if isinstance(U, CellIds) else np.square(U)
    second = moments(panel.design.squared(), square, np.square(rho))
    cross = moments(panel.design, U, panel.weight[:, None] * rho)
    variance = np.maximum(second - 2.0 * v * cross + np.square(v) * panel.energy, 0.0)
    left = 1.0 - panel.energy
    return np.sqrt(variance / left) if left > 1e-12 else np.full(v.shape, np.inf)


def _finite_sample(panel: Panel, v: FloatArray, se: FloatArray, beta: float, method: Method) -> FloatArray:
    """Return half-widths that hold for every n, by a union bound over all constraints.

    No violation exceeds its subpopulation's mass, which bounds those of tiny ones better than any variance does.
    """
    if method == "hoeffding":
        return np.full(v.shape, hoeffding(panel.energy, v.size, beta))
    n, largest = len(panel.weight), float(panel.weight.max())
    half = bernstein(se, n, n * largest, v.size, beta)
    return np.minimum(half, np.abs(v) + _mean_limit(panel.mass, panel, beta / 2)[:, None, None])


def hoeffding(energy: float, n_pairs: int, beta: float) -> float:
    """Return sqrt(2 ln(2N / beta) sum p_i^2): the deviation of N means of terms in [-1, 1] (spec 10.i.a).

    >>> round(hoeffding(1 / 5000, 60, 0.05), 4)
    0.0558
    """
    return sqrt(2.0 * log(2.0 * n_pairs / beta) * energy)


def bernstein(se: FloatArray, n: int, spread: float, n_pairs: int, beta: float) -> FloatArray:
    """Return the empirical Bernstein deviation sqrt(2 V ln(4N/b) / n) + 14 ln(4N/b) / (3 (n - 1)) (spec 10.i.b).

    `se` = sqrt(V / n), and `spread` = n max p_i widens the range for uneven weights. Half of beta is left for the
    limit on the mass. Maurer and Pontil, 2009.

    >>> bernstein(np.array([0.002]), 5000, 1.0, 60, 0.05).round(4)
    array([0.0171])
    """
    level = log(8.0 * n_pairs / beta)
    if n < 2:
        return np.full(np.shape(se), np.inf)
    return np.asarray(se * sqrt(2.0 * level) + 14.0 * spread * level / (3.0 * (n - 1)))


def _mean_limit(mean: FloatArray, panel: Panel, beta: float) -> FloatArray:
    """Return upper confidence limits on means of terms in [0, 1]: mu_n + L + sqrt(L (L + 2 mu_n)).

    L = ln(m / beta) max p_i. The lower tail of terms in [0, s] is mu - mu_n <= sqrt(2 mu s ln(1 / beta)); this is its
    solution for mu.
    """
    level = log(len(mean) / beta) * float(panel.weight.max())
    return np.asarray(mean + level + np.sqrt(level * (level + 2.0 * mean)))


# --- the multiplier bootstrap -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Resampled:
    """The critical value of the studentised moments, and for each c the deviation of its supremum."""

    critical: float
    deviation: FloatArray


def _resample(
    panel: Panel,
    notion: Finite,
    weights: Sequence[Weight],
    U: Evaluated,
    se: FloatArray,
    beta: float,
    rng: np.random.Generator,
) -> Resampled:
    """Draw sum_i (xi_i - mean xi) p_i Z_ij for Gaussian xi, and take quantiles of the largest (spec 10.i.c).

    Rows are dealt into bags at random, and a bag shares its multiplier: one pass over the rows serves all draws.
    """
    shape = se.shape
    bags = Bags.deal(panel.weight, int(np.prod(shape)), rng)
    flat = bags.moments(panel.design, U, panel.rho, shape).reshape(len(bags.share), -1)
    spread_of = np.empty(flat.shape[1])
    for part in pieces(len(spread_of), 16 * len(flat)):  # some columns at a time, which stay in cache
        here = flat[:, part]
        spread_of[part] = np.sqrt(np.square(here - bags.share[:, None] * here.sum(axis=0)).sum(axis=0))
    spread_of = np.where(spread_of > 0.0, spread_of, np.inf)
    largest, suprema = [], []
    for xi in bags.multipliers(DRAWS, min(flat.shape[1], 2 * CHUNK // BATCH), rng):
        size, found = _draw(xi, flat, spread_of, notion, weights, shape)
        largest.append(size)
        suprema.append(found)
    critical = _quantile(np.concatenate(largest), beta)
    if notion.is_largest(shape[2]):  # the moments say it all
        return Resampled(critical, np.zeros(shape[0]))
    return Resampled(critical, _deviation(np.concatenate(suprema), beta))


def _resample_rows(
    panel: Panel,
    notion: Finite,
    weights: Sequence[Weight],
    U: Evaluated,
    se: FloatArray,
    beta: float,
    rng: np.random.Generator,
) -> Resampled:
    """Draw the same, a pass over the rows for each draw: the moments of all bags would not fit into memory."""
    spread_of, say_it_all = np.where(se > 0.0, se, np.inf), notion.is_largest(se.shape[2])
    largest, suprema = np.empty(SLOW_DRAWS), np.empty((0 if say_it_all else SLOW_DRAWS, len(se)))
    for k in range(SLOW_DRAWS):
        xi = rng.standard_normal(len(panel.weight))
        xi -= dot(panel.weight, xi)
        draw = moments(panel.design, U, xi[:, None] * panel.rho)
        if not say_it_all:
            suprema[k] = notion.norm(weights, draw).upper
        largest[k] = (np.abs(draw) / spread_of).max()
    deviation = np.zeros(len(se)) if say_it_all else _deviation(suprema, beta)
    return Resampled(_quantile(largest, beta), deviation)


def _draw(
    xi: FloatArray,
    flat: FloatArray,
    spread_of: FloatArray,
    notion: Finite,
    weights: Sequence[Weight],
    shape: tuple[int, int, int],
) -> tuple[FloatArray, FloatArray]:
    """Return the largest studentised moment of every draw and the suprema of all c, none where monomials attain them.

    A few c at a time: a product of many draws with their moments is fast, and stays small.
    """
    m, numbers = shape[0], shape[1] * shape[2]
    largest, suprema = np.zeros(len(xi)), np.zeros((len(xi), 0 if notion.is_largest(shape[2]) else m))
    some = max(1, 2 * CHUNK // (len(xi) * numbers))
    for c in range(0, m, some):
        part = slice(c * numbers, (c + some) * numbers)
        draws = product(xi, flat[:, part])
        if not notion.is_largest(shape[2]):
            found = notion.norm(weights, draws.reshape(-1, *shape[1:]))
            suprema[:, c : c + some] = found.upper.reshape(len(xi), -1)
        np.abs(draws, out=draws)
        draws /= spread_of[part]
        np.maximum(largest, draws.max(axis=1), out=largest)
    return largest, suprema


@dataclass(frozen=True, eq=False)
class Bags:
    """Rows dealt at random into bags that share a multiplier; every row is its own bag where that is cheap enough."""

    order: IntArray
    starts: IntArray
    share: FloatArray

    @classmethod
    def deal(cls, weight: FloatArray, numbers: int, rng: np.random.Generator) -> Bags:
        """Deal the rows, for moments of so many numbers."""
        n = len(weight)
        n_bags = min(n, max(LEAST_BAGS, min(BAGS, BAG_NUMBERS // numbers)))
        order = np.arange(n) if n_bags == n else rng.permutation(n)
        starts = np.linspace(0, n, n_bags + 1).astype(np.intp)
        return cls(order, starts, np.add.reduceat(weight[order], starts[:-1]))

    def moments(self, design: Design, U: Evaluated, rho: FloatArray, shape: tuple[int, int, int]) -> FloatArray:
        """Return the moments of every bag, (bags, m, S, d), in one pass over the rows."""
        n, n_bags = len(self.order), len(self.share)
        sums = np.empty((n_bags, *shape))
        per_row = max(shape[0], shape[2] * (1 if isinstance(U, CellIds) else shape[1]))
        step = max(1, (2 * CHUNK // per_row) * n_bags // n)
        for first in range(0, n_bags, step):
            last = min(first + step, n_bags)
            rows = self.order[self.starts[first] : self.starts[last]]
            bag = np.repeat(np.arange(last - first), np.diff(self.starts[first : last + 1]))
            sums[first:last] = _per_bag(design.rows(rows), _take(U, rows), rho[rows], bag, last - first)
        return sums

    def multipliers(self, draws: int, numbers: int, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Yield batches of centred Gaussian multipliers, (batch, bags), for results of so many numbers a draw."""
        batch = max(1, min(draws, 2 * CHUNK // numbers))
        for start in range(0, draws, batch):
            xi = rng.standard_normal((min(batch, draws - start), len(self.share)))
            yield xi - product(xi, self.share)[:, None]


def _take(U: Evaluated, rows: IntArray) -> Evaluated:
    return CellIds(U.ids[rows], U.n_cells) if isinstance(U, CellIds) else U[rows]


def _per_bag(design: Design, U: Evaluated, rho: FloatArray, bag: IntArray, n_bags: int) -> FloatArray:
    """Return the moments of each bag, shape (bags, m, S, d)."""
    m, d = design.shape[1], rho.shape[1]
    if isinstance(U, CellIds):
        width = U.n_cells + 1
        both = design.cell_moments(bag * width + U.ids, n_bags * width, rho)
        return both.reshape(m, n_bags, width, d)[:, :, :-1].transpose(1, 0, 2, 3)
    R = (U[:, :, None] * rho[:, None, :]).reshape(len(rho), -1)
    return design.cell_moments(bag, n_bags, R).reshape(m, n_bags, U.shape[1], d).transpose(1, 0, 2, 3)


def _quantile(values: FloatArray, beta: float) -> float:
    return float(np.quantile(values, 1.0 - beta, method="higher"))


def _deviation(suprema: FloatArray, beta: float) -> FloatArray:
    """Return for every c how far its supremum may deviate: a common multiple of its own typical size."""
    typical = np.sqrt(np.square(suprema).mean(axis=0))
    ratio = suprema / np.where(typical > 0.0, typical, np.inf)
    return np.asarray(_quantile(ratio.max(axis=1), beta) * typical)


# --- any weight class: resampling the supremum itself -------------------------------------------------------


def _sup_band(panel: Panel, notion: Notion, beta: float, method: Method, rng: np.random.Generator) -> Band:
    search = notion.classwise if isinstance(notion, Smooth) else notion.suprema
    found = search(panel.p, panel.rho, panel.design)
    if method == "bootstrap":
        draws = _draw_smooth(panel, rng) if isinstance(notion, Smooth) else _draw_suprema(panel, notion, rng)
        deviation = np.where(_even_rows(panel) < SMALL, _safe_deviation(panel, beta), _deviation(draws, beta))
    else:
        compute = statistic(notion, panel.p, panel.design)
        deviation = np.full(panel.design.shape[1], symmetrisation(panel, compute, beta, rng))
    return Band(found, np.maximum(found.value - deviation, 0.0), found.upper + deviation, deviation, None)


def _draw_smooth(panel: Panel, rng: np.random.Generator) -> FloatArray:
    """Draw the smooth suprema of the multiplier process on a grid; one pass over the rows serves all draws."""
    grid = GridSmooth(panel.p, panel.design, STEP)
    m, most = panel.design.shape[1], max(cells.n_cells for cells in grid.cells)
    bags = Bags.deal(panel.weight, m * most, rng)
    xi = np.concatenate(list(bags.multipliers(SLOW_DRAWS, 1, rng)))
    total = np.zeros((SLOW_DRAWS, m))
    for a, cells in enumerate(grid.cells):
        shape = m, cells.n_cells, 1
        flat = bags.moments(panel.design, cells, panel.rho[:, [a]], shape).reshape(len(bags.share), -1)
        size = cells.n_cells
        for part in pieces(m, SLOW_DRAWS * size):  # some c at a time: a product of all draws reads their moments once
            draws = product(xi, flat[:, part.start * size : part.stop * size])
            total[:, part] += grid.part(a, draws.reshape(-1, size)).reshape(SLOW_DRAWS, -1)
    # E|xi| = sqrt(2 / pi): what rounding to the grid costs a typical draw
    return total + sqrt(2.0 / pi) * grid.error(panel.rho)


def _draw_suprema(panel: Panel, notion: Notion, rng: np.random.Generator) -> FloatArray:
    """Draw the supremum of the centred multiplier process for every c, by the notion's own search."""
    rho = panel.rho

    def draw(own: np.random.Generator) -> FloatArray:
        xi = own.standard_normal(len(rho))
        centred = (xi - dot(panel.weight, xi))[:, None] * rho
        return notion.suprema(panel.p, centred, panel.design).upper

    return np.array(spread(draw, rng.spawn(SLOW_DRAWS)))


def symmetrisation(panel: Panel, compute: Statistic, beta: float, rng: np.random.Generator, draws: int = 20) -> float:
    """Return 2 R + 2 sqrt(2 L e / B) + 3 sqrt(2 L e), L = ln(3 / beta), e = sum p_i^2 (spec 10.i.e).

    R is the mean over B draws of signs of the largest supremum of the signed residuals: with confidence 1 - beta, no
    violation of any weight of the class, however large the class, deviates by more.
    """
    rho = panel.rho

    def draw(own: np.random.Generator) -> float:
        signed = own.choice([-1.0, 1.0], len(rho))[:, None] * rho
        return float((compute.values(signed) + compute.error(signed)).max())

    found = spread(draw, rng.spawn(draws))
    level = 2.0 * log(3.0 / beta) * panel.energy
    return 2.0 * float(np.mean(found)) + 2.0 * sqrt(level / draws) + 3.0 * sqrt(level)


# --- the exact test -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Null:
    """What a perfectly calibrated model would have shown on these rows.

    `floor[c]` is exceeded by chance with probability 1 - confidence, `largest` likewise for the largest of all;
    `p_value` is exact at any n (nan where outcomes are no draws of labels); `is_too_good`: the violations are far
    smaller than those of any draw, as happens on rows that the model was fitted to.
    """

    floor: FloatArray
    largest: float
    p_value: float
    is_too_good: bool


def _redrawn(panel: Panel, notion: Notion, compute: Statistic) -> Callable[[np.random.Generator], FloatArray]:
    """Return what draws labels from the predictions and measures all suprema again.

    For scalars a piece of the rows at a time, whose labels stay in cache: half the time at 1,000,000 rows.
    """
    p, weight = panel.p, panel.weight

    def at_once(own: np.random.Generator) -> FloatArray:
        return compute.values(weight[:, None] * (redraw_labels(p, own) - p))

    if not isinstance(notion, Finite) or p.shape[1] > 1:
        return at_once
    norm, weights = notion.norm, notion.constraints(p)

    def by_pieces(own: np.random.Generator) -> FloatArray:
        sums = MomentSums(panel.design, weights, 1)
        for part in rows_in_cache(len(p), len(weights)):
            sums.add_residuals(part, p[part], redraw_labels(p[part], own), weight[part])
        return norm(weights, sums.total()).value

    return at_once if any(isinstance(u, Cell) for u in weights) else by_pieces


def null_test(
    panel: Panel, notion: Notion, confidence: float, rng: np.random.Generator, *, draws: int = 99, is_exact: bool = True
) -> Null:
    """Redraw the labels from the predictions, measure everything again, and compare (spec 10.i.d).

    If f = f*, the sample and its redraws are exchangeable, so p = (1 + #{T_b >= T}) / (1 + B) is exact. T is the
    largest supremum in units of its own size under the redraws: small subpopulations count as much as large ones.
    """
    compute = statistic(notion, panel.p, panel.design, COARSE)
    observed = compute.values(panel.rho)
    drawn = np.array(spread(_redrawn(panel, notion, compute), rng.spawn(draws)))
    every = np.vstack([observed, drawn])
    typical = np.sqrt(np.square(every).mean(axis=0))
    T = (every / np.where(typical > 0.0, typical, np.inf)).max(axis=1)
    p_value = (1.0 + np.count_nonzero(T[1:] >= T[0] * (1.0 - 1e-12))) / (1.0 + draws) if is_exact else np.nan
    floor = np.quantile(drawn, confidence, axis=0, method="higher")
    largest = float(np.quantile(drawn.max(axis=1), confidence, method="higher"))
    is_too_good = bool(largest > 0.0 and observed.max() < 0.5 * drawn.max(axis=1).min())
    return Null(floor, largest, float(p_value), is_too_good)
