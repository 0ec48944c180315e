"""Drawing outcomes anew on the same rows: what chance alone would show, and the suprema of every draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowcal.engines.parts import FEW_PRODUCTS, outer_moments
from lowcal.engines.reference import Design
from lowcal.moments import moments
from lowcal.notions.base import Finite, Notion
from lowcal.notions.smooth import GridSmooth, Smooth
from lowcal.rows.keys import draw_labels
from lowcal.simplex import FloatArray
from lowcal.weights import CellIds, evaluate

#: When resampled, the smooth statistic sees predictions rounded to multiples of STEP, for redrawn labels of COARSE.
STEP, COARSE = 1 / 1024, 1 / 256


def redraw_labels(p: FloatArray, random_state: np.random.Generator) -> FloatArray:
    """Return labels drawn from the predictions, in the shape of p: 0 or 1 for scalars, one-hot on the simplex.

    >>> redraw_labels(np.array([[0.0], [1.0]]), np.random.default_rng(0)).ravel().tolist()
    [0.0, 1.0]
    """
    return draw_labels(p, random_state.random(len(p)))


@dataclass(frozen=True, eq=False)
class Statistic:
    """The suprema of all subpopulations as a function of weighted residuals, and an error bound of that figure."""

    values: Callable[[FloatArray], FloatArray]
    error: Callable[[FloatArray], FloatArray]


def statistic(notion: Notion, p: FloatArray, design: Design, step: float = STEP) -> Statistic:
    """Prepare what does not depend on the labels, so that every draw costs one pass over the rows."""
    if isinstance(notion, Finite):
        weights = notion.constraints(p)
        U = evaluate(weights, p)
        is_wide = not isinstance(U, CellIds) and p.shape[1] > 1 and len(weights) * p.shape[1] > FEW_PRODUCTS
        compute: Callable[..., FloatArray] = outer_moments if is_wide else moments  # products are not written out
        return Statistic(lambda rho: notion.norm(weights, compute(design, U, rho)).value, _no_error(design))
    if isinstance(notion, Smooth):
        grid = GridSmooth(p, design, step)
        return Statistic(grid.values, grid.error)
    return Statistic(lambda rho: notion.suprema(p, rho, design).value, _no_error(design))


def _no_error(design: Design) -> Callable[[FloatArray], FloatArray]:
    return lambda _: np.zeros(design.shape[1])
