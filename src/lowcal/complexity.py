"""How many rounds and how many rows a notion takes: the bounds of Lemma 5.3 and of the paper's sample complexities.

A *proved* number has known constants: that many rows are enough, with probability 1 - beta. An *order* (the paper's
O(...)) has an unknown constant, so it can only compare notions. Every result is marked as one of the two. The constants
are sharper than the paper's, or corrected (spec 4.3, 4.6, 4.7, 4.9, 6, 9).

N is always the number of signed pairs, 2 |C| |W|, with |W| weights u e_a in the basis of the notion.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, comb, exp, inf, isinf, log, log2, sqrt
from numbers import Real
from typing import Literal, get_args

import numpy as np
from scipy.special import ndtri

from lowcal.data.errors import InvalidInput, aligned, check_choice
from lowcal.data.inputs import check_positive, check_whole
from lowcal.kernels.simplex import width
from lowcal.notions import Full, LowDegree, Multiaccuracy, Notion, Smooth, parse_notion
from lowcal.notions.smooth import finest_scale
from lowcal.notions.weights import n_cells, n_intervals

Start = Literal["uniform", "any"]
Constants = Literal["sharp", "paper"]
Setting = Literal["fresh", "reuse", "online", "private", "order"]
Method = Literal["normal", "bernstein"]


@dataclass(frozen=True)
class SampleSize:
    """A number of rows, and whether it is proved or an order of growth only.

    >>> size = sample_size("degree-2", 0.1, n_subpopulations=20)
    >>> int(size) == size.rows, size.is_order_only
    (True, False)
    """

    rows: int | float
    is_order_only: bool
    formula: str
    reference: str

    def __int__(self) -> int:
        return ceil(self.rows)

    def __float__(self) -> float:
        return float(self.rows)

    def __str__(self) -> str:
        kind = "order only, the constant is not known" if self.is_order_only else "proved"
        return f"{show_rows(self.rows)} rows ({kind}; {self.formula}; {self.reference})"


def coordinates(n_classes: int) -> int:
    """Return d, the number of coordinates of a prediction: 1 for two classes, else the number of classes."""
    check_whole("n_classes", n_classes, 2)
    return 1 if n_classes == 2 else int(n_classes)


def start_potential(d: int, start: Start = "any") -> float:
    """Return the largest phi(f_0) = E||f* - f_0||^2: 1/4 or 1 - 1/d from a uniform start, else 1 or 2 (spec 4.3)."""
    check_choice("start", start, get_args(Start))
    if start == "uniform":
        return 0.25 if d == 1 else 1.0 - 1.0 / d
    return 1.0 if d == 1 else 2.0


def basis_width(d: int) -> float:
    """Return B for weights u e_a of one label: ||u e_a - mean||^2 <= 1 - 1/d, and 1 for scalars (spec 4.3)."""
    return 1.0 if d == 1 else 1.0 - 1.0 / d


def iterations(
    notion: str | Notion,
    alpha: float,
    n_classes: int = 2,
    *,
    start: Start = "uniform",
    constants: Constants = "sharp",
) -> int:
    """Return the largest number of updates that Algorithm 1 can make: T <= phi(f_0) B / g^2 (Lemma 5.3, spec 4.3).

    An update along a pair with violation at least g, with the step g / B, lowers phi by g^2 / B.
    The paper's own constants (step alpha / (2d), gain alpha / 2, phi <= 2, B = d) give 8 d / alpha^2.

    Parameters
    ----------
    start : "uniform" (Algorithm 1 as printed) or "any" (a given predictor).
    constants : "sharp", or "paper" for 8 d / alpha^2 whatever the start.

    >>> iterations("degree-2", 0.1), iterations("degree-2", 0.1, start="any")
    (25, 100)
    >>> iterations("degree-2", 0.1, constants="paper"), iterations("degree-2", 0.1, 10, constants="paper")
    (800, 8000)
    """
    check_level("alpha", alpha)
    check_choice("constants", constants, get_args(Constants))
    d, chosen = coordinates(n_classes), parse_notion(notion)
    phi = start_potential(d, start)
    if constants == "paper":
        return _whole(8 * d / alpha**2)
    B = basis_width(d) if isinstance(chosen, Multiaccuracy) else width(d)
    return _whole(phi * B / (chosen.gain(d) * alpha) ** 2)


def n_weights(notion: str | Notion, n_classes: int = 2, alpha: float = 0.05) -> int:
    """Return how many weights u e_a the finite basis of a notion has; alpha matters for "smooth" alone (spec 1.3).

    >>> [n_weights(w) for w in ("multiaccuracy", "degree-3", "full-0.1")], n_weights("degree-3", 10)
    ([1, 3, 10], 660)
    """
    chosen, d = parse_notion(notion), coordinates(n_classes)
    if isinstance(chosen, Multiaccuracy):
        return d
    if isinstance(chosen, LowDegree):
        return d * comb(d + chosen.degree - 1, chosen.degree - 1)
    if isinstance(chosen, Full):
        return d * n_cells(d, chosen.width)
    if isinstance(chosen, Smooth):
        return d * sum(n_cells(d, 0.5**s) for s in range(finest_scale(d, alpha) + 1))
    raise InvalidInput(f"The basis of {chosen!r} can't be counted; use a built-in notion such as 'degree-2'.")


def finite_basis(notion: str | Notion) -> Notion:
    """Return the notion if it is bounded by finitely many weights that are known before any row is seen."""
    chosen = parse_notion(notion)
    if not isinstance(chosen, Multiaccuracy | LowDegree | Full):
        raise InvalidInput(
            f"{chosen} is not bounded by a finite list of weights that is known beforehand, which is needed here. "
            'Use "multiaccuracy", a degree such as "degree-2", or "full-0.1".'
        )
    return chosen


def n_pairs(notion: str | Notion, n_subpopulations: int, n_classes: int = 2, alpha: float = 0.05) -> int:
    """Return N = 2 |C| |W|, the number of signed pairs of a subpopulation and a basis weight."""
    check_whole("n_subpopulations", n_subpopulations, 1)
    return 2 * int(n_subpopulations) * n_weights(notion, n_classes, alpha)


def basis_tolerance(notion: str | Notion, alpha: float, n_classes: int = 2) -> float:
    """Return the violation of the basis that implies at most alpha over the whole class, for a population.

    It is `Notion.tolerance` for a sample that may fill every cell.
    """
    d = coordinates(n_classes)
    endless = np.broadcast_to(0.0, (sys.maxsize // (8 * d), d))  # a shape: nothing of this size is stored
    return parse_notion(notion).tolerance(endless, alpha)


def fresh_rounds(alpha: float, n_classes: int = 2, start: Start = "any") -> int:
    """Return T_max = ceil(4 phi(f_0) B / alpha^2): updates of true gain alpha / 2 with the step alpha / (2B) (4.6)."""
    d = coordinates(n_classes)
    return ceil(4 * start_potential(d, start) * basis_width(d) / alpha**2 * (1 - 1e-12))


def batch_deviation(n_rows: int, pairs: int, rounds: int, beta: float) -> float:
    """Return e with P(some round, some pair: |g_batch - g| > e) <= beta, a new batch of n_rows for every round.

    e = sqrt(2 ln(2 N rounds / beta) / n): Hoeffding for terms in [-1, 1], a union over pairs and rounds (spec 4.6).
    """
    return sqrt(2 * (log(2 * pairs * rounds) - log(beta)) / n_rows)


def fresh_batch(alpha: float, pairs: int, rounds: int, beta: float) -> int:
    """Return m_0 = ceil(32 / alpha^2 ln(2 N rounds / beta)): rows a round for a deviation of alpha / 4 (spec 4.6).

    `rounds` is T_max + 1: the last one finds nothing.
    """
    return ceil(32 / alpha**2 * (log(2 * pairs * rounds) - log(beta)))  # pairs may be more than a float holds


def reuse_deviation(n_rows: int, n_pairs: int, n_updates: int, beta: float = 0.05, n_steps: int = 1) -> float:
    """Return e with |g_n - g| <= e for all pairs and all predictors along a run of n_updates on ONE sample.

    e = sqrt(2 ((T+1) ln(N Q) + ln(2/beta) + ln(T(T+1))) / n). A run with Q fixed step sizes is one of (N Q)^T
    sequences of choices; a union over all of them pays for having looked (spec 4.7). The last term lets T be the
    number of updates that the run happened to make (T = 0 counts as 1). For ranges [-1, 1] by Hoeffding's inequality.

    Parameters
    ----------
    n_rows : rows of the sample. n_pairs : N = 2 |C| |W|, all that the run could choose from.
    n_updates : T, the updates made. n_steps : Q, the step sizes that it could choose from.

    >>> round(reuse_deviation(100_000, 80, 12), 4)
    0.0363
    """
    for name, value, least in (("n_rows", n_rows, 1), ("n_pairs", n_pairs, 2), ("n_updates", n_updates, 0)):
        check_whole(name, value, least)
    check_whole("n_steps", n_steps, 1)
    check_level("beta", beta)
    T = max(n_updates, 1)
    return sqrt(2 * ((T + 1) * log(n_pairs * n_steps) + log(2 / beta) + log(T * (T + 1))) / n_rows)


def audit_rows(
    notion: str | Notion,
    alpha: float,
    n_subpopulations: int,
    *,
    n_classes: int = 2,
    beta: float = 0.05,
    rate: float = 0.5,
    method: Method = "normal",
) -> int:
    """Return the held-out rows with which an audit of a perfect model certifies alpha, with probability 80%.

    The upper limit of the widest constraint, |v_n| + half, must be at most a, the alpha of a single constraint
    (`basis_tolerance`). Its terms have at most the variance rate * (1 - rate), so with N = |C| |W| constraints

    * "normal": (z_{1 - beta/(2N)} + z_{0.9}) sqrt(rate (1 - rate) / n) <= a, an upper bound on the bootstrap's band in
      large samples;
    * "bernstein": the same with sqrt(2 L) in place of the first quantile, plus 14 L / (3 (n - 1)) for L = ln(8N/beta):
      the limits that hold for any number of rows (spec 10.i.b).

    A model that is not perfect needs more: alpha less its violation takes the place of alpha.

    Parameters
    ----------
    notion : multiaccuracy or degree-k; the bands of other notions are not a union over few constraints.
    rate : the base rate of the label; 1/2 is the worst case.

    >>> audit_rows("degree-2", 0.01, 20), audit_rows("degree-2", 0.01, 20, rate=0.1)
    (50823, 18297)
    >>> audit_rows("degree-2", 0.01, 20, method="bernstein")
    82732
    """
    parsed = parse_notion(notion)
    if not isinstance(parsed, LowDegree | Multiaccuracy):
        raise InvalidInput(f"The rows of an audit are known for multiaccuracy and degree-k, but {parsed} was given.")
    for name, value in (("alpha", alpha), ("beta", beta), ("rate", rate)):
        check_level(name, value)
    check_choice("method", method, get_args(Method))
    constraints = n_pairs(parsed, n_subpopulations, n_classes, alpha) / 2
    target, deviation = basis_tolerance(parsed, alpha, n_classes), sqrt(rate * (1 - rate))
    lucky = float(ndtri(0.9))  # |v_n| is smaller with probability 80%
    if method == "normal":
        return ceil((deviation * (lucky - float(ndtri(beta / (2 * constraints)))) / target) ** 2)
    level = log(8 * constraints / beta)
    linear, square = deviation * (lucky + sqrt(2 * level)), 14 * level / 3
    # linear / sqrt(n) + square / n <= target, solved for sqrt(n); one more row as n - 1 stands below `square`
    return 1 + ceil(((linear + sqrt(linear**2 + 4 * target * square)) / (2 * target)) ** 2)


def sample_size(
    notion: str | Notion,
    alpha: float,
    *,
    n_classes: int = 2,
    vc: float | None = None,
    n_subpopulations: int | None = None,
    beta: float = 0.05,
    setting: Setting | None = None,
    constant: float = 1.0,
) -> SampleSize:
    """Return the rows that are enough to reach a notion at alpha in the POPULATION, with probability 1 - beta.

    Parameters
    ----------
    vc, n_subpopulations : the size of C; the proved settings need the number, an order takes either.
    setting : "fresh": a new batch for every round (4.6). "reuse": one sample and Algorithm 1 at the tolerance alpha / 2
        with the step alpha / (2B), which makes at most T = 4 phi B / alpha^2 updates, each pair deviating by at most
        alpha / 2 (4.7). "online": one pass and a mixture of forecasts, whose violation is sqrt(2 ln N / n) and whose
        deviation is sqrt(8 ln(N/beta) / n) by Azuma's inequality (4.9, 6.9). These three are proved. "order": the
        paper's theorem (6.2 to 6.5). "private": the paper's order for selection under differential privacy (4.8).
        None: "fresh" if the number of subpopulations is known, otherwise "order".
    constant : the unknown constant of an order.

    >>> for setting in ("fresh", "reuse", "online"):
    ...     print(setting, show_rows(sample_size("degree-2", 0.1, n_subpopulations=20, setting=setting).rows))
    fresh 4,100,196
    reuse 357,019
    online 11,328
    >>> sample_size("degree-2", 0.1, vc=10).is_order_only
    True
    """
    check_level("alpha", alpha)
    check_level("beta", beta)
    check_positive("constant", constant)
    setting = setting or ("order" if n_subpopulations is None else "fresh")
    check_choice("setting", setting, get_args(Setting))
    chosen = parse_notion(notion)
    if setting == "order":
        return Orders(alpha, 1, n_classes, _capacity(vc, n_subpopulations), beta, constant).of(chosen)
    if n_subpopulations is None:
        raise InvalidInput(
            f"The setting {setting!r} needs n_subpopulations, the number of subpopulations; with vc alone only "
            'setting="order" can be computed.'
        )
    target = basis_tolerance(chosen, alpha, n_classes)
    pairs, T = n_pairs(chosen, n_subpopulations, n_classes, alpha), fresh_rounds(target, n_classes, "uniform")
    if setting == "private":
        logs = log(pairs // 2 / target) * log(1 / (target * beta)) ** 1.5
        rows, formula = constant * sqrt(n_classes) * logs / target**3, "K sqrt(l) ln(|C||W|/a) ln(1/(a beta))^1.5/a^3"
        return SampleSize(_rounded(rows), True, formula, "Section 5.1; spec 4.8")
    if setting == "online":
        formula = "(sqrt(2 ln N) + sqrt(8 ln(N/beta)))^2/a^2, randomised predictor"
        rows = ceil((sqrt(2 * log(pairs)) + sqrt(8 * log(pairs / beta))) ** 2 / target**2)
        return SampleSize(rows, False, formula, "spec 6.9")
    if setting == "reuse":
        formula = "8((T+1) ln N + ln(2/beta))/a^2, T = ceil(4 phi B/a^2)"
        rows = ceil(8 * ((T + 1) * log(pairs) + log(2 / beta)) / target**2)
        return SampleSize(rows, False, formula, "spec 4.7")
    formula = "(T+1) ceil(32/a^2 ln(2N(T+1)/beta)), T = ceil(4 phi B/a^2)"
    return SampleSize((T + 1) * fresh_batch(target, pairs, T + 1, beta), False, formula, "spec 4.6")


@dataclass(frozen=True)
class Orders:
    """The orders of growth of Section 5: rows that each notion takes for degree-(k+1) at alpha (Theorem 5.5).

    Below, K is the unknown `constant`, VC the `capacity` (ln|C| in a finite class), l the classes. Every method returns
    the corrected order or, if `is_paper`, the printed one; the docstrings state the difference.
    """

    alpha: float
    k: int
    n_classes: int
    capacity: float
    beta: float
    constant: float = 1.0
    is_paper: bool = False

    def of(self, notion: Notion) -> SampleSize:
        """Return the order of a notion for its own sake: 6.4 for low degrees, 6.5 for smooth, 6.3 for the others."""
        if isinstance(notion, LowDegree) and notion.degree >= 2:
            return replace(self, k=notion.degree - 1).low_degree()
        if isinstance(notion, Smooth):
            return self.smooth()
        target = self.alpha if self.is_paper else basis_tolerance(notion, self.alpha, self.n_classes)
        return replace(self, alpha=target).generic(log(n_weights(notion, self.n_classes)))

    def generic(self, log_weights: float) -> SampleSize:
        """Return K l (VC + ln(l |W| / (alpha beta))) / alpha^4 for a finite basis W (Proposition 5.4, spec 6.2, 6.3).

        Corrected: without the factor l, as the weights of a basis have one label each and norm at most 1 (spec 6.4).
        """
        logs = self.capacity + log(self.n_classes) + log_weights - log(self.alpha) - log(self.beta)
        factor, text = (self.n_classes, "l ") if self.is_paper else (1, "")
        formula = f"K {text}(VC + ln(l|W|/(a0 beta)))/a0^4"
        return self._size(factor, logs, self.alpha, 4, formula, "Proposition 5.4; spec 6.3")

    def low_degree(self) -> SampleSize:
        """Return the order for degree-(k+1) itself (Theorem 5.5, spec 6.4).

        Paper: K l (VC + k ln(l/(alpha beta))) / alpha^4. The factor l is not needed for the monomials (weights of one
        label have norm at most 1) and is l^2 for the whole class; for scalars it is 1.
        """
        factor, text = (self.n_classes, "l ") if self.is_paper else (coordinates(self.n_classes) ** 2, "l^2 ")
        logs = self.capacity + self.k * log(self.n_classes / (self.alpha * self.beta))
        formula = f"K {'' if factor == 1 else text}(VC + k ln(l/(a beta)))/a^4"
        return self._size(factor, logs, self.alpha, 4, formula, "Theorem 5.5" if self.is_paper else "spec 6.4")

    def smooth(self) -> SampleSize:
        """Return the order for (alpha/k)-smooth, which implies degree-(k+1) at alpha (Theorem 5.5, spec 6.5).

        Paper: K k^4 l (VC + ln(kl/(alpha beta)) + ln|W|) / alpha^4 with the cell-wise constant basis at eta =
        alpha / (4k). Corrected: that basis is a product over the labels, so ln|W| = l (12 l k/alpha)^(l-1)
        ln(12 k/alpha + 1). Scalars have one coordinate, and the dyadic basis besides: K (VC + ln(1/(a0 beta))) / a0^4
        with a0 = (alpha/k) / (2 + S), S = ceil(log2(k/alpha)); the smaller of the two is returned.
        """
        k, l, alpha = self.k, self.n_classes, self.alpha  # noqa: E741
        d = coordinates(l)
        copies, factor = (1, l) if self.is_paper else (d, d)
        log_w = copies * _exp((l - 1) * log(12 * l * k / alpha)) * log(12 * k / alpha + 1)
        formula = f"K k^4 {'' if factor == 1 else 'l '}(VC + ln(kl/(a beta)) + ln|W|)/a^4"
        logs = self.capacity + log(k * l / (alpha * self.beta)) + log_w
        basis = self._size(k**4 * factor, logs, alpha, 4, formula, "Theorem 5.5" if self.is_paper else "spec 6.5")
        if self.is_paper or d > 1:
            return basis
        a0 = (alpha / k) / (2 + max(0, ceil(log2(k / alpha))))
        logs, formula = self.capacity + log(1 / (a0 * self.beta)), "K (VC + ln(1/(a0 beta)))/a0^4, a0 = a/(k(2+S))"
        return min(basis, self._size(1, logs, a0, 4, formula, "spec 6.5"), key=float)

    def full(self) -> SampleSize:
        """Return the order for the full notion at the width and alpha_0 that imply degree-(k+1) (spec 6.6, 6.7).

        Paper, multi-class: K (2kl)^(4(l+1)) (VC + ln(kl/(alpha beta))) / alpha^(4(l+1)); binary: K k^4 (VC +
        ln(k/(alpha beta))) / alpha^8, which is right for degree-(k+1) directly (width alpha/k), though not through
        smooth as the paper has it. Corrected, multi-class: alpha_0 = l (alpha/(2kl))^(l+1) / floor(l/2) in the
        general bound.
        """
        k, l, alpha, beta = self.k, self.n_classes, self.alpha, self.beta  # noqa: E741
        if l == 2:
            logs, formula = self.capacity + log(k / (alpha * beta)), "K k^4 (VC + ln(k/(a beta)))/a^8"
            return self._size(k**4, logs, alpha, 8, formula, "Theorem 5.5; spec 6.7")
        delta = alpha / (2 * k * l)
        if self.is_paper:
            formula = "K (2kl)^(4(l+1)) (VC + ln(kl/(a beta)))/a^(4(l+1))"
            logs = self.capacity + log(k * l / (alpha * beta))
            return self._size(1, logs, delta, 4 * (l + 1), formula, "Theorem 5.5")
        log_a0 = log(l) + (l + 1) * log(delta) - log(l // 2)
        logs = self.capacity + 2 * log(l) + l * log(n_intervals(delta)) - log_a0 - log(beta)
        rows = _rounded(_exp(log(self.constant * logs) - 4 * log_a0))
        formula = "K (VC + ln(l|W|/(a0 beta)))/a0^4, a0 = l (a/(2kl))^(l+1)/floor(l/2)"
        return SampleSize(rows, True, formula, "spec 6.6")

    def game(self) -> SampleSize:
        """Return K ln(|C|/(delta beta)) / alpha_0^2 for the binary full notion by Gupta et al. (spec 6.10).

        With the width delta = alpha/k and alpha_0 = alpha^2/(2k) that imply degree-(k+1) at alpha: alpha^-4.
        """
        a0, delta = self.alpha**2 / (2 * self.k), self.alpha / self.k
        logs, formula = self.capacity + log(1 / (delta * self.beta)), "K ln(|C|/(delta beta))/a0^2, a0 = a^2/(2k)"
        return self._size(1, logs, a0, 2, formula, "end of Section 5.2; spec 6.10")

    def _size(self, factor: float, logs: float, inverse: float, power: int, formula: str, where: str) -> SampleSize:
        """Return constant * factor * logs / inverse^power rows, without overflow."""
        rows = _rounded(_exp(log(self.constant) + log(factor) + log(logs) - power * log(inverse)))
        return SampleSize(rows, True, formula, where)


@dataclass(frozen=True)
class Row:
    """One notion in a comparison: what is trained, and the rows by the corrected and by the printed order."""

    trained: str
    corrected: SampleSize
    paper: SampleSize
    ratio: float


@dataclass(frozen=True)
class Comparison:
    """The rows that each notion takes to guarantee the same target; `str()` is a table."""

    target: str
    alpha: float
    n_classes: int
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        head = f"rows to guarantee {self.target} at alpha={self.alpha:g}, {self.n_classes} classes (orders only)"
        cells = [("train for", "corrected", "paper", "ratio", "formula")]
        cells += [
            (r.trained, show_rows(r.corrected.rows), show_rows(r.paper.rows), f"{r.ratio:.3g}", r.corrected.formula)
            for r in self.rows
        ]
        return "\n".join([head, *(line[2:] for line in aligned(cells, "lrrrl"))])


def compare(
    alpha: float,
    *,
    degree: int = 2,
    n_classes: int = 2,
    vc: float | None = None,
    n_subpopulations: int | None = None,
    beta: float = 0.05,
    constant: float = 1.0,
) -> Comparison:
    """Compare all notions at the same target, degree-`degree` multicalibration at alpha (Theorem 5.5, spec 6.4-6.10).

    Each notion is trained at the accuracy that implies the target; multiaccuracy implies no more than itself and is
    listed for reference. `ratio` is to training for the degree directly, by the corrected orders.

    >>> table = compare(0.25, vc=1000)
    >>> [row.trained for row in table.rows]
    ['multiaccuracy (itself)', 'degree-2', 'smooth', 'full', 'full, by a game (inefficient)']
    >>> round(table.rows[3].ratio)
    256
    >>> print(compare(0.1, n_classes=3, vc=10))
    rows to guarantee degree-2 at alpha=0.1, 3 classes (orders only)
    train for                corrected     paper     ratio  formula
    multiaccuracy (itself)    174,956   524,867     0.119  K (VC + ln(l|W|/(a0 beta)))/a0^4
    degree-2                1,475,724   491,908         1  K l^2 (VC + k ln(l/(a beta)))/a^4
    smooth                   5.59e+10  1.86e+10  3.79e+04  K k^4 l (VC + ln(kl/(a beta)) + ln|W|)/a^4
    full                     1.49e+28  4.63e+29  1.01e+22  K (VC + ln(l|W|/(a0 beta)))/a0^4, a0 = ...
    """
    check_level("alpha", alpha)
    check_level("beta", beta)
    check_positive("constant", constant)
    check_whole("degree", degree, 2)
    corrected = Orders(alpha, int(degree) - 1, n_classes, _capacity(vc, n_subpopulations), beta, constant)
    paper, direct = replace(corrected, is_paper=True), float(corrected.low_degree())
    trained: dict[str, Callable[[Orders], SampleSize]] = {
        "multiaccuracy (itself)": lambda orders: orders.of(Multiaccuracy()),
        f"degree-{degree}": Orders.low_degree,
        "smooth": Orders.smooth,
        "full": Orders.full,
    }
    if n_classes == 2:
        trained["full, by a game (inefficient)"] = Orders.game
    rows = [Row(name, of(corrected), of(paper), float(of(corrected)) / direct) for name, of in trained.items()]
    return Comparison(f"degree-{degree}", alpha, n_classes, tuple(rows))


def show_rows(rows: float) -> str:
    """Write a number of rows so that it can be read.

    >>> show_rows(12542), show_rows(1.3e29), show_rows(inf)
    ('12,542', '1.3e+29', 'beyond counting')
    """
    if isinf(rows):
        return "beyond counting"
    return f"{rows:,.0f}" if rows < 1e10 else f"{rows:.3g}"


def check_level(name: str, value: object) -> None:
    """Refuse what is not a number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InvalidInput(f"{name} must be a number strictly between 0 and 1, but {value!r} was given.")


def _capacity(vc: float | None, n_subpopulations: int | None) -> float:
    """Return VC, or ln|C| for a finite class: the two enter the bounds in the same place."""
    if vc is not None:
        check_positive("vc", vc)
        return float(vc)
    if n_subpopulations is None:
        raise InvalidInput("Give vc (the VC dimension of the subpopulations) or n_subpopulations (their number).")
    check_whole("n_subpopulations", n_subpopulations, 1)
    return log(n_subpopulations)


def _whole(bound: float) -> int:
    """Round a bound down; what rounding left just below a whole number counts as that number."""
    return int(min(bound * (1 + 1e-12), sys.maxsize))


def _exp(x: float) -> float:
    return exp(x) if x < 709 else inf


def _rounded(rows: float) -> int | float:
    """Round up what a float counts exactly; beyond that it stays a float."""
    return ceil(rows * (1 - 1e-12)) if rows < 2**53 else rows
