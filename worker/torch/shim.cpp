// What tch lacks, as a flat C interface over libtorch's C++ headers.
// Every function that can fail returns 0, or < 0 on failure; vt_error() then gives the message. Nothing is thrown through extern "C".
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <cstring>
#include <dlfcn.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <vector>

#include "dropout.h"
#include "fused.h"
#include "head_loss.h"
#include "product.h"
#include "rms_norm.h"
#include "rotary.h"
#include "script.h"

typedef at::Tensor* Handle;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
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

// y = x w' + b, whose backward adds the gradients of w and b to the given tensors. The gradients may be single precision where x, w and b are
// narrower. With a launcher a kernel of our own makes that of b.
struct Linear : torch::autograd::Function<Linear> {
  // An optional, because an undefined tensor among the arguments is an error.
  typedef std::optional<at::Tensor> Maybe;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& w, const Maybe& b,
                            const at::Tensor& w_gradient, const Maybe& b_gradient, int64_t launcher) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, w});
    context->saved_data["launcher"] = launcher;
    context->saved_data["w_gradient"] = w_gradient;
    if (b_gradient) context->saved_data["b_gradient"] = *b_gradient;
    return at::linear(x, w, b);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &w = saved[1];
    const auto y_gradient = gradients[0].reshape({-1, w.size(0)});
    auto w_gradient = context->saved_data["w_gradient"].toTensor();
    add_product(w_gradient, y_gradient.t(), x.reshape({-1, w.size(1)}));
    const auto b_gradient = context->saved_data.find("b_gradient");
    if (b_gradient != context->saved_data.end()) {
      auto sum = b_gradient->second.toTensor();
      const auto* launcher = kernels::launcher_of(context->saved_data["launcher"].toInt());
      if (launcher && sum.scalar_type() == at::kFloat && sum.is_contiguous()) {
        kernels::add_rows(*launcher, y_gradient.contiguous(), sum);
      } else {
        sum.add_(y_gradient.sum({0}, false, sum.scalar_type()));
      }
    }
    at::Tensor x_gradient;
    if (context->needs_input_grad(0)) x_gradient = y_gradient.mm(w).view(x.sizes());
    return {x_gradient, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Rows of a table; the backward adds to the rows that were looked up, in order, and touches no others.
struct Lookup : torch::autograd::Function<Lookup> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& table, const at::Tensor& rows,
                            const at::Tensor& gradient) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({rows});
    context->saved_data["gradient"] = gradient;
    return at::embedding(table, rows);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto rows = context->get_saved_variables()[0].reshape({-1});
    auto gradient = context->saved_data["gradient"].toTensor();
    gradient.index_add_(0, rows, gradients[0].reshape({-1, gradient.size(1)}).to(gradient.scalar_type()));
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

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

// See Linear; the launcher and b may be null. The gradients are those that vt_set_grad gave.
int vt_linear(const kernels::Launcher* launcher, Handle x, Handle w, Handle b, Handle* out) {
  return guarded([&] {
    const auto bias = b ? Linear::Maybe(*b) : std::nullopt, gradient = b ? Linear::Maybe(b->grad()) : std::nullopt;
    *out = new at::Tensor(Linear::apply(*x, *w, bias, w->grad(), gradient, kernels::number(launcher)));
  });
}

// See Lookup. The gradient is the one that vt_set_grad gave.
int vt_lookup(Handle table, Handle rows, Handle* out) {
  return guarded([&] { *out = new at::Tensor(Lookup::apply(*table, *rows, table->grad())); });
}

// See head_loss.h; the launcher may be null, and so may the bias with its gradient. Without `x_gradient` only the loss is added.
int vt_head_loss(const kernels::Launcher* launcher, Handle x, Handle w, Handle w_gradient, Handle bias, Handle bias_gradient, Handle targets, double weight,
                 Handle sum, int64_t chunk, double cap, double scale, Handle* x_gradient) {
  return guarded([&] {
    const auto vocabulary = w_gradient->size(0), more = w->size(0) - vocabulary;
    std::optional<at::Tensor> added;
    if (bias) added = more > 0 ? at::constant_pad_nd(bias->detach(), {0, more}) : bias->detach();
    const head_loss::Job job{x->detach(), w->detach(), added, vocabulary, *targets, weight, *sum, chunk, cap, launcher};
    if (x_gradient) {
      *x_gradient = new at::Tensor(head_loss::backward(job, scale, *w_gradient, bias_gradient ? *bias_gradient : at::Tensor()));
    } else {
      head_loss::forward(job);
    }
  });
}

