"""The border: every accepted form of y and p gives the same outcomes in one convention."""

from __future__ import annotations

import numpy as np
import pytest

import lowcal
from lowcal import Groups
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import Table
from lowcal.data.inputs import SUM_TOLERANCE, Layout, read_outcomes, read_probabilities, read_weight

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
dataset = pytest.importorskip("pyarrow.dataset")

Y = np.array([0, 1, 1, 0, 1])
P = np.array([0.25, 0.5, 0.75, 0.125, 1.0])
NAMES = np.array(["no", "yes"])[Y]
Y3 = np.array([2, 0, 1, 0, 2])
P3 = np.array([[0.5, 0.25, 0.25], [0, 0, 1], [1, 0, 0], [0.125, 0.125, 0.75], [0.25, 0.25, 0.5]])


@pytest.mark.parametrize(
    "y",
    [
        Y,
        Y.astype(np.uint8),
        Y.astype(np.int64),
        Y == 1,
        Y.astype(float),
        Y.astype(np.float32),
        Y.tolist(),
        tuple(Y.tolist()),
        (Y == 1).tolist(),
        Y[:, None],
        Y.astype(object),
        [np.int64(v) for v in Y],
        pd.Series(Y, index=list("vwxyz")),
        pd.Series(Y, dtype="Int64"),
        pd.Series(Y == 1, dtype="boolean"),
        pd.Categorical(Y),
        pd.DataFrame({"y": Y}),
        pl.Series(Y),
        pl.Series(Y == 1),
        pa.array(Y),
        pa.chunked_array([Y[:2], Y[2:]]),
    ],
    ids=lambda y: f"{type(y).__module__.split('.')[0]}.{type(y).__name__}",
)
def test_labels_0_and_1_in_any_form(y):
    read = read_outcomes(y, P)
    np.testing.assert_array_equal(read.y, Y[:, None].astype(float))
    assert read.y.dtype == np.float64
    assert read.layout == Layout(2, (0, 1))
    assert [type(c) for c in read.layout.classes] == [int, int]


@pytest.mark.parametrize(
    "y",
    [
        NAMES,
        NAMES.astype(object),
        NAMES.tolist(),
        NAMES[:, None],
        pd.Series(NAMES),
        pd.Series(NAMES, dtype="string"),
        pd.Series(NAMES, dtype="category"),
        pd.Categorical(NAMES, categories=["yes", "no", "maybe"]),
        pl.Series(NAMES.tolist()),
        pl.Series(NAMES.tolist(), dtype=pl.Categorical),
        pa.array(NAMES.tolist()),
    ],
    ids=lambda y: f"{type(y).__module__.split('.')[0]}.{type(y).__name__}",
)
def test_labels_of_text_in_any_form(y):
    read = read_outcomes(y, P)
    np.testing.assert_array_equal(read.y[:, 0], Y)
    assert read.layout.classes == ("no", "yes")


@pytest.mark.parametrize(
    "p",
    [
        P,
        P.astype(np.float32),
        P.tolist(),
        P[:, None],
        np.column_stack([1 - P, P]),
        np.column_stack([1 - P, P]).astype(np.float32),
        np.column_stack([1 - P, P]).tolist(),
        pd.Series(P, index=list("vwxyz")),
        pd.Series(P, dtype="Float64"),
        pd.DataFrame({"no": 1 - P, "yes": P}),
        pl.Series(P),
        pl.DataFrame({"no": 1 - P, "yes": P}),
        pa.array(P),
        P.astype(object),
    ],
    ids=lambda p: f"{type(p).__module__.split('.')[0]}.{type(p).__name__}",
)
def test_binary_probabilities_in_any_form(p):
    read = read_outcomes(Y, p)
    np.testing.assert_array_equal(read.p, P[:, None])
    assert read.p.dtype == np.float64


def test_probabilities_that_are_only_0_and_1():
    np.testing.assert_array_equal(read_outcomes(Y, P > 0.3).p[:, 0], (P > 0.3).astype(float))


def test_the_given_arrays_are_not_written_to():
    p = P.copy()
    read_outcomes(Y, p).p[:] = 0.0
    np.testing.assert_array_equal(p, P)


def test_several_classes_are_one_hot():
    read = read_outcomes(Y3, P3)
    np.testing.assert_array_equal(read.y, np.eye(3)[Y3])
    np.testing.assert_array_equal(read.p, P3)
    assert read.layout == Layout(3, (0, 1, 2))


