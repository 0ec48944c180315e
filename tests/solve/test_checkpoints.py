"""Checkpoints: a fit that was cut, stopped or killed goes on from its updates and ends with the same bits."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

import lowcal
from lowcal import Groups, InvalidInput, Trees, multicalibrate
from lowcal.datasets import make_miscalibrated
from lowcal.subpopulations.growing import Forest, grow_forests

FITS = [
    {"alpha": 1e-4, "guard": False, "geometry": "euclidean"},
    {"alpha": 1e-4, "guard": False},
    {"alpha": 3e-3, "guard": False, "solver": "worst"},
    {"alpha": 5e-2, "guard": False, "solver": "first", "notion": "multiaccuracy"},
    {"notion": "degree-3"},
    {"alpha": 1e-3, "validation_fraction": 0.2, "random_state": 3},
]


def bits(fit: lowcal.Fit) -> str:
    """Return a fingerprint of a predictor."""
    return hashlib.sha256(json.dumps(fit.predictor.to_dict(), sort_keys=True).encode()).hexdigest()


def world(n_classes: int = 2) -> dict[str, object]:
    data = make_miscalibrated(1500, n_classes=n_classes, random_state=0)
    return {"y": data.y, "p": data.p, "X": data.X, "subpopulations": Groups()}


def far_world() -> dict[str, object]:
    """The same rows as a source that does not fit into memory."""
    data = make_miscalibrated(1500, random_state=0)
    table = {"y": data.y, "p": data.p, **data.X}
    parts = [{name: column[k : k + 400] for name, column in table.items()} for k in range(0, 1500, 400)]
    return {"y": "y", "p": "p", "X": lambda: iter(parts), "memory": 1}


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("options", FITS, ids=str)
def test_a_fit_that_was_cut_after_any_update_ends_with_the_same_bits(
    options: dict[str, object], n_classes: int, tmp_path: Path
) -> None:
    given = {**world(n_classes), **options}
    whole = multicalibrate(**given)
    for cut in sorted({1, max(1, min(20, whole.n_updates - 1))}):
        path = tmp_path / f"{cut}.json"
        multicalibrate(**given, checkpoint=path, callback=lambda record, cut=cut: record.n_updates >= cut)
        resumed = multicalibrate(**given, checkpoint=path, resume=True)
        assert bits(resumed) == bits(whole)
        assert resumed.status is whole.status
        assert resumed.history == whole.history


def test_steps_that_were_taken_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, path = {**world(), **FITS[1]}, tmp_path / "fit.json"
    whole = multicalibrate(**given, checkpoint=path)
    for name in ("logit_step", "block_terms"):
        monkeypatch.setattr(f"lowcal.solve.solvers.{name}", lambda *_, **__: pytest.fail("computed again"))
    assert bits(multicalibrate(**given, checkpoint=path, resume=True)) == bits(whole)


#: Fits of learned classes: nodes, boosted sums, a union, in both geometries.
LEARNED = {
    "nodes": {"subpopulations": Trees(2), "alpha": 2e-3, "max_updates": 8},
    "nodes, log odds": {"subpopulations": Trees(2), "alpha": 1e-4, "max_updates": 6},
    "worst": {"subpopulations": Trees(2), "alpha": 2e-2, "solver": "worst"},
    "first": {
        "subpopulations": Trees(2),
        "alpha": 2e-2,
        "solver": "first",
        "notion": "multiaccuracy",
        "max_updates": 8,
    },
    "sums": {"subpopulations": Trees(2, n_trees=3), "alpha": 1e-3, "max_updates": 6},
    "squares": {"subpopulations": Trees(2, n_trees=3, geometry="euclidean"), "alpha": 1e-3, "max_updates": 6},
    "guarded": {"subpopulations": Trees(2), "alpha": 1e-3, "guard": True, "random_state": 1},
    "union": {"subpopulations": Groups() + Trees(2) + Trees(1, n_trees=2), "alpha": 1e-3, "max_updates": 6},
}


@pytest.mark.parametrize("home", [world, far_world])
@pytest.mark.parametrize("kind", LEARNED)
def test_trees_that_were_grown_are_not_grown_again(
    kind: str, home: Callable[[], dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed fit grows only what the interrupted one had not grown yet, and ends with the same bits."""
    grown: list[object] = []

    def counted(*given: object) -> list[Forest]:
        grown.append(given)
        return grow_forests(*given)

    monkeypatch.setattr("lowcal.subpopulations.trees.grow_forests", counted)
    given, path, seen = {**home(), "guard": False, **LEARNED[kind]}, tmp_path / "fit.json", []
    whole = multicalibrate(**given, callback=lambda _: seen.append(len(grown)))
    total, cut = len(grown), max(1, whole.n_updates - 2)
    assert 0 < seen[cut - 1] < total
    stopped = multicalibrate(**given, checkpoint=path, callback=lambda record: record.n_updates >= cut)
    assert stopped.n_updates == cut
    grown.clear()
    resumed = multicalibrate(**given, checkpoint=path, resume=True)
    assert len(grown) == total - seen[cut - 1]
    assert bits(resumed) == bits(whole)
    assert resumed.history == whole.history
    assert lowcal.load(path).to_dict() == resumed.predictor.to_dict()


