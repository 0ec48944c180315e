"""A predictor as an ONNX graph: onnxruntime, without lowcal, must say what `predict` says, to 1e-9."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeRegressor

import lowcal
from lowcal import CannotWrite, InvalidInput, MissingExtra
from lowcal.data.frames import Table as Frame
from lowcal.data.inputs import Layout
from lowcal.data.onnx_graph import FEW, Graph, GraphColumns, Port
from lowcal.kernels.reference import DecodeTable
from lowcal.notions import weights
from lowcal.notions.weights import Cell, Knots, Monomial, Points
from lowcal.persistence.export import input_names, move, to_onnx
from lowcal.rows.updates import Predictor, Term, Update
from lowcal.subpopulations import groups
from lowcal.subpopulations.features import learn_features
from worlds import WAYS, multicalibrate

onnx = pytest.importorskip("onnx", reason="to_onnx needs the extra [onnx]")
ort = pytest.importorskip("onnxruntime", reason="graphs are run by onnxruntime, in the extra [onnx]")

NOTIONS = ("multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.25", "full-0.3")

CLASSES = {
    "groups": lowcal.Groups(min_mass=0),
    "intersections": lowcal.Intersections(["city", "level", "member", "age"], depth=3, n_bins=3, min_mass=2),
    "thresholds": lowcal.Thresholds(["age", "pay"], min_mass=20),
    "linear": lowcal.Linear(),
    "trees": lowcal.Trees(max_depth=2, min_mass=5),
    "boosted": lowcal.Trees(max_depth=3, min_mass=5, n_trees=4),
    "union": lowcal.Groups(["city"], min_mass=0) + lowcal.Trees(max_depth=2, min_mass=5) + lowcal.Linear(["age"]),
}


# --- running a graph as somebody without lowcal would --------------------------------------------------------------


def session(model) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options)


def as_text(values, missing: str) -> np.ndarray:
    is_missing = [v is None or v != v for v in values]
    return np.array([missing if no else str(v) for v, no in zip(values, is_missing, strict=True)], dtype=object)


def feeds(run: ort.InferenceSession, p, X, missing: str = "") -> dict[str, np.ndarray]:
    """Return the inputs that the documentation describes."""
    columns = json.loads(run.get_modelmeta().custom_metadata_map["columns"])
    given = {}
    for port in run.get_inputs():
        if port.name == "p":
            given["p"] = np.asarray(p, dtype=np.float64)
        elif isinstance(columns.get(port.name), list):
            given[port.name] = np.asarray(X, dtype=np.float64)
        elif port.type == "tensor(string)":
            given[port.name] = as_text(X[columns[port.name]], missing)
        else:
            assert port.type == "tensor(double)"
            given[port.name] = np.array([np.nan if v is None else v for v in X[columns[port.name]]], dtype=np.float64)
    return given


def serve(model, p, X, missing: str = "", **options) -> np.ndarray:
    run = session(to_onnx(model, missing=missing, **options))
    (served,) = run.run(["probabilities"], feeds(run, p, X, missing))
    assert served.dtype == np.float64
    return served


def agree(predictor: Predictor, p, X, atol: float = 1e-9, **options) -> None:
    expected = predictor(p, X)
    np.testing.assert_allclose(serve(predictor, p, X, **options), expected, rtol=0, atol=atol)


# --- tables with everything that a column can hold -----------------------------------------------------------------


@dataclass(frozen=True)
class World:
    y: np.ndarray
    p: np.ndarray
    X: dict[str, np.ndarray]


def world(n: int, n_classes: int, seed: int, unseen: bool = False) -> World:
    """Draw text, numbers, whole numbers, booleans and a mixture, each with missing values; new rows have new values."""
    rng = np.random.default_rng(seed)

    def some(values):
        column = np.array([*values, *values, None], dtype=object)
        return column[rng.integers(0, len(column), n)]

    new = unseen
    age = np.where(rng.random(n) < 0.1, np.nan, rng.normal(40, 12, n).round(1))
    X = {
        "city": some(["Oslo", "Rome", "Köln", *["Bern"] * new]),
        "level": some([1, 2, 3, *[2.5, -1] * new]).astype(np.float64),
        "member": some([False, True]),
        "age": np.where(rng.random(n) < 0.05, np.inf, age) if new else age,
        "pay": rng.lognormal(size=n),
        "code": some(["x", 7, *["y", 8] * new]),
    }
    signal = 0.5 * (X["city"] == "Oslo") + 0.4 * (X["pay"] > 1) * np.nan_to_num(X["level"], nan=1.5) - 0.6
    score = np.column_stack([np.zeros(n), signal, *(rng.normal(size=(n_classes - 2, n)))])
    q = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True)
    y = np.minimum((rng.random(n)[:, None] > q.cumsum(axis=1)).sum(axis=1), n_classes - 1)
    p = rng.dirichlet(np.ones(n_classes), n)
    p[: n // 8] = np.eye(n_classes)[rng.integers(0, n_classes, n // 8)]  # exactly 0 and 1
    p[n // 8 : n // 4] = 1 / n_classes  # equal, and on the edge of a cell
    return World(y, p[:, 1] if n_classes == 2 else p, X)


@cache
def small(n_classes: int) -> World:
    data = world(120, n_classes, seed=0)
    return replace(data, y=np.concatenate([np.arange(n_classes), data.y[n_classes:]]))


@cache
def fresh(n_classes: int, n: int = 300) -> World:
    return world(n, n_classes, seed=1, unseen=True)


def fit(data: World, kind: str, notion: str, way: tuple[str, str], **options) -> lowcal.Fit:
    solver, geometry = way
    options = {"max_updates": 2, "guard": False, "alpha": 0.005, **options}
    return multicalibrate(
        data.y, data.p, data.X, subpopulations=CLASSES[kind], notion=notion, solver=solver, geometry=geometry, **options
    )


def check(data: World, kind: str, notion: str, way: tuple[str, str], n_classes: int, max_updates: int) -> None:
    predictor = fit(data, kind, notion, way, max_updates=max_updates).predictor
    assert len(predictor) >= 1
    new = fresh(n_classes)
    p, X = np.concatenate([data.p, new.p]), {c: np.concatenate([data.X[c], new.X[c]]) for c in data.X}
    assert not np.allclose(predictor(p, X), p, atol=1e-4)
    agree(predictor, p, X)


@pytest.mark.product
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("kind", CLASSES)
def test_every_notion_class_and_solver(kind, way, n_classes):
    for notion in NOTIONS if n_classes == 2 else ("degree-2", "degree-3", "full-0.25"):
        if notion != "smooth" or kind in ("groups", "linear", "boosted"):
            check(small(n_classes), kind, notion, way, n_classes, max_updates=1 if way[0] == "block" else 3)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("kind", CLASSES)
def test_every_notion_class_and_solver_at_length(kind, way, n_classes):
    for notion in NOTIONS:
        if notion != "smooth" or n_classes == 2 or kind in ("groups", "boosted"):
            check(world(250, n_classes, seed=6), kind, notion, way, n_classes, max_updates=5)


def one_hot(n_classes: int, seed: int) -> World:
    """Draw predictions that are exactly 0 and 1, right for half of the rows."""
    data, rng = world(100, n_classes, seed), np.random.default_rng(seed + 99)
    p = np.eye(n_classes)[rng.integers(0, n_classes, 100)]
    y = np.where(rng.random(100) < 0.5, p.argmax(axis=1), data.y)
    y[:n_classes] = np.arange(n_classes)
    return World(y, p[:, 1] if n_classes == 2 else p, data.X)


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_fits_to_predictions_of_zero_and_one(n_classes, geometry):
    """A fit that is reached is stable: coefficients are bounded, and rounding of p or of the graph changes little."""
    for kind, notion in (("groups", "degree-2"), ("trees", "degree-2"), ("trees", "degree-3"), ("trees", "full-0.25")):
        data = one_hot(n_classes, seed=1)
        options = {"alpha": 0.001, "max_updates": 100, "random_state": 0}
        made = fit(data, kind, notion, ("block", geometry), **options)
        assert made.status == "reached"
        assert (
            max(np.abs(t.theta).max() for update in made.predictor.updates for t in update.terms) < 1e7
        )  # 1e9 to 1e22 without a bound
        agree(made.predictor, data.p, data.X)
        if not notion.startswith("full"):  # a cell has edges
            moved = np.abs(data.p - 1e-12)
            moved = moved if n_classes == 2 else moved / moved.sum(axis=1, keepdims=True)
            found = made.predictor(moved, data.X)
            np.testing.assert_allclose(found, made.predictor(data.p, data.X), rtol=0, atol=1e-7)


def test_smooth_weights_of_several_classes():
    """The last weights are functions through points: those of single coordinates no longer show a violation."""
    data, new = world(60, 3, seed=0), fresh(3)
    made = multicalibrate(
        data.y,
        data.p,
        data.X,
        subpopulations=lowcal.Groups(["member"], min_mass=0),
        notion="smooth",
        alpha=0.06,
        max_updates=5,
        geometry="euclidean",
    )
    assert any(isinstance(u, Points) for update in made.predictor.updates for t in update.terms for u in t.weights)
    agree(made.predictor, new.p, new.X)


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("notion", ["degree-2", "full-0.5"])
@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_ten_thousand_unseen_rows(n_classes, notion, geometry):
    data, new = world(1000, n_classes, seed=2), world(10_000, n_classes, seed=3, unseen=True)
    kind = (
        lowcal.Intersections(["city", "level"])
        + lowcal.Groups(["age", "code"])
        + lowcal.Trees(n_trees=3, geometry=geometry)
    )
    made = multicalibrate(
        data.y, data.p, data.X, subpopulations=kind, notion=notion, geometry=geometry, alpha=0.002, max_updates=3
    )
    assert sum(v == "Bern" for v in new.X["city"]) > 500
    assert sum(v is None for v in new.X["city"]) > 500
    agree(made.predictor, new.p, new.X, atol=1e-9)


def test_most_predictions_agree_to_the_last_digits():
    new = fresh(2)
    predictor = fit(small(2), "groups", "degree-2", ("block", "euclidean")).predictor
    agree(predictor, new.p, new.X, atol=1e-14)


VALUES = st.one_of(st.none(), st.sampled_from(["a", "b", "", "é\n\"'"]), st.text(max_size=3))
NUMBERS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.0, 2.0, np.inf, -np.inf]), st.floats(-1e9, 1e9))
ANYTHING = {
    "groups": lowcal.Groups(min_mass=0),
    "intersections": lowcal.Intersections(min_mass=0),
    "trees": lowcal.Trees(max_depth=2, min_mass=1),
    "linear": lowcal.Linear(),
}
ROWS = st.tuples(VALUES, NUMBERS, st.sampled_from([True, False, None]), st.floats(0, 1))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(ROWS, min_size=12, max_size=30),
    st.lists(ROWS, min_size=1, max_size=10),
    st.sampled_from(sorted(ANYTHING)),
    st.sampled_from(WAYS),
    st.randoms(use_true_random=False),
)
def test_random_tables_with_anything_in_them(fitted, new, kind, way, random):
    names = ("text", "number", "flag")
    X = {name: np.array([row[j] for row in fitted], dtype=object) for j, name in enumerate(names)}
    X_new = {name: np.array([row[j] for row in new], dtype=object) for j, name in enumerate(names)}
    if not any(isinstance(v, str) for v in X["text"]):
        X["text"][0] = "a"
    if all(v is None for v in X["flag"]):
        X["flag"][0] = True
    y = np.array([random.random() < 0.5 for _ in fitted], dtype=int)
    y[:2] = 0, 1
    p, p_new = (np.array([row[3] for row in rows]) for rows in (fitted, new))
    made = multicalibrate(
        y, p, X, subpopulations=ANYTHING[kind], solver=way[0], geometry=way[1], alpha=0.01, max_updates=3
    )
    agree(made.predictor, p_new, X_new, missing="<none>")


# --- subpopulations that the table above has not --------------------------------------------------------------------


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("notion", ["degree-2", "full-0.25"])
def test_memberships_of_a_bare_array_are_one_matrix(is_packed, notion):
    rng = np.random.default_rng(0)
    C, new = rng.random((2, 400, 11))
    if is_packed:
        C, new = C.round(), new.round()
    y, p = (rng.random(400) < 0.3).astype(int), rng.random(400)
    predictor = multicalibrate(y, p, C, subpopulations=lowcal.Memberships(), notion=notion).predictor
    assert [port.name for port in session(to_onnx(predictor)).get_inputs()] == ["p", "X"]
    agree(predictor, p, new)


def test_named_memberships_are_inputs_of_their_own():
    rng = np.random.default_rng(0)
    X = {"young": rng.random(400) < 0.5, "rich": rng.random(400)}
    y, p = (rng.random(400) < 0.3).astype(int), rng.random(400)
    predictor = multicalibrate(y, p, X, subpopulations=lowcal.Memberships()).predictor
    assert [port.name for port in session(to_onnx(predictor)).get_inputs()] == ["p", "young", "rich"]
    agree(predictor, p, X)


def test_private_groups():
    data, new = world(3000, 3, seed=4), fresh(3)
    private = lowcal.Private(lowcal.Intersections(["city", "member"]), epsilon=5.0)
    made = multicalibrate(data.y, data.p, data.X, subpopulations=private, notion="full-0.5", alpha=0.2, random_state=0)
    assert len(made.predictor) >= 1
    agree(made.predictor, new.p, new.X)
    assert metadata(to_onnx(made))["alpha"] == "0.2"


def test_a_slice_of_a_predictor():
    new = fresh(2)
    predictor = fit(small(2), "groups", "degree-2", ("first", "euclidean"), max_updates=20).predictor
    agree(predictor[:7], new.p, new.X)
    assert not np.allclose(serve(predictor[:7], new.p, new.X), predictor(new.p, new.X))


def test_many_thresholds_are_found_by_halving():
    rng = np.random.default_rng(0)
    X = {"t": np.append(rng.normal(size=999), np.nan)}
    y, p = (rng.random(1000) < 1 / (1 + np.exp(-X["t"]))).astype(int), np.full(1000, 0.5)
    predictor = multicalibrate(y, p, X, subpopulations=lowcal.Thresholds(min_mass=10), alpha=0.001).predictor
    new = {"t": np.concatenate([X["t"], rng.normal(size=500), [np.inf, -np.inf, np.nan]])}
    agree(predictor, rng.random(len(new["t"])), new, atol=1e-12)


# --- weights ----------------------------------------------------------------------------------------------------------


def one_update(weights, theta, d: int, geometry="euclidean") -> Predictor:
    """Return a predictor with one update on the groups of a column."""
    learner = CLASSES["groups"].prepare({"city": small(2).X["city"]})
    m = len(learner.names)
    term = Term(learner.families[0], tuple(weights), np.broadcast_to(theta, (m, len(weights), d)).copy())
    return Predictor(learner.encoder, (Update((term,), geometry),), Layout(max(2, d), None))


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_weights_of_all_kinds_in_one_update(geometry):
    knots = Knots(0, np.linspace(0.1, 0.9, 40), np.abs(np.sin(np.arange(40.0))))
    single = Knots(0, np.array([0.5]), np.array([0.3]))
    weights = [Monomial(), Monomial((0, 0, 0)), Cell(0.25, (1,)), Cell(0.3, (3,)), knots, single]
    new = fresh(2)
    agree(one_update(weights, 0.1 * np.arange(1, 7)[:, None], 1, geometry), new.p, new.X, atol=1e-12)


def test_points_are_compared_some_at_a_time(monkeypatch):
    rng = np.random.default_rng(0)
    points = Points(rng.dirichlet(np.ones(3), 50), rng.random(50) - 0.3)
    nowhere = Points(np.zeros((0, 3)), np.zeros(0))
    predictor = one_update([points, nowhere], np.array([[0.2, -0.1, 0.0], [0.0, 0.1, 0.0]]), 3)
    new = fresh(3)
    whole = serve(predictor, new.p, new.X)
    monkeypatch.setattr(weights, "CENTRES", 7)
    agree(predictor, new.p, new.X, atol=1e-12)
    np.testing.assert_allclose(serve(predictor, new.p, new.X), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [0.1, 0.25, 0.3, 1.0])
def test_cells_of_many_classes_are_told_apart(width):
    """Every second cell that a row lies in gets its own push; 20 classes would overflow a single number."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(20), 200)
    edges = np.arange(1, int(np.ceil(1 / width - 1e-9))) * width
    index = (p[:, :, None] >= edges).sum(axis=2) if len(edges) else np.zeros(p.shape, dtype=int)
    cells = [Cell(width, tuple(row)) for row in np.unique(index, axis=0)[::2].tolist()]
    theta = rng.normal(0, 0.05, (1, len(cells), 20))
    X = {"g": ["a", "b"] * 100}
    learner = CLASSES["groups"].prepare(X)
    everyone = Term(learner.member(0), tuple(cells), theta)
    predictor = Predictor(learner.encoder, (Update((everyone,)),), Layout(20, None))
    assert not np.allclose(predictor(p, X), p)
    agree(predictor, p, X, atol=1e-12)


