"""Bad input: every case raises an error of lowcal that says what is wrong, where, what was given and what to do."""

from __future__ import annotations

import datetime as dt
import re

import numpy as np
import pytest
from scipy import sparse
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import lowcal
from lowcal import (
    Full,
    Groups,
    Intersections,
    InvalidInput,
    Linear,
    LowDegree,
    Memberships,
    MissingColumn,
    MulticalibratedClassifier,
    MulticalibratedRegressor,
    Regressor,
    Thresholds,
    Trees,
)

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

N = 60
Y = np.arange(N) % 2
P = np.where(Y == 1, 0.7, 0.4)
Y3 = np.arange(N) % 3
P3 = np.tile([0.2, 0.3, 0.5], (N, 1))
X = {"age": np.arange(N, dtype=float), "sex": np.array(["F", "M"] * (N // 2), dtype=object)}
C = np.column_stack([np.arange(N) < 30, np.arange(N) >= 20, np.full(N, 0.5)]).astype(float)
GROUPS = Groups(["sex", "age"], min_mass=1)


def calibrate(y=Y, p=P, X=X, **options):
    return lowcal.multicalibrate(y, p, X, **{"alpha": 0.05, "subpopulations": None if X is None else GROUPS, **options})


def audit(y=Y, p=P, X=X, **options):
    return lowcal.measure(y, p, X, **{"subpopulations": None if X is None else GROUPS, **options})


def changed(array, place, value):
    array = np.array(array, dtype=float if isinstance(value, float | int) else object)
    array[place] = value
    return array


def says(*parts, error=InvalidInput):
    """Expect an error of lowcal whose message has all these parts, in this order."""
    assert issubclass(error, lowcal.LowcalError)
    assert issubclass(error, ValueError)
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(part) for part in parts))


both = pytest.mark.parametrize("call", [calibrate, audit])


@pytest.fixture(scope="module")
def predictor():
    return calibrate().predictor


@pytest.fixture(scope="module")
def predictor3():
    return calibrate(Y3, P3).predictor


# --- p --------------------------------------------------------------------------------------------------------

BAD_P = [
    (np.nan, "p is nan in row 3", "Drop or impute"),
    (np.inf, "p is inf in row 3", "Drop or impute"),
    (-np.inf, "p is -inf in row 3", "Drop or impute"),
    (-0.1, "p is -0.1 in row 3", "outside [0, 1]", "Give probabilities"),
    (1.5, "p is 1.5 in row 3", "outside [0, 1]", "Give probabilities"),
    ("high", "p is the text 'high' in row 3", "Convert"),
    ("0.5", "p is the text '0.5' in row 3", "Convert"),
    (None, "p is nan in row 3", "Drop or impute"),
]


@both
@pytest.mark.parametrize(("value", "parts"), [(value, parts) for value, *parts in BAD_P])
def test_bad_probability(call, value, parts):
    with says(*parts):
        call(p=changed(P, 3, value))


@pytest.mark.parametrize(("value", "parts"), [(value, parts) for value, *parts in BAD_P])
def test_bad_probability_at_predict(predictor, value, parts):
    with says(*parts):
        predictor(changed(P, 3, value), X)
    with says(*parts):
        list(predictor.staged(changed(P, 3, value), X))


@both
@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1, 1.5, "x"])
def test_bad_probability_names_the_column(call, predictor3, value):
    with says("in row 4, column 2"):
        call(Y3, changed(P3, (4, 2), value))
    with says("in row 4, column 2"):
        predictor3(changed(P3, (4, 2), value), X)


@both
@pytest.mark.parametrize("p", [P3, np.column_stack([1 - P, P])], ids=["simplex", "binary"])
def test_rows_that_do_not_sum_to_one(call, predictor, predictor3, p):
    y = Y3 if p.shape[1] == 3 else Y
    replay = predictor3 if p.shape[1] == 3 else predictor
    off = p.copy()
    off[7] *= 0.9
    for bad in (lambda: call(y, off), lambda: replay(off, X)):
        with says("Row 7 of p sums to 0.9", "tolerance 0.0001", "Normalise"):
            bad()
    near = p * (1 + 1e-5)
    np.testing.assert_allclose(replay(near, X), replay(p, X), atol=1e-12)
    np.testing.assert_allclose(replay(near, X).sum(axis=1), 1.0, atol=1e-12)


