"""Worlds that tests of several folders share: populations known exactly, rows of many columns, directions of a step.

A population is finitely many kinds of people, with f*, f and groups; samples come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
from scipy.special import expit as sigmoid
from scipy.special import softmax

import lowcal
from lowcal import Groups, Intersections, Memberships, Subpopulations, Thresholds, Trees
from lowcal.auditing.panel import Panel
from lowcal.kernels.loops import part_of
from lowcal.kernels.reference import Design, Matrix
from lowcal.kernels.simplex import IntArray
from lowcal.notions.weights import Monomial
from lowcal.rows import START, Memory, Shard, State
from lowcal.rows.base import Pass, take_rows
from lowcal.rows.updates import Term
from lowcal.subpopulations.base import Encoded
from lowcal.subpopulations.memberships import Members

#: Every solver with every geometry it takes.
WAYS = (
    ("first", "euclidean"),
    ("worst", "euclidean"),
    ("worst", "mirror"),
    ("block", "euclidean"),
    ("block", "mirror"),
)
#: Each class with the columns of `people` that it reads.
CLASSES: dict[str, tuple[Subpopulations, str]] = {
    "groups": (Groups(), "ab"),
    "intersections": (Intersections(), "ab"),
    "bits": (Memberships(), "stu"),
    "shares": (Memberships(), "vw"),
    "thresholds": (Thresholds(), "x"),
    "nodes": (Trees(2), "asvx"),
    "sums": (Trees(2, n_trees=3), "asvx"),
}


def uniform(n: int) -> np.ndarray:
    """Return the same weight for each of n rows."""
    return np.full(n, 1.0 / n)


@dataclass(frozen=True, eq=False)
class Given:
    """Subpopulations whose memberships are the encoded rows themselves, as an array."""

    names: tuple[str, ...]

    def design(self, rows: np.ndarray) -> Design:
        """Return the memberships."""
        return Matrix(rows)

    def take(self, members: IntArray) -> Given:
        """Nobody asks."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, object]:
        """Nobody asks."""
        raise NotImplementedError


def panel_of(y: np.ndarray, p: np.ndarray, weight: np.ndarray, C: np.ndarray, names: tuple[str, ...] = ()) -> Panel:
    """Return rows and memberships that are given as arrays."""
    named = names or tuple(map(str, range(C.shape[1])))
    return Panel(Memory.of(C, p, y, weight), (Given(named),))


def changed(panel: Panel, **other: np.ndarray) -> Panel:
    """Return the panel with other y, p or C."""
    C = other.get("C", panel.design.dense())
    names = panel.names if C.shape[1] == len(panel.names) else ()
    return panel_of(other.get("y", panel.whole.y), other.get("p", panel.p), panel.whole.weight, C, names)


@dataclass(frozen=True)
class Population:
    """K equally likely kinds of people: groups C (K, m), truth f_star and predictions f, both (K, d)."""

    C: np.ndarray
    f_star: np.ndarray
    f: np.ndarray

    def violations(self, U: np.ndarray) -> np.ndarray:
        """Return E[c u_s (f*_a - f_a)] by a plain sum."""
        return np.einsum("kc,ks,ka->csa", self.C, U, self.f_star - self.f) / len(self.f)

    def draw(self, n: int, rng: np.random.Generator) -> Panel:
        """Draw n people and their labels."""
        k = rng.integers(0, len(self.f), n)
        truth = self.f_star[k]
        if truth.shape[1] == 1:
            y = (rng.random((n, 1)) < truth).astype(float)
        else:
            label = np.minimum((rng.random(n)[:, None] > truth.cumsum(axis=1)).sum(axis=1), truth.shape[1] - 1)
            y = np.eye(truth.shape[1])[label]
        names = tuple(f"group {j}" for j in range(self.C.shape[1]))
        return panel_of(y, self.f[k], np.full(n, 1.0 / n), self.C[k], names)