@pytest.mark.parametrize(
    ("y", "classes", "codes"),
    [
        (["b", "c", "a", "c", "b"], ("a", "b", "c"), [1, 2, 0, 2, 1]),
        ([10, 30, 20, 10, 10], (10, 20, 30), [0, 2, 1, 0, 0]),
        ([-1.0, 2.5, 0.0, -1.0, 2.5], (2.5, -1, 0), [1, 0, 2, 1, 0]),
        (np.array([1, "a", 2, 1, 1], dtype=object), (1, 2, "a"), [0, 2, 1, 0, 0]),
        ([0, 1, 0, 1, 0], (0, 1, 2), [0, 1, 0, 1, 0]),
        ([True, False, True, False, True], (0, 1, 2), [1, 0, 1, 0, 1]),
    ],
)
def test_the_order_of_classes_is_that_of_sorted_labels(y, classes, codes):
    read = read_outcomes(y, P3)
    assert set(read.layout.classes) == set(classes)
    chosen = [read.layout.classes[k] for k in read.y.argmax(axis=1)]
    assert chosen == [classes[k] for k in codes]
    if not any(isinstance(c, float) for c in classes):
        assert read.layout.classes == classes


def test_labels_minus_one_and_one_are_sorted():
    read = read_outcomes(2 * Y - 1, P)
    assert read.layout.classes == (-1, 1)
    np.testing.assert_array_equal(read.y[:, 0], Y)


def test_labels_without_an_order_are_sorted_by_their_text():
    from enum import Enum

    class Answer(Enum):
        NO = 1
        YES = 0

    read = read_outcomes(np.array([Answer.YES if v else Answer.NO for v in Y], dtype=object), P)
    assert read.layout.classes == (Answer.NO, Answer.YES)
    np.testing.assert_array_equal(read.y[:, 0], Y)


def test_classes_name_the_columns():
    read = read_outcomes(["b", "c", "b", "c", "b"], P3, classes=["c", "a", "b"])
    np.testing.assert_array_equal(read.y.argmax(axis=1), [2, 0, 2, 0, 2])
    assert read.layout.classes == ("c", "a", "b")
    np.testing.assert_array_equal(read_outcomes(Y, P, classes=np.array([1, 0])).y[:, 0], 1 - Y)
    np.testing.assert_array_equal(read_outcomes(Y.astype(float), P, classes=range(2)).y[:, 0], Y)


def test_fractions_are_outcomes_without_classes():
    y = [0.0, 0.5, 1.0, 0.25, 1.0]
    read = read_outcomes(y, P)
    assert read.layout == Layout(2, None)
    np.testing.assert_array_equal(read.y[:, 0], y)
    assert read_outcomes(np.full(5, 0.5), P).layout.classes is None


@pytest.mark.parametrize("p", [P, np.column_stack([1 - P, P])])
def test_soft_labels_of_two_classes(p):
    y = np.column_stack([1 - P[::-1], P[::-1]])
    read = read_outcomes(y, p)
    np.testing.assert_array_equal(read.y[:, 0], P[::-1])
    assert read.layout == Layout(2, None)


def test_soft_labels_of_several_classes():
    read = read_outcomes(P3[::-1], P3)
    np.testing.assert_array_equal(read.y, P3[::-1])
    assert read.layout == Layout(3, None)
    np.testing.assert_array_equal(read_outcomes(pd.DataFrame(P3[::-1]), P3).y, P3[::-1])


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_rows_within_the_tolerance_are_normalised(n_classes):
    p = np.random.default_rng(n_classes).dirichlet(np.ones(n_classes), 20)
    layout = Layout(n_classes, None)
    read = read_probabilities(p * (1 + 0.9 * SUM_TOLERANCE), layout)
    np.testing.assert_allclose(read, p if n_classes > 2 else p[:, [1]], atol=1e-12)
    read_probabilities(p.astype(np.float32), layout)
    with pytest.raises(lowcal.InvalidInput, match=r"sums to"):
        read_probabilities(p * (1 + 1.1 * SUM_TOLERANCE), layout)


