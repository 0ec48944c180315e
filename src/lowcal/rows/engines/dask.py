"""Dask: parts are the partitions of a frame, jobs are tasks, and what is kept are futures.

The scheduler knows how every future was made, and makes it anew where a worker is lost. A payload travels with the
tasks or, where it is large, as the result of a task of its own, never scattered: that would be lost with its worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from uuid import uuid4

from lowcal.data.errors import ClusterFailed, InvalidInput, load_extra
from lowcal.data.files.batches import is_a
from lowcal.rows.engines.base import Job, Part, add_up, run_job

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
        distributed = load_extra("distributed", "Rows on a Dask cluster need distributed: pip install 'lowcal[dask]'.")
        try:
            return distributed.default_client()
        except ValueError as error:
            raise InvalidInput(
                f"{self.shown} needs a running Dask client, and there is none. Start one first: "
                "from dask.distributed import Client; client = Client()."
            ) from error

    @property
    def columns(self) -> Sequence[str] | None:
        """The columns of the frame; those of delayed frames are not known."""
        return [str(name) for name in self.frame.columns] if self.is_frame else None

    def reading(self, wanted: Sequence[str] | None) -> AbstractContextManager[None]:
        """Do nothing: a graph gives the same partitions each time."""
        return nullcontext()

    def parts(self, wanted: Sequence[str] | None) -> Sequence[Part]:
        """Return the partitions with the wanted columns: what is read from files may be less."""
        if not self.is_frame:
            return list(self.frame)
        frame = self.frame
        if wanted is not None:
            frame = frame[[name for name in frame.columns if str(name) in wanted]]
        return list(frame.to_delayed())

    def keep(self, job: Job, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the results of a job as futures."""
        return self._submit(job, parts)

    def sums(self, job: Job, parts: Sequence[Part]) -> Iterator[Any]:
        """Yield sums of the results of a job; those of many parts are added up by tasks."""
        from distributed import as_completed

        futures = level = self._submit(job, parts)
        with _telling(self.client, lambda: futures):
            while len(level) > FAN_IN:
                groups = [level[k : k + FAN_IN] for k in range(0, len(level), FAN_IN)]
                level = self.client.map(add_up, groups, key=_keys("sum", len(groups)))
                futures = futures + level
            for _, result in as_completed(level, with_results=True):
                yield result

    def _submit(self, job: Job, parts: Sequence[Part]) -> list[Any]:
        """Return the futures of a job on every part; the names of tasks say what it does."""
        client, keys = self.client, _keys(job.name, len(parts))
        sent = job
        if len(job.payload) * len(parts) > MOST_SENT:
            sent = client.submit(_same, job, key=_keys("job", 1)[0])
        if is_a(parts[0], "dask.delayed", "Delayed"):
            from dask import delayed

            run = delayed(run_job, pure=False)
            tasks = [run(sent, part, k, dask_key_name=key) for k, (part, key) in enumerate(zip(parts, keys, strict=True))]
            return list(client.compute(tasks))
        return list(client.map(run_job, [sent] * len(parts), parts, range(len(parts)), key=keys))

    def predict(self, predictor: Any, names: str | tuple[str, ...]) -> Any:
        """Return a series, or a frame of several columns, with the calibrated probabilities of each partition."""
        raise NotImplementedError


def _same(job: Job) -> Job:
    return job


def _keys(name: str, n: int) -> list[str]:
    """Return the names of n tasks, which no other tasks have."""
    token = uuid4().hex
    return [f"lowcal-{name}-{token}-{k}" for k in range(n)]


@contextmanager
def _telling(client: Any, futures: Any) -> Iterator[None]:
    """Cancel tasks that are no longer wanted, and tell the loss of workers in one sentence."""
    from distributed import KilledWorker

    try:
        yield
    except KilledWorker as error:
        raise ClusterFailed(
            "Dask workers died again and again while they worked on these rows; most often they ran out of memory. "
            "Use smaller partitions, or give the workers more memory."
        ) from error
    except BaseException:
        client.cancel(futures())
        raise