@both
@pytest.mark.parametrize(
    ("p", "parts"),
    [
        (np.zeros((N, 2, 1)), ("p must have shape (n,) or (n, l)", "(60, 2, 1)")),
        (None, ("p must have shape", "()")),
        (0.5, ("p must have shape", "()")),
        (["a"] * N, ("p is the text 'a' in row 0", "Convert")),
        ([[0.1, 0.9], [0.5]], ("p can't be read as an array", "Give every row")),
        (P + 0.1j, ("p must hold numbers", "complex128", "Convert")),
        (np.full(N, "1970-01-01", dtype="M8[D]"), ("p must hold numbers", "datetime64", "Convert")),
        ({"a": 1}, ("p must hold numbers", "dict")),
        (sparse.csr_array(P3), ("p must hold numbers",)),
        (np.ma.array(P, mask=np.arange(N) == 5), ("p is nan in row 5",)),
        (pl.Series([0.5, None] * (N // 2)), ("p is nan in row 1",)),
        (pd.Series(P, dtype="Float64").mask(pd.Series(np.arange(N) == 6)), ("p is nan in row 6",)),
    ],
)
def test_p_that_is_no_array_of_probabilities(call, p, parts):
    with says(*parts):
        call(p=p)


def test_p_of_another_shape_at_predict(predictor, predictor3):
    with says("p must have shape (n,) or (n, 2)", "(60, 3)"):
        predictor(P3, X)
    with says("p must have 3 columns", "(60,)"):
        predictor3(P, X)
    with says("p must have 3 columns", "(60, 2)"):
        predictor3(np.column_stack([1 - P, P]), X)


# --- y --------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("y", "p", "options", "parts"),
    [
        (np.ones(N, int), P, {}, ("y holds one class only (1)", "at least two", "classes=[0, 1]")),
        (np.zeros(N, int), P3, {}, ("y holds one class only (0)", "classes=[0, 1, 2]")),
        (np.full(N, "yes"), P, {}, ("y holds 1 classes ('yes')", "classes=")),
        (np.where(np.arange(N) < 1, 1, 0), P, {"sample_weight": np.arange(N) > 0}, ("one class only (0)", "weight")),
        (np.linspace(0.0, 1.9, N), P, {}, ("numbers from 0 to 1.9 that are not labels", "MulticalibratedRegressor")),
        (Y3, P, {}, ("y holds 3 classes (0, 1, 2)", "p has columns for 2", "a column for each")),
        (np.array(["a", "b", "c"] * 20), P, {}, ("y holds 3 classes ('a', 'b', 'c')", "p has columns for 2")),
        (changed(Y3, 5, 3), P3, {}, ("y holds 4 classes", "p has columns for 3", "column for each class")),
        (np.array(["a", "b"] * 30), P3, {}, ("y holds 2 classes ('a', 'b')", "3 columns", "classes=[...]")),
        (np.array(["a", "b"] * 30), P, {"classes": ["a", "c"]}, ("y is 'b' in row 1", "no column", "'a', 'c'")),
        (Y, P, {"classes": [0, 1, 2]}, ("3 classes were given (0, 1, 2)", "columns for 2")),
        (Y, P, {"classes": [0, 0]}, ("classes must be different", "0, 0")),
        (Y, P, {"classes": [[0], [1]]}, ("classes must be different", "[0], [1]")),
        (Y, P, {"classes": 5}, ("classes must be a list", "5")),
        (Y, P, {"classes": "01"}, ("classes must be a list", "'01'")),
        (changed(Y, 4, np.nan), P, {}, ("y is missing in row 4", "Drop")),
        (changed(Y, 4, None), P, {}, ("y is missing in row 4", "Drop")),
        (changed(["a", "b"] * 30, 4, None), P, {}, ("y is missing in row 4", "Drop")),
        (pd.Series(Y, dtype="Int64").mask(pd.Series(np.arange(N) == 4)), P, {}, ("y is missing in row 4",)),
        (pd.Series(["a", "b"] * 30, dtype="string").mask(pd.Series(np.arange(N) == 4)), P, {}, ("missing in row 4",)),
        (pd.Categorical(["a", "b", None] * 20), P, {}, ("y is missing in row 2",)),
        (pl.Series([None, "a", "b"] * 20), P, {}, ("y is missing in row 0",)),
        (np.ma.array(Y, mask=np.arange(N) == 9), P, {}, ("y is missing in row 9",)),
        (np.where(Y == 1, np.inf, 0.0), P, {}, ("y is inf in row 1", "finite")),
        (np.array([[1], [1, 2]] * 30, dtype=object), P, {}, ("y is [1] in row 0", "text or a number")),
        ([[1], [1, 2]] * 30, P, {}, ("y can't be read as an array",)),
        (np.array(["2020", "2021"] * 30, dtype="M8[D]"), P, {}, ("y holds values of the type datetime64", "Convert")),
        (np.full((N, 2), 0.2), P, {}, ("Row 0 of y sums to 0.4", "tolerance 0.0001", "Normalise")),
        (np.full((N, 3), 0.2), P3, {}, ("Row 0 of y sums to 0.6",)),
        (changed(np.full((N, 2), 0.5), (8, 1), 1.5), P, {}, ("y is 1.5 in row 8, column 1", "[0, 1]")),
        (changed(np.full((N, 2), 0.5), (8, 1), np.nan), P, {}, ("y is nan in row 8, column 1",)),
        (np.full((N, 2), "a"), P, {}, ("y is the text 'a' in row 0, column 0",)),
        (np.zeros((N, 3)), P, {}, ("y must have shape (n,), or (n, 2)", "(60, 3)")),
        (np.zeros((N, 2, 2)), P, {}, ("y must have shape (n,)", "(60, 2, 2)")),
        (np.linspace(-0.1, 1, N), P, {}, ("y holds numbers from -0.1 to 1 that are not labels", "[0, 1]")),
        (None, P, {}, ("y must hold a label for each row", "None")),
        (1, P, {}, ("y must hold a label for each row", "1")),
    ],
)
def test_bad_labels(call, y, p, options, parts):
    with says(*parts):
        call(y, p, **options)


def test_labels_that_look_odd_but_are_two_classes():
    assert calibrate(2 * Y - 1).predictor.layout.classes == (-1, 1)
    assert calibrate(Y, P3).predictor.layout.classes == (0, 1, 2)  # whole numbers name the columns of p


# --- lengths, weights, nothing at all ------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"y": Y[:-1]}, ("y has 59 rows", "p has 60")),
        ({"p": P[:-1]}, ("y has 60 rows", "p has 59")),
        ({"X": {"age": np.arange(59.0), "sex": X["sex"][:-1]}}, ("X has 59 rows", "p has 60")),
        ({"sample_weight": np.ones(59)}, ("sample_weight has 59 rows", "p has 60")),
        ({"X": {"age": np.arange(59.0), "sex": X["sex"]}}, ("columns of X differ in length", "('age', 59)")),
    ],
)
def test_lengths_that_differ(call, options, parts):
    with says(*parts):
        call(**options)


