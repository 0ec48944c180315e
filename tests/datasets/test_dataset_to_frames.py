"""A data set is frozen, prints short, and goes to any frame library unharmed."""

import sys
from dataclasses import FrozenInstanceError

import narwhals.stable.v2 as nw
import numpy as np
import pytest

from lowcal.datasets import Dataset
from lowcal.errors import InvalidInput, MissingExtra


def small() -> Dataset:
    return Dataset(
        X={"sex": np.array(["F", None, "M"], dtype=object), "age": np.array([30, 41, 52])},
        y=np.array([0, 1, 1]),
        p=np.array([0.1, 0.2, 0.3]),
        sample_weight=np.array([1.0, 2.0, 3.0]),
        description="three rows",
    )


@pytest.mark.parametrize("backend", ["pandas", "polars", "pyarrow"])
def test_to_makes_a_native_frame_with_equal_values(backend):
    pytest.importorskip(backend)
    data = small()
    moved = data.to(backend)
    assert type(moved.X).__module__.split(".")[0] == backend
    frame = nw.from_native(moved.X, eager_only=True)
    assert frame.columns == ["sex", "age"]
    assert frame.schema["age"] == nw.Int64
    assert frame["age"].to_list() == [30, 41, 52]
    assert frame["sex"].is_null().to_list() == [False, True, False]
    assert frame["sex"].drop_nulls().to_list() == ["F", "M"]
    assert moved.y is data.y
    assert moved.p is data.p
    assert moved.sample_weight is data.sample_weight
    assert isinstance(data.X, dict)


@pytest.mark.parametrize("backend", ["pandas", "polars", "pyarrow"])
def test_the_frame_does_not_look_at_the_arrays_it_came_from(backend):
    pytest.importorskip(backend)
    data = small()
    frame = nw.from_native(data.to(backend).X, eager_only=True)
    data.X["age"][0] = 99
    assert frame["age"].to_list() == [30, 41, 52]


@pytest.mark.parametrize("backend", ["pandas", "polars", "pyarrow"])
def test_a_missing_library_is_named_with_its_remedy(backend, monkeypatch):
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(MissingExtra, match=f"pip install {backend}"):
        small().to(backend)


def test_an_unknown_backend_is_refused_with_the_nearest_one():
    with pytest.raises(InvalidInput, match=r"Unknown backend 'panda'.*Did you mean 'pandas'"):
        small().to("panda")


def test_a_frame_is_not_moved_twice():
    pytest.importorskip("polars")
    with pytest.raises(InvalidInput, match="already a frame of polars"):
        small().to("polars").to("polars")


def test_fields_can_not_be_reassigned():
    with pytest.raises(FrozenInstanceError):
        small().y = np.zeros(3)


def test_repr_is_short_for_columns_and_for_frames():
    pytest.importorskip("polars")
    shown = "Dataset(3 rows, columns sex, age; three rows)"
    assert repr(small()) == shown
    assert repr(small().to("polars")) == shown


def test_importing_datasets_loads_no_heavy_library(run_python):
    heavy = "narwhals pandas polars pyarrow scipy sklearn"
    code = f"import sys, lowcal.datasets; print([m for m in {heavy.split()} if m in sys.modules])"
    assert run_python("-c", code).stdout.strip() == "[]"


@pytest.mark.parametrize("backend", [None, "pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("rows", [slice(1, 3), np.array([2, 0])])
def test_some_rows_are_a_data_set(backend, rows):
    if backend is not None:
        pytest.importorskip(backend)
    part = (small() if backend is None else small().to(backend))[rows]
    expected = np.arange(3)[rows]
    age = part.X["age"] if backend is None else nw.from_native(part.X, eager_only=True)["age"].to_numpy()
    np.testing.assert_array_equal(age, np.array([30, 41, 52])[expected])
    np.testing.assert_array_equal(part.p, np.array([0.1, 0.2, 0.3])[expected])
    np.testing.assert_array_equal(part.sample_weight, expected + 1.0)
    assert part.f_star is None
