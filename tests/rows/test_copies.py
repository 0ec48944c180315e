"""Rows that stand for several: everything is as if each were given as often as its frequency_weight says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from lowcal import (
    Groups,
    Intersections,
    InvalidInput,
    Linear,
    Memberships,
    Private,
    Thresholds,
    Trees,
    audit,
    measure,
    multicalibrate,
)
from lowcal.notions.weights import Monomial
from lowcal.rows import START, Memory
from lowcal.rows.keys import Dealt, copies_inside, draw_shares
from lowcal.rows.passes import Moments
from lowcal.solve import shrinkage
from lowcal.subpopulations.base import Everyone
from worlds import Shards

NOTIONS = ("multiaccuracy", "degree-2", "smooth", "full-0.1")
CLASS = Groups(["a", "b", "c"]) + Thresholds("c")


class World:
    """Rows with copies, a few of them none, and the same rows one by one."""

    def __init__(self, n=900, d=1, is_weighted=False, seed=0):
        rng = np.random.default_rng(seed)
        self.X = pd.DataFrame(
            {"a": rng.choice(["u", "v", "w"], n), "b": rng.choice(["x", "y"], n), "c": rng.integers(0, 40, n)}
        )
        self.p = rng.dirichlet(np.ones(d), n).round(2) if d > 1 else rng.uniform(0.02, 0.98, n).round(2)
        if d > 1:
            self.p[:, -1] = 1.0 - self.p[:, :-1].sum(axis=1)
            self.y = np.array([rng.choice(d, p=np.clip(q, 0, 1) / np.clip(q, 0, 1).sum()) for q in self.p])
        else:
            off = 0.08 * (self.X["a"] == "u").to_numpy() - 0.05 * (self.X["b"] == "x").to_numpy() * self.p
            self.y = (rng.random(n) < np.clip(self.p + off, 0, 1)) * 1
        self.copies = rng.integers(0, 9, n)
        weight = rng.choice([0.5, 1.0, 2.0], n) if is_weighted else None
        self.each = np.repeat(np.arange(n), self.copies)
        self.few = {"frequency_weight": self.copies, "sample_weight": weight}
        self.all = {"sample_weight": None if weight is None else weight[self.each]}

    def both(self, function, **options):
        """Return what a function says of the rows with copies, and of all of them one by one."""
        rows, e = self, self.each
        options.setdefault("subpopulations", CLASS)
        return (
            function(rows.y, rows.p, rows.X, **rows.few, **options),
            function(rows.y[e], rows.p[e], rows.X.iloc[e], **rows.all, **options),
        )


@pytest.mark.parametrize(
    ("notion", "d", "is_weighted"),
    [*product(NOTIONS, (1,), (False, True)), *product(("degree-2", "full-0.1"), (3,), (False, True))],
)
def test_measurements_are_those_of_all_rows(notion, d, is_weighted):
    few, every = World(900, d, is_weighted).both(measure, notion=notion)
    assert few.names == every.names
    np.testing.assert_allclose(few.mass, every.mass, atol=1e-12)
    np.testing.assert_allclose(few.violation, every.violation, atol=1e-12)


def test_any_listed_class_counts_copies():
    world = World(500)
    C = {"early": (world.X["c"] < 2) * 1.0, "late": world.X["c"] / 40.0}
    few, every = world.both(measure, subpopulations=Intersections(["a", "b", "c"], min_mass=100))
    assert set(few.names) == set(every.names)
    assert len(few.names) > 10
    e = world.each
    memberships = Memberships(["early", "late"], min_mass=90)
    few = measure(world.y, world.p, C, subpopulations=memberships, frequency_weight=world.copies)
    C = {name: np.asarray(c)[e] for name, c in C.items()}
    every = measure(world.y[e], world.p[e], C, subpopulations=memberships)
    assert few.names == every.names
    np.testing.assert_allclose(few.violation, every.violation, atol=1e-12)


@pytest.mark.parametrize(
    ("notion", "method", "d"),
    [
        *product(NOTIONS, ("bootstrap", "exact"), (1,)),
        *product(("degree-2", "full-0.1"), ("bernstein", "hoeffding"), (1,)),
        *product(("degree-2",), ("bootstrap", "exact", "bernstein"), (3,)),
    ],
)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_audits_are_those_of_all_rows(notion, method, d, is_weighted):
    world = World(900, d, is_weighted)
    few, every = world.both(audit, notion=notion, method=method, random_state=0, subpopulations=Groups())
    assert few.n_rows == every.n_rows
    assert few.n_effective == pytest.approx(every.n_effective, rel=1e-12)
    own, other = ({one.subpopulation: one for one in report.findings} for report in (few, every))
    assert own.keys() == other.keys()
    is_moment = notion in ("multiaccuracy", "degree-2") and d == 1
    for name, one in own.items():
        same = other[name]
        assert one.n_effective == pytest.approx(same.n_effective, rel=1e-9)
        assert one.mass == pytest.approx(same.mass, abs=1e-12)
        assert abs(one.violation) == pytest.approx(abs(same.violation), abs=1e-12)
        if is_moment:
            assert one.standard_error == pytest.approx(same.standard_error, abs=1e-12)
            if method in ("bernstein", "hoeffding"):
                assert (one.lower, one.upper) == pytest.approx((same.lower, same.upper), abs=1e-12)
    # draws and deals of copies are others than those of rows: alike but for chance
    assert few.certified_alpha == pytest.approx(every.certified_alpha, rel=0.15)
    assert few.null_floor == pytest.approx(every.null_floor, rel=0.35)


def test_critical_values_agree_with_many_draws():
    few, every = World(900).both(audit, null_draws=1999, random_state=0)
    assert few.null_floor == pytest.approx(every.null_floor, rel=0.04)
    widths = ([one.upper - one.lower for one in report.worst(10**6)] for report in (few, every))
    assert np.mean(next(widths)) == pytest.approx(np.mean(next(widths)), rel=0.02)


def test_the_exact_test_keeps_its_level():
    rng, rejected = np.random.default_rng(0), 0
    for seed in range(60):
        p, k = rng.uniform(0.05, 0.95, 60).round(1), rng.integers(1, 40, 60)
        ones = rng.binomial(k, p)
        y, counts = np.repeat([1, 0], 60), np.concatenate([ones, k - ones])
        X = {"g": np.tile(rng.choice(["u", "v"], 60), 2)}
        found = audit(y, np.tile(p, 2), X, frequency_weight=counts, null_draws=19, random_state=seed)
        rejected += found.p_value <= 0.1
    assert 1 <= rejected <= 13  # 6 expected; beyond with probability 0.004


FITS = (
    {"alpha": 0.005},
    {},
    {"guard": False, "alpha": 0.001},
    {"validation_fraction": 0.3, "alpha": 0.001, "random_state": 0},
    {"solver": "worst", "alpha": 0.01},
    {"solver": "first", "alpha": 0.02, "max_updates": 50},
    {"geometry": "euclidean", "alpha": 0.005},
    {"notion": "smooth", "alpha": 0.01},
    {"notion": "full-0.2", "alpha": 0.01},
)


@pytest.mark.parametrize(("options", "is_weighted"), [*product(FITS, (False, True))])
@pytest.mark.filterwarnings("ignore")
def test_fits_are_those_of_all_rows(options, is_weighted, monkeypatch):
    """Folds and held-out rows too: copies are dealt as rows are."""
    monkeypatch.setattr(shrinkage, "START_ROWS", 10**6)  # else regressions begin at other rows
    world = World(900, 1, is_weighted)
    subpopulations = Groups(["a", "b", "c"]) if "notion" in options else CLASS
    few, every = world.both(multicalibrate, subpopulations=subpopulations, **options)
    assert (few.status, few.n_updates) == (every.status, every.n_updates)
    # where labels were redrawn, the target is that of other draws
    tolerance = 1e-8 if options else 1e-6
    np.testing.assert_allclose(few.predictor(world.p, world.X), every.predictor(world.p, world.X), atol=tolerance)
    assert few.violation == pytest.approx(every.violation, abs=tolerance)


def test_several_classes_are_fitted_alike():
    world = World(600, 3)
    few, every = world.both(multicalibrate, alpha=0.004, guard=False, subpopulations=Groups(["a", "b"]))
    np.testing.assert_allclose(few.predictor(world.p, world.X), every.predictor(world.p, world.X), atol=1e-9)


def test_many_cells_are_sampled_by_their_copies():
    """The few rows that a step looks at are drawn copy by copy, as rows are."""
    rng, n = np.random.default_rng(0), 5000
    copies = np.where(rng.random(n) < 0.01, 2000, 1)
    p = rng.random((n, 1))
    rows = Memory.of(np.zeros((n, 0)), p, p.round(), copies / copies.sum(), copies)
    few = rows.few(0, 1000)
    assert few.copies.sum() == 1000
    assert few.copies.sum() * few.unit == pytest.approx(np.ones(len(few)))
    assert float(few.weight @ few.at(START)[:, 0]) == pytest.approx(float(rows.whole.weight @ p[:, 0]), abs=0.01)
    assert rows.worth == pytest.approx(copies.sum())
    assert len(rows.few(0, n)) == n


def test_shards_say_the_same():
    world = World(400)
    kept = np.flatnonzero(world.copies)
    copies, p, y = world.copies[kept], world.p[kept, None], world.y[kept, None].astype(float)
    rows = Memory.of(np.zeros((len(kept), 0)), p, y, copies / copies.sum(), copies)
    ask = Moments(START, (Everyone(),), (Monomial(),))
    assert (Shards.cut(rows, 3).run(ask) == rows.run(ask)).all()
    assert (rows.worth, rows.count, rows.is_even) == (pytest.approx(copies.sum()), copies.sum(), False)


def test_copies_are_dealt_as_rows_are():
    copies = np.array([3, 1, 400_000, 7])
    mask = Dealt((5,), int(copies.sum()), 5, 1, True)
    every = mask(0, int(copies.sum()))
    expected = [int(one.sum()) for one in np.split(every, np.cumsum(copies)[:-1])]
    assert copies_inside(mask, copies).tolist() == expected


@pytest.mark.parametrize("d", [1, 3])
def test_copies_draw_their_labels_one_by_one(d):
    p = np.array([[0.3]]) if d == 1 else np.array([[0.2, 0.5, 0.3]])
    drawn = draw_shares(np.repeat(p, 20_000, axis=0), np.full(20_000, 10), (0,))
    np.testing.assert_allclose(drawn.mean(axis=0), p[0], atol=0.005)
    np.testing.assert_allclose(drawn.var(axis=0), p[0] * (1 - p[0]) / 10, rtol=0.05)
    if d > 1:
        np.testing.assert_allclose(drawn.sum(axis=1), 1.0)


def test_the_weight_may_be_a_column():
    table = {"y": [0, 1, 1, 0], "p": [0.2, 0.7, 0.9, 0.4], "g": list("abab"), "k": [40, 30, 50, 60]}
    found = measure("y", "p", table, subpopulations=Groups(), frequency_weight="k")
    assert found.names == ("everyone", "g=a", "g=b")
    assert found.mass[1] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.5, 1, 1, 1], "frequency_weight is 1.5 in row 0, but it is the number of rows"),
        ([1, -1, 1, 1], "frequency_weight is -1 in row 1"),
        ([1, 1, np.nan, 1], "frequency_weight is nan in row 2"),
        ([1, 1], "frequency_weight has 2 rows, but p has 4"),
        ([[1], [1], [1], [1]], "frequency_weight must have one dimension"),
        ([0, 0, 0, 0], "No row is left"),
        (["a", "b", "c", "d"], "frequency_weight is the text 'a' in row 0"),
    ],
)
def test_other_counts_are_refused_in_a_sentence(given, message):
    with pytest.raises(InvalidInput, match=message):
        measure([0, 1, 1, 0], [0.2, 0.7, 0.9, 0.4], frequency_weight=given)


@pytest.mark.parametrize("learned", [Trees(), Linear(), Groups("a") + Trees(), Private(Groups("a"), epsilon=1.0)])
def test_classes_that_are_learned_from_rows_are_refused(learned):
    world = World(200)
    with pytest.raises(InvalidInput, match="frequency_weight"):
        multicalibrate(world.y, world.p, world.X, subpopulations=learned, alpha=0.1, **world.few)


def test_rows_on_disk_are_refused(tmp_path):
    world = World(200)
    table = world.X.assign(y=world.y, p=world.p, k=world.copies)
    table.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(InvalidInput, match="must be in memory, but these do not fit there"):
        measure("y", "p", tmp_path / "rows.parquet", frequency_weight="k", memory=1)


def test_groups_of_too_few_copies_are_named():
    y, p, g = [0, 1, 0, 1], [0.3, 0.6, 0.4, 0.5], {"g": list("abab"), "h": ["x", "y", "z", "w"]}
    report = audit(y, p, g, subpopulations=Groups(), frequency_weight=[20, 25, 10, 25], random_state=0)
    assert {one.subpopulation for one in report.findings} == {"everyone", "g=a", "g=b"}
    assert any("no group of h could be examined" in note for note in report.notes)