def test_lengths_that_differ_at_predict(predictor):
    with says("X has 60 rows", "p has 59"):
        predictor(P[:-1], X)
    with says("X has no column", "it has none", error=MissingColumn):
        predictor(P)


@both
@pytest.mark.parametrize(
    ("weight", "parts"),
    [
        (changed(P, 3, -1.0), ("sample_weight is -1.0 in row 3", "not negative", "weight 0")),
        (changed(P, 3, np.nan), ("sample_weight is nan in row 3", "finite")),
        (changed(P, 3, np.inf), ("sample_weight is inf in row 3", "finite")),
        (np.zeros(N), ("All sample weights are zero", "positive weight")),
        (np.ones((N, 1)), ("sample_weight must have one dimension", "(60, 1)")),
        (2.0, ("sample_weight must have one dimension", "()")),
        (["heavy"] * N, ("sample_weight is the text 'heavy' in row 0",)),
    ],
)
def test_bad_weights(call, weight, parts):
    with says(*parts):
        call(sample_weight=weight)


def test_huge_and_tiny_weights_are_only_relative():
    for size in (1e308, 1e-300):
        fit = calibrate(sample_weight=np.full(N, size))
        np.testing.assert_allclose(fit.predictor(P, X), calibrate().predictor(P, X), atol=1e-12)


@both
@pytest.mark.parametrize("p", [np.zeros(0), [], np.zeros((0, 3))])
@pytest.mark.parametrize("table", [None, {"age": [], "sex": []}])
def test_empty_input(call, p, table):
    with says("empty", "p has no rows", "at least one row"):
        call([], p, table)


