"""The GPT that the PyTorch side of every benchmark trains: the very model of bench/common.py's job.

Learned positions, pre-norm blocks, GELU (tanh form), an untied head; the same initial distribution as the worker's.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from shape import BATCH, BETAS, HEADS, HIDDEN, LAYERS, LEARNING_RATE, SEQUENCE, VOCABULARY, WEIGHT_DECAY



class Block(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.project = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.project(a)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Blocks lo..hi, with the embedding where lo == 0 and the head where hi == LAYERS."""

    def __init__(self, lo: int = 0, hi: int = LAYERS):
        super().__init__()
        self.first, self.last = lo == 0, hi == LAYERS
        if self.first:
            self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
            self.positions = nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = nn.ModuleDict({str(i): Block(HIDDEN, HEADS) for i in range(lo, hi)})
        if self.last:
            self.norm = nn.LayerNorm(HIDDEN)
            self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x):
        if self.first:
            x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


def loss_fn(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)


def batch():
    """One fixed batch of byte-like tokens: inputs and targets, (BATCH, SEQUENCE)."""
    g = torch.Generator().manual_seed(5)
    x = torch.randint(256, (BATCH, SEQUENCE), generator=g)
    return x, x.roll(-1, 1)
