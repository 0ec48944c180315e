"""Formulas in NumPy, the definition of what a card returns, and the shapes of launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from card_worlds import cupy, processor  # noqa: F401
from lowcal.kernels.card.bits import MOST_HELD, MOST_TILES, MOST_TURNS, ROWS, Adding
from lowcal.kernels.card.cuda import ONE_LEVEL, Cuda, Shape, picking_source, source_of
from lowcal.kernels.card.draws import MOST_ROWS, Picking
from lowcal.kernels.card.formula import (
    FINE_BITS,
    HELD_ROWS,
    MOST_ODDS,
    WIDE_BITS,
    Formula,
    Inputs,
    OneLevel,
    chances,
    power_above,
    wide_bits,
)
from lowcal.kernels.card.twin import Twin, exp_single, log_single

ROW = (("s", "inside(z)"), ("f", "sigmoid(z)"))
N = 70_001  # more than the twin works on at a time


@pytest.fixture(scope="module")
def rows() -> Inputs:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 3, N)
    z[:3] = np.inf, -np.inf, 0.0
    arrays = {"z": z.astype(np.float32), "y": rng.integers(0, 2, N).astype(np.uint8)}
    codes = [rng.integers(0, size, N).astype(np.uint8) for size in (5, 7)]
    tables = rng.normal(size=(13, 2))
    return Inputs(N, arrays, [*codes, OneLevel(N)], [5, 7, 1], tables)


def test_exponentials_and_logarithms_are_right_to_single_precision():
    x = np.linspace(-87, 87, 100_001, dtype=np.float32)
    assert np.abs(exp_single(x) / np.exp(x.astype(float)) - 1).max() < 2e-7
    x = np.exp(np.linspace(-80, 80, 100_001)).astype(np.float32)
    exact = np.log(x.astype(float))
    assert (np.abs(log_single(x) - exact) / np.maximum(np.abs(exact), 1e-2)).max() < 3e-7


@pytest.mark.parametrize("precision", ["single", "double"])
def test_sums_by_level_are_those_of_the_rows(rows: Inputs, precision):
    z, y = rows.arrays["z"].astype(float), rows.arrays["y"]
    f = 1 / (1 + np.exp(-z))
    found = Twin(precision).histogram(Formula(("y - f", "f*f"), ROW, (1.0, 1.0)), rows)[:, 0]
    for term, sums in zip((y - f, f * f), found.T, strict=True):
        want = np.concatenate([np.bincount(c[:], term, size) for c, size in zip(rows.codes, rows.levels, strict=True)])
        assert np.abs(sums - want).max() < (2e-3 if precision == "single" else 1e-7)


def test_sums_do_not_depend_on_the_order_of_rows(rows: Inputs):
    order = np.random.default_rng(1).permutation(N)
    other = Inputs(
        N,
        {name: array[order] for name, array in rows.arrays.items()},
        [*(c[order] for c in rows.codes[:2]), OneLevel(N)],
        rows.levels,
        rows.tables,
    )
    formula = Formula(("y - sigmoid(s + L[0] + L[1]*s)", "f"), ROW, (1.0, 1.0))
    assert (Twin().histogram(formula, rows) == Twin().histogram(formula, other)).all()
    assert (Twin().total(formula, rows) == Twin().total(formula, other)).all()


def test_cells_split_the_sums_of_a_level(rows: Inputs):
    lines = (*ROW, ("cell", "whole(least(f*T(4), T(3)))"))
    by_cell = Twin().histogram(Formula(("f",), lines, (1.0,), 4), rows)
    whole = Twin().histogram(Formula(("f",), ROW, (1.0,)), rows)
    assert by_cell.shape == (13, 4, 1)
    assert np.array_equal(by_cell.sum(axis=1), whole[:, 0])


def test_rows_and_conditions(rows: Inputs):
    moved = Twin().rows(Formula(("s + L[0]",), ROW), rows, np.float32)
    places = [c[:].astype(int) + o for c, o in zip(rows.codes, rows.offsets, strict=True)]
    want = np.clip(rows.arrays["z"], -MOST_ODDS, MOST_ODDS) + sum(rows.tables[place, 0] for place in places)
    assert np.abs(moved - want).max() < 1e-5
    assert Twin().picked("z > T(1e30)", rows, 5).tolist() == [0]
    assert len(Twin().picked("z > T(0)", rows, 5)) == 5
    z = np.where(np.isinf(rows.arrays["z"]), 0.0, rows.arrays["z"])
    assert Twin().largest(Formula(("s",), ROW), Inputs(N, {"z": z})) == pytest.approx(np.abs(z).max())


def test_picked_rows_are_those_whose_number_is_below_their_chance(rows: Inputs):
    keys = [11, 12, 13]
    given = Inputs(N, rows.arrays, rows.codes, rows.levels, keys=keys, first=5)
    belongs = np.zeros((13, 3), dtype=bool)
    belongs[[0, 1], 0] = belongs[[5, 11], 1] = belongs[12, 2] = True
    found = Twin().picks(Formula(("T(1)", "f"), (*ROW, ("half", "f*T(0.5)"))), given, belongs, ("f", "half"))
    f = 1 / (1 + np.exp(-rows.arrays["z"].astype(float)))
    member = [rows.codes[0] <= 1, (rows.codes[1] == 0) | (rows.codes[1] == 6), np.ones(N, dtype=bool)]
    for b, key in enumerate(keys):
        for k, chance in enumerate((f, f / 2)):
            held = chances(key, 5 + np.arange(N)) < chance
            for j, inside in enumerate(member):
                assert abs(found[k, b, j, 0] - (held & inside).sum()) <= 1  # a chance may round to the number itself
                assert found[k, b, j, 1] == pytest.approx(f[held & inside].sum(), abs=1.0)


# --- bounds and launches --------------------------------------------------------------------------------------


def test_whole_numbers_fit():
    assert HELD_ROWS << FINE_BITS < 2**31
    for n in (1, 2, 1000, 2**20, 10**9, 10**12):
        assert n * 2 ** wide_bits(n) <= 2 ** (WIDE_BITS + 1)
    assert 255 * MOST_ROWS < 2**31
    assert [power_above(b) for b in (0.75, 1.0, 1.5, 32.0)] == [1.0, 1.0, 2.0, 32.0]


@pytest.mark.parametrize(("width", "copies"), [(100, 32), (2_000, 16), (50_000, 1), (60_000, 0)])
def test_sums_have_as_many_copies_as_shared_memory_holds(width, copies):
    card = Cuda()
    card.__dict__["limits"] = (264, 226_000)
    assert card._copies(width, Inputs(1, {})) == copies


@pytest.mark.parametrize(("terms", "tiles", "launches"), [(["T(1)", "f"], 7, 1), (["T(1)", "f", "f*f"], 4, 2)])
def test_members_of_draws_are_split_into_launches(terms, tiles, launches):
    shape = Picking.of(terms, 101, 96)
    assert (shape.tiles, shape.launches, shape.warps, shape.groups) == (tiles, launches, 12, 1)
    assert shape.tiles * shape.width * 4 <= 84


@pytest.mark.parametrize(
    ("draws", "chances", "shape"),
    [
        (3, 1, (1, 1, 8, 0)),
        (96, 1, (12, 1, 96, 0)),
        (99, 1, (7, 2, 112, 3)),
        (99, 2, (9, 3, 108, 3)),
        (50, 2, (7, 2, 56, 2)),
    ],
)
def test_draws_are_split_into_blocks_of_warps(draws, chances, shape):
    """Draws that would leave most warps of a block idle are left to sums by level."""
    picking = Picking.of(["T(1)"], 101, draws, chances)
    assert (picking.warps, picking.groups, picking.slots, picking.rest) == shape


def test_places_of_members_are_those_that_tensor_cores_read():
    """Lane 4 g + r // 4: member 16 t + 8 h + g of row r is byte r % 4 of word h; that of r + 16 of word h + 2."""
    shape, belongs = Picking.of(["T(1)"], 40, 8), np.zeros((3, 40), dtype=bool)
    belongs[0, [0, 39]] = belongs[1, 21] = True
    (place,) = shape.places(belongs, [3])
    assert place.shape == (1, 3, 2)
    assert place[0, 0].tolist() == [0, 512 * 2 + 64 * 7]
    assert place[0, 1].tolist() == [512 + 64 * 5, 512 * 3]  # then the place of what belongs to nobody
    assert place[0, 2].tolist() == [512 * 3] * 2


