"""Formulas in CUDA, through CuPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.card.bits import BIAS, MOST_TILES, MOST_TURNS, ROWS, WARPS, Adding
from lowcal.kernels.card.bits import KERNEL as ADDING
from lowcal.kernels.card.draws import FEW_DRAWS, MOST_ROWS, Picking, places_bytes
from lowcal.kernels.card.draws import KERNEL as PICKING
from lowcal.kernels.card.formula import (
    BANKS,
    FEW_TERMS,
    HELD_ROWS,
    MOST_ODDS,
    MOST_TABLE,
    TAKEN_BYTES,
    Device,
    Formula,
    Inputs,
    OneLevel,
    Precision,
)
from lowcal.kernels.card.twin import EXP_TERMS, LN2_HIGH, LN2_LOW, LOG2E, LOG_TERMS
from lowcal.kernels.exact import Wholes
from lowcal.kernels.products import product

HEADER = r"""
template <typename V> struct __align__(4 * sizeof(V)) Four { V v[4]; };
typedef unsigned long long U;
#define INF ((T)__int_as_float(0x7f800000))
__device__ __forceinline__ T least(T a, T b) { return a < b ? a : b; }
__device__ __forceinline__ T most(T a, T b) { return a > b ? a : b; }
__device__ __forceinline__ T size(T a) { return a < T(0) ? -a : a; }
__device__ __forceinline__ T pick(bool c, T a, T b) { return c ? a : b; }
__device__ __forceinline__ T near(T x) { return rint(x); }
__device__ __forceinline__ int whole(T x) { return (int)floor(x); }
__device__ __forceinline__ T inside(T z) { return least(most(z, T(-MOST_ODDS)), T(MOST_ODDS)); }
// a number that other threads may be changing: an older one spares no more than it should
#ifndef SEEN
#define SEEN(number) (number)
#endif
#define drawn(b, q) (number_of(keys[b], (U)(first + at + row_)) < (U)ceil((double)(q) * 0x1p53))
__device__ __forceinline__ U number_of(U key, U row) {
  U h = row * 0x9E3779B97F4A7C15ull + key;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  return (h ^ (h >> 31)) >> 11;
}
#ifdef SINGLE
__device__ __forceinline__ T exp_(T x) {
  x = least(most(x, T(-87)), T(87));
  T k = rintf(x * T(LOG2E));
  T r = (x - k * T(LN2_HIGH)) - k * T(LN2_LOW);
  T p = T(EXP0);
  p = p * r + T(EXP1); p = p * r + T(EXP2); p = p * r + T(EXP3); p = p * r + T(EXP4); p = p * r + T(EXP5);
  p = (p * r) * r + r + T(1);
  return p * __int_as_float(((int)k + 127) << 23);
}
__device__ __forceinline__ T log_(T x) {
  int bits = __float_as_int(x) - 0x3F3504F3;
  T e = (T)(bits >> 23);
  T m = __int_as_float((bits & 0x7FFFFF) + 0x3F3504F3);
  T s = (m - T(1)) / (m + T(1)), s2 = s * s;
  T p = T(LOG0);
  p = p * s2 + T(LOG1); p = p * s2 + T(LOG2); p = p * s2 + T(LOG3);
  return e * T(LN2_HIGH) + ((p * s2) * s + e * T(LN2_LOW) + T(2) * s);
}
#define ROUND(x) __float2int_rn(x)
#define ROUND_WIDE(x) __float2ll_rn(x)
#else
#define exp_ exp
#define log_ log
#define ROUND(x) __double2ll_rn(x)
#define ROUND_WIDE(x) __double2ll_rn(x)
#endif
__device__ __forceinline__ T sigmoid(T z) {
  return isinf(z) ? (z > T(0) ? T(1) : T(0)) : T(1) / (T(1) + exp_(-z));
}
__device__ __forceinline__ T logit(T p) {
  if (p <= T(0)) return -INF;
  if (p >= T(1)) return INF;
  return log_(most(p, T(1e-37)) / most(T(1) - p, T(1e-37)));
}
"""

KERNEL = r"""
extern "C" __global__ void __launch_bounds__(1024) run(long long n, long long first, PARAMETERS
    const T* __restrict__ given, const T* __restrict__ k, const T* __restrict__ scale, const U* __restrict__ keys,
    OUT* __restrict__ out) {
  extern __shared__ T tab[];
  for (int i = threadIdx.x; i < TABLE; i += blockDim.x) tab[i] = given[i];
  SETUP
  __syncthreads();
  const long long step = (long long)gridDim.x * TILE;
  for (long long base = (long long)blockIdx.x * TILE; base < n; base += step) {
    for (int o = threadIdx.x * 4; o < TILE; o += blockDim.x * 4) {
      const long long at = base + o;
      if (at >= n) break;
      LOADS
      #pragma unroll
      for (int row_ = 0; row_ < 4; row_++) {
        if (at + row_ >= n) break;
        READS
        LINES
        TERMS
      }
    }
    FLUSH
  }
  FINISH
}
"""

#: What surrounds the rows of a sum by level in shared memory, by level in global memory, of a total, and so on.
PARTS = {
    "shared": (
        """A* now = (A*)(tab + TABLE_END);
  A* own = now + threadIdx.x % COPIES;
  for (int i = threadIdx.x; i < W * COPIES; i += blockDim.x) now[i] = 0;""",
        """__syncthreads();
    for (int i = threadIdx.x; i < W; i += blockDim.x) {
      long long held = 0;
      for (int c = 0; c < COPIES; c++) {
        const int at = i * COPIES + (c + threadIdx.x) % COPIES;
        held += now[at];
        now[at] = 0;
      }
      if (held) atomicAdd((U*)out + i, (U)held);
    }
    __syncthreads();""",
        "",
    ),
    "global": ("", "", ""),
    "total": (
        "long long sums[Q] = {};",
        "",
        """for (int q = 0; q < Q; q++) {
    long long s = sums[q];
    for (int lane = 16; lane; lane >>= 1) s += __shfl_xor_sync(0xffffffff, s, lane);
    if (threadIdx.x % 32 == 0) atomicAdd((U*)out + q, (U)s);
  }""",
    ),
    "largest": (
        "T largest = T(0);",
        "",
        """for (int lane = 16; lane; lane >>= 1) largest = most(largest, __shfl_xor_sync(0xffffffff, largest, lane));
  if (threadIdx.x % 32 == 0) atomicMax((U*)out, (U)__double_as_longlong((double)largest));""",
    ),
    "map": ("", "", ""),
    "extremes": ("", "", ""),
    "pick": ("", "", ""),
}

C_TYPES = {"f4": "float", "f8": "double", "u1": "unsigned char", "u2": "unsigned short", "u4": "unsigned int"}
#: Stands for the type of a code column with one level.
ONE_LEVEL = "one level"
C_TYPES |= {"u8": "unsigned long long", "i1": "signed char", "i2": "short", "i4": "int", "i8": "long long"}
C_TYPES |= {"b1": "unsigned char"}


@dataclass(frozen=True)
class Shape:
    """All that the source of a kernel depends on beside its formula."""

    how: Literal["shared", "global", "total", "largest", "map", "extremes", "pick", "bits"]
    precision: Precision
    arrays: tuple[tuple[str, str], ...]
    codes: tuple[str, ...]
    offsets: tuple[int, ...]
    levels: int
    looked_up: int
    out: str = "i8"
    copies: int = BANKS
    #: All numbers that are looked up: those of every level, or of every cell of each.
    table: int = 0

    @property
    def given(self) -> list[tuple[str, str]]:
        """The names and types of all arrays that are read."""
        columns = ((f"c{j}", kind) for j, kind in enumerate(self.codes) if kind != ONE_LEVEL)
        return [*self.arrays, *columns]

    @property
    def parameters(self) -> str:
        """The parameters of a kernel for these arrays."""
        return " ".join(f"const {C_TYPES[kind]}* __restrict__ {name}_," for name, kind in self.given)

    @property
    def is_by_level(self) -> bool:
        """Whether terms are summed by level."""
        return self.how in ("shared", "global")

    @property
    def is_by_cell(self) -> bool:
        """Whether what is looked up depends on a row's cell."""
        return self.table > self.levels * self.looked_up

    @property
    def tile(self) -> int:
        """The rows after which a block moves its sums on."""
        return HELD_ROWS * self.copies


