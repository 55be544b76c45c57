// A matrix product that is added to what is there.
#pragma once
#include <ATen/ATen.h>

// sum += a b, where `sum` may be single precision and the factors narrower: within the product where that can be (BLAS's beta), which makes
// nothing of the sum's size anew.
inline void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (sum.scalar_type() == a.scalar_type()) {
    sum.addmm_(a, b);
  } else if (sum.is_cuda()) {
    at::addmm_out(sum, sum, a, b, sum.scalar_type());
  } else {
    // The processor has no such product: one of 16-bit numbers is rounded once; the sum over products keeps single precision.
    sum.add_(a.mm(b));
  }
}
