"""Random finite worlds, thousands at a time, and the suprema on them by enumeration: nothing of lowcal.

A batch of B worlds with m points: probabilities P (B, m), predictions F and truths T (B, m, d), memberships C (B, m).
The residual mass of a point is r = P C (T - F), exactly what a population would show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

import numpy as np

import definition


@dataclass
class Worlds:
    P: np.ndarray
    F: np.ndarray
    T: np.ndarray
    C: np.ndarray

    @property
    def r(self) -> np.ndarray:
        """The residual mass of every point and label, (B, m, d)."""
        return (self.P * self.C)[:, :, None] * (self.T - self.F)

    def one(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Return r and F of one world, as `definition` wants them."""
        return self.r[i], self.F[i]


def draw(n_worlds: int, m: int, d: int, seed: int) -> Worlds:
    """Draw worlds of several kinds: anything, nearly calibrated, next to a corner, two-valued truths."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(m), n_worlds)
    C = np.where(rng.random((n_worlds, 1)) < 0.5, 1.0, rng.random((n_worlds, m)))
    if d == 1:
        F, T, noise = rng.random((n_worlds, m, 1)), rng.random((n_worlds, m, 1)), rng.random((n_worlds, m, 1))
        corner = 1.0 - 0.02 * rng.random((n_worlds, m, 1))
    else:
        F, T, noise = (rng.dirichlet(np.full(d, 0.5), (n_worlds, m)) for _ in range(3))
        corner = 0.98 * np.eye(d)[0] + 0.02 * rng.dirichlet(np.ones(d), (n_worlds, m))
    kind = rng.integers(0, 4, n_worlds)[:, None, None]
    F = np.where(kind == 2, corner, F)
    sharp = np.round(T) if d == 1 else np.eye(d)[T.argmax(axis=2)]
    T = np.where(kind == 1, 0.9 * F + 0.1 * noise, np.where(kind == 3, sharp, T))
    return Worlds(P, F, T, C)


def single(P: list[float], F: np.ndarray, T: np.ndarray) -> Worlds:
    """Return one world with c = 1."""
    F, T = definition.as_columns(np.asarray(F)), definition.as_columns(np.asarray(T))
    return Worlds(np.asarray(P, dtype=float)[None], F[None], T[None], np.ones((1, len(P))))


def moved(w: Worlds, seed: int) -> tuple[Worlds, np.ndarray]:
    """Return the worlds with other predictions of the same points, and E||f - g||_1."""
    rng = np.random.default_rng(seed)
    share = rng.choice([0.01, 0.1, 1.0], (len(w.F), w.F.shape[1], 1))
    towards = rng.random(w.F.shape) if w.F.shape[2] == 1 else rng.dirichlet(np.full(w.F.shape[2], 0.3), w.F.shape[:2])
    G = (1 - share) * w.F + share * towards
    return Worlds(w.P, G, w.T, w.C), (w.P * np.abs(G - w.F).sum(axis=2)).sum(axis=1)


# ------------------------------------------------------------------------------------------------------------- suprema
def multiaccuracy(w: Worlds) -> np.ndarray:
    return np.abs(w.r.sum(axis=1)).max(axis=1)


def monomial(w: Worlds, k: int) -> np.ndarray:
    """The largest |moment| of a monomial of degree below k."""
    S = definition.exponents(w.F.shape[2], k - 1)
    values = np.stack([np.prod(w.F ** np.array(s), axis=2) for s in S], axis=2)
    return np.abs(np.einsum("bms,bmd->bsd", values, w.r)).max(axis=(1, 2))


def degree(w: Worlds, k: int) -> np.ndarray:
    """The degree-k supremum for scalars (any k) and on the simplex (k <= 2): every subset of labels is tried."""
    d = w.F.shape[2]
    if d == 1:
        return monomial(w, k)
    if k == 1:
        return np.abs(w.r.sum(axis=1)).sum(axis=1) / 2
    assert k == 2
    m = np.einsum("bmi,bma->bai", w.F, w.r)
    sides = []
    for side in (m, -m):
        best = np.zeros(side.shape[:2])
        for A in (A for s in range(1, d + 1) for A in combinations(range(d), s)):
            best = np.maximum(best, side[:, :, A].sum(axis=2) / min(len(A), d + 1 - len(A)))
        sides.append(best.sum(axis=1))
    return np.maximum(*sides)


def smooth(w: Worlds, lip: float = 1.0) -> np.ndarray:
    """The smooth supremum: the vertices of all Lipschitz functions on the points, label by label and for both signs."""
    D = lip * np.abs(w.F[:, :, None] - w.F[:, None]).sum(axis=3)
    sides = [sum(best_lipschitz(s * w.r[:, :, a], D) for a in range(w.r.shape[2])) for s in (1, -1)]
    return np.maximum(*sides)


def best_lipschitz(r: np.ndarray, D: np.ndarray) -> np.ndarray:
    """Return max sum r_i u_i over 0 <= u <= 1, |u_i - u_j| <= D_ij.

    At a vertex the tight pairs form a forest, and every tree of it touches 0 or 1.
    """
    best = np.zeros(len(r))
    for tree, signs in _forests(r.shape[1]):
        u = np.zeros_like(r)
        parts = []
        for part in tree:
            for i, j, edge in part.edges:
                u[:, j] = u[:, i] + signs[edge] * D[:, i, j]
            parts.append(u[:, part.points])
        for pins in product((0, 1), repeat=len(parts)):
            for part, values, pin in zip(tree, parts, pins, strict=True):
                shift = -values.min(axis=1) if pin == 0 else 1.0 - values.max(axis=1)
                u[:, part.points] = values + shift[:, None]
            gap = np.abs(u[:, :, None] - u[:, None]) - D
            feasible = (u.min(axis=1) >= -1e-12) & (u.max(axis=1) <= 1 + 1e-12) & (gap.max(axis=(1, 2)) <= 1e-12)
            best = np.where(feasible, np.maximum(best, (r * u).sum(axis=1)), best)
    return best


@dataclass(frozen=True)
class Part:
    """A tree: its points, and its edges (from, to, number) in an order that starts at the root."""

    points: list[int]
    edges: list[tuple[int, int, int]]


def _forests(m: int) -> Iterator[tuple[list[Part], tuple[int, ...]]]:
    for forest, n_edges in _shapes(m):
        for signs in product((1, -1), repeat=n_edges):
            yield forest, signs


@cache
def _shapes(m: int) -> list[tuple[list[Part], int]]:
    pairs = list(combinations(range(m), 2))
    found = []
    for size in range(m):
        for chosen in combinations(pairs, size):
            parts = _components(m, chosen)
            if sum(len(part.edges) for part in parts) == size:  # no cycle
                found.append((parts, size))
    return found


def _components(m: int, chosen: tuple[tuple[int, int], ...]) -> list[Part]:
    left, parts = set(range(m)), []
    while left:
        root = min(left)
        points, edges, reached = [root], [], [root]
        while reached:
            i = reached.pop()
            for number, pair in enumerate(chosen):
                j = pair[0] if pair[1] == i else pair[1] if pair[0] == i else None
                if j is not None and j not in points:
                    points.append(j)
                    reached.append(j)
                    edges.append((i, j, number))
        left -= set(points)
        parts.append(Part(points, edges))
    return parts


def cells(w: Worlds, k: int) -> np.ndarray:
    """Return the residual of every occupied cell of width 1/k, (B, m, d): one slot for each point's cell."""
    index = np.minimum(np.floor(w.F * k + 1e-12), k - 1)
    together = (index[:, :, None] == index[:, None]).all(axis=3)
    first = together.argmax(axis=2)  # the first point of the cell keeps its residual
    slot = np.eye(w.F.shape[1])[first]
    return np.einsum("bms,bmd->bsd", slot, w.r)


def full_cell(w: Worlds, k: int) -> np.ndarray:
    """The largest residual of a single cell: the paper's full notion."""
    return np.abs(cells(w, k)).max(axis=(1, 2))


def full_class(w: Worlds, k: int) -> np.ndarray:
    """The supremum over all functions of the cell."""
    v = cells(w, k)
    return np.maximum(np.maximum(v, 0).sum(axis=(1, 2)), np.maximum(-v, 0).sum(axis=(1, 2)))


def occupied(w: Worlds, k: int) -> np.ndarray:
    """How many cells hold a point."""
    index = np.minimum(np.floor(w.F * k + 1e-12), k - 1)
    together = (index[:, :, None] == index[:, None]).all(axis=3)
    return np.array([len(set(row)) for row in together.argmax(axis=2).tolist()])
