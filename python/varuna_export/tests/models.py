"""Models that the tests export, each with its loss and its sample."""

import torch
import torch.nn.functional as F
from torch import nn

from varuna_export import CutPoint, Field, Record, Tokens


def mlp():
    """Layers one after the other, which are cut between all of them."""
    model = nn.Sequential(nn.Linear(12, 16), nn.Sequential(nn.GELU(), nn.Linear(16, 16)), nn.LayerNorm(16), nn.Linear(16, 4))
    sample = Record(8, features=Field(12, scale=0.25, offset=-1.0), label=Field((), role="target", dtype=torch.int64, values=4))
    return model, nn.CrossEntropyLoss(), sample


class Turned(nn.Module):
    """Wants its tokens in the order of memory, and gives what is in another order."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(29, 16)

    def forward(self, tokens):
        return self.table(tokens.view(-1)).view(tokens.shape[0], -1, 16).transpose(1, 2)


class Reshaped(nn.Module):
    """Takes its input in any order of memory."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12 * 16, 24)

    def forward(self, x):
        return self.layer(x.reshape(x.shape[0], -1))


class Never(nn.Dropout):
    """A dropout that is off in training, too."""

    def train(self, mode=True):
        return super().train(False)


def odd():
    """A view of the tokens, an output in another order of memory, and a module that is never in training."""
    model = nn.Sequential(Turned(), Reshaped(), nn.Sequential(Never(0.5), nn.GELU(), nn.Linear(24, 24)), nn.Linear(24, 29))

    def loss(logits, targets):
        return F.cross_entropy(logits, targets[:, -1], reduction="none")

    return model, loss, Tokens(12, 29)


class Block(nn.Module):
    """A block of a transformer that sees what is before."""

    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(seen.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + F.dropout(self.attention(self.ln_1(x)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.ln_2(x)))), self.dropout, self.training)


class Decoder(nn.Module):
    """A language model whose head shares the table of its tokens. Its constant scales positions, and is not saved with the model."""

    def __init__(self, length, values, width=16, heads=2, blocks=2, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(values, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.register_buffer("mask", torch.linspace(0.5, 1.0, length)[:, None], persistent=False)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.cut = CutPoint()

    def forward(self, tokens, mask_tokens=True):
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions[:length]
        if mask_tokens:
            x = x * self.mask[:length]
        x = self.cut(x)
        for block in self.blocks:
            x = self.cut(block(x))
        return F.linear(self.norm(x) * self.mask, self.tokens.weight)


def token_loss(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)


def decoder(dropout=0.0):
    length, values = 12, 29
    return Decoder(length, values, dropout=dropout), token_loss, Tokens(length, values)


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        y = self.norm(x)
        return x + self.mlp(x + self.attention(y, y, y, need_weights=False)[0])


class Vision(nn.Module):
    """A small vision transformer: patches, a class token, and its place at the end as the output."""

    def __init__(self, width=12, classes=5):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(10, width) * 0.02)
        self.blocks = nn.Sequential(Encoder(width), CutPoint(), Encoder(width))
        self.head = nn.Linear(width, classes)
        self.cut = CutPoint()

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        x = self.cut(self.blocks(self.cut(x)))
        return self.head(x[:, 0])


def vision():
    sample = Record(17, image=Field((1, 6, 6), scale=1 / 16), label=Field((), role="target", dtype=torch.int64, values=5))
    return Vision(), lambda logits, label: F.cross_entropy(logits, label, label_smoothing=0.1), sample


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.gain


def convolutional():
    """Two inputs of the loss, and CutPoints among the children, where alone it is cut."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        CutPoint(),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.SiLU(),
        nn.AvgPool2d(4),
        CutPoint(),
        nn.Flatten(),
        Scale(),
        nn.Linear(32, 2),
    )
    sample = Record(
        256,
        weight=Field(1, role="target", scale=1 / 255),
        image=Field((3, 8, 8), scale=2 / 255, offset=-1.0),
        aim=Field(2, role="target", scale=1 / 255),
    )
    return model, weighted_error, sample


def weighted_error(output, weight, aim):
    return ((output - aim).square() * weight).mean(1)
