"""Growing trees: the definition against plain loops, and the compiled kernels against the definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit

from lowcal.subpopulations import growing
from lowcal.subpopulations.base import Given, Here
from lowcal.subpopulations.bins import Binned
from lowcal.subpopulations.growing import Forest, Growth, OddsBooster, Request, grow_forests, odds_of
from lowcal.subpopulations.trees import Start


def world(seed, n, n_features, q, kind=np.uint8, uniform=False):
    """Bins, level counts, weights that sum to one (some are zero) and weighted residuals in [-w, w]."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(3, 12, n_features)
    codes = np.column_stack([rng.integers(1, c, n) for c in counts]).astype(kind)
    w = np.ones(n) if uniform else rng.integers(0, 4, n) * (0.5 + rng.random(n)) + 1e-3 * (np.arange(n) == 0)
    w = w / w.sum()
    return Binned(codes), counts, w, w[:, None] * rng.uniform(-1, 1, (n, q))


def grow(rows, counts, w, Z, growth, total=None):
    """Trees for weighted residuals of rows in one piece; what they add to every row is added to `total`."""
    residual = np.divide(Z, w[:, None], out=np.zeros_like(Z), where=w[:, None] > 0)
    state = residual if growth.geometry == "euclidean" else odds_of(residual[:, 0])
    bound = float(np.abs(residual).max(initial=0.0)) if growth.geometry == "euclidean" else 1.0
    request = Request(lambda _: state, (tuple(range(state.shape[1])),), bound, counts, growth)
    (forest,) = grow_forests(Here(rows, w), request)
    if total is not None:
        total += forest(rows)
    return forest


