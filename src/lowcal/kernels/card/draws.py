"""Sums of the rows that chance picks, for many draws at once: a product of 0/1 matrices on a card's tensor cores.

A draw b picks row i if the number of (key b, i) is below the row's chance. What is summed, for every draw b, member j
and value t, is [b picks i] [i belongs to j] v_it: with memberships as a matrix of bits and values as whole numbers of
two bytes, products of 8-bit integers that are added exactly. A warp holds the sums of eight draws; the warps of a block
share the rows they look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

#: Values are whole multiples of the last of two bytes.
PICKED_UNITS = 65535.0
#: Draws of a warp, and the most warps of a block.
DRAWS, MOST_WARPS = 8, 13
#: Sums that a thread can hold in registers.
MOST_HELD = 84
#: Bytes of shared memory that the places of the members of all levels may take.
MOST_PLACES_BYTES = 1 << 16
#: Rows that a block may look at before sums of bytes could leave 32 bits.
MOST_ROWS = 1 << 22


@dataclass(frozen=True)
class Picking:
    """The shape of a kernel: bytes of all values, tiles of 16 members that are summed at once, and warps."""

    digits: tuple[int, ...]
    members: int
    draws: int

    @classmethod
    def of(cls, terms: Sequence[str], members: int, draws: int) -> Picking:
        """Return the shape for terms: 1 takes one byte, others two."""
        return cls(tuple(1 if text == "T(1)" else 2 for text in terms), members, draws)

    @property
    def units(self) -> list[float]:
        """The whole number that stands for 1, by term."""
        return [1.0 if size == 1 else PICKED_UNITS for size in self.digits]

    @property
    def width(self) -> int:
        """The bytes of all values."""
        return sum(self.digits)

    @property
    def tiles(self) -> int:
        """The tiles of members that share a launch."""
        return min(-(-self.members // 16), max(1, MOST_HELD // (4 * self.width)))

    @property
    def launches(self) -> int:
        """How often the rows are visited so that all members have been summed."""
        return -(-self.members // (16 * self.tiles))

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return min(MOST_WARPS, -(-self.draws // DRAWS))

    @property
    def groups(self) -> int:
        """The blocks that share the draws."""
        return -(-self.draws // (DRAWS * self.warps))

    @property
    def group_words(self) -> int:
        """The words of shared memory for 32 rows: memberships, room for those of other launches, chances, values."""
        return 128 * self.tiles + 16 + 64 + 8 * self.width

    def fits(self, places: Sequence[NDArray[np.uint16]]) -> bool:
        """Whether there is room for the places of all levels."""
        return sum(int(one[0].nbytes) for one in places) <= MOST_PLACES_BYTES

    def shared_bytes(self, places: Sequence[NDArray[np.uint16]]) -> int:
        """Return the shared memory of a block."""
        table = sum(int(one[0].nbytes) for one in places)
        return table + -table % 16 + 4 * self.warps * self.group_words

    def places(self, belongs: NDArray[np.bool_], levels: Sequence[int]) -> list[NDArray[np.uint16]]:
        """Return where the members of every level are marked, for each code column (launches, levels, members of one).

        Memberships are laid as the tensor cores read them: member 16 t + 8 h + g of a row is byte 512 t + 64 g + 4 h
        after the row's own place. What belongs to another launch is marked after all of these.
        """
        size, found = 16 * self.tiles, []
        for own in np.split(belongs, np.cumsum(levels)[:-1]):
            most = max(1, int(own.sum(axis=1).max(initial=1)))
            place = np.full((self.launches, len(own), most), 32 * size, dtype=np.uint16)
            for level, members in enumerate(map(np.flatnonzero, own)):
                j = members % size
                place[members // size, level, np.arange(len(members))] = (
                    512 * (j // 16) + 64 * (j % 8) + 4 * (j % 16 // 8)
                )
            found.append(place)
        return found

    def read(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return sums (draws, members, values) of the sums of all bytes."""
        every = sums.reshape(self.launches, -1, 16 * self.tiles, self.width)[:, : self.draws]
        every = every.transpose(1, 0, 2, 3).reshape(self.draws, -1, self.width)[:, : self.members]
        starts = np.cumsum((0, *self.digits))
        each = [(every[..., a:b] << (8 * np.arange(b - a))).sum(axis=-1) for a, b in pairwise(starts)]
        return np.stack(each, axis=-1)


