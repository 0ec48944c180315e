"""Smooth weights past memory: a bracket from residuals at few places, which holds the exact value."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lowcal
from lowcal import Groups, Intersections, Thresholds
from lowcal.datasets import make_miscalibrated
from lowcal.kernels.reference import Matrix
from lowcal.notions import Smooth
from lowcal.rows import START, Memory
from lowcal.rows.grids import smooth_suprema
from lowcal.subpopulations.memberships import Members
from worlds import Shards

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


def several(seed: int, least: int = 60, most: int = 200) -> dict[str, np.ndarray]:
    """Rows of 3, 4 or 5 classes; every second time many predictions are equal."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(least, most)), 3 + seed % 3
    p = rng.dirichlet(rng.uniform(0.4, 3.0, d), n)
    p = np.maximum(p.round(1), 1e-6) if seed % 2 else p
    p /= p.sum(axis=1, keepdims=True)
    truth = p ** rng.uniform(0.6, 1.6)
    y = (rng.random((n, 1)) * truth.sum(axis=1, keepdims=True) > truth.cumsum(axis=1)).sum(axis=1).clip(0, d - 1)
    a = rng.integers(0, 3, n).astype(str)
    return {"y": y, **{f"p{k}": p[:, k] for k in range(d)}, "a": a, "w": rng.exponential(size=n)}


def names_of(data: dict[str, np.ndarray]) -> list[str]:
    return [name for name in data if name.startswith("p")]


def of_several(seed: int) -> dict[str, object]:
    d = 3 + seed % 3
    weight = "w" if seed % 4 < 2 else None
    return {"notion": "smooth", "subpopulations": Groups(["a"]), "classes": range(d), "sample_weight": weight}


