"""The exact test of perfect calibration: labels drawn from the predictions, and everything measured again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowcal.auditing.certificates.draws import Draws, draw, drawn_suprema, new_seed, observed_moments
from lowcal.auditing.certificates.panel import Panel
from lowcal.kernels.simplex import FloatArray
from lowcal.notions.base import Finite, Notion


@dataclass(frozen=True, eq=False)
class Null:
    """What a perfectly calibrated model would have shown on these rows.

    `floor[c]` is exceeded by chance with probability 1 - confidence, `largest` likewise for the largest of all;
    `p_value` is exact at any n (nan where outcomes are no draws of labels); `is_too_good`: the violations are far
    smaller than those of any draw, as happens on rows that the model was fitted to; `drawn` is what the draws showed.
    """

    floor: FloatArray
    largest: float
    p_value: float
    is_too_good: bool
    drawn: Draws


def null_test(panel: Panel, notion: Notion, confidence: float, rng: np.random.Generator, *, draws: int = 99) -> Null:
    """Redraw the labels from the predictions, measure everything again, and compare (spec 10.i.d).

    If f = f*, the sample and its redraws are exchangeable, so p = (1 + #{T_b >= T}) / (1 + B) is exact. T is the
    largest normal score of a moment, or of a supremum: small subpopulations count as much as large ones.
    """
    drawn = draw(panel, notion, 0.0, draws, new_seed(rng))
    if drawn.scores is None or drawn.scored is None:
        observed = _suprema(panel, notion)
        T = _largest_scores(np.vstack([observed, drawn.suprema]))
    else:
        observed, score = drawn.scored.both(observed_moments(panel, drawn.scored.weights))
        T = np.append(score, drawn.scores)
    least = T[0] - 1e-12 * abs(T[0]) if np.isfinite(T[0]) else T[0]
    p_value = (1.0 + np.count_nonzero(T[1:] >= least)) / (1.0 + draws) if panel.is_label else np.nan
    floor = np.quantile(drawn.suprema, confidence, axis=0, method="higher")
    largest = float(np.quantile(drawn.suprema.max(axis=1), confidence, method="higher"))
    is_too_good = bool(largest > 0.0 and observed.max() < 0.5 * drawn.suprema.max(axis=1).min())
    return Null(floor, largest, float(p_value), is_too_good, drawn)


def _suprema(panel: Panel, notion: Notion) -> FloatArray:
    """Return the suprema of the outcomes as they are, computed as those of the draws."""
    if isinstance(notion, Finite):
        weights = panel.constraints(notion)
        return notion.norm(weights, observed_moments(panel, weights)).value
    return np.asarray(drawn_suprema(panel, notion, None, [None], 0)[0])


def _largest_scores(suprema: FloatArray) -> FloatArray:
    """Return max over c of the standardised cube roots of suprema (draws, m): the same function of every draw."""
    root = np.cbrt(suprema)
    spread_of = root.std(axis=0)
    return np.asarray(((root - root.mean(axis=0)) / np.where(spread_of > 0.0, spread_of, np.inf)).max(axis=1))
