"""Rows on disk: the fit of memory to the last bit, with any option, over many blocks; files that go, full disks."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowcal
from far_rows import COLUMNS, DATA, GROUPS, agree, arrow, cut, digest, fit, measure, rows, three_classes
from lowcal import persistence
from lowcal.data.batches import open_batches
from lowcal.data.errors import CannotWrite, FitInterrupted, LowcalError
from lowcal.data.progress import Passes
from lowcal.kernels.exact import BLOCK
from lowcal.rows import START, disk, reading
from lowcal.rows.base import REMEMBERED
from lowcal.rows.disk import Disk, Spill
from lowcal.rows.passes import Probed, Witnessed
from lowcal.solve import homes

N = len(DATA["y"])


# --- the same fit -------------------------------------------------------------------------------------------------

TREES, BOOSTED = lowcal.Trees(2, COLUMNS), lowcal.Trees(2, COLUMNS, n_trees=3, geometry="mirror")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"sample_weight": "w"},
    {"alpha": 0.01},
    {"notion": "multiaccuracy", "alpha": 0.003, "guard": False},
    {"notion": "degree-4", "geometry": "euclidean", "alpha": 0.004},
    {"notion": "full-0.25", "alpha": 0.01},
    {"solver": "worst", "alpha": 0.01, "sample_weight": "w"},
    {"solver": "first", "alpha": 0.02},
    {"per_person": 0.05},
    {"guard": False, "sample_weight": "w"},
    {"guard": 0.3},
    {"step": 0.9, "alpha": 0.003, "guard": False},
    {"validation_fraction": 0.2, "random_state": 1},
    {"validation_fraction": 0.3, "random_state": 1, "sample_weight": "w"},
    {"max_updates": 1, "alpha": 0.001},
    {"subpopulations": TREES, "sample_weight": "w"},
    {"subpopulations": TREES, "validation_fraction": 0.2, "random_state": 1},
    {"subpopulations": TREES, "notion": "full-0.25", "alpha": 0.01, "guard": False},
    {"subpopulations": TREES, "solver": "first", "alpha": 0.03},
    {"subpopulations": BOOSTED, "sample_weight": "w"},
    {"subpopulations": BOOSTED, "geometry": "euclidean", "notion": "multiaccuracy", "alpha": 0.004},
    {"subpopulations": GROUPS + TREES, "notion": "degree-3"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.filterwarnings("ignore:.*calibrated predictions are exactly 0 or 1")
def test_a_fit_on_disk_is_that_of_memory_to_the_last_bit(options: dict[str, Any]) -> None:
    far, near = fit(cut(arrow(), 331), **options), fit(DATA, None, **options)
    assert digest(far) == digest(near)
    assert near.predictor.updates
    assert (far.status, far.violation, far.upper, far.bound) == (near.status, near.violation, near.upper, near.bound)
    assert far.history == near.history
    assert far.start == near.start


def test_a_fit_says_of_all_rows_what_is_true_of_them() -> None:
    found = fit(cut(DATA, 400), sample_weight="w", alpha=0.002, guard=False, geometry="euclidean")
    assert found.status is lowcal.Status.REACHED
    data = {**DATA, "p": found.predictor("p", DATA)}
    after = measure(data, None, sample_weight="w")
    assert after.largest <= 0.002
    assert after.largest == pytest.approx(found.violation, abs=1e-12)


def test_an_audit_on_the_fitted_rows_warns() -> None:
    found = fit(cut(DATA, 777), alpha=0.003)
    calibrated, some = found.predictor("p", DATA), homes.sketch_rows(len(DATA["p"]))
    y = DATA["y"][some, None].astype(float)
    assert homes.was_fitted_on(len(calibrated), y, calibrated[some, None])


def test_the_predictor_can_be_saved_and_serves_single_rows(tmp_path: Path) -> None:
    predictor = fit(cut(DATA, 500)).predictor
    persistence.save(predictor, tmp_path / "model.json")
    calibrated = predictor("p", DATA)
    assert np.array_equal(persistence.load(tmp_path / "model.json")("p", DATA), calibrated)
    row = {name: DATA[name][5].item() for name in predictor.columns}
    assert predictor.one(DATA["p"][5], row) == pytest.approx(calibrated[5], abs=1e-12)


def test_a_callback_sees_every_update_and_stops() -> None:
    seen: list[lowcal.Record] = []

    def stop(record: lowcal.Record) -> bool:
        seen.append(record)
        return len(seen) == 3

    of = {"notion": "full-0.1", "alpha": 1e-4, "geometry": "euclidean", "guard": False}
    stopped = fit(cut(DATA, 1000), callback=stop, **of)
    assert (stopped.status, stopped.n_updates) == (lowcal.Status.STOPPED, 3)
    # what the callback is told is the violation that an update was made for
    assert [record.violation for record in seen[1:]] == [record.violation for record in stopped.history[:-1]]


def test_an_interrupt_keeps_the_updates_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    real, passes = Disk.run, []

    def run(self: Disk, one: Any) -> Any:
        passes.append(one)
        if len(passes) == 12:
            raise KeyboardInterrupt
        return real(self, one)

    monkeypatch.setattr(Disk, "run", run)
    with pytest.raises(FitInterrupted, match="Interrupted after") as caught:
        fit(cut(DATA, 1000), notion="full-0.1", alpha=1e-4, geometry="euclidean", guard=False)
    assert isinstance(caught.value.fit, lowcal.Fit)
    assert caught.value.fit.predictor.updates


def test_memberships_that_are_bits_in_some_blocks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "BLOCK", 500)
    share = np.where(np.arange(N) < N // 2, 1.0, 0.5)
    data = {**{name: DATA[name] for name in "yp"}, "flag": share * DATA["flag"], "old": share * (DATA["age"] > 45)}
    given = {"subpopulations": lowcal.Memberships(), "alpha": 0.001}
    assert digest(fit(cut(data, 250), **given)) == digest(fit(data, None, **given))


# --- many blocks --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> dict[str, np.ndarray]:
    """More rows than a block and than the sample hold."""
    data = rows(300_000)
    assert BLOCK < 300_000 > reading.SAMPLE_ROWS
    return data


@pytest.mark.parametrize(
    "options", [{}, {"sample_weight": "w", "validation_fraction": 0.2, "random_state": 0}], ids=str
)
def test_blocks_change_no_bit(options: dict[str, Any], many: dict[str, np.ndarray]) -> None:
    of = {"subpopulations": lowcal.Groups(["city", "age", "band"]), **options}
    near = digest(fit(many, None, **of))
    assert digest(fit(cut(many, 70_001), **of)) == near
    assert digest(fit(lambda: [arrow(many)], **of)) == near


@pytest.mark.parametrize("of", [{}, {"validation_fraction": 0.2, "random_state": 0}], ids=str)
@pytest.mark.parametrize("trees", [TREES, BOOSTED, GROUPS + BOOSTED], ids=["nodes", "sums", "union"])
def test_trees_find_the_same_in_many_blocks(trees: Any, of: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds too; log odds on the way through a forest are kept between passes."""
    near = fit(DATA, None, subpopulations=trees, sample_weight="w", **of)
    monkeypatch.setattr("lowcal.rows.disk.BLOCK", 400)
    assert near.predictor.updates
    assert digest(fit(cut(arrow(), 331), subpopulations=trees, sample_weight="w", **of)) == digest(near)


