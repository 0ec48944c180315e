"""One predictor, bit for bit, however the rows of a fit are cut and whoever visits the pieces."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from lowcal import Groups, Memberships, Trees
from lowcal.data.frames import Table
from lowcal.data.inputs import Layout
from lowcal.notions import parse_notion
from lowcal.rows import START, Memory
from lowcal.solve.fitting import Run
from lowcal.solve.solvers import Problem
from lowcal.solve.stopping import Watch
from lowcal.subpopulations import Subpopulations
from worlds import CLASSES as LISTED
from worlds import Shards, people

#: Ways to cut the rows: how many shards, and how many threads visit them.
CUTS = ((7, 1), (24, 2))
CLASSES: dict[str, tuple[Subpopulations, str]] = {
    **LISTED,
    "least squares": (Groups("c") + Trees(2, n_trees=3, geometry="euclidean"), "acsvx"),
}
LEARNED = ("nodes", "sums", "least squares")


def spelled(value: Any) -> Any:
    """Return plain data with every float spelled to its last bit."""
    if isinstance(value, dict):
        return {key: spelled(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(one) for one in value]
    return float(value).hex() if isinstance(value, float) else value


def print_of(problem: Problem, updates: int) -> tuple[int, str]:
    """Fit; return the number of updates and the fingerprint of predictor and history."""
    fit = Run(problem, "block", Layout(max(2, problem.d), None), Watch(), updates, None, None)(False)
    told = [[record.violation, record.brier, record.log_loss] for record in fit.history]
    text = json.dumps(spelled([fit.predictor.to_dict(), told, fit.violation]), sort_keys=True)
    return fit.n_updates, hashlib.sha256(text.encode()).hexdigest()


def prints(
    kind: str, notion: str, d: int, geometry: Any, n: int, updates: int, heavy: np.ndarray | None = None
) -> list[tuple[int, str]]:
    """Return the fingerprints of the same fit on rows that are cut in several ways."""
    X, p, y, weight = people(n, d)
    weight = weight if heavy is None else heavy / heavy.sum()
    chosen, names = CLASSES[kind]
    learner = chosen.prepare(Table.of({name: X[name] for name in names}), weight)
    whole = Memory.of(learner.rows, p, y, weight)
    return [
        print_of(Problem(rows, parse_notion(notion), learner.fresh(), 0.002, geometry), updates)
        for rows in (whole, *(Shards.cut(whole, *how) for how in CUTS))
    ]


@pytest.mark.product
@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "degree-3", "full-0.1"])
def test_a_fit_is_the_same_bits_however_its_rows_are_cut(notion: str, kind: str, d: int, geometry: str) -> None:
    """Cells of four classes are many, and trees are grown in many passes: fewer rows and updates will do."""
    few = (1500, 2) if kind in LEARNED else (3000, 4)
    found = prints(kind, notion, d, geometry, *((1000, 1) if (notion, d) == ("full-0.1", 4) else few))
    assert found[0][0] > 0
    assert set(found) == {found[0]}


@pytest.mark.parametrize("kind", ["groups", "shares", "nodes"])
@pytest.mark.parametrize("notion", ["degree-2", "full-0.1"])
def test_uneven_shards_of_many_classes_give_the_same_bits(notion: str, kind: str) -> None:
    """Nine classes have ninety products a row at degree 2."""
    X, p, y, weight = people(900, 9)
    chosen, names = CLASSES[kind]
    learner = chosen.prepare(Table.of({name: X[name] for name in names}), weight)
    whole, rng, found = Memory.of(learner.rows, p, y, weight), np.random.default_rng(0), set()
    for n_shards in (1, 7, 64):
        edges = [0, *np.sort(rng.choice(np.arange(1, 900), n_shards - 1, replace=False)), 900]
        found.add(
            print_of(Problem(Shards.cut(whole, edges), parse_notion(notion), learner.fresh(), 0.002, "mirror"), 1)
        )
    assert len(found) == 1
    assert next(iter(found))[0] > 0


@pytest.mark.parametrize("kind", ["intersections", "shares"])
def test_so_is_a_fit_of_more_rows_than_one_block(kind: str) -> None:
    """300,000 rows: sums are flushed on the way, and Gram matrices come from a sample."""
    found = prints(kind, "degree-2", 1, "mirror", 300_000, 3)
    assert found[0][0] > 0
    assert set(found) == {found[0]}


@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize("kind", LEARNED)
def test_compiled_trees_are_the_same_bits_too(kind: str, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled or not, in one piece or many."""
    pytest.importorskip("numba")
    found = prints(kind, "degree-2", d, "mirror", 1500, 2)
    monkeypatch.setattr("lowcal.subpopulations.growing.COMPILE_FROM", 0)
    assert found[0][0] > 0
    assert set(prints(kind, "degree-2", d, "mirror", 1500, 2)) == {found[0]}


@pytest.mark.parametrize("kind", LEARNED)
def test_weights_with_heavy_tails_change_no_bit(kind: str) -> None:
    """The heaviest row weighs as much as 100,000 of most."""
    weight = np.random.default_rng(3).pareto(0.5, 1500) + 1e-3
    assert weight.max() > 1e5 * np.median(weight)
    found = prints(kind, "multiaccuracy", 1, "euclidean", 1500, 2, weight)
    assert found[0][0] > 0
    assert set(found) == {found[0]}


def test_other_rows_have_another_print() -> None:
    """One outcome of 3,000 is seen: the fingerprint tells fits apart."""
    X, p, y, weight = people(3000, 1)
    learner = Groups().prepare(Table.of({"a": X["a"]}), weight)
    changed = y.copy()
    changed[7] = 1.0 - changed[7]
    rows = [Memory.of(learner.rows, p, outcomes, weight) for outcomes in (y, changed)]
    one, other = (print_of(Problem(each, parse_notion("degree-2"), learner.fresh(), 0.002), 2) for each in rows)
    assert one != other


def test_samples_are_rows_by_their_numbers() -> None:
    X, p, y, weight = people(500, 4)
    learner = Memberships().prepare(Table.of({name: X[name] for name in "stu"}), weight)
    rows = Memory.of(learner.rows, p, y, weight)
    some = np.array([3, 71, 499])
    picked = rows.sample(some)
    np.testing.assert_array_equal(picked.y, y[some])
    np.testing.assert_allclose(picked.weight, weight[some] / weight[some].sum())
    members = [family.design(learner.rows).dense()[some] for family in learner.families]
    np.testing.assert_array_equal(picked.design(learner.families).dense(), np.column_stack(members))
    assert rows.worth == pytest.approx(1.0 / np.sum(weight**2), rel=1e-12)


@pytest.mark.parametrize("d", [1, 4])
def test_redrawn_outcomes_belong_to_rows_and_follow_the_predictions(d: int) -> None:
    _, p, y, weight = people(20_000, d)
    rows = Memory.of((), p, y, weight)
    drawn = rows.redrawn(START, (0, 1)).sample(None).y
    np.testing.assert_array_equal(Shards.cut(rows, 7).redrawn(START, (0, 1)).whole.y, drawn)
    assert not np.array_equal(rows.redrawn(START, (0, 2)).whole.y, drawn)
    assert np.abs((drawn - p).mean(axis=0)).max() < 4 * 0.5 / np.sqrt(20_000)
    np.testing.assert_array_equal(drawn.sum(axis=1) if d > 1 else np.isin(drawn, (0, 1)).all(axis=1), 1)
