"""Convex functions and losses: a calibrated predictor is no more confident than the truth, and beats every rival.

The golden rule, for any convex g and ANY predictor; D_g >= 0 is the Bregman divergence, and every upper bound of the
moment sandwich is this with g(t) = t^d (spec 5):

    E_c[g(f)] - E_c[g(f*)] = -E_c[g'(f)(y - f)] - E_c[D_g(f*, f)] <= -E_c[g'(f)(y - f)]

Losses, exact on every sample and for any combination h of subpopulations (Proposition A.1, where alpha = 0; spec 5.12,
5.13), for l(y, t) = g(t) - y t and k the inverse of g'. Everything is estimable: differences of E(f - f*)^2 are
differences of Brier scores.

    E (h - y)^2 = E (f - y)^2 + E (h - f)^2 - 2 E[h (y - f)] + 2 E[f (y - f)],
    E l(y, h)   = E l(y, k(f)) + E[D_g(h, k(f))] - E[h (y - f)] + E[k(f)(y - f)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from scipy.special import expit, logit, logsumexp, softmax, xlog1py, xlogy

from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import Outcomes, check_whole, read_outcomes, spelled_out
from lowcal.guarantees.groups import (
    AboutRows,
    Alpha,
    GroupRows,
    Guarantee,
    Inequality,
    KnownTruth,
    Membership,
    given_alpha,
    mean,
    ratio,
    read_label,
    read_memberships,
)
from lowcal.kernels.products import product
from lowcal.kernels.simplex import FLOOR, FloatArray

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Function = Callable[[FloatArray], FloatArray]


# ------------------------------------------------------------------------------------------- the golden rule
@dataclass(frozen=True, eq=False)
class Convex:
    """A convex function on [0, 1] and its slope (at a kink, any slope between the two sides).

    slope = scale * weight, where the weight is what a notion of calibration bounds: f^(d-1) and d for t^d. `power` is d
    where g is a power, so that replicated labels give E_c[g(f*)].
    """

    name: str
    value: Function
    slope: Function
    scale: float = 1.0
    power: int | None = None


def power(degree: int) -> Convex:
    """Return g(t) = t^d, with the slope d t^(d-1).

    >>> power(3).slope(np.array([0.5]))
    array([0.75])
    """
    check_whole("degree", degree, 1)
    slope: Function = lambda t: degree * t ** (degree - 1)  # noqa: E731
    return Convex(f"t^{degree}", lambda t: t**degree, slope, float(degree), degree)


def negative_entropy() -> Convex:
    """Return g(t) = t ln t + (1 - t) ln(1 - t), continued by its tangents within 1e-9 of 0 and 1.

    >>> negative_entropy().value(np.array([0.5, 0.9])).round(4)
    array([-0.6931, -0.3251])
    """

    def value(t: FloatArray) -> FloatArray:
        inside = np.clip(t, FLOOR, 1.0 - FLOOR)
        return np.asarray(xlogy(inside, inside) + xlog1py(1.0 - inside, -inside) + logit(inside) * (t - inside))

    return Convex("negative entropy", value, lambda t: np.asarray(logit(np.clip(t, FLOOR, 1.0 - FLOOR))))


def distance_from(q: float = 0.5) -> Convex:
    """Return g(t) = |t - q|.

    >>> distance_from().value(np.array([0.1, 0.9]))
    array([0.4, 0.4])
    """
    _check_share(q)
    return Convex(f"|t - {q:g}|", lambda t: np.abs(t - q), lambda t: np.sign(t - q))


def above(q: float) -> Convex:
    """Return g(t) = max(t - q, 0), the mean excess over a threshold.

    >>> above(0.6).value(np.array([0.5, 0.7])).round(3)
    array([0. , 0.1])
    """
    _check_share(q)
    return Convex(f"(t - {q:g})^+", lambda t: np.maximum(t - q, 0.0), lambda t: np.where(t > q, 1.0, 0.0))


def _check_share(q: float) -> None:
    if not 0 <= q <= 1:
        raise InvalidInput(f"q must lie in [0, 1], but {q!r} was given.")


@spelled_out(AboutRows)
def overconfidence(
    y: ArrayLike,
    p: ArrayLike,
    c: Membership = None,
    g: Convex | tuple[Function, Function] | None = None,
    *,
    label: Any = None,
    alpha: Alpha = None,
    **about: Unpack[AboutRows],
) -> Guarantee[float]:
    """Return how much more confident f can be than the truth: E_c[g(f)] <= E_c[g(f*)] - E_c[g'(f)(y - f)] (spec 5).

    `upper.signed` is the last term; it holds for any predictor. With alpha: the slack is scale * alpha_c.

    Parameters
    ----------
    g : `power(d)` (the default, d = 2), `negative_entropy()`, `distance_from(q)`, `above(q)`, or a pair (g, g') of your
        own functions of an array; that g is convex on [0, 1] is trusted
    alpha : a bound on |E[c u(f)(y - f)]| for the weight u = g' / scale; None takes that of these rows
    replicates : for powers only, at least d labels of each row
    others : as in `moment_sandwich`

    >>> from lowcal.datasets import two_halves
    >>> d = two_halves()
    >>> found = overconfidence(d.y, d.p, None, distance_from(0.5), f_star=d.f_star, sample_weight=d.sample_weight)
    >>> round(found.estimate, 3), round(found.upper.reference, 3), round(found.upper.signed, 3), found.holds
    (0.5, 0.2, 0.3, True)
    """
    if isinstance(g, tuple) and len(g) == 2 and all(callable(part) for part in g):
        g = Convex("g", *g)
    elif g is not None and not isinstance(g, Convex):
        raise InvalidInput(f"g must be a convex function of this module or a pair (g, g') of functions, not {g!r}.")
    chosen, rows, star = power(2) if g is None else g, GroupRows.read(y, p, c, **about), None
    a = read_label(label, rows.layout)
    if isinstance(rows.truth, KnownTruth):
        star = mean(chosen.value(rows.truth.f_star[:, a]), rows.weight)
    elif rows.truth is not None:
        if chosen.power is None:
            raise InvalidInput(f"replicates give the truth's powers only, not {chosen.name}. Pass f_star or a power.")
        star = mean(np.asarray(rows.truth.powers([a], chosen.power, rows.weight)[-1]), rows.weight)
    return confidence(chosen, rows.p[:, a], rows.y[:, a], rows.weight, star, alpha).scalar()


def confidence(
    g: Convex, f: FloatArray, y: FloatArray, weight: FloatArray, star: FloatArray | None = None, alpha: Alpha = None
) -> Guarantee[FloatArray]:
    """Return the bound on E_c[g(f)], the rows on the last axis; `star` = E_c[g(f*)] where it is known."""
    mass = weight.sum(axis=-1)
    estimate, signed = mean(g.value(f), weight), -ratio((weight * g.slope(f) * (y - f)).sum(axis=-1), mass)
    alpha_c = np.abs(signed) / g.scale if alpha is None else given_alpha(alpha, mass)
    reference = np.full_like(mass, np.nan) if star is None else star
    paper = None if g.power is None else float(g.power)
    upper = Inequality("upper", "the truth's own", reference, g.scale, paper, alpha_c, signed, needs_f_star=True)
    return Guarantee(f"The confidence E_c[{g.name}]", "the golden rule (spec 5)", estimate, None, upper)


# ------------------------------------------------------------------------------------------- losses
def squared_loss(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    coefficients: ArrayLike | None = None,
    alpha: Alpha = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return E(f - y)^2 <= E(h - y)^2 - E(h - f)^2 + 2 (||lambda||_1 + 1) alpha for h = sum lambda_c c (spec 5.12).

    A single c is its own competitor, as in Proposition A.1: 4 alpha. At alpha = 0 this is Pythagoras. `upper.signed` =
    2 E[h (y - f)] - 2 E[f (y - f)] makes it an equality on the sample.

    Parameters
    ----------
    y, p, sample_weight, classes : as in `lowcal.measure`
    c : memberships of each row, shape (n,) or (n, m); None is everyone, whose h is a constant
    coefficients : lambda, shape (m,), or (m, l) for l classes; 1 for a single c of a binary problem
    alpha : a bound on E[c (y - f)] for every c in h and on E[f (y - f)] over everyone; None takes what is measured

    >>> found = squared_loss([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], [1, 0, 1, 1])
    >>> round(found.estimate, 6), round(found.upper.reference + found.upper.signed, 6), found.holds
    (0.1, 0.1, True)
    """
    data = read_outcomes(y, p, sample_weight, classes)
    C, h, norm = _read_competitor(c, coefficients, data)
    rho = data.weight[:, None] * (data.y - data.p)
    unit = _violation(C, rho, alpha, least=abs(float((data.p * rho).sum())))
    return squared(data.y, data.p, h, data.weight, norm, unit).scalar()


def squared(
    y: FloatArray, f: FloatArray, h: FloatArray, weight: FloatArray, norm: FloatArray | float, alpha: FloatArray
) -> Guarantee[FloatArray]:
    """Return the bound on E||f - y||^2 by the competitor h; rows (..., n, d), weights (..., n) that sum to one."""
    of_h, of_f = (_mean((u * (y - f)).sum(axis=-1), weight) for u in (h, f))
    loss, rival, apart = (_mean(np.square(a - b).sum(axis=-1), weight) for a, b in ((f, y), (h, y), (h, f)))
    words, signed = "the competitor's loss less its distance", 2.0 * (of_h - of_f)
    upper = Inequality("upper", words, rival - apart, 2.0 * (norm + 1.0), None, alpha, signed)
    return Guarantee("The squared loss", "Proposition A.1", loss, None, upper)


def glm_loss(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    coefficients: ArrayLike | None = None,
    alpha: Alpha = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return E l(y, k(f)) <= E l(y, h) - E[D_g(h, k(f))] + |E[k(f)(y - f)]| + ||lambda||_1 alpha for log loss.

    l(y, t) = ln(1 + e^t) - y t and k is the logit (for three or more classes ln sum e^t_a - <y, t> and the logarithm);
    h holds logits. So f beats every h = sum lambda_c c, and all that is needed is multiaccuracy and one more moment,
    that of the weight k(f) on everyone; the reference includes it as measured. Probabilities are raised to at least
    1e-9. `squared_loss` is the same for t^2 / 2 - y t. Spec 5.13.

    Parameters
    ----------
    alpha : a bound on E[c (y - f)] for every c in h; None takes what is measured
    others : as in `squared_loss`

    >>> found = glm_loss([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], [1, 0, 1, 1], coefficients=[0.5])
    >>> round(found.estimate, 4), found.holds
    (0.367, True)
    """
    data = read_outcomes(y, p, sample_weight, classes)
    C, h, norm = _read_competitor(c, coefficients, data)
    unit = _violation(C, data.weight[:, None] * (data.y - linked(data.p)[0]), alpha)
    return generalised(data.y, data.p, h, data.weight, norm, unit).scalar()


def generalised(
    y: FloatArray, p: FloatArray, h: FloatArray, weight: FloatArray, norm: FloatArray | float, alpha: FloatArray
) -> Guarantee[FloatArray]:
    """Return the bound on E l(y, k(f)) by the competitor h; shapes as in `squared`."""
    f, t = linked(p)
    of_h, of_link = (_mean((u * (y - f)).sum(axis=-1), weight) for u in (h, t))
    own, rival = (_mean(log_loss_of(y, u), weight) for u in (t, h))
    divergence = _mean(log_loss_of(f, h) - log_loss_of(f, t), weight)
    words = "the competitor's loss less its divergence plus the link's moment"
    reference, signed = rival - divergence + np.abs(of_link), of_h - of_link - np.abs(of_link)
    upper = Inequality("upper", words, reference, norm, None, alpha, signed)
    return Guarantee("The log loss", "Proposition A.1, for other losses (spec 5.13)", own, None, upper)


def linked(p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return f, the probabilities raised to at least FLOOR, and their link k(f), with f = g'(k(f)) exactly."""
    if p.shape[-1] == 1:
        t = logit(np.clip(p, FLOOR, 1.0 - FLOOR))
        return np.asarray(expit(t)), np.asarray(t)
    t = np.log(np.maximum(p, FLOOR))
    return np.asarray(softmax(t, axis=-1)), t


def log_loss_of(y: FloatArray, t: FloatArray) -> FloatArray:
    """Return g(t) - <y, t> of logits t; for y = f = g'(k) its excess over t = k is the Bregman divergence D_g(t, k)."""
    potential = np.logaddexp(0.0, t[..., 0]) if t.shape[-1] == 1 else logsumexp(t, axis=-1)
    return np.asarray(potential - (y * t).sum(axis=-1))


def _mean(values: FloatArray, weight: FloatArray) -> FloatArray:
    return np.asarray((weight * values).sum(axis=-1))


def _read_competitor(
    c: ArrayLike | None, coefficients: ArrayLike | None, outcomes: Outcomes
) -> tuple[FloatArray, FloatArray, float]:
    """Return the members c, (n, m), the competitor h = sum_c lambda_c c, (n, d), and its norm in |E<h, y - f>|.

    The norm is ||lambda||_1 for scalars; on the simplex sum_c (max_a - min_a) lambda_ca, because residuals sum to 0.
    """
    C = read_memberships(c, len(outcomes.p))
    m, d = C.shape[1], outcomes.p.shape[1]
    if coefficients is None and (m > 1 or d > 1):
        raise InvalidInput(f"coefficients= must give each of the {m} columns of c its {d} numbers, shape ({m}, {d}).")
    theta = np.array(1.0 if coefficients is None else coefficients, dtype=np.float64)
    if theta.size != m * d or not np.isfinite(theta).all():
        raise InvalidInput(f"coefficients must be {m} x {d} finite numbers, but their shape is {theta.shape}.")
    theta = theta.reshape(m, d)
    return C, product(C, theta), float(np.abs(theta).sum() if d == 1 else np.ptp(theta, axis=1).sum())


def _violation(C: FloatArray, rho: FloatArray, alpha: Alpha, least: float = 0.0) -> FloatArray:
    """Return alpha, or the largest degree-1 violation of the columns of C (half the l1 norm on the simplex)."""
    if alpha is not None:
        return given_alpha(alpha)
    v = np.abs(product(C.T, rho))
    return np.asarray(max(least, (v.max() if rho.shape[1] == 1 else v.sum(axis=1).max() / 2)))
