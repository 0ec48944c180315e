"""Spark: parts are the partitions of a frame, jobs run in mapInArrow, and what is kept are cached frames of bytes.

Neither RDDs nor a SparkContext are used: Spark Connect and serverless platforms have none. Python workers of Spark live
on from job to job, and remember the last blocks that they unpickled; nothing depends on it.
"""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import finalize

from lowcal.data.batches import is_a, require_columns
from lowcal.data.errors import ClusterFailed, InvalidInput, LowcalError, load_extra, repeated, sentence
from lowcal.rows.engines.base import Job, add_up, predict_part, read_columns

#: Sums of more partitions than this are added up on the cluster first, this many by one task.
FAN_IN = 64
#: What is kept of a partition lies in rows of at most this many bytes, which Spark moves one by one.
MOST_IN_ROW = 1 << 24
#: A Python worker remembers blocks of this many pickled bytes.
MOST_MET = 1 << 27

#: The rows of a frame that is kept: the number of the part, a token (null: what follows is an error), pickled bytes.
KEPT = "number long, token binary, piece binary"
SUM = "sum binary"


def is_spark(X: object) -> bool:
    """Whether rows are a Spark frame, of a classic session or of Spark Connect."""
    return is_a(X, "pyspark.sql.dataframe", "DataFrame") or is_a(X, "pyspark.sql.connect.dataframe", "DataFrame")


@dataclass(eq=False)
class SparkParts:
    """A frame, how a worker makes a part of one of its partitions, and how many there are; None: not known."""

    frame: Any
    open: Callable[[Iterator[Any]], tuple[int, Any]]
    n: int | None = None


class Spark:
    """A Spark frame, and its session. Parts are held all together, as `SparkParts`."""

    shown = "The Spark frame"

    def __init__(self, frame: Any) -> None:
        _spark("pyarrow")
        self.frame, self.session = frame, frame.sparkSession

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the frame."""
        return [str(name) for name in self.frame.columns]

    def parts(self, wanted: Sequence[str] | None) -> Any:
        """Return the partitions with the wanted columns, cached: read anew, shuffled rows may come in another order."""
        if twice := repeated(self.columns):
            raise InvalidInput(f"{self.shown} has several columns named {twice[0]!r}; rename them.")
        frame = self._of(wanted)
        if any(one.storageLevel.useMemory or one.storageLevel.useDisk for one in (self.frame, frame)):
            return SparkParts(frame, read_table)
        return _held(SparkParts(_cached(frame), read_table))

    def _of(self, wanted: Sequence[str] | None) -> Any:
        """Return the frame with the wanted columns."""
        names = [name for name in self.columns if wanted is None or name in wanted]
        return self.frame.select(*map(_quoted, names))

    def keep(self, job: Job, parts: Any) -> Any:
        """Return the results of a job as bytes in a cached frame, which is made at once."""
        frame = _cached(_mapped(parts, job, keep_part, KEPT))
        kept = _held(SparkParts(frame, read_block))
        rows = self._collect(frame.selectExpr("number", "if(token is null, piece, null) as wrong"))
        for row in rows:
            _value_of(row.wrong)
        kept.n = len({row.number for row in rows})
        return kept

    def sums(self, job: Job, parts: Any) -> Iterator[Any]:
        """Yield the results of a job; those of many partitions are added up on the cluster first."""
        frame = _mapped(parts, job, sum_part, SUM)
        if parts.n is not None and parts.n > FAN_IN:
            frame = frame.repartition(-(-parts.n // FAN_IN)).mapInArrow(add_sums, SUM)
        for row in self._collect(frame):
            yield _value_of(row.sum)

    def _collect(self, frame: Any) -> list[Any]:
        with _telling(self.session):
            return list(frame.collect())

    def predict(self, predictor: Any, names: str | tuple[str, ...]) -> Any:
        """Return the calibrated probabilities as a column of doubles; of several classes, of arrays of doubles."""
        functions = _spark("pyspark.sql.functions")
        columns = read_columns(predictor, names) or self.columns
        require_columns(self.shown, self.columns, columns)
        kind = "double" if isinstance(names, str) else "array<double>"
        calibrated = functions.pandas_udf(_predicting(predictor, names), kind)
        return calibrated(functions.struct(*map(_quoted, columns)))


def _spark(name: str) -> Any:
    """Return a module that rows on Spark need."""
    return load_extra(name, f"Rows on Spark need {name.partition('.')[0]}: pip install 'lowcal[spark]'.")


def _quoted(name: str) -> str:
    """Return the name of a column as Spark reads it, whatever it is made of."""
    return "`" + name.replace("`", "``") + "`"


def _mapped(parts: SparkParts, job: Job, function: Callable[..., Iterator[Any]], schema: str) -> Any:
    """Return what a function makes of the partitions, by the columns that the job reads; plans show the job's name."""
    run: Any = partial(function, job, parts.open)
    run.__name__ = f"lowcal-{job.name}"
    frame = parts.frame if job.columns is None else parts.frame.select(*map(_quoted, job.columns))
    return frame.mapInArrow(run, schema)


def _predicting(predictor: Any, names: str | tuple[str, ...]) -> Callable[..., Any]:
    """Return what Spark does with batches of rows; it reads from the types that these are pandas frames."""
    import pandas as pd

    def calibrated(tables):  # type: ignore[no-untyped-def]
        return (predict_table(table, predictor, names) for table in tables)

    calibrated.__annotations__ = {"tables": Iterator[pd.DataFrame], "return": Iterator[pd.Series]}
    return calibrated


def _cached(frame: Any) -> Any:
    return frame.persist(_spark("pyspark").StorageLevel.MEMORY_AND_DISK)


