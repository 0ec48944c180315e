"""Fresh batches and a reused sample: the statements, checked in worlds whose population is known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt

import numpy as np
import pytest

import definition
import lowcal
from lowcal import Groups, InvalidInput, Linear, Memberships, Trees
from lowcal.sampling import Private, certify_reuse, fresh, reuse_deviation
from worlds import multicalibrate


@dataclass(frozen=True)
class Population:
    """Eight kinds of rows (a, b, q) with their shares, the truth f* and a start predictor."""

    share: np.ndarray
    truth: np.ndarray
    start: np.ndarray
    a: np.ndarray
    b: np.ndarray

    @property
    def X(self) -> dict[str, np.ndarray]:
        return {"a": self.a, "b": self.b}

    @property
    def C(self) -> np.ndarray:
        """Everyone and the four values of the two columns."""
        return np.column_stack([np.ones(8), self.a == 0, self.a == 1, self.b == 0, self.b == 1]).astype(float)

    def supremum(self, p: np.ndarray, notion: str) -> float:
        """Return the true supremum of a predictor given on the eight kinds."""
        return definition.supremum(notion, self.C, self.truth, p, self.share)

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        kind = rng.choice(8, n, p=self.share)
        if self.truth.ndim == 1:
            y = (rng.random(n) < self.truth[kind]).astype(int)
        else:
            y = (rng.random(n)[:, None] > np.cumsum(self.truth[kind], axis=1)).sum(axis=1)
        return y, self.start[kind], {"a": self.a[kind], "b": self.b[kind]}


def population(seed: int, classes: int = 2) -> Population:
    rng = np.random.default_rng(seed)
    kinds = np.arange(8)
    if classes == 2:
        truth, start = rng.random(8), rng.random(8)
    else:
        truth, start = rng.dirichlet(np.full(classes, 0.5), 8), rng.dirichlet(np.full(classes, 0.5), 8)
    return Population(rng.dirichlet(np.full(8, 2.0)), truth, start, kinds % 2, kinds // 2 % 2)


# ------------------------------------------------------------------------------------------------ fresh batches
@pytest.mark.parametrize("seed", [0, 4, 8, 9, 11, 15])  # worlds with much to correct
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2"])
def test_every_update_gains_and_the_end_is_calibrated(notion: str, seed: int) -> None:
    world = population(seed)
    rng = np.random.default_rng(seed)
    alpha = 0.12
    fit = fresh(*world.draw(800_000, rng), notion=notion, alpha=alpha, random_state=seed)
    assert fit.statement.holds
    assert fit.status == "reached"
    assert fit.statement.deviation <= alpha / 4
    assert fit.n_updates >= 1
    stages = [world.start, *fit.predictor.staged(world.start, world.X)]
    true = world.supremum(stages[-1], notion)
    assert true <= fit.upper <= alpha
    assert fit.upper == fit.statement.bound
    # each update's own pair had a true violation of at least alpha / 2
    for p, update in zip(stages[:-1], fit.predictor.updates, strict=True):
        (term,) = update.terms
        c = {"everyone": 0, "a=0": 1, "a=1": 2, "b=0": 3, "b=1": 4}[term.family.names[0]]
        j = len(term.weights[0].factors)
        gain = np.sign(term.theta.item()) * (world.share * world.C[:, c] * p**j * (world.truth - p)).sum()
        assert gain >= alpha / 2
        assert abs(term.theta.item()) == pytest.approx(alpha / 2)
    assert fit.n_updates <= fit.bound == ceil(4 / alpha**2)


def test_no_more_batches_are_taken_than_needed() -> None:
    world = population(9)
    fit = fresh(*world.draw(210_000, np.random.default_rng(0)), alpha=0.15, n_rounds=10, random_state=0)
    assert fit.status == "reached"
    assert 1 <= fit.n_updates < 9
    # 10,000 rows for the groups, a batch for each update, and one in which nothing is found
    assert fit.statement.rows_used == 10_000 + 20_000 * (fit.n_updates + 1)


def test_a_split_sample_gives_the_statement() -> None:
    world = population(11)
    y, p, X = world.draw(150_000, np.random.default_rng(3))
    fit = fresh(y, p, X, alpha=0.2, random_state=0)
    assert fit.status == "reached"
    assert fit.statement.holds
    assert fit.n_updates >= 1
    assert fit.statement.rows_used <= 150_000
    assert world.supremum(fit.predictor(world.start, world.X), "degree-2") <= fit.upper <= 0.2
    again = fresh(y, p, X, alpha=0.2, random_state=0)
    assert again.predictor.to_dict() == fit.predictor.to_dict()
    assert "new batch for each round" in str(fit)


def test_the_split_is_the_finest_that_the_statement_allows() -> None:
    """Batches as small as a deviation of alpha / 4 allows; a finer split is refused the statement."""
    world = population(2)
    y, p, X = world.draw(60_000, np.random.default_rng(3))
    fit = fresh(y, p, X, alpha=0.25, random_state=0)
    rest = 60_000 - 6_000
    N = 2 * 5 * 2

    def deviation(rounds: int) -> float:
        return sqrt(2 * log(2 * N * rounds / 0.05) / (rest // rounds))

    rounds = max(r for r in range(1, 66) if deviation(r) <= 0.25 / 4)
    assert fit.statement.deviation == pytest.approx(deviation(rounds), rel=1e-3)
    finer = fresh(y, p, X, alpha=0.25, n_rounds=rounds + 1, random_state=0)
    assert finer.statement.deviation > 0.25 / 4


def test_too_few_rows_are_said_to_be_too_few() -> None:
    world = population(2)
    y, p, X = world.draw(2_000, np.random.default_rng(3))
    fit = fresh(y, p, X, alpha=0.05, random_state=0)
    assert not fit.statement.holds
    assert fit.status in ("undecided", "limit")
    text = str(fit.statement)
    assert "NOT at most alpha=0.05" in text
    N, rounds = 2 * 5 * 2, 1601
    m0 = ceil(32 / 0.05**2 * log(2 * N * rounds / 0.05))
    assert f"it takes {m0:,} rows a batch" in text
    assert f"{(rounds + 1) * m0:,} in all" in text
    assert fit.statement.rows_needed == (rounds + 1) * m0
    # what is said instead is true
    assert world.supremum(fit.predictor(world.start, world.X), "degree-2") <= fit.statement.bound


def test_batches_that_run_out() -> None:
    world = population(11)
    fit = fresh(*world.draw(100_000, np.random.default_rng(0)), alpha=0.1, n_rounds=2, random_state=0)
    assert fit.n_updates == 1  # the groups, one update, one measurement
    assert fit.status == "limit"
    assert not fit.statement.holds
    assert "the batches ran out after 2 rounds" in str(fit.statement)
    assert world.supremum(fit.predictor(world.start, world.X), "degree-2") <= fit.statement.bound


def test_violations_of_up_to_three_quarters_of_alpha_are_left() -> None:
    """Batches in which shares vary by at most 0.01: a violation of 0.65 alpha stops the run, one of 0.85 does not."""
    n, alpha = 200_000, 0.2
    for excess, updates in ((0.65, 0), (0.85, 1)):
        y = (np.arange(n) < round(n * (0.4 + excess * alpha))).astype(int)
        X = {"a": np.zeros(n, dtype=int)}
        fit = fresh(y, np.full(n, 0.4), X, notion="multiaccuracy", alpha=alpha, n_rounds=5, random_state=0)
        assert fit.n_updates == updates
        assert fit.statement.holds


@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "full-0.5"])
def test_three_classes(notion: str) -> None:
    world = population(6, 3)
    rng = np.random.default_rng(1)
    fit = fresh(*world.draw(50_000, rng), notion=notion, alpha=0.6, random_state=0)
    true = world.supremum(fit.predictor(world.start, world.X), notion)
    assert true <= fit.upper
    cells = 7  # of width 1/2 that meet the triangle, corners included
    factor = {"multiaccuracy": 1, "degree-2": 3, "full-0.5": cells}[notion]
    assert fit.upper == pytest.approx(min(1.0, fit.violation + factor * fit.statement.deviation))
    if notion == "multiaccuracy":
        assert fit.statement.holds


def test_the_full_notion_counts_cells_that_no_row_fills() -> None:
    world = population(4)
    rng = np.random.default_rng(1)
    fit = fresh(*world.draw(50_000, rng), notion="full-0.25", alpha=0.9, n_rounds=9, random_state=0)
    N = 2 * 5 * 4
    assert fit.statement.deviation == pytest.approx(sqrt(2 * log(2 * N * 9 / 0.05) / 5_000))


def test_statement_fails_no_more_often_than_beta() -> None:
    """Sixty runs at beta = 0.3: the share of wrong statements is far below it (Hoeffding is conservative)."""
    wrong = 0
    for seed in range(60):
        world = population(seed % 5)
        y, p, X = world.draw(6_000, np.random.default_rng(seed))
        fit = fresh(y, p, X, alpha=0.3, beta=0.3, random_state=seed)
        wrong += world.supremum(fit.predictor(world.start, world.X), "degree-2") > fit.upper
    assert wrong <= 18


# ------------------------------------------------------------------------------------------------ one sample
@pytest.mark.parametrize("seed", range(5))
def test_a_reused_sample_deviates_no_more_than_stated(seed: int) -> None:
    world = population(seed)
    n, alpha = 20_000, 0.03
    y, p, X = world.draw(n, np.random.default_rng(seed))
    fit = multicalibrate(y, p, X, subpopulations=Groups(min_mass=0), alpha=alpha, solver="first", step=alpha)
    statement = certify_reuse(fit, n, 5, step=alpha)
    assert fit.n_updates >= 1
    T, N = max(fit.n_updates, 1), 2 * 5 * 2
    expected = sqrt(2 * ((T + 1) * log(N) + log(2 / 0.05) + log(T * (T + 1))) / n)
    assert statement.deviation == pytest.approx(expected)
    assert statement.bound == pytest.approx(fit.upper + expected)
    truth = [world.start, *fit.predictor.staged(world.start, world.X)]
    seen = [p, *fit.predictor.staged(p, X)]
    C = np.column_stack([np.ones(n), X["a"] == 0, X["a"] == 1, X["b"] == 0, X["b"] == 1])
    for f, g in zip(truth, seen, strict=True):
        for j in (0, 1):
            population_g = world.C.T @ (world.share * f**j * (world.truth - f))
            sample_g = C.T @ (g**j * (y - g)) / n
            assert np.abs(population_g - sample_g).max() <= statement.deviation
    assert world.supremum(truth[-1], "degree-2") <= statement.bound


def test_a_large_sample_certifies_alpha() -> None:
    world = population(0)
    n = 400_000
    y, p, X = world.draw(n, np.random.default_rng(0))
    fit = multicalibrate(y, p, X, alpha=0.05, solver="first", step=0.05)
    fit = multicalibrate(y, p, X, alpha=0.1, solver="first", step=0.1) if fit.n_updates > 30 else fit
    statement = certify_reuse(fit, n, 5, step=fit.alpha)
    assert statement.bound < 2 * fit.alpha
    wide = certify_reuse(fit, 10**9, 5, step=fit.alpha)
    assert wide.bound == pytest.approx(fit.upper, abs=1e-3)
    assert statement.rows_needed == pytest.approx(n * (2 * statement.deviation / fit.alpha) ** 2, rel=1e-3)


def test_halved_steps_are_counted_on_the_simplex() -> None:
    """Where the basis does not imply the class, the solver halves its tolerance: more step sizes, a factor."""
    world = population(3, 3)
    n, alpha = 3_000, 0.06
    y, p, X = world.draw(n, np.random.default_rng(2))
    fit = multicalibrate(y, p, X, subpopulations=Groups(min_mass=0), alpha=alpha, solver="first")
    sizes = {float(np.abs(t.theta).max()) for u in fit.predictor.updates for t in u.terms}
    assert sorted(sizes) == pytest.approx([alpha / 18, alpha / 12, alpha / 6])
    statement = certify_reuse(fit, n, 5)
    T, N = fit.n_updates, 2 * 5 * 4 * 3
    expected = sqrt(2 * ((T + 1) * log(3 * N) + log(2 / 0.05) + log(T * (T + 1))) / n)
    assert statement.deviation == pytest.approx(expected)
    assert statement.bound == pytest.approx(min(1.0, fit.upper + 3 * expected))


def refused_fits() -> list[tuple[str, lowcal.Fit, str]]:
    world = population(0)
    y, p, X = world.draw(3_000, np.random.default_rng(0))
    fits = []
    for solver, step in (("worst", None), ("worst", 0.9), ("block", None)):
        fit = multicalibrate(y, p, X, alpha=0.02, solver=solver, step=step)
        fits.append((f"{solver} {step}", fit, "come from a continuum"))
    mirror = multicalibrate(y, p, X, alpha=0.02, solver="worst", geometry="mirror")
    own = multicalibrate(y, p, X, alpha=0.02, solver="first", step=0.013)
    learned = multicalibrate(y, p, X, alpha=0.02, solver="first", subpopulations=Trees(max_depth=1))
    noise = multicalibrate(y, p, X, alpha=None, solver="first", max_updates=2)
    private = multicalibrate(y, p, X, alpha=0.2, subpopulations=Private(Groups(), epsilon=1.0))
    smooth = multicalibrate(y, p, X, alpha=0.1, notion="smooth", solver="first")
    return [
        *fits,
        ("mirror", mirror, "come from a continuum"),
        ("another step", own, "pass the same step= here"),
        ("learned", learned, "learned from the rows"),
        ("noise", noise, "alpha=None lets the rows set the target"),
        ("private", private, "carries its own statement"),
        ("fresh", fresh(y, p, X, alpha=0.3), "carries its own statement"),
        ("smooth", smooth, "finite list"),
    ]


def test_fits_that_are_not_among_few_are_refused() -> None:
    for name, fit, words in refused_fits():
        with pytest.raises(InvalidInput, match=words):
            certify_reuse(fit, 3_000, 5)
        assert name


def test_nothing_was_done_and_nothing_is_paid_but_the_pairs() -> None:
    y = np.r_[np.ones(500), np.zeros(500)].astype(int)
    fit = multicalibrate(y, np.full(1000, 0.5), {"a": np.zeros(1000, dtype=int)}, alpha=0.1, solver="first")
    assert fit.n_updates == 0
    statement = certify_reuse(fit, 1000, 2)
    assert statement.deviation == pytest.approx(sqrt(2 * (2 * log(8) + log(40) + log(2)) / 1000))
    assert reuse_deviation(1000, 8, 0) == reuse_deviation(1000, 8, 1) == statement.deviation


# ------------------------------------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda d: fresh(*d, alpha=0), "alpha must be a number strictly between 0 and 1"),
        (lambda d: fresh(*d, beta=1.0), "beta"),
        (lambda d: fresh(*d, notion="smooth"), "finite list"),
        (lambda d: fresh(*d, n_rounds=0), "n_rounds must be a whole number"),
        (lambda d: fresh(*d, n_rounds=10**6), "n_rounds"),
        (lambda d: fresh(*d, subpopulations=Trees()), "no finite list"),
        (lambda d: fresh(*d, subpopulations=Linear()), "no finite list"),
        (lambda d: fresh(*d, subpopulations=Private(Groups(), 1.0)), "is for multicalibrate alone"),
        (lambda d: fresh(*d, subpopulations="sex"), "subpopulations must be a class"),
    ],
)
def test_bad_input(call: object, words: str) -> None:
    data = population(0).draw(2_000, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match=words):
        call(data)  # type: ignore[operator]


def test_memberships_and_bounded_outcomes() -> None:
    rng = np.random.default_rng(0)
    C = rng.random((40_000, 2))
    truth = np.clip(0.2 + 0.6 * C[:, 0], 0, 1)
    fit = fresh(truth, np.full(40_000, 0.2), C, subpopulations=Memberships(), alpha=0.2, random_state=1)
    assert fit.statement.holds
    assert fit.n_updates >= 1


def test_certify_checks_its_numbers() -> None:
    world = population(0)
    y, p, X = world.draw(500, np.random.default_rng(0))
    fit = multicalibrate(y, p, X, alpha=0.1, solver="first")
    for options, words in (((0, 5), "n_rows"), ((500, 0), "n_subpopulations")):
        with pytest.raises(InvalidInput, match=words):
            certify_reuse(fit, *options)
    with pytest.raises(InvalidInput, match="beta"):
        certify_reuse(fit, 500, 5, beta=0)
