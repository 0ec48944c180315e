"""What families read of a single row: codes (levels, leaves) and memberships, each found once for all updates.

None of it depends on the prediction, and updates share much of it: a fit that found ten trees reads all of them in its
last update. So trees, forests and sigmoids are collected first, those of the same kind are evaluated together, and an
update looks up what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from lowcal.kernels.reference import Decode
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.subpopulations.base import CodeFamily, Everyone, Family
from lowcal.subpopulations.growing import Forest
from lowcal.subpopulations.linear import Sigmoids
from lowcal.subpopulations.memberships import Members
from lowcal.subpopulations.serving import Encoded
from lowcal.subpopulations.trees import TreeNodes, TreeSum
from lowcal.subpopulations.union import Part

#: An encoded row, or its part of a union -> what is read of it.
Evaluate: TypeAlias = Callable[[Encoded], NDArray[Any]]


class Always(NamedTuple):
    """A member that holds everyone: nothing is read."""

    size: int = 1


class CodeRead(NamedTuple):
    """Members that are functions of a code: `facts[block][position]` is the row of the table."""

    block: int
    position: int
    table: Decode

    @property
    def size(self) -> int:
        """How many members there are."""
        return self.table.shape[1]


class MemberRead(NamedTuple):
    """Members that are listed: `facts[block][positions]` are their values."""

    block: int
    positions: Sequence[int]

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.positions)


#: How some members of a family follow from the facts of a row.
Read: TypeAlias = Always | CodeRead | MemberRead


class RowFacts:
    """Collects what the families of a predictor read; `evaluator` then finds all of it in a row."""

    def __init__(self) -> None:
        self._blocks: dict[Hashable, tuple[int, tuple[int, ...], Any]] = {}

    def reads(self, family: Family) -> Sequence[Read] | None:
        """Note what a family reads and say where it will be found; None for a family that is not lowcal's own."""
        part: tuple[int, ...] = ()
        while isinstance(family, Part):
            part, family = (*part, family.index), family.family
        return self._reads(family, part)

    def _reads(self, family: Family, part: tuple[int, ...]) -> Sequence[Read] | None:
        if isinstance(family, Everyone):
            return [Always()]
        if isinstance(family, CodeFamily):
            block, _ = self._block("given", part, Given)
            return [CodeRead(block, k, t) for k, t in zip(family.columns, family.decode, strict=True)]
        if isinstance(family, Members):
            block, _ = self._block("given", part, Given)
            return [MemberRead(block, family.columns)]
        if isinstance(family, Sigmoids):
            block, sigmoids = self._block("sigmoids", part, SigmoidBlock)
            return [MemberRead(block, [sigmoids.place(theta) for theta in family.theta.T])]
        if isinstance(family, TreeNodes):
            block, leaves = self._block(("leaves", family.tree.depth), part, LeafBlock)
            return [CodeRead(block, leaves.place(family.tree), family.table)]
        if isinstance(family, TreeSum):
            block, sums = self._block(("sums", family.forest.depth), part, SumBlock)
            return [MemberRead(block, [sums.place(family)])]
        return None

    def _block(self, kind: Hashable, part: tuple[int, ...], make: Callable[[], Any]) -> tuple[int, Any]:
        number, _, block = self._blocks.setdefault((kind, part), (len(self._blocks), part, make()))
        return number, block

    def evaluator(self) -> Callable[[Encoded], list[NDArray[Any]]]:
        """Return the function from an encoded row to all facts, block by block."""
        each = [(part, block.evaluator()) for _, part, block in self._blocks.values()]

        def evaluate(row: Encoded) -> list[Any]:
            facts = []
            for part, block in each:
                here = row
                for k in part:
                    here = here[k]
                facts.append(block(here))
            return facts

        return evaluate


class Given:
    """The codes or memberships as they are."""

    def evaluator(self) -> Evaluate:
        """Return them as an array."""
        return np.array


class SigmoidBlock:
    """Sigmoids of linear functions, each kept once."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[int, FloatArray]] = {}

    def place(self, theta: FloatArray) -> int:
        """Return the position of the sigmoid with these coefficients."""
        return self.known.setdefault(theta.tobytes(), (len(self.known), theta))[0]

    def evaluator(self) -> Evaluate:
        """Return all sigmoids as one function of the features."""
        theta = np.column_stack([theta for _, theta in self.known.values()])
        slope, intercept = np.ascontiguousarray(theta[:-1]), theta[-1]
        return lambda features: expit(np.einsum("k,kw->w", np.array(features), slope) + intercept)


class LeafBlock:
    """Trees of one depth, each kept once."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[int, Forest]] = {}

    def place(self, tree: Forest) -> int:
        """Return the position of a tree."""
        content = tree.feature.tobytes() + tree.cut.tobytes()
        return self.known.setdefault(content, (len(self.known), tree))[0]

    def evaluator(self) -> Evaluate:
        """Return the leaves of all trees as one function of the bins."""
        return Walk.of([tree for _, tree in self.known.values()])


class SumBlock:
    """Sums of forests of one depth, each kept once."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[int, TreeSum]] = {}

    def place(self, family: TreeSum) -> int:
        """Return the position of the sum of a forest."""
        forest = family.forest
        content = forest.feature.tobytes() + forest.cut.tobytes() + forest.value.tobytes()
        return self.known.setdefault(content + np.float64(family.scale).tobytes(), (len(self.known), family))[0]

    def evaluator(self) -> Evaluate:
        """Return all sums, brought into [-1, 1], as one function of the bins."""
        families = [family for _, family in self.known.values()]
        walk = Walk.of([family.forest for family in families])
        value = np.concatenate([family.forest.value[:, :, 0] for family in families])
        trees, starts = np.arange(len(value)), np.cumsum([0, *(len(f.forest.value) for f in families)])[:-1]
        scale = np.array([family.scale for family in families])
        return lambda bins: np.clip(np.add.reduceat(value[trees, walk(bins)], starts) / scale, -1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Walk:
    """All trees of some forests of one depth, walked down together: their nodes lie one tree after the other.

    From an inner node a row goes to `left` or, if the bin of its feature lies above the cut, to the node after it. From
    the last inner level it goes to a leaf, numbered from 0.
    """

    roots: IntArray
    feature: IntArray
    cut: IntArray
    left: IntArray
    depth: int

    @classmethod
    def of(cls, forests: Sequence[Forest]) -> Walk:
        """Lay out the trees; no bin lies above the cut of a node without a split."""
        feature, cut = np.concatenate([f.feature for f in forests]), np.concatenate([f.cut for f in forests])
        n_trees, n_inner = feature.shape
        roots, node = np.arange(n_trees) * n_inner, np.arange(n_inner)
        is_last = 2 * node + 1 >= n_inner
        left = np.where(is_last, 2 * node + 1 - n_inner, roots[:, None] + 2 * node + 1)
        cut = np.where(feature >= 0, cut, np.iinfo(np.intp).max)
        return cls(roots, np.maximum(feature, 0).ravel(), cut.ravel(), left.ravel(), forests[0].depth)

    def __call__(self, bins: Sequence[int]) -> IntArray:
        """Return the leaf of a row in every tree."""
        row, node = np.array(bins), self.roots
        for _ in range(self.depth):
            node = self.left.take(node) + (row.take(self.feature.take(node)) > self.cut.take(node))
        return node
