"""The loss as a worker calls it: from the last segment's output and whole rows to the loss of each sample."""

from typing import List

import torch
from torch import fx, nn

from .equality import why_other_values
from .script import compile_module, script


class LossOfRows(nn.Module):
    """Takes the targets out of the rows. The loss is a function or a module."""

    def __init__(self, loss, sample):
        super().__init__()
        self.loss, self.sample = loss, sample

    def forward(self, output, rows):
        return self.loss(output, *self.sample.targets(rows))


class EachSample(nn.Module):
    """The losses of samples, by a loss that gives one number: each sample goes by itself, which is right for any micro-batch."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def forward(self, output, rows):
        losses: List[torch.Tensor] = []
        for i in range(output.size(0)):
            losses.append(self.loss(output[i : i + 1], rows[i : i + 1]))
        return torch.stack(losses)


class Tracer(fx.Tracer):
    def is_leaf_module(self, module, name):
        return True


def losses_of(of_rows, is_scalar):
    """The loss of each sample, by the user's code."""

    def losses(output, rows):
        if not is_scalar:
            return of_rows(output, rows)
        return torch.stack([of_rows(output[i : i + 1], rows[i : i + 1]) for i in range(len(rows))])

    return losses


def compile_loss(of_rows, is_scalar, examples, tried):
    """TorchScript of the loss of each sample. `examples` and `tried`: outputs with the rows that they are of, to trace it with and to try it with."""
    try:
        # TorchScript knows no lambdas and no functions with a variable number of arguments; torch.fx sees through them.
        module = fx.GraphModule(of_rows, Tracer().trace(of_rows), class_name="Loss")
    except Exception:
        module = of_rows
    whole = losses_of(of_rows, is_scalar)

    def why_not(scripted):
        return why_other_values(EachSample(scripted) if is_scalar else scripted, whole, tried)

    few = 1 if is_scalar else len(examples[0])
    scripted, _ = compile_module(module, tuple(value[:few] for value in examples), "the loss", why_not)
    return script(EachSample(scripted), ()) if is_scalar else scripted
