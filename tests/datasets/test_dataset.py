"""A data set is frozen, prints short, and can be sliced."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from lowcal.datasets import Dataset


def small() -> Dataset:
    return Dataset(
        X={"sex": np.array(["F", None, "M"], dtype=object), "age": np.array([30, 41, 52])},
        y=np.array([0, 1, 1]),
        p=np.array([0.1, 0.2, 0.3]),
        sample_weight=np.array([1.0, 2.0, 3.0]),
        description="three rows",
    )


def test_fields_can_not_be_reassigned():
    with pytest.raises(FrozenInstanceError):
        small().y = np.zeros(3)


def test_repr_is_short():
    assert repr(small()) == "Dataset(3 rows, columns sex, age; three rows)"


def test_importing_datasets_loads_no_heavy_library(run_python):
    heavy = "narwhals pandas polars pyarrow scipy sklearn"
    code = f"import sys, lowcal.datasets; print([m for m in {heavy.split()} if m in sys.modules])"
    assert run_python("-c", code).stdout.strip() == "[]"


@pytest.mark.parametrize("rows", [slice(1, 3), np.array([2, 0])])
def test_some_rows_are_a_data_set(rows):
    part = small()[rows]
    expected = np.arange(3)[rows]
    np.testing.assert_array_equal(part.X["age"], np.array([30, 41, 52])[expected])
    np.testing.assert_array_equal(part.p, np.array([0.1, 0.2, 0.3])[expected])
    np.testing.assert_array_equal(part.sample_weight, expected + 1.0)
    assert part.f_star is None
