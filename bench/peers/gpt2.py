"""GPT-2 with a tied head on one fixed batch: the PyTorch side of bench/gpu.py.

    gpt2.py weights TASK    writes the initial weights as a Hugging Face folder
    gpt2.py train TASK      trains from the same weights; prints one line of JSON: losses, seconds of each step, peak GiB

TASK is JSON with the fields of `Task`.
"""

import json
import struct
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn

from model import Block, loss_fn

SEED = 7


@dataclass
class Task:
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    batch: int
    micro_batch: int
    steps: int
    learning_rate: float
    device: str
    # fp32, or bf16: autocast over fp32 parameters, as our masters are.
    precision: str
    # Path of a dataset's tokens (16 bits each); the first `batch` windows are every step's batch.
    tokens: str
    compile: bool = False
    # The very weights that `weights` writes, which the processor makes; else others of their distribution, which are there sooner.
    seeded: bool = True
    # Where `weights` writes.
    folder: str = ""


class Gpt2(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.tokens = nn.Embedding(task.vocabulary, task.hidden)
        self.positions = nn.Embedding(task.sequence, task.hidden)
        self.blocks = nn.ModuleList(Block(task.hidden, task.heads) for _ in range(task.layers))
        self.norm = nn.LayerNorm(task.hidden)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x):
        x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.norm(x), self.tokens.weight)


def initial(task, device):
    torch.manual_seed(SEED)
    with torch.device(device):
        return Gpt2(task)


def published(model):
    """Parameters under the names of a Hugging Face GPT-2; the weights of linear layers are (inputs, outputs) there."""
    yield "transformer.wte.weight", model.tokens.weight
    yield "transformer.wpe.weight", model.positions.weight
    parts = {"norm1": "ln_1", "qkv": "attn.c_attn", "project": "attn.c_proj", "norm2": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj"}
    for i, block in enumerate(model.blocks):
        for ours, theirs in parts.items():
            part = getattr(block, ours)
            weight = part.weight.t() if isinstance(part, nn.Linear) else part.weight
            yield f"transformer.h.{i}.{theirs}.weight", weight
            yield f"transformer.h.{i}.{theirs}.bias", part.bias
    yield "transformer.ln_f.weight", model.norm.weight
    yield "transformer.ln_f.bias", model.norm.bias


def write_weights(task):
    """config.json and model.safetensors: the length of a header, the header, the values."""
    folder = Path(task.folder)
    folder.mkdir(parents=True)
    config = {"model_type": "gpt2", "n_layer": task.layers, "n_embd": task.hidden, "n_head": task.heads}
    config |= {"n_positions": task.sequence, "vocab_size": task.vocabulary, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = [(name, p.detach().contiguous()) for name, p in published(initial(task, "cpu"))]
    header, at = {}, 0
    for name, tensor in tensors:
        end = at + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in tensors:
            file.write(tensor.flatten().view(torch.uint8).numpy().tobytes())


def fixed_batch(task):
    """Inputs and targets: windows that overlap by the one token that is the last target."""
    needed = task.batch * task.sequence + 1
    raw = bytearray(Path(task.tokens).read_bytes()[: 2 * needed])
    stream = torch.frombuffer(raw, dtype=torch.int16).long()
    shape = (task.batch, task.sequence)
    return stream[:-1].view(shape).to(task.device), stream[1:].view(shape).to(task.device)


def adamw(model, task):
    """Weight decay for matrices only, as ours."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=task.learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=True)


def train(task):
    on_gpu = task.device != "cpu"
    model = initial(task, "cpu" if task.seeded else task.device).to(task.device)
    optimizer = adamw(model, task)
    run = torch.compile(model) if task.compile else model
    narrow = torch.autocast(task.device.split(":")[0], torch.bfloat16) if task.precision == "bf16" else nullcontext()
    x, y = fixed_batch(task)
    parts = task.batch // task.micro_batch
    losses, seconds = [], []
    for _ in range(task.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        total = torch.zeros((), device=task.device)
        for xi, yi in zip(x.chunk(parts), y.chunk(parts)):
            with narrow:
                loss = loss_fn(run(xi), yi) / parts
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # The one read of the device: the step has ended.
        losses.append(total.item())
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_reserved() / 2**30 if on_gpu else 0.0
    print(json.dumps({"losses": losses, "seconds": seconds, "peakGib": peak}), flush=True)


def main():
    task = Task(**json.loads(sys.argv[2]))
    {"weights": write_weights, "train": train}[sys.argv[1]](task)


main()
