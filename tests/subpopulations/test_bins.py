"""Bins: small ordered integers, at most as many as asked for, with room for the values beside a frequent one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcal.data.frames import Table
from lowcal.subpopulations import bins
from lowcal.subpopulations.bins import BinEncoder, Binned, Orderly, even_cuts, learn_bins


def shares(cuts, distinct, mass):
    """The mass of every bin, by a loop."""
    edges = [-np.inf, *cuts, np.inf]
    return [sum(m for v, m in zip(distinct, mass, strict=True) if a < v <= b) for a, b in itertools.pairwise(edges)]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 20), st.integers(21, 120))
def test_bins_are_within_the_limit_and_none_is_empty(seed, n_bins, n_values):
    rng = np.random.default_rng(seed)
    distinct = np.cumsum(rng.random(n_values) + 0.1)
    mass = rng.random(n_values) ** rng.integers(1, 12)
    cuts = even_cuts(distinct, mass, n_bins)
    assert len(cuts) <= n_bins - 1
    assert np.isin(cuts, distinct[:-1]).all()
    assert (np.diff(cuts) > 0).all()
    found = shares(cuts, distinct, mass)
    assert min(found) > 0
    np.testing.assert_array_equal(cuts, even_cuts(distinct, 3.7 * mass, n_bins))


@pytest.mark.parametrize("place", [0, 50, 100])
def test_a_frequent_value_does_not_crowd_out_the_others(place):
    """Nine rows in ten share one value: quantiles would leave the rest two bins of twenty."""
    distinct, mass = np.arange(101.0), np.ones(101)
    mass[place] = 900.0
    cuts = even_cuts(distinct, mass, 20)
    assert len(cuts) >= 18
    alone = [c for c in (place - 1, place) if 0 <= c < 100]
    assert set(alone) <= set(cuts)
    assert max(m for m in shares(cuts, distinct, mass) if m < 900) <= 7


@pytest.mark.parametrize("place", [20, 42, 71])
def test_a_value_worth_three_shares_is_alone_but_for_a_small_run(place):
    distinct, mass = np.arange(101.0), np.ones(101)
    mass[place] = 15.0
    cuts = even_cuts(distinct, mass, 20)
    assert place in cuts
    share = 100 / 19
    assert max(shares(cuts, distinct, mass)) <= 15 + share / 2
    assert sorted(shares(cuts, distinct, mass))[-2] <= np.ceil(share)


def test_equal_masses_make_equal_bins():
    assert even_cuts(np.arange(100.0), np.ones(100), 4) == (24.0, 49.0, 74.0)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_bins_follow_the_weights(is_weighted):
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    x[::7] = np.nan
    w = rng.integers(0, 3, 400).astype(float) if is_weighted else np.ones(400)
    copies = np.repeat(x, w.astype(int))
    one = learn_bins("x0", Table.of(x[:, None]), 16, w / w.sum())
    other = learn_bins("x0", Table.of(copies[:, None]), 16, np.full(len(copies), 1 / len(copies)))
    assert one == other
    assert 10 < len(one.cuts) <= 15


def test_codes_are_ordered_like_the_values_and_missing_comes_first():
    rng = np.random.default_rng(1)
    x = rng.normal(size=300)
    x[:20] = np.nan
    table = Table.of({"x": x})
    rows = BinEncoder((learn_bins("x", table, 8, np.full(300, 1 / 300)),))(table)
    codes = rows.codes[:, 0].astype(int)
    assert rows.shape == (300, 1)
    assert rows.codes.dtype == np.uint8
    assert (codes[:20] == 1).all()
    assert (codes[20:] >= 2).all()
    order = np.argsort(x[20:])
    assert (np.diff(codes[20:][order]) >= 0).all()


def test_what_is_computed_once_belongs_to_its_key():
    rows = Binned(np.zeros((3, 1), dtype=np.uint8))
    calls = []
    keys = [object() for _ in range(50)]
    for key in keys + keys:
        rows.once(key, lambda key=key: calls.append(key))
    assert calls == keys


def ordered(values, weight, residual):
    X = Table.of({"a": np.array(values, dtype=object)})
    levels = learn_bins("a", X, 64, weight)
    return order(levels, levels.codes(X), weight, residual)


def order(levels, codes, weight, residual):
    """The levels of a column after its categories were put in order."""
    column = Orderly((levels,), codes[:, None])
    return column.levels_after(column.order_by(column.sums(slice(None), weight, residual)))[0]


def test_categories_go_from_the_lowest_mean_residual_to_the_highest():
    values = np.repeat(["a", "b", "c", "d"], 200)
    means = np.repeat([0.3, -0.2, 0.1, -0.4], 200)
    residual = (means + np.tile([0.5, -0.5], 400))[:, None]
    weight = np.full(800, 1 / 800)
    assert ordered(values, weight, residual).categories == ("d", "b", "c", "a")
    assert ordered(values, weight, -residual).categories == ("a", "c", "b", "d")
    heavy = weight * np.where(np.tile([True, False], 400), 1.0, 0.0)  # rows without weight say nothing
    seen = np.where(heavy[:, None] > 0, residual, 9.0 * means[::-1, None])
    assert ordered(values, heavy / heavy.sum(), seen).categories == ("d", "b", "c", "a")


def test_small_categories_keep_their_place_in_the_middle():
    """The means of few rows are noise, which a tree would learn by heart."""
    rng = np.random.default_rng(0)
    values = np.concatenate([np.repeat(["low", "high"], 300), [f"id {k:03d}" for k in range(100) for _ in range(9)]])
    residual = np.concatenate([np.repeat([-0.4, 0.4], 300), rng.normal(size=900)])[:, None]
    weight = np.full(len(values), 1 / len(values))
    found = ordered(values, weight, residual).categories
    assert found == ("low", *(f"id {k:03d}" for k in range(100)), "high")
    assert ordered(values[600:], weight[600:], residual[600:]).categories == found[1:-1]


def test_several_labels_are_ordered_where_they_differ_most():
    values = np.repeat(["a", "b", "c"], 300)
    along = np.repeat([0.1, -0.3, 0.2], 300)[:, None]
    residual = along * np.array([1.0, -0.9, -0.1]) + 1e-3 * np.random.default_rng(0).normal(size=(900, 3))
    weight = np.full(900, 1 / 900)
    assert ordered(values, weight, residual).categories in (("b", "a", "c"), ("c", "a", "b"))
    assert ordered(values, weight, residual).categories == ordered(values[::-1], weight, residual[::-1]).categories


def test_numbers_and_pairs_of_categories_are_left_alone():
    X = Table.of({"number": np.arange(400.0) % 5, "pair": np.array(["x", "y"] * 200, dtype=object)})
    weight, residual = np.full(400, 1 / 400), -np.arange(400.0)[:, None]
    for name in X.names:
        levels = learn_bins(name, X, 64, weight)
        assert order(levels, levels.codes(X), weight, residual) is levels


def test_of_many_rows_some_say_where_bins_are_cut(monkeypatch):
    """Every row is binned by the cuts of a few; few whole numbers are counted on all rows."""
    rng = np.random.default_rng(0)
    X = Table.of({"x": rng.normal(size=5000), "k": rng.integers(0, 9, 5000)})
    whole = [learn_bins(name, X, 16, np.full(5000, 1 / 5000)) for name in ("x", "k")]
    monkeypatch.setattr(bins, "BIN_ROWS", 1000)
    some = [learn_bins(name, X, 16, np.full(5000, 1 / 5000)) for name in ("x", "k")]
    assert some[1] == whole[1]
    assert some[0] != whole[0]
    assert len(some[0].cuts) == len(whole[0].cuts) == 15
    counts = np.bincount(some[0].codes(X))[2:]
    assert counts.sum() == 5000
    assert counts.min() > 150  # an even share is 312
