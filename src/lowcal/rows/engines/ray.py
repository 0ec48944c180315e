"""Ray: parts are the blocks of a dataset, jobs are tasks and calls of actors, and what is kept lies in Ray's store.

Ray knows which task made an object, and makes it anew where a node is lost. Passes are taken by actors, each with its
share of the parts. An actor is only a cache of what it has fetched and computed: one that dies is restarted, and fetches
and replays what a pass needs. Actors reserve no CPU: tasks, of this fit or of others, would wait for them for ever. They
forget all rows at the end of a fit, but stay until Ray is shut down: to start one takes longer than many a fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4
from weakref import WeakSet, finalize

from lowcal.data.errors import ClusterFailed, InvalidInput, load_extra
from lowcal.data.files.batches import is_a, require_columns
from lowcal.rows.engines.base import Job, add_up, run_job
from lowcal.subpopulations.single_row import reader_of

#: A part, or a share of a pass, is tried as many times again where its worker dies.
RETRIES = 10
#: Payloads of more bytes are put into the store once.
MOST_SENT = 100_000

#: The actors that were started, by the cluster that Ray is connected to and the job that this process is there.
_started: dict[tuple[str, str], list[Any]] = {}


def is_ray(X: object) -> bool:
    """Whether rows are a Ray dataset."""
    return is_a(X, "ray.data.dataset", "Dataset")


@dataclass(frozen=True, eq=False)
class Held:
    """A part in Ray's store, and its number; it is wanted as long as something refers to it."""

    ref: Any
    number: int

    @property
    def key(self) -> bytes:
        """What the part is known by in the whole cluster."""
        return bytes(self.ref.binary())


class Ray:
    """A Ray dataset, and the cluster that Ray is connected to."""

    shown = "The Ray dataset"

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        #: The columns that were read, None of which is all, and the blocks with them.
        self._read: tuple[Sequence[str] | None, list[Held]] | None = None
        self._kept: WeakSet[Held] = WeakSet()
        #: By what actors know the table, and those that have a share of it.
        self._token, self._visitors = uuid4().bytes, list[Any]()
        finalize(self, _forget, self._visitors, self._token).atexit = False  # Ray itself ends its actors then

    @property
    def ray(self) -> Any:
        """Ray, which must be running; it is not started here."""
        ray = load_ray()
        if not ray.is_initialized():
            raise InvalidInput(f"{self.shown} needs Ray to be running, and it is not: import ray; ray.init().")
        return ray

    @property
    def columns(self) -> Sequence[str] | None:
        """The columns of the dataset; those of one without rows are not known."""
        names = self.ray and self.dataset.columns()
        return None if names is None else [str(name) for name in names]

    def parts(self, wanted: Sequence[str] | None) -> Sequence[Held]:
        """Return the blocks of the dataset in their order; a dataset that is lazy is run once.

        A second run may cut blocks elsewhere, so that the first call should name all columns that will be wanted.
        """
        if self._read is None or not _are_among(wanted, self._read[0]):
            blocks = self._materialized(wanted).to_arrow_refs()
            self._read = wanted, [Held(ref, number) for number, ref in enumerate(blocks)]
        if not self._read[1]:
            raise InvalidInput(f"{self.shown} holds no rows; give at least one.")
        return self._read[1]

    def _materialized(self, wanted: Sequence[str] | None) -> Any:
        """Return the dataset in the store: itself if it lies there, else run with the wanted columns, in order."""
        if self.ray and is_a(self.dataset, "ray.data.dataset", "MaterializedDataset"):
            return self.dataset
        chosen = self.dataset if wanted is None else self.dataset.select_columns(list(wanted))
        options = chosen.context.execution_options
        before, options.preserve_order = options.preserve_order, True
        try:
            return chosen.materialize()
        finally:
            options.preserve_order = before

    def keep(self, job: Job, parts: Sequence[Held]) -> Sequence[Held]:
        """Return the results of a job as objects in the store; what was read for it is let go."""
        run = self.ray.remote(run_job).options(name=_name(job), max_retries=RETRIES)
        sent = self._sent(job)
        kept = [Held(run.remote(sent, part.ref, part.number), part.number) for part in parts]
        self._kept.update(kept)
        self._read = None
        return kept

    def sums(self, job: Job, parts: Sequence[Held]) -> Iterator[Any]:
        """Yield the sum of each actor's share of the parts."""
        with self._telling(parts):
            waiting = self._visit(job, parts)
            while waiting:
                (done,), waiting = self.ray.wait(waiting)
                yield self.ray.get(done)

    def _visit(self, job: Job, parts: Sequence[Held]) -> list[Any]:
        """Call every actor with its share of the parts, and with what it may keep of all parts that are still wanted."""
        if not self._visitors:
            most = int(self.ray.cluster_resources().get("CPU", 1))
            self._visitors += _start(self.ray, max(1, min(most, len(parts))))
        sent, n, calls = self._sent(job), len(self._visitors), []
        for k, visitor in enumerate(self._visitors):
            share = [part for part in parts if part.number % n == k]
            wanted = {part.key for part in self._kept if part.number % n == k}
            if share:
                calls.append(visitor.sums.options(name=_name(job)).remote(self._token, sent, share, wanted))
        return calls

    def _sent(self, job: Job) -> Any:
        return self.ray.put(job) if len(job.payload) > MOST_SENT else job

    @contextmanager
    def _telling(self, parts: Sequence[Held]) -> Iterator[None]:
        """Raise errors of workers as they did, and those of Ray in one sentence; stop what is no longer wanted."""
        try:
            yield
        except load_ray().exceptions.RayError as error:
            cause = _told(error)
            if isinstance(cause, ClusterFailed):
                self._stop(parts)
            raise cause from error
        except BaseException:
            self._stop(parts)
            raise

    def _stop(self, parts: Sequence[Held]) -> None:
        """End the actors, whose calls can't be cancelled, and cancel tasks that have not finished."""
        _started.clear()
        while self._visitors:
            visitor = self._visitors.pop()
            if load_ray().is_initialized():
                self.ray.kill(visitor)
        refs = [part.ref for part in parts if part in self._kept]
        if refs and load_ray().is_initialized():
            _, unfinished = self.ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
            for ref in unfinished:
                self.ray.cancel(ref)

    def predict(self, predictor: Any, names: str | tuple[str, ...]) -> Any:
        """Return a dataset of the columns that are named, calibrated; it is run when it is read."""
        listed, wanted = [names] if isinstance(names, str) else list(names), None
        if reader_of(predictor.encoder) is not None:
            wanted = list(dict.fromkeys([*listed, *predictor.columns]))
        known = self.dataset.columns(fetch_if_missing=False)
        if known is not None:
            require_columns(self.shown, [str(name) for name in known], wanted or listed)
        chosen = self.dataset if wanted is None else self.dataset.select_columns(wanted)
        given = {"predictor": predictor, "names": names}
        return chosen.map_batches(calibrate, batch_format="pyarrow", batch_size=None, fn_kwargs=given)


