"""The announced bounds of spec 4.3, as formulas, and how far below them the solvers stay."""

from __future__ import annotations

from math import ceil, log2

import numpy as np
import pytest

import definition
import lowcal
from worlds import multicalibrate

RUNS = {"notion": "degree-2", "alpha": 0.003}


def bound(data: definition.World, notion: str, alpha: float, solver: str, **options: object) -> int:
    """Return the announced bound; one update is enough to hear it."""
    X = {"g0": data.X["g0"]}
    fit = multicalibrate(data.y, data.p, X, notion=notion, alpha=alpha, solver=solver, max_updates=1, **options)
    return fit.bound


def tolerance(notion: str, alpha: float, classes: int, n: int) -> float:
    """Return beta at which the basis implies the class (spec 1.3, 3.2, 3.5)."""
    l = classes  # noqa: E741
    if notion == "multiaccuracy":
        return alpha
    if notion.startswith("degree"):
        k = int(notion[-1])
        return alpha if l == 2 else alpha / (l // 2) if k == 1 else alpha / l
    if notion == "full-0.25":
        # cells of [0, 1], or of the simplex for l = 3 and 4 intervals: counted in test_vectors
        return alpha / 4 if l == 2 else alpha / ((l // 2) * {3: 28, 4: 65}[l])
    assert notion == "smooth"
    if l == 2:
        return alpha / (2 + ceil(log2(1 / alpha)))
    return alpha / (2 * (l // 2) * n)  # more cells than rows


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-1", "degree-2", "degree-3", "full-0.25", "smooth"])
def test_first_announces_the_papers_bound(notion: str, classes: int) -> None:
    """8 l / beta^2 at the tolerance beta of the basis; the scalar convention counts as l = 1."""
    data = definition.world(200, classes)
    beta = tolerance(notion, 0.01, classes, 200)
    d = 1 if classes == 2 else classes
    assert bound(data, notion, 0.01, "first") == pytest.approx(8 * d / beta**2, abs=1.0)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("solver", ["worst", "block"])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-1", "degree-2", "degree-3", "full-0.25"])
def test_worst_and_block_announce_phi_b_over_alpha_squared(notion: str, solver: str, classes: int) -> None:
    data = definition.world(200, classes)
    width = {2: 1.0, 3: 2 / 3, 4: 1.0}[classes]
    gain = 0.5 if classes > 2 and notion == "degree-3" else 1.0  # a witness shows half of the certified bracket
    phi = definition.brier(data.hot, data.p)
    expected = phi * width / (0.01 * gain) ** 2
    assert bound(data, notion, 0.01, solver, geometry="euclidean") == pytest.approx(expected, abs=1.0)
    # log loss bends by at most 1/4: every update gains 2 g^2
    phi = definition.log_loss(data.hot, data.p)
    assert bound(data, notion, 0.01, solver, geometry="mirror") == pytest.approx(phi / (2 * (0.01 * gain) ** 2), abs=1)
    # shrinkage nu multiplies it by 1 / (nu (2 - nu))
    assert bound(data, notion, 0.01, solver, step=0.5, geometry="euclidean") == pytest.approx(expected / 0.75, abs=1.0)


def test_own_step_of_first_keeps_a_bound() -> None:
    """The paper's progress 2 eta g - eta^2 B is at least eta beta for steps up to beta / B (spec 4.3)."""
    data = definition.world(300, 2)
    for step in (0.001, 0.005, 0.02):
        fit = multicalibrate(
            data.y, data.p, {"g0": data.X["g0"], "g1": data.X["g1"]}, alpha=0.02, solver="first", step=step
        )
        assert fit.status == "reached"
        assert fit.n_updates <= fit.bound
        losses = [definition.brier(data.y, data.p), *(record.brier for record in fit.history)]
        assert max(np.diff(losses)) <= 1e-12
        assert losses[0] - losses[-1] >= fit.n_updates * 0.75 * min(step, 0.02) * 0.02


@pytest.mark.parametrize(
    ("solver", "step"), [("first", None), ("worst", None), ("worst", 0.5), ("block", None), ("block", 0.5)]
)
@pytest.mark.parametrize("classes", [2, 3])
def test_every_update_makes_the_progress_that_the_bound_counts_on(solver: str, classes: int, step: float) -> None:
    """phi falls by g^2 / B for worst and block (times nu (2 - nu)), by 3 beta^2 / (4 d) for first."""
    data = definition.world(300, classes)
    fit = multicalibrate(
        data.y,
        data.p,
        {"g0": data.X["g0"], "g1": data.X["g1"]},
        notion="degree-2",
        alpha=0.005 if solver != "first" else 0.03,
        solver=solver,
        step=step,
        geometry="euclidean",
    )
    assert fit.status == "reached"
    losses = np.array([definition.brier(data.hot, data.p), *(record.brier for record in fit.history)])
    d = 1 if classes == 2 else classes
    if solver == "first":
        least = 2 * 0.03 * 0.03 / (2 * d) - (0.03 / (2 * d)) ** 2  # 2 eta g - eta^2 with eta = alpha / (2 d)
        least /= 1 if classes == 2 else 9  # the basis may run at alpha / 3
        assert (losses[:-1] - losses[1:]).min() >= least - 1e-12
        return
    width = {2: 1.0, 3: 2 / 3}[classes]
    _, C = definition.groups({"g0": data.X["g0"], "g1": data.X["g1"]})
    start = definition.supremum("degree-2", C, data.hot, data.p)
    violations = np.array([start, *(record.violation for record in fit.history[:-1])])
    share = 1.0 if step is None else 0.75
    assert (losses[:-1] - losses[1:] - share * violations**2 / width).min() >= -1e-12


# ------------------------------------------------------------------------------- 20,000 rows, 28 overlapping groups
@pytest.fixture(scope="module")
def large() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return y, p and the 1 + 12 + 15 groups of six numbers: above and below zero, and pairs above."""
    rng = np.random.default_rng(0)
    n = 20_000
    X = rng.normal(size=(n, 6))
    truth = 1 / (1 + np.exp(-(0.9 * X[:, 0] - 0.7 * X[:, 1] * X[:, 2] + 0.8 * (X[:, 3] > 0.5))))
    y = (rng.random(n) < truth).astype(int)
    p = 1 / (1 + np.exp(-2.2 * 0.9 * X[:, 0]))
    pairs = [(X[:, i] > 0) & (X[:, j] > 0) for i in range(6) for j in range(i)]
    return y, p, np.column_stack([*(X > 0).T, *(X <= 0).T, *pairs]).astype(float)


@pytest.mark.parametrize(("solver", "most"), [("block", 5), ("worst", 100)])
@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_rounds_on_28_groups(large: tuple[np.ndarray, ...], solver: str, most: int, geometry: str) -> None:
    y, p, C = large
    assert C.shape[1] == 27  # and everyone
    fit = multicalibrate(y, p, C, subpopulations=lowcal.Memberships(), solver=solver, geometry=geometry, **RUNS)
    assert fit.status == "reached"
    assert 1 <= fit.n_updates <= most <= fit.bound
    everyone = np.column_stack([np.ones(len(y)), C])
    assert definition.supremum("degree-2", everyone, y, fit.predictor(p, C)) <= 0.003 + 1e-12


@pytest.mark.parametrize("solver", ["block", "worst"])
@pytest.mark.parametrize("step", [0.5, 0.1])
def test_shrinkage_keeps_its_bound(large: tuple[np.ndarray, ...], solver: str, step: float) -> None:
    y, p, C = (part[:4000] for part in large)
    options = {"subpopulations": lowcal.Memberships(), "solver": solver, "geometry": "euclidean", **RUNS}
    fit = multicalibrate(y, p, C, step=step, **options)
    assert fit.status == "reached"
    share = step * (2 - step)
    assert fit.n_updates <= fit.bound == int(definition.brier(y, p) / (share * 0.003**2))
    # the data-dependent bound of spec 4.3 is tighter
    drop = definition.brier(y, p) - fit.history[-1].brier
    assert fit.n_updates <= drop / (share * 0.003**2)
    # a smaller share takes more rounds
    line_search = multicalibrate(y, p, C, **options)
    assert fit.n_updates >= line_search.n_updates


def test_first_on_28_groups_takes_about_as_many_as_the_prototype(large: tuple[np.ndarray, ...]) -> None:
    """Spec 4.4 measured 72 updates at alpha = 0.01 with the largest violation first; the first one takes more."""
    y, p, C = large
    fit = multicalibrate(y, p, C, subpopulations=lowcal.Memberships(), solver="first", alpha=0.01)
    assert fit.status == "reached"
    assert 30 <= fit.n_updates <= 300
    assert fit.bound == 80_000
