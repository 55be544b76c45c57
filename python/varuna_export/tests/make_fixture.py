"""Writes the folders that the Rust tests of workers read, and what PyTorch computes with the unsplit models.

    python python/varuna_export/tests/make_fixture.py

Written to worker/tests/data/exported/, in place of what is there. The bytes are the same each time, with the same PyTorch on the same kind of processor.
"""

import copy
import json
import shutil

import support
import torch

import models
import reference
from varuna_export import export, write_records

ROOT = support.HERE.parents[2]
TARGET = ROOT / "worker" / "tests" / "data" / "exported"
STEPS, BATCH = 6, 8
BYTES_MAX = 150_000


def write(name, seed, make, **options):
    torch.manual_seed(seed)
    model, loss, sample = make()
    model.train()
    # The path that a job would name, from the root of the repository.
    path = (TARGET / name).relative_to(ROOT)
    exported = export(model, loss, sample, TARGET / name, path=path, overwrite=True, **options)
    batches = reference.draw(sample, STEPS, BATCH, seed)
    found = {"rows": [rows.tolist() for rows in batches]}
    if not exported.plan_dependent:
        kinds = kinds_in(exported.folder)
        for optimizer in ("adamw", "sgd"):
            losses = reference.train(copy.deepcopy(model), loss, sample, kinds, getattr(reference, optimizer), batches)
            found[optimizer] = {"losses": losses}
    (TARGET / name / "reference.json").write_text(json.dumps(found) + "\n")
    size = sum(file.stat().st_size for file in exported.folder.iterdir())
    assert size <= BYTES_MAX, f"{name} has {size} bytes, and may have {BYTES_MAX}"
    print(f"{path}: {size} bytes, digest {exported.digest}")


def kinds_in(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    everywhere = [*manifest["shared"]["parameters"], *(p for segment in manifest["segments"] for p in segment["parameters"])]
    return {parameter["name"]: parameter["kind"] for parameter in everywhere}


def digits_that_count():
    """Texts for the decoder: numbers that count upwards in strides, so that there is something to learn."""
    return [[(start * 7 + stride * i) % 29 for i in range(13)] for start in range(100) for stride in (1, 2, 3)]


def greatest_of_four():
    """Records for the layers: the label says which of the first four numbers is the greatest."""
    generator = torch.Generator().manual_seed(4)
    features = torch.randint(0, 8, (400, 12), generator=generator)
    return torch.cat([features, features[:, :4].argmax(1, keepdim=True)], dim=1).tolist()


def main():
    shutil.rmtree(TARGET, ignore_errors=True)
    write_records(TARGET / "decoder-data", digits_that_count(), 29)
    write_records(TARGET / "mlp-data", greatest_of_four(), 8)
    write("mlp", 1, models.mlp)
    write("decoder", 2, models.decoder)
    write("odd", 4, models.odd)
    write("noisy", 3, lambda: models.decoder(dropout=0.1), allow_plan_dependent=True)


if __name__ == "__main__":
    main()
