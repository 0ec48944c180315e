"""Spec 11's test vectors, the counterexample of spec 8, the identities, and the errata that software must get right."""

from __future__ import annotations

import json
import tracemalloc
from itertools import product
from math import comb

import numpy as np
import pytest

import definition
import lowcal
from lowcal.complexity import sample_size
from lowcal.datasets import parity_square, two_halves
from lowcal.hierarchy import implied_alpha
from lowcal.kernels.line import aggregate, solve_line
from lowcal.kernels.reference import Matrix
from lowcal.kernels.simplex import project
from lowcal.notions.finite import best_linear
from lowcal.notions.moments import moments
from lowcal.notions.weights import Cell, CellIds, Monomial, cell_index, evaluate, monomials, n_cells, n_intervals
from worlds import multicalibrate


def everyone(n: int) -> Matrix:
    return Matrix(np.ones((n, 1)))


def value(notion: lowcal.Notion, p: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Return the supremum on the whole population."""
    p, y = definition.as_columns(p), definition.as_columns(y)
    share = np.full(len(p), 1 / len(p)) if weight is None else weight
    return float(notion.suprema(p, share[:, None] * (y - p), everyone(len(p))).value[0])


def simplex_sample(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(d), n)
    return p, np.eye(d)[rng.integers(0, d, n)]


# ----------------------------------------------------------------------------------------- spec 8: parity square
def conditional(world: lowcal.datasets.Dataset, f: np.ndarray) -> dict[str, float]:
    """Return the moments on c = {x1 = 1}, with c-conditional means."""
    w = world.sample_weight * (world.X["x1"] == 1)
    w = w / w.sum()
    y = world.y
    mean_f, mean_y = w @ f, w @ y
    return {
        "covariance": w @ (f * y) - mean_f * mean_y,
        "variance": w @ f**2 - mean_f**2,
        "moment": w @ (f * (y - f)),
        "mean": mean_f,
        "tpr": (w @ (f * y)) / mean_y,
    }


@pytest.mark.parametrize("labels", ["xnor", "xor"])
@pytest.mark.parametrize("solver", ["worst", "block"])
def test_multiaccuracy_is_negatively_correlated_and_degree_two_is_not(labels: str, solver: str) -> None:
    world = parity_square(labels)
    options = {"subpopulations": lowcal.Groups(min_mass=0), "sample_weight": world.sample_weight, "solver": solver}
    start = np.full(4, 0.5)
    accurate = multicalibrate(world.y, start, world.X, notion="multiaccuracy", alpha=1e-9, **options)
    assert accurate.status == "reached"
    f = accurate.predictor(start, world.X)
    favoured = world.X["x2"] == (0 if labels == "xnor" else 1)
    np.testing.assert_allclose(f, np.where(favoured, 2 / 3, 1 / 3), atol=1e-7)
    found = conditional(world, f)
    assert found["covariance"] == pytest.approx(-1 / 12, abs=1e-7)
    assert found["moment"] == pytest.approx(-1 / 9, abs=1e-7)
    assert found["variance"] == pytest.approx(1 / 36, abs=1e-7)
    assert found["tpr"] == pytest.approx(1 / 3, abs=1e-7)
    assert found["mean"] == pytest.approx(1 / 2, abs=1e-7)
    kind = {key: options[key] for key in ("subpopulations", "sample_weight")}
    measured = lowcal.measure(world.y, f, world.X, notion="degree-2", **kind)
    assert measured.violation[measured.names.index("x1=1")] == pytest.approx(1 / 27, abs=1e-7)
    assert measured.mass[measured.names.index("x1=1")] == pytest.approx(1 / 3, abs=1e-12)

    calibrated = multicalibrate(world.y, f, world.X, notion="degree-2", alpha=1e-5, **options)
    assert calibrated.status == "reached"
    g = calibrated.predictor(f, world.X)
    found = conditional(world, g)
    assert found["covariance"] > 0.2
    assert found["covariance"] == pytest.approx(found["variance"], abs=1e-4)  # e_1 - e_0 E f = 0
    assert found["tpr"] > found["mean"]


def test_two_halves() -> None:
    world = two_halves()

    def rate(label: int, f: np.ndarray) -> float:
        return float(np.average(f, weights=world.sample_weight * (world.y == label)))

    assert rate(0, world.f_star) == pytest.approx(0.42, abs=1e-15)
    assert rate(1, world.f_star) == pytest.approx(0.58, abs=1e-15)
    assert rate(0, world.p) == pytest.approx(0.30, abs=1e-15)


# --------------------------------------------------------------------------------------------- spec 11: numbers
@pytest.mark.parametrize(
    ("m", "expected"), [((3, -1, -1), 3), ((1, 1, -1), 1), ((1, 1, 1), 3), ((-1, -2, 0.5), 0.5), ((-1, -1, -1), 0)]
)
def test_best_linear_polynomial(m: tuple[float, ...], expected: float) -> None:
    assert best_linear(np.array([m], dtype=float))[0] == pytest.approx(expected, abs=1e-15)
    S = definition.exponents(3, 1)
    with_constant = np.array([sum(m) if sum(s) == 0 else m[s.index(1)] for s in S], dtype=float)
    assert definition.best_polynomial(with_constant, S, np.eye(3)) == pytest.approx(expected, abs=1e-9)


def test_smooth_by_hand() -> None:
    """v = (.2, .8), r = (-.5, .5): V = .5 min(1, .6)."""
    v, r = np.array([0.2, 0.8]), np.array([-0.5, 0.5])
    assert solve_line(v, r, 1.0)[0] == pytest.approx(0.3, abs=1e-15)
    assert solve_line(v, r, 2.0)[0] == pytest.approx(0.5, abs=1e-15)
    p = v[:, None]
    found = lowcal.Smooth().suprema(p, r[:, None], everyone(2))
    assert found.value[0] == found.upper[0] == pytest.approx(0.3, abs=1e-15)
    other = lowcal.Smooth().suprema(p, -r[:, None], everyone(2))
    assert other.value[0] == pytest.approx(0.3, abs=1e-15)


@pytest.mark.parametrize(
    ("d", "k", "count"), [(2, 10, 19), (3, 10, 163), (4, 10, 787), (5, 5, 246), (3, 4, 28), (4, 4, 65), (1, 10, 10)]
)
def test_number_of_cells(d: int, k: int, count: int) -> None:
    assert n_cells(d, 1 / k) == count
    # brute force: a half-open cube meets the simplex if its least sum is at most 1 and its open upper sum above 1
    if d > 1:
        assert sum(sum(index) <= k < sum(index) + d for index in product(range(k), repeat=d)) == count
    if 2 <= d <= 3:  # a fine grid of the simplex falls into every such cell, and into no other
        grid = definition.simplex_grid(d, 6 * k)
        assert len({tuple(definition.cell(x, f"1/{k}") for x in z) for z in grid}) == count
        assert len({tuple(index) for index in cell_index(grid, 1 / k).tolist()}) == count


def test_number_of_monomials() -> None:
    """|M_K| = l C(l + K, K) with the label."""
    assert 3 * len(monomials(3, 2)) == 30
    assert 10 * len(monomials(10, 2)) == 660
    for d, k in product((1, 2, 3, 5), (0, 1, 2, 3)):
        assert len(monomials(d, k)) == len(set(monomials(d, k))) == comb(d + k, k)


# ------------------------------------------------------------------------------------------ spec 11: identities
@pytest.mark.parametrize("d", [3, 4])
def test_moments_sum_to_zero_over_labels_and_contract(d: int) -> None:
    p, y = simplex_sample(50, d)
    weight = np.random.default_rng(1).dirichlet(np.ones(50))
    weights = monomials(d, 3)
    m = moments(everyone(50), evaluate(weights, p), weight[:, None] * (y - p))[0]
    np.testing.assert_allclose(m.sum(axis=1), 0, atol=1e-15)
    position = {u.factors: s for s, u in enumerate(weights)}
    for u in weights:
        by_hand = sum(weight[i] * np.prod(p[i, list(u.factors)]) * (y[i] - p[i]) for i in range(50))
        np.testing.assert_allclose(m[position[u.factors]], by_hand, atol=1e-15)
        if len(u.factors) < 3:
            above = sum(m[position[tuple(sorted((*u.factors, i)))]] for i in range(d))
            np.testing.assert_allclose(m[position[u.factors]], above, atol=1e-15)


def test_the_other_sign_of_smooth_is_free() -> None:
    """V(-r) = V(r) - R, and the supremum is V + max(0, -R) either way."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        v = rng.random(40)
        r = rng.normal(size=40) * rng.dirichlet(np.ones(40))
        up, down = (solve_line(*aggregate(v, s * r))[0] for s in (1, -1))
        assert down == pytest.approx(up - r.sum(), abs=1e-14)
        for s in (1, -1):
            found = lowcal.Smooth().suprema(v[:, None], s * r[:, None], everyone(40)).value[0]
            assert found == pytest.approx(up + max(0.0, -r.sum()), abs=1e-14)
            assert found == pytest.approx(definition.class_supremum("smooth", s * r[:, None], v[:, None]), abs=1e-9)


def test_both_signs_of_multiclass_smooth_agree() -> None:
    p, y = simplex_sample(15, 3)
    rho = (y - p) / 15
    for sign in (1, -1):
        found = lowcal.Smooth().suprema(p, sign * rho, everyone(15))
        exact = sum(definition.lipschitz(rho[:, a], p) for a in range(3))
        assert found.value[0] == found.upper[0] == pytest.approx(exact, abs=1e-9)


# --------------------------------------------------------------- spec 3.7: the two conventions of binary problems
def both_conventions(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    f = rng.random(30)
    y = (rng.random(30) < 0.5).astype(float)
    return f[:, None], y[:, None], np.column_stack([1 - f, f]), np.column_stack([1 - y, y])


@pytest.mark.parametrize("seed", range(5))
def test_smooth_in_both_conventions(seed: int) -> None:
    f, y, F, Y = both_conventions(seed)
    rho = ((y - f) / 30)[:, 0]
    V1, V2 = (solve_line(*aggregate(f[:, 0], rho), lip)[0] for lip in (1.0, 2.0))
    assert value(lowcal.Smooth(), f, y) == pytest.approx(V1 + max(0, -rho.sum()), abs=1e-14)
    assert value(lowcal.Smooth(), F, Y) == pytest.approx(2 * V2 - rho.sum(), abs=1e-12)
    assert value(lowcal.Smooth(), F, Y) == pytest.approx(definition.class_supremum("smooth", (Y - F) / 30, F), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_degrees_in_both_conventions(seed: int) -> None:
    f, y, F, Y = both_conventions(seed)
    m0, m1 = np.mean(y - f), np.mean(f * (y - f))
    u = np.array([m0 - m1, m1])  # the moments of f_0 and f_1 with label 1
    expected = float(best_linear(u)[0] + best_linear(-u)[0])
    simplex = value(lowcal.LowDegree(2), F, Y)
    scalar = value(lowcal.LowDegree(2), f, y)
    assert scalar == pytest.approx(max(abs(m0), abs(m1)), abs=1e-15)
    assert simplex == pytest.approx(expected, abs=1e-14)
    assert scalar - 1e-15 <= simplex <= 3 * scalar + 1e-15
    assert value(lowcal.LowDegree(1), F, Y) == pytest.approx(value(lowcal.LowDegree(1), f, y), abs=1e-15)


def test_the_factor_three_is_attained() -> None:
    """m_1 = -m_0 = -1: the simplex sees 3 where the scalar convention sees 1."""
    # two points: f = 1 with residual -t, f = 0 with residual s; m_0 = s - t, m_1 = -t; s = 2 t
    f, y, weight = np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([1 / 3, 2 / 3])
    F, Y = np.column_stack([1 - f, f]), np.column_stack([1 - y, y])
    scalar, simplex = value(lowcal.LowDegree(2), f, y, weight), value(lowcal.LowDegree(2), F, Y, weight)
    assert scalar == pytest.approx(1 / 3, abs=1e-15)
    assert simplex == pytest.approx(3 * scalar, abs=1e-15)


def test_two_columns_stay_in_the_scalar_convention() -> None:
    """A user's (n, 2) is binary: no silent change of the notion."""
    f, y, F, _ = both_conventions(0)
    for notion in ("degree-2", "smooth", "full-0.25"):
        narrow = lowcal.measure(y[:, 0].astype(int), f[:, 0], notion=notion).largest
        assert lowcal.measure(y[:, 0].astype(int), F, notion=notion).largest == pytest.approx(narrow, abs=1e-15)


# -------------------------------------------------------------------------------------------------- spec 9: errata
@pytest.mark.parametrize("d", [3, 4, 5, 8])
def test_multiaccuracy_is_weaker_than_degree_one_by_half_the_labels(d: int) -> None:
    """9.b: half of the labels over-, half of them under-predicted."""
    half = d // 2
    y = np.eye(d)
    p = np.full(d, 1.0 / d)
    p[:half] += 0.5 / d
    p[half : 2 * half] -= 0.5 / d
    p = np.tile(p, (d, 1))
    accuracy, constants = value(lowcal.Multiaccuracy(), p, y), value(lowcal.LowDegree(1), p, y)
    assert accuracy == pytest.approx(0.5 / d, abs=1e-15)
    assert constants == pytest.approx(half * accuracy, abs=1e-15)


@pytest.mark.parametrize("d", [2, 3, 4, 6, 10])
def test_monomials_are_weaker_than_degree_two_by_the_number_of_labels(d: int) -> None:
    """9.c: a symmetric, under-confident predictor; w(z) = z collects the same moment from every label."""
    labels = np.repeat(np.arange(d), d)  # the predicted and the true label: independent weights
    y = np.eye(d)[np.tile(np.arange(d), d)]
    said, truth = 0.4 + 0.6 / d, 0.7 + 0.3 / d  # the chance of the favoured label
    p = np.where(np.eye(d)[labels] == 1, said, (1 - said) / (d - 1))
    weight = np.where(np.tile(np.arange(d), d) == labels, truth, (1 - truth) / (d - 1)) / d
    found = lowcal.LowDegree(2).suprema(p, weight[:, None] * (y - p), everyone(len(p)))
    assert found.value[0] / found.basis[0] == pytest.approx(d, rel=1e-12)
    diagonal = (weight[:, None] * (y - p) * p).sum()  # w(z) = z
    assert found.value[0] == pytest.approx(diagonal, abs=1e-14)


def test_the_last_cell_is_closed() -> None:
    """9.i: f = 1 belongs to the last cell, f = 0.3 to [0.3, 0.4) in spite of 0.3 / 0.1 < 3."""
    p = np.array([0.0, 0.1, 0.2, 0.29, 0.3, 0.6, 0.7, 0.9, 0.999, 1.0])[:, None]
    assert cell_index(p, 0.1).ravel().tolist() == [0, 1, 2, 2, 3, 6, 7, 9, 9, 9]
    assert [definition.cell(x, "0.1") for x in p[:, 0]] == [0, 1, 2, 2, 3, 6, 7, 9, 9, 9]
    assert cell_index(p, 0.3).ravel().tolist() == [0, 0, 0, 0, 1, 2, 2, 3, 3, 3]
    for k in range(1, 101):
        edges = np.arange(k + 1)[:, None] / k
        assert cell_index(edges, 1 / k).ravel().tolist() == [*range(k), k - 1]
        assert n_intervals(1 / k) == k


@pytest.mark.parametrize("size", [1.0, 1e8, 1e16, 1e99, 1e300])
def test_the_projection_of_large_numbers_is_on_the_simplex(size):
    v = size * np.array([[1.0, 0.3, -1.0], [1.0, 1.0, 0.5], [-1.0, -1.0, -1.0], [-1.0, -2.0, -0.5]])
    p = project(v)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=0, atol=1e-15)
    assert (p >= 0.0).all()
    np.testing.assert_allclose(p[2], 1 / 3, rtol=1e-15)


@pytest.mark.parametrize("width", [0.3, 0.7, 1 / 9.5, 0.0013, 1.7e-5])
def test_cells_of_uneven_grids_are_found_by_their_edges(width):
    edges = np.arange(1, n_intervals(width)) * width
    near = [np.nextafter(edges, 0.0), edges, np.nextafter(edges, 1.0), np.linspace(0, 1, 1001)]
    p = np.concatenate(near).clip(0, 1)[:, None]
    np.testing.assert_array_equal(cell_index(p, width), np.searchsorted(edges, p, side="right"))


@pytest.mark.parametrize("width", [1 / (2**28 + 0.1), 1 / (2**26 + 0.3), 0.5**40])
def test_the_memory_of_cells_grows_with_the_rows_alone(width):
    p = np.linspace(0, 1, 1000)[:, None]
    tracemalloc.start()
    found = Cell(width, (0,))(p)
    ids = evaluate([Cell(width, (int(j),)) for j in cell_index(p[:5], width)[:, 0]], p)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.sum() == 1
    assert isinstance(ids, CellIds)
    assert peak < 1_000_000


@pytest.mark.parametrize("d", [1, 3])
def test_a_fine_grid_lists_the_cells_that_hold_a_row(d):
    p = np.random.default_rng(0).dirichlet(np.ones(d + 1), 200)[:, :d]
    y = np.arange(200) % 2 if d == 1 else np.eye(d)[np.arange(200) % d]
    notion = lowcal.Full(1e-6)
    assert len(notion.constraints(p)) == len(notion.basis(p, 0.1)) <= 200
    assert len(lowcal.Full(0.001).constraints(p)) == (1000 if d == 1 else len(lowcal.Full(0.001).basis(p, 0.1)))
    assert notion.suprema(p, (y.reshape(-1, d) - p) / 200, everyone(200)).value[0] > 0.1


@pytest.mark.parametrize("classes", [2, 5, 300])
def test_the_finest_grid_and_the_highest_degree_have_bounds_and_sample_sizes(classes):
    for notion in ("full-1e-6", "full-0.0000013", "degree-64"):
        sizes = sample_size(notion, 0.1, n_classes=classes, n_subpopulations=20)
        assert 0 < sizes.rows < 10**100
        for constants in ("sharp", "best"):
            implied = implied_alpha(notion, "multiaccuracy", 0.01, classes, constants=constants)
            assert 0.01 <= implied < np.inf
    ones = np.ones((4, 1))
    y = np.array([1.0, 1.0, 0.0, 1.0])[:, None]
    assert value(lowcal.Full(0.1), ones, y) == pytest.approx(0.25, abs=1e-15)
    assert Cell(0.1, (9,))(ones).tolist() == [1.0] * 4
    fit = multicalibrate(y[:, 0].astype(int), ones[:, 0], notion="full-0.1", alpha=1e-6)
    assert fit.predictor(ones[:, 0]) == pytest.approx(0.75, abs=1e-5)


@pytest.mark.parametrize("width", [np.float32(0.25), 1, 0.25])
def test_the_width_of_a_cell_is_written_as_a_plain_number(width: float) -> None:
    plain = Cell(width, (0,)).to_dict()
    assert json.loads(json.dumps(plain)) == {"kind": "cell", "width": float(width), "index": [0]}


def test_cells_carry_vector_weights() -> None:
    """9.k: with the all-ones vector every cell would show nothing; with e_a it shows half of the l1 norm."""
    p = np.tile([0.6, 0.3, 0.1], (10, 1))
    y = np.eye(3)[[0] * 3 + [1] * 3 + [2] * 4]
    residual = (y - p).mean(axis=0)
    assert residual.sum() == pytest.approx(0, abs=1e-15)
    assert np.abs(residual).sum() / 2 > 0.2
    assert value(lowcal.Full(0.5), p, y) == pytest.approx(np.abs(residual).sum() / 2, abs=1e-15)
    fit = multicalibrate(y.argmax(axis=1), p, notion="full-0.5", alpha=1e-6)
    assert fit.predictor(p)[0] == pytest.approx([0.3, 0.3, 0.4], abs=1e-5)


def test_negative_violations_are_found_too() -> None:
    """9.j: all residuals negative; an unsigned learner with C = {1} would find nothing."""
    y, p = np.array([0, 0, 0, 1] * 10), np.full(40, 0.9)
    for solver in ("first", "worst", "block"):
        for notion in ("multiaccuracy", "degree-2", "smooth", "full-0.5"):
            fit = multicalibrate(y, p, notion=notion, solver=solver, alpha=0.01)
            assert fit.status == "reached"
            assert fit.predictor(p)[0] < 0.4


def test_degree_counts_from_constants() -> None:
    """Degree k uses polynomials of degree k - 1: a residual orthogonal to 1, f, but not to f^2, is degree 3's."""
    f = np.array([0.0, 0.5, 1.0])
    r = np.array([1.0, -2.0, 1.0]) / 8
    p, rho = f[:, None], r[:, None]
    found = [lowcal.LowDegree(k).suprema(p, rho, everyone(3)).value[0] for k in (1, 2, 3, 4)]
    assert found == pytest.approx([0, 0, 1 / 16, 3 / 32], abs=1e-15)  # 1 - 2/4 = 1/2 and 1 - 2/8 = 3/4, over 8
    assert [str(u) for u in lowcal.LowDegree(3).basis(p, 0.1)] == ["1", "p0", "p0^2"]
    assert Monomial((0, 0))(p).tolist() == [0.0, 0.25, 1.0]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_binary_monomials_suffice_for_the_whole_class(k: int) -> None:
    """Spec 2.2: sup over sparse polynomials q >= 0 on [0, 1] is the largest monomial; checked with q >= 0 on a grid."""
    rng = np.random.default_rng(k)
    f = rng.random(40)
    y = (rng.random(40) < f**2).astype(float)
    m = np.array([np.mean(f**j * (y - f)) for j in range(k)])
    S = [(j,) for j in range(k)]
    grid = np.linspace(0, 1, 101)[:, None]
    program = max(definition.best_polynomial(sign * m, S, grid) for sign in (1, -1))
    assert program == pytest.approx(np.abs(m).max(), abs=1e-12)
    assert value(lowcal.LowDegree(k), f, y) == pytest.approx(program, abs=1e-12)
