// Layers that kernels of our own compute: layer norm with the residual connection's gradient, bias with GELU.
#pragma once
#include <ATen/ATen.h>

namespace fused {

// How a kernel is launched: by Rust, which knows where. Returns 0, or < 0 after writing what is wrong to `why`.
struct Launcher {
  int (*launch)(const void* runner, int kernel, uint64_t blocks, const void* arguments, char* why, size_t why_bytes);
  const void* runner;
};

// x (.., width) normalised, and x itself: the gradients of both come back as one. The gradients of weight and bias, in single precision, are
// added to.
std::vector<at::Tensor> norm(const Launcher& launcher, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             double epsilon);

// gelu(x + bias), in the form with the tangent, of x (.., width). The gradient of the bias is added to.
at::Tensor bias_gelu(const Launcher& launcher, const at::Tensor& x, const at::Tensor& bias);

}  // namespace fused
