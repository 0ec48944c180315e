"""The reference engine: the n x m matrix C of memberships, stored so that two products are cheap.

Every finite family of subpopulations is, on given rows, a matrix C. Auditing needs C'R (the moments), updating
needs C theta. `Codes` holds small integer code columns with a decode table each: one histogram, then a small
product; no n x m array is built. `Matrix` holds fractional memberships; `Stacked` puts designs side by side.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import accumulate, combinations_with_replacement, groupby
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowcal.kernels.exact import BLOCK, Grid
from lowcal.kernels.loops import FEW, MirrorReads, code_rows, kernels_at_hand, kernels_for, pad, padded
from lowcal.kernels.products import UNSPLIT, UNSPLIT_VECTOR, by_row, product
from lowcal.kernels.simplex import FloatArray, IntArray, of_odds_against

#: Rows are worked on in pieces of at most this many numbers, so that temporaries stay in cache or at least small.
CHUNK = 1 << 21

#: This many numbers stay in the second cache: pieces of passes with few numbers a row, histograms of pairs of codes.
CACHE = 1 << 17

#: Members of groups of at most this many levels are gathered level by level.
FEW_LEVELS = 32

#: An array of numbers of any type.
AnyArray: TypeAlias = NDArray[Any]
#: A slice of the rows -> (C theta) on these rows.
Combination: TypeAlias = Callable[[slice], FloatArray]
#: A subpopulation -> the places of its members, increasing, and their memberships.
Find: TypeAlias = Callable[[int], tuple[IntArray, FloatArray]]
#: A slice of the rows and the cell of each -> the coefficients of the row's own cell, summed over the members.
CellCombination: TypeAlias = Callable[[slice, IntArray], FloatArray]


class Design(Protocol):
    """The matrix C on some rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and subpopulations."""
        ...

    def moments(self, R: FloatArray) -> FloatArray:
        """Return C'R for R of shape (n, q), a piece of the rows at a time."""
        sums = self.sums(R.shape[1])
        for part in rows_in_cache(*R.shape):
            sums.add(part, R[part])
        return sums.total()

    def sums(self, q: int, grid: Grid | None = None) -> Accumulator:
        """Return C'R for R of q columns under construction: zero, before the first piece of R is added.

        With a grid, on which R lies, products that are not are rounded to it. A piece of R, and the tables of the sum,
        may have more columns, which do not count.
        """
        ...

    def cell_moments(self, ids: IntArray, n_cells: int, R: FloatArray, grid: Grid | None = None) -> FloatArray:
        """Return sum_i C_ij R_ia [ids_i = s] as (m, n_cells, q); rows with ids = n_cells belong to no cell."""
        ...

    def combination(self, theta: FloatArray) -> Combination:
        """Return C theta, for theta of shape (m, q), as a function of the rows that are wanted."""
        ...

    def cell_combination(self, theta: FloatArray) -> CellCombination:
        """Return sum_j C_ij theta[j, ids_i, :] as a function of rows and their cells: the adjoint of `cell_moments`.

        Of the coefficients of all cells each row picks its own; the cell after the last is none.
        """
        m, n_cells, d = theta.shape
        combination = self.combination(theta.reshape(m, n_cells * d))

        def pick(part: slice, ids: IntArray) -> FloatArray:
            picked = np.empty((len(ids), d))
            for piece in pieces(len(ids), n_cells * d):
                start, here = (part.start or 0) + piece.start, ids[piece]
                every = combination(slice(start, start + len(here))).reshape(len(here), n_cells, d)
                own = every[np.arange(len(here)), np.minimum(here, n_cells - 1)]
                picked[piece] = np.where((here < n_cells)[:, None], own, 0.0)
            return picked

        return pick

    def rows(self, part: slice | IntArray) -> Design:
        """Return the same matrix on some rows."""
        ...

    def dense(self) -> FloatArray:
        """Return C itself; only for pieces."""
        ...

    def column(self, j: int) -> FloatArray:
        """Return the membership of every row in subpopulation j."""
        ...

    def power(self, exponent: int) -> Design:
        """Return the matrix of memberships raised to a whole power of at least 1."""
        ...

    def gram(self, H: FloatArray) -> FloatArray:
        """Return sum_i H_ik C_ic C_ic' as (q, m, m), for H of shape (n, q)."""
        return weighted_gram(self, self, H)

    def sparse(self) -> sparse.csr_array:
        """Return C without its zeros."""
        return sparse.csr_array(self.dense())

    def columns(self) -> Iterator[Design]:
        """Yield the code columns and matrices that C is made of, in order."""
        yield self

    def members(self, order: IntArray) -> Find:
        """Return what finds the members of a subpopulation among rows in this order.

        Cost: for code columns one sort each, then as many steps as there are members; for others a look at every row.

        >>> find = Matrix(np.array([[1.0, 0.0], [0.5, 0.0], [0.0, 1.0]])).members(np.array([2, 0, 1]))
        >>> [x.tolist() for x in find(0)]
        [[1, 2], [1.0, 0.5]]
        """

        def find(j: int) -> tuple[IntArray, FloatArray]:
            c = self.column(j)[order]
            places = np.flatnonzero(c)
            return places, c[places]

        return find


