"""The block step's direction: weighted least squares of the residual on all features c(x) u(f) at once (spec 4.4).

On the simplex the Gram matrix is G (x) (I - 11'/d), and the moments of a feature sum to zero over the labels, so
theta = G^-1 g label by label. In the mirror geometry each label has its own curvature f_a (1 - f_a).
A subsample of the rows may stand for all of them in G: the line search that follows uses all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from lowcal.engines.reference import Design, pieces, stack
from lowcal.moments import moments
from lowcal.notions.base import Notion, Suprema
from lowcal.simplex import FloatArray, Geometry, IntArray, leading
from lowcal.subpopulations.base import Family, WeakLearner
from lowcal.updates import Term
from lowcal.weights import CellIds, Weight, evaluate

#: At most this many features are solved for in one round.
MAX_FEATURES = 1500
#: At most this many subpopulations bring their own witness into one round (infinite weight classes).
MAX_WITNESSES = 100
#: Gram matrices are accumulated on this many rows, or on ten for each feature if that is more.
GRAM_ROWS = 50_000
#: Ridge relative to the diagonal: duplicate and nested groups make the Gram matrix singular.
RIDGE = 1e-6
#: In the mirror geometry, the curvature f (1 - f) counts as at least this much.
LEAST_CURVATURE = 1e-3

#: Rows -> the features on these rows, shape (r, F).
Features = Callable[[slice | IntArray], FloatArray]


def block_terms(
    notion: Notion,
    learner: WeakLearner,
    p: FloatArray,
    rho: FloatArray,
    weight: FloatArray,
    found: Suprema,
    geometry: Geometry,
    seed: int,
) -> tuple[Term, ...]:
    """Return the terms theta c(x) u(f) that solve this round's least-squares problem, for weighted residuals rho."""
    row_weight = weight[:, None] * _row_curvature(p, geometry)
    weights = tuple(notion.features(p))
    if not weights:
        return _witness_terms(learner, p, rho, row_weight, found, _sample_rows(len(p), seed))
    U = evaluate(weights, p)
    per_member = 1 if isinstance(U, CellIds) else U.shape[1]
    families = _active(learner, found.value, max(1, MAX_FEATURES // per_member))
    design = stack([family.design(learner.rows) for family in families])
    g = moments(design, U, rho)
    rows = _sample_rows(len(p), seed, 10 * len(g) * per_member)
    if isinstance(U, CellIds):
        return _split(families, weights, _solve_cells(design, U, g, row_weight, rows))
    features = _products(design, U)
    theta = _solve(features, g.reshape(-1, g.shape[2]), row_weight, rows)
    return _split(families, weights, theta.reshape(g.shape))


def _row_curvature(p: FloatArray, geometry: Geometry) -> FloatArray:
    """Return how much the potential bends in each coordinate: 1, or f (1 - f) in the mirror geometry."""
    if geometry == "euclidean":
        return np.ones((len(p), 1))
    return np.maximum(p * (1.0 - p), LEAST_CURVATURE)


def _sample_rows(n: int, seed: int, least: int = 0) -> IntArray:
    """Return all rows, or a sorted random sample of them when there are many."""
    size = max(GRAM_ROWS, least)
    if n <= size:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, size, replace=False))


def _active(learner: WeakLearner, value: FloatArray, limit: int) -> list[Family]:
    """Return the members to solve for, family by family: all, or the worst of each of `limit` runs of neighbours.

    Neighbours (two thresholds of a feature, two values of a column) say almost the same; the worst of all is kept.
    """
    edges = np.linspace(0, len(value), min(limit, len(value)) + 1).astype(np.intp)
    chosen = np.array([a + leading(value[a:b]) for a, b in itertools.pairwise(edges)])
    families = []
    start = 0
    for family in learner.families:
        size = len(family.names)
        inside = chosen[(chosen >= start) & (chosen < start + size)] - start
        if len(inside):
            families.append(family if len(inside) == size else family.take(inside))
        start += size
    return families


