"""Privacy accounting: every constant against the mechanism it describes, computed exactly."""

from __future__ import annotations

from itertools import product
from math import comb, exp, expm1, inf, log, sqrt

import numpy as np
import pytest

from lowcal import InvalidInput
from lowcal import accounting as ac


def test_sensitivity_is_attained_by_no_more_than_a_row() -> None:
    """Terms in [-1, 1]: replacing one of m moves the mean by at most 2/m, and by 2/m from one end to the other."""
    rng = np.random.default_rng(0)
    for m in (1, 3, 10):
        z = rng.uniform(-1, 1, m)
        moved = [abs(z.mean() - np.r_[z[:-1], new].mean()) for new in (-1.0, 1.0)]
        assert max(moved) <= ac.sensitivity(m)
        low, high = np.r_[z[:-1], -1.0], np.r_[z[:-1], 1.0]
        assert high.mean() - low.mean() == pytest.approx(ac.sensitivity(m))


def selection_probabilities(q: np.ndarray, m: int, eps0: float) -> np.ndarray:
    """Return the law of the exponential mechanism from its definition."""
    weight = np.array([exp(eps0 * score / (2 * (2 / m))) for score in q])
    return weight / weight.sum()


def test_slope_of_the_exponential_mechanism() -> None:
    q, m, eps0 = np.array([0.3, -0.1, 0.05]), 40, 0.7
    ours = np.exp(ac.log_odds_per_score(m, eps0) * q)
    assert ours / ours.sum() == pytest.approx(selection_probabilities(q, m, eps0))
    assert ac.log_odds_per_score(m, eps0) == pytest.approx(eps0 * m / 4)


def test_selection_is_private_and_concentrated() -> None:
    """Scores that move by at most 2/m: log ratios of at most eps0, in an interval of eps0, so eps0^2/8-zCDP."""
    rng = np.random.default_rng(1)
    m, tightest = 7, 0.0
    for _ in range(300):
        eps0 = rng.choice([0.1, 1.0, 3.0])
        N = int(rng.integers(2, 6))
        q = rng.uniform(-1, 1, N)
        moved = q + rng.choice([-1, 0, 1], N) * ac.sensitivity(m)
        P, Q = selection_probabilities(q, m, eps0), selection_probabilities(moved, m, eps0)
        ratio = np.log(P / Q)
        assert np.abs(ratio).max() <= eps0 + 1e-12
        assert np.ptp(ratio) <= eps0 + 1e-12
        tightest = max(tightest, float(np.ptp(ratio)) / eps0)
        for order in (1.01, 2.0, 8.0, 50.0):
            renyi = log(float(np.sum(P**order * Q ** (1 - order)))) / (order - 1)
            assert renyi <= order * ac.SELECTION_ZCDP * eps0**2 + 1e-9
    assert tightest == pytest.approx(1.0)


def test_the_selection_constant_is_tight() -> None:
    """Two equal candidates that move apart: for a small eps0 the divergence is all of eps0^2/8 times the order."""
    eps0, order = 1e-3, 2.0
    P = np.array([exp(eps0 / 4), exp(-eps0 / 4)])
    P /= P.sum()
    Q = P[::-1]
    renyi = log(float(np.sum(P**order * Q ** (1 - order)))) / (order - 1)
    assert renyi == pytest.approx(order * ac.SELECTION_ZCDP * eps0**2, rel=1e-3)


@pytest.mark.parametrize("eps0", [0.01, 0.3, 2.0])
def test_laplace_is_private_and_concentrated(eps0: float) -> None:
    """Scale 2 / (m eps0): densities whose logarithms differ by at most eps0; Renyi divergences in closed form."""
    m = 25
    scale, shift = ac.laplace_scale(m, eps0), ac.sensitivity(m)
    x = np.linspace(-1, 1, 4001)
    ratio = (np.abs(x - shift) - np.abs(x)) / scale
    assert np.abs(ratio).max() == pytest.approx(eps0)
    for a in (1.01, 2.0, 10.0):
        t = shift / scale
        renyi = log(a / (2 * a - 1) * exp((a - 1) * t) + (a - 1) / (2 * a - 1) * exp(-a * t)) / (a - 1)
        assert renyi <= a * ac.RELEASE_ZCDP * eps0**2 + 1e-12


