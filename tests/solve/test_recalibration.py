"""`recalibrate`: what cross-validation chooses, and that the choice is the same wherever it is applied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import lowcal
from lowcal import InvalidInput, recalibrate
from lowcal.data.inputs import read_rows
from lowcal.datasets import make_miscalibrated
from lowcal.solve.candidates import MOST_TREES, Shared, Side, fit
from lowcal.solve.fitting import Candidates
from lowcal.solve.recalibration import CHOSEN_ON, JUDGED, PATIENCE, Judge, Look, _choose, _sampled, ordered
from lowcal.solve.stopping import deal
from worlds import sigmoid


def world(n: int, kind: str, seed: int = 0):
    """Return labels, scores and a table; `kind` says what is wrong with the scores."""
    rng = np.random.default_rng(seed)
    X = {"a": rng.normal(size=n), "b": rng.normal(size=n), "g": rng.choice(["u", "v", "w"], n)}
    z = rng.normal(0, 1.3, n)
    truth = {
        "nothing": z,
        "slope": 0.4 * z - 0.3,
        "upper end": 1.5 * z - 1.4 * np.log1p(np.exp(z)) + 1.0,
        "both ends": 0.5 * z**3,
        "group": z + np.select([X["g"] == "u", X["g"] == "v"], [1.0, -1.0], 0.0),
        "interaction": z + 1.5 * np.sign(X["a"] * X["b"]),
        "where the score is high": z - 2.0 * (z > 1.0) * (X["a"] > 0),
    }[kind]
    return (rng.random(n) < sigmoid(truth)).astype(int), sigmoid(z), X, sigmoid(truth)


def rows(X, where):
    return {name: column[where] for name, column in X.items()}


def shares(fit):
    """Return the share of every candidate that was chosen, largest first."""
    name = fit.candidates.chosen.name
    each = [] if name == "unchanged" else [part.split(" ", 1) for part in name.split(" + ")]
    return {name: float(share) for share, name in sorted(each, reverse=True)}


def main_part(fit):
    return next(iter(shares(fit)), "unchanged")


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        ("nothing", "unchanged"),
        ("slope", "line"),
        ("upper end", "beta"),
        ("both ends", "isotonic"),
        ("group", "groups"),
        ("interaction", "trees"),
        ("where the score is high", "trees"),
    ],
)
def test_most_of_the_choice_is_the_candidate_that_is_right(kind, chosen):
    y, p, X, _ = world(4000, kind)
    fit = recalibrate(y, p, X)
    assert main_part(fit) == chosen
    assert sum(shares(fit).values()) <= 1.0
    fresh_y, fresh_p, fresh_X, fresh_truth = world(8000, kind, 1)
    before, after, best = (log_loss(fresh_y, q) for q in (fresh_p, fit.predictor(fresh_p, fresh_X), fresh_truth))
    assert after == before if kind == "nothing" else after - best < 0.35 * (before - best)
    assert bool(fit.predictor.updates) == (kind != "nothing")


def test_the_score_is_a_column_of_the_trees():
    """An error that only rows of a high score have is out of reach for functions of X alone."""
    y, p, X, _ = world(6000, "where the score is high")
    fit = recalibrate(y, p, X)
    assert fit.predictor.scores == ("score",)
    assert "score" not in fit.predictor.columns
    sure, high = X["a"] > 0.5, p > 0.8
    calibrated = fit.predictor(p, X)
    assert abs((y - p)[sure & high].mean()) > 0.2
    assert abs((y - calibrated)[sure & high].mean()) < 0.06
    assert abs((y - calibrated)[sure & (p < 0.5)].mean()) < 0.03


def test_a_column_called_score_is_no_obstacle():
    y, p, X, _ = world(3000, "interaction")
    X = {**X, "score": np.arange(3000.0) % 7}
    fit = recalibrate(y, p, X)
    assert fit.predictor.scores == ("score_",)
    assert "score" in fit.predictor.columns
    assert np.isfinite(fit.predictor(p, X)).all()


@pytest.mark.parametrize("n", [60, 300, 1000])
def test_few_rows_of_a_good_model_do_no_harm(n):
    changes = []
    for seed in range(6):
        y, p, X, _ = world(n, "nothing", seed)
        fresh_y, fresh_p, fresh_X, _ = world(4000, "nothing", seed + 100)
        fit = recalibrate(y, p, X, random_state=seed)
        changes.append(log_loss(fresh_y, fit.predictor(fresh_p, fresh_X)) - log_loss(fresh_y, fresh_p))
    assert np.mean(changes) < 0.0015


def test_fewer_than_fifty_rows_leave_the_model_as_it_is():
    y, p, X, _ = world(49, "slope")
    fit = recalibrate(y, p, X)
    assert [one.name for one in fit.candidates] == ["unchanged"]
    np.testing.assert_array_equal(fit.predictor(p, X), p)


def test_several_classes_are_recalibrated_jointly():
    rng = np.random.default_rng(0)
    z, a = rng.normal(0, 1.5, (6000, 4)), rng.normal(size=6000)
    truth = softmax(z + 1.5 * np.sign(a)[:, None] * np.array([1.0, -1.0, 0.0, 0.0]), axis=1)
    y = (rng.random((6000, 1)) > np.cumsum(truth, axis=1)).sum(axis=1)
    p, half = softmax(2.0 * z, axis=1), np.arange(6000) < 3000
    fit = recalibrate(y[half], p[half], {"a": a[half]}, classes=range(4))
    calibrated = fit.predictor(p[~half], {"a": a[~half]})
    np.testing.assert_allclose(calibrated.sum(axis=1), 1.0)
    before, after, best = (log_loss(y[~half], q) for q in (p[~half], calibrated, truth[~half]))
    assert after - best < 0.1 * (before - best)
    row = {"a": float(a[-1])}
    np.testing.assert_allclose(fit.predictor.one(p[-1].tolist(), row), calibrated[-1], atol=1e-12)


def test_bounded_outcomes_are_no_labels():
    rng = np.random.default_rng(0)
    a, p = rng.normal(size=5000), rng.uniform(0.1, 0.9, 5000)
    truth = np.clip(p + 0.1 * np.sign(a), 0, 1)
    y = np.clip(truth + rng.normal(0, 0.05, 5000), 0, 1)
    fit = recalibrate(y, p, {"a": a})
    assert np.abs(fit.predictor(p, {"a": a}) - truth).mean() < 0.25 * np.abs(p - truth).mean()


def test_weights_count_and_rows_without_weight_do_not():
    y, p, X, _ = world(3000, "group")
    weight = np.where(np.arange(3000) < 2000, 1.0, 0.0)
    noise = np.where(np.arange(3000) < 2000, y, 1 - y)
    one, other = (recalibrate(labels, p, X, sample_weight=weight, random_state=1) for labels in (y, noise))
    np.testing.assert_array_equal(one.predictor(p, X), other.predictor(p, X))
    assert main_part(one) == "groups"


def test_protected_groups_are_not_made_worse():
    """Most people gain from a correction that is wrong for a small group: it is not chosen where they are protected."""
    rng = np.random.default_rng(3)
    n = 6000
    small = rng.random(n) < 0.06
    z = rng.normal(0, 1.0, n)
    y = (rng.random(n) < sigmoid(np.where(small, z + 0.7, z))).astype(int)
    p = sigmoid(np.where(small, z + 0.7, z + 0.25))
    X = {"s": np.where(small, "few", "many")}
    free, fair = recalibrate(y, p, X), recalibrate(y, p, X, groups="s")
    before = free.candidates[0].violation
    assert fair.candidates.chosen.violation <= before
    assert fair.candidates[0].name == "unchanged"
    with pytest.raises(InvalidInput, match="groups is empty"):
        recalibrate(y, p, X, groups=[])
    with pytest.raises(lowcal.MissingColumn, match="nobody"):
        recalibrate(y, p, X, groups="nobody")


def test_matrix_scaling_corrects_what_no_temperature_can():
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1.5, (8000, 3))
    mixed = z @ np.array([[1.0, 0.6, 0.0], [0.0, 1.0, 0.6], [0.6, 0.0, 1.0]])
    y = np.array([rng.choice(3, p=q) for q in softmax(mixed, axis=1)])
    p = softmax(z, axis=1)
    fit = recalibrate(y[:4000], p[:4000])
    assert main_part(fit) == "line"
    before, after, best = (log_loss(y[4000:], q[4000:]) for q in (p, fit.predictor(p), softmax(mixed, axis=1)))
    assert after - best < 0.1 * (before - best)


@pytest.mark.parametrize(("kind", "curve"), [("upper end", "beta"), ("both ends", "isotonic")])
def test_curves_are_the_same_under_any_home(kind, curve, tmp_path):
    y, p, X, _ = world(3000, kind)
    p[:2] = 0.0, 1.0
    fit = recalibrate(y, p, X, random_state=1)
    assert curve in shares(fit)
    calibrated = fit.predictor(p, X)
    assert calibrated.min() > 0.0
    assert calibrated.max() < 1.0
    lowcal.save(fit, tmp_path / "model.json")
    np.testing.assert_array_equal(lowcal.load(tmp_path / "model.json").predictor(p, X), calibrated)
    for k in range(5):
        row = {name: column[k].item() for name, column in X.items()}
        assert fit.predictor.one(p[k], row) == pytest.approx(calibrated[k], abs=1e-12)
    pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(lowcal.to_onnx(fit.predictor).SerializeToString())
    feeds = {"p": p, **X, "g": X["g"].astype(object)}
    (found,) = session.run(None, {put.name: feeds[put.name] for put in session.get_inputs()})
    np.testing.assert_allclose(found, calibrated, atol=1e-9)


def test_no_columns_at_all():
    y, p, _, _ = world(3000, "slope")
    fit = recalibrate(y, p)
    assert main_part(fit) == "line"
    assert abs(np.mean(y - fit.predictor(p))) < 0.005


def test_a_fit_is_the_same_again_and_under_any_home(tmp_path):
    y, p, X, _ = world(3000, "interaction")
    fit = recalibrate(y, p, X)
    calibrated = fit.predictor(p, X)
    np.testing.assert_array_equal(recalibrate(y, p, X).predictor(p, X), calibrated)
    lowcal.save(fit, tmp_path / "model.json")
    loaded = lowcal.load(tmp_path / "model.json")
    np.testing.assert_array_equal(loaded.predictor(p, X), calibrated)
    assert loaded.candidates == fit.candidates
    assert str(loaded) == str(fit)
    for k in range(5):
        row = {name: column[k].item() for name, column in X.items()}
        assert fit.predictor.one(p[k], row) == pytest.approx(calibrated[k], abs=1e-12)
        assert fit.predictor.one(p[k], [row[name] for name in fit.predictor.columns]) == pytest.approx(calibrated[k])
    *_, last = fit.predictor.staged(p, X)
    np.testing.assert_allclose(last, calibrated, atol=1e-15)


def test_an_onnx_graph_reads_the_score_from_p():
    pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    y, p, X, _ = world(3000, "where the score is high")
    fit = recalibrate(y, p, X)
    assert fit.predictor.scores
    session = ort.InferenceSession(lowcal.to_onnx(fit.predictor).SerializeToString())
    names = {put.name for put in session.get_inputs()}
    assert names <= {"p", "a", "b", "g"}
    feeds = {"p": p, **X, "g": X["g"].astype(object)}
    (found,) = session.run(None, {name: feeds[name] for name in names})
    np.testing.assert_allclose(found, fit.predictor(p, X), atol=1e-9)


def test_candidates_print_as_a_table_and_say_what_was_chosen():
    y, p, X, _ = world(3000, "group")
    fit = recalibrate(y, p, X)
    lines = str(fit.candidates).splitlines()
    assert lines[0].split()[0] == "candidate"
    assert [line[:2] for line in lines[1:]].count("* ") == 1
    assert len({len(line) for line in lines}) == 1, "the columns of the table line up"
    assert str(fit).startswith(
        f"Chosen by cross-validation (*): {fit.candidates.chosen.name}. Log loss on held-out rows: 0."
    )
    assert fit.candidates.chosen is fit.candidates[-1]
    assert isinstance(fit.candidates, Candidates)
    assert fit.status == "chosen"
    assert fit.start.held_out_log_loss == fit.candidates[0].log_loss
    assert fit.history[-1].held_out_log_loss == fit.candidates.chosen.log_loss


def test_progress_is_shown(capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr("lowcal.data.progress.time.monotonic", iter(range(0, 10**6, 2)).__next__)
    y, p, X, _ = world(500, "slope")
    recalibrate(y, p, X, progress=True)
    shown = capsys.readouterr().err
    assert "fitting simple candidates, 1 of 5 folds" in shown
    assert f"boosting trees, {PATIENCE} of {MOST_TREES} rounds" in shown


@pytest.mark.parametrize("cv", [1, 0, 2.5, "5"])
def test_folds_that_are_none_are_refused(cv):
    y, p, X, _ = world(100, "nothing")
    with pytest.raises(InvalidInput, match="cv"):
        recalibrate(y, p, X, cv=cv)


def test_the_order_of_a_model_is_kept():
    data = make_miscalibrated(6000, random_state=3)
    half = np.arange(6000) < 3000
    fit = recalibrate(data.y[half], data.p[half], rows(data.X, half))
    calibrated = fit.predictor(data.p[~half], rows(data.X, ~half))
    assert roc_auc_score(data.y[~half], calibrated) > roc_auc_score(data.y[~half], data.p[~half]) - 0.002


def look_at(y, z, takes_line=False, **moves):
    """Return candidates that move the log odds z of all rows, as if they had been fitted to others."""
    outcomes, table = read_rows(y, sigmoid(z), {"g": np.where(np.arange(len(z)) % 2, "u", "v")})
    shared = Shared(table, outcomes.weight, outcomes.p, 0, takes_line)
    judge = Judge(Side(shared, outcomes, np.arange(len(z))), shared.groups, [len(z)])
    p = {"unchanged": outcomes.p} | {name: sigmoid(z + move)[:, None] for name, move in moves.items()}
    return Look(judge, list(judge.all(p).values()), True)


def test_half_of_a_correction_that_goes_too_far_is_taken():
    """The best share by held-out rows, times 1 - k / Q, and 0 where the evidence Q is below k."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=40_000)
    y = (rng.random(40_000) < sigmoid(z + 0.5)).astype(int)
    _, shares = _choose(look_at(y, z, line=np.full(len(z), 1.0)), is_protected=False)
    assert shares["line"] == pytest.approx(0.5, abs=0.03)
    few = slice(0, 300)
    _, less = _choose(look_at(y[few], z[few], line=np.full(300, 1.0)), is_protected=False)
    assert 0.0 < less["line"] < 0.95 * shares["line"]
    right = (rng.random(40_000) < sigmoid(z)).astype(int)
    judged, none = _choose(look_at(right, z, line=rng.normal(0, 0.01, 40_000)), is_protected=False)
    assert (judged.name, none) == ("unchanged", {})