@pytest.mark.parametrize("width", [0.1, 0.2, 0.3])
def test_edges_of_cells_belong_to_the_cell_above(width):
    k = int(np.ceil(1 / width - 1e-9))
    edges = np.arange(1, k) / k
    p = np.concatenate([np.arange(0, 1001) / 1000, np.nextafter(edges, 0), edges - 1e-14, np.arange(1, k) * width])
    cells = [Cell(width, (j,)) for j in range(k)]
    predictor = one_update(cells, (0.001 * np.arange(1, k + 1))[:, None], 1)
    X = {"city": np.full(len(p), "Oslo")}
    np.testing.assert_allclose(serve(predictor, p, X), predictor(p, X), rtol=0, atol=1e-14)


# --- parts of the graph, against NumPy ------------------------------------------------------------------------------


def run_graph(graph: Graph, value: str, given: dict[str, np.ndarray], kind: str = "double", shape=()) -> np.ndarray:
    graph.rename(graph.cast(value, "double"), "out")
    return session(graph.model([Port("out", kind, shape)], {})).run(None, given)[0]


def test_the_same_is_computed_once_and_only_the_same():
    graph = Graph(["v0", "v2"])
    x = graph.input("x", "double", (3,))
    assert graph.add("Gather", x, 0, axis=0) == graph.add("Gather", x, 0, axis=0)
    assert graph.add("Gather", x, 0, axis=0) != graph.add("Gather", x, 0, axis=1)
    assert graph.add("Gather", x, 0, axis=0) != graph.add("Gather", x, [0], axis=0)
    assert graph.constant(0) != graph.constant(0.0)
    assert {"v0", "v2"}.isdisjoint({*graph.constants, *(output for _, _, output, _ in graph.nodes)})


