"""Dask: parts are the partitions of a frame, jobs are tasks, and what is kept are futures.

The scheduler knows how every future was made, and makes it anew where a worker is lost. A payload travels with the
tasks or, where it is large, as the result of a task of its own, never scattered: that would be lost with its worker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from lowcal.data.batches import is_a, require_columns
from lowcal.data.errors import ClusterFailed, InvalidInput, load_extra
from lowcal.rows.engines.allocation import keep_freed
from lowcal.rows.engines.base import Job, Part, add_up, predict_part, read_columns

#: As many sums are added up by one task, and come to the client in the end.
FAN_IN = 16
#: Payloads that take more bytes in all tasks together are sent once.
MOST_SENT = 1 << 20


def is_dask(X: object) -> bool:
    """Whether rows are a Dask frame, or a list of delayed frames."""
    return is_a(X, "dask.dataframe", "DataFrame") or _are_delayed(X)


def _are_delayed(X: object) -> bool:
    return isinstance(X, list | tuple) and bool(X) and all(is_a(one, "dask.delayed", "Delayed") for one in X)


class Dask:
    """A Dask frame, and the client that is active."""

    def __init__(self, frame: Any) -> None:
        self.frame, self.is_frame = frame, not _are_delayed(frame)
        self.shown = "The Dask frame" if self.is_frame else "The list of delayed frames"

    @property
    def client(self) -> Any:
        """The client that is active; none is started here."""
        try:
            return _distributed().default_client()
        except ValueError as error:
            raise InvalidInput(
                f"{self.shown} needs a running Dask client, and there is none. Start one first: "
                "from dask.distributed import Client; client = Client()."
            ) from error

    @property
    def columns(self) -> Sequence[str] | None:
        """The columns of the frame; those of delayed frames are not known."""
        return [str(name) for name in self.frame.columns] if self.is_frame else None

    def parts(self, wanted: Sequence[str] | None) -> Sequence[Part]:
        """Return the partitions with the wanted columns: what is read from files may be less."""
        return list(self._of(wanted).to_delayed()) if self.is_frame else list(self.frame)

    def _of(self, wanted: Sequence[str] | None) -> Any:
        """Return the frame with the wanted columns."""
        frame = self.frame
        return frame if wanted is None else frame[[name for name in frame.columns if str(name) in wanted]]

    def keep(self, job: Job, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the results of a job as futures."""
        return self._submit(job, parts)

    def sums(self, job: Job, parts: Sequence[Part]) -> Iterator[Any]:
        """Yield sums of the results of a job; those of many parts are added up by tasks."""
        futures = level = self._submit(job, parts)
        with _telling(self.client, lambda: futures):
            while len(level) > FAN_IN:
                groups = [level[k : k + FAN_IN] for k in range(0, len(level), FAN_IN)]
                level = self.client.map(add_up, groups, key=_keys("sum", len(groups)))
                futures = futures + level
            yield from self.client.gather(level)  # at once: one by one, an empty pass takes half as long again

    def _submit(self, job: Job, parts: Sequence[Part]) -> list[Any]:
        """Return the futures of a job on every part; the names of tasks say what it does."""
        client, keys = self.client, _keys(job.name, len(parts))
        (name,) = _keys("job", 1)
        sent: Any = Sent(job, name)
        if len(job.payload) * len(parts) > MOST_SENT:
            sent = client.submit(_same, sent, key=name)
        if is_a(parts[0], "dask.delayed", "Delayed"):
            run = _delayed(run_sent, pure=False)
            tasks = [
                run(sent, part, k, dask_key_name=key) for k, (part, key) in enumerate(zip(parts, keys, strict=True))
            ]
            return list(client.compute(tasks))
        return list(client.map(run_sent, [sent] * len(parts), parts, range(len(parts)), key=keys))

    def predict(self, predictor: Any, names: str | tuple[str, ...]) -> Any:
        """Return a series, or a frame of several columns, with the calibrated probabilities of every partition."""
        shared = _delayed(predictor, traverse=False)  # one task, not a copy in each
        if not self.is_frame:
            return [_delayed(predict_part)(part, shared, names) for part in self.frame]
        import pandas as pd

        require_columns(self.shown, self.columns or (), read_columns(predictor, names) or ())
        wanted, empty = self._of(read_columns(predictor, names)), self.frame._meta.index
        listed = None if isinstance(names, str) else list(names)
        meta = (
            pd.Series(name=names, index=empty, dtype=float)
            if listed is None
            else pd.DataFrame(columns=listed, index=empty, dtype=float)
        )
        return wanted.map_partitions(predict_part, shared, names, meta=meta)


# --- memory of workers ----------------------------------------------------------------------------------------


@contextmanager
def roomy() -> Iterator[None]:
    """Let a worker keep the memory that a job frees until the job ends, and a little of it for the next.

    Dask asks for it back at once (MALLOC_TRIM_THRESHOLD_), which makes glibc map every large array anew: a pass over
    rows, whose arrays come and go, then takes half as much CPU time again, or more.
    """
    threshold = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    if not threshold.isdigit():
        yield
        return
    keep_freed()
    try:
        yield
    finally:
        keep_freed(max(int(threshold), LEFT), 1 << 17)


#: Bytes that a worker keeps between jobs.
LEFT = 1 << 26


class Sent:
    """A job on its way, under a name: Dask need not read its bytes to tell it from others."""

    def __init__(self, job: Job, name: str) -> None:
        self.job, self.name = job, name

    def __dask_tokenize__(self) -> str:
        return self.name


def run_sent(sent: Sent, part: Any, number: int) -> Any:
    """Do a job on a worker that keeps its memory meanwhile."""
    with roomy():
        return sent.job(part, number)


# --- Dask ---------------------------------------------------------------------------------------------------------


def _distributed() -> Any:
    return load_extra("distributed", "Rows on a Dask cluster need distributed: pip install 'lowcal[dask]'.")


def _delayed(value: object, **options: bool) -> Any:
    return load_extra("dask", "").delayed(value, **options)


def _same(sent: Sent) -> Sent:
    return sent


def _keys(name: str, n: int) -> list[str]:
    """Return the names of n tasks, which no other tasks have."""
    token = uuid4().hex
    return [f"lowcal-{name}-{token}-{k}" for k in range(n)]


@contextmanager
def _telling(client: Any, futures: Any) -> Iterator[None]:
    """Cancel tasks that are no longer wanted, and report the loss of workers in one sentence."""
    try:
        yield
    except _distributed().KilledWorker as error:
        raise ClusterFailed(
            "Dask workers died again and again while they worked on these rows; most often they ran out of memory. "
            "Use smaller partitions, or give the workers more memory."
        ) from error
    except BaseException:
        client.cancel(futures())
        raise