@dataclass(frozen=True, eq=False)
class DecodeTable:
    """The L x m table that says which groups a code belongs to, sparse."""

    matrix: sparse.csr_array

    @property
    def parts(self) -> tuple[IntArray, IntArray, FloatArray]:
        """The arrays of its CSR form: indptr, indices, data."""
        return self.matrix.indptr, self.matrix.indices, self.matrix.data

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Levels and groups."""
        levels, groups = self.matrix.shape
        return int(levels), int(groups)

    def gather(self, histogram: FloatArray) -> FloatArray:
        """Return decode' histogram."""
        most = UNSPLIT if histogram.shape[1] > 1 else UNSPLIT_VECTOR
        return product(self._dense.T if self._is_small(histogram, most) else self._transposed, histogram)

    def _is_small(self, other: FloatArray, most: int = UNSPLIT_VECTOR) -> bool:
        """Whether a product with the table is so small that SciPy takes longer to skip the zeros."""
        levels, groups = self.shape
        return bool(levels * groups * other.shape[1] <= most)

    @cached_property
    def _transposed(self) -> sparse.csc_array:
        return self.matrix.T  # SciPy takes longer to transpose than to multiply

    def spread(self, theta: FloatArray) -> FloatArray:
        """Return decode theta."""
        return product(self._dense if self._is_small(theta) else self.matrix, theta)

    def take(self, groups: IntArray) -> DecodeTable:
        """Return the columns of some groups."""
        return DecodeTable(sparse.csr_array(self.matrix.tocsc()[:, groups]))

    def look_up(self, codes: IntArray) -> FloatArray:
        """Return the rows of the table for these codes."""
        return self._dense[codes]

    def look_up_sparse(self, codes: IntArray) -> sparse.csr_array:
        """Return the same without zeros; nothing dense is made."""
        return sparse.csr_array(self.matrix[codes.astype(np.intp)])

    @cached_property
    def _dense(self) -> FloatArray:
        return np.asarray(self.matrix.toarray())

    def power(self, exponent: int) -> DecodeTable:
        """Return the table of powers: itself where memberships are 0 and 1."""
        return self if self.is_sharp else DecodeTable(self.matrix.power(exponent))

    @cached_property
    def is_sharp(self) -> bool:
        """Whether all memberships are 0 or 1."""
        return bool(((self.matrix.data == 0.0) | (self.matrix.data == 1.0)).all())

    @cached_property
    def runs(self) -> IntArray:
        """The number of every group's run, from 1: a group that shares a code with the run before begins a new one."""
        _, m = self.matrix.shape
        starts, groups, _ = self.parts
        before = np.concatenate([[-1], groups[:-1]])
        before[starts[:-1][np.diff(starts) > 0]] = -1
        latest = np.full(m, -1, dtype=np.intp)  # the last group before each that shares a code with it
        np.maximum.at(latest, groups, before)
        runs, first = np.ones(m, dtype=np.intp), 0
        for j, last in enumerate(latest.tolist()):
            if last >= first:
                runs[j:] += 1
                first = j
        return runs


@dataclass(frozen=True, eq=False)
class Cumulative:
    """One-sided thresholds of ordered codes: a group holds the codes 1..cut, or those above its cut; 0 is missing.

    No table is built: histograms and coefficients are summed up along the codes.
    """

    levels: int
    cuts: IntArray
    is_above: NDArray[np.bool_]
    is_sharp: ClassVar[bool] = True

    @classmethod
    def every(cls, levels: int) -> Cumulative:
        """Return all thresholds of the codes 1..levels-1: first every "at or below", then every "above"."""
        cuts = np.arange(1, levels - 1)
        return cls(levels, np.tile(cuts, 2), np.repeat([False, True], len(cuts)))

    @property
    def shape(self) -> tuple[int, int]:
        """Levels and groups."""
        return self.levels, len(self.cuts)

    def gather(self, histogram: FloatArray) -> FloatArray:
        """Return decode' histogram by one cumulative sum."""
        below = np.cumsum(histogram[1:], axis=0)
        mass = below[self.cuts - 1]
        return np.where(self.is_above[:, None], below[-1] - mass, mass)

    def spread(self, theta: FloatArray) -> FloatArray:
        """Return decode theta: every group switches on at its first code and off after its last."""
        change = np.zeros((self.levels + 1, theta.shape[1]))
        np.add.at(change, np.where(self.is_above, self.cuts + 1, 1), theta)
        np.add.at(change, np.where(self.is_above, self.levels, self.cuts + 1), -theta)
        return np.cumsum(change, axis=0)[:-1]

    def take(self, groups: IntArray) -> Cumulative:
        """Return some of the thresholds."""
        return Cumulative(self.levels, self.cuts[groups], self.is_above[groups])

    def look_up(self, codes: IntArray) -> FloatArray:
        """Return the memberships of these codes."""
        code = codes.astype(np.intp)[:, None]
        return np.where(self.is_above, code > self.cuts, (code >= 1) & (code <= self.cuts)).astype(np.float64)

    def look_up_sparse(self, codes: IntArray) -> sparse.csr_array:
        """Return the same without zeros."""
        return sparse.csr_array(self.look_up(codes))

    def power(self, exponent: int) -> Cumulative:
        """Return itself: memberships are 0 and 1."""
        return self


