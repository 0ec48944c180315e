"""Passes, fits, predictions and audits on a card, or on its twin in NumPy: those of memory, and without host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowcal
from card_worlds import World, card, processor, stand_in  # noqa: F401
from lowcal.data.errors import InvalidInput
from lowcal.kernels.simplex import project, softmax
from lowcal.notions.weights import Cell, Knots, LogOdds, Monomial, monomials
from lowcal.rows import START, Memory
from lowcal.rows.base import State
from lowcal.rows.card.reading import open_card, settle_on_card
from lowcal.rows.card.rows import Card, on_card
from lowcal.rows.grids import LinePoints, PlacedResiduals
from lowcal.rows.passes import (
    Ahead,
    Along,
    CellMoments,
    Clipped,
    Evidence,
    Hidden,
    Losses,
    Moments,
    Moved,
    Slopes,
    Tries,
)
from lowcal.rows.updates import Term, Update

N = 6_000
GROUPS = lowcal.Groups(n_bins=4)
KINDS = [(np.float64, 1e-9), (np.float32, 1e-6)]


def made(classes: int, kind: Any = np.float64) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Labels 2, 5, 8, .. of several classes, or 0 and 1, probabilities that are wrong in some groups, and columns."""
    rng = np.random.default_rng(classes)
    X = {f"c{j}": rng.integers(0, 4, N).astype(np.uint8) for j in range(2)}
    z = rng.normal(size=(N, classes))
    true = softmax(z + 0.4 * (X["c0"][:, None] - 1.5) * np.linspace(-1.0, 1.0, classes))
    y = (true.cumsum(axis=1) < rng.random((N, 1))).sum(axis=1).clip(0, classes - 1)
    p = softmax(1.5 * z).astype(kind)
    return (y, p[:, 1], X) if classes == 2 else (3 * y + 2, p, X)


def float64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


