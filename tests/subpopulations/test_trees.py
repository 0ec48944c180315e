"""Trees: every node is the set that its name says, large enough, and found where the residuals are."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lowcal import load, save
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table
from lowcal.datasets import make_miscalibrated
from lowcal.subpopulations import Groups, Trees
from lowcal.subpopulations.base import MOST_RESIDUALS, n_labels
from lowcal.subpopulations.bins import Binned
from lowcal.subpopulations.growing import Forest
from lowcal.subpopulations.trees import TreeSum, combination_of
from lowcal.testing import check_subpopulations
from worlds import multicalibrate, uniform

N = 800


@pytest.fixture(scope="module")
def columns():
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, N).astype(float)
    age[rng.random(N) < 0.15] = np.nan
    return {
        "age": age,
        "pay": 1e6 + rng.normal(size=N),
        "sex": rng.choice(np.array(["F", "M", "X", None], dtype=object), N),
        "member": rng.random(N) < 0.4,
    }


def holds(condition, data):
    """Evaluate one condition of a name on raw columns, knowing nothing of bins and codes."""
    if match := re.fullmatch(r"(\w+) is missing", condition):
        return is_missing(data[match[1]])
    if match := re.fullmatch(r"(\w+) is present", condition):
        return ~is_missing(data[match[1]])
    condition, n = re.subn(" or missing$", "", condition)
    if match := re.fullmatch(r"(\w+) in \{(.*)\}", condition):
        column = data[match[1]]
        inside = np.isin([str(v) for v in np.asarray(column).tolist()], match[2].split(", ")) & ~is_missing(column)
    else:
        match = re.fullmatch(r"(?:([-\d.e+]+)<)?([a-z]\w*)(?:(<=|>)([-\d.e+]+))?", condition)
        low, column, sign, bound = match.groups()
        x = np.asarray(data[column], dtype=float)
        inside = np.ones(len(x), dtype=bool) if low is None else x > float(low)
        if sign:
            inside &= (x <= float(bound)) if sign == "<=" else (x > float(bound))
    return inside | (is_missing(data[match[2] if " in {" not in condition else match[1]]) if n else False)


def is_missing(values):
    return np.array([v is None or v != v for v in np.asarray(values).tolist()])


def member(name, data):
    n = len(next(iter(data.values())))
    c = np.ones(n, dtype=bool)
    for condition in name.split(" & ") if name != "everyone" else ():
        c &= holds(condition, data)
    return c


def take(data, rows):
    return {name: np.asarray(values)[rows] for name, values in data.items()}


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("min_mass", [5, 60])
def test_every_node_is_what_its_name_says(columns, depth, min_mass):
    # whole numbers are shown in full; pay needs rounding, so it is compared at the cuts that are shown
    data = {**columns, "pay": np.round(columns["pay"], 1)}
    rng = np.random.default_rng(depth)
    w = rng.random(N) + 0.1
    w /= w.sum()
    learner = Trees(max_depth=depth, min_mass=min_mass).prepare(Table.of(data), w)
    assert not learner.is_exact
    for _ in range(4):
        learner.learn(rng.normal(size=(N, 1)))
    assert len(learner.names) == len(set(learner.names)) > 5
    C = learner.design().dense()
    for j, name in enumerate(learner.names):
        c = member(name, data)
        np.testing.assert_array_equal(C[:, j], c, err_msg=name)
        assert w[c].sum() ** 2 / (w[c] ** 2).sum() >= min_mass * (1 - 1e-9)
        assert len(name.split(" & ")) <= depth
        one = learner.member(j)
        np.testing.assert_array_equal(one.design(learner.rows).dense()[:, 0], c)


def test_new_rows_follow_the_names(columns):
    data = {**columns, "pay": np.round(columns["pay"], 1)}
    rng = np.random.default_rng(7)
    half = N // 2
    learner = Trees(max_depth=3, min_mass=10).prepare(Table.of(take(data, slice(0, half))), uniform(half))
    for _ in range(3):
        learner.learn(rng.normal(size=(half, 1)))
    rest = take(data, slice(half, N))
    C = learner.design(learner.encoder(Table.of(rest))).dense()
    for j, name in enumerate(learner.names):
        np.testing.assert_array_equal(C[:, j], member(name, rest), err_msg=name)


def test_unseen_values_go_where_missing_ones_go(columns):
    rng = np.random.default_rng(3)
    learner = Trees(columns=["sex", "member"], max_depth=2, min_mass=5).prepare(Table.of(columns), uniform(N))
    for _ in range(3):
        learner.learn(rng.normal(size=(N, 1)))
    strange = {"sex": np.array(["?", None], dtype=object), "member": np.array([True, True])}
    C = learner.design(learner.encoder(Table.of(strange))).dense()
    np.testing.assert_array_equal(C[0], C[1])


def test_a_planted_group_is_found():
    rng = np.random.default_rng(1)
    n = 4000
    data = {
        "age": rng.integers(18, 80, n).astype(float),
        "sex": rng.choice(np.array(["F", "M"], dtype=object), n),
        "noise": rng.normal(size=n),
    }
    group = (data["age"] <= 30) & (data["sex"] == "F")
    z = (0.3 * group + 0.05 * rng.normal(size=n)) / n
    learner = Trees(max_depth=2).prepare(Table.of(data), uniform(n))
    found = learner.search(z / learner.weight, 0.3 * group.mean() / 2)
    learner.learn(z[:, None] / learner.weight[:, None])
    names = set(learner.names)
    assert {"age<=30 or missing & sex in {F} or missing"} & names
    assert found is not None
    assert found.sign == 1.0
    c = found.family.design(learner.rows).column(0)
    assert c @ z == pytest.approx(found.violation, abs=1e-12)


def test_the_order_of_rows_does_not_matter_and_neither_does_time(columns):
    rng = np.random.default_rng(5)
    z = rng.normal(size=N) / N
    order = rng.permutation(N)
    made = []
    for rows in (np.arange(N), np.arange(N), order):
        learner = Trees(max_depth=3).prepare(Table.of(take(columns, rows)), uniform(N))
        learner.learn(z[rows][:, None] / learner.weight[:, None])
        made.append(learner)
    assert made[0].names == made[1].names == made[2].names
    np.testing.assert_array_equal(made[0].design().dense()[order], made[2].design().dense())


def test_nothing_to_split():
    table = Table.of({"x": np.ones(50)})
    learner = Trees(min_mass=1).prepare(table, uniform(50))
    assert not learner.learn(np.ones((50, 1)))
    assert learner.names == ("everyone",)
    empty = Trees().prepare(Table.of(np.zeros((5, 0))), uniform(5))
    assert empty.is_exact
    assert empty.names == ("everyone",)
    assert empty.design().shape == (5, 1)


@pytest.mark.parametrize("q", [1, 3, MOST_RESIDUALS, MOST_RESIDUALS + 1])
def test_a_tree_for_each_residual_or_one_for_many(q):
    rng = np.random.default_rng(q)
    X = rng.normal(size=(500, 4))
    learner = Trees(max_depth=2, min_mass=10).prepare(Table.of(X), uniform(500))
    assert learner.learn(rng.normal(size=(500, q)))
    trees = {id(f.tree) for f in learner.families[1:]}
    assert len(trees) <= (q if q <= MOST_RESIDUALS else 1)
    assert learner.n_calls == 1


def test_many_bins_and_levels_use_wider_codes():
    table = Table.of({"x": np.arange(2000.0), "g": (np.arange(2000) % 400).astype(str).astype(object)})
    assert Trees(columns="x").prepare(table, uniform(2000)).rows.codes.dtype == np.uint8
    assert Trees().prepare(table, uniform(2000)).rows.codes.dtype == np.uint16
    assert Trees(columns="x", max_bins=1000).prepare(table, uniform(2000)).rows.codes.dtype == np.uint16


def test_few_values_are_each_a_bin():
    x = np.repeat([0.0, 1.0, 5.0], 40)
    learner = Trees(max_depth=2, min_mass=1).prepare(Table.of({"x": x}), uniform(120))
    learner.learn((np.repeat([1.0, -1.0, 1.0], 40))[:, None])
    assert "0<x<=1" in learner.names or "x<=1 or missing" in learner.names
    assert {m for name in learner.names for m in re.findall(r"<=([\d.]+)|>([\d.]+)", name)} <= {
        ("0", ""),
        ("1", ""),
        ("", "0"),
        ("", "1"),
    }


def test_close_numbers_make_different_members():
    """The pool drops members by name: two sets must never share one."""
    x = 1e7 + np.arange(64.0)
    learner = Trees(max_depth=1, min_mass=1).prepare(Table.of({"x": x}), uniform(64))
    for cut in range(5, 60, 5):
        learner.learn((np.where(np.arange(64) <= cut, 1.0, -1.0))[:, None])
    assert len(learner.names) == 1 + 2 * len(range(5, 60, 5))
    for j, name in enumerate(learner.names):
        np.testing.assert_array_equal(learner.design().column(j), member(name, {"x": x}))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_a_stump_finds_the_best_split(seed, n_columns):
    """Depth 1 is exhaustive: no cut of any column has a larger gain."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 6, (40, n_columns)).astype(float)
    w = rng.random(40) + 0.1
    w /= w.sum()
    z = w * rng.normal(size=40)
    learner = Trees(max_depth=1, min_mass=3).prepare(Table.of(X), w)

    def gain(c):
        worth = min(w[s].sum() ** 2 / (w[s] ** 2).sum() if s.any() else 0 for s in (c, ~c))
        return sum(z[s].sum() ** 2 / w[s].sum() for s in (c, ~c)) if worth >= 3 else -np.inf

    every = [gain(X[:, k] <= t) for k in range(n_columns) for t in range(5)]
    if learner.learn(z[:, None] / learner.weight[:, None]):
        c = learner.design().column(1) == 1
        assert gain(c) == pytest.approx(max(every), rel=1e-9)
    else:
        assert max(every) == -np.inf