#: Which groups the codes of a column belong to.
Decode: TypeAlias = DecodeTable | Cumulative


@dataclass(frozen=True, eq=False)
class Codes(Design):
    """C as code columns: C[i, :] = concatenation over columns k of decode_k[codes_k[i], :]."""

    codes: tuple[IntArray, ...]
    decode: tuple[Decode, ...]

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and subpopulations."""
        return len(self.codes[0]), sum(t.shape[1] for t in self.decode)

    @cached_property
    def firsts(self) -> dict[int, int]:
        """The place of every distinct column; a column may occur twice."""
        return {id(c): k for k, c in reversed(list(enumerate(self.codes)))}

    def sums(self, q: int, grid: Grid | None = None) -> CodeSums:
        """Return empty histograms of all code columns."""
        return CodeSums(self, q, is_exact=grid is not None)

    def cell_moments(self, ids: IntArray, n_cells: int, R: FloatArray, grid: Grid | None = None) -> FloatArray:
        """Return the moments inside each cell: a histogram over pairs (code, cell), if these are not too many."""
        n, q = R.shape
        parts = []
        for c, t in zip(self.codes, self.decode, strict=True):
            own = None if t.is_sharp else grid  # what lies on the grid stays there where memberships are 0 and 1
            if own is not None or t.shape[0] * (n_cells + 1) > max(n, 1) * t.shape[1]:
                parts.append(Matrix(t.look_up(c)).cell_moments(ids, n_cells, R, own))
                continue
            both = pair_histogram(c, ids, t.shape[0], n_cells + 1, R, R.size * len(self.codes))
            parts.append(t.gather(both.reshape(t.shape[0], -1)).reshape(t.shape[1], n_cells + 1, q)[:, :n_cells])
        return np.concatenate(parts)

    def combination(self, theta: FloatArray) -> Combination:
        """Return the look-ups, with one table for each code column."""
        n, q = self.shape[0], theta.shape[1]
        tables = [pad(table) for table in self._spread(theta)]
        add_look_up = kernels_for(n * q * len(tables)).add_look_up

        def look_up(part: slice) -> FloatArray:
            total = np.zeros((len(range(n)[part]), padded(q)))
            for c, table in zip(self.codes, tables, strict=True):
                add_look_up(np.ascontiguousarray(c[part]), table, total)
            return total[:, :q]

        return look_up

    def _spread(self, theta: FloatArray) -> list[FloatArray]:
        """Return the coefficients of every level of each code column."""
        tables, start = [], 0
        for t in self.decode:
            tables.append(t.spread(theta[start : start + t.shape[1]]))
            start += t.shape[1]
        return tables

    def bent(self, theta: FloatArray, z: FloatArray) -> Callable[[slice], FloatArray]:
        """Return sigmoid(z + C theta_0 + z C theta_1) as a function of a slice of the rows, for theta (m, 2)."""
        offset = np.array([0, *accumulate(t.shape[0] for t in self.decode)][:-1], dtype=np.intp)
        tables, column = np.concatenate(self._spread(theta)), np.arange(len(self.codes))
        update = MirrorReads(np.array([0, -1]), column, offset, tables)
        kernels = kernels_for(len(z) * 2 * len(self.codes))

        def predict(part: slice) -> FloatArray:
            here = np.ascontiguousarray(z[part])
            against = np.empty(len(here))
            kernels.bend(here, here, code_rows(self.codes, part), update, against)
            return of_odds_against(against)

        return predict

    def cell_combination(self, theta: FloatArray) -> CellCombination:
        """Return look-ups of pairs (code, cell), with one table for each code column, if these are not too large."""
        n, (_, n_cells, d) = self.shape[0], theta.shape
        if n_cells * sum(t.shape[0] for t in self.decode) > max(n, CHUNK):
            return super().cell_combination(theta)
        tables = []
        for spread in self._spread(theta.reshape(len(theta), -1)):
            table = np.zeros((len(spread), n_cells + 1, d))  # the last cell is none
            table[:, :n_cells] = spread.reshape(-1, n_cells, d)
            tables.append(pad(table.reshape(-1, d)))
        add_look_up = kernels_for(n * d * len(tables)).add_look_up

        def look_up(part: slice, ids: IntArray) -> FloatArray:
            total = np.zeros((len(ids), padded(d)))
            for c, table in zip(self.codes, tables, strict=True):
                add_look_up(_pairs(c[part], ids, n_cells + 1, len(table)), table, total)
            return total[:, :d]

        return look_up

    def rows(self, part: slice | IntArray) -> Codes:
        """Return the same code columns on some rows; a column that occurs twice stays one."""
        taken = {key: self.codes[k][part] for key, k in self.firsts.items()}
        return Codes(tuple(taken[id(c)] for c in self.codes), self.decode)

    def dense(self) -> FloatArray:
        """Return C itself."""
        return np.concatenate([t.look_up(c) for c, t in zip(self.codes, self.decode, strict=True)], axis=1)

    def column(self, j: int) -> FloatArray:
        """Return one membership by look-up."""
        k, own = place_of(j, [t.shape[1] for t in self.decode])
        return np.asarray(_memberships(self.decode[k], own)[self.codes[k]])

    def sparse(self) -> sparse.csr_array:
        """Return C without its zeros: what the members of each row are, however many groups there are."""
        parts = [t.look_up_sparse(c) for c, t in zip(self.codes, self.decode, strict=True)]
        return sparse.csr_array(sparse.hstack(parts))

    def columns(self) -> Iterator[Codes]:
        """Yield every code column with its table."""
        yield from (Codes((codes,), (decode,)) for codes, decode in zip(self.codes, self.decode, strict=True))

    def members(self, order: IntArray) -> Find:
        """Return what finds members by the levels of each code column."""
        finds = [_found_by_level(c[order], t) for c, t in zip(self.codes, self.decode, strict=True)]
        return _among([t.shape[1] for t in self.decode], finds)

    def power(self, exponent: int) -> Codes:
        """Return the same codes with tables of powers: itself where all memberships are 0 and 1."""
        decode = tuple(t.power(exponent) for t in self.decode)
        return self if all(map(operator.is_, decode, self.decode)) else Codes(self.codes, decode)

    def gram(self, H: FloatArray) -> FloatArray:
        """Return C' diag(H_k) C: a histogram over pairs of codes for every two code columns, then both tables."""
        wide = pad(H)
        numbers = wide.size * len(self.codes) * (len(self.codes) + 1) // 2

        def block(j: int, k: int) -> FloatArray:
            every = _pair_gram(self.codes[j], self.decode[j], self.codes[k], self.decode[k], wide, numbers)
            return every[: H.shape[1]]

        return _symmetric([t.shape[1] for t in self.decode], H.shape[1], block)