def test_a_checkpoint_is_a_saved_model(tmp_path: Path) -> None:
    given, path = {**world(), **FITS[0]}, tmp_path / "fit.json"
    fit = multicalibrate(**given, checkpoint=path)
    np.testing.assert_array_equal(lowcal.load(path)(given["p"], given["X"]), fit.predictor(given["p"], given["X"]))


def test_without_a_file_a_fit_begins_anew(tmp_path: Path) -> None:
    given, path = {**world(), **FITS[0]}, tmp_path / "fit.json"
    assert bits(multicalibrate(**given, checkpoint=path, resume=True)) == bits(multicalibrate(**given))
    assert path.exists()


def test_without_resume_an_old_checkpoint_is_replaced(tmp_path: Path) -> None:
    given, path = {**world(), **FITS[0]}, tmp_path / "fit.json"
    path.write_text("not a checkpoint")
    fit = multicalibrate(**given, checkpoint=path)
    assert len(lowcal.load(path)) == len(fit.predictor)


@pytest.mark.parametrize(
    "change", [{"alpha": 1e-3}, {"notion": "multiaccuracy"}, {"solver": "worst"}, "labels", "names"]
)
def test_the_checkpoint_of_another_fit_is_refused(change: object, tmp_path: Path) -> None:
    given, path = {**world(), **FITS[1]}, tmp_path / "fit.json"
    multicalibrate(**given, checkpoint=path)
    before = path.read_bytes()
    if change == "labels":
        given["y"] = 1 - np.asarray(given["y"])
    elif change == "names":
        given["X"] = {f"{name}_": column for name, column in given["X"].items()}
    else:
        given |= change
    with pytest.raises(InvalidInput, match=r"fit\.json is not a checkpoint of this fit.*resume=False"):
        multicalibrate(**given, checkpoint=path, resume=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: data.replace(b"0", b"1"), lambda _: b""]
)
def test_a_damaged_checkpoint_is_refused(damage: object, tmp_path: Path) -> None:
    given, path = {**world(), **FITS[1]}, tmp_path / "fit.json"
    multicalibrate(**given, checkpoint=path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput, match=r"The checkpoint .*fit\.json can't be read"):
        multicalibrate(**given, checkpoint=path, resume=True)


def test_resume_needs_a_path() -> None:
    with pytest.raises(InvalidInput, match="pass checkpoint=path"):
        multicalibrate(**world(), resume=True)


def test_a_checkpoint_that_cant_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(lowcal.LowcalError, match="can't be written"):
        multicalibrate(**world(), **FITS[1], checkpoint=tmp_path / "no folder" / "fit.json")


#: Fits that are killed: in memory and on disk, listed and learned.
KILLED: dict[str, Callable[[], dict[str, object]]] = {
    "groups": lambda: {**world(4), **FITS[0], "max_updates": 15},
    "worst": lambda: {**world(), **FITS[2]},
    "disk": lambda: {**far_world(), "subpopulations": Groups(), **FITS[2]},
    "nodes": lambda: {**world(), "subpopulations": Trees(2), "alpha": 2e-3, "guard": False, "max_updates": 8},
    "nodes on disk": lambda: {**far_world(), "subpopulations": Trees(2), **FITS[2], "max_updates": 15},
    "sums on disk": lambda: {
        **far_world(),
        "subpopulations": Trees(2, n_trees=3),
        "alpha": 1e-3,
        "guard": False,
        "max_updates": 6,
    },
}

SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from test_checkpoints import KILLED, bits
from lowcal import multicalibrate
given = KILLED[{name!r}]()
print("ready", flush=True)
fit = multicalibrate(**given, checkpoint={path!r}, resume=True, callback=lambda _: time.sleep(0.05))
print(bits(fit))
"""


def run(path: Path, name: str, limit: float | None) -> str | None:
    """Fit in a process of its own, killed some time after it begins; return the bits if it ended before."""
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), path=str(path), name=name)
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    try:
        return process.communicate(timeout=limit)[0].strip()
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
@pytest.mark.parametrize("name", KILLED)
def test_a_fit_killed_at_ten_moments_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """A fit that ends before it is killed begins anew; at least one kill must land between two updates."""
    path, rng, between = tmp_path / "fit.json", random.Random(name), 0
    whole = multicalibrate(**KILLED[name]())
    started = monotonic()
    assert run(path, name, None) == bits(whole)
    lasts = monotonic() - started
    path.unlink()
    for _ in range(10):
        found = run(path, name, rng.uniform(0.0, lasts / 2))
        assert found in (None, bits(whole))
        done = len(lowcal.load(path)) if path.exists() else 0
        between += found is None and 0 < done < whole.n_updates
        if found is not None or done == whole.n_updates:
            path.unlink()
    assert between > 0
    assert run(path, name, None) == bits(whole)