@pytest.mark.parametrize("n_cuts", [1, 2, 3, FEW, FEW + 1, 31, 32, 33, 100])
@pytest.mark.parametrize(("compare", "side"), [("Less", "left"), ("LessOrEqual", "right")])
def test_values_are_placed_among_cuts(n_cuts, compare, side):
    cuts = np.sort(np.random.default_rng(n_cuts).normal(size=n_cuts))
    values = np.concatenate([cuts, np.nextafter(cuts, -9), np.nextafter(cuts, 9), [np.inf, -np.inf]])
    graph = Graph()
    place = graph.count_below(graph.input("x", "double"), cuts, compare)
    found = run_graph(graph, place, {"x": np.append(values, np.nan)})
    np.testing.assert_array_equal(found[:-1], np.searchsorted(cuts, values, side=side))
    assert found[-1] == 0


def test_features_are_those_of_the_encoder():
    """Infinities count as a million deviations, missing values as the mean; each category is a column."""
    X = {"t": np.array([1.0, 2.0, np.nan, 5.0]), "c": np.array(["a", "b", None, "a"], dtype=object)}
    new = {"t": np.array([np.inf, -np.inf, np.nan, 1e300]), "c": np.array(["b", None, "z", "a"], dtype=object)}
    encoder = learn_features(None, Frame.of(X), np.full(4, 0.25))
    graph = Graph()
    columns = GraphColumns(graph, "", frozenset({"c"}), {name: name for name in X}, {})
    features = graph.side_by_side([feature.onnx(columns) for feature in encoder.features])
    found = run_graph(graph, features, {"t": new["t"], "c": as_text(new["c"], "")}, shape=(len(encoder.names),))
    np.testing.assert_array_equal(found, encoder(Frame.of(new)))
    np.testing.assert_array_equal(found[:3, 0], [1e6, -1e6, 0.0])


