"""Trees on a graphics card: bins of numbers, rows sent down a tree, histograms of whole numbers, sums of many trees.

Terms come as whole numbers of a unit, so that histograms do not depend on the order of rows, blocks or threads.
`TwinTrees` is the definition; `CudaTrees` returns the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowcal.kernels.card.cuda import C_TYPES, Cuda
from lowcal.kernels.card.formula import BANKS, HELD_ROWS, Device, Inputs
from lowcal.kernels.exact import Wholes
from lowcal.kernels.simplex import FloatArray, IntArray

#: The codes of missing numbers, and of the first bin.
MISSING, FIRST = 1, 2
#: Terms that are added up together: those of four rows are held in registers.
MOST_TERMS = 4
#: A cut that no code of two bytes exceeds.
NO_SPLIT = 0xFFFF
THREADS = 1024

SOURCE = r"""
template <typename V> struct __align__(4 * sizeof(V)) Four { V v[4]; };
#define EVERY(i) for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; \
                      i += (long long)gridDim.x * blockDim.x)
#define SHARED_ADD(at, x) atomicAdd((B*)(at), (B)(x))

extern "C" __global__ void bin(long long n, const V* __restrict__ x, const double* __restrict__ cuts, int m,
    C* __restrict__ out) {
  EVERY(i) {
    const double v = (double)x[i];
    int low = 0, high = m;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (cuts[middle] < v) low = middle + 1; else high = middle;
    }
    out[i] = (C)(v == v ? FIRST + low : MISSING);
  }
}

extern "C" __global__ void step(long long n, const C* const* __restrict__ columns, const N* __restrict__ from,
    const unsigned* __restrict__ nodes, N* __restrict__ to) {
  EVERY(i) {
    const int k = from[i];
    const unsigned split = nodes[k];
    to[i] = (N)(2 * k + (columns[split >> 16][i] > (split & 0xFFFF)));
  }
}

extern "C" __global__ void evaluate(long long n, const C* const* __restrict__ columns,
    const unsigned* __restrict__ nodes, const T* __restrict__ value, int n_trees, int n_inner, T* __restrict__ out) {
  EVERY(i) {
    T total = T(0);
    for (int t = 0; t < n_trees; t++) {
      int k = 0;
      while (k < n_inner) {
        const unsigned split = nodes[t * n_inner + k];
        k = 2 * k + 1 + (columns[split >> 16][i] > (split & 0xFFFF));
      }
      total += value[t * (n_inner + 1) + k - n_inner];
    }
    out[i] = total;
  }
}

