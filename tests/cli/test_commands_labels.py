"""Labels of a file: which class a row has, and which class each probability refers to."""

import numpy as np
import pyarrow as pa
import pytest

from lowcal.cli.main import WrongUsage
from lowcal.cli.rows import FileLabels, choose_classes, encode_labels
from lowcal.data.errors import InvalidInput
from lowcal.data.frames import categorical
from lowcal.data.inputs import read_outcomes


def numbers(*values):
    return pa.array(values, pa.float64())


def texts(*values):
    return pa.array(values, pa.string())


def whole(*values):
    return pa.array(values, pa.int64())


def truth(*values):
    return pa.array([bool(value) for value in values])


class Read:
    """The classes of a column, and the position of each row's."""

    def __init__(self, column, probability, classes, positive):
        labels = FileLabels("y", column.unique().to_pylist())
        self.classes = choose_classes(labels, probability, classes, positive)
        self.y = encode_labels(column, self.classes)


read_labels = Read


def classes_of(labels):
    return [labels.classes[k] for k in labels.y.tolist()]


@pytest.mark.parametrize(
    ("column", "positive", "expected"),
    [
        (numbers(0, 1, 1), None, [0, 1, 1]),
        (numbers(1, 2, 2), None, [1, 2, 2]),
        (numbers(1, -1, 1), None, [1, -1, 1]),
        (numbers(5, 2.5, 5), None, [5, 2.5, 5]),
        (whole(2**53 + 1, 2**53), None, [2**53 + 1, 2**53]),
        (truth(0, 1, 1), None, [False, True, True]),
        (texts("no", "yes", "no"), "yes", ["no", "yes", "no"]),
        (texts("no", "yes", "no"), "no", ["no", "yes", "no"]),
        (numbers(1, 2, 2), "2", [1, 2, 2]),
        (numbers(1, 2, 2), "1.0", [1, 2, 2]),
        (numbers(0, 1, 1), "0", [0, 1, 1]),
        (truth(0, 1, 1), "TRUE", [False, True, True]),
        (texts("a", "b", "c"), "b", ["not b", "b", "not b"]),
        (numbers(3, 1, 2), "3", [3, "not 3", "not 3"]),
    ],
)
def test_one_probability_speaks_of_the_positive_label(column, positive, expected):
    labels = read_labels(column, ["p"], None, positive)
    assert classes_of(labels) == expected
    assert len(labels.classes) == 2
    if positive is not None:
        assert str(labels.classes[1]).lower().removesuffix(".0") == positive.lower().removesuffix(".0")
    assert labels.y.dtype == np.uint8


@pytest.mark.parametrize(
    "values", [(0, 1, 1), (1, 2, 2), (1, -1, 1), (-0.5, 0.5, 0.5), (0.25, 1, 0), (0.25, 0.75), (0.25, 0.25)]
)
def test_numbers_are_read_as_the_library_reads_them(values):
    labels = read_labels(numbers(*values), ["p"], None, None)
    library = read_outcomes(values, [0.5] * len(values))
    assert labels.classes == library.layout.classes
    assert labels.y.tolist() == library.y[:, 0].tolist()


def test_outcomes_between_zero_and_one_stay_numbers():
    labels = read_labels(numbers(0.25, 1, 0), ["p"], None, None)
    assert labels.classes is None
    assert labels.y.tolist() == [0.25, 1, 0]


