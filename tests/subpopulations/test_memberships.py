"""Memberships: packed, dense and sparse forms say the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lowcal.data.frames import Table
from lowcal.kernels.reference import Codes, Matrix
from lowcal.subpopulations import Memberships
from lowcal.subpopulations.memberships import Bits, pack
from worlds import uniform


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 10**6))
def test_bits_are_the_matrix(m, n, seed):
    rng = np.random.default_rng(seed)
    C = rng.integers(0, 2, (n, m)).astype(float)
    kind = Memberships(min_mass=0)
    packed, thin = (kind.prepare(Table.of(X), uniform(n)) for X in (C, sparse.csr_array(C)))
    assert isinstance(packed.rows, Bits)
    assert packed.rows.shape == (n, m)
    assert np.shape(packed.rows.packed) == (-(-m // 8), n)
    kept = [0, *(1 + np.flatnonzero(C.any(axis=0)))]
    full = np.column_stack([np.ones(n), C])[:, kept]
    R, theta = rng.normal(size=(n, 3)), rng.normal(size=(full.shape[1], 2))
    for learner in (packed, thin):
        design = learner.design()
        np.testing.assert_array_equal(design.dense(), full)
        np.testing.assert_allclose(design.moments(R), full.T @ R, atol=1e-12)
        np.testing.assert_allclose(design.combination(theta)(slice(None)), full @ theta, atol=1e-12)
    assert packed.names == thin.names


def test_forms_of_storage():
    C = np.array([[0.0, 1.0], [1.0, 1.0], [0.5, 0.0]])
    kind = Memberships(min_mass=0, everyone=False)
    dense, thin = (kind.prepare(Table.of(X), uniform(3)).design() for X in (C, sparse.csr_array(C)))
    assert isinstance(dense, Matrix)
    assert isinstance(dense.matrix, np.ndarray)
    assert isinstance(thin, Matrix)
    assert sparse.issparse(thin.matrix)
    assert isinstance(kind.prepare(Table.of(np.round(C + 0.1)), uniform(3)).design(), Codes)
    for X in (C, sparse.csr_array(C), sparse.csc_matrix(C)):
        np.testing.assert_array_equal(kind.prepare(Table.of(X), uniform(3)).design().dense(), C)


def test_new_rows_may_come_in_another_form():
    C = np.random.default_rng(0).integers(0, 2, (40, 11)).astype(float)
    learner = Memberships(min_mass=1).prepare(Table.of(C), uniform(40))
    part = np.column_stack([np.ones(40), C])
    for X in (C, sparse.csr_array(C), np.where(C == 1, 1.0, 0.25), C.astype(bool)):
        expected = part if X is not None and not isinstance(X, np.ndarray) else np.column_stack([np.ones(40), X])
        np.testing.assert_array_equal(learner.design(learner.encoder(Table.of(X))).dense(), expected)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_small_ones_are_dropped_by_effective_rows(form):
    n = 200
    C = np.zeros((n, 4))
    C[:30, 0], C[:29, 1], C[:, 2] = 1, 1, 1
    learner = Memberships(list("abcd")).prepare(Table.of(form(C)), uniform(n))
    assert learner.names == ("everyone", "a", "c")
    np.testing.assert_array_equal(learner.design().dense(), np.column_stack([np.ones(n), C[:, [0, 2]]]))
    heavy = np.ones(n)
    heavy[0] = 1000.0  # one row of the group weighs nearly all: it is worth little more than one row
    learner = Memberships(list("abcd"), min_mass=5).prepare(Table.of(form(C)), heavy / heavy.sum())
    assert learner.names == ("everyone",)


def test_booleans_and_names_of_frames():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    data = {"young": [True, False, True], "share": [0.25, 0.5, 1.0]}
    for X in (data, pd.DataFrame(data), pl.DataFrame(data)):
        learner = Memberships(min_mass=0).prepare(Table.of(X), uniform(3))
        assert learner.names == ("everyone", "young", "share")
        np.testing.assert_array_equal(learner.design().dense(), [[1, 1, 0.25], [1, 0, 0.5], [1, 1, 1]])
    assert Memberships(["a", "b"], min_mass=0, everyone=False).prepare(Table.of(data), uniform(3)).names == ("a", "b")


def test_taking_members_in_any_order():
    C = np.random.default_rng(1).integers(0, 2, (20, 19)).astype(float)
    for X in (C, sparse.csr_array(C), C * 0.5):
        learner = Memberships(min_mass=1, everyone=False).prepare(Table.of(X), uniform(20))
        full = learner.design().dense()
        taken = learner.families[0].take(np.array([17, 2, 9, 3, 2]))
        np.testing.assert_array_equal(taken.design(learner.rows).dense(), full[:, [17, 2, 9, 3, 2]])
        assert taken.names == tuple(learner.names[j] for j in (17, 2, 9, 3, 2))
        json.dumps([taken.to_dict(), learner.encoder.to_dict()])


def test_pack_puts_the_first_column_in_the_lowest_bit():
    packed = pack(np.eye(10))
    assert [b.dtype for b in packed] == [np.uint8, np.uint8]
    np.testing.assert_array_equal(packed[0], [1, 2, 4, 8, 16, 32, 64, 128, 0, 0])
    np.testing.assert_array_equal(packed[1], [0] * 8 + [1, 2])