def test_sparse_and_dense_features_give_the_same_trees():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 5)) * (rng.random((300, 5)) < 0.3)
    z = rng.normal(size=(300, 1)) / 300
    learners = [Trees(min_mass=5).prepare(Table.of(form(X)), uniform(300)) for form in (np.asarray, sparse.csr_array)]
    for learner in learners:
        learner.learn(z / learner.weight[:, None])
    assert learners[0].names == learners[1].names
    np.testing.assert_array_equal(learners[0].design().dense(), learners[1].design().dense())


def test_plain_data(columns):
    learner = Trees(min_mass=10).prepare(Table.of(columns), uniform(N))
    learner.learn(np.random.default_rng(0).normal(size=(N, 2)))
    json.dumps([learner.encoder.to_dict(), *(f.to_dict() for f in learner.families)])


def test_corrects_what_it_finds():
    rng = np.random.default_rng(9)
    X = {"a": rng.normal(size=3000), "s": rng.choice(np.array(["u", "v"], dtype=object), 3000)}
    truth = np.where((X["a"] > 0.3) & (X["s"] == "u"), 0.8, 0.4)
    y = rng.random(3000) < truth
    fit = multicalibrate(y, np.full(3000, 0.5), X, subpopulations=Trees(max_depth=2), alpha=0.02)
    calibrated = fit.predictor(np.full(3000, 0.5), X)
    assert fit.status == "reached"
    assert np.mean((calibrated - truth) ** 2) < 0.2 * np.mean((0.5 - truth) ** 2)


