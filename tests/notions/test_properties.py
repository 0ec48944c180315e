"""Properties that hold for every input: projection, suprema and witnesses, designs and their adjoints, steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement
from math import factorial, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse
from scipy.optimize import linprog

import definition
import lowcal
from lowcal.kernels import simplex
from lowcal.kernels.clipped import Line, sorted_step
from lowcal.kernels.reference import Codes, Cumulative, DecodeTable, Design, Matrix, Stacked
from lowcal.kernels.simplex import TIE, FloatArray, Geometry
from lowcal.notions.finite import _linear_witness, best_linear
from lowcal.notions.moments import displacement, moments
from lowcal.notions.weights import CellIds, Monomial, Points, evaluate, monomials
from lowcal.rows import START, Memory, State
from lowcal.rows.passes import Along
from lowcal.rows.updates import Term
from lowcal.solve.blocks import line_search
from worlds import along

seeds = st.integers(0, 2**32 - 1)
quick = settings(deadline=None, max_examples=60)
few = settings(deadline=None, max_examples=12)


@st.composite
def vectors(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    return draw(arrays(float, shape, elements=st.floats(-3, 3, width=32)))


# -------------------------------------------------------------------------------------------------- projection
def on_the_space(p: np.ndarray) -> None:
    assert np.all(p >= 0)
    if p.shape[1] == 1:
        assert np.all(p <= 1)
    else:
        np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-14)


@given(vectors(), seeds)
@quick
def test_projection_is_non_expansive_in_the_strong_form(v: np.ndarray, seed: int) -> None:
    """||z - Pv||^2 <= ||z - v||^2 - ||v - Pv||^2 for every z of the space (spec 4.2), and ||Pv - Pu|| <= ||v - u||."""
    rng = np.random.default_rng(seed)
    n, d = v.shape
    projected = simplex.project(v)
    on_the_space(projected)
    points = [rng.dirichlet(np.ones(d), n) if d > 1 else rng.random((n, 1)), np.eye(d)[rng.integers(0, d, n)]]
    points += [np.zeros((n, 1))] if d == 1 else []
    for z in points:
        left = np.square(z - projected).sum(axis=1) + np.square(v - projected).sum(axis=1)
        assert np.all(left <= np.square(z - v).sum(axis=1) + 1e-12)
    u = v + rng.normal(size=v.shape)
    moved = np.linalg.norm(simplex.project(u) - projected, axis=1)
    assert np.all(moved <= np.linalg.norm(u - v, axis=1) + 1e-12)


@given(vectors())
@quick
def test_projection_is_that_of_the_definition_and_idempotent(v: np.ndarray) -> None:
    projected = simplex.project(v)
    np.testing.assert_allclose(projected, definition.project(v), atol=1e-12)
    np.testing.assert_allclose(simplex.project(projected), projected, atol=1e-15)


@given(vectors(), st.floats(-5, 5))
@quick
def test_projection_ignores_a_shift(v: np.ndarray, t: float) -> None:
    if v.shape[1] > 1:
        np.testing.assert_allclose(simplex.project(v + t), simplex.project(v), atol=1e-14)


@given(seeds, st.integers(1, 5))
@quick
def test_mirror_step(seed: int, d: int) -> None:
    """Odds times exp(delta); it undoes itself, adds up, and ignores a shift on the simplex."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(d), 5) * 0.98 + 0.02 / d if d > 1 else rng.uniform(0.01, 0.99, (5, 1))
    a, b = rng.normal(size=(2, 5, d))
    moved = simplex.mirror(p, a)
    on_the_space(moved)
    np.testing.assert_allclose(moved, definition.mirror(p, a), atol=1e-12)
    np.testing.assert_allclose(simplex.mirror(moved, -a), p, atol=1e-9)
    np.testing.assert_allclose(simplex.mirror(moved, b), simplex.mirror(p, a + b), atol=1e-9)
    if d > 1:
        np.testing.assert_allclose(simplex.mirror(p, a + 1.7), moved, atol=1e-12)


@given(seeds, st.integers(1, 4))
@quick
def test_losses_are_those_of_the_definition(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(d), 6) * 0.99 + 0.01 / d if d > 1 else rng.uniform(0.01, 0.99, (6, 1))
    y = np.eye(d)[rng.integers(0, d, 6)] if d > 1 else rng.random((6, 1))
    w = rng.dirichlet(np.ones(6))
    assert simplex.brier(p, y, w) == pytest.approx(definition.brier(y, p, w), abs=1e-14)
    assert simplex.log_loss(p, y, w) == pytest.approx(definition.log_loss(y, p, w), abs=1e-12)


