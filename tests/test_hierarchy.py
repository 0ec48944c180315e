"""The calculator of the hierarchy: formulas, chains, explanations, the two conventions, and its border."""

from __future__ import annotations

from fractions import Fraction
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import definition
import hierarchy_worlds as worlds
from lowcal import Full, InvalidInput, LowDegree, Multiaccuracy, Smooth
from lowcal.hierarchy import (
    basis_to_class,
    basis_to_smooth,
    binary_to_simplex,
    explain,
    implied_alpha,
    lipschitz_robustness,
    robustness,
    simplex_to_binary,
    smooth_to_lipschitz,
)

NOTIONS = ["multiaccuracy", "degree-1", "degree-2", "degree-3", "degree-6", "smooth", "full-0.1", "full-0.5"]
CONSTANTS = ["sharp", "best"]


# -------------------------------------------------------------------------------------------------------- the formulas
@pytest.mark.parametrize("k", [1, 2, 3, 4, 8])
def test_smooth_to_degree(k: int) -> None:
    a = Fraction(1, 128)
    want = f"degree-{k}"
    assert Fraction(implied_alpha("smooth", want, float(a))) == max(1, k - 1) * a
    assert Fraction(implied_alpha("smooth", want, float(a), 5)) == max(Fraction(1), Fraction(k - 1, 2)) * a
    best = max(Fraction(1), Fraction(3 * (k - 1), 8))
    assert Fraction(implied_alpha("smooth", want, float(a), 5, constants="best")) == best * a


@pytest.mark.parametrize("k", [1, 2, 4])
def test_full_to_everything_binary(k: int) -> None:
    b = Fraction(1, 1024)
    for width, cells in ((Fraction(1, 4), 4), (Fraction(3, 8), 3), (Fraction(1), 1)):
        have = Full(float(width))
        assert Fraction(implied_alpha(have, "smooth", float(b))) == cells * b + width / 2
        assert Fraction(implied_alpha(have, LowDegree(k), float(b))) == cells * b + (k - 1) * width / 2
        assert Fraction(implied_alpha(have, "multiaccuracy", float(b))) == cells * b
        assert Fraction(implied_alpha(have, "smooth", float(b), per_cell=False)) == b + width / 2
        assert Fraction(implied_alpha(have, LowDegree(k), float(b), per_cell=False)) == b + (k - 1) * width / 2


def test_coarser_grids() -> None:
    """A cell of width 0.3 is three of width 0.1; one of width 0.25 is not a union of those."""
    assert implied_alpha("full-0.1", "full-0.3", 0.01) == pytest.approx(0.03)
    assert implied_alpha("full-0.1", "full-0.3", 0.01, per_cell=False) == 0.01
    assert implied_alpha("full-0.1", "full-0.5", 0.01, 3) == pytest.approx(1.25)
    assert implied_alpha("full-0.1", "full-0.25", 0.01) == inf
    assert implied_alpha("full-0.5", "full-0.1", 0.01) == inf
    assert implied_alpha("full-0.3", "full-1", 0.01) == pytest.approx(0.04)
    w = worlds.draw(500, 4, 1, seed=0)
    assert (
        worlds.full_cell(w, 2) <= implied_alpha("full-0.1", "full-0.5", 1.0) * worlds.full_cell(w, 10) + 1e-12
    ).all()


@pytest.mark.parametrize("constants", CONSTANTS)
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_nothing_implies_full_or_a_higher_degree(classes: int, constants: str) -> None:
    for have in ("multiaccuracy", "degree-2", "smooth"):
        assert implied_alpha(have, "full-0.1", 0.0, classes, constants=constants) == inf
    for have, want in (("multiaccuracy", "degree-2"), ("degree-2", "degree-3"), ("degree-1", "degree-9")):
        assert implied_alpha(have, want, 0.0, classes, constants=constants) == inf
    for have in ("multiaccuracy", "degree-1", *(["degree-9"] if classes > 2 else [])):
        assert implied_alpha(have, "smooth", 0.0, classes, constants=constants) == inf


def test_smooth_does_not_bound_cells() -> None:
    """spec 3.11: two predictions on both sides of an edge, as near as one likes."""
    w = worlds.single([0.5, 0.5], np.array([0.5 - 1e-9, 0.5]), np.array([0.0, 1.0]))
    assert worlds.smooth(w)[0] < 1e-8
    assert worlds.full_cell(w, 2)[0] == pytest.approx(0.25)


