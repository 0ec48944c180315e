"""A cluster within a process: everything crosses by its bytes, in any order, and workers forget now and then."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lowcal.rows import wire
from lowcal.rows.engines.base import Job, add_up, predict_part


def sent(value: Any) -> Any:
    """Return a value as it comes out at the other end; arrays that cross a network can't be written to."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


class FakeEngine:
    """A table in parts. `loss` is how often what a worker remembers is lost before a part is visited."""

    shown = "The table"

    def __init__(self, data: Any, sizes: Sequence[int] | int = 4, loss: float = 0.0) -> None:
        self.frame, self.loss, self.chance = pd.DataFrame(data), loss, random.Random(0)
        cuts = np.array_split(np.arange(len(self.frame)), sizes) if isinstance(sizes, int) else self._cut(sizes)
        self.numbers, self.jobs = cuts, list[str]()

    def _cut(self, sizes: Sequence[int]) -> list[Any]:
        return np.split(np.arange(len(self.frame)), np.cumsum(sizes)[:-1])

    @property
    def columns(self) -> list[str]:
        return list(self.frame.columns)

    def parts(self, wanted: Sequence[str] | None) -> list[Any]:
        frame = self.frame if wanted is None else self.frame[[name for name in self.columns if name in wanted]]
        return [frame.iloc[own] for own in self.numbers]

    def keep(self, job: Job, parts: Sequence[Any]) -> list[Any]:
        return [sent(sent(job)(part, k)) for k, part in enumerate(parts)]

    def sums(self, job: Job, parts: Any) -> Iterator[Any]:
        self.jobs.append(job.name)
        order = self.chance.sample(range(len(parts)), len(parts))
        half = len(order) // 2
        for some in filter(None, (order[:half], order[half:])):
            yield sent(add_up([self._visit(sent(job), parts, k) for k in some]))

    def _visit(self, job: Job, parts: Any, k: int) -> Any:
        if self.chance.random() < self.loss:
            parts[k] = sent(parts[k])
        if self.chance.random() < self.loss:
            wire.forget()
        return sent(job(parts[k], k))

    def predict(self, predictor: Any, names: Any) -> Any:
        return pd.concat([predict_part(part, predictor, names) for part in self.parts(None)])
