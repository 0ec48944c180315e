"""Groups and Intersections: memberships against an independent recomputation, on the fitted rows and on new ones."""

from __future__ import annotations

import cProfile
import json
from collections import Counter
from itertools import combinations, pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcal.data.frames import Table
from lowcal.kernels.reference import Codes
from lowcal.subpopulations import EVERYONE, Groups, Intersections
from lowcal.subpopulations.groups import MERGED_LEVELS, cover
from lowcal.subpopulations.levels import FIRST, MISSING, UNSEEN, Levels, quantile_cuts, show_numbers
from worlds import uniform

N = 400


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, N).astype(float)
    age[rng.random(N) < 0.1] = np.nan
    return {
        "sex": rng.choice(np.array(["F", "M", None], dtype=object), N, p=[0.5, 0.4, 0.1]),
        "member": rng.random(N) < 0.3,
        "children": rng.integers(0, 4, N),
        "age": age,
    }


def is_missing(values):
    return np.array([v is None or v != v for v in values.tolist()])


def cuts_of(values, weight, n_bins):
    """The weighted quantiles: the least value with at least k/n_bins of the weight at or below it."""
    present = ~np.isnan(values)
    order = np.argsort(values[present], kind="stable")
    sorted_values, w = values[present][order], weight[present][order]
    reached = np.cumsum(w) / w.sum()
    cuts = {sorted_values[np.flatnonzero(reached >= k / n_bins - 1e-9)[0]] for k in range(1, n_bins)}
    return sorted(c for c in cuts if c < sorted_values.max())


def members_of(name, values, weight, n_bins):
    """{name of group: membership} of one column, worked out value by value."""
    missing = is_missing(values)
    groups = {f"{name} is missing": missing}
    present = values[~missing]
    if values.dtype.kind in "if" and len(np.unique(present)) > n_bins:
        edges = [-np.inf, *cuts_of(values, weight, n_bins), np.inf]
        for low, high in pairwise(edges):
            left = "" if low == -np.inf else f"{low:.6g}<"
            label = f"{name}>{low:.6g}" if high == np.inf else f"{left}{name}<={high:.6g}"
            groups[label] = (values > low) & (values <= high)
    else:
        for value in sorted(set(present.tolist()), key=str):
            shown = int(value) if isinstance(value, float) else value
            groups[f"{name}={shown}"] = np.array([v == value for v in values.tolist()])
    return groups


def explicit(data, weight, depth=1, n_bins=5, min_mass=30.0, everyone=True):
    single = {name: members_of(name, np.asarray(values), weight, n_bins) for name, values in data.items()}
    found = {EVERYONE: np.ones(len(weight))} if everyone else {}
    for size in range(1, depth + 1):
        for subset in combinations(single, size):
            for names in product(*[single[c] for c in subset]):
                c = np.all([single[s][name] for s, name in zip(subset, names, strict=True)], axis=0)
                w = weight[c]
                if len(w) and w.sum() > 0 and w.sum() ** 2 / (w**2).sum() >= min_mass - 1e-6:
                    found[" & ".join(names)] = c.astype(float)
    return found


def agrees(learner, expected, rows=None):
    C = learner.design(rows).dense()
    assert len(learner.names) == len(set(learner.names))
    assert set(learner.names) == set(expected)
    for j, name in enumerate(learner.names):
        np.testing.assert_array_equal(C[:, j], expected[name], err_msg=name)


@pytest.mark.parametrize("everyone", [True, False])
@pytest.mark.parametrize("min_mass", [0, 30, 60])
def test_groups_are_the_values_of_the_columns(columns, everyone, min_mass):
    w = uniform(N)
    learner = Groups(min_mass=min_mass, everyone=everyone).prepare(Table.of(columns), w)
    agrees(learner, explicit(columns, w, min_mass=min_mass, everyone=everyone))
    assert learner.is_exact
    assert (learner.names[0] == EVERYONE) is everyone


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("n_bins", [2, 5])
def test_intersections_are_conjunctions(columns, depth, n_bins):
    w = uniform(N)
    learner = Intersections(depth=depth, n_bins=n_bins, min_mass=10).prepare(Table.of(columns), w)
    agrees(learner, explicit(columns, w, depth, n_bins, 10))


