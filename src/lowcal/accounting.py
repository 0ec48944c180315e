"""The price of privacy: what one private round costs, what many cost together, and how accurate they then are.

Neighbouring samples have the same m rows and differ in one ("replace one"). A score is a mean of terms in [-1, 1], so
replacing a row moves every score by at most 2/m. A round selects a pair by the exponential mechanism (eps0) and
releases its score with Laplace noise (eps0): 2 eps0 together. Rounds compose by the better of two theorems.

Spec 4.8. Theorems: McSherry and Talwar 2007 (selection), Dwork et al. 2006 (Laplace), Bun and Steinke 2016 (zCDP),
Cesar and Rogers 2021 (zCDP of the exponential mechanism). Advanced composition of 2T mechanisms (Dwork, Rothblum and
Vadhan 2010), eps0 sqrt(4T ln(1/delta)) + 2T eps0 (e^eps0 - 1), is never less than zCDP in either term.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from typing import NamedTuple

from lowcal.data.inputs import check_positive, check_share, check_whole

#: Shares of eps0^2 that selection and release cost in zCDP.
SELECTION_ZCDP, RELEASE_ZCDP = 1 / 8, 1 / 2


@dataclass(frozen=True)
class Cost:
    """(epsilon, delta)-differential privacy, and the theorem that gives it."""

    epsilon: float
    delta: float
    theorem: str

    def __str__(self) -> str:
        return f"({self.epsilon:.4g}, {self.delta:g})-differential privacy by {self.theorem}"


class Share(NamedTuple):
    """eps0, what each selection and each release may cost, and the theorem under which the total is kept."""

    eps0: float
    theorem: str


def sensitivity(n_rows: int) -> float:
    """Return 2/m: how far replacing one row moves a mean of m terms in [-1, 1]."""
    return 2.0 / n_rows


def laplace_scale(n_rows: int, eps0: float) -> float:
    """Return 2 / (m eps0): Laplace noise of this scale makes a score eps0-private (sensitivity over eps0)."""
    return sensitivity(n_rows) / eps0


def log_odds_per_score(n_rows: int, eps0: float) -> float:
    """Return eps0 m / 4: the exponential mechanism takes a pair with probability proportional to exp(this * score).

    exp(eps0 q / (2 Delta)) with Delta = 2/m. Numerator and normaliser each move by at most eps0/2 in the exponent.
    """
    return eps0 / (2 * sensitivity(n_rows))


def selection_error(n_rows: int, eps0: float, n_candidates: int, beta: float) -> float:
    """Return (4 / (m eps0)) (ln N + ln(1/beta)): the selected score is this close to the best, but for beta.

    A candidate worse than the best by t has probability at most exp(-eps0 m t / 4); there are at most N of them.
    """
    return (log(n_candidates) + log(1 / beta)) / log_odds_per_score(n_rows, eps0)


def release_error(n_rows: int, eps0: float, beta: float) -> float:
    """Return (2 / (m eps0)) ln(1/beta): Laplace noise exceeds it, on either side, with probability beta."""
    return laplace_scale(n_rows, eps0) * log(1 / beta)


def total_cost(eps0: float, rounds: int, delta: float = 0.0) -> Cost:
    """Return the least epsilon that two theorems give for T rounds; with delta = 0 only the first applies.

    Basic composition: epsilon = 2 T eps0. Concentrated privacy (zCDP): epsilon = rho + 2 sqrt(rho ln(1/delta)), rho =
    5/8 T eps0^2. Release: an eps0-private mechanism is eps0^2/2-zCDP (Bun and Steinke, Proposition 1.4). Selection: its
    log ratio lies in an interval of length eps0; with K(t) = ln E' e^(t ratio), K(0) = K(1) = 0 and K'' <= eps0^2/4, so
    K(t) <= t (t-1) eps0^2/8, which is eps0^2/8-zCDP (Cesar and Rogers). Conversion: Bun and Steinke, Proposition 1.3.

    >>> total_cost(0.01, 1000).epsilon, round(total_cost(0.01, 1000, 1e-6).epsilon, 3)
    (20.0, 1.921)
    """
    check_positive("eps0", eps0)
    check_whole("rounds", rounds, 1)
    check_share("delta", delta)
    costs = [Cost(2 * rounds * eps0, 0.0, "basic composition")]
    if delta > 0:
        rho = rounds * (SELECTION_ZCDP + RELEASE_ZCDP) * eps0**2
        costs.append(Cost(rho + 2 * sqrt(rho * log(1 / delta)), delta, "zero-concentrated composition"))
    return min(costs, key=lambda cost: cost.epsilon)


def share_of(epsilon: float, rounds: int, delta: float = 0.0) -> Share:
    """Return the largest eps0 with which this number of rounds costs at most (epsilon, delta) together: the inverse.

    Basic: epsilon / (2T). zCDP: rho = (sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)))^2, eps0 = sqrt(8 rho / (5T)).

    >>> share = share_of(1.0, 1000, 1e-6)
    >>> round(share.eps0, 5), share.theorem, total_cost(share.eps0, 1000, 1e-6).epsilon <= 1.0
    (0.00529, 'zero-concentrated composition', True)
    """
    check_positive("epsilon", epsilon)
    check_whole("rounds", rounds, 1)
    check_share("delta", delta)
    shares = [Share(epsilon / (2 * rounds), "basic composition")]
    if delta > 0:
        spread = log(1 / delta)
        rho = (epsilon / (sqrt(spread + epsilon) + sqrt(spread))) ** 2
        eps0 = sqrt(rho / (rounds * (SELECTION_ZCDP + RELEASE_ZCDP)))
        shares.append(Share(eps0, "zero-concentrated composition"))
    best = max(shares)
    return Share(best.eps0 * (1 - 1e-12), best.theorem)  # rounding must not spend more than epsilon


def expectation_gap(epsilon: float, delta: float = 0.0) -> float:
    """Return 2 (e^epsilon - 1 + delta): how far a privately chosen mean of terms in [-1, 1] is off, on average.

    If h is chosen from the sample S with (epsilon, delta)-privacy, |E[h(S)] - E[h(P)]| is at most this: for terms in
    [0, 1], exchanging row i for a fresh one changes E[h(z_i)] by a factor e^epsilon and delta at most, after which
    z_i is fresh for h; a range of length 2 doubles it (spec 4.8). It says nothing about a single run;
    `reuse_deviation` does.

    >>> round(expectation_gap(0.01), 4)
    0.0201
    """
    return 2 * (exp(epsilon) - 1 + delta)
