"""Rounds and rows: every bound against the definition it comes from."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import ceil, exp, floor, inf, log, log2, sqrt
from statistics import NormalDist

import numpy as np
import pytest

import lowcal
from lowcal import Full, InvalidInput, LowDegree
from lowcal import complexity as cx
from lowcal.auditing.band import bernstein
from lowcal.auditing.reports import Verdict


def centred_square(w: tuple[int, ...]) -> Fraction:
    mean = Fraction(sum(w), len(w))
    return sum(((x - mean) ** 2 for x in w), Fraction(0))


def largest_width(d: int, sparse: bool) -> Fraction:
    """Return the largest ||w - mean||^2 over 0/1 vectors, a convex maximum over the cube; one label only if sparse."""
    if d == 1:
        return Fraction(1)
    return max(centred_square(w) for w in product((0, 1), repeat=d) if not sparse or sum(w) == 1)


def largest_potential(d: int, start: str) -> Fraction:
    """Return the largest ||f* - f||^2: a convex maximum at vertices."""
    if d == 1:
        return max((Fraction(f) - y) ** 2 for f in ([Fraction(1, 2)] if start == "uniform" else [0, 1]) for y in (0, 1))
    ends = [[Fraction(int(i == a)) for i in range(d)] for a in range(d)]
    starts = [[Fraction(1, d)] * d] if start == "uniform" else ends
    return max(sum((f - y) ** 2 for f, y in zip(f, y, strict=True)) for f in starts for y in ends)


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("start", ["uniform", "any"])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "degree-3", "smooth", "full-0.1"])
def test_iterations_are_potential_times_width_over_gain_squared(notion: str, start: str, classes: int) -> None:
    d = 1 if classes == 2 else classes
    alpha = Fraction(1, 20)
    # beyond degree 2 on the simplex a witness shows half of the certified bracket
    share = Fraction(1, 2) if notion == "degree-3" and d > 1 else Fraction(1)
    phi = largest_potential(d, start)
    expected = floor(phi * largest_width(d, notion == "multiaccuracy") / (share * alpha) ** 2)
    assert cx.iterations(notion, 0.05, classes, start=start) == expected
    assert cx.iterations(notion, 0.05, classes, start=start, constants="paper") == 8 * d * 400


def test_binary_constants_of_the_specification() -> None:
    assert cx.iterations("degree-2", 0.01) == 2500  # 1 / (4 alpha^2)
    assert cx.iterations("degree-2", 0.01, start="any") == 10_000  # 1 / alpha^2
    assert cx.basis_width(10) == pytest.approx(0.9)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_weights_are_counted(classes: int) -> None:
    d = 1 if classes == 2 else classes
    assert cx.n_weights("multiaccuracy", classes) == d
    for k in (1, 2, 3, 4):
        multisets = sum(len(list(combinations_with_replacement(range(d), j))) for j in range(k))
        assert cx.n_weights(LowDegree(k), classes) == d * multisets
    # a cell of side 1/4 holds a point of the simplex if the sums of its lower and upper edges enclose 1
    cells = [i for i in product(range(4), repeat=d) if d == 1 or (sum(i) <= 4 < sum(i) + d and max(i) < 4)]
    touching = [i for i in cells if d == 1 or sum(i) < 4 or i.count(0) < d - 1]
    assert cx.n_weights(Full(0.25), classes) == d * len(touching)
    assert cx.n_pairs("degree-2", 7, classes) == 2 * 7 * d * (1 + d)


def test_smooth_counts_the_dyadic_cells() -> None:
    assert cx.n_weights("smooth", 2, 0.1) == 2**5 - 1  # scales 0..4, as 2^-4 <= 0.1
    assert cx.basis_tolerance("smooth", 0.1) == pytest.approx(0.1 / 6)


@pytest.mark.parametrize(("classes", "alpha"), [(3, 0.8), (3, 0.75), (3, 0.74), (4, 1.0), (2, 0.2), (2, 0.125)])
def test_smooth_counts_the_cells_that_a_dense_sample_fills(classes: int, alpha: float) -> None:
    """All scales down to the first whose cells are so small that rounding to them costs at most alpha / 2."""
    d = 1 if classes == 2 else classes
    scale = next(s for s in range(20) if (d * 2**-s if d > 1 else 2 ** -(s + 1)) <= alpha / 2)
    fine = max(2, d) * 2**scale  # a point of this grid lies in every cell that meets the simplex
    grid = [i for i in product(range(fine + 1), repeat=d) if d == 1 or sum(i) == fine]
    cells = {(s, tuple(min(int(x * 2**s) // fine, 2**s - 1) for x in i)) for s in range(scale + 1) for i in grid}
    assert cx.n_weights("smooth", classes, alpha) == d * len(cells)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_tolerance_is_that_of_a_population(classes: int) -> None:
    d = 1 if classes == 2 else classes
    assert cx.basis_tolerance("multiaccuracy", 0.1, classes) == 0.1
    assert cx.basis_tolerance("degree-1", 0.1, classes) == pytest.approx(0.1 / max(1, d // 2))
    assert cx.basis_tolerance("degree-2", 0.1, classes) == pytest.approx(0.1 / d)
    cells = cx.n_weights("full-0.1", classes) / d
    assert cx.basis_tolerance("full-0.1", 0.1, classes) == pytest.approx(0.1 / cells / max(1, d // 2))


# ------------------------------------------------------------------------------------------------ proved numbers
def hoeffding(n: int, e: float) -> float:
    """Return the bound on P(|mean - E| > e) for n independent terms in [-1, 1]."""
    return 2 * exp(-2 * n**2 * e**2 / (n * 2**2))


@pytest.mark.parametrize(("alpha", "pairs", "rounds", "beta"), [(0.1, 80, 401, 0.05), (0.03, 6, 11, 0.2)])
def test_a_batch_is_just_large_enough(alpha: float, pairs: int, rounds: int, beta: float) -> None:
    m = cx.fresh_batch(alpha, pairs, rounds, beta)
    assert pairs * rounds * hoeffding(m, alpha / 4) <= beta < pairs * rounds * hoeffding(m - 1, alpha / 4)
    e = cx.batch_deviation(m, pairs, rounds, beta)
    assert pairs * rounds * hoeffding(m, e) == pytest.approx(beta)
    assert e <= alpha / 4


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("start", ["uniform", "any"])
def test_rounds_of_a_fresh_run(start: str, classes: int) -> None:
    """2 eta g - eta^2 B with g = alpha/2 and eta = alpha/(2B) is alpha^2/(4B); the potential can't fall below 0."""
    d, alpha = 1 if classes == 2 else classes, Fraction(1, 10)
    B, phi = largest_width(d, True), largest_potential(d, start)
    eta = alpha / (2 * B)
    progress = 2 * eta * (alpha / 2) - eta**2 * B
    assert cx.fresh_rounds(0.1, classes, start) == ceil(phi / progress)