def test_sample_weights_move_quantiles_and_sizes(columns):
    w = np.random.default_rng(1).exponential(size=N) ** 2
    w[:50] = 0.0
    w /= w.sum()
    kept = {name: values[50:] for name, values in columns.items()}
    learner = Intersections(min_mass=20).prepare(Table.of(columns), w)
    expected = explicit(kept, w[50:], depth=2, min_mass=20)
    assert set(learner.names) == set(expected)
    for j, name in enumerate(learner.names):
        np.testing.assert_array_equal(learner.design().column(j)[50:], expected[name])


@pytest.mark.parametrize("n", range(60, 200, 7))
def test_a_group_of_exactly_min_mass_rows_stays(n):
    table = Table.of({"g": np.array(["a"] * 30 + ["b"] * (n - 30), dtype=object)})
    for w in (uniform(n), np.full(n, 0.1) / (n * 0.1)):
        assert "g=a" in Groups(min_mass=30).prepare(table, w).names
        assert "g=a" not in Groups(min_mass=30.5).prepare(table, w).names


def test_new_rows_missing_and_unseen(columns):
    learner = Intersections(["sex", "age"], min_mass=1).prepare(Table.of(columns), uniform(N))
    new = {"sex": np.array(["F", "X", None, "M"], dtype=object), "age": np.array([1000.0, 40.0, np.nan, -5.0])}
    C = learner.design(learner.encoder(Table.of(new))).dense()
    rows = [{name for name, on in zip(learner.names, row, strict=True) if on} for row in C]
    cuts = cuts_of(columns["age"], uniform(N), 5)
    top, bottom = f"age>{cuts[-1]:g}", f"age<={cuts[0]:g}"
    assert rows[0] == {EVERYONE, "sex=F", top, f"sex=F & {top}"}
    assert len(rows[1]) == 2  # unseen sex: everyone and the bin of the age only
    assert not any("sex" in name for name in rows[1])
    assert rows[2] == {EVERYONE, "sex is missing", "age is missing", "sex is missing & age is missing"} & set(
        learner.names
    )
    assert rows[3] == {EVERYONE, "sex=M", bottom, f"sex=M & {bottom}"}


def test_an_unseen_number_of_a_few_valued_column_is_in_no_group():
    learner = Groups(min_mass=1).prepare(Table.of({"k": np.array([1, 2, 3] * 5)}), uniform(15))
    C = learner.design(learner.encoder(Table.of({"k": np.array([2.0, 2.5, 9.0])})))
    np.testing.assert_array_equal(C.dense(), [[1, 0, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    assert learner.names == (EVERYONE, "k=1", "k=2", "k=3")


def test_a_column_without_values_gives_one_group():
    learner = Groups(min_mass=1).prepare(Table.of({"k": np.full(5, np.nan)}), uniform(5))
    assert learner.names == (EVERYONE, "k is missing")
    constant = Groups(min_mass=1, everyone=False).prepare(Table.of({"k": np.ones(5)}), uniform(5))
    assert constant.names == ("k=1",)


def test_columns_by_name_position_and_once(columns):
    table, w = Table.of(columns), uniform(N)
    by_name = Groups(["sex", "children"], min_mass=1).prepare(table, w).names
    assert by_name == Groups([0, 2], min_mass=1).prepare(table, w).names
    assert by_name == Groups(("sex", np.int64(2), "sex"), min_mass=1).prepare(table, w).names
    assert Groups("sex", min_mass=1).prepare(table, w).names == Groups(np.int64(0), min_mass=1).prepare(table, w).names


def test_names_tell_groups_apart():
    big = np.repeat([1e6 + 1, 1e6 + 2, 1e6 + 3, 1e6 + 4], 10)
    learner = Groups(n_bins=3, min_mass=1).prepare(Table.of({"pay": big}), uniform(40))
    assert len(set(learner.names)) == len(learner.names) == 4
    mixed = {"id": np.array([1, "1"] * 10, dtype=object)}
    learner = Groups(min_mass=1).prepare(Table.of(mixed), uniform(20))
    assert set(learner.names) == {EVERYONE, "id=1", "id='1'"}
    assert show_numbers([1.0, 1.0 + 2**-52]) == ("1.0", "1.0000000000000002")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-20, 20), min_size=1, max_size=60),
    st.integers(2, 8),
    st.integers(0, 10**6),
)
def test_quantile_cuts(values, n_bins, seed):
    values = np.array(values, dtype=float)
    w = np.random.default_rng(seed).integers(1, 5, len(values)) / 7.0
    distinct, which = np.unique(values, return_inverse=True)
    cuts = quantile_cuts(distinct, np.bincount(which, w), n_bins)
    assert list(cuts) == cuts_of(values, w, n_bins)


