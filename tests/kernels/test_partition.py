"""A partition covers all rows with a limited number of cells, whose centres are near their rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcal.kernels.simplex import FloatArray
from lowcal.kernels.transport import Partition


def sample(seed: int, n: int, d: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(d, 0.5), n)
    return p.round(1) if seed % 2 else p


def away(found: Partition, p: FloatArray) -> float:
    return float(np.abs(p - found.centres[found(p)]).sum(axis=1).mean())


@given(st.integers(0, 10**6), st.integers(1, 300), st.integers(1, 5), st.integers(1, 100))
@settings(deadline=None, max_examples=60)
def test_centres_are_the_means_of_their_cells(seed: int, n: int, d: int, limit: int) -> None:
    p = sample(seed, n, d)
    found = Partition.of(p, limit)
    cells = found(p)
    assert len(found.centres) <= limit
    assert set(cells.tolist()) == set(range(len(found.centres)))
    for k in np.unique(cells):
        np.testing.assert_allclose(found.centres[k], p[cells == k].mean(axis=0), atol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 300), st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_every_distinct_row_gets_a_cell_where_there_are_enough(seed: int, n: int, d: int) -> None:
    p = sample(seed, n, d)
    distinct = np.unique(p, axis=0)
    found = Partition.of(p, len(distinct))
    assert len(found.centres) == len(distinct)
    assert away(found, p) <= 1e-12


@pytest.mark.parametrize("d", [3, 5])
def test_more_cells_are_nearer_to_new_rows(d: int) -> None:
    p, new = sample(0, 20_000, d), sample(2, 20_000, d)
    few, more = (away(Partition.of(p, limit), new) for limit in (100, 3_200))
    assert more < few / 2  # 32 ** (1 / 4) = 2.4 is what four dimensions allow


def test_rows_that_are_all_alike_are_one_cell() -> None:
    found = Partition.of(np.full((50, 3), 1 / 3), 10)
    assert len(found.centres) == 1
    np.testing.assert_array_equal(found(np.eye(3)), 0)
