"""Exact sums: the same bits for any order and any cutting of the rows, and close to sums in float64."""

from __future__ import annotations

from itertools import pairwise
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lowcal.kernels import exact
from lowcal.kernels.exact import ExactSums, Fine, Grid, Tables, decode
from lowcal.kernels.reference import Codes, Cumulative, DecodeTable, Design, Matrix, Stacked

seeds = st.integers(0, 2**32 - 1)
KINDS = ["codes", "dense", "columns", "sparse", "float32", "bytes", "stacked"]


def design(kind: str, rng: np.random.Generator, n: int) -> Design:
    """Return a design of one kind; memberships lie in [0, 1]."""
    codes = rng.integers(0, 6, n).astype(np.uint8), rng.integers(0, 5, n).astype(np.uint16)
    tables = DecodeTable(sparse.csr_array(rng.random((6, 4)) * (rng.random((6, 4)) < 0.6))), Cumulative.every(5)
    shares = rng.random((n, 3)) * (rng.random((n, 3)) < 0.7)
    made: dict[str, Design] = {
        "codes": Codes(codes, tables),
        "dense": Matrix(shares),
        "columns": Matrix(np.asfortranarray(shares)),
        "sparse": Matrix(sparse.csr_array(shares)),
        "float32": Matrix(shares.astype(np.float32)),
        "bytes": Matrix((shares > 0.5).astype(np.uint8)),
    }
    made["stacked"] = Stacked((made["dense"], made["codes"], made["sparse"], made["bytes"]))
    return made[kind]


def pieces(rng: np.random.Generator, n: int) -> list[slice]:
    """Cut 0..n anywhere; the pieces come in any order."""
    edges = np.unique([0, n, *rng.integers(0, n + 1, int(rng.integers(0, 6)))])
    cut = [slice(int(a), int(b)) for a, b in pairwise(edges)]
    return [cut[k] for k in rng.permutation(len(cut))]


def terms(rng: np.random.Generator, n: int, q: int, bounds: np.ndarray) -> np.ndarray:
    """Return numbers of any size up to the bounds of their columns."""
    sizes = 2.0 ** -rng.integers(0, 60, (n, q)).astype(float)
    return rng.uniform(-1, 1, (n, q)) * sizes * bounds


def summed(C: Design, R: np.ndarray, grid: Grid, parts: list[slice]) -> Tables:
    """Return the sums of a shard whose pieces come in some order."""
    sums = ExactSums(C, R.shape[1], grid)
    for part in parts:
        sums.add(part, R[part].copy())
    return sums.wholes()


@given(seeds, st.sampled_from(KINDS), st.integers(1, 200), st.integers(1, 5), st.sampled_from([1 << 18, 64]))
@settings(deadline=None, max_examples=150)
def test_sums_are_the_same_bits_in_any_order_and_any_cutting(seed: int, kind: str, n: int, q: int, block: int) -> None:
    """Rows are shuffled, dealt to shards and added there in pieces; a small block is flushed on the way."""
    rng = np.random.default_rng(seed)
    C, bounds = design(kind, rng, n), 10.0 ** rng.integers(-6, 3, q)
    R, grid = terms(rng, n, q, bounds), Grid.of(bounds, n)
    with pytest.MonkeyPatch.context() as patch:
        one = decode(C, q, grid, summed(C, R, grid, [slice(0, n)]))
        order = rng.permutation(n)
        patch.setattr(exact, "BLOCK", block)
        total = None
        for shard in pieces(rng, n):
            here, mine = C.rows(order[shard]), R[order[shard]]
            parts = [slice(a, min(a + 50, len(mine))) for a in range(0, len(mine), 50)]
            found = summed(here, mine, grid, parts[::-1])
            total = found if total is None else found + total
        assert total is not None
        other = decode(C.rows(slice(0, 1)), q, grid, total)
    assert other.tobytes() == one.tobytes()