def _products(design: Design, U: FloatArray) -> Features:
    """Return the features c(x) u(f), members major."""

    def features(rows: slice | IntArray) -> FloatArray:
        C = design.rows(rows).dense()
        return (C[:, :, None] * U[rows][:, None, :]).reshape(len(C), -1)

    return features


def _solve(features: Features, g: FloatArray, row_weight: FloatArray, rows: IntArray) -> FloatArray:
    """Return theta with (G_a + ridge) theta_a = g_a for every label a."""
    grams = np.zeros((row_weight.shape[1], len(g), len(g)))
    for part in pieces(len(rows), len(g)):
        A = features(rows[part])
        for k in range(len(grams)):
            grams[k] += (A * row_weight[rows[part], k, None]).T @ A
    grams *= len(row_weight) / len(rows)
    ridge = RIDGE if len(rows) == len(row_weight) else len(g) / len(rows)
    columns = [ridge_solve(grams[min(a, len(grams) - 1)], g[:, a], ridge) for a in range(g.shape[1])]
    return np.column_stack(columns)


def ridge_solve(G: FloatArray, g: FloatArray, ridge: float) -> FloatArray:
    """Return (G + ridge diag(G))^-1 g after scaling to unit diagonal; features that are zero everywhere get 0.

    >>> ridge_solve(np.array([[2.0, 2.0], [2.0, 2.0]]), np.array([1.0, 1.0]), 1e-6).round(4)
    array([0.25, 0.25])
    """
    diagonal = np.diag(G)
    live = diagonal > np.finfo(float).tiny
    scale = 1.0 / np.sqrt(diagonal[live])
    unit = G[np.ix_(live, live)] * scale[:, None] * scale
    theta = np.zeros(len(g))
    while True:
        try:
            factor = cho_factor(unit + ridge * np.eye(len(unit)))
            break
        except LinAlgError:
            ridge *= 100.0
    theta[live] = scale * cho_solve(factor, scale * g[live])
    return theta


def _solve_cells(design: Design, U: CellIds, g: FloatArray, row_weight: FloatArray, rows: IntArray) -> FloatArray:
    """Return theta cell by cell: cells do not overlap, so the Gram matrix is block diagonal."""
    theta = np.zeros_like(g)
    order = rows[np.argsort(U.ids[rows], kind="stable")]
    starts = np.searchsorted(U.ids[order], np.arange(U.n_cells + 1))
    for s in range(U.n_cells):
        inside = order[starts[s] : starts[s + 1]]
        if len(inside):
            here = design.rows(inside).dense()
            scaled = row_weight * (len(row_weight) / len(rows))
            theta[:, s] = _solve(here.__getitem__, g[:, s], scaled[inside], np.arange(len(inside)))
    return theta


def _witness_terms(
    learner: WeakLearner,
    p: FloatArray,
    rho: FloatArray,
    row_weight: FloatArray,
    found: Suprema,
    rows: IntArray,
) -> tuple[Term, ...]:
    """Return terms for an infinite weight class: each violated subpopulation brings its own witness."""
    worst = np.argsort(-found.value, kind="stable")[:MAX_WITNESSES]
    members = [(learner.member(int(j)), found.witness(int(j)).weights) for j in worst if found.value[j] > 0]
    columns = [
        family.design(learner.rows).column(0)[:, None] * np.column_stack([u(p) for u in weights])
        for family, weights in members
    ]
    A = np.concatenate(columns, axis=1)
    theta = _solve(lambda part: A[part], A.T @ rho, row_weight, rows)
    stops = np.cumsum([len(weights) for _, weights in members])[:-1]
    parts = np.split(theta, stops)
    return tuple(Term(family, weights, part[None]) for (family, weights), part in zip(members, parts, strict=True))


def _split(families: Sequence[Family], weights: tuple[Weight, ...], theta: FloatArray) -> tuple[Term, ...]:
    """Return one term for each family from the coefficients of all members."""
    stops = np.cumsum([len(family.names) for family in families])[:-1]
    parts = np.split(theta, stops)
    return tuple(Term(family, weights, part) for family, part in zip(families, parts, strict=True))
