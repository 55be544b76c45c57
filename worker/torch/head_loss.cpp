// See head_loss.h. The logits of some rows at a time: what a vocabulary of fifty thousand takes is otherwise more than all else of the
// last stage. Their gradients are made in the same pass, so that no product is computed twice (as in Hsu et al. 2024, "Liger Kernel").
#include "head_loss.h"

#include <ATen/core/grad_mode.h>

#include "product.h"

namespace head_loss {

// Calls each(first, rows) for all chunks.
template <typename Each>
static void in_chunks(const Job& job, Each each) {
  at::NoGradGuard no_grad;
  const int64_t n = job.x.size(0);
  // A GPU is slow with a rest of few rows; the processor is not, and the planner counts its whole chunks.
  const int64_t chunk = std::min(job.chunk, n), rows = job.launcher && n ? kernels::parts(n, kernels::parts(n, chunk)) : chunk;
  for (int64_t first = 0; first < n; first += rows) each(first, std::min(rows, n - first));
}

// The logits (rows, v or more) of some rows in x's format, after a kernel of our own has added their losses up; where `factor` is not 0 their
// gradients times it instead.
static at::Tensor by_kernel(const Job& job, const at::Tensor& x, const at::Tensor& own_targets, double factor) {
  const auto logits = at::linear(x, job.w, job.bias);
  const auto targets = own_targets.contiguous();
  TORCH_CHECK(targets.scalar_type() == at::kLong, "targets of ", targets.scalar_type());
  const auto losses = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const LossArguments a{logits.mutable_data_ptr(),
                        reinterpret_cast<const long long*>(targets.const_data_ptr<int64_t>()),
                        losses.mutable_data_ptr<float>(),
                        x.size(0),
                        job.vocabulary,
                        logits.size(1),
                        float(job.cap),
                        float(factor),
                        NO_TARGET,
                        kernels::format_of(x)};
  kernels::launch(*job.launcher, kernels::LOSS, x.size(0), &a);
  job.sum.add_(losses.sum(at::kDouble).mul(job.weight));
  return logits;
}

// The rows of these that have no target; undefined where all have one. Only the host can look without waiting.
static at::Tensor without_target(const at::Tensor& targets) {
  const auto found = targets.eq(NO_TARGET);
  return targets.is_cpu() && !found.any().item<bool>() ? at::Tensor() : found;
}

// Logarithms of the probabilities (rows, v) in single precision: a sum over a vocabulary has more terms than a narrow format has
// digits. The losses of these rows are added up. Where there is a cap, `bent` gets what it multiplies.
static at::Tensor log_probabilities(const Job& job, const at::Tensor& x, const at::Tensor& targets, const at::Tensor& without, at::Tensor& bent) {
  // Two steps, so that those of a narrow format are free before the softmax is taken.
  auto logits = at::linear(x, job.w, job.bias).narrow(1, 0, job.vocabulary).to(at::kFloat);
  if (job.cap > 0) {
    bent = logits.div(job.cap).tanh_();
    logits = bent.mul(job.cap);
  }
  const auto logarithms = logits.log_softmax(1);
  auto own = logarithms.gather(1, targets.unsqueeze(1));
  if (without.defined()) own.masked_fill_(without.unsqueeze(1), 0);
  job.sum.sub_(own.sum(at::kDouble).mul(job.weight));
  return logarithms;
}

void forward(const Job& job) {
  in_chunks(job, [&](int64_t first, int64_t rows) {
    const auto x = job.x.narrow(0, first, rows), targets = job.targets.narrow(0, first, rows);
    if (job.launcher) {
      by_kernel(job, x, targets, 0.0);
      return;
    }
    at::Tensor bent;
    const auto without = without_target(targets);
    log_probabilities(job, x, without.defined() ? targets.masked_fill(without, 0) : targets, without, bent);
  });
}

// The gradients (rows, v or more) of some rows' logits times `factor`, in x's format; their losses are added up.
static at::Tensor gradients(const Job& job, const at::Tensor& x, const at::Tensor& own_targets, double factor) {
  if (job.launcher) return by_kernel(job, x, own_targets, factor);
  at::Tensor bent;
  const auto without = without_target(own_targets);
  const auto targets = without.defined() ? own_targets.masked_fill(without, 0) : own_targets;
  auto gradient = log_probabilities(job, x, targets, without, bent).exp_();
  gradient.scatter_add_(1, targets.unsqueeze(1), at::full({x.size(0), 1}, -1.0, gradient.options()));
  // The slope of the cap is 1 - tanh^2.
  if (bent.defined()) gradient.sub_(bent.square_().mul_(gradient));
  bent = at::Tensor();
  if (without.defined()) gradient.mul_(without.logical_not().unsqueeze(1));
  gradient = gradient.mul_(factor).to(x.scalar_type());
  const auto more = job.w.size(0) - job.vocabulary;
  return more > 0 ? at::constant_pad_nd(gradient, {0, more}) : gradient;
}

at::Tensor backward(const Job& job, double scale, const at::Tensor& w_gradient, const at::Tensor& bias_gradient) {
  at::Tensor x_gradient = at::empty_like(job.x);
  auto sum = w_gradient, bias_sum = bias_gradient;
  in_chunks(job, [&](int64_t first, int64_t rows) {
    const auto x = job.x.narrow(0, first, rows);
    const auto gradient = gradients(job, x, job.targets.narrow(0, first, rows), job.weight * scale);
    auto part = x_gradient.narrow(0, first, rows);
    at::mm_out(part, gradient, job.w);
    const auto own = gradient.narrow(1, 0, job.vocabulary);
    add_product(sum, own.t(), x);
    if (bias_sum.defined()) bias_sum.add_(own.sum({0}, false, bias_sum.scalar_type()));
  });
  return x_gradient;
}

}  // namespace head_loss
