// Sums over the rows of a matrix, column by column: gradients of biases and of a norm's parameters. A block sums some columns of a chunk of
// rows, and add_columns the chunks.

struct Part {
  long long chunk, first, end;  // of the rows
  long long column;             // the first
};

INLINE Part part_of(long long block, long long rows, long long width) {
  const long long tiles = (width + COLUMNS - 1) / COLUMNS, chunk = block / tiles;
  return {chunk, chunk * CHUNK, smaller((chunk + 1) * CHUNK, rows), block % tiles * COLUMNS};
}

// Which columns of a part thread t has: N from here on, in each turn k = 0, N, .. below VECTOR.
template <int N>
INLINE long long column_of(long long t, int k) {
  return N == VECTOR ? t % WARP * VECTOR : t % WARP + k * WARP;
}

// Writes the sums over the rows of a part, of which each warp has summed some: (ROWS, COLUMNS).
INLINE void add_rows(const float* sums, const Part& part, long long width, float* partials) {
  SYNC;
  EACH(j, 0, smaller(COLUMNS, width - part.column)) {
    float sum = 0;
    for (long long row = 0; row < ROWS; row++) sum += sums[row * COLUMNS + j];
    partials[part.chunk * width + part.column + j] = sum;
  }
}

template <int FORMAT, int N>
INLINE void sum_rows_by(long long block, const RowsArguments& a, float* sums) {
  const Part part = part_of(block, a.rows, a.width);
  EACH(t, 0, THREADS) {
    for (int k = 0; k < VECTOR; k += N) {
      const long long own = column_of<N>(t, k), column = part.column + own;
      float sum[N] = {};
      for (long long row = part.first + t / WARP; row < part.end && column < a.width; row += ROWS) {
        float x[N];
        load_all<FORMAT, N>(a.x, row * a.width + column, x);
        for (int i = 0; i < N; i++) sum[i] += x[i];
      }
      for (int i = 0; i < N; i++) sums[t / WARP * COLUMNS + own + i] = sum[i];
    }
  }
  add_rows(sums, part, a.width, a.partials);
}
FOR_FORMATS_AND_VECTORS(sum_rows, RowsArguments, a.width % VECTOR == 0 && is_aligned(a.x), float, ROWS * COLUMNS)

// A block adds the chunks of a warp's width of columns, each warp some of them.
KERNEL(add_columns, ColumnsArguments) {
  SHARED float sums[THREADS];
  const long long tiles = (a.width + WARP - 1) / WARP, column = BLOCK % tiles * WARP;
  const float* partials = a.partials + BLOCK / tiles * a.chunks * a.width;
  float* gradient = BLOCK / tiles ? a.other : a.gradient;
  EACH(t, 0, THREADS) {
    const long long j = column + t % WARP;
    float sum = 0;
    for (long long chunk = t / WARP; chunk < a.chunks && j < a.width; chunk += ROWS) sum += partials[chunk * a.width + j];
    sums[t] = sum;
  }
  SYNC;
  EACH(j, 0, smaller(WARP, a.width - column)) {
    float sum = 0;
    for (long long row = 0; row < ROWS; row++) sum += sums[row * WARP + j];
    gradient[column + j] += sum;
  }
}
