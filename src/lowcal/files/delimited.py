"""Text files with a row on each line: CSV and its relatives, as programs and spreadsheets write them.

Two readers that agree: Arrow's where it is installed, and Python's own, which also goes on where Arrow gives up, so
that every error is told by one place with the row and the column.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import IO, TextIO

from lowcal.errors import InvalidInput
from lowcal.files.fields import ArrowWritten, Field, Written

SEPARATORS = (",", ";", "\t", "|")
#: Rows in a batch of Python's reader, bytes in one of Arrow's.
BATCH_ROWS = 20_000
BATCH_BYTES = 1 << 20
SAMPLE_LINES = 50
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
    """Some rows: a field for each column asked for, and how many bytes of the file have been read by now."""

    fields: tuple[Field, ...]
    n_rows: int
    position: int


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
    engine: str
    #: Empty lines above the header.
    n_empty: int = 0

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return self.path.stat().st_size

    def batches(self, columns: Sequence[int]) -> Iterator[Batch]:
        """Yield the rows in batches, only the columns at these positions."""
        if self.engine == "python":
            yield from self._plain_batches(columns, 0)
            return
        from pyarrow import ArrowInvalid

        done = 0
        try:
            for batch in self._arrow_batches(columns):
                done += batch.n_rows
                yield batch
        except (ArrowInvalid, UnicodeError, *_BROKEN):
            # whatever it is, the plain reader reads it or says where it is
            yield from self._plain_batches(columns, done)

    def _arrow_batches(self, columns: Sequence[int]) -> Iterator[Batch]:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        names = [str(j) for j in range(len(self.names))]
        with self.path.open("rb") as raw, unpacked(raw, self.is_packed) as stream:
            counted = Counted(stream)
            reader = arrow_csv.open_csv(
                pa.PythonFile(counted, mode="r"),
                arrow_csv.ReadOptions(
                    use_threads=False,
                    block_size=BATCH_BYTES,
                    column_names=names,
                    skip_rows=self.n_empty,
                    skip_rows_after_names=1,
                    encoding="utf8" if self.encoding == "utf-8-sig" else self.encoding,
                ),
                arrow_csv.ParseOptions(delimiter=self.separator, newlines_in_values=True),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), include_columns=[names[j] for j in columns]
                ),
            )
            for batch in reader:
                if batch.num_rows:
                    fields = tuple(ArrowWritten(column, self.decimal) for column in batch.columns)
                    yield Batch(fields, batch.num_rows, raw.tell())
            self._check_quotes(counted)

    def _plain_batches(self, columns: Sequence[int], done: int) -> Iterator[Batch]:
        with self.path.open("rb") as raw, unpacked(raw, self.is_packed) as stream:
            counted = Counted(stream)
            text = io.TextIOWrapper(counted, encoding=self.encoding, newline="")  # type: ignore[type-var]
            rows = self._rows(text)
            for _ in islice(rows, done):
                pass
            while some := list(islice(rows, BATCH_ROWS)):
                fields = tuple(Written([row[j] for row in some], self.decimal) for j in columns)
                yield Batch(fields, len(some), raw.tell())
            self._check_quotes(counted)

    def _check_quotes(self, counted: Counted) -> None:
        """Refuse a file that ends inside a quoted value: readers take all rows from there on for this value."""
        if counted.quotes % 2 == 0:
            return
        n = 0
        with open_text(self.path, self.encoding, self.is_packed) as (text, _):
            try:
                for row in parse(text, self.separator, strict=True):
                    n += bool(row)
            except csv.Error as error:
                if isinstance(error, OpenQuote) or "unexpected end" in str(error):
                    raise never_closed(n, self.shown) from error

    def _rows(self, text: TextIO) -> Iterator[list[str]]:
        """Yield the rows below the header, none of them empty, all of the header's length."""
        n, wanted = 0, len(self.names)
        reader = read_rows(text, self.separator, self.shown, self.encoding)
        next(reader)
        for n, row in enumerate(reader, 1):
            if len(row) != wanted:
                raise InvalidInput(
                    f"Row {n} of {self.shown} has {count(len(row), 'value')}, but the header names "
                    f"{count(wanted, 'column')}; correct it, or give the right --separator (this is "
                    f"{_SHOWN.get(self.separator, repr(self.separator))})."
                )
            yield row


