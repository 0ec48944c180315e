"""The exact worlds give the paper's numbers; the generator's labels follow its f*, and its p does not."""

from fractions import Fraction

import numpy as np
import pytest

from lowcal.data.errors import InvalidInput
from lowcal.datasets import make_miscalibrated, parity_square, two_halves


def exact(values):
    return [Fraction(float(v)).limit_denominator(1000) for v in values]


def mean(values, weights):
    return sum(w * v for v, w in zip(values, weights, strict=True)) / sum(weights)


def times(*columns):
    return [np.prod(np.array(row, dtype=object)) for row in zip(*columns, strict=True)]


# parity square (paper, Appendix B; spec 8), in rational numbers


@pytest.fixture(params=["xnor", "xor"])
def square(request):
    data = parity_square(request.param)
    columns = (data.X["x1"], data.X["x2"], data.y, data.p, data.sample_weight)
    return (request.param, *map(exact, columns))


def test_parity_labels_and_predictor_are_the_specified_ones(square):
    labels, x1, x2, y, f, weight = square
    assert (x1, x2) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert weight == [Fraction(1, 3), Fraction(1, 3), Fraction(1, 6), Fraction(1, 6)]
    low, high = Fraction(1, 3), Fraction(2, 3)
    assert y == ([1, 0, 0, 1] if labels == "xnor" else [0, 1, 1, 0])
    assert f == ([high, low, high, low] if labels == "xnor" else [low, high, low, high])


def test_parity_predictor_is_multiaccurate_on_all_four_groups(square):
    _, x1, x2, y, f, weight = square
    for column in (x1, x2):
        for b in (0, 1):
            group = [Fraction(int(v == b)) for v in column]
            error = sum(w * c * (a - v) for w, c, a, v in zip(weight, group, y, f, strict=True))
            assert error == 0


def test_parity_predictor_is_the_least_squares_one(square):
    labels, *_ = square
    data = parity_square(labels)
    groups = np.column_stack([data.X[name] == b for name in ("x1", "x2") for b in (0, 1)]).astype(float)
    root = np.sqrt(data.sample_weight)
    solution, *_ = np.linalg.lstsq(groups * root[:, None], data.y * root, rcond=None)
    np.testing.assert_allclose(groups @ solution, data.p, atol=1e-14)


def test_parity_numbers_on_the_light_half(square):
    _, x1, _, y, f, weight = square
    inside = times(weight, x1)
    covariance = mean(times(f, y), inside) - mean(f, inside) * mean(y, inside)
    variance = mean(times(f, f), inside) - mean(f, inside) ** 2
    residual = [a - v for a, v in zip(y, f, strict=True)]
    assert covariance == Fraction(-1, 12)
    assert variance == Fraction(1, 36)
    assert sum(times(inside, f, residual)) == Fraction(-1, 27)
    assert mean(times(f, residual), inside) == Fraction(-1, 9)
    assert mean(f, inside) == Fraction(1, 2)
    assert mean(f, times(inside, y)) == Fraction(1, 3)


@pytest.mark.parametrize("labels", ["xnor", "xor"])
def test_parity_truth_is_the_label(labels):
    data = parity_square(labels)
    assert data.f_star.dtype == np.float64
    np.testing.assert_array_equal(data.f_star, data.y)
    assert data.y.dtype == np.int64


def test_parity_ships_the_figure_by_default():
    np.testing.assert_array_equal(parity_square().y, parity_square("xnor").y)


@pytest.mark.parametrize("labels", ["xnr", "and", None, 1])
def test_parity_refuses_other_labels(labels):
    with pytest.raises(InvalidInput, match=r"Unknown labels .*; valid: xnor, xor"):
        parity_square(labels)


# two halves (paper, the section on true positive rates; erratum r of the spec)


def rate(values, data, label):
    return np.average(values, weights=data.sample_weight * (data.y == label))