def test_trees_of_several_classes_are_those_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    data, p = three_classes(), ["p_a", "p_b", "p_c"]
    for trees in (lowcal.Trees(2, "city"), lowcal.Trees(2, "city", n_trees=2)):
        near = fit(data, None, p, subpopulations=trees, guard=False)
        with monkeypatch.context() as patch:
            patch.setattr("lowcal.rows.disk.BLOCK", 700)
            far = fit(cut(data, 400), 1, p, subpopulations=trees, guard=False)
        assert near.predictor.updates
        assert digest(far) == digest(near)


@pytest.mark.parametrize("trees", [TREES, BOOSTED], ids=["nodes", "sums"])
def test_trees_that_were_cut_short_go_on_to_the_same_bits(trees: Any, tmp_path: Path) -> None:
    of = {"subpopulations": trees, "alpha": 0.01, "guard": False}
    whole, path = fit(cut(DATA, 500), **of), tmp_path / "fit.json"
    assert fit(cut(DATA, 500), checkpoint=path, callback=lambda record: True, **of).n_updates == 1 < whole.n_updates
    assert digest(fit(cut(DATA, 700), checkpoint=path, resume=True, **of)) == digest(whole)


@pytest.mark.parametrize("solver", ["block", "worst", "first"])
@pytest.mark.parametrize("trees", [TREES, BOOSTED], ids=["nodes", "sums"])
def test_trees_look_at_a_block_at_a_time(trees: Any, solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So large are the residuals that they are shown, and the few rows on which residuals are compared."""
    sizes: list[int] = []
    for kind in (Probed, Witnessed):
        monkeypatch.setattr(kind, "__call__", lambda self, some, was=kind.__call__: note(sizes, was(self, some)))
    monkeypatch.setattr("lowcal.rows.disk.BLOCK", 400)
    monkeypatch.setattr("lowcal.subpopulations.trees.COMPARED", 300)
    of = {"subpopulations": trees, "notion": "full-0.25", "guard": False, "alpha": 0.005, "max_updates": 3}
    assert fit(cut(DATA, 500), solver=solver, **of).predictor.updates
    assert measure(cut(DATA, 500), subpopulations=trees).largest > 0.005
    assert set(sizes) >= {400, N % 400}
    assert max(sizes) == 400


def note(sizes: list[int], found: Any) -> Any:
    sizes.append(len(found))
    return found


def test_blocks_are_measured_together(many: dict[str, np.ndarray]) -> None:
    of = {"subpopulations": lowcal.Intersections(["city", "band", "flag"]), "sample_weight": "w"}
    agree(measure(cut(many, 100_000), **of), measure(many, None, **of))


def test_shares_in_one_block_and_bits_in_another(many: dict[str, np.ndarray]) -> None:
    C = (np.random.default_rng(1).random((300_000, 3)) < 0.4).astype(float)
    C[BLOCK + 5_000 :] *= 0.5
    data = {"y": many["y"], "p": many["p"], **{f"c{j}": C[:, j] for j in range(3)}}
    of = {"subpopulations": lowcal.Memberships()}
    assert digest(fit(cut(data, 50_000), **of)) == digest(fit(data, None, **of))


def test_blocks_of_several_classes() -> None:
    few = three_classes()
    data = {name: np.concatenate([column] * 90)[: BLOCK + 999] for name, column in few.items()}
    of = {"subpopulations": lowcal.Groups("city"), "p": ["p_a", "p_b", "p_c"]}
    assert digest(fit(cut(data, 100_000), **of)) == digest(fit(data, None, **of))


# --- temporary files ----------------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files; every file in it must be closed and gone in the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert open_files(tmp_path) == []


def open_files(folder: Path) -> list[str]:
    """Return the open files of this process in a folder, also those that have no name any more."""
    found: list[str] = []
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return [path for path in found if path.startswith(str(folder))]


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are listed in /proc only")


@needs_proc
def test_temporary_files_go(scratch: Path) -> None:
    seen: list[list[str]] = []

    def look(record: lowcal.Record) -> None:
        seen.append(open_files(scratch))

    fit(cut(DATA, 500), sample_weight="w", callback=look)
    assert seen
    assert all(seen)
    measure(cut(DATA, 500))


@needs_proc
@pytest.mark.usefixtures("scratch")
def test_temporary_files_go_after_an_error() -> None:
    def broken() -> Iterator[Any]:
        calls.append(1)
        yield from cut(DATA, 500)()
        if len(calls) == 3:
            raise ZeroDivisionError

    calls: list[int] = []
    with pytest.raises(ZeroDivisionError):
        fit(broken)

    def stop(record: lowcal.Record) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(cut(DATA, 500), callback=stop)


needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")


def full_disk(*given: Any, **more: Any) -> Any:
    raise OSError(28, os.strerror(28))


def full_file(**how: Any) -> Any:
    return open("/dev/full", "wb")


@pytest.mark.parametrize(
    ("n_files", "full"),
    [
        pytest.param(0, full_file, id="rows", marks=needs_full),
        pytest.param(1, full_file, id="predictions", marks=needs_full),
        pytest.param(0, full_disk, id="opening"),
    ],
)
def test_a_full_disk_is_told_in_one_sentence(
    n_files: int, full: Any, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows can be written to the first file, predictions that come later to the second can't, for instance."""
    opened = iter([tempfile.TemporaryFile] * n_files)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **how: next(opened, full)(**how))
    with pytest.raises(CannotWrite, match=rf"^The rows do not fit into memory, and .* in {scratch} ") as caught:
        fit(cut(DATA, 500), guard=False)
    said = str(caught.value)
    assert "(No space left on device)" in said
    assert "TMPDIR" in said
    assert isinstance(caught.value, LowcalError)
    assert said.count(". ") == 0


