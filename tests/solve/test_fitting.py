"""How a fit ends, what it tells on the way, and what its predictor can do."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from sklearn.linear_model import Ridge

import definition
import lowcal
from lowcal.datasets import make_miscalibrated
from worlds import multicalibrate


@pytest.fixture(scope="module")
def data() -> definition.World:
    return definition.world(400, 2, seed=1)


@pytest.fixture(scope="module")
def three() -> definition.World:
    return definition.world(400, 3, seed=1)


def categories(world: definition.World) -> dict[str, np.ndarray]:
    return {name: world.X[name] for name in ("g0", "g1")}


def fit_groups(world: definition.World, **options: object) -> lowcal.Fit:
    return multicalibrate(
        world.y, world.p, categories(world), subpopulations=lowcal.Groups(min_mass=0), **{"alpha": 0.002, **options}
    )


# ------------------------------------------------------------------------------------------------- how it ends
@pytest.mark.parametrize("solver", ["first", "worst", "block"])
def test_nothing_is_done_where_nothing_is_wrong(solver: str) -> None:
    y = np.array([1, 0, 0, 1, 1, 1, 0, 1])
    p = np.repeat([0.5, 0.75], 4)
    fit = multicalibrate(y, p, {"g": np.repeat(["a", "b"], 4)}, solver=solver, notion="degree-3", alpha=1e-6)
    assert (fit.status, fit.n_updates, fit.history) == ("reached", 0, ())
    assert fit.violation == pytest.approx(0, abs=1e-15)
    assert np.array_equal(fit.predictor(p, {"g": np.repeat("a", 8)}), p)
    assert list(fit.predictor.staged(p, {"g": np.repeat("a", 8)})) == []


@pytest.mark.parametrize("solver", ["first", "worst"])
def test_limit(data: definition.World, solver: str) -> None:
    fit = fit_groups(data, solver=solver, max_updates=2)
    assert (fit.status, fit.n_updates) == ("limit", 2)
    assert fit.violation > 0.002
    more = fit_groups(data, solver=solver, max_updates=4)
    assert np.array_equal(more.predictor[:2](data.p, categories(data)), fit.predictor(data.p, categories(data))), (
        "a shorter run is the beginning of a longer one"
    )


def test_reaching_alpha_with_the_last_allowed_update_is_reaching_it(data: definition.World) -> None:
    free = fit_groups(data)
    assert free.status == "reached"
    assert fit_groups(data, max_updates=free.n_updates).status == "reached"


@pytest.mark.parametrize(("geometry", "loss"), [("euclidean", "brier"), ("mirror", "log_loss")])
def test_patience_keeps_the_best_prefix(geometry: str, loss: str) -> None:
    data = make_miscalibrated(400, n_levels=6, random_state=3)
    options = {
        "subpopulations": lowcal.Intersections(["g0", "g1", "g2", "g3"], min_mass=0),
        "notion": "full-0.1",
        "alpha": 1e-4,
        "solver": "worst",
        "geometry": geometry,
        "random_state": 5,
    }
    fit = multicalibrate(data.y, data.p, data.X, validation_fraction=0.3, **options)
    assert fit.status == "patience"
    scores = [getattr(record, f"held_out_{loss}") for record in fit.history]
    assert None not in scores
    assert all(np.isfinite(record.violation) for record in fit.history)
    best = int(np.argmin(scores)) + 1
    assert 1 <= best == len(fit.predictor)
    assert len(fit.history) == fit.n_updates == best + 20
    assert scores[best - 1] < min(scores[best:])
    # the same split and seed for as many updates: the predictor kept is a prefix of the longer run
    whole = multicalibrate(data.y, data.p, data.X, validation_fraction=0.3, max_updates=best, **options)
    np.testing.assert_allclose(fit.predictor(data.p, data.X), whole.predictor(data.p, data.X), rtol=0, atol=1e-12)
    # the violation is that of the predictor kept, not of the last update
    assert fit.violation == pytest.approx(whole.history[-1].violation, abs=1e-12)
    assert f"after {best + 20} updates, of which the held-out rows keep {best} " in str(fit)


def test_held_out_rows_are_not_fitted() -> None:
    """The fitted Brier score and the held-out one are averages of the same predictions over the two parts.

    A row is held out by chance: about a quarter of them are, and a whole number.
    """
    data = make_miscalibrated(1000, random_state=0)
    fit = multicalibrate(data.y, data.p, data.X, alpha=0.003, validation_fraction=0.25, random_state=0)
    assert fit.n_updates >= 1
    gaps = [score - fit.start.brier for score in (definition.brier(data.y, data.p), fit.start.held_out_brier)]
    share = round(1000 * gaps[0] / gaps[1]) / 1000
    assert 0.2 < share < 0.3
    for record, p in zip(fit.history, fit.predictor.staged(data.p, data.X), strict=False):
        both = (1 - share) * record.brier + share * record.held_out_brier
        assert both == pytest.approx(definition.brier(data.y, p), abs=1e-12)
        both = (1 - share) * record.log_loss + share * record.held_out_log_loss
        assert both == pytest.approx(definition.log_loss(data.y, p), abs=1e-9)


def test_without_held_out_rows_there_are_no_held_out_figures(data: definition.World) -> None:
    record = fit_groups(data).history[0]
    assert record.held_out_brier is record.held_out_violation is record.held_out_log_loss is None


@pytest.mark.parametrize("classes", [2, 3])
def test_noise(classes: int) -> None:
    truth = make_miscalibrated(600, n_classes=classes, random_state=1)
    options = {"subpopulations": lowcal.Groups(["g0", "g1"]), "solver": "worst", "random_state": 0}
    fit = multicalibrate(truth.y, truth.f_star, truth.X, alpha=None, **options)
    assert (fit.status, fit.alpha) == ("noise", None)
    assert fit.violation <= fit.noise_floor
    assert fit.n_updates <= 3
    eager = multicalibrate(truth.y, truth.f_star, truth.X, alpha=1e-5, max_updates=30, **options)
    assert eager.n_updates > fit.n_updates, "without the floor it chases noise"


def test_noise_floor_is_what_chance_shows() -> None:
    """For one group and multiaccuracy: 1.96 standard errors of a mean residual, by simulation: the mean of ten."""
    rng = np.random.default_rng(0)
    p = np.full(2500, 0.3)
    y = (rng.random(2500) < p).astype(int)
    options = {"notion": "multiaccuracy", "alpha": None, "solver": "worst"}
    floors = [multicalibrate(y, p, random_state=seed, **options).noise_floor for seed in range(10)]
    assert np.mean(floors) == pytest.approx(1.96 * np.sqrt(0.3 * 0.7 / 2500), rel=0.12)
    assert len(set(floors)) > 1


def test_noise_floor_of_smooth_weights_is_that_of_exact_suprema(data: definition.World) -> None:
    """It is measured on a grid of predictions, for the same redrawn labels."""
    options = {"notion": "smooth", "alpha": None, "solver": "worst", "max_updates": 1, "random_state": 0}
    floor = multicalibrate(data.y, data.p, data.X, **options).noise_floor
    rng, p = np.random.default_rng(0), np.asarray(data.p)
    redrawn = [(rng.random(len(p)) < p).astype(int) for _ in range(40)]
    exact = [lowcal.measure(y, p, data.X, notion="smooth").largest for y in redrawn]
    assert floor == pytest.approx(np.quantile(exact, 0.95), rel=0.2)


# -------------------------------------------------------------------------------------------- what it tells
def test_callback_sees_every_record_in_order_and_stops(data: definition.World) -> None:
    seen: list[lowcal.Record] = []
    fit = fit_groups(data, solver="worst", callback=seen.append)
    assert fit.status == "reached"
    assert [record.n_updates for record in seen] == list(range(1, fit.n_updates + 1))
    assert [record.brier for record in seen] == [record.brier for record in fit.history]
    # the callback is told the violation that the update answered
    assert [record.violation for record in seen[1:]] == [record.violation for record in fit.history[:-1]]

    stopped = fit_groups(data, solver="worst", callback=lambda record: record.n_updates == 3)
    assert (stopped.status, stopped.n_updates, len(stopped.history)) == ("stopped", 3, 3)
    assert stopped.history[-1].violation == stopped.violation == pytest.approx(fit.history[2].violation, abs=1e-15)


def test_interrupt_keeps_what_was_reached(data: definition.World) -> None:
    def interrupt(record: lowcal.Record) -> None:
        if record.n_updates == 3:
            raise KeyboardInterrupt

    with pytest.raises(lowcal.FitInterrupted, match="3 updates") as caught:
        fit_groups(data, solver="worst", callback=interrupt)
    assert isinstance(caught.value, KeyboardInterrupt)
    fit = caught.value.fit
    assert (fit.status, fit.n_updates) == ("stopped", 3)
    whole = fit_groups(data, solver="worst")
    X = categories(data)
    assert np.array_equal(fit.predictor(data.p, X), whole.predictor[:3](data.p, X))


def test_progress_with_tqdm(data: definition.World, capsys: pytest.CaptureFixture[str]) -> None:
    fit = fit_groups(data, solver="worst", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{fit.n_updates} updates" in err
    assert "violation" in err


def test_progress_without_tqdm(
    data: definition.World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    clock = iter(range(0, 10**6, 10))
    monkeypatch.setattr("lowcal.data.progress.time.monotonic", lambda: next(clock))
    fit = fit_groups(data, solver="worst", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert f"lowcal: {fit.n_updates} updates, violation" in err


def test_no_progress_by_default(data: definition.World, capsys: pytest.CaptureFixture[str]) -> None:
    fit_groups(data)
    assert capsys.readouterr() == ("", "")


def test_fit_and_updates_can_be_read(data: definition.World, three: definition.World) -> None:
    fit = fit_groups(data, solver="worst", max_updates=2)
    assert str(fit).startswith("degree-2 at alpha=0.002: limit after 2 updates (bound ")
    assert "max_updates" in str(fit)
    assert "learner" not in str(fit)
    assert "Predictor(2 updates, scalar convention)" in repr(fit)
    assert "history" not in repr(fit)
    first = str(fit.predictor.updates[0])
    assert first.startswith("f <- f ")
    assert "[g" in first or "[everyone]" in first
    assert "label" not in first
    block = str(fit_groups(three, max_updates=1, geometry="euclidean").predictor.updates[0])
    assert "on label 2" in block
    assert "terms)" in block
    assert "3 classes" in repr(fit_groups(three, max_updates=1).predictor)
    learned = multicalibrate(data.y, data.p, data.X, subpopulations=lowcal.Trees(min_mass=20), alpha=0.05)
    assert "found by a learner" in str(learned)


# ----------------------------------------------------------------------------------- what the predictor can do
def test_slices(data: definition.World) -> None:
    X = categories(data)
    fit = fit_groups(data, solver="worst")
    stages = list(fit.predictor.staged(data.p, X))
    assert len(stages) == len(fit.predictor) == fit.n_updates > 3
    for t in range(fit.n_updates + 1):
        prefix = fit.predictor[:t]
        assert len(prefix) == t
        assert np.array_equal(prefix(data.p, X), stages[t - 1] if t else data.p)
    rest = fit.predictor[2:]
    assert np.array_equal(rest(fit.predictor[:2](data.p, X), X), stages[-1]), "updates compose"
    with pytest.raises(TypeError, match="sliced"):
        fit.predictor[0]


def built_in(data: definition.World) -> list[tuple[object, lowcal.Subpopulations]]:
    cats = categories(data)
    return [
        (cats, lowcal.Groups(min_mass=0)),
        (data.X, lowcal.Groups(n_bins=4)),
        (cats, lowcal.Intersections(min_mass=0)),
        (data.fractional, lowcal.Memberships(min_mass=0)),
        (data.binary, lowcal.Memberships(min_mass=0)),
        ({"t": data.X["t"]}, lowcal.Thresholds(min_mass=5)),
        (data.X, lowcal.Trees(max_depth=2, min_mass=20)),
        (data.X, lowcal.Linear()),
        (data.X, lowcal.Groups(["g0"]) + lowcal.Trees(min_mass=20)),
    ]


@pytest.mark.parametrize("which", range(9))
@pytest.mark.parametrize("notion", ["degree-2", "smooth", "full-0.5"])
@pytest.mark.parametrize("classes", [2, 3])
def test_plain_form(classes: int, notion: str, which: int) -> None:
    data = definition.world(150, classes, seed=1)
    X, subpopulations = built_in(data)[which]
    fit = multicalibrate(
        data.y,
        data.p,
        X,
        subpopulations=subpopulations,
        notion=notion,
        alpha=0.01,
        max_updates=2,
        solver="worst",
        guard=False,
    )
    plain = fit.predictor.to_dict()
    assert json.loads(json.dumps(plain)) == plain, "numbers, strings, lists and dictionaries only"
    assert plain["kind"] == "lowcal.predictor"
    assert len(plain["updates"]) == fit.n_updates >= 1


def test_foreign_estimators_have_no_plain_form(data: definition.World) -> None:
    fit = multicalibrate(data.y, data.p, data.X, subpopulations=lowcal.Regressor(Ridge()), alpha=0.01)
    assert fit.status == "reached"
    assert not fit.is_exact
    assert any(term.family.names != ("everyone",) for u in fit.predictor.updates for term in u.terms)
    with pytest.raises(lowcal.InvalidInput, match="plain data"):
        fit.predictor.to_dict()


@pytest.mark.product
@pytest.mark.parametrize("solver", ["first", "worst", "block"])
@pytest.mark.parametrize("kind", [lowcal.Groups(), lowcal.Trees(), lowcal.Linear(), lowcal.Regressor(Ridge())])
@pytest.mark.parametrize("guard", [True, False])
def test_same_seed_same_bytes(kind: lowcal.Subpopulations, solver: str, guard: bool) -> None:
    data = make_miscalibrated(250, n_classes=3, random_state=2)

    def once() -> lowcal.Fit:
        return multicalibrate(
            data.y,
            data.p,
            data.X,
            subpopulations=kind,
            alpha=0.02,
            solver=solver,
            guard=guard,
            validation_fraction=0.0 if guard else 0.2,
            random_state=7,
            max_updates=20,
        )

    a, b = once(), once()
    assert a.history == b.history
    assert a.predictor(data.p, data.X).tobytes() == b.predictor(data.p, data.X).tobytes()


def test_seeds_split_differently() -> None:
    data = make_miscalibrated(500, random_state=2)
    scores = {
        multicalibrate(data.y, data.p, data.X, validation_fraction=0.2, random_state=seed).history[0].held_out_brier
        for seed in (1, 2)
    }
    assert len(scores) == 2


def test_unseen_and_missing_values_at_prediction(data: definition.World) -> None:
    """An unseen value is in no group of its column: it moves as if it had none of that column's memberships."""
    X = categories(data)
    options = {"notion": "multiaccuracy", "alpha": 0.002, "solver": "worst", "geometry": "euclidean"}
    fit = multicalibrate(data.y, data.p, X, subpopulations=lowcal.Groups(min_mass=0), **options)
    p = np.full(4, 0.4)
    new = {
        "g0": np.array(["a", "never", None, "never"], dtype=object),
        "g1": np.array(["u", "u", "u", None], dtype=object),
    }
    by_hand = p.copy()
    for update in fit.predictor.updates:
        (term,) = update.terms
        (name,) = term.family.names
        column, _, value = name.partition("=")
        inside = np.ones(4) if name == "everyone" else np.array([x == value for x in new[column]], dtype=float)
        by_hand = np.clip(by_hand + term.theta[0, 0, 0] * inside, 0, 1)
    got = fit.predictor(p, new)
    np.testing.assert_allclose(got, by_hand, rtol=0, atol=1e-12)
    assert got[0] != got[1] == got[2], "nothing was missing in fitting, so missing is in no group either"