def test_weights_sum_to_one():
    np.testing.assert_array_equal(read_weight(None, 4), np.full(4, 0.25))
    np.testing.assert_allclose(read_weight([1, 2, 0, 1], 4), [0.25, 0.5, 0, 0.25])
    np.testing.assert_allclose(read_weight(pl.Series([1, 3]), 2), [0.25, 0.75])
    np.testing.assert_allclose(read_weight([True, False], 2), [1, 0])
    assert read_outcomes(Y, P, [1, 1, 1, 1, 0]).weight[-1] == 0


def test_a_layout_is_scalar_or_on_the_simplex():
    scalar, simplex = Layout(2, ("no", "yes")), Layout(3, None)
    assert (scalar.d, simplex.d) == (1, 3)
    assert (str(scalar), str(simplex)) == ("scalar convention", "3 classes")
    assert scalar.to_dict() == {"n_classes": 2, "classes": ["no", "yes"]}
    assert simplex.to_dict() == {"n_classes": 3, "classes": None}
    np.testing.assert_array_equal(scalar.show(P[:, None], like=P), P)
    np.testing.assert_array_equal(scalar.show(P[:, None], like=P[:, None]), P[:, None])
    np.testing.assert_array_equal(scalar.show(P[:, None], like=np.column_stack([P, P])), np.column_stack([1 - P, P]))
    np.testing.assert_array_equal(simplex.show(P3, like=P3), P3)


@pytest.fixture(scope="module")
def data():
    return lowcal.datasets.make_miscalibrated(400, random_state=0)


def test_the_predictor_answers_in_the_convention_of_p(data):
    groups = Groups(min_mass=10)
    fit = lowcal.multicalibrate(data.y, data.p, data.X, subpopulations=groups, alpha=0.005)
    assert fit.n_updates > 0
    wide = np.column_stack([1 - data.p, data.p])
    np.testing.assert_allclose(fit.predictor(wide, data.X)[:, 1], fit.predictor(data.p, data.X), atol=1e-12)
    np.testing.assert_allclose(fit.predictor(wide, data.X).sum(axis=1), 1.0, atol=1e-12)
    again = lowcal.multicalibrate(data.y, wide, data.X, subpopulations=groups, alpha=0.005)
    np.testing.assert_allclose(again.predictor(wide, data.X), fit.predictor(wide, data.X), atol=1e-12)


def test_forms_of_y_lead_to_the_same_fit(data):
    options = {"subpopulations": Groups(min_mass=10), "alpha": 0.005}
    expected = lowcal.multicalibrate(data.y, data.p, data.X, **options).predictor(data.p, data.X)
    soft = np.column_stack([1 - data.y, data.y])
    for y in (data.y == 1, np.array(["a", "b"])[data.y], soft, pl.Series(data.y), 2 * data.y - 1):
        fit = lowcal.multicalibrate(y, data.p, data.X, **options)
        np.testing.assert_array_equal(fit.predictor(data.p, data.X), expected)
    swapped = lowcal.multicalibrate(1 - data.y, data.p, data.X, classes=[1, 0], **options)
    np.testing.assert_array_equal(swapped.predictor(data.p, data.X), expected)


def test_rounding_errors_of_probabilities_are_clipped() -> None:
    given = np.array([0.5, 1.0 + 1e-7, -1e-17])
    assert read_outcomes([0, 1, 0], given).p[:, 0].tolist() == [0.5, 1.0, 0.0]
    assert given[1] > 1.0  # the user's own array stays as it is
    with pytest.raises(InvalidInput, match=r"p is 1\.00001 in row 1"):
        read_outcomes([0, 1], [0.5, 1.00001])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_p_named_as_the_classes_in_another_order(library: str) -> None:
    frames = pytest.importorskip(library)
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(3), 60), rng.choice(["hi", "lo", "mid"], 60)
    p[:3], y[:3] = 1 / 3, ["hi", "lo", "mid"]
    right = frames.DataFrame({name: p[:, a] for a, name in enumerate(["hi", "lo", "mid"])})
    wrong = right[["lo", "mid", "hi"]]
    for given, classes in ((right, None), (wrong, ["lo", "mid", "hi"])):
        assert read_outcomes(y, given, classes=classes).layout.classes == tuple(classes or ("hi", "lo", "mid"))
    with pytest.raises(InvalidInput, match=r"named lo, mid, hi, but .* hi, lo, mid\. Reorder"):
        read_outcomes(y, wrong)
    predictor = lowcal.multicalibrate(y, right, max_updates=1).predictor
    assert predictor(right).shape == (60, 3)
    with pytest.raises(InvalidInput, match="Reorder"):
        predictor(wrong)


