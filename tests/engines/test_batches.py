"""Kernels for rows that come in batches: joint codes, and line searches that keep sums instead of rows."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import lowcal
from lowcal.engines import compiled_joint, joint, kernels, switch
from lowcal.engines.clipped import Bins, Line, best_step
from lowcal.engines.joint import Look, join_codes
from lowcal.engines.slopes import Slopes
from lowcal.frames import Table
from lowcal.subpopulations.batches import BatchEncoder

# --- joint codes ------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([np.uint8, np.uint16, np.uint32]))
@settings(deadline=None)
def test_joint_codes_are_sums_of_look_ups(seed: int, columns: int, kind: type[np.unsignedinteger[Any]]) -> None:
    """Some tables rise by a stride, on the numbers that occur, and wrap around."""
    rng = np.random.default_rng(seed)
    n, looks, expected = int(rng.integers(1, 50)), [], 0
    for _ in range(columns):
        size = int(rng.integers(1, 20))
        index = rng.integers(0, size, n).astype(rng.choice([np.uint8, np.int8, np.int32, np.int64]))
        stride, offset = int(rng.integers(0, 9)), int(rng.integers(-30, 30))
        rises = bool(rng.random() < 0.5)
        table = (stride * np.arange(size) + offset) % (1 << 8 * np.dtype(kind).itemsize) if rises else None
        table = rng.integers(0, 30, size) if table is None else table
        looks.append(Look(index, table.astype(kind), *((stride, offset) if rises else ())))
        expected = expected + table[index]
    found = join_codes(looks, n, np.dtype(kind))
    assert found.dtype == kind
    assert np.array_equal(found, expected % (1 << 8 * np.dtype(kind).itemsize))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_the_compiled_loop_agrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = rng.choice([np.uint8, np.uint16])
    a, b = (rng.integers(0, 9, 33).astype(rng.choice([np.uint8, np.int8])) for _ in range(2))
    tables = [rng.integers(0, 100, 9).astype(kind) for _ in range(2)]
    found, defined = np.empty(33, kind), np.empty(33, kind)
    compiled_joint.lay_pair(a, tables[0], b, tables[1], found)
    joint.lay_pair(a, tables[0], b, tables[1], defined)
    assert np.array_equal(found, defined)
    assert np.array_equal(found, [int(tables[0][i]) + int(tables[1][j]) for i, j in zip(a, b, strict=True)])


def test_many_codes_are_joined_by_the_compiled_loop_and_without_numba_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    looks = [Look(rng.integers(0, 5, 99).astype(np.uint8), rng.integers(0, 40, 5).astype(np.uint16)) for _ in range(3)]
    expected = sum(look.table[look.places] for look in looks)
    calls: list[str] = []
    monkeypatch.setattr(kernels, "COMPILE_FROM", 100)
    for name, module in (("compiled", compiled_joint), ("numpy", joint)):
        real = module.lay_pair
        monkeypatch.setattr(module, "lay_pair", lambda *given, name=name, real=real: calls.append(name) or real(*given))
    for missing in (False, True):
        switch.compiled.cache_clear()
        if missing:
            monkeypatch.setitem(sys.modules, "lowcal.engines.compiled_joint", None)
            monkeypatch.delattr("lowcal.engines.compiled_joint")
        assert np.array_equal(join_codes(looks, 99, np.dtype(np.uint16)), expected)
    switch.compiled.cache_clear()
    assert calls == ["compiled", "numpy"]


def test_kernels_are_chosen_by_the_whole_of_which_a_batch_is_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "COMPILE_FROM", 1000)
    assert not kernels.kernels_for(999).compiled
    with kernels.part_of(10, 1000):
        assert kernels.kernels_for(10).compiled
        assert not kernels.kernels_for(9).compiled
    assert not kernels.kernels_for(999).compiled


# --- batches are encoded as tables are --------------------------------------------------------------------------


LEARNED = 60


def column(kind: str, rng: np.random.Generator, n: int) -> Any:
    whole = rng.integers(-3, 9, n)
    texts = np.array(list("gfedcba"), dtype=object)[rng.integers(0, 7, n)]
    texts[rng.random(n) < 0.1] = None
    order = rng.permutation(7) if rng.random() < 0.5 else np.arange(7)
    return {
        "int8": lambda: whole.astype(np.int8),
        "uint16": lambda: (whole + 3).astype(np.uint16),
        "arrow int8": lambda: pa.array(whole.astype(np.int8), mask=rng.random(n) < 0.1 * rng.integers(0, 2)),
        # those that were learned from are 4 to 6
        "few": lambda: (4 + rng.integers(0, 3, n) - (0 if n == LEARNED else rng.integers(0, 4))).astype(np.uint8),
        "float": lambda: np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
        "objects": lambda: texts,
        "dictionary": lambda: pa.array(texts.tolist()).dictionary_encode(),
        "bytes": lambda: pa.DictionaryArray.from_arrays(
            pa.array(rng.integers(0, 7, n).astype(np.uint8)), pa.array([list("abcdefg")[k] for k in order])
        ),
        "numbers": lambda: pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, 3, n)), pa.array([5, 1, None])),
        "truth": lambda: pa.array(rng.random(n) < 0.5),
    }[kind]()


KINDS = ["few", "int8", "uint16", "arrow int8", "float", "objects", "dictionary", "bytes", "numbers", "truth"]


@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), st.integers(1, 2))
@settings(max_examples=60, deadline=None)
@example(0, KINDS, 2)
def test_batches_are_encoded_as_tables_are(seed: int, kinds: list[str], depth: int) -> None:
    """One encoder sees batches whose dictionaries, and whose values, differ from those it was learned from."""
    rng = np.random.default_rng(seed)
    learned = {f"{kind}{k}": _series(column(kind, rng, LEARNED)) for k, kind in enumerate(kinds)}
    encoder = lowcal.Intersections(depth=depth, n_bins=3, min_mass=2).prepare(learned).encoder
    encode = BatchEncoder(encoder)
    for _ in range(4):
        n = int(rng.integers(1, 40))
        batch = {name: column(kinds[k], rng, n) for k, name in enumerate(learned)}
        expected = encoder(Table.of({name: _series(values) for name, values in batch.items()}))
        found = encode(batch, n)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs)


def _series(values: Any) -> Any:
    return values if isinstance(values, np.ndarray) else pa.chunked_array([values])


# --- line searches ----------------------------------------------------------------------------------------------


def line(seed: int, n: int, size: float) -> Line:
    rng = np.random.default_rng(seed)
    f, weight = rng.random(n), rng.random(n)
    f[rng.random(n) < 0.1] = rng.integers(0, 2)
    delta = size * rng.normal(size=n) * (rng.random(n) < 0.8)
    y = (rng.random(n) < np.clip(f + 0.5 * delta / size, 0, 1)).astype(float)
    return Line(f, y, delta, weight / weight.sum())


def squared(one: Line, eta: float) -> float:
    return float(one.weight @ np.square(one.y - np.clip(one.f + eta * one.delta, 0.0, 1.0)))


def logarithmic(one: Line, eta: float) -> float:
    f = np.clip(one.f, 1e-9, 1 - 1e-9)
    score = np.log(f / (1 - f)) + eta * one.delta
    return float(one.weight @ (np.logaddexp(0.0, score) - one.y * score))


LINES = given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.sampled_from([1e-3, 0.1, 1.0, 30.0]))


@LINES
@settings(deadline=None)
def test_bins_never_lose_more_than_the_newton_step(seed: int, n: int, size: float) -> None:
    one = line(seed, n, size)
    slope = float(one.weight @ (one.delta * (one.y - one.f)))
    bend = float(one.weight @ np.square(one.delta))
    bins = Bins(abs(slope) / bend if bend > 0 and slope else 1.0)
    for start in range(0, n, 37):
        bins.add(one.take(np.arange(start, min(n, start + 37))))
    eta = bins.best()
    if slope <= 1e-15 or bend == 0:
        assert squared(one, eta) <= squared(one, 0.0) + 1e-15
        return
    assert squared(one, eta) <= squared(one, slope / bend) + 1e-12
    assert squared(one, eta) <= squared(one, 0.0) - slope**2 / bend + 1e-12
    exact = squared(one, best_step(one.f, one.y, one.delta, one.weight))
    assert squared(one, eta) >= exact - 1e-12


def test_the_newton_step_is_taken_where_a_bin_hides_the_best_one() -> None:
    """Both limits, 1 and 1.0002, lie in one bin, the minimum between them; 1 loses more than the Newton step."""
    one = Line(np.full(2, 0.5), np.array([1.0, 0.99995]), np.array([0.5, 0.4999]), np.full(2, 0.5))
    slope, bend = one.weight @ (one.delta * (one.y - one.f)), one.weight @ np.square(one.delta)
    bins = Bins(1.0)
    bins.add(one)
    assert bins.best() == pytest.approx(slope / bend, rel=1e-12)
    assert squared(one, bins.best()) < squared(one, 1.0) / 1.5


def test_bins_find_the_best_step_but_for_the_width_of_a_bin() -> None:
    for seed in range(20):
        one = line(seed, 20_000, 0.1)
        bins = Bins(1.0)
        bins.add(one)
        exact = best_step(one.f, one.y, one.delta, one.weight)
        lost = squared(one, bins.best()) - squared(one, exact)
        assert lost <= 1e-5 * (squared(one, 0.0) - squared(one, exact))


def test_without_a_way_down_the_step_is_zero() -> None:
    up = Line(np.array([0.5]), np.array([0.0]), np.array([0.25]), np.ones(1))
    still = up._replace(delta=np.zeros(1))
    for one in (up, still):
        for search in (Bins(1.0), Slopes(1.0)):
            search.add(one)
            assert search.best() == 0.0


@LINES
@settings(deadline=None)
def test_slopes_never_lose_more_than_the_newton_step(seed: int, n: int, size: float) -> None:
    one = line(seed, n, size)
    inside = np.clip(one.f, 1e-9, 1 - 1e-9)
    slope, bend = float(one.weight @ (one.delta * (one.y - inside))), float(one.weight @ np.square(one.delta)) / 4
    if slope <= 1e-12:
        return
    for guess in (0.01 * slope / bend, slope / bend, 100.0 * slope / bend):
        slopes = Slopes(guess)
        for start in range(0, n, 37):
            slopes.add(one.take(np.arange(start, min(n, start + 37))))
        eta = slopes.best()
        start_loss = logarithmic(one, 0.0)
        assert logarithmic(one, eta) <= start_loss - slope**2 / (2 * bend) + 1e-9 * (1 + start_loss)
        assert eta >= slope / bend * (1 - 1e-9)


@LINES
@settings(deadline=None)
def test_slopes_tell_how_much_the_loss_falls_at_least(seed: int, n: int, size: float) -> None:
    one = line(seed, n, size)
    slopes = Slopes(1.0 / size)
    slopes.add(one)
    if slopes.bend == 0.0:
        return
    for low, eta in enumerate(slopes.steps[:-1]):
        fallen = logarithmic(one, 0.0) - logarithmic(one, eta)
        assert slopes._drop(low, float(eta)) <= fallen + 1e-9 * (1 + abs(fallen))


def test_what_slopes_tell_is_nearly_all_where_the_loss_is_nearly_a_parabola() -> None:
    one = Line(np.full(2, 0.5), np.array([1.0, 0.0]), np.array([0.1, -0.05]), np.full(2, 0.5))
    slopes = Slopes(1.0)
    slopes.add(one)
    for low in (1, 3, 5):
        fallen = logarithmic(one, 0.0) - logarithmic(one, float(slopes.steps[low]))
        assert slopes._drop(low, float(slopes.steps[low])) == pytest.approx(fallen, rel=1e-3)


def test_slopes_find_the_best_step_nearly() -> None:
    for seed in range(20):
        one = line(seed, 5000, 1.0)
        exact = minimize_scalar(lambda eta, one=one: logarithmic(one, eta), bounds=(0, 20), method="bounded").x
        slopes = Slopes(1.1 * exact)
        slopes.add(one)
        gain = logarithmic(one, 0.0) - logarithmic(one, exact)
        assert logarithmic(one, slopes.best()) - logarithmic(one, exact) <= 0.01 * gain
