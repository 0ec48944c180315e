"""Logistic regressions of the same rows under several weights at once: the fits outside each fold.

Every set of weights is a column, and what NumPy does for one column it does for all of them in one call. Rows that are
outside a fit have no weight there, and their predictions come for free. Newton's method as in `logistic`, for two
classes: each column takes its own steps and stops when they gain little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowcal.kernels.logistic import ENOUGH, LEAST_BEND, LITTLE, MOST_STEPS, join_hessian
from lowcal.kernels.loops import compiled
from lowcal.kernels.products import Cholesky, product
from lowcal.kernels.reference import Codes
from lowcal.kernels.simplex import FloatArray, IntArray, sigmoid

#: From this many memberships on compiled sums over pairs of groups are worth loading, as trees are grown next.
COMPILE_FROM = 2_000


@dataclass(frozen=True, eq=False)
class Weighted:
    """Log odds z and outcomes y of rows, shape (n,), and weights of shape (n, F) whose columns sum to one."""

    z: FloatArray
    y: FloatArray
    weight: FloatArray

    @cached_property
    def worth(self) -> FloatArray:
        """The effective number of rows under every column of weights."""
        return np.asarray(1.0 / np.einsum("if,if->f", self.weight, self.weight))

    @cached_property
    def n(self) -> FloatArray:
        """The number of rows that have weight."""
        return np.asarray(np.count_nonzero(self.weight, axis=0), dtype=np.float64)

    def take(self, columns: IntArray) -> Weighted:
        """Return the rows under some of the columns of weights."""
        return self if len(columns) == self.weight.shape[1] else replace(self, weight=self.weight[:, columns])

    def losses(self, score: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean log losses of log odds of shape (n, F), and the predictions."""
        small = np.exp(-np.abs(score))
        whole = 1.0 + small
        f = np.where(score >= 0.0, 1.0, small)
        f /= whole
        each = np.log(whole, out=whole)
        each += np.maximum(score, 0.0)
        each -= self.y[:, None] * score
        return np.asarray(np.einsum("if,if->f", self.weight, each)), f

    def residuals(self, f: FloatArray) -> FloatArray:
        """Return the weighted residuals of predictions."""
        return self.weight * (self.y[:, None] - f)


