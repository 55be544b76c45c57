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
enum Kernel { NORM_FORWARD = 1, NORM_BACKWARD, NORM_COLUMNS, ADD_COLUMNS, GELU_FORWARD, GELU_BACKWARD, DROPOUT };
// As in kernels/prelude.h.
constexpr int64_t THREADS = 256, CHUNK = 64, TILE = 2048;

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

// What a backward keeps of its launcher.
inline int64_t number(const Launcher* launcher) { return reinterpret_cast<int64_t>(launcher); }
inline const Launcher* launcher_of(int64_t number) { return reinterpret_cast<const Launcher*>(number); }

}  // namespace kernels
