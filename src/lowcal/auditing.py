"""Measuring a predictor on every subpopulation: the suprema that a fit drives down, on any rows.

This is the exact in-sample figure of spec 2 for each c; it says nothing yet about confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowcal.fitting import choose_subpopulations
from lowcal.inputs import read_outcomes
from lowcal.notions import Notion, Suprema, parse_notion
from lowcal.simplex import FloatArray
from lowcal.solvers import Problem, explore
from lowcal.subpopulations import Subpopulations
from lowcal.updates import read_features

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Measurement:
    """The supremum over the weight class for every subpopulation.

    `violation[j]` = sup over w in W of |E[c_j <w(f), y - f>]|, attained by the witness; `upper[j]` is certified to be
    no less than it; `basis[j]` is the part that single basis elements show; `mass[j]` = E[c_j]; `names[j]` says who.
    """

    notion: Notion
    names: tuple[str, ...]
    mass: FloatArray
    suprema: Suprema
    is_exact: bool

    @property
    def violation(self) -> FloatArray:
        """The supremum for every subpopulation."""
        return self.suprema.value

    @property
    def upper(self) -> FloatArray:
        """A certified upper bound on it; equal where the supremum is exact."""
        return self.suprema.upper

    @property
    def basis(self) -> FloatArray:
        """The largest violation of a single basis element."""
        return self.suprema.basis

    @property
    def conditional(self) -> FloatArray:
        """The violation divided by the mass of the subpopulation: how wrong it is for each member."""
        return self.violation / np.maximum(self.mass, np.finfo(float).tiny)

    @property
    def largest(self) -> float:
        """The largest violation of all."""
        return float(self.violation.max())

    def worst(self, n: int = 5) -> list[tuple[str, float, str]]:
        """Return the n subpopulations with the largest violations: (name, violation, weight that shows it)."""
        order = np.argsort(-self.violation, kind="stable")[:n]
        return [(self.names[j], float(self.violation[j]), str(self.suprema.witness(int(j)))) for j in order]


def measure(
    y: ArrayLike,
    p: ArrayLike,
    X: object = None,
    *,
    subpopulations: Subpopulations | None = None,
    notion: str | Notion = "degree-2",
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Measurement:
    """Return the violation of a notion on every subpopulation of these rows, exactly (spec 2).

    The arguments are those of `multicalibrate`. Learner-defined classes are searched once.

    >>> from lowcal.datasets import parity_square
    >>> from lowcal.subpopulations import Groups
    >>> world = parity_square()
    >>> groups = Groups(min_mass=0)
    >>> kind = dict(subpopulations=groups, sample_weight=world.sample_weight)
    >>> round(measure(world.y, world.p, world.X, notion="multiaccuracy", **kind).largest, 12)
    0.0
    >>> measured = measure(world.y, world.p, world.X, notion="degree-2", **kind)
    >>> measured.worst(1)[0][0], round(measured.largest * 27, 9)
    ('x1=0', 1.0)
    """
    chosen_notion = parse_notion(notion)
    outcomes = read_outcomes(y, p, sample_weight, classes)
    table = read_features(X, len(outcomes.p))
    learner = choose_subpopulations(subpopulations, X, table).prepare(table, outcomes.weight)
    problem = Problem(outcomes.y, outcomes.weight, chosen_notion, learner, alpha=np.inf)
    explore(problem, outcomes.p)
    rho = problem.rho(outcomes.p)
    design = learner.design()
    mass = design.moments(outcomes.weight[:, None])[:, 0]
    found = chosen_notion.suprema(outcomes.p, rho, design)
    return Measurement(chosen_notion, learner.names, mass, found, learner.is_exact)