def both(monkeypatch, *args):
    pytest.importorskip("numba")
    monkeypatch.setattr(growing, "COMPILE_FROM", np.inf)
    monkeypatch.setattr(growing, "_evaluators", growing.kernels_for)
    pure = grow(*args)
    values = pure(args[0]), pure.leaf(args[0])
    monkeypatch.setattr(growing, "COMPILE_FROM", 0)
    fast = grow(*args)
    return (pure, *values), (fast, fast(args[0]), fast.leaf(args[0]))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 300),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([0, 1, 7.5, 40]),
    st.sampled_from([np.uint8, np.uint16]),
    st.booleans(),
)
@example(1, 8, 2, 1, 3, 1, 1, np.uint8, False)  # nodes of one row next to heavy ones: is it one effective row?
def test_the_kernels_agree_with_the_definition(seed, n, n_features, q, depth, n_trees, min_mass, kind, uniform):
    args = *world(seed, n, n_features, q, kind, uniform), Growth(depth, min_mass, n_trees, 0.3)
    with pytest.MonkeyPatch.context() as patch:
        pure, fast = both(patch, *args)
    np.testing.assert_array_equal(pure[0].feature, fast[0].feature)
    np.testing.assert_array_equal(pure[0].cut, fast[0].cut)
    np.testing.assert_array_equal(pure[0].value, fast[0].value)
    np.testing.assert_array_equal(pure[2], fast[2])
    assert pure[2].dtype == fast[2].dtype


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 300), st.integers(1, 4), st.sampled_from([0, 5]), st.booleans())
def test_the_kernels_agree_in_the_mirror_geometry(seed, n, depth, min_mass, uniform):
    args = *world(seed, n, 3, 1, uniform=uniform), Growth(depth, min_mass, 6, 0.2, "mirror")
    with pytest.MonkeyPatch.context() as patch:
        pure, fast = both(patch, *args)
    np.testing.assert_array_equal(pure[0].feature, fast[0].feature)
    np.testing.assert_array_equal(pure[0].value, fast[0].value)
    np.testing.assert_array_equal(pure[1], fast[1])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 300),
    st.integers(1, 4),
    st.sampled_from([0, 5]),
    st.sampled_from([np.uint8, np.uint16]),
    st.booleans(),
    st.sampled_from([0, 10**9]),
)
def test_boosting_in_log_odds_agrees_with_the_definition(seed, n, depth, min_mass, kind, uniform, least_rows):
    """Trees of two labels and calls, the log odds after them, and after each tree; columns shared or not."""
    trees = pytest.importorskip("lowcal.kernels.trees")
    rows, counts, w, Z = world(seed, n, 3, 1, kind, uniform)
    z, y = np.random.default_rng(seed).normal(size=(2, n)), np.stack([Z[:, 0] > 0, Z[:, 0] <= 0]).astype(float)
    found = []
    for limit in (np.inf, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(growing, "COMPILE_FROM", limit)
            patch.setattr(growing, "_evaluators", growing.kernels_for)
            patch.setattr(trees, "LEAST_ROWS", least_rows)
            booster = OddsBooster(rows, counts, w, z, y)
            forests = [booster.grow(Growth(depth, min_mass, 4, 0.2, "mirror"), 1) for _ in range(2)]
            path = np.empty((2, 8, n))
            for label, own in enumerate(path):
                forests[0][label].path(rows, z[label], own[:4])
                forests[1][label].path(rows, own[3], own[4:])
            found.append(([*forests[0], *forests[1]], booster.z, path))
    for pure, fast in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_array_equal(pure.feature, fast.feature)
        np.testing.assert_array_equal(pure.cut, fast.cut)
        np.testing.assert_array_equal(pure.value, fast.value)
    np.testing.assert_array_equal(found[0][1], found[1][1])
    np.testing.assert_array_equal(found[0][2], found[1][2])
    np.testing.assert_array_equal(found[1][2][:, -1], found[1][1])


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_evaluated_trees_agree_with_the_definition(depth, kind, monkeypatch):
    """Sums and leaves, of more rows than are looked at together, of levels of few and of many nodes, with gaps."""
    trees = pytest.importorskip("lowcal.kernels.trees")
    rng, inner = np.random.default_rng(depth), 2**depth - 1
    rows = growing.Binned(rng.integers(0, 9, (trees.ROWS + 100, 4)).astype(kind))
    feature, cut = rng.integers(-1, 4, (3, inner)), rng.integers(0, 9, (3, inner))
    cut[0, 0] = 2**31  # a file may hold any cut: one that no code exceeds sends all rows left
    forest = growing.Forest(feature, cut, rng.normal(size=(3, inner + 1, 2)))
    found = []
    for limit in (np.inf, 0):
        monkeypatch.setattr(growing, "COMPILE_FROM", limit)
        monkeypatch.setattr(growing, "_evaluators", growing.kernels_for)
        found.append((forest(rows), *(forest.leaf(rows, tree) for tree in range(3))))
    for pure, fast in zip(*found, strict=True):
        np.testing.assert_array_equal(pure, fast)


def test_too_many_bins_for_the_cells_of_a_kernel_stay_with_the_definition(monkeypatch):
    trees = pytest.importorskip("lowcal.kernels.trees")
    monkeypatch.setattr(growing, "COMPILE_FROM", 0)
    rows, counts, w, Z = world(1, 300, 3, 1)
    found = []
    for lay_columns in (trees.lay_columns, lambda *_: None):
        monkeypatch.setattr(trees, "lay_columns", lay_columns)
        booster = OddsBooster(Binned(rows.codes), counts, w, np.zeros((1, 300)), (Z.T > 0).astype(float))
        found.append((*booster.grow(Growth(3, 5, 4, 0.2, "mirror"), 1), booster.z))
    np.testing.assert_array_equal(found[0][0].feature, found[1][0].feature)
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert trees.lay_columns(rows.codes, np.array([1 << 14, 1 << 15, 1 << 14])) is None


@pytest.mark.parametrize("seed", range(12))
def test_the_kernels_agree_on_very_unequal_weights(monkeypatch, seed):
    """A light node next to a heavy one: its size must not be a difference of large numbers."""
    rows, counts, _, _ = world(seed, 120, 3, 1)
    rng = np.random.default_rng(seed)
    w = 10.0 ** rng.integers(-9, 1, 120)
    w /= w.sum()
    args = rows, counts, w, w[:, None] * rng.uniform(-1, 1, (120, 1)), Growth(4, 1)
    pure, fast = both(monkeypatch, *args)
    np.testing.assert_array_equal(pure[0].feature, fast[0].feature)
    np.testing.assert_array_equal(pure[0].cut, fast[0].cut)


def test_evaluation_gives_the_same_bits(monkeypatch):
    """Which code evaluates a forest may depend on what is loaded, so both must give the same numbers."""
    pytest.importorskip("numba")
    rows, *rest = world(3, 500, 4, 2)
    monkeypatch.setattr(growing, "_evaluators", growing.kernels_for)
    forest = grow(rows, *rest, Growth(3, 5, 20, 0.1))
    found = []
    for limit in (0, np.inf):
        monkeypatch.setattr(growing, "COMPILE_FROM", limit)
        found.append((forest(rows), forest.leaf(rows, 7)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_wide_histograms_stay_with_the_definition(monkeypatch):
    """A level that would not fit is grown feature by feature, with or without numba."""
    args = *world(0, 200, 3, 1), Growth(3, 5)
    want = grow(*args)
    monkeypatch.setattr(growing, "COMPILE_FROM", 0)
    monkeypatch.setattr(growing, "MOST_CELLS", 10)
    monkeypatch.setattr(growing, "compiled", lambda _: None if growing.MOST_CELLS > 10 else pytest)  # has no boost
    np.testing.assert_array_equal(grow(*args).feature, want.feature)


def by_hand(codes, w, y, f, depth, min_mass, n_trees, shrinkage, geometry):
    """Boost with loops over nodes, features and cuts; return the log odds or predictions after all trees."""
    n = len(codes)
    state = np.log(f / (1 - f)) if geometry == "mirror" else np.array(f)
    for _ in range(n_trees):
        now = 1 / (1 + np.exp(-state)) if geometry == "mirror" else state
        bend = w * np.maximum(now * (1 - now), growing.LEAST_BEND) if geometry == "mirror" else w
        z = w * (y - now)
        nodes = [np.arange(n)]
        for _ in range(depth):
            nodes = [child for node in nodes for child in halves(codes, w, z, bend, node, min_mass)]
        for node in nodes:
            if len(node):
                state[node] += shrinkage * z[node].sum() / bend[node].sum()
    return state


def halves(codes, w, z, bend, node, min_mass):
    def score(rows):
        worth = w[rows].sum() ** 2 / (w[rows] ** 2).sum() if len(rows) else 0.0
        return z[rows].sum() ** 2 / bend[rows].sum() if worth >= max(min_mass, 1e-9) else -np.inf

    best, found = score(node) + 1e-12 if len(node) else np.inf, (node, node[:0])
    for j in range(codes.shape[1]):
        for cut in np.unique(codes[node, j]):
            left, right = node[codes[node, j] <= cut], node[codes[node, j] > cut]
            if score(left) + score(right) > best * (1 + 1e-9):
                best, found = score(left) + score(right), (left, right)
    return found


@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
@pytest.mark.parametrize("seed", range(4))
def test_boosting_by_hand(geometry, seed):
    rng = np.random.default_rng(seed)
    n = 150
    codes = np.column_stack([rng.integers(1, 8, n) for _ in range(3)])
    w = rng.random(n) + 0.1
    w /= w.sum()
    f = rng.uniform(0.05, 0.95, n)
    y = (rng.random(n) < np.where(codes[:, 0] > 4, 0.8, 0.2)).astype(float)
    z = w[:, None] * (y - f)[:, None]
    growth = Growth(3, 6, 8, 0.3, geometry)
    forest = grow(Binned(codes.astype(np.uint8)), np.full(3, 8), w, z, growth)
    start = np.log(f / (1 - f)) if geometry == "mirror" else f
    want = by_hand(codes, w, y, f, 3, 6, 8, 0.3, geometry) - start
    np.testing.assert_allclose(forest(Binned(codes.astype(np.uint8)))[:, 0], want, atol=1e-9)


def test_boosting_lowers_the_loss_of_its_geometry():
    rng = np.random.default_rng(0)
    n = 2000
    codes = np.column_stack([rng.integers(1, 30, n) for _ in range(4)]).astype(np.uint8)
    truth = np.where((codes[:, 0] > 15) == (codes[:, 1] > 15), 0.9, 0.2)
    y, f, w = (rng.random(n) < truth) * 1.0, rng.uniform(0.3, 0.7, n), np.full(n, 1 / n)

    def loss(odds):
        return np.mean(np.log1p(np.exp(np.where(y == 1, -odds, odds))))

    losses = []
    for n_trees in (1, 10, 60):
        forest = grow(Binned(codes), np.full(4, 30), w, (w * (y - f))[:, None], Growth(2, 30, n_trees, 0.2, "mirror"))
        odds = np.log(f / (1 - f)) + forest(Binned(codes))[:, 0]
        losses.append(loss(odds))
    start, least = loss(np.log(f / (1 - f))), loss(np.log(truth / (1 - truth)))
    assert start > losses[0] > losses[1] > losses[2]
    assert start - losses[2] > 0.75 * (start - least)


def test_rows_that_agree_with_their_outcome_are_left_alone():
    """A residual of 0 or 1 stands for a certain prediction; log odds stay finite."""
    codes = np.repeat([[1], [2]], 40, axis=0).astype(np.uint8)
    z = np.concatenate([np.zeros(40), np.ones(20), -np.ones(20)])
    forest = grow(Binned(codes), np.array([3]), np.full(80, 1 / 80), z[:, None] / 80, Growth(1, 5, 3, 0.5, "mirror"))
    assert np.isfinite(forest.value).all()


def test_plain_data():
    forest = Forest(np.array([[0, -1, 1]]), np.array([[3, 0, 2]]), np.arange(4.0).reshape(1, 4, 1))
    assert forest.depth == 2
    made = forest.to_dict()
    assert made == {"depth": 2, "feature": [[0, -1, 1]], "cut": [[3, 0, 2]], "value": [[[0.0], [1.0], [2.0], [3.0]]]}
    rows = Binned(np.array([[3, 9], [4, 2], [4, 3]], dtype=np.uint8))
    assert forest.leaf(rows).tolist() == [0, 2, 3]
    assert forest(rows)[:, 0].tolist() == [0.0, 2.0, 3.0]


@pytest.mark.parametrize("limit", [0, np.inf])
@pytest.mark.parametrize("geometry", ["euclidean", "mirror"])
def test_growing_tells_what_the_forest_is_on_its_rows(monkeypatch, geometry, limit):
    """The same bits as evaluating it, on top of what was there."""
    if limit == 0:
        pytest.importorskip("numba")
    monkeypatch.setattr(growing, "COMPILE_FROM", limit)
    rows, *rest = world(5, 400, 4, 1 if geometry == "mirror" else 3)
    total = np.zeros(rest[-1].shape)
    forest = grow(rows, *rest, Growth(3, 5, 12, 0.2, geometry), total)
    assert np.abs(total).max() > 0.05
    np.testing.assert_array_equal(total, forest(rows))
    before = total.copy()
    grow(rows, *rest, Growth(3, 5, 1, 0.2, geometry), total)
    assert np.abs(total - before).max() > 0


class Pieces(Here):
    """Rows that are visited in pieces, the last one first."""

    def __init__(self, rows, weight, Z, n_pieces):
        super().__init__(rows, weight)
        self.parts = []
        for some in np.array_split(np.arange(len(weight)), n_pieces)[::-1]:
            part = Here(rows[some], weight[some], some)
            part.scale = self.scale
            self.parts.append(part)

    @property
    def single(self):
        return None

    def run(self, one):
        total, *rest = (one(part) for part in self.parts)
        for more in rest:
            total = total + more
        return one.read(total, self.parts[0], self.scale)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(5, 300),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from(["euclidean", "mirror"]),
    st.booleans(),
    st.sampled_from([0, np.inf]),
)
def test_pieces_grow_the_trees_of_the_whole(seed, n, n_pieces, depth, geometry, heavy, limit):
    """To the last bit, compiled or not, also where weights differ by nine orders of magnitude."""
    rows, counts, weight, Z = world(seed, n, 3, 2)
    if heavy:
        weight = weight * 10.0 ** np.random.default_rng(seed).integers(-9, 1, n)
        weight /= weight.sum()
    given_to = Given(np.random.default_rng(seed).uniform(-1, 1, (n, 2)), 1)
    targets = ((0, 1),) if geometry == "mirror" else ((0,), (1,))
    growth = Growth(depth, 3, 3, 0.3, geometry)
    request = Request(Start(given_to, geometry, 2 // len(targets[0])), targets, given_to.bound, counts, growth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "COMPILE_FROM", limit)
        whole = grow_forests(Here(rows, weight), request)
        found = grow_forests(Pieces(rows, weight, Z, n_pieces), request)
    for one, other in zip(whole, found, strict=True):
        np.testing.assert_array_equal(one.feature, other.feature)
        np.testing.assert_array_equal(one.cut, other.cut)
        np.testing.assert_array_equal(one.value, other.value)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 2000), st.booleans(), st.floats(1e-3, 1e3))
def test_records_add_up_exactly_and_are_off_by_no_more_than_stated(seed, n, is_mirror, bound):
    rng = np.random.default_rng(seed)
    share = 10.0 ** rng.uniform(-12, 0, n)
    share /= share.max()
    state = (
        np.column_stack([expit(rng.normal(0, 3, n)), rng.integers(0, 2, n)])
        if is_mirror
        else bound * (1 - 2 * rng.random((n, 2)))
    )
    found = growing.make_records(share, state, is_mirror, bound, n)
    f = state[:, 0] if is_mirror else np.zeros(n)
    z = (state[:, 1] - f)[:, None] if is_mirror else state
    bend = np.maximum(f * (1 - f), growing.LEAST_BEND) if is_mirror else np.ones(n)
    exact = np.column_stack([share, share**2, share * bend, share[:, None] * z])
    error = 2.0 ** (max(2, (n - 1).bit_length()) - 52)
    limits = error * np.array([1.0, 2.0, 1.0, *([1.0] if is_mirror else [bound, bound])])
    assert (np.abs(found - exact) <= limits + 1e-15 * np.abs(exact)).all()
    assert (found[:, 1] >= exact[:, 1]).all()  # effective rows are never overstated for want of digits
    sums = found.sum(axis=0)
    for order in (rng.permutation(n), slice(None, None, -1)):
        assert found[order].sum(axis=0).tobytes() == sums.tobytes()
    assert [sum(map(Fraction, column.tolist())) for column in found.T] == [Fraction(total) for total in sums.tolist()]


@pytest.mark.parametrize("where", ["below", "above"])
def test_what_rounding_leaves_of_many_rows_is_no_node(where):
    """72,043 rows of weight 1e-5 in one bin, added up in another order: mass is left over, and nothing else."""
    rows = np.array([[0.72043, 7.2043e-06, 0.15, 1.3e-3]])
    crumbs = np.array([[1.4e-12, -6.9e-18, 0.0, -1.9e-17]])
    first, second = (crumbs, rows) if where == "below" else (rows, crumbs)
    gain, _ = growing._best_cuts(np.stack([first, second], axis=1), 30.0, growing.LEAST)
    assert gain == -np.inf
    trees = pytest.importorskip("lowcal.kernels.trees")
    below = np.vstack([first.T, [[np.nan]]])
    trees._lay_gains(below, (first + second)[0], 1, 30.0, growing.LEAST)
    assert below[4, 0] == -np.inf
