"""Levels: distinct values with their weights, counted or sorted, are those of a loop; masses of levels are sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcal.frames import Table
from lowcal.subpopulations import levels
from lowcal.subpopulations.levels import Levels, Masses, drop_rare, weighted_values

numbers = st.sampled_from([0.0, -0.0, 1.0, 2.0, 7.0, -3.0, 0.5, 1e17, -1e300, np.inf, -np.inf, np.nan])
whole = st.sampled_from([0.0, 1.0, 2.0, 7.0, -3.0, 65_530.0, np.nan])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.one_of(numbers, whole), st.sampled_from([0.0, 0.5, 1.0])), max_size=12)
    | st.lists(st.tuples(whole, st.sampled_from([0.0, 0.5, 1.0])), max_size=12)
)
def test_distinct_values_and_their_weights(rows):
    values, weight = np.array([v for v, _ in rows]), np.array([w for _, w in rows])
    expected: dict[float, float] = {}
    for v, w in rows:
        if w > 0 and v == v:
            expected[v] = expected.get(v, 0.0) + w
    distinct, mass = weighted_values(values, weight)
    assert distinct.tolist() == sorted(expected)
    assert mass.tolist() == [expected[v] for v in sorted(expected)]


def test_many_rows_are_counted_in_pieces(monkeypatch):
    monkeypatch.setattr(levels, "CHUNK", levels.CACHE * 7)
    rng = np.random.default_rng(0)
    values = np.where(rng.random(500_000) < 0.1, np.nan, rng.integers(-5, 5, 500_000).astype(float))
    distinct, mass = weighted_values(values, np.ones(len(values)))
    assert distinct.tolist() == list(range(-5, 5))
    assert mass.tolist() == [np.count_nonzero(values == v) for v in distinct]
    values[-1] = 0.5
    assert 0.5 in weighted_values(values, np.ones(len(values)))[0]


@pytest.mark.parametrize("weight", [np.full(6, 0.5), np.array([0.5, 0.5, 0.25, 1.0, 0.0, 2.0])])
@pytest.mark.parametrize(
    "column", [np.array(["a", "b", None, "a", "c", "b"], dtype=object), np.array([1.0, 2.0, np.nan, 1.0, 3.0, 2.0])]
)
def test_masses_of_levels_are_sums_over_rows(column, weight):
    X = Table.of({"x": column})
    known = ("a", "b") if column.dtype == object else (1, 2)
    levels_ = Levels("x", known)
    found = drop_rare(levels_, X, Masses(weight), 0.0)
    assert found.codes.tolist() == [2, 3, 1, 2, 0, 3]
    for level in range(4):
        inside = weight[found.codes == level]
        assert found.mass[level].tolist() == [inside.sum(), np.square(inside).sum()]
