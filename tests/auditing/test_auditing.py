"""Measuring: the figures on every subpopulation, against numbers worked out by hand and against a fit."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import lowcal
from lowcal import Groups, Intersections, Memberships, Trees, measure, multicalibrate
from lowcal.datasets import make_miscalibrated, parity_square, two_halves

NOTIONS = ["multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.1"]


@pytest.fixture(scope="module")
def data():
    return make_miscalibrated(1500, random_state=3)


@pytest.fixture(scope="module")
def data3():
    return make_miscalibrated(600, n_classes=3, random_state=3)


@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_measures_what_a_fit_reports(data, data3, notion, n_classes):
    d = data if n_classes == 2 else data3
    groups = Groups(min_mass=20)
    fit = multicalibrate(d.y, d.p, d.X, subpopulations=groups, notion=notion, alpha=0.02, max_updates=2)
    calibrated = fit.predictor(d.p, d.X)
    measured = measure(d.y, calibrated, d.X, subpopulations=groups, notion=notion)
    if (notion, n_classes) == ("smooth", 3):  # a bracket, which a fit narrows only until alpha is decided
        assert fit.violation <= measured.largest + 1e-12
        assert measured.largest <= fit.upper + 1e-12
    else:
        assert measured.largest == pytest.approx(fit.violation, abs=1e-12)
    assert measured.notion == fit.notion
    assert (measured.upper >= measured.violation - 1e-12).all()
    assert (measured.basis <= measured.violation + 1e-12).all()
    assert measured.is_exact


def test_degree_1_and_2_from_the_definition(data):
    g = np.asarray(data.X["g0"])
    level = np.unique(g)[0]
    measured = {
        notion: measure(data.y, data.p, data.X, subpopulations=Groups("g0"), notion=notion)
        for notion in ("multiaccuracy", "degree-2")
    }
    j = measured["degree-2"].names.index(f"g0={level}")
    c, r = g == level, data.y - data.p
    plain, weighted = abs(np.mean(c * r)), abs(np.mean(c * data.p * r))
    assert measured["multiaccuracy"].violation[j] == pytest.approx(plain, abs=1e-12)
    assert measured["degree-2"].basis[j] == pytest.approx(max(plain, weighted), abs=1e-12)
    assert measured["degree-2"].mass[j] == pytest.approx(c.mean(), abs=1e-12)


@pytest.mark.parametrize("labels", ["xnor", "xor"])
def test_the_parity_square_is_accurate_but_not_of_degree_2(labels):
    world = parity_square(labels=labels)
    options = {"subpopulations": Groups(min_mass=0), "sample_weight": world.sample_weight}
    flat = measure(world.y, world.p, world.X, notion="multiaccuracy", **options)
    assert flat.largest == pytest.approx(0.0, abs=1e-12)
    second = measure(world.y, world.p, world.X, notion="degree-2", **options)
    assert second.largest * 27 == pytest.approx(1.0, abs=1e-12)
    assert set(second.names) == {"everyone", "x1=0", "x1=1", "x2=0", "x2=1"}
    assert second.mass[second.names.index("everyone")] == pytest.approx(1.0, abs=1e-12)


def test_two_halves_by_hand():
    world = two_halves()
    measured = measure(
        world.y,
        world.p,
        world.X,
        subpopulations=Groups(min_mass=0),
        notion="multiaccuracy",
        sample_weight=world.sample_weight,
    )
    weight = np.full(len(world.y), 1 / len(world.y)) if world.sample_weight is None else world.sample_weight
    weight = weight / weight.sum()
    for name, violation, mass in zip(measured.names, measured.violation, measured.mass, strict=True):
        c = np.ones(len(weight)) if name == "everyone" else _member(world.X, name)
        assert violation == pytest.approx(abs(weight @ (c * (world.y - world.p))), abs=1e-12)
        assert mass == pytest.approx(weight @ c, abs=1e-12)


def _member(X, name):
    column, value = name.split("=")
    return (np.asarray(X[column]).astype(str) == value).astype(float)


def test_worst_is_sorted_and_named(data):
    measured = measure(data.y, data.p, data.X, subpopulations=Intersections(["g0", "g1"], min_mass=20))
    worst = measured.worst(4)
    values = [value for _, value, _ in worst]
    assert len(worst) == 4
    assert values == sorted(measured.violation, reverse=True)[:4]
    assert values[0] == measured.largest
    for name, value, witness in worst:
        assert measured.violation[measured.names.index(name)] == value
        assert isinstance(witness, str)
        assert witness
    assert len(measured.worst(10**6)) == len(measured.names) == len(set(measured.names))


@pytest.mark.parametrize(
    ("notion", "part"),
    [("multiaccuracy", "1"), ("degree-2", "p0"), ("smooth", "Lipschitz"), ("full-0.5", "p0 in [0")],
)
def test_a_witness_says_which_weight_shows_it(notion, part):
    # the residual is positive where p is low and negative where it is high, so that constants see nothing
    p = np.repeat([0.2, 0.8], 50)
    y = np.repeat([0, 1, 0, 1], [20, 30, 30, 20])  # residuals of +0.4 and -0.4
    if notion == "multiaccuracy":
        y = 1 - np.zeros_like(y)
        y[0] = 0
    measured = measure(y, p, {"g": np.zeros(100)}, notion=notion, subpopulations=Groups("g"))
    name, value, witness = measured.worst(1)[0]
    assert name in ("everyone", "g=0")
    assert value > 0.05
    assert part in witness


def test_a_witness_on_labels_names_the_label():
    y, p = np.repeat([0, 1, 2], 30), np.tile([0.2, 0.3, 0.5], (90, 1))
    measured = measure(y, p, {"g": np.zeros(90)}, notion="multiaccuracy", subpopulations=Groups("g"))
    assert "on label" in measured.worst(1)[0][2]


def test_learner_classes_are_searched_once():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    p = np.full(2000, 0.5)
    y = rng.random(2000) < np.where(X[:, 1] > 0.5, 0.9, 0.5)
    measured = measure(y, p, X, subpopulations=Trees(max_depth=1))
    assert not measured.is_exact
    assert any(name.startswith("x1>") for name in measured.names)
    assert measured.largest > 0.1


def test_fractional_memberships_and_weights(data):
    rng = np.random.default_rng(0)
    C, w = rng.random((len(data.y), 3)), rng.random(len(data.y))
    measured = measure(
        data.y, data.p, C, subpopulations=Memberships(list("abc")), notion="multiaccuracy", sample_weight=w
    )
    assert measured.names == ("everyone", "a", "b", "c")
    w = w / w.sum()
    np.testing.assert_allclose(measured.mass, [1.0, *(w @ C)], atol=1e-12)
    expected = np.abs([w @ (data.y - data.p), *((w * (data.y - data.p)) @ C)])
    np.testing.assert_allclose(measured.violation, expected, atol=1e-12)


def test_without_x_everyone_is_measured(data):
    measured = measure(data.y, data.p, notion="multiaccuracy")
    assert measured.names == ("everyone",)
    assert measured.is_exact
    assert measured.largest == pytest.approx(abs(np.mean(data.y - data.p)), abs=1e-12)
    fit = multicalibrate(data.y, data.p, alpha=0.001)
    assert fit.status == lowcal.Status.REACHED
    assert fit.predictor(data.p).shape == data.p.shape


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-1", "degree-2", "degree-3", "smooth", "full-0.1"])
@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
def test_a_measurement_can_be_pickled_and_copied(data, data3, notion, n_classes, copied):
    y, p, X = (data.y, data.p, data.X) if n_classes == 2 else (data3.y, data3.p, data3.X)
    y, p, X = y[:300], p[:300], {name: column[:300] for name, column in X.items()}
    measured = measure(y, p, X, notion=notion)
    again = copied(measured)
    assert again.worst(len(again.names)) == measured.worst(len(measured.names))
    assert (again.notion, again.names, again.is_exact) == (measured.notion, measured.names, measured.is_exact)
    rows = p[:, None] if p.ndim == 1 else p
    for part in ("violation", "upper", "basis", "mass"):
        np.testing.assert_array_equal(getattr(again, part), getattr(measured, part))
    for j in range(len(measured.names)):
        np.testing.assert_array_equal(again.suprema.witness(j)(rows), measured.suprema.witness(j)(rows))
    with pytest.raises(dataclasses.FrozenInstanceError):
        again.suprema.value = measured.violation
