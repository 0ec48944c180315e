"""Arguments: outcomes, probabilities and weights are checked here once, and trusted inside.

Every error says what is wrong, where (row, column), what was given and what to do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowcal.data.batches import is_source, read_whole
from lowcal.data.cards import refuse_card
from lowcal.data.errors import InvalidInput, sentence, some_of
from lowcal.data.frames import Table as Frame
from lowcal.data.frames import is_missing, unmasked
from lowcal.kernels.exact import normalised
from lowcal.kernels.simplex import MOST_EXACT, FloatArray, IntArray

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

F = TypeVar("F", bound=Callable[..., Any])

#: Rows of multi-class probabilities may miss a sum of 1 by this much (float32 models do); they are then normalised.
SUM_TOLERANCE = 1e-4
#: Probabilities may be outside [0, 1] by this much, and are then clipped.
RANGE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Layout:
    """The convention of a problem: its classes, and whether it is scalar (binary) or on the simplex.

    `classes` is None for outcomes that are numbers in [0, 1].
    """

    n_classes: int
    classes: tuple[Any, ...] | None

    @property
    def d(self) -> int:
        """The number of coordinates of a prediction: 1 in the scalar convention, l on the simplex."""
        return 1 if self.n_classes == 2 else self.n_classes

    def show(self, p: FloatArray, like: ArrayLike) -> FloatArray:
        """Return predictions in the shape of what the user gave: (n,), (n, 1) or (n, 2) for binary, else (n, l)."""
        if self.d > 1 or np.shape(like)[1:] == (1,):
            return p
        return np.column_stack([1.0 - p[:, 0], p[:, 0]]) if np.ndim(like) == 2 else p[:, 0]

    def __str__(self) -> str:
        return "scalar convention" if self.d == 1 else f"{self.n_classes} classes"

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as plain data."""
        return {"n_classes": self.n_classes, "classes": None if self.classes is None else list(self.classes)}


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Checked data: y and p of shape (n, d), weights that sum to one, and the layout.

    `copies` is the number of rows that each row represents, and its weight is that of all of them; None: one each.
    """

    y: FloatArray
    p: FloatArray
    weight: FloatArray
    layout: Layout
    copies: IntArray | None = None

    def residual(self) -> FloatArray:
        """Return y - p."""
        return self.y - self.p


def read_rows(
    y: ArrayLike,
    p: ArrayLike,
    X: object,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
    frequency_weight: ArrayLike | None = None,
) -> tuple[Outcomes, Frame]:
    """Check y, p, the weights and X together; all but X may be names of columns of X, which are then no features.

    >>> outcomes, table = read_rows("y", "p", {"y": [0, 1], "p": [0.2, 0.9], "age": [31, 54]})
    >>> outcomes.p.ravel(), table
    (array([0.2, 0.9]), Table(2 rows: 'age'))
    """
    given: dict[str, Any] = {"y": y, "p": p, "sample_weight": sample_weight, "frequency_weight": frequency_weight}
    names = {role: name for role, name in given.items() if isinstance(name, str) or (role == "p" and are_names(name))}
    if names:
        if X is None:
            role, name = next(iter(names.items()))
            raise InvalidInput(f"{role} names the column {name!r}, but X is None; give the table that holds it as X.")
        table = read_table(X)
        given |= {role: take_named(table, name) for role, name in names.items()}
        X = table.without([each for name in names.values() for each in ([name] if isinstance(name, str) else name)])
    outcomes = read_outcomes(given["y"], given["p"], given["sample_weight"], classes, given["frequency_weight"])
    return outcomes, read_features(X, len(outcomes.p))


def are_names(p: object) -> bool:
    """Whether probabilities are given as the name of a column, or as a list of names, one for each class.

    >>> are_names("p"), are_names(["p_no", "p_yes"]), are_names(["0.5", "0.25"]), are_names(["a", "a"])
    (True, True, False, False)
    """
    if not isinstance(p, list | tuple):
        return isinstance(p, str)
    return 0 < len(p) == len(set(map(str, p))) and all(isinstance(name, str) and not _is_number(name) for name in p)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def take_named(table: Frame, name: Any) -> NDArray[Any]:
    """Return a column by its name, or several side by side."""
    return table.array(name) if isinstance(name, str) else np.column_stack([table.array(each) for each in name])


def read_features(X: object, n_rows: int) -> Frame:
    """Return X as a table of n_rows rows; None is a table without columns."""
    if X is None:
        return Frame.of({}) if n_rows == 0 else Frame.of(np.zeros((n_rows, 0)))
    table = read_table(X)
    check_length("X", table.n_rows, n_rows)
    return table


def read_table(X: object) -> Frame:
    """Return X as a table: one in memory, or all rows of files, of an Arrow dataset or of a function's batches."""
    return Frame.of(read_whole(X) if is_source(X) else X)


