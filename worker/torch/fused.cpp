// See fused.h.
#include "fused.h"

#include <torch/csrc/autograd/custom_function.h>

namespace fused {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using kernels::Launcher;
using kernels::add_columns;
using kernels::launch;
using kernels::format_of;
using kernels::parts;

static const Launcher& launcher_of(AutogradContext* context) {
  return *kernels::launcher_of(context->saved_data["launcher"].toInt());
}

// The flat gradient of a parameter, which vt_set_grad gave.
static at::Tensor gradient_of(AutogradContext* context, const char* name, int64_t width) {
  const auto gradient = context->saved_data[name].toTensor();
  TORCH_CHECK(gradient.scalar_type() == at::kFloat && gradient.is_contiguous() && gradient.numel() == width,
              "a gradient of ", width, " elements in single precision is needed");
  return gradient;
}

struct Norm : torch::autograd::Function<Norm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& weight_gradient, const at::Tensor& bias_gradient,
                               int64_t launcher, double epsilon) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    const auto x = input.contiguous();
    const int64_t width = x.size(-1), rows = x.numel() / width;
    const auto y = at::empty_like(x);
    const auto single = x.options().dtype(at::kFloat);
    const auto means = at::empty({rows}, single), deviations = at::empty({rows}, single);
    const NormArguments a{x.const_data_ptr(),  weight.const_data_ptr(),          bias.const_data_ptr(),
                          y.mutable_data_ptr(), means.mutable_data_ptr<float>(), deviations.mutable_data_ptr<float>(),
                          rows,                 width,                           float(epsilon),
                          format_of(x)};
    launch(*kernels::launcher_of(launcher), kernels::NORM_FORWARD, parts(rows, kernels::ROWS), &a);
    context->save_for_backward({x, weight, means, deviations});
    context->saved_data["launcher"] = launcher;
    context->saved_data["weight_gradient"] = weight_gradient;
    context->saved_data["bias_gradient"] = bias_gradient;
    return {y, input.view_as(input)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &means = saved[2], &deviations = saved[3];
    const auto& launcher = launcher_of(context);
    const auto none = at::Tensor();
    if (!gradients[0].defined()) return {gradients[1], none, none, none, none, none, none};
    const auto gradient = gradients[0].contiguous();
    const auto residual = gradients[1].defined() ? gradients[1].contiguous() : none;
    const int64_t width = x.size(-1), rows = x.numel() / width, chunks = parts(rows, kernels::CHUNK);
    const auto x_gradient = at::empty_like(x);
    const auto partials = at::empty({2 * chunks, width}, means.options());
    const NormBackwardArguments a{x.const_data_ptr(),
                                  weight.const_data_ptr(),
                                  gradient.const_data_ptr(),
                                  residual.defined() ? residual.const_data_ptr() : nullptr,
                                  x_gradient.mutable_data_ptr(),
                                  means.const_data_ptr<float>(),
                                  deviations.const_data_ptr<float>(),
                                  partials.mutable_data_ptr<float>(),
                                  rows,
                                  width,
                                  format_of(x)};
    launch(launcher, kernels::NORM_BACKWARD, parts(rows, kernels::ROWS), &a);
    launch(launcher, kernels::NORM_COLUMNS, parts(width, kernels::COLUMNS) * chunks, &a);
    add_columns(launcher, partials, chunks, gradient_of(context, "weight_gradient", width),
                gradient_of(context, "bias_gradient", width));
    return {x_gradient, none, none, none, none, none, none};
  }
};

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& bias,
                            const at::Tensor& bias_gradient, int64_t launcher) {
    at::AutoDispatchBelowADInplaceOrView below;
    const auto x = input.contiguous();
    const auto y = at::empty_like(x);
    const int64_t width = x.size(-1), rows = x.numel() / width;
    const GeluArguments a{x.const_data_ptr(), bias.const_data_ptr(), y.mutable_data_ptr(), rows, width, format_of(x)};
    launch(*kernels::launcher_of(launcher), kernels::GELU_FORWARD, rows, &a);
    context->save_for_backward({x, bias});
    context->saved_data["launcher"] = launcher;
    context->saved_data["bias_gradient"] = bias_gradient;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &bias = saved[1];
    const auto& launcher = launcher_of(context);
    const auto gradient = gradients[0].contiguous();
    const int64_t width = x.size(-1), rows = x.numel() / width, chunks = parts(rows, kernels::CHUNK);
    const auto x_gradient = at::empty_like(x);
    const auto partials = at::empty({chunks, width}, x.options().dtype(at::kFloat));
    const GeluBackwardArguments a{x.const_data_ptr(),
                                  bias.const_data_ptr(),
                                  gradient.const_data_ptr(),
                                  x_gradient.mutable_data_ptr(),
                                  partials.mutable_data_ptr<float>(),
                                  rows,
                                  width,
                                  format_of(x)};
    launch(launcher, kernels::GELU_BACKWARD, parts(width, kernels::COLUMNS) * chunks, &a);
    add_columns(launcher, partials, chunks, gradient_of(context, "bias_gradient", width));
    return {x_gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

static void check(const at::Tensor& x, const at::Tensor& parameter) {
  TORCH_CHECK(x.dim() > 0 && x.numel() > 0 && parameter.numel() == x.size(-1) && parameter.is_contiguous() &&
                  parameter.scalar_type() == x.scalar_type() && parameter.device() == x.device(),
              "a parameter of ", parameter.sizes(), " ", parameter.scalar_type(), " for ", x.sizes(), " ", x.scalar_type());
  TORCH_CHECK(parameter.grad().defined(), "a parameter without a gradient");
}

std::vector<at::Tensor> norm(const Launcher& launcher, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             double epsilon) {
  check(x, weight);
  check(x, bias);
  return Norm::apply(x, weight, bias, weight.grad(), bias.grad(), kernels::number(&launcher), epsilon);
}

at::Tensor bias_gelu(const Launcher& launcher, const at::Tensor& x, const at::Tensor& bias) {
  check(x, bias);
  return BiasGelu::apply(x, bias, bias.grad(), kernels::number(&launcher));
}

}  // namespace fused
