// SGD with momentum in one pass, as torch.optim.SGD without dampening: the decay is part of the gradient. Bits as of the optimizer beside it.

template <int FORMAT>
INLINE void momentum_of(long long block, const MomentumArguments& a) {
  float *__restrict weights = a.weights, *__restrict firsts = a.first;
  const float* __restrict gradients = a.gradients;
  unsigned short* __restrict copy = a.copy;
  const float factor = a.factor, momentum = a.momentum, decay = a.decay, rate = a.rate;
  const long long start = block * TILE, end = smaller(start + TILE, a.count);
  EACH(i, start, end) {
    const float gradient = gradients[i] * factor + decay * weights[i];
    const float first = momentum * firsts[i] + gradient;
    const float weight = weights[i] - rate * first;
    firsts[i] = first;
    weights[i] = weight;
    if (FORMAT == BFLOAT16) copy[i] = to_bfloat16(weight);
    if (FORMAT == FLOAT16) copy[i] = to_float16(weight);
  }
}
FOR_FORMATS(momentum, MomentumArguments)
