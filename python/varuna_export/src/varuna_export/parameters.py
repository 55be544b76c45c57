"""Which segment holds which parameters, what kind each is, and which the first and the last segment share."""

from dataclasses import dataclass

import torch
from torch import nn

from .error import ExportError

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
# In the name of a parameter of the user's own module: it is a table, not the weight of a layer.
TABLE_NAMES = ("embed", "position", "token")


@dataclass
class Parameter:
    """A parameter by its name in the user's model."""

    name: str
    kind: str
    values: torch.Tensor


@dataclass
class Use:
    """A parameter in a segment, with the places of the segment's module where it goes."""

    parameter: Parameter
    slots: list


@dataclass
class Holdings:
    """What a segment has for itself, and what it shares."""

    own: list
    shared: list


def holdings(model, segments):
    """Of each segment; those of the shared ones are in the first and the last alone."""
    parameters = by_identity(model)
    slots = [slots_of(segment.module) for segment in segments]
    holders = {key: [i for i, of in enumerate(slots) if key in of] for key in parameters}
    for key, parameter in parameters.items():
        check_holders(parameter.name, holders[key], segments)

    def uses(number, shared):
        return [
            Use(parameter, slots[number][key])
            for key, parameter in parameters.items()
            if number in holders[key] and (len(holders[key]) > 1) == shared
        ]

    return [Holdings(uses(i, shared=False), uses(i, shared=True)) for i in range(len(segments))]


def by_identity(model):
    """Parameters by what they are, since one may have several names: matrices first, otherwise in the order of the model."""
    owners = {}
    for owner_name, owner in model.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((owner, name))
    found = {id(p): Parameter(name, kind(p, owners[id(p)]), p) for name, p in model.named_parameters()}
    return dict(sorted(found.items(), key=lambda item: item[1].kind != "matrix"))


def kind(parameter, owners):
    """Of what a parameter is, for optimizers that do not treat all alike. A table that a head shares is a table."""
    kinds = {kind_in(parameter, owner, name) for owner, name in owners}
    return next(k for k in ("embedding", "norm", "matrix", "bias") if k in kinds)


def kind_in(parameter, owner, name):
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    # Not every version of PyTorch has an RMSNorm, and many write their own norms.
    if isinstance(owner, NORMS) or type(owner).__name__.endswith("Norm"):
        return "norm"
    if parameter.dim() < 2:
        return "bias"
    is_bare = not type(owner).__module__.startswith("torch.nn.")
    return "embedding" if is_bare and any(word in name.lower() for word in TABLE_NAMES) else "matrix"


def slots_of(module):
    slots = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        slots.setdefault(id(parameter), []).append(name)
    return slots


def check_holders(name, holders, segments):
    if not holders:
        raise ExportError(f"the parameter {name} is used by no segment: the model does not need it, so take it out")
    if len(holders) > 1 and holders != [0, len(segments) - 1]:
        numbers = ", ".join(f"{i} ({segments[i].name})" for i in holders)
        raise ExportError(
            f"the parameter {name} is shared by the segments {numbers} of 0 to {len(segments) - 1}: only the first and the last segment may share one. "
            "Move the cuts so that one segment has all that use it, or give each a parameter of its own"
        )
