"""Values as JSON and back, and the text of a saved model: read strictly, every field checked, executed never.

A class writes itself by `to_dict` and is read by `from_dict`. An array of few numbers is a list; of more than 64 it is
{"dtype", "shape", "base64"}: the bytes of its numbers in C order, little endian. In lists of numbers, and for single
ones, the texts "nan", "inf" and "-inf" stand for what JSON lacks; among labels, where a text is a text, {"number":
"inf"} does. Errors name the place in the file. The document of a model is

    {"format": "lowcal", "version": 1, "checksum": "sha256:...", "lowcal": "0.2.0", "metadata": {...}, "model": {...}}

The checksum is the SHA-256 of the canonical text (sorted keys, no spaces, UTF-8) of everything else, so that white
space and the order of keys do not count. A number is written as Python's repr, which is read back to the same bits.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from math import inf, isfinite, prod
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowcal.data import __version__
from lowcal.data.errors import DamagedFile, InvalidInput
from lowcal.kernels.simplex import FloatArray, IntArray

T = TypeVar("T", bound=type)

FORMAT = "lowcal"
#: The version that is written; it changes when an older lowcal could misread a file.
VERSION = 1
#: Larger files are refused: reading takes several times as much memory.
MOST_BYTES = 1 << 30
#: The most digits of a whole number.
MOST_DIGITS = 400
#: How numbers may be written as bytes; the first that holds an array of whole numbers is used.
WHOLE = ("uint8", "uint16", "int16", "int32", "int64")
#: What JSON has no number for.
SPECIAL = {"nan": float("nan"), "inf": inf, "-inf": -inf}
#: No fit makes larger coefficients; sums and products of a few of this size stay finite.
MOST = 1e100
#: A file names or counts no more classes or columns than this: they are held in memory.
MOST_LISTED = 1 << 20

_KEYS = ("format", "version", "checksum", "lowcal", "metadata", "model")

#: A label or a category: text, a number or a boolean.
Label = str | bool | int | float


# --- values as they are written -----------------------------------------------------------------------------------


class Numbers(list[Any]):
    """An array as (nested) lists, which a file may hold as bytes."""

    def __init__(self, values: Any) -> None:
        super().__init__(np.asarray(values).tolist())


class Shares(Numbers):
    """Memberships, which a file leaves out where all are 1."""


class PlainLabels(list[Any]):
    """Categories or classes: text, numbers or booleans."""

    def __init__(self, values: Iterable[Any], what: str = "Categories") -> None:
        super().__init__(values)
        self.what = what


class WrittenOnce(dict[str, Any]):
    """A value that many others hold: a file holds it once, and they name its place."""


class PlainFields:
    """A dataclass that is written as its kind and its fields."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the value as plain data."""
        return {"kind": self.kind, **{one.name: _plain(getattr(self, one.name)) for one in fields(self)}}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """Return a field as plain data: an array, values with `to_dict`, tuples of these, or what is plain already."""
    if isinstance(value, np.ndarray):
        return Numbers(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


class Pool:
    """Plain values, each once: `place` gives the position of one."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[bytes, int] = {}

    def place(self, value: Any) -> int:
        """Return the place of a value, a new one if it was not met before."""
        place = self._places.setdefault(sha256(compact(value).encode("utf-8")).digest(), len(self.values))
        if place == len(self.values):
            self.values.append(value)
        return place


def packed(value: Any, shared: Pool) -> Any:
    """Return what `to_dict()` gave as a file holds it: many numbers as bytes, shared values by their place.

    >>> packed({"theta": Numbers([0.5, -inf]), "scale": inf}, Pool())
    {'theta': [0.5, '-inf'], 'scale': 'inf'}
    """
    if isinstance(value, Numbers):
        return None if isinstance(value, Shares) and all(one == 1.0 for one in value) else pack(value)
    if isinstance(value, PlainLabels):
        return pack_labels(value, value.what)
    if isinstance(value, dict):
        own = {key: packed(one, shared) for key, one in value.items()}
        return shared.place(own) if isinstance(value, WrittenOnce) else own
    if isinstance(value, list):
        return [packed(one, shared) for one in value]
    return pack_number(value) if isinstance(value, float) else value


def pack(values: Any) -> list[Any] | dict[str, Any]:
    """Return numbers (an array or nested lists of floats, or of whole numbers) as they are written.

    >>> pack([0.5, float("-inf")]), pack(np.zeros(1000, dtype=int))["dtype"]
    ([0.5, '-inf'], 'uint8')
    """
    array = np.asarray(values)
    if array.size == 0:
        return []
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    is_float = array.dtype.kind == "f"
    if array.size <= 64:  # a list is shorter than bytes, and can be read
        if is_float and not np.isfinite(array).all():
            array = np.array([pack_number(x) for x in array.ravel().tolist()], dtype=object).reshape(array.shape)
        return list(array.tolist())
    least, most = (0, 0) if is_float else (array.min(), array.max())
    limits = {name: np.iinfo(name) for name in WHOLE}
    whole = (name for name, limit in limits.items() if limit.min <= least and most <= limit.max)
    dtype = "float64" if is_float else next(whole)
    content = np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()
    return {"dtype": dtype, "shape": list(array.shape), "base64": base64.b64encode(content).decode("ascii")}


def pack_number(x: float) -> float | str:
    """Return one number as it is written."""
    return x if isfinite(x) else repr(float(x))


def pack_labels(labels: Iterable[Any], what: str) -> list[Any]:
    """Return labels or categories as they are written; refuse those that are not text, numbers or booleans."""
    packed: list[Any] = []
    for label in labels:
        found: Any = plain_scalar(label, what)
        if found is None and isinstance(label, float) and abs(label) == inf:
            found = {"number": repr(float(label))}
        if found is None:
            raise InvalidInput(
                f"{what} are saved as text, numbers or booleans, but {label!r} is of the type {type(label).__name__}. "
                "Convert it to text before fitting."
            )
        packed.append(found)
    return packed


def check_plain(value: Any, place: str) -> Any:
    """Return a user's value as plain JSON data (tuples as lists, NumPy scalars as numbers); refuse what is not."""
    found = plain_scalar(value, place)
    if found is not None or value is None:
        return found
    if isinstance(value, list | tuple):
        return [check_plain(one, f"{place}[{k}]") for k, one in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {plain_scalar(key, place): check_plain(one, f"{place}[{key!r}]") for key, one in value.items()}
    raise InvalidInput(
        f"{place} is {value!r}, which can't be written as JSON. Give text, finite numbers, true or false, None, lists "
        "or dicts with text as keys."
    )


def plain_scalar(value: Any, place: str) -> str | bool | int | float | None:
    """Return text, a boolean or a finite number as plain data; None of anything else. Text must be valid Unicode."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{place} holds the text {value!r}, which is not valid Unicode. Clean it first."
            ) from error
        return str.__str__(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 10 ** (MOST_DIGITS - 1) else None
    return float(value) if isinstance(value, float) and isfinite(value) else None


# --- values as they are read --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """A value of a file, and where it stands there."""

    value: Any
    place: str

    def refuse(self, wanted: str) -> NoReturn:
        """Say what is here and what should be."""
        raise DamagedFile(f"{self.place} is {_shown(self.value)}, but it must be {wanted}")

    def _must(self, is_good: bool, wanted: str) -> None:
        if not is_good:
            self.refuse(wanted)

    @property
    def is_null(self) -> bool:
        """Whether there is nothing here."""
        return self.value is None

    def fields(self, *names: str, optional: Sequence[str] = ()) -> list[Plain]:
        """Return the values of an object that has these keys and no others; optional ones may be absent: null."""
        every = (*names, *optional)
        is_good = isinstance(self.value, dict) and set(names) <= set(self.value) <= set(every)
        self._must(is_good, f"an object with the keys {', '.join(every)}")
        return [Plain(self.value.get(name), f"{self.place}.{name}") for name in every]

    def kind(self, known: Iterable[str], or_else: str = "") -> str:
        """Return the "kind" of an object, one of those known."""
        self._must(isinstance(self.value, dict) and "kind" in self.value, "an object with a kind")
        return Plain(self.value["kind"], f"{self.place}.kind").choice(known, or_else)

    def items(self) -> list[Plain]:
        """Return the elements of a list."""
        self._must(isinstance(self.value, list), "a list")
        return [Plain(one, f"{self.place}[{k}]") for k, one in enumerate(self.value)]

    def some(self) -> list[Plain]:
        """Return the elements of a list that is not empty."""
        return self.items() or self.refuse("a list that is not empty")

    def names(self, count: int) -> tuple[str, ...]:
        """Return a list of this many texts, at least one."""
        names = self.texts()
        self._must(0 < len(names) == count, f"a list of {count} names")
        return names

    def text(self) -> str:
        """Return text."""
        self._must(type(self.value) is str, "text")
        return str(self.value)

    def texts(self) -> tuple[str, ...]:
        """Return a list of texts."""
        return tuple(one.text() for one in self.items())

    def choice(self, known: Iterable[str], or_else: str = "") -> str:
        """Return one of these words."""
        words = tuple(known)
        self._must(self.value in words, f"one of {', '.join(words)}{or_else}")
        return str(self.value)

    def flag(self) -> bool:
        """Return true or false."""
        self._must(type(self.value) is bool, "true or false")
        return bool(self.value)

    def whole(self, least: int, most: float = inf) -> int:
        """Return a whole number in a range."""
        is_good = type(self.value) is int and least <= self.value <= most
        self._must(is_good, f"a whole number {_range(least, most)}")
        return int(self.value)

    def number(self, least: float = -inf, most: float = inf, may_be_nan: bool = False) -> float:
        """Return a number in a range, its ends included."""
        number = _read_number(self.value)
        if number is None or not (least <= number <= most or (may_be_nan and number != number)):
            self.refuse(f"a number {_range(least, most)}")
        return number

    def labels(self) -> tuple[Label, ...]:
        """Return labels or categories, no two alike."""
        labels = tuple(one.label() for one in self.items())
        self._must(len(set(labels)) == len(labels), "a list of different values")
        return labels

    def label(self) -> Label:
        """Return a label: text, a number or a boolean."""
        if isinstance(self.value, dict):
            (number,) = self.fields("number")
            return SPECIAL[number.choice(("inf", "-inf"))]
        self._must(type(self.value) in (str, bool, int, float), "text, a number or a boolean")
        label: Label = self.value
        return label

    def floats(self, shape: Sequence[int | None], least: float = -inf, most: float = inf) -> FloatArray:
        """Return an array of numbers in a range; a length that is None is free."""
        array = self._array(shape, _read_number, ("float64",))
        return np.asarray(self._within(array, least, most, "numbers"), dtype=np.float64)

    def wholes(self, shape: Sequence[int | None], least: int, most: int) -> IntArray:
        """Return an array of whole numbers in a range; a length that is None is free."""
        return self._within(self._array(shape, _read_whole, WHOLE), least, most, "whole numbers").astype(np.intp)

    def _within(self, array: NDArray[Any], least: float, most: float, what: str) -> NDArray[Any]:
        is_inside = array.size == 0 or bool(array.min() >= least and array.max() <= most)  # a nan is not
        self._must(is_inside, f"an array of {what} {_range(least, most)}")
        return array

    def increasing(self) -> FloatArray:
        """Return numbers that increase strictly."""
        array = self.floats((None,))
        self._must(bool((array[1:] > array[:-1]).all()), "a list of increasing numbers")
        return array

    def _array(self, shape: Sequence[int | None], read: Callable[[Any], Any], dtypes: Sequence[str]) -> NDArray[Any]:
        """Return an array of the shape, from nested lists or from bytes of one of the types."""
        array = self._of_bytes(dtypes) if isinstance(self.value, dict) else self._of_lists(len(shape), read, dtypes[-1])
        if self.value == [] and None in shape:
            array = array.reshape([length or 0 for length in shape])
        fits = array.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
        self._must(fits, f"an array of the shape ({', '.join('any' if n is None else str(n) for n in shape)})")
        return array

    def _of_bytes(self, dtypes: Sequence[str]) -> NDArray[Any]:
        dtype, lengths, content = self.fields("dtype", "shape", "base64")
        shape = [length.whole(1, 2**40) for length in lengths.items()]
        lengths._must(len(shape) <= 4, "a list of at most 4 lengths")
        kind = np.dtype(dtype.choice(dtypes)).newbyteorder("<")
        try:
            data = base64.b64decode(content.text().encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            content.refuse("base64")
        self._must(len(data) == prod(shape) * kind.itemsize, f"{prod(shape)} numbers of the type {dtype.value}")
        return np.frombuffer(data, dtype=kind).reshape(shape).astype(kind.newbyteorder("="))

    def _of_lists(self, depth: int, read: Callable[[Any], Any], dtype: str) -> NDArray[Any]:
        flat, shape = [self.value], []
        for _ in range(depth):
            lengths = {len(one) if isinstance(one, list) else -1 for one in flat}
            self._must(len(lengths) <= 1 and -1 not in lengths, "an array: lists of numbers, all of one length")
            shape.append(lengths.pop() if lengths else 0)
            flat = [element for one in flat for element in one]
        numbers = [read(element) for element in flat]
        self._must(None not in numbers, "an array of numbers")
        return np.array(numbers, dtype=dtype).reshape(shape)


def _read_number(value: Any) -> float | None:
    """Return a number as a float, None if the value is no number or a float can't hold it exactly."""
    if type(value) is float:
        return value
    if type(value) is str:
        return SPECIAL.get(value)
    return float(value) if type(value) is int and abs(value) <= 2**53 else None


def _read_whole(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 2**62 else None


def _range(least: float, most: float) -> str:
    if most == inf:
        return "" if least == -inf else f"of at least {least:g}"
    return f"from {least:g} to {most:g}"


def _shown(value: Any) -> str:
    """Show a value of a file in few words."""
    if isinstance(value, dict | list):
        return f"an object with {len(value)} keys" if isinstance(value, dict) else f"a list of {len(value)}"
    shown = "null" if value is None else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


class Kinds:
    """The classes of which a file may hold values, each by its kind; nothing else is looked up by a name in a file.

    A class has `to_dict()`, whose "kind" is its attribute `kind`, and `from_dict(at, ...)`, which checks and reads it.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        self.known: dict[str, Any] = {}

    def register(self, cls: T) -> T:
        """Let files hold values of a class; a decorator. Of a class without a kind its name is the kind."""
        kind = kind_of(cls)
        if _full_name(self.known.get(kind, cls)) != _full_name(cls):
            taken = _full_name(self.known[kind])
            raise InvalidInput(f"The kind {kind!r} is that of {taken}. Give {cls.__name__} another one.")
        self.known[kind] = cls
        return cls

    def require(self, value: object) -> None:
        """Refuse a value of another class: its file could not be loaded."""
        if type(value) not in self.known.values():
            raise InvalidInput(
                f"The model holds {self.what} of the type {_full_name(type(value))}, which is not lowcal's and has no "
                f"plain form that `load` knows. {self.remedy}, register the class (see the guide on adding a "
                "hypothesis class), or pickle the model at your own risk."
            )

    def read(self, at: Plain, *context: Any) -> Any:
        """Return the value of one of the registered classes."""
        kind = at.kind(self.known, ", or the kind of a class of your own that is registered before loading")
        return self.known[kind].from_dict(at, *context)


def kind_of(cls: type) -> str:
    """Return the kind under which files name a class."""
    return str(vars(cls).get("kind", cls.__name__))


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


# --- documents ----------------------------------------------------------------------------------------------------


def write_document(model: dict[str, Any], metadata: dict[str, Any]) -> bytes:
    """Return the document as bytes; the same model gives the same bytes."""
    rest = {"format": FORMAT, "version": VERSION, "lowcal": __version__, "metadata": metadata, "model": model}
    document = {key: checksum(rest) if key == "checksum" else rest[key] for key in _KEYS}
    return (_lay_out(document, 4) + "\n").encode("utf-8")


def read_document(data: bytes) -> dict[str, Any]:
    """Return the document, its checksum verified; a `DamagedFile` says what is wrong with it."""
    try:
        document = _parse(data)
        version, writer = document.get("version"), document.get("lowcal")
        if type(version) is not int or version < 1:
            raise DamagedFile(f"its version is {version!r}, but it must be a whole number from 1 on")
        if version > VERSION:
            by = f" {writer}" if isinstance(writer, str) and len(writer) < 40 else ""
            raise InvalidInput(
                f"it was written by a newer lowcal{by} (format {version}; this one reads up to {VERSION}): update "
                "lowcal"
            )
        given = document.pop("checksum", None)
        if set(document) != set(_KEYS) - {"checksum"} or given != checksum(document):
            raise DamagedFile("its checksum does not match its content: the file is damaged or was changed")
    except RecursionError:
        raise DamagedFile("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise DamagedFile("its text is not valid Unicode") from None
    if not isinstance(document["metadata"], dict):
        raise DamagedFile("its metadata is not an object")
    return document


def checksum(rest: Mapping[str, Any]) -> str:
    """Return the checksum of a document without its own.

    >>> checksum({"b": 1.0, "a": "é"}) == checksum({"a": "é", "b": 1.0}) != checksum({"a": "é", "b": 1})
    True
    """
    return f"sha256:{sha256(compact(rest, sort_keys=True).encode('utf-8')).hexdigest()}"


def compact(value: object, sort_keys: bool = False) -> str:
    """Return plain data as JSON without spaces."""
    return json.dumps(value, sort_keys=sort_keys, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _lay_out(value: Any, lines: int, indent: str = "") -> str:
    """Return JSON with containers up to a depth on lines of their own, so that people and diffs can read it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if lines == 0 or not any(isinstance(one, dict | list) for one in inner):
        return compact(value)
    more = indent + " "
    if isinstance(value, dict):
        parts = [f"{compact(key)}: {_lay_out(one, lines - 1, more)}" for key, one in value.items()]
        return "{\n" + ",\n".join(more + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(more + _lay_out(one, lines - 1, more) for one in value) + f"\n{indent}]"


def _parse(data: bytes) -> dict[str, Any]:
    """Return the object that the text is; JSON only, each key once, every number finite."""
    if not data.strip():
        raise DamagedFile("it is empty")
    try:
        document = json.loads(
            data.decode("utf-8-sig"),
            object_pairs_hook=_object,
            parse_float=_float,
            parse_int=_int,
            parse_constant=_float,
        )
    except UnicodeDecodeError:
        raise DamagedFile("it is not a text file: it is damaged, or not a model saved by lowcal") from None
    except json.JSONDecodeError as error:
        raise DamagedFile(
            f"it is not valid JSON from line {error.lineno}, column {error.colno} on ({error.msg}): it is cut off, "
            "damaged, or not a model saved by lowcal"
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DamagedFile("it is JSON, but not a model saved by lowcal")
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise DamagedFile("it has a key twice in one object")
    return made


def _float(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        is_word = text.endswith(("NaN", "Infinity"))
        raise DamagedFile(f"{text} is not valid JSON" if is_word else f"the number {text[:40]} is too large")
    return number


def _int(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise DamagedFile(f"the number {text[:20]}... has {len(text)} digits")
    return int(text)
