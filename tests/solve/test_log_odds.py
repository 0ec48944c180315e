"""Groups in log odds: when they are the default, what the first steps are, and how good they are."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import lowcal
from lowcal.datasets import make_miscalibrated
from lowcal.notions.weights import LogOdds, Monomial
from worlds import sigmoid


def bent(n, seed=0):
    """A world where every group shifts the log odds and changes their slope; p knows nothing of it."""
    rng = np.random.default_rng(seed)
    g, h = rng.integers(0, 4, n), rng.integers(0, 3, n)
    z = rng.normal(-0.5, 1.5, n)
    shift, slope = np.array([0.5, -0.3, 0.0, 0.2]), np.array([0.5, 1.0, 0.7])
    f = sigmoid(shift[g] + slope[h] * z)
    X = {"g": np.array(["a", "b", "c", "d"])[g], "h": np.array(["u", "v", "w"])[h]}
    return X, (rng.random(n) < f).astype(int), sigmoid(z), f


def geometry(fit):
    return {update.geometry for update in fit.predictor.updates}


@pytest.mark.parametrize("notion", ["degree-2", "smooth", "full-0.1"])
def test_the_first_step_shifts_and_bends_log_odds_by_group(notion):
    X, y, p, f = bent(20_000)
    fit = lowcal.multicalibrate(y, p, X, notion=notion, alpha=0.01, guard=False)
    assert (fit.status, fit.n_updates, geometry(fit)) == ("reached", 1, {"mirror"})
    (term,) = fit.predictor.updates[0].terms
    assert term.weights == (Monomial(), LogOdds())
    assert np.abs(fit.predictor(p, X) - f).mean() < 0.01
    euclidean = lowcal.multicalibrate(y, p, X, notion=notion, alpha=0.01, geometry="euclidean")
    assert np.abs(euclidean.predictor(p, X) - f).mean() > 2 * np.abs(fit.predictor(p, X) - f).mean()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "mirror"),
        ({"notion": "degree-3"}, "mirror"),
        ({"notion": "multiaccuracy"}, "mirror"),
        ({"notion": "full-0.25"}, "mirror"),
        ({"notion": "smooth"}, "mirror"),
        ({"solver": "worst"}, "mirror"),
        ({"solver": "first"}, "euclidean"),
        ({"step": 0.5}, "mirror"),
        ({"subpopulations": lowcal.Trees()}, "mirror"),
        ({"subpopulations": lowcal.Trees(n_trees=5)}, "mirror"),
        ({"geometry": "euclidean"}, "euclidean"),
    ],
)
def test_where_log_odds_are_the_default(options, expected):
    data = make_miscalibrated(2000, random_state=0)
    assert geometry(lowcal.multicalibrate(data.y, data.p, data.X, alpha=0.01, **options)) == {expected}


def test_several_classes_and_many_groups_move_in_log_odds_too():
    data = make_miscalibrated(2000, n_classes=3, random_state=0)
    assert geometry(lowcal.multicalibrate(data.y, data.p, data.X)) == {"mirror"}
    rng = np.random.default_rng(0)
    X = {f"g{k}": rng.integers(0, 12, 6000).astype(str) for k in range(6)}
    data = make_miscalibrated(6000, random_state=0)
    groups = lowcal.Intersections(list(X))
    assert len(groups.prepare(X).names) > 500
    assert geometry(lowcal.multicalibrate(data.y, data.p, X, subpopulations=groups)) == {"mirror"}


@pytest.mark.parametrize("step", [0.5, 0.9, None])
def test_a_step_of_ones_own_is_taken_along_the_powers_of_f(step):
    data = make_miscalibrated(2000, random_state=0)
    fit = lowcal.multicalibrate(data.y, data.p, data.X, geometry="mirror", step=step, max_updates=2)
    assert bends(fit) == (step is None)


def bends(fit):
    return any(LogOdds() in term.weights for update in fit.predictor.updates for term in update.terms)


def test_the_definition_holds_whatever_the_first_step_leaves():
    """A bump in the middle of the scale is no line in log odds: later steps with powers of f correct it."""
    rng = np.random.default_rng(4)
    p, g = rng.random(20_000), rng.integers(0, 2, 20_000)
    f = np.clip(p + np.where(g == 1, 0.4 * np.sin(2 * np.pi * p), 0.0), 0.02, 0.98)
    X, y = {"g": np.array(["a", "b"])[g]}, (rng.random(20_000) < f).astype(int)
    fit = lowcal.multicalibrate(y, p, X, notion="degree-4", alpha=0.0002, guard=False)
    assert fit.status == "reached"
    assert fit.n_updates > 1
    calibrated = fit.predictor(p, X)
    worst = max(
        abs(np.mean(c * calibrated**k * (y - calibrated))) for c in (np.ones_like(p), g == 0, g == 1) for k in range(4)
    )
    assert worst <= 0.0002 * (1 + 1e-9)
    kinds = [{type(u) for term in update.terms for u in term.weights} for update in fit.predictor.updates]
    assert kinds == [{Monomial, LogOdds}, *[{Monomial}] * (fit.n_updates - 1)]
    losses = [record.log_loss for record in fit.history]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("notion", ["smooth", "full-0.1"])
def test_smooth_and_full_begin_with_the_line_and_go_on(notion):
    """The same bump: what the line leaves is corrected by the notion's own weights, down to alpha."""
    rng = np.random.default_rng(4)
    p, g = rng.random(20_000), rng.integers(0, 2, 20_000)
    f = np.clip(p + np.where(g == 1, 0.4 * np.sin(2 * np.pi * p), 0.0), 0.02, 0.98)
    X, y = {"g": np.array(["a", "b"])[g]}, (rng.random(20_000) < f).astype(int)
    fit = lowcal.multicalibrate(y, p, X, notion=notion, alpha=0.003, guard=False)
    assert (fit.status, geometry(fit)) == ("reached", {"mirror"})
    kinds = [{type(u) for term in update.terms for u in term.weights} for update in fit.predictor.updates]
    assert kinds[0] == {Monomial, LogOdds}
    assert not kinds[-1] & {LogOdds}, "the line alone would do, and the test shows nothing"
    assert lowcal.measure(y, fit.predictor(p, X), X, notion=notion).largest <= 0.003 * (1 + 1e-9)
    losses = [record.log_loss for record in fit.history]
    assert losses == sorted(losses, reverse=True)