def test_missing_is_a_group_of_its_own() -> None:
    rng = np.random.default_rng(0)
    g = rng.choice(np.array(["a", None], dtype=object), 400)
    missing = np.array([v is None for v in g])
    y = (rng.random(400) < np.where(missing, 0.8, 0.3)).astype(int)
    fit = multicalibrate(y, np.full(400, 0.5), {"g": g}, notion="multiaccuracy", alpha=1e-4)
    got = fit.predictor(np.full(3, 0.5), {"g": np.array(["a", None, "z"], dtype=object)})
    assert got[0] == pytest.approx(y[~missing].mean(), abs=1e-3)
    assert got[1] == pytest.approx(y[missing].mean(), abs=1e-3)
    # tables of numbers mark it by NaN
    x = np.where(missing, np.nan, 1.0)
    fit = multicalibrate(y, np.full(400, 0.5), {"x": x}, notion="multiaccuracy", alpha=1e-4)
    assert fit.predictor(np.full(2, 0.5), {"x": [1.0, np.nan]}) == pytest.approx(got[:2], abs=1e-3)


def test_without_x_everyone_is_looked_at(data: definition.World) -> None:
    fit = multicalibrate(data.y, data.p, notion="degree-2", alpha=0.001)
    assert fit.status == "reached"
    assert {name for u in fit.predictor.updates for term in u.terms for name in term.family.names} == {"everyone"}
    calibrated = fit.predictor(data.p)
    assert definition.supremum("degree-2", np.ones((400, 1)), data.hot, calibrated) <= 0.001 + 1e-12
    assert lowcal.measure(data.y, calibrated, notion="degree-2").largest == pytest.approx(fit.violation, abs=1e-12)
    with pytest.raises(lowcal.InvalidInput, match="without X"):
        multicalibrate(data.y, data.p, subpopulations=lowcal.Groups())


