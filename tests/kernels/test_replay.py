"""Programs: many updates in one pass do what the updates do, one after the other."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcal.kernels import loops, reference
from lowcal.kernels.replay import LOG_ODDS, MirrorProgram, Program, Read
from lowcal.kernels.simplex import FAR, FLOOR


def draw_updates(rng: np.random.Generator, n_updates: int, levels: list[int]) -> list[list[Read]]:
    """Updates of all columns, of one group, and again of the same group."""
    updates: list[list[Read]] = []
    groups = [(k, rng.integers(0, 2, size).astype(float)) for k, size in enumerate(levels)]
    for _ in range(n_updates):
        if rng.random() < 0.6:
            column, member = groups[int(rng.integers(len(groups)))]
            updates.append([Read(column, int(rng.integers(0, 4)), rng.normal() * member)])
        else:
            kinds = [(k, j) for k in range(len(levels)) for j in range(int(rng.integers(1, 4)))]
            if rng.random() < 0.3:
                rng.shuffle(kinds)
            updates.append([Read(k, j, 0.3 * rng.normal(size=levels[k])) for k, j in kinds])
    return updates


def by_hand(f: float, codes: list[int], updates: list[list[Read]]) -> float:
    for update in updates:
        f = min(max(f + sum(read.table[codes[read.column]] * f**read.power for read in update), 0.0), 1.0)
    return f


def check_program(program, f: np.ndarray, codes: list[np.ndarray], compiled: bool, expected, off: float) -> None:
    """The program gives what is expected of every row, in pieces of seven rows and alone; f stays as it is."""
    before = f.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "COMPILE_FROM", 0 if compiled else 10**9)
        patch.setattr(reference, "CACHE", 14)
        got = program(f, codes)
    np.testing.assert_array_equal(f, before)
    for i in range(len(f)):
        row = [int(c[i]) for c in codes]
        assert got[i] == pytest.approx(expected(f[i], row), abs=10 * off)
        assert program.one(float(f[i]), row) == pytest.approx(got[i], abs=off)


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(1, 12), st.booleans())
def test_a_program_does_what_its_updates_do(seed: int, n: int, n_updates: int, compiled: bool) -> None:
    rng = np.random.default_rng(seed)
    levels = [int(size) for size in rng.integers(1, 6, int(rng.integers(1, 4)))]
    kinds = [np.uint8, np.uint16, np.int64]
    codes = [rng.integers(0, size, n).astype(rng.choice(kinds)) for size in levels]
    f = rng.random(n)
    updates = draw_updates(rng, n_updates, levels)
    check_program(Program.of(updates), f, codes, compiled, lambda x, row: by_hand(x, row, updates), 1e-15)


def bent_by_hand(f: float, codes: list[int], updates: list[list[Read]]) -> float:
    for update in updates:
        inside = min(max(f, FLOOR), 1.0 - FLOOR)
        z = log(inside / (1.0 - inside))
        score = z + sum(r.table[codes[r.column]] * (z if r.power == LOG_ODDS else f**r.power) for r in update)
        f = 1.0 / (1.0 + exp(-max(score, -FAR)))
    return f


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(1, 4), st.booleans())
def test_a_program_in_log_odds_does_what_its_updates_do(seed: int, n: int, n_updates: int, compiled: bool) -> None:
    rng = np.random.default_rng(seed)
    levels = [int(size) for size in rng.integers(1, 6, int(rng.integers(1, 4)))]
    codes = [rng.integers(0, size, n).astype(rng.choice([np.uint8, np.uint16])) for size in levels]
    f = rng.random(n)
    powers = [int(j) for j in rng.permutation([LOG_ODDS, 0, 1, 2, 3])[: int(rng.integers(1, 6))]]
    updates = [[Read(k, j, 0.3 * rng.normal(size=levels[k])) for k in range(len(levels)) for j in powers]] * n_updates
    check_program(MirrorProgram.of(updates), f, codes, compiled, lambda x, row: bent_by_hand(x, row, updates), 1e-12)


def test_groups_with_many_updates_are_kept_once() -> None:
    member = np.array([0.0, 1.0, 0.0])
    updates = [[Read(0, 0, step * member)] for step in (0.1, -0.2, 0.3)]
    program = Program.of(updates)
    assert len(program.reads.column) == 0
    assert program.masks.column.tolist() == [0]
    assert Program.of([*updates[:1], [Read(0, 0, 1.0 - member)]]).masks.column.tolist() == []
    np.testing.assert_allclose(program(np.array([0.5, 0.5]), [np.array([1, 2])]), [0.7, 0.5], atol=1e-15)


def test_look_ups_of_the_same_column_and_power_add_up() -> None:
    first, second = np.array([0.1, 0.0]), np.array([0.2, 0.3])
    program = Program.of([[Read(0, 1, first), Read(0, 1, second), Read(0, 0, second)]])
    assert len(program.reads.column) == 1
    expected = [0.5 + 0.3 * 0.5 + 0.2, 0.25 + 0.3 * 0.25 + 0.3]
    np.testing.assert_allclose(program(np.array([0.5, 0.25]), [np.array([0, 1])]), expected, atol=1e-15)