def test_bytes_of_draws_are_read_as_numbers():
    shape = Picking.of(["T(1)", "f"], 20, 3, 2)
    sums = np.zeros((shape.launches, 8, 16 * shape.tiles, shape.width), dtype=np.int64)
    sums[0, 2 * 2 + 1, 17] = 5, 255, 3
    assert shape.read(sums)[1, 2, 17].tolist() == [5, 255 + 3 * 256]
    assert shape.read(sums).shape == (2, 3, 20, 2)


def test_bytes_of_terms_are_read_as_numbers():
    adding = Adding(3, 2)
    assert (adding.tiles, adding.parts, adding.room) == (2, 1, 96 + 288)
    sums = np.zeros((4, 8, 8), dtype=np.int64)
    sums[2, 5] = 10, 1, 2, 3 * 10, 0, 0, 10 << 7, 0  # ten rows, of which the second term is 0
    assert adding.read(sums)[2, 5].tolist() == [1 + (2 << 8) + (30 << 16) - 10 * (1 << 23), 0]
    assert 255 * 128 * ROWS * MOST_TURNS < 2**31
    for columns in range(1, 2 * MOST_TILES + 1):
        most = Adding(columns, Adding.most_terms(columns, 1 << 30))
        assert most.terms >= 2
        assert 4 * most.tiles * most.parts <= MOST_HELD