def source_of(formula: Formula, shape: Shape) -> str:
    """Return the CUDA source of a formula."""
    setup, flush, finish = PARTS[shape.how]
    if shape.is_by_level and ONE_LEVEL in shape.codes and formula.cells == 1:
        setup += " A all[Q] = {};"
        # a thread sees few rows between two flushes, or adds in 64 bits
        flush += ADD_ALL.replace("PLACE", str(shape.offsets[shape.codes.index(ONE_LEVEL)]))
    loads = (f"const auto {name}_4 = *(const Four<{C_TYPES[kind]}>*)({name}_ + at);" for name, kind in shape.given)
    parts = {"PARAMETERS": shape.parameters, "SETUP": setup, "LOADS": " ".join(loads)}
    for word, texts in (("READS", _reads), ("LINES", _lines), ("TERMS", _terms)):
        parts[word] = "\n        ".join(texts(formula, shape))
    table = shape.table if shape.table <= MOST_TABLE else 0
    q = len(formula.terms)
    defined = {"W": shape.levels * formula.cells * q, "Q": q, "PICKED": shape.levels, "TABLE": table}
    defined |= {"TABLE_END": table + table % 2, "TILE": shape.tile, "CELLS": formula.cells, "COPIES": shape.copies}
    named = {**{name: str(value) for name, value in defined.items()}, "OUT": C_TYPES[shape.out]}
    return prelude(shape.precision, named) + filled(KERNEL, parts | {"FLUSH": flush, "FINISH": finish})