@given(seeds, st.sampled_from(KINDS), st.integers(1, 300), st.integers(1, 4))
@settings(deadline=None, max_examples=100)
def test_a_sum_is_off_by_half_a_unit_a_term_at_most(seed: int, kind: str, n: int, q: int) -> None:
    """Memberships of a matrix make terms of their own; those of codes are applied to sums, one unit a row."""
    rng = np.random.default_rng(seed)
    C, bounds = design(kind, rng, n), 10.0 ** rng.integers(-6, 3, q)
    R, grid = terms(rng, n, q, bounds), Grid.of(bounds, n)
    found = decode(C, q, grid, summed(C, R, grid, [slice(0, n)]))
    roundings = 0.5 * n * np.broadcast_to(grid.unit, q)
    off = np.abs(found - C.dense().T @ R)
    assert np.all(off <= 2.0 * roundings + 1e-15 * n * bounds)
    assert np.all(2.0 * roundings <= n * bounds * 2.0**-34 * max(1, n / 2**18))


@given(seeds, st.integers(1, 300), st.integers(-6, 3))
@settings(deadline=None)
def test_fine_sums_are_as_good_as_float64_allows(seed: int, n: int, exponent: int) -> None:
    rng, bound = np.random.default_rng(seed), 10.0**exponent
    R, fine = terms(rng, n, 1, np.array([bound]))[:, 0], Fine.of(bound, n)
    one = fine.total(fine.wholes(R))
    shuffled = R[rng.permutation(n)]
    other = fine.total(sum(fine.wholes(shuffled[part]) for part in pieces(rng, n)))
    assert float(other).hex() == float(one).hex()
    expected = fsum(R.tolist())
    assert abs(one - expected) <= 2.0**-52 * abs(expected) + n * bound * 2.0**-80


def test_more_rows_than_a_block_are_flushed_and_add_up() -> None:
    """The largest terms there are: 600,000 rows of the bound, all of one sign."""
    n, grid = 600_000, Grid.of(1.0, 600_000)
    C = Matrix(np.ones((n, 1)))
    whole = summed(C, np.ones((n, 1)), grid, [slice(a, min(n, a + 100_000)) for a in range(0, n, 100_000)])
    assert decode(C, 1, grid, whole).item() == n
    fine = Fine.of(1.0, n)
    assert fine.total(fine.wholes(np.full(n, 1 / 3))) == pytest.approx(n / 3, rel=2e-16)


@given(st.floats(1e-300, 1e6), st.integers(1, 10**12))
def test_a_grid_leaves_room_for_all_sums(bound: float, n: int) -> None:
    """A block adds up in 53 bits, all blocks in 63."""
    unit = float(Grid.of(bound, n).unit)
    assert min(n, exact.BLOCK) * bound <= 2.0**52 * unit
    assert n * bound <= 2.0**62 * unit
    assert np.frexp(unit)[0] == 0.5


@given(seeds, st.sampled_from(KINDS), st.integers(1, 120), st.integers(1, 4))
@settings(deadline=None)
def test_sums_by_cell_are_the_same_bits_and_those_of_each_cell(seed: int, kind: str, n: int, cells: int) -> None:
    rng = np.random.default_rng(seed)
    C, ids = design(kind, rng, n), rng.integers(0, cells + 1, n)
    R, grid = rng.uniform(-1, 1, (n, 2)), Grid.of(1.0, n)
    grid.round(R)
    one = C.cell_moments(ids, cells, R, grid)
    parts = pieces(rng, n)
    other = sum(grid.wholes(C.rows(part).cell_moments(ids[part], cells, R[part], grid)) for part in parts)
    np.testing.assert_array_equal(grid.wholes(one), other)
    inside = np.eye(cells + 1)[ids][:, :cells]
    np.testing.assert_allclose(one, np.einsum("nc,ns,na->csa", C.dense(), inside, R), atol=n * float(grid.unit))
