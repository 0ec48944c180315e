"""What a data set is: named columns, labels, and where they are known the truth and a predictor to recalibrate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput, MissingExtra, suggest

Backend = Literal["pandas", "polars", "pyarrow"]
BACKENDS = ("pandas", "polars", "pyarrow")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows (x, y, weight) with the start predictor p and, in a made-up world, the Bayes predictor f*.

    Binary data hold p and f* as probabilities of label 1, of shape (n,); with l >= 3 labels their shape
    is (n, l) and each row sums to 1.

    Parameters
    ----------
    X : dict of str to ndarray, or after `to` a frame
        Named columns; text columns are object arrays of str, with None where the value is missing.
    y : ndarray of int, shape (n,)
        Labels 0, 1, ..., l - 1.
    p : ndarray or None
        The predictor to be recalibrated.
    f_star : ndarray or None
        E[y | x], where it is known.
    sample_weight : ndarray or None
        Weight of each row; None means equal weights.
    description : str
        Where the rows come from.

    >>> Dataset({"x": np.array([1, 2])}, np.array([0, 1]), description="two rows")
    Dataset(2 rows, columns x; two rows)
    """

    X: Any
    y: NDArray[np.int64]
    p: NDArray[np.float64] | None = None
    f_star: NDArray[np.float64] | None = None
    sample_weight: NDArray[np.float64] | None = None
    description: str = ""

    def __repr__(self) -> str:
        names = self.X if isinstance(self.X, dict) else _native_names(self.X)
        return f"Dataset({len(self.y)} rows, columns {', '.join(names)}; {self.description})"

    def __getitem__(self, rows: slice | NDArray[Any]) -> Dataset:
        """Return some of the rows.

        >>> Dataset({"x": np.array([1, 2, 3])}, np.array([0, 1, 1]))[1:].X["x"]
        array([2, 3])
        """
        import narwhals as nw

        is_plain = isinstance(self.X, dict)
        X = {k: v[rows] for k, v in self.X.items()} if is_plain else nw.from_native(self.X)[rows].to_native()
        p, f_star, weight = (None if each is None else each[rows] for each in (self.p, self.f_star, self.sample_weight))
        return Dataset(X, self.y[rows], p, f_star, weight, self.description)

    def to(self, backend: str) -> Dataset:
        """Return the same data set with X as a frame of another library.

        Parameters
        ----------
        backend : "pandas", "polars" or "pyarrow"
            The library, which must be installed.

        >>> data = Dataset({"x": np.array([1, 2])}, np.array([0, 1]))
        >>> data.to("polars").X.shape  # doctest: +SKIP
        (2, 1)
        """
        known = _check_backend(backend)
        if not isinstance(self.X, dict):
            raise InvalidInput(
                f"X is already a frame of {type(self.X).__module__.split('.')[0]}; "
                f"call to({backend!r}) on the data set it was made from"
            )
        return replace(self, X=_frame(self.X, known))


def _check_backend(backend: str) -> Backend:
    if backend not in BACKENDS:
        raise InvalidInput(
            f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}.{suggest(str(backend), BACKENDS)}"
        )
    try:
        import_module(backend)
    except ImportError as error:
        raise MissingExtra(f"to({backend!r}) needs {backend}: pip install {backend}") from error
    return cast(Backend, backend)


def _frame(columns: dict[str, NDArray[Any]], backend: Backend) -> Any:
    import narwhals.stable.v2 as nw

    # lists let each library find its own text type, with its own mark for a missing value; numeric columns
    # are copied, since a library may look straight at the array it is given
    data = {name: v.tolist() if v.dtype == object else v.copy() for name, v in columns.items()}
    return nw.from_dict(data, backend=backend).to_native()


def _native_names(frame: Any) -> list[str]:
    import narwhals.stable.v2 as nw

    return list(nw.from_native(frame, eager_only=True).columns)