def filled(kernel: str, parts: Mapping[str, str]) -> str:
    """Return a kernel with its parts in place of their words."""
    for word, text in parts.items():
        kernel = kernel.replace(word, text, 1)
    return kernel


def _reads(formula: Formula, shape: Shape) -> list[str]:
    """Return how a row's numbers, levels and look-ups are read."""
    reads = [f"const T {name} = (T){name}_4.v[row_];" for name, _ in shape.arrays]
    for j, (kind, offset) in enumerate(zip(shape.codes, shape.offsets, strict=True)):
        reads.append(f"const int i{j} = {offset}" + (";" if kind == ONE_LEVEL else f" + (int)c{j}_4.v[row_];"))
    return reads if shape.is_by_cell else [*reads, *_look_ups(formula, shape)]


def _look_ups(formula: Formula, shape: Shape) -> list[str]:
    """Return how what belongs to the levels of a row, or to its cell of each, is summed up."""
    source = "tab" if shape.table <= MOST_TABLE else "given"
    places = [_place(j, formula, shape.is_by_cell) for j in range(len(shape.codes))]
    look_ups = [f"T L[{shape.looked_up}] = {{}};"] if shape.looked_up else []
    for s in range(shape.looked_up):
        look_ups += [f"L[{s}] += {source}[{place} * {shape.looked_up} + {s}];" for place in places]
    return look_ups


def _place(j: int, formula: Formula, is_by_cell: bool) -> str:
    return f"(i{j} * {formula.cells} + cell)" if is_by_cell else f"i{j}"


def _lines(formula: Formula, shape: Shape) -> list[str]:
    """Return the lines of a formula; look-ups by cell follow the cell."""
    lines = []
    for name, text in formula.lines:
        lines.append(f"const {'int' if text.startswith('whole(') else 'T'} {name} = {text};")
        lines += _look_ups(formula, shape) if shape.is_by_cell and name == "cell" else []
    return lines


def _terms(formula: Formula, shape: Shape) -> list[str]:
    """Return what is done with the terms."""
    terms = [TERMS[shape.how].format(k=k, text=text) for k, text in enumerate(formula.terms)]
    return [*terms, *_additions(formula, shape)] if shape.is_by_level else terms


def _additions(formula: Formula, shape: Shape) -> list[str]:
    """Return how terms are added by level, and by cell where there are several."""
    q, is_by_cell, added = len(formula.terms), formula.cells > 1, []
    add = GLOBAL_ADD if shape.how == "global" else ADD[shape.precision]
    for j, kind in enumerate(shape.codes):
        if kind == ONE_LEVEL and not is_by_cell:
            added += [f"all[{k}] += t{k};" for k in range(q)]
        else:
            added += [add.format(f"{_place(j, formula, is_by_cell)} * {q} + {k}", k) for k in range(q)]
    return added


def prelude(precision: Precision, defined: Mapping[str, str]) -> str:
    """Return what stands before a kernel: macros, types and the functions of formulas."""
    numbers = dict(zip(("EXP0", "EXP1", "EXP2", "EXP3", "EXP4", "EXP5"), EXP_TERMS, strict=True))
    numbers |= dict(zip(("LOG0", "LOG1", "LOG2", "LOG3"), LOG_TERMS, strict=True))
    numbers |= {"LN2_HIGH": LN2_HIGH, "LN2_LOW": LN2_LOW, "LOG2E": LOG2E, "MOST_ODDS": MOST_ODDS}
    is_single = precision == "single"
    every = {**{name: repr(value) for name, value in numbers.items()}, **defined}
    every |= {"SINGLE": "1"} if is_single else {}
    kinds = "typedef float T; typedef int A;" if is_single else "typedef double T; typedef long long A;"
    return "".join(f"#define {name} {value}\n" for name, value in every.items()) + kinds + HEADER


#: The compute capability, times ten, of cards whose tensor cores are used.
TENSOR_CORES = 80
#: Rows that pass through a card at a time: copies of this size reach the bandwidth of the link.
PART_ROWS = 1 << 24

#: The sums of a code column with one level, which threads hold.
ADD_ALL = """
    for (int q = 0; q < Q; q++) {
      long long s = all[q];
      for (int lane = 16; lane; lane >>= 1) s += __shfl_xor_sync(0xffffffff, s, lane);
      if (threadIdx.x % 32 == 0) atomicAdd((U*)out + PLACE * Q + q, (U)s);
      all[q] = 0;
    }"""
