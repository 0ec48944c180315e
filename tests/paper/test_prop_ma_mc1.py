"""Proposition 3.3 (prop:ma:mc1): multiaccuracy and degree 1, and what monomials say about the class (spec 3.1, 3.2)."""

from __future__ import annotations

import numpy as np
import pytest

import hierarchy_worlds as worlds
from lowcal.hierarchy import basis_to_class, implied_alpha

LABELS = [3, 4, 5, 6, 8]


@pytest.mark.parametrize("classes", [2, *LABELS])
def test_the_factors_are_never_exceeded(classes: int) -> None:
    w = worlds.draw(3000, 3, 1 if classes == 2 else classes, seed=classes)
    accurate, one, two = worlds.multiaccuracy(w), worlds.degree(w, 1), worlds.degree(w, 2)
    assert (accurate <= one + 1e-15).all()
    assert (one <= two + 1e-15).all()
    assert (one <= implied_alpha("multiaccuracy", "degree-1", 1.0, classes) * accurate + 1e-15).all()
    assert (one <= basis_to_class("degree-1", 1.0, classes) * accurate + 1e-15).all()
    assert (two <= basis_to_class("degree-2", 1.0, classes) * worlds.monomial(w, 2) + 1e-15).all()
    assert (accurate <= basis_to_class("multiaccuracy", 1.0, classes) * accurate).all()


@pytest.mark.parametrize("classes", LABELS)
def test_the_factors_are_attained(classes: int) -> None:
    """Half of the labels over-, half under-predicted: floor(l/2). A symmetric under-confident predictor: l."""
    half = classes // 2
    truth = np.full((1, classes), 1 / classes)
    said = truth + 0.5 / classes * (np.arange(classes) < half) - 0.5 / classes * (np.arange(classes) >= classes - half)
    w = worlds.single([1.0], said, truth)
    ratio = worlds.degree(w, 1)[0] / worlds.multiaccuracy(w)[0]
    assert ratio == pytest.approx(half, rel=1e-12)
    assert ratio == pytest.approx(implied_alpha("multiaccuracy", "degree-1", 1.0, classes), rel=1e-12)
    favourite = np.eye(classes)
    w = worlds.single(np.full(classes, 1 / classes), 0.4 * favourite + 0.6 / classes, 0.7 * favourite + 0.3 / classes)
    ratio = worlds.degree(w, 2)[0] / worlds.monomial(w, 2)[0]
    assert ratio == pytest.approx(basis_to_class("degree-2", 1.0, classes), rel=1e-12)


def test_binary_monomials_are_the_class() -> None:
    assert implied_alpha("multiaccuracy", "degree-1", 0.3) == 0.3
    assert [basis_to_class(f"degree-{k}", 0.3) for k in (1, 2, 7)] == [0.3] * 3


def test_a_lower_degree_says_nothing_about_a_higher_one() -> None:
    """Two predictions, residuals that cancel: degree 1 is at 0, degree 2 is not; likewise one degree higher."""
    w = worlds.single([0.5, 0.5], np.array([0.25, 0.75]), np.array([0.0, 1.0]))
    assert worlds.degree(w, 1)[0] == 0
    assert worlds.degree(w, 2)[0] > 0.05
    w = worlds.single([0.25, 0.5, 0.25], np.array([0.25, 0.5, 0.75]), np.array([0.45, 0.3, 0.95]))
    assert worlds.degree(w, 2)[0] == pytest.approx(0, abs=1e-15)
    assert worlds.degree(w, 3)[0] > 0.005
    for j, k in ((1, 2), (2, 3), (2, 9)):
        assert implied_alpha(f"degree-{j}", f"degree-{k}", 0.0) == np.inf
