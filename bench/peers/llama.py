"""The Llama that the PyTorch side of `make bench-engine` trains: the preset llama-tiny with the vocabulary of shape.py.

RMS norms before both halves of a block, rotary positions (halves turned, theta 500000), two heads of keys and values for six of queries, a
gated MLP (SiLU), no biases, an untied head.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from shape import HEADS, HIDDEN, LAYERS, SEQUENCE, VOCABULARY

KV_HEADS, INNER, THETA, EPSILON = 2, 1024, 500000.0, 1e-5
HEAD = HIDDEN // HEADS


def angles():
    """Cosines and sines, (SEQUENCE, HEAD) each."""
    turns = THETA ** (-torch.arange(0, HEAD, 2).float() / HEAD)
    angle = torch.outer(torch.arange(SEQUENCE).float(), turns)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def turned(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.RMSNorm(HIDDEN, EPSILON)
        self.q = nn.Linear(HIDDEN, HEADS * HEAD, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.project = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.norm2 = nn.RMSNorm(HIDDEN, EPSILON)
        self.gate = nn.Linear(HIDDEN, INNER, bias=False)
        self.up = nn.Linear(HIDDEN, INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y = self.norm1(x)
        q, k, v = (of(y).view(b, t, -1, HEAD).transpose(1, 2) for of in (self.q, self.k, self.v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.project(a.transpose(1, 2).reshape(b, t, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, EPSILON)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.cos, self.sin = angles()
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))
