"""Kernels for rows that come in batches: joint codes, and line searches that keep sums instead of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import lowcal
from lowcal.data.frames import Table
from lowcal.kernels import loops
from lowcal.kernels.clipped import BINS, Clipping, Line, binned_step, bins_of, sorted_step
from lowcal.kernels.exact import Grid
from lowcal.rows import START
from lowcal.rows.passes import Along, Slopes
from lowcal.solve.blocks import line_search
from lowcal.subpopulations.base import encode_batch
from worlds import Shards, along


def test_kernels_are_chosen_by_the_whole_of_which_a_batch_is_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "COMPILE_FROM", 1000)
    assert not loops.kernels_for(999).IS_COMPILED
    with loops.part_of(10, 1000):
        assert loops.kernels_for(10).IS_COMPILED
        assert not loops.kernels_for(9).IS_COMPILED
    assert not loops.kernels_for(999).IS_COMPILED


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
    for _ in range(4):
        n = int(rng.integers(1, 40))
        batch = {name: column(kinds[k], rng, n) for k, name in enumerate(learned)}
        expected = encoder(Table.of({name: _series(values) for name, values in batch.items()}))
        found = encode_batch(encoder, batch)
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


def binned(one: Line, scale: float, size: int = 37) -> float:
    """Return the best step from bins filled in two parts, a few rows at a time."""
    grid = Grid.of(np.array([*(np.abs(one.delta).max(initial=0.0) ** np.array([2, 1])), 1.0, 1.0, 1.0]), len(one.f))
    each = [Clipping(scale, grid), Clipping(scale, grid)]
    for k, start in enumerate(range(0, len(one.f), size)):
        each[k % 2].add(one.take(slice(start, start + size)))
    where = bins_of(one, scale)

    def fetch(hidden: np.ndarray) -> tuple[Line, np.ndarray]:
        rows = np.flatnonzero(np.append(hidden, False)[where])
        return one.take(rows), where[rows]

    return binned_step(each[1] + each[0], fetch)


LINES = given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.sampled_from([1e-3, 0.1, 1.0, 30.0]))


@LINES
@settings(deadline=None)
def test_bins_find_the_best_step_and_never_lose_more_than_the_newton_step(seed: int, n: int, size: float) -> None:
    one = line(seed, n, size)
    slope = float(one.weight @ (one.delta * (one.y - one.f)))
    bend = float(one.weight @ np.square(one.delta))
    eta = binned(one, abs(slope) / bend if bend > 0 and slope else 1.0)
    if slope > 1e-15 and bend > 0:
        assert squared(one, eta) <= squared(one, 0.0) - slope**2 / bend + 1e-12
    assert squared(one, eta) == pytest.approx(squared(one, sorted_step(one)), abs=1e-12)


def test_a_bin_that_hides_the_best_step_is_looked_into() -> None:
    """Both limits, 1 and 1.0002, lie in one bin, the minimum between them."""
    one = Line(np.full(2, 0.5), np.array([1.0, 0.99995]), np.array([0.5, 0.4999]), np.full(2, 0.5))
    where = bins_of(one, 1.0)
    assert where[0] == where[1] < BINS
    assert binned(one, 1.0) == pytest.approx(sorted_step(one), rel=1e-9)
    assert squared(one, binned(one, 1.0)) < squared(one, 1.0) / 1.5


def test_bins_of_many_rows_find_the_best_step() -> None:
    for seed in range(5):
        one = line(seed, 20_000, 0.1)
        exact = squared(one, sorted_step(one))
        assert squared(one, binned(one, 1.0, 3000)) - exact <= 1e-9 * (squared(one, 0.0) - exact)


def test_without_a_way_down_the_step_is_zero() -> None:
    up = Line(np.array([0.5]), np.array([0.0]), np.array([0.25]), np.ones(1))
    still = up._replace(delta=np.zeros(1))
    for one in (up, still):
        assert binned(one, 1.0) == sorted_step(one) == 0.0
    for geometry in ("euclidean", "mirror"):
        rows, terms = direction(still)
        assert line_search(rows, START, terms, geometry) == 0.0


def direction(one: Line) -> Any:
    return along(one.f[:, None], one.y[:, None], one.delta[:, None], one.weight)


@LINES
@settings(deadline=None)
def test_slopes_are_those_of_the_log_loss(seed: int, n: int, size: float) -> None:
    one = line(seed, n, size)
    rows, terms = direction(one)
    steps = tuple((np.array([0.0, 0.3, 1.0, 4.0]) / size).tolist())
    f = np.clip(one.f, 1e-9, 1 - 1e-9)
    score = np.log(f / (1 - f))
    expected = [one.weight @ (one.delta * (1 / (1 + np.exp(-score - eta * one.delta)) - one.y)) for eta in steps]
    most = float(np.abs(one.delta).max()) or 1.0
    for cut in (rows, Shards.cut(rows, 3)):
        found = cut.run(Slopes(START, START, terms, steps, most))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * size)


@LINES
@settings(deadline=None)
def test_searches_never_lose_more_than_the_newton_step(seed: int, n: int, size: float) -> None:
    one = line(seed, n, size)
    rows, terms = direction(one)
    for geometry, loss, half in (("euclidean", squared, 1.0), ("mirror", logarithmic, 0.5)):
        eta, start = line_search(rows, START, terms, geometry), rows.run(Along(START, terms, geometry)).newton
        slope = half * start * float(one.weight @ (one.delta * (one.y - one.f)))
        before = loss(one, 0.0)
        assert loss(one, eta) <= min(loss(one, start), before - slope) + 1e-9 * (1 + before)


def test_the_search_in_log_odds_finds_the_best_step_nearly() -> None:
    for seed in range(20):
        one = line(seed, 5000, 1.0)
        exact = minimize_scalar(lambda eta, one=one: logarithmic(one, eta), bounds=(0, 20), method="bounded").x
        rows, terms = direction(one)
        found, gain = line_search(rows, START, terms, "mirror"), logarithmic(one, 0.0) - logarithmic(one, exact)
        assert logarithmic(one, found) - logarithmic(one, exact) <= 1e-3 * gain
