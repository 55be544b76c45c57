"""A vision transformer that learns the digits of scikit-learn: 1797 images of 8 by 8 pixels.

    python examples/bring-your-own/vit.py [--output runs/vit]

Writes a dataset of records, the model in segments, and a job for both.
"""

import argparse
import pathlib
import sys
import textwrap

import torch
import torch.nn.functional as F
from torch import nn

from varuna_export import CutPoint, Field, Record, export, write_records

# Pixels are 0 to 16.
VALUES, SIDE, CLASSES = 17, 8, 10
WIDTH, HEADS, BLOCKS = 64, 4, 4

JOB = """\
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata:
  name: vit
spec:
{model}  data:
    path: {data}
    validationFraction: 0.1
  training:
    globalBatchSize: 64
    steps: 400
    seed: 1
    optimizer:
      learningRate: 1e-3
      warmupSteps: 40
      weightDecay: 0.1
    evaluation:
      intervalSteps: 100
      samples: 128
  pipeline:
    minDepth: 2
  elasticity:
    minWorkers: 2
    maxWorkers: 4
  workers:
    threads: 1
"""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class VisionTransformer(nn.Module):
    """Patches of 2 by 2 pixels and a class token, whose place has the answer in the end."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1 + (SIDE // 2) ** 2, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        self.cut = CutPoint()

    def forward(self, image):
        patches = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(image.shape[0], -1, -1), patches], dim=1) + self.positions
        # The model may be cut before each block and behind the last one.
        for block in self.blocks:
            x = block(self.cut(x))
        return self.head(self.norm(self.cut(x)[:, 0]))


def loss(logits, label):
    return F.cross_entropy(logits, label, reduction="none")


def records():
    """Rows of 64 pixels and a label, shuffled: the last ones are held out."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("scikit-learn, which has the images, is not installed: pip install scikit-learn")
    digits = load_digits()
    rows = torch.cat([torch.from_numpy(digits.data).long(), torch.from_numpy(digits.target).long()[:, None]], dim=1)
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default="runs/vit", help="folder of the model; the dataset and the job are written beside it")
    output = parser.parse_args().output
    data, job = output.with_name(f"{output.name}-data"), output.with_name(f"{output.name}.yaml")

    write_records(data, records(), VALUES, overwrite=True)
    torch.manual_seed(1)
    sample = Record(
        VALUES,
        image=Field((1, SIDE, SIDE), scale=1 / 16),
        label=Field((), role="target", dtype=torch.int64, values=CLASSES),
    )
    exported = export(VisionTransformer(), loss, sample, output, overwrite=True)
    job.write_text(JOB.format(model=textwrap.indent(exported.model_yaml, "  "), data=data))
    print(f"{data}: {SIDE * SIDE + 1} integers a record\n{output}: {BLOCKS + 2} segments\n{job}: the job\n\n    varuna run {job} --workers 4")


if __name__ == "__main__":
    main()
