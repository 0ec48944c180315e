"""Online forecasts: the bound on sequences of every kind, recomputed from the definition."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowcal import InvalidInput
from lowcal.online import ErrorSequence, Forecaster, _root, equilibrium


def groups(T: int, m: int, seed: int = 0) -> np.ndarray:
    """Return memberships: everyone, random halves, a fractional and a signed one."""
    rng = np.random.default_rng(seed)
    C = (rng.random((T, m)) < rng.uniform(0.1, 0.9, m)).astype(float)
    C[:, 0] = 1.0
    C[:, 1] = rng.random(T)
    C[:, 2] = rng.uniform(-1, 1, T)
    return C


def largest(C: np.ndarray, p: np.ndarray, y: np.ndarray, degree: int) -> float:
    """Return max over groups and powers of |1/T sum_t c_t p_t^j (y_t - p_t)|, from the definition."""
    return max(abs(float((C[:, c] * p**j * (y - p)).sum())) for c in range(C.shape[1]) for j in range(degree)) / len(y)


def against(
    forecaster: Forecaster, C: np.ndarray, answer: Callable[[int, float], float]
) -> tuple[np.ndarray, np.ndarray]:
    """Play a sequence in which the outcome may depend on the forecast."""
    p, y = np.empty(len(C)), np.empty(len(C))
    for t in range(len(C)):
        p[t] = forecaster.predict(C[t])
        y[t] = answer(t, p[t])
        forecaster.update(y[t])
    return p, y


def check(forecaster: Forecaster, C: np.ndarray, p: np.ndarray, y: np.ndarray, degree: int) -> None:
    T, N = len(y), 2 * C.shape[1] * degree
    seen = largest(C, p, y, degree)
    assert seen <= sqrt(2 * log(N) / T)
    assert forecaster.bound == pytest.approx(sqrt(2 * log(N) / T), rel=1e-9)
    assert forecaster.violation == pytest.approx(seen, abs=1e-10)
    assert forecaster.n_steps == T
    assert p.min() >= 0
    assert p.max() <= 1


# ------------------------------------------------------------------------------------------------ any sequence
@pytest.mark.parametrize("kind", ["random", "alternating", "constant", "blocks"])
def test_ten_thousand_steps(kind: str) -> None:
    T, m = 10_000, 30
    C = groups(T, m)
    rng = np.random.default_rng(1)
    y = {
        "random": (rng.random(T) < 0.2 + 0.5 * C[:, 4]).astype(float),
        "alternating": np.arange(T) % 2.0,
        "constant": np.ones(T),
        "blocks": (np.arange(T) // 500 % 2).astype(float),
    }[kind]
    forecaster = Forecaster(m, "degree-2", horizon=T)
    p = forecaster.run(C, y)
    check(forecaster, C, p, y, 2)


def test_an_adversary_answers_the_other_side() -> None:
    T = 10_000
    C = groups(T, 10)
    forecaster = Forecaster(10, "degree-2", horizon=T)
    p, y = against(forecaster, C, lambda t, p: float(p < 0.5))
    check(forecaster, C, p, y, 2)


@pytest.mark.parametrize(("degree", "T"), [(1, 3_000), (2, 10_000), (3, 3_000), (4, 3_000), (6, 3_000)])
def test_an_adversary_raises_the_largest_violation(degree: int, T: int) -> None:
    """The outcome that makes max_{c, j} |sum| as large as possible after this step, the sums kept by the adversary."""
    m = 4
    C = groups(T, m, degree)
    sums = np.zeros((m, degree))
    powers = np.arange(degree)
    forecaster = Forecaster(m, f"degree-{degree}", horizon=T)

    def worst(t: int, p: float) -> float:
        options = [sums + C[t][:, None] * p**powers * (y - p) for y in (0.0, 1.0)]
        best = int(np.abs(options[1]).max() >= np.abs(options[0]).max())
        sums[:] = options[best]
        return float(best)

    p, y = against(forecaster, C, worst)
    check(forecaster, C, p, y, degree)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_short_sequence(data: st.DataObject) -> None:
    T, m, degree = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    unit = st.floats(-1, 1, allow_nan=False, width=32)
    C = np.array(data.draw(st.lists(st.lists(unit, min_size=m, max_size=m), min_size=T, max_size=T)))
    y = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=T, max_size=T)))
    forecaster = Forecaster(m, f"degree-{degree}", horizon=T)
    p = forecaster.run(C, y)
    bound = min(1.0, sqrt(2 * log(2 * m * degree) / T))
    assert largest(C, p, y, degree) <= bound + 1e-12


def test_a_constant_forecast_would_fail() -> None:
    """The sequences are hard: forecasting 1/2 breaks the bound that the forecaster keeps."""
    T = 5_000
    C = groups(T, 5)
    y = (C[:, 3] == 1).astype(float)
    assert largest(C, np.full(T, 0.5), y, 2) > 3 * sqrt(2 * log(20) / T)
    forecaster = Forecaster(5, horizon=T)
    check(forecaster, C, forecaster.run(C, y), y, 2)


def test_without_a_horizon_the_bound_holds_at_every_time() -> None:
    T, m = 4_000, 5
    C = groups(T, m)
    forecaster = Forecaster(m, "degree-2")
    N = 2 * m * 2
    p, y = np.empty(T), np.empty(T)
    for t in range(T):
        p[t] = forecaster.predict(C[t])
        y[t] = float(p[t] < 0.5) if t % 3 else 1.0
        forecaster.update(y[t])
        assert forecaster.violation <= forecaster.bound
        assert forecaster.bound == pytest.approx(min(1.0, 2 * sqrt(log(N) / (t + 1))), rel=1e-9)
    for t in (10, 100, 1000, T):
        assert largest(C[:t], p[:t], y[:t], 2) <= 2 * sqrt(log(N) / t)


def test_the_bound_before_and_after_the_horizon() -> None:
    forecaster = Forecaster(3, "degree-2", horizon=1_000)
    assert forecaster.bound == 1.0
    assert forecaster.violation == 0.0
    C, N, eta = groups(2_500, 3), 12, sqrt(2 * log(12) / 1_000)
    for t in range(2_500):
        p = forecaster.predict(C[t])
        forecaster.update(float(p < 0.5))
        assert forecaster.violation <= forecaster.bound
        assert forecaster.bound == pytest.approx(min(1.0, log(N) / (eta * (t + 1)) + eta / 2), rel=1e-9)


# ------------------------------------------------------------------------------------------------ the forecast
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 7])
def test_no_outcome_gains_against_the_forecast(degree: int) -> None:
    """s(p) (y - p) <= 0 for y = 0 and y = 1, up to rounding."""
    rng = np.random.default_rng(degree)
    inside = 0
    for _ in range(3_000):
        coefficients = (rng.normal(size=degree) * 10.0 ** rng.integers(-8, 1, degree)).tolist()
        p = _root(coefficients)
        s = sum(a * p**j for j, a in enumerate(coefficients))
        assert 0 <= p <= 1
        assert max(s * (1 - p), -s * p) <= 1e-14 * sum(map(abs, coefficients))
        inside += 0 < p < 1
    assert inside > 0 or degree == 1


@pytest.mark.parametrize(("notion", "classes"), [("degree-3", 2), ("degree-2", 3), ("degree-2", 4), ("degree-1", 3)])
def test_hedge_expects_no_gain_from_any_outcome(notion: str, classes: int) -> None:
    """The sum over pairs of lambda s c u(p) (y_a - p_a) <= 0 for every outcome; lambda ~ exp(eta s sum); by loops."""
    rng = np.random.default_rng(classes)
    d, degree = 1 if classes == 2 else classes, int(notion[-1])
    for _ in range(40):
        forecaster = Forecaster(3, notion, horizon=50, n_classes=classes)
        sums = forecaster._sums
        sums[:] = rng.normal(scale=5.0, size=sums.shape)
        c = rng.uniform(-1, 1, 3)
        p = np.atleast_1d(forecaster.predict(c))
        u = [p[0] ** j for j in range(degree)] if d == 1 else [1.0, *p][: sums.shape[1]]
        eta = sqrt(2 * log(forecaster.n_pairs) / 50)
        for y in (np.zeros(1), np.ones(1)) if d == 1 else np.eye(d):
            gains = {
                (i, j, a, s): s * c[i] * u[j] * (y[a] - p[a])
                for i, j, a, s in product(range(3), range(len(u)), range(d), (1, -1))
            }
            weight = {(i, j, a, s): np.exp(s * eta * sums[i, j, a]) for i, j, a, s in gains}
            expected = sum(weight[k] * gains[k] for k in gains) / sum(weight.values())
            assert len(gains) == forecaster.n_pairs
            assert expected <= 1e-12


def test_roots_of_flat_and_double_polynomials() -> None:
    assert _root([0.0, 0.0]) == 1.0
    assert _root([1.0, -2.0, 1e-18]) == pytest.approx(0.5)
    assert _root([1.0, 0.0, -2.0]) == pytest.approx(sqrt(0.5))
    assert _root([1e-300, -1.0, 0.0]) == pytest.approx(0.0, abs=1e-200)


def test_large_sums_do_not_overflow() -> None:
    forecaster = Forecaster(1, "multiaccuracy", horizon=1)
    forecaster._sums[:] = 1e6
    assert forecaster.predict([1.0]) == 1.0


def test_multiaccuracy_is_degree_one() -> None:
    C, y = groups(300, 4), np.arange(300) % 2
    assert Forecaster(4, "multiaccuracy", 300).run(C, y).tolist() == Forecaster(4, "degree-1", 300).run(C, y).tolist()


def test_run_is_predict_and_update() -> None:
    C, y = groups(200, 4), (np.arange(200) % 3 == 0).astype(int)
    one, other = Forecaster(4, horizon=200), Forecaster(4, horizon=200)
    p = one.run(C, y)
    q, _ = against(other, C, lambda t, p: float(y[t]))
    assert p.tolist() == q.tolist()
    assert isinstance(other.predict(C[0]), float)


# ------------------------------------------------------------------------------------------------ several classes
def equilibria(M: np.ndarray) -> list[np.ndarray]:
    """Return all symmetric equilibria with a unique solution on their support, by listing the supports."""
    d, found = len(M), []
    for chosen in product((0, 1), repeat=d):
        s = [a for a in range(d) if chosen[a]]
        if not s:
            continue
        A = np.block([[M[np.ix_(s, s)], -np.ones((len(s), 1))], [np.ones((1, len(s))), np.zeros((1, 1))]])
        if abs(np.linalg.det(A)) < 1e-12:
            continue
        z = np.linalg.solve(A, np.r_[np.zeros(len(s)), 1.0])[:-1]
        p = np.zeros(d)
        p[s] = z
        if z.min() >= -1e-12 and (M @ p).max() <= p @ M @ p + 1e-9:
            found.append(p)
    return found


def test_equilibria_are_found() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        M = rng.normal(size=(4, 4))
        p = equilibrium(M)
        assert min(np.abs(p - q).max() for q in equilibria(M)) < 1e-9


def test_equilibria_of_degenerate_games() -> None:
    rng = np.random.default_rng(1)
    for k in range(2_000):
        d = int(rng.integers(2, 9))
        M = rng.integers(-1, 2, (d, d)).astype(float) * 10.0 ** -rng.integers(0, 9)
        M = M if k % 2 else np.repeat(M[:, :1], d, axis=1)
        p = equilibrium(M)
        assert p.min() >= 0
        assert p.sum() == pytest.approx(1.0)
        assert (M @ p).max() - p @ M @ p <= 1e-12 * max(np.abs(M).max(), 1e-300)
    assert equilibrium(np.zeros((3, 3))).sum() == pytest.approx(1.0)


def monomial_sums(C: np.ndarray, p: np.ndarray, hot: np.ndarray, degree: int) -> float:
    """Return the largest violation over groups, monomials of degree below `degree` <= 2, and labels."""
    weights = [np.ones(len(p))] + ([p[:, b] for b in range(p.shape[1])] if degree == 2 else [])
    return max(np.abs(C.T @ (w[:, None] * (hot - p))).max() for w in weights) / len(p)


@pytest.mark.product
@pytest.mark.parametrize("l", [3, 5])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-1", "degree-2"])
@pytest.mark.parametrize("kind", ["random", "least likely", "cyclic"])
def test_several_classes(kind: str, notion: str, l: int) -> None:  # noqa: E741
    T, m = 1_000, 4
    C = groups(T, m)
    rng = np.random.default_rng(0)
    forecaster = Forecaster(m, notion, horizon=T, n_classes=l)
    p, y = np.empty((T, l)), np.empty(T, dtype=int)
    for t in range(T):
        p[t] = forecaster.predict(C[t])
        y[t] = {"random": rng.integers(l), "least likely": p[t].argmin(), "cyclic": t % l}[kind]
        forecaster.update(y[t])
    degree = 2 if notion == "degree-2" else 1
    N = 2 * m * l * (1 + l if degree == 2 else 1)
    seen = monomial_sums(C, p, np.eye(l)[y], degree)
    assert seen <= sqrt(2 * log(N) / T)
    assert forecaster.bound == pytest.approx(sqrt(2 * log(N) / T), rel=1e-9)
    assert forecaster.violation == pytest.approx(seen, abs=1e-10)
    assert p.sum(axis=1) == pytest.approx(np.ones(T))
    factor = {"multiaccuracy": 1, "degree-1": l // 2, "degree-2": l}[notion]
    assert forecaster.class_bound == pytest.approx(factor * forecaster.bound)
    assert Forecaster(m, notion, T, l).run(C, y).shape == (T, l)


def test_what_the_equilibrium_misses_is_added_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worse solver makes a larger bound, not a wrong one."""
    monkeypatch.setattr("lowcal.online.equilibrium", lambda M: np.full(len(M), 1.0 / len(M)))
    T = 400
    C = np.ones((T, 1))
    forecaster = Forecaster(1, "degree-2", horizon=T, n_classes=3)
    forecaster.run(C, np.zeros(T, dtype=int))
    assert forecaster.violation > sqrt(2 * log(24) / T)
    assert forecaster.violation <= forecaster.bound


