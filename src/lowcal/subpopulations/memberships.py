"""Memberships: X itself holds the memberships, as an (n, m) array, data frame or sparse matrix of numbers in [0, 1].

Memberships that are all 0 or 1 are packed eight to a byte: a histogram of 256 bins gives the moments of eight groups.
Booleans and bytes are packed as they are, and fractions stay in their own type: nothing becomes float64 as a whole.
Where only a few sums are wanted (`measure`), booleans are read as they came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, ClassVar, NoReturn

import numpy as np
from scipy import sparse

from lowcal.data.checked_json import Plain, PlainFields
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Column
from lowcal.data.frames import Table as Frame
from lowcal.data.onnx_graph import GraphColumns, GraphMatrix
from lowcal.kernels.reference import AnyArray, Codes, DecodeTable, Design, Matrix, pieces
from lowcal.kernels.simplex import FloatArray, IntArray
from lowcal.subpopulations.base import (
    CLASSES,
    ENCODERS,
    EVERYONE,
    FAMILIES,
    Everyone,
    Family,
    LeftOut,
    OfSizes,
    ReadFor,
    WeakLearner,
    check_min_mass,
    effective_rows,
    is_enough,
    list_rare,
    masses_of,
    require_members,
)
from lowcal.subpopulations.single_row import MemberRead, Read, Row, RowFacts, RowReader, number


@CLASSES.register
@dataclass(frozen=True)
class Memberships(OfSizes):
    """X[i, j] in [0, 1] is the membership of row i in subpopulation j.

    Parameters
    ----------
    names : names of the subpopulations; None takes the column names of X.
    min_mass : subpopulations with fewer effective rows than this are dropped.
    everyone : whether the whole population is a member.

    >>> Memberships(["young", "old"])
    Memberships(names=['young', 'old'], min_mass=30, everyone=True)
    """

    names: Sequence[str] | None = None
    min_mass: float = 30
    everyone: bool = True

    def bind(self, X: Frame, sample_weight: FloatArray) -> WeakLearner:
        """Check the memberships, store them compactly and drop those too small to judge."""
        check_min_mass(self.min_mass)
        names = self._read_names(X)
        encoder = MembershipEncoder(names, X.names if X.is_named else None)
        rows = encoder(X)
        C = Members(names, tuple(range(len(names)))).design(rows)
        worth = effective_rows(*C.moments(masses_of(sample_weight)).T)
        kept = self._kept(worth)
        known: list[Family] = [Everyone()] if self.everyone else []
        if len(kept):
            known.append(Members(tuple(names[j] for j in kept), tuple(kept.tolist())))
        require_members([name for f in known for name in f.names], "The class of memberships", self.min_mass)
        rare = tuple(list_rare(worth, names.__getitem__, "memberships", self.min_mass))
        return WeakLearner(encoder, rows, sample_weight, known, left_out=LeftOut(rare))

    def _kept(self, worth: FloatArray) -> IntArray:
        return np.flatnonzero(is_enough(worth, self.min_mass))

    def every_member(self) -> _EveryColumn:
        """Return the class with every column, the empty ones too."""
        return _EveryColumn(self.names, 0, self.everyone)

    def _read_names(self, X: Frame) -> tuple[str, ...]:
        """Return a name for each column, no two alike."""
        names = X.names if self.names is None else tuple(self.names)
        if not X.names:
            raise InvalidInput("Memberships needs at least one column, but X has none.")
        if isinstance(self.names, str) or len(names) != len(X.names):
            raise InvalidInput(
                f"X has {len(X.names)} columns of memberships, but names={self.names!r} was given. Name each column."
            )
        twice = [name for name, times in Counter([*names, *[EVERYONE] * self.everyone]).items() if times > 1]
        if twice:
            raise InvalidInput(
                f"The name {twice[0]!r} stands for several subpopulations ({EVERYONE!r} for all rows unless "
                "everyone=False). Give each its own in names=."
            )
        return tuple(names)


@dataclass(frozen=True)
class _EveryColumn(Memberships):
    """Memberships with every column: whether one is empty is not public."""

    def _kept(self, worth: FloatArray) -> IntArray:
        return np.arange(len(worth))


@ENCODERS.register
@dataclass(frozen=True)
class MembershipEncoder:
    """Checks that X has the fitted columns and lies in [0, 1]; packs it. Named columns are found by name."""

    names: tuple[str, ...]
    named: tuple[str, ...] | None = None
    kind: ClassVar[str] = "memberships"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read; those of a bare array are called x0, x1, ..."""
        return self.named or tuple(f"x{j}" for j in range(len(self.names)))

    def __call__(self, X: Frame) -> Bits | AnyArray | sparse.csr_array:
        """Return bits, a dense array or a sparse matrix, whichever X allows."""
        is_by_name = self.named is not None and X.is_named and X.matrix is None
        if len(X.names) < len(self.names) or (len(X.names) > len(self.names) and not is_by_name):
            raise InvalidInput(
                f"X has {len(X.names)} columns of memberships, but {len(self.names)} were fitted "
                f"({', '.join(self.names[:8])}{', ...' * (len(self.names) > 8)}). Give the same columns."
            )
        if X.matrix is not None:
            matrix = X.matrix
            wrong = np.flatnonzero(~((matrix.data >= 0) & (matrix.data <= 1)))
            if len(wrong):
                place = matrix.tocoo()
                _refuse(place.row[wrong[0]], X.names[place.col[wrong[0]]], matrix.data[wrong[0]])
            return matrix
        columns = self.columns if is_by_name else X.names
        C = X.held(columns)
        if C is None:
            C = np.column_stack([_numbers(X.column(name)) for name in columns])
        return _stored(C, columns)

    def row_reader(self) -> RowReader:
        """Return the memberships of a row; the encoder itself refuses those outside [0, 1]."""
        columns = self.columns

        def read(row: Row) -> list[float]:
            values = [float(v) if isinstance(v := row(c), bool | np.bool_) else number(v, c) for c in columns]
            if not all(0.0 <= value <= 1.0 for value in values):
                self(Frame.of({c: [value] for c, value in zip(columns, values, strict=True)}))
            return values

        return read

    def to_dict(self) -> dict[str, Any]:
        """Return the encoder as plain data."""
        columns = None if self.named is None else list(self.named)
        return {"kind": self.kind, "names": list(self.names), "columns": columns}

    @classmethod
    def from_dict(cls, at: Plain) -> MembershipEncoder:
        """Return the encoder of plain data."""
        _, names, columns = at.fields("kind", "names", "columns")
        shown, found = names.texts(), None if columns.is_null else columns.texts()
        if not shown or (found is not None and (len(found) != len(shown) or len(set(found)) < len(found))):
            at.refuse("names and different columns, as many of each")
        return cls(shown, found)