def test_predicting_nothing_gives_nothing(predictor, predictor3):
    none = {"age": [], "sex": []}
    assert predictor(np.zeros(0), none).shape == (0,)
    assert predictor3(np.zeros((0, 3)), none).shape == (0, 3)


# --- X and subpopulations ------------------------------------------------------------------------------------


def as_frame(matrix):
    return pd.DataFrame(matrix, columns=["a", "b", "c"])


@pytest.mark.parametrize("value", [1.5, -0.25, np.nan, np.inf])
@pytest.mark.parametrize(
    ("form", "column"), [(np.asarray, "x1"), (as_frame, "b"), (sparse.csr_array, "x1"), (sparse.coo_matrix, "x1")]
)
def test_memberships_outside_the_unit_interval(form, column, value):
    bad = changed(C, (7, 1), value)
    parts = ("Memberships must lie in [0, 1]", f"row 7, column '{column}'", f"{value:.6g}", "Clip")
    for call in (calibrate, audit):
        with says(*parts):
            call(X=form(bad), subpopulations=Memberships())
    with says(*parts):
        calibrate(X=form(C), subpopulations=Memberships()).predictor(P, form(bad))


def test_memberships_of_the_wrong_kind():
    with says("Column 'sex' holds text", "Use Groups"):
        calibrate(subpopulations=Memberships())
    with says("at least one column", "none"):
        calibrate(X=np.zeros((N, 0)), subpopulations=Memberships())
    for names in (["a"], "abc", list("abcd")):
        with says("X has 3 columns", repr(names), "Name each column"):
            calibrate(X=C, subpopulations=Memberships(names))
    with says("'a' stands for several", "names="):
        calibrate(X=C, subpopulations=Memberships(["a", "a", "b"]))
    with says("'everyone' stands for several", "everyone=False"):
        calibrate(X={"everyone": C[:, 0], "b": C[:, 1]}, subpopulations=Memberships())


def test_memberships_must_be_the_fitted_ones():
    fitted = calibrate(X=as_frame(C), subpopulations=Memberships(), alpha=0.001).predictor
    with says("X has 2 columns", "3 were fitted (a, b, c)", "same columns"):
        fitted(P, as_frame(C)[["a", "b"]])
    with says("X has 0 columns", "3 were fitted"):
        fitted(P)
    with says("no column 'a'", error=MissingColumn):
        fitted(P, as_frame(C).rename(columns={"a": "zz"}))
    np.testing.assert_array_equal(fitted(P, as_frame(C)), fitted(P, as_frame(C)[["c", "a", "b"]]))
    np.testing.assert_array_equal(fitted(P, as_frame(C)), fitted(P, C))


CLASSES = [Groups, Intersections, Thresholds, lambda c: Trees(columns=c), Linear, lambda c: Regressor(Ridge(), c)]


@both
@pytest.mark.parametrize("make", CLASSES)
def test_a_column_that_does_not_exist(call, make):
    with says("no column 'agee'", "'age', 'sex'", "Did you mean 'age'?", error=MissingColumn):
        call(subpopulations=make(["agee"]))
    with says("no column 7", "'age', 'sex'", error=MissingColumn):
        call(subpopulations=make(7))
    with says("columns must be a name, a position", "0.5"):
        call(subpopulations=make(0.5))


@pytest.mark.parametrize("make", CLASSES)
def test_a_column_that_is_gone_at_predict(make):
    fit = calibrate(subpopulations=make(["age"]))
    with says("no column 'age'", "'agee'", "Did you mean 'agee'?", error=MissingColumn):
        fit.predictor(P, {"agee": X["age"]})


def test_a_missing_column_is_a_key_error_with_a_plain_message():
    with pytest.raises(KeyError) as caught:
        calibrate(subpopulations=Groups("sexx"))
    assert str(caught.value).startswith("X has no column 'sexx'")


@both
@pytest.mark.parametrize(("wrong", "shown"), [("sex", "'sex'"), (Groups, "Groups"), (5, "5")])
def test_subpopulations_of_a_wrong_type(call, wrong, shown):
    with says("subpopulations must be", "Groups([...])", shown):
        call(subpopulations=wrong)


@both
def test_subpopulations_without_x(call):
    with says("subpopulations were given without X", "pass the columns"):
        call(X=None, subpopulations=GROUPS)


