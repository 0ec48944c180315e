"""The loops of `loops` and the passes of `line`, compiled by numba, an extra: the same steps, many times faster.

Kernels are compiled once for each machine, and kept on disk (NUMBA_CACHE_DIR). This module is imported when a problem
is large enough, never before (`loops.compiled`). Kernels release the GIL. Codes are read as they are stored, a byte or
two each; loops over 1, 2 or 4 numbers a row are written out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core.caching import FunctionCache
from numba.extending import intrinsic
from numpy.typing import NDArray

from lowcal.kernels import line
from lowcal.kernels.loops import LAST, MIXED, STRIDE, UNUSED, Masks, MirrorReads, Reads, interrupts_wait
from lowcal.kernels.simplex import FAR, FLOOR, FloatArray, IntArray

IS_COMPILED = True

F = TypeVar("F", bound=Callable[..., Any])
Adder: TypeAlias = Callable[[FloatArray, int | np.intp, FloatArray, int | np.intp], None]

#: Changes with any file of this folder: kernels are made of functions and numbers of several of them.
SOURCES = [zlib.crc32(path.read_bytes()) for path in sorted(Path(__file__).parent.glob("*.py"))]
#: Rows in work at a time: their numbers stay in the first cache, beside a table.
ROWS = 1024
#: Sums that grow side by side: one alone would wait for each addition.
LANES = 512
#: Moves a point that the stacks may take before the dual is faster: compiled, a move is cheaper.
MOVES = 256


class KeptKernels(FunctionCache):
    """Compiled kernels on disk, which save time and nothing else: whatever is wrong with the files, kernels compile.

    Where a file can't be read or written, the index goes: it may name data files that hold something else.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file._source_stamp = SOURCES  # numba's own stamp is that of the kernel's file alone

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel for these types; None if it is not there, or can't be read."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # what the bytes of a damaged file raise, there is no list of
            self._forget()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel, if there is room."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except OSError:
            self._forget()

    def _forget(self) -> None:
        with suppress(OSError):
            Path(self._cache_file._index_path).unlink()


def compile_kernel(function: F, **options: Any) -> F:
    """Compile on first call, with numba's options, and keep the result on disk if there is a place to keep it.

    numba looks for a place at once, next to the file and then in the user's cache, and refuses when neither is
    writable: then the kernel lives as long as the process. An interrupt waits until a kernel is compiled.
    """
    kernel = numba.njit(nogil=True, **options)(function)
    if kernel is function:  # under a debugger's setting, NUMBA_DISABLE_JIT
        return function
    with suppress(RuntimeError):
        kernel._cache = KeptKernels(function)
    kernel.compile = interrupts_wait()(kernel.compile)
    return cast(F, kernel)