@pytest.mark.parametrize("d", [2, 3, 7])
def test_the_projection_is_the_nearest_point(d):
    v = np.random.default_rng(d).normal(0, 1, (500, d))
    v[:50] = v[:50].round()  # ties
    graph = Graph()
    moved = move(graph, graph.input("v", "double", (d,)), np.zeros((1, d)), d, "euclidean")
    found = run_graph(graph, moved, {"v": v}, shape=(d,))
    # the optimality conditions of min |z - v|^2 over the simplex
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    assert (found >= 0).all()
    gap = np.where(found > 0, v - found, -np.inf)
    theta = gap.max(axis=1, keepdims=True)
    np.testing.assert_allclose(np.where(found > 0, v - found, theta), np.broadcast_to(theta, v.shape), atol=1e-12)
    assert (v - theta <= 1e-12)[found == 0].all()


def test_the_sigmoid_is_precise_near_zero():
    x = np.array([-800.0, -40.0, -20.0, 0.0, 40.0, 800.0])
    graph = Graph()
    found = run_graph(graph, graph.sigmoid(graph.input("x", "double")), {"x": x})
    expected = np.array([0.0, np.exp(-40), np.exp(-20) / (1 + np.exp(-20)), 0.5, 1.0, 1.0])
    np.testing.assert_allclose(found, expected, rtol=1e-14)


