"""Trains the unsplit model with PyTorch alone, for what is exported to be compared with."""

import torch

DECAYING = ("matrix", "embedding")


def adamw(named):
    """`named`: name, parameter and kind. Tables and matrices decay."""
    groups = [
        {"params": [p for _, p, kind in named if kind in DECAYING], "weight_decay": 0.1},
        {"params": [p for _, p, kind in named if kind not in DECAYING], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8, foreach=False)


def sgd(named):
    return torch.optim.SGD([p for _, p, _ in named], lr=0.05, momentum=0.9, foreach=False)


def per_sample(loss, sample, output, rows):
    """The loss of each sample, whether the user's gives one for each or their mean."""
    found = loss(output, *sample.targets(rows))
    if found.dim() == 1:
        return found
    return torch.stack([loss(output[i : i + 1], *sample.targets(rows[i : i + 1])) for i in range(len(rows))])


def train(model, loss, sample, kinds, make_optimizer, batches):
    """Mean losses of steps, each before its update."""
    optimizer = make_optimizer([(name, p, kinds[name]) for name, p in model.named_parameters()])
    found = []
    for rows in batches:
        optimizer.zero_grad()
        mean = per_sample(loss, sample, model(*sample.inputs(rows[:, :-1].contiguous())), rows).mean()
        mean.backward()
        optimizer.step()
        found.append(mean.item())
    return found


def draw(sample, steps, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    return [sample.draw(batch, generator) for _ in range(steps)]
