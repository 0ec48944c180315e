"""Trees on a card, or on its twin: the same splits as in memory, and predictions that agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowcal
from card_worlds import World, card, cupy, processor  # noqa: F401
from lowcal.data.frames import Table as Frame
from lowcal.kernels.card.trees import feature_groups, packed_nodes, trees_on
from lowcal.kernels.card.twin import Twin
from lowcal.rows.card.forests import BinColumns, by_columns, codes_on
from lowcal.rows.card.reading import open_card, settle_on_card
from lowcal.rows.card.rows import Card
from lowcal.solve.homes import Reordered
from lowcal.subpopulations.bins import Binned
from lowcal.subpopulations.growing import Forest, Growth, LevelSums, Request, grow_forests
from lowcal.subpopulations.levels import Levels


def made(n: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return labels, probabilities and columns of whole numbers, numbers with gaps, and truths."""
    rng = np.random.default_rng(seed)
    X: dict[str, np.ndarray] = {f"c{j}": rng.integers(0, 5, n).astype(np.uint8) for j in range(2)}
    X |= {f"x{j}": rng.normal(size=n).astype(np.float32) for j in range(2)}
    X |= {"wide": rng.integers(-(10**6), 10**6, n), "is_old": rng.random(n) < 0.3}
    X["x1"][::17] = np.nan
    z = rng.normal(size=n)
    p, t = 1 / (1 + np.exp(-1.8 * z)), z - 0.4 * (X["c0"] - 2.0) + 0.9 * (X["x0"] > 0) * (X["c1"] > 2) - X["is_old"]
    return (rng.random(n) < 1 / (1 + np.exp(-t))).astype(np.uint8), p, X


def splits(fit: lowcal.Fit) -> list[tuple[Any, Any]]:
    """Return the features and cuts of all trees of a predictor."""
    families = [getattr(t.family, "family", t.family) for u in fit.predictor.updates for t in u.terms]
    forests = [getattr(f, "forest", getattr(f, "tree", None)) for f in families]
    return [(f.feature.tolist(), f.cut.tolist()) for f in forests if f is not None]


def near_passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the passes are added that bring rows into this machine's memory."""
    seen: list[str] = []
    shard = Card._shard

    def noted(self: Card, first: int) -> Any:
        seen.append("near")
        return shard(self, first)

    monkeypatch.setattr(Card, "_shard", noted)
    return seen


FITS = {
    "nodes": ({}, {"guard": False, "max_updates": 2}),
    "forest": ({"n_trees": 8}, {"guard": False}),
    "forest by least squares": ({"n_trees": 8, "geometry": "euclidean"}, {"guard": False, "max_updates": 3}),
    "nodes, euclidean": ({}, {"geometry": "euclidean", "guard": False, "max_updates": 2}),
    "forest for full": ({"n_trees": 8}, {"notion": "full-0.1", "guard": False, "max_updates": 3}),
    "forest to a target": ({"n_trees": 8}, {"alpha": 0.01}),
}


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("name", FITS)
def test_a_fit_in_double_precision_is_that_of_memory(card: World, name: str, is_weighted: bool) -> None:  # noqa: F811
    y, p, X = made(2500)
    trees, options = FITS[name]
    weight = np.random.default_rng(1).integers(1, 9, len(y)) / 8.0 if is_weighted else None
    how = {"subpopulations": lowcal.Trees(max_depth=3, **trees), "random_state": 0, **options}
    a = lowcal.multicalibrate(y, p, X, sample_weight=weight, **how)
    put = None if weight is None else card.put(weight)
    b = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), sample_weight=put, **how)
    assert splits(a)
    assert splits(a) == splits(b)
    assert a.status == b.status
    moved = card.get(b.predictor(card.put(p), card.put(X)))
    np.testing.assert_allclose(moved, a.predictor(p, X), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["nodes", "forest", "forest by least squares"])