def read_outcomes(
    y: ArrayLike,
    p: ArrayLike,
    sample_weight: ArrayLike | None = None,
    classes: Sequence[Any] | None = None,
    frequency_weight: ArrayLike | None = None,
) -> Outcomes:
    """Check y, p and the weights together and bring them into one convention."""
    given = as_numbers(p, "p")
    n_classes = 2 if given.ndim != 2 or given.shape[1] == 1 else given.shape[1]
    probabilities = _probabilities(given, Layout(n_classes, None))
    n = len(probabilities)
    if n == 0:
        raise InvalidInput("The input is empty: p has no rows. Give at least one row.")
    labels = _as_array(y, "y")
    if labels.ndim == 0:
        raise InvalidInput(f"y must hold a label for each row, but {y!r} was given.")
    if labels.dtype.kind in "mMcV":
        raise InvalidInput(f"y holds values of the type {labels.dtype}. Convert them to text or whole numbers first.")
    check_length("y", len(labels), n)
    weight, copies = read_weight(sample_weight, n), None
    if frequency_weight is not None:
        copies = read_copies(frequency_weight, n)
        if (weight * copies).max(initial=0.0) <= 0:
            raise InvalidInput("No row is left: frequency_weight or sample_weight is 0 in each of them.")
        weight = normalised(weight * copies)
    coded, layout = _read_y(labels, n_classes, classes, weight)
    _check_names(p, layout)
    return Outcomes(coded, probabilities, weight, layout, copies)


def check_positive(name: str, value: object) -> None:
    """Refuse what is not a positive number."""
    if not (isinstance(value, Real) and 0 < float(value) < np.inf):
        raise InvalidInput(f"{name} must be a positive number, but {value!r} was given.")


def check_numbers(**values: object) -> None:
    """Refuse what is not a finite number of at least 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < np.inf:
            raise InvalidInput(f"{name} must be a number of at least 0, but {value!r} was given.")


def check_whole(name: str, value: object, least: int, most: float = np.inf) -> None:
    """Refuse what is not a whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        wanted = f"of at least {least}" if most == np.inf else f"between {least} and {most:g}"
        raise InvalidInput(f"{name} must be a whole number {wanted}, but {value!r} was given.")


def is_share(value: object) -> bool:
    """Whether a value is a number in [0, 1)."""
    return isinstance(value, Real) and 0 <= float(value) < 1


def check_share(name: str, value: object) -> None:
    """Refuse what is not a number in [0, 1)."""
    if not is_share(value):
        raise InvalidInput(f"{name} must be a number in [0, 1), but {value!r} was given.")


def check_length(name: str, given: int, wanted: int) -> None:
    """Refuse lengths that differ."""
    if given != wanted:
        raise InvalidInput(f"{name} has {given} rows, but p has {wanted}. They must describe the same rows.")


