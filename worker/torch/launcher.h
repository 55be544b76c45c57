// How a kernel of our own is launched: by Rust, which knows where.
#pragma once
#include <ATen/ATen.h>

#include "arguments.h"

namespace kernels {

// Returns 0, or < 0 after writing what is wrong to `why`. Never freed.
struct Launcher {
  int (*launch)(const void* runner, int kernel, uint64_t blocks, const void* arguments, char* why, size_t why_bytes);
  const void* runner;
};

// Numbers of the kernels, as Rust counts them (worker/cuda/src/kernels.rs).
enum Kernel {
  NORM_FORWARD = 1,
  NORM_BACKWARD,
  NORM_COLUMNS,
  ADD_COLUMNS,
  GELU_FORWARD,
  GELU_BACKWARD,
  DROPOUT,
  SUM_ROWS = 9,
  LOSS,
  SQUARES_OF_BLOCKS
};
// As in kernels/prelude.h.
constexpr int64_t WARP = 32, ROWS = 8, CHUNK = 64, COLUMNS = 256, TILE = 2048;

inline int format_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat: return 0;
    case at::kBFloat16: return 1;
    case at::kHalf: return 2;
    default: TORCH_CHECK(false, "no kernel for ", x.scalar_type());
  }
}

inline void launch(const Launcher& launcher, Kernel kernel, int64_t blocks, const void* arguments) {
  char why[256] = "";
  const int code = launcher.launch(launcher.runner, kernel, uint64_t(blocks), arguments, why, sizeof(why));
  TORCH_CHECK(code >= 0, "a kernel was not launched: ", why);
}

inline int64_t parts(int64_t count, int64_t of) { return (count + of - 1) / of; }

// Adds the sums over partials (chunks, width) to a gradient; where there is another, those of as many partials that follow to that.
inline void add_columns(const Launcher& launcher, const at::Tensor& partials, int64_t chunks, const at::Tensor& gradient,
                        const at::Tensor& other = {}) {
  const int64_t width = partials.size(1);
  const ColumnsArguments a{partials.const_data_ptr<float>(), gradient.mutable_data_ptr<float>(),
                           other.defined() ? other.mutable_data_ptr<float>() : nullptr, chunks, width};
  launch(launcher, ADD_COLUMNS, parts(width, WARP) * (other.defined() ? 2 : 1), &a);
}

// Adds the sum over the rows of x (rows, width) to a gradient (width) in single precision.
inline void add_rows(const Launcher& launcher, const at::Tensor& x, const at::Tensor& gradient) {
  const int64_t rows = x.size(0), width = x.size(1), chunks = parts(rows, CHUNK);
  const auto partials = at::empty({chunks, width}, gradient.options());
  const RowsArguments a{x.const_data_ptr(), partials.mutable_data_ptr<float>(), rows, width, format_of(x)};
  launch(launcher, SUM_ROWS, parts(width, COLUMNS) * chunks, &a);
  add_columns(launcher, partials, chunks, gradient);
}

// What a backward keeps of its launcher.
inline int64_t number(const Launcher* launcher) { return reinterpret_cast<int64_t>(launcher); }
inline const Launcher* launcher_of(int64_t number) { return reinterpret_cast<const Launcher*>(number); }

}  // namespace kernels
