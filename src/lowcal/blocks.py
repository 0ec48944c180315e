"""The block step's direction: weighted least squares of the residual on all features c(x) u(f) at once (spec 4.4).

On the simplex the Gram matrix is G (x) (I - 11'/d), and the moments of a feature sum to zero over the labels, so
theta = G^-1 g label by label. In the mirror geometry each label has its own curvature f_a (1 - f_a).
Few features: one Gram matrix, of all rows or of a subsample of them. Many features: Gauss-Seidel over runs of
disjoint subpopulations, whose Gram matrices are one small block for each; the cost is linear in subpopulations.
The direction only: the line search that follows uses all rows, so no promise depends on a subsample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from lowcal.engines.parts import Parts
from lowcal.engines.reference import Codes, Decode, Design, Matrix, Stacked, pieces
from lowcal.moments import moments
from lowcal.notions.base import Notion, Suprema
from lowcal.simplex import FloatArray, Geometry, IntArray
from lowcal.subpopulations.base import Family, WeakLearner
from lowcal.updates import Term
from lowcal.weights import CellIds, Evaluated, Weight, evaluate

#: Up to this many features are solved for by one Gram matrix; Gauss-Seidel is faster for more.
MAX_FEATURES = 400
#: At most this many subpopulations bring their own witness into one round (infinite weight classes).
MAX_WITNESSES = 100
#: Gram matrices are accumulated on this many rows, or on ten for each feature if that is more.
GRAM_ROWS = 50_000
#: Ridge relative to the diagonal: duplicate and nested groups make the Gram matrix singular.
RIDGE = 1e-6
#: In the mirror geometry, the curvature f (1 - f) counts as at least this much.
LEAST_CURVATURE = 1e-3
#: Gauss-Seidel ends after so many sweeps, or when moments are left that are this small a share of the first ones.
SWEEPS, SWEPT = 10, 0.05


@dataclass(frozen=True, eq=False)
class Squares:
    """A least-squares problem on some rows: features c(x) u(f), curvatures h_ik >= 0, and the moments g it must meet.

    `ridge` is relative to the diagonal.
    """

    design: Design
    U: FloatArray
    h: FloatArray
    g: FloatArray
    ridge: float


def block_terms(
    notion: Notion,
    learner: WeakLearner,
    p: FloatArray,
    rho: FloatArray,
    weight: FloatArray,
    found: Suprema,
    geometry: Geometry,
    seed: int | Sequence[int],
) -> tuple[Term, ...]:
    """Return the terms theta c(x) u(f) that solve this round's least-squares problem, for weighted residuals rho."""
    h = weight[:, None] * _row_curvature(p, geometry)
    weights = tuple(notion.features(p))
    if not weights:
        return _witness_terms(learner, p, rho, h, found, seed)
    U, design = evaluate(weights, p), learner.design()
    g = moments(design, U, rho) if found.moments is None else found.moments
    rows = _sample_rows(len(p), seed, 10 * g.shape[0] * g.shape[1])
    if rows is not None:
        design, U, h = design.rows(rows), _rows_of(U, rows), h[rows] * (len(h) / len(rows))
    theta = _solve_cells(design, U, h, g, rows is not None) if isinstance(U, CellIds) else None
    if theta is None:
        theta = solve(Squares(design, U, h, g, _ridge(g.shape[0] * g.shape[1], len(U), rows is not None)))
    return _split(learner.families, weights, theta)


def _row_curvature(p: FloatArray, geometry: Geometry) -> FloatArray:
    """Return how much the potential bends in each coordinate: 1, or f (1 - f) in the mirror geometry."""
    if geometry == "euclidean":
        return np.ones((len(p), 1))
    return np.maximum(p * (1.0 - p), LEAST_CURVATURE)


def _sample_rows(n: int, seed: int | Sequence[int], least: int = 0) -> IntArray | None:
    """Return a sorted random sample of the rows when there are many; None: all of them."""
    size = max(GRAM_ROWS, least)
    if n <= size:
        return None
    return np.sort(np.random.default_rng(seed).choice(n, size, replace=False))


def _rows_of(U: Evaluated, rows: IntArray) -> Evaluated:
    return CellIds(U.ids[rows], U.n_cells) if isinstance(U, CellIds) else U[rows]


def _ridge(n_features: int, n_rows: int, is_sample: bool) -> float:
    """Return the ridge that the noise of a sampled Gram matrix needs: features / rows."""
    return max(RIDGE, n_features / n_rows) if is_sample else RIDGE


