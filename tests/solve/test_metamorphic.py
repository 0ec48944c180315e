"""What must not change an answer, or must change it in a known way: copies, weights, order, names, backends."""

from __future__ import annotations

import narwhals.stable.v2 as nw
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import definition
import lowcal
from worlds import WAYS, multicalibrate

NOTIONS = ("multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.25")

KINDS = {
    "groups": lowcal.Groups(["g0", "g1"], min_mass=0),
    "bins": lowcal.Groups(n_bins=4, min_mass=0),
    "intersections": lowcal.Intersections(["g0", "g1"], min_mass=0),
    "thresholds": lowcal.Thresholds(["t"], min_mass=0),
    "trees": lowcal.Trees(max_depth=2, min_mass=0),
    "linear": lowcal.Linear(),
    "union": lowcal.Groups(["g0"], min_mass=0) + lowcal.Thresholds(["t"], min_mass=0),
}


def take(X: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[rows] for name, column in X.items()}


def fit(
    data: definition.World,
    way: tuple[str, str],
    notion: str = "degree-2",
    kind: str = "groups",
    rows: np.ndarray | None = None,
    weight: np.ndarray | None = None,
    step: str | None = None,
) -> lowcal.Fit:
    """Fit on some rows; few updates, so that rounding can't grow along a long run."""
    rows = np.arange(len(data.y)) if rows is None else rows
    return multicalibrate(
        data.y[rows],
        data.p[rows],
        take(data.X, rows),
        subpopulations=KINDS[kind],
        notion=notion,
        alpha=0.02,
        solver=way[0],
        geometry=way[1],
        sample_weight=weight,
        max_updates=12,
        step=step,
        guard=False,  # labels redrawn for noise belong to rows, in their order
    )


def same(a: lowcal.Fit, b: lowcal.Fit, data: definition.World, atol: float = 1e-8) -> None:
    """Assert that two fits predict alike on all rows and have the same history."""
    assert a.n_updates == b.n_updates >= 1
    assert a.status == b.status
    np.testing.assert_allclose(a.predictor(data.p, data.X), b.predictor(data.p, data.X), rtol=0, atol=atol)
    for name in ("violation", "brier", "log_loss"):
        left, right = ([getattr(record, name) for record in one.history] for one in (a, b))
        np.testing.assert_allclose(left, right, rtol=0, atol=atol)


@pytest.fixture(scope="module", params=[2, 3], ids=["binary", "3 classes"])
def data(request: pytest.FixtureRequest) -> definition.World:
    return definition.world(160, request.param, seed=4)


# ------------------------------------------------------------------------------------------------ rows and weights
@pytest.mark.product
@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("notion", NOTIONS)
def test_doubled_rows_are_doubled_weights(data: definition.World, notion: str, way: tuple[str, str]) -> None:
    """The shrunk step in log odds takes two rows for more evidence than one of weight 2: shares of Newton's do not."""
    if notion == "smooth" and data.p.ndim == 2:
        way = ("block", "euclidean") if way[0] == "worst" else way  # the best of all weights need not be unique there
    twice = np.random.default_rng(0).random(160) < 0.4
    rows = np.r_[np.arange(160), np.flatnonzero(twice)]
    step = 0.9 if way == ("block", "mirror") else None
    same(fit(data, way, notion, rows=rows, step=step), fit(data, way, notion, weight=1.0 + twice, step=step), data)


@pytest.mark.parametrize("kind", KINDS)
def test_doubled_rows_are_doubled_weights_for_every_class(data: definition.World, kind: str) -> None:
    twice = np.random.default_rng(1).random(160) < 0.4
    rows = np.r_[np.arange(160), np.flatnonzero(twice)]
    same(
        fit(data, ("worst", "euclidean"), kind=kind, rows=rows),
        fit(data, ("worst", "euclidean"), kind=kind, weight=1.0 + twice),
        data,
    )


@pytest.mark.product
@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_ratios_of_weights_count(data: definition.World, kind: str, way: tuple[str, str]) -> None:
    weight = np.random.default_rng(2).random(160) + 0.1
    base = fit(data, way, kind=kind, weight=weight)
    same(base, fit(data, way, kind=kind, weight=1e-6 * weight), data)
    same(base, fit(data, way, kind=kind, weight=1e6 * weight), data)
    with pytest.raises(AssertionError):  # and they do count
        same(base, fit(data, way, kind=kind), data)


@pytest.mark.product
@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_weight_count_for_nothing(data: definition.World, kind: str, way: tuple[str, str]) -> None:
    kept = np.arange(160) % 4 != 1
    silent = fit(data, way, kind=kind, weight=kept.astype(float))
    absent = fit(data, way, kind=kind, rows=np.flatnonzero(kept))
    same(silent, absent, data)


