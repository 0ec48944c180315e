"""Sums of terms over memberships in bits: a product of 0/1 matrices on a card's tensor cores.

A byte of a row holds eight memberships. Terms are whole numbers; with a bias they are three bytes each, and what is
summed for every member j and byte t, [i belongs to j] b_it, are products of 8-bit integers that are added exactly. Of
four bytes, those of four rows, a mask leaves the bits of one member as the tensor cores read them: 1 << bit stands for
1, and sums are divided by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Levels of a byte.
BYTE = 256
#: What is added to a term so that it is not negative, and its bytes then.
BIAS, DIGITS = 1 << 23, 3
#: Warps of a block, and the rows that a warp looks at in a turn.
WARPS, ROWS = 8, 128
#: Turns after which a warp moves its sums to 64 bits.
MOST_TURNS = 512
#: Words of shared memory of eight bytes of terms, of 32 rows each and four to spare.
PART_WORDS = 8 * 36
#: Sums that a thread can hold in registers, and the most tiles of 16 members.
MOST_HELD, MOST_TILES = 56, 8


@dataclass(frozen=True)
class Adding:
    """The shape of a kernel: code columns, and the terms that are summed at once."""

    columns: int
    terms: int

    @classmethod
    def most_terms(cls, columns: int, room: int) -> int:
        """Return how many terms a launch has room for, given the bytes of shared memory; less than 1: for none."""
        laid = (room // (4 * WARPS) - cls(columns, 0).room) // PART_WORDS + cls(columns, 0).parts
        return (8 * min(MOST_HELD // (4 * cls(columns, 1).tiles), laid) - 1) // DIGITS

    @property
    def tiles(self) -> int:
        """The tiles of 16 members."""
        return -(-self.columns // 2)

    @property
    def parts(self) -> int:
        """The tiles of eight bytes: one of them counts the rows, the others are those of terms."""
        return -(-(1 + DIGITS * self.terms) // 8)

    @property
    def room(self) -> int:
        """The words of shared memory of a warp: columns and bytes of terms, laid so that none waits for a bank."""
        return 32 * self.columns + PART_WORDS * self.parts

    def read(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return sums (columns, bits, terms) of those of all bytes."""
        every = sums.reshape(2 * self.tiles, 8, 8 * self.parts)[: self.columns]
        digits = every[..., 1 : 1 + DIGITS * self.terms].reshape(self.columns, 8, self.terms, DIGITS)
        return np.asarray((digits << (8 * np.arange(DIGITS))).sum(axis=-1) - BIAS * every[..., :1])


def fold(levels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of each bit, at the level that has no other, from those of all levels of a byte.

    >>> fold(np.arange(256)[:, None])[[1, 2, 3, 128], 0].tolist()
    [16384, 16448, 0, 24512]
    """
    bits = np.arange(BYTE)[:, None] >> np.arange(8) & 1
    found = np.zeros_like(levels)
    found[1 << np.arange(8)] = (bits.T[:, :, None] * levels).sum(axis=1)
    return found


KERNEL = r"""
__device__ __forceinline__ void multiply(int* c, const unsigned* a, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// byte d of four numbers
__device__ __forceinline__ unsigned bytes_of(const unsigned* v, int d) {
  return __byte_perm(__byte_perm(v[0], v[1], 0x40 + 0x11 * d), __byte_perm(v[2], v[3], 0x40 + 0x11 * d), 0x5410);
}
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) run(long long n, long long first, PARAMETERS
    BYTES const T* __restrict__ given, const T* __restrict__ k, const T* __restrict__ scale,
    const U* __restrict__ keys, U* __restrict__ out) {
  extern __shared__ T tab[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, four = lane % 4;
  unsigned* const columns = (unsigned*)(tab + TABLE_END) + warp * ROOM;
  unsigned* const bytes = columns + 32 * COLUMNS;
  for (int i = threadIdx.x; i < TABLE; i += blockDim.x) tab[i] = given[i];
  for (int i = lane; i < 36 * 8 * PARTS; i += 32) bytes[i] = 0;
  const unsigned mask = 0x01010101u << g;
  int sums[TILES][PARTS][4] = {};
  // adds 1 << g for 1 of a member: both that a thread holds sums of have the same bit
  const auto flush = [&] {
    #pragma unroll
    for (int t = 0; t < TILES; t++)
      #pragma unroll
      for (int p = 0; p < PARTS; p++)
        #pragma unroll
        for (int c = 0; c < 4; c++) {
          const unsigned held = (unsigned)sums[t][p][c] >> g;
          if (held) atomicAdd(out + ((2 * t + c / 2) * 8 + g) * (8 * PARTS) + 8 * p + 2 * four + c % 2, (U)held);
          sums[t][p][c] = 0;
        }
  };
  __syncthreads();
  int turns = 0;
  const long long step = (long long)gridDim.x * WARPS * 128;
  for (long long base = ((long long)blockIdx.x * WARPS + warp) * 128; base < n; base += step) {
    const long long at = base + 4 * lane;
    unsigned v[Q][4] = {}, ones = 0, word[COLUMNS] = {};
    if (at < n) {
      WORDS
      LOADS
      #pragma unroll
      for (int row_ = 0; row_ < 4; row_++) {
        if (at + row_ >= n) break;
        READS
        LINES
        TERMS
        ones |= 1u << 8 * row_;
      }
    }
    #pragma unroll
    for (int j = 0; j < COLUMNS; j++) columns[32 * j + lane] = word[j];
    bytes[lane] = ones;
    #pragma unroll
    for (int q = 0; q < Q; q++)
      #pragma unroll
      for (int d = 0; d < 3; d++) bytes[36 * (1 + 3 * q + d) + lane] = bytes_of(v[q], d);
    __syncwarp();
    // a thread reads the words 8 four, ..., 8 four + 7, eight rows in each of four products
    #pragma unroll
    for (int half = 0; half < 2; half++) {
      uint4 b[PARTS];
      #pragma unroll
      for (int p = 0; p < PARTS; p++) b[p] = *(const uint4*)(bytes + 36 * (8 * p + g) + 8 * four + 4 * half);
      #pragma unroll
      for (int t = 0; t < TILES; t++) {
        const uint4 low = *(const uint4*)(columns + 32 * (2 * t) + 8 * four + 4 * half);
        const uint4 high = 2 * t + 1 < COLUMNS ? *(const uint4*)(columns + 32 * (2 * t + 1) + 8 * four + 4 * half)
                                               : make_uint4(0, 0, 0, 0);
        const unsigned a[4] = {low.x & mask, high.x & mask, low.y & mask, high.y & mask};
        const unsigned a_[4] = {low.z & mask, high.z & mask, low.w & mask, high.w & mask};
        #pragma unroll
        for (int p = 0; p < PARTS; p++) {
          multiply(sums[t][p], a, b[p].x, b[p].y);
          multiply(sums[t][p], a_, b[p].z, b[p].w);
        }
      }
    }
    __syncwarp();
    if (++turns == MOST_TURNS) {
      flush();
      turns = 0;
    }
  }
  flush();
}
"""