class Counted(io.BufferedIOBase):
    """A stream of bytes that counts the quotes which are read."""

    def __init__(self, stream: IO[bytes]):
        self.stream, self.quotes = stream, 0

    def readable(self) -> bool:
        """Return True: it is there to be read."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return this many bytes, or all."""
        data = self.stream.read(-1 if size is None else size)
        self.quotes += data.count(b'"')
        return data

    def read1(self, size: int = -1, /) -> bytes:
        """Return at most this many bytes."""
        return self.read(io.DEFAULT_BUFFER_SIZE if size < 0 else size)


@contextmanager
def unpacked(raw: IO[bytes], is_packed: bool) -> Iterator[IO[bytes]]:
    """Give the bytes of a file, unpacked if it is packed."""
    if not is_packed:
        yield raw
        return
    with gzip.GzipFile(fileobj=raw) as stream:
        yield stream  # type: ignore[misc]


@contextmanager
def open_text(path: Path, encoding: str, is_packed: bool) -> Iterator[tuple[TextIO, IO[bytes]]]:
    """Open a text file, packed or not; gives the text and the raw file, whose position tells how far reading is."""
    with path.open("rb") as raw, unpacked(raw, is_packed) as stream:
        yield io.TextIOWrapper(stream, encoding=encoding, newline=""), raw


class OpenQuote(csv.Error):
    """A quoted value seems to have no end."""


def parse(text: TextIO, separator: str, *, strict: bool = False) -> Iterator[list[str]]:
    """Yield the rows of a text; a quoted value without an end is given up before it fills the memory."""
    csv.field_size_limit(max(csv.field_size_limit(), NO_LIMIT))
    is_done, unquoted = False, 0

    def lines() -> Iterator[str]:
        nonlocal is_done, unquoted
        for line in text:
            yield line
            # the next line is asked for before the row is done only while a quote is open
            unquoted = 0 if is_done or '"' in line else unquoted + len(line)
            is_done = False
            if unquoted > LONGEST:
                raise OpenQuote

    for row in csv.reader(lines(), delimiter=separator, strict=strict):
        is_done = True
        yield row


def never_closed(row: int, shown: str) -> InvalidInput:
    """Tell that a quoted value has no end."""
    return InvalidInput(
        f"Row {row} of {shown} begins a value with a quote that is never closed; all rows after it would be part of "
        "this value. Correct it."
    )


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
            raise never_closed(n, shown) from error
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


def open_delimited(
    path: Path, shown: str, *, separator: str | None, decimal: str, encoding: str | None, engine: str
) -> Delimited:
    """Find out how a text file is written and read its header."""
    with path.open("rb") as raw:
        start = raw.read(4)
    is_packed = start[:2] == b"\x1f\x8b"
    if start == b"PK\x03\x04":
        raise InvalidInput(f"{shown} is a spreadsheet or an archive, not a text file; save it as CSV or Parquet.")
    encoding = encoding or _encoding(path, is_packed)
    separator = separator or _sniff(path, shown, encoding, is_packed)
    with open_text(path, encoding, is_packed) as (text, _):
        names = next(read_rows(text, separator, shown, encoding), None)
        text.seek(0)
        n_empty = sum(1 for _ in takewhile(lambda row: not row, parse(text, separator)))
    if names is None:
        raise InvalidInput(f"{shown} is empty; give a file with a header and at least one row.")
    check_names(names, shown)
    return Delimited(path, shown, tuple(names), separator, decimal, encoding, is_packed, engine, n_empty)


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
        with open_text(path, encoding, is_packed) as (text, _):
            lengths = [len(row) for row in islice(read_rows(text, separator, shown, encoding), SAMPLE_LINES)]
        if lengths and lengths[0] > most and lengths.count(lengths[0]) * 2 > len(lengths):
            best, most = separator, lengths[0]
    return best


def count(n: int, noun: str) -> str:
    """Write a number of things.

    >>> count(1, "value"), count(3, "column")
    ('1 value', '3 columns')
    """
    return f"{n} {noun}{'' if n == 1 else 's'}"