def load_ray() -> Any:
    """Return Ray, which a dataset of its own has loaded."""
    return load_extra("ray", "Rows on a Ray cluster need Ray: pip install 'lowcal[ray]'.")


def _are_among(wanted: Sequence[str] | None, read: Sequence[str] | None) -> bool:
    """Whether all wanted columns are among those that were read; None: all columns."""
    return read is None or (wanted is not None and set(wanted) <= set(read))


def _name(job: Job) -> str:
    return f"lowcal-{job.name}"


def _start(ray: Any, n: int) -> list[Any]:
    """Return n actors, started anew as far as they were not."""
    context = ray.get_runtime_context()
    session = context.get_node_id(), context.get_job_id()
    if session not in _started:
        _started.clear()
    known = _started.setdefault(session, [])
    visitor = ray.remote(max_restarts=-1, max_task_retries=RETRIES, scheduling_strategy="SPREAD")(Visitor)
    known += [visitor.remote() for _ in range(n - len(known))]
    return known[:n]


def _forget(visitors: Sequence[Any], token: bytes) -> None:
    """Let actors forget a table."""
    if load_ray().is_initialized():
        for visitor in visitors:
            visitor.forget.remote(token)


def _told(error: Any) -> BaseException:
    """Return the error that a worker raised, or the failure of Ray in a sentence."""
    exceptions = load_ray().exceptions
    cause: BaseException = error
    while isinstance(cause, exceptions.RayTaskError) and isinstance(cause.cause, BaseException):
        cause = cause.cause
    if not isinstance(cause, exceptions.RayError):
        return cause
    return ClusterFailed(
        f"Ray could not finish a pass over these rows ({type(cause).__name__}); most often its workers ran out of "
        "memory: use smaller blocks (dataset.repartition), or give the nodes more memory."
    )


# --- on workers -----------------------------------------------------------------------------------------------


class Visitor:
    """An actor, which visits its share of the parts in every pass."""

    def __init__(self) -> None:
        self._met: dict[bytes, dict[bytes, Any]] = {}

    def sums(self, token: bytes, job: Job, share: Sequence[Held], wanted: Collection[bytes]) -> Any:
        """Return the sum of what a job returns for parts of a table; those that are wanted again stay, others go."""
        met = {key: part for key, part in self._met.get(token, {}).items() if key in wanted}
        self._met[token] = met
        return add_up(job(_fetch(part, met, wanted), part.number) for part in share)

    def forget(self, token: bytes) -> None:
        """Forget the parts of a table."""
        self._met.pop(token, None)


def _fetch(part: Held, met: dict[bytes, Any], wanted: Collection[bytes]) -> Any:
    """Return a part, and keep it if it is wanted again; its arrays stay in the store, where a process reads them."""
    found = met[part.key] if part.key in met else load_ray().get(part.ref)
    if part.key in wanted:
        met[part.key] = found
    return found


def calibrate(table: Any, predictor: Any, names: str | tuple[str, ...]) -> dict[str, Any]:
    """Return the calibrated probabilities of a batch."""
    if isinstance(names, str):
        return {names: predictor(names, table)}
    return dict(zip(names, predictor(names, table).T, strict=True))
