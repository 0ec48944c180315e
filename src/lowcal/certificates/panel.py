"""The rows that judge, and what is assumed of the noise in their labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lowcal.engines.products import dot
from lowcal.engines.reference import Design
from lowcal.simplex import FloatArray
from lowcal.subpopulations.base import effective_rows

#: The least share of labels that are taken to be drawn at random: probabilities of exactly 0 and 1 need some noise.
LEAST_NOISE = 1e-9


@dataclass(frozen=True, eq=False)
class Panel:
    """Rows to judge on, and the subpopulations judged there. No label of these rows helped to choose them.

    `is_label` says that outcomes are labels, drawn with some probability, and not numbers in [0, 1].
    """

    y: FloatArray
    p: FloatArray
    weight: FloatArray
    design: Design
    names: tuple[str, ...]
    is_label: bool = True

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
    def reach(self) -> FloatArray:
        """What no violation of a subpopulation exceeds on these rows: its mass, or 1 for memberships with signs."""
        return np.where(self.is_share, self.mass, 1.0)

    @cached_property
    def is_share(self) -> NDArray[np.bool_]:
        """Whether memberships have no signs, so that the mass is a share of the rows."""
        return self._mean_square <= self.mass * (1.0 + 1e-9)

    @cached_property
    def is_set(self) -> NDArray[np.bool_]:
        """Whether memberships are 0 or 1."""
        return np.abs(self._mean_square - self.mass) <= np.abs(self.mass) * 1e-9

    @cached_property
    def n_effective(self) -> FloatArray:
        """The effective number of rows of every subpopulation."""
        return effective_rows(self.mass, self._square)

    @cached_property
    def mass_error(self) -> FloatArray:
        """The standard error of every mass."""
        return np.sqrt(np.maximum(self._square - np.square(self.mass) * self.energy, 0.0))

    @cached_property
    def _mean_square(self) -> FloatArray:
        return self.design.power(2).moments(self.weight[:, None])[:, 0]

    @cached_property
    def _square(self) -> FloatArray:
        return self.design.power(2).moments(np.square(self.weight)[:, None])[:, 0]

    @cached_property
    def believed(self) -> FloatArray:
        """The probabilities by which the noise of the labels is modelled, shape (n, d): (1 - t) f + t / labels.

        They are f itself unless the residuals are plainly larger than f allows (E|y - f|^2 = 1 - |f|^2 + 2t (|f|^2 -
        1 / labels) if a share t of the labels is drawn at random): then t is the least share within two standard
        errors. Predictions of 0 and 1 that are wrong now and then show no noise of their own.
        """
        f, y = self.p, self.y
        labels = max(2, f.shape[1])
        both = 2.0 if f.shape[1] == 1 else 1.0  # a scalar stands for two labels
        room = np.square(f).sum(axis=1) + (np.square(1.0 - f[:, 0]) if f.shape[1] == 1 else 0.0)
        excess = both * np.square(y - f).sum(axis=1) - (1.0 - room)
        mean = dot(self.weight, excess)
        error = float(np.sqrt(dot(np.square(self.weight), np.square(excess - mean))))
        slope = 2.0 * dot(self.weight, room - 1.0 / labels)
        share = min(1.0, max(LEAST_NOISE, (mean - 2.0 * error) / slope if slope > LEAST_NOISE else 0.0))
        return np.asarray((1.0 - share) * f + share / labels)

    @property
    def is_believed(self) -> bool:
        """Whether the noise is modelled by the predictions themselves."""
        return bool(np.abs(self.believed - self.p).max(initial=0.0) <= LEAST_NOISE)
