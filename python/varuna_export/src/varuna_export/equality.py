"""What is exported computes what the model computes: each segment's TorchScript what the segment does, all in sequence what the whole does."""

import torch

from .checks import TOGETHER, differ, samples, seed
from .error import ExportError, first_line

# Mostly nothing differs at all. Where a parameter is used several times, its gradients may be added in another order.
TOLERANCE = 1e-6
# A gradient that is 0 but for rounding differs from itself by all of it: beside the greatest gradient of all it is nothing.
TOLERANCE_BESIDE_ALL = 1e-7


def why_other_values(found, wanted, inputs):
    """What is wrong with `found`, which should compute what `wanted` does, for one sample and for several. None: nothing."""
    for count in (1, TOGETHER):
        some = [value[:count] for value in inputs]
        seed()
        right = wanted(*some)
        seed()
        if differ(found(*some), right, TOLERANCE):
            return f"it gives other values for {samples(count)} than PyTorch"
    return None


def gradients_of_whole(model, sample, losses, rows):
    seed()
    output = model(*sample.inputs(rows[:, :-1].contiguous()))
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(losses(output, rows).mean(), list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, found):
        if gradient is None:
            raise ExportError(f"the parameter {name} has no part in the loss: take it out of the model")
        if gradient.layout != torch.strided:
            raise ExportError(f"the gradient of the parameter {name} is sparse: make its module without sparse=True")
    return output.detach(), dict(zip(parameters, found))


def gradients_of_segments(modules, loss, rows, parameters):
    """As workers compute them: each segment from an input cut off from what made it, and backwards from the gradient of the next one's input."""
    seed()
    inputs, outputs = [rows[:, :-1].contiguous()], []
    for module in modules:
        outputs.append(module(inputs[-1]))
        inputs.append(outputs[-1].detach().contiguous().requires_grad_())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    (below,) = torch.autograd.grad(loss(inputs[-1], rows).mean(), inputs[-1])
    for value, output in zip(reversed(inputs[:-1]), reversed(outputs)):
        # The first segments may have no parameters.
        if not output.requires_grad:
            break
        wanted = [*parameters.values()] + [value] * value.requires_grad
        found = torch.autograd.grad(output, wanted, below, allow_unused=True)
        for name, gradient in zip(parameters, found):
            if gradient is not None:
                total[name] += gradient
        below = found[-1]
    return outputs[-1].detach(), total


def check_evaluation(model, sample, modules, rows):
    """In evaluation nothing is left out of a model, and a run tells its loss: what is exported must know when it does not train."""
    # Some modules may never be in training: each goes back to what it was.
    modes = [(part, part.training) for module in (model, *modules) for part in module.modules()]
    model.eval()
    try:
        for count in (1, TOGETHER):
            value = given = rows[:count, :-1].contiguous()
            with torch.no_grad():
                seed()
                wanted = model(*sample.inputs(given))
                seed()
                for module in modules:
                    value = module.eval()(value).contiguous()
            if differ(value, wanted, TOLERANCE):
                raise ExportError(
                    f"in evaluation (model.eval()) the segments do not give what {type(model).__name__} gives for {samples(count)}: a forward reads self.training where "
                    "torch.fx follows it, or in a segment that was traced. Move that into a module of its own that has no CutPoint inside, as nn.Dropout is"
                )
    finally:
        for part, training in modes:
            part.training = training


def check_whole(model, sample, losses, modules, loss, rows):
    """`losses`: the loss of each sample, by the user's code. `modules` and `loss`: what is exported."""
    parameters, who = dict(model.named_parameters()), type(model).__name__
    for count in (1, TOGETHER):
        some = rows[:count]
        try:
            output, gradients = gradients_of_whole(model, sample, losses, some)
            found, found_gradients = gradients_of_segments(modules, loss, some, parameters)
        except RuntimeError as error:
            raise ExportError(
                f"{who} has no gradients, whole or cut: {first_line(error)}. An operator may change in place what the backward of another one needs"
            ) from error
        if differ(found, output, TOLERANCE):
            raise ExportError(
                f"the segments one after the other do not give what {who} gives for {samples(count)}: its forward does something while torch.fx follows it "
                "that it does otherwise later. Move that into a module of its own that has no CutPoint inside"
            )
        least = TOLERANCE_BESIDE_ALL * max((float(g.abs().max()) for g in gradients.values()), default=0.0)
        for name, gradient in gradients.items():
            if differ(found_gradients[name], gradient, TOLERANCE, least):
                raise ExportError(
                    f"the segments one after the other do not give the gradient of the parameter {name} that {who} has: "
                    "do not switch gradients off where the model is cut"
                )