#: How a term is added in shared memory, and in global memory.
ADD = {"single": "atomicAdd(own + ({}) * COPIES, t{});", "double": "atomicAdd((U*)own + ({}) * COPIES, (U)t{});"}
GLOBAL_ADD = "atomicAdd((U*)out + {}, (U)(long long)t{});"
#: What is done with a term: of extremes, the bits of a number that is not negative have its order.
BY_LEVEL = "const A t{k} = (A)ROUND((T)({text}) * scale[{k}]);"
TERMS = {
    "shared": BY_LEVEL,
    "global": BY_LEVEL,
    "total": "sums[{k}] += ROUND_WIDE((T)({text}) * scale[{k}]);",
    "largest": "largest = most(largest, size({text}));",
    "map": "out[{k} * ((n + 3) / 4 * 4) + at + row_] = (OUT)({text});",
    "extremes": """const long long bits = __double_as_longlong((double)({text}));
        if (bits < SEEN(out[cell])) atomicMin(out + cell, bits);
        if (bits > SEEN(out[CELLS + cell])) atomicMax(out + CELLS + cell, bits);""",
    "pick": """if ({text}) {{ const U to = atomicAdd((U*)out, 1ull);
        if (to < PICKED) out[1 + to] = first + at + row_; }}""",
}