def _held(parts: SparkParts) -> SparkParts:
    """Return parts in a cached frame, which is let go when nothing refers to them any more."""
    finalize(parts, _release, parts.frame).atexit = False
    return parts


def _release(frame: Any) -> None:
    """Let go of a cached frame; with its session, it is gone already."""
    with suppress(Exception):
        frame.unpersist()


def _value_of(pickled: Any) -> Any:
    """Return what a worker sends; an error of ours that it met is raised."""
    value = None if pickled is None else pickle.loads(pickled)
    if isinstance(value, LowcalError):
        raise value
    return value


@contextmanager
def _telling(session: Any) -> Iterator[None]:
    """Stop what runs when the user interrupts it, and report what Spark can't do in one sentence."""
    tag, has_tags = f"lowcal-{uuid4().hex}", hasattr(session, "addTag")  # since Spark 4, and 3.5 of Connect
    if has_tags:
        session.addTag(tag)
    try:
        yield
    except KeyboardInterrupt:
        if has_tags:
            session.interruptTag(tag)
        raise
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise ClusterFailed(_reason(str(error))) from error
    finally:
        if has_tags:
            session.removeTag(tag)


def _is_of_spark(error: Exception) -> bool:
    return is_a(error, "pyspark.errors", "PySparkException") or is_a(error, "py4j.protocol", "Py4JError")


def _reason(text: str) -> str:
    """Return what went wrong on the cluster, and what to do."""
    if "No module named 'lowcal'" in text:
        return f"The Python workers of Spark can't import lowcal; install it where they run, for Python {_python()}."
    if "Python worker exited unexpectedly" in text or "OutOfMemoryError" in text:
        return (
            "Workers of Spark died again and again while they worked on these rows; most often they ran out of memory. "
            "Use more partitions, or give the workers more memory."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    is_traceback = any(line.startswith("Traceback") for line in lines)
    return sentence(f"Spark could not finish a pass over these rows: {lines[-1 if is_traceback else 0]}")


def _python() -> str:
    return ".".join(map(str, sys.version_info[:2]))


# --- on workers -----------------------------------------------------------------------------------------------


#: By their tokens, the blocks that this process has met, with their sizes; the oldest first.
_met: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()


def read_table(batches: Iterator[Any]) -> tuple[int, Any]:
    """Return the number of the partition that a worker is at, and its rows as an Arrow table."""
    import pyarrow as pa
    from pyspark import TaskContext

    found, context = list(batches), TaskContext.get()
    assert context is not None
    return context.partitionId(), pa.Table.from_batches(found) if found else pa.table({})


def predict_table(table: Any, predictor: Any, names: str | tuple[str, ...]) -> Any:
    """Return the calibrated probabilities of a pandas frame as a series, of arrays where there are several."""
    found = predict_part(table, predictor, names)
    return found if isinstance(names, str) else found.agg(list, axis=1)


def read_block(batches: Iterator[Any]) -> tuple[int, Any]:
    """Return the number of a part and what is kept of it; it is unpickled unless this process remembers it."""
    number, token, pieces = 0, b"", []
    for batch in batches:
        number, token = batch["number"][0].as_py(), batch["token"][0].as_py()
        if token in _met:
            continue  # all batches must be taken
        pieces += [piece.as_buffer() for piece in batch["piece"]]
    if token not in _met:
        content = b"".join(pieces)
        _remember(token, pickle.loads(content), len(content))
    _met.move_to_end(token)
    return number, _met[token][0]


def _remember(token: bytes, part: Any, size: int) -> None:
    _met[token] = part, size
    total = sum(own for _, own in _met.values())
    while total > MOST_MET and len(_met) > 1:
        total -= _met.popitem(last=False)[1][1]


def keep_part(job: Job, open_part: Callable[..., tuple[int, Any]], batches: Iterator[Any]) -> Iterator[Any]:
    """Do a job on a partition, and yield what it makes of it as rows to keep."""
    number, made = _attempt(job, open_part, batches)
    content = pickle.dumps(made, 5)
    token = None if isinstance(made, LowcalError) else uuid4().bytes
    if token is not None:
        _remember(token, made, len(content))
    for start in range(0, len(content), MOST_IN_ROW):
        yield _row(number=number, token=token, piece=content[start : start + MOST_IN_ROW])


def sum_part(job: Job, open_part: Callable[..., tuple[int, Any]], batches: Iterator[Any]) -> Iterator[Any]:
    """Do a job on a partition, and yield what it returns as a row."""
    yield _row(sum=pickle.dumps(_attempt(job, open_part, batches)[1], 5))


def add_sums(batches: Iterator[Any]) -> Iterator[Any]:
    """Add up what a job returned for some partitions; an error stands for all of them."""
    found = [pickle.loads(one.as_buffer()) for batch in batches for one in batch["sum"]]
    if found:
        wrong = [one for one in found if isinstance(one, LowcalError)]
        yield _row(sum=pickle.dumps(wrong[0] if wrong else add_up(found), 5))


def _attempt(job: Job, open_part: Callable[..., tuple[int, Any]], batches: Iterator[Any]) -> tuple[int, Any]:
    """Return the number of a part and what a job makes of it, or our error: Spark would wrap it in pages of its own."""
    number, part = open_part(batches)
    try:
        return number, job(part, number)
    except LowcalError as error:
        return number, error


def _row(**values: Any) -> Any:
    import pyarrow as pa

    kinds = {"number": pa.int64()}
    columns = {name: pa.array([value], kinds.get(name, pa.binary())) for name, value in values.items()}
    return pa.RecordBatch.from_pydict(columns)
