"""A field: one column of one batch of a file, before it is decided whether it holds numbers, truth values or text.

A field of a text file (CSV) holds what was written: '0.5', 'yes', ''. A field of a Parquet file has a type of its own.
What both mean is said once, here. Rules for text files:

- a number is a decimal number, with the decimal point or comma of the file, or 'inf'; `MISSING` are the ways to write
  that there is none;
- a column is numeric if all its values are numbers without leading zeros ('007' is a name), boolean if all are 'true'
  or 'false', and text otherwise; in a text column only the empty field is missing.

Arrow does the work where it is installed; whatever it finds odd is read again by the rules in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowcal.errors import InvalidInput
from lowcal.simplex import FloatArray

#: How files write that there is no number.
MISSING = frozenset({"", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"})
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_LEADING_ZERO = r"^\s*[+-]?0[0-9]"
_WHOLE = r"-?(0|[1-9][0-9]{0,18})"
#: Whole numbers that may not fit into 64 bits.
_LONG = r"^\s*[+-]?[1-9][0-9]{18,}\s*$"
#: Whole numbers of which a float may not keep all digits, and whole numbers that are read with all of them.
_PERHAPS_ROUNDED = r"^\s*[+-]?[0-9]{16,400}\s*$"
_DIGITS = r"[+-]?[0-9]{1,400}"
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class Kind(StrEnum):
    """What a column holds. WHOLE numbers keep all digits: in a file with types, and where floats would round them."""

    WHOLE = "whole numbers"
    NUMBER = "numbers"
    BOOLEAN = "booleans"
    TEXT = "text"


class NotANumber(ValueError):
    """A value is not a number: where in the batch, what it is, and whether another decimal sign makes it one.

    `decimal` is the sign that the file was read with; None where a file has none to choose.
    """

    def __init__(self, place: int, text: str, decimal: str | None = None) -> None:
        super().__init__(text)
        self.place, self.text, self.decimal = place, text, decimal

    @property
    def is_otherwise(self) -> bool:
        """Whether the other decimal sign makes it a number."""
        other = {".": ",", ",": "."}.get(self.decimal or "")
        return other is not None and Written([self.text], other).kind() in (Kind.WHOLE, Kind.NUMBER)


class Field(Protocol):
    """One column of a batch."""

    def __len__(self) -> int: ...

    def kind(self) -> Kind | None:
        """Return what these values alone look like; None if all are missing."""
        ...

    def has_names(self) -> bool:
        """Whether some value is a number that is a name, such as '007'."""
        ...

    def numbers(self) -> FloatArray:
        """Return the numbers, NaN where missing, or raise `NotANumber`."""
        ...

    def has_rounded(self) -> bool:
        """Whether some value is a whole number that its float does not equal: it lies beyond 2^53."""
        ...

    def factorise(self, kind: Kind) -> tuple[list[Any], NDArray[np.intp]]:
        """Return distinct texts (or truth values, or exact numbers) and the place of each row's, -1 where missing."""
        ...

    def texts(self, decimal: str) -> list[str]:
        """Return what is written to a text file, '' where missing."""
        ...

    def objects(self, kind: Kind) -> list[Any]:
        """Return Python values of a kind, None where missing."""
        ...

    def arrow(self, kind: Kind | None) -> Any:
        """Return an Arrow array of a kind; None: of the field's own type."""
        ...


