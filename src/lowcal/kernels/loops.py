"""The inner loops over rows that histograms and look-ups are made of, in NumPy, and the choice of compiled ones.

A code column c and a table T give two adjoint loops: a histogram adds rows into the table, T[c_i, a] += R[i, a], and a
look-up reads the table for every row, D[i, a] += T[c_i, a]. Moments, Gram matrices, updates and predictions are these
two. Both work on pieces of rows that stay in cache, with tables small enough to stay there too.

`compiled` has the loops that make a large fit, audit or prediction markedly faster, with the same steps, beside the
passes of `line`; `trees` has those of `subpopulations.growing`. numba is imported here, when a problem is worth it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache, reduce
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lowcal.kernels.products import product
from lowcal.kernels.simplex import FAR, FloatArray, IntArray, odds

Item = TypeVar("Item")
Result = TypeVar("Result")

IS_COMPILED = False
NUMPY = sys.modules[__name__]

#: With more moments than this, whole rows of numbers are added or copied at a time.
FEW = 4
#: splitmix64: what the number of a row is multiplied by, shifts and factors, the last shift, the bits left over.
STRIDE = np.uint64(0x9E3779B97F4A7C15)
MIXED = (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB))
LAST, UNUSED = np.uint64(31), np.uint64(11)
#: Added to the bar of rows that a key picks from the other side of it.
OTHER_SIDE = np.uint64(1 << 63)
#: From this many table entries touched in one pass (rows x columns x moments), numba's import pays for itself: it takes
#: 0.2 s, and the first call of a kernel as long (`benchmarks/engines.py`, first calls).
COMPILE_FROM = 1 << 21

#: Total rows / rows in this batch.
_times: ContextVar[float] = ContextVar("times", default=1.0)

#: The compiled loops once they are in use, or NumPy's where there are none.
_at_hand: list[ModuleType] = []
#: Every thread needs room for a few arrays of the rows' length.
MAX_THREADS = 4
#: On fewer rows, threads mostly wait for Python's lock: one is as fast, and leaves the other cores alone.
MANY_ROWS = 50_000


def padded(q: int) -> int:
    """Return how many numbers a row and a table's entry hold for q moments, which are added 1, 2 or 4 at a time.

    >>> [padded(q) for q in (1, 2, 3, 4, 5)]
    [1, 2, 4, 4, 8]
    """
    return q if q <= 2 else -(-q // 4) * 4


def pad(R: FloatArray) -> FloatArray:
    """Return R as kernels take it: rows one after the other, as many numbers in each as are added together."""
    n, q = R.shape
    if padded(q) == q:
        return np.ascontiguousarray(R)
    wide = np.zeros((n, padded(q)))
    wide[:, :q] = R
    return wide


def code_rows(columns: Sequence[IntArray], part: slice) -> IntArray:
    """Return the codes of some rows, one run for each column, in the smallest type that holds them.

    >>> code_rows([np.array([1, 2], dtype=np.uint8), np.array([3, 400], dtype=np.uint16)], slice(1, 2))
    array([[  2],
           [400]], dtype=uint16)
    """
    n = len(columns[0][part]) if columns else 0
    together = np.empty((len(columns), n), dtype=np.result_type(np.uint8, *(c.dtype for c in columns)))
    for k, column in enumerate(columns):
        together[k] = column[part]
    return together


def add_histogram(codes: IntArray, R: FloatArray, out: FloatArray) -> None:
    """Add sum_i [codes_i = v] R[i, :] to out[v, :]; both are `padded`, rows of R lie one after the other.

    Two neighbours are added as one complex number.
    """
    n, width = R.shape
    if width > FEW:
        codes = codes.astype(np.int32, copy=False)
        one_hot = sparse.csr_array((np.ones(n), codes, np.arange(n + 1, dtype=np.int32)), shape=(n, len(out)))
        out += product(one_hot.T, R)
        return
    index = codes.astype(np.intp, copy=False)
    for table, run in zip(_lanes(out), _lanes(R), strict=True):
        np.add.at(table, index, run)


def _lanes(A: FloatArray) -> NDArray[Any]:
    """Return the columns of rows of one, two or four numbers: of the one, or of pairs as complex numbers."""
    return A.T if A.shape[1] == 1 else A.view(np.complex128).T


def add_products(codes: IntArray, A: FloatArray, B: FloatArray, far: float, out: FloatArray) -> None:
    """Add sum_i [codes_i = v] A_is B_it to out[v, s T + t], every product rounded by adding `far` and taking it off."""
    (n, S), T = A.shape, B.shape[1]
    R = np.zeros((n, out.shape[1]))
    np.multiply(A[:, :, None], B[:, None, :], out=R[:, : S * T].reshape(n, S, T))
    R += far
    R -= far
    add_histogram(codes, R, out)


def add_look_up(codes: IntArray, table: FloatArray, out: FloatArray) -> None:
    """Add table[codes_i, :] to out[i, :]; both are `padded`."""
    if table.shape[1] > FEW:
        out += table[codes]
        return
    index = codes.astype(np.intp, copy=False)
    for entries, run in zip(_lanes(table), _lanes(out), strict=True):
        run += np.take(entries, index)


class Reads(NamedTuple):
    """The look-ups of many updates: those of update t are the ones from starts[t] to starts[t + 1].

    The table of a look-up begins at its offset and holds width[t] numbers for each code, the factors of f^0, f^1, ...
    """

    starts: IntArray
    column: IntArray
    offset: IntArray
    width: IntArray
    tables: FloatArray


class Masks(NamedTuple):
    """Updates that move one group by a number: which group, how far. A group is looked up once for all its updates.

    `group[t]` is -1 for other updates; `column` and `tables` (0 or 1 for each code, from `offset` on) are the groups.
    """

    group: IntArray
    step: FloatArray
    power: IntArray
    column: IntArray
    offset: IntArray
    tables: NDArray[np.uint8]


class MirrorReads(NamedTuple):
    """The look-ups of one mirror update: powers of f, and for each column that is read a table of their factors."""

    powers: IntArray
    column: IntArray
    offset: IntArray
    tables: FloatArray


def replay(f: FloatArray, codes: IntArray, reads: Reads, masks: Masks) -> None:
    """Run updates in place: f <- clip(f + sum_r sum_j f^j tables[offset_r + width codes[column_r] + j], 0, 1).

    Where group[t] is one, update t instead reads its 0/1 table in `masks`, times step[t] f^power[t].
    """
    index, (starts, column, offset, width, tables) = codes.astype(np.intp), reads
    for t, g in enumerate(masks.group):
        if g >= 0:
            inside = np.take(masks.tables[masks.offset[g] :], index[masks.column[g]])
            delta = masks.step[t] * inside * f ** masks.power[t]
        else:
            delta = np.zeros(len(f))
            for j in reversed(range(width[t])):
                delta *= f
                for r in range(starts[t], starts[t + 1]):
                    delta += np.take(tables[offset[r] + j :: width[t]], index[column[r]])
        np.clip(f + delta, 0.0, 1.0, out=f)


def lay_odds(f: FloatArray, out: FloatArray) -> None:
    """Fill out with the odds of f."""
    out[:] = odds(f)


def bend(z: FloatArray, f: FloatArray, codes: IntArray, update: MirrorReads, out: FloatArray) -> None:
    """Fill out with minus the log odds z + sum_k x_k sum_r tables[offset_r + codes[column_r], k], at most FAR.

    x_k is f^powers_k, or z where powers_k is below 0.
    """
    factors = np.zeros((len(z), update.tables.shape[1]))
    for k, start in zip(update.column, update.offset, strict=True):
        add_look_up(codes[k], update.tables[start:], factors)
    out[:] = z
    for k, power in enumerate(update.powers):
        x = z if power < 0 else reduce(np.multiply, [f] * power, np.ones(1))
        out += factors[:, k] * x
    np.minimum(np.negative(out, out=out), FAR, out=out)


def lay_powers(f: FloatArray, rho: FloatArray, R: FloatArray) -> None:
    """Fill R[i, j] with rho_i f_i^j."""
    R[:, 0] = last = rho
    for j in range(1, R.shape[1]):
        last = np.multiply(last, f, out=R[:, j])


def add_fine(terms: FloatArray, first: float, second: float) -> tuple[float, float]:
    """Return the sum of terms, rounded by adding `first` and taking it off again, and that of the rest, by `second`."""
    high = terms + first
    high -= first
    low = terms - high
    low += second
    low -= second
    return float(np.add.reduce(high)), float(np.add.reduce(low))  # without the detours of a method


def lay_uniforms(key: np.uint64, first: int, out: FloatArray) -> None:
    """Fill out with numbers in [0, 1) that belong to a key and the rows from number `first` on (splitmix64)."""
    size = 1 << 13  # four arrays of this length stay in the second cache
    for start in range(0, len(out), size):
        here = out[start : start + size]
        np.multiply(_numbers(key, first + start, len(here)), 2.0**-53, out=here)


def _numbers(key: np.uint64, first: int, n: int) -> NDArray[np.uint64]:
    return numbers_of(key, np.arange(first, first + n, dtype=np.uint64))


def numbers_of(key: np.uint64, rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the same numbers, of these rows, which are overwritten, times 2^53."""
    h = rows
    h *= STRIDE
    h += key
    shifted = np.empty_like(h)
    for shift, factor in MIXED:
        h ^= np.right_shift(h, shift, out=shifted)
        h *= factor
    h ^= np.right_shift(h, LAST, out=shifted)
    h >>= UNUSED
    return h