@pytest.mark.product
@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("kind", KINDS)
def test_order_of_rows(data: definition.World, kind: str, way: tuple[str, str]) -> None:
    same(fit(data, way, kind=kind), fit(data, way, kind=kind, rows=np.random.default_rng(3).permutation(160)), data)


@pytest.mark.product
@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("notion", NOTIONS)
def test_order_of_rows_for_every_notion(data: definition.World, notion: str, way: tuple[str, str]) -> None:
    same(fit(data, way, notion), fit(data, way, notion, rows=np.random.default_rng(5).permutation(160)), data)


def test_predictions_are_row_by_row(data: definition.World) -> None:
    """A row's calibrated probability depends on that row alone."""
    model = fit(data, ("block", "euclidean"), kind="trees").predictor
    rows = np.random.default_rng(6).permutation(160)[:50]
    whole = model(data.p, data.X)
    np.testing.assert_allclose(model(data.p[rows], take(data.X, rows)), whole[rows], rtol=0, atol=1e-15)
    np.testing.assert_allclose(model(data.p[:1], take(data.X, np.arange(1))), whole[:1], rtol=0, atol=1e-15)


@given(st.integers(0, 2**32 - 1), st.sampled_from(NOTIONS), st.sampled_from([2, 3]))
@settings(deadline=None, max_examples=30)
def test_measured_violations_follow_weights_and_order(seed: int, notion: str, classes: int) -> None:
    rng = np.random.default_rng(seed)
    data = definition.world(60, classes, seed=seed)
    times = rng.integers(0, 3, 60)
    times[:5] = 1
    rows = rng.permutation(np.repeat(np.arange(60), times))
    kind = {"subpopulations": lowcal.Groups(["g0", "g1"], min_mass=0), "notion": notion, "classes": range(classes)}
    if len(set(data.y[rows].tolist())) < 2:
        return
    weighted = lowcal.measure(data.y, data.p, data.X, sample_weight=times, **kind)
    copied = lowcal.measure(data.y[rows], data.p[rows], take(data.X, rows), **kind)
    assert weighted.names == copied.names
    np.testing.assert_allclose(weighted.violation, copied.violation, rtol=0, atol=1e-9)
    np.testing.assert_allclose(weighted.mass, copied.mass, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weighted.upper, copied.upper, rtol=0, atol=1e-9)


# --------------------------------------------------------------------------------------------------------- labels
@pytest.mark.parametrize("way", WAYS[1:], ids="-".join)
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-1", "degree-2", "degree-3", "smooth", "full-0.5"])
def test_relabelling_permutes_columns(notion: str, way: tuple[str, str]) -> None:
    data = definition.world(160, 3, seed=4)
    order = np.array([2, 0, 1])  # new column k is old column order[k]
    renamed = definition.World(
        data.X, np.argsort(order)[data.y], data.p[:, order], data.hot[:, order], data.fractional, data.binary
    )
    a, b = fit(data, way, notion), fit(renamed, way, notion)
    assert a.n_updates == b.n_updates >= 1
    calibrated, permuted = a.predictor(data.p, data.X), b.predictor(renamed.p, data.X)
    np.testing.assert_allclose(permuted, calibrated[:, order], rtol=0, atol=1e-9)
    assert b.violation == pytest.approx(a.violation, abs=1e-9)


def test_relabelling_permutes_columns_for_algorithm_1() -> None:
    """Its order of labels is the order of columns, so only what it guarantees is invariant."""
    data = definition.world(160, 3, seed=4)
    order = np.array([2, 0, 1])
    a = multicalibrate(data.y, data.p, data.X, alpha=0.05, solver="first", subpopulations=KINDS["groups"])
    b = multicalibrate(
        np.argsort(order)[data.y], data.p[:, order], data.X, alpha=0.05, solver="first", subpopulations=KINDS["groups"]
    )
    assert a.status == b.status == "reached"
    assert a.bound == b.bound


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("notion", ["multiaccuracy", "full-0.3", "smooth"])
def test_swapping_the_two_labels_reflects_predictions(notion: str, way: tuple[str, str]) -> None:
    """y -> 1 - y, p -> 1 - p: f -> 1 - f, for classes that are closed under z -> 1 - z."""
    data = definition.world(160, 2, seed=4)
    if notion == "full-0.3":
        notion = "full-0.25"
        data.p = np.round(data.p * 97) / 97  # no prediction on the edge of a cell
    swapped = definition.World(data.X, 1 - data.y, 1 - data.p, 1 - data.hot, data.fractional, data.binary)
    if way[0] == "first" and notion != "multiaccuracy":
        return  # it takes the cells in order
    a, b = fit(data, way, notion), fit(swapped, way, notion)
    assert a.n_updates == b.n_updates >= 1
    np.testing.assert_allclose(b.predictor(swapped.p, data.X), 1 - a.predictor(data.p, data.X), rtol=0, atol=1e-9)


