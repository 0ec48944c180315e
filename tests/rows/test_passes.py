"""Passes against their definitions in plain NumPy, on rows in one piece and in several."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from lowcal import Groups, Memberships
from lowcal.data.frames import Table
from lowcal.kernels.clipped import BINS, sorted_step
from lowcal.notions.weights import Cell, LogOdds, Monomial, Weight, monomials
from lowcal.rows import START, Memory, State
from lowcal.rows.passes import (
    Ahead,
    Along,
    CellMoments,
    Clipped,
    Evidence,
    Gradient,
    Hidden,
    Losses,
    MassSums,
    Moments,
    Tries,
)
from lowcal.rows.updates import Term, Update
from lowcal.subpopulations.base import WeakLearner
from worlds import Shards

N = 500


def world(d: int, kind: str = "groups", is_even: bool = False) -> tuple[WeakLearner, Memory]:
    """Return a learner, and its rows with predictions, outcomes and weights."""
    rng = np.random.default_rng(d)
    columns = {"a": rng.integers(0, 4, N).astype(str), "b": rng.integers(0, 3, N).astype(str)}
    shares = {"v": rng.random(N), "w": rng.random(N) * (rng.random(N) < 0.5)}
    chosen = Groups(min_mass=0) if kind == "groups" else Memberships(min_mass=0)
    learner = chosen.prepare(Table.of(columns if kind == "groups" else shares))
    p = rng.random((N, 1)) if d == 1 else rng.dirichlet(np.ones(d), N)
    y = (rng.random((N, 1)) < p).astype(float) if d == 1 else np.eye(d)[rng.integers(0, d, N)]
    weight = np.ones(N) if is_even else rng.uniform(0.2, 2.0, N)
    return learner, Memory.of(learner.rows, p, y, weight / weight.sum())


def in_pieces(rows: Memory) -> list[Memory]:
    return [rows, Shards.cut(rows, 5), Shards.cut(rows, 40, threads=2)]


def after(learner: WeakLearner, d: int, geometry: Any = "mirror") -> State:
    """Return a state that differs from the start on all rows."""
    rng = np.random.default_rng(9)
    terms = [Term(f, (Monomial(),), rng.normal(0, 0.2, (len(f.names), 1, d))) for f in learner.families]
    return START.then(Update(tuple(terms), geometry))


def values(weights: tuple[Weight, ...], p: np.ndarray) -> np.ndarray:
    return np.column_stack([u(p) for u in weights])


@pytest.mark.parametrize("is_even", [False, True])
@pytest.mark.parametrize(("d", "kind"), list(product([1, 3, 9], ["groups", "shares"])))
def test_evidence_is_moments_curvatures_and_noise(d: int, kind: str, is_even: bool) -> None:
    """Features are those of the base; residuals and curvatures are those of now."""
    learner, rows = world(d, kind, is_even)
    now, families = after(learner, d), tuple(learner.families)
    weights: tuple[Weight, ...] = (Monomial(), LogOdds()) if d == 1 else monomials(d, 1)
    own = d == 9
    whole = rows.whole
    p, f, w, C = whole.at(START), whole.at(now), whole.weight[:, None], learner.design().dense()
    U, h = values(weights, p), w * np.maximum(f * (1 - f), 1e-3)
    every = [
        np.einsum("nc,ns,na->csa", C**power, U**power, each)
        for power, each in ((1, w * (whole.y - f)), (2, h), (2, w * h))
    ]
    labels = np.arange(d)
    if own:
        every = [np.stack([each[:, 0], each[:, 1 + labels, labels]], axis=1) for each in every]
    for cut in in_pieces(rows):
        seen = cut.run(Evidence(START, now, families, weights, own, is_even))
        for found, expected in zip(seen, every, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", ["groups", "shares"])
def test_evidence_of_cells_is_the_same_inside_each(kind: str) -> None:
    learner, rows = world(1, kind)
    now, whole = after(learner, 1), rows.whole
    cells = tuple(Cell(0.25, (k,)) for k in range(4))
    p, f, w, C = whole.at(START), whole.at(now), whole.weight[:, None], learner.design().dense()
    U, h = values(cells, p), w * np.maximum(f * (1 - f), 1e-3)
    for cut in in_pieces(rows):
        seen = cut.run(Evidence(START, now, tuple(learner.families), cells, False, False))
        for found, power, each in zip(seen, (1, 2, 2), (w * (whole.y - f), h, w * h), strict=True):
            np.testing.assert_allclose(found, np.einsum("nc,ns,na->csa", C**power, U, each), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["groups", "shares"])
@pytest.mark.parametrize("d", [1, 3])
def test_moments_and_masses_are_sums_over_rows(d: int, kind: str) -> None:
    learner, rows = world(d, kind)
    state, families, whole = after(learner, d, "euclidean"), tuple(learner.families), rows.whole
    p, w, C = whole.at(state), whole.weight[:, None], learner.design().dense()
    weights = monomials(d, 2)
    expected = np.einsum("nc,ns,na->csa", C, values(weights, p), w * (whole.y - p))
    for cut in in_pieces(rows):
        np.testing.assert_allclose(cut.run(Moments(state, families, weights)), expected, rtol=0, atol=1e-12)
        masses = cut.run(MassSums(families))
        np.testing.assert_allclose(masses, C.T @ np.column_stack([w, w * w]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [1, 3])
def test_moments_of_cells_are_those_of_the_cells_that_hold_a_row(d: int) -> None:
    learner, rows = world(d)
    state, whole = after(learner, d), rows.whole
    p, C = whole.at(state), learner.design().dense()
    for cut in in_pieces(rows):
        cells, g = cut.run(CellMoments(state, tuple(learner.families), 0.25))
        inside = np.column_stack([cell(p) for cell in cells])
        np.testing.assert_array_equal(inside.sum(axis=1), 1)
        assert (inside.sum(axis=0) > 0).all()
        rho = whole.weight[:, None] * (whole.y - p)
        np.testing.assert_allclose(g, np.einsum("nc,ns,na->csa", C, inside, rho), rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [1, 3])
def test_losses_are_means_and_sure_rows_are_counted(d: int) -> None:
    learner, rows = world(d)
    far = START.then(Update((Term(learner.member(1), (Monomial(),), np.eye(d)[[0]][:, None] * 3.0),)))
    whole = rows.whole
    for state, cut in product((START, far), in_pieces(rows)):
        p, y = whole.at(state), whole.y
        likely = p if d > 1 else np.column_stack([1 - p, p])
        own = (likely * (y if d > 1 else np.column_stack([1 - y, y]))).sum(axis=1)
        lost = cut.run(Losses(state))
        assert lost.brier == pytest.approx(whole.weight @ np.square(y - p).sum(axis=1), abs=1e-14)
        assert lost.log_loss == pytest.approx(whole.weight @ -np.log(np.maximum(own, 1e-9)), rel=1e-6)
        assert lost.sure == (0 if state is START else np.sum(learner.design().column(1) > 0))


def test_the_gradient_is_that_of_the_log_loss() -> None:
    learner, rows = world(1)
    theta, whole = np.random.default_rng(1).normal(0, 0.3, (len(learner.names), 2)), rows.whole
    p, C = whole.at(START)[:, 0], learner.design().dense()
    z = np.log(p / (1 - p))
    f = 1 / (1 + np.exp(-(z + C @ theta[:, 0] + C @ theta[:, 1] * z)))
    expected = C.T @ (np.column_stack([np.ones(N), z]) * (whole.weight * (whole.y[:, 0] - f))[:, None])
    for cut in in_pieces(rows):
        found = cut.run(Gradient(START, tuple(learner.families), theta))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("d", [1, 3])
def test_what_lies_ahead_is_slope_curvature_and_the_farthest_row(d: int, geometry: Any) -> None:
    learner, rows = world(d)
    update, whole = after(learner, d).update, rows.whole
    assert update is not None
    delta = sum(term(whole.at(START), term.family.design(learner.rows)) for term in update.terms)
    spread = np.abs(delta[:, 0]) if d == 1 else np.ptp(delta, axis=1)
    mean = delta.mean(axis=1, keepdims=True) if d > 1 else 0.0
    bend = np.square(delta - mean).sum(axis=1) if geometry == "euclidean" else spread**2 / 4
    for cut in in_pieces(rows):
        ahead = cut.run(Along(START, update.terms, geometry))
        assert ahead.slope == pytest.approx(whole.weight @ (delta * (whole.y - whole.at(START))).sum(axis=1))
        assert ahead.curvature == pytest.approx(whole.weight @ bend)
        assert ahead.most == np.abs(delta).max()


def test_tries_are_brier_scores_after_steps() -> None:
    learner, rows = world(3)
    update = after(learner, 3, "euclidean").update
    assert update is not None
    steps = (-1.0, 0.5, 2.0)
    states = [START.then(Update(tuple(term.scaled(eta) for term in update.terms))) for eta in steps]
    for cut in in_pieces(rows):
        expected = [cut.run(Losses(state)).brier for state in states]
        np.testing.assert_allclose(cut.run(Tries(START, update.terms, steps)), expected, rtol=0, atol=1e-13)


def test_rows_of_bins_come_in_their_order() -> None:
    learner, rows = world(1)
    update = after(learner, 1).update
    assert update is not None
    along = Clipped(START, update.terms, Ahead(1.0, 1.0, 1.0))
    (line, _), hidden = rows.run(Hidden(along, None)), np.arange(BINS) % 2 == 0
    some, where = rows.run(Hidden(along, hidden))
    assert 0 < len(some.f) < N
    assert hidden[where].all()
    for cut in in_pieces(rows):
        assert sorted_step(cut.run(Hidden(along, None))[0]) == sorted_step(line)
        again, places = cut.run(Hidden(along, hidden))
        np.testing.assert_array_equal(np.column_stack(again), np.column_stack(some))
        np.testing.assert_array_equal(places, where)
