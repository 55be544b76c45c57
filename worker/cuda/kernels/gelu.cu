// Bias and GELU (Hendrycks & Gimpel 2016, the form with the tangent) in one pass, and their backward with the bias's gradient in another.
//
// 0.5 (1 + tanh(u)) is the logistic function of 2 u, which takes one exponential.

constexpr float SLOPE = 1.5957691216057308f;  // twice the root of 2 / pi
constexpr float BEND = SLOPE * 0.044715f;

// How much of x goes through: the logistic function of SLOPE x + BEND x^3.
INLINE float gate_of(float x) {
  return quotient(1.0f, 1.0f + exponential(-x * multiply_add(BEND, x * x, SLOPE)));
}

template <int FORMAT, int N>
INLINE void gelu_forward_by(long long row, const GeluArguments& a, float*) {
  const long long at = row * a.width;
  EACH(v, 0, a.width / N) {
    float x[N], bias[N];
    load_all<FORMAT, N>(a.x, at + v * N, x);
    load_all<FORMAT, N>(a.bias, v * N, bias);
    for (int k = 0; k < N; k++) {
      x[k] += bias[k];
      x[k] *= gate_of(x[k]);
    }
    store_all<FORMAT, N>(a.y, at + v * N, x);
  }
}
FOR_FORMATS_AND_VECTORS(gelu_forward, GeluArguments, a.width % VECTOR == 0 && is_aligned(a.x) && is_aligned(a.bias) && is_aligned(a.y), float, 1)

// Some columns of a chunk of rows.
template <int FORMAT, int N>
INLINE void gelu_backward_by(long long block, const GeluBackwardArguments& a, float* sums) {
  const Part part = part_of(block, a.rows, a.width);
  EACH(t, 0, THREADS) {
    for (int k = 0; k < VECTOR; k += N) {
      const long long own = column_of<N>(t, k), column = part.column + own;
      float bias[N] = {}, of_bias[N] = {};
      if (column < a.width) load_all<FORMAT, N>(a.bias, column, bias);
      for (long long row = part.first + t / WARP; row < part.end && column < a.width; row += ROWS) {
        float x[N], gradient[N];
        load_all<FORMAT, N>(a.x, row * a.width + column, x);
        load_all<FORMAT, N>(a.gradient, row * a.width + column, gradient);
        for (int i = 0; i < N; i++) {
          x[i] += bias[i];
          const float gate = gate_of(x[i]), slope = multiply_add(3.0f * BEND, x[i] * x[i], SLOPE);
          gradient[i] *= multiply_add(x[i] * slope, gate * (1.0f - gate), gate);
          of_bias[i] += gradient[i];
        }
        store_all<FORMAT, N>(a.x_gradient, row * a.width + column, gradient);
      }
      for (int i = 0; i < N; i++) sums[t / WARP * COLUMNS + own + i] = of_bias[i];
    }
  }
  add_rows(sums, part, a.width, a.partials);
}
FOR_FORMATS_AND_VECTORS(gelu_backward, GeluBackwardArguments,
                        a.width % VECTOR == 0 && is_aligned(a.x) && is_aligned(a.bias) && is_aligned(a.gradient) && is_aligned(a.x_gradient),
                        float, ROWS * COLUMNS)
