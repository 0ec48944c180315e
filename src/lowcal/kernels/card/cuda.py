"""Formulas in CUDA, through CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.card.formula import (
    BANKS,
    HELD_ROWS,
    MOST_ODDS,
    MOST_TABLE,
    TAKEN_BYTES,
    Device,
    Formula,
    Inputs,
    Precision,
)
from lowcal.kernels.card.twin import EXP_TERMS, LN2_HIGH, LN2_LOW, LOG2E, LOG_TERMS
from lowcal.kernels.exact import Wholes

HEADER = r"""
template <typename V> struct __align__(4 * sizeof(V)) Four { V v[4]; };
typedef unsigned long long U;
#define INF ((T)__int_as_float(0x7f800000))
__device__ __forceinline__ T least(T a, T b) { return a < b ? a : b; }
__device__ __forceinline__ T most(T a, T b) { return a > b ? a : b; }
__device__ __forceinline__ T size(T a) { return a < T(0) ? -a : a; }
__device__ __forceinline__ T pick(bool c, T a, T b) { return c ? a : b; }
__device__ __forceinline__ int whole(T x) { return (int)floor(x); }
__device__ __forceinline__ T inside(T z) { return least(most(z, T(-MOST_ODDS)), T(MOST_ODDS)); }
#define drawn(b, q) (number_of(keys[b], (U)(at + row_)) < (U)ceil((double)(q) * 0x1p53))
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
extern "C" __global__ void __launch_bounds__(1024) run(long long n, PARAMETERS const T* __restrict__ given,
    const T* __restrict__ k, const T* __restrict__ scale, const U* __restrict__ keys, OUT* __restrict__ out) {
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
    "map": ("", "", ""),
    "extremes": ("", "", ""),
    "pick": ("", "", ""),
}

C_TYPES = {"f4": "float", "f8": "double", "u1": "unsigned char", "u2": "unsigned short", "u4": "unsigned int"}
C_TYPES |= {"i1": "signed char", "i2": "short", "i4": "int", "i8": "long long", "b1": "unsigned char"}


@dataclass(frozen=True)
class Shape:
    """All that the source of a kernel depends on beside its formula."""

    how: Literal["shared", "global", "total", "map", "extremes", "pick"]
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
    def tile(self) -> int:
        """The rows after which a block moves its sums on."""
        return HELD_ROWS * self.copies


def source_of(formula: Formula, shape: Shape) -> str:
    """Return the CUDA source of a formula."""
    q, wide = len(formula.terms), formula.cells > 1
    given = [*shape.arrays, *((f"c{j}", kind) for j, kind in enumerate(shape.codes))]
    parameters = " ".join(f"const {C_TYPES[kind]}* __restrict__ {name}_," for name, kind in given)
    loads = " ".join(f"const auto {name}4 = *(const Four<{C_TYPES[kind]}>*)({name}_ + at);" for name, kind in given)
    reads = [f"const T {name} = (T){name}4.v[row_];" for name, _ in shape.arrays]
    reads += [f"const int i{j} = {offset} + (int)c{j}4.v[row_];" for j, offset in enumerate(shape.offsets)]
    is_by_cell, look_ups = shape.table > shape.levels * shape.looked_up, [f"T L[{shape.looked_up}] = {{}};"]
    source = "tab" if shape.table <= MOST_TABLE else "given"
    for s in range(shape.looked_up):
        places = [f"(i{j} * {formula.cells} + cell)" if is_by_cell else f"i{j}" for j in range(len(shape.codes))]
        look_ups += [f"L[{s}] += {source}[{place} * {shape.looked_up} + {s}];" for place in places]
    if shape.looked_up and not is_by_cell:
        reads += look_ups
    lines = []
    for name, text in formula.lines:
        lines.append(f"const {'int' if text.startswith('whole(') else 'T'} {name} = {text};")
        lines += look_ups if is_by_cell and name == "cell" else []
    terms = []
    for k, text in enumerate(formula.terms):
        if shape.how == "pick":
            terms.append(
                f"if ({text}) {{ const U to = atomicAdd((U*)out, 1ull); if (to < PICKED) out[1 + to] = at + row_; }}"
            )
        elif shape.how == "map":
            terms.append(f"out[{k} * ((n + 3) / 4 * 4) + at + row_] = (OUT)({text});")
        elif shape.how == "extremes":
            terms.append(EXTREMES.format(text))
        elif shape.how == "total":
            terms.append(f"sums[{k}] += ROUND_WIDE((T)({text}) * scale[{k}]);")
        else:
            terms.append(f"const A t{k} = (A)ROUND((T)({text}) * scale[{k}]);")
    if shape.how in ("shared", "global"):
        for j in range(len(shape.codes)):
            place = f"(i{j} * {formula.cells} + cell)" if wide else f"i{j}"
            add = GLOBAL_ADD if shape.how == "global" else ADD[shape.precision]
            terms += [add.format(f"{place} * {q} + {k}", k) for k in range(q)]
    setup, flush, finish = PARTS[shape.how]
    body = KERNEL
    for word, text in {
        "PARAMETERS": parameters,
        "SETUP": setup,
        "LOADS": loads,
        "READS": "\n        ".join(reads),
        "LINES": "\n        ".join(lines),
        "TERMS": "\n        ".join(terms),
        "FLUSH": flush,
        "FINISH": finish,
    }.items():
        body = body.replace(word, text, 1)
    numbers = dict(zip(("EXP0", "EXP1", "EXP2", "EXP3", "EXP4", "EXP5"), EXP_TERMS, strict=True))
    numbers |= dict(zip(("LOG0", "LOG1", "LOG2", "LOG3"), LOG_TERMS, strict=True))
    numbers |= {"LN2_HIGH": LN2_HIGH, "LN2_LOW": LN2_LOW, "LOG2E": LOG2E, "MOST_ODDS": MOST_ODDS}
    is_single = shape.precision == "single"
    defined = {**{name: repr(value) for name, value in numbers.items()}, "W": str(shape.levels * formula.cells * q)}
    table = shape.table if shape.table <= MOST_TABLE else 0
    defined |= {"TABLE": str(table), "TABLE_END": str(table + table % 2), "PICKED": str(shape.levels)}
    defined |= {
        "CELLS": str(formula.cells),
        "Q": str(q),
        "TILE": str(shape.tile),
        "COPIES": str(shape.copies),
        "OUT": C_TYPES[shape.out],
    }
    defined |= {"SINGLE": "1"} if is_single else {}
    kinds = "typedef float T; typedef int A;" if is_single else "typedef double T; typedef long long A;"
    return "".join(f"#define {name} {value}\n" for name, value in defined.items()) + kinds + HEADER + body