def test_not_worse_than_logistic_regression_on_groups_and_slopes():
    """The baseline's home ground: its model is true, and rows are few for 2 x 50 features."""
    ours, theirs = np.mean([_excesses(seed) for seed in range(4)], axis=0)
    assert ours < 0.9 * theirs


def _excesses(seed):
    """Return the excess log loss of the defaults, and of logistic regression on groups and groups x log odds."""
    rng = np.random.default_rng(seed)
    n, D = 6000, 5
    codes = rng.integers(0, 10, (2 * n, D))
    z = rng.normal(0, 1.5, 2 * n)
    shift, slope = rng.normal(0, 0.3, (D, 10)), rng.normal(0, 0.1, (D, 10))
    f = sigmoid(0.7 * z + sum(shift[j][codes[:, j]] + slope[j][codes[:, j]] * z for j in range(D)))
    y, p = (rng.random(2 * n) < f).astype(int), sigmoid(z)
    X = {f"g{j}": np.array(list("abcdefghij"))[codes[:, j]] for j in range(D)}
    C = np.concatenate([codes[:, [j]] == np.arange(10) for j in range(D)], axis=1)
    A = np.concatenate([z[:, None], C, C * z[:, None]], axis=1)
    theirs = LogisticRegression(max_iter=1000).fit(A[:n], y[:n]).predict_proba(A[n:])[:, 1]
    fit = lowcal.multicalibrate(y[:n], p[:n], {k: v[:n] for k, v in X.items()})
    ours = fit.predictor(p[n:], {k: v[n:] for k, v in X.items()})
    return [np.mean(f[n:] * np.log(f[n:] / q) + (1 - f[n:]) * np.log((1 - f[n:]) / (1 - q))) for q in (ours, theirs)]


def test_a_row_at_a_time_and_plain_data():
    X, y, p, _ = bent(3000, seed=1)
    p[:4] = [0.0, 1.0, 1e-12, 1 - 1e-12]
    predictor = lowcal.multicalibrate(y, p, X, alpha=0.001).predictor
    assert predictor._by_program is not None
    whole = predictor(p, X)
    for i in range(40):
        row = {name: X[name][i] for name in X}
        assert predictor.one(float(p[i]), row) == pytest.approx(whole[i], abs=1e-12)
    weights = predictor.to_dict()["updates"][0]["terms"][0]["weights"]
    assert weights == [{"kind": "monomial", "factors": []}, {"kind": "log_odds", "coordinate": 0}]
    assert "logit(p0)" in str(predictor.updates[0])


def test_far_below_one_in_a_million_nothing_overflows():
    X, y, p, _ = bent(3000, seed=1)
    predictor = lowcal.multicalibrate(y, p, X, alpha=0.001).predictor
    far = predictor.updates[0]
    push = type(far)(tuple(term.scaled(5000.0) for term in far.terms), "mirror")
    pushed = type(predictor)(predictor.encoder, (push,), predictor.layout)
    whole = pushed(p, X)
    for i in np.argsort(whole)[[*range(30), *range(-30, 0)]]:
        row = {name: X[name][i] for name in X}
        assert pushed.one(float(p[i]), row) == pytest.approx(whole[i], abs=1e-12)
    assert whole.min() < 1e-300


def test_rows_of_equal_weight_and_groups_that_nobody_is_in():
    X, y, p, _ = bent(9000, seed=2)
    alone = lowcal.multicalibrate(y, p, X)
    doubled = lowcal.multicalibrate(y, p, X, sample_weight=np.full(9000, 2.0))
    np.testing.assert_array_equal(alone.predictor(p, X), doubled.predictor(p, X))
    kept = np.arange(9000) % 3 > 0
    silent = lowcal.multicalibrate(y, p, X, sample_weight=kept.astype(float))
    absent = lowcal.multicalibrate(y[kept], p[kept], {name: column[kept] for name, column in X.items()})
    np.testing.assert_allclose(silent.predictor(p, X), absent.predictor(p, X), rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [1, 3])
def test_a_finite_score_is_never_a_probability_of_one(d):
    """Rounding made it 1 from log odds of 37 on: rows far beyond those that a slope was fitted to."""
    from lowcal.kernels.simplex import mirror, move_row

    p = np.array([[1 - 1e-9]]) if d == 1 else np.array([[1 - 2e-9, 1e-9, 1e-9]])
    delta = np.array([[60.0]]) if d == 1 else np.array([[60.0, 0.0, 0.0]])
    moved = mirror(p, delta)
    assert 0.0 < moved.min() <= moved.max() < 1.0
    assert max(move_row(p[0].tolist(), delta[0].tolist(), "mirror")) == moved.max()
    if d == 1:
        assert 0.0 < mirror(1 - p, -100 * delta)[0, 0] < 1e-300