# ------------------------------------------------------------------------------------------ suprema and witnesses
NOTIONS = ("multiaccuracy", "degree-1", "degree-2", "degree-3", "smooth", "full-0.25")


@st.composite
def samples(draw: st.DrawFn, least: int = 1, most: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return predictions, weighted residuals and memberships: ties, corners, fractional and 0/1 groups."""
    rng = np.random.default_rng(draw(seeds))
    n, d = draw(st.integers(2, 14)), draw(st.sampled_from([k for k in (1, 3, 4) if least <= k <= most]))
    p = rng.dirichlet(np.full(d, 0.7), n) if d > 1 else rng.random((n, 1))
    y = np.eye(d)[rng.integers(0, d, n)] if d > 1 else rng.integers(0, 2, (n, 1)).astype(float)
    if draw(st.booleans()):  # ties and vertices
        p[: n // 2] = p[0]
        p[-1] = np.eye(d)[0]
    weight = rng.dirichlet(np.ones(n))
    C = np.column_stack([np.ones(n), rng.random(n), rng.integers(0, 2, n)])
    return p, weight[:, None] * (y - p), C


@given(samples(), st.sampled_from(NOTIONS))
@settings(deadline=None, max_examples=120)
def test_supremum_is_that_of_the_definition(sample: tuple[np.ndarray, ...], notion: str) -> None:
    p, rho, C = sample
    found = lowcal.parse_notion(notion).suprema(p, rho, Matrix(C))
    truth = [definition.class_supremum(notion, rho * C[:, [j]], p) for j in range(3)]
    if notion == "degree-3" and p.shape[1] > 1:  # the definition relaxes q >= 0 to a grid: an upper bound
        assert np.all(found.value <= np.array(truth) + 1e-9)
        assert np.all(found.upper >= np.array(truth) - 1e-9)
    else:
        np.testing.assert_allclose(found.value, truth, rtol=0, atol=1e-9)
        np.testing.assert_allclose(found.upper, truth, rtol=0, atol=1e-9)


@given(samples(), st.sampled_from(NOTIONS))
@settings(deadline=None, max_examples=120)
def test_witness_is_admissible_and_attains_the_value(sample: tuple[np.ndarray, ...], notion: str) -> None:
    p, rho, C = sample
    found = lowcal.parse_notion(notion).suprema(p, rho, Matrix(C))
    space = np.random.default_rng(0).dirichlet(np.ones(p.shape[1]), 40)
    space = np.random.default_rng(0).random((40, 1)) if p.shape[1] == 1 else space
    for j in range(3):
        witness = found.witness(j)
        signed = witness(p)
        attained = float((C[:, [j]] * signed * rho).sum())
        assert attained == pytest.approx(found.value[j], abs=1e-10)
        # a sign times a weight in [0, 1], on the sample and elsewhere
        everywhere = witness(np.vstack([p, space]))
        sign = 1.0 if everywhere.sum() >= 0 else -1.0
        w = sign * everywhere
        assert w.min() >= -1e-9
        assert w.max() <= 1 + 1e-9
        if notion.startswith(("degree", "multi")):
            assert np.abs(witness.coefficients).sum(axis=0).max() <= 1 + 1e-12, "sum |q_S| <= 1 for every label"
            k = 1 if notion == "multiaccuracy" else int(notion[-1])
            assert all(len(u.factors) < k for u in witness.weights)
        if notion == "multiaccuracy":
            assert np.count_nonzero(witness.coefficients) <= 1
        if notion == "smooth":
            check_lipschitz(np.vstack([p, space]), w)
        if notion.startswith("full"):
            cells = {tuple(definition.cell(x, "0.25") for x in z): value for z, value in zip(p, signed, strict=True)}
            for z, value in zip(p, signed, strict=True):
                assert np.array_equal(value, cells[tuple(definition.cell(x, "0.25") for x in z)])


def check_lipschitz(points: np.ndarray, w: np.ndarray) -> None:
    distance = np.abs(points[:, None] - points[None]).sum(axis=2)
    for a in range(w.shape[1]):
        assert np.all(np.abs(w[:, a][:, None] - w[:, a][None]) <= distance + 1e-7)


@given(samples(), st.sampled_from(NOTIONS), seeds)
@settings(deadline=None, max_examples=120)
def test_supremum_is_at_least_every_admissible_weight(sample: tuple[np.ndarray, ...], notion: str, seed: int) -> None:
    p, rho, C = sample
    rng = np.random.default_rng(seed)
    found = lowcal.parse_notion(notion).suprema(p, rho, Matrix(C))
    parsed = lowcal.parse_notion(notion)
    d = p.shape[1]
    elements = [] if notion == "smooth" else list(parsed.basis(p, 0.1))
    if notion == "smooth":  # cones min(1, h + ||z - z_0||) and flat functions
        elements += [Points(rng.dirichlet(np.ones(d), 1) if d > 1 else rng.random((1, 1)), rng.random(1)) for _ in "ab"]
        elements += list(monomials(d, 0))
    largest = np.zeros(3)
    for u in elements:
        for a in range(d):
            largest = np.maximum(largest, np.abs(C.T @ (u(p) * rho[:, a])))
    assert np.all(found.value >= largest - 1e-10)
    if notion != "smooth":
        np.testing.assert_allclose(found.basis, largest, atol=1e-12)
    assert np.all(found.upper >= found.value - 1e-12)
    assert np.all(found.basis <= found.value + 1e-10)


@given(samples(least=3), st.sampled_from([3, 4]))
@few
def test_bracket_of_higher_degrees(sample: tuple[np.ndarray, ...], k: int) -> None:
    """cheap lower <= LP lower <= LP upper <= cheap upper; the definition's relaxation lies above the lower ones."""
    p, rho, C = sample
    notion = lowcal.LowDegree(k)
    found = notion.suprema(p, rho, Matrix(C))
    for j in range(3):
        both = [bracket(monomials(p.shape[1], k - 1), sign * found.moments[j]) for sign in (1.0, -1.0)]
        low, high = max(low for low, _ in both), max(high for _, high in both)
        tolerance = 1e-7 * (1 + np.abs(rho).sum())
        assert found.value[j] <= low + tolerance
        assert low <= high + tolerance
        assert high <= found.upper[j] + tolerance
        assert low <= definition.degree(rho * C[:, [j]], p, k) + tolerance
        assert found.value[j] >= notion.gain(p.shape[1]) * found.upper[j] - 1e-12


@given(arrays(float, st.integers(2, 7), elements=st.floats(-1, 1)))
@quick
def test_closed_form_of_degree_two(m: np.ndarray) -> None:
    S = definition.exponents(len(m), 1)
    full = np.array([m.sum() if sum(s) == 0 else m[s.index(1)] for s in S])
    assert best_linear(m)[0] == pytest.approx(definition.best_polynomial(full, S, np.eye(len(m))), abs=1e-9)


@given(arrays(float, st.integers(2, 7), elements=st.floats(-1, 1)), st.floats(0.0, 1.0))
@quick
def test_witness_of_degree_two(m: np.ndarray, lift: float) -> None:
    """Coefficients (q_0, q) with sum |q| <= 1 and q >= 0 on the vertices that attain the closed form."""
    m = m + lift  # mostly positive moments: then 1 - z_A is the best
    value, size = best_linear(m)
    q = _linear_witness(m, int(size))
    if value > 0:
        # sets whose values differ by no more than TIE count as equal, and the smallest of them is taken
        assert q[0] * m.sum() + q[1:] @ m == pytest.approx(float(value), abs=1e-12 + TIE * float(value))
    assert np.abs(q).sum() <= 1 + 1e-12
    assert (q[0] + q[1:]).min() >= -1e-12


def test_linear_witness_by_hand() -> None:
    """l = 4, three of the moments 1, one -1: (1 - z_3) / 2 collects 3 / 2."""
    value, size = best_linear(np.array([1.0, 1.0, 1.0, -1.0]))
    assert (float(value), int(size)) == (2.0, 4)  # all of them: the constant 1 collects the sum, 2
    value, size = best_linear(np.array([1.0, 1.0, 1.0, -2.0]))
    assert (float(value), int(size)) == (1.5, 3)
    assert _linear_witness(np.array([1.0, 1.0, 1.0, -2.0]), 3).tolist() == [0.5, 0.0, 0.0, 0.0, -0.5]


def test_many_rows_of_several_classes_are_bracketed() -> None:
    """Beyond the exact programs: functions of the own coordinate, 2-Lipschitz there, below; a plan above.

    Where alpha is decided by these weights, they are the answer; otherwise both sides move towards the supremum.
    """
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 450)
    rho = (np.eye(3)[rng.integers(0, 3, 450)] - p) / 450
    everyone = Matrix(np.ones((450, 1)))
    expected = sum(definition.line(rho[:, a], p[:, [a]], lip=2.0) for a in range(3))
    decided, found = (lowcal.Smooth().suprema(p, rho, everyone, alpha) for alpha in (0.1, None))
    assert decided.value[0] == pytest.approx(expected, abs=1e-9)
    assert decided.upper[0] == pytest.approx(np.abs(rho).sum() / 2, abs=1e-12)
    assert expected < found.value[0] <= found.upper[0] < decided.upper[0]
    for side in (decided, found):
        assert float((side.witness(0)(p) * rho).sum()) == pytest.approx(side.value[0], abs=1e-9)


