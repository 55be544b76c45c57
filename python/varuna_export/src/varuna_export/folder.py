"""Writes the folder: complete, or not at all."""

import hashlib
import json
import os
import shutil

import torch
from safetensors.torch import save_file

from .error import ExportError
from .script import to_bytes, without_values
from .version import __version__

FORMAT_VERSION = 1


def check_target(to, overwrite):
    if to.exists() and not overwrite:
        raise ExportError(f"the folder {to} exists: name another one, or pass overwrite=True")
    if to.exists() and not (to / "manifest.json").is_file():
        raise ExportError(f"{to} exists and is no folder that export() has written, so it is not replaced: name another one")


def write(to, path, contents):
    """Writes the folder beside its place first. Returns the digest of the manifest and the text of model.yaml."""
    partial = to.with_name(f"{to.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        written = fill(partial, path, contents)
        put_in_place(partial, to)
    except OSError as error:
        raise ExportError(f"the folder {to} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return written


def put_in_place(partial, to):
    if not to.exists():
        os.rename(partial, to)
        return
    replaced = to.with_name(f"{to.name}.replaced-{os.getpid()}")
    os.rename(to, replaced)
    try:
        os.rename(partial, to)
    except OSError:
        os.rename(replaced, to)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def fill(folder, path, contents):
    segments = [write_segment(folder, number, exported) for number, exported in enumerate(contents.segments)]
    write_code(folder / "loss.pt", contents.loss)
    manifest = {
        "formatVersion": FORMAT_VERSION,
        "producer": f"varuna_export {__version__}, torch {torch.__version__.split('+')[0]}",
        "planDependent": contents.plan_dependent,
        "sample": {"length": contents.sample.length, "values": contents.sample.values, "records": contents.sample.records},
        "segments": segments,
        "shared": write_shared(folder, contents.shared),
        "loss": {"code": "loss.pt"},
        "files": {file.name: sha256(file) for file in sorted(folder.iterdir())},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    digest = sha256(folder / "manifest.json")
    model_yaml = model_section(path, digest, manifest)
    (folder / "model.yaml").write_text(model_yaml)
    return digest, model_yaml


def write_segment(folder, number, exported):
    holdings, amounts = exported.holdings, exported.amounts
    entry = {"name": exported.name, "code": f"segment-{number}.pt"}
    write_code(folder / entry["code"], exported.scripted)
    if holdings.own:
        entry["values"] = f"segment-{number}.safetensors"
        write_values(folder / entry["values"], [use.parameter for use in holdings.own])
    return entry | {
        "output": list(exported.output),
        "parameters": [{"name": use.parameter.name, "slots": use.slots, **shape_and_kind(use.parameter)} for use in holdings.own],
        "shared": [{"name": use.parameter.name, "slots": use.slots} for use in holdings.shared],
        "forwardFlops": amounts.forward_flops,
        "backwardFlops": amounts.backward_flops,
        "savedElements": amounts.saved_elements,
        "workingElements": amounts.working_elements,
    }


def write_shared(folder, shared):
    entry = {}
    if shared:
        entry["values"] = "shared.safetensors"
        write_values(folder / entry["values"], shared)
    return entry | {"parameters": [{"name": p.name, **shape_and_kind(p)} for p in shared]}


def shape_and_kind(parameter):
    return {"shape": list(parameter.values.shape), "kind": parameter.kind}


def write_code(file, scripted):
    without_values(scripted)
    file.write_bytes(to_bytes(scripted))


def write_values(file, parameters):
    save_file({p.name: p.values.detach().contiguous().clone() for p in parameters}, file)
    # safetensors lets the writer alone read its files; workers may be other users.
    shutil.copymode(file.with_name("segment-0.pt"), file)


def sha256(file):
    digest = hashlib.sha256()
    with open(file, "rb") as source:
        while piece := source.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def elements(parameters):
    return sum(torch.Size(p["shape"]).numel() for p in parameters)


def parameters_digest(manifest, number):
    """Of the names and shapes of what a segment computes with, whatever their order in buffers: jobs refuse checkpoints of others."""
    segments = manifest["segments"]
    at_ends = manifest["shared"]["parameters"] if number in (0, len(segments) - 1) else []
    held = sorted([*segments[number]["parameters"], *at_ends], key=lambda parameter: parameter["name"])
    lines = (f"{parameter['name']} {'x'.join(map(str, parameter['shape']))}\n" for parameter in held)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def model_section(path, digest, manifest):
    """The section `model:` of a job file. Texts in JSON are texts in YAML."""
    sample = manifest["sample"]
    lines = [
        "model:",
        "  exported:",
        f"    path: {json.dumps(path)}",
        f'    digest: "{digest}"',
        f"    sample: {{length: {sample['length']}, values: {sample['values']}, records: {json.dumps(sample['records'])}}}",
    ]
    if manifest["planDependent"]:
        lines.append("    planDependent: true")
    lines += [f"    sharedParameters: {elements(manifest['shared']['parameters'])}", "    segments:"]
    for number, segment in enumerate(manifest["segments"]):
        amounts = ", ".join(f"{name}: {segment[name]}" for name in ("forwardFlops", "backwardFlops", "savedElements", "workingElements"))
        lines.append(
            f"    - {{name: {json.dumps(segment['name'])}, parameters: {elements(segment['parameters'])}, output: {segment['output']}, {amounts}, "
            f'parametersDigest: "{parameters_digest(manifest, number)}"}}'
        )
    return "\n".join(lines) + "\n"
