"""A causal transformer that no preset describes: attention and MLP side by side, under a gate that each block learns. It reads bytes.

    python examples/bring-your-own/custom_transformer.py [--output runs/custom-transformer] [--data .cache/data/kjv]

Writes the model in segments, and a job for it and for a dataset that `varuna data build` has made.
"""

import argparse
import pathlib
import textwrap

import torch
import torch.nn.functional as F
from torch import nn

from varuna_export import CutPoint, Tokens, export

# Bytes, and the end of a document.
VALUES = 257
LENGTH, WIDTH, HEADS, BLOCKS = 128, 128, 4, 4

JOB = """\
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata:
  name: custom-transformer
spec:
{model}  data:
    path: {data}
    validationFraction: 0.01
  training:
    globalBatchSize: 16
    steps: 600
    seed: 1
    optimizer:
      learningRate: 3e-3
      warmupSteps: 60
      weightDecay: 0.1
    evaluation:
      intervalSteps: 100
      samples: 32
  pipeline:
    minDepth: 2
  elasticity:
    minWorkers: 2
    maxWorkers: 4
  workers:
    threads: 1
"""


class Block(nn.Module):
    """x + gate * attention(n) + (1 - gate) * mlp(n), where n is x after the norm and the gate has a number for each channel."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gate = nn.Parameter(torch.zeros(WIDTH))

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        normed, gate = self.norm(x), torch.sigmoid(self.gate)
        return x + gate * self.attention(normed) + (1 - gate) * self.down(F.silu(self.up(normed)))


class Transformer(nn.Module):
    """The head shares the table of the tokens, which is allowed as they are in the last and the first segment."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VALUES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.cut = CutPoint()
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        # The model may be cut before each block and behind the last one.
        for block in self.blocks:
            x = block(self.cut(x))
        return F.linear(self.norm(self.cut(x)), self.tokens.weight)


def loss(logits, targets):
    """The mean over the tokens of each sample."""
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default="runs/custom-transformer", help="folder of the model; the job is written beside it")
    parser.add_argument("--data", default=".cache/data/kjv", help="dataset of bytes, without .bin or .idx")
    arguments = parser.parse_args()
    output, job = arguments.output, arguments.output.with_name(f"{arguments.output.name}.yaml")

    torch.manual_seed(1)
    exported = export(Transformer(), loss, Tokens(LENGTH, VALUES), output, overwrite=True)
    job.write_text(JOB.format(model=textwrap.indent(exported.model_yaml, "  "), data=arguments.data))
    print(f"{output}: {BLOCKS + 2} segments\n{job}: the job\n\n    varuna run {job} --workers 4")


if __name__ == "__main__":
    main()
