"""Smooth weights past memory: a bracket from residuals on a grid of predictions, which holds the exact value."""

from __future__ import annotations

import numpy as np
import pytest
from lowcal.datasets import make_miscalibrated

import lowcal
from lowcal import Groups, Intersections, Thresholds

CLASSES = [Groups(["a", "b"]), Intersections(["a", "b"]), Thresholds(["c"])]


def world(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(200, 1500))
    a, b = (rng.integers(0, k, n).astype(str) for k in (4, 3))
    p = rng.beta(*rng.uniform(0.5, 3.0, 2), n)
    y = (rng.random(n) < np.clip(p + 0.1 * np.sin(9 * p) * (a == "1"), 0, 1)).astype(int)
    return {"y": y, "p": p, "a": a, "b": b, "c": np.round(rng.normal(size=n)), "w": rng.exponential(size=n)}


@pytest.mark.parametrize("seed", range(50))
def test_the_bracket_holds_the_exact_value(seed: int) -> None:
    data, weight = world(seed), "w" if seed % 2 else None
    given = {"notion": "smooth", "subpopulations": CLASSES[seed % 3], "sample_weight": weight}
    exact, far = (lowcal.measure("y", "p", lambda: [data], **given, memory=memory) for memory in (None, 1))
    assert exact.names == far.names
    assert (far.suprema.value <= exact.violation + 1e-12).all()
    assert (exact.violation <= far.suprema.upper + 1e-12).all()
    assert (far.suprema.upper - far.suprema.value).max() <= 2e-5


def test_the_witness_attains_the_lower_end_on_the_rows() -> None:
    data = world(3)
    far = lowcal.measure("y", "p", lambda: [data], notion="smooth", subpopulations=Groups(["a"]), memory=1)
    for j, name in enumerate(far.names):
        inside = np.ones(len(data["p"])) if name == "everyone" else (data["a"] == name.removeprefix("a="))
        rho = inside * (data["y"] - data["p"]) / len(data["p"])
        attained = float((far.suprema.witness(j)(data["p"][:, None])[:, 0] * rho).sum())
        assert far.suprema.value[j] - 1e-12 <= attained <= far.suprema.upper[j] + 1e-12


def test_several_classes_are_refused_where_rows_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowcal.rows.disk.MOST_LOCAL", 10)
    data = world(0)
    three = {"y": data["y"] + 1, "p0": 0.2 + 0 * data["p"], "p1": 0.8 * data["p"], "a": data["a"]}
    three["p2"] = 1.0 - three["p0"] - three["p1"]
    names, given = ["p0", "p1", "p2"], {"notion": "smooth", "subpopulations": Groups(["a"]), "classes": [0, 1, 2]}
    with pytest.raises(lowcal.InvalidInput, match="do not fit into memory"):
        lowcal.measure("y", names, lambda: [three], **given, memory=1)


@pytest.mark.parametrize("options", [{}, {"geometry": "euclidean"}, {"solver": "worst", "max_updates": 4}], ids=str)
def test_a_fit_on_disk_reaches_what_one_in_memory_does(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directions come from a sample, violations from the grid; what the fit says holds for the exact value."""
    for module in ("blocks", "shrinkage"):
        monkeypatch.setattr(f"lowcal.solve.{module}.WITNESS_ROWS", 1500)
        monkeypatch.setattr(f"lowcal.solve.{module}.GRAM_ROWS", 1500)
    monkeypatch.setattr("lowcal.solve.shrinkage.LINE_ROWS", 1500)
    monkeypatch.setattr("lowcal.rows.disk.MOST_LOCAL", 1600)
    made = make_miscalibrated(2000, random_state=0)
    data = {"y": made.y, "p": made.p, **made.X}
    given = {"notion": "smooth", "subpopulations": Groups(list(made.X)), "alpha": 0.01, "guard": False, **options}
    near, far = (lowcal.multicalibrate("y", "p", lambda: [data], memory=memory, **given) for memory in (None, 1))
    exact = lowcal.measure(made.y, far.predictor(made.p, made.X), made.X, notion="smooth", subpopulations=Groups())
    assert far.violation - 1e-12 <= exact.largest <= far.upper + 1e-12
    assert far.upper - far.violation <= 2e-5
    assert far.status is near.status
    assert far.violation == pytest.approx(near.violation, abs=0.002)


def test_an_alpha_inside_the_bracket_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upper end must be within alpha for a fit to say that it is reached."""
    monkeypatch.setattr("lowcal.rows.grids.smooth_on_grid.__defaults__", (4,))
    data = world(3)
    given = {"notion": "smooth", "subpopulations": Groups(["a"]), "memory": 1}
    found = lowcal.measure("y", "p", lambda: [data], **given)
    assert (found.suprema.upper - found.suprema.value).max() > 0.01
    between = float(found.suprema.value.max() + found.suprema.upper.max()) / 2
    fit = lowcal.multicalibrate("y", "p", lambda: [data], alpha=between, guard=False, **given)
    assert fit.status == "undecided"
    assert fit.n_updates == 0