def fit_each(rows: Weighted, U: FloatArray, start: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
    """Return the coefficients, shape (S, F), of log odds z + U theta of least log loss under each column of weights.

    And the losses there. Steps begin at `start`, or at 0.

    >>> U = np.repeat(np.eye(2), 4, axis=0)  # two groups, with 1 and 3 positives of 4
    >>> y = np.array([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    >>> fit_each(Weighted(np.zeros(8), y, np.full((8, 1), 1 / 8)), U)[0].ravel().round(3)
    array([-1.099,  1.099])
    """
    theta = np.zeros((U.shape[1], rows.weight.shape[1])) if start is None else start
    pairs, z = _pairs(U), rows.z[:, None]
    least, f = rows.losses(z + product(U, theta))
    is_moving = np.ones(len(least), dtype=bool)
    for _ in range(MOST_STEPS):
        step = np.where(is_moving, _newton_steps(rows, U, pairs, f), 0.0)
        step, (found, f) = _shortened(rows, U, theta, step, least)
        gain = least - found
        better = gain > 0.0
        theta, least = theta + np.where(better, step, 0.0), np.where(better, found, least)
        is_moving &= gain >= LITTLE / rows.n
        if not is_moving.any():
            break
    return theta, least


def _pairs(U: FloatArray) -> FloatArray:
    """Return the products of any two columns, each once, as rows."""
    a, b = np.triu_indices(U.shape[1])
    return np.ascontiguousarray((U[:, a] * U[:, b]).T)


def _newton_steps(rows: Weighted, U: FloatArray, pairs: FloatArray, f: FloatArray) -> FloatArray:
    """Return a Newton step for every column, shape (S, F)."""
    S, h = U.shape[1], rows.weight * f
    h *= 1.0 - f
    g = product(U.T, rows.residuals(f))
    a, b = np.triu_indices(S)
    H = np.empty((h.shape[1], S, S))
    H[:, a, b] = H[:, b, a] = product(pairs, h).T
    step = np.linalg.solve(H + LEAST_BEND * np.eye(S), g.T[:, :, None])
    return np.asarray(step[:, :, 0].T, dtype=np.float64)


def _shortened(
    rows: Weighted, U: FloatArray, theta: FloatArray, step: FloatArray, least: FloatArray
) -> tuple[FloatArray, tuple[FloatArray, FloatArray]]:
    """Return steps, halved where the loss does not fall, and losses and predictions after them."""
    found = rows.losses(rows.z[:, None] + product(U, theta + step))
    while (worse := (found[0] > least) & (np.abs(step).max(axis=0) > LEAST_BEND)).any():
        step = np.where(worse, step / 2.0, step)
        found = rows.losses(rows.z[:, None] + product(U, theta + step))
    return step, found


@dataclass(frozen=True, eq=False)
class Grouped:
    """Which groups every row is in, as code columns and as a sparse matrix (n, m)."""

    design: Codes

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The memberships, 0 or 1."""
        return self.design.sparse()

    @cached_property
    def transposed(self) -> sparse.csc_array:
        """The same by group."""
        return self.matrix.T

    def take(self, rows: IntArray) -> Grouped:
        """Return the memberships of some rows."""
        some = Grouped(self.design.rows(rows))
        some.__dict__["matrix"] = self.matrix[rows]
        return some

    def moments(self, R: FloatArray) -> FloatArray:
        """Return C' R, the sums over the members of all groups."""
        return product(self.transposed, R)

    def combined(self, theta: FloatArray) -> FloatArray:
        """Return C theta, the sums over the groups of all rows."""
        return product(self.matrix, theta)

    def gram(self, H: FloatArray) -> FloatArray:
        """Return C' diag(H_k) C for every column of H, as the design does; compiled where numba is installed."""
        C, (n, q) = self.matrix, H.shape
        kernels = compiled("compiled") if C.nnz >= COMPILE_FROM else None
        if kernels is None or q > 4:
            return self.design.gram(H)
        m, fours = C.shape[1], np.zeros((n, 4))
        fours[:, :q] = H
        lower = np.zeros((m, m, 4))
        kernels.add_group_pairs(C.indptr, C.indices, fours, lower)
        below = np.moveaxis(lower, 2, 0)[:q]
        each = below + below.transpose(0, 2, 1)
        each[:, np.arange(m), np.arange(m)] /= 2.0  # exact: the diagonal was doubled
        return np.asarray(each)

    def hessian(self, z: FloatArray, weight: FloatArray) -> FloatArray:
        """Return the Hessian of the log loss in shifts and slopes where nothing is corrected yet."""
        f = sigmoid(z)
        h = weight * f * (1.0 - f)
        return join_hessian(*self.gram(np.column_stack([h, h * z, h * z**2])))


@dataclass(frozen=True, eq=False)
class Regressions:
    """A shift and a slope of the log odds for every group, under each column of weights."""

    rows: Weighted
    members: Grouped

    def take(self, columns: IntArray) -> Regressions:
        """Return the same under some of the columns of weights."""
        return replace(self, rows=self.rows.take(columns))

    def predict(self, theta: FloatArray) -> FloatArray:
        """Return the predictions (n, F) for coefficients (m, 2, F)."""
        m, _, F = theta.shape
        moved = self.members.combined(theta.reshape(m, 2 * F))
        score = moved[:, F:] * self.rows.z[:, None]
        score += moved[:, :F]
        score += self.rows.z[:, None]
        return sigmoid(score)

    def moments(self, values: FloatArray, power: int = 1) -> FloatArray:
        """Return the sums of values (n, F) of all members, and of values times z^power, shape (m, 2, F)."""
        both = np.concatenate([values, values * (self.rows.z**power)[:, None]], axis=1)
        return self.members.moments(both).reshape(-1, 2, values.shape[1])

    def gradient(self, theta: FloatArray) -> FloatArray:
        """Return minus the gradients of the losses, shape (m, 2, F)."""
        return self.moments(self.rows.residuals(self.predict(theta)))


def regress_each(
    groups: Regressions, hessian: FloatArray, penalty: FloatArray, is_open: NDArray[np.bool_], theta: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return coefficients (m, 2, F) near the minimum under each column of weights, from a start, and gradients there.

    `penalty` are the precisions of all coefficients; those that are not open stay where they are.
    """
    paths = Paths(hessian, penalty, is_open)
    enough = 2.0 * ENOUGH * theta[..., 0].size / groups.rows.worth
    theta, left = theta.copy(), groups.gradient(theta) - penalty * theta
    is_moving = np.ones(theta.shape[2], dtype=bool)
    for _ in range(MOST_STEPS):
        step = np.where(is_moving, paths.directions(left), 0.0)
        ahead = np.einsum("msf,msf->f", left, step)
        is_moving &= ahead > enough
        theta += np.where(is_moving, 0.0, step)  # the last step of a column: no gradient follows
        if not is_moving.any():
            break
        step, there = _cut_short(groups, penalty, theta, np.where(is_moving, step, 0.0), ahead * is_moving)
        paths.see(step, left - there)
        theta, left = theta + step, np.where(is_moving, there, left)
    return theta, left


class Paths:
    """The quasi-Newton ascents (`logistic.Path`) under all columns of weights, from the Hessian they have in common."""

    def __init__(self, hessian: FloatArray, penalty: FloatArray, is_open: NDArray[np.bool_]) -> None:
        self.open = is_open.reshape(len(hessian), -1).T
        self.factors = []
        for is_free, prior in zip(self.open, self._taken(penalty), strict=True):
            own = hessian[np.ix_(is_free, is_free)]
            own[np.diag_indices_from(own)] += prior[is_free]
            self.factors.append(Cholesky.of(own))
        self.pairs: list[tuple[FloatArray, FloatArray, FloatArray]] = []

    def _taken(self, values: FloatArray) -> FloatArray:
        """Return values (m, 2, F) as (F, 2m), zeros for coefficients that are shut."""
        return np.where(self.open, values.reshape(-1, len(self.open)).T, 0.0)

    def directions(self, g: FloatArray) -> FloatArray:
        """Return the inverse Hessians times g, shape (m, 2, F), corrected by what earlier steps saw."""
        q, shares = self._taken(g), []
        for s, change, share in reversed(self.pairs):
            shares.append(share * np.einsum("fk,fk->f", s, q))
            q -= shares[-1][:, None] * change
        for one, is_free, factor in zip(q, self.open, self.factors, strict=True):
            one[is_free] = factor.solve(one[is_free])
        for (s, change, share), taken in zip(self.pairs, reversed(shares), strict=True):
            q += (taken - share * np.einsum("fk,fk->f", change, q))[:, None] * s
        return q.T.reshape(g.shape)

    def see(self, step: FloatArray, change: FloatArray) -> None:
        """Remember by how much the gradients fell along steps; columns where they did not fall keep no correction."""
        along, fall = self._taken(step), self._taken(change)
        bend = np.einsum("fk,fk->f", along, fall)
        self.pairs.append((along, fall, np.divide(1.0, bend, out=np.zeros(len(bend)), where=bend > 0.0)))


def _cut_short(
    groups: Regressions, penalty: FloatArray, theta: FloatArray, step: FloatArray, ahead: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return steps, those that go too far cut short, and the gradients after them."""
    while True:
        there = groups.gradient(theta + step) - penalty * (theta + step)
        behind = np.einsum("msf,msf->f", there, step)
        is_far = behind < -0.5 * ahead  # the slope along a step has one root
        if not is_far.any():
            return step, there
        share = np.where(is_far, np.maximum(0.1, ahead / np.where(is_far, ahead - behind, 1.0)), 1.0)
        step, ahead = share * step, share * ahead
