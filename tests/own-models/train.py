"""`make test-own-models`: the models of examples/bring-your-own are exported, and trained while workers are killed and join. PyTorch computes the same
results with the trained parameters.

train.py BINARIES: the folder with varuna and varuna-worker. Nothing is downloaded.
"""

import math
import pathlib
import sys
import tempfile

import numpy
import torch
import yaml
from safetensors.torch import load_file

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from runs import ROOT, metrics, train_through_changes, varuna

sys.path[:0] = [str(ROOT / "python/varuna_export/src"), str(ROOT / "examples/bring-your-own")]
import custom_transformer
import vit
from varuna_export import Field, Record, Tokens, export, write_records

STEPS, INTERVAL, WINDOWS, HELD_OUT = 121, 40, 32, 0.1


def images():
    """A generated set of images: noise with one bright pixel in one of ten places, which is the label."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, vit.CLASSES, (1200,), generator=generator)
    rows = torch.randint(0, 6, (1200, vit.SIDE**2), generator=generator)
    rows[torch.arange(1200), 6 * labels] = 16
    return torch.cat([rows, labels[:, None]], dim=1)


def vision(folder):
    write_records(folder / "vit-data", images(), vit.VALUES)
    fields = {
        "image": Field((1, vit.SIDE, vit.SIDE), scale=1 / 16),
        "label": Field((), role="target", dtype=torch.int64, values=vit.CLASSES),
    }
    torch.manual_seed(1)
    return vit.VisionTransformer(), vit.loss, Record(vit.VALUES, **fields), folder / "vit-data"


def language(folder):
    varuna("data", "build", "--tokenizer", "byte", "--output", folder / "text", ROOT / "tests/fixtures/genesis.txt")
    torch.manual_seed(1)
    tokens = Tokens(custom_transformer.LENGTH, custom_transformer.VALUES)
    return custom_transformer.Transformer(), custom_transformer.loss, tokens, folder / "text"


def job(folder, name, exported, data):
    path = folder / f"{name}.yaml"
    document = {
        "apiVersion": "varuna.dev/v1alpha1",
        "kind": "VarunaJob",
        "metadata": {"name": name},
        "spec": {
            **yaml.safe_load(exported.model_yaml),
            "data": {"path": str(data), "validationFraction": HELD_OUT},
            "training": {
                "globalBatchSize": 16,
                "microBatchSize": 2,
                "steps": STEPS,
                "seed": 5,
                "optimizer": {"learningRate": 0.003, "warmupSteps": 10},
                "evaluation": {"intervalSteps": INTERVAL, "samples": WINDOWS},
            },
            "pipeline": {"minDepth": 2},
            "elasticity": {"minWorkers": 2, "maxWorkers": 5},
            "workers": {"threads": 1},
            "checkpoint": {"uri": str(folder / "store"), "intervalSteps": INTERVAL},
        },
    }
    path.write_text(yaml.safe_dump(document))
    return path


def held_out(sample, data):
    """The first windows of the held-out share of a dataset, which the run has evaluated."""
    index = data.with_suffix(".idx").read_bytes()
    dtype = {1: "<u1", 4: "<i4", 8: "<u2"}[index[17]]
    values = torch.from_numpy(numpy.fromfile(data.with_suffix(".bin"), dtype).astype(numpy.int64))
    length = sample.length
    windows = (len(values) - (not sample.records)) // length
    first = windows - math.ceil(windows * HELD_OUT)
    rows = [values[i * length : i * length + length + 1] for i in range(first, min(first + WINDOWS, windows))]
    return torch.stack([torch.nn.functional.pad(row, (0, length + 1 - len(row))) for row in rows])


def loss_in_pytorch(model, loss, sample, rows):
    with torch.no_grad():
        return loss(model(*sample.inputs(rows[:, :-1])), *sample.targets(rows)).mean().item()


def check(folder, name, make):
    """The difference between the run's own loss and PyTorch's, on held-out samples, for the checkpoint of that step."""
    model, loss, sample, data = make(folder)
    exported = export(model, loss, sample, folder / name)
    steps = train_through_changes(job(folder, name, exported, data), folder / f"{name}-run", STEPS)
    first, last = steps[0]["loss"], steps[-1]["loss"]
    assert last < 0.75 * first, (first, last)
    evaluated = [step for step in metrics(folder / f"{name}-run") if step.get("evalLoss") is not None]
    varuna("checkpoint", "export", folder / "store" / name, folder / f"{name}-out", "--name", checkpoint(folder, name, evaluated[-1]["step"] - 1))
    found = model.load_state_dict(load_file(folder / f"{name}-out" / "model.safetensors"), strict=False)
    assert not found.unexpected_keys and not found.missing_keys, found
    theirs = loss_in_pytorch(model.eval(), loss, sample, held_out(sample, data))
    ours = evaluated[-1]["evalLoss"]
    print(f"  {name}: {STEPS} steps through a kill and a growth, loss {first:.3f} to {last:.3f}; evaluated {ours:.6f}, by PyTorch {theirs:.6f}", flush=True)
    return abs(ours - theirs) / theirs


def checkpoint(folder, name, step):
    """The name of the checkpoint of a step."""
    names = [line.split()[0] for line in varuna("checkpoint", "ls", folder / "store" / name).splitlines() if line.startswith("step")]
    of_step = [n for n in names if int(n.split("-")[1]) == step]
    assert of_step, (step, names)
    return of_step[0]


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        differences = [check(pathlib.Path(name), what, make) for what, make in (("vit", vision), ("custom", language))]
    print(f"RESULT own.loss_difference {max(differences):.3g}")
    if not max(differences) <= 1e-5:
        sys.exit(f"losses differ by {max(differences):.3g}; 1e-5 is allowed")


main()
