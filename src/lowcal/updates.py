"""Updates and predictors: an update is a sum of terms theta c(x) w(f), then the move; a predictor is a list of them.

`Update.__call__` is the only code that moves a prediction: fitting, early stopping, prediction and replay all call it.
Paper: lines 8 and 9 of Algorithm 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lowcal.engines.reference import Design, rows_in_cache
from lowcal.frames import Table as Frame
from lowcal.inputs import Layout, read_probabilities
from lowcal.moments import displacement, displacer
from lowcal.simplex import FloatArray, Geometry, move
from lowcal.subpopulations.base import Encoder, Family, Rows
from lowcal.weights import Cell, Knots, Monomial, Points, Weight, evaluate

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


#: A slice of the rows and the predictions there -> the displacement there.
Displacement: TypeAlias = Callable[[slice, FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class Term:
    """sum over c in family, u in weights, labels a of theta[c, u, a] c(x) u(f) e_a."""

    family: Family
    weights: tuple[Weight, ...]
    theta: FloatArray

    def __call__(self, p: FloatArray, design: Design) -> FloatArray:
        """Return the displacement at every row, shape (n, d); `design` is the family's on these rows."""
        return displacement(design, evaluate(self.weights, p), self.theta)

    def on(self, rows: Rows) -> Displacement:
        """Return the displacement on encoded rows as a function of a slice of them and the predictions there."""
        displace = displacer(self.family.design(rows), self.theta)
        return lambda part, p: displace(part, evaluate(self.weights, p))

    @property
    def numbers(self) -> int:
        """How many numbers the displacement of one row is made of."""
        return int(self.theta.shape[1] * self.theta.shape[2])

    def scaled(self, step: float) -> Term:
        """Return the term times a step size."""
        return replace(self, theta=step * self.theta)

    def to_dict(self) -> dict[str, Any]:
        """Return the term as plain data."""
        weights = [_weight_to_dict(u) for u in self.weights]
        return {"family": self.family.to_dict(), "weights": weights, "theta": self.theta.tolist()}


@dataclass(frozen=True, eq=False)
class Update:
    """f <- move(f, sum of terms): add and project, or add in log space and normalise."""

    terms: tuple[Term, ...]
    geometry: Geometry = "euclidean"

    def __call__(self, p: FloatArray, rows: Rows) -> FloatArray:
        """Return the moved predictions on encoded rows."""
        moved = np.empty(p.shape)
        for part, delta in _displacements(self.terms, p, rows):
            moved[part] = move(p[part], delta, self.geometry)
        return moved

    def __str__(self) -> str:
        named = [
            f"{theta:+.4g} * [{name}] * {u}{'' if term.theta.shape[2] == 1 else f' on label {a}'}"
            for term in self.terms
            for name, by_weight in zip(term.family.names, term.theta, strict=True)
            for u, by_label in zip(term.weights, by_weight, strict=True)
            for a, theta in enumerate(by_label)
            if theta != 0.0
        ]
        return "f <- f " + " ".join(named[:6]) + (f" ... ({len(named)} terms)" if len(named) > 6 else "")

    def to_dict(self) -> dict[str, Any]:
        """Return the update as plain data."""
        return {"geometry": self.geometry, "terms": [term.to_dict() for term in self.terms]}


def sum_terms(terms: Sequence[Term], p: FloatArray, rows: Rows) -> FloatArray:
    """Return the displacement of all terms together."""
    total = np.empty(p.shape)
    for part, delta in _displacements(terms, p, rows):
        total[part] = delta
    return total


def _displacements(terms: Sequence[Term], p: FloatArray, rows: Rows) -> Iterator[tuple[slice, FloatArray]]:
    """Yield the displacement of all terms, a piece of the rows at a time."""
    each = [term.on(rows) for term in terms]
    for part in rows_in_cache(len(p), max([1, *(term.numbers for term in terms)])):
        here = p[part]
        delta = np.zeros(here.shape)
        for displace in each:
            delta += displace(part, here)
        yield part, delta


@dataclass(frozen=True, eq=False)
class Predictor:
    """What mends probabilities: f_T = u_T o ... o u_1 (f_0) for any start f_0 = p.

    `predictor(p, X)` replays the updates on new rows of any supported frame; `predictor[:50]` keeps the first 50;
    `predictor.staged(p, X)` yields the predictions after each update.
    """

    encoder: Encoder
    updates: tuple[Update, ...]
    layout: Layout

    def __call__(self, p: ArrayLike, X: object = None) -> FloatArray:
        """Return the mended probabilities, in the shape of p."""
        return deque(self._stages(p, X), maxlen=1).pop()

    def staged(self, p: ArrayLike, X: object = None) -> Iterator[FloatArray]:
        """Yield the probabilities after each update."""
        stages = self._stages(p, X)
        next(stages)
        yield from stages

    def _stages(self, p: ArrayLike, X: object) -> Iterator[FloatArray]:
        given = read_probabilities(p, self.layout)
        rows = self.encoder(read_features(X, len(given)))
        current = given
        yield self.layout.show(current, p)
        for update in self.updates:
            current = update(current, rows)
            yield self.layout.show(current, p)

    def replay(self, p: FloatArray, rows: Rows) -> FloatArray:
        """Return the mended predictions for checked p and encoded rows."""
        for update in self.updates:
            p = update(p, rows)
        return p

    def __len__(self) -> int:
        """How many updates there are."""
        return len(self.updates)

    def __getitem__(self, rounds: slice) -> Predictor:
        """Return the predictor with some of the updates."""
        if not isinstance(rounds, slice):
            raise TypeError("A predictor is sliced, as in predictor[:50]; a single update is predictor.updates[t].")
        return replace(self, updates=self.updates[rounds])

    def __repr__(self) -> str:
        return f"Predictor({len(self.updates)} updates, {self.layout})"

    def to_dict(self) -> dict[str, Any]:
        """Return everything needed to predict, as plain data (numbers, strings, lists, dictionaries)."""
        return {
            "kind": "lowcal.predictor",
            "layout": self.layout.to_dict(),
            "encoder": self.encoder.to_dict(),
            "updates": [update.to_dict() for update in self.updates],
        }


def read_features(X: object, n_rows: int) -> Frame:
    """Return X as a table of n_rows rows; None is a table without columns."""
    from lowcal.inputs import check_length

    if X is None:
        return Frame.of({}) if n_rows == 0 else Frame.of(np.zeros((n_rows, 0)))
    table = Frame.of(X)
    check_length("X", table.n_rows, n_rows)
    return table


def _weight_to_dict(u: Weight) -> dict[str, Any]:
    if isinstance(u, Monomial):
        return {"kind": "monomial", "factors": list(u.factors)}
    if isinstance(u, Cell):
        return {"kind": "cell", "width": u.width, "index": list(u.index)}
    if isinstance(u, Knots):
        knots = {"positions": u.positions.tolist(), "heights": u.heights.tolist()}
        return {"kind": "knots", "coordinate": u.coordinate, **knots}
    if isinstance(u, Points):
        return {"kind": "points", "centres": u.centres.tolist(), "heights": u.heights.tolist()}
    raise TypeError(f"The weight {u!r} has no plain form.")
