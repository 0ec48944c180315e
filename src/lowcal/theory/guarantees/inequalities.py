"""What a guarantee says: an estimate, at least one reference less a slack, at most another plus a slack.

A slack is a constant times alpha_c = alpha / E[c]. Two constants stand side by side: the paper's as printed and the
sharp one (spec 5). The signed slack is what the data themselves show, without alpha.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Generic, Literal, TypeVar

import numpy as np

from lowcal.data.errors import InvalidInput
from lowcal.kernels.simplex import FloatArray

#: Numbers of one subpopulation, or arrays with an entry for each of many.
N = TypeVar("N", float, FloatArray)

#: A violation that is granted; None takes the one that is measured on the rows.
Alpha = float | None
#: Inequalities are compared up to this much, times 1 / E_c[y] where it divides: alpha_c = 0 leaves rounding only.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Inequality(Generic[N]):
    """One inequality: estimate <= reference + slack ("upper"), or estimate >= reference - slack ("lower").

    Attributes
    ----------
    against : what the reference is, in words; empty where it is 0
    reference : its value; nan where it needs f* and none was given
    constant : the sharp constant; `slack` is this times `unit`
    paper_constant : the constant printed in the paper; None where it has no such statement
    alpha_c : the violation, conditional on c
    signed : the slack that the data show, with its sign: the inequality holds with it for any predictor
    divisor : 1, or the share of outcomes that a rate is divided by
    needs_f_star : whether the reference is a property of the truth

    >>> one = Inequality("upper", "the truth's moment", 0.30, 2.0, 3.0, 0.01, -0.004, needs_f_star=True)
    >>> round(one.slack, 3), round(one.paper_slack, 3), round(one.bound, 3), round(one.signed_bound, 3)
    (0.02, 0.03, 0.32, 0.296)
    """

    kind: Literal["lower", "upper"]
    against: str
    reference: N
    constant: N | float
    paper_constant: float | None
    alpha_c: N
    signed: N
    divisor: N | float = 1.0
    needs_f_star: bool = False

    @property
    def unit(self) -> N:
        """What a constant is multiplied with: alpha_c, or alpha_c / E_c[y]."""
        return self.alpha_c / self.divisor

    @property
    def slack(self) -> N:
        """The slack with the sharp constant."""
        return self.constant * self.unit

    @property
    def paper_slack(self) -> N:
        """The slack with the paper's constant; nan where the paper has none."""
        return (np.nan if self.paper_constant is None else self.paper_constant) * self.unit

    @property
    def bound(self) -> N:
        """The bound on the estimate with the sharp constant."""
        return self._beyond(self.slack)

    @property
    def paper_bound(self) -> N:
        """The bound on the estimate with the paper's constant."""
        return self._beyond(self.paper_slack)

    @property
    def signed_bound(self) -> N:
        """The bound on the estimate with the signed slack."""
        return self._beyond(self.signed)

    def _beyond(self, slack: N) -> N:
        return self.reference + slack if self.kind == "upper" else self.reference - slack

    def allows(self: Inequality[float], estimate: float) -> bool | None:
        """Whether the estimate keeps the bound; None where one of the two is unknown."""
        beyond = estimate - self.bound if self.kind == "upper" else self.bound - estimate
        return None if np.isnan(beyond) else bool(beyond <= ROUNDING * max(1.0, 1.0 / self.divisor))

    def scalar(self: Inequality[FloatArray]) -> Inequality[float]:
        """Return the same inequality as plain numbers, for a single subpopulation."""
        numbers = ("reference", "constant", "alpha_c", "signed", "divisor")
        return replace(self, **{name: float(getattr(self, name)) for name in numbers})  # type: ignore[arg-type,return-value]

    def words(self: Inequality[float], estimate: float) -> str:
        """Say the inequality in words."""
        at, sign = ("at most", "plus") if self.kind == "upper" else ("at least", "less")
        size, kept = self.slack, self.allows(estimate)
        more: list[str] = [f"{sign} {size:.3g}"] if size > 0 else []
        if kept is None:
            limit = " ".join([self.against, *more]) if self.against else f"{size:.3g}"
            return f"{at} {limit} (f_star or replicates are needed to check it)"
        known = ", ".join([f"{self.against} {self.reference:.4g}", *more]) + ": " if self.against else ""
        return f"{at} {self.bound:.4g} ({known}{'holds' if kept else 'does not hold'})"


