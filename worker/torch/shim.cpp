// What tch lacks, as a flat C interface over libtorch's C++ headers.
// Every function returns 0, or < 0 on failure; vt_error() then gives the message. Nothing is thrown through extern "C".
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <string>
#include <torch/csrc/autograd/autograd.h>
#include <vector>

typedef at::Tensor* Handle;
static thread_local std::string message;

template <typename Body>
static int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    message = e.what();
  } catch (...) {
    message = "unknown C++ exception";
  }
  return -1;
}

static std::vector<at::Tensor> list(Handle* handles, int count) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(count);
  for (int i = 0; i < count; i++) tensors.push_back(*handles[i]);
  return tensors;
}

extern "C" {

const char* vt_error() { return message.c_str(); }

// Backward of `count` outputs with given gradients; the graph is freed.
int vt_backward(Handle* outputs, Handle* gradients, int count) {
  return guarded([&] { torch::autograd::backward(list(outputs, count), list(gradients, count), false); });
}

// tensor.grad = gradient: autograd then accumulates into it in place.
int vt_set_grad(Handle tensor, Handle gradient) {
  return guarded([&] { tensor->mutable_grad() = *gradient; });
}

// One fused AdamW step on one flat tensor; `step` is a float32 scalar that the caller has already advanced.
int vt_adamw(Handle weight, Handle gradient, Handle first, Handle second, Handle step, double rate, double beta1,
             double beta2, double decay, double epsilon) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::_fused_adamw_({*weight}, {*gradient}, {*first}, {*second}, {}, {*step}, rate, beta1, beta2, decay, epsilon,
                      false, false);
  });
}

// Fills a tensor with ones (probability `keep`) and zeros from a generator of its own.
int vt_bernoulli(Handle tensor, uint64_t seed, double keep) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    tensor->bernoulli_(keep, at::make_generator<at::CPUGeneratorImpl>(seed));
  });
}

// Fills a tensor with normal numbers from a generator of its own.
int vt_normal(Handle tensor, uint64_t seed, double deviation) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    tensor->normal_(0.0, deviation, at::make_generator<at::CPUGeneratorImpl>(seed));
  });
}

// A float32 tensor over memory that Rust owns; release(context) runs once, when the last view is gone.
int vt_from_memory(float* data, const int64_t* sizes, int dimensions, void (*release)(void*), void* context,
                   Handle* out) {
  return guarded([&] {
    *out = new at::Tensor(at::from_blob(
        data, at::IntArrayRef(sizes, dimensions), [release, context](void*) { release(context); },
        at::TensorOptions().dtype(at::kFloat)));
  });
}

}  // extern "C"
