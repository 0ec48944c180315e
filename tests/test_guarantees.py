"""The guarantees on rows: estimates against loops, weights, labels, replicated labels, empty groups, bad input."""

from __future__ import annotations

from itertools import product
from math import exp, log, log1p

import numpy as np
import pandas as pd
import pytest

import definition
import lowcal
from lowcal import Groups, Intersections, InvalidInput, Memberships, Thresholds, guarantees, measure
from lowcal.datasets import make_miscalibrated
from lowcal.guarantees import (
    Convex,
    above,
    confusion,
    covariance,
    cross_moment,
    describe,
    distance_from,
    false_positive_rate,
    glm_loss,
    group_moments,
    moment_match,
    moment_sandwich,
    negative_entropy,
    overconfidence,
    power,
    set_true_positive_rate,
    squared_loss,
    true_positive_rate,
    variance,
)
from lowcal.guarantees.groups import GroupRows, Replicates, moment_columns, power_means, read_moments
from lowcal.guarantees.groups import mean as group_mean
from lowcal.kernels.reference import Matrix

ONE_LABEL = [
    moment_match,
    moment_sandwich,
    cross_moment,
    true_positive_rate,
    false_positive_rate,
    covariance,
    variance,
    overconfidence,
]
WITH_TRUTH = [f for f in ONE_LABEL if f is not moment_match]


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(0)
    n = 60
    star = rng.random(n)
    return {
        "y": (rng.random(n) < star).astype(int),
        "p": np.clip(star + 0.2 * rng.normal(size=n), 0, 1),
        "c": rng.random(n) * (rng.random(n) < 0.7),
        "sample_weight": rng.random(n),
        "f_star": star,
    }


@pytest.fixture(scope="module")
def several():
    rng = np.random.default_rng(1)
    n, names = 50, np.array(["ant", "bee", "cat", "dog"])
    star = rng.dirichlet(np.ones(4), n)
    y = names[[rng.choice(4, p=row) for row in star]]
    return {
        "y": y,
        "p": rng.dirichlet(np.ones(4), n),
        "c": rng.random(n),
        "sample_weight": rng.random(n),
        "f_star": star,
    }


def mean(data, values):
    """E_c, in a loop."""
    total = mass = 0.0
    for w, c, v in zip(data["sample_weight"], data["c"], values, strict=True):
        total += w * c * v
        mass += w * c
    return total / mass


# ------------------------------------------------------------------------------------------------ estimates
def loops(data, y, f, star):
    """Every estimate and reference of a label, from sums over rows."""

    def E(*factors):
        return mean(data, [np.prod(row) for row in zip(*factors, strict=True)])

    no, of, ostar = [1 - v for v in y], [1 - v for v in f], [1 - v for v in star]
    V, C = E(f, f) - E(f) ** 2, E(f, y) - E(f) * E(y)
    Vs = E(star, star) - E(star) ** 2
    return {
        (moment_match, 3): (E(f, f, y), E(f, f, f), E(f, f, f)),
        (moment_sandwich, 3): (E(f, f, f), E(y) * E(f, f), E(star, star, star)),
        (cross_moment, 2): (E(f, y), E(y) * E(f), E(star, star)),
        (true_positive_rate, 1): (E(f, y) / E(y), E(f), E(star, star) / E(star)),
        (true_positive_rate, 2): (E(f, f, y) / E(y), E(f, f), E(star, star, star) / E(star)),
        (false_positive_rate, None): (E(f, no) / E(no), E(star, ostar) / E(ostar), E(f)),
        (covariance, None): (C, V, Vs),
        (variance, None): (V, None, Vs),
        (overconfidence, None): (E(f, f), None, E(star, star)),
    } | {"e": [E(y) - E(f), E(f, y) - E(f, f), E(f, f, y) - E(f, f, f)], "of": of}


def check(found, estimate, lower, upper):
    assert found.estimate == pytest.approx(estimate, abs=1e-12)
    for side, expected in ((found.lower, lower), (found.upper, upper)):
        assert (side is None) == (expected is None)
        if side is not None:
            assert side.reference == pytest.approx(expected, abs=1e-12)


def test_estimates_are_those_of_loops(binary):
    expected = loops(binary, binary["y"], binary["p"], binary["f_star"])
    cases = [key for key in expected if isinstance(key, tuple)]
    assert len(cases) == 9
    for function, degree in cases:
        options = {} if degree is None else {"degree": degree}
        data = {k: v for k, v in binary.items() if k != "f_star" or function is not moment_match}
        check(function(**data, **options), *expected[function, degree])


def test_certificates_need_neither_the_truth_nor_alpha(binary):
    data, f, y = {k: v for k, v in binary.items() if k != "f_star"}, binary["p"], binary["y"]
    cross = cross_moment(**data, degree=3)
    of_truth = mean(binary, f * f * y) ** 3 / mean(binary, f**3) ** 2
    assert cross.estimate - cross.upper.signed == pytest.approx(of_truth, abs=1e-12)
    V, C = mean(binary, f * f) - mean(binary, f) ** 2, mean(binary, f * y) - mean(binary, f) * mean(binary, y)
    assert variance(**data).upper.signed == pytest.approx(V - C * C / V, abs=1e-12)