def test_a_share_is_shrunk_by_what_noise_would_gain():
    """With Q twice the gain in log likelihood, 1 - 4 / Q of the best share is taken."""
    rng = np.random.default_rng(2)
    z = rng.normal(size=500)
    y = (rng.random(500) < sigmoid(z + 0.3)).astype(int)
    best = minimize_scalar(lambda s: log_loss(y, sigmoid(z + s)), bounds=(0, 1), method="bounded")
    evidence = 2 * 500 * (log_loss(y, sigmoid(z)) - best.fun)
    assert 4.0 < evidence < 40.0
    _, shares = _choose(look_at(y, z, line=np.ones(500)), is_protected=False)
    assert shares["line"] == pytest.approx(best.x * (1 - 4 / evidence), abs=2e-3)


def test_every_candidate_that_shows_nothing_raises_the_bar():
    """Evidence of 5 is enough for the first candidate, and not for one after nine that showed nothing."""
    rng = np.random.default_rng(1)
    z = np.zeros(2000)
    y = (np.arange(2000) < 1050).astype(int)
    move = np.full(2000, 0.1)
    assert _choose(look_at(y, z, line=move), is_protected=False)[1]
    evidence = 2 * 2000 * (log_loss(y, sigmoid(z)) - log_loss(y, sigmoid(z + move)))
    assert 4.0 < evidence < 6.0
    noise = {f"noise {k}": np.where(y, -1.0, 1.0) * rng.random(2000) for k in range(9)}
    assert not _choose(look_at(y, z, **noise, line=move), is_protected=False)[1]


