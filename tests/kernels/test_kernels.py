"""The kernels: compiled ones agree with NumPy's, NumPy's with loops, and the choice depends on the size alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import expit

from lowcal.kernels import clipped, compiled, loops, reference, trees
from lowcal.kernels.clipped import Clipping, Line, binned_step, bins_of, sorted_step
from lowcal.kernels.exact import Grid
from lowcal.kernels.loops import MirrorReads, kernels_for, padded
from lowcal.kernels.reference import Codes, DecodeTable
from lowcal.kernels.simplex import FAR, odds, of_odds_against, portable_sigmoid, sigmoid
from lowcal.notions import weights
from lowcal.notions.moments import displacement, moments, moments_at
from lowcal.notions.weights import Cell, CellIds, monomials

COMPILED = kernels_for(loops.COMPILE_FROM)
BOTH = pytest.mark.parametrize("engine", [loops, COMPILED], ids=["numpy", "compiled"])
KINDS = [np.uint8, np.uint16, np.int64]

rows = st.integers(0, 40)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture
def forget() -> Iterator[None]:
    loops._at_hand.clear()
    loops.compiled.cache_clear()
    yield
    loops._at_hand.clear()
    loops.compiled.cache_clear()


def codes_of(rng: np.random.Generator, n: int, levels: int) -> np.ndarray:
    return rng.integers(0, levels, n).astype(rng.choice(KINDS))


def test_numba_is_installed_where_this_is_tested() -> None:
    assert COMPILED.IS_COMPILED
    assert not loops.IS_COMPILED
    assert kernels_for(loops.COMPILE_FROM - 1) is loops


@settings(deadline=None, max_examples=40)
@given(seeds, rows)
def test_loops_that_give_the_same_bits_compiled_or_not(seed: int, n: int) -> None:
    """`kernels_at_hand` chooses between them by what happens to be loaded."""
    rng = np.random.default_rng(seed)
    terms, far = rng.normal(size=n), 1.5 * 2.0**12
    key, first = rng.integers(2**64, dtype=np.uint64), int(rng.integers(2**40))
    found = []
    for engine in (loops, COMPILED):
        u = np.empty(n)
        engine.lay_uniforms(key, first, u)
        found.append((u.tobytes(), engine.add_fine(terms, far, far * 2.0**-40)))
    assert found[0] == found[1]
    assert u.min(initial=0.0) >= 0.0
    assert u.max(initial=0.0) < 1.0


def rows_of(rng: np.random.Generator, n: int, q: int) -> np.ndarray:
    """Rows of q random numbers, padded with zeros."""
    R = np.zeros((n, padded(q)))
    R[:, :q] = rng.normal(size=(n, q))
    return R


@BOTH
@settings(deadline=None, max_examples=80)
@given(seeds, rows, st.integers(1, 9), st.integers(1, 9))
def test_histograms(engine: ModuleType, seed: int, n: int, levels: int, q: int) -> None:
    rng = np.random.default_rng(seed)
    codes, R = codes_of(rng, n, levels), rows_of(rng, n, q)
    table = rng.normal(size=(levels, padded(q)))
    expected = table.copy()
    for i in range(n):
        expected[codes[i]] += R[i]
    engine.add_histogram(codes, R, table)
    np.testing.assert_allclose(table, expected, atol=1e-13)


@BOTH
@settings(deadline=None, max_examples=40)
@given(seeds, rows, st.integers(1, 9))
def test_draws_add_the_rows_that_they_pick(engine: ModuleType, seed: int, n: int, q: int) -> None:
    rng = np.random.default_rng(seed)
    n *= 53  # more than are worked on at a time
    codes, R, starts = rng.integers(0, 3, (2, n)).astype(rng.choice(KINDS)), rows_of(rng, n, q), np.array([0, 3])
    chance, first = rng.choice([0.0, 0.3, 1.0 - 2.0**-53, 1.0], n), int(rng.integers(2**40))
    keys, out = rng.integers(2**64, size=2, dtype=np.uint64), np.zeros((2, 6, padded(q)))
    is_other = rng.random(n) < 0.5
    bars = np.ceil(chance * 2.0**53).astype(np.uint64) + is_other * loops.OTHER_SIDE
    engine.add_drawn(keys, first, bars, R, codes, starts, out)
    for key, table in zip(keys, out, strict=True):
        u, expected = np.empty(n), np.zeros(table.shape)
        loops.lay_uniforms(key, first, u)
        for column, start in zip(codes, starts, strict=True):
            is_picked = (u < chance) != is_other
            np.add.at(expected, start + column[is_picked].astype(int), R[is_picked])
        np.testing.assert_allclose(table, expected, atol=1e-11)


@settings(deadline=None, max_examples=60)
@given(seeds, rows, st.integers(1, 9), st.integers(1, 5), st.integers(1, 5))
def test_products_are_rounded_one_by_one(seed: int, n: int, levels: int, S: int, T: int) -> None:
    """So their sums are exact, and the same compiled or not."""
    rng, far, made = np.random.default_rng(seed), 1.5 * 2.0**52 * 2.0**-30, []
    codes, A, B = codes_of(rng, n, levels), rng.random((n, S)), rng.random((n, T))
    expected = np.zeros((levels, padded(S * T)))
    for i in range(n):
        expected[codes[i], : S * T] += ((np.multiply.outer(A[i], B[i]) + far) - far).ravel()
    for engine in (loops, COMPILED):
        made.append(np.zeros_like(expected))
        engine.add_products(codes, A, B, far, made[-1])
    assert all(one.tobytes() == expected.tobytes() for one in made)


@BOTH
@settings(deadline=None, max_examples=60)
@given(seeds, rows, st.integers(1, 9), st.integers(1, 6))
def test_look_ups(engine: ModuleType, seed: int, n: int, levels: int, q: int) -> None:
    rng = np.random.default_rng(seed)
    codes, table, total = codes_of(rng, n, levels), rows_of(rng, levels, q), rows_of(rng, n, q)
    read = total.copy()
    engine.add_look_up(codes, table, read)
    for i in range(n):
        assert (read[i] == total[i] + table[codes[i]]).all()


@settings(deadline=None, max_examples=60)
@given(seeds, rows, st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_pairs_of_codes(seed: int, n: int, n_a: int, n_b: int, q: int, compiled: bool) -> None:
    rng = np.random.default_rng(seed)
    a, b, R = codes_of(rng, n, n_a), codes_of(rng, n, n_b), rng.normal(size=(n, q))
    expected = np.zeros((n_a, n_b, q))
    for i in range(n):
        expected[a[i], b[i]] += R[i]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILE_FROM", 0 if compiled else 10**9)
        np.testing.assert_allclose(reference.pair_histogram(a, b, n_a, n_b, R, n), expected, atol=1e-13)


@settings(deadline=None, max_examples=60)
@given(seeds, rows, st.integers(1, 5), st.integers(1, 4))
def test_groups_within_codes(seed: int, n: int, levels: int, q: int) -> None:
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(4, 3)) * rng.integers(0, 2, (4, 3))
    a, b, H = codes_of(rng, n, levels), codes_of(rng, n, 4), rng.normal(size=(n, q))
    expected = np.zeros((q, levels, 3))
    for i in range(n):
        expected[:, a[i]] += H[i, :, None] * B[b[i]]
    found = reference._group_sums(a, levels, b, DecodeTable(sparse.csr_array(B)), H)
    np.testing.assert_allclose(found, expected, atol=1e-13)


@settings(deadline=None, max_examples=60)
@given(seeds, rows, st.integers(1, 6))
def test_powers(seed: int, n: int, q: int) -> None:
    rng = np.random.default_rng(seed)
    f, rho, R = rng.random(n), rng.normal(size=n), np.empty((n, q))
    loops.lay_powers(f, rho, R)
    np.testing.assert_allclose(R, rho[:, None] * f[:, None] ** np.arange(q), rtol=1e-14)


@BOTH
@pytest.mark.parametrize("powers", [[0], [-1], [0, -1], [0, 1], [1, 0], [0, 1, 2], [0, -1, 1, 2], [0, 3], []])
@pytest.mark.parametrize("n", [0, 1, 7, 2 * compiled.ROWS + 5])
def test_log_odds_bend(engine: ModuleType, powers: list[int], n: int) -> None:
    rng = np.random.default_rng(n + len(powers))
    f, levels, width = rng.random(n), np.array([3, 1, 300]), padded(max(1, len(powers)))
    f[: n // 3] = rng.choice([0.0, 1.0, 1e-12], n // 3)  # they are kept FLOOR away from the ends
    codes = np.array([rng.integers(0, size, n) for size in levels]).astype(np.uint16)
    tables, offset = 50 * rng.normal(size=(levels.sum() + 1, width)), np.cumsum([0, *levels[:-1]])
    column = np.array([0, 2, 1])
    z, out = np.empty(n), np.empty(n)
    engine.lay_odds(f, z)
    np.testing.assert_array_equal(z, odds(f))
    z = np.log(z)
    update = MirrorReads(np.array(powers, dtype=np.intp), column, offset[column], tables)
    engine.bend(z, f, codes, update, out)
    score = z.copy()
    for k, power in enumerate(powers):
        factor = sum((tables[offset[c] + codes[c], k] for c in column), start=np.zeros(n))
        score += factor * (z if power < 0 else np.prod([f] * power, axis=0) if power else 1.0)
    np.testing.assert_array_equal(out, np.minimum(-score, FAR))
    if n > 100 and -1 in powers:
        assert (out == FAR).any()
    np.testing.assert_array_equal(of_odds_against(out), sigmoid(score))


@pytest.mark.parametrize("q", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [compiled.ROWS - 1, 2 * compiled.ROWS, 3 * compiled.ROWS + 5])
@BOTH
def test_sums_are_those_of_a_plain_loop_bit_by_bit(engine: ModuleType, n: int, q: int) -> None:
    rng = np.random.default_rng(n + q)
    codes, R = rng.integers(0, 7, n).astype(np.uint8), rows_of(rng, n, q)
    expected = np.zeros((7, padded(q)))
    table = np.zeros_like(expected)
    for i in range(n):
        expected[codes[i]] += R[i]
    engine.add_histogram(codes, R, table)
    assert table.tobytes() == expected.tobytes()


# --- the line search ------------------------------------------------------------------------------------------


def loss(eta: float, f: np.ndarray, y: np.ndarray, delta: np.ndarray, weight: np.ndarray) -> float:
    return float(weight @ np.square(y - np.clip(f + eta * delta, 0.0, 1.0)))


def line(seed: int, n: int) -> tuple[np.ndarray, ...]:
    """A line with rows at the ends, rows that stay, ties of limits, soft and hard outcomes."""
    rng = np.random.default_rng(seed)
    f = rng.random(n).round(1) if rng.random() < 0.3 else rng.random(n)
    y = (rng.random(n) < 0.5).astype(float) if rng.random() < 0.5 else rng.random(n)
    delta = rng.normal(size=n) * 10.0 ** rng.integers(-3, 2)
    if rng.random() < 0.3:
        delta = np.sign(delta) * rng.integers(0, 3, n)
    if rng.random() < 0.3:
        delta = np.abs(delta) * np.sign(y - f)
    return f, y, delta, rng.random(n) * (rng.random(n) < 0.9)


def binned(rows: tuple[np.ndarray, ...], scale: float = 1.0) -> float:
    """The best step by bins."""
    one = Line(*rows)
    most = np.abs(one.delta).max(initial=clipped.TINY)
    bins = Clipping(scale, Grid.of(np.array([most**2, most, 1.0, 1.0, 1.0]), len(one.f)))
    bins.add(one)
    where = bins_of(one, scale)

    def fetch(hidden: np.ndarray) -> tuple[Line, np.ndarray]:
        some = np.flatnonzero(np.append(hidden, False)[where])
        return one.take(some), where[some]

    return binned_step(bins, fetch)


@settings(deadline=None, max_examples=150)
@given(seeds, st.integers(0, 60), st.sampled_from([1, 3, 64]), st.sampled_from([0.01, 1.0, 100.0]))
def test_the_best_step_is_best(seed: int, n: int, n_bins: int, scale: float) -> None:
    rows = line(seed, n)
    f, _, delta, _ = rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clipped, "BINS", n_bins)
        found = loss(binned(rows, scale), *rows)
    sorted_ = sorted_step(Line(*rows))
    assert found == pytest.approx(loss(sorted_, *rows), abs=1e-13)
    moving = delta != 0.0
    limits = (np.where(delta > 0.0, 1.0, 0.0)[moving] - f[moving]) / delta[moving]
    tries = np.concatenate([[0.0], limits, np.linspace(0.0, 2.0 * limits.max(initial=0.0) + 1.0, 200)])
    assert all(found <= loss(eta, *rows) + 1e-12 for eta in tries)
    assert sorted_ >= 0.0


def test_the_best_step_of_many_rows() -> None:
    rows = line(1, 20_000)
    assert loss(binned(rows), *rows) == pytest.approx(loss(sorted_step(Line(*rows)), *rows), rel=1e-13)


def test_rows_that_hardly_move_do_not_overflow() -> None:
    f, y, w = np.array([0.5, 0.5]), np.array([1.0, 1.0]), np.array([0.5, 0.5])
    for step in (binned, lambda rows: sorted_step(Line(*rows))):
        assert step((f, y, np.array([0.25, 1e-320]), w)) == pytest.approx(2.0)
        assert step((f, y, np.zeros(2), w)) == 0.0


# --- whole passes ---------------------------------------------------------------------------------------------


def design_of(rng: np.random.Generator, n: int) -> tuple[Codes, np.ndarray]:
    tables = [rng.integers(0, 2, (5, 4)).astype(float), rng.normal(size=(3, 2))]
    wide = rng.integers(0, 5, (2, n)).astype(np.uint8)
    codes = (wide.T[:, 0], rng.integers(0, 3, 2 * n).astype(np.uint16)[::2])  # not contiguous
    C = np.concatenate([t[c] for t, c in zip(tables, codes, strict=True)], axis=1)
    return Codes(codes, tuple(DecodeTable(sparse.csr_array(t)) for t in tables)), C


@settings(deadline=None, max_examples=60)
@given(seeds, st.integers(0, 30), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_passes_by_small_pieces(seed: int, n: int, S: int, d: int, compiled: bool) -> None:
    rng = np.random.default_rng(seed)
    design, C = design_of(rng, n)
    U, rho, theta = rng.random((n, S)), rng.normal(size=(n, d)), rng.normal(size=(6, S, d))
    cells = CellIds(rng.integers(0, S + 1, n), S)
    one_hot = np.eye(S + 1)[cells.ids][:, :S]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILE_FROM", 0 if compiled else 10**9)
        patch.setattr(reference, "CHUNK", 64)
        patch.setattr(reference, "CACHE", 16)
        for evaluated, dense in ((U, U), (cells, one_hot)):
            g, delta = moments(design, evaluated, rho), displacement(design, evaluated, theta)
            np.testing.assert_allclose(g, np.einsum("nc,ns,na->csa", C, dense, rho), atol=1e-12)
            np.testing.assert_allclose(delta, np.einsum("nc,ns,csa->na", C, dense, theta), atol=1e-12)
        H = rng.normal(size=(n, 2))
        for pairs in (1, 100):
            patch.setattr(reference, "CACHE", pairs)
            np.testing.assert_allclose(design.gram(H), np.einsum("nk,nc,ne->kce", H, C, C), atol=1e-12)


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("cells", [False, True])
def test_moments_at_are_moments_of_the_evaluated_weights(d: int, cells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(d)
    design, C = design_of(rng, 60)
    p, rho = rng.dirichlet(np.ones(max(d, 2)), 60)[:, :d], rng.normal(size=(60, d))
    chosen = [Cell(0.5, (0,) * d), Cell(0.5, (1,) + (0,) * (d - 1))] if cells else [*monomials(d, 2)]
    expected = np.einsum("nc,sn,na->csa", C, np.array([u(p) for u in chosen]), rho)
    monkeypatch.setattr(reference, "CHUNK", 64)
    monkeypatch.setattr(reference, "CACHE", 16)
    np.testing.assert_allclose(moments_at(design, chosen, p, rho), expected, atol=1e-12)


@pytest.mark.parametrize("d", [3, 12])
def test_linear_weights_of_many_classes_are_evaluated_alike(d: int) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(d), 5)
    for chosen in (monomials(d, 1), monomials(d, 1)[::-1], monomials(d, 1)[1:]):
        np.testing.assert_array_equal(weights.evaluate(chosen, p), np.array([u(p) for u in chosen]).T)


@pytest.mark.parametrize("n", [8, 2000])
@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("width", [0.1, 0.3])
def test_occupied_cells_counted_or_sorted(d: int, width: float, n: int) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(max(d, 2)), n)[:, :d]
    occupied, which = weights.occupied_cells(p, width)
    index = weights.cell_index(p, width)
    assert occupied.tolist() == [list(cell) for cell in sorted({tuple(row) for row in index.tolist()})]
    np.testing.assert_array_equal(occupied[which], index)


def test_cells_that_are_too_many_for_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    design, C = design_of(rng, 50)
    cells, theta = CellIds(rng.integers(0, 10, 50), 9), rng.normal(size=(6, 9, 2))
    expected = np.einsum("nc,ns,csa->na", C, np.eye(10)[cells.ids][:, :9], theta)
    monkeypatch.setattr(reference, "CHUNK", 32)  # pieces of pieces
    np.testing.assert_allclose(displacement(design, cells, theta), expected, atol=1e-12)


@pytest.mark.usefixtures("forget")
def test_without_numba_numpy_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lowcal.kernels.compiled", None)  # importing it now fails
    monkeypatch.delattr("lowcal.kernels.compiled")
    assert kernels_for(10**12) is loops


SCRIPT = """
import sys
import numpy as np
import lowcal
from lowcal.kernels import loops