def _memberships(decode: Decode, j: int) -> FloatArray:
    """Return the membership of every level in one group."""
    return decode.spread((np.arange(decode.shape[1]) == j).astype(np.float64)[:, None])[:, 0]


class CodeSums:
    """Histograms of code columns under construction; a column that occurs twice is counted once."""

    def __init__(self, design: Codes, q: int, is_exact: bool = False) -> None:
        self.design, self.q = design, q
        self.histograms = {k: np.zeros((design.decode[k].shape[0], padded(q))) for k in design.firsts.values()}
        choose = kernels_at_hand if is_exact else kernels_for  # exact sums are the same with either
        self.kernels = choose(design.shape[0] * q * len(self.histograms))

    def add(self, part: slice, R: FloatArray) -> None:
        """Add the rows of a slice to every histogram."""
        R = pad(R)
        for k, table in self.histograms.items():
            self.kernels.add_histogram(np.ascontiguousarray(self.design.codes[k][part]), R, table)

    def add_products(self, part: slice, A: FloatArray, B: FloatArray, far: float) -> None:
        """Add the products of two arrays, rounded (see `kernels.add_products`), to every histogram."""
        for k, table in self.histograms.items():
            self.kernels.add_products(np.ascontiguousarray(self.design.codes[k][part]), A, B, far, table)

    def tables(self) -> list[FloatArray]:
        """Return the histograms of all columns."""
        return list(self.histograms.values())

    def total(self) -> FloatArray:
        """Return the histograms, decoded."""
        firsts, pairs = self.design.firsts, zip(self.design.codes, self.design.decode, strict=True)
        return np.concatenate([t.gather(self.histograms[firsts[id(c)]][:, : self.q]) for c, t in pairs])


