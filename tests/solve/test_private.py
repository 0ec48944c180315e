"""The private solver: its law, its noise, what it releases, what it promises, and what it refuses."""

from __future__ import annotations

from itertools import product
from math import exp, isnan, log

import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax

import definition
import lowcal
from lowcal import Full, InvalidInput, LowDegree, Multiaccuracy
from lowcal.accounting import log_odds_per_score, total_cost
from lowcal.datasets import make_miscalibrated
from lowcal.rows import Memory
from lowcal.solve import private
from lowcal.subpopulations import Groups, Intersections, Linear, Memberships, Private, Thresholds, Trees

EPS = 1e-12


def law(q: np.ndarray, m: int, eps0: float) -> np.ndarray:
    """Return the exponential mechanism's probabilities from the definition: exp(eps0 m q / 4), normalised."""
    weight = np.array([exp(eps0 * m * score / 4) for score in q])
    return weight / weight.sum()


def log_probabilities(q: np.ndarray, m: int, eps0: float) -> np.ndarray:
    """Return the logarithms of the probabilities with which `select` draws each candidate, from its own slope."""
    return log_softmax(log_odds_per_score(m, eps0) * q)


# ------------------------------------------------------------------------------------------------ the law
@pytest.mark.parametrize(("m", "eps0"), [(10, 0.8), (1000, 0.01)])
def test_selection_follows_the_exponential_mechanism(m: int, eps0: float) -> None:
    q = np.array([0.9, 0.5, 0.0, -0.3, -0.9, 0.5])
    rng = np.random.default_rng(0)
    draws = np.bincount([private.select(q, m, eps0, rng) for _ in range(40_000)], minlength=len(q))
    expected = law(q, m, eps0)
    assert np.exp(log_probabilities(q, m, eps0)) == pytest.approx(expected)
    assert stats.chisquare(draws, 40_000 * expected).pvalue > 0.001
    # the test can tell: another slope is rejected
    assert stats.chisquare(draws, 40_000 * law(q, m, 1.3 * eps0)).pvalue < 1e-6


def test_selection_is_stable_where_exponentials_are_not() -> None:
    q = np.array([1.0, -1.0, 0.999])
    rng = np.random.default_rng(0)
    assert {private.select(q, 10**9, 1.0, rng) for _ in range(50)} == {0}
    assert log_probabilities(q, 10**9, 1.0).tolist() == pytest.approx([0.0, -5e8, -2.5e5])


def test_release_adds_laplace_noise_of_the_right_scale() -> None:
    rng = np.random.default_rng(3)
    noise = np.array([private.release(0.25, 400, 0.1, rng) for _ in range(20_000)]) - 0.25
    scale = 2 / (400 * 0.1)
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 0.001
    assert stats.kstest(noise, stats.laplace(scale=1.1 * scale).cdf).pvalue < 1e-6


def scores_of(y: np.ndarray, p: np.ndarray, C: np.ndarray, k: int) -> dict[tuple[int, int, int], float]:
    """Return s E_n[c p^j (y - p)] for all (c, j, s) by loops."""
    m = len(y)
    return {
        (c, j, s): s * sum(C[i, c] * p[i] ** j * (y[i] - p[i]) for i in range(m)) / m
        for c, j, s in product(range(C.shape[1]), range(k), (1, -1))
    }


def prepared(y: np.ndarray, p: np.ndarray, C: np.ndarray, notion: lowcal.Notion, alpha: float, **options: float):
    """Return the problem and the plan of a private fit on a matrix of memberships."""
    chosen = Private(Memberships(everyone=False), **options)
    learner = chosen.listed(lowcal.data.frames.Table.of(C), np.full(len(y), 1 / len(y)))
    rows = Memory.of(learner.rows, p[:, None], y[:, None], learner.weight)
    problem = private.Problem(rows, notion, learner, alpha)
    return problem, private.plan(chosen, problem, 1)


