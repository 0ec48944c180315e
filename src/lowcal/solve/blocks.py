"""The block step: weighted least squares of the residual on all features c(x) u(f), and how far to go (spec 4.4).

On the simplex the Gram matrix is G (x) (I - 11'/d), and the moments of a feature sum to zero over the labels, so
theta = G^-1 g label by label. In the mirror geometry each label has its own curvature f_a (1 - f_a).
Few features are solved for at once. Many are solved for block by block (Gauss-Seidel): a block is a code column,
whose groups form runs of disjoint ones with a small Gram matrix for each group, or a chunk of overlapping groups with
a Gram matrix of its own. A subsample of the rows may stand for all of them in G. Chunks estimate
their correlations from fewer rows still, and step only as far as that helps; time is linear in the features.
That is the direction only: the line search that follows uses all rows, so no promise depends on the subsample.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from lowcal.kernels import clipped
from lowcal.kernels.loops import part_of
from lowcal.kernels.products import Cholesky, dot, gram, product
from lowcal.kernels.reference import (
    CACHE,
    CHUNK,
    Codes,
    Cumulative,
    DecodeTable,
    Design,
    Matrix,
    Stacked,
    pieces,
    sample_rows,
    stack,
)
from lowcal.kernels.simplex import SMALLEST, FloatArray, Geometry, IntArray, leading
from lowcal.notions.base import Suprema
from lowcal.notions.moments import Parts, displacement, moments
from lowcal.notions.weights import Cell, CellIds, Evaluated, Weight, evaluate
from lowcal.rows.base import FEW_ROWS, Local, Rows, State
from lowcal.rows.keys import MANY_ROWS
from lowcal.rows.passes import Along, Clipped, Hidden, Moments, Slopes, Tries, curvatures, reach
from lowcal.rows.updates import Term
from lowcal.subpopulations.base import Family, WeakLearner

#: Up to this many features are solved for at once.
FEW_FEATURES = 100
#: Overlapping subpopulations are solved for in chunks of at most this many features.
CHUNK_FEATURES = 250
#: Rows per feature from which several chunks estimate the correlations of their features.
CHUNK_ROWS = 10
#: Beyond this many features, members whose violation is below a fifth of alpha sit out.
MANY_FEATURES = 2000
#: At most this many features of thresholds, which nest, take part in one round.
MAX_FEATURES = 1500
#: At most this many subpopulations bring their own witness into one step (infinite weight classes).
MOST_WITNESSES = FEW_FEATURES
#: Directions along witnesses are found on at most this many rows.
WITNESS_ROWS = MANY_ROWS
#: Gram matrices are accumulated on this many rows, or on ten for each feature if that is more.
GRAM_ROWS = FEW_ROWS
#: Several chunks are swept over this many rows, or over ten for each feature if that is more.
SWEEP_ROWS = 5 * GRAM_ROWS
#: Ridge relative to the diagonal: nested groups make the Gram matrix singular. It must stay far above rounding, as
#: what it leaves over decides what a learner is asked for next.
RIDGE = 1e-6
#: Ridge relative to the largest feature of the same subpopulation. A weight that is below 3e-4 on all of its rows has
#: no violation of note, but would fit their residuals with coefficients that have no bound.
FAINT = 1e-7
#: Numbers that differ by a smaller share than this are equal: two sums of the same numbers differ by rounding.
SLACK = 1e-12
#: Gauss-Seidel ends after this many sweeps, or when the moments left are at most this share of the first ones.
SWEEPS, SWEPT = 10, 0.05
#: Code columns whose groups form runs of disjoint ones at least this long on average are solved for run by run.
LEAST_RUN = 4


@dataclass(frozen=True, eq=False)
class Squares:
    """A least-squares problem on some rows: features c(x) u(f), curvatures h_ik >= 0, and the moments g it must meet.

    `ridge` is relative to the diagonal, `prior` is a precision added to it, of the shape of g; `seed` draws the rows
    from which chunks estimate correlations.
    """

    design: Design
    U: FloatArray
    h: FloatArray
    g: FloatArray
    ridge: float
    seed: int | Sequence[int] = 0
    prior: FloatArray | None = None

    def ridges(self, members: IntArray, diagonal: FloatArray) -> FloatArray:
        """Return the ridge of some members relative to their diagonal, shape (m, S)."""
        lift = _ridges(diagonal, self.ridge)
        if self.prior is None:
            return lift
        prior = self.prior[members, :, 0]
        return lift + np.divide(prior, diagonal, out=np.zeros_like(lift), where=diagonal > SMALLEST)

    def charge(self, members: IntArray, settled: FloatArray) -> FloatArray | float:
        """Return what the prior takes from the moments of some members for the coefficients they have already."""
        return 0.0 if self.prior is None else self.prior[members] * settled[members]


def block_terms(
    rows: Rows,
    state: State,
    learner: WeakLearner,
    weights: tuple[Weight, ...],
    found: Suprema,
    geometry: Geometry,
    seed: Sequence[int],
    alpha: float = 0.0,
) -> tuple[Term, ...]:
    """Return the terms theta c(x) u(f) that solve this round's least-squares problem; without weights, of witnesses."""
    if not weights:
        return _witness_terms(rows.few(seed, WITNESS_ROWS), state, learner, found, geometry, seed)
    few = rows.few(seed, GRAM_ROWS)
    families, chosen = _active(learner, few, found.value, _per_member(weights), alpha)
    g = rows.run(Moments(state, tuple(families), weights)) if found.moments is None else found.moments[chosen]
    some = few
    if rows.scale.n > GRAM_ROWS:
        some = rows.few(seed, _rows_needed(few.design(families), _per_member(weights)))
    p = some.at(state)
    h = _row_curvatures(p, some.weight[:, None], geometry)
    theta = solve_all(some.design(families), evaluate(weights, p), h, g, seed, len(some) < rows.scale.n)
    return split_terms(families, weights, theta)