def test_estimates_of_a_label_are_those_of_loops(several):
    y, f, star = several["y"] == "cat", several["p"][:, 2], several["f_star"][:, 2]
    expected = loops(several, y.astype(float), f, star)
    for function, degree in [key for key in expected if isinstance(key, tuple)]:
        options = {} if degree is None else {"degree": degree}
        data = {k: v for k, v in several.items() if k != "f_star" or function is not moment_match}
        check(function(**data, label="cat", **options), *expected[function, degree])


def test_alpha_is_measured_on_the_label_or_given(binary):
    e0, e1, e2 = loops(binary, binary["y"], binary["p"], binary["f_star"])["e"]
    found = moment_sandwich(**binary, degree=3)
    assert found.alpha_c == pytest.approx(max(abs(e0), abs(e1), abs(e2)), abs=1e-12)
    assert found.upper.signed == pytest.approx(-3 * e2, abs=1e-12)
    assert covariance(**binary).alpha_c == pytest.approx(max(abs(e0), abs(e1)), abs=1e-12)
    assert covariance(**binary).lower.signed == pytest.approx(e0 * mean(binary, binary["p"]) - e1, abs=1e-12)
    mass = (binary["sample_weight"] @ binary["c"]) / binary["sample_weight"].sum()
    for function in (moment_match, moment_sandwich, cross_moment, true_positive_rate, false_positive_rate, covariance):
        data = {k: v for k, v in binary.items() if k != "f_star"}
        assert function(**data, alpha=0.02).alpha_c == pytest.approx(0.02 / mass, rel=1e-12)


def test_the_measured_alpha_is_that_of_measure(binary, several):
    """Binary: degree-2 of this c. Several classes: the confusion matrix uses the supremum over all of W_2."""
    C = binary["c"][:, None]
    kind = {"subpopulations": Memberships(["c"], everyone=False, min_mass=0), "sample_weight": binary["sample_weight"]}
    measured = measure(binary["y"], binary["p"], C, notion="degree-2", **kind)
    assert covariance(**binary).alpha_c * measured.mass[0] == pytest.approx(measured.violation[0], rel=1e-9)
    kind["sample_weight"] = several["sample_weight"]
    measured = measure(several["y"], several["p"], several["c"][:, None], notion="degree-2", **kind)
    for found in (confusion(**several).order, set_true_positive_rate(**several, labels=["ant", "dog"])):
        assert found.alpha_c * measured.mass[0] == pytest.approx(measured.violation[0], rel=1e-9)


def test_confusion_matrices_are_those_of_loops(several):
    found = confusion(**several)
    names = ["ant", "bee", "cat", "dog"]
    y = np.array([[float(label == name) for name in names] for label in several["y"]])
    for i, j in product(range(4), repeat=2):
        f = several["p"]
        assert found.matrix[i, j] == pytest.approx(mean(several, y[:, i] * f[:, j]), abs=1e-12)
        assert found.predicted[i, j] == pytest.approx(mean(several, f[:, i] * f[:, j]), abs=1e-12)
        assert found.gap[i, j] == pytest.approx(mean(several, (y - f)[:, i] * f[:, j]), abs=1e-12)
    assert found.distance.estimate == pytest.approx(np.abs(found.gap).max(), abs=1e-15)
    truth = [[mean(several, np.prod(several["f_star"][:, [i, j]], axis=1)) for j in range(4)] for i in range(4)]
    worst = np.linalg.eigvalsh(found.predicted - np.array(truth))[-1]
    assert found.order.estimate == pytest.approx(worst, abs=1e-12)
    assert found.order.upper.signed == pytest.approx(np.linalg.eigvalsh(-(found.gap + found.gap.T))[-1], abs=1e-12)
    assert found.order.needs_f_star
    assert found.distance.holds
    np.testing.assert_array_equal(found.estimate, found.matrix)


def test_the_binary_confusion_matrix_keeps_the_scalar_convention(binary):
    found = confusion(**binary)
    f, y = binary["p"], binary["y"]
    assert found.matrix[1, 0] == pytest.approx(mean(binary, y * (1 - f)), abs=1e-12)
    assert found.predicted[0, 0] == pytest.approx(mean(binary, (1 - f) ** 2), abs=1e-12)
    assert found.distance.upper.constant == 2
    assert found.distance.alpha_c == pytest.approx(covariance(**binary).alpha_c, rel=1e-12)


def test_set_rates_are_those_of_loops(several):
    y = np.isin(several["y"], ["ant", "dog"]).astype(float)
    f, star = several["p"][:, [0, 3]].sum(axis=1), several["f_star"][:, [0, 3]].sum(axis=1)
    found = set_true_positive_rate(**several, labels=["dog", "ant", "dog"])
    share = mean(several, y)
    check(found, mean(several, f * y) / share, mean(several, f), mean(several, star**2) / mean(several, star))
    assert found.upper.constant == pytest.approx(2 * 2 / 3)
    assert found.upper.divisor == pytest.approx(share)
    assert found.lower.signed_bound == pytest.approx(found.estimate, abs=1e-12)  # an identity


