"""How kernels are launched: every launch is noted, and nothing is computed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from card_worlds import stand_in
from cuda_on_cpu import SHARED_BYTES, Array, CardOnCpu, Kernel
from lowcal.kernels.card import cuda
from lowcal.kernels.card.bits import Adding
from lowcal.kernels.card.cuda import ONE_LEVEL, TAKEN_BYTES, Cuda, Shape, Streamed, source_of
from lowcal.kernels.card.formula import Formula, Inputs, OneLevel
from lowcal.kernels.card.trees import trees_on

ROW = (("s", "inside(z)"), ("f", "sigmoid(z)"))
SHARED, PROCESSORS = SHARED_BYTES - TAKEN_BYTES, 132


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    found: list[Any] = []

    def noted(self: Kernel, grid: Any, threads: int, args: Any, shared: int) -> None:
        found.append(SimpleNamespace(code=self.source, grid=grid, threads=threads, args=args, shared=shared))

    monkeypatch.setattr(Kernel, "launch", noted)
    stand = stand_in(CardOnCpu(tmp_path), monkeypatch)
    stand.cuda.Device().attributes["MultiProcessorCount"] = PROCESSORS
    return found


def rows(n: int, of: Any = Array, **more: Any) -> Inputs:
    z, y = of(np.zeros(n, dtype=np.float32)), of(np.zeros(n, dtype=np.uint8))
    return Inputs(n, {"z": z, "y": y}, [y, OneLevel(n)], [100, 1], **more)


@pytest.mark.parametrize("how", ["shared", "global", "total", "largest", "map", "extremes", "pick"])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_every_word_of_a_kernel_is_filled_in(how, precision):
    lines = (*ROW, ("cell", "whole(f*T(15))")) if how == "extremes" else ROW
    shape = Shape(how, precision, (("z", "f4"),), ("u1", ONE_LEVEL), (0, 5), 6, 2, "i8", 4, 12)
    source = source_of(Formula(("f*L[0]",), lines, (1.0,), 16 if how == "extremes" else 1), shape)
    for word in ("PARAMETERS", "SETUP", "LOADS", "READS", "LINES", "TERMS", "FLUSH", "FINISH"):
        assert f" {word}" not in source
    assert source.count("{") == source.count("}")


def test_sums_by_level_have_copies_in_shared_memory(launches):
    card = Cuda()
    n = 10_000_000
    sums = card.histogram(Formula(("y - f", "f"), ROW, (1.0, 1.0)), rows(n))
    assert sums.shape == (101, 1, 2)
    (one,) = launches
    copies = 32
    assert one.threads == 1024
    assert one.grid == (min(2 * PROCESSORS, -(-n // (4096 * copies))),)
    assert one.shared == 4 * 101 * 2 * copies <= SHARED
    assert (int(one.args[0]), int(one.args[1]), len(one.args)) == (
        n,
        0,
        2 + 3 + 4 + 1,
    )  # codes of one level are not read
    card.histogram(Formula(("f",) * 8, ROW, (1.0,) * 8), Inputs(n, rows(n).arrays, [rows(n).arrays["y"]], [60_000]))
    assert launches[-1].shared == 0  # in global memory


@pytest.mark.parametrize(
    ("levels", "cells", "at_once"), [(760, 1, [4, 4, 3]), (760, 10, [7, 4]), (3000, 1, [4, 4, 3]), (60_000, 1, [11])]
)
def test_terms_share_a_launch_while_their_sums_have_copies(launches, levels, cells, at_once):
    """Of two equal terms, one is summed; sums that do not fit into shared memory are added in global memory."""
    n, lines = 1_000_000, (*ROW, ("cell", "whole(f*T(9))"))
    formula = Formula((*(f"f*T({k})" for k in range(11)), "f*T(3)"), lines, (1.0,) * 12, cells)
    found = Cuda().histogram(formula, Inputs(n, rows(n).arrays, [rows(n).arrays["y"]], [levels]))
    assert found.shape == (levels, cells, 12)
    assert [len(one.args[-3]) - 1 for one in launches] == at_once
    assert all(one.shared <= SHARED for one in launches)


def test_other_launches(launches):
    card, n = Cuda("double"), 1001
    assert card.total(Formula(("f", "y"), ROW, (1.0, 1.0)), rows(n)).tolist() == [0.0, 0.0]
    assert card.largest(Formula(("f",), ROW), rows(n)) == 0.0
    assert len(card.rows(Formula(("f",), ROW), rows(n), np.float64)) == n
    assert card.columns(Formula(("f", "s"), ROW), rows(n), np.float32).shape == (2, n)
    assert card.extremes(Formula(("f",), (*ROW, ("cell", "whole(f*T(3))")), cells=4), rows(n)).shape == (4, 2)
    assert card.picked("z > T(0)", rows(n), 5).tolist() == []
    assert len(launches) == 6
    assert card.own(np.zeros(7, dtype=np.float32)[::2]).tolist() == [0.0] * 4
    odd = Array(np.zeros(7, dtype=np.float32))
    assert card.own(odd) is not odd
    assert card.download(card.upload(np.arange(3))).tolist() == [0, 1, 2]


@pytest.mark.parametrize("names", [("f",), ("f", "half")])
def test_draws_are_split_into_warps_and_blocks(launches, names):
    n, keys = 1_000_000, list(range(99))
    belongs = np.zeros((101, 3), dtype=bool)
    formula = Formula(("T(1)", "f"), (*ROW, ("half", "f*T(0.5)")))
    found = Cuda().picks(formula, rows(n, keys=keys), belongs, names)
    assert found.shape == (len(names), 99, 3, 2)
    one, *by_level = launches  # the last three draws
    assert one.threads == 32 * 12
    each = int(one.args[2])
    assert each % (32 * 12) == 0
    assert one.grid == (-(-n // each), len(names), 1)
    assert one.shared <= SHARED
    assert one.args[-2].tolist() == keys[:96]
    assert [again.args[-2].tolist() for again in by_level] == [[96, 97, 98, 0]]
    for word in ("PARAMETERS", "DECLARED", "LOADS", "READS", "LINES", "PICKED_BY", "DIGITS", "MEMBERS"):
        assert f" {word}" not in one.code


def test_memberships_in_bits_are_summed_by_warps(launches):
    n = 100_000
    given = rows(n)
    byte = given.codes[0]
    many = Inputs(n, given.arrays, [byte, OneLevel(n), *[byte] * 18], [100, 1, *[256] * 18], bits=list(range(2, 20)))
    found = Cuda().histogram(Formula(("f", "y"), ROW, (1.0, 1.0)), many)
    assert found.shape == (101 + 18 * 256, 1, 2)
    by_level, *by_bit = launches
    assert by_level.threads == 1024
    assert [one.threads for one in by_bit] == [256] * 2
    assert [one.grid for one in by_bit] == [(-(-n // 1024),)] * 2
    assert [one.shared for one in by_bit] == [4 * 8 * Adding(columns, 2).room for columns in (16, 3)]
    assert [len(one.args) for one in by_bit] == [2 + 2 + columns + 5 for columns in (15, 3)]  # all rows need no byte
    for word in ("PARAMETERS", "BYTES", "WORDS", "LOADS", "READS", "LINES", "TERMS"):
        assert f" {word}" not in by_bit[0].code


def test_rows_of_the_host_pass_through_in_parts(launches, monkeypatch):
    monkeypatch.setattr(cuda, "PART_ROWS", 400)
    card, n = Streamed(), 1001
    assert card.xp is np
    moved = card.rows(Formula(("f",), ROW), rows(n, np.asarray), np.float32)
    assert [(int(one.args[0]), int(one.args[1])) for one in launches] == [(400, 0), (400, 400), (201, 800)]
    assert len(moved) == n
    mine = card.own(np.arange(5))
    assert card.own(mine) is mine
    assert card.block(2, 5, np.float32).shape == (2, 5)


@pytest.mark.parametrize(("needed", "memory", "kind"), [(0, None, Cuda), (10, 9, Streamed), (1 << 40, None, Streamed)])
def test_rows_that_do_not_fit_are_streamed(launches, needed, memory, kind):
    assert type(cuda.open_device("single", needed, memory)) is kind


def test_launches_of_trees(launches):
    kernels, n = trees_on(Cuda()), 5000
    columns = [Array(np.zeros(n, dtype=np.uint8)) for _ in range(3)]
    node, feature, cut = Array(np.zeros(n, dtype=np.uint8)), np.array([0]), np.array([1])
    assert len(kernels.step(columns, node, feature, cut)) == n
    assert len(kernels.bin(Array(np.zeros(n, dtype=np.float32)), np.array([0.5]), np.dtype(np.uint8))) == n
    assert len(kernels.evaluate(columns, feature[None], cut[None], np.zeros((1, 2)))) == n
    term = Array(np.zeros(n, dtype=np.int32))
    sums = kernels.add_up(columns, np.array([4, 4, 9]), node, np.array([True]), [None, term])
    assert sums.shape == (1, 17, 2)
    last = launches[-1]
    assert last.shared == 4 * 17 * 2 * 32
    assert last.threads == 1024