@pytest.mark.parametrize(("d", "k"), [(1, 1), (1, 3), (3, 2), (3, 3)])
def test_the_basis_stops_below_the_degree(d: int, k: int) -> None:
    p = np.full((4, d), 1 / d)
    notion = lowcal.LowDegree(k)
    expected = set(definition.exponents(d, k - 1))
    for weights in (notion.basis(p, 0.1), notion.features(p)):
        assert {tuple(u.factors.count(j) for j in range(d)) for u in weights} == expected


@given(samples(), st.sampled_from(NOTIONS), st.floats(0.001, 0.2))
@quick
def test_saved_work_never_changes_the_verdict(sample: tuple[np.ndarray, ...], notion: str, alpha: float) -> None:
    """With alpha given, bounds may be looser, but only on the same side of alpha."""
    p, rho, C = sample
    parsed = lowcal.parse_notion(notion)
    exact, quick_ = parsed.suprema(p, rho, Matrix(C)), parsed.suprema(p, rho, Matrix(C), alpha)
    assert (quick_.upper.max() <= alpha) == (exact.upper.max() <= alpha) or abs(exact.upper.max() - alpha) < 1e-9
    assert np.all(quick_.value <= exact.upper + 1e-10)
    assert np.all(quick_.upper >= exact.value - 1e-10)