def test_two_columns_in_two_columns_out(data: definition.World) -> None:
    X = categories(data)
    narrow = fit_groups(data)
    wide = multicalibrate(
        data.y, np.column_stack([1 - data.p, data.p]), X, subpopulations=lowcal.Groups(min_mass=0), alpha=0.002
    )
    out = wide.predictor(np.column_stack([1 - data.p, data.p]), X)
    assert out.shape == (400, 2)
    np.testing.assert_allclose(out.sum(axis=1), 1, atol=1e-15)
    np.testing.assert_allclose(out[:, 1], narrow.predictor(data.p, X), atol=1e-12)
    assert wide.predictor(data.p, X).shape == (400,), "the shape is that of the p at hand"
    assert all(stage.shape == (400, 2) for stage in wide.predictor.staged(out, X))


def test_labels_may_be_anything(data: definition.World, three: definition.World) -> None:
    X = categories(data)
    plain = fit_groups(data).predictor(data.p, X)
    for labels in (np.array(["no", "yes"]), np.array([False, True]), np.array([-1, 1]), np.array(["b", "c"], object)):
        fit = multicalibrate(labels[data.y], data.p, X, subpopulations=lowcal.Groups(min_mass=0), alpha=0.002)
        assert np.array_equal(fit.predictor(data.p, X), plain)
        assert fit.predictor.layout.classes == tuple(labels.tolist())
    flipped = multicalibrate(
        np.array(["no", "yes"])[data.y],
        1 - data.p,
        X,
        subpopulations=lowcal.Groups(min_mass=0),
        alpha=1e-9,
        notion="multiaccuracy",
        classes=["yes", "no"],
    )
    assert (
        definition.supremum("multiaccuracy", definition.groups(X)[1], 1 - data.hot, flipped.predictor(1 - data.p, X))
        <= 1e-9 + 1e-12
    )

    words = np.array(["x", "z", "y"])
    X = categories(three)
    by_name = multicalibrate(
        words[three.y], three.p, X, subpopulations=lowcal.Groups(min_mass=0), alpha=0.002, classes=["x", "z", "y"]
    )
    assert np.array_equal(by_name.predictor(three.p, X), fit_groups(three).predictor(three.p, X))
    # without the names the sorted values are the columns, so y and z swap
    swapped = multicalibrate(words[three.y], three.p, X, subpopulations=lowcal.Groups(min_mass=0), alpha=0.002)
    assert not np.allclose(swapped.predictor(three.p, X), by_name.predictor(three.p, X), atol=0.05)