@dataclass(frozen=True, eq=False)
class Written:
    """A field of a text file, as a list.

    >>> Written(["0,5", "NA"], decimal=",").numbers()
    array([0.5, nan])
    >>> [Written(values).kind().value for values in (["1", ""], ["007", "1"], ["true", "false"])]
    ['whole numbers', 'text', 'booleans']
    """

    values: Sequence[str]
    decimal: str = "."

    def __len__(self) -> int:
        return len(self.values)

    def kind(self) -> Kind | None:
        """Return the narrowest kind that holds all values."""
        present = {v for v in self.values if v not in MISSING}
        if not present:
            return None
        if present <= _TRUTH.keys():
            return Kind.BOOLEAN
        some = Written(list(present), self.decimal)
        if some.has_names() or not all(map(self._is_number, present)):
            return Kind.TEXT
        is_whole = all(re.fullmatch(_WHOLE, v) for v in present) and not some.has_long()
        return Kind.WHOLE if is_whole else Kind.NUMBER

    def has_names(self) -> bool:
        """Whether some value has a leading zero."""
        return any(re.match(_LEADING_ZERO, value) for value in self.values)

    def has_long(self) -> bool:
        """Whether some value is a whole number beyond 64 bits."""
        return any(not _fits(value.strip()) for value in self.values if re.match(_LONG, value))

    def _is_number(self, text: str) -> bool:
        return _NUMBER.fullmatch(self._pointed(text)) is not None

    def _pointed(self, text: str) -> str:
        """Return a number with a decimal point; under a decimal comma, a point is not part of a number."""
        return text.strip() if self.decimal == "." else text.strip().replace(".", "?").replace(self.decimal, ".")

    def numbers(self) -> FloatArray:
        """Return the numbers, NaN where missing."""
        numbers = np.empty(len(self.values))
        for i, text in enumerate(self.values):
            if text in MISSING:
                numbers[i] = np.nan
            elif self._is_number(text):
                numbers[i] = float(self._pointed(text))
            else:
                raise NotANumber(i, text, self.decimal)
        return numbers

    def has_rounded(self) -> bool:
        """Whether some value is a whole number that its float does not equal."""
        return any(_is_rounded(self._exact(value)) for value in self.values if re.match(_PERHAPS_ROUNDED, value))

    def _exact(self, text: str) -> float | None:
        """Return a number with all its digits if it is whole, None where missing."""
        if text in MISSING:
            return None
        if re.fullmatch(_DIGITS, text.strip()):
            return int(text)
        return float(Written([text], self.decimal).numbers()[0])

    def factorise(self, kind: Kind) -> tuple[list[Any], NDArray[np.intp]]:
        """Return the distinct values in order of appearance, and the place of each row's."""
        place = {value: i for i, value in enumerate(dict.fromkeys(self.values))}
        codes = np.fromiter(map(place.__getitem__, self.values), dtype=np.intp, count=len(self.values))
        return self.read(place, kind), codes

    def read(self, values: Iterable[str], kind: Kind) -> list[Any]:
        """Return values of the field as numbers with all digits, truth values or texts, None where missing."""
        if kind is Kind.WHOLE:
            return [self._exact(value) for value in values]
        return [read_category(value, kind) for value in values]

    def texts(self, decimal: str) -> list[str]:
        """Return the values as they were written."""
        return list(self.values)

    def objects(self, kind: Kind) -> list[Any]:
        """Return Python values of a kind."""
        if kind is Kind.TEXT or kind is Kind.BOOLEAN:
            return [read_category(value, kind) for value in self.values]
        if kind is Kind.WHOLE:
            return [None if value in MISSING else int(value) for value in self.values]
        return [None if value != value else value for value in self.numbers().tolist()]

    def arrow(self, kind: Kind | None) -> Any:
        """Return an Arrow array of a kind."""
        import pyarrow as pa

        kind = kind or Kind.TEXT
        return pa.array(self.objects(kind), type=arrow_type(kind))


