// Cross-entropy and its gradient, which takes the place of the logits: two passes over what libtorch's operators go over ten times. A block has
// a row. The largest logit and the sum of exponentials are found in one pass (Milakov & Gimelshein 2018, "Online normalizer calculation for
// softmax"). A row without a target has no loss and no gradient.

#define MINUS_INFINITY of_bits(0xff800000u)
#define NOT_A_NUMBER of_bits(0x7fc00000u)

// A logit as the loss has it; `slope` is by how much it changes with what is stored.
INLINE float bent_by(float x, float cap, float& slope) {
  slope = 1.0f;
  if (cap <= 0.0f) return x;
  const float bent = tanhf(x / cap);
  slope = 1.0f - bent * bent;
  return cap * bent;
}

// The largest of some numbers, and the sum of their exponentials over that of the largest.
struct Exponentials {
  float most, sum;
};

INLINE Exponentials both(Exponentials a, Exponentials b) {
  const float most = a.most > b.most ? a.most : b.most;
  // Nothing but minus infinity yet, or what is no number: both sums are 0, or one tells of it.
  if (most == MINUS_INFINITY) return {most, a.sum + b.sum};
  return {most, a.sum * exponential(a.most - most) + b.sum * exponential(b.most - most)};
}

template <int FORMAT, int N>
INLINE void loss_by(long long row, const LossArguments& a, Exponentials* parts) {
  const long long at = row * a.stride;
  EACH(t, 0, THREADS) {
    Exponentials own = {MINUS_INFINITY, 0.0f};
    for (long long v = t; v * N < a.width; v += THREADS) {
      float x[N], slope;
      load_all<FORMAT, N>(a.logits, at + v * N, x);
      float most = own.most;
      for (int k = 0; k < N; k++) {
        // What follows the vocabulary takes no part.
        x[k] = v * N + k < a.width ? bent_by(x[k], a.cap, slope) : MINUS_INFINITY;
        most = x[k] > most ? x[k] : most;
      }
      float sum = 0;
      // A difference of infinities is no number, and what is no number must stay one.
      for (int k = 0; k < N; k++) sum += x[k] == MINUS_INFINITY ? 0.0f : exponential(x[k] - most);
      own = both(own, {most, sum});
    }
    parts[t] = own;
  }
  for (int half = THREADS / 2; half > 0; half /= 2) {
    SYNC;
    EACH(t, 0, half) parts[t] = both(parts[t], parts[t + half]);
  }
  SYNC;
  const Exponentials all = parts[0];
  const long long target = a.targets[row];
  const bool is_column = target >= 0 && target < a.width, is_none = target == a.no_target;
  EACH(t, 0, 1) {
    float slope;
    const float logit = is_column ? bent_by(load<FORMAT>(a.logits, at + target), a.cap, slope) : NOT_A_NUMBER;
    a.losses[row] = is_none ? 0.0f : all.most + logf(all.sum) - logit;
  }
  // The target's logit was read.
  SYNC;
  if (a.factor == 0.0f) return;
  const float scale = 1.0f / all.sum, factor = is_none ? 0.0f : a.factor;
  EACH(v, 0, a.stride / N) {
    float x[N];
    load_all<FORMAT, N>(a.logits, at + v * N, x);
    for (int k = 0; k < N; k++) {
      const long long column = v * N + k;
      float slope;
      const float share = exponential(bent_by(x[k], a.cap, slope) - all.most) * scale;
      x[k] = column < a.width ? ((column == target ? -1.0f : 0.0f) + share) * slope * factor : 0.0f;
    }
    store_all<FORMAT, N>(a.logits, at + v * N, x);
  }
}

FOR_FORMATS_AND_VECTORS(loss, LossArguments, a.stride % VECTOR == 0 && is_aligned(a.logits), Exponentials, THREADS)