@both
@pytest.mark.parametrize(
    ("table", "given"),
    [
        ({"age": X["age"], "time": np.full(N, 1, dtype="m8[D]")}, "timedelta64"),
        (pl.DataFrame({"age": X["age"], "time": [dt.time(1)] * N}), "Time"),
        (pl.DataFrame({"age": X["age"], "time": [[1, 2]] * N}), "List"),
        (pl.DataFrame({"age": X["age"], "time": [{"a": 1}] * N}), "Struct"),
        ({"age": X["age"], "time": np.array([dt.date(2020, 1, 1), "never"] * (N // 2), dtype=object)}, "date"),
    ],
)
def test_a_column_that_no_class_can_use(call, table, given):
    for every in (None, Groups(min_mass=1), Trees(), Linear()):
        with says("Column 'time' of X", given, "convert it", "name the columns to use"):
            call(X=table, subpopulations=every)
    call(X=table, subpopulations=Groups(["age"], min_mass=1))


def test_dates_and_other_values_are_not_confused():
    days = {"age": np.datetime64("2020-01-01") + np.arange(N)}
    for made in (Groups("age", min_mass=1), Trees(columns="age")):
        with says("Column 'age' of X holds no dates, but was fitted on dates", "Convert it"):
            calibrate(X=days, subpopulations=made).predictor(P, X)
        with says("Column 'age' of X holds dates, but was fitted on other values", "Convert it"):
            calibrate(subpopulations=made).predictor(P, days)
    predictor = calibrate(X=days, subpopulations=Groups("age", min_mass=1)).predictor
    for value in (3.0, "2020-01-04"):
        with says("Column 'age' of X holds no dates"):
            predictor.one(0.5, {"age": value})
    text = {"age": days["age"].astype(str).astype(object)}
    with says("Column 'age' of X holds dates, but was fitted on other values"):
        calibrate(X=text, subpopulations=Groups("age", min_mass=1)).predictor(P, days)


@pytest.mark.parametrize("make", [Thresholds, lambda c: Thresholds([c, "age"])])
def test_thresholds_of_text(make):
    with says("Column 'sex' of X is not numeric", "'F', 'M'", "Encode it"):
        calibrate(subpopulations=make("sex"))
    with says("at least one numeric column"):
        calibrate(subpopulations=Thresholds([]))


def test_numbers_that_became_text_at_predict():
    for made in (Groups("age", min_mass=1), Thresholds("age"), Linear("age"), Trees(columns="age")):
        fit = calibrate(subpopulations=made)
        with says("Column 'age' of X is not numeric", "'old'", "Encode it"):
            fit.predictor(P, {"age": np.full(N, "old", dtype=object)})


@pytest.mark.parametrize("table", [5, np.zeros((N, 1, 1))])
def test_x_that_is_no_table(table):
    with says("X is"):
        calibrate(X=table)


def test_x_that_is_no_file():
    with says("There is no file text"):
        calibrate(X="text")


BAD_OPTIONS = [
    (Groups(n_bins=1), "n_bins must be a whole number of at least 2", "1"),
    (Groups(n_bins=np.nan), "n_bins must be", "nan"),
    (Groups(n_bins="5"), "n_bins must be", "'5'"),
    (Groups(n_bins=2.5), "n_bins must be", "2.5"),
    (Intersections(n_bins=1), "n_bins must be", "1"),
    (Intersections(depth=0), "depth must be a whole number of at least 1", "0"),
    (Intersections(depth=1.5), "depth must be", "1.5"),
    (Intersections(depth="2"), "depth must be", "'2'"),
    (Intersections(depth=True), "depth must be", "True"),
    (Trees(max_depth=0), "max_depth must be a whole number between 1 and 12", "0"),
    (Trees(max_depth=13), "max_depth must be", "13"),
    (Trees(max_depth=2.5), "max_depth must be", "2.5"),
    (Trees(["age"]), "max_depth must be", "['age']"),
    (Trees(max_bins=1), "max_bins must be a whole number of at least 2", "1"),
    (Trees(max_bins=0), "max_bins must be", "0"),
    (Linear(ridge=0), "ridge must be a positive number", "0"),
    (Linear(ridge=-1.0), "ridge must be", "-1.0"),
    (Linear(ridge=np.nan), "ridge must be", "nan"),
    (Linear(ridge=np.inf), "ridge must be", "inf"),
    (Linear(ridge="small"), "ridge must be", "'small'"),
    (Regressor(DecisionTreeClassifier()), "Regressor needs", "DecisionTreeClassifier()"),
    (Regressor(DecisionTreeRegressor), "Regressor needs", "DecisionTreeRegressor"),
    (Regressor(3), "Regressor needs", "3"),
    (Regressor(None), "Regressor needs", "None"),
    (Regressor(Ridge(), []), "nothing to learn from"),
    (Groups(min_mass=1000, everyone=False), "at least 1000 rows", "lower min_mass or keep everyone=True"),
    (Intersections(min_mass=1000, everyone=False), "at least 1000 rows", "lower min_mass"),
    (Thresholds("age", min_mass=1000, everyone=False), "at least 1000 rows", "lower min_mass"),
    (Groups([], everyone=False), "no subpopulation", "everyone=True"),
]


@both
@pytest.mark.parametrize(("made", "parts"), [(made, parts) for made, *parts in BAD_OPTIONS], ids=str)
def test_bad_options_of_subpopulations(call, made, parts):
    with says(*parts):
        call(subpopulations=made)


@pytest.mark.parametrize("value", [-1, np.nan, "many", None])
@pytest.mark.parametrize("make", [Groups, Intersections, Thresholds, Trees, Memberships])
def test_bad_min_mass(make, value):
    with says("min_mass is a number of rows of at least 0", repr(value)):
        calibrate(X=C, subpopulations=make(min_mass=value))


def test_memberships_too_small():
    with says("at least 1000 rows", "everyone=True"):
        calibrate(X=C, subpopulations=Memberships(min_mass=1000, everyone=False))


# --- options of the fit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0, -1, 0.0, np.nan, np.inf, "0.1", True, [0.1]])
def test_bad_alpha(alpha):
    with says("alpha must be a positive number", repr(alpha), "Typical"):
        calibrate(alpha=alpha)


@both
@pytest.mark.parametrize(
    ("notion", "parts"),
    [
        ("degre-2", ("Unknown notion 'degre-2'", "Did you mean 'degree-2'?")),
        ("ful-0.1", ("Unknown notion 'ful-0.1'", "Did you mean 'full-0.1'?")),
        ("smoth", ("Unknown notion 'smoth'", "Did you mean 'smooth'?")),
        ("multi-accuracy", ("Unknown notion 'multi-accuracy'", "Did you mean 'multiaccuracy'?")),
        ("degree--1", ("Unknown notion 'degree--1'", "Did you mean 'degree-1'?")),
        ("banana", ("Unknown notion 'banana'", "Valid: 'multiaccuracy', 'degree-2'")),
        ("", ("Unknown notion ''", "Valid")),
        ("degree-0", ("degree must be a whole number of at least 1", "0")),
        ("full-0", ("width of the cells must be in (0, 1]", "0")),
        ("full-2", ("width of the cells must be in (0, 1]", "2")),
        ("full-1e-12", ("at least 1e-06, but 1e-12 was given", "noise", "larger width")),
        ("full-0.0000001", ("at least 1e-06, but 1e-07 was given", "larger width")),
        ("degree-65", ("degree must be at most 64, but 65 was given", "nearly the same function", "lower degree")),
        ("degree-99999999999999999999", ("at most 64, but 99999999999999999999 was given", "lower degree")),
        (f"degree-{'9' * 5000}", ("Unknown notion 'degree-999", "Valid")),
    ],
)
def test_unknown_notion(call, notion, parts):
    with says(*parts):
        call(notion=notion)


@pytest.mark.parametrize("make", [lambda: LowDegree(0), lambda: LowDegree(1.5), lambda: LowDegree("2")])
def test_bad_degree(make):
    with says("degree must be a whole number"):
        make()


def test_more_monomials_than_memory_holds():
    with says("degree 7 in 10 classes have 19,448 monomials", "more than the 3,000", "degree-2"):
        lowcal.measure(np.arange(60) % 10, np.full((60, 10), 0.1), notion="degree-8")
    with says("degree must be at most 64, but 100000 was given"):
        lowcal.LowDegree(100_000)
    assert len(lowcal.LowDegree(2).basis(np.full((1, 5000), 1 / 5000), 0.1)) == 5001  # as many as p has columns


@pytest.mark.parametrize("width", [0, -0.1, 1.5, np.nan])
def test_bad_width(width):
    with says("width of the cells must be in (0, 1]", repr(width)):
        Full(width)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"solver": "frist"}, ("Unknown solver 'frist'", "first, worst, block", "Did you mean 'first'?")),
        ({"solver": None}, ("Unknown solver None", "first, worst, block")),
        ({"geometry": "miror"}, ("Unknown geometry 'miror'", "Did you mean 'mirror'?")),
        ({"solver": "first", "geometry": "mirror"}, ('solver "first"', "Euclidean", 'use "worst" or "block"')),
        ({"step": 0}, ("step must be", "(0, 1]", "0")),
        ({"step": 2}, ("step must be", "2 was given")),
        ({"step": np.nan}, ("step must be", "nan")),
        ({"step": "newton"}, ("step must be", "'newton'")),
        ({"validation_fraction": 1}, ("validation_fraction must be", "[0, 1)", "1")),
        ({"validation_fraction": -0.1}, ("validation_fraction must be", "-0.1")),
        ({"validation_fraction": np.nan}, ("validation_fraction must be", "nan")),
        ({"validation_fraction": 0.999}, ("validation_fraction=0.999 of 60 rows", "use 0 or more rows")),
        ({"max_updates": 0}, ("max_updates must be", "at least 1", "0")),
    ],
    ids=str,
)
def test_bad_options_of_the_fit(options, parts):
    with says(*parts):
        calibrate(**options)