@dataclass(frozen=True, eq=False)
class Matrix(Design):
    """C itself, to a power: an array or a sparse matrix of memberships.

    Bytes and float32 are never float64 as a whole: a piece of the rows is converted when it is needed, and they are
    exact in it. 0/1 memberships are smaller and faster as bits (`Codes`).
    """

    matrix: AnyArray | sparse.csr_array
    exponent: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and subpopulations."""
        return int(self.matrix.shape[0]), int(self.matrix.shape[1])

    @property
    def is_small(self) -> bool:
        """Whether memberships are held in a small type, or not yet to their power."""
        return isinstance(self.matrix, np.ndarray) and (self.matrix.dtype != np.float64 or self.exponent > 1)

    def moments(self, R: FloatArray) -> FloatArray:
        """Return C'R."""
        if not self.is_small:
            return product(self.matrix.T, R)
        sums = self.sums(R.shape[1])
        sums.add(slice(None), R)
        return sums.total()

    def cell_moments(self, ids: IntArray, n_cells: int, R: FloatArray, grid: Grid | None = None) -> FloatArray:
        """Return the moments inside each cell: for every a, C' times R_a placed in the column of its row's cell.

        With more numbers a row than cells, a product for each cell. Small types are converted piece by piece.
        """
        n, q = R.shape
        if self.is_small:
            total = np.zeros((self.shape[1], n_cells, q))
            for part in pieces(*self.shape):
                total += Matrix(self.rows(part).dense()).cell_moments(ids[part], n_cells, R[part], grid)
            return total
        if grid is not None:
            each = [_rounded(self.column(j)[:, None], R, grid) for j in range(self.shape[1])]
            return np.stack([histogram(ids, terms, n_cells + 1)[:n_cells] for terms in each])
        if q > n_cells:
            return self._by_cell(ids, n_cells, R)
        placed = [sparse.csr_array((R[:, a], ids, np.arange(n + 1)), shape=(n, n_cells + 1)) for a in range(q)]
        return np.stack([_array(P.T @ self.matrix).T[:, :n_cells] for P in placed], axis=2)

    def _by_cell(self, ids: IntArray, n_cells: int, R: FloatArray) -> FloatArray:
        total = np.zeros((self.shape[1], n_cells, R.shape[1]))
        order = np.argsort(ids, kind="stable")
        starts = np.searchsorted(ids[order], np.arange(n_cells + 1))
        for s in np.flatnonzero(np.diff(starts)):
            rows = order[starts[s] : starts[s + 1]]
            total[:, s] = product(self.matrix[rows].T, R[rows])
        return total

    def sums(self, q: int, grid: Grid | None = None) -> MatrixSums:
        """Return zero."""
        return MatrixSums(self, np.zeros((self.shape[1], q)), grid)

    def combination(self, theta: FloatArray) -> Combination:
        """Return the products of pieces of C."""

        def combined(rows: slice) -> FloatArray:
            here = self.rows(rows)
            if not self.is_small:
                return by_row(here.matrix, theta)
            return np.concatenate([by_row(here.rows(part).dense(), theta) for part in pieces(*here.shape)])

        return combined

    def rows(self, part: slice | IntArray) -> Matrix:
        """Return the same memberships on some rows, which lie one after the other.

        BLAS sums those of a column-major matrix in another order.
        """
        C = self.matrix[part]
        return replace(self, matrix=np.ascontiguousarray(C) if isinstance(C, np.ndarray) else C)

    def dense(self) -> FloatArray:
        """Return C as an array of float64."""
        C = np.asarray(_array(self.matrix), dtype=np.float64, order="C")
        return C if self.exponent == 1 else np.power(C, self.exponent)

    def column(self, j: int) -> FloatArray:
        """Return one membership."""
        return replace(self, matrix=self.matrix[:, [j]]).dense().ravel()

    def power(self, exponent: int) -> Matrix:
        """Return the powers, stored the same way: those of small types are made of the pieces."""
        C = self.matrix
        if self.is_small:
            return replace(self, exponent=exponent * self.exponent)
        return Matrix(C**exponent if isinstance(C, np.ndarray) else C.power(exponent))

    def gram(self, H: FloatArray) -> FloatArray:
        """Return C' diag(H_k) C."""
        if isinstance(self.matrix, np.ndarray):
            return weighted_gram(self, self, H)
        return np.stack([_array(self.matrix.T @ self.matrix.multiply(h[:, None])) for h in H.T])


@dataclass(frozen=True, eq=False)
class MatrixSums:
    """C'R under construction for a matrix of memberships."""

    design: Matrix
    sum: FloatArray
    grid: Grid | None = None

    def add(self, part: slice, R: FloatArray) -> None:
        """Add the product of a slice; small types are converted piece by piece."""
        here, R = self.design.rows(part), R[:, : self.sum.shape[1]]
        for some in pieces(*here.shape) if here.is_small else (slice(None),):
            C = here.rows(some).dense() if here.is_small else here.matrix
            if self.grid is None:
                self.sum[...] += product(C.T, R[some])
            else:
                add_rounded(C, R[some], self.grid, self.sum)

    def tables(self) -> list[FloatArray]:
        """Return the sum."""
        return [self.sum]

    def total(self) -> FloatArray:
        """Return the sum."""
        return self.sum