def test_predictions_in_single_precision_agree_where_splits_coincide(card: World, name: str) -> None:  # noqa: F811
    y, p, X = made(10_000)
    trees, options = FITS[name]
    p = p.astype(np.float32)
    how = {"subpopulations": lowcal.Trees(max_depth=3, **trees), "random_state": 0, **options}
    a = lowcal.multicalibrate(y, p.astype(float), X, **how | {"max_updates": 2})
    b = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), **how | {"max_updates": 2})
    assert splits(a)
    assert splits(a) == splits(b)
    moved = b.predictor(card.put(p), card.put(X))
    assert moved.dtype == np.float32
    np.testing.assert_allclose(card.get(moved), a.predictor(p.astype(float), X), rtol=0, atol=1e-5)


@pytest.mark.parametrize("n_trees", [1, 6])
def test_a_fit_brings_no_rows_into_memory(card: World, n_trees: int, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    y, p, X = made()
    seen = near_passes(monkeypatch)
    trees = lowcal.Trees(max_depth=3, n_trees=n_trees)
    fit = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), subpopulations=trees, random_state=0)
    fit.predictor(card.put(p), card.put(X))
    assert fit.n_updates > 1
    assert not seen


@pytest.mark.parametrize("notion", ["degree-2", "full-0.25"])
def test_a_union_of_trees_and_groups(card: World, notion: str) -> None:  # noqa: F811
    y, p, X = made()
    for trees in (lowcal.Trees(max_depth=2), lowcal.Trees(max_depth=2, n_trees=6)):
        how = {"subpopulations": trees + lowcal.Groups(["c0", "c1"]), "random_state": 0, "notion": notion}
        a = lowcal.multicalibrate(y, p, X, **how)
        b = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), **how)
        moved = card.get(b.predictor(card.put(p), card.put(X)))
        np.testing.assert_allclose(moved, a.predictor(p, X), rtol=0, atol=1e-9)


def test_a_question_without_a_formula_starts_from_rows_in_memory(card: World) -> None:  # noqa: F811
    y, p, X = made(2000)
    how = {"subpopulations": lowcal.Trees(max_depth=2, n_trees=4), "notion": "smooth", "random_state": 0}
    a = lowcal.multicalibrate(y, p, X, **how)
    b = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), **how)
    assert splits(a) == splits(b)


def test_bounded_outcomes(card: World) -> None:  # noqa: F811
    y, p, X = made()
    numbers = np.clip(0.7 * y + 0.3 * p, 0.0, 1.0)
    how = {"subpopulations": lowcal.Trees(max_depth=2, n_trees=4), "random_state": 0, "guard": False, "max_updates": 2}
    a = lowcal.multicalibrate(numbers, p, X, **how)
    b = lowcal.multicalibrate(card.put(numbers), card.put(p), card.put(X), **how)
    moved = card.get(b.predictor(card.put(p), card.put(X)))
    np.testing.assert_allclose(moved, a.predictor(p, X), rtol=0, atol=1e-9)


