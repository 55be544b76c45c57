// Layers that kernels of our own compute: layer norm with the residual connection's gradient, bias with GELU.
#pragma once
#include <ATen/ATen.h>

#include "launcher.h"

namespace fused {

using kernels::Launcher;

// x (.., width) normalised, and x itself: the gradients of both come back as one. The gradients of weight and bias, in single precision, are
// added to.
std::vector<at::Tensor> norm(const Launcher& launcher, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             double epsilon);

// gelu(x + bias), in the form with the tangent, of x (.., width). The gradient of the bias is added to.
at::Tensor bias_gelu(const Launcher& launcher, const at::Tensor& x, const at::Tensor& bias);

}  // namespace fused
