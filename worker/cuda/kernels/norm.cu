// Layer norm (Ba et al. 2016) and its backward, which also adds the gradient that comes around the norm by the residual connection: a pass less
// over what is as large as an activation. Each warp has a row of its own, so that none waits for another.

template <int FORMAT, int N>
INLINE void norm_forward_by(long long block, const NormArguments& a, float*) {
  const float width = (float)a.width;
  EACH_ROW(row, block * ROWS, smaller((block + 1) * ROWS, a.rows)) {
    const long long at = row * a.width;
    float x[N], all = 0;
    EACH_LANE(v, 0, a.width / N) {
      load_all<FORMAT, N>(a.x, at + v * N, x);
      for (int k = 0; k < N; k++) all += x[k];
    }
    const float mean = lanes_sum(all) / width;
    float squares = 0;
    EACH_LANE(v, 0, a.width / N) {
      load_all<FORMAT, N>(a.x, at + v * N, x);
      for (int k = 0; k < N; k++) squares = multiply_add(x[k] - mean, x[k] - mean, squares);
    }
    const float deviation = 1.0f / sqrtf(lanes_sum(squares) / width + a.epsilon);
    EACH_LANE(v, 0, a.width / N) {
      float weight[N], bias[N];
      load_all<FORMAT, N>(a.x, at + v * N, x);
      load_all<FORMAT, N>(a.weight, v * N, weight);
      load_all<FORMAT, N>(a.bias, v * N, bias);
      for (int k = 0; k < N; k++) x[k] = multiply_add((x[k] - mean) * deviation, weight[k], bias[k]);
      store_all<FORMAT, N>(a.y, at + v * N, x);
    }
    EACH_LANE(lane, 0, 1) {
      a.means[row] = mean;
      a.deviations[row] = deviation;
    }
  }
}
FOR_FORMATS_AND_VECTORS(norm_forward, NormArguments,
                        a.width % VECTOR == 0 && is_aligned(a.x) && is_aligned(a.weight) && is_aligned(a.bias) && is_aligned(a.y), float, 1)

template <int FORMAT, int N>
INLINE void norm_backward_by(long long block, const NormBackwardArguments& a, float*) {
  const float width = (float)a.width;
  EACH_ROW(row, block * ROWS, smaller((block + 1) * ROWS, a.rows)) {
    const long long at = row * a.width;
    const float mean = a.means[row], deviation = a.deviations[row];
    float x[N], gradient[N], weight[N], all = 0, products = 0;
    EACH_LANE(v, 0, a.width / N) {
      load_all<FORMAT, N>(a.x, at + v * N, x);
      load_all<FORMAT, N>(a.gradient, at + v * N, gradient);
      load_all<FORMAT, N>(a.weight, v * N, weight);
      for (int k = 0; k < N; k++) {
        gradient[k] *= weight[k];
        all += gradient[k];
        products = multiply_add(gradient[k], (x[k] - mean) * deviation, products);
      }
    }
    const float sum = lanes_sum(all) / width, product = lanes_sum(products) / width;
    EACH_LANE(v, 0, a.width / N) {
      float residual[N] = {};
      load_all<FORMAT, N>(a.x, at + v * N, x);
      load_all<FORMAT, N>(a.gradient, at + v * N, gradient);
      load_all<FORMAT, N>(a.weight, v * N, weight);
      if (a.residual) load_all<FORMAT, N>(a.residual, at + v * N, residual);
      for (int k = 0; k < N; k++) {
        const float normed = (x[k] - mean) * deviation;
        const float own = multiply_add(-normed, product, multiply_add(gradient[k], weight[k], -sum));
        x[k] = multiply_add(deviation, own, residual[k]);
      }
      store_all<FORMAT, N>(a.x_gradient, at + v * N, x);
    }
  }
}
FOR_FORMATS_AND_VECTORS(norm_backward, NormBackwardArguments,
                        a.width % VECTOR == 0 && is_aligned(a.x) && is_aligned(a.weight) && is_aligned(a.gradient) && is_aligned(a.residual) &&
                            is_aligned(a.x_gradient),
                        float, 1)

// What some columns of a chunk of rows add to the gradients of weight and bias.
template <int FORMAT, int N>
INLINE void norm_columns_by(long long block, const NormBackwardArguments& a, float* of_weight) {
  float* of_bias = of_weight + ROWS * COLUMNS;
  const Part part = part_of(block, a.rows, a.width);
  EACH(t, 0, THREADS) {
    for (int k = 0; k < VECTOR; k += N) {
      const long long own = column_of<N>(t, k), column = part.column + own;
      float products[N] = {}, sum[N] = {};
      for (long long row = part.first + t / WARP; row < part.end && column < a.width; row += ROWS) {
        float x[N], gradient[N];
        load_all<FORMAT, N>(a.x, row * a.width + column, x);
        load_all<FORMAT, N>(a.gradient, row * a.width + column, gradient);
        const float mean = a.means[row], deviation = a.deviations[row];
        for (int i = 0; i < N; i++) {
          products[i] = multiply_add(gradient[i], (x[i] - mean) * deviation, products[i]);
          sum[i] += gradient[i];
        }
      }
      const long long place = t / WARP * COLUMNS + own;
      for (int i = 0; i < N; i++) of_weight[place + i] = products[i], of_bias[place + i] = sum[i];
    }
  }
  const long long chunks = (a.rows + CHUNK - 1) / CHUNK;
  add_rows(of_weight, part, a.width, a.partials);
  add_rows(of_bias, part, a.width, a.partials + chunks * a.width);
}
FOR_FORMATS_AND_VECTORS(norm_columns, NormBackwardArguments, a.width % VECTOR == 0 && is_aligned(a.x) && is_aligned(a.gradient), float, 2 * ROWS * COLUMNS)