TABLE = st.integers(1, 3).flatmap(
    lambda k: st.tuples(st.lists(st.integers(1, 4), min_size=k, max_size=k), st.integers(1, 5), st.integers(0, 2**32))
)


@settings(deadline=None)
@given(TABLE, st.sampled_from([0, 10, 10**6]))
def test_a_split_table_holds_the_same_members(drawn, small_enough):
    """Groups that are products of sets of levels, and some that are not, are found again from their own columns."""
    shape, m, seed = drawn
    rng = np.random.default_rng(seed)
    dense = np.ones((*shape, m))
    for a, size in enumerate(shape):
        inside = (rng.random((size, m)) < 0.6) | (rng.random(m) < 0.5)
        dense *= inside.reshape([size if b == a else 1 for b in range(len(shape))] + [m])
    if rng.random() < 0.3:
        dense[..., 0] = rng.random(shape) < 0.5
    decode = DecodeTable(sparse.csr_array(dense.reshape(-1, m)))
    before = groups.SMALL
    groups.SMALL = small_enough
    try:
        parts = groups.split(decode, shape, 1)
    finally:
        groups.SMALL = before
    again = np.full((int(np.prod(shape)), m), np.nan)
    levels = np.unravel_index(np.arange(len(again)), tuple(shape))
    for axes, members, table in parts:
        row = np.zeros(len(again), dtype=int)
        for a in axes:
            row = row * shape[a] + levels[a]
        again[:, members] = table.matrix.toarray()[row]
    np.testing.assert_array_equal(again, dense.reshape(-1, m))


@pytest.mark.parametrize("notion", ["degree-2", "full-0.25"])
def test_split_tables_give_the_same_predictions(notion, monkeypatch):
    new = fresh(2)
    predictor = fit(small(2), "intersections", notion, ("block", "mirror")).predictor
    monkeypatch.setattr(groups, "SMALL", 0)
    agree(predictor, new.p, new.X)


