// Normalisation by the mean square, whose backward adds to the weight's gradient and keeps nothing but the input.
#pragma once
#include <ATen/ATen.h>
#include <vector>

namespace rms_norm {

// x (.., width) by the root of the mean of its squares, times the weight; and x itself: the gradients of both come back as one. The
// gradient of the weight, in single precision, is added to. Computed in single precision and rounded once.
std::vector<at::Tensor> norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

}  // namespace rms_norm