def test_losses_are_those_of_loops(binary):
    data = {k: binary[k] for k in ("y", "p", "sample_weight")}
    rng = np.random.default_rng(5)
    C, theta = rng.random((60, 2)), np.array([0.3, -0.8])
    everyone = {"sample_weight": binary["sample_weight"], "c": np.ones(60)}

    def E(values):
        return mean(everyone, values)

    y, f, h = binary["y"], binary["p"], C @ theta
    found = squared_loss(**data, c=C, coefficients=theta)
    assert found.estimate == pytest.approx(E((f - y) ** 2), abs=1e-12)
    assert found.upper.reference == pytest.approx(E((h - y) ** 2) - E((h - f) ** 2), abs=1e-12)
    assert found.upper.constant == pytest.approx(2 * (1.1 + 1))
    assert found.upper.signed_bound == pytest.approx(found.estimate, abs=1e-12)
    v = [abs(E(C[:, 0] * (y - f))), abs(E(C[:, 1] * (y - f))), abs(E(f * (y - f)))]
    assert found.alpha_c == pytest.approx(max(v), abs=1e-12)
    assert found.holds
    assert squared_loss(**data, alpha=0.5).slack == pytest.approx(4 * 0.5)

    q = np.clip(f, 1e-9, 1 - 1e-9)
    own = E([log1p(exp(t)) - yi * t for yi, t in zip(y, np.log(q / (1 - q)), strict=True)])
    found = glm_loss(**data, c=C, coefficients=theta)
    assert found.estimate == pytest.approx(own, abs=1e-12)
    assert own == pytest.approx(E([-log(v if yi else 1 - v) for yi, v in zip(y, q, strict=True)]), abs=1e-12)
    assert found.alpha_c == pytest.approx(max(abs(E(C[:, j] * (y - q))) for j in (0, 1)), abs=1e-12)
    assert found.upper.constant == pytest.approx(1.1)
    assert found.upper.signed_bound == pytest.approx(found.estimate, abs=1e-12)
    assert found.holds


def test_losses_of_several_classes(several):
    data = {k: several[k] for k in ("y", "p", "sample_weight")}
    theta = np.random.default_rng(6).normal(size=(1, 4))
    names = ["ant", "bee", "cat", "dog"]
    rho = np.array([[float(label == name) for name in names] for label in several["y"]]) - several["p"]
    everyone = several | {"c": np.ones(50)}
    half = sum(abs(mean(everyone, several["c"] * rho[:, a])) for a in range(4)) / 2
    own = abs(mean(everyone, (several["p"] * rho).sum(axis=1)))
    for function, alpha in ((squared_loss, max(half, own)), (glm_loss, half)):
        found = function(**data, c=several["c"], coefficients=theta)
        assert found.holds
        assert found.alpha_c == pytest.approx(alpha, abs=1e-9)
        assert found.upper.signed_bound == pytest.approx(found.estimate, abs=1e-9)
    assert found.upper.constant == pytest.approx(theta.max() - theta.min())


def test_the_violation_of_several_classes_is_half_the_l1_norm():
    """Residuals (1, 1, -1, -1) / 8: two labels together see twice what each sees alone."""
    y, p = list("aaabbbcd"), np.full((8, 4), 0.25)
    for function in (squared_loss, glm_loss):
        assert function(y, p, coefficients=np.eye(4)[:1]).alpha_c == pytest.approx(2 / 8, abs=1e-12)


@pytest.mark.parametrize("g", [power(3), negative_entropy(), distance_from(0.4), above(0.7), (np.exp, np.exp)])
def test_overconfidence_is_that_of_loops(binary, g):
    value, slope = (g.value, g.slope) if isinstance(g, Convex) else g
    f, y = binary["p"], binary["y"]
    found = overconfidence(**binary, g=g)
    assert found.estimate == pytest.approx(mean(binary, value(f)), abs=1e-12)
    assert found.upper.reference == pytest.approx(mean(binary, value(binary["f_star"])), abs=1e-12)
    assert found.upper.signed == pytest.approx(-mean(binary, slope(f) * (y - f)), abs=1e-12)


# ------------------------------------------------------------------------------------------------ metamorphic
def figures(found):
    sides = [(s.reference, s.constant, s.slack, s.signed, s.bound) for s in found.sides]
    return np.array([found.estimate, *np.ravel(sides)])


def every_guarantee(data, truth=True):
    known = data if truth else {k: v for k, v in data.items() if k != "f_star"}
    plain = {k: v for k, v in data.items() if k != "f_star"}
    yield moment_match(**plain)
    for function in WITH_TRUTH:
        yield function(**known)
    both = confusion(**known)
    yield from (both.distance, both.order)
    yield squared_loss(**plain)
    yield glm_loss(**plain)


def test_a_weight_of_2_is_a_row_twice(binary):
    doubled = {k: np.concatenate([v, v[:20]]) for k, v in binary.items()}
    heavier = binary | {"sample_weight": binary["sample_weight"] * np.where(np.arange(60) < 20, 2.0, 1.0)}
    for a, b in zip(every_guarantee(doubled), every_guarantee(heavier), strict=True):
        np.testing.assert_allclose(figures(a), figures(b), atol=1e-12)


def test_rows_outside_c_do_not_matter(binary):
    outside = binary["c"] == 0
    assert outside.sum() > 5
    changed = binary | {"p": np.where(outside, 0.123, binary["p"])}
    for function in WITH_TRUTH:
        np.testing.assert_allclose(figures(function(**changed)), figures(function(**binary)), atol=1e-12)