def test_bounded_outcomes_are_not_labels() -> None:
    data = definition.world(300, 2, bounded=True, seed=2)
    fit = fit_groups(data, notion="multiaccuracy", alpha=1e-6)
    assert fit.predictor.layout.classes is None
    calibrated = fit.predictor(data.p, categories(data))
    assert abs(np.mean(data.y - calibrated)) <= 1e-6


def test_soft_labels_of_several_classes(three: definition.World) -> None:
    soft = 0.8 * three.hot + 0.2 / 3
    X = categories(three)
    fit = multicalibrate(soft, three.p, X, subpopulations=lowcal.Groups(min_mass=0), alpha=0.005)
    assert fit.status == "reached"
    assert definition.supremum("degree-2", definition.groups(X)[1], soft, fit.predictor(three.p, X)) <= 0.005 + 1e-9


def test_default_classes_follow_x(data: definition.World) -> None:
    """Named columns are groups, a bare array is for trees."""
    named = multicalibrate(data.y, data.p, {"g0": data.X["g0"]}, alpha=0.01)
    assert named.is_exact
    assert {n for u in named.predictor.updates for t in u.terms for n in t.family.names} == {"everyone", "g0=a", "g0=b"}
    bare = multicalibrate(data.y, data.p, data.fractional, alpha=0.02)
    assert not bare.is_exact


