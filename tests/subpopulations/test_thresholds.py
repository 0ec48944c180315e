"""Thresholds: every one-sided threshold, with exact moments."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcal.data.frames import Table
from lowcal.subpopulations import Thresholds


def explicit(data, weight, min_mass, everyone=True):
    """{name: membership} of all thresholds with enough effective rows on both sides."""
    found = {"everyone": np.ones(len(weight))} if everyone else {}
    for name, x in data.items():
        for t in np.unique(x[~np.isnan(x) & (weight > 0)])[:-1] + 0.0:  # no -0
            sides = (x <= t, x > t)
            worth = [weight[s].sum() ** 2 / (weight[s] ** 2).sum() for s in sides]
            if min(worth) >= min_mass - 1e-6:
                found |= {f"{name}<={t:g}": sides[0].astype(float), f"{name}>{t:g}": sides[1].astype(float)}
    return found


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6), st.sampled_from([0, 1, 3, 6.5]), st.booleans())
def test_all_thresholds_with_their_moments(n, seed, min_mass, everyone):
    rng = np.random.default_rng(seed)
    data = {"a": rng.integers(0, 8, n).astype(float), "b": rng.normal(size=n).round(1)}  # ties
    data["a"][rng.random(n) < 0.2] = np.nan
    w = rng.integers(0, 4, n) + (np.arange(n) == 0)
    w = w / w.sum()
    expected = explicit(data, w, min_mass, everyone)
    if not expected:
        with pytest.raises(ValueError, match="no subpopulation"):
            Thresholds(min_mass=min_mass, everyone=everyone).prepare(Table.of(data), w)
        return
    learner = Thresholds(min_mass=min_mass, everyone=everyone).prepare(Table.of(data), w)
    assert set(learner.names) == set(expected)
    assert len(set(learner.names)) == len(learner.names)
    z = w * rng.normal(size=n)
    moments = learner.design().moments(z[:, None])[:, 0]
    C = learner.design().dense()
    for j, name in enumerate(learner.names):
        np.testing.assert_allclose(moments[j], expected[name] @ z, atol=1e-12)
        np.testing.assert_array_equal(C[:, j], expected[name])


def test_missing_values_are_on_neither_side():
    x = np.array([1.0, np.nan, 2.0, 3.0])
    learner = Thresholds(min_mass=0, everyone=False).prepare(Table.of({"x": x}), np.full(4, 0.25))
    assert learner.names == ("x<=1", "x<=2", "x>1", "x>2")
    np.testing.assert_array_equal(learner.design().dense()[1], np.zeros(4))


def test_new_rows_fall_between_the_cuts():
    learner = Thresholds(min_mass=0).prepare(Table.of({"x": np.array([1.0, 2.0, 3.0])}), np.full(3, 1 / 3))
    new = np.array([-np.inf, 1.0, 1.5, 2.0, 99.0, np.nan])
    C = learner.design(learner.encoder(Table.of({"x": new}))).dense()
    for j, name in enumerate(learner.names):
        with np.errstate(invalid="ignore"):
            expected = {"everyone": new == new, "x<=1": new <= 1, "x<=2": new <= 2, "x>1": new > 1, "x>2": new > 2}
        wanted = np.ones(6) if name == "everyone" else expected[name]
        np.testing.assert_array_equal(C[:, j], wanted)


def test_many_distinct_values_are_told_apart():
    x = 1e6 + np.arange(300.0)
    learner = Thresholds(min_mass=30).prepare(Table.of({"x": x}), np.full(300, 1 / 300))
    assert len(set(learner.names)) == len(learner.names) == 1 + 2 * (300 - 59)
    assert "x<=1000029" in learner.names
    assert "x<=1000028" not in learner.names
    assert learner.rows[0].dtype == np.uint8
    assert Thresholds(min_mass=0).prepare(Table.of({"x": x}), np.full(300, 1 / 300)).rows[0].dtype == np.uint16


def test_a_constant_column_has_no_threshold():
    table = Table.of({"x": np.ones(50), "y": np.full(50, np.nan)})
    learner = Thresholds(min_mass=1).prepare(table, np.full(50, 0.02))
    assert learner.names == ("everyone",)


def test_plain_data_and_single_members():
    rng = np.random.default_rng(0)
    learner = Thresholds(min_mass=2).prepare(Table.of(rng.normal(size=(30, 2))), np.full(30, 1 / 30))
    C = learner.design().dense()
    for j in (0, 1, 20, len(learner.names) - 1):
        np.testing.assert_array_equal(learner.member(j).design(learner.rows).dense()[:, 0], C[:, j])
    json.dumps([learner.families[0].to_dict(), learner.encoder.to_dict()])
