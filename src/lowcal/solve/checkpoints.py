"""Checkpoints: the updates of a fit as they come, so that a fit that was killed continues where it was.

The updates are all that a fit knows, beside the trees that its learners have grown. A checkpoint is a saved model of
the updates made so far, with these trees, what the solver needs to go on, and a fingerprint of the rows and the
options: that of another fit is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from lowcal.data import checked_json
from lowcal.data.checked_json import Plain, Pool, packed
from lowcal.data.errors import DamagedFile, InvalidInput, sentence
from lowcal.data.files import atomic_write, check_path
from lowcal.data.inputs import Layout
from lowcal.rows import START
from lowcal.rows.documents import read_predictor, write_predictor
from lowcal.rows.updates import Predictor, Update
from lowcal.solve.solvers import Past, Problem, Step
from lowcal.subpopulations.growing import Forest

#: The first updates are written one by one; after them, at least this many seconds lie between two writes.
FEW, PAUSE = 20, 1.0


class Checkpoint:
    """The file of a fit's updates, and what every learner has grown, of the fit and of the folds of its guard."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        problem: Problem,
        solver: str,
        layout: Layout,
        growths: Sequence[list[Any]] = (),
    ) -> None:
        self.path, self.layout, self.growths = check_path(path), layout, growths
        self.fingerprint = fingerprint(problem, solver, layout)
        self._written: float | None = None

    def write(self, problem: Problem, steps: Sequence[Step]) -> None:
        """Write all updates so far, at once or not at all; of many updates, those of a second are written together."""
        if len(steps) > FEW and self._written is not None and monotonic() - self._written < PAUSE:
            return
        end = steps[-1].state if steps else START
        model = write_predictor(Predictor(problem.learner.encoder, end.updates, self.layout))
        plan = [[list(step.stage), step.violation.hex(), step.progress.hex()] for step in steps]
        metadata = {"checkpoint": self.fingerprint, "steps": plan, "grown": _write_grown(self.growths, model)}
        with atomic_write(self.path) as file:
            file.write(checked_json.write_document(model, metadata))
        self._written = monotonic()

    def resumed(self, problem: Problem) -> Problem:
        """Return the problem with the steps of the file, if there is one; the learners get the trees they had grown."""
        if not os.path.exists(self.path):
            return problem
        updates, forests, metadata = self._read()
        for own, places in zip(self.growths, metadata.get("grown", ()), strict=False):
            own += [[forests[k] for k in each] for each in places]
        past = (
            Past(update, tuple(stage), float.fromhex(violation), float.fromhex(progress))
            for update, (stage, violation, progress) in zip(updates, metadata["steps"], strict=True)
        )
        return replace(problem, past=tuple(past))

    def _read(self) -> tuple[Sequence[Update], list[Forest], dict[str, Any]]:
        """Return the updates, the forests and the metadata of the file, which must be that of this fit."""
        try:
            with open(self.path, "rb") as file:
                parts = checked_json.read_document(file.read())
            updates = read_predictor(Plain(parts["model"], "model")).updates
            forests = [Forest.from_dict(one) for one in Plain(parts["model"]["forests"], "forests").items()]
        except (OSError, DamagedFile) as error:
            raise InvalidInput(sentence(f"The checkpoint {self.path} can't be read: {error}")) from error
        if parts["metadata"].get("checkpoint") != self.fingerprint:
            raise InvalidInput(
                f"{self.path} is not a checkpoint of this fit: its rows or options differ. Give another path, or "
                "resume=False to begin anew and replace it."
            )
        return updates, forests, parts["metadata"]


def _write_grown(growths: Sequence[list[Any]], model: dict[str, Any]) -> list[Any]:
    """Return the trees of every learner by their places among the forests of a model, to which they are added."""
    pool = Pool()
    for forest in model["forests"]:
        pool.place(forest)
    model["forests"] = pool.values
    return [[[packed(one.to_dict(), pool) for one in each] for each in grown] for grown in growths]


def fingerprint(problem: Problem, solver: str, layout: Layout) -> str:
    """Return what identifies a fit: rows by their exact losses at the start, the class by its names, the options."""
    lost, rows = problem.losses(START), problem.rows
    parts = [
        rows.scale.n, rows.scale.most.hex(), rows.worth.hex(), lost.brier.hex(), lost.log_loss.hex(), layout.to_dict(),
        str(problem.notion), problem.alpha.hex(), problem.geometry, problem.step, problem.seed,
        repr(problem.tolerance), problem.is_guarded, problem.is_study, solver, problem.learner.names,
    ]  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()
