"""A page on one subpopulation: what its moments show about the model, in sentences and figures.

Each moment E[c f^j (y - f)] is known up to a margin, so e_j up to margin / E[c], and V - C = e_0 E_c[f] - e_1 up to
(1 + E_c f) margin / E[c]. The moments of f itself are those of the rows at hand (spec 5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np

from lowcal.data.errors import InvalidInput, printable
from lowcal.guarantees.groups import ROUNDING, GroupMoments
from lowcal.guarantees.theorems import excess_variance, holder, true_positive_rate, unjustified


@dataclass(frozen=True, eq=False)
class GroupPage:
    """The description of a subpopulation: `sentences`, and the `figures` in them by name."""

    name: str
    label: str | None
    figures: Mapping[str, float]
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def describe(moments: GroupMoments, name: str, label: str | None = None, margin: float = 0.0) -> GroupPage:
    """Describe a subpopulation in words, from its moments (spec 5.2 to 5.11).

    Parameters
    ----------
    moments : of degree 2 or more; with degree 1 only the means are described
    name, label : who is described
    margin : a half-width that covers every E[c f^j (y - f)] at once; 0 describes these rows only

    >>> from lowcal.guarantees import group_moments
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
    figures = _figures(moments, float(margin) / mass)
    return GroupPage(name, label, figures, tuple(f"For {who}, {sentence}." for sentence in _sentences(figures)))


def _figures(m: GroupMoments, t: float) -> dict[str, float]:
    """Return every figure and its limits, where each e_j is known up to t."""
    mean, gap = float(m.f[1]), float(m.gap(0))
    figures = {"mass": float(m.mass), "margin": t, "mean_prediction": mean, "mean_outcome": float(m.fy[0]), "gap": gap}
    figures |= {"gap_lower": max(gap - t, -mean), "gap_upper": min(gap + t, 1.0 - mean)}  # a mean outcome is in [0, 1]
    if m.degree < 2:
        return figures
    lowered = replace(m, fy=np.maximum(m.fy - t, 0.0))
    for d in range(2, m.degree + 1):
        figures |= {f"moment_{d}": float(m.f[d]), f"truth_moment_{d}_at_least": float(holder(lowered, d))}
    rate = true_positive_rate.of(m, 1, alpha=(float(m.violation(2)) + t) * float(m.mass)).scalar()
    figures |= {"true_positive_rate": rate.estimate, "true_positive_rate_at_least": rate.sides[0].bound}
    V, C, excess, half = float(m.variance), float(m.covariance), float(unjustified(m)), (1.0 + mean) * t
    figures |= {"covariance": C, "covariance_lower": C - half, "covariance_upper": C + half, "variance": V}
    figures |= {"justified": C, "excess": excess, "excess_lower": excess - half, "excess_upper": excess + half}
    least = np.clip(0.0, C - half, C + half)  # the covariance nearest to 0
    return figures | {"excess_over_truth_at_most": float(excess_variance(np.asarray(V), least))}


def _sentences(figures: dict[str, float]) -> Iterator[str]:
    """Say the means, and beyond degree 1 the second moment, the true positive rate, covariance and variance."""
    prediction, outcome, t = figures["mean_prediction"], figures["mean_outcome"], figures["margin"]
    agree = "they agree" if t == 0 else f"no significant difference (margin of error {t:.3g})"
    low, high = _at_least(figures["gap_lower"], t), _at_least(-figures["gap_upper"], t)
    verdict = _verdict(
        figures, "gap", f"predictions are too low by {low}", f"predictions are too high by {high}", agree
    )
    yield f"the mean prediction is {prediction:.3g} and the mean outcome is {outcome:.3g}: {verdict}"
    if "variance" in figures:
        model, truth = figures["moment_2"], figures["truth_moment_2_at_least"]
        yield f"the mean squared prediction is {model:.3g}; the mean squared true probability is at least {truth:.3g}"
        rate, C, most = figures["true_positive_rate"], figures["covariance"], figures["excess_over_truth_at_most"]
        people = f"people with the outcome have a mean prediction of {rate:.3g} (the true positive rate)"
        people += f", against {prediction:.3g} for the whole group"
        yield "nobody has the outcome, so there is no true positive rate" if np.isnan(rate) else people
        rise, fall = "predictions rise with the outcomes", "predictions FALL where outcomes rise"
        verdict = _verdict(figures, "covariance", rise, fall, f"whether {rise} is uncertain")
        yield f"the covariance of predictions and outcomes is {C:.3g}: {verdict}"
        above, all_of_it = _at_least(figures["excess_lower"], t), "all of it is justified"
        above = f"it exceeds the justified part by {above}, and the variance of the true probabilities by at most"
        unsure = all_of_it if t == 0 else f"whether the rest is justified is uncertain (margin of error {t:.3g})"
        verdict = _verdict(figures, "excess", f"{above} {most:.3g}", all_of_it, unsure)
        share, variance = f"{C:.3g}" if C > 0 else "nothing", figures["variance"]
        yield f"the variance of the predictions is {variance:.3g}, of which the outcomes justify {share}: {verdict}"


def _at_least(limit: float, t: float) -> str:
    """Put a limit into words; without a margin it is the value itself."""
    return f"{limit:.3g}" if t == 0 else f"at least {limit:.3g} (net of the margin of error)"


def _verdict(figures: dict[str, float], name: str, positive: str, negative: str, unsure: str) -> str:
    """Return the phrase for a figure's sign; it is certain if both limits agree."""
    if figures[f"{name}_lower"] > ROUNDING:
        return positive
    return negative if figures[f"{name}_upper"] < -ROUNDING else unsure