@pytest.mark.parametrize("classes", [3, 4])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-1", "degree-2", "degree-3", "smooth", "full-0.5"])
def test_relabelling_leaves_violations(notion: str, classes: int) -> None:
    data = definition.world(80, classes, seed=7)
    order = np.random.default_rng(1).permutation(classes)
    kind = {"subpopulations": KINDS["intersections"], "notion": notion}
    plain = lowcal.measure(data.y, data.p, data.X, **kind)
    renamed = lowcal.measure(np.argsort(order)[data.y], data.p[:, order], data.X, **kind)
    np.testing.assert_allclose(plain.violation, renamed.violation, rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------- groups and backends
@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize(("notion", "atol"), [("multiaccuracy", 1e-6), ("full-0.25", 1e-6), ("degree-2", 1e-4)])
def test_a_column_given_twice_changes_nothing(data: definition.World, notion: str, atol: float, geometry: str) -> None:
    """Only the ridge, 1e-6 of the diagonal, sees the copy; degree 2 is the worst conditioned.

    The step in log odds is shrunk far more, and copies are shrunk less: Newton steps leave it out.
    """

    def calibrated(C: np.ndarray) -> np.ndarray:
        run = multicalibrate(
            data.y,
            data.p,
            C,
            subpopulations=lowcal.Memberships(min_mass=0),
            notion=notion,
            alpha=1e-3,
            geometry=geometry,
            step=0.9,
            max_updates=1,
        )
        return run.predictor(data.p, C)

    once = data.binary[:, [0, 2, 4]]
    assert np.abs(calibrated(once) - data.p).max() > 0.05
    np.testing.assert_allclose(calibrated(np.column_stack([once, once[:, :1]])), calibrated(once), rtol=0, atol=atol)


def test_memberships_in_any_form_are_the_same(data: definition.World) -> None:
    """0/1 groups as categories, as packed bits, as floats that are not quite bits, and as a sparse matrix."""
    from scipy import sparse

    X = {name: data.X[name] for name in ("g0", "g1")}
    C = definition.groups(X)[1][:, 1:]
    options = {"alpha": 0.005, "solver": "worst", "max_updates": 12}
    by_name = multicalibrate(data.y, data.p, X, subpopulations=lowcal.Groups(min_mass=0), **options)
    expected = by_name.predictor(data.p, X)
    nearly = np.clip(C, 1e-15, 1)
    for form in (C, C.astype(bool), sparse.csr_matrix(C), sparse.csc_array(C), nearly):
        run = multicalibrate(data.y, data.p, form, subpopulations=lowcal.Memberships(min_mass=0), **options)
        assert run.n_updates == by_name.n_updates
        np.testing.assert_allclose(run.predictor(data.p, form), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_backends_agree(kind: str) -> None:
    source = lowcal.datasets.make_miscalibrated(300, n_columns=2, random_state=0)
    columns = {"g0": source.X["g0"].copy(), "g1": source.X["g1"], "t": source.X["x0"].copy()}
    columns["g0"][::17] = None
    columns["t"][::23] = np.nan
    lists = {name: column.tolist() if column.dtype == object else column for name, column in columns.items()}
    frames = [nw.from_dict(lists, backend=backend).to_native() for backend in ("pandas", "polars", "pyarrow")]
    expected = None
    for X in (columns, *frames):
        run = multicalibrate(
            source.y,
            source.p,
            X,
            subpopulations=KINDS[kind],
            alpha=0.005,
            solver="worst",
            max_updates=8,
            guard=False,
        )
        got = run.predictor(source.p, X)
        expected = got if expected is None else expected
        assert got.tobytes() == expected.tobytes()
        # fitted on one backend, used on another
        assert run.predictor(source.p, columns).tobytes() == expected.tobytes()
        assert np.abs(got - source.p).max() > 0.01


def test_names_of_columns_do_not_matter_but_their_values_do(data: definition.World) -> None:
    renamed = {"first": data.X["g0"], "second": np.where(data.X["g1"] == "u", "zz", data.X["g1"])}
    plain = {"first": data.X["g0"], "second": data.X["g1"]}
    a, b = (
        multicalibrate(data.y, data.p, X, subpopulations=lowcal.Groups(min_mass=0), alpha=0.01)
        for X in (plain, renamed)
    )
    np.testing.assert_allclose(a.predictor(data.p, plain), b.predictor(data.p, renamed), rtol=0, atol=1e-9)
