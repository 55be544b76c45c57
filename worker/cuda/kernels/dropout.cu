// Dropout by Philox4x32-10: random numbers that are a function of a key and a counter, so that no generator has a state (Salmon et al. 2011,
// "Parallel random numbers: as easy as 1, 2, 3"; the constants are the paper's). All in whole numbers but one product: the same bits everywhere.

// The four words of a counter under a key.
INLINE void philox(unsigned word[4], unsigned key0, unsigned key1) {
  for (int round = 0; round < 10; round++) {
    const unsigned long long p0 = 0xD2511F53ull * word[0], p1 = 0xCD9E8D57ull * word[2];
    word[0] = (unsigned)(p1 >> 32) ^ word[1] ^ key0;
    word[1] = (unsigned)p1;
    word[2] = (unsigned)(p0 >> 32) ^ word[3] ^ key1;
    word[3] = (unsigned)p0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// A tile of a row: y = x * scale where an element's word is below the threshold, else 0. Element e has word e % 4 of counter e / 4.
template <int FORMAT>
INLINE void dropout_of(long long block, const DropoutArguments& a) {
  const long long tiles = (a.width + TILE - 1) / TILE;
  const long long row = block / tiles, first = (block % tiles) * TILE, at = row * a.width;
  const unsigned key0 = (unsigned)a.keys[row], key1 = (unsigned)(a.keys[row] >> 32);
  // A tile has whole counters.
  EACH(counter, first / 4, (smaller(first + TILE, a.width) + 3) / 4) {
    unsigned word[4] = {(unsigned)counter, (unsigned)(counter >> 32), 0, 0};
    philox(word, key0, key1);
    for (int i = 0; i < 4; i++) {
      const long long e = counter * 4 + i;
      if (e < a.width) store<FORMAT>(a.y, at + e, word[i] < a.threshold ? load<FORMAT>(a.x, at + e) * a.scale : 0.0f);
    }
  }
}
FOR_FORMATS(dropout, DropoutArguments)