# --- estimators ----------------------------------------------------------------------------------------------

FEATURES = np.random.default_rng(0).normal(size=(N, 3))


@pytest.mark.parametrize("make", [MulticalibratedClassifier, MulticalibratedRegressor])
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"alpha": 0}, ("alpha must be", "0")),
        ({"notion": "degre-2"}, ("Did you mean 'degree-2'?",)),
        ({"solver": "wurst"}, ("Did you mean 'worst'?",)),
        ({"validation_fraction": 2}, ("validation_fraction must be", "2")),
        ({"validation_fraction": np.nan}, ("validation_fraction must be", "nan")),
        ({"validation_fraction": "a"}, ("validation_fraction must be", "'a'")),
        ({"subpopulations": "x0"}, ("Groups([...])", "'x0'")),
        ({"subpopulations": Groups("zz")}, ("no column 'zz'",)),
    ],
    ids=str,
)
def test_bad_options_of_an_estimator(make, options, parts):
    with pytest.raises(ValueError, match="(?s)" + ".*".join(map(re.escape, parts))) as caught:
        make(**options).fit(FEATURES, Y)
    assert isinstance(caught.value, lowcal.LowcalError)


@pytest.mark.parametrize("share", [0, 1, -0.5, np.nan, "half", None])
def test_bad_calibration_fraction(share):
    with says("calibration_fraction must be in (0, 1)", repr(share), "FrozenEstimator"):
        MulticalibratedClassifier(LogisticRegression(), calibration_fraction=share).fit(FEATURES, Y)


