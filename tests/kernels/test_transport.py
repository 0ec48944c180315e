"""The transport kernel against the dense Lipschitz program, the line kernel and weak duality."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

from lowcal.kernels import transport
from lowcal.kernels.line import FloatArray, aggregate, solve_line
from lowcal.kernels.transport import Clusters, Shipment, aggregate_rows, evaluate, exact, greedy, near

Points = tuple[FloatArray, FloatArray]


def supremum_by_lp(Z: FloatArray, r: FloatArray) -> float:
    """The definition, with all pairwise Lipschitz constraints, given to HiGHS."""
    n = len(Z)
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    rows = np.arange(len(i))
    pairs = sp.csr_array(
        (np.r_[np.ones(len(i)), -np.ones(len(i))], (np.r_[rows, rows], np.r_[i, j])), shape=(len(i), n)
    )
    scale = np.abs(r).max() or 1.0
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    solution = linprog(
        -r / scale,
        A_ub=pairs if n > 1 else None,
        b_ub=cdist(Z, Z, "cityblock")[i, j] if n > 1 else None,
        bounds=(0, 1),
        method="highs",
        options=tight,
    )
    assert solution.status == 0
    return float(-solution.fun * scale)


def instance(seed: int, n: int, labels: int, kind: str) -> Points:
    """Predictions on the simplex, spread or in one corner, with ties, and residuals of either sign."""
    rng = np.random.default_rng(seed)
    Z = rng.dirichlet(np.full(labels, 0.7), n)
    if kind == "corner":
        Z = 0.9 * np.eye(labels)[0] + 0.1 * Z
    if kind == "ties":
        Z = Z[rng.integers(0, n, n) // 2]
    r = rng.normal(size=n) / n
    if kind == "tails":
        r *= rng.pareto(1.1, n)
    return Z, r


instances = st.builds(
    instance,
    st.integers(0, 2**32 - 1),
    st.integers(1, 25),
    st.sampled_from([3, 4, 5]),
    st.sampled_from(["spread", "corner", "ties", "tails"]),
)


@given(instances)
@settings(deadline=None, max_examples=120)
def test_exact_reaches_the_dense_program(points: Points) -> None:
    Z, r = points
    value, centres, heights = exact(Z, r)
    assert value == pytest.approx(supremum_by_lp(Z, r), abs=1e-9)
    assert value == pytest.approx(np.sum(r * evaluate(Z, centres, heights)), abs=1e-14)
    np.testing.assert_array_equal(centres, Z[r < 0])


@given(instances, st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_witness_is_a_weight_function_everywhere(points: Points, seed: int) -> None:
    Z, r = points
    _, centres, heights = exact(Z, r)
    assert np.all((heights >= 0) & (heights <= 1))
    rng = np.random.default_rng(seed)
    fresh = rng.dirichlet(np.full(Z.shape[1], 0.5), 60)
    near = 0.95 * fresh + 0.05 * rng.dirichlet(np.full(Z.shape[1], 0.5), 60)
    everywhere = np.vstack([Z, fresh, near])
    u = evaluate(everywhere, centres, heights)
    assert np.all((u >= 0) & (u <= 1))
    assert np.all(np.abs(u[:, None] - u) <= cdist(everywhere, everywhere, "cityblock") + 1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
@settings(deadline=None)
def test_two_labels_are_a_line(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    f = rng.random(n)
    mass = rng.exponential(size=n) * ((rng.random(n) < f**1.5) - f) / n
    Z = np.column_stack([f, 1 - f])
    v, r = aggregate(f, mass)
    both = exact(Z, mass)[0] + exact(Z, -mass)[0]
    assert both == pytest.approx(2 * solve_line(v, r, lip=2.0)[0] - r.sum(), abs=1e-9)


def upper_bound(Z: FloatArray, r: FloatArray, neighbours: int = 16) -> float:
    """What a greedy plan proves about any rows."""
    return greedy(*aggregate_rows(Z, r), neighbours).upper()


@given(instances, st.sampled_from([1, 3, 16]))
@settings(deadline=None)
def test_upper_bound_is_above(points: Points, neighbours: int) -> None:
    Z, r = points
    bound = upper_bound(Z, r, neighbours)
    assert bound >= exact(Z, r)[0] - 1e-12
    assert bound <= r[r > 0].sum() + 1e-12


def test_upper_bound_is_of_use() -> None:
    Z, r = instance(0, 200, 3, "spread")
    value, bound = exact(Z, r)[0], upper_bound(Z, r)
    assert value <= bound < value + 0.25 * (r[r > 0].sum() - value)


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_upper_bound_asks_from_both_sides(direction: float) -> None:
    # one heavy point against 40 light ones around it: more partners than its 16 nearest
    rng = np.random.default_rng(0)
    Z = np.vstack([[1 / 3, 1 / 3, 1 / 3], 0.9 / 3 + 0.1 * rng.dirichlet(np.ones(3), 40)])
    r = direction * np.r_[1.0, np.full(40, -1 / 40)]
    assert upper_bound(Z, r) == pytest.approx(exact(Z, r)[0], abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 80))
@settings(deadline=None)
def test_equal_rows_are_tight(seed: int, n: int) -> None:
    r = np.random.default_rng(seed).normal(size=n)
    Z = np.full((n, 3), 1 / 3)
    best = max(0.0, r.sum())
    assert exact(Z, r)[0] == pytest.approx(best, abs=1e-9)
    assert upper_bound(Z, r, neighbours=1) == pytest.approx(best, abs=1e-12)


def test_two_points_by_hand() -> None:
    # l1 distance 0.4 and masses 0.5, -0.2: u = (1, 0.6), so 0.5 - 0.12; only 0.2 can be moved
    Z, r = np.array([[0.2, 0.8, 0.0], [0.4, 0.6, 0.0]]), np.array([0.5, -0.2])
    value, centres, heights = exact(Z, r)
    assert value == pytest.approx(0.38, abs=1e-12)
    assert heights == pytest.approx([0.6], abs=1e-12)
    np.testing.assert_array_equal(centres, Z[1:])
    assert upper_bound(Z, r) == pytest.approx(0.38, abs=1e-12)


def test_far_points_are_free() -> None:
    Z, r = np.eye(3), np.array([0.5, -0.7, 0.1])
    value, _, heights = exact(Z, r)
    assert value == pytest.approx(0.6, abs=1e-15)
    assert heights.tolist() == [0.0]
    assert upper_bound(Z, r) == pytest.approx(0.6, abs=1e-15)


def test_small_gains_are_not_lost_in_the_tolerance() -> None:
    # distance 1 - 1e-8: an unscaled objective of 1e-8 lies below HiGHS' dual tolerance
    d = 1 - 1e-8
    Z = np.array([[0.0, 1.0, 0.0], [d / 2, 1 - d / 2, 0.0]])
    r = np.array([1e-3, -1e-3])
    assert exact(Z, r)[0] == pytest.approx(1e-3 * d, rel=1e-14)


def test_one_sign_only() -> None:
    Z = np.random.default_rng(0).dirichlet(np.ones(3), 5)
    value, centres, heights = exact(Z, np.full(5, 0.2))
    assert value == pytest.approx(1.0, abs=1e-15)
    assert (centres.shape, heights.shape) == ((0, 3), (0,))
    assert evaluate(Z, centres, heights).tolist() == [1.0] * 5
    assert exact(Z, np.full(5, -0.2))[0] == 0.0
    assert exact(Z, np.zeros(5))[0] == 0.0
    assert upper_bound(Z, np.full(5, 0.2)) == pytest.approx(1.0, abs=1e-15)
    assert upper_bound(Z, np.full(5, -0.2)) == 0.0


def test_no_rows() -> None:
    Z, r = np.zeros((0, 3)), np.zeros(0)
    assert exact(Z, r)[0] == 0.0
    assert upper_bound(Z, r) == 0.0
    assert evaluate(Z, Z, r).shape == (0,)


@pytest.mark.parametrize("cells", [1, 7, 64, 1 << 20])
def test_chunks_do_not_change_the_weights(cells: int) -> None:
    Z, r = instance(0, 50, 4, "spread")
    _, centres, heights = exact(Z, r)
    whole = np.clip((cdist(Z, centres, "cityblock") + heights).min(axis=1), 0, 1)
    np.testing.assert_array_equal(evaluate(Z, centres, heights, cells=cells), whole)


def test_unsolved_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "TIGHT", {"maxiter": 0, "presolve": False})
    with pytest.raises(RuntimeError, match="HiGHS says"):
        exact(*instance(0, 20, 3, "corner"))


@pytest.mark.parametrize("columns", [None, 2])
def test_aggregate_rows_sums_ties(columns: int | None) -> None:
    rng = np.random.default_rng(0)
    Z = rng.integers(0, 3, (60, 3)) / 2
    R = rng.normal(size=60 if columns is None else (60, columns))
    unique, summed = aggregate_rows(Z, R)
    np.testing.assert_array_equal(unique, np.unique(Z, axis=0))
    assert summed.shape == (len(unique), *R.shape[1:])
    for row, total in zip(unique, summed, strict=True):
        np.testing.assert_allclose(total, R[(row == Z).all(axis=1)].sum(axis=0), atol=1e-12)


def separated(n: int = 150) -> Points:
    """Positive residuals on one side of the simplex, negative ones on the other: near neighbours do not suffice."""
    Z = np.random.default_rng(0).dirichlet(np.ones(3), n)
    return aggregate_rows(Z, np.where(Z[:, 0] > 1 / 3, 1.0, -1.0) / n)


@given(instances, st.sampled_from([1, 3, 16]), st.sampled_from([1, 2, 5, 100]))
@settings(deadline=None, max_examples=120)
def test_brackets_hold_the_exact_value(points: Points, neighbours: int, limit: int) -> None:
    Z, r = aggregate_rows(*points)
    best, tiny = supremum_by_lp(Z, r), 1e-9 * max(1.0, np.abs(r).sum())
    clusters = Clusters.of(Z, limit)
    (value, centres, heights), plan = near(Z, r, neighbours)
    for low, *witness in ((value, centres, heights), clusters.lower(Z, r)):
        assert low <= best + tiny
        u = evaluate(Z, *witness)
        assert low == pytest.approx(np.sum(r * u), abs=tiny)
        assert np.all(np.abs(u[:, None] - u) <= cdist(Z, Z, "cityblock") + 1e-12)
    for shipped in (plan, greedy(Z, r, neighbours)):
        assert best - tiny <= shipped.upper(clusters) <= shipped.upper() + tiny
    assert plan.upper() <= greedy(Z, r, neighbours).upper() + tiny
    assert clusters.upper(r) >= best - tiny
    # spec 2.4: the centres alone are as far off as the rows were moved, in both directions
    moved = np.abs(r) @ np.minimum(clusters.distance, 1.0)
    assert clusters.upper(r) - best <= 2 * moved + tiny
    assert best - clusters.lower(Z, r)[0] <= 2 * moved + tiny


@given(instances, st.integers(1, 30))
@settings(deadline=None)
def test_clusters_are_the_nearest_centres(points: Points, limit: int) -> None:
    Z, r = aggregate_rows(*points)
    clusters = Clusters.of(Z, limit)
    assert len(clusters.centres) == min(limit, len(Z))
    np.testing.assert_array_equal(clusters.centres[0], Z[0])
    distances = cdist(Z, clusters.centres, "cityblock")
    assert clusters.distance == pytest.approx(distances.min(axis=1), abs=1e-12)
    assert distances[np.arange(len(Z)), clusters.which] == pytest.approx(clusters.distance, abs=1e-12)
    if limit >= len(Z):  # every row is a centre: nothing is lost
        assert clusters.distance.max() == 0.0
        assert clusters.upper(r) == pytest.approx(exact(Z, r)[0], abs=1e-9)


@given(instances, st.sampled_from([1, 16]))
@settings(deadline=None)
def test_a_plan_ships_no_more_than_there_is(points: Points, neighbours: int) -> None:
    Z, r = aggregate_rows(*points)
    tiny = 1e-9 * max(1.0, np.abs(r).sum())
    for plan in (near(Z, r, neighbours)[1], greedy(Z, r, neighbours)):
        assert np.all(plan.rest * r >= 0)
        assert np.all(np.abs(plan.rest) <= np.abs(r) + 1e-15)
        shipped = r - plan.rest
        assert shipped.sum() == pytest.approx(0.0, abs=tiny)
        assert plan.cost >= exact(Z, shipped)[0] - tiny  # S+ is at most the cost of what is shipped


def test_enough_neighbours_are_exact() -> None:
    Z, r = aggregate_rows(*instance(0, 200, 3, "spread"))
    best = exact(Z, r)[0]
    (value, _, _), plan = near(Z, r, 200)
    assert value == pytest.approx(best, abs=1e-9)
    assert plan.upper() == pytest.approx(best, abs=1e-9)
    (value, _, _), plan = near(Z, r, 16)
    assert 0.9 * best <= value <= plan.upper() <= 1.1 * best


def test_what_is_left_behind_goes_through_the_centres() -> None:
    Z, r = separated()
    best = exact(Z, r)[0]
    plan = near(Z, r, 1)[1]
    alone, helped = plan.upper(), plan.upper(Clusters.of(Z, 60))
    assert best <= helped < best + 0.5 * (alone - best)


def test_a_shipment_by_hand() -> None:
    pairs = (np.array([0, 0]), np.array([1, 2]), np.array([0.2, 0.4]))
    plan = Shipment.of(pairs, np.array([0.3, 0.1]), np.array([0.5, -0.3, -0.5]))
    assert plan.cost == pytest.approx(0.1)
    assert plan.rest == pytest.approx([0.1, 0.0, -0.4])
    assert plan.upper() == pytest.approx(0.2)


def test_an_overloaded_plan_is_scaled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overloaded:
        status, x = 0, np.array([2.0, 0.5])

        class ineqlin:  # noqa: N801
            marginals = np.zeros(3)

    monkeypatch.setattr(transport, "linprog", lambda *args, **options: Overloaded)
    pairs = (np.array([0, 0]), np.array([1, 2]), np.array([0.2, 0.4]))
    flow, _ = transport._plan(pairs, np.array([1.0, 0.5, 1.0]))
    load = np.array([flow.sum(), *flow])
    assert np.all(load <= np.array([1.0, 0.5, 1.0]) + 1e-15)


def test_no_rows_to_gather() -> None:
    Z, r = np.zeros((0, 3)), np.zeros(0)
    clusters = Clusters.of(Z, 5)
    assert clusters.upper(r) == 0.0
    assert clusters.lower(Z, r)[0] == 0.0
    assert near(Z, r)[1].upper(clusters) == 0.0
