"""What learners are asked: residuals of rows wherever they are, and what is known of them without a look."""

from __future__ import annotations

import numpy as np
import pytest

from lowcal import Groups, Trees
from lowcal.data.frames import Table
from lowcal.notions import parse_notion
from lowcal.notions.weights import Monomial
from lowcal.rows import START, Memory
from lowcal.rows.passes import Probed, Witnessed
from lowcal.solve.homes import ordered
from lowcal.solve.shrinkage import probes_and_labels
from lowcal.solve.solvers import Problem
from lowcal.subpopulations.base import Asked, n_labels
from lowcal.subpopulations.trees import is_seen
from worlds import Shards, people


def problem_of(d: int, notion: str = "degree-3", n: int = 6000) -> Problem:
    X, p, y, weight = people(n, d)
    learner = Groups("a").prepare(Table.of({"a": X["a"]}), weight)
    return Problem(Shards.cut(Memory.of(learner.rows, p, y, weight), 5), parse_notion(notion), learner, 0.01)


@pytest.mark.parametrize("d", [1, 3, 4])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "degree-3", "full-0.1"])
def test_probes_know_their_labels_and_their_bound(notion: str, d: int) -> None:
    problem = problem_of(d, notion)
    asked = Probed(START, tuple(probes_and_labels(problem.notion, d)))
    Z = asked(problem.rows.sample(None))
    assert Z.shape == (6000, asked.q)
    assert asked.n_labels == n_labels(Z) == d
    assert np.abs(Z).max() <= asked.bound
    assert Probed(START, ((Monomial((0,)), d - 1),)).n_labels == 1


@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize("notion", ["degree-2", "degree-3", "full-0.1", "smooth"])
def test_witnesses_know_their_bound_and_are_row_by_row(notion: str, d: int) -> None:
    problem = problem_of(d, notion, 900)
    found = problem.suprema(START)
    asked = Witnessed(START, found.witness(found.worst))
    Z = asked(problem.rows.sample(None))
    assert 0 < np.abs(Z).max() <= asked.bound
    assert isinstance(problem.rows, Memory)
    assert np.concatenate([asked(shard) for shard in problem.rows.shards]).tobytes() == Z.tobytes()


def test_a_residual_that_was_asked_about_is_known_without_a_look() -> None:
    problem = problem_of(4)
    probes = Probed(START, tuple(probes_and_labels(problem.notion, 4)))
    assert Probed(START, (probes.pairs[5],)).follows(probes)
    assert not Probed(START, (probes.pairs[5],)).follows(Probed(START, probes.pairs[:5]))
    assert not probes.follows(probes)  # several
    found = problem_of(1, "degree-2").suprema(START)
    witness = Witnessed(START, found.witness(0))
    pairs = tuple(probes_and_labels(parse_notion("degree-2"), 1))
    assert witness.follows(Probed(START, pairs))
    assert not witness.follows(Probed(START.then(None), pairs))  # type: ignore[arg-type]
    assert not witness.follows(witness)


@pytest.mark.parametrize("where", ["everywhere", "nowhere", "in one row"])
def test_combinations_are_looked_for_on_all_rows(where: str) -> None:
    """p takes two values: p^2 is then a combination of 1 and p, unless a single row among 6,000 has a third one."""
    X, p, y, weight = people(6000, 1)
    if where != "nowhere":
        p = np.where(p < 0.5, 0.25, 0.5)
    if where == "in one row":
        p[77] = 0.9
    learner = Trees(n_trees=2).prepare(Table.of({"v": X["v"]}), weight)
    rows = Shards.cut(Memory.of(learner.rows, p, y, weight), 3)
    seen = Asked(rows, Probed(START, ((Monomial(), 0), (Monomial((0,)), 0))))
    assert is_seen(Asked(rows, Probed(START, ((Monomial((0, 0)), 0),))), seen) is (where == "everywhere")
    assert not is_seen(Asked(Shards.cut(rows, 2), Probed(START, ((Monomial(), 0),))), seen)  # of other rows


@pytest.mark.parametrize("cuts", [1, 4])
def test_categories_are_put_in_the_order_of_their_residuals_on_some_rows(cuts: int) -> None:
    X, p, y, weight = people(3000, 1)
    table = Table.of({name: X[name] for name in "abv"})
    chosen = Groups("a") + Trees()
    rows = Memory.of(chosen.prepare(table, weight).rows, p, y, weight)
    some = np.arange(3000) < 2000
    fitted, held = (rows.part(lambda first, n, part=part: part[first : first + n]) for part in (some, ~some))
    learner, found, others = ordered(chosen.prepare(table, weight), Shards.cut(fitted, cuts), held)
    own, encoder = weight[some] / weight[some].sum(), learner.encoder
    residual = (y - p)[some]
    levels = Trees().prepare(table.take(np.flatnonzero(some)), own, lambda: residual).encoder.levels
    assert [level.categories for level in encoder.parts[1].levels] == [level.categories for level in levels]
    assert encoder.parts[1].levels[0].categories != tuple(sorted(encoder.parts[1].levels[0].categories))
    for each, which in ((found, some), (others, ~some)):
        assert isinstance(each, Memory)
        codes = encoder(table.take(np.flatnonzero(which)))
        np.testing.assert_array_equal(each.whole.rows[1].codes, codes[1].codes)
        np.testing.assert_array_equal(each.whole.rows[0][0], codes[0][0])