// See fused.h; the second output is x.
int vt_norm(const kernels::Launcher* launcher, Handle x, Handle weight, Handle bias, double epsilon, Handle* out) {
  return guarded([&] {
    const auto both = fused::norm(*launcher, *x, *weight, *bias, epsilon);
    for (int i = 0; i < 2; i++) out[i] = new at::Tensor(both[i]);
  });
}

// See fused.h.
int vt_bias_gelu(const kernels::Launcher* launcher, Handle x, Handle bias, Handle* out) {
  return guarded([&] { *out = new at::Tensor(fused::bias_gelu(*launcher, *x, *bias)); });
}

// See rms_norm.h; the second output is x.
int vt_rms_norm(Handle x, Handle weight, double epsilon, Handle* out) {
  return guarded([&] {
    const auto both = rms_norm::norm(*x, *weight, epsilon);
    for (int i = 0; i < 2; i++) out[i] = new at::Tensor(both[i]);
  });
}

// See rotary.h.
int vt_rotate(Handle x, Handle cosines, Handle sines, Handle* out) {
  return guarded([&] { *out = new at::Tensor(rotary::rotate(*x, *cosines, *sines)); });
}

// The sums of squares of each block of a flat tensor's elements but the last `tail`, then those last ones; in double precision. src/norm.rs says
// in which order is summed. `block` is a power of two; the launcher may be null.
int vt_block_squares(const kernels::Launcher* launcher, Handle values, int64_t block, int64_t tail, Handle* out) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    // What is computed at once: the squares take four times the memory of the elements.
    const int64_t chunk = std::max<int64_t>(int64_t(1) << 24, block);
    const auto flat = values->reshape({-1});
    const int64_t count = flat.numel() - tail;
    TORCH_CHECK(count >= 0, "a tensor of ", flat.numel(), " elements has no tail of ", tail);
    if (launcher) {
      TORCH_CHECK(block == SQUARES, "squares of blocks of ", block, " elements by a kernel for ", SQUARES);
      TORCH_CHECK(flat.scalar_type() == at::kFloat, "squares of ", flat.scalar_type());
      const int64_t blocks = kernels::parts(count, block);
      const auto all = at::empty({blocks + tail}, flat.options().dtype(at::kDouble));
      all.narrow(0, blocks, tail).copy_(flat.narrow(0, count, tail));
      const SquaresArguments a{flat.const_data_ptr<float>(), all.mutable_data_ptr<double>(), count};
      if (blocks) kernels::launch(*launcher, kernels::SQUARES_OF_BLOCKS, blocks, &a);
      *out = new at::Tensor(all);
      return;
    }
    std::vector<at::Tensor> sums;
    for (int64_t first = 0; first < count; first += chunk) {
      auto part = flat.narrow(0, first, std::min(chunk, count - first));
      const int64_t missing = (block - part.numel() % block) % block;
      if (missing) part = at::constant_pad_nd(part, {0, missing});
      auto rows = part.view({-1, block});
      const auto squares = [&](int64_t start) {
        auto half = rows.narrow(1, start, block / 2).to(at::kDouble);
        return half.mul_(half);
      };
      auto sum = squares(0).add_(squares(block / 2));
      for (int64_t width = block / 4; width > 0; width /= 2) sum = sum.narrow(1, 0, width).add(sum.narrow(1, width, width));
      sums.push_back(sum.view({-1}));
    }
    sums.push_back(flat.narrow(0, count, tail).to(at::kDouble));
    *out = new at::Tensor(at::cat(sums));
  });
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

// See dropout.h; there are as many keys as rows, and the launcher may be null.
int vt_dropout(const kernels::Launcher* launcher, Handle x, const uint64_t* keys, int rows, double keep, Handle* out) {
  return guarded([&] {
    const std::vector<int64_t> list(keys, keys + rows);
    *out = new at::Tensor(dropout::drop(launcher, *x, list, keep));
  });
}

// Fills a tensor with normal numbers from a generator of its own.
int vt_normal(Handle tensor, uint64_t seed, double deviation) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    tensor->normal_(0.0, deviation, at::make_generator<at::CPUGeneratorImpl>(seed));
  });
}

// One heap that neither maps large blocks singly nor gives freed memory back to the system.
void vt_keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  // Never: the C library makes it the largest size there is. INT_MAX would give back what is freed at once above 2 GiB.
  mallopt(M_TRIM_THRESHOLD, -1);
  // A thread's own heap has a limit below the size of large tensors, which would be mapped singly again.
  mallopt(M_ARENA_MAX, 1);
