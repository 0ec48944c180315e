"""Sums of the rows that chance picks, for many draws at once: a product of 0/1 matrices on a card's tensor cores.

A draw b picks row i if the number of (key b, i) is below the row's chance. What is summed, for every draw b, member j
and value t, is [b picks i] [i belongs to j] v_it: with memberships as a matrix of bits and values as whole numbers of
two bytes, products of 8-bit integers that are added exactly. A warp holds the sums of eight draws, or of four by two
chances each, which share the numbers: these are most of the work. The warps of a block share the rows they look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

#: Values are whole multiples of the last of two bytes.
PICKED_UNITS = 65535.0
#: Sets of picked rows that a warp adds up, and the most warps of a block: three for each part of a multiprocessor.
SETS, MOST_WARPS = 8, 12
#: So few draws, beyond those that fill all warps of some blocks, are added up by level.
FEW_DRAWS = 4
#: Sums that a thread can hold in registers.
MOST_HELD = 84
#: Bytes of shared memory that the places of the members of all levels may take.
MOST_PLACES_BYTES = 1 << 16
#: Rows that a block may look at before sums of bytes could leave 32 bits.
MOST_ROWS = 1 << 22


@dataclass(frozen=True)
class Picking:
    """The shape of a kernel: bytes of all values, tiles of 16 members that are summed at once, and warps.

    `room` are the bytes of shared memory for rows that are laid out.
    """

    digits: tuple[int, ...]
    members: int
    draws: int
    chances: int = 1
    room: int = 1 << 30

    @classmethod
    def of(cls, terms: Sequence[str], members: int, draws: int, chances: int = 1) -> Picking:
        """Return the shape for terms: 1 takes one byte, others two."""
        return cls(tuple(1 if text == "T(1)" else 2 for text in terms), members, draws, chances)

    @property
    def rest(self) -> int:
        """The draws that are left to sums by level."""
        left = self.draws % (MOST_WARPS * SETS // self.chances)
        return left if left < self.draws and left <= FEW_DRAWS else 0

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
        """The tiles of members that share a launch; 0: there is no room for any."""
        laid = (self.room // (2 * 4 * self.warps) - self._words_beside) // 128
        return max(0, min(-(-self.members // 16), max(1, MOST_HELD // (4 * self.width)), laid))

    @property
    def launches(self) -> int:
        """How often the rows are visited so that all members have been summed."""
        return -(-self.members // (16 * self.tiles))

    @property
    def groups(self) -> int:
        """The blocks that share the draws."""
        return -(-self.draws * self.chances // (SETS * MOST_WARPS))

    @property
    def warps(self) -> int:
        """The warps of a block."""
        return -(-self.draws * self.chances // (SETS * self.groups))

    @property
    def slots(self) -> int:
        """The draws that there is room for."""
        return self.groups * self.warps * SETS // self.chances

    @property
    def group_words(self) -> int:
        """The words of shared memory for 32 rows: memberships, room for those of other launches, chances, values."""
        return 128 * self.tiles + self._words_beside

    @property
    def _words_beside(self) -> int:
        return 16 + 64 * self.chances + 8 * self.width

    def shared_bytes(self, belongs: NDArray[np.bool_], levels: Sequence[int]) -> int:
        """Return the shared memory of a block."""
        return places_bytes(belongs, levels) + 2 * 4 * self.warps * self.group_words

    def places(self, belongs: NDArray[np.bool_], levels: Sequence[int]) -> list[NDArray[np.uint16]]:
        """Return where the members of every level are marked, for each code column (launches, levels, members of one).

        Memberships are laid as the tensor cores read them: member 16 t + 8 h + g of a row is byte 512 t + 64 g + 4 h
        after the row's own place. What belongs to another launch is marked after all of these.
        """
        size, found = 16 * self.tiles, []
        for own in np.split(belongs, np.cumsum(levels)[:-1]):
            level, member = np.nonzero(own)
            counts = own.sum(axis=1)
            nth = np.arange(len(level)) - np.repeat(np.cumsum(counts) - counts, counts)
            place = np.full((self.launches, len(own), max(1, int(counts.max(initial=0)))), 32 * size, dtype=np.uint16)
            j = member % size
            place[member // size, level, nth] = 512 * (j // 16) + 64 * (j % 8) + 4 * (j % 16 // 8)
            found.append(place)
        return found

    def read(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return sums (chances, draws, members, values) of the sums of all bytes."""
        every = sums.reshape(self.launches, self.slots, self.chances, 16 * self.tiles, self.width)[:, : self.draws]
        every = every.transpose(2, 1, 0, 3, 4).reshape(self.chances, self.draws, -1, self.width)[:, :, : self.members]
        starts = np.cumsum((0, *self.digits))
        each = [(every[..., a:b] << (8 * np.arange(b - a))).sum(axis=-1) for a, b in pairwise(starts)]
        return np.stack(each, axis=-1)