# --- sums of boosted trees -----------------------------------------------------------------------------------


def binary(n=1500, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    truth = np.where(X[:, 0] * X[:, 1] > 0, 0.8, 0.3)
    y = (rng.random(n) < truth).astype(float)
    return X, y, rng.uniform(0.2, 0.8, n), truth


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_a_sum_is_one_signed_member_that_fills_its_range(geometry):
    X, y, f, truth = binary()
    learner = Trees(n_trees=30, geometry=geometry).prepare(X)
    r = (y - f)[:, None]
    assert learner.learn(np.column_stack([r, r * f[:, None]]))
    assert len(learner.names) == 2
    assert "sum #1 of 30 trees" in learner.names[1]
    assert {"x0", "x1"} <= set(re.split(r"[:, ]+", learner.names[1]))
    c = learner.design().column(1)
    assert np.abs(c).max() == pytest.approx(1.0)
    assert c.min() < 0 < c.max()
    assert np.corrcoef(c, truth - f)[0, 1] > 0.6
    beyond = learner.design(learner.encoder(Table.of(1e6 * X))).column(1)
    assert np.abs(beyond).max() <= 1.0
    json.dumps([learner.encoder.to_dict(), *(family.to_dict() for family in learner.families)])


def test_a_witness_of_the_same_residuals_brings_nothing_new_and_a_new_residual_does():
    X, y, f, _ = binary()
    learner = Trees(n_trees=5).prepare(X)
    r = y - f
    assert learner.learn(np.column_stack([r, r * f]))
    assert not learner.learn((0.3 * r - 0.7 * r * f)[:, None])
    assert learner.learn((r * f * f)[:, None])
    again = learner.fresh()
    assert again.learn((r * f * f)[:, None])  # what another pool knows does not count


def test_combinations():
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(50, 3))
    np.testing.assert_allclose(combination_of(seen @ np.array([[1.0], [-2.0], [0.5]]), seen), [1.0, -2.0, 0.5])
    assert combination_of(seen[:, [1]], np.column_stack([seen, seen[:, 0]])) is not None  # the Gram matrix is singular
    assert combination_of(seen[:, [0]] + 1e-3 * rng.normal(size=(50, 1)), seen) is None
    assert combination_of(seen[:, :2], seen) is None
    assert combination_of(seen[:, [0]], seen[:, :0]) is None