@pytest.fixture
def stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may not be brought into memory block by block."""
    monkeypatch.setattr(Card, "_shard", lambda *_: pytest.fail("A pass went through host memory."))


# --- passes -----------------------------------------------------------------------------------------------------


def homes(world: World, classes: int, weighted: bool, kind: Any = np.float64) -> tuple[Card, Memory, Any]:
    """The same rows on a card and in memory, and the families there."""
    y, p, X = made(classes, kind)
    weight = world.put(np.random.default_rng(7).uniform(0.5, 2.0, N)) if weighted else None
    rows, learner, _ = settle_on_card(
        GROUPS, open_card(world.put(y), world.put(p), world.put(X), weight), None, 0, True
    )
    near = rows._shard(0)
    return rows, Memory.of(near.rows, near.at(START), near.y, near.weight), tuple(learner.families)


def moved_state(families: Any, d: int, geometry: Any, weights: Any) -> tuple[State, tuple[Term, ...]]:
    """A state after an update of all families, and terms to go on with."""
    rng = np.random.default_rng(3)
    terms = tuple(
        Term(family, weights, rng.normal(0.0, 0.05, (len(family.names), len(weights), d))) for family in families
    )
    return START.then(Update(terms, geometry)), terms


def close(a: Any, b: Any, by: float) -> None:
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            close(x, y, by)
        return
    if isinstance(a, float | int | np.ndarray):
        assert np.abs(np.asarray(a, dtype=float) - np.asarray(b, dtype=float)).max(initial=0.0) < by
        return
    assert a == b


def weights_of(name: str, d: int) -> tuple[Any, ...]:
    knots = np.array([0.0, 0.25, 0.75]), np.array([0.1, 0.3, 0.0])
    return {
        "powers": monomials(d, 1),
        "scores": (Monomial(), *(LogOdds(a) for a in range(d))),
        "cells": tuple(Cell(0.5, tuple((k >> a) & 1 for a in range(d))) for k in range(2**d)),
        "knots": tuple(Knots(a, *knots) for a in range(d)),
    }[name]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("geometry", ["mirror", "euclidean"])
@pytest.mark.parametrize("name", ["powers", "scores", "cells", "knots"])
def test_passes_are_those_of_memory(card: World, classes, weighted, geometry, name):  # noqa: F811
    rows, memory, families = homes(card, classes, weighted)
    d = rows.d
    weights = weights_of(name, d)
    state, terms = moved_state(families, d, geometry, weights)
    passes: list[Any] = [
        Losses(START),
        Losses(state),
        Along(state, terms, geometry),
        Moments(state, families, monomials(d, 2)),
        CellMoments(state, families, 0.25),
        PlacedResiduals(state, families, LinePoints(64)),
        Slopes(START, state, terms, (0.0, 0.5, 2.0), 3.0),
        Evidence(START, state, families, monomials(d, 1), d > 1, not weighted),
    ]
    passes += [Evidence(START, state, families, weights, False, not weighted)] if name != "knots" else []
    passes += [Tries(state, terms, (0.5, 1.0, -2.0))] if d > 1 else []
    for one in passes:
        assert on_card(one, rows) is not None
        found, wanted = rows.run(one), memory.run(one)
        if isinstance(one, Along):
            found, wanted = found[:], wanted[:]
        close(tuple(found) if isinstance(found, tuple) else found, wanted, 1e-9)


def test_moved_rows_are_counted(card: World):  # noqa: F811
    rows, _, families = homes(card, 2, False)
    family = next(f for f in families if len(f.names) > 1)
    theta = np.zeros((len(family.names), 1, 1))
    theta[1] = 0.3
    state = START.then(Update((Term(family, (Monomial(),), theta),), "euclidean"))
    inside = int(rows._shard(0).design([family]).column(1).sum())
    assert 0 < inside < N
    assert rows.run(Moved(START, START)) == 0
    assert rows.run(Moved(START, state)) == inside


@pytest.mark.parametrize(("kind", "by"), [(np.float64, 1e-9), (np.float32, 1e-6)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bins_of_a_line_are_those_of_memory(card: World, kind, by, sign):  # noqa: F811
    rows, memory, families = homes(card, 2, True, kind)
    _, terms = moved_state(families, 1, "euclidean", (Monomial(), Monomial((0,))))
    ahead = rows.run(Along(START, terms, "euclidean"))
    one = Clipped(START, terms, Ahead(sign * 0.01, 0.02, ahead.most))
    found, wanted = rows.run(one).bins, memory.run(one).bins
    assert np.abs(found[:, :5].cumsum(axis=0) - wanted[:, :5].cumsum(axis=0)).max() < max(by, 1e-3 * (by > 1e-9))
    assert np.abs(found[:, :5].sum(axis=0) - wanted[:, :5].sum(axis=0)).max() < by
    full = np.isfinite(wanted[:, 5]) & np.isfinite(found[:, 5])
    assert full.sum() > 100
    if kind == np.float64:
        assert np.allclose(found[full, 5:], wanted[full, 5:], rtol=1e-9)
    hidden = np.zeros(len(found), dtype=bool)
    hidden[np.flatnonzero(full)[:40]] = True
    (line, where), (line_near, where_near) = (home.run(Hidden(one, hidden)) for home in (rows, memory))
    if kind == np.float64:
        assert (where == where_near).all()
        for a, b in zip(line, line_near, strict=True):
            assert np.abs(a - b).max() < by
    assert hidden[where].all()


@pytest.mark.parametrize("d", [2, 3, 7, 16])
def test_projection_and_softmax(card: World, d):  # noqa: F811
    from lowcal.kernels.card.cuda import Cuda
    from lowcal.kernels.card.formula import Formula, Inputs
    from lowcal.kernels.card.twin import Twin
    from lowcal.rows.card.coded import projection_lines, softmax_lines

    device = Twin("double") if card.xp is np else Cuda("double")
    v = np.random.default_rng(d).normal(0.0, 0.5, (1003, d)) * np.geomspace(0.1, 3.0, 1003)[:, None]
    v[:20] = v[:20].round(1)
    arrays = {f"a{j}": device.upload(np.ascontiguousarray(v[:, j])) for j in range(d)}
    for (lines, texts), wanted in (
        (projection_lines([f"a{j}" for j in range(d)]), project(v)),
        (softmax_lines([f"a{j}" for j in range(d)], device.kind), softmax(v)),
    ):
        found = device.download(device.columns(Formula(texts, lines), Inputs(len(v), arrays), np.float64))
        assert np.abs(found.T - wanted).max() < 1e-12


# --- fits -------------------------------------------------------------------------------------------------------


def fitted(world: World | None, classes: int, kind: Any, weighted: bool = False, **how: Any) -> Any:
    y, p, X = made(classes, kind)
    w = np.random.default_rng(7).uniform(0.5, 2.0, N) if weighted else None
    how = {"subpopulations": GROUPS, "alpha": 3e-3, "random_state": 0, **how}
    if world is None:
        fit = lowcal.multicalibrate(y, float64(p), X, sample_weight=w, **how)
        return fit, fit.predictor(float64(p), X)
    fit = lowcal.multicalibrate(
        world.put(y), world.put(p), world.put(X), sample_weight=None if w is None else world.put(w), **how
    )
    found = fit.predictor(world.put(p), world.put(X))
    assert (found.dtype, found.shape) == (p.dtype, p.shape)
    return fit, world.get(found)


@pytest.mark.usefixtures("stays")
@pytest.mark.parametrize(("kind", "by"), KINDS)
@pytest.mark.parametrize("geometry", ["mirror", "euclidean"])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "degree-3", "full-0.25"])
@pytest.mark.parametrize("classes", [2, 3])
def test_fits_are_those_of_memory(card: World, classes, notion, geometry, kind, by):  # noqa: F811
    how = {"notion": notion, "geometry": geometry}
    (near, wanted), (far, found) = fitted(None, classes, kind, **how), fitted(card, classes, kind, **how)
    assert (far.status, far.n_updates) == (near.status, near.n_updates)
    assert np.abs(found - wanted).max() < by


@pytest.mark.usefixtures("stays")
@pytest.mark.parametrize(("kind", "by"), [(np.float64, 1e-8), (np.float32, 1e-6)])
@pytest.mark.parametrize("classes", [2, 5])
def test_weighted_fits(card: World, classes, kind, by):  # noqa: F811
    (near, wanted), (far, found) = fitted(None, classes, kind, True), fitted(card, classes, kind, True)
    assert (far.status, far.n_updates) == (near.status, near.n_updates)
    assert np.abs(found - wanted).max() < by


@pytest.mark.usefixtures("stays")
@pytest.mark.parametrize("geometry", ["mirror", "euclidean"])
def test_smooth_fits_are_those_of_rows_on_disk(card: World, geometry, monkeypatch):  # noqa: F811
    monkeypatch.setattr("lowcal.rows.grids.POINTS", 1 << 8)
    y, p, X = made(2)
    how = {"notion": "smooth", "geometry": geometry, "subpopulations": GROUPS, "alpha": 5e-3, "random_state": 0}
    source = lambda: iter([{**X, "y": y, "p": p}])  # noqa: E731
    near = lowcal.multicalibrate("y", "p", source, memory=1, **how)
    far, found = fitted(card, 2, np.float64, **how)
    assert far.n_updates == near.n_updates
    assert np.abs(found - near.predictor(p, X)).max() < 1e-9


@pytest.mark.usefixtures("stays")
def test_knots_are_looked_up(card: World):  # noqa: F811
    how = {"notion": "smooth", "geometry": "euclidean", "alpha": 5e-3, "guard": False, "solver": "worst"}
    fit, found = fitted(card, 2, np.float64, **how)
    _, p, X = made(2)
    assert any(isinstance(u, Knots) for update in fit.predictor.updates for t in update.terms for u in t.weights)
    assert np.abs(found - fit.predictor(p, X)).max() < 1e-9


def test_labels_may_be_any_numbers_and_columns_may_be_named(card: World):  # noqa: F811
    y, p, X = made(3)
    how = {"subpopulations": lowcal.Groups(["c0", "c1"]), "alpha": 3e-3, "random_state": 0}
    near = lowcal.multicalibrate(y, p, X, **how)
    for labels in (y - 4, y.astype(np.float32), y * (1 << 40)):
        table = card.put({**X, "y": labels, **{f"p{a}": p[:, a] for a in range(3)}})
        names = ["p0", "p1", "p2"]
        fit = lowcal.multicalibrate("y", names, table, **how)
        assert list(fit.predictor.layout.classes or ()) == np.unique(labels).tolist()
        assert np.abs(card.get(fit.predictor(names, table)) - near.predictor(p, X)).max() < 1e-9


def test_rare_classes_are_found(card: World, monkeypatch):  # noqa: F811
    monkeypatch.setattr("lowcal.rows.card.inputs.SKETCHED", 8)
    y, p, X = made(3)
    y = np.where(np.arange(N) == 4_321, 8, np.where(y == 8, 2, y))
    fit = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), subpopulations=GROUPS, alpha=0.1)
    assert fit.predictor.layout.classes == (2, 5, 8)


# --- measures and audits ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stays")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("notion", ["degree-2", "full-0.5", "multiaccuracy"])
@pytest.mark.parametrize(("kind", "by"), [(np.float64, 1e-9), (np.float32, 1e-6)])
@pytest.mark.parametrize("classes", [2, 3])
def test_audits_are_those_of_memory(card: World, classes, kind, by, notion, weighted):  # noqa: F811
    y, p, X = made(classes, kind)
    w = np.random.default_rng(7).uniform(0.5, 2.0, N) if weighted else None
    how = {"subpopulations": GROUPS, "notion": notion}
    given = card.put(y), card.put(p), card.put(X)
    on = None if w is None else card.put(w)
    assert (
        np.abs(
            lowcal.measure(*given, sample_weight=on, **how).violation
            - lowcal.measure(y, float64(p), X, sample_weight=w, **how).violation
        ).max()
        < by
    )
    near = lowcal.audit(y, float64(p), X, sample_weight=w, random_state=0, **how)
    far = lowcal.audit(*given, sample_weight=on, random_state=0, **how)
    assert (far.verdict, far.p_value) == (near.verdict, near.p_value)
    assert abs(far.violation - near.violation) + abs(far.null_floor - near.null_floor) < by
    by_name = {one.subpopulation: one for one in near.findings}
    for one in far.findings:
        other = by_name[one.subpopulation]
        # a weight and its complement show the same violation of several classes, with other signs
        sizes = [[*sorted(map(abs, (each.lower, each.upper))), abs(each.violation)] for each in (one, other)]
        assert np.abs(np.subtract(*sizes)).max() < by


@pytest.mark.usefixtures("stays")
def test_smooth_audits(card: World):  # noqa: F811
    y, p, X = made(2)
    how = {"subpopulations": lowcal.Groups(["c0"]), "notion": "smooth", "random_state": 0}
    near, far = lowcal.audit(y, p, X, **how), lowcal.audit(card.put(y), card.put(p), card.put(X), **how)
    assert (far.verdict, far.p_value) == (near.verdict, near.p_value)
    assert abs(far.null_floor - near.null_floor) < 1e-9
    assert abs(far.violation - near.violation) < 1e-5  # seen at 65,537 points


@pytest.mark.integration
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2"])
@pytest.mark.parametrize("shared", [64, 99, 163, 227])
def test_audits_on_cards_of_any_size(processor: Any, shared: int, notion: str, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    """Draws of hundreds of groups, and memberships in bits, in as many kilobytes of shared memory as cards have."""
    cupy = stand_in(processor, monkeypatch)
    monkeypatch.setitem(cupy.cuda.Device().attributes, "MaxSharedMemoryPerBlockOptin", shared << 10)
    rng, (y, p, _) = np.random.default_rng(0), made(2, np.float32)
    cut = {f"c{j}": rng.integers(0, 200, N).astype(np.uint8) for j in range(2)}
    bits = {f"m{j}": (rng.random(N) < 0.3).astype(np.uint8) for j in range(11)}
    many = lowcal.Groups(n_bins=200, min_mass=5)
    for X, groups in ((cut, many), (bits, lowcal.Memberships())):
        how = {"subpopulations": groups, "notion": notion, "random_state": 0}
        near = lowcal.audit(y, p.astype(float), X, **how)
        far = lowcal.audit(cupy.asarray(y), cupy.asarray(p), {k: cupy.asarray(v) for k, v in X.items()}, **how)
        assert (far.verdict, far.p_value) == (near.verdict, near.p_value)
        assert abs(far.violation - near.violation) + abs(far.null_floor - near.null_floor) < 1e-6


# --- what is refused --------------------------------------------------------------------------------------------


def test_bad_rows_of_several_classes_are_named(card: World):  # noqa: F811
    y, p, X = made(3)
    for bad, said in (([0.5, 0.6, 0.2], "sums to 1.3"), ([1.5, -0.25, -0.25], "1.5|-0.25"), ([np.nan] * 3, "nan")):
        other = p.copy()
        other[77] = bad
        with pytest.raises(InvalidInput, match=f"(?s)77.*({said})|({said}).*77"):
            lowcal.multicalibrate(card.put(y), card.put(other), card.put(X), subpopulations=GROUPS)


def test_classes_that_do_not_fit(card: World):  # noqa: F811
    y, p, X = made(3)
    many = np.full((N, 17), 1 / 17)
    with pytest.raises(InvalidInput, match="17 classes, but on a card at most 16"):
        lowcal.multicalibrate(card.put(y), card.put(many), card.put(X), subpopulations=GROUPS)
    with pytest.raises(InvalidInput, match="class"):
        lowcal.multicalibrate(card.put(np.arange(N) % 5), card.put(p), card.put(X), subpopulations=GROUPS)
    fit = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), subpopulations=GROUPS, alpha=0.1)
    with pytest.raises(InvalidInput, match="p holds 2 classes, but the predictor has 3"):
        fit.predictor(card.put(p[:, 0]), card.put(X))