#endif
}

// Gives whole free pages of the heap back to the system, whatever the settings above say of memory that is freed.
void vt_return_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// Bytes that are taken from the heap now; 0 where the C library does not say.
uint64_t vt_taken_bytes() {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return 0;
#endif
}

// The most bytes that tensors of this process ever had on a GPU; 0 where none has been there, or libtorch has no GPU.
int vt_most_taken_by_tensors(int gpu, uint64_t* bytes) {
  return guarded([&] {
    *bytes = 0;
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
    if (!allocator || !allocator->initialized()) return;
    const auto stats = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(gpu));
    const auto aggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *bytes = static_cast<uint64_t>(stats.allocated_bytes[aggregate].peak);
  });
}

// Gives memory of GPUs that no tensor has back to the driver; nothing where no tensor has been on one.
int vt_release_cached() {
  return guarded([] {
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
    if (allocator && allocator->initialized()) allocator->emptyCache();
  });
}

// Makes libtorch's CUDA part known, which registers itself. Global, as it and what it needs look each other's symbols up.
int vt_load_cuda() {
  return guarded([] {
    if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) {
      const char* why = dlerror();
      throw std::runtime_error(why ? why : "libtorch_cuda.so cannot be loaded");
    }
  });
}

// Which way libtorch takes for attention of these, causal, with a mask, or of all tokens: a number of at::SDPBackend.
int vt_attention(Handle q, Handle k, Handle v, Handle mask, int causal, int64_t* way) {
  return guarded([&] {
    const auto given = mask ? std::optional<at::Tensor>(*mask) : std::nullopt;
    *way = at::_fused_sdp_choice(*q, *k, *v, given, 0.0, causal != 0);
  });
}

// Allows the ways whose numbers are set in the bits, and no others.
int vt_allow_attention(int ways) {
  return guarded([&] {
    const auto allows = [&](at::SDPBackend way) { return (ways >> static_cast<int>(way) & 1) != 0; };
    auto& context = at::globalContext();
    context.setSDPUseMath(allows(at::SDPBackend::math));
    context.setSDPUseFlash(allows(at::SDPBackend::flash_attention));
    context.setSDPUseMemEfficient(allows(at::SDPBackend::efficient_attention));
    context.setSDPUseCuDNN(allows(at::SDPBackend::cudnn_attention));
  });
}

// A copy of a tensor's elements, in their order, to host memory of this many bytes.
int vt_copy_out(Handle tensor, void* to, size_t bytes) {
  return guarded([&] {
    const auto elements = tensor->to(at::kCPU).contiguous();
    TORCH_CHECK(elements.nbytes() == bytes, "a tensor of ", elements.nbytes(), " bytes for memory of ", bytes);
    std::memcpy(to, elements.const_data_ptr(), bytes);
  });
}

// A tensor over memory that Rust owns; release(context) runs once, when the last view is gone.
int vt_from_memory(void* data, int scalar_type, const int64_t* sizes, int dimensions, void (*release)(void*),
                   void* context, Handle* out) {
  return guarded([&] {
    *out = new at::Tensor(at::from_blob(
        data, at::IntArrayRef(sizes, dimensions), [release, context](void*) { release(context); },
        at::TensorOptions().dtype(static_cast<at::ScalarType>(scalar_type))));
  });
}

// A module of TorchScript, from the bytes of its file. `counts` says how many of `paths`, which follow each other, hold each parameter. Device: a GPU's number, or -1.
int vt_script_load(const char* bytes, size_t size, int gpu, const char* const* paths, const int* counts, int parameters, script::Module** out) {
  return guarded([&] {
    std::vector<std::vector<std::string>> slots(parameters);
    for (int i = 0; i < parameters; i++)
      for (int j = 0; j < counts[i]; j++) slots[i].emplace_back(*paths++);
    *out = script::load(std::string(bytes, size), gpu < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu)), slots);
  });
}

int vt_script_forward(script::Module* module, Handle* parameters, int parameter_count, Handle* inputs, int input_count, bool training,
                      Handle* out) {
  return guarded([&] {
    *out = new at::Tensor(script::forward(*module, list(parameters, parameter_count), list(inputs, input_count), training));
  });
}

void vt_script_release(script::Module* module) { script::release(module); }

}  // extern "C"
