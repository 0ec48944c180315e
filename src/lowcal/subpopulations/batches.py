"""Encoding batch after batch: codes of columns that hold few values are looked up, no row is decoded.

Arrow dictionaries and whole numbers of one or two bytes have few possible values. The encoder is asked for the levels
of these values, once while a dictionary stays the same; rows then go from bytes to merged codes by look-ups.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.engines.joint import Column, join_codes
from lowcal.files.batches import for_frames, is_arrow_array
from lowcal.frames import Table as Frame
from lowcal.simplex import IntArray
from lowcal.subpopulations.base import Encoder, Rows
from lowcal.subpopulations.groups import GroupEncoder
from lowcal.subpopulations.levels import Levels
from lowcal.subpopulations.serving import columns_of
from lowcal.subpopulations.union import UnionEncoder

Batch = Mapping[str, Any]


class BatchEncoder:
    """An encoder for batches of a stream: the same rows as `encoder(Frame.of(batch))`.

    >>> from lowcal.subpopulations import Groups
    >>> learner = Groups(min_mass=0).prepare({"sex": ["F", "M", "F"]})
    >>> [codes.tolist() for codes in BatchEncoder(learner.encoder)({"sex": np.array(["M", "F", "X"])}, 3)]
    [[3, 2, 0]]
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._parts = [BatchEncoder(part) for part in encoder.parts] if isinstance(encoder, UnionEncoder) else []
        self._known: dict[str, tuple[Any, IntArray]] = {}
        self._own: dict[str, IntArray] = {}
        self._strided: dict[int, list[tuple[IntArray, NDArray[Any]]]] = {}

    def __call__(self, batch: Batch, n: int) -> Rows:
        """Return the encoded rows of a batch of n rows."""
        if self._parts:
            return tuple(part(batch, n) for part in self._parts)
        if isinstance(self.encoder, GroupEncoder):
            return self._groups(self.encoder, batch, n)
        return self.encoder(Frame.of({name: for_frames(batch[name]) for name in columns_of(self.encoder)}))

    def _groups(self, encoder: GroupEncoder, batch: Batch, n: int) -> Rows:
        """Return merged code columns: stride times level of each column, added up."""
        if not encoder.levels:
            return encoder.merge([], n)
        columns = [self._levels(level, batch[level.column]) for level in encoder.levels]
        return tuple(
            self._merge(t, [columns[k] for k in merged], encoder.shape(merged), n)
            for t, merged in enumerate(encoder.plan)
        )

    def _merge(self, t: int, columns: list[Column], shape: tuple[int, ...], n: int) -> IntArray:
        """Return the merged column t; its tables, stride times level, are made anew when a dictionary has changed."""
        kind, made = np.min_scalar_type(prod(shape)), self._strided.get(t)
        if made is None or any(known is not levels for (known, _), (_, levels) in zip(made, columns, strict=True)):
            strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
            made = [(levels, (levels * s).astype(kind)) for (_, levels), s in zip(columns, strides, strict=True)]
            self._strided[t] = made
        return join_codes([(a, table) for (a, _), (_, table) in zip(columns, made, strict=True)], n, kind)

    def _levels(self, levels: Levels, column: Any) -> Column:
        """Return small whole numbers for the rows, and the level of each such number."""
        few = _few_values(column)
        if few is None:
            codes = levels.codes(Frame.of({levels.column: for_frames(column)}))
            return codes, self._own.setdefault(levels.column, np.arange(levels.count))
        index, values = few
        known = self._known.get(levels.column)
        if known is None or not _equal(known[0], values):
            small = _every(values)
            known = values, levels.codes(Frame.of({levels.column: small})).astype(np.intp)
            self._known[levels.column] = known
        return index, known[1]


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
    if isinstance(known, np.dtype) or isinstance(values, np.dtype):
        return isinstance(known, np.dtype) and isinstance(values, np.dtype) and known == values
    return known is values or bool(known.equals(values))


def _every(values: Any) -> Any:
    """Return a column that holds each of the values, in order, and then none."""
    if isinstance(values, np.dtype):
        unsigned = np.dtype(f"u{values.itemsize}")
        return np.arange(np.iinfo(unsigned).max + 1).astype(unsigned).view(values)
    import pyarrow as pa

    return for_frames(pa.DictionaryArray.from_arrays(pa.array([*range(len(values)), None], pa.int64()), values))
