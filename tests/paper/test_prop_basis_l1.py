"""Proposition 3.13 (prop:basis-l1): cubes are a basis of the Lipschitz weights, once corrected (spec 1.3 B2, 9.l)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import hierarchy_worlds as worlds
from lowcal.hierarchy import basis_to_class, basis_to_smooth, implied_alpha


def lipschitz(centres: np.ndarray, heights: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The McShane extension of values at points: defined on all of [0, 1]^l, also off the simplex."""
    distance = np.abs(z[:, None] - centres[None]).sum(axis=2)
    return np.clip((heights + distance).min(axis=1), 0, 1)


@pytest.mark.parametrize(("d", "k"), [(2, 4), (3, 2), (3, 5), (4, 3)])
def test_the_value_at_the_centre_is_within_l_width_over_two(d: int, k: int) -> None:
    rng = np.random.default_rng(d * k)
    z = rng.dirichlet(np.ones(d), 500)
    index = np.minimum(np.floor(z * k), k - 1)
    centre = (index + 0.5) / k
    worst = 0.0
    for _ in range(20):
        knots, heights = rng.dirichlet(np.ones(d), 6), rng.random(6)
        worst = max(worst, np.abs(lipschitz(knots, heights, z) - lipschitz(knots, heights, centre)).max())
    assert worst <= d / (2 * k)
    assert (np.abs(z - centre).sum(axis=1) <= d / (2 * k) + 1e-12).all()
    if d > 2:
        assert (np.abs(centre.sum(axis=1) - 1) > 1e-9).any()  # off the simplex: the extension is needed
    # the distance l width / 2 is attained by u = the distance from the centre, at a corner of a cube
    corner = (np.floor(centre[:1] * k) + np.arange(d) % 2) / k
    assert np.abs(corner - centre[:1]).sum() == pytest.approx(d / (2 * k))


@pytest.mark.parametrize("classes", [3, 4, 5, 7])
def test_a_cell_loses_half_the_labels(classes: int) -> None:
    """sup over u in [0, 1]^l of <u, v> for v that sums to zero is at most floor(l/2) max |v|, and as large."""
    rng = np.random.default_rng(classes)
    v = rng.normal(size=(4000, classes)) ** 3
    v -= v.mean(axis=1, keepdims=True)
    corners = np.array(list(product((0, 1), repeat=classes)))
    ratio = (v @ corners.T).max(axis=1) / np.abs(v).max(axis=1)
    factor = basis_to_class("full-1", 1.0, classes)  # one cell
    assert ratio.max() <= factor + 1e-12
    half = classes // 2
    extreme = np.array([1.0] * half + [-1.0] * half + [0.0] * (classes % 2))
    assert (corners @ extreme).max() == factor == half


@pytest.mark.parametrize("classes", [3, 4])
def test_the_basis_lemma_gives_the_theorem(classes: int) -> None:
    """Lemma 3.12 with eta = l width / 2 and L = floor(l/2) N is the formula of the hierarchy."""
    for width, cells in ((0.1, {3: 163, 4: 787}[classes]), (0.25, {3: 28, 4: 65}[classes])):
        L = classes // 2 * cells
        theorem = basis_to_smooth(1e-4, classes * width / 2, L, classes)
        assert implied_alpha(f"full-{width}", "smooth", 1e-4, classes) == pytest.approx(theorem, rel=1e-12)


def test_the_cells_sum_to_the_class() -> None:
    w = worlds.draw(1000, 3, 4, seed=0)
    for k in (2, 5):
        whole, cell = worlds.full_class(w, k), worlds.full_cell(w, k)
        assert (whole <= 2 * worlds.occupied(w, k) * cell + 1e-12).all()  # floor(4/2) for each cell that holds a point
        assert (whole <= basis_to_class(f"full-{1 / k}", 1.0, 4) * cell + 1e-12).all()
