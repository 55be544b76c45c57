// What lets one text be a kernel for a GPU (compiled by NVRTC) and a function of the host.
//
// A kernel is written for a whole block. EACH shares a range out among its threads; on the host one thread does all of it, in order. Nothing
// a thread leaves in a variable of its own outlives an EACH; what other threads need lies in SHARED memory and is read after a SYNC.
// Sums have an order that follows from the shapes alone.

constexpr int THREADS = 256;
// Elements of a block of what has no rows.
constexpr long long TILE = 2048;
// Rows of a chunk, of which a block sums the columns.
constexpr long long CHUNK = 64;

#ifdef __CUDACC_RTC__
#define KERNEL(name, Arguments) extern "C" __global__ void __launch_bounds__(THREADS) name(const Arguments a)
#define BLOCK ((long long)blockIdx.x)
#define INLINE static __device__ __forceinline__
#define EACH(i, first, end) for (long long i = (first) + threadIdx.x; i < (end); i += THREADS)
#define SYNC __syncthreads()
#define SHARED __shared__
INLINE unsigned bits_of(float x) { return __float_as_uint(x); }
INLINE float of_bits(unsigned x) { return __uint_as_float(x); }
#else
#include <cmath>
#include <cstring>
#define KERNEL(name, Arguments) static void name(long long block, const Arguments& a)
#define BLOCK block
#define INLINE static inline
#define EACH(i, first, end) for (long long i = (first); i < (end); i++)
#define SYNC ((void)0)
#define SHARED
INLINE unsigned bits_of(float x) { unsigned b; std::memcpy(&b, &x, 4); return b; }
INLINE float of_bits(unsigned b) { float x; std::memcpy(&x, &b, 4); return x; }
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