def read_probabilities(p: ArrayLike, layout: Layout) -> FloatArray:
    """Return p as an array of shape (n, d), checked: finite, in [0, 1], rows of several classes summing to one."""
    _check_names(p, layout)
    return _probabilities(as_numbers(p, "p"), layout)


def _check_names(p: object, layout: Layout) -> None:
    """Refuse a frame whose columns are named as the classes, but stand in another order: they are read in theirs."""
    given = getattr(p, "columns", None) if hasattr(p, "shape") else None
    if given is None or layout.classes is None:
        return
    names, known = [str(name) for name in given], [str(name) for name in layout.classes]
    if names != known and sorted(names) == sorted(known):
        raise InvalidInput(
            f"The columns of p are named {', '.join(names)}, but p is read in the order of the classes: "
            f"{sentence(', '.join(known))} Reorder the columns, or pass classes=[...] in the order of the columns."
        )


def _probabilities(given: FloatArray, layout: Layout) -> FloatArray:
    array = given[:, None] if given.ndim == 1 else given
    if array.ndim != 2:
        raise InvalidInput(f"p must have shape (n,) or (n, l) for l classes, but its shape is {array.shape}.")
    allowed = (1, 2) if layout.n_classes == 2 else (layout.n_classes,)
    if array.shape[1] not in allowed:
        wanted = "shape (n,) or (n, 2)" if layout.n_classes == 2 else f"{layout.n_classes} columns"
        raise InvalidInput(f"p must have {wanted}, but its shape is {given.shape}.")
    array = _in_range(array)
    if array.shape[1] == 1:
        return array
    array = _normalise(array)
    return array[:, [1]] if layout.n_classes == 2 else array


def as_numbers(values: ArrayLike, name: str) -> FloatArray:
    """Return a copy as numbers, NaN where they are missing; text, dates and complex numbers are refused."""
    array = _as_array(values, name)
    if array.dtype.kind in "OUST":
        values = array.ravel().tolist()
        first = next((k for k, value in enumerate(values) if isinstance(value, str | bytes)), None)
        if first is not None:
            where = _place(first, array.shape)
            raise InvalidInput(
                f"{name} is the text {values[first]!r} in {where}, but it must hold numbers. Convert it first."
            )
    if array.dtype.kind in "mMcV":
        raise InvalidInput(f"{name} must hold numbers, but its type is {array.dtype}. Convert it first.")
    try:
        return np.array(array, dtype=np.float64, order="C")  # sums over rows must not depend on the layout
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must hold numbers, but could not be read as such ({error}).") from error


def _place(k: int, shape: tuple[int, ...]) -> str:
    """Name the place of the k-th value of an array."""
    shape = shape[:1] if shape[1:] == (1,) else shape
    return ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column"), np.unravel_index(k, shape), strict=False))


def _as_array(values: Any, name: str) -> NDArray[Any]:
    """Return an array, with None where a masked one hides its values."""
    try:
        return unmasked(values)
    except (TypeError, ValueError) as error:
        refuse_card(name, values)
        raise InvalidInput(
            f"{name} can't be read as an array ({error}). Give every row the same number of values."
        ) from error


def _in_range(p: FloatArray) -> FloatArray:
    """Return probabilities without the rounding errors that sums of single precision have; refuse larger ones."""
    if p.min(initial=0.0) >= 0.0 and p.max(initial=1.0) <= 1.0:  # NaN is neither
        return p
    good = (p >= -RANGE_TOLERANCE) & (p <= 1.0 + RANGE_TOLERANCE)
    if good.all():
        return np.clip(p, 0.0, 1.0)
    first = int((~good).ravel().argmax())
    value, where = p.ravel()[first], _place(first, p.shape)
    if not np.isfinite(value):
        raise InvalidInput(f"p is {value} in {where}. Drop or impute these rows: probabilities must be finite.")
    raise InvalidInput(f"p is {value:.8g} in {where}, outside [0, 1]. Give probabilities, not scores or logits.")


