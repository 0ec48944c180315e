"""The parts of a guarantee: an inequality, a group's moments, the truth f* as far as it is known, and checked rows.

A guarantee is an estimate, at least one reference less a slack, at most another plus a slack. A slack is a constant
times alpha_c = alpha / E[c]. Two constants stand side by side: the paper's as printed and the sharp one (spec 5). The
signed slack is what the data themselves show, without alpha.

f[j] = E_c[f^j] and fy[j] = E_c[f^j y] for one label; e_j = E_c[f^j (y - f)] = fy[j] - f[j + 1] (spec 5).

The moments E_c[f*^d], d >= 2, can't be estimated from one label a row. They are known with f* itself (synthetic data),
or with at least d independent labels of each row: E[y_1 ... y_d | x] = f*(x)^d, averaged over all choices of d labels
(a U-statistic; spec 5.14).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import comb
from numbers import Real
from typing import Any, Generic, Literal, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowcal.data.errors import InvalidInput
from lowcal.data.frames import is_missing
from lowcal.data.inputs import Layout, Outcomes, check_length, read_outcomes, read_probabilities
from lowcal.kernels.simplex import FloatArray

#: Numbers of one subpopulation, or arrays with an entry for each of many.
N = TypeVar("N", float, FloatArray)

#: A violation that is granted; None takes the one that is measured on the rows.
Alpha = float | None
#: Inequalities are compared up to this much, times 1 / E_c[y] where it divides: alpha_c = 0 leaves rounding only.
ROUNDING = 1e-12
#: c(x) of each row; None is everyone.
Membership = ArrayLike | None


class AboutRows(TypedDict, total=False):
    """What may be given about the rows of a statement, besides y, p and c."""

    f_star: ArrayLike | None
    replicates: ArrayLike | None
    sample_weight: ArrayLike | None
    classes: Sequence[Any] | None


# ------------------------------------------------------------------------------------------- inequalities
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
        """Put the inequality into words."""
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
    out = np.full(np.broadcast_shapes(np.shape(a), np.shape(b)), empty)
    return np.asarray(np.divide(a, b, out=out, where=b > 0.0))


# ------------------------------------------------------------------------------------------- moments
@dataclass(frozen=True, eq=False)
class GroupMoments:
    """The moments of degree k of a subpopulation and a label: f[0..k], fy[0..k-1], and the mass E[c].

    `f_star` holds E_c[f*^j] for j = 0..k where the truth f* is known. All arrays may have further axes, with an entry
    for each of many subpopulations: every formula works on all of them at once.

    >>> m = group_moments(np.array([0.2, 0.6]), np.array([0.0, 1.0]), np.array([0.5, 0.5]), degree=2)
    >>> m.f.round(3), m.fy.round(3), float(m.gap(0).round(3))
    (array([1. , 0.4, 0.2]), array([0.5, 0.3]), 0.1)
    """

    mass: FloatArray
    f: FloatArray
    fy: FloatArray
    f_star: FloatArray | None = None

    @property
    def degree(self) -> int:
        """The degree k of the notion whose violations these moments hold."""
        return len(self.fy)

    def gap(self, j: int) -> FloatArray:
        """Return e_j = E_c[f^j (y - f)], the violation of the weight f^j, conditional on c."""
        return np.asarray(self.fy[j] - self.f[j + 1])

    def violation(self, degree: int, alpha: float | None = None) -> FloatArray:
        """Return alpha_c: alpha / E[c], or, without an alpha, the measured max_{j < degree} |e_j|."""
        if alpha is not None:
            return given_alpha(alpha, self.mass)
        return np.asarray(np.abs(np.stack([self.gap(j) for j in range(degree)])).max(axis=0))

    def truth(self, j: int) -> FloatArray:
        """Return E_c[f*^j]; nan where the truth is unknown."""
        return np.full_like(self.f[j], np.nan) if self.f_star is None else np.asarray(self.f_star[j])

    @property
    def variance(self) -> FloatArray:
        """V = Var_c f."""
        return np.asarray(np.maximum(self.f[2] - self.f[1] ** 2, 0.0))

    @property
    def covariance(self) -> FloatArray:
        """C = Cov_c(f, y)."""
        return np.asarray(self.fy[1] - self.f[1] * self.fy[0])


def group_moments(
    f: FloatArray, y: FloatArray, weight: FloatArray, degree: int, f_star: FloatArray | None = None
) -> GroupMoments:
    """Return the moments of one label for weights w_i c(x_i), summed over the last axis; nan without mass."""
    powers = np.stack([f**j for j in range(degree + 1)])
    moments = mean(powers, weight)
    return GroupMoments(weight.sum(axis=-1), moments, mean(powers[:-1] * y, weight), f_star)


def mean(values: FloatArray, weight: FloatArray) -> FloatArray:
    """Return E_c of values whose last axis are the rows, for weights w_i c(x_i); nan without mass."""
    return ratio((weight * values).sum(axis=-1), weight.sum(axis=-1))


def moment_columns(y: FloatArray, p: FloatArray, weight: FloatArray, degree: int) -> FloatArray:
    """Return w, then w f^j for j = 1..k and w f^j y for j = 0..k-1, with all labels of each together."""
    powers = [p**j for j in range(degree + 1)]
    moments = [*powers[1:], *(u * y for u in powers[:-1])]
    return weight[:, None] * np.column_stack([np.ones(len(p)), *moments])


def read_moments(total: FloatArray, degree: int) -> list[list[GroupMoments]]:
    """Return the moments of every subpopulation and label from the sums of `moment_columns`, shape (m, 1 + 2 d k)."""
    m, d = len(total), (total.shape[1] - 1) // (2 * degree)
    mass = np.maximum(total[:, 0], 0.0)
    conditional = ratio(total[:, 1:], mass[:, None]).reshape(m, 2, degree, d)
    one = np.where(mass > 0, 1.0, np.nan)  # E_c[f^0]
    return [
        [GroupMoments(mass[j], np.concatenate([one[j : j + 1], f]), fy) for f, fy in conditional[j].transpose(2, 0, 1)]
        for j in range(m)
    ]


# ------------------------------------------------------------------------------------------- the truth
@dataclass(frozen=True, eq=False)
class KnownTruth:
    """f* itself, shape (n, d)."""

    f_star: FloatArray

    def powers(self, labels: list[int], degree: int, weight: FloatArray) -> FloatArray:
        """Return (sum of f* over the labels)^j for j = 0..degree, shape (degree + 1, n)."""
        f = self.f_star[:, labels].sum(axis=1)
        return np.stack([f**j for j in range(degree + 1)])

    def products(self, weight: FloatArray) -> FloatArray:
        """Return f* f*' for every row, shape (n, l, l)."""
        f = both_classes(self.f_star)
        return np.asarray(f[:, :, None] * f[:, None, :])


