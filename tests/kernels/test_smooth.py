"""The smooth suprema on many groups: one sort, threads or not, and the grid that stands for them in resampling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lowcal.kernels import line, transport
from lowcal.kernels.line import PURE, FloatArray, aggregate, solve_line
from lowcal.kernels.reference import Codes, DecodeTable, Design, Matrix, Stacked
from lowcal.notions import Suprema, smooth
from lowcal.notions.smooth import Smooth
from lowcal.rows import START, Memory
from lowcal.rows.grids import LinePoints, PlacedResiduals, line_suprema
from lowcal.subpopulations.memberships import Members


def sample(seed: int, n: int, d: int) -> tuple[FloatArray, FloatArray, Design]:
    """Predictions with ties, weighted residuals, and 0/1, fractional and signed groups, one of them without a row."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(1, 30, (n, max(d, 2))).astype(float) if seed % 2 else rng.random((n, max(d, 2)))
    p = raw / raw.sum(axis=1, keepdims=True)
    y = np.eye(p.shape[1])[rng.integers(0, p.shape[1], n)]
    weight = rng.pareto(1.5, n)
    rho = ((y - p) * (weight / weight.sum())[:, None])[:, -max(d, 2) :]
    if d == 1:
        p, rho = p[:, :1], rho[:, :1]
    levels = Codes((rng.integers(0, 3, n).astype(np.uint8),), (DecodeTable(sparse.csr_array(np.eye(4))),))
    numbers = np.column_stack([np.ones(n), rng.random(n), rng.uniform(-1, 1, n)])
    return p, rho, Stacked((levels, Matrix(numbers)))


def by_groups(p: FloatArray, rho: FloatArray, design: Design) -> FloatArray:
    """The definition, group by group and label by label, each with its own sort."""
    lip, values = (1.0, []) if p.shape[1] == 1 else (2.0, [])
    for j in range(design.shape[1]):
        r = rho * design.column(j)[:, None]
        total = sum(solve_line(*aggregate(p[:, a], r[:, a]), lip, passes=PURE)[0] for a in range(p.shape[1]))
        values.append(max(total, total - r.sum()) if p.shape[1] == 1 else total)
    return np.array(values)


