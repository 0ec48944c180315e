"""Proposition 1 (prop:inclusions): every inclusion of the hierarchy, with every set of constants, on random worlds."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import definition
import hierarchy_worlds as worlds
from lowcal.hierarchy import implied_alpha

WIDTH = {"full-0.5": 2, "full-0.25": 4, "full-0.1": 10}
HAVE = ["multiaccuracy", "degree-1", "degree-2", "degree-3", "degree-5", "smooth", *WIDTH]
WANT = [*HAVE, "degree-4"]


@cache
def batch(d: int) -> worlds.Worlds:
    return worlds.draw(600, 3, d, seed=d)


@cache
def suprema(notion: str, d: int) -> np.ndarray:
    """Return the supremum of every world; full means a single cell."""
    w = batch(d)
    if notion == "multiaccuracy":
        return worlds.multiaccuracy(w)
    if notion == "smooth":
        return worlds.smooth(w)
    if notion in WIDTH:
        return worlds.full_cell(w, WIDTH[notion])
    return worlds.degree(w, int(notion[-1]))


def exact(notion: str, d: int) -> bool:
    return d == 1 or not notion.startswith("degree") or notion <= "degree-2"


@pytest.mark.parametrize("classes", [2, 3, 4, 5])
@pytest.mark.parametrize("constants", ["sharp", "best"])
def test_what_is_implied_holds(classes: int, constants: str) -> None:
    """want <= implied_alpha(have) in every world, for every pair of notions between which there is a theorem."""
    d = 1 if classes == 2 else classes
    finite = 0
    for have in (name for name in HAVE if exact(name, d)):
        for want in (name for name in WANT if exact(name, d)):
            bound = [implied_alpha(have, want, a, classes, constants=constants) for a in suprema(have, d)[:100]]
            finite += np.isfinite(bound).all()
            assert (suprema(want, d)[:100] <= np.array(bound) + 1e-12).all(), (have, want)
    assert finite >= 25


def test_what_the_paper_prints_holds_for_two_labels() -> None:
    """MC_k((k - 1) a) contains MC^s(a) contains MC^f_delta(a delta - delta^2), and MA = MC_1."""
    smooth = suprema("smooth", 1)
    for k in (2, 3, 4, 5):
        assert (suprema(f"degree-{k}", 1) <= (k - 1) * smooth + 1e-12).all()
    for name, k in WIDTH.items():
        assert (smooth <= k * suprema(name, 1) + 1 / k + 1e-12).all()
    np.testing.assert_allclose(suprema("multiaccuracy", 1), suprema("degree-1", 1), atol=1e-12)


def test_the_occupied_cells_and_the_whole_class_of_cells_are_enough() -> None:
    """per_cell=False reads alpha as the supremum over all cells at once, which only cells that hold a point add to."""
    for classes in (2, 3, 5):
        d = 1 if classes == 2 else classes
        w = batch(d)
        for name, k in WIDTH.items():
            many, single, whole = worlds.occupied(w, k), worlds.full_cell(w, k), worlds.full_class(w, k)
            for want in ("multiaccuracy", "degree-1", "degree-2", "smooth"):
                for i in range(100):
                    half = 1 if want == "multiaccuracy" else max(1, d // 2)
                    by_cell = implied_alpha(name, want, half * many[i] * single[i], classes, per_cell=False)
                    at_once = implied_alpha(name, want, whole[i], classes, per_cell=False)
                    assert suprema(want, d)[i] <= min(by_cell, at_once) + 1e-12
                    if want != "multiaccuracy":
                        assert at_once <= by_cell + 1e-12


@pytest.mark.parametrize("d", [1, 3])
def test_the_enumerated_suprema_are_those_of_linear_programs(d: int) -> None:
    """The worlds' own arithmetic against the definitions."""
    w = batch(d)
    for name in ("multiaccuracy", "degree-1", "degree-2", "smooth"):
        for i in range(0, 600, 40):
            assert suprema(name, d)[i] == pytest.approx(definition.class_supremum(name, *w.one(i)), abs=1e-10)
    for name, k in WIDTH.items():
        for i in range(0, 600, 40):
            expected = definition.class_supremum(name, *w.one(i))
            assert worlds.full_class(w, k)[i] == pytest.approx(expected, abs=1e-12)
