"""A page on one subpopulation: what its moments say of the model, in sentences and figures.

Each moment E[c f^j (y - f)] is known up to a margin, so e_j up to margin / E[c], and V - C = e_0 E_c[f] - e_1 up to
(1 + E_c f) margin / E[c]. The moments of f itself are those of the rows at hand (spec 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import numpy as np

from lowcal.data.errors import InvalidInput, printable
from lowcal.theory.guarantees.group_moments import GroupMoments
from lowcal.theory.guarantees.inequalities import ROUNDING
from lowcal.theory.guarantees.one_label import excess_variance, holder, positive_rate, unjustified


@dataclass(frozen=True, eq=False)
class GroupPage:
    """What is said of a subpopulation: `sentences`, and the `figures` in them by name."""

    name: str
    label: str | None
    figures: Mapping[str, float]
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


@dataclass(frozen=True)
class Limits:
    """An estimate and its limits, within what is possible."""

    value: float
    half_width: float
    least: float = -np.inf
    most: float = np.inf

    @property
    def lower(self) -> float:
        """The lower limit."""
        return max(self.value - self.half_width, self.least)

    @property
    def upper(self) -> float:
        """The upper limit."""
        return min(self.value + self.half_width, self.most)

    @property
    def sign(self) -> int:
        """1 or -1 where the limits agree on it; 0 where it can't be told."""
        return int(self.lower > ROUNDING) - int(self.upper < -ROUNDING)

    @property
    def nearest_zero(self) -> float:
        """The point between the limits that is nearest to 0."""
        return float(np.clip(0.0, self.lower, self.upper))


def describe(moments: GroupMoments, name: str, label: str | None = None, margin: float = 0.0) -> GroupPage:
    """Return what the moments of a subpopulation say, in words (spec 5.2 to 5.11).

    Parameters
    ----------
    moments : of degree 2 or more; with degree 1 only the means are described
    name, label : who is described
    margin : a half-width that covers every E[c f^j (y - f)] at once; 0 describes these rows only

    >>> from lowcal.theory.guarantees.group_moments import group_moments
    >>> f, y = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.3, 0.7, 0.3, 0.7])
    >>> page = describe(group_moments(f, y, np.full(4, 0.25), 2), "sex=F", margin=0.01)
    >>> print(page.sentences[-1])
    On sex=F the variance of the predictions is 0.25, of which the outcomes justify 0.1: it exceeds what is justified
    by at least 0.135 (margin included), and the truth's variance by at most 0.221.
    """
    given: object = margin
    if not (isinstance(given, Real) and 0 <= float(given) < np.inf):
        raise InvalidInput(f"margin must be a number of at least 0, but {margin!r} was given.")
    who = printable(name if label is None else f"{name}, label {label},")
    mass = float(moments.mass)
    if not mass > 0:
        return GroupPage(name, label, {"mass": 0.0}, (f"On {who} nothing can be said: it has no rows with weight.",))
    t = float(margin) / mass
    figures, sentences = _means(moments, who, t)
    parts = (_second_moment, _rate, _covariance, _variance) if moments.degree >= 2 else ()
    for part in parts:
        more, sentence = part(moments, who, t)
        figures |= more
        sentences += sentence
    return GroupPage(name, label, {"mass": mass, "margin": t, **figures}, tuple(sentences))


Part = tuple[dict[str, float], list[str]]


def _means(m: GroupMoments, who: str, t: float) -> Part:
    prediction, outcome = float(m.f[1]), float(m.fy[0])
    gap = Limits(float(m.gap(0)), t, -prediction, 1.0 - prediction)  # the mean outcome lies in [0, 1]
    verdict = {
        1: f"the model is too low by {_at_least(gap.lower, t)}",
        -1: f"the model is too high by {_at_least(-gap.upper, t)}",
        0: "they agree" if t == 0 else f"no difference can be told (margin {t:.3g})",
    }[gap.sign]
    sentence = f"On {who} the mean prediction is {prediction:.3g} and the mean outcome {outcome:.3g}: {verdict}."
    figures = {"mean_prediction": prediction, "mean_outcome": outcome, "gap": gap.value}
    return figures | {"gap_lower": gap.lower, "gap_upper": gap.upper}, [sentence]


