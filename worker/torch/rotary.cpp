// See rotary.h.
#include "rotary.h"

#include <torch/csrc/autograd/custom_function.h>

namespace rotary {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// `direction` is 1, or -1 for the way back.
static at::Tensor turned(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines, double direction) {
  const int64_t half = x.size(-1) / 2;
  const auto cosine = cosines.unsqueeze(-2), sine = sines.unsqueeze(-2);
  const auto first = x.narrow(-1, 0, half).to(at::kFloat), second = x.narrow(-1, half, half).to(at::kFloat);
  auto out = at::empty(x.sizes(), x.options());
  out.narrow(-1, 0, half).copy_(first.mul(cosine).addcmul_(second, sine, -direction));
  out.narrow(-1, half, half).copy_(second.mul(cosine).addcmul_(first, sine, direction));
  return out;
}

struct Rotate : torch::autograd::Function<Rotate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["cosines"] = cosines;
    context->saved_data["sines"] = sines;
    return turned(x, cosines, sines, 1.0);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& saved = context->saved_data;
    return {turned(gradients[0], saved["cosines"].toTensor(), saved["sines"].toTensor(), -1.0), at::Tensor(), at::Tensor()};
  }
};

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const bool of_samples = cosines.dim() == 3;
  TORCH_CHECK(x.dim() == 4 && x.size(3) % 2 == 0 && (of_samples || cosines.dim() == 2) && cosines.sizes() == sines.sizes() &&
                  (!of_samples || cosines.size(0) == x.size(0)) && cosines.size(-2) == x.size(1) && 2 * cosines.size(-1) == x.size(3) &&
                  cosines.device() == x.device() &&
                  cosines.scalar_type() == at::kFloat && sines.scalar_type() == at::kFloat,
              "angles of ", cosines.sizes(), " and ", sines.sizes(), " ", cosines.scalar_type(), " for ", x.sizes());
  return Rotate::apply(x, cosines, sines);
}

}  // namespace rotary
