"""What a cluster must do for rows: run a job on every part of them, and keep what it returns or add it up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Protocol

from lowcal.rows.wire import unpack
from lowcal.subpopulations.single_row import reader_of

#: Where a part of the rows is: a future, a reference, whatever an engine finds it by.
Part = Any


@dataclass(frozen=True)
class Job:
    """What is done with every part of the rows: a name to show, an importable function, and its arguments, packed."""

    name: str
    function: Callable[..., Any]
    payload: bytes
    #: The columns of a table that it reads; None: all.
    columns: Sequence[str] | None = None

    def __call__(self, part: Any, number: int) -> Any:
        """Return what the function makes of the part of this number."""
        return self.function(part, number, *unpack(self.payload))


def add_up(results: Iterable[Any]) -> Any:
    """Return the sum of what a job returned for some parts."""
    return reduce(add, results)


def read_columns(predictor: Any, names: str | tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the columns that predictions are made from; None: the encoder is not lowcal's own and may read all."""
    if reader_of(predictor.encoder) is None:
        return None
    return tuple(dict.fromkeys([*((names,) if isinstance(names, str) else names), *predictor.columns]))


def predict_part(table: Any, predictor: Any, names: str | tuple[str, ...]) -> Any:
    """Return the calibrated probabilities of a pandas frame as one of its columns, or as a frame of several."""
    found = predictor(names, table)
    return found if isinstance(names, str) else type(table)(found, columns=list(names), index=table.index)


class Engine(Protocol):
    """A table on a cluster, and the cluster. Parts are numbered in the order of the rows.

    Lost workers are the engine's business: what it keeps is made anew, by the same job, where it was lost.
    """

    #: What messages call the table.
    shown: str

    @property
    def columns(self) -> Sequence[str] | None:
        """The columns of the table; None: not known before its parts are read."""

    def parts(self, wanted: Sequence[str] | None) -> Sequence[Part]:
        """Return the parts of the table, tables in memory on a worker, at least with the wanted columns (None: all)."""

    def keep(self, job: Job, parts: Sequence[Part]) -> Sequence[Part]:
        """Return what a job makes of every part; it stays on the workers as long as anything refers to it here."""

    def sums(self, job: Job, parts: Sequence[Part]) -> Iterator[Any]:
        """Yield sums of what a job returns, each of some parts, all parts in all: in any order, as they come."""

    def predict(self, predictor: Any, names: str | tuple[str, ...]) -> Any:
        """Return the probabilities of these columns calibrated, lazily, as a table of the engine's own kind."""
