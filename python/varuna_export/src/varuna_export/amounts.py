"""What a segment costs for one sample: operations, and elements of memory. Estimates, from which plans are made.

All is measured with two samples and halved: with one, sizes of 1 hide copies that any other number makes. What does not grow with the samples, as a
mask made anew in each forward, so counts by half. The last segment's amounts have the loss's in them.

* Operations are those that PyTorch's counter knows: products of matrices, convolutions and attention.
* Saved elements are those of the storages that autograd keeps for the backward, each once, without parameters, buffers and the segment's input, with its output.
* Working elements are those of the largest single tensor that forward or backward makes beyond these, gradients of parameters not counted, as these
  do not grow with the samples. At a time there may be two or three such tensors.
"""

from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

SAMPLES = 2


@dataclass
class Amounts:
    """Of one sample."""

    forward_flops: int
    backward_flops: int
    saved_elements: int
    working_elements: int


def run(segments, rows):
    """The input of each segment, and the output of the last one."""
    values = [rows[:, :-1].contiguous()]
    for segment in segments:
        values.append(segment.module(values[-1]).detach())
    return values


def measure(module, before, finish):
    """`before`: the segment's input for SAMPLES samples. `finish`: from the segment's output to the tensor whose sum the backward begins with."""
    parameters = list(module.parameters())
    forward_flops, backward_flops = operations(module, before, finish, parameters)
    saved, working = elements(module, before, finish, parameters)
    halves = [-(-amount // SAMPLES) for amount in (forward_flops, backward_flops, saved, working)]
    return Amounts(*halves)


def as_input(before):
    return before.detach().requires_grad_(before.is_floating_point())


def operations(module, before, finish, parameters):
    given = as_input(before)
    forward_counter, backward_counter = FlopCounterMode(display=False), FlopCounterMode(display=False)
    # The counter does not know the fused attention of processors; by itself attention is two products.
    with sdpa_kernel(SDPBackend.MATH):
        with forward_counter:
            result = finish(module(given))
        with backward_counter:
            if result.requires_grad:
                result.sum().backward()
    for parameter in parameters:
        parameter.grad = None
    return forward_counter.get_total_flops(), backward_counter.get_total_flops()


def key(tensor):
    return tensor.untyped_storage()._cdata


def size(tensor):
    """Elements of the storage that a tensor is of."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


class Made(TorchDispatchMode):
    """Remembers what operators make. It holds all of it, so that no storage takes the place of another."""

    def __init__(self):
        super().__init__()
        self.tensors = {}

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        made = operator(*arguments, **(options or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.tensors.setdefault(key(tensor), tensor.detach())
        return made


def gradients_of(result, given, parameters):
    """Gradients of the parameters; that of the input is made beside them."""
    if not result.requires_grad:
        return []
    wanted = [*parameters] + [given] * given.requires_grad
    gradients = torch.autograd.grad(result.sum(), wanted, allow_unused=True)
    return [g for g in gradients[: len(parameters)] if g is not None]


def elements(module, before, finish, parameters):
    given = as_input(before)
    # Not of the segment: there before it runs.
    known = {key(t) for t in (given, *parameters, *module.buffers())}
    saved = {}

    def keep(tensor):
        saved.setdefault(key(tensor), tensor)
        return tensor

    with Made() as made:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = module(given)
            result = finish(output)
        saved = {k: t for k, t in saved.items() if k not in known}
        gradients = gradients_of(result, given, parameters)
    kept = sum(size(t) for t in saved.values())
    if key(output) not in saved:
        kept += output.numel()
    apart = known | saved.keys() | {key(output)} | {key(g) for g in gradients}
    working = max((size(t) for k, t in made.tensors.items() if k not in apart), default=0)
    return kept, working