def _normalise(p: FloatArray, name: str = "p") -> FloatArray:
    sums = p.sum(axis=1)
    off = np.abs(sums - 1.0)
    if off.max(initial=0.0) > SUM_TOLERANCE:
        row = int(off.argmax())
        raise InvalidInput(
            f"Row {row} of {name} sums to {sums[row]:.6g}, not to 1 (tolerance {SUM_TOLERANCE:g}). "
            "Normalise the rows, or pass the columns of all classes."
        )
    return np.asarray(p / sums[:, None])


def read_weight(sample_weight: ArrayLike | None, n: int) -> FloatArray:
    """Return weights that sum to one; None is uniform."""
    if sample_weight is None:
        return np.full(n, 1.0 / n)
    weight = check_weight(sample_weight)
    check_length("sample_weight", len(weight), n)
    if weight.max(initial=0.0) <= 0:
        raise InvalidInput("All sample weights are zero. Give at least one row a positive weight.")
    return normalised(weight)


def read_copies(frequency_weight: ArrayLike, n: int) -> IntArray:
    """Return how many rows each row represents.

    >>> read_copies([2.0, 0, 1], 3)
    array([2, 0, 1])
    """
    given = as_numbers(frequency_weight, "frequency_weight")
    if given.ndim != 1:
        raise InvalidInput(f"frequency_weight must have one dimension, but its shape is {given.shape}.")
    check_length("frequency_weight", len(given), n)
    bad = ~((given >= 0) & (given <= MOST_EXACT) & (given == np.floor(given)))
    if bad.any():
        row = int(bad.argmax())
        raise InvalidInput(
            f"frequency_weight is {given[row]:g} in row {row}, but it is the number of rows that this row stands for: "
            "a whole number, 0 or more. Give weights that are not counts as sample_weight."
        )
    return given.astype(np.intp)