@pytest.mark.parametrize(
    ("violation", "auc", "is_protected", "is_taken"),
    [(0.9, 0.8, False, True), (0.9, 0.8, True, False), (0.0, 0.8, True, True), (0.0, 0.4, False, False)],
)
def test_a_better_loss_is_not_enough(violation, auc, is_protected, is_taken):
    """What makes protected groups worse is not taken, nor what loses the order of the model."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=2000)
    look = look_at((rng.random(2000) < sigmoid(z + 0.5)).astype(int), z, groups=np.full(2000, 0.5))
    figures = {"violation": violation, "auc": auc}
    judged = look.judge.all
    look.judge.all = lambda p: {name: replace(one, **figures) for name, one in judged(p).items()}
    assert bool(_choose(look, is_protected=is_protected)[1]) == is_taken


@pytest.mark.parametrize(("slope", "is_taken"), [(0.1, True), (-0.1, False)])
def test_a_line_that_rises_keeps_the_order_whatever_its_folds_do(slope, is_taken):
    """Of scores that know little, lines of single folds fall by chance: the AUC of these is no reason to refuse."""
    rng = np.random.default_rng(0)
    z = 3.0 * rng.normal(size=2000)
    look = look_at((rng.random(2000) < sigmoid(slope * z)).astype(int), z, line=(slope - 1.0) * z)
    judged = look.judge.all
    look.judge.all = lambda p: {name: replace(one, auc=0.4) for name, one in judged(p).items()}
    assert bool(_choose(look, is_protected=False)[1]) == is_taken


def test_a_line_that_is_presumed_is_taken_whole():
    z = np.zeros(2000)
    y = (np.arange(2000) < 1010).astype(int)
    for move in (0.02, -0.01):
        look = {presumed: look_at(y, z, presumed, line=np.full(2000, move)) for presumed in (False, True)}
        assert _choose(look[True], is_protected=False)[1] == {"line": 1.0}
        assert not _choose(look[False], is_protected=False)[1]


@pytest.mark.parametrize("seed", range(4))
def test_several_classes_that_are_far_too_sure_are_cooled_even_if_the_order_of_rows_suffers(seed):
    """On few rows the AUC of folds is noise, and matrix scaling loses some: no reason to leave a model as it is."""
    rng = np.random.default_rng(seed)
    z = 0.15 * rng.normal(size=(5300, 3))
    y = (rng.random((5300, 1)) > np.cumsum(softmax(z, axis=1), axis=1)).sum(axis=1)
    p = softmax(15.0 * z + rng.normal(size=z.shape), axis=1)
    fit = recalibrate(y[:300], p[:300])
    assert log_loss(y[300:], fit.predictor(p[300:])) < 1.2 < log_loss(y[300:], p[300:])


def test_a_line_that_is_presumed_is_platt_scaling():
    y, p, X, _ = world(400, "slope")
    outcomes, table = read_rows(y, p, X)
    line = Side(Shared(table, outcomes.weight, outcomes.p, 0, True), outcomes, np.arange(400)).line
    z = np.log(p / (1.0 - p))
    platt = LogisticRegression(C=np.inf, tol=1e-8).fit(z[:, None], y)
    np.testing.assert_allclose(line.theta[:, 0] + [0.0, 1.0], [*platt.intercept_, *platt.coef_[0]], atol=1e-4)


def test_trees_that_did_not_grow_are_the_line_that_they_begin_with():
    y, p, X, _ = world(400, "slope")
    outcomes, table = read_rows(y, p, X)
    whole = Side(Shared(table, outcomes.weight, outcomes.p, 0), outcomes, np.arange(400))
    both, line = (fit(whole, parts, 0) for parts in ({"line": 0.5, "trees": 0.25}, {"line": 0.75}))
    np.testing.assert_array_equal(*(one.updates[0](outcomes.p, one.rows) for one in (both, line)))


def test_shares_of_candidates_add_up_in_log_odds():
    """Of groups and trees at once, several classes or two: the final fit is the sum of its parts."""
    rng = np.random.default_rng(0)
    y, p, X, _ = world(1500, "group")
    many = rng.normal(size=(1500, 3))
    label = (rng.random((1500, 1)) > np.cumsum(softmax(many, axis=1), axis=1)).sum(axis=1)
    for labels, given, curves in ((y, p, {"beta": 0.1}), (label, softmax(2.0 * many, axis=1), {})):
        outcomes, table = read_rows(labels, given, X)
        whole = Side(Shared(table, outcomes.weight, outcomes.p, 0), outcomes, np.arange(1500))

        def log_odds(parts, whole=whole, outcomes=outcomes):
            final, at = fit(whole, parts, 5), outcomes.p
            for update in final.updates:
                at = update(at, final.rows)
            z = np.log(at) if at.shape[1] > 1 else np.log(at / (1.0 - at))
            return z - z.mean(axis=1, keepdims=True) if at.shape[1] > 1 else z

        start = log_odds({})
        each = {"line": 0.2, **curves, "isotonic": 0.1, "groups": 0.3, "trees": 0.25}
        moved = sum(share * (log_odds({name: 1.0}) - start) for name, share in each.items())
        np.testing.assert_allclose(log_odds(each), start + moved, atol=1e-8)


@pytest.mark.parametrize("d", [4, 8])
def test_the_line_of_several_classes_is_a_temperature(d):
    """Of many classes it is nothing else, of a few the rest is noise that is shrunk away."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(600, d))
    y = (rng.random((600, 1)) > np.cumsum(softmax(z, axis=1), axis=1)).sum(axis=1)
    fit = recalibrate(y, softmax(3.0 * z, axis=1))
    assert list(shares(fit)) == ["line"]
    ((term,),) = (update.terms for update in fit.predictor.updates)
    shifts, slopes = term.theta[0, 0], term.theta[0, 1:]
    mean = np.trace(slopes) / d
    rest = np.abs(slopes - mean * np.eye(d)).max(), np.abs(shifts).max()
    assert max(rest) < 0.15 if d == 4 else not any(rest)
    assert abs(1.0 + mean - 1 / 3) < 0.05