@pytest.mark.parametrize("d", [2, 3, 5])
def test_labels_are_counted_by_residuals_that_sum_to_zero(d):
    rng = np.random.default_rng(d)
    f, y = rng.dirichlet(np.ones(d), 40), np.eye(d)[rng.integers(0, d, 40)]
    r = y - f
    assert n_labels(np.column_stack([r, *(r * f[:, [a]] for a in range(d))])) == d
    assert n_labels(r[:, [0]]) == 1
    assert n_labels(np.column_stack([r[:, 0], r[:, 0] * f[:, 0]])) == 1


@pytest.mark.parametrize(("geometry", "share"), [("euclidean", 1.0), ("mirror", 2 / 3)])
def test_what_is_offered_is_the_sum_itself(geometry, share):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(900, 3))
    y, f = np.eye(3)[np.where(X[:, 0] > 0, 0, rng.integers(1, 3, 900))], np.full((900, 3), 1 / 3)
    learner = Trees(n_trees=10, geometry=geometry, min_mass=10).prepare(X)
    learner.learn(y - f)
    offers = learner.learner.offers
    assert [offer.label for offer in offers] == [0, 1, 2]
    for offer in offers:
        h = offer.family.forest(learner.rows)[:, 0]
        c = offer.family.design(learner.rows).column(0)
        np.testing.assert_allclose(offer.size * c, share * h, atol=1e-12)


def test_rows_without_weight_neither_scale_nor_shape_a_sum():
    X, y, f, _ = binary(600)
    w = np.ones(600)
    w[400:] = 0.0
    r = (y - f)[:, None]
    silent, absent = Trees(n_trees=8).prepare(X, w), Trees(n_trees=8).prepare(X[:400])
    silent.learn(r)
    absent.learn(r[:400])
    np.testing.assert_allclose(silent.design().dense()[:400], absent.design().dense(), atol=1e-12)


def test_rows_without_weight_do_not_scale_a_sum():
    """Two effects add up only on rows without weight: the others fill the range by themselves."""
    X = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], 50, axis=0)
    w = np.repeat([1.0, 1.0, 1.0, 0.0], 50)
    z = np.repeat([-0.25, 0.25, 0.25, 0.0], 50)
    learner = Trees(n_trees=40, max_depth=1, shrinkage=0.3).prepare(X, w)
    learner.learn(z[:, None])
    c = learner.design().column(1)
    assert np.abs(c[:150]).max() == pytest.approx(1.0)
    assert c[150] == 1.0  # what lies beyond is clipped


def test_what_lies_beyond_the_fitted_range_is_clipped():
    forest = Forest(np.array([[0]]), np.array([[2]]), np.array([[[-3.0], [1.0]]]))
    rows = Binned(np.array([[2], [3]], dtype=np.uint8))
    assert TreeSum("sum", forest, 2.0).design(rows).column(0).tolist() == [-1.0, 0.5]


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_sums_recalibrate_and_the_same_seed_gives_the_same_bytes(geometry):
    X, y, f, truth = binary(4000)
    trees = Trees(n_trees=20, geometry=geometry)
    options = {"alpha": 0.005, "geometry": geometry, "validation_fraction": 0.2, "random_state": 0}
    fits = [multicalibrate(y, f, X, subpopulations=trees, **options) for _ in range(2)]
    calibrated = [fit.predictor(f, X) for fit in fits]
    assert calibrated[0].tobytes() == calibrated[1].tobytes()
    assert np.mean((calibrated[0] - truth) ** 2) < 0.25 * np.mean((f - truth) ** 2)
    json.dumps(fits[0].predictor.to_dict())


