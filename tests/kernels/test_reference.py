"""The reference engine: every stored form of C does exactly what the explicit matrix does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lowcal.kernels import reference
from lowcal.kernels.reference import Codes, Cumulative, DecodeTable, Matrix, Stacked, histogram, pieces, stack

FORMS = ["codes", "cumulative", "dense", "sparse", "stacked"]


def make(form, rng, n):
    """Return a design of this form and the matrix that it stands for."""
    if form == "codes":
        sizes = [(int(rng.integers(1, 5)), int(rng.integers(1, 4))) for _ in range(int(rng.integers(1, 4)))]
        tables = [rng.integers(0, 2, size) * rng.normal(size=size) for size in sizes]
        codes = [rng.integers(0, size[0], n).astype(rng.choice([np.uint8, np.uint16, np.int64])) for size in sizes]
        matrix = np.concatenate([t[c] for t, c in zip(tables, codes, strict=True)], axis=1)
        return Codes(tuple(codes), tuple(DecodeTable(sparse.csr_array(t)) for t in tables)), matrix
    if form == "cumulative":
        levels = int(rng.integers(3, 7))
        code = rng.integers(0, levels, n).astype(np.uint8)
        below = [(code >= 1) & (code <= t) for t in range(1, levels - 1)]
        above = [code > t for t in range(1, levels - 1)]
        return Codes((code,), (Cumulative.every(levels),)), np.column_stack(below + above).astype(float)
    matrix = rng.random((n, int(rng.integers(1, 5)))) * rng.integers(0, 2, (n, 1))
    if form == "dense":
        return Matrix(matrix), matrix
    if form == "sparse":
        return Matrix(sparse.csr_array(matrix)), matrix
    parts = [make(part, rng, n) for part in ("codes", "dense", "sparse", "cumulative")]
    return Stacked(tuple(d for d, _ in parts)), np.concatenate([m for _, m in parts], axis=1)


designs = st.tuples(st.sampled_from(FORMS), st.integers(0, 10**6), st.integers(1, 12))


@settings(max_examples=150, deadline=None)
@given(designs, st.integers(1, 6))
def test_products_are_those_of_the_matrix(design, q):
    form, seed, n = design
    rng = np.random.default_rng(seed)
    C, matrix = make(form, rng, n)
    assert C.shape == matrix.shape
    R, theta = rng.normal(size=(n, q)), rng.normal(size=(matrix.shape[1], q))
    np.testing.assert_allclose(C.moments(R), matrix.T @ R, atol=1e-12)
    np.testing.assert_allclose(C.combination(theta)(slice(None)), matrix @ theta, atol=1e-12)
    np.testing.assert_array_equal(C.dense(), matrix)
    for j in range(matrix.shape[1]):
        np.testing.assert_array_equal(C.column(j), matrix[:, j])


@settings(max_examples=100, deadline=None)
@given(designs, st.integers(1, 6), st.integers(1, 4))
def test_cell_moments_are_moments_of_the_rows_in_the_cell(design, q, n_cells):
    form, seed, n = design
    rng = np.random.default_rng(seed)
    C, matrix = make(form, rng, n)
    R, ids = rng.normal(size=(n, q)), rng.integers(0, n_cells + 1, n)  # n_cells: in no cell
    got = C.cell_moments(ids, n_cells, R)
    assert got.shape == (matrix.shape[1], n_cells, q)
    for s in range(n_cells):
        np.testing.assert_allclose(got[:, s], matrix.T @ (R * (ids == s)[:, None]), atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(designs, st.integers(1, 4), st.sampled_from([1, 1 << 16]))
def test_gram_is_that_of_the_matrix(design, q, pairs):
    form, seed, n = design
    rng = np.random.default_rng(seed)
    C, matrix = make(form, rng, n)
    H = rng.normal(size=(n, q))
    before = reference.CACHE
    reference.CACHE = pairs
    try:
        got = C.gram(H)
    finally:
        reference.CACHE = before
    assert got.shape == (q, matrix.shape[1], matrix.shape[1])
    for k in range(q):
        np.testing.assert_allclose(got[k], matrix.T @ np.diag(H[:, k]) @ matrix, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(designs)
def test_some_rows_are_those_of_the_matrix(design):
    form, seed, n = design
    rng = np.random.default_rng(seed)
    C, matrix = make(form, rng, n)
    for part in (slice(1, None), rng.integers(0, n, 5)):
        np.testing.assert_array_equal(C.rows(part).dense(), matrix[part])
        assert C.rows(part).shape == matrix[part].shape


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 8))
def test_tables_give_their_columns(seed, levels):
    rng = np.random.default_rng(seed)
    cumulative = Cumulative.every(levels)
    code = np.arange(levels)[:, None]
    cut = np.arange(1, levels - 1)
    explicit = np.concatenate([(code >= 1) & (code <= cut), code > cut], axis=1).astype(float)
    table = DecodeTable(sparse.csr_array(explicit))
    groups = rng.integers(0, explicit.shape[1], 4)
    values, theta = rng.normal(size=(levels, 2)), rng.normal(size=(explicit.shape[1], 2))
    for decode in (cumulative, table):
        assert decode.shape == explicit.shape
        np.testing.assert_array_equal(decode.take(groups).look_up(np.arange(levels)), explicit[:, groups])
        np.testing.assert_allclose(decode.gather(values), explicit.T @ values, atol=1e-12)
        np.testing.assert_allclose(decode.spread(theta), explicit @ theta, atol=1e-12)


@pytest.mark.parametrize("form", ["codes", "stacked"])
def test_a_column_that_is_not_there(form):
    C, matrix = make(form, np.random.default_rng(0), 5)
    with pytest.raises(IndexError):
        C.column(matrix.shape[1])


def test_stack_of_one_is_itself():
    one = Matrix(np.ones((2, 1)))
    assert stack([one]) is one
    assert stack([one, one]).shape == (2, 2)


@pytest.mark.parametrize("q", [1, 4, 5, 9])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int64])
def test_histogram(q, kind):
    rng = np.random.default_rng(q)
    codes, R = rng.integers(0, 7, 50).astype(kind), rng.normal(size=(50, q))
    explicit = np.stack([R[codes == v].sum(axis=0) for v in range(9)])  # two levels are empty
    got = histogram(codes, R, 9)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, explicit, atol=1e-12)


@given(st.integers(0, 50), st.integers(0, 40))
def test_pieces_cover_every_row_once(n, numbers):
    before = reference.CHUNK
    reference.CHUNK = 16
    try:
        parts = list(pieces(n, numbers))
    finally:
        reference.CHUNK = before
    rows = np.arange(n)
    np.testing.assert_array_equal(np.concatenate([rows[part] for part in parts] or [rows]), rows)
    assert all(len(rows[part]) <= max(1, 16 // max(1, numbers)) for part in parts)


@settings(max_examples=150, deadline=None)
@given(designs, st.sampled_from([0, 1, 32]))
def test_members_are_found_in_any_order(design, few):
    """Level by level or row by row."""
    form, seed, n = design
    rng = np.random.default_rng(seed)
    C, matrix = make(form, rng, n)
    order = rng.permutation(n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "FEW_LEVELS", few)
        find = C.members(order)
        for j in range(matrix.shape[1]):
            places, c = find(j)
            assert places.tolist() == np.flatnonzero(matrix[order, j]).tolist()
            np.testing.assert_array_equal(c, matrix[order[places], j])


def test_wide_products_with_small_tables_skip_zeros_and_agree(monkeypatch):
    rng = np.random.default_rng(0)
    table = DecodeTable(sparse.csr_array(rng.integers(0, 2, (6, 4)) * rng.random((6, 4))))
    histogram, theta = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    narrow = table.gather(histogram), table.spread(theta)
    monkeypatch.setattr(reference, "UNSPLIT_VECTOR", 2 * 6 * 4)
    monkeypatch.delattr(DecodeTable, "_dense")  # a product with the zeros would fail
    np.testing.assert_allclose(table.gather(histogram), narrow[0], rtol=1e-14)
    np.testing.assert_allclose(table.spread(theta), narrow[1], rtol=1e-14)
