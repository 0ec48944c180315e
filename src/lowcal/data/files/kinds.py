"""What the columns of a text file hold, and how their texts become numbers, truth values or names.

- A number is a decimal number, with the decimal point or comma of the file, or 'inf'; `MISSING` are the ways to write
  that there is none.
- A column is numeric if all its values are numbers without leading zeros ('007' is a name), boolean if all are 'true'
  or 'false', and text otherwise; in a text column only the empty field is missing.
- No digit is lost: whole numbers beyond 2^53 stay whole, and are text where they do not fit into 64 bits or stand
  beside fractions.

Columns are Arrow arrays, of strings or of dictionaries of them. Columns of files with types have no decimal sign.
"""

from __future__ import annotations

import re
from contextlib import suppress
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.errors import InvalidInput
from lowcal.kernels.simplex import MOST_EXACT, FloatArray

#: How files write that there is no number.
MISSING = frozenset({"", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"})
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_LEADING_ZERO = r"^\s*[+-]?0[0-9]"
#: Whole numbers of which a float may not keep all digits.
_LONG = r"^\s*[+-]?[0-9]{16,}\s*$"
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")


class Kind(StrEnum):
    """What a column holds; of large whole numbers some are beyond 2^53."""

    WHOLE = "whole numbers"
    LARGE = "large whole numbers"
    NUMBER = "numbers"
    BOOLEAN = "booleans"
    TEXT = "text"


class NotANumber(ValueError):
    """A value is not a number: where in the batch, what it is, and whether another decimal sign makes it one."""

    def __init__(self, place: int, text: str, decimal: str | None) -> None:
        super().__init__(text)
        self.place, self.text = place, text
        other = {".": ",", ",": "."}.get(decimal or "")
        self.is_otherwise = other is not None and _parse(text, other) is not None


def kind_of(values: Any, decimal: str) -> Kind | None:
    """Return the narrowest kind that holds all texts; None if all are missing.

    >>> import pyarrow as pa
    >>> [kind_of(pa.array(texts), ".").value for texts in (["1", ""], ["007", "1"], ["true", "NA"], ["1", "2.5"])]
    ['whole numbers', 'text', 'booleans', 'numbers']
    """
    texts = _texts(values)
    try:
        found = numbers(texts, decimal)
    except NotANumber:
        return Kind.BOOLEAN if {*texts.unique().to_pylist()} <= {*_TRUE, *_FALSE, *MISSING} else Kind.TEXT
    if np.isnan(found).all():
        return None
    return Kind.TEXT if _has(texts, _LEADING_ZERO) else _kind_of_numbers(texts, found)


def _kind_of_numbers(texts: Any, found: FloatArray) -> Kind:
    """Return the kind of numbers; a cast that fails is slow in Arrow, so fractions are looked for first."""
    import pyarrow as pa

    known = found[~np.isnan(found)]
    is_large = bool((np.abs(known) >= MOST_EXACT).any())
    if bool((known == np.floor(known)).all()) and not _has(texts.filter(_present(texts)), "[^0-9-]"):
        with suppress(pa.ArrowInvalid):
            _whole(texts)
            return Kind.LARGE if is_large else Kind.WHOLE
    return Kind.TEXT if is_large and _has(texts, _LONG) else Kind.NUMBER


def wider(one: Kind | None, other: Kind | None) -> Kind | None:
    """Return the kind that holds the values of two batches.

    >>> wider(Kind.WHOLE, Kind.NUMBER).value, wider(Kind.LARGE, Kind.NUMBER).value, wider(None, Kind.TEXT).value
    ('numbers', 'text', 'text')
    """
    if one is None or other is None or one is other:
        return one or other
    both = {one, other}
    if Kind.WHOLE in both and both & {Kind.LARGE, Kind.NUMBER}:
        return both.difference({Kind.WHOLE}).pop()
    return Kind.TEXT


def cast(values: Any, kind: Kind, decimal: str) -> Any:
    """Return texts as an Arrow array of a kind; texts stay dictionaries.

    >>> import pyarrow as pa
    >>> cast(pa.array(["0,5", "NA"]), Kind.NUMBER, ",").to_pylist()
    [0.5, None]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _texts(values)
    if kind is Kind.TEXT:
        encoded = values if texts is not values else values.dictionary_encode()
        if pc.index(encoded.dictionary, "").as_py() < 0:
            return encoded
        plain = values.cast(pa.string())
        return pc.if_else(pc.equal(plain, ""), None, plain).dictionary_encode()
    if kind is Kind.NUMBER:
        found = pa.array(numbers(texts, decimal), from_pandas=True)
    else:
        found = _truths(texts) if kind is Kind.BOOLEAN else _whole(texts)
    return found if texts is values else found.take(values.indices)


def arrow_type(kind: Kind | None) -> Any:
    """Return the Arrow type of a kind; that of a column without a value is text."""
    import pyarrow as pa

    whole = dict.fromkeys((Kind.WHOLE, Kind.LARGE), pa.int64())
    return {**whole, Kind.NUMBER: pa.float64(), Kind.BOOLEAN: pa.bool_()}.get(kind or Kind.TEXT, pa.string())


# --- values -----------------------------------------------------------------------------------------------------


def numbers(values: Any, decimal: str | None = None) -> FloatArray:
    """Return the numbers of a column of any type, NaN where missing, or raise `NotANumber`; true counts as 1.

    >>> import pyarrow as pa
    >>> numbers(pa.array(["0,5", "NA"]), decimal=",")
    array([0.5, nan])
    """
    texts = _texts(values)
    if is_text(texts):
        found = _fast_numbers(texts, decimal or ".")
        if found is None:
            return _odd_numbers(values, decimal)
    else:
        found = np.asarray(texts.cast("float64", safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    return found if texts is values else np.append(found, np.nan)[factorise(values)[1]]


def _fast_numbers(values: Any, decimal: str) -> FloatArray | None:
    """Return the numbers of texts as Arrow reads them; None if it does not, or reads NaN where the rules do not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = values
    if decimal != ".":  # a point is then not part of a number
        texts = pc.replace_substring(pc.replace_substring(values, ".", "?"), decimal, ".")
    try:
        found = pc.if_else(_present(values), texts, None).cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    floats = np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.float64)
    return floats if np.isnan(floats).sum() == found.null_count else None


def _odd_numbers(values: Any, decimal: str | None) -> FloatArray:
    """Return the numbers of texts by the rules, each distinct one once, or raise `NotANumber`."""
    distinct, places = factorise(values)
    read = [_parse(text or "", decimal or ".") for text in distinct]
    bad = np.array([*(number is None for number in read), False])[places]
    if bad.any():
        row = int(bad.argmax())
        raise NotANumber(row, distinct[places[row]], decimal)
    return np.array([*(np.nan if number is None else number for number in read), np.nan])[places]


def _parse(text: str, decimal: str) -> float | None:
    """Return the number that a text writes, NaN for a missing one; None if it writes none."""
    if text in MISSING:
        return np.nan
    pointed = text.strip() if decimal == "." else text.strip().replace(".", "?").replace(decimal, ".")
    return float(pointed) if _NUMBER.fullmatch(pointed) else None


def _whole(texts: Any) -> Any:
    """Return whole numbers of 64 bits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(_present(texts), texts, None).cast(pa.int64())


def _truths(texts: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(_present(texts), pc.is_in(texts, value_set=pa.array(_TRUE)), None)


def factorise(values: Any, name: str = "") -> tuple[list[Any], NDArray[np.intp]]:
    """Return the distinct values of an Arrow array and the place of each row's; null is the place after the last.

    Lists and other types that can't be told apart are refused by the name of the column.

    >>> import pyarrow as pa
    >>> factorise(pa.array(["b", None, "b"]))
    (['b'], array([0, 1, 0]))
    """
    import pyarrow as pa

    try:
        encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    except pa.ArrowNotImplementedError:
        raise InvalidInput(f"Column {name!r} has the type {values.type}; convert it to a number or to text.") from None
    distinct = encoded.dictionary.to_pylist()
    return distinct, np.asarray(encoded.indices.cast("int64").fill_null(len(distinct)), dtype=np.intp)


def text_of(value: Any) -> str | None:
    """Return a value of any type as the name of a group; None if it is missing.

    >>> text_of("NA"), text_of(""), text_of(2.0), text_of(True), text_of(float("nan"))
    ('NA', None, '2', 'True', None)
    """
    if value is None or value != value or value == "":
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def truth_of(text: str | None) -> bool | str | None:
    """Return the truth value that a text writes, None for a missing one; another text as it is.

    >>> truth_of("TRUE"), truth_of("0"), truth_of("NA"), truth_of("maybe")
    (True, False, None, 'maybe')
    """
    if text is None or text in MISSING:
        return None
    return True if text in (*_TRUE, "1") else False if text in (*_FALSE, "0") else text


def number_of(text: str | None, decimal: str | None = None) -> float | str | None:
    """Return the number that a text writes, whole ones with all digits; None for a missing one; another as it is.

    >>> number_of("9007199254740993"), number_of("0,5", ","), number_of("NA"), number_of("five")
    (9007199254740993, 0.5, None, 'five')
    """
    if text is None or text in MISSING:
        return None
    if re.fullmatch(r"\s*[+-]?[0-9]{1,400}\s*", text):
        return int(text)
    number = _parse(text, decimal or ".")
    return text if number is None else number


# --- Arrow arrays of texts --------------------------------------------------------------------------------------


def is_text(values: Any) -> bool:
    """Whether an Arrow array holds texts, or a dictionary of them."""
    import pyarrow.types as pt

    kind = values.type.value_type if pt.is_dictionary(values.type) else values.type
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _texts(values: Any) -> Any:
    """Return the values to look at: each once where there is a dictionary."""
    import pyarrow as pa

    return values.dictionary if pa.types.is_dictionary(values.type) else values


def _has(texts: Any, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _present(texts: Any) -> Any:
    """Return which texts are not ways to write that a number is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.invert(pc.is_in(texts, value_set=pa.array(sorted(MISSING))))
