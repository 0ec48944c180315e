"""The text of a saved model: JSON with a format, a version and a checksum, read strictly and executed never.

    {"format": "lowcal", "version": 1, "checksum": "sha256:...", "lowcal": "0.2.0", "metadata": {...}, "model": {...}}

The checksum is the SHA-256 of the canonical text (sorted keys, no spaces, UTF-8) of everything else, so that white
space and the order of keys do not count. A number is written as Python's repr, which is read back to the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from math import isfinite
from typing import Any, NoReturn

import numpy as np

from lowcal.data.errors import DamagedFile, InvalidInput

FORMAT = "lowcal"
#: The version that is written; it changes when an older lowcal could misread a file.
VERSION = 1
#: Larger files are refused: reading takes several times as much memory.
MOST_BYTES = 1 << 30
#: The most digits of a whole number.
MOST_DIGITS = 400
#: Containers up to this depth are laid out on lines of their own.
LINES = 4

_KEYS = ("format", "version", "checksum", "lowcal", "metadata", "model")


def write(model: dict[str, Any], metadata: dict[str, Any], lowcal_version: str) -> bytes:
    """Return the document as bytes; the same model gives the same bytes."""
    rest = {"format": FORMAT, "version": VERSION, "lowcal": lowcal_version, "metadata": metadata, "model": model}
    document = {key: checksum(rest) if key == "checksum" else rest[key] for key in _KEYS}
    return (_lay_out(document, LINES) + "\n").encode("utf-8")


def read(data: bytes) -> dict[str, Any]:
    """Return the document, its checksum verified; a `DamagedFile` says what is wrong with it."""
    try:
        document = _parse(data)
        _check_version(document)
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
    """Return JSON with the outer containers on lines of their own, so that people and diffs can read it."""
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
            parse_constant=_refuse_constant,
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


def _check_version(document: Mapping[str, Any]) -> None:
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise DamagedFile(f"its version is {version!r}, but it must be a whole number from 1 on")
    if version > VERSION:
        writer = document.get("lowcal")
        by = f" {writer}" if isinstance(writer, str) and len(writer) < 40 else ""
        raise InvalidInput(
            f"it was written by a newer lowcal{by} (format {version}; this one reads up to {VERSION}): update lowcal"
        )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise DamagedFile("it has a key twice in one object")
    return made


def _float(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise DamagedFile(f"the number {text[:40]} is too large")
    return number


def _int(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise DamagedFile(f"the number {text[:20]}... has {len(text)} digits")
    return int(text)


def _refuse_constant(text: str) -> NoReturn:
    raise DamagedFile(f"{text} is not valid JSON")


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
