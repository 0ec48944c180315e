"""The block step at scale: a subsample of rows, or only some of the subpopulations, never break its promises."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import lowcal
from lowcal.datasets import make_miscalibrated
from lowcal.kernels.reference import Codes, Cumulative, DecodeTable, Matrix, Stacked
from lowcal.notions.moments import displacement, moments
from lowcal.notions.weights import CellIds, Knots, Monomial
from lowcal.rows import START, Memory, base
from lowcal.solve import blocks
from lowcal.solve.blocks import ridge_solve
from lowcal.solve.solvers import Problem
from worlds import multicalibrate


@pytest.fixture(scope="module")
def data():
    return make_miscalibrated(3000, n_columns=4, n_levels=4, random_state=3)


def rows_of(learner):
    """Return all rows of a learner, with any predictions and outcomes."""
    p = np.full((len(learner.weight), 1), 0.5)
    return Memory.of(learner.rows, p, p, learner.weight).sample(None)


def losses(fit, geometry):
    return [r.brier if geometry == "euclidean" else r.log_loss for r in fit.history]


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("notion", ["multiaccuracy", "degree-2", "smooth", "full-0.1"])
def test_a_gram_matrix_of_few_rows_still_reaches_alpha_and_lowers_the_loss(data, monkeypatch, notion, geometry):
    monkeypatch.setattr(blocks, "GRAM_ROWS", 60)
    options = {"notion": notion, "geometry": geometry, "guard": False}
    fit = multicalibrate(data.y, data.p, data.X, alpha=0.01, random_state=0, **options)
    assert fit.status == "reached"
    assert fit.n_updates <= fit.bound
    assert np.all(np.diff(losses(fit, geometry)) <= 1e-12)


def test_a_subsample_is_drawn_and_its_seed_decides(data, monkeypatch):
    options = {"notion": "multiaccuracy", "alpha": 0.005, "geometry": "euclidean"}
    every = multicalibrate(data.y, data.p, data.X, random_state=0, **options).predictor(data.p, data.X)
    monkeypatch.setattr(blocks, "GRAM_ROWS", 300)
    some, again, other = (
        multicalibrate(data.y, data.p, data.X, random_state=seed, **options).predictor(data.p, data.X)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(some, again)
    assert not np.array_equal(some, other)
    assert not np.array_equal(some, every)


def test_of_thresholds_only_some_take_part_in_a_round(data, monkeypatch):
    monkeypatch.setattr(blocks, "MAX_FEATURES", 12)
    X = {"p": data.p}
    options = {"subpopulations": lowcal.Thresholds(), "alpha": 0.01, "geometry": "euclidean"}
    fit = multicalibrate(data.y, data.p, X, **options)
    assert fit.status == "reached"
    sizes = [len(term.family.names) for update in fit.predictor.updates for term in update.terms]
    assert max(sizes) == 6
    calibrated = fit.predictor(data.p, X)
    assert lowcal.measure(data.y, calibrated, X, subpopulations=lowcal.Thresholds()).largest <= 0.01


def test_of_thresholds_the_worst_of_neighbours_takes_part(monkeypatch):
    learner = lowcal.Thresholds(min_mass=0).prepare({"t": np.arange(20.0)})
    value = np.random.default_rng(0).random(len(learner.names))
    monkeypatch.setattr(blocks, "MAX_FEATURES", 10)
    families, chosen = blocks._active(learner, rows_of(learner), value, 2, 0.1)
    assert [name for family in families for name in family.names] == [learner.names[j] for j in chosen]
    assert int(value.argmax()) in chosen
    start = len(value) - len(learner.families[-1].names)
    nested = [j for j in chosen if j >= start]
    assert len(nested) == 5
    for run, j in zip(np.array_split(np.arange(start, len(value)), 5), nested, strict=True):
        assert run[0] - 1 <= j <= run[-1] + 1


def test_of_many_subpopulations_those_far_below_alpha_sit_out(data, monkeypatch):
    learner = lowcal.Groups().prepare(data.X)
    value = np.random.default_rng(0).random(len(learner.names))
    some = rows_of(learner)
    assert np.array_equal(blocks._active(learner, some, value, 2, 0.4)[1], np.arange(len(value)))
    monkeypatch.setattr(blocks, "MANY_FEATURES", 10)
    families, chosen = blocks._active(learner, some, value, 2, 0.4)
    assert np.array_equal(chosen, np.flatnonzero(value >= 0.08))
    assert 0 < len(chosen) < len(value)
    assert [name for family in families for name in family.names] == [learner.names[j] for j in chosen]
    assert int(value.argmax()) in blocks._active(learner, some, value, 2, 100.0)[1]
    fit = multicalibrate(data.y, data.p, data.X, alpha=0.02, geometry="euclidean")
    assert fit.status == "reached"
    assert sum(len(term.family.names) for term in fit.predictor.updates[0].terms) < len(value)
    assert lowcal.measure(data.y, fit.predictor(data.p, data.X), data.X).largest <= 0.02


def test_only_some_witnesses_take_part_in_a_round(data, monkeypatch):
    monkeypatch.setattr(blocks, "MOST_WITNESSES", 3)
    fit = multicalibrate(data.y, data.p, data.X, notion="smooth", alpha=0.01, geometry="euclidean")
    assert fit.status == "reached"
    assert max(len(update.terms) for update in fit.predictor.updates) == 3
    assert lowcal.measure(data.y, fit.predictor(data.p, data.X), data.X, notion="smooth").largest <= 0.01


# ------------------------------------------------------------------------------------------------- least squares
def test_ridge_solve_is_least_squares_and_survives_copies_and_empty_features():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(50, 3))
    A = np.column_stack([A, 2 * A[:, 0], np.zeros(50), A[:, 1] + A[:, 2]])
    y = rng.normal(size=(50, 2))
    theta = ridge_solve(A.T @ A, A.T @ y, 1e-9)
    np.testing.assert_allclose(A.T @ (A @ theta), A.T @ y, atol=1e-6)
    assert (theta[[3, 4]] == 0.0).all()
    alone = ridge_solve(A[:, :3].T @ A[:, :3], A[:, :3].T @ y, 1e-3)
    copied = ridge_solve(A[:, :5].T @ A[:, :5], A[:, :5].T @ y, 1e-3)
    np.testing.assert_allclose(copied[:3], alone, rtol=1e-12)


def test_the_ridge_of_a_sample_is_features_by_rows():
    assert blocks._ridge(50, 200, is_sample=True) == 0.25
    assert blocks._ridge(50, 200, is_sample=False) == blocks.RIDGE
    assert blocks._ridge(1, 10**9, is_sample=True) == blocks.RIDGE


@pytest.mark.parametrize("n_cells", [1, 4])
def test_what_a_sample_of_rows_says_is_shrunk_by_its_ridge(n_cells):
    """Disjoint groups and cells: every coefficient is g / (h + ridge h), the ridge groups by rows of the cell."""
    n, m, rng = 240, 3, np.random.default_rng(0)
    C = np.eye(m)[np.arange(n) % m]
    ids = np.arange(n) // m % n_cells
    h, g = np.full((n, 1), 1.0 / n), rng.standard_normal((m, n_cells, 1))
    U = np.ones((n, 1)) if n_cells == 1 else CellIds(ids, n_cells)
    whole, some = (blocks.solve_all(Matrix(C), U, h, g, 0, is_sample) for is_sample in (False, True))
    exact = g * m * n_cells
    np.testing.assert_allclose(whole, exact / (1 + blocks.RIDGE), rtol=1e-6)
    np.testing.assert_allclose(some, exact / (1 + m / (n / n_cells)), rtol=1e-6)


def test_the_ridge_of_a_sample_counts_every_weight_of_every_group():
    n, m = 240, 3
    U = np.column_stack([np.ones(n), np.where(np.arange(n) // m % 2, 1.0, -1.0)])  # orthogonal within each group
    g = np.random.default_rng(0).standard_normal((m, 2, 1))
    found = blocks.solve_all(Matrix(np.eye(m)[np.arange(n) % m]), U, np.full((n, 1), 1.0 / n), g, 0, True)
    np.testing.assert_allclose(found, g * m / (1 + 2 * m / n), rtol=1e-6)


def test_witnesses_of_a_sample_of_rows_are_shrunk_by_its_ridge(data, monkeypatch):
    """Smooth weights of everyone: one feature, and 100 of 3000 rows, each of which stands for 30."""
    seen = []
    solve = blocks.solve
    monkeypatch.setattr(blocks, "solve", lambda problem: seen.append(problem) or solve(problem))
    monkeypatch.setattr(blocks, "GRAM_ROWS", 100)
    options = {"notion": "smooth", "max_updates": 1, "geometry": "euclidean", "guard": False}
    multicalibrate(data.y, data.p, alpha=1e-3, **options)
    assert {(len(problem.g), len(problem.U), problem.ridge) for problem in seen} == {(1, 100, 0.01)}
    assert seen[0].h.sum() == pytest.approx(1.0)


def test_ridge_solve_shrinks_in_proportion_to_the_diagonal():
    G, g = np.diag([4.0, 100.0]), np.array([[8.0], [50.0]])
    np.testing.assert_allclose(ridge_solve(G, g, 0.25), [[1.6], [0.4]], rtol=1e-12)


def test_ridge_solve_raises_the_ridge_until_the_matrix_is_definite():
    indefinite = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
    assert np.linalg.eigvalsh(indefinite).min() < -0.5
    assert np.isfinite(ridge_solve(indefinite, np.ones((3, 1)), 1e-9)).all()


@pytest.mark.parametrize("faint", [1e-3, 1e-5, 1e-9, 1e-14])
@pytest.mark.parametrize("levels", [2, 200])
def test_faint_weights_get_no_large_coefficients(faint, levels):
    """A weight that is nearly zero on all rows of a group could fit any residual, with a coefficient without bound."""
    rng = np.random.default_rng(0)
    n = 400
    codes = rng.integers(0, levels, n)
    U = np.column_stack([np.ones(n), np.where(codes == 0, faint, 1.0) * rng.random(n)])
    problem = blocks.Squares(Codes((codes,), (table(np.eye(levels)),)), U, np.full((n, 1), 1 / n), None, 1e-6)
    g = moments(problem.design, U, rng.choice([-1.0, 1.0], (n, 1)) / n)
    theta = blocks.solve(replace(problem, g=g))
    assert np.abs(theta).max() < 1e4


def test_faint_witnesses_get_no_coefficients():
    c, p = np.array([0.0, 1.0, 1.0]), np.array([[0.2], [0.4], [1e-9]])
    A = blocks._feature(c, (Monomial(), Knots(0, np.array([0.0]), np.array([1e-5]))), p)
    np.testing.assert_array_equal(A, [[0, 0], [1, 0], [1, 0]])
    assert blocks.ridge_solve(np.zeros((2, 2)), np.ones((2, 1)), 1e-6).tolist() == [[0.0], [0.0]]


CLASSES = {
    "groups": lambda rng, n: Codes((rng.integers(0, 6, n),), (table(np.eye(6)),)),
    "nested": lambda rng, n: Codes((rng.integers(0, 6, n),), (table(np.c_[np.ones(6), np.eye(6), np.eye(6)[:, :2]]),)),
    "shares": lambda rng, n: Codes((rng.integers(0, 6, n),), (table(np.diag([1, 0.5, 0.2, 1, 0.7, 0.1])),)),
    "overlap": lambda rng, n: Codes((rng.integers(0, 6, n),), (table(np.tri(6)),)),
    "columns": lambda rng, n: Codes(
        (rng.integers(0, 5, n), rng.integers(0, 4, n)), (table(np.eye(5)), table(np.eye(4)))
    ),
    "thresholds": lambda rng, n: Codes((rng.integers(1, 7, n),), (Cumulative.every(7),)),
    "matrix": lambda rng, n: Matrix(rng.random((n, 5))),
    "sparse": lambda rng, n: Matrix(sparse.csr_array(rng.random((n, 5)) * (rng.random((n, 5)) < 0.4))),
    "stacked": lambda rng, n: Stacked(
        (Matrix(rng.random((n, 2))), Codes((rng.integers(0, 6, n),), (table(np.eye(6)),)))
    ),
}


def table(decode):
    return DecodeTable(sparse.csr_array(decode))


@pytest.mark.parametrize("curvatures", [1, 2])
@pytest.mark.parametrize("many", [1, 50])
@pytest.mark.parametrize("kind", CLASSES)
def test_sweeps_converge_to_least_squares(kind, many, curvatures, monkeypatch):
    """What is solved for block by block predicts what least squares on all features at once predicts."""
    rng = np.random.default_rng(0)
    n, S, d = 80, 2, 2
    design, U, y = CLASSES[kind](rng, n), rng.random((n, S)), rng.normal(size=(n, d))
    h = rng.random((n, curvatures)) + 0.1
    features = (design.dense()[:, :, None] * U[:, None, :]).reshape(n, -1)
    g = (features.T @ (h * y)).reshape(-1, S, d)
    monkeypatch.setattr(blocks, "FEW_FEATURES", 1)
    monkeypatch.setattr(blocks, "CHUNK_FEATURES", 4)
    monkeypatch.setattr(blocks, "LEAST_RUN", many)
    monkeypatch.setattr(blocks, "SWEEPS", 4000)
    monkeypatch.setattr(blocks, "SWEPT", 1e-9)
    theta = blocks.solve(blocks.Squares(design, U, h, g, 1e-12))
    assert theta.shape == g.shape
    for a in range(d):
        root = np.sqrt(h[:, min(a, curvatures - 1)])
        best = np.linalg.lstsq(root[:, None] * features, root * y[:, a])[0]
        np.testing.assert_allclose(features @ theta.reshape(-1, d)[:, a], features @ best, atol=1e-5)


def test_few_sweeps_leave_little(monkeypatch):
    """The moments that are left after the sweeps are a small share of those before."""
    rng = np.random.default_rng(1)
    n = 4000
    design = Codes(tuple(rng.integers(0, 10, n) for _ in range(8)), (table(np.eye(10)),) * 8)
    U, y, h = rng.random((n, 2)), rng.normal(size=(n, 1)) + 1.0, np.full((n, 1), 1 / n)
    g = moments(design, U, h * y)
    theta = blocks.solve(blocks.Squares(design, U, h, g, 1e-6))
    left = g - moments(design, U, h * displacement(design, U, theta))
    assert np.abs(left).max() <= 0.05 * np.abs(g).max()


def test_blocks_are_every_member_once():
    rng = np.random.default_rng(0)
    for make in CLASSES.values():
        for few in (1, 100):
            design = make(rng, 30)
            found = list(blocks._blocks(design, few))
            assert sorted(np.concatenate([block.members for block in found]).tolist()) == list(range(design.shape[1]))
            if few == 100:
                assert all(len(block.members) <= 4 or isinstance(block, blocks.CodeColumn) for block in found)


def test_the_gram_matrix_is_that_of_the_features(monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(blocks, "CACHE", 1 << 6)  # many pieces
    for make in CLASSES.values():
        design, U, h = make(rng, 50), rng.normal(size=(50, 3)), rng.random((50, 1))
        features = (design.dense()[:, :, None] * U[:, None, :]).reshape(50, -1)
        np.testing.assert_allclose(blocks._gram(design, U, h), (h * features).T @ features, atol=1e-12)


def overlapping(n, masses, seed=0):
    """Packed 0/1 memberships with these masses, some features and residuals that need them."""
    rng = np.random.default_rng(seed)
    bits = (rng.random((n, len(masses))) < masses).astype(np.uint8)
    design = lowcal.Memberships(everyone=False, min_mass=0).prepare(bits).design()
    U, h = np.column_stack([np.ones(n), rng.random(n)]), np.full((n, 1), 1 / n)
    return bits, design, U, h, rng.normal(size=(n, 1)) + bits @ rng.normal(size=(len(masses), 1))


def test_several_chunks_know_their_correlations_from_few_rows(monkeypatch):
    """Rows grow with the features of a chunk and not with those of all, so that time is in proportion to features."""
    sizes = []
    real = blocks._gram

    def watch(design, U, h):
        sizes.append((design.shape, len(U)))
        return real(design, U, h)

    monkeypatch.setattr(blocks, "_gram", watch)
    monkeypatch.setattr(blocks, "CHUNK_FEATURES", 80)
    _, design, U, h, y = overlapping(3000, np.full(200, 0.3))
    g = moments(design, U, h * y)
    theta = blocks.solve(blocks.Squares(design, U, h, g, 1e-6))
    assert sum(m for (_, m), _ in sizes) == 200
    assert all(n == rows == 10 * 2 * m for (n, m), rows in sizes)
    left = g - moments(design, U, h * displacement(design, U, theta))
    assert np.abs(left).max() <= 0.1 * np.abs(g).max()
    sizes.clear()
    monkeypatch.setattr(blocks, "CHUNK_FEATURES", 400)
    theta = blocks.solve(blocks.Squares(design, U, h, g, 1e-9))
    assert sizes == [((3000, 200), 3000)]  # alone it is exact
    left = g - moments(design, U, h * displacement(design, U, theta))
    assert np.abs(left).max() <= 1e-6 * np.abs(g).max()


@pytest.mark.parametrize("rows", [1, 10])
@pytest.mark.parametrize("seed", range(5))
def test_no_step_of_a_chunk_makes_the_squares_larger(monkeypatch, seed, rows):
    """Of rare subpopulations few rows say next to nothing; some of them do not occur there, others look like copies."""
    monkeypatch.setattr(blocks, "CHUNK_FEATURES", 40)
    monkeypatch.setattr(blocks, "CHUNK_ROWS", rows)
    bits, design, U, h, y = overlapping(4000, np.geomspace(2e-3, 0.5, 90), seed)
    C = (bits[:, :, None] * U[:, None, :]).reshape(4000, -1)
    problem = blocks.Squares(design, U, h, moments(design, U, h * y), 1e-6, seed)
    theta, moved = np.zeros_like(problem.g), np.zeros_like(y)
    loss = [float((h * y**2).sum())]
    found = blocks._blocks(design, 2)
    assert len(found) > 3
    for _ in range(30):
        for block in found:
            _, step = block.step(problem, theta, moved)
            theta[block.members] += step
            loss.append(float((h * (y - moved) ** 2).sum()))
    assert np.diff(loss).max() <= 1e-12
    np.testing.assert_allclose(moved, C @ theta.reshape(-1, 1), atol=1e-10)
    best = np.linalg.lstsq(C, y)[0]
    least = float((h * (y - C @ best) ** 2).sum())
    assert loss[-1] - least <= 0.01 * (loss[0] - least)


def test_overlapping_subpopulations_are_swept_over_more_rows(monkeypatch):
    monkeypatch.setattr(blocks, "GRAM_ROWS", 1000)
    monkeypatch.setattr(blocks, "SWEEP_ROWS", 5000)
    monkeypatch.setattr(blocks, "CHUNK_FEATURES", 100)
    _, bits, *_ = overlapping(500, np.full(200, 0.3))
    _, few, *_ = overlapping(500, np.full(40, 0.3))
    column = Codes((np.zeros(500, dtype=np.uint8),), (table(np.eye(30)),))
    floats = Matrix(np.random.default_rng(0).random((500, 200)))
    assert blocks._rows_needed(bits, 2) == 5000
    assert blocks._rows_needed(few, 2) == 1000
    assert blocks._rows_needed(column, 2) == 1000
    assert blocks._rows_needed(floats, 2) == 10 * 2 * 200
    assert blocks._rows_needed(bits, 40) == 10 * 40 * 200


@pytest.mark.parametrize("notion", ["multiaccuracy", "full-0.5"])
def test_a_sample_stands_for_all_rows(data, monkeypatch, notion):
    """The coefficients of a sampled Gram matrix are those of all rows, up to its noise."""
    learner = lowcal.Groups().prepare(data.X)
    p, weight = data.p[:, None], np.full(3000, 1 / 3000)
    problem = Problem(Memory.of(learner.rows, p, data.y[:, None], weight), lowcal.parse_notion(notion), learner, 0.01)
    found, weights = problem.suprema(START), problem.features(START)

    def movement():
        terms = blocks.block_terms(problem.rows, START, learner, weights, found, "euclidean", (0, 1))
        return sum(term(p, term.family.design(learner.rows)) for term in terms)

    every = movement()
    monkeypatch.setattr(blocks, "GRAM_ROWS", 1500)
    some = movement()
    assert not np.array_equal(some, every)
    assert np.linalg.norm(some - every) <= 0.35 * np.linalg.norm(every)


@pytest.mark.parametrize("notion", ["degree-2", "degree-3", "full-0.25"])
@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_many_intersections_are_reached_in_few_rounds(notion, geometry, monkeypatch):
    monkeypatch.setattr(blocks, "FEW_FEATURES", 20)
    data = make_miscalibrated(6000, n_columns=4, n_levels=5, random_state=5)
    names = [f"g{k}" for k in range(4)]
    options = {"subpopulations": lowcal.Intersections(names), "notion": notion, "alpha": 0.01, "geometry": geometry}
    fit = multicalibrate(data.y, data.p, data.X, guard=False, **options)
    assert fit.status == "reached"
    assert fit.n_updates <= 6
    calibrated = fit.predictor(data.p, data.X)
    assert (
        lowcal.measure(data.y, calibrated, data.X, subpopulations=lowcal.Intersections(names), notion=notion).largest
        <= 0.01
    )


def test_a_new_subsample_is_drawn_in_every_round(data, monkeypatch):
    drawn = []
    real = base.sample_rows

    def watch(*arguments):
        drawn.append(real(*arguments))
        return drawn[-1]

    monkeypatch.setattr(base, "sample_rows", watch)
    monkeypatch.setattr(blocks, "GRAM_ROWS", 100)
    multicalibrate(data.y, data.p, data.X, notion="multiaccuracy", alpha=0.0005)
    drawn = [rows for rows in drawn if rows is not None and len(rows) < 3000]
    assert len(drawn) >= 2
    assert not all(np.array_equal(rows, drawn[0]) for rows in drawn)


def test_rows_bend_the_log_loss_by_their_variance_and_never_too_little():
    p = np.array([[0.5], [0.01], [1e-6], [0.0], [1.0]])
    np.testing.assert_allclose(
        blocks._row_curvatures(p, np.ones((5, 1)), "mirror")[:, 0], [0.25, 0.0099, 1e-3, 1e-3, 1e-3]
    )
    np.testing.assert_array_equal(blocks._row_curvatures(p, np.ones((5, 1)), "euclidean"), np.ones((5, 1)))
