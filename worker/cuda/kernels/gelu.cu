// Bias and GELU (Hendrycks & Gimpel 2016, the form with the tangent) in one pass, and their backward with the bias's gradient in another.

constexpr float ROOT = 0.7978845608028654f;  // of 2 / pi
constexpr float CUBE = 0.044715f;

template <int FORMAT>
INLINE void gelu_forward_of(long long row, const GeluArguments& a) {
  const long long at = row * a.width;
  EACH(j, 0, a.width) {
    const float x = load<FORMAT>(a.x, at + j) + load<FORMAT>(a.bias, j);
    store<FORMAT>(a.y, at + j, 0.5f * x * (1.0f + tanhf(ROOT * (x + CUBE * x * x * x))));
  }
}
FOR_FORMATS(gelu_forward, GeluArguments)

// The columns of a tile of a chunk of rows, as norm_columns.
template <int FORMAT>
INLINE void gelu_backward_of(long long block, const GeluBackwardArguments& a) {
  const long long tiles = (a.width + THREADS - 1) / THREADS;
  const long long chunk = block / tiles, column = (block % tiles) * THREADS;
  const long long first = chunk * CHUNK, end = smaller(first + CHUNK, a.rows);
  EACH(j, column, smaller(column + THREADS, a.width)) {
    const float bias = load<FORMAT>(a.bias, j);
    float of_bias = 0;
    for (long long i = first * a.width + j; i < end * a.width; i += a.width) {
      const float x = load<FORMAT>(a.x, i) + bias;
      const float tangent = tanhf(ROOT * (x + CUBE * x * x * x));
      const float inner = (1.0f - tangent * tangent) * ROOT * (1.0f + 3.0f * CUBE * x * x);
      const float gradient = load<FORMAT>(a.gradient, i) * (0.5f * (1.0f + tangent) + 0.5f * x * inner);
      store<FORMAT>(a.x_gradient, i, gradient);
      of_bias += gradient;
    }
    a.partials[chunk * a.width + j] = of_bias;
  }
}
FOR_FORMATS(gelu_backward, GeluBackwardArguments)