def test_two_halves_is_the_70_30_world():
    data = two_halves()
    assert data.X["half"].tolist() == ["A", "A", "B", "B"]
    assert data.sample_weight.sum() == pytest.approx(1)
    for half, share in (("A", 0.7), ("B", 0.3)):
        rows = data.X["half"] == half
        assert data.sample_weight[rows].sum() == pytest.approx(0.5)
        assert np.average(data.y[rows], weights=data.sample_weight[rows]) == pytest.approx(share)
        np.testing.assert_array_equal(data.f_star[rows], share)


def test_two_halves_rates():
    data = two_halves()
    assert rate(data.f_star, data, 0) == pytest.approx(0.42)
    assert rate(data.f_star, data, 1) == pytest.approx(0.58)
    assert rate(data.p, data, 0) == pytest.approx(0.30)
    assert rate(data.p, data, 1) == pytest.approx(0.70)


def test_two_halves_g_is_accurate_in_expectation_and_on_no_half():
    data = two_halves()
    residual = data.sample_weight * (data.y - data.p)
    assert residual.sum() == pytest.approx(0, abs=1e-15)
    assert residual[:2].sum() == pytest.approx(-0.15)
    assert residual[2:].sum() == pytest.approx(0.15)


# make_miscalibrated


def simplex(f):
    return np.column_stack([1 - f, f]) if f.ndim == 1 else f


def one_hot(data):
    return np.eye(simplex(data.f_star).shape[1])[data.y]