def test_any_two_labels_and_any_table(binary):
    words = binary | {"y": np.where(binary["y"] == 1, "yes", "no")}
    frames = {k: pd.Series(v) for k, v in words.items()}
    for a, b, c in zip(every_guarantee(binary), every_guarantee(words), every_guarantee(frames), strict=True):
        np.testing.assert_allclose(figures(a), figures(b), atol=1e-15)
        np.testing.assert_allclose(figures(a), figures(c), atol=1e-15)
    swapped = true_positive_rate(words["y"], 1 - words["p"], classes=["yes", "no"])
    direct = true_positive_rate(1 - binary["y"], 1 - binary["p"])
    assert swapped.estimate == pytest.approx(direct.estimate, abs=1e-15)
    assert (
        true_positive_rate(words["y"], words["p"], label="yes").estimate
        == true_positive_rate(words["y"], words["p"]).estimate
    )


def test_boolean_membership_is_0_and_1(binary):
    inside = binary["c"] > 0
    a = covariance(binary["y"], binary["p"], inside)
    b = covariance(binary["y"][inside], binary["p"][inside])
    np.testing.assert_allclose([a.estimate, a.lower.reference], [b.estimate, b.lower.reference], atol=1e-12)


# ------------------------------------------------------------------------------------------------ verdicts
def test_without_the_truth_the_verdict_waits(binary):
    data = {k: v for k, v in binary.items() if k != "f_star"}
    for function in WITH_TRUTH:
        found = function(**data)
        assert found.needs_f_star
        assert found.holds is None
        assert "f_star" in str(found)
    assert confusion(**data).holds is None
    assert "f_star" in str(confusion(**data))
    for found in (moment_match(**data), squared_loss(**data), glm_loss(**data)):
        assert not found.needs_f_star
        assert found.holds is True


def test_estimable_sides_hold_at_the_measured_alpha_and_fail_below_it(binary):
    data = {k: v for k, v in binary.items() if k != "f_star"}
    for function in (moment_match, moment_sandwich, cross_moment, true_positive_rate, covariance):
        found = function(**data)
        assert found.lower.allows(found.estimate) is True
    measured = moment_match(**data).alpha_c
    mass = (binary["sample_weight"] @ binary["c"]) / binary["sample_weight"].sum()
    gap = abs(moment_match(**data).upper.signed)
    assert moment_match(**data, alpha=gap * mass * 1.001).holds is True
    assert moment_match(**data, alpha=gap * mass * 0.999).holds is False
    assert gap <= measured


def test_one_failing_side_is_enough():
    """The parity square on x1 = 1 at alpha = 0: falling predictions fail below, whatever the truth."""
    found = covariance([1, 0, 0, 1], [2 / 3, 1 / 3, 2 / 3, 1 / 3], [0, 0, 1, 1], alpha=0.0)
    assert found.needs_f_star
    assert found.holds is False
    assert "does not hold" in str(found)
    overconfident = confusion([0, 1, 1, 0], [0.0, 1.0, 0.0, 1.0], alpha=0.0)
    assert overconfident.holds is False


def test_sentences(binary):
    for found in every_guarantee(binary):
        text = str(found)
        assert text.endswith(f"{found.theorem}.")
        assert text.startswith(found.name)
        assert f"{found.estimate:.4g}" in text
        assert "nan" not in text
        assert "\n" not in text
    text = str(true_positive_rate([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], alpha=0.01))
    assert text == (
        "The true positive rate is 0.7: at least 0.47 (the mean prediction 0.5, less 0.03: holds), and at most the "
        "truth's own plus 0.02 (f_star or replicates are needed to check it); Lemma 4.5."
    )


@pytest.mark.parametrize("f_star", [None, [0.7, 0.3, 0.7, 0.3]])
@pytest.mark.parametrize("guarantee", [covariance, moment_sandwich, overconfidence, true_positive_rate, variance])
def test_a_group_without_rows_is_not_said_to_need_the_truth(guarantee, f_star):
    found = guarantee([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], [0, 0, 0, 0], f_star=f_star)
    assert found.holds is None
    assert str(found).endswith("no rows with weight, or none with the outcome.")


def test_sentences_without_a_reference_or_a_slack():
    wide = confusion([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], alpha=0.5)
    assert "is 0.05: at most 1 (holds); Lemma 4.8." in str(wide.distance)
    assert "is unknown: at most 3.08 (f_star or replicates are needed to check it); Lemma 4.9." in str(wide.order)
    narrow = moment_sandwich([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], f_star=[1, 0, 1, 0], alpha=0.0)
    assert "at most 0.5 (the truth's moment 0.5: holds)" in str(narrow)
    narrow = moment_sandwich([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], alpha=0.0)
    assert "at most the truth's moment (f_star" in str(narrow)


def test_shortcuts_speak_of_the_upper_side(binary):
    found = moment_sandwich(**binary)
    assert (found.bound, found.slack, found.paper_slack) == (
        found.upper.bound,
        found.upper.slack,
        found.upper.paper_slack,
    )
    assert found.lower.paper_constant == 1
    assert np.isnan(overconfidence(**binary, g=above(0.5)).paper_slack)


