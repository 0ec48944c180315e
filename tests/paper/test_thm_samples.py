"""Theorem 5.5 (sample complexities) and its informal form: the formulas as printed, and what the text says of them."""

from __future__ import annotations

from math import log

import pytest

from lowcal.complexity import Orders, compare, sample_size

A, B = 0.1, 0.05


@pytest.mark.parametrize("l", [2, 3, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_low_degree_as_printed(l: int, k: int) -> None:  # noqa: E741
    for vc in (1.0, 30.0):
        expected = l * (vc + k * log(l / (A * B))) / A**4
        assert float(Orders(A, k, l, vc, B, is_paper=True).low_degree()) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("l", [3, 4, 5])
@pytest.mark.parametrize("k", [1, 2])
def test_full_as_printed(l: int, k: int) -> None:  # noqa: E741
    expected = (2 * k * l) ** (4 * (l + 1)) * (9 + log(k * l / (A * B))) / A ** (4 * (l + 1))
    assert float(Orders(A, k, l, 9.0, B, is_paper=True).full()) == pytest.approx(expected, rel=1e-9)


def test_full_corrected() -> None:
    """alpha_0 is divided by floor(l/2), because a cell's weight is a vector (spec 6.6, 9.l)."""
    for l in (3, 4, 6):  # noqa: E741
        delta = A / (2 * l)
        a0 = l * delta ** (l + 1) / (l // 2)
        cells = l * round(1 / delta) ** l
        expected = (9 + log(l * cells / (a0 * B))) / a0**4
        assert float(Orders(A, 1, l, 9.0, B).full()) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_binary_full_as_printed(k: int) -> None:
    expected = k**4 * (9 + log(k / (A * B))) / A**8
    assert float(Orders(A, k, 2, 9.0, B, is_paper=True).full()) == pytest.approx(expected, rel=1e-9)


def test_growth_in_alpha() -> None:
    """alpha^-4 for low degrees, alpha^-(l+3) for smooth, alpha^-4(l+1) for full; logarithms aside."""
    l, vc = 3, 1e-9  # noqa: E741
    less, more = (Orders(a, 1, l, vc, B, is_paper=True) for a in (1e-4, 2e-4))
    for order, power in ((Orders.low_degree, 4), (Orders.smooth, l + 3), (Orders.full, 4 * (l + 1))):
        ratio = float(order(less)) / float(order(more))
        assert 2**power <= ratio <= 2**power * 1.15


def test_low_degree_is_polynomial_in_the_classes_and_full_is_not() -> None:
    low = [float(Orders(A, 1, l, 10.0, B, is_paper=True).low_degree()) for l in (4, 8)]  # noqa: E741
    full = [float(Orders(A, 1, l, 10.0, B, is_paper=True).full()) for l in (4, 8)]  # noqa: E741
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
    expected = (log(30) + log(2 / (A * B))) / (A**2 / 4) ** 2
    assert float(Orders(A, 2, 2, log(30), B).game()) == pytest.approx(expected, abs=1)
    ratio = float(Orders(1e-3, 1, 2, 1e9, B).game()) / float(Orders(2e-3, 1, 2, 1e9, B).game())
    assert ratio == pytest.approx(16, rel=1e-6)


def test_one_pass_answers_the_closing_question() -> None:
    """alpha^-2 for low degrees and finite C, proved (spec 4.9)."""
    few, many = (sample_size("degree-2", a, n_subpopulations=50, setting="online") for a in (0.02, 0.01))
    assert many.rows / few.rows == pytest.approx(4, rel=1e-3)
    assert not many.is_order_only
