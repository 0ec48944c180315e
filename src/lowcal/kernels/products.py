"""Products and Cholesky factors that are the same to the last bit with any number of BLAS threads.

BLAS splits a large product among its threads, and the order of the sums depends on the split. How many threads there
are is a setting of the whole process, which other threads may change or restore at any time, so it is left alone. Here
products are cut into blocks that BLAS never splits, in a way that depends on their shapes alone; where one side is a
vector, NumPy's own loops take its place. No thread is woken, which would cost a small product more than it saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from lowcal.kernels.simplex import FloatArray

#: OpenBLAS splits a product of matrices from more than this many multiplications on ...
UNSPLIT = 1 << 18
#: ... and one with a vector from about 9,000 on.
UNSPLIT_VECTOR = 1 << 13
#: Blocks are at least this long on every side that is, as shorter ones are slow: a cube of them is not split.
SIDE = round(UNSPLIT ** (1 / 3))
#: LAPACK factors and inverts matrices of this size on one thread.
PANEL = 32


def dot(a: FloatArray, b: FloatArray) -> float:
    """Return sum_i a_i b_i.

    >>> dot(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    11.0
    """
    return float(a @ b if a.size <= UNSPLIT_VECTOR else np.einsum("k,k->", a, b))


def product(A: Any, B: Any) -> FloatArray:
    """Return A @ B for vectors and matrices, dense or sparse; more axes than two are stacks of equal length.

    >>> A = np.arange(6.0).reshape(2, 3)
    >>> product(A, A.T), product(A, np.ones(3)), product(np.ones(2), A)
    (array([[ 5., 14.],
           [14., 50.]]), array([ 3., 12.]), array([3., 5., 7.]))
    """
    if not isinstance(A, np.ndarray) or not isinstance(B, np.ndarray) or _multiplications(A, B) <= UNSPLIT_VECTOR:
        return np.asarray(A @ B)
    if A.ndim > 2:
        if min(A.shape[-2], B.shape[-1]) > 1 and _multiplications(A, B) <= UNSPLIT:
            return np.asarray(A @ B)
        return np.stack([product(a, b) for a, b in zip(A, B, strict=True)])
    if A.ndim == 1 or B.ndim == 1:
        left, right = "ik"[-A.ndim :], "kj"[: B.ndim]
        return np.asarray(np.einsum(f"{left},{right}->{(left + right).replace('k', '')}", A, B))
    if A.shape[0] == 1:
        return product(A[0], B)[None]
    return product(A, B[:, 0])[:, None] if B.shape[1] == 1 else _in_blocks(A, B)


def by_row(A: Any, B: FloatArray) -> FloatArray:
    """Return A @ B for matrices, every row on its own: the same bits whatever rows of A come with it.

    >>> by_row(np.arange(6.0).reshape(2, 3), np.eye(3)[:, :2])
    array([[0., 1.],
           [3., 4.]])
    """
    if sparse.issparse(A):
        return np.asarray(A @ B)
    A, total = np.ascontiguousarray(A), np.empty((len(A), B.shape[1]))
    for column, theta in enumerate(np.ascontiguousarray(B.T)):
        np.einsum("ij,j->i", A, theta, out=total[:, column])
    return total


def _multiplications(A: FloatArray, B: FloatArray) -> int:
    """Return how many multiplications the product takes, of one matrix of a stack."""
    size = A.size if A.ndim < 3 else A.shape[-2] * A.shape[-1]
    return size * B.shape[-1] if B.ndim > 1 else size


def _in_blocks(A: FloatArray, B: FloatArray) -> FloatArray:
    m, (k, n) = len(A), B.shape
    depth = min(k, max(SIDE, UNSPLIT // (min(m, SIDE) * min(n, SIDE))))
    height = min(m, max(SIDE, UNSPLIT // (depth * min(n, SIDE))))
    width = min(n, UNSPLIT // (depth * height))
    total, (first, *rest) = np.empty((m, n)), _cuts(k, depth)
    for columns in _cuts(n, width):
        right = np.array(B[:, columns], order="C")  # a copy: NumPy has another routine for A'A, with other limits
        for rows in _cuts(m, height):
            block = np.matmul(A[rows, first], right[first], out=total[rows, columns])
            for inner in rest:
                block += A[rows, inner] @ right[inner]
    return total


def _cuts(n: int, most: int) -> Iterator[slice]:
    """Cut 0..n into equal slices, up to one, of at most this length: none has length 1, which would be a vector."""
    parts = -(-n // most)
    return (slice(n * j // parts, n * (j + 1) // parts) for j in range(parts))


def gram(A: FloatArray) -> FloatArray:
    """Return A'A, of which half is computed; BLAS may round (i, j) and (j, i) otherwise, so one is a copy.

    >>> gram(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[10., 14.],
           [14., 20.]])
    """
    m = A.shape[1]
    total = np.empty((m, m))
    for columns in _cuts(m, 2 * SIDE) if m else ():
        above = slice(0, columns.stop)
        total[above, columns] = product(A[:, above].T, A[:, columns])
        total[columns, above] = total[above, columns].T
        square = total[columns, columns]
        np.copyto(square, square.T.copy(), where=np.tri(len(square), k=-1, dtype=bool))
    return total


@dataclass(frozen=True, eq=False)
class Cholesky:
    """The factor L of G = L L', and the inverses of the blocks on its diagonal, with which solutions are products."""

    lower: FloatArray
    inverses: tuple[FloatArray, ...]

    @classmethod
    def of(cls, G: FloatArray) -> Cholesky:
        """Factor a symmetric matrix; LinAlgError if it is not positive definite.

        >>> Cholesky.of(np.array([[4.0, 2.0], [2.0, 2.0]])).solve(np.array([2.0, 0.0]))
        array([ 1., -1.])
        """
        L, n = np.zeros_like(np.asarray_chkfinite(G)), len(G)
        inverses: list[FloatArray] = []
        for here in _cuts(n, PANEL) if n else ():
            before, after, size = slice(0, here.start), slice(here.stop, None), here.stop - here.start
            rest = G[here.start :, here]
            if here.start:
                rest = rest - product(L[here.start :, before], L[here, before].T)
            L[here, here] = np.linalg.cholesky(rest[:size])
            inverses.append(lapack.dtrtri(L[here, here], lower=1)[0])
            if here.stop < n:
                L[after, here] = product(rest[size:], inverses[-1].T)
        return cls(L, tuple(inverses))

    def solve(self, g: FloatArray) -> FloatArray:
        """Return G^-1 g for a vector or columns g, shape (n, q): forward through the blocks and back."""
        if g.ndim == 1:
            return self.solve(g[:, None])[:, 0]
        L, x, n = self.lower, np.array(g, dtype=np.float64), len(self.lower)
        panels = list(zip(_cuts(n, PANEL), self.inverses, strict=True)) if n else []
        for here, inverse in panels:
            if here.start:
                x[here] -= product(L[here, : here.start], x[: here.start])
            x[here] = product(inverse, x[here])
        for here, inverse in reversed(panels):
            if here.stop < n:
                x[here] -= product(L[here.stop :, here].T, x[here.stop :])
            x[here] = product(inverse.T, x[here])
        return x