# --- the plan: which columns are merged ----------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(2, 60), min_size=1, max_size=9), st.integers(1, 4), st.integers(2, 3000))
def test_every_subset_lies_in_one_merged_column(counts, depth, limit):
    plan = cover(counts, depth, limit)
    for subset in combinations(range(len(counts)), min(depth, len(counts))):
        assert any(set(subset) <= set(merged) for merged in plan)
    for merged in plan:
        assert len(set(merged)) == len(merged)
        few = prod(counts[k] for k in merged) <= limit
        assert few or len(merged) <= min(depth, len(counts))


@pytest.mark.parametrize(("depth", "n_columns", "n_levels"), [(2, 6, 12), (3, 5, 9), (2, 3, 300)])
def test_many_columns_need_several_code_columns(depth, n_columns, n_levels):
    rng = np.random.default_rng(depth)
    n = 3000
    data = {f"g{j}": rng.integers(0, n_levels, n).astype(str).astype(object) for j in range(n_columns)}
    table = Table.of(data)
    learner = Intersections(depth=depth, min_mass=2).prepare(table, uniform(n))
    assert len(learner.encoder.plan) > 1
    C = learner.design()
    R = rng.normal(size=(n, 2))
    moments = C.moments(R)
    for j in rng.choice(len(learner.names), 200):
        name = learner.names[j]
        c = np.ones(n, dtype=bool)
        for condition in name.split(" & ") if name != EVERYONE else ():
            column, value = condition.split("=")
            c &= data[column] == value
        np.testing.assert_allclose(moments[j], R[c].sum(axis=0), atol=1e-9)
        assert c.sum() >= 2
    # every conjunction that occurs twice is there
    pairs = {
        f"{a}={u} & {b}={v}"
        for a, b in combinations(data, 2)
        for (u, v), k in _counts(data[a], data[b]).items()
        if k >= 2
    }
    assert pairs <= set(learner.names)


def _counts(a, b):
    return Counter(zip(a.tolist(), b.tolist(), strict=True))


@pytest.mark.parametrize(("n_values", "kind"), [(3, np.uint8), (250, np.uint8), (300, np.uint16), (3000, np.uint16)])
def test_code_columns_are_small(n_values, kind):
    n = 2 * n_values
    table = Table.of({"g": _text(n, n_values)})
    learner = Groups(min_mass=1).prepare(table, uniform(n))
    design = learner.design()
    assert isinstance(design, Codes)
    assert [c.dtype for c in design.codes] == [kind]
    assert len(learner.names) == n_values + 1


def _text(n, n_values):
    return (np.arange(n) % n_values).astype(str).astype(object)


def test_merged_columns_stay_in_bounds():
    data = {f"g{j}": _text(500, 7) for j in range(10)}
    learner = Intersections(min_mass=1).prepare(Table.of(data), uniform(500))
    assert all(prod(learner.encoder.shape(merged)) <= MERGED_LEVELS for merged in learner.encoder.plan)


# --- one door for all tables ---------------------------------------------------------------------------------


def test_every_kind_of_table_gives_the_same_codes(columns):
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    lists = {name: [None if v != v else v for v in np.asarray(c).tolist()] for name, c in columns.items()}
    made = Intersections(min_mass=1).prepare(Table.of(columns), uniform(N))
    forms = [pd.DataFrame(columns), pl.DataFrame(lists), pa.table(lists), pd.DataFrame(columns).astype(object), lists]
    for form in forms:
        again = Intersections(min_mass=1).prepare(Table.of(form), uniform(N))
        assert again.names == made.names
        for left, right in zip(again.rows, made.rows, strict=True):
            np.testing.assert_array_equal(left, right)
        for left, right in zip(made.encoder(Table.of(form)), made.rows, strict=True):
            np.testing.assert_array_equal(left, right)
    numbers = {name: columns[name] for name in ("children", "age")}
    matrix = np.column_stack(list(numbers.values()))
    named = Groups(min_mass=1).prepare(Table.of(numbers), uniform(N))
    bare = Groups(min_mass=1).prepare(Table.of(matrix), uniform(N))
    np.testing.assert_array_equal(named.design().dense(), bare.design().dense())
    assert [name.replace("x0", "children").replace("x1", "age") for name in bare.names] == list(named.names)