@given(samples())
@quick
def test_the_hierarchy_is_ordered(sample: tuple[np.ndarray, ...]) -> None:
    """Spec 3.1 and 3.3: multiaccuracy <= degree 1 <= degree 2 <= degree 3 (upper), degree 1 and 2 <= smooth."""
    p, rho, C = sample
    value = {k: lowcal.parse_notion(k).suprema(p, rho, Matrix(C)) for k in NOTIONS}
    assert np.all(value["multiaccuracy"].value <= value["degree-1"].value + 1e-12)
    assert np.all(value["degree-1"].value <= value["degree-2"].value + 1e-12)
    assert np.all(value["degree-2"].value <= value["degree-3"].upper + 1e-12)
    assert np.all(value["degree-2"].value <= value["smooth"].upper + 1e-9)
    assert np.all(value["degree-1"].value <= value["full-0.25"].value + 1e-12)


# -------------------------------------------------------------------------------- designs, moments, displacements
@st.composite
def designs(draw: st.DrawFn) -> Design:
    """Return one of every kind of design on the same number of rows."""
    rng = np.random.default_rng(draw(seeds))
    n = draw(st.integers(1, 30))
    levels, ordered = draw(st.integers(1, 6)), draw(st.integers(3, 7))
    table = DecodeTable(sparse.csr_array((rng.random((levels, 4)) < 0.5) * rng.random((levels, 4))))
    codes = Codes(
        (rng.integers(0, levels, n).astype(np.uint8), rng.integers(0, ordered, n).astype(np.uint16)),
        (table, Cumulative.every(ordered)),
    )
    dense = Matrix(rng.random((n, 3)))
    thin = Matrix(sparse.csr_array((rng.random((n, 5)) < 0.3) * rng.random((n, 5))))
    kinds = {"codes": codes, "dense": dense, "sparse": thin, "stacked": Stacked((dense, codes, thin))}
    return kinds[draw(st.sampled_from(sorted(kinds)))]