def test_a_beta_curve_never_falls():
    """Positives at both ends call for a curve that falls, which would go astray beyond the rows: the line stands in."""
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1.0, 2000)
    fit = recalibrate((rng.random(2000) < sigmoid(z**2 - 1.5)).astype(int), sigmoid(z))
    line, beta = (one for one in fit.candidates if one.name in ("line", "beta"))
    assert beta.log_loss == pytest.approx(line.log_loss, rel=1e-12)


def test_an_interrupt_keeps_the_best_candidate_so_far(monkeypatch):
    y, p, X, _ = world(1000, "group")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lowcal.solve.candidates.Boosting.grow", interrupt)
    with pytest.raises(lowcal.FitInterrupted, match=r"after 5 candidates; the best of them, 0\.9\d groups") as caught:
        recalibrate(y, p, X)
    fit = caught.value.fit
    assert fit.status == "stopped"
    assert [one.name for one in fit.candidates][:-1] == ["unchanged", "line", "beta", "isotonic", "groups"]
    assert log_loss(y, fit.predictor(p, X)) < log_loss(y, p)
    monkeypatch.setattr("lowcal.solve.recalibration.Fold", interrupt)
    with pytest.raises(KeyboardInterrupt) as early:
        recalibrate(y, p, X)
    assert not isinstance(early.value, lowcal.FitInterrupted)