# ------------------------------------------------------------------------------------------------ misuse
def waiting() -> Forecaster:
    forecaster = Forecaster(2)
    forecaster.predict([1, 0])
    return forecaster


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Forecaster(0), "n_groups must be a whole number of at least 1"),
        (lambda: Forecaster(2, horizon=0), "horizon"),
        (lambda: Forecaster(2, n_classes=1), "n_classes"),
        (lambda: Forecaster(2, "smooth"), "continuous in the forecast; smooth has none"),
        (lambda: Forecaster(2, "full-0.1"), "continuous in the forecast"),
        (lambda: Forecaster(2, "degree-3", n_classes=3), "up to degree 2, but degree 3"),
        (lambda: waiting().predict([1, 0]), "predict was called twice"),
        (lambda: waiting().run([[1, 0]], [1]), "A forecast is waiting"),
        (lambda: Forecaster(2).update(1), "update was called without a forecast"),
        (lambda: Forecaster(2).predict([1, 0, 1]), "c must hold 2 memberships"),
        (lambda: Forecaster(2).predict([1, 2]), r"Memberships lie in \[-1, 1\], but 2.0 was given in row 0, group 1"),
        (lambda: Forecaster(2).predict([1, np.nan]), "Memberships lie in"),
        (lambda: Forecaster(2).predict(["a", "b"]), "c must hold numbers"),
        (lambda: waiting().update(1.5), r"a number in \[0, 1\], but 1.5"),
        (lambda: waiting().update(np.nan), "An outcome is"),
        (lambda: waiting().update([1, 0]), "one outcome for each row"),
        (lambda: Forecaster(2).run([[1, 0]], [1, 0]), "C has 1 rows, but y has 2"),
        (lambda: Forecaster(2).run([1, 0], [1, 0]), r"C must have shape \(n, 2\)"),
        (lambda: Forecaster(1, n_classes=3).run([[1]], [3]), r"a class 0..2, but 3 was given"),
        (lambda: Forecaster(1, n_classes=3).run([[1]], [0.5]), "a class 0..2"),
    ],
)
def test_misuse(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        call()


def test_an_error_leaves_the_state_as_it_was() -> None:
    forecaster = Forecaster(1)
    p = forecaster.predict([1.0])
    with pytest.raises(InvalidInput):
        forecaster.update(7)
    forecaster.update(1)
    assert forecaster.n_steps == 1
    assert forecaster.violation == pytest.approx(1 - p)


# --- confidence sequences --------------------------------------------------------------------------------------


def leaves(seed: int, T: int = 2000, m: int = 4) -> bool:
    """Return whether any error leaves its limits at any time; it moves with time and with the outcomes before."""
    rng = np.random.default_rng(seed)
    C = (rng.random((T, m)) < 0.5).astype(float)
    C[:, 0] = 1.0
    sequence, means, mass, last = ErrorSequence(m, rows=200), np.zeros(m), np.zeros(m), 0.0
    for t, c in enumerate(C):
        p = 0.5 + 0.3 * np.sin(t / 50)
        truth = p + 0.1 * last
        y = float(rng.random() < truth)
        means, mass, last = means + c * (truth - p), mass + c, 2 * y - 1
        sequence.update(c, y, p)
        error = means / np.maximum(mass, 1e-300)
        if ((error < sequence.lower - 1e-12) | (error > sequence.upper + 1e-12)).any():
            return True
    return False


def test_limits_hold_at_all_times_and_for_all_groups():
    assert np.mean([leaves(seed) for seed in range(60)]) <= 0.05


def test_a_sequence_is_the_same_by_rows_and_in_batches_and_narrows():
    rng = np.random.default_rng(0)
    C, y, p = groups(500, 4)[:, [0, 1, 3]], rng.random(500), rng.random(500)
    one, other = ErrorSequence(3), ErrorSequence(3)
    assert np.isinf(one.half_width).all()
    assert (one.lower == -1).all()
    assert (one.upper == 1).all()
    for row in zip(C, y, p, strict=True):
        one.update(*row)
    other.update(C, y, p)
    np.testing.assert_allclose(one.error, (C * (y - p)[:, None]).sum(axis=0) / C.sum(axis=0))
    np.testing.assert_allclose(one.lower, other.lower)
    before = other.half_width
    other.update(C, y, p)
    assert (other.half_width < before).all()
    assert other.n_rows == 1000


@pytest.mark.parametrize(
    "row", [([1, 2], 1, 0.5), ([1, -0.5], 1, 0.5), ([1, 0], 2, 0.5), ([1, 0], [1, 0], 0.5), ([1], 1, 0.5)]
)
def test_rows_of_a_sequence_are_checked(row):
    with pytest.raises(InvalidInput):
        ErrorSequence(2).update(*row)