@pytest.mark.parametrize(
    ("n", "groups", "weights", "T", "Q"), [(5000, 6, 2, 12, 1), (900, 1, 1, 0, 1), (10**5, 20, 3, 40, 4)]
)
def test_deviation_of_a_reused_sample(n: int, groups: int, weights: int, T: int, Q: int) -> None:
    """A union over all sequences of at most T choices among N Q, all pairs, and all T (shares 1 / (T (T+1)))."""
    N, beta = 2 * groups * weights, 0.1
    e = cx.reuse_deviation(n, N, T, beta, Q)
    later = max(T, 1)
    sequences = [(t, t * log(N * Q)) for t in range(later + 1)]
    tail = sum(exp(logs + log(groups * weights * 2) - n * e**2 / 2) for _, logs in sequences)
    assert tail <= beta / (later * (later + 1)) * (1 + 1e-9)
    assert tail > beta / (later * (later + 1)) / (4 * Q)  # and not by much
    assert sum(1 / (t * (t + 1)) for t in range(1, 100_000)) <= 1
    assert e > cx.reuse_deviation(2 * n, N, T, beta, Q)
    assert e < cx.reuse_deviation(n, N, T + 1, beta, Q) or T == 0


def test_rows_of_a_reused_sample() -> None:
    n = cx.sample_size("multiaccuracy", 0.1, n_subpopulations=40, setting="reuse").rows  # 80 pairs, 100 updates
    assert sqrt(2 * (101 * log(80) + log(40)) / n) <= 0.05 < sqrt(2 * (101 * log(80) + log(40)) / (n - 1))


