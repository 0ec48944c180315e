"""The hierarchy: at which alpha one notion follows from another, and what moving a prediction costs (Section 3).

Every conversion is a line alpha' = factor * alpha + slack. `implied_alpha` finds the best chain of them, and `explain`
names its theorems. There are two sets of constants; spec 3 lists those that the paper prints beside them:

* "sharp": those of spec 3;
* "best": the sharp ones, and three that are smaller still, proved below (`_slope`, `_within_cells`, `_bernstein`).

n_classes = 2 is the scalar convention, l >= 3 the simplex (spec 0); `binary_to_simplex` and `simplex_to_binary` go
between the two at l = 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Literal, cast, get_args

import numpy as np

from lowcal.complexity import coordinates
from lowcal.data.errors import InvalidInput, check_choice
from lowcal.data.inputs import check_numbers
from lowcal.notions import Full, LowDegree, Multiaccuracy, Notion, Smooth, parse_notion
from lowcal.notions.weights import n_cells, n_intervals

Constants = Literal["sharp", "best"]


@dataclass(frozen=True)
class Deduction:
    """One theorem applied: `want` holds at `alpha`."""

    want: Notion
    alpha: float
    why: str


@dataclass(frozen=True)
class Implication:
    """The chain of theorems from `have` at `given` to `want` at `alpha`; no steps and infinity: nothing is implied."""

    have: Notion
    given: float
    want: Notion
    alpha: float
    steps: tuple[Deduction, ...]

    def __float__(self) -> float:
        return self.alpha

    def __str__(self) -> str:
        if not isfinite(self.alpha):
            return f"{self.have} implies no bound on {self.want} (spec 3.11)"
        lines = [f"{self.have} at {self.given:g} implies {self.want} at {self.alpha:g}"]
        return "\n".join([*lines, *(f"  -> {step.want} at {step.alpha:g}: {step.why}" for step in self.steps)])


@dataclass(frozen=True)
class _Setting:
    """What a conversion depends on besides the notions: the coordinates of a prediction, and the user's options."""

    d: int
    is_best: bool = False
    per_cell: bool = True


def implied_alpha(
    have: str | Notion,
    want: str | Notion,
    alpha: float,
    n_classes: int = 2,
    *,
    constants: Constants = "sharp",
    per_cell: bool = True,
) -> float:
    """Return the alpha' at which `want` holds whenever `have` holds at alpha; infinity if nothing is implied.

    The least alpha' over all chains of spec 3.1 to 3.9. A value of 1 or more is vacuous: no violation exceeds 1.
    Nothing implies the full notion except a full notion on a finer grid (spec 3.11); what would lead from a degree to a
    higher one, through smooth, is always vacuous, so that infinity is returned too.

    Parameters
    ----------
    have, want : notions or their names.
    alpha : at which `have` holds, at least 0.
    n_classes : 2 is the scalar convention of binary problems, l >= 3 the simplex.
    constants : "sharp" (spec 3), or "best" (never above "sharp").
    per_cell : whether alpha of a full notion bounds every single cell, which is the paper's Definition 3.6; False: it
        bounds the supremum over all functions of the cell, which is what `measure` reports and a fit reaches.

    >>> implied_alpha("smooth", "degree-3", 0.01)
    0.02
    >>> implied_alpha("multiaccuracy", "degree-1", 0.01, n_classes=5)
    0.02
    >>> round(implied_alpha("full-0.1", "smooth", 0.001), 12), implied_alpha("smooth", "full-0.1", 0.001)
    (0.06, inf)
    >>> round(implied_alpha("full-0.1", "smooth", 0.001, per_cell=False), 12)
    0.051
    """
    return explain(have, want, alpha, n_classes, constants=constants, per_cell=per_cell).alpha


def explain(
    have: str | Notion,
    want: str | Notion,
    alpha: float,
    n_classes: int = 2,
    *,
    constants: Constants = "sharp",
    per_cell: bool = True,
) -> Implication:
    """Return the chain of theorems behind `implied_alpha`; its str() names them. The arguments are the same.

    >>> print(explain("full-0.1", "degree-2", 0.001))
    full-0.1 at 0.001 implies degree-2 at 0.06
      -> degree-2 at 0.06: full to degree k, 10 alpha + 0.05 (spec 3.6)
    >>> print(explain("multiaccuracy", "smooth", 0.001))
    multiaccuracy implies no bound on smooth (spec 3.11)
    """
    start, end = _known(have), _known(want)
    check_numbers(alpha=alpha)
    check_choice("constants", constants, get_args(Constants))
    setting = _Setting(coordinates(n_classes), constants == "best", per_cell)
    nothing = Implication(start, alpha, end, inf, ())
    if isinstance(end, LowDegree) and end.degree > _degree_of(start):
        return nothing
    return _reached(start, end, alpha, setting).get(end, nothing)


