"""What is refused of a model and its loss, each with its reason. Everything is tried with random samples, alone and some together.

Nothing here changes a model, but for what its own forward changes, which is why a copy is tried.
"""

import torch
from torch import nn

from .error import ExportError, first_line

TOGETHER = 3
# What other samples may change: other sizes have other kernels, which round differently.
SAMPLE_TOLERANCE = 1e-4
SEED = 20220405
# Limits of a job file.
SEGMENTS_MAX, DIMENSIONS_MAX, SIZE_MAX = 1024, 8, 1 << 20


def seed():
    torch.default_generator.manual_seed(SEED)


def samples(count):
    return "one random sample" if count == 1 else f"{count} random samples"


def differ(found, wanted, tolerance, least=0.0):
    """Whether tensors differ by more than a share of the greatest element, and by more than `least`. Numbers that are not finite always do."""
    if torch.equal(found, wanted):
        return False
    if found.shape != wanted.shape:
        return True
    return not (found - wanted).abs().max() <= max(tolerance * wanted.abs().max(), least)


def check_original(model):
    """What the copy that is exported would be without: memory that parameters share, and hooks on their gradients."""
    spans = []
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ExportError(f"the parameter {name} has no shape yet: run the model once before it is exported")
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ExportError(f"the parameter {name} has a hook on its gradient, which workers would not call: compute the same in the forward or the loss")
        begin, length = parameter.data_ptr(), parameter.numel() * parameter.element_size()
        spans.append((str(parameter.device), begin, begin + length, name))
    spans.sort()
    for (device, _, end, name), (other_device, begin, _, other) in zip(spans, spans[1:]):
        if device == other_device and 0 < begin < end:
            raise ExportError(
                f"the parameters {name} and {other} share memory without being the same parameter, and workers would train each by itself: "
                "assign the parameter itself, as in head.weight = embedding.weight"
            )


def check_parameters(model):
    """What can be seen before anything runs."""
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise ExportError(f"the parameter {name} is {parameter.dtype}, and must be torch.float32: convert the model with model.float()")
        if parameter.numel() == 0:
            raise ExportError(f"the parameter {name} has no elements: take it out of the model")
        if not parameter.requires_grad:
            raise ExportError(
                f"the parameter {name} requires no gradient, and workers train every parameter: make it a buffer (register_buffer), or let it be trained"
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            raise ExportError(
                f"the {type(module).__name__} {name} has running statistics, which would differ between workers: take GroupNorm or LayerNorm, "
                "or track_running_stats=False with allow_plan_dependent=True"
            )


def check_loss_parameters(loss):
    for name, _ in loss.named_parameters():
        raise ExportError(f"the loss has the parameter {name}, which no segment would train: move it into the model")


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).clone()


def first_changed(before, after):
    """The name of the first tensor that is gone or has other bits."""
    after = dict(after)
    return next((name for name, was in before.items() if name not in after or not torch.equal(bits(after[name]), was)), None)


def try_model(model, sample, rows):
    """Runs the whole model. Its parameters, its buffers and its input must stay as they are. Returns the output."""
    given = rows[:, :-1].contiguous()
    parameters = {name: bits(parameter) for name, parameter in model.named_parameters()}
    buffers = {name: bits(buffer) for name, buffer in model.named_buffers()}
    seed()
    try:
        output = model(*sample.inputs(given))
    except Exception as error:
        what = f"{type(model).__name__} fails with {samples(len(rows))}: {first_line(error)}"
        raise ExportError(f"{what}. It must take any number of samples of this kind") from error
    if (name := first_changed(parameters, model.named_parameters())) is not None:
        raise ExportError(
            f"a forward changes the parameter {name}, as nn.Embedding does with max_norm, and it would differ between workers: "
            "let the optimizer alone change it, and compute what the forward needs anew each time"
        )
    if (name := first_changed(buffers, model.named_buffers())) is not None:
        raise ExportError(
            f"a forward changes the buffer {name}, which would differ between workers: keep it constant, or compute it anew in each forward"
        )
    if not torch.equal(given, rows[:, :-1]):
        raise ExportError(f"a forward of {type(model).__name__} changes its input: take operators that make a new tensor")
    check_output(type(model).__name__, output, len(rows))
    return output.detach()


