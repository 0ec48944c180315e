"""The compiled passes: they agree with the pure ones, come only when asked for, and may be missing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.event import Listener, install_listener

from lowcal.kernels import compiled, line, loops
from lowcal.kernels.line import PURE, FloatArray, Method, aggregate, passes_for, solve_line
from lowcal.kernels.loops import interrupts_wait

LIPS = (0.5, 1.0, 2.0, 4.0, 20.0)
METHODS: tuple[Method, ...] = ("auto", "stack", "dual")
KINDS = ("plain", "ties", "tails", "tiny", "zeros", "signs", "adversarial", "close")
COMPILED = passes_for(line.COMPILE_FROM)


@pytest.fixture
def forget() -> Iterator[None]:
    """Let the next problem look for numba again, and the one after this test too."""
    loops.compiled.cache_clear()
    yield
    loops.compiled.cache_clear()


def masses(rng: np.random.Generator, n: int, kind: str) -> FloatArray:
    r = rng.normal(size=n)
    if kind == "tails":
        return r * rng.pareto(0.8, n)
    if kind == "tiny":
        return r * 10.0 ** rng.integers(-300, 1, n)
    if kind == "zeros":
        return r * (rng.random(n) < 0.2)
    if kind == "signs":
        return rng.integers(-2, 3, n).astype(float)
    if kind == "adversarial":
        return np.where(np.arange(n) < n // 2, 1e-7, np.where(np.arange(n) % 2 == 0, -1.0, 1.0))
    return r


def problem(seed: int, n: int, kind: str) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    f = rng.random(n)
    if kind == "ties":
        f = f.round(1)
    if kind == "close":  # neighbouring floats
        f = 0.5 + f * 1e-15
    r = masses(rng, n, kind)
    return (np.linspace(0.0, 0.5, n), r) if kind == "adversarial" else aggregate(f, r)


problems = st.builds(problem, st.integers(0, 2**32 - 1), st.integers(1, 120), st.sampled_from(KINDS))


def check(points: tuple[FloatArray, FloatArray], lip: float, method: Method) -> None:
    """The same value to 1e-12 of the mass, and a weight of the class."""
    v, r = points
    pure = solve_line(v, r, lip, method=method, passes=PURE)[0]
    value, w = solve_line(v, r, lip, method=method, passes=COMPILED)
    assert value == pytest.approx(pure, rel=1e-12, abs=1e-12 * np.abs(r).sum())
    assert w.shape == v.shape
    assert np.all((w >= 0) & (w <= 1))
    assert np.all(np.abs(np.diff(w)) <= lip * np.diff(v) + 1e-14)
    assert value == pytest.approx(np.sum(r * w), rel=1e-14, abs=1e-300)


@given(problems, st.sampled_from(LIPS), st.sampled_from(METHODS))
@settings(deadline=None, max_examples=300)
def test_agrees_with_the_definition(points: tuple[FloatArray, FloatArray], lip: float, method: Method) -> None:
    check(points, lip, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_on_more_points(kind: str, method: Method) -> None:
    check(problem(7, 2_500, kind), 1.0, method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("r", [-2.0, 0.0, 3.0])
def test_one_point(r: float, method: Method) -> None:
    check((np.array([0.4]), np.array([r])), 1.0, method)


def test_numba_is_installed_where_this_is_tested() -> None:
    assert COMPILED.IS_COMPILED
    assert not PURE.IS_COMPILED
    assert passes_for(line.COMPILE_FROM - 1) is PURE


def test_any_layout_of_the_masses() -> None:
    v, r = problem(3, 200, "plain")
    both = np.stack([r, r], axis=1)
    assert solve_line(v, both[:, 0], passes=COMPILED)[0] == solve_line(v, r, passes=COMPILED)[0]


@pytest.mark.usefixtures("forget")
def test_without_numba_the_definition_solves_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    v, r = problem(0, line.COMPILE_FROM, "plain")
    best = solve_line(v, r)[0]
    loops.compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "lowcal.kernels.compiled", None)  # importing it now fails
    monkeypatch.delattr("lowcal.kernels.compiled")
    assert passes_for(10**9) is PURE
    assert solve_line(v, r)[0] == pytest.approx(best, rel=1e-12)
    R = np.stack([r, -r])
    assert line.solve_lines(v, R) == pytest.approx([best, best - r.sum()], rel=1e-9)


SCRIPT = """
import sys
import numpy as np
import lowcal
from lowcal.kernels import line

def measure(n):
    rng = np.random.default_rng(0)
    p = rng.random(n)
    y = rng.random(n) < p
    lowcal.measure(y, p, {"g": rng.integers(0, 3, n)}, notion="smooth")

