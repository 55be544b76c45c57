"""What a segment costs for one sample: operations, and elements of memory. Estimates, from which plans are made.

Measured with two samples and halved: with one, sizes of 1 hide copies that any other number makes. What does not grow with the samples, as a
mask made anew in each forward, so counts by half. The last segment's amounts have the loss's in them.

* Operations are those that PyTorch's counter knows: products of matrices, convolutions and attention.
* Saved elements are those of the storages that autograd keeps for the backward, each once, without parameters, buffers and the segment's input, with its output.
* Working elements are the most that are there at a time beyond what is kept at the end of the forward: what operators make, counted until it is freed, a parameter's gradient before it
  is added among them. Those do not grow with the samples, so the amount of one sample alone is taken where it is more than half of that of two. What an operator takes inside is not seen.
"""

import functools
import weakref
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
        values.append(segment.module(values[-1]).detach().contiguous())
    return values


def measure(module, before, finish):
    """`before`: the segment's input for SAMPLES samples. `finish`: from the segment's output to the tensor whose sum the backward begins with."""
    parameters = list(module.parameters())
    forward_flops, backward_flops = operations(module, before, finish, parameters)
    saved = kept_elements(module, before, finish, parameters)
    alone, together = (working_elements(module, before[:count], finish, parameters) for count in (1, SAMPLES))
    forward_flops, backward_flops, saved, working = (-(-amount // SAMPLES) for amount in (forward_flops, backward_flops, saved, together))
    return Amounts(forward_flops, backward_flops, saved, max(working, alone))


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
    """How many float32 take as much memory as the storage that a tensor is of."""
    return -(-tensor.untyped_storage().nbytes() // 4)


class Live(TorchDispatchMode):
    """Counts the elements of what operators make, from then until it is freed."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.storages = {}

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        there = {key(t) for t in tree_leaves((arguments, options)) if isinstance(t, torch.Tensor)}
        made = operator(*arguments, **(options or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and key(tensor) not in there and key(tensor) not in self.storages:
                self.count(tensor)
        return made

    def count(self, tensor):
        storage, elements = tensor.untyped_storage(), size(tensor)
        self.storages[key(tensor)] = weakref.ref(storage, functools.partial(self.freed, key(tensor), elements))
        self.now += elements
        self.most = max(self.most, self.now)

    def freed(self, key, elements, _):
        del self.storages[key]
        self.now -= elements


def kept_elements(module, before, finish, parameters):
    given = as_input(before)
    # Not of the segment: there before it runs.
    known = {key(t) for t in (given, *parameters, *module.buffers())}
    saved = {}

    def keep(tensor):
        saved.setdefault(key(tensor), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(given)
        finish(output)
    kept = sum(size(t) for k, t in saved.items() if k not in known)
    return kept if key(output) in saved else kept + output.numel()


def working_elements(module, before, finish, parameters):
    given = as_input(before)
    # A worker's gradients lie in one place from the beginning, and are added to.
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    with Live() as live:
        result = finish(module(given))
        kept = live.now
        if result.requires_grad:
            # In a worker that of the output comes from the next segment, and lies there as long.
            result.backward(torch.ones_like(result))
    for parameter in parameters:
        parameter.grad = None
    return live.most - kept
