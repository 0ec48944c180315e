"""What a cluster must do for rows: run a job on every part of them, and keep what it returns or add it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Protocol

from lowcal.rows.wire import unpack

#: Where a part of the rows is: a future, a reference, whatever an engine finds it by.
Part = Any


@dataclass(frozen=True)
class Job:
    """What is done with every part of the rows: a name to show, an importable function, and its arguments, packed."""

    name: str
    function: Callable[..., Any]
    payload: bytes

    def __call__(self, part: Any, number: int) -> Any:
        """Return what the function makes of the part of this number."""
        return self.function(part, number, *unpack(self.payload))


def run_job(job: Job, part: Any, number: int) -> Any:
    """Do a job on a worker."""
    return job(part, number)


def add_up(results: Sequence[Any]) -> Any:
    """Return the sum of what a job returned for some parts."""
    return reduce(add, results)


class Engine(Protocol):
    """A table on a cluster, and the cluster. Parts are numbered in the order of the rows.

    Lost workers are the engine's business: what it keeps is made anew, by the same job, where it was lost.
    """

    #: What messages call the table.
    shown: str

    @property
    def columns(self) -> Sequence[str] | None:
        """The columns of the table; None: not known before its parts are read."""

    def reading(self, wanted: Sequence[str] | None) -> AbstractContextManager[None]:
        """Hold the wanted columns (None: all) still while they are read several times: the same rows in each part."""

    def parts(self, wanted: Sequence[str] | None) -> Sequence[Part]:
        """Return the parts of the table, tables in memory on a worker, at least with the wanted columns (None: all)."""

    def keep(self, job: Job, parts: Sequence[Part]) -> Sequence[Part]:
        """Return what a job makes of every part; it stays on the workers as long as anything refers to it here."""

    def sums(self, job: Job, parts: Sequence[Part]) -> Iterator[Any]:
        """Yield sums of what a job returns, each of some parts, all parts in all: in any order, as they come."""

    def predict(self, predictor: Any, names: str | tuple[str, ...]) -> Any:
        """Return the probabilities of these columns calibrated, lazily, as a table of the engine's own kind."""