def test_taking_members_keeps_their_rows(columns):
    learner = Intersections(min_mass=5).prepare(Table.of(columns), uniform(N))
    C = learner.design().dense()
    family = learner.families[0]
    some = np.array([0, 3, len(learner.names) - 1])
    taken = family.take(some)
    assert taken.names == tuple(learner.names[j] for j in some)
    np.testing.assert_array_equal(taken.design(learner.rows).dense(), C[:, some])
    for j in (0, 5, len(learner.names) - 1):
        one = learner.member(j)
        assert one.names == (learner.names[j],)
        np.testing.assert_array_equal(one.design(learner.rows).dense()[:, 0], C[:, j])
    with pytest.raises(IndexError):
        learner.member(len(learner.names))
    json.dumps([family.to_dict(), learner.encoder.to_dict()])


def test_cover_takes_few_tables():
    assert cover([12] * 10, 1, 2048) == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9,))  # no column twice
    eight = [4, 5, 7, 7, 8, 9, 10, 12]
    assert len(cover(eight, 2, 2048)) <= 10 < 28  # pairs of columns
    assert len(cover(eight, 2, 16_384)) <= 6


@pytest.mark.parametrize(
    "known", [(0, 1, 2), (3, 5), (-1, 0), (0.5, 7), (False, True), (2**53 + 1, "a", 4), (10**400, 1)]
)
def test_levels_of_numbers_are_those_of_equal_categories(known):
    values = [0.0, 1.0, 2.0, 3.0, 5.0, -1.0, 0.5, 7.0, 4.0, 2.0**53, np.nan, np.inf, -np.inf, 1.5, -0.0]
    place = {c: FIRST + k for k, c in enumerate(known)}
    expected = [MISSING if v != v else place.get(v, UNSEEN) for v in values]
    assert Levels("x", known).codes(Table.of({"x": np.array(values)})).tolist() == expected


def calls_to_prepare(subpopulations, n_columns):
    table = Table.of(np.random.default_rng(0).integers(0, 4, (200, n_columns)))
    subpopulations.prepare(table)  # what is loaded or computed once
    with cProfile.Profile() as profile:
        subpopulations.prepare(table)
    return sum(entry.callcount for entry in profile.getstats())


def test_planning_groups_takes_work_in_proportion_to_the_columns():
    few, many = (calls_to_prepare(Groups(), n_columns) for n_columns in (50, 400))
    assert many < 8 * 1.1 * few


def test_planning_pairs_takes_work_in_proportion_to_the_pairs():
    few, many = (calls_to_prepare(Intersections(min_mass=1), n_columns) for n_columns in (10, 40))
    assert many < 780 / 45 * 1.5 * few


def most_covering(chosen, left, counts, limit):
    """The column with which the chosen ones cover the most of what is left, the first of several; None if none does."""
    fitting = [k for k in range(len(counts)) if k not in chosen and prod(counts[j] for j in {*chosen, k}) <= limit]
    gain = {k: sum(k in subset and {*chosen, k} >= set(subset) for subset in left) for k in fitting}
    best = max(gain, key=gain.__getitem__, default=None)
    return best if best is not None and gain[best] else None


def greedy(counts, depth, limit):
    """The plan by its definition, every subset counted anew for every column."""
    left, plan = list(combinations(range(len(counts)), min(depth, len(counts)))), []
    while left:
        chosen = set(left[0])
        while (column := most_covering(chosen, left, counts, limit)) is not None:
            chosen.add(column)
        left = [subset for subset in left if not chosen >= set(subset)]
        plan.append(tuple(sorted(chosen)))
    return tuple(plan)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(2, 60), min_size=1, max_size=8), st.integers(1, 3), st.integers(2, 3000))
def test_the_plan_is_greedy(counts, depth, limit):
    assert cover(counts, depth, limit) == greedy(counts, depth, limit)
