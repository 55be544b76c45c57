// Philox4x32-10: random numbers that are a function of a key and a counter, so that no generator has a state (Salmon et al. 2011,
// "Parallel random numbers: as easy as 1, 2, 3"; the constants are the paper's).
#include "philox.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace philox {

Words words(Words counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < ROUNDS; round++) {
    const uint64_t p0 = uint64_t(MULTIPLIER0) * counter.w[0], p1 = uint64_t(MULTIPLIER1) * counter.w[2];
    counter = {{uint32_t(p1 >> 32) ^ counter.w[1] ^ key0, uint32_t(p1), uint32_t(p0 >> 32) ^ counter.w[3] ^ key1,
                uint32_t(p0)}};
    key0 += WEYL0;
    key1 += WEYL1;
  }
  return counter;
}

// y = x / keep where an element's word is below the threshold, else 0. Element e has word e % 4 of counter e / 4.
template <typename T>
static void drop(const T* x, T* y, int64_t elements, uint64_t key, uint64_t threshold, float scale) {
  const uint32_t key0 = uint32_t(key), key1 = uint32_t(key >> 32);
  for (int64_t from = 0; from < elements; from += 4) {
    const uint64_t counter = uint64_t(from) / 4;
    const Words drawn = words({{uint32_t(counter), uint32_t(counter >> 32), 0, 0}}, key0, key1);
    const int64_t count = elements - from < 4 ? elements - from : 4;
    for (int64_t i = 0; i < count; i++) {
      y[from + i] = T(drawn.w[i] < threshold ? float(x[from + i]) * scale : 0.0f);
    }
  }
}

void drop_row(const float* x, float* y, int64_t elements, uint64_t key, uint64_t threshold, float scale) {
  drop(x, y, elements, key, threshold, scale);
}
void drop_row(const c10::BFloat16* x, c10::BFloat16* y, int64_t elements, uint64_t key, uint64_t threshold, float scale) {
  drop(x, y, elements, key, threshold, scale);
}
void drop_row(const c10::Half* x, c10::Half* y, int64_t elements, uint64_t key, uint64_t threshold, float scale) {
  drop(x, y, elements, key, threshold, scale);
}

}  // namespace philox