@pytest.mark.parametrize("bounds", [(1, 0), (0, 0), 3, (1, 2, 3), "ab", (np.nan, 1), (-np.inf, np.inf)])
def test_bad_bounds(bounds):
    with says("bounds must be (low, high)", repr(bounds)):
        MulticalibratedRegressor(bounds=bounds).fit(FEATURES, FEATURES[:, 0])


def test_outcomes_outside_the_bounds():
    with says("y is 2.5 in row 1", "bounds (0, 1)", "Widen bounds="):
        MulticalibratedRegressor(bounds=(0, 1)).fit(FEATURES, changed(Y, 1, 2.5))


def test_a_base_model_that_does_not_suit():
    with says("LinearRegression()", "neither predict_proba nor decision_function", "classifier"):
        MulticalibratedClassifier(LinearRegression()).fit(FEATURES, Y)
    model = FrozenEstimator(LogisticRegression().fit(FEATURES, Y3))
    with says("base model predicts class", "2", "all its classes"):
        MulticalibratedClassifier(model).fit(FEATURES, Y)


def test_estimators_on_bad_data():
    with says("only one class", "1"):
        MulticalibratedClassifier().fit(FEATURES, np.ones(N, int))
    with says("sample_weight is -1.0 in row 0"):
        MulticalibratedClassifier().fit(FEATURES, Y, -np.ones(N))
    with says("0 sample(s)"):
        MulticalibratedClassifier().fit(pd.DataFrame(FEATURES).iloc[:0], Y[:0])
    fitted = MulticalibratedClassifier().fit(pd.DataFrame(FEATURES, columns=list("abc")), Y)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict_proba(pd.DataFrame(FEATURES, columns=list("abd")))
