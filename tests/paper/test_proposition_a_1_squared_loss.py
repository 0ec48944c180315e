"""Proposition A.1 (spec 5.12): degree 2 beats every combination of subpopulations in squared loss."""

import numpy as np
import pytest

from lowcal.guarantees.losses import squared
from paper.worlds import POINTS, agree, keeps, scalar_worlds, share_of_slack, simplex_worlds, two_points

MEMBERS = 3


def competitors(n, d, seed=0):
    """Members c and coefficients lambda of n worlds: C (n, POINTS, m), theta (n, m, d)."""
    rng = np.random.default_rng(seed)
    C = np.where(
        rng.random((n, 1, MEMBERS)) < 0.5, rng.random((n, POINTS, MEMBERS)), rng.random((n, POINTS, MEMBERS)) < 0.5
    )
    return C.astype(float), rng.normal(size=(n, MEMBERS, d))


def everyone(w, values):
    return (w.weight * values).sum(axis=-1)


def test_holds_in_random_worlds():
    w = scalar_worlds()
    C, theta = competitors(len(w.f), 1)
    h = (C @ theta)[..., 0]
    delta = w.star - w.f
    each = np.abs(np.stack([everyone(w, C[..., j] * delta) for j in range(MEMBERS)])).max(axis=0)
    alpha = np.maximum(each, np.abs(everyone(w, w.f * delta)))
    norm = np.abs(theta).sum(axis=(1, 2))
    y = w.star[..., None]  # soft outcomes: the identity is linear in y
    found = squared(y, w.f[..., None], h[..., None], w.weight, norm, alpha)
    keeps(found, everyone(w, (w.f - w.star) ** 2))
    bound = everyone(w, (h - w.star) ** 2) - everyone(w, (h - w.f) ** 2) + 2 * (norm + 1) * alpha
    agree(found.upper.bound, bound)
    agree(found.upper.signed_bound, found.estimate)  # the identity


def test_holds_on_the_simplex():
    """|E<h, y - f>| <= sum_c (max - min) lambda_c alpha, because residuals sum to 0."""
    w = simplex_worlds(4)
    C, theta = competitors(len(w.f), 4)
    h, delta = C @ theta, w.star - w.f
    v = np.einsum("ns,nsm,nsa->nma", w.weight, C, delta)
    alpha = np.maximum(np.abs(v).sum(axis=2).max(axis=1) / 2, np.abs(everyone(w, (w.f * delta).sum(axis=-1))))
    norm = np.ptp(theta, axis=2).sum(axis=1)
    found = squared(w.star, w.f, h, w.weight, norm, alpha)
    keeps(found, everyone(w, np.square(delta).sum(axis=-1)))
    agree(found.upper.signed_bound, found.estimate)


def test_the_constant_is_attained_by_the_constant_competitor():
    """h = 1, e_0 = a, e_1 = -a: 2 (e_0 - e_1) = 4 a."""
    w = two_points(0.2, 0.8, 1, 1e-3, -1e-3)
    ones = np.ones((2, 1))
    found = squared(w.star[:, None], w.f[:, None], ones, w.weight, np.asarray(1.0), np.asarray(1e-3))
    assert share_of_slack(found, "upper") == pytest.approx(1, abs=1e-9)
    assert found.upper.constant == 4


def test_pythagoras():
    """alpha = 0, f the conditional mean of f* on the cells of C: E(h - f*)^2 = E(f - f*)^2 + E(h - f)^2."""
    star, weight = np.array([0.1, 0.5, 0.6, 0.9]), np.full(4, 0.25)
    f, h = np.array([0.3, 0.3, 0.75, 0.75]), np.array([1.0, 1.0, 0.0, 0.0])
    found = squared(star[:, None], f[:, None], h[:, None], weight, np.asarray(1.0), np.asarray(0.0))
    assert found.upper.bound == pytest.approx(float(found.estimate), abs=1e-15)
    assert found.estimate <= weight @ (h - star) ** 2