def test_rows_of_the_mixture_are_the_fewest() -> None:
    n = cx.sample_size("multiaccuracy", 0.1, n_subpopulations=40, setting="online").rows
    first, last = (sqrt(2 * log(80) / rows) + sqrt(8 * log(1600) / rows) for rows in (n, n - 1))
    assert first <= 0.1 < last


# ------------------------------------------------------------------------------------------------ sample sizes
@pytest.mark.parametrize("classes", [2, 4])
def test_proved_sizes(classes: int) -> None:
    options = {"n_subpopulations": 9, "n_classes": classes, "beta": 0.1}
    d = 1 if classes == 2 else classes
    t = 0.2 / d  # the tolerance of degree 2
    N = 2 * 9 * d * (d + 1)
    T = ceil(float(4 * largest_potential(d, "uniform") * largest_width(d, True)) / t**2 - 1e-9)
    expected = {
        "fresh": (T + 1) * ceil(32 / t**2 * log(2 * N * (T + 1) / 0.1)),
        "reuse": ceil(8 / t**2 * ((T + 1) * log(N) + log(20))),
        "online": ceil((sqrt(2 * log(N)) + sqrt(8 * log(N / 0.1))) ** 2 / t**2),
    }
    for setting, rows in expected.items():
        size = cx.sample_size("degree-2", 0.2, setting=setting, **options)
        assert int(size) == size.rows == pytest.approx(rows, abs=1)
        assert not size.is_order_only
        assert "proved" in str(size)
        assert size.reference.startswith("spec")


def test_one_sample_costs_less_than_fresh_ones_and_one_pass_least() -> None:
    sizes = [
        cx.sample_size("degree-2", 0.05, n_subpopulations=30, setting=s).rows for s in ("fresh", "reuse", "online")
    ]
    assert sizes[0] > sizes[1] > sizes[2]


def test_orders() -> None:
    """Spec 6.2 to 6.5 written out."""
    a, b, vc = 0.1, 0.05, 7.0
    K = 3.0
    kind = {"setting": "order", "vc": vc, "beta": b, "constant": K}

    def rows(notion: str, n_classes: int, is_paper: bool = False) -> float:
        size = cx.Orders(a, 1, n_classes, vc, b, K, is_paper).of(lowcal.parse_notion(notion))
        assert is_paper or size == cx.sample_size(notion, a, n_classes=n_classes, **kind)
        assert size.is_order_only
        assert "order only" in str(size)
        return float(size)

    for l in (2, 3, 5):  # noqa: E741
        d = 1 if l == 2 else l
        for k in (1, 2, 3):
            bare = K * (vc + k * log(l / (a * b))) / a**4
            assert rows(f"degree-{k + 1}", l, is_paper=True) == pytest.approx(l * bare, abs=1)
            assert rows(f"degree-{k + 1}", l) == pytest.approx(d**2 * bare, abs=1)
        accuracy = K * (vc + log(l * d / (a * b))) / a**4
        assert rows("multiaccuracy", l) == pytest.approx(accuracy, abs=1)
        assert rows("multiaccuracy", l, is_paper=True) == pytest.approx(l * accuracy, abs=1)
    fine = a / 10
    assert rows("full-0.1", 2) == pytest.approx(K * (vc + log(20 / (fine * b))) / fine**4, rel=1e-9)


def test_the_setting_follows_what_is_known_of_the_class() -> None:
    known = cx.sample_size("degree-2", 0.1, n_subpopulations=4)
    assert known == cx.sample_size("degree-2", 0.1, n_subpopulations=4, setting="fresh")
    assert cx.sample_size("degree-2", 0.1, vc=3) == cx.sample_size("degree-2", 0.1, vc=3, setting="order")


def test_order_of_a_finite_class_has_its_logarithm_for_vc() -> None:
    by_number = cx.sample_size("degree-2", 0.1, n_subpopulations=50, setting="order")
    assert by_number == cx.sample_size("degree-2", 0.1, vc=log(50), setting="order")


