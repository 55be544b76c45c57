// A product of matrices, plus another matrix, in single precision. Each element is a sum in the order of the left matrix's columns, so that its bits depend
// neither on the number of threads nor on the width of a processor's vectors. It is made for the host: a GPU's own libraries are far faster.

// Rows and columns of the part of the sum that a block has; Rust has the same.
constexpr long long PRODUCT_ROWS = 32;
constexpr long long PRODUCT_COLUMNS = 64;

// Columns that a thread sums at once, of two rows: what the registers of a processor hold.
constexpr int PRODUCT_WIDTH = 16;

template <int HIGH, int WIDE>
INLINE void product_part(const ProductArguments& a, long long row, long long column) {
  float sums[HIGH][WIDE] = {};
  for (long long k = 0; k < a.inner; k++) {
    const float* __restrict right = a.right + k * a.columns + column;
    for (int i = 0; i < HIGH; i++) {
      const float left = a.left[(row + i) * a.inner + k];
      for (int j = 0; j < WIDE; j++) sums[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < HIGH; i++) {
    const long long start = (row + i) * a.columns + column;
    for (int j = 0; j < WIDE; j++) {
      const float product = a.of_product * sums[i][j];
      a.sum[start + j] = a.other ? product + a.of_other * a.other[start + j] : product;
    }
  }
}

template <int HIGH>
INLINE void product_rows(const ProductArguments& a, long long row, long long column, long long end) {
  for (; column + PRODUCT_WIDTH <= end; column += PRODUCT_WIDTH) product_part<HIGH, PRODUCT_WIDTH>(a, row, column);
  for (; column < end; column++) product_part<HIGH, 1>(a, row, column);
}

KERNEL(product, ProductArguments) {
  const long long across = (a.columns + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS;
  const long long first = BLOCK / across * PRODUCT_ROWS, column = BLOCK % across * PRODUCT_COLUMNS;
  const long long end = smaller(column + PRODUCT_COLUMNS, a.columns);
  EACH(pair, 0, PRODUCT_ROWS / 2) {
    const long long row = first + 2 * pair;
    if (row + 1 < a.rows) product_rows<2>(a, row, column, end);
    else if (row < a.rows) product_rows<1>(a, row, column, end);
  }
}