KERNEL = r"""
#define STRIDE 0x9E3779B97F4A7C15ull
__device__ __forceinline__ U mixed(U h) {
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  return (h ^ (h >> 27)) * 0x94D049BB133111EBull;
}
__device__ __forceinline__ unsigned picked(U h, unsigned low, unsigned high, unsigned byte) {
  h = mixed(h);
  return (h ^ (h >> 31)) <= (((U)high << 32) | low) ? byte : 0u;
}
// which of the rows 4 r, ..., 4 r + 3 and 4 r + 16, ..., 4 r + 19 a key picks, a byte for each
__device__ __forceinline__ uint2 pick_rows(const uint4* bound, int r, U h) {
  const uint4 l0 = bound[r], l1 = bound[r + 4], h0 = bound[r + 8], h1 = bound[r + 12];
  return make_uint2(
      picked(h, l0.x, h0.x, 0xffu) | picked(h + STRIDE, l0.y, h0.y, 0xff00u)
          | picked(h + 2 * STRIDE, l0.z, h0.z, 0xff0000u) | picked(h + 3 * STRIDE, l0.w, h0.w, 0xff000000u),
      picked(h + 16 * STRIDE, l1.x, h1.x, 0xffu) | picked(h + 17 * STRIDE, l1.y, h1.y, 0xff00u)
          | picked(h + 18 * STRIDE, l1.z, h1.z, 0xff0000u) | picked(h + 19 * STRIDE, l1.w, h1.w, 0xff000000u));
}
__device__ __forceinline__ void multiply(int* c, uint4 a, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
extern "C" __global__ void __launch_bounds__(32 * WARPS) run(long long n, long long first, long long each,
    PARAMETERS const unsigned short* __restrict__ members, const T* __restrict__ k, const U* __restrict__ keys,
    U* __restrict__ out) {
  extern __shared__ uint4 start[];
  unsigned short* const table = (unsigned short*)start;
  unsigned* const groups = (unsigned*)start + PLACES_END;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, four = lane % 4;
  for (int i = threadIdx.x; i < PLACES; i += blockDim.x) table[i] = members[blockIdx.z * PLACES + i];
  const int draw = (blockIdx.y * WARPS + warp) * 8;
  const U key = keys[draw + g];
  int sums[WIDTH][TILES][4] = {};
  __syncthreads();
  const long long end = (blockIdx.x + 1) * each < n ? (blockIdx.x + 1) * each : n;
  for (long long base = blockIdx.x * each; base < end; base += 32 * WARPS) {
    unsigned* const own = groups + warp * GROUP;
    const long long at = base + warp * 32 + lane;
    unsigned digit[WIDTH] = {};
    U last = 0;
    #pragma unroll
    for (int t = 0; t < TILES; t++) ((uint4*)own)[32 * t + lane] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    if (at < end) {
      READS
      LINES
      const U top = (U)ceil((double)(q) * 0x1p53);
      if (top) {
        last = (top << 11) - 1;
        DIGITS
        unsigned char* const mark = (unsigned char*)own + 16 * (lane % 16 / 4) + 8 * (lane / 16) + lane % 4;
        MEMBERS
      }
    }
    unsigned* const low = own + 128 * TILES + 16;
    low[lane] = (unsigned)last;
    low[32 + lane] = (unsigned)(last >> 32);
    #pragma unroll
    for (int d = 0; d < WIDTH; d++) ((unsigned char*)(low + 64))[32 * d + lane] = (unsigned char)digit[d];
    __syncthreads();
    U h = (U)(first + base + four * 4) * STRIDE + key;
    #pragma unroll 2
    for (int w = 0; w < WARPS; w++) {
      const unsigned* const there = groups + w * GROUP;
      const unsigned* const bound = there + 128 * TILES + 16;
      const uint2 p = pick_rows((const uint4*)bound, four, h);
      h += 32 * STRIDE;
      const unsigned* const values = bound + 64;
      #pragma unroll
      for (int t = 0; t < TILES; t++) {
        const uint4 a = ((const uint4*)there)[32 * t + lane];
        #pragma unroll
        for (int d = 0; d < WIDTH; d++)
          multiply(sums[d][t], a, p.x & values[8 * d + four], p.y & values[8 * d + 4 + four]);
      }
    }
    __syncthreads();
  }
  U* const to = out + ((U)blockIdx.z * gridDim.y * WARPS * 8 + draw) * (16 * TILES * WIDTH);
  #pragma unroll
  for (int d = 0; d < WIDTH; d++)
    #pragma unroll
    for (int t = 0; t < TILES; t++)
      #pragma unroll
      for (int c = 0; c < 4; c++)
        if (sums[d][t][c]) {
          const int member = 16 * t + g + 8 * (c / 2), b = 2 * four + c % 2;
          atomicAdd(to + (b * 16 * TILES + member) * WIDTH + d, (U)sums[d][t][c]);
        }
}
"""
