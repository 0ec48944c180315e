"""The simple candidates, fitted to the rows outside every fold: what they predict on these rows and on the fold.

For two classes and few rows all folds are fitted at once, which takes a fraction of the time: there NumPy's calls are
most of it. Several classes, many groups and many rows are fitted fold by fold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import NamedTuple

import numpy as np

from lowcal.kernels.products import product
from lowcal.kernels.simplex import FloatArray, IntArray, sigmoid
from lowcal.kernels.together import Regressions, Weighted, fit_each
from lowcal.notions.weights import LogOdds, LogRest, Monomial, evaluate
from lowcal.solve.candidates import BETA, GROUPS, ISOTONIC, LINE, SIMPLE, Side, is_rising, simple_names
from lowcal.solve.shrinkage import logit_steps

#: The rows outside a fold, and those of the fold.
Dealt = Sequence[tuple[IntArray, IntArray]]


class Predicted(NamedTuple):
    """What a candidate predicts on the rows that it was fitted to and on the fold, and how long its fit took."""

    fitted: FloatArray
    held: FloatArray
    seconds: float


def fit_simple(whole: Side, dealt: Dealt) -> Iterator[dict[str, Predicted]]:
    """Yield what each simple candidate predicts, for fold after fold."""
    if whole.outcomes.p.shape[1] == 1 and whole.shared.is_small:
        yield from Together(whole, dealt).predicted()
        return
    for fitted, held in dealt:
        yield _fit_fold(Side.of(whole.shared, whole.outcomes, fitted), Side.of(whole.shared, whole.outcomes, held))


def _fit_fold(fitted: Side, held: Side) -> dict[str, Predicted]:
    learner, rows, found = fitted.groups(), held.group_rows(fitted.shared.groups), {}
    for name in simple_names(held.outcomes.p.shape[1]):
        began = perf_counter()
        corrected = SIMPLE[name](fitted, learner)
        seconds = perf_counter() - began
        found[name] = Predicted(corrected.p, corrected.on(held.outcomes.p, rows), seconds)
    return found


@dataclass(frozen=True, eq=False)
class Together:
    """The simple candidates for two classes on all folds at once: a fold is a column of weights."""

    whole: Side
    dealt: Dealt

    def predicted(self) -> Iterator[dict[str, Predicted]]:
        """Yield what each candidate predicts, for fold after fold."""
        found = {}
        for name, fit in ((LINE, self._line), (BETA, self._beta), (GROUPS, self._groups)):
            began = perf_counter()
            found[name] = fit(), (perf_counter() - began) / len(self.dealt)
        for k, (fitted, held) in enumerate(self.dealt):
            here = {name: Predicted(p[fitted, k, None], p[held, k, None], s) for name, (p, s) in found.items()}
            isotonic = _fit_isotonic(
                Side.of(self.whole.shared, self.whole.outcomes, fitted), self.whole.outcomes.p[held]
            )
            yield {name: here.get(name, isotonic) for name in simple_names(1)}

    @cached_property
    def rows(self) -> Weighted:
        """The rows, with the weights of every fold's fit."""
        o = self.whole.outcomes
        weight = np.zeros((len(o.p), len(self.dealt)))
        for k, (fitted, _) in enumerate(self.dealt):
            weight[fitted, k] = o.weight[fitted] / o.weight[fitted].sum()
        return Weighted(self.whole.shared.scores[:, 0], o.y[:, 0], weight)

    @cached_property
    def line(self) -> FloatArray:
        """Shift and slope of the line of everyone, (2, F); zeros where they are noise."""
        return self._whole_line[0] if self.whole.shared.takes_line else self._shrunk(*self._whole_line)

    @cached_property
    def _whole_line(self) -> tuple[FloatArray, FloatArray]:
        """The same before it is shrunk, and its losses."""
        return fit_each(self.rows, np.column_stack([np.ones(len(self.rows.z)), self.rows.z]))

    @cached_property
    def _start(self) -> FloatArray:
        """The losses of the model as it is."""
        return self.rows.losses(np.repeat(self.rows.z[:, None], len(self.dealt), axis=1))[0]

    def _line(self) -> FloatArray:
        return sigmoid(self.rows.z[:, None] * (1.0 + self.line[1]) + self.line[0])

    def _beta(self) -> FloatArray:
        """Fit beta calibration, from the line on, which it bends."""
        U, straight = (
            np.asarray(evaluate((Monomial(), LogOdds(), LogRest()), self.whole.outcomes.p)),
            np.zeros(len(self.dealt)),
        )
        theta = self._shrunk(*fit_each(self.rows, U, np.vstack([self._whole_line[0], straight])))
        falls = [not is_rising(*each) for each in theta[1:].T]
        theta = np.where(falls, np.vstack([self.line, straight]), theta)
        return sigmoid(self.rows.z[:, None] + product(U, theta))

    def _shrunk(self, theta: FloatArray, losses: FloatArray) -> FloatArray:
        """Return coefficients times James and Stein's factor 1 - k / Q, Q being twice the gain in likelihood."""
        fall, free = 2.0 * self.rows.worth * (self._start - losses), float(len(theta))
        return np.asarray(np.where(fall > free, 1.0 - free / np.maximum(fall, free), 0.0) * theta)

    def _groups(self) -> FloatArray:
        """Fit the shrunk shifts and slopes of all groups."""
        shared = self.whole.shared
        groups = Regressions(self.rows, shared.members)
        return groups.predict(logit_steps(groups, lambda: shared.hessian, self.line, shared.everyone))


def _fit_isotonic(fitted: Side, p: FloatArray) -> Predicted:
    began = perf_counter()
    corrected = SIMPLE[ISOTONIC](fitted, fitted.shared.groups)
    return Predicted(fitted.outcomes.p, corrected.on(p, ()), perf_counter() - began)