@pytest.mark.parametrize("precision", ["single", "double"])
def test_bytes_of_memberships_are_summed_by_bit(precision):
    rng = np.random.default_rng(0)
    byte, z = rng.integers(0, 256, N).astype(np.uint8), rng.normal(size=N).astype(np.float32)
    formula = Formula(("z",), bounds=(8.0,))
    every, bits = (
        Twin(precision).histogram(formula, Inputs(N, {"z": z}, [byte], [256], bits=own)) for own in ((), [0])
    )
    members = np.arange(256)[:, None] >> np.arange(8) & 1
    assert (members.T @ bits[:, 0] == members.T @ every[:, 0]).all()
    assert (np.flatnonzero(bits[:, 0, 0]) == 1 << np.arange(8)).all()


def test_a_column_of_one_level_is_not_read():
    shape = Shape("shared", "single", (("z", "f4"),), ("u1", ONE_LEVEL), (0, 5), 6, 0)
    source = source_of(Formula(("z",), bounds=(1.0,)), shape)
    assert "c0_" in source
    assert "c1_" not in source
    assert "all[0] += t0;" in source
    picking = Picking.of(["T(1)"], 2, 8)
    places = picking.places(np.ones((6, 2), dtype=bool), [5, 1])
    assert "c1_" not in picking_source(Formula(("T(1)",), ()), shape, ("z",), picking, places)


