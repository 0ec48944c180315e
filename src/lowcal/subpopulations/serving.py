"""One row at a time: encoding a single row of raw values without a data frame, for serving.

`reader_of(encoder)` returns a function from the values of a row to the plain numbers that the encoder would put into
the only row of a table; None for an encoder that is not lowcal's own. Values mean what they mean in a column: None and
NaN are missing, numbers are compared as numbers, and an unseen category belongs to no group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import inf, isnan, nan
from typing import Any, TypeAlias

import numpy as np

from lowcal.data.errors import InvalidInput, MissingColumn, suggest
from lowcal.data.frames import Table as Frame
from lowcal.subpopulations.base import Encoder
from lowcal.subpopulations.bins import BinEncoder
from lowcal.subpopulations.features import FeatureEncoder, Indicators, Scale
from lowcal.subpopulations.groups import GroupEncoder
from lowcal.subpopulations.levels import FIRST, MISSING, UNSEEN, Levels
from lowcal.subpopulations.memberships import MembershipEncoder
from lowcal.subpopulations.thresholds import ThresholdEncoder
from lowcal.subpopulations.union import UnionEncoder

#: A column of X -> the raw value in the row.
Row: TypeAlias = Callable[[str], Any]
#: A row as numbers, column by column: codes, bins, features or memberships; of a union, those of each part.
Encoded: TypeAlias = Sequence[Any]

#: NumPy scalars that equal a Python value: booleans, whole numbers, float64 and text.
_SCALARS = frozenset({np.str_, *(np.dtype(kind).type for kind in "?bBhHiIlLqQd")})


def row_of(columns: Sequence[str], row: Mapping[str, Any] | Sequence[Any]) -> Row:
    """Return the look-up of values in a row: a mapping from column names, or a sequence in the order of `columns`.

    The columns of a bare array are called x0, x1, ...; a sequence then is a row of the array.

    >>> row_of(("age", "sex"), {"sex": "F", "age": 31})("age"), row_of(("x2",), [5.0, 6.0, 7.0])("x2")
    (31, 7.0)
    """
    if isinstance(row, Mapping):
        return lambda name: _value(row, name)
    if hasattr(row, "items") and all(isinstance(name, str) for name, _ in row.items()):  # a row of a pandas frame
        return row_of(columns, dict(row.items()))
    places = {name: k for k, name in enumerate(columns)}
    if columns and all(name[:1] == "x" and name[1:].isdigit() for name in columns):
        places = {name: int(name[1:]) for name in columns}
    elif len(row) != len(columns):
        raise InvalidInput(
            f"The row has {len(row)} values, but {len(columns)} columns are read ({', '.join(columns[:8])}"
            f"{', ...' * (len(columns) > 8)}). Give one value for each in this order, or a dict."
        )
    if max(places.values(), default=-1) >= len(row):
        raise InvalidInput(
            f"The row has {len(row)} values, but column {max(places.values())} is read. Give all columns."
        )
    return lambda name: row[places[name]]


def _value(row: Mapping[str, Any], name: str) -> Any:
    try:
        return row[name]
    except KeyError:
        names = [str(key) for key in row]
        raise MissingColumn(
            f"The row has no value for the column {name!r}; it has {', '.join(map(repr, names[:10]))}."
            f"{suggest(name, names)} Give None for a missing value."
        ) from None


def columns_of(encoder: Encoder) -> tuple[str, ...]:
    """Return the columns that an encoder reads, in the order of first use."""
    if isinstance(encoder, UnionEncoder):
        return tuple(dict.fromkeys(name for part in encoder.parts for name in columns_of(part)))
    if isinstance(encoder, GroupEncoder | BinEncoder):
        return tuple(level.column for level in encoder.levels)
    if isinstance(encoder, ThresholdEncoder):
        return encoder.columns
    if isinstance(encoder, FeatureEncoder):
        columns = [f.column if isinstance(f, Scale) else f.levels.column for f in encoder.features]
        return tuple(dict.fromkeys(columns))
    if isinstance(encoder, MembershipEncoder):
        return encoder.columns or tuple(f"x{j}" for j in range(len(encoder.names)))
    return ()


def reader_of(encoder: Encoder) -> Callable[[Row], Encoded] | None:
    """Return the function from a row to its numbers; None for an encoder that is not lowcal's own."""
    if isinstance(encoder, UnionEncoder):
        parts = [reader_of(part) for part in encoder.parts]
        return None if None in parts else lambda row: tuple(part(row) for part in parts if part is not None)
    if isinstance(encoder, GroupEncoder):
        return _group_codes(encoder)
    if isinstance(encoder, ThresholdEncoder):
        cuts = [cut.tolist() for cut in encoder.cuts]
        return lambda row: tuple(_bin(number(row(c), c), t, 0, 1) for c, t in zip(encoder.columns, cuts, strict=True))
    if isinstance(encoder, BinEncoder):
        bins = [_bin_reader(level) for level in encoder.levels]
        return lambda row: [read(row) for read in bins]
    if isinstance(encoder, FeatureEncoder):
        features = [_feature_reader(feature) for feature in encoder.features]
        return lambda row: [value for read in features for value in read(row)]
    if isinstance(encoder, MembershipEncoder):
        return _memberships(encoder)
    return None