def test_oracle_calls_are_counted(data: definition.World) -> None:
    short = fit_groups(data, solver="first", max_updates=2)
    long = fit_groups(data, solver="first", max_updates=20)
    assert 2 <= short.n_oracle_calls < long.n_oracle_calls


def test_step_of_the_first_solver_is_the_papers(data: definition.World, three: definition.World) -> None:
    """Line 8 of Algorithm 1: eta = alpha / (2 l), with the sign of the violation."""
    for world, d in ((data, 1), (three, 3)):
        fit = fit_groups(world, solver="first", notion="multiaccuracy", alpha=0.03)
        for update in fit.predictor.updates:
            (term,) = update.terms
            assert np.abs(term.theta).sum() == pytest.approx(0.03 / (2 * d), rel=1e-12)
        own = fit_groups(world, solver="first", notion="multiaccuracy", alpha=0.03, step=0.01)
        assert np.abs(own.predictor.updates[0].terms[0].theta).sum() == pytest.approx(0.01, rel=1e-12)


@pytest.mark.parametrize("notion", ["degree-2", "full-0.25"])
def test_without_a_seed_equal_calls_give_equal_predictors(notion):
    """A sampled Gram matrix (many rows) and the folds of the guard (few rows) take no part in chance."""
    data = make_miscalibrated(30_000 if notion == "degree-2" else 400, n_columns=4, random_state=0)
    a, b = (lowcal.multicalibrate(data.y, data.p, data.X, notion=notion, alpha=0.001) for _ in range(2))
    assert a.history == b.history
    assert a.predictor(data.p, data.X).tobytes() == b.predictor(data.p, data.X).tobytes()


