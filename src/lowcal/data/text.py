"""Text files with a row on each line: CSV and its relatives, as programs and spreadsheets write them.

Arrow reads them as text. A first pass over all rows finds what each column holds; later ones convert the texts:

- A number is a decimal number, with the decimal point or comma of the file, or 'inf'; `MISSING` are the ways to write
  that there is none.
- A column is numeric if all its values are numbers without leading zeros ('007' is a name), boolean if all are 'true'
  or 'false', and text otherwise; in a text column only the empty field is missing.
- No digit is lost: whole numbers beyond 2^53 stay whole, and are text where they do not fit into 64 bits or stand
  beside fractions.

Where Arrow gives up, or a quote is left open, which it takes for a long value, Python's own reader goes through the
file and names the row at fault.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lowcal.data.batches import BATCH_BYTES
from lowcal.data.errors import InvalidInput, repeated
from lowcal.kernels.simplex import MOST_EXACT, FloatArray

#: A quoted value that goes on for more characters, over several lines and without a quote, was left open.
LONGEST = 4 * BATCH_BYTES
#: How files write a missing number.
MISSING = frozenset({"", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"})
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")

_SEPARATORS = {",": "','", ";": "';'", "\t": "a tab", "|": "'|'"}
#: Byte order marks, and their encodings.
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
#: What reading a damaged packed file raises.
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_LEADING_ZERO = r"^\s*[+-]?0[0-9]"
#: Whole numbers of which a float may not keep all digits.
_LONG = r"^\s*[+-]?[0-9]{16,}\s*$"


def ignore(*_: object) -> None:
    """Ignore all arguments."""


@dataclass(frozen=True, eq=False)
class TextFile:
    """A text file, its header read and its dialect known."""

    path: Path
    shown: str
    separator: str
    decimal: str
    encoding: str
    is_packed: bool
    names: tuple[str, ...] = ()

    def batches(self, names: Sequence[str] | None = None, add: Callable[[int], object] = ignore) -> Iterator[Any]:
        """Yield record batches of some columns (None: all) as text; where a row is longer than a block, in longer ones.

        `add` is given the number of bytes that were read for each.
        """
        from pyarrow import ArrowInvalid

        done, block = 1, BATCH_BYTES  # the header is a row, and done
        while True:
            seen = 0
            try:
                for batch in self._read(names, block, add):
                    seen += batch.num_rows
                    if seen > done:
                        yield batch.slice(max(0, batch.num_rows - (seen - done)))
                        done = seen
                return
            except (ArrowInvalid, UnicodeError, *_BROKEN) as error:
                self._explain()
                if block >= 1 << 30:  # no row is so long
                    raise InvalidInput(f"{self.shown} can't be read ({error}); correct it.") from error
                block *= 8

    def _read(self, names: Sequence[str] | None, block: int, add: Callable[[int], object]) -> Iterator[Any]:
        """Yield some columns of all rows, the header too, as Arrow reads them."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        positions = range(len(self.names)) if names is None else [self.names.index(name) for name in names]
        numbered = [str(j) for j in range(len(self.names))]
        encoding = "utf8" if self.encoding == "utf-8-sig" else self.encoding
        with self.path.open("rb") as raw:
            counted, done = _Counted(self.unpacked(raw)), 0
            for batch in arrow_csv.open_csv(
                pa.PythonFile(counted, mode="r"),
                arrow_csv.ReadOptions(use_threads=False, block_size=block, column_names=numbered, encoding=encoding),
                arrow_csv.ParseOptions(delimiter=self.separator, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(numbered, pa.string()),
                    include_columns=[str(j) for j in positions],
                ),
            ):
                if batch.num_rows:
                    yield batch.rename_columns([self.names[j] for j in positions])
                    add(raw.tell() - done)
                    done = raw.tell()
        if counted.quotes % 2:  # the last value may have swallowed all rows after it
            self._explain()

    def unpacked(self, raw: IO[bytes]) -> IO[bytes]:
        """Return the bytes of an open file, packed or not."""
        return gzip.GzipFile(fileobj=raw) if self.is_packed else raw  # type: ignore[return-value]

    def _explain(self) -> None:
        """Go through the rows one by one and refuse the first that is wrong."""
        for n, row in enumerate(self.rows()):
            if len(row) != len(self.names):
                raise InvalidInput(
                    f"Row {n} of {self.shown} has {count(len(row), 'value')}, but the header names "
                    f"{count(len(self.names), 'column')}; correct it, or give the right --separator (this is "
                    f"{_SEPARATORS.get(self.separator, repr(self.separator))})."
                )

    def rows(self) -> Iterator[list[str]]:
        """Yield the rows as Python reads them, empty lines left out; an error names the row that can't be read."""
        n = 0
        try:
            with self.path.open("rb") as raw:
                text = io.TextIOWrapper(self.unpacked(raw), encoding=self.encoding, newline="")
                for row in filter(None, _parse_rows(text, self.separator)):
                    yield row
                    n += 1
        except UnicodeError as error:
            name = "UTF-8" if self.encoding in ("utf-8", "utf-8-sig") else self.encoding
            other = "latin-1" if name == "UTF-8" else "utf-8"
            raise InvalidInput(
                f"{self.shown} is not text in the encoding {name}; give its encoding, such as --encoding {other}."
            ) from error
        except _OpenQuote as error:
            raise InvalidInput(
                f"Row {n} of {self.shown} begins a value with a quote that is never closed; all rows after it would be "
                "part of this value. Correct it."
            ) from error
        except csv.Error as error:
            raise InvalidInput(f"Row {n} of {self.shown} can't be read ({error}); correct it.") from error
        except _BROKEN as error:
            raise InvalidInput(f"{self.shown} is damaged or cut short ({error}); write it again.") from error