def add_rounded(C: FloatArray | sparse.csr_array, R: FloatArray, grid: Grid, total: FloatArray) -> None:
    """Add C'R to the total, every product C_ij R_ia rounded to the grid of its column a."""
    if not isinstance(C, np.ndarray):
        rows = np.repeat(np.arange(C.shape[0]), np.diff(C.indptr))
        total += histogram(C.indices, _rounded(C.data[:, None], R[rows], grid), C.shape[1])
        return
    for part in pieces(*C.shape):
        for a, unit in enumerate(np.broadcast_to(grid.unit, R.shape[1])):
            total[:, a] += _rounded(C[part], R[part, a, None], Grid(unit)).sum(axis=0)


def _rounded(C: FloatArray, R: FloatArray, grid: Grid) -> FloatArray:
    """Return the products of two arrays, rounded."""
    return grid.round(np.multiply(C, R))


@dataclass(frozen=True, eq=False)
class Stacked(Design):
    """C = [C_1, C_2, ...] side by side."""

    parts: tuple[Design, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and subpopulations."""
        return self.parts[0].shape[0], sum(part.shape[1] for part in self.parts)

    def moments(self, R: FloatArray) -> FloatArray:
        """Return C'R, part by part."""
        return np.concatenate([part.moments(R) for part in self.parts])

    def sums(self, q: int, grid: Grid | None = None) -> StackedSums:
        """Return the sums of all parts."""
        return StackedSums(tuple(part.sums(q, grid) for part in self.joined()))

    def cell_moments(self, ids: IntArray, n_cells: int, R: FloatArray, grid: Grid | None = None) -> FloatArray:
        """Return the moments inside each cell, part by part."""
        return np.concatenate([part.cell_moments(ids, n_cells, R, grid) for part in self.parts])

    def combination(self, theta: FloatArray) -> Combination:
        """Return the sum of the parts' contributions."""
        each = [design.combination(t) for design, t in self._split(theta)]
        return lambda part: reduce(operator.iadd, (one(part) for one in each))

    def cell_combination(self, theta: FloatArray) -> CellCombination:
        """Return the sum of the parts' contributions."""
        each = [design.cell_combination(t) for design, t in self._split(theta)]
        return lambda part, ids: reduce(operator.iadd, (one(part, ids) for one in each))

    def _split(self, theta: FloatArray) -> Iterator[tuple[Design, FloatArray]]:
        """Return the joined parts with their coefficients."""
        parts = self.joined()
        stops = np.cumsum([part.shape[1] for part in parts])[:-1]
        return zip(parts, np.split(theta, stops), strict=True)

    def rows(self, part: slice | IntArray) -> Stacked:
        """Return the same parts on some rows."""
        return Stacked(tuple(design.rows(part) for design in self.parts))

    def dense(self) -> FloatArray:
        """Return C itself."""
        return np.concatenate([part.dense() for part in self.parts], axis=1)

    def column(self, j: int) -> FloatArray:
        """Return one membership of the part that holds it."""
        k, own = place_of(j, [part.shape[1] for part in self.parts])
        return self.parts[k].column(own)

    def power(self, exponent: int) -> Stacked:
        """Return the powers of all parts."""
        return Stacked(tuple(part.power(exponent) for part in self.parts))

    def gram(self, H: FloatArray) -> FloatArray:
        """Return C' diag(H_k) C; code columns are joined, so that pairs of parts are pairs of columns."""
        parts = self.joined()

        def block(j: int, k: int) -> FloatArray:
            return parts[j].gram(H) if j == k else weighted_gram(parts[j], parts[k], H)

        return _symmetric([part.shape[1] for part in parts], H.shape[1], block)

    def columns(self) -> Iterator[Design]:
        """Yield the columns of all parts."""
        for part in self.parts:
            yield from part.columns()

    def members(self, order: IntArray) -> Find:
        """Return what finds members in the part that holds them."""
        return _among([part.shape[1] for part in self.parts], [part.members(order) for part in self.parts])

    def joined(self) -> tuple[Design, ...]:
        """Return the parts, neighbours that are code columns or dense matrices joined into one."""
        parts: list[Design] = []
        for kind, run in groupby(self.parts, key=_kind):
            alike: list[Any] = list(run)
            if kind == "codes" and len(alike) > 1:
                codes = tuple(column for part in alike for column in part.codes)
                parts.append(Codes(codes, tuple(table for part in alike for table in part.decode)))
            elif kind == "dense" and len(alike) > 1:
                parts.append(Matrix(np.concatenate([part.matrix for part in alike], axis=1)))
            else:
                parts += alike
        return tuple(parts)


def _kind(design: Design) -> str:
    """Return "codes" or "dense" for designs whose neighbours of the same kind can be joined."""
    if isinstance(design, Codes):
        return "codes"
    is_dense = isinstance(design, Matrix) and isinstance(design.matrix, np.ndarray) and not design.is_small
    return "dense" if is_dense else ""


@dataclass(frozen=True, eq=False)
class StackedSums:
    """C'R under construction, part by part."""

    parts: tuple[Accumulator, ...]

    def add(self, part: slice, R: FloatArray) -> None:
        """Add the rows of a slice to every part."""
        for sums in self.parts:
            sums.add(part, R)

    def tables(self) -> list[FloatArray]:
        """Return the tables of all parts."""
        return [table for sums in self.parts for table in sums.tables()]

    def total(self) -> FloatArray:
        """Return the parts, one below the other."""
        return np.concatenate([sums.total() for sums in self.parts])


#: C'R under construction, where R comes in pieces.
Accumulator: TypeAlias = CodeSums | MatrixSums | StackedSums


def stack(parts: Sequence[Design]) -> Design:
    """Put designs side by side; a single one stays itself."""
    return parts[0] if len(parts) == 1 else Stacked(tuple(parts))


def place_of(j: int, sizes: Sequence[int]) -> tuple[int, int]:
    """Return which of several, each of some subpopulations, holds subpopulation j, and its number there.

    >>> place_of(3, [2, 0, 4])
    (2, 1)
    """
    stops = [*accumulate(sizes)]
    k = bisect_right(stops, j)
    return k, j - stops[k] + sizes[k]


def _among(sizes: Sequence[int], finds: Sequence[Find]) -> Find:
    """Return what finds members of designs side by side, given the number of subpopulations of each."""

    def find(j: int) -> tuple[IntArray, FloatArray]:
        k, own = place_of(j, sizes)
        return finds[k](own)

    return find


def _found_by_level(codes: IntArray, decode: Decode) -> Find:
    """Return what finds the members of one code column's groups: the rows of each level stand together."""
    by_level = np.argsort(codes, kind="stable")
    stops = np.cumsum(np.bincount(codes, minlength=decode.shape[0]))

    def find(j: int) -> tuple[IntArray, FloatArray]:
        table = _memberships(decode, j)
        inside = np.flatnonzero(table)
        if len(inside) == 1:
            places = by_level[stops[inside[0] - 1] if inside[0] else 0 : stops[inside[0]]]
        elif 1 < len(inside) <= FEW_LEVELS:
            places = np.sort(np.concatenate([by_level[stops[k - 1] if k else 0 : stops[k]] for k in inside]))
        else:
            places = np.flatnonzero(table[codes])
        return places, table[codes[places]]

    return find


def weighted_gram(C: Design, D: Design, H: FloatArray) -> FloatArray:
    """Return C' diag(H_k) D for every column of H, shape (q, m, m'): the definition, by products of dense pieces.

    >>> weighted_gram(Matrix(np.array([[1.0], [0.5]])), Matrix(np.array([[1.0], [1.0]])), np.array([[2.0], [4.0]]))
    array([[[4.]]])
    """
    total = np.zeros((H.shape[1], C.shape[1], D.shape[1]))
    for part in pieces(len(H), C.shape[1] + D.shape[1]):
        here, there = C.rows(part).dense(), D.rows(part).dense()
        for k in range(H.shape[1]):
            total[k] += product((here * H[part, k, None]).T, there)
    return total


def _symmetric(sizes: Sequence[int], q: int, block: Callable[[int, int], FloatArray]) -> FloatArray:
    """Return q symmetric matrices from their blocks (j, k), j <= k, of the given sizes."""
    stops = np.concatenate([[0], np.cumsum(sizes)])
    total = np.empty((q, stops[-1], stops[-1]))
    for j, k in combinations_with_replacement(range(len(sizes)), 2):
        here, there = slice(stops[j], stops[j + 1]), slice(stops[k], stops[k + 1])
        total[:, here, there] = block(j, k)
        total[:, there, here] = total[:, here, there].transpose(0, 2, 1)
    return total


def _pair_gram(a: IntArray, A: Decode, b: IntArray, B: Decode, H: FloatArray, numbers: int) -> FloatArray:
    """Return sum_i H_ik A[a_i, :]' B[b_i, :] from sums of H over codes of one column, of both, or of A and groups."""
    if a is b:
        codes, sums = np.arange(A.shape[0]), histogram(a, H, A.shape[0])
        if H.shape[1] * A.shape[0] * B.shape[1] > CACHE:
            return weighted_gram(Codes((codes,), (A,)), Codes((codes,), (B,)), sums)
        return _gathered(A, sums.T[:, :, None] * B.look_up(codes))
    if A.shape[0] * B.shape[0] <= CACHE:
        pairs = pair_histogram(a, b, A.shape[0], B.shape[0], H, numbers)
        by_a = A.gather(pairs.reshape(A.shape[0], -1)).reshape(A.shape[1], B.shape[0], -1)
        return _gathered(B, by_a.transpose(2, 1, 0)).transpose(0, 2, 1)
    if isinstance(B, DecodeTable) and (
        A.shape[0] * B.shape[1] <= A.shape[1] * B.shape[0] or not isinstance(A, DecodeTable)
    ):
        return _gathered(A, _group_sums(a, A.shape[0], b, B, H))
    if isinstance(A, DecodeTable):
        return _gathered(B, _group_sums(b, B.shape[0], a, A, H)).transpose(0, 2, 1)
    return weighted_gram(Codes((a,), (A,)), Codes((b,), (B,)), H)


def _gathered(A: Decode, sums: FloatArray) -> FloatArray:
    """Return the sums over codes (q, levels, g) as sums over groups (q, m, g)."""
    q, levels, groups = sums.shape
    by_a = A.gather(sums.transpose(1, 0, 2).reshape(levels, -1))
    return by_a.reshape(A.shape[1], q, groups).transpose(1, 0, 2)


def _group_sums(a: IntArray, levels: int, b: IntArray, B: DecodeTable, H: FloatArray) -> FloatArray:
    """Return sum_i [a_i = v] H_ik B[b_i, g] as (q, levels, m)."""
    (n, q), m = H.shape, B.shape[1]
    indptr, groups, shares = B.parts
    total = np.zeros((q, levels * m))
    for part in pieces(n, CHUNK // CACHE):
        starts, counts = indptr[b[part]], np.diff(indptr)[b[part]]
        row = np.repeat(np.arange(len(counts)), counts)
        entry = np.arange(len(row)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        pair = a[part][row].astype(np.intp) * m + groups[entry]
        for h, sums in zip(H[part].T, total, strict=True):
            np.add.at(sums, pair, h[row] * shares[entry])
    return total.reshape(q, levels, m)


def pieces(n: int, numbers_per_row: int) -> Iterator[slice]:
    """Cut n rows into slices of at most CHUNK numbers each, and of no more rows than exact sums take at once.

    >>> list(pieces(5, CHUNK // 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    size = max(1, min(BLOCK, CHUNK // max(1, numbers_per_row)))
    return (slice(start, start + size) for start in range(0, n, size))


def sample_rows(n: int, seed: int | Sequence[int], size: int) -> IntArray | None:
    """Return a sorted random sample of `size` rows, one of every run; None: there are no more.

    >>> sample_rows(6, 0, 3).tolist(), sample_rows(6, 0, 6)
    ([1, 2, 4], None)
    """
    if n <= size:
        return None
    edges = np.linspace(0, n, size + 1).astype(np.intp)
    return edges[:-1] + (np.random.default_rng(seed).random(size) * np.diff(edges)).astype(np.intp)


def rows_in_cache(n: int, q: int) -> Iterator[slice]:
    """Cut n rows into slices whose q numbers a row stay in cache; many numbers a row are worked on in larger pieces.

    >>> [part.stop for part in rows_in_cache(3 * CACHE // 4, 2)] == [CACHE // 2, CACHE]
    True
    """
    return pieces(n, q) if q > FEW else pieces(n, max(q, 1) * (CHUNK // CACHE))


def histogram(codes: IntArray, R: FloatArray, levels: int) -> FloatArray:
    """Return sum_i [codes_i = v] R_i for every level v, shape (levels, q)."""
    return _count(lambda part: np.ascontiguousarray(codes[part]), R, levels, R.size)


def pair_histogram(a: IntArray, b: IntArray, n_a: int, n_b: int, R: FloatArray, numbers: int) -> FloatArray:
    """Return sum_i [a_i = v, b_i = w] R_i for every pair of levels, shape (n_a, n_b, q).

    `numbers`: how many are added by a caller who asks several times, which decides on compiled kernels.
    """
    sums = _count(lambda part: _pairs(a[part], b[part], n_b, n_a * n_b), R, n_a * n_b, numbers)
    return sums.reshape(n_a, n_b, -1)


def _count(codes: Callable[[slice], IntArray], R: FloatArray, levels: int, numbers: int) -> FloatArray:
    """Return the sums of R over the rows of each code, from the codes of a slice of the rows."""
    (n, q), add_histogram = R.shape, kernels_for(numbers).add_histogram
    table = np.zeros((levels, padded(q)))
    for part in rows_in_cache(n, q):
        add_histogram(codes(part), pad(R[part]), table)
    return table[:, :q]


def _pairs(a: IntArray, b: IntArray, n_b: int, n_pairs: int) -> IntArray:
    """Return the number a * n_b + b of each pair of codes, below n_pairs, in the smallest type that holds them."""
    pair = a.astype(np.min_scalar_type(n_pairs))
    pair *= n_b
    np.add(pair, b, out=pair, casting="unsafe")
    return pair


def _array(matrix: AnyArray | sparse.csr_array) -> AnyArray:
    """Return an array, whatever the storage."""
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())
