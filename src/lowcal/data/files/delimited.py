"""Text files with a row on each line: CSV and its relatives, as programs and spreadsheets write them.

Arrow reads them, every column as text. Where it gives up, or a quote is left open, which it takes for a long value,
Python's own reader goes through the file and names the row at fault.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import IO, Any, TextIO

from lowcal.data.errors import InvalidInput

SEPARATORS = (",", ";", "\t", "|")
#: A batch is made of this many bytes, or of more where a row is longer: up to the second.
BATCH_BYTES, MOST_BYTES = 1 << 20, 1 << 30
SAMPLE_LINES = 50
#: A column with at most this many different values in the first batch is read as a dictionary.
FEW = 256
#: A quoted value that goes on over more characters without a quote, on lines of their own, was left open.
LONGEST = 1 << 22
#: Lines and values may be longer than that: the largest limit that Python's reader takes on every platform.
NO_LIMIT = 2**31 - 1
#: How a file begins that tells its encoding.
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
#: What reading a damaged packed file raises.
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)
_SHOWN = {",": "','", ";": "';'", "\t": "a tab", "|": "'|'"}


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows: an Arrow array for each column asked for, and how much of the file was read for them."""

    columns: tuple[Any, ...]
    n_rows: int
    n_read: int


@dataclass(frozen=True, eq=False)
class Delimited:
    """A text file, its header read and its dialect known."""

    path: Path
    shown: str
    names: tuple[str, ...]
    separator: str
    decimal: str
    encoding: str
    is_packed: bool
    #: Empty lines above the header.
    n_empty: int = 0
    block: int = 0

    def batches(self, columns: Sequence[int]) -> Iterator[Batch]:
        """Yield the rows in batches, only the columns at these positions, as text."""
        from pyarrow import ArrowInvalid

        done = 0
        try:
            first = next(self._read(columns, ()), None)
            few = [j for j, column in zip(columns, first.columns, strict=True) if _is_few(column)] if first else []
            for batch in self._read(columns, few):
                done += batch.n_rows
                yield batch
        except (ArrowInvalid, UnicodeError, *_BROKEN) as error:
            self._explain()
            if self.block >= MOST_BYTES:
                raise InvalidInput(f"{self.shown} can't be read ({error}); correct it.") from error
            yield from self._longer(columns, done)

    def _longer(self, columns: Sequence[int], done: int) -> Iterator[Batch]:
        """Yield the rows after the first: one that is longer than a block was met, but nothing is wrong with it."""
        before = 0
        for batch in replace(self, block=8 * (self.block or BATCH_BYTES)).batches(columns):
            rest = max(0, min(batch.n_rows, before + batch.n_rows - done))
            before += batch.n_rows
            if rest:
                yield Batch(tuple(column[-rest:] for column in batch.columns), rest, batch.n_read)

    def _read(self, columns: Sequence[int], few: Sequence[int]) -> Iterator[Batch]:
        """Yield the rows as Arrow reads them; columns that hold few values are dictionaries."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        names = [str(j) for j in range(len(self.names))]
        with self.path.open("rb") as raw, unpacked(raw, self.is_packed) as stream:
            counted = Counted(stream)
            reader = arrow_csv.open_csv(
                pa.PythonFile(counted, mode="r"),
                arrow_csv.ReadOptions(
                    use_threads=False,
                    block_size=self.block or BATCH_BYTES,
                    column_names=names,
                    skip_rows=self.n_empty,
                    skip_rows_after_names=1,
                    encoding="utf8" if self.encoding == "utf-8-sig" else self.encoding,
                ),
                arrow_csv.ParseOptions(delimiter=self.separator, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string())
                    | dict.fromkeys([names[j] for j in few], pa.dictionary(pa.int32(), pa.string())),
                    include_columns=[names[j] for j in columns],
                ),
            )
            done = 0
            for batch in reader:
                if batch.num_rows:
                    yield Batch(tuple(batch.columns), batch.num_rows, raw.tell() - done)
                    done = raw.tell()
        if counted.quotes % 2:  # the last value may have swallowed all rows after it
            self._explain()

    def _explain(self) -> None:
        """Go through the rows one by one and refuse the first that is wrong."""
        with open_text(self.path, self.encoding, self.is_packed) as text:
            for n, row in enumerate(read_rows(text, self.separator, self.shown, self.encoding)):
                if len(row) != len(self.names):
                    raise InvalidInput(
                        f"Row {n} of {self.shown} has {count(len(row), 'value')}, but the header names "
                        f"{count(len(self.names), 'column')}; correct it, or give the right --separator (this is "
                        f"{_SHOWN.get(self.separator, repr(self.separator))})."
                    )


def _is_few(column: Any) -> bool:
    return len(column.unique()) <= FEW


class Counted:
    """A stream of bytes that counts the quotes which are read."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.quotes = stream, 0

    def read(self, size: int) -> bytes:
        """Return at most this many bytes."""
        data = self.stream.read(size)
        self.quotes += data.count(b'"')
        return data