def check_output(what, output, count):
    if not isinstance(output, torch.Tensor):
        raise ExportError(f"{what} gives a {type(output).__name__}, not one tensor: give the output alone, and the loss to export()")
    if output.dtype != torch.float32:
        raise ExportError(f"{what} gives {output.dtype}, and must give torch.float32")
    shape = tuple(output.shape)
    if not 2 <= len(shape) <= 1 + DIMENSIONS_MAX or shape[0] != count or not all(1 <= size <= SIZE_MAX for size in shape):
        raise ExportError(
            f"{what} gives the shape {shape} for {samples(count)}: "
            f"the first size must be the samples, and 1 to {DIMENSIONS_MAX} sizes from 1 to {SIZE_MAX} follow"
        )
    if not output.isfinite().all():
        raise ExportError(f"{what} gives numbers that are not finite for random samples")


def check_losses(of_rows, output, rows, sample):
    """Tries the loss with random targets, and with such of which many are one and the same: some losses leave one out, or weigh it."""
    is_scalar = check_loss(of_rows, output, rows)
    for value in sample.target_values():
        check_loss(of_rows, output, sample.uneven(rows, value))
    return is_scalar


def check_loss(of_rows, output, rows):
    """Whether the loss gives one number for all samples, which must be their mean, and not one for each."""
    state = torch.default_generator.get_state()
    before = rows.clone()
    try:
        together = of_rows(output, rows)
        alone = [of_rows(output[i : i + 1], rows[i : i + 1]) for i in range(len(rows))]
    except Exception as error:
        raise ExportError(
            f"the loss fails with {samples(len(rows))}: {first_line(error)}. If a field has fewer values than the record, say so: Field(..., values=10)"
        ) from error
    if not torch.equal(rows, before):
        raise ExportError("the loss changes its targets: take operators that make a new tensor")
    if not torch.equal(torch.default_generator.get_state(), state):
        raise ExportError("the loss draws random numbers: draw them in the model")
    is_tensor = isinstance(together, torch.Tensor) and together.dtype == torch.float32
    if not is_tensor or together.shape not in ((), (len(rows),)) or any(loss.numel() != 1 for loss in alone):
        found = f"{together.dtype} of the shape {tuple(together.shape)}" if isinstance(together, torch.Tensor) else f"a {type(together).__name__}"
        raise ExportError(
            f"the loss gives {found} for {samples(len(rows))}: it must give one torch.float32 for each sample, or one that is their mean"
        )
    alone = torch.cat([loss.reshape(1) for loss in alone])
    if not alone.isfinite().all():
        raise ExportError("the loss of a random sample is not finite, as where all of its targets are left out (ignore_index): it must be a number for each sample")
    is_scalar = together.dim() == 0
    if is_scalar and differ(together, alone.mean(), SAMPLE_TOLERANCE):
        raise ExportError(
            f"the loss of {samples(len(rows))} is {together.item():.6g}, and the mean of their losses is {alone.mean().item():.6g}: "
            "it must be the mean over samples, as with reduction='mean'"
        )
    if not is_scalar and differ(together, alone, SAMPLE_TOLERANCE):
        raise ExportError("the loss of a sample depends on the other samples of a micro-batch: it must be that of the sample alone")
    return is_scalar


def check_segments(segments, rows, allow_plan_dependent):
    """Runs the segments one after the other, and each with samples alone. Returns their inputs, and whether the result depends on the plan."""
    if len(segments) > SEGMENTS_MAX:
        raise ExportError(f"the model has {len(segments)} segments, and may have {SEGMENTS_MAX}: cut it at fewer places")
    inputs, value, dependent = [], rows[:, :-1].contiguous(), False
    seed()
    for segment in segments:
        inputs.append(value)
        value, refusal = check_segment(segment, value)
        if refusal and not allow_plan_dependent:
            raise ExportError(f"{refusal}, or pass allow_plan_dependent=True")
        dependent |= refusal is not None
    return inputs, dependent


def check_segment(segment, before):
    """What a segment gives, and why the result depends on the plan, if it does."""
    given, state = before.clone(), torch.default_generator.get_state()
    output = segment.module(given).detach().contiguous()
    draws = not torch.equal(torch.default_generator.get_state(), state)
    if not torch.equal(given, before):
        raise ExportError(
            f"the segment {segment.name} changes its input in place, which the segment before it has to keep: "
            "leave out inplace=True, or take the operator without _ at its end"
        )
    check_output(f"the segment {segment.name}", output, len(before))
    if draws:
        return output, (
            f"the segment {segment.name} draws random numbers, as dropout does, and which sample gets which depends on the plan: set the probability to 0"
        )
    alone = [segment.module(before[i : i + 1]).detach() for i in range(len(before))]
    if differ(torch.cat(alone), output, SAMPLE_TOLERANCE):
        return output, (
            f"what the segment {segment.name} gives for a sample depends on the other samples of its micro-batch, as with BatchNorm, "
            "and the plan decides which these are: take GroupNorm or LayerNorm"
        )
    return output, None