def thirty_groups(seed: int = 0, n_kinds: int = 3000) -> Population:
    """Thirty overlapping groups (ten attributes with three values), and a model that is wrong on some of them."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 3, (n_kinds, 10))
    C = np.concatenate([np.eye(3)[values[:, k]] for k in range(10)], axis=1)
    truth = 1.0 / (1.0 + np.exp(-rng.normal(0.0, 1.2, n_kinds) - 0.3 * (values[:, 0] == 1)))
    shift = 0.05 * (values[:, 1] == 2) - 0.08 * (values[:, 2] == 0) * (truth - 0.5)
    return Population(C, truth[:, None], np.clip(truth + shift, 0.01, 0.99)[:, None])


def perfect(seed: int = 0) -> Population:
    """The same people with a model that is right."""
    world = thirty_groups(seed)
    return Population(world.C, world.f_star, world.f_star)


def good_model(n: int, seed: int, columns: int = 5, levels: int = 4):
    """Return labels drawn from p itself: there is nothing to learn."""
    rng = np.random.default_rng(seed)
    p = sigmoid(rng.normal(0, 1.5, n))
    X = {f"g{k}": rng.integers(0, levels, n).astype(str) for k in range(columns)}
    return (rng.random(n) < p).astype(int), p, X


def people(n: int, d: int, seed: int = 0) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
    """Return columns, predictions that are wrong by group, outcomes and uneven weights."""
    rng = np.random.default_rng(seed)
    X: dict[str, Any] = {name: np.array(list("efghij"))[rng.integers(0, 6, n)] for name in "abc"}
    X |= {name: (rng.random(n) < 0.4).astype(float) for name in "stu"} | {name: rng.random(n) for name in "vw"}
    X["x"] = np.round(8 * X["w"])
    z = rng.normal(0.0, 1.2, (n, d))
    lift = 0.6 * (X["a"] == "e") - 0.8 * X["s"] * (X["b"] == "f") + 0.9 * (X["w"] - 0.5)
    truth = (0.7 * z + lift[:, None] * np.linspace(1.0, -1.0, max(d, 2))[:d]) if d > 1 else 0.7 * z + lift[:, None]
    p, f = (sigmoid(each) if d == 1 else softmax(each, axis=1) for each in (z, truth))
    u = rng.random((n, 1))
    y = (u < f).astype(float) if d == 1 else np.eye(d)[np.minimum((u > f.cumsum(axis=1)).sum(axis=1), d - 1)]
    weight = rng.uniform(0.5, 1.5, n)
    return X, p, y, weight / weight.sum()


def along(p: np.ndarray, y: np.ndarray, delta: np.ndarray, weight: np.ndarray) -> tuple[Memory, tuple[Term, ...]]:
    """Return rows and a term whose displacement is delta, shape (n, d): ups and downs are memberships in [0, 1]."""
    most, d = 2.0 ** np.ceil(np.log2(np.abs(delta).max() or 1.0)), delta.shape[1]
    C = np.concatenate([np.maximum(delta, 0.0), np.maximum(-delta, 0.0)], axis=1) / most
    theta = most * np.concatenate([np.eye(d), -np.eye(d)])[:, None, :]
    members = Members(tuple(f"m{j}" for j in range(2 * d)), tuple(range(2 * d)))
    return Memory.of(C, p, y, weight), (Term(members, (Monomial(),), theta),)


def multicalibrate(*given: Any, **options: Any) -> Any:
    """Return a fit for study: without the guard, to alpha = 0.01 unless another target is given."""
    return lowcal.multicalibrate(*given, **{"guard": False, "alpha": 0.01, **options})


class Shards(Memory):
    """Rows in memory in several shards, whose sums a pass adds as it adds those of blocks on disk or of workers."""

    def __init__(self, whole: Shard, shards: Sequence[Shard], threads: int = 1) -> None:
        super().__init__(whole)
        self.single, self.shards, self.threads = None, shards, threads

    @classmethod
    def cut(cls, rows: Memory, edges: int | Sequence[int], threads: int = 1) -> Shards:
        """Return rows in as many shards, or cut at these edges."""
        whole = rows.whole
        if isinstance(edges, int):
            edges = np.linspace(0, len(whole), edges + 1).astype(np.intp).tolist()
        return cls(whole, [run_of(whole, slice(a, b)) for a, b in pairwise(edges) if b > a], threads)

    def run(self, one: Pass[Any]) -> Any:
        """Take one pass over all shards, by threads if there are several."""

        def visit(shard: Shard) -> Any:
            with part_of(len(shard), self.scale.n):
                return one(shard)

        with ThreadPoolExecutor(self.threads) as pool:
            total = reduce(add, pool.map(visit, self.shards) if self.threads > 1 else map(visit, self.shards))
        return one.read(total, self.shards[0], self.scale)

    def recoded(self, change: Callable[[Encoded], Encoded]) -> Shards:
        """Return the same rows, encoded otherwise."""
        return Shards(super().recoded(change).whole, [Memory(one).recoded(change).whole for one in self.shards])

    def redrawn(self, state: State, seed: Sequence[int]) -> Shards:
        """Return the same rows with outcomes drawn shard by shard."""
        drawn = [Memory(one).redrawn(state, seed).whole for one in self.shards]
        return Shards(self.whole.with_outcomes(np.concatenate([one.y for one in drawn])), drawn, self.threads)


def run_of(whole: Shard, part: slice) -> Shard:
    """Return a run of rows as a shard of its own."""
    copies = None if whole.copies is None else whole.copies[part]
    given = whole.at(START)[part], whole.y[part], whole.weight[part], whole.scale, whole.first + part.start, copies
    return Shard(take_rows(whole.rows, part), *given)
