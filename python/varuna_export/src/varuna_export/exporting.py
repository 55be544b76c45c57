"""From a model to a folder: the order of what is checked, made and written."""

import contextlib
import copy
import os
import pathlib
from dataclasses import dataclass

import torch

from . import amounts, checks, cuts, equality, folder, parameters
from .error import ExportError, first_line
from .loss import LossOfRows, compile_loss, losses_of
from .sample import Record, Tokens
from .script import compile_module, quietly

# Rows to try the model with are always the same ones.
ROWS_SEED = 38


@dataclass
class Exported:
    """What was written, and what a job file says of it."""

    folder: pathlib.Path
    digest: str
    # The section `model:` of a job file.
    model_yaml: str
    plan_dependent: bool
    # Names of the segments that TorchScript's compiler refused and that were traced. Where such a segment names a device, that stays the processor.
    traced: list


@dataclass
class ExportedSegment:
    name: str
    scripted: torch.jit.ScriptModule
    holdings: parameters.Holdings
    output: tuple
    amounts: amounts.Amounts


@dataclass
class Contents:
    """What the folder is made of."""

    sample: object
    plan_dependent: bool
    segments: list
    shared: list
    loss: torch.jit.ScriptModule


def export(model, loss, sample, to, path=None, allow_plan_dependent=False, overwrite=False):
    """Cuts a model into segments and writes them to the folder `to`.

    `loss(output, *targets)` gives the loss of each sample, or the mean over samples. `sample` is a Tokens or a Record. `path` is what the job file
    names the folder, if workers find it under another name. With `allow_plan_dependent` the result may depend on how samples are divided among
    workers, as with dropout.
    """
    to = pathlib.Path(to)
    written_path = os.fspath(to if path is None else path)
    if not isinstance(sample, (Tokens, Record)):
        raise ExportError(f"the sample is a {type(sample).__name__}: give Tokens(length, values) or Record(values, ...)")
    folder.check_target(to, overwrite)
    checks.check_original(model)
    # A forward may change what it likes; nor does the caller's next random number change.
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), as_interpreted():
        try:
            contents, traced = contents_of(private_copy(model), LossOfRows(private_copy(loss), sample), sample, allow_plan_dependent)
        except RecursionError as error:
            raise ExportError("the forward is too long to be followed: move parts of it into modules of their own that have no CutPoint inside") from error
        digest, model_yaml = folder.write(to, written_path, contents)
    return Exported(to, digest, model_yaml, contents.plan_dependent, traced)


@contextlib.contextmanager
def as_interpreted():
    """A worker runs TorchScript without the executor that optimizes it."""
    with quietly(), torch.jit.optimized_execution(False):
        yield


def private_copy(of):
    """A copy on the processor, in training mode. Functions have nothing to copy."""
    if not isinstance(of, torch.nn.Module):
        return of
    try:
        return copy.deepcopy(of).cpu().train()
    except Exception as error:
        raise ExportError(f"{type(of).__name__} cannot be copied: {first_line(error)}. It must be one that copy.deepcopy takes") from error


def contents_of(model, of_rows, sample, allow_plan_dependent):
    generator = torch.Generator().manual_seed(ROWS_SEED)
    rows, shown = sample.draw(checks.TOGETHER, generator), sample.draw(amounts.SAMPLES, generator)
    checks.check_parameters(model)
    checks.check_loss_parameters(of_rows)
    cuts.others(model, sample)
    for count in (1, checks.TOGETHER):
        output = checks.try_model(model, sample, rows[:count])
    is_scalar = checks.check_losses(of_rows, output, rows, sample)
    segments = cuts.cut(model, sample)
    held = parameters.holdings(model, segments)
    inputs, plan_dependent = checks.check_segments(segments, rows, allow_plan_dependent)

    values = amounts.run(segments, shown)
    scripted, traced = compile_segments(segments, inputs, values)
    losses = losses_of(of_rows, is_scalar)
    scripted_loss = compile_loss(of_rows, is_scalar, (values[-1], shown), (output, rows))
    equality.check_whole(model, sample, losses, scripted, scripted_loss, rows)
    equality.check_evaluation(model, sample, scripted, rows)
    exported = []
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        finish = (lambda output: losses(output, shown[: len(output)])) if is_last else (lambda output: output)
        measured = amounts.measure(segment.module, values[number], finish)
        exported.append(ExportedSegment(segment.name, scripted[number], held[number], values[number + 1].shape[1:], measured))
    shared = [use.parameter for use in held[0].shared]
    return Contents(sample, plan_dependent, exported, shared, scripted_loss), traced


def compile_segments(segments, inputs, values):
    """TorchScript of each, tried with other samples than those that it may have been traced with, and the names of those that were traced."""
    scripted, traced = [], []
    for segment, before, shown in zip(segments, inputs, values):

        def why_not(made):
            return equality.why_other_values(made, segment.module, (before,))

        compiled, was_traced = compile_module(segment.module, (shown,), f"the segment {segment.name}", why_not)
        scripted.append(compiled)
        traced += [segment.name] * was_traced
    return scripted, traced
