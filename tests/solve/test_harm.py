"""Do no harm: what a user's first call did to models before there was a guard, each finding as a test.

Only names that are older than the guard, so that the tests can run on the code before it.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import log_loss, roc_auc_score

import lowcal
from lowcal import multicalibrate
from lowcal.datasets import make_miscalibrated
from worlds import good_model, sigmoid


@pytest.mark.parametrize("classes", [lowcal.Groups(), lowcal.Intersections(), lowcal.Trees(), lowcal.Linear()])
@pytest.mark.parametrize("notion", ["degree-2", "smooth", "full-0.1"])
def test_a_good_model_on_few_rows_is_left_alone(classes, notion):
    """300 rows: trees and linear functions used to raise the log loss by .24 and .4."""
    rises = []
    for seed in range(4):
        (y, p, X), (fresh_y, fresh_p, fresh_X) = good_model(300, seed), good_model(4000, seed + 100)
        fit = multicalibrate(y, p, X, subpopulations=classes, notion=notion, random_state=seed)
        rises.append(log_loss(fresh_y, fit.predictor(fresh_p, fresh_X)) - log_loss(fresh_y, fresh_p))
    assert np.mean(rises) < 0.002


def test_thousands_of_groups_on_a_few_thousand_rows_do_no_harm():
    """Above 500 groups the default was Euclidean: a third of the predictions became exactly 0 or 1."""
    (y, p, X), (fresh_y, fresh_p, fresh_X) = good_model(4000, 0, 8, 6), good_model(8000, 1, 8, 6)
    y, fresh_y = (
        (np.random.default_rng(9).random(len(q)) < sigmoid(0.5 * np.log(q / (1 - q)) - 1)) for q in (p, fresh_p)
    )
    groups = lowcal.Intersections(min_mass=15)
    assert len(groups.prepare(X).names) > 1000
    for options in ({}, {"alpha": 0.002}):
        fit = multicalibrate(y, p, X, subpopulations=groups, **options)
        calibrated = fit.predictor(fresh_p, fresh_X)
        assert {update.geometry for update in fit.predictor.updates} == {"mirror"}
        assert not ((calibrated == 0) | (calibrated == 1)).any()
        assert log_loss(fresh_y, calibrated) < log_loss(fresh_y, fresh_p) - 0.05
        assert roc_auc_score(fresh_y, calibrated) > roc_auc_score(fresh_y, fresh_p) - 0.003


@pytest.mark.parametrize("n_classes", [4, 8])
@pytest.mark.parametrize("notion", ["degree-2", "full-0.1", "smooth"])
def test_several_classes_are_not_made_worse(n_classes, notion):
    """full-0.1 with 8 classes and 3,000 rows: the log loss went from 1.9 to 13.6, and half of the entries to 0."""
    data = make_miscalibrated(3000, n_classes=n_classes, random_state=0)
    fitted = np.arange(3000) < 2000
    parts = [{name: column[rows] for name, column in data.X.items()} for rows in (fitted, ~fitted)]
    fit = multicalibrate(data.y[fitted], data.p[fitted], parts[0], notion=notion, classes=range(n_classes))
    calibrated = fit.predictor(data.p[~fitted], parts[1])
    labels = list(range(n_classes))
    assert not (calibrated == 0).any()
    before, after = (log_loss(data.y[~fitted], q, labels=labels) for q in (data.p[~fitted], calibrated))
    assert after <= before + 0.001


def test_a_superset_recalibrates_as_well_as_its_subset():
    """Intersections used to stop at "noise after 0 updates" where groups halved the calibration error."""
    changes = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = {f"g{k}": rng.integers(0, 5, 6000).astype(str) for k in range(5)}
        z = rng.normal(0, 1.3, 6000)
        truth = sigmoid(0.6 * z + 0.3 * (X["g0"] == "1") - 0.4 * (X["g1"] == "2"))
        y, p, half = rng.random(6000) < truth, sigmoid(z), np.arange(6000) < 3000
        inside, outside = ({name: column[rows] for name, column in X.items()} for rows in (half, ~half))
        losses = [
            log_loss(y[~half], multicalibrate(y[half], p[half], inside, subpopulations=c).predictor(p[~half], outside))
            for c in (lowcal.Groups(), lowcal.Intersections())
        ]
        assert losses[0] < log_loss(y[~half], p[~half]) - 0.01
        changes.append(losses[1] - losses[0])
    assert np.mean(changes) < 0.001


def test_rare_outcomes_are_recalibrated_without_an_alpha():
    """At a base rate of 6% alpha = .01 is reached after 0 updates, whatever the groups look like."""
    rng = np.random.default_rng(0)
    g = rng.integers(0, 10, 20_000)
    p = np.full(20_000, 0.06)
    y = rng.random(20_000) < np.where(g < 3, 0.12, 0.035)
    fit = multicalibrate(y, p, {"g": g.astype(str)})
    assert fit.n_updates >= 1
    calibrated = fit.predictor(p, {"g": g.astype(str)})
    assert max(abs((y - calibrated)[g == k].mean()) for k in range(10)) < 0.01


def test_an_overconfident_model_of_several_classes_is_tempered_and_keeps_its_order():
    """One slope of logit(p_a) for every class lowered the AUC by .004; a temperature hardly changes the order."""
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2.0, (6000, 3))
    y = (rng.random((6000, 1)) > np.cumsum(softmax(z, axis=1), axis=1)).sum(axis=1)
    p, half = softmax(3.0 * z, axis=1), np.arange(6000) < 3000
    X = {"g": rng.integers(0, 4, 6000).astype(str)}
    fit = multicalibrate(y[half], p[half], {"g": X["g"][half]}, classes=range(3))
    calibrated = fit.predictor(p[~half], {"g": X["g"][~half]})
    best = log_loss(y[~half], softmax(z[~half], axis=1))
    assert log_loss(y[~half], calibrated) < best + 0.002 < log_loss(y[~half], p[~half]) - 0.3
    before, after = (roc_auc_score(y[~half], q, multi_class="ovr") for q in (p[~half], calibrated))
    assert after > before - 0.001


@pytest.mark.parametrize("n", [1000, 5000])
def test_cells_do_not_put_a_model_out_of_order(n):
    """Cells of .1 shift whole intervals past one another: with a slope that is too steep, the AUC fell by .02."""
    changes = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        p = sigmoid(rng.normal(-1.3, 0.9, n + 5000))
        y = rng.random(len(p)) < np.where(p < 0.3, 0.12 + 0.2 * p, p + 0.05)
        X, fitted = {"g": rng.integers(0, 2, len(p)).astype(str)}, np.arange(len(p)) < n
        fit = multicalibrate(y[fitted], p[fitted], {"g": X["g"][fitted]}, notion="full-0.1")
        calibrated = fit.predictor(p[~fitted], {"g": X["g"][~fitted]})
        changes.append(roc_auc_score(y[~fitted], calibrated) - roc_auc_score(y[~fitted], p[~fitted]))
    assert np.mean(changes) > -0.003


@pytest.mark.parametrize("classes", [lowcal.Linear(), lowcal.Trees()])
def test_learners_improve_a_wrong_model_on_few_rows(classes):
    """300 rows, and there is something to find: linear functions used to raise the log loss by .33 on average."""
    changes = []
    for seed in range(4):
        data, fresh = (make_miscalibrated(n, random_state=s) for n, s in ((300, seed), (4000, seed + 100)))
        fit = multicalibrate(data.y, data.p, data.X, subpopulations=classes, random_state=seed)
        changes.append(log_loss(fresh.y, fit.predictor(fresh.p, fresh.X)) - log_loss(fresh.y, fresh.p))
    assert np.mean(changes) < -0.03


@pytest.mark.parametrize("classes", [lowcal.Linear(), lowcal.Trees(), lowcal.Groups()])
def test_many_classes_are_improved(classes):
    """A fit of 16 classes with linear functions used to take minutes, and held-out rows kept none of its updates."""
    data, fresh = make_miscalibrated(6000, n_classes=12, random_state=0), slice(3000, None)
    X = {name: column[:3000] for name, column in data.X.items()}
    fit = multicalibrate(data.y[:3000], data.p[:3000], X, subpopulations=classes, random_state=0)
    calibrated = fit.predictor(data.p[fresh], {name: column[fresh] for name, column in data.X.items()})
    assert not ((calibrated == 0) | (calibrated == 1)).any()
    assert log_loss(data.y[fresh], calibrated) < log_loss(data.y[fresh], data.p[fresh]) - 0.1