def add_drawn(
    keys: NDArray[np.uint64],
    first: int,
    bars: NDArray[np.uint64],
    R: FloatArray,
    codes: IntArray,
    starts: IntArray,
    out: FloatArray,
) -> None:
    """Add R[i, :] to out[b, starts_k + codes[k, i], :] for every column k, for the rows i that key b picks.

    These are the rows whose number in [0, 1) (see `lay_uniforms`), times 2^53, is below bars_i; or, if bars_i is more
    by OTHER_SIDE, those whose number is not below the rest of it. Either way, the difference has its highest bit.
    """
    stops = [*starts[1:].tolist(), out.shape[1]]
    for key, table in zip(keys, out, strict=True):
        picked = np.flatnonzero(_numbers(key, first, len(bars)) - bars >= OTHER_SIDE)
        own = R[picked]
        for column, start, stop in zip(codes, starts.tolist(), stops, strict=True):
            add_histogram(column[picked], own, table[start:stop])


# --- which loops run, and on how many threads -----------------------------------------------------------------------


def kernels_for(numbers: int) -> ModuleType:
    """Return the compiled loops for a pass that touches many table entries where numba is installed, else NumPy's.

    The choice depends on the size alone, so the same problem always gives the same bytes.

    >>> kernels_for(100).IS_COMPILED
    False
    """
    if round(numbers * _times.get()) < COMPILE_FROM:
        return NUMPY
    if not _at_hand:
        _at_hand.append(compiled("compiled") or NUMPY)
    return _at_hand[0]