@contextmanager
def unpacked(raw: IO[bytes], is_packed: bool) -> Iterator[IO[bytes]]:
    """Give the bytes of a file, unpacked if it is packed."""
    if not is_packed:
        yield raw
        return
    with gzip.GzipFile(fileobj=raw) as stream:
        yield stream  # type: ignore[misc]


@contextmanager
def open_text(path: Path, encoding: str, is_packed: bool) -> Iterator[TextIO]:
    """Open a text file, packed or not."""
    with path.open("rb") as raw, unpacked(raw, is_packed) as stream:
        yield io.TextIOWrapper(stream, encoding=encoding, newline="")


class OpenQuote(csv.Error):
    """A quoted value seems to have no end."""


class NeverClosed(InvalidInput):
    """A quoted value of a file has no end."""


def parse(text: TextIO, separator: str) -> Iterator[list[str]]:
    """Yield the rows of a text; a quoted value without an end is given up before it fills the memory."""
    csv.field_size_limit(max(csv.field_size_limit(), NO_LIMIT))
    is_done, unquoted = True, 0

    def lines() -> Iterator[str]:
        nonlocal is_done, unquoted
        for line in text:
            is_done = False
            yield line
            # the next line is asked for before the row is done only while a quote is open
            unquoted = 0 if is_done or '"' in line else unquoted + len(line)
            if unquoted > LONGEST:
                raise OpenQuote
        if not is_done:
            raise OpenQuote

    for row in csv.reader(lines(), delimiter=separator):
        is_done = True
        yield row


def read_rows(text: TextIO, separator: str, shown: str, encoding: str) -> Iterator[list[str]]:
    """Yield the rows of a text, empty lines left out; what can't be read is told with the row."""
    reader = parse(text, separator)
    n = 0
    while True:
        try:
            row = next(reader, None)
        except UnicodeError as error:
            raise wrong_encoding(shown, encoding) from error
        except OpenQuote as error:
            raise NeverClosed(
                f"Row {n} of {shown} begins a value with a quote that is never closed; all rows after it would be part "
                "of this value. Correct it."
            ) from error
        except csv.Error as error:
            raise InvalidInput(f"Row {n} of {shown} can't be read ({error}); correct it.") from error
        except _BROKEN as error:
            raise InvalidInput(f"{shown} is damaged or cut short ({error}); write it again.") from error
        if row is None:
            return
        if row:
            yield row
            n += 1


def wrong_encoding(shown: str, encoding: str) -> InvalidInput:
    """Tell that the bytes are not text in this encoding."""
    name = "UTF-8" if encoding in ("utf-8", "utf-8-sig") else encoding
    other = "latin-1" if name == "UTF-8" else "utf-8"
    return InvalidInput(f"{shown} is not text in the encoding {name}; give its encoding, such as --encoding {other}.")


def open_delimited(path: Path, shown: str, *, separator: str | None, decimal: str, encoding: str | None) -> Delimited:
    """Find out how a text file is written and read its header."""
    with path.open("rb") as raw:
        start = raw.read(4)
    is_packed = start[:2] == b"\x1f\x8b"
    if start == b"PK\x03\x04":
        raise InvalidInput(f"{shown} is a spreadsheet or an archive, not a text file; save it as CSV or Parquet.")
    encoding = encoding or _encoding(path, is_packed)
    separator = separator or _sniff(path, shown, encoding, is_packed)
    with open_text(path, encoding, is_packed) as text:
        names = next(read_rows(text, separator, shown, encoding), None)
        text.seek(0)
        n_empty = sum(1 for _ in takewhile(lambda row: not row, parse(text, separator)))
    if names is None:
        raise InvalidInput(f"{shown} is empty; give a file with a header and at least one row.")
    check_names(names, shown)
    return Delimited(path, shown, tuple(names), separator, decimal, encoding, is_packed, n_empty)


def check_names(names: Sequence[str], shown: str) -> None:
    """Refuse a header that names a column twice; columns without a name can't be asked for, and do no harm."""
    twice = [name for name, times in Counter(names).items() if times > 1 and name]
    if twice:
        raise InvalidInput(f"The header of {shown} names {twice[0]!r} more than once; rename these columns.")


def _encoding(path: Path, is_packed: bool) -> str:
    """Return the encoding that a mark at the start tells, or UTF-8."""
    with path.open("rb") as raw, unpacked(raw, is_packed) as stream:
        try:
            start = stream.read(3)
        except _BROKEN:
            start = b""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")


def _sniff(path: Path, shown: str, encoding: str, is_packed: bool) -> str:
    """Return the separator under which the first rows are longest and all of one length; a comma if none is."""
    best, most = ",", 1
    for separator in SEPARATORS:
        lengths: list[int] = []
        # under another separator a quote may be closed
        with open_text(path, encoding, is_packed) as text, suppress(NeverClosed):
            lengths.extend(len(row) for row in islice(read_rows(text, separator, shown, encoding), SAMPLE_LINES))
        if lengths and lengths[0] > most and lengths.count(lengths[0]) * 2 > len(lengths):
            best, most = separator, lengths[0]
    return best


def count(n: int, noun: str) -> str:
    """Write a number of things.

    >>> count(1, "value"), count(3, "column")
    ('1 value', '3 columns')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"
