// Layer norm (Ba et al. 2016) and its backward, which also adds the gradient that comes around the norm by the residual connection: a pass less
// over what is as large as an activation.

// Sum over the threads in a fixed tree; every thread gets it.
INLINE float sum_of(float* parts) {
  for (int half = THREADS / 2; half > 0; half /= 2) {
    SYNC;
    EACH(t, 0, half) parts[t] += parts[t + half];
  }
  SYNC;
  const float sum = parts[0];
  SYNC;
  return sum;
}

template <int FORMAT>
INLINE void norm_forward_of(long long row, const NormArguments& a) {
  SHARED float parts[THREADS];
  const long long at = row * a.width;
  const float width = (float)a.width;
  EACH(t, 0, THREADS) {
    float sum = 0;
    for (long long j = t; j < a.width; j += THREADS) sum += load<FORMAT>(a.x, at + j);
    parts[t] = sum;
  }
  const float mean = sum_of(parts) / width;
  EACH(t, 0, THREADS) {
    float sum = 0;
    for (long long j = t; j < a.width; j += THREADS) {
      const float off = load<FORMAT>(a.x, at + j) - mean;
      sum += off * off;
    }
    parts[t] = sum;
  }
  const float deviation = 1.0f / sqrtf(sum_of(parts) / width + a.epsilon);
  EACH(j, 0, a.width) {
    const float normed = (load<FORMAT>(a.x, at + j) - mean) * deviation;
    store<FORMAT>(a.y, at + j, normed * load<FORMAT>(a.weight, j) + load<FORMAT>(a.bias, j));
  }
  EACH(t, 0, 1) {
    a.means[row] = mean;
    a.deviations[row] = deviation;
  }
}
FOR_FORMATS(norm_forward, NormArguments)

template <int FORMAT>
INLINE void norm_backward_of(long long row, const NormBackwardArguments& a) {
  SHARED float parts[THREADS], products[THREADS];
  const long long at = row * a.width;
  const float width = (float)a.width, mean = a.means[row], deviation = a.deviations[row];
  EACH(t, 0, THREADS) {
    float sum = 0, product = 0;
    for (long long j = t; j < a.width; j += THREADS) {
      const float gradient = load<FORMAT>(a.gradient, at + j) * load<FORMAT>(a.weight, j);
      sum += gradient;
      product += gradient * ((load<FORMAT>(a.x, at + j) - mean) * deviation);
    }
    parts[t] = sum;
    products[t] = product;
  }
  const float sum = sum_of(parts) / width, product = sum_of(products) / width;
  EACH(j, 0, a.width) {
    const float normed = (load<FORMAT>(a.x, at + j) - mean) * deviation;
    const float gradient = load<FORMAT>(a.gradient, at + j) * load<FORMAT>(a.weight, j);
    const float own = deviation * (gradient - sum - normed * product);
    store<FORMAT>(a.x_gradient, at + j, a.residual ? own + load<FORMAT>(a.residual, at + j) : own);
  }
}
FOR_FORMATS(norm_backward, NormBackwardArguments)

// The columns of a tile of a chunk of rows: what they add to the gradients of weight and bias.
template <int FORMAT>
INLINE void norm_columns_of(long long block, const NormBackwardArguments& a) {
  const long long tiles = (a.width + THREADS - 1) / THREADS, chunks = (a.rows + CHUNK - 1) / CHUNK;
  const long long chunk = block / tiles, column = (block % tiles) * THREADS;
  const long long first = chunk * CHUNK, end = smaller(first + CHUNK, a.rows);
  EACH(j, column, smaller(column + THREADS, a.width)) {
    float of_weight = 0, of_bias = 0;
    for (long long row = first; row < end; row++) {
      const float gradient = load<FORMAT>(a.gradient, row * a.width + j);
      of_weight += gradient * ((load<FORMAT>(a.x, row * a.width + j) - a.means[row]) * a.deviations[row]);
      of_bias += gradient;
    }
    a.partials[chunk * a.width + j] = of_weight;
    a.partials[(chunks + chunk) * a.width + j] = of_bias;
  }
}
FOR_FORMATS(norm_columns, NormBackwardArguments)

KERNEL(add_columns, ColumnsArguments) {
  const long long column = BLOCK * THREADS;
  EACH(j, column, smaller(column + THREADS, a.width)) {
    float sum = 0;
    for (long long chunk = 0; chunk < a.chunks; chunk++) sum += a.partials[chunk * a.width + j];
    a.gradient[j] += sum;
  }
}