assert "numba" not in sys.modules
measure(500)
assert "numba" not in sys.modules
measure(line.COMPILE_FROM)
assert "numba" in sys.modules
"""


def test_small_problems_do_not_import_numba() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


# --- kernels that are kept on disk -----------------------------------------------------------------------------


def new_kernel() -> Any:
    """Return a kernel that is not compiled yet, as a new process would have it."""
    return compiled.compile_kernel(compiled.add_fine.py_func)


def works(kernel: Any) -> bool:
    return bool(kernel(np.array([0.5, 0.75]), 0.0, 0.0) == (1.25, 0.0))


def hits(kernel: Any) -> int:
    return sum(kernel.stats.cache_hits.values())


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_kernel_without_a_place_on_disk_is_compiled_anyway(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("numba.core.caching.CacheImpl.__init__", refuse)
    assert works(new_kernel())
    assert not any(kept.iterdir())


def test_a_kernel_is_compiled_once_and_kept(kept: Path) -> None:
    first, second = new_kernel(), new_kernel()
    assert works(first)
    assert works(second)
    assert (hits(first), hits(second)) == (0, 1)


def test_a_change_of_any_file_of_the_kernels_compiles_them_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert works(new_kernel())
    monkeypatch.setattr(compiled, "SOURCES", [*compiled.SOURCES[:-1], 0])
    changed = new_kernel()
    assert works(changed)
    assert hits(changed) == 0
    files = list(Path(compiled.__file__).parent.glob("*.py"))
    assert len(compiled.SOURCES) == len(files)


@pytest.mark.parametrize("which", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"", lambda data: b"garbage" + data])
def test_a_damaged_file_costs_a_compilation_and_is_replaced(kept: Path, which: str, damage: Any) -> None:
    assert works(new_kernel())
    files = list(kept.rglob(which))
    assert files
    for path in files:
        path.write_bytes(damage(path.read_bytes()))
    again, after = new_kernel(), new_kernel()
    assert works(again)
    assert works(after)
    assert (hits(again), hits(after)) == (0, 1)


def test_a_file_that_could_not_be_written_is_not_mistaken_for_an_old_one(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert works(new_kernel())
    for path in kept.rglob("*.nbi"):
        path.unlink()  # the data file of an earlier version stays

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:  # numba writes the index, and then the data that it names
        patch.setattr("numba.core.caching.IndexDataCacheFile._save_data", full)
        assert works(new_kernel())
    later = new_kernel()
    assert works(later)
    assert hits(later) == 0


FIT = """
import sys
import numpy as np
import lowcal
from lowcal.kernels import loops

loops.COMPILE_FROM = 1000
rng = np.random.default_rng(0)
p = rng.random(2000)
y = (rng.random(2000) < 0.5 * p).astype(int)
X = {name: rng.integers(0, 4, 2000).astype("U1") for name in "abc"}

def fit():
    found = lowcal.multicalibrate(y, p, X, subpopulations=lowcal.Groups(), alpha=0.01)
    assert "numba" in sys.modules
    return found
"""

FULL_DISK = """
import resource

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # no file gets longer than this
assert fit().status == "reached"
"""

# numba calls this from C, which can't pass an exception on: it was lost, and the compiled code with it
INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from numba.core.codegen import CPUCodeLibrary

hook, interrupts = CPUCodeLibrary._object_compiled_hook.__func__, []

def interrupt(cls, *given):
    if not interrupts:
        interrupts.append(signal.raise_signal(signal.SIGINT))
    return hook(cls, *given)

CPUCodeLibrary._object_compiled_hook = classmethod(interrupt)
try:
    fit()
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("The interrupt was lost.")
assert interrupts
assert fit().status == "reached"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files, and signals, are those of POSIX")
@pytest.mark.parametrize("what", [FULL_DISK, INTERRUPTED], ids=["full disk", "interrupted"])
def test_a_fit_survives_what_happens_to_the_first_compilation(kept: Path, what: str) -> None:
    options: Any = {"capture_output": True, "text": True, "check": False}
    options["env"] = {**os.environ, "NUMBA_CACHE_DIR": str(kept)}
    done = subprocess.run([sys.executable, "-W", "error", "-c", FIT + what], **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Interrupts raise, even where the tests run in the background of a shell, which ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_until_a_kernel_is_compiled(kept: Path) -> None:
    class Interrupt(Listener):
        def on_start(self, _event: object) -> None:
            signal.raise_signal(signal.SIGINT)

        def on_end(self, _event: object) -> None:
            pass

    kernel = new_kernel()
    with install_listener("numba:compile", Interrupt()), pytest.raises(KeyboardInterrupt):
        works(kernel)
    assert len(kernel.signatures) == 1
    assert works(kernel)


@pytest.mark.usefixtures("interruptible")
def test_interrupts_wait_in_the_main_thread_and_where_there_is_a_handler() -> None:
    seen = []

    @interrupts_wait()
    def inner() -> None:
        signal.raise_signal(signal.SIGINT)
        seen.append("inner")

    @interrupts_wait()
    def outer() -> None:
        inner()
        seen.append("outer")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert seen == ["inner", "outer"]
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_wait():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    with ThreadPoolExecutor(1) as pool:  # where handlers can't be set
        assert pool.submit(interrupts_wait()(lambda: 1)).result() == 1