class _Counted:
    """A stream of bytes that counts the quotes which are read."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.quotes = stream, 0

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.quotes += data.count(b'"')
        return data


class _OpenQuote(csv.Error):
    """A quoted value seems to have no end."""


def _parse_rows(text: IO[str], separator: str) -> Iterator[list[str]]:
    """Yield the rows of a text; a quoted value without an end is given up before it fills the memory."""
    csv.field_size_limit(2**31 - 1)  # the largest limit that Python's reader takes on every platform
    is_done, unquoted = True, 0

    def lines() -> Iterator[str]:
        nonlocal is_done, unquoted
        for line in text:
            is_done = False
            yield line
            # the next line is asked for before the row is done only while a quote is open
            unquoted = 0 if is_done or '"' in line else unquoted + len(line)
            if unquoted > LONGEST:
                raise _OpenQuote
        if not is_done:
            raise _OpenQuote

    for row in csv.reader(lines(), delimiter=separator):
        is_done = True
        yield row


def open_text_file(path: Path, shown: str, *, separator: str | None, decimal: str, encoding: str | None) -> TextFile:
    """Find out how a text file is written and read its header."""
    with path.open("rb") as raw:
        start = raw.read(4)
    if start == b"PK\x03\x04":
        raise InvalidInput(f"{shown} is a spreadsheet or an archive, not a text file; save it as CSV or Parquet.")
    file = TextFile(path, shown, separator or ",", decimal, encoding or "utf-8", start[:2] == b"\x1f\x8b")
    if encoding is None:
        with path.open("rb") as raw, suppress(*_BROKEN):
            start = file.unpacked(raw).read(3)
            file = replace(
                file, encoding=next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")
            )
    if separator is None:
        # the one under which the first rows are longest and most of one length; a comma if none is
        most = 1
        for one in _SEPARATORS:
            tried, lengths = replace(file, separator=one), list[int]()
            with suppress(InvalidInput):  # under another separator a quote may be closed
                lengths.extend(len(row) for row in islice(tried.rows(), 50))
            if lengths and lengths[0] > most and lengths.count(lengths[0]) * 2 > len(lengths):
                file, most = tried, lengths[0]
    names = next(file.rows(), None)
    if names is None:
        raise InvalidInput(f"{shown} is empty; give a file with a header and at least one row.")
    check_names(names, shown)
    return replace(file, names=tuple(names))


def check_names(names: Sequence[str], shown: str) -> None:
    """Refuse a header that names a column twice; columns without a name can't be asked for, and do no harm."""
    if twice := repeated(filter(None, names)):
        raise InvalidInput(f"The header of {shown} names {twice[0]!r} more than once; rename these columns.")


# --- kinds of columns -----------------------------------------------------------------------------------------


class Kind(StrEnum):
    """What a column holds; of large whole numbers some are beyond 2^53."""

    WHOLE = "whole numbers"
    LARGE = "large whole numbers"
    NUMBER = "numbers"
    BOOLEAN = "booleans"
    TEXT = "text"


def kind_of(values: Any, decimal: str) -> Kind | None:
    """Return the narrowest kind that holds all texts; None if all are missing.

    >>> import pyarrow as pa
    >>> [kind_of(pa.array(texts), ".").value for texts in (["1", ""], ["007", "1"], ["true", "NA"], ["1", "2.5"])]
    ['whole numbers', 'text', 'booleans', 'numbers']
    """
    import pyarrow as pa

    texts = values.cast(pa.string())
    found = _floats(texts, decimal)
    if isinstance(found, int):
        return Kind.BOOLEAN if {*texts.unique().to_pylist()} <= {*TRUE, *FALSE, *MISSING} else Kind.TEXT
    known = found[~np.isnan(found)]
    if len(known) == 0:
        return None
    if _has(texts, _LEADING_ZERO):
        return Kind.TEXT
    is_large = bool((np.abs(known) >= MOST_EXACT).any())
    # a cast that fails is slow in Arrow, so fractions are looked for first
    if bool((known == np.floor(known)).all()) and not _has(_present(texts).drop_null(), "[^0-9-]"):
        with suppress(pa.ArrowInvalid):
            cast(texts, Kind.WHOLE, decimal)
            return Kind.LARGE if is_large else Kind.WHOLE
    return Kind.TEXT if is_large and _has(texts, _LONG) else Kind.NUMBER


