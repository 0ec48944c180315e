"""The golden rule: for any convex g, a predictor is no more confident than the truth, up to one moment.

E_c[g(f)] - E_c[g(f*)] = -E_c[g'(f)(y - f)] - E_c[D_g(f*, f)] <= -E_c[g'(f)(y - f)]                       (GR, spec 5)

for ANY predictor; D_g >= 0 is the Bregman divergence. The right side needs single labels only. Every upper bound of the
moment sandwich is this with g(t) = t^d.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from scipy.special import logit, xlog1py, xlogy

from lowcal.data.errors import InvalidInput
from lowcal.data.inputs import check_whole
from lowcal.data.signatures import spelled_out
from lowcal.kernels.simplex import FLOOR, FloatArray
from lowcal.theory.guarantees.group_rows import AboutRows, GroupRows, KnownTruth, Membership, Replicates, read_label
from lowcal.theory.guarantees.inequalities import Alpha, Guarantee, Inequality, given_alpha, ratio

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Function = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class Convex:
    """A convex function on [0, 1] and its slope (at a kink, any slope between the two sides).

    slope = scale * weight, where the weight is what a notion of calibration bounds: f^(d-1) and d for t^d. `power` is d
    where g is a power, so that replicated labels tell E_c[g(f*)].
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


def confidence(
    g: Convex, f: FloatArray, y: FloatArray, weight: FloatArray, star: FloatArray | None = None, alpha: Alpha = None
) -> Guarantee[FloatArray]:
    """Return the bound on E_c[g(f)], the rows on the last axis; `star` = E_c[g(f*)] where it is known."""
    mass = weight.sum(axis=-1)
    estimate = ratio((weight * g.value(f)).sum(axis=-1), mass)
    signed = -ratio((weight * g.slope(f) * (y - f)).sum(axis=-1), mass)
    alpha_c = np.abs(signed) / g.scale if alpha is None else given_alpha(alpha, mass)
    reference = np.full_like(mass, np.nan) if star is None else star
    paper = None if g.power is None else float(g.power)
    upper = Inequality("upper", "the truth's own", reference, g.scale, paper, alpha_c, signed, needs_f_star=True)
    return Guarantee(f"The confidence E_c[{g.name}]", "the golden rule (spec 5)", estimate, None, upper)


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
    chosen = _read_convex(g)
    rows = GroupRows.read(y, p, c, **about)
    a = read_label(label, rows.layout)
    star = None if rows.truth is None else rows.mean(_of_truth(chosen, rows, rows.truth, a))
    return confidence(chosen, rows.p[:, a], rows.y[:, a], rows.weight, star, alpha).scalar()


def _of_truth(g: Convex, rows: GroupRows, truth: KnownTruth | Replicates, a: int) -> FloatArray:
    """Return g(f*) of every row, or an unbiased estimate of it."""
    if isinstance(truth, KnownTruth):
        return g.value(truth.f_star[:, a])
    if g.power is None:
        raise InvalidInput(f"replicates tell the truth's powers only, not {g.name}. Pass f_star or a power.")
    return np.asarray(truth.powers([a], g.power, rows.weight)[-1])


def _read_convex(g: Convex | tuple[Function, Function] | None) -> Convex:
    if g is None:
        return power(2)
    if isinstance(g, Convex):
        return g
    if not (isinstance(g, tuple) and len(g) == 2 and all(callable(part) for part in g)):
        raise InvalidInput(f"g must be a convex function of this module or a pair (g, g') of functions, not {g!r}.")
    return Convex("g", *g)
