"""Lemma 5.3: with the step alpha / (2l), Algorithm 1 ends within 8 l / alpha^2 updates; and the sharp constants."""

from __future__ import annotations

import numpy as np
import pytest

import definition
import lowcal
from lowcal.complexity import basis_width, iterations, start_potential
from worlds import multicalibrate


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_the_printed_bound_and_its_progress(classes: int, seed: int) -> None:
    """Every update lowers E||y - f||^2 by at least alpha^2 / (4l), so that 8 l / alpha^2 are never exceeded."""
    data = definition.world(120, classes, seed=seed)
    X = {"g0": data.X["g0"], "g1": data.X["g1"]}
    alpha, d = 0.05, 1 if classes == 2 else classes
    p = np.full(data.p.shape, 1.0 / classes)
    groups = lowcal.Groups(min_mass=0)
    fit = multicalibrate(data.y, p, X, subpopulations=groups, notion="multiaccuracy", alpha=alpha, solver="first")
    assert fit.status == "reached"
    assert 0 < fit.n_updates <= iterations("multiaccuracy", alpha, classes, constants="paper")
    losses = [definition.brier(data.hot, p), *(record.brier for record in fit.history)]
    assert min(-np.diff(losses)) >= alpha**2 / (4 * d) - 1e-12


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("start", ["uniform", "any"])
def test_the_sharp_bound_with_the_sharp_step(start: str, seed: int) -> None:
    """Binary: a step of alpha gains alpha^2 when the search is exact; 1/(4 alpha^2) or 1/alpha^2 updates."""
    data = definition.world(150, 2, seed=seed)
    rng = np.random.default_rng(seed)
    p = np.full(150, 0.5) if start == "uniform" else 1.0 - np.clip(data.y + 0.2 * rng.random(150), 0, 1)
    X = {"g0": data.X["g0"], "g1": data.X["g1"]}
    groups = lowcal.Groups(min_mass=0)
    fit = multicalibrate(data.y, p, X, subpopulations=groups, alpha=0.04, solver="first", step=0.04)
    assert fit.status == "reached"
    assert fit.n_updates <= iterations("degree-2", 0.04, start=start)
    losses = [definition.brier(data.y, p), *(record.brier for record in fit.history)]
    assert losses[0] <= start_potential(1, start) + 1e-12
    if len(losses) > 1:
        assert min(-np.diff(losses)) >= 0.04**2 / basis_width(1) - 1e-12


def test_the_bound_is_nearly_attained() -> None:
    """One group, labels all 1, the start 1/2: each update of size alpha moves the mean by alpha."""
    n, alpha = 50, 0.02
    y = np.r_[np.ones(n), 0]
    weight = np.r_[np.ones(n), 1e-12]
    fit = multicalibrate(
        y,
        np.full(n + 1, 0.5),
        {"c": np.zeros(n + 1, dtype=int)},
        subpopulations=lowcal.Groups(min_mass=0),
        notion="multiaccuracy",
        alpha=alpha,
        solver="first",
        step=alpha,
        sample_weight=weight,
    )
    # from 0.5 to 1 - alpha: (0.5 - alpha) / alpha updates, within the bound 1 / (4 alpha^2)
    assert fit.n_updates == pytest.approx((0.5 - alpha) / alpha, abs=1)
    assert fit.n_updates <= iterations("multiaccuracy", alpha)