@dataclass(frozen=True, eq=False)
class ArrowWritten:
    """A field of a text file, as an Arrow array of strings; odd values are left to `Written`."""

    values: Any
    decimal: str = "."

    def __len__(self) -> int:
        return len(self.values)

    @property
    def plain(self) -> Written:
        """The same field as a list."""
        return Written(self.values.to_pylist(), self.decimal)

    def kind(self) -> Kind | None:
        """Return the narrowest kind that holds all values."""
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            numbers = self.numbers()
        except NotANumber:
            return Written(self.values.unique().to_pylist(), self.decimal).kind()
        if np.isnan(numbers).all():
            return None
        if self.has_names():
            return Kind.TEXT
        present = self.values.filter(pc.invert(pc.is_in(self.values, value_set=pa.array(sorted(MISSING)))))
        is_whole = pc.all(pc.match_substring_regex(present, f"^{_WHOLE}$")).as_py() and not self.has_long()
        return Kind.WHOLE if is_whole else Kind.NUMBER

    def has_names(self) -> bool:
        """Whether some value has a leading zero."""
        import pyarrow.compute as pc

        return bool(pc.any(pc.match_substring_regex(self.values, _LEADING_ZERO)).as_py())

    def has_long(self) -> bool:
        """Whether some value is a whole number beyond 64 bits."""
        import pyarrow.compute as pc

        return Written(self.values.filter(pc.match_substring_regex(self.values, _LONG)).to_pylist()).has_long()

    def numbers(self) -> FloatArray:
        """Return the numbers, NaN where missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.decimal != ".":
            return self.plain.numbers()
        missing = pc.is_in(self.values, value_set=pa.array(sorted(MISSING)))
        try:
            cast = pc.if_else(missing, None, self.values).cast(pa.float64())
        except pa.ArrowInvalid:
            return self.plain.numbers()
        values = np.asarray(cast.to_numpy(zero_copy_only=False), dtype=np.float64)
        return values if np.isnan(values).sum() == cast.null_count else self.plain.numbers()

    def has_rounded(self) -> bool:
        """Whether some value is a whole number that its float does not equal."""
        import pyarrow.compute as pc

        long = self.values.filter(pc.match_substring_regex(self.values, _PERHAPS_ROUNDED))
        return Written(long.unique().to_pylist()).has_rounded()

    def factorise(self, kind: Kind) -> tuple[list[Any], NDArray[np.intp]]:
        """Return the distinct values in order of appearance, and the place of each row's."""
        encoded = self.values.dictionary_encode()
        distinct = Written((), self.decimal).read(encoded.dictionary.to_pylist(), kind)
        return distinct, np.asarray(encoded.indices, dtype=np.intp)

    def texts(self, decimal: str) -> list[str]:
        """Return the values as they were written."""
        return list(self.values.to_pylist())

    def objects(self, kind: Kind) -> list[Any]:
        """Return Python values of a kind."""
        return self.plain.objects(kind)

    def arrow(self, kind: Kind | None) -> Any:
        """Return an Arrow array of a kind."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if kind is None or kind is Kind.TEXT:
            return pc.if_else(pc.equal(self.values, ""), None, self.values)
        if kind is Kind.NUMBER:
            return pa.array(self.numbers(), from_pandas=True)
        if kind is Kind.WHOLE:
            missing = pc.is_in(self.values, value_set=pa.array(sorted(MISSING)))
            return pc.if_else(missing, None, self.values).cast(pa.int64())
        return self.plain.arrow(kind)


@dataclass(frozen=True, eq=False)
class Typed:
    """A field with a type of its own: an Arrow array from a Parquet file."""

    values: Any
    name: str

    def __len__(self) -> int:
        return len(self.values)

    def kind(self) -> Kind | None:
        """Return the kind of the type; dates, lists and other types have none and are refused."""
        import pyarrow.types as pt

        kind = self.values.type
        if pt.is_dictionary(kind):
            kind = kind.value_type
        if pt.is_null(kind):
            return None
        if pt.is_integer(kind):
            return Kind.WHOLE
        if pt.is_floating(kind) or pt.is_decimal(kind):
            return Kind.NUMBER
        if pt.is_boolean(kind):
            return Kind.BOOLEAN
        if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
            return Kind.TEXT
        raise InvalidInput(f"Column {self.name!r} has the type {kind}; convert it to a number or to text first.")

    def has_names(self) -> bool:
        """Return that numbers are numbers where there are types."""
        return False

    def numbers(self) -> FloatArray:
        """Return the numbers, NaN where missing; truth values count as 0 and 1."""
        if self.kind() is Kind.TEXT:
            texts = self.values.cast("string").to_pylist()
            try:
                return Written(["" if text is None else text for text in texts]).numbers()
            except NotANumber as error:
                raise NotANumber(error.place, error.text) from None
        cast = self._decoded().cast("float64", safe=False)
        return np.asarray(cast.to_numpy(zero_copy_only=False), dtype=np.float64)

    def has_rounded(self) -> bool:
        """Whether some value is a whole number that its float does not equal."""
        values = self._decoded().unique().to_pylist()
        if self.kind() is Kind.TEXT:
            return Written([value for value in values if value is not None]).has_rounded()
        return any(_is_rounded(_exact(value)) for value in values)

    def _decoded(self) -> Any:
        """Return the values without a dictionary."""
        import pyarrow.types as pt

        kind = self.values.type
        return self.values.cast(kind.value_type) if pt.is_dictionary(kind) else self.values

    def factorise(self, kind: Kind) -> tuple[list[Any], NDArray[np.intp]]:
        """Return the distinct values, and the place of each row's; missing is the last place."""
        import pyarrow.types as pt

        values = self.values if pt.is_dictionary(self.values.type) else self.values.dictionary_encode()
        own = Kind.TEXT if self.kind() is None else self.kind()
        distinct = values.dictionary.to_pylist()
        if own is Kind.TEXT and kind is not Kind.TEXT:
            distinct = Written(()).read(["" if value is None else value for value in distinct], kind)
        elif kind is Kind.WHOLE:
            distinct = [_exact(value) for value in distinct]
        elif kind is Kind.TEXT and own is not Kind.TEXT:
            distinct = [None if value is None or value != value else _name(value) for value in distinct]
        elif own in (Kind.WHOLE, Kind.NUMBER) and kind is Kind.BOOLEAN:
            distinct = [bool(value) if value in (0, 1) else None if value is None else str(value) for value in distinct]
        codes = np.asarray(values.indices.fill_null(len(distinct)), dtype=np.intp)
        return [*distinct, None], codes

    def texts(self, decimal: str) -> list[str]:
        """Return the values as text: numbers with all digits."""
        return [_text(value, decimal) for value in self.values.to_pylist()]

    def objects(self, kind: Kind) -> list[Any]:
        """Return the values as Python has them; what JSON does not know becomes text."""
        return [_plain(value) for value in self.values.to_pylist()]

    def arrow(self, kind: Kind | None) -> Any:
        """Return the array itself."""
        return self.values