def adding_source(formula: Formula, shape: Shape, adding: Adding, is_byte: Sequence[bool]) -> str:
    """Return the CUDA source of sums over memberships in bits; all rows belong to columns that are no bytes."""
    loads = (f"const auto {name}_4 = *(const Four<{C_TYPES[kind]}>*)({name}_ + at);" for name, kind in shape.given)
    bytes_ = [j for j, is_one in enumerate(is_byte) if is_one]
    words = (
        f"word[{j}] = {f'*(const unsigned*)(b{j}_ + at)' if is_byte[j] else '0x01010101u'};"
        for j in range(len(is_byte))
    )
    terms = (
        f"v[{q}][row_] = (unsigned)(ROUND((T)({text}) * scale[{q}]) + {BIAS});" for q, text in enumerate(formula.terms)
    )
    parts = {
        "PARAMETERS": shape.parameters,
        "BYTES": " ".join(f"const unsigned char* __restrict__ b{j}_," for j in bytes_),
        "WORDS": " ".join(words),
        "LOADS": " ".join(loads),
        "READS": " ".join(_reads(formula, shape)),
        "LINES": " ".join(_lines(formula, shape)),
        "TERMS": " ".join(terms),
    }
    table = shape.table if shape.table <= MOST_TABLE else 0
    defined = {"TABLE": table, "TABLE_END": -(-table // 4) * 4, "Q": adding.terms, "COLUMNS": adding.columns}
    defined |= {
        "TILES": adding.tiles,
        "PARTS": adding.parts,
        "ROOM": adding.room,
        "WARPS": WARPS,
        "MOST_TURNS": MOST_TURNS,
    }
    return prelude(shape.precision, {name: str(value) for name, value in defined.items()}) + filled(ADDING, parts)


def picking_source(
    formula: Formula,
    shape: Shape,
    chances: tuple[str, ...],
    picking: Picking,
    places: Sequence[NDArray[np.uint16]],
) -> str:
    """Return the CUDA source of sums over picked rows."""
    reads = [f"const T {name} = (T){name}_1;" for name, _ in shape.arrays]
    digits, place = [], 0
    for text, unit, size in zip(formula.terms, picking.units, picking.digits, strict=True):
        whole = f"(unsigned)ROUND((T)({text}) * T({unit!r}))"
        digits.append(f"digit[{place}] = {whole} & 255u;" if size == 2 else f"digit[{place}] = {whole};")
        digits += [f"digit[{place + 1}] = {whole} >> 8;"] if size == 2 else []
        place += size
    members, start = [], 0
    for j, own in enumerate(places):
        _, levels, most = own.shape
        code = f"{start}" if shape.codes[j] == ONE_LEVEL else f"{start} + {most} * (int)c{j}_1"
        members += [f"mark[table[{code} + {k}]] = 1;" for k in range(most)]
        start += levels * most
    lines = [f"const T {name} = {text};" for name, text in formula.lines]
    parts = {
        "PARAMETERS": shape.parameters,
        "DECLARED": " ".join(f"{C_TYPES[kind]} {name}_1;" for name, kind in shape.given),
        "LOADS": " ".join(f"{name}_1 = {name}_[at];" for name, _ in shape.given),
        "READS": " ".join(reads),
        "LINES": " ".join(lines),
        "PICKED_BY": " ".join(f"chance[{c}] = (double){name};" for c, name in enumerate(chances)),
        "DIGITS": " ".join(digits),
        "MEMBERS": " ".join(members),
    }
    defined = {"PLACES": start, "PLACES_END": -(-start // 8) * 4, "WIDTH": picking.width, "TILES": picking.tiles}
    defined |= {"WARPS": picking.warps, "GROUP": picking.group_words, "CHANCES": picking.chances}
    return prelude(shape.precision, {name: str(value) for name, value in defined.items()}) + filled(PICKING, parts)


#: What writes numbers of some rows: the rows, and where to.
Launch: TypeAlias = Callable[[Inputs, Any], None]


class Cuda(Device):
    """A graphics card, through CuPy.

    `threads` and `blocks` are those of a launch, and `shared` the bytes of shared memory that sums may take; None: what
    the card has. Sums are the same for any.
    """

    #: The copies of sums that more terms of a launch must leave room for.
    copies = BANKS // 2

    def __init__(
        self, precision: Precision = "single", threads: int = 1024, blocks: int | None = None, shared: int | None = None
    ) -> None:
        super().__init__(precision)
        self.threads, self.blocks, self.shared = threads, blocks, shared

    @cached_property
    def cupy(self) -> Any:
        """CuPy."""
        return import_module("cupy")

    @property
    def xp(self) -> Any:
        """What rows are arrays of."""
        return self.cupy

    def parts(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the rows in parts that lie on the card: here all of them."""
        yield inputs

    @cached_property
    def _multiplies(self) -> bool:
        """Whether the card's tensor cores multiply matrices of bytes as kernels ask for: those since Ampere do."""
        return int(self.cupy.cuda.Device().compute_capability) >= TENSOR_CORES

    @cached_property
    def limits(self) -> tuple[int, int]:
        """The blocks that a card holds, and the bytes of shared memory that one may have."""
        facts = self.cupy.cuda.Device().attributes
        most = int(facts["MaxSharedMemoryPerBlockOptin"]) - TAKEN_BYTES if self.shared is None else self.shared
        return self.blocks or 2 * int(facts["MultiProcessorCount"]), most

    def _launch(self, formula: Formula, inputs: Inputs, shape: Shape, scales: Sequence[float], out: Any) -> None:
        kernel = _compiled(source_of(formula, shape))
        used = self._table_bytes(inputs)
        if shape.how == "shared":
            used += self.kind.itemsize * shape.levels * formula.cells * len(formula.terms) * shape.copies
        kernel.max_dynamic_shared_size_bytes = used
        blocks = min(self.limits[0], max(1, -(-inputs.n // shape.tile)))
        sizes, arrays = (np.int64(inputs.n), np.int64(inputs.first)), arrays_of(inputs)
        kernel((blocks,), (self.threads,), (*sizes, *arrays, *self._given(inputs, scales), out), shared_mem=used)

    def _given(self, inputs: Inputs, scales: Sequence[float]) -> list[Any]:
        """Return what kernels read beside rows: tables, constants, scales and keys; none of them is empty."""
        table = np.zeros(1) if inputs.tables is None else inputs.tables
        numbers = [table, np.append(inputs.constants, 0.0), [*scales, 0.0]]
        given = [self.cupy.asarray(np.ascontiguousarray(one, dtype=self.kind)) for one in numbers]
        return [*given, self.cupy.asarray(np.array([*inputs.keys, 0], dtype=np.uint64))]

    def _table_bytes(self, inputs: Inputs, of: int = 2) -> int:
        """Return the shared memory of tables, in multiples of some numbers."""
        size = 0 if inputs.tables is None else inputs.tables.size
        return -(-size // of) * of * self.kind.itemsize if size <= MOST_TABLE else 0

    def _shape(self, how: Any, inputs: Inputs, out: str = "i8", copies: int = 4) -> Shape:
        arrays = tuple((name, array.dtype.str[1:]) for name, array in inputs.arrays.items())
        codes = tuple(ONE_LEVEL if isinstance(c, OneLevel) else c.dtype.str[1:] for c in inputs.codes)
        offsets, table = tuple(inputs.offsets), 0 if inputs.tables is None else inputs.tables.size
        return Shape(how, self.precision, arrays, codes, offsets, inputs.size, inputs.looked_up, out, copies, table)

    def _room(self, inputs: Inputs) -> int:
        """Return how many sums fit into shared memory."""
        return max(0, self.limits[1] - self._table_bytes(inputs)) // self.kind.itemsize

    def _copies(self, width: int, inputs: Inputs) -> int:
        """Return in how many copies sums fit into shared memory: a power of two, 0 if not even one does."""
        room = self._room(inputs) // max(1, width)
        return min(BANKS, self.threads, 1 << room.bit_length() - 1) if room else 0

    def _at_once(self, inputs: Inputs, cells: int) -> int:
        """Return how many terms a launch sums, 0 if the sums of none fit: rows are read again for others."""
        copies, each = self.copies, max(1, inputs.size * cells)
        while copies > 1 and self._room(inputs) // (each * copies) < FEW_TERMS:
            copies //= 2
        return self._room(inputs) // (each * copies)

    def _sums(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes:
        if inputs.bits and self._multiplies and self.precision == "single" and formula.cells == 1:
            found = self._bit_sums(formula, inputs, scales)
            if found is not None:
                return found
        size = self._at_once(inputs, formula.cells) or len(scales)
        parts = [slice(at, at + size) for at in range(0, len(scales), size)]
        every = [self._by_level(replace(formula, terms=formula.terms[part]), inputs, scales[part]) for part in parts]
        return np.concatenate(every, axis=1)

    def _by_level(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes:
        """Return the sums of the terms of one launch, shape (levels x cells, terms)."""
        width = inputs.size * formula.cells * len(scales)
        copies = self._copies(width, inputs)
        out = self.cupy.zeros(width, dtype=np.int64)
        shape = self._shape("shared", inputs, copies=copies) if copies else self._shape("global", inputs)
        for part in self.parts(inputs):
            self._launch(formula, part, shape, scales, out)
        return np.asarray(out.get()).reshape(-1, len(scales))

    def _bit_sums(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes | None:
        """Return sums of which those of bytes are by bit; None: others are looked up, too, or there is no room."""
        every = range(len(inputs.codes))
        ours = [j for j in every if j in inputs.bits or isinstance(inputs.codes[j], OneLevel)]
        others = [j for j in every if j not in ours]
        room = self.limits[1] - self._table_bytes(inputs, 4)
        if (others and inputs.tables is not None) or Adding.most_terms(min(len(ours), 2 * MOST_TILES), room) < 1:
            return None
        found = np.zeros((inputs.size, len(scales)), dtype=np.int64)
        places = np.split(np.arange(inputs.size), np.cumsum(inputs.levels)[:-1])
        if others:
            codes, levels = ([of[j] for j in others] for of in (inputs.codes, inputs.levels))
            rest = self._sums(formula, replace(inputs, codes=codes, levels=levels, bits=()), scales)
            found[np.concatenate([places[j] for j in others])] = rest.reshape(-1, len(scales))
        for at in range(0, len(ours), 2 * MOST_TILES):
            some = ours[at : at + 2 * MOST_TILES]
            size = Adding.most_terms(len(some), room)
            for q in range(0, len(scales), size):
                part = slice(q, q + size)
                sums = self._added_bits(replace(formula, terms=formula.terms[part]), inputs, scales[part], some)
                for j, by_bit in zip(some, sums, strict=True):
                    found[places[j][1 << np.arange(8)] if j in inputs.bits else places[j], part] = (
                        by_bit if j in inputs.bits else by_bit[:1]
                    )
        return found

    def _added_bits(
        self, formula: Formula, inputs: Inputs, scales: Sequence[float], columns: Sequence[int]
    ) -> NDArray[np.int64]:
        """Return the sums of some code columns by bit, shape (columns, 8, terms); all rows have the first of others."""
        adding = Adding(len(columns), len(scales))
        read = inputs if inputs.tables is not None else replace(inputs, codes=(), levels=())
        is_byte = [j in inputs.bits for j in columns]
        kernel = _compiled(adding_source(formula, self._shape("bits", read), adding, is_byte))
        out = self.cupy.zeros(2 * adding.tiles * 8 * 8 * adding.parts, dtype=np.int64)
        used = 4 * WARPS * adding.room + self._table_bytes(inputs, 4)
        kernel.max_dynamic_shared_size_bytes = used
        for part in self.parts(inputs):
            blocks = min(self.limits[0], -(-part.n // (WARPS * ROWS)))
            arrays = [
                *part.arrays.values(),
                *(arrays_of(part)[len(part.arrays) :] if inputs.tables is not None else []),
            ]
            bytes_ = [part.codes[j] for j in columns if j in inputs.bits]
            sizes = np.int64(part.n), np.int64(part.first)
            kernel(
                (blocks,), (32 * WARPS,), (*sizes, *arrays, *bytes_, *self._given(part, scales), out), shared_mem=used
            )
        return adding.read(out.get())

    def _picks(
        self,
        formula: Formula,
        inputs: Inputs,
        belongs: NDArray[np.bool_],
        chances: tuple[str, ...],
        shape: Picking,
    ) -> NDArray[np.int64]:
        """Return the sums of most draws by tensor cores, and those of the others by level, a few at a time."""
        shape = replace(shape, room=self.limits[1] - places_bytes(belongs, inputs.levels))
        edge = shape.draws - shape.rest if self._multiplies and shape.tiles else 0
        starts = [*([0] if edge else []), *range(edge, shape.draws, FEW_DRAWS)]
        found = []
        for start, stop in pairwise([*starts, shape.draws]):
            some, part = replace(inputs, keys=inputs.keys[start:stop]), replace(shape, draws=stop - start)
            sums = self._multiplied if stop == edge else self._picks_by_level
            found.append(sums(formula, some, belongs, chances, part))
        return np.concatenate(found, axis=1)

    def _multiplied(
        self,
        formula: Formula,
        inputs: Inputs,
        belongs: NDArray[np.bool_],
        chances: tuple[str, ...],
        shape: Picking,
    ) -> NDArray[np.int64]:
        """Return sums by tensor cores."""
        xp, places = self.cupy, shape.places(belongs, inputs.levels)
        kernel = _compiled(picking_source(formula, self._shape("total", inputs), chances, shape, places))
        keys = xp.asarray(np.array([*inputs.keys, *[0] * (shape.slots - shape.draws)], dtype=np.uint64))
        laid = np.concatenate([place.reshape(shape.launches, -1) for place in places], axis=1)
        given = xp.asarray(laid), xp.asarray(np.array([*inputs.constants, 0.0], dtype=self.kind)), keys
        out = xp.zeros(shape.launches * shape.slots * shape.chances * 16 * shape.tiles * shape.width, dtype=np.int64)
        used = shape.shared_bytes(belongs, inputs.levels)
        kernel.max_dynamic_shared_size_bytes = used
        for part in self.parts(inputs):
            step = 32 * shape.warps
            each = step * -(-part.n // (step * max(self.limits[0], -(-part.n // MOST_ROWS))))
            grid = -(-part.n // each), shape.groups, shape.launches
            sizes = np.int64(part.n), np.int64(part.first), np.int64(each)
            arrays = arrays_of(part)
            kernel(grid, (step,), (*sizes, *arrays, *given, out), shared_mem=used)
        return shape.read(out.get())

    def _picks_by_level(
        self,
        formula: Formula,
        inputs: Inputs,
        belongs: NDArray[np.bool_],
        chances: tuple[str, ...],
        shape: Picking,
    ) -> NDArray[np.int64]:
        """Return the same sums by way of those of all levels."""
        wholes = [f"near(({text})*T({unit!r}))" for text, unit in zip(formula.terms, shape.units, strict=True)]
        terms = tuple(
            f"pick(drawn({b}, {q}), {whole}, T(0))" for b in range(shape.draws) for q in chances for whole in wholes
        )
        units = tuple(shape.units) * (len(chances) * shape.draws)
        sums = np.rint(self.histogram(Formula(terms, formula.lines, units), inputs)[:, 0])
        found = product(belongs.T.astype(np.float64), sums).astype(np.int64)  # whole numbers far below 2^53
        return found.reshape(-1, shape.draws, len(chances), len(wholes)).transpose(2, 1, 0, 3)

    def _total(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes:
        out = self.cupy.zeros(len(scales), dtype=np.int64)
        for part in self.parts(inputs):
            self._launch(formula, part, self._shape("total", inputs), scales, out)
        return np.asarray(out.get())

    def largest(self, formula: Formula, inputs: Inputs) -> float:
        """Return the largest size of the only term at any row."""
        out = self.cupy.zeros(1, dtype=np.float64)
        for part in self.parts(inputs):
            self._launch(formula, part, self._shape("largest", inputs, "f8"), (), out)
        return float(out[0])

    def block(self, q: int, n: int, kind: Any) -> Any:
        """Return room for q numbers of n rows on the card, as kernels read it."""
        return self.cupy.empty((q, -(-n // 4) * 4), dtype=kind)[:, :n]

    def columns(self, formula: Formula, inputs: Inputs, kind: Any) -> Any:
        """Return all terms at every row."""
        shape = self._shape("map", inputs, np.dtype(kind).str[1:])
        return self.written(
            len(formula.terms), inputs, kind, lambda part, out: self._launch(formula, part, shape, (), out)
        )

    def written(self, q: int, inputs: Inputs, kind: Any, launch: Launch) -> Any:
        """Return q numbers of every row, which a launch writes."""
        out = self.block(q, inputs.n, kind)
        launch(inputs, out)
        return out

    def extremes(self, formula: Formula, inputs: Inputs) -> NDArray[np.float64]:
        """Return the least and the largest value of the only term by cell."""
        none = np.repeat(np.array([np.inf, 0.0]), formula.cells).view(np.int64)
        out = self.cupy.asarray(none)
        for part in self.parts(inputs):
            self._launch(formula, part, self._shape("extremes", inputs), (), out)
        return np.asarray(out.get()).view(np.float64).reshape(2, -1).T

    def picked(self, text: str, inputs: Inputs, most: int, lines: tuple[tuple[str, str], ...] = ()) -> Wholes:
        """Return the numbers of up to `most` rows for which a condition holds."""
        out = self.cupy.empty(most + 1, dtype=np.int64)
        out[:1] = 0  # how many there are; their numbers follow
        for part in self.parts(inputs):
            self._launch(Formula((text,), lines), part, replace(self._shape("pick", inputs), levels=most), (), out)
        return np.sort(out[1 : 1 + min(most, int(out[0]))].get())

    def rows(self, formula: Formula, inputs: Inputs, kind: Any) -> Any:
        """Return the only term at every row."""
        return self.columns(formula, inputs, kind)[0]

    def own(self, array: Any) -> Any:
        """Return an array without gaps on the card, in memory that ends after a multiple of four numbers."""
        if isinstance(array, np.ndarray):
            return self.upload(array)
        is_whole = array.flags.c_contiguous and len(array) % 4 == 0
        if is_whole and array.data.ptr % (4 * array.itemsize) == 0:
            return array
        out = padded_rows(self.cupy, len(array), array.dtype)
        out[...] = array
        return out

    def upload(self, array: NDArray[Any]) -> Any:
        """Return an array of this machine's memory on the card."""
        out = padded_rows(self.cupy, len(array), array.dtype)
        out.set(np.ascontiguousarray(array))
        return out

    def download(self, array: Any) -> NDArray[Any]:
        """Return an array of the card in this machine's memory."""
        return array if isinstance(array, np.ndarray) else np.asarray(array.get())


class Streamed(Cuda):
    """A card through which rows pass that stay in this machine's memory, in parts: one is copied while one is summed.

    Rows are arrays of NumPy in memory that the system may not move, which the card reads without help.
    """

    #: Reading rows once more takes longer than waiting for a bank.
    copies = 1

    @property
    def xp(self) -> Any:
        """What rows are arrays of."""
        return np

    @cached_property
    def _streams(self) -> tuple[Any, Any]:
        return self.cupy.cuda.Stream(), self.cupy.cuda.Stream()

    def parts(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield parts of the rows on the card, each while its stream is the current one."""
        every = arrays_of(inputs)
        size = min(PART_ROWS, -(-inputs.n // 4) * 4)
        slots = [[self.cupy.empty(size, dtype=array.dtype) for array in every] for _ in self._streams]
        try:
            for k, start in enumerate(range(0, inputs.n, size)):
                stop, stream = min(start + size, inputs.n), self._streams[k % 2]
                here = [slot[: stop - start] for slot in slots[k % 2]]
                with stream:
                    for there, array in zip(here, every, strict=True):
                        there.set(array[start:stop], stream=stream)
                    arrays, columns = dict(zip(inputs.arrays, here, strict=False)), iter(here[len(inputs.arrays) :])
                    codes = [c if isinstance(c, OneLevel) else next(columns) for c in inputs.codes]
                    yield replace(inputs, n=stop - start, first=inputs.first + start, arrays=arrays, codes=codes)
        finally:  # what is on its way, also where a pass is interrupted, needs its memory until it has arrived
            for stream in self._streams:
                stream.synchronize()

    def written(self, q: int, inputs: Inputs, kind: Any, launch: Launch) -> Any:
        """Return q numbers of every row, which launches write part by part."""
        out = self.block(q, inputs.n, kind)
        for part in self.parts(inputs):
            here = Cuda.block(self, q, part.n, kind)
            launch(part, here)
            stream, start = self.cupy.cuda.get_current_stream(), part.first - inputs.first
            for to, of in zip(out, here, strict=True):
                of.get(out=to[start : start + part.n], stream=stream, blocking=False)
        return out

    @cached_property
    def _pins(self) -> WeakValueDictionary[int, Any]:
        """Arrays that were given out, by their place."""
        return WeakValueDictionary()

    def _pinned(self, shape: int | tuple[int, int], kind: Any) -> Any:
        out = import_module("cupyx").empty_pinned(shape, dtype=kind)
        self._pins[out.ctypes.data] = out
        return out

    def block(self, q: int, n: int, kind: Any) -> Any:
        """Return room for q numbers of n rows."""
        return self._pinned((q, n), kind)

    def own(self, array: Any) -> Any:
        """Return an array of this machine's memory that the card reads without help."""
        return array if self._pins.get(array.ctypes.data) is array else self.upload(array)

    def upload(self, array: NDArray[Any]) -> Any:
        """Return a copy that the card reads without help."""
        out = self._pinned(len(array), array.dtype)
        out[...] = array
        return out


def arrays_of(inputs: Inputs) -> list[Any]:
    """Return all arrays that a kernel reads."""
    return [*inputs.arrays.values(), *(c for c in inputs.codes if not isinstance(c, OneLevel))]


def padded_rows(xp: Any, n: int, kind: Any) -> Any:
    """Return an array of n numbers whose memory ends after a multiple of four: kernels read four rows at once."""
    return xp.empty(-(-n // 4) * 4, dtype=kind)[:n]


@cache
def _compiled(source: str) -> Any:
    # products and sums are rounded one by one, as NumPy does
    return import_module("cupy").RawModule(code=source, options=("-std=c++17", "--fmad=false")).get_function("run")


def open_device(precision: Precision, needed: int = 0, memory: int | None = None) -> Device:
    """Return the card that is in use; rows of `needed` bytes that do not fit into its memory pass through."""
    card = Cuda(precision)
    room = memory if memory is not None else card.cupy.cuda.Device().mem_info[0] if needed else 0
    return Streamed(precision) if needed > room else card