# ------------------------------------------------------------------------------------------------ nothing there
def test_an_empty_group_is_nan_without_a_warning(binary, several):
    for data in (binary, several):
        empty = data | {"c": np.zeros(len(data["y"]))}
        more = {} if data is binary else {"label": "bee"}
        for function in ONE_LABEL:
            given = {k: v for k, v in empty.items() if k != "f_star" or function is not moment_match}
            found = function(**given, **more)
            assert np.isnan(found.estimate)
            assert found.holds is None
            assert isinstance(str(found), str)
            assert (
                function(**given, **more, **({} if "certificate" in function.__name__ else {"alpha": 0.1})).holds
                is None
            )
        found = confusion(**empty)
        assert np.isnan(found.matrix).all()
        assert found.holds is None
    assert set_true_positive_rate(**empty, labels=["ant"]).holds is None


def test_a_group_without_the_outcome_has_no_rate(binary, several):
    none = binary | {"c": (binary["y"] == 0).astype(float)}
    for degree in (1, 2):
        found = true_positive_rate(**none, degree=degree)
        assert np.isnan([found.estimate, found.slack, found.lower.bound]).all()
        assert found.holds is None
    found = true_positive_rate(**{k: v for k, v in none.items() if k != "f_star"})
    assert found.holds is None
    assert np.isfinite(covariance(**none).estimate)
    everyone = binary | {"c": (binary["y"] == 1).astype(float)}
    assert np.isnan(false_positive_rate(**everyone).estimate)
    assert false_positive_rate(**everyone).holds is None
    none = several | {"c": np.isin(several["y"], ["ant", "bee"]).astype(float)}
    found = set_true_positive_rate(**none, labels=["cat", "dog"])
    assert np.isnan(found.estimate)
    assert found.holds is None


# ------------------------------------------------------------------------------------------------ replicates
def test_power_means_are_averages_over_choices():
    z = np.array([[1.0, 0.0, 1.0, 1.0], [0.5, np.nan, 0.25, np.nan], [np.nan, 1.0, 1.0, 0.0]])
    found = power_means(z, 2)
    for row, values in enumerate(z):
        v = values[~np.isnan(values)]
        pairs = [v[i] * v[j] for i in range(len(v)) for j in range(i)]
        assert found[0, row] == 1
        assert found[1, row] == pytest.approx(v.mean())
        assert found[2, row] == pytest.approx(np.mean(pairs))
    cubes = power_means(z[:1], 3)[3]
    assert cubes == pytest.approx([1 / 4])  # 1 of the 4 triples has no zero


STAR = np.array([0.3, 0.8])
WEIGHT = np.array([1.0, 3.0])


def expectation(reference, missing=()):
    """E[reference] over all labels of two rows with three replicates each, drawn from STAR."""
    total = 0.0
    for labels in product([0, 1], repeat=6):
        drawn = np.array(labels).reshape(2, 3)
        chance = np.prod(np.where(drawn == 1, STAR[:, None], 1 - STAR[:, None]))
        given = drawn.astype(float)
        for place in missing:
            given[place] = np.nan
        total += chance * reference(given)
    return total


@pytest.mark.parametrize("missing", [(), ((0, 1),)])
def test_moments_from_replicates_are_unbiased(missing):
    data = {"y": [0, 1], "p": [0.4, 0.6], "sample_weight": WEIGHT}
    share = WEIGHT / 4
    top = 3 if not missing else 2
    for d in range(1, top + 1):
        for function in (moment_sandwich, cross_moment):
            found = expectation(lambda r: function(**data, degree=d, replicates=r).upper.reference, missing)  # noqa: B023
            assert found == pytest.approx(share @ STAR**d, abs=1e-12)
        found = expectation(lambda r: overconfidence(**data, g=power(d), replicates=r).upper.reference, missing)  # noqa: B023
        assert found == pytest.approx(share @ STAR**d, abs=1e-12)


@pytest.mark.parametrize("missing", [(), ((1, 0),)])
def test_the_truths_confusion_from_replicates_is_unbiased(missing):
    """The eigenvalue is not linear in the replicates, so the matrix itself is taken."""
    full = np.stack([1 - STAR, STAR], axis=1)

    def matrix(r):
        rows = Replicates(r[:, :, None]).products(WEIGHT)
        return np.einsum("n,nab->ab", WEIGHT / 4, rows)

    found = expectation(matrix, missing)
    np.testing.assert_allclose(found, np.einsum("n,na,nb->ab", WEIGHT / 4, full, full), atol=1e-12)


def test_replicates_of_several_classes_with_names():
    """Two rows, two replicates, three names: E over all draws of the set's second moment and of f* f*'."""
    names, star = ["a", "b", "c"], np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    data = {"y": ["a", "b"], "p": star[::-1], "classes": names}
    moment, matrix = 0.0, np.zeros((3, 3))
    for drawn in product(range(3), repeat=4):
        at = np.array(drawn).reshape(2, 2)
        chance = np.prod(star[[[0], [1]], at])
        sample = GroupRows.read(**data, replicates=np.array(names, dtype=object)[at])
        moment += chance * sample.moments([0, 2], 2).truth(2)
        matrix += chance * group_mean(sample.truth.products(sample.weight).transpose(1, 2, 0), sample.weight)
    assert moment == pytest.approx(np.mean(star[:, [0, 2]].sum(axis=1) ** 2), abs=1e-12)
    np.testing.assert_allclose(matrix, np.einsum("na,nb->ab", star, star) / 2, atol=1e-12)
    found = set_true_positive_rate(**data, labels=["a", "c"], replicates=[["a", "c"], ["b", "b"]])
    assert found.upper.reference == pytest.approx((1 + 0) / 2 / ((1 + 0) / 2))