# --- degenerate cases -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
def test_without_updates_the_start_comes_back(n_classes):
    data = small(n_classes)
    predictor = fit(data, "groups", "degree-2", ("block", "euclidean")).predictor[:0]
    run = session(to_onnx(predictor))
    assert [port.name for port in run.get_inputs()] == ["p"]
    np.testing.assert_allclose(run.run(None, {"p": data.p})[0], data.p, rtol=0, atol=1e-15)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_rows_that_hardly_sum_to_one_are_normalised(n_classes):
    X, y = numbers(n_classes)
    base = LogisticRegression(C=1e-3).fit(X[:200], y[:200])
    model = lowcal.MulticalibratedClassifier(FrozenEstimator(base), alpha=0.001, random_state=0).fit(X, y)
    off = base.predict_proba(X) * (1 + np.linspace(-9e-7, 0, len(X)))[:, None]
    expected = model.predictor_(off, X)
    assert np.abs(expected - off).max() > 1e-4
    np.testing.assert_allclose(serve(model, off, X), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("kind", CLASSES)
def test_one_row_and_no_row(kind, n_classes):
    predictor = fit(small(n_classes), kind, "degree-2", ("block", "mirror")).predictor
    new = fresh(n_classes)
    run = session(to_onnx(predictor))
    given, every = feeds(run, new.p, new.X), predictor(new.p, new.X)
    for i in (0, 100):
        one = run.run(None, {name: values[i : i + 1] for name, values in given.items()})[0]
        np.testing.assert_allclose(one, every[i : i + 1], rtol=0, atol=1e-12)
    nobody = run.run(None, {name: values[:0] for name, values in given.items()})[0]
    assert nobody.shape == every[:0].shape


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("d", [1, 3])
def test_certain_predictions(geometry, d):
    corners = np.array([0.0, 1.0, 1e-300, 1 - 1e-16]) if d == 1 else np.eye(3)
    theta = np.array([[0.0]]) if d == 1 else np.zeros((1, 3))
    X = {"city": ["Oslo", "Rome", None, "Bern"][: len(corners)]}
    for push in (0.0, 3.0, -40.0):
        predictor = one_update([Monomial()], theta + push * np.eye(d)[:1], d, geometry)
        served = serve(predictor, corners, X)
        assert np.isfinite(served).all()
        np.testing.assert_allclose(served, predictor(corners, X), rtol=0, atol=1e-12)


def test_a_population_without_columns():
    y, p = np.array([0, 1] * 50), np.full(100, 0.9)
    predictor = multicalibrate(y, p, alpha=0.01).predictor
    assert len(predictor) >= 1
    np.testing.assert_allclose(serve(predictor, p, {}), predictor(p), rtol=0, atol=1e-14)


def test_a_column_whose_categories_are_all_rare_still_tells_who_is_missing():
    rng = np.random.default_rng(0)
    ids = np.array([None if k % 4 == 0 else f"person {k}" for k in range(400)], dtype=object)
    y = np.where(np.arange(400) % 4 == 0, rng.random(400) < 0.9, rng.random(400) < 0.2).astype(int)
    predictor = multicalibrate(y, np.full(400, 0.5), {"id": ids}, subpopulations=lowcal.Groups()).predictor
    agree(predictor, np.full(3, 0.5), {"id": np.array([None, "person 1", "stranger"], dtype=object)})


def test_one_part_of_a_union_may_know_none_of_a_columns_numbers():
    """Groups drop the rare numbers and keep "is missing", trees tell the numbers apart: the column stays a number."""
    rng = np.random.default_rng(0)
    X = {"n": np.array([np.nan, np.nan, 1.0, 2.0, 3.0] * 40)}
    y = (rng.random(200) < np.where(np.isnan(X["n"]), 0.8, 0.1 * np.nan_to_num(X["n"]))).astype(int)
    either = lowcal.Groups(min_mass=60) + lowcal.Trees(min_mass=5)
    predictor = multicalibrate(y, np.full(200, 0.4), X, subpopulations=either, alpha=0.001).predictor
    assert any("n is missing" in t.family.names for update in predictor.updates for t in update.terms)
    agree(predictor, np.full(5, 0.4), {"n": np.array([np.nan, 1.0, 2.0, 3.0, 4.0])})


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("d", [1, 3])
def test_an_update_without_terms_changes_nothing(d, geometry):
    start = one_update([Monomial()], np.zeros((1, d)), d)
    p = np.array([0.0, 0.3, 1.0]) if d == 1 else np.array([[0.0, 1.0, 0.0], [0.5, 0.25, 0.25]])
    X = {"city": ["Oslo"] * len(p)}
    for updates in ((Update((), geometry),), (Update((), geometry),) * 10):
        predictor = replace(start, updates=updates)
        np.testing.assert_array_equal(predictor(p, X), p)
        np.testing.assert_array_equal(predictor.one(p[1], {"city": "Oslo"}), p[1])
        np.testing.assert_array_equal(serve(predictor, p, {}), p)


def test_cells_that_are_too_many_for_a_graph_are_refused():
    predictor = one_update([Cell(1e-7, (5,))], np.full((1, 1), 0.25), 1)
    np.testing.assert_array_equal(predictor([5.5e-7, 0.5], {"city": ["Oslo"] * 2}), [5.5e-7 + 0.5, 0.5])
    with pytest.raises(InvalidInput, match="width 1e-07 are too many"):
        to_onnx(predictor)


def test_columns_that_no_update_reads_are_no_inputs():
    data = small(2)
    learner = CLASSES["groups"].prepare(data.X)
    rome = learner.member(learner.names.index("city=Rome"))
    start = fit(data, "groups", "degree-2", ("block", "euclidean")).predictor
    predictor = replace(start, updates=(Update((Term(rome, (Monomial(),), np.full((1, 1, 1), 0.1)),)),))
    assert [port.name for port in to_onnx(predictor).graph.input] == ["p", "city"]
    agree(predictor, data.p, data.X)


# --- names, metadata, files -----------------------------------------------------------------------------------------

ODD = ['say "hi"\n', "it's", "p", "probabilities", "X", "", "v0", "v1", "p_", "<img src=x>", "列"]


def test_columns_may_have_any_name():
    rng = np.random.default_rng(0)
    X = {name: rng.choice(np.array(["a", "b", None], dtype=object), 300) for name in ODD}
    y, p = (rng.random(300) < 0.5).astype(int), rng.random(300)
    predictor = multicalibrate(y, p, X, subpopulations=lowcal.Groups(min_mass=0), alpha=0.001).predictor
    model = to_onnx(predictor)
    names = [port.name for port in model.graph.input]
    assert len(set(names)) == len(names) == len(ODD) + 1
    assert set(ODD) - set(names) == {"probabilities", ""}
    agree(predictor, p, X)


def test_input_names_are_the_columns_own_where_they_can_be():
    names = input_names(ODD, ("p", "probabilities"))
    assert {column: name for column, name in names.items() if column != name} == {
        "p": "p__",
        "probabilities": "probabilities_",
        "": "_",
    }


def metadata(model) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}


