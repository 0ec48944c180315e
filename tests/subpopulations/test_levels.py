"""Levels: distinct values with their weights, counted or sorted, are those of a loop; masses of levels are sums."""

import re
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowcal
from lowcal.data.checked_json import Plain
from lowcal.data.frames import Table
from lowcal.subpopulations import ENCODERS, levels
from lowcal.subpopulations.groups import Groups
from lowcal.subpopulations.levels import (
    MISSING,
    UNSEEN,
    LevelMasses,
    Levels,
    drop_rare,
    learn_levels,
    quantile_cuts,
    weighted_values,
)

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
    found = drop_rare(levels_, X, LevelMasses(weight), 0.0)
    assert found.codes.tolist() == [2, 3, 1, 2, 0, 3]
    for level in range(4):
        inside = weight[found.codes == level]
        assert found.mass[level].tolist() == [inside.sum(), np.square(inside).sum()]


KINDS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64]


def column(values):
    return Table.of({"x": values}).column("x")


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_whole_numbers_are_the_floats_that_equal_them(data):
    """In every type: what is learned, the codes of other rows in another type, and the masses."""
    first, second = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(KINDS))
    around = data.draw(st.sampled_from([0, 0, 0, 2**53 - 300, 300 - 2**53]))

    def draw_rows(kind):
        low, high = (min(max(bound, np.iinfo(kind).min), np.iinfo(kind).max) for bound in (around - 300, around + 300))
        return np.array(data.draw(st.lists(st.integers(low, high), min_size=1, max_size=12)), dtype=kind)

    draw = [draw_rows(first), draw_rows(second)]
    weight = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=12, max_size=12)))[: len(draw[0])]
    weight = data.draw(st.sampled_from([weight, np.full(len(draw[0]), 0.5)]))
    n_bins = data.draw(st.integers(2, 5))
    learned = learn_levels(column(draw[0]), n_bins, weight)
    assert learned == learn_levels(column(draw[0].astype(float)), n_bins, weight)
    for values in draw:
        assert learned.codes(Table.of({"x": values})).tolist() == learned.codes(Table.of({"x": values * 1.0})).tolist()
    found, same = (
        drop_rare(learned, Table.of({"x": v}), LevelMasses(weight), 0.7) for v in (draw[0], draw[0].astype(float))
    )
    assert found.levels == same.levels
    np.testing.assert_array_equal(found.mass, same.mass)


ACCOUNTS = (2**53, 2**53 + 1, 2**53 + 2)
FORMS = {
    "int64": lambda values: np.array(values, dtype=np.int64),
    "uint64": lambda values: np.array(values, dtype=np.uint64),
    "objects": lambda values: [*values, None],
    "beside floats": lambda values: [*values, 0.5, float("nan")],
    "NumPy scalars": lambda values: np.array([*map(np.int64, values), None], dtype=object),
    "Decimal": lambda values: [*map(Decimal, values), None],
    "pandas Int64": lambda values: pd.Series([*values, None], dtype="Int64"),
    "polars Int64": lambda values: pl.Series([*values, None], dtype=pl.Int64),
    "polars Decimal": lambda values: pl.Series([*map(Decimal, values), None], dtype=pl.Decimal(20, 0)),
    "Arrow int64": lambda values: pa.chunked_array([pa.array([*values, None], pa.int64())]),
    "Arrow decimal": lambda values: pa.chunked_array([pa.array([*map(Decimal, values), None], pa.decimal128(20, 0))]),
}


@pytest.mark.parametrize("fitted", FORMS)
@pytest.mark.parametrize("read", FORMS)
def test_whole_numbers_beyond_floats_keep_their_identity_in_every_form(fitted, read):
    """Neighbours beyond 2^53 are one float, and yet groups of their own; other neighbours belong to neither."""
    learned = learn_levels(column(FORMS[fitted](ACCOUNTS)), 5, np.ones(len(FORMS[fitted](ACCOUNTS))))
    assert tuple(c for c in learned.categories if c != 0.5) == ACCOUNTS
    table = Table.of({"x": FORMS[read]([2**53 + 2, 2**53 + 1, 2**53 + 3])})
    first, second, third = learned.codes(table)[:3]
    assert [learned.name(first), learned.name(second), third] == [f"x={2**53 + 2}", f"x={2**53 + 1}", UNSEEN]
    missing = table.column("x").values[3:]
    assert all(learned.codes(table)[3:][np.isnan(missing)] == MISSING)
    some = table.take(np.array([1, 1]))
    assert learned.codes(some).tolist() == [second, second]


def test_rows_without_weight_name_no_account():
    values = np.array([2**53, 2**53 + 1, 2**62], dtype=np.int64)
    assert learn_levels(column(values), 5, np.array([1.0, 0.0, 1.0])).categories == (2**53, 2**62)


def test_many_accounts_are_cut_like_other_numbers():
    accounts = 2**53 + np.arange(100)
    learned = learn_levels(column(accounts), 4, np.ones(100))
    assert learned.categories is None
    assert learned == learn_levels(column(accounts.astype(float)), 4, np.ones(100))
    few_floats = 2**62 + np.arange(100)  # all of them one float: a bin is not a category
    assert learn_levels(column(few_floats), 4, np.ones(100)) == Levels("x", None, ())


