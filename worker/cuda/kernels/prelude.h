// What lets one text be a kernel for a GPU (compiled by NVRTC) and a function of the host.
//
// A kernel is written for a whole block. EACH shares a range out among its threads; on the host one thread does all of it, in order. Nothing
// a thread leaves in a variable of its own outlives an EACH; what other threads need lies in SHARED memory and is read after a SYNC.
// EACH_ROW shares a range out among the block's warps, and EACH_LANE within it another one among a warp's threads: there a variable of
// the thread may be added to, which lanes_sum adds up. Sums have an order that follows from the shapes alone.

constexpr int THREADS = 256;
// Threads that run in step: they share a row out where a block has several.
constexpr int WARP = 32;
// Rows of a block of which each warp has one.
constexpr long long ROWS = THREADS / WARP;
// Elements of a block of what has no rows.
constexpr long long TILE = 2048;
// Rows of a chunk, of which a block sums some columns.
constexpr long long CHUNK = 64;
// Elements that a thread loads at once: 16 bytes of a narrow format, which a GPU moves as one.
constexpr int VECTOR = 8;
// Columns of such a block: a vector for each thread of a warp.
constexpr long long COLUMNS = WARP * VECTOR;

#ifdef __CUDACC_RTC__
#define KERNEL(name, Arguments) extern "C" __global__ void __launch_bounds__(THREADS) name(const Arguments a)
#define BLOCK ((long long)blockIdx.x)
#define INLINE static __device__ __forceinline__
#define EACH(i, first, end) for (long long i = (first) + threadIdx.x; i < (end); i += THREADS)
#define EACH_ROW(i, first, end) for (long long i = (first) + threadIdx.x / WARP; i < (end); i += THREADS / WARP)
#define EACH_LANE(i, first, end) for (long long i = (first) + threadIdx.x % WARP; i < (end); i += WARP)
#define SYNC __syncthreads()
#define SHARED __shared__
INLINE unsigned bits_of(float x) { return __float_as_uint(x); }
INLINE float of_bits(unsigned x) { return __uint_as_float(x); }
// Sum over the threads of a warp, which all get it.
INLINE float lanes_sum(float x) {
  for (int other = WARP / 2; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffffu, x, other);
  return x;
}
// For what need not have the bits of the host: a sum and a product rounded once, and a quotient and an exponential that are off by the last places.
INLINE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
INLINE float quotient(float a, float b) { return __fdividef(a, b); }
INLINE float exponential(float x) { return __expf(x); }
#else
#include <cmath>
#include <cstring>
#define KERNEL(name, Arguments) static void name(long long block, const Arguments& a)
#define BLOCK block
#define INLINE static inline
#define EACH(i, first, end) for (long long i = (first); i < (end); i++)
#define EACH_ROW(i, first, end) EACH(i, first, end)
#define EACH_LANE(i, first, end) EACH(i, first, end)
#define SYNC ((void)0)
#define SHARED
INLINE unsigned bits_of(float x) { unsigned b; std::memcpy(&b, &x, 4); return b; }
INLINE float of_bits(unsigned b) { float x; std::memcpy(&x, &b, 4); return x; }
INLINE float lanes_sum(float x) { return x; }
INLINE float multiply_add(float a, float b, float c) { return a * b + c; }
INLINE float quotient(float a, float b) { return a / b; }
INLINE float exponential(float x) { return std::exp(x); }
#endif