@given(designs(), st.integers(1, 6), seeds)
@settings(deadline=None, max_examples=120)
def test_designs_are_their_matrix(design: Design, q: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = design.shape
    C = design.dense()
    assert C.shape == (n, m)
    for j in range(m):
        np.testing.assert_array_equal(design.column(j), C[:, j])
    R, theta = rng.normal(size=(n, q)), rng.normal(size=(m, q))
    np.testing.assert_allclose(design.moments(R), C.T @ R, atol=1e-12)
    np.testing.assert_allclose(design.combination(theta)(slice(None)), C @ theta, atol=1e-12)
    part = rng.integers(0, n, 5)
    np.testing.assert_array_equal(design.rows(part).dense(), C[part])
    np.testing.assert_array_equal(design.rows(slice(1, 4)).dense(), C[1:4])
    ids = rng.integers(0, 4, n)  # 3 cells, and none
    by_loop = np.zeros((m, 3, q))
    for i in range(n):
        if ids[i] < 3:
            by_loop[:, ids[i]] += C[i][:, None] * R[i]
    np.testing.assert_allclose(design.cell_moments(ids, 3, R), by_loop, atol=1e-12)


def test_thresholds_as_cumulative_sums() -> None:
    """Codes 1..t+1 below, the others above; code 0, missing, in neither."""
    design = Codes((np.array([0, 1, 2, 3]),), (Cumulative.every(4),))
    expected = [[0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert design.dense().tolist() == expected
    np.testing.assert_array_equal(design.combination(np.eye(4))(slice(None)), expected)


@given(designs(), st.integers(1, 3), st.booleans(), seeds)
@quick
def test_displacement_is_the_adjoint_of_moments(design: Design, d: int, cells: bool, seed: int) -> None:
    """<theta, moments(rho)> = <displacement(theta), rho>, and both are the plain sums."""
    rng = np.random.default_rng(seed)
    n, m = design.shape
    rho = rng.normal(size=(n, d))
    ids = rng.integers(0, 4, n)
    U = CellIds(ids, 3) if cells else rng.random((n, 3))
    values = np.eye(4)[ids][:, :3] if cells else U
    theta = rng.normal(size=(m, 3, d))
    g, delta = moments(design, U, rho), displacement(design, U, theta)
    np.testing.assert_allclose(g, np.einsum("ic,is,ia->csa", design.dense(), values, rho), atol=1e-12)
    np.testing.assert_allclose(delta, np.einsum("ic,is,csa->ia", design.dense(), values, theta), atol=1e-12)
    assert np.sum(theta * g) == pytest.approx(np.sum(delta * rho), abs=1e-10)


@pytest.mark.parametrize("d", [1, 3])
def test_pieces_change_nothing(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    design, U, rho = Matrix(rng.random((50, 4))), rng.random((50, 3)), rng.normal(size=(50, d))
    theta = rng.normal(size=(4, 3, d))
    whole = moments(design, U, rho), displacement(design, U, theta)
    cells = CellIds(rng.integers(0, 4, 50), 3)
    whole_cells = displacement(design, cells, theta)
    monkeypatch.setattr("lowcal.kernels.reference.CHUNK", 40)
    np.testing.assert_allclose(moments(design, U, rho), whole[0], atol=1e-12)
    np.testing.assert_allclose(displacement(design, U, theta), whole[1], atol=1e-12)
    np.testing.assert_allclose(displacement(design, cells, theta), whole_cells, atol=1e-12)


@given(seeds, st.integers(1, 3), st.sampled_from([0.5, 0.3, 0.25]))
@quick
def test_cells_evaluate_alike(seed: int, d: int, width: float) -> None:
    """All cells of a grid at once, one cell at a time, and by exact arithmetic."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(d), 20) if d > 1 else rng.random((20, 1))
    cells = lowcal.Full(width).basis(p, 0.1)
    U = evaluate(cells, p)
    assert isinstance(U, CellIds)
    one_by_one = np.column_stack([u(p) for u in cells])
    np.testing.assert_array_equal(np.eye(U.n_cells + 1)[U.ids][:, : U.n_cells], one_by_one)
    np.testing.assert_array_equal(one_by_one.sum(axis=1), 1)
    for u in cells:
        exact = [tuple(definition.cell(x, str(width)) for x in z) == u.index for z in p]
        np.testing.assert_array_equal(u(p), exact)


# -------------------------------------------------------------------------------------------------------- steps
@st.composite
def directions(draw: st.DrawFn, scalar: bool = True) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(draw(seeds))
    n, d = draw(st.integers(1, 25)), 1 if scalar else draw(st.sampled_from([3, 4]))
    p = rng.dirichlet(np.ones(d), n) * 0.96 + 0.04 / d if d > 1 else rng.uniform(0.02, 0.98, (n, 1))
    y = np.eye(d)[rng.integers(0, d, n)] if d > 1 else rng.integers(0, 2, (n, 1)).astype(float)
    delta = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.8)
    return p, y, delta, rng.dirichlet(np.ones(n))


def _at_start(*case: np.ndarray) -> tuple[Memory, State, tuple[Term, ...]]:
    rows, terms = along(*case)
    return rows, START, terms


def clipped_loss(eta: float, p: np.ndarray, y: np.ndarray, delta: np.ndarray, weight: np.ndarray) -> float:
    return float(weight @ (y - np.clip(p + eta * delta, 0, 1))[:, 0] ** 2)


@given(directions())
@settings(deadline=None, max_examples=100)
def test_exact_line_search_beats_a_grid(case: tuple[np.ndarray, ...]) -> None:
    p, y, delta, weight = case
    if not delta.any():
        return
    eta = sorted_step(Line(p[:, 0], y[:, 0], delta[:, 0], weight))
    assert eta >= 0
    best = clipped_loss(eta, *case)
    assert all(best <= clipped_loss(t, *case) + 1e-12 for t in np.linspace(0, 20, 2001))


def newton(rows: Memory, state: State, terms: tuple[Term, ...], geometry: Geometry) -> float:
    """Return the Newton step g / B, which no search may do worse than."""
    return rows.run(Along(state, terms, geometry)).newton


@given(directions())
@quick
def test_line_search_goes_either_way(case: tuple[np.ndarray, ...]) -> None:
    """A direction that points uphill is followed backwards; the loss is at most that of the Newton step."""
    p, y, delta, weight = case
    eta, back = (line_search(*each, "euclidean") for each in (_at_start(*case), _at_start(p, y, -delta, weight)))
    assert eta == pytest.approx(-back, abs=1e-12)
    start = newton(*_at_start(*case), "euclidean")
    assert clipped_loss(eta, *case) <= min(clipped_loss(start, *case), clipped_loss(0.0, *case)) + 1e-12


@given(directions(scalar=False))
@quick
def test_euclidean_step_on_the_simplex_makes_the_guaranteed_progress(case: tuple[np.ndarray, ...]) -> None:
    """phi(0) - phi(eta) >= g^2 / B (spec 4.3) with B = E||delta - mean||^2."""
    p, y, delta, weight = case
    rho = weight[:, None] * (y - p)
    g = float((delta * rho).sum())
    centred = delta - delta.mean(axis=1, keepdims=True)
    B = float(weight @ (centred**2).sum(axis=1))
    given = _at_start(*case)
    assert given[0].run(Along(*given[1:], "euclidean")).curvature == pytest.approx(B, abs=1e-12)
    for eta in (newton(*given, "euclidean"), line_search(*given, "euclidean")):
        after = definition.brier(y, definition.project(p + eta * delta), weight)
        least = g * g / B if B > 0 else 0.0
        assert definition.brier(y, p, weight) - after >= least - 1e-10


def test_the_search_on_the_simplex_takes_the_best_of_a_few_steps() -> None:
    """Where projections cut a step off, several times Newton's step may gain more; never is less gained."""
    chosen = set()
    for seed in range(40):
        rng, n = np.random.default_rng(seed), 6
        y, apart = np.eye(3)[rng.integers(0, 3, n)], rng.choice([0.02, 0.5, 1.0], (n, 1))
        p = (1 - apart) * y + apart * rng.dirichlet(np.ones(3), n)
        delta, weight = rng.standard_normal((n, 3)) * rng.choice([0.1, 1.0, 10.0], (n, 1)), np.full(n, 1 / n)
        given = _at_start(p, y, delta, weight)
        start = newton(*given, "euclidean")
        left = {k: simplex.brier(simplex.project(p + start * 2.0**k * delta), y, weight) for k in (-1, 0, 1, 2, 3)}
        best = min(left, key=left.__getitem__)
        assert line_search(*given, "euclidean") == pytest.approx(start * 2.0**best, rel=1e-12)
        chosen.add(best)
    assert chosen == {0, 1, 2, 3}


@given(st.one_of(directions(), directions(scalar=False)))
@settings(deadline=None, max_examples=100)
def test_mirror_line_search_nearly_minimises_log_loss(case: tuple[np.ndarray, ...]) -> None:
    p, y, delta, weight = case
    rho = weight[:, None] * (y - p)
    eta, start = (search(*_at_start(*case), "mirror") for search in (line_search, newton))

    def loss(t: float) -> float:
        """The log loss without a floor, below which it would no longer be convex."""
        if p.shape[1] == 1:
            odds = (np.log(p) - np.log1p(-p) + t * delta)[:, 0]
            return float(weight @ (np.logaddexp(0, odds) - y[:, 0] * odds))
        score = np.log(p) + t * delta
        return float(weight @ (np.logaddexp.reduce(score, axis=1) - (y * score).sum(axis=1)))

    # within 64 Newton steps, the slope is 0 nearly there: almost all that can be gained is gained
    others = [loss(t) for t in np.linspace(-2, 8, 101) * start]
    assert loss(eta) <= loss(start) + 1e-12
    assert loss(0.0) - loss(eta) >= 0.99 * (loss(0.0) - min(others)) - 1e-12
    # the Newton step alone gains g^2 / (2 B) with B = E[range^2] / 4
    g = float((delta * rho).sum())
    spread = np.abs(delta[:, 0]) if p.shape[1] == 1 else np.ptp(delta, axis=1)
    B = float(weight @ spread**2) / 4
    assert loss(0.0) - loss(start) >= (g * g / (2 * B) if B > 0 else 0.0) - 1e-10


# The supremum over polynomials of degree >= 2 on the simplex lies between two linear programs (spec 2.2): it is hard to
# decide whether a polynomial is non-negative on the simplex. That its coefficients are non-negative after homogenising
# (Polya, Bernstein) is sufficient: a lower bound. That it is so at finitely many points is necessary: an upper bound.


def bracket(weights: Sequence[Monomial], v: FloatArray, raise_degree: int = 2) -> tuple[float, float]:
    """Return bounds on sum_a sup_q sum_S q_S v[S, a] over q >= 0 on the simplex with sum |q_S| <= 1."""
    d = v.shape[1]
    degree = max(len(u.factors) for u in weights) + raise_degree
    sufficient = _bernstein(weights, d, degree)
    points = _grid(d)
    necessary = np.column_stack([u(points) for u in weights])
    lower = sum(_largest(v[:, a], sufficient) for a in range(d))
    return lower, sum(_largest(v[:, a], necessary) for a in range(d))


def _largest(m: FloatArray, A: FloatArray) -> float:
    """Return max m'q over A q >= 0, ||q||_1 <= 1."""
    scale = np.abs(m).max()
    if scale == 0.0:
        return 0.0
    both = np.concatenate([m, -m]) / scale
    rows = np.vstack([np.ones(2 * len(m)), np.hstack([-A, A])])
    bounds = np.concatenate([[1.0], np.zeros(len(A))])
    found = linprog(-both, A_ub=rows, b_ub=bounds, bounds=(0, None), method="highs")
    return float(-found.fun * scale)


def _bernstein(weights: Sequence[Monomial], d: int, degree: int) -> FloatArray:
    """Return the matrix from coefficients q_S to those of sum_S q_S z^S (sum z)^(degree - |S|)."""
    top = {s: i for i, s in enumerate(combinations_with_replacement(range(d), degree))}
    H = np.zeros((len(top), len(weights)))
    for k, u in enumerate(weights):
        for extra in combinations_with_replacement(range(d), degree - len(u.factors)):
            repeats = prod(factorial(c) for c in Counter(extra).values())
            H[top[tuple(sorted(u.factors + extra))], k] += factorial(len(extra)) / repeats
    return H


def _grid(d: int) -> FloatArray:
    """Return the points of the simplex with coordinates in multiples of 1/steps, vertices included."""
    steps = {2: 60, 3: 20, 4: 10, 5: 7}.get(d, 4 if d <= 8 else 2)
    combos = list(combinations_with_replacement(range(d), steps))
    return np.array([np.bincount(c, minlength=d) for c in combos]) / steps