def test_whole_numbers_beyond_all_floats_are_read():
    assert column([10**400, -(10**400), 1]).values.tolist() == [np.inf, -np.inf, 1.0]
    assert learn_levels(column([10**400, 1]), 5, np.ones(2)).categories == (1, 10**400)


def test_groups_of_accounts():
    accounts = 2**62 + np.arange(500) % 3
    learner = Groups(n_bins=5).prepare({"account": accounts})
    assert learner.names == ("everyone", *(f"account={2**62 + k}" for k in range(3)))
    np.testing.assert_array_equal(learner.design().dense()[:, 1:], accounts[:, None] == 2**62 + np.arange(3))


def test_whole_numbers_stay_in_their_type():
    """A column of bytes is counted and coded as bytes: no float64 is made of it, and predictions agree."""
    ages = np.random.default_rng(0).integers(18, 30, 500).astype(np.uint8)
    table = Table.of({"age": ages})
    learner = Groups(n_bins=20).prepare(table)
    assert "_floats" not in vars(table.column("age"))
    assert table.column("age").numbers is ages
    other = Groups(n_bins=20).prepare({"age": ages.astype(float)})
    assert learner.names == other.names
    np.testing.assert_array_equal(learner.design().dense(), other.design().dense())


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from([*np.linspace(-1, 1, 40).tolist(), np.nan, np.inf, -np.inf]), min_size=1, max_size=200),
    st.integers(2, 12),
    st.sampled_from([3, 20, 1 << 14]),
    st.sampled_from(["equal", "unequal", "some zero"]),
    st.integers(0, 100),
)
def test_cuts_of_many_are_those_of_sorted_values(values, n_bins, sample, weights, seed):
    """Whatever the sample says: one of three rows misleads, and the cuts are exact nevertheless."""
    rows, rng = np.array(values), np.random.default_rng(seed)
    weight = np.full(len(rows), 0.1) if weights == "equal" else rng.random(len(rows)) + 0.1
    if weights == "some zero":
        weight *= rng.random(len(rows)) < 0.7
    if not (weight[~np.isnan(rows)] > 0.0).any():
        return
    before, levels.SAMPLE = levels.SAMPLE, sample
    try:
        got = levels._cuts_of_many(rows, weight, n_bins)
    finally:
        levels.SAMPLE = before
    assert got == quantile_cuts(*levels._sorted_values(rows, weight), n_bins)


@pytest.mark.parametrize("weight", [np.full(100_003, 1e-5), np.random.default_rng(1).random(100_003)])
def test_of_many_numbers_few_are_sorted(monkeypatch, weight):
    values = np.random.default_rng(0).normal(size=100_003)  # no share of it is a whole number of rows
    expected = quantile_cuts(*levels._sorted_values(values, weight), 5)
    seen, sort = [], levels._sorted_values
    monkeypatch.setattr(levels, "_sorted_values", lambda v, w: seen.append(len(v)) or sort(v, w))
    assert learn_levels(column(values), 5, weight).cuts == expected
    assert max(seen) < 17_000
    assert sum(seen) < 40_000
    few = np.where(np.arange(100_003) % 7 == 0, 0.25, 0.75)
    assert learn_levels(column(few), 5, weight).categories == (0.25, 0.75)  # which takes all rows to know
    assert max(seen) == 100_003


@pytest.mark.parametrize("n_cuts", [0, 1, levels.FEW_CUTS, levels.FEW_CUTS + 1, 300])
def test_bins_are_found_by_comparison_or_search(n_cuts):
    rng = np.random.default_rng(n_cuts)
    cuts = np.unique(rng.normal(size=n_cuts).round(2))
    values = np.concatenate([rng.normal(size=40_000), cuts, [np.nan, np.inf, -np.inf]])
    kind = np.min_scalar_type(len(cuts) + 2)
    expected = np.where(np.isnan(values), 1, np.searchsorted(cuts, values, side="left") + 2)
    got = levels.bins_of(values, tuple(cuts), kind)
    assert got.dtype == kind
    np.testing.assert_array_equal(got, expected)


def test_of_many_numbers_some_rows_with_weight_stand_for_the_others():
    rng = np.random.default_rng(0)
    values, weight = rng.normal(size=4000), np.where(np.arange(4000) % 2 == 0, 0.0, rng.random(4000) + 0.5)
    everything = weighted_values(values, weight)
    for most in (None, 4000, 2000):  # 2000 rows have weight
        np.testing.assert_array_equal(weighted_values(values, weight, most), everything)
    distinct, mass = weighted_values(values, weight, 500)
    assert len(distinct) == 500
    assert np.isin(distinct, values[weight > 0]).all()
    assert abs(np.cumsum(mass)[249] / mass.sum() - 0.5) < 0.05
    assert abs(distinct[250] - np.median(values)) < 0.2
    whole = rng.integers(0, 50, 4000).astype(float)
    np.testing.assert_array_equal(weighted_values(whole, weight, 500), weighted_values(whole, weight))


