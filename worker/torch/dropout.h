// Dropout whose mask is a function of a key and an element's place.
#pragma once
#include <ATen/ATen.h>

#include "launcher.h"

namespace dropout {

// Each row of x (its first dimension) under a key of its own: an element stays with the probability `keep` and is divided by it, in single
// precision. The backward draws the same numbers anew instead of keeping a mask. Without a launcher, in whole tensors: the same bits.
at::Tensor drop(const kernels::Launcher* launcher, const at::Tensor& x, const std::vector<int64_t>& keys, double keep);

}  // namespace dropout