def test_smooth_orders() -> None:
    a, b, vc = 0.05, 0.1, 20.0
    for l in (2, 3, 4):  # noqa: E741
        cells = (12 * l / a) ** (l - 1) * log(12 / a + 1)
        paper = l * (vc + log(l / (a * b)) + cells) / a**4
        assert float(cx.Orders(a, 1, l, vc, b, is_paper=True).smooth()) == pytest.approx(paper, rel=1e-9)
        if l > 2:
            product_basis = l * (vc + log(l / (a * b)) + l * cells) / a**4
            assert float(cx.Orders(a, 1, l, vc, b).smooth()) == pytest.approx(product_basis, rel=1e-9)
    a0 = a / 3 / (2 + ceil(log2(3 / a)))
    dyadic = (vc + log(1 / (a0 * b))) / a0**4
    one = 81 * (vc + log(6 / (a * b)) + (72 / a) * log(36 / a + 1)) / a**4
    assert float(cx.Orders(a, 3, 2, vc, b).smooth()) == pytest.approx(min(dyadic, one), rel=1e-9)
    # for a tiny alpha the dyadic basis wins: its price is a power of a logarithm
    tiny = cx.Orders(1e-12, 1, 2, vc, b).smooth()
    assert "a0" in tiny.formula
    assert float(tiny) < float(cx.Orders(1e-12, 1, 2, vc, b, is_paper=True).smooth())


def test_private_order() -> None:
    size = cx.sample_size("degree-2", 0.1, n_subpopulations=10, n_classes=2, setting="private", constant=2.0)
    assert float(size) == pytest.approx(2 * sqrt(2) * log(20 / 0.1) * log(1 / 0.005) ** 1.5 / 0.001, abs=1)
    assert size.is_order_only


def test_beyond_counting() -> None:
    table = cx.compare(0.01, n_classes=100, vc=10)
    assert table.rows[-1].corrected.rows == inf
    assert "beyond counting" in str(table)
    with pytest.raises(OverflowError):
        int(table.rows[-1].corrected)