def noisy(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, their true probabilities and labels drawn from them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    truth = 1.0 / (1.0 + np.exp(0.7 * X[:, 1] - X[:, 0]))
    return X, truth, (rng.random(n) < truth).astype(int)


@pytest.mark.parametrize("n", [90, 300, 1000])
@pytest.mark.parametrize("subpopulations", [None, lowcal.Linear()])
def test_a_class_that_is_searched_does_not_learn_few_rows_by_heart(
    n: int, subpopulations: lowcal.Subpopulations | None
) -> None:
    fresh, truth, labels = noisy(5000, 99)
    spoiled = 0.0
    for seed in range(3):
        X, p, y = noisy(n, seed)
        fit = lowcal.multicalibrate(y, p, X, subpopulations=subpopulations, random_state=0)
        assert fit.status in ("noise", "guarded")
        spoiled += float(np.square(fit.predictor(truth, fresh) - labels).mean() - np.square(truth - labels).mean())
    assert spoiled / 3 < 0.01
    if subpopulations is None:
        X, p, y = noisy(n, 0)
        eager = multicalibrate(y, p, X, random_state=0, geometry="euclidean")
        assert np.square(eager.predictor(truth, fresh) - labels).mean() > np.square(truth - labels).mean() + 0.02


def test_forty_constraints_on_few_rows_are_not_learned_by_heart() -> None:
    fresh, truth, labels = noisy(5000, 99)
    X, p, y = noisy(150, 0)
    columns, others = ({name: Z[:, j] for j, name in enumerate("abcde")} for Z in (X, fresh))
    best = np.square(truth - labels).mean()
    for fits, is_spoiled in ((lowcal.multicalibrate, False), (multicalibrate, True)):
        fit = fits(y, p, columns, random_state=0, alpha=0.01)
        assert (np.square(fit.predictor(truth, others) - labels).mean() > best + 0.02) == is_spoiled


@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "degree-3"])
def test_a_study_reaches_a_target_below_the_noise_in_one_update(notion: str) -> None:
    """Shrunk steps stop at the noise of these rows; where nothing guards them, alpha is reached all the same."""
    data = make_miscalibrated(2_000, random_state=0)
    kind = {"subpopulations": lowcal.Groups(), "notion": notion, "alpha": 0.003}
    study = lowcal.multicalibrate(data.y, data.p, data.X, guard=False, **kind)
    assert study.status == "reached"
    assert study.n_updates == 1
    del kind["alpha"]
    assert lowcal.measure(data.y, study.predictor(data.p, data.X), data.X, **kind).largest <= 0.003