def three_classes(n: int = 1500) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Labels of three classes, probabilities that are wrong in one corner of the table, and columns."""
    rng = np.random.default_rng(0)
    X = {"c": rng.integers(0, 5, n).astype(np.uint8), "x": rng.normal(size=n).astype(np.float32)}
    p = rng.dirichlet(np.ones(3), n)
    moved = p * np.exp(np.outer((X["x"] > 0) & (X["c"] > 2), [1.8, 0.0, -0.8]))
    y = (rng.random(n)[:, None] > np.cumsum(moved / moved.sum(axis=1, keepdims=True), axis=1)).sum(axis=1)
    return y, p, X


@pytest.mark.parametrize("geometry", ["mirror", "euclidean"])
@pytest.mark.parametrize("trees", [{}, {"n_trees": 4}, {"n_trees": 4, "geometry": "euclidean"}])
def test_several_classes(
    card: World,  # noqa: F811
    trees: dict[str, Any],
    geometry: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    y, p, X = three_classes()
    how = {"subpopulations": lowcal.Trees(max_depth=2, **trees), "alpha": 1e-3, "max_updates": 2, "random_state": 0}
    a = lowcal.multicalibrate(y, p, X, geometry=geometry, guard=False, **how)
    seen = near_passes(monkeypatch)
    b = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), geometry=geometry, guard=False, **how)
    moved = b.predictor(card.put(p), card.put(X))
    assert not seen
    assert splits(a)
    assert splits(a) == splits(b)
    np.testing.assert_allclose(card.get(moved), a.predictor(p, X), rtol=0, atol=1e-9)


@pytest.mark.parametrize("degree", ["multiaccuracy", "degree-3", "full-0.5"])
def test_questions_of_several_classes(card: World, degree: str) -> None:  # noqa: F811
    y, p, X = three_classes()
    how = {"subpopulations": lowcal.Trees(max_depth=2, n_trees=3), "notion": degree, "random_state": 0}
    a = lowcal.multicalibrate(y, p, X, guard=False, max_updates=2, **how)
    b = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), guard=False, max_updates=2, **how)
    assert splits(a)
    assert splits(a) == splits(b)
    np.testing.assert_allclose(card.get(b.predictor(card.put(p), card.put(X))), a.predictor(p, X), rtol=0, atol=1e-9)
    asked = {"subpopulations": how["subpopulations"], "notion": degree}
    near, far = (lowcal.measure(*given, **asked) for given in ((y, p, X), (card.put(y), card.put(p), card.put(X))))
    np.testing.assert_allclose(far.violation, near.violation, rtol=0, atol=1e-9)


@pytest.mark.parametrize("n_trees", [1, 4])
def test_an_audit_and_a_measure(card: World, n_trees: int) -> None:  # noqa: F811
    y, p, X = made(3000)
    trees = lowcal.Trees(max_depth=2, n_trees=n_trees)
    put = card.put(y), card.put(p), card.put(X)
    a = lowcal.audit(y, p, X, subpopulations=trees, random_state=0)
    b = lowcal.audit(*put, subpopulations=trees, random_state=0)
    found = [(one.subpopulation, one.violation) for one in a.findings]
    assert found == [(one.subpopulation, pytest.approx(one.violation, abs=1e-9)) for one in b.findings]
    assert lowcal.measure(*put, subpopulations=trees).violation == pytest.approx(
        lowcal.measure(y, p, X, subpopulations=trees).violation, abs=1e-9
    )


def test_a_model_of_memory_predicts_on_a_card(card: World) -> None:  # noqa: F811
    y, p, X = made()
    fit = lowcal.multicalibrate(y, p, X, subpopulations=lowcal.Trees(max_depth=3, n_trees=5), random_state=0)
    fresh = made(999, seed=5)
    moved = card.get(fit.predictor(card.put(fresh[1]), card.put(fresh[2])))
    np.testing.assert_allclose(moved, fit.predictor(fresh[1], fresh[2]), rtol=0, atol=1e-12)


# --- columns as bins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"])
def test_columns_become_the_bins_of_memory(card: World, kind: str) -> None:  # noqa: F811
    rng = np.random.default_rng(0)
    values = (rng.normal(size=1001) * 40).clip(-100, 100)
    column = (values if kind[0] in "fi" else np.abs(values)).astype(kind)
    if kind[0] == "f":
        column[::7] = np.nan
    levels = [Levels("x", (False, True)), Levels("x", (3, 1, 7))]
    if kind != "b1":  # truths are categories
        levels += [Levels("x", None, tuple(np.sort(rng.normal(size=m) * 40).tolist())) for m in (0, 1, 5, 300)]
    device = device_of(card)
    for level in levels:
        codes = level.codes(Frame.of({"x": column}))
        want = codes if level.categories is None else np.where(codes == 0, 1, codes)
        have = codes_on(device, card.put(column), level, np.dtype(np.uint16))
        assert card.get(have).tolist() == want.tolist()


def test_bins_held_by_column_are_bins() -> None:
    codes = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.uint8)
    rows: Any = by_columns((Binned(codes), codes[:, 0]))
    assert isinstance(rows[0], BinColumns)
    assert rows[0].codes.tolist() == codes.tolist()
    arrays, rebuild = rows[0].flat()
    assert rebuild(iter([column[1:] for column in arrays])).codes.tolist() == codes[1:].tolist()


def test_categories_change_places(card: World) -> None:  # noqa: F811
    y, p, X = made(1001)
    given = open_card(card.put(y), card.put(p), card.put(X))
    rows, *_ = settle_on_card(lowcal.Trees(), given, None, 0, True)
    before = [card.get(column) for column in rows.coded.rows.columns]
    new = np.random.default_rng(0).permutation(256).astype(before[1].dtype)
    after = [card.get(column) for column in rows.recoded(Reordered((((), 1, new),))).coded.rows.columns]
    assert after[1].tolist() == new[before[1]].tolist()
    assert all((a == b).all() for k, (a, b) in enumerate(zip(before, after, strict=True)) if k != 1)


# --- kernels --------------------------------------------------------------------------------------------------


def device_of(card: World, precision: Any = "double", **settings: Any) -> Any:  # noqa: F811
    """Return the device of a world."""
    if card.xp is np:
        return Twin(precision)
    from lowcal.kernels.card.cuda import Cuda

    return Cuda(precision, **settings)


def random_level(n: int, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray, list[Any]]:
    """Return code columns with their counts, nodes, those to build, and terms."""
    rng = np.random.default_rng(seed)
    counts = np.array([3, 66, 12, 2, 40])
    columns = [rng.integers(0, c, n).astype(np.uint8) for c in counts]
    node, build = rng.integers(0, 8, n).astype(np.uint8), np.array([1, 0, 0, 1, 0, 1, 0, 0], dtype=bool)
    terms = [None, *(rng.integers(-(1 << 18), (1 << 18) + 1, n).astype(np.int32) for _ in range(5))]
    return columns, counts, node, build, terms


@pytest.mark.parametrize("settings", [{}, {"threads": 96, "blocks": 7}, {"shared": 20_000}, {"shared": 0}])
def test_histograms_are_exact_for_any_grid(card: World, settings: dict[str, int]) -> None:  # noqa: F811
    n = 50_003
    columns, counts, node, build, terms = random_level(n)
    want = np.zeros((3, counts.sum(), len(terms)), dtype=np.int64)
    place = np.cumsum(build) - 1
    for start, column in zip(np.cumsum(counts) - counts, columns, strict=True):
        for q, term in enumerate(terms):
            inside = build[node]
            where = place[node[inside]], start + column[inside], q
            np.add.at(want, where, 1 if term is None else term[inside])
    device = device_of(card, "single", **settings)
    put = [device.upload(column) for column in columns]
    given = [None if term is None else device.upload(term) for term in terms]
    have = trees_on(device).add_up(put, counts, device.upload(node), build, given)
    assert (have == want).all()


def test_a_level_without_nodes_to_build_is_empty(card: World) -> None:  # noqa: F811
    device = device_of(card, "single")
    codes = device.upload(np.zeros(5, dtype=np.uint8))
    assert trees_on(device).add_up([codes], np.array([4]), codes, np.zeros(2, dtype=bool), [None]).shape == (0, 4, 1)


def test_leaves_and_sums_of_forests(card: World) -> None:  # noqa: F811
    rng, device = np.random.default_rng(0), device_of(card)
    codes = rng.integers(0, 20, (1003, 4)).astype(np.uint8)
    feature = rng.integers(-1, 4, (7, 15))
    forest = Forest(feature, rng.integers(0, 19, (7, 15)), rng.normal(size=(7, 16, 1)))
    columns = BinColumns([device.upload(np.ascontiguousarray(column)) for column in codes.T])
    values = trees_on(device).evaluate(columns.columns, forest.feature, forest.cut, forest.value[:, :, 0])
    np.testing.assert_allclose(card.get(values), forest(Binned(codes))[:, 0], rtol=0, atol=1e-14)
    for t in range(7):
        tree = Forest(forest.feature[t : t + 1], forest.cut[t : t + 1], forest.value[t : t + 1])
        assert card.get(columns.at_level(device, tree, 2)).max() < 4
        assert card.get(columns.leaves(device, tree)).tolist() == tree.leaf(Binned(codes)).tolist()
        assert card.get(columns.at_level(device, tree, 1)).max() < 2


def test_features_share_as_much_room_as_there_is() -> None:
    counts = np.array([5, 5, 5, 1])
    assert feature_groups(counts, 16) == [0, 4]
    assert feature_groups(counts, 10) == [0, 2, 4]
    assert feature_groups(counts, 4) == []
    assert packed_nodes(np.array([-1]), np.array([3])).tolist() == [0xFFFF]


@pytest.mark.parametrize("geometry", ["mirror", "euclidean"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_sums_of_a_level_are_those_of_memory(card: World, geometry: Any, is_weighted: bool) -> None:  # noqa: F811
    """In double precision terms are rounded to the same units."""
    from lowcal.notions.weights import Monomial
    from lowcal.rows.base import START
    from lowcal.rows.passes import Probed
    from lowcal.subpopulations.trees import Start

    y, p, X = made(3001)
    weight = card.put(np.random.default_rng(2).random(len(y))) if is_weighted else None
    given = open_card(card.put(y), card.put(p), card.put(X), weight)
    rows, learner, _ = settle_on_card(lowcal.Trees(), given, None, 0, True)
    start = Start(Probed(START, ((Monomial(), 0),)), geometry, 1)
    targets = ((0, 1),) if geometry == "mirror" else ((0,),)
    counts = np.array([level.count for level in learner.encoder.levels])
    request = Request(start, targets, 1.0, counts, Growth(3, 30, 4, 0.3, geometry))
    seen = []

    class Noted:
        """The card, whose sums of a level are compared with those of its rows in memory."""

        scale, single, sample = rows.scale, None, rows.sample

        def run(self, one: LevelSums) -> Any:
            have, want = rows.run(one), one(rows.sample(None))
            seen.append(max(float(np.abs(a - b).max()) for a, b in zip(have, want, strict=True)))
            return have

    (forest,) = grow_forests(Noted(), request)
    assert forest.feature.shape == (4, 7)
    assert len(seen) == 12
    assert max(seen) <= 1e-9


def test_masses_of_sums_of_forests(card: World) -> None:  # noqa: F811
    y, p, X = made()
    how = {"subpopulations": lowcal.Trees(max_depth=2, n_trees=4), "random_state": 0, "per_person": 0.05}
    a = lowcal.multicalibrate(y, p, X, guard=False, max_updates=3, **how)
    b = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), guard=False, max_updates=3, **how)
    moved = card.get(b.predictor(card.put(p), card.put(X)))
    np.testing.assert_allclose(moved, a.predictor(p, X), rtol=0, atol=1e-9)


# --- rows that pass through a card ----------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize(
    "trees", [{}, {"n_trees": 6}, {"n_trees": 6, "geometry": "euclidean"}], ids=["nodes", "forest", "least squares"]
)
def test_trees_of_rows_that_pass_through_have_the_bits_of_rows_on_the_card(
    cupy: Any,  # noqa: F811
    trees: dict[str, Any],
    precision: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lowcal.kernels.card.cuda.PART_ROWS", 700)
    y, p, X = made(2_501)
    on, through = lowcal.on_card(X, precision=precision), lowcal.on_card(X, precision=precision, memory=1)
    weight = np.random.default_rng(1).integers(1, 9, len(y)) / 8.0
    how = {"subpopulations": lowcal.Trees(max_depth=3, **trees), "random_state": 0, "max_updates": 3}
    a, b = (lowcal.multicalibrate(y, p, table, sample_weight=weight, **how) for table in (on, through))
    assert splits(a)
    assert str(a.predictor.to_dict()) == str(b.predictor.to_dict())
    assert a.predictor(p, on).tolist() == b.predictor(p, through).tolist()
    asked = {"subpopulations": how["subpopulations"]}
    here, there = (lowcal.measure(y, p, table, **asked).violation for table in (on, through))
    assert (here == there).all()


def test_trees_of_rows_that_pass_through_are_grown_by_kernels(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    y, p, X = made(2_000)
    seen = near_passes(monkeypatch)
    monkeypatch.setattr("lowcal.kernels.card.trees.TwinTrees.__init__", lambda *_: pytest.fail("Rows are in memory."))
    lowcal.multicalibrate(y, p, lowcal.on_card(X, memory=1), subpopulations=lowcal.Trees(n_trees=4), random_state=0)
    assert not seen