# ---------------------------------------------------------------------------------------------------------- the chains
def bellman(have: str, want: str, alpha: float, classes: int) -> float:
    """The least alpha over all chains of single steps of spec 3, by brute force over orders of the notions."""
    l, d = classes, 1 if classes == 2 else classes  # noqa: E741
    half, cells = max(1, d // 2), {("full-0.5", 2): 2, ("full-0.1", 2): 10, ("full-0.5", 4): 11, ("full-0.1", 4): 787}
    best = {have: alpha}
    for _ in range(6):
        for a, value in list(best.items()):
            for b in NOTIONS:
                new = inf
                j = {"multiaccuracy": 1}.get(b, int(b[-1]) if b.startswith("degree") else 0)
                k = {"multiaccuracy": 1}.get(a, int(a[-1]) if a.startswith("degree") else 0)
                if k and j:
                    new = value if j <= k else inf
                    new = half * value if (a, b) == ("multiaccuracy", "degree-1") else new
                elif a == "smooth" and j:
                    new = max(1, (j - 1) / (1 if d == 1 else 2)) * value
                elif a.startswith("full"):
                    N, width = cells[a, l], float(a[5:])
                    if j:
                        new = (1 if b == "multiaccuracy" else half) * N * value + (j - 1) * d * width / 2
                    elif b == "smooth":
                        new = half * N * value + (width / 2 if d == 1 else d * width)
                    elif (a, b) == ("full-0.1", "full-0.5"):
                        new = min(5**d, N) * value
                elif k >= 2 and b == "smooth" and d == 1:
                    new = min(3**i * value + 1 / (2 * sqrt(i)) for i in range(1, k))
                best[b] = min(best.get(b, inf), new)
    rank = {"multiaccuracy": 1}
    low, high = (rank.get(x, int(x[-1]) if x.startswith("degree") else 0) for x in (have, want))
    return inf if 0 < low < high and want.startswith("degree") else best[want]


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.001, 0.2])
def test_the_best_chain_is_found(classes: int, alpha: float) -> None:
    for have in NOTIONS:
        for want in NOTIONS:
            if have == "multiaccuracy" and want == "degree-1":
                expected = max(1, classes // 2) * alpha
            else:
                expected = bellman(have, want, alpha, classes)
            assert implied_alpha(have, want, alpha, classes) == pytest.approx(expected, rel=1e-12), (have, want)


@given(st.sampled_from(NOTIONS), st.sampled_from(NOTIONS), st.floats(0, 0.5), st.floats(0, 0.5), st.integers(2, 6))
def test_monotone_and_ordered(have: str, want: str, alpha: float, more: float, classes: int) -> None:
    """A larger alpha implies no less; "best" <= "sharp"; a notion implies itself."""
    sharp = implied_alpha(have, want, alpha, classes)
    assert sharp <= implied_alpha(have, want, alpha + more, classes)
    assert implied_alpha(have, want, alpha, classes, constants="best") <= sharp * (1 + 1e-12)
    assert alpha <= sharp or want == "multiaccuracy"
    assert implied_alpha(have, have, alpha, classes) == alpha


def test_explain_names_every_step() -> None:
    found = explain("multiaccuracy", "degree-1", 0.01, 6)
    assert float(found) == found.alpha == 0.03
    assert str(found) == (
        "multiaccuracy at 0.01 implies degree-1 at 0.03\n  -> degree-1 at 0.03: 3 labels may err at once (spec 3.1)"
    )
    chain = explain("degree-9", "multiaccuracy", 0.001, 6)
    assert [str(step.want) for step in chain.steps] == ["multiaccuracy"]
    assert chain.steps[-1].alpha == chain.alpha == 0.001
    assert "Theorem 3.9" in str(explain("full-0.1", "smooth", 0.001, 3))
    assert "Theorem 3.7" in str(explain("smooth", "degree-3", 0.001, 3))
    assert str(explain("smooth", "full-0.1", 0.01)) == "smooth implies no bound on full-0.1 (spec 3.11)"
    assert explain("smooth", "smooth", 0.01).steps == ()
    assert "Bernstein polynomials of degree 2" in str(explain("degree-3", "smooth", 0.001))


# ---------------------------------------------------------------------------------------- spec 3.7: the two conventions
def two_labels(w: worlds.Worlds) -> worlds.Worlds:
    return worlds.Worlds(w.P, np.concatenate([1 - w.F, w.F], axis=2), np.concatenate([1 - w.T, w.T], axis=2), w.C)


def test_conventions_are_never_exceeded_and_attained() -> None:
    w = worlds.draw(4000, 3, 1, seed=1)
    wide = two_labels(w)
    for notion, supremum in (
        ("multiaccuracy", worlds.multiaccuracy),
        ("degree-1", lambda v: worlds.degree(v, 1)),
        ("degree-2", lambda v: worlds.degree(v, 2)),
        ("smooth", worlds.smooth),
    ):
        scalar, simplex = supremum(w), supremum(wide)
        assert (simplex <= binary_to_simplex(notion, 1.0) * scalar + 1e-12).all()
        assert (scalar <= simplex_to_binary(notion, 1.0) * simplex + 1e-12).all()
        assert (simplex / scalar).min() <= 1.02  # a factor below 1 on the way back would fail
    # 3 at degree 2: m_1 = -m_0; 4 for smooth: two near predictions with opposite residuals
    w = worlds.single([1 / 3, 2 / 3], np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    assert worlds.degree(two_labels(w), 2)[0] / worlds.degree(w, 2)[0] == pytest.approx(3)
    w = worlds.single([0.5, 0.5], np.array([0.45, 0.55]), np.array([0.25, 0.75]))
    assert worlds.smooth(two_labels(w))[0] / worlds.smooth(w)[0] == pytest.approx(4)


def test_higher_degrees_and_cells_between_conventions() -> None:
    w = worlds.draw(30, 3, 1, seed=2)
    wide = two_labels(w)
    for k in (3, 4):
        for i in range(30):
            above = definition.degree(*wide.one(i), k)
            assert above <= binary_to_simplex(f"degree-{k}", worlds.degree(w, k)[i]) + 1e-9
            assert worlds.monomial(wide, k)[i] >= simplex_to_binary(f"degree-{k}", worlds.degree(w, k)[i]) - 1e-12
    # f = 1/2 and f = 0.55 share a scalar cell of width 1/2; on the simplex the edge is a cell of its own
    w = worlds.single([0.5, 0.5], np.array([0.5, 0.55]), np.array([1.0, 1.0]))
    assert worlds.full_cell(w, 2)[0] == pytest.approx(0.475)
    assert worlds.full_cell(two_labels(w), 2)[0] == pytest.approx(0.25)
    assert worlds.full_cell(w, 2)[0] <= simplex_to_binary("full-0.5", worlds.full_cell(two_labels(w), 2)[0])
    w = worlds.single([0.5, 0.5], np.array([0.5, 0.55]), np.array([0.0, 1.0]))
    assert worlds.full_cell(w, 2)[0] == pytest.approx(0.025)  # and moves to 0 with the second prediction
    assert worlds.full_cell(two_labels(w), 2)[0] == pytest.approx(0.25)
    assert binary_to_simplex("full-0.5", 0.0) == inf


# ----------------------------------------------------------------------------------------------------------- the bases
def test_basis_and_tolerance_are_inverse() -> None:
    """The tolerance of a notion is the alpha of its basis at which the class holds at alpha."""
    for classes in (2, 3, 4, 7):
        p = np.zeros((1, 1)) if classes == 2 else np.zeros((1, classes))
        for notion in (Multiaccuracy(), LowDegree(1), LowDegree(2), LowDegree(4)):
            assert basis_to_class(notion, notion.tolerance(p, 0.25), classes) == pytest.approx(0.25, rel=1e-12)
    many = np.zeros((2000, 3))
    assert basis_to_class("full-0.1", Full(0.1).tolerance(many, 0.25), 3) == pytest.approx(0.25, rel=1e-12)
    assert basis_to_class("full-0.1", 0.01) == pytest.approx(0.1)
    # smooth: the dyadic basis of the scale S = ceil(log2(1 / alpha)) (spec 1.3, B4)
    beta = Smooth().tolerance(np.zeros((1, 1)), 0.01)
    assert beta == 0.01 / (2 + 7)
    assert basis_to_smooth(beta, 2.0**-8, 1 + 7 / 2) <= 0.01


# ---------------------------------------------------------------------------------------------------------- the border
def test_wrong_arguments_say_what_is_wrong() -> None:
    class Own(Multiaccuracy):
        """A user's own notion."""

    with pytest.raises(InvalidInput, match="knows multiaccuracy, degree-k, smooth and full"):
        implied_alpha(Own(), "smooth", 0.1)
    with pytest.raises(InvalidInput, match="Did you mean 'smooth'"):
        implied_alpha("smoth", "degree-2", 0.1)
    for alpha in (-0.1, inf, float("nan"), "a", None, True):
        with pytest.raises(InvalidInput, match="alpha must be a number of at least 0"):
            implied_alpha("smooth", "degree-2", alpha)
        with pytest.raises(InvalidInput, match="alpha"):
            robustness("full-0.1", alpha, 0.1)
        with pytest.raises(InvalidInput, match="alpha"):
            simplex_to_binary("smooth", alpha)
        with pytest.raises(InvalidInput, match="alpha"):
            binary_to_simplex("smooth", alpha)
    with pytest.raises(InvalidInput, match="n_classes must be a whole number of at least 2"):
        implied_alpha("smooth", "degree-2", 0.1, 1)
    with pytest.raises(InvalidInput, match=r"Unknown constants 'bets'; valid: sharp, best. Did you mean 'best'"):
        implied_alpha("smooth", "degree-2", 0.1, constants="bets")
    with pytest.raises(InvalidInput, match="distance must be"):
        robustness("smooth", 0.1, -1.0)
    with pytest.raises(InvalidInput, match="distance must be"):
        robustness("full-0.1", 0.1, -1.0)
    with pytest.raises(InvalidInput, match="r must be"):
        lipschitz_robustness(-1.0, 0.1, 0.1)
    with pytest.raises(InvalidInput, match="r must be"):
        smooth_to_lipschitz(0.1, -1.0)
    with pytest.raises(InvalidInput, match="eta must be"):
        basis_to_smooth(0.1, -1.0, 1.0)
    with pytest.raises(InvalidInput, match="basis_to_smooth"):
        basis_to_class("smooth", 0.1)
