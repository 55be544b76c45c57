// See dropout.h. The numbers are those of kernels/dropout.cu.
#include "dropout.h"

#include <torch/csrc/autograd/custom_function.h>

namespace dropout {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Which elements of a row of `elements` stay: Philox in whole tensors of 64-bit numbers, for a device without kernels of our own.
static at::Tensor kept(int64_t elements, uint64_t key, uint64_t threshold, at::Device device) {
  const int64_t low = 0xffffffff;
  const auto counter = at::arange((elements + 3) / 4, at::TensorOptions().dtype(at::kLong).device(device));
  at::Tensor w[4] = {counter.bitwise_and(low), counter.bitwise_right_shift(32), at::zeros_like(counter),
                     at::zeros_like(counter)};
  // Products wrap around; their upper halves are shifted in with the sign, which is masked away.
  const auto upper = [low](const at::Tensor& p) { return p.bitwise_right_shift(32).bitwise_and(low); };
  uint32_t key0 = uint32_t(key), key1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; round++) {
    const auto p0 = w[0].mul(int64_t(0xD2511F53)), p1 = w[2].mul(int64_t(0xCD9E8D57));
    w[0] = upper(p1).bitwise_xor(w[1]).bitwise_xor(int64_t(key0));
    w[1] = p1.bitwise_and(low);
    w[2] = upper(p0).bitwise_xor(w[3]).bitwise_xor(int64_t(key1));
    w[3] = p0.bitwise_and(low);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return at::stack({w[0], w[1], w[2], w[3]}, 1).view({-1}).narrow(0, 0, elements).lt(int64_t(threshold));
}

static at::Tensor by_tensors(const at::Tensor& x, const std::vector<int64_t>& keys, uint64_t threshold, float scale) {
  std::vector<at::Tensor> masks;
  for (const auto key : keys) masks.push_back(kept(x.numel() / keys.size(), uint64_t(key), threshold, x.device()));
  // In single precision: the scale has no exact value in a narrow format, and would be off for all elements alike. What is dropped is 0,
  // whatever it was.
  const auto scaled = x.to(at::kFloat).mul(scale);
  return at::where(at::stack(masks).view(x.sizes()), scaled, at::zeros_like(scaled)).to(x.scalar_type());
}

static at::Tensor by_kernel(const kernels::Launcher& launcher, const at::Tensor& x, const std::vector<int64_t>& keys,
                            uint64_t threshold, float scale) {
  const int64_t all = keys.size(), width = x.numel() / all;
  const auto y = at::empty_like(x);
  for (int64_t first = 0; first < all; first += DROPOUT_ROWS) {
    const int64_t rows = std::min<int64_t>(DROPOUT_ROWS, all - first), skipped = first * width * x.element_size();
    DropoutArguments a{static_cast<const char*>(x.const_data_ptr()) + skipped,
                       static_cast<char*>(y.mutable_data_ptr()) + skipped,
                       rows,
                       width,
                       threshold,
                       scale,
                       kernels::format_of(x),
                       {}};
    std::copy_n(keys.begin() + first, rows, a.keys);
    kernels::launch(launcher, kernels::DROPOUT, rows * kernels::parts(width, kernels::TILE), &a);
  }
  return y;
}

static at::Tensor dropped(const kernels::Launcher* launcher, const at::Tensor& input, const std::vector<int64_t>& keys,
                          double keep) {
  const auto threshold = uint64_t(keep * 4294967296.0);
  const auto scale = float(1.0 / keep);
  const auto x = input.contiguous();
  if (x.numel() == 0) return x;
  return launcher ? by_kernel(*launcher, x, keys, threshold, scale) : by_tensors(x, keys, threshold, scale);
}

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const std::vector<int64_t>& keys, double keep,
                            int64_t launcher) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["keys"] = keys;
    context->saved_data["keep"] = keep;
    context->saved_data["launcher"] = launcher;
    return dropped(kernels::launcher_of(launcher), x, keys, keep);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& saved = context->saved_data;
    const auto* launcher = kernels::launcher_of(saved["launcher"].toInt());
    const auto x_gradient = dropped(launcher, gradients[0], saved["keys"].toIntVector(), saved["keep"].toDouble());
    return {x_gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor drop(const kernels::Launcher* launcher, const at::Tensor& x, const std::vector<int64_t>& keys, double keep) {
  TORCH_CHECK(x.dim() > 0 && x.size(0) == int64_t(keys.size()), "dropout of ", x.sizes(), " with ", keys.size(), " keys");
  return Dropout::apply(x, keys, keep, kernels::number(launcher));
}

}  // namespace dropout