def test_metadata_say_what_it_is():
    data = small(3)
    labels = np.array(["red", "green", "blue"])[data.y]
    made = multicalibrate(
        labels, data.p, {"p": data.X["city"]}, subpopulations=CLASSES["groups"], alpha=0.02, max_updates=2
    )
    found = metadata(to_onnx(made, missing="?"))
    assert found == {
        "lowcal_version": lowcal.__version__,
        "columns": '{"p_": "p"}',
        "missing": '"?"',
        "updates": str(len(made.predictor)),
        "notion": "degree-2",
        "alpha": "0.02",
        "classes": '["blue", "green", "red"]',
    }
    assert {"notion", "alpha"}.isdisjoint(metadata(to_onnx(made.predictor)))


def test_the_model_suits_older_runtimes():
    model = to_onnx(fit(small(3), "union", "smooth", ("block", "euclidean")))
    assert model.ir_version <= 8
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 17, "ai.onnx.ml": 2}
    assert {port.type.tensor_type.elem_type for port in model.graph.input} == {
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.STRING,
    }
    onnx.checker.check_model(model, full_check=True)
    numbers_only = to_onnx(fit(small(2), "thresholds", "degree-2", ("block", "euclidean")))
    assert [opset.domain for opset in numbers_only.opset_import] == [""]


def test_groups_are_tables_not_nodes():
    """100 groups times 2 weights: a look-up for each column at most; 50 more updates share the memberships."""
    rng = np.random.default_rng(0)
    X = {f"g{j}": np.array(list("abcdefghij"))[rng.integers(0, 10, 3000)] for j in range(10)}
    y, p = (rng.random(3000) < 0.5).astype(int), rng.random(3000)
    block = multicalibrate(y, p, X, subpopulations=lowcal.Groups(), alpha=1e-4, guard=False)
    model = to_onnx(block)
    assert len(model.graph.node) <= 60 + 40 * len(block.predictor)
    assert model.ByteSize() <= 20_000 + 60_000 * len(block.predictor)
    first = multicalibrate(y, p, X, subpopulations=lowcal.Groups(), alpha=0.01, solver="first", max_updates=300)
    model = to_onnx(first)
    assert len(first.predictor) >= 100
    assert len(model.graph.node) <= 500 + 5 * len(first.predictor)
    assert model.ByteSize() <= 60_000 + 300 * len(first.predictor)


def test_the_same_predictor_gives_the_same_bytes():
    predictor = fit(small(3), "union", "degree-2", ("block", "mirror")).predictor
    one, other = (to_onnx(predictor).SerializeToString(deterministic=True) for _ in range(2))
    assert one == other


