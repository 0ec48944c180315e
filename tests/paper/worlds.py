"""Exact finite worlds: a distribution over a few points, a predictor f, the truth f*, a subpopulation c.

Labels are drawn from f*, so every expectation is a sum in which f* stands for y. All arrays have the points on
their last axis (scalar worlds) or the one before it (simplex worlds); leading axes hold many worlds at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from lowcal.guarantees import GroupMoments, Guarantee, group_moments

N_WORLDS = 20_000
POINTS = 5
ROUNDING = 1e-11


@dataclass(frozen=True, eq=False)
class Worlds:
    weight: np.ndarray
    c: np.ndarray
    f: np.ndarray
    star: np.ndarray

    @property
    def member(self) -> np.ndarray:
        return self.weight * self.c

    def mean(self, values: np.ndarray) -> np.ndarray:
        """E_c, the slow way round nothing: sum w c v / sum w c."""
        return (self.member * values).sum(axis=-1) / self.member.sum(axis=-1)

    def alpha_c(self, degree: int) -> np.ndarray:
        """The world's own violation of the degree, conditional on c."""
        return np.max([np.abs(self.mean(self.f**j * (self.star - self.f))) for j in range(degree)], axis=0)

    def moments(self, degree: int, known: bool = False) -> GroupMoments:
        """The moments of f and y, and those of the truth where it is taken as known."""
        return group_moments(self.f, self.star, self.member, degree, self.stars(degree) if known else None)

    def stars(self, degree: int) -> np.ndarray:
        return np.stack([self.mean(self.star**j) for j in range(degree + 1)])


def world(weight, f, star, c=None) -> Worlds:
    """One world from lists."""
    weight, f, star = (np.asarray(v, dtype=float) for v in (weight, f, star))
    assert ((star >= 0) & (star <= 1)).all(), "not a world"
    return Worlds(weight / weight.sum(), np.ones(len(weight)) if c is None else np.asarray(c, float), f, star)


def two_points(low: float, high: float, j: int, e0: float, ej: float, upper_weight: float = 0.5) -> Worlds:
    """The world with f in {low, high}, e_0 = e0 and e_j = ej."""
    weight, f = np.array([1.0 - upper_weight, upper_weight]), np.array([low, high])
    delta = np.linalg.solve(np.stack([weight, weight * f**j]), [e0, ej])
    return world(weight, f, f + delta)


@cache
def scalar_worlds(n: int = N_WORLDS, seed: int = 0) -> Worlds:
    """Random worlds of eight kinds, each with four kinds of subpopulations."""
    rng = np.random.default_rng(seed)
    shape = (n, POINTS)
    kind = (np.arange(n) % 8)[:, None]
    f, star, noise = rng.random(shape), rng.random(shape), rng.normal(size=shape)
    corner = rng.choice([0.0, 0.5, 1.0], shape)
    centre, spread = rng.uniform(0.05, 0.999, (n, 1)), 10.0 ** rng.uniform(-7, -2, (n, 1))
    cluster = np.clip(centre + spread * noise, 0, 1)
    near_one = 1 - 1e-3 * f
    # anything; near the truth; small; just below 1; ties, corners; clusters against their truth; overconfident; close
    predictions = [f, f, f**4, near_one, corner, cluster, corner, f]
    step = 10.0 ** rng.uniform(-6, -1, (n, 1))
    lean = np.clip(cluster - np.sign(noise) * np.minimum(centre, 1 - centre) * rng.random(shape), 0, 1)
    truths = [
        star,
        np.clip(f + 0.1 * noise, 0, 1),
        np.clip(f**4 * rng.uniform(0, 1.5, shape), 0, 1),
        np.clip(near_one * (1 - step * star), 0, 1),
        rng.permuted(corner, axis=1),
        lean,
        np.clip(corner + step * (star - corner), 0, 1),
        np.clip(f + step * noise, 0, 1),
    ]
    weight = rng.dirichlet(np.ones(POINTS), n)
    weight[::3] = rng.dirichlet(np.full(POINTS, 0.3), len(weight[::3]))
    return Worlds(weight, _subpopulations(rng, n), np.choose(kind, predictions), np.choose(kind, truths))


def _subpopulations(rng: np.random.Generator, n: int) -> np.ndarray:
    """Everyone, 0/1, fractional, and with a mass down to 1e-9."""
    c = rng.random((n, POINTS))
    kind = rng.integers(0, 4, n)
    c[kind == 0] = 1.0
    c[kind == 1] = np.round(c[kind == 1])
    c[kind == 1, 0] = 1.0
    c[kind == 3] *= 10.0 ** rng.uniform(-9, 0, ((kind == 3).sum(), 1))
    return c


@cache
def simplex_worlds(n_labels: int, n: int = N_WORLDS, seed: int = 1) -> Worlds:
    """Random worlds on the simplex; f and star have shape (n, POINTS, n_labels)."""
    rng = np.random.default_rng(seed + n_labels)
    shape = (n, POINTS)
    f = rng.dirichlet(np.full(n_labels, 0.5), shape)
    star = rng.dirichlet(np.full(n_labels, 0.5), shape)
    f[1::4] = np.eye(n_labels)[rng.integers(0, n_labels, f[1::4].shape[:2])]  # corners and ties
    step = 10.0 ** rng.uniform(-6, 0, (n, 1, 1))
    star[::2] = (f + step * (star - f))[::2]
    weight = rng.dirichlet(np.ones(POINTS), n)
    return Worlds(weight, _subpopulations(rng, n), f, star)


def realise(M: np.ndarray, base: np.ndarray | None = None, spread: float = 0.9) -> Worlds:
    """A world on the simplex with E[(y - f) f'] = M: l points near the corners (or near `base`), solved for f*."""
    n_labels = len(M)
    base = np.full(n_labels, 1 / n_labels) if base is None else base
    f = (1 - spread) * base + spread * np.eye(n_labels)
    weight = np.full(n_labels, 1 / n_labels)
    star = f + np.linalg.solve((weight[:, None] * f).T, M.T)  # sum_m w_m (star - f)_m f_m' = M
    assert (star >= 0).all(), "not a world"
    np.testing.assert_allclose(star.sum(axis=1), 1, atol=1e-9)
    return Worlds(weight, np.ones(n_labels), f, star)


def second(worlds: Worlds, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """E_c[a b'], one entry after the other."""
    labels = range(a.shape[-1])
    return np.stack([np.stack([worlds.mean(a[..., i] * b[..., j]) for j in labels], -1) for i in labels], -2)


def agree(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-11, rtol=1e-9)


def keeps(found: Guarantee, estimate: np.ndarray, where: np.ndarray | bool = True) -> None:
    """The estimate is right, and every bound of the guarantee holds for it: sharp, signed and the paper's."""
    agree(np.where(where, found.estimate, 0.0), np.where(where, estimate, 0.0))
    for side in found.sides:
        room = ROUNDING * np.maximum(1.0, 1.0 / np.where(where, side.divisor, 1.0))
        sign = 1.0 if side.kind == "upper" else -1.0
        for bound in (side.bound, side.signed_bound):
            assert np.all((sign * (estimate - bound) <= room)[np.broadcast_to(where, room.shape)])
        if side.paper_constant is not None:
            assert np.all((side.slack <= side.paper_slack + room)[np.broadcast_to(where, room.shape)])


def share_of_slack(found: Guarantee, kind: str) -> float:
    """How much of the sharp slack a world uses up: 1 is all of it."""
    side = found.upper if kind == "upper" else found.lower
    beyond = found.estimate - side.reference if kind == "upper" else side.reference - found.estimate
    return float(beyond / side.slack)