@pytest.mark.parametrize(
    ("column", "positive", "message"),
    [
        (texts("no", "yes"), None, r"holds 'no', 'yes'; say which .* --positive yes\.$"),
        (texts("<=50K", ">50K"), None, r"--positive '>50K'\.$"),
        (texts("a", "b", "c"), None, r"3 different labels \('a', 'b', 'c'\), but there is one probability column"),
        (numbers(1, 2, 3, 4, 5, 6), None, r"6 different labels \('1', '2', '3', '4', '5', \.\.\.\)"),
        (
            texts("no", "yes"),
            "yess",
            r"--positive 'yess' does not occur in column 'y', which holds .* Did you mean 'yes'\?",
        ),
        (numbers(1, 1), None, "holds only the label '1', but two are needed"),
        (numbers(2, 2), None, "holds only the label '2', but two are needed"),
        (truth(1, 1), None, "holds only the label 'True', but two are needed"),
        (texts("a", "a"), None, "holds only the label 'a', but two are needed"),
        (texts("a", "a"), "a", "holds only the label 'a', but two are needed"),
    ],
)
def test_unclear_labels_are_told_with_what_to_do(column, positive, message):
    with pytest.raises(InvalidInput, match=message):
        read_labels(column, ["p"], None, positive)


@pytest.mark.parametrize(
    ("column", "probability", "given", "expected"),
    [
        (texts("b", "a", "c"), ["a", "b", "c"], None, ["b", "a", "c"]),
        (texts("b", "a", "c"), ["p_a", "p_b", "p_c"], None, ["b", "a", "c"]),
        (texts("b", "a"), ["p_a.x", "p_b.x", "p_c.x"], None, ["b", "a"]),
        (numbers(11, 10, 12), ["p_10", "p_11", "p_12"], None, [11, 10, 12]),
        (numbers(1, 0, 2), ["p_10", "p_11", "p_12"], None, [1, 0, 2]),
        (texts("b", "a", "c"), ["q1", "q2", "q3"], ["c", "b", "a"], ["b", "a", "c"]),
        (numbers(1, 0, 2), ["q1", "q2", "q3"], ["0", "1", "2"], [1, 0, 2]),
        (truth(0, 1), ["p_False", "p_True"], None, [False, True]),
        (texts("no", "yes"), ["p_no", "p_yes"], None, ["no", "yes"]),
    ],
)
def test_each_probability_is_named_by_its_class(column, probability, given, expected):
    labels = read_labels(column, probability, given, None)
    assert classes_of(labels) == expected
    assert len(labels.classes) == len(probability)


def test_absent_classes_keep_their_place():
    labels = read_labels(texts("c", "a"), ["p_a", "p_b", "p_c"], None, None)
    assert labels.classes == ("a", "b", "c")
    assert labels.y.tolist() == [2, 0]


def test_a_whole_name_comes_before_a_part_of_it():
    assert read_labels(texts("bb"), ["bb", "bbb"], None, None).classes == ("bb", "bbb")


def test_classes_that_do_not_fit_are_told():
    with pytest.raises(InvalidInput, match="holds the label 'd', which --classes does not name"):
        read_labels(texts("a", "d"), ["p_a", "p_b", "p_c"], ["a", "b", "c"], None)
    with pytest.raises(InvalidInput, match="'x', but no probability column is named after it; name the classes"):
        read_labels(texts("x", "y"), ["p_a", "p_b", "p_c"], None, None)
    with pytest.raises(WrongUsage, match="--classes names 2 classes, but there are 3 probability columns"):
        read_labels(texts("a"), ["p", "q", "r"], ["a", "b"], None)
    with pytest.raises(WrongUsage, match="--classes names 2 classes, but there are 3"):
        read_labels(texts("a"), ["p", "q", "r"], ["a", "b", "a"], None)
    with pytest.raises(WrongUsage, match="--classes names 1 classes, but a single probability column needs two"):
        read_labels(numbers(1, 2), ["p"], ["1", "1.0"], None)
    with pytest.raises(WrongUsage, match="--positive goes with one probability column"):
        read_labels(texts("a", "b"), ["p_a", "p_b"], None, "a")
    labels = read_labels(texts("a", "b"), ["p"], ["b", "a"], None)
    assert (labels.classes, labels.y.tolist()) == (("b", "a"), [1, 0])


def test_categories_join_equal_values():
    column = categorical("x", ["a", None, "b", "a"], np.array([0, 1, 2, 3, 4]))
    assert column.categories == ("a", "b")
    assert column.codes.tolist() == [0, -1, 1, 0, -1]