def test_a_round_selects_among_all_signed_pairs_by_that_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the rows to the update: the pair that a round moves along has the law of the definition."""
    rng = np.random.default_rng(5)
    m = 30
    y, p = (rng.random(m) < 0.4).astype(float), rng.random(m)
    C = (rng.random((m, 2)) < 0.6).astype(float)
    problem, plan = prepared(y, p, C, LowDegree(2), 0.2, epsilon=40.0, delta=0.0, max_rounds=5)
    monkeypatch.setattr(private, "release", lambda score, n, eps0, rng: 1.0)  # never below the threshold
    seen: dict[tuple[int, int, int], int] = {}
    draws = 4000
    for seed in range(draws):
        _, update = next(private.rounds(problem, plan, np.random.default_rng(seed)))
        (term,) = update.terms
        key = (int(term.family.names[0][-1]), len(term.weights[0].factors), int(np.sign(term.theta.item())))
        seen[key] = seen.get(key, 0) + 1
        assert abs(term.theta.item()) == pytest.approx(0.2 / 2)
    q = scores_of(y, p, C, 2)
    assert plan.n_candidates == len(q) == 8
    assert plan.eps0 == pytest.approx(40.0 / 10)
    expected = draws * law(np.array(list(q.values())), m, plan.eps0)
    assert stats.chisquare([seen.get(pair, 0) for pair in q], expected).pvalue > 0.001


def test_no_replaced_row_shifts_a_choice_by_more_than_eps0() -> None:
    """All samples of three rows out of eight kinds and all their neighbours; the range eps0 is attained."""
    kinds = [(y, p, c) for y in (0.0, 1.0) for p in (0.0, 1.0) for c in ((1.0, 0.0), (1.0, 1.0))]
    eps0, m, widest = 0.9, 3, 0.0
    weights = private.public_weights(LowDegree(2), 1)
    for rest in product(kinds, repeat=m - 1):
        logs = []
        for last in kinds:
            y, p, C = (np.array([row[k] for row in [*rest, last]]) for k in range(3))
            problem, _ = prepared(y, p, C, LowDegree(2), 0.1, epsilon=1.0)
            U, rho = private.evaluate(weights, p[:, None]), (y - p)[:, None] / m
            g = private.moments(problem.learner.design(), U, rho)
            logs.append(log_probabilities(np.concatenate([g.ravel(), -g.ravel()]), m, eps0))
        for one, other in product(logs, repeat=2):
            assert np.abs(one - other).max() <= eps0 + EPS
            widest = max(widest, float(np.ptp(one - other)))
    assert widest == pytest.approx(eps0)


# ------------------------------------------------------------------------------------------------ the fit
@pytest.fixture(scope="module")
def crowd() -> lowcal.datasets.Dataset:
    return make_miscalibrated(120_000, n_columns=2, n_levels=2, random_state=0)


def overconfident(data: lowcal.datasets.Dataset) -> np.ndarray:
    return np.clip(0.5 + 2.5 * (data.p - 0.5), 0, 1)


def far_off(data: lowcal.datasets.Dataset) -> np.ndarray:
    """Return a start that says 0 for one level of g0 and 1 for the others."""
    return np.where(data.X["g0"] == data.X["g0"][0], 0.0, 1.0)


def test_defaults_just_work(crowd: lowcal.datasets.Dataset) -> None:
    fit = lowcal.multicalibrate(
        crowd.y, crowd.p, crowd.X, subpopulations=Private(Groups(), epsilon=1.0), random_state=0
    )
    assert fit.guarantee.epsilon == 1.0
    assert fit.status in ("reached", "undecided", "limit")
    assert fit.predictor(crowd.p[:5], {k: v[:5] for k, v in crowd.X.items()}).shape == (5,)


@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "degree-3", "full-0.5"])
def test_a_certain_plan_reaches_alpha(crowd: lowcal.datasets.Dataset, notion: str) -> None:
    """Errors within a quarter of the tolerance and enough rounds: the run stops, the supremum on the rows is small."""
    p = far_off(crowd)
    alpha = 0.25 if notion != "full-0.5" else 0.5
    kind = {"subpopulations": Private(Groups(), epsilon=2.0), "notion": notion, "alpha": alpha}
    fit = lowcal.multicalibrate(crowd.y, p, crowd.X, random_state=1, **kind)
    promise = fit.guarantee
    assert promise.is_certain
    assert fit.status == "reached"
    assert fit.violation < promise.threshold
    calibrated = fit.predictor(p, crowd.X)
    groups = Groups(min_mass=0)
    true = lowcal.measure(crowd.y, calibrated, crowd.X, subpopulations=groups, notion=notion).largest
    assert true <= fit.upper <= promise.accuracy + EPS
    assert promise.accuracy <= alpha
    before = lowcal.measure(crowd.y, p, crowd.X, subpopulations=groups, notion=notion).largest
    assert fit.n_updates > 0
    assert true < before
    # the population is as close as the choices were few
    truth = lowcal.measure(crowd.f_star, calibrated, crowd.X, subpopulations=groups, notion=notion).largest
    assert abs(truth - true) <= promise.deviation(fit.n_updates)


def test_every_update_gains(crowd: lowcal.datasets.Dataset) -> None:
    """A gain of alpha/2 and the step alpha/(2B): the Brier score falls by alpha^2/(4B) at least."""
    p = far_off(crowd)
    fit = lowcal.multicalibrate(
        crowd.y, p, crowd.X, subpopulations=Private(Groups(), epsilon=2.0), alpha=0.25, random_state=2
    )
    assert fit.guarantee.is_certain
    stages = [p, *fit.predictor.staged(p, crowd.X)]
    losses = [definition.brier(crowd.y, stage) for stage in stages]
    assert len(losses) > 2
    assert max(np.diff(losses)) <= -(0.25**2) / 4
    assert fit.n_updates <= fit.bound == fit.guarantee.rounds - 1


def test_only_noisy_values_are_released(crowd: lowcal.datasets.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[float] = []
    real = private.release

    def watched(score: float, n: int, eps0: float, rng: np.random.Generator) -> float:
        released.append(real(score, n, eps0, rng))
        return released[-1]

    monkeypatch.setattr(private, "release", watched)
    p = overconfident(crowd)
    kind = {"subpopulations": Private(Groups(), epsilon=3.0, max_rounds=6), "alpha": 0.02}
    fit = lowcal.multicalibrate(crowd.y, p, crowd.X, random_state=1, **kind)
    assert fit.n_updates >= 2
    assert len(released) == fit.n_updates + 1 == fit.n_oracle_calls
    assert [record.violation for record in fit.history] == released[1:]
    assert fit.violation == released[-1]
    assert all(isnan(record.brier) and isnan(record.log_loss) for record in fit.history)
    assert [record.n_updates for record in fit.history] == list(range(1, fit.n_updates + 1))
    exact = lowcal.measure(crowd.y, fit.predictor(p, crowd.X), crowd.X).largest
    assert fit.violation != exact
    assert len(fit.predictor) == fit.n_updates


def test_same_seed_same_fit(crowd: lowcal.datasets.Dataset) -> None:
    def once(seed: int) -> lowcal.Fit:
        kind = {"subpopulations": Private(Groups(), epsilon=1.0, max_rounds=4), "alpha": 0.02}
        return lowcal.multicalibrate(crowd.y, overconfident(crowd), crowd.X, random_state=seed, **kind)

    assert once(7).predictor.to_dict() == once(7).predictor.to_dict()
    assert once(7).violation == once(7).violation
    assert once(7).violation != once(8).violation


@pytest.mark.parametrize("options", [{}, {"delta": 0.0}, {"max_rounds": 1}, {"max_rounds": 300}, {"epsilon": 0.1}])
def test_the_budget_is_kept(crowd: lowcal.datasets.Dataset, options: dict[str, float]) -> None:
    chosen = Private(Groups(["g0", "g1"]), **{"epsilon": 1.0, **options})
    fit = lowcal.multicalibrate(crowd.y, crowd.p, crowd.X, subpopulations=chosen, alpha=0.1, random_state=0)
    promise = fit.guarantee
    cost = total_cost(promise.eps0, promise.rounds, chosen.delta)
    assert chosen.epsilon * 0.999 < cost.epsilon <= chosen.epsilon
    assert cost.theorem == promise.theorem
    assert fit.n_oracle_calls <= promise.rounds
    if chosen.max_rounds is not None:
        assert promise.rounds == min(chosen.max_rounds, 401)
    each = promise.beta / (2 * promise.rounds)
    m, N = promise.n_rows, promise.n_candidates
    assert N == 2 * 2 * 5  # five groups with everyone, two weights, two signs
    errors = 4 / (m * promise.eps0) * log(N / each) + 2 / (m * promise.eps0) * log(1 / each)
    assert promise.accuracy == pytest.approx(0.75 * 0.1 + errors)


def test_rounds_are_as_many_as_the_errors_allow(crowd: lowcal.datasets.Dataset) -> None:
    def promise(alpha: float, **options: int) -> private.PrivacyGuarantee:
        chosen = Private(Groups(), epsilon=1.0, **options)
        kind = {"subpopulations": chosen, "alpha": alpha, "random_state": 0}
        return lowcal.multicalibrate(crowd.y, crowd.p, crowd.X, **kind).guarantee

    chosen = promise(0.1)
    assert 10 < chosen.rounds < chosen.rounds_needed == 401
    assert chosen.selection_error + chosen.release_error <= 0.025
    more = promise(0.1, max_rounds=chosen.rounds + 1)
    assert more.selection_error + more.release_error > 0.025
    assert not chosen.is_certain
    assert promise(0.001).rounds == private.LEAST_ROUNDS
    assert promise(0.4).rounds == promise(0.4).rounds_needed == 26
    assert promise(0.4).is_certain
    assert "if it stops before" in str(chosen)
    assert "if it stops before" not in str(promise(0.4))


def test_three_classes() -> None:
    data = make_miscalibrated(60_000, n_columns=1, n_levels=2, n_classes=3, random_state=1)
    p = np.tile([0.9, 0.05, 0.05], (60_000, 1))
    for notion, weights in (("multiaccuracy", 1), ("degree-2", 4), ("full-0.5", None)):
        kind = {"subpopulations": Private(Groups("g0"), epsilon=4.0), "alpha": 0.3, "notion": notion}
        fit = lowcal.multicalibrate(data.y, p, data.X, random_state=0, **kind)
        promise = fit.guarantee
        if weights is not None:
            assert promise.n_candidates == 2 * 3 * weights * 3
        assert promise.tolerance == pytest.approx(
            {"multiaccuracy": 0.3, "degree-2": 0.1}.get(notion, promise.tolerance)
        )
        assert promise.step == pytest.approx(promise.tolerance / 2 / (2 / 3))
        calibrated = fit.predictor(p, data.X)
        assert calibrated.shape == p.shape
        true = lowcal.measure(
            data.y, calibrated, data.X, subpopulations=Groups("g0", min_mass=0), notion=notion
        ).largest
        assert true <= fit.upper


def test_callback_and_limits(crowd: lowcal.datasets.Dataset) -> None:
    seen: list[lowcal.Record] = []
    kind = {"subpopulations": Private(Groups(), epsilon=3.0, max_rounds=30), "alpha": 0.01}
    args = (crowd.y, overconfident(crowd), crowd.X)

    def stop(record: lowcal.Record) -> bool:
        seen.append(record)
        return len(seen) == 2

    fit = lowcal.multicalibrate(*args, callback=stop, random_state=0, **kind)
    assert fit.status == "stopped"
    assert fit.history == tuple(seen)
    assert len(fit.predictor) == 2
    short = lowcal.multicalibrate(*args, max_updates=3, random_state=0, **kind)
    assert short.status == "limit"
    assert short.n_updates == 3
    assert short.guarantee.rounds == 4
    assert "limit after 3 updates, released score" in str(short)


def test_progress_is_shown(crowd: lowcal.datasets.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    kind = {"subpopulations": Private(Groups(), epsilon=3.0, max_rounds=3), "alpha": 0.01}
    lowcal.multicalibrate(crowd.y, overconfident(crowd), crowd.X, progress=True, random_state=0, **kind)
    assert "2 updates" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ the list of groups
def test_small_and_empty_groups_are_candidates() -> None:
    """Whether a group is small or empty depends on the rows, so it may not change the list."""
    rng = np.random.default_rng(0)
    n = 300
    C = np.column_stack([rng.integers(2, size=n), np.zeros(n), np.r_[1, np.zeros(n - 1)]]).astype(float)
    y, p = rng.integers(2, size=n), np.full(n, 0.5)
    fit = lowcal.multicalibrate(y, p, C, subpopulations=Private(Memberships(), epsilon=1.0), random_state=0)
    assert fit.guarantee.n_candidates == 2 * 2 * 4
    X = {"g": np.r_[[9], np.zeros(n - 1)].astype(int)}
    fit = lowcal.multicalibrate(y, p, X, subpopulations=Private(Groups(), epsilon=1.0), random_state=0)
    assert fit.guarantee.n_candidates == 2 * 2 * 3
    both = Private(Groups("g") + Intersections("g", depth=1), epsilon=1.0)
    fit = lowcal.multicalibrate(y, p, X, subpopulations=both, random_state=0)
    assert fit.guarantee.n_candidates == 2 * 2 * 3


def test_all_cells_are_listed_before_a_row_is_seen() -> None:
    assert len(private.public_weights(Full(0.25), 1)) == 4
    cells = {cell.index for cell in private.public_weights(Full(0.5), 3)}
    rng = np.random.default_rng(0)
    for z in [*rng.dirichlet(np.full(3, 0.4), 2000), *np.eye(3)]:
        assert tuple(min(int(x / 0.5), 1) for x in z) in cells
    assert private.public_weights(Multiaccuracy(), 3) == private.public_weights(LowDegree(1), 3)
    with pytest.raises(InvalidInput, match="too many to list"):
        private.public_weights(Full(0.01), 5)


# ------------------------------------------------------------------------------------------------ refusals
N = 80
Y = np.arange(N) % 2
P = np.full(N, 0.4)
X = {"g": np.arange(N) % 3}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"solver": "first"}, "solver must be left at 'block'"),
        ({"geometry": "mirror"}, "geometry must be left at 'euclidean'"),
        ({"step": 0.1}, "step must be left at None"),
        ({"validation_fraction": 0.2}, "validation_fraction must be left at 0"),
        ({"per_person": 0.1}, "per_person must be left"),
        ({"sample_weight": np.arange(1, N + 1)}, "takes no sample weights"),
        ({"notion": "smooth"}, "smooth is not bounded by a finite list"),
    ],
)
def test_options_that_would_reveal_the_rows(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        lowcal.multicalibrate(Y, P, X, subpopulations=Private(Groups(), epsilon=1.0), **options)


def test_constant_weights_are_no_weights() -> None:
    kind = {"subpopulations": Private(Groups(), epsilon=1.0), "random_state": 0}
    weighted = lowcal.multicalibrate(Y, P, X, sample_weight=np.full(N, 3.0), **kind)
    assert weighted.violation == lowcal.multicalibrate(Y, P, X, **kind).violation


@pytest.mark.parametrize("groups", [Trees(), Linear(), Groups() + Trees()])
def test_learned_classes_are_refused(groups: lowcal.Subpopulations) -> None:
    with pytest.raises(InvalidInput, match="learns its subpopulations"):
        lowcal.multicalibrate(Y, P, X, subpopulations=Private(groups, epsilon=1.0))


@pytest.mark.parametrize("groups", [Thresholds(), Groups() + Thresholds()])
def test_thresholds_are_refused(groups: lowcal.Subpopulations) -> None:
    with pytest.raises(InvalidInput, match="cut at the values of the rows"):
        lowcal.multicalibrate(Y, P, X, subpopulations=Private(groups, epsilon=1.0))


def test_no_other_use_looks_at_the_rows() -> None:
    chosen = Private(Groups(), epsilon=1.0)
    for use in (
        lambda: lowcal.measure(Y, P, X, subpopulations=chosen),
        lambda: chosen.prepare(X),
        lambda: lowcal.multicalibrate(Y, P, X, subpopulations=chosen + Groups()),
        lambda: lowcal.multicalibrate(Y, P, X, subpopulations=Groups() + chosen),
    ):
        with pytest.raises(InvalidInput, match="is for multicalibrate alone"):
            use()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Private("sex", 1.0), "Private wraps a class such as"),
        (lambda: Private(Private(Groups(), 1.0), 1.0), "Private wraps a class"),
        (lambda: Private(Groups(), 0), "epsilon must be a positive number"),
        (lambda: Private(Groups(), -1.0), "epsilon"),
        (lambda: Private(Groups(), 1.0, delta=1.0), "delta must be a probability below 1"),
        (lambda: Private(Groups(), 1.0, delta=-0.1), "delta"),
        (lambda: Private(Groups(), 1.0, beta=0.0), "beta must be a probability"),
        (lambda: Private(Groups(), 1.0, max_rounds=0), "max_rounds must be a whole number of at least 1"),
    ],
)
def test_bad_input(call: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        call()  # type: ignore[operator]
