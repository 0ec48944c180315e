// What CUDA gives to a kernel, for a processor. cuda_on_cpu.cpp runs the threads.
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

typedef unsigned long long U;
typedef U Words[4];
enum { WARP = 32 };
struct Index { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(16) int4 { int x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

template <typename V> struct Same_ { typedef V type; };
template <typename V> using Same = typename Same_<V>::type;

// --- threads -------------------------------------------------------------------------------------------------------

extern "C" {
Index thread_index_();
Index block_index_();
Index block_dim_();
Index grid_dim_();
int lane_();
void* shared_();
void __syncwarp();
void __syncthreads();
// lays four words of a thread beside those of its warp, and returns these
Words* beside_(const U* own);
}
#define threadIdx (thread_index_())
#define blockIdx (block_index_())
#define blockDim (block_dim_())
#define gridDim (grid_dim_())

template <typename V> static V __shfl_xor_sync(unsigned, V value, int by) {
  U own[4] = {};
  __builtin_memcpy(own, &value, sizeof value);
  __builtin_memcpy(&value, beside_(own)[lane_() ^ by], sizeof value);
  return value;
}
static bool __any_sync(unsigned, bool holds) {
  const U own[4] = {holds};
  Words* const all = beside_(own);
  bool any = false;
  for (int i = 0; i < WARP; i++) any |= all[i][0] != 0;
  return any;
}

// --- memory --------------------------------------------------------------------------------------------------------

template <typename V, typename W> static V atomicAdd(V* at, W by) {
  return __atomic_fetch_add(at, (V)by, __ATOMIC_RELAXED);
}
#define SEEN(number) __atomic_load_n(&(number), __ATOMIC_RELAXED)
template <typename V, typename W> static V atomicMax(V* at, W by) {
  V held = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (held < (V)by && !__atomic_compare_exchange_n(at, &held, (V)by, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return held;
}
template <typename V, typename W> static V atomicMin(V* at, W by) {
  V held = __atomic_load_n(at, __ATOMIC_RELAXED);
  while ((V)by < held && !__atomic_compare_exchange_n(at, &held, (V)by, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return held;
}

// --- numbers -------------------------------------------------------------------------------------------------------

static inline float rintf(float x) { return __builtin_rintf(x); }
static inline float rint(float x) { return __builtin_rintf(x); }
static inline double rint(double x) { return __builtin_rint(x); }
static inline float floor(float x) { return __builtin_floorf(x); }
static inline double floor(double x) { return __builtin_floor(x); }
static inline double ceil(double x) { return __builtin_ceil(x); }
static inline double exp(double x) { return __builtin_exp(x); }
static inline double log(double x) { return __builtin_log(x); }
template <typename V> static inline bool isinf(V x) { return __builtin_isinf(x); }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }

// numbers out of range become the nearest whole number, no number 0
template <typename I> static inline I nearest_(double x, I least, I most) {
  if (!(x == x)) return 0;
  x = __builtin_rint(x);
  return x <= (double)least ? least : x >= (double)most ? most : (I)x;
}
static inline int __float2int_rn(float x) { return nearest_<int>(x, -0x7fffffff - 1, 0x7fffffff); }
static inline long long __double2ll_rn(double x) {
  return nearest_<long long>(x, -0x7fffffffffffffffll - 1, 0x7fffffffffffffffll);
}
static inline long long __float2ll_rn(float x) { return __double2ll_rn(x); }
template <typename V, typename W> static inline V same_bits_(W x) {
  V found;
  __builtin_memcpy(&found, &x, sizeof found);
  return found;
}
static inline int __float_as_int(float x) { return same_bits_<int>(x); }
static inline float __int_as_float(int x) { return same_bits_<float>(x); }
static inline long long __double_as_longlong(double x) { return same_bits_<long long>(x); }

// bytes of two words by their numbers; the eighth of a number's four bits asks for the sign instead
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned how) {
  const U both = (unsigned long long)b << 32 | a;
  unsigned found = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned at = how >> 4 * i & 15, byte = both >> 8 * (at & 7) & 0xff;
    found |= (at & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * i;
  }
  return found;
}

static inline void prmt_b32(unsigned& found, unsigned a, unsigned b, unsigned how) { found = __byte_perm(a, b, how); }

// c (16 x 8) += a (16 x 32, by row) b (32 x 8, by column), laid among the threads as the manual of PTX says
static void mma_sync_aligned_m16n8k32_row_col_s32_u8_u8_s32(int& c0, int& c1, int& c2, int& c3, unsigned a0, unsigned a1,
                                                            unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  const U high = 1ull << 32;
  const U own[4] = {a0 + a1 * high, a2 + a3 * high, b0 + b1 * high, 0};
  Words* const all = beside_(own);
  int* const c[4] = {&c0, &c1, &c2, &c3};
  const int g = lane_() / 4, four = lane_() % 4;
  for (int i = 0; i < 4; i++)
    for (int part = 0; part < 2; part++)  // columns 0 .. 15 of a, then 16 .. 31
      for (int t = 0; t < 4; t++) {
        const unsigned x = all[4 * g + t][part] >> 32 * (i / 2);  // row g, or g + 8
        const unsigned y = all[4 * (2 * four + i % 2) + t][2] >> 32 * part;
        for (int byte = 0; byte < 32; byte += 8) *c[i] += (int)((x >> byte & 0xff) * (y >> byte & 0xff));
      }
}
