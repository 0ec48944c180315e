"""A page on one subpopulation: what its moments say of the model, in sentences and figures.

Each moment E[c f^j (y - f)] is known up to a margin, so e_j up to margin / E[c], and V - C = e_0 E_c[f] - e_1 up to
(1 + E_c f) margin / E[c]. The moments of f itself are those of the rows at hand (spec 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
class WithMargin:
    """An estimate and its limits, within what is possible."""

    value: float
    margin: float
    least: float = -np.inf
    most: float = np.inf

    @property
    def lower(self) -> float:
        """The lower limit."""
        return max(self.value - self.margin, self.least)

    @property
    def upper(self) -> float:
        """The upper limit."""
        return min(self.value + self.margin, self.most)

    @property
    def sign(self) -> int:
        """1 or -1 where the limits agree on it, otherwise 0."""
        return int(self.lower > ROUNDING) - int(self.upper < -ROUNDING)


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
    For sex=F, the variance of the predictions is 0.25, of which the outcomes justify 0.1: it exceeds the justified
    part by at least 0.135 (net of the margin of error), and the variance of the true probabilities by at most 0.221.
    """
    given: object = margin
    if not (isinstance(given, Real) and 0 <= float(given) < np.inf):
        raise InvalidInput(f"margin must be a number of at least 0, but {margin!r} was given.")
    who = printable(name if label is None else f"{name}, label {label}")
    mass = float(moments.mass)
    if not mass > 0:
        return GroupPage(name, label, {"mass": 0.0}, (f"For {who}, nothing can be said: it has no rows with weight.",))
    t = float(margin) / mass
    figures, sentences = {"mass": mass, "margin": t}, []
    for part in (_means, _second_moment, _rate, _covariance, _variance) if moments.degree >= 2 else (_means,):
        more, sentence = part(moments, t)
        figures |= more
        sentences.append(f"For {who}, {sentence}.")
    return GroupPage(name, label, figures, tuple(sentences))


Part = tuple[dict[str, float], str]


def _means(m: GroupMoments, t: float) -> Part:
    prediction, outcome = float(m.f[1]), float(m.fy[0])
    gap = WithMargin(float(m.gap(0)), t, -prediction, 1.0 - prediction)  # the mean outcome lies in [0, 1]
    verdict = {
        1: f"predictions are too low by {_at_least(gap.lower, t)}",
        -1: f"predictions are too high by {_at_least(-gap.upper, t)}",
        0: "they agree" if t == 0 else f"no significant difference (margin of error {t:.3g})",
    }[gap.sign]
    figures = {"mean_prediction": prediction, "mean_outcome": outcome, "gap": gap.value}
    sentence = f"the mean prediction is {prediction:.3g} and the mean outcome is {outcome:.3g}: {verdict}"
    return figures | {"gap_lower": gap.lower, "gap_upper": gap.upper}, sentence


def _second_moment(m: GroupMoments, t: float) -> Part:
    """Every degree as a figure, the second in words: Holder's certificate, at the lower limit of E_c[f^(d-1) y]."""
    figures, lowered = {}, replace(m, fy=np.maximum(m.fy - t, 0.0))
    for d in range(2, m.degree + 1):
        figures[f"moment_{d}"] = float(m.f[d])
        figures[f"truth_moment_{d}_at_least"] = float(holder(lowered, d))
    model, truth = figures["moment_2"], figures["truth_moment_2_at_least"]
    return (
        figures,
        f"the mean squared prediction is {model:.3g}; the mean squared true probability is at least {truth:.3g}",
    )


def _rate(m: GroupMoments, t: float) -> Part:
    """The true positive rate, and the least that a violation within the margin allows."""
    rate = positive_rate(m, 1, alpha=(float(m.violation(2)) + t) * float(m.mass)).scalar()
    lower = rate.sides[0]
    figures = {"true_positive_rate": rate.estimate, "true_positive_rate_at_least": lower.bound}
    if np.isnan(rate.estimate):
        return figures, "nobody has the outcome, so there is no true positive rate"
    given = f"people with the outcome have a mean prediction of {rate.estimate:.3g} (the true positive rate)"
    return figures, f"{given}, against {lower.reference:.3g} for the whole group"


def _covariance(m: GroupMoments, t: float) -> Part:
    C = _justified(m, t)
    verdict = {
        1: "predictions rise with the outcomes",
        -1: "predictions FALL where outcomes rise",
        0: "whether predictions rise with the outcomes is uncertain",
    }[C.sign]
    figures = {"covariance": C.value, "covariance_lower": C.lower, "covariance_upper": C.upper}
    return figures, f"the covariance of predictions and outcomes is {C.value:.3g}: {verdict}"


def _justified(m: GroupMoments, t: float) -> WithMargin:
    """Return C = V - (V - C), which has the margin of V - C."""
    return WithMargin(float(m.covariance), (1.0 + float(m.f[1])) * t)


def _variance(m: GroupMoments, t: float) -> Part:
    V, C = float(m.variance), _justified(m, t)
    excess = WithMargin(float(unjustified(m)), C.margin)
    most = float(excess_variance(np.asarray(V), np.clip(0.0, C.lower, C.upper)))
    verdict = {
        1: f"it exceeds the justified part by {_at_least(excess.lower, t)}, and the variance of the true "
        f"probabilities by at most {most:.3g}",
        -1: "all of it is justified",
        0: "all of it is justified"
        if t == 0
        else f"whether the rest is justified is uncertain (margin of error {t:.3g})",
    }[excess.sign]
    figures = {"variance": V, "justified": C.value, "excess": excess.value}
    figures |= {"excess_lower": excess.lower, "excess_upper": excess.upper, "excess_over_truth_at_most": most}
    share = f"{C.value:.3g}" if C.value > 0 else "nothing"
    return figures, f"the variance of the predictions is {V:.3g}, of which the outcomes justify {share}: {verdict}"


def _at_least(value: float, t: float) -> str:
    """Say a limit: with a margin it is a limit, without one the value itself."""
    return f"{value:.3g}" if t == 0 else f"at least {value:.3g} (net of the margin of error)"