def places_bytes(belongs: NDArray[np.bool_], levels: Sequence[int]) -> int:
    """Return the shared memory of the places of all levels' members."""
    counts = [own.sum(axis=1) for own in np.split(belongs, np.cumsum(levels)[:-1])]
    table = 2 * sum(len(own) * max(1, int(own.max(initial=0))) for own in counts)
    return table + -table % 16


KERNEL = r"""
#define STRIDE 0x9E3779B97F4A7C15ull
__device__ __forceinline__ U mixed(U h) {
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  return (h ^ (h >> 27)) * 0x94D049BB133111EBull;
}
// A row's number, 53 bits, is compared with the last that is picked by its upper 31 bits: these nearly always differ.
__device__ __forceinline__ int4 upper_bits(U h) {
  return make_int4((int)(mixed(h) >> 33), (int)(mixed(h + STRIDE) >> 33), (int)(mixed(h + 2 * STRIDE) >> 33),
                   (int)(mixed(h + 3 * STRIDE) >> 33));
}
__device__ __forceinline__ unsigned joined(unsigned a, unsigned b, unsigned how) {
  unsigned found;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(how));
  return found;
}
// which of four rows are picked, a byte for each; `nearest` becomes 0 if a row's upper bits leave it open
__device__ __forceinline__ unsigned pick_four(int4 number, int4 high, unsigned& nearest) {
  const unsigned a = number.x - high.x, b = number.y - high.y, c = number.z - high.z, d = number.w - high.w;
  nearest = min(nearest, min(min(a, b), min(c, d)));
  return joined(joined(a, b, 0xfbu), joined(c, d, 0xfbu), 0x5410u);
}
// which of the rows 4 r, ..., 4 r + 3 and 4 r + 16, ..., 4 r + 19 are picked
__device__ __forceinline__ uint2 pick_eight(const int4* highs, int half, U h, unsigned& nearest) {
#if CHANCES == 1
  return make_uint2(pick_four(upper_bits(h), highs[0], nearest),
                    pick_four(upper_bits(h + 16 * STRIDE), highs[4], nearest));
#else  // two sets have the same key: each finds the numbers of one half
  const int4 own = upper_bits(h + (half ? 16 * STRIDE : 0));
  const int4 other = make_int4(__shfl_xor_sync(0xffffffffu, own.x, 4), __shfl_xor_sync(0xffffffffu, own.y, 4),
                               __shfl_xor_sync(0xffffffffu, own.z, 4), __shfl_xor_sync(0xffffffffu, own.w, 4));
  const unsigned a = pick_four(own, highs[4 * half], nearest), b = pick_four(other, highs[4 - 4 * half], nearest);
  return half ? make_uint2(b, a) : make_uint2(a, b);
#endif
}
// whether a row is picked that its upper bits leave open
__device__ __forceinline__ bool is_tied(U h, int high, int low) {
  h = mixed(h);
  return (int)(h >> 33) == high && (int)((h ^ (h >> 31)) >> 11 & 0x3fffff) <= low;
}
__device__ __forceinline__ unsigned tied_four(int4 high, int4 low, U h) {
  return (is_tied(h, high.x, low.x) ? 0xffu : 0u) | (is_tied(h + STRIDE, high.y, low.y) ? 0xff00u : 0u)
      | (is_tied(h + 2 * STRIDE, high.z, low.z) ? 0xff0000u : 0u)
      | (is_tied(h + 3 * STRIDE, high.w, low.w) ? 0xff000000u : 0u);
}
__device__ __forceinline__ void multiply(int* c, uint4 a, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void lay_chance(unsigned* last, int lane, double chance) {
  const U top = (U)ceil(chance * 0x1p53);
  last[lane] = top ? (unsigned)((top - 1) >> 22) : 0u;
  last[32 + lane] = top ? (unsigned)((top - 1) & 0x3fffff) : ~0u;
}
// adds 32 rows: memberships times the values of those that are picked
__device__ __forceinline__ void add_rows(int (*sums)[TILES][4], const unsigned* rows, int lane, uint2 p) {
  const unsigned* const values = rows + 128 * TILES + 16 + 64 * CHANCES + lane % 4;
  #pragma unroll
  for (int t = 0; t < TILES; t++) {
    const uint4 a = ((const uint4*)rows)[32 * t + lane];
    #pragma unroll
    for (int d = 0; d < WIDTH; d++) multiply(sums[d][t], a, p.x & values[8 * d], p.y & values[8 * d + 4]);
  }
}
extern "C" __global__ void __launch_bounds__(32 * WARPS) run(long long n, long long first, long long each,
    PARAMETERS const unsigned short* __restrict__ members, const T* __restrict__ k, const U* __restrict__ keys,
    U* __restrict__ out) {
  extern __shared__ uint4 start[];
  unsigned short* const table = (unsigned short*)start;
  unsigned* groups = (unsigned*)start + PLACES_END;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, four = lane % 4;
  for (int i = threadIdx.x; i < PLACES; i += blockDim.x) table[i] = members[blockIdx.z * PLACES + i];
  const int set = (blockIdx.y * WARPS + warp) * 8, half = g % CHANCES;
  const U key = keys[(set + g) / CHANCES];
  int sums[WIDTH][TILES][4] = {};
  const long long begin = blockIdx.x * each, end = begin + each < n ? begin + each : n;
  long long at = begin + warp * 32 + lane;
  DECLARED
  const auto load = [&] { LOADS };
  if (at < end) load();
  __syncthreads();
  int turn = 1;
  for (long long base = begin; base < end; base += 32 * WARPS) {
    unsigned* const own = groups + warp * GROUP;
    unsigned digit[WIDTH] = {};
    double chance[CHANCES] = {};
    #pragma unroll
    for (int t = 0; t < TILES; t++) ((uint4*)own)[32 * t + lane] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    if (at < end) {
      READS
      LINES
      PICKED_BY
      DIGITS
      unsigned char* const mark = (unsigned char*)own + 16 * (lane % 16 / 4) + 8 * (lane / 16) + lane % 4;
      MEMBERS
    }
    unsigned* const last = own + 128 * TILES + 16;
    #pragma unroll
    for (int c = 0; c < CHANCES; c++) lay_chance(last + 64 * c, lane, chance[c]);
    #pragma unroll
    for (int d = 0; d < WIDTH; d++) ((unsigned char*)(last + 64 * CHANCES))[32 * d + lane] = (unsigned char)digit[d];
    at += 32 * WARPS;
    if (at < end) load();  // what is read next is on its way while these rows are added
    __syncthreads();
    U h = (U)(first + base + four * 4) * STRIDE + key;
    unsigned nearest = 1;
    #pragma unroll 3
    for (int w = 0; w < WARPS; w++) {
      const unsigned* const rows = groups + w * GROUP;
      const int4* const highs = (const int4*)(rows + 128 * TILES + 16) + 16 * half + four;
      add_rows(sums, rows, lane, pick_eight(highs, half, h, nearest));
      h += 32 * STRIDE;
    }
    if (__any_sync(0xffffffffu, nearest == 0)) {
      h -= WARPS * 32 * STRIDE;
      #pragma unroll 1
      for (int w = 0; w < WARPS; w++) {
        const unsigned* const rows = groups + w * GROUP;
        const int4* const highs = (const int4*)(rows + 128 * TILES + 16) + 16 * half + four;
        const unsigned low = tied_four(highs[0], highs[8], h);
        add_rows(sums, rows, lane, make_uint2(low, tied_four(highs[4], highs[12], h + 16 * STRIDE)));
        h += 32 * STRIDE;
      }
    }
    groups += turn * WARPS * GROUP;  // the next rows are laid out beside these
    turn = -turn;
  }
  U* const to = out + ((U)blockIdx.z * gridDim.y * WARPS * 8 + set) * (16 * TILES * WIDTH);
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