@pytest.mark.parametrize("smallest", [1, 10**9], ids=["compiled", "pure"])
@pytest.mark.parametrize("d", [1, 3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_sort_gives_what_many_gave(monkeypatch: pytest.MonkeyPatch, seed: int, d: int, smallest: int) -> None:
    monkeypatch.setattr(line, "COMPILE_FROM", smallest)
    p, rho, design = sample(seed, 300, d)
    found = Smooth().suprema(p, rho, design, alpha=0.0)  # alpha: leave the class-wise bound as it is
    assert found.value == pytest.approx(by_groups(p, rho, design), abs=1e-14)
    for j in range(design.shape[1]):
        attained = (rho * design.column(j)[:, None] * found.witness(j)(p)).sum()
        assert attained == pytest.approx(found.value[j], abs=1e-9)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "COMPILE_FROM", 1)
    p, rho, design = sample(0, 2_000, 1)
    results = []
    for threads in (1, 2, 4):
        monkeypatch.setattr(smooth, "THREADS", threads)
        found = Smooth().suprema(p, rho, design)
        results.append((found.value.tolist(), [found.witness(j)(p).tolist() for j in range(design.shape[1])]))
    assert results[0] == results[1] == results[2]


def on_points(p: FloatArray, rho: FloatArray, design: Design, points: int) -> tuple[FloatArray, FloatArray]:
    """Return the suprema with predictions at the points of a grid, and what that may cost."""
    n, m = design.shape
    unit = n * np.abs(rho).max()  # the residuals of a row are at most its weight
    rows = Memory.of(design.dense(), p, p + n * rho / unit, np.full(n, 1.0 / n))
    family = Members(tuple(map(str, range(m))), tuple(range(m)))
    found = rows.run(PlacedResiduals(START, (family,), LinePoints(points)))
    return unit * line_suprema(found.residuals, points), unit * found.error


@given(st.integers(0, 10**6), st.integers(1, 60), st.sampled_from([1, 3, 5]), st.sampled_from([1024, 10, 3, 1]))
@settings(deadline=None, max_examples=80)
def test_the_grid_is_as_near_as_it_says(seed: int, n: int, d: int, points: int) -> None:
    """Memberships with signs pay as if everyone moved."""
    p, rho, design = sample(seed, n, d)
    value, error = on_points(p, rho, design, points)
    small = 1e-12 * np.abs(rho).sum() + 1e-14
    assert np.all(np.abs(value - by_groups(p, rho, design)) <= error + small)
    assert np.all(error <= (1.0 if d == 1 else 2.0) / points / 2 * np.abs(rho).sum() + small)
    moved = np.abs(p - np.rint(p * points) / points)
    plain = (design.dense() >= 0.0).all(axis=0)
    price = (1.0 if d == 1 else 2.0) * (design.dense()[:, :, None] * np.abs(rho * moved)[:, None, :]).sum(axis=(0, 2))
    np.testing.assert_allclose(error[plain], price[plain], atol=small)


@pytest.mark.parametrize("d", [1, 3])
def test_predictions_on_the_grid_are_exact(d: int) -> None:
    p, rho, design = sample(1, 80, d)
    p = np.rint(p * 64) / 64
    value, error = on_points(p, rho, design, 64)
    np.testing.assert_array_equal(error, 0.0)
    assert value == pytest.approx(by_groups(p, rho, design), rel=1e-9)


def many_classes(n: int, d: int = 3, seed: int = 0) -> tuple[FloatArray, FloatArray, Design]:
    """Underconfident predictions on distinct rows, and everyone."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(d, 0.7), n)
    truth = p**1.3 / (p**1.3).sum(axis=1, keepdims=True)
    label = (rng.random((n, 1)) > np.cumsum(truth, axis=1)).sum(axis=1).clip(0, d - 1)
    return p, (np.eye(d)[label] - p) / n, Matrix(np.ones((n, 1)))


def attained(p: FloatArray, rho: FloatArray, design: Design, found: Suprema, j: int) -> float:
    return float((rho * design.column(j)[:, None] * found.witness(j)(p)).sum())


@pytest.mark.parametrize("near_rows", [0, 2_000], ids=["clusters", "near"])
@pytest.mark.parametrize("d", [3, 5])
def test_the_bracket_holds_the_exact_supremum(monkeypatch: pytest.MonkeyPatch, d: int, near_rows: int) -> None:
    p, rho, _ = many_classes(120, d)
    design = Matrix(
        np.column_stack([np.ones(120), np.arange(120) % 2, np.linspace(0, 1, 120), np.linspace(-1, 1, 120)])
    )
    exact = Smooth().suprema(p, rho, design)
    np.testing.assert_array_equal(exact.value, exact.upper)
    monkeypatch.setattr(smooth, "EXACT_ROWS", 10)
    monkeypatch.setattr(smooth, "NEAR_ROWS", near_rows)
    monkeypatch.setattr(smooth, "CENTRES", 10)
    found = Smooth().suprema(p, rho, design)
    assert np.all(found.value <= exact.value + 1e-9)
    assert np.all(found.upper >= exact.value - 1e-9)
    if near_rows == 0:  # ten centres can't be exact
        assert np.all(found.value < exact.value - 1e-4)
        assert np.all(found.upper > exact.value + 1e-4)
    for j in range(4):
        assert attained(p, rho, design, found, j) == pytest.approx(found.value[j], abs=1e-12)


@pytest.mark.parametrize("near_rows", [0, 2_000], ids=["clusters", "near"])
def test_the_bracket_is_tighter_on_many_rows(monkeypatch: pytest.MonkeyPatch, near_rows: int) -> None:
    p, rho, design = many_classes(2_000)
    monkeypatch.setattr(smooth, "NEAR_ROWS", near_rows)
    classwise = by_groups(p, rho, design)[0]
    plain = sum(transport.greedy(*transport.aggregate_rows(p, rho[:, a])).upper() for a in range(3))
    found = Smooth().suprema(p, rho, design)
    assert classwise < found.value[0] <= found.upper[0] < plain
    assert found.upper[0] - found.value[0] < 0.8 * (plain - classwise)
    assert attained(p, rho, design, found, 0) == pytest.approx(found.value[0], abs=1e-12)


def test_a_bracket_is_narrowed_only_where_alpha_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    p, rho, everyone = many_classes(450)
    design = Stacked((everyone, everyone))
    classwise = by_groups(p, rho, everyone)[0]
    plain = sum(transport.greedy(*transport.aggregate_rows(p, rho[:, a])).upper() for a in range(3))
    asked = []
    narrow = smooth._narrow
    monkeypatch.setattr(smooth, "_narrow", lambda *args: asked.append(1) or narrow(*args))
    Smooth().suprema(p, rho, design, alpha=plain * 1.01)  # the greedy plan decides
    Smooth().suprema(p, rho, design, alpha=classwise * 0.99)  # a witness is known
    assert not asked
    tight = Smooth().suprema(p, rho, design)
    assert len(asked) == 2
    asked.clear()
    between = (classwise + tight.value[0]) / 2
    found = Smooth().suprema(p, rho, design, alpha=between)
    assert len(asked) == 1  # the first group's witness exceeds alpha: nothing is open any more
    assert found.value[0] > between
    assert found.upper[1] >= tight.value[1]
