// Rotary positions, with a backward that keeps nothing of what it turned.
#pragma once
#include <ATen/ATen.h>

namespace rotary {

// x (b, t, h, e): element i of the first half of each head and element i of the second turn together by the angle whose cosine and
// sine are (t, e / 2), or (b, t, e / 2), in single precision. Computed in single precision and rounded once.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines);

}  // namespace rotary
