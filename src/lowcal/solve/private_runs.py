"""One private fit: consume the private rounds and keep only what they release (spec 4.8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import Outcomes
from lowcal.data.progress import Progress
from lowcal.notions import Notion
from lowcal.rows import Memory
from lowcal.rows.updates import Predictor, Update
from lowcal.solve import private
from lowcal.solve.runs import Fit, Record
from lowcal.solve.solvers import Problem
from lowcal.solve.stopping import Status
from lowcal.subpopulations import Private


@dataclass(frozen=True, eq=False)
class PrivateFit(Fit):
    """What `multicalibrate` returns for `Private(...)`; all of it is private and may be published.

    `violation` is the released, noisy score of the pair that the last round selected, `history` the released scores
    (its losses are nan: they are not released), and `upper` bounds the supremum over the class on the fitted rows
    with probability 1 - beta. `guarantee` says what was paid and what is promised. The status is "reached" if the
    last score was below 3/4 of the tolerance and the errors were small enough for alpha, "undecided" if they were
    not, "limit" if the rounds ran out.
    """

    guarantee: private.PrivacyGuarantee = field(kw_only=True)

    def __str__(self) -> str:
        updates = "1 update" if self.n_updates == 1 else f"{self.n_updates} updates"
        return (
            f"{self.notion} at alpha={self.alpha:g}: {self.status.value} after {updates}, released score "
            f"{self.violation:.3g}; with probability {1 - self.guarantee.beta:g} the supremum is at most "
            f"{self.upper:.3g} on the fitted rows. {self.guarantee}"
        )


def check_private(
    solver: str,
    geometry: str,
    step: object,
    per_person: float | None,
    held_out: float,
    monitor: object,
    patience: object,
) -> None:
    """Refuse options that a private fit has no use for."""
    for name, given, default in (
        ("solver", solver, "block"),
        ("geometry", geometry, "euclidean"),
        ("step", step, None),
        ("per_person", per_person, None),
        ("validation_fraction", held_out, 0),
        ("monitor", monitor, None),
        ("patience", patience, None),
    ):
        if given != default:
            raise InvalidInput(
                f"Private(...) brings its own solver, step and stop rule, so {name} must be left at {default!r}, "
                f"but is {given!r}. Pass {name}={default!r}."
            )


def fit_privately(
    chosen: Private,
    outcomes: Outcomes,
    table: Frame,
    notion: Notion,
    alpha: float,
    max_updates: int | None,
    callback: Callable[[Record], bool | None] | None,
    progress: bool,
    rng: np.random.Generator,
) -> PrivateFit:
    """Consume the private rounds; only what they release is kept."""
    weight = outcomes.weight
    if np.ptp(weight) > 1e-9 * weight.max():
        raise InvalidInput(
            "Private(...) takes no sample weights: a heavy row would need more noise. Leave sample_weight out."
        )
    learner = chosen.listed(table, weight)
    problem = Problem(Memory.of(learner.rows, outcomes.p, outcomes.y, weight), notion, learner, alpha)
    guarantee = private.plan(chosen, problem, outcomes.p.shape[1], None if max_updates is None else max_updates + 1)
    updates: list[Update] = []
    history: list[Record] = []
    violation, status = np.nan, Status.LIMIT
    with Progress(progress, alpha) as bar:
        for violation, update in private.rounds(problem, guarantee, rng):
            history[-1:] = [Record(len(updates), violation, np.nan, np.nan)] if updates else []
            if updates and callback is not None and callback(history[-1]):
                status = Status.STOPPED
                break
            if update is None:
                break
            updates.append(update)
            history.append(Record(len(updates), np.nan, np.nan, np.nan))
            bar.show(len(updates), violation)
    if status is Status.LIMIT and violation < guarantee.threshold:
        status = Status.REACHED if guarantee.accuracy <= alpha else Status.UNDECIDED
    return PrivateFit(
        Predictor(problem.learner.encoder, tuple(updates), outcomes.layout),
        status,
        tuple(history),
        float(violation),
        guarantee.upper(violation),
        guarantee.rounds - 1,
        problem.learner.n_calls,
        True,
        notion,
        alpha,
        guarantee=guarantee,
    )