def z_scores(data, f, rows):
    """Sum of y - f in standard errors under y ~ f, for each label."""
    f = simplex(f)[rows]
    spread = np.sqrt((f * (1 - f)).sum(axis=0))
    return (one_hot(data)[rows] - f).sum(axis=0) / spread


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_shapes_types_and_names(n_classes):
    data = make_miscalibrated(300, n_columns=3, n_levels=5, n_classes=n_classes, random_state=1)
    shape = (300,) if n_classes == 2 else (300, n_classes)
    assert list(data.X) == ["g0", "g1", "g2", "x0", "x1"]
    for name in ("g0", "g1", "g2"):
        assert data.X[name].shape == (300,)
        assert data.X[name].dtype == object
        assert set(data.X[name]) == set("abcde")
        assert all(type(v) is str for v in data.X[name])
    for name in ("x0", "x1"):
        assert data.X[name].shape == (300,)
        assert data.X[name].dtype == np.float64
    assert data.p.shape == data.f_star.shape == shape
    assert data.y.shape == (300,)
    assert data.y.dtype == np.int64
    assert set(data.y) == set(range(n_classes))
    assert data.sample_weight is None


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_predictions_lie_in_the_simplex(n_classes):
    data = make_miscalibrated(500, n_classes=n_classes, random_state=2)
    for f in (data.p, data.f_star):
        assert f.min() >= 0
        assert f.max() <= 1
        np.testing.assert_allclose(simplex(f).sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_labels_follow_f_star_overall_in_groups_and_by_level(n_classes):
    data = make_miscalibrated(40_000, n_classes=n_classes, random_state=3)
    rows = [np.ones(40_000, dtype=bool), data.X["x0"] > 0, data.X["x1"] < -1]
    rows += [data.X[g] == v for g in ("g0", "g1", "g4") for v in "abcd"]
    rows += [(data.X["g0"] == u) & (data.X["g1"] == v) for u in "abcd" for v in "abcd"]
    top = simplex(data.f_star)[:, 1]
    rows += [top >= np.median(top), top < np.median(top)]
    worst = max(np.abs(z_scores(data, data.f_star, chosen)).max() for chosen in rows)
    assert worst < 5


def largest_contrast(data, name):
    """The largest difference of mean residual of p between two levels of a column, in standard errors."""
    residual = one_hot(data) - simplex(data.p)
    levels = [residual[data.X[name] == v] for v in "abcd"]
    means = np.array([r.mean(axis=0) for r in levels])
    errors = np.array([r.std(axis=0) / np.sqrt(len(r)) for r in levels])
    gaps = np.abs(means[:, None] - means) / np.hypot(errors[:, None], errors)
    return gaps.max()


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("name", ["g0", "g1", "g2", "g3", "g4"])
def test_the_start_predictor_misses_the_groups_and_only_when_they_matter(n_classes, name):
    missed = make_miscalibrated(40_000, n_classes=n_classes, random_state=3)
    none = make_miscalibrated(40_000, n_classes=n_classes, group_shift=0, random_state=3)
    assert largest_contrast(missed, name) > 7
    assert largest_contrast(none, name) < 5


@pytest.mark.parametrize("n_columns", [1, 5, 30])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("seed", range(3))
def test_the_start_predictor_is_more_spread_than_the_truth_and_scores_worse(n_columns, n_classes, seed):
    data = make_miscalibrated(5_000, n_columns=n_columns, n_classes=n_classes, random_state=seed)
    p, f_star, y = simplex(data.p), simplex(data.f_star), one_hot(data)
    assert p.var(axis=0).sum() > 1.2 * f_star.var(axis=0).sum()
    assert ((y - p) ** 2).sum() > 1.03 * ((y - f_star) ** 2).sum()


def logit(f):
    f = simplex(f)
    return np.log(f[:, 1:]) - np.log(f[:, :1])


@pytest.mark.parametrize("n_classes", [2, 4])
def test_without_group_effects_the_logits_of_p_are_those_of_f_star_times_overconfidence(n_classes):
    data = make_miscalibrated(200, n_classes=n_classes, overconfidence=3.0, group_shift=0, random_state=4)
    np.testing.assert_allclose(logit(data.p), 3 * logit(data.f_star), atol=1e-9)


def test_with_neither_fault_p_is_f_star():
    data = make_miscalibrated(200, overconfidence=1, group_shift=0, random_state=4)
    np.testing.assert_allclose(data.p, data.f_star, atol=1e-15)


@pytest.mark.parametrize("n_columns", [1, 2, 3])
def test_group_effects_have_the_stated_size_and_the_interaction_needs_two_columns(n_columns):
    data = make_miscalibrated(
        4_000, n_columns=n_columns, n_levels=3, overconfidence=1, group_shift=0.25, random_state=5
    )
    effect = (logit(data.f_star) - logit(data.p))[:, 0] / 0.25
    codes = [np.searchsorted(["a", "b", "c"], data.X[f"g{j}"].astype(str)) for j in range(n_columns)]
    dummies = np.column_stack([code == level for code in codes for level in range(3)]).astype(float)
    if n_columns >= 2:
        dummies = np.column_stack([dummies, (-1.0) ** (codes[0] + codes[1])])
    solution, *_ = np.linalg.lstsq(dummies, effect, rcond=None)
    np.testing.assert_allclose(dummies @ solution, effect, atol=1e-9)
    for j in range(n_columns):
        levels = solution[3 * j : 3 * j + 3]
        spread = np.sort(levels - levels.mean()) * np.sqrt(n_columns)
        np.testing.assert_allclose(spread, [-1, 0, 1], atol=1e-9)
    np.testing.assert_allclose(np.abs(solution[3 * n_columns :]), 1, atol=1e-9)


def same(a, b):
    columns = all(np.array_equal(a.X[name], b.X[name]) for name in a.X)
    return columns and all(np.array_equal(u, v) for u, v in ((a.y, b.y), (a.p, b.p), (a.f_star, b.f_star)))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_same_seed_same_bytes(n_classes):
    first = make_miscalibrated(500, n_classes=n_classes, random_state=7)
    assert same(first, make_miscalibrated(500, n_classes=n_classes, random_state=7))
    assert same(first, make_miscalibrated(500, n_classes=n_classes, random_state=np.int64(7)))
    rng = np.random.default_rng(7)
    assert same(first, make_miscalibrated(500, n_classes=n_classes, random_state=rng))
    assert not same(first, make_miscalibrated(500, n_classes=n_classes, random_state=rng))
    assert not same(first, make_miscalibrated(500, n_classes=n_classes, random_state=8))


def test_no_seed_gives_new_rows_each_time_and_leaves_the_global_state_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert not same(make_miscalibrated(50), make_miscalibrated(50))
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_one_seed_is_one_world_whatever_the_number_of_rows():
    def effect_of_a(n):
        data = make_miscalibrated(n, n_columns=1, n_levels=2, overconfidence=1, random_state=9)
        gap = (logit(data.f_star) - logit(data.p))[:, 0]
        slope, *_ = np.linalg.lstsq(np.column_stack([data.X["x0"], data.X["x1"]]), logit(data.p), rcond=None)
        return [*gap[data.X["g0"] == "a"][:1], *slope[:, 0]]

    small, large = effect_of_a(50), effect_of_a(500)
    assert len(small) == len(large) == 3
    np.testing.assert_allclose(small, large, atol=1e-9)
    assert np.hypot(*small[1:]) == pytest.approx(1)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_one_row(n_classes):
    data = make_miscalibrated(1, n_columns=1, n_classes=n_classes, random_state=0)
    assert len(data.y) == len(data.p) == len(data.f_star) == len(data.X["g0"]) == len(data.X["x1"]) == 1


def test_many_levels_have_distinct_names():
    data = make_miscalibrated(20_000, n_columns=1, n_levels=100, random_state=0)
    assert len(set(data.X["g0"])) == 100
    assert {"a", "z", "aa", "cv"} <= set(data.X["g0"])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_extreme_overconfidence_stays_finite(n_classes):
    data = make_miscalibrated(200, n_classes=n_classes, overconfidence=1e6, group_shift=1e6, random_state=0)
    for f in (data.p, data.f_star):
        assert np.isfinite(f).all()
        np.testing.assert_allclose(simplex(f).sum(axis=1), 1, atol=1e-12)
    assert set(np.unique(data.y)) <= set(range(n_classes))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_samples", 0, "n_samples must be a whole number of at least 1, but 0 was given"),
        ("n_samples", 10.0, "n_samples must be a whole number of at least 1, but 10.0 was given"),
        ("n_samples", True, "n_samples must be a whole number of at least 1, but True was given"),
        ("n_columns", 0, "n_columns must be a whole number of at least 1, but 0 was given"),
        ("n_levels", 1, "n_levels must be a whole number of at least 2, but 1 was given"),
        ("n_classes", 1, "n_classes must be a whole number of at least 2, but 1 was given"),
        ("n_classes", "3", "n_classes must be a whole number of at least 2, but '3' was given"),
        ("overconfidence", 0, "overconfidence must be a number above 0 and at most 1e.06; got 0"),
        ("overconfidence", -1.0, "overconfidence must be a number above 0"),
        ("overconfidence", float("nan"), "overconfidence must be a number above 0 .* got nan"),
        ("overconfidence", float("inf"), "overconfidence must be a number above 0 .* got inf"),
        ("overconfidence", "2", "overconfidence must be a number above 0 .* got '2'"),
        ("group_shift", -0.1, "group_shift must be a number of at least 0 .* got -0.1"),
        ("group_shift", None, "group_shift must be a number of at least 0 .* got None"),
        ("random_state", -1, "random_state must be a whole number of at least 0, but -1 was given"),
        ("random_state", 1.5, "random_state must be a whole number of at least 0, but 1.5 was given"),
        ("random_state", True, "random_state must be a whole number of at least 0, but True was given"),
        (
            "random_state",
            np.random.RandomState(0),
            "random_state must be a whole number of at least 0, but RandomState",
        ),
    ],
)
def test_bad_arguments_are_named(name, value, message):
    with pytest.raises(InvalidInput, match=message):
        make_miscalibrated(**{name: value})