def fit(n):
    rng = np.random.default_rng(0)
    p = rng.random(n)
    y = rng.random(n) < 0.5 * p
    X = {name: rng.integers(0, 4, n).astype("U1") for name in "abc"}
    return lowcal.multicalibrate(y.astype(int), p, X, subpopulations=lowcal.Groups(), alpha=0.01)

assert "numba" not in sys.modules
fit(2000)
assert "numba" not in sys.modules
loops.COMPILE_FROM = 1000
fit(2000)
assert "numba" in sys.modules
"""


def test_small_fits_do_not_import_numba(run_python: Callable[..., object]) -> None:
    run_python("-W", "error", "-c", SCRIPT)


def test_the_logistic_function_is_that_of_a_library_and_the_same_bits_where_compiled() -> None:
    z = np.concatenate([np.linspace(-45.0, 45.0, 5001), np.random.default_rng(0).normal(0.0, 3.0, 5000), [0.0, -0.0]])
    found = portable_sigmoid(z)
    np.testing.assert_allclose(found, expit(z), rtol=2.0**-45, atol=1e-17)
    trees.set_sigmoids(z)
    assert z.tobytes() == found.tobytes()


def test_kernels_are_numpys_where_numba_is_set_not_to_compile(monkeypatch, forget) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    assert kernels_for(loops.COMPILE_FROM) is loops


def test_kernels_release_the_gil() -> None:
    for name in (
        "add_histogram",
        "add_products",
        "add_look_up",
        "replay",
        "lay_odds",
        "lay_uniforms",
        "add_drawn",
        "add_fine",
        "bend",
        "add_group_pairs",
    ):
        assert getattr(compiled, name).targetoptions["nogil"]