// plan: the first feature of each group and the end, the first bin of each feature and the end, the place of each node
extern "C" __global__ void __launch_bounds__(THREADS) add_up(long long n, const C* const* __restrict__ columns,
    const N* __restrict__ node, const A* const* __restrict__ terms, const int* __restrict__ plan, int n_features,
    int n_places, int copies, U* __restrict__ out) {
  extern __shared__ A held[];
  const int* starts = plan + gridDim.y + 1;
  const int* places = starts + n_features + 1;
  const int first = plan[blockIdx.y], last = plan[blockIdx.y + 1];
  const int begin = starts[first], bins = starts[last] - begin, all = starts[n_features];
  const int width = n_places * bins * Q;
  A* own = held + threadIdx.x % (copies ? copies : 1);
  for (int i = threadIdx.x; i < width * copies; i += blockDim.x) held[i] = 0;
  __syncthreads();
  const long long tile = HELD_ROWS * (long long)(copies ? copies : 1);
  for (long long base = blockIdx.x * tile; base < n; base += gridDim.x * tile) {
    for (long long o = 4 * threadIdx.x; o < tile; o += 4 * blockDim.x) {
      const long long i = base + o;
      if (i >= n) break;
      const auto nodes = *(const Four<N>*)(node + i);
      int place[4];
      #pragma unroll
      for (int v = 0; v < 4; v++) place[v] = i + v < n ? places[nodes.v[v]] : -1;
      if (place[0] < 0 && place[1] < 0 && place[2] < 0 && place[3] < 0) continue;
      Four<A> term[Q];
      #pragma unroll
      for (int q = 0; q < Q; q++) {
        if (q < COUNTED) term[q] = {{1, 1, 1, 1}};
        else term[q] = *(const Four<A>*)(terms[q] + i);
      }
      for (int j = first; j < last; j++) {
        const auto code = *(const Four<C>*)(columns[j] + i);
        const int start = starts[j];
        #pragma unroll
        for (int v = 0; v < 4; v++) {
          if (place[v] < 0) continue;
          if (copies) {
            A* at = own + (long long)(place[v] * bins + start - begin + code.v[v]) * Q * copies;
            #pragma unroll
            for (int q = 0; q < Q; q++) SHARED_ADD(at + q * copies, term[q].v[v]);
          } else {
            U* at = out + ((long long)place[v] * all + start + code.v[v]) * Q;
            #pragma unroll
            for (int q = 0; q < Q; q++) atomicAdd(at + q, (U)(long long)term[q].v[v]);
          }
        }
      }
    }
    if (copies) {
      __syncthreads();
      for (int i = threadIdx.x; i < width; i += blockDim.x) {
        long long sum = 0;
        for (int c = 0; c < copies; c++) {
          const int at = i * copies + (c + threadIdx.x) % copies;
          sum += held[at];
          held[at] = 0;
        }
        const int place = i / (bins * Q);
        if (sum) atomicAdd(out + ((long long)place * all + begin) * Q + i % (bins * Q), (U)sum);
      }
      __syncthreads();
    }
  }
}
"""


def source_of(types: Mapping[str, str], n_terms: int = 1, n_counted: int = 0) -> str:
    """Return the source of all kernels for codes C, nodes N, numbers V and T, and terms A that are added as B."""
    numbers = {"Q": max(1, n_terms), "COUNTED": n_counted, "MISSING": MISSING, "FIRST": FIRST}
    numbers |= {"HELD_ROWS": HELD_ROWS, "THREADS": THREADS}
    defined = "".join(f"#define {name} {value}\n" for name, value in numbers.items())
    return f"{defined}typedef unsigned long long U;\n{''.join(f'typedef {t} {n};' for n, t in types.items())}{SOURCE}"


def packed_nodes(feature: IntArray, cut: IntArray) -> NDArray[np.uint32]:
    """Return feature and cut of every node in one number; no code exceeds the cut of a node without a split.

    >>> packed_nodes(np.array([2, -1]), np.array([7, 0])).tolist()
    [131079, 65535]
    """
    gap = feature < 0
    return np.asarray(np.where(gap, 0, feature) << 16 | np.where(gap, NO_SPLIT, cut), dtype=np.uint32)


def feature_groups(counts: IntArray, most: int) -> list[int]:
    """Return where runs of features begin with at most `most` bins in all, and the end; [] if one feature has more.

    >>> feature_groups(np.array([3, 3, 2, 5]), 6), feature_groups(np.array([7]), 6)
    ([0, 2, 3, 4], [])
    """
    if counts.max() > most:
        return []
    groups, held = [0], 0
    for j, count in enumerate(counts.tolist()):
        if held + count > most:
            groups.append(j)
            held = 0
        held += count
    return [*groups, len(counts)]


class TreeKernels(ABC):
    """What trees need of a device; `columns` are codes of one or two bytes, a column for each feature."""

    def __init__(self, device: Device) -> None:
        self.device = device
        #: Whole numbers that terms are given as.
        self.whole = np.dtype(np.int32 if device.precision == "single" else np.int64)

    @abstractmethod
    def bin(self, column: Any, cuts: FloatArray, kind: np.dtype[Any]) -> Any:
        """Return the codes of numbers: how many cuts lie below each, after those of the special levels."""

    @abstractmethod
    def step(self, columns: Sequence[Any], node: Any, feature: IntArray, cut: IntArray) -> Any:
        """Return the node of every row one level down a tree, numbered from 0, from its node at this level."""

    @abstractmethod
    def evaluate(self, columns: Sequence[Any], feature: IntArray, cut: IntArray, value: FloatArray) -> Any:
        """Return the sum of the values of every row's leaves, shape (trees, leaves), one tree after the other."""

    def add_up(
        self, columns: Sequence[Any], counts: IntArray, node: Any, build: NDArray[np.bool_], terms: Sequence[Any]
    ) -> Wholes:
        """Return the sums of terms by node to build, bin and term; a term is a whole number at every row, None: 1."""
        size = int(build.sum()), int(counts.sum())
        if not build.any():
            return np.zeros((*size, len(terms)), dtype=np.int64)
        places = np.where(build, np.cumsum(build) - 1, -1).astype(np.int32)
        some = [terms[at : at + MOST_TERMS] for at in range(0, len(terms), MOST_TERMS)]
        each = [self._add_up(columns, counts, node, places, few).reshape(*size, len(few)) for few in some]
        return np.concatenate(each, axis=2)

    @abstractmethod
    def _add_up(
        self, columns: Sequence[Any], counts: IntArray, node: Any, places: NDArray[np.int32], terms: Sequence[Any]
    ) -> Wholes: ...