def _degree_of(notion: Notion) -> float:
    """Return the highest degree that a notion bounds: infinite for smooth and full."""
    if isinstance(notion, LowDegree):
        return notion.degree
    return 1 if isinstance(notion, Multiaccuracy) else inf


def _reached(start: Notion, end: Notion, alpha: float, setting: _Setting) -> dict[Notion, Implication]:
    """Return the best chain to every notion on the way: each theorem has alpha' >= alpha, so the nearest is final."""
    waiting = {start: Implication(start, alpha, start, alpha, ())}
    final: dict[Notion, Implication] = {}
    while waiting:
        here = waiting.pop(min(waiting, key=lambda notion: waiting[notion].alpha))
        final[here.want] = here
        for want in (end, Multiaccuracy(), LowDegree(1), Smooth()):
            found = _convert(here.want, want, here.alpha, setting) if want not in final else None
            if found and (want not in waiting or found[0] < waiting[want].alpha):
                steps = (*here.steps, Deduction(want, *found))
                waiting[want] = Implication(start, alpha, want, found[0], steps)
    return final


def _convert(have: Notion, want: Notion, alpha: float, s: _Setting) -> tuple[float, str] | None:
    """Return the alpha' at which one theorem leads from `have` at alpha to `want`, and which; None without one."""
    several = max(1, s.d // 2)  # labels that may err at once
    count = _count(have, s) if isinstance(have, Full) else 0
    cells = several * count if s.per_cell else 1.0  # the supremum over all functions of the cell, over alpha (spec 2.5)
    match have, want:
        case LowDegree(k), LowDegree(j) if j <= k:
            return alpha, "polynomials of lower degree (Proposition 3.3)"
        case ((LowDegree() | Smooth()), Multiaccuracy()):
            return alpha, "constants are weights of the class (Proposition 3.3)"
        case Multiaccuracy(), LowDegree(1):  # constants in [0, 1]^l see ||v||_1 / 2 <= floor(l/2) max |v| (spec 2.1)
            if several == 1:
                return alpha, "constants (Proposition 3.3)"
            return several * alpha, f"{several} labels may err at once (spec 3.1)"
        case Smooth(), LowDegree(k):  # a weight divided by its slope is 1-Lipschitz; below 1 it is so already
            slope = max(1.0, _slope(k, s))
            return slope * alpha, f"weights of degree {k} are {slope:g}-Lipschitz (Theorem 3.7, spec 3.3)"
        case LowDegree(k), Smooth() if k >= 2 and s.d == 1:  # not in the paper
            found, j = min((_bernstein(j, alpha, s.is_best), j) for j in range(1, k))
            return found, f"Bernstein polynomials of degree {j} (spec 3.9)"
        case Full(width), Smooth():
            scalar = (1 + width) / 4 if s.is_best else 0.5
            slack = width * (s.d if s.d > 1 else scalar)
            return cells * alpha + slack, f"full to smooth, {cells:g} alpha + {slack:g} (Theorem 3.9, spec 3.5)"
        case Full(width), LowDegree(k):  # not in the paper
            slack = _within_cells(width, k - 1) if s.is_best and s.d == 1 else (k - 1) * s.d * width / 2
            return cells * alpha + slack, f"full to degree k, {cells:g} alpha + {slack:g} (spec 3.6)"
        case Full(), Multiaccuracy():  # a single label needs no floor(l/2)
            factor = count if s.per_cell else 1
            return factor * alpha, f"a constant is the sum of {factor} cells (spec 2.5)"
        case Full(fine), Full(coarse):
            ratio = n_intervals(fine) if n_intervals(coarse) == 1 else round(coarse / fine)
            if n_intervals(coarse) == 1 or abs(ratio * fine - coarse) <= 1e-9:  # the edges agree
                factor = min(ratio**s.d, count) if s.per_cell else 1
                return factor * alpha, f"a cell is the union of {factor} finer ones"
    return None


def _slope(degree: int, setting: _Setting) -> float:
    """Return the Lipschitz constant of W_k for the metric of the smooth notion (Lemma 3.8, spec 3.3).

    k - 1 for scalars and in the paper; (k - 1)/2 on the simplex, where z - z' sums to zero; "best": 3 (k - 1)/8 for
    k >= 3. As <1, y - f> = 0, a weight may be replaced by w - t 1 for any scalar function t. Take t(z) = sum_i psi(z_i)
    with psi' (x) = max(0, K x^(K-1) - 3K/4), K = k - 1. The gradient of q in P_K differs between two coordinates by at
    most K upwards (z_i^K at the corner i) and by K/2 downwards (q >= 0 at the corner forces a constant beside -z_i^K,
    and sum |q_S| <= 1 leaves 1/2 of each); psi' <= K/4 takes from the one and adds to the other: 3K/4, over 2.
    The values of w - t fill an interval of length 1 + psi(1) <= 9/8 <= 3K/8 for K >= 3. It is approached at two
    predictions next to a corner.
    """
    k = degree - 1
    if setting.d == 1:
        return float(k)
    return 3 * k / 8 if setting.is_best and k >= 2 else k / 2


def smooth_to_lipschitz(alpha: float, r: float) -> float:
    """Return the alpha at which a smooth predictor satisfies all weights in [0, 1] with Lipschitz constant r.

    max(1, r) alpha. Paper: Proposition 3.5; spec 3.4.

    >>> smooth_to_lipschitz(0.01, 3.0), smooth_to_lipschitz(0.01, 0.5)
    (0.03, 0.01)
    """
    check_numbers(alpha=alpha, r=r)
    return max(1.0, r) * alpha


def basis_to_class(notion: str | Notion, alpha: float, n_classes: int = 2) -> float:
    """Return the alpha' of the whole weight class when every element of its basis has a violation of at most alpha.

    Monomials: alpha for scalars, floor(l/2) alpha at degree 1, l alpha above (tight; spec 3.2). Cells: N alpha for
    scalars, floor(l/2) N alpha on the simplex (spec 2.5). The paper prints alpha for all monomials.

    >>> basis_to_class("degree-2", 0.01, n_classes=4), basis_to_class("degree-2", 0.01)
    (0.04, 0.01)
    """
    chosen, setting = _known(notion), _Setting(coordinates(n_classes))
    check_numbers(alpha=alpha)
    if isinstance(chosen, Smooth):
        raise InvalidInput("The smooth notion has many bases. Use basis_to_smooth.")
    several = max(1, setting.d // 2)
    if isinstance(chosen, Full):
        return several * _count(chosen, setting) * alpha
    if setting.d == 1 or isinstance(chosen, Multiaccuracy):
        return alpha
    return (several if cast(LowDegree, chosen).degree == 1 else setting.d) * alpha


def basis_to_smooth(beta: float, eta: float, L: float, n_classes: int = 2) -> float:
    """Return the smooth alpha of a predictor that satisfies an (eta, L)-basis of the Lipschitz weights at beta.

    beta L + 2 eta on the simplex and in the paper, beta L + eta for scalars. Paper: Lemma 3.12; spec 3.8. For scalars
    the indicators of the dyadic intervals of length 1, 1/2, ..., 2^-S are a (2^-(S+1), 1 + S/2)-basis (spec 1.3, B4).

    >>> basis_to_smooth(0.01, 0.05, 2.0), basis_to_smooth(0.01, 0.05, 2.0, n_classes=3)
    (0.07, 0.12000000000000001)
    """
    check_numbers(beta=beta, eta=eta, L=L)
    return beta * L + (eta if coordinates(n_classes) == 1 else 2 * eta)


def _count(have: Full, setting: _Setting) -> float:
    """Return the number of cells that meet the space of predictions; no more, so that products with it stay finite."""
    return min(n_cells(setting.d, have.width), 1e200)


def _within_cells(width: float, degree: int) -> float:
    """Return what scalar weights of a degree can gain inside the cells when every cell's own residual is zero.

    A cell [a, b] with residual mass m upwards and m downwards gains at most m (range of w on it). Predictions there
    have residuals between -b and 1 - a, so that m <= (1 - a) b / (1 - a + b), approached by f* = 1 at a, f* = 0 at b.
    The range is b - a for Lipschitz weights (at most width (1 + width) / 4 in all, against width / 2) and b^j - a^j
    for monomials. With |residual of a cell| <= beta the cell gains beta more at most.
    """
    a = np.arange(n_intervals(width)) * width
    b = np.minimum(a + width, 1.0)
    mass = (1.0 - a) * b / (1.0 - a + b)
    return max((float((mass * (b**j - a**j)).max()) for j in range(1, degree + 1)), default=0.0)


def _bernstein(k: int, alpha: float, is_best: bool) -> float:
    """Return factor * alpha + 1 / (2 sqrt K): |u - B_K u| <= 1 / (2 sqrt K).

    The factor is the l1 norm of the coefficients, sum_j C(K, j) 2^(K-j) = 3^K for 0 <= u <= 1. "best": (3^K + 1) / 2,
    as |u - 1/2| <= 1/2 and the constant 1/2 costs alpha / 2.
    """
    factor = (3.0**k + 1) / 2 if is_best else 3.0**k
    return factor * alpha + 1 / (2 * sqrt(k))


def binary_to_simplex(notion: str | Notion, alpha: float) -> float:
    """Return the alpha of the simplex convention with two labels when the scalar one holds at alpha (spec 3.7).

    Multiaccuracy and degree 1: alpha. Degree 2: 3 alpha. Degree k >= 3: 2^k alpha (not sharp). Smooth: 4 alpha, as
    weights may be 2-Lipschitz on each of two labels. Full: infinity, as the edges are cells of their own there.

    >>> [binary_to_simplex(n, 0.01) for n in ("degree-1", "degree-2", "smooth", "full-0.1")]
    [0.01, 0.03, 0.04, inf]
    """
    chosen = _known(notion)
    check_numbers(alpha=alpha)
    if isinstance(chosen, Full):
        return inf
    if isinstance(chosen, Smooth):
        return 4 * alpha
    return {1: 1.0, 2: 3.0}.get(degree := int(_degree_of(chosen)), 2.0**degree) * alpha


def simplex_to_binary(notion: str | Notion, alpha: float) -> float:
    """Return the alpha of the scalar convention when the simplex one with two labels holds at alpha (spec 3.7).

    alpha for all but the full notion: a weight on one label is a weight. Full, cell by cell: 2 alpha, as an interval
    [a, b) is the cell of its edge and the cell of its inside.

    >>> [simplex_to_binary(n, 0.01) for n in ("degree-2", "smooth", "full-0.1")]
    [0.01, 0.01, 0.02]
    """
    check_numbers(alpha=alpha)
    return (2 if isinstance(_known(notion), Full) else 1) * alpha


def robustness(
    notion: str | Notion, alpha: float, distance: float, n_classes: int = 2, constants: Constants = "sharp"
) -> float:
    """Return the alpha at which a notion still holds after predictions moved by E||f - g||_1 <= distance.

    Scalars, E|f - g| <= distance: degree k pays k, smooth 2 times the distance. Simplex: k - 1/2 and 5/2. The paper
    prints 2k - 1 and 3. The full notion pays any price: next to nothing moves predictions over the edge of a cell and
    changes it by up to 1/2, so that infinity is returned. Paper: Theorem 3.15; spec 3.10.

    Rounding binary predictions to a grid of step h moves them by at most h / 2:

    >>> robustness("degree-2", 0.01, distance=0.001 / 2)
    0.011
    >>> robustness("smooth", 0.01, 0.002, n_classes=3), robustness("full-0.1", 0.01, 1e-9)
    (0.015, inf)
    """
    check_choice("constants", constants, get_args(Constants))
    chosen, setting = _known(notion), _Setting(coordinates(n_classes), constants == "best")
    check_numbers(alpha=alpha, distance=distance)
    if isinstance(chosen, Full):
        return inf
    slope = 1.0 if isinstance(chosen, Smooth) else _slope(int(_degree_of(chosen)), setting)
    return lipschitz_robustness(slope, alpha, distance, n_classes)


def lipschitz_robustness(r: float, alpha: float, distance: float, n_classes: int = 2) -> float:
    """Return the alpha after a move of `distance`, for any class of weights in [0, 1] with Lipschitz constant r.

    alpha + (r + 1) distance for scalars, alpha + (2r + 1/2) distance on the simplex; the paper: (2r + 1) for both.
    Paper: Lemma 3.16; spec 3.10.

    >>> lipschitz_robustness(2.0, 0.0, 0.01), lipschitz_robustness(2.0, 0.0, 0.01, n_classes=3)
    (0.03, 0.045)
    """
    check_numbers(r=r, alpha=alpha, distance=distance)
    return alpha + (r + 1 if coordinates(n_classes) == 1 else 2 * r + 0.5) * distance


def _known(notion: str | Notion) -> Notion:
    """Return a notion of the paper; nothing is known about a user's own."""
    chosen = parse_notion(notion)
    if type(chosen) not in (Multiaccuracy, LowDegree, Smooth, Full):
        raise InvalidInput(
            f"The hierarchy knows multiaccuracy, degree-k, smooth and full, but {chosen!r} was given. "
            "Measure it on data instead."
        )
    return chosen
