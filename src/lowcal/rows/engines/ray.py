"""Ray: parts are the blocks of a dataset, jobs are tasks and calls of actors, and what is kept lies in Ray's store.

Ray knows which task made an object, and makes it anew where a node is lost. Passes are taken by actors, each with its
share of the parts. An actor is only a cache of what it fetched and computed: one that dies is restarted, fetches its
parts again and replays what a pass needs. Actors reserve no CPU: tasks, of this fit or of others, would wait for them
for ever. At the end of a fit they forget its rows, but they stay until Ray is shut down: to start one, with compiled
kernels, takes longer than many a fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4
from weakref import WeakSet, finalize

from lowcal.data.batches import is_a, require_columns
from lowcal.data.errors import ClusterFailed, InvalidInput, load_extra
from lowcal.rows.engines.allocation import give_back, keep_freed
from lowcal.rows.engines.base import Job, add_up, read_columns

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
        self._kept: WeakSet[Held] = WeakSet()
        #: What actors know the table by, and the number of those that have a share of it.
        self._token, self._n = uuid4().bytes, 0
        finalize(self, _forget, self._token).atexit = False  # Ray itself ends its actors then

    @property
    def ray(self) -> Any:
        """Ray, which must be running; it is not started here."""
        ray = load_ray()
        if not ray.is_initialized():
            raise InvalidInput(f"{self.shown} needs Ray to be running, and it is not: import ray; ray.init().")
        return ray

    def _running(self) -> Any:
        """Return the dataset, once Ray is known to be running: to read it would start Ray."""
        return self.dataset if self.ray else None

    @property
    def columns(self) -> Sequence[str] | None:
        """The columns of the dataset; those of one without rows are not known."""
        names = self._running().columns()
        return None if names is None else [str(name) for name in names]

    def parts(self, wanted: Sequence[str] | None) -> Sequence[Held]:
        """Return the blocks of the dataset in their order; one that is lazy is run, and may have others next time."""
        blocks = self._materialized(wanted).to_arrow_refs()
        if not blocks:
            raise InvalidInput(f"{self.shown} holds no rows; give at least one.")
        return [Held(ref, number) for number, ref in enumerate(blocks)]

    def _materialized(self, wanted: Sequence[str] | None) -> Any:
        """Return the dataset in the store: itself if it lies there, else run with the wanted columns, in order."""
        dataset = self._running()
        if is_a(dataset, "ray.data.dataset", "MaterializedDataset"):
            return dataset
        chosen = dataset if wanted is None else dataset.select_columns(list(wanted))
        options = chosen.context.execution_options
        before, options.preserve_order = options.preserve_order, True
        try:
            return chosen.materialize()
        finally:
            options.preserve_order = before

    def keep(self, job: Job, parts: Sequence[Held]) -> Sequence[Held]:
        """Return the results of a job as objects in the store."""
        run = self.ray.remote(run_job).options(name=_name(job), max_retries=RETRIES)
        sent = self._sent(job)
        kept = [Held(run.remote(sent, part.ref, part.number), part.number) for part in parts]
        self._kept.update(kept)
        return kept

    def sums(self, job: Job, parts: Sequence[Held]) -> Iterator[Any]:
        """Yield the sum of each actor's share of the parts."""
        with self._telling(parts):
            waiting = self._visit(job, parts)
            while waiting:
                (done,), waiting = self.ray.wait(waiting)
                yield self.ray.get(done)

    def _visit(self, job: Job, parts: Sequence[Held]) -> list[Any]:
        """Call every actor with its share of the parts, and with the keys of all that it may keep."""
        self._n = self._n or max(1, min(int(self.ray.cluster_resources().get("CPU", 1)), len(parts)))
        sent, calls = self._sent(job), []
        for k, visitor in enumerate(_start(self.ray, self._n)):
            share = [part for part in parts if part.number % self._n == k]
            wanted = {part.key for part in self._kept if part.number % self._n == k}
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
        ray = load_ray()
        if not ray.is_initialized():
            return
        visitors = _actors(ray)
        while visitors:
            ray.kill(visitors.pop())
        refs = [part.ref for part in parts if part in self._kept]
        _, unfinished = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False) if refs else ([], [])
        for ref in unfinished:
            ray.cancel(ref)

    def predict(self, predictor: Any, names: str | tuple[str, ...]) -> Any:
        """Return a dataset of the columns that are named, calibrated; it is run when it is read."""
        wanted, known = read_columns(predictor, names), self.dataset.columns(fetch_if_missing=False)
        if known is not None:
            require_columns(self.shown, [str(name) for name in known], wanted or ())
        chosen = self.dataset if wanted is None else self.dataset.select_columns(list(wanted))
        given = {"predictor": predictor, "names": names}
        return chosen.map_batches(calibrate, batch_format="pyarrow", batch_size=None, fn_kwargs=given)


def load_ray() -> Any:
    """Return Ray, which a dataset of its own has loaded."""
    return load_extra("ray", "Rows on a Ray cluster need Ray: pip install 'lowcal[ray]'.")


def _name(job: Job) -> str:
    return f"lowcal-{job.name}"


def _actors(ray: Any) -> list[Any]:
    """Return the list of the actors that were started here; those of a cluster that Ray has left are gone."""
    context = ray.get_runtime_context()
    session = context.get_node_id(), context.get_job_id()
    if session not in _started:
        _started.clear()
    return _started.setdefault(session, [])


def _start(ray: Any, n: int) -> list[Any]:
    """Return n actors, started anew as far as they were not."""
    actors = _actors(ray)
    if len(actors) < n:
        start = ray.remote(max_restarts=-1, max_task_retries=RETRIES, scheduling_strategy="SPREAD")(Visitor).remote
        actors += [start() for _ in range(n - len(actors))]
    return actors[:n]


def _forget(token: bytes) -> None:
    """Let actors forget a table."""
    ray = load_ray()
    if ray.is_initialized():
        for visitor in _actors(ray):
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


def run_job(job: Job, part: Any, number: int) -> Any:
    """Do a job as a task."""
    return job(part, number)


class Visitor:
    """An actor, which visits its share of the parts in every pass."""

    def __init__(self) -> None:
        keep_freed()
        self._met: dict[bytes, dict[bytes, Any]] = {}

    def sums(self, token: bytes, job: Job, share: Sequence[Held], wanted: Collection[bytes]) -> Any:
        """Return the sum of what a job returns for parts of a table; those that are wanted again stay, others go."""
        met = {key: part for key, part in self._met.get(token, {}).items() if key in wanted}
        self._met[token] = met
        return add_up(job(_fetch(part, met, wanted), part.number) for part in share)

    def forget(self, token: bytes) -> None:
        """Forget the parts of a table."""
        self._met.pop(token, None)
        give_back()


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