@dataclass(frozen=True, eq=False)
class Computed:
    """A field of numbers that was computed here."""

    values: FloatArray

    def __len__(self) -> int:
        return len(self.values)

    def kind(self) -> Kind:
        """Return that these are numbers."""
        return Kind.NUMBER

    def has_names(self) -> bool:
        """Return that these are numbers."""
        return False

    def numbers(self) -> FloatArray:
        """Return the numbers."""
        return self.values

    def has_rounded(self) -> bool:
        """Return that these are floats."""
        return False

    def factorise(self, kind: Kind) -> tuple[list[Any], NDArray[np.intp]]:
        """Return the distinct numbers as text, and the place of each row's."""
        return Written(self.texts(".")).factorise(kind)

    def texts(self, decimal: str) -> list[str]:
        """Return the numbers with all digits."""
        return [_text(value, decimal) for value in self.values.tolist()]

    def objects(self, kind: Kind) -> list[Any]:
        """Return the numbers as Python has them."""
        return [_plain(value) for value in self.values.tolist()]

    def arrow(self, kind: Kind | None) -> Any:
        """Return an Arrow array of doubles."""
        import pyarrow as pa

        return pa.array(self.values, from_pandas=True)


def read_category(text: str, kind: Kind) -> str | bool | None:
    """Return a value of a text or boolean column, None if missing; what is not a truth value stays text.

    >>> read_category("TRUE", Kind.BOOLEAN), read_category("TRUE", Kind.TEXT), read_category("", Kind.TEXT)
    (True, 'TRUE', None)
    """
    if kind is Kind.BOOLEAN:
        return None if text in MISSING else _TRUTH.get(text, {"0": False, "1": True}.get(text, text))
    return text or None


def kept_kind(field: Field) -> Kind | None:
    """Return the kind that a field is written as where there are types: numbers that would lose digits are text.

    >>> kept_kind(Written(["0.5"])).value, kept_kind(Written(["99999999999999999999"])).value
    ('numbers', 'text')
    """
    kind = field.kind()
    is_long = kind is Kind.NUMBER and isinstance(field, Written | ArrowWritten) and field.has_long()
    return Kind.TEXT if is_long else kind


def _fits(text: str) -> bool:
    """Whether a whole number fits into 64 bits."""
    return len(text) <= 20 and -(2**63) <= int(text) < 2**63


def _exact(value: Any) -> Any:
    """Return a number of a file with types, whole decimals with all their digits; None if missing."""
    if value is None or value != value:
        return None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _is_rounded(value: Any) -> bool:
    """Whether a float would round this whole number; those beyond all floats are not counted."""
    return isinstance(value, int) and abs(value) < 2**1000 and float(value) != value


def wider(one: Kind | None, other: Kind | None) -> Kind | None:
    """Return the kind that holds the values of two batches of a text file.

    >>> wider(Kind.WHOLE, Kind.NUMBER).value, wider(Kind.NUMBER, Kind.BOOLEAN).value, wider(None, Kind.TEXT).value
    ('numbers', 'text', 'text')
    """
    if one is None or other is None or one is other:
        return one or other
    return Kind.NUMBER if {one, other} == {Kind.WHOLE, Kind.NUMBER} else Kind.TEXT


def arrow_type(kind: Kind) -> Any:
    """Return the Arrow type of a kind."""
    import pyarrow as pa

    return {Kind.WHOLE: pa.int64(), Kind.NUMBER: pa.float64(), Kind.BOOLEAN: pa.bool_(), Kind.TEXT: pa.string()}[kind]


def _name(value: Any) -> str:
    """Return a number as the name of a group: 2.0 is called 2."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _text(value: Any, decimal: str) -> str:
    if value is None or value != value:
        return ""
    return str(value).replace(".", decimal) if isinstance(value, float) and decimal != "." else str(value)


def _plain(value: Any) -> Any:
    if value is None or value != value:
        return None
    finite = not isinstance(value, float) or np.isfinite(value)
    return value if isinstance(value, bool | int | float | str) and finite else str(value)