#: How a term is added in shared memory, and in global memory.
ADD = {"single": "atomicAdd(own + ({}) * COPIES, t{});", "double": "atomicAdd((U*)own + ({}) * COPIES, (U)t{});"}
GLOBAL_ADD = "atomicAdd((U*)out + {}, (U)(long long)t{});"
#: How the bits of a number that is not negative, which have its order, become the least and the largest of a cell.
EXTREMES = """const long long bits = __double_as_longlong((double)({}));
        if (bits < out[cell]) atomicMin(out + cell, bits);
        if (bits > out[CELLS + cell]) atomicMax(out + CELLS + cell, bits);"""


class Cuda(Device):
    """A graphics card, through CuPy.

    `threads` and `blocks` are those of a launch, and `shared` the bytes of shared memory that sums may take; None: what
    the card has. Sums are the same for any.
    """

    def __init__(
        self, precision: Precision = "single", threads: int = 1024, blocks: int | None = None, shared: int | None = None
    ) -> None:
        super().__init__(precision)
        self.threads, self.blocks, self.shared = threads, blocks, shared

    @cached_property
    def xp(self) -> Any:
        """CuPy."""
        return import_module("cupy")

    @cached_property
    def _limits(self) -> tuple[int, int]:
        """The blocks that a card holds, and the bytes of shared memory that one may have."""
        facts = self.xp.cuda.Device().attributes
        most = int(facts["MaxSharedMemoryPerBlockOptin"]) - TAKEN_BYTES if self.shared is None else self.shared
        return self.blocks or 2 * int(facts["MultiProcessorCount"]), most

    def _launch(self, formula: Formula, inputs: Inputs, shape: Shape, scales: Sequence[float], out: Any) -> None:
        xp = self.xp
        kernel = _compiled(source_of(formula, shape))
        numbers = [np.zeros(1) if inputs.tables is None else inputs.tables, [*inputs.constants, 0.0], [*scales, 0.0]]
        given = [xp.asarray(np.ascontiguousarray(one, dtype=self.kind)) for one in numbers]
        keys = xp.asarray(np.array([*inputs.keys, 0], dtype=np.uint64))
        used = self._table_bytes(inputs)
        if shape.how == "shared":
            used += self.kind.itemsize * shape.levels * formula.cells * len(formula.terms) * shape.copies
        kernel.max_dynamic_shared_size_bytes = used
        blocks = min(self._limits[0], max(1, -(-inputs.n // shape.tile)))
        arrays = (*inputs.arrays.values(), *inputs.codes)
        kernel((blocks,), (self.threads,), (np.int64(inputs.n), *arrays, *given, keys, out), shared_mem=used)

    def _table_bytes(self, inputs: Inputs) -> int:
        size = 0 if inputs.tables is None else inputs.tables.size
        return (size + size % 2) * self.kind.itemsize if size <= MOST_TABLE else 0

    def _shape(self, how: Any, inputs: Inputs, out: str = "i8", copies: int = 4) -> Shape:
        arrays = tuple((name, array.dtype.str[1:]) for name, array in inputs.arrays.items())
        codes, offsets = tuple(c.dtype.str[1:] for c in inputs.codes), tuple(inputs.offsets)
        table = 0 if inputs.tables is None else inputs.tables.size
        return Shape(how, self.precision, arrays, codes, offsets, inputs.size, inputs.looked_up, out, copies, table)

    def _copies(self, width: int, inputs: Inputs) -> int:
        """Return in how many copies sums fit into shared memory: a power of two, 0 if not even one does."""
        room = (self._limits[1] - self._table_bytes(inputs)) // (self.kind.itemsize * max(1, width))
        return min(BANKS, self.threads, 1 << room.bit_length() - 1) if room else 0

    def _sums(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes:
        width = inputs.size * formula.cells * len(scales)
        copies = self._copies(width, inputs)
        out = self.xp.zeros(width, dtype=np.int64)
        shape = self._shape("shared", inputs, copies=copies) if copies else self._shape("global", inputs)
        self._launch(formula, inputs, shape, scales, out)
        return np.asarray(out.get())

    def _total(self, formula: Formula, inputs: Inputs, scales: Sequence[float]) -> Wholes:
        out = self.xp.zeros(len(scales), dtype=np.int64)
        self._launch(formula, inputs, self._shape("total", inputs), scales, out)
        return np.asarray(out.get())

    def columns(self, formula: Formula, inputs: Inputs, kind: Any) -> Any:
        """Return all terms at every row."""
        out = self.block(len(formula.terms), inputs.n, kind)
        self._launch(formula, inputs, self._shape("map", inputs, np.dtype(kind).str[1:]), (), out)
        return out

    def extremes(self, formula: Formula, inputs: Inputs) -> NDArray[np.float64]:
        """Return the least and the largest value of the only term by cell."""
        none = np.repeat(np.array([np.inf, 0.0]), formula.cells).view(np.int64)
        out = self.xp.asarray(none)
        self._launch(formula, inputs, self._shape("extremes", inputs), (), out)
        return np.asarray(out.get()).view(np.float64).reshape(2, -1).T

    def picked(self, text: str, inputs: Inputs, most: int, lines: tuple[tuple[str, str], ...] = ()) -> Wholes:
        """Return the rows, at most so many, for which a condition holds."""
        out = self.xp.zeros(most + 1, dtype=np.int64)
        self._launch(Formula((text,), lines), inputs, replace(self._shape("pick", inputs), levels=most), (), out)
        found = np.asarray(out.get())
        return np.sort(found[1 : 1 + min(most, found[0])])

    def rows(self, formula: Formula, inputs: Inputs, kind: Any) -> Any:
        """Return the only term at every row."""
        out = padded_rows(self.xp, inputs.n, kind)
        self._launch(formula, inputs, self._shape("map", inputs, np.dtype(kind).str[1:]), (), out)
        return out

    def own(self, array: Any) -> Any:
        """Return an array of the card without gaps, in memory that ends after a multiple of four numbers."""
        is_whole = array.flags.c_contiguous and len(array) % 4 == 0
        if is_whole and array.data.ptr % (4 * array.itemsize) == 0:
            return array
        out = padded_rows(self.xp, len(array), array.dtype)
        out[...] = array
        return out

    def upload(self, array: NDArray[Any]) -> Any:
        """Return an array of this machine's memory on the card."""
        out = padded_rows(self.xp, len(array), array.dtype)
        out.set(np.ascontiguousarray(array))
        return out

    def download(self, array: Any) -> NDArray[Any]:
        """Return an array of the card in this machine's memory."""
        return np.asarray(array.get())


def padded_rows(xp: Any, n: int, kind: Any) -> Any:
    """Return an array of n numbers whose memory ends after a multiple of four: kernels read four rows at once."""
    return xp.empty(-(-n // 4) * 4, dtype=kind)[:n]


@cache
def _compiled(source: str) -> Any:
    # products and sums are rounded one by one, as NumPy does
    return import_module("cupy").RawModule(code=source, options=("-std=c++17", "--fmad=false")).get_function("run")


def open_device(precision: Precision) -> Device:
    """Return the card that is in use."""
    return Cuda(precision)