def solve(problem: Squares) -> FloatArray:
    """Return theta with (G_a + ridge) theta_a = g_a for every label a, shape (m, S, d): exactly, or by sweeps."""
    g = problem.g
    if problem.h.shape[1] == 1:
        return _solve_one(problem)
    labels = [
        Squares(problem.design, problem.U, problem.h[:, [a]], g[:, :, [a]], problem.ridge) for a in range(g.shape[2])
    ]
    return np.concatenate([_solve_one(label) for label in labels], axis=2)


def _solve_one(problem: Squares) -> FloatArray:
    """Return theta where all labels share their curvature."""
    m, S, d = problem.g.shape
    if m * S > MAX_FEATURES:
        return _sweep(problem)
    return ridge_solve(_gram(problem), problem.g.reshape(m * S, d), problem.ridge).reshape(m, S, d)


def _gram(problem: Squares) -> FloatArray:
    """Return the Gram matrix of the features c(x) u(f), members major."""
    n_features = problem.g.shape[0] * problem.g.shape[1]
    total = np.zeros((n_features, n_features))
    root = np.sqrt(problem.h) * problem.U
    for part in pieces(len(root), n_features):
        C = problem.design.rows(part).dense()
        A = (C[:, :, None] * root[part][:, None, :]).reshape(len(C), -1)
        total += A.T @ A
    return total


def ridge_solve(G: FloatArray, g: FloatArray, ridge: float) -> FloatArray:
    """Return (G + ridge diag(G))^-1 g after scaling to unit diagonal; features that are zero everywhere get 0.

    Two refinements take back what the ridge shrank wherever G itself determines theta: what is left of a share
    ridge / (ridge + mu) of a direction with eigenvalue mu is its cube.

    >>> ridge_solve(np.array([[2.0, 2.0], [2.0, 2.0]]), np.array([[1.0], [1.0]]), 1e-6).ravel().round(9)
    array([0.25, 0.25])
    """
    diagonal = np.diag(G)
    live = diagonal > np.finfo(float).tiny
    scale = 1.0 / np.sqrt(diagonal[live])[:, None]
    unit, target = G[np.ix_(live, live)] * scale * scale.T, scale * g[live]
    while True:
        try:
            factor = cho_factor(unit + ridge * np.eye(len(unit)))
            break
        except LinAlgError:
            ridge *= 100.0
    theta = cho_solve(factor, target)
    for _ in range(2 if ridge <= RIDGE else 0):
        theta += cho_solve(factor, target - unit @ theta)
    result = np.zeros_like(g)
    result[live] = scale * theta
    return result


def _solve_cells(design: Design, U: CellIds, h: FloatArray, g: FloatArray, is_sample: bool) -> FloatArray:
    """Return theta cell by cell: cells do not overlap, so the Gram matrix is block diagonal."""
    theta = np.zeros_like(g)
    order = np.argsort(U.ids, kind="stable")
    starts = np.searchsorted(U.ids[order], np.arange(U.n_cells + 1))
    for s in range(U.n_cells):
        inside = order[starts[s] : starts[s + 1]]
        if len(inside):
            ridge = _ridge(len(g), len(inside), is_sample)
            here = Squares(design.rows(inside), np.ones((len(inside), 1)), h[inside], g[:, [s]], ridge)
            theta[:, [s]] = solve(here)
    return theta


# ------------------------------------------------------------------------------------------------- Gauss-Seidel
@dataclass(frozen=True, eq=False)
class Run:
    """Consecutive subpopulations that share no row: for each code (or row) the one it is in, and its membership."""

    members: slice
    owner: IntArray
    membership: FloatArray
    codes: IntArray | None = None

    def bind(self, U: FloatArray) -> tuple[Parts, FloatArray]:
        """Return the rows of each subpopulation, and the features c(x) u(f) of the one that a row is in."""
        owner, membership = self.owner, self.membership
        if self.codes is not None:
            owner, membership = owner[self.codes], membership[self.codes]
        is_plain = bool((self.membership == 1.0).all())
        parts = Parts(owner, self.members.stop - self.members.start)
        return parts, U if is_plain else U * membership[:, None]


def _sweep(problem: Squares) -> FloatArray:
    """Return theta by Gauss-Seidel: run by run, the least squares of what the runs before have left over.

    Cost of a sweep: one pass over the rows for each run. Duplicates and nested subpopulations do no harm.
    """
    theta, moved = np.zeros_like(problem.g), np.zeros((len(problem.U), problem.g.shape[2]))
    order, grams = list(runs(problem.design)), []
    enough = SWEPT * np.abs(problem.g).max()
    for sweep in range(SWEEPS):
        left = 0.0
        for k, run in enumerate(order):
            parts, A = run.bind(problem.U)
            if sweep == 0:
                grams.append(parts.products(A, problem.h * A))
            g = problem.g[run.members] - parts.products(A, problem.h * moved)
            step = _solve_parts(grams[k], g, problem.ridge)
            theta[run.members] += step
            moved += parts.combine(A, step)
            left = max(left, float(np.abs(g).max()))
        if left <= enough:
            break
    return theta


