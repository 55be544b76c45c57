// The loss of a head over its vocabulary, without its logits as a whole.
#pragma once
#include <ATen/ATen.h>

#include <optional>

#include "launcher.h"

namespace head_loss {

// A row with this target takes no part in the loss, as in PyTorch's cross_entropy.
constexpr int64_t NO_TARGET = -100;

// What a call adds to, and how much of memory it may take.
struct Job {
  at::Tensor x;        // (n, d), rows of the head's input
  at::Tensor w;        // (v or more, d), in x's format; rows from v on are zeros that no target names
  std::optional<at::Tensor> bias;  // (as many as w has rows), in x's format; added to the logits
  int64_t vocabulary;  // v
  at::Tensor targets;  // (n), rows of w, or NO_TARGET
  double weight;       // of a row's loss in the sum
  at::Tensor sum;      // a scalar in double precision: the weighted losses are added to it
  int64_t chunk;       // rows whose logits exist at once
  double cap;          // logits are cap * tanh(x / cap); 0 = they are x
  const kernels::Launcher* launcher;  // of a kernel of our own; null = libtorch's operators
};

// Adds the weighted cross-entropies (nats).
void forward(const Job& job);

// The same; also adds scale times the gradients of w and the bias to w_gradient (v, d) and bias_gradient (v; undefined = there is no bias), and
// returns scale times that of x.
at::Tensor backward(const Job& job, double scale, const at::Tensor& w_gradient, const at::Tensor& bias_gradient);

}  // namespace head_loss