def test_comparison_is_a_table() -> None:
    table = cx.compare(0.1, degree=3, n_classes=4, n_subpopulations=12)
    lines = str(table).splitlines()
    assert len(lines) == 2 + len(table.rows) == 6
    assert "degree-3 at alpha=0.1" in lines[0]
    direct = float(table.rows[1].corrected)
    for row in table.rows:
        assert row.ratio == pytest.approx(float(row.corrected) / direct)
        assert row.corrected.is_order_only


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cx.iterations("degree-2", 0), "alpha must be a number strictly between 0 and 1, but 0"),
        (lambda: cx.iterations("degree-2", 1.5), "alpha"),
        (lambda: cx.iterations("degree-2", True), "alpha"),
        (lambda: cx.iterations("degree-2", 0.1, 1), "n_classes must be a whole number of at least 2"),
        (lambda: cx.iterations("degree-2", 0.1, start="anny"), "Did you mean 'any'"),
        (lambda: cx.iterations("degree-2", 0.1, constants="own"), "Unknown constants 'own'; valid: sharp, paper"),
        (lambda: cx.iterations("degre-2", 0.1), "Unknown notion"),
        (lambda: cx.sample_size("degree-2", 0.1), "Give vc"),
        (lambda: cx.sample_size("degree-2", 0.1, vc=10, setting="reuse"), "needs n_subpopulations"),
        (lambda: cx.sample_size("degree-2", 0.1, setting="order"), "Give vc"),
        (lambda: cx.sample_size("degree-2", 0.1, vc=-1, setting="order"), "vc must be a positive number"),
        (lambda: cx.sample_size("degree-2", 0.1, n_subpopulations=0), "n_subpopulations"),
        (lambda: cx.sample_size("degree-2", 0.1, n_subpopulations=0, setting="order"), "n_subpopulations"),
        (lambda: cx.sample_size("degree-2", 0.1, n_subpopulations=2, beta=1), "beta"),
        (lambda: cx.sample_size("degree-2", 0.1, n_subpopulations=2, setting="freesh"), "Did you mean 'fresh'"),
        (lambda: cx.sample_size("degree-2", 0.1, vc=3, setting="order", constant=0), "constant"),
        (lambda: cx.compare(0.1), "Give vc"),
        (lambda: cx.compare(0.1, vc=3, degree=1), "degree must be a whole number of at least 2"),
        (lambda: cx.reuse_deviation(0, 2, 1), "n_rows"),
        (lambda: cx.reuse_deviation(10, 1, 1), "n_pairs"),
        (lambda: cx.reuse_deviation(10, 2, -1), "n_updates"),
        (lambda: cx.reuse_deviation(10, 2, 1, 0.0), "beta"),
        (lambda: cx.reuse_deviation(10, 2, 1, 0.1, 0), "n_steps"),
        (lambda: cx.finite_basis("smooth"), "smooth is not bounded by a finite list"),
        (lambda: cx.n_weights(_Own()), "can't be counted"),
    ],
)
def test_bad_input(call: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(")):
        call()  # type: ignore[operator]


class _Own:  # a notion of a user's own: the protocol, nothing built in
    def gain(self, d: int) -> float: ...
    def basis(self, p: np.ndarray, alpha: float) -> list: ...
    def tolerance(self, p: np.ndarray, alpha: float) -> float: ...
    def probes(self, d: int) -> list: ...
    def features(self, p: np.ndarray) -> list: ...
    def suprema(self, p: np.ndarray, rho: np.ndarray, design: object, alpha: float | None = None) -> object: ...


# --- rows of an audit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_an_audit_of_a_perfect_model_mostly_certifies_alpha_with_the_planned_rows(rate):
    """In 16 of 20 samples, on average; with half of the rows in few."""
    n = cx.audit_rows("degree-2", 0.03, 9, rate=rate)
    satisfied = {n: 0, n // 2: 0}
    for size in satisfied:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            p = np.clip(rng.normal(rate, 0.02, size), 0.01, 0.99)
            y = (rng.random(size) < p).astype(int)
            X = {name: rng.integers(0, k, size) for name, k in (("a", 2), ("b", 3), ("c", 3))}
            report = lowcal.audit(y, p, X, subpopulations=lowcal.Groups(), alpha=0.03, random_state=seed, null_draws=19)
            satisfied[size] += report.verdict is Verdict.SATISFIED
    assert len(report.findings) == 9
    assert satisfied[n] >= 13 > 8 >= satisfied[n // 2]


@pytest.mark.parametrize(("groups", "n_classes"), [(1, 2), (500, 2), (20, 4)])
def test_rows_of_an_audit_are_the_first_with_which_its_limits_suffice(groups, n_classes):
    alpha, beta, rate = 0.02, 0.1, 0.2
    kind = {"n_classes": n_classes, "beta": beta, "rate": rate}
    d = 1 if n_classes == 2 else n_classes
    constraints, target = groups * d * (d + 1), alpha / d
    lucky = NormalDist().inv_cdf(0.9)

    def normal(n):
        se = np.sqrt(rate * (1 - rate) / n)
        return se * (NormalDist().inv_cdf(1 - beta / (2 * constraints)) + lucky)

    def finite(n):
        se = np.sqrt(rate * (1 - rate) / n)
        return float(bernstein(np.array([se]), n, 1.0, constraints, beta / 2)[0]) + lucky * se

    n = cx.audit_rows("degree-2", alpha, groups, **kind)
    assert normal(n) <= target < normal(n - 1)
    n = cx.audit_rows("degree-2", alpha, groups, method="bernstein", **kind)
    assert finite(n) <= target < finite(n - 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"notion": "smooth"}, "known for multiaccuracy and degree-k, but smooth"),
        ({"alpha": 0}, "alpha must be"),
        ({"rate": 1}, "rate must be"),
        ({"method": "bootstrp"}, "Unknown method 'bootstrp'"),
        ({"n_subpopulations": 0}, "n_subpopulations must be"),
    ],
)
def test_odd_plans_of_audits_are_refused(given, said):
    with pytest.raises(InvalidInput, match=said):
        cx.audit_rows(**{"notion": "degree-2", "alpha": 0.01, "n_subpopulations": 5, **given})