class TwinTrees(TreeKernels):
    """The definition, in NumPy."""

    def bin(self, column: Any, cuts: FloatArray, kind: np.dtype[Any]) -> Any:
        """Return the codes of numbers."""
        values = column.astype(np.float64)
        return np.where(np.isnan(values), MISSING, FIRST + np.searchsorted(cuts, values)).astype(kind)

    def step(self, columns: Sequence[Any], node: Any, feature: IntArray, cut: IntArray) -> Any:
        """Return the node of every row one level down."""
        return _step(columns, node, packed_nodes(feature, cut)).astype(node.dtype)

    def evaluate(self, columns: Sequence[Any], feature: IntArray, cut: IntArray, value: FloatArray) -> Any:
        """Return the sum of the values of every row's leaves."""
        total = np.zeros(len(columns[0]), dtype=self.device.kind)
        for nodes, own in zip(packed_nodes(feature, cut), value.astype(self.device.kind), strict=True):
            node, first = np.zeros(len(total), dtype=np.intp), 0
            while first < len(nodes):
                node, first = _step(columns, node, nodes[first:]), 2 * first + 1
            total += own[node]
        return total

    def _add_up(
        self, columns: Sequence[Any], counts: IntArray, node: Any, places: NDArray[np.int32], terms: Sequence[Any]
    ) -> Wholes:
        ends, n_places = np.cumsum(counts), int(places.max()) + 1
        total = np.zeros((n_places, int(counts.sum()), len(terms)), dtype=np.int64)
        inside = np.flatnonzero(places[node] >= 0)
        place, own = places[node[inside]].astype(np.intp), [None if t is None else t[inside] for t in terms]
        for column, count, end in zip(columns, counts.tolist(), ends.tolist(), strict=True):
            cell = place * count + column[inside]
            for q, term in enumerate(own):  # sums are whole numbers below 2^53
                sums = np.bincount(cell, term, n_places * count)
                total[:, end - count : end, q] = sums.astype(np.int64).reshape(n_places, count)
        return total


