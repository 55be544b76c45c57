"""TorchScript of a module: scripted, or where TorchScript's compiler refuses, traced."""

import contextlib
import io
import itertools
import re
import warnings
import zipfile

import torch

from .error import ExportError, first_line

# A constant of a class in the code that PyTorch writes.
CONSTANT = re.compile(r"  \w+ : Final\[")


@contextlib.contextmanager
def quietly():
    """TorchScript warns that it is not developed further."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compile_module(module, examples, what, why_not):
    """TorchScript, and whether it was traced, which shows it the examples alone. `why_not` tries the TorchScript: it says what is wrong with it, or None."""
    refusals = []
    for how, make in (("compiled", script), ("traced", trace)):
        try:
            made = make(module, examples)
            refusal = calls_python(made) or why_not(made)
        except Exception as error:
            refusal = reason(error)
        if refusal is None:
            return made, how == "traced"
        refusals.append(f"{how}, {refusal}")
    raise ExportError(
        f"TorchScript cannot carry {what}. It was {'. It was '.join(refusals)}. Write it with tensor operators alone: "
        "without numbers that are taken out of tensors, and without Python objects that TorchScript does not know"
    )


def script(module, examples):
    with quietly():
        return torch.jit.script(module)


def trace(module, examples):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        traced = torch.jit.trace(module, examples, check_trace=False)
    # A value that was taken out of a tensor is a constant from then on, right or not.
    for warning in found:
        if issubclass(warning.category, torch.jit.TracerWarning):
            raise ValueError(warning.message)
    return traced


def calls_python(made):
    if made.inlined_graph.findAllNodes("prim::PythonOp"):
        return "it calls Python again, as an autograd.Function and torch.utils.checkpoint do (workers recompute without it)"
    return None


def reason(error):
    """An interpreter's error has what happened at its end, a compiler's at its beginning."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    interpreted = lines and lines[0].startswith("The following operation failed")
    return f"it fails: {first_line(lines[-1] if interpreted else error)}"


def without_values(scripted):
    """Takes the elements of all parameters out of a TorchScript module; the module that it was made from keeps its own."""
    for name, _ in scripted.named_parameters(remove_duplicate=False):
        owner, _, attribute = name.rpartition(".")
        place = scripted
        for step in owner.split(".") if owner else []:
            place = getattr(place, step)
        setattr(place, attribute, torch.empty(0))


def to_bytes(scripted):
    """The file, without what would make it differ from time to time and from machine to machine: the digest of a model stays if it is exported again."""
    saved, kept = io.BytesIO(), io.BytesIO()
    with quietly():
        torch.jit.save(scripted, saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(kept, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            # Paths of source files, for messages alone, and a digest of what was there before.
            if entry.filename.endswith((".debug_pkl", "/serialization_id")):
                continue
            content = old.read(entry)
            if entry.filename.endswith(".py"):
                content = in_order(content.decode()).encode()
            new.writestr(zipfile.ZipInfo(entry.filename, (1980, 1, 1, 0, 0, 0)), content)
    return kept.getvalue()


def in_order(code):
    """Code with the constants of each class in the order of their names: PyTorch writes them in that of a set, which differs from process to process."""
    lines = []
    for is_constant, group in itertools.groupby(code.splitlines(keepends=True), lambda line: CONSTANT.match(line) is not None):
        lines += sorted(group) if is_constant else group
    return "".join(lines)
