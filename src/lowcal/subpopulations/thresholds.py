"""Thresholds: all one-sided thresholds of numeric features, x <= t and x > t, searched exactly.

The distinct values of a feature are ordered codes, so the moments of every threshold are one cumulative sum of a
histogram (spec 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np
from scipy import sparse

from lowcal.data.checked_json import Plain, PlainFields
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table as Frame
from lowcal.data.onnx_graph import GraphColumns, Value
from lowcal.kernels.reference import Cumulative, Decode, DecodeTable, histogram
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.subpopulations.base import (
    CLASSES,
    ENCODERS,
    EVERYONE,
    ColumnChoice,
    OfColumns,
    WeakLearner,
    check_min_mass,
    effective_rows,
    is_enough,
    require_members,
)
from lowcal.subpopulations.codes import CodeEncoder, CodeFamily
from lowcal.subpopulations.levels import Levels, bins_of, resolve, weighted_values
from lowcal.subpopulations.single_row import RowReader, bin_of, number


@CLASSES.register
@dataclass(frozen=True)
class Thresholds(OfColumns):
    """All sets {x <= t} and {x > t} of each numeric column; exact, O(n) a column after one sort.

    Parameters
    ----------
    columns : names or positions of numeric columns; None is every column.
    min_mass : thresholds that leave fewer effective rows than this on a side are left out.
    everyone : whether the whole population is a member.

    Missing values are on neither side.

    >>> Thresholds("age")
    Thresholds(columns='age', min_mass=30, everyone=True)
    """

    columns: ColumnChoice = None
    min_mass: float = 30
    everyone: bool = True
    is_listed = needs_no_matrix = True

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Sort every column once; the thresholds between its distinct values are the class."""
        check_min_mass(self.min_mass)
        columns = resolve(self.columns, X)
        if not columns:
            raise InvalidInput("Thresholds needs at least one numeric column.")
        cuts = tuple(_cuts(X.numeric([c])[:, 0], sample_weight, self.min_mass) for c in columns)
        encoder = ThresholdEncoder(columns, cuts)
        family = _list_thresholds(encoder, X, self.everyone)
        require_members(family.names, "The class of thresholds", self.min_mass)
        return WeakLearner(encoder, encoder(X), sample_weight, [family])

    def every_member(self) -> NoReturn:
        """Refuse: the list of thresholds depends on the rows, whatever their sizes."""
        raise InvalidInput(
            "Thresholds are cut at the values of the rows, so their list would reveal them. Use Private(Groups([...]))."
        )


@ENCODERS.register
@dataclass(frozen=True, eq=False)
class ThresholdEncoder(CodeEncoder, PlainFields):
    """The cut points of every column."""

    columns: tuple[str, ...]
    cuts: tuple[FloatArray, ...]
    kind: ClassVar[str] = "thresholds"

    def __call__(self, X: Frame) -> tuple[IntArray, ...]:
        """Return ordered codes: 0 is missing, code k means k - 1 cuts lie below the value."""
        each = zip(self.columns, self.cuts, strict=True)
        return tuple(
            bins_of(X.numeric([column])[:, 0], cuts, np.min_scalar_type(len(cuts) + 1), 0, 1) for column, cuts in each
        )

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The codes of each column."""
        return tuple((len(cuts) + 2,) for cuts in self.cuts)

    def row_reader(self) -> RowReader:
        """Return the codes of a row."""
        each = [(column, cuts.tolist()) for column, cuts in zip(self.columns, self.cuts, strict=True)]
        return lambda row: tuple(bin_of(number(row(column), column), cuts, 0, 1) for column, cuts in each)

    def code(self, columns: GraphColumns, k: int, axes: Sequence[int]) -> Value:
        """Return the codes of a column in a graph."""
        return columns.bin(self.columns[k], self.cuts[k], 0, 1)

    @classmethod
    def from_dict(cls, at: Plain) -> ThresholdEncoder:
        """Return the encoder of plain data."""
        _, columns, cuts = at.fields("kind", "columns", "cuts")
        names, points = columns.texts(), tuple(one.increasing() for one in cuts.items())
        if len(names) != len(points) or not names:
            cuts.refuse(f"a list of cut points for each of {len(names)} columns")
        return cls(names, points)


def _cuts(values: FloatArray, sample_weight: FloatArray, min_mass: float) -> FloatArray:
    """Return the distinct values t with at least min_mass effective rows at or below and above t."""
    distinct, each = weighted_values(values, sample_weight)
    if len(distinct) == 0:
        return distinct
    which = np.searchsorted(distinct, values[~np.isnan(values) & (sample_weight > 0)])
    w = sample_weight[~np.isnan(values) & (sample_weight > 0)]
    mass, square = np.cumsum(each), np.cumsum(histogram(which, np.square(w)[:, None], len(distinct))[:, 0])
    below, above = effective_rows(mass, square), effective_rows(mass[-1] - mass, square[-1] - square)
    return np.asarray(distinct[:-1][is_enough(np.minimum(below, above), min_mass)[:-1]])


def _list_thresholds(encoder: ThresholdEncoder, X: Frame, everyone: bool) -> CodeFamily:
    """Return every threshold of every column that has one, the whole population first."""
    names: list[str] = []
    tables: list[tuple[int, Decode]] = []
    if everyone:
        names.append(EVERYONE)
        tables.append((0, DecodeTable(sparse.csr_array(np.ones((len(encoder.cuts[0]) + 2, 1))))))
    for k, (column, cuts) in enumerate(zip(encoder.columns, encoder.cuts, strict=True)):
        if len(cuts):
            tables.append((k, Cumulative.every(len(cuts) + 2)))
            shown = Levels(column, None, tuple(cuts.tolist()), X.column(column).is_date).shown
            names += [f"{column}<={t}" for t in shown] + [f"{column}>{t}" for t in shown]
    return CodeFamily(tuple(names), tuple(k for k, _ in tables), tuple(t for _, t in tables))