def _numbers(column: Column) -> FloatArray:
    """Return a column of memberships as numbers; booleans count as 0 and 1."""
    if column.values is not None:
        return column.values
    if column.categories == (False, True) and column.codes is not None:
        return np.where(column.codes < 0, np.nan, column.codes)
    raise InvalidInput(
        f"Column {column.name!r} holds text, but Memberships takes numbers in [0, 1]. Use Groups for categories."
    )


def _stored(C: AnyArray, names: Sequence[str]) -> Bits | AnyArray:
    """Return 0/1 memberships as bits, others in their own type; nothing of the size of C is made in float64."""
    bits = pack(C)
    if bits is not None:
        return Bits(bits, C.shape[1])
    for part in pieces(*C.shape):
        wrong = ~((C[part] >= 0) & (C[part] <= 1))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            _refuse(part.start + row, names[column], C[part][row, column])
    return C


def _refuse(row: int, column: str, value: float) -> NoReturn:
    raise InvalidInput(
        f"Memberships must lie in [0, 1], but row {row}, column {column!r} holds {value:.6g}. "
        "Clip or rescale it; missing memberships are not allowed."
    )


def pack(C: AnyArray) -> tuple[AnyArray, ...] | None:
    """Return 0/1 columns as bits, eight to a byte, the first one lowest; None if C holds other numbers.

    Cost: one pass over C. What is not of one byte is first compared with 0 and 1, which makes a byte for each entry.

    >>> pack(np.array([[1, 0, 1]])), pack(np.array([[0.5]]))
    ((array([5], dtype=uint8),), None)
    """
    if C.dtype == np.bool_:
        C = C.view(np.uint8) != 0  # whatever byte stands for true
    elif C.dtype.itemsize > 1:
        if not all(((C[part] == 0) | (C[part] == 1)).all() for part in pieces(*C.shape)):
            return None
        C = C != 0
    C = C.view(np.uint8)
    n, m = C.shape
    if C.max(initial=0) > 1:
        return None
    bits = np.zeros((-(-m // 8), n), dtype=np.uint8)
    if C.flags.f_contiguous:  # rows would have to be gathered byte by byte
        for j in reversed(range(m)):
            byte = bits[j // 8]
            byte += byte
            byte |= C[:, j]
        return tuple(bits)
    for part in pieces(n, m):
        whole = np.zeros((len(C[part]), 8 * len(bits)), dtype=np.uint8)  # rows of whole bytes are packed faster
        whole[:, :m] = C[part]
        bits[:, part] = np.packbits(whole.ravel(), bitorder="little").reshape(-1, len(bits)).T
    return tuple(bits)


@dataclass(frozen=True, eq=False)
class Bits:
    """0/1 memberships in m columns: a byte of every row for each eight of them."""

    packed: tuple[AnyArray, ...]
    m: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.packed[0]), self.m

    def __getitem__(self, some: Any) -> Bits:
        return Bits(tuple(byte[some] for byte in self.packed), self.m)

    @classmethod
    def join(cls, parts: Sequence[Bits]) -> Bits:
        """Return the rows of all parts, one after the other."""
        each = zip(*(part.packed for part in parts), strict=True)
        return Bits(tuple(np.concatenate(bytes_) for bytes_ in each), parts[0].m)

    def dense(self) -> FloatArray:
        """Return the memberships as numbers."""
        packed = np.column_stack(self.packed)
        return np.unpackbits(packed, axis=1, count=self.m, bitorder="little").astype(np.float64)

    def flat(self) -> tuple[tuple[AnyArray, ...], Callable[[Iterator[AnyArray]], Bits]]:
        """Return the arrays that hold the bits, and how they become bits again."""
        size = len(self.packed)
        return self.packed, lambda arrays: Bits(tuple(next(arrays) for _ in range(size)), self.m)


@cache
def _table(bits: tuple[int, ...]) -> DecodeTable:
    """Return the table of some bits of a byte; bytes with the same ones share it."""
    return DecodeTable(sparse.csr_array((np.arange(256)[:, None] >> np.array(bits) & 1).astype(np.float64)))


@FAMILIES.register
@dataclass(frozen=True)
class Members(PlainFields):
    """Some columns of a matrix of memberships."""

    names: tuple[str, ...]
    columns: tuple[int, ...]
    kind: ClassVar[str] = "members"

    def design(self, rows: Bits | AnyArray | sparse.csr_array) -> Design:
        """Return the memberships in the form in which the rows hold them."""
        if isinstance(rows, Bits):  # consecutive members of one byte share its histogram
            runs = [(byte, tuple(j % 8 for j in run)) for byte, run in groupby(self.columns, lambda j: j // 8)]
            return Codes(tuple(rows.packed[byte] for byte, _ in runs), tuple(_table(bits) for _, bits in runs))
        if isinstance(rows, np.ndarray):
            C = rows if self.columns == tuple(range(rows.shape[1])) else rows[:, self.columns]
            return Matrix(C)
        return Matrix(sparse.csr_array(rows.tocsc()[:, list(self.columns)]))

    def take(self, members: IntArray) -> Members:
        """Return some of the members."""
        return Members(tuple(self.names[j] for j in members), tuple(self.columns[j] for j in members))

    def reads(self, facts: RowFacts) -> Sequence[Read]:
        """Read the memberships of a row."""
        return [MemberRead(facts.itself(), self.columns)]

    def onnx(self, columns: GraphColumns, encoder: MembershipEncoder, numbers: int) -> Sequence[GraphMatrix]:
        """Return the memberships in a graph."""
        graph, read = columns.graph, encoder.columns
        each = [graph.column(columns.number(read[j])) for j in self.columns]
        return [GraphMatrix(np.arange(len(each)), graph.side_by_side(each))]

    @classmethod
    def from_dict(cls, at: Plain, context: ReadFor) -> Members:
        """Return the family of plain data."""
        _, names, columns = at.fields("kind", "names", "columns")
        last = len(context.rows_of(at, MembershipEncoder).names) - 1
        places = tuple(one.whole(0, last) for one in columns.items())
        return cls(names.names(len(places)), places)