@dataclass(frozen=True, eq=False)
class Replicates:
    """Several labels a row, coded: shape (n, r, d), nan where one is missing. Only rows with weight need them."""

    labels: FloatArray

    def powers(self, labels: list[int], degree: int, weight: FloatArray) -> FloatArray:
        """Return unbiased estimates of (sum of f* over the labels)^j, j = 0..degree, shape (degree + 1, n)."""
        self._require(degree, weight)
        return power_means(self.labels[:, :, labels].sum(axis=2), degree)

    def products(self, weight: FloatArray) -> FloatArray:
        """Return unbiased estimates of f* f*' for every row: the mean of y_r y_s' over pairs of different labels."""
        number, y = self._require(2, weight), np.nan_to_num(both_classes(self.labels))
        total = y.sum(axis=1)
        pairs = total[:, :, None] * total[:, None, :] - np.einsum("nra,nrb->nab", y, y)
        return np.asarray(pairs / np.maximum(number * (number - 1), 1)[:, None, None])

    def _require(self, degree: int, weight: FloatArray) -> NDArray[np.intp]:
        """Return the number of labels of each row; refuse rows with weight that have fewer than the degree needs."""
        number: NDArray[np.intp] = (~np.isnan(self.labels[:, :, 0])).sum(axis=1)
        short = (number < degree) & (weight > 0)
        if short.any():
            row = int(short.argmax())
            raise InvalidInput(
                f"Row {row} of replicates has {number[row]} labels, but the truth's moment of degree {degree} needs at "
                f"least {degree} independent labels of each row. Drop such rows, lower the degree or pass f_star."
            )
        return number


def power_means(z: FloatArray, degree: int) -> FloatArray:
    """Return for each row the mean of z_{i1} ... z_{ij} over all choices of j entries, j = 0..degree; nan are missing.

    The elementary symmetric polynomial over C(r, j), built up one label at a time. Cost: O(n r degree).
    Rows with fewer than j entries get 0.
    """
    total = np.zeros((degree + 1, len(z)))
    total[0] = 1.0
    for column in np.nan_to_num(z).T:
        total[1:] += total[:-1] * column
    number = (~np.isnan(z)).sum(axis=1)
    choices = np.array([[max(comb(r, j), 1) for r in range(z.shape[1] + 1)] for j in range(degree + 1)])
    return np.asarray(total / choices[:, number])


def both_classes(values: FloatArray) -> FloatArray:
    """Return both classes of the scalar convention, (1 - v, v); rows on the simplex stay themselves."""
    return np.concatenate([1.0 - values, values], axis=-1) if values.shape[-1] == 1 else values


