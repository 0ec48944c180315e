"""What a learner is asked about the rows at a state of a fit: residuals of a notion's probes, and of a witness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowcal.kernels.simplex import FloatArray
from lowcal.notions.base import Witness
from lowcal.notions.moments import residual
from lowcal.notions.weights import Cell, Monomial, Weight
from lowcal.rows.base import Local, State
from lowcal.subpopulations.base import Residuals


@dataclass(frozen=True, eq=False)
class Probed:
    """z = u(f) (y_a - f_a) for pairs of a weight u, which is at most 1, and a label a."""

    state: State
    pairs: tuple[tuple[Weight, int], ...]
    bound: float = 1.0

    @property
    def q(self) -> int:
        """How many residuals a row has."""
        return len(self.pairs)

    @property
    def n_labels(self) -> int:
        """How many labels the first pairs run through with the weight 1; at least one residual stands for a label."""
        plain = [(Monomial(), a) for a in range(self.q)]
        return next((a for a, pair in enumerate(self.pairs) if pair != plain[a]), self.q) or 1

    def __call__(self, shard: Local) -> FloatArray:
        """Return the residuals of these rows."""
        p = shard.at(self.state)
        return np.column_stack([residual(u, a, p, shard.y) for u, a in self.pairs])

    def follows(self, other: Residuals) -> bool:
        """Whether a single pair was asked about at the same state."""
        same = isinstance(other, Probed) and other.state is self.state
        return same and self.q == 1 and self.pairs[0] in other.pairs  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Witnessed:
    """z = <w(f), y - f> for a signed weight w."""

    state: State
    witness: Witness
    q: int = 1
    n_labels: int = 1

    @property
    def bound(self) -> float:
        """A weight is at most the sum of its coefficients, and residuals y - f sum to at most 2."""
        size, weights = np.abs(self.witness.coefficients), self.witness.weights
        is_apart = all(isinstance(u, Cell) for u in weights)  # cells do not overlap
        return 2.0 * float((size.max(axis=0) if is_apart else size.sum(axis=0)).max())

    def __call__(self, shard: Local) -> FloatArray:
        """Return the residuals of these rows."""
        p = shard.at(self.state)
        return np.asarray((self.witness(p) * (shard.y - p)).sum(axis=1)[:, None])

    def follows(self, other: Residuals) -> bool:
        """Whether all parts of the weight were asked about at the same state."""
        if not isinstance(other, Probed) or other.state is not self.state:
            return False
        parts = zip(*np.nonzero(self.witness.coefficients), strict=True)
        return all((self.witness.weights[s], int(a)) in other.pairs for s, a in parts)