def check_weight(sample_weight: ArrayLike) -> FloatArray:
    """Return weights as numbers, not normalised; refuse those that are negative, infinite or missing."""
    weight = as_numbers(sample_weight, "sample_weight")
    if weight.ndim != 1:
        raise InvalidInput(f"sample_weight must have one dimension, but its shape is {weight.shape}.")
    bad = ~(np.isfinite(weight) & (weight >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise InvalidInput(
            f"sample_weight is {weight[row]} in row {row}, but weights must be finite and not negative. "
            "Give a row that should not count the weight 0."
        )
    return weight


def _read_y(
    y: NDArray[Any], n_classes: int, classes: Sequence[Any] | None, weight: FloatArray
) -> tuple[FloatArray, Layout]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2 and y.shape[1] == n_classes:
        soft = as_numbers(y, "y")
        bad = ~((soft >= 0) & (soft <= 1))
        if bad.any():
            first = int(bad.ravel().argmax())
            where = _place(first, soft.shape)
            raise InvalidInput(f"y is {soft.ravel()[first]} in {where}; soft labels must lie in [0, 1].")
        soft = _normalise(soft, "y")
        return (soft if n_classes > 2 else soft[:, [1]]), Layout(n_classes, None)
    if y.ndim != 1:
        raise InvalidInput(
            f"y must have shape (n,), or (n, {n_classes}) for soft labels like p, but its shape is {y.shape}."
        )
    known = read_classes(y, n_classes, classes)
    if known is None:
        return y.astype(np.float64)[:, None], Layout(2, None)
    is_coded = classes is None and _are_numbers_of_classes(y, n_classes)
    codes = y.astype(np.intp) if is_coded else code_labels(y, known)
    if classes is None:
        check_occurring(codes if weight.all() else codes[weight > 0], known)
    coded = (codes == 1).astype(np.float64)[:, None] if n_classes == 2 else np.eye(n_classes)[codes]
    return coded, Layout(n_classes, tuple(known))


def check_occurring(codes: NDArray[np.intp], known: Sequence[Any]) -> None:
    """Check the labels of the rows with weight, where the classes were not given.

    Labels may be counted from 1: all are there but 0, which would be so without the last class too.
    """
    n_classes = len(known)
    if n_classes > 2 and codes.min() == 1 and len(np.unique(codes)) == n_classes - 1:
        most = n_classes - 1
        warnings.warn(
            f"y holds 1 to {most} but no 0, and the {n_classes} columns of p are read as the classes 0 to {most}. "
            f"If they are 1 to {n_classes}, pass classes=range(1, {n_classes + 1}); else classes=range({n_classes}).",
            UserWarning,
            stacklevel=5,
        )
    check_two_classes(codes, known, f"If the others may occur, say so with classes=[{some_of(known)}].")


def check_two_classes(codes: NDArray[np.intp], known: Sequence[Any], hint: str = "Give rows of others too.") -> None:
    """Refuse labels, those of the rows with weight, that are all the same."""
    if codes.min() == codes.max():
        raise InvalidInput(
            f"y holds one class only ({known[codes[0]]!r}) in the rows with weight; "
            f"calibration needs at least two classes. {hint}"
        )


def check_fit(outcomes: Outcomes) -> None:
    """Refuse to fit to a single class, also where others are known: an audit of such rows has a meaning."""
    if outcomes.layout.classes is not None:
        y = outcomes.y if outcomes.weight.all() else outcomes.y[outcomes.weight > 0]
        codes = np.array([y.min(), y.max()]).astype(np.intp) if y.shape[1] == 1 else np.flatnonzero(y.any(axis=0))
        check_two_classes(codes, outcomes.layout.classes)


def check_labels(y: NDArray[Any]) -> None:
    """Refuse labels that are missing, infinite or containers."""
    if y.dtype.kind in "biu":
        return
    values = [] if y.dtype.kind == "f" else y.tolist()  # a list takes several times the memory of an array
    for row, value in enumerate(values) if y.dtype.kind == "O" else ():
        if not isinstance(value, Hashable):
            raise InvalidInput(f"y is {value!r} in row {row}; give text or a number for each row.")
    missing = np.isnan(y) if y.dtype.kind == "f" else np.array([is_missing(v) for v in values], dtype=bool)
    if missing.any():
        raise InvalidInput(f"y is missing in row {int(missing.argmax())}. Drop the rows without a label.")
    if y.dtype.kind == "f" and np.isinf(y).any():
        row = int(np.isinf(y).argmax())
        raise InvalidInput(f"y is {y[row]} in row {row}, but labels must be finite. Drop or correct these rows.")


def is_fraction(y: NDArray[Any]) -> bool:
    """Whether y holds outcomes in [0, 1] that are not just the two labels 0 and 1."""
    if y.dtype.kind != "f":
        return False
    return bool(((y >= 0) & (y <= 1)).all()) and not bool(((y == 0) | (y == 1)).all())


def _are_numbers_of_classes(y: NDArray[Any], n_classes: int) -> bool:
    """Whether y holds nothing but 0, 1, ..., n_classes - 1, as most labels do."""
    if y.dtype.kind == "b":
        return True
    if y.dtype.kind not in "iuf" or y.min(initial=0) < 0 or y.max(initial=0) >= n_classes:
        return False
    return y.dtype.kind != "f" or bool((y == np.floor(y)).all())


def read_classes(y: NDArray[Any], n_classes: int, classes: Sequence[Any] | None = None) -> list[Any] | None:
    """Return the class of each column of p, the positive one of two last; None if y holds outcomes in [0, 1]."""
    check_labels(y)
    if n_classes == 2 and classes is None and is_fraction(y):
        return None
    return find_classes(y, n_classes, classes)


def find_classes(y: NDArray[Any], n_classes: int, classes: Sequence[Any] | None) -> list[Any]:
    """Return the class of each column of p: as given, 0..l-1 for such integers, or the sorted values of y."""
    if classes is not None:
        return _given_classes(classes, n_classes)
    if _are_numbers_of_classes(y, n_classes):
        return list(range(n_classes))
    found = list({_plain(v) for v in (y if y.dtype.kind == "O" else np.unique(y)).tolist()})
    try:
        found.sort(key=lambda v: (type(v).__name__, v))
    except TypeError:  # values without an order: by their text
        found.sort(key=lambda v: (type(v).__name__, str(v)))
    if len(found) != n_classes:
        raise _other_classes(y, found, n_classes)
    return found


def _given_classes(classes: Sequence[Any], n_classes: int) -> list[Any]:
    """Return the classes that the user names, checked."""
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise InvalidInput(f"classes must be a list with a name for each column of p, but {classes!r} was given.")
    names = [_plain(c) for c in classes]
    if len(names) != n_classes:
        raise InvalidInput(
            f"{len(names)} classes were given ({some_of(names)}), but p has columns for {n_classes}. Name each once."
        )
    if not all(isinstance(c, Hashable) for c in names) or len(set(names)) < n_classes:
        raise InvalidInput(f"classes must be different labels, but {some_of(names)} were given. Name each column once.")
    return names


def _other_classes(y: NDArray[Any], found: Sequence[Any], n_classes: int) -> InvalidInput:
    """Return the error of labels that are more or fewer than the columns of p."""
    if len(found) < n_classes:
        return InvalidInput(
            f"y holds {len(found)} classes ({some_of(found)}), but p has {n_classes} columns. "
            "Pass classes=[...] to name the columns of p."
        )
    if y.dtype.kind == "f" and not (y == np.floor(y)).all():
        return InvalidInput(
            f"y holds numbers from {y.min():g} to {y.max():g} that are not labels. Outcomes other than labels must "
            "lie in [0, 1]: rescale them and p, or use MulticalibratedRegressor, which does."
        )
    return InvalidInput(
        f"y holds {len(found)} classes ({some_of(found)}), but p has columns for {n_classes}. "
        "Give p a column for each class, or drop the rows of the others."
    )


def code_labels(y: NDArray[Any], classes: Sequence[Any]) -> NDArray[np.intp]:
    """Return the position of every label among the classes; another label is an error."""
    position = {c: k for k, c in enumerate(classes)}
    if y.dtype.kind == "O":
        codes = np.array([position.get(_plain(v), -1) for v in y.tolist()], dtype=np.intp)
    else:
        values = np.unique(y)
        known = np.array([position.get(_plain(v), -1) for v in values.tolist()], dtype=np.intp)
        codes = known[np.searchsorted(values, y)]
    if (codes < 0).any():
        row = int((codes < 0).argmax())
        raise InvalidInput(
            f"y is {_plain(y.tolist()[row])!r} in row {row}, a class that p has no column for. "
            f"The classes are {some_of(classes)}; drop such rows, or name all columns of p in classes=."
        )
    return codes


def _plain(value: Any) -> Any:
    """Return a Python scalar; whole floats become integers, so that 1.0 and 1 are one class."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def spelled_out(keywords: Any, **defaults: Any) -> Callable[[F], F]:
    """Let `help`, editors and the docs show each key of a TypedDict in place of `**shared`, with its default or None.

    >>> from typing import TypedDict
    >>> class Shared(TypedDict, total=False):
    ...     sample_weight: list[float] | None
    >>> @spelled_out(Shared)
    ... def total(y, **shared):
    ...     return sum(y)
    >>> list(signature(total).parameters)
    ['y', 'sample_weight']
    """

    def decorate(function: F) -> F:
        own = signature(function)
        parameters = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        for name, kind in keywords.__annotations__.items():
            annotation = getattr(kind, "__forward_arg__", kind)
            parameters.append(
                Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=annotation)
            )
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate
