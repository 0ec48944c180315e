"""What chance shows: labels drawn anew from probabilities, and everything measured again."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import NormalDist

import numpy as np

from lowcal.certificates.panel import Panel
from lowcal.certificates.score import label_noise, normal_score, raised
from lowcal.engines.reference import rows_in_cache
from lowcal.moments import MomentSums, moments
from lowcal.notions.base import Finite, Notion
from lowcal.resampling import redraw_labels, statistic
from lowcal.simplex import FloatArray
from lowcal.threads import spread
from lowcal.weights import Cell, Weight, evaluate

#: At least this many draws lie beyond a quantile that is taken from them.
BEYOND = 5


def draws_for(beta: float) -> int:
    """Return how many draws a quantile at 1 - beta asks for.

    >>> draws_for(0.05)
    99
    """
    return ceil(BEYOND / beta - 1e-9) - 1


def union_bound(n_constraints: int, beta: float) -> float:
    """Return the normal quantile at which n two-sided intervals hold together, whatever their dependence.

    >>> round(union_bound(1, 0.05), 2), round(union_bound(100, 0.05), 2)
    (1.96, 3.48)
    """
    return NormalDist().inv_cdf(1.0 - beta / (2.0 * n_constraints))


@dataclass(frozen=True, eq=False)
class Draws:
    """The suprema of every draw and subpopulation, (draws, m), and the largest score of every draw.

    There are scores where the supremum is a single moment: the largest of all moments' normal scores in size, and
    `scored` is what they were computed by.
    """

    suprema: FloatArray
    scores: FloatArray | None = None
    scored: Scores | None = None


def draw(panel: Panel, notion: Notion, chance: FloatArray, draws: int, rng: np.random.Generator) -> Draws:
    """Draw labels from probabilities `chance` and measure y' - chance; numbers get their residuals with signs anew."""
    streams = rng.spawn(draws)
    if isinstance(notion, Finite) and notion.is_largest(panel.p.shape[1]):
        scores = Scores.of(panel, notion, chance)
        both = spread(lambda own: scores.both(_drawn_moments(panel, scores.weights, chance, own)), streams, len(chance))
        return Draws(np.array([one for one, _ in both]), np.array([one for _, one in both]), scores)
    compute = statistic(notion, panel.p, panel.design)
    suprema = spread(lambda own: compute.values(_residuals(panel, chance, own)), streams, len(chance))
    return Draws(np.array(suprema))


def _residuals(panel: Panel, chance: FloatArray, rng: np.random.Generator) -> FloatArray:
    if panel.is_label:
        return np.asarray(panel.weight[:, None] * (redraw_labels(chance, rng) - chance))
    return np.asarray(panel.rho * rng.choice([-1.0, 1.0], (len(chance), 1)))


def _drawn_moments(
    panel: Panel, weights: tuple[Weight, ...], chance: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Return the moments of one draw; a piece of the rows at a time, whose labels stay in cache."""
    p, weight = panel.p, panel.weight
    if not panel.is_label or any(isinstance(u, Cell) for u in weights):
        return moments(panel.design, evaluate(weights, p), _residuals(panel, chance, rng))
    sums = MomentSums(panel.design, weights, p.shape[1])
    for part in rows_in_cache(len(p), len(weights) * p.shape[1]):
        y = redraw_labels(chance[part], rng)
        if chance is p:
            sums.add_residuals(part, p[part], y, weight[part])
        else:
            sums.add(part, p[part], weight[part, None] * (y - chance[part]))
    return sums.total()


@dataclass(frozen=True, eq=False)
class Scores:
    """The normal scores of all moments, if labels have given probabilities: these depend on no label."""

    notion: Finite
    weights: tuple[Weight, ...]
    variance: FloatArray
    skewness: FloatArray

    @classmethod
    def of(cls, panel: Panel, notion: Finite, chance: FloatArray) -> Scores:
        """Sum up the noise of every moment; signs at random are not skewed."""
        weights = tuple(notion.constraints(panel.p))
        U = evaluate(weights, panel.p)
        w, noise = panel.weight[:, None], label_noise(panel, chance)
        second, third = (
            moments(panel.design.power(k), raised(U, k), raised(w, k) * one)
            for k, one in ((2, noise.one), (3, noise.two))
        )
        safe = np.where(second > 0.0, second, 1.0)
        return cls(notion, weights, second, third / safe**1.5 if panel.is_label else np.zeros_like(third))

    def both(self, v: FloatArray) -> tuple[FloatArray, float]:
        """Return the suprema of moments v, and their largest score; what can't be has an infinite one."""
        t = v / np.sqrt(np.where(self.variance > 0.0, self.variance, 1.0))
        z = np.where(self.variance > 0.0, normal_score(t, self.skewness), np.where(np.abs(v) > 1e-12, np.inf, 0.0))
        return self.notion.norm(self.weights, v).value, float(np.abs(z).max())
