"""Suprema of many residuals on the same rows, for weight classes that are not finitely many moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowcal.kernels.reference import Design
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.base import Notion
from lowcal.notions.smooth import GridSmooth, Smooth

#: When resampled, the smooth statistic sees predictions rounded to multiples of STEP, for redrawn labels of COARSE.
STEP, COARSE = 1 / 1024, 1 / 256


@dataclass(frozen=True, eq=False)
class Statistic:
    """The suprema of all subpopulations as a function of weighted residuals, and an error bound of that figure."""

    values: Callable[[FloatArray], FloatArray]
    error: Callable[[FloatArray], FloatArray]


def statistic(notion: Notion, p: FloatArray, design: Design, step: float = STEP) -> Statistic:
    """Prepare what does not depend on the labels, so that every draw costs one pass over the rows."""
    if isinstance(notion, Smooth):
        grid = GridSmooth(p, design, step)
        return Statistic(grid.values, grid.error)
    return Statistic(lambda rho: notion.suprema(p, rho, design).value, lambda _: np.zeros(design.shape[1]))