def _step(columns: Sequence[Any], node: Any, nodes: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Return the node of every row one level down, by packed nodes."""
    below = 2 * node.astype(np.intp)
    for k in np.unique(node).tolist():
        inside = np.flatnonzero(node == k)
        below[inside] += columns[nodes[k] >> 16][inside] > (nodes[k] & NO_SPLIT)
    return np.asarray(below)


class CudaTrees(TreeKernels):
    """The kernels, through CuPy."""

    device: Cuda

    def _kernel(self, name: str, column: Any, node: Any = None, terms: Sequence[Any] = (), given: str = "f4") -> Any:
        """Return a kernel for codes, nodes and numbers of their types."""
        is_single = self.device.precision == "single"
        kinds = {"C": column.dtype.str[1:], "N": "u1" if node is None else node.dtype.str[1:], "V": given}
        types = {name: C_TYPES[kind] for name, kind in kinds.items()}
        types |= {"T": "float", "A": "int", "B": "int"} if is_single else {"T": "double", "A": "long long", "B": "U"}
        return _module(source_of(types, len(terms), sum(term is None for term in terms)), name)

    def _addresses(self, part: Inputs, names: Sequence[str]) -> Any:
        """Return where arrays of some rows lie on the card; 0: they are not read."""
        found = [part.arrays[name].data.ptr if name in part.arrays else 0 for name in names]
        return self._put(np.array(found, dtype=np.uint64))

    def _put(self, array: NDArray[Any]) -> Any:
        return self.device.cupy.asarray(array)

    def _each_row(self, kernel: Any, arrays: Mapping[str, Any], kind: Any, given: Callable[[Inputs], Any]) -> Any:
        """Launch a kernel that visits every row, and return what it writes."""

        def launch(part: Inputs, out: Any) -> None:
            kernel((max(1, min(-(-part.n // 256), 1 << 16)),), (256,), (np.int64(part.n), *given(part), out))

        n = len(next(iter(arrays.values())))
        return self.device.written(1, Inputs(n, arrays), kind, launch)[0]

    def bin(self, column: Any, cuts: FloatArray, kind: np.dtype[Any]) -> Any:
        """Return the codes of numbers."""
        kernel, below = self._kernel("bin", np.empty(0, kind), given=column.dtype.str[1:]), np.append(cuts, 0.0)
        given = lambda part: (part.arrays["x"], self._put(below), np.int32(len(cuts)))  # noqa: E731
        return self._each_row(kernel, {"x": column}, kind, given)

    def step(self, columns: Sequence[Any], node: Any, feature: IntArray, cut: IntArray) -> Any:
        """Return the node of every row one level down."""
        kernel, nodes, names = self._kernel("step", columns[0], node), packed_nodes(feature, cut), _names(len(columns))
        given = lambda part: (self._addresses(part, names), part.arrays["node"], self._put(nodes))  # noqa: E731
        return self._each_row(kernel, {**_read_columns(columns, feature), "node": node}, node.dtype, given)

    def evaluate(self, columns: Sequence[Any], feature: IntArray, cut: IntArray, value: FloatArray) -> Any:
        """Return the sum of the values of every row's leaves."""
        kernel, nodes, names = self._kernel("evaluate", columns[0]), packed_nodes(feature, cut), _names(len(columns))
        leaves, size = np.ascontiguousarray(value, dtype=self.device.kind), tuple(map(np.int32, feature.shape))
        given = lambda part: (self._addresses(part, names), self._put(nodes), self._put(leaves), *size)  # noqa: E731
        return self._each_row(kernel, _read_columns(columns, feature), self.device.kind, given)

    def _add_up(
        self, columns: Sequence[Any], counts: IntArray, node: Any, places: NDArray[np.int32], terms: Sequence[Any]
    ) -> Wholes:
        n_places, (blocks, room) = int(places.max()) + 1, self.device.limits
        size = n_places * len(terms) * self.whole.itemsize
        groups = feature_groups(counts, room // size)
        starts = np.concatenate([[0], np.cumsum(counts)])
        widest = size * max((int(starts[b] - starts[a]) for a, b in pairwise(groups)), default=0)
        copies = min(BANKS, 1 << (room // widest).bit_length() - 1) if groups else 0
        groups = groups or [0, len(counts)]
        plan = np.concatenate([groups, starts, places]).astype(np.int32)
        out = self.device.cupy.zeros(n_places * int(starts[-1]) * len(terms), dtype=np.int64)
        kernel, threads = self._kernel("add_up", columns[0], node, terms), min(THREADS, self.device.threads)
        kernel.max_dynamic_shared_size_bytes = widest * copies
        numbers = np.int32(len(counts)), np.int32(n_places), np.int32(copies)
        names, summed = _names(len(columns)), [f"t{q}" for q in range(len(terms))]
        arrays = {name: one for name, one in zip((*names, *summed), (*columns, *terms), strict=True) if one is not None}
        for part in self.device.parts(Inputs(len(node), {**arrays, "node": node})):
            tiles = -(-part.n // (HELD_ROWS * max(1, copies)))
            grid = min(max(1, blocks // (len(groups) - 1)), tiles), len(groups) - 1
            given = self._addresses(part, names), part.arrays["node"], self._addresses(part, summed), self._put(plan)
            kernel(grid, (threads,), (np.int64(part.n), *given, *numbers, out), shared_mem=widest * copies)
        return np.asarray(out.get())


def _names(n_columns: int) -> list[str]:
    return [f"c{j}" for j in range(n_columns)]


def _read_columns(columns: Sequence[Any], feature: IntArray) -> dict[str, Any]:
    """Return the columns that nodes split by, by name; nodes without a split look at the first."""
    return {f"c{j}": columns[j] for j in np.unique(np.maximum(feature, 0)).tolist()}


@cache
def _module(source: str, name: str) -> Any:
    return import_module("cupy").RawModule(code=source, options=("-std=c++17", "--fmad=false")).get_function(name)


def trees_on(device: Device) -> TreeKernels:
    """Return what trees need, of a device."""
    return CudaTrees(device) if isinstance(device, Cuda) else TwinTrees(device)
