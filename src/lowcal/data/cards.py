"""Arrays on a graphics card: those of CuPy and torch, and frames of cuDF, read as CuPy arrays without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowcal.data.errors import InvalidInput, load_extra


def is_on_card(x: object) -> bool:
    """Whether an array, a frame or a dict of columns lies on a card.

    >>> is_on_card([0.5]), is_on_card({"age": [31]})
    (False, False)
    """
    if isinstance(x, Mapping):
        return any(is_on_card(column) for column in x.values())
    return hasattr(x, "__cuda_array_interface__") or _is_frame(x)


def _is_frame(x: object) -> bool:
    return type(x).__module__.split(".")[0] == "cudf" and hasattr(x, "columns")


def read_card(x: object) -> Any:
    """Return an array as CuPy's."""
    return load_extra("cupy", "Rows on a card need CuPy: pip install 'lowcal[gpu]'.").asarray(x)


def card_columns(X: object) -> dict[str, Any]:
    """Return the columns of a table on a card by name; those of an array are x0, x1, ..., as elsewhere."""
    if isinstance(X, Mapping):
        return {str(name): read_card(column) for name, column in X.items()}
    if _is_frame(X):
        return {str(name): read_card(X[name].values) for name in X.columns}  # type: ignore[attr-defined, index]
    array = read_card(X)
    if array.ndim not in (1, 2):
        raise InvalidInput(f"X is an array of shape {array.shape}, but only one or two dimensions make a table.")
    columns = [array] if array.ndim == 1 else [array[:, j] for j in range(array.shape[1])]
    return {f"x{j}": column for j, column in enumerate(columns)}
