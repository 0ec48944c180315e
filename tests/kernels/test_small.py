"""Memberships in small types: the same numbers as float64, packed or not, and never an array of float64 as a whole."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowcal
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table
from lowcal.kernels import loops, reference
from lowcal.kernels.reference import Matrix
from lowcal.notions.moments import outer_moments
from lowcal.subpopulations.memberships import Bits, pack

seeds = st.integers(0, 2**32 - 1)
orders = st.sampled_from(["C", "F", "strided"])
kinds = st.sampled_from([np.bool_, np.uint8, np.int8, np.int64, np.float32, np.float64])


def laid_out(C: np.ndarray, order: str) -> np.ndarray:
    """The same numbers in another order of memory."""
    return np.repeat(C, 2, axis=1)[:, ::2] if order == "strided" else np.array(C, order=order)


@settings(deadline=None, max_examples=80)
@given(seeds, st.integers(0, 40), st.integers(1, 35), orders, st.integers(1, 64))
def test_bits_of_bytes(seed: int, n: int, m: int, order: str, size: int) -> None:
    C = laid_out(np.random.default_rng(seed).integers(0, 2, (n, m)).astype(np.uint8), order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "CHUNK", size)
        out = pack(C)
    assert out is not None
    assert len(out) == -(-m // 8)
    for j in range(8 * len(out)):
        expected = C[:, j] if j < m else np.zeros(n)
        np.testing.assert_array_equal((out[j // 8] >> (j % 8)) & 1, expected)


@settings(deadline=None, max_examples=60)
@given(seeds, st.integers(1, 30), st.integers(1, 20), orders, st.integers(2, 255))
def test_other_bytes_are_seen_wherever_they_stand(seed: int, n: int, m: int, order: str, other: int) -> None:
    rng = np.random.default_rng(seed)
    C = rng.integers(0, 2, (n, m)).astype(np.uint8)
    C[rng.integers(n), rng.integers(m)] = other
    assert pack(laid_out(C, order)) is None


@settings(deadline=None, max_examples=60)
@given(seeds, st.integers(1, 30), st.integers(1, 20), orders, kinds)
def test_packing_any_type(seed: int, n: int, m: int, order: str, kind: type) -> None:
    C = np.random.default_rng(seed).integers(0, 2, (n, m)).astype(kind)
    bits = pack(laid_out(C, order))
    assert bits is not None
    np.testing.assert_array_equal(np.array(bits), np.packbits(C.astype(bool), axis=1, bitorder="little").T)


@pytest.mark.parametrize("other", [0.5, 2.0, -1.0, np.nan, 1 + 1e-7])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_is_no_bit(other: float, kind: type) -> None:
    C = np.zeros((5, 3), dtype=kind)
    C[4, 1] = other
    assert pack(C) is None


@settings(deadline=None, max_examples=80)
@given(seeds, st.integers(0, 30), st.integers(1, 6), st.integers(1, 5), orders, st.sampled_from([np.float32, np.uint8]))
def test_small_types_are_the_matrix_in_float64(seed: int, n: int, m: int, q: int, order: str, kind: type) -> None:
    rng = np.random.default_rng(seed)
    C = laid_out((rng.random((n, m)) if kind is np.float32 else rng.integers(0, 2, (n, m))).astype(kind), order)
    small, exact = Matrix(C), C.astype(np.float64)
    R, theta = rng.normal(size=(n, q)), rng.normal(size=(m, q))
    ids, cells = rng.integers(0, 4, n), rng.normal(size=(m, 3, q))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "CHUNK", 16)
        assert small.shape == (n, m)
        np.testing.assert_allclose(small.moments(R), exact.T @ R, atol=1e-12)
        np.testing.assert_allclose(small.power(2).moments(R), np.square(exact).T @ R, atol=1e-12)
        if n:  # no pass asks for no rows
            np.testing.assert_allclose(small.combination(theta)(slice(None)), exact @ theta, atol=1e-12)
        np.testing.assert_allclose(small.gram(R), np.einsum("nk,nc,ne->kce", R, exact, exact), atol=1e-12)
        one_hot = np.eye(4)[ids][:, :3]
        np.testing.assert_allclose(
            small.cell_moments(ids, 3, R), np.einsum("nc,ns,na->csa", exact, one_hot, R), atol=1e-12
        )
        np.testing.assert_allclose(
            small.cell_combination(cells)(slice(0, n), ids),
            np.einsum("nc,ns,csa->na", exact, one_hot, cells),
            atol=1e-12,
        )
        np.testing.assert_allclose(outer_moments(small, R, R), np.einsum("nc,ns,nt->cst", exact, R, R), atol=1e-12)
    np.testing.assert_array_equal(small.dense(), exact)
    np.testing.assert_array_equal(small.rows(slice(1, 3)).dense(), exact[1:3])
    for j in range(m):
        np.testing.assert_array_equal(small.column(j), exact[:, j])


def test_sums_of_slices_with_padding() -> None:
    rng = np.random.default_rng(0)
    C, R = rng.random((30, 4)).astype(np.float32), rng.normal(size=(30, 4))
    sums = Matrix(C).sums(3)  # the last column of R does not count
    for part in (slice(0, 7), slice(7, 30)):
        sums.add(part, R[part])
    np.testing.assert_allclose(sums.total(), C.astype(np.float64).T @ R[:, :3], atol=1e-12)


# --- the whole way --------------------------------------------------------------------------------------------


def world(n: int, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    p = rng.random(n)
    C = rng.random((n, m)) < rng.random(m)
    return (rng.random(n) < p * p).astype(float), p, C


def frames_of(C: np.ndarray) -> list[object]:
    names = [f"c{j}" for j in range(C.shape[1])]
    columns = {name: C[:, j].copy() for j, name in enumerate(names)}
    pd, pl, pa = pytest.importorskip("pandas"), pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    return [columns, pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)]


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int8, np.int64, np.float32, np.float64])
def test_every_type_and_form_gives_the_same_bytes(kind: type) -> None:
    y, p, C = world(400, 11)
    names = [f"c{j}" for j in range(11)]
    kept = lowcal.Memberships(names)
    expected = lowcal.measure(y, p, C.astype(float), subpopulations=kept)
    for X in (C.astype(kind), np.asfortranarray(C.astype(kind)), *frames_of(C.astype(kind))):
        assert isinstance(kept.prepare(X).rows, Bits)
        measured = lowcal.measure(y, p, X, subpopulations=kept)
        assert measured.names == expected.names
        assert measured.violation.tobytes() == expected.violation.tobytes()


def large_booleans() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As few rows of booleans as compiled kernels pack."""
    return world(-(-loops.COMPILE_FROM // 64), 64)


@pytest.mark.parametrize("byte", [2, 128, 255])
def test_every_byte_of_a_boolean_that_is_not_zero_is_true(byte: int) -> None:
    y, p, C = large_booleans()
    odd = (C.astype(np.uint8) * byte).view(np.bool_)
    every = lowcal.Memberships()
    measured, expected = (lowcal.measure(y, p, X, subpopulations=every) for X in (odd, C))
    assert measured.names == expected.names
    np.testing.assert_allclose(measured.violation, expected.violation, atol=1e-7)
    fits = [lowcal.multicalibrate(y, p, X, subpopulations=every, alpha=0.003, random_state=0) for X in (odd, C)]
    np.testing.assert_allclose(fits[0].predictor(p, odd), fits[1].predictor(p, C), atol=1e-10)
    np.testing.assert_array_equal(every.prepare(odd).rows.packed, pack(C))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_other_numbers_in_large_arrays_of_bytes_are_refused(kind: type) -> None:
    y, p, C = large_booleans()
    X = C.astype(kind)
    X[-1, -1] = 2
    with pytest.raises(InvalidInput, match=f"row {len(X) - 1}, column 'x63' holds 2"):
        lowcal.measure(y, p, X, subpopulations=lowcal.Memberships())


def test_rare_groups_of_booleans_are_dropped_by_their_exact_counts() -> None:
    y, p, C = large_booleans()
    C[:, :3] = False
    C[:29, 0] = C[-30:, 1] = True
    learner = lowcal.Memberships().prepare(C)
    assert [name for name in ("x0", "x1", "x2") if name in learner.names] == ["x1"]
    measured = lowcal.measure(y, p, C, subpopulations=lowcal.Memberships())
    assert measured.mass[measured.names.index("x1")] == pytest.approx(30 / len(C), rel=1e-12)
    weight = np.random.default_rng(0).random(len(C)) + 0.5
    weighted = [lowcal.Memberships().prepare(X, weight) for X in (C, np.asfortranarray(C))]
    assert weighted[0].names == weighted[1].names


def test_fractions_in_float32_are_those_numbers_in_float64() -> None:
    y, p, C = world(2000, 7)
    C = (C * np.random.default_rng(1).random(C.shape)).astype(np.float32)
    options = {"subpopulations": lowcal.Memberships(), "alpha": 0.004, "random_state": 0}
    fits = [lowcal.multicalibrate(y, p, X, **options) for X in (C, C.astype(np.float64))]
    np.testing.assert_allclose(fits[0].predictor(p, C), fits[1].predictor(p, C.astype(float)), atol=1e-10)
    reports = [lowcal.audit(y, p, X, **options) for X in (C, C.astype(np.float64))]
    assert reports[0].violation == pytest.approx(reports[1].violation, abs=1e-12)
    assert reports[0].certified_alpha == pytest.approx(reports[1].certified_alpha, abs=1e-12)
    for kind, is_small in ((C.dtype, True), (np.dtype(float), False)):
        design = lowcal.Memberships(everyone=False).prepare(C.astype(kind)).design()
        assert isinstance(design, Matrix)
        assert design.is_small == is_small


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [(np.int8, -1, "-1"), (np.uint8, 2, "2"), (np.float32, 1.5, "1.5"), (np.float32, np.nan, "nan"), (int, 7, "7")],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_outside_are_refused_with_their_place(kind: type, value: float, shown: str, order: str) -> None:
    C = np.zeros((900, 3), dtype=kind, order=order)
    C[1::2] = 1
    C[700, 2] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "CHUNK", 300)
        with pytest.raises(InvalidInput, match=f"row 700, column 'x2' holds {shown}"):
            lowcal.Memberships().prepare(C)


def test_columns_are_held_as_they_are() -> None:
    C = np.arange(18, dtype=np.uint8).reshape(6, 3)
    assert np.shares_memory(Table.of(C).held(["x0", "x1", "x2"]), C)
    np.testing.assert_array_equal(Table.of(C).held(["x2", "x0"]), C[:, [2, 0]])
    taken = Table.of(C).take(np.array([4, 4, 0])).held(["x0", "x1", "x2"])
    assert taken.dtype == np.uint8
    np.testing.assert_array_equal(taken, C[[4, 4, 0]])
    mixed = {"a": C[:, 0], "b": C[:, 1].astype(bool), "c": [1, 0, 1, 0, 1, None]}
    assert Table.of(mixed).held(["a", "b"]) is None
    assert Table.of(mixed).held(["c"]) is None
    assert Table.of(mixed).held(["b"]).dtype == np.bool_
    assert Table.of(C[:, 0]).held([0]).shape == (6, 1)


def test_series_with_nulls_are_not_held() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"a": [True, None], "b": [True, False], "c": ["x", "y"]})
    table = Table.of(frame)
    assert table.held(["a"]) is None
    assert table.held(["c"]) is None
    np.testing.assert_array_equal(table.held(["b"]), [[True], [False]])


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_no_copy_in_float64(kind: type) -> None:
    y, p, C = world(4000, 200)
    X = C.astype(kind) if kind is np.uint8 else (0.5 * C).astype(kind)
    every = lowcal.Memberships(min_mass=0)
    lowcal.measure(y, p, X, subpopulations=every)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "CHUNK", 1 << 14)
        tracemalloc.start()
        lowcal.measure(y, p, X, subpopulations=every)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 3 * X.size  # float64 would be 8 bytes an entry
