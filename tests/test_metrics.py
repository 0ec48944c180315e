"""Metrics against loops and linear programs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import linprog

import definition
import lowcal
from lowcal import metrics
from lowcal.datasets import make_miscalibrated, parity_square, two_halves

ALL = lowcal.Memberships(min_mass=0)


def sample(classes: int, seed: int = 0) -> tuple[definition.World, np.ndarray, np.ndarray, dict[str, object]]:
    """Return a world, its fractional and 0/1 memberships with everyone, weights, and the options of a metric."""
    data = definition.world(90, classes, seed=seed)
    C = np.column_stack([data.fractional, data.binary])
    weight = np.random.default_rng(seed).random(90)
    options = {"subpopulations": ALL, "sample_weight": weight}
    return data, C, weight, options


def with_everyone(C: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(C)), C])


# ----------------------------------------------------------------------------------------------- suprema of the notions
@pytest.mark.parametrize("classes", [2, 3])
def test_errors_are_the_suprema_of_the_definitions(classes: int) -> None:
    data, C, weight, options = sample(classes)

    def expected(notion: str) -> float:
        return definition.supremum(notion, with_everyone(C), data.hot, data.p, weight)

    assert metrics.multiaccuracy_error(data.y, data.p, C, **options) == pytest.approx(expected("multiaccuracy"))
    for k in (1, 2, 3) if classes == 2 else (1, 2):
        assert metrics.degree_error(data.y, data.p, C, degree=k, **options) == pytest.approx(expected(f"degree-{k}"))
    assert metrics.smooth_error(data.y, data.p, C, **options) == pytest.approx(expected("smooth"), abs=1e-9)
    assert metrics.full_error(data.y, data.p, C, width=0.25, **options) == pytest.approx(expected("full-0.25"))
    assert metrics.full_error(data.y, data.p, C, **options) == pytest.approx(expected("full-0.1"))
    assert metrics.degree_error(data.y, data.p, C, **options) == metrics.degree_error(
        data.y, data.p, C, degree=2, **options
    )


def test_a_bracketed_supremum_is_its_lower_end() -> None:
    data, C, weight, options = sample(3)
    found = metrics.degree_error(data.y, data.p, C, degree=3, **options)
    program = definition.supremum("degree-3", with_everyone(C), data.hot, data.p, weight)
    assert found <= program + 1e-9
    assert found == lowcal.measure(data.y, data.p, C, notion="degree-3", **options).largest


def test_truth_in_the_place_of_labels() -> None:
    """f_star first: the expectation without the noise; of f_star itself every error is 0."""
    data = make_miscalibrated(400, random_state=0)
    groups = lowcal.Groups(["g0"], min_mass=0)
    for metric in (metrics.multiaccuracy_error, metrics.degree_error, metrics.smooth_error, metrics.full_error):
        assert metric(data.f_star, data.f_star, data.X, subpopulations=groups) == pytest.approx(0, abs=1e-15)
        assert metric(data.f_star, data.p, data.X, subpopulations=groups) > 0.01


def test_without_columns_everyone_is_the_only_subpopulation() -> None:
    y, p = [1, 0, 0, 1], [0.8, 0.1, 0.4, 0.6]
    assert metrics.multiaccuracy_error(y, p) == pytest.approx(abs(np.mean(y) - np.mean(p)))
    assert metrics.multiaccuracy_error(y, p, signed_members=True) == pytest.approx(abs(np.mean(y) - np.mean(p)))


# ------------------------------------------------------------------------------------------- the paper's experiment
@pytest.mark.parametrize("classes", [2, 3])
def test_signed_members_by_a_loop(classes: int) -> None:
    data, C, weight, options = sample(classes)
    p, w = definition.as_columns(data.p), weight / weight.sum()
    loop = max(
        abs(sum(w[i] * (2 * c[i] - 1) * (data.hot[i, a] - p[i, a]) for i in range(90)))
        for c in with_everyone(C).T
        for a in range(p.shape[1])
    )
    assert metrics.multiaccuracy_error(data.y, data.p, C, signed_members=True, **options) == pytest.approx(loop)


def excess(truth: np.ndarray, p: np.ndarray, C: np.ndarray, weight: np.ndarray) -> float:
    """The largest E[c] (Var_c f - Var_c f*), by loops."""
    worst = -np.inf
    for c in C.T:
        q = weight / weight.sum() * c
        for a in range(p.shape[1]):
            variances = []
            for h in (p[:, a], truth[:, a]):
                mean = sum(q * h) / sum(q)
                variances.append(sum(q * (h - mean) ** 2) / sum(q))
            worst = max(worst, sum(q) * (variances[0] - variances[1]))
    return worst


@pytest.mark.parametrize("classes", [2, 3])
def test_excess_variance_by_loops(classes: int) -> None:
    data = make_miscalibrated(120, n_classes=classes, overconfidence=3.0, random_state=1)
    rng = np.random.default_rng(0)
    C, weight = rng.random((120, 4)), rng.random(120)
    columns = [definition.as_columns(part) for part in (data.f_star, data.p)]
    expected = excess(*columns, with_everyone(C), weight)
    options = {"subpopulations": ALL, "sample_weight": weight}
    assert metrics.excess_variance(data.f_star, data.p, C, **options) == pytest.approx(expected, rel=1e-9)
    assert expected > 0.01
    alone = {"subpopulations": lowcal.Memberships(min_mass=0, everyone=False), "sample_weight": weight}
    for c in (C[:, [0]], (data.X["x0"] > 0).astype(float)[:, None]):  # the second has means far from everyone's
        assert metrics.excess_variance(data.f_star, data.p, c, **alone) == pytest.approx(
            excess(*columns, c, weight), rel=1e-9
        )
    # where the truth plays the labels, the bound must hold exactly: C = Cov(f, f*)
    assert metrics.excess_variance_bound(data.f_star, data.p, C, **options) >= expected - 1e-15
    assert metrics.excess_variance(data.f_star, data.f_star, C, **options) == pytest.approx(0, abs=1e-15)


def test_excess_variance_bound_by_hand_and_at_its_best() -> None:
    """Spec 5.11: min(2 (V - C), V - C^2 / V). For f* = a + b f the second is exact."""
    f = np.array([0.1, 0.3, 0.8, 0.9])
    truth = 0.2 + 0.5 * f
    assert metrics.excess_variance_bound(truth, f) == pytest.approx(0.75 * np.var(f))
    assert metrics.excess_variance(truth, f) == pytest.approx(0.75 * np.var(f))
    # f* independent of f, and opposed to it: C <= 0
    truth = 0.9 - 0.5 * f
    V, C = np.var(f), -0.5 * np.var(f)
    assert metrics.excess_variance_bound(truth, f) == pytest.approx(min(2 * (V - C), V - C * C / V))
    narrow = 0.5 + 0.1 * (f - f.mean())  # C > V: the truth varies more
    V, C = np.var(narrow), 0.1 * np.var(f)
    assert metrics.excess_variance_bound(f, narrow) == pytest.approx(min(2 * (V - C), V - C * C / V))
    assert metrics.excess_variance_bound([1, 0, 1], [0.5, 0.5, 0.5]) == 0.0
    rng = np.random.default_rng(0)
    for _ in range(300):
        f, truth = rng.random(4), rng.random(4)
        assert metrics.excess_variance(truth, f) <= metrics.excess_variance_bound(truth, f) + 1e-12


def test_the_two_examples_of_the_paper() -> None:
    world = two_halves()
    options = {"subpopulations": lowcal.Groups(min_mass=0), "sample_weight": world.sample_weight}
    # p says 1 and 0 for 0.7 and 0.3: Var 1/4 against 1/25 on everyone
    assert metrics.excess_variance(world.f_star, world.p, world.X, **options) == pytest.approx(0.25 - 0.04)
    # multiaccurate on halves only in sum: 0.3 / 2 on each, 0.3 against the other half
    assert metrics.multiaccuracy_error(world.y, world.p, world.X, **options) == pytest.approx(0.15)
    assert metrics.multiaccuracy_error(world.y, world.p, world.X, signed_members=True, **options) == pytest.approx(0.3)
    square = parity_square()
    options["sample_weight"] = square.sample_weight
    assert metrics.multiaccuracy_error(square.y, square.p, square.X, signed_members=True, **options) < 1e-15


# ------------------------------------------------------------------------------------------- on the line of predictions
def smooth_calibration(y: np.ndarray, p: np.ndarray, weight: np.ndarray) -> float:
    """max sum r w over w in [-1, 1] with |w_i - w_j| <= |p_i - p_j| for all pairs: a linear program."""
    n, r = len(p), weight / weight.sum() * (y - p)
    pairs = list(combinations(range(n), 2))
    A = np.zeros((2 * len(pairs), n))
    for k, (i, j) in enumerate(pairs):
        A[2 * k, [i, j]] = 1, -1
        A[2 * k + 1, [i, j]] = -1, 1
    gaps = np.repeat([abs(p[i] - p[j]) for i, j in pairs], 2)
    scale = np.abs(r).max()
    return -linprog(-r / scale, A_ub=A, b_ub=gaps, bounds=(-1, 1), method="highs").fun * scale


@pytest.mark.parametrize("seed", range(8))
def test_smooth_calibration_error_by_a_linear_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, weight = np.round(rng.random(25), 1 if seed % 2 else 9), rng.random(25)
    y = (rng.random(25) < p**2).astype(float)
    y[:2] = 0, 1
    found = metrics.smooth_calibration_error(y, p, sample_weight=weight)
    assert found == pytest.approx(smooth_calibration(y, p, weight), abs=1e-8)
    # [0, 1]-valued weights are half of them: error <= smCE <= 2 error
    one_sided = metrics.smooth_error(y, p, sample_weight=weight)
    assert one_sided - 1e-12 <= found <= 2 * one_sided + 1e-12


def test_smooth_calibration_error_is_binary() -> None:
    with pytest.raises(lowcal.InvalidInput, match="binary problems, but p has 3 columns"):
        metrics.smooth_calibration_error([0, 1, 2], np.full((3, 3), 1 / 3))


def test_a_subpopulation_without_weight_shows_nothing() -> None:
    """Rows of weight 0 are not there: no division by their mass."""
    y, p = np.array([1, 0, 1, 0]), np.array([0.5, 0.5, 0.9, 0.9])
    C = np.array([[0.0], [0.0], [1.0], [1.0]])
    options = {"subpopulations": ALL, "sample_weight": [1, 1, 0, 0]}
    assert metrics.excess_variance(y, p, C, **options) == pytest.approx(-0.25)


@pytest.mark.parametrize(
    "metric",
    [
        metrics.multiaccuracy_error,
        lambda *a, **k: metrics.multiaccuracy_error(*a, signed_members=True, **k),
        metrics.degree_error,
        metrics.smooth_error,
        metrics.full_error,
        metrics.excess_variance,
        metrics.excess_variance_bound,
    ],
)
def test_doubling_rows_is_doubling_weights(metric: object) -> None:
    data, C, _, _ = sample(2)
    twice = np.arange(90) < 30
    order = np.concatenate([np.arange(90), np.flatnonzero(twice)])
    weighted = metric(data.y, data.p, C, subpopulations=ALL, sample_weight=1.0 + twice)
    repeated = metric(data.y[order], data.p[order], C[order], subpopulations=ALL)
    assert weighted == pytest.approx(repeated, rel=1e-9)


def test_learned_subpopulations_are_asked_for() -> None:
    """On a bare array the default class is trees: the step at x > 0 is found."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y, p = (X[:, 0] > 0).astype(int), np.full(600, 0.5)
    everyone = abs(y.mean() - 0.5)
    assert metrics.multiaccuracy_error(y, p, X) > 0.2 > everyone
    assert metrics.multiaccuracy_error(y, p, X, signed_members=True) > 0.4
