"""Simple candidates on all folds at once: the same fits as fold by fold, and none that sees a label of its fold."""

from __future__ import annotations

import numpy as np
import pytest

from lowcal.data.inputs import read_rows
from lowcal.datasets import make_miscalibrated
from lowcal.solve import crossfits
from lowcal.solve.candidates import GROUPS, LINE, Shared, Side, groups, simple_names
from lowcal.solve.crossfits import Together, fit_simple
from lowcal.solve.stopping import deal


def sides(y, p, X, weight=None, takes_line=False):
    outcomes, table = read_rows(y, p, X, weight, None)
    whole = Side(Shared(table, outcomes.weight, outcomes.p, 0, takes_line), outcomes, np.arange(len(outcomes.p)))
    return whole, list(deal(outcomes.weight, 0.2, 0, 12_000))


@pytest.fixture(scope="module")
def data():
    return make_miscalibrated(3000, random_state=1)


@pytest.mark.parametrize(("is_weighted", "takes_line"), [(False, False), (True, False), (True, True)])
def test_all_folds_at_once_are_fold_by_fold(data, is_weighted, takes_line):
    weight = np.random.default_rng(0).random(3000) + 0.1 if is_weighted else None
    whole, dealt = sides(data.y, data.p, data.X, weight, takes_line)
    for at_once, (fitted, held) in zip(Together(whole, dealt).predicted(), dealt, strict=True):
        alone = crossfits._fit_fold(*(Side.of(whole.shared, whole.outcomes, rows) for rows in (fitted, held)))
        assert list(at_once) == list(alone) == list(simple_names(1))
        for name, found in at_once.items():
            np.testing.assert_allclose(found.held, alone[name].held, atol=1e-5)
            if name in (LINE, GROUPS):
                np.testing.assert_allclose(found.fitted, alone[name].fitted, atol=1e-5)


def test_labels_of_a_fold_do_not_move_its_predictions(data):
    """Flip every label of one fold: what is predicted there stays, and what other folds predict does not."""
    whole, dealt = sides(data.y, data.p, data.X)
    flipped = data.y.copy()
    flipped[dealt[2][1]] = 1 - flipped[dealt[2][1]]
    before, after = list(fit_simple(whole, dealt)), list(fit_simple(sides(flipped, data.p, data.X)[0], dealt))
    for name in simple_names(1):
        np.testing.assert_array_equal(before[2][name].held, after[2][name].held)
        assert np.abs(before[0][name].held - after[0][name].held).max() > 1e-3


def test_many_rows_are_fitted_fold_by_fold(data, monkeypatch):
    whole, dealt = sides(data.y, data.p, data.X)
    monkeypatch.setattr(crossfits, "Together", None)
    monkeypatch.setattr("lowcal.solve.candidates.LINE_ROWS", 2999)
    assert [list(one) for one in fit_simple(whole, dealt)] == [list(simple_names(1))] * 5


def test_the_final_fit_of_groups_is_that_of_any_number_of_rows(data, monkeypatch):
    whole, _ = sides(data.y, data.p, data.X)
    found = groups(whole, whole.groups()).p
    monkeypatch.setattr("lowcal.solve.candidates.LINE_ROWS", 2999)
    np.testing.assert_allclose(found, groups(whole, whole.groups()).p, atol=1e-5)
    assert np.abs(found - whole.outcomes.p).max() > 0.01


def test_groups_of_several_classes_are_about_those_of_rows_in_passes(monkeypatch):
    """The same steps, from one Gram matrix for all folds or from that of a fold's own rows."""
    rng = np.random.default_rng(0)
    p, X = rng.dirichlet(np.full(3, 2.0), 4000), {"a": rng.integers(0, 4, 4000).astype(str)}
    moved = p * np.exp(np.eye(3)[(X["a"] == "1").astype(int)])
    y = (rng.random(4000)[:, None] > np.cumsum(moved / moved.sum(axis=1, keepdims=True), axis=1)).sum(axis=1)
    whole, dealt = sides(y, p, X)
    some = Side.of(whole.shared, whole.outcomes, dealt[0][0])
    found = groups(some, some.groups()).p
    monkeypatch.setattr("lowcal.solve.candidates.LINE_ROWS", 3999)
    del whole.shared.__dict__["is_small"]
    passes = groups(some, some.groups()).p
    assert np.abs(found - some.outcomes.p).max() > 0.1
    np.testing.assert_allclose(found, passes, atol=0.005)