def test_labels_that_may_be_counted_from_one() -> None:
    p = np.full((4, 3), 1 / 3)
    with pytest.warns(UserWarning, match=r"no 0, .* pass classes=range\(1, 4\); else classes=range\(3\)"):
        assert read_outcomes([1, 2, 2, 1], p).y[0].tolist() == [0, 1, 0]
    assert read_outcomes([1, 2, 2, 1], p, classes=range(1, 4)).y[0].tolist() == [1, 0, 0]
    for y in ([0, 1, 2, 1], [0, 1, 1, 1], [0, 2, 2, 0]):
        read_outcomes(y, p)  # and nothing is said


def test_a_fit_does_not_depend_on_how_p_is_stored() -> None:
    """A pandas frame of probabilities is stored by columns, an array by rows: sums over rows are the same."""
    data = lowcal.datasets.make_miscalibrated(2000, n_classes=3, random_state=0)
    assert read_outcomes(data.y, np.asfortranarray(data.p)).p.flags.c_contiguous
    by_rows, by_columns = (
        lowcal.multicalibrate(data.y, p, data.X, random_state=0).predictor(data.p, data.X)
        for p in (data.p, np.asfortranarray(data.p))
    )
    assert by_rows.tobytes() == by_columns.tobytes()


# --- names of columns --------------------------------------------------------------------------------------------


def people(seed: int = 0) -> dict[str, np.ndarray]:
    """Return columns with labels, probabilities and weights among them."""
    data = lowcal.datasets.make_miscalibrated(2000, random_state=seed)
    weight = np.random.default_rng(seed).integers(1, 4, 2000)
    return {**data.X, "y": data.y, "p": data.p, "weight": weight, "answer": np.array(["no", "yes"])[data.y]}