def _per_member(weights: Sequence[Weight]) -> int:
    """Return how many features one subpopulation brings to one system; cells are solved for one by one."""
    return 1 if isinstance(weights[0], Cell) else len(weights)


def _active(
    learner: WeakLearner, few: Local, value: FloatArray, per_member: int, alpha: float
) -> tuple[list[Family], IntArray]:
    """Return the families to solve for, and the numbers of their members; `few` are any rows.

    All, where these are few. Of many, those whose violation is far below alpha sit out; a later round may need them.
    """
    is_many = len(value) * per_member > MANY_FEATURES
    families, chosen, start = [], [], 0
    for family in learner.families:
        size = len(family.names)
        here = value[start : start + size]
        inside = _representatives(few.design([family]), here, MAX_FEATURES // per_member)
        if is_many:
            inside = inside[here[inside] >= 0.2 * min(alpha, value.max())]
        if len(inside):
            families.append(family if len(inside) == size else family.take(inside))
            chosen.append(start + inside)
        start += size
    return families, np.concatenate(chosen)


def _representatives(design: Design, value: FloatArray, limit: int) -> IntArray:
    """Return all members, but of thresholds at most `limit`: the worst of each run of neighbours.

    Neighbouring thresholds of a feature are almost the same.
    """
    size = len(value)
    is_nested = isinstance(design, Codes) and any(isinstance(decode, Cumulative) for decode in design.decode)
    if size <= limit or not is_nested:
        return np.arange(size)
    edges = np.linspace(0, size, limit + 1).astype(np.intp)
    return np.array([a + leading(value[a:b]) for a, b in itertools.pairwise(edges)])


def _row_curvatures(p: FloatArray, weight: FloatArray, geometry: Geometry) -> FloatArray:
    """Return the weighted curvatures of the potential: 1 for all, or f (1 - f) by coordinate in the mirror geometry."""
    return weight if geometry == "euclidean" else curvatures(p, weight)


def _rows_needed(design: Design, per_member: int) -> int:
    """Return how many rows may stand for all."""
    n_overlapping = sum(len(members) for members, column in _sorted(design, per_member)[1] if isinstance(column, Codes))
    least = SWEEP_ROWS if n_overlapping * per_member > CHUNK_FEATURES else GRAM_ROWS
    return max(least, 10 * design.shape[1] * per_member)


def _ridge(n_features: int, n_rows: int, is_sample: bool) -> float:
    """Return the ridge that the noise of a sampled Gram matrix needs: features / rows."""
    return max(RIDGE, n_features / n_rows) if is_sample else RIDGE


def solve_all(
    design: Design,
    U: Evaluated,
    h: FloatArray,
    g: FloatArray,
    seed: int | Sequence[int],
    is_sample: bool,
    prior: FloatArray | None = None,
) -> FloatArray:
    """Return theta of shape (m, S, d) for the weights U; cells, which do not overlap, are solved for one by one."""
    if not isinstance(U, CellIds):
        return solve(Squares(design, U, h, g, _ridge(g.shape[0] * g.shape[1], len(U), is_sample), seed, prior))
    theta = np.zeros_like(g)
    order = np.argsort(U.ids, kind="stable")
    cells = np.split(order, np.searchsorted(U.ids[order], np.arange(1, U.n_cells + 1)))[: U.n_cells]
    for s, inside in enumerate(cells):
        if len(inside):
            ridge = _ridge(len(g), len(inside), is_sample)
            own = None if prior is None else prior[:, [s]]
            here = Squares(design.rows(inside), np.ones((len(inside), 1)), h[inside], g[:, [s]], ridge, seed, own)
            theta[:, [s]] = solve(here)
    return theta


def solve(problem: Squares) -> FloatArray:
    """Return theta with (G_a + ridge) theta_a = g_a for every label a, shape (m, S, d)."""
    if problem.h.shape[1] == 1:
        return _sweep(problem)
    solved = []
    for a in range(problem.g.shape[2]):
        prior = None if problem.prior is None else problem.prior[:, :, [a]]
        solved.append(_sweep(replace(problem, h=problem.h[:, [a]], g=problem.g[:, :, [a]], prior=prior)))
    return np.concatenate(solved, axis=2)


def _ridges(diagonal: FloatArray, ridge: float) -> FloatArray:
    """Return the ridge of every feature relative to its own diagonal, for diagonals of shape (m, S).

    >>> _ridges(np.array([[1.0, 0.5, 1e-7, 0.0]]), 0.1).round(5)
    array([[0.1, 0.1, 1.1, 0.1]])
    """
    most = diagonal.max(axis=1, keepdims=True)
    share = np.divide(most, diagonal, out=np.zeros_like(diagonal), where=diagonal > SMALLEST)
    return np.asarray(ridge + FAINT * share)


def ridge_solve(G: FloatArray, g: FloatArray, ridge: float | FloatArray) -> FloatArray:
    """Return (G + ridge diag(G))^-1 g after scaling to unit diagonal, for g of shape (F, d) and one or F ridges.

    Features that are zero everywhere get 0, and so do copies of a feature before them.

    >>> ridge_solve(np.array([[2.0, 2.0], [2.0, 2.0]]), np.array([[1.0], [1.0]]), 1e-6).ravel().round(4)
    array([0.5, 0. ])
    """
    return Ridged.of(G, ridge).solve(g)


@dataclass(frozen=True, eq=False)
class Ridged:
    """A factored Gram matrix with a ridge: which features are live, their scale, and the factor of what is left."""

    live: IntArray
    scale: FloatArray
    factor: Cholesky

    @classmethod
    def of(cls, G: FloatArray, ridge: float | FloatArray) -> Ridged:
        """Factor G + ridge diag(G), with a larger ridge where it is not positive definite."""
        diagonal = np.diag(G)
        scale = np.where(diagonal > SMALLEST, diagonal, np.inf) ** -0.5
        unit = G * scale[:, None] * scale
        first, second = np.nonzero(unit > 1.0 - SLACK)
        is_live = scale > 0.0
        is_live[second[first < second]] = False
        live = np.flatnonzero(is_live)
        unit, lift = unit.take(live, 0).take(live, 1), np.full(len(G), ridge)[live]
        while True:
            try:
                return cls(live, scale[live, None], Cholesky.of(unit + np.diag(lift)))
            except np.linalg.LinAlgError:
                lift = 100.0 * lift

    def solve(self, g: FloatArray) -> FloatArray:
        """Return the coefficients for g of shape (F, d)."""
        theta = np.zeros_like(g)
        theta[self.live] = self.scale * self.factor.solve(self.scale * g[self.live])
        return theta


# --- Gauss-Seidel ---------------------------------------------------------------------------------------------


class CodeColumn:
    """The groups of one code column: run by run of disjoint ones, least squares for each group alone.

    Whatever these groups add is a function of the code, so all runs together need one pass over the rows.
    """

    def __init__(self, members: IntArray, codes: IntArray, tables: Sequence[sparse.csc_array]) -> None:
        self.members, self.codes, self.tables = members, codes, tables
        self.by_group = [table.T.tocsr() for table in tables]
        self.is_exact = len(tables) == 1
        self.levels = int(tables[0].shape[0])
        self.sums: FloatArray | None = None
        self.grams: list[FloatArray] = []

    def step(self, problem: Squares, settled: FloatArray, moved: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what the settled coefficients leave of the moments, and those for it; moves `moved`."""
        parts = Parts(self.codes, self.levels)
        if self.sums is None:
            self.sums = parts.squares(np.sqrt(problem.h) * problem.U)
            self.grams = [_gather(table.power(2), self.sums) for table in self.by_group]
        seen = parts.products(problem.U, problem.h * moved) if moved.any() else 0.0
        left, theta, total = [], [], np.zeros((self.levels, *problem.g.shape[1:]))
        stops = np.cumsum([table.shape[1] for table in self.tables])[:-1]
        runs = zip(np.split(self.members, stops), self.grams, self.tables, self.by_group, strict=True)
        for run, own, table, by_group in runs:
            g = problem.g[run]
            left.append(g - _gather(by_group, seen + product(self.sums, total)) - problem.charge(run, settled))
            theta.append(_solve_parts(own, left[-1], problem.ridges(run, np.diagonal(own, axis1=1, axis2=2))))
            total += product(table, theta[-1].reshape(len(g), -1)).reshape(total.shape)
        moved += parts.combine(problem.U, total)
        return np.concatenate(left), np.concatenate(theta)


def _gather(by_group: sparse.csr_array, sums: FloatArray) -> FloatArray:
    """Return the sums of levels added up to those of groups."""
    _, S, d = sums.shape
    return product(by_group, sums.reshape(-1, S * d)).reshape(-1, S, d)


class OverlappingGroups:
    """Overlapping subpopulations: one Gram matrix for all of them.

    Where there are several chunks, each is solved for again and again, and correlations from few rows will do: it is
    not exact then, but its diagonal is, and a step that goes too far is cut short: none makes the squares larger.
    """

    def __init__(self, members: IntArray, design: Design, is_exact: bool) -> None:
        self.members, self.design, self.is_exact = members, design, is_exact
        self.ridged: Ridged | None = None

    def step(self, problem: Squares, settled: FloatArray, moved: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what the settled coefficients leave of the moments, and those for it; moves `moved`."""
        seen = moments(self.design, problem.U, problem.h * moved) if moved.any() else 0.0
        left = problem.g[self.members] - seen - problem.charge(self.members, settled)
        theta = self.solve(problem, left)
        delta = displacement(self.design, problem.U, theta)
        if not self.is_exact:
            # for every label the part of the step, at most all, that leaves the least squares: beyond the whole step,
            # the ridge's cure of one direction would overshoot in the others
            gain = np.einsum("msa,msa->a", left, theta)
            cost = np.einsum("nk,na,na->a", problem.h, delta, delta)
            part = np.minimum(np.divide(gain, cost, out=np.zeros_like(gain), where=cost > 0.0), 1.0)
            theta, delta = part * theta, part * delta
        moved += delta
        return left, theta

    def solve(self, problem: Squares, left: FloatArray) -> FloatArray:
        """Return the coefficients for what is left of the moments."""
        if self.ridged is None:
            gram = self._gram(problem)
            ridges = problem.ridges(self.members, np.diag(gram).reshape(len(self.members), -1))
            self.ridged = Ridged.of(gram, ridges.ravel())
        m, S, d = left.shape
        return self.ridged.solve(left.reshape(m * S, d)).reshape(m, S, d)

    def _gram(self, problem: Squares) -> FloatArray:
        U, h, size = problem.U, problem.h, len(self.members) * problem.U.shape[1]
        # a pass that reads codes is fast beside a Gram matrix
        least = CHUNK_ROWS * size if isinstance(self.design, Codes) else GRAM_ROWS
        rows = None if self.is_exact else sample_rows(len(U), problem.seed, least)
        if rows is None:
            return _gram(self.design, U, h)
        diagonal = moments(self.design.power(2), U * U, h).ravel()
        return _with_diagonal(_gram(self.design.rows(rows), U[rows], h[rows]), diagonal, size / len(rows))


def _with_diagonal(G: FloatArray, diagonal: FloatArray, ridge: float) -> FloatArray:
    """Return the Gram matrix with the correlations of G and this diagonal, and with a ridge on it.

    >>> _with_diagonal(np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]), np.array([4.0, 1.0, 9.0]), 0.5)
    array([[ 6. ,  1. ,  0. ],
           [ 1. ,  1.5,  0. ],
           [ 0. ,  0. , 13.5]])
    """
    here = np.diag(G)
    scale = np.sqrt(np.divide(diagonal, here, out=np.zeros_like(here), where=here > SMALLEST))
    scaled = G * scale[:, None] * scale
    np.fill_diagonal(scaled, (1.0 + ridge) * diagonal)
    return scaled


def _sweep(problem: Squares) -> FloatArray:
    """Return theta by Gauss-Seidel: block by block, the least squares of what the blocks before have left over.

    Cost of a sweep: one pass over the rows for each block. Duplicates and nested subpopulations do no harm.
    """
    blocks = _blocks(problem.design, problem.U.shape[1])
    if len(blocks) == 1 and isinstance(blocks[0], OverlappingGroups):
        return blocks[0].solve(problem, problem.g)
    theta, moved = np.zeros_like(problem.g), np.zeros((len(problem.U), problem.g.shape[2]))
    with part_of(1, len(blocks)):
        for _ in range(1 if len(blocks) == 1 and blocks[0].is_exact else SWEEPS):
            rest = 0.0
            for block in blocks:
                left, step = block.step(problem, theta, moved)
                theta[block.members] += step
                rest = max(rest, float(np.abs(left).max()))
            if rest <= SWEPT * np.abs(problem.g).max():
                break
    return theta


def _gram(design: Design, U: FloatArray, h: FloatArray) -> FloatArray:
    """Return the Gram matrix of the features c(x) u(f), members major."""
    m, S = design.shape[1], U.shape[1]
    total = np.zeros((S * m, S * m))
    root = np.sqrt(h) * U
    for part in pieces(len(root), S * m * (CHUNK // CACHE)):  # a piece is made and used in cache
        C = design.rows(part).dense()
        # the members of a weight stand together, so that loops are long
        A = np.multiply(C[:, None, :], root[part][:, :, None], order="C").reshape(len(C), S * m)
        total += gram(A)
    return total.reshape(S, m, S, m).transpose(1, 0, 3, 2).reshape(S * m, S * m)


def _solve_parts(G: FloatArray, g: FloatArray, ridges: FloatArray) -> FloatArray:
    """Return (G_c + ridge diag(G_c))^-1 g_c for every subpopulation c, shapes (m, S, S), (m, S, d) and (m, S)."""
    diagonal = np.diagonal(G, axis1=1, axis2=2)
    live = diagonal > SMALLEST
    scale = np.where(live, 1.0 / np.sqrt(np.where(live, diagonal, 1.0)), 0.0)[:, :, None]
    lift = np.where(live, ridges, 1.0)
    unit = G * scale * scale.transpose(0, 2, 1) + np.eye(G.shape[1]) * lift[:, :, None]
    return np.asarray(scale * np.linalg.solve(unit, scale * g))


def _blocks(design: Design, per_member: int) -> list[CodeColumn | OverlappingGroups]:
    """Return the blocks of a design: all at once if these are few, columns of long runs, chunks of the rest."""
    m = design.shape[1]
    if m * per_member <= FEW_FEATURES:
        return [OverlappingGroups(np.arange(m), design, is_exact=True)]
    columns, rest = _sorted(design, per_member)
    chunks = list(_chunks(rest, max(1, CHUNK_FEATURES // per_member)))
    return [*columns, *(OverlappingGroups(members, some, is_exact=len(chunks) == 1) for members, some in chunks)]


def _sorted(design: Design, per_member: int) -> tuple[list[CodeColumn], list[tuple[IntArray, Design]]]:
    """Return the code columns of long runs, and the members of the others."""
    columns, rest, start = [], [], 0
    for column in design.columns():
        members = start + np.arange(column.shape[1])
        start += len(members)
        found = _runs(column, members, per_member)
        if found is None:
            rest.append((members, column))
        else:
            columns.append(found)
    return columns, rest


def _chunks(columns: Sequence[tuple[IntArray, Design]], room: int) -> Iterator[tuple[IntArray, Design]]:
    """Yield members and their designs, joined and split such that each has at most `room`."""
    held: list[tuple[IntArray, Design]] = []
    for members, column in columns:
        for some in np.array_split(np.arange(len(members)), -(-len(members) // room)):
            if sum(len(taken) for taken, _ in held) + len(some) > room:
                yield _join(held)
                held = []
            held.append((members[some], take_columns(column, some)))
    if held:
        yield _join(held)


def _join(columns: Sequence[tuple[IntArray, Design]]) -> tuple[IntArray, Design]:
    together = Stacked(tuple(design for _, design in columns)).joined()
    return np.concatenate([members for members, _ in columns]), stack(together)


def take_columns(design: Design, members: IntArray) -> Design:
    """Return some members of a code column or a matrix."""
    if len(members) == design.shape[1]:
        return design
    if isinstance(design, Codes):
        return Codes(design.codes, (design.decode[0].take(members),))
    if isinstance(design, Matrix) and not design.is_small:
        return Matrix(design.matrix[:, members])
    return Matrix(np.column_stack([design.column(int(j)) for j in members]))


def _runs(design: Design, members: IntArray, per_member: int) -> CodeColumn | None:
    """Return a code column as runs of disjoint groups; None where they are short: the groups overlap too much."""
    if not isinstance(design, Codes) or not isinstance(design.decode[0], DecodeTable):
        return None
    codes, table = design.codes[0], design.decode[0]
    if table.shape[0] > len(codes):
        occupied, codes = np.unique(codes, return_inverse=True)
        table = DecodeTable(table.matrix[occupied])
    starts, matrix = np.flatnonzero(np.diff(table.runs, prepend=0)).tolist(), table.matrix.tocsc()
    # with more than 50 weights (many classes), every subpopulation is large enough a system of its own
    is_long = len(members) == 1 or len(members) >= LEAST_RUN * len(starts) or per_member > 50
    if not is_long or matrix.shape[0] * per_member**2 > 1 << 24:  # more sums than memory should hold
        return None
    stops = [*starts[1:], len(members)]
    return CodeColumn(members, codes, [matrix[:, a:b] for a, b in zip(starts, stops, strict=True)])


# --- infinite weight classes ----------------------------------------------------------------------------------


def _witness_terms(
    rows: Local, state: State, learner: WeakLearner, found: Suprema, geometry: Geometry, seed: Sequence[int]
) -> tuple[Term, ...]:
    """Return terms for an infinite weight class: each violated subpopulation brings its own witness."""
    p, worst = rows.at(state), np.argsort(-found.value, kind="stable")[:MOST_WITNESSES]
    design = rows.design(learner.families)
    chosen = [(int(j), found.witness(int(j)).weights) for j in worst if found.value[j] > 0]
    columns = [_feature(design.column(j), weights, p) for j, weights in chosen]
    A, h = np.concatenate(columns, axis=1), _row_curvatures(p, rows.weight[:, None], geometry)
    g = product(A.T, rows.weight[:, None] * (rows.y - p))[:, None, :]
    which = sample_rows(len(p), seed, max(GRAM_ROWS, 10 * A.shape[1]))
    if which is not None:
        A, h = A[which], h[which] * (len(h) / len(which))
    one = np.ones((len(A), 1))
    theta = solve(Squares(Matrix(A), one, h, g, _ridge(len(g), len(A), which is not None), seed))[:, 0]
    stops = np.cumsum([len(weights) for _, weights in chosen])[:-1]
    parts = np.split(theta, stops)
    return tuple(Term(learner.member(j), weights, part[None]) for (j, weights), part in zip(chosen, parts, strict=True))


def _feature(c: FloatArray, weights: Sequence[Weight], p: FloatArray) -> FloatArray:
    """Return c(x) u(f) for every weight, which is evaluated on members alone; 0 for faint ones."""
    A, members = np.zeros((len(p), len(weights))), np.flatnonzero(c)
    for s, u in enumerate(weights):
        A[members, s] = c[members] * u(p[members])
    A[:, np.square(A).sum(axis=0) <= FAINT * dot(c, c)] = 0.0
    return A


def split_terms(families: Sequence[Family], weights: tuple[Weight, ...], theta: FloatArray) -> tuple[Term, ...]:
    """Return one term for each family from the coefficients of all members."""
    stops = itertools.accumulate(len(family.names) for family in families)
    return tuple(Term(f, weights, theta[stop - len(f.names) : stop]) for f, stop in zip(families, stops, strict=True))


# --- step sizes -----------------------------------------------------------------------------------------------

#: Steps -> the slopes of a convex loss there.
SlopesAt = Callable[[tuple[float, ...]], FloatArray]


def line_search(rows: Rows, state: State, terms: tuple[Term, ...], geometry: Geometry) -> float:
    """Return a step that loses no more than the Newton step: exact for scalars, the best of a few on the simplex.

    Any step whose loss is at most that of the Newton step eta* = g / B keeps the iteration bound:
    phi(f) - phi(f_new) >= g^2 / B. In the scalar Euclidean case the best step of all is found exactly; in log space the
    loss is convex, and the step at which its slope is 0 is found between a few steps, twice.
    """
    ahead = rows.run(Along(state, terms, geometry))
    if ahead.newton == 0.0:
        return 0.0
    if geometry == "mirror":
        sign, newton_step = float(np.sign(ahead.newton)), abs(ahead.newton)

        def slopes(steps: tuple[float, ...]) -> FloatArray:
            signed = tuple(sign * eta for eta in steps)
            return sign * rows.run(Slopes(state, state, terms, signed, ahead.most))

        # before the Newton step the loss falls, and a separable direction has no minimum
        return sign * root_between(slopes, [newton_step * multiple for multiple in (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)])
    if rows.d == 1:
        return float(np.sign(ahead.slope)) * _clipped_step(rows, Clipped(state, terms, ahead))
    tries = tuple(ahead.newton * multiple for multiple in (1.0, 2.0, 0.5, 4.0, 8.0))
    return tries[int(np.argmin(rows.run(Tries(state, terms, tries))))]


def _clipped_step(rows: Rows, along: Clipped) -> float:
    """Return the global minimiser over eta >= 0 of E(y - clip(f + eta delta, 0, 1))^2."""
    if rows.scale.n < clipped.BINNED_FROM:
        return clipped.sorted_step(rows.run(Hidden(along, None))[0])
    return clipped.binned_step(rows.run(along), lambda hidden: rows.run(Hidden(along, hidden)))


def root_between(slopes: SlopesAt, steps: Sequence[float]) -> float:
    """Return where slopes that grow cross 0 between the first step and the last; the last if they do not.

    >>> round(root_between(lambda at: np.array(at) ** 2 - 2.0, [0.0, 1.0, 4.0]), 2)
    1.41
    """
    values = slopes(tuple(steps))
    low, high = _around(values)
    if low is None or high is None:
        return float(steps[-1] if high is None else steps[0])
    between = np.linspace(steps[low], steps[high], 9)
    values = np.concatenate([[values[low]], slopes(tuple(between[1:-1].tolist())), [values[high]]])
    low, high = _around(values)
    if low is None or high is None:
        return float(between[-1])
    share = values[low] / (values[low] - values[high])
    return float(between[low] + share * (between[high] - between[low]))


def _around(values: FloatArray) -> tuple[int | None, int | None]:
    """Return the places of the last slope before 0 is crossed and of the first after it; None: there is none."""
    above = values > 0.0
    if not above.any():
        return len(values) - 1, None
    first = int(above.argmax())
    return (first - 1 if first else None), first


def shrunk_step(rows: Rows, base: State, now: State, terms: tuple[Term, ...], price: float) -> float:
    """Return the step of `step_along` along a shrunk Newton step; the penalised loss is log loss + step^2 price / 2."""
    most = reach(terms)

    def slopes(steps: tuple[float, ...]) -> FloatArray:
        return rows.run(Slopes(base, now, terms, steps, most)) + np.array(steps) * price

    return step_along(slopes)


def step_along(slopes: SlopesAt) -> float:
    """Return a step in (0, 1] from the slopes of a penalised loss in log space; 0 if it rises from the start.

    The whole step is taken unless its slope there has grown to half of what it was at the start, against it: then the
    step ends where the slope is 0.

    >>> step_along(lambda at: np.array(at) - 2.0), step_along(lambda at: 1.0 - np.array(at))
    (1.0, 0.0)
    """
    start, end = slopes((0.0, 1.0))
    if not start < 0.0:
        return 0.0
    return 1.0 if end <= -0.5 * start else root_between(slopes, [0.0, 0.5, 1.0])
