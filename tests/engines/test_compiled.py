"""The compiled passes: they agree with the pure ones, come only when asked for, and may be missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcal.engines import compiled, line
from lowcal.engines.line import PURE, FloatArray, Method, aggregate, passes_for, solve_line

LIPS = (0.5, 1.0, 2.0, 4.0, 20.0)
METHODS: tuple[Method, ...] = ("auto", "stack", "dual")
KINDS = ("plain", "ties", "tails", "tiny", "zeros", "signs", "adversarial", "close")
COMPILED = passes_for(line.COMPILE_FROM)


@pytest.fixture
def forget() -> Iterator[None]:
    """Let the next problem look for numba again, and the one after this test too."""
    line._compiled.cache_clear()
    yield
    line._compiled.cache_clear()


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
    assert COMPILED.compiled
    assert not PURE.compiled
    assert passes_for(line.COMPILE_FROM - 1) is PURE


def test_any_layout_of_the_masses() -> None:
    v, r = problem(3, 200, "plain")
    both = np.stack([r, r], axis=1)
    assert solve_line(v, both[:, 0], passes=COMPILED)[0] == solve_line(v, r, passes=COMPILED)[0]


@pytest.mark.usefixtures("forget")
def test_without_numba_the_definition_solves_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    v, r = problem(0, line.COMPILE_FROM, "plain")
    best = solve_line(v, r)[0]
    line._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "lowcal.engines.compiled", None)  # importing it now fails
    monkeypatch.delattr("lowcal.engines.compiled")
    assert passes_for(10**9) is PURE
    assert solve_line(v, r)[0] == pytest.approx(best, rel=1e-12)
    R = np.stack([r, -r])
    assert line.solve_lines(v, R) == pytest.approx([best, best - r.sum()], rel=1e-9)


SCRIPT = """
import sys
import numpy as np
import lowcal
from lowcal.engines import line

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


def test_a_kernel_that_cannot_be_kept_is_compiled_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def njit(**options: bool) -> object:
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(compiled.numba, "njit", njit)
    assert compiled.compile_kernel(abs) is abs
    assert asked == [{"cache": True, "nogil": True}, {"nogil": True}]