FRAMES = {"dict": dict, "pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.table, "lazy": pl.LazyFrame}


@pytest.mark.parametrize("kind", FRAMES)
def test_names_of_columns_are_the_columns(kind):
    columns = people()
    features = {name: column for name, column in columns.items() if name[0] in "gx"}
    wanted = lowcal.multicalibrate(columns["y"], columns["p"], features, sample_weight=columns["weight"], alpha=0.01)
    frame = FRAMES[kind]({name: column for name, column in columns.items() if name != "answer"})
    fit = lowcal.multicalibrate("y", "p", frame, sample_weight="weight", alpha=0.01)
    assert fit.predictor.to_dict() == wanted.predictor.to_dict()
    found = fit.predictor("p", frame)
    calibrated = np.concatenate(list(found)) if kind == "lazy" else np.asarray(found)
    np.testing.assert_array_equal(calibrated, wanted.predictor(columns["p"], features), strict=True)
    report, same = (
        lowcal.audit(*given, random_state=0, sample_weight=weight)
        for given, weight in (
            (("y", "p", frame), "weight"),
            ((columns["y"], columns["p"], features), columns["weight"]),
        )
    )
    assert report.to_dict() == same.to_dict()
    # where rows weigh differently, an audit adds what the first rounding of a term leaves
    assert lowcal.measure("y", "p", frame, sample_weight="weight").largest == pytest.approx(report.violation, rel=1e-12)


def test_a_column_comes_back_as_the_kind_of_the_frame():
    columns = people()
    frame = pd.DataFrame(columns, index=np.arange(2000) * 2)
    predictor = lowcal.recalibrate("y", "p", frame.drop(columns=["answer", "weight"])).predictor
    calibrated = predictor("p", frame)
    pd.testing.assert_index_equal(calibrated.index, frame.index)
    assert calibrated.name == "p"
    assert predictor("p", pl.DataFrame(columns)).name == "p"
    assert isinstance(predictor("p", pa.table(columns)), pa.ChunkedArray)


def test_labels_by_name_keep_their_values():
    columns = people()
    frame = pd.DataFrame(columns)[["answer", "p", "g0"]]
    assert lowcal.multicalibrate("answer", "p", frame).predictor.layout.classes == ("no", "yes")
    assert lowcal.multicalibrate("y", "p", pd.DataFrame(columns)[["y", "p", "g0"]]).predictor.layout.classes == (0, 1)


def test_several_classes_by_name():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 600)
    y = (rng.random((600, 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    frame = pd.DataFrame({"a": rng.integers(0, 3, 600), "y": y, **{f"p{k}": p[:, k] for k in range(3)}})
    names = ["p0", "p1", "p2"]
    fit = lowcal.multicalibrate("y", names, frame, guard=False, alpha=0.001)
    wanted = lowcal.multicalibrate(y, p, frame[["a"]], guard=False, alpha=0.001)
    assert fit.predictor.to_dict() == wanted.predictor.to_dict()
    np.testing.assert_array_equal(fit.predictor(names, frame), wanted.predictor(p, frame[["a"]]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("why", "p", pd.DataFrame(people())), "no column 'why'"),
        (("y", "p_", pd.DataFrame(people())), "Did you mean 'p'"),
        (("y", P, None), "y names the column 'y', but X is None"),
        (("y", "p", np.eye(2)), "X has no column 'y'"),
    ],
)
def test_names_that_are_no_columns_are_refused(given, words):
    with pytest.raises(InvalidInput, match=words):
        lowcal.audit(*given)


def test_rows_on_a_cluster_are_not_collected():
    dask = pytest.importorskip("dask.dataframe")
    frame = dask.from_pandas(pd.DataFrame(people()), npartitions=2)
    with pytest.raises(InvalidInput, match="lies on a cluster: give y, p"):
        lowcal.audit(people()["y"], "p", frame)
    with pytest.raises(InvalidInput, match="rows lie on a cluster"):
        Table.of(frame)


# --- rows that lie in files ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A folder with the people in three Parquet files, one of them deeper."""
    table = pa.table({name: column for name, column in people().items() if name != "answer"})
    (tmp_path / "rows" / "more").mkdir(parents=True)
    for k, name in enumerate(("a.parquet", "b.parquet", "more/c.parquet")):
        pq.write_table(table.slice(k * 700, 700), tmp_path / "rows" / name)
    (tmp_path / "rows" / "notes.txt").write_text("not rows")
    return tmp_path / "rows"


def sources(folder):
    """Return the same rows in every form."""
    files = sorted(folder.glob("**/*.parquet"))
    return {
        "folder": folder,
        "text": str(folder),
        "glob": f"{folder}/**/*.parquet",
        "list": files,
        "names": [str(file) for file in files],
        "dataset": dataset.dataset(files),
        "function": lambda: (pq.read_table(file) for file in files),
    }


@pytest.mark.parametrize("form", ["folder", "text", "glob", "list", "names", "dataset", "function"])
def test_rows_in_files_are_read_as_a_table(form, folder):
    X = sources(folder)[form]
    frame = pd.DataFrame(people()).drop(columns="answer")
    fit = lowcal.multicalibrate("y", "p", X, sample_weight="weight", alpha=0.01)
    wanted = lowcal.multicalibrate("y", "p", frame, sample_weight="weight", alpha=0.01)
    assert fit.predictor.to_dict() == wanted.predictor.to_dict()
    calibrated = np.concatenate(list(fit.predictor("p", X)))
    np.testing.assert_array_equal(calibrated, wanted.predictor("p", frame))
    audits = [lowcal.audit("y", "p", rows, random_state=0).to_dict() for rows in (X, frame)]
    assert audits[0] == audits[1]
    measured = lowcal.measure("y", "p", X, subpopulations=Groups(["g0"]), memory=1)
    assert measured.largest == pytest.approx(
        lowcal.measure("y", "p", frame, subpopulations=Groups(["g0"])).largest, abs=1e-12
    )


def test_files_that_no_rows_can_be_read_from(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    whole = (folder / "b.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    pq.write_table(pa.table({"y": [0, 1], "p": ["low", "high"]}), folder / "d.parquet")
    for X, words in (
        (tmp_path / "empty", "holds no file that ends in"),
        (f"{tmp_path}/*.csv", "No file matches"),
        (tmp_path / "nowhere.parquet", "There is no file"),
        (tmp_path / "cut.parquet", "cut.parquet"),
        (folder / "notes.txt", "neither a Parquet nor an Arrow file"),
        (folder, "has no column 'g0'"),
    ):
        with pytest.raises(InvalidInput, match=words):
            lowcal.audit("y", "p", X)
