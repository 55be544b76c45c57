// See rms_norm.h.
#include "rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>

namespace rms_norm {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Norm : torch::autograd::Function<Norm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& weight_gradient, double epsilon) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    const auto x = input.to(at::kFloat);
    // One over the root, of each row.
    const auto scales = x.square().mean(-1, true).add_(epsilon).rsqrt_();
    const auto y = x.mul(scales).mul_(weight).to(input.scalar_type());
    context->save_for_backward({input, weight, scales});
    context->saved_data["weight_gradient"] = weight_gradient;
    return {y, input.view_as(input)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto none = at::Tensor();
    if (!gradients[0].defined()) return {gradients[1], none, none, none};
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &scales = saved[2];
    const auto gradient = gradients[0].to(at::kFloat);
    auto normed = input.to(at::kFloat).mul(scales);
    auto product = gradient.mul(normed);
    context->saved_data["weight_gradient"].toTensor().add_(product.reshape({-1, product.size(-1)}).sum(0));
    // What the common scale of a row takes away: the part along the row itself.
    const auto along = product.mul_(weight).mean(-1, true);
    product = none;
    auto out = gradient.mul(weight).sub_(normed.mul_(along)).mul_(scales);
    if (gradients[1].defined()) out.add_(gradients[1]);
    return {out.to(input.scalar_type()), none, none, none};
  }
};

std::vector<at::Tensor> norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  TORCH_CHECK(x.dim() > 0 && x.numel() > 0 && weight.dim() == 1 && weight.numel() == x.size(-1) &&
                  weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
              "a weight of ", weight.sizes(), " ", weight.scalar_type(), " for ", x.sizes(), " ", x.scalar_type());
  const auto gradient = weight.grad();
  TORCH_CHECK(gradient.defined() && gradient.scalar_type() == at::kFloat, "a weight without a gradient in single precision");
  return Norm::apply(x, weight, gradient, epsilon);
}

}  // namespace rms_norm