def wider(one: Kind | None, other: Kind | None) -> Kind | None:
    """Return the kind that holds the values of two batches."""
    if one is None or other is None or one is other:
        return one or other
    both = {one, other}
    if Kind.WHOLE in both and both & {Kind.LARGE, Kind.NUMBER}:
        return both.difference({Kind.WHOLE}).pop()
    return Kind.TEXT


def cast(values: Any, kind: Kind | None, decimal: str) -> Any:
    """Return texts as an Arrow array of a kind; texts are dictionaries, and a column without a value is numeric."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = values.cast(pa.string())
    if kind is Kind.TEXT:
        return pc.if_else(pc.equal(texts, ""), None, texts).dictionary_encode()
    if kind in (None, Kind.NUMBER):
        return pa.array(numbers(texts, decimal), from_pandas=True)
    present = _present(texts)
    if kind is Kind.BOOLEAN:
        return pc.if_else(pc.is_valid(present), pc.is_in(present, pa.array(TRUE)), None)
    return present.cast(pa.int64())


def _has(texts: Any, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _present(texts: Any) -> Any:
    """Return texts, null where one writes that a number is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.is_in(texts, pa.array(sorted(MISSING))), None, texts)


# --- values ---------------------------------------------------------------------------------------------------


def numbers(values: Any, decimal: str | None = None, name: str = "", before: int = 0) -> FloatArray:
    """Return the numbers of an Arrow array of any type, NaN where missing; true counts as 1.

    A value that is not a number is an error that names the column and the row (`before` rows come before these).

    >>> import pyarrow as pa
    >>> numbers(pa.array(["0,5", "NA"]), decimal=",")
    array([0.5, nan])
    """
    import pyarrow as pa

    try:
        found = _floats(values, decimal or ".")
    except pa.ArrowException:
        raise InvalidInput(f"Column {name!r} has the type {values.type}; convert it to a number first.") from None
    if not isinstance(found, int):
        return found
    text, other = values[found].as_py(), {".": ",", ",": "."}.get(decimal or "")
    hint = ""
    if other is not None and parse_number(text, other) is not None:
        is_comma = other == ","
        hint = "; if the comma is a decimal comma, add --decimal ','" if is_comma else ", given --decimal ','"
    raise InvalidInput(f"{place(name, before + found)}: {text!r} is not a number{hint}.")


def _floats(values: Any, decimal: str) -> FloatArray | int:
    """Return the numbers of a column, NaN where missing, or the first row whose value is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(values):
        plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        return np.asarray(plain.cast("float64", safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    texts = values.cast(pa.string())
    if decimal != ".":  # a point is then not part of a number
        texts = pc.replace_substring(pc.replace_substring(texts, ".", "?"), decimal, ".")
    with suppress(pa.ArrowInvalid):
        present = _present(texts).cast(pa.float64())
        floats = np.asarray(present.to_numpy(zero_copy_only=False), dtype=np.float64)
        if np.isnan(floats).sum() == present.null_count:  # else Arrow reads NaN where the rules do not
            return floats
    distinct, places = factorise(values)
    read = [parse_number(text or "", decimal) for text in distinct]
    bad = np.array([*(number is None for number in read), False])[places]
    if bad.any():
        return int(bad.argmax())
    return np.array([*(np.nan if number is None else number for number in read), np.nan])[places]


def parse_number(text: str, decimal: str) -> float | None:
    """Return the number that a text writes, NaN for a missing one; None if it writes none."""
    if text in MISSING:
        return np.nan
    pointed = text.strip() if decimal == "." else text.strip().replace(".", "?").replace(decimal, ".")
    return float(pointed) if _NUMBER.fullmatch(pointed) else None


def factorise(values: Any, name: str = "") -> tuple[list[Any], NDArray[np.intp]]:
    """Return the distinct values of an Arrow array and the place of each row's; null is the place after the last.

    Columns of lists and other types that can't be compared are refused by name.
    """
    import pyarrow as pa

    try:
        encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    except pa.ArrowNotImplementedError:
        raise InvalidInput(f"Column {name!r} has the type {values.type}; convert it to a number or to text.") from None
    distinct = encoded.dictionary.to_pylist()
    return distinct, np.asarray(encoded.indices.cast("int64").fill_null(len(distinct)), dtype=np.intp)


def is_text(values: Any) -> bool:
    """Whether an Arrow array holds texts, or a dictionary of them."""
    import pyarrow.types as pt

    kind = values.type.value_type if pt.is_dictionary(values.type) else values.type
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def place(name: str, row: int) -> str:
    """Name a place in a file; rows are counted from 1, without the header."""
    return f"Row {row + 1}, column {name!r}"


def count(n: int, noun: str) -> str:
    """Write a number of things, as in '1 value' or '3 columns'."""
    return f"{n} {noun}{'' if n == 1 else 's'}"