def test_numbers_without_weight_are_no_levels():
    values = np.concatenate([np.random.default_rng(0).normal(size=50), [np.nan, np.nan]])
    weight = np.concatenate([np.zeros(50), [1.0, 1.0]])
    assert learn_levels(column(values), 5, weight) == Levels("x", ())


def test_a_sample_without_weight_says_nothing(monkeypatch):
    monkeypatch.setattr(levels, "SAMPLE", 3)
    values, weight = np.random.default_rng(0).normal(size=300), np.ones(300)
    weight[::100] = 0.0
    assert levels._cuts_of_many(values, weight, 5) == quantile_cuts(*levels._sorted_values(values, weight), 5)


# --- dates -------------------------------------------------------------------------------------------


def with_days(n: int = 600) -> tuple[np.ndarray, np.ndarray, pd.DataFrame]:
    """Return a model that drifts with the days, some of which are missing."""
    rng = np.random.default_rng(0)
    days = pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"))
    days[rng.random(n) < 0.1] = pd.NaT
    p = np.full(n, 0.5)
    y = (rng.random(n) < np.where(days < pd.Timestamp("2020-06-01"), 0.2, 0.8)).astype(int)
    return y, p, pd.DataFrame({"day": days, "quarter": days.dt.to_period("Q").dt.start_time})


@pytest.mark.parametrize(
    "made",
    [
        None,
        Groups(),
        Groups() + lowcal.Trees(max_depth=2),
        lowcal.Trees(max_depth=2),
        lowcal.Trees(n_trees=5),
        lowcal.Linear(),
        lowcal.Thresholds(),
    ],
    ids=str,
)
def test_dates_are_cut_like_numbers(made, tmp_path):
    y, p, X = with_days()
    fit = lowcal.multicalibrate(y, p, X, subpopulations=made, alpha=0.01)
    q = fit.predictor(p, X)
    assert np.abs(y - q).mean() < np.abs(y - p).mean() - 0.1
    path = tmp_path / "model.json"
    lowcal.save(fit, path)
    again = lowcal.load(path).predictor
    forms = (X, pl.from_pandas(X), pa.Table.from_pandas(X), {k: X[k].to_numpy() for k in X})
    for form in (*forms, X.apply(lambda c: c.dt.tz_localize("UTC").dt.tz_convert("America/New_York"))):
        np.testing.assert_array_equal(again(p, form), q)
    for k in range(20):
        row = {c: X[c][k] for c in X}
        plain = {c: None if v is pd.NaT else v.to_pydatetime() for c, v in row.items()}
        for one in (row, plain, X.iloc[k], {c: X[c].to_numpy()[k] for c in X}):
            assert again.one(0.5, one) == pytest.approx(q[k], abs=1e-12)
    assert lowcal.measure(y, q, X, subpopulations=made).largest < 0.1
    assert lowcal.audit(y, p, X, subpopulations=made, random_state=0).findings


def test_groups_of_dates_have_dates_in_their_names():
    y, p, X = with_days()
    names = lowcal.measure(y, p, X, subpopulations=Groups(["day", "quarter"])).names
    assert "quarter=2020-01-01" in names
    assert "day is missing" in names
    assert any(re.fullmatch(r"2020-\d\d-\d\d<day<=2020-\d\d-\d\d", name) for name in names)
    thresholds = lowcal.measure(y, p, X, subpopulations=lowcal.Thresholds("quarter")).names
    assert "quarter<=2020-04-01" in thresholds


def test_dates_are_written_as_exactly_as_they_are():
    assert levels.show_dates([0.0, -86400.0]) == ("1970-01-01", "1969-12-31")
    assert levels.show_dates([0.0, 3600.0]) == ("1970-01-01T00:00:00", "1970-01-01T01:00:00")
    assert levels.show_dates([1577881800.250001]) == ("2020-01-01T12:30:00.250001",)


def test_missing_dates_and_dates_where_nothing_was_fitted_are_accepted():
    y, p, X = with_days()
    predictor = lowcal.multicalibrate(y, p, X, subpopulations=Groups("day"), alpha=0.01).predictor
    expected = predictor.one(0.5, {"day": pd.NaT})
    np.testing.assert_allclose(predictor(p[:2], {"day": [None, None]}), expected)
    empty = Groups("day").bind(Table.of({"day": [None] * 60}), np.ones(60))
    assert empty.encoder(Table.of({"day": X["day"][:3]}))[0].shape == (3,)


@pytest.mark.parametrize("wrong", [{"is_date": False}, {"is_date": 1}, {"cuts": [1e300]}, {"categories": ["a"]}])
def test_saved_levels_of_dates_are_checked(wrong):
    data = Levels("day", None, (0.0, 86400.0), is_date=True).to_dict()
    assert ENCODERS.read(Plain({"kind": "bins", "levels": [data]}, "encoder")).levels[0].to_dict() == data
    with pytest.raises(lowcal.LowcalError):
        ENCODERS.read(Plain({"kind": "bins", "levels": [{**data, **wrong}]}, "encoder"))