# --- on a card ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [(1024, None, None), (512, 7, 50_000), (96, 50, 0)])
@pytest.mark.usefixtures("cupy")
def test_a_card_returns_the_bits_of_its_twin(rows: Inputs, how, monkeypatch):
    there = Inputs(
        N,
        {name: Cuda().upload(array) for name, array in rows.arrays.items()},
        [*map(Cuda().upload, rows.codes[:2]), OneLevel(N)],
        rows.levels,
        rows.tables,
    )
    card, twin = Cuda("single", *how), Twin("single")
    sums = Formula(("y - sigmoid(s + L[0] + L[1]*s)", "f"), ROW, (1.0, 1.0))
    assert (card.histogram(sums, there) == twin.histogram(sums, rows)).all()
    assert (card.total(sums, there) == twin.total(sums, rows)).all()
    moved = Formula(("inside(s + L[0])",), ROW)
    assert (card.download(card.rows(moved, there, np.float32)) == twin.rows(moved, rows, np.float32)).all()
    column = np.repeat(np.arange(3), rows.levels)  # a member is made of levels of one column
    belongs = (np.random.default_rng(0).random((13, 40)) < 0.5) & (column[:, None] == np.arange(40) % 3)
    picks = Formula(("T(1)", "f"), (*ROW, ("half", "f*T(0.5)")))
    for keys, chances_ in (
        (range(3), ("f",)),
        (range(99), ("f",)),
        (range(7), ("f", "half")),
        (range(50), ("f", "half")),
    ):
        draws = [Inputs(N, one.arrays, one.codes, one.levels, keys=list(keys)) for one in (there, rows)]
        wanted = twin.picks(picks, draws[1], belongs, chances_)
        assert (card.picks(picks, draws[0], belongs, chances_) == wanted).all()
        if len(keys) < 9:
            with monkeypatch.context() as older:
                older.setattr("lowcal.kernels.card.cuda.TENSOR_CORES", 999)
                assert (Cuda("single", *how).picks(picks, draws[0], belongs, chances_) == wanted).all()


@pytest.mark.parametrize("blocks", [None, 3])
@pytest.mark.parametrize(
    ("n", "columns", "since"), [(1, 1, 80), (129, 2, 80), (100_003, 13, 80), (70_001, 20, 80), (5_003, 3, 999)]
)
@pytest.mark.usefixtures("cupy")
def test_memberships_in_bits_have_the_sums_of_the_twin(n, columns, since, blocks, monkeypatch):
    """Also beside a column that is no byte of them, with tables, with more terms than a launch has room for, and on
    cards older than those whose tensor cores are used.
    """
    monkeypatch.setattr("lowcal.kernels.card.cuda.TENSOR_CORES", since)
    rng, card, twin = np.random.default_rng(n), Cuda("single", blocks=blocks), Twin("single")
    arrays = {"z": rng.normal(size=n).astype(np.float32), "y": rng.integers(0, 2, n).astype(np.uint8)}
    codes = [rng.integers(0, 5, n).astype(np.uint8), *rng.integers(0, 256, (columns, n)).astype(np.uint8)]
    levels, bits = [1, 5, *[256] * columns], list(range(2, columns + 2))
    far = {name: card.upload(array) for name, array in arrays.items()}, [OneLevel(n), *map(card.upload, codes)]
    terms = "y - f", "(y - f)*s", "f", "f*f", "y*f", "y", "s"
    formula = Formula(terms, ROW, (1.0, 32.0, 1.0, 1.0, 1.0, 1.0, 32.0))
    for skipped in (0, 1):  # with and without the second column
        own = slice(1, None) if not skipped else slice(2, None)
        here = Inputs(n, arrays, [OneLevel(n), *codes[skipped:]], [1, *levels[own]], bits=[j - skipped for j in bits])
        there = replace(here, arrays=far[0], codes=[far[1][0], *far[1][1 + skipped :]])
        assert (card.histogram(formula, there) == twin.histogram(formula, here)).all()
        tables = rng.normal(size=(here.size, 1))
        bent = Formula(("y - sigmoid(s + L[0])",), ROW, (1.0,))
        near, away = (replace(one, tables=tables) for one in (here, there))
        assert (card.histogram(bent, away) == twin.histogram(bent, near)).all()