def past_memory(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """Let a few rows be too many, and few cells stand for them."""
    monkeypatch.setattr("lowcal.rows.grids.MOST_LOCAL", 10)
    monkeypatch.setattr("lowcal.rows.grids.CELLS", cells)


@pytest.mark.parametrize("seed", range(24))
def test_the_bracket_of_several_classes_holds_the_exact_value(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are solved exactly in memory; the more cells, the narrower the bracket."""
    data, given = several(seed), of_several(seed)
    exact = lowcal.measure("y", names_of(data), lambda: [data], **given).suprema
    np.testing.assert_array_equal(exact.value, exact.upper)
    widths = []
    for cells in (3, 30, 100):
        past_memory(monkeypatch, cells)
        far = lowcal.measure("y", names_of(data), lambda: [data], **given, memory=1).suprema
        assert (far.value <= exact.value + 1e-12).all()
        assert (exact.value <= far.upper + 1e-12).all()
        widths.append(float((far.upper - far.value).max()))
    assert widths[0] > widths[1] > widths[2] or widths[2] < 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_many_rows_in_memory_have_the_same_bracket(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, given = several(seed), of_several(seed)
    past_memory(monkeypatch, 50)
    far, near = (lowcal.measure("y", names_of(data), lambda: [data], **given, memory=one).suprema for one in (1, None))
    assert far.value.tolist() == near.value.tolist()
    assert far.upper.tolist() == near.upper.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_cells_of_one_prediction_each_cost_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, given = several(seed), of_several(seed)
    near = lowcal.measure("y", names_of(data), lambda: [data], **given).suprema
    past_memory(monkeypatch, 1000)
    far = lowcal.measure("y", names_of(data), lambda: [data], **given, memory=1).suprema
    assert far.upper == pytest.approx(near.upper, abs=1e-9)
    assert far.value == pytest.approx(near.value, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_witness_of_several_classes_attains_the_lower_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, given = several(seed), of_several(seed)
    past_memory(monkeypatch, 100)
    far = lowcal.measure("y", names_of(data), lambda: [data], **given, memory=1)
    p, weight = (
        np.column_stack([data[name] for name in names_of(data)]),
        data["w"] if seed % 4 < 2 else 1 + 0 * data["w"],
    )
    rho = (np.eye(p.shape[1])[data["y"]] - p) * (weight / weight.sum())[:, None]
    for j, name in enumerate(far.names):
        inside = np.ones(len(p)) if name == "everyone" else (data["a"] == name.removeprefix("a="))
        attained = float((far.suprema.witness(j)(p) * rho * inside[:, None]).sum())
        assert far.suprema.value[j] - 1e-12 <= attained <= far.suprema.upper[j] + 1e-12


def members(seed: int) -> tuple[Memory, Members]:
    """Rows of several classes in memory, and memberships: shares, and those with signs."""
    data, rng = several(seed), np.random.default_rng(seed)
    p = np.column_stack([data[name] for name in names_of(data)])
    C = np.column_stack([rng.random(len(p)), rng.uniform(-1.0, 1.0, (len(p), 2))])
    return Memory.of(C, p, np.eye(p.shape[1])[data["y"]], data["w"] / data["w"].sum()), Members(
        ("a", "b", "c"), (0, 1, 2)
    )


@pytest.mark.parametrize("seed", range(6))
def test_memberships_with_signs_have_a_bracket_too(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    past_memory(monkeypatch, 60)
    rows, family = members(seed)
    p, whole = rows.whole.at(START), rows.whole
    exact = Smooth().suprema(p, whole.weight[:, None] * (whole.y - p), Matrix(whole.rows))
    found = smooth_suprema(rows, START, [family])
    assert (found.value <= exact.value + 1e-12).all()
    assert (exact.value <= found.upper + 1e-12).all()


@pytest.mark.parametrize("cuts", [(3, 1), (40, 2)])
def test_shards_in_memory_give_the_same_bracket(cuts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    past_memory(monkeypatch, 50)
    rows, family = members(2)
    whole, shards = (smooth_suprema(one, START, [family]) for one in (rows, Shards.cut(rows, *cuts)))
    assert whole.upper.tolist() == shards.upper.tolist()
    assert whole.value.tolist() == shards.value.tolist()


def spelled(fit: lowcal.Fit) -> tuple[object, ...]:
    """Return all that a fit says, to the last bit."""
    return json.dumps(fit.predictor.to_dict()), fit.violation.hex(), fit.upper.hex(), fit.status, fit.history


#: Rows in memory and on disk; the shards of the latter are blocks of this many rows.
HOMES: list[int | None] = [None, 1 << 18, 97, 500]


@pytest.mark.parametrize("options", [{}, {"geometry": "euclidean"}, {"solver": "worst", "max_updates": 3}], ids=str)
def test_a_fit_of_several_classes_is_the_same_wherever_rows_are(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says "reached" only where the upper end of the bracket is at most alpha, and the exact value with it."""
    made = make_miscalibrated(1500, n_classes=3, random_state=0)
    data = {"y": made.y, **{f"p{k}": made.p[:, k] for k in range(3)}, "g0": made.X["g0"]}
    given = {"notion": "smooth", "subpopulations": Groups(["g0"]), "alpha": 0.06, "guard": False, **options}
    past_memory(monkeypatch, 300)
    fits = []
    for block in HOMES:
        monkeypatch.setattr("lowcal.rows.disk.BLOCK", block or 1 << 18)
        memory = None if block is None else 1
        fits.append(lowcal.multicalibrate("y", ["p0", "p1", "p2"], lambda: [data], memory=memory, **given))
    assert {spelled(fit)[:4] for fit in fits} == {spelled(fits[0])[:4]}
    assert all(fit.history == fits[0].history for fit in fits)
    assert (fits[0].status == "reached") == (fits[0].upper <= 0.06)
    assert options.get("max_updates") or fits[0].status == "reached"
    monkeypatch.undo()
    found = lowcal.measure(
        made.y, fits[0].predictor(made.p, made.X), made.X, **{k: given[k] for k in ("notion", "subpopulations")}
    )
    assert found.suprema.value.max() <= fits[0].upper + 1e-12
    assert fits[0].violation <= found.suprema.upper.max() + 1e-12


def test_an_alpha_inside_the_bracket_of_several_classes_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    past_memory(monkeypatch, 30)
    data, given = several(0, 600, 700), of_several(0)
    found = lowcal.measure("y", names_of(data), lambda: [data], **given, memory=1).suprema
    assert found.upper.max() > 1.2 * found.value.max()
    fit = lowcal.multicalibrate(
        "y", names_of(data), lambda: [data], alpha=1.1 * float(found.value.max()), guard=False, memory=1, **given
    )
    assert fit.status == "undecided"
    assert fit.n_updates == 0
    assert fit.violation <= fit.alpha < fit.upper


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
    monkeypatch.setattr("lowcal.rows.grids.POINTS", 4)
    data = world(3)
    given = {"notion": "smooth", "subpopulations": Groups(["a"]), "memory": 1}
    found = lowcal.measure("y", "p", lambda: [data], **given)
    assert (found.suprema.upper - found.suprema.value).max() > 0.01
    between = float(found.suprema.value.max() + found.suprema.upper.max()) / 2
    fit = lowcal.multicalibrate("y", "p", lambda: [data], alpha=between, guard=False, **given)
    assert fit.status == "undecided"
    assert fit.n_updates == 0