def test_the_choice_is_made_on_a_sample_of_many_rows():
    few, many = np.full(CHOSEN_ON, 1.0 / CHOSEN_ON), np.linspace(1.0, 2.0, CHOSEN_ON + 50_000)
    assert _sampled(few, 0) is few
    kept = _sampled(many, 0)
    assert np.count_nonzero(kept) == CHOSEN_ON
    assert np.array_equal(kept[kept > 0.0], many[kept > 0.0])
    assert kept[: len(kept) // 2].any()
    assert not np.array_equal(kept, _sampled(many, 1))
    ((fitted, held),) = deal(kept, 0.2, 0, JUDGED)
    assert len(fitted) + len(held) == CHOSEN_ON


@pytest.mark.parametrize(
    ("n", "cv", "n_judged", "rounds"), [(JUDGED, 5, 5, 12), (JUDGED, 3, 3, 15), (JUDGED + 1000, 5, 3, 15)]
)
def test_many_rows_are_dealt_into_fewer_folds_and_all_rows_get_more_rounds(n, cv, n_judged, rounds, monkeypatch):
    monkeypatch.setattr("lowcal.solve.recalibration.MOST_TREES", 10)  # far fewer than this world asks for
    seen = []
    monkeypatch.setattr("lowcal.solve.recalibration.deal", lambda *how: seen.extend(deal(*how)) or seen)
    y, p, X, _ = world(n, "interaction")
    fit = recalibrate(y, p, X, cv=cv)
    assert len(seen) == n_judged
    assert fit.candidates.chosen.n_trees == rounds  # 10, times all rows over those outside a fold
    assert f"sum of {rounds} trees" in str(fit.predictor.to_dict())


def test_rows_without_weight_are_as_good_as_gone():
    """Not even the bins of numbers depend on them."""
    y, p, X, _ = world(1200, "interaction")
    weight = np.where(np.arange(1200) % 3 == 0, 0.0, 1.0)
    kept = np.flatnonzero(weight)
    one = recalibrate(y, p, X, sample_weight=weight)
    other = recalibrate(y[kept], p[kept], rows(X, kept))
    assert one.candidates.chosen.name == other.candidates.chosen.name != "unchanged"
    np.testing.assert_allclose(one.predictor(p, X), other.predictor(p, X), atol=1e-10)


def test_categories_of_a_fold_are_in_the_order_of_the_rows_outside():
    """Also those that occur in the fold alone, whose sums outside are nothing but rounding."""
    rng = np.random.default_rng(0)
    n = 3000
    g = rng.choice([f"g{k}" for k in range(12)], n)
    y, p = (rng.random(n) < 0.3).astype(int), rng.uniform(0.1, 0.6, n)
    outcomes, _ = read_rows(y, p, None)
    dealt = list(deal(outcomes.weight, 0.2, 0, JUDGED))
    g[dealt[1][1]] = [f"z{k % 80}" for k in range(len(dealt[1][1]))]
    weight = rng.random(n) + 0.01
    outcomes, table = read_rows(y, p, {"g": g, "h": rng.choice(["u", "v", "w"], n)}, weight)
    whole = Side(Shared(table, outcomes.weight, outcomes.p, 0), outcomes, np.arange(n))
    bins = whole.shared.bins
    for (fitted, _), codes in zip(dealt, ordered(whole, dealt), strict=True):
        outside = Side.of(whole.shared, outcomes, fitted)
        place = bins.order_by(bins.sums(fitted, outside.outcomes.weight, outside.outcomes.residual()))
        np.testing.assert_array_equal(codes, bins.codes_after(place))


def worst_day(kind):
    """Return rows to recalibrate on, and fresh ones, of a good model on a bad day."""
    rng = np.random.default_rng(5)
    n = {"60 rows": 60, "200 rows": 200}.get(kind, 1000)
    size = n + 8000
    z = rng.normal(-4.6 if kind == "1.5 % positives" else 0.0, 1.0, size)
    X = {"a": rng.normal(size=size), "g": rng.choice(["u", "v"], size)}
    weight = None
    if kind == "many levels":
        X["city"] = rng.choice([f"c{k}" for k in range(400)], size)
    if kind == "ids":
        X["id"] = np.array([f"row {k}" for k in range(size)])
    if kind == "heavy weights":
        weight = rng.pareto(1.2, n) + 0.01
    if kind == "20 classes":
        p = softmax(rng.normal(0, 2.0, (size, 20)), axis=1)
        y = (rng.random((size, 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(0, 19)
    else:
        p = sigmoid(z)
        y = (rng.random(size) < p).astype(int)
    first = np.arange(size) < n
    return (y[first], p[first], rows(X, first), weight), (y[~first], p[~first], rows(X, ~first))


@pytest.mark.parametrize(
    "kind", ["60 rows", "200 rows", "1.5 % positives", "many levels", "ids", "heavy weights", "20 classes"]
)
def test_a_good_model_is_left_alone_on_its_worst_day(kind):
    (y, p, X, weight), (fresh_y, fresh_p, fresh_X) = worst_day(kind)
    known = {"classes": range(20)} if kind == "20 classes" else {}
    for seed in range(3):
        fit = recalibrate(y, p, X, sample_weight=weight, random_state=seed, **known)
        calibrated = fit.predictor(fresh_p, fresh_X)
        assert np.isfinite(calibrated).all()
        labels = range(20) if known else [0, 1]
        change = log_loss(fresh_y, calibrated, labels=labels) - log_loss(fresh_y, fresh_p, labels=labels)
        assert change < 0.002
