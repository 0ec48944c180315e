"""Tables on a graphics card: arrays of CuPy and torch and frames of cuDF, read as CuPy arrays without a copy.

A table of this machine's memory is brought there, or passes through, if it is wrapped by `on_card`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lowcal.data.errors import InvalidInput, check_choice, load_extra

NEEDS_CUPY = "Rows on a graphics card need CuPy: pip install 'lowcal[gpu]'."


@dataclass(frozen=True, eq=False)
class ThroughCard:
    """A table of this machine's memory that is worked on by a card."""

    table: object
    precision: Literal["single", "double"] = "single"
    memory: int | None = None


def on_card(
    table: object, *, precision: Literal["single", "double"] = "single", memory: int | None = None
) -> ThroughCard:
    """Return a table of this machine's memory that fits, audits and predictors work on by a graphics card.

    Rows that fit into the card's memory are copied there once. More rows stay in this machine's memory and pass through
    the card, part by part, in every pass: one part is copied while another is summed.

    Parameters
    ----------
    table : a data frame, Arrow table, dict of columns or array; y, p and sample_weight are arrays beside it, or names
        of its columns.
    precision : "single", with moments right to 1e-7 of the mass of all rows and predictions of two classes to 1e-5; or
        "double", as on the CPU but for rounding, at about half the speed.
    memory : bytes that the rows may take on the card; None: what is free there.

    Examples
    --------
    >>> on_card({"sex": ["f", "m"]}, memory=1 << 30).memory
    1073741824
    """
    from lowcal.data.inputs import check_whole  # which refuses rows on a card by what is here

    check_choice("precision", precision, ("single", "double"))
    if memory is not None:
        check_whole("memory", memory, 1)
    if is_on_card(table):
        raise InvalidInput(
            "This table is on a card already: pass it without on_card. For double precision, give p as float64."
        )
    return ThroughCard(table, precision, memory)


def is_on_card(x: object) -> bool:
    """Whether an array, a frame or a dict of columns lies on a card.

    >>> is_on_card([0.5]), is_on_card({"age": [31]})
    (False, False)
    """
    if isinstance(x, Mapping):
        return any(is_on_card(column) for column in x.values())
    return isinstance(x, ThroughCard) or _is_array(x) or _is_frame(x)


def _is_array(x: object) -> bool:
    # the type is asked first: pandas looks for a column of this name, which takes as long as a pass over 1,000 rows
    return hasattr(type(x), "__cuda_array_interface__") and hasattr(x, "__cuda_array_interface__")


def _is_frame(x: object) -> bool:
    return type(x).__module__.split(".")[0] == "cudf" and hasattr(x, "columns")


def read_card(x: object, name: str) -> Any:
    """Return an array of numbers as CuPy's, on the card that is in use."""
    cupy = load_extra("cupy", NEEDS_CUPY)
    try:
        array, used = cupy.asarray(x), cupy.cuda.Device().id
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _unreadable(name, error) from error
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{name} must hold numbers on a card, but its type is {array.dtype}. Convert it first.")
    if array.device.id != used:
        raise InvalidInput(
            f"{name} lies on card {array.device.id}, but card {used} is in use. Call lowcal within "
            f"`with cupy.cuda.Device({array.device.id}):`."
        )
    return array


def card_columns(X: object) -> dict[str, Any]:
    """Return the columns of a table on a card by name; those of an array are x0, x1, ..., as elsewhere."""
    if isinstance(X, Mapping):
        return {str(name): _column(str(name), column) for name, column in X.items()}
    if _is_frame(X):
        return {str(name): _column(str(name), _values(X, name)) for name in X.columns}  # type: ignore[attr-defined]
    array = read_card(X, "X")
    if array.ndim not in (1, 2):
        raise InvalidInput(f"X is an array of shape {array.shape}, but only one or two dimensions make a table.")
    columns = [array] if array.ndim == 1 else [array[:, j] for j in range(array.shape[1])]
    return {f"x{j}": column for j, column in enumerate(columns)}


def _column(name: str, column: object) -> Any:
    array = read_card(column, f"Column {name!r} of X")
    if array.ndim != 1:
        raise InvalidInput(f"Column {name!r} of X has shape {array.shape}; give one value for each row.")
    return array


def _values(frame: Any, name: object) -> object:
    """Return the numbers of a column of a cuDF frame."""
    try:
        return frame[name].values
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _unreadable(f"Column {name!r} of X", error) from error


def _unreadable(name: str, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"{name} can't be read as numbers on the card ({error}). Encode text and fill missing values first, or give a "
        "table in this machine's memory as lowcal.on_card(table)."
    )


def refuse_card(name: str, x: object) -> None:
    """Refuse what lies on a card where rows must be in memory."""
    if is_on_card(x):
        raise InvalidInput(
            f"{name} lies on a graphics card, but this call works on rows in memory. Bring it there first, as by "
            "CuPy's get(), torch's cpu() or cuDF's to_pandas()."
        )
