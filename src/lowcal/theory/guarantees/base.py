"""What a guarantee says: an estimate, at least one reference less a slack, at most another plus a slack.

A slack is a constant times alpha_c = alpha / E[c]. Two constants stand side by side: the paper's as printed and the
sharp one (spec 5). The signed slack is what the data themselves show, without alpha.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import numpy as np

from lowcal.kernels.simplex import FloatArray

#: Numbers of one subpopulation, or arrays with an entry for each of many.
N = TypeVar("N", float, FloatArray)

#: Inequalities are compared up to this much, times 1 / E_c[y] where it divides: alpha_c = 0 leaves rounding only.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Side(Generic[N]):
    """One inequality: estimate <= reference + slack ("upper"), or estimate >= reference - slack ("lower").

    Attributes
    ----------
    against : what the reference is, in words; empty where it is 0
    reference : its value; nan where it needs f* and none was given
    constant : the sharp constant; `slack` is this times `unit`
    paper_constant : the constant printed in the paper; None where it has no such statement
    alpha_c : the violation, conditional on c
    divisor : 1, or the share of outcomes that a rate is divided by
    signed : the slack that the data show, with its sign: the inequality holds with it for any predictor
    needs_f_star : whether the reference is a property of the truth

    >>> side = Side("upper", "the truth's moment", 0.30, 2.0, 3.0, 0.01, 1.0, -0.004, True)
    >>> round(side.slack, 3), round(side.paper_slack, 3), round(side.bound, 3), round(side.signed_bound, 3)
    (0.02, 0.03, 0.32, 0.296)
    """

    kind: Literal["lower", "upper"]
    against: str
    reference: N
    constant: N
    paper_constant: float | None
    alpha_c: N
    divisor: N
    signed: N
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
        return self.reference + self.slack if self.kind == "upper" else self.reference - self.slack

    @property
    def paper_bound(self) -> N:
        """The bound on the estimate with the paper's constant."""
        return self.reference + self.paper_slack if self.kind == "upper" else self.reference - self.paper_slack

    @property
    def signed_bound(self) -> N:
        """The bound on the estimate with the signed slack."""
        return self.reference + self.signed if self.kind == "upper" else self.reference - self.signed

    def allows(self: Side[float], estimate: float) -> bool | None:
        """Whether the estimate keeps the bound; None where one of the two is unknown."""
        beyond = estimate - self.bound if self.kind == "upper" else self.bound - estimate
        if np.isnan(beyond):
            return None
        return bool(beyond <= ROUNDING * max(1.0, 1.0 / self.divisor))

    def scalar(self: Side[FloatArray]) -> Side[float]:
        """Return the same inequality as plain numbers, for a single subpopulation."""
        numbers = ("reference", "constant", "alpha_c", "divisor", "signed")
        return replace(self, **{name: float(getattr(self, name)) for name in numbers})  # type: ignore[arg-type,return-value]

    def words(self: Side[float], estimate: float) -> str:
        """Say the inequality in words."""
        at, sign = ("at most", "plus") if self.kind == "upper" else ("at least", "less")
        kept = self.allows(estimate)
        slack = f"{sign} {self.slack:.3g}" if self.slack > 0 else ""
        if kept is None:
            limit = " ".join(part for part in (self.against, slack) if part) if self.against else f"{self.slack:.3g}"
            return f"{at} {limit} (f_star or replicates are needed to check it)"
        known = f"{self.against} {self.reference:.4g}" if self.against else ""
        why = ", ".join(part for part in (known, slack) if part and known)
        verdict = "holds" if kept else "does not hold"
        return f"{at} {self.bound:.4g} ({why + ': ' if why else ''}{verdict})"


@dataclass(frozen=True, eq=False)
class Guarantee(Generic[N]):
    """A theorem, evaluated on data: what is bounded, and its bounds.

    `str()` is one sentence. `holds` is None where a side needs f* and none was given, or where nothing is defined.
    """

    name: str
    theorem: str
    estimate: N
    lower: Side[N] | None = None
    upper: Side[N] | None = None

    @property
    def sides(self) -> tuple[Side[N], ...]:
        """The inequalities, the lower one first."""
        return tuple(side for side in (self.lower, self.upper) if side is not None)

    @property
    def main(self) -> Side[N]:
        """The side that `bound`, `slack` and `paper_slack` speak of: the upper one where there is one."""
        return self.sides[-1]

    @property
    def bound(self) -> N:
        """The bound of the main side with the sharp constant."""
        return self.main.bound

    @property
    def slack(self) -> N:
        """The sharp slack of the main side."""
        return self.main.slack

    @property
    def paper_slack(self) -> N:
        """The paper's slack of the main side."""
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
        verdicts = [side.allows(self.estimate) for side in self.sides]
        if False in verdicts:
            return False
        return None if None in verdicts else True

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


def ratio(a: FloatArray, b: FloatArray, empty: float = np.nan) -> FloatArray:
    """Return a / b, and `empty` where b is not positive; no warning.

    >>> ratio(np.array([1.0, 0.0]), np.array([4.0, 0.0]))
    array([0.25,  nan])
    """
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    result = np.full(a.shape, empty)
    np.divide(a, b, out=result, where=b > 0)
    return np.where(np.isnan(a) | np.isnan(b), np.nan, result)
