"""The line kernel against an independent linear program, its identities and its worst case."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from lowcal.kernels import line
from lowcal.kernels.line import (
    PURE,
    FloatArray,
    Method,
    SortedRows,
    aggregate,
    passes_for,
    solve_line,
    solve_lines,
)

LIPS = (0.5, 1.0, 2.0, 4.0, 20.0)
METHODS: tuple[Method, ...] = ("auto", "stack", "dual")
COMPILED = passes_for(line.COMPILE_FROM)
BOTH = (PURE, COMPILED)


def line_by_lp(v: FloatArray, r: FloatArray, lip: float) -> float:
    """The definition, given to HiGHS; the objective is scaled because its tolerances are absolute."""
    m = len(v)
    difference = sp.diags_array([-np.ones(m - 1), np.ones(m - 1)], offsets=[0, 1], shape=(m - 1, m))
    gaps = lip * np.diff(v)
    scale = np.abs(r).max() or 1.0
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    solution = linprog(
        -r / scale,
        A_ub=sp.vstack([difference, -difference], format="csr") if m > 1 else None,
        b_ub=np.r_[gaps, gaps] if m > 1 else None,
        bounds=(0, 1),
        method="highs",
        options=tight,
    )
    assert solution.status == 0
    return float(-solution.fun * scale)


def instance(seed: int, n: int, kind: str) -> tuple[FloatArray, FloatArray]:
    """Residual masses of a miscalibrated predictor: fractional c, and ties or tails by `kind`."""
    rng = np.random.default_rng(seed)
    f = rng.beta(0.3, 0.3, n) if kind == "edges" else rng.random(n)
    if kind == "ties":
        f = f.round(1)
    y = rng.random(n) < np.clip(f + 0.3 * np.sin(9 * f), 0, 1)
    mass = rng.pareto(1.1, n) if kind == "tails" else np.ones(n)
    if kind == "integers":  # exact cancellations of whole masses
        return aggregate(f, rng.integers(-2, 3, n).astype(float))
    return aggregate(f, mass / mass.sum() * rng.random(n) * (y - f))


def check_feasible(v: FloatArray, r: FloatArray, lip: float, value: float, w: FloatArray) -> None:
    assert w.shape == v.shape
    assert np.all((w >= 0) & (w <= 1))
    assert np.all(np.abs(np.diff(w)) <= lip * np.diff(v) + 1e-14)
    assert value == pytest.approx(np.sum(r * w), abs=1e-14)


instances = st.builds(
    instance,
    st.integers(0, 2**32 - 1),
    st.integers(1, 80),
    st.sampled_from(["plain", "ties", "edges", "tails", "integers"]),
)


@given(instances, st.sampled_from(LIPS))
@settings(deadline=None, max_examples=150)
def test_stack_and_dual_reach_the_linear_program(points: tuple[FloatArray, FloatArray], lip: float) -> None:
    v, r = points
    best = line_by_lp(v, r, lip)
    for method, passes in product(METHODS, BOTH):
        value, w = solve_line(v, r, lip, method=method, passes=passes)
        check_feasible(v, r, lip, value, w)
        assert value == pytest.approx(best, abs=1e-9)


@given(instances, st.sampled_from(LIPS), st.sampled_from(METHODS))
@settings(deadline=None)
def test_other_sign_is_free(points: tuple[FloatArray, FloatArray], lip: float, method: Method) -> None:
    v, r = points
    plus, minus = solve_line(v, r, lip, method=method)[0], solve_line(v, -r, lip, method=method)[0]
    assert minus == pytest.approx(plus - r.sum(), abs=1e-12)


@given(instances, st.sampled_from(METHODS))
@settings(deadline=None)
def test_mirror_image_has_the_same_value(points: tuple[FloatArray, FloatArray], method: Method) -> None:
    v, r = points
    mirrored = solve_line(1.0 - v[::-1], r[::-1], method=method)[0]
    assert mirrored == pytest.approx(solve_line(v, r, method=method)[0], abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("lip", "value"), [(1.0, 0.3), (2.0, 0.5), (0.5, 0.15), (0.0, 0.0), (np.inf, 0.5)])
def test_two_points(method: Method, lip: float, value: float) -> None:
    v, r = np.array([0.2, 0.8]), np.array([-0.5, 0.5])
    assert solve_line(v, r, lip, method=method)[0] == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize("method", METHODS)
def test_three_points_by_hand(method: Method) -> None:
    # the middle point pulls down by 3, its neighbours up by 1 each: w = (0.25, 0, 0.5)
    value, w = solve_line(np.array([0.0, 0.25, 0.75]), np.array([1.0, -3.0, 1.0]), method=method)
    assert w == pytest.approx([0.25, 0.0, 0.5], abs=1e-15)
    assert value == pytest.approx(0.75, abs=1e-15)


@pytest.mark.parametrize("method", METHODS)
def test_no_point_and_one_point(method: Method) -> None:
    value, w = solve_line(np.zeros(0), np.zeros(0), method=method)
    assert value == 0.0
    assert w.shape == (0,)
    for r, best, weight in ((2.0, 2.0, 1.0), (-2.0, 0.0, 0.0)):
        value, w = solve_line(np.array([0.4]), np.array([r]), method=method)
        assert (value, w.tolist()) == (best, [weight])
    value, w = solve_line(np.array([0.4]), np.array([0.0]), method=method)
    assert value == 0.0
    assert 0.0 <= w[0] <= 1.0


def test_arguments_stay_as_they_are() -> None:
    v, r = instance(0, 30, "plain")
    kept = v.copy(), r.copy()
    solve_line(v, r, method="dual")
    solve_line(v, r, method="stack")
    solve_line(v, r, method="dual", passes=COMPILED)
    solve_line(v, r, method="stack", passes=COMPILED)
    aggregate(v[::-1], r)
    np.testing.assert_array_equal((v, r), kept)


def adversarial(m: int) -> tuple[FloatArray, FloatArray]:
    """Tiny masses first, then large alternating ones that carry all of them across again and again."""
    r = np.full(m, 1e-7)
    r[m // 2 :] = np.where(np.arange(m - m // 2) % 2 == 0, -1.0, 1.0)
    return np.linspace(0.0, 0.5, m), r


def stacks(passes: ModuleType, v: FloatArray, r: FloatArray, budget: float) -> bool:
    """Whether the stacks finish within this many moves."""
    low, high, work = (passes.hold(np.zeros(shape)) for shape in (len(r), len(r), (4, len(r))))
    return bool(passes.by_stacks(passes.hold(np.diff(v)), passes.hold(r), budget, low, high, work))


@pytest.mark.parametrize("passes", BOTH, ids=["pure", "compiled"])
def test_adversarial_instance_falls_back_to_the_dual(passes: ModuleType) -> None:
    v, r = adversarial(40_000)
    assert not stacks(passes, v, r, passes.MOVES * len(v) + 1024)
    value, w = solve_line(v, r, passes=passes)
    check_feasible(v, r, 1.0, value, w)
    assert value == solve_line(v, r, method="dual", passes=passes)[0]
    # w = 1 but for one gap's dip under each -1; a drift of the masses would cost 1e-8 here
    assert value == pytest.approx(20_000 * 1e-7 + 10_000 * 0.5 / 39_999, abs=1e-11)


def test_adversarial_instance_has_one_value() -> None:
    v, r = adversarial(2_000)  # small enough for a quadratic number of moves, and for HiGHS
    best = line_by_lp(v, r, 1.0)
    for method, passes in product(METHODS, BOTH):
        assert solve_line(v, r, method=method, passes=passes)[0] == pytest.approx(best, abs=1e-9)


def test_random_instances_stay_within_the_budget() -> None:
    v, r = instance(1, 5_000, "tails")
    assert stacks(PURE, v, r, 8 * len(v))


@given(st.integers(0, 2**32 - 1), st.integers(0, 60))
def test_aggregate_sums_ties_in_order(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    f, mass = rng.integers(0, 8, n) / 8, rng.normal(size=n)
    v, r = aggregate(f, mass)
    assert np.all(np.diff(v) > 0)
    assert set(v) == set(f)
    assert r == pytest.approx([mass[f == x].sum() for x in v], abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_one_sort_serves_every_group(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    f, mass = rng.integers(0, 8, n) / 8, rng.normal(size=n) * rng.integers(0, 2, n)
    rows = SortedRows.of(f, mass)
    for c in (rng.integers(0, 2, n).astype(float), rng.uniform(-1, 1, n)):
        live = c * mass != 0
        places = np.flatnonzero(c[rows.order])
        v, r = rows.inside(places, c[rows.order][places])
        assert v.tolist() == sorted(set(f[live]))
        assert r == pytest.approx([(c * mass)[f == x].sum() for x in v], abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from(LIPS))
@settings(deadline=None, max_examples=50)
def test_points_without_mass_do_not_matter(seed: int, lip: float) -> None:
    v, r = instance(seed, 60, "integers")
    live = r != 0
    for passes in BOTH:
        every, few = (solve_line(v[k], r[k], lip, passes=passes)[0] for k in (slice(None), live))
        assert every == pytest.approx(few, abs=1e-12)


@pytest.mark.parametrize("smallest", [1, 10**9], ids=["compiled", "pure"])
@pytest.mark.parametrize("lip", LIPS)
def test_many_problems_at_once_are_single_ones(monkeypatch: pytest.MonkeyPatch, smallest: int, lip: float) -> None:
    monkeypatch.setattr(line, "COMPILE_FROM", smallest)
    rng = np.random.default_rng(0)
    v = np.sort(rng.random(50))
    R = rng.normal(size=(20, 50)) * rng.pareto(1.1, (20, 50)) * rng.integers(0, 2, (20, 50))
    best = [solve_line(v, r, lip, passes=PURE)[0] for r in R]
    assert solve_lines(v, R, lip) == pytest.approx(best, rel=1e-12)
    assert solve_lines(v, R.T.copy().T, lip) == pytest.approx(best, rel=1e-12)  # whatever the layout
    assert solve_lines(v, R[:0], lip).shape == (0,)


def test_many_problems_fall_back_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    v, hard = adversarial(2_000)
    R = np.stack([hard, np.random.default_rng(0).choice([-1.0, 1.0], 2_000), hard[::-1]])
    stopped = [not stacks(COMPILED, v, r, COMPILED.MOVES * 2_000 + 1024) for r in R]
    assert stopped[:2] == [True, False]
    best = [solve_line(v, r, method="stack", passes=PURE)[0] for r in R]
    monkeypatch.setattr(line, "COMPILE_FROM", 1)
    assert solve_lines(v, R) == pytest.approx(best, abs=1e-11)