# ------------------------------------------------------------------------------------------- rows
@dataclass(frozen=True, eq=False)
class GroupRows:
    """Checked rows: y and p of shape (n, d), the weight w_i c(x_i) of each row, and f* as far as it is known."""

    y: FloatArray
    p: FloatArray
    weight: FloatArray
    layout: Layout
    truth: KnownTruth | Replicates | None

    @classmethod
    def read(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        c: Membership = None,
        *,
        f_star: ArrayLike | None = None,
        replicates: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        classes: Sequence[Any] | None = None,
    ) -> GroupRows:
        """Check everything together; the rows outside c keep the weight 0."""
        outcomes = read_outcomes(y, p, sample_weight, classes)
        n = len(outcomes.p)
        membership = read_memberships(c, n)
        if membership.shape[1] != 1:
            raise InvalidInput(f"c must hold one membership a row, shape ({n},), but its shape is {membership.shape}.")
        truth: KnownTruth | Replicates | None = None
        if f_star is not None and replicates is not None:
            raise InvalidInput("Both f_star and replicates were given. Give one of them.")
        if f_star is not None:
            truth = KnownTruth(read_probabilities(f_star, outcomes.layout))
            check_length("f_star", len(truth.f_star), n)
        if replicates is not None:
            truth = Replicates(_read_replicates(replicates, outcomes))
        return cls(outcomes.y, outcomes.p, outcomes.weight * membership[:, 0], outcomes.layout, truth)

    def moments(self, labels: list[int], degree: int) -> GroupMoments:
        """Return the moments of a label, or of a set of labels taken as one, those of the truth where it is known."""
        truth = None if self.truth is None else mean(self.truth.powers(labels, degree, self.weight), self.weight)
        f, y = (values[:, labels].sum(axis=1) for values in (self.p, self.y))
        return group_moments(f, y, self.weight, degree, truth)


def read_memberships(c: Membership, n: int) -> FloatArray:
    """Return memberships as numbers in [0, 1], shape (n, m); None is everyone alone."""
    if c is None:
        return np.ones((n, 1))
    try:
        C = np.array(c, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"c must hold memberships, numbers in [0, 1], but could not be read as such ({error})."
        ) from error
    if C.ndim not in (1, 2):
        raise InvalidInput(f"c must have a row for each prediction, but its shape is {C.shape}.")
    C = C.reshape(len(C), -1)
    check_length("c", len(C), n)
    bad = ~((C >= 0.0) & (C <= 1.0))
    if bad.any():
        row, column = np.unravel_index(int(bad.argmax()), C.shape)
        raise InvalidInput(f"c is {C[row, column]:g} in row {row}, but a membership must lie in [0, 1].")
    return C


def read_label(label: Any, layout: Layout) -> int:
    """Return the coordinate of a label; binary problems have one, that of the second class."""
    names = class_names(layout)
    if layout.d == 1:
        if label is None or label == names[1]:
            return 0
        raise InvalidInput(
            f"label={label!r} was given, but a binary problem is read through its second class, {names[1]!r}. "
            "For the other class pass 1 - p and classes=[second, first]."
        )
    if label is None:
        raise InvalidInput(f"Name the class: label= one of {', '.join(map(repr, names))}.")
    if label not in names:
        raise InvalidInput(f"label={label!r} is not a class; the classes are {', '.join(map(repr, names))}.")
    return names.index(label)


def class_names(layout: Layout) -> list[Any]:
    """Return the classes, or their positions where y has soft labels."""
    return list(range(layout.n_classes) if layout.classes is None else layout.classes)


def _read_replicates(replicates: ArrayLike, outcomes: Outcomes) -> FloatArray:
    """Return the labels coded like y, shape (n, r, d), nan where one is missing."""
    given = np.asarray(replicates, dtype=object)
    if given.ndim != 2 or given.shape[1] == 0:
        raise InvalidInput(f"replicates must have shape (n, r), r labels of each row, but its shape is {given.shape}.")
    check_length("replicates", len(given), len(outcomes.p))
    layout, names = outcomes.layout, class_names(outcomes.layout)
    is_number = layout.d == 1 and layout.classes is None
    known = "Give outcomes in [0, 1]." if is_number else f"The classes are {', '.join(map(repr, names))}."
    of_class: dict[Any, FloatArray] = dict(zip(names, np.eye(len(names))[:, -layout.d :], strict=True))

    def code(row: int, value: Any) -> FloatArray:
        if is_missing(value):
            return np.full(layout.d, np.nan)
        if is_number and isinstance(value, Real) and 0 <= float(value) <= 1:
            return np.array([float(value)])
        if is_number or value not in of_class:
            raise InvalidInput(
                f"replicates holds {value!r} in row {row}, which can't be a label of y. {known} "
                "Leave what is missing as nan or None."
            )
        return of_class[value]

    return np.array([[code(row, value) for value in labels] for row, labels in enumerate(given.tolist())])