def test_a_file_that_was_cut_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Spill.close

    def close(self: Spill) -> None:
        real(self)
        self.file.file.truncate(100)

    monkeypatch.setattr(Spill, "close", close)
    with pytest.raises(OSError, match="cut short"):
        fit(cut(DATA, 500))


@needs_proc
def test_few_files_are_open_at_a_time(scratch: Path) -> None:
    """Of each fold of the guard, and of all rows, a file of rows and those of the last states."""
    most: list[int] = []

    def count(record: lowcal.Record) -> None:
        most.append(len(open_files(scratch)))

    fit(cut(DATA, 500), solver="worst", alpha=0.005, callback=count)
    assert len(most) > 5
    assert max(most) <= (1 + 2 * 5) * (1 + REMEMBERED)


def test_rows_by_their_numbers() -> None:
    roles = reading.Roles("y", ("p",), "w")
    disk, *_ = reading.on_disk(GROUPS, open_batches(cut(DATA, 500)), roles, None, 0, Passes(False))
    has_weight = DATA["w"] > 0
    weight, p = DATA["w"][has_weight], DATA["p"][has_weight]
    some = np.array([3, 700, len(p) - 1])
    found = disk.sample(some)
    assert np.array_equal(found.at(START)[:, 0], p[some])
    assert found.weight == pytest.approx(weight[some] / weight[some].sum(), rel=1e-12)


# --- progress -----------------------------------------------------------------------------------------------------


def test_passes_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    clock = iter(np.arange(0.0, 1e6, 0.7))
    monkeypatch.setattr("lowcal.data.progress.time.monotonic", lambda: float(next(clock)))
    fit(cut(DATA, 1000), alpha=0.005, progress=True)
    told = capsys.readouterr().err
    assert "lowcal: reading, " in told
    assert "lowcal: encoding, " in told
    assert " of 3,000 rows" in told
    fit(cut(DATA, 1000), alpha=0.005)
    assert capsys.readouterr().err == ""


def test_rows_without_weight_cost_no_bit():
    from lowcal.data.inputs import read_rows
    from lowcal.solve.homes import drop_weightless

    for n in range(4000, 4040):  # one more halving of the grid, one more division: seldom seen, but seen
        rng = np.random.default_rng(n)
        weight, p = rng.gamma(0.5, size=n) * (rng.random(n) < 0.6), rng.random(n)
        y, kept = (rng.random(n) < p).astype(int), weight > 0
        some, _ = drop_weightless(*read_rows(y, p, None, weight))
        alone, _ = read_rows(y[kept], p[kept], None, weight[kept])
        assert some.weight.tobytes() == alone.weight.tobytes()
