"""Loss minimisation: a predictor of degree 2 beats every combination h of subpopulations (spec 5.12, 5.13).

Exact on every sample and for any h:

    E (h - y)^2 = E (f - y)^2 + E (h - f)^2 - 2 E[h (y - f)] + 2 E[f (y - f)],
    E l(y, h)   = E l(y, k(f)) + E[D_g(h, k(f))] - E[h (y - f)] + E[k(f)(y - f)]

for l(y, t) = g(t) - y t and k the inverse of g'. Paper: Proposition A.1, where alpha = 0. Everything is estimable:
differences of E(f - f*)^2 are differences of Brier scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import expit, logit, logsumexp, softmax

from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import Outcomes, read_outcomes
from lowcal.kernels.products import product
from lowcal.kernels.simplex import FLOOR, FloatArray
from lowcal.theory.guarantees.group_rows import read_memberships
from lowcal.theory.guarantees.inequalities import Alpha, Guarantee, Inequality, check_alpha

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Competitor:
    """h = sum_c lambda_c c on the rows, shape (n, d), and the norm that multiplies alpha in |E<h, y - f>|.

    The norm is ||lambda||_1 for scalars; on the simplex sum_c (max_a - min_a) lambda_ca, because residuals sum to 0.
    """

    h: FloatArray
    C: FloatArray
    norm: float


def read_competitor(c: ArrayLike | None, coefficients: ArrayLike | None, outcomes: Outcomes) -> Competitor:
    """Check the members c, shape (n,) or (n, m), and their coefficients, shape (m,) or (m, d)."""
    C = read_memberships(c, len(outcomes.p))
    m, d = C.shape[1], outcomes.p.shape[1]
    if coefficients is None:
        if m > 1 or d > 1:
            raise InvalidInput(
                f"coefficients= must give each of the {m} columns of c its {d} numbers, shape ({m}, {d})."
            )
        coefficients = np.ones((1, 1))
    theta = np.array(coefficients, dtype=np.float64)
    if theta.size != m * d or not np.isfinite(theta).all():
        raise InvalidInput(f"coefficients must be {m} x {d} finite numbers, but their shape is {theta.shape}.")
    theta = theta.reshape(m, d)
    norm = np.abs(theta).sum() if d == 1 else np.ptp(theta, axis=1).sum()
    return Competitor(product(C, theta), C, float(norm))


# ------------------------------------------------------------------------------------------- on arrays
def squared(
    y: FloatArray, f: FloatArray, h: FloatArray, weight: FloatArray, norm: FloatArray | float, alpha: FloatArray
) -> Guarantee[FloatArray]:
    """Return the bound on E||f - y||^2 by the competitor h; rows (..., n, d), weights (..., n) that sum to one."""
    of_h, of_f = (_mean((u * (y - f)).sum(axis=-1), weight) for u in (h, f))
    loss, rival, apart = (_mean(np.square(a - b).sum(axis=-1), weight) for a, b in ((f, y), (h, y), (h, f)))
    words, signed = "the competitor's loss less its distance", 2.0 * (of_h - of_f)
    upper = Inequality("upper", words, rival - apart, 2.0 * (norm + 1.0), None, alpha, signed)
    return Guarantee("The squared loss", "Proposition A.1", loss, None, upper)


def generalised(
    link: Link,
    y: FloatArray,
    p: FloatArray,
    h: FloatArray,
    weight: FloatArray,
    norm: FloatArray | float,
    alpha: FloatArray,
) -> Guarantee[FloatArray]:
    """Return the bound on E l(y, k(f)) by the competitor h; shapes as in `squared`."""
    f, t = link(p)
    of_h, of_link = (_mean((u * (y - f)).sum(axis=-1), weight) for u in (h, t))
    own, rival = (_mean(link.loss_of(y, u), weight) for u in (t, h))
    divergence = _mean(link.loss_of(f, h) - link.loss_of(f, t), weight)
    words = "the competitor's loss less its divergence plus the link's moment"
    reference, signed = rival - divergence + np.abs(of_link), of_h - of_link - np.abs(of_link)
    upper = Inequality("upper", words, reference, norm, None, alpha, signed)
    return Guarantee(f"The {link.loss} loss", "Proposition A.1, for other losses (spec 5.13)", own, None, upper)


@dataclass(frozen=True)
class Link:
    """A loss l(y, t) = g(t) - <y, t> and its link k: from probabilities to (f, k(f)) with f = g'(k(f)) exactly."""

    loss: Literal["log", "squared"]
    clip: float = FLOOR

    def __call__(self, p: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return f, lifted to at least `clip`, and k(f)."""
        if self.loss == "squared":
            return p, p
        if p.shape[-1] == 1:
            t = logit(np.clip(p, self.clip, 1.0 - self.clip))
            return np.asarray(expit(t)), np.asarray(t)
        t = np.log(np.maximum(p, self.clip))
        return np.asarray(softmax(t, axis=-1)), t

    def loss_of(self, y: FloatArray, t: FloatArray) -> FloatArray:
        """Return g(t) - <y, t>; with y = f = g'(k), its excess over t = k is the Bregman divergence D_g(t, k)."""
        if self.loss == "squared":
            potential = np.square(t).sum(axis=-1) / 2.0
        else:
            potential = np.logaddexp(0.0, t[..., 0]) if t.shape[-1] == 1 else logsumexp(t, axis=-1)
        return np.asarray(potential - (y * t).sum(axis=-1))


def _mean(values: FloatArray, weight: FloatArray) -> FloatArray:
    return np.asarray((weight * values).sum(axis=-1))


# ------------------------------------------------------------------------------------------- on rows
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
    rival = read_competitor(c, coefficients, data)
    rho = data.weight[:, None] * (data.y - data.p)
    unit = _violation(rival.C, rho, alpha, least=abs(float((data.p * rho).sum())))
    return squared(data.y, data.p, rival.h, data.weight, rival.norm, unit).scalar()


def _violation(C: FloatArray, rho: FloatArray, alpha: Alpha, least: float = 0.0) -> FloatArray:
    """Return alpha, or the largest degree-1 violation of the columns of C (half the l1 norm on the simplex)."""
    check_alpha(alpha)
    if alpha is not None:
        return np.asarray(float(alpha))
    v = np.abs(product(C.T, rho))
    return np.asarray(max(least, (v.max() if rho.shape[1] == 1 else v.sum(axis=1).max() / 2)))


def glm_loss(
    y: ArrayLike,
    p: ArrayLike,
    c: ArrayLike | None = None,
    *,
    coefficients: ArrayLike | None = None,
    loss: Literal["log", "squared"] = "log",
    clip: float = FLOOR,
    alpha: Alpha = None,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
) -> Guarantee[float]:
    """Return E l(y, k(f)) <= E l(y, h) - E[D_g(h, k(f))] + |E[k(f)(y - f)]| + ||lambda||_1 alpha (spec 5.13).

    So f, read through its link k, beats every h = sum lambda_c c in this loss, and all that is needed is
    multiaccuracy and one more moment, that of the weight k(f) on everyone; the reference includes it as measured.

    Parameters
    ----------
    loss : "log" is l(y, t) = ln(1 + e^t) - y t with the link logit (softmax for three or more classes), h being logits;
        "squared" is t^2 / 2 - y t with k(f) = f: half the squared loss, up to y^2 / 2
    clip : probabilities are lifted to at least this much (log loss only); f means the lifted ones
    alpha : a bound on E[c (y - f)] for every c in h; None takes what is measured
    others : as in `squared_loss`

    >>> found = glm_loss([1, 0, 1, 0], [0.8, 0.2, 0.6, 0.4], [1, 0, 1, 1], coefficients=[0.5])
    >>> round(found.estimate, 4), found.holds
    (0.367, True)
    """
    if loss not in ("log", "squared"):
        raise InvalidInput(f"loss must be 'log' or 'squared', but {loss!r} was given.")
    if not 0 < clip < 0.5:
        raise InvalidInput(f"clip must lie between 0 and 0.5, but {clip!r} was given.")
    link = Link(loss, clip)
    data = read_outcomes(y, p, sample_weight, classes)
    rival = read_competitor(c, coefficients, data)
    rho = data.weight[:, None] * (data.y - link(data.p)[0])
    unit = _violation(rival.C, rho, alpha)
    return generalised(link, data.y, data.p, rival.h, data.weight, rival.norm, unit).scalar()
