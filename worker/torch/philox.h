// See philox.cpp.
#pragma once
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <cstdint>

namespace philox {

constexpr int ROUNDS = 10;
constexpr uint32_t MULTIPLIER0 = 0xD2511F53, MULTIPLIER1 = 0xCD9E8D57;
constexpr uint32_t WEYL0 = 0x9E3779B9, WEYL1 = 0xBB67AE85;

struct Words {
  uint32_t w[4];
};

// The four words of a counter under a key.
Words words(Words counter, uint32_t key0, uint32_t key1);

// Dropout of one row of elements.
void drop_row(const float* x, float* y, int64_t elements, uint64_t key, uint64_t threshold, float scale);
void drop_row(const c10::BFloat16* x, c10::BFloat16* y, int64_t elements, uint64_t key, uint64_t threshold, float scale);
void drop_row(const c10::Half* x, c10::Half* y, int64_t elements, uint64_t key, uint64_t threshold, float scale);

}  // namespace philox