@dataclass(frozen=True, eq=False)
class Guarantee(Generic[N]):
    """A theorem, evaluated on data: what is bounded, and its bounds.

    `str()` is one sentence. `holds` is None where a side needs f* and none was given, or where nothing is defined.
    `bound`, `slack`, `paper_slack` and `alpha_c` are those of the main side: the upper one where there is one.
    """

    name: str
    theorem: str
    estimate: N
    lower: Inequality[N] | None = None
    upper: Inequality[N] | None = None

    @property
    def sides(self) -> tuple[Inequality[N], ...]:
        """The inequalities, the lower one first."""
        return tuple(side for side in (self.lower, self.upper) if side is not None)

    @property
    def main(self) -> Inequality[N]:
        """The upper inequality where there is one, otherwise the lower."""
        return self.sides[-1]

    @property
    def bound(self) -> N:
        """The bound with the sharp constant."""
        return self.main.bound

    @property
    def slack(self) -> N:
        """The slack with the sharp constant."""
        return self.main.slack

    @property
    def paper_slack(self) -> N:
        """The slack with the paper's constant."""
        return self.main.paper_slack

    @property
    def alpha_c(self) -> N:
        """The violation in use, conditional on c."""
        return self.main.alpha_c

    @property
    def needs_f_star(self) -> bool:
        """Whether a side refers to the truth f*."""
        return any(side.needs_f_star for side in self.sides)

    @property
    def holds(self: Guarantee[float]) -> bool | None:
        """Whether every side holds; False as soon as one fails, None while one is unknown."""
        return all_hold(side.allows(self.estimate) for side in self.sides)

    def scalar(self: Guarantee[FloatArray]) -> Guarantee[float]:
        """Return the same guarantee as plain numbers, for a single subpopulation."""
        lower, upper = (None if side is None else side.scalar() for side in (self.lower, self.upper))
        return Guarantee(self.name, self.theorem, float(self.estimate), lower, upper)

    def __str__(self: Guarantee[float]) -> str:
        if np.isnan(self.estimate) and (np.isnan(self.main.unit) or not self.needs_f_star):
            return f"{self.name} is undefined here ({self.theorem}): no rows with weight, or none with the outcome."
        sides = ", and ".join(side.words(self.estimate) for side in self.sides)
        value = "unknown" if np.isnan(self.estimate) else f"{self.estimate:.4g}"
        return f"{self.name} is {value}: {sides}; {self.theorem}."


def all_hold(verdicts: Iterable[bool | None]) -> bool | None:
    """Return False if one does not hold, otherwise None if one is unknown, otherwise True."""
    known = list(verdicts)
    return False if False in known else None if None in known else True


def given_alpha(alpha: float, mass: FloatArray | float = 1.0) -> FloatArray:
    """Return alpha_c = alpha / E[c] for an alpha that the user grants, which must be a number of at least 0."""
    given: object = alpha
    if not (isinstance(given, Real) and 0 <= float(given) < np.inf):
        raise InvalidInput(f"alpha must be a number of at least 0, or None for what is measured; got {alpha!r}.")
    return ratio(np.asarray(float(alpha)), np.asarray(mass))


def ratio(a: FloatArray, b: FloatArray, empty: float = np.nan) -> FloatArray:
    """Return a / b, and `empty` where b is not positive; no warning."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    result = np.full(a.shape, empty)
    np.divide(a, b, out=result, where=b > 0)
    return np.where(np.isnan(a) | np.isnan(b), np.nan, result)
