// See head_loss.h. The logits of some rows at a time: what a vocabulary of fifty thousand takes is otherwise more than all else of the
// last stage. Their gradients are made in the same pass, so that no product is computed twice (as in Hsu et al. 2024, "Liger Kernel").
#include "head_loss.h"

#include <ATen/core/grad_mode.h>

namespace head_loss {

// Calls each(first, rows) for all chunks.
template <typename Each>
static void in_chunks(const Job& job, Each each) {
  at::NoGradGuard no_grad;
  const int64_t n = job.x.size(0);
  for (int64_t first = 0; first < n; first += job.chunk) each(first, std::min(job.chunk, n - first));
}

// Logarithms of the probabilities (rows, v) in single precision: a sum over a vocabulary has more terms than a narrow format has
// digits. The losses of these rows are added up. Where there is a cap, `bent` gets what it multiplies.
static at::Tensor log_probabilities(const Job& job, const at::Tensor& x, const at::Tensor& targets, at::Tensor& bent) {
  // Two steps, so that those of a narrow format are free before the softmax is taken.
  auto logits = at::linear(x, job.w).narrow(1, 0, job.vocabulary).to(at::kFloat);
  if (job.cap > 0) {
    bent = logits.div(job.cap).tanh_();
    logits = bent.mul(job.cap);
  }
  const auto logarithms = logits.log_softmax(1);
  const auto own = logarithms.gather(1, targets.unsqueeze(1));
  job.sum.sub_(own.sum(at::kDouble).mul(job.weight));
  return logarithms;
}

void forward(const Job& job) {
  in_chunks(job, [&](int64_t first, int64_t rows) {
    at::Tensor bent;
    log_probabilities(job, job.x.narrow(0, first, rows), job.targets.narrow(0, first, rows), bent);
  });
}

at::Tensor backward(const Job& job, double scale, const at::Tensor& w_gradient) {
  at::Tensor x_gradient = at::empty_like(job.x);
  auto sum = w_gradient;
  in_chunks(job, [&](int64_t first, int64_t rows) {
    const auto x = job.x.narrow(0, first, rows);
    const auto targets = job.targets.narrow(0, first, rows);
    at::Tensor bent;
    auto gradient = log_probabilities(job, x, targets, bent).exp_();
    gradient.scatter_add_(1, targets.unsqueeze(1), at::full({rows, 1}, -1.0, gradient.options()));
    // The slope of the cap is 1 - tanh^2.
    if (bent.defined()) gradient.sub_(bent.square_().mul_(gradient));
    bent = at::Tensor();
    gradient = gradient.mul_(job.weight * scale).to(x.scalar_type());
    const auto more = job.w.size(0) - job.vocabulary;
    if (more > 0) gradient = at::constant_pad_nd(gradient, {0, more});
    auto part = x_gradient.narrow(0, first, rows);
    at::mm_out(part, gradient, job.w);
    if (sum.scalar_type() == gradient.scalar_type() && more == 0) {
      sum.addmm_(gradient.t(), x);
    } else {
      // A product of 16-bit numbers is rounded once; the sum over products keeps single precision.
      sum.add_(gradient.t().mm(x).narrow(0, 0, job.vocabulary));
    }
  });
  return x_gradient;
}

}  // namespace head_loss
