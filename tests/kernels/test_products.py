"""Products: what NumPy's operator gives, to the same bits with any number of BLAS threads."""

import ast
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import threadpool_limits

import lowcal
from lowcal.kernels.products import PANEL, SIDE, UNSPLIT, Cholesky, by_row, dot, gram, product

#: Sums over many rows, wide results, tall ones, sides just above a block, vectors as matrices.
SHAPES = [
    (30, 20_000, 30),
    (256, 1024, 300),
    (20_000, 30, 10),
    (2, 100_000, 2),
    (SIDE + 1, SIDE + 1, SIDE + 1),
    (1000, 2, 1000),
    (1, 20_000, 7),
    (7, 20_000, 1),
    (3, 4, 5),
]


def matrices(m: int, k: int, n: int, order: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return np.asarray(rng.standard_normal((m, k)), order=order), rng.standard_normal((k, n))


def with_threads(compute: Callable[[], np.ndarray]) -> list[bytes]:
    """Return the bytes of a result with several numbers of BLAS threads."""
    found = []
    for threads in (1, 2, 3, 4):
        with threadpool_limits(threads, user_api="blas"):
            found.append(compute().tobytes())
    return found


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_the_same_with_any_number_of_threads(shape, order):
    A, B = matrices(*shape, order)
    for left, right in ((A, B), (A, B[:, 0]), (A[0], B), (B.T, A.T)):
        np.testing.assert_allclose(product(left, right), left @ right, rtol=0, atol=1e-10)
        assert len(set(with_threads(lambda left=left, right=right: product(left, right)))) == 1
    np.testing.assert_allclose(dot(A[0], B[:, 0]), A[0] @ B[:, 0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("k", [1, 2, 3, 7, 8, 33, 500])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_a_row_of_a_product_depends_on_no_other_row(k, n, order):
    A, B = matrices(300, k, n, order)
    whole = by_row(A, B)
    np.testing.assert_allclose(whole, A @ B, rtol=0, atol=1e-12)
    for cut in ([1], [1, 2, 3, 7, 100], list(range(1, 300))):
        pieces = [by_row(piece, B) for piece in np.split(A, cut)]
        assert np.concatenate(pieces).tobytes() == whole.tobytes()
    np.testing.assert_array_equal(by_row(sparse.csr_array(A), B)[5:6], by_row(sparse.csr_array(A[5:6]), B))


@pytest.mark.parametrize("m", [0, 1, 2, 30, 2 * SIDE, 2 * SIDE + 1, 300])
def test_a_gram_matrix_is_symmetric_and_the_same_with_any_number_of_threads(m):
    A = np.random.default_rng(0).standard_normal((2000, m))
    found = gram(A)
    np.testing.assert_allclose(found, A.T @ A, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(found, found.T)
    assert len(set(with_threads(lambda: gram(A)))) == 1


@pytest.mark.parametrize("n", [0, 1, 2, PANEL, PANEL + 1, 300])
def test_a_cholesky_factor_solves_and_is_the_same_with_any_number_of_threads(n):
    A = np.random.default_rng(0).standard_normal((n + 10, n))
    G = gram(A) + 0.1 * np.eye(n)
    for g in (np.ones(n), np.arange(2.0 * n).reshape(n, 2)):
        x = Cholesky.of(G).solve(g)
        np.testing.assert_allclose(G @ x, g, rtol=0, atol=1e-6 * (1.0 + np.abs(g).max(initial=0.0)))
        assert len(set(with_threads(lambda g=g: Cholesky.of(G).solve(g)))) == 1
    np.testing.assert_allclose(np.tril(Cholesky.of(G).lower), np.linalg.cholesky(G), rtol=0, atol=1e-9)


def test_a_matrix_that_has_no_factor_is_refused():
    with pytest.raises(np.linalg.LinAlgError):
        Cholesky.of(np.array([[1.0, 2.0], [2.0, 1.0]]))
    late = np.eye(3 * PANEL)
    late[-1, -1] = 0.0
    with pytest.raises(np.linalg.LinAlgError):
        Cholesky.of(late)
    with pytest.raises(ValueError, match="infs or NaNs"):
        Cholesky.of(np.full((2, 2), np.nan))


def test_stacks_and_sparse_matrices():
    rng = np.random.default_rng(0)
    for size in (2, 100):
        A, B = rng.standard_normal((3, size, size)), rng.standard_normal((3, size, size))
        np.testing.assert_allclose(product(A, B), A @ B, rtol=0, atol=1e-10)
    table = sparse.random_array((50, 40), density=0.2, rng=0, format="csr")
    np.testing.assert_array_equal(product(table.T, np.ones((50, 2))), table.toarray().T @ np.ones((50, 2)))


def test_no_block_is_large_enough_to_be_split():
    sizes = []

    class Seen(np.ndarray):
        def __matmul__(self, other):
            sizes.append(self.shape[0] * self.shape[1] * other.shape[1])
            return np.asarray(self) @ np.asarray(other)

    for shape in SHAPES[:6]:
        A, B = matrices(*shape, "C")
        np.testing.assert_allclose(product(A.view(Seen), B), A @ B, rtol=0, atol=1e-10)
    assert max(sizes) <= UNSPLIT
    assert min(sizes) > UNSPLIT // 16  # nor so small that the loop costs more than the products


def test_all_other_modules_leave_products_of_numbers_to_this_one():
    """A product that BLAS may split gives other bits with other numbers of threads: Same seed, same bytes."""
    root = Path(lowcal.__file__).parent
    # data with a known truth and checks for users' classes have no bytes to keep
    free = {"datasets", "testing", "products.py"}
    found = [
        f"{path.relative_to(root)}: {ast.unparse(node)}"
        for path in sorted(root.rglob("*.py"))
        if not free & set(path.relative_to(root).parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
        or (isinstance(node, ast.Attribute) and node.attr in ("dot", "matmul", "tensordot", "inner", "vdot"))
        or (isinstance(node, ast.ImportFrom) and node.module == "scipy.linalg")
    ]
    assert sorted(found) == [
        "kernels/reference.py: P.T @ self.matrix",  # sparse
        "kernels/reference.py: self.matrix.T @ self.matrix.multiply(h[:, None])",  # sparse
        "notions/weights.py: index @ radix",  # whole numbers
        "rows/base.py: rows @ np.random.default_rng(0).random(rows.shape[1])",  # sparse
    ]
