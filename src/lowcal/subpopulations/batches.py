"""Encoding batch after batch: codes of columns that hold few values are looked up, no row is decoded.

Arrow dictionaries and whole numbers of one or two bytes have few possible values. The encoder is asked for the levels
of these values, once while a dictionary stays the same; rows then go from bytes to merged codes by look-ups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lowcal.data.files.batches import for_frames, is_arrow_array
from lowcal.data.frames import Table as Frame
from lowcal.kernels.joint import LookUp, join_codes
from lowcal.kernels.simplex import IntArray
from lowcal.subpopulations.base import Encoded, Encoder
from lowcal.subpopulations.levels import FIRST, Levels
from lowcal.subpopulations.single_row import columns_of

Batch = Mapping[str, Any]


@runtime_checkable
class StreamEncoder(Protocol):
    """An encoder that knows a faster way for the batches of a stream."""

    def batches(self) -> Callable[[Batch, int], Encoded]:
        """Return the function from a batch and its number of rows to encoded rows."""
        ...


class BatchEncoder:
    """An encoder for batches of a stream: the same rows as `encoder(Frame.of(batch))`.

    >>> from lowcal.subpopulations import Groups
    >>> learner = Groups(min_mass=0).prepare({"sex": ["F", "M", "F"]})
    >>> [codes.tolist() for codes in BatchEncoder(learner.encoder)({"sex": np.array(["M", "F", "X"])}, 3)]
    [[3, 2, 0]]
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._encode = encoder.batches() if isinstance(encoder, StreamEncoder) else self._by_table

    def __call__(self, batch: Batch, n: int) -> Encoded:
        """Return the encoded rows of a batch of n rows."""
        return self._encode(batch, n)

    def _by_table(self, batch: Batch, n: int) -> Encoded:
        read = columns_of(self.encoder) or tuple(batch)  # an encoder that does not tell may read all
        return self.encoder(Frame.of({name: for_frames(batch[name]) for name in read}))


@dataclass(frozen=True, eq=False)
class KnownLevels:
    """The levels of few values: those of a dictionary, or all of a type; `values` is None where rows come as levels.

    From `first` to `last` every value is one level above the one before it.
    """

    values: Any
    levels: IntArray
    first: int
    last: int

    @classmethod
    def of(cls, values: Any, levels: IntArray) -> KnownLevels:
        """Find the first run of levels of values, which is all of a sorted dictionary."""
        seen = np.flatnonzero(levels >= FIRST)
        first = int(seen[0]) if len(seen) else 0
        steps = np.flatnonzero(np.diff(levels[first:]) != 1)
        return cls(values, levels, first, first + int(steps[0]) if len(steps) else len(levels) - 1)

    def holds(self, index: NDArray[Any]) -> bool:
        """Whether all rows lie in the run."""
        return len(index) > 0 and bool(index.max() <= self.last) and bool(self.first == 0 or index.min() >= self.first)


class GroupBatches:
    """Merged code columns of batches: stride times level of each column, added up."""

    def __init__(self, levels: Sequence[Levels], plan: Sequence[Sequence[int]]) -> None:
        self.levels, self.plan = levels, plan
        self._known: dict[str, KnownLevels] = {}
        self._tables: dict[tuple[int, int], tuple[KnownLevels, NDArray[Any]]] = {}

    def __call__(self, batch: Batch, n: int) -> tuple[IntArray, ...]:
        """Return the merged code columns of a batch of n rows."""
        if not self.levels:
            return (np.zeros(n, dtype=np.uint8),)
        columns = [self._levels(level, batch[level.column]) for level in self.levels]
        runs = [known.holds(index) for index, known in columns]
        merged = []
        for t, plan in enumerate(self.plan):
            shape = [self.levels[k].count for k in plan]
            kind, looks = np.min_scalar_type(prod(shape)), []
            for place, k in enumerate(plan):
                (index, known), stride = columns[k], prod(shape[place + 1 :])
                table = self._table(t, k, known, stride, kind)
                offset = stride * (int(known.levels[known.first]) - known.first)
                looks.append(LookUp(index, table, stride, offset) if runs[k] else LookUp(index, table))
            merged.append(join_codes(looks, n, kind))
        return tuple(merged)

    def _table(self, t: int, k: int, known: KnownLevels, stride: int, kind: np.dtype[Any]) -> NDArray[Any]:
        """Return stride times level of every value of column k, made once for the merged column t and a dictionary."""
        made = self._tables.get((t, k))
        if made is None or made[0] is not known:
            made = self._tables[t, k] = known, (known.levels * stride).astype(kind)
        return made[1]

    def _levels(self, levels: Levels, column: Any) -> tuple[NDArray[Any], KnownLevels]:
        """Return small whole numbers for the rows, and the level of each such number."""
        few, known = _few_values(column), self._known.get(levels.column)
        if few is None:
            index, values = levels.codes(Frame.of({levels.column: for_frames(column)})), None
        else:
            index, values = few
        if known is None or not _equal(known.values, values):
            every = np.arange(levels.count) if few is None else levels.codes(Frame.of({levels.column: _every(values)}))
            known = self._known[levels.column] = KnownLevels.of(values, every.astype(np.intp))
        return index, known


def _few_values(column: Any) -> tuple[NDArray[Any], Any] | None:
    """Return where each row's value stands among few, and these: a dictionary or a type; None if there may be many."""
    if is_arrow_array(column):
        import pyarrow as pa

        if pa.types.is_dictionary(column.type):
            return _indices(column), column.dictionary
        is_small = pa.types.is_integer(column.type) and column.type.bit_width <= 16 and column.null_count == 0
        column = column.to_numpy() if is_small else column
    if isinstance(column, np.ndarray) and column.dtype.kind in "iu" and column.dtype.itemsize <= 2:
        return np.ascontiguousarray(column).view(f"u{column.dtype.itemsize}"), column.dtype
    return None


def _indices(column: Any) -> NDArray[Any]:
    """Return the indices of a dictionary array; those of missing values come after the last."""
    indices = column.indices
    if indices.null_count:
        indices = indices.cast("int64").fill_null(len(column.dictionary))
    return np.asarray(indices.to_numpy())


def _equal(known: Any, values: Any) -> bool:
    """Whether these are the same few values."""
    if type(known) is not type(values) or known is None or isinstance(known, np.dtype):
        return known is values or (isinstance(known, np.dtype) and bool(known == values))
    return bool(known.equals(values))


def _every(values: Any) -> Any:
    """Return a column that holds each of the values, in order, and then none."""
    if isinstance(values, np.dtype):
        unsigned = np.dtype(f"u{values.itemsize}")
        return np.arange(np.iinfo(unsigned).max + 1).astype(unsigned).view(values)
    import pyarrow as pa

    return for_frames(pa.DictionaryArray.from_arrays(pa.array([*range(len(values)), None], pa.int64()), values))
