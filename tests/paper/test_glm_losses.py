"""Spec 5.13: multiaccuracy and one more moment beat every combination in the loss of a generalised linear model."""

import numpy as np
import pytest

from lowcal.guarantees.losses import generalised
from lowcal.kernels.simplex import FLOOR
from paper.test_proposition_a_1_squared_loss import competitors, everyone
from paper.worlds import agree, keeps, scalar_worlds, share_of_slack, simplex_worlds, two_points


def test_the_log_loss_holds_in_random_worlds():
    w = scalar_worlds()
    C, theta = competitors(len(w.f), 1)
    h = (C @ theta)[..., 0]
    f = np.clip(w.f, FLOOR, 1 - FLOOR)
    k = np.log(f) - np.log1p(-f)
    alpha = np.abs(np.stack([everyone(w, C[..., j] * (w.star - f)) for j in range(C.shape[-1])])).max(axis=0)
    norm = np.abs(theta).sum(axis=(1, 2))
    found = generalised(w.star[..., None], w.f[..., None], h[..., None], w.weight, norm, alpha)

    def loss(t):
        return everyone(w, np.log1p(np.exp(t)) - w.star * t)

    keeps(found, loss(k))
    bregman = everyone(w, np.log1p(np.exp(h)) - np.log1p(np.exp(k)) - f * (h - k))
    extra = np.abs(everyone(w, k * (w.star - f)))
    agree(found.upper.bound, loss(h) - bregman + extra + norm * alpha)
    agree(found.upper.signed_bound, found.estimate)  # the identity
    assert np.all(bregman >= -1e-12)
    assert np.all(found.estimate <= loss(h) + extra + norm * alpha + 1e-11)  # f beats h


def test_the_log_loss_of_several_classes():
    w = simplex_worlds(3)
    C, theta = competitors(len(w.f), 3)
    lifted = np.maximum(w.f, FLOOR)
    f = lifted / lifted.sum(axis=-1, keepdims=True)
    v = np.einsum("ns,nsm,nsa->nma", w.weight, C, w.star - f)
    alpha, norm = np.abs(v).sum(axis=2).max(axis=1) / 2, np.ptp(theta, axis=2).sum(axis=1)
    found = generalised(w.star, w.f, C @ theta, w.weight, norm, alpha)
    keeps(found, everyone(w, -(w.star * np.log(f)).sum(axis=-1)))
    agree(found.upper.signed_bound, found.estimate)


def test_the_bound_is_attained():
    """A constant h of the worst sign and an overconfident f: every term is used up."""
    w = two_points(0.2, 0.8, 1, 1e-3, -1e-3)
    h = np.full((2, 1), 0.7)
    found = generalised(w.star[:, None], w.f[:, None], h, w.weight, np.asarray(0.7), np.asarray(1e-3))
    assert share_of_slack(found, "upper") == pytest.approx(1, abs=1e-9)