def test_rows_outside_c_need_no_replicates():
    data = {"y": [0, 1, 1], "p": [0.4, 0.6, 0.5]}
    given = [[1, 0], [1, 1], [None, None]]
    found = moment_sandwich(**data, c=[1, 1, 0], replicates=given)
    assert found.upper.reference == pytest.approx(0.5)
    with pytest.raises(InvalidInput, match=r"Row 2 of replicates has 0 labels.*at least 2"):
        moment_sandwich(**data, replicates=given)


def test_fractions_as_replicates():
    found = moment_sandwich([0.2, 0.9], [0.4, 0.6], replicates=[[0.25, 0.5, pd.NA], [1.0, 0.5, np.nan]])
    assert found.upper.reference == pytest.approx((0.125 + 0.5) / 2)


def test_replicates_beside_soft_labels_are_positions():
    soft = [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]]
    found = moment_sandwich(soft, P3[:2], label=2, replicates=[[2, 2, None], [2, 0, 1]])
    assert found.upper.reference == pytest.approx(1 / 2)


# ------------------------------------------------------------------------------------------------ bad input
Y, P = [0, 1, 1, 0], [0.2, 0.7, 0.6, 0.4]
P3, Y3 = [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], ["a", "b", "c"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: covariance(Y, P, [1, 1, 2, 0]), r"c is 2 in row 2.*\[0, 1\]"),
        (lambda: covariance(Y, P, [1, 1, np.nan, 0]), r"c is nan in row 2"),
        (lambda: covariance(Y, P, [1, 1]), r"c has 2 rows, but p has 4"),
        (lambda: covariance(Y, P, [[1, 0]] * 4), r"one membership a row, shape \(4,\)"),
        (lambda: covariance(Y, P, np.ones((4, 1, 1))), r"its shape is \(4, 1, 1\)"),
        (lambda: covariance(Y, P, ["x"] * 4), r"c must hold memberships"),
        (lambda: covariance(Y, P, alpha=-0.1), r"alpha must be a number of at least 0.*-0.1"),
        (lambda: covariance(Y, P, alpha="0.1"), r"alpha must be"),
        (lambda: covariance(Y, P, label=0), r"second class, 1"),
        (lambda: covariance(Y3, P3), r"Name the class.*'a', 'b', 'c'"),
        (lambda: covariance(Y3, P3, label="d"), r"label='d' is not a class"),
        (lambda: covariance(Y, P, f_star=P, replicates=[[0, 1]] * 4), r"Both f_star and replicates"),
        (lambda: covariance(Y, P, f_star=[0.5]), r"f_star has 1 rows"),
        (lambda: covariance(Y, P, f_star=[0.5, 2, 0, 0]), r"outside \[0, 1\]"),
        (lambda: covariance(Y, P, replicates=[0, 1, 1, 0]), r"replicates must have shape \(n, r\)"),
        (lambda: covariance(Y, P, replicates=[[0, 1]]), r"replicates has 1 rows"),
        (lambda: covariance(Y, P, replicates=[[0, 7]] * 4), r"replicates holds 7 in row 0"),
        (lambda: covariance([0.5, 1, 0, 0], P, replicates=[[0, 7]] * 4), r"replicates holds 7.*outcomes in \[0, 1\]"),
        (lambda: covariance(Y, P, replicates=[[0, 1], [1, None], [0, 1], [0, 0]]), r"Row 1 of replicates has 1 labels"),
        (lambda: moment_sandwich(Y, P, degree=0), r"degree must be a whole number of at least 1"),
        (lambda: moment_sandwich(Y, P, degree=1.5), r"degree must be a whole number"),
        (lambda: true_positive_rate(Y, P, degree=0), r"degree must be"),
        (lambda: moment_match(Y, P, degree=0), r"degree must be"),
        (lambda: cross_moment(Y, P, degree=0), r"degree must be"),
        (lambda: set_true_positive_rate(Y, P, labels=[1]), r"three or more classes"),
        (lambda: set_true_positive_rate(Y3, P3, labels=[]), r"labels is empty"),
        (lambda: set_true_positive_rate(Y3, P3, labels=["z"]), r"not a class"),
        (lambda: squared_loss(Y, P, [[1, 0]] * 4), r"coefficients= must give each of the 2 columns"),
        (lambda: squared_loss(Y3, P3), r"shape \(1, 3\)"),
        (lambda: squared_loss(Y, P, coefficients=[1, 2]), r"1 x 1 finite numbers"),
        (lambda: squared_loss(Y, P, coefficients=[np.inf]), r"finite"),
        (lambda: overconfidence(Y, P, None, np.exp), r"pair \(g, g'\)"),
        (lambda: overconfidence(Y, P, None, above(0.5), replicates=[[0, 1]] * 4), r"powers only"),
        (lambda: above(1.5), r"q must lie in \[0, 1\]"),
        (lambda: distance_from(-1), r"q must lie in"),
        (lambda: power(0), r"degree must be"),
        (lambda: describe(group_moments(np.ones(2), np.ones(2), np.ones(2), 2), "x", margin=-1), r"margin must be"),
        (lambda: covariance(Y, [0.2, 1.7, 0.6, 0.4]), r"outside \[0, 1\]"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


# ------------------------------------------------------------------------------------------------ all groups at once
DATA = make_miscalibrated(400, random_state=4)
DATA3 = make_miscalibrated(300, n_classes=3, random_state=4)


@pytest.mark.parametrize("data", [DATA, DATA3], ids=["binary", "three"])
@pytest.mark.parametrize(
    "subpopulations",
    [Intersections(["g0", "g1"], min_mass=5), Groups("g2") + Thresholds("x0"), Groups(["g0"], min_mass=5)],
    ids=["codes", "union", "groups"],
)
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_moments_of_every_group_are_those_of_its_rows(data, subpopulations, degree):
    rng = np.random.default_rng(0)
    outcomes = lowcal.data.inputs.read_outcomes(data.y, data.p, rng.random(len(data.y)))
    learner = subpopulations.prepare(data.X, outcomes.weight)
    design = learner.design()
    found = read_moments(design.moments(moment_columns(outcomes.y, outcomes.p, outcomes.weight, degree)), degree)
    assert len(found) == len(learner.names)
    for j, labels in enumerate(found):
        member = outcomes.weight * design.column(j)
        assert len(labels) == outcomes.p.shape[1]
        for a, moments in enumerate(labels):
            expected = group_moments(outcomes.p[:, a], outcomes.y[:, a], member, degree)
            assert float(moments.mass) == pytest.approx(float(expected.mass), abs=1e-12)
            np.testing.assert_allclose(moments.f, expected.f, atol=1e-10)
            np.testing.assert_allclose(moments.fy, expected.fy, atol=1e-10)
            assert moments.degree == degree == len(moments.f) - 1


def test_a_group_without_rows_has_a_page_that_says_so():
    design = Matrix(np.array([[1.0, 0.0], [1.0, 0.0]]))
    y, p = np.array([[0.0], [1.0]]), np.array([[0.4], [0.6]])
    empty = read_moments(design.moments(moment_columns(y, p, np.array([0.5, 0.5]), 2)), 2)[1][0]
    assert float(empty.mass) == 0
    assert np.isnan(empty.f).all()
    page = describe(empty, "g=z")
    assert str(page) == "For g=z, nothing can be said: it has no rows with weight."
    assert page.figures == {"mass": 0.0}


# ------------------------------------------------------------------------------------------------ pages
def page_of(f, y, margin=0.0, weight=None, degree=2, label=None):
    f, y = np.asarray(f, float), np.asarray(y, float)
    weight = np.full(len(f), 1 / len(f)) if weight is None else np.asarray(weight, float)
    return describe(group_moments(f, y, weight, degree), "g=a", label, margin)


def test_the_figures_of_a_page():
    f, y, weight = np.array([0.0, 1.0, 0.5]), np.array([0.2, 0.6, 0.5]), np.array([0.1, 0.2, 0.2])
    page = page_of(f, y, 0.004, weight, degree=3)
    share, t = weight / 0.5, 0.008
    E = lambda v: float(share @ v)  # noqa: E731
    V, C = E(f**2) - E(f) ** 2, E(f * y) - E(f) * E(y)
    half = (1 + E(f)) * t
    expected = {
        "mass": 0.5,
        "margin": t,
        "mean_prediction": E(f),
        "mean_outcome": E(y),
        "gap": E(y - f),
        "gap_lower": E(y - f) - t,
        "gap_upper": E(y - f) + t,
        "moment_2": E(f**2),
        "moment_3": E(f**3),
        "truth_moment_2_at_least": (E(f * y) - t) ** 2 / E(f**2),
        "truth_moment_3_at_least": (E(f**2 * y) - t) ** 3 / E(f**3) ** 2,
        "true_positive_rate": E(f * y) / E(y),
        "true_positive_rate_at_least": E(f) - (1 + E(f)) * (max(abs(E(y - f)), abs(E(f * (y - f)))) + t) / E(y),
        "covariance": C,
        "covariance_lower": C - half,
        "covariance_upper": C + half,
        "variance": V,
        "justified": C,
        "excess": V - C,
        "excess_lower": V - C - half,
        "excess_upper": V - C + half,
        "excess_over_truth_at_most": V - (C - half) ** 2 / V,
    }
    assert set(page.figures) == set(expected)
    for name, value in expected.items():
        assert page.figures[name] == pytest.approx(value, abs=1e-12), name


def test_the_margin_covers_what_it_says():
    """Outcomes off by at most the margin in every moment: the limits of the page hold for the truth."""
    rng = np.random.default_rng(7)
    seen = 0
    for _ in range(300):
        f, star, weight = rng.random(4), rng.random(4), rng.dirichlet(np.ones(4)) * rng.random()
        y = np.clip(star + 0.05 * rng.normal(size=4), 0, 1)
        margin = max(abs(weight @ (f**j * (y - star))) for j in (0, 1))
        page = page_of(f, y, margin, weight).figures
        share = weight / weight.sum()
        V = share @ f**2 - (share @ f) ** 2
        truth, C = share @ star**2 - (share @ star) ** 2, share @ (f * star) - (share @ f) * (share @ star)
        assert page["excess_lower"] - 1e-12 <= V - C <= page["excess_upper"] + 1e-12
        assert page["covariance_lower"] - 1e-12 <= C <= page["covariance_upper"] + 1e-12
        assert V - truth <= page["excess_over_truth_at_most"] + 1e-12
        assert share @ star**2 >= page["truth_moment_2_at_least"] - 1e-12
        assert page["gap_lower"] - 1e-12 <= share @ (star - f) <= page["gap_upper"] + 1e-12
        seen += V - truth > 0.9 * page["excess_over_truth_at_most"] > 0
    assert seen > 0  # the certificate is not idle


def test_the_sentences_of_a_page():
    text = str(page_of([0.0, 1.0], [0.3, 0.7]))
    assert text.splitlines() == [
        "For g=a, the mean prediction is 0.5 and the mean outcome is 0.5: they agree.",
        "For g=a, the mean squared prediction is 0.5; the mean squared true probability is at least 0.245.",
        "For g=a, people with the outcome have a mean prediction of 0.7 (the true positive rate), against 0.5 for the "
        "whole group.",
        "For g=a, the covariance of predictions and outcomes is 0.1: predictions rise with the outcomes.",
        "For g=a, the variance of the predictions is 0.25, of which the outcomes justify 0.1: it exceeds the justified "
        "part by 0.15, and the variance of the true probabilities by at most 0.21.",
    ]


def test_verdicts_need_more_than_the_margin():
    wide = page_of([0.0, 1.0], [0.3, 0.7], margin=0.2)
    assert "no significant difference (margin of error 0.2)" in wide.sentences[0]
    assert "is uncertain" in wide.sentences[3]
    assert "whether the rest is justified is uncertain (margin of error 0.2)" in wide.sentences[4]
    narrow = page_of([0.0, 1.0], [0.3, 0.7], margin=0.01, label="b")
    assert narrow.sentences[0].startswith("For g=a, label b, the mean prediction")
    assert "by at least 0.135 (net of the margin of error)" in narrow.sentences[4]
    timid = page_of([0.4, 0.6], [0.2, 0.8], margin=0.001)
    assert timid.sentences[4].endswith("of which the outcomes justify 0.03: all of it is justified.")
    assert timid.figures["excess_upper"] < 0


def test_means_that_differ_and_predictions_that_fall():
    high = page_of([0.5, 0.5], [0.2, 0.4], margin=0.05)
    assert "predictions are too high by at least 0.15 (net of the margin of error)" in high.sentences[0]
    low = page_of([0.1, 0.1], [0.2, 0.4])
    assert "predictions are too low by 0.2" in low.sentences[0]
    falls = page_of([0.2, 0.8], [0.9, 0.1])
    assert "predictions FALL where outcomes rise" in falls.sentences[3]
    assert "of which the outcomes justify nothing" in falls.sentences[4]


def test_a_page_without_outcomes_and_a_page_of_degree_1():
    none = page_of([0.2, 0.8], [0.0, 0.0])
    assert "nobody has the outcome" in none.sentences[2]
    assert np.isnan(none.figures["true_positive_rate"])
    short = page_of([0.2, 0.8], [0.0, 1.0], degree=1)
    assert len(short.sentences) == 1
    assert "variance" not in short.figures


def test_the_page_and_the_functions_say_the_same(binary):
    weight = binary["c"] * binary["sample_weight"] / binary["sample_weight"].sum()
    page = describe(group_moments(binary["p"], binary["y"], weight, 2), "c").figures
    data = {k: v for k, v in binary.items() if k != "f_star"}
    assert page["true_positive_rate"] == pytest.approx(true_positive_rate(**data).estimate, abs=1e-12)
    assert page["true_positive_rate_at_least"] == pytest.approx(true_positive_rate(**data).lower.bound, abs=1e-12)
    assert page["covariance"] == pytest.approx(covariance(**data).estimate, abs=1e-12)
    assert page["variance"] == pytest.approx(variance(**data).estimate, abs=1e-12)
    assert page["excess"] == pytest.approx(covariance(**data).lower.signed, abs=1e-12)
    assert page["excess_over_truth_at_most"] == pytest.approx(variance(**data).upper.signed, abs=1e-12)
    cross = cross_moment(**data)
    assert page["truth_moment_2_at_least"] == pytest.approx(cross.estimate - cross.upper.signed, abs=1e-12)


def test_every_public_name_is_there():
    for name in guarantees.__all__:
        assert getattr(guarantees, name).__doc__


def test_on_a_large_sample_of_a_known_world_everything_holds():
    """The theorems speak of the population; with 20,000 rows and a rough alpha the noise is far below the slack."""
    d = make_miscalibrated(20_000, random_state=1)
    c = np.asarray(d.X["g0"]) == "a"
    for function in (moment_sandwich, cross_moment, true_positive_rate, false_positive_rate, covariance, variance):
        found = function(d.y, d.p, c, f_star=d.f_star, alpha=0.05)
        assert found.holds is True, str(found)
    assert confusion(d.y, d.p, c, f_star=d.f_star, alpha=0.05).holds is True
    assert definition.supremum("degree-2", c[:, None].astype(float), d.y, d.p) < 0.05
