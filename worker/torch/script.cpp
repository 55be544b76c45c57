#include "script.h"

#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/script.h>

#include <sstream>

namespace script {
namespace {

// An attribute of an object of the module.
struct Slot {
  c10::intrusive_ptr<c10::ivalue::Object> object;
  size_t number;
};

Slot slot_of(const torch::jit::Module& module, const std::string& path) {
  auto object = module._ivalue();
  std::string rest = path;
  for (;;) {
    const auto dot = rest.find('.');
    const auto name = rest.substr(0, dot);
    const auto number = object->type()->findAttributeSlot(name);
    TORCH_CHECK(number, "the module has no attribute ", path);
    const auto& value = object->getSlot(*number);
    if (dot == std::string::npos) {
      TORCH_CHECK(value.isTensor(), "the attribute ", path, " of the module is no tensor");
      return {object, *number};
    }
    TORCH_CHECK(value.isObject(), "the attribute ", path, " of the module lies in no module");
    object = value.toObject();
    rest = rest.substr(dot + 1);
  }
}

}  // namespace

struct Module {
  torch::jit::Module module;
  // By parameter.
  std::vector<std::vector<Slot>> slots;
  // Its modules that tell training from evaluation, each with what it was exported with: some may never train.
  std::vector<std::pair<torch::jit::Module, bool>> modes;
  bool training = true;
  at::Tensor none;

  void train(bool on) {
    if (training == on) return;
    for (auto& [of, exported] : modes) of.setattr("training", on && exported);
    training = on;
  }

  void set(size_t parameter, const at::Tensor& value) {
    for (auto& slot : slots[parameter]) slot.object->setSlot(slot.number, value);
  }
};

// A parameter is not held beyond a call: its unit may be freed, or have new buffers.
struct Given {
  Module& module;
  ~Given() {
    for (size_t i = 0; i < module.slots.size(); i++) module.set(i, module.none);
  }
};

Module* load(const std::string& bytes, const at::Device& device, const std::vector<std::vector<std::string>>& slots) {
  auto loaded = std::make_unique<Module>();
  std::istringstream stream(bytes);
  loaded->module = torch::jit::load(stream, device);
  loaded->none = at::empty({0}, at::TensorOptions().device(device));
  for (const auto& of : loaded->module.modules())
    if (of.hasattr("training") && of.attr("training").isBool()) loaded->modes.emplace_back(of, of.is_training());
  for (const auto& paths : slots) {
    auto& own = loaded->slots.emplace_back();
    for (const auto& path : paths) own.push_back(slot_of(loaded->module, path));
  }
  return loaded.release();
}

at::Tensor forward(Module& module, const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& inputs, bool training) {
  TORCH_CHECK(parameters.size() == module.slots.size(), parameters.size(), " parameters for a module of ", module.slots.size());
  // The executor that optimises would fuse and differentiate by rules of its own: results would depend on how often the module has run.
  torch::jit::GraphOptimizerEnabledGuard plain(false);
  module.train(training);
  Given given{module};
  for (size_t i = 0; i < parameters.size(); i++) module.set(i, parameters[i]);
  std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  const auto out = module.module.forward(std::move(values));
  TORCH_CHECK(out.isTensor(), "the module's forward returns something other than one tensor");
  return out.toTensor();
}

void release(Module* module) { delete module; }

}  // namespace script