def privacy_loss(parts: list[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return P and Q over all outcomes of independent randomised responses: (log ratio, copies) for each kind."""
    P, Q = np.ones(1), np.ones(1)
    for e, k in parts:
        truth = 1 / (1 + exp(-e))
        hits = np.arange(k + 1)
        counts = np.array([float(comb(k, int(h))) for h in hits])
        p, q = counts * truth**hits * (1 - truth) ** (k - hits), counts * (1 - truth) ** hits * truth ** (k - hits)
        P, Q = np.outer(P, p).ravel(), np.outer(Q, q).ravel()
    return P, Q


@pytest.mark.parametrize(("eps0", "rounds"), [(0.05, 40), (0.2, 30), (1.0, 4)])
@pytest.mark.parametrize("delta", [0.0, 1e-2, 1e-5])
def test_compositions_hold_for_the_worst_mechanisms(eps0: float, rounds: int, delta: float) -> None:
    """2T randomised responses of eps0; for zCDP T of range eps0 (log ratios of eps0/2) and T of eps0."""
    cost = ac.total_cost(eps0, rounds, delta)
    is_basic = cost.theorem == "basic composition"
    P, Q = privacy_loss([(eps0, 2 * rounds)] if is_basic else [(eps0 / 2, rounds), (eps0, rounds)])
    assert np.maximum(P - exp(cost.epsilon) * Q, 0).sum() <= cost.delta + 1e-12
    # half of the basic cost would not do
    P, Q = privacy_loss([(eps0, 2 * rounds)])
    assert np.maximum(P - exp(rounds * eps0) * Q, 0).sum() > 0


def zcdp(eps0: float, rounds: int, delta: float) -> float:
    rho = rounds * (eps0**2 / 8 + eps0**2 / 2)
    return rho + 2 * sqrt(rho * log(1 / delta))


def test_formulas_by_hand() -> None:
    assert ac.total_cost(0.1, 1).epsilon == pytest.approx(0.2)
    assert ac.total_cost(0.1, 7).epsilon == pytest.approx(1.4)
    assert ac.total_cost(0.1, 500, 1e-5).epsilon == pytest.approx(zcdp(0.1, 500, 1e-5))
    assert ac.selection_error(1000, 0.5, 60, 0.01) == pytest.approx(4 / 500 * (log(60) + log(100)))
    assert ac.release_error(1000, 0.5, 0.01) == pytest.approx(2 / 500 * log(100))
    assert ac.laplace_scale(1000, 0.5) == pytest.approx(2 / 500)
    assert "differential privacy by basic composition" in str(ac.total_cost(0.1, 7))


def test_the_total_is_the_least() -> None:
    for eps0, rounds, delta in ((0.01, 1000, 1e-6), (2.0, 1, 1e-6), (0.3, 5, 1e-3)):
        least = min(2 * rounds * eps0, zcdp(eps0, rounds, delta))
        assert ac.total_cost(eps0, rounds, delta).epsilon == pytest.approx(least)
    assert ac.total_cost(0.01, 1000).delta == 0
    assert ac.total_cost(2.0, 1, 1e-6).theorem == "basic composition"
    assert ac.total_cost(0.01, 1000, 1e-6).theorem == "zero-concentrated composition"


@pytest.mark.parametrize("eps0", [1e-4, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("rounds", [1, 10, 5000])
@pytest.mark.parametrize("delta", [1e-12, 1e-3, 0.9])
def test_advanced_composition_is_never_less(eps0: float, rounds: int, delta: float) -> None:
    advanced = eps0 * sqrt(4 * rounds * log(1 / delta)) + 2 * rounds * eps0 * expm1(eps0)
    assert ac.total_cost(eps0, rounds, delta).epsilon <= zcdp(eps0, rounds, delta) < advanced


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0, 200.0])
@pytest.mark.parametrize("rounds", [1, 10, 5000])
@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-3, 0.4])
def test_the_inverse_spends_all_and_no_more(delta: float, rounds: int, epsilon: float) -> None:
    share = ac.share_of(epsilon, rounds, delta)
    assert ac.total_cost(share.eps0, rounds, delta).epsilon <= epsilon
    assert ac.total_cost(share.eps0 * 1.0001, rounds, delta).epsilon > epsilon
    assert ac.total_cost(share.eps0, rounds, delta).theorem == share.theorem


def test_selection_error_holds_where_it_is_hardest() -> None:
    """One best candidate and N - 1 that are worse by just more than the error."""
    m, eps0, N, beta = 200, 0.5, 50, 0.05
    error = ac.selection_error(m, eps0, N, beta)
    q = np.r_[0.0, np.full(N - 1, -error)]
    missed = 1 - selection_probabilities(q, m, eps0)[0]
    assert beta / 2 < missed <= beta


def test_expectation_gap_on_all_samples_of_two_bits() -> None:
    """A query chosen from the sample by the exponential mechanism: exact expectations over samples and choices."""
    m, share = 2, 0.3
    queries = np.array([[1.0, -1.0], [-1.0, 1.0], [0.5, 0.5]])  # h(0), h(1)
    for eps in (0.1, 0.5, 1.0, 4.0):
        on_sample = on_population = 0.0
        for sample in product((0, 1), repeat=m):
            chance = np.prod([share if bit else 1 - share for bit in sample])
            q = queries[:, list(sample)].mean(axis=1)
            law = selection_probabilities(q, m, eps)
            on_sample += chance * law @ q
            on_population += chance * law @ (queries @ [1 - share, share])
        gap = abs(on_sample - on_population)
        assert 0 < gap <= ac.expectation_gap(eps)
    assert ac.expectation_gap(0.1, 0.01) == pytest.approx(2 * (exp(0.1) - 1 + 0.01))


def test_expectation_gap_needs_its_factor() -> None:
    """The best chooser of a query in {-1, 1} for one bit under pure privacy gains tanh(eps/2), a sixth or more."""
    for eps in (0.05, 0.5):
        keep = 1 / (1 + exp(-eps))  # the sample's own bit, or the other one
        gap = keep - (1 - keep)  # h(S) is 1 or -1; h(P) = 0 for a fair bit
        assert ac.expectation_gap(eps) / 6 < gap <= ac.expectation_gap(eps)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ac.total_cost(0.0, 3), "eps0 must be a positive number, but 0.0"),
        (lambda: ac.total_cost(0.1, 0), "rounds must be a whole number of at least 1"),
        (lambda: ac.total_cost(0.1, 2, 1.0), "delta must be a number in"),
        (lambda: ac.share_of(-1.0, 2), "epsilon must be a positive number"),
        (lambda: ac.share_of(1.0, 2.5), "rounds"),
        (lambda: ac.share_of(1.0, 2, -0.1), "delta"),
        (lambda: ac.share_of(1.0, 2, True), "delta"),
        (lambda: ac.share_of(inf, 2), "epsilon"),
    ],
)
def test_bad_input(call: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        call()  # type: ignore[operator]