def kernels_at_hand(numbers: int = 0) -> ModuleType:
    """Return the compiled loops if they are in use already, or pay: for loops that give the same bits either way."""
    return _at_hand[0] if _at_hand else kernels_for(numbers)


@contextmanager
def part_of(n: int, total: int) -> Iterator[None]:
    """Choose kernels as for all `total` rows, of which n are in this batch: batches must not change the choice.

    >>> with part_of(10, 1000):
    ...     _times.get()
    100.0
    """
    token = _times.set(total / max(n, 1))
    try:
        yield
    finally:
        _times.reset(token)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let an interrupt (Ctrl-C) take effect at the end of the block; Python delivers it to the main thread alone.

    numba that is stopped halfway, while it is imported or compiles, may not compile again.

    >>> with interrupts_wait():
    ...     pass
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting = []
    signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting:
            handler(*waiting[0])


@cache
@interrupts_wait()
def compiled(name: str) -> ModuleType | None:
    """Import compiled loops by the name of their module here; None without numba, or where nothing is compiled."""
    try:
        numba = import_module("numba")
        return None if numba.config.DISABLE_JIT else import_module(f"lowcal.kernels.{name}")
    except ImportError:
        return None


def spread(work: Callable[[Item], Result], items: Iterable[Item], rows: int) -> list[Result]:
    """Return the results of independent work, in order, on a few threads where the number of rows makes that faster.

    Threads see the context variables of the caller.

    >>> spread(lambda k: k * k, range(4), rows=100)
    [0, 1, 4, 9]
    """
    if rows < MANY_ROWS:
        return [work(item) for item in items]
    given = list(items)
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda context, item: context.run(work, item), [copy_context() for _ in given], given))
