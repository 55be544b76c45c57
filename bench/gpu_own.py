"""Part `own` of bench/gpu.py: models that somebody brings (examples/bring-your-own), exported by this machine's PyTorch."""

import json
import sys
import textwrap

from common import ROOT, VARUNA, Run
from gpu_sides import difference, program, steps_of


def own_models(bench):
    """Twenty steps of each on the device against the same on the processor, both in fp32."""
    sys.path[:0] = [str(ROOT / "python/varuna_export/src"), str(ROOT / "examples/bring-your-own")]
    steps = steps_of(bench, 20)
    for name, made in (("transformer", transformer), ("vit", vit)):
        model, data = made(bench.scratch)
        losses, reference = (losses_on(device, model, data, steps) for device in (bench.device, "cpu"))
        print(f"  {name} on {bench.device} / on the processor:")
        bench.judge(f"parity_own_{name}", difference(losses, reference, steps), 2e-3)


def transformer(scratch):
    """The section `model:` of a transformer that reads bytes, and its dataset."""
    import custom_transformer as example
    import torch
    from varuna_export import Tokens, export

    data, text = scratch / "bytes", scratch / "bytes.txt"
    text.write_text("In the beginning God created the heaven and the earth. " * 400)
    program(VARUNA, "data", "build", "--tokenizer", "byte", "--output", data, text)
    torch.manual_seed(1)
    exported = export(example.Transformer(), example.loss, Tokens(example.LENGTH, example.VALUES), scratch / "transformer")
    return exported.model_yaml, data


def vit(scratch):
    """The same of a vision transformer, whose records are images and labels."""
    import torch
    import vit as example
    from varuna_export import Field, Record, export, write_records

    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, example.VALUES, (400, example.SIDE**2), generator=generator)
    labels = torch.randint(0, example.CLASSES, (400, 1), generator=generator)
    data = scratch / "images"
    write_records(data, torch.cat([images, labels], dim=1), example.VALUES)
    fields = {
        "image": Field((1, example.SIDE, example.SIDE), scale=1 / 16),
        "label": Field((), role="target", dtype=torch.int64, values=example.CLASSES),
    }
    torch.manual_seed(1)
    exported = export(example.VisionTransformer(), example.loss, Record(example.VALUES, **fields), scratch / "vit")
    return exported.model_yaml, data


def losses_on(device, model, data, steps):
    training = {"globalBatchSize": 8, "microBatchSize": 4, "steps": steps, "seed": 5, "optimizer": {"learningRate": 1e-3, "warmupSteps": 0}}
    # JSON is YAML.
    job = f"""apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {{name: own}}
spec:
{textwrap.indent(model, "  ")}
  data: {json.dumps({"path": str(data), "validationFraction": 0})}
  training: {json.dumps(training)}
  workers: {json.dumps({"device": device, "transport": "tcp"})}
"""
    with Run(job, 1) as run:
        run.wait()
        return [m["loss"] for m in run.lines("metrics.jsonl")]