def _bin_reader(level: Levels) -> Callable[[Row], int]:
    """Return the function from a row to the bin of one column; unseen categories count as missing."""
    read = _level_reader(level)
    if level.categories is None:
        return read

    def seen(row: Row) -> int:
        code = read(row)
        return MISSING if code == UNSEEN else code

    return seen


def _feature_reader(feature: Scale | Indicators) -> Callable[[Row], Sequence[float]]:
    """Return the function from a row to the features of one column."""
    if isinstance(feature, Scale):
        scale = feature
        return lambda row: _scaled(number(row(scale.column), scale.column), scale)
    level, wanted = _level_reader(feature.levels), feature.wanted

    def read(row: Row) -> Sequence[float]:
        code = level(row)
        return [float(code == one) for one in wanted]

    return read


def _scaled(value: float, scale: Scale) -> Sequence[float]:
    shifted = (value - scale.mean) / scale.deviation
    if -inf < shifted < inf:
        return [shifted]
    return [float(np.nan_to_num(shifted, nan=0.0, posinf=1e6, neginf=-1e6))]


def _memberships(encoder: MembershipEncoder) -> Callable[[Row], Encoded]:
    """Return the memberships of a row; the encoder itself refuses those outside [0, 1]."""
    columns = columns_of(encoder)

    def read(row: Row) -> Encoded:
        values = [_membership(row(c), c) for c in columns]
        if not all(0.0 <= value <= 1.0 for value in values):
            encoder(Frame.of({c: [value] for c, value in zip(columns, values, strict=True)}))
        return values

    return read


def _membership(value: Any, name: str) -> float:
    return float(value) if isinstance(value, bool | np.bool_) else number(value, name)


def _group_codes(encoder: GroupEncoder) -> Callable[[Row], Encoded]:
    """Return the merged codes: mixed-radix numbers of the levels, the last column running fastest."""
    readers = [_level_reader(level) for level in encoder.levels]
    plan = [list(zip(merged, encoder.shape(merged), strict=True)) for merged in encoder.plan]

    def read(row: Row) -> Encoded:
        levels = [reader(row) for reader in readers]
        codes = []
        for merged in plan:
            code = 0
            for k, size in merged:
                code = code * size + levels[k]
            codes.append(code)
        return tuple(codes)

    return read


def _level_reader(levels: Levels) -> Callable[[Row], int]:
    """Return the function from a row to the level of one column."""
    name, code = levels.column, levels.numbers
    kinds = () if levels.is_date else (int, float) if levels.categories is None else (str, bool, int, float)

    def read(row: Row) -> int:
        value = _plain(row(name))
        if value is None:
            return MISSING
        if type(value) not in kinds:
            return int(levels.codes(Frame.of({name: [value]}))[0])
        if levels.categories is None:
            return _bin(float(value), levels.cuts, MISSING, FIRST)
        return code.get(value, UNSEEN) if value == value else MISSING

    return read


def _bin(value: float, cuts: Sequence[float], missing: int, first: int) -> int:
    return missing if isnan(value) else first + bisect_left(cuts, value)


def number(value: Any, name: str) -> float:
    """Return a value of a numeric column, NaN if missing."""
    value = _plain(value)
    if type(value) is float or type(value) is int:
        return float(value)
    if value is None:
        return nan
    read = Frame.of({name: [value]}).numeric([name])
    return float(read[0, 0])


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as the Python value it equals."""
    return value.item() if type(value) in _SCALARS else value
