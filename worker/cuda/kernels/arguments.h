// The arguments of each kernel. Rust has the same (src/kernels.rs); a test compares their sizes. Formats: 0 single precision, 1 bfloat16, 2 half.
#ifndef VARUNA_KERNEL_ARGUMENTS
#define VARUNA_KERNEL_ARGUMENTS

// Rows of one launch of dropout: their keys travel with the arguments, so that nothing is copied to the device for them.
constexpr int DROPOUT_ROWS = 256;
// Elements of a block whose squares are summed.
constexpr long long SQUARES = 4096;

// AdamW (Loshchilov & Hutter 2019) over `count` parameters. What follows from the step alone is computed by the host.
struct OptimizerArguments {
  float *weights, *first, *second;
  const float* gradients;
  unsigned short* copy;    // the rounded weights; null where format is 0
  long long count;
  float factor;            // the gradient is multiplied by it: unscaled and clipped
  float beta2, rest1, rest2;  // rest = 1 - beta
  float keep;              // 1 - rate * decay
  float rate;              // divided by the first moment's correction
  float correction2;       // root of the second moment's correction
  float epsilon;
  int format;
};

// SGD with momentum over `count` parameters.
struct MomentumArguments {
  float *weights, *first;
  const float* gradients;
  unsigned short* copy;  // the rounded weights; null where format is 0
  long long count;
  float factor;          // the gradient is multiplied by it: unscaled and clipped
  float momentum, decay, rate;
  int format;
};

// sum = of_product * left right + of_other * other: matrices of rows in one piece, (rows, inner), (inner, columns) and (rows, columns).
struct ProductArguments {
  const float *left, *right;
  const float* other;  // null: nothing is added
  float* sum;          // none of the others
  long long rows, inner, columns;
  float of_product, of_other;
};

// Layer norm of `rows` rows of `width` elements.
struct NormArguments {
  const void *x, *weight, *bias;
  void* y;
  float *means, *deviations;  // of each row; deviations are one over the root of the variance
  long long rows, width;
  float epsilon;
  int format;
};

// Its backward: gradients are of y; `residual` is added to that of x and may be null.
struct NormBackwardArguments {
  const void *x, *weight, *gradient, *residual;
  void* x_gradient;
  const float *means, *deviations;
  float* partials;  // (2, chunks, width): of the weight, of the bias
  long long rows, width;
  int format;
};

// y = gelu(x + bias) by the tangent, as GPT-2 has it.
struct GeluArguments {
  const void *x, *bias;
  void* y;
  long long rows, width;
  int format;
};

struct GeluBackwardArguments {
  const void *x, *bias, *gradient;
  void* x_gradient;
  float* partials;  // (chunks, width): of the bias
  long long rows, width;
  int format;
};

// The sums over the rows of each column, in parts.
struct RowsArguments {
  const void* x;
  float* partials;  // (chunks, width)
  long long rows, width;
  int format;
};

// Adds the sum over `chunks` partials of each column to a gradient; those that follow them to another, which may be null.
struct ColumnsArguments {
  const float* partials;  // (1 or 2, chunks, width)
  float *gradient, *other;
  long long chunks, width;
};

// Cross-entropy of `rows` rows of logits, `stride` elements apart, over the first `width` of them.
struct LossArguments {
  void* logits;              // where `factor` is not 0, replaced by their gradient times it; the rest of a row by zeros
  const long long* targets;  // of each row
  float* losses;             // of each row, in nats; 0 where there is no target; not a number where the target is no column
  long long rows, width, stride;
  float cap;                 // logits are cap * tanh(x / cap); 0: they are x
  float factor;
  long long no_target;       // what stands for a row without a target
  int format;
};

// Sums of the squares of each block of SQUARES elements in double precision, in the tree of worker/torch/src/norm.rs.
struct SquaresArguments {
  const float* values;
  double* sums;  // one for each block
  long long count;
};

// Dropout of `rows` rows of `width` elements, each under a key of its own; at most DROPOUT_ROWS.
struct DropoutArguments {
  const void* x;
  void* y;
  long long rows, width;
  unsigned long long threshold;  // an element stays where its 32 bits are below it
  float scale;                   // of what stays
  int format;
  unsigned long long keys[DROPOUT_ROWS];
};

#endif