enum { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

// To the nearest, ties to even. In whole numbers, so that host and GPU have the same bits without headers of either.
INLINE unsigned short to_bfloat16(float x) {
  const unsigned b = bits_of(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return (unsigned short)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}

INLINE unsigned short to_float16(float x) {
  const unsigned sign = (bits_of(x) >> 16) & 0x8000u, b = bits_of(x) & 0x7fffffffu;
  if (b > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  // From 65,520 on the nearest is infinity.
  if (b >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
  // Below the smallest normal number: the last place of 0.5 is that of halfs there, so the sum is rounded right.
  if (b < 0x38800000u) return (unsigned short)(sign | (bits_of(of_bits(b) + 0.5f) - 0x3f000000u));
  return (unsigned short)(sign | ((b + 0xfffu + ((b >> 13) & 1u) - 0x38000000u) >> 13));
}

INLINE float of_float16(unsigned short x) {
  const unsigned sign = (x & 0x8000u) << 16, b = (x & 0x7fffu) << 13;
  if (b >= 0x0f800000u) return of_bits(sign | 0x7f800000u | (b & 0x007fffffu));
  // The exponent's bias differs by 112. Numbers below the normal ones become normal.
  return of_bits(sign | bits_of(of_bits(b) * of_bits(0x77800000u)));
}

template <int FORMAT>
INLINE float load(const void* p, long long i) {
  if (FORMAT == FLOAT32) return ((const float*)p)[i];
  const unsigned short x = ((const unsigned short*)p)[i];
  return FORMAT == BFLOAT16 ? of_bits((unsigned)x << 16) : of_float16(x);
}

template <int FORMAT>
INLINE void store(void* p, long long i, float x) {
  if (FORMAT == FLOAT32) {
    ((float*)p)[i] = x;
  } else {
    ((unsigned short*)p)[i] = FORMAT == BFLOAT16 ? to_bfloat16(x) : to_float16(x);
  }
}

// Whether vectors can be loaded from here.
INLINE bool is_aligned(const void* p) { return ((unsigned long long)p & 15) == 0; }

#ifdef __CUDACC_RTC__
// Two numbers of a narrow format, the first in the lower half. The processor's own conversions, which round to the nearest, ties to even.
template <int FORMAT>
INLINE void unpack(unsigned both, float& first, float& second) {
  if constexpr (FORMAT == BFLOAT16) {
    first = of_bits(both << 16);
    second = of_bits(both & 0xffff0000u);
  } else {
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(first), "=f"(second) : "r"(both));
  }
}

template <int FORMAT>
INLINE unsigned pack(float first, float second) {
  unsigned both;
#if __CUDA_ARCH__ >= 800
  if constexpr (FORMAT == BFLOAT16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  }
#else
  // Older ones convert one number at a time, and to bfloat16 none.
  if constexpr (FORMAT == BFLOAT16) {
    both = (unsigned)to_bfloat16(first) | (unsigned)to_bfloat16(second) << 16;
  } else {
    asm("{.reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b};}" : "=r"(both) : "f"(first), "f"(second));
  }
#endif
  return both;
}

template <int FORMAT>
INLINE void load_vector(const void* p, long long i, float (&x)[VECTOR]) {
  if constexpr (FORMAT == FLOAT32) {
    const float4 a = ((const float4*)p)[i / 4], b = ((const float4*)p)[i / 4 + 1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
    const uint4 a = ((const uint4*)p)[i / VECTOR];
    unpack<FORMAT>(a.x, x[0], x[1]);
    unpack<FORMAT>(a.y, x[2], x[3]);
    unpack<FORMAT>(a.z, x[4], x[5]);
    unpack<FORMAT>(a.w, x[6], x[7]);
  }
}

template <int FORMAT>
INLINE void store_vector(void* p, long long i, const float (&x)[VECTOR]) {
  if constexpr (FORMAT == FLOAT32) {
    ((float4*)p)[i / 4] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4*)p)[i / 4 + 1] = make_float4(x[4], x[5], x[6], x[7]);
  } else {
    ((uint4*)p)[i / VECTOR] = make_uint4(pack<FORMAT>(x[0], x[1]), pack<FORMAT>(x[2], x[3]), pack<FORMAT>(x[4], x[5]),
                                         pack<FORMAT>(x[6], x[7]));
  }
}
#else
template <int FORMAT>
INLINE void load_vector(const void* p, long long i, float (&x)[VECTOR]) {
  for (int k = 0; k < VECTOR; k++) x[k] = load<FORMAT>(p, i + k);
}

template <int FORMAT>
INLINE void store_vector(void* p, long long i, const float (&x)[VECTOR]) {
  for (int k = 0; k < VECTOR; k++) store<FORMAT>(p, i + k, x[k]);
}
#endif

// N elements that lie together, from i on: one, or a vector from an aligned place.
template <int FORMAT, int N>
INLINE void load_all(const void* p, long long i, float (&x)[N]) {
  if constexpr (N == VECTOR) load_vector<FORMAT>(p, i, x);
  else x[0] = load<FORMAT>(p, i);
}

template <int FORMAT, int N>
INLINE void store_all(void* p, long long i, const float (&x)[N]) {
  if constexpr (N == VECTOR) store_vector<FORMAT>(p, i, x);
  else store<FORMAT>(p, i, x[0]);
}

// Sum over the threads in a fixed tree; every thread gets it.
template <typename Number>
INLINE Number sum_of(Number* parts) {
  for (int half = THREADS / 2; half > 0; half /= 2) {
    SYNC;
    EACH(t, 0, half) parts[t] += parts[t + half];
  }
  SYNC;
  const Number sum = parts[0];
  SYNC;
  return sum;
}

INLINE long long smaller(long long a, long long b) { return a < b ? a : b; }

// A kernel whose body is a template over the format.
#define FOR_FORMATS(name, Arguments)                   \
  KERNEL(name, Arguments) {                            \
    switch (a.format) {                                \
      case FLOAT32: name##_of<FLOAT32>(BLOCK, a); break;   \
      case BFLOAT16: name##_of<BFLOAT16>(BLOCK, a); break; \
      default: name##_of<FLOAT16>(BLOCK, a);           \
    }                                                  \
  }

// The same, whose body is a template over the elements of a load, too: vectors where `vectors` says so. It gets `count` of what is SHARED.
#define FOR_FORMATS_AND_VECTORS(name, Arguments, vectors, Shared, count)                      \
  template <int FORMAT>                                                                       \
  INLINE void name##_of(long long block, const Arguments& a, Shared* shared) {                \
    if (vectors) name##_by<FORMAT, VECTOR>(block, a, shared);                                 \
    else name##_by<FORMAT, 1>(block, a, shared);                                              \
  }                                                                                           \
  KERNEL(name, Arguments) {                                                                   \
    /* Here, so that all formats have the same. */                                            \
    SHARED Shared shared[count];                                                              \
    switch (a.format) {                                                                       \
      case FLOAT32: name##_of<FLOAT32>(BLOCK, a, shared); break;                              \
      case BFLOAT16: name##_of<BFLOAT16>(BLOCK, a, shared); break;                            \
      default: name##_of<FLOAT16>(BLOCK, a, shared);                                          \
    }                                                                                         \
  }