def adder(lanes: int) -> Adder:
    """Return a function for kernels: out[i : i + lanes] += R[j : j + lanes], of flat contiguous arrays of floats.

    A table in cache is bound by how many numbers a core can store in a cycle. numba turns `a[k] += x; a[k + 1] += y`
    into two additions and two stores; LLVM's vectors make one of each, two thirds of the time (`benchmarks/engines.py`,
    passes). Sums are those of plain loops, bit by bit, and every processor runs them.
    """

    def add(_typing: Any, out: Any, _i: Any, R: Any, _j: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def pointer(array: int) -> Any:
                data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
                vector = ir.VectorType(ir.DoubleType(), lanes).as_pointer()
                return builder.bitcast(builder.gep(data, [arguments[array + 1]]), vector)

            here, there = (builder.load(pointer(array), align=8) for array in (0, 2))
            builder.store(builder.fadd(here, there), pointer(0), align=8)
            return context.get_dummy_value()

        return numba.void(out, numba.intp, R, numba.intp), generate

    return cast(Adder, intrinsic(add))


# --- the loops over rows --------------------------------------------------------------------------------------------

add_two, add_four = adder(2), adder(4)


@compile_kernel
def add_histogram(codes: IntArray, R: FloatArray, out: FloatArray) -> None:
    """Add sum_i [codes_i = v] R[i, :] to out[v, :]: one, two or four numbers with one instruction."""
    width, lanes, table = R.shape[1], R.reshape(-1), out.reshape(-1)
    if width == 1:
        for i in range(len(codes)):
            table[codes[i]] += lanes[i]
    elif width == 2:
        for i in range(len(codes)):
            add_two(table, 2 * np.intp(codes[i]), lanes, 2 * i)
    else:
        for a in range(0, width, 4):
            for i in range(len(codes)):
                add_four(table, width * np.intp(codes[i]) + a, lanes, width * i + a)


@compile_kernel
def add_products(codes: IntArray, A: FloatArray, B: FloatArray, far: float, out: FloatArray) -> None:
    """Add sum_i [codes_i = v] A_is B_it to out[v, s T + t], every product rounded by adding `far` and taking it off."""
    S, T, width, table = A.shape[1], B.shape[1], out.shape[1], out.reshape(-1)
    for i in range(len(codes)):
        start, own = width * np.intp(codes[i]), B[i]
        for s in range(S):
            factor, sums = A[i, s], table[start + s * T : start + (s + 1) * T]
            for t in range(T):
                sums[t] += (factor * own[t] + far) - far


@compile_kernel
def add_fine(terms: FloatArray, first: float, second: float) -> tuple[float, float]:
    """Return the sum of terms, rounded by adding `first` and taking it off again, and that of the rest, by `second`.

    Sums are exact in any order: rounded terms are laid out in vectors, then added side by side.
    """
    highs, lows = np.zeros(LANES), np.zeros(LANES)
    for s in range(0, len(terms), LANES):
        here = terms[s : s + LANES]
        for k in range(len(here)):
            rounded = (here[k] + first) - first
            highs[k] += rounded
            lows[k] += ((here[k] - rounded) + second) - second
    return highs.sum(), lows.sum()


@compile_kernel
def _lay_numbers(key: np.uint64, first: int, out: NDArray[np.uint64]) -> None:
    """Fill out with numbers of 53 bits that belong to a key and the rows from number `first` on (splitmix64)."""
    for i in range(len(out)):
        h = np.uint64(first + i) * STRIDE + key
        h = (h ^ (h >> MIXED[0][0])) * MIXED[0][1]
        h = (h ^ (h >> MIXED[1][0])) * MIXED[1][1]
        h ^= h >> LAST
        out[i] = h >> UNUSED


@compile_kernel
def lay_uniforms(key: np.uint64, first: int, out: FloatArray) -> None:
    """Fill out with numbers in [0, 1) that belong to a key and the rows from number `first` on."""
    numbers = np.empty(ROWS, np.uint64)
    for s in range(0, len(out), ROWS):
        here = out[s : s + ROWS]
        _lay_numbers(key, first + s, numbers[: len(here)])
        for i in range(len(here)):
            here[i] = np.float64(numbers[i]) * 2.0**-53


@compile_kernel
def add_drawn(
    keys: NDArray[np.uint64],
    first: int,
    bars: NDArray[np.uint64],
    R: FloatArray,
    codes: IntArray,
    starts: IntArray,
    out: FloatArray,
) -> None:
    """Add R[i, :] to out[b, starts_k + codes[k, i], :] for every column k, for the rows i that key b picks."""
    width, lanes = R.shape[1], R.reshape(-1)
    numbers, picked = np.empty(ROWS, np.uint64), np.empty(ROWS, np.intp)
    for b in range(len(keys)):
        table = out[b].reshape(-1)
        for s in range(0, len(bars), ROWS):
            here, found = bars[s : s + ROWS], 0
            _lay_numbers(keys[b], first + s, numbers[: len(here)])
            for i in range(len(here)):  # a jump for every row would cost more than all that is added
                picked[found] = s + i
                found += (numbers[i] - here[i]) >> np.uint64(63)
            for k in range(len(codes)):
                _add_picked(codes[k], picked[:found], lanes, width, table[width * starts[k] :])


@compile_kernel
def _add_picked(codes: IntArray, rows: IntArray, lanes: FloatArray, width: int, table: FloatArray) -> None:
    """Add the lanes of some rows to the table's entries for their codes."""
    if width == 1:
        for i in rows:
            table[codes[i]] += lanes[i]
    elif width == 2:
        for i in rows:
            add_two(table, 2 * np.intp(codes[i]), lanes, 2 * i)
    else:
        for a in range(0, width, 4):
            for i in rows:
                add_four(table, width * np.intp(codes[i]) + a, lanes, width * i + a)


@compile_kernel
def _read_codes(codes: IntArray, table: FloatArray, lanes: FloatArray, width: int) -> None:
    """Add the table's entry for every row's code to the row's lanes."""
    if width == 1:
        for i in range(len(codes)):
            lanes[i] += table[codes[i]]
    elif width == 2:
        for i in range(len(codes)):
            add_two(lanes, 2 * i, table, 2 * np.intp(codes[i]))
    else:
        for a in range(0, width, 4):
            for i in range(len(codes)):
                add_four(lanes, width * i + a, table, width * np.intp(codes[i]) + a)


@compile_kernel
def add_look_up(codes: IntArray, table: FloatArray, out: FloatArray) -> None:
    """Add table[codes_i, :] to out[i, :]: one, two or four numbers with one instruction."""
    _read_codes(codes, table.reshape(-1), out.reshape(-1), table.shape[1])


@compile_kernel
def replay(f: FloatArray, codes: IntArray, reads: Reads, masks: Masks) -> None:
    """Run updates in place; a group that several of them move is looked up once, and then read as bytes."""
    starts, column, offset, width, tables = reads
    group, step, power, mask_column, mask_offset, members = masks
    inside = np.empty((len(mask_column), ROWS), np.uint8)
    lanes = np.empty(ROWS * max(1, width.max()))
    for s in range(0, len(f), ROWS):
        run = f[s : s + ROWS]
        for g in range(len(mask_column)):
            code, mask = codes[mask_column[g], s : s + ROWS], members[mask_offset[g] :]
            for i in range(len(run)):
                inside[g, i] = mask[code[i]]
        for t in range(len(starts) - 1):
            if group[t] >= 0:
                _move_group(run, inside[group[t]], step[t], power[t])
                continue
            lanes[: len(run) * width[t]] = 0.0
            for r in range(starts[t], starts[t + 1]):
                _read_codes(codes[column[r], s : s + ROWS], tables[offset[r] :], lanes, width[t])
            _move(run, lanes, width[t])


@partial(compile_kernel, error_model="numpy")  # to look out for zeros would be slower than to divide
def lay_odds(f: FloatArray, out: FloatArray) -> None:
    """Fill out with the odds of f."""
    for i in range(len(f)):
        inside = min(max(f[i], FLOOR), 1.0 - FLOOR)
        out[i] = inside / (1.0 - inside)


@compile_kernel
def bend(z: FloatArray, f: FloatArray, codes: IntArray, update: MirrorReads, out: FloatArray) -> None:
    """Sum the look-ups of ROWS rows while they are in the first cache, then add them to z."""
    powers, column, offset, tables = update
    width, flat = tables.shape[1], tables.reshape(-1)
    lanes = np.empty(ROWS * width)
    for s in range(0, len(z), ROWS):
        size = min(ROWS, len(z) - s)
        here, there, moved = z[s : s + size], f[s : s + size], out[s : s + size]
        lanes[: size * width] = 0.0
        for r in range(len(column)):
            _read_codes(codes[column[r], s : s + size], flat[width * offset[r] :], lanes, width)
        if len(powers) == 2 and powers[0] == 0 and abs(powers[1]) == 1:
            _add_line(here, here if powers[1] < 0 else there, lanes, moved)
        else:
            _add_lanes(here, there, lanes, width, powers, moved)


@compile_kernel
def _add_line(z: FloatArray, x: FloatArray, lanes: FloatArray, out: FloatArray) -> None:
    """Fill out with minus the sum of z, the first lane and the second one times x, at most FAR: what most fits need."""
    for i in range(len(z)):
        out[i] = min(-((z[i] + lanes[2 * i]) + lanes[2 * i + 1] * x[i]), FAR)


@compile_kernel
def _add_lanes(z: FloatArray, f: FloatArray, lanes: FloatArray, width: int, powers: IntArray, out: FloatArray) -> None:
    """Fill out with minus the sum of z and every lane times its power of f, or times z, at most FAR."""
    for i in range(len(z)):
        score = z[i]
        for k in range(len(powers)):
            factor = 1.0
            for _ in range(abs(powers[k])):
                factor *= z[i] if powers[k] < 0 else f[i]
            score += lanes[width * i + k] * factor
        out[i] = min(-score, FAR)


@compile_kernel
def _move(f: FloatArray, lanes: FloatArray, width: int) -> None:
    """Move every row by the polynomial whose coefficients are its lanes (Horner)."""
    last = width - 1
    for a in range(width - 2, -1, -1):
        for i in range(len(f)):
            lanes[width * i + last] = lanes[width * i + last] * f[i] + lanes[width * i + a]
    for i in range(len(f)):
        f[i] = min(max(f[i] + lanes[width * i + last], 0.0), 1.0)


@compile_kernel
def _move_group(f: FloatArray, inside: NDArray[np.uint8], step: float, power: int) -> None:
    """Move one group by step f^power; the loops are written out, so that they become vector instructions."""
    if power == 0:
        for i in range(len(f)):
            f[i] = min(max(f[i] + step * inside[i], 0.0), 1.0)
    elif power == 1:
        for i in range(len(f)):
            f[i] = min(max(f[i] + step * inside[i] * f[i], 0.0), 1.0)
    else:
        for i in range(len(f)):
            f[i] = min(max(f[i] + step * inside[i] * f[i] ** power, 0.0), 1.0)


@compile_kernel
def add_group_pairs(starts: IntArray, groups: IntArray, H: FloatArray, total: FloatArray) -> None:
    """Add H[i], four numbers, to total[a, b] for any two groups a >= b of row i, groups[starts[i] : starts[i + 1]]."""
    m = total.shape[1]
    numbers, flat = H.reshape(-1), total.reshape(-1)
    for i in range(len(H)):
        for j in range(starts[i], starts[i + 1]):
            row = int(groups[j]) * m
            for k in range(starts[i], j + 1):
                add_four(flat, (row + int(groups[k])) * 4, numbers, i * 4)


# --- the passes of `line`, on arrays (spec 2.3) ---------------------------------------------------------------------

hold = np.ascontiguousarray


def _compiled(function: Any) -> Callable[..., Any]:
    """Compile a function of `line` such that it calls the compiled ones of this module."""
    return compile_kernel(FunctionType(function.__code__, globals(), function.__name__))


pour, by_stacks, backtrack = _compiled(line.pour), _compiled(line.by_stacks), _compiled(line.backtrack)
put, trim, right_of, by_dual = (
    _compiled(line.put),
    _compiled(line.trim),
    _compiled(line.right_of),
    _compiled(line.by_dual),
)


@compile_kernel
def weights_by_stacks(gaps: FloatArray, R: FloatArray, budget: float, W: FloatArray) -> NDArray[np.bool_]:
    """Fill W with the best weights for every row of R, on the same points; mark the rows that the budget stopped."""
    m = R.shape[1]
    low, high, work = np.empty(m), np.empty(m), np.empty((4, m))
    stopped = np.zeros(len(R), np.bool_)
    for j in range(len(R)):
        if by_stacks(gaps, R[j], budget, low, high, work):
            backtrack(gaps, low, high, W[j])
        else:
            stopped[j] = True
    return stopped