def _second_moment(m: GroupMoments, who: str, t: float) -> Part:
    """Every degree as a figure, the second in words: Holder's certificate, at the lower limit of E_c[f^(d-1) y]."""
    figures: dict[str, float] = {}
    for d in range(2, m.degree + 1):
        figures[f"moment_{d}"] = float(m.f[d])
        figures[f"truth_moment_{d}_at_least"] = float(holder(_lowered(m, t), d))
    model, truth = figures["moment_2"], figures["truth_moment_2_at_least"]
    sentence = f"On {who} the mean square of the predictions is {model:.3g}; that of the truth is at least {truth:.3g}."
    return figures, [sentence]


def _lowered(m: GroupMoments, t: float) -> GroupMoments:
    """Return the moments with every E_c[f^j y] at its lower limit."""
    return GroupMoments(m.mass, m.f, np.maximum(m.fy - t, 0.0))


def _rate(m: GroupMoments, who: str, t: float) -> Part:
    """The true positive rate, and the least that a violation within the margin allows."""
    rate = positive_rate(m, 1, alpha=(float(m.violation(2)) + t) * float(m.mass)).scalar()
    assert rate.lower is not None
    figures = {"true_positive_rate": rate.estimate, "true_positive_rate_at_least": rate.lower.bound}
    if np.isnan(rate.estimate):
        return figures, [f"On {who} nobody has the outcome: a true positive rate can't be told."]
    sentence = f"On {who} those with the outcome are given {rate.estimate:.3g} on average (the true positive rate), "
    return figures, [sentence + f"everyone {rate.lower.reference:.3g}."]


def _excess(m: GroupMoments, t: float) -> Limits:
    """V - C, the variance without justification."""
    return Limits(float(unjustified(m)), (1.0 + float(m.f[1])) * t)


def _justified(m: GroupMoments, t: float) -> Limits:
    """C = V - (V - C)."""
    return Limits(float(m.covariance), _excess(m, t).half_width)


def _covariance(m: GroupMoments, who: str, t: float) -> Part:
    C = _justified(m, t)
    verdict = {
        1: "predictions rise with the outcomes",
        -1: "predictions FALL where outcomes rise",
        0: "whether predictions rise with the outcomes cannot be told",
    }[C.sign]
    sentence = f"On {who} the covariance of predictions and outcomes is {C.value:.3g}: {verdict}."
    return {"covariance": C.value, "covariance_lower": C.lower, "covariance_upper": C.upper}, [sentence]


def _variance(m: GroupMoments, who: str, t: float) -> Part:
    V, excess, C = float(m.variance), _excess(m, t), _justified(m, t)
    most = float(excess_variance(np.asarray(V), np.asarray(C.nearest_zero)))
    share = f"{C.value:.3g}" if C.value > 0 else "nothing"
    start = f"On {who} the variance of the predictions is {V:.3g}, of which the outcomes justify {share}: "
    is_justified = t == 0 and excess.sign == 0
    beyond = f"the truth's variance by at most {most:.3g}"
    verdict = {
        1: f"it exceeds what is justified by {_at_least(excess.lower, t)}, and {beyond}",
        -1: "all of it is justified",
        0: "all of it is justified" if is_justified else f"whether it is justified cannot be told (margin {t:.3g})",
    }[excess.sign]
    figures = {"variance": V, "justified": C.value, "excess": excess.value}
    limits = {"excess_lower": excess.lower, "excess_upper": excess.upper, "excess_over_truth_at_most": most}
    return figures | limits, [start + verdict + "."]


def _at_least(value: float, t: float) -> str:
    """Say a limit: with a margin it is a limit, without one the value itself."""
    return f"{value:.3g}" if t == 0 else f"at least {value:.3g} (margin included)"