def _solve_parts(G: FloatArray, g: FloatArray, ridge: float) -> FloatArray:
    """Return (G_c + ridge diag(G_c))^-1 g_c for every subpopulation c, shapes (m, S, S) and (m, S, d)."""
    diagonal = np.diagonal(G, axis1=1, axis2=2)
    live = diagonal > np.finfo(float).tiny
    scale = np.where(live, 1.0 / np.sqrt(np.where(live, diagonal, 1.0)), 0.0)[:, :, None]
    unit = G * scale * scale.transpose(0, 2, 1) + np.eye(G.shape[1]) * np.where(live, ridge, 1.0)[:, :, None]
    return np.asarray(scale * np.linalg.solve(unit, scale * g))


def runs(design: Design) -> Iterator[Run]:
    """Yield the subpopulations of a design as runs of disjoint ones, in order."""
    start = 0
    for part in design.parts if isinstance(design, Stacked) else (design,):
        if isinstance(part, Codes):
            for codes, decode in zip(part.codes, part.decode, strict=True):
                yield from (replace(run, codes=codes) for run in _disjoint(decode, start))
                start += decode.shape[1]
            continue
        nobody = np.zeros(part.shape[0], dtype=np.uint8)
        yield from (Run(slice(start + j, start + j + 1), nobody, part.column(j)) for j in range(part.shape[1]))
        start += part.shape[1]


def _disjoint(decode: Decode, start: int) -> Iterator[Run]:
    """Yield runs of the groups of one decode table: a new one begins where a group meets a code that is taken."""
    levels, m = decode.shape
    first, owner, membership = 0, np.full(levels, -1), np.ones(levels)
    for j, (inside, values) in enumerate(_entries(decode)):
        if (owner[inside] >= 0).any():
            yield _close(slice(start + first, start + j), owner, membership)
            first, owner, membership = j, np.full(levels, -1), np.ones(levels)
        owner[inside], membership[inside] = j - first, values
    yield _close(slice(start + first, start + m), owner, membership)


def _close(members: slice, owner: IntArray, membership: FloatArray) -> Run:
    """Return the run; codes that belong to none of its groups get the number after the last."""
    count = members.stop - members.start
    return Run(members, np.where(owner < 0, count, owner).astype(np.min_scalar_type(count)), membership)


def _entries(decode: Decode) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yield the codes of each group, and its memberships there."""
    levels, m = decode.shape
    for some in np.array_split(np.arange(m), -(-m // 64)):
        table = decode.take(some).look_up(np.arange(levels))
        for column in table.T:
            inside = np.flatnonzero(column)
            yield inside, column[inside]


# ---------------------------------------------------------------------------------------------- infinite weight classes
def _witness_terms(
    learner: WeakLearner,
    p: FloatArray,
    rho: FloatArray,
    h: FloatArray,
    found: Suprema,
    seed: int | Sequence[int],
) -> tuple[Term, ...]:
    """Return terms for an infinite weight class: each violated subpopulation brings its own witness."""
    worst = np.argsort(-found.value, kind="stable")[:MAX_WITNESSES]
    members = [(learner.member(int(j)), found.witness(int(j)).weights) for j in worst if found.value[j] > 0]
    columns = [
        family.design(learner.rows).column(0)[:, None] * np.column_stack([u(p) for u in weights])
        for family, weights in members
    ]
    A = np.concatenate(columns, axis=1)
    g, rows = (A.T @ rho)[:, None, :], _sample_rows(len(p), seed)
    if rows is not None:
        A, h = A[rows], h[rows] * (len(h) / len(rows))
    one = np.ones((len(A), 1))
    theta = solve(Squares(Matrix(A), one, h, g, _ridge(len(g), len(A), rows is not None)))[:, 0]
    stops = np.cumsum([len(weights) for _, weights in members])[:-1]
    parts = np.split(theta, stops)
    return tuple(Term(family, weights, part[None]) for (family, weights), part in zip(members, parts, strict=True))


def _split(families: Sequence[Family], weights: tuple[Weight, ...], theta: FloatArray) -> tuple[Term, ...]:
    """Return one term for each family from the coefficients of all members."""
    stops = np.cumsum([len(family.names) for family in families])[:-1]
    parts = np.split(theta, stops)
    return tuple(Term(family, weights, part) for family, part in zip(families, parts, strict=True))
