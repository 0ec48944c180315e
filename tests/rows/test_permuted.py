"""Rows in another order: without chance, a fit of few rows is the same to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowcal
from far_rows import digest
from lowcal import Groups, Intersections
from lowcal.datasets import make_miscalibrated
from worlds import CLASSES, people


def prints(given: dict[str, Any], **options: Any) -> set[tuple[int, float, str]]:
    """Fit rows in three orders; return the updates, the violations and the fingerprints."""
    n, found = len(given["y"]), set()
    for seed in (None, 1, 2):
        order = np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)
        X = {name: np.asarray(column)[order] for name, column in given["X"].items()}
        rest = {name: np.asarray(of)[order] for name, of in given.items() if name != "X"}
        fit = lowcal.multicalibrate(**rest, X=X, guard=False, **options)
        found.add((fit.n_updates, fit.violation, digest(fit)))
    return found


@pytest.mark.product
@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "degree-3", "full-0.1"])
@pytest.mark.parametrize("kind", CLASSES)
def test_rows_in_another_order_give_the_same_fit(kind: str, notion: str, d: int, geometry: str) -> None:
    """Weights are uneven where predictions differ; where these tie, other columns tell rows apart."""
    X, p, y, weight = people(300 if (notion, d) == ("full-0.1", 4) else 600, d)
    chosen, names = CLASSES[kind]
    label = y[:, 0].astype(int) if d == 1 else y.argmax(axis=1)
    given = {"y": label, "p": p[:, 0] if d == 1 else p, "X": {name: X[name] for name in names}}
    if geometry == "mirror":
        given["sample_weight"] = weight
    elif d == 1:
        given["p"] = given["p"].round(1)
    found = prints(given, subpopulations=chosen, notion=notion, geometry=geometry, alpha=0.002, max_updates=2)
    assert len(found) == 1
    assert next(iter(found))[0] > 0


@pytest.mark.parametrize("solver", ["first", "worst"])
def test_so_do_the_other_solvers(solver: str) -> None:
    data = make_miscalibrated(1000, random_state=0)
    given = {"y": data.y, "p": data.p, "X": data.X}
    assert len(prints(given, subpopulations=Groups(), solver=solver, alpha=0.01, max_updates=20)) == 1


def test_so_do_smooth_weights() -> None:
    data = make_miscalibrated(800, random_state=0)
    given = {"y": data.y, "p": np.round(data.p, 2), "X": data.X}
    assert len(prints(given, subpopulations=Groups(), notion="smooth", alpha=0.005, max_updates=3)) == 1


def test_the_guard_deals_rows_by_their_numbers() -> None:
    """So its verdict may change with their order; the same order gives the same fit."""
    data = make_miscalibrated(600, random_state=0)
    fits = [lowcal.multicalibrate(data.y, data.p, data.X, subpopulations=Intersections()) for _ in range(2)]
    assert digest(fits[0]) == digest(fits[1])
