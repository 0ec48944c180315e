"""Tables on a card and through one: what is read, and what is refused. Fits run on the card's twin in NumPy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lowcal
from card_worlds import World, card, cupy, has_card, processor  # noqa: F401
from lowcal.data.cards import card_columns, is_on_card
from lowcal.data.errors import CardFull, InvalidInput, MissingColumn, MissingExtra

N = 4_000
GROUPS = lowcal.Groups(n_bins=4)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    X = {
        "a": rng.integers(0, 4, N).astype(np.uint8),
        "b": rng.normal(size=N),
        "c": np.array(list("xyz"))[rng.integers(0, 3, N)],
    }
    z = rng.normal(size=N)
    y = (rng.random(N) < 1 / (1 + np.exp(0.4 * (X["a"] - 1.5) - z))).astype(int)
    return y, 1 / (1 + np.exp(-1.5 * z)), X


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowcal.kernels.card.twin import Twin

    monkeypatch.setattr("lowcal.rows.card.reading.open_device", lambda precision, *_: Twin(precision))


def fits(X: object, y, p, **more):
    return lowcal.multicalibrate(y, p, X, subpopulations=GROUPS, alpha=1e-3, random_state=0, **more)


@pytest.mark.usefixtures("through")
@pytest.mark.parametrize("frame", [dict, pd.DataFrame])
def test_a_table_through_a_card_is_fitted_as_in_memory(data, frame):
    y, p, X = data
    near, far = fits(frame(X), y, p), fits(lowcal.on_card(frame(X), precision="double"), y, p)
    assert far.status == near.status
    found = far.predictor(p, lowcal.on_card(frame(X), precision="double"))
    assert isinstance(found, np.ndarray)
    assert np.abs(found - near.predictor(p, frame(X))).max() < 1e-9


@pytest.mark.usefixtures("through")
def test_names_of_columns_and_of_classes(data):
    y, p, X = data
    table = {**X, "y": np.where(y == 1, "yes", "no"), "p": p}
    fit = fits(lowcal.on_card(table), "y", "p")
    assert np.abs(fit.predictor("p", lowcal.on_card(table)) - fits(table, "y", "p").predictor(p, X)).max() < 1e-5
    with pytest.raises(MissingColumn, match="y names the column 'z', but X has"):
        fits(lowcal.on_card(table), "z", "p")


@pytest.mark.usefixtures("through")
def test_rows_without_weight_do_not_count(data):
    y, p, X = data
    weight = np.random.default_rng(1).random(N)
    weight[::3] = 0.0
    kept = weight > 0
    some = {name: column[kept] for name, column in X.items()}
    far = fits(lowcal.on_card(X, precision="double"), y, p, sample_weight=weight)
    near = fits(some, y[kept], p[kept], sample_weight=weight[kept])
    assert np.abs(far.predictor(p, X) - near.predictor(p, X)).max() < 1e-9


def test_arrays_on_a_card(card: World, data):  # noqa: F811
    y, p, X = data
    X = {"a": X["a"], "b": X["b"]}
    far = fits(card.put(X), card.put(y), card.put(p))
    near = fits(X, y, p)
    found = far.predictor(card.put(p), card.put(X))
    assert found.dtype == np.float64
    assert np.abs(card.get(found) - near.predictor(p, X)).max() < 1e-9
    single = fits(card.put(X), card.put(y), card.put(p.astype(np.float32)))
    found = single.predictor(card.put(p.astype(np.float32)), card.put(X))
    assert found.dtype == np.float32
    assert np.abs(card.get(found) - near.predictor(p, X)).max() < 1e-5


@pytest.mark.parametrize(("few", "by"), [(1 << 24, 1e-6), (0, 1e-3)])
def test_nearly_collinear_groups_in_single_precision(card: World, data, few, by, monkeypatch):  # noqa: F811
    """A step amplifies rounding errors of sums: those of few rows are small, and of many rows average out."""
    monkeypatch.setattr("lowcal.rows.card.rows.FEW_ROWS", few)
    y, p, X = data
    X, p = {"a": X["a"], "b": X["b"]}, p.astype(np.float32)
    how = {"subpopulations": lowcal.Groups(["a"]) + lowcal.Thresholds("b"), "random_state": 0}
    near = lowcal.multicalibrate(y, p.astype(float), X, **how)
    far = lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), **how)
    assert far.n_updates == near.n_updates
    found = far.predictor(card.put(p), card.put(X))
    assert np.abs(card.get(found) - near.predictor(p.astype(float), X)).max() < by


def test_memberships_on_a_card(card: World, data):  # noqa: F811
    y, p, _ = data
    X = (np.random.default_rng(2).random((N, 11)) < 0.4).astype(np.uint8)
    how = {"subpopulations": lowcal.Memberships(), "alpha": 1e-3, "random_state": 0}
    near, far = (
        lowcal.multicalibrate(y, p, X, **how),
        lowcal.multicalibrate(card.put(y), card.put(p), card.put(X), **how),
    )
    assert np.abs(card.get(far.predictor(card.put(p), card.put(X))) - near.predictor(p, X)).max() < 1e-9


@pytest.mark.gpu
@pytest.mark.skipif(not has_card(), reason="There is no graphics card here, or no CuPy.")
def test_tensors_of_torch_are_read_in_place(data):
    torch = pytest.importorskip("torch")
    y, p, X = data
    a, b = (torch.from_numpy(X[name]).cuda() for name in ("a", "b"))
    fit = fits({"a": a, "b": b}, torch.from_numpy(y).cuda(), torch.from_numpy(p).cuda())
    assert card_columns({"a": a})["a"].data.ptr == a.data_ptr()
    near = fits({"a": X["a"], "b": X["b"]}, y, p).predictor(p, X)
    assert np.abs(fit.predictor(torch.from_numpy(p).cuda(), {"a": a, "b": b}).get() - near).max() < 1e-9


def test_rows_that_do_not_fit_pass_through(cupy, data, monkeypatch):  # noqa: F811
    y, p, X = data
    monkeypatch.setattr("lowcal.kernels.card.cuda.PART_ROWS", 1_500)
    pool = cupy.get_default_memory_pool()
    there = {"a": cupy.asarray(X["a"])}, cupy.asarray(y), cupy.asarray(p)
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes())
    try:
        with pytest.raises(CardFull, match=r"do not fit into the card's memory"):
            fits(there[0], *there[1:])
    finally:
        pool.set_limit(size=0)
    through = fits(lowcal.on_card({"a": X["a"]}, memory=1), y, p)
    on = fits(lowcal.on_card({"a": X["a"]}), y, p)
    assert str(through.predictor.to_dict()) == str(on.predictor.to_dict())


@pytest.mark.parametrize("weights", [None, "uneven"])
@pytest.mark.parametrize(("kind", "near_by"), [(np.float64, 1e-9), (np.float32, 1e-6)])
def test_an_audit_on_a_card_is_that_of_memory(card: World, data, kind, near_by, weights):  # noqa: F811
    y, p, X = data
    X, p = {"a": X["a"]}, p.astype(kind)
    w = None if weights is None else np.random.default_rng(3).random(N)
    how = {"subpopulations": GROUPS, "random_state": 0}
    near = lowcal.audit(y, p.astype(float), X, sample_weight=w, **how)
    far = lowcal.audit(card.put(y), card.put(p), card.put(X), sample_weight=None if w is None else card.put(w), **how)
    assert (far.verdict, far.p_value) == (near.verdict, near.p_value)
    for name in ("violation", "null_floor", "certified_alpha"):
        assert abs(getattr(far, name) - getattr(near, name)) < near_by
    for a, b in zip(far.findings, near.findings, strict=True):
        assert (a.subpopulation, a.n_effective) == (b.subpopulation, pytest.approx(b.n_effective, rel=1e-6))
        assert max(abs(a.lower - b.lower), abs(a.upper - b.upper)) < near_by


# --- what is refused ------------------------------------------------------------------------------------------


def test_bad_numbers_are_named_by_their_row(card: World, data):  # noqa: F811
    y, p, X = data
    X = card.put({"a": X["a"]})

    def changed(x: np.ndarray, value: float) -> object:
        x = x.astype(np.float32)
        x[5] = x.dtype.type(1 + 2e-7) if x is not y else x[5]  # rounding errors are no reason to stop
        x[[77, 901]] = value
        return card.put(x)

    for value, said in ((1.5, r"p is 1\.5 in row 77, outside"), (np.nan, "p is nan in row 77")):
        with pytest.raises(InvalidInput, match=said):
            fits(X, card.put(y), changed(p, value))
        with pytest.raises(InvalidInput, match=said):
            fits(X, card.put(y), card.put(p)).predictor(changed(p, value), X)
    for value, said in ((np.nan, "y is missing in row 77"), (np.inf, "y is inf in row 77")):
        with pytest.raises(InvalidInput, match=said):
            fits(X, changed(y, value), card.put(p))
        with pytest.raises(InvalidInput, match=said):
            fits(X, changed(y, value), card.put(np.full((N, 3), 1 / 3)))
    for value in (-1.0, np.nan, np.inf):
        with pytest.raises(InvalidInput, match=f"sample_weight is {value} in row 77"):
            fits(X, card.put(y), card.put(p), sample_weight=changed(np.ones(N), value))
    with pytest.raises(InvalidInput, match="All sample weights are zero"):
        fits(X, card.put(y), card.put(p), sample_weight=card.put(np.zeros(N)))


def test_rows_are_counted_with_those_that_weigh_nothing(card: World, data):  # noqa: F811
    y, p, X = data
    weight, bad = np.ones(N), p.copy()
    weight[:50], bad[77] = 0.0, 2.0
    with pytest.raises(InvalidInput, match="p is 2 in row 77"):
        fits(card.put({"a": X["a"]}), card.put(y), card.put(bad), sample_weight=card.put(weight))


def test_shapes_and_columns_that_do_not_fit(card: World, data):  # noqa: F811
    y, p, X = data
    far, fy, fp = card.put({"a": X["a"], "b": X["b"]}), card.put(y), card.put(p)
    with pytest.raises(InvalidInput, match="y has 4000 rows, but p has 3999"):
        fits(far, fy, card.put(p[:-1]))
    with pytest.raises(InvalidInput, match="Column 'a' of X has 10 rows, but p has 4000"):
        fits({**far, "a": card.put(X["a"][:10])}, fy, fp)
    with pytest.raises(InvalidInput, match="There are no rows"):
        fits(card.put({"a": X["a"][:0]}), card.put(y[:0]), card.put(p[:0]))
    with pytest.raises(InvalidInput, match=r"p must have the shape \(n,\) or \(n, l\)"):
        fits(far, fy, card.put(p[:, None, None]))
    with pytest.raises(InvalidInput, match=r"y must have one dimension on a card, but its shape is \(4000, 2\)"):
        fits(far, card.put(np.stack([1 - y, y], axis=1)), fp)
    with pytest.raises(InvalidInput, match=r"Column 'b' of X has shape \(4000, 2\)"):
        fits({**far, "b": card.put(np.zeros((N, 2)))}, fy, fp)
    with pytest.raises(MissingColumn, match="X has no column 'sex'; it has 'a', 'b'"):
        lowcal.multicalibrate(fy, fp, far, subpopulations=lowcal.Groups(["sex"]))
    fit = fits(far, fy, fp)
    with pytest.raises(MissingColumn, match="X has no column 'b'; it has 'a'"):
        fit.predictor(fp, {"a": far["a"]})
    with pytest.raises(InvalidInput, match="Column 'a' of X has 4000 rows, but p has 10"):
        fit.predictor(card.put(p[:10]), far)


@pytest.mark.parametrize("kind", [np.float16, np.complex64])
def test_types_of_numbers(card: World, data, kind):  # noqa: F811
    """Half precision is read; what is no real number is refused."""
    if card.xp is np and kind is np.complex64:
        pytest.skip("The twin takes arrays of NumPy as they are.")
    y, p, X = data
    far = card.put({"a": X["a"]}), card.put(y)
    if kind is np.complex64:
        with pytest.raises(InvalidInput, match="p must hold numbers on a card, but its type is complex64"):
            fits(*far, card.put(p.astype(kind)))
        return
    half = p.astype(kind)
    near = fits({"a": X["a"]}, y, half).predictor(half, {"a": X["a"]})
    found = fits(*far, card.put(half)).predictor(card.put(half), far[0])
    assert found.dtype == np.float32
    assert np.abs(card.get(found) - near).max() < 1e-5


@pytest.mark.parametrize("columns", [0, 1, 2])
def test_predictions_have_the_shape_of_p(card: World, data, columns):  # noqa: F811
    y, p, X = data
    given = [p, p[:, None], np.stack([1.0 - p, p], axis=1) * 1.00001][columns]
    near, far = {"a": X["a"]}, card.put({"a": X["a"]})
    wanted = fits(near, y, given).predictor(given, near)
    fit = fits(far, card.put(y), card.put(given))
    found = fit.predictor(card.put(given), far)
    assert found.shape == wanted.shape == given.shape
    assert np.abs(card.get(found) - wanted).max() < 1e-9
    none = fit.predictor(card.put(given[:0]), card.put({"a": X["a"][:0]}))
    assert none.shape == given[:0].shape
    if columns == 2:
        given[77] = 0.75
        with pytest.raises(InvalidInput, match=r"Row 77 of p sums to 1\.5"):
            fits(far, card.put(y), card.put(given))


def test_names_of_classes_beside_columns_on_a_card(card: World, data):  # noqa: F811
    y, p, X = data
    far = card.put({"a": X["a"]})
    fit = fits(far, np.where(y == 1, "yes", "no").tolist(), card.put(p))
    assert fit.predictor.layout.classes == ("no", "yes")
    assert np.abs(card.get(fit.predictor(card.put(p), far)) - fits({"a": X["a"]}, y, p).predictor(p, X)).max() < 1e-9
    with pytest.raises(InvalidInput, match="p is the text 'x' in row 0"):
        fits(far, y, np.array(["x"] * N))


def test_frames_of_cudf(card: World, data):  # noqa: F811
    """A stand-in: an object of the module cudf whose columns have values, as those of cuDF do."""
    y, p, X = data

    class DataFrame:
        def __init__(self, held: dict[str, object]) -> None:
            self.held, self.columns = held, list(held)

        def __getitem__(self, name: str) -> object:
            return self.held[name]

    class Text:
        @property
        def values(self) -> object:
            raise TypeError("String arrays are not supported by cupy")

    DataFrame.__module__ = "cudf.core.dataframe"
    values = {"a": X["a"], "b": X["b"], "y": y, "p": p}
    held = {name: SimpleNamespace(values=card.put(column)) for name, column in values.items()}
    frame = DataFrame(held)
    fit = fits(frame, "y", "p")
    near = fits({name: X[name] for name in ("a", "b")}, y, p)
    assert np.abs(card.get(fit.predictor("p", frame)) - near.predictor(p, X)).max() < 1e-9
    with pytest.raises(InvalidInput, match=r"Column 'c' of X can't be read .*String arrays.*on_card\(table\)"):
        fits(DataFrame({**held, "c": Text()}), "y", "p")


def test_text_among_columns_on_a_card(cupy, data):  # noqa: F811
    y, p, X = data
    with pytest.raises(InvalidInput, match=r"Column 'c' of X can't be read as numbers on the card \(Unsupported dtype"):
        fits({"a": cupy.asarray(X["a"]), "c": X["c"]}, y, p)


def test_arrays_on_another_card(cupy, data, monkeypatch):  # noqa: F811
    y, p, X = data
    there = cupy.asarray(p)
    monkeypatch.setattr("lowcal.data.cards.load_extra", lambda *_: on_second(cupy))
    with pytest.raises(InvalidInput, match=r"lies on card 0, but card 1 is in use.*Device\(0\)"):
        fits({"a": cupy.asarray(X["a"])}, cupy.asarray(y), there)


def on_second(cupy) -> SimpleNamespace:  # noqa: F811
    """CuPy, where the second card is in use."""
    return SimpleNamespace(asarray=cupy.asarray, cuda=SimpleNamespace(Device=lambda: SimpleNamespace(id=1)))


def test_rows_must_be_in_one_place(cupy, data):  # noqa: F811
    y, p, X = data
    with pytest.raises(InvalidInput, match="y lies on a card, but X is in this machine's memory"):
        fits(lowcal.on_card({"a": X["a"]}), cupy.asarray(y), p)
    far = {"a": cupy.asarray(X["a"])}
    for given in ((y, p, far), (cupy.asarray(y), p, {"a": X["a"]}), (y, p, cupy.asarray(X["b"][:, None]))):
        with pytest.raises(InvalidInput, match="lies on a graphics card, but this call works on rows in memory"):
            lowcal.recalibrate(*given)


def test_a_class_that_looks_at_all_rows_is_refused(card: World, data):  # noqa: F811
    y, p, X = data
    with pytest.raises(InvalidInput, match="lie on a card"):
        lowcal.multicalibrate(card.put(y), card.put(p), card.put({"b": X["b"]}), subpopulations=lowcal.Linear())


@pytest.mark.usefixtures("through")
def test_a_full_card_is_told_in_a_sentence(data, monkeypatch):
    y, p, X = data

    def full(*_: object) -> None:
        raise MemoryError("Out of memory allocating 1,024 bytes")

    monkeypatch.setattr("lowcal.kernels.card.twin.Twin.histogram", full)
    with pytest.raises(CardFull, match=r"do not fit into the card's memory.*lowcal\.on_card\(table\)"):
        fits(lowcal.on_card(X), y, p)


def test_without_cupy(data, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    y, p, X = data
    with pytest.raises(MissingExtra, match=r"pip install 'lowcal\[gpu\]'"):
        fits(lowcal.on_card(X), y, p)


def test_settings(card: World):  # noqa: F811
    with pytest.raises(InvalidInput, match="precision"):
        lowcal.on_card({}, precision="half")
    with pytest.raises(InvalidInput, match="memory"):
        lowcal.on_card({}, memory=0)
    with pytest.raises(InvalidInput, match=r"on a card already.*p as float64"):
        lowcal.on_card({"a": card.put([0.5])})
    assert is_on_card(lowcal.on_card({}))
    assert not is_on_card(np.zeros(2))


def test_an_array_of_three_dimensions_is_no_table(card: World):  # noqa: F811
    with pytest.raises(InvalidInput, match="only one or two dimensions"):
        card_columns(card.put(np.zeros((2, 2, 2))))