def test_a_file_is_written_at_once(tmp_path, monkeypatch):
    new = fresh(2)
    predictor = fit(small(2), "groups", "degree-2", ("block", "euclidean")).predictor
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        to_onnx(predictor, path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    model = to_onnx(predictor, str(path))
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    run = ort.InferenceSession(path)
    np.testing.assert_array_equal(
        run.run(None, feeds(run, new.p, new.X))[0], session(model).run(None, feeds(run, new.p, new.X))[0]
    )


# --- estimators -------------------------------------------------------------------------------------------------------


@cache
def numbers(n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n_classes)
    X = rng.normal(size=(400, 4))
    return X, np.digitize(X[:, 1] + X[:, 3] ** 2 + rng.normal(size=400), np.linspace(-0.5, 1.5, n_classes - 1))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_classifier_that_learned_from_scratch_needs_no_start(n_classes):
    X, y = numbers(n_classes)
    model = lowcal.MulticalibratedClassifier(random_state=0, max_updates=4).fit(X, np.array(["u", "v", "w"])[y])
    exported = to_onnx(model)
    assert [port.name for port in exported.graph.input] == ["X"]
    assert json.loads(metadata(exported)["classes"]) == model.classes_.tolist()
    np.testing.assert_allclose(serve(model, None, X), model.predict_proba(X), rtol=0, atol=1e-9)


def test_the_uniform_start_counts_where_weights_look_at_it():
    X, y = numbers(3)
    model = lowcal.MulticalibratedClassifier(
        subpopulations=lowcal.Groups(n_bins=3), notion="full-0.3", geometry="euclidean", max_updates=3, random_state=0
    ).fit(X, y)
    assert len(model.predictor_) >= 1
    np.testing.assert_allclose(serve(model, None, X), model.predict_proba(X), rtol=0, atol=1e-9)


def test_a_uniform_start_for_everyone_stays_an_input():
    X, y = numbers(2)
    model = lowcal.MulticalibratedClassifier(
        subpopulations=lowcal.Groups([], min_mass=0), alpha=0.001, random_state=0
    ).fit(X, y)
    assert [port.name for port in to_onnx(model).graph.input] == ["p"]
    np.testing.assert_allclose(serve(model, np.full((400, 2), 0.5), X), model.predict_proba(X), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_base_model_feeds_the_start(n_classes):
    X, y = numbers(n_classes)
    base = LogisticRegression().fit(X[:200], y[:200])
    model = lowcal.MulticalibratedClassifier(FrozenEstimator(base), random_state=0, max_updates=4).fit(X, y)
    np.testing.assert_allclose(serve(model, base.predict_proba(X), X), model.predict_proba(X), rtol=0, atol=1e-9)


def test_a_classifier_on_a_frame_reads_columns_by_name():
    pd = pytest.importorskip("pandas", reason="a frame with names")
    data, new = small(2), fresh(2)
    X, X_new = pd.DataFrame(data.X), pd.DataFrame(new.X)
    model = lowcal.MulticalibratedClassifier(
        subpopulations=lowcal.Groups(["city", "age"], min_mass=0), validation_fraction=0, random_state=0
    ).fit(X, data.y)
    assert [port.name for port in to_onnx(model).graph.input] == ["city", "age"]
    np.testing.assert_allclose(serve(model, None, new.X), model.predict_proba(X_new), rtol=0, atol=1e-9)


@pytest.mark.parametrize("base", [None, LinearRegression()])
def test_a_regressor_keeps_its_units(base):
    X, _ = numbers(2)
    y = 100 + 10 * X[:, 0] + 5 * X[:, 1] ** 2
    estimator = base if base is None else FrozenEstimator(base.fit(X[:100], y[:100]))
    model = lowcal.MulticalibratedRegressor(estimator, alpha=0.001, random_state=0).fit(X, y)
    exported = to_onnx(model)
    assert json.loads(metadata(exported)["bounds"]) == list(model.bounds_)
    start = None if base is None else base.predict(X)
    assert [port.name for port in exported.graph.input] == (["X"] if base is None else ["p", "X"])
    np.testing.assert_allclose(serve(model, start, X), model.predict(X), rtol=1e-10)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_without_onnx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lowcal\[onnx\]'"):
        to_onnx(fit(small(2), "groups", "degree-2", ("block", "euclidean")))


def test_foreign_regressors_are_refused_with_what_is_possible():
    X, y = numbers(2)
    regressor = lowcal.Regressor(DecisionTreeRegressor(max_depth=2))
    made = multicalibrate(y, np.full(400, 0.5), X, subpopulations=regressor, max_updates=1, geometry="euclidean")
    with pytest.raises(InvalidInput, match=r"Regressor\(DecisionTreeRegressor.*Trees\(n_trees=25\) or Linear"):
        to_onnx(made)


def test_categories_that_no_double_equals_are_refused():
    accounts, y = 2**53 + np.arange(400) % 2, np.arange(400) % 2
    fit = multicalibrate(y, np.full(400, 0.5), {"account": accounts}, subpopulations=lowcal.Groups())
    with pytest.raises(InvalidInput, match=rf"'account' has the category {2**53 + 1}.* Make the column text"):
        to_onnx(fit.predictor)


def test_classes_and_weights_that_are_not_lowcals_are_refused():
    class Mine:
        names = ("mine",)

    class Odd:
        __hash__ = None

        def __call__(self, p):
            return p[:, 0]

        def __str__(self):
            return "odd"

    start = one_update([Monomial()], np.zeros((1, 1)), 1)
    with pytest.raises(
        InvalidInput, match=r"Mine can't be written as ONNX: it has no method `onnx`. Exported are Groups"
    ):
        to_onnx(replace(start, updates=(Update((Term(Mine(), (Monomial(),), np.ones((1, 1, 1))),)),)))
    with pytest.raises(InvalidInput, match=r"The weight odd \(Odd\) can't be written"):
        to_onnx(one_update([Odd()], np.zeros((1, 1)), 1))


def test_what_stands_for_missing_must_not_be_a_category():
    data = small(2)
    X = {"city": np.array(["", "Rome"], dtype=object)[np.arange(120) % 2]}
    predictor = multicalibrate(data.y, data.p, X, subpopulations=CLASSES["groups"], alpha=0.001).predictor
    with pytest.raises(InvalidInput, match=r"'city' has the category ''.*missing='<missing>'"):
        to_onnx(predictor)
    agree(predictor, data.p, {"city": [None, "", "Rome", "Bern"] * 30}, missing="<missing>")
    with pytest.raises(InvalidInput, match=r"missing is the text .* but None was given"):
        to_onnx(predictor, missing=None)


def test_text_and_numbers_that_look_alike_are_refused():
    data = small(2)
    X = {"code": np.array(["1", 1], dtype=object)[np.arange(120) % 2]}
    predictor = multicalibrate(data.y, data.p, X, subpopulations=CLASSES["groups"], alpha=0.001).predictor
    with pytest.raises(InvalidInput, match=r"the number 1 and the text '1'"):
        to_onnx(predictor)


@pytest.mark.parametrize("place", ["column", "category"])
def test_text_that_is_no_unicode_is_refused(place):
    data = small(2)
    bad = "half \ud800"
    X = {bad if place == "column" else "c": np.array([bad if place == "category" else "a", "b"] * 60, dtype=object)}
    predictor = multicalibrate(data.y, data.p, X, subpopulations=CLASSES["groups"], alpha=0.001).predictor
    with pytest.raises(InvalidInput, match=r"not valid Unicode"):
        to_onnx(predictor)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("a string", "takes a Predictor, a Fit or a fitted .* but str was given"),
        (lowcal.MulticalibratedClassifier(), "MulticalibratedClassifier is not fitted"),
    ],
)
def test_other_things_are_refused(model, message):
    with pytest.raises(InvalidInput, match=message):
        to_onnx(model)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CannotWrite, match=r"there is no folder .*nowhere"):
        to_onnx(one_update([Monomial()], np.zeros((1, 1)), 1), tmp_path / "nowhere" / "model.onnx")
