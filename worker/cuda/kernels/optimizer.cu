// One pass over a unit's flat buffers instead of four: unscale and clip, AdamW, the 16-bit copy. All holders of a unit, on whatever device,
// must come to the same bits: products and sums are not contracted (a compiler's option), root and quotient are IEEE's.

template <int FORMAT>
INLINE void optimizer_of(long long block, const OptimizerArguments& a) {
  float *__restrict weights = a.weights, *__restrict firsts = a.first, *__restrict seconds = a.second;
  const float* __restrict gradients = a.gradients;
  unsigned short* __restrict copy = a.copy;
  const float factor = a.factor, beta2 = a.beta2, rest1 = a.rest1, rest2 = a.rest2;
  const float keep = a.keep, rate = a.rate, correction2 = a.correction2, epsilon = a.epsilon;
  const long long start = block * TILE, end = smaller(start + TILE, a.count);
  EACH(i, start, end) {
    const float gradient = gradients[i] * factor;
    const float first = firsts[i] + rest1 * (gradient - firsts[i]);
    const float second = beta2 * seconds[i] + (rest2 * gradient) * gradient;
    const float weight = weights[i] * keep - (rate * first) / (sqrtf(second) / correction2 + epsilon);
    firsts[i] = first;
    seconds[i] = second;
    weights[i] = weight;
    if (FORMAT == BFLOAT16) copy[i] = to_bfloat16(weight);
    if (FORMAT == FLOAT16) copy[i] = to_float16(weight);
  }
}
FOR_FORMATS(optimizer, OptimizerArguments)
