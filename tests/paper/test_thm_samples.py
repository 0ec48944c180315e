"""Theorem 5.5 (sample complexities) and its informal form: the formulas as printed, and what the text says of them."""

from __future__ import annotations

from math import log

import pytest
from lowcal.complexity import compare, full_order, game_order, low_degree_order, sample_size, smooth_order

A, B = 0.1, 0.05


@pytest.mark.parametrize("l", [2, 3, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_low_degree_as_printed(l: int, k: int) -> None:  # noqa: E741
    for vc in (1.0, 30.0):
        expected = l * (vc + k * log(l / (A * B))) / A**4
        assert float(low_degree_order(A, k, l, vc, B, reading="paper")) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("l", [3, 4, 5])
@pytest.mark.parametrize("k", [1, 2])
def test_full_as_printed(l: int, k: int) -> None:  # noqa: E741
    expected = (2 * k * l) ** (4 * (l + 1)) * (9 + log(k * l / (A * B))) / A ** (4 * (l + 1))
    assert float(full_order(A, k, l, 9.0, B, reading="paper")) == pytest.approx(expected, rel=1e-9)


def test_full_corrected() -> None:
    """alpha_0 is divided by floor(l/2), because a cell's weight is a vector (spec 6.6, 9.l)."""
    for l in (3, 4, 6):  # noqa: E741
        delta = A / (2 * l)
        a0 = l * delta ** (l + 1) / (l // 2)
        cells = l * round(1 / delta) ** l
        expected = (9 + log(l * cells / (a0 * B))) / a0**4
        assert float(full_order(A, 1, l, 9.0, B)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_binary_full_as_printed(k: int) -> None:
    expected = k**4 * (9 + log(k / (A * B))) / A**8
    assert float(full_order(A, k, 2, 9.0, B, reading="paper")) == pytest.approx(expected, rel=1e-9)


def test_growth_in_alpha() -> None:
    """alpha^-4 for low degrees, alpha^-(l+3) for smooth, alpha^-4(l+1) for full; logarithms aside."""
    l, vc = 3, 1e-9  # noqa: E741
    for order, power in ((low_degree_order, 4), (smooth_order, l + 3), (full_order, 4 * (l + 1))):
        ratio = float(order(1e-4, 1, l, vc, B, reading="paper")) / float(order(2e-4, 1, l, vc, B, reading="paper"))
        assert 2**power <= ratio <= 2**power * 1.15


def test_low_degree_is_polynomial_in_the_classes_and_full_is_not() -> None:
    low = [float(low_degree_order(A, 1, l, 10.0, B, reading="paper")) for l in (4, 8)]  # noqa: E741
    full = [float(full_order(A, 1, l, 10.0, B, reading="paper")) for l in (4, 8)]  # noqa: E741
    assert low[1] / low[0] < 3
    assert full[1] / full[0] > 1e30


def test_two_hundredfold_at_a_quarter() -> None:
    """Section 5.2: even at alpha = 0.25 the binary full notion takes more than 200 times the rows."""
    table = compare(0.25, vc=1e6)
    full = next(row for row in table.rows if row.trained == "full")
    assert full.ratio == pytest.approx(256, rel=1e-3)
    assert full.ratio > 200


def test_the_games_exponent_is_four() -> None:
    """alpha_0 = alpha^2 / (2k) at alpha_0^-2: alpha^-4 even for the weakest target (end of Section 5.2)."""
    assert float(game_order(A, 2, log(30), B)) == pytest.approx((log(30) + log(2 / (A * B))) / (A**2 / 4) ** 2, abs=1)
    ratio = float(game_order(1e-3, 1, 1e9, B)) / float(game_order(2e-3, 1, 1e9, B))
    assert ratio == pytest.approx(16, rel=1e-6)


def test_one_pass_answers_the_closing_question() -> None:
    """alpha^-2 for low degrees and finite C, proved (spec 4.9)."""
    few, many = (sample_size("degree-2", a, n_subpopulations=50, setting="online") for a in (0.02, 0.01))
    assert many.rows / few.rows == pytest.approx(4, rel=1e-3)
    assert not many.is_order_only
