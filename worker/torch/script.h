// Modules of TorchScript whose parameters are given to them for each call.
#pragma once
#include <ATen/ATen.h>
#include <string>
#include <vector>

namespace script {

struct Module;

// Reads a module from the bytes of its file. `slots` has, for each parameter in order, the paths of the attributes that hold it ("block.attention.weight").
Module* load(const std::string& bytes, const at::Device& device, const std::vector<std::vector<std::string>>& slots);

// Its forward with these parameters, one tensor. `training` is what its modules read as self.training.
at::Tensor forward(Module& module, const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& inputs, bool training);

void release(Module* module);

}  // namespace script