def test_sums_for_several_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    truth = np.where(X[:, [0]] > 0, [[0.7, 0.2, 0.1]], [[0.1, 0.2, 0.7]])
    y = (rng.random((3000, 1)) > np.cumsum(truth, axis=1)).sum(axis=1)
    p = np.full((3000, 3), 1 / 3)
    for geometry in ("euclidean", "mirror"):
        trees = Trees(n_trees=20, geometry=geometry)
        options = {"alpha": 0.01, "geometry": geometry, "validation_fraction": 0.2, "random_state": 0}
        fit = multicalibrate(y, p, X, subpopulations=trees, **options)
        assert np.mean((fit.predictor(p, X) - truth) ** 2) < 0.3 * np.mean((p - truth) ** 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_trees": 0}, "n_trees must be"),
        ({"n_trees": 2.5}, "n_trees must be"),
        ({"shrinkage": 0.0}, "shrinkage must be"),
        ({"shrinkage": 1.5}, "shrinkage must be at most 1, but 1.5"),
        ({"geometry": "hyperbolic"}, "geometry must be 'euclidean' or 'mirror', but 'hyperbolic'"),
    ],
)
def test_refused_options(options, words):
    with pytest.raises(InvalidInput, match=words):
        Trees(**options).prepare(np.zeros((5, 1)))


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_sums_keep_the_contract(geometry):
    check_subpopulations(Trees(n_trees=4, min_mass=5, geometry=geometry))


def test_no_split_no_sum():
    learner = Trees(n_trees=5, min_mass=1).prepare(Table.of({"x": np.ones(50)}))
    assert not learner.learn(np.ones((50, 1)))


@pytest.mark.parametrize("union", [False, True])
def test_one_split_parts_categories_with_low_residuals_from_those_with_high_ones(union, tmp_path):
    """Sorted by name, the wrong categories and the right ones alternate; one cut must be enough to tell them apart."""
    rng = np.random.default_rng(0)
    town = rng.choice(np.array(list("abcdefgh"), dtype=object), 8000)
    p = np.full(8000, 0.5)
    y = (rng.random(8000) < np.where(np.isin(town, list("aceg")), 0.8, 0.2)).astype(float)
    stump = Trees(max_depth=1)
    chosen = stump + Groups([]) if union else stump
    fit = multicalibrate(y, p, {"town": town}, subpopulations=chosen, notion="multiaccuracy", alpha=0.02)
    assert fit.status == "reached"
    assert fit.n_updates == 1
    told = {name for term in fit.predictor.updates[0].terms for name in term.family.names if "town" in name}
    sets = {frozenset(re.findall(r"\b[a-h]\b", name)) for name in told}
    assert sets == {frozenset("aceg"), frozenset("bdfh")}
    save(fit.predictor, tmp_path / "calibrated.json")
    again = load(tmp_path / "calibrated.json")
    new = {"town": np.array(["h", "a", "zz", None], dtype=object)}
    np.testing.assert_array_equal(again(np.full(4, 0.5), new), fit.predictor(np.full(4, 0.5), new))
    assert abs(fit.predictor(0.5 * np.ones(2), {"town": np.array(["h", "a"], dtype=object)}) - [0.2, 0.8]).max() < 0.03


def test_without_residuals_categories_are_cut_in_sorted_order():
    town = np.array(list("cba") * 200, dtype=object)
    levels = Trees().prepare({"town": town}).encoder.levels
    assert levels[0].categories == ("a", "b", "c")
    residual = np.tile([-0.3, 0.4, 0.1], 200)[:, None]
    levels = Trees().prepare({"town": town}, residual=lambda: residual).encoder.levels
    assert levels[0].categories == ("c", "a", "b")


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_a_union_boosts_like_its_parts(geometry):
    """What boosted trees offer is taken in a union too, in their own geometry, after the groups were corrected."""
    data = make_miscalibrated(4000, n_columns=4, n_levels=4, random_state=1)
    trees = Trees(n_trees=10, geometry=geometry)
    options = {"alpha": 0.004, "random_state": 0, "guard": False, "max_updates": 6}
    alone, both = (
        multicalibrate(data.y, data.p, data.X, subpopulations=chosen, **options) for chosen in (trees, Groups() + trees)
    )
    for fit in (alone, both):
        assert {update.geometry for update in fit.predictor.updates} == {geometry}
        assert any("sum #" in name for u in fit.predictor.updates for t in u.terms for name in t.family.names)
    first = [name for term in both.predictor.updates[0].terms for name in term.family.names]
    assert any(name.startswith("g0=") for name in first)
    learner = (Groups() + trees).prepare(data.X)
    assert learner.boosts
    assert learner.geometry == geometry
    assert not learner.offers
    learner.learn((data.y - data.p)[:, None])
    assert [offer.geometry for offer in learner.offers] == [geometry]
    other = Trees(n_trees=3, geometry="mirror" if geometry == "euclidean" else "euclidean", max_depth=1)
    mixed = (trees + other).prepare(data.X)
    mixed.learn((data.y - data.p)[:, None])
    assert mixed.geometry == geometry
    assert len(mixed.offers) == 1  # what is boosted for another geometry can't be taken
    assert not (Groups() + Trees()).prepare(data.X).boosts
