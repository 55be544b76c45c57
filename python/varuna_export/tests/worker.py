"""Trains an exported folder as a worker does, in plain Python: no code of the user's model, flat buffers, each segment for itself."""

import hashlib
import json
import warnings

import torch
from safetensors.torch import load_file


class Unit:
    """The parameters of a segment, or those that are shared: views of one buffer, with gradients that are views of another."""

    def __init__(self, parameters, values):
        sizes = [torch.Size(p["shape"]).numel() for p in parameters]
        self.values, self.gradients = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
        self.views, self.kinds = {}, {}
        for parameter, begin, size in zip(parameters, offsets(sizes), sizes):
            view = self.values[begin : begin + size].view(parameter["shape"])
            view.copy_(values[parameter["name"]])
            leaf = view.detach().requires_grad_()
            leaf.grad = self.gradients[begin : begin + size].view(parameter["shape"])
            self.views[parameter["name"]], self.kinds[parameter["name"]] = leaf, parameter["kind"]


def offsets(sizes):
    begin = 0
    for size in sizes:
        yield begin
        begin += size


class Worker:
    """All segments of a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.manifest = json.loads((folder / "manifest.json").read_text())
        for name, digest in self.manifest["files"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
        shared = self.manifest["shared"]
        self.shared = Unit(shared["parameters"], self.values(shared))
        self.units = [Unit(segment["parameters"], self.values(segment)) for segment in self.manifest["segments"]]
        self.modules = [self.module(segment, unit) for segment, unit in zip(self.manifest["segments"], self.units)]
        self.loss = load(folder / self.manifest["loss"]["code"])

    def values(self, entry):
        return load_file(self.folder / entry["values"]) if "values" in entry else {}

    def module(self, segment, unit):
        module = load(self.folder / segment["code"])
        for holder, parameters in ((unit, segment["parameters"]), (self.shared, segment["shared"])):
            for parameter in parameters:
                for slot in parameter["slots"]:
                    set_slot(module, slot, holder.views[parameter["name"]])
        assert all(p.numel() > 0 for p in module.parameters()), "a slot was left out"
        return module

    def all_units(self):
        return [*self.units, self.shared]

    def backward(self, rows, scale=1.0):
        """Adds the gradients of a micro-batch to the buffers. Returns the loss of each sample."""
        inputs, outputs = [rows[:, :-1].contiguous()], []
        with torch.jit.optimized_execution(False):
            for module, segment in zip(self.modules, self.manifest["segments"]):
                outputs.append(module(inputs[-1]))
                assert list(outputs[-1].shape[1:]) == segment["output"]
                inputs.append(outputs[-1].detach().requires_grad_())
            losses = self.loss(inputs[-1], rows)
            assert losses.shape == (len(rows),) and losses.dtype == torch.float32
            (losses.sum() * scale).backward()
            for output, value in reversed(list(zip(outputs, inputs[1:]))):
                if output.requires_grad:
                    output.backward(value.grad)
        return losses.detach()

    def step(self, rows, optimizer, micro_batch):
        """One step over a batch. Returns its mean loss before the update."""
        for unit in self.all_units():
            unit.gradients.zero_()
        losses = [self.backward(piece, 1 / len(rows)) for piece in rows.split(micro_batch)]
        optimizer.step()
        return torch.cat(losses).mean().item()

    def named_parameters(self):
        return [(name, view, unit.kinds[name]) for unit in self.all_units() for name, view in unit.views.items()]


def load(file):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.load(file)


def set_slot(module, slot, value):
    *path, last = slot.split(".")
    for step in path:
        module = getattr(module, step)
    setattr(module, last, value)
